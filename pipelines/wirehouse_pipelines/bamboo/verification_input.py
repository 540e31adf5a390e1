"""Entries from the rows of silver.bamboo, as rows of MOVED."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import (
    sent_id,
)
from wirehouse_codecs.bamboo.log.schema import ENTRY_TYPE, UINT
from wirehouse_codecs.bamboo.wire.entry_verification import payload_rule
from wirehouse_pipelines.bamboo.verification_rows import MOVED, PLACE_NAMES, Batches, with_key

#: The columns that are read from silver.bamboo.
_OF_ENTRY: Final = [name for name in ENTRY_TYPE.names if name != "greedy"]
COLUMNS: Final = dict.fromkeys(("source", "window_start", *PLACE_NAMES), ()) | {"entry": _OF_ENTRY}
#: What the search for known entries needs to know about new ones.
LOOKUP: Final = pa.schema(
    [
        ("source", pa.string()),
        ("key", pa.string()),
        ("seq", UINT),
        ("end_of_log", pa.bool_()),
        ("other_size", pa.bool_()),
    ]
)


def lookup_rows(batches: Batches, entries: Callable[[Batches], Batches]) -> Iterator[pa.RecordBatch]:
    """Rows of LOOKUP for new entries."""
    for moved in entries(batches):
        rows = with_key(moved)
        other_size = pc.equal(rows.column("payload_rule"), "payload_size_mismatch").fill_null(False)
        columns = [rows.column(name) for name in LOOKUP.names if name != "other_size"]
        yield pa.RecordBatch.from_arrays([*columns, other_size], schema=LOOKUP)


def read_entries(batches: Batches, services: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Rows of MOVED from rows of silver.bamboo.

    Connections that several sources saw are not dropped: equal entries are merged later, and one source may have what
    another one lost.
    """
    return (_entry_rows(batch, services) for batch in batches if batch.num_rows)


def _entry_rows(batch: pa.RecordBatch, services: Mapping[str, str]) -> pa.RecordBatch:
    rows, entry = batch.num_rows, dict(zip(_OF_ENTRY, batch.column("entry").flatten(), strict=True))
    uncertain = pc.or_(entry["entry_hash"].is_null(), entry["assumed_links"].fill_null(False))
    sent_ids: list[bytes | None] = [None] * rows
    for i in pc.indices_nonzero(uncertain).to_pylist():
        sent_ids[i] = sent_id({name: column[i].as_py() for name, column in entry.items()})
    sent = pa.array(sent_ids, pa.binary())
    own = pc.not_equal(entry["rule"], "link_unknown").fill_null(False)
    source = batch.column("source").dictionary_encode()
    service = pa.array([services[name] for name in source.dictionary.to_pylist()], pa.string())
    columns = {
        **{name: batch.column(name) for name in ("window_start", *PLACE_NAMES)},
        **{name: column for name, column in entry.items() if name in MOVED.names},
        "source": service.take(source.indices),
        "sent_id": sent,
        "payload_rule": pa.array(_payload_rules(entry), pa.string()),
        "own_rule": pc.if_else(own, entry["rule"], None),
        "own_reason": pc.if_else(own, entry["reason"], None),
        "reason": pa.nulls(rows, pa.string()),
        "seen_from": pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), entry["sender"]),
    }
    arrays = [columns[one.name].cast(one.type) if one.name in columns else pa.nulls(rows, one.type) for one in MOVED]
    return pa.RecordBatch.from_arrays(arrays, schema=MOVED)


def _payload_rules(entry: Mapping[str, pa.Array]) -> list[str | None]:
    """The rules that payloads break. The payloads themselves are not passed on."""
    rules: list[str | None] = [None] * len(entry["payload"])
    for i in pc.indices_nonzero(entry["payload"].is_valid()).to_pylist():
        size, hashed = entry["payload_size"][i].as_py(), entry["payload_hash"][i].as_py()
        if None not in (size, hashed):
            rules[i] = payload_rule(entry["payload"][i].as_py(), int(size), hashed)
    return rules
