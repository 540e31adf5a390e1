"""Reassembly: the segments of a TCP connection become the byte streams of its two sides (RFC 9293).

A `Flow` takes the segments of one pair of ports in order of arrival. It returns events: a connection opens or closes,
the next bytes of a direction are there, or bytes are missing (a hole). It knows no protocol and does no input or
output. Its memory is bounded, and its state is JSON (`snapshot`). Events depend on the segments alone, not on where
the flow was cut into snapshots.

How a passive reader can know
-----------------------------

Two hosts exchange packets, and an observer records those that pass. Reassembly reads this record. It can't
ask for a packet again, as a receiver does. Packets are missing, come twice, come in another order, or come from two
observers with two clocks. The order of arrival alone doesn't distinguish a late packet from a lost one.

But each segment has more than its bytes. Its **sequence number** says where its sender's stream stands. Its
**acknowledgment** says that its sender's host has all bytes of the other side before this number. So each host
testifies what the other one sent. Three conclusions carry everything below:

- What a receiver acknowledged was sent. If the capture lacks it, the capture is what lost it.
- What a receiver did not acknowledge will be sent again. So it is worth waiting for.
- What a host acknowledges after an event, it received after it. So it was alive.

A single number may be garbled or forged. So a number far from what is expected counts only when a second one agrees.

**Acknowledgments number a side.** A stream's positions count from its first byte. A SYN says which sequence number that
byte has. If the SYN is not captured, the other host's acknowledgments say it, and say how far the stream has come
since. They do so even if no packet of the side was captured: then all of its bytes are missing, at known positions.

**Holes.** A gap is a stretch of a stream that was not captured yet. It may be filled late, so the bytes behind it wait.
A gap becomes a hole when waiting is pointless (its time is over) or too expensive (too much waits behind it). A hole is
an event, with a beginning and an end. So whoever reads the stream knows that bytes are missing, and how many.

**Questions before answers.** A host answers what it has received. So data that acknowledges bytes of the other side
comes after these bytes, or after the hole in their place, whatever the order of arrival was.

**RST.** A RST ends a connection, but anyone can send one. A host accepts it only at the exact number that it expects. A
passive reader knows that number only if it has seen all before it. So a RST that stands elsewhere waits: whether its
alleged sender goes on sending decides what it was.

**Beginning in the middle.** A capture may begin after its connections. Then no SYN was captured, and the first bytes
may be new ones or a retransmission. So they are held until the other host acknowledges: where it waits, the stream
begins.

Where the code is
-----------------

`Flow` and the steps of a segment are here. A `connection` has two sides, and keeps segments that may belong to the next
one (`apart` has what became of them). Each `side` is built from its state (`side_state`), the numbers of its bytes
(`numbering`), its waiting bytes (`waiting`), and its gaps (`holes`). `resets` judges RSTs. `events` has what comes out.
Each of these modules begins with the cases that it decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.tcp.apart import Apart, Fate, Taken
from wirehouse_codecs.tcp.connection import CarriedConnection, Connection, connection_id
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.events import (
    CONTROL,
    Closed,
    Data,
    Ending,
    Event,
    Hole,
    Opened,
    Opening,
    OverlapDiffers,
    ResetIgnored,
    TcpSegment,
    Unordered,
)
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN
from wirehouse_codecs.tcp.resets import drop_reset, lacks_bytes, review_reset, take_reset
from wirehouse_codecs.tcp.sequence_numbers import ACKNOWLEDGED_BYTES, SEQUENCE_MASK, UNKNOWN, WINDOW_BYTES, distance
from wirehouse_codecs.tcp.side import Side

__all__ = [
    "Closed",
    "Connection",
    "Data",
    "Event",
    "Flow",
    "Hole",
    "Opened",
    "Opening",
    "OverlapDiffers",
    "ResetIgnored",
    "Side",
    "TcpSegment",
    "Unordered",
]

CODEC: Final = SnapshotCodec(CarriedConnection, what="TCP flow", version=23)


class Flow:
    """The connections of a pair of ports, one after the other. `receive` segments in arrival order.

    Raises StateVersionError if `snapshot` was written by another version. A caller that needs the last state of a
    connection before another one replaces it reads `connection` before `receive` and `expire`.
    """

    def __init__(
        self, source: str, client: Endpoint, server: Endpoint, options: TcpOptions, snapshot: str | None = None
    ) -> None:
        self._source = source
        self._client = client
        self._server = server
        self._options = options
        #: The connection that segments belong to: open, or closed and not yet silent for `idle_ns`.
        self.connection: Connection | None = None
        if snapshot:
            self.connection = Connection.restored(CODEC.read(snapshot), options)

    def receive(self, segment: TcpSegment) -> list[Event]:
        """Take the next segment; returns the events that it causes.

        A plain segment takes a shortcut, which a test compares with the general path. The numbers are those of the
        conditions in `segments`.
        """
        place, direction, sequence, acknowledgment, flags, window, payload, payload_bytes = segment
        connection = self.connection
        if (
            connection is None
            or not connection.is_regular
            or flags & CONTROL != ACK  # 1
            or not window  # 2
            or place.arrived_at_ns - connection.last.arrived_at_ns >= self._options.idle_ns  # 3
        ):
            return self._receive_any(segment)
        ours, theirs = connection.sides(direction)
        if not ours.packets:  # 4
            return self._receive_any(segment)
        ahead = acknowledgment - theirs.expected & SEQUENCE_MASK
        if ahead >= WINDOW_BYTES:
            if theirs.expected - acknowledgment & SEQUENCE_MASK > theirs.next_byte:  # 5
                # It isn't credible: nothing was sent there.
                return self._receive_any(segment)
            ahead = 0
        if ahead and (theirs.assumed or not theirs.packets):  # 6
            return self._receive_any(segment)
        if payload_bytes and (ahead or sequence != ours.expected or len(payload) != payload_bytes):  # 6, 8, 7
            return self._receive_any(segment)
        if 0 < (sequence - ours.expected & SEQUENCE_MASK) < WINDOW_BYTES:  # 9
            return self._receive_any(segment)
        connection.last = place
        ours.packets += 1
        if ahead:
            theirs.note_acknowledgment(acknowledgment)
            connection.judge_regular()
        if not payload_bytes:
            return []
        if acknowledgment != ours.noted_acknowledgment:
            ours.note_acknowledged(ours.next_byte, acknowledgment, theirs)
        return [ours.deliver(payload, place)]

    @property
    def ends_ns(self) -> int | None:
        """The time at which silence alone changes the connection; None = there is no connection."""
        return None if self.connection is None else self.connection.ends_ns

    def expire(self, ns: int) -> list[Event]:
        """Drop a connection that was silent for long enough at `ns`; its last segment is the evidence."""
        connection = self.connection
        if connection is None:
            return []
        connection.keep_early(ns - self._options.hole_wait_ns)
        if ns < connection.ends_ns:
            return []
        events: list[Event] = []
        if connection.due(ns, "held"):
            events += _release_held(connection)
            connection.judge_regular()
        awaited, timeout = connection.awaited, connection.due(ns, "awaited")
        if awaited is not None and timeout is not None:
            place = replace(connection.last, arrived_at_ns=max(timeout.due_ns, connection.last.arrived_at_ns))
            events += [*awaited.pass_acknowledged(place), *_advance(connection, place)]
            connection.judge_regular()
        timeout = connection.due(ns, "connection")
        if connection.closed is None and timeout is not None:
            events += _close(connection, timeout.how, replace(timeout.since, arrived_at_ns=timeout.due_ns))
            timeout = connection.due(ns, "connection")
        if timeout is not None:
            # It was silent for `idle_ns`: an ended connection has no other timeout.
            self.connection = None
        return events

    def _receive_any(self, segment: TcpSegment) -> list[Event]:
        place, flags = segment.place, segment.flags
        events = self.expire(place.arrived_at_ns)
        ordinal = 0
        early: list[TcpSegment] = []
        before: list[TcpSegment] = []
        connection = self.connection
        if connection is not None and connection.reset is not None:
            events += review_reset(connection, connection.reset, segment)
        if connection is not None and flags & SYN and connection.is_left_by(segment):
            early = [] if flags & RST else connection.give_away(segment)
            connection.keep_early()
            if connection.closed is None:
                events += _close(connection, "reset" if connection.reset else "reuse", place)
            if connection.first.arrived_at_ns == place.arrived_at_ns:
                ordinal = connection.ordinal + 1
            connection = None
        elif connection is not None and connection.is_left_without_syn(segment):
            before = connection.give_strays(segment)
            connection.keep_early()
            if connection.closed is None:
                events += _close(connection, "reuse", place)
            connection = None
        if connection is None:
            connection = self.connection = self._open((before or [segment])[0], ordinal)
            events.append(Opened(connection))
        connection.last = place
        for one in before:
            events += _receive_in(connection, one, [])
        events += _receive_in(connection, segment, early)
        connection.judge_regular()
        return events

    def _open(self, segment: TcpSegment, ordinal: int) -> Connection:
        opened: Opening = "middle"
        sequence = segment.sequence
        if segment.flags & SYN:
            opened = "syn_ack" if segment.flags & ACK else "syn"
            if opened == "syn_ack" and segment.direction is Direction.SERVER:
                sequence = segment.acknowledgment - 1
        arrived_at_ns = segment.place.arrived_at_ns
        name = connection_id(self._source, self._client, self._server, sequence, arrived_at_ns, ordinal)
        client, server = (Side(direction, options=self._options) for direction in Direction)
        return Connection(name, opened, segment.place, segment.place, client, server, ordinal=ordinal)

    def snapshot(self) -> str:
        """The state as text, empty if there is no connection; source, endpoints and options are given again."""
        return "" if self.connection is None else CODEC.write(self.connection.carried())


def _receive_in(connection: Connection, segment: TcpSegment, early: Sequence[TcpSegment]) -> list[Event]:
    """Take a segment of the connection, and behind it those that came before the connection was known."""
    place, flags = segment.place, segment.flags
    ours, theirs = connection.sides(segment.direction)
    was_captured = ours.packets > 0
    ours.packets += 1 + ours.unproven
    ours.unproven = 0
    before = ours.expected if connection.closed is None else UNKNOWN
    events: list[Event] = []
    fate, ignored = Fate.WAITS, 0
    if connection.closed is not None:
        sequence = (segment.sequence + bool(flags & SYN)) & SEQUENCE_MASK
        fate = Fate.LATE if ours.ignore_late(sequence, segment.payload) else Fate.REPEATED
        ignored = len(segment.payload)
    elif flags & RST:
        events += take_reset(connection, segment, was_captured=was_captured)
        if _is_reset(connection):
            events += _close(connection, "reset", place)
    elif not _hold_back(connection, segment):
        events, fate, ignored = _take_turn(connection, segment)
        events += _advance(connection, place)
        for one in early:
            connection.sides(one.direction)[0].packets += 1
            events += _take_again(connection, one, place)
        events += _drop_refuted_fins(connection, place)
        if _is_reset(connection):
            events += _close(connection, "reset", place)
        elif ours.ended and theirs.ended:
            events += _close(connection, "fin", place)
    if segment.payload and (segment.sequence != before or fate is not Fate.WAITS):
        connection.keep_apart(Apart(segment, fate, ignored))
        events += _drop_refuted_fins(connection, place)
    return events


def _is_reset(connection: Connection) -> bool:
    """Whether a RST is where its sender's stream stands, and waits for nothing more."""
    return connection.reset is not None and connection.reset.is_in_place and not lacks_bytes(connection)


