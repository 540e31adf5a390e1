"""The Wallaroo connector protocol in the demo: the reference's captures, simulated ones, and some with a fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate, write_pcap
from wirehouse_orchestration.demo.run import Part, column
from wirehouse_pipelines.lake.lake import Source

#: Captures of connections in three dialects; two of them by the reference's encoder.
VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "wallaroo"
#: The morning of the day on which these were captured: one window for all.
START_MS = 1_795_240_800_000
LARGE = SimulatorConfig(
    seed=7,
    connectors=4,
    messages_per_connector=4000,
    reset_share=0.02,
    reconnects=2,
    reopens=2,
    start_time_ms=START_MS,
)
#: Rules that the simulated connectors break, each in a capture of its own.
FAULTS = (
    "credits_overdrawn",
    "message_unknown_stream",
    "cookie_refused",
    "ack_goes_back",
    "oversize_frame",
    "reconnect_without_backoff",
)
#: Between the captures of faults: their connectors have the same addresses.
_APART_MS = 600_000
_KIND = "pcap"


def inputs(inbox: Path, say: Callable[[str], None]) -> Iterator[Source]:
    """Write the captures below `inbox`, a folder a source."""
    for expected in sorted(VECTORS.rglob("expected.json")):
        folder = inbox / f"wallaroo_{expected.parent.name}"
        say(folder.name)
        shutil.copytree(expected.parent, folder, ignore=shutil.ignore_patterns("*.json"))
        ports = {capture["worker_port"] for capture in json.loads(expected.read_text())["captures"]}
        yield Source(folder.name, "wallaroo", _KIND, str(folder), ports=tuple(sorted(ports)))
    small = SimulatorConfig(connectors=1, messages_per_connector=200)
    faults = [
        (name, replace(small, fault=name, seed=number, start_time_ms=START_MS + number * _APART_MS))
        for number, name in enumerate(FAULTS)
    ]
    for folder, captures in (
        (inbox / "wallaroo_simulated", [("connectors", LARGE)]),
        (inbox / "wallaroo_faults", faults),
    ):
        say(folder.name)
        folder.mkdir(parents=True)
        for name, config in captures:
            with (folder / f"{name}.pcap").open("wb") as stream:
                write_pcap(simulate(config), stream)
        yield Source(folder.name, "wallaroo", _KIND, str(folder), ports=(PORT,))


PARTS = (
    Part(
        title="Sessions of connectors",
        statement="""
            SELECT source, dialect, COUNT(*) AS sessions, SUM(CASE WHEN failed THEN 1 ELSE 0 END) AS failed,
              SUM(granted) AS granted, SUM(spent) AS spent
            FROM gold.wallaroo_sessions GROUP BY source, dialect ORDER BY source, dialect
        """,
        columns={name: column(name) for name in ("source", "dialect", "sessions", "failed", "granted", "spent")},
        nothing="no session yet",
    ),
    Part(
        title="Streams that were replayed after a reconnect",
        statement="""
            SELECT source, instance_name, stream_name, last_sent, last_acked, resume_point, replayed
            FROM gold.wallaroo_stream_progress WHERE replayed > 0 ORDER BY replayed DESC, source, instance_name
        """,
        columns={
            "source": column("source"),
            "instance": column("instance_name"),
            "stream": column("stream_name"),
            "last sent": column("last_sent"),
            "last acked": column("last_acked"),
            "resumed at": column("resume_point"),
            "replayed": column("replayed"),
        },
        nothing="none",
        most=6,
    ),
)

#: Queries to try; a shell takes their lines in double quotes.
QUERIES = (
    """SELECT kind, direction, COUNT(*) AS frames FROM silver.wallaroo_messages
    GROUP BY kind, direction ORDER BY frames DESC""",
)
