"""A second object store that speaks S3, for machines that have Go: versitygw over a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from wirehouse_orchestration.infra.server import Command, InfraError, Server, Settings
from wirehouse_orchestration.infra.store import BUCKET, answers, choose

NAME: Final = "versitygw"
MODULE: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def go() -> str | None:
    """The Go that builds it, if there is one."""
    return shutil.which("go")


def _install(where: Path) -> None:
    if (where / NAME).exists():
        return
    program = go()
    if program is None:
        raise InfraError(name=NAME, reason="it is built with Go, which isn't there: install it, or use `store`")
    built = subprocess.run(
        [program, "install", MODULE], env={**os.environ, "GOBIN": str(where)}, capture_output=True, text=True
    )
    if built.returncode:
        raise InfraError(name=NAME, reason=f"it could not be built: {built.stderr.strip()[-500:]}")


def _commands(installed: Path, folder: Path, settings: Settings) -> list[Command]:
    objects, notes = folder / "objects", folder / "notes"
    (objects / BUCKET).mkdir(parents=True, exist_ok=True)
    # What it knows of objects stands beside them: not every file system has extended attributes.
    notes.mkdir(exist_ok=True)
    keys = {
        "ROOT_ACCESS_KEY_ID": settings["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_ACCESS_KEY": settings["AWS_SECRET_ACCESS_KEY"],
    }
    options = ["--port", urlsplit(settings["AWS_ENDPOINT_URL"]).netloc, "--region", settings["AWS_REGION"], "--quiet"]
    return [Command([str(installed / NAME), *options, "posix", "--sidecar", str(notes), str(objects)], keys)]


SERVER: Final = Server(
    NAME, "object store, versitygw 1.8.0 (S3)", _install, choose, _commands, answers, asked_for_alone=True
)
