"""The Hiero block node in the demo: captured calls, block files, a simulated network, and some with a fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from wirehouse_codecs.hiero.profiles import DEFAULT_PORT
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate, write_pcap
from wirehouse_orchestration.demo.run import Part, column
from wirehouse_pipelines.lake.lake import Source

#: Captures of clients and servers made from the published schemas, and block files of consensus nodes.
VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "hiero"
CAPTURES = ("old/behind_endstream_backoff", "new/v3_resend_not_from_next")
BLOCKS = "cn078_tss_schnorr"
#: The morning of the day on which these were captured: one window for all.
START_MS = 1_795_240_800_000
NETWORK = SimulatorConfig(seed=7, blocks=40, block_bytes=6_000, start_time_ms=START_MS)
#: Rules that a node, publisher or subscriber breaks, each in a network of its own.
SHOWN = ("structure", "backoff", "last_known", "node_error_all")
_KIND = "pcap"


def inputs(inbox: Path, say: Callable[[str], None]) -> Iterator[Source]:
    """Write the captures below `inbox`, a folder a source."""
    for name in CAPTURES:
        path = VECTORS / f"{name}.pcap"
        folder = inbox / f"hiero_{path.stem}"
        say(folder.name)
        folder.mkdir(parents=True)
        shutil.copy(path, folder)
        expected = json.loads(path.with_suffix(".expected.json").read_text())
        ports = tuple(sorted({call["server_port"] for call in expected["rpcs"]}))
        yield Source(folder.name, "hiero", _KIND, str(folder), ports=ports)
    folder = inbox / "hiero_blocks"
    say(folder.name)
    folder.mkdir(parents=True)
    for path in sorted((VECTORS / "blocks").glob(f"{BLOCKS}_*")):
        shutil.copy(path, folder)
    yield Source(folder.name, "hiero", "blocks", str(folder))
    small = replace(NETWORK, blocks=8)
    faults = {f"hiero_{name}": replace(small, fault=name, seed=number) for number, name in enumerate(SHOWN)}
    for name, config in {"hiero_simulated": NETWORK, **faults}.items():
        say(name)
        (inbox / name).mkdir(parents=True)
        with (inbox / name / "network.pcap").open("wb") as stream:
            write_pcap(simulate(config), stream)
        yield Source(name, "hiero", _KIND, str(inbox / name), ports=(DEFAULT_PORT,))


PARTS = (
    Part(
        title="Calls of publishers",
        statement="""
            SELECT source, publisher, COUNT(*) AS calls, SUM(CASE WHEN failed THEN 1 ELSE 0 END) AS failed,
              SUM(headers) AS offered, SUM(acknowledged) AS acknowledged, COUNT(DISTINCT node) AS nodes
            FROM gold.hiero_publisher_sessions GROUP BY source, publisher ORDER BY source, publisher
        """,
        columns={
            name: column(name)
            for name in ("source", "publisher", "calls", "failed", "offered", "acknowledged", "nodes")
        },
        nothing="no call yet",
        most=8,
    ),
    Part(
        title="Nodes that were behind",
        statement="""
            SELECT source, node, offered, reported, recorded_target, last_available, fetched, state
            FROM gold.hiero_catch_ups ORDER BY source, arrived_at_ns
        """,
        columns={
            "source": column("source"),
            "node": column("node"),
            "offered": column("offered"),
            "reported": column("reported"),
            "target": column("recorded_target"),
            "available": column("last_available"),
            "fetched": column("fetched"),
            "state": column("state"),
        },
        nothing="none",
        most=6,
    ),
)

#: Queries to try; a shell takes their lines in double quotes.
QUERIES = (
    """SELECT block_number, items, item_bytes, root_layout, block_root, chains
    FROM gold.hiero_blocks WHERE source = 'hiero_blocks' ORDER BY block_number""",
)
