"""Block items: a set cut into items by kind, and the few that say what block it is.

A set (BlockItemSet) and a block file (Block) are the same run of items. Counting needs only the first tag of each item,
so bodies stay as their bytes; header, footer, proof and round header are decoded. Their layouts changed without a
version of their own: which one is written is told from the bytes, never from the schema that happens to read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.hiero.wire import loops, protobuf
from wirehouse_codecs.hiero.wire.protobuf import Field, Form, Layout, Malformed, WireType

Array = np.ndarray[Any, Any]

HASH_BYTES: Final = 48
#: At most so many items are cut at once: a hostile set has one in two bytes.
CHUNK_ITEMS: Final = 1 << 16
#: Fewer are sooner counted one by one.
_FEW_ITEMS: Final = 100
#: An item has at least a tag and a length.
_LEAST_BYTES: Final = 2


class ItemNumber(IntEnum):
    """Fields of BlockItem that something is done with."""

    UNSET = 0
    BLOCK_HEADER = 1
    EVENT_HEADER = 2
    ROUND_HEADER = 3
    #: event_transaction, and from HAPI 0.69 on signed_transaction.
    TRANSACTION = 4
    TRANSACTION_RESULT = 5
    TRANSACTION_OUTPUT = 6
    STATE_CHANGES = 7
    FILTERED_ITEM = 8
    BLOCK_PROOF = 9
    RECORD_FILE = 10
    TRACE_DATA = 11
    BLOCK_FOOTER = 12
    REDACTED_ITEM = 19
    #: block_footer before it got the number 12.
    STORED_FOOTER = 21


_NAMES: Mapping[int, str] = MappingProxyType(
    {
        ItemNumber.UNSET: "unset",
        ItemNumber.BLOCK_HEADER: "block_header",
        ItemNumber.EVENT_HEADER: "event_header",
        ItemNumber.ROUND_HEADER: "round_header",
        ItemNumber.TRANSACTION: "signed_transaction",
        ItemNumber.TRANSACTION_RESULT: "transaction_result",
        ItemNumber.TRANSACTION_OUTPUT: "transaction_output",
        ItemNumber.STATE_CHANGES: "state_changes",
        ItemNumber.FILTERED_ITEM: "filtered_single_item",
        ItemNumber.BLOCK_PROOF: "block_proof",
        ItemNumber.RECORD_FILE: "record_file",
        ItemNumber.TRACE_DATA: "trace_data",
        ItemNumber.BLOCK_FOOTER: "block_footer",
        ItemNumber.REDACTED_ITEM: "redacted_item",
    }
)
_OLD_NAMES: Mapping[int, str] = MappingProxyType(
    {ItemNumber.TRANSACTION: "event_transaction", ItemNumber.FILTERED_ITEM: "filtered_item_hash"}
)
#: Transactions of the newer form since this HAPI version.
SIGNED_TRANSACTIONS_SINCE: Final = (0, 69, 0)


def item_name(number: int, *, old: bool = False) -> str:
    """What the items of a number are called; `old`: before HAPI 0.69. Numbers without a name are `item_N`."""
    if number < 0:
        return "other"
    return (old and _OLD_NAMES.get(number)) or _NAMES.get(number) or f"item_{number}"


class ItemClass(StrEnum):
    """What an item is to a block's hash: the leaf it falls under."""

    HEADER = "header"
    CONSENSUS = "consensus"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    TRACE = "trace"
    #: Trees of leaves 8 to 15, for what later versions add.
    EXTENSION = "extension"
    #: Footer, proof, and classes 0 and 19.
    NOT_HASHED = "not hashed"
    #: Stands for items that were left out.
    FILTERED = "filtered"
    #: Reserved numbers and classes 1, 2, 16 to 18.
    REFUSED = "refused"


