"""The fast path for JSON Lines: a block of lines to Arrow columns, in a compiled loop.

It reads lines as programs write them: an object with the known names in any order, whose values are base64, ASCII
without escapes, whole numbers or null. Every other line is left to the reference path, `captures.messages.read_line`.
The same tests check both.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.compiled.jit import compiled, inlined, wide

Array = np.ndarray[Any, Any]

INT64_MAX: Final = 2**63 - 1
NS_PER_MS: Final = 1_000_000
#: Maximum number of digits that the fast path reads, so that the number can't overflow 64 bits.
MAX_DIGITS: Final = 18
MAX_TOPIC_BYTES: Final = 1024

#: The fields of a line: positions in NAMES, and bits of the set of names seen in a line. Those of numbers come first.
PARTITION, OFFSET, TIMESTAMP = 0, 1, 2
TS_TYPE, KEY, VALUE, HEADERS, TOPIC = 3, 4, 5, 6, 7
#: What the loop writes for a row, by field: the number, the code of `timestamp_type`, or the end of the text in its
#: column; and in PRESENT the set of fields that have a value.
MARKS = 9
PRESENT = 8
#: The fields whose bytes go to the output arrays, in the order of these arrays.
TEXTS = (KEY, VALUE, TOPIC)
UNKNOWN = -1
#: Values of `timestamp_type`.
NO_TYPE, CREATE, APPEND = 0, 1, 2
TS_TYPES: Final = pa.array([None, "create", "append"], pa.string())

QUOTE, BACKSLASH, MINUS, COLON, COMMA, PAD = ord('"'), ord("\\"), ord("-"), ord(":"), ord(","), ord("=")
OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = ord("{"), ord("}"), ord("["), ord("]")
NEWLINE, RETURN, TAB, SPACE, DELETE = 10, 13, 9, 32, 127
ZERO, NINE = ord("0"), ord("9")

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
#: The value of each base64 digit; negative for every other byte.
DIGITS: Final = np.array([_ALPHABET.find(byte) for byte in range(256)], np.int32)
NULL: Final = tuple(b"null")
NAMES: Final = b"partition offset timestamp_ms timestamp_type key_b64 value_b64 headers topic create append"
#: The known names with a space after each, and where each begins.
NAME_BYTES: Final = np.frombuffer(NAMES + b" ", np.uint8)
NAME_STARTS: Final = np.array(
    [0] + [i + 1 for i in range(len(NAMES)) if NAMES[i] == SPACE] + [len(NAMES) + 1], np.int64
)
FIELDS: Final = 8


class Scanned(NamedTuple):
    """The result for a block of lines."""

    #: The rows that were read, without the columns for headers, other fields and damage.
    columns: dict[str, pa.Array]
    rows: int
    #: For each line left to the reference path: its begin and end, and the number of rows read before it.
    odd: Array


def scan_lines(block: bytes, max_line_bytes: int) -> Scanned:
    """Read the lines of `block`; lines longer than `max_line_bytes` are left to the reference path."""
    data = np.frombuffer(block, np.uint8)
    lines = block.count(b"\n") + 1
    marks = np.zeros((lines + 1, MARKS), np.int64)
    out = np.empty((len(TEXTS), len(data)), np.uint8)
    odd = np.empty((lines, 3), np.int64)
    rows, left = read_lines(data, max_line_bytes, marks, out, odd)
    columns = {
        "topic": _texts(marks, out, rows, TOPIC, pa.string()),
        "partition": _numbers(marks, rows, PARTITION).cast(pa.int32()),
        "offset": _numbers(marks, rows, OFFSET),
        "ts_ns": _numbers(marks, rows, TIMESTAMP),
        "ts_type": TS_TYPES.take(pa.array(marks[1 : rows + 1, TS_TYPE])),
        "key": _texts(marks, out, rows, KEY, pa.binary()),
        "value": _texts(marks, out, rows, VALUE, pa.binary()),
    }
    return Scanned(columns, rows, odd[:left])


def _absent(marks: Array, rows: int, name: int) -> Array:
    absent: Array = (marks[1 : rows + 1, PRESENT] >> name & 1) == 0
    return absent


def _numbers(marks: Array, rows: int, name: int) -> pa.Array:
    return pa.array(marks[1 : rows + 1, name], mask=_absent(marks, rows, name))


def _texts(marks: Array, out: Array, rows: int, name: int, kind: pa.DataType) -> pa.Array:
    absent = _absent(marks, rows, name)
    bitmap = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent.any() else None
    offsets = marks[: rows + 1, name].astype(np.int32)
    # A copy, so that the column doesn't keep the whole output array in memory.
    used = out[TEXTS.index(name), : offsets[-1]].copy()
    return pa.Array.from_buffers(kind, rows, [bitmap, pa.py_buffer(offsets), pa.py_buffer(used)])


@inlined
def skip_space(data: Array, at: int, end: int) -> int:
    """The position of the first byte at or after `at` that isn't JSON whitespace."""
    while at < end and (data[at] == SPACE or data[at] == TAB or data[at] == RETURN):
        at += 1
    return at


