"""Cardinal Streams messages: typed values, encode and decode (specification, "Messages").

A message is a partition key and a value. The key is a type byte followed by fixed-width fields. The value of types 00,
01, 02, 05 and 06 is bare Avro binary; the value of type 03 is the application's own bytes.

`decode` is the reference path, and `fast/columns.py` the fast path: the same tests check both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.wire import avro
from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.core.rules import Rule

BATCH: Final = 0x00
SUBBATCH_HEADER: Final = 0x01
SUBBATCH_MSG: Final = 0x02
BATCH_MSG: Final = 0x03
BATCH_DELETE_MSG: Final = 0x04
REORG: Final = 0x05
REORG_COMPLETE: Final = 0x06
#: Type byte of the key -> the name of its messages in the tables.
KINDS: Final = {
    BATCH: "batch",
    SUBBATCH_HEADER: "sub_batch_header",
    SUBBATCH_MSG: "sub_batch_msg",
    BATCH_MSG: "batch_msg",
    BATCH_DELETE_MSG: "batch_delete_msg",
    REORG: "reorg",
    REORG_COMPLETE: "reorg_complete",
}
#: Not in the specification: a sign of life of the reference's producers.
PING: Final = 0xFF

HASH_BYTES: Final = 32
#: Type byte and block hash.
BLOCK_KEY_BYTES: Final = 1 + HASH_BYTES
#: Type byte, block hash and batch id.
SUBBATCH_KEY_BYTES: Final = BLOCK_KEY_BYTES + HASH_BYTES
WEIGHT_BYTES: Final = 32
DIGEST_BYTES: Final = 16
#: The field `subbatch` of an entry that names none.
NO_SUBBATCH: Final = bytes(HASH_BYTES)

#: Names of the skips of `Decoded.skip`.
PING_SKIP: Final = "ping"
HEARTBEAT_SKIP: Final = "heartbeat"


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of `Batch.updates`: what this block has under a prefix or key.

    Exactly one field is set. An entry that breaks `update_ambiguous` has all fields that the wire sets.
    """

    name: bytes
    #: An inline value of the key `name`.
    value: bytes | None = None
    #: Number of BatchMsg and BatchDeleteMsg whose key begins with `name`.
    count: int | None = None
    #: Whether records of this key are deleted.
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
    """Type 06: all blocks of the reorg from this ancestor have been sent."""

    block_hash: bytes
    number: int


Message = Batch | SubBatchHeader | SubBatchMsg | BatchMsg | BatchDeleteMsg | Reorg | ReorgComplete


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding: a message, a named skip, or neither and the rule that quarantines key and value."""

    message: Message | None = None
    #: "ping" or "heartbeat": traffic of the reference that the specification doesn't have.
    skip: str | None = None
    #: The first rule of decoding that is broken, in the order of the list.
    rule: Rule | None = None
    #: The offending values in a sentence; empty without a rule.
    reason: str = ""


class EncodeError(WirehouseError):
    """A message that can't be encoded. The caller misused the encoder; no capture can cause it."""

    template = "{kind}.{field}: {reason}"


def _record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f, "type": kind} for f, kind in fields.items()]}


def _hash_field(name: str) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": HASH_BYTES}


#: The schemas of the specification. Its "avro.codec" has no effect: the wire has one record in bare binary, and all
#: four fields of an update are always present.
BATCH_SCHEMA: Final = fastavro.parse_schema(
    _record(
        "batch",
        num="long",
        weight="bytes",
        parent=_hash_field("par"),
        updates={
            "type": "map",
            "values": _record("update", value="bytes", count="int", delete="boolean", subbatch=_hash_field("subb")),
        },
    )
)
ITEM_SCHEMA: Final = fastavro.parse_schema(
    _record("item", delete={"type": "array", "items": "string"}, updates={"type": "map", "values": "bytes"})
)


