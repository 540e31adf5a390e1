"""`wirehouse trace` of rows about TCP connections: from a row back to the packets that carried its bytes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import fastavro
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support import landed
from tests.support.inspecting import inspected
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.logs.inspection import LANDED_PACKETS
from wirehouse_codecs.logs.rows import Window
from wirehouse_codecs.logs.windows import SourceLog, read
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_file
from wirehouse_codecs.simulate.script import Disturbances, written
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.link_types import ETHERNET, RAW
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.wallaroo.log.log import starter
from wirehouse_codecs.wallaroo.log.schema import SCHEMA
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, connections, simulate
from wirehouse_orchestration.evidence import excerpts
from wirehouse_orchestration.evidence.excerpts import NoExcerptError
from wirehouse_orchestration.evidence.landed_packets import PacketsGoneError
from wirehouse_orchestration.evidence.trace import NoSuchRowError, trace
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import object_writer
from wirehouse_pipelines.landing.landing import land
from wirehouse_pipelines.landing.manifests import Manifest, manifest_name, manifests
from wirehouse_pipelines.storage.storage import LocalStorage
from wirehouse_pipelines.tables import all_tables

#: 2026-11-14T22:00 UTC, less than the traffic takes.
BEFORE_TEN_MS = 1_794_693_600_000 - 60
#: Messages of two and three segments.
CONFIG = SimulatorConfig(
    messages_per_connector=30, payload_bytes=3000, burst_messages=5, start_time_ms=BEFORE_TEN_MS, fault="ack_goes_back"
)
ETHERNET_BYTES = 14
Row = dict[str, Any]


class Wire:
    """A lake with connections whose packets are in two captures and two windows, decoded as the pipeline does it."""

    def __init__(self, home: Path, second_link_type: int = ETHERNET) -> None:
        self.home = home
        self.packets = list(simulate(CONFIG, Disturbances(seed=3, reordered=0.2, repeated=0.2)))
        #: In the middle of a message.
        cut = next(at for at in range(60, len(self.packets)) if len(self.packets[at].data) > 1500)
        (home / "inbox").mkdir()
        write_file(self.packets[: cut + 1], home / "inbox" / "a.pcap")
        second = self.packets[cut + 1 :]
        if second_link_type == RAW:
            second = [packet._replace(data=packet.data[ETHERNET_BYTES:]) for packet in second]
        write_file(second, home / "inbox" / "b.pcap", link_type=second_link_type)
        self.source = Source("net", "wallaroo", "pcap", str(home / "inbox"), {}, (PORT,))
        self.lake = Lake(str(home / "lake"), Windows("hour", "2026-11-14T00"), (self.source,))
        land(self.lake, self.source, now_ns=(BEFORE_TEN_MS + 3_600_000) * 1_000_000)
        self.rows = self._decode()
        self.write("silver.wallaroo", *self.rows)

    def of_kind(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["row_kind"] == kind]

    def write(self, name: str, *rows: Mapping[str, Any]) -> None:
        table = pa.Table.from_pylist(list(rows), schema=arrow_types.schema(all_tables()[name]))
        write_deltalake(self.lake.table_path(name), table)

    def trace(self, table: str, key: str, pcap: Path | None = None) -> str:
        out = io.StringIO()
        trace(self.lake, table, key, out, pcap)
        return out.getvalue()

    def message(self, row: Row, pcap: Path | None = None) -> str:
        """What is printed for a message."""
        return self.trace("silver.wallaroo_messages", key_of(row), pcap)

    def streams(self) -> dict[tuple[Endpoint, Direction], bytes]:
        """What each side wrote, by the client."""
        return {
            (conversation.client, direction): stream
            for conversation in connections(CONFIG)
            for direction, stream in written(conversation).items()
        }

    def spread(self) -> Row:
        """A connection with messages in both captures."""
        captures: dict[bytes, set[bytes]] = {}
        for row in self.of_kind("message"):
            captures.setdefault(row["connection_id"], set()).add(row["capture_id"])
        found = next(name for name, where in captures.items() if len(where) == 2)
        return next(row for row in self.of_kind("connection") if row["connection_id"] == found)

    def client(self, row: Row) -> Endpoint:
        found = next(told for told in self.of_kind("connection") if told["connection_id"] == row["connection_id"])
        return Endpoint(found["connection"]["client_address"], found["connection"]["client_port"])

    def _decode(self) -> list[Row]:
        found: list[Row] = []
        for manifest in manifests(self.lake):
            for window in manifest.windows:
                packets = self._landed(manifest, window)
                told = landed.segments([packets], PORT)
                assert len(told) == packets.num_rows
                found += [row | {"source": "net", "window_start": window} for row in told]
        arrival = ("flow", "arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
        found.sort(key=lambda row: [row[name] for name in arrival])
        ordered = pa.RecordBatch.from_pylist(found, landed.SEGMENTS)
        names = ("2026-11-14T21", "2026-11-14T22")
        windows = tuple(Window(name, self.lake.windows.end_ns(name)) for name in names)
        log = SourceLog(starter(WallarooOptions(), b"key"), TcpOptions(), windows)
        rows = [row for batch in read([ordered], {"net": log}, SCHEMA) for row in batch.to_pylist()]
        return [row | {"decoder_version": "1"} for row in rows]

    def _landed(self, manifest: Manifest, window: str) -> pa.RecordBatch:
        records: list[Row] = []
        for name in manifest.windows[window].objects:
            with Path(self.lake.root, name).open("rb") as stream:
                records += [cast(Row, record) for record in fastavro.reader(stream)]
        return pa.RecordBatch.from_pylist(records, LANDED_PACKETS)


def key_of(row: Row) -> str:
    """What names a row of the log with bytes."""
    return f"connection_id={row['connection_id'].hex()},direction={row['direction']},byte_start={row['byte_start']}"


def dumped(text: str) -> bytes:
    """The bytes behind the line of a span."""
    _, _, after = text.partition("\nbytes ")
    return b"".join(bytes.fromhex(line) for line in re.findall(r"^    [0-9a-f]{8}  (.{47})", after, re.MULTILINE))


def listed(text: str) -> list[tuple[str, int, int, int, bool]]:
    """Capture, record, first and last byte of the packets that are listed, and whether they came again."""
    found = re.findall(r"    record (\d+) of capture (\S+), .*: bytes (\d+) to (\d+)(, again)?", text)
    return [(path, int(number), int(begin), int(end), bool(again)) for number, path, begin, end, again in found]


def packets_in(path: Path) -> list[CapturedPacket]:
    with path.open("rb") as stream:
        rows = [row for batch in PacketCapture(stream).batches() for row in batch.to_pylist()]
    return [CapturedPacket(row["ts_ns"], row["data"]) for row in rows]


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_writer, "BLOCK_BYTES", 20_000)
        return Wire(tmp_path_factory.mktemp("wire"))


def test_the_captures_and_windows_cut_messages(wire: Wire) -> None:
    assert [len(manifest.windows) for manifest in manifests(wire.lake)].count(2) == 1
    assert {row["window_start"] for row in wire.of_kind("message")} == {"2026-11-14T21", "2026-11-14T22"}


@pytest.mark.property
def test_a_message_leads_to_its_bytes_and_the_packets_that_carried_them(wire: Wire) -> None:
    streams, seen, captures = wire.streams(), set(), set()
    for row in wire.of_kind("message")[::4]:
        text = wire.message(row)
        stream = streams[wire.client(row), Direction(row["direction"])]
        assert dumped(text) == stream[row["byte_start"] : row["byte_end"]]
        spans = listed(text)
        fresh = {at for _, _, begin, end, _ in spans for at in range(begin, end)}
        assert fresh == set(range(row["byte_start"], row["byte_end"]))
        assert row["record_number"] in {number for _, number, *_ in spans}
        for path, number, begin, end, again in spans:
            data = packets_in(wire.home / "inbox" / path)[number].data
            assert stream[begin:end] in data
            seen.add(again)
        captures.add(frozenset(path for path, *_ in spans))
    assert seen == {True, False}
    assert frozenset({"a.pcap", "b.pcap"}) in captures


def test_the_packets_of_a_message_are_a_capture(wire: Wire, tmp_path: Path) -> None:
    row = next(row for row in wire.of_kind("message") if row["byte_end"] - row["byte_start"] > 2900)
    out = tmp_path / "some" / "excerpt.pcap"
    text = wire.message(row, out)
    assert f"its packets are in {out}" in text
    spans = listed(text)
    assert len(spans) >= 3
    assert packets_in(out) == [packets_in(wire.home / "inbox" / path)[number] for path, number, *_ in spans]
    assert list(out.parent.iterdir()) == [out]


def test_the_bytes_of_a_message_and_their_packets_are_told_as_json(wire: Wire, tmp_path: Path) -> None:
    row = next(row for row in wire.of_kind("message") if row["byte_end"] - row["byte_start"] > 2900)
    out, excerpt = io.StringIO(), tmp_path / "excerpt.pcap"
    trace(wire.lake, "silver.wallaroo_messages", key_of(row), out, excerpt, as_json=True)
    (told,) = map(json.loads, out.getvalue().splitlines())
    said = told["said"]
    stream = wire.streams()[wire.client(row), Direction(row["direction"])]
    assert said["captured"]["size_bytes"] == row["byte_end"] - row["byte_start"]
    assert bytes.fromhex(said["captured"]["hex"]) == stream[row["byte_start"] : row["byte_end"]]
    names = ("path", "record_number", "byte_start", "byte_end", "again")
    assert [tuple(packet[name] for name in names) for packet in said["first"]] == listed(wire.message(row))
    assert said["packets"] == len(packets_in(excerpt))
    assert told["pcap"] == str(excerpt)


@pytest.mark.parametrize("table", ["gold.wallaroo_violations", "gold.violations"])
def test_a_violation_leads_to_the_frame_that_broke_the_rule(wire: Wire, table: str) -> None:
    (row,) = wire.of_kind("violation")
    text = wire.trace(table, "rule=wallaroo.ack_goes_back")
    stream = wire.streams()[wire.client(row), Direction.SERVER]
    assert dumped(text) == stream[row["byte_start"] : row["byte_end"]]
    assert f"of what the server sent, {row['byte_end'] - row['byte_start']} bytes\n" in text


@pytest.mark.parametrize("table", ["silver.wallaroo_connections", "silver.connections", "gold.wallaroo_sessions"])
def test_an_entity_leads_to_its_first_packet_and_to_the_whole_connection(
    wire: Wire, tmp_path: Path, table: str
) -> None:
    told = wire.spread()
    if table == "gold.wallaroo_sessions":
        wire.write("gold.wallaroo_sessions_history", *(row | row["session"] for row in wire.of_kind("session")))
    out = tmp_path / "whole.pcap.gz"
    text = wire.trace(table, f"connection_id={told['connection_id'].hex()}", out)
    assert f"record {told['record_number']} of capture a.pcap" in text
    assert "link_type" in text
    client = wire.client(told).packed
    assert packets_in(out) == [packet for packet in wire.packets if client in (packet.data[26:30], packet.data[30:34])]
    messages = [row for kind, row in inspected(str(out), None) if kind == "message"]
    expected = [row for row in wire.of_kind("message") if row["connection_id"] == told["connection_id"]]
    places = [[(row["direction"], row["byte_start"], row["byte_end"]) for row in rows] for rows in (messages, expected)]
    assert sorted(places[0]) == sorted(places[1])


def test_a_segment_leads_to_its_packet(wire: Wire, tmp_path: Path) -> None:
    capture = next(manifest for manifest in manifests(wire.lake) if manifest.path == "a.pcap")
    row = {"source": "net", "window_start": "2026-11-14T21", "capture_id": bytes.fromhex(capture.capture_id)}
    wire.write("bronze.segments", row | {"record_number": 7})
    out = tmp_path / "one.pcap"
    text = wire.trace("bronze.segments", "record_number=7", out)
    packet = wire.packets[7]
    assert f"  data, {len(packet.data)} bytes" in text
    assert packets_in(out) == [packet._replace(original_length=None)]


def test_only_the_captures_and_windows_of_the_connection_are_opened(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    plain = LocalStorage.open

    def watched(storage: LocalStorage, name: str) -> BinaryIO:
        opened.append(name)
        return plain(storage, name)

    monkeypatch.setattr(LocalStorage, "open", watched)
    row = min(wire.of_kind("message"), key=lambda row: row["arrived_at_ns"])
    wire.message(row)
    assert {name for name in opened if name.endswith(".avro")} == {
        f"landing/pcap/net/2026-11-14T21/{row['capture_id'].hex()}-0000.avro"
    }


def test_more_packets_than_are_listed_are_counted(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excerpts, "MOST_LISTED", 1)
    row = next(row for row in wire.of_kind("message") if row["byte_end"] - row["byte_start"] > 2900)
    assert re.search(r"… [2-9] packets more: --pcap", wire.message(row))


def test_the_packets_of_several_rows_are_not_written(wire: Wire, tmp_path: Path) -> None:
    with pytest.raises(NoExcerptError, match="more than one row"):
        wire.trace("silver.wallaroo_messages", "kind=HELLO", tmp_path / "out.pcap")
    assert list(tmp_path.iterdir()) == []


def test_several_rows_of_one_place_have_the_same_packets(wire: Wire, tmp_path: Path) -> None:
    told = wire.spread()
    found = {name: told[name] for name in ("source", "window_start", "connection_id", "capture_id", "record_number")}
    wire.write("gold.wallaroo_found", *(found | {"rule": "wallaroo.x", "message": text} for text in "ab"))
    out, whole = tmp_path / "out.pcap", tmp_path / "whole.pcap"
    assert "row 2 of 2" in wire.trace("gold.wallaroo_found", "rule=wallaroo.x", out)
    wire.trace("silver.connections", f"connection_id={told['connection_id'].hex()}", whole)
    assert out.read_bytes() == whole.read_bytes()


def test_bytes_that_no_packet_carried_lead_to_the_whole_connection(wire: Wire, tmp_path: Path) -> None:
    told = wire.spread()
    row = next(row for row in wire.of_kind("message") if row["connection_id"] == told["connection_id"])
    beyond = {"byte_start": 2**40, "byte_end": 2**40 + 5}
    hole = {name: row[name] for name in ("source", "window_start", "connection_id", "direction", "capture_id")} | beyond
    hole |= {"record_number": row["record_number"], "arrived_at_ns": row["arrived_at_ns"], "rule": "capture.hole"}
    wire.write("gold.ockam_found", hole)
    out, whole = tmp_path / "out.pcap", tmp_path / "whole.pcap"
    wire.trace("gold.ockam_found", "rule=capture.hole", out)
    wire.trace("silver.connections", f"connection_id={told['connection_id'].hex()}", whole)
    assert out.read_bytes() == whole.read_bytes()


def test_packets_of_two_link_types_are_refused(tmp_path: Path) -> None:
    wire = Wire(tmp_path, second_link_type=RAW)
    told = wire.spread()
    out = tmp_path / "out" / "out.pcap"
    with pytest.raises(NoExcerptError, match="link types 1 and 101"):
        wire.trace("silver.wallaroo_connections", told["connection_id"].hex(), out)
    assert list(out.parent.iterdir()) == []
    wire.message(min(wire.of_kind("message"), key=lambda row: row["arrived_at_ns"]), out)
    assert out.exists()


def test_what_landing_no_longer_tells_is_said_in_one_line(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    told = wire.spread()
    stranger = wire.of_kind("message")[0] | {"connection_id": bytes(16)}
    schema = arrow_types.schema(all_tables()["silver.wallaroo"])
    table = pa.Table.from_pylist([stranger], schema=schema)
    write_deltalake(wire.lake.table_path("silver.wallaroo"), table, mode="append")
    with pytest.raises(NoSuchRowError, match=f"there is no connection {'00' * 16} of net"):
        wire.trace("silver.wallaroo_messages", f"connection_id={'00' * 16}")
    last = [row for row in wire.of_kind("message") if row["connection_id"] == told["connection_id"]][-1]
    assert last["capture_id"] != told["capture_id"]
    Path(wire.lake.root, manifest_name("net", told["capture_id"].hex())).unlink()
    with pytest.raises(PacketsGoneError, match=f"{told['connection_id'].hex()} of source net can't be reassembled"):
        wire.message(last)
