"""Reads captured files of a protocol, such as block files and logs, into Arrow batches of bounded size.

One entry of a file (a block, an entry of a log) becomes one record. An entry longer than PIECE_BYTES becomes several
consecutive records, numbered by `part` from 0; `last` marks the final one. A protocol provides a `Cutter` that cuts
its files into entries, or a reader of its own that yields FileRecords.

Captured content never raises an exception. Bytes that can't be read become a record with `damaged` and the reason in
`damage`. If a record has both `data` and `damage`, the latter is the reason why its data ends early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple, Protocol

import pyarrow as pa

from wirehouse_codecs.captures.inflate import Ahead, fill, open_inflated
from wirehouse_codecs.captures.source import Origin

#: Maximum size of a record.
PIECE_BYTES: Final = 4 << 20
#: A capture is read in pieces of this size.
BLOCK_BYTES: Final = 1 << 20
#: Maximum length that is read of a long first line, to see what the file is.
FIRST_LINE_BYTES: Final = 24 << 20
#: A batch ends when it has this many rows, or this many bytes.
MOST_ROWS: Final = 4_096
BATCH_BYTES: Final = 4 << 20
INT64_MAX: Final = (1 << 63) - 1

FILE_SCHEMA: Final = pa.schema(
    [
        ("ts_ns", pa.int64()),
        ("name", pa.string()),
        ("part", pa.int32()),
        ("last", pa.bool_()),
        ("data", pa.binary()),
        ("damaged", pa.binary()),
        ("damage", pa.string()),
    ]
)


class FileRecord(NamedTuple):
    """A row of FILE_SCHEMA."""

    #: Nanoseconds since 1970 UTC, within 64 bits; None if the record has no time.
    ts_ns: int | None
    #: The path within an archive, else the name of the file.
    name: str
    data: bytes | None
    damaged: bytes | None = None
    damage: str | None = None
    part: int = 0
    last: bool = True


class Cut(NamedTuple):
    """The bytes of one entry, unchanged; or bytes that aren't an entry, with the reason."""

    data: bytes
    ts_ns: int | None = None
    reason: str | None = None


class Cutter(Protocol):
    """Cuts the bytes of one file into entries. Only separators, such as blank lines, are dropped."""

    #: Why the file can't be read to its end; None until that is known.
    damage: str | None

    def receive(self, data: bytes) -> Iterable[Cut]:
        """Add `data`, and return the entries that it completes."""
        ...

    def finish(self) -> Iterable[Cut]:
        """Return what is left at the end of the file."""
        ...


class Form(NamedTuple):
    """A file format: how to recognise it, and how to cut it into entries."""

    #: Given the first BLOCK_BYTES of a file, or all of a smaller one: why it isn't of this format; None if it is. If no
    #: line ends in them, there are up to FIRST_LINE_BYTES.
    refuse: Callable[[bytes], str | None]
    cutter: Callable[[Origin], Cutter]


class EntryCapture:
    """The entries of one file."""

    def __init__(self, form: Form, stream: BinaryIO, origin: Origin) -> None:
        """`stream` stands at the file's first byte."""
        self._source = Ahead(open_inflated(stream, origin.limits))
        self._origin = origin
        self._form = form
        start = self._source.look(BLOCK_BYTES)
        if b"\n" not in start:
            # A line of JSON, maybe, and the names that decide are at its end.
            start = self._source.look(FIRST_LINE_BYTES)
        self.unreadable = form.refuse(start) if start else None
        if self.unreadable and self._source.damage:
            self.unreadable = f"{self.unreadable}: {self._source.damage}"
        self.damage: str | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See source.Capture."""
        return gathered(self._records() if self.unreadable is None else ())

    def _records(self) -> Iterator[FileRecord]:
        cutter = self._form.cutter(self._origin)
        while piece := fill(self._source, BLOCK_BYTES):
            for cut in cutter.receive(piece):
                yield from _in_pieces(cut, self._origin.name)
        for cut in cutter.finish():
            yield from _in_pieces(cut, self._origin.name)
        self.damage = "; ".join(filter(None, (cutter.damage, self._source.damage))) or None


def _in_pieces(cut: Cut, name: str) -> Iterator[FileRecord]:
    for at in range(0, max(len(cut.data), 1), PIECE_BYTES):
        piece, last = cut.data[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(cut.data)
        data, damaged = (piece, None) if cut.reason is None else (None, piece)
        yield FileRecord(cut.ts_ns, name, data, damaged, cut.reason, at // PIECE_BYTES, last)


def within_64_bits(ns: int) -> int:
    """`ns`, limited to the range of 64 bits."""
    return max(-INT64_MAX - 1, min(INT64_MAX, ns))


def gathered(records: Iterable[FileRecord]) -> Iterator[pa.RecordBatch]:
    """`records` as batches of FILE_SCHEMA."""
    held: list[FileRecord] = []
    size = 0
    for record in records:
        held.append(record)
        size += len(record.data or b"") + len(record.damaged or b"")
        if len(held) == MOST_ROWS or size >= BATCH_BYTES:
            yield to_batch(held)
            held, size = [], 0
    if held:
        yield to_batch(held)


def to_batch(records: list[FileRecord]) -> pa.RecordBatch:
    """`records` as a batch of FILE_SCHEMA."""
    arrays = [pa.array([getattr(one, field.name) for one in records], field.type) for field in FILE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)
