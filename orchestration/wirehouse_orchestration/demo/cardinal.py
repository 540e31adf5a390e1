"""The demo's inputs of Cardinal Streams, and what its summary shows of their tables.

Inputs are streams of the reference producer (tests/vectors), a larger simulated stream, and simulated streams with one
fault each. `inputs` writes them as captures and returns a source for each; `PARTS` are the queries of the summary.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wirehouse_codecs.cardinal.simulator.simulator import SimulatorConfig, simulate, write_jsonl
from wirehouse_orchestration.demo.run import Part, column
from wirehouse_orchestration.terminal.render import terminal
from wirehouse_pipelines.lake.lake import Source

#: Streams made by the reference producer, with the options of the consumer that read them.
VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "cardinal"
LARGE = SimulatorConfig(
    seed=7,
    blocks=320,
    messages_per_block=100,
    producers=2,
    shuffle=400,
    fork_every=24,
    large_reorg=True,
    reorg_threshold=32,
)
#: Rules that the simulated streams break, each a stream of its own; the first four leave a block incomplete for good.
FAULTS = (
    "prefix_count_open",
    "subbatch_items_missing",
    "subbatch_header_missing",
    "no_batch_message",
    "reorg_unannounced",
    "reorg_not_completed",
    "topic_wrong",
)
_KIND = "messages"


def inputs(inbox: Path, say: Callable[[str], None]) -> Iterator[Source]:
    """Write the captures below `inbox`, a folder for each source."""
    for expected in sorted(VECTORS.rglob("expected.json")):
        folder = inbox / f"reference_{expected.parent.name}"
        say(folder.name)
        folder.mkdir(parents=True)
        shutil.copy(expected.with_name("messages.jsonl"), folder)
        yield Source(folder.name, "cardinal", _KIND, str(folder), _options(expected))
    faults = {f"fault_{name}": SimulatorConfig(blocks=40, messages_per_block=20, fault=name) for name in FAULTS}
    for name, simulated in ({"simulated": LARGE} | faults).items():
        say(name)
        folder = inbox / name
        folder.mkdir(parents=True)
        write_jsonl(simulate(simulated), folder / "messages.jsonl")
        yield Source(name, "cardinal", _KIND, str(folder), json.loads(simulated.options.canonical()))


def _options(expected: Path) -> dict[str, Any]:
    consumer = json.loads(expected.read_text())["consumer_config"]
    start = {"number": consumer["last_number"], "hash": consumer["last_hash"], "weight": consumer["last_weight"]}
    return {name: consumer[name] for name in ("tracked_prefixes", "reorg_threshold")} | {"start": start}


def _missing(row: Mapping[str, Any]) -> str:
    """Why a block is incomplete, the first few of its reasons; hashes in names cut short."""
    listed = [item["what"] + (f" of {_short(item['name'])}" if item["name"] else "") for item in row["missing"] or ()]
    return "; ".join(listed[:3]) + (f"; {len(listed) - 3} more" if len(listed) > 3 else "")


def _short(name: str) -> str:
    return terminal(re.sub(r"[0-9a-f]{20,}", lambda found: f"{found[0][:8]}…", name))


def _how(row: Mapping[str, Any]) -> str:
    if not row["announced"]:
        return "found by weight"
    return "announced" if row["completed"] else "announced, not completed"


PARTS = (
    Part(
        title="Head of each chain",
        statement="""
            SELECT source, head_number, head_hash, updates, blocks FROM (
              SELECT source, head_number, head_hash,
                COUNT(*) OVER (PARTITION BY source) AS updates,
                SUM(cardinality(added)) OVER (PARTITION BY source) AS blocks,
                ROW_NUMBER() OVER (PARTITION BY source ORDER BY sequence DESC) AS newest
              FROM gold.cardinal_chain_updates
            ) AS updates WHERE newest = 1 ORDER BY blocks DESC, source
        """,
        columns={
            "source": column("source"),
            "head": column("head_number"),
            "hash": column("head_hash", 16),
            "updates": column("updates"),
            "blocks added": column("blocks"),
        },
        nothing="no chain yet",
    ),
    Part(
        title="Reorgs",
        statement="SELECT * FROM gold.cardinal_reorgs ORDER BY depth DESC, source, arrived_at_ns",
        columns={
            "source": column("source"),
            "how": _how,
            "depth": column("depth"),
            "common ancestor": column("ancestor_number"),
            "old head": column("old_head", 16),
            "new head": column("new_head", 16),
        },
        nothing="none",
    ),
    Part(
        title="Blocks that never completed, and what they wait for",
        statement="""
            SELECT source, number, block_hash, missing FROM gold.cardinal_batches
            WHERE status = 'incomplete' ORDER BY source, number
        """,
        columns={
            "source": column("source"),
            "block": column("number"),
            "hash": column("block_hash", 16),
            "missing": _missing,
        },
        nothing="all blocks are complete",
    ),
)

#: Queries to try; a shell takes their lines in double quotes.
QUERIES = (
    """SELECT source, status, COUNT(*) AS blocks, SUM(duplicates) AS duplicates
    FROM gold.cardinal_batches GROUP BY source, status ORDER BY source""",
    """SELECT number, block_hash, valid_from_ns, valid_to_ns FROM gold.cardinal_chain
    WHERE source = 'reference_d1_depths' AND NOT canonical ORDER BY number LIMIT 10""",
    """SELECT source, rule, message FROM gold.violations WHERE severity = 'violation' LIMIT 10""",
)
