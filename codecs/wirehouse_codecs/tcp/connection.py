"""A connection as reassembly keeps it: two sides, and the segments that nobody can place yet.

It decides whether a segment begins another connection, and which earlier segments that connection takes. It answers
what protocols ask about its sides. `CarriedConnection` is the state for the next window. `connection_id` names it.

- A connection closes when both FINs were reached. Where they were acknowledged and bytes before them are missing, it
  closes after `hole_wait_ns` of silence, and these bytes are a hole.
- A SYN with another initial sequence number opens another connection. So does one with the same number after a reset
  before any bytes (the connection was refused, and the client tries again), unless it arrived at the same moment as the
  first one, as a copy does. Otherwise it is a retransmission, or a copy that a second tap took. A second tap's copy may
  also come after the end of a connection that began in the middle. Its SYN stands a little before the first bytes.
- The SYN of another connection may be missing. A segment that goes on where a stray ended, and that acknowledges
  nothing credible either, is of another one: after losses of gigabytes within one connection the other side's numbers
  are near. The strays come with it.
- Segments after the end belong to the connection that ended, until it has been silent for `idle_ns`. Their bytes are
  ignored, and reported unless they are copies of bytes that were seen.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import carried_fields
from wirehouse_codecs.tcp.apart import Apart, Fate
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.events import Ending, Opening, TcpSegment
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN
from wirehouse_codecs.tcp.resets import Reset
from wirehouse_codecs.tcp.sequence_numbers import ACKNOWLEDGED_BYTES, SEQUENCE_MASK, UNKNOWN, WINDOW_BYTES, distance
from wirehouse_codecs.tcp.side import Side
from wirehouse_codecs.tcp.side_state import CarriedSide

#: Maximum number of segments of a side that are held until the other side has acknowledged, where a capture begins in
#: the middle.
HELD_SEGMENTS: Final = 64
#: Maximum number of segments that are kept though they did not go on where their side ended, and of their bytes: a SYN
#: may show that they are of the next connection.
EARLY_SEGMENTS: Final = 16
EARLY_BYTES: Final = 1 << 16
#: Fates of segments that may have been sent again, and need not be of the next connection.
_REPEAT: Final = (Fate.DIFFERS, Fate.BEFORE, Fate.GIVEN_UP, Fate.REPEATED)
#: Fates of segments that were ignored, and may be of another connection with other numbers.
_FAR: Final = (Fate.STRAY, Fate.LATE)


class Known(NamedTuple):
    """The known facts about where a side's bytes begin."""

    #: Whether a packet of it was captured.
    is_captured: bool
    is_guessed: bool
    may_lack_beginning: bool


class Timeout(NamedTuple):
    """A time at which silence alone changes a connection."""

    due_ns: int
    #: The place since which it is silent.
    since: Place
    #: What ends then: that segments are held, that a side is awaited, or the connection.
    ends: Literal["held", "awaited", "connection"]
    #: How the connection ends.
    how: Ending = "idle"


@dataclass(slots=True)
class CarriedConnection:
    """The state of a connection for the next window."""

    connection_id: bytes
    opened: Opening
    first: Place
    last: Place
    client: CarriedSide
    server: CarriedSide
    closed: Ending | None = None
    #: Number of connections of its ports before it that began at the same moment.
    ordinal: int = 0
    #: A RST that waits.
    reset: Reset | None = None
    #: The first segments with bytes of a side that nothing has numbered.
    held: list[TcpSegment] = field(default_factory=list, repr=False)
    #: The last segments with bytes that did not go on where their side ended: ignored, or waiting behind a gap. A SYN
    #: may still show that they are of the next connection.
    _apart: list[Apart] = field(default_factory=list, repr=False)
    #: Whether a SYN of it was captured.
    has_syn: bool = False
    #: Whether both sides may have sent anything before the first packet.
    began_before_capture: bool = False


