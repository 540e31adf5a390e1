"""Gold of Cardinal Streams: blocks, the keys that they change, the chain, and the rules that need whole blocks.

The job in order:

1. Read the messages of the windows, and those of blocks that were still open before.
2. Complete regular blocks by Spark expressions (`blocks`), and all others by the exact fold (`folds.fold_blocks`).
3. Order the blocks of each source in arrival order (`folds.order_chain`). This decides when a block's life ends.
4. Write the tables.

State from window to window: the messages of blocks whose life hasn't ended, Reorgs, blocks whose life ended lately,
refused blocks, and the chain itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from wirehouse_codecs.cardinal.correlation.endings import HORIZON_NS
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.channels import reorg_channel_pattern
from wirehouse_pipelines.cardinal import blocks, folds
from wirehouse_pipelines.cardinal.blocks import BLOCK, PLACE
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.jobs.job import Cut, Work

VERSION = "5"
SILVER = "silver.cardinal"
STATE = "gold.cardinal_state"
OUTPUTS = (
    "gold.cardinal_batches_history",
    "gold.cardinal_batch_updates",
    "gold.cardinal_chain_updates",
    "gold.cardinal_chain_history",
    "gold.cardinal_reorgs_history",
    "gold.cardinal_found",
    STATE,
)
REORGS = ("reorg", "reorg_complete")
#: At most this many blocks and sub-batches are sent to all tasks: some ten megabytes.
_MOST_BROADCAST = 100_000
#: A task has memory to sort this many messages.
_TASK_MESSAGES = 500_000


@dataclass
class _Run:
    """One run of the job: the frames that its tables are made from, each computed once."""

    work: Work

    @cached_property
    def options(self) -> Mapping[str, CardinalOptions]:
        spans = self.work.spans
        return {span.source: CardinalOptions.from_mapping(self.work.source(span.source).options) for span in spans}

    @cached_property
    def state(self) -> DataFrame:
        return self.work.read_state(STATE)

    def carried(self, kind: str) -> DataFrame:
        return self.state.where(F.col("row_kind") == kind)

    @cached_property
    def arrived(self) -> DataFrame:
        """Decoded messages of the windows."""
        silver = self.work.read(SILVER).where("row_kind = 'message'")
        return silver.select(
            "source", "window_start", *PLACE, "message", F.col("message.block_hash").alias("block_hash")
        )

    @cached_property
    def messages(self) -> DataFrame:
        """Messages of living blocks: new ones, and those carried from earlier windows."""
        new = self.arrived.where(~F.col("message.kind").isin(*REORGS))
        if not self.work.before:
            return new
        over = F.broadcast(self._over)
        return _without_late(self._carried_messages.unionByName(_without_late(new, self._ended_before)), over)

    @cached_property
    def _ended_before(self) -> DataFrame:
        return self.carried("closed").select(*BLOCK, F.col("arrived_at_ns").alias("ended_ns"))

    @cached_property
    def _carried_messages(self) -> DataFrame:
        """Messages of blocks that lived at the end of the last window."""
        return _without_late(self.carried("message").select(*self.arrived.columns), self._ended_before)

    @cached_property
    def _over(self) -> DataFrame:
        """Blocks that time alone ended since the last window: block_hash, source, ended_ns."""
        over = self._carried_messages.groupBy(*BLOCK).agg((F.min("arrived_at_ns") + HORIZON_NS + 1).alias("ended_ns"))
        return over.where(~self.work.is_new("ended_ns"))

    @cached_property
    def fields(self) -> DataFrame:
        """`messages` with the message's fields as columns."""
        return _fields(self.messages)

    @cached_property
    def parts(self) -> DataFrame:
        messages = sum(file.rows for file in spark_tables.files(self.work.lake, SILVER, self.work.spans))
        unique = blocks.unique_parts(blocks.parts(self.fields), messages // _TASK_MESSAGES)
        return self.work.settle(blocks.owned_parts(unique), eager=False)

    @cached_property
    def summaries(self) -> DataFrame:
        """One row for each block, `regular` or not. Only the fold judges rules about topics."""
        judged = [name for name, options in self.options.items() if options.topics or options.prefixes]
        regular = F.col("regular") & ~F.col("source").isin(*judged)
        return self.work.settle(blocks.summaries(self.parts).withColumn("regular", regular))

    @cached_property
    def counted(self) -> Counter[bool]:
        """How many blocks with their sub-batches are regular, and how many are not."""
        counts = self.summaries.groupBy("regular").agg(F.sum(1 + F.size("subbatches")).alias("size"))
        return Counter({row.regular: row.size for row in counts.collect()})

    def folded(self, wanted: DataFrame, count: int, fields: DataFrame | None = None) -> DataFrame:
        """The exact fold of the blocks `wanted` (block_hash, source, folds.ENDED), of which there are `count`."""
        if not count:
            return self.work.spark.createDataFrame([], from_arrow_schema(folds.FOLDED))
        whose = (self.fields if fields is None else fields).withColumn("at", F.struct(*PLACE))
        whose = whose.join(_sent_if_few(wanted, count), list(BLOCK))
        return self.work.settle(folds.fold_blocks(whose, self.options, self.work.lake.windows))

    @cached_property
    def living(self) -> tuple[DataFrame, DataFrame]:
        """Regular blocks and folded blocks, with all their messages: no life has ended yet."""
        not_yet = (F.lit(None).cast(from_arrow_type(field.type)).alias(field.name) for field in folds.ENDED)
        odd = self.summaries.where("NOT regular").select(*BLOCK, *not_yet)
        return self.summaries.where("regular"), self.folded(odd, self.counted[False])

    @cached_property
    def seen(self) -> DataFrame:
        """One row for each block: its Batch, and the locations of its first message, its Batch and its completion."""
        regular, folded = self.living
        return _block_columns(folded).select(*_EVENT_COLUMNS).unionByName(regular.select(*_EVENT_COLUMNS))

    @cached_property
    def chain(self) -> DataFrame:
        """The outcomes of the chain for blocks and reorgs, in arrival order."""
        events = self._block_events(self.seen).unionByName(self._reorg_events())
        seeds = self._seeds()
        spans = {span.source: span.windows for span in self.work.spans}
        ordered = folds.order_chain(events.unionByName(seeds), self.options, self.work.lake.windows, spans)
        return self.work.settle(ordered)

    def _block_events(self, seen: DataFrame) -> DataFrame:
        places = {"first_at": folds.FIRST_MESSAGE, "batch_at": folds.BATCH, "completed_at": folds.COMPLETED}
        kinds = F.array(*(F.struct(F.col(at).alias("at"), F.lit(event).alias("event")) for at, event in places.items()))
        events = seen.select("source", "block_hash", "batch", F.explode(kinds).alias("it"))
        return _events(events.select("*", "it.*")).where(self.work.is_new("at.arrived_at_ns"))

    def _reorg_events(self) -> DataFrame:
        """Events of Reorg and ReorgComplete, and of the messages on channels."""
        sent = self.arrived.withColumn("at", F.struct(*PLACE)).where(F.col("message.kind").isin(*REORGS))
        batch = F.struct("message.number", "message.weight", "message.parent").alias("batch")
        event = F.when(F.col("message.kind") == "reorg", folds.REORG).otherwise(folds.REORG_COMPLETE)
        reorgs = _events(sent.select("source", "at", "block_hash", batch, event.alias("event")))
        known = self.carried("reorg").withColumn("at", F.struct(*PLACE))
        # Most sources have no channel. Then nothing else of these messages is read.
        named = self.arrived.select("source", "topic").distinct().where(self._is_named_as_channel())
        topics = reduce(DataFrame.union, (frame.select("source", "topic") for frame in (sent, known, named))).distinct()
        on_channel = self.arrived.withColumn("at", F.struct(*PLACE)).join(
            F.broadcast(topics), ["source", "topic"], "left_semi"
        )
        batches = on_channel.where("message.kind = 'batch'").select("source", "at", "block_hash", batch)
        return reorgs.unionByName(self._channel_messages(on_channel, known)).unionByName(
            _events(batches.withColumn("event", F.lit(folds.CHANNEL_BATCH)))
        )

    def _channel_messages(self, on_channel: DataFrame, known: DataFrame) -> DataFrame:
        """For each block, its first message on each partition before and after each ReorgComplete."""
        block_hash = F.when(~F.col("message.kind").isin(*REORGS), F.col("block_hash")).alias("block_hash")
        columns = ("source", "topic", "partition", "at", "message.kind", block_hash)
        new = on_channel.select(*columns, F.lit(True).alias("new"))
        both = new.unionByName(known.select(*columns, F.lit(False).alias("new")))
        until_here = Window.partitionBy("source", "topic").orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
        completes = F.count_if(F.col("kind") == "reorg_complete").over(until_here)
        first = (
            both.withColumn("completes", completes)
            .where("new")
            .groupBy("source", "topic", "partition", "completes", "block_hash")
            .agg(F.min("at").alias("at"))
        )
        batch = F.lit(None).cast(blocks.BATCH_TYPE).alias("batch")
        return _events(first.select("source", "at", "block_hash", batch, F.lit(folds.CHANNEL_MESSAGE).alias("event")))

    def _is_named_as_channel(self) -> Column:
        sources: dict[str, list[str]] = {}
        for source, options in self.options.items():
            sources.setdefault(reorg_channel_pattern(options), []).append(source)
        named = (F.col("source").isin(*names) & F.rlike("topic", F.lit(name)) for name, names in sources.items())
        return reduce(or_, named)

    def _seeds(self) -> DataFrame:
        """One row for each source, before its events: the chain at the end of the window before."""
        rows = [(span.source, folds.SNAPSHOT) for span in self.work.spans]
        seeds = self.work.spark.createDataFrame(rows, "source STRING, event INT")
        last = [f"(source = '{name}' AND window_start = '{e.window_start}')" for name, e in self.work.before.items()]
        known = self.carried("chain").where(" OR ".join(last) or "false").select("source", "snapshot")
        empty = self.work.spark.createDataFrame([], _EVENT_SCHEMA)
        return empty.unionByName(seeds.join(known, "source", "left"), allowMissingColumns=True)

    def ordered(self, kind: str) -> DataFrame:
        return self.chain.where(F.col("row_kind") == kind)

    @cached_property
    def ended(self) -> DataFrame:
        """Blocks whose life ended in the windows or just before them: block_hash, source, folds.ENDED, complete."""
        return self.ordered("closed").select(*BLOCK, F.col("window_start").alias("ended_in"), "closed.*")

    @cached_property
    def oldest_living_ns(self) -> int | None:
        """When the first message arrived of those blocks that live at the end of a window; None if there are none."""
        living = self.ordered("living").select(*BLOCK).distinct()
        oldest: int | None
        ((oldest,),) = self.seen.join(living, list(BLOCK), "left_semi").agg(F.min("first_at.arrived_at_ns")).collect()
        return oldest

    @cached_property
    def refolded(self) -> DataFrame | None:
        """The fold, up to their end, of blocks with later messages or judged incomplete. None: no such block."""
        regular, folded = self.living
        columns = (*BLOCK, "first_at", "last_at", "completed_at")
        seen = regular.select(*columns).unionByName(_block_columns(folded).select(*columns))
        late = F.col("last_at") > F.col("closed_at")
        this_life = F.col("first_at") < F.col("closed_at")
        again = (
            seen.join(self.ended, list(BLOCK))
            .where(this_life)
            .where(late | (F.col("judged") & F.col("completed_at").isNull()))
        )
        revived = F.expr(f"last_at.arrived_at_ns - closed_at.arrived_at_ns > {HORIZON_NS}").alias("revived")
        wanted = self.work.settle(again.select(*BLOCK, *folds.ENDED.names, revived))
        (counted,) = wanted.agg(F.count("*").alias("blocks"), F.max("revived").alias("revived")).collect()
        if counted.revived:
            raise Cut(self._first_lives_after(wanted.where("revived")))
        return self.folded(wanted, counted.blocks) if counted.blocks else None

    @cached_property
    def folded_late(self) -> DataFrame | None:
        """The fold of incomplete blocks that time alone ended between the windows. None: no such block."""
        if not self.work.before:
            return None
        late = self.ended.where("judged AND NOT complete").where(~self.work.is_new("closed_at.arrived_at_ns"))
        wanted = self.work.settle(late.select(*BLOCK, *folds.ENDED.names))
        count = wanted.count()
        return self.folded(wanted, count, _fields(self._carried_messages)) if count else None

    def _first_lives_after(self, ended: DataFrame) -> dict[str, str]:
        """For each source, the window of the first message whose block ended more than the horizon before."""
        after = self.messages.join(ended, list(BLOCK)).where(f"arrived_at_ns - closed_at.arrived_at_ns > {HORIZON_NS}")
        return {
            row.source: row.window
            for row in after.groupBy("source").agg(F.min("window_start").alias("window")).collect()
        }

    def final(self, kind: str) -> DataFrame:
        """Folded rows of a kind. For a block that was folded twice, the rows of the second fold."""
        _, folded = self.living
        rows, again, late = folded.where(F.col("row_kind") == kind), self.refolded, self.folded_late
        if again is not None:
            twice = again.select(*BLOCK).distinct()
            rows = rows.join(twice, list(BLOCK), "left_anti").unionByName(again.where(F.col("row_kind") == kind))
        if late is not None:
            late = late.where(F.col("row_kind") == kind)
            # A hash that lives again in these windows has the row of its new life.
            again_alive = self.summaries.select(*BLOCK)
            rows = rows.unionByName(late.join(again_alive, list(BLOCK), "left_anti") if kind == "block" else late)
        return rows

    @cached_property
    def regular(self) -> DataFrame:
        """Regular blocks that weren't folded as well."""
        regular, again = self.living[0], self.refolded
        return regular if again is None else regular.join(again.select(*BLOCK).distinct(), list(BLOCK), "left_anti")


_EVENT_COLUMNS = ("block_hash", "source", "batch", "first_at", "batch_at", "completed_at")
_EVENT_SCHEMA = (
    f"source STRING, at STRUCT<arrived_at_ns: BIGINT, capture_arrived_at_ns: BIGINT, capture_id: BINARY, "
    f"record_number: BIGINT, topic: STRING, partition: INT, offset: BIGINT>, event INT, block_hash BINARY, "
    f"batch {blocks.BATCH_TYPE}, snapshot STRING"
)


def _events(frame: DataFrame) -> DataFrame:
    columns = ("source", "at", "event", "block_hash", "batch")
    return frame.where("at IS NOT NULL").select(*columns, F.lit(None).cast("string").alias("snapshot"))


def _fields(messages: DataFrame) -> DataFrame:
    return messages.select("source", *PLACE, "message.*")


def _without_late(messages: DataFrame, ended: DataFrame) -> DataFrame:
    """Without messages of blocks in `ended` (block_hash, source, ended_ns). After the horizon a hash may live again."""
    ended = ended.selectExpr("block_hash AS ended_hash", "source AS ended_source", "ended_ns")
    lately = f"block_hash = ended_hash AND source = ended_source AND arrived_at_ns - ended_ns <= {HORIZON_NS}"
    return messages.join(ended, F.expr(lately), "left_anti")


def _sent_if_few(blocks: DataFrame, count: int) -> DataFrame:
    """`blocks`, at most `count` of them, for a join. If they are few, Spark doesn't shuffle the other side."""
    return F.broadcast(blocks) if count <= _MOST_BROADCAST else blocks


def _block_columns(folded: DataFrame) -> DataFrame:
    return folded.where("row_kind = 'block'").select(*BLOCK, "block.*")


def _at(place: str, *names: str) -> list[Column]:
    return [F.col(f"{place}.{name}").alias(name) for name in names]


def _stamped(frame: DataFrame) -> DataFrame:
    return frame.withColumn("decoder_version", F.lit(VERSION))


def _batches(run: _Run) -> DataFrame:
    """Blocks that changed: a message came, or they were refused or judged incomplete."""
    regular = run.regular.withColumn("received", F.col("expected")).withColumn("missing", F.array())
    folded = _block_columns(run.final("block"))
    both = folded.unionByName(regular.select(*folded.columns))
    refused = run.ordered("refused").select(*BLOCK, "refused_at")
    if run.work.before:
        known = run.carried("refused").select(*BLOCK, F.struct(*PLACE).alias("refused_at"))
        refused = refused.unionByName(known)
    refused = refused.groupBy(*BLOCK).agg(F.min("refused_at").alias("refused_at"))
    judged = run.ended.where("judged").selectExpr(
        "block_hash AS ended_hash", "source AS ended_source", "closed_at", "ended_in"
    )
    this_life = F.expr("block_hash = ended_hash AND source = ended_source AND first_at <= closed_at")
    window_of = run.work.window_of
    changes = {
        "last_at": window_of("last_at.arrived_at_ns"),
        "refused_at": window_of("refused_at.arrived_at_ns"),
        "judged_at": F.when(F.col("completed_at").isNull(), F.col("ended_in")),
    }
    # The state at the end of each of these windows.
    refused_by, judged_by = (
        F.coalesce(changes[at] <= F.col("window_start"), F.lit(False)) for at in ("refused_at", "judged_at")
    )
    status = F.when(refused_by, "refused").when(F.col("completed_at").isNotNull(), "complete").otherwise("incomplete")
    return (
        both.join(refused, list(BLOCK), "left")
        .join(judged, this_life, "left")
        .withColumn("window_start", F.explode(F.array_distinct(F.array_compact(F.array(*changes.values())))))
        .where(run.work.in_new_window())
        .select(
            *BLOCK,
            "window_start",
            "batch.*",
            status.alias("status"),
            judged_by.alias("judged"),
            *("expected", "received", "missing", "messages", "duplicates"),
            *_at("first_at", "capture_id", "record_number", "arrived_at_ns"),
            F.col("completed_at.arrived_at_ns").alias("completed_at_ns"),
            F.col("completed_at.capture_id").alias("completed_capture_id"),
            F.col("completed_at.record_number").alias("completed_record_number"),
        )
    )


def _batch_updates(run: _Run) -> DataFrame:
    complete = run.regular.select(*BLOCK, "batch.number", "subbatches", "completed_at")
    new = complete.where(run.work.is_new("completed_at.arrived_at_ns"))
    of_regular = blocks.updates(run.parts, _sent_if_few(new, run.counted[True]))
    whole = _block_columns(run.final("block")).select(*BLOCK, "completed_at")
    of_folded = run.final("update").select(*BLOCK, "update.*").join(whole, list(BLOCK)).select(*of_regular.columns)
    operation = F.when(F.col("is_delete"), "delete").otherwise("set")
    return (
        of_regular.unionByName(of_folded.where(run.work.is_new("completed_at.arrived_at_ns")))
        .withColumn("window_start", run.work.window_of("completed_at.arrived_at_ns"))
        .select(
            *BLOCK,
            "window_start",
            "number",
            "key",
            "value",
            operation.alias("operation"),
            *_at("at", "capture_id", "record_number"),
        )
    )


def _newest(frame: DataFrame, *key: str) -> DataFrame:
    """The last row of each key and window."""
    last = Window.partitionBy("source", "window_start", *key).orderBy(F.desc("step"))
    return frame.withColumn("rank", F.row_number().over(last)).where("rank = 1")


def _chain_updates(run: _Run) -> DataFrame:
    rows = run.ordered("update").select("source", "window_start", "update.*")
    return rows.select("*", *_at("at", "capture_id", "record_number", "arrived_at_ns"))


def _chain_history(run: _Run) -> DataFrame:
    rows = run.ordered("canonical").select("source", "window_start", "step", "canonical.*")
    return _newest(rows, "block_hash", "valid_from_ns").select("*", *_at("at", "capture_id", "record_number"))


def _reorgs_history(run: _Run) -> DataFrame:
    rows = run.ordered("reorg").select("source", "window_start", "step", "reorg.*", "reorg.at.*")
    return _newest(rows, "capture_id", "record_number")


def _findings(run: _Run) -> DataFrame:
    columns = ("source", "window_start", "block_hash", "finding")
    assembly = run.final("finding").select(*columns).where(run.work.in_new_window())
    place = ("capture_id", "record_number", "topic", "partition", "offset", "arrived_at_ns")
    findings = assembly.unionByName(run.ordered("finding").select(*columns))
    return findings.select(
        *(
            "source",
            "window_start",
            "block_hash",
            "finding.rule",
            "finding.severity",
            "finding.message",
            "finding.number",
        ),
        F.lit("cardinal").alias("protocol"),
        *_at("finding.at", *place),
    )


def _state(run: _Run) -> DataFrame:
    """State: messages of blocks that outlive their window, reorgs, ended and refused blocks, and the chain."""
    names = ("source", "window_start", "block_hash")
    living = run.ordered("living").select(*names)
    open_ = run.messages.where(run.work.in_new_window()).where(F.col("arrived_at_ns") >= F.lit(run.oldest_living_ns))
    open_ = open_.join(F.broadcast(living), list(names), "left_semi")
    places = {
        "closed": run.ordered("closed").select(*names, "closed.closed_at.*"),
        "refused": run.ordered("refused").select(*names, "refused_at.*"),
    }
    rows = [
        open_.select(*names, *PLACE, "message").withColumn("row_kind", F.lit("message")),
        run.arrived.where(F.col("message.kind").isin(*REORGS)).withColumn("row_kind", F.lit("reorg")),
        *(frame.withColumn("row_kind", F.lit(kind)) for kind, frame in places.items()),
        run.ordered("chain").select("source", "window_start", "row_kind", "snapshot", "carried_from"),
    ]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), rows)


_TABLES = dict(
    zip(
        OUTPUTS,
        (_batches, _batch_updates, _chain_updates, _chain_history, _reorgs_history, _findings, _state),
        strict=True,
    )
)


def tables(work: Work) -> Iterator[tuple[str, DataFrame]]:
    """The job of gold.cardinal: its tables in the order in which they are written."""
    run = _Run(work)
    for name, rows in _TABLES.items():
        yield name, rows(run).transform(_stamped)
