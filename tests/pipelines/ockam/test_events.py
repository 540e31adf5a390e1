"""What messages say to the folds: by Spark's expressions the same as by the readable function, in the same order."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.support.landed import landed_packets
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.ockam.correlation.log_events import EVENT_COLUMNS, Heard, events_in
from wirehouse_codecs.ockam.log.log import SCHEMA, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.script import Disturbances
from wirehouse_pipelines.ockam import gold

pytestmark = pytest.mark.spark
CALM = SimulatorConfig(
    messages_per_publisher=40, index_gap_share=0.2, resend_share=0.2, restarts=2, service_restarts=1, retained=12
)
FAULTS = ("payload", "data_changed", "saved_index_lowered", "index_never_confirmed", "address_not_from_init")
#: By the source's name; what is lost leaves answers unsure and messages missed.
CAPTURES = {
    "calm": (CALM, None),
    "lossy": (replace(CALM, seed=1, dialect="cbor32"), Disturbances(1, lost=0.03, reordered=0.02, repeated=0.02)),
    "specified": (replace(CALM, seed=2, names="specification"), Disturbances(2, lost=0.01)),
    **{fault: (replace(CALM, fault=fault, messages_per_publisher=5), None) for fault in FAULTS},
}
#: By source and what its key is made of.
Said = dict[tuple[str, ...], list[str]]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """As gold._ORDER: what one packet let go of stands by side and byte."""
    place = row["arrived_at_ns"], row["record_number"], row["direction"] == "client", row["byte_start"]
    return row["source"], *place


def test_expressions_give_the_events_of_the_readable_function(spark: Any) -> None:
    rows: list[dict[str, Any]] = []
    for name, (config, disturbances) in CAPTURES.items():
        captured = landed_packets(simulate(config, disturbances))
        told = tcp_inspection.read(captured, starter(OckamOptions()), SCHEMA)
        rows += (row | {"source": name, "window_start": "0"} for row in told)
    expected: Said = defaultdict(list)
    heard: dict[str, Heard] = defaultdict(Heard)
    for row in sorted(rows, key=_order):
        heard[row["source"]].take(row)
    for source, each in heard.items():
        for _, _, key, event in each.placed():
            expected[source, *map(str, json.loads(key))].append(repr(event))

    log = spark.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA)).withColumn("seen_by", F.lit(""))
    work: Any = SimpleNamespace(read_members=lambda table, row_kind: log, services={}, members=list, before={})
    said = gold._Run(work)._said.withColumn("open_pushes", F.lit(None)).orderBy("source", "key", *gold._ORDER)
    found: Said = defaultdict(list)
    for batch in said.toArrow().to_batches():
        keys = zip(*(batch.column(name).to_pylist() for name in ("source", "key")), strict=True)
        for whose, event in zip(keys, events_in(batch.select(EVENT_COLUMNS)), strict=True):
            found[whose[0], *map(str, json.loads(whose[1]))].append(repr(event))

    assert sum(map(len, found.values())) > 1000
    assert {event.partition("(")[0] for events in found.values() for event in events} == {
        *("Created", "Init", "Stored", "Replied", "Asked", "Delivered", "Saved", "Got", "Partial")
    }
    for whose, events in expected.items():
        assert found[whose] == events, whose
    assert set(found) == set(expected)