_CLASS_OF_NUMBER: Mapping[int, ItemClass] = MappingProxyType(
    {
        ItemNumber.BLOCK_HEADER: ItemClass.OUTPUT,
        ItemNumber.EVENT_HEADER: ItemClass.CONSENSUS,
        ItemNumber.ROUND_HEADER: ItemClass.CONSENSUS,
        ItemNumber.TRANSACTION: ItemClass.INPUT,
        ItemNumber.TRANSACTION_RESULT: ItemClass.OUTPUT,
        ItemNumber.TRANSACTION_OUTPUT: ItemClass.OUTPUT,
        ItemNumber.STATE_CHANGES: ItemClass.STATE,
        ItemNumber.FILTERED_ITEM: ItemClass.FILTERED,
        ItemNumber.BLOCK_PROOF: ItemClass.NOT_HASHED,
        ItemNumber.RECORD_FILE: ItemClass.OUTPUT,
        ItemNumber.TRACE_DATA: ItemClass.TRACE,
        ItemNumber.BLOCK_FOOTER: ItemClass.NOT_HASHED,
        ItemNumber.REDACTED_ITEM: ItemClass.FILTERED,
    }
)
#: Numbers from here on are classed by their remainder.
CLASSES: Final = 20
_CLASS_OF_REMAINDER: Mapping[int, ItemClass] = MappingProxyType(
    {
        0: ItemClass.NOT_HASHED,
        3: ItemClass.CONSENSUS,
        4: ItemClass.INPUT,
        5: ItemClass.OUTPUT,
        6: ItemClass.STATE,
        7: ItemClass.TRACE,
        **dict.fromkeys(range(8, 16), ItemClass.EXTENSION),
        19: ItemClass.NOT_HASHED,
    }
)


def item_class(number: int) -> ItemClass:
    """The class of the items of a number."""
    if number < CLASSES:
        return _CLASS_OF_NUMBER.get(number, ItemClass.REFUSED)
    return _CLASS_OF_REMAINDER.get(number % CLASSES, ItemClass.REFUSED)


# Cutting


class Fault(NamedTuple):
    """Why a run of items can't be read from `at` on."""

    at: int
    reason: str


