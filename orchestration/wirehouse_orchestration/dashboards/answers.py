"""Runs the SQL of a chart for a range of time, without a JVM."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.dashboards.boards import Chart, Rows, written
from wirehouse_orchestration.evidence.trace import key_of
from wirehouse_orchestration.terminal.output import rows_of
from wirehouse_orchestration.terminal.render import plain, shell_word
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import DATAFUSION, NAMED, all_tables, beneath

#: Rows of an answer that are drawn.
MOST_DRAWN: Final = 5_000
#: Rows behind a chart that are listed.
MOST_ROWS: Final = 200
#: Buckets that a range of time is cut into at most, and how wide they may be, nanoseconds: 1 ms to a day.
BUCKETS: Final = 240
STEPS: Final = tuple(
    [number * unit for unit in (10**6, 10**7, 10**8) for number in (1, 2, 5)]
    + [seconds * 10**9 for seconds in (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400)]
)
_AGO: Final = re.compile(r"-([0-9]{1,6})([smhd])")
_UNITS: Final = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_MOMENT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(\.[0-9]{1,6})?)?)?)?")
#: Length in nanoseconds of what a time names, by its number of characters.
_WIDTHS: Final = {10: _UNITS["d"], 13: _UNITS["h"], 16: _UNITS["m"], 19: _UNITS["s"]}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
_LIMIT: Final = re.compile(r"\bLIMIT ([0-9]+)\b")
#: Words of the boards' SQL that DataFusion has its own way for.
WORDS: Final = {"hex": "encode({}, 'hex')", "median": "MEDIAN({})"}


class SpanError(UsageError):
    """The requested span isn't in the lake."""

    template = "{reason}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of time: its first and its last nanosecond, None where it is open, and the windows that they lie in."""

    begin_ns: int | None
    end_ns: int | None
    first: str | None
    last: str | None
    #: Whether it is made of whole windows.
    whole: bool


@dataclass(frozen=True, slots=True)
class Span:
    """A requested range of time, both ends included, and a source; None for all.

    An end is a day, an hour, a minute, a second or a part of one, in UTC and as wide as it is written: `2026-11-14`,
    `2026-11-14T22`, `2026-11-14T22:10`. Windows are named in this way. `-15m` is the moment 15 minutes ago.
    """

    first: str | None = None
    last: str | None = None
    source: str | None = None

    def check(self, lake: Lake, protocol: str | None = None) -> None:
        """Raise an error, with what to do, if it is none of the lake's, or its source is of another protocol."""
        bounds = self.bounds(lake)
        if bounds.begin_ns is not None and bounds.end_ns is not None and bounds.begin_ns > bounds.end_ns:
            raise SpanError(reason=f"the range begins at {self.first}, after its end, {self.last}")
        if self.source and not is_known(lake, protocol, self.source):
            known = names_of(lake, protocol) | set(sources(lake, protocol))
            of = f" of {protocol}" if protocol else ""
            reason = f"there is no source {self.source!r}{of}, only {', '.join(sorted(known)) or 'none'}"
            raise SpanError(reason=f"{reason}; nothing of it has landed, and it is not configured")

    def bounds(self, lake: Lake) -> Bounds:
        """The span as nanoseconds and as windows. Raises SpanError if an end can't be read."""
        windows = lake.windows
        begin = _moment(self.first)[0] if self.first else None
        end = _moment(self.last)[1] if self.last else None
        first = None if begin is None else windows.of(begin)
        last = None if end is None else windows.of(end)
        whole = (first is None or windows.start_ns(first) == begin) and (last is None or windows.end_ns(last) == end)
        return Bounds(begin, end, first, last, whole)

    def check_data(self, lake: Lake) -> None:
        """Raise an error if it has no window; it names those that there are. If that can't be read, charts show why."""
        self.check(lake)
        there = "SELECT MIN(window_start) AS first, MAX(window_start) AS last, COUNT(*) AS windows FROM bronze.windows"
        found = _asked(lake, lambda: f"{there} WHERE {self.condition(lake)}", 1)
        if found.error is not None or found.rows[0]["windows"]:
            return
        (row,) = _asked(lake, lambda: there, 1).rows
        known = f"the lake has {row['first']} to {row['last']}" if row["windows"] else "the lake has no window"
        raise SpanError(reason=f"there is no window with data in {self}: {known}")

    def condition(self, lake: Lake, time_column: str | None = None) -> str:
        """The span as SQL. What several sources saw together has the name of their service as its source.

        If the span isn't whole windows, rows with a time count by it. A row may be in a later window than its time.
        """
        bounds = self.bounds(lake)
        timed = time_column and not bounds.whole
        parts = [f"window_start >= '{bounds.first}'"] if bounds.first else []
        parts += [f"window_start <= '{bounds.last}'"] if bounds.last and not timed else []
        parts += [f"{time_column} >= {bounds.begin_ns}"] if bounds.first and timed else []
        parts += [f"{time_column} <= {bounds.end_ns}"] if bounds.last and timed else []
        if self.source:
            own = {name for one in lake.sources_of(self.source) for name in (one.name, one.service)} or {self.source}
            parts.append(f"source IN ({', '.join(sorted(_quoted(name) for name in own))})")
        return f"({' AND '.join(parts)})" if parts else "(1 = 1)"

    @property
    def query(self) -> str:
        """The span as the query of a URL."""
        asked = {"from": self.first, "to": self.last, "source": self.source}
        return urlencode({name: value for name, value in asked.items() if value})

    def __str__(self) -> str:
        match self.first, self.last:
            case None, None:
                text = "all windows"
            case first, None:
                text = f"{first} and later"
            case None, last:
                text = f"{last} and earlier"
            case first, last:
                text = str(first) if first == last else f"{first} to {last}"
        return f"{text} of {self.source}" if self.source else text


