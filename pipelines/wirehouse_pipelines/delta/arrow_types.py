"""Arrow types and schemas from the Spark SQL types in table definitions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pyarrow as pa

from wirehouse_pipelines.tables import Table

_PLAIN: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}
_TOKEN = re.compile(r"\s*([A-Za-z_0-9]+|[<>(),:])")


def schema(table: Table) -> pa.Schema:
    """The Arrow schema of `table`."""
    return pa.schema([pa.field(column.name, parse(column.type)) for column in table.columns])


def given(table: Table) -> pa.Schema:
    """The Arrow schema of rows that a job gives for `table`: without times, which `table_writer` computes."""
    return pa.schema([pa.field(one.name, parse(one.type)) for one in table.declared])


@cache
def parse(text: str) -> pa.DataType:
    """The Arrow type of a Spark SQL type such as `ARRAY<STRUCT<n: DECIMAL(20,0)>>`. Raises ValueError."""
    tokens = iter([*_TOKEN.findall(text), ""])
    found = _type(next(tokens), tokens)
    if (rest := next(tokens)) != "":
        raise ValueError(f"{rest!r} after the type in {text!r}")
    return found


def _type(name: str, tokens: Iterator[str]) -> pa.DataType:
    match name.upper():
        case "DECIMAL":
            _, precision, _, scale, _ = (next(tokens) for _ in range(5))
            return pa.decimal128(int(precision), int(scale))
        case "ARRAY":
            next(tokens)
            item = _type(next(tokens), tokens)
            next(tokens)
            return pa.list_(item)
        case "MAP":
            next(tokens)
            key = _type(next(tokens), tokens)
            next(tokens)
            value = _type(next(tokens), tokens)
            next(tokens)
            return pa.map_(key, value)
        case "STRUCT":
            return pa.struct(list(_fields(tokens)))
        case plain if plain in _PLAIN:
            return _PLAIN[plain]
    raise ValueError(f"{name!r} is not a type")


def _fields(tokens: Iterator[str]) -> Iterator[pa.Field]:
    opened = next(tokens)
    while opened in ("<", ","):
        name, _ = next(tokens), next(tokens)
        yield pa.field(name, _type(next(tokens), tokens))
        opened = next(tokens)
