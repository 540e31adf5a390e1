"""Silver of Cardinal Streams: every landed message decoded, quarantined or skipped by name.

Spark expressions read well-formed BatchMsg and BatchDeleteMsg. Everything else goes to the codec in Arrow batches: Avro
values to its fast path, and what can't be decoded to its reference path, which gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from wirehouse_codecs.captures.rules import RULES as CAPTURE_RULES
from wirehouse_codecs.cardinal.fast.columns import DECODED_TYPE, decode_columns
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_codecs.cardinal.wire.messages import KINDS, decode
from wirehouse_codecs.core.rules import by_name
from wirehouse_pipelines.jobs.job import Job, Work

VERSION = "2"

KEYED = (b"\x03", b"\x04")
AVRO = tuple(byte for byte in (bytes((kind,)) for kind in KINDS) if byte not in KEYED)
#: Bytes of the key of such a message before the application's own: type and block hash.
KEYED_KEY_BYTES = 33

QUARANTINING = tuple(rule.name for rule in RULES if rule.quarantines)
_DAMAGED = by_name(CAPTURE_RULES)["file_damaged"]


def _type_is(*types: bytes) -> Column:
    return F.substring("key", 1, 1).isin(*(bytearray(byte) for byte in types))


def _sound_keyed() -> Column:
    """A BatchMsg or BatchDeleteMsg that breaks no rule of decoding."""
    sound = _type_is(b"\x03") | (F.length("value") == 0)
    return _type_is(*KEYED) & (F.length("key") >= KEYED_KEY_BYTES) & sound


def _skip() -> Column:
    """Known messages without content: the reference's heartbeat (empty key) and ping (ff)."""
    empty = F.col("damaged").isNull() & (F.coalesce(F.length("key"), F.lit(0)) == 0)
    return F.when(empty, "heartbeat").when(_type_is(b"\xff"), "ping")


def _decode_rest(keys: pa.Array, values: pa.Array, options: CardinalOptions) -> pa.Array:
    """DECODED_TYPE of the keys that aren't null: the fast path for Avro, the reference path for the rest."""
    avro = pc.is_in(pc.binary_slice(keys, 0, 1), pa.array(AVRO, keys.type))
    decoded = decode_columns(pc.if_else(avro, keys, None), values, options)
    others = pc.indices_nonzero(pc.and_(pc.invert(avro), pc.is_valid(keys))).to_pylist()
    if not others:
        return decoded
    rows = dict.fromkeys(range(len(keys)))
    for index in others:
        one = decode(keys[index].as_py(), values[index].as_py(), options)
        rows[index] = {"rule": one.rule.name, "reason": one.reason} if one.rule else None
    return pc.if_else(avro, decoded, pa.array(rows.values(), DECODED_TYPE))


def _decoder(options: Mapping[str, CardinalOptions]) -> Any:
    """A Spark function (source, key, value) -> DECODED_TYPE; null where the key is null."""

    def decode_batch(sources: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
        present = [name for name in pc.unique(sources).to_pylist() if name is not None]
        out = pa.nulls(len(keys), DECODED_TYPE)
        for name in present:
            mine = pc.fill_null(pc.equal(sources, name), False)
            decoded = _decode_rest(pc.if_else(mine, keys, None), values, options[name])
            out = decoded if len(present) == 1 else pc.if_else(mine, decoded, out)
        return out

    return F.arrow_udf(decode_batch, from_arrow_type(DECODED_TYPE))  # type: ignore[attr-defined]  # not in the stubs yet


def _finding() -> Column:
    """The first rule of decoding that a message breaks; null for most messages."""
    severities = F.create_map(*(F.lit(text) for rule in RULES for text in (rule.name, rule.severity.value)))
    rule, reason = F.col("decoded.rule"), F.col("decoded.reason")

    def finding(rule: Column, severity: Column, message: Column) -> Column:
        return F.struct(rule.alias("rule"), severity.alias("severity"), message.alias("message"))

    damaged = finding(F.lit(_DAMAGED.id), F.lit(_DAMAGED.severity.value), F.col("damage"))
    return F.when(F.col("damaged").isNotNull(), damaged).when(
        rule.isNotNull(), finding(F.concat(F.lit("cardinal."), rule), severities[rule], reason)
    )


def _row_kind() -> Column:
    quarantined = F.col("damaged").isNotNull() | F.col("decoded.rule").isin(*QUARANTINING)
    return F.when(F.col("skip").isNotNull(), "skip").when(quarantined, "quarantine").otherwise("message")


def _message() -> Column:
    """The struct of a decoded message, from its key or from the decoder's columns."""
    keyed = _type_is(*KEYED)
    kinds = F.create_map(*(F.lit(item) for byte, name in KINDS.items() for item in (bytearray((byte,)), name)))
    own = {
        "kind": kinds[F.substring("key", 1, 1)],
        "block_hash": F.when(keyed, F.substring("key", 2, 32)).otherwise(F.col("decoded.block_hash")),
        "key": F.when(keyed, F.substring(F.col("key"), KEYED_KEY_BYTES + 1, 2**31 - 1)),
        "value": F.when(keyed, F.col("value")),
    }
    decoded = [name for name in DECODED_TYPE.names if name not in ("rule", "reason", "block_hash")]
    return F.struct(
        *(column.alias(name) for name, column in own.items()),
        *(F.col(f"decoded.{name}").alias(name) for name in decoded),
    )


def decoded(landed: DataFrame, options: Mapping[str, CardinalOptions]) -> DataFrame:
    """`silver.cardinal` of `bronze.messages`: one row for each landed message."""
    asked = F.col("key").isNotNull() & (F.length("key") > 0) & ~_sound_keyed() & ~_type_is(b"\xff")
    decoder = _decoder(options)
    raw = F.struct("key", F.coalesce("damaged", "value").alias("value"))
    return (
        landed.withColumn("raw", raw)
        .withColumn("value", F.coalesce("value", F.lit(bytearray())))
        .withColumn("decoded", decoder(*(F.when(asked, F.col(name)) for name in ("source", "key", "value"))))
        .withColumn("skip", _skip())
        .withColumn("finding", _finding())
        .withColumn("row_kind", _row_kind())
        .withColumn("message", F.when(F.col("row_kind") == "message", _message()))
        .withColumn("raw", F.when(F.col("row_kind") == "quarantine", F.col("raw")))
        .withColumn("decoder_version", F.lit(VERSION))
    )


def log(work: Work) -> Iterator[tuple[str, DataFrame]]:
    """The job of `silver.cardinal`."""
    options = {span.source: CardinalOptions.from_mapping(work.source(span.source).options) for span in work.spans}
    yield "silver.cardinal", decoded(work.read("bronze.messages"), options)


JOB = Job("silver.cardinal", ("silver.cardinal",), log, VERSION, "cardinal", reads=("bronze.messages",))
