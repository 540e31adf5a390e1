"""Rows of `silver.cardinal` from decoded messages, in this process, and lakes that have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher
from wirehouse_codecs.cardinal.simulator.simulator import Record
from wirehouse_codecs.cardinal.wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    content_digest,
    decode,
)
from wirehouse_codecs.core.rules import Place
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.jobs.job import Span
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Size, Windows
from wirehouse_pipelines.tables import all_tables

LOG = "silver.cardinal"
SCHEMA = arrow_types.schema(all_tables()[LOG])
Row = dict[str, Any]
#: A record: location, key and value.
Landed = tuple[Place, bytes | None, bytes | None]


_KINDS = {
    Batch: "batch",
    SubBatchHeader: "sub_batch_header",
    SubBatchMsg: "sub_batch_msg",
    BatchMsg: "batch_msg",
    BatchDeleteMsg: "batch_delete_msg",
    Reorg: "reorg",
    ReorgComplete: "reorg_complete",
}


def fields(message: Message, matcher: NameMatcher) -> Row:
    """A message as the log has it."""
    found: Row = {"kind": _KINDS[type(message)], "block_hash": message.block_hash}
    match message:
        case BatchMsg() | BatchDeleteMsg():
            return found | {"key": message.key, "value": message.value}
        case Batch():
            found |= {"number": Decimal(message.number), "parent": message.parent}
            found["weight"] = message.weight.to_bytes(32, "big")
            found["updates"] = [
                {"name": one.name, "value": one.value, "count": one.count, "is_delete": one.delete}
                | {"subbatch": one.subbatch, "tracked": matcher.judge(one.name).tracked}
                for one in message.updates
            ]
        case SubBatchHeader():
            found |= {"batch_id": message.batch_id, "item_count": message.item_count}
        case SubBatchMsg():
            found |= {"batch_id": message.batch_id, "item_index": message.index, "deletes": list(message.deletes)}
            found["sets"] = [{"key": key, "value": value} for key, value in message.updates]
        case Reorg() | ReorgComplete():
            return found | {"number": Decimal(message.number)}
    return found | {"content_digest": content_digest(message)}


def landed(records: Iterable[Record]) -> list[Landed]:
    """Records as they are landed from one capture."""
    found: list[Landed] = []
    now_ns = first_ns = 0
    for at, sent in enumerate(records):
        now_ns = max(now_ns, sent.timestamp_ms * 10**6)
        first_ns = first_ns or now_ns
        place = Place(now_ns, first_ns, bytes(32), at, sent.topic, sent.partition, sent.offset)
        found.append((place, sent.key, sent.value))
    return found


def log(records: Iterable[Landed], source: Source, windows: Windows) -> list[Row]:
    """The rows of a source's messages."""
    options = CardinalOptions.from_mapping(source.options)
    matcher = NameMatcher(options)
    rows = []
    for place, key, value in records:
        message = decode(key, value, options).message
        if message is not None:
            where = {name: getattr(place, name) for name in Place.__dataclass_fields__}
            row = {"source": source.name, "window_start": windows.of(place.arrived_at_ns), "row_kind": "message"}
            rows.append(row | where | {"message": fields(message, matcher)})
    return rows


def lake_with(folder: Path, size: Size, streams: Mapping[str, tuple[Sequence[Landed], CardinalOptions]]) -> Lake:
    """A lake with the log of these sources."""
    first = min(place.arrived_at_ns for landed, _ in streams.values() for place, _, _ in landed)
    sources = [
        Source(name, "cardinal", "messages", "x", json.loads(options.canonical()))
        for name, (_, options) in streams.items()
    ]
    lake = Lake(str(folder), Windows(size, Windows(size, "2015-01-01").of(first)), tuple(sources))
    rows = [row for source in sources for row in log(streams[source.name][0], source, lake.windows)]
    spans = [Span(source.name, windows_of(streams[source.name][0], lake)) for source in sources]
    spark_tables.replace(lake, LOG, pa.Table.from_pylist(rows, schema=SCHEMA), spans)
    return lake


def windows_of(records: Iterable[Landed], lake: Lake) -> tuple[str, ...]:
    """The windows that have records."""
    return tuple(sorted({lake.windows.of(place.arrived_at_ns) for place, _, _ in records}))
