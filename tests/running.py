"""Running a lake in tests: land, run every job, read rows back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from wirehouse_pipelines import jobs, landing, sql
from wirehouse_pipelines.lake import Lake


def land(lake: Lake) -> None:
    """Land what lies at every source's place."""
    for source in lake.sources:
        landing.land(lake, source)


def run(spark: Any, lake: Lake, first: str | None = None, last: str | None = None, **how: Any) -> None:
    """Bring the windows from `first` to `last` (all that have data by default) up to date."""
    windows = jobs.data_windows(lake)
    for name in jobs.all_jobs():
        jobs.run_job(spark, lake, name, first or windows[0], last or windows[-1], **how)


def select(lake: Lake, statement: str) -> list[dict[str, Any]]:
    """Rows of a statement."""
    rows: list[dict[str, Any]] = sql.rows(lake, statement).to_pylist()
    return rows


#: The tables whose rows are promised to be the same however the windows are cut and run, and what orders them.
PROMISED = {
    "silver.cardinal_messages": "source, capture_id, record_number",
    "silver.cardinal_quarantine": "source, capture_id, record_number",
    "gold.cardinal_batches": "source, block_hash",
    "gold.cardinal_batch_updates": "source, block_hash, key, operation",
    "gold.cardinal_chain_updates": "source, sequence",
    "gold.cardinal_chain": "source, block_hash, valid_from_ns",
    "gold.cardinal_reorgs": "source, capture_id, record_number",
    "silver.hiero_messages": "source, capture_id, record_number, connection_id, direction, byte_start, byte_end, part",
    "silver.hiero_quarantine": "source, capture_id, record_number, connection_id, direction, byte_start, reason",
    "silver.hiero_connections": "source, connection_id",
    "gold.hiero_blocks": "source, block_number",
    "gold.hiero_publisher_sessions": "source, call",
    "gold.hiero_subscriptions": "source, call",
    "gold.hiero_decisions": "source, call, byte_end",
    "gold.hiero_catch_ups": "source, node, connection_id, byte_end",
    "silver.bamboo_messages": "source, connection_id, direction, byte_start",
    "silver.bamboo_quarantine": "source, connection_id, direction, byte_start, byte_end, reason",
    "silver.bamboo_connections": "source, connection_id",
    "gold.bamboo_entries": "source, entry_id",
    "gold.bamboo_logs": "source, author, log_id",
    "gold.bamboo_forks": "source, author, log_id, position",
    "gold.bamboo_proposals": "source, connection_id, proposal_number",
    "gold.bamboo_sessions": "source, connection_id",
    "silver.ockam_messages": "source, connection_id, direction, byte_start",
    "silver.ockam_quarantine": "source, connection_id, direction, byte_start, byte_end, reason",
    "silver.ockam_connections": "source, connection_id",
    "gold.ockam_streams": "source, stream_address",
    "gold.ockam_stream_messages": "source, stream_address, `index`",
    "gold.ockam_stream_indexes": "source, client_id, stream_name, partition, stream_address",
    "gold.ockam_delivery_holes": "source, stream_address, client_id, kind, first_index, arrived_at_ns",
    "silver.wallaroo_messages": "source, connection_id, direction, byte_start",
    "silver.wallaroo_quarantine": "source, connection_id, direction, byte_start, byte_end, reason",
    "silver.wallaroo_connections": "source, connection_id",
    "gold.wallaroo_sessions": "source, connection_id",
    "gold.wallaroo_streams": "source, connection_id, stream_id",
    "gold.wallaroo_credits": "source, connection_id, arrived_at_ns, record_number, granted, balance",
    "gold.wallaroo_stream_progress": "source, program_name, instance_name, stream_id",
    "gold.violations": "source, rule, capture_id, record_number, arrived_at_ns, message, direction, byte_start",
}


def promised_rows(
    lake: Lake, *, without: Sequence[str] = (), of: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """All promised rows (`of` these protocols), without these columns (say window_start, where windows differ)."""
    return {
        table: [
            {name: value for name, value in row.items() if name not in without}
            for row in select(lake, f"select * from {table} order by {order}")
        ]
        for table, order in PROMISED.items()
        if not of or table.partition(".")[2].partition("_")[0] in of
    }


def assert_same_rows(left: Lake, right: Lake, *, without: Sequence[str] = (), of: Collection[str] = ()) -> None:
    """Both lakes hold the same promised rows (of the protocols `of`); else say which table differs where."""
    ours, theirs = promised_rows(left, without=without, of=of), promised_rows(right, without=without, of=of)
    for table, rows in ours.items():
        others = theirs[table]
        for index, (row, other) in enumerate(zip(rows, others, strict=False)):
            differing = {name: (row[name], other[name]) for name in row if row[name] != other[name]}
            assert not differing, f"{table} row {index}: {differing} in {row}"
        assert len(rows) == len(others), f"{table}: {len(rows)} rows, not {len(others)}"
