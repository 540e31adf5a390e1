"""Assembly of blocks in sets: what the messages of a block say, whatever their order.

Most blocks are *regular*: one Batch, every key under exactly one counted prefix, no key said twice in two ways. Of such
a block everything follows from sets of messages: which keys came, how many under each prefix, when the last one that was
needed came. These expressions complete regular blocks only and recognise all others, which take the exact fold of the
codec (`wirehouse_codecs.cardinal.session`), the one place where the rules about blocks are judged.

The parts of a block sort so that whatever is counted follows what counts it: after a counted prefix the keys that begin
with it, after a sub-batch's id the ids of its items. So a running `last` finds each part's owner.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

#: One block of one source. The hash comes first: Spark sorts by the first bytes of the first column.
BLOCK = ("block_hash", "source")
ORDER = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")

#: Slots of a block's parts in sort order: its Batch; sub-batches, each followed by its items; prefixes, each by its keys.
BATCH, SUBBATCH, KEY = 0, 1, 2
#: What says a part, one bit each. NAMED: an entry of the Batch counts or announces it.
NAMED, MESSAGE, SET, DELETE, ITEM_SET, ITEM_DELETE, INLINE_SET, INLINE_DELETE = (1 << bit for bit in range(8))
MESSAGES = MESSAGE | SET | DELETE
SETS = SET | ITEM_SET | INLINE_SET
DELETES = DELETE | ITEM_DELETE | INLINE_DELETE

BATCH_TYPE = "struct<number:decimal(20,0),weight:binary,parent:binary>"
#: What a part says besides its slot, key and way; null where it says nothing of the kind.
PART = {
    "value": "binary",  # what the key is set to
    "content": "binary",  # equal for repeats, different for contradictions
    "origin": "binary",  # the sub-batch item that says it
    "expected": "bigint",  # messages counted under a prefix, or items of a sub-batch
    "tracked": "boolean",
    "name": "binary",
    "wrong_topic": "boolean",
    "batch": BATCH_TYPE,
}


def _parts(frame: DataFrame, slot: int, key: Column, way: Column | int, **said: Column) -> DataFrame:
    way = F.lit(way) if isinstance(way, int) else way
    columns = [said.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in PART.items()]
    at = F.struct(*ORDER).alias("at")
    return frame.select(*BLOCK, F.lit(slot).alias("slot"), key.alias("key"), way.alias("way"), at, *columns)


def _entries(batches: DataFrame) -> DataFrame:
    """The parts that the entries of a Batch are: prefixes, sub-batch ids, inline keys."""
    entries = batches.select("*", F.explode("updates").alias("entry"))
    entry = {name: F.col(f"entry.{name}") for name in ("name", "value", "count", "is_delete", "subbatch", "tracked")}
    named = {"tracked": entry["tracked"], "name": entry["name"]}
    undeclared = ~F.col("entry.declared")
    counted = _parts(
        entries.where(entry["count"].isNotNull()),
        KEY, entry["name"], NAMED, expected=entry["count"], wrong_topic=undeclared, **named,
    )  # fmt: skip
    announced = _parts(
        entries.where(entry["subbatch"].isNotNull()), SUBBATCH, entry["subbatch"], NAMED, wrong_topic=undeclared, **named
    )
    inline = entries.where(entry["tracked"] & (entry["value"].isNotNull() | entry["is_delete"]))
    way = F.when(entry["is_delete"], INLINE_DELETE).otherwise(INLINE_SET)
    return counted.union(announced).union(_parts(inline, KEY, entry["name"], way, value=entry["value"]))


def _items(items: DataFrame) -> DataFrame:
    """The parts that a SubBatchMsg is: the item, and each key it sets or deletes."""
    # Index as 8 bytes big-endian: items follow their sub-batch in the order of their index.
    identity = F.concat("batch_id", F.unhex(F.lpad(F.hex("item_index"), 16, "0")))
    sets = items.select("*", F.explode("sets").alias("said"))
    deletes = items.select("*", F.explode("deletes").alias("said"))
    return (
        _parts(items, SUBBATCH, identity, MESSAGE, content=F.col("content_digest"))
        .union(_parts(sets, KEY, F.col("said.key"), ITEM_SET, value=F.col("said.value"), origin=identity))
        .union(_parts(deletes, KEY, F.col("said"), ITEM_DELETE, origin=identity))
    )


def parts(messages: DataFrame) -> DataFrame:
    """Every message of a block, and every entry and key inside one, as a part."""

    def of(*kinds: str) -> DataFrame:
        return messages.where(F.col("kind").isin(*kinds))

    batch = F.struct("number", "weight", "parent")
    way = F.when(F.col("kind") == "batch_msg", SET).otherwise(DELETE)
    keyed = _parts(of("batch_msg", "batch_delete_msg"), KEY, F.col("key"), way, value=F.col("value"), content=F.col("value"))
    headers = _parts(
        of("sub_batch_header"), SUBBATCH, F.col("batch_id"), MESSAGE,
        content=F.col("content_digest"), expected=F.col("item_count"),
    )  # fmt: skip
    batches = _parts(of("batch"), BATCH, F.lit(bytearray()), MESSAGE, content=F.col("content_digest"), batch=batch)
    return keyed.union(_items(of("sub_batch_msg"))).union(headers).union(batches).union(_entries(of("batch")))


def _has(way: int) -> Column:
    return F.col("ways").bitwiseAND(way) != 0


def _said_once() -> Column:
    """A key is said in exactly one way: the bits but NAMED are a power of two."""
    said = F.col("ways").bitwiseAND(~NAMED)
    return said.bitwiseAND(said - 1) == 0


def unique_parts(parts: DataFrame) -> DataFrame:
    """One row a part of a block: when it was first said, how often, and whether all that say it agree."""
    message = F.col("way").bitwiseAND(MESSAGES) != 0
    differs = (F.min("content") != F.max("content")) | (F.min("origin") != F.max("origin"))
    renamed = F.min("name") != F.max("name")
    return (
        parts.groupBy(*BLOCK, "slot", "key")
        .agg(
            F.bit_or("way").alias("ways"),
            F.count_if(message).alias("messages"),
            F.min(F.when(F.col("way") != NAMED, F.col("at"))).alias("first_at"),
            F.max("at").alias("last_at"),
            F.max("value").alias("value"),
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

    bounded = (F.col("slot") == SUBBATCH) | (F.length("key") == F.length(owner["key"])) | F.endswith(owner["key"], F.lit(b"/"))
    nested = _has(NAMED) & (F.col("slot") == KEY) & begins(outer)
    return (
        unique.withColumn("owner", F.last(head, ignorenulls=True).over(until_here))
        .withColumn("outer", F.last(head, ignorenulls=True).over(before))
        .withColumn("odd", F.col("differs") | nested | (begins(owner) & ~bounded))
        .withColumn("owner", F.when(begins(owner) & bounded, owner))
        .drop("outer", "differs")
    )
