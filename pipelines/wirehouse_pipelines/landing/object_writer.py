"""Encodes landed records as Avro: the schemas of messages, packets and files, and encoders from Arrow columns.

fastavro writes the container and compresses its blocks. The records in a block are encoded here by compiled loops,
because calling fastavro for every record takes ten times as long.

All compiled functions are in this one module: numba recompiles a cached function only if its own module has changed,
not if a module that it calls has. `object_reader` is the inverse.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastavro.write import Writer

from wirehouse_codecs.compiled.jit import compiled, inlined, wide

Array = np.ndarray[Any, Any]


def _schema(name: str, *own: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record: its position and times, its `own` fields, and bytes that could not be parsed."""
    fields = [
        {"name": "record_number", "type": "long"},
        {"name": "ts_ns", "type": ["null", "long"]},
        {"name": "arrived_at_ns", "type": "long"},
        {"name": "capture_arrived_at_ns", "type": "long"},
        {"name": "capture_id", "type": "bytes"},
        *own,
        {"name": "damaged", "type": ["null", "bytes"]},
        {"name": "damage", "type": ["null", "string"]},
    ]
    return {"type": "record", "name": name, "namespace": "wirehouse", "fields": fields}


_HEADER = {
    "type": "record",
    "name": "header",
    "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}],
}
MESSAGE: Final = _schema(
    "landed_message",
    {"name": "topic", "type": ["null", "string"]},
    {"name": "partition", "type": ["null", "int"]},
    {"name": "offset", "type": ["null", "long"]},
    {"name": "ts_type", "type": ["null", "string"]},
    {"name": "key", "type": ["null", "bytes"]},
    {"name": "value", "type": ["null", "bytes"]},
    {"name": "headers", "type": {"type": "array", "items": _HEADER}},
    {"name": "extra", "type": ["null", "string"]},
)
PACKET: Final = _schema(
    "landed_packet",
    {"name": "link_type", "type": ["null", "int"]},
    {"name": "original_length", "type": ["null", "long"]},
    {"name": "data", "type": ["null", "bytes"]},
)
FILE: Final = _schema(
    "landed_file",
    {"name": "name", "type": "string"},
    {"name": "part", "type": "int"},
    {"name": "last", "type": "boolean"},
    {"name": "data", "type": ["null", "bytes"]},
)
#: Records are compressed in blocks of about this size.
BLOCK_BYTES: Final = 1 << 20
_CODEC: Final = "snappy"

#: Upper limits for the encoded size of a record, and of a header, without its texts: numbers, lengths, union branches.
RECORD_ROOM: Final = 160
HEADER_ROOM: Final = 16
NONE, SOME = 0, 2
UINT64: Any = np.uint64


class Bytes(NamedTuple):
    """The buffers of a column of bytes or text."""

    data: Array
    offsets: Array
    valid: Array


class Numbers(NamedTuple):
    """A column of integers, and which of them aren't null."""

    values: Array
    valid: Array


class Headers(NamedTuple):
    """The headers of all rows; `bounds` are the positions at which each row's headers begin and end."""

    bounds: Array
    names: Bytes
    values: Bytes


class Capture(NamedTuple):
    """What all records of a call have in common, and the number of the first record."""

    capture_id: Array
    first_number: int
    arrived_at_ns: int


class Every(NamedTuple):
    """The columns of every kind of record."""

    ts_ns: Numbers
    arrived_at_ns: Array
    damaged: Bytes
    damage: Bytes


class Encoded(NamedTuple):
    """Encoded records: the buffer, and the position in it where each record ends."""

    out: Array
    ends: Array


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


def encode_messages(batch: pa.RecordBatch, capture: Capture, arrived_at_ns: npt.NDArray[np.int64]) -> Encoded:
    """The rows of `batch` (`messages.MESSAGE_SCHEMA`) as records of MESSAGE."""
    texts = [_bytes(batch.column(name)) for name in ("topic", "ts_type", "key", "value", "extra")]
    topic, ts_type, key, value, extra = texts
    partition, offset = (_numbers(batch.column(name)) for name in ("partition", "offset"))
    headers = _headers(batch.column("headers"))
    more = HEADER_ROOM * len(headers.names.valid) + headers.names.data.size + headers.values.data.size
    every, out, ends = _every(batch, arrived_at_ns, texts, more)
    encode_message_rows(out, ends, capture, every, topic, ts_type, key, value, extra, partition, offset, headers)
    return Encoded(out, ends)


def encode_packets(batch: pa.RecordBatch, capture: Capture, arrived_at_ns: npt.NDArray[np.int64]) -> Encoded:
    """The rows of `batch` (packet_captures.PACKET_SCHEMA) as records of PACKET."""
    data = _bytes(batch.column("data"))
    link_type, original_length = (_numbers(batch.column(name)) for name in ("link_type", "original_length"))
    every, out, ends = _every(batch, arrived_at_ns, [data], 0)
    encode_packet_rows(out, ends, capture, every, link_type, original_length, data)
    return Encoded(out, ends)


def encode_files(batch: pa.RecordBatch, capture: Capture, arrived_at_ns: npt.NDArray[np.int64]) -> Encoded:
    """The rows of `batch` (`captures.files.FILE_SCHEMA`) as records of FILE."""
    name, data = (_bytes(batch.column(column)) for column in ("name", "data"))
    part, last = (batch.column(column).cast(pa.int64()).to_numpy() for column in ("part", "last"))
    every, out, ends = _every(batch, arrived_at_ns, [name, data], 0)
    encode_file_rows(out, ends, capture, every, name, part, last, data)
    return Encoded(out, ends)


