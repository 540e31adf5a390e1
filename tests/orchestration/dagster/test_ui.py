"""The UI starts for real, knows the lake's assets, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import started
from wirehouse_orchestration import config
from wirehouse_orchestration.cli import command as cli
from wirehouse_orchestration.dagster import instance, ui
from wirehouse_orchestration.servers import ports

LAKE = """
[lakehouse]
root = "lake"
[[source]]
name = "mainnet"
protocol = "cardinal"
kind = "messages"
path = "inbox"
"""
REPOSITORY = '{repositoryLocationName: "wirehouse", repositoryName: "__repository__"}'
SENSORS = (
    f"{{ sensorsOrError(repositorySelector: {REPOSITORY}) "
    "{ ... on Sensors { results { name sensorState { status } } } } }"
)
SERVE = (
    "import sys; from pathlib import Path; from wirehouse_orchestration import config; "
    "from wirehouse_orchestration.dagster import ui; file = Path(sys.argv[1]); "
)
SERVE += "ui.serve(config.load(file), file, None, lambda line: print(line, flush=True))"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    file = tmp_path / "wirehouse.toml"
    file.write_text(LAKE)
    return file


def _group(leader: int) -> list[int]:
    """Processes of the group that `leader` leads."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.servers
def test_the_ui_answers_with_the_assets_until_a_signal_stops_it(file: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(file)]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = next(found[0] for line in process.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        nodes = ui.ask(url, "{ assetNodes { assetKey { path } groupName } }")["assetNodes"]
        sensors = ui.ask(url, SENSORS)["sensorsOrError"]["results"]
        leaders = _children(process.pid)
        assert len(leaders) == 3
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(60) == 0, rest
    assert rest == "stopped\n"
    home = file.parent / "lake" / ".dagster"
    assert {path.name for path in (home / "output").iterdir()} == {"code-server.log", "webserver.log", "daemon.log"}
    assert [path for name in ("logs", ".logs_queue") for path in home.glob(f"{name}/*")] == [], "would be sent away"
    assert [_group(leader) for leader in leaders] == [[], [], []]
    assert {"bronze/messages", "landing/mainnet"} <= {"/".join(node["assetKey"]["path"]) for node in nodes}
    states = {sensor["name"]: sensor["sensorState"]["status"] for sensor in sensors}
    assert states == {"new_captures": "RUNNING", "stale_windows": "RUNNING", "alerts": "RUNNING"}


def test_without_a_configuration_the_demos_lake_is_shown(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[Path] = []
    monkeypatch.setattr(ui, "serve", lambda lake, file, port, say: served.append(file))
    monkeypatch.delenv(config.VARIABLE, raising=False)
    monkeypatch.chdir(file.parent)
    assert cli._outcome(["ui"]) == 0
    folder = file.parent / "demo-lake"
    folder.mkdir()
    (file.parent / "inbox").rename(folder / "inbox")
    file.rename(folder / "wirehouse.toml")
    assert cli._outcome(["ui"]) == 0
    assert served == [Path("wirehouse.toml"), Path("demo-lake", "wirehouse.toml")]
    assert "the demo's lake" in capsys.readouterr().err


def test_a_second_ui_of_a_lake_is_told_where_the_first_is(file: Path) -> None:
    lake, url = config.load(file), "http://127.0.0.1:3001"
    refused = pytest.raises(ui.AlreadyServedError, match=f"{url}: use it")
    with ui._only_one(instance.home(lake), url), refused, ui.serving(lake, file):
        pass
    with ui._only_one(instance.home(lake), url):
        assert (instance.home(lake) / "ui.lock").read_text() == url


def test_a_port_in_use_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ports.PortTakenError, match=f"port {port} is in use"):
            ports.taken(port, ports.UI)


def test_a_server_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such thing'); raise SystemExit(1)"]
    server = ui._start("daemon", command, tmp_path / "daemon.log", os.environ)
    server.process.wait()
    with pytest.raises(ui.ServerError, match="the daemon ended: no such thing"):
        ui.Servers("", [server]).check()
