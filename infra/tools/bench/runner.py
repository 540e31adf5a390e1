"""`make bench`: the time that each layer takes, beside two floors, written to docs/benchmarks.md.

The floor in seconds is copying a layer's input and its finished output, Delta to Delta (bronze: Avro to Delta),
unchanged, on the same cores. The floor in CPU seconds is the same job without Spark, in one process: see bare.py. Each
runs once for warming up; then they run in turn, a number of rounds, and the medians count. The fixed cost is the time
of the same jobs on a lake with very little in it. The captures of each protocol, and the programs that it is compared
with, are in the module of its name.

`measure` is the plan of it all: it builds a lake of each size (`_lake`), measures its layers (`_measure`) and one more
window (`_increment`), and writes a section of the page (`_section`).
"""

from __future__ import annotations

import io
import os
import platform
import re
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import click

from infra.tools.bench import bare
from wirehouse_orchestration.evidence.inspection import inspect
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.spark import session as embedded

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"
#: Times of captures begin in this window.
START = "2023-11-14"
START_MS = 1_700_000_000_000
#: Time between the history and the increment.
LATER_MS = 2 * 86_400_000


class Bench(Protocol):
    """The interface of a protocol's module in this package."""

    #: The protocol's jobs, and for each the ratio to the floor that is to be reached.
    LAYERS: Mapping[str, float]
    #: The unit that is counted, in the plural.
    UNIT: str
    #: Approximate bytes of a unit in a capture.
    UNIT_BYTES: int
    #: Units of the captures that are measured, from small to large; for the fixed cost; in one more window.
    SIZES: tuple[int, ...]
    FIXED: int
    INCREMENT: int
    #: The contents of the captures, in words.
    INPUT: str

    def capture(self, folder: Path, size: int, start_ms: int, after: int = 0, /) -> tuple[Path, Source]:
        """Write a capture of `size` units into the empty folder; its path, and the source `bench` that reads it.

        The lake already holds a capture of `after` units.
        """

    def compared(self, path: Path, lake: Lake, spark: Any, layers: Sequence[Layer]) -> list[str]:
        """Lines for the page that compare other programs on the same capture with `layers`, measured on it."""


@dataclass
class Peaks:
    """The largest resident sizes of the driver and of a worker, in MiB."""

    driver: float = 0
    worker: float = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Measure this process's children twice a second until stopped."""
        while not self._stop.wait(0.5):
            for name, mib in _children(os.getpid()):
                if name == "java":
                    self.driver = max(self.driver, mib)
                elif name.startswith("python"):
                    self.worker = max(self.worker, mib)