@dataclass(frozen=True, eq=False)
class Items:
    """Items of a run, at most CHUNK_ITEMS. Offsets count in `data`."""

    data: bytes | memoryview
    #: Where each item's tag begins, its body begins and it ends, int32.
    starts: Array
    bodies: Array
    ends: Array
    #: The field of BlockItem that is set, int32; 0 = none.
    numbers: Array
    #: Fields of the run that are no items.
    unknown_fields: int = 0
    #: Items that have more than one field.
    several: int = 0
    #: Of the only item so many bytes are left out at its end: it was too large to be held.
    passed_over: int = 0
    #: What follows these items can't be read.
    fault: Fault | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def counts(self) -> dict[int, int]:
        """How many items there are of each number."""
        if len(self) < _FEW_ITEMS:
            return Counter(self.numbers.tolist())
        numbers, counts = np.unique(self.numbers, return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    def where(self, number: int) -> list[int]:
        """Positions of the items of a number, in order."""
        if number not in self.counts:
            return []
        found: list[int] = np.flatnonzero(self.numbers == number).tolist()
        return found

    def body(self, position: int) -> bytes:
        """The BlockItem at `position`: its field with tag and length, without the run's."""
        return bytes(self.data[self.bodies[position] : self.ends[position]])


def cut(data: bytes | memoryview, begin: int = 0) -> Iterator[Items]:
    """The items of a whole run (BlockItemSet or Block), in chunks; the last says if what follows can't be read.

    ValueError: `data` has 2 GiB or more.
    """
    if len(data) >= 1 << 31:
        raise ValueError(f"{len(data)} bytes at once, at most {(1 << 31) - 1}")
    at = begin
    while True:
        found, at, stopped = _walk(data, at)
        if stopped in (loops.MORE, loops.BAD):
            yield replace(found, fault=Fault(at, _reason(data, at)))
            return
        yield found
        if stopped == loops.DONE:
            return


def _walk(data: bytes | memoryview, at: int) -> tuple[Items, int, int]:
    room = min(CHUNK_ITEMS, (len(data) - at) // _LEAST_BYTES + 1)
    out = np.empty((loops.ROWS, room), np.int32)
    count, at, stopped, unknown, several = loops.walk(np.frombuffer(data, np.uint8), at, len(data), out)
    starts, bodies, ends, numbers = out[:, :count]
    return Items(data, starts, bodies, ends, numbers, unknown, several), at, stopped


def _reason(data: bytes | memoryview, at: int) -> str:
    """The readable walk's word on what stands at `at`."""
    try:
        read_item(data, at, len(data))
    except Malformed as malformed:
        return malformed.reason
    raise AssertionError(f"the walk stopped at byte {at} for no reason")


class Item(NamedTuple):
    """A field of a run."""

    start: int
    body: int
    end: int
    #: None: the field is no item.
    number: int | None
    #: It has more than one field.
    several: bool = False


def read_item(data: bytes | memoryview, at: int, end: int) -> Item:
    """The field of a run at `at`. Raises Malformed."""
    field = protobuf.read_field(data, at, end)
    if field.number != 1 or field.wire_type != WireType.LEN:
        return Item(at, field.value_start, field.end, None)
    if field.value_start == field.end:
        return Item(at, field.value_start, field.end, ItemNumber.UNSET)
    try:
        first = protobuf.read_field(data, field.value_start, field.end)
        here = first.end
        while here < field.end:
            here = protobuf.read_field(data, here, field.end).end
    except Malformed as malformed:
        raise Malformed(at, f"an item of {field.end - field.value_start} bytes: {malformed.reason}") from None
    number = first.number if first.wire_type == WireType.LEN else ItemNumber.UNSET
    return Item(at, field.value_start, field.end, number, first.end < field.end)


def with_footer(items: Items) -> Items:
    """`items`, in which a footer of the number that it had before is one of the number of today."""
    footers = [
        position
        for position in items.where(ItemNumber.STORED_FOOTER)
        if _is_footer(decode_footer(items.body(position)))
    ]
    if not footers:
        return items
    numbers = items.numbers.copy()
    numbers[footers] = ItemNumber.BLOCK_FOOTER
    return replace(items, numbers=numbers)


def _is_footer(decoded: DecodedItem) -> bool:
    return not decoded.unknown_fields and len(getattr(decoded.value, "previous_block_root_hash", b"")) == HASH_BYTES


#: So much of an item says of which number it is, and if it has several fields.
_HEAD_BYTES: Final = 32
_ITEM_TAG: Final = 0x0A


class ItemReader:
    """Items of a run whose bytes come in pieces. Sans-IO; it holds at most one unfinished item.

    A run can't be told after a fault: what follows is only counted.
    """

    __slots__ = ("_at", "_held", "_needed", "_passing", "_pieces", "fault", "limit", "most_held")

    def __init__(self, limit: int, most_held: int | None = None) -> None:
        #: The largest item, in bytes with its tag and length; and the largest that is held until it is whole.
        self.limit, self.most_held = limit, limit if most_held is None else most_held
        #: Bytes to come of an item that isn't held.
        self._passing = 0
        self._pieces: list[bytes | memoryview] = []
        self._held = 0
        #: So many bytes must be held before there is anything to read.
        self._needed = 1
        #: Where the pieces begin in the run.
        self._at = 0
        #: Where in the run it can't be read any more, and why.
        self.fault: Fault | None = None

    @property
    def received(self) -> int:
        """How many bytes have come."""
        return self._at + self._held

    def receive(self, data: bytes | memoryview) -> list[Items]:
        """The items that `data` completes, in chunks; their offsets count in their own `data`."""
        if self._passing:
            taken = min(self._passing, len(data))
            self._passing -= taken
            self._at += taken
            data = data[taken:]
            if not len(data):
                return []
        self._held += len(data)
        if self.fault is not None:
            return []
        if self._held < self._needed:
            self._pieces.append(bytes(data))
            return []
        self._pieces.append(data)
        run = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        chunks, at, stopped = [], 0, loops.FULL
        while stopped == loops.FULL:
            found, at, stopped = _walk(run, at)
            if len(found) or found.unknown_fields:
                chunks.append(found)
        self._at += at
        self._held -= at
        self._pieces = [bytes(run[at:])]
        if stopped == loops.BAD:
            self._lose(_reason(run, at))
        elif self._look() and (passed := self.pass_over()) is not None:
            chunks.append(passed)
        return chunks

    def _look(self) -> bool:
        """How much of the unfinished item is needed; whether that is more than may be held, and its head is there."""
        needed = _needed(self._pieces[0], 0)
        if needed > self.limit:
            self._lose(f"an entry of {needed} bytes, the limit is {self.limit}")
            return False
        large = needed > self.most_held
        self._needed = _HEAD_BYTES if large else needed
        return large and self._held >= _HEAD_BYTES

    def pass_over(self) -> Items | None:
        """Hold nothing more of the unfinished item, which is told without what comes; None = too little of it came."""
        head = b"".join(self._pieces)
        if len(head) < _HEAD_BYTES:
            return None
        size, found = _needed(head, 0), None
        try:
            _, body = protobuf.read_varint(head, 0, len(head))
            _, body = protobuf.read_varint(head, body, len(head))
            found = _told_by(head, body, size)
        except Malformed as malformed:
            self._lose(f"an item of {size} bytes: {malformed.reason}")
            return None
        self._at, self._held, self._pieces = self._at + len(head), 0, []
        self._needed, self._passing = 1, size - len(head)
        return found

    def _lose(self, reason: str) -> None:
        self.fault = Fault(self._at, reason)
        self._pieces = []

    @property
    def held(self) -> int:
        """Bytes of the unfinished item."""
        return 0 if self.fault is not None else self._held

    def to_json(self) -> list[Any]:
        """The state: where the unfinished item begins, what there is of it as hex, the fault, what is passed over."""
        return [self._at, b"".join(self._pieces).hex(), self._held, self.fault, self._passing]

    @classmethod
    def from_json(cls, told: list[Any], limit: int, most_held: int | None = None) -> ItemReader:
        """The reader that `to_json` wrote, which goes on as that one."""
        reader = cls(limit, most_held)
        at, held, reader._held, fault, reader._passing = told
        reader._at, reader._pieces = at, [bytes.fromhex(held)]
        reader.fault = None if fault is None else Fault(*fault)
        if reader.fault is None:
            reader._look()
        return reader

    def finish(self) -> Fault | None:
        """The run ends here: an unfinished item is a fault."""
        if self.fault is None and self._held:
            self._lose(_reason(b"".join(self._pieces), 0))
        if self.fault is None and self._passing:
            self._lose(f"{self._passing} bytes of an item are missing")
        return self.fault


def _told_by(head: bytes, body: int, size: int) -> Items:
    """The item that begins with `head` and has `size` bytes, its content from `body` on. Raises Malformed."""
    tag, value = protobuf.read_varint(head, body, len(head))
    number, several = int(ItemNumber.UNSET), False
    if tag & 7 == WireType.LEN:
        length, at = protobuf.read_varint(head, value, len(head))
        number, several = tag >> 3, at + length < size
        if at + length > size:
            raise Malformed(value, f"a field has {length} bytes")
    is_item = head[0] == _ITEM_TAG
    start, begin, end, kind = (np.array([at] * is_item, np.int32) for at in (0, body, len(head), number))
    counts = (int(not is_item), int(several and is_item), size - len(head))
    return Items(head, start, begin, end, kind, *counts)


def _needed(data: bytes | memoryview, at: int) -> int:
    """The size of the unfinished field at `at`, as far as it is told."""
    held = len(data) - at
    try:
        tag, body = protobuf.read_varint(data, at, len(data))
        if tag & 7 == WireType.LEN:
            length, body = protobuf.read_varint(data, body, len(data))
            return body - at + length
    except Malformed:
        pass
    return held + 1


# The items that are decoded


@dataclass(frozen=True, slots=True)
class Version:
    """SemanticVersion."""

    major: int = 0
    minor: int = 0
    patch: int = 0
    pre: str = ""
    build: str = ""

    def __str__(self) -> str:
        pre, build = self.pre and f"-{self.pre}", self.build and f"+{self.build}"
        return f"{self.major}.{self.minor}.{self.patch}{pre}{build}"

    @property
    def numbers(self) -> tuple[int, int, int]:
        """For comparing."""
        return self.major, self.minor, self.patch


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Seconds since 1970 and nanoseconds, both as written: a hostile one is out of any range."""

    seconds: int = 0
    nanos: int = 0

    @property
    def ns(self) -> int:
        """Nanoseconds since 1970."""
        return self.seconds * 1_000_000_000 + self.nanos


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The first item of a block. None: absent, or its layout has no such field."""

    number: int = 0
    hapi_proto_version: Version | None = None
    software_version: Version | None = None
    #: When the block began; in the old layout the first transaction's consensus time.
    timestamp: Timestamp | None = None
    #: The timestamp as its bytes: a leaf of the newer block roots.
    raw_timestamp: bytes = b""
    hash_algorithm: int = 0
    #: Old layout.
    previous_block_hash: bytes | None = None
    address_book_version: Version | None = None
    #: The layout up to HAPI 0.59.
    old: bool = False


@dataclass(frozen=True, slots=True)
class BlockFooter:
    """Roots that a block builds on (since about HAPI 0.68)."""

    previous_block_root_hash: bytes = b""
    root_hash_of_all_block_hashes_tree: bytes = b""
    start_of_block_state_root_hash: bytes = b""


class ProofKind(StrEnum):
    """How a block is proved."""

    #: The layout up to HAPI 0.62: a signature and hashes beside it.
    SIGNATURE = "block_signature"
    SIGNED = "signed_block_proof"
    STATE = "block_state_proof"
    RECORD_FILE = "signed_record_file_proof"


@dataclass(frozen=True, slots=True)
class SiblingHash:
    """A hash beside the path to a root."""

    is_left: bool = False
    hash: bytes = b""


@dataclass(frozen=True, slots=True)
class ProofPath:
    """A path of a state proof; what stands at its lower end is one of four or none."""

    siblings: tuple[SiblingHash, ...] = ()
    next_path_index: int = 0
    hash: bytes | None = None
    state_item_leaf: bytes | None = None
    block_item_leaf: bytes | None = None
    timestamp_leaf: bytes | None = None


@dataclass(frozen=True, slots=True)
class RecordSignature:
    """A node's signature of a record file."""

    signatures_bytes: bytes = b""
    node_id: int = 0


@dataclass(frozen=True, slots=True)
class BlockProof:
    """The proof of a block. Fields that its kind doesn't have are at their default."""

    block: int = 0
    #: None: none of the known kinds.
    kind: ProofKind | None = None
    #: Of a signature, a signed block proof, or the signed proof within a state proof.
    block_signature: bytes = b""
    previous_block_root_hash: bytes | None = None
    start_of_block_state_root_hash: bytes | None = None
    sibling_hashes: tuple[SiblingHash, ...] = ()
    scheme_id: int | None = None
    verification_key: bytes | None = None
    paths: tuple[ProofPath, ...] = ()
    record_version: int | None = None
    record_signatures: tuple[RecordSignature, ...] = ()


_VERSION: Final = Layout(
    Version,
    (
        Field(1, "major", Form.I32),
        Field(2, "minor", Form.I32),
        Field(3, "patch", Form.I32),
        Field(4, "pre", Form.TEXT),
        Field(5, "build", Form.TEXT),
    ),
)
_TIMESTAMP: Final = Layout(Timestamp, (Field(1, "seconds", Form.I64), Field(2, "nanos", Form.I32)))
_HEADER_START: Final = (
    Field(1, "hapi_proto_version", Form.MESSAGE, _VERSION),
    Field(2, "software_version", Form.MESSAGE, _VERSION),
    Field(3, "number", Form.U64),
)
_OLD_HEADER: Final = Layout(
    partial(BlockHeader, old=True),
    (
        *_HEADER_START,
        Field(4, "previous_block_hash", Form.BYTES),
        Field(5, "timestamp", Form.MESSAGE, _TIMESTAMP),
        Field(6, "hash_algorithm", Form.I32),
        Field(7, "address_book_version", Form.MESSAGE, _VERSION),
    ),
)
#: The timestamp is read from its bytes afterwards.
_NEW_HEADER: Final = Layout(
    BlockHeader,
    (*_HEADER_START, Field(4, "raw_timestamp", Form.MESSAGE), Field(5, "hash_algorithm", Form.I32)),
)
_FOOTER: Final = Layout(
    BlockFooter,
    (
        Field(1, "previous_block_root_hash", Form.BYTES),
        Field(2, "root_hash_of_all_block_hashes_tree", Form.BYTES),
        Field(3, "start_of_block_state_root_hash", Form.BYTES),
    ),
)
_SIBLING: Final = Layout(SiblingHash, (Field(1, "is_left", Form.BOOL), Field(2, "hash", Form.BYTES)))
_OLD_PROOF: Final = Layout(
    partial(BlockProof, kind=ProofKind.SIGNATURE),
    (
        Field(1, "block", Form.U64),
        Field(2, "previous_block_root_hash", Form.BYTES),
        Field(3, "start_of_block_state_root_hash", Form.BYTES),
        Field(4, "block_signature", Form.BYTES),
        Field(5, "sibling_hashes", Form.MESSAGE, _SIBLING, repeated=True),
        Field(6, "scheme_id", Form.U64),
        Field(7, "verification_key", Form.BYTES),
    ),
)


class _Signed(NamedTuple):
    block_signature: bytes = b""


class _State(NamedTuple):
    paths: tuple[ProofPath, ...] = ()
    signed_block_proof: _Signed = _Signed()


class _RecordFile(NamedTuple):
    record_version: int = 0
    record_signatures: tuple[RecordSignature, ...] = ()


_SIGNED: Final = Layout(_Signed, (Field(1, "block_signature", Form.BYTES),))
_LEAVES: Final = ("hash", "state_item_leaf", "block_item_leaf", "timestamp_leaf")
_PATH: Final = Layout(
    ProofPath,
    (
        Field(1, "siblings", Form.MESSAGE, _SIBLING, repeated=True),
        Field(2, "next_path_index", Form.U32),
        *(Field(number, name, Form.BYTES, present=True) for number, name in enumerate(_LEAVES, 3)),
    ),
    frozenset(_LEAVES),
)
_STATE: Final = Layout(
    _State,
    (
        Field(1, "paths", Form.MESSAGE, _PATH, repeated=True),
        Field(2, "signed_block_proof", Form.MESSAGE, _SIGNED),
    ),
)
_RECORD_SIGNATURE: Final = Layout(
    RecordSignature, (Field(1, "signatures_bytes", Form.BYTES), Field(2, "node_id", Form.I64))
)
_RECORD_FILE: Final = Layout(
    _RecordFile,
    (
        Field(1, "record_version", Form.U32),
        Field(2, "record_signatures", Form.MESSAGE, _RECORD_SIGNATURE, repeated=True),
    ),
)
_PROOFS: Mapping[ProofKind, Layout] = MappingProxyType(
    {ProofKind.SIGNED: _SIGNED, ProofKind.STATE: _STATE, ProofKind.RECORD_FILE: _RECORD_FILE}
)


class _NewProof(NamedTuple):
    """A proof of the newer layout: its kind is the member that is set."""

    block: int = 0
    signed_block_proof: _Signed | None = None
    block_state_proof: _State | None = None
    signed_record_file_proof: _RecordFile | None = None


_NEW_PROOF: Final = Layout(
    _NewProof,
    (
        Field(1, "block", Form.U64),
        *(
            Field(number, kind.value, Form.MESSAGE, layout)
            for number, (kind, layout) in enumerate(_PROOFS.items(), start=2)
        ),
    ),
    frozenset(kind.value for kind in _PROOFS),
)


class DecodedItem(NamedTuple):
    """An item that was decoded, or why it can't be."""

    value: Any = None
    unknown_fields: int = 0
    reason: str = ""


def _decoded(body: bytes, number: int, read: Callable[[bytes], protobuf.Read], before: int = 0) -> DecodedItem:
    """`before`: the number that the item had before."""
    try:
        field = protobuf.read_field(body, 0, len(body))
        if field.number not in (number, before) or field.wire_type != WireType.LEN:
            return DecodedItem(reason=f"the item is of number {field.number}, not {number}")
        return DecodedItem(*read(body[field.value_start : field.end]))
    except Malformed as malformed:
        return DecodedItem(reason=f"{item_name(number)}: {malformed.reason}")


def decode_header(body: bytes) -> DecodedItem:
    """The BlockHeader in a BlockItem."""
    return _decoded(body, ItemNumber.BLOCK_HEADER, _read_header)


def _read_header(data: bytes) -> protobuf.Read:
    if _is_old_header(data):
        return protobuf.read(data, _OLD_HEADER)
    header, unknown = protobuf.read(data, _NEW_HEADER)
    if not header.raw_timestamp:
        return protobuf.Read(header, unknown)
    timestamp, more = protobuf.read(header.raw_timestamp, _TIMESTAMP)
    return protobuf.Read(replace(header, timestamp=timestamp), unknown + more)


def _is_old_header(data: bytes) -> bool:
    """Field 4 is a hash in the old layout and a Timestamp in the new one, which the old schema would read as a hash.

    Without it field 5 tells: a Timestamp in the old, a number in the new; and 6 and 7 are old.
    """
    fields = {field.number: field for field in protobuf.walk(data, 0, len(data))}
    if (fourth := fields.get(4)) is not None:
        return fourth.end - fourth.value_start == HASH_BYTES
    if (fifth := fields.get(5)) is not None:
        return fifth.wire_type == WireType.LEN
    return 6 in fields or 7 in fields


def decode_footer(body: bytes) -> DecodedItem:
    """The BlockFooter in a BlockItem."""
    return _decoded(body, ItemNumber.BLOCK_FOOTER, lambda data: protobuf.read(data, _FOOTER), ItemNumber.STORED_FOOTER)


def decode_proof(body: bytes) -> DecodedItem:
    """The BlockProof in a BlockItem."""
    return _decoded(body, ItemNumber.BLOCK_PROOF, _read_proof)


def short_proof(head: bytes) -> bytes:
    """Of a BlockItem with a proof that begins with `head` its block alone, as a BlockItem. Raises Malformed."""
    _, at = protobuf.read_varint(head, 0, len(head))
    _, at = protobuf.read_varint(head, at, len(head))
    block = protobuf.read_field(head, at, len(head))
    if block.number != 1 or block.wire_type != WireType.VARINT:
        raise Malformed(at, "the proof doesn't begin with its block")
    return protobuf.delimited(ItemNumber.BLOCK_PROOF, head[block.start : block.end])


def _read_proof(data: bytes) -> protobuf.Read:
    if _is_old_proof(data):
        return protobuf.read(data, _OLD_PROOF)
    proof, unknown = protobuf.read(data, _NEW_PROOF)
    if proof.signed_block_proof is not None:
        value = BlockProof(proof.block, ProofKind.SIGNED, proof.signed_block_proof.block_signature)
    elif (state := proof.block_state_proof) is not None:
        signature = state.signed_block_proof.block_signature
        value = BlockProof(proof.block, ProofKind.STATE, signature, paths=state.paths)
    elif (record := proof.signed_record_file_proof) is not None:
        value = BlockProof(proof.block, ProofKind.RECORD_FILE, **record._asdict())
    else:
        value = BlockProof(proof.block)
    return protobuf.Read(value, unknown)


def _is_old_proof(data: bytes) -> bool:
    """Of fields 2, 3 and 4 the old layout has hashes and a signature side by side, the new one a single message."""
    fields = [field for field in protobuf.walk(data, 0, len(data)) if field.wire_type == WireType.LEN]
    members = {field.number for field in fields} & {2, 3, 4}
    return len(members) > 1 or any(
        field.number in (2, 3) and field.end - field.value_start == HASH_BYTES for field in fields
    )


# Encode


def encode_item(number: int, value: bytes) -> bytes:
    """A BlockItem of one field, as an entry of a run."""
    return protobuf.delimited(1, protobuf.delimited(number, value))


def encode_header(header: BlockHeader) -> bytes:
    """A header as an entry of a run."""
    if header.old:
        return encode_item(ItemNumber.BLOCK_HEADER, protobuf.write(header, _OLD_HEADER))
    if header.timestamp is not None and not header.raw_timestamp:
        header = replace(header, raw_timestamp=protobuf.write(header.timestamp, _TIMESTAMP))
    return encode_item(ItemNumber.BLOCK_HEADER, protobuf.write(header, _NEW_HEADER))


def encode_footer(footer: BlockFooter) -> bytes:
    """A footer as an entry of a run."""
    return encode_item(ItemNumber.BLOCK_FOOTER, protobuf.write(footer, _FOOTER))


def encode_proof(proof: BlockProof) -> bytes:
    """A proof as an entry of a run."""
    return encode_item(ItemNumber.BLOCK_PROOF, _written_proof(proof))


def _written_proof(proof: BlockProof) -> bytes:
    signed = _Signed(proof.block_signature)
    match proof.kind:
        case ProofKind.SIGNATURE:
            return protobuf.write(proof, _OLD_PROOF)
        case ProofKind.SIGNED:
            written = _NewProof(proof.block, signed_block_proof=signed)
        case ProofKind.STATE:
            written = _NewProof(proof.block, block_state_proof=_State(proof.paths, signed))
        case ProofKind.RECORD_FILE:
            record = _RecordFile(proof.record_version or 0, proof.record_signatures)
            written = _NewProof(proof.block, signed_record_file_proof=record)
        case None:
            written = _NewProof(proof.block)
    return protobuf.write(written, _NEW_PROOF)


def encode_round_header(round_number: int) -> bytes:
    """A round header as an entry of a run."""
    written = protobuf.varint(1 << 3) + protobuf.varint(round_number) if round_number else b""
    return encode_item(ItemNumber.ROUND_HEADER, written)
