"""Turns TCP segments into the rows of a protocol's log. All protocols over TCP share it.

The input is the segments of one port pair, in order of arrival. They pass three stages:

1. `tcp.reassembly.Flow` reassembles the byte streams of a connection.
2. A `Dialogue` of the protocol reads these bytes.
3. A `Log` collects the rows that the dialogue adds, and gives them out as Arrow batches.

`FlowLog` connects the stages, and carries their state from one window to the next. Most segments are plain: they
continue their stream. A vectorised fast path (`tcp.segments`) passes runs of them on together; all others take the
reference path, `FlowLog.receive`. Bytes are buffered until something else happens on the connection, so a dialogue gets
long runs of bytes at once.

Spark runs this for each port pair, `inspect` runs it in memory; both get the same rows.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from wirehouse_codecs.captures.rules import RULE as CAPTURE_RULE
from wirehouse_codecs.core.errors import StateDamagedError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import NO_STATE, SnapshotCodec
from wirehouse_codecs.logs.rows import CONNECTION, COUNTED, COUNTERS, STATE, Dialogue, Log, Seal, Start, Where, Window
from wirehouse_codecs.tcp.community_id import community_id
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.reassembly import (
    Closed,
    Connection,
    Data,
    Event,
    Flow,
    Hole,
    Opened,
    OverlapDiffers,
    ResetIgnored,
    TcpSegment,
    Unordered,
)
from wirehouse_codecs.tcp.segments import FEW_SEGMENTS, Pieces, Plain, SegmentRows

#: Maximum number of bytes that a dialogue gets at once. The arrays for more are too large for the allocator to reuse.
RUN_BYTES: Final = 2 << 20
_counters: Final = attrgetter(*COUNTERS)


@dataclass(slots=True)
class _Carried:
    """The carried state of a port pair: the snapshots of its flow and its dialogue, and the last dialogue's dialect."""

    flow: str
    dialogue: str | None
    dialect: tuple[str | None, str | None]


_CODEC: Final = SnapshotCodec(_Carried, what="log of a port pair", version=2)


