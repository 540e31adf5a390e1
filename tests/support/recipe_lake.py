"""A small lake written without Spark, with something for each of the recipes to find, and what they find."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import write_deltalake

from wirehouse_orchestration.terminal.render import plain
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.tables import all_tables

PAGE: Final = Path(__file__).parents[2] / "docs" / "recipes.md"
_RECIPE: Final = re.compile(r"^### (\d+)\. [^\n]+$.*?^```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DAY: Final = "2026-11-14"
_ID: Final = b"\7" * 16
_HASH: Final = b"\1" * 32
_OTHER: Final = b"\2" * 32
_NOON: Final = 1_700_000_000_000_000_000
_MS: Final = 1_000_000
_WALLAROO: Final = {"source": "net", "window_start": _DAY, "connection_id": _ID, "record_number": 0}

#: Rows by table; columns left out are null.
ROWS: Final[Mapping[str, list[dict[str, Any]]]] = {
    "bronze.captures": [
        {"path": "a", "status": "landed", "records": 7, "size_bytes": 100, "unreadable_records": 0, "landed_at_ns": 5},
        {"path": "b", "status": "rejected", "reason": "no capture", "records": 0, "size_bytes": 9, "landed_at_ns": 6},
    ],
    "bronze.findings": [{"protocol": "wallaroo", "rule": "capture.time_suspect", "severity": "note"}],
    "silver.wallaroo": [
        {
            **_WALLAROO,
            "row_kind": "connection",
            "connection": {
                "client_address": "10.0.0.1",
                "server_address": "10.0.0.2",
                "server_port": 7100,
                "closed": "reset",
                "client_missing_bytes": 30,
                "server_missing_bytes": 0,
            },
        },
        {
            **_WALLAROO,
            "row_kind": "violation",
            "finding": {"rule": "wallaroo.credits_overdrawn", "severity": "violation", "message": "none was left"},
        },
        {
            **_WALLAROO,
            "row_kind": "quarantine",
            "raw": b"\xff",
            "finding": {"rule": "wallaroo.oversize_frame", "severity": "violation", "message": "too long"},
        },
    ],
    "gold.cardinal_batches_history": [
        {
            "block_hash": _HASH,
            "number": Decimal(8),
            "status": "complete",
            "arrived_at_ns": _NOON,
            "completed_at_ns": _NOON + 40 * _MS,
            "duplicates": 2,
        },
        {
            "block_hash": _OTHER,
            "number": Decimal(9),
            "status": "incomplete",
            "missing": [{"name": "state/", "messages": 2, "what": "messages"}],
        },
    ],
    "gold.cardinal_reorgs_history": [{"capture_id": _HASH, "record_number": 4, "depth": 3, "announced": False}],
    "gold.cardinal_chain_history": [
        {"number": Decimal(8), "block_hash": _HASH, "valid_from_ns": _NOON},
        {"number": Decimal(7), "block_hash": _OTHER, "valid_from_ns": _NOON - 9, "valid_to_ns": _NOON},
    ],
    "gold.ockam_stream_indexes_history": [
        {
            "client_id": "c",
            "stream_name": "s",
            "partition": Decimal(0),
            "position": Decimal(5),
            "latest": Decimal(11),
            "lag": 7,
            "redelivered": 1,
        }
    ],
    "gold.ockam_delivery_holes": [
        {
            "client_id": "c",
            "stream_name": "s",
            "kind": "server_gap",
            "first_index": Decimal(2),
            "last_index": Decimal(3),
            "messages": 2,
        }
    ],
    "gold.ockam_stream_messages_history": [
        {
            "stream_address": "a1",
            "index": Decimal(1),
            "data": b"xyz",
            "data_bytes": 3,
            "pushed_at_ns": _NOON,
            "confirmed_at_ns": _NOON + 5 * _MS,
            "first_delivered_at_ns": _NOON + 15 * _MS,
        }
    ],
    "gold.hiero_decisions_history": [
        {
            "call": "k",
            "byte_end": 9,
            "node": "n",
            "publisher": "p",
            "offered": Decimal(9),
            "last_known": Decimal(4),
            "expected": "behind",
            "actual": "accepted",
            "legal": False,
            "rule": "hiero.x",
        },
        {"call": "k", "byte_end": 19, "legal": True},
    ],
    "gold.hiero_blocks_history": [
        {
            "block_number": Decimal(9),
            "proof_kind": "tss",
            "item_bytes": 50,
            "proof_at_ns": _NOON,
            "acknowledged_at_ns": _NOON + 8 * _MS,
        }
    ],
    "gold.hiero_catch_ups_history": [
        {
            "node": "n",
            "connection_id": _ID,
            "byte_end": 1,
            "offered": Decimal(20),
            "reported": Decimal(12),
            "fetched": 7,
            "state": "done",
            "ended_at_ns": _NOON,
        }
    ],
    "gold.wallaroo_sessions_history": [{"connection_id": _ID, "program_name": "feeds", "instance_name": "one"}],
    "gold.wallaroo_credits": [
        {"connection_id": _ID, "overdrawn": 2, "zero_at_ns": _NOON},
        {"connection_id": _ID, "overdrawn": 0},
    ],
    "gold.wallaroo_stream_progress_history": [
        {
            "program_name": "feeds",
            "instance_name": "one",
            "stream_id": Decimal(1),
            "stream_name": "s",
            "last_sent": Decimal(90),
            "last_acked": Decimal(80),
            "resume_point": Decimal(70),
            "replayed": 20,
        }
    ],
    "gold.bamboo_logs_history": [
        {
            "author": _HASH,
            "log_id": Decimal(0),
            "verified_up_to": Decimal(6),
            "length": Decimal(9),
            "missing_entries": Decimal(2),
            "invalid": 1,
            "forked_at": Decimal(7),
        }
    ],
    "gold.bamboo_proposals_history": [
        {
            "connection_id": _ID,
            "proposal_number": 1,
            "outcome": "cancelled",
            "credit_spent": 1,
            "inflated_bytes": Decimal(90),
            "compressed_bytes": Decimal(30),
        }
    ],
}

#: What each recipe answers, by its number, as in the output of JSON.
ANSWERS: Final[Mapping[int, list[list[Any]]]] = {
    1: [["net", 2, 7, 109, None, 6]],
    2: [["net", "b", "rejected", None, "no capture"]],
    3: [["wallaroo", "net", "10.0.0.1", "10.0.0.2", 7100, 30, 0]],
    4: [["wallaroo", "reset", 1]],
    5: [
        ["wallaroo", "wallaroo.credits_overdrawn", "violation", 1, 1, _DAY],
        ["wallaroo", "capture.time_suspect", "note", 1, 1, _DAY],
    ],
    6: [["wallaroo", "wallaroo.oversize_frame", "too long", 1, _DAY]],
    7: [["net", 9, _OTHER.hex(), "incomplete", [{"name": "state/", "messages": 2, "what": "messages"}]]],
    8: [["net", 1, 40, 40, 2]],
    9: [["net", 3, False, 1]],
    10: [["net", 8, _HASH.hex()]],
    11: [["net", "c", "s", 0, 5, 11, 7, 1]],
    12: [["net", "c", "s", "server_gap", 2, 3, 2]],
    13: [["net", "a1", 1, 3, 5, 10]],
    14: [["net", "n", "p", 9, 4, "behind", "accepted", "hiero.x"]],
    15: [["net", "tss", 1, 50, 8, 8]],
    16: [["net", "n", 8, 7, "done", _NOON]],
    17: [["net", "feeds", "one", 1, 2]],
    18: [["net", "feeds", "one", "s", 90, 80, 70, 20]],
    19: [["net", _HASH.hex(), 0, 6, 9, 2, 1, 7]],
    20: [["net", "cancelled", 1, 1, 90, 30]],
}


def recipes() -> dict[int, str]:
    """The statements of the page by their numbers."""
    return {int(found[1]): found[2] for found in _RECIPE.finditer(PAGE.read_text())}


def statements(name: str) -> tuple[str, str]:
    """Of a table or view: each column's count, least and most; its rows beside those with the same key, grouped."""
    table = all_tables()[name]
    plain_ones = [f"`{each.name}`" for each in table.columns if not each.type.startswith(("ARRAY", "MAP", "STRUCT"))]
    counted = ", ".join(f"COUNT({it}), MIN({it}), MAX({it})" for it in plain_ones)
    named = ", ".join(f"a.{it}" for it in plain_ones)
    same = " AND ".join(f"a.`{key}` = b.`{key}`" for key in table.key)
    return (
        f"SELECT COUNT(*), {counted} FROM {name}",
        f"SELECT {named}, COUNT(*) FROM {name} AS a JOIN {name} AS b ON {same} GROUP BY {named}",
    )


def arrow(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a table, with the comments of columns that tables of the lake have."""
    table = all_tables()[name]
    comments = {column.name: {"comment": column.comment} for column in table.columns}
    schema = pa.schema([field.with_metadata(comments[field.name]) for field in arrow_types.schema(table)])
    place = {"source": "net", "window_start": _DAY}
    return pa.Table.from_pylist([place | row for row in rows], schema=schema)


def write_table(lake: Lake, name: str, rows: list[dict[str, Any]]) -> None:
    """Add rows to a table of the lake."""
    write_deltalake(lake.table_path(name), arrow(name, rows), mode="append")


def write(lake: Lake) -> None:
    """Write ROWS."""
    for name, rows in ROWS.items():
        write_table(lake, name, rows)


def shown(rows: list[Any]) -> list[list[Any]]:
    """Rows as ANSWERS has them."""
    return [[plain(value) for value in row] for row in rows]
