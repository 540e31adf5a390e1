"""Recipes and how-to guides: every statement runs without a JVM, and answers its question."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import recipe_lake
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql

RECIPES = recipe_lake.recipes()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(str(tmp_path_factory.mktemp("recipes")), Windows("day", "2015-01-01"))
    recipe_lake.write(lake)
    return lake


def test_every_page_has_statements_with_known_answers() -> None:
    assert set(RECIPES) == set(recipe_lake.ANSWERS)
    # Of a recomputation and of an erasure there is nothing to ask, or little.
    assert {name.split()[0] for name in RECIPES} == {page.stem for page in recipe_lake.PAGES} - {"recompute"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_statement_answers_its_question(lake: Lake, name: str) -> None:
    found = sql.rows(lake, recipe_lake.here(RECIPES[name])).to_pylist()
    assert recipe_lake.shown([row.values() for row in found]) == recipe_lake.ANSWERS[name]


@pytest.mark.parametrize("name", RECIPES)
def test_a_statement_answers_nothing_of_an_empty_lake(tmp_path: Path, name: str) -> None:
    assert sql.rows(Lake(str(tmp_path), Windows("day", "2015-01-01")), RECIPES[name]).num_rows == 0
