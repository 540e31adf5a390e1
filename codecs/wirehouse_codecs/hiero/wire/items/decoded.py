"""Decodes and encodes three kinds of block item: the header, the footer and the proof of a block.

`decode_header`, `decode_footer` and `decode_proof` read the bytes of a BlockItem into a `DecodedItem`. Other items
are only counted and hashed (`kinds`). A `Layout` declares each message once, for reading and for writing.

The layouts changed without a version number in the message. So the bytes decide which layout is read: whether a field
has the length of a hash, or which wire type it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.hiero.wire import protobuf
from wirehouse_codecs.hiero.wire.items.cutting import Items
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber, encode_item, item_name
from wirehouse_codecs.hiero.wire.protobuf import Field, Form, Layout, Malformed, WireType

HASH_BYTES: Final = 48


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
    #: Whether it has the layout up to HAPI 0.59.
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
    #: The signature of a signed block proof, or of the signed proof within a state proof.
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
    """Whether it has the old layout: field 4 is a hash there, and a Timestamp in the new one.

    Without it field 5 decides: a Timestamp in the old, a number in the new; and 6 and 7 are old.
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
    """A BlockItem with only the block of the proof that begins with `head`. Raises Malformed."""
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
    """Whether it has the old layout: fields 2, 3 and 4 are hashes and a signature. The new one has one message."""
    fields = [field for field in protobuf.walk(data, 0, len(data)) if field.wire_type == WireType.LEN]
    members = {field.number for field in fields} & {2, 3, 4}
    return len(members) > 1 or any(
        field.number in (2, 3) and field.end - field.value_start == HASH_BYTES for field in fields
    )


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


# Written


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
