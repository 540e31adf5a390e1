"""The fast path of `messages.decode`: Arrow columns of keys and values to a struct column of decoded messages.

It decodes the types whose value is Avro (00, 01, 02, 05 and 06; specification, "Messages"); `fast.messages` adds the
others. The same tests check both paths, and the reference path words the reasons of broken rules.

In two passes over the bytes, compiled loops (`scan`) judge each row and find its entries, then collect the entries.
numpy and Arrow make the columns from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.cardinal.fast import scan
from wirehouse_codecs.cardinal.fast.scan import Array
from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher
from wirehouse_codecs.cardinal.rules import RULE, RULES
from wirehouse_codecs.cardinal.wire.messages import (
    BLOCK_KEY_BYTES,
    DIGEST_BYTES,
    HASH_BYTES,
    REORG,
    WEIGHT_BYTES,
    Batch,
    Decoded,
    Message,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
    decode,
)

UPDATE_TYPE: pa.StructType = pa.struct(
    [
        ("name", pa.binary()),
        ("value", pa.binary()),
        ("count", pa.int64()),
        ("is_delete", pa.bool_()),
        ("subbatch", pa.binary()),
        # A tracked prefix of the options matches in the name.
        ("tracked", pa.bool_()),
        # The topic that the options declare for the name.
        ("topic", pa.string()),
        # A declared prefix begins the name, or none are declared, or the entry is inline and needs none.
        ("declared", pa.bool_()),
    ]
)
SET_TYPE: pa.StructType = pa.struct([("key", pa.binary()), ("value", pa.binary())])
#: A decoded message. Fields that its type doesn't have are null. If the rule quarantines the message, all but the
#: first two are null.
DECODED_TYPE: pa.StructType = pa.struct(
    [
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("block_hash", pa.binary()),
        # Unsigned 64 bits: the number of a Batch; the ancestor's number, as decoded, of Reorg and ReorgComplete.
        ("number", pa.decimal128(20, 0)),
        # 32 bytes, big-endian.
        ("weight", pa.binary()),
        ("parent", pa.binary()),
        ("updates", pa.list_(UPDATE_TYPE)),
        ("batch_id", pa.binary()),
        ("item_index", pa.int64()),
        ("item_count", pa.int64()),
        ("deletes", pa.list_(pa.binary())),
        ("sets", pa.list_(SET_TYPE)),
        # messages.content_digest; null for Reorg and ReorgComplete.
        ("content_digest", pa.binary()),
    ]
)

_RULE_NAMES = pa.array([rule.name for rule in RULES], pa.string())
#: Bytes of the canonical encoding beside names and values: for a message, and for each entry.
_CANONICAL_HEAD_BYTES = 1 + 8 + WEIGHT_BYTES + HASH_BYTES
_CANONICAL_ENTRY_BYTES = 12


class _Bytes(NamedTuple):
    """A binary column as its buffers."""

    data: Array
    offsets: Array
    valid: Array


class _Entries(NamedTuple):
    """The entries of one kind in all rows, as scan.read_entries fills them, and their order by name."""

    fields: Array
    #: Row i has the entries from bounds[i] to bounds[i + 1].
    bounds: Array
    order: Array
    #: For the first entry of a name, the entry whose value counts; -1 for later ones.
    sources: Array


class _Survey(NamedTuple):
    """The result of the first pass, one element for each row; see scan.survey."""

    kinds: Array
    verdicts: Array
    numbers: Array
    signed: Array
    weights: Array
    starts: Array
    counts: Array

    @property
    def decoded(self) -> Array:
        """Rows with a message, also one with a warning."""
        return np.isin(self.verdicts, (scan.MESSAGE, scan.TRAILING, scan.AMBIGUOUS))

    def of(self, *kinds: int) -> Array:
        """Rows with a message of one of `kinds`."""
        return self.decoded & np.isin(self.kinds, kinds)


def decode_columns(keys: pa.Array, values: pa.Array, options: CardinalOptions) -> pa.StructArray:
    """Messages as DECODED_TYPE. A row is null if its key is null or empty, or of a type that isn't decoded here.

    `keys` and `values` are binary arrays of equal length. The reference path words the `reason` of a broken rule.
    """
    key, value = _buffers(keys), _buffers(values)
    survey = _survey(key, value)
    deletes = _collect(value, survey.starts[:, 0], survey.counts[:, 0], scan.NAMES)
    sets = _collect(value, survey.starts[:, 1], survey.counts[:, 1], scan.VALUES)
    updates = _collect(value, survey.starts[:, 1], survey.counts[:, 2], scan.UPDATES)
    kinds = np.zeros(len(updates.fields), np.uint8)
    scan.judge_updates(value.data, updates.fields, updates.bounds, updates.sources, survey.verdicts, kinds)
    parents = np.where(survey.of(scan.BATCH), survey.starts[:, 0], 0)
    columns = {
        "rule": _rules(survey.verdicts),
        "reason": _reasons(survey.verdicts, keys, values),
        "block_hash": _slices(key.data, key.offsets[:-1] + np.int32(1), HASH_BYTES, survey.decoded),
        "number": _numbers(survey),
        "weight": _weights(value.data, survey),
        "parent": _slices(value.data, parents, HASH_BYTES, survey.of(scan.BATCH)),
        "updates": _updates(value.data, updates, kinds, survey.of(scan.BATCH), options),
        "batch_id": _slices(
            key.data,
            key.offsets[:-1] + np.int32(BLOCK_KEY_BYTES),
            HASH_BYTES,
            survey.of(scan.SUBBATCH_HEADER, scan.SUBBATCH_MSG),
        ),
        "item_index": pa.array(survey.signed, mask=~survey.of(scan.SUBBATCH_MSG)),
        "item_count": pa.array(survey.signed, mask=~survey.of(scan.SUBBATCH_HEADER)),
        "deletes": _deletes(value.data, deletes, survey.of(scan.SUBBATCH_MSG)),
        "sets": _sets(value.data, sets, survey.of(scan.SUBBATCH_MSG)),
        "content_digest": _digests(value, survey, deletes, sets, updates, kinds, parents),
    }
    missing = pa.array(survey.verdicts == scan.NOTHING)
    return pa.StructArray.from_arrays([columns[f.name] for f in DECODED_TYPE], fields=list(DECODED_TYPE), mask=missing)


def message_of(kind: int, row: Mapping[str, Any]) -> Decoded:
    """A row of `decode_columns` as `messages.decode` gives it. `kind` is the first byte of its key."""
    rule = row["rule"] and RULE[row["rule"]]
    reason = row["reason"] or ""
    if rule and rule.quarantines:
        return Decoded(rule=rule, reason=reason)
    return Decoded(_message_of(kind, row), rule=rule, reason=reason)


def _message_of(kind: int, row: Mapping[str, Any]) -> Message:
    block = row["block_hash"]
    if kind == scan.BATCH:
        updates = tuple(
            Update(u["name"], u["value"], u["count"], u["is_delete"], u["subbatch"]) for u in row["updates"]
        )
        return Batch(block, int(row["number"]), int.from_bytes(row["weight"], "big"), row["parent"], updates)
    if kind == scan.SUBBATCH_HEADER:
        return SubBatchHeader(block, row["batch_id"], row["item_count"])
    if kind == scan.SUBBATCH_MSG:
        sets = tuple((s["key"], s["value"]) for s in row["sets"])
        return SubBatchMsg(block, row["batch_id"], row["item_index"], tuple(row["deletes"]), sets)
    return (Reorg if kind == REORG else ReorgComplete)(block, int(row["number"]))


def _buffers(column: pa.Array) -> _Bytes:
    column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    rows = len(column)
    valid = np.asarray(column.is_valid())
    if not rows:
        return _Bytes(_frozen(np.zeros(0, np.uint8)), _frozen(np.zeros(1, np.int32)), valid)
    within = np.frombuffer(offsets, np.int32, rows + 1, offset=4 * column.offset)
    return _Bytes(_frozen(np.frombuffer(data or b"", np.uint8)), _frozen(within), valid)


def _frozen(array: Array) -> Array:
    """Read-only, as Arrow's buffers are: numba compiles a loop for each kind of array."""
    array.setflags(write=False)
    return array


