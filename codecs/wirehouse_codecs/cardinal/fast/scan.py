"""Compiled loops over the bytes of many Cardinal messages at once; `columns` makes its columns from their results.

Every loop works on whole Arrow buffers. `data` is the bytes of a column, and an entry is a position and a length in it.
Nothing is allocated here: the caller sizes each array by the counts of the first pass. The work grows linearly with the
bytes. Sorting names adds a factor, the logarithm of the number of entries of one message.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wirehouse_codecs.cardinal.wire import messages
from wirehouse_codecs.compiled.jit import compiled, wide

Array = np.ndarray[Any, Any]

#: Verdict on a row: no message that is decoded here; a message; else RULE_OFFSET and the position of the rule in RULES.
NOTHING, MESSAGE = 0, 1
KEY_LENGTH, UNDECODABLE, OUT_OF_RANGE, INDEX_OUT_OF_RANGE, TRAILING, AMBIGUOUS = 2, 4, 5, 6, 7, 8
RULE_OFFSET = 2

#: What each entry of a block of entries has: a name; name and value; all fields of an update.
NAMES, VALUES, UPDATES = 0, 1, 2
#: What an entry of Batch.updates sets, one bit each, and their letters in the canonical encoding.
DROPPED, VALUE, COUNT, DELETE, SUBBATCH = 0, 1, 2, 4, 8
VALUE_LETTER, COUNT_LETTER, DELETE_LETTER, SUBBATCH_LETTER = b"vcds"

INT_BITS, LONG_BITS = 32, 64
HASH_BYTES, WEIGHT_BYTES = messages.HASH_BYTES, messages.WEIGHT_BYTES
BLOCK_KEY_BYTES, SUBBATCH_KEY_BYTES = messages.BLOCK_KEY_BYTES, messages.SUBBATCH_KEY_BYTES
BATCH, SUBBATCH_HEADER, SUBBATCH_MSG = messages.BATCH, messages.SUBBATCH_HEADER, messages.SUBBATCH_MSG
REORG, REORG_COMPLETE = messages.REORG, messages.REORG_COMPLETE


@compiled
def read_varint(data: Array, at: int, end: int, bits: int) -> tuple[int, int]:
    """The zig-zag number at `at` and the position after it, -1 if it is cut or over `bits` wide."""
    raw = np.uint64(0)
    shift = 0
    while True:
        if shift >= bits or at >= end:
            return 0, -1
        byte = data[at]
        if shift == 63 and byte > 1:
            return 0, -1
        raw |= np.uint64(byte & 0x7F) << np.uint64(shift)
        shift += 7
        at += 1
        if byte < 0x80:
            break
    if bits == INT_BITS and raw >> np.uint64(INT_BITS) != 0:
        return 0, -1
    return wide(raw >> np.uint64(1)) ^ -wide(raw & np.uint64(1)), at


@compiled
def read_length(data: Array, at: int, end: int) -> tuple[int, int]:
    """The length of a byte string and where it begins, -1 if it doesn't fit before `end`."""
    length, start = read_varint(data, at, end, LONG_BITS)
    if start < 0 or length < 0 or length > end - start:
        return 0, -1
    return length, start


@compiled
def read_entries(data: Array, at: int, end: int, holds: int, fill: bool, entry: int, entries: Array) -> tuple[int, int]:
    """The number of entries of a map or array and the position after it, -1 if it is malformed.

    With `fill`, the rows of `entries` from `entry` on take each entry's name (position, length), value (position,
    length), count, delete and the position of its subbatch.
    """
    found = 0
    while True:
        count, at = read_varint(data, at, end, LONG_BITS)
        if at < 0:
            return 0, -1
        if count == 0:
            return found, at
        if count < 0:
            count = -count
            _, at = read_varint(data, at, end, LONG_BITS)
            if at < 0:
                return 0, -1
        if count < 0 or count > end - at:
            return 0, -1
        for _ in range(count):
            at = read_entry(data, at, end, holds, fill, entry + found, entries)
            if at < 0:
                return 0, -1
            found += 1


@compiled
def read_entry(data: Array, at: int, end: int, holds: int, fill: bool, entry: int, entries: Array) -> int:
    """The position after one entry, -1 if it is malformed."""
    name_length, name_at = read_length(data, at, end)
    if name_at < 0:
        return -1
    at = name_at + name_length
    value_length, value_at = 0, 0
    if holds != NAMES:
        value_length, value_at = read_length(data, at, end)
        if value_at < 0:
            return -1
        at = value_at + value_length
    count, delete, subbatch_at = 0, 0, 0
    if holds == UPDATES:
        count, at = read_varint(data, at, end, INT_BITS)
        if at < 0 or end - at < 1 + HASH_BYTES or data[at] > 1:
            return -1
        delete, subbatch_at = data[at], at + 1
        at += 1 + HASH_BYTES
    if fill:
        entries[entry, 0], entries[entry, 1] = name_at, name_length
        if holds != NAMES:
            entries[entry, 2], entries[entry, 3] = value_at, value_length
        if holds == UPDATES:
            entries[entry, 4], entries[entry, 5], entries[entry, 6] = count, delete, subbatch_at
    return at


