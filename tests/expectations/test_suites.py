"""Suites: every rule is in one, findings are counted, and each invariant fails when it is broken."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from wirehouse_codecs.captures import rules
from wirehouse_codecs.core.rules import Severity
from wirehouse_expectations import reading
from wirehouse_expectations.suites import (
    SAMPLES,
    CheckResult,
    findings_check,
    findings_of,
    findings_suite,
    invariants_check,
    invariants_of,
    invariants_suite,
    place_columns,
    statements,
)
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.manifests import Manifest, WindowObjects, manifest_name
from wirehouse_pipelines.tables import all_tables

DAY = "2026-11-14"
NEXT = "2026-11-15"
Row = dict[str, Any]
Put = Callable[[str, Sequence[Row]], None]


def _lake(folder: Path) -> Lake:
    inbox = str(folder / "inbox")
    sources = (
        Source("mainnet", "cardinal", "messages", inbox),
        Source("hub", "wallaroo", "pcap", inbox, ports=(7100,)),
        Source("logs", "bamboo", "entries", inbox),
        Source("node", "hiero", "blocks", inbox),
    )
    return Lake(str(folder / "lake"), Windows("day", "2026-11-01"), sources)


def _write(lake: Lake, name: str, rows: Sequence[Row]) -> None:
    table = all_tables()[name]
    schema = arrow_types.schema(table)
    listed = [{"source": "mainnet", "window_start": DAY} | row for row in rows]
    filled = [{column.name: row.get(column.name) for column in table.columns} for row in listed]
    data = pa.Table.from_pylist(filled, schema=schema)
    write_deltalake(lake.table_path(name), data, mode="append", partition_by=list(table.partition_by))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return _lake(tmp_path)


@pytest.fixture
def put(lake: Lake) -> Put:
    """Write rows to a table; what a row doesn't say is null, its source mainnet and its window DAY."""
    return partial(_write, lake)


