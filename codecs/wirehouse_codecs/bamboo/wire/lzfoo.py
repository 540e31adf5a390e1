"""LZFoo, the compression of payloads (LZFoo specification; Point-2-Point, "The Data Channel").

Compressed data is a sequence of elements. A literal contains bytes. A copy repeats earlier bytes, `offset` bytes back,
and may run into its own output. Earlier bytes are all that was decompressed in this direction of the connection. Only
the last *window* bytes of them may be copied, so no more are kept.

`Inflater` and `Deflater` keep this history. `inflate` is the reference path, `_inflate` is compiled (the fast path).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.bamboo.wire import varu64
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.compiled.jit import compiled, inlined, wide

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

#: A first byte with this bit is a copy.
_COPY: Final = 0x80
#: Smaller lengths are in the first byte. Larger values of it give the number of bytes of the length.
_FIRST_LONG: Final = 120
#: Maximum number of bytes kept of a larger window; a copy from farther back is not followed.
MAX_HISTORY_BYTES: Final = 4 << 20
#: The buffer of a history has room for it twice, and for this many bytes more.
_SPARE_BYTES: Final = 1 << 16

WINDOW_EXCEEDED: Final = "window_exceeded"
OFFSET_ZERO: Final = "offset_zero"
OFFSET_BEFORE_START: Final = "offset_before_start"
TRUNCATED: Final = "lzfoo_truncated"
LENGTH_MISMATCH: Final = "length_mismatch"
HISTORY_UNKNOWN: Final = "history_unknown"
#: What `_inflate` ends with: all is well, or one of these.
_RULES: Final = (None, TRUNCATED, LENGTH_MISMATCH, OFFSET_ZERO, WINDOW_EXCEEDED, OFFSET_BEFORE_START, None)
_OK, _TRUNCATED, _LENGTH, _ZERO, _WINDOW, _START, _WIDE = range(7)


class Inflated(NamedTuple):
    """Decompressed data; or, with None, the rule that the compressed data breaks, or that it can't be decompressed."""

    data: bytes | None
    rule: str | None = None
    #: Whether an offset is written longer than it needs to be.
    wide: bool = False


def inflate(data: bytes, size: int, window: int = MAX_U64, history: bytes = b"") -> Inflated:
    """`size` bytes out of `data`, whole elements, after `history`. Elements are judged one after the other.

    The caller bounds `size`; what an element announces beyond it is not written.
    """
    out = bytearray(history)
    end = len(history) + size
    at = 0
    is_wide = False
    while at < len(data):
        first = data[at]
        at += 1
        length = first & ~_COPY
        if length >= _FIRST_LONG:
            begin, at = at, at + length - (_FIRST_LONG - 1)
            if at > len(data):
                return Inflated(None, TRUNCATED)
            length = int.from_bytes(data[begin:at], "big")
        offset = None
        if first & _COPY:
            offset = varu64.decode(data, at)
            if offset is None:
                return Inflated(None, TRUNCATED)
            at = offset.end
            is_wide |= not offset.canonical
            rule = _broken_copy(offset.value, len(out), window)
            if rule is not None:
                return Inflated(None, rule)
        elif at + length > len(data):
            return Inflated(None, TRUNCATED)
        if len(out) + length > end:
            return Inflated(None, LENGTH_MISMATCH)
        if offset is not None:
            for _ in range(length):
                out.append(out[-offset.value])
        else:
            out += data[at : at + length]
            at += length
    if len(out) != end:
        return Inflated(None, LENGTH_MISMATCH)
    return Inflated(bytes(out[len(history) :]), wide=is_wide)


def _broken_copy(offset: int, written: int, window: int) -> str | None:
    if offset == 0:
        return OFFSET_ZERO
    if offset > window:
        return WINDOW_EXCEEDED
    return OFFSET_BEFORE_START if offset > written else None


