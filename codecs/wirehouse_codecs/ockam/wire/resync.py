"""Whether a message may begin somewhere: a length, routes, and a length of the payload that fits, in compiled loops.

routed.py reads routed messages. Here only lengths and counts are walked, and no objects are made, so that the time for
bytes that are no message depends only on their number. A result for some bytes stays true when more bytes follow.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.compiled.jit import compiled, wide
from wirehouse_codecs.ockam.wire.routed import MOST_HOPS, Envelope

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

#: Maximum length of the routes and of the payload's length in a frame that is looked for.
HEADER_BYTES: Final = 512
#: Hops of a route behind a length that is taken at its word; more are none.
MOST_CREDIBLE_HOPS: Final = 1024

_UNSIGNED, _BYTES, _ARRAY = 0, 2, 4
_UINT_BYTES: Final = 10
#: In place of the byte after it: there is none; more bytes have to be seen.
_NONE, _CUT = -1, -2


class Look(NamedTuple):
    """Whether a frame begins somewhere."""

    #: Where it ends; 0 = none begins, or with `needed`, it isn't known yet.
    end: int
    #: How many bytes of the data it takes to decide it.
    needed: int


class Found(NamedTuple):
    """Where frames begin: nowhere before `offset`, and there if `envelope` is how they are written."""

    offset: int
    envelope: Envelope | None
    #: How many bytes of the data it takes to know more.
    needed: int


def look(data: bytes | bytearray, at: int, envelope: Envelope, limit: int, *, searching: bool) -> Look:
    """Whether a frame begins at `at`, whose length is at most `limit`.

    Where one is looked for, its header must be short, and its routes such as are read.
    """
    return Look(*_look(_array(data), at, envelope is Envelope.CBOR32, limit, searching))


def find(
    data: bytes | bytearray, at: int, limits: dict[Envelope, int], announced: int, *, final: bool = False
) -> Found:
    """The first place from `at` on where a whole frame begins, and what follows it may be another.

    `limits` has the envelopes that come into question. At `announced`, where a length led, what may be one frame will
    do. With `final` no more bytes come, and the second may be cut.
    """
    bare, cbor = limits.get(Envelope.BARE16, 0), limits.get(Envelope.CBOR32, 0)
    offset, found, needed = _find(_array(data), at, bare, cbor, announced, final)
    return Found(offset, None if found < 0 else tuple(Envelope)[found], needed)


def first_lost(data: Array, bounds: Array, end: int, envelope: Envelope, limit: int) -> int:
    """The first of the frames between `bounds`, and of what is behind them up to `end`, that can't be a message; the
    number of `bounds` if there is none."""
    return int(_first_lost(data, bounds, end, envelope is Envelope.CBOR32, limit))


def _array(data: bytes | bytearray) -> Array:
    held = np.frombuffer(data, np.uint8)
    held.setflags(write=False)
    return held


@compiled
def _first_lost(data: Array, bounds: Array, end: int, cbor: bool, limit: int) -> int:
    seen = data[:end]
    for frame in range(len(bounds)):
        found, needed = _look(seen, bounds[frame], cbor, limit, False)
        if found == 0 and needed == 0:
            return frame
    return len(bounds)


@compiled
def _find(data: Array, at: int, bare: int, cbor: int, announced: int, final: bool) -> tuple[int, int, int]:
    for offset in range(at, len(data)):
        least = 0
        for reading in range(2):
            limit = cbor if reading else bare
            if limit == 0:
                continue
            end, needed = _look(data, offset, reading == 1, limit, True)
            if offset == announced and (reading == 0 or bare == 0):
                if end > 0 or (final and needed > 0):
                    return offset, reading, 0
            elif end > len(data):
                needed = end
            elif end > 0:
                second, needed = _look(data, end, reading == 1, limit, True)
                if second > 0 or (final and needed > 0):
                    return offset, reading, 0
            if needed > 0:
                least = needed if least == 0 else min(least, needed)
        if least > 0 and not final:
            return offset, -1, least
    return len(data), -1, len(data) + 1


@compiled
def _look(data: Array, at: int, cbor: bool, limit: int, searching: bool) -> tuple[int, int]:
    body = at + (4 if cbor else 2)
    if body >= len(data):
        return 0, body + 1
    length = 0
    for place in range(at, body):
        length = length << 8 | wide(data[place])
    if length == 0 or length > limit:
        return 0, 0
    first = wide(data[body]) - (0x83 if cbor else 1)
    if searching and first not in (0, 1):
        return 0, 0
    after = _header_end(data, body, body + length, cbor, searching)
    if after == _CUT:
        return 0, len(data) + 1
    return (body + length if after > 0 else 0), 0


@compiled
def _header_end(data: Array, at: int, end: int, cbor: bool, searching: bool) -> int:
    """Where the payload of the message from `at` to `end` begins; _NONE, _CUT."""
    stop = min(end, at + HEADER_BYTES) if searching else end
    form, at = _number(data, at, stop, cbor, _ARRAY)
    if at < 0:
        return at
    # A version, or the parts of an array; the larger one has a tracing context.
    least = 3 if cbor else 1
    if form < _WORD(least) or form > _WORD(least + 1):
        return _NONE
    has_context = form == _WORD(least + 1)
    most = MOST_HOPS if searching else MOST_CREDIBLE_HOPS
    for _ in range(2):
        at = _route_end(data, at, stop, cbor, most)
        if at < 0:
            return at
    size, at = _number(data, at, stop, cbor, _BYTES)
    if at < 0:
        return at
    if size > _WORD(end - at):
        return _NONE
    left = end - at - wide(size)
    return at if (left > 0 if has_context else left == 0) else _NONE


@compiled
def _route_end(data: Array, at: int, stop: int, cbor: bool, most: int) -> int:
    hops, at = _number(data, at, stop, cbor, _ARRAY)
    # Each hop has at least two bytes.
    if at >= 0 and (hops > _WORD(most) or 2 * wide(hops) > stop - at):
        return _NONE
    for _ in range(wide(hops) if at >= 0 else 0):
        if cbor:
            parts, at = _number(data, at, stop, cbor, _ARRAY)
            if at >= 0 and parts != _WORD(2):
                return _NONE
        if at >= 0:
            _, at = _number(data, at, stop, cbor, _UNSIGNED)
        if at < 0:
            return at
        size, at = _number(data, at, stop, cbor, _BYTES)
        if at < 0:
            return at
        if size > _WORD(stop - at):
            return _NONE
        at += wide(size)
    return at


@compiled
def _number(data: Array, at: int, stop: int, cbor: bool, major: int) -> tuple[Any, int]:
    """A uint of BARE, or the argument of an item of CBOR that is of `major`; the byte after it, _NONE or _CUT."""
    if at >= stop:
        return _WORD(0), _NONE
    if at >= len(data):
        return _WORD(0), _CUT
    return _argument(data, at, stop, major) if cbor else _uint(data, at, stop)


@compiled
def _argument(data: Array, at: int, stop: int, major: int) -> tuple[Any, int]:
    value, first = _WORD(0), wide(data[at])
    low = first & 31
    if first >> 5 != major or low > 27:
        return value, _NONE
    if low < 24:
        return _WORD(low), at + 1
    after = at + 1 + (1 << low - 24)
    if after > stop:
        return value, _NONE
    if after > len(data):
        return value, _CUT
    for place in range(at + 1, after):
        value = value << _WORD(8) | _WORD(data[place])
    return value, after


@compiled
def _uint(data: Array, at: int, stop: int) -> tuple[Any, int]:
    value = _WORD(0)
    for place in range(at, at + _UINT_BYTES):
        if place >= stop:
            return value, _NONE
        if place >= len(data):
            return value, _CUT
        octet = data[place]
        if place == at + _UINT_BYTES - 1 and octet > 1:
            return value, _NONE
        value |= _WORD(octet & 0x7F) << _WORD(7 * (place - at))
        if octet < 0x80:
            return value, place + 1
    return value, _NONE
