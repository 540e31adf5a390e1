"""`wirehouse trace TABLE KEY`: shows the landed records behind a row, and their bytes.

Spark isn't needed: SQL finds the row, the manifest its capture, and the landed objects have its record. For a row about
bytes of a TCP connection, all packets that carried them are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TextIO

import fastavro

from wirehouse_codecs.core.errors import UsageError
from wirehouse_codecs.tcp.endpoints import Direction, other
from wirehouse_orchestration.evidence import excerpts, landed_packets
from wirehouse_orchestration.evidence.excerpts import ByteRange, NoExcerptError
from wirehouse_orchestration.evidence.landed_packets import TracedConnection
from wirehouse_orchestration.terminal import render
from wirehouse_pipelines.lake.lake import PACKET_KINDS, Lake
from wirehouse_pipelines.lake.protocols import FILE_KINDS, PROTOCOLS
from wirehouse_pipelines.landing.manifests import Manifest, check_there, manifest_name
from wirehouse_pipelines.query.sql import UnknownTableError, query
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import Table, all_tables

#: Maximum number of rows shown for one key.
MOST_ROWS: Final = 10
#: Maximum number of bytes of a key or value that are shown.
SHOWN_BYTES: Final = 16 << 10
#: The columns that locate a row, if its table has no key.
_PLACE: Final = (
    *("source", "window_start", "rule", "connection_id", "direction", "byte_start", "capture_id", "record_number"),
)
#: Rows that are equal here have the same packets.
_PACKETS_OF: Final = ("source", "connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number")
#: Fields of a landed record that are shown beside its bytes.
_TIMES: Final = ("ts_ns", "arrived_at_ns")
_SHOWN_FIELDS: Final = (
    *("topic", "partition", "offset", "ts_type", "link_type", "original_length", "name", "part", "last", "damage"),
    *_TIMES,
)
_LINE_BYTES = 16
_INTEGERS = ("BIGINT", "INT", "SMALLINT", "TINYINT")
#: NAME=VALUE of a key; a comma and a backslash in it stand behind a backslash.
_PART = re.compile(r"(?:[^,\\]|\\.|\\$)+", re.DOTALL)
_HEX = re.compile(r"(0x)?(([0-9a-fA-F]{2})*)")


class TraceKeyError(UsageError):
    """The key doesn't fit the table."""

    template = "{table}: {reason}"


class NoSuchRowError(UsageError):
    """The table has no row with that key, or the row points to no record."""

    template = "{table}: {reason}"


@dataclass(frozen=True, slots=True)
class Found:
    """A landed record that a row points to; or a capture, if it points to no record of it."""

    #: Which of the row's records it is: `record`, or as `completed record`.
    what: str
    manifest: Manifest
    number: int | None = None
    #: The object that holds the record, and the record.
    name: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    #: The first piece, where the record is the last one of something long.
    first: Mapping[str, Any] | None = None

    @property
    def place(self) -> dict[str, Any]:
        """The fields of the record, without its bytes."""
        return {name: self.record[name] for name in _SHOWN_FIELDS if self.record.get(name) is not None}

    @property
    def parts(self) -> dict[str, bytes | None]:
        """The bytes of the record, or of its first piece."""
        record = self.record if self.first is None else self.first
        parts = {name: record[name] for name in ("key", "value", "data", "damaged") if name in record}
        return parts | {f"header {header['key']}": header["value"] for header in record.get("headers", ())}

    def fields(self) -> dict[str, Any]:
        """Its values in JSON's types."""
        capture = ("source", "path", "capture_id", "status", "records", "landed_at_ns")
        found = {"what": self.what} | {name: getattr(self.manifest, name) for name in capture}
        if self.number is None:
            return found
        parts = {name: _bytes_fields(data, len(data or b"")) for name, data in self.parts.items()}
        return found | {"record_number": self.number, "object": self.name} | self.place | {"parts": parts}


