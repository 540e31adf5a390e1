"""The bytes of a connection's two directions as routed messages and the stream messages in them.

The first bytes of a direction show the envelope: a byte 01 and a 32-bit length before an array of CBOR, or a 16-bit
length before a message in BARE. In the middle of a connection, after a hole, and where a length leads to nothing that
is a message, the next two frames in a row are looked for. But a frame that a hole cut is passed over by its length, if
the hole ends in it and the next frame begins behind it. Framing is given up as soon as a header can't be that of a
message; what its length leads to is a frame nevertheless if the next one begins there, and none does before. Each byte
is in exactly one `Received`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.ockam.options import EnvelopeChoice, OckamOptions
from wirehouse_codecs.ockam.wire import resync
from wirehouse_codecs.ockam.wire.bare import BeyondLimit, Malformed
from wirehouse_codecs.ockam.wire.messages import PROTOCOLS, Decoded, decode_payload
from wirehouse_codecs.ockam.wire.resync import Look
from wirehouse_codecs.ockam.wire.routed import OPENING, Envelope, Routed, decode
from wirehouse_codecs.tcp.endpoints import Direction

#: Number of bytes in one row about bytes in which no frame begins.
PASSED_BYTES: Final = 1 << 16
#: Number of bytes after which no frame is looked for any more: twice the largest frame.
GIVE_UP_BYTES: Final = 32 << 20
#: Names of traffic that takes no part.
HEARTBEAT: Final = "heartbeat"
EMPTY_FRAME: Final = "empty frame"
OPENING_BYTE: Final = "opening byte"
NOT_BARE: Final = "not BARE"
MOST_SKIP_CHARACTERS: Final = 64
#: Why bytes are no frame.
CUT: Final = "cut by a hole"
NO_FRAME: Final = "no frame begins here"

_SIDES: Final = tuple(Direction)
#: Minimum number of bytes that show the envelope: 01, a length, the heads of an array and of a route.
_ENVELOPE_BYTES: Final = 7
_FORCED: Final = {EnvelopeChoice.BARE: Envelope.BARE16, EnvelopeChoice.CBOR: Envelope.CBOR32}
_NONE: Final = Look(0, 0)


class Detection(NamedTuple):
    """The envelope of a connection, and what showed it."""

    envelope: Envelope
    reason: str

    @property
    def name(self) -> str:
        """The dialect as tables have it."""
        return self.envelope.value


@dataclass(frozen=True, slots=True)
class Received:
    """What one side sent: a routed message, other traffic, or bytes that are neither; where it stands.

    With `rule` something is broken; with `skip` it is traffic that takes no part, unless it went to an address of the
    stream services; with a message in `decoded` neither. Without `routed` and `skip` the bytes are no frame, and
    without `rule` too the wire isn't at fault.
    """

    direction: Direction
    #: The place of the bytes that showed what it is.
    place: Place
    byte_start: int
    byte_end: int
    routed: Routed | None = None
    #: The content of the payload; None = there is no routed message, or it has nowhere to go.
    decoded: Decoded | None = None
    #: The name of other traffic: its protocol's, or one of those above.
    skip: str | None = None
    #: The name of the rule that is broken: `frame`, `routed` or `payload`.
    rule: str | None = None
    #: In a sentence: the field and its offset.
    reason: str = ""
    #: The bytes, for quarantine, where they give no message; also of other traffic, as its address decides if they go.
    undecoded: bytes = b""
    #: Whether the bytes are a frame that may be a message and is above a bound of this reader.
    beyond_limit: bool = False


@dataclass(slots=True)
class _Side:
    """The bytes of one direction that aren't in a Received yet."""

    #: Whether a frame is looked for, and begins not before this byte of the buffer.
    searching: bool
    searched: int = 0
    #: Where the buffer begins in the stream.
    at: int = 0
    buffer: bytearray = field(default_factory=bytearray)
    #: The rule of the next bytes that are passed over; None = the wire isn't at fault, or it was reported.
    rule: tuple[str, str] | None = None
    #: Where in the stream what was no message would end by its length; -1 = it had none.
    announced: int = -1
    #: How many were passed over already in the same search.
    passed: int = 0
    #: A hole cut a frame that ends there; -1 = none.
    skip_to: int = -1
    #: The position from which no frame is looked for any more.
    gave_up_at: int | None = None
    #: Length of the stream that is needed to read on; 0 = that isn't known yet.
    needed: int = field(default=0, init=False, compare=False)

    @property
    def end(self) -> int:
        """How much of the stream was received."""
        return self.at + len(self.buffer)

    def search(self, begin: int, rule: tuple[str, str] | None = None, announced: int = -1) -> None:
        """Look for a frame from byte `begin` of the buffer on."""
        self.announced, self.skip_to = announced, -1
        self.searching, self.searched, self.needed, self.passed, self.rule = True, begin, 0, 0, rule

    def consume(self, size: int) -> None:
        """Remove the next `size` bytes: they are in a Received."""
        self.at += size
        del self.buffer[:size]
        self.searched = max(0, self.searched - size)


