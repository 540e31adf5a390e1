"""The dashboards as data: infra/dashboards/*.yaml, read strictly.

The SQL of a chart is what `wirehouse sql` and Spark both take, with words of its own:

- `{span}`: the condition on source and range of time that was asked for. Every SELECT from a table has it.
- `{until}`: the same without the beginning of the range, for what goes on.
- `{step}`: nanoseconds of a bucket of time, as wide as the range asks for.
- `{now_ns}`: the time now, nanoseconds since 1970 UTC.
- `{hex:COLUMN}`: a binary column as lower-case hex, which the two engines write differently.
- `{median:COLUMN}`: the median of a column, likewise.
- `{up_to_ms:END,BEGIN}`: the power of two, milliseconds, that the time between two columns doesn't exceed; at least 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration.evidence.trace import row_key
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.tables import all_tables

#: A clone has the boards in infra/dashboards; the wheel has a copy in the package.
FOLDERS = (Path(__file__).resolve().parents[3] / "infra" / "dashboards", Path(str(files(__package__))) / "boards")
#: The board that stands first; the others are one a protocol.
FIRST = "overview"
#: Maximum number of rows of the incidents table.
MOST_INCIDENTS = 100

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Query = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True, pattern=r"\{span\}")]


class BoardError(WirehouseError):
    """A file of infra/dashboards is invalid."""

    template = "{file}: {place}: {reason}"


#: What a value of a colour means. The drawing has a colour for each.
Meaning = Literal["good", "doubtful", "bad", "absent"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Value(_Strict):
    """A column of a chart's SQL as people read it: an axis, a colour, a number or a column of a table.

    A value with a `unit` is a number; `kind: time` are nanoseconds since 1970 UTC.
    """

    field: Name
    title: Text
    unit: Text | None = None
    kind: Literal["category", "number", "time"] = "category"
    #: What a table shows where there is none.
    absent: str = ""
    #: For a colour: what its values mean. They have the colours of their meanings if each value has one.
    meanings: Mapping[str, Meaning] = {}

    @property
    def label(self) -> str:
        """The title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit and self.unit not in self.title.lower() else self.title


class Rows(_Strict):
    """The query for the rows behind a chart."""

    table: Text
    columns: Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]
    order: Text
    where: Text | None = None
    #: The column, nanoseconds, by which rows count in a range of time, here and in the chart's SQL; else in windows.
    time: Name | None = None
    #: SQL: rows that count in each range after their beginning too.
    goes_on: Text | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns in the answer."""
        return [column.rpartition(" AS ")[2].strip("`") for column in self.columns]

    def evidence(self, row: Mapping[str, Any]) -> Mapping[str, str]:
        """The pages that a row leads to, and what they show of it: no packets of a protocol that lands none."""
        protocol = PROTOCOLS.get(row.get("protocol") or all_tables()[self.table].protocol or "")
        packets = {"packets": "packets"} if protocol is None or "pcap" in protocol.kinds else {}
        return {"trace": "bytes"} | packets

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which `wirehouse trace` finds one of them."""
        return row_key(all_tables()[self.table])

    @property
    def sql(self) -> str:
        """Their SELECT, with the columns of the key, in their order by `row_order`."""
        more = [f"`{name}`" for name in self.key if name not in self.names]
        numbered = f"ROW_NUMBER() OVER (ORDER BY {self.order}) AS row_order"
        return self.select((*self.columns, *more, numbered))

    def select(self, columns: Iterable[str]) -> str:
        """A SELECT of `columns` of the rows."""
        wanted = f"({{span}} OR ({self.goes_on} AND {{until}}))" if self.goes_on else "{span}"
        wanted += f" AND {self.where}" if self.where else ""
        return f"SELECT {', '.join(columns)} FROM {self.table} WHERE {wanted}"

    @model_validator(mode="after")
    def _traceable(self) -> Rows:
        table = all_tables().get(self.table)
        if table is None:
            raise ValueError(f"there is no table {self.table}")
        if "capture_id" not in {column.name for column in table.columns}:
            raise ValueError(f"{self.table} has no column capture_id, so its rows can't be traced")
        if self.time and self.time not in {column.name for column in table.columns}:
            raise ValueError(f"{self.table} has no column {self.time}")
        return self


