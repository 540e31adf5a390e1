"""The page of recipes: every statement runs without a JVM, and answers its question."""

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


def test_there_are_twenty() -> None:
    assert list(RECIPES) == list(range(1, 21))


@pytest.mark.parametrize("number", RECIPES)
def test_a_recipe_answers_its_question(lake: Lake, number: int) -> None:
    found = sql.rows(lake, RECIPES[number]).to_pylist()
    assert recipe_lake.shown([row.values() for row in found]) == recipe_lake.ANSWERS[number]


@pytest.mark.parametrize("number", RECIPES)
def test_a_recipe_answers_nothing_of_an_empty_lake(tmp_path: Path, number: int) -> None:
    assert sql.rows(Lake(str(tmp_path), Windows("day", "2015-01-01")), RECIPES[number]).num_rows == 0
