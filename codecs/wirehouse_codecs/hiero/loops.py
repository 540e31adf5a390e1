"""The walk over a run of block items as machine code; `items.read_item` is its readable twin."""

from __future__ import annotations

from typing import Any, Final

from wirehouse_codecs.compiled import compiled, wide

# Rows of the array of numbers, one column an item.
START: Final = 0
BODY: Final = 1
END: Final = 2
NUMBER: Final = 3
ROWS: Final = 4

# How a walk ends.
DONE: Final = 0
#: The array is full.
FULL: Final = 1
#: What is left is not a whole field.
MORE: Final = 2
#: What is left is none, or the item within it isn't.
BAD: Final = 3

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_MOST_NUMBER = (1 << 29) - 1


@compiled
def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """The number at `at` and where it ends, or -MORE or -BAD; of a huge one only that it is above all lengths."""
    number = wide(0)
    shift = wide(0)
    here = wide(at)
    while here < end:
        byte = wide(data[here])
        here += 1
        if shift < 56:
            number |= (byte & 0x7F) << shift
        elif byte & 0x7F:
            # Bits that are above any length; those above the 64th are lost.
            if shift == 56 or byte & 1:
                number |= wide(1) << 62
        if byte < 0x80:
            return number, here
        shift += 7
        if shift == 70:
            return 0, -BAD
    return 0, -MORE


@compiled
def _first_number(data: Any, at: int, end: int) -> int:
    """The number of the first field of an item: 0 for none that is a oneof's member, -1 for a broken one."""
    if at == end:
        return 0
    tag, at = _varint(data, at, end)
    number = tag >> 3
    if at < 0 or number == 0 or number > _MOST_NUMBER:
        return -1
    form = tag & 7
    if form == _LEN:
        length, at = _varint(data, at, end)
        return number if at >= 0 and length <= end - at else -1
    if form == _VARINT:
        _, at = _varint(data, at, end)
        return 0 if at >= 0 else -1
    size = 8 if form == _I64 else 4
    return 0 if (form == _I64 or form == _I32) and size <= end - at else -1


@compiled
def walk(data: Any, begin: int, end: int, out: Any) -> tuple[int, int, int, int]:
    """Items of the run from `begin` on: how many, where the walk stopped and why, and how many other fields there are.

    `out` takes START, BODY, END and NUMBER of each item as int32, so `data` has less than 2 GiB.
    """
    at = wide(begin)
    stop = wide(end)
    count = wide(0)
    unknown = wide(0)
    most = out.shape[1]
    while at < stop:
        if count == most:
            return count, at, FULL, unknown
        start = at
        if data[at] == 0x0A:
            number, form, at = wide(1), wide(_LEN), at + 1
        else:
            tag, at = _varint(data, at, stop)
            if at < 0:
                return count, start, -at, unknown
            number, form = tag >> 3, tag & 7
            if number == 0 or number > _MOST_NUMBER:
                return count, start, BAD, unknown
        if form == _LEN:
            length, at = _varint(data, at, stop)
        elif form == _VARINT:
            length, at = _varint(data, at, stop)
            length = wide(0)
        elif form == _I64:
            length = wide(8)
        elif form == _I32:
            length = wide(4)
        else:
            return count, start, BAD, unknown
        if at < 0:
            return count, start, -at, unknown
        if length > stop - at:
            return count, start, MORE, unknown
        if number != 1 or form != _LEN:
            unknown += 1
        else:
            kind = _first_number(data, at, at + length)
            if kind < 0:
                return count, start, BAD, unknown
            out[START, count] = start
            out[BODY, count] = at
            out[END, count] = at + length
            out[NUMBER, count] = kind
            count += 1
        at += length
    return count, at, DONE, unknown
