"""What the rows of the log say to the fold: Spark chooses and orders them as the readable functions do."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.hiero_captures import judge
from wirehouse_codecs.hiero.correlation.events import EVENT_COLUMNS, event_of, order_of
from wirehouse_codecs.hiero.log.rows import BLOCK, CALL, SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.simulate.script import Disturbances
from wirehouse_pipelines.hiero import gold

pytestmark = pytest.mark.spark


def test_spark_orders_events_as_the_readable_function(spark: Any) -> None:
    rows: list[dict[str, Any]] = []
    for profile in ("A", "B"):
        config = SimulatorConfig(profile=profile, blocks=12, block_bytes=1500, set_bytes=600, incident_rounds=2)
        lossy = Disturbances(1, lost=0.02, reordered=0.05, repeated=0.05)
        for kind, listed in judge(simulate(config, lossy), HieroOptions(profile=profile)).rows.items():
            rows += ({**row, "source": profile, "window_start": "0"} for row in listed if kind != "state")
    kept = [row for row in rows if row["row_kind"] in (MESSAGE, CALL, BLOCK)]
    expected = [
        (row["source"], *event.where, event.kind, event.call)
        for row in sorted(kept, key=lambda row: (row["source"], order_of(row)))
        if (event := event_of(row)) is not None
    ]
    assert {kind for *_, kind, _ in expected} >= {"opened", "closed", "missed", "block", "block_items", "block_end"}

    Random(1).shuffle(rows)
    log = spark.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA))
    work: Any = SimpleNamespace(read_members=lambda table, row_kind: log, spans=())
    ordered = gold._Run(work)._events.orderBy("source", *gold._ORDER).select("source", *EVENT_COLUMNS).toArrow()
    events = [(row["source"], event_of(row)) for row in ordered.to_pylist()]
    assert [(source, *event.where, event.kind, event.call) for source, event in events if event] == expected
    assert all(event is not None for _, event in events)