class _History:
    """The last bytes that were decompressed in one direction: those that may still be copied."""

    def __init__(self, window: int) -> None:
        self.keep = min(window, MAX_HISTORY_BYTES)
        self.buffer: Array = np.empty(0, np.uint8)
        #: Where it ends in the buffer.
        self.end = 0

    @property
    def held(self) -> int:
        """How many bytes it has."""
        return min(self.end, self.keep)

    def make_room(self, size: int) -> int:
        """Have room for `size` bytes behind it; by how much it was moved towards the buffer's begin."""
        most = 2 * self.keep + _SPARE_BYTES
        room = self.buffer
        if self.end + size <= len(room) <= most:
            return 0
        held, moved = self.held, self.end - self.held
        if not held + size <= len(room) <= most or held > moved:
            room = np.empty(max(held + size, min(2 * len(room), most)), np.uint8)
        room[:held] = self.buffer[moved : self.end]
        self.buffer, self.end = room, held
        return moved

    def add(self, size: int) -> bytes:
        """Take in the `size` bytes that were written behind it; they are returned."""
        begin, self.end = self.end, self.end + size
        return self.buffer[begin : self.end].tobytes()


class InflaterState(NamedTuple):
    """What an Inflater carries from window to window."""

    window: int
    max_bytes: int
    from_start: bool
    #: The last bytes that were decompressed.
    history: bytes


class Inflater:
    """Decompresses the payloads of one direction of a connection, in their order.

    What announces more than `max_bytes` is not decompressed.
    """

    def __init__(self, window: int, *, max_bytes: int = 64 << 20, from_start: bool = True) -> None:
        self.window = window
        self._max_bytes = max_bytes
        #: All that was decompressed is known. Not so if the capture begins later, or a packet could not be read.
        self.from_start = from_start
        self._history = _History(window)

    def inflate(self, data: bytes, size: int) -> Inflated:
        """`size` bytes out of `data`, whole elements. Memory is taken only for what the elements do give.

        After `history_unknown` the Inflater has forgotten: what it could not read belongs to the history, too.
        """
        history = self._history
        source = np.frombuffer(data, np.uint8)
        code = _measure(source, _WORD(size), _WORD(self.window), _WORD(history.held))
        rule = _RULES[code]
        before_known = rule == OFFSET_BEFORE_START and (not self.from_start or history.held == history.keep)
        if before_known or (rule is None and size > self._max_bytes):
            self.forget()
            return Inflated(None, HISTORY_UNKNOWN)
        if rule is not None:
            return Inflated(None, rule)
        history.make_room(size)
        _expand(source, history.buffer, history.end)
        return Inflated(history.add(size), wide=code == _WIDE)

    def inflate_all(self, data: Array, begins: Array, sizes: Array, announced: Array) -> tuple[Array, int]:
        """What payloads of `data` stand for, one behind the other, and how many of them follow all rules.

        One with an offset that is longer than it needs to be doesn't, here.

        They aren't part of the history before `add`; `announced` are the sizes of what they stand for.
        """
        history = self._history
        held = history.buffer[history.end - history.held : history.end]
        out = np.empty(len(held) + int(announced.sum()), np.uint8)
        out[: len(held)] = held
        numbers = (_WORD(self.window), _WORD(history.keep), _WORD(self._max_bytes))
        count = _inflate_all(data, begins, sizes, announced, *numbers, out, len(held))
        return out[len(held) :], count

    def add(self, data: Array) -> None:
        """Bytes that were decompressed; they are part of the history from then on."""
        history = self._history
        data = data[max(len(data) - history.keep, 0) :]
        history.make_room(len(data))
        history.buffer[history.end : history.end + len(data)] = data
        history.end += len(data)

    def forget(self) -> None:
        """What came before isn't known any more: bytes were lost, or a packet was not decompressed."""
        self.from_start, self._history = False, _History(self.window)

    @property
    def state(self) -> InflaterState:
        """What a later Inflater continues from."""
        history = self._history
        kept = history.buffer[history.end - history.held : history.end].tobytes()
        return InflaterState(self.window, self._max_bytes, self.from_start, kept)

    @classmethod
    def from_state(cls, state: InflaterState) -> Inflater:
        """An Inflater that continues from `state`."""
        inflater = cls(state.window, max_bytes=state.max_bytes, from_start=state.from_start)
        inflater.add(np.frombuffer(state.history, np.uint8))
        return inflater


