"""The fast path of `session.assembly`: whole blocks from columns of their messages, many at once.

It decides **regular** blocks, and recognises all others, which the reference path assembles. A block is regular if it
is complete, breaks no rule, and the order of its messages doesn't matter:

- It has a Batch, and its further Batches repeat the first one. Each entry has at most one field.
- Exactly one counted prefix counts each BatchMsg and BatchDeleteMsg. The Batch names the sub-batch of each header and
  item. No entry gets more than it announces, and tracked entries get all.
- Each key is set or deleted in one way: by messages that repeat each other, by one item, or in the Batch.

All about such a block follows from which message came first of those that repeat each other: its content, and the
message that completes it, which is the last of those that tracked entries count.

A compiled loop goes through the messages of a block once. It remembers names, ids, items and keys in a hash table. The
hash of a key is computed byte by byte, so all prefixes that end in a slash are looked up on the way.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.compiled.arrow import Array, parts
from wirehouse_codecs.compiled.jit import compiled, inlined

#: Kinds of messages, by their position in this list.
_KINDS: Final = ("batch", "sub_batch_header", "sub_batch_msg", "batch_msg", "batch_delete_msg")
_BATCH, _HEADER, _ITEM, _SET, _DELETE = range(5)
#: Further ways to set or delete a key.
_ITEM_SET, _ITEM_DELETE, _INLINE_SET, _INLINE_DELETE = range(5, 9)
#: Fields of an entry, one bit each.
_VALUE, _COUNT, _IS_DELETE, _SUBBATCH = (1 << bit for bit in range(4))
#: What a slot of the hash table has.
_NAMES, _IDS, _KEYS, _ITEMS = range(4)
#: Approximate size in bytes of a batch of updates. Batches keep a large block's updates from being in memory twice.
UPDATES_BYTES: Final = 64 << 20
#: Counted names that don't end in a slash are shorter; a block with a longer one isn't regular.
_MOST_LENGTH: Final = 1024
_SLASH: Final = ord("/")
_PRIME: Any = np.uint64(0x100000001B3)
_SHIFT: Any = np.uint64(32)
_SPREAD: Any = np.uint64(0x9E3779B97F4A7C15)
_UINT64: Any = np.uint64
#: Where hashes begin: another number in each process, so that nobody can prepare keys whose hashes are equal.
_BASIS: Any = np.uint64(secrets.randbits(64))


def _record(*names: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in names])


#: In records, `value` of a BatchMsg is in the array `values`; all other bytes are in `data`.
_ROW: Final = _record(
    *("kind", "key", "key_end", "value", "value_end", "batch_id", "batch_id_end", "digest", "digest_end"),
    *("index", "count", "entries", "entries_end", "deletes", "deletes_end", "sets", "sets_end"),
)
#: `wanted` is the number of messages or items, -1 before the header; `received` how many came.
_ENTRY: Final = _record(
    *("name", "name_end", "value", "value_end", "subbatch", "subbatch_end", "given", "count", "tracked"),
    *("wanted", "received", "highest"),
)
_NAME: Final = _record("start", "end")
_PAIR: Final = _record("key", "key_end", "value", "value_end")
_SLOT: Final = _record("block", "what", "start", "end", "hash", "found")
_UPDATE: Final = _record("key", "key_end", "value", "value_end", "way", "row", "tracked", "block")
_BLOCK: Final = _record("regular", "batch", "completed", "duplicates")

#: The messages that a tracked prefix counts, or the items of a tracked sub-batch.
COUNT_TYPE: pa.StructType = pa.struct([("name", pa.binary()), ("messages", pa.int64())])


class Assembled(NamedTuple):
    """Blocks, in order. All but the first column is only right where a block is regular."""

    regular: Array
    #: The rows of the first Batch, and of the message that completes the block.
    batch: Array
    completed: Array
    duplicates: Array
    #: The expected and received counts of tracked entries, by name.
    counts: pa.ListArray
    #: The keys that the regular blocks set and delete: block, row of the message, key, value (null: it is deleted).
    #: They are built when they are asked for.
    updates: Iterable[pa.RecordBatch]


def assemble_columns(messages: pa.RecordBatch, bounds: Array) -> Assembled:
    """Assemble blocks. Block i has the rows from bounds[i] to bounds[i + 1] of `messages`, in the order of arrival.

    `messages` has the fields of DECODED_TYPE and of keyed messages as columns, and `kind`, the name of the message.
    Binary columns may be large ones, so that a block may have more bytes than 32-bit offsets reach.
    """
    strings, keyed = _Strings(), _Strings()
    columns = {name: strings.add(messages.column(name)) for name in ("key", "batch_id", "content_digest")}
    # The largest column by far is read where it is.
    columns["value"] = keyed.add(messages.column("value"))
    entries, entry_bounds = _entries(messages.column("updates"), strings)
    deletes, delete_bounds = _names(messages.column("deletes"), strings)
    sets, set_bounds = _pairs(messages.column("sets"), strings)
    rows = np.zeros(messages.num_rows, _ROW)
    rows["kind"] = np.asarray(pc.fill_null(pc.index_in(messages.column("kind"), pa.array(_KINDS)), -1))
    _fill(rows, "key", columns["key"])
    _fill(rows, "value", columns["value"])
    _fill(rows, "batch_id", columns["batch_id"])
    _fill(rows, "digest", columns["content_digest"])
    rows["index"], rows["count"] = (_numbers(messages.column(name)) for name in ("item_index", "item_count"))
    for name, of_rows in (("entries", entry_bounds), ("deletes", delete_bounds), ("sets", set_bounds)):
        rows[name], rows[f"{name}_end"] = of_rows[:-1], of_rows[1:]
    bounds = np.ascontiguousarray(bounds, np.int64)
    blocks = np.zeros(len(bounds) - 1, _BLOCK)
    updates = np.zeros(len(rows) + len(entries) + len(deletes) + len(sets), _UPDATE)
    data, values = strings.data(), keyed.data()
    count = _assemble(
        data,
        values,
        bounds,
        rows,
        entries,
        deletes,
        sets,
        _slots(bounds, entry_bounds, delete_bounds, set_bounds),
        np.zeros(_MOST_LENGTH, np.int64),
        _BASIS,
        blocks,
        updates,
    )
    updates = updates[:count]
    updates = updates[updates["tracked"] != 0]
    regular = blocks["regular"] != 0
    return Assembled(
        regular,
        blocks["batch"],
        blocks["completed"],
        blocks["duplicates"],
        _counts(data, entries, rows, np.where(regular, blocks["batch"], -1)),
        _updates(data, values, updates),
    )


class _Strings:
    """Binary columns one behind another, so that the loops see one array of bytes. A single one isn't copied."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._size = 0

    def add(self, column: pa.Array) -> Array:
        """The positions in `data` at which the values of `column` begin and end, as two rows."""
        _, offsets, data = column.buffers()
        if not len(column):
            return np.zeros((2, 0), np.int64)
        kind = np.dtype(np.int64 if pa.types.is_large_binary(column.type) else np.int32)
        ends = np.frombuffer(offsets, kind, len(column) + 1, offset=kind.itemsize * column.offset).astype(np.int64)
        self._parts.append(np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]])
        spans: Array = np.stack([ends[:-1], ends[1:]]) + (self._size - ends[0])
        self._size += ends[-1] - ends[0]
        return spans

    def data(self) -> Array:
        """The bytes of all columns."""
        data = self._parts[0] if len(self._parts) == 1 else np.concatenate([np.zeros(0, np.uint8), *self._parts])
        # The compiled loops take read-only arrays.
        data.setflags(write=False)
        return data


