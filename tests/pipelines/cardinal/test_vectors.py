"""The pipeline against the reference: every expectation of the vectors, through landing, Spark and Delta."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import land, run, select
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
VECTORS = Path(__file__).parents[2] / "vectors" / "cardinal"
EXPECTED = {
    "-".join([*path.parent.relative_to(VECTORS).parts, *path.stem.split(".")[1:]]): path
    for path in sorted(VECTORS.rglob("expected*.json"))
}
MATCH = [name for name, path in EXPECTED.items() if json.loads(path.read_text())["authority"] == "match"]


def _options(config: dict[str, Any]) -> dict[str, Any]:
    start = {"number": config["last_number"], "hash": config["last_hash"], "weight": config["last_weight"]}
    return {key: config[key] for key in ("tracked_prefixes", "reorg_threshold")} | {"start": start}


@pytest.fixture(scope="module")
def told(in_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One lake with every vector as a source; a function from a statement to rows by source."""
    sources = [
        Source(
            name,
            "cardinal",
            "messages",
            str(path.parent / "messages.jsonl"),
            _options(json.loads(path.read_text())["consumer_config"]),
        )
        for name, path in EXPECTED.items()
    ]
    lake = Lake(str(tmp_path_factory.mktemp("vectors")), Windows("day", "2015-01-01"), tuple(sources))
    land(lake)
    run(in_process, lake)

    def rows(statement: str) -> dict[str, list[dict[str, Any]]]:
        by_source = defaultdict(list)
        for row in select(lake, statement):
            by_source[row["source"]].append(row)
        return by_source

    return {
        "batches": rows("select * from gold.cardinal_batches order by source, completed_record_number"),
        "updates": rows("select * from gold.cardinal_batch_updates order by source, block_hash, key"),
        "chain_updates": rows("select * from gold.cardinal_chain_updates order by source, sequence"),
        "reorgs": rows("select * from gold.cardinal_reorgs"),
        "violations": rows("select * from gold.violations"),
        "quarantine": rows("select * from silver.quarantine order by source, record_number"),
    }


def _content(updates: list[dict[str, Any]], operation: str) -> dict[bytes, Any]:
    by_block: dict[bytes, Any] = defaultdict(dict)
    for row in updates:
        if row["operation"] == operation:
            by_block[row["block_hash"]][row["key"]] = row["value"]
    return by_block


@pytest.mark.parametrize("name", MATCH)
def test_blocks_complete_as_in_the_reference(told: Any, name: str) -> None:
    expected = json.loads(EXPECTED[name].read_text())
    complete = [row for row in told["batches"][name] if row["status"] == "complete"]
    assert [
        (
            row["completed_record_number"],
            row["block_hash"].hex(),
            int(row["number"]),
            row["parent"].hex(),
            int.from_bytes(row["weight"], "big"),
        )
        for row in complete
    ] == [
        (block["at_message"], block["hash"], block["number"], block["parent"], int(block["weight"]))
        for block in expected["completed_batches"]
    ]
    incomplete = {row["block_hash"].hex() for row in told["batches"][name] if row["status"] != "complete"}
    assert incomplete == {block["hash"] for block in expected["incomplete"]}


@pytest.mark.parametrize("name", MATCH)
def test_blocks_hold_the_values_and_deletes_of_the_reference(told: Any, name: str) -> None:
    expected = json.loads(EXPECTED[name].read_text())
    values, deletes = (_content(told["updates"][name], operation) for operation in ("set", "delete"))
    for block in expected["completed_batches"]:
        block_hash = bytes.fromhex(block["hash"])
        assert values[block_hash] == {item["k"].encode(): base64.b64decode(item["v_b64"]) for item in block["values"]}
        assert set(deletes[block_hash]) == {key.encode() for key in block["deletes"]}


@pytest.mark.parametrize("name", MATCH)
def test_chain_updates_are_those_of_the_reference(told: Any, name: str) -> None:
    expected = json.loads(EXPECTED[name].read_text())
    # The update that lists what an announced reorg removed is ours: the reference says nothing there.
    announced = [row["record_number"] for row in told["reorgs"][name] if row["announced"]]
    updates = [row for row in told["chain_updates"][name] if row["added"] or row["record_number"] not in announced]
    assert [
        (row["record_number"], [h.hex() for h in row["added"]], [h.hex() for h in row["removed"]]) for row in updates
    ] == [(update["at_message"], update["added"], update["removed"]) for update in expected["chain_updates"]]
    assert updates[-1]["head_hash"].hex() == expected["final_head"]["hash"]
    assert [int(row["ancestor_number"]) for row in told["reorgs"][name] if row["announced"]] == [
        notice["number"] for notice in expected["reorg_notices"]
    ]


def test_an_announced_reorg_lists_what_it_removed(told: Any) -> None:
    removed = [row for row in told["chain_updates"]["e1_large_reorg"] if row["removed"]]
    assert [(len(row["added"]), len(row["removed"]), row["record_number"]) for row in removed] == [(0, 25, 465)]


def test_nothing_is_found_in_what_a_correct_producer_sent(told: Any) -> None:
    correct = ("a_linear", "c_subbatches", "d1_depths", "d2_equal_weight", "e1_large_reorg")
    assert {name: told["violations"][name] for name in correct} == {name: [] for name in correct}


@pytest.mark.parametrize(
    ("name", "rule", "records", "head"),
    [
        ("h_malformed-01_batch_truncated", "value_undecodable", [13], 1),
        ("h_malformed-03_batch_truncated_then_good", "value_undecodable", [13], 4),
        ("h_malformed-05_batch_garbage", "value_undecodable", [13], 1),
        ("h_malformed-18_unknown_prefix_byte", "unknown_type", [13, 14, 15, 16, 17, 19], 4),
        ("h_malformed-19_short_keys", "key_length_wrong", [14, 15, 16], 4),
    ],
)
def test_malformed_messages_are_quarantined(told: Any, name: str, rule: str, records: list[int], head: int) -> None:
    quarantined = told["quarantine"][name]
    assert [(row["rule"], row["record_number"]) for row in quarantined] == [(f"cardinal.{rule}", n) for n in records]
    assert all(row["key"] for row in quarantined)
    found = [row["record_number"] for row in told["violations"][name] if row["rule"] == f"cardinal.{rule}"]
    assert sorted(found) == records
    assert told["chain_updates"][name][-1]["head_number"] == head


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("h_malformed-09_header_unknown_batchid", "subbatch_unknown"),
        ("h_malformed-11_item_index_beyond", "item_index_out_of_range"),
        ("h_malformed-24_same_key_two_values", "key_two_values"),
    ],
)
def test_odd_blocks_complete_and_say_what_is_odd(told: Any, name: str, rule: str) -> None:
    assert [row["rule"] for row in told["violations"][name]] == [f"cardinal.{rule}"]
    assert [row["status"] for row in told["batches"][name]] == ["complete"] * 4
    assert told["chain_updates"][name][-1]["head_number"] == 4
