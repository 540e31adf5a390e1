"""Frames are held until the dialect is known, and then decoded.

`Detector` gets each frame that is cut. It decides by the frames of both sides, so the first ones can't be decoded at
once: `HeldFrames` keeps at most `HELD_FRAMES` of them with `HELD_BYTES` bytes, and then takes the best guess. Each
frame is decoded once, in the right layout. A connection of an unsupported dialect becomes one row, and the rest of its
bytes isn't decoded.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import carried_fields
from wirehouse_codecs.tcp.endpoints import Direction, other
from wirehouse_codecs.wallaroo.dialects import SEED, V2A, V3, Dialect
from wirehouse_codecs.wallaroo.frames import Restart
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.wire.dialect_detection import OPEN_V2
from wirehouse_codecs.wallaroo.wire.messages import Decoded, Framed, decode
from wirehouse_codecs.wallaroo.wire.reader_state import SIDES, ReaderState, Received

#: Maximum number of frames that wait. A connector may notify all its streams before the message that shows the dialect.
HELD_FRAMES: Final = 2048
HELD_BYTES: Final = 1 << 20


class HeldFrames(ReaderState):
    """The frames of one connection that wait for the dialect, and what decodes them once it is known."""

    def __init__(self, options: WallarooOptions, state: ReaderState) -> None:
        super().__init__(**carried_fields(ReaderState, state))
        self._options = options
        self._held_bytes = sum(len(framed.body) for _, _, framed in self.held)
        #: Number of bytes in `waiting`.
        self._waiting_bytes = sum(len(one.data) for one in self.waiting)

    @property
    def dialect(self) -> Dialect | None:
        """The dialect, once it is known and can be decoded."""
        return None if self.detection is None else self.detection.dialect

    def _take(self, direction: Direction, place: Place, frames: list[Framed]) -> list[Received]:
        if self.detection is not None:
            return [self.decode(direction, place, framed) for framed in frames]
        for framed in frames:
            self.held.append((direction, place, framed))
            self._held_bytes += len(framed.body)
            # A frame that breaks framing has a wrong length, and no tag for the detector.
            if self.detection is None and self.detector is not None and framed.rule is None:
                self.detection = self.detector.offer(direction, framed.body)
        full = len(self.held) >= HELD_FRAMES or self._held_bytes >= HELD_BYTES
        if full and self.detection is None and self.detector is not None:
            self.detection = self.detector.conclude()
        return [] if self.detection is None else self._release()

    def _release(self) -> list[Received]:
        """Decode the frames that were held, now that the dialect is known."""
        held, self.held, self._held_bytes, self.detector = self.held, [], 0, None
        for direction, framer in self.framers.items():
            framer.limit = self._limit(direction)
        if self.dialect is None:
            return self._unsupported(held)
        return [self.decode(direction, place, framed) for direction, place, framed in held]

    def _unsupported(self, held: list[tuple[Direction, Place, Framed]]) -> list[Received]:
        """One row for the connection, and one for each cut frame before a hole. Nothing more of it is decoded."""
        assert self.detection is not None
        first = next((one for one in held if one[2].body), None)
        if self.unsupported_told or first is None:
            return []
        # These include the rest of a frame that a hole cut.
        spans = [one for one in held if one[2].byte_end > one[2].byte_start]
        self.unsupported_told = True
        for side in SIDES:
            framer, head = self.framers.get(side), self.heads[side]
            end = self.at[side] + len(head) if framer is None else framer.byte_end
            begun = end - len(head) if framer is None else end - len(framer.pending)
            own = (framed.byte_start for direction, _, framed in spans if direction is side)
            self.not_decoded[side] = [next((start for start in own if start >= self.at[side]), begun), end]
        if self.sought is not None:
            self.not_decoded[other(self.sought)][1] += sum(len(one.data) + one.missing for one in self.waiting)
            self.sought, self.waiting, self._waiting_bytes = None, [], 0
        direction, place, framed = first
        reason = f"dialect {self.detection.name}: {self.detection.reason}"
        decoded = Decoded(rule=RULE["dialect_unsupported"], reason=reason)
        first_row = Received(direction, place, framed.byte_start, framed.byte_end, decoded, framed.body)
        # Rows of the bytes behind these frames were given already.
        before = [
            Received(direction, place, framed.byte_start, framed.byte_end, Decoded(reason=reason), framed.body)
            for direction, place, framed in spans
            if framed.byte_start < self.at[direction]
        ]
        return [first_row, *before]

    def decode(self, direction: Direction, place: Place, framed: Framed) -> Received:
        """Decode a frame that was cut, once the dialect is known."""
        assert self.dialect is not None
        if framed.reason:
            decoded = Decoded(rule=None if framed.rule is None else RULE[framed.rule], reason=framed.reason)
        else:
            decoded = decode(framed.body, self._dialect_of(framed.body), self._options.version_form)
        undecoded = framed.body if decoded.frame is None else b""
        return Received(direction, place, framed.byte_start, framed.byte_end, decoded, undecoded)

    def _dialect_of(self, body: bytes) -> Dialect:
        """The dialect of a frame: if v2a and v2b are still possible, a RESTART without a body decides for v2a."""
        assert self.detection is not None
        assert self.detection.dialect is not None
        is_v2a = body == bytes([V2A.tags[Restart]]) and self.detection.reason.endswith(OPEN_V2)
        return V2A if is_v2a else self.detection.dialect

    def _limit(self, direction: Direction) -> int:
        dialect = self.dialect or (SEED if self.order == "little" else V3)
        return self._options.limit(dialect, direction)
