"""The vectors of the reference: blocks, order, positions, chain and what stays incomplete.

Where the reference crashes or loses data (`record_only`) its advice is followed.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from wirehouse_codecs.cardinal.correlation.consumer import Consumed, consume
from wirehouse_codecs.cardinal.correlation.events import LocatedFinding, ReorgRow, Update
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.cardinal.session.block import Block
from wirehouse_codecs.cardinal.session.judgement import judged_findings
from wirehouse_codecs.core.rules import Place

VECTORS = Path(__file__).parents[3] / "vectors" / "cardinal"
EXPECTED = sorted(path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("expected*.json"))
#: The reference lists nothing when a Reorg reverts the head; we list the removed blocks: message, added, removed.
REVERTED = {"e1_large_reorg/expected.json": (465, 0, 25)}
#: What is found in vectors that the reference made without complaint, and the messages that it is about.
FOUND = {
    "g1_incomplete": [],
    "h_malformed/01_batch_truncated": [("value_undecodable", 13)],
    "h_malformed/03_batch_truncated_then_good": [("value_undecodable", 13)],
    "h_malformed/05_batch_garbage": [("value_undecodable", 13)],
    "h_malformed/09_header_unknown_batchid": [("subbatch_unknown", 26)],
    "h_malformed/11_item_index_beyond": [("item_index_out_of_range", 25)],
    "h_malformed/18_unknown_prefix_byte": [("unknown_type", at) for at in range(13, 20) if at != 18],
    "h_malformed/19_short_keys": [("key_length_wrong", at) for at in (14, 15, 16)],
    "h_malformed/24_same_key_two_values": [("key_two_values", 15)],
}
#: The reference's result stands for the whole but for the block whose Batch is cut.
CUT_BATCH = ("h_malformed/01_batch_truncated", "h_malformed/03_batch_truncated_then_good")


@cache
def expected_of(name: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((VECTORS / name).read_text())
    return said


@cache
def consumed(name: str) -> Consumed:
    config = expected_of(name)["consumer_config"]
    options = CardinalOptions(
        tracked_prefixes=tuple(config["tracked_prefixes"]),
        reorg_threshold=config["reorg_threshold"],
        start=Start(config["last_number"], bytes.fromhex(config["last_hash"]), int(config["last_weight"])),
    )
    records = []
    with ((VECTORS / name).parent / "messages.jsonl").open() as lines:
        for at, line in enumerate(lines):
            said = json.loads(line)
            place = Place(said["timestamp_ms"] * 10**6, 0, b"", at, said["topic"], said["partition"], said["offset"])
            records.append((place, base64.b64decode(said["key_b64"]), base64.b64decode(said["value_b64"])))
    return consume(records, options)


def told_as_expected(block: Block) -> dict[str, Any]:
    """A block as the vectors write it."""
    assert block.batch is not None
    assert block.completed_place is not None
    return {
        "at_message": block.completed_place.record_number,
        "number": block.batch.number,
        "hash": block.block_hash.hex(),
        "parent": block.batch.parent.hex(),
        "weight": str(block.batch.weight),
        "values": [
            {"k": update.key.decode(), "v_b64": base64.b64encode(update.value).decode()}
            for update in block.updates
            if update.value is not None
        ],
        "deletes": [update.key.decode() for update in block.updates if update.value is None],
    }


def complete_blocks(name: str) -> list[dict[str, Any]]:
    blocks = [told_as_expected(block) for block in consumed(name).blocks if block.complete]
    return sorted(blocks, key=lambda block: int(block["at_message"]))


def updates_of(name: str) -> list[dict[str, Any]]:
    updates = [outcome for outcome in consumed(name).outcomes if isinstance(outcome, Update)]
    return [
        {
            "at_message": update.place.record_number,
            "added": [block.hex() for block in update.added],
            "removed": [block.hex() for block in update.removed],
        }
        for update in updates
    ]


AGREED = [name for name in EXPECTED if not name.startswith(CUT_BATCH)]


@pytest.mark.parametrize("name", AGREED)
def test_blocks_complete_with_the_same_content_at_the_same_message(name: str) -> None:
    blocks = complete_blocks(name)
    expected = expected_of(name)["completed_batches"]
    assert [block["at_message"] for block in blocks] == [block["at_message"] for block in expected]
    for ours, theirs in zip(blocks, expected, strict=True):
        assert ours == {key: value for key, value in theirs.items() if key in ours}


@pytest.mark.parametrize("name", AGREED)
def test_the_chain_moves_as_the_reference_moves_it(name: str) -> None:
    updates = updates_of(name)
    if name in REVERTED:
        sizes = [(update["at_message"], len(update["added"]), len(update["removed"])) for update in updates]
        del updates[sizes.index(REVERTED[name])]
    assert updates == expected_of(name)["chain_updates"]


@pytest.mark.parametrize("name", AGREED)
def test_the_head_is_that_of_the_reference(name: str) -> None:
    updates = [outcome for outcome in consumed(name).outcomes if isinstance(outcome, Update)]
    head = expected_of(name)["final_head"]
    assert (updates[-1].head_hash.hex(), updates[-1].head_number) == (head["hash"], head["number"])


@pytest.mark.parametrize("name", AGREED)
def test_what_stays_incomplete_has_the_reference_s_reason(name: str) -> None:
    incomplete = {block.block_hash.hex(): block for block in consumed(name).blocks if not block.complete}
    expected = {block["hash"]: block["why"] for block in expected_of(name)["incomplete"]}
    assert incomplete.keys() == expected.keys()
    for block_hash, why in expected.items():
        block = incomplete[block_hash]
        reasons = {finding.rule.name for finding in judged_findings(block)}
        assert why in (reasons or {"no_batch_message"})


@pytest.mark.parametrize("name", EXPECTED)
def test_announced_reorgs_are_those_of_the_reference(name: str) -> None:
    rows = {row.place: row for row in consumed(name).outcomes if isinstance(row, ReorgRow) and row.announced}
    told = [(row.place.record_number, row.ancestor_number, row.ancestor_hash.hex()) for row in rows.values()]
    assert told == [(said["at_message"], said["number"], said["hash"]) for said in expected_of(name)["reorg_notices"]]
    assert all(row.completed for row in rows.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_found(name: str) -> None:
    folder = name.rpartition("/")[0]
    found = [(told.finding.rule.name, told.finding.place.record_number) for told in consumed(name).findings]
    if folder == "f1_deletes_empty_ignored":
        # The stream has in each block a key both set and deleted.
        assert [rule for rule, _ in found] == ["key_by_two_ways"] * 20
    else:
        assert sorted(found) == sorted(FOUND.get(folder, []))


def quarantined(name: str) -> list[int]:
    rows = [row.place.record_number for row in consumed(name).rows if row.decoded.message is None]
    found = [told.finding for told in consumed(name).findings if told.finding.rule.quarantines]
    return sorted({*rows, *(finding.place.record_number for finding in found)})


@pytest.mark.parametrize(
    ("folder", "messages"),
    [(CUT_BATCH[0], [13]), (CUT_BATCH[1], [13]), ("11_item_index_beyond", [25]), ("19_short_keys", [14, 15, 16])],
)
def test_what_the_reference_dies_of_is_quarantined(folder: str, messages: list[int]) -> None:
    (name,) = (name for name in EXPECTED if f"{folder}/" in name)
    assert expected_of(name)["authority"] == "record_only"
    assert quarantined(name) == messages


def test_a_cut_batch_leaves_its_block_without_batch() -> None:
    name = f"{CUT_BATCH[0]}/expected.json"
    assert [update["at_message"] for update in updates_of(name)] == [12]
    (block,) = (block for block in consumed(name).blocks if not block.complete)
    assert block.batch is None
    assert [block["number"] for block in complete_blocks(name)] == [1, 3, 4]


def test_a_good_batch_after_a_cut_one_completes_its_block() -> None:
    name = f"{CUT_BATCH[1]}/expected.json"
    blocks = {block["number"]: block for block in complete_blocks(name)}
    assert len(blocks[2]["values"]) == 11
    assert updates_of(name)[-1]["added"] == [blocks[4]["hash"]]


def test_every_finding_stands_on_a_record() -> None:
    for name in EXPECTED:
        records = {row.place for row in consumed(name).rows}
        assert {told.finding.place for told in consumed(name).findings if isinstance(told, LocatedFinding)} <= records
