"""SQL over the lake's tables by name, without a JVM: DataFusion, through deltalake.

`query` takes a statement and returns Arrow batches. Only tables that the statement names are opened, in their newest
version or as of a version or time; views are created from their definitions. A statement can only read: it must be one
SELECT, WITH or EXPLAIN, and `check` refuses all else before the engine sees it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.exceptions import DeltaError

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_pipelines.delta import arrow_types, delta_tables
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.tables import DATAFUSION, Table, all_tables

READING = ("SELECT", "WITH", "EXPLAIN")
#: Keywords of statements that write. They are refused anywhere, because EXPLAIN ANALYZE and WITH can contain such.
WRITING = frozenset(
    {"ALTER", "COPY", "CREATE", "DEALLOCATE", "DELETE", "DROP", "EXECUTE", "GRANT", "INSERT", "INTO", "MERGE"}
    | {"PREPARE", "RESET", "REVOKE", "TRUNCATE", "UPDATE"}
)


#: Keywords that nest a statement deeper, which takes stack and planning time of the engine. Lists of values don't.
DEEPENING = frozenset(
    {"AND", "BETWEEN", "EXCEPT", "FROM", "ILIKE", "IN", "INTERSECT", "IS", "JOIN", "LIKE", "NOT", "OR", "UNION"}
)
MOST_DEEPENING = 1000
#: The memory that a statement may use before it spills to disk or fails.
MEMORY_VARIABLE, MEMORY = "WIREHOUSE_SQL_MEMORY", "2g"


class StatementRefusedError(UsageError):
    """The statement isn't a single reading statement."""

    template = "only one SELECT, WITH or EXPLAIN at a time: {reason}"


class StatementTooLongError(UsageError):
    """The statement is too deeply nested for the engine's stack."""

    template = (
        "the statement has {found:,} operators and joins, and the engine takes {most:,}: "
        "put values to compare with into one IN (...)"
    )


class MemorySizeError(UsageError):
    """The variable for a statement's memory isn't a size."""

    template = "{name} must be a size such as 512m or 4g, not {value!r}"


class UnknownTableError(UsageError):
    """The statement names an unknown table."""

    template = "there is no table {name}. {advice}"


class TableDamagedError(WirehouseError):
    """A table that the statement needs exists but can't be opened."""

    template = "{name} can't be opened: {reason}"


class QueryError(UsageError):
    """The statement can't be run as written."""

    template = "{reason}"


#: A version of a table, or a time with its zone.
AsOf = int | datetime


class AsOfError(UsageError):
    """The tables can't be read as of the given version or time."""

    template = "as of {when}: {reason}"


class Token(NamedTuple):
    """A token of a statement. `kind` is word, quoted (an identifier), text, number or sign."""

    kind: str
    text: str


_TOKENS = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
    |(?P<comment>/\*)
    |(?P<text>[eE]'(?:[^'\\]|''|\\.)*'|[xXbBnN]?'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    |(?P<word>[^\W\d]\w*)
    |(?P<number>\d\w*(?:\.\d\w*)?)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
#: Characters by which Python represents bytes of a command line that aren't UTF-8.
_UNPAIRED = re.compile("[\ud800-\udfff]")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
#: Errors that DataFusion and deltalake raise.
_OF_THE_ENGINE = (DeltaError, pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError)
_NOT_FOUND = re.compile(r"table '(?:datafusion\.)?(?:public\.)?([^']*)' not found")


def tokens(statement: str) -> Iterator[Token]:
    """Yield the tokens of `statement` without comments and white space. Raises StatementRefusedError."""
    for token, _, _ in _placed(statement):
        yield token


def _placed(statement: str) -> Iterator[tuple[Token, int, int]]:
    """Yield the tokens of `statement`, each with its begin and end."""
    if not statement.isascii() and _UNPAIRED.search(statement):
        raise StatementRefusedError(reason="it isn't UTF-8")
    at = 0
    while match := _TOKENS.match(statement, at):
        kind, at = match.lastgroup or "", match.end()
        if match["comment"]:
            at = _comment_end(statement, at)
        elif match["sign"] in ("'", '"', "`"):
            raise StatementRefusedError(reason=f"the quote {match['sign']} is never closed")
        elif match["quoted"]:
            quote = match["quoted"][0]
            yield Token("quoted", match["quoted"][1:-1].replace(quote * 2, quote)), match.start(), at
        elif not match["space"]:
            yield Token("text" if match["text"] else kind, match[0]), match.start(), at


