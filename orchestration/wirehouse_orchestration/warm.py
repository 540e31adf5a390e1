"""Compiles the readers of captures, once at set-up: `python -m wirehouse_orchestration.warm`.

The loops over bytes are machine code that is made on first use and kept on disk; else the first landing takes ten
seconds longer.
"""

from __future__ import annotations

import io
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from wirehouse_orchestration.inspect import inspect
from wirehouse_pipelines import landing
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.protocols import PROTOCOLS
from wirehouse_pipelines.windows import Windows

RECORDS = 2_000


def main() -> None:
    """Land and inspect a small simulated stream of every protocol."""
    with TemporaryDirectory() as folder:
        for protocol in PROTOCOLS.values():
            simulator = import_module(f"wirehouse_codecs.{protocol.name}.simulator")
            suffix, write = next(iter(simulator.WRITERS.items()))
            path = Path(folder, f"{protocol.name}{suffix}")
            write(islice(simulator.simulate(simulator.SimulatorConfig()), RECORDS), path)
            source = Source(protocol.name, protocol.name, protocol.kinds[0], str(path))
            landing.land(Lake(f"{folder}/lake", Windows("day", "2015-01-01"), (source,)), source)
            inspect(str(path), protocol.name, True, io.StringIO())


if __name__ == "__main__":
    main()
