"""The effects of data: entries from metadata, and payloads that are reassembled and checked against their entries.

`SideEntries` looks up what a side knows about the entries of a log. `SidePieces` applies a packet that breaks no rule.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.session.cursor import Cursor, Piece
from wirehouse_codecs.bamboo.session.effects import Incoming, Payload
from wirehouse_codecs.bamboo.session.entry_rebuild import rebuild
from wirehouse_codecs.bamboo.session.proposals import (
    Assembly,
    Heard,
    LastPiece,
    Proposal,
    expected_seq,
)
from wirehouse_codecs.bamboo.session.state import SessionState
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire import entry_verification, yamf
from wirehouse_codecs.bamboo.wire.decompression import is_whole
from wirehouse_codecs.bamboo.wire.messages import (
    Apology,
    CompressedPayload,
    DataPacket,
    Metadata,
    Notify,
    RawPayload,
    SkipBytes,
    SkipPayload,
)
from wirehouse_codecs.compiled.blake2b import Digest

#: How many bytes of unfinished payloads are held in all. Of a payload beyond that, only a digest is kept.
MOST_HELD_BYTES: Final = 2 << 20


class PayloadBytes(NamedTuple):
    """The decompressed bytes of a payload packet: those that are reported, and all. None: unknown, or none."""

    shown: bytes | None = None
    whole: bytes | None = None

    @property
    def is_shown(self) -> bool:
        """Whether all bytes are reported."""
        return self.shown is self.whole


class SideEntries:
    """The entries of the log of a proposal, as one of its sides knows or may mean them."""

    def __init__(self, state: SessionState, proposal: Proposal, role: Role) -> None:
        self._state, self._proposal, self._role = state, proposal, role
        self._half, self._peers = proposal.halves[role], proposal.halves[role.peer]

    def is_forged(self, seq: int) -> bool:
        """Whether the known entry has a wrong signature."""
        heard = self._heard(seq)
        return heard is not None and heard.is_forged

    def follows_forged(self, cursor: Cursor) -> bool:
        """Whether the cursor depends on metadata with a wrong signature, which is a finding of its own."""
        return any(piece is not None and self.is_forged(piece.seq) for piece in (cursor.piece, cursor.sent))

    def size_of(self, seq: int) -> int | None:
        """The size of the payload of an entry."""
        heard = self._heard(seq)
        return None if heard is None else heard.payload_size

    def _heard(self, seq: int) -> Heard | None:
        own = self._half.heard.get(seq) or self._peers.heard.get(seq)
        return own or self._state.known.get(*self._proposal.log, seq)

    def hash_of(self, seq: int) -> tuple[bytes | None, bool]:
        """The hash of an entry, and whether it is only assumed to be the entry that the side means."""
        own, propose = self._half.heard.get(seq), self._proposal.propose
        if own is not None and own.entry_hash is not None:
            return own.entry_hash, False
        expected = propose.expected_hash
        if own is None and expected is not None and len(expected) == yamf.DIGEST_BYTES and seq == expected_seq(propose):
            return expected, False
        known = self._state.known.get(*self._proposal.log, seq)
        return (None if known is None or own is not None else known.entry_hash), True

    def own(self, seq: int) -> Heard | None:
        """The metadata that the side sent in the proposal, if the payload can still come."""
        own = self._half.heard.get(seq)
        return None if own is None or not own.payload_hash else own

    def known_of(self, seq: int) -> Heard | None:
        """The metadata of an entry: as the side sent it in the proposal, else as it is known otherwise."""
        return self.own(seq) or self._state.known.get(*self._proposal.log, seq)

    def means(self, known: Heard, seq: int) -> bool:
        """Whether the side means the known entry: it sent it in some proposal, or expects its hash."""
        propose = self._proposal.propose
        is_expected = seq == expected_seq(propose) and known.entry_hash == propose.expected_hash
        return self._role in known.senders or (is_expected and known.entry_hash is not None)


class SidePieces:
    """The pieces of the sender of a packet: entries from metadata, and payloads that are reassembled."""

    def __init__(self, state: SessionState, incoming: Incoming, proposal: Proposal) -> None:
        self._state, self._incoming, self._proposal, self._role = state, incoming, proposal, incoming.role
        self._half, self._peers = proposal.halves[self._role], proposal.halves[self._role.peer]
        self.mode = state.mode(self._role)
        self.entries = SideEntries(state, proposal, self._role)

    def take(
        self, packet: DataPacket, payload: PayloadBytes, piece: Piece | None, retracted: Piece | None, after: Cursor
    ) -> None:
        """The effects of a packet that breaks no rule.

        `piece` was due before it, `retracted` is what an apology retracts, and `after` is the sender's cursor now.
        """
        state, incoming, count = self._state, self._incoming, self._half.count
        if piece is not None and not after.lost:
            incoming.effects["seq"] = piece.seq
        match packet:
            case Metadata():
                count.metadata += 1
                if piece is not None and not after.lost:
                    self._rebuild(packet, piece.seq)
            case RawPayload() | CompressedPayload():
                self._count_bytes(packet)
                self._assemble(packet, payload, piece, after)
            case SkipBytes():
                count.skipped += 1
                if packet.count or after.piece != piece:
                    self._assemble(packet, payload, piece, after)
            case Notify():
                count.notified += packet.count
                if packet.count:
                    state.release(self._half)
            case SkipPayload():
                count.skipped += 1
                state.release(self._half)
            case Apology():
                count.apologies += 1
                self._half.apologised_at = incoming.byte_end
                self._retract(retracted)

    def _rebuild(self, metadata: Metadata, seq: int) -> None:
        state, incoming, proposal = self._state, self._incoming, self._proposal
        noncanonical = any(broken.rule.name == "noncanonical_varu64" for broken in incoming.broken)
        entry = rebuild(metadata, *proposal.log, seq, self.entries.hash_of, noncanonical=noncanonical)
        fields = (entry.payload_size, entry.payload_hash, entry.end_of_log, entry.entry_hash)
        heard = Heard(*fields, (self._role,), None if entry.rule is not None else entry.data)
        self._half.hear(seq, heard)
        state.known.add(*proposal.log, seq, heard)
        if entry.end_of_log:
            state.note_end(*proposal.log, self._role, seq)
        incoming.effects["entry"] = entry
        if entry.unknown:
            incoming.note("link_unknown", f"entry {seq} links to {' and '.join(map(str, entry.unknown))}")
        self._finish_piece(entry.rule, right=False)

    def _finish_piece(self, rule: str | None, *, right: bool) -> None:
        self._half.last = LastPiece(self._incoming.byte_start, rule, right)
        if rule is not None and self.mode is not None and not self.mode.greedy:
            self._state.find(self._incoming, "invalid_data_in_safe_mode", rule)

    def _retract(self, piece: Piece | None) -> None:
        """Apply an apology: the piece was never sent. None: only a part of it was."""
        self._state.release(self._half)
        if piece is None:
            return
        self._incoming.effects["seq"] = piece.seq
        if not piece.is_payload:
            heard = self._half.heard.pop(piece.seq, None)
            if heard is not None:
                self._state.known.forget(*self._proposal.log, piece.seq, heard)
                if heard.end_of_log:
                    self._state.ends.pop((*self._proposal.log, self._role), None)

    def _count_bytes(self, packet: RawPayload | CompressedPayload) -> None:
        count = self._half.count
        if isinstance(packet, RawPayload):
            count.raw_bytes += len(packet.data)
            return
        count.compressed_bytes += len(packet.data)
        if packet.at + len(packet.data) == packet.compressed_size:
            count.inflated_bytes += packet.size

    def _assemble(self, packet: DataPacket, payload: PayloadBytes, piece: Piece | None, after: Cursor) -> None:
        """Add the bytes that a packet sends or skips to the payload, and check the payload when it is complete."""
        half = self._half
        if piece is None or after.lost:
            self._state.release(self._half)
            return
        assembly = half.assembly
        if assembly is None or assembly.seq != piece.seq:
            self._state.release(self._half)
            at_start = self._proposal.propose.offset or 0 if piece.seq == self._proposal.plan.start else 0
            assembly = half.assembly = self._begin_assembly(piece.seq, at_start)
        complete = after.piece != piece
        if isinstance(packet, SkipBytes):
            self._add(assembly, self._peers_bytes(assembly, packet.count), fits=payload.is_shown, complete=complete)
        elif isinstance(packet, RawPayload) or is_whole(packet):
            self._add(assembly, payload.whole, fits=payload.is_shown, complete=complete)
        assembly.packets += 0 if getattr(packet, "at", 0) else 1
        if complete:
            half.count.payloads += 1
            self._judge_payload(assembly)
            self._state.release(self._half)

    def _begin_assembly(self, seq: int, at_start: int) -> Assembly:
        """A new payload. At an offset it starts with what was sent of it earlier, if that is known."""
        before = self._state.sent_before(self._proposal.log, seq, self._role) if at_start else []
        heard = self.entries.known_of(seq)
        for begun in before:
            if heard is not None and heard.payload_hash == begun.payload_hash and len(begun.data) >= at_start:
                self._state.held += at_start
                return Assembly(seq, 0, bytearray(begun.data[:at_start]), packets=1, size=at_start)
        return Assembly(seq, at_start)

    def _add(self, assembly: Assembly, data: bytes | None, *, fits: bool, complete: bool) -> None:
        """Add bytes to a payload.

        Beyond MOST_HELD_BYTES, or if they aren't reported (not `fits`), only a digest is kept.
        """
        state = self._state
        if assembly.data is None and assembly.digest is None:
            return
        is_held = fits and (complete or state.held + len(data or b"") <= MOST_HELD_BYTES)
        if assembly.data is not None and not (is_held and data is not None):
            assembly.digest = Digest()
            assembly.digest.update(assembly.data)
            state.held -= len(assembly.data)
            assembly.data = None
        if data is None:
            assembly.digest = None
            return
        assembly.size += len(data)
        if assembly.data is not None:
            assembly.data += data
            state.held += len(data)
        elif assembly.digest is not None:
            assembly.digest.update(data)

    def _peers_bytes(self, assembly: Assembly, count: int) -> bytes | None:
        """The bytes that a side skips, as the other side sent them."""
        theirs = self._peers.assembly
        if theirs is None or theirs.data is None or theirs.seq != assembly.seq:
            return None
        at = assembly.begins_at + assembly.size - theirs.begins_at
        return bytes(theirs.data[at : at + count]) if at >= 0 and at + count <= len(theirs.data) else None

    def _judge_payload(self, assembly: Assembly) -> None:
        own = self.entries.own(assembly.seq)
        heard = self.entries.known_of(assembly.seq)
        data = None if assembly.data is None else bytes(assembly.data)
        digest = None if assembly.digest is None else assembly.digest.value
        if data is not None:
            digest = yamf.digest(data)
        whole, rule = False, None
        if digest is not None and heard is not None and not assembly.begins_at:
            expected = heard.payload_size, heard.payload_hash[len(yamf.PREFIX) :]
            whole, rule = True, entry_verification.digest_rule(assembly.size, digest, *expected)
            if rule is None and data is not None:
                self._state.keep_whole(self._proposal.log, assembly.seq, self._role, data)
        self._incoming.effects["payload"] = Payload(assembly.seq, data, assembly.packets, rule, whole)
        # Metadata from the other side may be about another entry than this side means. And if bytes of the proposal are
        # missing, only metadata right before the payload shows which entry it belongs to.
        is_known = heard is not None and not self._proposal.partial and self.entries.means(heard, assembly.seq)
        is_meant = own is not None or is_known
        is_wrong = rule is not None and is_meant and heard is not None and not heard.is_forged
        self._finish_piece(rule if is_wrong else None, right=whole and rule is None)
