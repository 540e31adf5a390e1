"""The results of each log and window, from entries whose signatures were checked.

`fold` takes entries and what is known of their logs (READ of `verification_rows.py`). For each window of each log it
returns the entries to write, and what becomes rows of gold (RESULTS).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import (
    ENTRIES,
    NO_ENTRIES,
    only,
)
from wirehouse_codecs.bamboo.correlation.log_state import PROVED, Changes, ForkRow, KnownLog, Proved, Settled
from wirehouse_codecs.bamboo.rules import ENTRY_RULE
from wirehouse_codecs.bamboo.wire.entry_verification import LogOf
from wirehouse_pipelines.bamboo.verification_rows import (
    BAD,
    ELSEWHERE,
    ENTRY,
    FINDING,
    FORK,
    FORK_COLUMNS,
    LOG,
    LOOSE,
    PLACE_NAMES,
    READ,
    RESULTS,
    STATE,
    UNSURE,
    WRITTEN,
)
from wirehouse_pipelines.delta.batches import pieces_of, with_all


class LogResults(NamedTuple):
    """The results of a log in a window."""

    #: Rows of WRITTEN.
    entries: pa.RecordBatch
    #: Rows of RESULTS.
    others: pa.RecordBatch


def fold(rows: pa.RecordBatch) -> Iterator[LogResults]:
    """The results of logs. `rows` are ordered by log and window, and known entries come first."""
    log, before = KnownLog(NO_ENTRIES, {}), None
    windows = rows.column("window_start").fill_null("")
    rows = rows.set_column(READ.get_field_index("window_start"), "window_start", windows)
    for (source, key, window), of_window in pieces_of(rows, ("source", "key", "window_start")):
        if (source, key) != before:
            log, before = KnownLog(NO_ENTRIES, {}), (source, key)
        linked = np.asarray(of_window.column("linked_from").is_valid())
        elsewhere = _logs_of(only(of_window, linked))
        if not window:
            of_kind = {
                kind: of_window.filter(pc.equal(of_window.column("row_kind"), kind)) for kind in (ENTRY, FORK, LOG)
            }
            entries = of_kind[ENTRY].select(ENTRIES.names)
            log = KnownLog(entries, _forks(of_kind[FORK]), _standing(of_kind[LOG]), elsewhere)
            continue
        new = only(of_window, ~linked)
        changes = log.take(new.select(ENTRIES.names), elsewhere)
        yield LogResults(_written(changes.entries, source, window), _others(changes, new, (source, key, window)))


def _logs_of(rows: pa.RecordBatch) -> dict[bytes, LogOf]:
    """The logs of entries, by hash."""
    columns = [rows.column(name).to_pylist() for name in ("entry_hash", "author", "log_id")]
    return {hashed: (author, int(log_id)) for hashed, author, log_id in zip(*columns, strict=True)}


def _written(entries: pa.RecordBatch, source: str, window: str) -> pa.RecordBatch:
    """Rows of ENTRIES as rows of WRITTEN."""
    constant = [pa.repeat(pa.scalar(value), entries.num_rows) for value in (source, window)]
    return pa.RecordBatch.from_arrays([*constant, *entries.columns], schema=WRITTEN)


def _standing(rows: pa.RecordBatch) -> Settled | None:
    """The state of the log after earlier windows, if it is settled."""
    known = rows.select(["length", "author", "log_id", *PLACE_NAMES]).to_pylist()
    return Settled(int(known[0].pop("length")), known[0]) if known else None


def _forks(rows: pa.RecordBatch) -> dict[int, Proved]:
    known = rows.select([name for name, _ in FORK_COLUMNS[: 1 + PROVED]]).to_pylist()
    counted = ("position", "first_length", "second_length")
    proved = [[int(row[name]) if name in counted else row[name] for name in row] for row in known]
    return {one[0]: tuple(one[1:]) for one in proved}


def _others(changes: Changes, new: pa.RecordBatch, place: tuple[str, str, str]) -> pa.RecordBatch:
    whose = dict(zip(("source", "key", "window_start"), place, strict=True))
    bad = new.filter(pc.and_(new.column("signature_rule").is_valid(), pc.equal(new.column("origin"), "metadata")))
    unsure = new.filter(new.column("unsure").fill_null(False))
    kinds = ((bad.select(ENTRIES.names), BAD), (unsure.select(ENTRIES.names), UNSURE), (changes.broken, FINDING))
    results = [_as_results(rows, what, whose) for rows, what in kinds if rows.num_rows]
    links = pa.RecordBatch.from_arrays([changes.loose], names=["entry_hash"])
    results += [_as_results(links, LOOSE, whose)] if links.num_rows else []
    others: list[dict[str, Any]] = [
        {"row_kind": ELSEWHERE, "entry_hash": link, "author": author, "log_id": log_id}
        for link, (author, log_id) in changes.led.items()
    ]
    if changes.entries.num_rows:
        of_log = changes.first
        others.append({"row_kind": STATE, "state": changes.digest})
        if None not in (of_log["author"], of_log["log_id"]):
            others.append({"row_kind": LOG} | of_log | _log_fields(changes))
        for kind, forks in ((FORK, changes.forks), (FINDING, changes.new_forks)):
            others += [{"row_kind": kind} | of_log | _fork_fields(row) for row in forks]
    return pa.concat_batches([*results, pa.RecordBatch.from_pylist([row | whose for row in others], schema=RESULTS)])


def _log_fields(changes: Changes) -> dict[str, Any]:
    log = changes.log
    names = ("entries", "valid", "invalid", "unknown", "length", "verified_up_to", "forked_at", "missing_entries")
    missing = [{"first": first, "last": last} for first, last in log.missing]
    return {name: getattr(log, name) for name in names} | {"ends_at": log.end_of_log, "missing": missing}


def _fork_fields(row: ForkRow) -> dict[str, Any]:
    fields = {name: value for name, value in row._asdict().items() if name != "place"}
    rule = ENTRY_RULE["fork"]
    reported = {"reason": rule.name, "message": row.description}
    return fields | dict(row.place) | reported


def _as_results(rows: pa.RecordBatch, what: str, whose: dict[str, str]) -> pa.RecordBatch:
    """Rows with columns of ENTRIES as rows of RESULTS."""
    for name, value in {"row_kind": what, **whose}.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return with_all(rows, RESULTS)