@dataclass(frozen=True, slots=True)
class Traced:
    """A row and its evidence."""

    row: Mapping[str, Any]
    found: Sequence[Found]
    #: The bytes of a connection that the row is about, and the paths of the captures of their packets.
    byte_range: ByteRange | None = None
    paths: Mapping[bytes, str] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Its values in JSON's types."""
        return {
            "row": self.row,
            "records": [one.fields() for one in self.found],
            "said": self.byte_range and self._range_fields(),
        }

    def _range_fields(self) -> dict[str, Any]:
        byte_range = self.byte_range
        assert byte_range
        place = {
            "direction": byte_range.direction,
            "byte_start": byte_range.byte_start,
            "byte_end": byte_range.byte_end,
        }
        packets = [
            {"path": self.paths[packet.name[0]], "capture_id": packet.name[0], "record_number": packet.name[1]}
            | {"arrived_at_ns": packet.place.arrived_at_ns, "byte_start": begin, "byte_end": end, "again": again}
            for packet, begin, end, again in byte_range.listed
        ]
        return place | {
            "captured": _bytes_fields(byte_range.shown, byte_range.there),
            "packets": byte_range.packets,
            "first": packets,
        }


def _bytes_fields(data: bytes | bytearray | None, size: int) -> dict[str, Any] | None:
    return None if data is None else {"size_bytes": size, "hex": data[:SHOWN_BYTES].hex()}


def trace(lake: Lake, table: str, key: str, out: TextIO, pcap: Path | None = None, *, as_json: bool = False) -> None:
    """Print the rows of `table` with this key, and of each the landed records it points to, byte for byte.

    `key` is a value of the first key column after the source (binary as hex), or what `key_of` writes of any columns.
    To `pcap` go the packets of the row, or of several of one place: those that carried its bytes, else all of its
    connection, else the one that it points to. `as_json` prints an object for each row.
    Raises UnknownTableError, TraceKeyError, NoSuchRowError, NoExcerptError and PacketsGoneError.
    """
    if table not in all_tables():
        raise UnknownTableError(name=table, advice="`wirehouse tables` lists them")
    rows = _rows(lake, all_tables()[table], key)
    if pcap is not None and len({tuple(row.get(name) for name in _PACKETS_OF) for row in rows}) > 1:
        reason = "more than one row has this key, and --pcap writes the packets of one: add columns, as NAME=VALUE"
        raise NoExcerptError(reason=reason)
    for number, row in enumerate(rows[:MOST_ROWS], 1):
        written = pcap if number == 1 else None
        if as_json:
            fields = {
                "table": table,
                "pcap": pcap,
                "more_rows": len(rows) > MOST_ROWS,
                **_traced(lake, row, written).fields(),
            }
            out.write(render.json_line(fields) + "\n")
            continue
        _say(out, f"{table}, row {number} of {len(rows)}" if len(rows) <= MOST_ROWS else f"{table}, row {number}")
        _fields(out, row)
        _print(_traced(lake, row, written), out)
        if pcap is not None:
            _say(out, f"\nits packets are in {pcap}")
    if len(rows) > MOST_ROWS and not as_json:
        _say(out, f"only the first {MOST_ROWS} rows are shown: give more columns of the key, as NAME=VALUE,NAME=VALUE")


def _traced(lake: Lake, row: Mapping[str, Any], pcap: Path | None) -> Traced:
    """The evidence of a row. Its packets are written to `pcap`."""
    connection = _connection(lake, row)
    found = [_found(lake, str(row["source"]), *place) for place in _places(row)]
    if connection is None or not _has_bytes(row):
        if pcap is not None:
            excerpts.write(_packets(found, lake, connection), pcap)
        return Traced(row, found)
    byte_range = _byte_range(lake, connection, row, pcap)
    captures = {span.packet.name[0] for span in byte_range.listed}
    paths = {one: _manifest(lake, connection.source, one.hex()).path for one in captures}
    return Traced(row, found, byte_range, paths)


