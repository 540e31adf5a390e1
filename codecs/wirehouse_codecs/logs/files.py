"""Turns the records of landed files into the rows of a protocol's log. All protocols with files share it.

The input is the records of one file after the other, in order of arrival; a long record comes in pieces. The
protocol's `Reading` receives them and adds its rows to a `Log` (logs.rows). Bytes that landing couldn't read are
quarantined. If a file continues in the next window, its reading is stored as state and restored there. A file ends
when nothing of it arrived for TcpOptions.idle_ns. Spark runs this for each file, `inspect` runs it in memory; both get
the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from wirehouse_codecs.captures.rules import RULE
from wirehouse_codecs.core.errors import StateDamagedError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import NO_STATE, SnapshotCodec
from wirehouse_codecs.logs.rows import QUARANTINE, STATE, Log, Seal, Window
from wirehouse_codecs.tcp.options import TcpOptions

ID_BYTES: Final = 16
#: Columns of bronze.files, plus the id of the file and its carried state.
FILE_COLUMNS: Final = (
    *("source", "flow", "window_start", "state"),
    *("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "name", "part", "last", "data"),
    *("damaged", "damage"),
)


class Piece(NamedTuple):
    """A landed record, or a part of a long one."""

    place: Place
    #: The path within the archive, or the name of the file.
    name: str
    part: int
    last: bool
    data: bytes
    #: Why it ends early; None if it doesn't.
    damage: str | None
    #: Number of bytes of the file that were landed before its first byte.
    byte_start: int


class Reading(Protocol):
    """A protocol's reader of one file. It adds its rows to the log that it was created with."""

    def receive(self, piece: Piece) -> None:
        """Read the next piece."""

    def finish(self, place: Place) -> None:
        """Handle the end of the file."""

    def snapshot(self) -> str | None:
        """The state from which another reading continues; None if the next record needs no state."""


#: Creates the reading of a file from its id, and from a snapshot to continue one.
Start = Callable[[Log, bytes, str | None], Reading]


def file_id(source: str, capture_id: bytes, name: str) -> bytes:
    """The id of a file, 16 bytes."""
    text = "\n".join((source, capture_id.hex(), name))
    return hashlib.sha256(text.encode()).digest()[:ID_BYTES]


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """How to read the files of a source, and the windows to fill."""

    start: Start
    idle_ns: int
    windows: tuple[Window, ...]
    seal: Seal | None = None


