"""Turns the records of an entry file into rows of the log `silver.bamboo`: an entry, or bytes that are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs.bamboo.log.rows import ENTRY, shown_row
from wirehouse_codecs.bamboo.log.schema import ENTRY_TYPE
from wirehouse_codecs.bamboo.wire.entry_files import content
from wirehouse_codecs.captures.rules import RULE as CAPTURE_RULE
from wirehouse_codecs.logs.rows import COMMON, FINDING_TYPE, QUARANTINE

FILE: Final = "file"
_TYPES: Final = dict(COMMON)
#: What is kept of a record: bronze.files has the rest.
PLACE: Final = ("capture_id", "record_number", "arrived_at_ns", "capture_arrived_at_ns")
#: The columns of the log that rows of files have.
ROWS: Final = pa.schema(
    [
        *((name, _TYPES[name]) for name in ("source", "window_start", "row_kind", *PLACE)),
        ("finding", FINDING_TYPE),
        ("raw", pa.binary()),
        ("entry", ENTRY_TYPE),
    ]
)
#: What it is read from.
RECORDS: Final = ("source", "window_start", *PLACE, "name", "data", "damaged", "damage")


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The kind and the contents of a record."""
    if record["damage"] is not None:
        rule = CAPTURE_RULE["file_damaged"]
        finding = {"rule": rule.id, "severity": rule.severity.value, "message": record["damage"]}
        return {"row_kind": QUARANTINE, "finding": finding, "raw": record["damaged"] or record["data"]}
    data, payload = content(record["data"])
    return {"row_kind": ENTRY, "entry": shown_row(data, FILE, record["name"]) | {"payload": payload}}
