"""The boards as a bundle for Apache Superset: `python -m wirehouse_orchestration.dashboards.superset FOLDER`.

`superset import-directory` loads the bundle. A chart becomes a virtual dataset with its SQL in Spark's dialect, and a
chart that draws it. The chart's name is its question; its description explains an empty chart and gives the SQL of the
rows behind it. A board has filters for source and window, which Superset inserts into the SQL. Ids are derived from
names, so a second import updates the first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid5

import yaml

from wirehouse_orchestration.dashboards.boards import Board, Chart, Value, boards, written
from wirehouse_orchestration.servers import ports

#: Where the tables are served: `wirehouse sql-server`.
URI_VARIABLE: Final = "WIREHOUSE_SQL_URI"
URI: Final = f"hive://wirehouse@{ports.HOST}:{ports.SQL}/gold"
#: Placeholders of the boards' SQL, in Spark's dialect. A dataset has no range of time, so buckets are a minute.
WORDS: Final = {
    "span": "(1 = 1)",
    "until": "(1 = 1)",
    "step": str(60 * 10**9),
    "now_ns": "(unix_timestamp() * 1000000000)",
    "hex": "LOWER(HEX({}))",
    # Superset rewrites each statement as Hive's SQL, and then MEDIAN isn't valid in Spark.
    "median": "PERCENTILE({}, 0.5)",
}
#: Columns that a dashboard is filtered by, and what they are called.
FILTERS: Final = {"source": "Source", "window_start": "Window"}


def _chosen(names: Iterable[str]) -> str:
    """A condition as Superset writes it out when it asks, by its templates: what is chosen in the filters."""
    return "".join(
        f"{{% if filter_values('{name}', remove_filter=True) %}} AND {name} IN "
        f"{{{{ filter_values('{name}')|where_in }}}}{{% endif %}}"
        for name in names
    ).join(("(1 = 1", ")"))


#: The words that a dashboard's filters stand for.
CHOSEN: Final = {"span": _chosen(FILTERS), "until": _chosen(["source"])}
_NAMES: Final = UUID("2f1d7a52-3f0c-4f3a-9a30-6d0a4a1d4d55")
_KINDS: Final = {
    "bar": "echarts_timeseries_bar",
    "line": "echarts_timeseries_line",
    "steps": "echarts_timeseries_step",
    "points": "echarts_timeseries_scatter",
    "heat": "heatmap_v2",
    "numbers": "table",
    "table": "table",
}
#: Columns of a dashboard's grid, and the height of a chart in it.
_COLUMNS: Final = 12
_HEIGHT: Final = 50
#: The dataset that a board's filters take their values from.
_SPANS: Final = "spans"
_MOST_ROWS: Final = 5_000

Config = dict[str, Any]


def bundle(uri: str) -> Iterator[tuple[str, Config]]:
    """The files of the bundle, by name, for the tables served at the SQLAlchemy URI."""
    yield "metadata.yaml", {"version": "1.0.0", "timestamp": "2026-01-01T00:00:00+00:00"}
    database = _id("database")
    yield (
        "databases/wirehouse.yaml",
        {
            "database_name": "Wirehouse",
            "sqlalchemy_uri": uri,
            "expose_in_sqllab": True,
            "allow_dml": False,
            "allow_ctas": False,
            "allow_cvas": False,
            "extra": {"allows_virtual_table_explore": True},
            "uuid": database,
            "version": "1.0.0",
        },
    )
    for board in boards().values():
        for chart in board.charts:
            name = f"{board.name}_{chart.id}"
            yield f"datasets/wirehouse/{name}.yaml", _dataset(name, chart, database)
            yield f"charts/{name}.yaml", _chart(name, chart)
        yield f"datasets/wirehouse/{board.name}_{_SPANS}.yaml", _spans(board, database)
        yield f"dashboards/{board.name}.yaml", _dashboard(board)


def write(folder: Path, uri: str) -> None:
    """Write the bundle to `folder`."""
    for name, config in bundle(uri):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def sql(chart: Chart, words: Mapping[str, str] = WORDS) -> str:
    """The chart's SQL in Spark's dialect, with times as timestamps."""
    text = written(chart.sql, words)
    times = [value.field for value in chart.shown if value.kind == "time"]
    if not times:
        return text
    others = [value.field for value in chart.shown if value.field not in times]
    moments = (f"timestamp_micros(CAST({name} / 1000 AS BIGINT)) AS {name}" for name in times)
    return f"SELECT {', '.join((*moments, *others))} FROM ({text}) AS answer"


def aggregate(chart: Chart) -> str:
    """How rows at one position of a drawing are aggregated, where Superset needs one number: the maximum for marks."""
    return "SUM" if chart.type in ("bar", "heat") else "MAX"


def _id(*names: str) -> str:
    return str(uuid5(_NAMES, "/".join(names)))


def _dataset(name: str, chart: Chart, database: str) -> Config:
    moment = next((value.field for value in chart.shown if value.kind == "time"), None)
    text = sql(chart, WORDS | CHOSEN)
    return _virtual(name, chart.question, text, [_column(value) for value in chart.shown], database, moment)


def _spans(board: Board, database: str) -> Config:
    """The sources and windows that the board's filters offer."""
    tables = sorted({chart.rows.table for chart in board.charts})
    text = " UNION ".join(f"SELECT {', '.join(FILTERS)} FROM {table}" for table in tables)
    columns = [_column(Value(field=name, title=title)) for name, title in FILTERS.items()]
    return _virtual(f"{board.name}_{_SPANS}", f"Sources and windows of {board.title}", text, columns, database)


