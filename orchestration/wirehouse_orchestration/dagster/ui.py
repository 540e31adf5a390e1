"""`wirehouse ui`: runs Dagster's webserver and daemon on loopback, with one code server, until it is stopped."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.dagster import instance
from wirehouse_orchestration.servers import ports
from wirehouse_orchestration.servers.foreground import until_stopped
from wirehouse_pipelines.lake.lake import Lake

START_SECONDS = 90
#: A server that doesn't stop within this time is killed.
STOP_SECONDS = 20
_LOCATION = "wirehouse"


class ServerError(WirehouseError):
    """A server did not start, or ended by itself."""

    template = "the {server} {what}: {last}. Its whole output is in {log}"


class AlreadyServedError(UsageError):
    """Another process serves the lake's UI. Dagster allows only one daemon."""

    template = "the UI of this lake already runs at {url}: use it, or stop it first"


@dataclass
class Server:
    """A server process. It leads its own process group, so the runs that it starts end with it."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Ask it to stop, wait, then kill the rest of its group."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def failed(self, what: str) -> ServerError:
        """The error for a server that isn't running, with the last line of its output."""
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        return ServerError(server=self.name, what=what, last=lines[-1][:300], log=self.log)


@dataclass
class Servers:
    """The three servers of the UI."""

    url: str
    started: list[Server] = field(default_factory=list)

    def check(self) -> None:
        """Raise ServerError if one of them ended."""
        for server in self.started:
            if not server.alive:
                raise server.failed("ended")


@contextmanager
def serving(lake: Lake, file: Path, port: int | None = None) -> Iterator[Servers]:
    """Run the UI of `lake`, whose configuration is `file`, inside the block. It is ready when the block begins.

    Raises PortTakenError, AlreadyServedError and ServerError.
    """
    home = instance.home(lake)
    with instance.shared_instance(lake) as shared:
        instance.end_abandoned_runs(shared)
    with ports.taken(port, ports.UI) as free:
        servers = Servers(f"http://{ports.HOST}:{free.getsockname()[1]}")
    environment = os.environ | {"DAGSTER_HOME": str(home), config.VARIABLE: str(file.absolute())}
    with _only_one(home, servers.url), tempfile.TemporaryDirectory(prefix="wirehouse-ui-") as folder:
        code = Path(folder, "code.sock")
        workspace = Path(folder, "workspace.yaml")
        location = {"grpc_server": {"host": "localhost", "socket": str(code), "location_name": _LOCATION}}
        # JSON is YAML too.
        workspace.write_text(json.dumps({"load_from": [location]}))
        try:
            for name, command in _commands(code, workspace, servers.url.rpartition(":")[2]).items():
                servers.started.append(
                    _start(name, command, instance.output(lake) / f"{name.replace(' ', '-')}.log", environment)
                )
                if name == "code server":
                    _wait(servers, code.exists)
            _wait(servers, lambda: _is_loaded(servers.url))
            yield servers
        finally:
            for server in reversed(servers.started):
                server.stop()


@contextmanager
def _only_one(home: Path, url: str) -> Iterator[None]:
    """Record that the lake's UI is at `url` during the block. Raises AlreadyServedError."""
    with (home / "ui.lock").open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise AlreadyServedError(url=stream.read()) from None
        stream.truncate(0)
        stream.write(url)
        stream.flush()
        yield


def _commands(code: Path, workspace: Path, port: str) -> Mapping[str, list[str]]:
    definitions = ["-m", "wirehouse_orchestration.definitions", "-a", "defs"]
    python = [sys.executable, "-m"]
    return {
        "code server": [*python, "dagster", "code-server", "start", "-s", str(code), *definitions],
        "webserver": [*python, "dagster_webserver", "-h", ports.HOST, "-p", port, "-w", str(workspace)],
        "daemon": [*python, "dagster._daemon", "run", "-w", str(workspace)],
    }


def _start(name: str, command: list[str], log: Path, environment: Mapping[str, str]) -> Server:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(name, log, process)


def _wait(servers: Servers, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        servers.check()
        if time.monotonic() > end:
            raise servers.started[-1].failed(f"was not ready within {START_SECONDS} s")
        time.sleep(0.2)


def ask(url: str, query: str) -> Mapping[str, Any]:
    """The data of the UI's response to a GraphQL query. Raises URLError while the UI doesn't answer."""
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        data: Mapping[str, Any] = json.load(answer)["data"]
    return data


def _is_loaded(url: str) -> bool:
    query = "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus } } } }"
    try:
        entries = ask(url, query)["workspaceOrError"]["locationEntries"]
    except (URLError, ConnectionError, TimeoutError):
        return False
    return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)


def serve(lake: Lake, file: Path, port: int | None, say: Callable[[str], None]) -> None:
    """Serve the UI until SIGINT or SIGTERM. Raises the errors of `serving`, and ServerError if a server ends."""
    with until_stopped(say):
        say("starting Dagster")
        with serving(lake, file, port) as servers:
            say(f"Dagster's UI is at {servers.url} (sensors and schedule are on; stop with Ctrl-C)")
            while True:
                time.sleep(1)
                servers.check()
