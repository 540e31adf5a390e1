"""Packets of Bamboo Point-2-Point: set-up, control channel and data channel, as values.

`encoding.py` turns them into bytes and back, `channel_reader.py` cuts the bytes of a channel into packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.setup import Setup
from wirehouse_codecs.bamboo.wire import varu64


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
    """How a side sends. It follows from the set-ups of both sides."""

    greedy: bool
    #: How far back its copies may reach, in bytes.
    window: int

    @property
    def name(self) -> str:
        """The mode in one word."""
        return "greedy" if self.greedy else "safe"


def send_mode(sender: Setup, receiver: Setup) -> SendMode:
    """How the side with the set-up `sender` sends to the side with the set-up `receiver`."""
    greedy = sender.sends_greedily and receiver.receives_greedily
    return SendMode(greedy, min(sender.send_window, receiver.receive_window))


# Control channel


@dataclass(frozen=True, slots=True)
class ProposalCredit:
    """Allows the other side `amount` more proposals."""

    amount: int


@dataclass(frozen=True, slots=True)
class Adjust:
    """Changes a proposal. The first adjust of the side that did not propose confirms it. None or False: unchanged."""

    id: int
    eagerness: Eagerness | None = None
    #: Only with LIMITED: the largest payload that its sender wants, in bytes.
    size_limit: int | None = None
    #: Whether the other side may skip payloads.
    may_skip: bool = False
    end: int | None = None
    upper_info: int | None = None
    min_payload: int | None = None
    max_payload: int | None = None


class CancelEntry(NamedTuple):
    """An entry that a cancel carries as evidence."""

    data: bytes
    #: Whether it contains author and log id.
    whole: bool = True

    def in_log(self, author: bytes, log_id: int) -> bytes:
        """The full entry, on the assumption that it is from this log."""
        return self.data if self.whole else self.data[:1] + author + varu64.encode(log_id) + self.data[1:]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels a proposal."""

    reason: CancelReason
    id: int
    #: Only with END_OF_LOG: the sequence number of the end-of-log entry.
    seqnum: int | None = None
    #: One with STARTING_HASH, two with FORKED, else none.
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
    #: A digest of 64 bytes, or the 66 bytes on the wire if they aren't a valid hash. None: the range starts with entry
    #: 1.
    expected_hash: bytes | None = None
    size_limit: int | None = None
    #: None (then the upper info is None too): the range has no end.
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
    """Makes this the current proposal of its sender."""

    id: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Moves the cursor by `count` pieces. `counted`: encoded as byte 3 with a number, not as byte 2."""

    count: int = 1
    counted: bool = False


@dataclass(frozen=True, slots=True)
class SkipPayload:
    """Moves the cursor past a payload."""

    reason: SkipReason


@dataclass(frozen=True, slots=True)
class SkipBytes:
    """Moves the cursor by `count` bytes of a payload."""

    count: int


@dataclass(frozen=True, slots=True)
class RawPayload:
    """`size` bytes of a payload, or a piece of them: `data` begins at byte `at`."""

    size: int
    data: bytes
    at: int = 0


@dataclass(frozen=True, slots=True)
class CompressedPayload:
    """`size` bytes of a payload as `compressed_size` bytes of LZFoo, or a piece of these as in RawPayload."""

    size: int
    compressed_size: int
    data: bytes
    at: int = 0


@dataclass(frozen=True, slots=True)
class Apology:
    """Retracts the last piece, or the part of it that was sent, as invalid."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nothing more is sent for a proposal."""

    id: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """An entry without the fields that follow from its position: author, log id, sequence number and lipmaalink.

    Hashes are as on the wire.
    """

    end_of_log: bool
    #: 66 bytes. None: it is omitted.
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
#: The names of packets in tables.
KINDS: Final = (*_KINDS.values(), *_SKIP_KINDS.values())


def kind_of(packet: PointToPoint) -> str:
    """The name of a packet in tables."""
    return _SKIP_KINDS[packet.reason] if isinstance(packet, SkipPayload) else _KINDS[type(packet)]
