"""`make bench`: seconds of each layer against the floor of copying, written to docs/benchmarks.md.

The floor of a layer is copying its input and its finished output, Delta to Delta (bronze: Avro to Delta), unchanged, on
the same cores. Job and floor run in turn, warm; the median counts. The fixed cost is that of the same jobs on a lake
with a single small block. Where Go is installed, the published reference consumer reads the same messages.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from wirehouse_codecs.cardinal.simulator import SimulatorConfig, simulate, write_jsonl
from wirehouse_pipelines import jobs, landing
from wirehouse_pipelines import spark as embedded
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.windows import Windows

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"
REFERENCE = Path(__file__).parents[3] / "infra" / "bench" / "reference"
MESSAGES_PER_BLOCK = 500
LAYERS = ("bronze.messages", "silver.cardinal", "gold.cardinal")
TARGETS = {"bronze.messages": 1.2, "silver.cardinal": 2.0, "gold.cardinal": 2.0}


@dataclass
class Peaks:
    """Largest resident sizes seen, MiB."""

    driver: float = 0
    worker: float = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Look at this process's children twice a second until stopped."""
        while not self._stop.wait(0.5):
            for name, mib in _children(os.getpid()):
                if name == "java":
                    self.driver = max(self.driver, mib)
                elif name.startswith("python"):
                    self.worker = max(self.worker, mib)


