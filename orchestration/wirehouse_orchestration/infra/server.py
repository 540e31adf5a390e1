"""Installs, starts and stops the servers a team uses, on this machine's loopback. Servers are stopped by process id.

Everything is in `infra/.run`: the installations; data, log and settings of each server; and `env`, a file with the
environment variables for using the running servers.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_pipelines.spark import java
from wirehouse_pipelines.storage.storage import write_private

#: Another folder for all of it.
VARIABLE: Final = "WIREHOUSE_INFRA"
START_SECONDS: Final = 90
STOP_SECONDS: Final = 20
_SETTINGS: Final = "settings.json"

Say = Callable[[str], None]
Settings = Mapping[str, str]


class InfraError(WirehouseError):
    """A server could not be installed, started or stopped."""

    template = "{name}: {reason}"
    retry_helps = True


class UnknownServerError(UsageError):
    """There is no such server."""

    template = "no server is called {name!r}: there are {known}"


@dataclass(frozen=True, slots=True)
class Command:
    """A process of a server."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """A server: how it is installed and started. `folder` is its own, for its data."""

    name: str
    title: str
    #: Installs it into a folder if it isn't there yet.
    install: Callable[[Path], None]
    #: The variables by which it is used, chosen at the first start: its ports and keys. Names with _ are its own.
    choose: Callable[[], Settings]
    #: Makes what it needs to start, given where it is installed and its folder; the command line of each process.
    commands: Callable[[Path, Path, Settings], Sequence[Command]]
    #: Whether it answers.
    answers: Callable[[Settings], bool]
    #: Whether it is started only where it is named: another server does the same.
    asked_for_alone: bool = False


def servers() -> dict[str, Server]:
    """All servers by name."""
    from wirehouse_orchestration.infra import kafka, postgres, spark, store, versitygw

    return {module.SERVER.name: module.SERVER for module in (store, versitygw, kafka, postgres, spark)}


def run_folder() -> Path:
    """WIREHOUSE_INFRA, else infra/.run beside the source roots."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[3] / "infra" / ".run")


def chosen(names: tuple[str, ...]) -> list[Server]:
    """The servers with these names; if none is given, all but the alternatives. Raises UnknownServerError."""
    known = servers()
    for name in names:
        if name not in known:
            raise UnknownServerError(name=name, known=", ".join(known))
    return [known[name] for name in names or (name for name in known if not known[name].asked_for_alone)]


def up(names: tuple[str, ...], say: Say) -> None:
    """Install and start servers where necessary. Returns when all answer. Raises InfraError."""
    for server in chosen(names):
        _Place(server).up(say)
    _write_env()


def down(names: tuple[str, ...], say: Say) -> None:
    """Stop running servers. Their data stays."""
    for server in reversed(chosen(names or tuple(servers()))):
        _Place(server).down(say)
    _write_env()


def status(names: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """The name, state, title and running processes of each server."""
    for server in chosen(names or tuple(servers())):
        place = _Place(server)
        pids = place.pids()
        state = "runs" if pids else "installed" if place.folder.exists() else "not installed"
        yield {"name": server.name, "state": state, "title": server.title, "processes": pids}


def processes(name: str) -> list[int]:
    """The process ids of a server that runs, in the order in which they were started."""
    return [pid for server in chosen((name,)) for pid in _Place(server).pids()]


def environment(names: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables of the servers that run, or of those of these names that do."""
    found: dict[str, str] = {}
    for server in chosen(names or tuple(servers())):
        place = _Place(server)
        if place.pids():
            found |= {name: value for name, value in place.settings().items() if not name.startswith("_")}
    return found


def _write_env() -> None:
    lines = "".join(f"{key}={value}\n" for key, value in environment().items())
    write_private(run_folder() / "env", lines)


def java_program() -> str:
    """The Java that servers run on. Raises InfraError."""
    found = java.find()
    if found is None:
        raise InfraError(name="Java", reason=java.trouble(found))
    return str(found.executable)


def new_secret() -> str:
    """A random key."""
    return secrets.token_hex(20)


class _Place:
    """A server on this machine."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._run = run_folder()
        self.folder = self._run / server.name
        self._pids = self._run / f"{server.name}.pids"
        self._log = self._run / f"{server.name}.log"

    def settings(self) -> Settings:
        """The settings that were chosen at the first start."""
        known: Settings = json.loads((self.folder / _SETTINGS).read_text())
        return known

    def pids(self) -> list[int]:
        """Its running processes."""
        if not self._pids.exists():
            return []
        return [pid for pid in map(int, self._pids.read_text().split()) if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        """Whether the process is ours. The id may have been reused; ours have the folder in their command line."""
        shown = subprocess.run(["ps", "eww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True)
        return str(self.folder) in shown.stdout and "<defunct>" not in shown.stdout

    def up(self, say: Say) -> None:
        """Start it, if it doesn't run."""
        if self.pids():
            say(f"{self._server.name} runs already")
            return
        installed = self._run / "installed" / self._server.name
        if not installed.exists():
            say(f"installing {self._server.title} (once)")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._server.install(installed)
        if not (self.folder / _SETTINGS).exists():
            write_private(self.folder / _SETTINGS, json.dumps(dict(self._server.choose())))
        settings = self.settings()
        commands = self._server.commands(installed, self.folder, settings)
        started = [self._start(command) for command in commands]
        self._pids.write_text(" ".join(str(process.pid) for process in started))
        end = time.monotonic() + START_SECONDS
        while not self._server.answers(settings):
            ended = next((process for process in started if process.poll() is not None), None)
            if ended or time.monotonic() > end:
                how = f"ended with {ended.returncode}" if ended else "did not answer in time"
                self.stop()
                raise InfraError(name=self._server.name, reason=f"{how}; see {self._log}")
            time.sleep(0.2)
        say(f"{self._server.name} runs: {self._server.title}")

    def _start(self, command: Command) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                command.arguments,
                env={**os.environ, **command.environment, "WIREHOUSE_SERVER": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )

    def down(self, say: Say) -> None:
        """Stop it, if it runs."""
        if self.pids():
            self.stop()
            say(f"{self._server.name} stopped")

    def stop(self) -> None:
        """End its processes."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            end = time.monotonic() + STOP_SECONDS
            while (pids := self.pids()) and time.monotonic() < end:
                for pid in pids:
                    # A child of this process has to be waited for.
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
                time.sleep(0.1)
        self._pids.unlink(missing_ok=True)
