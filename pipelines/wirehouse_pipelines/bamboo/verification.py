"""Verification of Bamboo entries apart from the order of the wire, over all entries of a run.

Entries are read from the log's files and brought together by log. A task has some logs: it checks the signature and
the payload of each distinct entry, holds what is known of each log (`correlation/log_state.py`), and writes the
entries. What windows before found out stands in the history of entries: those of logs that have new ones come in
again, with their verdicts; of a log that is settled (`correlation.log_state.Settled`) only the few that new ones are
held against.

A log is judged apart from others but for its loose links, which lead to none of its entries. They are told, and kept as
state; where one leads to an entry of another log, which hardly ever happens, all logs of the run are judged again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.bamboo.correlation.log_state import (
    ENTRIES,
    NO_ENTRIES,
    PLACE,
    PROVED,
    Changes,
    ForkRow,
    KnownLog,
    Proved,
    Settled,
    follows_bad,
    needed,
    only,
    sent_id,
    with_columns,
    without_links,
)
from wirehouse_codecs.bamboo.log.file_rows import FILE as FROM_FILE
from wirehouse_codecs.bamboo.log.rows import ENTRY as LOGGED
from wirehouse_codecs.bamboo.log.schema import ENTRY_TYPE, UINT
from wirehouse_codecs.bamboo.rules import ENTRY_RULE
from wirehouse_codecs.bamboo.wire import entries as bamboo_entries
from wirehouse_codecs.bamboo.wire.entries import FOLLOWING
from wirehouse_codecs.bamboo.wire.entry_verification import LogOf, payload_rule
from wirehouse_codecs.bamboo.wire.signatures import signature_rules
from wirehouse_pipelines.delta import spark_tables, table_reader, table_writer
from wirehouse_pipelines.delta.batches import pieces_of
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.stages import buckets
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import all_tables

Array = np.ndarray[Any, Any]
Batches = Iterable[pa.RecordBatch]

SILVER: Final = "silver.bamboo"
ENTRIES_TABLE: Final = "gold.bamboo_entries_history"
FORKS_TABLE: Final = "gold.bamboo_forks_history"
LOGS_TABLE: Final = "gold.bamboo_logs_history"

#: The state that windows hand on.
STATE_TABLE: Final = "gold.bamboo_state"

#: What is told, a row each; entries are written, and a row tells of their file in ENTRIES_TABLE. Of a loose link
#: `entry_hash` is what it names; one that leads elsewhere has author and log id of that entry.
ENTRY, FORK, LOG, FOUND, BAD, STATE, FILE = "entry", "fork", "log", "found", "bad", "state", "file"
#: Metadata whose links are those of entries with wrong signatures, so that its own signature can't be checked.
UNSURE: Final = "unsure"
LOOSE, ELSEWHERE = "loose", "elsewhere"
_FORK_COLUMNS: Final = (
    ("position", UINT),
    ("proof", pa.string()),
    ("first_hash", pa.binary()),
    ("second_hash", pa.binary()),
    *(
        (f"{branch}_{name}", kind)
        for branch in ("first", "second")
        for name, kind in (("length", UINT), ("head", pa.binary()), ("served_by", pa.list_(pa.string())))
    ),
    ("first_data", pa.binary()),
    ("second_data", pa.binary()),
)
_LOG_COLUMNS: Final = (
    *((name, pa.int64()) for name in ("entries", "valid", "invalid", "unknown")),
    *((name, UINT) for name in ("length", "verified_up_to", "ends_at", "forked_at", "missing_entries")),
    ("missing", pa.list_(pa.struct([("first", UINT), ("last", UINT)]))),
)
_WHOSE: Final = (("told", pa.string()), ("source", pa.string()), ("window_start", pa.string()))
_KEY: Final = ("key", pa.string())
_MORE: Final = (("state", pa.string()), ("file", pa.string()))
TOLD: Final = pa.schema([*_WHOSE, _KEY, *ENTRIES, *_FORK_COLUMNS, *_LOG_COLUMNS, *_MORE])
#: Entries as they are written.
WRITTEN: Final = pa.schema([("source", pa.string()), ("window_start", pa.string()), *ENTRIES])
#: Entries as they come to the task of their log: also who sent it, and what names an entry apart from its links.
#: `entry_id` is null where it is the entry's hash, or else that name.
MOVED: Final = pa.schema(
    [
        *_WHOSE,
        *ENTRIES,
        *_FORK_COLUMNS[: 1 + PROVED],
        ("length", UINT),
        ("sender", pa.string()),
        ("sent_id", pa.binary()),
        # Of an entry to which a link of another log leads: that log.
        ("linked_from", pa.string()),
    ]
)
#: The same with what follows from it.
READ: Final = MOVED.append(pa.field(*_KEY)).append(pa.field("unsure", pa.bool_()))
#: What is read of the log.
_OF_ENTRY: Final = [name for name in ENTRY_TYPE.names if name != "greedy"]
_PLACE: Final = tuple(name for name, _ in PLACE)
_COLUMNS: Final = dict.fromkeys(("source", "window_start", *_PLACE), ()) | {"entry": _OF_ENTRY}
#: What is read of entries that are known.
_KNOWN_COLUMNS: Final = dict.fromkeys(("source", *ENTRIES.names), ())
#: What is told of new entries to those who look for known ones.
_SEEN: Final = pa.schema(
    [
        ("source", pa.string()),
        ("key", pa.string()),
        ("seq", UINT),
        ("end_of_log", pa.bool_()),
        ("other_size", pa.bool_()),
    ]
)
_ARRIVAL: Final = ("arrived_at_ns", "capture_id", "record_number", "byte_start")
#: A task has about so many entries: to check them takes some seconds.
_TASK_ROWS: Final = 20_000


class Verified(NamedTuple):
    """What the windows of a run changed: rows of TOLD, computed once; those of entries are in files."""

    rows: DataFrame
    #: What they tell.
    kinds: frozenset[str]

    def of(self, *kinds: str) -> DataFrame:
        """The rows that tell this; where none does, Spark knows that there are none."""
        there = self.kinds.intersection(kinds)
        return self.rows.where(F.col("told").isin(*there)) if there else self.rows.limit(0)


def verified(work: Work, version: str) -> Verified:
    """What each window changed; files of entries are written, of this version."""
    least = int(work.spark.conf.get("spark.sql.shuffle.partitions") or 1)
    found = _judged(work, version, least, None)
    if (elsewhere := _elsewhere(work, found)) is not None:
        # The files of before belong to no table.
        found = _judged(work, version, least, elsewhere)
    return found


def _judged(work: Work, version: str, least: int, elsewhere: DataFrame | None) -> Verified:
    """What each window changed; `elsewhere` are rows of MOVED of the entries where links of other logs lead to."""
    read = partial(_entries, services=work.services)
    files = spark_tables.files(work.lake, SILVER, work.members(), LOGGED)
    tasks = buckets.number(sum(file.rows for file in files), _TASK_ROWS, least)
    of_log = partial(table_reader.mapped, work.spark, work.lake, SILVER, files, _COLUMNS)
    packed = of_log(partial(_packed, entries=read, tasks=tasks), buckets.DDL)
    others = [] if elsewhere is None else [elsewhere]
    if work.before:
        seen = of_log(partial(_seen, entries=read), from_arrow_schema(_SEEN))
        if elsewhere is not None:
            linking = _with_all(elsewhere.withColumn("key", F.col("linked_from")).select("source", "key"), _SEEN)
            seen = seen.unionByName(linking.fillna(False))
        known, places = _known(work, work.settle(seen))
        others.append(known)
        of_known = partial(_packed, entries=_known_rows, tasks=tasks)
        of_table = table_reader.picked(work.lake, ENTRIES_TABLE, places, _KNOWN_COLUMNS, of_known, buckets.DDL, least)
        packed = packed.unionByName(of_table)
    for rows in others:
        packed = packed.unionByName(rows.mapInArrow(partial(_packed, entries=_cast, tasks=tasks), buckets.DDL))
    tell = partial(_tell, lake=work.lake, version=version)
    rows = work.settle(buckets.together(packed, tasks).mapInArrow(tell, from_arrow_schema(TOLD)))
    # They are few now, for so many tasks.
    rows = rows.coalesce(least)
    (kinds,) = rows.agg(F.collect_set("told")).collect()[0]
    return Verified(rows, frozenset(kinds))


def _packed(batches: Batches, entries: Callable[[Batches], Batches], tasks: int) -> Iterator[pa.RecordBatch]:
    light = map(_without_following, entries(batches))
    return buckets.pack(light, lambda rows: _named(rows).column("key"), tasks)


def _without_following(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` of MOVED without what follows from the encoded entries: on its way that would be a third."""
    right = bamboo_entries.scan(rows.column("data")).right
    kept = (rows.column(name) for name in FOLLOWING)
    light = [pa.nulls(len(right), c.type) if right.all() else pc.if_else(right, None, c) for c in kept]
    return with_columns(rows, dict(zip(FOLLOWING, light, strict=True)))


