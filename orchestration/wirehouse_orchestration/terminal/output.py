"""Prints results of queries, lists of tables, and rules on the command line."""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from wirehouse_codecs.core.errors import UsageError
from wirehouse_codecs.core.rules import Rule, Severity
from wirehouse_orchestration.terminal import render
from wirehouse_pipelines.tables import Table

#: Rows that a table on the terminal shows at most; csv and json have no limit.
MOST_ROWS = 1000
#: Digits of binary in a table that would be wider than the terminal.
SHORT_HEX = 12
#: Columns narrower than this, on average, are hard to read.
LEAST_COLUMN = 14
#: Width if the output isn't a terminal.
FILE_COLUMNS = 200
#: Columns of the result of EXPLAIN.
PLAN = ["plan_type", "plan"]
SEVERITY_STYLE = {Severity.VIOLATION: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}

Row = Sequence[Any]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, as other writers do; rich would end the process with 1."""
        raise BrokenPipeError


def console(out: TextIO | None = None) -> Console:
    """A console on standard output or `out`, as wide as the terminal (or COLUMNS); very wide without one."""
    known = (out or sys.stdout).isatty() or "COLUMNS" in os.environ
    return _Console(file=out, width=None if known else FILE_COLUMNS)


def rows_of(reader: pa.RecordBatchReader) -> Iterator[Row]:
    """The rows of `reader`, streamed."""
    for batch in reader:
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    """The values; all as text if one is a time outside of Python's calendar."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return list(column.cast(pa.string()).to_pylist())


def as_json(reader: pa.RecordBatchReader, out: TextIO) -> None:
    """One JSON object a line."""
    names = reader.schema.names
    for row in rows_of(reader):
        out.write(render.json_line(dict(zip(names, row, strict=True))) + "\n")


def as_csv(reader: pa.RecordBatchReader, out: TextIO) -> None:
    """CSV with a line of names (RFC 4180, but lines end as Unix does); nothing in it drives a terminal."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([render.csv_cell(name) for name in reader.schema.names])
    for row in rows_of(reader):
        writer.writerow([render.csv_cell(value) for value in row])


def as_parquet(reader: pa.RecordBatchReader, path: Path) -> None:
    """A Parquet file with the types of the tables."""
    from pyarrow.parquet import ParquetWriter

    for field in reader.schema:
        if pa.types.is_interval(field.type):
            raise UsageError(reason=f"Parquet has no intervals, as {field.name} is: write CAST(... AS STRING)")
    schema = pa.schema([field.with_type(_stored(field.type)) for field in reader.schema])
    with ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_table(pa.Table.from_batches([batch]).cast(schema))


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type for files: views into a buffer, which the engine gives, are not written."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_stored(kind.key_type), _stored(kind.item_type))
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def as_table(reader: pa.RecordBatchReader, file: TextIO) -> None:
    """A table for people. If it's too wide, long binary is cut short; if there are many columns, a line each."""
    out = console(file)
    rows = rows_of(reader)
    shown = list(islice(rows, MOST_ROWS))
    names = [render.terminal(name) for name in reader.schema.names]
    if names == PLAN:
        _plan(shown, out)
        return
    right = [render.aligned_right(row[index] for row in shown) for index in range(len(names))]
    table = grid(names, ([render.cell(value) for value in row] for row in shown), right)
    if _wide(table, out):
        table = grid(names, ([render.cell(value, SHORT_HEX) for value in row] for row in shown), right)
    if _wide(table, out) and len(names) * LEAST_COLUMN > out.width:
        _upright(names, shown, out)
    else:
        out.print(table)
    if next(rows, None) is not None:
        note(f"only the first {MOST_ROWS:,} rows are shown: add a LIMIT, or see all with --format csv or json")


def _plan(rows: Sequence[Row], out: Console) -> None:
    """Print the plan of a statement, one step per line."""
    for kind, steps in rows:
        out.print(Text(kind, "bold"))
        for step in steps.splitlines():
            out.print(Text(f"  {render.terminal(step)}"), soft_wrap=True)


