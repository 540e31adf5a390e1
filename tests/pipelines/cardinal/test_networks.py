"""Random legal networks in a lake, cut into files and windows: no rule is broken, and gold says what was meant."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.cardinal_networks import Network, network
from tests.support.running import land, run, select
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
BEGIN_NS, HOURS = 1_700_000_000 * 10**9, 2
NETWORKS = {seed: sent for seed, sent in ((seed, network(seed)) for seed in range(12)) if not sent.apart}


def write(sent: Network, folder: Path, random: Random) -> None:
    """The records in files of any length; they arrive evenly over some hours."""
    step_ns = HOURS * 3600 * 10**9 // len(sent.records) // 10**6 * 10**6
    lines = [message._replace(at_ns=BEGIN_NS + at * step_ns).line + "\n" for at, message in enumerate(sent.records)]
    cuts = sorted(random.sample(range(1, len(lines)), 4))
    for at, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(lines)], strict=True)):
        (folder / f"{at}.jsonl").write_text("".join(lines[first:last]))


@pytest.fixture(scope="module")
def lake(in_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("networks")
    sources = []
    for seed, sent in NETWORKS.items():
        (folder / str(seed)).mkdir()
        write(sent, folder / str(seed), Random(seed))
        sources.append(Source(f"n{seed}", "cardinal", "messages", str(folder / str(seed) / "*.jsonl"), sent.options))
    lake = Lake(str(folder / "lake"), Windows("hour", "2023-11-14T22"), tuple(sources))
    land(lake)
    run(in_process, lake)
    return lake


def by_source(lake: Lake, statement: str) -> dict[int, list[dict[str, Any]]]:
    rows = defaultdict(list)
    for row in select(lake, statement):
        rows[int(row["source"][1:])].append(row)
    return rows


def test_no_rule_is_broken(lake: Lake) -> None:
    assert select(lake, "SELECT source, rule, message FROM gold.violations WHERE severity <> 'note'") == []


def test_every_block_is_complete_with_what_it_sets_and_deletes(lake: Lake) -> None:
    batches = by_source(lake, "SELECT source, block_hash, status FROM gold.cardinal_batches")
    updates = by_source(lake, "SELECT source, block_hash, key, value, operation FROM gold.cardinal_batch_updates")
    for seed, sent in NETWORKS.items():
        assert {row["block_hash"]: row["status"] for row in batches[seed]} == dict.fromkeys(sent.blocks, "complete")
        told: dict[bytes, dict[bytes, Any]] = {block_hash: {} for block_hash in sent.blocks}
        for row in updates[seed]:
            assert (row["operation"] == "delete") == (row["value"] is None)
            told[row["block_hash"]][row["key"]] = row["value"]
        assert told == {block_hash: sent.content(block_hash) for block_hash in sent.blocks}


def test_the_chain_and_its_updates_are_those_that_were_meant(lake: Lake) -> None:
    canonical = by_source(lake, "SELECT source, block_hash FROM gold.cardinal_chain WHERE canonical ORDER BY number")
    updates = by_source(lake, "SELECT source, added, removed FROM gold.cardinal_chain_updates ORDER BY sequence")
    for seed, sent in NETWORKS.items():
        assert [row["block_hash"] for row in canonical[seed]] == sent.chain
        chain: set[bytes] = set()
        for update in updates[seed]:
            chain = (chain - set(update["removed"])) | set(update["added"])
        assert chain == set(sent.chain)
