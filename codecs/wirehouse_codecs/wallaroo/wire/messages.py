"""Frames of the Wallaroo connector protocol: encode, decode, and the framer. The layouts are in `wallaroo/dialects.py`.

A frame is a 32-bit length, a tag and fields (specification, "Wire Format"). The text was drafted little endian with
letters for tags, the implementations are big endian with numbers, and the layouts changed between them. A `Dialect`
says which, as data; one encoder and one readable decoder walk it for all.

Names and texts are bytes, for nothing on the wire says that they are UTF-8. Ids and points of reference use all 64
bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.wallaroo.dialects import HELLO_TEXTS, ByteOrder, Dialect, Field, Form
from wirehouse_codecs.wallaroo.frames import (
    KIND_OF,
    VERSION_BYTES,
    Frame,
    Hello,
    Message,
    VersionForm,
)
from wirehouse_codecs.wallaroo.rules import RULE

LENGTH_BYTES: Final = 4
#: The reason for which the rest of a frame with a hole in it is no frame.
CUT: Final = "cut by a hole"


# Encode


class EncodeError(WirehouseError):
    """A frame that can't be written in a dialect: a mistake of the caller, which no capture can cause."""

    template = "{kind} in {dialect}: {reason}"


_INTEGERS: Mapping[Form, tuple[int, bool]] = {
    Form.U8: (1, False),
    Form.U16: (2, False),
    Form.U32: (4, False),
    Form.U64: (8, False),
    Form.I64: (8, True),
}
_PREFIXES: Mapping[Form, int] = {Form.SHORT: 2, Form.SHORT_OR_NONE: 2, Form.LONG: 4}


def encode(frame: Frame, dialect: Dialect) -> bytes:
    """The whole frame with its length. What the dialect doesn't write must be left at its default.

    The limit on frames is the reader's, so larger ones can be written. Raises EncodeError for a frame that the dialect
    lacks, a value out of range, a field that the flags announce and the frame lacks, or one that would be lost.
    """
    try:
        body = encode_body(frame, dialect)
        return len(body).to_bytes(LENGTH_BYTES, dialect.byte_order) + body
    except (OverflowError, ValueError, TypeError) as error:
        raise EncodeError(kind=KIND_OF[type(frame)], dialect=dialect.name, reason=str(error)) from None


def encode_body(frame: Frame, dialect: Dialect) -> bytes:
    """Tag and fields. Raises OverflowError, ValueError or TypeError where `encode` raises EncodeError."""
    tag = dialect.tags.get(type(frame))
    if tag is None:
        raise ValueError("the dialect has no such frame")
    flags = _flags_of(frame)
    out = bytearray([tag])
    layout = [written for written in dialect.layouts[type(frame)] if written.written(flags)]
    _refuse_lost(frame, {written.name for written in layout})
    for written in layout:
        if written.form is Form.OPEN_VERSION:
            assert isinstance(frame, Hello)
            out += _version_bytes(frame)
        else:
            _put(out, getattr(frame, written.name), written, dialect.byte_order)
    return bytes(out)


def _flags_of(frame: Frame) -> int:
    return (frame.flags or 0) if isinstance(frame, Message) else 0


#: Value of a field that its dialect doesn't write.
_LEFT_OUT: Final = (None, b"", ())


def _refuse_lost(frame: Frame, written: set[str]) -> None:
    if isinstance(frame, Hello):
        return
    for name in type(frame).__dataclass_fields__:
        if name not in written and getattr(frame, name) not in _LEFT_OUT:
            raise ValueError(f"{name} would be lost")


def _version_bytes(hello: Hello) -> bytes:
    if hello.version_form is VersionForm.SHORT:
        return len(hello.version).to_bytes(2, "little") + hello.version
    if len(hello.version) != VERSION_BYTES[hello.version_form]:
        raise ValueError(f"a version of {len(hello.version)} bytes is no {hello.version_form.value}")
    return hello.version


def _put(out: bytearray, value: Any, written: Field, order: ByteOrder) -> None:
    form = written.form
    if form in _INTEGERS:
        if not isinstance(value, int):
            raise TypeError(f"{written.name} must be a number")
        size, signed = _INTEGERS[form]
        out += value.to_bytes(size, order, signed=signed)
    elif form in _PREFIXES:
        if value is None and form is not Form.SHORT_OR_NONE:
            raise TypeError(f"{written.name} is missing")
        text = value or b""
        out += len(text).to_bytes(_PREFIXES[form], order) + text
    elif form in (Form.REST, Form.REST_OR_NONE):
        if value is None and form is Form.REST:
            raise TypeError(f"{written.name} is missing")
        out += value or b""
    else:
        if form is Form.COUNTED:
            out += len(value).to_bytes(4, order)
        for entry in value:
            _put_entry(out, entry, written, order)


def _put_entry(out: bytearray, entry: Any, written: Field, order: ByteOrder) -> None:
    for part in written.entry:
        _put(out, entry if isinstance(entry, bytes) else getattr(entry, part.name), part, order)


