"""Finding Java, and knowing when Spark's jars are those of this release. Nothing is fetched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wirehouse_pipelines.spark import jars, java
from wirehouse_pipelines.spark.jars import SPARK, JarsError
from wirehouse_pipelines.spark.java import Java


def install_java(home: Path, version: str) -> Path:
    """A program that answers as a Java of that version does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, but for what the test puts below the folder `jvm`."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "INSTALLED", tmp_path / "jvm")
    monkeypatch.setattr("shutil.which", lambda _: None)
    return tmp_path


def test_no_java_is_told_with_how_to_install_it(bare: Path) -> None:
    assert java.find() is None
    assert "apt-get install openjdk-17-jre-headless" in (java.trouble(java.find()) or "")


def test_java_home_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(bare / "jvm" / "java-17", "17.0.15")
    named = install_java(bare / "mine", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "mine"))
    assert java.find() == Java(named, 21)
    assert java.trouble(java.find()) is None


def test_a_java_that_spark_runs_on_is_preferred(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = install_java(bare / "jvm" / "java-17", "17.0.15")
    install_java(bare / "old", "11.0.20")
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    found = java.find()
    assert found == Java(good, 17)
    assert found.home == bare / "jvm" / "java-17"


def test_a_java_that_is_too_old_is_told(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(bare / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    assert "is not one Spark runs on" in (java.trouble(java.find()) or "")


def test_jars_of_another_release_are_not_up_to_date(tmp_path: Path) -> None:
    assert not SPARK.up_to_date(tmp_path)
    (tmp_path / jars.STAMP).write_text(SPARK.digest())
    assert SPARK.up_to_date(tmp_path)
    assert not replace(SPARK, coordinates=(*SPARK.coordinates, "org.example:more:1.0")).up_to_date(tmp_path)
    (tmp_path / "Other.java").write_text("class Other {}")
    assert not replace(SPARK, sources=(tmp_path / "Other.java",)).up_to_date(tmp_path)


def test_jars_up_to_date_are_left_alone(tmp_path: Path, bare: Path) -> None:
    (tmp_path / jars.STAMP).write_text(SPARK.digest())
    (tmp_path / "a.jar").touch()
    assert SPARK.resolve(tmp_path) == 1


def test_resolving_without_java_says_what_to_do(bare: Path) -> None:
    with pytest.raises(JarsError, match="openjdk-17-jre-headless"):
        SPARK.resolve(bare / "jars")


def test_the_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREHOUSE_JARS", str(tmp_path))
    assert jars.folder() == tmp_path
