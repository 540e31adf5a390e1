"""`wirehouse inspect` and the pipeline say the same of one capture, and gold has what the vectors expect."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.comparing import Told, assert_the_same_is_said, told_by_both
from tests.support.inspecting import inspected
from tests.support.running import select
from wirehouse_codecs.bamboo.simulator.simulator import PORT, SimulatorConfig, entries, simulate
from wirehouse_codecs.bamboo.wire.entry_files import Written, write_binary, write_lines
from wirehouse_codecs.logs.inspection import ENTRY
from wirehouse_codecs.simulate.pcap_writer import write_pcap
from wirehouse_orchestration.evidence.trace import trace
from wirehouse_orchestration.terminal import render
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
VECTORS = Path(__file__).parents[2] / "vectors" / "bamboo"
SESSIONS = {path.stem: json.loads(path.read_text()) for path in (VECTORS / "sessions").glob("*.json")}
LOGS: dict[str, Any] = json.loads((VECTORS / "expected.json").read_text())["logs"]
SESSIONS_PORT = 7070
SIDES = {"a": "client", "b": "server"}
#: What stays open is idle for long enough before the window ends.
MORNING_MS = 1_699_956_800_000
#: A source whose connections were made by the reactive side.
CALLED = "called"
SMALL = SimulatorConfig(seed=3, connections=1, logs=1, entries=20, start_time_ms=MORNING_MS)
#: Rules that a simulated peer breaks, in a capture each.
BROKEN = ("invalid_data_in_safe_mode", "invalid_data_not_apologised", "apology_for_valid_data", "bad_signature")
#: Rules that an entry breaks by an entry of another log, in a file each.
CROSSED = ("log_id_mismatch", "author_mismatch")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The sessions with what their peers knew before, the logs, simulated peers, and a binary file of entries."""
    folder = tmp_path_factory.mktemp("captures")
    sources = []
    for name, session in SESSIONS.items():
        path = str(VECTORS / "sessions" / f"{name}.pcap")
        sources.append(Source(name, "bamboo", "pcap", path, {"service": f"of_{name}"}, ports=(SESSIONS_PORT,)))
        stored = [bytes.fromhex(one["entry_hex"]) for log in session["prior_store"].values() for one in log]
        if stored:
            write_lines(map(Written, stored), folder / f"{name}.jsonl")
            before = str(folder / f"{name}.jsonl")
            sources.append(Source(f"{name}_before", "bamboo", "entries", before, {"service": f"of_{name}"}))
    sources += [Source(name, "bamboo", "entries", str(VECTORS / "logs" / f"{name}.jsonl")) for name in LOGS]
    for name in ("legal", "fork", *BROKEN):
        path = str(folder / f"{name}.pcap")
        with Path(path).open("wb") as stream:
            config = (
                SMALL if name == "legal" else SimulatorConfig(seed=3, connections=1, logs=1, entries=20, fault=name)
            )
            write_pcap(simulate(config), stream)
        sources.append(Source(f"simulated_{name}", "bamboo", "pcap", path, ports=(PORT,)))
    path = str(folder / "called.pcap")
    with Path(path).open("wb") as stream:
        write_pcap(simulate(replace(SMALL, proactive="server")), stream)
    sources.append(Source(CALLED, "bamboo", "pcap", path, {"proactive": "server"}, ports=(PORT,)))
    for name in CROSSED:
        write_lines(entries(SimulatorConfig(connections=1, logs=1, entries=5, fault=name)), folder / f"{name}.jsonl")
        sources.append(Source(f"simulated_{name}", "bamboo", "entries", str(folder / f"{name}.jsonl")))
    damaged = [*entries(SMALL), Written(b"no entry"), *entries(SimulatorConfig(seed=4, entries=2))]
    write_binary(damaged, folder / "damaged.entries")
    sources.append(Source("damaged", "bamboo", "entries", str(folder / "damaged.entries")))
    return Lake(str(tmp_path_factory.mktemp("lake")), Windows("day", "2015-01-01"), tuple(sources))