def _comment_end(statement: str, at: int) -> int:
    """The end of the comment that began just before `at`; comments nest."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(statement, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise StatementRefusedError(reason="a comment /* is never closed")


def check(statement: str) -> list[Token]:
    """The tokens of `statement` if it only reads. Raises StatementRefusedError and StatementTooLongError."""
    found = list(tokens(statement))
    while found and found[-1] == Token("sign", ";"):
        found.pop()
    if not found:
        raise StatementRefusedError(reason="the statement is empty")
    if Token("sign", ";") in found:
        raise StatementRefusedError(reason="there are several, with ; between")
    first = next((token for token in found if token.text != "("), found[0])
    if first.kind != "word" or first.text.upper() not in READING:
        raise StatementRefusedError(reason=f"not {first.text[:20]!r}")
    for token in found:
        if token.kind == "word" and token.text.upper() in WRITING:
            raise StatementRefusedError(reason=f'not {token.text!r} (a column of that name is written "{token.text}")')
    deepening = sum(map(_deepens, found))
    if deepening > MOST_DEEPENING:
        raise StatementTooLongError(found=deepening, most=MOST_DEEPENING)
    return found


def _deepens(token: Token) -> bool:
    if token.kind == "sign":
        return token.text not in ",()"
    return token.kind == "word" and token.text.upper() in DEEPENING


def tables_named(found: list[Token]) -> list[str]:
    """The tables and views that the statement names as layer.name, each once."""
    named: dict[str, None] = {}
    for layer, dot, name in zip(found, found[1:], found[2:], strict=False):
        if dot == Token("sign", ".") and layer.kind in ("word", "quoted") and name.kind in ("word", "quoted"):
            named[f"{layer.text}.{name.text}"] = None
    return [name for name in named if name in all_tables()]


#: In Spark, these functions return the size of binary values. In DataFusion they take text, and `length` counts
#: characters.
_SIZES = frozenset({"length", "octet_length"})


def _with_sizes(statement: str, named: Iterable[str]) -> str:
    """Rewrite the size of a binary column, such as `length(value)`, into an expression that DataFusion can compute.

    Only a column alone in the brackets is rewritten, and only if it is binary in all tables named that have it.
    """
    types: dict[str, set[str]] = {}
    for column in (column for name in named for column in all_tables()[name].columns):
        types.setdefault(column.name, set()).add(column.type)
    placed, parts, at = list(_placed(statement)), [], 0
    for number, (token, start, _) in enumerate(placed):
        if token.kind != "word" or token.text.lower() not in _SIZES:
            continue
        inside = [one for one, _, _ in placed[number + 1 : number + 6]]
        # `(column)` or `(alias.column)`
        size = 3 if inside[2:3] == [Token("sign", ")")] else 5
        asked = inside[size - 2].text.lower() if len(inside) >= size else ""
        closed = inside[:1] == [Token("sign", "(")] and inside[size - 1 : size] == [Token("sign", ")")]
        dotted = size == 3 or inside[2:3] == [Token("sign", ".")]
        if closed and dotted and types.get(asked) == {"BINARY"}:
            of = statement[placed[number + 2][1] : placed[number + size - 1][2]]
            parts += [statement[at:start], f"(octet_length(encode({of}, 'hex')) / 2)"]
            at = placed[number + size][2]
    return "".join([*parts, statement[at:]])


def parse_as_of(text: str) -> AsOf:
    """Parse a version (`3`) or a time in ISO 8601 (UTC if it has no zone). Raises AsOfError."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        reason = "neither a version, as 3, nor a time, as 2026-11-14 or 2026-11-14T22:00:00+01:00"
        raise AsOfError(when=repr(text), reason=reason) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@contextmanager
def query(lake: Lake, statement: str, as_of: AsOf | None = None) -> Iterator[pa.RecordBatchReader]:
    """Run `statement`; a reader of its rows, which computes them on demand within the `with` block.

    With `as_of`, tables are read as of that version or time; a version is valid only if one table is read. Raises
    StatementRefusedError, StatementTooLongError, UnknownTableError, AsOfError, TableDamagedError, MemorySizeError and
    QueryError; the last also while rows are read.
    """
    named = tables_named(check(statement))
    if isinstance(as_of, int):
        _check_version(named, as_of)
    with tempfile.TemporaryDirectory(prefix="wirehouse-sql-") as scratch:
        engine = QueryBuilder()
        engine.execute(f"SET datafusion.runtime.memory_limit = '{_memory()}'")
        engine.execute(f"SET datafusion.runtime.temp_directory = '{scratch}'")
        # Column comments are part of the schema, so the parts of a union have schemas that differ.
        engine.execute("SET datafusion.execution.skip_physical_aggregate_schema_check = true")
        for layer in sorted({table.layer for table in all_tables().values()}):
            engine.execute(f"CREATE SCHEMA {layer}")
        known: set[str] = set()
        for name in named:
            if isinstance(as_of, datetime):
                _check_begun(lake, name, as_of)
            _register(engine, lake, all_tables()[name], scratch, known, as_of)
        with _in_words():
            reader = pa.RecordBatchReader.from_stream(engine.execute(_with_sizes(statement, named)))
        yield pa.RecordBatchReader.from_batches(reader.schema, _batches(reader))


def _memory() -> str:
    """The memory limit in the engine's notation. Raises MemorySizeError."""
    value = os.environ.get(MEMORY_VARIABLE) or MEMORY
    if not re.fullmatch(r"[1-9][0-9]{0,6}[kmgKMG]", value):
        raise MemorySizeError(name=MEMORY_VARIABLE, value=value)
    return value.upper()


