"""The Ockam stream service in the demo: the reference's capture, simulated ones, and some with a fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from wirehouse_codecs.ockam.simulator.service import PORT
from wirehouse_codecs.ockam.simulator.simulator import FAULTS, SimulatorConfig, simulate, write_pcap
from wirehouse_orchestration.demo.run import Part, column
from wirehouse_pipelines.lake.lake import Source

#: Captures of a service and its clients; `ref_elixir_bare` is of the reference.
VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "ockam" / "sessions"
SESSIONS = ("ref_elixir_bare", "spec_gaps", "bad_consumer_hole")
#: The morning of the day on which these were captured: one window for all.
START_MS = 1_795_240_800_000
LARGE = SimulatorConfig(
    seed=7, messages_per_publisher=1000, restarts=1, service_restarts=1, index_gap_share=0.02, start_time_ms=START_MS
)
#: Rules that the simulated clients and services break, each in a capture of its own.
SHOWN = ("duplicate_index", "address_not_from_init", "too_many_messages", "saved_index_lowered", "data_changed")
#: Between the captures of faults: their clients have the same addresses.
_APART_MS = 600_000
_KIND = "pcap"


def inputs(inbox: Path, say: Callable[[str], None]) -> Iterator[Source]:
    """Write the captures below `inbox`, a folder a source."""
    for name in SESSIONS:
        folder = inbox / f"ockam_{name}"
        say(folder.name)
        folder.mkdir(parents=True)
        shutil.copy(VECTORS / f"{name}.pcap", folder)
        port = json.loads((VECTORS / f"{name}.expected.json").read_text())["server_port"]
        yield Source(folder.name, "ockam", _KIND, str(folder), ports=(port,))
    small = SimulatorConfig(publishers=1, consumers=1, messages_per_publisher=50)
    faults = [
        (name, replace(small, fault=name, seed=number, start_time_ms=START_MS + number * _APART_MS))
        for number, name in enumerate(name for name in SHOWN if name in FAULTS)
    ]
    for folder, captures in (
        (inbox / "ockam_simulated", [("clients", LARGE)]),
        (inbox / "ockam_faults", faults),
    ):
        say(folder.name)
        folder.mkdir(parents=True)
        for name, config in captures:
            with (folder / f"{name}.pcap").open("wb") as stream:
                write_pcap(simulate(config), stream)
        yield Source(folder.name, "ockam", _KIND, str(folder), ports=(PORT,))


PARTS = (
    Part(
        title="Streams",
        statement="""
            SELECT source, stream_name, "partition", incarnation, first_index, last_index, confirmed, delivered
            FROM gold.ockam_streams ORDER BY confirmed DESC, source, stream_address
        """,
        columns={
            "source": column("source"),
            "stream": column("stream_name"),
            "partition": column("partition"),
            "incarnation": column("incarnation"),
            "first": column("first_index"),
            "last": column("last_index"),
            "confirmed": column("confirmed"),
            "delivered": column("delivered"),
        },
        nothing="no stream yet",
        most=8,
    ),
    Part(
        title="Clients that lag behind",
        statement="""
            SELECT source, client_id, stream_name, "partition", "position", latest, lag, redelivered
            FROM gold.ockam_stream_indexes WHERE lag > 0 ORDER BY lag DESC, source, client_id, stream_name
        """,
        columns={
            "source": column("source"),
            "client": column("client_id"),
            "stream": column("stream_name"),
            "partition": column("partition"),
            "next": column("position"),
            "latest": column("latest"),
            "lag": column("lag"),
            "delivered again": column("redelivered"),
        },
        nothing="none",
        most=6,
    ),
)

#: Queries to try; a shell takes their lines in double quotes.
QUERIES = (
    """SELECT kind, client_id, stream_name, first_index, last_index, messages
    FROM gold.ockam_delivery_holes ORDER BY messages DESC""",
)
