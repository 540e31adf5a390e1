"""The process that Spark's Python workers are forked from: it has the decoders imported already."""

from __future__ import annotations

from pyspark.daemon import manager

from wirehouse_pipelines.protocols import PROTOCOLS

for _protocol in PROTOCOLS.values():
    assert _protocol.jobs

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]  # pyspark has no types for it
