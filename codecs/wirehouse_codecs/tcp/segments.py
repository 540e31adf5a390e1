"""Rows of bronze.segments as reassembly takes them: one by one, and as stretches of plain segments.

Most segments of a bulk transfer go on where the last one of their side ended, and most others only acknowledge. A
compiled loop passes over these as `reassembly.Flow.receive` does with each, and their bytes stay where Arrow has them.

A plain segment is one of a connection that `is_regular`, and

1. its only control flag is ACK,
2. its window isn't 0,
3. the connection wasn't silent for `idle_ns` before it,
4. a packet of its side was captured before,
5. if it acknowledges less than was delivered of the other side, then nothing from before the first byte
   (`Flow.receive`); or less than WINDOW_BYTES less, and some byte was delivered (`_plain`),
6. if it acknowledges more, then it has no bytes, and the other side was captured and is numbered by more than an
   assumption (`Flow.receive`); never (`_plain`, which leaves such segments to the reference path),
7. its bytes were captured whole,
8. its bytes are the next of its side,
9. it doesn't stand near behind the next byte of its side.

`Flow.receive`, the reference path, and `_plain` check this, each condition with its number. What a plain segment
changes is in `Flow.receive`, and for a whole stretch in `FlowLog._pass_plain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.compiled.jit import compiled, wide
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.connection import Connection
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import CONTROL, Data, TcpSegment
from wirehouse_codecs.tcp.packets import ACK
from wirehouse_codecs.tcp.sequence_numbers import SEQUENCE_MASK, WINDOW_BYTES
from wirehouse_codecs.tcp.side import Side

Array = np.ndarray[Any, Any]

_SIDES: Final = (Direction.CLIENT, Direction.SERVER)
_PLACED: Final = ("arrived_at_ns", "capture_arrived_at_ns", "record_number")
_HEADER: Final = ("sequence", "acknowledgment", "flags", "window", "payload_bytes")
#: Minimum number of segments of a plain stretch: if one has fewer, it isn't worth looking for the next.
FEW_SEGMENTS: Final = 4
#: Words of `_plain`: the last arrival; then two each, of client and server: the expected sequence number, packets
#: that were passed over, whether packets were captured before, and whether they had bytes.
_LAST_NS, _EXPECTED, _PACKETS, _CAPTURED, _BEGUN, _WORDS = 0, 1, 3, 5, 7, 9


class Key(NamedTuple):
    """The values that the rows of a port pair and window have in common."""

    source: str
    flow: bytes
    window_start: str
    state: str | None


class SegmentRows:
    """A batch of SEGMENT_COLUMNS (see logs.windows)."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._placed = tuple(_numbers(batch.column(name)) for name in _PLACED)
        #: The arrival of each segment.
        self.arrived: Array = self._placed[0]
        self._header = tuple(_numbers(batch.column(name)) for name in _HEADER)
        self.acknowledged: Array = self._header[_HEADER.index("acknowledgment")]
        self.servers: Array = np.asarray(pc.equal(batch.column("direction"), "server").fill_null(False)).view(np.uint8)
        payload = batch.column("payload").cast(pa.binary())
        _, offsets, data = payload.buffers()
        # Null rows, which hold carried state, have equal offsets.
        self.offsets: Array = np.frombuffer(offsets, np.int32)[payload.offset : payload.offset + len(payload) + 1]
        captures = batch.column("capture_id").dictionary_encode()
        #: The captures of the batch, and which of them each row is of.
        self._captures = captures.dictionary.to_pylist(), _numbers(captures.indices)
        self.payload = memoryview(b"" if data is None else data).cast("B")

    def groups(self) -> Iterator[tuple[int, int, Key]]:
        """Ranges of rows (first, last + 1) with the same source, flow and window.

        Rows of carried state and segments are never in one range.
        """
        if not self._batch.num_rows:
            return
        changes = np.zeros(self._batch.num_rows - 1, bool)
        for name in ("source", "flow", "window_start"):
            column = self._batch.column(name)
            changes |= np.asarray(pc.not_equal(column[1:], column[:-1]).fill_null(True))
        carried = np.asarray(self._batch.column("state").is_valid())
        starts = np.concatenate(([0], np.flatnonzero(changes | (carried[1:] != carried[:-1])) + 1))
        keys = zip(*(self._batch.column(name).take(pa.array(starts)).to_pylist() for name in Key._fields), strict=True)
        for (begin, end), key in zip(pairwise([*starts.tolist(), self._batch.num_rows]), keys, strict=True):
            yield begin, end, Key(*key)

    def arrived_at_ns(self, row: int) -> int:
        """The arrival of the segment."""
        arrived: int = self._placed[0].item(row)
        return arrived

    def place(self, row: int) -> Place:
        """The place of the segment."""
        names, codes = self._captures
        arrived, capture_arrived, record = self._placed
        return Place(arrived.item(row), capture_arrived.item(row), names[codes.item(row)], record.item(row))

    def places(self, rows: Array) -> list[Place]:
        """The places of several segments."""
        names, codes = self._captures
        arrived, capture_arrived, record = (numbers[rows].tolist() for numbers in self._placed)
        captures = [names[code] for code in codes[rows].tolist()]
        return list(map(Place, arrived, capture_arrived, captures, record))

    def segment(self, row: int) -> TcpSegment:
        """The segment of a row."""
        sequence, acknowledgment, flags, window, size = [numbers.item(row) for numbers in self._header]
        payload = bytes(self.payload[self.offsets.item(row) : self.offsets.item(row + 1)])
        direction = _SIDES[self.servers.item(row)]
        return TcpSegment(self.place(row), direction, sequence, acknowledgment, flags, window, payload, size)

    def plain(self, row: int, end: int, connection: Connection, idle_ns: int, most: int) -> Plain:
        """The plain segments of `connection` from `row` on, before `end`, until they have `most` bytes or more."""
        sides = (connection.client, connection.server)
        words = np.zeros(_WORDS, np.int64)
        words[_LAST_NS] = connection.last.arrived_at_ns
        for at, side in enumerate(sides):
            words[_EXPECTED + at] = side.expected
            words[_CAPTURED + at], words[_BEGUN + at] = side.packets > 0, side.next_byte > 0
        data_rows = np.empty(end - row, np.int64)
        columns = (self._placed[0], *self._header, self.servers, self.offsets)
        stop, count = _plain(columns, row, end, idle_ns, most, words, data_rows)
        return Plain(self, stop, data_rows[:count], *words[_PACKETS : _PACKETS + 2].tolist())


