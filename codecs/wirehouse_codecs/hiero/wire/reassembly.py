"""Messages whose bytes come in parts: small ones whole, sets of block items as they come.

A set of up to MAX_MESSAGE_BYTES passes through in parts of PART_BYTES. What is held of all calls together is at most
SETS_BYTES: when that is full, what is held of the largest is given early, or its unfinished item isn't held. Before
that, what comes of a message doesn't depend on the pieces in which its bytes came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wirehouse_codecs.hiero.wire.items.cutting import Fault, ItemReader, Items
from wirehouse_codecs.hiero.wire.protobuf import Malformed, read_varint
from wirehouse_codecs.tcp.endpoints import Direction

#: Maximum size of a message that is given whole.
WHOLE_BYTES: Final = 64 << 10
PART_BYTES: Final = 4 << 20
#: Held of all unfinished messages of a connection.
SETS_BYTES: Final = 8 << 20
#: Number of bytes of a set that are cut into items at once: with fewer, the start costs more.
CUT_BYTES: Final = 1 << 20
_MOST_PREFIX: Final = 20

#: A call, and who sends.
Key = tuple[int, Direction]


class Cut(NamedTuple):
    """Items of a large message, as soon as they are complete; its next part follows."""

    key: Key
    items: Items


class Part(NamedTuple):
    """A message, or a part of one that is too large to be given whole."""

    key: Key
    #: The message; None = a part.
    whole: bytes | None
    #: The bytes of a part: in a set, those of the set; without one, those of the message.
    raw: bytes | bytearray = b""
    #: Which part it is, from 0 on, and whether it is the last.
    number: int = 0
    last: bool = True
    #: Whether it is a set of block items; what comes later can't be read, and why.
    is_set: bool = False
    reason: str = ""


@dataclass(slots=True)
class PartialMessage:
    """A message that comes."""

    #: The tag of sets; None = none come here.
    tag: int | None
    #: What came before it is known that the message is large; None from then on.
    head: bytearray | None = field(default_factory=bytearray)
    #: The part that comes; and how much of it was cut into items.
    raw: bytearray = field(default_factory=bytearray)
    cut: int = 0
    number: int = 0
    reader: ItemReader | None = None
    #: Bytes that are left of the set, and what there is of the next one's tag and length.
    left: int = 0
    prefix: bytes = b""
    reason: str = ""

    @property
    def held(self) -> int:
        return len(self.head or b"") + len(self.raw) + (0 if self.reader is None else self.reader.held)


class Assembly:
    """The unfinished messages of one connection, which are its `state`.

    `limits`, in bytes: the largest item, and the largest that is held.
    """

    def __init__(self, *limits: int, state: dict[Key, PartialMessage] | None = None) -> None:
        self._limits = limits
        self._messages: dict[Key, PartialMessage] = state or {}
        self._held = sum(message.held for message in self._messages.values())

    def receive(self, key: Key, data: bytes | memoryview, last: bool, tag: int | None) -> list[Part | Cut]:
        """The next bytes of a message; `tag` is that of a set of items on this side, if sets come here."""
        message = self._messages.get(key)
        if message is None:
            if last and len(data) <= WHOLE_BYTES:
                return [Part(key, bytes(data))]
            message = self._messages[key] = PartialMessage(tag)
        parts: list[Part | Cut] = []
        data = memoryview(data)
        at = 0
        if message.head is not None and not message.head and len(data) > WHOLE_BYTES:
            message.head, at = None, len(data)
            self._begin_stream(key, message, data, parts)
        elif message.head is not None:
            at = min(WHOLE_BYTES + 1 - len(message.head), len(data))
            message.head += data[:at]
            self._held += at
            if len(message.head) > WHOLE_BYTES:
                self._begin(key, message, parts)
            else:
                self._relieve(parts)
        if message.head is None and at < len(data):
            self._stream(key, message, data[at:], parts)
        if last:
            parts += self._finish(key, message)
        return parts

    def drop(self, key: Key) -> Part | None:
        """The message gets no further bytes: what is held of it, as bytes; None = nothing was begun."""
        message = self._messages.get(key)
        if message is None:
            return None
        if message.head is None:
            part = self._finish(key, message)[-1]
            assert isinstance(part, Part)
            return part
        self._held -= message.held
        del self._messages[key]
        return Part(key, None, bytes(message.head))

    def _finish(self, key: Key, message: PartialMessage) -> list[Part | Cut]:
        parts: list[Part | Cut] = []
        self._cut(key, message, parts, memoryview(message.raw)[message.cut :])
        self._held -= message.held
        del self._messages[key]
        if message.head is not None:
            return [Part(key, bytes(message.head))]
        if message.reader is not None and not message.reason:
            fault = message.reader.finish()
            missing = f"{message.left} bytes of the set are missing" if message.left else ""
            message.reason = _reason(fault) if fault is not None else missing
        return [*parts, self._part(key, message, last=True)]

    def _cut(self, key: Key, message: PartialMessage, parts: list[Part | Cut], fresh: memoryview | None = None) -> None:
        """Cut what came since the last time into items. `fresh`: that, where it can be read without a copy."""
        reader = message.reader
        if reader is None or message.cut == len(message.raw):
            return
        before = message.held
        data = bytes(memoryview(message.raw)[message.cut :]) if fresh is None else fresh
        parts += [Cut(key, items) for items in reader.receive(data)]
        message.cut = len(message.raw)
        if reader.fault is not None:
            self._pass_over(message, _reason(reader.fault))
        self._held += message.held - before

    def _begin(self, key: Key, message: PartialMessage, parts: list[Part | Cut]) -> None:
        """What is held of the message isn't all of it, and it isn't held back any more."""
        assert message.head is not None
        head, message.head = bytes(message.head), None
        self._held -= len(head)
        self._begin_stream(key, message, memoryview(head), parts)

    def _begin_stream(self, key: Key, message: PartialMessage, data: memoryview, parts: list[Part | Cut]) -> None:
        if message.tag is not None and data[0] == message.tag:
            message.reader = ItemReader(*self._limits)
        self._stream(key, message, data, parts)

    def _stream(self, key: Key, message: PartialMessage, data: memoryview, parts: list[Part | Cut]) -> None:
        at, end = 0, len(data)
        while at < end:
            if message.reader is not None and not message.left:
                self._cut(key, message, parts)
                at = at if message.reader is None else self._take_prefix(message, data, at)
                continue
            room = (SETS_BYTES - self._held) // 2
            if room < 1:
                self._relieve(parts)
                continue
            taken = min(end - at, room, PART_BYTES - len(message.raw))
            if message.reader is not None:
                taken = min(taken, message.left)
                message.left -= taken
            piece = data[at : at + taken]
            at += taken
            fresh = piece if message.cut == len(message.raw) else None
            message.raw += piece
            self._held += taken
            if len(message.raw) == PART_BYTES:
                self._cut(key, message, parts, memoryview(message.raw)[message.cut :])
                parts.append(self._emit(key, message))
            elif len(message.raw) - message.cut >= CUT_BYTES:
                self._cut(key, message, parts, fresh)

    def _take_prefix(self, message: PartialMessage, data: memoryview, at: int) -> int:
        """Take the tag and the length of a set; a message may have several, which count as one."""
        before = len(message.prefix)
        prefix = message.prefix + bytes(data[at : at + _MOST_PREFIX - before])
        try:
            tag, body = read_varint(prefix, 0, len(prefix))
            if tag != message.tag:
                self._pass_over(message, f"a field with the tag {tag} follows on the items")
                message.raw += prefix
                self._held += len(prefix)
                return at + len(prefix) - before
            message.left, body = read_varint(prefix, body, len(prefix))
        except Malformed:
            if len(prefix) < _MOST_PREFIX:
                message.prefix = prefix
                return len(data)
            self._pass_over(message, "the length of a set is none")
            message.raw += prefix
            self._held += len(prefix)
            return at + len(prefix) - before
        message.prefix = b""
        return at + body - before

    def _pass_over(self, message: PartialMessage, reason: str) -> None:
        """Nothing more is read of the message; its bytes are kept."""
        message.reason, message.reader, message.prefix = reason, None, b""

    def _relieve(self, parts: list[Part | Cut]) -> None:
        """Hold less, if too much is held: of the largest message."""
        while self._held > SETS_BYTES - 2:
            key, message = max(self._messages.items(), key=lambda entry: (entry[1].held, entry[0]))
            if message.head is not None:
                self._begin(key, message, parts)
            elif message.raw:
                self._cut(key, message, parts)
                parts.append(self._emit(key, message))
            else:
                assert message.reader is not None
                before = message.held
                items = message.reader.pass_over()
                if items is not None:
                    parts.append(Cut(key, items))
                else:
                    fault = message.reader.fault
                    self._pass_over(message, "too many messages at once" if fault is None else _reason(fault))
                self._held += message.held - before

    def _emit(self, key: Key, message: PartialMessage) -> Part:
        self._held -= len(message.raw)
        return self._part(key, message, last=False)

    def _part(self, key: Key, message: PartialMessage, *, last: bool) -> Part:
        is_set = message.reader is not None or bool(message.reason)
        part = Part(key, None, message.raw, message.number, last, is_set, message.reason)
        message.raw, message.cut = bytearray(), 0
        message.number += 1
        return part

    @property
    def state(self) -> dict[Key, PartialMessage]:
        """What a later assembly continues from."""
        return self._messages


def _reason(fault: Fault) -> str:
    return f"items from byte {fault.at}: {fault.reason}"
