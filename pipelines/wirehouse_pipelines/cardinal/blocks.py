"""Assembly of most blocks by Spark expressions, without looking at messages one by one.

A block is *regular* if it is complete and the order of its messages doesn't matter: it has one Batch, every key is
under exactly one counted prefix, and no key is set or deleted in two ways. Everything about such a block follows from
the set of its messages: which keys arrived, how many under each prefix, and when the last one that was needed arrived.

These expressions complete only regular blocks, and recognise all others. The others go to the exact fold of the codec
(`wirehouse_codecs.cardinal.session.assembly`), which is the only place where the rules about blocks are judged.

How: each message is taken apart into *parts*, rows of (block, slot, key). The key of a part is chosen so that sorting
puts what is counted right behind what counts it: the keys that begin with a prefix behind the prefix, the items of a
sub-batch behind its id. So a running `last` over the sorted parts finds the *owner* of each part.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

#: One block of one source. The hash comes first: Spark sorts by the first bytes of the first column.
BLOCK = ("block_hash", "source")
#: The location of a message. As a struct, `at`, locations sort by arrival.
PLACE = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "topic", "partition", "offset")

#: Slots of a block's parts in sort order: its Batch; sub-batches, each then its items; prefixes, each then its keys.
BATCH, SUBBATCH, KEY = 0, 1, 2
#: The ways in which messages give a part, one bit each. NAMED: an entry of the Batch counts or announces it.
NAMED, MESSAGE, SET, DELETE, ITEM_SET, ITEM_DELETE, INLINE_SET, INLINE_DELETE = (1 << bit for bit in range(8))
MESSAGES = MESSAGE | SET | DELETE
SETS = SET | ITEM_SET | INLINE_SET
DELETES = DELETE | ITEM_DELETE | INLINE_DELETE

BATCH_TYPE = "struct<number:decimal(20,0),weight:binary,parent:binary>"
#: The columns of a part; null where they don't apply.
PART = {
    "slot": "int",
    "key": "binary",
    "way": "int",
    "value": "binary",  # what the key is set to
    "content": "binary",  # beside the value: equal for repeats, different for contradictions
    "origin": "binary",  # the sub-batch item that it is in
    "expected": "bigint",  # messages counted under a prefix, or items of a sub-batch
    "tracked": "boolean",
    "name": "binary",
    "batch": BATCH_TYPE,
}


def _part(slot: int, key: Column, way: Column | int, **columns: Column) -> Column:
    """The struct of a part; columns that aren't given are null."""
    columns |= {"slot": F.lit(slot), "key": key, "way": F.lit(way) if isinstance(way, int) else way}
    return F.struct(*(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in PART.items()))


