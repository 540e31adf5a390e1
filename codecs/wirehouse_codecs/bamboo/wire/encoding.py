"""The bytes of Point-2-Point packets: `encode` writes a packet, `packet_at` and `decode_setup` read one.

Fields are in the order of the specification's "Encodings". Fields that a flag adds come after all fixed fields, in the
order of the flags. VarU64 numbers are written in their shortest form. Longer forms are read too, and reported.

Metadata shows by its first bytes whether it has a backlink: a hash begins with `00 40`, and a payload size of 0 is
followed by a hash. So the reader finds the end of every packet without knowing the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.bamboo.rules import ENTRY_RULE, RULE
from wirehouse_codecs.bamboo.setup import Channel, Setup
from wirehouse_codecs.bamboo.wire import entries as bamboo_entries
from wirehouse_codecs.bamboo.wire import varu64, yamf
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, SIGNATURE_BYTES
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Apology,
    Cancel,
    CancelEntry,
    Cancelled,
    CancelReason,
    CompressedPayload,
    ControlPacket,
    DataPacket,
    Eagerness,
    Metadata,
    Notify,
    PointToPoint,
    ProposalCredit,
    Propose,
    RawPayload,
    SkipBytes,
    SkipPayload,
    SkipReason,
    Switch,
)
from wirehouse_codecs.core.rules import Rule

# First bytes and their flags

_SENDS_GREEDILY, _RECEIVES_GREEDILY = 0x02, 0x01


_EAGERNESS_SHIFT: Final = 5


_EAGERNESS: Final = 0x60


#: Flags of an adjust.
_MAY_SKIP, _NEW_END, _NEW_UPPER, _NEW_MIN, _NEW_MAX = 0x10, 0x08, 0x04, 0x02, 0x01


#: Flags of a proposal.
_PROPOSE, _FINITE, _IN_PAYLOAD, _PAYLOAD_ONLY, _SPARSE, _MANDATORY = 0x80, 0x10, 0x08, 0x04, 0x02, 0x01


_CREDIT, _FIRST_CANCEL, _LAST_CANCEL, _FIRST_PROPOSE = 0, 128, 135, 160


_SWITCH, _NOTIFY, _NOTIFY_COUNT, _SKIP_BYTES, _RAW, _COMPRESSED = 0, 2, 3, 7, 8, 9


_APOLOGY, _CANCELLED, _METADATA, _END_OF_LOG = 16, 32, 128, 129


# Encode


def encode(packet: PointToPoint) -> bytes:
    """The bytes of `packet`, all numbers canonical.

    ValueError: fields contradict each other, a number has more than 64 bits, or a payload packet is only a piece.
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
    """Whether a proposal has an expected starting hash. Only one that begins with entry 1 has none."""
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
    """A packet cut from the bytes of a channel, and what is wrong with it."""

    #: Where the packet, or the piece of it, begins and ends in the bytes of the channel.
    byte_start: int
    byte_end: int
    #: None: the first byte is unassigned, so nothing after it can be read.
    packet: PointToPoint | None
    #: The rule that the packet breaks, and the offending values in a sentence.
    rule: Rule | None = None
    reason: str = ""
    #: The fields whose VarU64 is not in its shortest form.
    noncanonical: tuple[str, ...] = ()


class Cut(Exception):
    """The bytes end within the packet."""


class Fields:
    """Reads the fields of a packet one by one, starting at `at`."""

    __slots__ = ("at", "data", "noncanonical")

    def __init__(self, data: bytes | bytearray, at: int) -> None:
        self.data = data
        self.at = at
        self.noncanonical: tuple[str, ...] = ()

    def number(self, name: str) -> int:
        """The VarU64 field `name`. Raises Cut."""
        read = varu64.decode(self.data, self.at)
        if read is None:
            raise Cut
        value, self.at, canonical = read
        if not canonical:
            self.noncanonical += (name,)
        return value

    def number_if(self, wanted: object, name: str) -> int | None:
        """The VarU64 field `name`, if the packet has it. Raises Cut."""
        return self.number(name) if wanted else None

    def take(self, size: int) -> bytes:
        """The next `size` bytes. Raises Cut."""
        if self.at + size > len(self.data):
            raise Cut
        self.at += size
        return bytes(self.data[self.at - size : self.at])


