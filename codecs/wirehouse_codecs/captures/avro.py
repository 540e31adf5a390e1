"""A reader of untrusted Avro Object Container Files (Avro 1.12 specification, "Object Container Files").

fastavro decodes the records. The container around them is read here, for two reasons: announced counts and sizes must
not be trusted, and records before and after damaged bytes must be kept. After damage, reading continues behind the
next sync marker. Callers get damage as a value, never as an exception.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import cramjam
import fastavro
import pyarrow as pa

from wirehouse_codecs.captures.inflate import ByteSource

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
#: Maximum size of a container's header: magic, metadata and sync marker.
MAX_HEADER_BYTES = 4 << 20
#: Maximum size of a block, both compressed and inflated.
MAX_BLOCK_BYTES = 32 << 20
#: Maximum length of the lists in which records are returned.
LIST_RECORDS = 10_000
#: Memory limit of xz while it inflates a block. Its highest preset needs this much.
MAX_XZ_MEMORY_BYTES = 128 << 20
MAX_SCHEMA_DEPTH = 16
_READ_BYTES = 1 << 20
_LONG_BYTES = 10


class Damage(Exception):
    """Why a container can't be read further. Only this module and its direct callers see this exception."""


class Cursor:
    """Reads exact numbers of bytes and Avro longs from a source."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._held = b""
        self._next = 0
        #: Number of bytes returned so far.
        self.position = 0

    def _hold(self, size: int) -> int:
        """Buffer `size` bytes, or all that the source still has. Returns how many are buffered."""
        have = len(self._held) - self._next
        if have < size:
            pieces = [self._held[self._next :]]
            while have < size and (piece := self._source.read(_READ_BYTES)):
                pieces.append(piece)
                have += len(piece)
            self._held, self._next = b"".join(pieces), 0
        return have

    def at_end(self) -> bool:
        """Whether no byte is left."""
        return not self._hold(1)

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end of the source."""
        self._hold(size)
        piece = self._held[self._next : self._next + size]
        self._next += len(piece)
        self.position += len(piece)
        return piece

    def ahead(self, skipped: int, size: int) -> bytes:
        """Look ahead: the `size` bytes after the next `skipped` ones, fewer at the end of the source."""
        self._hold(skipped + size)
        return self._held[self._next + skipped : self._next + skipped + size]

    def through(self, mark: bytes) -> Iterator[bytes]:
        """The bytes through the end of the next `mark`, or to the end of the source, in pieces."""
        found = -1
        while found < 0 and self._hold(len(mark)) >= len(mark):
            found = self._held.find(mark, self._next)
            # The last buffered bytes may be the beginning of a mark.
            end = len(self._held) - len(mark) + 1 if found < 0 else found + len(mark)
            yield self.read(end - self._next)
        if found < 0:
            yield self.read(len(mark))

    def exact(self, size: int, what: str) -> bytes:
        """The next `size` bytes. Raises Damage if there are fewer."""
        at = self.position
        piece = self.read(size)
        if len(piece) < size:
            raise Damage(f"{what} at byte {at} is cut off")
        return piece

    def long(self, what: str) -> int:
        """The next Avro long: a zig-zag varint of at most 64 bits."""
        value = 0
        for i in range(_LONG_BYTES):
            byte = self.exact(1, what)[0]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise Damage(f"{what} at byte {self.position - _LONG_BYTES} is not an Avro long")


class Remains(NamedTuple):
    """Bytes of a container that can't be read as records, and why."""

    data: bytes
    reason: str


#: A decoded record and its bytes.
Record = tuple[Any, bytes]


