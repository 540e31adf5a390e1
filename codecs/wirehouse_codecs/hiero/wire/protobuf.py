"""Protocol buffers by their tags and lengths (protobuf.dev, "Encoding"), for layouts that are data.

Two API generations use the same full names for different messages, and only the outer ones are of interest: so there
is no generated code. A `Layout` lists the fields of a message; one reader and one writer walk it. Unknown fields, and
known ones of another wire type, are passed over and counted, as every reader of protocol buffers does; a message that
occurs again is merged, of a oneof the last member counts. Nothing descends into what isn't in the layout, so nesting
on the wire costs nothing, and no length is taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

MOST_VARINT_BYTES: Final = 10
MOST_FIELD_NUMBER: Final = (1 << 29) - 1
#: Maximum number of fields of a message, its parts counted by themselves; real ones have a few dozen.
MOST_FIELDS: Final = 10_000
_U64: Final = (1 << 64) - 1


class WireType(IntEnum):
    """The low three bits of a tag. Groups are out of use, and refused."""

    VARINT = 0
    I64 = 1
    LEN = 2
    START_GROUP = 3
    END_GROUP = 4
    I32 = 5


_FIXED_BYTES: Mapping[int, int] = {WireType.I64: 8, WireType.I32: 4}


class Malformed(Exception):
    """Bytes that are no message. `at` is where, `reason` why; the readers of messages make values of it."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(at, reason)
        self.at = at
        self.reason = reason


class WireField(NamedTuple):
    """A field as it is in the bytes."""

    number: int
    wire_type: int
    #: Where its tag begins, its value begins and it ends.
    start: int
    value_start: int
    end: int
    #: The value of a VARINT, 64 bits.
    number_value: int = 0


def read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, of at most ten bytes, and where it ends. Bits above the 64th are lost. Raises Malformed."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    number = shift = 0
    for here in range(at, min(end, at + MOST_VARINT_BYTES)):
        byte = data[here]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _U64, here + 1
        shift += 7
    if end - at < MOST_VARINT_BYTES:
        raise Malformed(at, f"a number is cut off after {end - at} bytes")
    raise Malformed(at, f"a number has more than {MOST_VARINT_BYTES} bytes")


def walk(data: bytes | memoryview, start: int, end: int) -> Iterator[WireField]:
    """The fields of `data` between `start` and `end`, in order. Raises Malformed."""
    at = start
    for _ in range(MOST_FIELDS):
        if at == end:
            return
        found = read_field(data, at, end)
        yield found
        at = found.end
    if at < end:
        raise Malformed(at, f"a message has more than {MOST_FIELDS} fields")


def read_field(data: bytes | memoryview, start: int, end: int) -> WireField:
    """The field at `start`. Raises Malformed."""
    tag, at = read_varint(data, start, end)
    number, wire_type = tag >> 3, tag & 7
    if not 0 < number <= MOST_FIELD_NUMBER:
        raise Malformed(start, f"a tag has the field number {number}")
    if wire_type == WireType.VARINT:
        value, stop = read_varint(data, at, end)
        return WireField(number, wire_type, start, at, stop, value)
    if wire_type == WireType.LEN:
        length, at = read_varint(data, at, end)
    elif wire_type in _FIXED_BYTES:
        length = _FIXED_BYTES[wire_type]
    else:
        raise Malformed(start, f"field {number} has the wire type {wire_type}")
    if length > end - at:
        raise Malformed(start, f"field {number} needs {length} bytes, {end - at} are left")
    return WireField(number, wire_type, start, at, at + length)


def varint(number: int) -> bytes:
    """`number`, from 0 to 2^64 - 1, as it is written. Raises ValueError."""
    if not 0 <= number <= _U64:
        raise ValueError(f"{number} is not from 0 to 2^64 - 1")
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(number: int, value: bytes) -> bytes:
    """A LEN field."""
    return varint(number << 3 | WireType.LEN) + varint(len(value)) + value


# Layouts


