"""Finds where frames begin in the middle of a connection: where a row of frames of one dialect fits.

A frame fits if its length is sane, its side may send it, and its fields end where it ends. A compiled loop walks the
layouts of dialects.py, written as numbers. It reads only lengths, counts and flags of a frame. The bytes that it reads
again when more have come are bounded, so the time of a search is linear in the number of bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.compiled.jit import compiled, inlined, wide
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import DIALECTS, SEED, SEED_SID, V2A, V2B, V3, ByteOrder, Dialect, Field, Form
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    EosMessage,
    Error,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    WorkersLeft,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES

Array = np.ndarray[Any, Any]

#: Number of frames in a row that make a start credible.
FRAMES_IN_A_ROW: Final = 8
#: Maximum length of a frame at which a start is found.
RESYNC_LIMIT: Final = 1 << 16
#: The readings that are tried at each offset; v2a and v2b differ in frames that are rare.
READINGS: Final = (V3, V2B, V2A, SEED_SID, SEED)
#: Frames that each side may send; ERROR and WORKERS_LEFT come from both. The connector is the client, but with a sink
#: Wallaroo itself is.
FRAMES_OF: Mapping[Direction, frozenset[type[Frame]]] = {
    Direction.CLIENT: frozenset({Hello, Error, Notify, Message, EosMessage, WorkersLeft}),
    Direction.SERVER: frozenset({Ok, Error, NotifyAck, Ack, Nack, Restart, WorkersLeft}),
}


class Start(NamedTuple):
    """The start of frames: `offset` bytes come before. Not `found`: these can be given up, and more data is needed."""

    offset: int
    found: bool
    byte_order: ByteOrder
    #: Number of bytes from `offset` on that are needed to decide, if it isn't found.
    needed: int = 0


def resynchronise(
    data: bytes | bytearray | memoryview,
    direction: Direction,
    dialects: tuple[Dialect, ...] = READINGS,
    *,
    final: bool = False,
    credible: Callable[[int], bool] | None = None,
) -> Start:
    """The first offset from which a row of frames of one dialect fits exactly: known tag, sane length, no rule broken.

    With `final` no more data comes, and a shorter row that reaches the end will do, if the row that begins at its
    offset is `credible`. Bytes up to an offset that isn't found need not be offered again.
    """
    held = np.frombuffer(data, np.uint8)
    held.setflags(write=False)
    tables = _tables(direction, *(dialect.name for dialect in dialects))
    begin = 0
    while True:
        offset, frames, reading, needed = _search(held[begin:], final, *tables)
        begin += offset
        if not 0 < frames < FRAMES_IN_A_ROW or credible is None or credible(begin):
            return Start(begin, frames > 0, dialects[reading].byte_order, needed)
        begin += 1


# Layouts as numbers

#: Columns of a field: how it is written, how many bytes it or the number before it has, the flags that it is written
#: with or without, how many fields that follow are those of an entry, and the size of an entry, 0 if that varies.
_FORM, _SIZE, _WITH, _WITHOUT, _PARTS, _ENTRY_BYTES = range(6)
_FIXED, _PREFIXED, _REST, _COUNTED, _TO_END, _FLAGS = range(6)
_SIZES: Mapping[Form, tuple[int, int]] = {
    Form.U8: (_FIXED, 1),
    Form.U16: (_FIXED, 2),
    Form.U32: (_FIXED, 4),
    Form.U64: (_FIXED, 8),
    Form.I64: (_FIXED, 8),
    Form.SHORT: (_PREFIXED, 2),
    Form.SHORT_OR_NONE: (_PREFIXED, 2),
    Form.LONG: (_PREFIXED, 4),
    Form.REST: (_REST, 0),
    Form.REST_OR_NONE: (_REST, 0),
    Form.COUNTED: (_COUNTED, 4),
    Form.TO_END: (_TO_END, 0),
}
#: Forms of the version in a HELLO of the text: 16 bytes, a short string, u16, u32, u64.
_VERSIONS: Final = ((_FIXED, 16), (_PREFIXED, 2), (_FIXED, 2), (_FIXED, 4), (_FIXED, 8))


class _Tables(NamedTuple):
    """The dialects as numbers for the loop, by their position."""

    little: Array
    limits: Array
    #: Bits of a MESSAGE that may be set, and pairs that may not.
    flags: Array
    forbidden: Array
    #: First layout of a frame and the end of its layouts, by tag; none if this side doesn't send it.
    layouts_of: Array
    #: First field and end of each layout.
    layouts: Array
    fields: Array


@functools.lru_cache(maxsize=64)
def _tables(direction: Direction, *names: str) -> _Tables:
    dialects = [DIALECTS[name] for name in names]
    fields: list[tuple[int, ...]] = []
    layouts: list[tuple[int, int]] = []
    layouts_of = np.zeros((len(dialects), 256, 2), np.int64)
    for number, dialect in enumerate(dialects):
        for frame in FRAMES_OF[direction] & dialect.tags.keys():
            begin = len(layouts)
            for rows in _written(dialect.layouts[frame]):
                layouts.append((len(fields), len(fields) + len(rows)))
                fields += rows
            layouts_of[number, dialect.tags[frame]] = begin, len(layouts)
    most = max(len(dialect.forbidden_flags) for dialect in dialects)
    forbidden = np.zeros((len(dialects), most), np.int64)
    for number, dialect in enumerate(dialects):
        forbidden[number, : len(dialect.forbidden_flags)] = dialect.forbidden_flags
    return _Tables(
        np.array([dialect.byte_order == "little" for dialect in dialects]),
        np.array([min(WallarooOptions().limit(dialect, direction), RESYNC_LIMIT) for dialect in dialects], np.int64),
        np.array([dialect.flags or 0 for dialect in dialects], np.int64),
        forbidden,
        layouts_of,
        np.array(layouts, np.int64),
        np.array(fields, np.int64),
    )


def _written(layout: tuple[Field, ...]) -> list[list[tuple[int, ...]]]:
    """The ways in which a frame may be written, each as rows of `fields`."""
    open_version = bool(layout) and layout[0].form is Form.OPEN_VERSION
    rows = [row for field in layout[open_version:] for row in _rows(field)]
    return [[(*version, 0, 0, 0, 0), *rows] for version in _VERSIONS] if open_version else [rows]


def _rows(field: Field) -> list[tuple[int, ...]]:
    form, size = _SIZES[field.form]
    parts = [row for part in field.entry for row in _rows(part)]
    entry_bytes = sum(row[_SIZE] for row in parts) if all(row[_FORM] == _FIXED for row in parts) else 0
    if field.name == "flags":
        form = _FLAGS
    return [(form, size, int(field.only_with), int(field.only_without), len(parts), entry_bytes), *parts]


# The loop


@compiled
def _search(
    data: Array,
    final: bool,
    little: Array,
    limits: Array,
    flags: Array,
    forbidden: Array,
    layouts_of: Array,
    layouts: Array,
    fields: Array,
) -> tuple[int, int, int, int]:
    """Start, with the frames of the row, 0 if none was found, and the position of a dialect."""
    for offset in range(len(data)):
        waits, needed = -1, 0
        for reading in range(len(little)):
            frames, missing = _row(
                data,
                offset,
                little[reading],
                limits[reading],
                flags[reading],
                forbidden[reading],
                layouts_of[reading],
                layouts,
                fields,
            )
            if frames >= FRAMES_IN_A_ROW or (final and frames > 0 and missing > 0):
                return offset, frames, reading, 0
            if missing > 0 and not final:
                needed = missing if waits < 0 else min(needed, missing)
                waits = reading if waits < 0 else waits
        if waits >= 0:
            return offset, 0, waits, needed - offset
    return len(data), 0, 0, 0


@compiled
def _row(
    data: Array,
    at: int,
    little: bool,
    limit: int,
    flags: int,
    forbidden: Array,
    layouts_of: Array,
    layouts: Array,
    fields: Array,
) -> tuple[int, int]:
    """Number of frames that fit from `at` on, and the position up to which bytes are needed; 0 = no frame follows."""
    frames = 0
    while frames < FRAMES_IN_A_ROW and len(data) - at > LENGTH_BYTES:
        length = _number(data, at, LENGTH_BYTES, little)
        body = at + LENGTH_BYTES
        end = body + length
        if length == 0 or length > limit:
            return frames, 0
        begin, until = layouts_of[data[body]]
        reach = 0
        for layout in range(begin, until):
            needed = _reach(
                data, body + 1, end, fields[layouts[layout, 0] : layouts[layout, 1]], little, flags, forbidden
            )
            if needed > 0 and (reach == 0 or needed < reach):
                reach = needed
        if reach == 0 or reach > len(data):
            return frames, reach
        frames, at = frames + 1, end
    return frames, at + LENGTH_BYTES + 1


@compiled
def _reach(data: Array, at: int, end: int, fields: Array, little: bool, known: int, forbidden: Array) -> int:
    """The position up to which bytes show that the fields from `at` on end at `end`; 0 = they don't."""
    flags, number = 0, 0
    while number < len(fields) and at <= end:
        field, parts = fields[number], fields[number + 1 : number + 1 + fields[number, _PARTS]]
        number += 1 + len(parts)
        if flags & field[_WITHOUT] or (field[_WITH] and not flags & field[_WITH]):
            continue
        at += field[_SIZE]
        if field[_FORM] == _REST:
            at = end
        elif field[_FORM] == _TO_END:
            # The text writes no list whose entries vary.
            at = end if (end - at) % field[_ENTRY_BYTES] == 0 else end + 1
        elif field[_FORM] != _FIXED and at <= end:
            if at > len(data):
                return at
            value = _number(data, at - field[_SIZE], field[_SIZE], little)
            if field[_FORM] == _PREFIXED:
                at += value
            elif field[_FORM] == _FLAGS:
                flags = value
                at = at if _credible(flags, known, forbidden) else end + 1
            elif field[_ENTRY_BYTES]:
                at += value * field[_ENTRY_BYTES]
            else:
                at = _end_of_list(data, at, end, value, parts, little)
                if at < 0:
                    return -at
    return end if at == end else 0


@compiled
def _end_of_list(data: Array, at: int, end: int, count: int, parts: Array, little: bool) -> int:
    """The end of a list of `count` entries; beyond `end` if it doesn't fit, negative if more bytes are needed."""
    # The announced count only bounds a loop that stops at the end of the frame.
    for _ in range(count):
        for part in range(len(parts)):
            size = parts[part, _SIZE]
            at += size
            if at > end:
                return at
            if parts[part, _FORM] == _PREFIXED:
                if at > len(data):
                    return -at
                at += _number(data, at - size, size, little)
    return at


@inlined
def _credible(flags: int, known: int, forbidden: Array) -> bool:
    """Whether all flags are known, and no forbidden pair is set."""
    credible = not flags & ~known
    for pair in forbidden:
        if pair and flags & pair == pair:
            credible = False
    return credible


@inlined
def _number(data: Array, at: int, size: int, little: bool) -> int:
    """The unsigned number of `size` bytes at `at`."""
    value = wide(0)
    for place in range(size):
        octet = wide(data[at + (size - 1 - place if little else place)])
        value = value << 8 | octet
    return value
