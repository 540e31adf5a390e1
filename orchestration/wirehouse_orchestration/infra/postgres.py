"""PostgreSQL of the system, with a cluster of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Final

from wirehouse_orchestration.infra.server import Command, InfraError, Server, Settings, new_secret
from wirehouse_orchestration.servers.ports import HOST, free_port
from wirehouse_pipelines.storage.storage import write_private

NAME: Final = "wirehouse"
#: Where Debian keeps what only a server's owner runs.
_INSTALLED: Final = Path("/usr/lib/postgresql")
#: PostgreSQL refuses to be root's.
_OWNER: Final = "postgres"
_HOW: Final = "install PostgreSQL (Debian and Ubuntu: apt-get install postgresql; macOS: brew install postgresql)"


def _program(name: str) -> str | None:
    known = sorted(_INSTALLED.glob(f"*/bin/{name}"))
    return str(known[-1]) if known else shutil.which(name)


def _install(where: Path) -> None:
    if _program("initdb") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "postgresql"]):
            subprocess.run(["apt-get", *arguments], env=environment, capture_output=True)
    if _program("initdb") is None:
        raise InfraError(name="postgres", reason=_HOW)
    where.mkdir(parents=True, exist_ok=True)


def _choose() -> Settings:
    password, port = new_secret(), free_port()
    return {
        "WIREHOUSE_POSTGRES_URL": f"postgresql+psycopg2://{NAME}:{password}@{HOST}:{port}/postgres",
        "_PASSWORD": password,
    }


def _port(settings: Settings) -> str:
    return settings["WIREHOUSE_POSTGRES_URL"].rpartition(":")[2].partition("/")[0]


def _as_owner(arguments: list[str]) -> list[str]:
    return ["runuser", "-u", _OWNER, "--", *arguments] if os.geteuid() == 0 else arguments


def _commands(installed: Path, folder: Path, settings: Settings) -> list[Command]:
    data, password = folder / "data", folder / "password"
    if not data.exists():
        write_private(password, settings["_PASSWORD"])
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_OWNER)
            for path in (folder, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        arguments = [str(_program("initdb")), "-D", str(data), "-U", NAME, "--auth=scram-sha-256"]
        arguments += [f"--pwfile={password}", "--encoding=UTF8", "--locale=C"]
        made = subprocess.run(_as_owner(arguments), capture_output=True, text=True, cwd=folder)
        if made.returncode:
            raise InfraError(name="postgres", reason=f"its data could not be made: {made.stderr.strip()}")
    arguments = [str(_program("postgres")), "-D", str(data), "-h", HOST, "-p", _port(settings), "-k", str(folder)]
    return [Command(_as_owner(arguments))]


def _answers(settings: Settings) -> bool:
    ready = [str(_program("pg_isready")), "-h", HOST, "-p", _port(settings)]
    return subprocess.run(ready, capture_output=True).returncode == 0


SERVER: Final = Server("postgres", "database, PostgreSQL of the system", _install, _choose, _commands, _answers)
