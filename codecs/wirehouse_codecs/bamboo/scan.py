"""Compiled loops that cut bytes into packets: the twins of bymux.Reader and of messages.ChannelReader for data.

They take many packets at once, as columns, and stop where something is odd: a number that is longer than it needs to
be, a byte that begins no packet, a payload that comes in pieces. The readable readers go on from there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.compiled import compiled, inlined, wide

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

#: So many packets are cut in one call.
MOST_PACKETS: Final = 1 << 16

_GLOBAL, _FIRST_UNASSIGNED = 0x10, 6
_CREDIT, _WRITE = 0, 1
#: First bytes on the data channel, and the sizes of what metadata is made of.
_SKIPS: Final = (4, 5, 6)
_SWITCH, _NOTIFY, _NOTIFY_COUNT, _SKIP_BYTES, _RAW, _COMPRESSED = 0, 2, 3, 7, 8, 9
_APOLOGY, _CANCELLED, _METADATA, _END_OF_LOG = 16, 32, 128, 129
_HASH, _SIGNATURE = 66, 64


class BymuxPackets(NamedTuple):
    """Packets of one direction of bymux, a row each. Places are in the bytes that were given."""

    #: The header byte: its first three bits are the type, 0x10 says that it is global.
    header: Array
    begin: Array
    #: Of a Write with its content, which may not have come in full.
    end: Array
    stream_id: Array
    amount: Array
    wide: Array
    #: Where the content of a Write begins, else the end.
    content: Array
    #: So many bytes were read.
    used: int


class DataPackets(NamedTuple):
    """Packets of one direction of the data channel, a row each. Places are in the bytes that were given."""

    #: The first byte: what packet it is.
    kind: Array
    begin: Array
    end: Array
    #: An id, a count, or the size of a payload.
    number: Array
    #: Where the bytes of a payload begin, or the hash in metadata; else the end.
    content: Array
    #: Metadata begins with a backlink.
    backlink: Array
    used: int


def cut_bymux(data: bytes | Array, most: int = MOST_PACKETS) -> BymuxPackets:
    """The packets that `data` begins with, up to a cut header or a type that is not assigned.

    The content of the last one may go on in what comes next: its end says how far.
    """
    read = _bytes(data)
    room = min(most, len(read))
    places = np.empty((3, room), np.int64)
    numbers = np.zeros((2, room), np.uint64)
    marks = np.empty((2, room), np.uint8)
    count, used = _cut_bymux(read, places, numbers, marks)
    begin, end, content = places[:, :count]
    stream_id, amount = numbers[:, :count]
    wide_ones = marks[1, :count].astype(np.bool_)
    return BymuxPackets(marks[0, :count], begin, end, stream_id, amount, wide_ones, content, used)


def cut_data(data: bytes | Array, piece_bytes: int, most: int = MOST_PACKETS) -> DataPackets:
    """The packets that `data` begins with, up to a cut or odd one, or a payload of more than `piece_bytes` bytes."""
    read = _bytes(data)
    room = min(most, len(read))
    places = np.empty((3, room), np.int64)
    numbers = np.zeros(room, np.uint64)
    marks = np.zeros((2, room), np.uint8)
    count, used = _cut_data(read, piece_bytes, places, numbers, marks)
    begin, end, content = places[:, :count]
    return DataPackets(marks[0, :count], begin, end, numbers[:count], content, marks[1, :count].astype(np.bool_), used)


def contents(data: bytes | Array, packets: BymuxPackets, stream_id: int) -> tuple[Array, Array, Array]:
    """What the Writes to a stream bring: all bytes in a row, and where each Write begins there and in `data`."""
    read = _bytes(data)
    is_global = packets.header & _GLOBAL != 0
    rows = np.flatnonzero((packets.header >> 5 == _WRITE) & ~is_global & (packets.stream_id == _WORD(stream_id)))
    begin = packets.content[rows]
    sizes = np.minimum(packets.end[rows], len(read)) - begin
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    _gather(read, begin, sizes, out)
    return out, starts, begin


def _bytes(data: bytes | Array) -> Array:
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)


@inlined
def big_endian(data: Array, at: int, size: int) -> Any:
    """The unsigned number of `size` bytes at `at`."""
    value = _WORD(0)
    for i in range(at, at + size):
        value = value << _WORD(8) | _WORD(data[i])
    return value


@inlined
def narrowest(value: Any) -> int:
    """The least width of a number of bymux, in bytes."""
    if value >> _WORD(32):
        return 8
    if value >> _WORD(16):
        return 4
    return 2 if value >> _WORD(8) else 1


@compiled
def _cut_bymux(data: Array, places: Array, numbers: Array, marks: Array) -> tuple[int, int]:
    """Fill the rows; how many there are, and how many bytes they are."""
    at, row = 0, 0
    while at < len(data) and row < places.shape[1]:
        header = wide(data[at])
        kind = header >> 5
        if kind >= _FIRST_UNASSIGNED:
            break
        id_width = 0 if header & _GLOBAL else 1 << (header >> 2 & 3)
        amount_width = 1 << (header & 3) if kind in (_CREDIT, _WRITE) else 0
        end = at + 1 + id_width + amount_width
        if end > len(data):
            break
        stream_id = big_endian(data, at + 1, id_width)
        amount = big_endian(data, at + 1 + id_width, amount_width)
        is_wide = (id_width > 0 and id_width != narrowest(stream_id)) or (
            amount_width > 0 and amount_width != narrowest(amount)
        )
        places[0, row], places[2, row] = at, end
        numbers[0, row], numbers[1, row] = stream_id, amount
        marks[0, row], marks[1, row] = header, is_wide
        at = end
        if kind == _WRITE and id_width > 0:
            left = len(data) - end
            if amount > _WORD(left):
                # It goes on in what is received next; an end beyond all places is only told as far as it can be.
                places[1, row] = end + wide(min(amount, _WORD(1) << _WORD(62)))
                return row + 1, len(data)
            at += wide(amount)
        places[1, row] = at
        row += 1
    return row, at


@inlined
def _number(data: Array, at: int) -> tuple[Any, int]:
    """The canonical VarU64 at `at` and its end; an end of -1: it is cut or not canonical."""
    value, end = _WORD(0), -1
    if at < len(data):
        first = wide(data[at])
        if first < 248:
            value, end = _WORD(first), at + 1
        elif at + first - 246 <= len(data):
            value = big_endian(data, at + 1, first - 247)
            lead = wide(data[at + 1])
            if (first == 248 and lead >= 248) or (first > 248 and lead != 0):
                end = at + first - 246
    return value, end


@compiled
def _metadata_at(data: Array, at: int) -> tuple[Any, int, int]:
    """Payload size, the place of the payload's hash, and whether there is a backlink; a place of -1: cut or odd."""
    if at + 2 > len(data):
        return _WORD(0), -1, 0
    backlink = 1 if data[at] == 0 and data[at + 1] == 64 else 0
    size, end = _number(data, at + _HASH * backlink)
    if end < 0 or end + _HASH + _SIGNATURE > len(data) or data[end] != 0 or data[end + 1] != 64:
        return size, -1, backlink
    return size, end, backlink


