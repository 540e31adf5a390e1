"""`wirehouse demo`: real and simulated captures through the whole pipeline, in a fresh lake, and what came of them."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from wirehouse_codecs.core.errors import UsageError
from wirehouse_orchestration import config
from wirehouse_orchestration.dagster.defs.landing import report_landed
from wirehouse_orchestration.dagster.runs import materialize
from wirehouse_orchestration.terminal import output
from wirehouse_orchestration.terminal.render import cell, terminal
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import KAFKA, Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS, all_rules
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import all_tables

#: The day of the oldest capture. Captures without times belong to the first window.
START = "2023-11-14"
_FIRST_LINE = "# Written by `wirehouse demo`, which replaces this folder each time.\n"
#: Ends of lines that stay on the terminal when the step goes on.
LASTING = " written"
#: Rows that a part of the page shows.
ROWS = 12


class FolderTakenError(UsageError):
    """The folder doesn't hold a demo's lake."""

    template = "{folder} is not a demo's lake, so it is not replaced: move it away, or name another folder"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the closing page: the rows of a query."""

    title: str
    statement: str
    #: Heading of a column and how a row is shown in it.
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]]
    #: The text that is printed if there are no rows.
    nothing: str
    #: Rows shown at most.
    most: int = ROWS


class Story:
    """Prints progress to standard error: a line with its duration for each finished step."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        """A step. It yields a function that prints its progress."""
        started = time.monotonic()
        with self._console.status(Text(title)) as status:

            def say(line: str) -> None:
                status.update(Text.assemble(title, (f"  {terminal(line)}", "dim")))
                if line.endswith(LASTING) or not self._console.is_terminal:
                    self._console.print(Text(f"  {terminal(line)}", "dim"), soft_wrap=True)

            yield say
        took = f"{time.monotonic() - started:6.1f} s"
        self._console.print(Text.assemble(("✓ ", "green"), f"{title:<70}", (took, "dim")), soft_wrap=True)


def demo(folder: Path, *, quiet: bool = False) -> bool:
    """Fill a fresh lake in `folder` and show what came of it; False if a job or a check of our own failed."""
    story, started = Story(quiet=quiet), time.monotonic()
    _clear(folder)
    with story.step("writing captures: the reference producer's and simulated ones") as say:
        sources = [source for module in _modules() for source in module.inputs(folder / "inbox", say)]
        file = write_configuration(folder, sources)
    lake = config.load(file)
    with story.step(f"landing {len(sources)} sources") as say:
        records = land_all(lake, say)
    windows = runner.data_windows(lake)
    with story.step(f"materialising every table through Dagster, {records:,} records") as say:
        done = materialize(lake, list(runner.all_jobs()), windows[0], windows[-1], progress=say)
    page(output.console(), lake, file, time.monotonic() - started)
    return done


def _modules() -> list[Any]:
    """What each protocol brings to the demo."""
    return [import_module(f"wirehouse_orchestration.demo.{name}") for name in PROTOCOLS]


def _clear(folder: Path) -> None:
    """Remove the lake of an earlier demo, and nothing else. Raises FolderTakenError."""
    mark = folder / config.DEFAULT
    if folder.exists() and any(folder.iterdir()):
        if not (mark.exists() and mark.read_text().startswith(_FIRST_LINE)):
            raise FolderTakenError(folder=folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(_FIRST_LINE)


def write_configuration(folder: Path, sources: Sequence[Source]) -> Path:
    """Write the configuration of a lake in `folder` with these sources; captures in files lie below it."""
    lines = [_FIRST_LINE, "[lakehouse]", 'root = "lake"', f'start = "{START}"']
    for source in sources:
        path = source.path if source.kind == KAFKA else Path(source.path).relative_to(folder).as_posix()
        lines += ["", "[[source]]", *(f"{key} = {_toml(value)}" for key, value in _keys(source, path).items())]
        lines += ["[source.options]", *(f"{key} = {_toml(value)}" for key, value in source.options.items())]
    file = folder / config.DEFAULT
    file.write_text("\n".join(lines) + "\n")
    return file


def _keys(source: Source, path: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"name": source.name, "protocol": source.protocol, "kind": source.kind, "path": path}
    return keys | {key: value for key, value in (("ports", source.ports), ("kafka", source.kafka)) if value}


def _toml(value: Any) -> str:
    """`value` as TOML on one line. A JSON string is also a TOML string."""
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)


def land_all(lake: Lake, say: Callable[[str], None]) -> int:
    """Land all sources and report them to Dagster. Returns the number of landed records."""
    new = [manifest for source in lake.sources for manifest in landing.land(lake, source, progress=say)]
    report_landed(lake, new)
    return sum(manifest.records for manifest in new)


def page(out: Console, lake: Lake, file: Path, seconds: float) -> None:
    """Print the results: rows per table, a part for each protocol, broken rules, and what to do next."""
    out.print(_heading(f"What came of it, after {seconds:.0f} s"), _tables(lake))
    for part in [*(part for module in _modules() for part in module.PARTS), RULES_BROKEN]:
        out.print(*_part(lake, part))
    command = f"{_command()} --config {shlex.quote(str(file))}"
    out.print(_heading("Ask further"))
    for query in (query for module in _modules() for query in module.QUERIES):
        _to_copy(out, f'{command} sql \\\n    "{query}"')
    out.print(_heading("See it in Dagster: assets, runs, checks with sample rows, schedule and sensors"))
    _to_copy(out, f"{command} ui")
    out.print(_heading("See it as charts, with the SQL and the rows behind each"))
    _to_copy(out, f"{command} dashboard")


def _to_copy(out: Console, command: str) -> None:
    """A command to paste: never cut or padded."""
    out.print(Text(command, "cyan"), soft_wrap=True)


def _command() -> str:
    """The command as it was called."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "wirehouse" else "wirehouse"