def _upright(names: Sequence[str], rows: Sequence[Row], out: Console) -> None:
    """Every row as lines of name and value, with binary in full."""
    width = max(len(name) for name in names)
    for number, row in enumerate(rows, 1):
        out.print(Text(f"row {number}", "bold"))
        for name, value in zip(names, row, strict=True):
            out.print(Text.assemble((f"  {name:<{width}}  ", "dim"), render.cell(value)), soft_wrap=True)


TEXTS: Mapping[str, Callable[[pa.RecordBatchReader, TextIO], None]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
}
PARQUET = "parquet"
#: How a result is written to a file of such a name.
ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": PARQUET, ".txt": "table"}


class FileError(UsageError):
    """A file can't be written."""

    template = "{file}: {reason}"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary file, with the suffix of `path`, that replaces it at the end of the block. Raises FileError."""
    try:
        number, name = tempfile.mkstemp(f".part{path.suffix}", f".{path.name}.", path.parent)
    except OSError as error:
        raise FileError(file=path, reason=error.strerror) from None
    os.close(number)
    part = Path(name)
    try:
        yield part
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        part.rename(path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, name):
            # The error is about a file that is read, not about `path`.
            raise
        raise FileError(file=path, reason=error.strerror) from None
    finally:
        part.unlink(missing_ok=True)


def answer(reader: pa.RecordBatchReader, form: str, path: Path | None) -> None:
    """Print the rows, or write them to a file, which is complete or absent. Raises FileError if it can't be written."""
    if path is None:
        TEXTS[form](reader, sys.stdout)
        return
    with whole(path) as part:
        if form == PARQUET:
            as_parquet(reader, part)
        else:
            with part.open("w", encoding="utf-8", newline="") as out:
                TEXTS[form](reader, out)


def _wide(table: Grid, out: Console) -> bool:
    return Measurement.get(out, out.options.update(max_width=10_000), table).maximum > out.width


def grid(
    names: Iterable[str], rows: Iterable[Sequence[str | Text]], right: Sequence[bool] = (), fixed: int = 0
) -> Grid:
    """A plain table of texts, shown as they are: nothing in them is markup. The first `fixed` columns aren't folded."""
    table = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(names):
        justify: Literal["left", "right"] = "right" if index < len(right) and right[index] else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=index < fixed)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def note(text: str) -> None:
    """Print a line to standard error."""
    Console(stderr=True).print(Text(text, "dim"))


def kind_of(table: Table) -> str:
    """table, history (of an entity), state or view."""
    if table.view:
        return "view"
    return "state" if table.internal else "history" if table.entity else "table"


def tables(listed: Iterable[Table]) -> None:
    """Names and what the tables hold."""
    rows = ((Text(table.name, "bold"), kind_of(table), table.comment) for table in listed)
    console().print(grid(("name", "kind", "holds"), rows, fixed=2))


def columns(table: Table) -> None:
    """One table: its columns with types and what they hold."""
    out = console()
    out.print(Text.assemble((table.name, "bold"), f" ({kind_of(table)})\n{table.comment}"))
    if table.key:
        out.print(Text(f"One row for each {', '.join(table.key)}."))
    rows = ((Text(column.name, "bold"), column.type, column.comment) for column in table.columns)
    out.print(grid(("column", "type", "holds"), rows, fixed=1))


def rules(listed: Iterable[Rule]) -> None:
    """Rules with their severity, what breaks them and where the specification states it."""
    out = console()
    for rule in listed:
        out.print(Text.assemble((rule.id, "bold"), "  ", (rule.severity, SEVERITY_STYLE[rule.severity])))
        out.print(Padding(Text.assemble(rule.sentence, (f" [{rule.place}]", "dim")), (0, 0, 0, 4), expand=False))


def counted(number: int, thing: str) -> str:
    """`1 window`, `2,000 windows`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