def _moment(text: str) -> tuple[int, int]:
    """The first and the last nanosecond of what `text` names."""
    if found := _AGO.fullmatch(text):
        at = time.time_ns() - int(found[1]) * _UNITS[found[2]]
        return _in_range(at), _in_range(at)
    found = _MOMENT.fullmatch(text)
    try:
        begin = datetime.fromisoformat(text).replace(tzinfo=UTC) if found else None
    except ValueError:
        begin = None
    if found is None or begin is None:
        raise SpanError(
            reason=f"{text!r} is no time: write it as 2026-11-14, 2026-11-14T22, 2026-11-14T22:10 or "
            "2026-11-14T22:10:05.5 (UTC), or as -15m for 15 minutes ago (s, m, h, d)"
        )
    at = (begin - _EPOCH) // timedelta(microseconds=1) * 1000
    digits = (found[1] or "").lstrip(".")
    width = 10 ** (9 - len(digits)) if digits else _WIDTHS[len(text)]
    return _in_range(at), _in_range(at + width - 1)


def _in_range(at_ns: int) -> int:
    """A time that columns can hold."""
    return min(max(at_ns, 0), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query: rows by column name in JSON's types, or an error."""

    names: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    #: The number of first rows that are here, if there are more or may be; None: these are all.
    cut: int | None = None
    error: str | None = None
    #: The statement as it was run.
    statement: str = ""
    #: The windows that were counted, if the chart can't cut them to the requested range; else None.
    coarse: str | None = None


@dataclass(frozen=True, slots=True)
class Traced:
    """A row behind a chart, and the key that leads to its bytes."""

    cells: Mapping[str, Any]
    table: str
    key: str

    @property
    def command(self) -> str:
        """The command that shows its bytes."""
        return f"{config.command()} trace {self.table} {shell_word(self.key)}"

    @property
    def query(self) -> str:
        """The same for the page."""
        return urlencode({"table": self.table, "key": self.key})


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows behind a chart."""

    answer: Answer
    rows: Sequence[Traced] = field(default=())


def answer(lake: Lake, chart: Chart, span: Span) -> Answer:
    """The result of the chart's SQL. Errors are returned in `error`."""
    found = _asked(lake, lambda: statement(lake, chart, chart.sql, span), MOST_DRAWN)
    return replace(found, cut=found.cut or _first(chart, found.rows), coarse=_coarse(lake, chart, span))


def _coarse(lake: Lake, chart: Chart, span: Span) -> str | None:
    bounds = span.bounds(lake)
    return None if bounds.whole or chart.rows.time else str(Span(bounds.first, bounds.last))


def _first(chart: Chart, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The LIMIT of the chart's SQL, if the answer reached it."""
    if (limit := _LIMIT.search(chart.sql)) is None:
        return None
    most = int(limit[1])
    return most if len(rows) >= most or (chart.y and len({row[chart.y.field] for row in rows}) >= most) else None


def evidence(
    lake: Lake, chart: Chart, span: Span, only: Mapping[str, str] | None = None, most: int = MOST_ROWS
) -> Evidence:
    """The rows behind a chart, at most `most`; those where a column of `only` has its value, as text."""
    rows = chart.rows
    chosen = [_is(name, value) for name, value in (only or {}).items() if name in rows.names]
    where = f" WHERE {' AND '.join(chosen)}" if chosen else ""

    def text() -> str:
        return f"SELECT * FROM ({statement(lake, chart, rows.sql, span)}) AS behind{where} ORDER BY row_order"

    found = _asked(lake, text, most)
    return Evidence(found, [_traced(rows, row) for row in found.rows])


def _is(name: str, value: str) -> str:
    """SQL: the column has this value, as a browser writes it: 2.0 as 2, and null as the empty string."""
    same = f"COALESCE(CAST(`{name}` AS STRING), '') = {_quoted(value)}"
    return f"({same} OR TRY_CAST(`{name}` AS DOUBLE) = {value})" if _NUMBER.fullmatch(value) else same


def _traced(rows: Rows, row: Mapping[str, Any]) -> Traced:
    key = key_of({name: row[name] for name in rows.key})
    return Traced({name: row[name] for name in rows.names}, rows.table, key)


def statement(lake: Lake, chart: Chart, text: str, span: Span) -> str:
    """The SQL `text` of the chart, with its placeholders replaced, so that `wirehouse sql` runs it too."""
    time_column = chart.rows.time
    words = {"span": span.condition(lake, time_column), "now_ns": str(time.time_ns()), **WORDS}
    words["until"] = replace(span, first=None).condition(lake, time_column)
    if "{step}" in text:
        words["step"] = str(step(lake, all_tables()[chart.rows.table].protocol, span))
    text, last = written(text, words), span.bounds(lake).last
    return NAMED.sub(lambda found: _until(found[0], last), text) if last else text


def _until(name: str, last: str) -> str:
    """The table or view at the end of window `last`. An entity is its newest row up to then.

    A view over all protocols stands as it is now: written out, it would be too long for the engine.
    """
    table = all_tables().get(name)
    if table and table.entity:
        return f"(SELECT * FROM {name} WHERE window_start <= {_quoted(last)})"
    if table and table.view and table.protocol and any(all_tables()[below].entity for below in beneath(name)):
        return f"({NAMED.sub(lambda found: _until(found[0], last), table.statement(DATAFUSION))})"
    return name


def step(lake: Lake, protocol: str | None, span: Span) -> int:
    """The width of a bucket of time, nanoseconds, for what arrived of the protocol in the span."""
    of = f" AND protocol = '{protocol}'" if protocol else ""
    row = sql.rows(
        lake,
        f"""
        SELECT MIN(c.first_arrived_at_ns) AS first, MAX(c.last_arrived_at_ns) AS last FROM bronze.captures AS c
        JOIN (SELECT DISTINCT source, capture_id FROM bronze.windows WHERE {span.condition(lake)}{of}) AS w
          ON w.source = c.source AND w.capture_id = c.capture_id
        """,
    ).to_pylist()[0]
    first, last = row["first"] or 0, row["last"] or 0
    # Captures may begin before the span and go on after it.
    bounds = span.bounds(lake)
    first = max(first, bounds.begin_ns or 0)
    last = last if bounds.end_ns is None else min(last, bounds.end_ns)
    return next((width for width in STEPS if width >= (last - first) / BUCKETS), STEPS[-1])


def _asked(lake: Lake, written_out: Callable[[], str], most: int) -> Answer:
    text = ""
    try:
        text = written_out()
        with sql.query(lake, text) as reader:
            names = reader.schema.names
            found = [
                {name: plain(value) for name, value in zip(names, row, strict=True)}
                for row in islice(rows_of(reader), most + 1)
            ]
    except WirehouseError as error:
        return Answer(error=str(error), statement=text)
    return Answer(names, found[:most], most if len(found) > most else None, None, text)


def is_empty(chart: Chart, found: Answer) -> bool:
    """Whether there is nothing to show, without an error: no rows, or one row of zeros."""
    if found.error is not None:
        return False
    if chart.type == "numbers":
        return not any(row[value.field] for row in found.rows for value in chart.values)
    return not found.rows


def windows(lake: Lake) -> list[str]:
    """The windows that have data, the oldest first."""
    seen = sql.rows(lake, "SELECT DISTINCT window_start AS v FROM bronze.windows ORDER BY v")
    return list(seen["v"].to_pylist())


def sources(lake: Lake, protocol: str | None) -> list[str]:
    """The sources of the protocol, or of all, that have data, also sources and services no longer configured."""
    computed = {
        source: all_tables()[table].protocol
        for table, entries in ledger.tables(lake).items()
        for source in entries
        if table in all_tables() and source not in lake.names
    }
    seen = sql.rows(lake, "SELECT DISTINCT source, protocol FROM bronze.windows").to_pylist()
    configured = {source.name: source.protocol for source in lake.sources}
    of = computed | {row["source"]: configured.get(row["source"], row["protocol"]) for row in seen}
    return sorted(name for name in of if protocol in (None, of[name]))


def names_of(lake: Lake, protocol: str | None) -> set[str]:
    """The names of the protocol's configured sources and of their services; of all if None."""
    of = (source for source in lake.sources if protocol in (None, source.protocol))
    return {name for source in of for name in (source.name, source.service)}


def is_known(lake: Lake, protocol: str | None, source: str) -> bool:
    """Whether the protocol has a source or service of that name, or rows of a source that had it."""
    return source in names_of(lake, protocol) or source in sources(lake, protocol)


def silent(lake: Lake) -> list[str]:
    """The configured sources without landed data. Empty if landing can't be read; charts then report the error."""
    found = _asked(lake, lambda: "SELECT DISTINCT source FROM bronze.captures WHERE status <> 'rejected'", MOST_DRAWN)
    landed = {row["source"] for row in found.rows}
    return [source.name for source in lake.sources if source.name not in landed and found.error is None]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
