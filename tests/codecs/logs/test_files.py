"""Files in the pieces that are landed, through windows: however they are cut the rows are the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from wirehouse_codecs.core.errors import StateDamagedError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.files import FILE_COLUMNS, Piece, SourceFiles, file_id, read
from wirehouse_codecs.logs.rows import MESSAGE, STATE, Log, Where, Window, schema
from wirehouse_codecs.tcp.endpoints import Direction

SCHEMA = schema([("text", pa.string())])
IDLE_NS = 25
KEY = file_id("source", b"capture", "a.log")
TYPES = pa.schema(
    [
        *(("source", pa.string()), ("flow", pa.binary()), ("window_start", pa.string()), ("state", pa.string())),
        *(("arrived_at_ns", pa.int64()), ("capture_arrived_at_ns", pa.int64()), ("capture_id", pa.binary())),
        *(("record_number", pa.int64()), ("name", pa.string()), ("part", pa.int32()), ("last", pa.bool_())),
        *(("data", pa.binary()), ("damaged", pa.binary()), ("damage", pa.string())),
    ]
)
#: Arrival, part, last, data or what couldn't be read.
RECORDS: list[tuple[int, int, bool, bytes | None]] = [
    *((1, 0, True, b"one"), (2, 0, False, b"tw"), (2, 1, True, b"o"), (9, 0, True, None), (12, 0, True, b"three")),
    *((30, 0, True, b"four"), (70, 0, True, b"five")),
]


class Words:
    """Tells each record with all that came before it, and how many there were at the end."""

    def __init__(self, log: Log, key: bytes, snapshot: str | None) -> None:
        self.log, self.told, self.held = log, snapshot or "", b""

    def receive(self, piece: Piece) -> None:
        self.held += piece.data
        if piece.last:
            self.told += f" {self.held.decode()}"
            where = Where(Direction.CLIENT, piece.byte_start, piece.byte_start + len(piece.data))
            self.log.add(MESSAGE, piece.place, where, text=self.told)
            self.held = b""

    def finish(self, place: Place) -> None:
        self.log.add(MESSAGE, place, text=f"{len(self.told.split())} words")

    def snapshot(self) -> str:
        return self.told


def batch(rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=TYPES)


def record(number: int, windows: list[Window]) -> dict[str, Any]:
    at, part, last, data = RECORDS[number]
    window = next(window.name for window in windows if at < window.end_ns)
    place = {"arrived_at_ns": at, "capture_arrived_at_ns": 1, "capture_id": b"capture", "record_number": number}
    damaged = {"damaged": b"??", "damage": "none"} if data is None else {"data": data}
    told = {"source": "source", "flow": KEY, "window_start": window, "name": "a.log", "part": part, "last": last}
    return told | place | damaged


def rows_of(ends: list[int], *, together: bool) -> list[dict[str, Any]]:
    """Rows of all records in windows that end so, computed at once or one window after another."""
    windows = [Window(f"{number:02}", end) for number, end in enumerate(ends)]
    steps = [windows] if together else [[window] for window in windows]
    state: str | None = None
    told: list[dict[str, Any]] = []
    for step in steps:
        names = {window.name for window in step}
        records = [record(number, windows) for number in range(len(RECORDS))]
        mine = [row for row in records if row["window_start"] in names]
        if state is not None:
            mine.insert(0, {"source": "source", "flow": KEY, "window_start": "", "state": state})
        sources = {"source": SourceFiles(Words, IDLE_NS, tuple(step))}
        for made in read([batch(mine)], sources, SCHEMA) if mine else ():
            for row in made.to_pylist():
                if row["row_kind"] == STATE:
                    state = row["state"]
                else:
                    told.append({name: value for name, value in row.items() if name != "window_start"})
    return told


def test_columns_are_those_that_are_read() -> None:
    assert tuple(TYPES.names) == FILE_COLUMNS


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "ends", [[200], [10, 200], [3, 8, 20, 40, 60, 90, 200], [5, 25, 26, 200], list(range(3, 201, 3))]
)
def test_windows_cut_anywhere_say_the_same(ends: list[int], together: bool) -> None:
    expected = rows_of([200], together=True)
    assert rows_of(ends, together=together) == expected
    assert [row["text"] for row in expected if row["row_kind"] == MESSAGE] == [
        *(" one", " one two", " one two three", " one two three four", "4 words", " five", "1 words")
    ]
    quarantined = [row for row in expected if row["row_kind"] == "quarantine"]
    assert [(row["raw"], row["finding"]["rule"]) for row in quarantined] == [(b"??", "capture.file_damaged")]


def test_bytes_are_counted_from_the_begin_of_the_file() -> None:
    starts = [row["byte_start"] for row in rows_of([8, 200], together=False) if row["byte_start"] is not None]
    assert starts == [0, 5, 8, 13, 0]


def test_state_that_is_none_is_said_so() -> None:
    window = Window("00", 200)
    rows = [{"source": "source", "flow": KEY, "window_start": "", "state": "[]"}, record(0, [window])]
    with pytest.raises(StateDamagedError):
        list(read([batch(rows)], {"source": SourceFiles(Words, IDLE_NS, (window,))}, SCHEMA))
