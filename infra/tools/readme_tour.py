"""Runs the commands of README's tour and writes what they print below them (`python -m infra.tools.readme_tour`).

In the tour's part of the page, a `console` block has lines `$ COMMAND` and what each printed; a `toml` block is the
configuration. A command continues on the next line while a quote is open. Everything runs in one fresh folder.
Progress, on standard error, is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
#: Columns of the terminal that the outputs are made for.
COLUMNS = 100
_TOUR = re.compile(r"(?<=<!-- tour).*?(?=<!-- end of tour -->)", re.DOTALL)
_BLOCK = re.compile(r"(?P<fence>^```(?P<kind>console|toml)\n)(?P<body>.*?)(?=^```$)", re.DOTALL | re.MULTILINE)


class TourError(Exception):
    """A command of the tour failed."""


def written(page: str) -> str:
    """`page` with the outputs of its tour as they are now. Raises TourError."""
    with tempfile.TemporaryDirectory(prefix="wirehouse-tour-") as folder:
        return _TOUR.sub(lambda tour: _BLOCK.sub(lambda block: printed(block, Path(folder)), tour[0]), page)


def blocks(page: str) -> Iterator[re.Match[str]]:
    """Blocks of commands and configurations of `page`."""
    return _BLOCK.finditer(page)


def printed(block: re.Match[str], folder: Path) -> str:
    """`block` with what its commands print now in `folder`, where a configuration is written. Raises TourError."""
    if block["kind"] == "toml":
        (folder / "wirehouse.toml").write_text(block["body"])
        return block[0]
    return block["fence"] + "".join(f"$ {each}\n{_output(each, folder)}" for each in commands(block["body"]))


def commands(body: str) -> Iterator[str]:
    """The commands of a `console` block."""
    lines = iter(body.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            while _is_open(command):
                command += f"\n{next(lines)}"
            yield command


def _is_open(command: str) -> bool:
    """Whether a quote of `command` isn't closed."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def _output(command: str, folder: Path) -> str:
    """What `command` prints in `folder`, without white space at the ends of its lines."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(COLUMNS),
    }
    environment.pop("WIREHOUSE_CONFIG", None)
    answer = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    if answer.returncode:
        raise TourError(f"{command}: exit code {answer.returncode}\n{answer.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in answer.stdout.splitlines())


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
