"""`wirehouse inspect` and the pipeline say the same of one capture, and gold has what the vectors expect."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.support.comparing import Told, assert_the_same_is_said, told_by_both
from tests.support.hiero_files import archive_of, grpc_log_of
from tests.support.running import select
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT, B
from wirehouse_codecs.hiero.simulator.ledger import Ledger
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.pcap_writer import write_file
from wirehouse_orchestration.evidence.trace import trace
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
VECTORS = Path(__file__).parents[2] / "vectors" / "hiero"
EXPECTED = {
    f"{path.parent.name}-{path.name.partition('.')[0]}": json.loads(path.read_text())
    for path in sorted(VECTORS.rglob("*.expected.json"))
}
FACTS = {fact["file"]: fact for fact in json.loads((VECTORS / "blocks" / "expected.json").read_text())}
SERIES = ("cn073_tss", "cn078_tss_schnorr", "gen062", "sim062", "wrb_solo4n", "wrb_testnet")
#: A capture of packets that is read as a gRPC log too.
LOGGED = "new-v3_resend_not_from_next"
#: Rules that one more node, publisher or subscriber breaks, in a capture each.
SIMULATED = (
    *("malformed_message", "structure", "ack_order", "backoff", "last_known", "chain", "drop_unproven"),
    *("node_error_all", "source_error_sent", "retry_after_node_error", "gap_not_filled", "subscriber_not_resumed"),
)
#: What stays open is idle for long enough before the window ends.
MORNING_MS = 1_699_956_800_000


def _pcap(name: str) -> Path:
    return VECTORS / f"{name.replace('-', '/')}.pcap"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("captures")
    sources = [
        Source(name, "hiero", "pcap", str(_pcap(name)), ports=tuple({call["server_port"] for call in said["rpcs"]}))
        for name, said in EXPECTED.items()
    ]
    for fault, profile in zip(SIMULATED, cycle(("B", "A")), strict=False):
        path = folder / f"fault-{fault}.pcap"
        config = SimulatorConfig(fault=fault, profile=profile, blocks=4, block_bytes=1500, start_time_ms=MORNING_MS)
        write_file(simulate(config), path)
        sources.append(Source(path.stem, "hiero", "pcap", str(path), ports=(DEFAULT_PORT,)))
    for name in SERIES:
        path = folder / f"blocks-{name}.tar"
        path.write_bytes(archive_of(sorted((VECTORS / "blocks").glob(f"{name}_*"))))
        sources.append(Source(path.stem, "hiero", "blocks", str(path)))
    large = folder / "large.blk"
    block = Ledger(SimulatorConfig(block_bytes=9_000_000, start_time_ms=MORNING_MS), B).block(0)
    large.write_bytes(b"".join((*block.opening, *block.middle, *block.closing)))
    sources.append(Source("large", "hiero", "blocks", str(large)))
    cut = folder / "damaged.blk"
    cut.write_bytes((VECTORS / "blocks" / "sim062_3.blk").read_bytes()[:-7])
    sources.append(Source("damaged", "hiero", "blocks", str(cut)))
    log = folder / "log.binlog"
    log.write_bytes(grpc_log_of(_pcap(LOGGED), DEFAULT_PORT) + b"\x00\x00\x00\x09junk")
    sources.append(Source("log", "hiero", "grpc_log", str(log)))
    return Lake(str(tmp_path_factory.mktemp("lake")), Windows("day", "2015-01-01"), tuple(sources))


@pytest.fixture(scope="module")
def told(in_process: Any, lake: Lake) -> Told:
    """What inspect and the pipeline tell."""
    return told_by_both(in_process, lake, ["connection_id", "call", "raw"])


def test_the_pipeline_has_the_rows_that_inspect_prints(told: Told) -> None:
    assert_the_same_is_said(told)


@pytest.mark.usefixtures("told")
def test_only_what_is_broken_is_found(lake: Lake) -> None:
    rows = select(lake, "SELECT DISTINCT source, rule FROM gold.hiero_violations WHERE rule LIKE 'hiero.%'")
    broken = {(name, f"hiero.{one['rule'].lower()}") for name, said in EXPECTED.items() for one in said["violations"]}
    broken |= {("log", rule) for name, rule in broken if name == LOGGED}
    assert {(row["source"], row["rule"]) for row in rows} == broken | {
        (f"fault-{fault}", f"hiero.{fault}") for fault in SIMULATED
    }


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", EXPECTED)
def test_blocks_and_who_sent_them(lake: Lake, name: str) -> None:
    rows = {int(row["block_number"]): row for row in select(lake, _of("gold.hiero_blocks", name))}
    for number, said in EXPECTED[name]["blocks"].items():
        row = rows[int(number)]
        assert set(row["publishers"]) == set(said["offered_by"])
        assert (row["acknowledged_at_ns"] is not None) is said["acknowledged"]
        if row["item_counts"] is not None:
            assert dict(row["item_counts"]) == said["items"]
        assert row["previous_hash"] is None or row["previous_hash"].hex() == said["previous_block_root_hash"]
        assert row["chains"] is not False


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", EXPECTED)
def test_calls_and_their_ends(lake: Lake, name: str) -> None:
    calls = Counter((one["role"], one["grpc_status"]) for one in EXPECTED[name]["rpcs"] if one["role"] != "status")
    found = Counter[tuple[str, int]]()
    for role, table in (("publisher", "publisher_sessions"), ("subscriber", "subscriptions")):
        found.update((role, row["status"]) for row in select(lake, _of(f"gold.hiero_{table}", name)))
    assert found == calls


@pytest.mark.usefixtures("told")
def test_how_a_node_catches_up(lake: Lake) -> None:
    (row,) = select(lake, _of("gold.hiero_catch_ups", "old-behind_endstream_backoff"))
    # Each attempt has a correlation id of its own, of no form that names the publisher.
    assert (row["state"], len(row["attempts"]), len(row["gaps_ns"])) == ("done", 3, 0)
    asked = [(one["start_block_number"], one["end_block_number"]) for one in row["asked"]]
    assert asked == [(121, 124), (125, 127), (128, 130)]
    subscriptions = select(lake, _of("gold.hiero_subscriptions", "old-behind_endstream_backoff"))
    assert {row["asking_node"] for row in subscriptions} == {row["node"]}


@pytest.mark.usefixtures("told")
def test_decisions_that_break_a_rule_are_illegal(lake: Lake) -> None:
    rows = select(lake, "SELECT source, rule FROM gold.hiero_decisions WHERE NOT legal AND source LIKE 'new-%'")
    assert [(row["source"], row["rule"]) for row in rows] == [("new-v1_next_answered_behind", "hiero.next")]


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", SERIES)
def test_block_files_and_their_chain(lake: Lake, name: str) -> None:
    rows = {int(row["block_number"]): row for row in select(lake, _of("gold.hiero_blocks", f"blocks-{name}"))}
    assert len(rows) == len(list((VECTORS / "blocks").glob(f"{name}_*")))
    for file, fact in FACTS.items():
        if not file.startswith(f"{name}_"):
            continue
        row, root = rows[fact["number"]], fact.get("computed_root") or {}
        assert dict(row["item_counts"]) == fact["items"]
        assert row["items"] == fact["items_total"]
        if root.get("chain_ok") and fact["number"] + 1 in rows:
            assert (row["root_layout"], row["block_root"].hex(), row["chains"]) == (root["layout"], root["hash"], True)


@pytest.mark.usefixtures("told")
def test_a_grpc_log_tells_what_packets_tell(lake: Lake) -> None:
    columns = "offered, expected, actual, reported, legal"
    by_both = [
        select(lake, f"SELECT {columns} FROM gold.hiero_decisions WHERE source = '{name}' ORDER BY arrived_at_ns")
        for name in ("log", LOGGED)
    ]
    assert by_both[0] == by_both[1] != []


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("source", [LOGGED, "log", "blocks-sim062"])
def test_a_row_of_gold_leads_to_its_bytes(lake: Lake, source: str) -> None:
    row = select(lake, _of("gold.hiero_blocks", source))[0]
    out = io.StringIO()
    trace(lake, "gold.hiero_blocks", f"source={source},block_number={row['block_number']}", out)
    told = out.getvalue()
    assert Path(lake.source(source).path).name in told
    assert "00000000  " in told


@pytest.mark.usefixtures("told")
def test_a_large_block_leads_to_the_first_of_its_pieces(lake: Lake) -> None:
    out = io.StringIO()
    trace(lake, "gold.hiero_blocks", "source=large,block_number=0", out)
    assert "the last of 3 pieces, which are records 0 to 2; the first:" in out.getvalue()
    assert "0a" in out.getvalue().partition("00000000  ")[2][:3]


def _of(table: str, source: str) -> str:
    return f"SELECT * FROM {table} WHERE source = '{source}'"