def _children(root: int) -> Iterator[tuple[str, float]]:
    """Name and resident size in MiB of each process below `root`."""
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
    """Measure the children of this process until the end of the block."""
    peaks = Peaks()
    thread = threading.Thread(target=peaks.watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        peaks._stop.set()
        thread.join()


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def cpu_seconds_of(work: Callable[[], object]) -> float:
    """CPU seconds that `work` takes, in this process and everything under it."""
    begun = cpu_seconds()
    work()
    return cpu_seconds() - begun


def cpu_seconds() -> float:
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


def _lake(bench: Bench, folder: Path, size: int) -> tuple[Path, Lake]:
    """A capture of `size` units, and a lake in which it is landed."""
    (folder / "capture").mkdir(parents=True)
    path, source = bench.capture(folder / "capture", size, START_MS)
    lake = Lake(str(folder / "lake"), Windows("day", START), (source,))
    landing.land(lake, source)
    return path, lake


def run(spark: Any, lake: Lake, name: str, *, force: bool = True) -> None:
    """Bring all windows of job `name` up to date, or recompute them."""
    windows = runner.data_windows(lake)
    runner.run_job(spark, lake, name, windows[0], windows[-1], force=force)


def _copy_delta(spark: Any, lake: Lake, tables: Sequence[str], to: Path) -> None:
    for table in tables:
        frame = spark.read.format("delta").load(lake.table_path(table))
        partitions = [name for name in ("source", "window_start", "row_kind") if name in frame.columns]
        frame.write.format("delta").mode("overwrite").partitionBy(*partitions).save(str(to / table))


def _inspected(path: Path, name: str, bench: Bench, size: int) -> str:
    """A line with the speed of `wirehouse inspect` without --json on one core."""
    spent = time.process_time()
    inspect(str(path), name, False, io.StringIO())
    rate = size / (time.process_time() - spent)
    return f"`wirehouse inspect` without `--json`: {rate:,.0f} {bench.UNIT} of {size:,} per CPU second."


def _floor(spark: Any, lake: Lake, name: str, to: Path) -> None:
    """Copy the input and the output of job `name`."""
    job = runner.all_jobs()[name]
    if job.reads:
        inputs = [table for name in job.reads for table in runner.all_jobs()[name].outputs]
        _copy_delta(spark, lake, [table for table in (*inputs, *job.outputs) if spark_tables.exists(lake, table)], to)
        return
    objects = [lake.address(o) for m in manifests(lake) for w in m.windows.values() for o in w.objects]
    spark.read.format("avro").load(objects).write.format("delta").mode("overwrite").save(str(to / "from-avro"))


@dataclass(frozen=True, slots=True)
class Layer:
    """The measurements of a layer at one size. Times are medians."""

    name: str
    size: int
    #: Seconds of the job, and of copying its input and output.
    seconds: float
    floor: float
    #: The target of `ratio`.
    to_reach: float
    #: Seconds of the job on a lake with very little in it.
    fixed: float
    #: CPU seconds of the job with Spark, and without it.
    cpu: float
    bare: float
    driver_mib: float
    worker_mib: float

    @property
    def ratio(self) -> float:
        """Seconds of the job, relative to the floor."""
        return self.seconds / self.floor


def _measure(
    spark: Any, bench: Bench, lake: Lake, size: int, rounds: int, fixed: Mapping[str, float], to: Path
) -> Iterator[Layer]:
    """Measure each layer of `lake`. `fixed` has the fixed cost of each; copies go to the folder `to`."""
    for name, to_reach in bench.LAYERS.items():
        run(spark, lake, name)
        _floor(spark, lake, name, to)
        bare.cpu_seconds_of(lake, name)
        spent: list[tuple[float, ...]] = []
        with _watched() as peaks:
            for _ in range(rounds):
                begun = cpu_seconds()
                seconds = seconds_of(partial(run, spark, lake, name))
                cpu = cpu_seconds() - begun
                floor = seconds_of(partial(_floor, spark, lake, name, to))
                spent.append((seconds, floor, cpu, bare.cpu_seconds_of(lake, name)))
        seconds, floor, cpu, alone = map(statistics.median, zip(*spent, strict=True))
        click.echo(f"{size:>10,} {name}: {seconds:.1f} s, floor {floor:.1f} s; {cpu:.1f} CPU s, bare {alone:.1f}")
        yield Layer(name, size, seconds, floor, to_reach, fixed[name], cpu, alone, peaks.driver, peaks.worker)


def _fixed(spark: Any, bench: Bench, folder: Path) -> dict[str, float]:
    """Seconds of each layer on a lake with very little in it."""
    _, lake = _lake(bench, folder, bench.FIXED)
    for name in ("bronze.captures", *bench.LAYERS):
        run(spark, lake, name)
    return {
        name: statistics.median(seconds_of(partial(run, spark, lake, name)) for _ in range(3)) for name in bench.LAYERS
    }


def _increment(spark: Any, bench: Bench, lake: Lake, size: int, folder: Path) -> float:
    """Seconds of one small window on the history of `lake`, which has `size` units."""
    folder.mkdir()
    path, _ = bench.capture(folder, bench.INCREMENT, START_MS + LATER_MS, size)
    landing.land(lake, lake.sources[0], [str(path)])
    windows = runner.data_windows(lake)
    return seconds_of(
        lambda: [runner.run_job(spark, lake, name, windows[-1], windows[-1]) for name in runner.all_jobs()]
    )


@dataclass
class Results:
    """The measurements of a protocol."""

    layers: list[Layer] = field(default_factory=list)
    increments: list[tuple[int, float]] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)


