"""Results of the reader of a connection, and its state, which is carried from window to window.

`Received` is a frame, or bytes that are none. `ReaderState` has the frames that wait for the dialect (held_frames.py),
and the bytes in which a start is looked for (reader.py). The names of its fields and of the classes in it are part of
the carried layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import ByteOrder
from wirehouse_codecs.wallaroo.wire.dialect_detection import Detection, Detector
from wirehouse_codecs.wallaroo.wire.messages import Decoded, Framed, Framer

SIDES: Final = tuple(Direction)


@dataclass(frozen=True, slots=True)
class Received:
    """A frame that one side sent, or bytes that are none, with the place and the position in the stream."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    decoded: Decoded
    #: The bytes that couldn't be decoded, for quarantine; empty with a frame.
    undecoded: bytes = b""


class _Waiting(NamedTuple):
    """A piece, or a hole, of the side that waits while a start of the other one is looked for."""

    #: Number of bytes of the other side that had come before.
    after: int
    place: Place
    #: Bytes of a piece; before a hole, the bytes from which no frame can be cut any more.
    data: bytes
    #: Number of bytes of the hole.
    missing: int = 0


#: A name for other modules.
Waiting = _Waiting


class Taken(NamedTuple):
    """A piece, or a hole of `missing` bytes, as the reader got it."""

    direction: Direction
    place: Place
    data: bytes = b""
    missing: int = 0


class Rest(NamedTuple):
    """The bytes from which no frame can be cut, up to the connection's end, and the rule that causes this."""

    byte_start: int
    byte_end: int
    rule: Rule


@dataclass
class ReaderState:
    """The carried state of a Reader."""

    detection: Detection | None = None
    order: ByteOrder | None = None
    detector: Detector | None = None
    framers: dict[Direction, Framer] = field(default_factory=dict)
    #: Bytes that no framer has yet: until the byte order is known, and while a start is looked for.
    heads: dict[Direction, bytearray] = field(default_factory=lambda: {side: bytearray() for side in SIDES})
    #: The end and the place of each piece in these bytes.
    pieces: dict[Direction, list[tuple[int, Place]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    at: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    searching: dict[Direction, bool] = field(default_factory=lambda: dict.fromkeys(SIDES, False))
    #: Whether the first bytes may be inside a frame. If they don't begin one, a start is looked for.
    may_begin_within: dict[Direction, bool] = field(default_factory=lambda: dict.fromkeys(SIDES, False))
    #: Whether the capture began after the connection did.
    late: bool = False
    #: Whether some bytes of the connector from before the dialect was known weren't captured.
    lacks: bool = False
    #: Number of bytes of the head at which no frame begins, while a start is looked for.
    passed: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    #: The side whose start the other one waits for, and what waits.
    sought: Direction | None = None
    waiting: list[_Waiting] = field(default_factory=list)
    #: Frames that wait for the dialect.
    held: list[tuple[Direction, Place, Framed]] = field(default_factory=list)
    #: All pieces and holes from before the dialect was known; None once it is known.
    taken: list[Taken] | None = None
    #: Whether a start was looked for in these and given up. Then they are read again once a dialect is found.
    gave_up: bool = False
    #: The dialect that was found then. With it shorter rows are credible, which may show another one.
    guess: str | None = None
    #: Whether the row was given that reports an unsupported dialect.
    unsupported_told: bool = False
    #: The first byte and the end of what isn't decoded in each direction, if the dialect is unsupported.
    not_decoded: dict[Direction, list[int]] = field(default_factory=lambda: {side: [0, 0] for side in SIDES})
