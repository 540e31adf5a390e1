"""Landed broker messages as Avro: the schema, and records encoded straight from Arrow columns.

fastavro writes the container and compresses; the records of a block are encoded here, because a call for every
record costs ten times as much.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastavro.write import Writer

from wirehouse_codecs.compiled import compiled, inlined, wide

Array = np.ndarray[Any, Any]

SCHEMA: Final = {
    "type": "record",
    "name": "landed_message",
    "namespace": "wirehouse",
    "fields": [
        {"name": "record_number", "type": "long"},
        {"name": "topic", "type": ["null", "string"]},
        {"name": "partition", "type": ["null", "int"]},
        {"name": "offset", "type": ["null", "long"]},
        {"name": "ts_ns", "type": ["null", "long"]},
        {"name": "ts_type", "type": ["null", "string"]},
        {"name": "arrived_at_ns", "type": "long"},
        {"name": "capture_arrived_at_ns", "type": "long"},
        {"name": "capture_id", "type": "bytes"},
        {"name": "key", "type": ["null", "bytes"]},
        {"name": "value", "type": ["null", "bytes"]},
        {
            "name": "headers",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "header",
                    "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}],
                },
            },
        },
        {"name": "extra", "type": ["null", "string"]},
        {"name": "damaged", "type": ["null", "bytes"]},
        {"name": "damage", "type": ["null", "string"]},
    ],
}
#: Records are compressed in blocks of about this size.
BLOCK_BYTES: Final = 1 << 20

#: Room for the numbers, lengths and branches of a record and of a header.
RECORD_ROOM: Final = 160
HEADER_ROOM: Final = 16
NONE, SOME = 0, 2
UINT64: Any = np.uint64


class Bytes(NamedTuple):
    """A column of bytes or text as its buffers."""

    data: Array
    offsets: Array
    valid: Array


class Numbers(NamedTuple):
    """A column of whole numbers, and which of them are there."""

    values: Array
    valid: Array


class Headers(NamedTuple):
    """The headers of all rows, and where those of each row begin."""

    bounds: Array
    names: Bytes
    values: Bytes


class Capture(NamedTuple):
    """What is the same in all records of a call, and the number of the first."""

    capture_id: Array
    first_number: int
    arrived_at_ns: int


def _bytes(column: pa.Array) -> Bytes:
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return Bytes(held, bounds, _valid(column))


def _numbers(column: pa.Array) -> Numbers:
    return Numbers(column.fill_null(0).cast(pa.int64()).to_numpy(), _valid(column))


def _headers(column: pa.Array) -> Headers:
    bounds = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return Headers(bounds, _bytes(column.values.field(0)), _bytes(column.values.field(1)))


def _valid(column: pa.Array) -> Array:
    valid: Array = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def encode(
    batch: pa.RecordBatch,
    arrived_at_ns: npt.NDArray[np.int64],
    first_number: int,
    capture_arrived_at_ns: int,
    capture_id: bytes,
) -> tuple[Array, Array]:
    """The rows of `batch` (captures.MESSAGE_SCHEMA) as Avro: the bytes, and where each record ends in them."""
    columns = [
        _bytes(batch.column(name)) for name in ("topic", "ts_type", "key", "value", "extra", "damaged", "damage")
    ]
    topic, ts_type, key, value, extra, damaged, damage = columns
    partition, offset, ts_ns = (_numbers(batch.column(name)) for name in ("partition", "offset", "ts_ns"))
    headers = _headers(batch.column("headers"))
    room = RECORD_ROOM * len(batch) + sum(int(column.offsets[-1] - column.offsets[0]) for column in columns)
    room += HEADER_ROOM * len(headers.names.valid) + headers.names.data.size + headers.values.data.size
    out, ends = np.empty(room, np.uint8), np.empty(len(batch), np.int64)
    who = Capture(np.frombuffer(capture_id, np.uint8), first_number, capture_arrived_at_ns)
    encode_rows(
        out,
        ends,
        who,
        arrived_at_ns,
        topic,
        ts_type,
        key,
        value,
        extra,
        damaged,
        damage,
        partition,
        offset,
        ts_ns,
        headers,
    )
    return out[: ends[-1] if len(ends) else 0], ends


@inlined
def put_long(out: Array, to: int, number: int) -> int:
    """Write a zig-zag varint; the position after it."""
    rest = UINT64(number << 1) ^ UINT64(number >> 63)
    while rest >= UINT64(0x80):
        out[to] = (rest & UINT64(0x7F)) | UINT64(0x80)
        rest >>= UINT64(7)
        to += 1
    out[to] = rest
    return to + 1


@inlined
def put_number(out: Array, to: int, column: Numbers, row: int) -> int:
    """Write a number or null."""
    if not column.valid[row]:
        out[to] = NONE
        return to + 1
    out[to] = SOME
    return put_long(out, to + 1, column.values[row])


@inlined
def put_plain(out: Array, to: int, data: Array, begin: int, end: int) -> int:
    """Write bytes with their length."""
    to = put_long(out, to, end - begin)
    out[to : to + end - begin] = data[begin:end]
    return to + end - begin


@inlined
def put_bytes(out: Array, to: int, column: Bytes, row: int) -> int:
    """Write bytes or null."""
    if not column.valid[row]:
        out[to] = NONE
        return to + 1
    out[to] = SOME
    return put_plain(out, to + 1, column.data, wide(column.offsets[row]), wide(column.offsets[row + 1]))


@inlined
def put_headers(out: Array, to: int, headers: Headers, row: int) -> int:
    """Write the headers of a row."""
    begin, end = wide(headers.bounds[row]), wide(headers.bounds[row + 1])
    if end > begin:
        to = put_long(out, to, end - begin)
        for i in range(begin, end):
            name = wide(headers.names.offsets[i])
            to = put_plain(out, to, headers.names.data, name, wide(headers.names.offsets[i + 1]))
            to = put_bytes(out, to, headers.values, i)
    out[to] = 0
    return to + 1


@compiled
def encode_rows(
    out: Array,
    ends: Array,
    capture: Capture,
    arrived_at_ns: Array,
    topic: Bytes,
    ts_type: Bytes,
    key: Bytes,
    value: Bytes,
    extra: Bytes,
    damaged: Bytes,
    damage: Bytes,
    partition: Numbers,
    offset: Numbers,
    ts_ns: Numbers,
    headers: Headers,
) -> None:
    """Write all rows in the order of SCHEMA."""
    to = 0
    for row in range(len(ends)):
        to = put_long(out, to, capture.first_number + row)
        to = put_bytes(out, to, topic, row)
        to = put_number(out, to, partition, row)
        to = put_number(out, to, offset, row)
        to = put_number(out, to, ts_ns, row)
        to = put_bytes(out, to, ts_type, row)
        to = put_long(out, to, arrived_at_ns[row])
        to = put_long(out, to, capture.arrived_at_ns)
        to = put_plain(out, to, capture.capture_id, 0, len(capture.capture_id))
        to = put_bytes(out, to, key, row)
        to = put_bytes(out, to, value, row)
        to = put_headers(out, to, headers, row)
        to = put_bytes(out, to, extra, row)
        to = put_bytes(out, to, damaged, row)
        to = put_bytes(out, to, damage, row)
        ends[row] = to


class Block(NamedTuple):
    """Encoded records, as fastavro's Writer takes them."""

    num_records: int
    bytes_: io.BytesIO
    codec: str

    @property
    def largest(self) -> int:
        """Bytes it takes at most in an object, be they incompressible."""
        size = self.bytes_.getbuffer().nbytes
        return size + size // 6 + 128


CODEC: Final = "snappy"


def blocks(encoded: Array, ends: Array) -> Iterator[Block]:
    """Cut encoded records into blocks of about BLOCK_BYTES."""
    begin = first = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + BLOCK_BYTES, "right")))
        end = int(ends[last - 1])
        yield Block(last - first, io.BytesIO(encoded[begin:end].tobytes()), CODEC)
        begin, first = end, last


def container(stream: BinaryIO) -> Any:
    """A fastavro Writer that has written the header of an object to `stream`."""
    return Writer(stream, SCHEMA, codec=CODEC)