def _section(title: str, bench: Bench, results: Results, rounds: int) -> str:
    """The text of a protocol's section of the page."""
    unit = bench.UNIT
    columns = (
        *("layer", unit, "seconds", f"{unit}/s", "floor", "ratio", "to reach"),
        *("fixed cost", "less fixed", "CPU s", f"CPU us/{unit.removesuffix('s')}", "bare CPU s", "CPU / bare"),
        *("driver MiB", "worker MiB"),
    )
    lines = [
        f"## {title}",
        "",
        f"{bench.INPUT} Measured on {datetime.now(UTC):%Y-%m-%d} with `--rounds {rounds}`: {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for layer in results.layers:
        less = (layer.seconds - layer.fixed) / layer.floor
        lines.append(
            f"| {layer.name} | {layer.size:,} | {layer.seconds:.1f} | {layer.size / layer.seconds:,.0f} | "
            f"{layer.floor:.1f} | {layer.ratio:.2f} | {layer.to_reach} | {layer.fixed:.1f} | {less:.2f} | "
            f"{layer.cpu:.1f} | {1e6 * layer.cpu / layer.size:,.1f} | {layer.bare:.1f} | "
            f"{layer.cpu / layer.bare:.2f} | {layer.driver_mib:,.0f} | {layer.worker_mib:,.0f} |"
        )
    by_name: dict[str, list[Layer]] = {}
    for layer in results.layers:
        by_name.setdefault(layer.name, []).append(layer)
    lines.append("")
    for name, sizes in by_name.items():
        for small, large in pairwise(sizes):
            factor = (large.seconds - large.fixed) / (small.seconds - small.fixed)
            times = large.size / small.size
            lines.append(f"- {name}: {times:g} x the {bench.UNIT} in {factor:.1f} x the time less fixed cost.")
    for history, seconds in results.increments:
        lines.append(
            f"- One more window of {bench.INCREMENT:,} {bench.UNIT} after {history:,}: {seconds:.1f} s for all layers."
        )
    return "\n".join([*lines, "", *results.compared]).rstrip() + "\n"


_HEAD = """# Benchmarks

Each section is written by `make bench`: medians of some rounds, warm, job and floors in turn. The floor copies the
layer's input and output unchanged (bronze: Avro to Delta); the fixed cost is the same job on very little. CPU seconds
are those of all processes. Bare ones are those of the same job in one process without Spark; nothing is committed.

"""


def _write(out: Path, title: str, section: str) -> None:
    """Replace the section of the same title in the page, or add it."""
    before = out.read_text() if out.exists() else ""
    sections = {part.split("\n", 1)[0]: part for part in re.split(r"^(?=## )", before, flags=re.MULTILINE)[1:]}
    sections[f"## {title}"] = section
    out.write_text(_HEAD + "\n".join(part.rstrip() + "\n" for _, part in sorted(sections.items())))


def measure(name: str, bench: Bench, sizes: Sequence[int], rounds: int, root: Path, out: Path) -> None:
    """Measure every layer of a protocol at every size and write its section of the page."""
    spark = embedded.session("bench")
    fixed = _fixed(spark, bench, root / "fixed")
    results = Results()
    for size in sizes:
        here = root / str(size)
        path, lake = _lake(bench, here, size)
        run(spark, lake, "bronze.captures")
        results.layers += _measure(spark, bench, lake, size, rounds, fixed, here / "copies")
        results.compared = [*bench.compared(path, lake, spark, results.layers), _inspected(path, name, bench, size)]
        results.increments.append((size, _increment(spark, bench, lake, size, here / "increment")))
        shutil.rmtree(here)
        # The page is written after each size, because the large one takes long.
        title = PROTOCOLS[name].title
        _write(out, title, _section(title, bench, results, rounds))
        click.echo(f"{out} written")


@click.command()
@click.option("--protocol", "names", multiple=True, type=click.Choice(list(PROTOCOLS)), help="All by default.")
@click.option("--sizes", help="How many, from small to large; by default those of the protocol.")
@click.option("--rounds", default=5, help="Counted runs of each job and floor.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work; a temporary folder by default.")
@click.option("--out", type=click.Path(path_type=Path), default=PAGE, help="Page to write.")
def main(names: tuple[str, ...], sizes: str | None, rounds: int, folder: Path | None, out: Path) -> None:
    """Measure every layer of the protocols at every size and write the page."""
    for name in names or PROTOCOLS:
        bench: Any = import_module(f"infra.tools.bench.{name}")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            chosen = bench.SIZES if sizes is None else tuple(map(int, sizes.split(",")))
            measure(name, bench, chosen, rounds, Path(scratch), out)


if __name__ == "__main__":
    main()