class _Quarantined(Exception):
    """The key and value break a rule that leaves no message."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


def decode(key: bytes | None, value: bytes | None, options: CardinalOptions | None = None) -> Decoded:
    """Decode one message. Of the rules of decoding that it breaks, the first is reported.

    Every codec's `decode` takes `options`; here nothing depends on them.
    """
    del options
    if not key:
        return Decoded(skip=HEARTBEAT_SKIP)
    if key[0] == PING:
        return Decoded(skip=PING_SKIP)
    try:
        if key[0] not in _DECODERS:
            raise _Quarantined("unknown_type", f"type byte {key[0]:02x} of key {_hex(key)}")
        return _DECODERS[key[0]](key, value or b"")
    except _Quarantined as quarantined:
        return Decoded(rule=RULE[quarantined.rule], reason=str(quarantined))


def _decode_batch(key: bytes, value: bytes) -> Decoded:
    _need_key(key, BLOCK_KEY_BYTES)
    record, end = _read_record(value, BATCH_SCHEMA)
    weight = record["weight"].lstrip(b"\0")
    if len(weight) > WEIGHT_BYTES:
        raise _Quarantined("value_out_of_range", f"weight of {len(weight)} bytes: {_hex(weight)}")
    updates = []
    ambiguous = ""
    for text, fields in record["updates"].items():
        name = avro.raw_text(text)
        if fields["count"] < 0:
            raise _Quarantined("value_out_of_range", f"count {fields['count']} of entry {_shown(name)}")
        given = _set_fields(fields)
        # An entry with an empty inline value has no field set, so it looks like no entry at all. The reference drops
        # it, although by the specification the key should be set.
        if given:
            updates.append(Update(name, **{field: fields[field] for field in given}))
        if len(given) > 1 and not ambiguous:
            ambiguous = f"entry {_shown(name)} sets {' and '.join(given.values())}"
    batch = Batch(
        block_hash=key[1:],
        number=record["num"] % (1 << 64),
        weight=int.from_bytes(weight, "big"),
        parent=record["parent"],
        updates=tuple(updates),
    )
    return _with_warning(batch, value, end, "update_ambiguous" if ambiguous else "", ambiguous)


def _set_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """The fields of an entry that aren't at their default, each with a description."""
    given = {}
    if fields["value"]:
        given["value"] = f"value ({len(fields['value'])} bytes)"
    if fields["count"]:
        given["count"] = f"count {fields['count']}"
    if fields["delete"]:
        given["delete"] = "delete"
    if fields["subbatch"] != NO_SUBBATCH:
        given["subbatch"] = f"subbatch {fields['subbatch'].hex()}"
    return given


def _decode_subbatch_header(key: bytes, value: bytes) -> Decoded:
    _need_key(key, SUBBATCH_KEY_BYTES)
    item_count, end = _read_varint(value, avro.INT_BITS)
    if item_count < 0:
        raise _Quarantined("value_out_of_range", f"item count {item_count}")
    return _with_warning(SubBatchHeader(*_block_and_batch(key), item_count), value, end)


def _decode_subbatch_msg(key: bytes, value: bytes) -> Decoded:
    index = _item_index(key)
    record, end = _read_record(value, ITEM_SCHEMA)
    if index < 0:
        raise _Quarantined("item_index_out_of_range", f"index {index}")
    item = SubBatchMsg(
        *_block_and_batch(key),
        index=index,
        deletes=tuple(avro.raw_text(name) for name in record["delete"]),
        updates=tuple((avro.raw_text(name), data) for name, data in record["updates"].items()),
    )
    return _with_warning(item, value, end)


def _item_index(key: bytes) -> int:
    try:
        index, end = avro.read_varint(key, SUBBATCH_KEY_BYTES, avro.LONG_BITS)
    except avro.Malformed as error:
        raise _Quarantined("key_length_wrong", f"key of {len(key)} bytes, {error}: {_hex(key)}") from None
    if end != len(key):
        raise _Quarantined("key_length_wrong", f"key of {len(key)} bytes, its index ends at byte {end}: {_hex(key)}")
    return index


def _decode_batch_msg(key: bytes, value: bytes) -> Decoded:
    _need_block(key)
    return Decoded(BatchMsg(key[1:BLOCK_KEY_BYTES], key[BLOCK_KEY_BYTES:], value))


def _decode_batch_delete_msg(key: bytes, value: bytes) -> Decoded:
    _need_block(key)
    message = BatchDeleteMsg(key[1:BLOCK_KEY_BYTES], key[BLOCK_KEY_BYTES:], value)
    if value:
        return Decoded(message, rule=RULE["delete_with_value"], reason=f"value of {len(value)} bytes: {_hex(value)}")
    return Decoded(message)