def decode_setup(data: bytes) -> Received | None:
    """The set-up at the start of `data`. None: it is incomplete."""
    fields = Fields(data, 1)
    try:
        setup = Setup(
            sends_greedily=bool(data[:1] and data[0] & _SENDS_GREEDILY),
            receives_greedily=bool(data[:1] and data[0] & _RECEIVES_GREEDILY),
            send_window=fields.number("send_window"),
            receive_window=fields.number("receive_window"),
            ignored_bits=data[0] & ~(_SENDS_GREEDILY | _RECEIVES_GREEDILY),
        )
    except Cut:
        return None
    return Received(0, fields.at, setup, noncanonical=fields.noncanonical)


def _eagerness(first: int) -> Eagerness | None:
    bits = (first & _EAGERNESS) >> _EAGERNESS_SHIFT
    return Eagerness(bits) if bits else None


def _decode_control(fields: Fields, first: int) -> tuple[ControlPacket | None, str | None, str]:
    """The control packet with this first byte, the rule that it breaks, and why."""
    if first == _CREDIT:
        return ProposalCredit(fields.number("amount")), None, ""
    if first < _FIRST_CANCEL:
        return _judged(_decode_adjust(fields, first))
    if first <= _LAST_CANCEL:
        return _decode_cancel(fields, CancelReason(first))
    if first < _FIRST_PROPOSE:
        return None, "unused_control_byte", f"byte {first}"
    return _judged(_decode_propose(fields, first))


def _decode_adjust(fields: Fields, first: int) -> Adjust:
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


def _decode_propose(fields: Fields, first: int) -> Propose:
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
    """`packet`, and the rule that it breaks if one of its sequence numbers is 0."""
    zero = next((name for name in _SEQNUMS if getattr(packet, name, None) == 0), None)
    return (packet, None, "") if zero is None else (packet, "seqnum_zero", f"{zero} is 0")


_CANCEL_ENTRIES: Final = {CancelReason.STARTING_HASH: 1, CancelReason.FORKED: 2}


def _decode_cancel(fields: Fields, reason: CancelReason) -> tuple[ControlPacket, str | None, str]:
    number = fields.number("id")
    seqnum = fields.number_if(reason is CancelReason.END_OF_LOG, "seqnum")
    # If the first entry is invalid, the second still follows it.
    read = [_decode_cancel_entry(fields) for _ in range(_CANCEL_ENTRIES.get(reason, 0))]
    packet = Cancel(reason, number, seqnum, tuple(entry for entry, _, _ in read))
    broken = next(((rule, why) for _, rule, why in read if rule is not None), None)
    return _judged(packet) if broken is None else (packet, *broken)


def _decode_cancel_entry(fields: Fields) -> tuple[CancelEntry, str | None, str]:
    """An entry: in full, else without author and log id, else the rule that the full form breaks."""
    for whole in (True, False):
        right, end = bamboo_entries.begins_right(fields.data, fields.at, whole=whole)
        if right and end is None:
            raise Cut
        if right and end is not None:
            return CancelEntry(fields.take(end - fields.at), whole), None, ""
    end = bamboo_entries.end_of(fields.data, fields.at)
    if end is None:
        raise Cut
    entry = CancelEntry(fields.take(end - fields.at))
    decoded = bamboo_entries.decode(entry.data)
    return entry, None if decoded.rule is None else decoded.rule.name, decoded.reason


def _decode_data(fields: Fields, first: int) -> DataPacket | None:
    decoder = _DATA_DECODERS.get(first)
    return None if decoder is None else decoder(fields, first)


