"""Reads captures of broker messages, JSON Lines or Avro container files, into Arrow batches of bounded size.

A line of JSON is an object with `key_b64` and `value_b64` (base64, or null for a message without one) and, where known,
`topic`, `partition`, `offset`, `timestamp_ms`, `timestamp_type` (`create` or `append`) and `headers` (a list of
`{"key": ..., "value_b64": ...}`). An Avro record has the same names without `_b64`. Fields of other names are kept as
JSON. The content decides which format a capture has, and how it is compressed.

Captured content never raises an exception. Bytes that aren't a message become a row with `damaged` and the reason in
`damage`. If a capture can't be read to its end, `MessageCapture.damage` is the reason.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wirehouse_codecs.captures import avro
from wirehouse_codecs.captures.inflate import Ahead, ByteSource, fill, open_inflated
from wirehouse_codecs.captures.json_lines import scan_lines
from wirehouse_codecs.captures.source import NOWHERE, Origin

#: Lines are read in blocks of about this size; a batch holds the messages of one block.
BLOCK_BYTES: Final = 4 << 20
#: A longer line isn't read as a message: readers of landed objects couldn't hold its key and value.
MAX_LINE_BYTES: Final = 24 << 20
#: Bytes that aren't a message are kept in pieces of at most this size.
PIECE_BYTES: Final = 8 << 20
#: Maximum size of topics and header names in UTF-8.
MAX_NAME_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 10_000
#: Maximum size of all fields of other names as JSON.
MAX_EXTRA_BYTES: Final = 512 << 10
_NAMES: Final = frozenset({"topic", "partition", "offset", "timestamp_ms", "timestamp_type", "headers"})
_LINE_NAMES: Final = _NAMES | {"key_b64", "value_b64"}
_RECORD_NAMES: Final = _NAMES | {"key", "value"}

_INT64_MAX = 2**63 - 1
_NS_PER_MS = 1_000_000
_BOM = b"\xef\xbb\xbf"

MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ts_ns", pa.int64()),
        ("ts_type", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string(), False), ("value", pa.binary())])), False),
        ("extra", pa.string()),
        ("damaged", pa.binary()),
        ("damage", pa.string()),
    ]
)


class Row(NamedTuple):
    """A row of MESSAGE_SCHEMA: a message, or `damaged` bytes that aren't one, with the reason in `damage`."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    #: Nanoseconds since 1970 UTC, limited to the range of 64 bits.
    ts_ns: int | None = None
    ts_type: str | None = None
    key: bytes | None = None
    value: bytes | None = None
    #: Pairs of name and value.
    headers: tuple[tuple[str, bytes | None], ...] = ()
    #: Fields of other names, as a JSON object.
    extra: str | None = None
    damaged: bytes | None = None
    damage: str | None = None


class NotAMessage(ValueError):
    """Why a line or Avro record isn't a message; becomes `damage`."""


class MessageCapture:
    """The messages of one capture, read once from start to end."""

    def __init__(self, stream: BinaryIO, origin: Origin = NOWHERE) -> None:
        """`stream` must be at the capture's first byte."""
        #: Why this isn't a capture of messages at all; None if it is.
        self.unreadable: str | None = None
        #: Why the capture ends early; final once `batches` is exhausted.
        self.damage: str | None = None
        self._source = Ahead(open_inflated(stream, origin.limits))
        self._avro: avro.Container | None = None
        start = self._source.look(BLOCK_BYTES)
        if start.startswith(avro.MAGIC):
            self._open_avro()
        elif not _looks_like_lines(start):
            self.unreadable = "neither JSON Lines nor an Avro container, plain or compressed by gzip or zstd"

    def _open_avro(self) -> None:
        try:
            self._avro = avro.Container(self._source)
        except avro.Damage as damage:
            self.unreadable = f"the Avro container can't be read: {self._source.damage or damage}"
            return
        names = {field["name"] for field in self._avro.schema["fields"]}
        missing = [repr(name) for name in ("key", "value") if name not in names]
        if missing:
            fields = " and ".join(missing)
            self.unreadable = f"the schema of the Avro records lacks {fields}, so they aren't broker messages"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in the capture's order."""
        if self.unreadable is None:
            yield from _avro_batches(self._avro) if self._avro else _line_batches(self._source)
            self.damage = self._avro.damage if self._avro else self._source.damage

    def rows(self) -> Iterator[Row]:
        """The same, row by row."""
        for batch in self.batches():
            for row in batch.to_pylist():
                row["headers"] = tuple((header["key"], header["value"]) for header in row["headers"])
                yield Row(**row)


