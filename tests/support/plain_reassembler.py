"""A small reassembler that knows nothing of the product: all packets of a TCP connection, and plain set logic.

It is offline: it sees the whole capture of one connection before it says which bytes each side sent and which of them
are missing. So it needs no state, no limits and no clock, but for two things that the capture itself leaves open:

- `late`: bytes that came when their gap may already have been given up. They may be read as bytes or as a hole.
- `tail`: the last byte that was acknowledged, or stands before the RST, of a side whose FIN was not captured. It may be
  the FIN.

What it reads (RFC 9293, and docs/packets.md where that leaves a choice):

- The first copy of a byte counts. Numbers wrap at 2^32. SYN and FIN take one number each.
- A stream begins behind its SYN. Without the SYN it begins behind what the other side had acknowledged, or at the
  first bytes, if these come before that. The capture may leave this open: then there is a reading for each place that
  the packets name. `compare_reassembly.forgotten` holds that none of them loses bytes that the receiver lacked.
- What was acknowledged, or lies before bytes that were captured, was sent; so was what lies before the RST that ends
  the connection. If no copy was captured, it is a hole. What lies before a doubtful RST that came first may be one.
- A RST that stands where its sender's stream does ends the connection, once the bytes that it acknowledges are there
  or `WAIT_NS` have passed. Another one ends it if its sender is silent for `WAIT_NS` although the other side speaks, or
  where its sender's stream comes to stand. Its sender refutes it by acknowledging new data until then, or by speaking
  after `WAIT_NS`; so do acknowledgments of its new data. If nothing of its sender was captured, silence of `WAIT_NS`
  confirms it, and a connection that goes on longer refutes it. An earlier acknowledgment of bytes behind it refutes
  any.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

#: So long a gap may be filled, and a doubtful RST refuted.
WAIT_NS: Final = 10 * 10**9
#: Numbers so far from the stream are no part of it.
FAR: Final = 1 << 24


class Packet(NamedTuple):
    """A captured packet of a connection."""

    ns: int
    #: The client sent it.
    client: bool
    sequence: int
    #: None without the flag ACK.
    acknowledgment: int | None
    payload: bytes = b""
    #: Bytes that it had, if more than were captured.
    size: int = 0
    syn: bool = False
    fin: bool = False
    rst: bool = False

    @property
    def first(self) -> int:
        """The sequence number of its first byte."""
        return (self.sequence + self.syn) % 2**32

    @property
    def sent(self) -> int:
        """How many bytes it had."""
        return max(self.size, len(self.payload))


class Run(NamedTuple):
    """Bytes of a stream that follow each other; `data` is None if they are missing."""

    start: int
    end: int
    data: bytes | None


class Reading(NamedTuple):
    """What is known of one side's stream: its runs from 0 on, without gaps."""

    runs: tuple[Run, ...]
    #: Ranges that may be bytes or holes.
    late: tuple[tuple[int, int], ...] = ()
    #: The last byte may be a FIN: it may be missing from the last hole.
    tail: bool = False
    #: The sequence number of position 0.
    sequence: int | None = None


class _Part(NamedTuple):
    """Bytes that were captured first by the packet at `ns`."""

    start: int
    end: int
    data: bytes
    ns: int


def reassemble(packets: Sequence[Packet]) -> dict[bool, list[Reading]]:
    """For the client (True) and the server (False) the readings that are right; the first is the usual one."""
    first = next((n for n, one in enumerate(packets) if not one.rst), 0)
    if packets and packets[first].syn:
        # The RSTs are of a connection before.
        packets = packets[first:]
    end, resets = _end(packets)
    again = next((n for n in range(end, len(packets)) if packets[n].syn), None)
    if again is not None and not any(one.sent for one in packets[:end]):
        # The connection was refused, and is asked for again.
        return reassemble(packets[again:])
    own = [[one for n, one in enumerate(packets[:end]) if not one.rst or n in some] for some in (resets, resets[:1])]
    return {
        client: list(dict.fromkeys(reading for some in own for reading in _readings(some, client)))
        for client in (True, False)
    }


def distance(number: int, other: int) -> int:
    """How far `number` is ahead of `other`, the shorter way round."""
    return (number - other + 2**31) % 2**32 - 2**31


# Where the connection ends