class Container:
    """The records of a container. `damage` is the first damage met in it."""

    def __init__(self, source: ByteSource) -> None:
        """Raises Damage if the header can't be read, or its schema isn't safe for untrusted bytes."""
        self.damage: str | None = None
        self._source = source
        self._cursor = Cursor(source)
        if self._cursor.exact(len(MAGIC), "the magic") != MAGIC:
            raise Damage("not an Avro container")
        metadata = self._metadata()
        self._sync = self._cursor.exact(SYNC_BYTES, "the sync marker")
        #: The writer's schema as JSON, without logical types.
        self.schema = _plain_schema(metadata.get("avro.schema", b""))
        self._parsed = _parse(self.schema)
        codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
        if codec not in _INFLATE:
            raise Damage(f"compressed by {codec!r}, expected one of {', '.join(_INFLATE)}")
        self._inflate = _INFLATE[codec]

    def _metadata(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        while count := self._cursor.long("the metadata"):
            if count < 0:
                self._cursor.long("the metadata")
            for _ in range(abs(count)):
                name = self._sized("the metadata").decode("utf-8", "replace")
                found[name] = self._sized("the metadata")
        return found

    def _sized(self, what: str) -> bytes:
        size = self._cursor.long(what)
        if not 0 <= size <= MAX_HEADER_BYTES - self._cursor.position:
            raise Damage(f"{what} takes more than {MAX_HEADER_BYTES} bytes")
        return self._cursor.exact(size, what)

    def blocks(self) -> Iterator[list[Record] | Remains]:
        """Lists of records, and between them bytes that aren't records."""
        while not self._cursor.at_end():
            at, begin = self._cursor.position, self._cursor.ahead(0, 2 * _LONG_BYTES)
            try:
                count, data = self._framed()
            except Damage as damage:
                reason = self._damaged(self._source.damage or f"Avro block at byte {at}: {damage}")
                yield Remains(begin[: self._cursor.position - at], reason)
                yield from (Remains(piece, reason) for piece in self._cursor.through(self._sync))
                continue
            try:
                inflated = self._inflate(data)
            except Damage as damage:
                yield Remains(data, self._damaged(f"Avro block at byte {at}: {damage}"))
                continue
            for found in self._decode(count, inflated):
                if isinstance(found, Remains):
                    found = Remains(found.data, self._damaged(f"Avro block at byte {at}: {found.reason}"))
                yield found
        self.damage = self.damage or self._source.damage

    def _damaged(self, reason: str) -> str:
        self.damage = self.damage or reason
        return reason

    def _framed(self) -> tuple[int, bytes]:
        """The next block: the number of records it announces, and its data, still compressed."""
        count = self._cursor.long("its count")
        size = self._cursor.long("its size")
        if not 0 <= size <= MAX_BLOCK_BYTES:
            raise Damage(f"announces {size} bytes, more than {MAX_BLOCK_BYTES}")
        sync = self._cursor.ahead(size, SYNC_BYTES)
        if sync != self._sync:
            raise Damage("is cut off" if len(sync) < SYNC_BYTES else "does not end with the sync marker")
        data = self._cursor.read(size)
        self._cursor.read(SYNC_BYTES)
        return count, data

    def _decode(self, count: int, data: bytes) -> Iterator[list[Record] | Remains]:
        """The records of a block in lists of bounded length, then the bytes that can't be decoded."""
        # `_plain_schema` refuses schemas whose records can be empty, so a record has at least one byte.
        if not 0 <= count <= len(data):
            yield Remains(data, f"announces {count} records in {len(data)} bytes")
            return
        stream = io.BytesIO(data)
        records: list[Record] = []
        for number in range(count):
            at = stream.tell()
            try:
                record = fastavro.schemaless_reader(stream, self._parsed, None)
            except Exception as error:  # fastavro can raise any exception on malformed bytes
                yield records
                reason = f"record {number} can't be decoded: {type(error).__name__} {error}".strip()
                yield Remains(data[at:], reason)
                return
            records.append((record, data[at : stream.tell()]))
            if len(records) == LIST_RECORDS:
                yield records
                records = []
        yield records
        if rest := data[stream.tell() :]:
            yield Remains(rest, f"{len(rest)} bytes follow its {count} records")


def _bounded(inflated: bytes, finished: bool) -> bytes:
    if len(inflated) > MAX_BLOCK_BYTES:
        raise Damage(f"inflates to more than {MAX_BLOCK_BYTES} bytes")
    if not finished:
        raise Damage("its compressed data is cut off")
    return inflated


def _inflate_deflate(data: bytes) -> bytes:
    member = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        return _bounded(member.decompress(data, MAX_BLOCK_BYTES + 1), member.eof)
    except zlib.error as error:
        raise Damage(str(error)) from None


def _inflate_bzip2(data: bytes) -> bytes:
    member = bz2.BZ2Decompressor()
    try:
        return _bounded(member.decompress(data, MAX_BLOCK_BYTES + 1), member.eof)
    except (OSError, ValueError) as error:
        raise Damage(str(error)) from None


def _inflate_xz(data: bytes) -> bytes:
    member = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY_BYTES)
    try:
        return _bounded(member.decompress(data, MAX_BLOCK_BYTES + 1), member.eof)
    except lzma.LZMAError as error:
        raise Damage(str(error)) from None


