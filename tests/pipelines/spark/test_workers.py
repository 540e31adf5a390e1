"""Where Python workers look for modules."""

from __future__ import annotations

from pathlib import Path

import pyspark

from wirehouse_pipelines.spark.workers import without_archives

ARCHIVES = ["/spark/python/lib/pyspark.zip", "/spark/jars/spark-core.jar"]


def test_archives_are_left_out_where_pyspark_is_installed() -> None:
    installed = str(Path(pyspark.__file__).parents[1])
    assert without_archives([*ARCHIVES, "code", installed]) == ["code", installed]


def test_without_another_pyspark_archives_are_kept(tmp_path: Path) -> None:
    places = [*ARCHIVES, "code", str(tmp_path)]
    assert without_archives(places) == places
