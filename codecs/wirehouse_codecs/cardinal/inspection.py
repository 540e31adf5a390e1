"""The rows of `wirehouse inspect` for a capture of Cardinal messages, in the columns of silver and gold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs.captures.rules import RULE as CAPTURE_RULE
from wirehouse_codecs.cardinal.correlation.consumer import Consumer, Row
from wirehouse_codecs.cardinal.correlation.events import LocatedFinding
from wirehouse_codecs.cardinal.fast.messages import decode_messages
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import PROTOCOL
from wirehouse_codecs.cardinal.wire import messages
from wirehouse_codecs.core.rules import Finding, Place
from wirehouse_codecs.logs.inspection import MESSAGE, QUARANTINE, SKIP, Inspect, Inspected, Unseen, violation

#: Columns of a message in the order of silver.cardinal_messages.
_COLUMNS = (
    *("block_hash", "key", "value", "number", "weight", "parent", "updates"),
    *("batch_id", "item_index", "item_count", "deletes", "sets"),
)


def inspect(
    batches: Iterable[pa.RecordBatch], options: CardinalOptions | None = None, unseen: Unseen | None = None
) -> Iterator[Inspected]:
    """Rows of the records in `batches` (the columns of `logs.inspection`), which are in arrival order.

    A record gives a message, quarantine or skip row, and then a row for each rule that it shows to be broken.
    Without `options` the defaults apply: every prefix is tracked, and there is no start.
    """
    options, unseen = options or CardinalOptions(), unseen or Unseen()
    consumer = Consumer(options)
    for batch in batches:
        decoded = _decode(batch, options).to_pylist() if unseen.wanted else repeat(None, batch.num_rows)
        for record, fields in zip(batch.to_pylist(), decoded, strict=True):
            yield from _damaged(record) if record["damaged"] is not None else _rows(consumer, record, fields, unseen)


def _decode(batch: pa.RecordBatch, options: CardinalOptions) -> pa.StructArray:
    """The messages of the records, as the pipeline decodes them."""
    return decode_messages(batch.column("key"), batch.column("value"), options).message


def _rows(
    consumer: Consumer, record: dict[str, Any], fields: dict[str, Any] | None, unseen: Unseen
) -> Iterator[Inspected]:
    place = Place(**{name: record[name] for name in Place.__dataclass_fields__})
    row: dict[str, Any] = {}
    for outcome in consumer.receive(place, record["key"], record["value"]):
        if isinstance(outcome, Row):
            if outcome.decoded.message is None or unseen.sees(messages.KINDS[record["key"][0]]):
                kind, row = _row(record, outcome, fields)
                yield kind, row
        elif isinstance(outcome, LocatedFinding):
            number = outcome.number
            if number is None and outcome.finding.place == place:
                # The message itself breaks a rule of decoding, and its number is known.
                number = row.get("number")
            yield violation(outcome.finding, block_hash=outcome.block_hash, number=number)


def _place(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("capture_id", "record_number", "topic", "partition", "offset")}


def _row(record: dict[str, Any], row: Row, fields: dict[str, Any] | None) -> Inspected:
    decoded = row.decoded
    if decoded.skip is not None:
        return SKIP, _place(record) | {"arrived_at_ns": record["arrived_at_ns"], "skip": decoded.skip}
    if decoded.message is None and decoded.rule is not None:
        return _quarantine(record, decoded.rule.id, decoded.reason, record["key"], record["value"])
    own = {"ts_ns": record["ts_ns"], "arrived_at_ns": record["arrived_at_ns"], "kind": messages.KINDS[record["key"][0]]}
    return MESSAGE, _place(record) | own | {name: (fields or {}).get(name) for name in _COLUMNS}


def _quarantine(record: dict[str, Any], rule: str, reason: str, key: bytes | None, value: bytes | None) -> Inspected:
    why = {"protocol": PROTOCOL, "rule": rule, "reason": reason}
    return QUARANTINE, why | _place(record) | {"arrived_at_ns": record["arrived_at_ns"], "key": key, "value": value}


def _damaged(record: dict[str, Any]) -> Iterator[Inspected]:
    """A record that could not be read as a message."""
    rule = CAPTURE_RULE["file_damaged"]
    yield _quarantine(record, rule.id, record["damage"], None, record["damaged"])
    place = Place(**{name: record[name] for name in Place.__dataclass_fields__})
    yield violation(Finding(rule, place, record["damage"]), block_hash=None, number=None)


INSPECT: Final[Mapping[str, Inspect]] = {"messages": inspect}
