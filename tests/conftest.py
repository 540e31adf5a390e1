"""One Spark session for the suite, and small lakes to run jobs in."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from infra.tools.bench import bare
from wirehouse_orchestration import config
from wirehouse_pipelines import stages
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

VECTORS = Path(__file__).parent / "vectors"
MakeLake = Callable[..., Lake]
# Until all is collected.
gc.disable()
# No test depends on how fast the machine is, and, unless it searches (`make test-long`), on chance.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("wirehouse", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile("wirehouse")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Interrupts are heard: what a shell starts in the background is deaf to them, and so is all that it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """No configuration is named, also not by a command that a test before ran in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.VARIABLE, "")
        patch.delenv(config.VARIABLE)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session of all tests marked `spark`."""
    from wirehouse_pipelines.spark import session as embedded

    os.environ.setdefault(embedded.JAVA_OPTIONS, embedded.SHORT_RUN)
    session = embedded.session("tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def in_process() -> Any:
    """In place of a Spark session, for small lakes: tasks run in this process. Needs no JVM."""
    return bare.InProcess()


@pytest.fixture
def stages_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs need no Spark session at all: each stage runs in this process."""
    monkeypatch.setattr(stages, "run", lambda _spark, lake, stage: stages.run_here(lake, stage))


@pytest.fixture(scope="session")
def local_lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A small capture of each protocol, computed in a folder by this process."""
    from tests.support import running, small_lake

    lake = config.load(small_lake.configure(tmp_path_factory.mktemp("local")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIREHOUSE_HASH_KEY", small_lake.HASH_KEY)
        running.land(lake)
        running.run(spark, lake)
    return lake


@pytest.fixture(scope="session")
def store() -> Iterator[dict[str, str]]:
    """A real object store, and the variables that say how to reach it, which are set."""
    with store_of("store") as settings:
        yield settings


@contextmanager
def store_of(name: str) -> Iterator[dict[str, str]]:
    """The object store of that name among the project's servers, up while the block runs, and its variables, set."""
    from wirehouse_orchestration.infra import server

    server.up((name,), lambda text: None)
    settings = server.environment((name,))
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in settings.items():
            if variable.startswith("AWS_"):
                patch.setenv(variable, value)
        yield settings
    server.down((name,), lambda text: None)


@pytest.fixture
def in_bucket(store: dict[str, str]) -> str:
    """A place of the test's own in a bucket of the store, whose data outlive it."""
    return f"s3://wirehouse/{uuid4().hex}"


@pytest.fixture(scope="session", autouse=True)
def _no_terminal() -> Iterator[None]:
    """Tables are as wide as in a file, whatever the terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture
def make_lake(tmp_path: Path) -> MakeLake:
    """A lake of day windows (or `size`) whose sources are files: name -> (path, options)."""

    def make(
        sources: Mapping[str, tuple[str | Path, Mapping[str, Any]]],
        *,
        size: str = "day",
        start: str | None = None,
        root: str = "lake",
    ) -> Lake:
        first = start or {"day": "2015-01-01", "hour": "2023-11-14T00"}[size]
        listed = (Source(name, "cardinal", "messages", str(path), options) for name, (path, options) in sources.items())
        return Lake(str(tmp_path / root), Windows(size, first), tuple(listed))  # type: ignore[arg-type]

    return make


def pytest_collection_finish() -> None:
    """What is imported and collected lives as long as the run: it isn't looked through for garbage again and again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Properties, which try many examples, are marked as such, and so is what asks for Spark.

    Tests that share a lake which this process computes run in one process.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if "in_process" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
        if is_hypothesis_test(getattr(item, "function", None)):
            item.add_marker(pytest.mark.property)