class ReaderState(NamedTuple):
    """What a Reader carries from window to window."""

    detection: Detection | None
    sides: dict[Direction, _Side]


class Reader:
    """What both sides of one connection sent. `receive` bytes in arrival order, `finish` when no more come.

    `started_late`: the capture began after the connection did. Of each direction at most one frame and a row
    of bytes that are none are held. `state` is that of an earlier reader, to continue from.
    """

    def __init__(self, options: OckamOptions, *, started_late: bool = False, state: ReaderState | None = None) -> None:
        self._most = options.max_frame_bytes
        self._sides = {direction: _Side(started_late) for direction in _SIDES}
        self.detection: Detection | None = None
        forced = _FORCED.get(options.envelope)
        if forced is not None:
            self.detection = Detection(forced, "forced by the configuration")
        if state is not None:
            self.detection, self._sides = state

    def rest(self, direction: Direction) -> tuple[int, int] | None:
        """Begin and end of the bytes of `direction` in which no frame is looked for, for good; None = there are none.

        They are in no Received.
        """
        side = self._sides[direction]
        return None if side.gave_up_at is None else (side.gave_up_at, side.end)

    def has_begun(self, direction: Direction) -> bool:
        """Whether bytes of `direction` came, or are known to be missing."""
        side = self._sides[direction]
        return side.at > 0 or bool(side.buffer)

    def begin_within(self, direction: Direction) -> None:
        """What comes first of `direction` need not begin a frame."""
        side = self._sides[direction]
        if not side.searching:
            side.search(0)

    def receive(self, direction: Direction, data: bytes, place: Place) -> list[Received]:
        """Take the next bytes of `direction`: what they complete."""
        side = self._sides[direction]
        if side.gave_up_at is not None:
            side.at += len(data)
            return []
        side.buffer += data
        return self._advance(direction, place, final=False)

    def hole(self, direction: Direction, missing: int, place: Place) -> list[Received]:
        """`missing` bytes of `direction` never came: the frame that was begun is none.

        The next begins where its length leads, or is looked for.

        There is always a row for what was begun, if need be without bytes: whoever judges has to know of the hole.
        """
        side = self._sides[direction]
        if side.gave_up_at is not None:
            side.at += missing
            return []
        found = self._advance(direction, place, final=True)
        end = self._end_of_frame(side)
        found.append(self._undecoded(direction, place, len(side.buffer), CUT))
        side.at += missing
        if side.at <= end:
            side.skip_to, side.needed = end, 0
        else:
            side.search(0)
        return found

    def _end_of_frame(self, side: _Side) -> int:
        """Where the frame that was begun ends; -1 = that isn't known."""
        if side.skip_to >= 0 or side.searching or self.detection is None:
            return side.skip_to
        width = self.detection.envelope.length_bytes
        return side.at + width + int.from_bytes(side.buffer[:width], "big") if len(side.buffer) >= width else -1

    def finish(self, place: Place, *, closed: bool = True) -> list[Received]:
        """No more bytes come: what is left. Not `closed`: the capture ends before the connection."""
        reason = "the connection closed within a frame" if closed else "the capture ends within a frame"
        found: list[Received] = []
        for direction, side in self._sides.items():
            found += self._advance(direction, place, final=True)
            if side.buffer:
                found.append(self._undecoded(direction, place, len(side.buffer), reason))
        return found

    def is_lost(self, direction: Direction) -> bool:
        """Whether it isn't known where the next frame of `direction` begins, so that some may be held back.

        A frame that is no message but ends with what came counts as one until more comes.
        """
        side = self._sides[direction]
        return side.searching and (side.passed > 0 or side.announced not in (side.end, side.at + side.searched))

    def end(self, direction: Direction) -> int:
        """Number of bytes of `direction` that are here."""
        return self._sides[direction].end

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no Received yet."""
        return self._sides[direction].at

    # For the fast path, which cuts frames itself

    def pending(self, direction: Direction) -> tuple[int, bytes] | None:
        """Where in the stream of `direction` its next frame begins, and what is here of it; None = this
        isn't known: nothing came yet, or the begin of a frame is looked for."""
        side = self._sides[direction]
        is_settled = side.at and not side.searching and side.skip_to < 0 and side.gave_up_at is None
        return (side.at, bytes(side.buffer)) if is_settled else None

    def go_on(self, direction: Direction, at: int, pending: bytes) -> None:
        """The frames of `direction` up to byte `at` were taken; `pending` is what is here of the next."""
        side = self._sides[direction]
        side.at, side.buffer, side.needed = at, bytearray(pending), 0

    def limit(self, envelope: Envelope) -> int:
        """The largest length of a message."""
        return min(self._most or envelope.max_message_bytes, envelope.max_message_bytes)

    # Frames

    def _advance(self, direction: Direction, place: Place, *, final: bool) -> list[Received]:
        """The frames in the buffer. With `final` no more comes, and less than a row of two frames will do."""
        side = self._sides[direction]
        found: list[Received] = []
        while side.buffer and (final or side.end >= side.needed) and side.gave_up_at is None:
            if side.skip_to >= 0:
                going_on = self._skip(direction, place, found, final)
            elif side.searching:
                going_on = self._search(direction, place, found, final)
            else:
                going_on = self._take(direction, place, found, final)
            if not going_on:
                break
        return found

    def _skip(self, direction: Direction, place: Place, found: list[Received], final: bool) -> bool:
        """Pass over the rest of a frame that a hole cut, if the next one begins behind it; False = more is needed."""
        side = self._sides[direction]
        size = min(side.skip_to - side.at, PASSED_BYTES)
        if len(side.buffer) < size and not final:
            side.needed = side.at + size
            return False
        if size:
            found.append(self._undecoded(direction, place, min(size, len(side.buffer)), CUT))
            return True
        begun = self._look(side.buffer, 0, self._envelope, searching=True)
        if begun == _NONE:
            side.search(0)
        elif begun.end or final:
            side.skip_to = -1
        else:
            side.needed = side.at + begun.needed
            return False
        return True

    def _take(self, direction: Direction, place: Place, found: list[Received], final: bool) -> bool:
        """Take the next frame; False = it isn't whole."""
        side, buffer = self._sides[direction], self._sides[direction].buffer
        if side.at == 0 and not self._opened(direction, place, found):
            return False
        envelope = self._envelope
        width = envelope.length_bytes
        if len(buffer) < width:
            side.needed = side.at + width
            return False
        length = int.from_bytes(buffer[:width], "big")
        end = width + length
        if not length:
            found.append(self._received(direction, place, end, skip=EMPTY_FRAME))
            return True
        if length > self.limit(envelope):
            side.search(1, ("frame", f"length {length}, the limit is {self.limit(envelope)}"))
            return True
        if len(buffer) < end:
            shown = self._look(buffer, 0, envelope)
            if shown == _NONE:
                self._lose(side, end)
                return True
            side.needed = side.at + (shown.end or shown.needed)
            return False
        try:
            received = read(buffer, envelope, end, direction, place, side.at)
        except Malformed as malformed:
            if self._look(buffer, 0, envelope) == _NONE:
                self._lose(side, end)
                return True
            if isinstance(malformed, BeyondLimit):
                found.append(self._undecoded(direction, place, end, str(malformed), beyond_limit=True))
                return True
            return self._malformed(direction, place, found, final, end, str(malformed))
        if self.detection is None:
            self.detection = Detection(envelope, "a 16-bit length leads to the end of a message in BARE")
        side.consume(end)
        found.append(received)
        return True

    def _opened(self, direction: Direction, place: Place, found: list[Received]) -> bool:
        """Take the byte before the first frame of CBOR, which shows the envelope; False = more is needed."""
        side, buffer = self._sides[direction], self._sides[direction].buffer
        if not buffer.startswith(OPENING):
            return True
        if self.detection is None:
            if len(buffer) < _ENVELOPE_BYTES:
                side.needed = _ENVELOPE_BYTES
                return False
            # In BARE the last of these would end the length of an address, and be below 80.
            array, route = bytes(buffer[5:6]), bytes(buffer[6:7])
            if array not in (b"\x83", b"\x84") or not b"\x80" <= route <= b"\x9b":
                return True
            self.detection = Detection(Envelope.CBOR32, "a byte 01 and a 32-bit length come before an array of CBOR")
        if self.detection.envelope is Envelope.CBOR32:
            found.append(self._received(direction, place, len(OPENING), skip=OPENING_BYTE))
        return bool(buffer)

    @property
    def _envelope(self) -> Envelope:
        """Until the envelope is known, BARE is tried, which has no sign of its own."""
        return Envelope.BARE16 if self.detection is None else self.detection.envelope

    def _lose(self, side: _Side, end: int) -> None:
        """What begins is no message; its length announced that it ends at `end`."""
        side.search(1, ("frame", "no message begins behind its length"), side.at + end)

    def _malformed(
        self, direction: Direction, place: Place, found: list[Received], final: bool, end: int, reason: str
    ) -> bool:
        """Pass over a frame that is no message. If another follows, it broke a rule, else its length is none."""
        side = self._sides[direction]
        next_one = self._look(side.buffer, end, self._envelope, searching=True)
        if next_one.needed and not final:
            side.needed = side.at + next_one.needed
            return False
        if next_one == _NONE:
            side.search(1, ("frame", f"neither this nor what its length leads to is a message: {reason}"))
            return True
        found.append(self._undecoded(direction, place, end, reason, "routed"))
        return True

    # The search for a frame

    def _search(self, direction: Direction, place: Place, found: list[Received], final: bool) -> bool:
        """Go on looking for a frame; False = more bytes are needed."""
        side = self._sides[direction]
        envelopes = tuple(Envelope) if self.detection is None else (self.detection.envelope,)
        limits = {envelope: self.limit(envelope) for envelope in envelopes}
        begun = resync.find(side.buffer, side.searched, limits, side.announced - side.at, final=final)
        side.searched = begun.offset
        while side.searched >= PASSED_BYTES and side.gave_up_at is None:
            found.append(self._passed(direction, place, PASSED_BYTES))
            if side.passed >= GIVE_UP_BYTES:
                side.gave_up_at = side.at
                side.consume(len(side.buffer))
                return False
        if begun.envelope is None and not final:
            side.needed = side.at + begun.needed - (begun.offset - side.searched)
            return False
        if side.searched:
            if not side.passed and side.at + side.searched == side.announced:
                side.rule = ("routed", self._why(side.buffer, side.searched))
            found.append(self._passed(direction, place, side.searched))
        if begun.envelope is None:
            return False
        side.searching = False
        self.detection = self.detection or Detection(
            begun.envelope, "two frames in a row fit in the middle of a connection"
        )
        return True

    def _look(self, buffer: bytearray, at: int, envelope: Envelope, *, searching: bool = False) -> Look:
        """Whether a frame begins at `at`, by its length, its routes and the length of its payload."""
        return resync.look(buffer, at, envelope, self.limit(envelope), searching=searching)

    # Results

    def _received(self, direction: Direction, place: Place, size: int, **fields: Any) -> Received:
        """The next `size` bytes, which leave the buffer."""
        side = self._sides[direction]
        start = side.at
        side.consume(size)
        return Received(direction, place, start, start + size, **fields)

    def _undecoded(
        self,
        direction: Direction,
        place: Place,
        size: int,
        reason: str,
        rule: str | None = None,
        *,
        beyond_limit: bool = False,
    ) -> Received:
        data = bytes(self._sides[direction].buffer[:size])
        fields = {"rule": rule, "reason": reason, "undecoded": data, "beyond_limit": beyond_limit}
        return self._received(direction, place, size, **fields)

    def _passed(self, direction: Direction, place: Place, size: int) -> Received:
        side = self._sides[direction]
        rule, reason = side.rule or (None, NO_FRAME)
        side.rule = None
        side.passed += size
        return self._undecoded(direction, place, size, reason, rule)

    def _why(self, buffer: bytearray, size: int) -> str:
        """What is wrong with a frame that is no message."""
        try:
            decode(buffer, self._envelope, self._envelope.length_bytes, size)
        except Malformed as malformed:
            return str(malformed)
        # The other side showed the envelope since.
        return NO_FRAME

    @property
    def state(self) -> ReaderState:
        """What a later reader continues from."""
        return ReaderState(self.detection, self._sides)


def read(
    data: bytes | bytearray, envelope: Envelope, size: int, direction: Direction, place: Place, byte_start: int
) -> Received:
    """The frame that the first `size` bytes of `data` are, length included. Raises Malformed."""
    routed = decode(data, envelope, envelope.length_bytes, size)
    span = (direction, place, byte_start, byte_start + size)
    if not routed.onward_route:
        return Received(*span, routed=routed, skip=HEARTBEAT)
    decoded = decode_payload(routed.payload, direction)
    if decoded.message is not None:
        return Received(*span, routed=routed, decoded=decoded)
    name = decoded.protocol_name
    known = name is not None and name in PROTOCOLS and bool(PROTOCOLS[name][direction])
    return Received(
        *span,
        routed=routed,
        decoded=decoded,
        skip=None if known else _shown(name),
        rule="payload" if known else None,
        reason=decoded.reason,
        undecoded=bytes(data[:size]),
    )


def _shown(protocol_name: str | None) -> str:
    """What traffic of this protocol is counted as; bytes that may be anything make no name."""
    credible = protocol_name and protocol_name.isprintable() and len(protocol_name) <= MOST_SKIP_CHARACTERS
    return protocol_name if protocol_name and credible else NOT_BARE