def _decode_metadata(fields: Fields, first: int) -> Metadata:
    backlink = fields.take(yamf.HASH_BYTES) if _has_backlink(fields) else None
    size = fields.number("payload_size")
    return Metadata(first == _END_OF_LOG, backlink, size, fields.take(yamf.HASH_BYTES), fields.take(SIGNATURE_BYTES))


def metadata_left(data: bytearray) -> int:
    """How many bytes of incomplete metadata are missing. 0: it isn't metadata, or its payload size is missing too."""
    fields = Fields(data, 1)
    try:
        if data[0] not in (_METADATA, _END_OF_LOG):
            return 0
        if _has_backlink(fields):
            fields.take(yamf.HASH_BYTES)
        fields.number("payload_size")
    except Cut:
        return 0
    return fields.at + yamf.HASH_BYTES + SIGNATURE_BYTES - len(data)


def _has_backlink(fields: Fields) -> bool:
    """Whether metadata has a backlink. Its first bytes decide; if they are no hash, the payload hash does.

    It reads no further than the shortest possible metadata is long.
    """
    data, at = fields.data, fields.at
    if at + len(yamf.PREFIX) > len(data):
        raise Cut
    if data.startswith(yamf.PREFIX, at):
        return True
    size, after = varu64.decode(data, at), varu64.decode(data, at + yamf.HASH_BYTES)
    if size is None or size.end + len(yamf.PREFIX) > len(data):
        raise Cut
    if data.startswith(yamf.PREFIX, size.end):
        return False
    if after is None or after.end + len(yamf.PREFIX) > len(data):
        raise Cut
    return data.startswith(yamf.PREFIX, after.end)


_DATA_DECODERS: Final[Mapping[int, Callable[[Fields, int], DataPacket]]] = MappingProxyType(
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


class PayloadHeader(NamedTuple):
    """The header of a payload packet, and how much of its payload was passed on."""

    #: Where the packet, or its next piece, begins in the channel.
    byte_start: int
    #: None: the payload is uncompressed.
    compressed_size: int | None
    size: int
    at: int
    noncanonical: tuple[str, ...]
    #: The bytes before the payload. Empty once a piece was passed on.
    header: bytes

    @property
    def left(self) -> int:
        """How many bytes of the payload are still to come."""
        return (self.size if self.compressed_size is None else self.compressed_size) - self.at

    def piece(self, data: bytes) -> DataPacket:
        """The next piece of the packet, with these bytes."""
        if self.compressed_size is None:
            return RawPayload(self.size, data, self.at)
        return CompressedPayload(self.size, self.compressed_size, data, self.at)


def decode(
    channel: Channel, fields: Fields
) -> tuple[ControlPacket | DataPacket | PayloadHeader | None, str | None, str]:
    """The packet at `fields.at` (of a payload packet only its header), the rule that it breaks, and why. Raises Cut."""
    start = fields.at
    first = fields.data[start]
    fields.at += 1
    if channel is Channel.CONTROL:
        return _decode_control(fields, first)
    if first in (_RAW, _COMPRESSED):
        size = fields.number("size")
        compressed_size = fields.number_if(first == _COMPRESSED, "compressed_size")
        header = bytes(fields.data[start : fields.at])
        return PayloadHeader(start, compressed_size, size, 0, fields.noncanonical, header), None, ""
    packet = _decode_data(fields, first)
    return (packet, "unused_data_byte", f"byte {first}") if packet is None else (packet, None, "")


def packet_at(channel: Channel, data: bytes | bytearray, at: int) -> Received | None:
    """The packet at `at`. None: it is incomplete. Payload bytes are left out, but `byte_end` counts them."""
    fields = Fields(data, at)
    try:
        packet, rule, reason = decode(channel, fields)
    except Cut:
        return None
    end = fields.at
    if isinstance(packet, PayloadHeader):
        end, packet = end + packet.left, packet.piece(b"")
    return Received(at, end, packet, rule_of(rule), reason, fields.noncanonical)


def rule_of(name: str | None) -> Rule | None:
    """The rule with this name, of the packets or of the entries."""
    return None if name is None else RULE.get(name) or ENTRY_RULE[name]
