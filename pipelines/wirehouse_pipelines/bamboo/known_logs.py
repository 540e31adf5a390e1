"""What earlier windows know of the logs of this run.

The rows have the columns MOVED of `verification_rows.py`; their window is null, because no new entry is in them.

Only logs with new entries are read again, and of a settled log only the entries that the new ones need
(`correlation.log_state.Settled`). The stage `wanted` finds out which these are. It writes them as rows of the history's
columns: author, log id and sequence number; without a number, all entries of the log. `Wanted` reads this in the tasks
that read the history.

A loose link is a link that leads to no entry of its own log. Loose links are kept in the state (`other_logs.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import ENTRIES
from wirehouse_codecs.bamboo.correlation.log_state import PROVED, needed
from wirehouse_codecs.bamboo.log.schema import UINT
from wirehouse_pipelines.bamboo.verification_rows import (
    ELSEWHERE,
    ENTRIES_TABLE,
    ENTRY,
    FORK,
    FORK_COLUMNS,
    FORKS_TABLE,
    KEY,
    LOG,
    LOGS_TABLE,
    MOVED,
    PLACE_NAMES,
    STATE_TABLE,
    Array,
    key_of,
    log_of,
    with_key,
    without_following,
)
from wirehouse_pipelines.delta import spark_tables, table_reader
from wirehouse_pipelines.delta.batches import of_keys, pieces_of, whole_keys, with_all
from wirehouse_pipelines.delta.spark_tables import File
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.stages import Input, Order, Prepare, Stage, Where
from wirehouse_pipelines.tables import all_tables

#: The name of the rows that the stage writes.
WANTED: Final = "wanted"
_HISTORY: Final = ("source", "window_start")
_LOG_ID: Final = ("author", "log_id")
#: Columns of a log that show whether it is settled.
_COUNTS: Final = ("entries", "valid", "length", "verified_up_to", "missing_entries", "forked_at")
#: Rows of that stage: new entries, and logs as they stood. These have no `window_start`, and a length if settled.
_ASKED: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*KEY, "window_start", "state_window")),
        *((name, UINT) for name in ("seq", "length")),
        # The new entry ends its log, or came with a payload of another size.
        *((name, pa.bool_()) for name in ("end_of_log", "other_size")),
    ]
)
_WANTED: Final = pa.schema(
    [*((name, pa.string()) for name in _HISTORY), *(ENTRIES.field(name) for name in (*_LOG_ID, "seq", "entry_id"))]
)
#: Approximate number of rows that are folded at once.
_ROWS: Final = 20_000


def wanted(work: Work, new: Iterable[Input]) -> Stage:
    """The stage that finds the known entries that the entries of `new`, rows of MOVED, are judged with."""
    read = dict.fromkeys((*_HISTORY, *_LOG_ID, *_COUNTS), ())
    stood = Input(LOGS_TABLE, spark_tables.files(work.lake, LOGS_TABLE, work.alive()), read, _as_it_stood)
    return Stage(
        [*(Input(one.table, one.files, one.columns, partial(_asked, prepare=one.prepare)) for one in new), stood],
        _ASKED,
        Order(KEY, ("window_start", "state_window", "seq")),
        partial(_find, first={span.source: span.first for span in work.spans}),
        (),
        steps.windows(work.spans),
        passed={WANTED: ENTRIES_TABLE},
    )


def _asked(rows: pa.RecordBatch, prepare: Prepare) -> pa.RecordBatch:
    moved = prepare(rows)
    columns = {name: moved.column(name) for name in (*KEY, "seq", "end_of_log")}
    # A link that leads elsewhere may have no window.
    columns["window_start"] = pc.coalesce(moved.column("window_start"), moved.column("state_window"))
    columns["other_size"] = pc.equal(moved.column("payload_rule"), "payload_size_mismatch").fill_null(False)
    return with_all(pa.RecordBatch.from_pydict(columns), _ASKED)


def _as_it_stood(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare rows of logs."""
    entries, valid, length, up_to, missing, forked_at = (rows.column(name) for name in _COUNTS)
    conditions = [pc.equal(entries, valid), pc.equal(valid.cast(UINT), length), pc.equal(up_to, length)]
    conditions += [pc.equal(missing.cast(pa.int64()), 0), forked_at.is_null()]
    settled = np.all([np.asarray(one.fill_null(False)) for one in conditions], axis=0)
    columns = {
        "source": rows.column("source"),
        "key": _key(rows),
        "state_window": rows.column("window_start"),
        "length": pc.if_else(pa.array(settled), length, None),
    }
    return with_all(pa.RecordBatch.from_pydict(columns), _ASKED)


