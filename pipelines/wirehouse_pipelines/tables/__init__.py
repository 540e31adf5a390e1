"""The tables of the lakehouse, read from the YAML files beside this module.

One YAML a table or view is the only source of its Spark schema, its DDL with comments, the Dagster column schema
and the data dictionary. In a list of columns `use: NAME` stands for a group of shared_columns.yaml, and a column with
`struct:` is a STRUCT of the columns listed there, for which tables of later layers have `use: LAYER.TABLE.COLUMN`;
`without: [NAME, …]` beside `use` leaves some out. A table with `entity: VIEW` holds a row per key and window in which
the key changed; VIEW is its newest row per key, or what a YAML of that name defines.

A view is given as `view:`, its SELECT, in which `{newest:TABLE}` stands for the newest rows of an entity's history; as
`union:`, the tables of that name of all protocols; or as `unfold:`, rows of a `table` (those of a condition `where`, or
the `newest` of each key), with the fields of a `struct`, if it names one, beside its columns. In the latter's list of
columns `use: NAME` may also name a column of the table, a field of the struct, or the struct for all its fields; of
columns of one name the first counts. `also: TABLE` adds the rows of another table to such a view. Columns that a part
of a union lacks are null there.

A log with `over: tcp` has the views of tcp_views.yaml.

The YAMLs declare moments as nanoseconds since 1970, which order rows exactly. Tables of gold, and all views, have each
moment also as a TIMESTAMP: `arrived_at` beside `arrived_at_ns`, `ts_at` beside `ts_ns`. Tables store it, and views
compute it, each engine by an expression of its own. Views also have `window_begin`, the beginning of `window_start`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple

import yaml

from wirehouse_codecs.core.errors import WirehouseError

#: A table as SQL names it.
NAMED: Final = re.compile(r"\b(?:bronze|silver|gold)\.[a-z_]+\b")
#: The name of a column that is a moment in nanoseconds since 1970. Other columns in nanoseconds are durations.
_MOMENT: Final = re.compile(r"(\w+_at|\w+_since|valid_from|valid_to|ts)_ns")
WINDOW: Final = "window_start"
#: In the SELECT of a view: the newest rows of an entity's history.
_HISTORY: Final = re.compile(r"\{newest:([a-z_.]+)\}")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: Spark SQL type and what it holds."""

    name: str
    type: str
    comment: str
    #: The columns that a STRUCT is made of, if they were given as such.
    fields: tuple[Column, ...] = ()
    #: For a view that unfolds a table: the SQL that gives the column; None for what has its name there.
    of: str | None = None
    #: For a time: the column that it is computed from, which is nanoseconds since 1970 or the name of a window.
    time_of: str | None = None

    @property
    def ddl(self) -> str:
        """`name` TYPE COMMENT '...', for CREATE TABLE and for a Spark schema."""
        comment = self.comment.replace("\\", "\\\\").replace("'", "\\'")
        return f"`{self.name}` {self.type} COMMENT '{comment}'"


class Dialect(NamedTuple):
    """How an engine computes the time, to the microsecond in UTC, of a moment and of a window's beginning."""

    of_moment: str
    of_window: str