def _looks_like_lines(start: bytes) -> bool:
    """Whether `start` is empty, begins like a JSON object, or has a line that is one."""
    text = start.removeprefix(_BOM).strip()
    if not text or text.startswith(b"{"):
        return True
    return any(line.lstrip().startswith(b"{") and _is_object(line) for line in text.split(b"\n"))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode()), dict)
    except (ValueError, RecursionError):
        return False


def _line_batches(source: ByteSource) -> Iterator[pa.RecordBatch]:
    for block, reason in _line_blocks(source):
        batch = read_block(block) if reason is None else to_batch(_pieces(block, reason))
        if batch.num_rows:
            yield batch


def read_block(block: bytes) -> pa.RecordBatch:
    """The rows of a block of whole lines. The fast path reads most lines, `read_line` the others."""
    scanned = scan_lines(block, MAX_LINE_BYTES)
    rest = {name: pa.nulls(scanned.rows, MESSAGE_SCHEMA.field(name).type) for name in ("extra", "damaged", "damage")}
    rest["headers"] = _no_headers(scanned.rows)
    columns = scanned.columns | rest
    plain = pa.RecordBatch.from_arrays([columns[name] for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA)
    return _with_odd(plain, block, scanned.odd) if len(scanned.odd) else plain


def _no_headers(rows: int) -> pa.Array:
    headers: pa.ListType = MESSAGE_SCHEMA.field("headers").type
    return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], headers.value_type))