def _with_following(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` of READ with what `_without_following` left out."""
    right, columns = bamboo_entries.following(rows.column("data"))
    if not right.all():
        columns = {name: pc.if_else(right, column, rows.column(name)) for name, column in columns.items()}
    return with_columns(rows, columns)


def _cast(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Rows of MOVED from Spark, which has other names for the items of lists."""
    return (batch.cast(MOVED) for batch in batches)


def _named(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of READ from rows of MOVED."""
    entry_id = pc.coalesce(*(rows.column(name) for name in ("entry_id", "entry_hash", "sent_id")))
    key = pc.coalesce(rows.column("linked_from"), key_of(rows.column("author"), rows.column("log_id"), entry_id))
    named = rows.set_column(MOVED.get_field_index("entry_id"), "entry_id", entry_id).append_column("key", key)
    return named.append_column("unsure", pa.nulls(rows.num_rows, pa.bool_()))


def _seen(batches: Batches, entries: Callable[[Batches], Batches]) -> Iterator[pa.RecordBatch]:
    """Rows of _SEEN of entries."""
    for moved in entries(batches):
        rows = _named(moved)
        other_size = pc.equal(rows.column("payload_rule"), "payload_size_mismatch").fill_null(False)
        columns = [rows.column(name) for name in _SEEN.names if name != "other_size"]
        yield pa.RecordBatch.from_arrays([*columns, other_size], schema=_SEEN)


def _entries(batches: Batches, services: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Rows of MOVED of entries of the log.

    Also of connections that several sources saw: each distinct entry is one, and what one of them lost another has.
    """
    return (_entry_rows(batch, services) for batch in batches if batch.num_rows)


def _entry_rows(batch: pa.RecordBatch, services: Mapping[str, str]) -> pa.RecordBatch:
    rows, entry = batch.num_rows, dict(zip(_OF_ENTRY, batch.column("entry").flatten(), strict=True))
    uncertain = pc.or_(entry["entry_hash"].is_null(), entry["assumed_links"].fill_null(False))
    sent_ids: list[bytes | None] = [None] * rows
    for i in pc.indices_nonzero(uncertain).to_pylist():
        sent_ids[i] = sent_id({name: column[i].as_py() for name, column in entry.items()})
    sent = pa.array(sent_ids, pa.binary())
    own = pc.not_equal(entry["rule"], "link_unknown").fill_null(False)
    source = batch.column("source").dictionary_encode()
    service = pa.array([services[name] for name in source.dictionary.to_pylist()], pa.string())
    columns = {
        **{name: batch.column(name) for name in ("window_start", *_PLACE)},
        **{name: column for name, column in entry.items() if name in MOVED.names},
        "source": service.take(source.indices),
        "sent_id": sent,
        "payload_rule": pa.array(_payload_rules(entry), pa.string()),
        "own_rule": pc.if_else(own, entry["rule"], None),
        "own_reason": pc.if_else(own, entry["reason"], None),
        "reason": pa.nulls(rows, pa.string()),
        "seen_from": pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), entry["sender"]),
    }
    arrays = [columns[one.name].cast(one.type) if one.name in columns else pa.nulls(rows, one.type) for one in MOVED]
    return pa.RecordBatch.from_arrays(arrays, schema=MOVED)


def key_of(author: pa.Array, log_id: pa.Array, entry_id: pa.Array) -> pa.Array:
    """The key of each entry's log; of what can't be read as one, its own."""
    authors = author.dictionary_encode()
    named = pa.array([one.hex() for one in authors.dictionary.to_pylist()], pa.string()).take(authors.indices)
    keys = pc.binary_join_element_wise(named, log_id.cast(pa.string()), ":")
    if keys.null_count:
        listed = keys.to_pylist()
        keys = pa.array([key or entry_id[i].as_py().hex() for i, key in enumerate(listed)], pa.string())
    return keys


def _payload_rules(entry: Mapping[str, pa.Array]) -> list[str | None]:
    """The rules that payloads break which are at hand: these go no further."""
    rules: list[str | None] = [None] * len(entry["payload"])
    for i in pc.indices_nonzero(entry["payload"].is_valid()).to_pylist():
        size, hashed = entry["payload_size"][i].as_py(), entry["payload_hash"][i].as_py()
        if None not in (size, hashed):
            rules[i] = payload_rule(entry["payload"][i].as_py(), int(size), hashed)
    return rules


def _tell(batches: Batches, lake: Lake, version: str) -> Iterator[pa.RecordBatch]:
    """Rows of TOLD of packed entries; the entries are written."""
    others: list[pa.RecordBatch] = []

    def entries() -> Iterator[pa.RecordBatch]:
        rows = buckets.unpack(batches, MOVED)
        for told in fold(_with_following(check(_named(rows)))) if rows.num_rows else ():
            others.append(told.others)
            yield told.entries.append_column("decoder_version", pa.repeat(version, told.entries.num_rows))

    table, folder = all_tables()[ENTRIES_TABLE], lake.table_folder(ENTRIES_TABLE)
    for file in table_writer.write_all(open_storage(lake.root), folder, table, entries()):
        others.append(pa.RecordBatch.from_pylist([{"told": FILE, "file": json.dumps(file)}], schema=TOLD))
        yield pa.concat_batches(others)
        others.clear()
    if others:
        yield pa.concat_batches(others)


# What windows before told


def _known(work: Work, seen: DataFrame) -> tuple[DataFrame, DataFrame]:
    """What is known of the logs that new entries are of: rows of MOVED without a window, and places of entries."""
    logs = seen.select("source", "key").distinct()
    settled = work.settle(_settled(work, seen, logs))
    forks = _of_logs(work, logs, FORKS_TABLE, FORK, "author", "log_id", "position")
    forks = forks.where("NOT COALESCE(superseded, false)")
    links = _as_moved(_links(work).where("author IS NOT NULL").join(logs, ["source", "key"], "left_semi"))
    known = forks.unionByName(settled, allowMissingColumns=True).unionByName(links, allowMissingColumns=True)
    known = _with_all(known, MOVED)
    return known, _known_entries(work, seen, logs, settled)


def _with_all(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """The columns of `schema`; those that `rows` lacks are null."""
    types = {field.name: field.dataType for field in from_arrow_schema(schema)}
    return rows.select(
        *(name if name in rows.columns else F.lit(None).cast(kind).alias(name) for name, kind in types.items())
    )


def _of_logs(work: Work, logs: DataFrame, table: str, what: str, *key: str) -> DataFrame:
    """The newest rows of `table` about these logs, as rows without a window."""
    rows = _newest(_keyed(work.read_state(table)).join(logs, ["source", "key"], "left_semi"), *key)
    return rows.drop("decoder_version").withColumns({"told": F.lit(what), "window_start": F.lit(None).cast("string")})


def _keyed(rows: DataFrame) -> DataFrame:
    """`rows` with the key of their log."""
    key = F.concat(F.lower(F.hex("author")), F.lit(":"), F.col("log_id").cast("string"))
    otherwise = F.lower(F.hex("entry_id")) if "entry_id" in rows.columns else F.lit(None).cast("string")
    return rows.withColumn("key", F.coalesce(key, otherwise))


def _newest(rows: DataFrame, *key: str) -> DataFrame:
    newest = Window.partitionBy("source", *key).orderBy(F.desc("window_start"))
    return rows.withColumn("rank", F.row_number().over(newest)).where("rank = 1").drop("rank")


def _settled(work: Work, seen: DataFrame, logs: DataFrame) -> DataFrame:
    """Logs that are settled and that no new entry can unsettle from within, as rows of kind LOG."""
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
    # These columns of logs have the names of others of entries.
    return whole.join(old, within, "left_anti").drop("entries", "end_of_log")


def _known_entries(work: Work, seen: DataFrame, logs: DataFrame, settled: DataFrame) -> DataFrame:
    """Places of what is known of these logs: all entries, and of settled ones those that are needed.

    Spark reads of all that is known what names an entry, and no more: one log may have millions.
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
    found = named.limit(0)
    for condition, by in (("seq IS NULL", ["source", "key"]), ("seq IS NOT NULL", ["source", "key", "seq"])):
        found = found.unionByName(named.join(few(wanted.where(condition).select(*by)), by, "left_semi"))
    return _newest(found, "entry_id")


def few(rows: DataFrame) -> DataFrame:
    """`rows`, which are settled, for a join with many: mostly few or none, which Spark doesn't know of itself."""
    count = rows.count()
    return rows.limit(0) if not count else F.broadcast(rows) if count <= _TOLD_TO_ALL else rows


#: So many rows at most are told to every task.
_TOLD_TO_ALL: Final = 200_000
#: Entries of logs; all of a log without `seq`.
_NEEDED: Final = pa.schema([("source", pa.string()), ("key", pa.string()), ("seq", UINT)])


def _known_rows(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Rows of MOVED of what is known, from the columns of _KNOWN_COLUMNS."""
    for batch in batches:
        yield buckets.with_all(batch.append_column("told", pa.repeat(ENTRY, batch.num_rows)), MOVED)


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


# Links that lead to other logs


def _links(work: Work) -> DataFrame:
    """Loose links of the windows before; author and log id are those of the entry that one leads to, if it is known."""
    rows = work.read_state(STATE_TABLE).where("link IS NOT NULL")
    rows = rows.select("source", "window_start", "key", "link", "author", "log_id")
    return _newest(rows, "key", "link").drop("window_start")


def _as_moved(links: DataFrame) -> DataFrame:
    """Rows of MOVED of the entries that links lead to."""
    named = links.withColumnsRenamed({"key": "linked_from", "link": "entry_hash"})
    return _with_all(named.withColumn("told", F.lit(ELSEWHERE)), MOVED)


def _elsewhere(work: Work, verified: Verified) -> DataFrame | None:
    """Entries to which links of other logs lead, as far as that wasn't known, as rows of MOVED. None: there are none.

    A link may be new, or the entry, or both. Where both are, the entry's window is told, and the link's task knows its.
    """
    if not work.before and LOOSE not in verified.kinds:
        return None
    new = verified.of(LOOSE).select("source", "key", F.col("entry_hash").alias("link"))
    before = _links(work).where("author IS NULL").select("source", "key", "link") if work.before else new.limit(0)
    found = []
    for links, entries in (
        (new.unionByName(before), partial(_written_entries, work, verified)),
        (new, partial(_known_hashes, work)),
    ):
        if not links.isEmpty():
            found.append(entries().join(few(links.distinct()), ["source", "link"]))
    if not found:
        return None
    own = F.concat(F.lower(F.hex("author")), F.lit(":"), F.col("log_id").cast("string"))
    first = Window.partitionBy("source", "key", "link").orderBy(F.col("window_start").asc_nulls_first())
    led = reduce(DataFrame.unionByName, found).where(F.col("key") != own)
    led = work.settle(led.withColumn("rank", F.row_number().over(first)).where("rank = 1").drop("rank"))
    return None if led.isEmpty() else _as_moved(led)


def _written_entries(work: Work, verified: Verified) -> DataFrame:
    """Rows of _LINKABLE of the entries that were written."""
    told = [json.loads(row.file) for row in verified.of(FILE).select("file").collect()]
    folder = work.lake.table_folder(ENTRIES_TABLE)
    files = [spark_tables.File(f"{folder}/{file['path']}", file["size"], 0) for file in told]
    columns: table_reader.Columns = dict.fromkeys(
        ("source", "window_start", "entry_hash", "author", "log_id", "own_rule"), ()
    )
    made = from_arrow_schema(_LINKABLE)
    return table_reader.mapped(work.spark, work.lake, ENTRIES_TABLE, files, columns, _linkable, made)


def _linkable(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        right = batch.filter(pc.and_(batch.column("entry_hash").is_valid(), batch.column("own_rule").is_null()))
        yield buckets.with_all(right.append_column("link", right.column("entry_hash")), _LINKABLE)


#: An entry that links may lead to, and the window that tells of it.
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
    """Rows of _LINKABLE, without a window, of what the windows before told."""
    known = work.read_state(ENTRIES_TABLE).where("entry_hash IS NOT NULL AND own_rule IS NULL")
    nowhen = F.lit(None).cast("string").alias("window_start")
    return known.select("source", nowhen, F.col("entry_hash").alias("link"), "author", "log_id")


# Signatures


def check(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` of READ of some logs with what signatures and payloads break, by log and in the order of arrival.

    What is known comes first; of an entry, a window and a sender one row is left, but each with a wrong signature.
    """
    ids = np.asarray(rows.column("entry_id").dictionary_encode().indices.fill_null(-1))
    rules = _signature_rules(rows, ids)
    rows = rows.set_column(READ.get_field_index("signature_rule"), "signature_rule", rules)
    assumed = np.asarray(pc.and_(rows.column("sent_id").is_valid(), rules.is_valid()))
    if assumed.any():
        rows = _without_links(rows, np.flatnonzero(assumed).tolist())
    if rules.null_count < len(rules):
        rows = _without_bad_links(rows)
    order = _log_order(rows)
    alone = _first_of_sender(rows, ids, order)
    return rows.take(pa.array(order[alone]))


def _signature_rules(rows: pa.RecordBatch, ids: Array) -> pa.Array:
    """The rules that signatures break: of known entries as it was told, of others each distinct one is checked."""
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
    told = before.to_pylist()
    for place in np.flatnonzero(new & np.isin(ids, list(broken))).tolist():
        told[place] = broken[int(ids[place])]
    return pa.array(told, pa.string())


def _log_order(rows: pa.RecordBatch) -> Array:
    """By log; of a log what is known, and then by window and arrival. A cancel shows two entries at one place."""
    ranks = [_ranks(rows.column(name)) for name in ("source", "key", "window_start")]
    first = pa.array(np.ravel_multi_index(ranks, [int(rank.max()) + 1 for rank in ranks]))
    rest = (*_ARRIVAL, "entry_id")
    keyed = pa.RecordBatch.from_arrays([first, *(rows.column(name) for name in rest)], names=["log", *rest])
    keys = [(name, "ascending", "at_start") for name in keyed.schema.names]
    return np.asarray(pc.sort_indices(keyed, sort_keys=keys))


def _ranks(column: pa.Array) -> Array:
    """Places among the distinct texts of a column in their order; null comes first."""
    encoded = column.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary) + 1, np.int64)
    ranks[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(1, len(ranks))
    ranks[-1] = 0
    found: Array = ranks[np.asarray(encoded.indices.fill_null(-1))]
    return found


def _first_of_sender(rows: pa.RecordBatch, ids: Array, order: Array) -> Array:
    """Which rows, in their order, are the first of their entry, window and sender, or are told apart from these."""
    # A file may have several payloads for an entry.
    of_file = pc.equal(rows.column("origin"), FROM_FILE).fill_null(False)
    apart = pc.or_(of_file, pc.or_(rows.column("signature_rule").is_valid(), rows.column("unsure").fill_null(False)))
    apart = pc.or_(apart, pc.or_(rows.column("window_start").is_null(), rows.column("linked_from").is_valid()))
    told = np.asarray(apart)[order]
    columns = [ids, *(_ranks(rows.column(name)) for name in ("window_start", "source", "sender"))]
    of_sender = [column[order] for column in columns]
    by_sender = np.lexsort(of_sender[::-1])
    differs = np.ones(len(order), np.bool_)
    differs[1:] = np.any([column[by_sender][1:] != column[by_sender][:-1] for column in of_sender], axis=0)
    told[by_sender[differs]] = True
    return told


def _without_bad_links(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows`; of metadata with a wrong signature that links to one as well, without its links."""
    wrong = np.asarray(rows.column("signature_rule").is_valid())
    bad = set(rows.column("entry_hash").filter(pa.array(wrong)).to_pylist())
    sent = wrong & np.asarray(pc.equal(rows.column("origin"), "metadata").fill_null(False))
    places = np.flatnonzero(sent & np.asarray(rows.column("window_start").is_valid()))
    listed = _with_following(rows.take(pa.array(places))).to_pylist()
    after = {place: row for place, row in zip(places.tolist(), listed, strict=True) if follows_bad(row, bad)}
    if not after:
        return rows
    sent_ids, unsure = rows.column("sent_id").to_pylist(), [False] * rows.num_rows
    for place, row in after.items():
        sent_ids[place], unsure[place] = sent_id(row), True
    named = {"sent_id": pa.array(sent_ids, pa.binary()), "unsure": pa.array(unsure)}
    return _without_links(with_columns(rows, named), list(after))


def _without_links(rows: pa.RecordBatch, places: list[int]) -> pa.RecordBatch:
    """`rows` in which entries of these places have no links that were not sent."""
    sent = _with_following(rows.take(pa.array(places)))
    listed = [without_links(row, row["sent_id"]) for row in sent.to_pylist()]
    at = np.arange(rows.num_rows)
    at[places] = rows.num_rows + np.arange(len(places))
    return pa.concat_batches([rows, pa.RecordBatch.from_pylist(listed, schema=READ)]).take(pa.array(at))


# Logs


class Told(NamedTuple):
    """What a window tells of a log."""

    #: Rows of WRITTEN.
    entries: pa.RecordBatch
    #: Rows of TOLD.
    others: pa.RecordBatch


def fold(rows: pa.RecordBatch) -> Iterator[Told]:
    """What is told of logs whose `rows` stand by log, and of each by window; what is known of it comes first."""
    log, before = KnownLog(NO_ENTRIES, {}), None
    windows = rows.column("window_start").fill_null("")
    rows = rows.set_column(READ.get_field_index("window_start"), "window_start", windows)
    for (source, key, window), of_window in pieces_of(rows, ("source", "key", "window_start")):
        if (source, key) != before:
            log, before = KnownLog(NO_ENTRIES, {}), (source, key)
        linked = np.asarray(of_window.column("linked_from").is_valid())
        elsewhere = _logs_of(only(of_window, linked))
        if not window:
            of_kind = {kind: of_window.filter(pc.equal(of_window.column("told"), kind)) for kind in (ENTRY, FORK, LOG)}
            entries = of_kind[ENTRY].select(ENTRIES.names)
            log = KnownLog(entries, _forks(of_kind[FORK]), _standing(of_kind[LOG]), elsewhere)
            continue
        new = only(of_window, ~linked)
        changes = log.take(new.select(ENTRIES.names), elsewhere)
        yield Told(_written(changes.entries, source, window), _others(changes, new, (source, key, window)))


def _logs_of(rows: pa.RecordBatch) -> dict[bytes, LogOf]:
    """The logs of entries, by hash."""
    columns = [rows.column(name).to_pylist() for name in ("entry_hash", "author", "log_id")]
    return {hashed: (author, int(log_id)) for hashed, author, log_id in zip(*columns, strict=True)}


def _written(entries: pa.RecordBatch, source: str, window: str) -> pa.RecordBatch:
    """Rows of ENTRIES as rows of WRITTEN."""
    constant = [pa.repeat(pa.scalar(value), entries.num_rows) for value in (source, window)]
    return pa.RecordBatch.from_arrays([*constant, *entries.columns], schema=WRITTEN)


def _standing(rows: pa.RecordBatch) -> Settled | None:
    """The log as the windows before left it, if it is settled."""
    told = rows.select(["length", "author", "log_id", *_PLACE]).to_pylist()
    return Settled(int(told[0].pop("length")), told[0]) if told else None


def _forks(rows: pa.RecordBatch) -> dict[int, Proved]:
    known = rows.select([name for name, _ in _FORK_COLUMNS[: 1 + PROVED]]).to_pylist()
    counted = ("position", "first_length", "second_length")
    proved = [[int(row[name]) if name in counted else row[name] for name in row] for row in known]
    return {one[0]: tuple(one[1:]) for one in proved}


def _others(changes: Changes, new: pa.RecordBatch, place: tuple[str, str, str]) -> pa.RecordBatch:
    whose = dict(zip(("source", "key", "window_start"), place, strict=True))
    bad = new.filter(pc.and_(new.column("signature_rule").is_valid(), pc.equal(new.column("origin"), "metadata")))
    unsure = new.filter(new.column("unsure").fill_null(False))
    kinds = ((bad.select(ENTRIES.names), BAD), (unsure.select(ENTRIES.names), UNSURE), (changes.broken, FOUND))
    told = [_told(rows, what, whose) for rows, what in kinds if rows.num_rows]
    links = pa.RecordBatch.from_arrays([changes.loose], names=["entry_hash"])
    told += [_told(links, LOOSE, whose)] if links.num_rows else []
    others: list[dict[str, Any]] = [
        {"told": ELSEWHERE, "entry_hash": link, "author": author, "log_id": log_id}
        for link, (author, log_id) in changes.led.items()
    ]
    if changes.entries.num_rows:
        of_log = changes.first
        others.append({"told": STATE, "state": changes.digest})
        if None not in (of_log["author"], of_log["log_id"]):
            others.append({"told": LOG} | of_log | _log_fields(changes))
        for told_as, forks in ((FORK, changes.forks), (FOUND, changes.new_forks)):
            others += [{"told": told_as} | of_log | _fork_fields(row) for row in forks]
    return pa.concat_batches([*told, pa.RecordBatch.from_pylist([row | whose for row in others], schema=TOLD)])


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
    """Rows with columns of ENTRIES as rows of TOLD."""
    for name, value in {"told": what, **whose}.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return buckets.with_all(rows, TOLD)
