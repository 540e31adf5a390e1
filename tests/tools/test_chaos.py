"""A short form of `make chaos`: what is disturbed holds, after the next run, every row of what was not."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from infra.tools.chaos import disturbed_lake, faults
from infra.tools.chaos.disturbed_lake import LAND, RUN, Scene, captured, differences, made
from infra.tools.chaos.faults import Measured
from infra.tools.chaos.faulty_store import Moods, faulty
from tests.support.running import run
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.storage.storage import open_storage

#: Captures of messages: their tables are computed in seconds.
PROTOCOL = "cardinal"
#: What a command that is killed may take, from its start to its last table, on a machine that has nothing else to do.
SECONDS = 20


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return captured(tmp_path_factory.mktemp("captures"), [PROTOCOL])


def go_on(spark: Any, made: Scene) -> None:
    """The next run, in the session that the tests have."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        for source in made.lake.sources:
            landing.land(made.lake, source)
        run(spark, made.lake)


def landed(made: Scene) -> set[tuple[str, str, int]]:
    """What is landed: captures, their objects and how large these are."""
    sizes = {stored.name: stored.size_bytes for stored in open_storage(made.lake.root).list("landing")}
    return {
        (manifest.capture_id, name, sizes.pop(name))
        for manifest in manifests(made.lake)
        for window in manifest.windows.values()
        for name in window.objects
    }


def whole(tmp_path: Path, sources: list[Source]) -> Scene:
    """A lake that landed in peace."""
    found = made(tmp_path / "whole", sources)
    for source in found.lake.sources:
        landing.land(found.lake, source)
    return found


@pytest.mark.servers
def test_two_landings_of_the_same_files_at_once_are_one(tmp_path: Path, sources: list[Source]) -> None:
    twice = made(tmp_path / "twice", sources)
    said = faults.two_landings(twice, random.Random(1), Measured(0, 0))
    assert said == "ended with 0 and 0"
    assert landed(twice) == landed(whole(tmp_path, sources))


@pytest.mark.servers
def test_landing_to_a_store_with_moods(tmp_path: Path, sources: list[Source], in_bucket: str) -> None:
    moods = Moods(seed=3, one_in=6, slow_seconds=0.1)
    with pytest.MonkeyPatch.context() as patch, faulty(os.environ["AWS_ENDPOINT_URL"], moods) as address:
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("WIREHOUSE_ROOT", in_bucket)
        moody = made(tmp_path / "moody", sources, {"WIREHOUSE_ROOT": in_bucket})
        for source in moody.lake.sources:
            landing.land(moody.lake, source)
        found = landed(moody)
    assert min(moods.refused, moods.slowed, moods.broken) > 1
    assert moods.unheard > 0
    assert found == landed(whole(tmp_path, sources))


def answering(before: set[threading.Thread]) -> bool:
    """The store is at a call; not of those before, whose clients may keep a connection."""
    return any("process_request_thread" in thread.name for thread in set(threading.enumerate()) - before)


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /a HTTP/1.1\r\nHost:",
        b"PUT /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
        b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
    ],
)
@pytest.mark.parametrize("reset", [True, False])
def test_a_call_that_breaks_off_is_nothing_to_tell(
    begun: bytes, reset: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    with faulty("http://127.0.0.1:9", Moods(seed=1, one_in=1)) as address:
        at = urlsplit(address)
        with socket.create_connection((at.hostname, at.port)) as call:
            call.sendall(begun)
            while not answering(before):
                time.sleep(0.01)
            if reset:
                call.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while answering(before):
            time.sleep(0.01)
    assert capfd.readouterr().err == ""


@pytest.mark.servers
def test_landing_to_a_full_disk_goes_on_when_there_is_room(tmp_path: Path, sources: list[Source]) -> None:
    one, other = whole(tmp_path, sources), made(tmp_path / "full", sources)
    size = sum(taken for _, _, taken in landed(one))
    faults.full_disk(other, random.Random(1), Measured(0, size), commands=[LAND])
    assert "No space left on device" in (other.folder / "output.log").read_text()
    assert landed(other) == landed(one)


@pytest.mark.spark
@pytest.mark.servers
def test_a_driver_that_is_killed_leaves_nothing_that_the_next_run_does_not_mend(
    spark: Any, tmp_path: Path, sources: list[Source]
) -> None:
    one, other = made(tmp_path / "whole", sources), made(tmp_path / "killed", sources)
    go_on(spark, one)
    draw = random.Random(1)
    said = disturbed_lake.killed(other, draw.uniform(0, SECONDS), disturbed_lake.kill_driver(draw), [LAND, RUN])
    assert said
    go_on(spark, other)
    assert differences(other.lake, one.lake) == []


def test_a_row_that_differs_is_seen(tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    one = whole(tmp_path, sources)
    monkeypatch.setattr(disturbed_lake, "contents", lambda lake: {"gold.violations": [uuid4().hex]})
    assert differences(one.lake, one.lake)[0].startswith("gold.violations: 1 rows and 0")
