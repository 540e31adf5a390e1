"""Landing: what is kept of captures, in which order, and that a commit is all or nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.captures import files as file_captures
from wirehouse_codecs.captures import inflate, messages, pcap
from wirehouse_codecs.captures.files import FileRecord
from wirehouse_codecs.captures.messages import Row, to_batch
from wirehouse_codecs.captures.pcap import Packet
from wirehouse_codecs.hiero.wire.grpc_log import Entry, frame
from wirehouse_codecs.hiero.wire.grpc_log import encode as encode_entry
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import capture_files, clock, landing, object_reader, object_writer, window_objects
from wirehouse_pipelines.landing import manifests as all_manifests
from wirehouse_pipelines.landing.capture_files import CaptureFile, MissingPathError, RefusedPathError, captures_at
from wirehouse_pipelines.landing.clock import Clock
from wirehouse_pipelines.landing.landing import KindError, NotLandedError, land
from wirehouse_pipelines.landing.manifests import Manifest, manifest_name, manifests, write_manifest
from wirehouse_pipelines.storage.storage import LocalStorage, Storage, Stored, open_storage

VECTORS = Path(__file__).parents[2] / "vectors" / "cardinal"
HOUR_MS = 3_600_000
#: 2026-11-14T22:00 UTC.
TEN = 1_794_693_600_000
NOW_NS = (TEN + 30 * 24 * HOUR_MS) * 1_000_000


def line(ts_ms: int | None, value: bytes = b"v", **fields: Any) -> bytes:
    known = {"timestamp_ms": ts_ms, "key_b64": "aw==", "value_b64": base64.b64encode(value).decode()}
    return json.dumps(known | fields).encode() + b"\n"


def capture(*times_ms: int | None) -> bytes:
    return b"".join(line(ts, b"%d" % i) for i, ts in enumerate(times_ms))


class Place:
    """A lake and a source's folder."""

    def __init__(self, home: Path, size: Any = "hour", start: str = "2026-01-01T00") -> None:
        self.inbox = home / "inbox"
        self.inbox.mkdir()
        self.source = Source("net", "cardinal", "messages", str(self.inbox))
        self.lake = Lake(str(home / "lake"), Windows(size, start), (self.source,))

    def put(self, name: str, data: bytes) -> Path:
        path = self.inbox / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def land(self, **options: Any) -> list[Manifest]:
        return land(self.lake, self.source, **({"now_ns": NOW_NS} | options))

    def records(self, manifest: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
        for window, listed in manifest.windows.items():
            count = 0
            for name in listed.objects:
                with open(f"{self.lake.root}/{name}", "rb") as stream:
                    for record in fastavro.reader(stream):
                        count += 1
                        yield window, dict(cast(Mapping[str, Any], record))
            assert count == listed.records

    def files(self) -> set[str]:
        found = Path(self.lake.root).rglob("*")
        return {str(p.relative_to(self.lake.root)) for p in found if p.is_file() and not p.name.endswith(".lock")}

    def visible(self) -> set[str]:
        """Objects that a manifest names."""
        listed = manifests(self.lake)
        return {name for manifest in listed for window in manifest.windows.values() for name in window.objects}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# What is kept


@pytest.mark.property
def test_every_record_keeps_its_bytes_and_its_place(place: Place) -> None:
    data = (VECTORS / "a_linear" / "messages.jsonl").read_bytes()
    place.lake = Lake(place.lake.root, Windows("day", "2015-01-01"))
    place.put("a.jsonl", data)
    (manifest,) = place.land()
    wanted = [json.loads(text) for text in data.splitlines()]
    landed = [record for _, record in place.records(manifest)]
    assert [record["record_number"] for record in landed] == list(range(len(wanted)))
    for record, want in zip(landed, wanted, strict=True):
        assert record["key"] == base64.b64decode(want["key_b64"])
        assert record["value"] == base64.b64decode(want["value_b64"])
        assert (record["topic"], record["partition"], record["offset"]) == (
            want["topic"],
            want["partition"],
            want["offset"],
        )
        assert record["ts_ns"] == want["timestamp_ms"] * 1_000_000
        assert record["capture_id"] == hashlib.sha256(data).digest()
        assert record["capture_arrived_at_ns"] == manifest.first_arrived_at_ns
        assert (record["damaged"], record["damage"], record["headers"]) == (None, None, [])
    assert manifest.records == len(wanted)
    assert (manifest.status, manifest.reason, manifest.size_bytes) == ("landed", None, len(data))
    assert (manifest.source, manifest.protocol, manifest.kind, manifest.path) == (
        "net",
        "cardinal",
        "messages",
        "a.jsonl",
    )


def test_a_damaged_line_keeps_its_bytes(place: Place) -> None:
    place.put(
        "a.jsonl",
        line(TEN) + b"\x00\xffbroken\n" + line(TEN, topic="\u00e9", headers=[{"key": "h", "value_b64": "aA=="}]),
    )
    (manifest,) = place.land()
    landed = [record for _, record in place.records(manifest)]
    assert landed[1]["damaged"] == b"\x00\xffbroken"
    assert "not UTF-8" in landed[1]["damage"]
    assert (landed[1]["key"], landed[1]["ts_ns"]) == (None, None)
    assert landed[2]["topic"] == "\u00e9"
    assert landed[2]["headers"] == [{"key": "h", "value": b"h"}]
    assert manifest.status == "landed"


def test_an_object_and_its_manifest_lie_where_the_design_says(place: Place) -> None:
    data = capture(TEN, TEN + HOUR_MS)
    place.put("a.jsonl", data)
    (manifest,) = place.land()
    name = hashlib.sha256(data).hexdigest()
    assert manifest.capture_id == name
    assert manifest.windows["2026-11-14T22"].objects == (f"landing/messages/net/2026-11-14T22/{name}-0000.avro",)
    assert {file for file in place.files() if not file.startswith("landing/seen")} == {
        "lake.json",
        f"landing/manifests/net/{name}.json",
        f"landing/messages/net/2026-11-14T22/{name}-0000.avro",
        f"landing/messages/net/2026-11-14T23/{name}-0000.avro",
    }
    assert manifests(place.lake) == manifests(place.lake, "net") == [manifest]
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_large_captures_are_cut_into_objects(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_objects, "MAX_OBJECT_BYTES", 100_000)
    monkeypatch.setattr(object_writer, "BLOCK_BYTES", 10_000)
    source = random.Random(1)
    place.put("a.jsonl", b"".join(line(TEN, source.randbytes(1_000)) for _ in range(1_000)))
    (manifest,) = place.land()
    objects = manifest.windows["2026-11-14T22"].objects
    assert len(objects) > 10
    assert [name[-9:] for name in objects[:2]] == ["0000.avro", "0001.avro"]
    for name in objects:
        assert Path(place.lake.root, name).stat().st_size <= 100_000
    assert [record["record_number"] for _, record in place.records(manifest)] == list(range(1_000))


@settings(max_examples=50)
@given(
    st.lists(
        st.builds(
            Row,
            topic=st.none() | st.text(max_size=5),
            partition=st.none() | st.integers(-(2**31), 2**31 - 1),
            offset=st.none() | st.integers(-(2**63), 2**63 - 1),
            ts_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
            ts_type=st.sampled_from([None, "create", "append"]),
            key=st.none() | st.binary(max_size=200),
            value=st.none() | st.binary(max_size=5),
            headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
            damaged=st.none() | st.binary(max_size=3),
            damage=st.none() | st.text(max_size=3),
        ),
        max_size=8,
    ),
    st.integers(0, 3),
    st.integers(1, 300),
)
def test_records_are_encoded_as_fastavro_reads_them(rows: list[Row], begin: int, block_bytes: int) -> None:
    batch = to_batch(rows)[begin:]
    headers = [{"headers": [{"key": key, "value": value} for key, value in row.headers]} for row in rows[begin:]]
    expected = [row._asdict() | own for row, own in zip(rows[begin:], headers, strict=True)]
    _assert_encoded(object_writer.MESSAGES, batch, expected, block_bytes)


@settings(max_examples=30)
@given(
    st.lists(
        st.builds(
            Packet,
            ts_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
            link_type=st.none() | st.integers(0, 2**16 - 1),
            original_length=st.none() | st.integers(0, 2**32 - 1),
            data=st.none() | st.binary(max_size=200),
            damaged=st.none() | st.binary(max_size=3),
            damage=st.none() | st.text(max_size=3),
        ),
        max_size=8,
    ),
    st.integers(0, 3),
    st.integers(1, 300),
)
def test_packets_are_encoded_as_fastavro_reads_them(rows: list[Packet], begin: int, block_bytes: int) -> None:
    batch = pcap.to_batch(rows)[begin:]
    _assert_encoded(object_writer.PACKETS, batch, [row._asdict() for row in rows[begin:]], block_bytes)


@settings(max_examples=30)
@given(
    st.lists(
        st.builds(
            FileRecord,
            ts_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
            name=st.text(max_size=5),
            data=st.none() | st.binary(max_size=200),
            damaged=st.none() | st.binary(max_size=3),
            damage=st.none() | st.text(max_size=3),
            part=st.integers(0, 2**31 - 1),
            last=st.booleans(),
        ),
        max_size=12,
    ),
    st.integers(0, 9),
    st.integers(1, 300),
)
def test_files_are_encoded_as_fastavro_reads_them(rows: list[FileRecord], begin: int, block_bytes: int) -> None:
    batch = file_captures.to_batch(rows)[begin:]
    _assert_encoded(object_writer.FILES, batch, [row._asdict() for row in rows[begin:]], block_bytes)


def _assert_encoded(
    records: object_writer.Records, batch: pa.RecordBatch, rows: list[dict[str, Any]], block_bytes: int
) -> None:
    arrived = np.arange(len(batch), dtype=np.int64) * 2**59
    capture = object_writer.Capture(np.frombuffer(b"i" * 32, np.uint8), 2**40, -5)
    encoded = records.encode(batch, capture, arrived)
    stream = io.BytesIO()
    container = records.container(stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_writer, "BLOCK_BYTES", block_bytes)
        for block in object_writer.blocks(encoded):
            before = stream.tell()
            container.write_block(block)
            assert stream.tell() - before <= block.largest
    wanted = [
        {
            "record_number": 2**40 + i,
            "arrived_at_ns": i * 2**59,
            "capture_arrived_at_ns": -5,
            "capture_id": b"i" * 32,
            **row,
        }
        for i, row in enumerate(rows)
    ]
    stream.seek(0)
    assert list(fastavro.reader(stream)) == wanted
    # And as the jobs read them, in ranges.
    size = stream.tell()
    for pieces in (1, 2, 3, 7):
        cuts = [size * piece // pieces for piece in range(pieces + 1)]
        assert [row for begin, end in pairwise(cuts) for row in _read_back(stream, begin, end)] == wanted


def _read_back(stream: io.BytesIO, begin: int, end: int) -> Iterator[Row | dict[str, Any]]:
    stream.seek(0)
    for batch in object_reader.read(stream, "it", begin, end):
        batch.validate(full=True)
        yield from batch.to_pylist()


# Packets

PCAP = Path(__file__).parents[2] / "vectors" / "wallaroo" / "v3" / "a_clean.pcap"


def _landed_packets(place: Place) -> tuple[Manifest, list[dict[str, Any]]]:
    source = Source("net", "wallaroo", "pcap", str(place.inbox))
    (manifest,) = land(place.lake, source)
    return manifest, [record for _, record in place.records(manifest)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_packets_are_landed_as_they_came(tmp_path: Path, pack: Any) -> None:
    place = Place(tmp_path, start="2020-01-01T00")
    place.put("a.pcap", pack(PCAP.read_bytes()))
    manifest, records = _landed_packets(place)
    with PCAP.open("rb") as stream:
        expected = [row._asdict() for row in pcap.PacketCapture(stream).rows()]
    assert (manifest.status, manifest.records) == ("landed", len(expected))
    assert [{name: record[name] for name in expected[0]} for record in records] == expected
    assert [record["arrived_at_ns"] for record in records] == sorted(record["ts_ns"] for record in records)


def test_packets_land_up_to_the_damage(tmp_path: Path) -> None:
    place = Place(tmp_path, start="2020-01-01T00")
    data = PCAP.read_bytes()
    place.put("a.pcap", data[:-5])
    manifest, records = _landed_packets(place)
    assert manifest.status == "damaged"
    assert "is cut off" in (manifest.reason or "")
    assert manifest.unreadable_records == 1
    assert data.endswith(records[-1]["damaged"] + data[-5:])
    assert [finding.rule for finding in manifest.findings] == ["capture.file_damaged"]


def _pcap(*packets: tuple[int, int], snap_length: int = 65_535) -> bytes:
    """A capture of packets with these seconds and bytes."""
    stream = io.BytesIO()
    start = 1_700_000_000
    written = (CapturedPacket((start + second) * 10**9, bytes(size)) for second, size in packets)
    write_pcap(written, stream, snap_length=snap_length)
    return stream.getvalue()


def test_packets_that_the_snap_length_cut_are_counted(tmp_path: Path) -> None:
    place = Place(tmp_path, start="2020-01-01T00")
    place.put("a.pcap", _pcap((0, 10), (0, 11), (1, 300), snap_length=10))
    manifest, _ = _landed_packets(place)
    assert (manifest.status, manifest.records, manifest.cut_packets) == ("landed", 3, 2)


@pytest.mark.parametrize(
    ("seconds", "reversed_"),
    [
        ([3, 2, 1, 0], True),
        ([3, 3, 2, 1, 1, 0, 0], True),
        ([*range(20, 10, -1), *range(11, 0, -1)], True),
        # A packet or two whose order is not that of time, two captures in one, and clocks that go their own way.
        ([2, 1, 0], False),
        ([0, 2, 1, 3], False),
        ([0, 1, 2, 0, 1, 2], False),
        ([9, 0, 8, 1, 7, 2, 6, 3], False),
        ([0] * 9, False),
        ([], False),
    ],
)
def test_packets_in_reverse_order_are_noted(tmp_path: Path, seconds: list[int], reversed_: bool) -> None:
    place = Place(tmp_path, start="2020-01-01T00")
    place.put("a.pcap", _pcap(*((second, 1) for second in seconds)))
    manifest, _ = _landed_packets(place)
    assert [finding.rule for finding in manifest.findings] == ["capture.reversed"] * reversed_
    if reversed_:
        (finding,) = manifest.findings
        assert (finding.record_number, finding.arrived_at_ns) == (None, manifest.last_arrived_at_ns)


def test_the_order_of_a_capture_is_that_of_all_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcap, "BLOCK_BYTES", 64)
    monkeypatch.setattr(pcap, "LEAST_ROWS", 1)
    place = Place(tmp_path, start="2020-01-01T00")
    place.put("a.pcap", _pcap(*((second, 30) for second in (3, 2, 1, 0))))
    manifest, _ = _landed_packets(place)
    assert "3 of 4 packets have an earlier time" in manifest.findings[0].message


def test_messages_in_reverse_order_are_no_reversed_capture(place: Place) -> None:
    place.put("a.jsonl", capture(TEN + 3, TEN + 2, TEN + 1, TEN))
    (manifest,) = place.land()
    assert manifest.findings == ()


# Blocks and entries

BLOCKS = Path(__file__).parents[2] / "vectors" / "hiero" / "blocks"
LINES = Path(__file__).parents[2] / "vectors" / "bamboo" / "logs" / "len40.jsonl"


def _landed_files(place: Place, kind: str) -> list[tuple[Manifest, list[dict[str, Any]]]]:
    landed = land(place.lake, Source("net", "hiero", kind, str(place.inbox)))
    return [(manifest, [record for _, record in place.records(manifest)]) for manifest in landed]


def test_blocks_are_landed_at_their_headers_times(tmp_path: Path) -> None:
    place = Place(tmp_path, "day", "2020-01-01")
    for number in (3, 4):
        place.put(f"0000/{number}.blk.gz", gzip.compress((BLOCKS / f"sim062_{number}.blk").read_bytes()))
    place.put("0000/notes.txt", b"no block")
    (third, records), (_, fourth), (notes, _) = _landed_files(place, "blocks")
    assert (third.path, third.status, third.records, list(third.windows)) == (
        "0000/3.blk.gz",
        "landed",
        1,
        ["2025-04-10"],
    )
    ts_ns = 1_744_322_568 * 10**9
    assert [record["arrived_at_ns"] for record in (*records, *fourth)] == [ts_ns, ts_ns + 10**9]
    (record,) = records
    assert (record["name"], record["part"], record["last"], record["damage"]) == ("3.blk.gz", 0, True, None)
    assert record["data"] == (BLOCKS / "sim062_3.blk").read_bytes()
    assert (notes.status, notes.reason) == (
        "rejected",
        "neither a block nor a tar archive, plain or compressed by gzip or zstd",
    )
    assert Path(place.lake.root, "landing/rejected/net", notes.capture_id).read_bytes() == b"no block"


def test_entries_of_a_log_are_landed_up_to_the_damage(tmp_path: Path) -> None:
    place = Place(tmp_path)
    entries = [
        frame(encode_entry(Entry(timestamp=Timestamp(TEN // 1000, number), call_id=1, type=5))) for number in range(3)
    ]
    place.put("calls.log", b"".join(entries)[:-1])
    ((manifest, records),) = _landed_files(place, "grpc_log")
    assert [record["data"] for record in records] == [*entries[:2], None]
    assert records[2]["damaged"] == entries[2][:-1]
    assert [record["arrived_at_ns"] - TEN * 10**6 for record in records] == [0, 1, 1]
    assert (manifest.status, manifest.unreadable_records) == ("damaged", 1)
    assert [finding.rule for finding in manifest.findings] == ["capture.file_damaged"]


def test_entry_files_are_landed_from_the_lakes_start_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.put("a.jsonl", LINES.read_bytes())
    ((manifest, records),) = _landed_files(place, "entries")
    start = place.lake.windows.start_ns("2026-01-01T00")
    assert [record["arrived_at_ns"] for record in records] == [start + number for number in range(40)]
    assert list(manifest.windows) == ["2026-01-01T00"]
    assert [record["data"] for record in records] == LINES.read_bytes().splitlines(keepends=True)


# Order of arrival


def landed_times(place: Place, manifest: Manifest) -> list[tuple[str, int | None, int]]:
    found = place.records(manifest)
    return [(window, record["ts_ns"], record["arrived_at_ns"] // 1_000_000) for window, record in found]


def test_arrival_is_the_running_maximum_and_cuts_the_windows(place: Place) -> None:
    times = [TEN + 5, TEN + 3, None, TEN + HOUR_MS, TEN + 9, TEN + 3 * HOUR_MS]
    place.put("a.jsonl", capture(*times))
    (manifest,) = place.land()
    arrived = [TEN + 5, TEN + 5, TEN + 5, TEN + HOUR_MS, TEN + HOUR_MS, TEN + 3 * HOUR_MS]
    windows = ["2026-11-14T22"] * 3 + ["2026-11-14T23"] * 2 + ["2026-11-15T01"]
    own = [None if ts is None else ts * 1_000_000 for ts in times]
    assert landed_times(place, manifest) == list(zip(windows, own, arrived, strict=True))
    assert list(manifest.windows) == ["2026-11-14T22", "2026-11-14T23", "2026-11-15T01"]
    assert (manifest.first_arrived_at_ns, manifest.last_arrived_at_ns) == (arrived[0] * 10**6, arrived[-1] * 10**6)


def test_day_windows_cut_at_midnight(tmp_path: Path) -> None:
    place = Place(tmp_path, "day", "2015-01-01")
    place.put("a.jsonl", capture(TEN + 2 * HOUR_MS - 1, TEN + 2 * HOUR_MS))
    (manifest,) = place.land()
    assert {window: listed.records for window, listed in manifest.windows.items()} == {"2026-11-14": 1, "2026-11-15": 1}


def test_nothing_arrives_before_the_lakes_first_window(place: Place) -> None:
    start = place.lake.windows.start_ns("2026-01-01T00") // 1_000_000
    place.put("a.jsonl", capture(None, 0, -5, -(10**30), start + 1))
    (manifest,) = place.land()
    assert [arrived for _, _, arrived in landed_times(place, manifest)] == [start] * 4 + [start + 1]


def test_a_time_later_than_the_landing_moves_nothing_and_is_noted(place: Place) -> None:
    later = NOW_NS // 1_000_000 + 1
    place.put("a.jsonl", capture(TEN, later, 10**30, TEN + 1))
    (manifest,) = place.land()
    assert landed_times(place, manifest) == [
        ("2026-11-14T22", TEN * 10**6, TEN),
        ("2026-11-14T22", later * 10**6, TEN),
        ("2026-11-14T22", 2**63 - 1, TEN),
        ("2026-11-14T22", (TEN + 1) * 10**6, TEN + 1),
    ]
    assert [(f.rule, f.record_number, f.arrived_at_ns) for f in manifest.findings] == [
        ("capture.time_suspect", 1, TEN * 10**6),
        ("capture.time_suspect", 2, TEN * 10**6),
    ]
    assert manifest.landed_at_ns == NOW_NS


def test_a_first_time_later_than_the_landing_leaves_the_lakes_start(place: Place) -> None:
    place.put("a.jsonl", capture(10**15, TEN))
    (manifest,) = place.land()
    assert manifest.first_arrived_at_ns == place.lake.windows.start_ns("2026-01-01T00")


def test_the_landing_moment_itself_is_not_suspect(place: Place) -> None:
    place.put("a.jsonl", capture(NOW_NS // 1_000_000))
    assert place.land()[0].findings == ()


def test_many_suspect_times_are_listed_up_to_a_limit_and_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LISTED_FINDINGS", 3)
    monkeypatch.setattr(messages, "BLOCK_BYTES", 300)
    place.put("a.jsonl", capture(TEN, *[10**15] * 20, TEN))
    (manifest,) = place.land()
    assert [finding.record_number for finding in manifest.findings] == [1, 2, 3]
    assert "17 more later records are not listed" in manifest.findings[-1].message


@given(st.lists(st.none() | st.integers(-100, 2_000), max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_the_clock_goes_as_told_however_its_records_are_batched(times: list[int | None], cuts: list[int]) -> None:
    wanted, now = [], 0
    for ts in times:
        now = max(now, ts) if ts is not None and ts <= 1_000 else now
        wanted.append(now)
    clock = Clock(0, 1_000)
    bounds = sorted({0, len(times), *(cut for cut in cuts if cut < len(times))})
    found = [int(at) for begin, end in pairwise(bounds) for at in clock.tick(pa.array(times[begin:end], pa.int64()))]
    assert found == wanted
    assert [finding.record_number for finding in clock.findings()] == [
        i for i, ts in enumerate(times) if ts is not None and ts > 1_000
    ]


# All or nothing


def test_landing_again_does_nothing(place: Place) -> None:
    place.put("a.jsonl", capture(TEN))
    first = place.land()
    before = {name: Path(place.lake.root, name).stat().st_mtime_ns for name in place.files() if "seen" not in name}
    assert place.land(now_ns=NOW_NS + 10**12) == []
    after = {name: Path(place.lake.root, name).stat().st_mtime_ns for name in place.files() if "seen" not in name}
    assert before == after
    assert manifests(place.lake) == first


def test_only_new_captures_are_landed(place: Place) -> None:
    place.put("a.jsonl", capture(TEN))
    place.land()
    place.put("b.jsonl", capture(TEN + 1))
    assert [manifest.path for manifest in place.land()] == ["b.jsonl"]


def test_the_same_content_under_two_names_is_one_capture(place: Place) -> None:
    place.put("b/copy.jsonl", capture(TEN))
    place.put("a.jsonl", capture(TEN))
    (manifest,) = place.land()
    assert manifest.path == "a.jsonl"
    assert place.land() == []


def test_two_sources_may_read_one_file(place: Place) -> None:
    path = place.put("a.jsonl", capture(TEN))
    other = Source("other", "cardinal", "messages", str(path))
    assert len(place.land()) == len(land(place.lake, other, now_ns=NOW_NS)) == 1
    assert [manifest.source for manifest in manifests(place.lake)] == ["net", "other"]
    assert {name.split("/")[2] for name in place.visible()} == {"net", "other"}


def test_a_landing_killed_at_any_write_shows_nothing_and_is_completed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("a.jsonl", capture(TEN, TEN + HOUR_MS, TEN + 2 * HOUR_MS))
    rename = os.rename

    class Killed(BaseException):
        pass

    def dying_after(left: int) -> Callable[[str, str], None]:
        names = iter(range(left))

        def dying(source: str, target: str) -> None:
            if next(names, None) is None:
                raise Killed
            rename(source, target)

        return dying

    # The lake's note of its windows and the mark of a landing begun, three objects, the manifest.
    for written in range(5):
        monkeypatch.setattr(os, "rename", dying_after(written))
        with pytest.raises(Killed):
            place.land(now_ns=NOW_NS + written)
        monkeypatch.undo()
        assert manifests(place.lake) == []
    assert len(place.land()) == 1
    (manifest,) = manifests(place.lake)
    assert {name for name in place.files() if name.endswith(".avro")} == place.visible()
    assert len(list(place.records(manifest))) == 3


def test_a_commit_that_is_told_to_have_failed_and_came_through_keeps_the_capture(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.put("a.jsonl", capture(TEN, TEN + HOUR_MS))
    write = LocalStorage.write

    def unheard(self: LocalStorage, name: str, data: bytes, **how: bool) -> None:
        write(self, name, data, **how)
        if name.startswith("landing/manifests/"):
            raise OSError("the answer was lost")

    monkeypatch.setattr(LocalStorage, "write", unheard)
    with pytest.raises(NotLandedError, match="the answer was lost"):
        place.land()
    monkeypatch.undo()
    path.unlink()
    assert place.land() == []
    (manifest,) = manifests(place.lake)
    assert len(list(place.records(manifest))) == 2
    assert not [name for name in place.files() if "begun" in name]


def test_a_manifest_that_is_removed_while_all_are_read_is_passed_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, at in (("a.jsonl", TEN), ("b.jsonl", TEN + 1)):
        place.put(name, capture(at))
    first, second = sorted(place.land(), key=lambda manifest: manifest.capture_id)
    listed = LocalStorage.list

    def removing(self: LocalStorage, prefix: str) -> Iterator[Stored]:
        for stored in listed(self, prefix):
            if first.capture_id in stored.name:
                self.delete(stored.name)
            yield stored

    monkeypatch.setattr(LocalStorage, "list", removing)
    monkeypatch.setattr(all_manifests, "_last", ("", {}))
    assert manifests(place.lake) == [second]


def test_what_a_killed_landing_left_is_gone_after_the_next_run_although_the_file_is(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.put("a.jsonl", capture(TEN, TEN + HOUR_MS))
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "to_json", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            place.land()
    assert [name for name in place.files() if name.endswith(".avro")]
    assert place.visible() == set()
    path.unlink()
    assert place.land() == []
    assert not [name for name in place.files() if name.endswith((".avro", ".part")) or "begun" in name]


@pytest.mark.property
def test_a_process_killed_while_it_writes_leaves_nothing_visible(place: Place) -> None:
    place.put("a.jsonl", capture(TEN, TEN + HOUR_MS))
    script = """
        import os, sys
        from wirehouse_pipelines.landing import landing, window_objects
        from wirehouse_pipelines.lake.lake import Lake, Source
        from wirehouse_pipelines.lake.windows import Windows
        blocks = window_objects.blocks
        calls = []
        def counting(*args):
            calls.append(1)
            if len(calls) == 2:
                os._exit(9)
            return blocks(*args)
        window_objects.blocks = counting
        lake = Lake(sys.argv[1], Windows("hour", "2026-01-01T00"))
        landing.land(lake, Source("net", "cardinal", "messages", sys.argv[2]))
    """
    arguments = [sys.executable, "-c", textwrap.dedent(script), place.lake.root, str(place.inbox)]
    assert subprocess.run(arguments, check=False).returncode == 9
    assert manifests(place.lake) == []
    (manifest,) = place.land()
    assert {name for name in place.files() if name.endswith(".avro")} == place.visible()
    assert not list(Path(place.lake.root).rglob("*.part"))
    assert manifest.records == 2


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.put("a.jsonl", capture(TEN))
    place.put("b.jsonl", capture(TEN + 1))
    writer = LocalStorage.writer

    @contextmanager
    def appending(self: LocalStorage, name: str, *mode: int) -> Iterator[BinaryIO]:
        with writer(self, name, *mode) as stream:
            yield stream
        if name.endswith(".avro") and path.stat().st_size == len(capture(TEN)):
            path.write_bytes(path.read_bytes() + line(TEN + 2))

    monkeypatch.setattr(LocalStorage, "writer", appending)
    with pytest.raises(NotLandedError, match=r"a\.jsonl .*changed while it was read"):
        place.land()
    assert [manifest.path for manifest in manifests(place.lake)] == ["b.jsonl"]
    assert {name for name in place.files() if name.endswith(".avro")} == place.visible()
    monkeypatch.undo()
    assert [(manifest.path, manifest.records) for manifest in place.land()] == [("a.jsonl", 2)]


def test_looking_again_reads_no_capture_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_files, "_RACY_SECONDS", 0)
    path = place.put("a.jsonl", capture(TEN))
    place.put("b.jsonl", capture(TEN))
    time.sleep(0.01)
    assert len(place.land()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(capture_files.Hashed, "read", lambda self, size=-1: 1 / 0)
        assert place.land() == []
    path.write_bytes(capture(TEN + 1))
    assert [manifest.path for manifest in place.land()] == ["a.jsonl"]


def test_a_capture_whose_manifest_is_deleted_is_landed_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_files, "_RACY_SECONDS", 0)
    place.put("a.jsonl", capture(TEN))
    time.sleep(0.01)
    (manifest,) = place.land()
    Path(place.lake.root, manifest_name("net", manifest.capture_id)).unlink()
    assert place.land() == [manifest]


# Damage and rejection


def test_an_empty_file_is_landed_without_records(place: Place) -> None:
    place.put("a.jsonl", b"")
    (manifest,) = place.land()
    assert (manifest.status, manifest.records, manifest.windows) == ("landed", 0, {})
    assert (manifest.first_arrived_at_ns, manifest.last_arrived_at_ns) == (None, None)


def test_a_capture_cut_off_is_landed_up_to_there_and_says_so(place: Place) -> None:
    data = gzip.compress(b"".join(line(TEN + i, random.Random(i).randbytes(50)) for i in range(500)))
    most = 0
    for cut in range(20, len(data), len(data) // 15):
        place.put("a.gz", data[:cut])
        (manifest,) = place.land()
        assert manifest.status == "damaged"
        assert "cut off" in (manifest.reason or "")
        (finding,) = manifest.findings
        assert finding.rule == "capture.file_damaged"
        good = [record for _, record in place.records(manifest) if record["damaged"] is None]
        assert [record["ts_ns"] for record in good] == [(TEN + i) * 10**6 for i in range(len(good))]
        assert finding.arrived_at_ns == (manifest.last_arrived_at_ns or NOW_NS)
        assert len(good) >= most
        most = len(good)
    assert most > 400


def test_a_source_may_let_its_captures_inflate_further(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "UNJUDGED_BYTES", 1 << 20)
    place.put("a.jsonl.gz", gzip.compress(line(TEN) + b"\n" * (8 << 20)))
    (manifest,) = place.land()
    assert (manifest.status, manifest.reason and manifest.reason[:29]) == ("damaged", "inflates to more than 250 tim")
    place.source = replace(place.source, name="other", limits=inflate.Limits(inflated_ratio=2000))
    (manifest,) = place.land()
    assert (manifest.status, manifest.records) == ("landed", 1)


def test_a_file_of_no_format_is_rejected_and_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "REJECTED_BYTES", 1_000)
    data = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 100
    place.put("picture", data)
    place.put("a.jsonl", capture(TEN))
    landed = place.land()
    assert [(manifest.path, manifest.status, manifest.records) for manifest in landed] == [
        ("a.jsonl", "landed", 1),
        ("picture", "rejected", 0),
    ]
    assert "neither JSON Lines nor an Avro container" in (landed[1].reason or "")
    kept = Path(place.lake.root, "landing/rejected/net", hashlib.sha256(data).hexdigest())
    assert kept.read_bytes() == data[:1_000]
    assert place.land() == []


# Which files


def names(place: Place, path: str) -> list[str]:
    return [file.name for file in captures_at(place.source, path, place.lake.root)]


def test_a_place_is_a_file_a_folder_or_a_glob(place: Place) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "sub/c.avro", "sub/deep/d.zst"):
        place.put(name, b"")
    inbox = str(place.inbox)
    assert names(place, inbox) == ["a.jsonl.gz", "b.jsonl", "sub/c.avro", "sub/deep/d.zst"]
    assert names(place, f"{inbox}/b.jsonl") == ["b.jsonl"]
    assert names(place, f"{inbox}/*.gz") == ["a.jsonl.gz"]
    assert names(place, f"{inbox}/**/*.zst") == ["sub/deep/d.zst"]
    assert names(place, f"{inbox}/s*") == ["sub/c.avro", "sub/deep/d.zst"]
    assert names(place, f"{inbox}/*.none") == []


def test_a_relative_place_stands_in_the_working_folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("a.jsonl", b"")
    monkeypatch.chdir(place.inbox)
    assert names(place, "a.jsonl") == names(place, "*.jsonl") == names(place, ".") == ["a.jsonl"]


def test_a_name_with_the_signs_of_a_glob_is_a_name_if_it_is_there(place: Place) -> None:
    path = place.put("[a].jsonl", b"")
    assert names(place, str(path)) == ["[a].jsonl"]


def test_hidden_and_unfinished_files_are_passed_over(place: Place) -> None:
    for name in (".a.jsonl", "a.part", "a.jsonl.tmp", ".git/a", "sub/.b", "good"):
        place.put(name, capture(TEN))
    assert names(place, str(place.inbox)) == ["good"]
    assert names(place, f"{place.inbox}/**") == ["good"]


def test_a_name_that_is_no_utf8_stands_as_escapes(tmp_path: Path) -> None:
    place = Place(tmp_path, "day", "2020-01-01")
    place.put(os.fsdecode(b"bad\xff\n.blk"), (BLOCKS / "sim062_3.blk").read_bytes())
    ((manifest, (record,)),) = _landed_files(place, "blocks")
    assert manifest.path == record["name"] == "bad\\xff\n.blk"
    assert _landed_files(place, "blocks") == []


def test_the_lake_itself_is_never_landed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.put("a.jsonl", capture(TEN))
    place.source = Source("net", "cardinal", "messages", str(tmp_path))
    assert [manifest.path for manifest in place.land()] == ["inbox/a.jsonl"]
    assert place.land() == []


def test_a_link_that_leaves_the_folder_is_refused(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(capture(TEN))
    good = place.put("sub/good.jsonl", capture(TEN + 1))
    (place.inbox / "out.jsonl").symlink_to(secret)
    (place.inbox / "folder").symlink_to(tmp_path)
    (place.inbox / "in.jsonl").symlink_to(good)
    (place.inbox / "gone.jsonl").symlink_to(place.inbox / "nothing")
    said: list[str] = []
    assert [manifest.path for manifest in place.land(progress=said.append)] == ["in.jsonl"]
    assert any("out.jsonl is left out: it is a link that leaves" in line for line in said)
    assert any("gone.jsonl is left out: it is a link to a file that isn't there" in line for line in said)
    with pytest.raises(RefusedPathError, match=r"out\.jsonl is refused: it is a link that leaves"):
        place.land(paths=[str(place.inbox / "out.jsonl")])
    alone = Source("net", "cardinal", "messages", str(place.inbox / "out.jsonl"))
    with pytest.raises(RefusedPathError):
        land(place.lake, alone)


def test_a_link_put_in_after_the_look_is_not_followed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(capture(TEN))
    path = place.put("a.jsonl", capture(TEN))
    found = captures_at(place.source, str(place.inbox), place.lake.root)
    path.unlink()
    path.symlink_to(secret)
    monkeypatch.setattr(landing, "captures_at", lambda *args, **kwargs: found)
    with pytest.raises(NotLandedError):
        place.land()
    assert place.visible() == set()


def test_pipes_and_devices_are_refused(place: Place) -> None:
    os.mkfifo(place.inbox / "pipe")
    place.put("a.jsonl", capture(TEN))
    assert [manifest.path for manifest in place.land()] == ["a.jsonl"]
    with pytest.raises(RefusedPathError, match="isn't a regular file"):
        place.land(paths=[str(place.inbox / "pipe")])


def test_files_named_by_hand_are_landed_into_the_source(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(capture(TEN))
    (manifest,) = place.land(paths=[str(other)])
    assert (manifest.source, manifest.path) == ("net", "other.jsonl")


def test_a_missing_place_names_the_source_and_what_to_do(place: Place) -> None:
    for path in (f"{place.inbox}/none", f"{place.inbox}/none/*.gz"):
        with pytest.raises(MissingPathError) as caught:
            land(place.lake, Source("net", "cardinal", "messages", path))
        assert "source 'net'" in str(caught.value)
        assert "none does not exist: create it" in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_kind_that_cannot_be_landed_is_said_so(place: Place) -> None:
    with pytest.raises(KindError, match="'smtp' can't be landed, only kafka, messages"):
        land(place.lake, Source("net", "cardinal", "smtp", str(place.inbox)))


def test_a_file_taken_away_meanwhile_is_no_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.put("a.jsonl", capture(TEN))
    found = captures_at(place.source, str(place.inbox), place.lake.root)
    path.unlink()
    monkeypatch.setattr(landing, "captures_at", lambda *args, **kwargs: found)
    said: list[str] = []
    assert place.land(progress=said.append) == []
    assert said == ["net: a.jsonl was removed before it could be landed"]


def test_a_file_is_settled_when_its_size_and_time_stood_still(place: Place) -> None:
    path = place.put("a.jsonl", capture(TEN))
    file = CaptureFile("a.jsonl", str(path))
    assert not file.settled(10)
    assert place.land(settle_seconds=10) == []
    os.utime(path, (time.time() - 11,) * 2)
    assert file.settled(10)
    assert len(place.land(settle_seconds=10)) == 1
    os.utime(path, (time.time() + 1_000,) * 2)
    assert not file.settled(10)
    time.sleep(0.05)
    assert file.settled(0.05)


def test_progress_tells_of_each_capture(place: Place) -> None:
    place.put("a.jsonl", capture(*[TEN] * 1_234))
    said: list[str] = []
    place.land(progress=said.append)
    assert said == ["net: a.jsonl: landed, 1,234 records"]


def peak_mib(place: Place, kind: str, path: Path) -> float:
    """Resident memory of a process that lands a file."""
    script = """
        import resource, sys
        from wirehouse_pipelines.lake.lake import Lake, Source
        from wirehouse_pipelines.landing.landing import land
        from wirehouse_pipelines.lake.windows import Windows
        land(Lake(sys.argv[1], Windows("day", "2015-01-01")), Source("net", "cardinal", sys.argv[2], sys.argv[3]))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(script), place.lake.root, kind, str(path)]
    return int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout) / 1024


@pytest.mark.property
def test_memory_stays_flat_whatever_the_size(place: Place) -> None:
    text = line(TEN, random.Random(1).randbytes(600))
    small, large = (place.put(f"{mib}.jsonl", text * ((mib << 20) // len(text))) for mib in (16, 64))
    assert peak_mib(place, "messages", large) < peak_mib(place, "messages", small) + 24


@pytest.mark.property
def test_memory_stays_flat_whatever_the_size_of_a_block(place: Place) -> None:
    block, item = (BLOCKS / "sim062_3.blk").read_bytes(), b"\x0a\x83\x80\x40\x22\xff\xff\x3f" + bytes(0xFFFFF)
    small, large = (place.put(f"{mib}.blk", block + item * mib) for mib in (16, 130))
    assert peak_mib(place, "blocks", large) < peak_mib(place, "blocks", small) + 24


def test_a_manifest_is_read_once_until_it_is_written_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        place.put(f"{name}.jsonl", line(TEN, name.encode()))
    first, second = sorted(place.land(), key=lambda one: one.capture_id)
    assert manifests(place.lake) == [first, second]
    storage, read, reading = open_storage(place.lake.root), list[str](), all_manifests._read

    def counted(at: Storage, name: str) -> Manifest:
        read.append(name)
        return reading(at, name)

    monkeypatch.setattr(all_manifests, "_read", counted)
    assert manifests(place.lake) == [first, second]
    assert manifests(place.lake, "net") == [first, second]
    assert read == []
    released = replace(second, released_at_ns=NOW_NS)
    write_manifest(storage, released)
    assert manifests(place.lake) == [first, released]
    assert read == [manifest_name("net", second.capture_id)]
    storage.delete(manifest_name("net", first.capture_id))
    assert manifests(place.lake) == [released]
