"""The fast path of a session: compiled loops take pieces of a connection in its plain state.

In the plain state no bytes are missing, and no rule is broken (links may be unknown). Each side gives credit, or
sends the entries of a range, one after the other with their payloads. `Plain.take` takes as many pieces as fit this. It
leaves the reader and the session as the reference path (`wire/reader.py`, `session/session.py`) would. The reference
path takes the first piece that doesn't fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.bamboo.fast import loops
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.session.cursor import Cursor, Piece, Sent
from wirehouse_codecs.bamboo.session.entry_rebuild import MOST_KNOWN
from wirehouse_codecs.bamboo.session.pieces import MOST_HELD_BYTES
from wirehouse_codecs.bamboo.session.proposals import (
    MOST_HEARD,
    Assembly,
    Half,
    Heard,
    LastPiece,
    Life,
    Proposal,
    SideState,
    expected_seq,
    open_targets,
)
from wirehouse_codecs.bamboo.session.session import Session
from wirehouse_codecs.bamboo.session.state import MOST_WHOLE, MOST_WHOLE_BYTES
from wirehouse_codecs.bamboo.setup import Channel, Role
from wirehouse_codecs.bamboo.wire.bymux import Bymux
from wirehouse_codecs.bamboo.wire.messages import Eagerness
from wirehouse_codecs.bamboo.wire.reader import Reader
from wirehouse_codecs.bamboo.wire.yamf import PREFIX
from wirehouse_codecs.compiled.arrow import frozen
from wirehouse_codecs.compiled.blake2b import DIGEST, put_digests
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Data

Array = np.ndarray[Any, Any]

ROLES: Final = tuple(Role)
#: Larger sequence numbers and payloads are left to the reference path.
_MOST_SEQ: Final = 1 << 62
_MOST_PAYLOAD: Final = MOST_HELD_BYTES // 2
_NOTHING: Final = np.empty(0, np.uint8)
#: The assumed size of a packet. If packets are shorter, the arrays grow.
_PACKET_BYTES: Final = 64
_FEW_ROWS: Final = 1_024
#: How many packets of bymux are read at once. A packet may have three bytes, but its row has many more.
_MOST_ROWS: Final = 1 << 14


@dataclass(slots=True)
class Sender:
    """A side that sends entries, and its cursor."""

    role: Role
    proposal: Proposal
    half: Half
    cursor: Cursor
    #: Layouts: `state` is loops.S_SEQ and following, `limits` is loops.L_LAST and following.
    state: Array
    limits: Array
    #: Entries that are known: sequence numbers, what links to them are, and digests one behind the other.
    old: Array
    links: Array
    old_hashes: Array

    @classmethod
    def of(cls, session: Session, role: Role, options: BambooOptions) -> Sender | None:
        """The side as it stands; None: it isn't in the plain state."""
        current = session.state.current[role]
        proposal = None if current is None else session.state.proposals.get(current[0])
        if current is None or proposal is None or proposal.number != current[1] or proposal.partial:
            return None
        half = proposal.halves[role]
        cursor, plan = half.cursor, proposal.plan
        piece, settings = cursor.piece, half.versions[-1].settings
        open_ = half.state in (SideState.OPEN, SideState.CANCELLING) and proposal.life is Life.CONFIRMED
        if not open_ or len(half.versions) > 1 or cursor.lost or half.assembly is not None or piece is None:
            return None
        last = min(_MOST_SEQ, _MOST_SEQ if plan.end is None else plan.end)
        first = plan.start if plan.offset is None else plan.start + 1
        in_range = first <= piece.seq < last and not plan.sparse and not plan.payload_only
        if not in_range or settings.eagerness not in _EAGER or session.state.ends_log(*proposal.log, role):
            return None
        due = half.heard.get(piece.seq) if piece.is_payload else None
        if piece.is_payload and (due is None or not due.payload_hash or cursor.at):
            return None
        if half.last is not None and half.last.rule is not None:
            return None
        if max(half.heard, default=0) >= piece.seq + piece.is_payload:
            return None
        limit = settings.size_limit if settings.eagerness is Eagerness.LIMITED else None
        most = min(settings.max_payload, _MOST_PAYLOAD)
        mode = session.state.mode(role)
        numbers = (piece.seq, piece.is_payload, cursor.at, 0 if due is None else due.payload_size)
        limits = (last, settings.min_payload, most, most if limit is None else limit)
        compresses = mode is None or mode.window > 0
        elsewhere = session.state.known.hashed(*proposal.log)
        links, hashes = _links(proposal, half, elsewhere)
        # None of these is to be forgotten for one that is sent without its hash.
        later = min((seq for seq in elsewhere if seq >= piece.seq + piece.is_payload), default=_MOST_SEQ)
        return cls(
            role,
            proposal,
            half,
            cursor,
            np.array(numbers, np.uint64),
            np.array([*limits, options.max_packet_bytes, compresses, later], np.uint64),
            np.array(list(links), np.uint64),
            np.array(list(links.values()), np.int64),
            np.frombuffer(hashes, np.uint8),
        )