def _survey(key: _Bytes, value: _Bytes) -> _Survey:
    rows = len(key.offsets) - 1
    kinds = np.zeros(rows, np.uint8)
    there = key.valid & (key.offsets[1:] > key.offsets[:-1])
    kinds[there] = key.data[key.offsets[:-1][there]]
    survey = _Survey(
        kinds=kinds,
        verdicts=np.zeros(rows, np.uint8),
        numbers=np.zeros(rows, np.uint64),
        signed=np.zeros(rows, np.int64),
        weights=np.zeros((rows, 2), np.int32),
        starts=np.zeros((rows, 2), np.int32),
        counts=np.zeros((rows, 3), np.int32),
    )
    scan.survey(key.data, key.offsets, key.valid, value.data, value.offsets, *survey[1:])
    return survey


_ENTRY_FIELDS = {scan.NAMES: 2, scan.VALUES: 4, scan.UPDATES: 7}


def _collect(value: _Bytes, starts: Array, counts: Array, holds: int) -> _Entries:
    bounds = _bounds(counts)
    entries = np.zeros((bounds[-1], _ENTRY_FIELDS[holds]), np.int32)
    order, sources = np.zeros(bounds[-1], np.int32), np.zeros(bounds[-1], np.int32)
    scan.collect(value.data, value.offsets, np.ascontiguousarray(starts), bounds, holds, entries)
    scan.sort_names(value.data, entries, bounds, order, np.zeros(bounds[-1], np.int32))
    scan.last_of_name(value.data, entries, bounds, order, sources)
    return _Entries(entries, bounds, order, sources)


