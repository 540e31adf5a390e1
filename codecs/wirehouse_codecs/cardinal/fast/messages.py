"""The fast path of `messages.decode` for all types: Arrow columns of keys and values to a column of messages.

Avro values go through `columns`. Of a BatchMsg or BatchDeleteMsg only the key is cut. What remains breaks a rule, and
the reference path words the reason.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.cardinal.fast.columns import DECODED_TYPE, decode_columns
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_codecs.cardinal.wire.messages import (
    BATCH_DELETE_MSG,
    BATCH_MSG,
    BLOCK_KEY_BYTES,
    HASH_BYTES,
    HEARTBEAT_SKIP,
    KINDS,
    PING,
    PING_SKIP,
    decode,
)
from wirehouse_codecs.compiled import arrow

_AVRO_FIELDS: Final = [field for field in DECODED_TYPE if field.name not in ("rule", "reason", "block_hash")]
#: A message of any type. Fields that its type doesn't have are null.
MESSAGE_TYPE: Final[pa.StructType] = pa.struct(
    [
        # The name of its type, see KINDS.
        ("kind", pa.string()),
        ("block_hash", pa.binary()),
        # The application's key and value of a BatchMsg or BatchDeleteMsg.
        ("key", pa.binary()),
        ("value", pa.binary()),
        *_AVRO_FIELDS,
    ]
)

_TYPES: Final = pa.array([bytes([kind]) for kind in KINDS])
_KINDS: Final = pa.array(KINDS.values())
_KEYED: Final = pa.array([bytes([BATCH_MSG]), bytes([BATCH_DELETE_MSG])])
_DELETE: Final = bytes([BATCH_DELETE_MSG])
_QUARANTINING: Final = pa.array([rule.name for rule in RULES if rule.quarantines])


class Messages(NamedTuple):
    """Decoded messages, one row each. A row has a message or a skip, or a rule that quarantines key and value."""

    #: MESSAGE_TYPE.
    message: pa.StructArray
    #: See `messages.Decoded.skip`.
    skip: pa.Array
    #: Name of the first rule of decoding that is broken, and how.
    rule: pa.Array
    reason: pa.Array


def decode_messages(keys: pa.Array, values: pa.Array, options: CardinalOptions) -> Messages:
    """Decode messages; a value of null is an empty one. `keys` and `values` are binary arrays of equal length."""
    values = pc.fill_null(values, b"")
    # Slicing fails on a key that is shorter than where the slice begins: each has its first byte.
    kind = pc.binary_slice(pc.fill_null(keys, b""), 0, 1)
    keyed = pc.is_in(kind, _KEYED)
    avro = pc.and_not(pc.is_in(kind, _TYPES), keyed)
    sound = pc.and_(
        pc.and_(keyed, pc.fill_null(pc.greater_equal(pc.binary_length(keys), BLOCK_KEY_BYTES), False)),
        pc.or_(pc.not_equal(kind, _DELETE), pc.equal(pc.binary_length(values), 0)),
    )
    skip = pc.case_when(pc.make_struct(pc.equal(kind, b""), pc.equal(kind, bytes([PING]))), HEARTBEAT_SKIP, PING_SKIP)
    decoded = decode_columns(pc.if_else(avro, keys, None), values, options)
    regular = pc.or_(pc.or_(sound, avro), pc.is_valid(skip))
    rule, reason = _odd(regular, keys, values, *map(decoded.field, ("rule", "reason")))
    present = pc.and_(pc.is_null(skip), pc.invert(pc.fill_null(pc.is_in(rule, _QUARANTINING), False)))
    fields = {
        "kind": _KINDS.take(pc.index_in(kind, _TYPES)),
        "block_hash": _part(keys, present, 1, HASH_BYTES),
        "key": _part(keys, pc.and_(present, keyed), BLOCK_KEY_BYTES),
        "value": pc.if_else(pc.and_(present, keyed), values, None),
    } | {field.name: decoded.field(field.name) for field in _AVRO_FIELDS}
    message = pa.StructArray.from_arrays(
        [fields[field.name] for field in MESSAGE_TYPE], fields=list(MESSAGE_TYPE), mask=pc.invert(present)
    )
    return Messages(message, skip, rule, reason)


def _odd(regular: pa.Array, keys: pa.Array, values: pa.Array, rule: pa.Array, reason: pa.Array) -> list[pa.Array]:
    """`rule` and `reason` with those of the rows that aren't regular, by the reference path."""
    rows = np.flatnonzero(~np.asarray(regular))
    if not len(rows):
        return [rule, reason]
    found = [decode(keys[row].as_py(), values[row].as_py()) for row in rows.tolist()]
    texts = (pa.array([one.rule and one.rule.name for one in found]), pa.array([one.reason for one in found]))
    odd = pc.invert(regular)
    return [pc.replace_with_mask(was, odd, now.cast(was.type)) for was, now in zip((rule, reason), texts, strict=True)]


def _part(keys: pa.Array, has: pa.Array, begin: int, length: int | None = None) -> pa.Array:
    """The bytes of keys from `begin` on, at most `length`; null where `has` is false."""
    if not len(keys):
        return pa.nulls(0, pa.binary())
    _, offsets, data = keys.cast(pa.binary()).buffers()
    bounds = np.frombuffer(offsets, np.int32)[keys.offset :][: len(keys) + 1]
    there = np.asarray(has)
    sizes = np.diff(bounds) - begin if length is None else np.full(len(keys), length)
    starts = np.where(there, bounds[:-1] + begin, 0)
    return arrow.parts(_bytes(data), starts, np.where(there, sizes, 0), pa.binary(), there)


def _bytes(data: pa.Buffer | None) -> Any:
    return arrow.frozen(np.frombuffer(data or b"", np.uint8))