class Deflater:
    """Compresses the payloads of one direction of a connection, in their order."""

    def __init__(self, window: int) -> None:
        self._history = _History(window)
        #: Where the buffer begins in all that was compressed.
        self._base = 0
        self._heads = np.full(1 << _HASH_BITS, -1, np.int64)
        #: A ring of at least the window: by position, the one before with the same hash.
        self._chains = np.full(1 << max(self._history.keep - 1, 1).bit_length(), -1, np.int64)

    def compress(self, data: bytes) -> bytes:
        """`data` in elements; it is part of the history from then on."""
        history = self._history
        self._base += history.make_room(len(data))
        history.buffer[history.end : history.end + len(data)] = np.frombuffer(data, np.uint8)
        # Every element is shorter than what it stands for, but a literal, which never follows another.
        out = np.empty(2 * len(data) + varu64.MAX_BYTES, np.uint8)
        end = history.end + len(data)
        size = _deflate(history.buffer, history.end, end, self._base, history.keep, self._heads, self._chains, out)
        history.add(len(data))
        return out[:size].tobytes()


# Decompress, compiled


@inlined
def _length_at(data: Array, at: int) -> tuple[Any, int]:
    """The length of the element at `at`, and where that ends; an end of -1: it is cut."""
    first = wide(data[at]) & 127
    if first < _FIRST_LONG:
        return _WORD(first), at + 1
    end = at + 1 + first - (_FIRST_LONG - 1)
    if end > len(data):
        return _WORD(0), -1
    length = _WORD(0)
    for i in range(at + 1, end):
        length = length << _WORD(8) | _WORD(data[i])
    return length, end


@inlined
def _offset_at(data: Array, at: int) -> tuple[Any, int]:
    """The VarU64 at `at`, and its end; an end of -1: it is cut."""
    if at >= len(data):
        return _WORD(0), -1
    first = wide(data[at])
    if first < 248:
        return _WORD(first), at + 1
    end = at + 1 + first - 247
    if end > len(data):
        return _WORD(0), -1
    offset = _WORD(0)
    for i in range(at + 1, end):
        offset = offset << _WORD(8) | _WORD(data[i])
    return offset, end


@compiled
def _measure(data: Array, size: Any, window: Any, held: Any) -> int:
    """The result code of decompressing `data` to `size` bytes, without writing any. `held` bytes came before."""
    at, written, right = 0, _WORD(0), _OK
    while at < len(data):
        is_copy = data[at] >= _COPY
        length, at = _length_at(data, at)
        if at < 0:
            return _TRUNCATED
        if is_copy:
            begin = at
            offset, at = _offset_at(data, at)
            if at < 0:
                return _TRUNCATED
            if at - begin > 1 and (offset < _WORD(248) or (at - begin > 2 and not data[begin + 1])):
                right = _WIDE
            if offset == _WORD(0):
                return _ZERO
            if offset > window:
                return _WINDOW
            if offset > held + written:
                return _START
        elif length > _WORD(len(data) - at):
            return _TRUNCATED
        else:
            at += wide(length)
        if length > size - written:
            return _LENGTH
        written += length
    return right if written == size else _LENGTH


@compiled
def _expand(data: Array, out: Array, to: int) -> None:
    """Write what `data`, which was measured, stands for to `out` at `to`, behind its history."""
    at = 0
    while at < len(data):
        is_copy = data[at] >= _COPY
        length, at = _length_at(data, at)
        target = _WORD(to)
        if is_copy:
            offset, at = _offset_at(data, at)
            begin = target - offset
            for i in range(length):
                out[target + i] = out[begin + i]
        else:
            begin = _WORD(at)
            for i in range(length):
                out[target + i] = data[begin + i]
            at += wide(length)
        to += wide(length)


@compiled
def _inflate_all(
    data: Array, begins: Array, sizes: Array, announced: Array, window: Any, keep: Any, most: Any, out: Array, to: int
) -> int:
    """Write payloads to `out` at `to`, behind their history, up to one that breaks a rule; how many that are."""
    for row in range(len(begins)):
        source = data[begins[row] : begins[row] + sizes[row]]
        size = _WORD(announced[row])
        if size > most or _measure(source, size, window, min(_WORD(to), keep)) != _OK:
            return row
        _expand(source, out, to)
        to += wide(announced[row])
    return len(begins)


# Compress, compiled