def _drop_refuted_fins(connection: Connection, place: Place) -> list[Event]:
    """Drop a FIN if the other side acknowledges bytes behind it, and some were captured: then these bytes count."""
    events: list[Event] = []
    client, server = connection.client, connection.server
    if connection.closed is not None or (client.fin is None and server.fin is None):
        return events
    for side in (client, server):
        if side.fin_is_refuted and (behind := connection.take_behind_fin(side)):
            side.drop_fin()
            for segment in behind:
                events += _take_again(connection, segment, place)
    return events


def _hold_back(connection: Connection, segment: TcpSegment) -> bool:
    """Hold the segment until the other side numbers its bytes, if nothing has numbered them."""
    ours, theirs = connection.sides(segment.direction)
    has_bytes = segment.payload_bytes or segment.flags & FIN
    # The first bytes of the other side may acknowledge less, and come late.
    goes_on = bool(connection.held) and connection.held[0].direction is ours.direction
    is_early = connection.has_syn and ours.assumed and not ours.has_begun and (theirs.lacks_beginning or goes_on)
    if (ours.expected != UNKNOWN and not is_early) or segment.flags & SYN or not has_bytes:
        return False
    held = connection.held
    if held and (segment.direction is not held[0].direction or connection.holds_enough):
        return False
    held.append(segment)
    return True


