"""Gold from a log that is judged here, in this process without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.codecs.bamboo.simulator.simulated import judge
from tests.support.running import assert_same_rows, select
from wirehouse_codecs.bamboo.log.rows import ENTRY, PROPOSAL, SESSION
from wirehouse_codecs.bamboo.simulator.faults import SIGNATURE_FAULTS
from wirehouse_codecs.bamboo.simulator.simulator import SimulatorConfig
from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE
from wirehouse_pipelines.bamboo import gold, sent_metadata, verification
from wirehouse_pipelines.bamboo.verification_rows import FOUND_TABLE, STATE_TABLE
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables

Row = dict[str, Any]
pytestmark = pytest.mark.usefixtures("stages_run_here")
SCHEMA = arrow_types.schema(all_tables()["silver.bamboo"])
NS_PER_S = 10**9
HOUR_NS = 3_600 * NS_PER_S
#: Faults that signatures show, and the rules that they break.
FAULTS = {name: fault.rule for name, fault in SIGNATURE_FAULTS.items()}


@pytest.fixture(scope="module")
def log() -> dict[str, list[Row]]:
    """Rows of the log by source: each is a network with one fault, over some hours."""
    return {fault: _judged(fault) for fault in FAULTS}


def _judged(fault: str) -> list[Row]:
    rows = judge(SimulatorConfig(seed=2, connections=2, logs=2, entries=12, ways=3, forks=1, fault=fault)).rows
    return over_hours(fault, [row for kind in (ENTRY, MESSAGE, CONNECTION, SESSION, PROPOSAL) for row in rows[kind]])


def over_hours(source: str, rows: Sequence[Row]) -> list[Row]:
    """Rows of the log as those of a source, evenly over four hours."""
    arrivals = sorted({row["arrived_at_ns"] for row in rows})
    later = {at_ns: arrivals[0] + number * 4 * HOUR_NS // len(arrivals) for number, at_ns in enumerate(arrivals)}
    found = []
    for row in rows:
        at_ns = later[row["arrived_at_ns"]]
        found.append({**row, "source": source, "arrived_at_ns": at_ns, "window_start": window_of(at_ns)})
    return found


def window_of(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H")


def written_log(folder: Path, log: dict[str, list[Row]]) -> tuple[Lake, tuple[str, ...]]:
    """A lake with the log, and its windows."""
    rows = [row for listed in log.values() for row in listed]
    windows = tuple(sorted({row["window_start"] for row in rows}))
    sources = (Source(name, "bamboo", "pcap", "x", {}, ports=(1,)) for name in log)
    lake = Lake(str(folder), Windows("hour", windows[0]), tuple(sources))
    spans = [Span(name, windows) for name in log]
    spark_tables.replace(lake, "silver.bamboo", pa.Table.from_pylist(rows, schema=SCHEMA), spans)
    return lake, windows


def run_gold(lake: Lake, windows: Sequence[str], step: int) -> None:
    names = [source.name for source in lake.sources]
    before: str | None = None
    for at in range(0, len(windows), step):
        entries = {
            name: Entry(STATE_TABLE, name, before, "", "", "", lake.windows.start, 0, "", 0) for name in names if before
        }
        spans = tuple(Span(name, tuple(windows[at : at + step])) for name in names)
        work = Work(None, lake, spans, entries, ())  # type: ignore[arg-type]  # no stage asks for it
        for table, made in gold.tables(work):
            spark_tables.replace(lake, table, made, spans)
        before = windows[at : at + step][-1]


@pytest.mark.property
def test_gold_is_the_same_however_windows_are_run(tmp_path: Path, log: dict[str, list[Row]]) -> None:
    lakes = []
    for step in (1, 2, 100):
        lake, windows = written_log(tmp_path / str(step), log)
        run_gold(lake, windows, step)
        lakes.append(lake)
    assert len(windows) > 3
    for lake in lakes[1:]:
        assert_same_rows(lakes[0], lake, of=("bamboo",))
    found = "SELECT source, rule FROM gold.bamboo_found WHERE rule <> 'bamboo.fork' ORDER BY source"
    reported = [(row["source"], row["rule"]) for row in select(lakes[0], found)]
    assert reported == [(name, f"bamboo.{rule}") for name, rule in sorted(FAULTS.items())]


def test_sessions_have_the_endpoints_of_their_connection_and_proposals_both_sides_counts(
    tmp_path: Path, log: dict[str, list[Row]]
) -> None:
    lake, windows = written_log(tmp_path, log)
    run_gold(lake, windows, 100)
    ports = "SELECT source, connection_id, client_port FROM gold.bamboo_sessions_history"
    wanted = {
        (row["source"], row["connection_id"]): row["connection"]["client_port"]
        for listed in log.values()
        for row in listed
        if row["row_kind"] == CONNECTION
    }
    found = {(row["source"], row["connection_id"]): row["client_port"] for row in select(lake, ports)}
    assert found == wanted
    counts = "SELECT SUM(metadata) AS metadata, SUM(raw_bytes) AS raw_bytes FROM gold.bamboo_proposals_history"
    sent = [
        row["proposal"][side]["sent"]
        for listed in log.values()
        for row in listed
        if row["row_kind"] == PROPOSAL
        for side in ("client", "server")
    ]
    assert select(lake, counts) == [{name: sum(one[name] for one in sent) for name in ("metadata", "raw_bytes")}]


# The fold of pieces, by rows of one side


def piece(at: int, what: int = sent_metadata._PIECE, **more: Any) -> Row:
    side = {"source": "s", "window_start": "w1", "connection_id": b"c", "direction": "client", "proposal_number": 0}
    return {**side, "at": at, "byte_start": at, "what": what, "unsure": False, "greedy": True, **more}


def verdict(at: int, rule: str) -> Row:
    return piece(at, sent_metadata._VERDICT, piece_rule=rule, proposal_number=None)


def follows(at: int, kind: str, **more: Any) -> Row:
    return piece(at, sent_metadata._MESSAGE, **{"byte_start": at + 5, "kind": kind, **more})


def carried(at: int, rule: str | None, state_window: str) -> Row:
    more = {"window_start": None, "state_window": state_window, "piece_rule": rule, "unsure": None, "greedy": None}
    return piece(at, sent_metadata._CARRIED_PIECE, **more)


def folded(*rows: Row) -> tuple[list[tuple[str, int, str]], list[tuple[str, int, str | None]]]:
    """Findings: rule, place and message. And the last pieces: window, place and rule."""
    order = ("at", "what", "window_start", "byte_start")
    batch = pa.RecordBatch.from_pylist(
        sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in order]), schema=sent_metadata._ROWS
    )
    made = list(sent_metadata._fold(batch.slice(number, 1) for number in range(batch.num_rows)))
    found = [row for table, rows in made if table == FOUND_TABLE for row in rows.to_pylist()]
    state = [row for table, rows in made if table == STATE_TABLE for row in rows.to_pylist()]
    return (
        sorted((row["rule"].removeprefix("bamboo."), row["byte_start"], row["message"]) for row in found),
        sorted((row["window_start"], row["byte_start"], row["piece_rule"]) for row in state),
    )


BAD, UNKNOWN = "bad_signature", verification.UNKNOWN
RIGHT = "the entry's signature is right"


def test_invalid_data_from_a_safe_sender() -> None:
    rows = [piece(10, greedy=False), verdict(10, BAD), piece(20, greedy=None), verdict(20, BAD), piece(30)]
    assert folded(*rows) == ([("invalid_data_in_safe_mode", 10, BAD)], [("w1", 30, None)])
    assert folded(piece(10, greedy=False), verdict(10, UNKNOWN)) == ([], [("w1", 10, UNKNOWN)])


def test_a_greedy_sender_apologises_at_once_for_what_is_wrong_and_for_nothing_else() -> None:
    wrong = [piece(10), verdict(10, BAD)]
    missing = ("invalid_data_not_apologised", 15, BAD)
    assert folded(*wrong, follows(10, "apology")) == ([], [("w1", 10, BAD)])
    assert folded(*wrong, follows(10, "raw")) == ([missing], [("w1", 10, BAD)])
    assert folded(*wrong, follows(10, "raw"), follows(10, "raw", byte_start=17))[0] == [missing]
    assert folded(*wrong, follows(10, "apology"), follows(10, "raw", byte_start=17))[0] == []
    assert folded(*wrong, follows(10, "raw", proposal_number=1))[0] == []
    assert folded(piece(10), follows(10, "raw"))[0] == []
    assert folded(piece(10), follows(10, "apology"))[0] == [("apology_for_valid_data", 15, RIGHT)]
    # Nobody knows whether such a signature is right.
    assert folded(piece(10, unsure=True), follows(10, "apology")) == ([], [("w1", 10, UNKNOWN)])
    assert folded(piece(10), verdict(10, UNKNOWN), follows(10, "apology"))[0] == []
    assert folded(piece(10), verdict(10, UNKNOWN), follows(10, "raw"))[0] == []


def test_what_follows_the_last_piece_of_an_earlierwindow_of() -> None:
    assert folded(carried(10, BAD, "w0"), follows(10, "raw")) == ([("invalid_data_not_apologised", 15, BAD)], [])
    assert folded(carried(10, None, "w0"), follows(10, "apology"))[0] == [("apology_for_valid_data", 15, RIGHT)]
    assert folded(carried(10, UNKNOWN, "w0"), follows(10, "apology"), follows(10, "raw"))[0] == []
    # The newest one counts.
    assert folded(carried(4, BAD, "w00"), carried(10, None, "w01"), follows(4, "raw"))[0] == []


def test_the_state_has_the_last_piece_of_each_side_andwindow_of() -> None:
    rows = [piece(10), piece(20), piece(30, proposal_number=1), piece(40, window_start="w2"), verdict(40, BAD)]
    assert folded(*rows) == ([], [("w1", 20, None), ("w1", 30, None), ("w2", 40, BAD)])
    other = piece(15, direction="server", unsure=True)
    assert folded(piece(10))[1] == [("w1", 10, None)]
    assert folded(other)[1] == [("w1", 15, UNKNOWN)]
