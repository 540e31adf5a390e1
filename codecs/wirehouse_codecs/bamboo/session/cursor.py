"""Plans and cursors: where a side is in the data of a proposal, and which packets may follow (specification, "The Data
Channel").

A proposal stands for a sequence of pieces, each the metadata or the payload of an entry: first the lower certificate
pool from the lower info to the start, then the range, then the upper certificate pool from the end to the upper info.
Each side has a cursor into this plan, and its packets move it. A piece is identified by sequence number and kind. These
are unique, and they stay the same when an adjust moves the end.

`judge` returns the rule that a packet breaks, given both cursors and the settings of the receiver. `move` moves the
cursor. Rules about the bytes themselves (compression, verification) are judged elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.bamboo.wire.lipmaa import has_lipmaalink, path, spine_at_least
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Apology,
    CompressedPayload,
    DataPacket,
    Eagerness,
    Metadata,
    Notify,
    Propose,
    RawPayload,
    SkipBytes,
    SkipPayload,
    SkipReason,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64

#: How many of the payloads that a notify skips are judged by their sizes.
MOST_LOOKED_AT: Final = 64


class Piece(NamedTuple):
    """The metadata or the payload of an entry."""

    seq: int
    is_payload: bool

    def __str__(self) -> str:
        return f"{'p' if self.is_payload else 'm'}{self.seq}"


@dataclass(frozen=True)
class Plan:
    """The pieces of a proposal in order. `end` is None: the range has no end."""

    start: int
    lower_info: int
    end: int | None = None
    upper_info: int | None = None
    #: The first piece is the payload of the start entry, from this byte on.
    offset: int | None = None
    payload_only: bool = False
    sparse: bool = False

    @classmethod
    def of(cls, propose: Propose) -> Plan:
        """The plan of a proposal whose numbers break no rule."""
        lower = propose.start if propose.lower_info is None else propose.lower_info
        end, upper = propose.end, propose.upper_info
        return cls(propose.start, lower, end, upper, propose.offset, propose.payload_only, propose.sparse)

    def adjusted(self, adjust: Adjust) -> Plan:
        """The plan after `adjust`: an end or upper info that isn't below the old one is ignored.

        An end without an upper info asks for all of the upper certificate pool.
        """
        end, upper = _lowered(self.end, adjust.end), _lowered(self.upper_info, adjust.upper_info)
        return replace(self, end=end, upper_info=upper)

    @property
    def follows(self) -> bool:
        """Whether all pieces are known.

        In a sparse range without an end, the pieces after the start entry depend on which entry is the newest.
        """
        return not self.sparse or self.end is not None

    @cached_property
    def _lower(self) -> tuple[int, ...]:
        if self.payload_only or self.offset is not None:
            return ()
        return path(self.lower_info, self.start)[:-1]

    @cached_property
    def _sparse_range(self) -> tuple[int, ...]:
        return path(self.start, self.start if self.end is None else self.end) if self.sparse else ()

    @cached_property
    def _upper(self) -> tuple[int, ...]:
        if self.payload_only or self.end is None:
            return ()
        above = path(self.end, spine_at_least(self.end))[1:]
        return above if self.upper_info is None else tuple(seq for seq in above if seq <= self.upper_info)

    @property
    def _per_entry(self) -> int:
        return 1 if self.payload_only else 2

    @property
    def _left_out(self) -> int:
        """1 if the range begins in the payload of the start entry, so that its metadata is left out."""
        return 1 if self.offset is not None and not self.payload_only else 0

    @cached_property
    def _range_end(self) -> int:
        """The index of the first piece after the range. No log has more entries than there are numbers."""
        end = MAX_U64 if self.end is None else self.end
        entries = len(self._sparse_range) if self.sparse else end - self.start + 1
        return len(self._lower) + entries * self._per_entry - self._left_out

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return self._range_end + len(self._upper)

    def piece(self, index: int) -> Piece | None:
        """The piece with that index, from 0 on; None = the end."""
        if index < len(self._lower):
            return Piece(self._lower[index], False)
        above = index - self._range_end
        if above >= 0:
            return Piece(self._upper[above], False) if above < len(self._upper) else None
        entry, part = divmod(index - len(self._lower) + self._left_out, self._per_entry)
        return Piece(self._sparse_range[entry] if self.sparse else self.start + entry, self.payload_only or part == 1)

    def index(self, piece: Piece | None) -> int:
        """The index of `piece`, or of the first one after it; None is the end."""
        if piece is None:
            return self.size
        if piece.seq < self.start:
            return bisect_left(self._lower, piece.seq)
        if self.end is not None and piece.seq > self.end:
            return self._range_end + bisect_left(self._upper, piece.seq + piece.is_payload)
        entry = bisect_left(self._sparse_range, piece.seq) if self.sparse else piece.seq - self.start
        part = int(piece.is_payload and not self.payload_only)
        return max(len(self._lower) + entry * self._per_entry + part - self._left_out, len(self._lower))


def _lowered(old: int | None, new: int | None) -> int | None:
    return old if new is None or (old is not None and new >= old) else new


@dataclass(frozen=True, slots=True)
class Settings:
    """What one side of a proposal wants to receive. Sizes are in bytes, both bounds included.

    Without an eagerness the settings are unknown, because the confirmation was lost or comes later over another
    connection. Then no rule is judged by them.
    """

    eagerness: Eagerness | None = None
    size_limit: int | None = None
    min_payload: int = 0
    max_payload: int = MAX_U64
    #: Whether the other side may not skip payloads as unavailable.
    mandatory: bool = True

    @classmethod
    def of(cls, propose: Propose) -> Settings:
        """The settings of the proposing side. The other side starts with the defaults and without an eagerness."""
        sizes = (propose.size_limit, propose.min_payload, propose.max_payload)
        return cls(propose.eagerness, *sizes, propose.mandatory)

    def adjusted(self, adjust: Adjust) -> Settings:
        """The settings after an adjust by the same side."""
        eager = (
            self
            if adjust.eagerness is None
            else replace(self, eagerness=adjust.eagerness, size_limit=adjust.size_limit)
        )
        return replace(
            eager,
            min_payload=self.min_payload if adjust.min_payload is None else adjust.min_payload,
            max_payload=self.max_payload if adjust.max_payload is None else adjust.max_payload,
            mandatory=self.mandatory and not adjust.may_skip,
        )

    def allows(self, piece: Piece, size: int | None) -> bool:
        """Whether the piece may be sent. Of a payload whose size isn't known, the limit isn't judged."""
        if self.eagerness is Eagerness.NOTIFY:
            return False
        limited = self.eagerness is Eagerness.LIMITED and piece.is_payload
        return not (limited and size is not None and self.size_limit is not None and size > self.size_limit)

    def wants(self, piece: Piece, size: int | None) -> bool:
        """Whether the piece is to be sent, rather than passed over.

        Not a payload whose size isn't known or wanted, and not an empty one: a notify passes it like a packet without
        bytes.
        """
        if not piece.is_payload:
            return self.allows(piece, size)
        return (
            size is not None and size > 0 and self.allows(piece, size) and self.min_payload <= size <= self.max_payload
        )

    def unwanted(self, size: int) -> bool:
        """Whether payload bytes of that size need not be sent."""
        return not self.min_payload <= size <= self.max_payload


class Sent(StrEnum):
    """What a side sent last for a proposal. An apology would retract it."""

    NOTHING = "nothing"
    #: Some bytes of the payload under the cursor.
    PREFIX = "prefix"
    #: The piece before the cursor.
    PIECE = "piece"
    APOLOGY = "apology"


@dataclass(slots=True)
class Cursor:
    """The position of one side in the plan, and what it sent last."""

    plan: Plan
    #: The next piece; None = the end.
    piece: Piece | None = None
    #: Bytes of the payload under the cursor that were sent or skipped, from its first byte or the plan's offset on.
    at: int = 0
    last: Sent = Sent.NOTHING
    #: The piece that was sent last. An adjust may have removed it from the plan.
    sent: Piece | None = None
    #: The last two entries whose metadata was sent, the newest first, without retracted ones.
    metadata: tuple[int, ...] = ()
    #: Whether its position is unknown from here on.
    lost: bool = False

    @classmethod
    def begin(cls, plan: Plan) -> Cursor:
        """At the first piece."""
        cursor = cls(plan)
        cursor._go_to(0)
        return cursor

    def __str__(self) -> str:
        """`m8`, `p10`, `p10+200`, or `end`."""
        if self.lost or self.leaves:
            return "unknown"
        if self.piece is None:
            return "end"
        return f"{self.piece}+{self.at}" if self.at else str(self.piece)

    @property
    def leaves(self) -> bool:
        """Whether it is past all known pieces, but there are more."""
        return self.piece is None and not self.plan.follows

    @property
    def index(self) -> int:
        """How many pieces are behind it."""
        return self.plan.index(self.piece)

    def adjust(self, plan: Plan) -> None:
        """Continue with another plan: at the same piece, or at the first one after it."""
        self.lost |= self.leaves
        self.plan = plan
        if self.lost:
            return
        piece = plan.piece(plan.index(self.piece))
        if piece != self.piece:
            self.piece, self.at = piece, 0

    def has_backlink(self) -> bool:
        """Whether the next metadata must contain its backlink, because the entry before was not sent here."""
        seq = 0 if self.piece is None else self.piece.seq
        return has_lipmaalink(seq) and seq - 1 not in self.metadata

    def pass_over(self, pieces: int) -> None:
        """Move past pieces that were not sent."""
        self._go_to(self.index + pieces)
        self._note(Sent.NOTHING)

    def send_metadata(self) -> None:
        """Move past the metadata that is due."""
        if self.piece is not None:
            self.metadata = (self.piece.seq, *self.metadata[:1])
        self._send_piece()

    def send_bytes(self, count: int, size: int | None, *, skipped: bool = False) -> None:
        """Move on within the current payload, which has `size` bytes in all."""
        if size is None:
            # The next metadata shows where it ended. Without metadata nothing does.
            self.at += count
            self.lost = self.plan.payload_only
            self._note(Sent.PREFIX)
            return
        sent = Sent.PREFIX if self.last is Sent.PREFIX or not skipped else Sent.NOTHING
        self.at += count
        if self.at < size:
            self._note(sent)
        elif sent is Sent.PREFIX:
            self._send_piece()
        else:
            self.pass_over(1)

    def _send_piece(self) -> None:
        self._note(Sent.PIECE, self.piece)
        self._go_to(self.index + 1)

    def _note(self, last: Sent, sent: Piece | None = None) -> None:
        self.last, self.sent = last, sent

    def ends_unknown(self, size: int | None) -> bool:
        """Whether it is within a payload that may have ended here: nobody knew its size when its bytes came.

        Metadata of another proposal may have shown the size since then.
        """
        begun = self.piece is not None and self.piece.is_payload and self.last is Sent.PREFIX
        return begun and (size is None or self.at >= size) and not self.lost

    def retract(self) -> None:
        """Move back to what was sent last, or to the first piece after it if the plan no longer has it."""
        piece = self.sent or self.piece
        self._go_to(self.plan.index(piece))
        if piece is not None and not piece.is_payload:
            self.metadata = tuple(seq for seq in self.metadata if seq != piece.seq)
        self._note(Sent.APOLOGY)

    def _go_to(self, index: int) -> None:
        self.piece = self.plan.piece(index)
        self.at = self.plan.offset or 0 if index == 0 else 0


SizeOf = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class Turn:
    """The context in which a packet is judged: both cursors, and the settings of the receiver."""

    sender: Cursor
    receiver: Cursor
    #: The settings of the receiver.
    settings: Settings
    #: The payload size of an entry of the log. None: unknown.
    size_of: SizeOf = field(repr=False)

    @property
    def size(self) -> int | None:
        """The size of the payload under the sender's cursor."""
        piece = self.sender.piece
        return None if piece is None or not piece.is_payload else self.size_of(piece.seq)