def _fill(records: Array, name: str, spans: Array) -> None:
    records[name], records[f"{name}_end"] = spans


def _numbers(column: pa.Array) -> Array:
    found: Array = np.asarray(pc.fill_null(column, 0))
    return found


def _values(column: pa.ListArray) -> tuple[pa.Array, Array]:
    """The values of all lists, and where those of each row begin and end."""
    bounds = np.asarray(column.offsets).astype(np.int64) if len(column) else np.zeros(1, np.int64)
    return column.values.slice(bounds[0], bounds[-1] - bounds[0]), bounds - bounds[0]


def _entries(column: pa.ListArray, strings: _Strings) -> tuple[Array, Array]:
    values, bounds = _values(column)
    entries = np.zeros(len(values), _ENTRY)
    for name in ("name", "value", "subbatch"):
        _fill(entries, name, strings.add(values.field(name)))
    counts, tracked, is_delete = (values.field(name) for name in ("count", "tracked", "is_delete"))
    entries["count"], entries["tracked"] = _numbers(counts), np.asarray(pc.fill_null(tracked, False))
    for bit, given in (
        (_VALUE, values.field("value").is_valid()),
        (_COUNT, counts.is_valid()),
        (_IS_DELETE, pc.fill_null(is_delete, False)),
        (_SUBBATCH, values.field("subbatch").is_valid()),
    ):
        entries["given"] |= np.where(np.asarray(given), bit, 0)
    entries["wanted"] = entries["highest"] = -1
    return entries, bounds