class Chart(_Strict):
    """A question, the SQL that answers it, and how the answer is drawn."""

    id: Name
    question: Annotated[str, StringConstraints(pattern=r"^[A-Z].*\?$")]
    type: Literal["bar", "line", "steps", "points", "heat", "numbers", "table"]
    sql: Query
    #: The text that is shown if there are no rows.
    empty: Annotated[str, StringConstraints(pattern=r"^[A-Z].*\.$")]
    rows: Rows
    #: It is only asked when somebody opens it.
    folded: bool = False
    x: Value | None = None
    y: Value | None = None
    color: Value | None = None
    values: Annotated[tuple[Value, ...], Field(strict=False)] = ()

    @property
    def drawn(self) -> bool:
        """Whether it has axes; otherwise it shows numbers or a table."""
        return not self.values

    @property
    def shown(self) -> tuple[Value, ...]:
        """The columns of its answer that are shown, in order."""
        return self.values or tuple(value for value in (self.x, self.y, self.color) if value)

    @property
    def clickable(self) -> list[str]:
        """Fields whose value identifies the rows behind a mark. The measured size is left out if it is a sum."""
        size = self.color if self.type == "heat" else self.x if self.y and self.y.unit is None else self.y
        summed = size if self.type in ("bar", "heat") else None
        return [value.field for value in self.shown if value.field in self.rows.names and value is not summed]

    @property
    def timeline(self) -> str | None:
        """The field of its drawing by which a part of the x axis is a range of time."""
        if self.x and self.x.kind == "time":
            return f"{self.x.field}_time"
        return "window_start" if self.x and self.x.field == "window_start" else None

    @model_validator(mode="after")
    def _complete(self) -> Chart:
        if (self.type in ("numbers", "table")) != bool(self.values):
            raise ValueError("numbers and table have values, all others have x and y")
        if self.drawn and not (self.x and self.y):
            raise ValueError("x and y are needed")
        measured = {"numbers": self.values, "table": (), "heat": (self.color,)}.get(self.type, (self.x, self.y))
        units = [value.unit for value in measured if value]
        if (measured and not any(units)) or (self.type == "numbers" and not all(units)):
            raise ValueError("a number has no unit")
        return self


class Sides(_Strict):
    """What the client and the server of a connection are called."""

    client: Text
    server: Text

    @property
    def sql(self) -> str:
        """A side, and the beginning of its connection's id."""
        names = f"WHEN 'client' THEN '{self.client}' WHEN 'server' THEN '{self.server}' ELSE 'connection'"
        named = f"CONCAT(CASE direction {names} END, ' ', SUBSTR({{hex:connection_id}}, 1, 8))"
        return f"CASE WHEN connection_id IS NULL THEN 'no connection' ELSE {named} END"


class Incidents(_Strict):
    """The first charts of a board: what is wrong, who is concerned, since when and how often."""

    #: The incidents.
    table: Text
    #: SQL for who is concerned, and what that is.
    who: Text = "who"
    title: Text
    #: The names of a connection's sides, for incidents of which `who` is null.
    sides: Sides | None = None

    @cached_property
    def charts(self) -> tuple[Chart, Chart]:
        """Violations, then warnings, of these first what goes on, then the newest; and notes, folded."""
        wrong = self._chart(
            "incidents",
            question="What is wrong, since when and how often?",
            where="severity <> 'note'",
            empty="Nothing that was captured broke a rule, and nothing stands still.",
        )
        noted = self._chart(
            "notes",
            question="What was noted that needs nobody?",
            where="severity = 'note'",
            empty="Nothing was noted.",
            folded=True,
        )
        return wrong, noted

    def _chart(self, name: str, *, question: str, where: str, empty: str, folded: bool = False) -> Chart:
        who = f"COALESCE({self.who}, {self.sides.sql})" if self.sides else self.who
        of = ("protocol",) if all_tables()[self.table].protocol is None else ()
        groups = ", ".join(("severity", "rule", "who", "source", *of))
        columns = ("severity", "rule", f"{who} AS who", "source", *of)
        # Ordered by plain columns: DataFusion plans no other order of a union of which parts have constants. By its
        # letters, violation comes before warning; notes have a table of their own.
        rows = Rows(
            table=self.table,
            columns=(*columns, "started_at_ns", "arrived_at_ns", "goes_on", "message"),
            where=where,
            time="arrived_at_ns",
            goes_on="goes_on",
            order="severity, goes_on DESC NULLS LAST, arrived_at_ns DESC, rule",
        )
        return Chart(
            id=name,
            question=question,
            type="table",
            sql=f"""
                SELECT {groups}, COUNT(*) AS incidents,
                  MIN(COALESCE(started_at_ns, arrived_at_ns)) AS first_at_ns,
                  CASE WHEN MAX(CASE WHEN goes_on THEN 1 ELSE 0 END) = 0 THEN MAX(arrived_at_ns) END AS last_at_ns
                FROM ({rows.select(rows.columns)}) AS found GROUP BY {groups}
                ORDER BY severity, CASE WHEN last_at_ns IS NULL THEN 0 ELSE 1 END, last_at_ns DESC, rule, who, source
                LIMIT {MOST_INCIDENTS}""",
            values=(
                Value(field="severity", title="Severity"),
                Value(field="rule", title="What"),
                Value(field="who", title=self.title),
                Value(field="source", title="Source"),
                *(Value(field=name, title=name.capitalize()) for name in of),
                Value(field="incidents", title="How often", unit="times"),
                Value(field="first_at_ns", title="Since (UTC)", kind="time"),
                Value(field="last_at_ns", title="Last (UTC)", kind="time", absent="goes on"),
            ),
            empty=empty,
            folded=folded,
            rows=rows,
        )