#: The first second of a window, from its name: a day or an hour.
_BEGIN: Final = f"CONCAT({WINDOW}, SUBSTR('T00:00:00', LENGTH({WINDOW}) - 9))"
SPARK: Final = Dialect("timestamp_micros({} DIV 1000)", f"TRY_CAST({_BEGIN} AS TIMESTAMP)")
_IN_UTC: Final = "arrow_cast({}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
DATAFUSION: Final = Dialect(_IN_UTC.format("{} / 1000"), _IN_UTC.format(f"TRY_CAST({_BEGIN} AS TIMESTAMP)"))


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
    #: Columns of which each file keeps the least and the greatest value, by which readers pass files over.
    stats: tuple[str, ...] = ()
    #: SELECT over other tables as `layer.name`, valid in Spark SQL and DataFusion; None for a Delta table. It gives the
    #: columns except times, which `statement` adds.
    view: str | None = None
    #: For an entity's history: the name of the view of its newest rows.
    entity: str | None = None
    #: Whether it is carried state, or passed on between the stages of a job: not shown to people.
    internal: bool = False
    #: The values of partition columns whose rows are carried state, if the table has any; () are all its rows.
    carried: tuple[tuple[str, str], ...] | None = None

    @property
    def layer(self) -> str:
        """bronze, silver or gold."""
        return self.name.partition(".")[0]

    @property
    def ddl(self) -> str:
        """The columns as a Spark DDL string."""
        return ", ".join(column.ddl for column in self.columns)

    @property
    def reads(self) -> list[str]:
        """The tables and views that a view's SELECT names, in its order."""
        return list(dict.fromkeys(NAMED.findall(self.view or "")))

    @property
    def declared(self) -> tuple[Column, ...]:
        """The columns without times, which follow from them."""
        return tuple(column for column in self.columns if not column.time_of)

    def statement(self, dialect: Dialect) -> str:
        """The SELECT of a view with all its columns, for an engine."""

        def selected(column: Column) -> str:
            if column.time_of is None:
                return f"`{column.name}`"
            how = dialect.of_window if column.time_of == WINDOW else dialect.of_moment
            return f"{how.format(f'`{column.time_of}`')} AS `{column.name}`"

        return f"SELECT {', '.join(map(selected, self.columns))} FROM ({self.view}) AS rows_of_view"

    @property
    def listed(self) -> bool:
        """Whether people are shown it: it is no carried state, and no history of which a view has the newest rows."""
        return not (self.internal or self.entity)


Groups = dict[str, tuple[Column, ...]]


def _columns(listed: list[dict[str, Any]], groups: Groups) -> tuple[Column, ...]:
    out: list[Column] = []
    for item in listed:
        if "use" in item:
            out.extend(_group(groups, **item))
        elif "struct" in item:
            fields = _columns(item["struct"], groups)
            described = ", ".join(f"{field.name}: {field.type}" for field in fields)
            out.append(Column(item["name"], f"STRUCT<{described}>", item["comment"], fields))
        else:
            out.append(Column(**item))
    return tuple(out)


def _group(groups: Groups, use: str, without: Iterable[str] = ()) -> Iterable[Column]:
    """The columns of a group except some. KeyError if one of these isn't there."""
    columns = {column.name: column for column in groups[use]}
    for name in without:
        del columns[name]
    return columns.values()


def _with_times(columns: Sequence[Column], *, view: bool) -> tuple[Column, ...]:
    """`columns` with the time of each moment after it; of a view also the beginning of the window."""
    there = {column.name for column in columns}
    out: list[Column] = []
    for column in columns:
        out.append(column)
        moment = _MOMENT.fullmatch(column.name)
        if moment and column.type == "BIGINT":
            name = f"{moment[1].removesuffix('_at')}_at"
            if name not in there:
                out.append(Column(name, "TIMESTAMP", f"`{column.name}` in UTC", time_of=column.name))
        elif view and column.name == WINDOW:
            out.append(Column("window_begin", "TIMESTAMP", "When the window begins, UTC", time_of=WINDOW))
    return tuple(out)


def _quoted(names: Iterable[str]) -> str:
    """Names for a SELECT list; in backticks, since `offset` is a keyword to one engine and not to the other."""
    return ", ".join(f"`{name}`" for name in names)