@compiled
def survey(
    keys: Array,
    key_offsets: Array,
    key_valid: Array,
    values: Array,
    value_offsets: Array,
    verdicts: Array,
    numbers: Array,
    signed: Array,
    weights: Array,
    starts: Array,
    counts: Array,
) -> None:
    """First pass: judge every row, read its scalar fields, and find the beginning and number of its entries.

    numbers: number of a Batch, Reorg or ReorgComplete. signed: item index, item count. weights: position and length.
    starts: position of the parent and of the updates of a Batch, of the deletes and updates of an item.
    counts: deletes, updates of an item, updates of a Batch.
    """
    for row in range(len(verdicts)):
        key, key_end = wide(key_offsets[row]), wide(key_offsets[row + 1])
        if not key_valid[row] or key == key_end:
            continue
        at, end = wide(value_offsets[row]), wide(value_offsets[row + 1])
        kind = keys[key]
        if kind == BATCH:
            verdicts[row], at = survey_batch(row, key_end - key, values, at, end, numbers, weights, starts, counts)
        elif kind == SUBBATCH_MSG:
            verdicts[row], at = survey_item(row, keys, key, key_end, values, at, end, signed, starts, counts)
        elif kind in (SUBBATCH_HEADER, REORG, REORG_COMPLETE):
            verdicts[row], at = survey_number(row, kind, key_end - key, values, at, end, numbers, signed)
        else:
            continue
        if verdicts[row] == MESSAGE and at < end:
            verdicts[row] = TRAILING


@compiled
def survey_batch(
    row: int,
    key_length: int,
    values: Array,
    at: int,
    end: int,
    numbers: Array,
    weights: Array,
    starts: Array,
    counts: Array,
) -> tuple[int, int]:
    """Verdict on a Batch, and the position after its value."""
    if key_length != BLOCK_KEY_BYTES:
        return KEY_LENGTH, at
    number, at = read_varint(values, at, end, LONG_BITS)
    if at < 0:
        return UNDECODABLE, at
    weight_length, weight_at = read_length(values, at, end)
    if weight_at < 0 or end - weight_at - weight_length < HASH_BYTES:
        return UNDECODABLE, at
    starts[row, 0] = weight_at + weight_length
    starts[row, 1] = starts[row, 0] + HASH_BYTES
    updates, at = read_entries(values, starts[row, 1], end, UPDATES, False, 0, starts)
    if at < 0:
        return UNDECODABLE, at
    while weight_length > 0 and values[weight_at] == 0:
        weight_at += 1
        weight_length -= 1
    if weight_length > WEIGHT_BYTES:
        return OUT_OF_RANGE, at
    numbers[row] = np.uint64(number)
    weights[row, 0], weights[row, 1] = weight_at, weight_length
    counts[row, 2] = updates
    return MESSAGE, at


@compiled
def survey_item(
    row: int,
    keys: Array,
    key: int,
    key_end: int,
    values: Array,
    at: int,
    end: int,
    signed: Array,
    starts: Array,
    counts: Array,
) -> tuple[int, int]:
    """Verdict on a SubBatchMsg, and the position after its value."""
    if key_end - key <= SUBBATCH_KEY_BYTES:
        return KEY_LENGTH, at
    index, index_end = read_varint(keys, key + SUBBATCH_KEY_BYTES, key_end, LONG_BITS)
    if index_end != key_end:
        return KEY_LENGTH, at
    starts[row, 0] = at
    deletes, at = read_entries(values, at, end, NAMES, False, 0, starts)
    if at < 0:
        return UNDECODABLE, at
    starts[row, 1] = at
    updates, at = read_entries(values, at, end, VALUES, False, 0, starts)
    if at < 0:
        return UNDECODABLE, at
    if index < 0:
        return INDEX_OUT_OF_RANGE, at
    signed[row] = index
    counts[row, 0], counts[row, 1] = deletes, updates
    return MESSAGE, at