def _bounds(counts: Array) -> Array:
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def _rules(verdicts: Array) -> pa.Array:
    broken = verdicts >= scan.RULE_OFFSET
    return _RULE_NAMES.take(pa.array(verdicts.astype(np.int64) - scan.RULE_OFFSET, mask=~broken))


def _reasons(verdicts: Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    broken = np.flatnonzero(verdicts >= scan.RULE_OFFSET)
    reasons: list[str | None] = [None] * len(verdicts)
    for row in broken:
        reasons[row] = decode(keys[int(row)].as_py(), values[int(row)].as_py()).reason
    return pa.array(reasons, pa.string())


def _numbers(survey: _Survey) -> pa.Array:
    wide = np.zeros((len(survey.numbers), 2), np.uint64)
    wide[:, 0] = survey.numbers
    has = survey.of(scan.BATCH, scan.REORG, scan.REORG_COMPLETE)
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(has), [_validity(has), pa.py_buffer(wide)])


def _validity(has: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(has, bitorder="little"))


def _slices(data: Array, starts: Array, lengths: Array | int, has: Array) -> pa.Array:
    """Byte strings of `data`, null where `has` is false."""
    return _binary(*_gathered(data, starts, np.where(has, lengths, 0)), has)


def _gathered(data: Array, starts: Array, lengths: Array) -> tuple[Array, Array]:
    offsets = _bounds(lengths).astype(np.int32)
    out = np.empty(offsets[-1], np.uint8)
    scan.gather(data, np.ascontiguousarray(starts), offsets, out)
    return offsets, out


def _binary(offsets: Array, data: Array, has: Array) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(has), [_validity(has), pa.py_buffer(offsets), pa.py_buffer(data)])


def _weights(data: Array, survey: _Survey) -> pa.Array:
    has = survey.of(scan.BATCH)
    out = np.zeros(np.count_nonzero(has) * WEIGHT_BYTES, np.uint8)
    scan.right_aligned(np.flatnonzero(has), data, survey.weights, WEIGHT_BYTES, out)
    return _binary(_bounds(np.where(has, WEIGHT_BYTES, 0)).astype(np.int32), out, has)


def _list(values: pa.Array, bounds: Array, kept: Array, has: Array) -> pa.Array:
    """Lists of the kept entries, null where `has` is false."""
    offsets = _bounds(kept)[bounds].astype(np.int32)
    return pa.Array.from_buffers(
        pa.list_(values.type), len(has), [_validity(has), pa.py_buffer(offsets)], children=[values]
    )


def _deletes(data: Array, deletes: _Entries, has: Array) -> pa.Array:
    every = np.ones(len(deletes.fields), np.bool_)
    return _list(_slices(data, deletes.fields[:, 0], deletes.fields[:, 1], every), deletes.bounds, every, has)


