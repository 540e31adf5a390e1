"""When a reorg channel is read: ahead of the ordinary partitions, behind them, or once more. Written by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

import pytest

from tests.codecs.cardinal.correlation.test_edges import THRESHOLD, beside, h, main, on
from tests.support.cardinal_by_hand import TOPIC, Sent, batch, channel, reorg, reorg_complete
from wirehouse_codecs.cardinal.correlation.consumer import Consumed, consume
from wirehouse_codecs.cardinal.correlation.events import Update
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Place, Severity

CHANNEL = channel(h(1))
MAIN = main(1, 6)
SIDE = beside(2, 8, 1)
ON_CHANNEL = [reorg(h(1), 1, CHANNEL), *on(CHANNEL, SIDE), reorg_complete(h(1), 1, CHANNEL)]
SECOND = [reorg(h(1), 1, CHANNEL), *on(CHANNEL, beside(2, 9, 1, side=2, heavier=5)), reorg_complete(h(1), 1, CHANNEL)]


def told_of(sent: Iterable[Sent], *, start: int | None = 0) -> Consumed:
    options: dict[str, object] = {"reorg_threshold": THRESHOLD}
    if start is not None:
        options["start"] = {"number": start, "hash": h(start).hex(), "weight": start}
    records = [
        (Place(message.at_ns, 0, b"", at, message.topic, message.partition, message.offset), message.key, message.value)
        for at, message in enumerate(sent)
    ]
    return consume(records, CardinalOptions.from_mapping(options))


def broken(told: Consumed) -> list[tuple[str, int]]:
    """The rules that are broken, and the records at fault."""
    rules = [one.finding for one in told.findings if one.finding.rule.severity is not Severity.NOTE]
    return [(finding.rule.name, finding.place.record_number) for finding in rules]


def head(told: Consumed) -> bytes:
    return [update for update in told.outcomes if isinstance(update, Update)][-1].head_hash


def numbered(sent: Iterable[Sent]) -> list[Sent]:
    """With the offset of each message in its topic."""
    read: dict[str, int] = defaultdict(int)
    out = []
    for message in sent:
        out.append(message._replace(offset=read[message.topic]))
        read[message.topic] += 1
    return out


@pytest.mark.parametrize("many", range(len(ON_CHANNEL) + 1))
@pytest.mark.parametrize("ahead_of", range(len(MAIN) + 1))
def test_a_channel_read_ahead_breaks_no_rule_and_gives_the_chain(ahead_of: int, many: int) -> None:
    sent = [*MAIN[:ahead_of], *ON_CHANNEL[:many], *MAIN[ahead_of:], *ON_CHANNEL[many:]]
    told = told_of(sent)
    assert (broken(told), head(told)) == ([], h(8, 1))


@pytest.mark.parametrize("number", [0, 2**32])
def test_a_wrong_hash_is_found_once_every_partition_was_read_as_far_as_would_tell(number: int) -> None:
    wrong = reorg(h(1, 9), 1 + number, channel(h(1, 9)))
    assert broken(told_of([wrong, *MAIN[:-1]])) == []
    assert broken(told_of([*MAIN[:3], wrong, *MAIN[3:]])) == [("reorg_ancestor_wrong", 3)]
    behind = main(1, 3)[2]._replace(partition=1)
    assert broken(told_of([*MAIN[:2], behind, wrong, *MAIN[3:]])) == []


def test_an_unknown_hash_is_found_at_the_latest_when_no_more_is_waited_for() -> None:
    wrong = reorg(h(1, 9), 1, channel(h(1, 9)))
    later = [message._replace(at_ns=HORIZON_NS + 1) for message in main(4, 4)]
    assert broken(told_of([*MAIN[:3], wrong, *(message._replace(at_ns=HORIZON_NS) for message in main(4, 4))])) == []
    assert broken(told_of([*MAIN[:3], wrong, *later])) == [("reorg_ancestor_wrong", 3)]


def test_a_block_below_the_first_of_a_feed_may_be_the_ancestor() -> None:
    below = reorg(h(1, 9), 1, channel(h(1, 9)))
    assert broken(told_of([*main(3, 12), below], start=None)) == []
    assert broken(told_of([*main(3, 12), below], start=3)) == []
    assert broken(told_of([*main(1, 12), below], start=None)) == [("reorg_ancestor_wrong", 12)]


def test_a_wrong_number_of_a_reorg_read_ahead_is_one_finding() -> None:
    wrong = [reorg(h(1), 2, CHANNEL), *ON_CHANNEL[1:-1], reorg_complete(h(1), 2, CHANNEL)]
    told = told_of([*wrong, *MAIN])
    assert (broken(told), head(told)) == ([("reorg_ancestor_wrong", 0)], h(8, 1))


def test_an_announcement_read_ahead_does_not_hide_its_channel() -> None:
    told = told_of([reorg(h(1), 1), *MAIN, *ON_CHANNEL])
    assert (broken(told), head(told)) == ([], h(8, 1))
    unfinished = told_of([reorg(h(1), 1), *MAIN, *ON_CHANNEL[:-1], *_on_top(11)])
    assert broken(unfinished) == [("reorg_not_completed", 7)]


def _on_top(last: int) -> list[Sent]:
    return [message._replace(topic=TOPIC) for message in beside(2, last, 1)[7:]]


def test_a_channel_longer_than_the_threshold_goes_on_after_its_head_has_passed_the_old_one() -> None:
    long = [reorg(h(1), 1, CHANNEL), *on(CHANNEL, beside(2, 14, 1)), reorg_complete(h(1), 1, CHANNEL)]
    assert broken(told_of([*MAIN, *long])) == []


def test_a_reader_goes_back_anywhere_in_two_reorgs_from_one_ancestor() -> None:
    sent = numbered([*MAIN, *ON_CHANNEL, *SECOND])
    for back, at in combinations(range(len(sent)), 2):
        told = told_of([*sent[:at], *sent[back:]])
        assert (broken(told), head(told)) == ([], h(9, 2)), (back, at)


def test_a_channel_read_before_the_gap_below_it_is_filled_gives_the_chain() -> None:
    heavier = [ON_CHANNEL[0], *on(CHANNEL, beside(2, 14, 1)), ON_CHANNEL[-1]]
    told = told_of([*main(2, 12), *heavier, *main(1, 1)], start=None)
    assert (broken(told), head(told)) == ([], h(14, 1))


def test_what_hangs_beside_a_channel_read_late_is_not_of_its_reorg() -> None:
    told = told_of([*MAIN, batch(h(4, 3), 4, h(3, 1)), *ON_CHANNEL])
    assert (broken(told), head(told)) == ([], h(8, 1))


def test_a_channel_read_after_one_that_removed_its_ancestor_moves_no_head() -> None:
    older = channel(h(6))
    branch = [batch(h(at, 3), at, h(at - 1, 3) if at > 7 else h(6)) for at in range(7, 9)]
    late = [reorg(h(6), 6, older), *on(older, branch), reorg_complete(h(6), 6, older)]
    told = told_of([*MAIN, *SECOND, *late])
    assert (broken(told), head(told)) == ([], h(9, 2))