def _find(batches: Iterable[pa.RecordBatch], first: Mapping[str, str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of _WANTED, in the first window of their source."""
    for rows in whole_keys(batches, KEY, _ROWS):
        asked = of_keys(rows, KEY, rows.column("window_start").is_valid())
        found: list[dict[str, Any]] = []
        for (source, key), of_log in pieces_of(asked, KEY):
            seqs = _needed(of_log)
            log = {"source": source, "window_start": first[source]} | log_of(key)
            found += [log] if seqs is None else [log | {"seq": seq} for seq in sorted(seqs)]
        if found:
            yield WANTED, pa.RecordBatch.from_pylist(found, schema=_WANTED)


def _needed(of_log: pa.RecordBatch) -> set[int] | None:
    """The known entries of a log that new ones are judged with; None: all of them.

    A new entry may change verdicts on old ones if it ends the log, or has a payload of another size.
    """
    stood = int(np.count_nonzero(np.asarray(of_log.column("window_start").is_null())))
    length = of_log.column("length")[stood - 1].as_py() if stood else None
    if length is None:
        return None
    new = of_log.slice(stood)
    ends = pc.and_(new.column("end_of_log").fill_null(False), pc.less(new.column("seq"), length).fill_null(False))
    if pc.any(pc.or_(ends, new.column("other_size").fill_null(False))).as_py():
        return None
    return needed(map(int, new.column("seq").drop_null().to_pylist()), int(length))


class Wanted:
    """The entries that are wanted, read in a task from the files of the stage."""

    def __init__(self, lake: Lake, files: Sequence[File]) -> None:
        self._lake, self._files = lake, files

    @cached_property
    def _seqs(self) -> dict[tuple[str, str], Array | None]:
        """By source and log the wanted sequence numbers, or None for all entries."""
        found: defaultdict[tuple[str, str], list[Array]] = defaultdict(list)
        whole: dict[tuple[str, str], Array | None] = {}
        table = all_tables()[ENTRIES_TABLE]
        for file in self._files:
            for rows in table_reader.rows_of(self._lake, table, file.name, dict.fromkeys(_WANTED.names, ())):
                for log, at in _logs(rows):
                    if rows.column("seq")[int(at[0])].as_py() is None:
                        whole[log] = None
                    else:
                        found[log].append(_seqs(rows)[at])
        return {log: np.concatenate(seqs) for log, seqs in found.items()} | whole

    def of_logs(self, rows: pa.RecordBatch) -> pa.Array:
        """Which rows are about these logs."""
        return self._mask(rows, lambda seqs, at: True)

    def settled(self, rows: pa.RecordBatch) -> pa.Array:
        """Which rows are about logs of which some entries are wanted."""
        return self._mask(rows, lambda seqs, at: seqs is not None)

    def entries(self, rows: pa.RecordBatch) -> pa.Array:
        """Which rows are wanted entries."""
        known = _seqs(rows)
        return self._mask(rows, lambda seqs, at: True if seqs is None else np.isin(known[at], seqs))

    def _mask(self, rows: pa.RecordBatch, of_log: Callable[[Array | None, Array], bool | Array]) -> pa.Array:
        mask = np.zeros(rows.num_rows, np.bool_)
        for log, at in _logs(rows):
            if log in self._seqs:
                mask[at] = of_log(self._seqs[log], at)
        return pa.array(mask)


def _seqs(rows: pa.RecordBatch) -> Array:
    return np.asarray(rows.column("seq").cast(pa.uint64()).fill_null(0))


def _logs(rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], Array]]:
    """By source and key of a log: its rows. The rows are of one source, as those of a file of a table."""
    source, keys = rows.column("source")[0].as_py(), _key(rows).dictionary_encode()
    numbers = np.asarray(keys.indices)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(keys.dictionary)))
    for key, begin, end in zip(keys.dictionary.to_pylist(), [0, *ends[:-1]], ends, strict=True):
        yield (source, key), order[begin:end]


def _key(rows: pa.RecordBatch) -> pa.Array:
    names = rows.schema.names
    if "key" in names:
        return rows.column("key").fill_null("")
    entry_id = rows.column("entry_id") if "entry_id" in names else pa.nulls(rows.num_rows, pa.binary())
    return key_of(rows.column("author"), rows.column("log_id"), entry_id)


def known(work: Work, wanted: Wanted) -> list[Input]:
    """Entries, forks, settled logs and links that `wanted` asks for."""
    entries = dict.fromkeys((*_HISTORY, *ENTRIES.names), ())
    named = dict.fromkeys(("source", *_LOG_ID, "entry_id", "seq"), ())
    forks = dict.fromkeys((*_HISTORY, *_LOG_ID, "superseded", *(name for name, _ in FORK_COLUMNS[: 1 + PROVED])), ())
    logs = dict.fromkeys((*_HISTORY, *_LOG_ID, "length", *(n for n in PLACE_NAMES if n in _OF_LOGS)), ())
    links = dict.fromkeys((*_HISTORY, "key", "link", *_LOG_ID), ())
    of_log = dict.fromkeys(("source", *_LOG_ID), ())
    of_link = dict.fromkeys(("source", "key", "link"), ())
    alive = work.alive()
    return [
        Input(table, spark_tables.files(work.lake, table, alive), columns, prepare, Where(by, mask))
        for table, columns, prepare, by, mask in (
            (ENTRIES_TABLE, entries, _entries, named, wanted.entries),
            (FORKS_TABLE, forks, partial(_known, kind=FORK), of_log, wanted.of_logs),
            (LOGS_TABLE, logs, partial(_known, kind=LOG), of_log, wanted.settled),
            (STATE_TABLE, links, links_as_moved, of_link, partial(_links_of, wanted=wanted)),
        )
    ]


_OF_LOGS: Final = frozenset(column.name for column in all_tables()[LOGS_TABLE].columns)


def _known(rows: pa.RecordBatch, kind: str) -> pa.RecordBatch:
    """Rows of a history as rows of MOVED."""
    at = rows.schema.get_field_index("window_start")
    known = rows.set_column(at, "state_window", rows.column("window_start"))
    known = known.append_column("row_kind", pa.repeat(kind, rows.num_rows))
    return with_key(with_all(known, MOVED))


def _entries(rows: pa.RecordBatch) -> pa.RecordBatch:
    return without_following(_known(rows, ENTRY))


def links_as_moved(links: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of MOVED for the entries that links lead to, from rows of state; for an unknown entry, without an author."""
    names = {"key": "linked_from", "link": "entry_hash"}
    return _known(links.rename_columns([names.get(name, name) for name in links.schema.names]), ELSEWHERE)


def _links_of(rows: pa.RecordBatch, wanted: Wanted) -> pa.Array:
    return pc.and_(rows.column("link").is_valid(), wanted.of_logs(rows))
