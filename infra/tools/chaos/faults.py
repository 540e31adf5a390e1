"""The faults of `make chaos`, one function each. A fault disturbs a lake once, at a random moment.

What each gives is a line on what was disturbed. The run after it, and the comparison, are the same for all.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from infra.tools.chaos.disturbed_lake import (
    LAND,
    PATIENCE_SECONDS,
    RUN,
    NextRunError,
    Scene,
    children,
    kill_driver,
    kill_process,
    killed,
)
from infra.tools.chaos.faulty_store import Moods, faulty
from wirehouse_codecs.captures.messages import MessageCapture
from wirehouse_codecs.captures.source import Origin
from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration.infra import server
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import KAFKA, Source

COMMANDS: Final = (LAND, RUN)
#: How long a killed server stays down.
_AWAY_SECONDS: Final = 3.0
#: Libraries of the loader that move the clock of a process, and where Debian's package puts it.
_FAKETIME: Final = "libfaketime"
#: Jumps of the clock, forward and back.
JUMPS: Final = ("+1h", "-2d", "+400d", "-90d", "+5m", "-1h")
#: Size of the disk, as shares of what the lake takes.
_LEAST, _MOST = 0.05, 0.95


class MissingError(WirehouseError):
    """A fault can't be made on this machine."""

    template = "{what}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Facts about the undisturbed run."""

    seconds: float
    bytes: int


Disturb = Callable[[Scene, random.Random, Measured], str]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the table."""

    name: str
    #: What it is, in a few words.
    title: str
    disturb: Disturb
    #: Servers that have to be up.
    servers: tuple[str, ...] = ()
    #: Variables of the scene, and how its sources are read.
    environment: Callable[[], Mapping[str, str]] = dict
    sources: Callable[[list[Source]], list[Source]] = list


def _moment(draw: random.Random, measured: Measured) -> float:
    return draw.uniform(0, measured.seconds)


def driver(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """The command, its JVM or all of it is killed."""
    return killed(scene, _moment(draw, measured), kill_driver(draw), COMMANDS)


def worker(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """One worker of the cluster is killed with its executors; the run may go on with the other."""
    pids = server.processes("spark")[1:]

    def kill(pid: int) -> None:
        for below, _ in list(children(pid)):
            kill_process(below)
        kill_process(pid)

    with _later(_moment(draw, measured), lambda: kill(draw.choice(pids))) as moment:
        _ended(scene)
    server.down(("spark",), quiet)
    server.up(("spark",), quiet)
    return f"a worker {moment:.1f} s after the start"


def daemon(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """Dagster's daemon is killed while sensors land and compute; `wirehouse ui` ends, and catches up when started."""
    ui = scene.start("ui")
    moment = draw.uniform(10, 30 + measured.seconds)
    time.sleep(moment)
    for pid, _ in list(children(ui.pid)):
        if _called(pid, "dagster._daemon"):
            kill_process(pid)
    ui.wait(120)
    again = scene.start("ui")
    try:
        end = time.monotonic() + 120 + 10 * measured.seconds
        while time.monotonic() < end and (runner.due(scene.lake) or not runner.data_windows(scene.lake)):
            time.sleep(2)
    finally:
        again.send_signal(signal.SIGTERM)
        again.wait(120)
    return f"the daemon {moment:.1f} s after the start"