@pytest.fixture(scope="module")
def sound_tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the tables with the rows of SOUND lie."""
    lake = _lake(tmp_path_factory.mktemp("sound"))
    for name, rows in SOUND.items():
        _write(lake, name, rows)
    return lake.root


@pytest.fixture
def sound(lake: Lake, sound_tables: str) -> None:
    """The lake has the rows of SOUND."""
    shutil.copytree(sound_tables, lake.root)


def _check(lake: Lake, table: str, first: str = DAY, last: str = DAY) -> CheckResult:
    return invariants_check(lake, None, table, first, last)


def _columns(suite: Any) -> set[str]:
    return {expectation.column for expectation in suite.expectations}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_rule_of_a_protocol_is_in_its_suites(protocol: str) -> None:
    named = {
        column
        for findings in statements()[protocol].findings
        for severity in findings.severities
        for column in _columns(findings_suite(findings.table, severity))
    }
    assert named - {rule.id for rule in rules.RULES} == {rule.id for rule in PROTOCOLS[protocol].rules}


def test_every_rule_of_captures_is_in_its_suite() -> None:
    suite = findings_suite("bronze.findings", Severity.NOTE)
    assert _columns(suite) == {rule.id for rule in rules.RULES}


def test_every_table_that_people_see_has_invariants() -> None:
    for table in all_tables().values():
        if not (table.view or table.internal):
            assert invariants_of(table.name), table.name
            suite = invariants_suite(table.name)
            assert len(suite.expectations) == len(invariants_of(table.name))


def test_every_statement_is_about_a_table_that_exists() -> None:
    for stated in statements().values():
        assert {item.table for item in stated.findings} <= set(all_tables())
        assert {item.table for item in stated.invariants} <= set(all_tables())


@pytest.mark.property
def test_tables_never_written_break_nothing(lake: Lake) -> None:
    for table in all_tables().values():
        if not (table.view or table.internal):
            assert _check(lake, table.name).passed, table.name
            found = findings_of(table.name)
            for severity in found.severities if found else ():
                assert findings_check(lake, None, table.name, severity, DAY, DAY).passed


def _finding(rule: str, severity: str, number: int) -> Row:
    return {
        "row_kind": "quarantine",
        "capture_id": bytes(32),
        "record_number": number,
        "finding": {"rule": rule, "severity": severity, "message": f"message {number}"},
        "raw": {"key": b"\x09", "value": b""},
    }


def test_findings_are_counted_by_rule_with_sample_rows(lake: Lake, put: Put) -> None:
    broken = [_finding("cardinal.unknown_type", "violation", number) for number in range(30)]
    put("silver.cardinal", [*broken, _finding("cardinal.trailing_bytes", "warning", 30)])
    result = findings_check(lake, None, "silver.cardinal", Severity.VIOLATION, DAY, DAY)
    assert not result.passed
    assert result.severity == "WARN"
    assert result.counts == {"cardinal.unknown_type": 30}
    assert len(result.samples) == SAMPLES
    assert result.samples[0]["message"] == "message 0"
    assert result.samples[0]["capture_id"] == "00" * 32
    assert "cardinal.unknown_type 30" in result.description
    warnings = findings_check(lake, None, "silver.cardinal", Severity.WARNING, DAY, DAY)
    assert warnings.counts == {"cardinal.trailing_bytes": 1}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("silver.cardinal", "capture_id record_number topic partition offset"),
        ("gold.cardinal_found", "block_hash number capture_id record_number topic partition offset"),
        ("silver.wallaroo", "connection_id capture_id record_number direction byte_start byte_end"),
        ("gold.wallaroo_found", "connection_id capture_id record_number"),
        ("bronze.findings", "capture_id record_number"),
    ],
)
def test_a_sample_says_where_the_finding_stands(table: str, expected: str) -> None:
    assert place_columns(all_tables()[table]) == expected.split()


def test_findings_of_other_windows_are_not_counted(lake: Lake, put: Put) -> None:
    put("silver.cardinal", [_finding("cardinal.unknown_type", "violation", 0) | {"window_start": NEXT}])
    assert findings_check(lake, None, "silver.cardinal", Severity.VIOLATION, DAY, DAY).passed
    assert not findings_check(lake, None, "silver.cardinal", Severity.VIOLATION, DAY, NEXT).passed


def _message(number: int, capture: bytes = bytes(32)) -> Row:
    return {"capture_id": capture, "record_number": number}


def _decoded(number: int) -> Row:
    return _message(number) | {"row_kind": "message", "message": {"kind": "batch"}}


def _block(block_hash: bytes, status: str = "complete", at: int | None = 5) -> Row:
    return {"block_hash": block_hash, "status": status, "completed_at_ns": at}


def _update(sequence: int, added: list[bytes], removed: list[bytes], at: int = 5) -> Row:
    return {"sequence": sequence, "added": added, "removed": removed, "arrived_at_ns": at}


def _span(block_hash: bytes, since: int, until: int | None = None) -> Row:
    return {
        "block_hash": block_hash,
        "valid_from_ns": since,
        "valid_to_ns": until,
        "canonical": until is None,
    }


def _packet(number: int, **content: Any) -> Row:
    return _message(number) | {"source": "hub"} | content


def _logged(row_kind: str, **content: Any) -> Row:
    return {"source": "hub", "row_kind": row_kind, "connection_id": b"c" * 16} | content


def _entry(name: bytes, **told: Any) -> Row:
    return {"entry_id": name, "author": b"author", "log_id": 0} | told


def _log(**told: Any) -> Row:
    return {"author": b"author", "log_id": 0} | told


def _fork(first: bytes, second: bytes, position: int) -> Row:
    return {"author": b"author", "log_id": 0, "position": position, "first_hash": first, "second_hash": second}


def _proposal(number: int, **told: Any) -> Row:
    return {"connection_id": b"c" * 16, "proposal_number": number} | told


A, B = b"a" * 32, b"b" * 32
_BLOCK_FILE = _logged("message", capture_id=A, message={"kind": "block_file"}, block={"ended_by": "block_file"})
#: A session of a connection that no log tells of.
_UNTOLD = {"source": "hub", "connection_id": b"x" * 16}
#: What is legal: table -> rows.
SOUND: Mapping[str, list[Row]] = {
    "silver.cardinal": [
        _decoded(0),
        _finding("cardinal.unknown_type", "violation", 1),
        _message(2) | {"row_kind": "skip", "skip": "ping"},
    ],
    "bronze.messages": [_message(0), _message(1), _message(2)],
    "gold.cardinal_batches_history": [_block(A), _block(B), _block(b"c" * 32, "incomplete", None)],
    "gold.cardinal_batch_updates": [{"block_hash": A, "key": b"k", "operation": "set", "value": b"v"}],
    "gold.cardinal_chain_updates": [_update(0, [A], []), _update(1, [B], [A], at=9)],
    "gold.cardinal_chain_history": [_span(A, 5, 9), _span(B, 9)],
    "gold.cardinal_found": [{"rule": "cardinal.extra_message", "severity": "violation", "message": ""}],
    "bronze.segments": [_packet(0), _packet(1), _packet(2, skip="not_tcp"), _packet(3, skip="damaged", damaged=b"?")],
    "silver.wallaroo": [
        _logged("connection", connection={"window_packets": 2}),
        _logged("message", message={"kind": "ACK"}),
        _logged("quarantine", finding={"rule": "capture.file_damaged", "severity": "note", "message": ""}),
    ],
    "gold.wallaroo_sessions_history": [{"source": "hub", "connection_id": b"c" * 16}],
    "bronze.files": [
        {"source": "hub", "capture_id": A, "record_number": 0, "name": "1.blk", "last": True},
        {"source": "logs", "last": False},
        {"source": "logs", "last": True},
    ],
    "silver.hiero": [
        _BLOCK_FILE | {"record_number": 0},
        _logged("call", call_event={"event": "opened"}),
    ],
    "gold.hiero_blocks_history": [{"block_number": 1, "first_at_ns": 5, "proof_at_ns": 6, "acknowledged_at_ns": 6}],
    "gold.hiero_publisher_sessions_history": [{"call": "c/1"}],
    "gold.hiero_decisions_history": [{"call": "c/1", "byte_end": 9}],
    "gold.hiero_subscriptions_history": [{"call": "c/3", "blocks": 0}],
    "gold.ockam_streams_history": [{"stream_address": "s", "indexes": 3}],
    "gold.ockam_stream_messages_history": [{"stream_address": "s", "index": 2}],
    "gold.ockam_stream_indexes_history": [
        {"client_id": "c", "stream_address": "s", "saved": 1, "position": 1, "lag": 2}
    ],
    "gold.ockam_delivery_holes": [{"first_index": 0, "last_index": 2, "messages": 2, "saved": 3}],
    "gold.ockam_lag": [
        {"saved": 1, "position": 1, "latest": 3, "lag": 3, "lost": 0},
        {"saved": 9, "position": 9, "latest": 3, "lag": 0, "lost": 0},
        {"latest": 3},
    ],
    "silver.bamboo": [{"source": "logs", "row_kind": "entry", "entry": {"origin": "file"}}],
    "gold.bamboo_entries_history": [
        _entry(b"1", verdict="valid"),
        _entry(b"2", verdict="invalid", reason="bad_signature"),
        _entry(b"3", verdict="unknown", reason="link_unknown"),
    ],
    "gold.bamboo_logs_history": [_log(entries=3, valid=1, invalid=1, unknown=1, length=4, verified_up_to=1)],
    "gold.bamboo_forks_history": [_fork(b"1", b"2", 7)],
    "gold.bamboo_proposals_history": [
        _proposal(1, proposed_at_ns=5),
        _proposal(2, proposed_at_ns=5, ended_at_ns=5, outcome="cancelled"),
    ],
    "gold.bamboo_sessions_history": [{"connection_id": b"c" * 16, "proactive": "client"}],
}
#: Invariant -> table, and the row that breaks it beside the sound ones.
BREAKS: Mapping[str, tuple[str, Row]] = {
    "key_is_unique": ("silver.cardinal", _decoded(0)),
    "key_is_not_null": ("silver.cardinal", _decoded(3) | {"capture_id": None}),
    "every_message_accounted_for": ("silver.cardinal", _decoded(3)),
    "row_kind_matches_content": ("silver.cardinal", _message(3) | {"row_kind": "message"}),
    "rule_is_listed": ("gold.cardinal_found", {"rule": "cardinal.no_such_rule", "severity": "violation"}),
    "status_matches_completion": ("gold.cardinal_batches_history", _block(b"d" * 32, "complete", None)),
    "block_is_complete": (
        "gold.cardinal_batch_updates",
        {"block_hash": b"c" * 32, "key": b"k", "operation": "set", "value": b"v"},
    ),
    "added_is_a_complete_block": ("gold.cardinal_chain_updates", _update(2, [b"c" * 32], [])),
    "added_is_in_chain": ("gold.cardinal_chain_updates", _update(2, [b"c" * 32], [])),
    "removed_is_in_chain": ("gold.cardinal_chain_updates", _update(2, [], [B], at=11)),
    "chain_is_told": ("gold.cardinal_chain_history", _span(b"d" * 32, 9)),
    "sequence_has_no_gap": ("gold.cardinal_chain_updates", _update(3, [], [])),
    "every_packet_accounted_for": ("silver.wallaroo", _logged("connection", connection={"window_packets": 1})),
    "row_has_its_content": ("silver.wallaroo", _logged("session")),
    "connection_is_told": ("gold.wallaroo_sessions_history", _UNTOLD),
    "file_is_told": ("silver.hiero", _BLOCK_FILE | {"record_number": 1}),
    "decision_is_of_a_session": ("gold.hiero_decisions_history", {"call": "c/5", "byte_end": 9}),
    "obeyed_was_told": (
        "gold.hiero_decisions_history",
        {"call": "c/1", "byte_end": 9, "actual": "accepted", "skip_obeyed": True},
    ),
    "block_comes_first": ("gold.hiero_blocks_history", {"block_number": 2, "first_at_ns": 5, "proof_at_ns": 4}),
    "subscription_has_its_blocks": ("gold.hiero_subscriptions_history", {"call": "c/7", "blocks": 1}),
    "message_of_a_stream": ("gold.ockam_stream_messages_history", {"stream_address": "t", "index": 2}),
    "lag_within_stream": ("gold.ockam_stream_indexes_history", {"client_id": "d", "stream_address": "s", "lag": 4}),
    "hole_is_of_a_client": (
        "gold.ockam_delivery_holes",
        {"first_index": 0, "last_index": 0, "messages": 2, "saved": 3},
    ),
    "lag_within_indexes": ("gold.ockam_lag", {"saved": 1, "position": 2, "latest": 3, "lag": 3, "lost": 0}),
    "every_record_accounted_for": (
        "silver.bamboo",
        {"source": "logs", "row_kind": "entry", "entry": {"origin": "file"}},
    ),
    "verdict_has_a_reason": ("gold.bamboo_entries_history", _entry(b"4", verdict="invalid")),
    "entry_of_a_log": ("gold.bamboo_entries_history", _entry(b"5", verdict="valid", author=b"other")),
    "log_adds_up": ("gold.bamboo_logs_history", _log(log_id=1, entries=3, valid=1, invalid=1, unknown=0)),
    "fork_is_of_two": ("gold.bamboo_forks_history", _fork(b"1", b"1", 8)),
    "life_is_told": ("gold.bamboo_proposals_history", _proposal(3, proposed_at_ns=5, ended_at_ns=6)),
    "side_is_proactive": ("gold.bamboo_sessions_history", {"connection_id": b"d" * 16}),
    "span_ends_after_it_begins": ("gold.cardinal_chain_history", _span(b"d" * 32, 9, 5)),
}


@pytest.mark.property
@pytest.mark.usefixtures("sound")
def test_sound_tables_hold_every_invariant(lake: Lake) -> None:
    for table in SOUND:
        if not table.startswith("bronze."):
            result = _check(lake, table)
            assert result.passed, result
            assert result.severity == "ERROR"


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_an_invariant_is_found_and_shown(lake: Lake, put: Put, name: str) -> None:
    table, row = BREAKS[name]
    put(table, [row])
    result = _check(lake, table)
    assert not result.passed
    assert result.counts[name] == 1
    assert name in result.description
    assert any(sample["invariant"] == name for sample in result.samples)


@pytest.mark.usefixtures("sound")
def test_files_that_are_not_told_are_found(lake: Lake, put: Put) -> None:
    here = {"source": "node", "capture_id": B}
    put("bronze.files", [here | {"record_number": 0, "name": "2.blk", "last": True, "data": b"?"}])
    put("bronze.files", [here | {"record_number": 1, "name": "a.tar", "last": True, "damaged": b"?"}])
    counts = _check(lake, "silver.hiero").counts
    assert (counts["file_is_told"], counts["every_packet_accounted_for"]) == (1, 1)
    finding = {"rule": "capture.file_damaged", "severity": "note", "message": ""}
    put("silver.hiero", [_BLOCK_FILE | here | {"record_number": 0}])
    put("silver.hiero", [_logged("quarantine", finding=finding) | here | {"record_number": 1}])
    assert _check(lake, "silver.hiero").passed


def test_every_invariant_of_a_protocol_is_broken_by_a_row_here() -> None:
    stated = {item.name for name in PROTOCOLS for item in statements()[name].invariants}
    assert stated <= set(BREAKS)


def _manifest(lake: Lake, records: int) -> None:
    manifest = Manifest(
        source="mainnet",
        protocol="cardinal",
        kind="messages",
        capture_id="00" * 32,
        path="a.jsonl",
        status="landed",
        reason=None,
        size_bytes=1,
        unreadable_records=0,
        records=records,
        first_arrived_at_ns=0,
        last_arrived_at_ns=0,
        landed_at_ns=0,
        windows={DAY: WindowObjects(("x.avro",), records)},
    )
    place = Path(lake.root, manifest_name("mainnet", manifest.capture_id))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(manifest.to_json())


@pytest.mark.parametrize(("landed", "lost"), [(3, False), (4, True), (2, True)])
def test_a_landed_record_that_is_no_row_is_found(
    lake: Lake, put: Put, landed: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirehouse_pipelines.jobs.planning.Planner.stale", lambda known: {})
    put("bronze.messages", SOUND["bronze.messages"])
    _manifest(lake, landed)
    result = _check(lake, "bronze.messages")
    assert result.passed is not lost
    if lost:
        assert result.samples[0] == {
            "invariant": "landed_records_are_rows",
            "source": "mainnet",
            "window_start": DAY,
            "landed": landed,
            "present": 3,
        }


def test_a_window_that_waits_for_its_job_is_not_called_lost(lake: Lake, put: Put) -> None:
    put("bronze.messages", SOUND["bronze.messages"])
    _manifest(lake, 4)
    assert _check(lake, "bronze.messages").passed


@pytest.mark.spark
@pytest.mark.usefixtures("sound")
def test_spark_finds_the_same_as_datafusion(lake: Lake, put: Put, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SMALL_ROWS", -1)
    for table, row in BREAKS.values():
        put(table, [row])
    for table in SOUND:
        by_spark, by_datafusion = invariants_check(lake, spark, table, DAY, DAY), _check(lake, table)
        assert (by_spark.counts, by_spark.passed) == (by_datafusion.counts, by_datafusion.passed), table
        found = findings_of(table)
        for severity in found.severities if found else ():
            pair = [findings_check(lake, engine, table, severity, DAY, DAY).counts for engine in (spark, None)]
            assert pair[0] == pair[1], table


def test_a_whole_number_of_a_sample_is_itself_where_others_of_its_column_are_null(tmp_path: Path) -> None:
    moment = 1_794_693_600_000_000_001
    rows = reading.Reader(_lake(tmp_path)).rows(f"SELECT {moment} AS at_ns UNION ALL SELECT NULL", SAMPLES)
    assert sorted(str(row["at_ns"]) for row in rows) == [str(moment), "None"]