def _links(proposal: Proposal, half: Half, elsewhere: Iterable[int]) -> tuple[dict[int, int], bytes]:
    """By sequence number: what links to entries that are known are, as loops.E_LIPMAA; and the digests of the old ones.

    A link to one that is known from `elsewhere` may mean another: these are odd.
    """
    heard = {seq: one.entry_hash for seq, one in half.heard.items()}
    expected, seq = proposal.propose.expected_hash, expected_seq(proposal.propose)
    if seq is not None and expected is not None and len(expected) == DIGEST:
        heard.setdefault(seq, expected)
    hashes = {seq: hashed for seq, hashed in heard.items() if hashed is not None}
    links = dict.fromkeys(elsewhere, loops.ODD) | dict.fromkeys(heard, loops.UNKNOWN)
    return links | {seq: loops.OLD - number for number, seq in enumerate(hashes)}, b"".join(hashes.values())


_EAGER: Final = (Eagerness.ALL, Eagerness.LIMITED)


class SideData(NamedTuple):
    """The packets of a side on the data channel."""

    sender: Sender
    content: Array
    #: Layouts: loops.P_KIND and following, loops.E_SEQ and following, a column for each packet or entry.
    packets: Array
    entries: Array
    #: Entries in full, where they end, how long they are (0: a link of it isn't known), the places of the digests of
    #: their links in them, their own digests.
    data: Array
    ends: Array
    sizes: Array
    slots: Array
    hashes: Array
    #: All bytes of payloads, and those of them that came compressed.
    payloads: Array
    inflated: Array
    #: Where what is left unfinished begins, in the content and in the connection.
    rest: int
    rest_at: int
    state: Array


class Spoken(NamedTuple):
    """What the fast path read: packets of bymux, and the data of both sides."""

    pieces: Sequence[Data]
    #: Layout: loops.SIDE and following, a column for each packet; amounts and credits; positions in the connection.
    bymux: Array
    words: Array
    by_side: Mapping[int, SideData]
    #: The streams that carry the channels.
    streams: Mapping[Channel, int]


class Plain:
    """Takes pieces of the connection of `reader` and `session`."""

    def __init__(self, reader: Reader, session: Session, options: BambooOptions) -> None:
        self._reader, self._session, self._options = reader, session, options

    @staticmethod
    def _writes_control(bymux: Bymux) -> bool:
        """Whether a Write to the control channel isn't complete."""
        places = [bymux.reader(role).place for role in ROLES]
        return any(left and bymux.channels.get(stream_id) is not Channel.DATA for _, _, left, stream_id in places)

    def take(self, pieces: Sequence[Data]) -> Spoken | None:
        """The packets in the first of `pieces`, as far as all is plain; None: the first one isn't."""
        session = self._session
        bymux = self._reader.plain
        if (
            bymux is None
            or self._writes_control(bymux)
            or session.state.partial
            or session.state.ended_by is not None
            or session.state.held
        ):
            return None
        run = _Run(self._reader, session, self._options, pieces)
        limit = len(pieces)
        while limit:
            until = run.read(limit)
            if until == limit:
                return run.commit(limit)
            limit = until
        return None


