"""The tables of the lakehouse, read from the YAML files beside this module.

One YAML a table or view is the only source of its Spark schema, its DDL with comments, the Dagster column schema
and the data dictionary. `use: NAME` in a list of columns stands for a group of shared_columns.yaml. A table with
`entity: VIEW` holds a row per key and window in which the key changed; VIEW is its newest row per key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Column:
    """A column: Spark SQL type and what it holds."""

    name: str
    type: str
    comment: str

    @property
    def ddl(self) -> str:
        """`name` TYPE COMMENT '...', for CREATE TABLE and for a Spark schema."""
        comment = self.comment.replace("\\", "\\\\").replace("'", "\\'")
        return f"`{self.name}` {self.type} COMMENT '{comment}'"


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table, or a view if `view` is its SELECT."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    protocol: str | None = None
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    #: Columns of the key that may be null.
    key_may_lack: tuple[str, ...] = ()
    #: Columns by which rows are sorted inside a file.
    order: tuple[str, ...] = ()
    #: Columns of which each file keeps the least and the greatest value, by which readers pass files over. Every one
    #: costs time for each row that is written; empty: those that Delta takes by itself.
    stats: tuple[str, ...] = ()
    #: SELECT over other tables as `layer.name`, valid in Spark SQL and DataFusion; None for a Delta table.
    view: str | None = None
    #: Of an entity's history: the name of the view of its newest rows.
    entity: str | None = None
    #: Carried state: not shown to people.
    internal: bool = False

    @property
    def layer(self) -> str:
        """bronze, silver or gold."""
        return self.name.partition(".")[0]

    @property
    def ddl(self) -> str:
        """The columns as a Spark DDL string."""
        return ", ".join(column.ddl for column in self.columns)


def _columns(listed: list[dict[str, str]], shared: dict[str, list[dict[str, str]]]) -> tuple[Column, ...]:
    out: list[Column] = []
    for item in listed:
        out.extend(_columns(shared[item["use"]], shared) if "use" in item else [Column(**item)])
    return tuple(out)


def _quoted(names: Iterable[str]) -> str:
    """Names for a SELECT list; in backticks, since `offset` is a keyword to one engine and not to the other."""
    return ", ".join(f"`{name}`" for name in names)


def _newest(history: Table, view: str) -> Table:
    """The view of an entity: of each key the row of its last window."""
    names = _quoted(column.name for column in history.columns)
    keys = _quoted(history.key)
    select = (
        f"SELECT {names} FROM (SELECT {names}, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY window_start DESC) "
        f"AS newest FROM {history.name}) AS history WHERE newest = 1"
    )
    return Table(
        name=view,
        comment=f"{history.comment.split(',')[0]}: the newest row of each.",
        columns=history.columns,
        protocol=history.protocol,
        key=history.key,
        view=select,
    )


def _union(raw: dict[str, Any], columns: tuple[Column, ...], tables: dict[str, Table]) -> str:
    """A view over the tables of all protocols that have one, with the columns listed."""
    names = _quoted(column.name for column in columns)
    protocols = sorted({table.protocol for table in tables.values() if table.protocol})
    parts = [
        f"SELECT {names} FROM {raw['union'].format(protocol=protocol)}"
        for protocol in protocols
        if raw["union"].format(protocol=protocol) in tables
    ]
    return " UNION ALL ".join([*parts, *([raw["also"]] if "also" in raw else [])])


@cache
def all_tables() -> dict[str, Table]:
    """Every table and view by name, sorted by layer (bronze, silver, gold) and name."""
    folder = files(__package__)
    texts = {item.name: yaml.safe_load(item.read_text()) for item in folder.iterdir() if item.name.endswith(".yaml")}
    shared = texts.pop("shared_columns.yaml")
    tables: dict[str, Table] = {}
    unions: list[dict[str, Any]] = []
    for raw in texts.values():
        if "union" in raw:
            unions.append(raw)
            continue
        fields = raw | {
            "columns": _columns(raw["columns"], shared),
            **{name: tuple(raw.get(name, ())) for name in ("partition_by", "key", "key_may_lack", "order", "stats")},
        }
        table = Table(**fields)
        tables[table.name] = table
        if table.entity:
            tables[table.entity] = _newest(table, table.entity)
    for raw in unions:
        columns = _columns(raw["columns"], shared)
        view, key = _union(raw, columns, tables), tuple(raw.get("key", ()))
        tables[raw["name"]] = Table(raw["name"], raw["comment"], columns, key=key, view=view)
    rank = {"bronze": 0, "silver": 1, "gold": 2}
    return dict(sorted(tables.items(), key=lambda item: (rank[item[1].layer], item[0])))
