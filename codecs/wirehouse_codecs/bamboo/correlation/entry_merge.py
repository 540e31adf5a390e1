"""Merges rows about the same entry, and completes entries whose links were unknown.

An entry may be sent more than once, by several sides, and with or without its payload: one row is left of it. An entry
that was sent without a link becomes complete as soon as the linked entry is known. Then a row with the full entry
supersedes its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import (
    ENTRIES,
    OTHER_SIZE,
    PLACE_NAMES,
    SHOWN,
    is_signed,
    is_true,
    only,
    with_edits,
)
from wirehouse_codecs.bamboo.session.entry_rebuild import Rebuilt, complete
from wirehouse_codecs.bamboo.wire import yamf

#: How many senders of an entry are remembered.
MOST_SENDERS: Final = 64
#: How many hashes of one sequence number are tried for an unknown link.
MOST_TRIED: Final = 4
#: What is signed.
_SIGNED: Final = ("author", "log_id", "seq", "end_of_log", "lipmaalink", "backlink", "payload_size", "payload_hash")


def merge_repeats(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, set[int]]:
    """The first row of each entry, and which of these rows changed because later rows add something."""
    ids = rows.column("entry_id").dictionary_encode()
    if len(ids.dictionary) == len(ids):
        return rows, set()
    _, first, numbers = np.unique(np.asarray(ids.indices), return_index=True, return_inverse=True)
    of = first[numbers]
    again = np.flatnonzero(of != np.arange(len(ids)))
    names = ("origin", "payload_rule", "seen_from")
    columns = [rows.column(name).to_pylist() for name in names]
    edits: dict[int, dict[str, Any]] = {}
    for i in again.tolist():
        target = int(of[i])
        before = edits.get(target) or {name: column[target] for name, column in zip(names, columns, strict=True)}
        after = _joined(before, {name: column[i] for name, column in zip(names, columns, strict=True)})
        if after != before:
            edits[target] = after
    kept = np.flatnonzero(of == np.arange(len(ids)))
    merged = with_edits(rows, edits).take(pa.array(kept)) if edits else rows.take(pa.array(kept))
    return merged, set(np.searchsorted(kept, list(edits)).tolist())


def _joined(first: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """What two rows of one entry state together."""
    senders = sorted({*(first["seen_from"] or ()), *(again["seen_from"] or ())})
    rules = {first["payload_rule"], again["payload_rule"]}
    return {
        "origin": first["origin"] if first["origin"] in SHOWN else again["origin"],
        # A payload of another size concerns the log. One with another hash doesn't, if the right payload came too.
        "payload_rule": OTHER_SIZE if OTHER_SIZE in rules else None if None in rules else first["payload_rule"],
        "seen_from": senders if len(senders) <= MOST_SENDERS else first["seen_from"],
    }


def complete_links(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, set[int]]:
    """`rows` with the entries completed whose links are known now, and which rows that changed."""
    open_ = np.asarray(rows.column("data").is_null()) & ~is_true(rows.column("superseded"))
    open_ &= np.asarray(rows.column("own_rule").is_null())
    if not open_.any():
        return rows, set()
    partial = dict(zip(np.flatnonzero(open_).tolist(), only(rows, open_).to_pylist(), strict=True))
    hashes = _hashes(rows, {int(seq) for row in partial.values() for seq in row["unknown_links"]})
    order = sorted(partial, key=lambda i: int(partial[i]["seq"]))
    places = {one: i for i, one in enumerate(rows.column("entry_id").to_pylist())}
    same = _same(rows, partial)
    edits: dict[int, dict[str, Any]] = {}
    added: dict[bytes, dict[str, Any]] = {}
    for i, entry in zip(order, complete([_rebuilt(partial[i]) for i in order], hashes), strict=True):
        whole, full = same.get(i), partial[i]
        if whole is None:
            if entry.data is None or entry.entry_hash is None:
                continue
            full, whole = _full(full, entry), places.get(entry.entry_hash)
        edits[i] = {"superseded": True}
        if whole is None:
            hashed = full["entry_hash"]
            known = added.get(hashed)
            added[hashed] = full if known is None else known | _joined(known, full)
            continue
        before = edits.get(whole) or rows.slice(whole, 1).to_pylist()[0]
        earlier = full if full["arrived_at_ns"] < before["arrived_at_ns"] else before
        edits[whole] = _joined(before, full) | {name: earlier[name] for name in PLACE_NAMES}
    rows = with_edits(rows, edits) if edits else rows
    if added:
        more = pa.RecordBatch.from_pylist(list(added.values()), schema=ENTRIES)
        rows = pa.concat_batches([rows, more])
    return rows, {*edits, *range(rows.num_rows - len(added), rows.num_rows)}


def _same(rows: pa.RecordBatch, partial: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """By partial row the row that has all of its entry: their signature and all that both have are equal."""
    signatures = pa.array({row["signature"] for row in partial.values()}, pa.binary())
    there = pc.and_(pc.is_in(rows.column("signature").cast(pa.binary()), signatures), is_signed(rows))
    wholes: dict[bytes, list[tuple[int, dict[str, Any]]]] = {}
    for at, row in zip(np.flatnonzero(there).tolist(), only(rows, np.asarray(there)).to_pylist(), strict=True):
        wholes.setdefault(row["signature"], []).append((at, row))
    return {
        i: at
        for i, row in partial.items()
        for at, whole in wholes.get(row["signature"], ())
        if all(row[name] in (None, whole[name]) for name in _SIGNED)
    }


def _hashes(rows: pa.RecordBatch, wanted: set[int]) -> dict[int, list[bytes]]:
    """Hashes of signed entries by sequence number."""
    seqs = rows.column("seq").cast(pa.uint64())
    there = pc.and_(pc.is_in(seqs, pa.array(sorted(wanted), pa.uint64())), is_signed(rows))
    by_seq: dict[int, list[bytes]] = {}
    for seq, hashed in zip(
        *(column.filter(there).to_pylist() for column in (seqs, rows.column("entry_hash"))), strict=True
    ):
        if len(listed := by_seq.setdefault(seq, [])) < MOST_TRIED:
            listed.append(hashed)
    return by_seq


def _rebuilt(row: Mapping[str, Any]) -> Rebuilt:
    lipmaalink, backlink = (
        None if row[name] is None else yamf.encode(row[name]) for name in ("lipmaalink", "backlink")
    )
    return Rebuilt(
        row["author"],
        int(row["log_id"]),
        int(row["seq"]),
        row["end_of_log"],
        lipmaalink,
        backlink,
        int(row["payload_size"]),
        yamf.encode(row["payload_hash"]),
        row["signature"],
        None,
        None,
        tuple(row["omitted"]),
        tuple(map(int, row["unknown_links"])),
    )


def _full(partial: Mapping[str, Any], entry: Rebuilt) -> dict[str, Any]:
    links = {
        name: None if link is None else link[len(yamf.PREFIX) :]
        for name, link in (("lipmaalink", entry.lipmaalink), ("backlink", entry.backlink))
    }
    hashed: dict[str, Any] = {
        "entry_id": entry.entry_hash,
        "entry_hash": entry.entry_hash,
        "data": entry.data,
        "unknown_links": [],
    }
    return {**partial, **links, **hashed, "verdict": None, "reason": None, "message": None}
