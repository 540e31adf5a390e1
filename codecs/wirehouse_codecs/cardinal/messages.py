"""Cardinal Streams messages: typed values, encode and decode (specification, "Messages").

A message is a partition key and a value. The key is a type byte followed by fixed-width fields; the value of
types 00, 01, 02, 05 and 06 is bare Avro binary, the value of 03 is the application's own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of `Batch.updates`: what a prefix or key of this block holds. Exactly one field is set."""

    name: bytes
    #: An inline value of the key `name`.
    value: bytes | None = None
    #: Number of BatchMsg and BatchDeleteMsg whose key begins with `name`.
    count: int | None = None
    #: Records of this key are deleted.
    delete: bool = False
    #: 32-byte id of the sub-batch that will follow.
    subbatch: bytes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Type 00: a block and what belongs to it (specification, "Batch")."""

    block_hash: bytes
    #: Unsigned 64-bit; a negative Avro long is the number above 2^63-1.
    number: int
    #: Unsigned 256-bit.
    weight: int
    parent: bytes
    updates: tuple[Update, ...] = ()


@dataclass(frozen=True, slots=True)
class SubBatchHeader:
    """Type 01: how many items a sub-batch has."""

    block_hash: bytes
    batch_id: bytes
    item_count: int


@dataclass(frozen=True, slots=True)
class SubBatchMsg:
    """Type 02: one item of a sub-batch."""

    block_hash: bytes
    batch_id: bytes
    index: int
    deletes: tuple[bytes, ...] = ()
    updates: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class BatchMsg:
    """Type 03: a key of the block set to a value."""

    block_hash: bytes
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class BatchDeleteMsg:
    """Type 04: a key of the block deleted. `value` should be empty."""

    block_hash: bytes
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Reorg:
    """Type 05: the common ancestor to revert to. `number` is compared modulo 2^32."""

    block_hash: bytes
    number: int


@dataclass(frozen=True, slots=True)
class ReorgComplete:
    """Type 06: the reorg of this ancestor is told in full."""

    block_hash: bytes
    number: int


Message = Batch | SubBatchHeader | SubBatchMsg | BatchMsg | BatchDeleteMsg | Reorg | ReorgComplete
