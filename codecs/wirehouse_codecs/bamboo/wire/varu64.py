"""VarU64: unsigned 64-bit numbers in one to nine bytes (varu64 specification).

A first byte below 248 is the number; 248 to 255 announce that one to eight bytes follow, most significant first. The
shortest way to write a number is the canonical one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_U64: Final = (1 << 64) - 1
MAX_BYTES: Final = 9
#: The first byte that announces more bytes.
_FIRST_LONG: Final = 248
_ONE_BYTE: Final = tuple(bytes([number]) for number in range(_FIRST_LONG))


class VarU64(NamedTuple):
    """A number that was read, where it ends, and whether it was written in the shortest way."""

    value: int
    end: int
    canonical: bool


def encode(number: int) -> bytes:
    """`number` in the canonical way. ValueError: it isn't one of 0 to 2^64 - 1."""
    if 0 <= number < _FIRST_LONG:
        return _ONE_BYTE[number]
    if not 0 <= number <= MAX_U64:
        raise ValueError(f"{number} is no unsigned 64-bit number")
    size = (number.bit_length() + 7) // 8
    return bytes([_FIRST_LONG - 1 + size]) + number.to_bytes(size, "big")


def decode(data: bytes | bytearray | memoryview, at: int = 0) -> VarU64 | None:
    """The number at `at`; None = it is cut."""
    if at >= len(data):
        return None
    first = data[at]
    if first < _FIRST_LONG:
        return VarU64(first, at + 1, True)
    end = at + 1 + first - (_FIRST_LONG - 1)
    if end > len(data):
        return None
    value = int.from_bytes(data[at + 1 : end], "big")
    return VarU64(value, end, value >= _FIRST_LONG if end == at + 2 else data[at + 1] != 0)