def _every(
    batch: pa.RecordBatch, arrived_at_ns: npt.NDArray[np.int64], texts: Iterable[Bytes], more: int
) -> tuple[Every, Array, Array]:
    """The columns of every kind of record, and two buffers: one for the encoded records, one for their ends.

    The first is large enough for all records with their `texts` and `more` bytes.
    """
    damaged, damage = _bytes(batch.column("damaged")), _bytes(batch.column("damage"))
    every = Every(_numbers(batch.column("ts_ns")), arrived_at_ns, damaged, damage)
    held = sum(int(column.offsets[-1] - column.offsets[0]) for column in (damaged, damage, *texts))
    return every, np.empty(RECORD_ROOM * len(batch) + held + more, np.uint8), np.empty(len(batch), np.int64)


@inlined
def put_long(out: Array, to: int, number: int) -> int:
    """Write a number as a zig-zag varint; the position after it. All `put_` functions return that position."""
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
    """Write the length of bytes and the bytes."""
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


@inlined
def put_start(out: Array, to: int, capture: Capture, every: Every, row: int) -> int:
    """Write the fields at the start of every record: number, times, capture."""
    to = put_long(out, to, capture.first_number + row)
    to = put_number(out, to, every.ts_ns, row)
    to = put_long(out, to, every.arrived_at_ns[row])
    to = put_long(out, to, capture.arrived_at_ns)
    return put_plain(out, to, capture.capture_id, 0, len(capture.capture_id))


@inlined
def put_damage(out: Array, to: int, every: Every, row: int) -> int:
    """Write the bytes that could not be parsed, and the reason."""
    to = put_bytes(out, to, every.damaged, row)
    return put_bytes(out, to, every.damage, row)


@compiled
def encode_message_rows(
    out: Array,
    ends: Array,
    capture: Capture,
    every: Every,
    topic: Bytes,
    ts_type: Bytes,
    key: Bytes,
    value: Bytes,
    extra: Bytes,
    partition: Numbers,
    offset: Numbers,
    headers: Headers,
) -> None:
    """Encode all rows with the schema MESSAGE."""
    to = 0
    for row in range(len(ends)):
        to = put_start(out, to, capture, every, row)
        to = put_bytes(out, to, topic, row)
        to = put_number(out, to, partition, row)
        to = put_number(out, to, offset, row)
        to = put_bytes(out, to, ts_type, row)
        to = put_bytes(out, to, key, row)
        to = put_bytes(out, to, value, row)
        to = put_headers(out, to, headers, row)
        to = put_bytes(out, to, extra, row)
        to = put_damage(out, to, every, row)
        ends[row] = to


@compiled
def encode_packet_rows(
    out: Array, ends: Array, capture: Capture, every: Every, link_type: Numbers, original_length: Numbers, data: Bytes
) -> None:
    """Encode all rows with the schema PACKET."""
    to = 0
    for row in range(len(ends)):
        to = put_start(out, to, capture, every, row)
        to = put_number(out, to, link_type, row)
        to = put_number(out, to, original_length, row)
        to = put_bytes(out, to, data, row)
        to = put_damage(out, to, every, row)
        ends[row] = to


@compiled
def encode_file_rows(
    out: Array, ends: Array, capture: Capture, every: Every, name: Bytes, part: Array, last: Array, data: Bytes
) -> None:
    """Encode all rows with the schema FILE."""
    to = 0
    for row in range(len(ends)):
        to = put_start(out, to, capture, every, row)
        to = put_plain(out, to, name.data, wide(name.offsets[row]), wide(name.offsets[row + 1]))
        to = put_long(out, to, part[row])
        out[to] = last[row]
        to = put_bytes(out, to + 1, data, row)
        to = put_damage(out, to, every, row)
        ends[row] = to


class Block(NamedTuple):
    """A block of encoded records, in the form that fastavro's Writer accepts."""

    num_records: int
    bytes_: io.BytesIO
    codec: str

    @property
    def largest(self) -> int:
        """The most bytes that it can take in an object, if its records don't compress."""
        size = self.bytes_.getbuffer().nbytes
        return size + size // 6 + 128


def blocks(encoded: Encoded) -> Iterator[Block]:
    """Cut encoded records into blocks of about BLOCK_BYTES."""
    begin = first = 0
    while first < len(encoded.ends):
        last = max(first + 1, int(np.searchsorted(encoded.ends, begin + BLOCK_BYTES, "right")))
        end = int(encoded.ends[last - 1])
        yield Block(last - first, io.BytesIO(encoded.out[begin:end].tobytes()), _CODEC)
        begin, first = end, last


@dataclass(frozen=True, slots=True)
class Records:
    """A kind of landed record."""

    schema: dict[str, Any]
    encode: Callable[[pa.RecordBatch, Capture, npt.NDArray[np.int64]], Encoded]

    def container(self, stream: BinaryIO) -> Any:
        """A fastavro Writer that has written the header of an object to `stream`."""
        return Writer(stream, self.schema, codec=_CODEC)


MESSAGES: Final = Records(MESSAGE, encode_messages)
PACKETS: Final = Records(PACKET, encode_packets)
FILES: Final = Records(FILE, encode_files)
