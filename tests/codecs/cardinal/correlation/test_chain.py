"""The ordering layer: rules of the head, announced reorgs, lives of blocks, and what is carried.

Every `Story` also checks that a chain restored from its snapshot before each event says the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wirehouse_codecs.cardinal.correlation import canonical as canonical_module
from wirehouse_codecs.cardinal.correlation import endings as endings_module
from wirehouse_codecs.cardinal.correlation.canonical import HISTORY, HISTORY_LEAST
from wirehouse_codecs.cardinal.correlation.chain import Chain
from wirehouse_codecs.cardinal.correlation.endings import MAX_BLOCKS
from wirehouse_codecs.cardinal.correlation.events import (
    BatchArrived,
    Canonical,
    ChannelMessage,
    Closed,
    Completed,
    Event,
    FirstMessage,
    LocatedFinding,
    Refused,
    ReorgArrived,
    ReorgCompleteArrived,
    Update,
)
from wirehouse_codecs.cardinal.correlation.snapshot import CODEC
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Place

if TYPE_CHECKING:
    from tests.codecs.cardinal.conftest import Story

MakeStory = Callable[..., "Story"]
ChainOf = Callable[..., str]
Named = Callable[[str, int, int], str]


def block_hash(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def channel_of(name: str) -> str:
    return f"cardinal-1-re-{block_hash(name).hex()}"


# The head


def test_a_child_of_the_head_is_added_whatever_its_weight(story: MakeStory) -> None:
    told = story("a0 b1/9:a0 c2/9:b1 d3/0:c2", start="a0")
    told.send("b1 c2 d3")
    assert told.updates == ["+b1", "+c2", "+d3"]


def test_equal_weight_never_displaces_the_head(story: MakeStory) -> None:
    told = story("a0 b1:a0 c1:a0 d2/1:c1", start="a0")
    told.send("b1 c1 d2")
    assert told.updates == ["+b1"]


def test_of_equal_waiting_children_the_first_complete_follows(story: MakeStory) -> None:
    told = story("a0 b1:a0 c2:b1 d2:b1", start="a0")
    told.send("d2 c2 b1")
    assert told.updates == ["+b1,d2"]


def test_the_order_of_completion_and_not_of_batches_decides_a_tie(story: MakeStory) -> None:
    told = story("a0 b1:a0 c2:b1 d2:b1", start="a0")
    told.first("c2")
    told.batch("c2")
    told.send("d2")
    told.completed("c2")
    told.send("b1")
    assert told.updates == ["+b1,d2"]


def test_waiting_children_of_weight_zero_follow_too(story: MakeStory) -> None:
    told = story("a0 b1/0:a0 c2/0:b1", start="a0")
    told.send("c2 b1")
    assert told.updates == ["+b1,c2"]


def test_a_block_completed_again_does_nothing(story: MakeStory) -> None:
    told = story("a0 b1:a0", start="a0")
    told.send("b1")
    assert told.completed("b1") == []


def test_rows_of_the_chain_close_and_open_with_a_reorg(story: MakeStory) -> None:
    told = story("a0 b1:a0 c1:a0 d2:c1", start="a0")
    told.send("b1 c1 d2")
    rows = [outcome for outcome in told.outcomes if isinstance(outcome, Canonical)]
    opened, closed = rows[0], rows[1]
    assert (opened.block_hash, opened.valid_to_ns) == (block_hash("b1"), None)
    assert (closed.block_hash, closed.valid_from_ns) == (block_hash("b1"), opened.valid_from_ns)
    assert closed.valid_to_ns == rows[2].valid_from_ns == rows[3].valid_from_ns
    assert told.canonical == ["c1", "d2"]


def test_a_found_reorg_has_a_row(story: MakeStory) -> None:
    told = story("a0 b1:a0 c2:b1 x2:b1 y3:x2", start="a0")
    told.send("b1 c2 x2 y3")
    (row,) = told.reorgs
    assert (row.ancestor_hash, row.ancestor_number, row.depth) == (block_hash("b1"), 1, 1)
    assert (row.old_head, row.new_head) == (block_hash("c2"), block_hash("y3"))
    assert (row.announced, row.channel, row.completed) == (False, None, True)


def test_the_whitelist_refuses_a_block_and_all_that_descend_from_it(story: MakeStory) -> None:
    told = story("a0 b1:a0 x1/9:a0 y2/9:x1 z3/9:y2", start="a0", whitelist={1: block_hash("b1")})
    told.send("y2 x1 b1 z3")
    assert told.updates == ["+b1"]
    assert [outcome.block_hash for outcome in told.outcomes if isinstance(outcome, Refused)] == [
        block_hash(name) for name in ("x1", "y2", "z3")
    ]


# Without a start


def test_without_a_start_the_first_complete_block_is_the_head(story: MakeStory) -> None:
    told = story("b5:a4 c6:b5")
    told.send("b5 c6")
    assert told.updates == ["+b5", "+c6"]


def test_without_a_start_lower_blocks_are_history(story: MakeStory) -> None:
    told = story("a4:z3 b5:a4 c6:b5")
    told.send("b5 a4 c6")
    assert told.updates == ["+b5", "+a4", "+c6"]
    assert told.canonical == ["a4", "b5", "c6"]


def test_the_first_blocks_of_a_feed_may_leave_a_gap_that_fills_later(story: MakeStory) -> None:
    told = story("a1 b2:a1 c3:b2 d4:c3 e5:d4")
    told.send("a1 d4 e5 c3 b2")
    assert told.updates == ["+a1", "+d4", "+e5", "+c3", "+b2"]
    assert told.canonical == ["a1", "b2", "c3", "d4", "e5"]


@pytest.mark.parametrize("order", ["b1 c1 d2 e3", "b1 d2 c1 e3", "b1 e3 d2 c1"])
def test_of_two_first_blocks_the_one_with_heavier_descendants_is_followed(story: MakeStory, order: str) -> None:
    told = story("a0 b1:a0 c1:a0 d2:c1 e3:d2")
    told.send(order)
    assert told.head == "e3"
    told.send("a0")
    assert told.canonical == ["a0", "c1", "d2", "e3"]


def test_a_lighter_branch_above_a_gap_waits(story: MakeStory) -> None:
    told = story("a5 b6:a5 y4:x3 z5:y4 w7:z5")
    told.send("a5 b6 y4 z5")
    assert told.updates == ["+a5", "+b6"]
    told.send("w7")
    assert told.updates[2:] == ["+y4,z5,w7"]


def test_where_all_blocks_weigh_the_same_the_higher_one_is_the_head_over_a_gap(story: MakeStory) -> None:
    told = story("a5/1 y7/1:x6 z8/1:y7 c4/1:b3")
    told.send("a5 y7 z8 c4")
    assert told.updates == ["+a5", "+y7", "+z8"]


def test_a_gap_that_closes_on_another_branch_removes_what_stood_there(story: MakeStory) -> None:
    told = story("a1 x2:a1 c3:b2 d4:c3 b2:a1")
    told.send("a1 x2 d4 c3 b2")
    assert told.updates == ["+a1", "+x2", "+d4", "+c3", "+b2 -x2"]
    assert told.canonical == ["a1", "b2", "c3", "d4"]


def test_no_gap_is_left_for_a_parent_that_was_heard_of(story: MakeStory) -> None:
    told = story("a1 b2:a1 c3:b2")
    told.send("a1")
    told.first("b2")
    told.send("c3")
    assert told.updates == ["+a1"]
    told.batch("b2")
    told.completed("b2")
    assert told.updates == ["+a1", "+b2,c3"]


def test_a_gap_that_fills_may_let_a_heavier_side_chain_in_by_an_update_of_its_own(story: MakeStory) -> None:
    told = story("k1 m2:k1 m3:m2 m4:m3 x3/9:m2")
    told.send("m4")
    told.first("m2")
    told.send("x3 m3")
    assert told.updates == ["+m4", "+m3"]
    told.batch("m2")
    told.completed("m2")
    assert told.updates[2:] == ["+m2", "+x3 -m3,m4"]
    heads = [outcome.head_hash for outcome in told.outcomes if isinstance(outcome, Update)]
    assert heads == [block_hash(name) for name in ("m4", "m4", "m4", "x3")]
    assert told.canonical == ["m2", "x3"]


def test_after_ten_linked_blocks_no_gap_is_left(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story(chain_of("a", 1, 10, "z0") + " b12:x11")
    told.send(named("a", 1, 10) + " b12")
    assert told.head == "a10"


# Depth


@pytest.mark.parametrize(("depth", "displaces"), [(3, True), (4, True), (5, False)])
def test_a_side_chain_displaces_the_head_up_to_the_threshold(
    story: MakeStory, chain_of: ChainOf, named: Named, depth: int, displaces: bool
) -> None:
    tree = " ".join(("a0", chain_of("m", 1, 9, "a0"), chain_of("s", 10 - depth, 12, f"m{9 - depth}")))
    told = story(tree, start="a0", reorg_threshold=4)
    told.send(named("m", 1, 9) + " " + named("s", 10 - depth, 12))
    assert told.head == ("s12" if displaces else "m9")
    assert told.found == ([] if displaces else ["reorg_unannounced s10"])


def test_an_unannounced_reorg_is_told_once_for_each_branch(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    tree = " ".join(("a0", chain_of("m", 1, 9, "a0"), chain_of("s", 2, 14, "m1"), chain_of("t", 2, 12, "m1")))
    told = story(tree, start="a0", reorg_threshold=4)
    told.send(named("m", 1, 9) + " " + named("s", 2, 14) + " " + named("t", 2, 12))
    assert told.found == ["reorg_unannounced s10", "reorg_unannounced t10"]
    assert told.head == "m9"


# Announced reorgs


@dataclass
class Large:
    """m is the chain up to 12, s the one that an announced reorg puts in its place from m2 on; the threshold is 4."""

    story: Story
    named: Named
    channel: str = channel_of("m2")
    blocks: str = field(init=False)

    def __post_init__(self) -> None:
        self.story.send(self.named("m", 1, 12))
        self.story.outcomes.clear()
        self.blocks = self.named("s", 3, 13)


@pytest.fixture
def large(story: MakeStory, chain_of: ChainOf, named: Named) -> Large:
    tree = (
        "a0",
        chain_of("m", 1, 20, "a0"),
        chain_of("s", 3, 30, "m2"),
        chain_of("t", 2, 15, "m1"),
        chain_of("u", 13, 20, "m10", heavier_by=5),
    )
    return Large(story(" ".join(tree), start="a0", reorg_threshold=4), named)


def updates_of(told: Story) -> list[str]:
    return [f"+{len(update.added)} -{len(update.removed)}" for update in told.outcomes if isinstance(update, Update)]


def test_a_reorg_reverts_the_head_and_its_channel_follows(large: Large) -> None:
    told = large.story
    told.reorg("m2")
    assert told.outcomes == []
    told.reorg("m2", large.channel)
    assert (told.head, updates_of(told)) == ("m2", ["+0 -10"])
    (open_row,) = told.reorgs
    assert (open_row.new_head, open_row.completed, open_row.channel) == (None, False, large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel)
    told.send("s14 s15 s16")
    assert updates_of(told) == ["+0 -10"] + ["+1 -0"] * 14
    (row,) = told.reorgs
    assert (row.depth, row.old_head, row.new_head) == (10, block_hash("m12"), block_hash("s13"))
    assert (row.announced, row.completed, row.place) == (True, True, open_row.place)
    assert told.found == []


@pytest.mark.parametrize("order", ["announced first", "announced last", "not announced"])
def test_the_copy_on_the_default_topic_makes_no_second_reorg(large: Large, order: str) -> None:
    told = large.story
    if order == "announced first":
        told.reorg("m2")
    told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel)
    if order == "announced last":
        told.reorg("m2")
    told.send("s14")
    assert (told.head, len(told.reorgs), told.found) == ("s14", 1, [])


def test_repeats_by_another_producer_are_no_events(large: Large) -> None:
    told = large.story
    for _ in range(2):
        told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    for name in large.blocks.split():
        told.batch(name, large.channel)
    for _ in range(2):
        told.reorg_complete("m2", large.channel)
    assert (told.head, len(told.reorgs), told.found) == ("s13", 1, [])


def test_while_a_reorg_is_open_the_removed_chain_displaces_nothing(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send("s3 s4", large.channel)
    told.send("m13 m14")
    assert told.head == "s4"
    told.send(large.named("s", 5, 15), large.channel)
    told.reorg_complete("m2", large.channel)
    assert (told.head, told.found) == ("s15", [])


def test_while_a_reorg_is_open_other_side_chains_have_to_beat_what_was_removed(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send(large.named("t", 2, 12))
    assert told.head == "m2"
    told.send("t13")
    assert told.head == "t13"


def test_after_the_reorg_normal_weights_hold(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send("s3 s4", large.channel)
    told.reorg_complete("m2", large.channel)
    assert told.found == ["reorg_chain_broken s4"]
    told.send("m13")
    assert told.head == "m13"


def test_an_announced_reorg_without_a_channel_is_carried_out_once_its_blocks_are_heavier(large: Large) -> None:
    told = large.story
    told.reorg("m2")
    told.send(large.named("s", 3, 12))
    assert (told.head, told.found) == ("m12", [])
    told.send("s13")
    assert (told.found, updates_of(told)) == ([], ["+11 -10"])
    told.reorg_complete("m2")
    (row,) = told.reorgs
    assert (row.announced, row.channel, row.completed, row.new_head) == (True, None, True, block_hash("s13"))
    assert told.found == ["reorg_channel_shared"]


def test_blocks_on_the_channel_carry_out_a_reorg_whose_copy_there_is_lost(large: Large) -> None:
    told = large.story
    told.reorg("m2")
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel)
    assert (told.head, told.found) == ("s13", [])
    assert told.reorgs[0].channel == large.channel


def test_an_announcement_lets_a_known_heavier_chain_in(large: Large) -> None:
    told = large.story
    told.send(large.blocks)
    assert (told.head, told.found) == ("m12", ["reorg_unannounced s13"])
    told.reorg("m2", large.channel)
    assert (told.head, updates_of(told)) == ("s13", ["+11 -10"])


def test_an_announcement_elsewhere_lets_it_in_with_its_next_block(large: Large) -> None:
    told = large.story
    told.send(large.blocks)
    told.reorg("m2")
    assert told.head == "m12"
    told.send("s14")
    assert (told.head, updates_of(told)) == ("s14", ["+12 -10"])


@pytest.mark.parametrize("name", ["zz", "t2"], ids=["unknown", "side block"])
def test_a_reorg_of_a_wrong_ancestor_has_no_effect_and_is_found_once(large: Large, name: str) -> None:
    told = large.story
    told.send("t2")
    told.reorg(name, number=2)
    told.reorg(name, channel_of(name), 2)
    told.reorg_complete(name, channel_of(name), 2)
    assert told.found == ["reorg_ancestor_wrong"]
    assert told.head == "m12"


def test_the_blocks_of_a_reorg_that_names_a_wrong_hash_are_no_further_finding(large: Large) -> None:
    told = large.story
    channel = channel_of("zz")
    told.reorg("zz", number=2)
    told.reorg("zz", channel, 2)
    told.send(large.blocks, channel)
    told.reorg_complete("zz", channel, 2)
    told.send("s14 s15 s16 s17 s18")
    assert (told.head, told.found) == ("m12", ["reorg_ancestor_wrong"])


@pytest.mark.parametrize(("reorg", "complete"), [(3, 3), (3, 2), (2, 3), (3, 4)])
def test_a_reorg_with_a_wrong_number_is_followed_by_its_hash(large: Large, reorg: int, complete: int) -> None:
    told = large.story
    told.reorg("m2", number=reorg)
    told.reorg("m2", large.channel, reorg)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel, complete)
    assert (told.head, told.found) == ("s13", ["reorg_ancestor_wrong"])
    assert told.reorgs[0].completed
    told.send("s14 s15 s16 s17 s18")
    assert told.found == ["reorg_ancestor_wrong"]


def test_a_second_reorg_from_the_same_ancestor_on_the_same_topic_is_followed(large: Large, chain_of: ChainOf) -> None:
    told = large.story
    told.add(chain_of("u", 3, 14, "m2"))
    told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel)
    told.reorg("m2", large.channel)
    assert told.head == "s13"
    told.channel_message(large.channel, name="u3")
    told.send(large.named("u", 3, 14), large.channel)
    told.reorg_complete("m2", large.channel)
    assert (told.head, told.found) == ("u14", [])
    assert [(row.depth, row.completed) for row in told.reorgs] == [(10, True), (11, True)]
    told.channel_message(large.channel, name="u15")
    assert told.found == ["reorg_not_completed"]


def test_a_producer_that_is_behind_repeats_the_channel(large: Large) -> None:
    told = large.story
    for _ in range(2):
        told.reorg("m2", large.channel)
        for name in large.blocks.split():
            told.channel_message(large.channel, name=name)
            told.batch(name, large.channel) if told.head == "s13" else told.send(name, large.channel)
        told.reorg_complete("m2", large.channel)
    told.channel_message(large.channel, name="s9")
    assert (told.head, told.found) == ("s13", [])
    assert len(told.reorgs) == 1
    told.channel_message(large.channel, name="s14")
    assert told.found == ["reorg_not_completed"]


def test_numbers_of_reorgs_are_compared_in_their_low_32_bits(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel, number=2 + (1 << 32))
    assert (told.head, told.found) == ("m2", [])


def test_a_reorg_complete_that_differs_from_its_reorg_is_wrong(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m1", large.channel)
    told.reorg_complete("m1", large.channel)
    assert not told.reorgs[0].completed
    told.send("s14 s15 s16 s17")
    assert told.found == ["reorg_ancestor_wrong"]


def test_a_reorg_complete_without_a_reorg_is_unasked(large: Large) -> None:
    told = large.story
    told.reorg_complete("m2")
    told.reorg_complete("m2", large.channel)
    assert told.found == ["reorg_complete_unasked"] * 2


def test_a_reorg_complete_on_ordinary_traffic_leaves_the_channel_open(large: Large) -> None:
    told = large.story
    told.reorg("m2")
    told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2")
    assert (told.found, told.reorgs[0].completed) == (["reorg_channel_shared"], False)
    told.reorg_complete("m2", large.channel)
    assert told.reorgs[0].completed


def test_blocks_of_the_reorg_on_ordinary_traffic_share_the_channel(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send("s3 s4", large.channel)
    told.send("s5 s6")
    assert (told.head, told.found) == ("s6", [])
    told.reorg_complete("m2", large.channel)
    assert told.found == ["reorg_channel_shared s5"]


def test_blocks_beyond_the_heaviest_removed_belong_on_ordinary_topics(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    told.send("s14 s15")
    told.reorg_complete("m2", large.channel)
    assert (told.head, told.found) == ("s15", [])


@pytest.mark.parametrize("early", [True, False])
def test_a_channel_of_two_partitions_is_shared(large: Large, early: bool) -> None:
    told = large.story
    if early:
        told.channel_message(large.channel, 0)
        told.channel_message(large.channel, 1)
    told.reorg("m2", large.channel)
    if not early:
        told.channel_message(large.channel, 0)
        told.channel_message(large.channel, 1)
    assert told.found == ["reorg_channel_shared"]


def complete_reorg(large: Large, sent: str, missing: str = "") -> list[str]:
    """The reorg with these blocks on its channel, some of them incomplete; the rules it breaks."""
    told = large.story
    told.reorg("m2", large.channel)
    for name in sent.split():
        told.first(name, large.channel)
        told.batch(name, large.channel)
        if name not in missing.split():
            told.completed(name, large.channel)
    told.reorg_complete("m2", large.channel)
    return told.found


def test_the_first_block_of_a_channel_is_a_child_of_the_ancestor(large: Large) -> None:
    assert complete_reorg(large, "s4 s5") == ["reorg_chain_broken s4", "parent_never_sent s4"]


def test_the_blocks_of_a_channel_are_linked(large: Large) -> None:
    sent = "s3 s4 s6 " + large.named("s", 7, 14)
    assert complete_reorg(large, sent) == ["reorg_chain_broken s6", "parent_never_sent s6"]


def test_the_blocks_of_a_channel_are_complete(large: Large) -> None:
    assert complete_reorg(large, large.blocks, missing="s7 s9") == ["reorg_chain_broken s7"]


def test_a_block_of_a_channel_has_a_batch(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.first("x5", large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel)
    assert told.found == ["reorg_chain_broken x5"]


def test_the_last_block_of_a_channel_is_heavier_than_what_was_removed(large: Large) -> None:
    assert complete_reorg(large, large.named("s", 3, 12)) == ["reorg_chain_broken s12"]


def test_a_channel_without_blocks_is_broken(large: Large) -> None:
    assert complete_reorg(large, "") == ["reorg_chain_broken m2"]


def test_a_removed_block_comes_again_on_the_channel(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.batch("m3", large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel)
    assert told.found == ["reorg_chain_broken m3"]
    assert told.head == "s13"


def test_what_follows_the_reorg_complete_on_its_channel_moves_no_chain(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    told.reorg_complete("m2", large.channel)
    told.channel_message(large.channel)
    told.channel_message(large.channel, name="s14")
    told.send("s14", large.channel)
    told.channel_message(large.channel, name="s14")
    assert (told.head, told.found) == ("s13", ["reorg_not_completed"])
    told.send("s15")
    assert (told.head, told.found) == ("s15", ["reorg_not_completed"])
    assert updates_of(told)[-1] == "+2 -0"


def test_a_reorg_without_reorg_complete_is_found_when_the_old_head_is_below_the_threshold(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel)
    told.send(large.blocks, large.channel)
    told.send("s14 s15 s16")
    assert told.found == []
    told.send("s17")
    assert told.found == ["reorg_not_completed"]
    (row,) = told.reorgs
    assert (row.completed, row.new_head) == (False, block_hash("s17"))
    told.reorg_complete("m2", large.channel)
    assert told.reorgs[0].completed
    assert told.found == ["reorg_not_completed"]


def test_an_announcement_that_nothing_follows_is_found_too(large: Large) -> None:
    told = large.story
    told.reorg("m2")
    told.send("m13 m14 m15 m16")
    assert told.found == []
    told.send("m17")
    assert told.found == ["reorg_not_completed"]
    assert told.reorgs == []


def test_a_reorg_complete_does_not_make_an_announcement_that_lapsed(large: Large) -> None:
    told = large.story
    told.reorg("m2")
    told.send("m13 m14 m15 m16 m17")
    told.reorg_complete("m2")
    assert told.found == ["reorg_not_completed", "reorg_channel_shared"]
    assert told.reorgs == []
    told.reorg("m2", large.channel)
    assert told.head == "m2"


def test_the_same_ancestor_again_on_another_channel_is_another_reorg(large: Large) -> None:
    told = large.story
    told.reorg("m2", "first")
    told.send(large.blocks, "first")
    told.reorg_complete("m2", "first")
    told.reorg("m2", "second")
    assert (told.head, len(told.reorgs), told.found) == ("m2", 2, [])


def test_a_late_copy_on_the_channel_makes_no_second_reorg(large: Large) -> None:
    told = large.story
    told.reorg("m2")
    told.send(large.blocks)
    told.reorg_complete("m2")
    told.reorg("m2", large.channel)
    assert (told.head, len(told.reorgs), told.found) == ("s13", 1, ["reorg_channel_shared"])


def test_a_reorg_to_a_block_that_was_canonical_once_goes_back_to_it(large: Large) -> None:
    told = large.story
    told.send(large.named("u", 13, 14))
    told.outcomes.clear()
    told.reorg("m12", channel_of("m12"))
    assert (told.head, updates_of(told)) == ("m12", ["+2 -2"])


def test_the_channel_is_the_topic_that_the_option_names(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story("a0 " + chain_of("m", 1, 6, "a0"), start="a0", reorg_topic="back-{hash}")
    told.send(named("m", 1, 6))
    told.reorg("m2", channel_of("m2"))
    assert told.head == "m6"
    told.reorg("m2", f"back-{block_hash('m2').hex()}")
    assert told.head == "m2"


def test_without_the_option_a_topic_that_carried_no_batch_is_a_channel(large: Large) -> None:
    told = large.story
    told.reorg("m2", "repairs")
    told.send(large.blocks, "repairs")
    told.reorg_complete("m2", "repairs")
    assert (told.head, told.found) == ("s13", [])


# What never came


def test_blocks_are_closed_at_the_first_head_more_than_the_threshold_above(story: MakeStory, chain_of: ChainOf) -> None:
    told = story("a0 " + chain_of("m", 1, 9, "a0") + " x2:m1", start="a0", reorg_threshold=4)
    told.send("m1")
    told.first("x2")
    told.batch("x2")
    told.send("m2 m3 m4 m5 m6")
    assert told.of(Closed) == [outcome for outcome in told.of(Closed) if closed_name(outcome) == "m1"]
    closed = told.send("m7")
    assert [(closed_name(o), o.judged, o.complete) for o in closed if isinstance(o, Closed)] == [
        ("x2", True, False),
        ("m2", True, True),
    ]


def closed_name(outcome: object) -> str:
    assert isinstance(outcome, Closed)
    return outcome.block_hash.rstrip(b".").decode()


def test_a_block_that_comes_late_is_closed_by_the_next_head(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story("a0 " + chain_of("m", 1, 9, "a0") + " x2:m1", start="a0", reorg_threshold=4)
    told.send(named("m", 1, 8))
    told.outcomes.clear()
    told.first("x2")
    told.batch("x2")
    assert told.of(Closed) == []
    told.send("m9")
    assert {closed_name(outcome) for outcome in told.of(Closed)} == {"x2", "m4"}


def test_no_head_ends_the_life_of_a_block_without_a_batch(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story("a0 " + chain_of("m", 1, 40, "a0"), start="a0", reorg_threshold=4)
    told.first("m20")
    told.send(named("m", 1, 19))
    assert [closed_name(outcome) for outcome in told.of(Closed)] == [f"m{number}" for number in range(1, 15)]
    told.batch("m20")
    told.completed("m20")
    told.send(named("m", 21, 24))
    assert (told.head, told.found) == ("m24", [])


def test_a_block_that_never_has_a_batch_is_found_at_its_end_by_age(story: MakeStory) -> None:
    told = story("a0 b1:a0 c2:b1", start="a0", reorg_threshold=4)
    told.first("x1")
    told.wait(HORIZON_NS)
    told.send("b1")
    told.send("c2")
    (closed,) = told.of(Closed)
    assert isinstance(closed, Closed)
    assert (closed_name(closed), closed.judged, closed.complete) == ("x1", True, False)
    assert told.found == ["no_batch_message x1"]
    (found,) = told.of(LocatedFinding)
    assert isinstance(found, LocatedFinding)
    assert found.finding.place.record_number == 1


def test_what_may_fill_a_gap_is_not_judged_by_its_number(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story(chain_of("m", 1, 40, "a0") + " x25:m24", reorg_threshold=4)
    told.first("m3")
    told.batch("m3")
    told.send("m1 m2 " + named("m", 20, 30))
    told.first("x25")
    told.batch("x25")
    told.send(named("m", 31, 33))
    living = set(told.chain.living())
    assert (block_hash("m3") in living, block_hash("x25") in living) == (True, False)
    told.completed("m3")
    told.send(named("m", 4, 19))
    assert told.canonical == sorted(named("m", 1, 33).split())


def test_a_start_that_the_feed_never_mentions_is_found_once(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story("a5 " + chain_of("m", 3, 12, "x2") + " z30:y29", start="a5", reorg_threshold=4)
    told.send(named("m", 3, 12))
    told.wait(2 * HORIZON_NS)
    told.first("z30")
    assert (told.head, told.found) == ("a5", ["parent_never_sent m3"])
    (found,) = told.of(LocatedFinding)
    assert isinstance(found, LocatedFinding)
    assert "start 5" in found.finding.message


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        ("m6:a5 m7:m6 m8:m7", []),
        ("m8:x7 m9:m8", ["parent_never_sent m8"]),
        ("m2:x1 m3:m2 m5:m3", []),
    ],
    ids=["child", "later", "lighter"],
)
def test_a_start_that_is_only_below_or_above_the_feed_is_no_other_branch(
    story: MakeStory, tree: str, found: list[str]
) -> None:
    told = story(f"a5 {tree}", start="a5", reorg_threshold=9)
    told.send(" ".join(block.partition(":")[0] for block in tree.split()))
    told.wait(2 * HORIZON_NS)
    told.first("z30")
    assert told.found == found


@pytest.mark.parametrize("more", ["", " n6:a5"])
def test_a_start_that_only_incomplete_children_name_is_mentioned(
    story: MakeStory, chain_of: ChainOf, named: Named, more: str
) -> None:
    told = story("a5 m6:a5" + more + " " + chain_of("m", 7, 12, "m6") + " z30:y29", start="a5", reorg_threshold=4)
    for child in ("m6", *more.split()):
        told.first(child.partition(":")[0])
        told.batch(child.partition(":")[0])
    told.send(named("m", 7, 12))
    told.wait(2 * HORIZON_NS)
    told.first("z30")
    assert (told.head, told.found) == ("a5", [])


def test_children_of_a_block_without_a_batch_are_no_further_finding(story: MakeStory) -> None:
    told = story("a0 b1:a0 x1:a0 y2:x1 z3", start="a0", reorg_threshold=4)
    told.first("x1")
    told.send("y2")
    told.wait(2 * HORIZON_NS)
    told.first("z3")
    assert told.found == ["no_batch_message x1"]


def test_a_forged_number_judges_nobody(story: MakeStory) -> None:
    told = story("a0 b1:a0 x900:y899", start="a0", reorg_threshold=4)
    told.send("b1 x900")
    assert (told.of(Closed), told.found) == ([], [])


def test_after_the_horizon_a_block_is_judged(story: MakeStory) -> None:
    told = story("a0 b1:a0 x1:a0", start="a0", reorg_threshold=4)
    told.first("x1")
    told.batch("x1")
    told.wait(HORIZON_NS)
    told.send("b1")
    (closed,) = told.of(Closed)
    assert isinstance(closed, Closed)
    assert (closed_name(closed), closed.judged, closed.complete) == ("x1", True, False)
    assert told.chain.oldest_ns is not None
    assert told.chain.oldest_ns > HORIZON_NS
    assert told.found == []


def test_the_head_outlives_the_horizon(story: MakeStory) -> None:
    told = story("a0 b1:a0 c2:b1", start="a0", reorg_threshold=4)
    told.send("b1")
    told.wait(2 * HORIZON_NS)
    told.send("c2")
    assert told.updates == ["+b1", "+c2"]


def test_invented_hashes_end_the_lives_of_the_oldest(story: MakeStory) -> None:
    told = story("a0 b1:a0 x1:a0 y1:a0 z1:a0", start="a0", reorg_threshold=4)
    with mock.patch.object(endings_module, "MAX_BLOCKS", 2):
        for name in ("x1", "y1", "z1"):
            told.first(name)
        (closed,) = told.of(Closed)
        assert isinstance(closed, Closed)
        assert (closed_name(closed), closed.judged) == ("x1", False)
        told.send("b1")
    assert told.head == "b1"


def test_what_happens_to_a_block_after_its_life_has_no_effect(story: MakeStory) -> None:
    told = story("a0 b1:a0 x1/9:a0", start="a0", reorg_threshold=4)
    told.first("x1")
    told.batch("x1")
    told.wait(2 * HORIZON_NS)
    told.send("b1")
    told.completed("x1")
    told.batch("x1")
    told.completed("x1")
    assert told.head == "b1"


def test_a_hash_may_live_again(story: MakeStory) -> None:
    told = story("a0 b1:a0 x1/9:a0", start="a0", reorg_threshold=4)
    told.first("x1")
    told.wait(2 * HORIZON_NS)
    told.send("b1 x1")
    assert told.head == "x1"


@pytest.mark.property
def test_memory_is_bounded_by_the_history(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    last = HISTORY_LEAST + 200
    options = CardinalOptions(start=Start(0, block_hash("a0")), reorg_threshold=4)
    chain = Chain(options)
    sizes = []
    for number in range(1, last):
        for side in (0, 1):
            place = Place(number * 10 + side, 0, b"", number * 10 + side, "t", 0, number)
            name, parent = block_hash(f"{'xm'[side]}{number}"), block_hash(f"m{number - 1}" if number > 1 else "a0")
            chain.apply(FirstMessage(place, name))
            chain.apply(BatchArrived(place, name, number, parent, number - 1 + side))
            chain.apply(Completed(place, name))
        sizes.append(len(chain.snapshot()))
    assert sizes[-1] - sizes[-50] < sizes[-1] * 0.02
    assert HISTORY * options.reorg_threshold < HISTORY_LEAST
    assert chain.head == (block_hash(f"m{last - 1}"), last - 1)


def test_a_start_block_without_a_batch_stays_in_the_chain(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story("a0 " + chain_of("m", 1, 9, "a0"), start="a0", reorg_threshold=4)
    told.first("a0")
    told.send(named("m", 1, 5))
    told.wait(HORIZON_NS)
    told.send("m6")
    # Its Batch came before the feed.
    assert told.found == []
    told.reorg("a0", channel_of("a0"))
    assert told.head == "a0"


# Parents and numbers


def test_a_parent_that_is_never_sent_is_found_when_the_child_is_judged(
    story: MakeStory, chain_of: ChainOf, named: Named
) -> None:
    told = story("a0 " + chain_of("m", 1, 9, "a0") + " x3:q2 y2:m1", start="a0", reorg_threshold=4)
    told.send(named("m", 1, 3) + " x3 y2 " + named("m", 4, 7))
    assert told.found == []
    told.send("m8")
    assert told.found == ["parent_never_sent x3"]


def test_the_first_block_of_a_feed_needs_no_parent(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story("l7:k6 " + chain_of("m", 8, 20, "l7"), reorg_threshold=4)
    told.send(named("m", 8, 9) + " l7 " + named("m", 10, 20))
    assert told.found == ["parent_after_child m8"]
    assert len(told.of(Closed)) == 9


def test_blocks_up_to_the_start_need_no_parent(story: MakeStory, chain_of: ChainOf, named: Named) -> None:
    told = story("a5 x4:y3 " + chain_of("m", 6, 20, "a5"), start="a5", reorg_threshold=4)
    told.send("x4 " + named("m", 6, 20))
    assert told.found == []


def test_a_parent_after_its_child_is_noted(story: MakeStory) -> None:
    told = story("a0 b1:a0 c2:b1 d2:b1", start="a0")
    told.send("c2 d2 b1")
    assert told.found == ["parent_after_child c2", "parent_after_child d2"]


def test_a_number_that_does_not_grow_is_found_once(story: MakeStory) -> None:
    told = story("a0 b1:a0 c2:b1 d2/9:c2 e1/9:d2", start="a0")
    told.send("b1 c2 d2 e1")
    assert told.found == ["number_repeated_in_chain d2", "number_repeated_in_chain e1"]


def test_a_number_of_an_ancestor_further_down_is_found(story: MakeStory) -> None:
    told = story("a0 b5:a0 c3/9:b5 d5/10:c3 e6/11:d5", start="a0")
    told.send("b5 c3 d5 e6")
    assert told.found == ["number_repeated_in_chain c3", "number_repeated_in_chain d5"]


def test_repeated_numbers_are_found_whatever_arrives_first(story: MakeStory) -> None:
    told = story("a0 b5:a0 c3/9:b5 d5/10:c3 e6/11:d5", start="a0")
    for name in ("e6", "d5", "c3", "b5"):
        told.send(name)
    found = [rule for rule in told.found if rule.startswith("number")]
    assert found == ["number_repeated_in_chain c3", "number_repeated_in_chain d5"]


def test_parents_in_a_ring_link_to_nothing(story: MakeStory) -> None:
    told = story("a0 b1:a0 r5:r5 p7:q6 q6:p7", start="a0")
    told.send("r5 p7 q6 b1")
    assert told.updates == ["+b1"]
    assert "number_repeated_in_chain r5" in told.found


def test_a_start_whose_batch_names_its_own_descendant_is_harmless(story: MakeStory) -> None:
    told = story("a0:c2 b1:a0 c2:b1", start="a0")
    told.send("b1 c2 a0")
    assert told.head == "c2"


# Carried state


def test_the_branch_that_a_gap_was_above_leaves_when_its_blocks_lead_below_a_heavier_one(story: MakeStory) -> None:
    told = story("m1:a0 m2:m1 m3:m2 m4:m3 x3/9:m2 m5/12:m4")
    told.send("m4 m1 m2 x3 m3")
    assert told.updates == ["+m4", "+m1,m2,x3", "-m4"]
    assert (told.head, told.canonical) == ("x3", ["m1", "m2", "x3"])
    told.send("m5")
    assert (told.head, told.canonical) == ("m5", ["m1", "m2", "m3", "m4", "m5"])
    assert told.updates[-1] == "+m3,m4,m5 -x3"


def test_a_snapshot_is_versioned_json() -> None:
    chain = Chain(CardinalOptions())
    assert json.loads(chain.snapshot())["version"] == 5
    with pytest.raises(StateVersionError):
        Chain(CardinalOptions(), '{"version":99}')


TOPICS = ["cardinal-1", "cardinal-2", channel_of("n0"), channel_of("n1"), "fresh"]
HASHES = [block_hash(f"n{i}") for i in range(7)]


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    """Anything at all, as hostile as it gets within seven hashes: rings, repeats, forged numbers, strange reorgs."""
    told: list[Event] = []
    now_ns = 0
    for record in range(draw(st.integers(1, 60))):
        now_ns += draw(st.sampled_from([0, 1, 1, 1, HORIZON_NS // 2]))
        place = Place(now_ns, 0, b"", record, draw(st.sampled_from(TOPICS)), draw(st.integers(0, 1)), record)
        block, number = draw(st.sampled_from(HASHES)), draw(st.integers(0, 6))
        kind = draw(st.integers(0, 9))
        if kind < 5:
            parent = draw(st.sampled_from(HASHES))
            told.append(FirstMessage(place, block))
            if kind:
                told.append(BatchArrived(place, block, number, parent, draw(st.integers(0, 6))))
            if kind > 1:
                told.append(Completed(place, block))
        elif kind == 5:
            told.append(Completed(place, block))
        elif kind == 6:
            told.append(ChannelMessage(place))
        else:
            told.append((ReorgArrived if kind < 9 else ReorgCompleteArrived)(place, block, number))
    return told


def ring() -> list[Event]:
    """A gap that a ring of parents closes: one update removes the branch above it, and the next one adds it again."""
    told: list[Event] = []
    blocks = [("n0", 0, "n2", 5, "cardinal-1"), ("n5", 2, "n0", 0, channel_of("n0"))]
    blocks += [("n6", 0, "n2", 4, "fresh"), ("n2", 0, "n6", 1, "cardinal-1")]
    for record, (name, number, parent, weight, topic) in enumerate(blocks):
        place, block = Place(0, 0, b"", record, topic, 0, record), block_hash(name)
        told += [FirstMessage(place, block), BatchArrived(place, block, number, block_hash(parent), weight)]
        told.append(Completed(place, block))
    return told


@settings(max_examples=120)
@example(told=ring(), from_start=False, threshold=2, remembered=HISTORY_LEAST, blocks=MAX_BLOCKS)
@given(
    events(), st.booleans(), st.integers(1, 3), st.sampled_from([2, HISTORY_LEAST]), st.sampled_from([4, MAX_BLOCKS])
)
def test_a_chain_may_be_cut_anywhere_and_its_tables_balance(
    told: list[Event], from_start: bool, threshold: int, remembered: int, blocks: int
) -> None:
    with (
        mock.patch.multiple(canonical_module, HISTORY=0, HISTORY_LEAST=remembered),
        mock.patch.object(endings_module, "MAX_BLOCKS", blocks),
    ):
        cut_anywhere(told, from_start, threshold, remembered)


def cut_anywhere(told: list[Event], from_start: bool, threshold: int, remembered: int) -> None:
    start = Start(0, HASHES[0]) if from_start else None
    options = CardinalOptions(start=start, reorg_threshold=threshold, whitelist={5: HASHES[5]})
    chain = Chain(options)
    canonical: dict[tuple[bytes, int], Canonical] = {}
    replayed: list[bytes] = []
    living: set[bytes] = set()
    for event in told:
        restored = Chain(options, chain.snapshot())
        outcomes = chain.apply(event)
        # Told of the time first, it ends lives at the same moments.
        assert [*restored.expire(event.place.arrived_at_ns), *restored.apply(event)] == outcomes
        assert restored.snapshot() == chain.snapshot()
        updates = [outcome for outcome in outcomes if isinstance(outcome, Update)]
        for outcome in outcomes:
            if isinstance(outcome, Canonical):
                canonical[outcome.block_hash, outcome.valid_from_ns] = outcome
            elif isinstance(outcome, Closed):
                living.remove(outcome.block_hash)
        for update in updates:
            replayed = [block for block in replayed if block not in update.removed] + [*update.added]
        if updates:
            last, added = updates[-1], {block for update in updates for block in update.added}
            # The Batch of the start itself may come now, and say another number.
            is_head = isinstance(event, BatchArrived) and event.block_hash == last.head_hash
            number = event.number if is_head and isinstance(event, BatchArrived) else last.head_number
            assert chain.head in ((last.head_hash, last.head_number), (last.head_hash, number))
            assert not {block for update in updates for block in update.removed} & set(path_of(chain)) - added
        if isinstance(event, FirstMessage):
            living.add(event.block_hash)
    valid = sorted(row.block_hash for row in canonical.values() if row.valid_to_ns is None)
    path = path_of(chain)
    if from_start:
        # The start and its ancestors have no row.
        path = [block for at, block in enumerate(path) if set(path[: at + 1]) & set(valid)]
    assert set(valid) >= set(path)
    if remembered == HISTORY_LEAST:
        # Beyond what is remembered a row stays open, and a hash that comes again is a new block.
        assert valid == sorted(path) == sorted(replayed)


def path_of(chain: Chain) -> list[bytes]:
    """The canonical blocks, lowest first."""
    return CODEC.read(chain.snapshot()).hashes


class NaiveHead:
    """The head by the rules, worked out anew at each completion from nothing but the tree."""

    def __init__(self, parents: list[int], weights: list[int]) -> None:
        self.parents, self.weights = parents, weights
        self.order: list[int] = []
        self.head = 0

    def complete(self, block: int) -> None:
        self.order.append(block)
        if not self.linked(block):
            return
        if self.parents[block] == self.head or self.heaviest(block) > self.weights[self.head]:
            self.head = self.follow(block)

    def linked(self, block: int) -> bool:
        return block == 0 or (block in self.order and self.linked(self.parents[block]))

    def children(self, block: int) -> list[int]:
        return [child for child in self.order if self.parents[child] == block]

    def heaviest(self, block: int) -> int:
        return max([self.weights[block], *map(self.heaviest, self.children(block))])

    def follow(self, block: int) -> int:
        children = self.children(block)
        return self.follow(max(children, key=self.heaviest)) if children else block


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Parents and weights of up to twelve blocks on block 0, and the order in which they complete."""
    size = draw(st.integers(1, 12))
    parents = [0] + [draw(st.integers(0, child - 1)) for child in range(1, size + 1)]
    weights = [0] + [draw(st.integers(0, 5)) for _ in range(size)]
    return parents, weights, draw(st.permutations(range(1, size + 1)))


@settings(max_examples=300)
@given(trees())
def test_the_head_is_the_naive_one(tree: tuple[list[int], list[int], list[int]]) -> None:
    parents, weights, order = tree
    naive = NaiveHead(parents, weights)
    hashes = [bytes([block]) * 32 for block in range(len(parents))]
    heights = [0]
    for block in range(1, len(parents)):
        heights.append(heights[parents[block]] + 1)
    chain = Chain(CardinalOptions(start=Start(0, hashes[0])))
    for record, block in enumerate(order):
        place = Place(record, 0, b"", record)
        chain.apply(FirstMessage(place, hashes[block]))
        chain.apply(BatchArrived(place, hashes[block], heights[block], hashes[parents[block]], weights[block]))
        chain.apply(Completed(place, hashes[block]))
        naive.complete(block)
        assert chain.head is not None
        assert chain.head[0] == hashes[naive.head]


def test_findings_name_their_evidence(large: Large) -> None:
    told = large.story
    told.reorg("m2", large.channel, number=9)
    (found,) = told.of(LocatedFinding)
    assert isinstance(found, LocatedFinding)
    assert found.finding.place.topic == large.channel
    assert "has the number 2, not 9" in found.finding.message
