"""Gold of Bamboo: entries with their verdicts, logs, forks, proposals, sessions, and findings.

Stages read the log `silver.bamboo`. The first writes proposals and sessions as they stand there, and what became of
each payload. `verification.py` verifies the entries, log by log. `sent_metadata.py` judges the senders of metadata by
the signatures, and `payloads.py` what was sent without metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.payload_replay import SIDES
from wirehouse_codecs.bamboo.log.rows import PROPOSAL, SESSION
from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE
from wirehouse_pipelines.bamboo import payloads, sent_metadata, verification
from wirehouse_pipelines.bamboo.payloads import Asked
from wirehouse_pipelines.bamboo.verification_rows import (
    ENTRIES_TABLE,
    FORKS_TABLE,
    FOUND_TABLE,
    LOGS_TABLE,
    SILVER,
    STATE_TABLE,
    Array,
)
from wirehouse_pipelines.delta import arrow_types, spark_tables, table_reader
from wirehouse_pipelines.delta.batches import runs_of, whole_keys
from wirehouse_pipelines.delta.spark_tables import Files
from wirehouse_pipelines.jobs import services, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.stages import Input, Order, Stage
from wirehouse_pipelines.tables import all_tables

VERSION = "13"
PROPOSALS: Final = "gold.bamboo_proposals_history"
SESSIONS: Final = "gold.bamboo_sessions_history"
PAYLOADS: Final = "gold.bamboo_payloads"
OUTPUTS: Final = (ENTRIES_TABLE, LOGS_TABLE, FORKS_TABLE, PROPOSALS, SESSIONS, PAYLOADS, FOUND_TABLE, STATE_TABLE)
#: Proposals whose payloads `payloads.py` judges.
ASKED: Final = "asked"

_LOG: Final = arrow_types.schema(all_tables()[SILVER])
_ENTITY: Final = ("source", "window_start", "connection_id")
_PLACE: Final = ("capture_id", "record_number", "arrived_at_ns")
_ENDPOINTS: Final = ("community_id", "client_address", "client_port", "server_address", "server_port")
#: Columns of the log's rows that are read, by their kind.
_KINDS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    CONNECTION: {"connection": _ENDPOINTS},
    PROPOSAL: dict.fromkeys((*_PLACE, "proposal_number", "proposal_id", "proposal"), ()),
    SESSION: dict.fromkeys((*_PLACE, "session"), ()),
    MESSAGE: {"proposal_number": (), "message": ("kind", "seq", "count", "payload.checked", "payload.rule")},
}
#: What became of a payload, by the kind of the message that says so; `known`: it came, with the right hash.
_FATES: Final = {"skip_small": "small", "skip_large": "large", "skip_missing": "missing", "skip_bytes": "part"}
_PAYLOAD: Final = ("seq", "fate")
_COMMON: Final = dict.fromkeys((*_ENTITY, "row_kind"), ())
#: `is_new`: the proposal began in its window.
_ROWS: Final = pa.schema(
    {
        one.name: one.type
        for kind in (CONNECTION, PROPOSAL, SESSION)
        for one in table_reader.chosen(_LOG, {**_COMMON, **_KINDS[kind]})
    }
    | {"is_new": pa.bool_()}
    | {name: arrow_types.given(all_tables()[PAYLOADS]).field(name).type for name in _PAYLOAD}
)
#: Counts of both sides of a proposal.
_COUNTED: Final = ("metadata", "payloads", "raw_bytes", "compressed_bytes", "inflated_bytes")


def _horizon(source: Source) -> int:
    """Logs grow for years and entries link far back, so the state of a log never expires."""
    return 2**62


def _entities(work: Work, members: services.Members) -> Stage:
    """The stage that selects proposals and sessions, and adds its connection to each session."""
    bounds = {
        name: (work.lake.windows.start_ns(name), work.lake.windows.end_ns(name))
        for span in work.spans
        for name in span.windows
    }
    once = partial(_once, members=members, bounds=bounds)
    return Stage(
        [
            Input(
                SILVER,
                spark_tables.files(work.lake, SILVER, work.members(), kind),
                {**_COMMON, **columns},
                partial(_fates, members=members) if kind == MESSAGE else once,
            )
            for kind, columns in _KINDS.items()
        ],
        _ROWS,
        Order(("source", "connection_id"), ("window_start", "row_kind", "proposal_number")),
        _select,
        (PROPOSALS, SESSIONS, PAYLOADS, STATE_TABLE),
        steps.windows(work.spans),
        [(STATE_TABLE, work.clock(_horizon))],
        passed={ASKED: SILVER},
    )


def _once(rows: pa.RecordBatch, members: services.Members, bounds: Mapping[str, tuple[int, int]]) -> pa.RecordBatch:
    # A file of the table has rows of one window and kind.
    first_ns, last_ns = bounds[rows.column("window_start")[0].as_py()]
    rows = members.once(rows)
    if "proposal" not in rows.schema.names:
        return rows
    at_ns = pc.struct_field(rows.column("proposal"), "proposed_at_ns")
    is_new = pc.and_(pc.greater_equal(at_ns, first_ns), pc.less_equal(at_ns, last_ns))
    return rows.append_column("is_new", is_new)


def _fates(rows: pa.RecordBatch, members: services.Members) -> pa.RecordBatch:
    """Prepare messages: those that say what became of a payload."""
    rows = members.once(rows)
    kind, seq, count, payload = rows.column("message").flatten()
    checked, rule = payload.flatten()
    is_known = pc.and_(checked.fill_null(False), rule.is_null())
    skipped = pc.index_in(kind, pa.array(_FATES))
    # Skipping 0 bytes is nothing.
    skipped = pc.if_else(pc.and_(pc.equal(kind, "skip_bytes"), pc.equal(count, 0).fill_null(True)), None, skipped)
    fate = pc.if_else(is_known, "known", pa.array(_FATES.values()).take(skipped))
    made = rows.drop_columns(["message"]).append_column("seq", seq).append_column("fate", fate)
    return made.filter(pc.and_(seq.is_valid(), fate.is_valid()))


#: The least rows that are folded at once.
_AT_ONCE: Final = 10_000


def _select(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for rows in whole_keys(batches, ("source", "connection_id"), _AT_ONCE):
        kind = rows.column("row_kind")
        #: The row of the connection and of the session of each window of a connection, or -1.
        where = runs_of(rows, _ENTITY)
        count = int(where[-1]) + 1
        at = (np.flatnonzero(np.asarray(pc.equal(kind, name))) for name in _KINDS)
        connections, proposals, sessions, payloads_at = at
        of_session, of_connection = (np.full(count, -1) for _ in range(2))
        of_session[where[sessions]], of_connection[where[connections]] = sessions, connections
        yield SESSIONS, _sessions(rows, sessions, of_connection[where[sessions]])
        yield PROPOSALS, _proposals(rows.take(pa.array(proposals)))
        yield PAYLOADS, rows.select([*_ENTITY, "proposal_number", *_PAYLOAD]).take(pa.array(payloads_at))
        yield ASKED, _asked(rows, proposals, of_session[where[proposals]])


def _sessions(rows: pa.RecordBatch, at: Array, connections: Array) -> pa.RecordBatch:
    """The sessions `at` these rows, with columns of their connections, if those are there."""
    made = _unfolded(rows.take(pa.array(at)), SESSION, (*_ENTITY, *_PLACE))
    of = rows.column("connection").take(pa.array(connections, mask=connections < 0))
    for name in _ENDPOINTS:
        made = made.append_column(name, pc.struct_field(of, name))
    return made


def _proposals(rows: pa.RecordBatch) -> pa.RecordBatch:
    made = _unfolded(rows, PROPOSAL, (*_ENTITY, *_PLACE, "proposal_number", "proposal_id"))
    is_dropped = pc.equal(made.column("outcome"), "dropped").fill_null(False)
    made = made.append_column("credit_spent", pc.if_else(is_dropped, 0, 1))
    for name in _COUNTED:
        sent = (pc.struct_field(made.column(side), ["sent", name]) for side in SIDES)
        made = made.append_column(name, pc.add(*sent))
    return made


def _unfolded(rows: pa.RecordBatch, struct: str, names: Iterable[str]) -> pa.RecordBatch:
    """`rows` with the fields of a struct as columns."""
    made = rows.select(list(names))
    for field, column in zip(_LOG.field(struct).type, rows.column(struct).flatten(), strict=True):
        made = made.append_column(field.name, column)
    return made


def _asked(rows: pa.RecordBatch, at: Array, sessions: Array) -> pa.RecordBatch:
    """Proposals without metadata that began in their window, with their sessions, as rows of silver."""
    proposals = rows.take(pa.array(at))
    field = partial(pc.struct_field, proposals.column("proposal"))
    wanted = pc.or_(field("payload_only").fill_null(False), field("offset").is_valid())
    wanted = pc.and_(wanted, pc.invert(field("partial").fill_null(True)))
    wanted = pc.and_(pc.and_(wanted, field("author").is_valid()), proposals.column("is_new").fill_null(False))
    of = rows.column("session").take(pa.array(sessions, mask=sessions < 0))
    columns = {name: proposals.column(name) for name in (*payloads.PROPOSAL, "row_kind", "proposal")}
    return pa.RecordBatch.from_pydict(columns | {"session": of}).filter(pc.and_(wanted, of.is_valid()))


def tables(work: Work) -> Iterator[tuple[str, Files]]:
    """The job of gold.bamboo: its tables, each with its files."""
    members = services.members(work, SILVER)
    written = steps.run(work, [_entities(work, members)], VERSION)
    asked = written.pop(ASKED)
    verified = verification.verified(work, VERSION)
    more = [sent_metadata.stage(work, verified, members)]
    if asked:
        more.append(payloads.stage(work, verified, members, Asked(work.lake, steps.passed(work, SILVER, asked))))
    for name, made in (*verified.items(), *steps.run(work, more, VERSION).items()):
        written.setdefault(name, []).extend(made)
    yield from steps.files(written, OUTPUTS)
