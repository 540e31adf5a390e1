"""What a stage is: data, and functions of Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from wirehouse_pipelines.delta.spark_tables import File

#: Rows of the input as they go to the fold: filtered, with the columns of the key.
Prepare = Callable[[pa.RecordBatch], pa.RecordBatch]
#: From rows in order to rows of tables, each batch with the name of its table.
Fold = Callable[[Iterable[pa.RecordBatch]], Iterator[tuple[str, pa.RecordBatch]]]


class Order(NamedTuple):
    """How rows stand: those of a key together, and by these columns. Nulls come first."""

    key: tuple[str, ...]
    by: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, those of the key first."""
        return (*self.key, *self.by)


@dataclass(frozen=True, slots=True)
class Input:
    """Files of a table, the columns that are read of it (of a struct maybe some fields), and how they are prepared."""

    table: str
    files: Sequence[File]
    columns: Mapping[str, Sequence[str]]
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of `inputs`, brought into `order`, folded into rows of `tables`."""

    inputs: Sequence[Input]
    #: The rows between `prepare` and `fold`. A column that `prepare` doesn't give is null.
    schema: pa.Schema
    order: Order
    fold: Fold
    tables: Sequence[str]
    #: Source and window of every row that may come out; another one is an error.
    windows: frozenset[tuple[str, str]]
    #: Rows of tables that follow from no input, such as the clock's.
    beside: Sequence[tuple[str, pa.RecordBatch]] = ()