def _rows(lake: Lake, table: Table, key: str) -> list[dict[str, Any]]:
    if "capture_id" not in {column.name for column in table.columns}:
        raise NoSuchRowError(table=table.name, reason="its rows point to no landed record")
    wanted = " AND ".join(_condition(table, name, value) for name, value in _key(table, key).items())
    names = ", ".join(f'"{column.name}"' for column in table.declared)
    with query(lake, f"SELECT {names} FROM {table.name} WHERE {wanted} LIMIT {MOST_ROWS + 1}") as reader:
        found = [row for batch in reader for row in batch.to_pylist()]
    if not found:
        raise NoSuchRowError(table=table.name, reason=f"there is no row with {key}")
    return found


def row_key(table: Table) -> tuple[str, ...]:
    """The columns that identify a row of the table: its key, or else those that locate it."""
    names = {column.name for column in table.columns}
    return table.key or tuple(name for name in _PLACE if name in names)


def key_of(values: Mapping[str, Any]) -> str:
    """The key of the row that has these values."""
    texts = {name: "" if value is None else str(value) for name, value in values.items()}
    escaped = {name: text.replace("\\", "\\\\").replace(",", "\\,") for name, text in texts.items()}
    return ",".join(f"{name}={value}" for name, value in escaped.items())


def _key(table: Table, key: str) -> Mapping[str, str]:
    """The values that `key` gives, as text, by column."""
    known = {column.name for column in table.columns}
    if "=" not in key:
        own = [name for name in _key_columns(table) if name != "source"]
        if not own:
            raise TraceKeyError(table=table.name, reason="it has no key: write NAME=VALUE,NAME=VALUE with its columns")
        return {own[0]: key}
    pairs = dict(re.sub(r"\\([,\\])", r"\1", part).partition("=")[::2] for part in _PART.findall(key))
    for name in pairs:
        if name not in known:
            reason = f"there is no column {name!r}, only {', '.join(column.name for column in table.columns)}"
            raise TraceKeyError(table=table.name, reason=reason)
    return pairs


def _key_columns(table: Table) -> tuple[str, ...]:
    """The table's key; of a view without one, the key of the table that its rows come from."""
    if table.key or table.view is None:
        return table.key
    below = all_tables()[table.reads[0]]
    return below.key if set(below.key) <= {column.name for column in table.columns} else ()


def _condition(table: Table, name: str, value: str) -> str:
    kind = next(column.type for column in table.columns if column.name == name)
    if not value:
        empty = {"STRING": f" OR \"{name}\" = ''", "BINARY": f" OR \"{name}\" = X''"}
        return f'("{name}" IS NULL{empty.get(kind, "")})'
    if kind == "BINARY":
        digits = _HEX.fullmatch(value)
        if digits is None:
            raise TraceKeyError(table=table.name, reason=f"{name} is binary: write it as hex, not {value!r}")
        return f"\"{name}\" = X'{digits[2]}'"
    if kind in _INTEGERS or kind.startswith("DECIMAL"):
        if not re.fullmatch(r"-?[0-9]{1,20}", value):
            raise TraceKeyError(table=table.name, reason=f"{name} is a whole number, not {value!r}")
        return f"\"{name}\" = CAST('{value}' AS DECIMAL(20, 0))"
    if kind == "BOOLEAN" and value in ("true", "false"):
        return f'"{name}" = {value}'
    if kind == "STRING":
        quoted = value.replace("'", "''")
        return f"\"{name}\" = '{quoted}'"
    raise TraceKeyError(table=table.name, reason=f"{name} is {kind} and can't be asked for {value!r}")


def _places(row: Mapping[str, Any]) -> Iterator[tuple[str, bytes, int | None]]:
    """What the row points to: a name, the capture and the record number."""
    for name, capture_id in row.items():
        if name.endswith("capture_id") and capture_id is not None:
            what = name.removesuffix("capture_id")
            yield f"{what.strip('_')} record".strip(), capture_id, row.get(f"{what}record_number")


def _found(lake: Lake, source: str, what: str, capture_id: bytes, number: int | None) -> Found:
    manifest = _manifest(lake, source, capture_id.hex())
    if number is None:
        return Found(what, manifest)
    name, record = _record(lake, manifest, number)
    # Only the first piece of a long record is shown.
    long = record.get("part") and record["data"] is not None
    first = _record(lake, manifest, number - record["part"])[1] if long else None
    return Found(what, manifest, number, name, record, first)