Check = Callable[[Turn, Any], bool]


def judge(packet: DataPacket, turn: Turn) -> str | None:
    """The first rule that `packet` breaks, of those about turns, sizes, eagerness, skips and apologies."""
    if turn.sender.lost or (isinstance(packet, SkipBytes) and not packet.count):
        return None
    return next((rule for rule, breaks in JUDGED.get(type(packet), ()) if breaks(turn, packet)), None)


def move(packet: DataPacket, turn: Turn) -> None:
    """Move the sender's cursor by a packet that breaks no rule."""
    mover = _MOVES.get(type(packet))
    if mover is not None and not turn.sender.lost:
        mover(turn, packet)


def _payload_is_due(turn: Turn, _: DataPacket) -> bool:
    return turn.sender.piece is not None and turn.sender.piece.is_payload


def _metadata_is_due(turn: Turn, _: DataPacket) -> bool:
    return turn.sender.piece is not None and not turn.sender.piece.is_payload


def _at_end(turn: Turn, _: DataPacket) -> bool:
    return turn.sender.piece is None


def _beyond_end(turn: Turn, packet: Notify) -> bool:
    plan = turn.sender.plan
    return plan.follows and turn.sender.index + packet.count > plan.size


def _above_size(turn: Turn, packet: RawPayload | CompressedPayload | SkipBytes) -> bool:
    return turn.size is not None and turn.sender.at + _bytes_announced(packet) > turn.size


