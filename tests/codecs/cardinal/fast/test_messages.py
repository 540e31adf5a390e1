"""Columns of messages of all types against the reference path, `messages.decode`."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.cardinal.fast.test_columns import EXAMPLES, any_keys, vectors
from wirehouse_codecs.cardinal.fast.columns import message_of
from wirehouse_codecs.cardinal.fast.messages import MESSAGE_TYPE, decode_messages
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.wire.messages import (
    KINDS,
    BatchDeleteMsg,
    BatchMsg,
    Decoded,
    Message,
    decode,
    encode,
)

HASH = bytes(range(32))
Row = tuple[bytes | None, bytes | None]
KEYED: list[Message] = [BatchMsg(HASH, b"", b""), BatchMsg(HASH, b"k", b"v" * 300), BatchDeleteMsg(HASH, b"k")]
#: Skips, keys that are too short, a delete with a value, and types that nobody knows.
ODD: list[Row] = [
    (None, None),
    (None, b"v"),
    (b"", b""),
    (b"\xff", b""),
    (b"\xffping", None),
    *((bytes([kind]) + HASH[:size], b"") for kind in (3, 4) for size in (0, 1, 31, 32)),
    (b"\x04" + HASH + b"k", b"v"),
    (b"\x04" + HASH[:31], b"v"),
    (b"\x03" + HASH, None),
    (b"\x07", b""),
    (b"\x07" + HASH, b"v"),
]


def decoded(rows: list[Row]) -> list[Decoded]:
    """What the columns say of each message, as `messages.decode` returns it."""
    keys, values = (pa.array([row[at] for row in rows], pa.binary()) for at in (0, 1))
    # Slices of longer columns, as batches of a file are.
    keys, values = (pa.concat_arrays([pa.array([b"xx"]), each])[1:] for each in (keys, values))
    found = decode_messages(keys, values, CardinalOptions())
    found.message.validate(full=True)
    assert found.message.type == MESSAGE_TYPE
    lists = (column.to_pylist() for column in found)
    return [_decoded(key, *row) for (key, _), *row in zip(rows, *lists, strict=True)]


def _decoded(key: bytes | None, message: dict[str, object] | None, *rest: str | None) -> Decoded:
    skip, rule, reason = rest
    why = {"rule": rule and RULE[rule], "reason": reason or ""}
    if message is None or not key:
        return Decoded(skip=skip, **why)  # type: ignore[arg-type]
    assert message["kind"] == KINDS[key[0]]
    if key[0] in (3, 4):
        own = (message["block_hash"], message["key"], message["value"])
        return Decoded((BatchMsg if key[0] == 3 else BatchDeleteMsg)(*own), **why)  # type: ignore[arg-type]
    return message_of(key[0], message | {"rule": rule, "reason": reason})


def assert_same(rows: list[Row]) -> None:
    for row, found in zip(rows, decoded(rows), strict=True):
        assert found == decode(*row), row


def test_messages_of_all_types_are_those_of_the_reference_path() -> None:
    assert_same([*map(encode, [*EXAMPLES, *KEYED]), *ODD, *vectors()])
    assert_same([])
    for row in [*map(encode, KEYED), *ODD]:
        assert_same([row])


@given(st.lists(st.tuples(st.none() | st.binary(max_size=2) | any_keys, st.none() | st.binary(max_size=40))))
def test_any_bytes_are_decoded_as_the_reference_path_does(rows: list[Row]) -> None:
    assert_same(rows)
