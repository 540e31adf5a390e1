"""Verification of Bamboo entries apart from the order of the wire, in two passes over all entries of a run.

The first brings equal entries together and checks the signature and the payload of each distinct one, in parallel
whatever their logs. The second brings logs together and holds what is known of each (`known_log.py`). What windows
before found out stands in the history of entries: those of logs that have new ones come in again, with their verdicts;
of a log that is settled (`known_log.Settled`) only the few that new ones are held against.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.bamboo.entries import SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.bamboo.known_log import (
    ENTRIES,
    NO_ENTRIES,
    PLACE,
    Changes,
    ForkRow,
    KnownLog,
    Settled,
    needed,
    without_links,
)
from wirehouse_codecs.bamboo.log import UINT
from wirehouse_codecs.bamboo.rules import ENTRY_RULE
from wirehouse_codecs.bamboo.verify import payload_rule
from wirehouse_pipelines import buckets, table_writer
from wirehouse_pipelines.keyed_folds import BATCH_ROWS, pieces_of
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.storage import open_storage
from wirehouse_pipelines.tables import all_tables
from wirehouse_pipelines.work import Work

SILVER: Final = "silver.bamboo"
ENTRIES_TABLE: Final = "gold.bamboo_entries_history"
FORKS_TABLE: Final = "gold.bamboo_forks_history"
LOGS_TABLE: Final = "gold.bamboo_logs_history"

#: What is told, a row each. Of entries it is the file of ENTRIES_TABLE with these rows.
ENTRY, FORK, LOG, FOUND, BAD, STATE, FILE = "entry", "fork", "log", "found", "bad", "state", "file"
_FORK_COLUMNS: Final = (
    ("position", UINT),
    ("proof", pa.string()),
    ("first_hash", pa.binary()),
    ("second_hash", pa.binary()),
    ("first_data", pa.binary()),
    ("second_data", pa.binary()),
)
_LOG_COLUMNS: Final = (
    *((name, pa.int64()) for name in ("entries", "valid", "invalid", "unknown")),
    *((name, UINT) for name in ("length", "verified_up_to", "ends_at", "forked_at", "missing_entries")),
    ("missing", pa.list_(pa.struct([("first", UINT), ("last", UINT)]))),
)
_KEY: Final = (("told", pa.string()), ("source", pa.string()), ("key", pa.string()), ("window_start", pa.string()))
TOLD: Final = pa.schema([*_KEY, *ENTRIES, *_FORK_COLUMNS, *_LOG_COLUMNS, ("state", pa.string()), ("file", pa.string())])
#: Names of the columns with the buckets of the passes.
_BY_ENTRY, _BY_LOG = "by_entry", "by_log"
#: Entries between the passes, and what is known of logs.
BETWEEN: Final = pa.schema([*_KEY, *ENTRIES, *_FORK_COLUMNS[:4], ("length", UINT)])
_PACKED_BY_LOG: Final = BETWEEN.append(pa.field(_BY_LOG, pa.int32()))
#: What the first pass reads: also the payload, who sent it, and what names an entry apart from its links.
READ: Final = pa.schema([*_PACKED_BY_LOG, ("payload", pa.binary()), ("sender", pa.string()), ("sent_id", pa.binary())])
_PACKED_BY_ENTRY: Final = READ.append(pa.field(_BY_ENTRY, pa.int32()))
_ARRIVAL: Final = ("arrived_at_ns", "capture_id", "record_number", "byte_start")


def told(work: Work, seen: DataFrame, version: str) -> DataFrame:
    """Rows of TOLD of what each window changed, computed once; those of entries are in files, of this version.

    `seen` has an entry a row: the columns of READ but those that are found out here.
    """
    entries = seen.withColumn("told", F.lit(ENTRY)).withColumn("seen_from", F.array("sender"))
    known_logs = None
    if work.before:
        logs = seen.select("source", "key").distinct()
        settled = _settled(work, seen, logs)
        known_entries = _known_entries(work, seen, logs, settled)
        entries = entries.unionByName(known_entries, allowMissingColumns=True)
        forks = _known(work, logs, FORKS_TABLE, FORK, "author", "log_id", "position")
        known_logs = forks.unionByName(settled, allowMissingColumns=True)
    least = int(work.spark.conf.get("spark.sql.shuffle.partitions") or 1)
    tasks = buckets.number(work.rows_of_members(SILVER), _TASK_ROWS, least)
    by_log, by_entry = buckets.bucket(tasks, "source", "key"), buckets.bucket(tasks, "entry_id")
    read = _with_all(entries.withColumns({_BY_LOG: by_log, _BY_ENTRY: by_entry}), _PACKED_BY_ENTRY)
    checked = buckets.together(buckets.packed(read, _PACKED_BY_ENTRY, _BY_ENTRY), tasks).mapInArrow(_check, buckets.DDL)
    if known_logs is not None:
        known = _with_all(known_logs.withColumn(_BY_LOG, by_log), _PACKED_BY_LOG)
        checked = checked.unionByName(buckets.packed(known, _PACKED_BY_LOG, _BY_LOG))
    tell = partial(_tell, lake=work.lake, version=version)
    return work.settle(buckets.together(checked, tasks).mapInArrow(tell, from_arrow_schema(TOLD)))


#: A task has about so many rows of silver, and the entries among them: to check them takes some seconds.
_TASK_ROWS: Final = 100_000
_ENTRY_ORDER: Final = ("entry_id", "window_start", "source", "sender", *_ARRIVAL)
#: A cancel shows two entries at one place.
_LOG_ORDER: Final = ("source", "key", "window_start", *_ARRIVAL, "entry_id")


def _check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packed entries of the first pass as packed ones of the second."""
    return buckets.pack(check(buckets.unpack(batches, READ, _ENTRY_ORDER)), _BY_LOG)


