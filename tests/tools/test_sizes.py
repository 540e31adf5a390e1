"""What a lake needs at a size: the arithmetic, and what it takes a message for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from infra.tools import sizes
from infra.tools.bench import runner, wallaroo
from wirehouse_pipelines.lake.protocols import PROTOCOLS

#: Much is tried.
pytestmark = pytest.mark.property

PAGE = """# Benchmarks

## A protocol

Measured on 2026-11-21 with `--rounds 3`: 2 cores, x86_64.

| layer | frames | seconds | frames/s | floor |
|---|---|---|---|---|
| bronze.segments | 1,000 | 2.6 | 9,000 | 1.1 |
| silver.wallaroo | 1,000 | 10.6 | 3,000 | 14.5 |
| gold.wallaroo | 1,000 | 7.5 | 3,000 | 17.9 |
| bronze.segments | 10,000 | 2.6 | 4,000 | 1.1 |
"""


def test_rates_are_those_of_a_core_at_the_largest_size() -> None:
    assert dict(sizes.rates(PAGE)) == {"wallaroo": {"bronze": 2_000, "silver": 1_500, "gold": 1_500}}


def test_cores_are_what_comes_in_by_what_one_does() -> None:
    (need,) = sizes.needs(sizes.DAY_SECONDS * wallaroo.UNIT_BYTES * 3_000 / sizes.TB, PAGE)
    assert need.units == pytest.approx(3_000)
    assert need.cores == pytest.approx({"bronze": 1.5, "silver": 2, "gold": 2})
    # Half of the time they are idle.
    assert need.total == 11


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_unit_has_so_many_bytes_in_a_capture(name: str, tmp_path: Path) -> None:
    measured = import_module(f"infra.tools.bench.{name}")
    units = max(20, measured.INCREMENT // 4)
    path, _ = measured.capture(tmp_path, units, runner.START_MS)
    assert path.stat().st_size / units == pytest.approx(measured.UNIT_BYTES, rel=0.1)
