"""The command line: exit codes, output that scripts rely on, and text from the wire made harmless."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import pyarrow as pa
import pytest
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test
from deltalake import write_deltalake
from pyarrow import parquet

from infra.tools.generated_pages import FOLDER as DOCS
from tests.support.processes import started
from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.simulate.pcap_writer import write_pcap
from wirehouse_codecs.wallaroo.simulator import simulator as wallaroo_simulator
from wirehouse_orchestration import config
from wirehouse_orchestration.cli import change, doctor, precompile
from wirehouse_orchestration.cli import command as cli
from wirehouse_orchestration.dagster import runs
from wirehouse_orchestration.dagster.factories import landing_key
from wirehouse_orchestration.dagster.instance import shared_instance
from wirehouse_orchestration.terminal import output, render
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.jobs import forgetting, runner, upkeep
from wirehouse_pipelines.lake import lake_json
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.manifests import Manifest, WindowObjects, write_manifest
from wirehouse_pipelines.spark import java
from wirehouse_pipelines.storage.storage import Held, open_storage
from wirehouse_pipelines.tables import all_tables

CONFIG = """
[lakehouse]
root = "lake"
[[source]]
name = "mainnet"
protocol = "cardinal"
kind = "messages"
path = "inbox"
"""
MOST = 2**64 - 1
HASH = bytes.fromhex("4e" * 32)


class Answer(NamedTuple):
    code: int
    out: str
    err: str


class Wirehouse:
    """The command, run in this process in a folder of its own."""

    def __init__(self, folder: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._captured = captured

    def __call__(self, *arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, err = self._captured.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, out, err)

    def write(self, table: str, *rows: dict[str, Any]) -> None:
        """Write rows to a Delta table of the lake."""
        schema = arrow_types.schema(all_tables()[table])
        path = f"{self.folder}/lake/{table.replace('.', '/')}"
        write_deltalake(path, pa.Table.from_pylist(list(rows), schema=schema))


@pytest.fixture
def wirehouse(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Wirehouse:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "wirehouse.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WIREHOUSE_CONFIG", raising=False)
    lake_json.record(config.load())
    return Wirehouse(tmp_path, capsys)


def test_help_lists_every_command_and_imports_nothing_slow() -> None:
    program = "import sys; from wirehouse_orchestration.cli.command import main; main(['--help'])"
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"pyspark", "dagster", "pandas", "deltalake"} & {
        line.rpartition("|")[2].strip() for line in run.stderr.splitlines()
    }
    for name in cli.cli.commands:
        assert name in run.stdout


def test_the_list_of_commands_cuts_no_sentence(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, said, _ = wirehouse("--help")
    _, listed = said.split("Commands:")
    assert "upkeep" in listed
    assert "..." not in listed


@pytest.mark.property
def test_lists_and_the_report_are_told_as_json_too(wirehouse: Wirehouse) -> None:
    def told(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in wirehouse(*arguments, "--json").out.splitlines()]

    assert {"gold.violations", "bronze.captures"} <= {row["name"] for row in told("tables")}
    assert told("tables", "bronze.captures")[0].keys() == {"column", "type", "holds"}
    (rule,) = (row for row in told("rules", "--protocol", "cardinal") if row["name"] == "topic_wrong")
    assert (rule["rule"], rule["severity"]) == ("cardinal.topic_wrong", "warning")
    wirehouse.write("bronze.windows", {"source": "mainnet", "window_start": "2026-11-14"})
    (report,) = told("report", "--from", "2026-11-14")
    size = Path("report.html").stat().st_size
    asked = {"from": "2026-11-14", "to": None, "source": None}
    assert report == {"file": "report.html", "bytes": size, "failed": {}} | asked


def test_a_source_that_can_not_be_landed_keeps_back_no_other(wirehouse: Wirehouse) -> None:
    (wirehouse.folder / "inbox" / "1.jsonl").write_text("{}\n")
    file = wirehouse.folder / "wirehouse.toml"
    gone = '[[source]]\nname = "{name}"\nprotocol = "cardinal"\nkind = "messages"\npath = "{name}"\n'
    # They stand before the one that can be.
    lakehouse, sources = CONFIG.split("[[source]]", 1)
    file.write_text(lakehouse + gone.format(name="a") + gone.format(name="b") + "[[source]]" + sources)
    code, told, said = wirehouse("land")
    assert (code, told.partition(",")[0]) == (cli.USAGE, "1 new capture")
    assert all(f"source '{name}': path" in said for name in "ab")


def test_servers_are_told_as_json_too(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREHOUSE_INFRA", str(wirehouse.folder / "none"))
    (kafka,) = map(json.loads, wirehouse("infra", "status", "kafka", "--json").out.splitlines())
    assert kafka.pop("title")
    assert kafka == {"name": "kafka", "state": "not installed", "processes": []}
    assert wirehouse("infra", "status", "kafka").out.startswith("kafka      not installed")


@pytest.mark.property
def test_where_nothing_is_configured_the_demos_lake_is_read(wirehouse: Wirehouse) -> None:
    folder = wirehouse.folder / "demo-lake"
    folder.mkdir()
    (wirehouse.folder / "wirehouse.toml").rename(folder / "wirehouse.toml")
    for command in (["sql", "SELECT 1 AS n"], ["trace", "gold.violations", "rule=x"], ["report"]):
        answer = wirehouse(*command)
        assert "demo's lake, demo-lake/wirehouse.toml" in answer.err
        assert "there is no such file" not in answer.err
    assert "demo" not in wirehouse("sql", "SELECT 1 AS n").out
    assert wirehouse("land").code == 2


@pytest.mark.parametrize("said", ["show TABLES;", "SHOW TABLES\n"])
def test_sql_lists_the_tables(wirehouse: Wirehouse, said: str) -> None:
    assert wirehouse("sql", said).out == wirehouse("tables").out
    assert wirehouse("sql", "--format", "json", said).out == wirehouse("tables", "--json").out


@pytest.mark.parametrize("said", ["DESCRIBE gold.violations;", "desc table `gold`.`violations`"])
def test_sql_describes_a_table(wirehouse: Wirehouse, said: str) -> None:
    assert wirehouse("sql", said).out == wirehouse("tables", "gold.violations").out
    assert "there is no table gold.x" in wirehouse("sql", "DESCRIBE gold.x").err


def test_simulators_are_named_with_their_article(wirehouse: Wirehouse) -> None:
    said = wirehouse("simulate", "--help").out
    assert "An Ockam stream service stream." in said
    assert "A Hiero block node stream." in said


def test_every_command_says_what_it_does(wirehouse: Wirehouse) -> None:
    for name in cli.cli.commands:
        answer = wirehouse(name, "--help")
        assert answer.code == 0
        assert answer.out.startswith(f"Usage: wirehouse {name}")


@pytest.mark.property
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nothing"], "No such command"),
        (["--config", "nowhere.toml", "run"], "nowhere.toml: there is no such file"),
        (["sql", "DROP TABLE x"], "only one SELECT"),
        (["sql", "SELECT * FROM nowhere"], "there is no table nowhere"),
        (["sql", "--format", "xml", "SELECT 1"], "xml"),
        (["sql", "--format", "parquet", "SELECT 1"], "--out"),
        (["sql", "--as-of", "yesterday", "SELECT 1"], "neither a version"),
        (["sql", "--as-of", "", "SELECT 1"], "neither a version"),
        (["report", "--out", "nowhere/r.html"], "nowhere/r.html: No such file or directory"),
        (["sql", "--out", "nowhere/a.csv", "SELECT 1"], "nowhere/a.csv: No such file or directory"),
        (["sql-server", "--set-password", "ann"], "--passwords"),
        (["sql-server", "--passwords", "nowhere"], "nowhere: there is no such file"),
        (["backfill", "--from", "2026-02-30", "--to", "2026-03-01"], "2026-02-30"),
        (["backfill", "--from", "2026-03-02", "--to", "2026-03-01"], "after"),
        (["backfill", "--from", "2026-03-01"], "--to"),
        (["backfill", "--from", "2026-03-01", "--to", "2026-03-01", "--table", "gold.x"], "gold.x"),
        (["land", "nowhere.jsonl"], "nowhere.jsonl"),
        (["land", "--source", "other"], "mainnet"),
        (["tables", "gold.x"], "gold.x"),
        (["trace", "gold.x", "1"], "gold.x"),
        (["trace", "gold.cardinal_batches", "xyz"], "hex"),
        (["inspect", "nowhere.jsonl"], "nowhere.jsonl"),
        (["inspect", "wirehouse.toml"], "wirehouse.toml"),
        (["ui", "--port", "0"], "--port"),
        (["forget", "--yes", "0" * 64], "no source landed a capture 000"),
        (["forget", "--yes", "nobody"], "nothing of a source"),
        # Nothing is asked of what can't be erased.
        (["forget", "0" * 64], "no source landed a capture 000"),
        (["forget", "nobody"], "nothing of a source"),
        (["simulate", "cardinal", "--out", "x.csv"], "--out"),
        (["simulate", "cardinal", "--out", "x.jsonl", "--blocks", "0"], "--blocks"),
        (["simulate", "morse", "--out", "x.jsonl"], "morse"),
        (["simulate", "wallaroo", "--out", "x.jsonl"], "must end in .pcap or .pcap.gz or .pcap.zst or .streams"),
        (["simulate", "wallaroo", "--out", "x.pcap", "--dialect", "v9"], "--dialect: must be one of"),
        (["simulate", "wallaroo", "--out", "x.pcap", "--messages", "5"], "--messages"),
        (["inspect", "wirehouse.toml", "--port", "0"], "--port"),
    ],
)
def test_wrong_usage_is_one_line_and_exits_2(wirehouse: Wirehouse, arguments: list[str], word: str) -> None:
    answer = wirehouse(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert word in answer.err
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err


def test_each_mistake_of_the_configuration_is_a_line(wirehouse: Wirehouse) -> None:
    (wirehouse.folder / "wirehouse.toml").write_text('[lake]\nroot = "lake"\n')
    answer = wirehouse("land")
    assert answer.code == 2
    assert [line.split(": ")[2] for line in answer.err.splitlines()] == ["lakehouse.root", "lake"]


@pytest.mark.property
def test_forget_takes_no_file_away_from_a_run_that_began_meanwhile(
    wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        (wirehouse.folder / "inbox" / f"{number}.jsonl").write_text("{}\n" * number)
    landed = [json.loads(line) for line in wirehouse("land", "--json").out.splitlines()]

    def another_begins(*_: object, **__: object) -> None:
        with shared_instance(config.load("wirehouse.toml")) as shared:
            create_run_for_test(shared, status=DagsterRunStatus.STARTED)

    monkeypatch.setattr(change, "_bring_up_to_date", another_begins)
    monkeypatch.setattr(forgetting, "purge", lambda lake: pytest.fail("files were removed"))
    answer = wirehouse("forget", "--yes", landed[0]["capture_id"])
    assert answer.code == 2
    assert "works on this lake: wait until it is done" in answer.err


def test_forget_takes_no_file_away_while_another_machine_writes(
    wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wirehouse.folder / "inbox" / "1.jsonl").write_text("{}\n")
    (landed,) = (json.loads(line) for line in wirehouse("land", "--json").out.splitlines())
    purge, wrote = forgetting.purge, list[str]()

    def another(lake: Lake, waits: threading.Event) -> None:
        with runner.writing(lake, ["bronze"], lambda line: waits.set()):
            wrote.append("another")

    def meanwhile(lake: Lake, held: Held) -> Any:
        waits = threading.Event()
        others.append(threading.Thread(target=another, args=(lake, waits)))
        others[0].start()
        assert waits.wait(10)
        freed = purge(lake, held)
        assert wrote == []
        return freed

    others: list[threading.Thread] = []
    monkeypatch.setattr(forgetting, "purge", meanwhile)
    answer = wirehouse("forget", "--yes", landed["capture_id"])
    assert answer.code == 0, answer.err
    others[0].join(10)
    assert wrote == ["another"]


def test_what_was_forgotten_is_told_as_json(wirehouse: Wirehouse) -> None:
    (wirehouse.folder / "inbox" / "a.jsonl").write_text("{}\n{}\n")
    (landed,) = (json.loads(line) for line in wirehouse("land", "--json").out.splitlines())
    (told,) = map(json.loads, wirehouse("forget", "--yes", "--json", landed["capture_id"]).out.splitlines())
    assert told["capture_id"] == landed["capture_id"]
    assert told["landed"] == [landed]
    assert told["computed"] == {}
    assert told["proof"]["objects"] == 1
    (wirehouse.folder / "wirehouse.toml").write_text('[lakehouse]\nroot = "lake"\n')
    (told,) = map(json.loads, wirehouse("forget", "--yes", "--json", "mainnet").out.splitlines())
    assert told == {"source": "mainnet", "captures": 1, "rows": {}}


def test_a_failure_exits_1_in_one_line_and_verbose_tells_where(
    wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a disk\nbroke \x1b[31m")

    monkeypatch.setattr(landing, "land", fail)
    answer = wirehouse("land")
    assert (answer.code, answer.err) == (
        1,
        "wirehouse: RuntimeError: a disk broke \\x1b[31m (`wirehouse --verbose ...` shows where)\n",
    )
    assert "Traceback" in wirehouse("--verbose", "land").err


def test_what_we_raise_on_purpose_is_said_as_it_is(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise WirehouseError(reason="do this instead")

    monkeypatch.setattr(landing, "land", fail)
    assert wirehouse("land")[::2] == (1, "wirehouse: do this instead\n")


def test_simulate_writes_the_same_file_for_the_same_options(wirehouse: Wirehouse) -> None:
    for name in ("a", "b"):
        assert wirehouse("simulate", "cardinal", "--out", f"{name}.jsonl", "--blocks", "3", "--seed", "5").code == 0
    first = (wirehouse.folder / "a.jsonl").read_bytes()
    assert first == (wirehouse.folder / "b.jsonl").read_bytes()
    assert wirehouse("simulate", "cardinal", "--out", "c.jsonl", "--blocks", "3", "--messages", "7").code == 0
    assert len((wirehouse.folder / "c.jsonl").read_text().splitlines()) == 7


def test_simulate_says_whom_an_incident_affects_since_when(wirehouse: Wirehouse) -> None:
    command = ("simulate", "wallaroo", "--incident", "resume-lost-messages", "--out", "a.pcap", "--connectors", "1")
    written, truth = wirehouse(*command).out.splitlines()
    assert written.endswith("bytes in a.pcap")
    assert re.fullmatch(
        r"resume-lost-messages since 2023-11-14T22:13:\d\d\.\d{3}: "
        r"instance_name instance-0, stream_name /data/0/part-\d\.log, resume_point \d+",
        truth,
    )
    # What is given replaces what the incident sets.
    (last,) = (line for line in wirehouse("inspect", "a.pcap").out.splitlines() if line.endswith(" HELLO"))
    assert last.split() == ["2", "HELLO"]
    refused = wirehouse(*command, "--messages-per-connector", "9")
    assert refused.code == 2
    assert "resume-lost-messages does not begin" in refused.err
    assert "consumer-lag: A consumer becomes slow" in wirehouse("simulate", "ockam", "--help").out


def test_simulate_writes_packets_as_they_are_asked_for(wirehouse: Wirehouse) -> None:
    options = ("--dialect", "v2b", "--connectors", "1", "--messages-per-connector", "9", "--fault", "duplicate_hello")
    for name in ("a.pcap", "b.pcap", "c.pcap.gz", "d.pcap.zst"):
        answer = wirehouse("simulate", "wallaroo", "--out", name, *options)
        assert answer.code == 0, answer.err
        assert answer.out.endswith(f"bytes in {name}\n")
    plain = (wirehouse.folder / "a.pcap").read_bytes()
    assert plain == (wirehouse.folder / "b.pcap").read_bytes()
    assert plain == gzip.decompress((wirehouse.folder / "c.pcap.gz").read_bytes())
    assert plain == bytes(cramjam.zstd.decompress((wirehouse.folder / "d.pcap.zst").read_bytes()))
    assert wirehouse("simulate", "wallaroo", "--out", "d.pcap", "--packets", "7", *options).out.startswith("7 packets")
    rows = [json.loads(line) for line in wirehouse("inspect", "--json", "c.pcap.gz").out.splitlines()]
    assert [row["rule"] for row in rows if row["type"] == "violation"] == ["wallaroo.duplicate_hello"]
    answer = wirehouse("simulate", "wallaroo", "--out", "e.streams", *options)
    assert answer.code == 0, answer.err
    sizes = {path.name: path.stat().st_size for path in (wirehouse.folder / "e.streams").iterdir()}
    assert sorted(sizes) == ["0001-client.bin", "0001-server.bin", "0002-client.bin", "0002-server.bin"]
    assert answer.out.endswith(f"{sum(sizes.values()):,} bytes in e.streams\n")
    delivered = [
        row[f"{side}_delivered_bytes"] for row in rows if row["type"] == "connection" for side in ("client", "server")
    ]
    assert sorted(sizes.values()) == sorted(delivered)
    assert {row["dialect"] for row in rows if row["type"] == "connection"} == {"v2b"}
    (wirehouse.folder / "f.pcap").mkdir()
    assert "f.pcap: Is a directory" in wirehouse("simulate", "wallaroo", "--out", "f.pcap", *options).err


@pytest.mark.property
def test_what_is_compiled_at_set_up_are_the_readers_of_every_protocol(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    landed: list[str] = []
    plain = landing.land

    def watched(lake: Any, source: Any) -> Any:
        found = plain(lake, source)
        landed.extend(f"{manifest.protocol} {manifest.records} {manifest.status}" for manifest in found)
        return found

    monkeypatch.setattr(landing, "land", watched)
    monkeypatch.setattr(precompile, "RECORDS", 50)
    precompile.compile_readers(str(tmp_path))
    assert landed == [f"{name} 50 landed" for name in PROTOCOLS]


@pytest.mark.property
def test_land_lands_once_and_into_the_source_that_is_named(wirehouse: Wirehouse) -> None:
    wirehouse("simulate", "cardinal", "--out", "inbox/a.jsonl", "--blocks", "3", "--messages", "100")
    first = wirehouse("land")
    assert first.code == 0
    assert first.out == "1 new capture, 100 records in 1 window\n"
    assert wirehouse("land").out == "0 new captures, 0 records in 0 windows\n"
    wirehouse("simulate", "cardinal", "--out", "elsewhere.jsonl", "--blocks", "3", "--messages", "50")
    assert wirehouse("land", "elsewhere.jsonl", "--source", "mainnet").out.startswith("1 new capture, 50 records")


def test_what_landed_as_json(wirehouse: Wirehouse) -> None:
    wirehouse("simulate", "cardinal", "--out", "inbox/a.jsonl", "--blocks", "3", "--messages", "40")
    (row,) = map(json.loads, wirehouse("land", "--json").out.splitlines())
    assert row.items() >= {"source": "mainnet", "path": "a.jsonl", "status": "landed", "records": 40}.items()
    assert row["windows"] == ["2023-11-14"]
    assert wirehouse("land", "--json")[:2] == (0, "")


@pytest.mark.parametrize(("options", "shown"), [((), "mainnet: a.jsonl\n"), (("--quiet",), "")])
def test_quiet_shows_no_progress(
    wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], shown: str
) -> None:
    def work(*_: object, progress: Callable[[str], None]) -> list[Any]:
        progress("mainnet: a.jsonl")
        return []

    monkeypatch.setattr(landing, "land", work)
    assert wirehouse(*options, "land") == (0, "0 new captures, 0 records in 0 windows\n", shown)


def test_quiet_upkeep_shows_no_progress(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_up(lake: Lake, progress: Callable[[str], None], verbose: bool) -> runs.Kept:
        progress("upkeep: ledger")
        return runs.Kept(True, [])

    monkeypatch.setattr(runs, "keep_up", keep_up)
    assert wirehouse("--quiet", "upkeep") == (0, "", "")
    assert wirehouse("upkeep") == (0, "", "starting Dagster\nupkeep: ledger\n")


def test_what_upkeep_did_is_told_as_json_also_where_a_part_failed(
    wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    wirehouse.write("bronze.files", {"source": "a", "window_start": "2023-11-14"})
    keep = upkeep.keep_tables

    def fail(lake: Lake, names: Sequence[str], say: Callable[[str], None]) -> list[upkeep.Freed]:
        if "gold.ockam_streams_history" in names:
            raise OSError("no such disk")
        return keep(lake, names, say)

    monkeypatch.setattr(upkeep, "keep_tables", fail)
    answer = wirehouse("--quiet", "upkeep", "--json")
    assert answer.code == 1
    assert "no such disk" in answer.err
    (told,) = map(json.loads, answer.out.splitlines())
    none = ("joined_files", "removed_files", "removed_log_files", "freed_bytes", "released_captures")
    assert told == {"part": "bronze", "name": "bronze.files"} | dict.fromkeys(none, 0)


@pytest.mark.parametrize(
    "table", ["gold.bamboo_entries", "silver.ockam_messages", "gold.violations", "gold.hiero_found"]
)
def test_a_view_is_computed_by_what_writes_the_tables_that_it_is_made_of(wirehouse: Wirehouse, table: str) -> None:
    answer = wirehouse("backfill", "--from", "2026-03-01", "--to", "2026-03-02", "--table", table)
    assert answer == (0, "nothing has landed in 2026-03-01 to 2026-03-02\n", "")


def test_a_source_whose_ports_nobody_used_is_told(wirehouse: Wirehouse, capsys: pytest.CaptureFixture[str]) -> None:
    source = '[[source]]\nname = "{}"\nprotocol = "wallaroo"\nkind = "pcap"\npath = "inbox"\nports = [7100, 7101]\n'
    sources = "".join(source.format(name) for name in ("heard", "silent", "empty"))
    (wirehouse.folder / "wirehouse.toml").write_text(CONFIG + sources)
    lake = config.load(wirehouse.folder / "wirehouse.toml")
    for name, window in (("heard", "2026-11-14"), ("heard", "2026-11-15"), ("silent", "2026-11-15")):
        parts = {window: WindowObjects(("x.avro",), 9)}
        told = (name, "wallaroo", "pcap", f"{name}{window}", "x", "landed", None, 9, 9, 0, 1, 1, 1, parts)
        write_manifest(open_storage(lake.root), Manifest(*told))
    connection = {"row_kind": "connection", "window_start": "2026-11-14", "connection_id": b"7"}
    wirehouse.write("silver.wallaroo", connection | {"source": "heard", "connection": {"server_port": 7101}})
    said = "  source silent: no packet of its ports (7100, 7101); `wirehouse inspect FILE` shows others\n"
    for windows, expected in ((("2026-11-14", "2026-11-14"), ""), (("2026-11-14", "2026-11-15"), said)):
        change._report_silent(runner.planner(lake), *windows)
        assert capsys.readouterr().out == expected
    # A connection of earlier windows may be quiet in these.
    change._report_silent(runner.planner(lake), "2026-11-15", "2026-11-15")
    assert capsys.readouterr().out == said


def test_a_run_counts_the_findings_of_its_windows(wirehouse: Wirehouse, capsys: pytest.CaptureFixture[str]) -> None:
    lake = config.load(wirehouse.folder / "wirehouse.toml")
    found = [
        {"source": "mainnet", "severity": severity, "rule": f"a.{number}", "window_start": f"2026-11-1{day}"}
        for number, (severity, day) in enumerate([("violation", 4), ("violation", 5), ("note", 5), ("note", 6)])
    ]
    wirehouse.write("gold.cardinal_found", *found)
    change._report_rules(lake, "2026-11-15", "2026-11-15")
    assert capsys.readouterr().out.splitlines() == [
        "  1 finding of severity violation, 1 rule broken",
        "  1 finding of severity note, 1 rule broken",
    ]
    change._report_json(lake, ["gold.cardinal"], "2026-11-15", "2026-11-16")
    broken = {"violation": {"findings": 1, "rules": 1}, "note": {"findings": 2, "rules": 2}}
    assert json.loads(capsys.readouterr().out)["broken"] == broken


def test_nothing_to_do_as_json(wirehouse: Wirehouse) -> None:
    expected: dict[str, Any] = {"jobs": [], "from": None, "to": None, "broken": {}}
    assert json.loads(wirehouse("run", "--json").out) == expected
    answer = wirehouse("backfill", "--json", "--from", "2026-03-01", "--to", "2026-03-02")
    assert json.loads(answer.out) == expected | {"from": "2026-03-01", "to": "2026-03-02"}


@pytest.mark.property
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("wirehouse sql-", "sql-server"),
        ("wirehouse run --js", "--json"),
        ("wirehouse tables gold.viol", "gold.violations"),
        ("wirehouse trace gold.viol", "gold.violations"),
        ("wirehouse rules --protocol car", "cardinal"),
    ],
)
def test_the_shell_completes(words: str, offered: str) -> None:
    asked = {"_WIREHOUSE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", "from wirehouse_orchestration.cli.command import main; main()"]
    answer = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
    assert answer.stdout == f"plain,{offered}\n"


@pytest.mark.property
def test_dagster_is_told_of_what_the_command_landed(wirehouse: Wirehouse) -> None:
    wirehouse("simulate", "cardinal", "--out", "inbox/a.jsonl", "--blocks", "3", "--messages", "100")
    for _ in range(2):
        assert wirehouse("land").code == 0
    with shared_instance(config.load(wirehouse.folder / "wirehouse.toml")) as instance:
        (told,) = instance.fetch_materializations(landing_key("mainnet"), limit=10).records
    assert told.asset_materialization is not None
    metadata = told.asset_materialization.metadata
    assert (metadata["new_captures"].value, metadata["dagster/row_count"].value) == (1, 100)


def test_inspect_needs_no_configuration(wirehouse: Wirehouse) -> None:
    wirehouse("simulate", "cardinal", "--out", "a.jsonl", "--blocks", "3", "--messages", "40")
    (wirehouse.folder / "wirehouse.toml").unlink()
    answer = wirehouse("inspect", "--json", "a.jsonl")
    assert answer.code == 0
    rows = [json.loads(line) for line in answer.out.splitlines()]
    assert [row["record_number"] for row in rows if row["type"] != "violation"] == list(range(40))


def test_the_demo_leaves_a_folder_that_is_not_its_own(wirehouse: Wirehouse) -> None:
    answer = wirehouse("demo", "--into", ".")
    assert answer.code == 2
    assert "not a demo's lake" in answer.err
    assert (wirehouse.folder / "wirehouse.toml").read_text() == CONFIG


def test_run_before_anything_landed_says_so(wirehouse: Wirehouse) -> None:
    answer = wirehouse("run")
    assert answer.code == 0
    assert "nothing has landed" in answer.out


@pytest.mark.spark
def test_what_landed_is_computed_once_and_again_when_asked(wirehouse: Wirehouse) -> None:
    options = ["--blocks", "30", "--messages-per-block", "20", "--fault", "key_length_wrong"]
    wirehouse("simulate", "cardinal", "--out", "inbox/a.jsonl", *options)
    wirehouse("land")
    first = wirehouse("run")
    assert first.code == 0, first.err
    assert "1 finding of severity violation, 1 rule broken" in first.out
    assert wirehouse("run").out == "everything is up to date\n"
    again = wirehouse("backfill", "--from", "2023-11-14", "--to", "2023-11-14", "--table", "gold.cardinal_batches")
    assert again.code == 0, again.err
    assert again.out.startswith("gold.cardinal: 2023-11-14 done")
    counted = wirehouse("sql", "--format", "json", "SELECT COUNT(*) AS n FROM gold.cardinal_batches")
    assert json.loads(counted.out)["n"] >= 30
    assert "nothing has landed" in wirehouse("backfill", "--from", "2020-01-01", "--to", "2020-01-02").out


@pytest.mark.spark
def test_a_lake_of_nothing_but_an_empty_capture_runs(wirehouse: Wirehouse) -> None:
    Path("inbox/a.jsonl").touch()
    assert wirehouse("land").out.startswith("1 new capture, 0 records")
    answer = wirehouse("run")
    assert answer.code == 0, answer.err
    counted = wirehouse("sql", "--format", "json", "SELECT records FROM bronze.captures")
    assert json.loads(counted.out) == {"records": 0}


@pytest.mark.property
def test_land_says_what_could_not_be_read(wirehouse: Wirehouse) -> None:
    wirehouse("simulate", "cardinal", "--out", "inbox/a.jsonl", "--blocks", "3", "--messages", "40")
    with Path("inbox/a.jsonl").open("a") as stream:
        stream.write("junk\n{}\n")
    assert "net: a.jsonl: 2 records of 42 could not be read, the bytes are kept" in wirehouse("land").out


@pytest.mark.property
def test_land_says_that_packets_were_cut_or_stand_in_reverse_order(wirehouse: Wirehouse, tmp_path: Path) -> None:
    packets = list(
        wallaroo_simulator.simulate(wallaroo_simulator.SimulatorConfig(connectors=1, messages_per_connector=20))
    )
    path = tmp_path / "a.pcap"
    with path.open("wb") as stream:
        write_pcap(packets[::-1], stream, snap_length=60)
    cut = sum(len(packet.data) > 60 for packet in packets)
    source = '[[source]]\nname = "taps"\nprotocol = "wallaroo"\nkind = "pcap"\npath = "taps"\nports = [7100]\n'
    with Path("wirehouse.toml").open("a") as config:
        config.write(f"\n{source}")
    said = wirehouse("land", str(path), "--source", "taps").out
    assert f"taps: a.pcap: {cut} of {len(packets)} packets were cut by the snap length" in said
    assert "the capture is in reverse order" in said


@pytest.mark.property
def test_a_job_that_failed_exits_1(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirehouse_orchestration.dagster.runs.materialize", lambda *_, **__: False)
    wirehouse("simulate", "cardinal", "--out", "inbox/a.jsonl", "--blocks", "3", "--messages", "40")
    wirehouse("land")
    answer = wirehouse("run")
    assert (answer.code, answer.out) == (1, "")
    assert "failed" in answer.err


def test_json_is_one_object_a_line_with_hex_integers_and_iso_times(wirehouse: Wirehouse) -> None:
    row = {
        "source": "mainnet",
        "window_start": "2026-11-14",
        "block_hash": HASH,
        "number": Decimal(MOST),
        "weight": (5).to_bytes(32, "big"),
        "missing": [{"name": "a", "messages": None, "what": "header"}],
    }
    wirehouse.write("gold.cardinal_batches_history", row, row | {"block_hash": b"\0" * 32})
    statement = (
        "SELECT block_hash, number, weight, missing, CAST('2026-11-14T22:00:00' AS TIMESTAMP) AS at, "
        "MAP {'k': block_hash} AS m FROM gold.cardinal_batches ORDER BY block_hash"
    )
    answer = wirehouse("sql", "--format", "json", statement)
    assert answer.code == 0
    _, second = (json.loads(line) for line in answer.out.splitlines())
    assert second == {
        "block_hash": "4e" * 32,
        "number": MOST,
        "weight": "0" * 63 + "5",
        "missing": [{"name": "a", "messages": None, "what": "header"}],
        "at": "2026-11-14T22:00:00Z",
        "m": {"k": "4e" * 32},
    }
    assert f'"number":{MOST}' in answer.out


def test_csv_quotes_and_disarms_formulas(wirehouse: Wirehouse) -> None:
    topics = ("=cmd|' /C calc'!A0", "a,b", 'say "hi"', "two\nlines", "\x1b[2J\u202e", "-1", "plain")
    wirehouse.write("bronze.messages", *({"topic": topic, "offset": -5, "key": b"\xff"} for topic in topics))
    answer = wirehouse("sql", "--format", "csv", 'SELECT topic, "offset", key FROM bronze.messages')
    assert answer.out == (
        'topic,offset,key\n\'=cmd|\' /C calc\'!A0,-5,ff\n"a,b",-5,ff\n"say ""hi""",-5,ff\n'
        "two\\x0alines,-5,ff\n\\x1b[2J\\u202e,-5,ff\n'-1,-5,ff\nplain,-5,ff\n"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", b"topic,key\n\\x1b,ff\n"),
        ("a.json", b'{"topic":"\\u001b","key":"ff"}\n'),
        ("a.jsonl", b'{"topic":"\\u001b","key":"ff"}\n'),
    ],
)
def test_rows_go_to_a_file_by_its_ending(wirehouse: Wirehouse, name: str, expected: bytes) -> None:
    wirehouse.write("bronze.messages", {"topic": "\x1b", "key": b"\xff"})
    assert wirehouse("sql", "--out", name, "SELECT topic, key FROM bronze.messages")[:2] == (0, "")
    assert (wirehouse.folder / name).read_bytes() == expected