def _manifest(lake: Lake, source: str, capture_id: str) -> Manifest:
    storage = open_storage(lake.root)
    for one in _sources(lake, source):
        name = manifest_name(one, capture_id)
        if storage.exists(name):
            with storage.open(name) as stream:
                return Manifest.from_json(stream.read())
    raise NoSuchRowError(table=name, reason="the manifest is gone, so its landed records can't be found")


def _sources(lake: Lake, name: str) -> list[str]:
    """The source with that name, or the sources of that service. A source may no longer be configured."""
    return [source.name for source in lake.sources_of(name)] or [name]


def _record(lake: Lake, manifest: Manifest, record_number: int) -> tuple[str, dict[str, Any]]:
    """The name of the object that holds a record, and the record. Blocks before it aren't decoded."""
    check_there(manifest)
    storage = open_storage(lake.root)
    first = 0
    for window in manifest.windows.values():
        if record_number >= first + window.records:
            first += window.records
            continue
        for name in window.objects:
            with storage.open(name) as stream:
                for block in fastavro.block_reader(stream):
                    if record_number < first + block.num_records:
                        record: Any = next(islice(iter(block), record_number - first, None))
                        return name, record
                    first += block.num_records
    capture = f"capture {manifest.capture_id} of source {manifest.source}"
    raise NoSuchRowError(table=capture, reason=f"it has no record {record_number}")


# Connections


def _connection(lake: Lake, row: Mapping[str, Any]) -> TracedConnection | None:
    """The TCP connection that a row is about; a log that is a file has the id of one."""
    name = row.get("connection_id")
    if name is None:
        return None
    if row.get("capture_id") and _manifest(lake, str(row["source"]), row["capture_id"].hex()).kind in FILE_KINDS:
        return None
    # Rows of a service are about connections of one of its sources.
    sources = ", ".join(f"'{one}'" for one in _sources(lake, str(row["source"])))
    wanted = f"source IN ({sources}) AND connection_id = X'{name.hex()}'"
    with query(lake, f"SELECT * FROM silver.connections WHERE {wanted}") as reader:
        for batch in reader:
            for found in batch.to_pylist():
                return TracedConnection.of(found)
    raise NoSuchRowError(table="silver.connections", reason=f"there is no connection {name.hex()} of {row['source']}")


def _has_bytes(row: Mapping[str, Any]) -> bool:
    """Whether the row names a range of bytes in one direction."""
    begin, end = row.get("byte_start"), row.get("byte_end")
    return row.get("direction") is not None and begin is not None and end is not None and end > begin


def _sender(lake: Lake, connection: TracedConnection, row: Mapping[str, Any]) -> Direction:
    """The side of the TCP connection that sent what a row is about. What is found of a capture knows of no other."""
    sender = Direction(row["direction"])
    source = next((one for one in lake.sources if one.name == connection.source), None)
    if source is None or str(row.get("rule")).startswith("capture."):
        return sender
    return other(sender) if PROTOCOLS[source.protocol].options.from_mapping(source.options).turned else sender


def _byte_range(lake: Lake, connection: TracedConnection, row: Mapping[str, Any], pcap: Path | None) -> ByteRange:
    """The bytes that a row is about, and the packets that carried them."""
    byte_range = ByteRange(_sender(lake, connection, row), row["byte_start"], row["byte_end"], SHOWN_BYTES)
    reported_by = row["capture_id"], row["record_number"]
    spans = byte_range.spans(landed_packets.packets(lake, connection), reported_by, row["arrived_at_ns"])
    if pcap is None:
        byte_range.read(spans)
    else:
        carried = (span.packet.record for span in spans)
        first = next(carried, None)
        # No packet carried the bytes of a hole.
        excerpts.write(_packets((), lake, connection) if first is None else chain((first,), carried), pcap)
    return byte_range


