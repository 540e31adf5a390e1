"""A small lake written without Spark, with something for most statements of the docs to find, and what they find.

The statements are those of the recipes and of the how-to guides.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from deltalake import write_deltalake

from infra.tools import generated_pages, readme_tour
from wirehouse_orchestration.terminal.render import plain
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.tables import all_tables

GUIDES: Final = generated_pages.FOLDER / "how-to"
PAGES: Final = (generated_pages.FOLDER / "recipes.md", *sorted(GUIDES.glob("*.md")))
_BLOCK: Final = re.compile(r"^```(sql|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A condition by which a guide selects a source of the demo.
_SOURCE: Final = re.compile(r"\bsource (=|LIKE) '[^']*'")
_DAY: Final = "2026-11-14"
_ID: Final = b"\7" * 16
_HASH: Final = b"\1" * 32
_OTHER: Final = b"\2" * 32
_NOON: Final = 1_700_000_000_000_000_000
_MS: Final = 1_000_000
_ENTRY: Final = {"author": _HASH, "log_id": Decimal(0), "seq": Decimal(7)}
_WALLAROO: Final = {"source": "net", "window_start": _DAY, "connection_id": _ID, "record_number": 0}

#: Rows by table; columns left out are null.
ROWS: Final[Mapping[str, list[dict[str, Any]]]] = {
    "bronze.captures": [
        {"path": "a", "status": "landed", "records": 7, "size_bytes": 100, "unreadable_records": 0, "landed_at_ns": 5},
        {"path": "b", "status": "rejected", "reason": "no capture", "records": 0, "size_bytes": 9, "landed_at_ns": 6},
    ],
    "bronze.segments": [
        {"capture_id": _HASH, "record_number": 0},
        {"capture_id": _HASH, "record_number": 1, "skip": "port_not_claimed"},
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
    "gold.cardinal_batch_updates": [
        {"block_hash": _HASH, "number": Decimal(8), "key": b"\xaa", "value": b"\xbb", "operation": "set"},
        {"block_hash": _HASH, "number": Decimal(8), "key": b"\xab", "operation": "delete"},
        {"block_hash": _OTHER, "number": Decimal(7), "key": b"\xaa", "value": b"\xcc", "operation": "set"},
    ],
    "gold.cardinal_reorgs_history": [{"capture_id": _HASH, "record_number": 4, "depth": 3, "announced": False}],
    "gold.cardinal_chain_history": [
        {"number": Decimal(8), "block_hash": _HASH, "valid_from_ns": _NOON},
        {
            "number": Decimal(7),
            "block_hash": _OTHER,
            "canonical": True,
            "valid_from_ns": _NOON - 9,
            "valid_to_ns": _NOON,
        },
    ],
    "gold.ockam_stream_indexes_history": [
        {
            "client_id": "c",
            "stream_name": "s",
            "partition": Decimal(0),
            "position": Decimal(5),
            "latest": Decimal(11),
            "lag": 70,
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
        {"call": "k", "byte_end": 19, "publisher": "p", "expected": "behind", "actual": "behind", "legal": True},
    ],
    "gold.hiero_publisher_sessions_history": [
        {"call": "k", "node": "n", "publisher": "p", "failed": True, "acknowledged": 0},
        {"call": "l", "node": "n", "publisher": "p", "failed": False, "acknowledged": 3},
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
    "gold.wallaroo_sessions_history": [
        {
            "connection_id": _ID,
            "program_name": "feeds",
            "instance_name": "one",
            "state": "error",
            "ended": "closed",
            "error_by": "server",
            "failed": True,
        }
    ],
    "gold.wallaroo_credits": [
        {
            "connection_id": _ID,
            "granted": 9,
            "spent": 11,
            "overdrawn": 2,
            "zero_at_ns": _NOON,
            "arrived_at_ns": _NOON + 3 * _MS,
        },
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
            "replayed": 320,
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
            "entries": 3,
        }
    ],
    "gold.bamboo_sessions_history": [{"connection_id": _ID}],
    "gold.bamboo_payloads": [{"connection_id": _ID, "proposal_number": 1, "seq": Decimal(7), "fate": "missing"}],
    "gold.bamboo_forks_history": [
        {
            "author": _HASH,
            "log_id": Decimal(0),
            "position": Decimal(7),
            "proof": "entries",
            "first_length": Decimal(9),
            "second_length": Decimal(8),
            "first_served_by": ["a"],
            "second_served_by": ["b"],
            "first_data": b"\xaa",
            "second_data": b"\xbb",
        }
    ],
    "gold.bamboo_entries_history": [
        {**_ENTRY, "entry_id": _HASH, "verdict": "valid", "payload_size": Decimal(5), "seen_from": ["b", "a"]},
        {**_ENTRY, "entry_id": _OTHER, "verdict": "invalid", "reason": "fork"},
        {**_ENTRY, "entry_id": _ID, "verdict": "valid", "seq": Decimal(6), "payload_size": Decimal(0)},
    ],
    "gold.bamboo_proposals_history": [
        {
            "connection_id": _ID,
            "proposal_number": 1,
            "author": _HASH,
            "log_id": Decimal(0),
            "outcome": "cancelled",
            "credit_spent": 1,
            "inflated_bytes": Decimal(90),
            "compressed_bytes": Decimal(30),
        }
    ],
}

#: What each statement answers, by page and number on it, as in the output of JSON.
ANSWERS: Final[Mapping[str, list[list[Any]]]] = {
    "recipes 1": [["net", 1, 40, 40, 2]],
    "recipes 2": [["net", 3, False, 1]],
    "recipes 3": [["net", 8, _HASH.hex()]],
    "recipes 4": [["net", "tss", 1, 50, 8, 8]],
    "recipes 5": [["net", "cancelled", 1, 1, 90, 30]],
    "recipes 6": [["net", "aa", "bb", 8, _HASH.hex()]],
    "recipes 7": [
        ["net", _HASH.hex(), 0, 2, 0, 0, 1, 0, [{"first": 6, "last": 6}], ["a", "b"]],
    ],
    "add-a-source 1": [["net", 2, 7, 109, None, 6]],
    "add-a-source 2": [["net", "b", "rejected", None, "no capture"]],
    "add-a-source 3": [["net", "port_not_claimed", 1]],
    "alert-on-violations 1": [
        ["wallaroo", "wallaroo.credits_overdrawn", "violation", 1, 1, _DAY],
        ["wallaroo", "capture.time_suspect", "note", 1, 1, _DAY],
    ],
    "alert-on-violations 2": [["net", "wallaroo.credits_overdrawn", 1, "none was left"]],
    "bamboo-forked-log 1": [["net", 0, 6, 9, 2, 1, 7]],
    "bamboo-forked-log 2": [[0, 7, "entries", 9, 8, ["a"], ["b"]]],
    "bamboo-forked-log 3": [[_HASH.hex(), 0, 7, "aa", "bb"]],
    "bamboo-forked-log 4": [[0, 7, "invalid", "fork", None]],
    "cardinal-chain-stalls 1": [["net", 7, 8]],
    "cardinal-chain-stalls 2": [["net", 9, "incomplete", [{"name": "state/", "messages": 2, "what": "messages"}]]],
    "cardinal-chain-stalls 3": [],
    "cut-captures 1": [["wallaroo", "net", "10.0.0.1", "10.0.0.2", 7100, 30, 0]],
    "cut-captures 2": [["wallaroo", None, "reset", None, 1]],
    "cut-captures 3": [["wallaroo", "reset", 1]],
    "cut-captures 4": [["wallaroo", "wallaroo.oversize_frame", "too long", 1, _DAY]],
    "erase-a-capture 1": [[None, "net", "a"], [None, "net", "b"]],
    "export-bytes 1": [["wallaroo.credits_overdrawn", "none was left"]],
    "hiero-publisher-backs-off 1": [["p", "n", 2, 1, 3]],
    "hiero-publisher-backs-off 2": [["p", None, "behind", "behind", True]],
    "hiero-publisher-backs-off 3": [["net", "n", "p", 9, 4, "behind", "accepted", "hiero.x"]],
    "hiero-publisher-backs-off 4": [["n", 8, 7, "done", _NOON]],
    "hiero-publisher-backs-off 5": [],
    "ockam-consumer-lags 1": [["net", "c", "s", 0, 5, 11, 70, None]],
    "ockam-consumer-lags 2": [["net", "c", "s", "server_gap", 2, 3, 2]],
    "ockam-consumer-lags 3": [["net", "a1", 1, 5, 10]],
    "wallaroo-no-credit 1": [["net", "feeds", "one", 1, 2]],
    "wallaroo-no-credit 2": [[9, 11, 3000]],
    "wallaroo-no-credit 3": [["feeds", "one", "s", 90, 80, 70, 320]],
    "wallaroo-no-credit 4": [["one", "error", "closed", None, "server", True]],
    "wallaroo-no-credit 5": [["wallaroo.credits_overdrawn", "violation", "none was left"]],
}


def recipes() -> dict[str, str]:
    """The statements of the pages, by page and number on it."""
    return {
        f"{page.stem} {number}": text
        for page in PAGES
        for number, text in enumerate(_statements(page.read_text()), start=1)
    }


def here(statement: str) -> str:
    """The statement about this lake, which has one source."""
    return _SOURCE.sub("source = 'net'", statement)


def _statements(page: str) -> Iterator[str]:
    for kind, body in _BLOCK.findall(page):
        if kind == "sql":
            yield body
            continue
        for command in readme_tour.commands(body):
            match shlex.split(command):
                case ["wirehouse", "sql", *_, statement]:
                    yield statement


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
