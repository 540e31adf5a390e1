"""README tells the truth: its tour prints what the page says, and what it names is there."""

from __future__ import annotations

import re

import pytest

from infra.tools import readme_tour
from wirehouse_orchestration.cli import command

PAGE = readme_tour.README.read_text()


@pytest.mark.spark
def test_the_tour_prints_what_the_page_says() -> None:
    assert readme_tour.written(PAGE) == PAGE, "run python -m infra.tools.readme_tour"


def test_every_command_of_the_page_is_one() -> None:
    named = re.findall(r"(?:`|^\$ )wirehouse ([a-z]+)", PAGE, re.MULTILINE)
    assert [name for name in named if name not in command.cli.commands] == []


def test_every_command_stands_on_the_page() -> None:
    assert [name for name in command.cli.commands if f"`wirehouse {name}" not in PAGE and f"`{name}`" not in PAGE] == []


def test_links_of_the_page_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE)
    assert [link for link in links if not (readme_tour.README.parent / link).exists()] == []


def test_outputs_are_replaced_and_everything_else_stays() -> None:
    page = """a
<!-- tour: x -->
```toml
root = 1
```
```console
$ cat wirehouse.toml
old
$ true
```
<!-- end of tour -->
```console
$ no
```
"""
    assert readme_tour.written(page) == page.replace("old\n", "root = 1\n")


def test_a_command_that_fails_is_told() -> None:
    with pytest.raises(readme_tour.TourError, match="exit code 3"):
        readme_tour.written("<!-- tour -->\n```console\n$ exit 3\n```\n<!-- end of tour -->")


def test_a_command_goes_on_while_a_quote_is_open() -> None:
    body = "$ true  # it's a comment\n$ echo 'one\n  two' | cat\none\n"
    assert list(readme_tour.commands(body)) == ["true  # it's a comment", "echo 'one\n  two' | cat"]