@pytest.fixture(scope="module")
def told(in_process: Any, lake: Lake) -> Told:
    """What inspect and the pipeline tell; of entry files inspect prints what gold says of each."""
    told = told_by_both(in_process, lake, ["connection_id"])
    # Inspect has no options.
    told = {kind: {name: rows for name, rows in of.items() if name != CALLED} for kind, of in told.items()}
    packets = {source.name for source in lake.sources if source.kind == "pcap"}
    told["message"] = {name: rows for name, rows in told["message"].items() if name in packets}
    # What is found of a service is the service's.
    known = {name for name in told["violation"] if name == lake.source(name).service}
    told["violation"] = {name: told["violation"][name] for name in known}
    return told


def test_the_pipeline_has_the_rows_that_inspect_prints(told: Told) -> None:
    assert_the_same_is_said(told)


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", ["legal", "fork", *BROKEN])
def test_the_entries_of_packets_have_the_verdicts_that_inspect_prints(lake: Lake, name: str) -> None:
    source = lake.source(f"simulated_{name}")
    printed = [row for kind, row in inspected(source.path, "bamboo", port=PORT) if kind == ENTRY]
    # Ids of connections depend on the source's name, which inspect doesn't know.
    names = [name for name in printed[0] if name != "connection_id"]
    stored = select(lake, f"SELECT * FROM gold.bamboo_entries WHERE source = '{source.name}'")
    of_inspect, of_gold = (
        sorted(render.json_line({one: row[one] for one in names}) for row in rows) for rows in (printed, stored)
    )
    assert of_inspect == of_gold


@pytest.mark.usefixtures("told")
def test_only_what_is_broken_is_found(lake: Lake) -> None:
    found = {
        (row["source"], row["rule"].removeprefix("bamboo."))
        for row in select(lake, "SELECT DISTINCT source, rule FROM gold.bamboo_violations WHERE severity = 'violation'")
    }
    violations = {name: said["expected"]["violation"] for name, said in SESSIONS.items()}
    broken = {(name, said["invariant"]) for name, said in violations.items() if said is not None}
    of_files = {
        (name, one["spec_reason"]) for name, log in LOGS.items() for one in log["entries"] if not one["spec_ok"]
    }
    assert found == broken | {pair for pair in of_files if pair[1] != "fork"} | {
        (f"simulated_{name}", name) for name in (*BROKEN, *CROSSED)
    }


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", SESSIONS)
def test_every_step_of_a_session(lake: Lake, name: str) -> None:
    rows = select(lake, f"SELECT * FROM silver.bamboo_messages WHERE source = '{name}' AND channel <> 'bymux'")
    steps = SESSIONS[name]["expected"]["steps"]
    got = {
        (row["direction"], row["channel"], row["kind"], row["byte_end"]): (row["cursor_before"], row["cursor_after"])
        for row in rows
    }
    said = {(SIDES[one["dir"]], one["chan"], one["kind"], one["end_offset"]): one for one in steps}
    assert set(got) == set(said)
    # Of a packet that breaks a rule the vectors tell no cursor.
    cursors = {key: (one["before"], one["after"]) for key, one in said.items() if "before" in one}
    assert {key: got[key] for key in cursors} == cursors


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", SESSIONS)
def test_entries_received_are_valid_with_what_was_known_before(lake: Lake, name: str) -> None:
    rows = select(lake, f"SELECT * FROM gold.bamboo_entries WHERE source = 'of_{name}'")
    received = {
        entry["entry_hex"]
        for side in SESSIONS[name]["expected"]["received"].values()
        for log in side.values()
        for entry in log
    }
    assert received <= {row["data"].hex() for row in rows if row["data"] is not None}
    assert {row["verdict"] for row in rows} <= {"valid", "unknown"}
    assert {row["seen_from"][0].rpartition(":")[2] for row in rows if row["origin"] == "metadata"} <= {"40123", "7070"}


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", LOGS)
def test_verdicts_are_the_strict_ones(lake: Lake, name: str) -> None:
    rows = select(lake, f"SELECT * FROM gold.bamboo_entries WHERE source = '{name}' ORDER BY record_number")
    wanted = LOGS[name]["entries"]
    assert [row["verdict"] == "valid" for row in rows] == [one["spec_ok"] for one in wanted]
    assert [row["reason"] for row in rows] == [one.get("spec_reason") for one in wanted]
    printed = [row for kind, row in inspected(lake.source(name).path, "bamboo") if kind == "message"]
    names = ("author", "log_id", "seq", "entry_hash", "verdict", "reason", "message")
    assert [[row[one] for one in names] for row in rows] == [[row[one] for one in names] for row in printed]
    forks = select(
        lake, f"SELECT MIN(position) AS first FROM gold.bamboo_forks WHERE source = '{name}' AND proof = 'entries'"
    )
    fork = LOGS[name]["fork"]
    assert forks[0]["first"] == (None if fork is None else fork["position"])


