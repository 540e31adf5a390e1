"""Cardinal Streams in `make bench`: two redundant producers, compared with the published reference consumer."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.tools.bench.runner import Layer
from wirehouse_codecs.cardinal.simulator.simulator import SimulatorConfig, simulate, write_jsonl
from wirehouse_pipelines.lake.lake import Lake, Source

LAYERS = {"bronze.messages": 1.2, "silver.cardinal": 2.0, "gold.cardinal": 2.0}
UNIT = "messages"
UNIT_BYTES = 431
SIZES = (1_000_000, 10_000_000)
FIXED = 1_000
INCREMENT = 20_000
INPUT = "Messages of about 200 bytes from two redundant producers, in arrival order shuffled among neighbours."

REFERENCE = Path(__file__).parents[3] / "infra" / "bench" / "reference"
_MESSAGES_PER_BLOCK = 500


def _config(size: int, start_ms: int) -> SimulatorConfig:
    blocks = max(1, size // (2 * _MESSAGES_PER_BLOCK))
    return SimulatorConfig(
        seed=1,
        blocks=blocks,
        messages_per_block=_MESSAGES_PER_BLOCK,
        producers=2,
        shuffle=200,
        fork_every=50,
        start_time_ms=start_ms,
        block_interval_ms=min(12_000, 60_000_000 // blocks),
    )


def capture(folder: Path, size: int, start_ms: int, _after: int = 0) -> tuple[Path, Source]:
    """A capture with the options that most consumers set: no topics and prefixes, which would be judged as well."""
    config, path = _config(size, start_ms), folder / "messages.jsonl"
    write_jsonl(simulate(config), path)
    options = json.loads(config.options.canonical())
    chosen = {name: options[name] for name in options if name not in ("topics", "prefixes")}
    return path, Source("bench", "cardinal", "messages", str(path), chosen)


def compared(path: Path, lake: Lake, spark: Any, layers: Sequence[Layer]) -> list[str]:
    """CPU seconds beside those of the published reference consumer (Go, in memory)."""
    size = layers[-1].size
    if shutil.which("go") is None:
        return []
    start = lake.sources[0].options["start"]
    command = ["go", "run", ".", str(path), str(start["number"]), start["hash"], start["weight"]]
    reference = subprocess.run(command, cwd=REFERENCE, check=True, capture_output=True, text=True)
    theirs = json.loads(reference.stdout)["messages_per_cpu_second"]
    ours = sum(layer.cpu for layer in layers[-len(LAYERS) :][1:]) / size
    return [
        "The reference consumer (cardinal-streams 1.5.1, Go, in memory, nothing stored) takes "
        f"{1e6 / theirs:.2f} CPU us a message of {size:,}; silver and gold, which also judge the rules and store rows, "
        f"take {1e6 * ours:.2f}: {ours * theirs:.1f} times as much."
    ]
