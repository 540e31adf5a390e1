"""Silver of Cardinal Streams: every landed message decoded, quarantined or skipped by name.

Each message is decoded by itself, so the stage has no order. `fast.messages` decodes the keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.captures.rules import RULES as CAPTURE_RULES
from wirehouse_codecs.cardinal.fast.messages import decode_messages
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_codecs.core.rules import by_name
from wirehouse_codecs.logs.inspection import MESSAGE, QUARANTINE, SKIP
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.delta.spark_tables import Files
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Job, Work
from wirehouse_pipelines.stages import Input, Stage
from wirehouse_pipelines.tables import all_tables

VERSION = "2"
LANDED: Final = "bronze.messages"
LOG: Final = "silver.cardinal"

_TYPES: Final = arrow_types.given(all_tables()[LANDED])
#: Columns that stay as they are, and those that a message is decoded from.
_SAME: Final = [name for name in _TYPES.names if name in arrow_types.given(all_tables()[LOG]).names]
_CONTENT: Final = ("key", "value", "damaged", "damage")
#: What a rule of decoding is called in the tables, and whether it leaves no message. The last is that of damage.
_DAMAGED: Final = by_name(CAPTURE_RULES)["file_damaged"]
_NAMES: Final = pa.array([rule.name for rule in RULES])
_IDS: Final = pa.array([rule.id for rule in (*RULES, _DAMAGED)])
_SEVERITIES: Final = pa.array([rule.severity.value for rule in (*RULES, _DAMAGED)])


def decoded(rows: pa.RecordBatch, options: CardinalOptions) -> pa.RecordBatch:
    """`silver.cardinal` of rows of `bronze.messages`: one row for each landed message."""
    keys, values, damaged = (rows.column(name) for name in ("key", "value", "damaged"))
    whole = pc.is_null(damaged)
    found = decode_messages(keys, values, options)
    skip = pc.if_else(whole, found.skip, None)
    rule = pc.if_else(whole, pc.index_in(found.rule, _NAMES, skip_nulls=True), len(RULES))
    present = pc.is_valid(found.message)
    kind = pc.case_when(pc.make_struct(pc.is_valid(skip), present), SKIP, MESSAGE, QUARANTINE)
    quarantined = pc.equal(kind, QUARANTINE)
    made = {
        "row_kind": kind,
        "message": found.message,
        "skip": skip,
        "finding": _struct(
            pc.is_valid(rule),
            rule=_IDS.take(rule),
            severity=_SEVERITIES.take(rule),
            message=pc.if_else(whole, found.reason, rows.column("damage")),
        ),
        "raw": _struct(quarantined, key=keys, value=pc.coalesce(damaged, values)),
    }
    same = {name: rows.column(name) for name in _SAME}
    return pa.RecordBatch.from_pydict(same | made)


def _struct(has: pa.Array, **fields: pa.Array) -> pa.StructArray:
    """A struct of `fields`, null where `has` is false."""
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=pc.invert(has))


def _fold(
    batches: Iterable[pa.RecordBatch], options: Mapping[str, CardinalOptions]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Each batch has rows of one file, and so of one source."""
    for batch in filter(len, batches):
        rows = decoded(batch, options[batch.column("source")[0].as_py()])
        for kind in (MESSAGE, SKIP, QUARANTINE):
            # A file has rows of one kind.
            yield LOG, rows.filter(pc.equal(rows.column("row_kind"), kind))


def log(work: Work) -> Iterator[tuple[str, Files]]:
    """The job of `silver.cardinal`."""
    options = {span.source: CardinalOptions.from_mapping(work.source(span.source).options) for span in work.spans}
    stage = Stage(
        inputs=[
            Input(
                LANDED,
                spark_tables.files(work.lake, LANDED, work.spans),
                dict.fromkeys((*_SAME, *_CONTENT), ()),
            )
        ],
        schema=_TYPES,
        order=None,
        fold=partial(_fold, options=options),
        tables=(LOG,),
        windows=steps.windows(work.spans),
    )
    yield from steps.files(steps.run(work, [stage], VERSION), (LOG,))


JOB = Job(LOG, (LOG,), log, VERSION, "cardinal", reads=(LANDED,))
