"""Gold of random networks that keep to the protocol: what it has of each log is what the model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.codecs.bamboo.correlation.test_networks import rows_of
from tests.pipelines.bamboo.test_gold import over_hours, run_gold, written_log
from tests.support.bamboo_networks import SKIPS, Coverage, Network
from tests.support.running import select
from tests.support.searches import fast_first


def numbers(spans: list[dict[str, Any]] | None) -> set[int]:
    return {seq for one in spans or () for seq in range(int(one["first"]), int(one["last"]) + 1)}


@pytest.mark.parametrize("seed", fast_first(range(4_000, 4_200), 4, most=10))
def test_coverage_is_that_of_the_model(tmp_path: Path, stages_run_here: None, seed: int) -> None:
    network = Network(seed)
    lake, windows = written_log(tmp_path, {"net": over_hours("net", rows_of(network, None))})
    run_gold(lake, windows, 2)
    found = {
        (row["author"], int(row["log_id"])): Coverage(
            numbers(row["known"]),
            numbers(row["verified"]),
            numbers(row["payloads"]),
            tuple(row[name] for name in SKIPS),
            set(row["served_by"]),
        )
        for row in select(lake, "SELECT * FROM gold.bamboo_coverage")
    }
    assert found == network.coverage()