def _names(column: pa.ListArray, strings: _Strings) -> tuple[Array, Array]:
    values, bounds = _values(column)
    names = np.zeros(len(values), _NAME)
    names["start"], names["end"] = strings.add(values)
    return names, bounds


def _pairs(column: pa.ListArray, strings: _Strings) -> tuple[Array, Array]:
    values, bounds = _values(column)
    pairs = np.zeros(len(values), _PAIR)
    for name in ("key", "value"):
        _fill(pairs, name, strings.add(values.field(name)))
    return pairs, bounds


def _slots(bounds: Array, *lists: Array) -> Array:
    """An empty hash table for all that the largest block has; at least half of it stays empty."""
    sizes = np.diff(bounds) + sum(np.diff(of_rows[bounds]) for of_rows in lists)
    return np.zeros(1 << int(2 * max(sizes, default=0)).bit_length(), _SLOT)


def _counts(data: Array, entries: Array, rows: Array, batches: Array) -> pa.ListArray:
    """The expected counts of each regular block's tracked entries, by name. `batches` are -1 for other blocks."""
    found, sizes = [], np.zeros(len(batches) + 1, np.int64)
    for block, batch in enumerate(batches.tolist()):
        if batch < 0:
            continue
        mine = entries[rows["entries"][batch] : rows["entries_end"][batch]]
        mine = mine[(mine["tracked"] != 0) & (mine["wanted"] >= 0)]
        found += sorted((data[one["name"] : one["name_end"]].tobytes(), int(one["wanted"])) for one in mine)
        sizes[block + 1] = len(mine)
    values = pa.array([dict(zip(("name", "messages"), one, strict=True)) for one in found], COUNT_TYPE)
    return pa.ListArray.from_arrays(pa.array(np.cumsum(sizes), pa.int32()), values)


def _updates(data: Array, values: Array, updates: Array) -> Iterator[pa.RecordBatch]:
    ends = np.cumsum(sum(updates[f"{name}_end"] - updates[name] for name in ("key", "value")))
    begin = 0
    while begin < len(updates):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + UPDATES_BYTES, "right")))
        yield _batch_of_updates(data, values, updates[begin:end])
        begin = end


def _batch_of_updates(data: Array, values: Array, updates: Array) -> pa.RecordBatch:
    def strings(name: str, of: Array, has: Array) -> pa.Array:
        starts = np.ascontiguousarray(updates[name])
        return parts(of, starts, np.where(has, updates[f"{name}_end"] - starts, 0), pa.binary(), has)

    way = updates["way"]
    elsewhere = strings("value", data, (way == _ITEM_SET) | (way == _INLINE_SET))
    columns = {
        "block": pa.array(updates["block"]),
        "row": pa.array(updates["row"]),
        "key": strings("key", data, np.ones(len(updates), bool)),
        "value": pc.coalesce(strings("value", values, way == _SET), elsewhere),
    }
    return pa.RecordBatch.from_pydict(columns)


# Compiled loops


@compiled
def _assemble(
    data: Array,
    values: Array,
    bounds: Array,
    rows: Array,
    entries: Array,
    deletes: Array,
    sets: Array,
    slots: Array,
    lengths: Array,
    basis: Any,
    blocks: Array,
    updates: Array,
) -> int:
    """Fill `blocks` and `updates`; the number of updates."""
    count = 0
    for block in range(len(blocks)):
        after = _assemble_one(
            data, values, block, bounds[block], bounds[block + 1], rows, entries, deletes, sets, slots, lengths,
            basis, blocks, updates, count,
        )  # fmt: skip
        if after >= 0:
            count = after
            blocks[block].regular = 1
    return count


