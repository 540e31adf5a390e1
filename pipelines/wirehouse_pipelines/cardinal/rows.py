"""Rows of Cardinal's gold: schemas that its stages share, and how the codec's results become rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.cardinal.fast.columns import message_of
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.block import Block, Count, Missing, Received
from wirehouse_codecs.cardinal.wire.messages import KINDS, BatchDeleteMsg, BatchMsg, Message
from wirehouse_codecs.core.rules import Finding, Place
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.tables import all_tables

SILVER: Final = "silver.cardinal"
BATCHES: Final = "gold.cardinal_batches_history"
UPDATES: Final = "gold.cardinal_batch_updates"
CHAIN_UPDATES: Final = "gold.cardinal_chain_updates"
CHAIN: Final = "gold.cardinal_chain_history"
REORGS: Final = "gold.cardinal_reorgs_history"
FOUND: Final = "gold.cardinal_found"
STATE: Final = "gold.cardinal_state"
BLOCKS: Final = "gold.cardinal_blocks"
#: Kinds of rows of BLOCKS.
BLOCK, OVER, CLOSED, REFUSED = "block", "over", "closed", "refused"
REORG_KINDS: Final = ("reorg", "reorg_complete")

#: A block of a source.
KEY: Final = ("source", "block_hash")
#: The location of a message. The first four columns are the order of arrival.
PLACE: Final = (
    *("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number"),
    *("topic", "partition", "offset"),
)
ARRIVAL: Final = PLACE[:4]
TYPES: Final = {name: arrow_types.given(all_tables()[name]) for name in (SILVER, BATCHES, UPDATES, STATE, BLOCKS)}
PLACE_TYPE: Final = TYPES[BLOCKS].field("at").type
#: Fields of a message, without the block's hash.
FIELDS: Final = tuple(
    (field.name, field.type) for field in TYPES[SILVER].field("message").type if field.name != "block_hash"
)
#: Columns of messages between reading and a fold. The window is null if the message is carried.
MESSAGE: Final = pa.schema(
    [
        *(TYPES[SILVER].field(name) for name in ("source", "window_start", *PLACE)),
        ("block_hash", pa.binary()),
        *FIELDS,
    ]
)
#: Columns to read of SILVER and STATE for messages.
READ: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(("source", "window_start", *PLACE, "message"), ())
#: What a block's messages carry: together it may be more than the 2 GiB that the offsets of a binary column reach.
_CONTENT: Final = ("key", "value", "deletes", "sets", "updates")
#: Approximate size in bytes of a batch of carried messages that is written.
STATE_BYTES: Final = 64 << 20
_TYPE_BYTES: Final = {name: byte for byte, name in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Whose:
    """A source in a run of the job."""

    options: CardinalOptions
    windows: tuple[str, ...]
    #: Where the windows begin. What arrived before is carried.
    start_ns: int

    @classmethod
    def of(cls, work: Work) -> dict[str, Whose]:
        """All sources of a run."""
        return {
            span.source: cls(
                CardinalOptions.from_mapping(work.source(span.source).options),
                span.windows,
                work.lake.windows.start_ns(span.first),
            )
            for span in work.spans
        }


Sources = Mapping[str, Whose]


# Places


def place(row: Mapping[str, Any]) -> Place:
    """The location in these columns of a row."""
    return Place(*(row[name] for name in PLACE))


def _place_or_none(row: Mapping[str, Any] | None) -> Place | None:
    return None if row is None else place(row)


def place_row(at: Place) -> dict[str, Any]:
    """The columns of a location."""
    return {name: getattr(at, name) for name in PLACE}


def _place_row_or_none(at: Place | None) -> dict[str, Any] | None:
    return None if at is None else place_row(at)


def places(rows: pa.RecordBatch, at: Any) -> pa.StructArray:
    """The locations of the messages `at` these rows."""
    columns = [rows.column(name).take(pa.array(at)) for name in PLACE]
    return pa.StructArray.from_arrays(columns, fields=list(PLACE_TYPE))


# Messages


def messages_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of SILVER or STATE with a message, as MESSAGE."""
    struct = rows.column("message")
    own = {name: pc.struct_field(struct, name) for name in ("block_hash", *(name for name, _ in FIELDS))}
    return pa.RecordBatch.from_arrays(
        [own[name] if name in own else rows.column(name) for name in MESSAGE.names], schema=MESSAGE
    )


