"""Guides of incidents: each is simulated, landed and run as its page says, and its statement finds the incident."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from infra.tools import generated_pages, readme_tour
from tests.support import running
from wirehouse_orchestration import config
from wirehouse_orchestration.cli import command
from wirehouse_orchestration.dashboards import answers, boards
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.terminal.render import plain
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.query import sql

FOLDER = generated_pages.FOLDER / "how-to" / "incidents"
GUIDES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
INCIDENTS = {
    name: (simulator, incident)
    for protocol in PROTOCOLS
    for simulator in [import_module(f"wirehouse_codecs.{protocol}.simulator.simulator")]
    for name, incident in simulator.INCIDENTS.items()
}
_CHART = re.compile(r'The chart "([^"]+)" of \[the board `(\w+)`\]')
#: What was simulated is seen so soon.
SOON_NS = 3 * 10**9


def _commands(guide: str) -> Iterator[str]:
    for block in readme_tour.blocks(guide):
        if block["kind"] == "console":
            yield from readme_tour.commands(block["body"])


def _statement(guide: str) -> str:
    (asked,) = (words for words in map(shlex.split, _commands(guide)) if words[:2] == ["wirehouse", "sql"])
    return asked[-1]


def _chart(guide: str) -> boards.Chart | None:
    found = _CHART.search(" ".join(guide.split()))
    return next(one for one in boards.boards()[found[2]].charts if one.question == found[1]) if found else None


def _truth(guide: str) -> dict[str, Any]:
    """What the guide's simulation is about, by its own options."""
    (words,) = (words for words in map(shlex.split, _commands(guide)) if words[1] == "simulate")
    simulator, incident = INCIDENTS[words[words.index("--incident") + 1]]
    seed = int(words[words.index("--seed") + 1])
    settings = {"incident": words[words.index("--incident") + 1], "seed": seed, **incident.settings}
    return dict(incident.truth(simulator.SimulatorConfig(**settings)))


def _printed(block: re.Match[str]) -> str:
    """A block with what its commands print now in this folder."""
    if " | " in block["body"]:
        return readme_tour.printed(block, Path.cwd())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(readme_tour.COLUMNS))
        text = block["fence"]
        for each in readme_tour.commands(block["body"]):
            answer = CliRunner().invoke(command.cli, shlex.split(each)[1:])
            assert answer.exit_code == 0, answer.output
            text += f"$ {each}\n" + "".join(f"{line.rstrip()}\n" for line in answer.stdout.splitlines())
        return text


def _blocks(guide: str, *commands: str) -> list[re.Match[str]]:
    begins = tuple(f"$ wirehouse {name} " for name in commands)
    return [block for block in readme_tour.blocks(guide) if block["body"].startswith(begins)]


def test_every_incident_has_a_guide_and_every_guide_an_incident() -> None:
    assert set(GUIDES) == set(INCIDENTS)
    for name, guide in GUIDES.items():
        assert f"--incident {name} " in guide
        assert f"({FOLDER.parent.name}/{FOLDER.name}/{name}.md)" in (generated_pages.FOLDER / "index.md").read_text()


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_names_a_chart_of_the_boards(name: str) -> None:
    assert _chart(GUIDES[name]) is not None


@pytest.fixture(scope="module")
def lake(in_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The captures of all guides in one lake. What `simulate` prints is as the guides say."""
    folder = tmp_path_factory.mktemp("incidents")
    sources = [
        block["body"] for guide in GUIDES.values() for block in readme_tour.blocks(guide) if block["kind"] == "toml"
    ]
    (folder / "wirehouse.toml").write_text("\n".join(['[lakehouse]\nroot = "lake"', *sources]))
    with chdir(folder):
        for guide in GUIDES.values():
            for block in _blocks(guide, "simulate"):
                assert _printed(block) == block[0]
    lake = config.load(folder / "wirehouse.toml")
    running.land(lake)
    running.run(in_process, lake)
    return lake


@pytest.mark.property
@pytest.mark.parametrize("name", GUIDES)
def test_the_statement_of_a_guide_finds_what_was_simulated(lake: Lake, name: str) -> None:
    guide = GUIDES[name]
    with chdir(Path(lake.root).parent):
        shown = [_printed(block) for block in _blocks(guide, "sql", "inspect")]
    assert shown == [block[0] for block in _blocks(guide, "sql", "inspect")]
    found = sql.rows(lake, _statement(guide))
    (row,), truth = found.slice(0, 1).drop_columns("since").to_pylist(), _truth(guide)
    since_ns = found["since"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64())[0].as_py()
    assert abs(since_ns - truth.pop("since_ns")) < SOON_NS
    for key, value in truth.items():
        # What is no column of the statement is what another command prints.
        assert row[key] == value if key in row else str(plain(value)) in shown[-1]


@pytest.mark.property
@pytest.mark.parametrize("name", GUIDES)
def test_the_chart_of_a_guide_has_something_to_show(lake: Lake, name: str) -> None:
    chart = _chart(GUIDES[name])
    assert chart is not None
    answer = answers.answer(lake, chart, Span(source=name))
    assert answer.error is None
    assert not answers.is_empty(chart, answer)


@pytest.mark.spark
# Bytes are only known to be lost when reassembly no longer waits for them.
@pytest.mark.parametrize("name", sorted(set(GUIDES) - {"nothing-decoded", "bytes-lost-in-capture"}))
def test_the_first_charts_of_a_board_say_that_it_is_wrong_and_since_when(lake: Lake, name: str) -> None:
    (protocol,) = {source.protocol for source in lake.sources if source.name == name}
    incidents = boards.boards()[protocol].incidents.charts
    rows = [row for chart in incidents for row in answers.answer(lake, chart, Span(source=name)).rows]
    assert min(abs(row["first_at_ns"] - _truth(GUIDES[name])["since_ns"]) for row in rows) < SOON_NS
