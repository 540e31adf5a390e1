"""The declaration of a stage: data, and functions of Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from wirehouse_pipelines.delta.spark_tables import File

#: Prepares rows of an input for the fold: filters them and adds the columns of the key.
Prepare = Callable[[pa.RecordBatch], pa.RecordBatch]
#: Turns rows in order into rows of tables; each batch comes with the name of its table.
Fold = Callable[[Iterable[pa.RecordBatch]], Iterator[tuple[str, pa.RecordBatch]]]


def as_stored(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The `Prepare` of rows that need none."""
    return rows


class Order(NamedTuple):
    """The order of rows: by the columns of the key, then by these columns. Nulls come first."""

    key: tuple[str, ...]
    by: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, those of the key first."""
        return (*self.key, *self.by)


class Where(NamedTuple):
    """Which rows of a file to read: `columns` are read first, and `mask` selects rows by them."""

    columns: Mapping[str, Sequence[str]]
    mask: Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True, slots=True)
class Input:
    """Files of a table, the columns to read (for a struct, maybe only some fields), and how to prepare the rows."""

    table: str
    files: Sequence[File]
    columns: Mapping[str, Sequence[str]]
    prepare: Prepare = as_stored
    #: If few rows of large files are needed: which.
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of `inputs`, brought into `order` if there is one, folded into rows of `tables`."""

    inputs: Sequence[Input]
    #: Columns of the rows between `prepare` and `fold`. A column that `prepare` doesn't return is null.
    schema: pa.Schema
    #: None if each row is folded by itself: map tasks fold and write, and nothing is exchanged.
    order: Order | None
    fold: Fold
    tables: Sequence[str]
    #: The sources and windows of rows that the fold may return; any other is an error.
    windows: frozenset[tuple[str, str]]
    #: Further rows of the tables that don't depend on inputs, such as those of the clock.
    beside: Sequence[tuple[str, pa.RecordBatch]] = ()
    #: Names that aren't tables: the rows that the fold returns for them are few and go to the driver, for a next stage.
    returned: Sequence[str] = ()
    #: The same for rows that may be many: by name, a table with such columns. They are written into files in its
    #: folder, which only a next stage reads.
    passed: Mapping[str, str] = field(default_factory=dict)
