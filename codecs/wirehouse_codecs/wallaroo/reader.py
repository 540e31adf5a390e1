"""From the bytes of a connection's two directions to frames with their place.

`Reader` puts framer, detection and decoder together. Until the dialect is known it holds the frames back, at most
`HELD_FRAMES` and `HELD_BYTES` of them, so that each is decoded once and in the right layout. In the middle of a
connection, or after a hole, it looks for the next credible row of frames and gives back what it passed over.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from wirehouse_codecs.errors import StateVersionError
from wirehouse_codecs.rules import Place, Rule
from wirehouse_codecs.tcp import Direction
from wirehouse_codecs.wallaroo.dialects import (
    READINGS,
    Detection,
    Detector,
    byte_order_of,
    resynchronise,
)
from wirehouse_codecs.wallaroo.messages import (
    DIALECTS,
    LENGTH_BYTES,
    SEED,
    V3,
    ByteOrder,
    Decoded,
    Dialect,
    Framed,
    Framer,
    decode,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE

READER_VERSION: Final = 2
#: More than a connector has streams: it may notify all of them before the message that tells the dialect.
HELD_FRAMES: Final = 2048
HELD_BYTES: Final = 1 << 20
_SIDES: Final = tuple(Direction)
#: Why what stands before a hole is no frame.
CUT: Final = "cut by a hole"


@dataclass(frozen=True, slots=True)
class Received:
    """What one side sent: a frame, or bytes that are none; where it stands, and in which bytes of its stream."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    decoded: Decoded
    #: The bytes that couldn't be decoded, for quarantine; empty with a frame.
    undecoded: bytes = b""


class Rest(NamedTuple):
    """From where to where bytes stand that no frame is told from, for good, and the rule that says why."""

    byte_start: int
    byte_end: int
    rule: Rule