def _virtual(
    name: str, description: str, text: str, columns: list[Config], database: str, moment: str | None = None
) -> Config:
    return {
        "table_name": name,
        "description": description,
        "schema": "gold",
        "sql": text,
        "main_dttm_col": moment,
        "columns": columns,
        "metrics": [],
        "uuid": _id("dataset", name),
        "database_uuid": database,
        "version": "1.0.0",
    }


def _column(value: Value) -> Config:
    kind = "TIMESTAMP" if value.kind == "time" else "DOUBLE" if value.unit else "STRING"
    return {
        "column_name": value.field,
        "verbose_name": value.label,
        "type": kind,
        "is_dttm": value.kind == "time",
        "groupby": True,
        "filterable": True,
    }


def _chart(name: str, chart: Chart) -> Config:
    return {
        "slice_name": chart.question,
        "description": _description(chart),
        "viz_type": _KINDS[chart.type],
        "params": _parameters(chart) | {"row_limit": _MOST_ROWS, "viz_type": _KINDS[chart.type]},
        "uuid": _id("chart", name),
        "dataset_uuid": _id("dataset", name),
        "version": "1.0.0",
    }


def _description(chart: Chart) -> str:
    """What the chart shows if it is empty, and how to get to its rows and their bytes."""
    key = ",".join(f"{name}=..." for name in chart.rows.key)
    return "\n\n".join(
        (
            f"If it shows nothing: {chart.empty}",
            f"Rows behind it: {written(chart.rows.sql, WORDS)}",
            f"Their bytes: wirehouse trace {chart.rows.table} {key}",
        )
    )


def _parameters(chart: Chart) -> Config:
    if not chart.drawn:
        return {"query_mode": "raw", "all_columns": [value.field for value in chart.values], "order_by_cols": []}
    assert chart.x
    assert chart.y
    if chart.type == "heat":
        assert chart.color
        metric = _metric(chart.color, aggregate(chart))
        return {
            "x_axis": chart.x.field,
            "groupby": chart.y.field,
            "metric": metric,
            "normalize_across": "heatmap",
            "sort_x_axis": "alpha_asc",
        }
    lies = chart.y.unit is None
    place, measured = (chart.y, chart.x) if lies else (chart.x, chart.y)
    return {
        "x_axis": place.field,
        "metrics": [_metric(measured, aggregate(chart))],
        "groupby": [chart.color.field] if chart.color else [],
        "orientation": "horizontal" if lies else "vertical",
        "stack": "Stack" if chart.type == "bar" else None,
        # In a chart of horizontal bars the title would cover their names.
        "x_axis_title": "" if lies else place.label,
        "y_axis_title": measured.label,
        "x_axis_title_margin": 30,
        "y_axis_title_margin": 60,
        "x_axis_time_format": _TIME,
        "tooltipTimeFormat": _TIME,
        # A line with a single point shows nothing but its marker.
        "markerEnabled": not lies and chart.type != "bar",
        "y_axis_format": ".3~s" if (measured.unit or "").startswith("bytes") else ",.6~g",
        "x_axis_sort_asc": True,
        "show_legend": chart.color is not None,
        "rich_tooltip": True,
        "time_grain_sqla": None,
    }


