"""Wallaroo connectors in `make bench`: 32 connections, compared with the codec alone, tcpflow and tshark."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from infra.tools.bench.runner import Layer, cpu_seconds_of, seconds_of
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.simulate.script import Send
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Data
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.fast.columns import decode_columns
from wirehouse_codecs.wallaroo.fast.runner import Connection
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, connections, simulate, write_pcap
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_pipelines.lake.lake import Lake, Source

LAYERS = {"bronze.segments": 1.2, "silver.wallaroo": 2.0, "gold.wallaroo": 2.0}
UNIT = "frames"
UNIT_BYTES = 130
SIZES = (1_300_000, 13_000_000)
FIXED = 1_000
INCREMENT = 20_000
INPUT = "Frames of about 115 bytes on 32 connections of dialect v3, in segments of 1,448 bytes."

_CONNECTORS = 32


def _config(size: int, start_ms: int) -> SimulatorConfig:
    return SimulatorConfig(
        seed=1,
        connectors=_CONNECTORS,
        messages_per_connector=max(1, size // _CONNECTORS),
        burst_messages=250,
        checkpoint_ms=1000,
        start_time_ms=start_ms,
    )


def capture(folder: Path, size: int, start_ms: int, _after: int = 0) -> tuple[Path, Source]:
    """A capture of 32 connectors."""
    path = folder / "connectors.pcap"
    with path.open("wb") as stream:
        write_pcap(simulate(_config(size, start_ms)), stream)
    return path, Source("bench", "wallaroo", "pcap", str(path), ports=(PORT,))


def compared(path: Path, lake: Lake, spark: Any, layers: Sequence[Layer]) -> list[str]:
    """The codec without Spark on one core, and two programs that do a part of it."""
    return [*_codec(), *_programs(path, layers)]


def _codec() -> list[str]:
    """Frames a second of the compiled codec on one core, bytes to Arrow."""
    config = SimulatorConfig(connectors=1, messages_per_connector=400_000, burst_messages=250, checkpoint_ms=1000)
    sends = [event for event in next(iter(connections(config))).events if isinstance(event, Send)]
    client = np.frombuffer(b"".join(send.data for send in sends if send.direction is Direction.CLIENT), np.uint8)
    dialect, options = DIALECTS["v3"], WallarooOptions(dialect="v3")
    # The first call compiles the loops, or loads the compiled ones.
    frames = decode_columns(client, dialect, dialect.max_frame_bytes).batch.num_rows
    scanned = min(seconds_of(lambda: decode_columns(client, dialect, dialect.max_frame_bytes)) for _ in range(_TIMES))
    runs = list(_runs(sends))
    judged = min(seconds_of(lambda: _judge(runs, options)) for _ in range(_TIMES))
    return [
        f"The codec alone on one core, bytes to Arrow: {frames / scanned / 1e6:.1f} M frames/s without rules "
        f"(to reach: 5), {frames / judged / 1e6:.1f} M frames/s with them (to reach: 2)."
    ]


def _runs(sends: Sequence[Send]) -> Iterator[list[Data]]:
    """The sends, a MiB at a time."""
    taken: list[Send] = []
    for send in sends:
        taken.append(send)
        if sum(len(each.data) for each in taken) >= 1 << 20 or send is sends[-1]:
            yield [
                Data(each.direction, 0, each.data, Place(each.ts_ns, 1, b"", number))
                for number, each in enumerate(taken)
            ]
            taken = []


def _judge(runs: Sequence[list[Data]], options: WallarooOptions) -> None:
    connection = Connection(Reader(options), options, lambda dialect: Session(dialect, options))
    for pieces in runs:
        connection.run(pieces)


def _programs(path: Path, layers: Sequence[Layer]) -> Iterator[str]:
    """tcpflow reassembles streams, tshark dissects up to TCP. Neither decodes frames, checks rules or stores rows."""
    ours = sum(layer.cpu for layer in layers[-len(LAYERS) :][:2])
    size = layers[-1].size
    for command, what in (
        (["tcpflow", "-q", "-r", str(path), "-o"], "reassembly into files only"),
        (["tshark", "-n", "-r", str(path), "-T", "fields", *_FIELDS], "dissection up to TCP only"),
    ):
        if shutil.which(command[0]) is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            took = cpu_seconds_of(partial(_quietly, [*command, folder] if command[0] == "tcpflow" else command))
        yield (
            f"{command[0]} ({what}) takes {took:.1f} CPU seconds for the capture of {size:,} frames: bronze and silver "
            f"together take {ours / took:.2f} of that."
        )


def _quietly(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


_FIELDS: Final = ("-e", "frame.time_epoch", "-e", "tcp.stream", "-e", "tcp.seq", "-e", "tcp.len")
_TIMES: Final = 3