@compiled
def _assemble_one(  # noqa: C901
    data: Array,
    values: Array,
    block: int,
    begin: int,
    end: int,
    rows: Array,
    entries: Array,
    deletes: Array,
    sets: Array,
    slots: Array,
    lengths: Array,
    basis: Any,
    blocks: Array,
    updates: Array,
    count: int,
) -> int:
    """The number of updates with those of a block; -1 if the block isn't regular."""
    batch, duplicates = -1, 0
    for at in range(begin, end):
        if rows[at].kind == _BATCH:
            if batch < 0:
                batch = at
            elif not _is_same_content(data, rows, batch, at):
                return -1
            else:
                duplicates += 1
    if batch < 0:
        return -1
    mark = block + 1
    for at in range(rows[batch].entries, rows[batch].entries_end):
        entry = entries[at]
        if entry.given == _COUNT:
            size = entry.name_end - entry.name
            if size == 0 or not _add_name(data, slots, mark, _NAMES, entry.name, entry.name_end, basis, at):
                return -1
            entries[at].wanted = entry.count
            if data[entry.name_end - 1] != _SLASH:
                if size >= len(lengths):
                    return -1
                lengths[size] = mark
        elif entry.given == _SUBBATCH:
            if not _add_name(data, slots, mark, _IDS, entry.subbatch, entry.subbatch_end, basis, at):
                return -1
        elif entry.given == _VALUE or entry.given == _IS_DELETE:
            way = _INLINE_SET if entry.given == _VALUE else _INLINE_DELETE
            if not _add_name(data, slots, mark, _KEYS, entry.name, entry.name_end, basis, count):
                return -1
            _write(updates, count, entry.name, entry.name_end, entry.value, entry.value_end, way, batch)
            updates[count].tracked, updates[count].block = entry.tracked, block
            count += 1
        elif entry.given != 0:
            return -1
    completed = batch
    for at in range(begin, end):
        row = rows[at]
        if row.kind == _SET or row.kind == _DELETE:
            owner, hashed = _owner(data, slots, mark, row.key, row.key_end, lengths, basis)
            if owner < 0:
                return -1
            slot = _find(data, slots, mark, _KEYS, row.key, row.key_end, hashed)
            if slots[slot].block == mark:
                known = updates[slots[slot].found]
                if known.way != row.kind:
                    return -1
                if row.kind == _SET and not _equal(values, known.value, known.value_end, row.value, row.value_end):
                    return -1
                duplicates += 1
                continue
            _put(slots, slot, mark, _KEYS, row.key, row.key_end, hashed, count)
            _write(updates, count, row.key, row.key_end, row.value, row.value_end, row.kind, at)
            updates[count].tracked, updates[count].block = entries[owner].tracked, block
            count += 1
        elif row.kind == _HEADER or row.kind == _ITEM:
            hashed = _hash(data, row.batch_id, row.batch_id_end, basis)
            slot = _find(data, slots, mark, _IDS, row.batch_id, row.batch_id_end, hashed)
            if slots[slot].block != mark:
                return -1
            owner = slots[slot].found
            if row.kind == _HEADER:
                if entries[owner].wanted >= 0 or row.count < 0:
                    if entries[owner].wanted != row.count:
                        return -1
                    duplicates += 1
                    continue
                entries[owner].wanted = row.count
                if entries[owner].tracked:
                    completed = max(completed, at)
                continue
            if row.index < 0:
                return -1
            hashed = _spread(_UINT64(owner) * _PRIME ^ _UINT64(row.index))
            slot = _find(data, slots, mark, _ITEMS, owner, row.index, hashed)
            if slots[slot].block == mark:
                if not _is_same_content(data, rows, slots[slot].found, at):
                    return -1
                duplicates += 1
                continue
            _put(slots, slot, mark, _ITEMS, owner, row.index, hashed, at)
            entries[owner].highest = max(entries[owner].highest, row.index)
            for one in range(row.deletes, row.deletes_end):
                name = deletes[one]
                hashed = _hash(data, name.start, name.end, basis)
                slot = _find(data, slots, mark, _KEYS, name.start, name.end, hashed)
                if slots[slot].block == mark:
                    known = updates[slots[slot].found]
                    # An item may delete a key twice.
                    if known.way != _ITEM_DELETE or known.row != at:
                        return -1
                    continue
                _put(slots, slot, mark, _KEYS, name.start, name.end, hashed, count)
                _write(updates, count, name.start, name.end, name.start, name.start, _ITEM_DELETE, at)
                updates[count].tracked, updates[count].block = entries[owner].tracked, block
                count += 1
            for one in range(row.sets, row.sets_end):
                pair = sets[one]
                if not _add_name(data, slots, mark, _KEYS, pair.key, pair.key_end, basis, count):
                    return -1
                _write(updates, count, pair.key, pair.key_end, pair.value, pair.value_end, _ITEM_SET, at)
                updates[count].tracked, updates[count].block = entries[owner].tracked, block
                count += 1
        elif row.kind == _BATCH:
            continue
        else:
            return -1
        # The first message of those that repeat each other.
        entries[owner].received += 1
        if entries[owner].tracked:
            completed = max(completed, at)
    for at in range(rows[batch].entries, rows[batch].entries_end):
        entry = entries[at]
        if entry.given == _COUNT or entry.given == _SUBBATCH:
            if entry.tracked and entry.received != entry.wanted:
                return -1
            # Items of a sub-batch that isn't tracked may wait for its header.
            is_known = entry.wanted >= 0 or entry.given == _COUNT
            if is_known and (entry.received > entry.wanted or entry.highest >= max(entry.wanted, 0)):
                return -1
    blocks[block].batch, blocks[block].completed, blocks[block].duplicates = batch, completed, duplicates
    return count


