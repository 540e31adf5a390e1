"""The state of logs with new entries after earlier windows, and links that lead to other logs.

Input: the new entries of a run, as rows of LOOKUP, and the history tables. Output: rows of MOVED without a window. Of a
settled log only the entries that the new ones need are loaded (`correlation.log_state.Settled`).

A loose link is a link that leads to no entry of its own log. Loose links are kept in the state. If one leads to an
entry of another log, which is rare, that entry is sent to the task of the log that links to it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial, reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.bamboo.correlation.entry_rows import (
    ENTRIES,
)
from wirehouse_codecs.bamboo.correlation.log_state import needed
from wirehouse_codecs.bamboo.log.schema import UINT
from wirehouse_pipelines.bamboo.verification_rows import (
    ELSEWHERE,
    ENTRIES_TABLE,
    ENTRY,
    FILE,
    FORK,
    FORKS_TABLE,
    LOG,
    LOGS_TABLE,
    LOOSE,
    MOVED,
    STATE_TABLE,
    Batches,
    Verified,
    few,
    with_all,
)
from wirehouse_pipelines.delta import spark_tables, table_reader
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.stages import buckets

#: The columns that are read of known entries.
KNOWN_COLUMNS: Final = dict.fromkeys(("source", *ENTRIES.names), ())


def known_of_logs(work: Work, seen: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The state of the logs that have new entries: rows of MOVED without a window, and positions of known entries."""
    logs = seen.select("source", "key").distinct()
    settled = work.settle(_settled(work, seen, logs))
    forks = _of_logs(work, logs, FORKS_TABLE, FORK, "author", "log_id", "position")
    forks = forks.where("NOT COALESCE(superseded, false)")
    links = _as_moved(_links(work).where("author IS NOT NULL").join(logs, ["source", "key"], "left_semi"))
    known = forks.unionByName(settled, allowMissingColumns=True).unionByName(links, allowMissingColumns=True)
    known = with_all(known, MOVED)
    return known, _known_entries(work, seen, logs, settled)


def _of_logs(work: Work, logs: DataFrame, table: str, kind: str, *key: str) -> DataFrame:
    """The newest rows of `table` about these logs, without a window."""
    rows = _newest(_keyed(work.read_state(table)).join(logs, ["source", "key"], "left_semi"), *key)
    without_window = {"row_kind": F.lit(kind), "window_start": F.lit(None).cast("string")}
    return rows.drop("decoder_version").withColumns(without_window)


def _keyed(rows: DataFrame) -> DataFrame:
    """`rows` with the key of their log."""
    key = F.concat(F.lower(F.hex("author")), F.lit(":"), F.col("log_id").cast("string"))
    otherwise = F.lower(F.hex("entry_id")) if "entry_id" in rows.columns else F.lit(None).cast("string")
    return rows.withColumn("key", F.coalesce(key, otherwise))


def _newest(rows: DataFrame, *key: str) -> DataFrame:
    newest = Window.partitionBy("source", *key).orderBy(F.desc("window_start"))
    return rows.withColumn("rank", F.row_number().over(newest)).where("rank = 1").drop("rank")


def _settled(work: Work, seen: DataFrame, logs: DataFrame) -> DataFrame:
    """Settled logs, as rows of kind LOG. A log with a new entry that may change verdicts on old ones is left out."""
    known = _of_logs(work, logs, LOGS_TABLE, LOG, "author", "log_id")
    whole = known.where(
        "entries = valid AND valid = length AND verified_up_to = length AND missing_entries = 0 AND forked_at IS NULL"
    )
    old = seen.where("end_of_log OR other_size").select(
        F.col("source").alias("old_source"),
        F.col("key").alias("old_key"),
        F.col("seq").alias("old_seq"),
        "other_size",
    )
    within = F.expr("source = old_source AND key = old_key AND (length > old_seq OR other_size)")
    # Entries have columns with the same names and another meaning.
    return whole.join(old, within, "left_anti").drop("entries", "end_of_log")


def _known_entries(work: Work, seen: DataFrame, logs: DataFrame, settled: DataFrame) -> DataFrame:
    """Positions of known entries of these logs: all entries, or for settled logs the needed ones.

    Spark reads only the columns that identify an entry, because one log may have millions.
    """
    lengths = settled.select("source", "key", "length")
    some = (
        seen.select("source", "key", "seq")
        .where("seq IS NOT NULL")
        .distinct()
        .join(lengths, ["source", "key"])
        .mapInArrow(_needed, from_arrow_schema(_NEEDED))
    )
    whole = logs.join(settled, ["source", "key"], "left_anti").withColumn("seq", F.lit(None))
    wanted = work.settle(whole.unionByName(some))
    state = work.read_state(ENTRIES_TABLE, places=True)
    named = _keyed(
        state.select(
            "source", "window_start", "author", "log_id", "seq", "entry_id", spark_tables.FILE, spark_tables.ROW
        )
    )
    known = named.limit(0)
    for condition, by in (("seq IS NULL", ["source", "key"]), ("seq IS NOT NULL", ["source", "key", "seq"])):
        known = known.unionByName(named.join(few(wanted.where(condition).select(*by)), by, "left_semi"))
    return _newest(known, "entry_id")


