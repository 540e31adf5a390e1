"""One block from its messages: the table of states, the content, what is missing, and the rules by arrival."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.assembly import (
    TRANSITIONS,
    BlockAssembly,
    Kind,
    State,
    assemble,
)
from wirehouse_codecs.cardinal.session.block import Block, Count, Missing, Received
from wirehouse_codecs.cardinal.session.channels import reorg_channel_name
from wirehouse_codecs.cardinal.session.judgement import judged_findings
from wirehouse_codecs.cardinal.wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Reorg,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)
from wirehouse_codecs.core.rules import Place

HASH = b"\x11" * 32
PARENT = b"\x22" * 32
SUB = b"\x33" * 32
OTHER_SUB = b"\x44" * 32
OPTIONS = CardinalOptions()


def batch(*updates: Update, number: int = 7) -> Batch:
    return Batch(HASH, number, number, PARENT, updates)


def counted(name: str, count: int) -> Update:
    return Update(name.encode(), count=count)


def inline(name: str, value: bytes) -> Update:
    return Update(name.encode(), value=value)


def subbatch(name: str, batch_id: bytes = SUB) -> Update:
    return Update(name.encode(), subbatch=batch_id)


def put(key: str, value: bytes = b"v") -> BatchMsg:
    return BatchMsg(HASH, key.encode(), value)


def delete(key: str) -> BatchDeleteMsg:
    return BatchDeleteMsg(HASH, key.encode())


def header(count: int, batch_id: bytes = SUB) -> SubBatchHeader:
    return SubBatchHeader(HASH, batch_id, count)


def item(index: int, *, deletes: tuple[str, ...] = (), batch_id: bytes = SUB, **updates: bytes) -> SubBatchMsg:
    names = tuple((name.encode(), value) for name, value in updates.items())
    return SubBatchMsg(HASH, batch_id, index, tuple(key.encode() for key in deletes), names)


def place(record: int, topic: str = "t") -> Place:
    return Place(record, 0, b"", record, topic, 0, record)


def received(messages: Iterable[Message], topic: str = "t") -> list[Received]:
    return [Received(place(record, topic), message) for record, message in enumerate(messages)]


def fold(*messages: Message, options: CardinalOptions = OPTIONS, topic: str = "t") -> Block:
    return assemble(HASH, received(messages, topic), options)


def content(block: Block) -> list[tuple[str, bytes | None]]:
    return [(update.key.decode(), update.value) for update in block.updates]


def rules(block: Block) -> list[str]:
    return [finding.rule.name for finding in block.findings]


def evidence(block: Block) -> list[tuple[str, int, int]]:
    """Rule, the message that breaks it, the message at which that was known."""
    found = zip(block.findings, block.known_at, strict=True)
    return [(finding.rule.name, finding.place.record_number, at.record_number) for finding, at in found]


# The table


MESSAGES: dict[Kind, list[Message]] = {
    Kind.BATCH: [batch(counted("a/", 1), subbatch("s")), batch(number=9)],
    Kind.SUBBATCH_HEADER: [header(1), header(0), header(1, OTHER_SUB)],
    Kind.SUBBATCH_MSG: [item(0, k=b"v"), item(5), item(0, batch_id=OTHER_SUB)],
    Kind.BATCH_MSG: [put("a/1"), put("a/2"), put("elsewhere")],
    Kind.BATCH_DELETE_MSG: [delete("a/1"), delete("elsewhere")],
}
#: Messages that lead to each state, also to one that a single further message settles.
WAYS: dict[State, list[list[Message]]] = {
    State.UNKNOWN: [[], [put("a/1"), header(1), item(0, k=b"v")]],
    State.PENDING: [
        [MESSAGES[Kind.BATCH][0]],
        [MESSAGES[Kind.BATCH][0], put("a/1")],
        [MESSAGES[Kind.BATCH][0], put("a/1"), header(1)],
        [MESSAGES[Kind.BATCH][0], header(0)],
    ],
    State.COMPLETE: [[batch()], [MESSAGES[Kind.BATCH][0], put("a/1"), header(1), item(0, k=b"v")]],
}


def test_every_message_is_told_of_in_every_state() -> None:
    assert set(TRANSITIONS) == {(state, kind) for state in State for kind in Kind}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_a_message_leads_where_the_table_says(state: State, kind: Kind) -> None:
    step = TRANSITIONS[state, kind]
    after = set()
    for way in WAYS[state]:
        for message in MESSAGES[kind]:
            assembly = BlockAssembly(HASH, OPTIONS)
            for told in received(way):
                assembly.receive(told)
            assert assembly.state is state
            after.add(assembly.receive(Received(place(99), message)))
            assert assembly.block().complete == (assembly.state is State.COMPLETE)
    assert after == {step.state, step.settled}


def test_a_message_of_no_block_is_our_own_mistake() -> None:
    assembly = BlockAssembly(HASH, OPTIONS)
    with pytest.raises(ValueError, match="Reorg"):
        assembly.receive(Received(place(0), Reorg(HASH, 1)))
    with pytest.raises(ValueError, match="BatchMsg"):
        assembly.receive(Received(place(0), BatchMsg(PARENT, b"k", b"v")))
    with pytest.raises(ValueError, match="no message"):
        assembly.block()


# Content and completion


def test_a_block_is_complete_at_its_last_message() -> None:
    block = fold(batch(counted("a/", 2), inline("i", b"x")), put("a/1"), delete("a/2"), put("a/1"))
    assert content(block) == [("a/1", b"v"), ("a/2", None), ("i", b"x")]
    assert block.completed_place == place(2)
    assert [update.place for update in block.updates] == [place(1), place(2), place(0)]
    assert (block.messages, block.duplicates, block.missing) == (4, 1, ())


def test_a_block_with_nothing_to_wait_for_completes_on_its_batch() -> None:
    block = fold(put("a/1"), batch(counted("a/", 1)))
    assert (block.completed_place, block.batch_place, block.first_place) == (place(1), place(1), place(0))


def test_a_block_without_a_batch_misses_it() -> None:
    block = fold(put("a/1"), item(0), put("a/1"))
    assert block.missing == (Missing(b"", 1, "batch message"),)
    assert (block.batch, block.expected, block.received, block.updates) == (None, (), (), ())
    assert (block.messages, block.duplicates) == (3, 1)


def test_an_incomplete_block_tells_what_it_waits_for() -> None:
    told = (counted("z/", 2), counted("a/", 3), subbatch("s"), subbatch("r", OTHER_SUB))
    block = fold(batch(*told), put("a/1"), header(10), item(1), item(2), item(6), item(0, batch_id=OTHER_SUB))
    assert block.expected == (Count(b"a/", 3), Count(b"r", None), Count(b"s", 10), Count(b"z/", 2))
    assert block.received == (Count(b"a/", 1), Count(b"r", 1), Count(b"s", 3), Count(b"z/", 0))
    assert block.missing == (
        Missing(b"a/", 2, "messages"),
        Missing(b"r", 1, "sub-batch header", OTHER_SUB),
        Missing(b"s", 7, "items 0,3-5,7-9", SUB),
        Missing(b"z/", 2, "messages"),
    )
    assert block.updates == ()


def test_an_announced_length_is_only_a_number() -> None:
    huge = (1 << 31) - 1
    block = fold(batch(counted("a/", huge), subbatch("s")), header(huge), item(5), put("a/1"))
    assert block.missing[1] == Missing(b"s", huge - 1, f"items 0-4,6-{huge - 1}", SUB)


def test_many_ranges_of_missing_items_are_cut_short() -> None:
    block = fold(batch(subbatch("s")), header(1000), *(item(2 * index) for index in range(400)))
    assert block.missing[0].what.endswith("63 and 368 more ranges")
    assert len(block.missing[0].what) < 200


def test_a_set_stands_before_a_delete_of_its_key() -> None:
    block = fold(batch(counted("a/", 2)), delete("a/1"), put("a/1"))
    assert content(block) == [("a/1", b"v"), ("a/1", None)]


def test_the_first_value_wins_but_replaces_an_empty_one() -> None:
    block = fold(batch(counted("a/", 2)), put("a/1", b""), put("a/1", b"x"), put("a/1", b"y"), put("a/2"))
    assert content(block) == [("a/1", b"x"), ("a/2", b"v")]
    assert rules(block) == ["key_two_values"] * 2
    assert block.updates[0].place == place(1 + 1)


def test_a_complete_block_stays_as_it_is() -> None:
    block = fold(batch(counted("a/", 1)), put("a/1", b""), put("a/1", b"x"))
    assert content(block) == [("a/1", b"")]
    assert rules(block) == ["key_two_values"]


def test_items_overwrite_each_other_in_the_order_of_their_processing() -> None:
    block = fold(batch(subbatch("s")), item(1, k=b"early"), header(2), item(0, k=b"late", deletes=("d",)))
    assert content(block) == [("d", None), ("k", b"late")]


def test_a_header_of_no_items_is_waited_for() -> None:
    assert not fold(batch(subbatch("s"))).complete
    assert fold(batch(subbatch("s")), header(0)).complete


def test_a_message_is_counted_by_the_nearest_open_prefix() -> None:
    block = fold(batch(counted("a/b/k", 1), counted("a/b/", 1), counted("a/", 1)), *map(put, ("a/b/k", "a/b/x")))
    assert block.received == (Count(b"a/", 0), Count(b"a/b/", 1), Count(b"a/b/k", 1))
    block = fold(batch(counted("a/b/", 1), counted("a/", 1)), *map(put, ("a/b/1", "a/b/2")))
    assert block.complete


def test_a_key_that_an_item_has_set_is_not_counted() -> None:
    told = (batch(counted("k", 1), subbatch("s")), header(1), item(0, k=b"item"), put("k"))
    block = fold(*told)
    assert (block.missing, rules(block)) == ((Missing(b"k", 1, "messages"),), ["key_by_two_ways"])
    block = fold(told[0], told[3], *told[1:3])
    assert (content(block), rules(block)) == ([("k", b"item")], ["key_by_two_ways"])


# Tracked prefixes


@pytest.mark.parametrize(
    ("tracked", "expected", "keys"),
    [
        (("^a/",), ["a/"], ["a/1"]),
        (("^s$",), ["s"], ["k"]),
        (("nothing",), [], []),
        (("i", "j"), [], ["i"]),
    ],
)
def test_what_is_not_tracked_is_neither_waited_for_nor_content(
    tracked: tuple[str, ...], expected: list[str], keys: list[str]
) -> None:
    told = (batch(counted("a/", 1), counted("b/", 1), subbatch("s"), inline("i", b"x")), put("a/1"), header(1))
    block = fold(*told, item(0, k=b"v"), put("b/1"), options=CardinalOptions(tracked_prefixes=tracked))
    assert [count.name.decode() for count in block.expected] == expected
    assert [update.key.decode() for update in block.updates] == keys
    assert (block.complete, block.findings) == (True, ())


def test_rules_hold_for_prefixes_that_are_not_tracked() -> None:
    options = CardinalOptions(tracked_prefixes=("^zzz",))
    told = (batch(counted("a/", 1), subbatch("s")), put("a/1"), put("a/2"), put("b"), put("a/1", b"w"), header(1))
    block = fold(*told, header(2), item(3), options=options)
    assert rules(block) == [
        "extra_message",
        "unexpected_key",
        "key_two_values",
        "subbatch_conflict",
        "item_index_out_of_range",
    ]


# Rules by arrival


def test_an_item_out_of_range_takes_no_part() -> None:
    block = fold(batch(subbatch("s")), item(2, k=b"x"), header(2), item(0), item(-1), item(2, k=b"x"))
    assert evidence(block) == [
        ("item_index_out_of_range", 1, 2),
        ("item_index_out_of_range", 4, 4),
        ("item_index_out_of_range", 5, 5),
    ]
    assert block.missing == (Missing(b"s", 1, "items 1", SUB),)
    assert block.duplicates == 0


def test_a_second_batch_with_other_content_is_a_conflict_and_the_first_wins() -> None:
    first = batch(counted("a/", 1), inline("i", b"x"))
    turned = replace(first, updates=first.updates[::-1])
    other = replace(first, weight=9, updates=())
    block = fold(first, turned, other, other, put("a/1"))
    assert evidence(block) == [("batch_conflict", 2, 2)]
    assert block.findings[0].message == "differs from the first Batch at t:0@0 in weight, entries"
    assert (block.batch, block.duplicates, block.complete) == (first, 2, True)


def test_a_key_too_many_takes_no_part() -> None:
    block = fold(
        batch(counted("a/", 1), counted("b/", 1)), put("a/1"), put("a/2"), put("a/2"), put("b/1"), delete("b/1")
    )
    assert evidence(block) == [("extra_message", 2, 2), ("extra_message", 5, 5)]
    assert content(block) == [("a/1", b"v"), ("b/1", b"v")]
    assert block.duplicates == 1


def test_the_surplus_before_the_batch_is_reported_at_the_batch() -> None:
    block = fold(put("a/1"), put("a/2"), put("x"), batch(counted("a/", 1)))
    assert evidence(block) == [("extra_message", 1, 3), ("unexpected_key", 2, 3)]


def test_a_key_of_no_counted_prefix_is_unexpected() -> None:
    block = fold(batch(counted("a/", 1)), put("b"), put("b"), put("b", b"w"), delete("a"), put(""), put("a/1"))
    assert [found[:2] for found in evidence(block)] == [
        ("unexpected_key", 1),
        ("unexpected_key", 3),
        ("unexpected_key", 4),
        ("unexpected_key", 5),
    ]
    assert (content(block), block.duplicates) == ([("a/1", b"v")], 1)


def test_a_key_set_and_deleted_is_written_by_two_ways() -> None:
    block = fold(batch(counted("a/", 2)), put("a/1"), delete("a/1"))
    assert evidence(block) == [("key_by_two_ways", 2, 2)]
    assert "deleted by the BatchDeleteMsg here, and set by the BatchMsg at t:0@1" in block.findings[0].message


def test_every_further_way_is_told_of_with_those_before_it() -> None:
    told = (batch(counted("k", 2), subbatch("s"), inline("j", b"x")), put("k"), header(2))
    block = fold(*told, item(0, k=b"v", j=b"w"), item(1, deletes=("k",)))
    assert evidence(block) == [("key_by_two_ways", at, at) for at in (3, 3, 4)]
    assert "set by the BatchMsg at t:0@1 and set by the item at t:0@3" in block.findings[2].message


def test_a_key_deleted_by_two_ways_breaks_nothing() -> None:
    block = fold(batch(counted("a/", 1), subbatch("s")), delete("a/1"), header(1), item(0, deletes=("a/1",)))
    assert (rules(block), block.complete) == ([], True)


def test_a_prefix_without_a_slash_begins_a_longer_key() -> None:
    block = fold(batch(counted("a/h", 1), counted("a/", 1)), put("a/hx"), put("a/h"), put("a/hx"))
    assert evidence(block) == [("prefix_not_at_boundary", 1, 1)]
    assert block.complete
    block = fold(batch(counted("foo/b", 1)), put("foo/bar"))
    assert rules(block) == ["prefix_not_at_boundary"]
    assert block.missing == (Missing(b"foo/b", 1, "messages"),)


def test_what_the_batch_names_no_subbatch_for_is_unknown() -> None:
    block = fold(batch(), header(1), header(1), header(2), item(0), item(0), item(0, k=b"v"))
    assert [found[1] for found in evidence(block)] == [1, 3, 4, 6]
    assert set(rules(block)) == {"subbatch_unknown"}
    assert block.duplicates == 2


def test_headers_and_items_that_differ_conflict_and_the_first_wins() -> None:
    told = (batch(subbatch("s")), item(0, k=b"1"), item(0, k=b"2"), header(2), header(3), header(3), item(0, k=b"2"))
    block = fold(*told, item(1, deletes=("x", "y")), item(1, deletes=("y", "x", "x")))
    assert evidence(block) == [("subbatch_conflict", 2, 3), ("subbatch_conflict", 4, 4)]
    assert content(block) == [("k", b"1"), ("x", None), ("y", None)]
    assert block.duplicates == 3


TOPICS = {r"a/[0-9]+/b/": "deep", "a/": "near", "s": "sub"}


def test_messages_belong_on_the_topic_of_their_prefix() -> None:
    options = CardinalOptions(topics=TOPICS)
    told = (
        batch(counted("a/1/b/", 1), counted("a/", 1), subbatch("s")),
        put("a/1/b/c"),
        put("a/x"),
        header(1),
        item(0),
    )
    for topic, wrong in (("near", [1, 3, 4]), ("deep", [2, 3, 4]), ("sub", [1, 2])):
        assert evidence(fold(*told, options=options, topic=topic)) == [("topic_wrong", at, at) for at in wrong]
    assert fold(*told, topic="anywhere").findings == ()


def test_a_reorg_channel_carries_all_prefixes() -> None:
    told = (batch(counted("a/", 1)), put("a/x"))
    default, named = f"cardinal-1-re-{HASH.hex()}", f"back-{HASH.hex()}-1"
    options = CardinalOptions(topics=TOPICS)
    assert rules(fold(*told, options=options, topic=default)) == []
    assert rules(fold(*told, options=options, topic=named)) == ["topic_wrong"]
    options = replace(options, reorg_topic="back-{hash}-1")
    assert rules(fold(*told, options=options, topic=default)) == ["topic_wrong"]
    assert rules(fold(*told, options=options, topic=named)) == []


@pytest.mark.parametrize("topic", ["", "-re-", "x-re-" + "g" * 64, "x-re-" + "0" * 63, "0" * 64, "x-re-" + "A" * 64])
def test_other_topics_are_no_channels(topic: str) -> None:
    assert not reorg_channel_name(OPTIONS)(topic)
    assert not reorg_channel_name(CardinalOptions(reorg_topic="re-{hash}-x"))(topic)


def test_a_prefix_has_to_be_declared() -> None:
    options = CardinalOptions(prefixes=("a/", "s"))
    block = fold(batch(counted("a/", 1), counted("b/", 1), subbatch("t"), inline("loose", b"x")), options=options)
    assert [finding.message for finding in block.findings] == [
        "no declared prefix begins the entry 'b/' of the Batch",
        "no declared prefix begins the entry 't' of the Batch",
    ]


def test_what_comes_after_completion_is_judged_too() -> None:
    block = fold(batch(counted("a/", 1), subbatch("s")), put("a/1"), header(1), item(0), *LATE)
    assert block.completed_place == place(3)
    assert rules(block) == ["extra_message", "key_two_values", "item_index_out_of_range", "batch_conflict"]
    assert (block.messages, block.duplicates) == (10, 2)


LATE = (put("a/2"), put("a/1", b"w"), item(1), batch(), put("a/1"), header(1))


@pytest.mark.parametrize(
    ("entry", "sent", "told"),
    [
        (Update(b"a/", b"v", 2), (put("a/1"), delete("a/2")), [("a/", b"v"), ("a/1", b"v"), ("a/2", None)]),
        (Update(b"a/", None, 1, True), (put("a/1"),), [("a/", None), ("a/1", b"v")]),
        (Update(b"a", b"v", 1), (put("a", b"w"),), [("a", b"v")]),
        (Update(b"a", None, 1, True), (delete("a"),), [("a", None)]),
        (Update(b"a", b"v", delete=True), (), [("a", b"v"), ("a", None)]),
        (
            Update(b"a/", b"v", 1, True, SUB),
            (put("a/1"), header(1), item(0, x=b"y")),
            [("a/", b"v"), ("a/", None), ("a/1", b"v"), ("x", b"y")],
        ),
    ],
    ids=["value and count", "count and delete", "value of its message", "delete of its message", "both", "all"],
)
def test_of_an_ambiguous_entry_nothing_is_lost(
    entry: Update, sent: tuple[Message, ...], told: list[tuple[str, bytes | None]]
) -> None:
    early = fold(*sent, batch(entry))
    block = fold(batch(entry), *sent)
    assert (block.complete, content(block), rules(block)) == (True, told, [])
    assert (early.complete, content(early), rules(early)) == (True, told, [])
    assert not sent or not fold(batch(entry), *sent[:-1]).complete


def test_what_never_came_is_told_of_the_batch() -> None:
    told = (batch(counted("a/", 3), subbatch("s"), subbatch("r", OTHER_SUB)), put("a/1"), header(2), item(1))
    findings = judged_findings(fold(*told))
    assert [finding.rule.name for finding in findings] == [
        "prefix_count_open",
        "subbatch_header_missing",
        "subbatch_items_missing",
    ]
    assert {finding.place for finding in findings} == {place(0)}
    assert "prefix 'a/': 1 of 3 received" in findings[0].message
    assert "items 0, 1 of 2 received" in findings[2].message
    # That a Batch never came is for the chain to say.
    assert judged_findings(fold(put("a/1"))) == ()


def test_messages_after_the_closing_place_take_no_part() -> None:
    told = received((batch(counted("a/", 2)), put("a/1"), put("a/2"), put("x")))
    block = assemble(HASH, told, OPTIONS, until=place(1).order)
    assert (block.messages, block.last_place, block.complete, block.findings) == (2, place(1), False, ())


# Properties


def legal_stream() -> list[Message]:
    """A block with every kind of entry that breaks no rule in any order."""
    entries = (counted("a/", 5), counted("b/h", 1), subbatch("s"), subbatch("r", OTHER_SUB), inline("i", b"x"))
    keyed: list[Message] = [put("a/1"), put("a/2", b""), put("a/3/x"), delete("a/4"), delete("a/5"), put("b/h")]
    items: list[Message] = [item(0, deletes=("s/d",)), item(1, p=b"1"), item(2, q=b"2"), item(3, r=b"3")]
    return [batch(*entries, Update(b"gone", delete=True)), *keyed, header(4), *items, header(0, OTHER_SUB)]


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_shuffled_and_doubled_a_legal_stream_gives_the_same_content(order: random.Random) -> None:
    stream = legal_stream()
    repeats = order.choices(stream, k=6)
    shuffled = stream + repeats
    order.shuffle(shuffled)
    block, told = fold(*shuffled), fold(*stream)
    assert content(block) == content(told)
    assert (block.expected, block.received, block.missing) == (told.expected, told.received, ())
    assert (block.findings, block.duplicates) == ((), len(repeats))


hostile = st.sampled_from(
    [
        batch(counted("a/", 2), counted("a/b", 1), subbatch("s"), inline("a/1", b"")),
        batch(counted("a/", 2), inline("a/1", b"")),
        *(put(key, value) for key in ("a/1", "a/2", "a/3", "a/bc", "x", "") for value in (b"", b"v", b"w")),
        *map(delete, ("a/1", "a/2", "x")),
        *(header(count, sub) for count in (0, 2) for sub in (SUB, OTHER_SUB)),
        *(item(index, k=value) for index in (-1, 0, 1, 2) for value in (b"v", b"w")),
        SubBatchMsg(HASH, SUB, 1, (b"a/1", b"k"), ((b"a/1", b"v"), (b"k", b""))),
    ]
)


@settings(max_examples=200)
@given(st.lists(hostile, min_size=1, max_size=25))
def test_a_longer_stream_only_adds_findings(messages: list[Message]) -> None:
    """So a block may be cut into windows anywhere; and what was complete stays as it was."""
    assembly = BlockAssembly(HASH, OPTIONS)
    before: Block | None = None
    for told in received(messages):
        assembly.receive(told)
        block = assembly.block()
        assert block == assemble(HASH, received(messages), OPTIONS, until=told.place.order)
        assert list(block.known_at) == sorted(block.known_at)
        assert all(finding.place <= at for finding, at in zip(block.findings, block.known_at, strict=True))
        assert block.complete == (block.batch is not None and not block.missing)
        assert 0 <= block.duplicates < block.messages
        if before is not None:
            assert block.findings[: len(before.findings)] == before.findings
            assert all(at == told.place for at in block.known_at[len(before.findings) :])
            if before.complete:
                assert (block.updates, block.completed_place) == (before.updates, before.completed_place)
        before = block
