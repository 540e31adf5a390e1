"""Judges the payloads of proposals that carry no metadata, by entries that the service knows from elsewhere (gold).

Silver decodes each connection on its own, so it can't judge these payloads. The stage here brings the messages of such
proposals together with the signed entries of their log, from earlier windows and this one
(`correlation/payload_replay.py`). Most runs have no such proposal, and no such stage.

The first stage of gold writes these proposals into files, as rows of silver with their session. `Asked` reads them in
the tasks that read the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.payload_replay import (
    FIELDS,
    KINDS,
    PLACED,
    SIDES,
    Found,
    Payloads,
    modes_of,
    replay,
)
from wirehouse_codecs.bamboo.log.schema import MESSAGE_TYPE, SCHEMA, UINT
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_pipelines.bamboo.verification_rows import ENTRIES_TABLE, FOUND_TABLE, SILVER
from wirehouse_pipelines.delta import delta_tables, spark_tables, table_reader
from wirehouse_pipelines.delta.batches import with_all
from wirehouse_pipelines.delta.spark_tables import File
from wirehouse_pipelines.delta.table_reader import Columns
from wirehouse_pipelines.jobs import services, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.stages import Input, Order, Stage, Where, Written
from wirehouse_pipelines.tables import all_tables

Row = Mapping[str, Any]

_LOG: Final = ("author", "log_id")
_KEY: Final = ("source", *_LOG)
#: What names a proposal in a window.
PROPOSAL: Final = ("source", "window_start", "connection_id", "proposal_number")
#: Columns of a proposal's messages, and of the entries of its log.
_MESSAGES: Final = {**dict.fromkeys(("source", "window_start", *PLACED), ()), "message": FIELDS}
_OF_ENTRY: Final = ("seq", "entry_hash", "payload_size", "payload_hash")
_ENTRIES: Final = dict.fromkeys((*_KEY, "window_start", *_OF_ENTRY), ())
_IS_SIGNED: Final = ("data", "own_rule", "signature_rule")
#: What is known of a proposal besides: how both sides send.
_ASKED: Final = pa.schema(
    [
        *(("author", pa.binary()), ("log_id", UINT), ("ended_by", pa.string())),
        ("modes", pa.struct([(side, pa.struct([("send_mode", pa.string())])) for side in SIDES])),
    ]
)
_ROWS: Final = pa.schema(
    [
        *(("source", pa.string()), ("window_start", pa.string()), ("is_message", pa.bool_())),
        *_ASKED,
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


class Asked:
    """The proposals, read in a task from the files of the stage before. Those of one window at a time are held."""

    def __init__(self, lake: Lake, files: Sequence[File]) -> None:
        self._lake, self._files = lake, files
        self._place: tuple[str, str] | None = None
        self._proposals = pa.table({})
        self._authors: dict[str, pa.Array] = {}

    def of_window(self, source: str, window: str) -> pa.Table:
        """Rows of _ASKED with the column `key`."""
        if self._place != (source, window):
            columns = {**dict.fromkeys(PROPOSAL, ()), "proposal": _LOG, "session": ("ended_by", *SIDES)}
            rows = map(_asked, self._read(columns, source=source, window_start=window))
            schema = _ASKED.append(pa.field("key", pa.binary()))
            self._place, self._proposals = (source, window), pa.Table.from_batches(rows, schema)
        return self._proposals

    def authors(self, source: str) -> pa.Array:
        """The authors of their logs."""
        if source not in self._authors:
            listed = [
                pc.struct_field(rows.column("proposal"), "author")
                for rows in self._read({"proposal": ("author",)}, source=source)
            ]
            self._authors[source] = pa.concat_arrays([pa.array([], pa.binary()), *listed]).unique()
        return self._authors[source]

    def _read(self, columns: Columns, **place: str) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            if place.items() <= delta_tables.partition_of(file.name).items():
                yield from table_reader.rows_of(self._lake, all_tables()[SILVER], file.name, columns)


def stage(work: Work, written: Written, members: services.Members, asked: Asked) -> Stage:
    """The stage of these proposals. `written` has the files of verification."""
    where = Where(dict.fromkeys(("source", "author", *_IS_SIGNED), ()), partial(_signed, asked=asked))
    entries = [
        *steps.passed(work, ENTRIES_TABLE, written[ENTRIES_TABLE]),
        *spark_tables.files(work.lake, ENTRIES_TABLE, work.alive()),
    ]
    messages = spark_tables.files(work.lake, SILVER, work.members(), MESSAGE)
    return Stage(
        [
            Input(SILVER, messages, _MESSAGES, partial(_messages, members=members, asked=asked)),
            Input(ENTRIES_TABLE, entries, _ENTRIES, _entries, where),
        ],
        _ROWS,
        # The entries of a window come before its messages.
        Order(_KEY, ("window_start", "is_message", "connection_id", "proposal_number", "byte_start")),
        _replayed,
        (FOUND_TABLE,),
        steps.windows(work.spans),
    )


def _asked(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of silver as rows of _ASKED with their key."""
    proposal, session = rows.column("proposal"), rows.column("session")
    columns = {name: pc.struct_field(proposal, name) for name in _LOG}
    columns |= {"ended_by": pc.struct_field(session, "ended_by"), "key": _key(rows)}
    sides = [
        pa.StructArray.from_arrays([pc.struct_field(session, [side, "send_mode"])], ["send_mode"]) for side in SIDES
    ]
    columns["modes"] = pa.StructArray.from_arrays(sides, list(SIDES))
    return with_all(pa.RecordBatch.from_pydict(columns), _ASKED.append(pa.field("key", pa.binary())))