def _end(packets: Sequence[Packet]) -> tuple[int, list[int]]:
    """How many packets are of the connection: those up to its RST; and which that is, before those that waited."""
    ends: list[tuple[int, list[int]]] = []
    for at, packet in enumerate(packets):
        if not packet.rst or _is_old(packets[:at], packet):
            continue
        if _in_place(packets[:at], packet):
            ends.insert(0, (_filled(packets, at), [at, *(n for _, (n,) in ends)]))
            break
        if not _is_refuted(packets, at):
            ends.append((_due(packets, at), [at]))
    return min(ends, key=lambda end: end[0], default=(len(packets), []))


def _filled(packets: Sequence[Packet], at: int) -> int:
    """Before which packet all is there that the RST's side had sent or acknowledged, or is waited for no more."""
    reset = packets[at]
    awaited = list(_awaited(packets, at))
    asked = [one.first for one in packets[:at] if one.syn]
    for number in range(at + 1, len(packets)):
        gaps = (_gaps(packets[:number], client, base, end) for client, base, end in awaited)
        is_missing = any(missing and end > begins for (begins, missing), (*_, end) in zip(gaps, awaited, strict=True))
        one = packets[number]
        asks_anew = one.syn and one.acknowledgment is None and one.first not in asked
        if not is_missing or packets[number].ns >= reset.ns + WAIT_NS or asks_anew:
            return number
    return len(packets)


def _awaited(packets: Sequence[Packet], at: int) -> Iterator[tuple[bool, int, int]]:
    """Up to where bytes of each side are known to have been sent before the RST: side, base, position."""
    reset, before = packets[at], packets[:at]
    base = _base(before, reset.client)
    if base is not None and any(_is_of(one, reset) for one in before):
        yield reset.client, base, _position(reset.sequence, base)
    other = not reset.client
    base = _base(before, other)
    heard = any(one.client is other for one in before) or reset.ns < packets[0].ns + WAIT_NS
    if base is None or not heard:
        return
    own = [one.acknowledgment for one in before if _is_of(one, reset)] + [reset.acknowledgment]
    ends = [_position(one, base) for one in own if one is not None]
    ends = [end for end in ends if abs(end) < FAR]
    if ends:
        yield other, base, max(ends)


def _gaps(packets: Sequence[Packet], client: bool, base: int, end: int) -> tuple[int, bool]:
    """Where the side's bytes begin, and whether some before `end` are missing."""
    parts, _ = _parts(packets, client, base)
    has_syn = any(one.syn and one.client is client for one in packets)
    if not (has_syn or parts or packets[0].syn):
        return 0, False
    begins = 0 if has_syn or not parts else parts[0].start
    fins = [_position(one.first, base) + one.sent for one in packets if one.client is client and one.fin]
    end = min([end, *fins])
    at = begins
    for part in parts:
        at = max(at, part.end) if part.start <= at else at
    return begins, at < end


def _due(packets: Sequence[Packet], at: int) -> int:
    """Before which packet the RST is confirmed by its side's silence; by all silence, if that was not captured."""
    reset = packets[at]
    heard, since = any(_is_of(one, reset) for one in packets[:at]), reset.ns
    answered = any(one.client is not reset.client for one in packets[:at])
    asked = False
    for number in range(at + 1, len(packets)):
        one = packets[number]
        confirms = not heard or asked or not answered or _in_place(packets[:number], reset)
        if confirms and one.ns >= since + WAIT_NS:
            return number
        is_own = _is_of(one, reset)
        heard, answered = heard or is_own, answered or one.client is not reset.client
        asks = not asked and one.client is not reset.client and not one.rst and bool(one.sent or one.fin)
        asked = asked or asks
        since = one.ns if is_own or not heard or asks else since
    return len(packets)


def _is_of(packet: Packet, reset: Packet) -> bool:
    """Its host sent it, and not only a RST."""
    return packet.client is reset.client and not packet.rst


