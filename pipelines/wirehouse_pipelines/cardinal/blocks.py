"""Assembly of blocks in sets: what the messages of a block say, whatever their order.

Most blocks are *regular*: one Batch, every key under exactly one counted prefix, no key said twice in two ways. Of
such a block everything follows from sets of messages: which keys came, how many under each prefix, when the last one
that was needed came. These expressions complete regular blocks only and recognise all others, which take the exact fold
of the codec (`wirehouse_codecs.cardinal.session.assembly`), the one place where the rules about blocks are judged.

The parts of a block sort so that whatever is counted follows what counts it: after a counted prefix the keys that begin
with it, after a sub-batch's id the ids of its items. So a running `last` finds each part's owner.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

#: One block of one source. The hash comes first: Spark sorts by the first bytes of the first column.
BLOCK = ("block_hash", "source")
#: Where a message stands. As a struct, `at`, places sort by arrival.
PLACE = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "topic", "partition", "offset")

#: Slots of a block's parts in sort order: its Batch; sub-batches, each then its items; prefixes, each then its keys.
BATCH, SUBBATCH, KEY = 0, 1, 2
#: What says a part, one bit each. NAMED: an entry of the Batch counts or announces it.
NAMED, MESSAGE, SET, DELETE, ITEM_SET, ITEM_DELETE, INLINE_SET, INLINE_DELETE = (1 << bit for bit in range(8))
MESSAGES = MESSAGE | SET | DELETE
SETS = SET | ITEM_SET | INLINE_SET
DELETES = DELETE | ITEM_DELETE | INLINE_DELETE

BATCH_TYPE = "struct<number:decimal(20,0),weight:binary,parent:binary>"
#: What a part says; null where it says nothing of the kind.
PART = {
    "slot": "int",
    "key": "binary",
    "way": "int",
    "value": "binary",  # what the key is set to
    "content": "binary",  # beside the value: equal for repeats, different for contradictions
    "origin": "binary",  # the sub-batch item that says it
    "expected": "bigint",  # messages counted under a prefix, or items of a sub-batch
    "tracked": "boolean",
    "name": "binary",
    "batch": BATCH_TYPE,
}


def _part(slot: int, key: Column, way: Column | int, **said: Column) -> Column:
    """The struct of a part; what isn't said is null."""
    said |= {"slot": F.lit(slot), "key": key, "way": F.lit(way) if isinstance(way, int) else way}
    return F.struct(*(said.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in PART.items()))


def _entry(entry: Column) -> Column:
    """What an entry of a Batch is: a counted prefix, a sub-batch's id, or an inline key; null if it is neither.

    One that sets several fields says a key in two ways, which makes the block odd.
    """
    named = {"tracked": entry["tracked"], "name": entry["name"]}
    way = F.when(entry["is_delete"], INLINE_DELETE).otherwise(INLINE_SET)
    given = (entry["value"].isNotNull(), entry["count"].isNotNull(), entry["is_delete"], entry["subbatch"].isNotNull())
    several = sum((field.cast("int") for field in given), F.lit(0)) > 1
    return (
        F.when(several, _part(KEY, entry["name"], INLINE_SET | INLINE_DELETE))
        .when(entry["count"].isNotNull(), _part(KEY, entry["name"], NAMED, expected=entry["count"], **named))
        .when(entry["subbatch"].isNotNull(), _part(SUBBATCH, entry["subbatch"], NAMED, **named))
        .when(entry["tracked"], _part(KEY, entry["name"], way, value=entry["value"]))
    )


def _spoken() -> Column:
    """The parts that a Batch, SubBatchHeader or SubBatchMsg is: itself, and each entry or key inside."""
    same = F.col("content_digest")
    # Index as 8 bytes big-endian: items follow their sub-batch in the order of their index.
    item = F.concat("batch_id", F.unhex(F.lpad(F.hex("item_index"), 16, "0")))
    batch = _part(BATCH, F.lit(bytearray()), MESSAGE, content=same, batch=F.struct("number", "weight", "parent"))
    header = _part(SUBBATCH, F.col("batch_id"), MESSAGE, content=same, expected=F.col("item_count"))
    one_item = _part(SUBBATCH, item, MESSAGE, content=same)
    itself = F.when(_is("batch"), batch).when(_is("sub_batch_header"), header).otherwise(one_item)
    inside = (
        F.transform("updates", _entry),
        F.transform("sets", lambda said: _part(KEY, said["key"], ITEM_SET, value=said["value"], origin=item)),
        F.transform("deletes", lambda key: _part(KEY, key, ITEM_DELETE, origin=item)),
    )
    return F.concat(F.array(itself), *(F.coalesce(parts, F.array().cast(_PARTS)) for parts in inside))


