"""Captures of entry files. A record is a line, or an entry of a binary file. Such captures have no timestamps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, Final

from wirehouse_codecs.bamboo.wire.entry_files import EntryReader, Record, begins_entries, reader_for, why_not
from wirehouse_codecs.captures.files import Cut, EntryCapture, Form
from wirehouse_codecs.captures.source import Origin


class EntryCutter:
    """Cuts a file into entries. A `captures.files.Cutter`."""

    damage: str | None = None

    def __init__(self, origin: Origin) -> None:
        self._next_ns = origin.start_ns
        self._reader: EntryReader | None = None

    def receive(self, data: bytes) -> Iterable[Cut]:
        """See Cutter."""
        self._reader = self._reader or reader_for(data)
        return map(self._cut, self._reader.receive(data))

    def finish(self) -> Iterable[Cut]:
        """See Cutter."""
        return map(self._cut, self._reader.finish()) if self._reader is not None else ()

    def _cut(self, record: Record) -> Cut:
        self._next_ns += 1
        return Cut(record.data, self._next_ns - 1, record.damage)


def _refuse(start: bytes) -> str | None:
    # A file of empty lines has no entry, as an empty one.
    return None if begins_entries(start) or not start.strip() else why_not(start)


ENTRIES: Final = Form(_refuse, EntryCutter)


def entry_capture(stream: BinaryIO, origin: Origin) -> EntryCapture:
    """The entries of a file of either form."""
    return EntryCapture(ENTRIES, stream, origin)