def _numbers(column: pa.Array) -> Array:
    # Rows of carried state have none.
    return np.asarray(column.fill_null(0) if column.null_count else column).astype(np.int64, copy=False)


class Plain(NamedTuple):
    """Plain segments of a batch that follow each other."""

    rows: SegmentRows
    #: The row after the last of them.
    stop: int
    #: The rows that have bytes.
    data_rows: Array
    client_packets: int
    server_packets: int

    def stretches(self, client: Side, server: Side) -> Iterator[Stretch]:
        """Their bytes, divided where the other side sends; each stretch is its side's next one when it is asked for."""
        if not len(self.data_rows):
            return
        servers = self.rows.servers[self.data_rows]
        cuts = [0, *(np.flatnonzero(servers[1:] != servers[:-1]) + 1).tolist(), len(servers)]
        for begin, end in pairwise(cuts):
            side = server if servers[begin] else client
            yield Stretch(self.rows, side.direction, side.next_byte, self.data_rows[begin:end])


@compiled
def _plain(columns: Any, row: int, end: int, idle_ns: int, most: int, words: Any, data_rows: Any) -> tuple[int, int]:
    """Pass over plain segments: the row after them, and how many have bytes.

    `words` has the last arrival and the words of each side, and takes what was passed over. The first segment of a side
    is never plain.
    """
    arrived_at_ns, sequence, acknowledgment, flags, window, payload_bytes, servers, offsets = columns
    count = wide(0)
    size = wide(0)
    while row < end and size < most:
        side = wide(servers[row])
        ahead = (acknowledgment[row] - words[_EXPECTED + 1 - side]) & SEQUENCE_MASK
        captured = wide(offsets[row + 1]) - wide(offsets[row])
        if (
            flags[row] & CONTROL != ACK  # 1
            or not window[row]  # 2
            or not words[_CAPTURED + side]  # 4
            or arrived_at_ns[row] - words[_LAST_NS] >= idle_ns  # 3
            or 0 < ahead <= SEQUENCE_MASK + 1 - WINDOW_BYTES  # 5, 6
            or (ahead and not words[_BEGUN + 1 - side])  # 5
            or captured != payload_bytes[row]  # 7
            or (captured and sequence[row] != words[_EXPECTED + side])  # 8
            or 0 < ((sequence[row] - words[_EXPECTED + side]) & SEQUENCE_MASK) < WINDOW_BYTES  # 9
        ):
            break
        words[_LAST_NS] = arrived_at_ns[row]
        words[_PACKETS + side] += 1
        if captured:
            words[_EXPECTED + side] = (words[_EXPECTED + side] + captured) & SEQUENCE_MASK
            data_rows[count] = row
            count += 1
            size += captured
        row += 1
    return row, count