_PARTS = f"array<struct<{','.join(f'{name}:{kind}' for name, kind in PART.items())}>>"


def _is(*kinds: str) -> Column:
    return F.col("kind").isin(*kinds)


def parts(messages: DataFrame) -> DataFrame:
    """Every message of a block, and every entry and key inside one, as a part of it."""
    place = [*(F.col(name) for name in BLOCK), F.struct(*PLACE).alias("at")]
    is_set, value = _is("batch_msg"), F.col("value")
    said = {"value": F.when(is_set, value), "content": F.when(~is_set, value)}
    plain = _part(KEY, F.col("key"), F.when(is_set, SET).otherwise(DELETE), **said)
    keyed = messages.where(_is("batch_msg", "batch_delete_msg")).select(*place, plain.alias("part"))
    spoken = messages.where(_is("batch", "sub_batch_header", "sub_batch_msg")).select(
        *place, F.explode(_spoken()).alias("part")
    )
    return keyed.union(spoken.where("part IS NOT NULL")).select(*BLOCK, "at", "part.*")


def _has(way: int) -> Column:
    return F.col("ways").bitwiseAND(way) != 0


def _said_once() -> Column:
    """A key is said in exactly one way: the bits but NAMED are a power of two."""
    said = F.col("ways").bitwiseAND(~NAMED)
    return said.bitwiseAND(said - 1) == 0


