"""Compiled loops over bytes: items of a run, which `cutting.read_item` reads on the reference path, and DATA frames,
which `http2.Reader` also takes one by one.
"""

from __future__ import annotations

from typing import Any, Final

from wirehouse_codecs.compiled.jit import compiled, wide

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
        elif (shift == 56 and byte & 0x7F) or byte & 1:
            # Bits above the 64th are lost.
            number |= wide(1) << 62
        if byte < 0x80:
            return number, here
        shift += 7
        if shift == 70:
            return 0, -BAD
    return 0, -MORE


@compiled
def _field(data: Any, at: int, end: int) -> tuple[int, int, int, int]:
    """Number and wire type of the field at `at`, where its value begins and where it ends, or -MORE or -BAD."""
    tag, body = _varint(data, at, end)
    number = tag >> 3
    form = tag & 7
    if body < 0:
        return 0, 0, 0, body
    if number == 0 or number > _MOST_NUMBER:
        return 0, 0, 0, -BAD
    length = wide(0)
    if form <= _LEN and form != _I64:
        length, body = _varint(data, body, end)
        if body < 0:
            return 0, 0, 0, body
        if form == _VARINT:
            length = wide(0)
    elif form == _I64:
        length = wide(8)
    elif form == _I32:
        length = wide(4)
    else:
        return 0, 0, 0, -BAD
    return number, form, body, body + length if length <= end - body else -MORE


@compiled
def walk(data: Any, begin: int, end: int, out: Any) -> tuple[int, int, int, int, int]:
    """Items of the run from `begin` on: how many, where the walk stopped and why, how many other fields there are, and
    how many items have several fields.

    `out` takes START, BODY, END and NUMBER of each item as int32, so `data` has less than 2 GiB.
    """
    at = wide(begin)
    stop = wide(end)
    count = wide(0)
    unknown = wide(0)
    several = wide(0)
    while at < stop:
        if count == out.shape[1]:
            return count, at, FULL, unknown, several
        number, form, body, over = _field(data, at, stop)
        if over < 0:
            return count, at, -over, unknown, several
        if number != 1 or form != _LEN:
            unknown += 1
            at = over
            continue
        kind = wide(0)
        if body < over:
            first, kind_form, _, first_over = _field(data, body, over)
            if first_over < 0:
                return count, at, BAD, unknown, several
            if kind_form == _LEN:
                kind = first
            if first_over < over:
                several += 1
                while first_over < over:
                    _, _, _, first_over = _field(data, first_over, over)
                    if first_over < 0:
                        return count, at, BAD, unknown, several - 1
        out[START, count] = at
        out[BODY, count] = body
        out[END, count] = over
        out[NUMBER, count] = kind
        count += 1
        at = over
    return count, at, DONE, unknown, several


@compiled
def data_frames(
    data: Any, at: int, left: int, stream_id: int, limit: int, spans: Any
) -> tuple[int, int, int, int, int]:
    """Content of consecutive DATA frames of a stream, without flags and of 1 to `limit` bytes, until there is another.

    `left` bytes from `at` on are of a frame that has begun. `spans` takes where each content begins and ends. Returns
    how many of them and how many headers there are, where the loop ended, how much is left there of the last frame, and
    whether the last content is the end of its frame.
    """
    end = wide(len(data))
    here = wide(at)
    rest = wide(left)
    count = wide(0)
    headers = wide(0)
    over = wide(0)
    while count < len(spans):
        if rest == 0:
            if end - here < 9 or data[here + 3] != 0 or data[here + 4] != 0:
                break
            length = wide(data[here]) << 16 | wide(data[here + 1]) << 8 | wide(data[here + 2])
            number = wide(data[here + 5]) << 24 | wide(data[here + 6]) << 16
            number |= wide(data[here + 7]) << 8 | wide(data[here + 8])
            if length == 0 or length > limit or number != stream_id:
                break
            here += 9
            headers += 1
            rest = length
        taken = min(rest, end - here)
        if taken == 0:
            break
        spans[count, 0] = here
        spans[count, 1] = here + taken
        count += 1
        here += taken
        rest -= taken
        over = wide(rest == 0)
    return count, headers, here, rest, over