def _sets(data: Array, sets: _Entries, has: Array) -> pa.Array:
    kept = sets.sources >= 0
    first, last = sets.fields[kept], sets.fields[sets.sources[kept]]
    every = np.ones(len(first), np.bool_)
    names = _slices(data, first[:, 0], first[:, 1], every)
    values = _slices(data, last[:, 2], last[:, 3], every)
    return _list(pa.StructArray.from_arrays([names, values], fields=list(SET_TYPE)), sets.bounds, kept, has)


def _updates(data: Array, updates: _Entries, kinds: Array, has: Array, options: CardinalOptions) -> pa.Array:
    kept = kinds != scan.DROPPED
    kind = kinds[kept]
    first, last = updates.fields[kept], updates.fields[updates.sources[kept]]
    names = _slices(data, first[:, 0], first[:, 1], np.ones(len(first), np.bool_))
    matcher = _matcher(options.canonical())
    verdicts = [matcher.judge(name) for name in names.to_pylist()]
    value, count, delete, subbatch = ((kind & bit) != 0 for bit in (scan.VALUE, scan.COUNT, scan.DELETE, scan.SUBBATCH))
    fields = {
        "name": names,
        "value": _slices(data, last[:, 2], last[:, 3], value),
        "count": pa.array(last[:, 4].astype(np.int64), mask=~count),
        "is_delete": pa.array(delete),
        "subbatch": _slices(data, last[:, 6], HASH_BYTES, subbatch),
        "tracked": pa.array([verdict.tracked for verdict in verdicts], pa.bool_()),
        "topic": pa.array([verdict.topic for verdict in verdicts], pa.string()),
        "declared": pa.array(~(count | subbatch) | np.array([verdict.declared for verdict in verdicts], np.bool_)),
    }
    structs = pa.StructArray.from_arrays([fields[f.name] for f in UPDATE_TYPE], fields=list(UPDATE_TYPE))
    return _list(structs, updates.bounds, kept, has)


@lru_cache(maxsize=8)
def _matcher(options: str) -> NameMatcher:
    return NameMatcher(CardinalOptions.from_canonical(options))


def _digests(
    value: _Bytes,
    survey: _Survey,
    deletes: _Entries,
    sets: _Entries,
    updates: _Entries,
    kinds: Array,
    parents: Array,
) -> pa.Array:
    """messages.content_digest of each Batch, SubBatchHeader and SubBatchMsg."""
    has = survey.of(scan.BATCH, scan.SUBBATCH_HEADER, scan.SUBBATCH_MSG)
    sizes = np.diff(value.offsets).astype(np.int64) + _CANONICAL_HEAD_BYTES
    sizes += _CANONICAL_ENTRY_BYTES * survey.counts.sum(axis=1, dtype=np.int64)
    begins = _bounds(np.where(has, sizes, 0))
    out = np.zeros(begins[-1], np.uint8)
    ends = np.zeros(len(has), np.int64)
    headers, items, batches = (
        np.flatnonzero(survey.of(kind)) for kind in (scan.SUBBATCH_HEADER, scan.SUBBATCH_MSG, scan.BATCH)
    )
    scan.canonical_headers(headers, survey.signed, out, begins, ends)
    scan.canonical_items(
        items,
        value.data,
        deletes.fields,
        deletes.bounds,
        deletes.order,
        sets.fields,
        sets.bounds,
        sets.order,
        sets.sources,
        out,
        begins,
        ends,
    )
    scan.canonical_batches(
        batches,
        value.data,
        survey.numbers,
        survey.weights,
        parents,
        updates.fields,
        updates.bounds,
        updates.order,
        updates.sources,
        kinds,
        out,
        begins,
        ends,
    )
    return _hashed(out, begins[:-1], ends, has)


def _hashed(data: Array, begins: Array, ends: Array, has: Array) -> pa.Array:
    view = memoryview(data.data)
    digests = b"".join(
        blake2b(view[begin:end], digest_size=DIGEST_BYTES).digest()
        for begin, end in zip(begins[has].tolist(), ends[has].tolist(), strict=True)
    )
    offsets = _bounds(np.where(has, DIGEST_BYTES, 0)).astype(np.int32)
    return _binary(offsets, np.frombuffer(digests, np.uint8), has)