def _heading(text: str) -> Padding:
    return Padding(Text(text, "bold"), (1, 0, 0, 0))


def _tables(lake: Lake) -> Padding:
    shown = [table for table in all_tables().values() if table.listed]
    counted = {table.name: sql.rows(lake, f"SELECT COUNT(*) AS n FROM {table.name}")["n"][0].as_py() for table in shown}
    lines = [(table.name, f"{counted[table.name]:,}", table.comment) for table in shown]
    return Padding(output.grid(("table", "rows", "what it holds"), lines, (False, True, False), fixed=1), (0, 0, 0, 2))


def _part(lake: Lake, part: Part) -> Iterator[Padding]:
    rows = sql.rows(lake, part.statement).to_pylist()
    yield _heading(part.title)
    if not rows:
        yield Padding(Text(part.nothing), (0, 0, 0, 2))
        return
    lines = [[shown(row) for shown in part.columns.values()] for row in rows[: part.most]]
    right = [all(cells[i].replace(",", "").isdigit() for cells in lines) for i in range(len(part.columns))]
    yield Padding(output.grid(part.columns, lines, right, fixed=1), (0, 0, 0, 2))
    if len(rows) > part.most:
        yield Padding(Text(f"… and {len(rows) - part.most:,} more", "dim"), (0, 0, 0, 2))


def column(name: str, digits: int | None = None) -> Callable[[Mapping[str, Any]], str]:
    """A function that shows a row's value of `name`; of binary values the first `digits` hex digits."""

    def shown(row: Mapping[str, Any]) -> str:
        value = row[name]
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else cell(value, digits)

    return shown


def _sentence(row: Mapping[str, Any]) -> str:
    return all_rules()[row["rule"]].sentence


RULES_BROKEN = Part(
    title="Rules that the captures broke",
    statement="""
        SELECT rule, severity, COUNT(*) AS times FROM gold.violations GROUP BY rule, severity
        ORDER BY CASE severity WHEN 'violation' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, COUNT(*) DESC, rule
    """,
    columns={
        "rule": column("rule"),
        "severity": column("severity"),
        "times": column("times"),
        "what breaks it": _sentence,
    },
    nothing="none",
    most=100,
)