def rows(lake: Lake, statement: str, as_of: AsOf | None = None) -> pa.Table:
    """Run `statement`; all its rows at once, for small results."""
    with query(lake, statement, as_of) as reader:
        return reader.read_all()


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with _in_words():
        yield from reader


def _physical(names: Iterable[str]) -> set[str]:
    """The physical tables behind these tables and views."""
    found: set[str] = set()
    for table in map(all_tables().__getitem__, names):
        found |= _physical(tables_named(list(tokens(table.view)))) if table.view else {table.name}
    return found


def _check_version(named: list[str], version: int) -> None:
    physical = sorted(_physical(named))
    if len(physical) > 1:
        listed = ", ".join(physical)
        raise AsOfError(when=f"version {version}", reason=f"each of {listed} has its own: give a time instead")


def _check_begun(lake: Lake, name: str, when: datetime) -> None:
    """Raise AsOfError if no table behind `name` existed at `when`. It is enough if one of several did."""
    known: list[delta_tables.Commit] = []
    for physical in sorted(_physical([name])):
        try:
            if table := delta_tables.opened(lake.table_path(physical)):
                known += delta_tables.commits(table)
        except _OF_THE_ENGINE as error:
            raise TableDamagedError(name=physical, reason=_one_line(error)) from None
    times = [commit.at for commit in known]
    if times and min(times) > when:
        first, last = (moment.isoformat(timespec="milliseconds") for moment in (min(times), max(times)))
        raise AsOfError(when=when, reason=f"the times of {name} that are known are {first} to {last}, and later ones")


def _register(
    engine: QueryBuilder, lake: Lake, table: Table, scratch: str, known: set[str], as_of: AsOf | None
) -> None:
    """Register `table` with the engine; a view after the tables that it reads."""
    if table.name in known:
        return
    known.add(table.name)
    if table.view is None:
        try:
            engine.register(table.name, _open(lake, table, scratch, as_of))
        except _OF_THE_ENGINE as error:
            raise TableDamagedError(name=table.name, reason=_one_line(error)) from None
        return
    for name in tables_named(list(tokens(table.view))):
        _register(engine, lake, all_tables()[name], scratch, known, as_of)
    engine.execute(f"CREATE VIEW {table.name} AS {table.statement(DATAFUSION)}")


def _open(lake: Lake, table: Table, scratch: str, as_of: AsOf | None) -> DeltaTable:
    """The Delta table, or an empty one with its columns if it wasn't written yet."""
    known = opened = delta_tables.opened(lake.table_path(table.name))
    if opened and as_of is not None:
        newest = opened.version()
        try:
            known = delta_tables.as_of(opened, as_of)
        except (DeltaError, OverflowError):
            listed = delta_tables.commits(opened)
            since = f" from {listed[0].at.isoformat(timespec='milliseconds')} on" if listed else ""
            reason = f"{table.name} has versions up to {newest}, of which old ones go: times are known{since}"
            raise AsOfError(when=as_of, reason=reason) from None
    return known or delta_tables.created(f"{scratch}/{table.name}", Schema.from_arrow(arrow_types.schema(table)))


def version(lake: Lake, name: str) -> tuple[str, int] | None:
    """The id and the version of a Delta table; None if it wasn't written yet. Raises TableDamagedError."""
    try:
        known = delta_tables.opened(lake.table_path(name))
        return None if known is None else (str(known.metadata().id), known.version())
    except _OF_THE_ENGINE as error:
        raise TableDamagedError(name=name, reason=_one_line(error)) from None


@contextmanager
def _in_words() -> Iterator[None]:
    """Turn errors of the engine into UnknownTableError or QueryError: one line that states what to do."""
    try:
        yield
    except _OF_THE_ENGINE as error:
        text = _one_line(error)
        if missing := _NOT_FOUND.search(text):
            raise UnknownTableError(name=missing[1], advice=_suggestion(missing[1])) from None
        raise QueryError(reason=_hint(text)) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _suggestion(name: str) -> str:
    shown = [table.name for table in all_tables().values() if not table.internal]
    near = get_close_matches(name, shown, n=1, cutoff=0.7) or [full for full in shown if full.endswith(f".{name}")]
    return f"Did you mean {near[0]}?" if near else "`wirehouse tables` lists them"


def _hint(text: str) -> str:
    """The engine's message, with advice where it alone doesn't help."""
    if "Resources exhausted" in text:
        advice = f"ask for fewer windows, rows or columns, or give it more by {MEMORY_VARIABLE}"
        return f"the statement needs more than the {_memory().lower()} of memory that it may take: {advice}"
    if "octet_length" in text and "Binary" in text:
        return f"{text} (the size of an expression's bytes is octet_length(encode(EXPRESSION, 'hex')) / 2)"
    if "found: ," in text or "found: FROM" in text:
        return f'{text} (a column called as a keyword is written in quotes: "offset")'
    return text.removeprefix("External error: ")