def _bytes_announced(packet: RawPayload | CompressedPayload | SkipBytes) -> int:
    """How many bytes of the payload a packet is about, from its piece at hand on."""
    if isinstance(packet, SkipBytes):
        return packet.count
    if isinstance(packet, RawPayload):
        return packet.size - packet.at
    # Only the first piece announces a size.
    return 0 if packet.at else packet.size


def _not_allowed(turn: Turn, _: DataPacket) -> bool:
    piece = turn.sender.piece
    return piece is not None and not turn.settings.allows(piece, turn.size)


def _keeps_back(turn: Turn, packet: Notify) -> bool:
    """Whether a notify skips pieces that the other side wants and doesn't have."""
    if turn.receiver.lost or turn.settings.eagerness in (None, Eagerness.NOTIFY):
        return False
    plan = turn.sender.plan
    begin, end = max(turn.sender.index, turn.receiver.index), turn.sender.index + packet.count
    pieces = (plan.piece(index) for index in range(begin, min(end, begin + MOST_LOOKED_AT)))
    return any(
        piece is not None and turn.settings.wants(piece, turn.size_of(piece.seq) if piece.is_payload else None)
        for piece in pieces
    )


def _wrong_size(turn: Turn, packet: SkipPayload) -> bool:
    size, settings = turn.size, turn.settings
    if size is None or settings.eagerness is None:
        return False
    too_small = packet.reason is SkipReason.TOO_SMALL and size >= settings.min_payload
    return too_small or (packet.reason is SkipReason.TOO_LARGE and size <= settings.max_payload)