@pytest.mark.usefixtures("told")
def test_logs_are_verified_to_their_end(lake: Lake) -> None:
    logs = {row["source"]: row for row in select(lake, "SELECT * FROM gold.bamboo_logs")}
    assert (logs["len40"]["verified_up_to"], logs["len40"]["length"], logs["len40"]["missing"]) == (40, 40, [])
    assert logs["len14_end_of_log"]["end_of_log"] == 14
    assert logs["fork_at_8"]["forked_at"] == 8
    sparse = logs["partial_certpool_23"]
    assert (sparse["verified_up_to"], sparse["missing_entries"]) == (40, 28)
    assert sparse["missing"][0] == {"first": 2, "last": 3}


@pytest.mark.usefixtures("told")
def test_sessions_and_proposals_of_the_happy_session(lake: Lake) -> None:
    (session,) = select(lake, "SELECT * FROM gold.bamboo_sessions WHERE source = 'of_happy_1'")
    modes = SESSIONS["happy_1"]["derived"]
    for side, name in SIDES.items():
        assert session[name]["send_mode"] == modes["send_mode"][side]
        assert session[name]["compression_window"] == modes["compression_window"][side]
    proposals = select(lake, "SELECT * FROM gold.bamboo_proposals WHERE source = 'of_happy_1' ORDER BY proposal_number")
    steps = [step for step in SESSIONS["happy_1"]["expected"]["steps"] if step["kind"] == "propose"]
    assert [(row["proposal_id"], row["start"], row["log_id"]) for row in proposals] == [
        (step["id"], step["start"], int(step["log_id"])) for step in steps
    ]
    assert all(row["outcome"] == "cancelled" for row in proposals if row["state"] == "unused")


@pytest.mark.usefixtures("told")
def test_an_entry_leads_to_the_bytes_that_it_came_in(lake: Lake) -> None:
    for source, wanted in (("of_happy_1", "carried by"), ("len2", "len2.jsonl")):
        where = f"source = '{source}' AND origin IN ('file', 'metadata') AND NOT seen_from[1] LIKE '%before%'"
        row = select(lake, f"SELECT source, entry_id FROM gold.bamboo_entries WHERE {where} ORDER BY origin DESC")[0]
        out = io.StringIO()
        trace(lake, "gold.bamboo_entries", f"source={source},entry_id={row['entry_id'].hex()}", out)
        assert wanted in out.getvalue()


@pytest.mark.usefixtures("told")
def test_a_row_leads_to_its_bytes_whichever_side_called(lake: Lake) -> None:
    """Rows name the sides by their roles, packets by who made the connection."""
    where = f"source = '{CALLED}' AND kind = 'metadata'"
    (row,) = select(lake, f"SELECT * FROM silver.bamboo_messages WHERE {where} ORDER BY byte_start LIMIT 1")
    out = io.StringIO()
    place = ("connection_id", "direction", "byte_start", "channel")
    key = ",".join(f"{name}={row[name].hex() if name == 'connection_id' else row[name]}" for name in place)
    trace(lake, "silver.bamboo_messages", f"source={CALLED},{key}", out)
    dumped = "".join(line[14:61] for line in out.getvalue().splitlines() if line.startswith("    000"))
    assert row["payload_hash"].hex()[:64] in dumped.replace(" ", "")