@dataclass(slots=True)
class Connection(CarriedConnection):
    """One connection: its two sides, and the segments that may belong to the next connection.

    It changes with every segment, also after the end.
    """

    client: Side
    server: Side
    began_before_capture: bool = field(init=False)
    #: Whether it is open, without gaps and FINs: the next segment can be a plain one.
    is_regular: bool = False
    #: Whether the next connection took segments that were counted here.
    _gave: bool = False
    #: The facts about the sides that protocols see. They may be older than the sides: see `known_now`.
    known: dict[Direction, Known] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.client.peer, self.server.peer = self.server, self.client
        self.known = self.known_now
        self.began_before_capture = self.opened == "middle"

    def announce(self, side: Side, sequence: int, *, is_answer: bool) -> None:
        """Note where the bytes of `side` begin, by a SYN. It may come after some, before any of the connection is read.

        An answer to a SYN doesn't show that the other side's first bytes were captured.
        """
        side.announce(sequence)
        self.has_syn = True
        if not (is_answer or side.may_lack_beginning or self.client.next_byte or self.server.next_byte):
            self.began_before_capture = False
            side.peer.begin_whole()

    def sides(self, direction: Direction) -> tuple[Side, Side]:
        """The side that sends in `direction`, and the other."""
        return (self.client, self.server) if direction is Direction.CLIENT else (self.server, self.client)

    def is_left_by(self, segment: TcpSegment) -> bool:
        """Whether a segment with SYN begins another connection."""
        ours, theirs = self.sides(segment.direction)
        if self.held and self.numbers_held(segment):
            return False
        answers = bool(segment.flags & ACK)
        if ours.began_after(segment.sequence):
            # One that was refused may be tried again with the same number. Else it is a copy, as of a second tap.
            was_used = theirs.has_begun or (theirs.initial != UNKNOWN and ours.has_begun)
            is_copy = segment.place.arrived_at_ns == self.first.arrived_at_ns
            return self.closed == "reset" and not (was_used or answers or is_copy)
        if self.closed is not None:
            return not self._is_beginning_of_ended(segment)
        if answers and (self.opened != "middle" or not ours.may_have_begun_at(segment.sequence + 1)):
            may_be_late = not ours.has_begun or ours.may_have_begun_at(segment.sequence + 1)
            return not theirs.is_answered_by(segment.acknowledgment, may_have_data=may_be_late)
        if self.opened != "syn" and ours.may_have_begun_at(segment.sequence + 1):
            age_ns = segment.place.arrived_at_ns - self.first.arrived_at_ns
            return age_ns >= ours.options.hole_wait_ns
        # Both sides may open at once (RFC 9293 section 3.5, figure 8).
        return self.opened != "syn" or ours.initial != UNKNOWN

    def _is_beginning_of_ended(self, segment: TcpSegment) -> bool:
        """Whether the segment is from the handshake of this ended connection, which only a second tap captured.

        Then the client's bytes before the first captured one are few, and no more than those that were delivered.
        """
        age_ns = segment.place.arrived_at_ns - self.first.arrived_at_ns
        side, theirs = self.sides(segment.direction)
        first = segment.sequence + 1
        if segment.flags & ACK:
            side, first = theirs, segment.acknowledgment
        is_short = side.may_have_begun_at(first, within=min(side.delivered_bytes, ACKNOWLEDGED_BYTES) + 1)
        return self.in_middle and age_ns < side.options.hole_wait_ns and is_short

    def is_left_without_syn(self, segment: TcpSegment) -> bool:
        """Whether the segment is of another connection, whose SYN was not captured.

        Then it goes on from a stray, and both of its numbers are far from any here.
        """
        ours, theirs = self.sides(segment.direction)
        if segment.flags & (SYN | RST | ACK) != ACK or not (segment.payload_bytes or segment.flags & FIN):
            return False
        if not ours.goes_on_from_stray(segment.sequence):
            return False
        return not (ours.may_be_credible(segment.sequence) or theirs.may_be_credible(segment.acknowledgment))

    @property
    def in_middle(self) -> bool:
        """Whether the capture begins in its middle, and no late SYN explains its first packets."""
        return self.opened == "middle" and not self.has_syn

    @property
    def awaited(self) -> Side | None:
        """The side that bytes wait for though no packet of it was captured."""
        if self.closed is not None or (self.client.packets and self.server.packets):
            return None
        return next((side for side in (self.client, self.server) if side.is_only_acknowledged), None)

    # Silence

    def timeouts(self) -> list[Timeout]:
        """All times at which silence alone changes it."""
        options, last = self.client.options, self.last
        # Nothing refutes a RST that still waits.
        how: Ending = "idle" if self.reset is None else "reset"
        timeouts = [Timeout(last.arrived_at_ns + options.idle_ns, last, "connection", how)]
        if self.closed is not None:
            return timeouts
        wait_ns = options.hole_wait_ns
        if self.held:
            first = self.held[0].place
            timeouts.append(Timeout(first.arrived_at_ns + wait_ns, first, "held"))
        if self.awaited is not None:
            timeouts.append(Timeout(self.first.arrived_at_ns + wait_ns, self.first, "awaited"))
        if self.client.fin is not None and self.client.is_finished and self.server.is_finished:
            timeouts.append(Timeout(last.arrived_at_ns + wait_ns, last, "connection", "fin"))
        if (since := self.reset_waits_since) is not None:
            timeouts.append(Timeout(since.arrived_at_ns + wait_ns, since, "connection", "reset"))
        return timeouts

    @property
    def ends_ns(self) -> int:
        """The time of the first of its timeouts."""
        timeouts = self.timeouts()
        return timeouts[0].due_ns if len(timeouts) == 1 else min(timeouts, key=_due_ns).due_ns

    def due(self, ns: int, ends: str) -> Timeout | None:
        """The earliest timeout of this kind that is due at `ns`."""
        due = [one for one in self.timeouts() if one.ends == ends and one.due_ns <= ns]
        return min(due, key=_due_ns, default=None)

    # What protocols ask

    @property
    def known_now(self) -> dict[Direction, Known]:
        """The facts about the sides since the last segment. They become `known` once all earlier bytes were read."""
        sides = (self.client, self.server)
        return {side.direction: Known(side.packets > 0, side.is_guessed, side.may_lack_beginning) for side in sides}

    @property
    def uncaptured_sides(self) -> list[Direction]:
        """The sides of which no packet was captured so far: they may have sent anything."""
        return [direction for direction, known in self.known.items() if not known.is_captured]

    @property
    def guessed_sides(self) -> list[Direction]:
        """The sides whose beginning nothing of their own shows: see `Side.is_guessed`."""
        return [direction for direction, known in self.known.items() if known.is_guessed]

    def may_lack_beginning(self, direction: Direction) -> bool:
        """Whether bytes of a side may stand before its first ones: see `Side.may_lack_beginning`."""
        return self.known[direction].may_lack_beginning

    def peer_received(self, direction: Direction, byte_end: int) -> int:
        """Maximum number of the other side's bytes that a side had received: see `Side.peer_received`."""
        return self.sides(direction)[0].peer_received(byte_end)

    def is_late(self, direction: Direction, byte_end: int) -> bool:
        """Whether nobody knows when a side first sent the byte before `byte_end`: see `Side.is_late`."""
        return self.sides(direction)[0].is_late(byte_end)

    def late(self, direction: Direction) -> Sequence[tuple[int, int]]:
        """The ranges of a side's late bytes: see `is_late`."""
        return self.sides(direction)[0].late

    def waiting_bytes(self, side: Side) -> int:
        """Captured bytes of a side that are not yet delivered or ignored: behind a gap, or for the other side."""
        held = [len(one.payload) for one in self.held if one.direction is side.direction]
        return side.kept_bytes + sum(held)

    # Reassembly

    @property
    def holds_enough(self) -> bool:
        """Whether no more segments may be held."""
        size = sum(len(one.payload) for one in self.held)
        return len(self.held) >= HELD_SEGMENTS or size > self.client.options.max_waiting_bytes

    def sent_by(self, side: Side) -> int:
        """The sequence number after all that a side is known to have sent, see `Side.sent`.

        While nothing numbers the side, the held segments show it.
        """
        if side.expected != UNKNOWN or not self.held:
            return side.sent
        if self.held[0].direction is side.direction:
            ends = [(one.sequence + one.payload_bytes + bool(one.flags & FIN)) & SEQUENCE_MASK for one in self.held]
        else:
            ends = [one.acknowledgment for one in self.held if one.flags & ACK]
        return max(ends, key=lambda end: distance(end, ends[0]), default=UNKNOWN)

    def numbers_held(self, segment: TcpSegment) -> bool:
        """Whether a segment is of the connection of the held bytes: it acknowledges some of them, or is a SYN of it."""
        first, is_syn = self.held[0], bool(segment.flags & SYN)
        begins = segment.sequence + 1 if is_syn else None
        if segment.direction is first.direction:
            ahead = None if begins is None else distance(first.sequence, begins)
        elif segment.flags & ACK:
            ahead = distance(first.sequence, segment.acknowledgment)
        else:
            ahead = distance(first.acknowledgment, begins) if begins is not None and first.flags & ACK else None
        # Bytes before a SYN are of another connection.
        return ahead is not None and (0 if is_syn else 1 - WINDOW_BYTES) <= ahead < WINDOW_BYTES

    def keep_apart(self, apart: Apart) -> None:
        """Remember a segment with bytes: it may be of the next connection, captured before its SYN."""
        if apart.fate is Fate.COPY:
            return
        if apart.segment.flags & (SYN | RST):
            self._ignore(apart)
            return
        self._apart.append(apart)
        many, size = len(self._apart), sum([len(one.segment.payload) for one in self._apart])
        while many > EARLY_SEGMENTS or size > EARLY_BYTES:
            many, size = many - 1, size - len(self._apart[0].segment.payload)
            self._keep_first()

    def give_away(self, syn: TcpSegment) -> list[TcpSegment]:
        """Give away the segments of the connection which `syn` opens; they no longer count here."""
        ours, theirs = self.sides(syn.direction)
        given = self._claimed(ours, syn, (syn.sequence + 1) & SEQUENCE_MASK)
        if syn.flags & ACK:
            given += self._claimed(theirs, syn, syn.acknowledgment)
        given = [one for one in self._apart if one in given]
        self._apart = [one for one in self._apart if one not in given]
        self._gave = bool(given)
        return [one.segment for one in given]

    def give_strays(self, segment: TcpSegment) -> list[TcpSegment]:
        """Give away the segments of the connection that `segment` is of, without a SYN; they no longer count here."""
        ours, _ = self.sides(segment.direction)
        oldest_ns = segment.place.arrived_at_ns - ours.options.hole_wait_ns
        given = []
        for one in self._apart:
            side, _ = self.sides(one.segment.direction)
            near = segment.sequence if side is ours else segment.acknowledgment
            is_near = abs(distance(one.segment.sequence, near)) < WINDOW_BYTES
            if is_near and one.fate in _FAR and one.segment.place.arrived_at_ns > oldest_ns:
                side.gives_away(one, segment.place)
                side.packets -= 1
                given.append(one)
        self._apart = [one for one in self._apart if one not in given]
        self._gave = bool(given)
        return [one.segment for one in given]

    def _claimed(self, side: Side, syn: TcpSegment, first: int) -> list[Apart]:
        """Give away the segments of a side which are of the connection that `syn` opens, whose first byte is `first`.

        Segments before the next byte of the side may be retransmissions: known copies are. Others are new if they go on
        from `first` without a gap. They are also new if they stand near it and can't be old, because they differ, or
        because they stand before the first byte behind a SYN.
        """
        oldest_ns = syn.place.arrived_at_ns - side.options.hole_wait_ns
        ahead = [
            (distance(one.segment.sequence, first), one)
            for one in self._apart
            if one.segment.direction is side.direction and one.segment.place.arrived_at_ns > oldest_ns
        ]
        given: list[Apart] = []
        end = len(syn.payload) if side.direction is syn.direction else 0
        for start, one in sorted(ahead, key=_start_of):
            if not 0 <= start < WINDOW_BYTES:
                continue
            goes_on = start <= end
            is_before_first = one.fate is Fate.BEFORE and one.ignored and not self.in_middle
            differs = one.fate is Fate.DIFFERS or is_before_first
            may_repeat = one.fate in _REPEAT and not (differs and start <= EARLY_BYTES)
            if (goes_on or not may_repeat) and side.gives_away(one, syn.place):
                given.append(one)
                end = max(end, start + one.segment.payload_bytes) if goes_on else end
        side.packets -= len(given)
        return given

    def take_back(self, side: Side) -> list[TcpSegment]:
        """Take back the segments of a side that were ignored, and are credible now."""
        back = [one for one in self._apart if self._is_open(one, side) and side.is_near(one.segment.sequence)]
        self._apart = [one for one in self._apart if one not in back]
        side.strays -= sum([one.fate is Fate.STRAY for one in back])
        side.ignored_bytes -= sum(len(one.segment.payload) for one in back)
        return [one.segment for one in back]

    def take_behind_fin(self, side: Side) -> list[TcpSegment]:
        """Take back the bytes of a side that were ignored because they are behind its FIN."""
        fates = (Fate.LATE, Fate.BEYOND)
        behind = [one for one in self._apart if one.segment.direction is side.direction and one.fate in fates]
        self._apart = [one for one in self._apart if one not in behind]
        side.ignored_bytes -= sum(one.ignored for one in behind)
        return [_last_bytes(one.segment, one.ignored) for one in behind]

    def keep_early(self, until_ns: int | None = None) -> None:
        """Count the segments that arrived until `until_ns`, or all, to this connection: no SYN came in time for them.

        While a side has two numberings, segments that the other numbering may make credible are still kept.
        """
        if not self._apart or (until_ns is not None and self._apart[0].segment.place.arrived_at_ns > until_ns):
            return
        kept = []
        for one in self._apart:
            side, _ = self.sides(one.segment.direction)
            may_count = self.closed is None and side.has_two_numberings and self._is_open(one, side)
            if until_ns is not None and (may_count or one.segment.place.arrived_at_ns > until_ns):
                kept.append(one)
            else:
                self._ignore(one)
        self._apart = kept

    @staticmethod
    def _is_open(apart: Apart, side: Side) -> bool:
        """Whether a segment is of `side`, and is ignored because of where the bytes of the side begin."""
        return apart.fate in (Fate.STRAY, Fate.BEFORE) and apart.segment.direction is side.direction

    def forget_waiting(self) -> None:
        """Forget the segments that wait behind a gap: at the end they are delivered, and no SYN can claim them."""
        self._apart = [one for one in self._apart if one.fate is not Fate.WAITS]

    def _keep_first(self) -> None:
        self._ignore(self._apart.pop(0))

    def _ignore(self, apart: Apart) -> None:
        if apart.fate.why is not None:
            side, _ = self.sides(apart.segment.direction)
            side.ignore(apart.fate.why, apart.ignored, apart.segment.place)

    @property
    def has_news(self) -> bool:
        """Whether its row is no longer right, or notes are to be written, without a segment of its own."""
        return self._gave or bool(self.client.unreported or self.server.unreported)

    @property
    def reset_waits_since(self) -> Place | None:
        """The place since which silence confirms a waiting RST; if its side wasn't captured, the silence of both."""
        if self.reset is None:
            return None
        ours, theirs = self.sides(self.reset.direction)
        if not ours.packets:
            return self.last
        # A side that nobody speaks to may be silent for hours.
        is_due = self.reset.asked_ns or not theirs.packets or ours.may_end_at(self.reset.sequence)
        return self.reset.silent_since if self.reset.is_in_place or is_due else None

    def judge_regular(self) -> None:
        """Decide whether the next segment can be a plain one."""
        is_settled = self.closed is None and self.reset is None and self.client.regular and self.server.regular
        self.is_regular = is_settled and self.awaited is None

    def carried(self) -> CarriedConnection:
        """The connection as it is carried to the next window."""
        self.keep_early(self.last.arrived_at_ns - self.client.options.hole_wait_ns)
        self.client.settle()
        self.server.settle()
        return self

    @classmethod
    def restored(cls, state: CarriedConnection, options: TcpOptions) -> Connection:
        """The connection that was carried as `state`."""
        carried = carried_fields(CarriedConnection, state)
        began_before_capture = carried.pop("began_before_capture")
        sides = {name: Side.restored(carried[name], options) for name in ("client", "server")}
        connection = cls(**carried | sides)
        connection.began_before_capture = began_before_capture
        connection.judge_regular()
        return connection


