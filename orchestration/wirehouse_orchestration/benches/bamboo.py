"""Bamboo in `make bench`: logs replicated over 20 connections; beside it the bare checks of their signatures."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nacl.exceptions
import nacl.signing

from wirehouse_codecs.bamboo.entries import AUTHOR_BYTES, SIGNATURE_BYTES
from wirehouse_codecs.bamboo.simulator import PORT, SimulatorConfig, entries, simulate, write_pcap
from wirehouse_orchestration.bench import START_MS, Layer, seconds_of
from wirehouse_pipelines.lake import Lake, Source

LAYERS = {"bronze.segments": 1.2, "silver.bamboo": 2.0, "gold.bamboo": 2.0}
UNIT = "entries"
SIZES = (200_000, 2_000_000)
FIXED = 1_000
INCREMENT = 20_000
INPUT = (
    "Logs of entries with payloads of 200 bytes, half of them compressed, replicated over 20 connections, two logs "
    "each, in segments of 1,448 bytes. The floor of copying says little of gold: it checks a signature an entry."
)

_CONNECTIONS, _LOGS = 20, 2
#: Signatures that are checked for the measure.
_CHECKED = 40_000
#: What gold may take of the time of bare checks on all cores.
_TO_REACH = 1.25


def _config(size: int, start_ms: int) -> SimulatorConfig:
    return SimulatorConfig(
        seed=1 + start_ms % 1_000,
        connections=_CONNECTIONS,
        logs=_LOGS,
        entries=max(1, size // (_CONNECTIONS * _LOGS)),
        live_share=0.0,
        ways=0,
        forks=0,
        start_time_ms=start_ms,
    )


def capture(folder: Path, size: int, start_ms: int) -> tuple[Path, Source]:
    """A capture of all connections."""
    path = folder / "peers.pcap"
    with path.open("wb") as stream:
        write_pcap(simulate(_config(size, start_ms)), stream)
    return path, Source("bench", "bamboo", "pcap", str(path), ports=(PORT,))


def peers(path: Path, lake: Lake, spark: Any, layers: Sequence[Layer]) -> list[str]:
    """Bare checks of signatures by PyNaCl on all cores, which is what the pipeline is bound by."""
    listed = [written.data for written in entries(_config(_CHECKED, START_MS))]
    cores = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        shares = [listed[number::cores] for number in range(cores)]
        pool.map(_check, [share[:1] for share in shares])
        took = seconds_of(lambda: pool.map(_check, shares))
    each = took / len(listed)
    gold = layers[-1]
    return [
        f"Bare checks of signatures by PyNaCl on {cores} cores: {1 / each:,.0f}/s. Silver to gold takes "
        f"{gold.seconds / (each * gold.size):.2f} of the time that these take (to reach: {_TO_REACH})."
    ]


def _check(listed: Sequence[bytes]) -> int:
    right = 0
    for data in listed:
        try:
            nacl.signing.VerifyKey(data[1 : 1 + AUTHOR_BYTES]).verify(data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])
            right += 1
        except nacl.exceptions.BadSignatureError:
            pass
    return right
