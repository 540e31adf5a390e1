"""Storage: objects appear whole or not at all, and what is hidden is nobody's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from wirehouse_pipelines.storage.storage import StorageError, Stored, open_storage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_an_object_is_what_was_written(root: Path) -> None:
    store = open_storage(str(root))
    store.write("a/b/one", b"1")
    with store.writer("a/two") as stream:
        stream.write(b"2")
        stream.write(b"2")
    with store.open("a/two") as stream:
        assert stream.read() == b"22"
    assert list(store.list("")) == [Stored("a/b/one", 1), Stored("a/two", 2)]
    assert list(store.list("a/b")) == [Stored("a/b/one", 1)]
    assert list(store.list("none")) == []


def test_an_object_can_be_replaced_and_deleted(root: Path) -> None:
    store = open_storage(str(root))
    store.write("a", b"1")
    store.write("a", b"22")
    assert list(store.list("")) == [Stored("a", 2)]
    assert store.exists("a")
    store.delete("a")
    store.delete("a")
    assert not store.exists("a")
    with pytest.raises(FileNotFoundError):
        store.open("a")


def test_what_is_being_written_is_not_seen(root: Path) -> None:
    store = open_storage(str(root))
    with store.writer("a/one") as stream:
        stream.write(b"half")
        stream.flush()
        assert not store.exists("a/one")
        assert list(store.list("")) == []
    assert store.exists("a/one")


def test_a_writer_that_raises_leaves_nothing(root: Path) -> None:
    store = open_storage(str(root))
    store.write("a", b"old")

    def fail() -> None:
        with store.writer("a") as stream:
            stream.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with store.open("a") as stream:
        assert stream.read() == b"old"
    assert [path.name for path in root.iterdir()] == ["a"]


def test_the_bytes_are_on_disk_before_the_name_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    steps: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def call(*args: object) -> None:
            steps.append(name)
            real(*args)

        return call

    for name in ("fsync", "rename"):
        monkeypatch.setattr(os, name, noted(name))
    open_storage(str(root)).write("a", b"1")
    assert steps == ["fsync", "rename", "fsync"]


def test_what_a_killed_writer_left_is_swept(root: Path) -> None:
    script = """
        import os, sys
        from wirehouse_pipelines.storage.storage import open_storage
        with open_storage(sys.argv[1]).writer("a/one") as stream:
            stream.write(b"half")
            stream.flush()
            os._exit(9)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(root)], check=False)
    assert killed.returncode == 9
    store = open_storage(str(root))
    assert len(list((root / "a").iterdir())) == 1
    assert list(store.list("")) == []
    store.sweep("a")
    store.sweep("never")
    assert list((root / "a").iterdir()) == []


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../a", "a/../../b", ".a", "a/.b/c", "a.part", "a.part/b"])
def test_a_name_never_leaves_the_root_nor_is_hidden(root: Path, name: str) -> None:
    store = open_storage(str(root))
    for use in (store.open, store.exists, store.delete, lambda n: store.write(n, b"")):
        with pytest.raises(StorageError):
            use(name)


@pytest.mark.property
def test_a_lock_keeps_other_processes_out(root: Path) -> None:
    script = """
        import sys
        from wirehouse_pipelines.storage.storage import open_storage
        with open_storage(sys.argv[1]).lock("a"):
            print("in", flush=True)
    """
    store = open_storage(str(root))
    with store.lock("a"), store.lock("b"):
        other = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(root)], stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(2)
    assert other.communicate(timeout=30)[0] == "in\n"
    assert list(store.list("")) == []


def test_another_kind_of_place_is_refused() -> None:
    with pytest.raises(StorageError, match="gs://bucket/lake"):
        open_storage("gs://bucket/lake")