def _decode_reorg(key: bytes, value: bytes) -> Decoded:
    _need_key(key, BLOCK_KEY_BYTES)
    number, end = _read_varint(value, avro.LONG_BITS)
    kind = Reorg if key[0] == REORG else ReorgComplete
    return _with_warning(kind(key[1:], number % (1 << 64)), value, end)


_DECODERS: Mapping[int, Callable[[bytes, bytes], Decoded]] = {
    BATCH: _decode_batch,
    SUBBATCH_HEADER: _decode_subbatch_header,
    SUBBATCH_MSG: _decode_subbatch_msg,
    BATCH_MSG: _decode_batch_msg,
    BATCH_DELETE_MSG: _decode_batch_delete_msg,
    REORG: _decode_reorg,
    REORG_COMPLETE: _decode_reorg,
}


def _need_key(key: bytes, length: int) -> None:
    if len(key) != length:
        raise _Quarantined("key_length_wrong", f"key of {len(key)} bytes, not {length}: {_hex(key)}")


def _need_block(key: bytes) -> None:
    if len(key) < BLOCK_KEY_BYTES:
        raise _Quarantined("key_length_wrong", f"key of {len(key)} bytes, under {BLOCK_KEY_BYTES}: {_hex(key)}")


def _block_and_batch(key: bytes) -> tuple[bytes, bytes]:
    return key[1:BLOCK_KEY_BYTES], key[BLOCK_KEY_BYTES:SUBBATCH_KEY_BYTES]


def _read_record(value: bytes, schema: avro.Schema) -> tuple[dict[str, Any], int]:
    try:
        return avro.read_record(value, schema)
    except avro.Malformed as error:
        raise _Quarantined("value_undecodable", f"value of {len(value)} bytes, {error}") from None


def _read_varint(value: bytes, bits: int) -> tuple[int, int]:
    try:
        return avro.read_varint(value, 0, bits)
    except avro.Malformed as error:
        raise _Quarantined("value_undecodable", f"value of {len(value)} bytes, {error}: {_hex(value)}") from None


def _with_warning(message: Message, value: bytes, end: int, rule: str = "", reason: str = "") -> Decoded:
    """`message`, with rule `trailing_bytes` if bytes are left after `end`, else with `rule`."""
    if end < len(value):
        left = f"{len(value) - end} bytes after the value: {_hex(value[end:])}"
        return Decoded(message, rule=RULE["trailing_bytes"], reason=left)
    return Decoded(message, rule=RULE[rule], reason=reason) if rule else Decoded(message)


def _hex(data: bytes, limit: int = 80) -> str:
    return data.hex() if len(data) <= limit else f"{data[:limit].hex()}… ({len(data)} bytes)"


def _shown(name: bytes, limit: int = 120) -> str:
    return ascii(name)[1:] if len(name) <= limit else f"{ascii(name[:limit])[1:]}… ({len(name)} bytes)"


def encode(message: Message) -> tuple[bytes, bytes]:
    """Key and value of `message`, in the form that the reference's producer writes. Raises EncodeError."""
    kind, encoder = _ENCODERS[type(message)]
    tail, value = encoder(message)
    return bytes([kind]) + _fixed(message, "block_hash") + tail, value


