"""Lakes of rows for the boards, and a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.boards import CAPTURE, HOSTILE, SECOND, TEN, write
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows


@pytest.fixture
def empty(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), Windows("day", "2026-01-01"), (Source("net", "cardinal", "messages", "/"),))


@pytest.fixture
def filled(empty: Lake) -> Lake:
    """Rows of two protocols, some with text from the wire that wants to be more than text."""
    captures = [{"window_start": f"2026-11-{day}", "records": day, "size_bytes": 2**20 * day} for day in (14, 15)]
    told = {"protocol": "cardinal", "kind": "messages", "status": "landed", "path": HOSTILE, "landed_at_ns": TEN}
    times = {"first_arrived_at_ns": TEN, "last_arrived_at_ns": TEN + 100 * SECOND}
    write(empty, "bronze.captures", *(told | times | row for row in captures))
    write(empty, "bronze.windows", *(told | row for row in captures))
    found = {"protocol": "cardinal", "message": HOSTILE, "arrived_at_ns": TEN}
    severities = {"extra_message": "violation", "topic_wrong": "warning"}
    rules = [
        found | {"rule": f"cardinal.{rule}", "severity": severity, "record_number": number}
        for rule, severity in severities.items()
        for number in range(len(rule))
    ]
    write(empty, "gold.cardinal_found", *rules)
    blocks = [
        {
            "block_hash": bytes([number]) * 32,
            "number": number,
            "status": "complete" if number % 3 else "incomplete",
            "messages": number,
            "duplicates": 1,
            "arrived_at_ns": TEN + number * SECOND,
            "completed_at_ns": TEN + number * SECOND + 3**number * 1000 if number % 3 else None,
        }
        for number in range(1, 12)
    ]
    write(empty, "gold.cardinal_batches_history", *blocks)
    updates = [{"sequence": i, "head_number": i + i % 2, "arrived_at_ns": TEN + i * SECOND} for i in range(9)]
    write(
        empty, "gold.cardinal_chain_updates", *({"added": [], "removed": [], "head_hash": CAPTURE} | u for u in updates)
    )
    messages = [
        {"stream_address": HOSTILE, "index": i, "data_bytes": 100, "arrived_at_ns": TEN + i**3 * SECOND}
        for i in range(9)
    ]
    write(empty, "gold.ockam_stream_messages", *messages)
    return empty
