"""Bamboo in the demo: the shared sessions, logs with a fault as files, and simulated peers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from wirehouse_codecs.bamboo.simulator.simulator import PORT, SimulatorConfig, simulate, write_pcap
from wirehouse_orchestration.demo.run import Part, column
from wirehouse_pipelines.lake.lake import Source

#: Sessions and files of entries, of which most break a rule.
VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "bamboo"
SESSIONS_PORT = 7070
#: The morning of the day on which the sessions were captured, the first one of the lake: one window for all.
START_MS = 1_699_956_000_000
PEERS = SimulatorConfig(seed=7, connections=3, logs=2, entries=150, live_share=0.0, start_time_ms=START_MS)


def inputs(inbox: Path, say: Callable[[str], None]) -> Iterator[Source]:
    """Write the captures below `inbox`, a folder a source."""
    say("bamboo_sessions")
    # All have the same addresses, and go on at the same moment: as captures of one source they would be one connection.
    for path in sorted((VECTORS / "sessions").glob("*.pcap")):
        folder = inbox / f"bamboo_{path.stem}"
        folder.mkdir(parents=True)
        shutil.copy(path, folder)
        yield Source(folder.name, "bamboo", "pcap", str(folder), ports=(SESSIONS_PORT,))
    files = inbox / "bamboo_files"
    say(files.name)
    files.mkdir(parents=True)
    for path in sorted((VECTORS / "logs").glob("*.jsonl")):
        shutil.copy(path, files)
    yield Source(files.name, "bamboo", "entries", str(files))
    simulated = inbox / "bamboo_simulated"
    say(simulated.name)
    simulated.mkdir(parents=True)
    with (simulated / "peers.pcap").open("wb") as stream:
        write_pcap(simulate(PEERS), stream)
    yield Source(simulated.name, "bamboo", "pcap", str(simulated), ports=(PORT,))


PARTS = (
    Part(
        title="Logs and how far they are verified",
        statement="""
            SELECT source, author, log_id, entries, verified_up_to, length, end_of_log, forked_at, missing_entries
            FROM gold.bamboo_logs ORDER BY entries DESC, source, author, log_id
        """,
        columns={
            "source": column("source"),
            "author": column("author", 8),
            "log": column("log_id"),
            "entries": column("entries"),
            "verified up to": column("verified_up_to"),
            "length": column("length"),
            "end": column("end_of_log"),
            "forked at": column("forked_at"),
            "missing": column("missing_entries"),
        },
        nothing="no log yet",
        most=8,
    ),
    Part(
        title="Entries that are not valid",
        statement="""
            SELECT source, author, log_id, seq, verdict, reason FROM gold.bamboo_entries
            WHERE verdict = 'invalid' ORDER BY source, reason, seq
        """,
        columns={
            "source": column("source"),
            "author": column("author", 8),
            "log": column("log_id"),
            "entry": column("seq"),
            "reason": column("reason"),
        },
        nothing="none",
        most=6,
    ),
)

#: Queries to try; a shell takes their lines in double quotes.
QUERIES = (
    """SELECT proposer, log_id, state, outcome, metadata, payloads, raw_bytes, compressed_bytes
    FROM gold.bamboo_proposals ORDER BY raw_bytes DESC""",
)
