"""Distinct entries as rows: their columns, their ids, and what the steps of verification do with these rows.

`ENTRIES` is the schema that verification uses from reading the log to writing gold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.log.schema import ENTRY_TYPE
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets

PLACE: Final = (
    ("connection_id", pa.binary()),
    ("direction", pa.string()),
    ("byte_start", pa.int64()),
    ("byte_end", pa.int64()),
    ("capture_id", pa.binary()),
    ("record_number", pa.int64()),
    ("arrived_at_ns", pa.int64()),
)
#: A distinct entry with the place where it came first. `reason` names the rule that makes it invalid. The rule is
#: broken by the entry alone (`own_rule`), by its signature (`signature_rule`) or by a payload that came with it
#: (`payload_rule`). `superseded`: another row has the same entry with all its links.
ENTRIES: Final = pa.schema(
    [
        ("entry_id", pa.binary()),
        # The columns of entries in silver.bamboo.
        *list(ENTRY_TYPE)[: ENTRY_TYPE.get_field_index("assumed_links")],
        ("own_rule", pa.string()),
        ("own_reason", pa.string()),
        ("signature_rule", pa.string()),
        ("payload_rule", pa.string()),
        ("seen_from", pa.list_(pa.string())),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("superseded", pa.bool_()),
        *PLACE,
    ]
)
NO_ENTRIES: Final = pa.RecordBatch.from_pylist([], schema=ENTRIES)
PLACE_NAMES: Final = tuple(name for name, _ in PLACE)
#: Files and cancels present entries as such, so a rule that one of these entries breaks is a violation.
SHOWN: Final = ("cancel", "file")
OTHER_SIZE: Final = "payload_size_mismatch"
OTHER_HASH: Final = "payload_hash_mismatch"


def follows_bad(entry: Mapping[str, Any], bad: Container[bytes | None]) -> bool:
    """Whether a link that was not sent leads to an entry in `bad`. Then nobody knows which entry the sender meant."""
    omitted = entry["omitted"] or ()
    return any(name in omitted and entry[name] in bad for name in ("lipmaalink", "backlink"))


def without_links(row: Mapping[str, Any], sent_id: bytes) -> dict[str, Any]:
    """The entry without its assumed links. They were not sent, and the signature shows that they are wrong."""
    targets = link_targets(int(row["seq"]))
    sent = set() if "backlink" in row["omitted"] else {targets[-1]}
    unknown = {"entry_id": sent_id, "unknown_links": [seq for seq in targets if seq not in sent]}
    lost = dict.fromkeys(("data", "entry_hash", "signature_rule", "lipmaalink"))
    return {**row, **lost, **unknown, "backlink": row["backlink"] if sent else None}


def sent_id(entry: Mapping[str, Any]) -> bytes:
    """The id of an entry by what was sent of it: a SHA-256 of these fields of ENTRY_TYPE."""
    backlink = None if "backlink" in (entry["omitted"] or ()) else entry["backlink"]
    named = (entry["author"], entry["payload_hash"], entry["signature"], backlink)
    counted = (entry["log_id"], entry["seq"], entry["end_of_log"], entry["payload_size"])
    fields = [None if value is None else value.hex().upper() for value in named]
    fields += [None if value is None else str(value).lower() for value in counted]
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).digest()


def lists_of(rows: pa.RecordBatch, *names: str) -> list[list[Any]]:
    """These columns as lists."""
    return [rows.column(name).to_pylist() for name in names]


def only(rows: pa.RecordBatch, mask: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """The rows where `mask` is true. All rows, or none, are not copied."""
    if mask.all():
        return rows
    return rows.filter(pa.array(mask)) if mask.any() else rows.slice(0, 0)


def is_true(column: pa.Array) -> np.ndarray[Any, Any]:
    """Where a boolean column is true; null is false."""
    return np.asarray(column.fill_null(False))


def values_differ(before: pa.Array, after: pa.Array) -> np.ndarray[Any, Any]:
    """Where two columns differ; two nulls are equal."""
    same = np.asarray(pc.equal(before, after).fill_null(False))
    differs: np.ndarray[Any, Any] = ~(same | (np.asarray(before.is_null()) & np.asarray(after.is_null())))
    return differs


def with_columns(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """`rows` with these columns replaced."""
    arrays = [columns.get(field.name, rows.column(field.name)) for field in rows.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def with_edits(rows: pa.RecordBatch, edits: Mapping[int, Mapping[str, Any]]) -> pa.RecordBatch:
    """`rows` with other values in a few rows."""
    names = {name for fields in edits.values() for name in fields}
    columns = {}
    for name in names:
        values = rows.column(name).to_pylist()
        for i, fields in edits.items():
            if name in fields:
                values[i] = fields[name]
        columns[name] = pa.array(values, ENTRIES.field(name).type)
    return with_columns(rows, columns)


def is_signed(rows: pa.RecordBatch) -> pa.Array:
    """Which entries are correctly encoded and signed."""
    right = [rows.column(name).is_null() for name in ("own_rule", "signature_rule")]
    return pc.and_(pc.and_(*right), rows.column("data").is_valid())


def is_readable(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Which entries are correctly encoded and have all their links."""
    right = np.asarray(rows.column("data").is_valid()) & np.asarray(rows.column("own_rule").is_null())
    readable: np.ndarray[Any, Any] = right & ~is_true(rows.column("superseded"))
    return readable


def arrival_keys(rows: pa.RecordBatch) -> list[np.ndarray[Any, Any]]:
    """Sort keys by arrival for `lexsort`, which takes the most important one last."""
    return [np.asarray(rows.column(name).fill_null(0)) for name in ("byte_start", "record_number", "arrived_at_ns")]
