"""One direction of an HTTP/2 connection: what is held of it, and its table of header fields (RFC 7541)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from hpack import Decoder
from hpack.exceptions import InvalidTableIndexError
from hpack.table import HeaderTable

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire.http2.frames import FRAME_BYTES, UNKNOWN_FRAME_BYTES
from wirehouse_codecs.hiero.wire.spans import Passed, Undecodable
from wirehouse_codecs.tcp.endpoints import Direction

#: A header block, and the fields that it inflates to.
MAX_BLOCK_BYTES: Final = 64 << 10
#: Maximum size of the dynamic table of HPACK that a side may use, whatever SETTINGS allow.
MAX_TABLE_BYTES: Final = 64 << 10
#: In place of a name that isn't known.
UNKNOWN_NAME: Final = b"?"


class Mode(StrEnum):
    """How the bytes of a side are read."""

    #: Its first bytes.
    START = "start"
    FRAMES = "frames"
    #: A credible frame is looked for.
    SEARCH = "search"
    #: It isn't HTTP/2 at all.
    OTHER = "other"


class Table(HeaderTable):
    """A dynamic table whose older entries may be unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.partial = False

    def get_by_index(self, index: int) -> tuple[bytes, bytes]:
        """The entry, or an unknown one in place of those that were added unseen."""
        try:
            return super().get_by_index(index)
        except InvalidTableIndexError:
            if not self.partial or not index:
                raise
            return UNKNOWN_NAME, b""

    def forget(self) -> None:
        """Entries may have been added or dropped unseen."""
        size, self.partial = self.maxsize, True
        self.maxsize = 0
        self.maxsize = size


class FieldsState(NamedTuple):
    """What a FieldDecoder carries from window to window."""

    partial: bool
    maxsize: int
    allowed_size: int
    #: Names and values of the dynamic table, the newest first.
    entries: list[tuple[bytes, bytes]]


class FieldDecoder(Decoder):
    """Decodes header blocks by a table whose older entries may be unknown."""

    def __init__(self) -> None:
        super().__init__(max_header_list_size=MAX_BLOCK_BYTES)
        self.table = self.header_table = Table()

    @property
    def state(self) -> FieldsState:
        """What a later decoder continues from."""
        entries = [(bytes(name), bytes(value)) for name, value in self.table.dynamic_entries]
        return FieldsState(self.table.partial, self.table.maxsize, self.max_allowed_table_size, entries)

    @classmethod
    def from_state(cls, state: FieldsState) -> FieldDecoder:
        """The decoder with this state."""
        decoder = cls()
        decoder.table.maxsize = state.maxsize
        for name, value in reversed(state.entries):
            decoder.table.add(name, value)
        decoder.table.partial, decoder.max_allowed_table_size = state.partial, state.allowed_size
        return decoder


@dataclass(slots=True)
class Side:
    """What is known of one direction."""

    direction: Direction
    mode: Mode
    #: Whether header blocks or SETTINGS may be missing.
    partial: bool
    decoder: FieldDecoder
    passed: Passed
    #: Position after the last byte that was taken.
    end: int = 0
    #: An unfinished frame that is held; its first bytes; or the bytes in which a frame is looked for.
    pending: bytearray = field(default_factory=bytearray)
    #: Position of the first of these.
    start: int = 0
    #: While a frame is looked for: up to where none begins, and which byte had to be seen to decide it.
    scanned: int = 0
    decided: int = 0
    #: The holes in these bytes; and up to where a first frame may reach of which nothing was captured, -1 = nowhere.
    gaps: list[tuple[int, int]] = field(default_factory=list)
    led_to: int = -1
    reason: str = ""
    #: A DATA frame: its stream, whether the length of its padding comes next, how much content, then padding, is left,
    #: and whether it ends the stream. Bytes of other frames that aren't reported count as padding too.
    stream_id: int = 0
    padded: bool = False
    content: int = 0
    padding: int = 0
    end_stream: bool = False
    #: Bytes of a frame that are passed over.
    refused: int = 0
    #: A header block: stream, whether it ends the stream, position, and what there is of it.
    block_stream: int = 0
    block_ends: bool = False
    block_start: int = 0
    block_end: int = 0
    block: bytearray | None = None
    #: Whether a hole cut it.
    block_cut: bool = False
    #: The largest frame that the other side takes.
    frame_limit: int = FRAME_BYTES
    #: Bytes of prefaces, frame headers, padding, and frames that cause no event of their own.
    framing_bytes: int = 0

    @property
    def table(self) -> Table:
        return self.decoder.table

    def undecodable(self, data: bytes, place: Place, reason: str) -> Undecodable:
        """A whole frame that is none."""
        return Undecodable(self.direction, place, self.start, self.start + len(data), None, data, reason)

    @classmethod
    def begin(cls, direction: Direction, *, started_late: bool) -> Side:
        """A side that has sent nothing yet; `started_late`: nothing in the capture."""
        decoder = FieldDecoder()
        side = cls(direction, Mode.START, started_late, decoder, Passed(direction))
        if started_late:
            side.mode, side.reason, side.table.partial = Mode.SEARCH, "no frame begins here", True
            side.frame_limit, decoder.max_allowed_table_size = UNKNOWN_FRAME_BYTES, MAX_TABLE_BYTES
        return side
