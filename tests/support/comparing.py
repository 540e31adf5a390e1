"""`wirehouse inspect` against the pipeline: what both say of the same captures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tests.support.inspecting import inspected
from tests.support.running import run, select
from wirehouse_orchestration.terminal import render
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.landing.landing import land
from wirehouse_pipelines.tables import all_tables

#: Columns that only a lake can fill.
LAKE_ONLY = ("source", "window_start", "decoder_version")
#: Kind of row -> source -> its rows as inspect, and as the pipeline, tells them.
Told = dict[str, dict[str, tuple[list[str], list[str]]]]


def told_by_both(session: Any, lake: Lake, left_out: Sequence[str] = ()) -> Told:
    """Land and run every source, each one capture of one protocol, and look into it; without columns `left_out`."""
    protocol = lake.sources[0].protocol
    now_ns = time.time_ns()
    for source in lake.sources:
        land(lake, source, now_ns=now_ns)
    run(session, lake)
    listed = [(kind, f"silver.{protocol}_{kind}s") for kind in ("message", "connection")]
    listed += [("quarantine", f"silver.{protocol}_quarantine"), ("violation", "gold.violations")]
    tables = {kind: table for kind, table in listed if table in all_tables()}
    told: Told = {kind: {source.name: ([], []) for source in lake.sources} for kind in tables}

    def line(kind: str, row: dict[str, Any]) -> str:
        """A row by the columns of its table: of a violation inspect prints the protocol's own, and no others."""
        names = {column.name for column in all_tables()[tables[kind]].declared}
        names -= {*LAKE_ONLY, *left_out}
        return render.json_line({name: row.get(name) for name in sorted(names)})

    for source in lake.sources:
        for kind, row in inspected(
            source.path, protocol, now_ns, port=source.ports[0] if len(source.ports) == 1 else None
        ):
            if kind in tables:
                told[kind][source.name][0].append(line(kind, row))
    for kind, table in tables.items():
        for row in select(lake, f"SELECT * FROM {table}"):
            told[kind][row["source"]][1].append(line(kind, row))
    return told


def assert_the_same_is_said(told: Told) -> None:
    """Of every kind there are rows, and both tell the same; else say which are told by one alone."""
    for kind, sources in told.items():
        assert any(printed for printed, _ in sources.values()), kind
        differing = {}
        for name, (printed, stored) in sources.items():
            if sorted(printed) != sorted(stored):
                only = [row for row in printed if row not in stored], [row for row in stored if row not in printed]
                differing[name] = {"only inspect": only[0][:3], "only the pipeline": only[1][:3]}
        assert differing == {}, kind
