"""The events of an HTTP/2 connection: header blocks, content of streams, ends, and missing bytes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire.spans import Run, Undecodable
from wirehouse_codecs.tcp.endpoints import Direction

#: The code of a RST_STREAM by which a side cancels.
CANCEL: Final = 8

Fields = tuple[tuple[bytes, bytes], ...]


class Block(StrEnum):
    """What a header block is."""

    REQUEST = "request"
    RESPONSE = "response"
    TRAILERS = "trailers"


class Headers(NamedTuple):
    """A header block."""

    direction: Direction
    place: Place
    #: Positions from the first frame of the block to the end of its last.
    byte_start: int
    byte_end: int
    stream_id: int
    block: Block
    fields: Fields
    #: Whether all fields could be read.
    complete: bool
    end_stream: bool


class Body(NamedTuple):
    """Content of a stream: `run.data[start:end]`."""

    run: Run
    start: int
    end: int
    stream_id: int
    #: Whether these are the last of their DATA frame.
    frame_ends: bool
    end_stream: bool


class Bodies(NamedTuple):
    """Content of consecutive DATA frames of a stream, which go on: `run.data[begin:end]` of each span."""

    run: Run
    spans: list[tuple[int, int]]
    stream_id: int
    #: Whether the last bytes are the last of their frame.
    frame_ends: bool

    def each(self, part: int = 0, begin: int | None = None) -> Iterator[Body]:
        """Each body by itself, from a part on, and within it from `begin` on."""
        for number, (first, end) in enumerate(self.spans[part:], part):
            ends = number + 1 < len(self.spans) or self.frame_ends
            yield Body(self.run, first if begin is None else begin, end, self.stream_id, ends, False)
            begin = None


class Missing(NamedTuple):
    """Content of a stream that is not in the capture."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    stream_id: int
    frame_ends: bool
    end_stream: bool
    #: Whether all of it is content. If not, it isn't known how much is padding.
    sized: bool = True


class Lost(NamedTuple):
    """Any frames of a side may be missing here."""

    direction: Direction
    place: Place
    byte_end: int


class Placed(NamedTuple):
    """Frames of a side are known again. Those that showed it are reported before, and may have waited for it."""

    direction: Direction
    place: Place


class Reset(NamedTuple):
    """RST_STREAM: `direction` has sent all it will in this stream."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    stream_id: int
    #: None = it was cut.
    code: int | None


class GoAway(NamedTuple):
    """GOAWAY: `direction` takes no stream above `last_stream_id`."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    last_stream_id: int
    code: int
    debug_data: bytes


class Gone(NamedTuple):
    """A stream is no longer known."""

    place: Place
    stream_id: int
    #: Whether both sides have ended it; if not, there were too many others.
    ended: bool


Event = Headers | Body | Bodies | Missing | Lost | Placed | Reset | GoAway | Gone | Undecodable