def _key(rows: pa.RecordBatch) -> pa.Array:
    """What names a proposal in a window of a source."""
    number = rows.column("proposal_number").cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(rows.column("connection_id"), number, b"")


def _messages(rows: pa.RecordBatch, members: services.Members, asked: Asked) -> pa.RecordBatch:
    """Prepare the messages of the proposals, with what is known of each."""
    # A file of the table has rows of one source and window.
    source, window = (rows.column(name)[0].as_py() for name in ("source", "window_start"))
    proposals = asked.of_window(members.services[source], window)
    rows = members.once(rows)
    at = pc.index_in(_key(rows), proposals.column("key"), skip_nulls=True)
    kind = pc.struct_field(rows.column("message"), "kind")
    wanted = pc.and_(at.is_valid(), pc.is_in(kind, pa.array(KINDS)))
    rows, at = rows.filter(wanted), at.filter(wanted)
    made = rows.drop_columns(["message"]).append_column("is_message", pa.repeat(True, rows.num_rows))
    for name in _ASKED.names:
        made = made.append_column(name, proposals.column(name).combine_chunks().take(at))
    for name, column in zip(FIELDS, rows.column("message").flatten(), strict=True):
        made = made.append_column(name, column)
    return with_all(made, _ROWS)


def _signed(rows: pa.RecordBatch, asked: Asked) -> pa.Array:
    """Which entries are correctly encoded and signed, by authors of these logs."""
    # A file of the table has rows of one source.
    known = asked.authors(rows.column("source")[0].as_py())
    right = pc.and_(rows.column("own_rule").is_null(), rows.column("signature_rule").is_null())
    return pc.and_(pc.and_(right, rows.column("data").is_valid()), pc.is_in(rows.column("author"), known))


def _entries(rows: pa.RecordBatch) -> pa.RecordBatch:
    return with_all(rows.append_column("is_message", pa.repeat(False, rows.num_rows)), _ROWS)


def _replayed(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Findings, from rows by log and window: entries first, then messages by proposal."""
    listed = (row for batch in batches for row in batch.to_pylist())
    for _, of_log in groupby(listed, itemgetter(*_KEY)):
        payloads = Payloads()
        for is_message, rows in groupby(of_log, itemgetter("is_message", *PROPOSAL)):
            group = list(rows)
            if not is_message[0]:
                for entry in group:
                    payloads.add(entry)
                continue
            modes = modes_of(group[0]["modes"])
            found = [_row(one) for one in replay(group, modes, payloads, group[0]["ended_by"])]
            if found:
                yield FOUND_TABLE, pa.RecordBatch.from_pylist(found, schema=_FINDING)


def _row(one: Found) -> dict[str, Any]:
    rule = RULE[one.rule]
    named = {"rule": rule.id, "severity": rule.severity.value, "message": one.message, "protocol": "bamboo"}
    return {**one.row, **named}
