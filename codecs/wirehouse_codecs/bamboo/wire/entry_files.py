"""Reads files of Bamboo entries piece by piece: JSON Lines with payloads, or a concatenation of entries.

A line is an object with `entry_hex`, and `payload_hex` if it has the payload. Other names are ignored, because an entry
contains all its fields. A binary file has nothing between entries, and no payloads.

Only empty lines are dropped. Bytes that are no entry become a record with the reason. Damage ends with its line. Each
piece of an overlong line is such a record. In a binary file, reading continues at the next position where a complete,
correctly encoded entry begins.
"""

from __future__ import annotations

import binascii
import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from wirehouse_codecs.bamboo.wire.entries import END_OF_LOG, MAX_ENTRY_BYTES, REGULAR, Entry, begins_right, end_of, find
from wirehouse_codecs.captures.compressed_output import opened

#: A longer line is damaged.
MAX_LINE_BYTES: Final = 64 << 20
#: Maximum size of a damaged record of a binary file, or of a line that is too long; the bytes after it are another.
MAX_DAMAGE_BYTES: Final = 1 << 20
#: A line with more values than this is damaged: each takes many times the memory of its bytes.
MOST_VALUES: Final = 10_000
_FIRST_BYTES: Final = (REGULAR, END_OF_LOG)
#: Names in lines of broker messages, one of which stands at the begin of the first.
_OF_MESSAGES: Final = (b'"key_b64"', b'"value_b64"')
_TOO_LONG: Final = "a line of more than {} bytes"


class Record(NamedTuple):
    """An entry of a file, not judged; or bytes that are none."""

    #: Its position in the file.
    byte_start: int
    byte_end: int
    #: The bytes as they came: a line, or an entry.
    data: bytes
    #: None: `data` is damaged.
    entry: bytes | None = None
    payload: bytes | None = None
    #: Why it is no entry.
    damage: str | None = None


class EntryReader(Protocol):
    """Takes a file piece by piece."""

    def receive(self, data: bytes) -> list[Record]:
        """The records that `data` completes, in order; empty = more needed."""
        ...

    def finish(self) -> list[Record]:
        """What is left at the end of the file."""
        ...


def reader_for(start: bytes) -> EntryReader:
    """The reader for a file that begins with `start`: of the form of which there is an entry, damage may be before it.

    If there is none: an entry begins with byte 0 or 1, a line with neither.
    """
    is_binary = find(start) >= 0 or (start[:1] and start[0] in _FIRST_BYTES and not _has_lines(start))
    return BinaryEntries() if is_binary else EntryLines()


def read(pieces: Iterable[bytes]) -> Iterator[Record]:
    """The records of a file of either form."""
    reader: EntryReader | None = None
    for piece in pieces:
        if piece:
            reader = reader or reader_for(piece)
            yield from reader.receive(piece)
    if reader is not None:
        yield from reader.finish()


def begins_entries(start: bytes) -> bool:
    """Whether the first bytes of a file may be entries: one of either form is there, or the begin of one."""
    reader = reader_for(start)
    if isinstance(reader, BinaryEntries):
        return find(start) >= 0 or begins_right(start, 0)[0]
    if b"\n" in start:
        return _has_lines(start)
    # A line that goes on beyond `start`: its names show whether it is an entry or a broker's message.
    return _begins_object(start) and (b'"entry_hex"' in start or not any(name in start for name in _OF_MESSAGES))


def why_not(start: bytes) -> str:
    """Why a file that begins with `start` has no entries: of JSON Lines, what its first line lacks."""
    records = EntryLines().receive(start if start.endswith(b"\n") else start + b"\n") if _begins_object(start) else []
    reason = next((one.damage for one in records), None)
    return "neither JSON Lines of entries nor binary ones, plain or compressed by gzip or zstd" + (
        "" if reason is None else f"; its first line: {reason}"
    )


def _has_lines(start: bytes) -> bool:
    return any(record.entry is not None for record in EntryLines().receive(start))


class Written(NamedTuple):
    """An entry as it is written to a file, right or not."""

    data: bytes
    payload: bytes | None = None


def write_lines(entries: Iterable[Written], path: Path) -> int:
    """Write a file of lines. Returns how many entries."""
    return _write((_line({"entry_hex": one.data, "payload_hex": one.payload}) for one in entries), path)