class Stretch:
    """Bytes of one side that follow each other, as those of several segments of a batch."""

    __slots__ = ("_base", "at", "byte_start", "data", "direction", "rows")

    def __init__(self, rows: SegmentRows, direction: Direction, byte_start: int, at: Array) -> None:
        self.rows = rows
        self.direction = direction
        self.byte_start = byte_start
        #: The rows with these bytes; rows between them have none.
        self.at = at
        begin = int(rows.offsets[at[0]])
        #: The bytes, in the batch.
        self.data = rows.payload[begin : rows.offsets[at[-1] + 1]]
        self._base = begin - byte_start

    def place_of(self, byte_end: int) -> Place:
        """The place of the segment that holds the byte before `byte_end`."""
        first, last = int(self.at[0]), int(self.at[-1])
        found = first + int(self.rows.offsets[first + 1 : last + 1].searchsorted(self._base + byte_end))
        return self.rows.place(found)

    def acknowledgments(self) -> Iterator[tuple[int, int]]:
        """Acknowledgments, each with the byte from which on it holds."""
        acknowledged = self.rows.acknowledged[self.at]
        yield self.byte_start, acknowledged.item(0)
        if len(acknowledged) > 1:
            for at in (np.flatnonzero(acknowledged[1:] != acknowledged[:-1]) + 1).tolist():
                yield int(self.rows.offsets[self.at[at]]) - self._base, acknowledged.item(at)

    def pauses(self, least_ns: int) -> Iterator[tuple[int, int, int]]:
        """Yields the pauses of at least `least_ns`: the first byte after each, and the arrivals before and after it."""
        arrived = self.rows.arrived[self.at]
        for at in (np.flatnonzero(np.diff(arrived) >= least_ns) + 1).tolist():
            yield int(self.rows.offsets[self.at[at]]) - self._base, arrived.item(at - 1), arrived.item(at)

    def pieces(self) -> Iterator[Data]:
        """A piece for each segment."""
        data, at = bytes(self.data), 0
        ends = (self.rows.offsets[self.at + 1] - self.rows.offsets[self.at[0]]).tolist()
        for place, end in zip(self.rows.places(self.at), ends, strict=True):
            yield Data(self.direction, self.byte_start + at, data[at:end], place)
            at = end


class Pieces(Sequence[Data]):
    """Bytes of both sides in arrival order: pieces, and stretches, which are looked at as pieces only if asked to."""

    def __init__(self) -> None:
        self.parts: list[Data | Stretch] = []
        self._each: list[Data] | None = None
        self.size = 0
        #: The end of the last bytes of each direction.
        self.ends: dict[Direction, int] = {}

    def add(self, part: Data | Stretch) -> None:
        """Add the next bytes."""
        self.parts.append(part)
        size = len(part.data)
        self.size += size
        self.ends[part.direction] = part.byte_start + size

    @property
    def each(self) -> list[Data]:
        """All as pieces."""
        if self._each is None:
            self._each = []
            for part in self.parts:
                self._each.extend(part.pieces() if isinstance(part, Stretch) else (part,))
        return self._each

    def __len__(self) -> int:
        return len(self.each)

    def __iter__(self) -> Iterator[Data]:
        return iter(self.each)

    @overload
    def __getitem__(self, at: int) -> Data: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Data]: ...

    def __getitem__(self, at: int | slice) -> Data | Sequence[Data]:
        return self.each[at]
