"""The generated pages are those that the data gives."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra.tools import diagrams, generated_pages
from wirehouse_codecs.core.machines import Machine
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.tables import all_tables


class Door(Enum):
    SHUT = "shut"
    WIDE = "wide open"


class Hand(Enum):
    PUSH = "push"
    PULL = "pull"


class Step(NamedTuple):
    state: Door
    settled: Door
    rule: str | None = None


@pytest.mark.parametrize("name", generated_pages.PAGES)
def test_a_generated_page_is_fresh(name: str) -> None:
    assert (generated_pages.FOLDER / name).read_text() == generated_pages.PAGES[name](), (
        "run python -m infra.tools.generated_pages"
    )


def test_the_dictionary_has_every_table_and_column() -> None:
    page = generated_pages.data_dictionary()
    for table in all_tables().values():
        section = page.split(f"### {table.name}\n")[1].split("\n### ")[0]
        assert all(f"| `{column.name}` |" in section for column in table.columns)


def test_the_rules_page_has_every_rule() -> None:
    page = generated_pages.rules_page()
    for protocol in PROTOCOLS.values():
        assert f"## {protocol.title}" in page
        assert all(f"| `{rule.id}` | {rule.severity}" in page for rule in protocol.rules)


def test_a_machine_is_drawn_from_its_table() -> None:
    machine = Machine(
        "door",
        Door.SHUT,
        {(Door.SHUT, Hand.PUSH): Step(Door.SHUT, Door.WIDE), (Door.WIDE, Hand.PUSH): Step(Door.WIDE, Door.WIDE, "no")},
        settled_when="nobody holds it",
        unlisted=lambda state, hand: "unheard_of" if state is Door.SHUT else None,
        besides={(Door.WIDE, "wind"): Door.SHUT},
    )
    assert list(diagrams._arrows(machine, machine.edges())) == [
        'start -> "shut";',
        '"shut" -> "wide open" [label="push, if nobody holds it"];',
        '"wide open" -> "shut" [label="wind"];',
    ]
    assert list(generated_pages._pairs(machine.edges()))[2:] == [
        "| shut | push | shut |  |",
        "| shut | push, if nobody holds it | wide open |  |",
        "| shut | pull |  | `unheard_of` |",
        "| wide open | push | wide open | `no` |",
        "| wide open | wind | shut |  |",
    ]


def test_check_tells_a_stale_page_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generated_pages, "FOLDER", tmp_path)
    assert generated_pages.main(["--check"]) == 1
    assert "docs/rules.md is stale" in capsys.readouterr().out
    assert generated_pages.main([]) == 0
    assert generated_pages.main(["--check"]) == 0


def test_the_site_has_every_page_and_no_link_leaves_it() -> None:
    navigation = tomllib.loads((generated_pages.FOLDER.parent / "zensical.toml").read_text())["project"]["nav"]
    folder = generated_pages.FOLDER
    pages = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.md")}
    assert sorted(_pages_of(navigation)) == sorted(pages)
    # The build itself, in `make check`, checks links between pages.
    up = {name: "](" + "../" * (name.count("/") + 1) for name in pages}
    assert [name for name, page in pages.items() if up[name] in page or "](/" in page] == []


def _pages_of(navigation: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(navigation, str):
        yield navigation
    else:
        parts = navigation.values() if isinstance(navigation, dict) else navigation
        for part in parts:
            yield from _pages_of(part)


def test_an_input_that_many_states_share_is_drawn_once() -> None:
    class Stage(Enum):
        A, B, C, D, GONE = "a", "b", "c", "d", "gone"

    class Change(NamedTuple):
        state: Stage

    ways = {(stage, Hand.PULL): Change(Stage.GONE) for stage in Stage}
    machine = Machine("stage", Stage.A, ways)
    arrows = list(diagrams._arrows(machine, machine.edges()))
    assert [arrow for arrow in arrows if arrow.endswith('-> "gone" [label="pull"];')] == arrows[-1:]
    assert "any other state" in arrows[-2]


def test_a_drawing_is_the_same_wherever_it_is_made() -> None:
    image = diagrams.svg('digraph { a -> b [label="<&"]; }')
    assert image.startswith("<svg ")
    assert image == diagrams.svg('digraph { a -> b [label="<&"]; }')
    assert "&lt;&amp;" in image
    assert "graphviz" not in image