def test_parquet_has_the_types_of_the_table(wirehouse: Wirehouse) -> None:
    row = {"block_hash": HASH, "number": Decimal(MOST), "missing": [{"name": "a", "messages": None, "what": "header"}]}
    wirehouse.write("gold.cardinal_batches_history", row)
    statement = "SELECT block_hash, number, missing, MAP {'k': block_hash} AS m FROM gold.cardinal_batches"
    assert wirehouse("sql", "--out", "a.parquet", statement).code == 0
    table = parquet.read_table(wirehouse.folder / "a.parquet")
    assert table.to_pylist() == [row | {"m": [("k", HASH)]}]
    assert table.schema.field("number").type == pa.decimal128(20, 0)


def test_a_file_is_written_whole_or_not_at_all(wirehouse: Wirehouse) -> None:
    (wirehouse.folder / "a.csv").write_text("before")
    assert wirehouse("sql", "--out", "a.csv", "SELECT 1 / (n - 1) FROM (SELECT 1 AS n)").code == 2
    assert (wirehouse.folder / "a.csv").read_text() == "before"
    with pytest.raises(output.FileError, match=r"a\.csv: No space left"), output.whole(wirehouse.folder / "a.csv"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (wirehouse.folder / "a.csv").read_text() == "before"
    assert [path.name for path in wirehouse.folder.iterdir() if ".part" in path.name] == []


def test_what_no_file_can_hold_is_said(wirehouse: Wirehouse) -> None:
    refused = wirehouse("sql", "--out", "a.parquet", "SELECT INTERVAL '1' DAY AS gap")
    assert (refused.code, "as gap is" in refused.err) == (2, True)
    assert wirehouse("sql", "--out", "a.parquet", "SELECT CAST(INTERVAL '1' DAY AS STRING) AS gap").code == 0
    refused = wirehouse("sql", "--out", "a.xlsx", "SELECT 1")
    assert (refused.code, ".parquet" in refused.err) == (2, True)
    assert wirehouse("sql", "--out", "a.xlsx", "--format", "csv", "SELECT 1").code == 0


def test_a_lake_that_is_not_there_is_said_to_be_none(wirehouse: Wirehouse) -> None:
    shutil.rmtree(wirehouse.folder / "lake")
    told = wirehouse("sql", "--format", "csv", "SELECT COUNT(*) AS n FROM gold.violations")
    assert (told.code, told.out) == (0, "n\n0\n")
    assert "nothing has landed in" in told.err
    assert wirehouse("report", "--from", "").code == 2


@pytest.mark.servers
def test_a_lake_that_is_not_there_in_a_bucket_is_said_to_be_none(
    wirehouse: Wirehouse, in_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(config.ROOT_VARIABLE, in_bucket)
    ask = ("sql", "--format", "csv", "SELECT COUNT(*) AS n FROM gold.violations")
    said = f"nothing has landed in {in_bucket} yet: `wirehouse land` begins it\n"
    assert wirehouse(*ask) == (0, "n\n0\n", said)
    told = wirehouse("--quiet", "report")
    assert (told.code, "the lake has no window" in told.err) == (2, True)
    assert said in wirehouse("report").err
    (wirehouse.folder / "inbox" / "a.jsonl").write_text("{}\n")
    assert wirehouse("--quiet", "land").code == 0
    assert wirehouse(*ask) == (0, "n\n0\n", "")


def test_tables_as_they_were(wirehouse: Wirehouse) -> None:
    wirehouse.write("bronze.messages", {"topic": "t"})
    assert wirehouse("sql", "--format", "json", "--as-of", "0", "SELECT topic FROM bronze.messages").out
    told = wirehouse("sql", "--format", "json", "--as-of", "2020-01-01", "SELECT topic FROM bronze.messages")
    assert (told.code, told.out) == (2, "")
    assert "the times of bronze.messages that are known are 2" in told.err


def test_a_table_escapes_what_would_drive_the_terminal(wirehouse: Wirehouse) -> None:
    wirehouse.write("bronze.messages", {"topic": "[red]\x1b[2J\u202egpj\u009b"})
    answer = wirehouse("sql", "SELECT topic FROM bronze.messages")
    assert "[red]\\x1b[2J\\u202egpj\\x9b" in answer.out
    assert "\x1b" not in answer.out


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "two words",
        "it's",
        "\x1b[2J",
        "\u202egpj",
        "it's \x9b1 \\x9b \\",
        "\\\x9b",
        "\x7fé",
        "\U000e0001a",
        "a\nb",
    ],
)
def test_a_word_of_a_command_drives_no_terminal_and_is_read_as_it_was(text: str) -> None:
    word = render.shell_word(text)
    assert render.terminal(word) == word
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    read = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, env=environment, check=True)
    assert read.stdout.decode() == text