def _take_turn(connection: Connection, segment: TcpSegment) -> Taken:
    """Take a segment, and before it those that were held for it, or for as long as may be."""
    held = connection.held
    if not held:
        return _take(connection, segment)
    is_answer = segment.direction is not held[0].direction
    ours, theirs = connection.sides(segment.direction)
    is_near, flags = connection.numbers_held(segment), segment.flags
    if is_near and not is_answer:
        connection.announce(ours, (segment.sequence + 1) & SEQUENCE_MASK, is_answer=bool(flags & ACK))
        if flags & ACK:
            theirs.begin_answered(segment.acknowledgment)
    elif is_near and flags & ACK:
        ahead = distance(held[0].acknowledgment, segment.sequence)
        if flags & SYN:
            connection.announce(ours, (segment.sequence + 1) & SEQUENCE_MASK, is_answer=bool(flags & ACK))
        elif 1 < ahead <= ACKNOWLEDGED_BYTES and held[0].flags & ACK:
            # The held bytes answer bytes of this side that are captured late. One byte less is a keep-alive.
            ours.begin(segment.sequence)
        theirs.begin_at_acknowledgment(segment.acknowledgment)
        lacks_beginning = not ours.next_byte and ours.lacks_before(segment.sequence)
        if connection.has_syn and lacks_beginning and not connection.holds_enough:
            # Earlier bytes of its side may acknowledge less, and come late.
            return _take(connection, segment)
    elif is_near or (not is_answer and not connection.holds_enough):
        return _take(connection, segment)
    events = _release_held(connection)
    taken = _take(connection, segment)
    return taken._replace(events=events + taken.events)