def _due_ns(timeout: Timeout) -> int:
    return timeout.due_ns


def _start_of(placed: tuple[int, Apart]) -> int:
    return placed[0]


def _last_bytes(segment: TcpSegment, size: int) -> TcpSegment:
    """The segment with the last `size` bytes of what was captured of it."""
    first = len(segment.payload) - size
    sequence = (segment.sequence + first) & SEQUENCE_MASK
    return segment._replace(
        sequence=sequence, payload=segment.payload[first:], payload_bytes=segment.payload_bytes - first
    )


def connection_id(
    source: str, client: Endpoint, server: Endpoint, sequence: int, arrived_at_ns: int, ordinal: int = 0
) -> bytes:
    """16 bytes that name a connection.

    `sequence` is the client's initial sequence number, or the first that was seen; the time is the first packet's.
    `ordinal` distinguishes connections of the same ports that began at one moment of a coarse clock.
    """
    name = source.encode()
    digest = hashlib.sha256(struct.pack(">I", len(name)) + name)
    for endpoint in (client, server):
        digest.update(struct.pack(">B", len(endpoint.packed)) + endpoint.packed + struct.pack(">H", endpoint.port))
    digest.update(struct.pack(">Iq", sequence & SEQUENCE_MASK, arrived_at_ns))
    if ordinal:
        digest.update(struct.pack(">Q", ordinal))
    return digest.digest()[:16]
