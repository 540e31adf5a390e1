"""Judges the payloads of proposals that carry no metadata, by entries that the service knows from elsewhere (gold).

Silver decodes each connection on its own, so it can't judge these payloads. The stage here brings the messages of such
proposals together with the signed entries of their log, from earlier windows and this one
(`correlation/payload_replay.py`). Most runs have no such proposal, and no such stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.payload_replay import (
    FIELDS,
    KINDS,
    PLACED,
    Found,
    Payloads,
    replay,
    sides_of,
)
from wirehouse_codecs.bamboo.log.schema import MESSAGE_TYPE, SCHEMA, UINT
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_pipelines.bamboo.verification_rows import ENTRIES_TABLE, FOUND_TABLE, SILVER
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.batches import with_all
from wirehouse_pipelines.jobs import services, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.stages import Input, Order, Stage, Where, Written

Row = Mapping[str, Any]

_KEY: Final = ("source", "author", "log_id")
#: What names a proposal in a window.
PROPOSAL: Final = ("source", "window_start", "connection_id", "proposal_number")
#: Columns of a proposal's messages, and of the entries of its log.
_MESSAGES: Final = {**dict.fromkeys(("source", "window_start", *PLACED), ()), "message": FIELDS}
_OF_ENTRY: Final = ("seq", "entry_hash", "payload_size", "payload_hash")
_ENTRIES: Final = dict.fromkeys((*_KEY, "window_start", *_OF_ENTRY), ())
_IS_SIGNED: Final = ("data", "own_rule", "signature_rule")
_ROWS: Final = pa.schema(
    [
        *(("source", pa.string()), ("window_start", pa.string()), ("author", pa.binary()), ("log_id", UINT)),
        ("is_message", pa.bool_()),
        *(SCHEMA.field(name) for name in PLACED),
        *(MESSAGE_TYPE.field(name) for name in FIELDS),
        *(("seq", UINT), ("entry_hash", pa.binary()), ("payload_size", UINT), ("payload_hash", pa.binary())),
    ]
)
_FINDING: Final = pa.schema(
    [
        *(("source", pa.string()), ("window_start", pa.string())),
        *(SCHEMA.field(name) for name in PLACED),
        *((name, pa.string()) for name in ("rule", "severity", "message", "protocol")),
    ]
)


def stage(work: Work, written: Written, members: services.Members, asked: Sequence[Row]) -> Stage:
    """The stage of these proposals. They have their author and log id, and `wants` and `modes` of both sides.

    `written` has the files of verification.
    """
    proposals = {itemgetter(*PROPOSAL)(row): row for row in asked}
    logs: defaultdict[str, set[bytes]] = defaultdict(set)
    for row in asked:
        logs[row["source"]].add(row["author"])
    authors = {source: pa.array(sorted(keys), pa.binary()) for source, keys in logs.items()}
    where = Where(dict.fromkeys(("source", "author", *_IS_SIGNED), ()), partial(_signed, authors=authors))
    entries = [
        *steps.passed(work, ENTRIES_TABLE, written[ENTRIES_TABLE]),
        *spark_tables.files(work.lake, ENTRIES_TABLE, work.alive()),
    ]
    messages = spark_tables.files(work.lake, SILVER, work.members(), MESSAGE)
    return Stage(
        [
            Input(SILVER, messages, _MESSAGES, partial(_messages, members=members, proposals=proposals)),
            Input(ENTRIES_TABLE, entries, _ENTRIES, _entries, where),
        ],
        _ROWS,
        # The entries of a window come before its messages.
        Order(_KEY, ("window_start", "is_message", "connection_id", "proposal_number", "byte_start")),
        partial(_replayed, proposals=proposals),
        (FOUND_TABLE,),
        steps.windows(work.spans),
    )


def _messages(
    rows: pa.RecordBatch, members: services.Members, proposals: Mapping[tuple[Any, ...], Row]
) -> pa.RecordBatch:
    """Prepare the messages of the proposals, with the log of each."""
    rows = members.once(rows)
    places = zip(*(rows.column(name).to_pylist() for name in PROPOSAL), strict=True)
    whose = [proposals.get(place) for place in places]
    kind = pc.struct_field(rows.column("message"), "kind")
    wanted = np.array([row is not None for row in whose], np.bool_) & np.asarray(pc.is_in(kind, pa.array(KINDS)))
    logs = [row for row, is_wanted in zip(whose, wanted, strict=True) if row is not None and is_wanted]
    rows = rows.filter(pa.array(wanted))
    made = rows.drop_columns(["message"]).append_column("is_message", pa.repeat(True, rows.num_rows))
    for name in ("author", "log_id"):
        made = made.append_column(name, pa.array([row[name] for row in logs], _ROWS.field(name).type))
    for name, column in zip(FIELDS, rows.column("message").flatten(), strict=True):
        made = made.append_column(name, column)
    return with_all(made, _ROWS)


def _signed(rows: pa.RecordBatch, authors: Mapping[str, pa.Array]) -> pa.Array:
    """Which entries are correctly encoded and signed, by one of these authors."""
    # A file of the table has rows of one source.
    known = authors.get(rows.column("source")[0].as_py(), pa.array([], pa.binary()))
    right = pc.and_(rows.column("own_rule").is_null(), rows.column("signature_rule").is_null())
    return pc.and_(pc.and_(right, rows.column("data").is_valid()), pc.is_in(rows.column("author"), known))


def _entries(rows: pa.RecordBatch) -> pa.RecordBatch:
    return with_all(rows.append_column("is_message", pa.repeat(False, rows.num_rows)), _ROWS)


def _replayed(
    batches: Iterable[pa.RecordBatch], proposals: Mapping[tuple[Any, ...], Row]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Findings, from rows by log and window: entries first, then messages by proposal."""
    listed = (row for batch in batches for row in batch.to_pylist())
    for _, of_log in groupby(listed, itemgetter(*_KEY)):
        payloads = Payloads()
        for (is_message, *place), group in groupby(of_log, itemgetter("is_message", *PROPOSAL)):
            if not is_message:
                for entry in group:
                    payloads.add(entry)
                continue
            asked = proposals[tuple(place)]
            found = [_row(one) for one in replay(group, sides_of(asked["modes"], asked["wants"]), payloads)]
            if found:
                yield FOUND_TABLE, pa.RecordBatch.from_pylist(found, schema=_FINDING)


def _row(one: Found) -> dict[str, Any]:
    rule = RULE[one.rule]
    named = {"rule": rule.id, "severity": rule.severity.value, "message": one.message, "protocol": "bamboo"}
    return {**one.row, **named}