class Form(Enum):
    """How a value is written: its wire type and, of a number, its bits and whether it is signed."""

    U64 = (WireType.VARINT, 64, False)
    U32 = (WireType.VARINT, 32, False)
    I64 = (WireType.VARINT, 64, True)
    I32 = (WireType.VARINT, 32, True)
    BOOL = (WireType.VARINT, 1, False)
    BYTES = (WireType.LEN, 0, False)
    #: Read as UTF-8; what isn't is shown by U+FFFD.
    TEXT = (WireType.LEN, 1, False)
    #: Without a layout it is kept as its bytes.
    MESSAGE = (WireType.LEN, 2, False)

    @property
    def wire_type(self) -> WireType:
        return self.value[0]


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its number, its name in the message's class, and how it is written."""

    number: int
    name: str
    form: Form
    #: The layout of a MESSAGE.
    layout: Layout | None = None
    repeated: bool = False
    #: Whether it is written even with its default, because its presence has a meaning.
    present: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a message, and what makes a value of them. A field that doesn't occur isn't handed over."""

    make: Callable[..., Any]
    fields: tuple[Field, ...]
    #: Names of which only the last to occur is kept.
    oneof: frozenset[str] = frozenset()
    by_number: Mapping[int, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_number", {known.number: known for known in self.fields})


class Read(NamedTuple):
    """A value, and how many fields of it and its parts aren't in the layout."""

    value: Any
    unknown_fields: int


def read(data: bytes, layout: Layout, start: int = 0, end: int | None = None) -> Read:
    """The message of `layout` in `data`. Raises Malformed."""
    occurred: dict[str, tuple[Field, list[WireField]]] = {}
    unknown = 0
    for found in walk(data, start, len(data) if end is None else end):
        known = layout.by_number.get(found.number)
        if known is None or known.form.wire_type != found.wire_type:
            unknown += 1
            continue
        if known.name in layout.oneof:
            for other in layout.oneof - {known.name}:
                occurred.pop(other, None)
        occurred.setdefault(known.name, (known, []))[1].append(found)
    values = {}
    for name, (known, places) in occurred.items():
        values[name], more = _value(data, known, places)
        unknown += more
    return Read(layout.make(**values), unknown)


def _value(data: bytes, known: Field, places: list[WireField]) -> Read:
    if known.repeated:
        entries = [_single(data, known, place) for place in places]
        return Read(tuple(entry.value for entry in entries), sum(entry.unknown_fields for entry in entries))
    if known.form is Form.MESSAGE and len(places) > 1:
        merged = b"".join(data[place.value_start : place.end] for place in places)
        return Read(merged, 0) if known.layout is None else read(merged, known.layout)
    return _single(data, known, places[-1])


def _single(data: bytes, known: Field, place: WireField) -> Read:
    if known.layout is not None:
        return read(data, known.layout, place.value_start, place.end)
    if known.form.wire_type is WireType.LEN:
        value = data[place.value_start : place.end]
        return Read(value.decode("utf-8", "replace") if known.form is Form.TEXT else value, 0)
    _, bits, signed = known.form.value
    if known.form is Form.BOOL:
        return Read(place.number_value != 0, 0)
    number = place.number_value & ((1 << bits) - 1)
    return Read(number - (1 << bits) if signed and number >> (bits - 1) else number, 0)


def write(message: Any, layout: Layout) -> bytes:
    """`message` with the fields of `layout`, in its order. None and, unless `present`, defaults are left out.

    Raises ValueError or TypeError for a value that its field can't hold.
    """
    return b"".join(_written(getattr(message, known.name), known) for known in layout.fields)


def _written(value: Any, known: Field) -> bytes:
    if value is None:
        return b""
    if known.repeated:
        return b"".join(_written_single(entry, known) for entry in value)
    if not value and not known.present and known.form is not Form.MESSAGE:
        return b""
    return _written_single(value, known)


def _written_single(value: Any, known: Field) -> bytes:
    if known.layout is not None:
        return delimited(known.number, write(value, known.layout))
    if known.form.wire_type is WireType.LEN:
        return delimited(known.number, value.encode() if known.form is Form.TEXT else bytes(value))
    _, bits, signed = known.form.value
    if not isinstance(value, int):
        raise TypeError(f"{known.name} must be a number")
    least, end = (-1 << (bits - 1), 1 << (bits - 1)) if signed else (0, 1 << bits)
    if not least <= value < end:
        raise ValueError(f"{known.name} is {value}, not from {least} to {end - 1}")
    return varint(known.number << 3) + varint(value & _U64)
