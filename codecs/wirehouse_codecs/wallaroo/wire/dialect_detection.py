"""Finds the dialect of a connection by its first frames.

HELLO alone isn't enough: the version string was never changed although the layout was, twice. So detection goes by the
byte order of the first length, then the OK frame, then frames that only one dialect can have written. `Detector` takes
frames of both directions as they arrive, and returns a `Detection` with its reason once it knows. The drafts `t1` and
`dev`, which no release ever spoke, are recognised and not decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import (
    DIALECTS,
    SEED,
    SEED_SID,
    SINK,
    SINK_V2B,
    V2A,
    V2B,
    V3,
    ByteOrder,
    Dialect,
)
from wirehouse_codecs.wallaroo.frames import EosMessage, Frame, Hello, Message, Notify, Ok, Restart, WorkersLeft
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, decode

SOURCE_VERSION: Final = b"0.0.1"
SINK_VERSION: Final = b"v0.0.1"
DEV_VERSION: Final = b"0.0001"
#: The first length of a connection, that of HELLO, is below this: four strings, of the text each as long as it may be.
HELLO_LIMITS: Final[Mapping[ByteOrder, int]] = {"big": 1 << 16, "little": 1 + 4 * (2 + 0xFFFF) + 1}
#: Number of MESSAGE frames that are scored if no single frame decides.
SCORED_MESSAGES: Final = 16
#: Streams that are remembered while the dialect is open.
SCORED_STREAMS: Final = 256
#: Ids above this count as bytes of something else, if nothing better decides.
PLAUSIBLE_ID: Final = 1 << 48

#: A part of the reason if v2b may be v2a.
OPEN_V2: Final = "no OK or RESTART tells v2a from v2b"

_LETTERS: Final = frozenset(SEED.tags.values())
_NUMBERS: Final = frozenset(V3.tags.values())


@dataclass(frozen=True, slots=True)
class Detection:
    """The dialect of a connection, and the reason for it."""

    #: None: one of the drafts that are not decoded.
    dialect: Dialect | None
    #: The dialect's name, also of one that is not decoded.
    name: str
    reason: str


def byte_order_of(head: bytes) -> ByteOrder | None:
    """The byte order of a stream by its first length and tag; None = not decided by these five bytes."""
    if len(head) < LENGTH_BYTES + 1:
        return None
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    # Only a HELLO has such lengths, so its tag has to fit as well.
    is_hello = head[LENGTH_BYTES] == SEED.tags[Hello]
    little = 0 < length < HELLO_LIMITS["little" if is_hello else "big"]
    big = 0 < int.from_bytes(head[:LENGTH_BYTES], "big") < HELLO_LIMITS["big"]
    if little and not big and head[LENGTH_BYTES] not in _NUMBERS:
        return "little"
    return "big" if big or (little and head[LENGTH_BYTES] in _NUMBERS) else None


@dataclass(slots=True)
class Detector:
    """Takes the frames of a connection in arrival order until the dialect is known.

    `dialect` forces one by name. A detector holds a bounded number of ids.
    """

    byte_order: ByteOrder
    dialect: str | None = None
    #: Whether bytes of the connector weren't captured, so that a stream may have been notified unseen.
    lacks: bool = False
    _sink: bool = False
    _hello: bool = False
    #: Whether no frame has ruled out the dialect.
    _v3: bool = True
    _v2a: bool = True
    _v2b: bool = True
    _notified: list[int] = field(default_factory=list)
    _scores: dict[str, int] = field(default_factory=lambda: {"v3": 0, "v2": 0})
    _last: dict[str, dict[int, int]] = field(default_factory=lambda: {"v3": {}, "v2": {}})
    _messages: int = 0
    #: Number of MESSAGE frames of the text that read well both with and without a stream id.
    _undecided: int = 0
    #: Ids of messages if they are read without a stream id. Nothing else in these messages decides.
    _literal: list[int] = field(default_factory=list)

    def offer(self, direction: Direction, body: bytes) -> Detection | None:
        """Take the next frame (tag and fields) that `direction` sent. Return the detection once it is known."""
        if self.dialect is not None:
            return Detection(DIALECTS[self.dialect], DIALECTS[self.dialect].name, "forced by the configuration")
        if not body:
            return None
        if self.byte_order == "little":
            return self._offer_seed(direction, body)
        if body[0] in _LETTERS:
            return Detection(None, "t1", "big endian with a letter for a tag")
        return self._offer_implemented(direction, body)

    def conclude(self) -> Detection:
        """The best guess, when no more frames come or too many wait."""
        if self.dialect is not None:
            return Detection(DIALECTS[self.dialect], DIALECTS[self.dialect].name, "forced by the configuration")
        if self.byte_order == "little":
            if len(set(self._literal)) * 2 > len(self._literal):
                return _found(SEED, "its stream isn't known, and without a stream id messages have ids of their own")
            if self._literal:
                return _found(SEED_SID, "its stream isn't known, and without a stream id messages have few ids")
            if self._undecided:
                return _found(SEED_SID, "messages begin with an id of a notified stream, and nothing else tells")
            return _found(SEED, "little endian, and no message tells whether it has a stream id")
        v3, v2 = self._scores["v3"], self._scores["v2"]
        if self._sink:
            return self._sinks(self._v3 and v3 >= v2, "its version is that of sinks, and no OK tells the layout")
        if self._v3 and (v3 >= v2 or not (self._v2a or self._v2b)):
            why = f"messages read better as v3 ({v3} to {v2})" if self._messages else "no frame tells, so the last one"
            return _found(V3, why)
        why = f"messages read better with flags ({v2} to {v3})" if self._v3 else "a message is too short for v3"
        chosen = V2B if self._v2b else V2A
        return _found(chosen, why + (f", and {OPEN_V2}" if self._v2a and self._v2b else ""))

    # Implemented dialects

    def _offer_implemented(self, direction: Direction, body: bytes) -> Detection | None:
        kind = V3.frame_of(body[0])
        if kind is Hello and direction is Direction.CLIENT and not self._hello:
            return self._by_hello(body)
        if kind is Ok and direction is Direction.SERVER:
            return self._by_ok(body)
        if kind is Message:
            return self._by_message(body)
        if kind in (EosMessage, WorkersLeft) and not self._sink:
            return _found(V3, f"tag {body[0]} exists in v3 only")
        if kind is Restart and len(body) == 1:
            return _found(V2A, "RESTART has no body")
        if kind is Restart:
            self._v2a = False
        return None

    def _by_hello(self, body: bytes) -> Detection | None:
        self._hello = True
        hello = decode(body, V3).frame
        if isinstance(hello, Hello) and hello.version == DEV_VERSION:
            return Detection(None, "dev", f"big endian with version {DEV_VERSION.decode()}")
        self._sink = isinstance(hello, Hello) and hello.version == SINK_VERSION
        return None

    def _by_ok(self, body: bytes) -> Detection | None:
        fits = [dialect for dialect in (V3, V2A, V2B) if decode(body, dialect).rule is None]
        if not fits:
            return None
        lists = {V3.name: "has no list", V2A.name: "ends after one list", V2B.name: "ends after two lists"}
        reason = f"OK {lists[fits[0].name]}"
        return self._sinks(fits[0] is V3, reason) if self._sink else _found(fits[0], reason)

    def _sinks(self, v3: bool, reason: str) -> Detection:
        return _found(SINK if v3 else SINK_V2B, f"version {SINK_VERSION.decode()}; {reason}")

    def _by_message(self, body: bytes) -> Detection | None:
        """A single message is ambiguous, so a number of them is scored, unless an OK may still come."""
        self._messages += 1
        for name, dialect in (("v3", V3), ("v2", V2B)):
            self._scores[name] += self._score(name, decode(body, dialect).frame)
        # u8 tag, u64 stream id, u64 id, i64 event time, u16 length of the key.
        if len(body) < 27:
            self._v3 = False
        return self.conclude() if self._messages >= SCORED_MESSAGES and not self._hello else None

    def _score(self, name: str, message: Frame | None) -> int:
        if not isinstance(message, Message) or message.stream_id is None:
            return -1
        flags = message.flags or 0
        if flags & ~(V2B.flags or 0) or any(flags & pair == pair for pair in V2B.forbidden_flags):
            return -1
        last = self._last[name]
        before = last.get(message.stream_id, -1)
        if message.message_id is not None and (message.stream_id in last or len(last) < SCORED_STREAMS):
            last[message.stream_id] = message.message_id
        return 1 + (message.message_id is None or message.message_id > before)

    # The text

    def _offer_seed(self, direction: Direction, body: bytes) -> Detection | None:
        frame = decode(body, SEED).frame
        if direction is not Direction.CLIENT:
            return None
        if isinstance(frame, Notify) and len(self._notified) < SCORED_STREAMS:
            self._notified.append(frame.stream_id)
        if body[0] != SEED.tags[Message]:
            return None
        return self._by_seed_message(body)

    def _by_seed_message(self, body: bytes) -> Detection | None:
        literal, with_id = decode(body, SEED).frame, decode(body, SEED_SID).frame
        if not _sane(with_id):
            return _found(SEED, "a message leaves no room for a stream id") if _sane(literal) else None
        assert isinstance(with_id, Message)
        plausible = (with_id.message_id or 0) < PLAUSIBLE_ID
        if not self._notified or (self.lacks and with_id.stream_id not in self._notified):
            # Read without it, a small stream id gives id 0 or, by the flags, a huge one; a large one no sane flags.
            reads = isinstance(literal, Message) and _sane(literal) and 0 < (literal.message_id or 0) < PLAUSIBLE_ID
            if self.lacks and _sane(literal) and plausible == reads:
                assert isinstance(literal, Message)
                self._literal.append(literal.message_id or 0)
                return self.conclude() if len(self._literal) >= SCORED_MESSAGES else None
            if (plausible and not reads) or (self.lacks and not _sane(literal)):
                return _found(SEED_SID, "its stream isn't known, and messages read well with a stream id only")
            return _found(SEED, "its stream isn't known, and messages read well without a stream id")
        if with_id.stream_id not in self._notified:
            if _sane(literal):
                return _found(SEED, "a message doesn't begin with the id of a notified stream")
            return _found(SEED_SID, "flags are sane only behind a stream id")
        if plausible or not _sane(literal):
            return _found(SEED_SID, "a message begins with the id of a notified stream, and sane flags follow")
        self._undecided += 1
        return self.conclude() if self._undecided >= SCORED_MESSAGES else None


def _found(dialect: Dialect, reason: str) -> Detection:
    return Detection(dialect, dialect.name if not dialect.sink else SINK.name, reason)


def _sane(message: Frame | None) -> bool:
    """Whether it is a message of the text whose flags are all known."""
    return isinstance(message, Message) and not (message.flags or 0) & ~(SEED.flags or 0)


def detect(frames: Iterable[tuple[Direction, bytes]], byte_order: ByteOrder, dialect: str | None = None) -> Detection:
    """The dialect of a whole connection from the bodies of its frames in arrival order."""
    detector = Detector(byte_order, dialect)
    found = (detector.offer(direction, body) for direction, body in frames)
    return next((detection for detection in found if detection is not None), None) or detector.conclude()