@compiled
def read_name(data: Array, at: int, end: int, first: int, count: int, guess: int) -> tuple[int, int]:
    """Read a known name in quotes at `at`. Returns it, or UNKNOWN, and the position after it.

    The names are the `count` ones from `first` on; they are tried from `guess` on.
    """
    if at >= end or data[at] != QUOTE:
        return UNKNOWN, at
    for i in range(count):
        name = guess + i
        if name >= first + count:
            name -= count
        begin, size = NAME_STARTS[name], NAME_STARTS[name + 1] - NAME_STARTS[name] - 1
        after = at + 1 + size
        if after < end and data[after] == QUOTE:
            same = True
            for k in range(size):
                if data[at + 1 + k] != NAME_BYTES[begin + k]:
                    same = False
                    break
            if same:
                return name, after + 1
    return UNKNOWN, at


@inlined
def is_null(data: Array, at: int, end: int) -> bool:
    """Whether there is `null` at `at`."""
    if at + 4 > end:
        return False
    same: bool = data[at] == NULL[0] and data[at + 1] == NULL[1] and data[at + 2] == NULL[2] and data[at + 3] == NULL[3]
    return same


@compiled
def read_number(data: Array, at: int, end: int) -> tuple[int, int]:
    """The whole number at `at`, and the position after it; -1 if it isn't one or has too many digits."""
    negative = at < end and data[at] == MINUS
    if negative:
        at += 1
    begin = at
    number = 0
    while at < end and ZERO <= data[at] <= NINE:
        number = number * 10 + wide(data[at] - ZERO)
        at += 1
        if at - begin > MAX_DIGITS:
            return 0, -1
    if at == begin or (data[begin] == ZERO and at > begin + 1):
        return 0, -1
    return -number if negative else number, at


@compiled
def read_text(data: Array, at: int, end: int, out: Array, to: int) -> tuple[int, int]:
    """Copy the text in quotes at `at` to `out`. Returns the positions after it in `data` and `out`.

    The former is -1 unless the text is ASCII without escapes and not too long.
    """
    if at >= end or data[at] != QUOTE:
        return -1, to
    at += 1
    last = min(end, at + MAX_TOPIC_BYTES)
    while at < last and SPACE <= data[at] <= DELETE and data[at] != QUOTE and data[at] != BACKSLASH:
        out[to] = data[at]
        to += 1
        at += 1
    if at >= end or data[at] != QUOTE:
        return -1, to
    return at + 1, to


@compiled
def read_base64(data: Array, at: int, end: int, out: Array, to: int) -> tuple[int, int]:
    """Decode the base64 in quotes at `at`. Returns the same positions as read_text."""
    if at >= end or data[at] != QUOTE:
        return -1, to
    at += 1
    while at + 4 < end:
        a, b, c, d = DIGITS[data[at]], DIGITS[data[at + 1]], DIGITS[data[at + 2]], DIGITS[data[at + 3]]
        if (a | b | c | d) < 0:
            break
        bits = a << 18 | b << 12 | c << 6 | d
        out[to], out[to + 1], out[to + 2] = bits >> 16 & 0xFF, bits >> 8 & 0xFF, bits & 0xFF
        to += 3
        at += 4
    if at < end and data[at] == QUOTE:
        return at + 1, to
    if at + 4 >= end or data[at + 4] != QUOTE or data[at + 3] != PAD:
        return -1, to
    a, b, c = DIGITS[data[at]], DIGITS[data[at + 1]], DIGITS[data[at + 2]]
    if (a | b) < 0 or (c < 0 and data[at + 2] != PAD):
        return -1, to
    out[to] = (a << 2 | b >> 4) & 0xFF
    to += 1
    if c >= 0:
        out[to] = (b << 4 | c >> 2) & 0xFF
        to += 1
    return at + 5, to


