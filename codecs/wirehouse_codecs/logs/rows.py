"""Rows of a protocol's log: their columns, the `Log` that collects them, and what a protocol provides for it.

All protocols over TCP share these. `flow_log` reads the segments of a port pair, and has the overview of the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.ipc

from wirehouse_codecs.compiled.arrow import repeated
from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import (
    Closed,
    Connection,
    Data,
    Hole,
)

#: The kinds of rows in every log.
MESSAGE, QUARANTINE, VIOLATION, CONNECTION, STATE = "message", "quarantine", "violation", "connection", "state"
#: A log is full when it has this many rows ...
BATCH_ROWS: Final = 20_000
#: ... or this many bytes in `raw`.
BATCH_BYTES: Final = 8 << 20
#: Number of rows that wait uncompressed. A few bytes of traffic may give very many rows, so more are compressed.
MOST_WAITING: Final = 2 * BATCH_ROWS
_PACKED: Final = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
#: Length of the cached columns of nulls.
FEW_ROWS: Final = 512

#: The counters of each direction of a connection.
COUNTERS: Final = (
    *("packets", "delivered_bytes", "missing_bytes", "retransmitted_bytes", "ignored_bytes"),
    *("strays", "out_of_order", "zero_windows", "overlaps_differ"),
)
COUNTED: Final = {
    direction: tuple(f"{direction}_{name}" for name in (*COUNTERS, "waiting_bytes")) for direction in Direction
}
CONNECTION_TYPE: Final = pa.struct(
    [
        ("community_id", pa.string()),
        ("client_address", pa.string()),
        ("client_port", pa.int32()),
        ("server_address", pa.string()),
        ("server_port", pa.int32()),
        ("started_at_ns", pa.int64()),
        ("last_at_ns", pa.int64()),
        ("opened", pa.string()),
        ("closed", pa.string()),
        ("dialect", pa.string()),
        ("dialect_reason", pa.string()),
        *((name, pa.int64()) for direction in Direction for name in COUNTED[direction]),
        ("window_packets", pa.int64()),
    ]
)
FINDING_TYPE: Final = pa.struct([("rule", pa.string()), ("severity", pa.string()), ("message", pa.string())])
#: The columns that all logs have in common.
COMMON: Final = (
    ("source", pa.string()),
    ("window_start", pa.string()),
    ("row_kind", pa.string()),
    ("connection_id", pa.binary()),
    ("capture_id", pa.binary()),
    ("record_number", pa.int64()),
    ("arrived_at_ns", pa.int64()),
    ("capture_arrived_at_ns", pa.int64()),
    ("direction", pa.string()),
    ("byte_start", pa.int64()),
    ("byte_end", pa.int64()),
    ("finding", FINDING_TYPE),
    ("raw", pa.binary()),
    ("connection", CONNECTION_TYPE),
    ("flow", pa.binary()),
    ("state", pa.string()),
)


def schema(own: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """The columns of a protocol's log: the common ones and its `own`."""
    return pa.schema([*COMMON, *own])


#: Columns for the location of a row. A row that only time causes has the record that was the last evidence, and the
#: time at which it became certain. Without any record, only the time is set.
_PLACED: Final = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")


_NO_RECORD: Any = SimpleNamespace(**dict.fromkeys(_PLACED))


def _placed(place: Place) -> tuple[int, int | None, bytes | None, int | None]:
    return place.order if place.capture_id else (place.arrived_at_ns, None, None, None)


def place_columns(places: Iterable[Place]) -> dict[str, pa.Array]:
    """The location columns for rows at `places`."""
    listed, types = list(places), dict(COMMON)
    recorded = [place if place.capture_id else _NO_RECORD for place in listed]
    columns = {name: list(map(attrgetter(name), recorded)) for name in _PLACED}
    columns["arrived_at_ns"] = [place.arrived_at_ns for place in listed]
    return {name: pa.array(column, types[name]) for name, column in columns.items()}


class Where(NamedTuple):
    """The range of bytes in one direction of a connection that a row is about."""

    direction: Direction
    byte_start: int
    byte_end: int


