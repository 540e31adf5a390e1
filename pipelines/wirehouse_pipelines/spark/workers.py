"""The process that Spark's Python workers are forked from: it has the decoders imported already."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder


def without_archives(places: Sequence[str]) -> list[str]:
    """Where modules are looked for, without archives if pyspark is installed beside them.

    Spark puts archives of itself there, and has their directories read anew before each task, which takes longer than
    many a task. Workers of a cluster have no other pyspark.
    """
    others = [place for place in places if not place.endswith((".zip", ".jar"))]
    return others if PathFinder.find_spec("pyspark", others) else list(places)


def serve() -> None:
    """Fork workers for as long as Spark asks for them."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    from pyspark.daemon import manager

    from wirehouse_codecs.captures.pcap import Packet, to_batch
    from wirehouse_codecs.tcp.link_types import ETHERNET
    from wirehouse_codecs.tcp.packets import parse
    from wirehouse_pipelines.jobs.runner import all_jobs

    assert all_jobs()
    # The first call of a compiled loop makes numba's tables, which takes a second.
    parse(to_batch([Packet(0, ETHERNET, 0, b"")]))
    # Workers collect garbage after each task: what is here already is none.
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]  # pyspark has no types for it


if __name__ == "__main__":
    serve()