@compiled
def survey_number(
    row: int, kind: int, key_length: int, values: Array, at: int, end: int, numbers: Array, signed: Array
) -> tuple[int, int]:
    """Verdict on a message whose value is one number, and the position after it."""
    is_header = kind == SUBBATCH_HEADER
    if key_length != (SUBBATCH_KEY_BYTES if is_header else BLOCK_KEY_BYTES):
        return KEY_LENGTH, at
    number, at = read_varint(values, at, end, INT_BITS if is_header else LONG_BITS)
    if at < 0:
        return UNDECODABLE, at
    if is_header:
        if number < 0:
            return OUT_OF_RANGE, at
        signed[row] = number
    else:
        numbers[row] = np.uint64(number)
    return MESSAGE, at


@compiled
def collect(values: Array, value_offsets: Array, starts: Array, bounds: Array, holds: int, entries: Array) -> None:
    """Second pass: read the entries of every row. `starts` has their beginnings, `bounds` their place in `entries`."""
    for row in range(len(starts)):
        if bounds[row] < bounds[row + 1]:
            end = wide(value_offsets[row + 1])
            read_entries(values, wide(starts[row]), end, holds, True, bounds[row], entries)


@compiled
def is_before(data: Array, entries: Array, left: int, right: int) -> bool:
    """Whether the name of entry `left` sorts before that of `right`."""
    a, b = wide(entries[left, 0]), wide(entries[right, 0])
    a_length, b_length = entries[left, 1], entries[right, 1]
    for i in range(min(a_length, b_length)):
        if data[a + i] != data[b + i]:
            return bool(data[a + i] < data[b + i])
    return bool(a_length < b_length)


@compiled
def is_same(data: Array, entries: Array, left: int, right: int) -> bool:
    """Whether two entries have one name."""
    return not is_before(data, entries, left, right) and not is_before(data, entries, right, left)


@compiled
def sort_names(data: Array, entries: Array, bounds: Array, order: Array, spare: Array) -> None:
    """`order`: each row's entries by name, equal names by place (merge sort, so that hostile names cost no more)."""
    for row in range(len(bounds) - 1):
        start, end = bounds[row], bounds[row + 1]
        for entry in range(start, end):
            order[entry] = entry
        width = 1
        while width < end - start:
            for low in range(start, end, 2 * width):
                merge(data, entries, order, spare, low, min(low + width, end), min(low + 2 * width, end))
            order[start:end] = spare[start:end]
            width *= 2


@compiled
def merge(data: Array, entries: Array, order: Array, spare: Array, low: int, middle: int, high: int) -> None:
    """Two sorted runs of `order` as one run of `spare`."""
    left, right = low, middle
    for out in range(low, high):
        if right >= high or (left < middle and not is_before(data, entries, order[right], order[left])):
            spare[out] = order[left]
            left += 1
        else:
            spare[out] = order[right]
            right += 1


@compiled
def last_of_name(data: Array, entries: Array, bounds: Array, order: Array, sources: Array) -> None:
    """`sources`: for the first entry of a name the last one of that name, whose value counts; for the others -1."""
    for row in range(len(bounds) - 1):
        at = bounds[row]
        while at < bounds[row + 1]:
            first = order[at]
            while at + 1 < bounds[row + 1] and is_same(data, entries, first, order[at + 1]):
                at += 1
                sources[order[at]] = -1
            sources[first] = order[at]
            at += 1


@compiled
def judge_updates(data: Array, entries: Array, bounds: Array, sources: Array, verdicts: Array, kinds: Array) -> None:
    """Set the kind of each entry of Batch.updates, and the verdict of the row if that breaks a rule."""
    for row in range(len(bounds) - 1):
        for entry in range(bounds[row], bounds[row + 1]):
            source = sources[entry]
            if source < 0:
                continue
            if entries[source, 4] < 0:
                verdicts[row] = OUT_OF_RANGE
                break
            kind = kind_of_update(data, entries, source)
            kinds[entry] = kind
            if kind & (kind - 1) and verdicts[row] == MESSAGE:
                verdicts[row] = AMBIGUOUS
        if verdicts[row] == OUT_OF_RANGE:
            kinds[bounds[row] : bounds[row + 1]] = DROPPED


@compiled
def kind_of_update(data: Array, entries: Array, entry: int) -> int:
    """Which of the four fields are set."""
    kind = DROPPED
    subbatch = wide(entries[entry, 6])
    for i in range(subbatch, subbatch + HASH_BYTES):
        if data[i] != 0:
            kind = SUBBATCH
            break
    if entries[entry, 5]:
        kind |= DELETE
    if entries[entry, 4]:
        kind |= COUNT
    if entries[entry, 3]:
        kind |= VALUE
    return kind


@compiled
def put_number(out: Array, at: int, number: int) -> int:
    """`number` in four bytes, big-endian."""
    for i in range(4):
        out[at + i] = (number >> (24 - 8 * i)) & 0xFF
    return at + 4


