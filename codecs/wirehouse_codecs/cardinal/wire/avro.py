"""Bare Avro binary as Cardinal Streams uses it: no container, no schema id, no compression (specification, "Messages").

fastavro decodes the records, but trusts them: varints that are too wide wrap, and any byte counts as a boolean. So a
value is first walked along its schema. The walk reads every length and allocates nothing. A value that passes contains
all that it announces, so fastavro's work and memory are bounded by the bytes that are there.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import fastavro

INT_BITS: Final = 32
LONG_BITS: Final = 64
#: Entries in one block of a map or array, as the reference's encoder writes them.
ENTRIES_PER_BLOCK: Final = 100

#: A parsed schema: fastavro's own JSON-like form.
Schema = Any


class Malformed(Exception):
    """Bytes that are not Avro of their schema. The text gives the position and the reason."""


def read_varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """The zig-zag number at byte `at` and the position after it. Raises Malformed if it is cut or over `bits` wide."""
    start, raw, shift = at, 0, 0
    while True:
        if shift >= bits:
            raise Malformed(f"the varint at byte {start} is over {bits} bits wide")
        if at >= len(data):
            raise Malformed(f"the varint at byte {start} of {len(data)} is cut")
        raw |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    if raw >> bits:
        raise Malformed(f"the varint at byte {start} is over {bits} bits wide")
    return (raw >> 1) ^ -(raw & 1), at


def read_record(data: bytes, schema: Schema) -> tuple[dict[str, Any], int]:
    """The record at the start of `data` and the position after it. Raises Malformed.

    A byte of a string that isn't UTF-8 becomes a lone surrogate; `raw_text` turns it back into the byte.
    """
    end = _walk(data, 0, schema)
    record = fastavro.schemaless_reader(io.BytesIO(data), schema, None, handle_unicode_errors="surrogateescape")
    assert isinstance(record, dict)
    return record, end


def raw_text(text: str) -> bytes:
    """The bytes on the wire of a string that `read_record` gave."""
    return text.encode("utf-8", "surrogateescape")


def _walk(data: bytes, at: int, schema: Schema) -> int:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return _WALKS[kind](data, at, schema)


def _walk_record(data: bytes, at: int, schema: Schema) -> int:
    for field in schema["fields"]:
        at = _walk(data, at, field["type"])
    return at


def _walk_int(data: bytes, at: int, _schema: Schema) -> int:
    return read_varint(data, at, INT_BITS)[1]


def _walk_long(data: bytes, at: int, _schema: Schema) -> int:
    return read_varint(data, at, LONG_BITS)[1]


def _walk_boolean(data: bytes, at: int, _schema: Schema) -> int:
    _need(data, at, 1, "boolean")
    if data[at] > 1:
        raise Malformed(f"the boolean at byte {at} is {data[at]:02x}")
    return at + 1


def _walk_fixed(data: bytes, at: int, schema: Schema) -> int:
    _need(data, at, schema["size"], "fixed field")
    return at + int(schema["size"])


def _walk_bytes(data: bytes, at: int, _schema: Schema) -> int:
    length, start = read_varint(data, at, LONG_BITS)
    if length < 0:
        raise Malformed(f"the length at byte {at} is {length}")
    _need(data, start, length, "byte string")
    return start + length


def _walk_array(data: bytes, at: int, schema: Schema) -> int:
    return _walk_blocks(data, at, lambda item: _walk(data, item, schema["items"]))


def _walk_map(data: bytes, at: int, schema: Schema) -> int:
    return _walk_blocks(data, at, lambda entry: _walk(data, _walk_bytes(data, entry, "string"), schema["values"]))


def _walk_blocks(data: bytes, at: int, walk_entry: Callable[[int], int]) -> int:
    """The position after all blocks. An entry has at least one byte, so the work is bounded by the bytes there are.

    The size in bytes that follows a negative count only helps readers to skip; like every reader that decodes the
    entries, this one does not compare it.
    """
    while True:
        start = at
        count, at = read_varint(data, at, LONG_BITS)
        if count == 0:
            return at
        if count < 0:
            count = -count
            _, at = read_varint(data, at, LONG_BITS)
        if count > len(data) - at:
            raise Malformed(f"the block at byte {start} announces {count} entries, {len(data) - at} bytes follow")
        for _ in range(count):
            at = walk_entry(at)


def _need(data: bytes, at: int, length: int, what: str) -> None:
    if length > len(data) - at:
        raise Malformed(f"the {what} at byte {at} needs {length} bytes, {len(data) - at} follow")


_WALKS: Mapping[str, Callable[[bytes, int, Schema], int]] = {
    "record": _walk_record,
    "int": _walk_int,
    "long": _walk_long,
    "boolean": _walk_boolean,
    "fixed": _walk_fixed,
    "bytes": _walk_bytes,
    "string": _walk_bytes,
    "array": _walk_array,
    "map": _walk_map,
}


def varint(number: int) -> bytes:
    """`number`, from -2^63 to 2^63-1, as a zig-zag varint of minimal length."""
    raw = (number << 1) ^ (number >> (LONG_BITS - 1))
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def byte_string(data: bytes) -> bytes:
    """`data` with its length before it: Avro's bytes and string."""
    return varint(len(data)) + data


def blocks(entries: Iterable[bytes]) -> bytes:
    """Encoded entries as the reference writes a map or array: blocks of at most 100, each with its size in bytes."""
    entries = list(entries)
    out = bytearray()
    for start in range(0, len(entries), ENTRIES_PER_BLOCK):
        block = entries[start : start + ENTRIES_PER_BLOCK]
        body = b"".join(block)
        out += varint(-len(block)) + varint(len(body)) + body
    out += varint(0)
    return bytes(out)
