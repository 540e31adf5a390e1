"""Packets of Bamboo Point-2-Point: set-up, control channel and data channel; encode, decode, and the readers.

The fields stand in the order of the specification's "Encodings"; what flags append comes after all fixed fields, in the
order of the flags. VarU64 numbers are written canonically and read in any length, which is noted.

Metadata says by its first bytes whether it has a backlink: a hash begins with `00 40`, a payload size of 0 is followed
by a hash. So no packet needs the cursor to be cut from the stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.bamboo.rules import ENTRY_RULE, RULE
from wirehouse_codecs.bamboo.setup import PIECE_BYTES, Channel, Setup
from wirehouse_codecs.bamboo.wire import entries as bamboo_entries
from wirehouse_codecs.bamboo.wire import varu64, yamf
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, SIGNATURE_BYTES
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Rule

SNAPSHOT_VERSION: Final = 2


class Eagerness(IntEnum):
    """What a side wants to be sent: bits 2 and 3 of an adjust or proposal."""

    NOTIFY = 1
    #: Metadata, and payloads up to a size limit.
    LIMITED = 2
    ALL = 3


class CancelReason(IntEnum):
    """Why a proposal is cancelled: the first byte of a cancel."""

    NEVER_AGAIN = 128
    RESOURCES = 129
    END_REACHED = 130
    CONFIRMING = 131
    MANDATORY_PAYLOAD = 132
    STARTING_HASH = 133
    END_OF_LOG = 134
    FORKED = 135


class SkipReason(IntEnum):
    """Why a payload is skipped: the first byte of a skip."""

    TOO_SMALL = 4
    TOO_LARGE = 5
    UNAVAILABLE = 6


# Set-up


class SendMode(NamedTuple):
    """How a side sends, once both set-ups are known."""

    greedy: bool
    #: How far back its copies may reach, in bytes.
    window: int

    @property
    def said(self) -> str:
        """The mode in a word."""
        return "greedy" if self.greedy else "safe"


def send_mode(sender: Setup, receiver: Setup) -> SendMode:
    """How the side that said `sender` sends to the one that said `receiver`."""
    greedy = sender.sends_greedily and receiver.receives_greedily
    return SendMode(greedy, min(sender.send_window, receiver.receive_window))


# Control channel


@dataclass(frozen=True, slots=True)
class ProposalCredit:
    """The other side may send so many more proposals."""

    amount: int


@dataclass(frozen=True, slots=True)
class Adjust:
    """Changes a proposal; the first one of the side that did not propose confirms it. None, False = unchanged."""

    id: int
    eagerness: Eagerness | None = None
    #: With LIMITED: the largest payload that is wanted, in bytes.
    size_limit: int | None = None
    #: The other side may skip payloads.
    may_skip: bool = False
    end: int | None = None
    upper_info: int | None = None
    min_payload: int | None = None
    max_payload: int | None = None


class CancelEntry(NamedTuple):
    """An entry that a cancel shows."""

    data: bytes
    #: Author and log id are not left out.
    whole: bool = True

    def in_log(self, author: bytes, log_id: int) -> bytes:
        """The entry in full, if it is one of that log."""
        return self.data if self.whole else self.data[:1] + author + varu64.encode(log_id) + self.data[1:]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels a proposal."""

    reason: CancelReason
    id: int
    #: With END_OF_LOG: the sequence number of the end-of-log entry.
    seqnum: int | None = None
    #: With STARTING_HASH one, with FORKED two.
    entries: tuple[CancelEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Propose:
    """Proposes to synchronise a range of a log. Payload sizes are in bytes."""

    id: int
    author: bytes
    log_id: int
    start: int
    #: None with an offset.
    lower_info: int | None
    min_payload: int
    max_payload: int
    eagerness: Eagerness
    #: Digest, 64 bytes, or 66 bytes as written if they are no hash. None where there is nothing to expect.
    expected_hash: bytes | None = None
    size_limit: int | None = None
    #: None, as is the upper info: the range has no end.
    end: int | None = None
    upper_info: int | None = None
    #: The range begins within the payload of its first entry.
    offset: int | None = None
    payload_only: bool = False
    sparse: bool = False
    mandatory: bool = False


# Data channel


@dataclass(frozen=True, slots=True)
class Switch:
    """From now on the sender speaks of this proposal."""

    id: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Moves the cursor by so many pieces. `counted`: written as byte 3 with a number, not as byte 2."""

    count: int = 1
    counted: bool = False


@dataclass(frozen=True, slots=True)
class SkipPayload:
    """Moves the cursor past a payload."""

    reason: SkipReason


@dataclass(frozen=True, slots=True)
class SkipBytes:
    """Moves the cursor by so many bytes of a payload."""

    count: int


@dataclass(frozen=True, slots=True)
class RawPayload:
    """Bytes of a payload, or a piece of them: `data` begins `at` bytes after the first of `size` bytes."""

    size: int
    data: bytes
    at: int = 0


@dataclass(frozen=True, slots=True)
class CompressedPayload:
    """`size` bytes of a payload in `compressed_size` bytes of LZFoo, or a piece of these, as in RawPayload."""

    size: int
    compressed_size: int
    data: bytes
    at: int = 0


@dataclass(frozen=True, slots=True)
class Apology:
    """What was sent last was invalid."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nothing more is sent for a proposal."""

    id: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """An entry without what its place says: author, log id, sequence number, lipmaalink. Hashes are as written."""

    end_of_log: bool
    #: 66 bytes; None where it is left out.
    backlink: bytes | None
    payload_size: int
    #: 66 bytes.
    payload_hash: bytes
    signature: bytes


ControlPacket = ProposalCredit | Adjust | Cancel | Propose
DataPacket = Switch | Notify | SkipPayload | SkipBytes | RawPayload | CompressedPayload | Apology | Cancelled | Metadata
PointToPoint = Setup | ControlPacket | DataPacket

_KINDS: Final[Mapping[type[PointToPoint], str]] = MappingProxyType(
    {
        Setup: "setup",
        ProposalCredit: "credit",
        Adjust: "adjust",
        Cancel: "cancel",
        Propose: "propose",
        Switch: "switch",
        Notify: "notify",
        SkipBytes: "skip_bytes",
        RawPayload: "raw",
        CompressedPayload: "lz",
        Apology: "apology",
        Cancelled: "cancelled",
        Metadata: "metadata",
    }
)
_SKIP_KINDS: Final = {
    SkipReason.TOO_SMALL: "skip_small",
    SkipReason.TOO_LARGE: "skip_large",
    SkipReason.UNAVAILABLE: "skip_missing",
}
#: What packets are called in tables.
KINDS: Final = (*_KINDS.values(), *_SKIP_KINDS.values())


def kind_of(packet: PointToPoint) -> str:
    """What a packet is called in tables."""
    return _SKIP_KINDS[packet.reason] if isinstance(packet, SkipPayload) else _KINDS[type(packet)]


# First bytes and their flags

_SENDS_GREEDILY, _RECEIVES_GREEDILY = 0x02, 0x01
_EAGERNESS_SHIFT: Final = 5
_EAGERNESS: Final = 0x60
#: Of an adjust.
_MAY_SKIP, _NEW_END, _NEW_UPPER, _NEW_MIN, _NEW_MAX = 0x10, 0x08, 0x04, 0x02, 0x01
#: Of a proposal.
_PROPOSE, _FINITE, _IN_PAYLOAD, _PAYLOAD_ONLY, _SPARSE, _MANDATORY = 0x80, 0x10, 0x08, 0x04, 0x02, 0x01
_CREDIT, _FIRST_CANCEL, _LAST_CANCEL, _FIRST_PROPOSE = 0, 128, 135, 160
_SWITCH, _NOTIFY, _NOTIFY_COUNT, _SKIP_BYTES, _RAW, _COMPRESSED = 0, 2, 3, 7, 8, 9
_APOLOGY, _CANCELLED, _METADATA, _END_OF_LOG = 16, 32, 128, 129


# Encode


def encode(packet: PointToPoint) -> bytes:
    """The bytes of `packet`, all numbers canonical.

    ValueError: fields contradict one another, or a number has more than 64 bits; a payload packet is only a piece.
    """
    return _ENCODERS[type(packet)](packet)


def _numbers(*numbers: int | None) -> bytes:
    return b"".join(varu64.encode(number) for number in numbers if number is not None)


def _encode_setup(setup: Setup) -> bytes:
    if setup.ignored_bits & (_SENDS_GREEDILY | _RECEIVES_GREEDILY):
        raise ValueError("the last two bits are not ignored")
    flags = setup.sends_greedily * _SENDS_GREEDILY | setup.receives_greedily * _RECEIVES_GREEDILY
    return bytes([setup.ignored_bits | flags]) + _numbers(setup.send_window, setup.receive_window)


def _encode_adjust(adjust: Adjust) -> bytes:
    _require(adjust.size_limit, adjust.eagerness is Eagerness.LIMITED, "a size limit goes with LIMITED")
    numbers = (adjust.end, adjust.upper_info, adjust.min_payload, adjust.max_payload)
    flags = (adjust.eagerness or 0) << _EAGERNESS_SHIFT | adjust.may_skip * _MAY_SKIP
    for flag, number in zip((_NEW_END, _NEW_UPPER, _NEW_MIN, _NEW_MAX), numbers, strict=True):
        flags |= 0 if number is None else flag
    if not flags:
        raise ValueError("an adjust changes something")
    return bytes([flags]) + _numbers(adjust.id, adjust.size_limit, *numbers)


def _encode_cancel(cancel: Cancel) -> bytes:
    _require(cancel.seqnum, cancel.reason is CancelReason.END_OF_LOG, "a sequence number goes with END_OF_LOG")
    if len(cancel.entries) != _CANCEL_ENTRIES.get(cancel.reason, 0):
        raise ValueError(f"{cancel.reason.name} does not go with {len(cancel.entries)} entries")
    entries = b"".join(entry.data for entry in cancel.entries)
    return bytes([cancel.reason]) + _numbers(cancel.id, cancel.seqnum) + entries


def _encode_propose(propose: Propose) -> bytes:
    _require(propose.lower_info, propose.offset is None, "there is a lower info or an offset")
    _require(propose.size_limit, propose.eagerness is Eagerness.LIMITED, "a size limit goes with LIMITED")
    _require(propose.upper_info, propose.end is not None, "an end goes with an upper info")
    _require(propose.expected_hash, _expects_hash(propose.lower_info), "a hash is expected, but not of entry 0")
    if len(propose.author) != AUTHOR_BYTES:
        raise ValueError(f"an author has {AUTHOR_BYTES} bytes")
    flags = (
        _PROPOSE
        | propose.eagerness << _EAGERNESS_SHIFT
        | (propose.end is not None) * _FINITE
        | (propose.offset is not None) * _IN_PAYLOAD
        | propose.payload_only * _PAYLOAD_ONLY
        | propose.sparse * _SPARSE
        | propose.mandatory * _MANDATORY
    )
    expected = propose.expected_hash or b""
    return b"".join(
        [
            bytes([flags]),
            _numbers(propose.id),
            propose.author,
            _numbers(propose.log_id, propose.start, propose.lower_info, propose.min_payload, propose.max_payload),
            yamf.encode(expected) if len(expected) == yamf.DIGEST_BYTES else expected,
            _numbers(propose.size_limit, propose.end, propose.upper_info, propose.offset),
        ]
    )


def _expects_hash(lower_info: int | None) -> bool:
    """Whether a proposal has an expected starting hash: not if it begins with entry 1."""
    return lower_info is None or lower_info > 1


def _require(value: object, wanted: bool, reason: str) -> None:
    if (value is not None) != wanted:
        raise ValueError(reason)


def _encode_notify(notify: Notify) -> bytes:
    if notify.counted or notify.count != 1:
        return bytes([_NOTIFY_COUNT]) + _numbers(notify.count)
    return bytes([_NOTIFY])


def _encode_raw(raw: RawPayload) -> bytes:
    if raw.at or len(raw.data) != raw.size:
        raise ValueError("only a piece of a packet")
    return bytes([_RAW]) + _numbers(raw.size) + raw.data


def _encode_compressed(compressed: CompressedPayload) -> bytes:
    if compressed.at or len(compressed.data) != compressed.compressed_size:
        raise ValueError("only a piece of a packet")
    return bytes([_COMPRESSED]) + _numbers(compressed.size, compressed.compressed_size) + compressed.data


def _encode_metadata(metadata: Metadata) -> bytes:
    hashes = [metadata.payload_hash] if metadata.backlink is None else [metadata.backlink, metadata.payload_hash]
    if any(len(one) != yamf.HASH_BYTES for one in hashes) or len(metadata.signature) != SIGNATURE_BYTES:
        raise ValueError(f"hashes have {yamf.HASH_BYTES} bytes here, signatures {SIGNATURE_BYTES}")
    first = bytes([_END_OF_LOG if metadata.end_of_log else _METADATA])
    size = _numbers(metadata.payload_size)
    return b"".join([first, metadata.backlink or b"", size, metadata.payload_hash, metadata.signature])


_ENCODERS: Final[Mapping[type[PointToPoint], Callable[[Any], bytes]]] = MappingProxyType(
    {
        Setup: _encode_setup,
        ProposalCredit: lambda credit: bytes([_CREDIT]) + _numbers(credit.amount),
        Adjust: _encode_adjust,
        Cancel: _encode_cancel,
        Propose: _encode_propose,
        Switch: lambda switch: bytes([_SWITCH]) + _numbers(switch.id),
        Notify: _encode_notify,
        SkipPayload: lambda skip: bytes([skip.reason]),
        SkipBytes: lambda skip: bytes([_SKIP_BYTES]) + _numbers(skip.count),
        RawPayload: _encode_raw,
        CompressedPayload: _encode_compressed,
        Apology: lambda _: bytes([_APOLOGY]),
        Cancelled: lambda cancelled: bytes([_CANCELLED]) + _numbers(cancelled.id),
        Metadata: _encode_metadata,
    }
)


# Decode


class Received(NamedTuple):
    """A packet cut from the bytes of a channel, and what decoding finds about it."""

    #: Where it begins and ends, in bytes of the channel; of a piece, where that does.
    byte_start: int
    byte_end: int
    #: None: the first byte is unused, and nothing after it can be told.
    packet: PointToPoint | None
    #: The violation that decoding finds, and the offending values in a sentence.
    rule: Rule | None = None
    reason: str = ""
    #: The fields whose VarU64 is longer than it needs to be.
    noncanonical: tuple[str, ...] = ()


class _Cut(Exception):
    """The bytes end inside the packet."""


class _Fields:
    """The fields of a packet, from `at` on."""

    __slots__ = ("at", "data", "noncanonical")

    def __init__(self, data: bytes | bytearray, at: int) -> None:
        self.data = data
        self.at = at
        self.noncanonical: tuple[str, ...] = ()

    def number(self, name: str) -> int:
        read = varu64.decode(self.data, self.at)
        if read is None:
            raise _Cut
        value, self.at, canonical = read
        if not canonical:
            self.noncanonical += (name,)
        return value

    def number_if(self, wanted: object, name: str) -> int | None:
        return self.number(name) if wanted else None

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise _Cut
        self.at += size
        return bytes(self.data[self.at - size : self.at])


def decode_setup(data: bytes) -> Received | None:
    """The set-up that `data` begins with; None = it is cut."""
    fields = _Fields(data, 1)
    try:
        setup = Setup(
            sends_greedily=bool(data[:1] and data[0] & _SENDS_GREEDILY),
            receives_greedily=bool(data[:1] and data[0] & _RECEIVES_GREEDILY),
            send_window=fields.number("send_window"),
            receive_window=fields.number("receive_window"),
            ignored_bits=data[0] & ~(_SENDS_GREEDILY | _RECEIVES_GREEDILY),
        )
    except _Cut:
        return None
    return Received(0, fields.at, setup, noncanonical=fields.noncanonical)


def _eagerness(first: int) -> Eagerness | None:
    bits = (first & _EAGERNESS) >> _EAGERNESS_SHIFT
    return Eagerness(bits) if bits else None


def _decode_control(fields: _Fields, first: int) -> tuple[ControlPacket | None, str | None, str]:
    """The control packet with that first byte, the rule that it breaks, and why."""
    if first == _CREDIT:
        return ProposalCredit(fields.number("amount")), None, ""
    if first < _FIRST_CANCEL:
        return _judged(_decode_adjust(fields, first))
    if first <= _LAST_CANCEL:
        return _decode_cancel(fields, CancelReason(first))
    if first < _FIRST_PROPOSE:
        return None, "unused_control_byte", f"byte {first}"
    return _judged(_decode_propose(fields, first))


def _decode_adjust(fields: _Fields, first: int) -> Adjust:
    number, eagerness = fields.number("id"), _eagerness(first)
    return Adjust(
        id=number,
        eagerness=eagerness,
        size_limit=fields.number_if(eagerness is Eagerness.LIMITED, "size_limit"),
        may_skip=bool(first & _MAY_SKIP),
        end=fields.number_if(first & _NEW_END, "end"),
        upper_info=fields.number_if(first & _NEW_UPPER, "upper_info"),
        min_payload=fields.number_if(first & _NEW_MIN, "min_payload"),
        max_payload=fields.number_if(first & _NEW_MAX, "max_payload"),
    )


def _decode_propose(fields: _Fields, first: int) -> Propose:
    number, author = fields.number("id"), fields.take(AUTHOR_BYTES)
    log_id, start = fields.number("log_id"), fields.number("start")
    lower_info = fields.number_if(not first & _IN_PAYLOAD, "lower_info")
    min_payload, max_payload = fields.number("min_payload"), fields.number("max_payload")
    expected = fields.take(yamf.HASH_BYTES) if _expects_hash(lower_info) else None
    if expected is not None and yamf.broken(expected) is None:
        expected = expected[len(yamf.PREFIX) :]
    eagerness = Eagerness((first & _EAGERNESS) >> _EAGERNESS_SHIFT)
    return Propose(
        id=number,
        author=author,
        log_id=log_id,
        start=start,
        lower_info=lower_info,
        min_payload=min_payload,
        max_payload=max_payload,
        eagerness=eagerness,
        expected_hash=expected,
        size_limit=fields.number_if(eagerness is Eagerness.LIMITED, "size_limit"),
        end=fields.number_if(first & _FINITE, "end"),
        upper_info=fields.number_if(first & _FINITE, "upper_info"),
        offset=fields.number_if(first & _IN_PAYLOAD, "offset"),
        payload_only=bool(first & _PAYLOAD_ONLY),
        sparse=bool(first & _SPARSE),
        mandatory=bool(first & _MANDATORY),
    )


_SEQNUMS: Final = ("start", "lower_info", "end", "upper_info", "seqnum")


def _judged(packet: ControlPacket) -> tuple[ControlPacket, str | None, str]:
    """`packet` with the rule that it breaks if a sequence number of it is 0."""
    zero = next((name for name in _SEQNUMS if getattr(packet, name, None) == 0), None)
    return (packet, None, "") if zero is None else (packet, "seqnum_zero", f"{zero} is 0")


_CANCEL_ENTRIES: Final = {CancelReason.STARTING_HASH: 1, CancelReason.FORKED: 2}


def _decode_cancel(fields: _Fields, reason: CancelReason) -> tuple[ControlPacket, str | None, str]:
    number = fields.number("id")
    seqnum = fields.number_if(reason is CancelReason.END_OF_LOG, "seqnum")
    # Bytes that are no entry are followed by the second one all the same.
    read = [_decode_cancel_entry(fields) for _ in range(_CANCEL_ENTRIES.get(reason, 0))]
    packet = Cancel(reason, number, seqnum, tuple(entry for entry, _, _ in read))
    broken = next(((rule, why) for _, rule, why in read if rule is not None), None)
    return _judged(packet) if broken is None else (packet, *broken)


def _decode_cancel_entry(fields: _Fields) -> tuple[CancelEntry, str | None, str]:
    """An entry in full; or, if that is none, one without author and log id; or why the first is none."""
    for whole in (True, False):
        right, end = bamboo_entries.begins_right(fields.data, fields.at, whole=whole)
        if right and end is None:
            raise _Cut
        if right and end is not None:
            return CancelEntry(fields.take(end - fields.at), whole), None, ""
    end = bamboo_entries.end_of(fields.data, fields.at)
    if end is None:
        raise _Cut
    entry = CancelEntry(fields.take(end - fields.at))
    decoded = bamboo_entries.decode(entry.data)
    return entry, None if decoded.rule is None else decoded.rule.name, decoded.reason


def _decode_data(fields: _Fields, first: int) -> DataPacket | None:
    decoder = _DATA_DECODERS.get(first)
    return None if decoder is None else decoder(fields, first)


def _decode_metadata(fields: _Fields, first: int) -> Metadata:
    backlink = fields.take(yamf.HASH_BYTES) if _has_backlink(fields) else None
    size = fields.number("payload_size")
    return Metadata(first == _END_OF_LOG, backlink, size, fields.take(yamf.HASH_BYTES), fields.take(SIGNATURE_BYTES))


def _metadata_left(data: bytearray) -> int:
    """How many bytes metadata lacks that is cut behind its size; 0: it isn't metadata, or its size isn't at hand."""
    fields = _Fields(data, 1)
    try:
        if data[0] not in (_METADATA, _END_OF_LOG):
            return 0
        if _has_backlink(fields):
            fields.take(yamf.HASH_BYTES)
        fields.number("payload_size")
    except _Cut:
        return 0
    return fields.at + yamf.HASH_BYTES + SIGNATURE_BYTES - len(data)


def _has_backlink(fields: _Fields) -> bool:
    """Whether metadata begins with a backlink: by its first bytes, or, if these are no hash, by those of the payload's.

    All that is looked at is within the shortest metadata.
    """
    data, at = fields.data, fields.at
    if at + len(yamf.PREFIX) > len(data):
        raise _Cut
    if data.startswith(yamf.PREFIX, at):
        return True
    size, after = varu64.decode(data, at), varu64.decode(data, at + yamf.HASH_BYTES)
    if size is None or size.end + len(yamf.PREFIX) > len(data):
        raise _Cut
    if data.startswith(yamf.PREFIX, size.end):
        return False
    if after is None or after.end + len(yamf.PREFIX) > len(data):
        raise _Cut
    return data.startswith(yamf.PREFIX, after.end)


_DATA_DECODERS: Final[Mapping[int, Callable[[_Fields, int], DataPacket]]] = MappingProxyType(
    {
        _SWITCH: lambda fields, _: Switch(fields.number("id")),
        _NOTIFY: lambda _, __: Notify(),
        _NOTIFY_COUNT: lambda fields, _: Notify(fields.number("count"), True),
        SkipReason.TOO_SMALL: lambda _, first: SkipPayload(SkipReason(first)),
        SkipReason.TOO_LARGE: lambda _, first: SkipPayload(SkipReason(first)),
        SkipReason.UNAVAILABLE: lambda _, first: SkipPayload(SkipReason(first)),
        _SKIP_BYTES: lambda fields, _: SkipBytes(fields.number("count")),
        _APOLOGY: lambda _, __: Apology(),
        _CANCELLED: lambda fields, _: Cancelled(fields.number("id")),
        _METADATA: _decode_metadata,
        _END_OF_LOG: _decode_metadata,
    }
)


class _Payload(NamedTuple):
    """A payload packet that is being handed on."""

    #: Where it, or the next piece of it, begins in the channel.
    byte_start: int
    #: None: it is raw.
    compressed_size: int | None
    size: int
    at: int
    noncanonical: tuple[str, ...]
    #: What came before its bytes; empty once a piece was handed on.
    header: bytes

    @property
    def left(self) -> int:
        return (self.size if self.compressed_size is None else self.compressed_size) - self.at

    def piece(self, data: bytes) -> DataPacket:
        if self.compressed_size is None:
            return RawPayload(self.size, data, self.at)
        return CompressedPayload(self.size, self.compressed_size, data, self.at)


def _decode(channel: Channel, fields: _Fields) -> tuple[ControlPacket | DataPacket | _Payload | None, str | None, str]:
    """The packet at `fields.at`, of a payload its header; the rule that it breaks, and why."""
    start = fields.at
    first = fields.data[start]
    fields.at += 1
    if channel is Channel.CONTROL:
        return _decode_control(fields, first)
    if first in (_RAW, _COMPRESSED):
        size = fields.number("size")
        compressed_size = fields.number_if(first == _COMPRESSED, "compressed_size")
        header = bytes(fields.data[start : fields.at])
        return _Payload(start, compressed_size, size, 0, fields.noncanonical, header), None, ""
    packet = _decode_data(fields, first)
    return (packet, "unused_data_byte", f"byte {first}") if packet is None else (packet, None, "")


def packet_at(channel: Channel, data: bytes | bytearray, at: int) -> Received | None:
    """The packet at `at`, of a payload without bytes of it, which `byte_end` counts all the same; None: it is cut."""
    fields = _Fields(data, at)
    try:
        packet, rule, reason = _decode(channel, fields)
    except _Cut:
        return None
    end = fields.at
    if isinstance(packet, _Payload):
        end, packet = end + packet.left, packet.piece(b"")
    return Received(at, end, packet, _rule(rule), reason, fields.noncanonical)


def _rule(name: str | None) -> Rule | None:
    return None if name is None else RULE.get(name) or ENTRY_RULE[name]


class ChannelReader:
    """Cuts what one side writes to a channel into packets. Sans-IO.

    It holds at most one packet, or a piece of `piece_bytes` of a payload; an announced size reserves nothing. After an
    unused first byte it has lost its place: it says so once, and reads no further.
    """

    __slots__ = ("_at", "_buffer", "_channel", "_needed", "_payload", "_piece_bytes", "lost")

    def __init__(
        self, channel: Channel, *, piece_bytes: int = PIECE_BYTES, byte_start: int = 0, snapshot: str | None = None
    ) -> None:
        self._channel = channel
        self._piece_bytes = piece_bytes
        self._buffer = bytearray()
        #: Where the buffer begins in the channel.
        self._at = byte_start
        #: With fewer bytes nothing is complete.
        self._needed = 1
        self._payload: _Payload | None = None
        self.lost = False
        if snapshot is not None:
            self._restore(snapshot)

    @property
    def byte_end(self) -> int:
        """How many bytes were received."""
        return self._at + len(self._buffer)

    @property
    def begin(self) -> int:
        """Where the unfinished packet begins, or the next one."""
        return self._at if self._payload is None else self._payload.byte_start

    @property
    def unfinished(self) -> bool:
        """It ends inside a packet."""
        return not self.lost and (bool(self._buffer) or self._payload is not None)

    @property
    def pending(self) -> bytes:
        """What came of the unfinished packet or piece."""
        return bytes(self._buffer) if self._payload is None else self._payload.header + self._buffer

    @property
    def announced(self) -> int | None:
        """How many bytes the unfinished packet says that it has of a payload; None: it doesn't say that."""
        payload = self._payload
        return None if payload is None else payload.at + payload.left

    @property
    def left(self) -> int:
        """How many bytes of the unfinished packet are to come, if those at hand tell; else 0."""
        if self.lost or not self._buffer:
            return 0 if self.lost or self._payload is None else self._payload.left
        if self._payload is not None:
            return self._payload.left - len(self._buffer)
        return _metadata_left(self._buffer) if self._channel is Channel.DATA else 0

    @property
    def begun(self) -> bytes | None:
        """The unfinished packet as it was written; None: it can't be told, or a part of it was handed on."""
        handed_on = self._payload is not None and self._payload.at > 0
        return None if self.lost or handed_on else self.pending

    def receive(self, data: bytes) -> list[Received]:
        """The packets that `data` completes, in order; empty = more needed."""
        self._buffer += data
        packets: list[Received] = []
        at = 0
        while not self.lost and len(self._buffer) - at >= self._needed:
            fields = _Fields(self._buffer, at)
            try:
                received = self._packet(fields) if self._payload is None else self._piece(fields, self._payload)
            except _Cut:
                self._needed = len(self._buffer) - at + 1
                break
            at = fields.at
            self._needed = 1 if self._payload is None else min(self._payload.left, self._piece_bytes)
            if received is not None:
                packets.append(received)
        if self.lost:
            at = len(self._buffer)
        del self._buffer[:at]
        self._at += at
        return packets

    def _packet(self, fields: _Fields) -> Received | None:
        """The packet at `fields.at`; None = of a payload, its header was read."""
        start = fields.at
        packet, rule, reason = _decode(self._channel, fields)
        if isinstance(packet, _Payload):
            self._payload = packet._replace(byte_start=self._at + start)
            return None
        self.lost = packet is None
        return Received(self._at + start, self._at + fields.at, packet, _rule(rule), reason, fields.noncanonical)

    def _piece(self, fields: _Fields, payload: _Payload) -> Received:
        data = fields.take(min(payload.left, self._piece_bytes))
        end = self._at + fields.at
        left = payload._replace(byte_start=end, at=payload.at + len(data), noncanonical=(), header=b"")
        self._payload = left if left.left else None
        return Received(payload.byte_start, end, payload.piece(data), noncanonical=payload.noncanonical)

    def snapshot(self) -> str:
        """The state as JSON; the channel and the size of pieces come from the options again."""
        state = {
            "version": SNAPSHOT_VERSION,
            "at": self._at,
            "buffer": self._buffer.hex(),
            "needed": self._needed,
            "payload": None if self._payload is None else [*self._payload[:-1], self._payload.header.hex()],
            "lost": self.lost,
        }
        return json.dumps(state, separators=(",", ":"))

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="bamboo channel", found=state.get("version"), expected=SNAPSHOT_VERSION)
        self._at, self._buffer, self.lost = state["at"], bytearray.fromhex(state["buffer"]), state["lost"]
        self._needed = state["needed"]
        if state["payload"] is not None:
            byte_start, compressed_size, size, at, noncanonical, header = state["payload"]
            said = tuple(noncanonical), bytes.fromhex(header)
            self._payload = _Payload(byte_start, compressed_size, size, at, *said)
