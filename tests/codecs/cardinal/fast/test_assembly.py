"""The fast assembler says of a regular block what the readable one says, and leaves all others to it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cardinal_log import fields
from wirehouse_codecs.cardinal.fast.assembly import Assembled, assemble_columns
from wirehouse_codecs.cardinal.fast.columns import DECODED_TYPE
from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher
from wirehouse_codecs.cardinal.session.assembly import assemble
from wirehouse_codecs.cardinal.session.block import Block, Received
from wirehouse_codecs.cardinal.wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)
from wirehouse_codecs.core.rules import Place

HASH, PARENT, SUB, OTHER_SUB = (bytes([byte]) * 32 for byte in (0x11, 0x22, 0x33, 0x44))
#: Names with u/ in front aren't tracked.
OPTIONS = CardinalOptions(tracked_prefixes=("^[^u]",))
SCHEMA = pa.schema(
    [("kind", pa.string()), ("key", pa.binary()), ("value", pa.binary())]
    + [(field.name, field.type) for field in DECODED_TYPE if field.name not in ("rule", "reason")]
)


MATCHER = NameMatcher(OPTIONS)


def columns(messages: Sequence[Message]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([fields(message, MATCHER) for message in messages], schema=SCHEMA)


def assembled(blocks: Sequence[Sequence[Message]]) -> Assembled:
    bounds = np.cumsum([0, *map(len, blocks)])
    found = assemble_columns(columns([message for block in blocks for message in block]), bounds)
    return found._replace(updates=list(found.updates))


def readable(messages: Iterable[Message]) -> Block:
    received = [Received(Place(record, 0, b"", record), message) for record, message in enumerate(messages)]
    return assemble(HASH, received, OPTIONS)


def told(found: Assembled, block: int, first: int) -> tuple[Any, ...]:
    """What was assembled of a block whose first row is `first`."""
    mine = [row for some in found.updates for row in some.to_pylist() if row["block"] == block]
    content = sorted((row["key"], row["value"], row["row"] - first) for row in mine)
    counts = [(one["name"], one["messages"]) for one in found.counts[block].as_py()]
    rows = (int(column[block]) - first for column in (found.batch, found.completed))
    return content, counts, *rows, int(found.duplicates[block])


def expected(block: Block) -> tuple[Any, ...]:
    assert block.batch_place is not None
    assert block.completed_place is not None
    content = [(update.key, update.value, update.place.record_number) for update in block.updates]
    counts = [(count.name, count.messages) for count in block.expected]
    rows = block.batch_place.record_number, block.completed_place.record_number
    assert block.received == block.expected
    return sorted(content, key=repr), counts, *rows, block.duplicates


def check(blocks: Sequence[Sequence[Message]]) -> list[bool]:
    """Compare all regular blocks with the readable assembler; which are regular."""
    found = assembled(blocks)
    first = 0
    for at, messages in enumerate(blocks):
        block = readable(messages)
        if found.regular[at]:
            assert (block.complete, block.findings) == (True, ())
            content, *others = told(found, at, first)
            assert [sorted(content, key=repr), *others] == list(expected(block))
        first += len(messages)
    return [bool(one) for one in found.regular]


def legal_block() -> list[Message]:
    """A block with every kind of entry that breaks no rule in any order."""
    entries = (
        Update(b"a/", count=5),
        Update(b"b/h", count=1),
        Update(b"u/", count=9),
        Update(b"s", subbatch=SUB),
        Update(b"u/r", subbatch=OTHER_SUB),
        Update(b"i", value=b"x"),
        Update(b"gone", delete=True),
        Update(b"u/i", value=b"not tracked"),
        Update(b"nothing/", count=0),
        Update(b"bare"),
    )
    keyed: list[Message] = [BatchMsg(HASH, key, key[:3]) for key in (b"a/1", b"a/2", b"a/3/x", b"b/h", b"u/1")]
    deletes: list[Message] = [BatchDeleteMsg(HASH, key) for key in (b"a/4", b"a/5", b"u/2")]
    items: list[Message] = [
        SubBatchMsg(HASH, SUB, 0, (b"d", b"e", b"d")),
        SubBatchMsg(HASH, SUB, 1, (), ((b"p", b"1"), (b"", b"empty key"))),
        SubBatchMsg(HASH, SUB, 2, (b"f",), ((b"q", b""),)),
        SubBatchMsg(HASH, OTHER_SUB, 7, (b"o",), ((b"w", b"not tracked"),)),
    ]
    return [Batch(HASH, 7, 7, PARENT, entries), *keyed, *deletes, SubBatchHeader(HASH, SUB, 3), *items]


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_legal_blocks_are_regular_in_any_order(order: random.Random) -> None:
    blocks = []
    for _ in range(3):
        messages = legal_block()
        messages += order.choices(messages, k=order.randrange(8))
        order.shuffle(messages)
        blocks.append(messages)
    assert check(blocks) == [True] * 3


def test_further_batches_may_have_their_entries_in_any_order() -> None:
    first, *others = legal_block()
    assert isinstance(first, Batch)
    again: Message = replace(first, updates=first.updates[::-1])
    assert check([[first, *others, again]]) == [True]


@settings(max_examples=200)
@given(st.data())
def test_a_legal_block_with_some_changes_is_left_to_the_readable_assembler_if_it_has_to_be(data: st.DataObject) -> None:
    messages = legal_block()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(messages) - 1))
        if data.draw(st.booleans()):
            del messages[at]
        else:
            messages.insert(at, data.draw(hostile))
        if not messages:
            return
    check([messages, legal_block()])


#: Messages that go together well or not.
hostile: st.SearchStrategy[Message] = st.sampled_from(
    [
        Batch(HASH, 7, 7, PARENT, (Update(b"a/", count=2), Update(b"a/b", count=1), Update(b"s", subbatch=SUB))),
        Batch(HASH, 7, 7, PARENT, (Update(b"a/", count=2), Update(b"a/1", value=b""))),
        Batch(HASH, 7, 7, PARENT, (Update(b"a/", count=1), Update(b"u/a", value=b"", subbatch=SUB))),
        Batch(HASH, 7, 7, PARENT, (Update(b"a/", count=2), Update(b"a/b/", count=1))),
        Batch(HASH, 7, 7, PARENT, (Update(b"a/", count=0), Update(b"", count=1))),
        Batch(HASH, 7, 7, PARENT, (Update(b"a", subbatch=SUB), Update(b"b", subbatch=SUB))),
        Batch(HASH, 7, 7, PARENT, (Update(b"u/" + b"x" * 1022, count=1), Update(b"u/i", value=b"1"))),
        *(
            BatchMsg(HASH, key, value)
            for key in (b"a/1", b"a/2", b"a/b/c", b"a/bc", b"x", b"")
            for value in (b"", b"v")
        ),
        *(BatchMsg(HASH, key, b"u") for key in (b"u/i", b"u/3", b"i", b"d", b"a/", b"b/hh", b"p")),
        *(BatchDeleteMsg(HASH, key, value) for key in (b"a/1", b"a/4", b"x", b"gone", b"u/i") for value in (b"", b"v")),
        *(SubBatchHeader(HASH, sub, count) for count in (0, 1, 2) for sub in (SUB, OTHER_SUB, PARENT)),
        *(SubBatchMsg(HASH, SUB, index, (), ((b"k", value),)) for index in (-1, 0, 1, 3) for value in (b"v", b"w")),
        SubBatchMsg(HASH, SUB, 1, (b"a/1", b"k"), ((b"a/1", b"v"), (b"k", b""))),
        SubBatchMsg(HASH, OTHER_SUB, 1, (b"d",), ((b"w", b"other"),)),
    ]
)


@settings(max_examples=300)
@given(st.lists(st.lists(hostile, min_size=1, max_size=12), min_size=1, max_size=4))
def test_of_any_messages_a_regular_block_is_what_the_readable_assembler_says(blocks: list[list[Message]]) -> None:
    check(blocks)


@pytest.mark.parametrize(
    "extra",
    [
        BatchMsg(HASH, b"x", b"stray"),
        BatchMsg(HASH, b"a/6", b"one too many"),
        BatchMsg(HASH, b"a/1", b"another value"),
        BatchMsg(HASH, b"a/4", b"also deleted"),
        BatchMsg(HASH, b"b/hh", b"not at the boundary"),
        SubBatchHeader(HASH, SUB, 4),
        SubBatchMsg(HASH, SUB, 3, (b"z",)),
        SubBatchMsg(HASH, SUB, 2, (b"z",)),
        SubBatchMsg(HASH, PARENT, 0, (b"z",)),
        Batch(HASH, 8, 7, PARENT),
    ],
    ids=repr,
)
def test_a_block_that_breaks_a_rule_is_not_regular(extra: Message) -> None:
    assert readable([*legal_block(), extra]).findings
    for at in (0, 5, len(legal_block())):
        messages = legal_block()
        messages.insert(at, extra)
        assert check([legal_block(), messages, legal_block()]) == [True, False, True]


def test_every_message_of_a_tracked_entry_is_needed() -> None:
    for at, message in enumerate(legal_block()):
        messages = legal_block()
        del messages[at]
        is_needed = not any(part in repr(message) for part in ("b'u/1'", "b'u/2'", repr(OTHER_SUB))) or at == 0
        assert check([messages]) == [not is_needed]