def _in_place(before: Sequence[Packet], reset: Packet) -> bool:
    """The RST stands where its sender's stream does, or nothing says where that is."""
    own = [one for one in before if one.client is reset.client and not one.rst]
    answers = [one for one in before if one.client is not reset.client and one.acknowledgment is not None]
    base = _base(before, reset.client)
    if base is None:
        base = own[0].first if own else None
    if base is None:
        return reset.acknowledgment is not None and any(
            one.syn and 0 < distance(reset.acknowledgment, one.sequence) <= one.sent + 1
            for one in before
            if one.client is not reset.client
        )
    near = [one for one in own if abs(_position(one.first, base)) < FAR]
    # Where a packet without bytes stands says so only if there is no other.
    near = [one for one in near if one.syn or one.sent or one.fin] or near
    ends = [_position(one.first, base) + one.sent for one in near]
    parts, _ = _parts(before, reset.client, base)
    follows = parts[0].end if parts else 0
    for part in parts[1:]:
        if part.start == follows:
            follows = part.end
    places = {max(ends, default=0), follows, *(end + 1 for end, one in zip(ends, near, strict=True) if one.fin)}
    if not any(one.syn or one.sent or one.fin for one in near):
        places |= {_position(one.acknowledgment, base) for one in answers if one.acknowledgment is not None}
    return _position(reset.sequence, base) in places


def _is_old(before: Sequence[Packet], reset: Packet) -> bool:
    """Its receiver had acknowledged bytes behind it."""
    base = _base(before, reset.client)
    if base is None:
        return False
    numbers = [
        one.acknowledgment
        for one in before
        if one.acknowledgment is not None and not one.rst and one.client is not reset.client
    ]
    ends = [end for end in (_position(number, base) for number in numbers) if abs(end) < FAR]
    return bool(ends) and -FAR < _position(reset.sequence, base) < max(ends) - 1


def _is_refuted(packets: Sequence[Packet], at: int) -> bool:
    """The alleged sender of the RST lives: it acknowledges new data in time, or its own new data are acknowledged."""
    reset, before, due = packets[at], packets[:at], _due(packets, at)
    if _goes_on(packets, at, due):
        return True
    for client in (reset.client, not reset.client):
        base = _base(packets, client)
        if base is None:
            continue
        known = [
            _position(one.first, base) + one.sent
            for one in before
            if one.client is client and not one.rst and (one.syn or one.sent or one.fin)
        ]
        place = _position(reset.sequence, base)
        known += [
            _position(one.acknowledgment, base)
            for one in before
            if one.client is not client and one.acknowledgment is not None and not one.rst
        ]
        if client is not reset.client and reset.acknowledgment is not None:
            known.append(_position(reset.acknowledgment, base))
        # A SYN that was forgotten stands elsewhere.
        known = [at for at in known if abs(at) < FAR]
        most = [max(known)] if known else []
        if client is reset.client and most and most[0] < place < most[0] + FAR:
            most = [place]
        for packet in packets[at + 1 : due]:
            if packet.client is client or packet.acknowledgment is None or packet.syn or packet.rst:
                continue
            acknowledged = _position(packet.acknowledgment, base)
            if any(acknowledged > one for one in most):
                return True
            if client is reset.client and not most and packets[0].syn and packets[0].acknowledgment is None:
                return True
            if len(most) < (1 if client is reset.client else 2):
                most.append(acknowledged)
    return False


def _goes_on(packets: Sequence[Packet], at: int, due: int) -> bool:
    """The alleged sender speaks after the wait; or, if nothing of it was captured, the connection goes on."""
    reset = packets[at]
    late = [n for n in range(at, due) if packets[n].ns >= reset.ns + WAIT_NS and not packets[n].syn]
    speaks = any(_is_of(packets[n], reset) for n in late)
    return speaks or (bool(late) and not any(_is_of(one, reset) for one in packets[: late[0]]))


# How bytes are numbered


def _base(packets: Iterable[Packet], client: bool) -> int | None:
    """A number of the side's stream that positions count from: behind its SYN, or any that says where it stands."""
    packets = list(packets)
    starts = list(dict.fromkeys(one.first for one in packets if one.client is client and one.syn and not one.rst))
    evidence = [number for one in packets if not one.rst for number in _says(one, client)]
    stands = [one.first for one in packets if one.client is client and not (one.syn or one.rst or one.sent or one.fin)]
    near = [number for number in evidence if any(abs(distance(number, start)) < FAR for start in starts)]
    if len(starts) > 1 and near:
        return min(starts, key=lambda start: abs(distance(near[0], start)))
    if (
        evidence
        and not near
        and (not starts or any(abs(distance(one, evidence[0])) < FAR for one in evidence[1:] + stands))
    ):
        # Also of a SYN whose number nothing goes on from, if there are two.
        return evidence[0]
    return starts[0] if starts else None


def _says(packet: Packet, client: bool) -> list[int]:
    """The number that a packet gives of the client's or the server's stream, but for its SYN."""
    if packet.client is client:
        return [packet.first] if packet.sent or packet.fin else []
    return [] if packet.acknowledgment is None else [packet.acknowledgment]


