"""Pages of docs/ tell the truth: their commands are ones that there are, and of captures they show what is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from infra.tools import generated_pages, readme_tour
from wirehouse_orchestration.cli import command as cli
from wirehouse_pipelines.lake.protocols import PROTOCOLS

ROOT = generated_pages.FOLDER.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (readme_tour.README, *sorted(generated_pages.FOLDER.rglob("*.md")))
}
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
#: Blocks that begin with a capture which is at hand, or is simulated there and then.
SHOWN = {
    f"{page}: {block['body'].splitlines()[0]}": block
    for page, text in PAGES.items()
    if page != readme_tour.README.name
    for block in readme_tour.blocks(text)
    if re.match(r"\$ wirehouse (inspect tests/|simulate )", block["body"])
}


#: What runs commands that need a capture, a server, a terminal or a browser, or go on until they are stopped. They are
#: run as the page says here, in README's tour or with the demo lake, or by a test of their own with other values.
RUN_BY = {
    "backfill": "orchestration/cli/test_command.py",
    "dashboard": "orchestration/dashboards/test_in_a_browser.py",
    "export": "orchestration/cli/test_export.py",
    "forget": "orchestration/cli/test_command.py",
    "infra": "orchestration/infra/test_postgres.py",
    "inspect": "orchestration/cli/test_command.py",
    "land": "orchestration/cli/test_command.py",
    "run": "orchestration/cli/test_command.py",
    "simulate": "orchestration/cli/test_command.py",
    "sql": "orchestration/cli/test_command.py",
    "sql-server": "orchestration/query/test_sql_server.py",
    "trace": "orchestration/cli/test_command.py",
    "ui": "orchestration/dagster/test_ui.py",
}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of each command in a console block, pipes taken apart."""
    for page, text in PAGES.items():
        lines = [line for block in readme_tour.blocks(text) for line in readme_tour.commands(block["body"])]
        for line in lines:
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;")
            words.whitespace_split = True
            command: list[str] = []
            for word in (*words, ";"):
                if set(word) <= set("|&;"):
                    yield page, command
                    command = []
                else:
                    command.append(word)


def taken(words: list[str]) -> dict[str, object]:
    """What the command line makes of `words`; click.UsageError if it can't."""
    command: click.Command = cli.cli
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, parent=context, info_name=name)
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert rest == []
    return values


@pytest.mark.property
def test_every_command_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wirehouse.toml").write_text('[lakehouse]\nroot = "lake"\n')
    monkeypatch.chdir(tmp_path)
    seen = 0
    for page, words in commands():
        if words[:1] == ["make"]:
            assert words[1] in TARGETS, page
        elif words[:1] == ["wirehouse"]:
            values, seen = taken(words[1:]), seen + 1
            if words[1] == "report":
                assert cli._outcome(["--quiet", *words[1:]]) == 2, "an empty lake has nothing to report"
            elif isinstance(values.get("statement"), str) or words[1] in ("rules", "tables"):
                # An empty lake answers, too.
                assert cli._outcome(["--quiet", *words[1:]]) == cli.DONE, words
            else:
                runs = (ROOT / "tests" / RUN_BY[words[1]]).read_text()
                assert re.search(rf"""["' ]{words[1].replace("-", ".")}["'. ]""", runs), words
    assert seen > 50
    assert {path.name for path in tmp_path.iterdir()} >= {"found.parquet"}


def test_every_command_that_is_named_is_one() -> None:
    named = {(page, name) for page, text in PAGES.items() for name in re.findall(r"`wirehouse ([a-z][a-z-]*)", text)}
    assert [(page, name) for page, name in named if name not in cli.cli.commands] == []


@pytest.mark.property
@pytest.mark.parametrize("shown", SHOWN)
def test_what_is_shown_of_a_capture_is_printed(shown: str, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    assert readme_tour.printed(SHOWN[shown], tmp_path) == SHOWN[shown][0]


def test_every_file_that_contributing_names_exists() -> None:
    page = (generated_pages.FOLDER / "CONTRIBUTING.md").read_text()
    roots = {path.name for path in ROOT.iterdir() if path.is_dir()}
    named = {path for path in re.findall(r"`([a-z]+/[\w./-]+)`", page) if path.split("/")[0] in roots}
    assert len(named) > 40
    placeholders = re.compile("PROTOCOL|NAME|PRODUCER")
    missing = {path for path in named if not placeholders.search(path) and not (ROOT / path).exists()}
    of_protocols = {path for path in named if "PROTOCOL" in path and not placeholders.sub("", path).endswith("/.yaml")}
    missing |= {
        path for path in of_protocols for name in PROTOCOLS if not (ROOT / placeholders.sub(name, path)).exists()
    }
    assert missing == set()