def store(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """The object store is killed, and comes back."""
    return _server_away("store", scene, draw, measured)


def broker(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """The broker is killed while its records are landed, and comes back."""
    return _server_away("kafka", scene, draw, Measured(8, 0))


def _server_away(name: str, scene: Scene, draw: random.Random, measured: Measured) -> str:
    def away() -> None:
        for pid in server.processes(name):
            kill_process(pid)
        time.sleep(_AWAY_SECONDS)
        server.up((name,), quiet)

    with _later(_moment(draw, measured), away) as moment:
        _ended(scene)
    return f"{name} {moment:.1f} s after the start, for {_AWAY_SECONDS:.0f} s and its start"


def moody_store(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """The store refuses one call in ten, is slow to answer another, and breaks off in the middle of a third."""
    moods = Moods(draw.randrange(1 << 30))
    with faulty(scene.environment["AWS_ENDPOINT_URL"], moods) as address:
        ended = _ended(Scene(scene.folder, {**scene.environment, "AWS_ENDPOINT_URL": address}))
    counts = f"{moods.refused} of {moods.calls:,} calls refused, {moods.slowed} slow, {moods.broken} broken off"
    return f"{counts}, {moods.unheard} commits done and reported as failed; {ended}"


def full_disk(
    scene: Scene, draw: random.Random, measured: Measured, commands: Sequence[Sequence[str]] = COMMANDS
) -> str:
    """The lake's disk is full at some point; then it gets more room, and the next run is undisturbed."""
    size = int(measured.bytes * draw.uniform(_LEAST, _MOST)) >> 10
    root, log = scene.folder / "lake", scene.folder / "output.log"
    root.mkdir()
    patient = ("timeout", str(PATIENCE_SECONDS))
    wirehouse = " && ".join(shlex.join([*patient, *scene.command(*command)]) for command in commands)
    # A file system in memory of a name space of its own: nobody has to be root for it.
    script = f"""
        mount -t tmpfs -o size={size}k tmpfs "{root}" || exit 99
        {wirehouse}
        mount -o remount,size=0 "{root}"
        {{ {wirehouse} ; }} || exit 98
        mkdir "{root}.kept" && cp -a "{root}/." "{root}.kept"
    """
    with log.open("ab") as output:
        command = ["unshare", "-rm", "sh", "-c", script]
        ended = subprocess.run(
            command, env={**os.environ, **scene.environment}, stdout=output, stderr=subprocess.STDOUT
        ).returncode
    if ended == 99:
        raise MissingError(what="this machine lets nobody mount a file system of his own (user name spaces)")
    if ended:
        raise NextRunError(command="land` and `run", line=scene.last_line())
    root.rmdir()
    Path(f"{root}.kept").rename(root)
    return f"a disk of {size:,} KiB"


def clock_jumps(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """The clock jumps forth and back while it works."""
    clock = scene.folder / "clock"
    moved = {
        "LD_PRELOAD": str(_faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        # A look at the file at each look at the clock makes all of it several times slower.
        "FAKETIME_CACHE_DURATION": "1",
        # What waits asks how much time went by, which no clock that is set changes.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    jumps = draw.sample(JUMPS, 3)
    clock.write_text(f"{jumps[0]}\n")
    over = threading.Event()

    def jump() -> None:
        for offset in jumps[1:]:
            if over.wait(draw.uniform(0, measured.seconds)):
                return
            clock.write_text(f"{offset}\n")

    thread = threading.Thread(target=jump, daemon=True)
    thread.start()
    # A JVM whose clock went back may not come to its end.
    ended = _ended(Scene(scene.folder, {**scene.environment, **moved}), kill=True)
    over.set()
    thread.join()
    return f"{', '.join(jumps)}; {ended}"


def two_landings(scene: Scene, draw: random.Random, measured: Measured) -> str:
    """Two processes land the same files at once."""
    first = scene.start(*LAND)
    time.sleep(draw.uniform(0, 1))
    second = scene.start(*LAND)
    return f"ended with {first.wait(600)} and {second.wait(600)}"


def _ended(scene: Scene, *, kill: bool = False) -> str:
    """Land and run, however it ends; `kill` what a command leaves behind."""
    codes = []
    for command in COMMANDS:
        process = scene.start(*command)
        codes.append(process.wait(1_800))
        if kill:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return f"ended with {' and '.join(map(str, codes))}"


@contextmanager
def _later(moment: float, action: Callable[[], object]) -> Iterator[float]:
    """Does it that many seconds after the block began; the block's end waits for it."""
    timer = threading.Timer(moment, action)
    timer.start()
    try:
        yield moment
    finally:
        timer.join()


def _called(pid: int, word: str) -> bool:
    with suppress(OSError):
        return word in Path(f"/proc/{pid}/cmdline").read_text()
    return False


def quiet(line: str) -> None:
    """Servers that come and go are not reported here."""


def _faketime() -> Path:
    """Debian's library that moves clocks, unpacked beside the servers; nobody has to be root for it."""
    where = server.run_folder() / "installed" / _FAKETIME
    if not where.exists():
        where.mkdir(parents=True)
        try:
            subprocess.run(["apt-get", "download", "-q", _FAKETIME], cwd=where, check=True, capture_output=True)
            [package] = where.glob("*.deb")
            subprocess.run(["dpkg", "-x", package.name, "."], cwd=where, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            shutil.rmtree(where)
            raise MissingError(what=f"Debian's package {_FAKETIME} can't be had: {error}") from None
    return next(where.rglob("libfaketime.so.1"))


def _in_bucket() -> Mapping[str, str]:
    """A place of its own in the store."""
    found = server.environment(("store",))
    return {**found, "WIREHOUSE_ROOT": f"s3://{found['WIREHOUSE_ROOT'].split('/')[2]}/chaos-{uuid4().hex}"}


def _on_cluster() -> Mapping[str, str]:
    return server.environment(("spark",))


def _with_broker() -> Mapping[str, str]:
    return server.environment(("kafka",))


def in_topics(sources: list[Source]) -> list[Source]:
    """The sources of messages, as records of topics of their own."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    address = server.environment(("kafka",))["KAFKA_BOOTSTRAP_SERVERS"]
    admin = AdminClient({"bootstrap.servers": address})
    found = []
    for source in sources:
        if source.kind != "messages":
            continue
        topic = f"chaos-{uuid4().hex}"
        asked = NewTopic(topic, num_partitions=2, config={"retention.ms": "-1"})
        admin.create_topics([asked])[topic].result()
        producer = Producer({"bootstrap.servers": address})
        for path in sorted(Path(source.path).iterdir()):
            with path.open("rb") as stream:
                for batch in MessageCapture(stream, Origin(path.name, 0, source.limits)).batches():
                    for row in batch.to_pylist():
                        producer.produce(
                            topic, row["value"], row["key"], timestamp=row["ts_ns"] // 1_000_000, partition=0
                        )
                    producer.flush()
        settings = {"bootstrap.servers": "env:KAFKA_BOOTSTRAP_SERVERS"}
        found.append(Source(source.name, source.protocol, KAFKA, topic, source.options, kafka={"settings": settings}))
    return found


FAULTS: Final = (
    Fault("driver", "kill -9 of the command or its JVM", driver),
    Fault("worker", "kill -9 of a Spark worker", worker, ("spark",), _on_cluster),
    Fault("daemon", "kill -9 of Dagster's daemon", daemon),
    Fault("store", "kill -9 of the object store", store, ("store",), _in_bucket),
    Fault("broker", "kill -9 of the broker", broker, ("kafka",), _with_broker, in_topics),
    Fault("moods", "the store refuses one call in ten, one is slow", moody_store, ("store",), _in_bucket),
    Fault("disk", "the lake's disk is full", full_disk),
    Fault("clock", "the clock jumps", clock_jumps),
    Fault("landings", "two landings of the same files at once", two_landings),
)
