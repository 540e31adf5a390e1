"""The daemon that Spark's Python workers are forked from. It has imported the decoders, so workers start fast."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder


def without_archives(places: Sequence[str]) -> list[str]:
    """The module search path without archives, if pyspark can be found elsewhere on it.

    Spark adds archives of itself to the path and rereads their directories before each task, which takes longer than
    many tasks. Workers of a cluster have no other pyspark, so they keep the archives.
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
    # The first call of a compiled function initialises numba, which takes a second.
    parse(to_batch([Packet(0, ETHERNET, 0, b"")]))
    # Workers collect garbage after each task; exclude all objects that exist already.
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]  # pyspark has no types for it


if __name__ == "__main__":
    serve()