def _packets(found: Sequence[Found], lake: Lake, connection: TracedConnection | None) -> Iterator[Mapping[str, Any]]:
    """The landed packets of a row about a whole connection or a single packet."""
    if connection is not None:
        yield from (carried.packet.record for carried in landed_packets.packets(lake, connection))
        return
    yield from (one.record for one in found if one.manifest.kind in PACKET_KINDS and one.number is not None)


# Printing


def _print(traced: Traced, out: TextIO) -> None:
    for one in traced.found:
        _print_found(one, out, dump=traced.byte_range is None)
    if traced.byte_range:
        _print_byte_range(traced.byte_range, traced.paths, out)


def _print_found(found: Found, out: TextIO, *, dump: bool) -> None:
    manifest, number = found.manifest, found.number
    if number is None:
        _say(
            out,
            f"\ncapture {manifest.path} of source {manifest.source}: {manifest.status}, {manifest.records:,} records",
        )
        return
    _say(out, f"\n{found.what} {number} of capture {manifest.path}, source {manifest.source}")
    place = {"capture_id": manifest.capture_id, "landed in": found.name, "landed at": _time(manifest.landed_at_ns)}
    _fields(out, place | {name: _time(value) if name in _TIMES else value for name, value in found.place.items()})
    if not dump:
        return
    if found.first is not None:
        pieces, first = found.record["part"], number - found.record["part"]
        _say(out, f"  the last of {pieces + 1:,} pieces, which are records {first} to {number}; the first:")
    _print_parts(found, out)


def _print_parts(found: Found, out: TextIO) -> None:
    """The bytes of a landed record."""
    for part, data in found.parts.items():
        if data is not None:
            _say(out, f"  {part}, {len(data):,} bytes")
            _dump(out, data)
        elif part != "damaged" and found.record["damaged"] is None:
            _say(out, f"  {part}: null")


def _print_byte_range(part: ByteRange, paths: Mapping[bytes, str], out: TextIO) -> None:
    size = part.byte_end - part.byte_start
    lacks = f", {size - part.there:,} of them were not captured" if part.there < size else ""
    _say(out, f"\nbytes {part.byte_start} to {part.byte_end} of what the {part.direction} sent, {size:,} bytes{lacks}")
    _dump(out, bytes(part.shown), part.there)
    if not part.packets:
        return
    _say(out, f"  carried by {part.packets:,} packet{'' if part.packets == 1 else 's'}")
    for packet, begin, end, again in part.listed:
        capture_id, number = packet.name
        where = f"record {number} of capture {paths[capture_id]}, {_time(packet.place.arrived_at_ns)}"
        _say(out, f"    {where}: bytes {begin} to {end}{', again' if again else ''}")
    if part.packets > len(part.listed):
        _say(out, f"    … {part.packets - len(part.listed):,} packets more: --pcap writes all of them")


def _time(ns: int) -> str:
    """Nanoseconds since 1970 UTC, and the same as a date if it is within the calendar."""
    seconds, rest = divmod(ns, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return str(ns)
    return f"{ns} ({moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z)"


def _fields(out: TextIO, fields: Mapping[str, Any]) -> None:
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        shown = value if not isinstance(value, Decimal) else int(value)
        _say(out, f"  {name:<{width}}  {render.cell(shown)}".rstrip())


def _dump(out: TextIO, data: bytes, size: int | None = None) -> None:
    """A hex dump: position, hex and ASCII. `data` has the first bytes of `size`."""
    size = len(data) if size is None else size
    for at in range(0, min(len(data), SHOWN_BYTES), _LINE_BYTES):
        piece = data[at : min(at + _LINE_BYTES, SHOWN_BYTES)]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)
        _say(out, f"    {at:08x}  {piece.hex(' '):<{3 * _LINE_BYTES - 1}}  {text}")
    if size > SHOWN_BYTES:
        _say(out, f"    … {size - SHOWN_BYTES:,} bytes more: all of them are in bronze")


def _say(out: TextIO, text: str) -> None:
    start = len(text) - len(text.lstrip("\n"))
    out.write(text[:start] + render.terminal(text[start:]) + "\n")
