"""Reads landed Avro objects as Arrow columns: the inverse of `object_writer`.

An Avro object is a header and blocks. A block is: the number of records, the size in bytes, the compressed records, and
a 16-byte sync marker that is the same for the whole object.

Several tasks can read one object, each a range of bytes. A block belongs to the range in which it begins. A task finds
its first block by searching for the sync marker, and may read beyond the end of its range to finish its last one.

A batch has the records of several blocks. Compiled loops find the position of each field (`find_fields`,
`find_headers`) and copy bytes into Arrow buffers (`copy_fields`). No Python object is created per record.

Objects are checked, because disks and stores may damage them: sizes, sync markers, checksums and numbers of records
must agree, or DamagedObjectError is raised.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import cramjam
import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException

from wirehouse_codecs.compiled.jit import compiled, copy_bytes, inlined, wide
from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.landing.object_writer import FILE, MESSAGE, PACKET

Array = np.ndarray[Any, Any]

#: A batch has records of about this many bytes.
BATCH_BYTES: Final = 16 << 20
_SYNC_BYTES: Final = 16
_CRC_BYTES: Final = 4
#: Snappy can't expand data further: 3 bytes become at most 64.
_MOST_INFLATED: Final = 22
#: The longest number in Avro has 10 bytes. As many zeros are appended to records, so that a loop that reads a damaged
#: number stops within the buffer.
_LONGEST: Final = 10
_SEARCHED: Final = 1 << 20

#: Types of fields: a number or boolean, bytes or text, headers. NULLABLE is a flag that is added to one of them.
NUMBER, BYTES, HEADERS, NULLABLE = 0, 1, 2, 4
_KINDS: Final = {"long": NUMBER, "int": NUMBER, "boolean": NUMBER, "bytes": BYTES, "string": BYTES}
_TYPES: Final = {
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
UINT64: Any = np.uint64
UNREADABLE: Final = -1


class DamagedObjectError(WirehouseError):
    """A landed object is damaged or missing."""

    template = (
        "{name} isn't what was landed ({reason}): restore the object, or run `wirehouse forget` on its capture and "
        "land the file again"
    )


class _Field(NamedTuple):
    name: str
    #: NUMBER, BYTES or HEADERS, maybe with the flag NULLABLE.
    kind: int
    type: pa.DataType


def _fields(schema: Any) -> list[_Field]:
    """The fields of an Avro schema of `object_writer`."""
    found = []
    for field in schema["fields"]:
        of, null = field["type"], 0
        if isinstance(of, list):
            of, null = of[1], NULLABLE
        if isinstance(of, dict):
            found.append(_Field(field["name"], HEADERS, pa.list_(_HEADER)))
        else:
            found.append(_Field(field["name"], _KINDS[of] | null, _TYPES[of]))
    return found


_KNOWN: Final = [_fields(schema) for schema in (MESSAGE, PACKET, FILE)]
#: Early objects of files are uncompressed.
_CODECS: Final = ("snappy", "null")


def read(stream: BinaryIO, name: str, begin: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
    """Read the records of all blocks that begin at bytes `begin` to `end` of the object `name`, open as `stream`.

    The columns are the fields of the schema that the object was written with. Raises DamagedObjectError.
    """
    size_bytes = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    try:
        header: Any = fastavro.block_reader(stream)
        fields, codec = _fields(header.writer_schema), header.codec
    except (EOFError, LookupError, TypeError, ValueError, SchemaParseException) as error:
        raise DamagedObjectError(name=name, reason=f"its header can't be read: {error}") from error
    if fields not in _KNOWN or codec not in _CODECS:
        raise DamagedObjectError(name=name, reason="its header isn't one that landing writes")
    waiting: list[bytes] = []
    rows = size = 0
    for at, count, data in _blocks(stream, name, codec, begin, size_bytes if end is None else end, size_bytes):
        waiting.append(data)
        rows, size = rows + count, size + len(data)
        if size >= BATCH_BYTES:
            yield _batch(fields, waiting, rows, name, at)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _batch(fields, waiting, rows, name, at)


def _blocks(
    stream: BinaryIO, name: str, codec: str, begin: int, end: int, size_bytes: int
) -> Iterator[tuple[int, int, bytes]]:
    """Yield position, stated number of records and inflated bytes of each block. `stream` is behind the header."""
    at = stream.tell()
    stream.seek(at - _SYNC_BYTES)
    sync = stream.read(_SYNC_BYTES)
    if begin > at:
        at = _block_after(stream, sync, begin)
        stream.seek(at)
    while at < end:
        count, size = _number(stream), _number(stream)
        if count < 0 or size < 0:
            raise DamagedObjectError(name=name, reason=f"byte {at}: no block begins there")
        # A damaged block may state any size: never read more than the object has.
        data = stream.read(size) if size <= size_bytes - stream.tell() else b""
        if len(data) < size or stream.read(_SYNC_BYTES) != sync:
            raise DamagedObjectError(name=name, reason=f"byte {at}: the block doesn't end where its size demands")
        yield at, count, _inflated(data, name, at) if codec == "snappy" else data
        at = stream.tell()


def _block_after(stream: BinaryIO, sync: bytes, begin: int) -> int:
    """The position of the first block that begins at or after `begin`; the end of the object if there is none."""
    at, held = begin - _SYNC_BYTES, b""
    stream.seek(at)
    while piece := stream.read(_SEARCHED):
        held += piece
        if (found := held.find(sync)) >= 0:
            return at + found + _SYNC_BYTES
        at += len(held) - _SYNC_BYTES
        held = held[-_SYNC_BYTES:]
    return stream.tell()


def _number(stream: BinaryIO) -> int:
    """Read a zig-zag varint; UNREADABLE, a negative number, if there is none."""
    number = 0
    for place in range(_LONGEST):
        byte = stream.read(1)
        if not byte:
            return UNREADABLE
        number |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            return (number >> 1) ^ -(number & 1)
    return UNREADABLE


def _inflated(data: bytes, name: str, at: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data[:-_CRC_BYTES]) > _MOST_INFLATED * len(data):
            raise DamagedObjectError(name=name, reason=f"byte {at}: the block can't inflate to the size it states")
        inflated = bytes(cramjam.snappy.decompress_raw(data[:-_CRC_BYTES]))
    except cramjam.DecompressionError as error:
        raise DamagedObjectError(name=name, reason=f"byte {at}: {error}") from error
    if zlib.crc32(inflated) != int.from_bytes(data[-_CRC_BYTES:], "big"):
        raise DamagedObjectError(name=name, reason=f"byte {at}: the checksum doesn't match")
    return inflated


def _batch(fields: list[_Field], blocks: list[bytes], rows: int, name: str, at: int) -> pa.RecordBatch:
    """Parse the records of `blocks`, which state to have `rows` in all; the last block begins at `at`."""
    data = np.frombuffer(b"".join([*blocks, bytes(_LONGEST)]), np.uint8)
    end = len(data) - _LONGEST
    if rows > end:
        raise DamagedObjectError(name=name, reason=f"byte {at}: it has fewer bytes than records")
    first, last = (np.zeros((len(fields), rows), np.int64) for _ in range(2))
    there = np.ones((len(fields), rows), np.bool_)
    kinds = np.array([field.kind for field in fields])
    if find_fields(data, end, kinds, first, last, there) != end:
        raise DamagedObjectError(name=name, reason=f"byte {at}: the records don't end where the block ends")
    columns = [_column(data, field, first[i], last[i], there[i]) for i, field in enumerate(fields)]
    return pa.RecordBatch.from_arrays(columns, [field.name for field in fields])


def _column(data: Array, field: _Field, first: Array, last: Array, there: Array) -> pa.Array:
    kind = field.kind & ~NULLABLE
    if kind == BYTES:
        return _texts(data, field.type, first, last, there)
    if kind == HEADERS:
        return _headers(data, first, last)
    numbers = pa.Array.from_buffers(pa.int64(), len(first), [_bitmap(there), pa.py_buffer(first)])
    return numbers.cast(field.type)


def _bitmap(there: Array) -> pa.Buffer | None:
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _texts(data: Array, kind: pa.DataType, first: Array, last: Array, there: Array) -> pa.Array:
    ends = np.zeros(len(first) + 1, np.int64)
    np.cumsum(last - first, out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint8)
    copy_fields(data, first, ends, out)
    buffers = [_bitmap(there), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind, len(first), buffers)


def _headers(data: Array, first: Array, counts: Array) -> pa.Array:
    """A column of headers: those of each row begin at `first`, and `counts` is their number."""
    bounds = np.zeros(len(first) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    begins, ends = (np.zeros((2, int(bounds[-1])), np.int64) for _ in range(2))
    there = np.ones(begins.shape, np.bool_)
    find_headers(data, first, begins, ends, there)
    texts = [_texts(data, field.type, begins[i], ends[i], there[i]) for i, field in enumerate(_HEADER)]
    return pa.ListArray.from_arrays(
        pa.array(bounds, pa.int32()), pa.StructArray.from_arrays(texts, fields=list(_HEADER))
    )


@inlined
def get_long(data: Array, at: int) -> tuple[int, int]:
    """Read a zig-zag varint of at most 10 bytes; the number, and the position after it."""
    number, shift = UINT64(0), UINT64(0)
    while data[at] >= 0x80 and shift < UINT64(63):
        number |= (UINT64(data[at]) & UINT64(0x7F)) << shift
        shift += UINT64(7)
        at += 1
    number |= UINT64(data[at]) << shift
    return wide(number >> UINT64(1)) ^ -wide(number & UINT64(1)), at + 1


@inlined
def skip_bytes(data: Array, at: int, end: int) -> int:
    """Skip a length and as many bytes; the position after them, or UNREADABLE if that isn't before `end`."""
    size, at = get_long(data, at)
    return at + size if 0 <= size < end - at else UNREADABLE


