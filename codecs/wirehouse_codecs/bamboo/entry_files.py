"""Files of bamboo entries, as they are read piece by piece: JSON Lines with payloads, or entries one after the other.

The lines are objects with `entry_hex`, and `payload_hex` where the payload is at hand; other names are not read, for an
entry says itself what it is. In a binary file nothing stands between entries, and there are no payloads.

Nothing is lost: what is no entry is a record with the reason. A line that is damaged ends with its line. In a binary
file what follows is read again from the next place on where all of a rightly encoded entry stands.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from wirehouse_codecs.bamboo.entries import END_OF_LOG, MAX_ENTRY_BYTES, REGULAR, Entry, begins_right, end_of, find

#: A longer line is damaged.
MAX_LINE_BYTES: Final = 64 << 20
#: A damaged record of a binary file has at most so many bytes; what follows is another one.
MAX_DAMAGE_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = (REGULAR, END_OF_LOG)


class Record(NamedTuple):
    """An entry of a file, not judged; or bytes that are none."""

    #: Where it stands in the file.
    byte_start: int
    byte_end: int
    #: None: `data` is damaged.
    entry: bytes | None
    payload: bytes | None
    #: Why it is no entry, and what it is; of a line that is too long, only its begin.
    damage: str | None = None
    data: bytes = b""


class EntryReader(Protocol):
    """Takes a file piece by piece."""

    def receive(self, data: bytes) -> list[Record]:
        """The records that `data` completes, in order; empty = more needed."""
        ...

    def finish(self) -> list[Record]:
        """What is left at the end of the file."""
        ...


def reader_for(start: bytes) -> EntryReader:
    """The reader for a file that begins with `start`: an entry begins with byte 0 or 1, a line with neither."""
    return BinaryEntries() if start[:1] and start[0] in _FIRST_BYTES else EntryLines()


def read(pieces: Iterable[bytes]) -> Iterator[Record]:
    """The records of a file of either form."""
    reader: EntryReader | None = None
    for piece in pieces:
        if piece:
            reader = reader or reader_for(piece)
            yield from reader.receive(piece)
    if reader is not None:
        yield from reader.finish()


def line(entry: Entry, payload: bytes | None) -> bytes:
    """A line of a file."""
    named = {
        "author": entry.author.hex(),
        "entry_hex": entry.encode().hex(),
        "log_id": str(entry.log_id),
        "payload_hex": None if payload is None else payload.hex(),
        "seq": entry.seq,
    }
    return json.dumps(named, separators=(",", ":")).encode() + b"\n"


class EntryLines:
    """JSON Lines. Empty lines are passed over."""

    def __init__(self) -> None:
        self._at = 0
        self._line = bytearray()
        #: How much of a line that is too long was passed over.
        self._passed = 0

    def receive(self, data: bytes) -> list[Record]:
        """See EntryReader."""
        records = []
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            self._take(data[begin : end + 1])
            records += self._end()
            begin = end + 1
        self._take(data[begin:])
        return records

    def finish(self) -> list[Record]:
        """See EntryReader."""
        return self._end()

    def _take(self, data: bytes) -> None:
        self._line += data[: max(0, MAX_LINE_BYTES + 1 - len(self._line))]
        self._passed += len(data)

    def _end(self) -> list[Record]:
        text, size, start = bytes(self._line), self._passed, self._at
        self._line, self._passed, self._at = bytearray(), 0, start + size
        if size > MAX_LINE_BYTES:
            return [Record(start, start + size, None, None, f"a line of {size} bytes", text)]
        if not text.strip():
            return []
        read = _read_line(text)
        if isinstance(read, str):
            return [Record(start, start + size, None, None, read, text)]
        return [Record(start, start + size, *read)]


def _read_line(text: bytes) -> tuple[bytes, bytes | None] | str:
    """Entry and payload of a line, or why it has none."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(row, dict):
        return "no JSON object"
    texts = [row.get("entry_hex"), row.get("payload_hex")]
    if not isinstance(texts[0], str) or not isinstance(texts[1], str | None):
        return "entry_hex and payload_hex are no texts"
    try:
        entry, payload = (None if text is None else binascii.unhexlify(text) for text in texts)
    except ValueError:
        return "entry_hex or payload_hex is not hexadecimal"
    return entry or b"", payload


class BinaryEntries:
    """Entries one after the other, without payloads."""

    def __init__(self) -> None:
        #: Where the buffer begins in the file.
        self._at = 0
        self._buffer = b""
        #: The first bytes of the buffer are known to be in no entry.
        self._damaged = 0

    def receive(self, data: bytes) -> list[Record]:
        """See EntryReader."""
        self._buffer += data
        # What is decided on one entry also depends on the next one.
        return self._read(2 * MAX_ENTRY_BYTES)

    def finish(self) -> list[Record]:
        """See EntryReader."""
        records, data = self._read(1), self._buffer
        if data:
            cut = not self._damaged and begins_right(data, 0)[0]
            end = self._at + len(data)
            records.append(Record(self._at, end, data, None) if cut else _damage(self._at, data))
        return records

    def _read(self, least: int) -> list[Record]:
        """The records that can be told while at least so many bytes are left."""
        records: list[Record] = []
        data, at = self._buffer, 0
        while len(data) - at - self._damaged >= least:
            if not self._damaged:
                right, end = begins_right(data, at)
                if right and end is None:
                    break
                end = end if right else _end_before_entry(data, at)
                if end is not None:
                    records.append(Record(self._at + at, self._at + end, data[at:end], None))
                    at = end
                    continue
            begin = find(data, at + self._damaged)
            # An entry that begins near the end may be whole when more is received.
            self._damaged = begin - at if begin >= 0 else len(data) - at - least + 1
            while self._damaged >= (1 if begin >= 0 else MAX_DAMAGE_BYTES):
                size = min(self._damaged, MAX_DAMAGE_BYTES)
                records.append(_damage(self._at + at, data[at : at + size]))
                at += size
                self._damaged -= size
        self._buffer, self._at = data[at:], self._at + at
        return records


def _damage(start: int, data: bytes) -> Record:
    return Record(start, start + len(data), None, None, "no entry", data)


def _end_before_entry(data: bytes, at: int) -> int | None:
    """Where the entry at `at` ends that is not rightly encoded, if right after it comes one that is, or nothing."""
    end = end_of(data, at)
    if end is None or end == len(data):
        return end
    right, after = begins_right(data, end)
    return end if right and after is not None else None