def widened(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` with columns for the content of messages that may have any number of bytes."""
    for name in _CONTENT:
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, rows.column(at).cast(_wide(rows.column(at).type)))
    return rows


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wide(field.type)) for field in kind])
    return pa.list_(_wide(kind.value_type)) if pa.types.is_list(kind) else kind


def as_states(messages: pa.RecordBatch, kind: str, kept: np.ndarray[Any, Any]) -> Iterator[pa.RecordBatch]:
    """Rows of STATE of a kind that carry the messages for which `kept` is true. Columns may be widened."""
    if messages.nbytes > STATE_BYTES and messages.num_rows > 1:
        half = messages.num_rows // 2
        yield from as_states(messages.slice(0, half), kind, kept[:half])
        yield from as_states(messages.slice(half), kind, kept[half:])
    else:
        # A slice has the offsets of the whole, which may not fit; the filter copies, so that they begin at 0.
        yield _as_state(messages.filter(pa.array(kept)), kind)


def _as_state(messages: pa.RecordBatch, kind: str) -> pa.RecordBatch:
    fields = list(TYPES[STATE].field("message").type)
    columns = [messages.column(field.name).cast(field.type) for field in fields]
    struct = pa.StructArray.from_arrays(columns, fields=fields)
    rows = messages.select(["source", "window_start", "block_hash", *PLACE])
    return rows.append_column("message", struct).append_column("row_kind", pa.repeat(kind, rows.num_rows))


def received(messages: pa.RecordBatch) -> Iterator[Received]:
    """The messages of a block as the codec takes them."""
    for at in range(0, messages.num_rows, _SLICE):
        for row in messages.slice(at, _SLICE).to_pylist():
            yield Received(place(row), _message(row))


#: Maximum number of messages that are Python objects at once.
_SLICE: Final = 2_000


def _message(row: Mapping[str, Any]) -> Message:
    kind = row["kind"]
    if kind in ("batch_msg", "batch_delete_msg"):
        return (BatchMsg if kind == "batch_msg" else BatchDeleteMsg)(row["block_hash"], row["key"], row["value"])
    message = message_of(_TYPE_BYTES[kind], {**row, "rule": None, "reason": None}).message
    assert message is not None
    return message


# Blocks


def block_row(block: Block) -> dict[str, Any]:
    """Columns of BLOCKS."""
    batch = block.batch
    return {
        "block_hash": block.block_hash,
        "batch": batch
        and {"number": Decimal(batch.number), "weight": batch.weight.to_bytes(32, "big"), "parent": batch.parent},
        "first_at": place_row(block.first_place),
        "batch_at": _place_row_or_none(block.batch_place),
        "last_at": place_row(block.last_place),
        "completed_at": _place_row_or_none(block.completed_place),
        "expected": [{"name": count.name, "messages": count.messages} for count in block.expected],
        "received": [{"name": count.name, "messages": count.messages} for count in block.received],
        "missing": [{name: getattr(one, name) for name in _MISSING} for one in block.missing],
        "messages": block.messages,
        "duplicates": block.duplicates,
    }


_MISSING: Final = ("name", "messages", "what", "batch_id", "uncounted")


def block_of(row: Mapping[str, Any]) -> Block:
    """A row of BLOCKS without the Batch, the content and the findings."""
    return Block(
        block_hash=row["block_hash"],
        batch=None,
        batch_place=_place_or_none(row["batch_at"]),
        first_place=place(row["first_at"]),
        last_place=place(row["last_at"]),
        completed_place=_place_or_none(row["completed_at"]),
        messages=row["messages"],
        duplicates=row["duplicates"],
        expected=tuple(Count(**one) for one in row["expected"]),
        received=tuple(Count(**one) for one in row["received"]),
        missing=tuple(Missing(**one) for one in row["missing"]),
        updates=(),
        findings=(),
        known_at=(),
    )


def number(value: int | None) -> Decimal | None:
    """An unsigned number as a decimal."""
    return None if value is None else Decimal(value)


def finding_row(finding: Finding) -> dict[str, Any]:
    """Columns of a finding; its location is the field `at`."""
    rule = {"rule": finding.rule.id, "severity": finding.rule.severity.value, "message": finding.message}
    return rule | {"at": place_row(finding.place)}


def found_row(finding: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """A row of FOUND from that of `finding_row`. `about` has source, window_start, block_hash and number."""
    where = {name: finding["at"][name] for name in PLACE if name != "capture_arrived_at_ns"}
    fields = {name: finding[name] for name in ("rule", "severity", "message")}
    return {**about, **fields, **where, "protocol": "cardinal"}


def batch_of(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows as a batch with the columns of a table that they have."""
    rows = list(rows)
    there = set().union(*rows)
    schema = pa.schema([field for field in arrow_types.given(all_tables()[table]) if field.name in there])
    return pa.RecordBatch.from_pylist(rows, schema=schema)
