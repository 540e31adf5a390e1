"""The pipeline against the readable model: the same rows for every rule broken, in sets and by the exact fold."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.support.running import land, run, select
from wirehouse_codecs.cardinal.correlation.consumer import Consumed, consume
from wirehouse_codecs.cardinal.correlation.events import Canonical, Refused, ReorgRow, Update
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_codecs.cardinal.session.block import Block
from wirehouse_codecs.cardinal.simulator.simulator import FAULTS, SimulatorConfig, simulate, write_jsonl
from wirehouse_codecs.core.rules import Place
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
PLACE = 'arrived_at_ns, capture_arrived_at_ns, capture_id, record_number, topic, "partition", "offset"'


def _configs() -> dict[str, SimulatorConfig]:
    """A stream for each fault, and legal ones: in order, and as a busy day looks."""
    busy = {"fork_every": 9, "producers": 2, "shuffle": 60, "large_reorg": True}
    faults = {f"fault-{name}": SimulatorConfig(seed=7, blocks=40, messages_per_block=16, fault=name) for name in FAULTS}
    return {
        "legal": SimulatorConfig(seed=1, blocks=40, messages_per_block=16),
        "busy": SimulatorConfig(seed=2, blocks=60, messages_per_block=40, **busy),  # type: ignore[arg-type]
        "busy-fault": SimulatorConfig(seed=3, blocks=90, messages_per_block=20, fault="key_two_values", **busy),  # type: ignore[arg-type]
    } | faults


def _options(config: SimulatorConfig, *, topics: bool) -> dict[str, Any]:
    """With topics and prefixes every block takes the exact fold; without them the regular ones are made in sets."""
    options = json.loads(config.options.canonical())
    return options if topics else {key: options[key] for key in options if key not in ("topics", "prefixes")}


class Told:
    """What the lake says of each source, and what the model says of the same records."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.records = self._by_source(
            f"select source, key, value, {PLACE} from bronze.messages order by source, record_number"
        )
        self.violations = self._by_source("select * from gold.violations")
        self.batches = self._by_source("select * from gold.cardinal_batches")
        self.updates = self._by_source("select * from gold.cardinal_batch_updates")
        self.chain_updates = self._by_source("select * from gold.cardinal_chain_updates order by source, sequence")
        self.chain = self._by_source("select * from gold.cardinal_chain")
        self.reorgs = self._by_source("select * from gold.cardinal_reorgs")

    def _by_source(self, statement: str) -> dict[str, list[dict[str, Any]]]:
        rows = defaultdict(list)
        for row in select(self.lake, statement):
            rows[row.pop("source")].append(row)
        return rows

    def model(self, source: str) -> Consumed:
        options = CardinalOptions.from_mapping(self.lake.source(source).options)
        return consume(
            (
                (Place(**{name: row[name] for name in Place.__dataclass_fields__}), row["key"], row["value"])
                for row in self.records[source]
            ),
            options,
        )


@pytest.fixture(scope="module")
def told(in_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("model")
    sources = []
    for name, config in _configs().items():
        path = folder / f"{name}.jsonl"
        write_jsonl(simulate(config), path)
        for way in ("fold", "sets"):
            options = _options(config, topics=way == "fold")
            sources.append(Source(f"{name}-{way}", "cardinal", "messages", str(path), options))
    lake = Lake(str(folder / "lake"), Windows("day", "2023-11-14"), tuple(sources))
    land(lake)
    run(in_process, lake)
    return Told(lake)


SOURCES = [f"{name}-{way}" for name in _configs() for way in ("fold", "sets")]


def _last(blocks: tuple[Block, ...]) -> dict[bytes, Block]:
    return {block.block_hash: block for block in blocks}


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_rules_are_found_at_the_same_places(told: Told, source: str) -> None:
    model = told.model(source)
    ours = Counter((row["rule"], row["record_number"], row["message"]) for row in told.violations[source])
    theirs = Counter((f.finding.rule.id, f.finding.place.record_number, f.finding.message) for f in model.findings)
    assert ours == theirs


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_blocks_are_complete_with_the_same_counts(told: Told, source: str) -> None:
    model = told.model(source)
    refused = {outcome.block_hash for outcome in model.outcomes if isinstance(outcome, Refused)}
    ours = {row["block_hash"]: row for row in told.batches[source]}
    theirs = _last(model.blocks)
    assert set(ours) == set(theirs)
    for block_hash, block in theirs.items():
        row, complete = ours[block_hash], block.completed_place
        status = "refused" if block_hash in refused else "complete" if complete else "incomplete"
        assert (
            row["status"],
            row["messages"],
            row["duplicates"],
            row["record_number"],
            row["completed_record_number"],
        ) == (
            status,
            block.messages,
            block.duplicates,
            block.first_place.record_number,
            complete and complete.record_number,
        )
        for column, counts in (("expected", block.expected), ("received", block.received)):
            assert row[column] == [{"name": c.name.decode(), "messages": c.messages} for c in counts], column
        assert row["missing"] == [
            {"name": m.name.decode(), "messages": m.messages, "what": m.what} for m in block.missing
        ]


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_keys_are_set_and_deleted(told: Told, source: str) -> None:
    ours = {
        (row["block_hash"], row["key"], row["operation"]): (row["value"], row["record_number"])
        for row in told.updates[source]
    }
    theirs = {
        (block.block_hash, update.key, "delete" if update.value is None else "set"): (
            update.value,
            update.place.record_number,
        )
        for block in _last(told.model(source).blocks).values()
        for update in block.updates
    }
    assert len(ours) == len(told.updates[source])
    assert ours == theirs


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_chain_is_told(told: Told, source: str) -> None:
    outcomes = told.model(source).outcomes
    updates = [
        (o.sequence, list(o.added), list(o.removed), o.place.record_number) for o in outcomes if isinstance(o, Update)
    ]
    assert [
        (r["sequence"], r["added"], r["removed"], r["record_number"]) for r in told.chain_updates[source]
    ] == updates
    canonical = {(o.block_hash, o.valid_from_ns): o.valid_to_ns for o in outcomes if isinstance(o, Canonical)}
    assert {(r["block_hash"], r["valid_from_ns"]): r["valid_to_ns"] for r in told.chain[source]} == canonical
    reorgs = {
        o.place.record_number: (o.depth, o.new_head, o.announced, o.channel, o.completed)
        for o in outcomes
        if isinstance(o, ReorgRow)
    }
    assert {
        r["record_number"]: (r["depth"], r["new_head"], r["announced"], r["channel"], r["completed"])
        for r in told.reorgs[source]
    } == reorgs


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_fault_is_found_by_its_name(told: Told, rule: Any) -> None:
    found = {row["rule"]: row["severity"] for row in told.violations[f"fault-{rule.name}-fold"]}
    assert found[rule.id] == rule.severity.value


def test_nothing_is_found_in_legal_streams(told: Told) -> None:
    assert told.violations["legal-fold"] == told.violations["legal-sets"] == []
    assert {row["severity"] for row in told.violations["busy-fold"]} <= {"note"}


def test_regular_blocks_are_made_in_sets(told: Told) -> None:
    """Both ways say the same of every stream."""
    for name in ("legal", "busy", "busy-fault"):
        ours, theirs = (sorted(map(repr, told.updates[f"{name}-{way}"])) for way in ("sets", "fold"))
        assert ours == theirs