def _newest(table: Table, key: Iterable[str], where: str | None = None) -> str:
    """The rows of `table` (those of the condition), of each key that of its last window.

    Few keys have rows of several windows. To find these and leave out their older rows takes a fifth of the time of
    ROW_NUMBER, which sorts all rows by key. Nulls are equal here.
    """
    rows = f"{table.name} WHERE {where}" if where else table.name
    types = {column.name: column.type for column in table.columns}
    same = [f"history.`{name}` = later.`{name}`" for name in key if name not in table.key_may_lack]
    for name in table.key_may_lack:
        filled = "COALESCE({0}.`{1}`, {2})"
        some = "''" if types[name] == "STRING" else "0"
        same += [f"{filled.format('history', name, some)} = {filled.format('later', name, some)}"]
        same += [f"(history.`{name}` IS NULL) = (later.`{name}` IS NULL)"]
    later = (
        f"SELECT {_quoted(key)}, MAX({WINDOW}) AS last_window FROM {rows} GROUP BY {_quoted(key)} "
        f"HAVING MIN({WINDOW}) < MAX({WINDOW})"
    )
    older = f"SELECT 1 FROM ({later}) AS later WHERE {' AND '.join(same)} AND history.{WINDOW} < later.last_window"
    return f"(SELECT * FROM (SELECT * FROM {rows}) AS history WHERE NOT EXISTS ({older}))"


def _entity(history: Table, view: str) -> Table:
    """The view of an entity: of each key the row of its last window."""
    names = _quoted(column.name for column in history.declared)
    return Table(
        name=view,
        comment=f"{history.comment.split(',')[0]}: the newest row of each.",
        columns=_with_times(history.declared, view=True),
        protocol=history.protocol,
        key=history.key,
        view=f"SELECT {names} FROM {_newest(history, history.key)} AS history",
    )


def _unfolded(raw: dict[str, Any], groups: Groups, tables: Mapping[str, Table]) -> tuple[tuple[Column, ...], str]:
    """The columns and the SELECT of a view that unfolds a table."""
    table, struct = tables[raw["unfold"]["table"]], raw["unfold"].get("struct", "")
    fields = next((column.fields for column in table.columns if column.name == struct), ())
    known: Groups = {column.name: (column,) for column in (*table.columns, *fields)} | {struct: fields} | groups
    columns: dict[str, Column] = {}
    for column in _columns(raw["columns"], known):
        columns.setdefault(column.name, column)
    inside = {field.name for field in fields}

    def selected(column: Column) -> str:
        of = f"`{struct}`.`{column.name}`" if column.name in inside else f"`{column.name}`"
        return f"{column.of or of} AS `{column.name}`"

    rows, where = table.name, raw["unfold"].get("where")
    if raw["unfold"].get("newest"):
        rows = f"{_newest(table, raw['key'], where)} AS history"
    elif where:
        rows += f" WHERE {where}"
    return tuple(columns.values()), f"SELECT {', '.join(map(selected, columns.values()))} FROM {rows}"


def _part(columns: Iterable[Column], table: Table) -> str:
    """The rows of `table` with these columns, null where it lacks one."""
    there = {column.name for column in table.columns}

    def selected(column: Column) -> str:
        if column.name in there:
            return f"`{column.name}`"
        if column.type != "BINARY":
            return f"CAST(NULL AS {column.type}) AS `{column.name}`"
        # DataFusion has no type of the name BINARY.
        some = next(other.name for other in table.columns if other.type == "BINARY")
        return f"NULLIF(`{some}`, `{some}`) AS `{column.name}`"

    return f"SELECT {', '.join(map(selected, columns))} FROM {table.name}"


def _view(raw: dict[str, Any], groups: Groups, tables: Mapping[str, Table]) -> Table:
    """A view that is made from tables: it unfolds one, or unites those of all protocols."""
    if "unfold" in raw:
        columns, select = _unfolded(raw, groups, tables)
        parts = [select]
    else:
        columns = _columns(raw["columns"], groups)
        protocols = sorted({table.protocol for table in tables.values() if table.protocol})
        united = (raw["union"].format(protocol=protocol) for protocol in protocols)
        parts = [_part(columns, tables[name]) for name in united if name in tables]
    if "also" in raw:
        parts.append(_part(columns, tables[raw["also"]]))
    return Table(
        name=raw["name"],
        comment=raw["comment"],
        columns=_with_times(columns, view=True),
        protocol=raw.get("protocol"),
        key=tuple(raw.get("key", ())),
        view=" UNION ALL ".join(parts),
    )