# Decode


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded body: a frame, and the rule of decoding that it breaks; or no frame, and the reason."""

    frame: Frame | None = None
    rule: Rule | None = None
    #: The offending values in a sentence; empty without a rule. Never holds bytes of a HELLO.
    reason: str = ""
    #: Bytes after the last field.
    trailing: int = 0


class _Malformed(Exception):
    """A field reaches beyond the frame."""


class _Reader:
    """The fields of one body, from `at` on."""

    __slots__ = ("at", "body", "order")

    def __init__(self, body: bytes, order: ByteOrder, at: int = 1) -> None:
        self.body = body
        self.order = order
        self.at = at

    @property
    def left(self) -> int:
        return len(self.body) - self.at

    def take(self, size: int, name: str) -> bytes:
        if size > self.left:
            raise _Malformed(f"{name} needs {size} bytes, {self.left} are left")
        self.at += size
        return self.body[self.at - size : self.at]

    def number(self, size: int, name: str, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size, name), self.order, signed=signed)

    def read(self, written: Field) -> Any:
        form, name = written.form, written.name
        if form in _INTEGERS:
            size, signed = _INTEGERS[form]
            return self.number(size, name, signed=signed)
        if form in _PREFIXES:
            text = self.take(self.number(_PREFIXES[form], f"the length of {name}"), name)
            return None if form is Form.SHORT_OR_NONE and not text else text
        if form in (Form.REST, Form.REST_OR_NONE):
            text = self.take(self.left, name)
            return None if form is Form.REST_OR_NONE and not text else text
        if form is Form.COUNTED:
            return self._entries(written, self.number(4, f"the count of {name}"))
        return self._entries_to_end(written)

    def _entries(self, written: Field, count: int) -> tuple[Any, ...]:
        # The announced count only ever bounds a loop that stops at the end of the frame.
        return tuple(self._entry(written) for _ in range(count))

    def _entries_to_end(self, written: Field) -> tuple[Any, ...]:
        entries = []
        while self.left:
            entries.append(self._entry(written))
        return tuple(entries)

    def _entry(self, written: Field) -> Any:
        return written.make(*[self.read(part) for part in written.entry])


def decode(body: bytes, dialect: Dialect, version_form: VersionForm | None = None) -> Decoded:
    """The frame of `body` (tag and fields, without the length), by the rules of decoding in their order.

    `version_form` forces how a HELLO of the text writes its version; None = the first form whose strings end where the
    frame ends.
    """
    if not body:
        return Decoded(rule=RULE["empty_frame"], reason="length 0")
    kind = dialect.frame_of(body[0])
    if kind is None:
        return Decoded(rule=RULE["unknown_frame_type"], reason=f"tag {body[0]} is none of {dialect.name}")
    try:
        if kind is Hello and dialect.byte_order == "little":
            return _decode_open_hello(body, version_form)
        return _decode(body, kind, dialect)
    except _Malformed as malformed:
        return Decoded(rule=RULE["malformed_frame"], reason=f"{KIND_OF[kind]}: {malformed}")


def _decode(body: bytes, kind: type[Frame], dialect: Dialect) -> Decoded:
    reader = _Reader(body, dialect.byte_order)
    values: dict[str, Any] = {"stream_id": None, "message_id": None, "payload": None} if kind is Message else {}
    flags = 0
    for written in dialect.layouts[kind]:
        if written.written(flags):
            values[written.name] = reader.read(written)
            if written.name == "flags":
                flags = values["flags"]
    return _with_trailing(kind(**values), reader.left)


def _decode_open_hello(body: bytes, forced: VersionForm | None) -> Decoded:
    readings: list[Decoded] = []
    first: _Malformed | None = None
    for form in VersionForm if forced is None else (forced,):
        try:
            decoded = _hello_by(body, form)
        except _Malformed as malformed:
            first = first or malformed
            continue
        if not decoded.trailing:
            return decoded
        readings.append(decoded)
    if len(readings) == 1:
        return readings[0]
    if readings:
        # A wrong form takes one text for another, and shows the cookie as a name.
        raise _Malformed("no form of its version ends with the frame, and more than one ends before")
    raise first or _Malformed("no version")


def _hello_by(body: bytes, form: VersionForm) -> Decoded:
    reader = _Reader(body, "little")
    size = reader.number(2, "the length of version") if form is VersionForm.SHORT else VERSION_BYTES[form]
    version = reader.take(size, "version")
    cookie, program, instance = (reader.read(written) for written in HELLO_TEXTS)
    return _with_trailing(Hello(version, cookie, program, instance, form), reader.left)


def _with_trailing(frame: Frame, trailing: int) -> Decoded:
    if not trailing:
        return Decoded(frame)
    reason = f"{trailing} bytes after the last field of {KIND_OF[type(frame)]}"
    return Decoded(frame, RULE["trailing_bytes"], reason, trailing)


def mask(text: bytes, cookies: Iterable[bytes], shown: bytes = b"***") -> bytes:
    """`text` without the cookies that were seen: real workers print the one they had and the one they wanted.

    The wanted one is never seen in the clear, so only plain words of a text that mentions a cookie are kept. Nothing is
    kept if the cookie is among these: a gap would show which one it is.
    """
    known = sorted({cookie for cookie in cookies if cookie}, key=len, reverse=True)
    if b"cookie" not in text.lower() and not any(cookie in text for cookie in known):
        return text
    if any(cookie in text and cookie.lower() in word for cookie in known for word in _PLAIN_WORDS):
        return shown
    for cookie in known:
        text = text.replace(cookie, shown)
    return b" ".join(word if word.lower().strip(b".,:;!") in _PLAIN_WORDS else shown for word in text.split())


#: Words that are shown of a text that mentions a cookie.
_PLAIN_WORDS: Final = frozenset(
    b"cookie cookies version bad wrong invalid refused rejected mismatch mismatched does do not match doesn't didn't "
    b"expected got received but and the a an is was of in from for with worker connector hello error handshake".split()
)


# Frames from bytes


class Framed(NamedTuple):
    """A frame cut from the stream of one direction, or why none can be cut any more."""

    #: Position of its length, in bytes from the start of the stream.
    byte_start: int
    byte_end: int
    #: Tag and fields; with a rule, the length that breaks it.
    body: bytes
    #: `empty_frame` or `oversize_frame`: all that follows is undecodable.
    rule: str | None = None
    reason: str = ""


@dataclass(slots=True)
class Framer:
    """Cuts the bytes of one direction into frames (specification, "Wire Format"). Sans-IO.

    It holds at most one unfinished frame, so no more than the limit; an announced length reserves nothing. After a
    length of 0 or above the limit it can't cut frames any more: it reports that once, and then only counts bytes. The
    bytes of a frame behind a hole in it are given as bytes that are no frame.
    """

    byte_order: ByteOrder
    #: Maximum length of a frame, in bytes.
    limit: int
    #: Position of the unfinished frame in the stream, or of the next one.
    byte_start: int = 0
    _buffer: bytearray = field(default_factory=bytearray)
    #: Number of bytes that are still to come of a frame with a hole in it.
    _skip: int = 0
    #: The rule after which no frame can be cut; None = no such rule was broken.
    lost: str | None = None
    #: The position in the stream at which it was broken.
    lost_at: int | None = None

    @property
    def byte_end(self) -> int:
        """Number of bytes of the stream that were received."""
        return self.byte_start + len(self._buffer)

    @property
    def pending(self) -> bytes:
        """The unfinished frame, with its length."""
        return bytes(self._buffer)

    def receive(self, data: bytes) -> list[Framed]:
        """The frames that `data` completes, in order; empty = more needed."""
        if self.lost is not None:
            self.byte_start += len(data)
            return []
        buffer, at = self._buffer, 0
        frames: list[Framed] = []
        if self._skip:
            skipped = min(self._skip, len(data))
            frames.append(Framed(self.byte_start, self.byte_start + skipped, b"", reason=CUT))
            self._skip -= skipped
            self.byte_start += skipped
            data = data[skipped:]
        buffer += data
        while len(buffer) - at >= LENGTH_BYTES:
            length = int.from_bytes(buffer[at : at + LENGTH_BYTES], self.byte_order)
            if not 0 < length <= self.limit:
                frames.append(self._lose(at, length))
                at = len(buffer)
                break
            end = at + LENGTH_BYTES + length
            if end > len(buffer):
                break
            frames.append(Framed(self.byte_start + at, self.byte_start + end, bytes(buffer[at + LENGTH_BYTES : end])))
            at = end
        del buffer[:at]
        self.byte_start += at
        return frames

    def go_on(self, byte_start: int, pending: bytes) -> None:
        """The frames up to `byte_start` were cut elsewhere; `pending` is what came of the next one."""
        self.byte_start, self._buffer = byte_start, bytearray(pending)

    @property
    def skips(self) -> bool:
        """Whether it passes over the rest of a frame with a hole in it."""
        return self._skip > 0

    def skip(self, missing: int) -> bool:
        """Pass over `missing` bytes. True: all are of one frame of known length, so the next one's place is known."""
        left = self._skip
        if len(self._buffer) >= LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:LENGTH_BYTES], self.byte_order)
            left = LENGTH_BYTES + length - len(self._buffer)
        if missing > left:
            return False
        self.byte_start, self._skip = self.byte_end + missing, left - missing
        self._buffer.clear()
        return True

    def pass_over(self, missing: int) -> None:
        """Pass over `missing` bytes, after the rule `lost` was broken."""
        self.byte_start += missing

    def _lose(self, at: int, length: int) -> Framed:
        self.lost = "oversize_frame" if length else "empty_frame"
        reason = f"length {length}, the limit is {self.limit}" if length else "length 0"
        self.lost_at = self.byte_start + at
        said = bytes(self._buffer[at : at + LENGTH_BYTES])
        return Framed(self.lost_at, self.lost_at + LENGTH_BYTES, said, self.lost, reason)