class Metric(_Strict):
    """A metric of `/metrics` about a protocol: a number for each source."""

    #: Without the prefix that all have.
    name: Name
    help: Annotated[str, StringConstraints(pattern=r"^[A-Z].*\.$")]
    #: A SELECT of `source` and `value`. A source without what is counted has 0.
    sql: Text


class Board(_Strict):
    """A page of charts."""

    title: Text
    question: Annotated[str, StringConstraints(pattern=r"^[A-Z].*\?$")]
    incidents: Incidents
    metrics: Annotated[tuple[Metric, ...], Field(strict=False)] = ()
    others: Annotated[tuple[Chart, ...], Field(min_length=1, strict=False, alias="charts")]
    #: The name of its file.
    name: Name

    @property
    def protocol(self) -> str | None:
        """The protocol that it is about; None of the overview."""
        return None if self.name == FIRST else self.name

    @property
    def charts(self) -> tuple[Chart, ...]:
        """What is wrong, then what takes the whole width, so that nothing stands beside a hole, then drawings."""
        return (*self.incidents.charts, *sorted(self.others, key=lambda chart: chart.drawn))

    @model_validator(mode="after")
    def _ids(self) -> Board:
        if len({chart.id for chart in self.charts}) != len(self.charts):
            raise ValueError("two charts have one id")
        return self

    def chart(self, name: str) -> Chart:
        """The chart of that id; KeyError if none."""
        return {chart.id: chart for chart in self.charts}[name]


def load(path: Path) -> Board:
    """Read the board in a file. Raises BoardError."""
    try:
        raw = yaml.safe_load(path.read_text())
        return Board(**raw, name=path.stem)
    except (yaml.YAMLError, TypeError) as error:
        raise BoardError(file=path.name, place="as YAML", reason=" ".join(str(error).split())) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the board"
        raise BoardError(file=path.name, place=place, reason=first["msg"].removeprefix("Value error, ")) from None


@cache
def boards() -> Mapping[str, Board]:
    """All boards by name, the overview first. Raises BoardError."""
    folder = next(folder for folder in FOLDERS if folder.is_dir())
    found = (load(path) for path in sorted(folder.glob("*.yaml")))
    return {board.name: board for board in sorted(found, key=lambda board: (board.name != FIRST, board.title))}


def charts() -> Iterator[tuple[Board, Chart]]:
    """Every chart with its board."""
    return ((board, chart) for board in boards().values() for chart in board.charts)


_WORDS = re.compile(r"\{(?:(span|until|step|now_ns)|(hex|median|up_to_ms):([a-z_,]+))\}")
#: Words that are the same to both engines.
_SAME = {"up_to_ms": "CASE WHEN {0} - {1} <= 1000000 THEN 1 ELSE POWER(2, CEIL(LOG2(({0} - {1}) / 1e6))) END"}


def written(sql: str, words: Mapping[str, str]) -> str:
    """`sql` with its placeholders replaced. Words with arguments have {} for each."""
    known = _SAME | dict(words)
    return _WORDS.sub(lambda found: known[found[1]] if found[1] else known[found[2]].format(*found[3].split(",")), sql)