def write_binary(entries: Iterable[Written], path: Path) -> int:
    """Write a binary file, which has no payloads. Returns how many entries."""
    return _write((one.data for one in entries), path)


def _write(pieces: Iterable[bytes], path: Path) -> int:
    count = 0
    with opened(path) as file:
        for piece in pieces:
            file.write(piece)
            count += 1
    return count


def line(entry: Entry, payload: bytes | None) -> bytes:
    """A line of a file."""
    fields = {"author": entry.author, "entry_hex": entry.encode(), "payload_hex": payload}
    return _line({**fields, "log_id": str(entry.log_id), "seq": entry.seq})


def _line(fields: Mapping[str, object]) -> bytes:
    """The line of an object; bytes are written in hexadecimal."""
    named = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
    return json.dumps(named, separators=(",", ":"), sort_keys=True).encode() + b"\n"


class EntryLines:
    """JSON Lines. Empty lines are passed over."""

    def __init__(self) -> None:
        #: Where the line begins that isn't whole, of which a part may have been given as damaged.
        self._at = 0
        self._line = bytearray()
        self._too_long = False

    def receive(self, data: bytes) -> list[Record]:
        """See EntryReader."""
        records = []
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            records += self._take(data[begin : end + 1])
            records += self.finish()
            begin = end + 1
        return records + self._take(data[begin:])

    def finish(self) -> list[Record]:
        """See EntryReader."""
        text, too_long = bytes(self._line), self._too_long
        self._line, self._too_long = bytearray(), False
        start, self._at = self._at, self._at + len(text)
        if too_long:
            return [_damage(start, text, _TOO_LONG.format(MAX_LINE_BYTES))] if text else []
        if not text.strip():
            return []
        read = _read_line(text)
        return [_damage(start, text, read) if isinstance(read, str) else Record(start, self._at, text, *read)]

    def _take(self, data: bytes) -> list[Record]:
        """Add to the line. Of one that is too long, the pieces that are there."""
        self._line += data
        self._too_long = self._too_long or len(self._line) > MAX_LINE_BYTES
        records = []
        while self._too_long and len(self._line) >= MAX_DAMAGE_BYTES:
            records.append(_damage(self._at, bytes(self._line[:MAX_DAMAGE_BYTES]), _TOO_LONG.format(MAX_LINE_BYTES)))
            del self._line[:MAX_DAMAGE_BYTES]
            self._at += MAX_DAMAGE_BYTES
        return records


def content(data: bytes) -> tuple[bytes, bytes | None]:
    """Entry and payload, if any, of the `data` of a record that isn't damaged."""
    read = _read_line(data) if _begins_object(data) else ""
    return (data, None) if isinstance(read, str) else read


def _begins_object(text: bytes) -> bool:
    return text.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{"


def _read_line(text: bytes) -> tuple[bytes, bytes | None] | str:
    """Entry and payload of a line, or why it has none."""
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        return f"a line of more than {MOST_VALUES} values"
    try:
        # Decoding first: json.loads would accept bytes in other encodings too.
        row = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(row, dict):
        return "no JSON object"
    if "entry_hex" not in row:
        return "no entry_hex"
    texts = [row["entry_hex"], row.get("payload_hex")]
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
            records.append(Record(self._at, end, data, data) if cut else _damage(self._at, data))
        return records

    def _read(self, least: int) -> list[Record]:
        """The records that can be read while at least `least` bytes are left."""
        records: list[Record] = []
        data, at = self._buffer, 0
        while len(data) - at - self._damaged >= least:
            if not self._damaged:
                right, end = begins_right(data, at)
                if right and end is None:
                    break
                end = end if right else _end_before_entry(data, at)
                if end is not None:
                    entry = data[at:end]
                    records.append(Record(self._at + at, self._at + end, entry, entry))
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


def _damage(start: int, data: bytes, reason: str = "no entry") -> Record:
    return Record(start, start + len(data), data, damage=reason)


def _end_before_entry(data: bytes, at: int) -> int | None:
    """Where the entry at `at` ends that is not correctly encoded, if right after it comes one that is, or nothing."""
    end = end_of(data, at)
    if end is None or end == len(data):
        return end
    right, after = begins_right(data, end)
    return end if right and after is not None else None
