"""Entries from the rows of silver.bamboo, as rows of MOVED."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import (
    sent_id,
)
from wirehouse_codecs.bamboo.log.schema import ENTRY_TYPE
from wirehouse_codecs.bamboo.wire.entry_verification import payload_rule
from wirehouse_pipelines.bamboo.verification_rows import MOVED, PLACE_NAMES, with_key, without_following

#: The columns that are read from silver.bamboo.
_OF_ENTRY: Final = [name for name in ENTRY_TYPE.names if name != "greedy"]
COLUMNS: Final = dict.fromkeys(("source", "window_start", *PLACE_NAMES), ()) | {"entry": _OF_ENTRY}


def entry_rows(rows: pa.RecordBatch, services: Mapping[str, str]) -> pa.RecordBatch:
    """Rows of MOVED from rows of silver.bamboo.

    Connections that several sources saw are not dropped: equal entries are merged later, and one source may have what
    another one lost.
    """
    count, entry = rows.num_rows, dict(zip(_OF_ENTRY, rows.column("entry").flatten(), strict=True))
    uncertain = pc.or_(entry["entry_hash"].is_null(), entry["assumed_links"].fill_null(False))
    sent_ids: list[bytes | None] = [None] * count
    for i in pc.indices_nonzero(uncertain).to_pylist():
        sent_ids[i] = sent_id({name: column[i].as_py() for name, column in entry.items()})
    own = pc.not_equal(entry["rule"], "link_unknown").fill_null(False)
    columns = {
        **{name: rows.column(name) for name in ("window_start", *PLACE_NAMES)},
        **{name: column for name, column in entry.items() if name in MOVED.names},
        # A file of the table has rows of one source.
        "source": pa.repeat(services[rows.column("source")[0].as_py()], count),
        "sent_id": pa.array(sent_ids, pa.binary()),
        "payload_rule": pa.array(_payload_rules(entry), pa.string()),
        "own_rule": pc.if_else(own, entry["rule"], None),
        "own_reason": pc.if_else(own, entry["reason"], None),
        "reason": pa.nulls(count, pa.string()),
        "seen_from": pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32), entry["sender"]),
    }
    arrays = [columns[one.name].cast(one.type) if one.name in columns else pa.nulls(count, one.type) for one in MOVED]
    return without_following(with_key(pa.RecordBatch.from_arrays(arrays, schema=MOVED)))


def _payload_rules(entry: Mapping[str, pa.Array]) -> list[str | None]:
    """The rules that payloads break. The payloads themselves are not passed on."""
    rules: list[str | None] = [None] * len(entry["payload"])
    for i in pc.indices_nonzero(entry["payload"].is_valid()).to_pylist():
        size, hashed = entry["payload_size"][i].as_py(), entry["payload_hash"][i].as_py()
        if None not in (size, hashed):
            rules[i] = payload_rule(entry["payload"][i].as_py(), int(size), hashed)
    return rules