class _Run:
    """Pieces that are read at once."""

    def __init__(self, reader: Reader, session: Session, options: BambooOptions, pieces: Sequence[Data]) -> None:
        self._reader, self._session, self._options, self._pieces = reader, session, options, pieces
        bymux = reader.plain
        assert bymux is not None
        self._bymux = bymux
        self._ids = {channel: stream_id for stream_id, channel in bymux.channels.items()}
        self._senders = [Sender.of(session, role, options) for role in ROLES]
        side_of = {direction: ROLES.index(options.role_of(direction)) for direction in Direction}
        self._owners = np.array([side_of[piece.direction] for piece in pieces], np.int64)
        self._ends = np.zeros(len(pieces), np.int64)
        parts: list[bytes] = []
        #: By side: where its bytes begin and end in the data of both, and what to add for a place in the connection.
        self._begins, self._shifts = [0, 0], [0, 0]
        self._state = np.zeros((2, 2), np.int64)
        at = 0
        for side, role in enumerate(ROLES):
            place, header, left, _ = bymux.reader(role).place
            self._begins[side] = at
            self._shifts[side] = reader.setup_bytes(role) + place - at
            self._state[side] = at, left
            own = np.flatnonzero(self._owners == side)
            side_data = [header, *(pieces[number].data for number in own.tolist())]
            ends = at + np.cumsum(list(map(len, side_data)))
            self._ends[own], at = ends[1:], int(ends[-1])
            parts += side_data
        self._data = frozen(np.frombuffer(b"".join(parts), np.uint8))
        self._credits = bymux.credits(self._ids)

    def read(self, limit: int) -> int:
        """Read `limit` pieces; how many of them are plain."""
        ids = np.array([self._ids[channel] for channel in Channel], np.uint64)
        given = (self._data, self._owners[:limit], self._ends[:limit], ids)
        until, room = loops.FULL, len(self._data) // _PACKET_BYTES + _FEW_ROWS
        while until == loops.FULL:
            numbers, words = np.empty((room, loops.BYMUX_NUMBERS), np.int64), np.empty((room, 2), np.uint64)
            contents = np.empty((room + limit, 4), np.int64)
            self.state, self.credits = self._state.copy(), self._credits.copy()
            until, rows, runs = loops.cut_bymux(*given, self.state, self.credits, numbers, words, contents)
            room *= 4
        if rows > _MOST_ROWS:
            until = min(until, numbers[_MOST_ROWS, loops.PIECE])
        if until < limit:
            return int(until)
        self.numbers, self.words, contents = _by_column(numbers, rows), _by_column(words, rows), contents[:runs].T
        self.by_side: dict[int, SideData] = {}
        for side in range(len(ROLES)):
            own = contents[1:, contents[0] == side]
            if not own.shape[1]:
                continue
            sender = self._senders[side]
            pending = self._reader.unfinished(ROLES[side])
            if sender is None or pending is None:
                return int(own[2, 0])
            limit = min(limit, self._walk(side, sender, pending, own, limit))
        if len({side_data.sender.proposal.log for side_data in self.by_side.values()}) < len(self.by_side):
            # A hash that one side's entry has may be what the other side's lacks.
            whole = np.concatenate([side_data.sizes > 0 for side_data in self.by_side.values()])
            limit = limit if whole.all() or not whole.any() else 0
        return limit

    def _walk(self, side: int, sender: Sender, pending: tuple[bytes, int], runs: Array, limit: int) -> int:
        """The packets of a side in runs of content; how many of `limit` pieces are plain."""
        begun, begun_at = pending
        begins, ends, pieces = runs
        sizes = ends - begins
        to = len(begun) + np.concatenate([[0], np.cumsum(sizes)])
        content = np.empty(to[-1], np.uint8)
        content[: len(begun)] = np.frombuffer(begun, np.uint8)
        loops.gather(self._data, begins, np.arange(len(begins)), to, content)
        content, to = frozen(content), to[1:]
        rows, room = loops.FULL, len(content) // _PACKET_BYTES + _FEW_ROWS
        while rows == loops.FULL:
            packets = np.empty((loops.PACKET_NUMBERS, room), np.int64)
            entries = np.empty((loops.ENTRY_NUMBERS, room), np.uint64)
            state = sender.state.copy()
            given = (content, state, sender.limits, sender.old, sender.links, packets, entries)
            rows, count, rest, odd = loops.walk(*given)
            room *= 4

        def piece_at(place: int) -> int:
            return int(pieces[min(np.searchsorted(to, place, "right"), len(pieces) - 1)])

        if odd:
            return piece_at(rest)
        packets, entries = packets[:, :rows], entries[:, :count]
        #: By run: what to add to a place in the content for one in the connection.
        shifts = ends - to + self._shifts[side]
        last = sender.half.last
        size = loops.lay_out(
            packets, to, shifts, pieces, begun_at if begun else -1, -1 if last is None else last.byte_start
        )
        payloads, inflated, broken = self._payloads(sender, content, packets, size)
        if broken < 0:
            broken = self._judge(sender, content, entries, packets, payloads)
        if broken >= 0:
            return piece_at(int(packets[loops.P_BEGIN, broken]))
        rebuilt = self._rebuild(sender, content, entries)
        # Where the unfinished packet, or the next one, begins in the connection.
        run = min(int(np.searchsorted(to, rest, "right")), len(to) - 1)
        begins_rest = int(rest + shifts[run]) if rest or not len(begun) else begun_at
        self.by_side[side] = SideData(
            sender, content, packets, entries, *rebuilt, payloads, inflated, int(rest), begins_rest, state
        )
        return limit

    def _payloads(self, sender: Sender, content: Array, packets: Array, size: int) -> tuple[Array, Array, int]:
        """All bytes of payloads, those that were compressed, and the first packet that can't be decompressed, or -1."""
        kinds, begins, sizes = packets[loops.P_KIND], packets[loops.P_CONTENT], packets[loops.P_CONTENT_SIZE]
        raw, packed = np.flatnonzero(kinds == loops.RAW), np.flatnonzero(kinds == loops.COMPRESSED)
        places = np.append(packets[loops.P_DATA], size)
        out, inflated = np.empty(size, np.uint8), _NOTHING
        if len(packed):
            announced = packets[loops.P_SIZE, packed]
            inflater = self._session.state.inflater(sender.role)
            inflated, count = inflater.inflate_all(content, begins[packed], sizes[packed], announced)
            if count < len(packed):
                return _NOTHING, _NOTHING, int(packed[count])
            loops.gather(frozen(inflated), np.cumsum(announced) - announced, packed, places, out)
        loops.gather(content, begins[raw], raw, places, out)
        return frozen(out), inflated, -1

    def _judge(self, sender: Sender, content: Array, entries: Array, packets: Array, payloads: Array) -> int:
        """The first packet that completes a payload of another hash, or -1."""
        rows = np.flatnonzero((packets[loops.P_WHOLE] == 1) & (packets[loops.P_KIND] != loops.METADATA))
        if not len(rows):
            return -1
        digests = np.empty(len(rows) * DIGEST, np.uint8)
        ends = packets[loops.P_DATA, rows] + packets[loops.P_SIZE, rows]
        put_digests(payloads, packets[loops.P_FIRST, rows], ends, digests)
        seqs = packets[loops.P_SEQ, rows]
        # That of an entry which was sent before is due first, if any is.
        first = int(entries[loops.E_SEQ, 0]) if entries.shape[1] else _MOST_SEQ
        early = int(seqs[0] < first)
        if early and sender.half.heard[int(seqs[0])].payload_hash[len(PREFIX) :] != digests[:DIGEST].tobytes():
            return int(rows[0])
        places = entries[loops.E_HASH, seqs[early:] - first].astype(np.int64) + len(PREFIX)
        same = int(loops.same_until(content, places, digests, early * DIGEST))
        return -1 if same == len(places) else int(rows[early + same])

    def _rebuild(self, sender: Sender, content: Array, entries: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Entries in full, where they end, how long they are, where their links stand, and their digests."""
        count = entries.shape[1]
        author, log_id = sender.proposal.log
        out, hashes = np.empty(count * _MOST_ENTRY, np.uint8), np.empty(count * DIGEST, np.uint8)
        ends, sizes, slots = (np.empty(shape, np.int64) for shape in (count, count, (2, count)))
        key = np.frombuffer(author, np.uint8)
        loops.put_entries(content, entries, key, np.uint64(log_id), sender.old_hashes, out, ends, sizes, slots, hashes)
        return out[: ends[-1] if count else 0], ends, sizes, slots, hashes

    # What is left when the pieces were taken

    def commit(self, taken: int) -> Spoken:
        """Leave reader and session as they are after the first `taken` pieces, which were read."""
        kinds, sizes = self.numbers[loops.KIND], self.numbers[loops.END] - self.numbers[loops.HEADER_END]
        for side, role in enumerate(ROLES):
            ends = self._ends[:taken][self._owners[:taken] == side]
            if not len(ends):
                continue
            at, left = self.state[side].tolist()
            wrote = ((self.numbers[loops.SIDE] == side) & (kinds == loops.WRITE) & (sizes > 0)).any()
            header = self._data[at : ends[-1]].tobytes()
            stream_id = self._ids[Channel.DATA] if wrote else None
            self._bymux.reader(role).go_on(at - self._begins[side], header, left, stream_id)
            self._reader.go_on(role, int(ends[-1]) + self._shifts[side])
        self._bymux.set_credits(self._ids, self.credits)
        for side, side_data in self.by_side.items():
            self._reader.read_on(
                ROLES[side], side_data.content[side_data.rest :].tobytes(), side_data.rest, side_data.rest_at
            )
            self._step(side_data)
        self._remember()
        bymux = self.numbers.copy()
        shifts = np.array(self._shifts)[bymux[loops.SIDE]]
        for row in (loops.BEGIN, loops.HEADER_END, loops.END):
            bymux[row] += shifts
        return Spoken(self._pieces[:taken], bymux, self.words, self.by_side, self._ids)

    def _step(self, side_data: SideData) -> None:
        """Set the state of a side to that after its packets."""
        sender, packets = side_data.sender, side_data.packets
        if not packets.shape[1]:
            return
        half, cursor, count = sender.half, sender.cursor, sender.half.count
        kinds = packets[loops.P_KIND]
        is_payload, packed = kinds != loops.METADATA, kinds == loops.COMPRESSED
        seq, in_payload, at, _ = side_data.state.tolist()
        whole = bool(packets[loops.P_WHOLE, -1])
        cursor.piece, cursor.at, cursor.last = Piece(seq, bool(in_payload)), at, Sent.PIECE if whole else Sent.PREFIX
        cursor.sent = (Piece(seq, False) if in_payload else Piece(seq - 1, True)) if whole else None
        seqs = side_data.entries[loops.E_SEQ]
        cursor.metadata = (*reversed(seqs[-2:].tolist()), *cursor.metadata)[:2]
        count.metadata += len(seqs)
        count.payloads += int((packets[loops.P_WHOLE][is_payload] == 1).sum())
        count.raw_bytes += int(packets[loops.P_CONTENT_SIZE][kinds == loops.RAW].sum())
        count.compressed_bytes += int(packets[loops.P_CONTENT_SIZE][packed].sum())
        count.inflated_bytes += int(packets[loops.P_SIZE][packed].sum())
        half.last = LastPiece(int(packets[loops.P_BYTE_START, -1]), None, bool(is_payload[-1])) if whole else None
        if not whole:
            begin = int(packets[loops.P_FIRST, -1])
            size, sent = len(side_data.payloads) - begin, int(packets[loops.P_COUNT, -1])
            half.assembly = Assembly(seq, 0, bytearray(side_data.payloads[begin:]), sent, size=size)
            self._session.state.held += size
        self._keep_whole(side_data)
        if packed.any():
            self._session.state.inflate_on(sender.role, side_data.inflated)
        if len(seqs):
            self._hear(side_data, int(seqs[0]), int(seqs[-1]))

    def _keep_whole(self, side_data: SideData) -> None:
        """Keep the last small payloads, which are all right."""
        packets, sender = side_data.packets, side_data.sender
        is_whole = (packets[loops.P_WHOLE] == 1) & (packets[loops.P_KIND] != loops.METADATA)
        ends = packets[loops.P_DATA] + packets[loops.P_SIZE]
        is_small = ends - packets[loops.P_FIRST] <= MOST_WHOLE_BYTES
        for row in np.flatnonzero(is_whole & is_small)[-MOST_WHOLE:].tolist():
            data = side_data.payloads[packets[loops.P_FIRST, row] : ends[row]].tobytes()
            self._session.state.keep_whole(sender.proposal.log, int(packets[loops.P_SEQ, row]), sender.role, data)

    def _remember(self) -> None:
        """Remember the last entries that each side sent."""
        senders = list(self.by_side.values())
        logs = [side_data.sender.proposal.log for side_data in senders]
        # An entry is known of all sides that sent it while it was known. So as many count as were between: an entry
        # may have been known before, and both sides may send it.
        most = MOST_KNOWN * (2 if len(set(logs)) == len(logs) else 6)
        rows = [np.flatnonzero(side_data.packets[loops.P_ENTRY] >= 0)[-most:] for side_data in senders]
        packet_columns = [side_data.packets[:, own] for side_data, own in zip(senders, rows, strict=True)]
        if not packet_columns:
            return
        packets, owners = np.concatenate(packet_columns, axis=1), np.repeat(np.arange(len(rows)), list(map(len, rows)))
        order = np.lexsort((packets[loops.P_BYTE_END], packets[loops.P_PIECE]))[-most:]
        owners, entries = owners[order], packets[loops.P_ENTRY, order]
        heard = [
            zip(side_data.entries[loops.E_SEQ, own].tolist(), self._heard(side_data, own), strict=True)
            for side_data, own in zip(senders, (entries[owners == number] for number in range(len(rows))), strict=True)
        ]
        known = ((logs[owner], *next(heard[owner])) for owner in owners.tolist())
        self._session.state.known.add_all(((*log, seq), one) for log, seq, one in known)

    def _heard(self, side_data: SideData, rows: Array) -> list[Heard]:
        sizes, places = (side_data.entries[row, rows].tolist() for row in (loops.E_SIZE, loops.E_HASH))
        content, hashes, data = side_data.content.data, side_data.hashes.data, side_data.data.data
        ends, whole = side_data.ends[rows].tolist(), side_data.sizes[rows].tolist()
        senders = (side_data.sender.role,)
        return [
            Heard(
                size,
                bytes(content[place : place + loops.HASH]),
                False,
                bytes(hashes[row * DIGEST : (row + 1) * DIGEST]) if known else None,
                senders,
                bytes(data[end - known : end]) if known else None,
            )
            for row, size, place, end, known in zip(rows.tolist(), sizes, places, ends, whole, strict=True)
        ]

    def _hear(self, side_data: SideData, first: int, last: int) -> None:
        """Remember what was heard, as `Half.hear` does of one entry after the other."""
        half = side_data.sender.half
        before = max(half.heard, default=None)
        if before is not None:
            half.heard[before] = half.heard[before].without_payload()
        forgets = last // MOST_HEARD * MOST_HEARD
        if forgets <= first:
            forgets = first if before is None or before // MOST_HEARD != first // MOST_HEARD else 0
        kept = set(range(max(first, forgets - MOST_HEARD + 1), last + 1))
        if forgets:
            kept |= {seq for seq in open_targets(forgets) if seq >= first}
            older = max(MOST_HEARD - (forgets - first + 1), 0)
            old = sorted(half.heard)[len(half.heard) - min(older, len(half.heard)) :]
            wanted = open_targets(forgets).union(old)
            half.heard = {seq: one for seq, one in half.heard.items() if seq in wanted}
        else:
            kept = set(range(first, last + 1))
        seqs = sorted(kept)
        for seq, one in zip(seqs, self._heard(side_data, np.array(seqs) - first), strict=True):
            half.heard[seq] = one if seq == last else one.without_payload()


def _by_column(table: Array, rows: int) -> Array:
    """The first rows of a table, of which no more memory was touched, turned."""
    return np.ascontiguousarray(table[:rows].T)


#: The longest entry.
_MOST_ENTRY: Final = 1 + 32 + 3 * 9 + 3 * loops.HASH + loops.SIGNATURE