COMMANDS = re.findall(r"^\$ wirehouse (sql .*\".*)$", (DOCS / "sql.md").read_text(), re.MULTILINE)


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(wirehouse: Wirehouse, command: str) -> None:
    answer = wirehouse(*shlex.split(command))
    assert (answer.code, answer.err) == (0, "")


def test_a_plan_has_a_line_for_each_step(wirehouse: Wirehouse) -> None:
    lines = wirehouse("sql", "EXPLAIN SELECT topic FROM bronze.messages WHERE topic = 'a\x1b'").out.splitlines()
    assert lines[0] == "logical_plan"
    assert any(line.startswith("  ") and "TableScan: bronze.messages" in line for line in lines)
    assert not any("\x1b" in line or "\\x0a" in line for line in lines)


def test_a_table_too_wide_is_cut_short_or_turned_upright(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wirehouse.write("bronze.messages", {"capture_id": HASH, "key": HASH, "topic": "t"})
    assert "4e4e4e4e4e4e…" in wirehouse("sql", "SELECT capture_id, key FROM bronze.messages").out
    upright = wirehouse("sql", "SELECT * FROM bronze.messages").out
    assert "row 1" in upright
    assert HASH.hex() in upright


def test_a_long_table_says_that_there_is_more(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MOST_ROWS", 2)
    wirehouse.write("bronze.messages", *({"record_number": number} for number in range(3)))
    assert "first 2 rows" in wirehouse("sql", "SELECT record_number FROM bronze.messages").err
    assert len(wirehouse("sql", "--format", "csv", "SELECT record_number FROM bronze.messages").out.split()) == 4


@pytest.mark.property
def test_a_statement_can_come_from_standard_input(wirehouse: Wirehouse) -> None:
    program = "from wirehouse_orchestration.cli.command import main; main(['sql', '--format', 'json'])"
    answer = subprocess.run(
        [sys.executable, "-c", program], input="SELECT 1 AS n", capture_output=True, text=True, cwd=wirehouse.folder
    )
    assert (answer.returncode, answer.stdout) == (0, '{"n":1}\n')


MANY = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 50000) SELECT n FROM t"


@pytest.mark.property
def test_an_interrupt_ends_the_statement(wirehouse: Wirehouse) -> None:
    many = "SELECT COUNT(*) FROM generate_series(1, 9999999) AS a, generate_series(1, 9999999) AS b "
    many += "WHERE a.value % 7 = b.value % 11"
    program = f"from wirehouse_orchestration.cli.command import main; main(['sql', {many!r}])"
    # In a folder with such a name no socket can have one.
    scratch = wirehouse.folder / ("scratch" * 12)
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    with started([sys.executable, "-c", program], stderr=subprocess.PIPE, env=environment) as process:
        while not list(scratch.glob("wirehouse-sql-*/wirehouse-sql-*")):
            assert process.poll() is None, "the statement did not begin"
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == cli.INTERRUPTED
        assert process.stderr is not None
        assert process.stderr.read().strip() == "wirehouse: interrupted"
    assert list(scratch.glob("wirehouse-sql-*")) == []


@pytest.mark.property
@pytest.mark.parametrize("arguments", [["sql", "--format", "json", MANY], ["rules"]], ids=["sql", "rules"])
def test_a_reader_that_goes_away_is_no_trouble(wirehouse: Wirehouse, arguments: list[str]) -> None:
    program = f"from wirehouse_orchestration.cli.command import main; main({arguments!r})"
    command = [sys.executable, "-c", program]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=wirehouse.folder) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_tables_and_rules_are_listed(wirehouse: Wirehouse) -> None:
    listed = wirehouse("tables").out
    assert "gold.cardinal_batches" in listed
    assert "gold.cardinal_state" not in listed
    assert "gold.cardinal_state" in wirehouse("tables", "--all").out
    columns = wirehouse("tables", "gold.cardinal_chain").out
    assert "valid_from_ns" in columns
    rules = wirehouse("rules").out
    for protocol in PROTOCOLS.values():
        assert all(rule.id in rules for rule in protocol.rules)
    assert "capture.time_suspect" in rules
    assert "capture.time_suspect" not in wirehouse("rules", "--protocol", "cardinal").out