def unique_parts(parts: DataFrame, tasks: int) -> DataFrame:
    """One row a part of a block: when it was first said, how often, and whether all that say it agree.

    So many `tasks` sort the parts at least; a session's number for shuffles, of which the planner joins small ones, if
    that is more.
    """
    usual = int(parts.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    message = F.col("way").bitwiseAND(MESSAGES) != 0
    said = [F.coalesce(F.min(name) != F.max(name), F.lit(False)) for name in ("value", "content", "origin")]
    differs = said[0] | said[1] | said[2]
    # Two names of one sub-batch, or a name that is no text: rare enough for the fold.
    renamed = (F.min("name") != F.max("name")) | ~F.bool_and(F.is_valid_utf8(F.col("name").cast("string")))
    return (
        (parts.repartition(tasks, *BLOCK) if tasks > usual else parts.repartition(*BLOCK))
        .groupBy(*BLOCK, "slot", "key")
        .agg(
            F.bit_or("way").alias("ways"),
            F.count_if(message).alias("messages"),
            F.min(F.when(F.col("way") != NAMED, F.col("at"))).alias("first_at"),
            F.max("at").alias("last_at"),
            F.max("value").alias("value"),
            F.max("origin").alias("origin"),
            F.max("expected").alias("expected"),
            F.max("tracked").alias("tracked"),
            F.min("name").alias("name"),
            F.max("batch").alias("batch"),
            F.coalesce(differs | renamed, F.lit(False)).alias("differs"),
        )
        .withColumn("differs", F.col("differs") | ((F.col("slot") == KEY) & ~_said_once()))
    )


def owned_parts(unique: DataFrame) -> DataFrame:
    """Each part with `owner`, the prefix or sub-batch that counts it, and `odd` where sets can't tell."""
    order = Window.partitionBy(*BLOCK).orderBy("slot", "key")
    # A sub-batch's header stands where its id was announced; without announcement it owns its items all the same.
    heads = _has(NAMED) | ((F.col("slot") == SUBBATCH) & (F.length("key") == 32))
    head = F.when(heads, F.struct("slot", "key", "expected", "tracked", "name"))
    until_here = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    owner, outer = F.col("owner"), F.col("outer")

    def begins(of: Column) -> Column:
        return F.coalesce((of["slot"] == F.col("slot")) & F.startswith(F.col("key"), of["key"]), F.lit(False))

    bounded = (
        (F.col("slot") == SUBBATCH)
        | (F.length("key") == F.length(owner["key"]))
        | F.endswith(owner["key"], F.lit(b"/"))
    )
    nested = _has(NAMED) & (F.col("slot") == KEY) & begins(outer)
    return (
        unique.withColumn("owner", F.last(head, ignorenulls=True).over(until_here))
        .withColumn("outer", F.last(head, ignorenulls=True).over(before))
        .withColumn("odd", F.col("differs") | nested | (begins(owner) & ~bounded))
        .withColumn("owner", F.when(begins(owner) & bounded, owner))
        .drop("outer", "differs")
    )


def _index_too_high() -> Column:
    """The highest item of a sub-batch isn't below its count: both as 8 bytes big-endian."""
    return F.substring("highest", 33, 8) >= F.unhex(F.lpad(F.hex("expected"), 16, "0"))


def _counted(owned: DataFrame) -> DataFrame:
    """One row per block and owner: expected and received, when the last part that counts came, and what is odd."""
    said, owner = F.col("messages") > 0, F.col("owner")
    item = (F.col("slot") == SUBBATCH) & (F.length("key") > 32)
    counts = said & ((F.col("slot") == KEY) | item)
    return owned.groupBy(*BLOCK, "slot", owner["key"].alias("owner_key")).agg(
        F.max(owner["expected"]).alias("expected"),
        F.max(owner["tracked"]).alias("tracked"),
        F.max(owner["name"]).alias("name"),
        F.count_if(counts).alias("received"),
        F.max(F.when(said, F.col("first_at"))).alias("settled_at"),
        F.max(F.when(item, F.col("key"))).alias("highest"),
        F.min(F.when(said, F.col("first_at"))).alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.sum("messages").alias("messages"),
        F.count_if(said).alias("unique_messages"),
        F.max("batch").alias("batch"),
        F.max("odd").alias("odd"),
    )


def summaries(owned: DataFrame) -> DataFrame:
    """One row a block. `regular`: it is complete and sets tell all there is to know; else it takes the exact fold."""
    subbatch, tracked = F.col("slot") == SUBBATCH, F.coalesce("tracked", F.lit(False))
    is_batch = F.col("slot") == BATCH
    short = tracked & (F.col("expected").isNull() | (F.col("received") < F.col("expected")))
    surplus = (F.col("received") > F.col("expected")) | (subbatch & F.coalesce(_index_too_high(), F.lit(False)))
    # Nothing in the Batch counts these messages.
    stray = ~is_batch & (F.col("messages") > 0) & F.col("tracked").isNull()
    odd = F.col("odd") | short | stray | F.coalesce(surplus, F.lit(False))
    count = F.when(tracked, F.struct(F.col("name").cast("string").alias("name"), F.col("expected").alias("messages")))
    return (
        _counted(owned)
        .groupBy(*BLOCK)
        .agg(
            F.max("batch").alias("batch"),
            F.min(F.when(is_batch, F.col("first_at"))).alias("batch_at"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.max(F.when(is_batch | tracked, F.col("settled_at"))).alias("completed_at"),
            F.sum("messages").alias("messages"),
            (F.sum("messages") - F.sum("unique_messages")).alias("duplicates"),
            F.sort_array(F.collect_list(count)).alias("expected"),
            F.collect_list(F.when(subbatch & tracked, F.col("owner_key"))).alias("subbatches"),
            (F.max("batch").isNotNull() & ~F.bool_or(odd)).alias("regular"),
        )
    )


def updates(owned: DataFrame, complete: DataFrame) -> DataFrame:
    """What the regular blocks `complete` (block_hash, source, number, subbatches, completed_at) set and delete."""
    whose = complete.select(*BLOCK, "number", "subbatches", "completed_at")
    # Of a key in an item the sub-batch must be tracked, of another one the prefix; inline keys are here if tracked.
    from_item = F.array_contains("subbatches", F.substring("origin", 1, 32))
    tracked = F.when(F.col("origin").isNotNull(), from_item).when(_has(SET | DELETE), F.col("owner.tracked"))
    said = owned.where((F.col("slot") == KEY) & _has(SETS | DELETES))
    return (
        said.join(whose, list(BLOCK))
        .where(F.coalesce(tracked, F.lit(True)))
        .withColumn("is_delete", _has(DELETES))
        .select(*BLOCK, "number", "key", "value", "is_delete", F.col("first_at").alias("at"), "completed_at")
    )
