"""A small lake to disturb: its captures, its commands as a person runs them, and what its tables hold."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Final

from infra.tools.bench import runner
from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.demo.run import write_configuration
from wirehouse_orchestration.terminal import render
from wirehouse_pipelines.lake.hash_key import VARIABLE as HASH_KEY
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import all_tables

#: A command that takes longer has hung.
PATIENCE_SECONDS: Final = 1_800
#: Columns with the time of landing, which differs between runs.
_OF_THE_MOMENT: Final = {"landed_at_ns"}
#: Hashes of secrets, and sealed state, are the same in all lakes.
HASH_KEY_VALUE: Final = "chaos"
_PROGRAM: Final = "from wirehouse_orchestration.cli.command import main; main()"
LAND, RUN = ("land",), ("run",)


class NextRunError(WirehouseError):
    """The run after a disturbance failed."""

    template = "`wirehouse {command}` failed after the disturbance: {line}"


@dataclass(frozen=True, slots=True)
class Scene:
    """A lake with captures and a configuration, in a folder of its own."""

    folder: Path
    environment: Mapping[str, str]

    @property
    def file(self) -> Path:
        return self.folder / config.DEFAULT

    @property
    def lake(self) -> Lake:
        """The lake of its configuration and environment."""
        root = self.environment.get(config.ROOT_VARIABLE)
        lake = config.load(self.file)
        return replace(lake, root=root) if root else lake

    def command(self, *arguments: str) -> list[str]:
        """`wirehouse ARGUMENTS` as a command line."""
        return [sys.executable, "-c", _PROGRAM, "--config", str(self.file), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `wirehouse ARGUMENTS`, the leader of a group of its own; what it prints is kept in a file."""
        with (self.folder / "output.log").open("ab") as output:
            return subprocess.Popen(
                self.command(*arguments),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, commands: Sequence[Sequence[str]] = (LAND, RUN)) -> float:
        """Run the commands to their ends; the seconds they took. Raises NextRunError if one fails."""
        begun = time.monotonic()
        for command in commands:
            if self.start(*command).wait(PATIENCE_SECONDS):
                raise NextRunError(command=" ".join(command), line=self.last_line())
        return time.monotonic() - begun

    def last_line(self) -> str:
        """The last output of its commands."""
        lines = (self.folder / "output.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "nothing was printed"


def captured(folder: Path, protocols: Iterable[str], days: int = 2) -> list[Source]:
    """Small captures of `protocols` on `days` days, a source each, below `folder`."""
    sources = []
    for name in protocols:
        module = import_module(f"infra.tools.bench.{name}")
        inbox = folder / "inbox" / name
        source: Source | None = None
        for day in range(days):
            into = folder / f"{name}{day}"
            into.mkdir(parents=True)
            path, found = module.capture(into, module.FIXED, runner.START_MS + day * runner.LATER_MS)
            inbox.mkdir(parents=True, exist_ok=True)
            for part in sorted(path.iterdir()) if path.is_dir() else [path]:
                shutil.move(part, inbox / f"{day}-{part.name}")
            shutil.rmtree(into)
            source = source or replace(found, name=name, path=str(inbox))
        assert source is not None
        sources.append(source)
    return sources


def made(folder: Path, sources: Sequence[Source], environment: Mapping[str, str] | None = None) -> Scene:
    """A scene in the new folder `folder`, with captures of `sources` linked into it."""
    folder.mkdir(parents=True)
    linked = []
    for source in sources:
        if source.kafka:
            linked.append(source)
            continue
        inbox = folder / "inbox" / source.name
        shutil.copytree(source.path, inbox, copy_function=os.link)
        linked.append(replace(source, path=str(inbox)))
    write_configuration(folder, linked)
    return Scene(folder, {HASH_KEY: HASH_KEY_VALUE, **(environment or {})})


def killed(
    scene: Scene, moment: float, kill: Callable[[subprocess.Popen[bytes]], None], commands: Sequence[Sequence[str]]
) -> str:
    """Run the commands, and `moment` seconds after the first began `kill`; what was going on then."""
    end = time.monotonic() + moment
    for command in commands:
        process = scene.start(*command)
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill(process)
            process.wait(PATIENCE_SECONDS)
            return f"`{' '.join(command)}` {moment:.1f} s after the start"
    return "nothing: it was done before"


def kill_driver(draw: random.Random) -> Callable[[subprocess.Popen[bytes]], None]:
    """Kills the command, its JVM, or both with all under them."""

    def kill(process: subprocess.Popen[bytes]) -> None:
        which = draw.choice(("command", "JVM", "all"))
        below = [pid for pid, name in children(process.pid) if name == "java"] if which == "JVM" else []
        for pid in below or ([process.pid] if which == "command" else []):
            kill_process(pid)
        if which == "all":
            os.killpg(process.pid, signal.SIGKILL)

    return kill


def kill_process(pid: int) -> None:
    """Send SIGKILL to the process, if it exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(root: int) -> Iterator[tuple[int, str]]:
    """Process id and name of all under the process `root`."""
    under: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            stat = (entry / "stat").read_text()
            parent = int(stat[stat.rindex(")") + 2 :].split()[1])
            under.setdefault(parent, []).append((int(entry.name), stat[stat.index("(") + 1 : stat.rindex(")")]))
    waiting = [root]
    while waiting:
        for pid, name in under.get(waiting.pop(), ()):
            yield pid, name
            waiting.append(pid)


def differences(left: Lake, right: Lake) -> list[str]:
    """Tables whose rows differ, with the first rows that only one has. Every physical table is looked at."""
    found = []
    for name, ours in contents(left).items():
        theirs = contents_of(right, name)
        if ours != theirs:
            only = sorted(set(ours) - set(theirs))[:1], sorted(set(theirs) - set(ours))[:1]
            found.append(f"{name}: {len(ours)} rows and {len(theirs)}, of one alone {only}")
    return found


def contents(lake: Lake) -> dict[str, list[str]]:
    """The rows of every physical table, a line each, sorted."""
    return {table.name: contents_of(lake, table.name) for table in all_tables().values() if table.view is None}


def contents_of(lake: Lake, name: str) -> list[str]:
    """The rows of a table, a line each, sorted."""
    rows = sql.rows(lake, f"SELECT * FROM {name}").to_pylist()
    return sorted(render.json_line({key: row[key] for key in row if key not in _OF_THE_MOMENT}) for row in rows)