class Reader:
    """The frames of one connection. `receive` bytes in arrival order, `finish` when no more come.

    `started_late` says that the capture began after the connection did.
    """

    def __init__(self, options: WallarooOptions, *, started_late: bool = False, snapshot: str | None = None) -> None:
        self._options = options
        self.detection: Detection | None = None
        self._order: ByteOrder | None = None
        self._detector: Detector | None = None
        self._framers: dict[Direction, Framer] = {}
        #: Bytes that no framer has: until the byte order is known, and while a start is looked for.
        self._heads: dict[Direction, bytearray] = {direction: bytearray() for direction in _SIDES}
        #: Of the pieces in these: where each ends, and its place.
        self._pieces: dict[Direction, list[tuple[int, Place]]] = {direction: [] for direction in _SIDES}
        self._at = dict.fromkeys(_SIDES, 0)
        self._searching = dict.fromkeys(_SIDES, started_late)
        #: While a start is looked for: by which dialects it was, and how many bytes it takes to look again.
        self._looked: dict[Direction, tuple[tuple[Dialect, ...], int]] = dict.fromkeys(_SIDES, ((), 0))
        self._held: list[tuple[Direction, Place, Framed]] = []
        self._held_bytes = 0
        self._unsupported_told = False
        #: Of a connection that isn't decoded, from where to where its bytes reach in each direction.
        self._rest: dict[Direction, list[int]] = {direction: [0, 0] for direction in _SIDES}
        if options.forced is not None:
            dialect = DIALECTS[options.forced]
            self._order = dialect.byte_order
            self.detection = Detection(dialect, dialect.name, "forced by the configuration")
        if snapshot is not None:
            self._restore(snapshot)

    @property
    def dialect(self) -> Dialect | None:
        """The dialect, once it is known and can be decoded."""
        return None if self.detection is None else self.detection.dialect

    def framer(self, direction: Direction) -> Framer | None:
        """What cuts the frames of `direction`, once the dialect is known; None = it doesn't yet, or no more."""
        framer = None if self.dialect is None else self._framers.get(direction)
        return framer if framer is not None and framer.lost is None else None

    def rest(self, direction: Direction) -> Rest | None:
        """What no frame of `direction` is told from, for good; None = there is nothing.

        It begins with the bytes of the row that says so, so the quarantine has one row for all.
        """
        if self._unsupported_told:
            start, end = self._rest[direction]
            return Rest(start, end, RULE["dialect_unsupported"]) if end > start else None
        framer = self._framers.get(direction)
        if framer is None or framer.lost is None or framer.lost_at is None:
            return None
        return Rest(framer.lost_at, framer.byte_end, RULE[framer.lost])

    def receive(self, direction: Direction, data: bytes, place: Place) -> list[Received]:
        """Take the next bytes of `direction`; the frames of both directions that are complete and decodable now."""
        if self.detection is not None and self.detection.dialect is None:
            self._rest[direction][1] += len(data)
            return []
        if direction not in self._framers:
            self._heads[direction] += data
            self._pieces[direction].append((self._at[direction] + len(self._heads[direction]), place))
            return self._begin(direction, final=False)
        return self._take(direction, [(place, framed) for framed in self._framers[direction].receive(data)])

    def hole(self, direction: Direction, missing: int, place: Place) -> list[Received]:
        """`missing` bytes of `direction` never came: what was unfinished is undecodable, and a start is looked for.

        Between two frames that is a row without bytes: whoever judges the frames has to know of the hole.
        """
        if self._unsupported_told:
            self._rest[direction][1] += missing
            return []
        framer = self._framers.pop(direction, None)
        head = self._heads[direction]
        if framer is not None and framer.lost is not None:
            # The place is lost for good; the rest stays one row of quarantine.
            framer.pass_over(missing)
            self._framers[direction] = framer
            return []
        pending = bytes(head) if framer is None else framer.pending
        end = (self._at[direction] + len(head)) if framer is None else framer.byte_end
        head.clear()
        self._pieces[direction].clear()
        self._looked[direction] = (), 0
        self._at[direction] = end + missing
        self._searching[direction] = True
        if self.detection is not None:
            return [_undecodable(direction, place, end - len(pending), pending, CUT)]
        if not self._held or self._held[-1][2].reason != CUT:
            self._held.append((direction, place, Framed(end, end, b"", reason=CUT)))
        return [_undecodable(direction, place, end - len(pending), pending, CUT)] if pending else []

    def finish(self, place: Place, *, closed: bool = True) -> list[Received]:
        """No more bytes come: conclude on the dialect, and tell what is left unfinished.

        Not `closed`: the capture ends, which is no fault of an unfinished frame.
        """
        found: list[Received] = []
        for direction in _SIDES:
            # Of a draft, which the other side may just have shown it to be, all is in one row.
            if direction not in self._framers and self._heads[direction] and not self._unsupported_told:
                found += self._begin(direction, final=True)
        if self.detection is None and self._detector is not None:
            self.detection = self._detector.conclude()
            found += self._release()
        for direction in _SIDES:
            found += self._unfinished(direction, place, closed)
        return found

    def _begin(self, direction: Direction, *, final: bool) -> list[Received]:
        """Start cutting frames where a first one is credible. Each has the place of the piece that completed it."""
        head, pieces = self._heads[direction], self._pieces[direction]
        found: list[Received] = []
        if self._searching[direction]:
            candidates = self._candidates()
            before, needed = self._looked[direction]
            if len(head) < needed and candidates == before and not final:
                return found
            start = resynchronise(bytes(head), direction, candidates, final=final)
            self._looked[direction] = candidates, start.needed
            passed = bytes(head[: start.offset])
            if passed:
                until = self._at[direction] + len(passed)
                place = _place_of(pieces, until)
                found.append(_undecodable(direction, place, self._at[direction], passed, "no frame begins here"))
                del pieces[: bisect_right(pieces, until, key=itemgetter(0))]
            self._at[direction] += len(passed)
            del head[: start.offset]
            if not start.found:
                return found
            self._order = self._order or start.byte_order
        elif self._order is None:
            self._order = byte_order_of(bytes(head))
            if self._order is None and len(head) <= LENGTH_BYTES and not final:
                return found
            # Neither byte order gives a length that a first frame has: judged as the dialect that was spoken last.
            self._order = self._order or "big"
        limit = self._limit()
        framer = self._framers[direction] = Framer(self._order, limit, byte_start=self._at[direction])
        self._searching[direction] = False
        data = bytes(head)
        head.clear()
        self._pieces[direction] = []
        if self._detector is None and self.detection is None:
            self._detector = Detector(self._order)
        return found + self._take(
            direction, [(_place_of(pieces, framed.byte_end), framed) for framed in framer.receive(data)]
        )

    def _candidates(self) -> tuple[Dialect, ...]:
        """The dialects that the connection may speak, as far as is known."""
        if self.dialect is not None:
            return (self.dialect,)
        return tuple(dialect for dialect in READINGS if self._order in (None, dialect.byte_order))

    def _limit(self) -> int:
        dialect = self.dialect or (SEED if self._order == "little" else V3)
        return self._options.limit(dialect)

    def _take(self, direction: Direction, frames: list[tuple[Place, Framed]]) -> list[Received]:
        if self.detection is not None:
            return [self.decode(direction, place, framed) for place, framed in frames]
        for place, framed in frames:
            self._held.append((direction, place, framed))
            self._held_bytes += len(framed.body)
            # What breaks framing is a length, and no tag for the detector to read.
            if self.detection is None and self._detector is not None and framed.rule is None:
                self.detection = self._detector.offer(direction, framed.body)
        full = len(self._held) >= HELD_FRAMES or self._held_bytes >= HELD_BYTES
        if full and self.detection is None and self._detector is not None:
            self.detection = self._detector.conclude()
        return [] if self.detection is None else self._release()

    def _release(self) -> list[Received]:
        """The frames that were held back, now that the dialect is known."""
        held, self._held, self._held_bytes, self._detector = self._held, [], 0, None
        if self.dialect is None:
            return self._unsupported(held)
        return [self.decode(direction, place, framed) for direction, place, framed in held]

    def _unsupported(self, held: list[tuple[Direction, Place, Framed]]) -> list[Received]:
        """One row for all, but for what stands before a hole, and nothing more of this connection."""
        assert self.detection is not None
        frames = [one for one in held if one[2].body]
        if self._unsupported_told or not frames:
            return []
        self._unsupported_told = True
        for side in _SIDES:
            framer, head = self._framers.get(side), self._heads[side]
            end = self._at[side] + len(head) if framer is None else framer.byte_end
            begun = end - len(head) if framer is None else end - len(framer.pending)
            own = (framed.byte_start for direction, _, framed in frames if direction is side)
            self._rest[side] = [next((start for start in own if start >= self._at[side]), begun), end]
        direction, place, framed = frames[0]
        reason = f"dialect {self.detection.name}: {self.detection.reason}"
        decoded = Decoded(rule=RULE["dialect_unsupported"], reason=reason)
        said = Received(direction, place, framed.byte_start, framed.byte_end, decoded, framed.body)
        # Rows of what follows on these frames were told already.
        before = [
            Received(direction, place, framed.byte_start, framed.byte_end, Decoded(reason=reason), framed.body)
            for direction, place, framed in frames
            if framed.byte_start < self._at[direction]
        ]
        return [said, *before]

    def decode(self, direction: Direction, place: Place, framed: Framed) -> Received:
        """A frame that was cut, now that the dialect is known."""
        assert self.dialect is not None
        if framed.reason:
            decoded = Decoded(rule=framed.rule, reason=framed.reason)
        else:
            decoded = decode(framed.body, self.dialect, self._options.version_form)
        undecoded = framed.body if decoded.frame is None else b""
        return Received(direction, place, framed.byte_start, framed.byte_end, decoded, undecoded)

    def _unfinished(self, direction: Direction, place: Place, closed: bool) -> list[Received]:
        framer = self._framers.get(direction)
        pending = bytes(self._heads[direction]) if framer is None else framer.pending
        if not pending or (self.detection is not None and self.detection.dialect is None):
            return []
        start = self._at[direction] if framer is None else framer.byte_end - len(pending)
        rule = RULE["truncated_frame"] if closed else None
        decoded = Decoded(rule=rule, reason=f"{len(pending)} bytes of an unfinished frame")
        return [Received(direction, place, start, start + len(pending), decoded, pending)]

    def snapshot(self) -> str:
        """The state as JSON: a reader that is given it goes on as this one."""
        return json.dumps(
            {
                "version": READER_VERSION,
                "detection": None if self.detection is None else _detection_to_json(self.detection),
                "order": self._order,
                "detector": None if self._detector is None else self._detector.snapshot(),
                "framers": {direction: framer.snapshot() for direction, framer in self._framers.items()},
                "limits": {direction: framer.limit for direction, framer in self._framers.items()},
                "heads": {direction: bytes(head).hex() for direction, head in self._heads.items()},
                "pieces": {
                    direction: [[end, place.to_json()] for end, place in pieces]
                    for direction, pieces in self._pieces.items()
                },
                "at": self._at,
                "searching": self._searching,
                "held": [
                    [direction, place.to_json(), framed.byte_start, framed.byte_end, framed.body.hex()]
                    + [framed.rule and framed.rule.name, framed.reason]
                    for direction, place, framed in self._held
                ],
                "unsupported_told": self._unsupported_told,
                "rest": self._rest,
            },
            separators=(",", ":"),
        )

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != READER_VERSION:
            raise StateVersionError(what="wallaroo reader", found=state.get("version"), expected=READER_VERSION)
        self._order = state["order"]
        if state["detection"] is not None:
            name, shown, reason = state["detection"]
            self.detection = Detection(DIALECTS.get(name), shown, reason)
        if state["detector"] is not None and self._order is not None:
            self._detector = Detector(self._order, snapshot=state["detector"])
        for name, framer in state["framers"].items():
            assert self._order is not None
            self._framers[Direction(name)] = Framer(self._order, state["limits"][name], snapshot=framer)
        for direction in _SIDES:
            self._heads[direction] = bytearray.fromhex(state["heads"][direction])
            self._pieces[direction] = [(end, Place.from_json(place)) for end, place in state["pieces"][direction]]
            self._at[direction] = state["at"][direction]
            self._searching[direction] = state["searching"][direction]
        for direction, place, start, end, body, rule, reason in state["held"]:
            framed = Framed(start, end, bytes.fromhex(body), RULE[rule] if rule else None, reason)
            self._held.append((Direction(direction), Place.from_json(place), framed))
            self._held_bytes += len(framed.body)
        self._unsupported_told = state["unsupported_told"]
        self._rest = {direction: state["rest"][direction] for direction in _SIDES}


def _place_of(pieces: Sequence[tuple[int, Place]], end: int) -> Place:
    """The place of the piece that the byte before `end` is in."""
    return pieces[min(bisect_left(pieces, end, key=itemgetter(0)), len(pieces) - 1)][1]


def _detection_to_json(detection: Detection) -> list[str | None]:
    name = None if detection.dialect is None else detection.dialect.name
    return [name, detection.name, detection.reason]


def _undecodable(direction: Direction, place: Place, start: int, data: bytes, reason: str) -> Received:
    """Bytes that no frame is cut from; no rule: the wire isn't at fault for what the capture lacks."""
    return Received(direction, place, start, start + len(data), Decoded(reason=reason), data)