@compiled
def put_bytes(out: Array, at: int, data: Array, start: int, length: int) -> int:
    """`length` bytes of `data`."""
    for i in range(length):
        out[at + i] = data[start + i]
    return at + length


@compiled
def put_sized(out: Array, at: int, data: Array, start: int, length: int) -> int:
    """`length` bytes of `data` after their length."""
    return put_bytes(out, put_number(out, at, length), data, start, length)


@compiled
def canonical_headers(rows: Array, signed: Array, out: Array, begins: Array, ends: Array) -> None:
    """The canonical encoding (messages.content_digest) of each SubBatchHeader of `rows`, from `begins` on."""
    for row in rows:
        at = wide(begins[row])
        out[at] = SUBBATCH_HEADER
        ends[row] = put_number(out, at + 1, signed[row])


@compiled
def canonical_items(
    rows: Array,
    data: Array,
    deletes: Array,
    delete_bounds: Array,
    delete_order: Array,
    updates: Array,
    bounds: Array,
    order: Array,
    sources: Array,
    out: Array,
    begins: Array,
    ends: Array,
) -> None:
    """The canonical encoding (messages.content_digest) of each SubBatchMsg of `rows`, from `begins` on."""
    for row in rows:
        at = wide(begins[row])
        out[at] = SUBBATCH_MSG
        count_at, distinct = at + 1, 0
        at += 5
        for place in range(delete_bounds[row], delete_bounds[row + 1]):
            entry = delete_order[place]
            if place > delete_bounds[row] and is_same(data, deletes, delete_order[place - 1], entry):
                continue
            distinct += 1
            at = put_sized(out, at, data, wide(deletes[entry, 0]), wide(deletes[entry, 1]))
        put_number(out, count_at, distinct)
        for place in range(bounds[row], bounds[row + 1]):
            entry = order[place]
            source = sources[entry]
            if source >= 0:
                at = put_sized(out, at, data, wide(updates[entry, 0]), wide(updates[entry, 1]))
                at = put_sized(out, at, data, wide(updates[source, 2]), wide(updates[source, 3]))
        ends[row] = at


@compiled
def canonical_batches(
    rows: Array,
    data: Array,
    numbers: Array,
    weights: Array,
    parents: Array,
    entries: Array,
    bounds: Array,
    order: Array,
    sources: Array,
    kinds: Array,
    out: Array,
    begins: Array,
    ends: Array,
) -> None:
    """The canonical encoding (messages.content_digest) of each Batch of `rows`, from `begins` on."""
    for row in rows:
        at = wide(begins[row])
        out[at] = BATCH
        number = numbers[row]
        at = put_number(out, at + 1, wide(number >> np.uint64(32)))
        at = put_number(out, at, wide(number & np.uint64(0xFFFFFFFF)))
        padding = WEIGHT_BYTES - weights[row, 1]
        out[at : at + padding] = 0
        at = put_bytes(out, at + padding, data, wide(weights[row, 0]), wide(weights[row, 1]))
        at = put_bytes(out, at, data, wide(parents[row]), HASH_BYTES)
        for place in range(bounds[row], bounds[row + 1]):
            entry = order[place]
            kind = kinds[entry]
            if kind == DROPPED:
                continue
            source = sources[entry]
            at = put_sized(out, at, data, wide(entries[entry, 0]), wide(entries[entry, 1]))
            if kind & VALUE:
                out[at] = VALUE_LETTER
                at = put_sized(out, at + 1, data, wide(entries[source, 2]), wide(entries[source, 3]))
            if kind & COUNT:
                out[at] = COUNT_LETTER
                at = put_number(out, at + 1, wide(entries[source, 4]))
            if kind & DELETE:
                out[at] = DELETE_LETTER
                at += 1
            if kind & SUBBATCH:
                out[at] = SUBBATCH_LETTER
                at = put_bytes(out, at + 1, data, wide(entries[source, 6]), HASH_BYTES)
        ends[row] = at


@compiled
def gather(data: Array, starts: Array, offsets: Array, out: Array) -> None:
    """The byte strings of `data` at `starts`, one after the other; `offsets` has the position of each."""
    for i in range(len(starts)):
        put_bytes(out, wide(offsets[i]), data, wide(starts[i]), wide(offsets[i + 1]) - wide(offsets[i]))


@compiled
def right_aligned(rows: Array, data: Array, fields: Array, width: int, out: Array) -> None:
    """The field (position, length) of each of `rows` with zeros before it, `width` bytes each; `out` is zero."""
    for i in range(len(rows)):
        length = wide(fields[rows[i], 1])
        put_bytes(out, (i + 1) * width - length, data, wide(fields[rows[i], 0]), length)