#: How moments are written.
_TIME: Final = "%Y-%m-%d %H:%M:%S"


def _metric(value: Value, aggregate: str) -> Config:
    column = {"column_name": value.field}
    return {"expressionType": "SIMPLE", "aggregate": aggregate, "column": column, "label": value.label}


def _dashboard(board: Board) -> Config:
    return {
        "dashboard_title": f"Wirehouse: {board.title}",
        "description": board.question,
        "slug": f"wirehouse-{board.name}",
        "uuid": _id("dashboard", board.name),
        "position": _position(board),
        "metadata": {
            "color_scheme": "supersetColors",
            "native_filter_configuration": [_filter(board, name, title) for name, title in FILTERS.items()],
        },
        "version": "1.0.0",
    }


def _filter(board: Board, column: str, title: str) -> Config:
    """A filter that applies to all charts of the board."""
    return {
        "id": f"NATIVE_FILTER-{board.name}-{column}",
        "name": title,
        "type": "NATIVE_FILTER",
        "filterType": "filter_select",
        "targets": [{"datasetUuid": _id("dataset", f"{board.name}_{_SPANS}"), "column": {"name": column}}],
        "controlValues": {"multiSelect": True, "enableEmptyFilter": False},
        "defaultDataMask": {"extraFormData": {}, "filterState": {}, "ownState": {}},
        "cascadeParentIds": [],
        "scope": {"rootPath": ["ROOT_ID"], "excluded": []},
    }


def _position(board: Board) -> Config:
    """Lay out two charts per row; numbers and tables get a row each."""
    position: Config = {
        "DASHBOARD_VERSION_KEY": "v2",
        "ROOT_ID": {"type": "ROOT", "id": "ROOT_ID", "children": ["GRID_ID"]},
        "GRID_ID": {"type": "GRID", "id": "GRID_ID", "children": [], "parents": ["ROOT_ID"]},
        "HEADER_ID": {"type": "HEADER", "id": "HEADER_ID", "meta": {"text": f"Wirehouse: {board.title}"}},
    }
    for number, charts in enumerate(_rows(board.charts)):
        row = f"ROW-{number}"
        position["GRID_ID"]["children"].append(row)
        children = [f"CHART-{chart.id}" for chart in charts]
        position[row] = {
            "type": "ROW",
            "id": row,
            "children": children,
            "parents": ["ROOT_ID", "GRID_ID"],
            "meta": {"background": "BACKGROUND_TRANSPARENT"},
        }
        for child, chart in zip(children, charts, strict=True):
            position[child] = {
                "type": "CHART",
                "id": child,
                "children": [],
                "parents": ["ROOT_ID", "GRID_ID", row],
                "meta": _place(board, chart, _COLUMNS // len(charts)),
            }
    return position


def _place(board: Board, chart: Chart, width: int) -> Mapping[str, Any]:
    height = _HEIGHT if chart.drawn else _HEIGHT // 2
    uuid = _id("chart", f"{board.name}_{chart.id}")
    return {"uuid": uuid, "chartId": 0, "sliceName": chart.question, "width": width, "height": height}


def _rows(charts: Sequence[Chart]) -> Iterator[list[Chart]]:
    waiting: list[Chart] = []
    for chart in charts:
        if not chart.drawn:
            yield [chart]
            continue
        waiting.append(chart)
        if len(waiting) == 2:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


if __name__ == "__main__":
    write(Path(sys.argv[1]), os.environ.get(URI_VARIABLE, URI))
