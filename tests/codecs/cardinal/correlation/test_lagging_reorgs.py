"""Large reorgs of which partitions are read at different times: the chain is as it was sent, and no rule is broken."""

from __future__ import annotations

from random import Random

import pytest

from tests.codecs.cardinal.correlation.test_channels import broken, head, told_of
from tests.codecs.cardinal.correlation.test_edges import beside, h, main, on
from tests.support.cardinal_by_hand import Sent, channel, reorg, reorg_complete
from tests.support.cardinal_reorgs import Feed, feed
from tests.support.searches import fast_first
from wirehouse_codecs.cardinal.correlation.chain import Chain
from wirehouse_codecs.cardinal.correlation.consumer import Consumer, ConsumerOutcome
from wirehouse_codecs.cardinal.correlation.events import Canonical, LocatedFinding, ReorgRow, Update
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.block import Block
from wirehouse_codecs.core.rules import Place, Severity

CHANNEL = channel(h(1))
ANNOUNCED = reorg(h(1), 1)
#: Six blocks that the reorg removes, eight that replace them, and what follows.
OLD = on("feed", main(2, 7), partition=1)
NEW = [reorg(h(1), 1, CHANNEL), *on(CHANNEL, beside(2, 8, 1)), reorg_complete(h(1), 1, CHANNEL)]
LATER = beside(2, 20, 1)[7:]


def read(sent: list[Sent], options: CardinalOptions, cuts: set[int]) -> list[ConsumerOutcome]:
    """All outcomes of a feed; the chain is carried over at `cuts` as windows carry it."""
    consumer, told = Consumer(options), list[ConsumerOutcome]()
    for at, message in enumerate(sent):
        if at in cuts:
            consumer.chain = Chain(options, consumer.chain.snapshot())
        place = Place(at * 10**6, 0, b"", at, message.topic, message.partition, message.offset)
        told += consumer.receive(place, message.key, message.value)
    return [*told, *consumer.finish()]


def check(told: list[ConsumerOutcome], meant: Feed) -> None:
    rules = [one.finding.rule for one in told if isinstance(one, LocatedFinding)]
    assert [rule.name for rule in rules if rule.severity is not Severity.NOTE] == []
    chain: list[bytes] = []
    rows: dict[tuple[bytes, int], int | None] = {}
    for one in told:
        if isinstance(one, Update):
            kept = len(chain) - len(one.removed)
            assert tuple(chain[kept:]) == one.removed
            chain = [*chain[:kept], *one.added]
        elif isinstance(one, Canonical):
            rows[one.block_hash, one.valid_from_ns] = one.valid_to_ns
    assert chain == meant.chain
    assert {block_hash for (block_hash, _), until in rows.items() if until is None} == set(chain)
    blocks = [one for one in told if isinstance(one, Block)]
    assert {block.block_hash for block in blocks} == meant.blocks
    assert all(block.complete for block in blocks)


@pytest.mark.parametrize("seed", fast_first(range(2_000), 12, most=60))
def test_a_feed_breaks_no_rule_and_gives_its_chain_however_its_partitions_lag(seed: int) -> None:
    meant, random = feed(seed), Random(seed)
    options = CardinalOptions.from_mapping(meant.options)
    check(read(meant.sent, options, set()), meant)
    told = read(meant.records, options, set())
    check(told, meant)
    assert read(meant.records, options, set(random.sample(range(len(meant.records)), 3))) == told


@pytest.mark.parametrize("announced", range(8))
@pytest.mark.parametrize("opened", range(8))
def test_a_reorg_read_before_the_branch_that_it_removes_is_made(announced: int, opened: int) -> None:
    sent = list(OLD)
    for at, messages in sorted([(announced, [ANNOUNCED]), (opened, NEW)], key=lambda one: -one[0]):
        sent[at:at] = messages
    told = told_of([*main(1, 1), *sent, *LATER])
    assert (broken(told), head(told)) == ([], h(20, 1))


@pytest.mark.parametrize("many", range(len(NEW)))
def test_a_sibling_at_the_ancestor_does_not_bar_the_channel(many: int) -> None:
    sibling = beside(2, 2, 1, side=2)
    told = told_of([*main(1, 1), *sibling, *NEW[:many], *OLD, *NEW[many:], ANNOUNCED, *LATER])
    assert (broken(told), head(told)) == ([], h(20, 1))


def test_a_reorg_that_removes_more_than_was_read_has_one_row() -> None:
    told = told_of([*main(1, 1), *beside(2, 2, 1, side=2), *NEW[:1], *OLD, *NEW[1:], *LATER])
    rows = {one.place: one for one in told.outcomes if isinstance(one, ReorgRow) and one.announced}
    (row,) = rows.values()
    assert (row.depth, row.old_head, row.channel, row.completed) == (6, h(7), CHANNEL, True)


def test_a_branch_that_is_later_than_the_reorg_may_be_read_before_its_channel() -> None:
    # The branch displaced the channel's blocks by weight; here it is read first, and forks deeper than the threshold.
    later = beside(2, 12, 1, side=2, heavier=5)
    told = told_of([*main(1, 7), ANNOUNCED, *later[:9], *NEW, *later[9:]])
    assert (broken(told), head(told)) == ([], h(12, 2))


def test_a_sibling_that_is_read_after_the_reorg_does_not_share_its_channel() -> None:
    told = told_of([*main(1, 7), ANNOUNCED, NEW[0], *beside(2, 3, 1, side=2), *NEW[1:], *LATER])
    assert (broken(told), head(told)) == ([], h(20, 1))