def _release_held(connection: Connection) -> list[Event]:
    """Take the segments that were held, in order of arrival."""
    events: list[Event] = []
    held, connection.held = connection.held, []
    if held:
        ours, _ = connection.sides(held[0].direction)
        sent = [(segment.sequence, segment.payload_bytes) for segment in held]
        ours.begin_before(sent, in_middle=connection.opened == "middle")
    for segment in held:
        events += _take_again(connection, segment, segment.place)
    return events


def _take_again(connection: Connection, segment: TcpSegment, place: Place) -> list[Event]:
    """Take a segment that came before, when nobody knew where it belongs."""
    events, fate, ignored = _take(connection, segment)
    events += _advance(connection, place)
    if fate.why is not None:
        ours, _ = connection.sides(segment.direction)
        ours.ignore(fate.why, ignored, segment.place)
    return events


def _take(connection: Connection, segment: TcpSegment) -> Taken:
    """Take a segment of an open connection that isn't reset by it."""
    place, flags, sequence, size = segment.place, segment.flags, segment.sequence, segment.payload_bytes
    ours, theirs = connection.sides(segment.direction)
    events: list[Event] = []
    if not segment.window:
        ours.note_full(theirs)
    if connection.opened == "middle":
        held = connection.held
        ours.begin_to_send(held[0].sequence if held and held[0].direction is ours.direction else sequence)
    if flags & SYN:
        sequence = (sequence + 1) & SEQUENCE_MASK
        connection.announce(ours, sequence, is_answer=bool(flags & ACK))
        if flags & ACK:
            theirs.begin_answered(segment.acknowledgment)
    is_numbered_by_this = theirs.expected == UNKNOWN and not flags & SYN
    if flags & ACK:
        events += _take_acknowledgment(connection, ours, theirs, segment)
    if (size or not flags & SYN) and ours.select_by_own(sequence):
        events += _take_back(connection, ours, place, sequence)
    if not size and not flags & FIN:
        if not flags & SYN:
            ours.note_sent(sequence)
        return Taken(events)
    ours.begin_with_bytes(sequence, in_middle=connection.in_middle)
    needs, received = None, UNKNOWN
    if flags & ACK:
        needs = theirs.needs(segment.acknowledgment)
        if needs is not None:
            # Bytes may have come before, without an acknowledgment of their own in the capture.
            received = int(bool(size) and is_numbered_by_this)
    # Bytes that a RST acknowledges, or that are before it, may have been sent before it, even if it is forged.
    was_sent = connection.reset is not None and connection.reset.is_after(ours.direction, sequence)
    received = UNKNOWN if was_sent else received
    had_end = ours.fin is not None
    taken = ours.take(sequence, segment.payload[:size], size, bool(flags & FIN), place, needs, received)
    if ours.fin is not None and not had_end and flags & ACK:
        ours.fin_acknowledges = segment.acknowledgment
    return taken._replace(events=events + taken.events) if events else taken


