"""The bundle for Superset: every chart with its dataset, and statements that Spark takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import jinja2
import pytest

from tests.support.boards import ALL, CAPTURE, write
from wirehouse_orchestration.dashboards import answers, boards, superset
from wirehouse_orchestration.dashboards.boards import written
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import Table, all_tables


def test_the_bundle_of_superset_has_every_chart_with_its_dataset_on_its_dashboard() -> None:
    bundle = dict(superset.bundle("hive://there/gold"))
    uuids = {name: config.get("uuid") for name, config in bundle.items()}
    assert len(set(uuids.values())) == len(uuids)
    assert uuids == {name: config.get("uuid") for name, config in superset.bundle("other://")}, (
        "an import renews the last"
    )
    for board, chart in boards.charts():
        name = f"{board.name}_{chart.id}"
        dataset, drawn = bundle[f"datasets/wirehouse/{name}.yaml"], bundle[f"charts/{name}.yaml"]
        assert dataset["database_uuid"] == uuids["databases/wirehouse.yaml"]
        assert drawn["dataset_uuid"] == dataset["uuid"]
        assert drawn["slice_name"] == chart.question
        assert rendered(dataset["sql"]) == superset.sql(chart)
        assert "{" not in superset.sql(chart)
        assert f"If it shows nothing: {chart.empty}" in drawn["description"]
        assert "MEDIAN" not in dataset["sql"], "Superset makes of it what Spark doesn't take"
        places = bundle[f"dashboards/{board.name}.yaml"]["position"]
        assert places[f"CHART-{chart.id}"]["meta"]["uuid"] == drawn["uuid"]
        assert f"CHART-{chart.id}" in places[places[f"CHART-{chart.id}"]["parents"][-1]]["children"]


def rendered(text: str, **chosen: Sequence[str]) -> str:
    """The SQL of a dataset as Superset writes it out for what is chosen in the filters."""
    engine = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    engine.filters["where_in"] = lambda values: f"({', '.join(map(answers._quoted, values))})"
    return engine.from_string(text).render(filter_values=lambda name, remove_filter=False: chosen.get(name, []))


def test_a_dashboard_of_superset_is_filtered_by_source_and_window(filled: Lake) -> None:
    bundle = dict(superset.bundle("hive://there/gold"))
    text = bundle["datasets/wirehouse/overview_rules.yaml"]["sql"]

    def rules(**chosen: Sequence[str]) -> int:
        return len(sql.rows(filled, rendered(text, **chosen)).to_pylist())

    assert rules() == rules(source=["net", "it's"], window_start=["2026-11-14"]) == 2
    assert rules(source=["other"]) == rules(source=["net"], window_start=["2026-11-15"]) == 0
    for board in boards.boards().values():
        offered = bundle[f"datasets/wirehouse/{board.name}_spans.yaml"]
        assert sql.rows(filled, offered["sql"]).schema.names == list(superset.FILTERS)
        filters = bundle[f"dashboards/{board.name}.yaml"]["metadata"]["native_filter_configuration"]
        targets = [one["targets"] for one in filters]
        assert targets == [[{"datasetUuid": offered["uuid"], "column": {"name": name}}] for name in superset.FILTERS]


def test_marks_of_superset_that_lie_on_one_another_are_not_added_up() -> None:
    bundle = dict(superset.bundle("hive://there/gold"))
    added = {chart["viz_type"] for chart in _charts(bundle) if "'SUM'" in str(chart["params"])}
    assert added == {"echarts_timeseries_bar", "heatmap_v2"}
    shown = {chart["viz_type"] for chart in _charts(bundle) if "'MAX'" in str(chart["params"])}
    assert shown == {f"echarts_timeseries_{kind}" for kind in ("line", "step", "scatter")}


def _charts(bundle: Mapping[str, Any]) -> list[Any]:
    return [config for name, config in bundle.items() if name.startswith("charts/")]


def unnested(text: str) -> str:
    """SQL over temporary views, which are in no schema."""
    return re.sub(r"\b(bronze|silver|gold)\.(\w+)", r"\1_\2", text)


def _tables(spark: Any, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Tables and views with at most a row each, known to Spark."""
    made: set[str] = set()

    def make(table: Table) -> None:
        if table.name in made:
            return
        made.add(table.name)
        for name in table.reads:
            make(all_tables()[name])
        row = rows.get(table.name)
        listed = [tuple(row.get(column.name) for column in table.columns)] if row else []
        frame = spark.sql(unnested(table.view)) if table.view else spark.createDataFrame(listed, table.ddl)
        frame.createOrReplaceTempView(unnested(table.name))

    for table in all_tables().values():
        make(table)


#: Of each type of a column a value that isn't null; of others 1, or null if they are made of several.
SOME: Mapping[str, Any] = {"STRING": "x", "BINARY": CAPTURE, "BOOLEAN": True}


def _nameless(table: Table) -> dict[str, Any]:
    """A row in which all texts are null that may be."""
    sure = {"source", "window_start", *table.key} - {*table.key_may_lack}
    given = {
        column.name: None if "<" in column.type else SOME.get(column.type, 1)
        for column in table.columns
        if column.type != "STRING" or column.name in sure
    }
    return given | {"source": "net", "window_start": "2026-11-14"}


@pytest.mark.spark
def test_both_engines_answer_the_same_where_names_are_null(empty: Lake, spark: Any) -> None:
    rows = {table.name: _nameless(table) for table in all_tables().values() if not (table.view or table.internal)}
    for name, row in rows.items():
        write(empty, name, row)
    _tables(spark, {name: _as_spark(all_tables()[name], row) for name, row in rows.items()})
    answered: list[str] = []
    for board, chart in boards.charts():
        found = answers.answer(empty, chart, ALL)
        assert found.error is None
        texts = [value.field for value in chart.shown if value.kind == "category" and not value.unit]
        asked = spark.sql(unnested(superset.sql(chart))).select(*texts).collect() if texts else []
        answered += [f"{board.name}-{chart.id}"] if found.rows else []
        assert [row.asDict() for row in asked] == [{name: row[name] for name in texts} for row in found.rows if texts]
    assert {*answered} > {"wallaroo-credits", "wallaroo-unacked", "ockam-lag", "ockam-holes", "bamboo-verified"}


def _as_spark(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {column.name: column.type.partition("(")[0] for column in table.columns}
    made: dict[str, Callable[[Any], Any]] = {
        "DECIMAL": Decimal,
        "DOUBLE": float,
        "TIMESTAMP": lambda since: datetime.fromtimestamp(since, UTC),
    }
    return {name: made.get(kinds.get(name, ""), lambda same: same)(value) for name, value in row.items()}


@pytest.mark.spark
def test_spark_takes_every_statement_of_superset(spark: Any) -> None:
    _tables(spark, {})
    for _, chart in boards.charts():
        columns = set(spark.sql(unnested(superset.sql(chart))).columns)
        assert {value.field for value in chart.shown} <= columns
        behind = spark.sql(unnested(written(chart.rows.sql, superset.WORDS)))
        assert set(chart.rows.names) <= set(behind.columns)