def _children(root: int) -> Iterator[tuple[str, float]]:
    parents: dict[int, list[tuple[int, str, float]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                pages = int((entry / "statm").read_text().split()[1])
            except OSError:
                continue
            name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
            mib = pages * resource.getpagesize() / 2**20
            parents.setdefault(int(rest[1]), []).append((int(entry.name), name, mib))
    waiting = [root]
    while waiting:
        for pid, name, mib in parents.get(waiting.pop(), ()):
            yield name, mib
            waiting.append(pid)


@contextmanager
def _watched() -> Iterator[Peaks]:
    peaks = Peaks()
    thread = threading.Thread(target=peaks.watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        peaks._stop.set()
        thread.join()


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _config(messages: int, *, start_ms: int = 1_700_000_000_000) -> SimulatorConfig:
    """Two redundant producers, in arrival order shuffled among neighbours; values make about 200 bytes a message."""
    blocks = max(1, messages // (2 * MESSAGES_PER_BLOCK))
    return SimulatorConfig(
        seed=1,
        blocks=blocks,
        messages_per_block=MESSAGES_PER_BLOCK,
        producers=2,
        shuffle=200,
        fork_every=50,
        start_time_ms=start_ms,
        block_interval_ms=min(12_000, 60_000_000 // blocks),
    )


def _options(config: SimulatorConfig) -> dict[str, Any]:
    """As a consumer would set them; judging topics is an extra that most don't ask for."""
    options = json.loads(config.options.canonical())
    return {name: options[name] for name in options if name not in ("topics", "prefixes")}


def _lake(folder: Path, messages: int) -> Lake:
    config = _config(messages)
    path = folder / "messages.jsonl"
    folder.mkdir(parents=True)
    write_jsonl(simulate(config), path)
    source = Source("bench", "cardinal", "messages", str(path), _options(config))
    lake = Lake(str(folder / "lake"), Windows("day", "2023-11-14"), (source,))
    landing.land(lake, source)
    return lake


def _run(spark: Any, lake: Lake, name: str, *, force: bool = True) -> None:
    windows = jobs.data_windows(lake)
    jobs.run_job(spark, lake, name, windows[0], windows[-1], force=force)


def _copy_delta(spark: Any, lake: Lake, tables: Sequence[str], to: Path) -> None:
    for table in tables:
        frame = spark.read.format("delta").load(lake.table_path(table))
        partitions = [name for name in ("source", "window_start", "row_kind") if name in frame.columns]
        frame.write.format("delta").mode("overwrite").partitionBy(*partitions).save(str(to / table))


def _floor(spark: Any, lake: Lake, name: str, to: Path) -> None:
    """Copy the input and the output of job `name`."""
    job = jobs.all_jobs()[name]
    if job.reads:
        _copy_delta(spark, lake, [*jobs.all_jobs()[job.reads[0]].outputs, *job.outputs], to)
        return
    objects = [f"{lake.root}/{o}" for m in landing.manifests(lake) for w in m.windows.values() for o in w.objects]
    spark.read.format("avro").load(objects).write.format("delta").mode("overwrite").save(str(to / "from-avro"))


@dataclass(frozen=True)
class Layer:
    """A layer at one size: medians in seconds."""

    name: str
    messages: int
    seconds: float
    floor: float
    fixed: float
    driver_mib: float
    worker_mib: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.floor


def _measure(spark: Any, lake: Lake, messages: int, rounds: int, fixed: dict[str, float], to: Path) -> list[Layer]:
    layers = []
    for name in LAYERS:
        _run(spark, lake, name)
        _floor(spark, lake, name, to)
        spent: list[float] = []
        floors: list[float] = []
        with _watched() as peaks:
            for _ in range(rounds):
                spent.append(_seconds(partial(_run, spark, lake, name)))
                floors.append(_seconds(partial(_floor, spark, lake, name, to)))
        seconds, floor = statistics.median(spent), statistics.median(floors)
        layers.append(Layer(name, messages, seconds, floor, fixed.get(name, 0), peaks.driver, peaks.worker))
        click.echo(f"{messages:>10,} {name}: {seconds:.1f} s, floor {floor:.1f} s")
    return layers


def _fixed(spark: Any, folder: Path) -> dict[str, float]:
    lake = _lake(folder, 2 * MESSAGES_PER_BLOCK)
    _run(spark, lake, "bronze.captures")
    for name in LAYERS:
        _run(spark, lake, name)
    return {name: statistics.median(_seconds(partial(_run, spark, lake, name)) for _ in range(3)) for name in LAYERS}


def _increment(spark: Any, lake: Lake, folder: Path) -> float:
    """Seconds of one small window (20 blocks a day later) on the history of `lake`."""
    small = _config(40 * MESSAGES_PER_BLOCK, start_ms=1_700_000_000_000 + 2 * 86_400_000)
    path = folder / "increment.jsonl"
    write_jsonl(simulate(small), path)
    source = lake.sources[0]
    landing.land(lake, source, [str(path)])
    windows = jobs.data_windows(lake)
    return _seconds(lambda: [jobs.run_job(spark, lake, name, windows[-1], windows[-1]) for name in jobs.all_jobs()])


def _reference(path: Path, lake: Lake, spark: Any, messages: int) -> tuple[float, float] | None:
    """Messages per CPU-second of the reference consumer and of gold into a no-op sink; None without Go."""
    if shutil.which("go") is None:
        return None
    start = lake.sources[0].options["start"]
    command = ["go", "run", ".", str(path), str(start["number"]), start["hash"], start["weight"]]
    told = subprocess.run(command, cwd=REFERENCE, check=True, capture_output=True, text=True)
    reference = json.loads(told.stdout)["messages_per_cpu_second"]
    from wirehouse_pipelines.work import Span, Work

    job, windows = jobs.all_jobs()["gold.cardinal"], tuple(jobs.data_windows(lake))
    begun = _cpu_seconds()
    work = Work(spark, lake, (Span("bench", windows),), {}, ())
    for _, frame in job.build(work):
        frame.write.format("noop").mode("overwrite").save()
    work.release()
    return reference, messages / (_cpu_seconds() - begun)


def _cpu_seconds() -> float:
    """CPU seconds of this process and everything under it."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent = sum(os.times()[:4])
    waiting, seen = [os.getpid()], set()
    while waiting:
        parent = waiting.pop()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and entry.name not in seen:
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == parent:
                    seen.add(entry.name)
                    waiting.append(int(entry.name))
                    spent += sum(int(fields[index]) for index in (11, 12, 13, 14)) / ticks
    return spent


def _page(
    layers: list[Layer], increments: list[tuple[int, float]], reference: tuple[float, float] | None, rounds: int
) -> str:
    columns = ("layer", "messages", "seconds", "messages/s", "floor", "ratio", "to reach", "fixed cost", "less fixed")
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` (`--rounds {rounds}`) on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}. Medians of {rounds}, warm, job and floor in turn.",
        "The floor copies the layer's input and output unchanged; the fixed cost is the same job on one small block.",
        "",
        f"| {' | '.join((*columns, 'driver MiB', 'worker MiB'))} |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for layer in layers:
        less = (layer.seconds - layer.fixed) / layer.floor
        lines.append(
            f"| {layer.name} | {layer.messages:,} | {layer.seconds:.1f} | {layer.messages / layer.seconds:,.0f} | "
            f"{layer.floor:.1f} | {layer.ratio:.2f} | {TARGETS[layer.name]} | {layer.fixed:.1f} | {less:.2f} | "
            f"{layer.driver_mib:,.0f} | {layer.worker_mib:,.0f} |"
        )
    by_name: dict[str, list[Layer]] = {}
    for layer in layers:
        by_name.setdefault(layer.name, []).append(layer)
    lines.append("")
    for name, sizes in by_name.items():
        for small, large in pairwise(sizes):
            factor = (large.seconds - large.fixed) / (small.seconds - small.fixed)
            times = large.messages // small.messages
            lines.append(f"- {name}: {times} x the messages in {factor:.1f} x the time less fixed cost.")
    for history, seconds in increments:
        lines.append(f"- One more window of 20,000 messages after {history:,}: {seconds:.1f} s for all layers.")
    if reference:
        theirs, ours = reference
        lines += [
            "",
            "The reference consumer (cardinal-streams 1.5.1, Go, in memory, nothing stored) takes "
            f"{theirs:,.0f} of {layers[-1].messages:,} messages per CPU-second.",
            f"Gold into a no-op sink, which also judges the rules, takes {ours:,.0f}: {ours / theirs:.2f} of it.",
        ]
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--sizes", default="1000000,10000000", help="Messages, from small to large.")
@click.option("--rounds", default=5, help="Counted runs of each job and floor.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work; a temporary folder by default.")
@click.option("--out", type=click.Path(path_type=Path), default=PAGE, help="Page to write.")
def main(sizes: str, rounds: int, folder: Path | None, out: Path) -> None:
    """Measure every layer at every size and write the page."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root = Path(scratch)
        spark = embedded.session("bench")
        fixed = _fixed(spark, root / "fixed")
        layers: list[Layer] = []
        increments: list[tuple[int, float]] = []
        reference = None
        for messages in map(int, sizes.split(",")):
            here = root / str(messages)
            lake = _lake(here, messages)
            _run(spark, lake, "bronze.captures")
            layers += _measure(spark, lake, messages, rounds, fixed, here / "copies")
            reference = _reference(here / "messages.jsonl", lake, spark, messages)
            increments.append((messages, _increment(spark, lake, here)))
            shutil.rmtree(here)
            # After each size: the large one takes long.
            out.write_text(_page(layers, increments, reference, rounds))
            click.echo(f"{out} written")


if __name__ == "__main__":
    main()