class FlowLog:
    """The connections of one port pair through consecutive windows.

    `state` is the carried state of the previous window. Raises StateVersionError if another version of the decoder
    wrote it, and StateDamagedError if no version can have written it.
    """

    def __init__(
        self,
        log: Log,
        start: Start,
        source: str,
        flow: bytes,
        options: TcpOptions,
        state: str | None = None,
        seal: Seal | None = None,
    ) -> None:
        self._log, self._start, self.key, self._seal = log, start, flow, seal
        server, client = self._ends = endpoints(flow)
        self._options = options
        self._flow = Flow(source, client, server, options)
        self._dialogue: Dialogue | None = None
        self._dialect: tuple[str | None, str | None] = (None, None)
        #: `Connection.began_before_capture`, as it was when the dialogue began.
        self._began_before_capture = False
        if state is not None:
            try:
                self._restore(source, state)
            except (*NO_STATE, StateDamagedError) as error:
                shown = f"{type(error).__name__}: {error}"
                raise StateDamagedError(what=f"the port pair {server} and {client}", reason=shown) from error
        self._pieces = Pieces()
        #: Number of the next segments that take the reference path, because recent ones couldn't use the fast path.
        self._apart = 0
        #: The connection that rows are about, whether anything happened to it in this window, and its packets there.
        self._connection = self._flow.connection
        self._touched = False
        self._packets = 0

    def _restore(self, source: str, state: str) -> None:
        carried = _CODEC.read(state if self._seal is None else self._seal.open(state, self.key))
        server, client = self._ends
        self._flow = Flow(source, client, server, self._options, snapshot=carried.flow)
        self._dialect = carried.dialect
        connection = self._flow.connection
        assert connection is not None
        self._began_before_capture = connection.began_before_capture
        if carried.dialogue is not None:
            self._log.client = client
            self._dialogue = self._start(self._log, connection, server, carried.dialogue)

    @property
    def connection(self) -> Connection | None:
        """The connection that new segments belong to: see `Flow.connection`."""
        return self._flow.connection

    @property
    def ends_ns(self) -> int | None:
        """The time at which the next timeout of the connection ends: see `Flow.ends_ns`."""
        return self._flow.ends_ns

    @property
    def idle(self) -> bool:
        """Whether there is no connection and nothing to report: windows stay empty until a segment arrives."""
        return self._flow.connection is None and self._connection is None and not self._touched

    def receive(self, segment: TcpSegment) -> None:
        """Handle the next segment. This is the reference path."""
        connection = self._flow.connection
        if connection is not None and not connection.is_regular:
            # The events of the silence before the segment are taken first, as at the end of a window.
            self.expire(segment.place.arrived_at_ns)
            connection = self._flow.connection
        self._take_all(connection, self._flow.receive(segment))
        self._touched = True
        self._packets += 1

    def receive_rows(self, rows: SegmentRows, row: int, end: int) -> int:
        """Handle the segment at `row`, and following ones before `end` if the fast path can. Returns the next row.

        Call `release_batch` before the memory of `rows` is freed.
        """
        connection = self._flow.connection
        if connection is None or not connection.is_regular or self._apart or end - row < FEW_SEGMENTS:
            self._apart -= self._apart > 0
            self.receive(rows.segment(row))
            return row + 1
        plain = rows.plain(row, end, connection, self._options.idle_ns, RUN_BYTES - self._pieces.size)
        if plain.stop == row:
            self._apart = 2 * FEW_SEGMENTS
            self.receive(rows.segment(row))
            return row + 1
        self._pass_plain(connection, plain, plain.stop - row)
        return plain.stop

    def _pass_plain(self, connection: Connection, plain: Plain, segments: int) -> None:
        """Handle `segments` plain segments at once, with the same result as `receive` for each."""
        for stretch in plain.stretches(connection.client, connection.server):
            ours, theirs = connection.sides(stretch.direction)
            for start, acknowledgment in stretch.acknowledgments():
                ours.note_acknowledged(start, acknowledgment, theirs)
            ours.deliver_stretch(stretch.data)
            self._pieces.add(stretch)
        connection.last = plain.rows.place(plain.stop - 1)
        connection.client.packets += plain.client_packets
        connection.server.packets += plain.server_packets
        self._touched = True
        self._packets += segments
        if self._pieces.size >= RUN_BYTES:
            self.flush()
        elif segments < FEW_SEGMENTS:
            self._apart = 2 * FEW_SEGMENTS

    def release_batch(self) -> None:
        """Flush, and copy the bytes that are still needed, so that no reference to the received rows remains."""
        self.flush()
        if self._flow.connection is not None:
            self._flow.connection.client.keep_bytes()
            self._flow.connection.server.keep_bytes()

    def flush(self) -> None:
        """Pass the buffered bytes to the dialogue. Afterwards the log has all rows for the segments so far."""
        self._log.connection_id = None if self._connection is None else self._connection.connection_id
        if self._pieces.parts:
            pieces, self._pieces = self._pieces, Pieces()
            if self._dialogue is not None:
                self._dialogue.receive(pieces)
            if self._connection is not None:
                for direction, byte_end in pieces.ends.items():
                    unread = byte_end if self._dialogue is None else self._dialogue.unread_from(direction)
                    self._connection.sides(direction)[0].forget_received(unread)

    def expire(self, ns: int) -> None:
        """Expire the timeouts that end by `ns`. No segment arrived until then."""
        connection = self._flow.connection
        events = self._flow.expire(ns)
        self._take_all(connection, events)
        self._touched = self._touched or bool(events)

    def end_window(self, window: Window) -> None:
        """End the window: expire timeouts, and add rows for what changed in it, including the state to carry."""
        before = self._connection
        self.expire(window.end_ns)
        if before is not None and before.has_news:
            self._touched = True
        if self._touched:
            self.flush()
            self._conclude()
        if self._touched or self._flow.connection is not before:
            self._log.connection_id = None
            self._log.add(STATE, Place.before(window.end_ns), flow=self.key, state=self._state())
        self._connection, self._touched = self._flow.connection, False

    def finish(self) -> None:
        """End the flow: an open connection is closed as idle."""
        connection = self._flow.connection
        if connection is not None:
            self.end_window(Window("", connection.last.arrived_at_ns + self._options.idle_ns))

    def _state(self) -> str | None:
        flow = self._flow.snapshot()
        if not flow:
            return None
        dialogue = None if self._dialogue is None else self._dialogue.snapshot()
        text = _CODEC.write(_Carried(flow, dialogue, self._dialect))
        return text if self._seal is None else self._seal.close(text, self.key)

    def _take_all(self, before: Connection | None, events: Sequence[Event]) -> None:
        """Take events; `before` is the connection as it was before them.

        If they change what is known of the sides, the bytes from before are read by what was known then. So no row
        depends on how long bytes are buffered.
        """
        after = self._flow.connection
        for connection in (after,) if after is before else (before, after):
            if connection is not None and (known := connection.known_now) != connection.known:
                self.flush()
                connection.known = known
        if after is before and after is not None and self._began_before_capture != after.began_before_capture:
            # A SYN came late, before any bytes were read: the dialogue begins again, with the connection.
            self._begin(after)
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Data):
            self._pieces.add(event)
            if self._pieces.size >= RUN_BYTES:
                self.flush()
            return
        self.flush()
        match event:
            case Opened():
                self._open(event.connection)
            case Hole():
                message = f"{event.byte_end - event.byte_start} bytes are missing"
                if event.over_limit:
                    message += ", or come later than max_waiting_bytes or max_waiting_segments allow"
                self._find("hole", event, message)
                if self._dialogue is not None:
                    self._dialogue.hole(event)
            case Unordered():
                if self._dialogue is not None:
                    self._dialogue.doubt(event.place)
            case OverlapDiffers():
                size = event.byte_end - event.byte_start
                self._find("overlap_differs", event, f"{size} bytes were sent again with other content")
            case ResetIgnored():
                message = f"the connection went on after this RST of the {event.direction}"
                self._log.find(CAPTURE_RULE["reset_ignored"], message, event.place, direction=event.direction)
            case Closed():
                self._close(event)

    def _find(self, rule: str, event: Hole | OverlapDiffers, message: str) -> None:
        where = Where(event.direction, event.byte_start, event.byte_end)
        self._log.find(CAPTURE_RULE[rule], message, event.place, where)

    def _open(self, connection: Connection) -> None:
        if self._connection is not None and (self._touched or self._connection.has_news):
            self._conclude()
        self._connection, self._packets, self._dialect = connection, 0, (None, None)
        self._begin(connection)

    def _begin(self, connection: Connection) -> None:
        self._log.connection_id, self._log.client = connection.connection_id, self._ends[1]
        self._began_before_capture = connection.began_before_capture
        self._dialogue = self._start(self._log, connection, self._ends[0], None)

    def _close(self, event: Closed) -> None:
        # Also if a segment of another connection ended this one: the end must be reported.
        self._touched = True
        if self._dialogue is not None:
            self._dialogue.close(event)
            self._conclude_dialogue(self._dialogue)
            self._dialogue = None

    def _conclude(self) -> None:
        """Add the rows about the state of the connection."""
        connection = self._connection
        assert connection is not None
        self._log.connection_id = connection.connection_id
        if self._dialogue is not None:
            self._conclude_dialogue(self._dialogue)
        for ignored in (*connection.client.take_ignored(), *connection.server.take_ignored()):
            # The message has no number: the connection counts such bytes, and more may follow in other windows.
            message = f"bytes of the {ignored.direction} from here on: {ignored.why}"
            self._log.find(CAPTURE_RULE["bytes_ignored"], message, ignored.place, direction=ignored.direction)
        row = _connection_row(*self._ends, connection, self._packets, self._dialect)
        self._log.add(CONNECTION, connection.first, connection=row)
        self._packets = 0

    def _conclude_dialogue(self, dialogue: Dialogue) -> None:
        self._dialect = dialogue.dialect
        dialogue.conclude()


def endpoints(flow: bytes) -> tuple[Endpoint, Endpoint]:
    """Server and client of a flow, whose key has address and port of each: 6 or 18 bytes."""
    half = len(flow) // 2
    return _endpoint(flow[:half]), _endpoint(flow[half:])


@functools.lru_cache(maxsize=4096)
def _endpoint(packed: bytes) -> Endpoint:
    return Endpoint(str(ipaddress.ip_address(packed[:-2])), int.from_bytes(packed[-2:], "big"))


def _connection_row(
    server: Endpoint, client: Endpoint, connection: Connection, packets: int, dialect: tuple[str | None, str | None]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "community_id": community_id(client, server),
        "client_address": client.address,
        "client_port": client.port,
        "server_address": server.address,
        "server_port": server.port,
        "started_at_ns": connection.first.arrived_at_ns,
        "last_at_ns": connection.last.arrived_at_ns,
        "opened": connection.opened,
        "closed": connection.closed,
        "dialect": dialect[0],
        "dialect_reason": dialect[1],
        "window_packets": packets,
    }
    for side in (connection.client, connection.server):
        counts = (*_counters(side), connection.waiting_bytes(side))
        row.update(zip(COUNTED[side.direction], counts, strict=True))
    return row