def _position(number: int, base: int) -> int:
    return distance(number, base)


# What was sent


def _parts(packets: Iterable[Packet], client: bool, base: int) -> tuple[list[_Part], int]:
    """The captured bytes of a side, in order and without overlaps, and the position behind all that it sent."""
    parts: list[_Part] = []
    reach = -(2**31)
    for packet in packets:
        if packet.client is not client or packet.rst or not (packet.sent or packet.fin):
            continue
        at = _position(packet.first, base)
        if abs(at) >= FAR:
            continue
        reach = max(reach, at + packet.sent)
        _add(parts, at, packet.payload, packet.ns)
    return parts, reach


def _add(parts: list[_Part], at: int, data: bytes, ns: int) -> None:
    """Add what of `data` is new."""
    end = at + len(data)
    low = bisect_right(parts, at, key=lambda part: part.end)
    high = bisect_left(parts, end, key=lambda part: part.start)
    start, new = at, []
    for known in [*parts[low:high], _Part(end, end, b"", ns)]:
        if start < known.start:
            new.append(_Part(start, known.start, data[start - at : known.start - at], ns))
        start = max(start, known.end)
    parts[low:high] = sorted([*parts[low:high], *new])


def _readings(packets: Sequence[Packet], client: bool) -> list[Reading]:
    base = _base(packets, client)
    if base is None:
        return [Reading(())]
    parts, reach = _parts(packets, client, base)
    acknowledgments = [
        (one.ns, _position(one.acknowledgment, base))
        for one in packets
        if one.client is not client
        and one.acknowledgment is not None
        and abs(_position(one.acknowledgment, base)) < FAR
    ]
    fins = [one for one in packets if one.client is client and one.fin and not one.rst]
    fin = _position(fins[0].first, base) + fins[0].sent if fins else None
    resets = [_position(one.sequence, base) for one in packets if one.client is client and one.rst]
    acknowledged = max([*(at for _, at in acknowledgments), *(at for at in resets if abs(at) < FAR)], default=reach)
    tail = fin is None and acknowledged > reach
    end = max(reach, acknowledged) if fin is None else fin
    late = _late(packets, client, parts, acknowledgments)
    return [
        Reading(
            tuple(_runs(parts, start, max(start, end))),
            tuple((low - start, high - start) for low, high in late),
            tail and end > start,
            (base + start) % 2**32,
        )
        for start in _starts(packets, client, base, parts, acknowledgments)
    ]


def _starts(
    packets: Sequence[Packet],
    client: bool,
    base: int,
    parts: Sequence[_Part],
    acknowledged_at: Sequence[tuple[int, int]],
) -> list[int]:
    """Where the stream begins; several places if the capture leaves that open."""
    acknowledged = [number for _, number in acknowledged_at]
    own = [one for one in packets if one.client is client and not one.rst]
    syn = next((n for n, one in enumerate(own) if one.syn and one.first == base), None)
    if syn is not None:
        # What was captured before the SYN may have been read by then, as of a capture that begins in the middle.
        early = [_position(one.first, base) for one in own[:syn]]
        opens = packets[0].syn and packets[0].client is client
        return list(dict.fromkeys([0, *early, *acknowledged[: not opens]]))
    if packets[0].syn:
        # All that the side sent was sent while the other one was captured.
        begins = min([*acknowledged, *(part.start for part in parts[:1])], default=0)
        if not any(one.syn for one in own):
            # What says that it began before comes too late behind its first bytes and what acknowledges them.
            return list(dict.fromkeys([begins, *_known_first(parts, acknowledged_at)]))
        # Its own SYN has another number. Two segments say so together: the stream may begin with the lower of them.
        two = [_position(one.first, base) for one in own if one.sent][:2]
        lowest = min(_position(one.first, base) for one in own if not one.syn) if two else 0
        return list(dict.fromkeys([begins, min(two, default=0), *two[:1], lowest]))
    if not own:
        # Of what was acknowledged later all, some or nothing may have been sent before the capture began.
        return sorted(set(acknowledged))
    return _starts_in_middle(own, base, parts, acknowledged_at, has_syn=any(one.syn for one in packets))


