"""The rows that verification passes between its steps: their kinds and columns, and the key of a log.

`MOVED` are entries on their way to the task of their log, `READ` the same in that task. `WRITTEN` are entries with
verdicts, as the task writes them. `RESULTS` are all other rows that the task makes tables of.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import (
    ENTRIES,
    PLACE,
    with_columns,
)
from wirehouse_codecs.bamboo.correlation.log_state import PROVED
from wirehouse_codecs.bamboo.log.schema import UINT
from wirehouse_codecs.bamboo.wire import entries as bamboo_entries
from wirehouse_codecs.bamboo.wire.entries import FOLLOWING

Array = np.ndarray[Any, Any]
SILVER: Final = "silver.bamboo"
ENTRIES_TABLE: Final = "gold.bamboo_entries_history"
FORKS_TABLE: Final = "gold.bamboo_forks_history"
LOGS_TABLE: Final = "gold.bamboo_logs_history"
FOUND_TABLE: Final = "gold.bamboo_found"
#: The state that a window passes to later ones.
STATE_TABLE: Final = "gold.bamboo_state"
#: Kinds of row. FINDING: a broken rule. BAD: metadata with a wrong signature. STATE: a digest of what changed.
ENTRY, FORK, LOG, FINDING, BAD, STATE = "entry", "fork", "log", "finding", "bad", "state"
#: Metadata with assumed links to entries with wrong signatures, so that its own signature can't be checked.
UNSURE: Final = "unsure"
#: LOOSE: `entry_hash` is what a loose link names. ELSEWHERE: also author and log id of the entry that it leads to.
LOOSE, ELSEWHERE = "loose", "elsewhere"
FORK_COLUMNS: Final = (
    ("position", UINT),
    ("proof", pa.string()),
    ("first_hash", pa.binary()),
    ("second_hash", pa.binary()),
    *(
        (f"{branch}_{name}", kind)
        for branch in ("first", "second")
        for name, kind in (("length", UINT), ("head", pa.binary()), ("served_by", pa.list_(pa.string())))
    ),
    ("first_data", pa.binary()),
    ("second_data", pa.binary()),
)
_LOG_COLUMNS: Final = (
    *((name, pa.int64()) for name in ("entries", "valid", "invalid", "unknown")),
    *((name, UINT) for name in ("length", "verified_up_to", "ends_at", "forked_at", "missing_entries")),
    ("missing", pa.list_(pa.struct([("first", UINT), ("last", UINT)]))),
)
_WHOSE: Final = (("row_kind", pa.string()), ("source", pa.string()), ("window_start", pa.string()))
KEY: Final = ("source", "key")
_KEY_COLUMN: Final = ("key", pa.string())
RESULTS: Final = pa.schema([*_WHOSE, _KEY_COLUMN, *ENTRIES, *FORK_COLUMNS, *_LOG_COLUMNS, ("state", pa.string())])
#: Entries as the task of their log writes them.
WRITTEN: Final = pa.schema([("source", pa.string()), ("window_start", pa.string()), *ENTRIES])
#: Entries with their sender, and what is known of their log before: rows without a window. `sent_id` is an entry's id
#: without assumed links. `entry_id` is `entry_hash`, or `sent_id` if that is null.
MOVED: Final = pa.schema(
    [
        *_WHOSE,
        _KEY_COLUMN,
        *ENTRIES,
        *FORK_COLUMNS[: 1 + PROVED],
        ("length", UINT),
        ("sender", pa.string()),
        ("sent_id", pa.binary()),
        # If the entry is only here because another log links to it: the key of that log.
        ("linked_from", pa.string()),
        # The window in which a row without a window was written. The newest row of its entry or fork counts.
        ("state_window", pa.string()),
    ]
)
#: The same with a column that is computed there.
READ: Final = MOVED.append(pa.field("unsure", pa.bool_()))
PLACE_NAMES: Final = tuple(name for name, _ in PLACE)


def without_following(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` of MOVED without the columns that the encoded entries contain: a third of the bytes to shuffle."""
    right = bamboo_entries.scan(rows.column("data")).right
    kept = (rows.column(name) for name in FOLLOWING)
    light = [pa.nulls(len(right), c.type) if right.all() else pc.if_else(right, None, c) for c in kept]
    return with_columns(rows, dict(zip(FOLLOWING, light, strict=True)))


def with_following(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` of READ with what `without_following` left out."""
    right, columns = bamboo_entries.following(rows.column("data"))
    if not right.all():
        columns = {name: pc.if_else(right, column, rows.column(name)) for name, column in columns.items()}
    return with_columns(rows, columns)


def with_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` of MOVED with their ids and the key of their log."""
    entry_id = pc.coalesce(*(rows.column(name) for name in ("entry_id", "entry_hash", "sent_id")))
    key = pc.coalesce(rows.column("linked_from"), key_of(rows.column("author"), rows.column("log_id"), entry_id))
    return with_columns(rows, {"entry_id": entry_id, "key": key})


def key_of(author: pa.Array, log_id: pa.Array, entry_id: pa.Array) -> pa.Array:
    """The key of each entry's log. An unreadable entry is its own key."""
    authors = author.dictionary_encode()
    named = pa.array([one.hex() for one in authors.dictionary.to_pylist()], pa.string()).take(authors.indices)
    keys = pc.binary_join_element_wise(named, log_id.cast(pa.string()), ":")
    if keys.null_count:
        listed = keys.to_pylist()
        keys = pa.array([key or entry_id[i].as_py().hex() for i, key in enumerate(listed)], pa.string())
    return keys


def log_of(key: str) -> dict[str, Any]:
    """The columns of an entry that make this the key of its log."""
    first, *log_id = key.split(":")
    return {"author": bytes.fromhex(first), "log_id": int(log_id[0])} if log_id else {"entry_id": bytes.fromhex(first)}
