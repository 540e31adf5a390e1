"""Judges a data packet about the current proposal of its sender.

The sender may not know the newest settings of the other side yet. So the packet is judged by each version of the
settings that the sender may still go by (`proposals.Version`). It breaks a rule only if it breaks one by every version.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.bamboo.rules import CONTROL_RULES, DATA_RULES
from wirehouse_codecs.bamboo.session import cursor as places
from wirehouse_codecs.bamboo.session.cursor import Cursor, Sent, Turn
from wirehouse_codecs.bamboo.session.effects import Incoming
from wirehouse_codecs.bamboo.session.entry_rebuild import rebuild
from wirehouse_codecs.bamboo.session.pieces import PayloadBytes, SidePieces
from wirehouse_codecs.bamboo.session.proposals import (
    Proposal,
    Version,
)
from wirehouse_codecs.bamboo.session.state import BY_PLAN, BY_SETTINGS, SessionState
from wirehouse_codecs.bamboo.wire import lzfoo
from wirehouse_codecs.bamboo.wire.decompression import Inflation
from wirehouse_codecs.bamboo.wire.entries import SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.bamboo.wire.messages import (
    Apology,
    CompressedPayload,
    DataPacket,
    Metadata,
    Notify,
    RawPayload,
    SkipBytes,
)

_ORDER: Final = {rule.name: place for place, rule in enumerate((*CONTROL_RULES, *DATA_RULES))}
#: Rules that leave no doubt about the piece that the packet is about, so the cursor moves on.
_FITS: Final = frozenset(
    {"eagerness_ignored", "skip_size_untrue", "skip_of_mandatory_payload", "skip_beyond_peer", "apology_for_valid_data"}
)
_LZFOO: Final = frozenset(
    {
        *("compression_without_window", lzfoo.WINDOW_EXCEEDED, lzfoo.OFFSET_ZERO, lzfoo.OFFSET_BEFORE_START),
        *(lzfoo.TRUNCATED, lzfoo.LENGTH_MISMATCH),
    }
)
_NO_PAYLOAD: Final = PayloadBytes()


class DataTurn:
    """A data packet about the current proposal, while it is judged."""

    def __init__(self, state: SessionState, incoming: Incoming, proposal: Proposal) -> None:
        role = incoming.role
        self._state, self._incoming, self._proposal = state, incoming, proposal
        self._half, self._peers = proposal.halves[role], proposal.halves[role.peer]
        self._pieces = SidePieces(state, incoming, proposal)
        self._entries = self._pieces.entries
        self._payload = _NO_PAYLOAD

    def take(self, packet: DataPacket) -> None:
        """Judge the packet by every version that its sender may go by, and apply its effects."""
        half, state, incoming = self._half, self._state, self._incoming
        compressed = None
        if isinstance(packet, CompressedPayload):
            read = decompress(state, incoming, packet)
            compressed, self._payload = read.rule, PayloadBytes(read.shown, read.data)
        elif isinstance(packet, RawPayload):
            self._payload = PayloadBytes(packet.data, packet.data)
        self._leave(packet)
        turns = [Turn(one.cursor, self._peers.cursor, one.settings, self._entries.size_of) for one in half.versions]
        rules = [self._rule(packet, turn, compressed) for turn in turns]
        if isinstance(packet, Metadata):
            self._compare_versions(packet, turns, rules)
        if None not in rules and state.not_received(incoming, self._peers.apologised_at):
            # The sender didn't know yet what the other side has retracted.
            rules = [None if self._rests_on_peer(packet, rule) else rule for rule in rules]
        # An earlier packet showed that the sender knows newer settings, so the old ones were given up. But the host
        # can't have received the newer ones yet.
        by_newer = None not in rules and state.not_received(incoming, half.versions[0].adjusted_at)
        if by_newer:
            rules = [None if rule in BY_SETTINGS else rule for rule in rules]
        if None not in rules:
            is_moved = by_newer and rules[0] in BY_PLAN
            unsure = self._proposal.partial or is_moved or self._entries.follows_forged(turns[0].sender)
            if rules[0] not in _LZFOO and unsure:
                self._lose()
                return
            assert rules[0] is not None
            self._break(packet, rules[0], turns[0])
            return
        if rules[-1] is not None and (suspect := rules[self._newest_received()]) is not None:
            incoming.note("settings_suspect", f"{suspect}, if it knew what the other side has adjusted")
        chosen = max(index for index, rule in enumerate(rules) if rule is None)
        before = turns[chosen].sender
        if self._proposal.partial and isinstance(packet, Metadata) and self._is_signed(packet, before) is False:
            self._lose()
            return
        piece, retracted = before.piece, before.sent
        incoming.effects["cursor_before"] = str(before)
        self._warn_of_size(packet, [turn for turn, rule in zip(turns, rules, strict=True) if rule is None])
        after = self._move(packet, turns, rules, chosen)
        incoming.effects["cursor_after"] = str(after)
        if half.last is not None and not _is_nothing(packet):
            incoming.effects["follows"] = half.last.byte_start
            half.last = None
        incoming.effects["data"] = self._payload.shown
        self._pieces.take(packet, self._payload, piece, retracted, after)

    def _break(self, packet: DataPacket, rule: str, turn: Turn) -> None:
        """The packet breaks a rule by every version that its sender may go by."""
        state, incoming, proposal = self._state, self._incoming, self._proposal
        shown = f"the {self._incoming.role} side is at {turn.sender} of proposal {proposal.propose.id}"
        incoming.effects["cursor_before"] = str(turn.sender)
        is_doubted = self._rests_on_adjusts(packet, rule, turn.sender)
        if rule in _FITS:
            places.move(packet, turn)
        incoming.effects["cursor_after"] = str(turn.sender)
        # Only the first rule of the list counts.
        incoming.broken = [one for one in incoming.broken if one.rule.name != lzfoo.HISTORY_UNKNOWN]
        incoming.effects["data"] = self._payload.shown
        if is_doubted:
            state.find_unless_late(incoming, rule, shown, proposal.propose.id, proposal)
        else:
            state.find(incoming, rule, shown)

    def _newest_received(self) -> int:
        """The index of the newest version whose adjust the host of the sender may have received."""
        versions = self._half.versions
        newest = len(versions) - 1
        while newest and self._state.not_received(self._incoming, versions[newest].adjusted_at):
            newest -= 1
        return newest

    @staticmethod
    def _rests_on_peer(packet: DataPacket, rule: str | None) -> bool:
        """Whether the rule depends on what the other side has sent."""
        return rule == "skip_beyond_peer" or (rule == "eagerness_ignored" and isinstance(packet, Notify))

    @staticmethod
    def _rests_on_adjusts(packet: DataPacket, rule: str, sender: Cursor) -> bool:
        """Whether other settings, or an earlier end, would make the packet legal. After the end comes metadata."""
        is_behind = sender.piece is not None and sender.piece.seq > sender.plan.start
        return rule in BY_SETTINGS or (rule == "out_of_turn" and isinstance(packet, Metadata) and is_behind)

    def _leave(self, packet: DataPacket) -> None:
        """Leave a payload of unknown size: metadata shows its end. A notify may begin with the rest of the payload."""
        if _is_nothing(packet):
            return
        for version in self._half.versions:
            cursor = version.cursor
            cursor.lost |= cursor.leaves and not isinstance(packet, Apology)
            size = None if cursor.piece is None else self._entries.size_of(cursor.piece.seq)
            if cursor.ends_unknown(size):
                if isinstance(packet, Metadata) or (isinstance(packet, Notify) and size is not None):
                    cursor.pass_over(1)
                    self._state.release(self._half)
                elif isinstance(packet, Notify):
                    cursor.lost = True

    def _rule(self, packet: DataPacket, turn: Turn, compressed: str | None) -> str | None:
        """The first rule that the packet breaks by one version."""
        broken = [places.judge(packet, turn), compressed]
        if self._is_after_end(packet, turn.sender):
            broken.append("data_after_end_of_log")
        last = self._half.last
        if last is not None and isinstance(packet, Apology):
            broken.append(
                "apology_for_valid_data" if last.right and not self._entries.follows_forged(turn.sender) else None
            )
        elif last is not None and last.rule is not None and self._is_greedy and not _is_nothing(packet):
            broken.append("invalid_data_not_apologised")
        return min((rule for rule in broken if rule is not None), key=_ORDER.__getitem__, default=None)

    def _is_after_end(self, packet: DataPacket, cursor: Cursor) -> bool:
        end = self._state.ends.get((*self._proposal.log, self._incoming.role))
        if end is None or isinstance(packet, Apology) or cursor.lost or cursor.piece is None:
            return False
        count = packet.count if isinstance(packet, Notify) else 1
        furthest = cursor.plan.piece(cursor.index + count - 1) if count else cursor.piece
        return furthest is not None and furthest.seq > end and not self._entries.is_forged(end)

    def _compare_versions(self, packet: Metadata, turns: list[Turn], rules: list[str | None]) -> None:
        """Rule out versions if several ones fit metadata, each for another entry.

        A right signature decides, else whether there is a backlink.
        """
        right = [index for index, rule in enumerate(rules) if rule is None]
        if len({turns[index].sender.piece for index in right}) < 2:
            return
        signed = [index for index in right if self._is_signed(packet, turns[index].sender)]
        linked = [i for i in right if turns[i].sender.has_backlink() == (packet.backlink is not None)]
        for index in right:
            if index not in (signed or linked or right):
                rules[index] = "out_of_turn"

    def _is_signed(self, metadata: Metadata, cursor: Cursor) -> bool | None:
        """Whether the signature is right for the entry at the cursor. None: that is unknown."""
        if cursor.lost or cursor.piece is None:
            return None
        entry = rebuild(metadata, *self._proposal.log, cursor.piece.seq, self._entries.hash_of)
        if entry.data is None:
            return None
        return signature_rule(entry.author, entry.data[:-SIGNATURE_BYTES], entry.signature) is None

    def _move(self, packet: DataPacket, turns: list[Turn], rules: list[str | None], chosen: int) -> Cursor:
        """Move the cursors of all versions that the sender may still go by. The result is that of the chosen one."""
        moved: list[Version] = []
        for version, turn, rule in zip(self._half.versions, turns, rules, strict=True):
            if rule is None:
                places.move(packet, turn)
                moved.append(version)
            elif moved:
                moved.append(moved[-1].copy())
                moved[-1].settings, moved[-1].adjusted_at = version.settings, version.adjusted_at
                moved[-1].cursor.adjust(version.cursor.plan)
        self._half.versions = moved
        return turns[chosen].sender

    def _lose(self) -> None:
        """Missing bytes must have made the packet legal, so the cursor of the side is unknown from here on."""
        for version in self._half.versions:
            version.cursor.lost = True
        self._incoming.effects["cursor_before"] = self._incoming.effects["cursor_after"] = str(self._half.cursor)
        self._incoming.effects["data"] = self._payload.shown
        self._state.release(self._half)
        self._half.last = None

    @property
    def _is_greedy(self) -> bool:
        return self._pieces.mode is not None and self._pieces.mode.greedy

    def _warn_of_size(self, packet: DataPacket, turns: list[Turn]) -> None:
        """Note a payload of an unwanted size, at its first bytes."""
        if not isinstance(packet, RawPayload | CompressedPayload) or packet.at:
            return
        sizes = [turn.size for turn in turns if turn.sender.last is not Sent.PREFIX]
        if (
            sizes
            and not self._proposal.partial
            and all(size is not None and turn.settings.unwanted(size) for turn, size in zip(turns, sizes, strict=False))
        ):
            wants = turns[-1].settings
            reason = f"{sizes[-1]} bytes, wanted are {wants.min_payload} to {wants.max_payload}"
            self._incoming.note("unwanted_payload_size", reason)


def decompress(state: SessionState, incoming: Incoming, packet: CompressedPayload) -> Inflation:
    """Decompress a complete packet. Bytes that can't be decompressed, or are too many, are reported as they came."""
    role = incoming.role
    mode = state.mode(role)
    if mode is not None and not mode.window:
        read = Inflation("compression_without_window", compressed=packet.data)
    else:
        read = state.inflating[role].take(packet, state.kept_inflater(role))
    if read.compressed is not None:
        incoming.effects["compressed"] = read.compressed
    if read.unknown is not None:
        incoming.note(lzfoo.HISTORY_UNKNOWN, read.unknown)
    if read.wide:
        incoming.note("noncanonical_varu64", "the offset of a copy is longer than it needs to be")
    return read


def _is_nothing(packet: DataPacket) -> bool:
    """Whether it is a notify of 0, or skips 0 bytes. That is harmless: it is no piece and doesn't move the cursor."""
    return isinstance(packet, Notify | SkipBytes) and not packet.count
