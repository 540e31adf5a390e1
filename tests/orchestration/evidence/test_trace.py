"""`wirehouse trace`: from a row back to the landed bytes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from wirehouse_orchestration.evidence import trace as tracing
from wirehouse_orchestration.evidence.trace import NoSuchRowError, TraceKeyError, trace
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import object_writer
from wirehouse_pipelines.landing.landing import land
from wirehouse_pipelines.landing.manifests import Manifest, manifest_name
from wirehouse_pipelines.query.sql import UnknownTableError
from wirehouse_pipelines.tables import all_tables

MOST = 2**64 - 1
HASH = b"\x01" * 32
#: 2026-11-14T22:00 UTC.
TEN = 1_794_693_600_000
HOUR = 3_600_000


def message(number: int, **fields: Any) -> bytes:
    known = {
        "topic": "t",
        "partition": 1,
        "offset": number,
        "timestamp_ms": TEN + number * HOUR // 10,
        "key_b64": base64.b64encode(b"key %d" % number).decode(),
        "value_b64": base64.b64encode(b"value %d" % number).decode(),
    }
    return json.dumps(known | fields).encode() + b"\n"


class Traced:
    """A lake with one capture of forty messages in four hours."""

    def __init__(self, home: Path) -> None:
        path = home / "a.jsonl"
        path.write_bytes(b"".join(message(i) for i in range(39)) + b"broken\x1b[2J\n")
        source = Source("net", "cardinal", "messages", str(path))
        self.lake = Lake(str(home / "lake"), Windows("hour", "2026-01-01T00"), (source,))
        self.manifest: Manifest = land(self.lake, source, now_ns=(TEN + 100 * HOUR) * 1_000_000)[0]
        self.capture_id = bytes.fromhex(self.manifest.capture_id)

    def write(self, name: str, *rows: Mapping[str, Any]) -> None:
        given = {"source": "net", "capture_id": self.capture_id}
        table = pa.Table.from_pylist([given | dict(row) for row in rows], schema=arrow_types.schema(all_tables()[name]))
        write_deltalake(self.lake.table_path(name), table)

    def trace(self, table: str, key: str) -> str:
        out = io.StringIO()
        trace(self.lake, table, key, out)
        return out.getvalue()


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    monkeypatch.setattr(object_writer, "BLOCK_BYTES", 300)
    return Traced(tmp_path)


@pytest.mark.parametrize("number", [0, 9, 10, 23, 38])
def test_a_row_leads_to_the_bytes_of_its_record(traced: Traced, number: int) -> None:
    traced.write("gold.cardinal_batch_updates", {"block_hash": HASH, "number": Decimal(MOST), "record_number": number})
    text = traced.trace("gold.cardinal_batch_updates", HASH.hex())
    assert "gold.cardinal_batch_updates, row 1 of 1" in text
    assert f" number {MOST} " in " ".join(text.split())
    assert f"record {number} of capture a.jsonl, source net" in text
    window = f"2026-11-{14 if number < 20 else 15}T{(22 + number // 10) % 24:02d}"
    assert f"landing/messages/net/{window}/{traced.manifest.capture_id}-0000.avro" in text
    key, value = b"key %d" % number, b"value %d" % number
    assert f"  key, {len(key)} bytes\n    00000000  {key.hex(' '):<47}  {key.decode()}\n" in text
    assert f"  value, {len(value)} bytes\n    00000000  {value.hex(' '):<47}  {value.decode()}\n" in text
    assert f" offset {number} " in " ".join(text.split())


def test_an_entity_leads_to_every_record_it_points_to(traced: Traced) -> None:
    row = {"window_start": "2026-11-14T22", "block_hash": HASH, "record_number": 3, "status": "complete"}
    done = {"completed_capture_id": traced.capture_id, "completed_record_number": 12}
    traced.write("gold.cardinal_batches_history", row | done)
    text = traced.trace("gold.cardinal_batches", f"0x{HASH.hex().upper()}")
    assert "\nrecord 3 of capture" in text
    assert "completed record 12 of capture" in text
    assert "key 12" in text


def test_rows_and_their_records_are_told_as_json(traced: Traced) -> None:
    row = {"block_hash": HASH, "number": Decimal(MOST)}
    traced.write("gold.cardinal_batch_updates", row | {"record_number": 7}, row | {"record_number": None})
    out = io.StringIO()
    trace(traced.lake, "gold.cardinal_batch_updates", HASH.hex(), out, as_json=True)
    seven, capture = sorted(map(json.loads, out.getvalue().splitlines()), key=lambda told: len(told["records"][0]))[
        ::-1
    ]
    assert seven["table"] == "gold.cardinal_batch_updates"
    assert seven["row"].items() >= {"block_hash": HASH.hex(), "number": MOST, "record_number": 7}.items()
    assert seven["said"] is None
    (record,) = seven["records"]
    parts = {"key": {"size_bytes": 5, "hex": b"key 7".hex()}, "value": {"size_bytes": 7, "hex": b"value 7".hex()}}
    assert record["parts"].items() >= parts.items()
    where = {"source": "net", "path": "a.jsonl", "capture_id": traced.manifest.capture_id, "record_number": 7}
    assert record.items() >= (where | {"topic": "t", "offset": 7, "ts_ns": (TEN + 7 * HOUR // 10) * 10**6}).items()
    assert (Path(traced.lake.root) / record["object"]).is_file()
    assert capture["records"][0].items() >= {"status": "landed", "records": 40}.items()


def test_a_damaged_record_shows_its_bytes_and_drives_no_terminal(traced: Traced) -> None:
    traced.write("bronze.messages", {"record_number": 39, "damage": "not JSON", "damaged": b"broken\x1b[2J"})
    text = traced.trace("bronze.messages", "record_number=39")
    assert "  damaged, 10 bytes" in text
    assert "broken.[2J" in text
    assert "\x1b" not in text


def test_a_key_may_name_any_columns(traced: Traced) -> None:
    found = {"rule": "cardinal.extra_message", "protocol": "cardinal", "severity": "violation", "message": "it's"}
    traced.write("gold.cardinal_found", *(found | {"record_number": i, "offset": i} for i in range(3)))
    text = traced.trace("gold.cardinal_found", "rule=cardinal.extra_message,offset=2")
    assert "row 1 of 1" in text
    assert "key 2" in text
    assert "row 1 of 3" in traced.trace("gold.cardinal_found", "message=it's")
    with pytest.raises(NoSuchRowError, match="no row with offset=7"):
        traced.trace("gold.cardinal_found", "offset=7")


def test_a_view_is_asked_by_the_key_of_its_table(traced: Traced) -> None:
    message_type = arrow_types.schema(all_tables()["silver.cardinal"]).field("message").type
    inner = {field.name: None for field in message_type} | {"kind": "batch_msg"}
    traced.write("silver.cardinal", {"row_kind": "message", "record_number": 5, "message": inner})
    text = traced.trace("silver.cardinal_messages", traced.capture_id.hex())
    assert "record 5 of capture a.jsonl" in text


def test_a_capture_leads_to_its_manifest(traced: Traced) -> None:
    traced.write("bronze.captures", {"kind": "messages", "path": "a.jsonl"})
    assert "capture a.jsonl of source net: landed, 40 records" in traced.trace(
        "bronze.captures", traced.manifest.capture_id
    )


def test_a_key_that_stands_for_many_rows_is_said_so(traced: Traced) -> None:
    traced.write("gold.cardinal_batch_updates", *({"block_hash": HASH, "record_number": i} for i in range(15)))
    text = traced.trace("gold.cardinal_batch_updates", HASH.hex())
    assert "only the first 10 rows are shown" in text
    assert "record 9 of capture" in text
    assert "record 10 of capture" not in text


def test_long_values_are_cut(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SHOWN_BYTES", 5)
    traced.write("gold.cardinal_batch_updates", {"block_hash": HASH, "record_number": 0})
    text = traced.trace("gold.cardinal_batch_updates", HASH.hex())
    assert "00000000  76 61 6c 75 65 " in text
    assert "2 bytes more" in text


@pytest.mark.parametrize(
    ("table", "key", "reason"),
    [
        ("gold.cardinal_batches", "xyz", "block_hash is binary: write it as hex"),
        ("gold.cardinal_batches", "abc", "block_hash is binary"),
        ("gold.cardinal_batches", "number=many", "number is a whole number"),
        ("gold.cardinal_batches", "nothing=1", "no column 'nothing'"),
        ("gold.cardinal_batches", "expected=1", "can't be asked for"),
        ("gold.cardinal_chain_updates", "1 OR 1=1", "there is no column '1 OR 1'"),
        ("gold.violations", "7", "it has no key: write NAME=VALUE"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused(traced: Traced, table: str, key: str, reason: str) -> None:
    with pytest.raises(TraceKeyError, match=reason):
        traced.trace(table, key)


def test_what_is_not_there_is_said_in_one_line(traced: Traced) -> None:
    with pytest.raises(UnknownTableError, match=r"there is no table gold\.nothing"):
        traced.trace("gold.nothing", "1")
    with pytest.raises(NoSuchRowError, match="there is no row with 00"):
        traced.trace("gold.cardinal_batches", "00")
    traced.write("gold.cardinal_batch_updates", {"block_hash": HASH, "record_number": 40})
    with pytest.raises(NoSuchRowError, match="it has no record 40"):
        traced.trace("gold.cardinal_batch_updates", HASH.hex())
    Path(traced.lake.root, manifest_name("net", traced.manifest.capture_id)).unlink()
    with pytest.raises(NoSuchRowError, match="the manifest is gone"):
        traced.trace("gold.cardinal_batch_updates", HASH.hex())