def _with_odd(plain: pa.RecordBatch, block: bytes, odd: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """`plain` with the rows of the lines in `odd` inserted at their positions."""
    rows: list[Row] = []
    places: list[int] = []
    for begin, end, place in odd.tolist():
        found = list(_line_rows(block[begin:end]))
        rows += found
        places += [place] * len(found)
    # An odd row with place n comes before row n of `plain`.
    after = np.concatenate([np.arange(plain.num_rows) + 0.5, np.array(places)])
    batches = pa.concat_batches([plain, to_batch(rows)])
    return batches.take(pa.array(np.argsort(after, kind="stable")))


def _line_blocks(source: ByteSource) -> Iterator[tuple[bytes, str | None]]:
    """Blocks of whole lines; and parts of lines that are too long, with the reason."""
    too_long = f"a line of more than {MAX_LINE_BYTES} bytes"
    pending = fill(source, len(_BOM)).removeprefix(_BOM)
    within = False
    while piece := fill(source, BLOCK_BYTES):
        if within:
            end = piece.find(b"\n") + 1
            yield piece[: end or len(piece)], too_long
            within, piece = not end, piece[end or len(piece) :]
        end = piece.rfind(b"\n") + 1
        if end:
            yield pending + piece[:end], None
            pending = piece[end:]
        else:
            pending += piece
        if len(pending) > MAX_LINE_BYTES:
            yield pending, too_long
            pending, within = b"", True
    if pending:
        yield pending, None


def _line_rows(line: bytes) -> Iterator[Row]:
    if len(line) > MAX_LINE_BYTES:
        yield from _pieces(line, f"a line of more than {MAX_LINE_BYTES} bytes")
    elif line and not line.isspace():
        try:
            yield read_line(line)
        except NotAMessage as reason:
            yield from _pieces(line, str(reason))


def _pieces(data: bytes, damage: str) -> list[Row]:
    return [Row(damaged=data[i : i + PIECE_BYTES], damage=damage) for i in range(0, len(data), PIECE_BYTES)]


def _refuse_constant(name: str) -> NoReturn:
    raise NotAMessage(f"{name} is not a JSON value")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise NotAMessage(f"{name[:100]!r} appears twice in one object")
        fields[name] = value
    return fields


def read_line(line: bytes) -> Row:
    """The message of one line of JSON. Raises NotAMessage if it isn't one."""
    try:
        fields = json.loads(line.decode(), parse_constant=_refuse_constant, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise NotAMessage(f"not UTF-8 at byte {error.start} of the line") from None
    except RecursionError:
        raise NotAMessage("JSON nested too deep") from None
    except NotAMessage:
        raise
    except ValueError as error:
        raise NotAMessage(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise NotAMessage("not a JSON object")
    for name in ("key_b64", "value_b64"):
        if name not in fields:
            raise NotAMessage(f"{name} is missing")
    return _row(
        fields,
        key=_base64(fields["key_b64"], "key_b64"),
        value=_base64(fields["value_b64"], "value_b64"),
        headers=tuple(_line_header(header) for header in _header_list(fields)),
        extra=_extra(fields, _LINE_NAMES),
    )


def _line_header(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, dict):
        raise NotAMessage("a header is not an object")
    return _required_name(header.get("key")), _base64(header.get("value_b64"), "value_b64 of a header")


def _base64(text: Any, name: str) -> bytes | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise NotAMessage(f"{name} is not a string")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotAMessage(f"{name} is not base64: {error}") from None


def _avro_batches(container: avro.Container) -> Iterator[pa.RecordBatch]:
    waiting: list[Row] = []
    size = 0
    for found in container.blocks():
        if isinstance(found, avro.Remains):
            waiting += _pieces(found.data, f"after the damage: {found.reason}")
            size += len(found.data)
        else:
            waiting += (row for fields, data in found for row in _avro_rows(fields, data))
            size += sum(len(data) for _, data in found)
        if size >= PIECE_BYTES or len(waiting) >= avro.LIST_RECORDS:
            yield to_batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield to_batch(waiting)


def _avro_rows(fields: Mapping[str, Any], data: bytes) -> list[Row]:
    try:
        if len(data) > MAX_LINE_BYTES:
            raise NotAMessage(f"a record of more than {MAX_LINE_BYTES} bytes")
        headers = tuple(_avro_header(header) for header in _header_list(fields))
        extra = _extra(fields, _RECORD_NAMES)
        return [_row(fields, _octets(fields.get("key")), _octets(fields.get("value")), headers, extra)]
    except NotAMessage as reason:
        return _pieces(data, str(reason))


def _avro_header(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, dict):
        raise NotAMessage("a header is not a record")
    return _required_name(header.get("key")), _octets(header.get("value"))


def _octets(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if value is None or isinstance(value, bytes):
        return value
    raise NotAMessage("a key or value is not bytes")


def _row(
    fields: Mapping[str, Any],
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    extra: str | None,
) -> Row:
    return Row(
        topic=_name(fields.get("topic"), "topic"),
        partition=_integer(fields.get("partition"), "partition", 31),
        offset=_integer(fields.get("offset"), "offset", 63),
        ts_ns=_nanoseconds(fields.get("timestamp_ms")),
        ts_type=_ts_type(fields.get("timestamp_type")),
        key=key,
        value=value,
        headers=headers,
        extra=extra,
    )


def _extra(fields: Mapping[str, Any], known: frozenset[str]) -> str | None:
    """The fields of other names as JSON. Bytes are written as base64, other values unknown to JSON as text."""
    others = {name: value for name, value in fields.items() if name not in known}
    if not others:
        return None
    try:
        text = json.dumps(others, separators=(",", ":"), default=_as_json)
    except RecursionError:
        raise NotAMessage("fields of other names are nested too deep") from None
    if len(text) > MAX_EXTRA_BYTES:
        raise NotAMessage(f"fields of other names take more than {MAX_EXTRA_BYTES} bytes")
    return text


def _as_json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _header_list(fields: Mapping[str, Any]) -> list[Any]:
    headers = fields.get("headers")
    if isinstance(headers, dict):
        headers = [{"key": key, "value": value, "value_b64": value} for key, value in headers.items()]
    if headers is not None and not isinstance(headers, list):
        raise NotAMessage("headers is not a list")
    if headers and len(headers) > MAX_HEADERS:
        raise NotAMessage(f"more than {MAX_HEADERS} headers")
    return headers or []


def _name(text: Any, what: str) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise NotAMessage(f"{what} is not a string")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise NotAMessage(f"{what} is not Unicode") from None
    if size > MAX_NAME_BYTES:
        raise NotAMessage(f"{what} is longer than {MAX_NAME_BYTES} bytes")
    return text


def _required_name(text: Any) -> str:
    name = _name(text, "the key of a header")
    if name is None:
        raise NotAMessage("a header has no key")
    return name


def _integer(number: Any, what: str, bits: int) -> int | None:
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool):
        raise NotAMessage(f"{what} is not a whole number")
    if not -(1 << bits) <= number < 1 << bits:
        raise NotAMessage(f"{what} doesn't fit {bits + 1} bits")
    return number


def _nanoseconds(timestamp_ms: Any) -> int | None:
    if timestamp_ms is None:
        return None
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise NotAMessage("timestamp_ms is not a whole number")
    return max(-_INT64_MAX - 1, min(_INT64_MAX, timestamp_ms * _NS_PER_MS))


def _ts_type(text: Any) -> str | None:
    if text is None:
        return None
    if isinstance(text, str) and text in ("create", "append"):
        return text
    raise NotAMessage("timestamp_type is neither create nor append")


def to_batch(rows: list[Row]) -> pa.RecordBatch:
    """`rows` as a batch of MESSAGE_SCHEMA."""
    columns = zip(*rows, strict=True) if rows else [()] * len(MESSAGE_SCHEMA)
    arrays = [
        pa.array([[{"key": key, "value": value} for key, value in headers] for headers in column], field.type)
        if field.name == "headers"
        else pa.array(column, field.type)
        for field, column in zip(MESSAGE_SCHEMA, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)