def _inflate_zstandard(data: bytes) -> bytes:
    try:
        return _bounded(bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read(MAX_BLOCK_BYTES + 1)), True)
    except OSError as error:
        raise Damage(str(error)) from None


def _inflate_snappy(data: bytes) -> bytes:
    checksum = data[-4:]
    try:
        if cramjam.snappy.decompress_raw_len(data[:-4]) > MAX_BLOCK_BYTES:
            raise Damage(f"inflates to more than {MAX_BLOCK_BYTES} bytes")
        inflated = bytes(cramjam.snappy.decompress_raw(data[:-4]))
    except cramjam.DecompressionError as error:
        raise Damage(str(error)) from None
    if zlib.crc32(inflated).to_bytes(4, "big") != checksum:
        raise Damage("its checksum is wrong")
    return inflated


_INFLATE: Mapping[str, Callable[[bytes], bytes]] = {
    "null": lambda data: _bounded(data, True),
    "deflate": _inflate_deflate,
    "snappy": _inflate_snappy,
    "zstandard": _inflate_zstandard,
    "bzip2": _inflate_bzip2,
    "xz": _inflate_xz,
}


def _plain_schema(text: bytes) -> dict[str, Any]:
    """The schema without logical types. Raises Damage if it isn't safe for untrusted bytes."""
    try:
        schema = json.loads(text)
        least = _least_bytes(schema, {}, 0)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise Damage(f"its schema can't be read: {type(error).__name__} {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record" or not least:
        raise Damage("its schema is not a record with content")
    plain: dict[str, Any] = _without_logical_types(schema)
    return plain


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return schema


_PRIMITIVE_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


def _least_bytes(schema: Any, named: dict[str, int | None], depth: int) -> int:
    """The fewest bytes that a value takes. Raises Damage for types that let few bytes encode endless values."""
    if depth > MAX_SCHEMA_DEPTH:
        raise Damage(f"its schema is nested deeper than {MAX_SCHEMA_DEPTH}")
    if isinstance(schema, list):
        return 1 + min((_least_bytes(branch, named, depth + 1) for branch in schema), default=0)
    if isinstance(schema, str):
        least = _PRIMITIVE_BYTES[schema] if schema in _PRIMITIVE_BYTES else named[schema.rpartition(".")[2]]
        if least is None:
            raise Damage("its schema is recursive")
        return least
    kind = schema["type"]
    if kind in ("array", "map"):
        if not _least_bytes(schema["items" if kind == "array" else "values"], named, depth + 1) and kind == "array":
            raise Damage("its schema has an array of values without bytes")
        return 1
    if kind not in ("record", "error", "fixed", "enum"):
        return _least_bytes(kind, named, depth + 1)
    name = str(schema["name"]).rpartition(".")[2]
    named[name] = None
    named[name] = _least_named(kind, schema, named, depth)
    return named[name] or 0


def _least_named(kind: str, schema: Mapping[str, Any], named: dict[str, int | None], depth: int) -> int:
    if kind == "enum":
        return 1
    if kind == "fixed":
        return int(schema["size"])
    return sum(_least_bytes(field["type"], named, depth + 1) for field in schema["fields"])


def _parse(schema: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(schema)
    except Exception as error:  # fastavro raises several unrelated types
        raise Damage(f"its schema can't be read: {type(error).__name__} {error}") from None