@compiled
def skip_headers(data: Array, at: int, end: int) -> tuple[int, int]:
    """Skip the headers at `at`; their number, and the position after them or UNREADABLE if they exceed `end`."""
    found = 0
    count, at = get_long(data, at)
    while count != 0:
        found += count
        for _ in range(count):
            at = skip_bytes(data, at, end) + 1
            if at > 0 and data[at - 1] != 0:
                at = skip_bytes(data, at, end)
            if at <= 0:
                return found, UNREADABLE
        if count < 0 or at >= end:
            return found, UNREADABLE
        count, at = get_long(data, at)
    return found, at


@compiled
def find_fields(data: Array, end: int, kinds: Array, first: Array, last: Array, there: Array) -> int:
    """Find all fields of consecutive records; the position where the last one ends, or UNREADABLE if beyond `end`.

    The results have a row per field and a column per record. For a number, `first` is its value. For bytes, `first` and
    `last` are their begin and end. For headers, `first` is their begin and `last` their number. `there` is false where
    the field is null. `data` must have 10 more bytes after `end`.
    """
    at = 0
    for row in range(first.shape[1]):
        for field in range(len(kinds)):
            if at >= end:
                return UNREADABLE
            kind = kinds[field]
            if kind & NULLABLE:
                at += 1
                if data[at - 1] == 0:
                    there[field, row] = False
                    continue
            kind &= ~NULLABLE
            begin = at
            number, at = get_long(data, at)
            if kind == NUMBER:
                first[field, row] = number
            elif kind == BYTES:
                if number < 0 or number > end - at:
                    return UNREADABLE
                first[field, row] = at
                at += number
                last[field, row] = at
            else:
                first[field, row] = begin
                last[field, row], at = skip_headers(data, begin, end)
                if at < 0:
                    return UNREADABLE
    return at


@compiled
def find_headers(data: Array, begins: Array, first: Array, last: Array, there: Array) -> None:
    """Find the names and values of all headers. `find_fields` has checked them, so nothing is checked here."""
    header = 0
    for row in range(len(begins)):
        count, at = get_long(data, begins[row])
        while count != 0:
            for _ in range(count):
                size, at = get_long(data, at)
                first[0, header] = at
                at += size
                last[0, header] = at
                at += 1
                if data[at - 1] == 0:
                    there[1, header] = False
                else:
                    size, at = get_long(data, at)
                    first[1, header] = at
                    at += size
                    last[1, header] = at
                header += 1
            count, at = get_long(data, at)


@compiled
def copy_fields(data: Array, first: Array, ends: Array, out: Array) -> None:
    """Copy pieces of `data` that begin at `first` to `out`, one after the other; `ends` begins with a zero."""
    for row in range(len(first)):
        copy_bytes(data, first[row], ends[row + 1] - ends[row], out, ends[row])