def _tell(batches: Iterable[pa.RecordBatch], lake: Lake, version: str) -> Iterator[pa.RecordBatch]:
    """Rows of TOLD of packed entries; those of entries are written."""
    others: list[pa.RecordBatch] = []

    def entries() -> Iterator[pa.RecordBatch]:
        for rows in fold(buckets.unpack(batches, BETWEEN, _LOG_ORDER)):
            of_entry = pc.equal(rows.column("told"), ENTRY)
            others.append(rows.filter(pc.invert(of_entry)))
            written = rows.filter(of_entry)
            yield written.append_column("decoder_version", pa.repeat(version, written.num_rows))

    table, folder = all_tables()[ENTRIES_TABLE], lake.table_folder(ENTRIES_TABLE)
    for file in table_writer.write_all(open_storage(lake.root), folder, table, entries()):
        others.append(pa.RecordBatch.from_pylist([{"told": FILE, "file": json.dumps(file)}], schema=TOLD))
        yield from others
        others.clear()
    yield from others


def _with_all(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """The columns of `schema`; those that `rows` lacks are null."""
    types = {field.name: field.dataType for field in from_arrow_schema(schema)}
    return rows.select(
        *(name if name in rows.columns else F.lit(None).cast(kind).alias(name) for name, kind in types.items())
    )


def key_of(author: Column, log_id: Column, entry_id: Column) -> Column:
    """The key of an entry's log; of what can't be read as one, its own."""
    return F.coalesce(F.concat(F.hex(author), F.lit(":"), log_id.cast("string")), F.hex(entry_id))


def _known(work: Work, logs: DataFrame, table: str, what: str, *key: str) -> DataFrame:
    """The newest rows of `table` about these logs, as rows without a window."""
    return _newest(_named(work, table).join(logs, ["source", "key"], "left_semi"), what, *key)


def _named(work: Work, table: str) -> DataFrame:
    rows = work.read_state(table)
    otherwise = F.col("entry_id") if "entry_id" in rows.columns else F.lit(None).cast("binary")
    return rows.withColumn("key", key_of(F.col("author"), F.col("log_id"), otherwise))


def _newest(rows: DataFrame, what: str, *key: str) -> DataFrame:
    newest = Window.partitionBy("source", *key).orderBy(F.desc("window_start"))
    return (
        rows.withColumn("rank", F.row_number().over(newest))
        .where("rank = 1")
        .drop("rank", "decoder_version")
        .withColumns({"told": F.lit(what), "window_start": F.lit(None).cast("string")})
    )


def _settled(work: Work, seen: DataFrame, logs: DataFrame) -> DataFrame:
    """Logs that are settled and that no new entry can unsettle from within, as rows of kind LOG."""
    known = _known(work, logs, LOGS_TABLE, LOG, "author", "log_id")
    whole = known.where(
        "entries = valid AND valid = length AND verified_up_to = length AND missing_entries = 0 AND forked_at IS NULL"
    )
    other_size = F.coalesce(F.length("payload") != F.col("payload_size"), F.lit(False))
    old = seen.where(F.col("end_of_log") | other_size).select(
        F.col("source").alias("old_source"),
        F.col("key").alias("old_key"),
        F.col("seq").alias("old_seq"),
        other_size.alias("other_size"),
    )
    within = F.expr("source = old_source AND key = old_key AND (length > old_seq OR other_size)")
    # These columns of logs have the names of others of entries.
    return whole.join(old, within, "left_anti").drop("entries", "end_of_log")


def _known_entries(work: Work, seen: DataFrame, logs: DataFrame, settled: DataFrame) -> DataFrame:
    """What is known of these logs: all entries, and of settled ones those that are needed."""
    named = _named(work, ENTRIES_TABLE)
    others = logs.join(settled, ["source", "key"], "left_anti")
    lengths = settled.select("source", "key", "length")
    wanted = (
        seen.select("source", "key", "seq")
        .where("seq IS NOT NULL")
        .distinct()
        .join(lengths, ["source", "key"])
        .mapInArrow(_needed, from_arrow_schema(_NEEDED))
    )
    rows = named.join(others, ["source", "key"], "left_semi").unionByName(
        named.join(wanted, ["source", "key", "seq"], "left_semi")
    )
    return _newest(rows, ENTRY, "entry_id")


_NEEDED: Final = pa.schema([("source", pa.string()), ("key", pa.string()), ("seq", UINT)])


def _needed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of _NEEDED for new entries, with the lengths of their logs; the same row may be there again."""
    for batch in batches:
        logs: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
        for source, key, seq, length in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            logs[source, key, int(length)].append(int(seq))
        rows = [
            {"source": source, "key": key, "seq": seq}
            for (source, key, length), seqs in logs.items()
            for seq in needed(seqs, length)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_NEEDED)


# The first pass


def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of BETWEEN, and their buckets, of entries by entry_id: known ones first, of a sender one of a window."""
    checked: tuple[bytes, str | None] = b"", None
    for batch in batches:
        if not batch.num_rows:
            continue
        ids, known = batch.column("entry_id").to_pylist(), batch.column("window_start").is_null().to_pylist()
        told_before, data = (batch.column(name).to_pylist() for name in ("signature_rule", "data"))
        authors, own = (batch.column(name).to_pylist() for name in ("author", "own_rule"))
        rules: list[str | None] = []
        for i, one in enumerate(ids):
            if one != checked[0]:
                rule = told_before[i]
                if not known[i] and own[i] is None and (entry := data[i]) is not None:
                    rule = signature_rule(authors[i], entry[:-SIGNATURE_BYTES], entry[-SIGNATURE_BYTES:])
                checked = one, rule
            rules.append(checked[1])
        columns = {"signature_rule": pa.array(rules, pa.string()), "payload_rule": _payload_rules(batch)}
        arrays = [columns.get(field.name, batch.column(field.name)).cast(field.type) for field in _PACKED_BY_LOG]
        rows = pa.RecordBatch.from_arrays(arrays, schema=_PACKED_BY_LOG)
        assumed = np.asarray(batch.column("sent_id").is_valid()) & np.asarray(rows.column("signature_rule").is_valid())
        if assumed.any():
            rows = _without_links(rows, np.flatnonzero(assumed).tolist(), batch.column("sent_id").to_pylist())
        yield rows.filter(pa.array(_first_of_sender(batch) | np.asarray(rows.column("signature_rule").is_valid())))


def _payload_rules(batch: pa.RecordBatch) -> pa.Array:
    before = batch.column("payload_rule")
    payloads = batch.column("payload")
    if payloads.null_count == batch.num_rows:
        return before
    rules = before.to_pylist()
    for i in np.flatnonzero(np.asarray(payloads.is_valid())).tolist():
        said = batch.column("payload_size")[i].as_py(), batch.column("payload_hash")[i].as_py()
        if None not in said:
            rules[i] = payload_rule(payloads[i].as_py(), int(said[0]), said[1])
    return pa.array(rules, pa.string())


def _first_of_sender(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Rows whose entry, window or sender differs from those of the row before; and all of files, for their payloads."""
    first = np.ones(batch.num_rows, np.bool_)
    same = np.ones(batch.num_rows - 1, np.bool_)
    for name in ("entry_id", "window_start", "source", "sender"):
        column = batch.column(name)
        same &= np.asarray(pc.equal(column[1:], column[:-1]).fill_null(False))
    first[1:] = ~same | np.asarray(batch.column("payload")[1:].is_valid())
    return first


def _without_links(rows: pa.RecordBatch, places: list[int], sent_ids: list[bytes]) -> pa.RecordBatch:
    """`rows` in which entries of these places have no links that were not sent."""
    listed = rows.to_pylist()
    for i in places:
        listed[i] = without_links(listed[i], sent_ids[i])
    return pa.RecordBatch.from_pylist(listed, schema=_PACKED_BY_LOG)


# The second pass


def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of TOLD of entries that stand by log, and of each log by window; what is known of it comes first."""
    waiting: list[pa.RecordBatch] = []
    for rows in _folded(batches):
        if rows.num_rows >= BATCH_ROWS:
            yield rows
            continue
        waiting.append(rows)
        if sum(batch.num_rows for batch in waiting) >= BATCH_ROWS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _folded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pieces = (piece for batch in batches for piece in pieces_of(batch, ("source", "key", "window_start")))
    for (source, key), of_log in groupby(pieces, lambda piece: piece.place[:2]):
        log: KnownLog | None = None
        for window, of_window in groupby(of_log, lambda piece: piece.place[2]):
            rows = pa.concat_batches([piece.rows for piece in of_window])
            if window is None:
                of_kind = {kind: rows.filter(pc.equal(rows.column("told"), kind)) for kind in (ENTRY, FORK, LOG)}
                entries = of_kind[ENTRY].select(ENTRIES.names).cast(ENTRIES)
                log = KnownLog(entries, _forks(of_kind[FORK]), _standing(of_kind[LOG]))
                continue
            entries = rows.select(ENTRIES.names).cast(ENTRIES)
            log = log or KnownLog(NO_ENTRIES, {})
            yield from _rows(log.take(entries), entries, {"source": source, "key": key, "window_start": window})


def _standing(rows: pa.RecordBatch) -> Settled | None:
    """The log as the windows before left it, if it is settled."""
    told = rows.select(["length", "author", "log_id", *(name for name, _ in PLACE)]).to_pylist()
    return Settled(int(told[0].pop("length")), told[0]) if told else None


def _forks(rows: pa.RecordBatch) -> dict[int, tuple[str, bytes, bytes]]:
    known = rows.select([name for name, _ in _FORK_COLUMNS[:4]]).to_pylist()
    return {int(row["position"]): (row["proof"], row["first_hash"], row["second_hash"]) for row in known}


def _rows(changes: Changes, new: pa.RecordBatch, whose: dict[str, str]) -> Iterator[pa.RecordBatch]:
    yield _told(changes.entries, ENTRY, whose)
    bad = new.filter(pc.and_(new.column("signature_rule").is_valid(), pc.equal(new.column("origin"), "metadata")))
    for rows, what in ((bad, BAD), (changes.broken, FOUND)):
        if rows.num_rows:
            yield _told(rows, what, whose)
    if not changes.entries.num_rows:
        return
    of_log = changes.first
    others: list[dict[str, Any]] = [{"told": STATE, "state": changes.digest}]
    if None not in (of_log["author"], of_log["log_id"]):
        others.append({"told": LOG} | of_log | _log_fields(changes))
    for told_as, forks in ((FORK, changes.forks), (FOUND, changes.new_forks)):
        others += [{"told": told_as} | of_log | _fork_fields(row) for row in forks]
    yield pa.RecordBatch.from_pylist([row | whose for row in others], schema=TOLD)


def _log_fields(changes: Changes) -> dict[str, Any]:
    log = changes.log
    names = ("entries", "valid", "invalid", "unknown", "length", "verified_up_to", "forked_at", "missing_entries")
    missing = [{"first": first, "last": last} for first, last in log.missing]
    return {name: getattr(log, name) for name in names} | {"ends_at": log.end_of_log, "missing": missing}


def _fork_fields(row: ForkRow) -> dict[str, Any]:
    told_of = {name: value for name, value in row._asdict().items() if name != "place"}
    rule = ENTRY_RULE["fork"]
    said = {"reason": rule.name, "message": row.said}
    return told_of | dict(row.place) | said


def _told(rows: pa.RecordBatch, what: str, whose: dict[str, str]) -> pa.RecordBatch:
    """Rows of ENTRIES as rows of TOLD."""
    count = rows.num_rows
    constant = {"told": what, **whose}
    arrays = []
    for field in TOLD:
        if field.name in constant:
            arrays.append(pa.repeat(pa.scalar(constant[field.name], field.type), count))
        elif field.name in ENTRIES.names:
            arrays.append(rows.column(field.name))
        else:
            arrays.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=TOLD)