_HASH_BITS: Final = 15
#: Number of earlier places with the same hash that are tried.
_TRIES: Final = 16
_LEAST_COPY: Final = 3


@inlined
def _hash_at(data: Array, at: int) -> int:
    word = wide(data[at]) << 16 | wide(data[at + 1]) << 8 | wide(data[at + 2])
    return (word * 2654435761 & 0xFFFFFFFF) >> (32 - _HASH_BITS)


@inlined
def _bytes_of(number: int) -> int:
    """How many bytes a number of more than one byte has."""
    size = 1
    while number >> 8 * size:
        size += 1
    return size


@inlined
def _copy_cost(length: int, offset: int) -> int:
    """The bytes of a copy."""
    return 2 + (_bytes_of(length) if length >= _FIRST_LONG else 0) + (_bytes_of(offset) if offset >= 248 else 0)


@compiled
def _longest(
    data: Array, at: int, end: int, base: int, window: int, heads: Array, chains: Array
) -> tuple[int, int, int]:
    """The copy that saves most at `at`: how many bytes it saves, its length and its offset."""
    saved, best_length, best_offset = 0, 0, 0
    if at + _LEAST_COPY > end:
        return saved, best_length, best_offset
    ring = len(chains) - 1
    place = base + at
    earliest = max(base, place - window)
    other = heads[_hash_at(data, at)]
    for _ in range(_TRIES):
        if other < earliest or other >= place:
            break
        begin = other - base
        # What can't be longer than the best isn't compared.
        if at + best_length < end and data[begin + best_length] == data[at + best_length]:
            length = 0
            while at + length < end and data[begin + length] == data[at + length]:
                length += 1
            if length >= _LEAST_COPY:
                gain = length - _copy_cost(length, place - other)
                if gain > saved:
                    saved, best_length, best_offset = gain, length, place - other
        before = chains[other & ring]
        if before >= other:
            break
        other = before
    return saved, best_length, best_offset


@compiled
def _put_length(out: Array, to: int, kind: int, length: int) -> int:
    """Write the begin of an element at `to`; where it ends."""
    if length < _FIRST_LONG:
        out[to] = kind | length
        return to + 1
    size = _bytes_of(length)
    out[to] = kind | (_FIRST_LONG - 1 + size)
    for i in range(size):
        out[to + 1 + i] = length >> 8 * (size - 1 - i) & 255
    return to + 1 + size


@compiled
def _put_literal(data: Array, begin: int, end: int, out: Array, to: int) -> int:
    if begin == end:
        return to
    to = _put_length(out, to, 0, end - begin)
    for i in range(end - begin):
        out[to + i] = data[begin + i]
    return to + end - begin


@compiled
def _deflate(data: Array, at: int, end: int, base: int, window: int, heads: Array, chains: Array, out: Array) -> int:
    """Compress `data[at:end]` into `out`; how many bytes that takes. `data` begins `base` bytes after the first one."""
    ring = len(chains) - 1
    to, literal = 0, at
    saved, length, offset = 0, 0, 0
    looked = False
    while at < end:
        if not looked:
            saved, length, offset = _longest(data, at, end, base, window, heads, chains)
        looked = False
        if at + _LEAST_COPY <= end:
            slot = _hash_at(data, at)
            chains[(base + at) & ring] = heads[slot]
            heads[slot] = base + at
        # A copy inside a literal makes two of it, which takes a byte.
        if saved <= (1 if literal < at else 0):
            at += 1
            continue
        later = _longest(data, at + 1, end, base, window, heads, chains)
        if later[0] > saved + 1:
            saved, length, offset = later
            looked = True
            at += 1
            continue
        to = _put_literal(data, literal, at, out, to)
        to = _put_length(out, to, _COPY, length)
        if offset < 248:
            out[to] = offset
            to += 1
        else:
            size = _bytes_of(offset)
            out[to] = 247 + size
            for i in range(size):
                out[to + 1 + i] = offset >> 8 * (size - 1 - i) & 255
            to += 1 + size
        for i in range(at + 1, at + length):
            if i + _LEAST_COPY <= end:
                slot = _hash_at(data, i)
                chains[(base + i) & ring] = heads[slot]
                heads[slot] = base + i
        at += length
        literal = at
    return _put_literal(data, literal, end, out, to)