def read(
    batches: Iterable[pa.RecordBatch], sources: Mapping[str, SourceFiles], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of the log for `batches` of FILE_COLUMNS, which are sorted by source, id and arrival.

    If a file has state from the previous window, the first of its rows carries it.
    """
    log = Log(schema)
    file: _File | None = None
    for batch in batches:
        columns = [batch.column(name) for name in FILE_COLUMNS]
        # Rows are converted one at a time, because a batch of large pieces takes enough memory already.
        for row in range(batch.num_rows):
            source, key, window, state, *fields = (column[row].as_py() for column in columns)
            if file is None or not file.is_of(source, key):
                if file is not None:
                    file.finish()
                file = _File(log, source, sources[source], key, state)
            if state is None:
                file.receive(window, *fields)
            if log.full:
                yield from log.take()
    if file is not None:
        file.finish()
    yield from log.take()


def rows(batches: Iterable[pa.RecordBatch], start: Start, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """The rows of the log for one capture, given as `batches` of inspection.LANDED_FILES."""
    log = Log(schema)
    how = SourceFiles(start, TcpOptions().idle_ns, (_ALWAYS,))
    file: _File | None = None
    for batch in batches:
        for record in zip(*(batch.column(name).to_pylist() for name in FILE_COLUMNS[4:]), strict=True):
            key = file_id("", record[2], record[4])
            if file is None or not file.is_of("", key):
                if file is not None:
                    file.finish()
                file = _File(log, "", how, key, None)
            file.receive("", *record)
            if log.full:
                yield from (row for table in log.take() for row in table.to_pylist())
    if file is not None:
        file.finish()
    yield from (row for table in log.take() for row in table.to_pylist())


_ALWAYS: Final = Window("", 1 << 62)


@dataclass(slots=True)
class _Carried:
    """The carried state of a file: its last record, how many bytes were read, and the snapshot of its reading."""

    last: Place
    bytes: int
    reading: str


_CODEC: Final = SnapshotCodec(_Carried, what="file log", version=2)


class _File:
    """One file through consecutive windows. Raises StateVersionError or StateDamagedError for invalid state."""

    def __init__(self, log: Log, source: str, how: SourceFiles, key: bytes, state: str | None) -> None:
        self._log, self._source, self._how, self._key = log, source, how, key
        self._at = 0
        self._last: Place | None = None
        self._bytes = 0
        self._carried = state is not None
        log.source, log.window_start, log.connection_id = source, how.windows[0].name, None
        self._reading: Reading | None
        if state is None:
            self._reading = how.start(log, key, None)
        else:
            try:
                carried = _CODEC.read(state if how.seal is None else how.seal.open(state, key))
                self._last, self._bytes = carried.last, carried.bytes
                self._reading = how.start(log, key, carried.reading)
            except (*NO_STATE, StateDamagedError) as error:
                shown = f"{type(error).__name__}: {error}"
                raise StateDamagedError(what=f"the file {key.hex()}", reason=shown) from error
        self._touched = False

    def is_of(self, source: str, key: bytes) -> bool:
        return key == self._key and source == self._source

    def receive(self, window: str, *record: Any) -> None:
        """Handle the next record, which arrived in `window`. `record` has the FILE_COLUMNS from `arrived_at_ns` on."""
        while window > self._how.windows[self._at].name:
            self._end_window()
        arrived, capture_arrived, capture_id, number, name, part, last, data, damaged, damage = record
        place = Place(arrived, capture_arrived, capture_id, number)
        self._expire(arrived)
        if self._reading is None:
            self._reading = self._how.start(self._log, self._key, None)
        if data is None:
            self._log.connection_id = None
            self._log.add(QUARANTINE, place, finding=_damaged(damage), raw=damaged)
        else:
            self._reading.receive(Piece(place, name, part, last, data, damage, self._bytes))
        self._bytes += len(damaged if data is None else data)
        self._last, self._touched = place, True

    def finish(self) -> None:
        """End all remaining windows: no more of the file arrived in them."""
        while self._at < len(self._how.windows) and (self._touched or self._last is not None):
            self._end_window()

    def _end_window(self) -> None:
        window = self._how.windows[self._at]
        self._expire(window.end_ns)
        if self._touched:
            snapshot = None if self._reading is None else self._reading.snapshot()
            if snapshot is not None or self._carried:
                self._log.connection_id = None
                self._log.add(STATE, Place.before(window.end_ns), flow=self._key, state=self._state(snapshot))
            self._carried = snapshot is not None
            if not self._carried:
                self._last = None
        self._touched = False
        self._at += 1
        if self._at < len(self._how.windows):
            self._log.window_start = self._how.windows[self._at].name

    def _expire(self, ns: int) -> None:
        """End the file if, at `ns`, nothing of it has arrived for `idle_ns`."""
        if self._reading is None or self._last is None:
            return
        ends_ns = self._last.arrived_at_ns + self._how.idle_ns
        if ends_ns <= ns:
            self._reading.finish(replace(self._last, arrived_at_ns=ends_ns))
            self._reading, self._touched, self._last, self._bytes = None, True, None, 0

    def _state(self, snapshot: str | None) -> str | None:
        if snapshot is None or self._last is None:
            return None
        text = _CODEC.write(_Carried(self._last, self._bytes, snapshot))
        return text if self._how.seal is None else self._how.seal.close(text, self._key)


def _damaged(damage: str) -> dict[str, str]:
    rule = RULE["file_damaged"]
    return {"rule": rule.id, "severity": rule.severity.value, "message": damage}
