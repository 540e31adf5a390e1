"""RSTs: which of them close a connection, which wait, and what shows that one is forged.

- A RST closes at once if it stands where its sender's stream does, or if it acknowledges the SYN that it answers
  (RFC 9293 section 3.10.7.3). The stream stands behind all that its sender is known to have sent, and behind the bytes
  that are there without a gap. Bytes that are held, or that wait for the other side only, are there: a RST before them
  is one that came late, or is forged. Bytes of its side before it may be captured after it, and bytes of the other one
  that its side has acknowledged: then it closes when they are there, or after `hole_wait_ns`.
- Anyone can send another RST (RFC 5961), and a garbled or late one looks alike. It is ignored at once if it stands
  before bytes that its receiver had acknowledged, as no host accepts that. Else it waits. It is believed if its side
  is silent for `hole_wait_ns` although the other side speaks, if the stream comes to stand where it stands, at a SYN,
  or when the connection is idle. It is ignored if its alleged sender acknowledges new data or speaks after
  `hole_wait_ns`, if the other side acknowledges new data of that sender, or if the connection ends by FINs. If
  nothing else of its alleged sender was captured, the silence of both confirms it, and a connection that goes on
  after `hole_wait_ns` refutes it. Until it is believed it is no packet of that side, and it numbers no bytes.
- Once a RST is believed, its sender had sent all before it. What was not captured is a hole, except the last byte: it
  may have been a FIN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import Event, ResetIgnored, TcpSegment
from wirehouse_codecs.tcp.ignored import Why
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN
from wirehouse_codecs.tcp.sequence_numbers import UNKNOWN, WINDOW_BYTES, distance

if TYPE_CHECKING:
    from wirehouse_codecs.tcp.connection import Connection


class Reset(NamedTuple):
    """A RST of `direction` that waits.

    If it isn't where its sender's stream stands, later segments decide what it was. If it is, it waits only for bytes
    of its side before it, and for those that its side had acknowledged.
    """

    direction: Direction
    place: Place
    sequence: int
    #: Its own acknowledgment, if it has one.
    acknowledgment: int | None
    #: The sequence number after all that the other side had sent.
    sent: int
    #: The sequence number after all that its alleged sender had sent, or its own if that is further.
    own: int
    #: The first acknowledgment that its alleged sender sent later.
    acknowledged: int = UNKNOWN
    is_in_place: bool = False
    #: When its alleged sender last sent something since; 0 if it didn't.
    alive_ns: int = 0
    #: When the other side first sent bytes since; 0 if it didn't.
    asked_ns: int = 0

    @property
    def silent_since(self) -> Place:
        """Its place, with the time from which on its alleged sender is silent although it was to speak."""
        return replace(self.place, arrived_at_ns=max(self.place.arrived_at_ns, self.alive_ns, self.asked_ns))

    def is_after(self, direction: Direction, sequence: int) -> bool:
        """Whether it shows that `direction` had sent the byte `sequence`: it acknowledges the byte, or is behind it."""
        end = self.own if direction is self.direction else self.acknowledgment
        return end not in (None, UNKNOWN) and 0 < distance(end, sequence) < WINDOW_BYTES


def take_reset(connection: Connection, segment: TcpSegment, *, was_captured: bool) -> list[Event]:
    """Take a RST.

    If its receiver had acknowledged bytes behind it, it is ignored at once: no host accepts it. What it carries is no
    part of the stream (RFC 9293 section 3.5.3).
    """
    ours, theirs = connection.sides(segment.direction)
    ours.ignored_bytes += len(segment.payload)
    ours.ignore(Why.RESET, len(segment.payload), segment.place)
    acknowledgment = segment.acknowledgment if segment.flags & ACK else None
    own = end = connection.sent_by(ours)
    if own != UNKNOWN and 0 < distance(segment.sequence, own) < WINDOW_BYTES:
        own = segment.sequence
    is_asked = connection.opened == "syn" and not was_captured and ours.expected == UNKNOWN
    is_refusal = is_asked and acknowledgment is not None and theirs.is_answered_by(acknowledgment)
    if ours.has_acknowledged(segment.sequence, was_captured=was_captured):
        ours.strays += 1
        if not was_captured:
            ours.unproven, ours.packets = ours.packets, 0
        return [ResetIgnored(segment.direction, segment.place)]
    is_in_place = ours.may_end_at(segment.sequence) or segment.sequence == end or is_refusal
    sent = connection.sent_by(theirs)
    if acknowledgment is not None and sent != UNKNOWN and 0 < distance(acknowledgment, sent) < WINDOW_BYTES:
        # The bytes that the RST acknowledges were sent before it, though they may be captured later.
        sent = acknowledgment
    about = (segment.direction, segment.place, segment.sequence, acknowledgment)
    reset = Reset(*about, sent, own, is_in_place=is_in_place)
    if is_in_place:
        waiting = connection.reset
        if waiting is None or not waiting.is_in_place:
            if waiting is not None:
                # Nothing refutes it any more. A host without the connection answers with RSTs whose number is what the
                # other side acknowledged.
                connection.sides(waiting.direction)[0].note_reset(waiting.own)
            connection.reset = reset
        return []
    if not was_captured:
        ours.unproven, ours.packets = ours.packets, 0
    waiting = connection.reset
    if waiting is None:
        connection.reset = reset
    elif reset != waiting._replace(place=reset.place):
        # It is no copy of the RST that waits. Only the first is followed.
        ours.strays += 1
    return []


def lacks_bytes(connection: Connection) -> bool:
    """Whether bytes may still come that its sender had sent before the RST, or had received."""
    reset = connection.reset
    assert reset is not None
    ours, theirs = connection.sides(reset.direction)
    if ours.packets and reset.own != UNKNOWN and ours.lacks_before(reset.own - (ours.fin is not None)):
        return True
    age_ns = reset.place.arrived_at_ns - connection.first.arrived_at_ns
    if not theirs.packets and age_ns >= theirs.options.hole_wait_ns:
        # The other side was not captured at all.
        return False
    end, known = theirs.acknowledged_bytes, reset.acknowledgment
    if known is not None and theirs.is_credible(known):
        end = max(end, theirs.position(known) or 0)
    return theirs.next_byte < (end if theirs.fin is None else min(end, theirs.fin))


def review_reset(connection: Connection, reset: Reset, segment: TcpSegment) -> list[Event]:
    """Check a waiting RST against `segment`: does it show that the alleged sender didn't send the RST?

    A host that acknowledges new data didn't send it, nor did a host whose new data is acknowledged. Other segments of
    its alleged sender may have been captured late, though no later than a gap is waited for. If that sender was not
    captured, a connection that still goes on after the wait wasn't reset.
    """
    place, flags = segment.place, segment.flags
    if flags & (SYN | RST) or reset.is_in_place:
        return []
    ours, theirs = connection.sides(reset.direction)
    acknowledgment, is_sender = segment.acknowledgment, segment.direction is reset.direction
    is_over = place.arrived_at_ns - reset.place.arrived_at_ns >= ours.options.hole_wait_ns
    goes_on = is_over and (is_sender or not ours.packets)
    if flags & ACK and not goes_on and (theirs if is_sender else ours).may_be_credible(acknowledgment):
        known = [one for one in ((reset.sent, reset.acknowledged) if is_sender else (reset.own,)) if one != UNKNOWN]
        # A host that asked to open the connection acknowledges nothing before it is open.
        is_open = not known and not is_sender and connection.opened == "syn"
        goes_on = is_open or any(0 < distance(acknowledgment, one) < WINDOW_BYTES for one in known)
        if is_sender and reset.acknowledged == UNKNOWN:
            connection.reset = reset._replace(acknowledged=acknowledgment)
        elif not is_sender and reset.own == UNKNOWN:
            connection.reset = reset._replace(own=acknowledgment)
    if not goes_on:
        if connection.reset is not None:
            connection.reset = _heard(connection.reset, segment)
        return []
    return drop_reset(connection, place)


def _heard(reset: Reset, segment: TcpSegment) -> Reset:
    """A waiting RST behind a segment that doesn't refute it."""
    now_ns = segment.place.arrived_at_ns
    if segment.direction is not reset.direction:
        asks = segment.payload_bytes or segment.flags & FIN
        return reset._replace(asked_ns=now_ns) if asks and not reset.asked_ns else reset
    return reset._replace(alive_ns=now_ns)


def drop_reset(connection: Connection, place: Place) -> list[Event]:
    """Ignore a waiting RST that isn't where its sender's stream stands: `place` refutes it, or nothing confirmed it."""
    reset = connection.reset
    if reset is None or reset.is_in_place:
        return []
    connection.reset = None
    connection.sides(reset.direction)[0].strays += 1
    return [ResetIgnored(reset.direction, replace(reset.place, arrived_at_ns=place.arrived_at_ns))]
