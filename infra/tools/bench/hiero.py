"""The Hiero block node in `make bench`: blocks of 1 MB from two publishers, compared with the codec alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha384
from pathlib import Path
from typing import Any, Final

from infra.tools.bench.runner import START_MS, Layer, seconds_of
from wirehouse_codecs.hiero.options import MOST_MESSAGE_BYTES
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT, B
from wirehouse_codecs.hiero.simulator.ledger import Ledger
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate, write_pcap
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder
from wirehouse_codecs.hiero.wire.items.cutting import ItemReader, Items
from wirehouse_codecs.hiero.wire.items.decoded import HASH_BYTES
from wirehouse_pipelines.lake.lake import Lake, Source

LAYERS = {"bronze.segments": 1.2, "silver.hiero": 2.0, "gold.hiero": 2.0}
UNIT = "blocks"
UNIT_BYTES = 1_130_000
SIZES = (200, 2_000)
FIXED = 2
INCREMENT = 20
INPUT = (
    "Blocks of 1 MB with items of 200 to 1,000 bytes, in sets of 256 KB, plain, in segments of 1,448 bytes: two "
    "publishers send half as many different ones, each to a node of its own."
)

_PUBLISHERS: Final = 2
_ALONE: Final = 30
_PIECE_BYTES: Final = 1 << 20
_TIMES: Final = 3


def _config(size: int, start_ms: int) -> SimulatorConfig:
    return SimulatorConfig(
        seed=1,
        encoding="identity",
        nodes=_PUBLISHERS,
        publishers=_PUBLISHERS,
        subscribers=0,
        blocks=max(2, size // _PUBLISHERS),
        block_bytes=1_000_000,
        set_bytes=256_000,
        interval_ms=2_000,
        incident_rounds=0,
        start_time_ms=start_ms,
    )


def capture(folder: Path, size: int, start_ms: int, _after: int = 0) -> tuple[Path, Source]:
    """A capture of both publishers."""
    path = folder / "publishers.pcap"
    with path.open("wb") as stream:
        write_pcap(simulate(_config(size, start_ms)), stream)
    return path, Source("bench", "hiero", "pcap", str(path), ports=(DEFAULT_PORT,))


def compared(path: Path, lake: Lake, spark: Any, layers: Sequence[Layer]) -> list[str]:
    """Lines for one core without Spark: the walk over items, and roots beside the calls of hashlib that they need."""
    ledger = Ledger(_config(_ALONE * _PUBLISHERS, START_MS), B)
    blocks = [b"".join((*one.opening, *one.middle, *one.closing)) for one in map(ledger.block, range(_ALONE))]
    walked = [_walked(data) for data in blocks]
    size = sum(map(len, blocks))
    walk = min(seconds_of(lambda: list(map(_walked, blocks))) for _ in range(_TIMES))
    roots = min(seconds_of(lambda: list(map(_root, walked))) for _ in range(_TIMES))
    leaves = [leaf for run in walked for items in run for leaf in _leaves(items)]
    alone = min(seconds_of(lambda: _hash_alone(leaves)) for _ in range(_TIMES))
    return [
        f"The walk over items on one core: {size / walk / 1e6:,.0f} MB/s (to reach: 500).",
        f"Roots of blocks take {roots / alone:.2f} of the time of their calls of hashlib alone (to reach: 1.3).",
    ]


def _walked(data: bytes) -> list[Items]:
    reader = ItemReader(MOST_MESSAGE_BYTES)
    return [items for at in range(0, len(data), _PIECE_BYTES) for items in reader.receive(data[at : at + _PIECE_BYTES])]


def _root(walked: list[Items]) -> None:
    builder = BlockBuilder()
    for items in walked:
        builder.add(items)
    builder.finish()


def _leaves(items: Items) -> Iterator[bytes]:
    """The bytes of each item that are hashed."""
    for start, end in zip(items.starts.tolist(), items.ends.tolist(), strict=True):
        yield b"\0" + items.data[start:end]


def _hash_alone(leaves: list[bytes]) -> None:
    node = bytes(1 + 2 * HASH_BYTES)
    for leaf in leaves:
        sha384(leaf).digest()
        sha384(node).digest()