@compiled
def _cut_data(data: Array, piece_bytes: int, places: Array, numbers: Array, marks: Array) -> tuple[int, int]:
    """Fill the rows; how many there are, and how many bytes they are."""
    at, row = 0, 0
    while at < len(data) and row < places.shape[1]:
        kind = wide(data[at])
        number, end, content, backlink = _WORD(0), at + 1, -1, 0
        if kind in (_METADATA, _END_OF_LOG):
            number, content, backlink = _metadata_at(data, at + 1)
            end = content + _HASH + _SIGNATURE if content >= 0 else -1
        elif kind in (_SWITCH, _NOTIFY_COUNT, _SKIP_BYTES, _CANCELLED):
            number, end = _number(data, at + 1)
        elif kind in (_RAW, _COMPRESSED):
            number, end = _number(data, at + 1)
            size = number
            if kind == _COMPRESSED and end >= 0:
                size, end = _number(data, end)
            content = end
            fits = end >= 0 and size <= _WORD(piece_bytes) and size <= _WORD(len(data) - end)
            end = end + wide(size) if fits else -1
        elif kind == _NOTIFY:
            number = _WORD(1)
        elif kind not in _SKIPS and kind != _APOLOGY:
            end = -1
        if end < 0:
            break
        places[0, row], places[1, row], places[2, row] = at, end, content if content >= 0 else end
        numbers[row] = number
        marks[0, row], marks[1, row] = kind, backlink
        at = end
        row += 1
    return row, at


@compiled
def _gather(data: Array, begin: Array, sizes: Array, out: Array) -> None:
    to = _WORD(0)
    for row in range(len(begin)):
        source = _WORD(begin[row])
        for i in range(_WORD(sizes[row])):
            out[to + i] = data[source + i]
        to += _WORD(sizes[row])