#: Entries of logs. Without `seq`: all entries of the log.
_NEEDED: Final = pa.schema([("source", pa.string()), ("key", pa.string()), ("seq", UINT)])


def known_rows(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Rows of MOVED of what is known, from the columns of KNOWN_COLUMNS."""
    for batch in batches:
        yield buckets.with_all(batch.append_column("row_kind", pa.repeat(ENTRY, batch.num_rows)), MOVED)


def _needed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of _NEEDED for new entries of settled logs, whose lengths are given. Rows may be repeated."""
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


def _links(work: Work) -> DataFrame:
    """Loose links of earlier windows, with author and log id of the entry that they lead to, if it is known."""
    rows = work.read_state(STATE_TABLE).where("link IS NOT NULL")
    rows = rows.select("source", "window_start", "key", "link", "author", "log_id")
    return _newest(rows, "key", "link").drop("window_start")


def _as_moved(links: DataFrame) -> DataFrame:
    """Rows of MOVED for the entries that links lead to."""
    named = links.withColumnsRenamed({"key": "linked_from", "link": "entry_hash"})
    return with_all(named.withColumn("row_kind", F.lit(ELSEWHERE)), MOVED)


def entries_elsewhere(work: Work, verified: Verified) -> DataFrame | None:
    """Entries that turned out to be linked from other logs, as rows of MOVED. None: there are none.

    The link may be new, or the entry, or both. If both are, the row has the window of the entry.
    """
    if not work.before and LOOSE not in verified.kinds:
        return None
    new = verified.of(LOOSE).select("source", "key", F.col("entry_hash").alias("link"))
    before = _links(work).where("author IS NULL").select("source", "key", "link") if work.before else new.limit(0)
    linked = []
    for links, entries in (
        (new.unionByName(before), partial(_written_entries, work, verified)),
        (new, partial(_known_hashes, work)),
    ):
        if not links.isEmpty():
            linked.append(entries().join(few(links.distinct()), ["source", "link"]))
    if not linked:
        return None
    own = F.concat(F.lower(F.hex("author")), F.lit(":"), F.col("log_id").cast("string"))
    first = Window.partitionBy("source", "key", "link").orderBy(F.col("window_start").asc_nulls_first())
    led = reduce(DataFrame.unionByName, linked).where(F.col("key") != own)
    led = work.settle(led.withColumn("rank", F.row_number().over(first)).where("rank = 1").drop("rank"))
    return None if led.isEmpty() else _as_moved(led)


def _written_entries(work: Work, verified: Verified) -> DataFrame:
    """Rows of _LINKABLE for the entries that this run wrote."""
    written = [json.loads(row.file) for row in verified.of(FILE).select("file").collect()]
    folder = work.lake.table_folder(ENTRIES_TABLE)
    files = [spark_tables.File(f"{folder}/{file['path']}", file["size"], 0) for file in written]
    columns: table_reader.Columns = dict.fromkeys(
        ("source", "window_start", "entry_hash", "author", "log_id", "own_rule"), ()
    )
    made = from_arrow_schema(_LINKABLE)
    return table_reader.mapped(work.spark, work.lake, ENTRIES_TABLE, files, columns, _linkable, made)


def _linkable(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        right = batch.filter(pc.and_(batch.column("entry_hash").is_valid(), batch.column("own_rule").is_null()))
        yield buckets.with_all(right.append_column("link", right.column("entry_hash")), _LINKABLE)


#: An entry that links may lead to, and its window.
_LINKABLE: Final = pa.schema(
    [
        ("source", pa.string()),
        ("window_start", pa.string()),
        ("link", pa.binary()),
        ("author", pa.binary()),
        ("log_id", UINT),
    ]
)


def _known_hashes(work: Work) -> DataFrame:
    """Rows of _LINKABLE, without a window, for the entries of earlier windows."""
    known = work.read_state(ENTRIES_TABLE).where("entry_hash IS NOT NULL AND own_rule IS NULL")
    nowhen = F.lit(None).cast("string").alias("window_start")
    return known.select("source", nowhen, F.col("entry_hash").alias("link"), "author", "log_id")
