"""Verifies the Bamboo entries of a run, log by log, whatever connection they came over.

The entries of the windows come from silver.bamboo, what earlier windows know of the same logs from the history tables
(`known_logs.py`). One stage brings all rows of a log together. Its fold checks the signature and the payload of each
distinct new entry (`signature_checks.py`) and updates the state of the log (`correlation/log_state.py`). It writes the
entries with their verdicts, logs, forks, findings and state.

A log is judged without the other logs, with one exception: a link may lead to an entry of another log
(`other_logs.py`). That hardly ever happens. If it does, all logs of the run are judged again with that entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.log.rows import ENTRY as LOGGED
from wirehouse_codecs.bamboo.rules import ENTRY_RULE
from wirehouse_codecs.core.rules import Rule
from wirehouse_pipelines.bamboo import other_logs
from wirehouse_pipelines.bamboo.known_logs import WANTED, Wanted, known, wanted
from wirehouse_pipelines.bamboo.log_results import fold
from wirehouse_pipelines.bamboo.other_logs import LED
from wirehouse_pipelines.bamboo.signature_checks import check
from wirehouse_pipelines.bamboo.verification_input import COLUMNS, entry_rows
from wirehouse_pipelines.bamboo.verification_rows import (
    BAD,
    ELSEWHERE,
    ENTRIES_TABLE,
    FINDING,
    FORK,
    FORKS_TABLE,
    FOUND_TABLE,
    KEY,
    LOG,
    LOGS_TABLE,
    LOOSE,
    MOVED,
    PLACE_NAMES,
    SILVER,
    STATE,
    STATE_TABLE,
    UNSURE,
    with_following,
)
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.batches import of_keys, whole_keys
from wirehouse_pipelines.delta.spark_tables import File
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.stages import Input, Order, Stage, Written

#: Metadata with a wrong signature, or with one that can't be checked: rows with columns of the state.
BAD_PIECES: Final = "bad_pieces"
#: `piece_rule` of the latter.
UNKNOWN: Final = "unknown"
TABLES: Final = (ENTRIES_TABLE, LOGS_TABLE, FORKS_TABLE, FOUND_TABLE, STATE_TABLE)
#: Minimum number of rows whose signatures are checked at once.
_ROWS: Final = 20_000
_ORDER: Final = Order(KEY, ("window_start", "arrived_at_ns", "capture_id", "record_number", "byte_start", "entry_id"))


def verified(work: Work, version: str) -> Written:
    """Verify the entries of a run. The files of its tables, and of BAD_PIECES."""
    written = _judge(work, [], version)
    if work.before or written[LOOSE]:
        led = steps.run(work, [other_logs.stage(work, written, has_loose=bool(written[LOOSE]))], version)
        if led[LED]:
            # The files that were written before stay outside the tables.
            written = _judge(work, steps.passed(work, STATE_TABLE, led[LED]), version)
    return written


def _judge(work: Work, led: Sequence[File], version: str) -> Written:
    """Judge all logs. `led`: entries that other logs turned out to link to, as rows of state."""
    files = spark_tables.files(work.lake, SILVER, work.members(), LOGGED)
    inputs = [Input(SILVER, files, COLUMNS, partial(entry_rows, services=work.services))]
    inputs += [other_logs.as_input(led)] if led else []
    if work.before:
        found = steps.run(work, [wanted(work, inputs)], version)[WANTED]
        inputs += known(work, Wanted(work.lake, steps.passed(work, ENTRIES_TABLE, found)))
    stage = Stage(
        inputs,
        MOVED,
        _ORDER,
        _judged,
        TABLES,
        steps.windows(work.spans),
        returned=[LOOSE],
        passed={BAD_PIECES: STATE_TABLE},
    )
    return steps.run(work, [stage], version)


def _judged(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The fold: rows of MOVED become rows of tables."""
    for rows in whole_keys(batches, KEY, _ROWS):
        # Rows of logs without new entries were read with others of their file.
        moved = of_keys(rows, KEY, rows.column("window_start").is_valid())
        results = list(fold(with_following(check(moved)))) if moved.num_rows else []
        if results:
            yield ENTRIES_TABLE, pa.concat_batches([one.entries for one in results])
            yield from _tables(pa.concat_batches([one.others for one in results]))


def _tables(results: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of RESULTS as rows of tables."""
    for kinds, made in _MADE.items():
        rows = results.filter(pc.is_in(results.column("row_kind"), pa.array(kinds)))
        if rows.num_rows:
            yield from made(rows)


def _log_rows(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    at = rows.schema.get_field_index("end_of_log")
    yield LOGS_TABLE, rows.set_column(at, "end_of_log", rows.column("ends_at"))


def _fork_rows(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    yield FORKS_TABLE, rows


def _findings(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    of_cancel = pc.equal(rows.column("origin"), "cancel").fill_null(False)
    channel = pc.if_else(of_cancel, "control", pc.if_else(rows.column("connection_id").is_valid(), "data", None))
    rules = [ENTRY_RULE[name] for name in rows.column("reason").to_pylist()]
    found = rows.select(["source", "window_start", *PLACE_NAMES, "message"]).append_column("channel", channel)
    yield FOUND_TABLE, with_rules(found, rules)


def with_rules(found: pa.RecordBatch, rules: Sequence[Rule]) -> pa.RecordBatch:
    """Rows of findings with the rule that each of them breaks."""
    names = {"rule": [rule.id for rule in rules], "severity": [rule.severity.value for rule in rules]}
    for name, values in (names | {"protocol": ["bamboo"] * len(rules)}).items():
        found = found.append_column(name, pa.array(values, pa.string()))
    return found


def _bad_pieces(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    unsure = pc.equal(rows.column("row_kind"), UNSURE)
    rule = pc.if_else(unsure, UNKNOWN, rows.column("signature_rule"))
    packets = rows.select(["source", "window_start", "connection_id", "direction", "byte_start"])
    yield BAD_PIECES, packets.append_column("piece_rule", rule)


def _states(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    yield STATE_TABLE, rows.select(["source", "window_start", "key", "state"])


def _links(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    named = rows.select(["source", "window_start", "key", "author", "log_id"])
    yield STATE_TABLE, named.append_column("link", rows.column("entry_hash"))
    loose = rows.filter(pc.equal(rows.column("row_kind"), LOOSE))
    # One is enough to know that there are some.
    yield LOOSE, loose.select(["source", "window_start"]).slice(0, 1)


_MADE: Final[Mapping[tuple[str, ...], Callable[[pa.RecordBatch], Iterator[tuple[str, pa.RecordBatch]]]]] = {
    (LOG,): _log_rows,
    (FORK,): _fork_rows,
    (FINDING,): _findings,
    (BAD, UNSURE): _bad_pieces,
    (STATE,): _states,
    (LOOSE, ELSEWHERE): _links,
}