class Log:
    """Collects rows and gives them out as batches of `schema`.

    The attributes `source`, `window_start` and `connection_id` are copied to each row that is added.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.source = self.window_start = ""
        self.connection_id: bytes | None = None
        #: The client of the connection whose dialogue is being created.
        self.client: Endpoint | None = None
        self._rows: list[dict[str, Any]] = []
        #: Batches that wait: the earlier ones compressed, then the others, and how many rows the latter have.
        self._packed: list[pa.Buffer] = []
        self._batches: list[pa.RecordBatch] = []
        self._unpacked_rows = 0
        #: Cached columns of FEW_ROWS nulls, by type.
        self._few: dict[pa.DataType, pa.Array] = {}
        #: Number of rows that `take` would give, and the bytes in their `raw`.
        self.waiting = 0
        self._raw_bytes = 0

    @property
    def full(self) -> bool:
        """Whether enough rows wait to be taken."""
        return self.waiting >= BATCH_ROWS or self._raw_bytes >= BATCH_BYTES

    def add(self, kind: str, place: Place, where: Where | None = None, **content: Any) -> None:
        """Add a row of one of the log's kinds. `content` has further columns of the log."""
        row: dict[str, Any] = {
            "source": self.source,
            "window_start": self.window_start,
            "row_kind": kind,
            "connection_id": self.connection_id,
        }
        row.update(zip(_PLACED, _placed(place), strict=True))
        if where is not None:
            row |= {"direction": where.direction, "byte_start": where.byte_start, "byte_end": where.byte_end}
        row.update(content)
        self._rows.append(row)
        self.waiting += 1
        self._raw_bytes += len(row.get("raw") or b"")
        # A single run of bytes may have hundreds of thousands of frames, and rows are far smaller in an Arrow batch.
        if len(self._rows) >= BATCH_ROWS:
            self._close_rows()

    def find(self, rule: Rule, message: str, place: Place, where: Where | None = None, **content: Any) -> None:
        """Add a violation: a rule that was broken."""
        finding = {"rule": rule.id, "severity": rule.severity.value, "message": message}
        self.add(VIOLATION, place, where, finding=finding, **content)

    def add_batch(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        """Add rows of the connection, given as columns. Source, window and connection are filled in."""
        constant = {
            "source": repeated(self.source, rows),
            "window_start": repeated(self.window_start, rows),
            "connection_id": pa.repeat(pa.scalar(self.connection_id, pa.binary()), rows),
        }
        known = {**columns, **constant}
        arrays = [known.get(field.name) for field in self.schema]
        filled = [
            self._nulls(rows, field.type) if array is None else array
            for field, array in zip(self.schema, arrays, strict=True)
        ]
        self._close_rows()
        self._keep(pa.RecordBatch.from_arrays(filled, schema=self.schema))
        self.waiting += rows

    def _nulls(self, rows: int, kind: pa.DataType) -> pa.Array:
        """A column of nulls. Short ones are slices of a cached one: for nested types, nulls are slow to create."""
        if rows > FEW_ROWS:
            return pa.nulls(rows, kind)
        if kind not in self._few:
            self._few[kind] = pa.nulls(FEW_ROWS, kind)
        return self._few[kind].slice(0, rows)

    def take(self) -> Iterator[pa.RecordBatch]:
        """The collected rows, in the order in which they were added. The log is empty afterwards."""
        self._close_rows()
        packed, batches = self._packed, self._batches
        self._packed, self._batches = [], []
        self.waiting = self._raw_bytes = self._unpacked_rows = 0
        for buffer in packed:
            yield from unpack(buffer, self.schema)
        yield from batches

    def _close_rows(self) -> None:
        if self._rows:
            known, rows = set().union(*self._rows), self._rows
            arrays = [
                pa.array([row.get(field.name) for row in rows], field.type)
                if field.name in known
                else pa.nulls(len(rows), field.type)
                for field in self.schema
            ]
            self._rows = []
            self._keep(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._unpacked_rows += batch.num_rows
        if self._unpacked_rows > MOST_WAITING:
            self._packed.append(pack(pa.Table.from_batches(self._batches)))
            self._batches, self._unpacked_rows = [], 0


def pack(rows: pa.Table) -> pa.Buffer:
    """The rows, compressed, without columns that are all null: cached nulls share memory, unpacked ones wouldn't."""
    filled = [
        name for name, column in zip(rows.column_names, rows.columns, strict=True) if column.null_count < len(column)
    ]
    table, sink = rows.select(filled), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_PACKED) as stream:
        stream.write_table(table, max_chunksize=BATCH_ROWS)
    return sink.getvalue()


def unpack(packed: pa.Buffer, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows that `pack` compressed, as batches of `schema`."""
    for batch in pa.ipc.open_stream(packed):
        columns = {name: batch.column(name) for name in batch.schema.names}
        arrays = [columns[one.name] if one.name in columns else pa.nulls(batch.num_rows, one.type) for one in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class Dialogue(Protocol):
    """A protocol's reader of one connection. It adds its rows to the log that it was created with."""

    def receive(self, pieces: Sequence[Data]) -> None:
        """Read bytes of both directions, in order of arrival."""

    def hole(self, hole: Hole) -> None:
        """Handle bytes that were lost."""

    def doubt(self, place: Place) -> None:
        """Handle a doubt: nobody knows which side sent its next bytes first."""

    def close(self, closed: Closed) -> None:
        """Handle the end of the connection. Nothing follows it."""

    def conclude(self) -> None:
        """Add a row for each entity that changed. Called at the end of a window or of the connection."""

    @property
    def dialect(self) -> tuple[str | None, str | None]:
        """The dialect of the connection and how it was recognised; None if unknown, or if the protocol has only one."""

    def unread_from(self, direction: Direction) -> int:
        """The position of the first byte that a message's row may still need: of an unfinished message, or a held one.

        Nobody asks about the bytes before it any more: what their sender had received, and whether they came late.
        """

    def snapshot(self) -> str:
        """The state from which another dialogue continues."""


#: Creates the dialogue of a connection with a server, and from a snapshot to continue one.
Start = Callable[[Log, Connection, Endpoint, str | None], Dialogue]


class Gathering(Protocol):
    """The state shared by the dialogues of all connections between two addresses."""

    def start(self, log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        """Create a dialogue, like `Start`."""

    def conclude(self) -> None:
        """Add a row for each changed entity that doesn't belong to a single connection, at the end of a window."""

    def snapshot(self) -> str | None:
        """The shared state to carry to the next window; None if there is none."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Marks a protocol whose dialogues share state.

    `begin` creates the state shared between two addresses, and continues from a snapshot if one is given.
    """

    begin: Callable[[Log, str | None], Gathering]


class Seal(Protocol):
    """Encrypts carried state, because it holds captured bytes that may contain secrets."""

    def close(self, text: str, about: bytes) -> str:
        """Encrypt `text`. Equal texts with the same `about` give equal results."""

    def open(self, sealed: str, about: bytes) -> str:
        """Decrypt a result of `close`."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window: its name, and its last nanosecond."""

    name: str
    end_ns: int