def test_doctor_names_what_is_missing_and_how_to_mend_it(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREHOUSE_JARS", str(wirehouse.folder / "nowhere"))
    monkeypatch.setattr(java, "find", lambda: None)
    answer = wirehouse("doctor")
    assert answer.code == 1
    assert "openjdk-17-jre-headless" in answer.out
    assert "make setup" in answer.out
    assert f"{wirehouse.folder}/lake" in answer.out


def findings(wirehouse: Wirehouse) -> dict[str, Any]:
    """What `doctor` found, by what was looked at."""
    rows = map(json.loads, wirehouse("doctor", "--json").out.splitlines())
    return {row.pop("what"): row for row in rows}


@pytest.mark.property
def test_doctor_looks_at_all_that_is_needed(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setattr(doctor, "PORTS", {server.getsockname()[1]: "take another"})
        found = findings(wirehouse)
        port = found[f"port {server.getsockname()[1]}"]
    assert port == {
        "state": "taken",
        "mend": "perhaps it runs already; take another",
        "optional": True,
        "missing": False,
    }
    looked_at = {"Python", "packages", "Java", "Spark jars", "memory", "scratch space", "configuration", "lake", "disk"}
    assert found.keys() >= looked_at
    assert not any(found[what]["missing"] for what in looked_at - {"Java", "Spark jars", "packages"})


@pytest.mark.property
def test_doctor_says_what_no_file_system_takes(wirehouse: Wirehouse) -> None:
    long = "x" * 300
    place = wirehouse.folder / "wirehouse.toml"
    place.write_text(CONFIG.replace('"lake"', f'"{long}"'))
    told = findings(wirehouse)
    assert "can't be looked at: File name too long" in told["configuration"]["state"]
    assert told["configuration"]["missing"]


def test_a_source_whose_place_is_gone_stops_itself_alone(wirehouse: Wirehouse) -> None:
    file = wirehouse.folder / "wirehouse.toml"
    file.write_text(CONFIG + CONFIG[CONFIG.index("[[source]]") :].replace("mainnet", "other").replace("inbox", "gone"))
    (wirehouse.folder / "inbox" / "a.jsonl").write_text("{}\n")
    assert findings(wirehouse)["source other"]["missing"]
    answer = wirehouse("land")
    assert answer.code == 2
    assert f"source 'other': path {wirehouse.folder}/gone does not exist: create it" in answer.err
    assert answer.out.startswith("1 new capture")
    counted = wirehouse("sql", "--format", "json", "SELECT COUNT(*) AS n FROM bronze.captures")
    assert json.loads(counted.out) == {"n": 0}, "that is for `run`"
    assert wirehouse("land", "--source", "mainnet").code == 0


def test_doctor_says_what_is_of_the_wrong_version_or_too_small(
    wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["click<1", "no-such-package", "no-such-extra; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: asked)
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 1 << 70)
    monkeypatch.setattr(doctor, "LEAST_MEMORY_BYTES", 1 << 70)
    found = findings(wirehouse)
    assert found["packages"]["state"] == f"click {metadata.version('click')}, no no-such-package"
    assert "make setup" in found["packages"]["mend"]
    assert "SPARK_LOCAL_DIRS" in found["scratch space"]["mend"]
    assert "WIREHOUSE_DRIVER_MEMORY" in found["memory"]["mend"]
    assert found["disk"]["missing"]


@pytest.mark.property
def test_doctor_says_what_the_store_refuses(wirehouse: Wirehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREHOUSE_ROOT", "s3://wirehouse/lake")
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("wirehouse_pipelines.storage.retry_policy.ATTEMPTS", 1)
    lake = findings(wirehouse)["lake"]
    assert lake["missing"]
    assert "can't be reached" in lake["state"]


@pytest.mark.servers
def test_doctor_tries_the_store(wirehouse: Wirehouse, in_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREHOUSE_ROOT", in_bucket)
    assert findings(wirehouse)["lake"]["state"] == f"{in_bucket}, day windows"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x00\xff", "00ff"),
        (Decimal(MOST), MOST),
        (Decimal("1.50"), 1.5),
        (datetime(2026, 11, 14, 22, tzinfo=UTC), "2026-11-14T22:00:00Z"),
        (datetime(2026, 11, 14, 22), "2026-11-14T22:00:00Z"),  # noqa: DTZ001 - Arrow's timestamps without a zone
        (float("nan"), None),
        ([("a", b"\1")], {"a": "01"}),
        ([(b"\2", 1)], {"02": 1}),
        ([], []),
        ({"x": [b"\1", None]}, {"x": ["01", None]}),
        (True, True),
    ],
)
def test_values_in_json(value: object, expected: object) -> None:
    assert render.plain(value) == expected
    json.dumps(render.plain(value), allow_nan=False)
