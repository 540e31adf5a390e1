"""Bamboo in `make bench`: logs replicated over 20 connections.

Three measurements are compared with the layers: the time of verifying as many signatures by PyNaCl alone, which bounds
gold; the codec alone on one core, without Spark and signatures; and LZFoo, the compression of payloads, alone.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nacl.exceptions
import nacl.signing
import numpy as np

from infra.tools.bench.runner import START_MS, Layer, run, seconds_of
from wirehouse_codecs.bamboo.log.conversation import Conversation
from wirehouse_codecs.bamboo.log.schema import SCHEMA
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.simulator.simulator import (
    PORT,
    SimulatorConfig,
    connections,
    entries,
    simulate,
    write_pcap,
)
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, SIGNATURE_BYTES
from wirehouse_codecs.bamboo.wire.lzfoo import Deflater, Inflater
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.flow_log import RUN_BYTES
from wirehouse_codecs.logs.rows import Log
from wirehouse_codecs.simulate.script import SEGMENT_BYTES, Send
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.reassembly import Connection, Data, Side
from wirehouse_pipelines.lake.lake import Lake, Source

LAYERS = {"bronze.segments": 1.2, "silver.bamboo": 2.0, "gold.bamboo": 2.0}
UNIT = "entries"
UNIT_BYTES = 306
SIZES = (200_000, 2_000_000)
FIXED = 1_000
INCREMENT = 20_000
INPUT = (
    "Logs of entries with payloads of 200 bytes, half of them compressed, replicated over 20 connections, two logs "
    "each, in segments of 1,448 bytes. The floor of copying says little of gold: it checks a signature an entry."
)

_CONNECTIONS, _LOGS = 20, 2
#: Number of entries of a measurement; for the codec, of each of its logs.
_CHECKED = 40_000
#: Repetitions, so that a measurement takes some seconds.
_CHECKED_TIMES = 5
#: Rounds of each measurement in this process: the median of ratios, or the fastest one counts.
_TIMES = 3
_WINDOW_BYTES = 32_768
#: The target: time of gold relative to bare checks on all cores.
_TO_REACH = 1.25


def _config(size: int, start_ms: int, after: int = 0) -> SimulatorConfig:
    logs = _CONNECTIONS * _LOGS
    return SimulatorConfig(
        seed=1 + start_ms % 1_000,
        connections=_CONNECTIONS,
        logs=_LOGS,
        entries=max(1, size // logs),
        first_entry=after // logs + 1,
        # Logs have no end, so that they continue in the increment.
        ended_share=0.0,
        live_share=0.0,
        ways=0,
        forks=0,
        start_time_ms=start_ms,
    )


def capture(folder: Path, size: int, start_ms: int, after: int = 0) -> tuple[Path, Source]:
    """A capture of all connections. The logs are those of the earlier capture, and go on `after` its entries."""
    path = folder / "peers.pcap"
    with path.open("wb") as stream:
        write_pcap(simulate(_config(size, start_ms, after)), stream)
    return path, Source("bench", "bamboo", "pcap", str(path), ports=(PORT,))


def compared(path: Path, lake: Lake, spark: Any, layers: Sequence[Layer]) -> list[str]:
    """The lines of the three measurements."""
    return [_signatures(partial(run, spark, lake, "gold.bamboo"), layers[-1].size), _codec(), _lzfoo()]


def _signatures(gold: Callable[[], object], size: int) -> str:
    """Bare checks of signatures by PyNaCl on all cores, measured right before and after gold of `size` entries."""
    listed = [written.data for written in entries(_config(_CHECKED, START_MS))]
    cores = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        shares = [listed[number::cores] * _CHECKED_TIMES for number in range(cores)]
        pool.map(_check, [share[:1] for share in shares])

        def bare() -> float:
            return seconds_of(lambda: pool.map(_check, shares, chunksize=1)) / (len(listed) * _CHECKED_TIMES)

        each = [bare()]
        ratios = []
        for _ in range(_TIMES):
            took = seconds_of(gold)
            each.append(bare())
            ratios.append(took / (size * (each[-1] + each[-2]) / 2))
    return (
        f"Bare checks of signatures by PyNaCl on {cores} cores: {1 / statistics.median(each):,.0f}/s. Silver to gold "
        f"takes {statistics.median(ratios):.2f} of the time that these take, {min(ratios):.2f} to {max(ratios):.2f} in "
        f"{_TIMES} rounds (to reach: {_TO_REACH})."
    )


def _check(listed: Sequence[bytes]) -> int:
    """Number of entries whose signature is right."""
    right = 0
    for data in listed:
        try:
            nacl.signing.VerifyKey(data[1 : 1 + AUTHOR_BYTES]).verify(data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])
            right += 1
        except nacl.exceptions.BadSignatureError:
            pass
    return right


def _codec() -> str:
    """Entries a second of the codec on one core: both sides of a connection to rows, payloads checked."""
    config = replace(_config(0, START_MS), connections=1, entries=_CHECKED)
    runs = list(_runs(event for event in next(iter(connections(config))).events if isinstance(event, Send)))
    # The first call compiles the loops, or loads the compiled ones.
    _decode(runs[:1])
    took = min(seconds_of(lambda: _decode(runs)) for _ in range(_TIMES))
    return (
        f"The codec alone on one core, bytes to Arrow, without signatures: {_LOGS * _CHECKED / took:,.0f} entries/s "
        "(to reach: 300,000)."
    )


def _runs(sends: Iterable[Send]) -> Iterator[list[Data]]:
    """The sent bytes, in segments, one run at a time."""
    taken: list[Data] = []
    size = 0
    for number, send in enumerate(sends):
        place = Place(send.ts_ns, 1, b"", number)
        for at in range(0, len(send.data), SEGMENT_BYTES):
            taken.append(Data(send.direction, 0, send.data[at : at + SEGMENT_BYTES], place))
        size += len(send.data)
        if size >= RUN_BYTES:
            yield taken
            taken, size = [], 0
    yield taken


def _decode(runs: Sequence[list[Data]]) -> None:
    log, first = Log(SCHEMA), runs[0][0].place
    client, server = (Side(direction, options=TcpOptions()) for direction in Direction)
    connection = Connection(bytes(16), "syn", first, first, client, server)
    log.client = Endpoint("10.0.0.1", 40_000)
    conversation = Conversation(log, connection, Endpoint("10.0.0.2", PORT), BambooOptions(), None)
    for pieces in runs:
        conversation.receive(pieces)
        for _ in log.take():
            pass


def _lzfoo() -> str:
    """The factor by which LZFoo makes payloads smaller, and the MB/s of payload that it inflates on one core."""
    pieces = [written.payload or b"" for written in entries(_config(_CHECKED, START_MS))]
    deflater = Deflater(_WINDOW_BYTES)
    packed = [deflater.compress(piece) for piece in pieces]
    sizes, inflated_sizes = np.array(list(map(len, packed))), np.array(list(map(len, pieces)))
    data, ends = np.frombuffer(b"".join(packed), np.uint8), np.cumsum(sizes)

    def inflate() -> None:
        Inflater(_WINDOW_BYTES).inflate_all(data, ends - sizes, sizes, inflated_sizes)

    inflate()
    took = min(seconds_of(inflate) for _ in range(_TIMES))
    return (
        f"LZFoo on one core: payloads {inflated_sizes.sum() / len(data):.1f} times smaller, inflated at "
        f"{inflated_sizes.sum() / took / 1e6:,.0f} MB/s (to reach: 200)."
    )
