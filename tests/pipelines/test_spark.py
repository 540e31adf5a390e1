"""The Spark session of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

#: 127.0.0.1 as Linux writes it, and the same within IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
LISTENING = "0A"


def listening(pid: int) -> Iterator[str]:
    """The addresses that a process listens on."""
    mine = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            mine.add(os.readlink(descriptor))
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == LISTENING and f"socket:[{inode}]" in mine:
                yield local.partition(":")[0]


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells who listens")
def test_it_listens_on_the_loopback_alone(spark: Any) -> None:
    assert spark.range(3).count() == 3
    found = list(listening(spark.sparkContext._gateway.proc.pid))
    assert len(found) > 2
    assert set(found) <= LOOPBACK
