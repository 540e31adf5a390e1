"""`wirehouse export`: what it writes of a lake can be read back, and means the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.codecs.bamboo.conftest import Log, grown
from tests.support.inspecting import inspected
from tests.support.running import land, run, select
from wirehouse_codecs.bamboo.simulator.simulator import PORT, SimulatorConfig, simulate, write_pcap
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entry_files import read
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_orchestration.cli import command as cli
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.jobs.job import Span
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables

DAY = "2026-11-14"
LARGEST = 2**64 - 1
VECTORS = Path(__file__).parents[2] / "vectors" / "bamboo"


def write(lake: Lake, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    place = {"source": "net", "window_start": DAY, "capture_id": b"\1" * 32, "record_number": 0}
    made = [place | dict(row) for row in rows]
    spans = [Span(str(source), (DAY,)) for source in {row["source"] for row in made}]
    schema = arrow_types.schema(all_tables()[name])
    spark_tables.replace(lake, name, pa.Table.from_pylist(made, schema=schema), spans)


def known(log: Log, seq: int, **how: Any) -> dict[str, Any]:
    """A row about an entry of the log."""
    entry = log.entries[seq]
    named = {"author": entry.author, "log_id": entry.log_id, "seq": seq, "arrived_at_ns": seq}
    payload = {"payload_size": entry.payload_size, "payload_hash": yamf.digest(log.payloads[seq])}
    entry_hash = yamf.digest(entry.encode())
    return named | payload | {"data": entry.encode(), "entry_id": entry_hash, "verdict": "valid"} | how


def sent(seq: int, data: bytes, **how: Any) -> dict[str, Any]:
    """A row about the packet that completed a payload."""
    message = {"kind": "raw", "seq": seq, "data": data, "payload": {"packets": 1, "checked": True}}
    return {"row_kind": "message", "message": message | how}


@pytest.fixture
def log() -> Log:
    return grown(6, log_id=LARGEST)


@pytest.fixture
def file(tmp_path: Path, log: Log) -> Path:
    """The configuration of a lake that knows entries 1 to 5 of the log, and entry 6 in part."""
    other, fork = grown(6, author=2), grown(5, log_id=LARGEST)
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2026-01-01"))
    branch = known(
        fork, 5, data=b"branch", entry_id=b"branch", arrived_at_ns=99, payload_hash=yamf.digest(b"never seen")
    )
    entries = [known(log, seq) for seq in (5, 4, 3, 2, 1)]
    entries += [branch, known(log, 2, source="again", arrived_at_ns=7), known(other, 3)]
    entries.append(known(log, 6, data=None, verdict="unknown"))
    write(lake, "gold.bamboo_entries_history", entries)
    first = log.entries[1]
    stored = {"author": first.author, "log_id": LARGEST, "seq": 1, "payload": log.payloads[1]}
    wrong = stored | {"seq": 4, "payload": b"of another entry"}
    joined = {"packets": 2, "checked": True, "data": log.payloads[3]}
    messages = [
        sent(3, log.payloads[3][-1:], payload=joined),
        sent(2, other.payloads[2] + b"!"),
        sent(2, log.payloads[2]),
        sent(2, log.payloads[2], payload=None),
        sent(6, log.payloads[5]),
    ]
    write(lake, "silver.bamboo", [{"row_kind": "entry", "entry": one} for one in (stored, wrong)] + messages)
    file = tmp_path / "wirehouse.toml"
    file.write_text('[lakehouse]\nroot = "lake"\n')
    return file


def exported(file: Path, log: Log, out: Path, *more: str) -> int:
    author = log.entries[1].author.hex().upper()
    asked = ["export", "bamboo", "--author", author, "--log", str(log.entries[1].log_id), "--out", str(out), *more]
    return cli._outcome(["--config", str(file), *asked])


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_log_is_written_with_the_payloads_that_are_its_entries(
    suffix: str, file: Path, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"log{suffix}"
    assert exported(file, log, out) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        f"{out}: 6 entries, 3 of them with their payloads",
        "left out: 1 entries that link to entries whose hashes are unknown",
    ]
    with pa.input_stream(out) as stream:
        written = [(record.entry, record.payload) for record in read([stream.read()])]
    whole = {seq: (entry.encode(), log.payloads[seq]) for seq, entry in log.entries.items()}
    assert written == [whole[1], whole[2], whole[3], (whole[4][0], None), (whole[5][0], None), (b"branch", None)]


def test_a_part_of_a_log_is_written_as_binary(
    file: Path, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "log.entries.zst"
    assert exported(file, log, out, "--from", "2", "--to", "4", "--json") == 0
    counted = {"entries": 3, "payloads": 0, "incomplete": 0}
    named = {"file": str(out), "author": log.entries[1].author.hex(), "log_id": LARGEST}
    assert json.loads(capsys.readouterr().out) == named | counted
    with pa.input_stream(out) as stream:
        assert stream.read() == b"".join(log.entries[seq].encode() for seq in (2, 3, 4))


def test_an_empty_payload_is_known_without_being_sent(tmp_path: Path, log: Log) -> None:
    log.payloads[1] = b""
    write(Lake(str(tmp_path / "lake"), Windows("day", DAY)), "gold.bamboo_entries_history", [known(log, 1)])
    (tmp_path / "wirehouse.toml").write_text('[lakehouse]\nroot = "lake"\n')
    assert exported(tmp_path / "wirehouse.toml", log, tmp_path / "log.jsonl") == 0
    assert json.loads((tmp_path / "log.jsonl").read_text())["payload_hex"] == ""


def test_what_cannot_be_exported_is_said_and_leaves_no_file(
    file: Path, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "log.jsonl"
    assert exported(file, log, out, "--from", "6") == 2
    assert f"no entry 6 to … of log {LARGEST} of {log.entries[1].author.hex()} is known" in capsys.readouterr().err
    assert exported(file, grown(1, author=3), out) == 2
    assert exported(file, log, tmp_path / "log.csv") == 2
    assert "must end in .jsonl or .jsonl.gz" in capsys.readouterr().err
    assert cli._outcome(["export", "bamboo", "--author", "x'--", "--log", "1", "--out", str(out)]) == 2
    assert "must be 64 hexadecimal digits" in capsys.readouterr().err
    assert cli._outcome(["export", "cardinal"]) == 2
    assert [path.name for path in tmp_path.iterdir() if "log" in path.name] == []


@pytest.mark.property
def test_what_is_exported_lands_as_the_same_entries_and_payloads(in_process: Any, tmp_path: Path) -> None:
    capture = tmp_path / "peers.pcap"
    with capture.open("wb") as stream:
        write_pcap(simulate(SimulatorConfig(seed=3, connections=1, logs=1, entries=20)), stream)
    vectors = [
        VECTORS / "logs" / f"{name}.jsonl" for name in ("fork_at_8", "payload_hash_mismatch", "partial_certpool_23")
    ]
    sources = [Source(path.stem, "bamboo", "entries", str(path)) for path in vectors]
    sources.append(Source("peers", "bamboo", "pcap", str(capture), ports=(PORT,)))
    before = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), tuple(sources))
    land(before)
    run(in_process, before)
    file = tmp_path / "wirehouse.toml"
    file.write_text('[lakehouse]\nroot = "lake"\n')
    logs = select(before, "SELECT DISTINCT encode(author, 'hex') AS author, log_id FROM gold.bamboo_logs")
    folder = tmp_path / "exported"
    folder.mkdir()
    for number, row in enumerate(logs):
        out = folder / f"{number}.jsonl"
        asked = ["export", "bamboo", "--author", row["author"], "--log", str(row["log_id"]), "--out", str(out)]
        assert cli._outcome(["--config", str(file), *asked]) == 0
    after = Lake(
        str(tmp_path / "again"), Windows("day", "2015-01-01"), (Source("s", "bamboo", "entries", str(folder)),)
    )
    land(after)
    run(in_process, after)
    judged = "SELECT DISTINCT data, verdict, payload_size, payload_hash FROM gold.bamboo_entries WHERE data IS NOT NULL"
    known_before = {row["data"]: row for row in select(before, judged)}
    known_after = {row["data"]: row for row in select(after, judged)}
    assert known_after.keys() == known_before.keys()
    signed = {data: row["verdict"] for data, row in known_before.items() if row["verdict"] == "valid"}
    assert {data: known_after[data]["verdict"] for data in signed} == signed
    carried = "SELECT entry.data AS data, entry.payload AS payload FROM silver.bamboo WHERE row_kind = 'entry'"
    payloads = {row["data"]: row["payload"] for row in select(after, carried)}
    hashes = {data: yamf.digest(payload) for data, payload in payloads.items() if payload is not None}
    assert hashes == {data: known_before[data]["payload_hash"] for data in hashes}
    of_peers = "SELECT data, payload_size FROM gold.bamboo_entries WHERE source = 'peers' AND data IS NOT NULL"
    assert {row["data"] for row in select(before, of_peers)} & hashes.keys()
    stored = {record.entry for path in vectors for record in read([path.read_bytes()]) if record.payload is not None}
    wrong = "SELECT data FROM gold.bamboo_entries WHERE payload_rule IS NOT NULL"
    assert stored - {row["data"] for row in select(before, wrong)} <= hashes.keys()
    printed = [row for path in folder.iterdir() for kind, row in inspected(str(path), "bamboo") if kind == MESSAGE]
    assert sorted(row["data"] for row in printed) == sorted(known_before)
