"""Measures how long boards take to answer on a lake with many rows.

`python -m infra.tools.many_rows fill FROM TO PROTOCOL ROWS` copies the rows of a small lake, each time with
other keys and later times, until silver and gold of the protocol have ROWS rows. `answer LAKE PROTOCOL` runs the charts
of its board.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_orchestration import config
from wirehouse_orchestration.dashboards import answers
from wirehouse_orchestration.dashboards.boards import boards
from wirehouse_pipelines.delta import delta_tables, spark_tables
from wirehouse_pipelines.delta.table_writer import TableFiles
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import Table, all_tables

#: Number of days over which copies are spread.
DAYS: Final = 30
_DAY_NS: Final = 86_400 * 10**9
_BATCH_ROWS: Final = 100_000
#: Columns besides binary ones that are part of keys: text, and numbers of blocks.
_NAMES: Final = frozenset(("call", "next_call", "stream_address", "client_id", "program_name", "instance_name"))
_NUMBERS: Final = frozenset(("block_number", "offered", "last_known", "number", "head_number", "sequence"))
_NUMBERS_APART: Final = 1_000_000
_MOMENT: Final = re.compile(r"\w*_(at|since|from|to)_ns")


@dataclass(frozen=True, slots=True)
class _Copy:
    """One of the copies of all rows."""

    number: int

    @property
    def day(self) -> int:
        return self.number % DAYS

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        made = [self._column(field.name, rows.column(field.name)) for field in rows.schema]
        return pa.RecordBatch.from_arrays(made, schema=rows.schema)

    def _column(self, name: str, column: pa.Array) -> pa.Array:
        kind = column.type
        if name == "window_start":
            return pa.array([self._later(one) for one in column.to_pylist()], kind)
        if pa.types.is_struct(kind):
            parts = [self._column(field.name, part) for field, part in zip(kind, column.flatten(), strict=True)]
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
        if pa.types.is_binary(kind):
            return pc.binary_join_element_wise(column, self.number.to_bytes(4, "big"), b"")
        if name in _NAMES and pa.types.is_string(kind):
            return pc.binary_join_element_wise(column, f"~{self.number}", "")
        if _MOMENT.fullmatch(name) and pa.types.is_int64(kind):
            return pc.add(column, self.day * _DAY_NS)
        if name in _NUMBERS and (pa.types.is_decimal(kind) or pa.types.is_int64(kind)):
            return pc.add(column, pa.scalar(self.number * _NUMBERS_APART, kind)).cast(kind)
        return column

    def _later(self, window: str) -> str:
        return f"{date.fromisoformat(window[:10]) + timedelta(self.day)}{window[10:]}"


def _copied(protocol: str) -> list[Table]:
    """Tables of the protocol that people or views read, and bronze's of all."""
    read = {name for table in all_tables().values() if table.view for name in table.reads}
    tables = (
        table for table in all_tables().values() if table.view is None and (table.name in read or not table.internal)
    )
    shared = ("bronze.captures", "bronze.windows")
    return [table for table in tables if table.name in shared or table.protocol == protocol]


def _rows(lake: Lake, table: Table, sources: frozenset[str]) -> pa.Table | None:
    known = delta_tables.opened(lake.table_path(table.name))
    if known is None:
        return None
    rows = pa.table(known.to_pyarrow_dataset().to_table())
    return rows.filter(pc.is_in(rows.column("source"), pa.array(sorted(sources))))


def _batches(rows: pa.Table, copies: int) -> Iterator[pa.RecordBatch]:
    """All copies of the rows, those of a day together."""
    for number in sorted(range(copies), key=lambda number: number % DAYS):
        for batch in rows.combine_chunks().to_batches(_BATCH_ROWS):
            yield _Copy(number).rows(batch)


def fill(source: Lake, target: Lake, protocol: str, least: int) -> dict[str, int]:
    """Fill `target`; how many rows each table has then."""
    sources = frozenset(answers.names_of(source, protocol))
    found = {table.name: _rows(source, table, sources) for table in _copied(protocol)}
    there = {name: rows for name, rows in found.items() if rows is not None and rows.num_rows}
    copies = -(-least // sum(rows.num_rows for name, rows in there.items() if not name.startswith("bronze.")))
    for name, rows in there.items():
        table, written = all_tables()[name], list[Mapping[str, Any]]()
        with TableFiles(open_storage(target.root), target.table_folder(name), table) as files:
            for batch in _batches(rows.select([column.name for column in table.columns]), copies):
                written += files.add(batch)
            written += files.finish()
        spark_tables.replace(target, name, written, [])
    return {name: rows.num_rows * copies for name, rows in there.items()}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@click.group()
def cli() -> None:
    """How long boards take to answer on many rows."""


def _lake(folder: Path) -> Lake:
    return config.load(folder / "wirehouse.toml")


@cli.command(name="fill")
@click.argument("small", type=click.Path(path_type=Path))
@click.argument("large", type=click.Path(path_type=Path))
@click.argument("protocol")
@click.argument("rows", type=int)
def fill_(small: Path, large: Path, protocol: str, rows: int) -> None:
    """Fill a lake, with the configuration of the small one."""
    large.mkdir(parents=True, exist_ok=True)
    (large / "wirehouse.toml").write_text((small / "wirehouse.toml").read_text())
    for name, count in fill(_lake(small), _lake(large), protocol, rows).items():
        click.echo(f"{count:>12,} {name}")


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("protocol")
@click.argument("only", nargs=-1)
def answer(folder: Path, protocol: str, only: tuple[str, ...]) -> None:
    """CPU seconds of each chart of a board, after one that opens the tables."""
    lake, board = _lake(folder), boards()[protocol]
    total = 0.0
    for chart in board.charts:
        if only and chart.id not in only:
            continue
        before = _cpu_s()
        found = answers.answer(lake, chart, answers.Span())
        took = _cpu_s() - before
        total += took
        click.echo(f"{took:6.2f} {chart.id} {found.error or f'{len(found.rows):,} rows'}")
    click.echo(f"{total:6.2f} all")


if __name__ == "__main__":
    cli()
