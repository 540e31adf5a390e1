"""The Spark session of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wirehouse_pipelines.lake.spark_options import SparkOptions
from wirehouse_pipelines.spark import session as spark

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


class Builder:
    """Notes the settings of a session that is not started."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def config(self, key: str, value: str) -> Builder:
        self._settings[key] = value
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self


@pytest.mark.parametrize(
    ("master", "pod", "told", "owner"),
    [
        ("k8s://https://kubernetes.default.svc", "run-1", {}, "run-1"),
        ("k8s://https://kubernetes.default.svc", "run-1", {"spark.kubernetes.driver.pod.name": "mine"}, "mine"),
        ("k8s://https://kubernetes.default.svc", None, {}, None),
        ("spark://master:7077", "run-1", {}, None),
        ("local[2]", "run-1", {}, None),
    ],
)
def test_on_kubernetes_executors_belong_to_the_pod_of_their_driver(
    monkeypatch: pytest.MonkeyPatch, master: str, pod: str | None, told: dict[str, str], owner: str | None
) -> None:
    for name in ("WIREHOUSE_SPARK_MASTER", "SPARK_MASTER", spark.POD_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name in ("PYSPARK_PYTHON", *spark.MEMORY):
        monkeypatch.setenv(name, "1")
    if pod is not None:
        monkeypatch.setenv(spark.POD_VARIABLE, pod)
    settings: dict[str, str] = {}
    monkeypatch.setattr(spark, "SparkSession", SimpleNamespace(Builder=lambda: Builder(settings)))
    monkeypatch.setattr(spark, "running", lambda: object())
    spark.session(options=SparkOptions(master=master, ship=False, settings=told))
    assert settings.get("spark.kubernetes.driver.pod.name") == owner


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells who listens")
def test_it_listens_on_the_loopback_alone(spark: Any) -> None:
    assert spark.range(3).count() == 3
    found = list(listening(spark.sparkContext._gateway.proc.pid))
    assert len(found) > 2
    assert set(found) <= LOOPBACK
