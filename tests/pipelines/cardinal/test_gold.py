"""Gold against the readable model, in this process without a JVM: streams with every fault, windows cut anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.cardinal_log import Landed, lake_with, landed, windows_of
from tests.support.running import select
from wirehouse_codecs.cardinal.correlation.consumer import consume
from wirehouse_codecs.cardinal.correlation.events import Canonical, Closed, Refused, ReorgRow, Update
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.block import Block
from wirehouse_codecs.cardinal.simulator.simulator import FAULTS, SimulatorConfig, simulate
from wirehouse_pipelines.cardinal import gold, rows
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake

Stream = tuple[list[Landed], CardinalOptions]
pytestmark = pytest.mark.usefixtures("stages_run_here")
MINUTE_MS = 60_000


def run(lake: Lake, streams: Mapping[str, Stream], step: int) -> None:
    """Compute gold, so many windows at once.

    A source has no windows after its last message, because the model doesn't know how time goes on there.
    """
    of_sources = {name: windows_of(records, lake) for name, (records, _) in streams.items()}
    windows = sorted({window for of in of_sources.values() for window in of})
    before: dict[str, Entry] = {}
    for at in range(0, len(windows), step):
        now = windows[at : at + step]
        of_now = {name: tuple(window for window in now if window <= of[-1]) for name, of in of_sources.items()}
        spans = tuple(Span(name, of) for name, of in of_now.items() if of)
        carried = {span.source: before[span.source] for span in spans if span.source in before}
        work = Work(None, lake, spans, carried, ())  # type: ignore[arg-type]
        for table, made in gold.tables(work):
            spark_tables.replace(lake, table, made, work.spans)
        before = {
            name: Entry(rows.STATE, name, now[-1], "", "", "", since, 0, "", 0)
            for name, since in select_carried(lake, now[-1]).items()
        }


def select_carried(lake: Lake, window: str) -> dict[str, str]:
    """By source, the oldest window with state that is alive at the end of `window`."""
    of_chain = [("window_start", "=", window), ("row_kind", "=", "chain")]
    state = DeltaTable(lake.table_path(rows.STATE)).to_pyarrow_table(of_chain, ["source", "carried_from"])
    return {row["source"]: row["carried_from"] for row in state.to_pylist() if row["carried_from"]}


def simulated(**config: Any) -> Stream:
    """A stream of three hours or more. Without topics, regular blocks take the fast path."""
    made = SimulatorConfig(blocks=64, messages_per_block=16, block_interval_ms=3 * MINUTE_MS)
    made = replace(made, **config)
    return landed(simulate(made)), replace(made.options, topics=None, prefixes=None)


BUSY: dict[str, Any] = {"producers": 2, "shuffle": 60, "fork_every": 9, "large_reorg": True}
STREAMS: dict[str, Callable[[], Stream]] = {
    "legal": partial(simulated, seed=1),
    "busy": partial(simulated, seed=2, messages_per_block=40, **BUSY),
    "busy, keys with two values": partial(simulated, seed=3, fault="key_two_values", **BUSY),
    "busy, messages missing": partial(simulated, seed=6, fault="prefix_count_open", **BUSY),
    "early": partial(simulated, seed=5, producers=2, shuffle=400),
    **{name: partial(simulated, seed=7, fault=name) for name in FAULTS},
}


@pytest.fixture(scope="module")
def streams() -> dict[str, Stream]:
    return {name.replace(", ", "-").replace(" ", "_"): make() for name, make in STREAMS.items()}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, streams: dict[str, Stream]) -> Lake:
    """A lake with the log of all streams. Tests copy it."""
    return lake_with(tmp_path_factory.mktemp("log"), "hour", streams)


@pytest.fixture(scope="module")
def model(streams: dict[str, Stream]) -> dict[str, dict[str, Any]]:
    """By source what the readable model says."""
    return {source: said(stream) for source, stream in streams.items()}


def told(lake: Lake, source: str) -> dict[str, Any]:
    """What gold says of a source, as `said` puts it."""

    def of(columns: str, table: str) -> list[tuple[Any, ...]]:
        found = select(lake, f"SELECT {columns} FROM gold.cardinal_{table} WHERE source = '{source}'")
        return sorted((tuple(row.values()) for row in found), key=repr)

    counts = "expected, received, missing, messages, duplicates, record_number, completed_record_number"
    return {
        "blocks": of(f"block_hash, status, judged, {counts}", "batches"),
        "updates": of("block_hash, key, value, operation, record_number", "batch_updates"),
        "chain updates": of("sequence, added, removed, head_hash, record_number", "chain_updates"),
        "chain": of("block_hash, valid_from_ns, valid_to_ns", "chain"),
        "reorgs": of("record_number, depth, new_head, announced, channel, completed", "reorgs"),
        "findings": of("rule, block_hash, message, record_number", "found"),
    }


def said(stream: Stream) -> dict[str, Any]:
    """What the readable model says of a stream."""
    model = consume(*stream)
    outcomes = model.outcomes
    refused = {one.block_hash for one in outcomes if isinstance(one, Refused)}
    judged = {one.block_hash for one in outcomes if isinstance(one, Closed) and one.judged and not one.complete}
    # Of a hash that lives twice the last life counts.
    blocks = {block.block_hash: block for block in model.blocks}
    chain = {(one.block_hash, one.valid_from_ns): one for one in outcomes if isinstance(one, Canonical)}
    reorgs = {one.place.record_number: one for one in outcomes if isinstance(one, ReorgRow)}
    # What is wrong with single messages stands in the log.
    of_log = {(row.place, row.decoded.rule) for row in model.rows}
    found = (one for one in model.findings if (one.finding.place, one.finding.rule) not in of_log)
    return {
        name: sorted(listed, key=repr)
        for name, listed in {
            "blocks": [
                _block(block, block.block_hash in refused, block.block_hash in judged) for block in blocks.values()
            ],
            "updates": [
                (
                    block.block_hash,
                    one.key,
                    one.value,
                    "delete" if one.value is None else "set",
                    one.place.record_number,
                )
                for block in blocks.values()
                for one in block.updates
            ],
            "chain updates": [
                (one.sequence, [*one.added], [*one.removed], one.head_hash, one.place.record_number)
                for one in outcomes
                if isinstance(one, Update)
            ],
            "chain": [(*key, one.valid_to_ns) for key, one in chain.items()],
            "reorgs": [
                (at, one.depth, one.new_head, one.announced, one.channel, one.completed) for at, one in reorgs.items()
            ],
            "findings": [
                (one.finding.rule.id, one.block_hash, one.finding.message, one.finding.place.record_number)
                for one in found
            ],
        }.items()
    }


def _block(block: Block, refused: bool, judged: bool) -> tuple[Any, ...]:
    complete = block.completed_place
    status = "refused" if refused else "incomplete" if complete is None else "complete"
    counts = (
        [{"name": one.name.decode(), "messages": one.messages} for one in of] for of in (block.expected, block.received)
    )
    missing = [{"name": one.name.decode(), "messages": one.messages, "what": one.what} for one in block.missing]
    rest = block.messages, block.duplicates, block.first_place.record_number, complete and complete.record_number
    return block.block_hash, status, judged, *counts, missing, *rest


def check(lake: Lake, model: Mapping[str, dict[str, Any]]) -> None:
    for source, theirs in model.items():
        ours = told(lake, source)
        for name in theirs:
            assert ours[name] == theirs[name], (source, name)


@pytest.mark.property
@pytest.mark.parametrize("step", [100, 1])
def test_gold_says_what_the_readable_model_says(
    tmp_path: Path, streams: dict[str, Stream], log: Lake, model: dict[str, dict[str, Any]], step: int
) -> None:
    lake = replace(log, root=str(tmp_path / "lake"))
    shutil.copytree(log.root, lake.root)
    run(lake, streams, step)
    check(lake, model)
