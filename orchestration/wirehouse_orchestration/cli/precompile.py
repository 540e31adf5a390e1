"""Does slow one-time work at set-up rather than at first use: `python -m wirehouse_orchestration.cli.precompile`.

It compiles the loops over bytes to machine code, which is cached on disk, and bundles the library of the dashboards.
Without this, the first landing and the first dashboard take ten seconds longer. It also archives the classes that
Spark's JVM loads, which makes every start of Spark faster.
"""

from __future__ import annotations

import io
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from wirehouse_orchestration.dashboards import drawing
from wirehouse_orchestration.evidence.inspection import inspect
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import landing, object_reader
from wirehouse_pipelines.spark import session as spark

RECORDS = 2_000


def main() -> None:
    """Bundle the dashboards' library, compile the readers, and archive the classes that jobs load."""
    drawing.library()
    with TemporaryDirectory() as folder:
        lakes = compile_readers(folder)
        spark.archive_classes(partial(_run_jobs, lake=lakes[0]))


def compile_readers(folder: str) -> list[Lake]:
    """Land and inspect a small simulated stream of every protocol, each in a lake of its own below `folder`."""
    lakes = []
    for protocol in PROTOCOLS.values():
        simulator = import_module(f"wirehouse_codecs.{protocol.name}.simulator.simulator")
        suffix, write = next(iter(simulator.WRITERS.items()))
        path = Path(folder, f"{protocol.name}{suffix}")
        write(islice(simulator.simulate(simulator.SimulatorConfig()), RECORDS), path)
        source = Source(protocol.name, protocol.name, protocol.kinds[0], str(path))
        lakes.append(Lake(f"{folder}/{protocol.name}", Windows("day", "2015-01-01"), (source,)))
        for manifest in landing.land(lakes[-1], source):
            for name in (name for window in manifest.windows.values() for name in window.objects):
                with Path(lakes[-1].root, name).open("rb") as stream:
                    assert sum(records.num_rows for records in object_reader.read(stream, name)) == manifest.records
        inspect(str(path), protocol.name, True, io.StringIO())
    return lakes


def _run_jobs(session: SparkSession, lake: Lake) -> None:
    windows = runner.data_windows(lake)
    for name, job in runner.all_jobs().items():
        if job.protocol in (None, lake.sources[0].protocol):
            runner.run_job(session, lake, name, windows[0], windows[-1])


if __name__ == "__main__":
    main()
