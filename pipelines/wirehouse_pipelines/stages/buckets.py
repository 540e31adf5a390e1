"""Rows with the columns that a stage declares."""

from __future__ import annotations

import pyarrow as pa


def with_all(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`rows` with exactly the columns of `schema`; a column that they lack is null."""
    there = set(rows.schema.names)
    columns = [rows.column(f.name) if f.name in there else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
