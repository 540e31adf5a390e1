"""A service as one log: the rows of all sources that capture it, but each connection from one source only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.logs.rows import CONNECTION
from wirehouse_pipelines import stages
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.batches import pieces_of
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.stages import Input, Order, Stage

#: Connections with equal values here may be one.
_SAME: Final = ("source", "window_start", "client_address", "client_port", "server_address", "server_port")
_FIELDS: Final = (*_SAME[2:], "started_at_ns", "last_at_ns")
_COLUMNS: Final = {**dict.fromkeys(("source", "window_start", "connection_id"), ()), "connection": _FIELDS}
_CONNECTION: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "window_start", "seen_by")),
        ("connection_id", pa.binary()),
        *((name, pa.string() if name.endswith("address") else pa.int64()) for name in _FIELDS),
    ]
)
_AGAIN: Final = pa.schema(
    [("source", pa.string()), ("window_start", pa.string()), ("connection_ids", pa.list_(pa.binary()))]
)
_RETURNED: Final = "again"

#: By window the connections that are left out.
Duplicates = Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class Members:
    """The sources of services."""

    #: By source.
    services: Mapping[str, str]
    duplicates: Duplicates

    def once(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Turn rows of a file of a source's log into rows of its service, without duplicates.

        The rows have the columns source, window_start and connection_id.
        """
        # A file of the table has rows of one source and window.
        left_out = self.duplicates.get(rows.column("window_start")[0].as_py())
        service = pa.repeat(self.services[rows.column("source")[0].as_py()], rows.num_rows)
        rows = rows.set_column(rows.schema.get_field_index("source"), "source", service)
        return rows if left_out is None else rows.filter(pc.invert(pc.is_in(rows.column("connection_id"), left_out)))


def members(work: Work, table: str) -> Members:
    """The sources of the services in the spans of a joined job, whose log is `table`."""
    return Members(work.services, duplicates(work, table))


def duplicates(work: Work, table: str) -> Duplicates:
    """Connections in log `table` that another source of the service captured too.

    Two connections are the same if they have the same endpoints at overlapping times and come from two sources. The
    duplicate is the one that began later, or else that of the later source by name.
    """
    services = work.services
    sources = Counter(services.values())
    shared = [span for span in work.members() if sources[services[span.source]] > 1]
    if not shared:
        return {}
    stage = Stage(
        [Input(table, spark_tables.files(work.lake, table, shared, CONNECTION), _COLUMNS, partial(_seen, services))],
        _CONNECTION,
        Order(_SAME, ("started_at_ns", "seen_by", "connection_id")),
        _fold,
        (),
        steps.windows(work.spans),
        returned=[_RETURNED],
    )
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for row in stages.run(work.spark, work.lake, stage)[_RETURNED]:
        found[row["window_start"]] += row["connection_ids"]
    return {window: pa.array(ids, pa.binary()) for window, ids in found.items()}


def _seen(services: Mapping[str, str], rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare the rows of connections."""
    seen_by = rows.column("source")
    columns = {name: rows.column(name) for name in ("window_start", "connection_id")}
    columns |= {name: pc.struct_field(rows.column("connection"), name) for name in _FIELDS}
    columns |= {"seen_by": seen_by, "source": pa.repeat(services[seen_by[0].as_py()], rows.num_rows)}
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in _CONNECTION], schema=_CONNECTION
    )


def _fold(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Find duplicates: a row for each source and window that has any."""
    found: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    same: tuple[Any, ...] = ()
    # By source the latest end of the connections that began before.
    ends_ns: dict[str, int] = {}
    for piece in (piece for batch in batches for piece in pieces_of(batch, _SAME)):
        if piece.place != same:
            same, ends_ns = piece.place, {}
        if None in same:
            continue
        for row in piece.rows.to_pylist():
            seen_by, last_at_ns = row["seen_by"], row["last_at_ns"]
            if any(end_ns >= row["started_at_ns"] for other, end_ns in ends_ns.items() if other != seen_by):
                found[same[:2]].append(row["connection_id"])
            ends_ns[seen_by] = max(last_at_ns, ends_ns.get(seen_by, last_at_ns))
    listed = [
        {"source": source, "window_start": window, "connection_ids": ids} for (source, window), ids in found.items()
    ]
    if listed:
        yield _RETURNED, pa.RecordBatch.from_pylist(listed, schema=_AGAIN)
