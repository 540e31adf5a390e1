"""The Ockam stream service in `make bench`: publishers and consumers of four streams, compared with the codec alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from infra.tools.bench.runner import START_MS, Layer, seconds_of
from wirehouse_codecs.ockam.fast.columns import decode_columns
from wirehouse_codecs.ockam.simulator.service import PORT
from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig, connections, simulate, write_pcap
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.simulate.script import Send
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_pipelines.lake.lake import Lake, Source

LAYERS = {"bronze.segments": 1.2, "silver.ockam": 2.0, "gold.ockam": 2.0}
UNIT = "messages"
UNIT_BYTES = 357
SIZES = (1_000_000, 10_000_000)
FIXED = 1_000
INCREMENT = 20_000
INPUT = (
    "Messages of 8 publishers and 40 consumers of 4 streams with data of 100 bytes, in segments of 1,448 bytes: of "
    "five, two are pushes and confirms, two pulls and responses of 10, one saves an index."
)

_PUBLISHERS, _STREAMS = 8, 4
#: Messages that a message of a publisher makes: its confirm, and a tenth of a pull, response and save of ten consumers.
_EACH: Final = 5
_TIMES: Final = 3


def _config(size: int, start_ms: int) -> SimulatorConfig:
    return SimulatorConfig(
        seed=1,
        publishers=_PUBLISHERS,
        consumers=10 * _STREAMS,
        streams=_STREAMS,
        partitions=0,
        messages_per_publisher=max(1, size // (_EACH * _PUBLISHERS * _STREAMS)),
        burst_messages=25,
        pull_limit=10,
        poll_ms=1000,
        start_time_ms=start_ms,
    )


def capture(folder: Path, size: int, start_ms: int, _after: int = 0) -> tuple[Path, Source]:
    """A capture of all clients."""
    path = folder / "clients.pcap"
    with path.open("wb") as stream:
        write_pcap(simulate(_config(size, start_ms)), stream)
    return path, Source("bench", "ockam", "pcap", str(path), ports=(PORT,))


def compared(path: Path, lake: Lake, spark: Any, layers: Sequence[Layer]) -> list[str]:
    """The codec without Spark on one core, bytes to Arrow."""
    sides = {direction: bytearray() for direction in Direction}
    for conversation in connections(_config(200_000, START_MS)):
        for event in conversation.events:
            if isinstance(event, Send):
                sides[event.direction] += event.data
    held = {direction: np.frombuffer(data, np.uint8) for direction, data in sides.items()}
    # The first call compiles the loops, or loads the compiled ones.
    messages = sum(_decoded(data, direction) for direction, data in held.items())
    took = min(
        seconds_of(lambda: [_decoded(data, direction) for direction, data in held.items()]) for _ in range(_TIMES)
    )
    return [f"The codec alone on one core, bytes to Arrow: {messages / took / 1e6:.1f} M messages/s (to reach: 1)."]


def _decoded(data: Any, direction: Direction) -> int:
    rows: int = decode_columns(data, Envelope.BARE16, direction, Envelope.BARE16.max_message_bytes).batch.num_rows
    return rows