def _starts_in_middle(
    own: Sequence[Packet],
    base: int,
    parts: Sequence[_Part],
    acknowledged_at: Sequence[tuple[int, int]],
    *,
    has_syn: bool,
) -> list[int]:
    acknowledged = [number for _, number in acknowledged_at]
    first = _position(own[0].first, base)
    before = [number for ns, number in acknowledged_at if ns <= own[0].ns]
    known = max(before) if before else next(iter(acknowledged), first)
    data = [_position(one.first, base) for one in own if one.sent][:1]
    # For so long an acknowledgment is waited for.
    data += [min(_position(one.first, base) for one in own if one.ns < own[0].ns + WAIT_NS)]
    lowest = [*(part.start for part in parts[:1]), min(_position(one.first, base) for one in own)]
    asked = [max(part.start, known) for part in parts if part.end > known][:1]
    # Bytes that go on up to there.
    joined = [min(known, first), *data]
    for one in sorted(own, key=lambda one: _position(one.first, base), reverse=True):
        start = _position(one.first, base)
        joined = [start if start < at <= start + one.sent else at for at in joined]
    answers = [min(acknowledged)] if has_syn and acknowledged else []
    # What was acknowledged before its first byte was captured may not be waited for any more.
    data_ns = next((one.ns for one in own if one.sent), own[0].ns)
    had = [number for ns, number in acknowledged_at if ns <= data_ns]
    settled = [one for place in (known, max(had, default=known)) for one in _settled(parts, place, acknowledged_at)]
    # A byte before may have been a keep-alive.
    places = [min(known, first), first, first + 1, known, *joined, *data, *lowest, *asked, *settled, *before, *answers]
    return list(dict.fromkeys(places))


def _known_first(parts: Sequence[_Part], acknowledged_at: Sequence[tuple[int, int]]) -> list[int]:
    """The lowest position that is known when the first bytes have been acknowledged."""
    first_ns = min((part.ns for part in parts), default=0)
    until_ns = next((ns for ns, _ in acknowledged_at if ns > first_ns), first_ns)
    known = [part.start for part in parts if part.ns <= until_ns]
    known += [at for ns, at in acknowledged_at if ns <= until_ns]
    return [min(known)] if known else []


def _settled(parts: Sequence[_Part], known: int, acknowledged_at: Sequence[tuple[int, int]]) -> list[int]:
    """The first bytes behind `known` that were there when the other side had all before them."""
    for ns, number in acknowledged_at:
        there = [part.start for part in parts if part.ns <= ns and part.start >= known]
        if there and there[0] <= number:
            return [there[0]]
    return []


def _runs(parts: Iterable[_Part], start: int, end: int) -> list[Run]:
    """The parts from `start` to `end`, and the holes between them."""
    runs: list[Run] = []
    at = start
    data: list[bytes] = []
    begun = start
    for part in [*parts, _Part(end, end, b"", 0)]:
        low, high = max(part.start, at), min(part.end, end)
        if low >= high and part.start != end:
            continue
        if low > at:
            runs += [Run(begun - start, at - start, b"".join(data))] * bool(data)
            runs.append(Run(at - start, low - start, None))
            data, begun = [], low
        data += [part.data[low - part.start : high - part.start]] * (high > low)
        at = max(at, high)
    runs += [Run(begun - start, at - start, b"".join(data))] * bool(data)
    return runs


# What came when its gap may have been given up


def _late(
    packets: Sequence[Packet], client: bool, parts: Sequence[_Part], acknowledgments: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    late = []
    base = _base(packets, client)
    ends = [(one.ns, _position(one.first, base or 0) + one.sent) for one in packets if one.client is client and one.fin]
    heard = next((one.ns for one in packets if one.client is client), None)
    for part in parts:
        passed = next((ns for ns, at in acknowledgments if at > part.start), part.ns)
        known = min(
            [passed, *(one.ns for one in parts if one.start >= part.end), *(ns for ns, at in ends if at >= part.end)]
        )
        unheard = heard is not None and heard - packets[0].ns >= WAIT_NS and passed <= heard
        if unheard or (part.ns - known >= WAIT_NS and not _is_wanted(part, acknowledgments, known)):
            late.append((part.start, part.end))
    return late


def _is_wanted(part: _Part, acknowledgments: Sequence[tuple[int, int]], known: int) -> bool:
    """The receiver was heard while the gap could be filled, and acknowledged nothing of the part until it came."""
    is_heard = any(known <= ns < known + WAIT_NS for ns, _ in acknowledgments)
    return is_heard and all(at <= part.start for ns, at in acknowledgments if ns < part.ns)