def _take_acknowledgment(connection: Connection, ours: Side, theirs: Side, segment: TcpSegment) -> list[Event]:
    """Take the acknowledgment of our segment: it is about the other side's bytes."""
    place, acknowledgment = segment.place, segment.acknowledgment
    events: list[Event] = []
    is_other = theirs.select_numbering(acknowledgment)
    theirs.note_acknowledgment(acknowledgment)
    if is_other:
        events += _take_back(connection, theirs, place)
    events += theirs.settle_opening(place)
    is_first = connection.has_syn and not (ours.next_byte or theirs.has_begun) and segment.sequence == ours.expected
    if is_first and not theirs.only_answered:
        theirs.may_lack_beginning = False
    age_ns = place.arrived_at_ns - connection.first.arrived_at_ns
    if theirs.is_only_acknowledged and age_ns >= ours.options.hole_wait_ns:
        events += theirs.pass_acknowledged(place)
    elif connection.in_middle:
        theirs.follow()
    return events


def _take_back(connection: Connection, side: Side, place: Place, *sequences: int) -> list[Event]:
    """Take what was ignored of a side because another SYN had numbered its bytes; those of `sequences` come next."""
    again = connection.take_back(side)
    if not again:
        return []
    firsts = [*(one.sequence for one in again), *sequences]
    lowest = min(firsts, key=lambda first: distance(first, firsts[0]))
    side.begin_with_bytes(lowest, in_middle=False)
    return [event for segment in again for event in _take_again(connection, segment, place)]


def _advance(connection: Connection, place: Place, *, ending: bool = False) -> list[Event]:
    """Emit what waits no longer, and the holes that are due; all of them if the connection is `ending`."""
    events: list[Event] = []
    client, server = connection.client, connection.server
    if client.is_in_order and server.is_in_order and not ending:
        return events
    while True:
        more: list[Event] = []
        may_resolve = client.answers_wait or server.answers_wait
        if may_resolve:
            more += [*client.deliver_answers(server, place), *server.deliver_answers(client, place)]
        more += [*client.report_due_holes(place), *server.report_due_holes(place)]
        if not more and (may_resolve or ending):
            more = _resolve(client, server, place, ending=ending)
        if not more:
            return events
        events += more


def _resolve(client: Side, server: Side, place: Place, *, ending: bool) -> list[Event]:
    """The next events where sides wait for each other."""
    if client.answers_wait and server.answers_wait:
        return client.answers_before(server, place)
    for ours, theirs in ((client, server), (server, client)):
        if ours.answers_wait and (ending or ours.answers_are_due(place)):
            return ours.give_up(theirs, place, ending=ending)
    return client.report_next_hole(place) or server.report_next_hole(place) if ending else []


def _closed_by(connection: Connection, how: Ending) -> Direction | None:
    """The side that closed it: the sender of the RST, or of the only FIN that the other side's FIN acknowledges."""
    client, server = connection.client, connection.server
    if how == "reset" and connection.reset is not None:
        ours, theirs = connection.sides(connection.reset.direction)
        # It may be the answer to the other side's FIN.
        return ours.direction if theirs.fin is None else theirs.direction
    if how != "fin" or client.knew_end_of(server) == server.knew_end_of(client):
        return None
    return server.direction if client.knew_end_of(server) else client.direction


def _close(connection: Connection, how: Ending, place: Place) -> list[Event]:
    events = _release_held(connection)
    if how not in ("reset", "reuse"):
        events += drop_reset(connection, place)
    connection.closed = how
    side = _closed_by(connection, how)
    if how == "reset" and connection.reset is not None:
        ours, theirs = connection.sides(connection.reset.direction)
        ours.packets, ours.unproven = ours.packets + ours.unproven, 0
        ours.note_reset(connection.reset.own)
        if connection.reset.acknowledgment is not None:
            theirs.note_acknowledgment(connection.reset.acknowledgment)
    connection.reset = None
    connection.forget_waiting()
    events += _advance(connection, place, ending=True)
    return [*events, *connection.client.finish(place), *connection.server.finish(place), Closed(place, how, side)]
