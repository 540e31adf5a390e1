"""BARE (draft-devault-bare), as far as Ockam's messages need it: one description of a schema writes and reads.

The decoder is strict where implementations differ: a uint has 64 bits in at most 10 bytes, an optional's tag is 00 or
01, a string is UTF-8, an enum's value and a union's tag are known, and nothing is left over. Only a uint that is
written longer than needed is taken, and noted. Announced lengths and counts reserve nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

MOST_UINT_BYTES: Final = 10
_UINT_LIMIT: Final = 1 << 64


class Malformed(Exception):
    """Bytes that no value of the schema is written as: which field, at which offset, and why."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        self.name = name
        self.offset = offset
        self.reason = reason
        super().__init__(name, offset, reason)

    def __str__(self) -> str:
        return f"{self.name} at byte {self.offset}: {self.reason}"


class BeyondLimit(Malformed):
    """There is more than is read, by a bound of our own: bytes that may well be a value of the schema."""


class Cursor:
    """Where in `data` the next value begins, and whether all so far were written as short as can be."""

    __slots__ = ("at", "canonical", "data", "end")

    def __init__(self, data: bytes | bytearray, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end
        self.canonical = True

    def take(self, size: int, name: str) -> bytes:
        """The next `size` bytes. Raises Malformed when there are fewer."""
        begin = self.skip(size, name)
        return bytes(self.data[begin : self.at])

    def skip(self, size: int, name: str) -> int:
        """Pass over the next `size` bytes: where they begin. Raises Malformed when there are fewer."""
        begin = self.at
        if size > self.end - begin:
            raise Malformed(name, begin, f"{size} bytes announced, {self.end - begin} are left")
        self.at += size
        return begin

    def text(self, size: int, name: str) -> str:
        """The next `size` bytes as UTF-8. Raises Malformed."""
        octets = self.take(size, name)
        try:
            return octets.decode()
        except UnicodeDecodeError as error:
            at = self.at - size + error.start
            raise Malformed(name, at, f"no UTF-8: {error.reason}") from None

    def uint(self, name: str) -> int:
        """The next uint. Raises Malformed when it is cut or has more than 64 bits."""
        data, begin, end = self.data, self.at, self.end
        if begin < end and data[begin] < 0x80:
            self.at = begin + 1
            return data[begin]
        value = shift = 0
        for at in range(begin, min(end, begin + MOST_UINT_BYTES)):
            octet = data[at]
            value |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                if value >= _UINT_LIMIT:
                    break
                if not octet and at > begin:
                    self.canonical = False
                self.at = at + 1
                return value
        cut = end - begin < MOST_UINT_BYTES and shift == 7 * (end - begin)
        raise Malformed(name, begin, "the uint is cut" if cut else "the uint has more than 64 bits")

    def finish(self) -> None:
        """Raises Malformed when bytes are left."""
        if self.at < self.end:
            raise Malformed("end", self.at, f"{self.end - self.at} bytes are left over")


class Schema(Protocol):
    """How a value is written."""

    def write(self, out: bytearray, value: Any) -> None:
        """Append `value`. Raises TypeError or ValueError when it is none of the schema."""

    def read(self, cursor: Cursor, name: str) -> Any:
        """The value at the cursor, which `name` is the name of. Raises Malformed."""


def write_uint(out: bytearray, value: int) -> None:
    """Append `value` in as few bytes as can be. Raises ValueError when it has more than 64 bits."""
    if not 0 <= value < _UINT_LIMIT:
        raise ValueError(f"{value} is no unsigned number of 64 bits")
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class Uint:
    """Groups of 7 bits, the lowest first."""

    def write(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, int):
            raise TypeError(f"{value!r} is no number")
        write_uint(out, value)

    def read(self, cursor: Cursor, name: str) -> int:
        return cursor.uint(name)


@dataclass(frozen=True, slots=True)
class Data:
    """A length and bytes, of which there may be at most `most`."""

    most: int | None = None

    def write(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, bytes):
            raise TypeError(f"{value!r} is no bytes")
        write_uint(out, len(value))
        out += value

    def read(self, cursor: Cursor, name: str) -> bytes:
        begin = cursor.at
        size = cursor.uint(name)
        if self.most is not None and size > self.most:
            raise BeyondLimit(name, begin, f"{size} bytes, the limit is {self.most}")
        return cursor.take(size, name)


class String:
    """A length and UTF-8."""

    def write(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no text")
        DATA.write(out, value.encode())

    def read(self, cursor: Cursor, name: str) -> str:
        return cursor.text(cursor.uint(name), name)


class Rest:
    """All that is left; no type of BARE, but what a specification may leave open."""

    def write(self, out: bytearray, value: Any) -> None:
        out += value

    def read(self, cursor: Cursor, name: str) -> bytes:
        return cursor.take(cursor.end - cursor.at, name)


UINT: Final = Uint()
DATA: Final = Data()
STRING: Final = String()
REST: Final = Rest()


@dataclass(frozen=True, slots=True)
class Optional:
    """00, or 01 and a value; None = 00."""

    of: Schema

    def write(self, out: bytearray, value: Any) -> None:
        out.append(value is not None)
        if value is not None:
            self.of.write(out, value)

    def read(self, cursor: Cursor, name: str) -> Any:
        begin = cursor.at
        tag = cursor.take(1, name)[0]
        if tag > 1:
            raise Malformed(name, begin, f"{tag} is no tag of an optional")
        return self.of.read(cursor, name) if tag else None


@dataclass(frozen=True, slots=True)
class Enum:
    """A uint that stands for one of `values`, counted from 0."""

    values: tuple[Any, ...]

    def write(self, out: bytearray, value: Any) -> None:
        write_uint(out, self.values.index(value))

    def read(self, cursor: Cursor, name: str) -> Any:
        begin = cursor.at
        number = cursor.uint(name)
        if number >= len(self.values):
            raise Malformed(name, begin, f"{number} is none of its {len(self.values)} values")
        return self.values[number]


@dataclass(frozen=True, slots=True)
class List:
    """A count and elements, of which there may be at most `most`."""

    of: Schema
    most: int | None = None

    def write(self, out: bytearray, value: Any) -> None:
        write_uint(out, len(value))
        for element in value:
            self.of.write(out, element)

    def read(self, cursor: Cursor, name: str) -> tuple[Any, ...]:
        begin = cursor.at
        count = cursor.uint(name)
        if self.most is not None and count > self.most:
            raise BeyondLimit(name, begin, f"{count} of them, the limit is {self.most}")
        # An element has at least one byte, so the count only bounds a loop that stops at the end of the data.
        return tuple([self.of.read(cursor, name) for _ in range(count)])


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields in their order on the wire. What `make` makes of them by name has them as attributes."""

    make: Callable[..., Any]
    fields: tuple[tuple[str, Schema], ...]

    def write(self, out: bytearray, value: Any) -> None:
        for name, schema in self.fields:
            schema.write(out, getattr(value, name))

    def read(self, cursor: Cursor, name: str) -> Any:
        return self.make(**{field: schema.read(cursor, field) for field, schema in self.fields})


@dataclass(frozen=True, slots=True)
class Union:
    """A tag, counted from 0, and the struct that it stands for."""

    members: tuple[Struct, ...]

    def write(self, out: bytearray, value: Any) -> None:
        tag = [member.make for member in self.members].index(type(value))
        write_uint(out, tag)
        self.members[tag].write(out, value)

    def read(self, cursor: Cursor, name: str) -> Any:
        begin = cursor.at
        tag = cursor.uint(name)
        if tag >= len(self.members):
            raise Malformed(name, begin, f"{tag} is none of its {len(self.members)} tags")
        return self.members[tag].read(cursor, name)


def decode(schema: Schema, data: bytes, name: str = "value") -> Any:
    """The value that all of `data` is. Raises Malformed."""
    cursor = Cursor(data)
    value = schema.read(cursor, name)
    cursor.finish()
    return value


def encode(schema: Schema, value: Any) -> bytes:
    """`value` as the schema writes it. Raises TypeError or ValueError when it is none of the schema."""
    out = bytearray()
    schema.write(out, value)
    return bytes(out)