def _entry(entry: Column) -> Column:
    """The part that an entry of a Batch gives: a counted prefix, a sub-batch's id, or an inline key; else null.

    An entry with several fields gives its key in two ways, so the block isn't regular.
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


def _parts_of_avro() -> Column:
    """The parts that a Batch, SubBatchHeader or SubBatchMsg gives: itself, and each entry or key inside."""
    same = F.col("content_digest")
    # Index as 8 bytes big-endian: items follow their sub-batch in the order of their index.
    item = F.concat("batch_id", F.unhex(F.lpad(F.hex("item_index"), 16, "0")))
    batch = _part(BATCH, F.lit(bytearray()), MESSAGE, content=same, batch=F.struct("number", "weight", "parent"))
    header = _part(SUBBATCH, F.col("batch_id"), MESSAGE, content=same, expected=F.col("item_count"))
    one_item = _part(SUBBATCH, item, MESSAGE, content=same)
    itself = F.when(_is("batch"), batch).when(_is("sub_batch_header"), header).otherwise(one_item)
    inside = (
        F.transform("updates", _entry),
        F.transform("sets", lambda entry: _part(KEY, entry["key"], ITEM_SET, value=entry["value"], origin=item)),
        F.transform("deletes", lambda key: _part(KEY, key, ITEM_DELETE, origin=item)),
    )
    return F.concat(F.array(itself), *(F.coalesce(parts, F.array().cast(_PARTS)) for parts in inside))


_PARTS = f"array<struct<{','.join(f'{name}:{kind}' for name, kind in PART.items())}>>"


def _is(*kinds: str) -> Column:
    return F.col("kind").isin(*kinds)


def parts(messages: DataFrame) -> DataFrame:
    """Each message of a block, and each entry and key inside a message, as parts."""
    place = [*(F.col(name) for name in BLOCK), F.struct(*PLACE).alias("at")]
    is_set, value = _is("batch_msg"), F.col("value")
    content = {"value": F.when(is_set, value), "content": F.when(~is_set, value)}
    one = _part(KEY, F.col("key"), F.when(is_set, SET).otherwise(DELETE), **content)
    keyed = messages.where(_is("batch_msg", "batch_delete_msg")).select(*place, one.alias("part"))
    avro = messages.where(_is("batch", "sub_batch_header", "sub_batch_msg")).select(
        *place, F.explode(_parts_of_avro()).alias("part")
    )
    return keyed.union(avro.where("part IS NOT NULL")).select(*BLOCK, "at", "part.*")


def _has(way: int) -> Column:
    return F.col("ways").bitwiseAND(way) != 0


def _in_one_way() -> Column:
    """A key is given in exactly one way: the bits other than NAMED are a power of two."""
    ways = F.col("ways").bitwiseAND(~NAMED)
    return ways.bitwiseAND(ways - 1) == 0


def unique_parts(parts: DataFrame, tasks: int) -> DataFrame:
    """One row for each part of a block: when it came first, how often, and whether all messages that give it agree.

    At least `tasks` tasks sort the parts. If the session's number for shuffles is higher it applies, and the planner
    joins small tasks.
    """
    usual = int(parts.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    message = F.col("way").bitwiseAND(MESSAGES) != 0
    value, content, origin = (
        F.coalesce(F.min(name) != F.max(name), F.lit(False)) for name in ("value", "content", "origin")
    )
    differs = value | content | origin
    # A sub-batch with two names, or a name that isn't UTF-8, is rare enough for the fold.
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
        .withColumn("differs", F.col("differs") | ((F.col("slot") == KEY) & ~_in_one_way()))
    )


def owned_parts(unique: DataFrame) -> DataFrame:
    """Each part with `owner`, the prefix or sub-batch that counts it. `odd`: the order of messages matters."""
    order = Window.partitionBy(*BLOCK).orderBy("slot", "key")
    # A sub-batch's header sorts with its id in the Batch. A header that the Batch doesn't announce owns its items, too.
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
    """The highest item of a sub-batch isn't below its count. Both are compared as 8 bytes, big-endian."""
    return F.substring("highest", 33, 8) >= F.unhex(F.lpad(F.hex("expected"), 16, "0"))


def _counted(owned: DataFrame) -> DataFrame:
    """One row for each block and owner: expected, received, when the last part that counts came, and `odd`."""
    came, owner = F.col("messages") > 0, F.col("owner")
    item = (F.col("slot") == SUBBATCH) & (F.length("key") > 32)
    counts = came & ((F.col("slot") == KEY) | item)
    return owned.groupBy(*BLOCK, "slot", owner["key"].alias("owner_key")).agg(
        F.max(owner["expected"]).alias("expected"),
        F.max(owner["tracked"]).alias("tracked"),
        F.max(owner["name"]).alias("name"),
        F.count_if(counts).alias("received"),
        F.max(F.when(came, F.col("first_at"))).alias("settled_at"),
        F.max(F.when(item, F.col("key"))).alias("highest"),
        F.min(F.when(came, F.col("first_at"))).alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.sum("messages").alias("messages"),
        F.count_if(came).alias("unique_messages"),
        F.max("batch").alias("batch"),
        F.max("odd").alias("odd"),
    )


def summaries(owned: DataFrame) -> DataFrame:
    """One row for each block. A block that isn't `regular` goes to the exact fold."""
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
    """The keys that the regular blocks `complete` (block_hash, source, number, subbatches, completed_at) change."""
    whose = complete.select(*BLOCK, "number", "subbatches", "completed_at")
    # For a key in an item the sub-batch must be tracked, for another key its prefix. Inline keys here are tracked.
    from_item = F.array_contains("subbatches", F.substring("origin", 1, 32))
    tracked = F.when(F.col("origin").isNotNull(), from_item).when(_has(SET | DELETE), F.col("owner.tracked"))
    keys = owned.where((F.col("slot") == KEY) & _has(SETS | DELETES))
    return (
        keys.join(whose, list(BLOCK))
        .where(F.coalesce(tracked, F.lit(True)))
        .withColumn("is_delete", _has(DELETES))
        .select(*BLOCK, "number", "key", "value", "is_delete", F.col("first_at").alias("at"), "completed_at")
    )