def _folders() -> Iterator[Traversable]:
    return (folder for folder in files(__package__).iterdir() if folder.is_dir())


def _read(name: str) -> str:
    (file,) = (folder / name for folder in _folders() if (folder / name).is_file())
    return file.read_text()


@cache
def shared_columns() -> Groups:
    """The groups of columns that mean the same in every table, by name."""
    groups: Groups = {}
    for name, listed in _parsed(_read("shared_columns.yaml")).items():
        groups[name] = _columns(listed, groups)
    return groups


def _parsed(text: str) -> Any:
    # By libyaml in a tenth of the time: every command starts with it.
    return yaml.load(text, yaml.CSafeLoader)


def _definitions() -> Iterator[dict[str, Any]]:
    """The content of the YAMLs, and of tcp_views.yaml for each log over TCP."""
    names = (item.name for folder in _folders() for item in folder.iterdir() if item.name.endswith(".yaml"))
    for name in sorted({*names} - {"shared_columns.yaml", "tcp_views.yaml"}):
        raw = _parsed(_read(name))
        if raw.pop("over", None) == "tcp":
            yield from _parsed(_read("tcp_views.yaml").replace("{protocol}", raw["protocol"]))
        yield raw


def _after(raw: dict[str, Any]) -> tuple[int, ...]:
    """What definitions are sorted by, so that each comes after those that it uses."""
    return "union" in raw, "unfold" in raw, "view" in raw, _rank(raw["name"])


def _rank(name: str) -> int:
    return ("bronze", "silver", "gold").index(name.partition(".")[0])


class TableMissingError(WirehouseError):
    """No YAML declares a table."""

    template = "no YAML declares {name}: pipelines/wirehouse_pipelines/tables/PROTOCOL/{name}.yaml is missing"


class _Tables(dict[str, Table]):
    def __missing__(self, name: str) -> Table:
        raise TableMissingError(name=name)


@cache
def all_tables() -> dict[str, Table]:
    """Every table and view by name, sorted by layer (bronze, silver, gold) and name.

    TableMissingError where one is looked up that no YAML declares.
    """
    groups = dict(shared_columns())
    tables: dict[str, Table] = {}
    # Views after what they are made from, tables after those whose structs they use.
    for raw in sorted(_definitions(), key=_after):
        if "unfold" in raw or "union" in raw:
            tables[raw["name"]] = _view(raw, groups, tables)
            continue
        columns = _columns(raw["columns"], groups)
        if "view" in raw or (raw["name"].startswith("gold.") and not raw.get("internal")):
            columns = _with_times(columns, view="view" in raw)
        fields = raw | {
            "columns": columns,
            **{name: tuple(raw.get(name, ())) for name in ("partition_by", "key", "key_may_lack", "order", "stats")},
        }
        if "carried" in raw:
            fields["carried"] = tuple(raw["carried"].items())
        if "view" in raw:
            fields["view"] = _HISTORY.sub(lambda found: _newest(tables[found[1]], tables[found[1]].key), raw["view"])
        table = Table(**fields)
        tables[table.name] = table
        groups |= {f"{table.name}.{column.name}": column.fields for column in table.columns if column.fields}
        if table.entity:
            tables.setdefault(table.entity, _entity(table, table.entity))
    return _Tables(sorted(tables.items(), key=lambda item: (_rank(item[0]), item[0])))


def beneath(name: str) -> set[str]:
    """The Delta tables that a view is made of; a table is made of itself."""
    table = all_tables()[name]
    return {name} if table.view is None else set().union(*map(beneath, table.reads))