@inlined
def _write(updates: Array, at: int, key: int, key_end: int, value: int, value_end: int, way: int, row: int) -> None:
    updates[at].key, updates[at].key_end = key, key_end
    updates[at].value, updates[at].value_end = value, value_end
    updates[at].way, updates[at].row = way, row


@compiled
def _owner(data: Array, slots: Array, mark: int, start: int, end: int, lengths: Array, basis: Any) -> tuple[int, Any]:
    """The one entry that counts a key, and the hash of the key; -1 if there is none, or several."""
    owner, several = -1, False
    hashed = basis
    for at in range(start, end):
        hashed = (hashed ^ _UINT64(data[at])) * _PRIME
        size = at + 1 - start
        is_boundary = data[at] == _SLASH
        if at + 1 == end or is_boundary or (size < len(lengths) and lengths[size] == mark):
            slot = _find(data, slots, mark, _NAMES, start, at + 1, _spread(hashed))
            if slots[slot].block == mark:
                # A name that doesn't end in a slash begins a longer key: that breaks a rule.
                several = several or owner >= 0 or not (is_boundary or at + 1 == end)
                owner = slots[slot].found
    return (-1 if several else owner), _spread(hashed)


@compiled
def _add_name(data: Array, slots: Array, mark: int, what: int, start: int, end: int, basis: Any, found: int) -> bool:
    """Remember a byte string. Returns False if it is known."""
    hashed = _hash(data, start, end, basis)
    slot = _find(data, slots, mark, what, start, end, hashed)
    if slots[slot].block == mark:
        return False
    _put(slots, slot, mark, what, start, end, hashed, found)
    return True


@inlined
def _put(slots: Array, slot: int, mark: int, what: int, start: int, end: int, hashed: Any, found: int) -> None:
    slots[slot].block, slots[slot].what, slots[slot].found = mark, what, found
    slots[slot].start, slots[slot].end, slots[slot].hash = start, end, np.int64(hashed)


@compiled
def _find(data: Array, slots: Array, mark: int, what: int, start: int, end: int, hashed: Any) -> int:
    """The slot of a byte string, or of an item, which is two numbers; else the empty slot for it."""
    last = _UINT64(len(slots) - 1)
    at = np.int64((hashed + _UINT64(what)) & last)
    while slots[at].block == mark:
        if slots[at].what == what and slots[at].hash == np.int64(hashed):
            known = slots[at].start, slots[at].end
            if what == _ITEMS:
                if known[0] == start and known[1] == end:
                    break
            elif _equal(data, known[0], known[1], start, end):
                break
        at = (at + 1) & np.int64(last)
    return int(at)


@compiled
def _hash(data: Array, start: int, end: int, basis: Any) -> Any:
    hashed = basis
    for at in range(start, end):
        hashed = (hashed ^ _UINT64(data[at])) * _PRIME
    return _spread(hashed)


@inlined
def _spread(hashed: Any) -> Any:
    return (hashed ^ (hashed >> _SHIFT)) * _SPREAD >> _SHIFT


@compiled
def _equal(data: Array, start: int, end: int, other: int, other_end: int) -> bool:
    size, at = end - start, 0
    if size != other_end - other:
        return False
    while at < size and data[start + at] == data[other + at]:
        at += 1
    return at == size


@compiled
def _is_same_content(data: Array, rows: Array, one: int, other: int) -> bool:
    """Whether both rows have a digest, and it is the same."""
    a, b = rows[one], rows[other]
    return a.digest_end > a.digest and _equal(data, a.digest, a.digest_end, b.digest, b.digest_end)
