"""Checks signatures: once for each distinct entry, however often it was sent.

`check` takes the entries of some logs as rows of MOVED, in order. It returns rows of READ with the rules that their
signatures break, and without rows that repeat what another row states.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import (
    follows_bad,
    only,
    sent_id,
    with_columns,
    without_links,
)
from wirehouse_codecs.bamboo.log.file_rows import FILE as FROM_FILE
from wirehouse_codecs.bamboo.wire.signatures import signature_rules
from wirehouse_pipelines.bamboo.verification_rows import ELSEWHERE, FORK, KEY, READ, Array, with_following

#: What known rows are about: of a log, the newest row of each entry, fork and link counts.
_ABOUT: Final = (*KEY, "row_kind", "entry_id", "position", "state_window")


def check(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of READ, with the rules that signatures break, from rows of MOVED by log, window and arrival.

    What is known comes first. One row of each entry, window and sender is kept, and every row with a wrong signature.
    """
    rows = _newest(rows)
    rows = rows.append_column("unsure", pa.nulls(rows.num_rows, pa.bool_()))
    ids = np.asarray(rows.column("entry_id").dictionary_encode().indices.fill_null(-1))
    rules = _signature_rules(rows, ids)
    rows = rows.set_column(READ.get_field_index("signature_rule"), "signature_rule", rules)
    assumed = np.asarray(pc.and_(rows.column("sent_id").is_valid(), rules.is_valid()))
    if assumed.any():
        rows = _without_links(rows, np.flatnonzero(assumed).tolist())
    if rules.null_count < len(rules):
        rows = _without_bad_links(rows)
    return only(rows, _first_of_sender(rows, ids))


def _newest(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` without what newer ones replace, forks that turned out to begin earlier, and links that lead nowhere."""
    known = np.flatnonzero(np.asarray(rows.column("window_start").is_null()))
    if not len(known):
        return rows
    before = rows.take(pa.array(known))
    *about, state_window = (_ranks(before.column(name)) for name in _ABOUT)
    order = np.lexsort([state_window, *about])
    last = np.ones(len(order), np.bool_)
    last[:-1] = np.any([one[order][1:] != one[order][:-1] for one in about], axis=0)
    kept = np.ones(rows.num_rows, np.bool_)
    kept[known[order[~last]]] = False
    kind, superseded = rows.column("row_kind"), rows.column("superseded").fill_null(False)
    gone = pc.and_(pc.equal(kind, FORK), superseded)
    gone = pc.or_(gone, pc.and_(pc.equal(kind, ELSEWHERE), rows.column("author").is_null()))
    return only(rows, kept & ~np.asarray(gone.fill_null(False)))


def _signature_rules(rows: pa.RecordBatch, ids: Array) -> pa.Array:
    """The rules that signatures break. Known entries keep theirs; each distinct new entry is checked once."""
    before = rows.column("signature_rule")
    linked = np.asarray(rows.column("linked_from").is_valid())
    known = np.asarray(rows.column("window_start").is_null()) & ~linked
    new = ~known & np.asarray(pc.and_(rows.column("own_rule").is_null(), rows.column("data").is_valid()))
    places = np.flatnonzero(new & ~np.isin(ids, ids[known]))
    places = places[np.unique(ids[places], return_index=True)[1]]
    checked = signature_rules(rows.column("data").take(pa.array(places)))
    broken = {int(ids[place]): rule for place, rule in zip(places, checked, strict=True) if rule is not None}
    for place in np.flatnonzero(known & np.asarray(before.is_valid())).tolist():
        broken[int(ids[place])] = before[place].as_py()
    if not broken:
        return before
    rules = before.to_pylist()
    for place in np.flatnonzero(new & np.isin(ids, list(broken))).tolist():
        rules[place] = broken[int(ids[place])]
    return pa.array(rules, pa.string())


def _ranks(column: pa.Array) -> Array:
    """The rank of each value among the distinct values of the column. Null is first."""
    encoded = column.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary) + 1, np.int64)
    ranks[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(1, len(ranks))
    ranks[-1] = 0
    of_rows: Array = ranks[np.asarray(encoded.indices.fill_null(-1))]
    return of_rows


def _first_of_sender(rows: pa.RecordBatch, ids: Array) -> Array:
    """Which rows are the first of their entry, window and sender, or are kept in any case."""
    # A file may contain several payloads for an entry.
    of_file = pc.equal(rows.column("origin"), FROM_FILE).fill_null(False)
    apart = pc.or_(of_file, pc.or_(rows.column("signature_rule").is_valid(), rows.column("unsure").fill_null(False)))
    apart = pc.or_(apart, pc.or_(rows.column("window_start").is_null(), rows.column("linked_from").is_valid()))
    kept = np.array(apart)
    of_sender = [ids, *(_ranks(rows.column(name)) for name in ("window_start", "source", "sender"))]
    by_sender = np.lexsort(of_sender[::-1])
    differs = np.ones(len(kept), np.bool_)
    differs[1:] = np.any([column[by_sender][1:] != column[by_sender][:-1] for column in of_sender], axis=0)
    kept[by_sender[differs]] = True
    return kept


def _without_bad_links(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` without assumed links of metadata, if its signature and that of a linked entry are wrong."""
    wrong = np.asarray(rows.column("signature_rule").is_valid())
    bad = set(rows.column("entry_hash").filter(pa.array(wrong)).to_pylist())
    sent = wrong & np.asarray(pc.equal(rows.column("origin"), "metadata").fill_null(False))
    places = np.flatnonzero(sent & np.asarray(rows.column("window_start").is_valid()))
    listed = with_following(rows.take(pa.array(places))).to_pylist()
    after = {place: row for place, row in zip(places.tolist(), listed, strict=True) if follows_bad(row, bad)}
    if not after:
        return rows
    sent_ids, unsure = rows.column("sent_id").to_pylist(), [False] * rows.num_rows
    for place, row in after.items():
        sent_ids[place], unsure[place] = sent_id(row), True
    named = {"sent_id": pa.array(sent_ids, pa.binary()), "unsure": pa.array(unsure)}
    return _without_links(with_columns(rows, named), list(after))


def _without_links(rows: pa.RecordBatch, places: list[int]) -> pa.RecordBatch:
    """`rows`, where the entries at these positions lose the links that were not sent."""
    sent = with_following(rows.take(pa.array(places)))
    listed = [without_links(row, row["sent_id"]) for row in sent.to_pylist()]
    at = np.arange(rows.num_rows)
    at[places] = rows.num_rows + np.arange(len(places))
    return pa.concat_batches([rows, pa.RecordBatch.from_pylist(listed, schema=READ)]).take(pa.array(at))