@inlined
def read_whole(data: Array, at: int, end: int, name: int, row: int, marks: Array) -> int:
    """Read a number into `marks`. Returns the position after it; -1 if it isn't a valid one."""
    number, after = read_number(data, at, end)
    if name == PARTITION and not -(2**31) <= number < 2**31:
        after = -1
    if name == TIMESTAMP:
        if number > INT64_MAX // NS_PER_MS:
            number = INT64_MAX
        elif number < -(INT64_MAX // NS_PER_MS):
            number = -INT64_MAX - 1
        else:
            number = number * NS_PER_MS
    marks[row, name] = number
    return after


@inlined
def read_value(data: Array, at: int, end: int, name: int, row: int, marks: Array, out: Array) -> int:
    """Read the value of `name` at `at`. Returns the position after it; -1 if the fast path can't read it."""
    after, to = -1, 0
    if name <= TIMESTAMP:
        after = read_whole(data, at, end, name, row, marks)
    elif name == KEY:
        after, to = read_base64(data, at, end, out[0], marks[row - 1, KEY])
    elif name == VALUE:
        after, to = read_base64(data, at, end, out[1], marks[row - 1, VALUE])
    elif name == TOPIC:
        after, to = read_text(data, at, end, out[2], marks[row - 1, TOPIC])
    elif name == TS_TYPE:
        word, after = read_name(data, at, end, FIELDS, 2, FIELDS)
        to = word - FIELDS + CREATE
        if word == UNKNOWN:
            after = -1
    elif at + 1 < end and data[at] == OPEN_LIST and data[at + 1] == CLOSE_LIST:
        after = at + 2
    if name > TIMESTAMP:
        marks[row, name] = to
    marks[row, PRESENT] |= 1 << name
    return after


@inlined
def read_one(data: Array, at: int, end: int, row: int, marks: Array, out: Array) -> bool:
    """Read the object at `at`, which takes the rest of the line, into `row`. Returns False if that is not possible."""
    if data[at] != OPEN:
        return False
    seen = 0
    # Programs mostly write the topic first, then the names in the order of NAMES.
    name = TOPIC - 1
    while True:
        at = skip_space(data, at + 1, end)
        name, at = read_name(data, at, end, 0, FIELDS, name + 1)
        if name == UNKNOWN or seen >> name & 1:
            return False
        seen |= 1 << name
        at = skip_space(data, at, end)
        if at >= end or data[at] != COLON:
            return False
        at = skip_space(data, at + 1, end)
        if is_null(data, at, end):
            at += 4
        else:
            at = read_value(data, at, end, name, row, marks, out)
        if at < 0:
            return False
        at = skip_space(data, at, end)
        if at >= end or (data[at] != COMMA and data[at] != CLOSE):
            return False
        if data[at] == CLOSE:
            break
    both = 1 << KEY | 1 << VALUE
    return seen & both == both and skip_space(data, at + 1, end) == end


@inlined
def begin_row(row: int, marks: Array) -> None:
    """Initialise `row` without values: its texts end where those of the previous row end."""
    for name in range(MARKS):
        marks[row, name] = 0
    for name in (KEY, VALUE, TOPIC):
        marks[row, name] = marks[row - 1, name]


@compiled
def read_lines(data: Array, max_line_bytes: int, marks: Array, out: Array, odd: Array) -> tuple[int, int]:
    """Read all lines. Returns the number of rows read, and of lines listed in `odd`. Blank lines are skipped."""
    row = left = at = 0
    size = len(data)
    while at < size:
        begin = skip_space(data, at, size)
        end = begin
        while end < size and data[end] != NEWLINE:
            end += 1
        if begin < end:
            begin_row(row + 1, marks)
            if end - at <= max_line_bytes and read_one(data, begin, end, row + 1, marks, out):
                row += 1
            else:
                odd[left, 0], odd[left, 1], odd[left, 2] = at, end, row
                left += 1
        at = end + 1
    return row, left