def _encode_batch(batch: Batch) -> tuple[bytes, bytes]:
    weight = _unsigned(batch, "weight", 256)
    return b"", b"".join(
        (
            _unsigned_varint(batch, "number"),
            avro.byte_string(weight.to_bytes((weight.bit_length() + 7) // 8, "big")),
            _fixed(batch, "parent"),
            avro.blocks(avro.byte_string(update.name) + _encode_update(update) for update in batch.updates),
        )
    )


def _encode_update(update: Update) -> bytes:
    given = [update.value is not None, update.count is not None, update.delete, update.subbatch is not None]
    if sum(given) != 1:
        raise EncodeError(kind="Update", field=_shown(update.name), reason="not exactly one of its fields is set")
    subbatch = NO_SUBBATCH if update.subbatch is None else _fixed(update, "subbatch")
    return update_record(update.value or b"", update.count or 0, update.delete, subbatch)


def update_record(value: bytes, count: int, delete: bool, subbatch: bytes) -> bytes:
    """The record of an entry of Batch.updates; several fields set break `update_ambiguous`."""
    return avro.byte_string(value) + avro.varint(count) + bytes([delete]) + subbatch


def _encode_subbatch_header(header: SubBatchHeader) -> tuple[bytes, bytes]:
    return _fixed(header, "batch_id"), avro.varint(_signed(header, "item_count", avro.INT_BITS))


def _encode_subbatch_msg(item: SubBatchMsg) -> tuple[bytes, bytes]:
    tail = _fixed(item, "batch_id") + avro.varint(_signed(item, "index", avro.LONG_BITS))
    deletes = avro.blocks(map(avro.byte_string, item.deletes))
    return tail, deletes + avro.blocks(avro.byte_string(k) + avro.byte_string(v) for k, v in item.updates)


def _encode_keyed(message: BatchMsg | BatchDeleteMsg) -> tuple[bytes, bytes]:
    return message.key, message.value


def _encode_reorg(message: Reorg | ReorgComplete) -> tuple[bytes, bytes]:
    return b"", _unsigned_varint(message, "number")


_ENCODERS: Mapping[type, tuple[int, Callable[[Any], tuple[bytes, bytes]]]] = {
    Batch: (BATCH, _encode_batch),
    SubBatchHeader: (SUBBATCH_HEADER, _encode_subbatch_header),
    SubBatchMsg: (SUBBATCH_MSG, _encode_subbatch_msg),
    BatchMsg: (BATCH_MSG, _encode_keyed),
    BatchDeleteMsg: (BATCH_DELETE_MSG, _encode_keyed),
    Reorg: (REORG, _encode_reorg),
    ReorgComplete: (REORG_COMPLETE, _encode_reorg),
}


def _fixed(message: object, field: str) -> bytes:
    data: bytes = getattr(message, field)
    if len(data) != HASH_BYTES:
        raise EncodeError(kind=type(message).__name__, field=field, reason=f"has {len(data)} bytes, not {HASH_BYTES}")
    return data


def _signed(message: object, field: str, bits: int) -> int:
    return _within(message, field, -1 << (bits - 1), 1 << (bits - 1))


def _unsigned(message: object, field: str, bits: int) -> int:
    return _within(message, field, 0, 1 << bits)


def _within(message: object, field: str, least: int, end: int) -> int:
    number: int = getattr(message, field)
    if not least <= number < end:
        raise EncodeError(
            kind=type(message).__name__, field=field, reason=f"is {number}, not from {least} to {end - 1}"
        )
    return number


def _unsigned_varint(message: object, field: str) -> bytes:
    """An unsigned 64-bit field as the Avro long of the same bits."""
    number = _unsigned(message, field, 64)
    return avro.varint(number - (1 << 64) if number >> 63 else number)


def content_digest(message: Batch | SubBatchHeader | SubBatchMsg) -> bytes:
    """16 bytes that are equal for equal content in any order, because redundant producers write different orders.

    The content is what `batch_conflict` and `subbatch_conflict` compare: number, weight, parent and map of entries of a
    Batch; set of deletes and map of updates of an item; count of a header.
    """
    return hashlib.blake2b(_canonical(message), digest_size=DIGEST_BYTES).digest()


def _canonical(message: Batch | SubBatchHeader | SubBatchMsg) -> bytes:
    """Type byte and fixed fields, then the sorted entries; every length and count in four bytes, big-endian."""
    if isinstance(message, SubBatchHeader):
        return bytes([SUBBATCH_HEADER]) + _four(message.item_count)
    if isinstance(message, SubBatchMsg):
        deletes = sorted(set(message.deletes))
        updates = sorted(dict(message.updates).items())
        return b"".join(
            (
                bytes([SUBBATCH_MSG]),
                _four(len(deletes)),
                *map(_sized, deletes),
                *(_sized(name) + _sized(data) for name, data in updates),
            )
        )
    head = bytes([BATCH]) + message.number.to_bytes(8, "big") + message.weight.to_bytes(WEIGHT_BYTES, "big")
    entries = sorted({update.name: update for update in message.updates}.items())
    return head + message.parent + b"".join(_sized(name) + _canonical_entry(update) for name, update in entries)


def _canonical_entry(update: Update) -> bytes:
    return b"".join(
        (
            b"" if update.value is None else b"v" + _sized(update.value),
            b"" if update.count is None else b"c" + _four(update.count),
            b"d" if update.delete else b"",
            b"" if update.subbatch is None else b"s" + update.subbatch,
        )
    )


def _four(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _sized(data: bytes) -> bytes:
    return _four(len(data)) + data