def _is_mandatory(turn: Turn, packet: SkipPayload) -> bool:
    known = turn.settings.eagerness is not None
    return known and packet.reason is SkipReason.UNAVAILABLE and turn.settings.mandatory


def _beyond_receiver(turn: Turn, packet: SkipBytes) -> bool:
    sender, receiver = turn.sender, turn.receiver
    if receiver.lost or receiver.index > sender.index:
        return False
    return receiver.index < sender.index or sender.at + packet.count > receiver.at


def _sent(last: Sent) -> Check:
    return lambda turn, _: turn.sender.last is last


#: The rules of each packet, in order.
JUDGED: Final[Mapping[type[DataPacket], tuple[tuple[str, Check], ...]]] = MappingProxyType(
    {
        Metadata: (("out_of_turn", _payload_is_due), ("past_end", _at_end), ("eagerness_ignored", _not_allowed)),
        RawPayload: (
            ("out_of_turn", _metadata_is_due),
            ("past_end", _at_end),
            ("payload_overrun", _above_size),
            ("eagerness_ignored", _not_allowed),
        ),
        CompressedPayload: (
            ("out_of_turn", _metadata_is_due),
            ("past_end", _at_end),
            ("payload_overrun", _above_size),
            ("eagerness_ignored", _not_allowed),
        ),
        SkipPayload: (
            ("out_of_turn", _metadata_is_due),
            ("past_end", _at_end),
            ("skip_size_untrue", _wrong_size),
            ("skip_of_mandatory_payload", _is_mandatory),
        ),
        SkipBytes: (
            ("out_of_turn", _metadata_is_due),
            ("past_end", _at_end),
            ("payload_overrun", _above_size),
            ("skip_beyond_peer", _beyond_receiver),
        ),
        Notify: (("past_end", _beyond_end), ("eagerness_ignored", _keeps_back)),
        Apology: (
            ("apology_without_data", _sent(Sent.NOTHING)),
            ("apology_repeated", _sent(Sent.APOLOGY)),
        ),
    }
)


def _move_by_notify(turn: Turn, packet: Notify) -> None:
    if packet.count:
        turn.sender.pass_over(packet.count)


def _move_by_raw(turn: Turn, packet: RawPayload) -> None:
    turn.sender.send_bytes(len(packet.data), turn.size)


def _move_by_compressed(turn: Turn, packet: CompressedPayload) -> None:
    # The last piece of a packet moves the cursor.
    if packet.at + len(packet.data) == packet.compressed_size:
        turn.sender.send_bytes(packet.size, turn.size)


def _move_by_skip(turn: Turn, packet: SkipBytes) -> None:
    # An empty payload is a piece. Otherwise a skip of 0 bytes is nothing.
    if packet.count or turn.size == 0:
        turn.sender.send_bytes(packet.count, turn.size, skipped=True)


#: What a packet does to the cursor of its sender.
_MOVES: Final[Mapping[type[DataPacket], Callable[[Turn, Any], None]]] = MappingProxyType(
    {
        Metadata: lambda turn, _: turn.sender.send_metadata(),
        RawPayload: _move_by_raw,
        CompressedPayload: _move_by_compressed,
        SkipPayload: lambda turn, _: turn.sender.pass_over(1),
        SkipBytes: _move_by_skip,
        Notify: _move_by_notify,
        Apology: lambda turn, _: turn.sender.retract(),
    }
)
