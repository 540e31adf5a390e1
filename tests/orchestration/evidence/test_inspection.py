"""`wirehouse inspect`: what a capture says, without a lake."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from wirehouse_codecs.cardinal.simulator.record_files import Record, write_avro
from wirehouse_codecs.cardinal.wire.messages import Batch, BatchMsg, Update, encode
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.logs.inspection import Unseen
from wirehouse_codecs.simulate.pcap_writer import write_pcap
from wirehouse_codecs.simulate.script import Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.wallaroo import inspection as wallaroo_inspection
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate
from wirehouse_orchestration.evidence import inspection as inspecting_command
from wirehouse_orchestration.evidence.inspection import (
    InspectOptionError,
    PortNotNeededError,
    ProtocolNeededError,
    ProtocolUnclearError,
    UnreadableCaptureError,
    inspect,
)
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.tables import all_tables, shared_columns

VECTORS = Path(__file__).parents[2] / "vectors" / "cardinal"
PCAPS = Path(__file__).parents[2] / "vectors" / "wallaroo"
#: Columns that only a lake can fill.
LAKE_ONLY = {"source", "window_start", "decoder_version"}
HASH = bytes(range(32))


def line(key: bytes, value: bytes | None = b"", timestamp_ms: int = 1_700_000_000_000, **fields: Any) -> bytes:
    coded = {
        "key_b64": base64.b64encode(key).decode(),
        "value_b64": None if value is None else base64.b64encode(value).decode(),
        "timestamp_ms": timestamp_ms,
    }
    return json.dumps(coded | fields).encode() + b"\n"


def as_json(path: Path, protocol: str | None = None, port: int | None = None) -> list[dict[str, Any]]:
    out = io.StringIO()
    inspect(str(path), protocol, True, out, port)
    return [json.loads(text) for text in out.getvalue().splitlines()]


def as_text(path: Path) -> str:
    out = io.StringIO()
    inspect(str(path), None, False, out)
    return out.getvalue()


def columns(table: str) -> list[str]:
    return [column.name for column in all_tables()[table].declared if column.name not in LAKE_ONLY]


@pytest.mark.parametrize("path", sorted(VECTORS.rglob("messages.jsonl")), ids=lambda path: str(path.parent.name))
def test_every_record_gives_one_row_with_the_columns_of_its_table(path: Path) -> None:
    rows = as_json(path)
    records = [row for row in rows if row["type"] in ("message", "quarantine", "skip")]
    assert [row["record_number"] for row in records] == list(range(len(path.read_bytes().splitlines())))
    tables = {
        "message": "silver.cardinal_messages",
        "quarantine": "silver.cardinal_quarantine",
        "violation": "gold.cardinal_violations",
    }
    for row in rows:
        kind = row.pop("type")
        if kind in tables:
            assert list(row) == columns(tables[kind])


def test_a_quarantined_message_is_also_a_violation_of_the_same_rule() -> None:
    rows = as_json(VECTORS / "h_malformed" / "19_short_keys" / "messages.jsonl")
    quarantined = [row for row in rows if row["type"] == "quarantine"]
    assert len(quarantined) == 3
    found = {(row["rule"], row["record_number"]) for row in rows if row["type"] == "violation"}
    assert {(row["rule"], row["record_number"]) for row in quarantined} <= found
    assert {row["severity"] for row in rows if row["type"] == "violation"} == {"violation"}


def test_values_are_whole_hex_and_integers(tmp_path: Path) -> None:
    batch = Batch(HASH, 2**64 - 1, 2**255, bytes(32), (Update(b"c/1/", count=2), Update(b"gone", delete=True)))
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        line(*encode(batch), topic="t", partition=1, offset=2) + line(*encode(BatchMsg(HASH, b"c/1/a", b"\xff")))
    )
    first, second = as_json(path, "cardinal")
    assert first["number"] == 2**64 - 1
    assert first["weight"] == "80" + "00" * 31
    assert first["block_hash"] == HASH.hex()
    assert [(update["name"], update["count"], update["is_delete"]) for update in first["updates"]] == [
        (b"c/1/".hex(), 2, False),
        (b"gone".hex(), None, True),
    ]
    assert (first["topic"], first["partition"], first["offset"]) == ("t", 1, 2)
    assert first["ts_ns"] == first["arrived_at_ns"] == 1_700_000_000_000_000_000
    assert (second["kind"], second["key"], second["value"]) == ("batch_msg", b"c/1/a".hex(), "ff")


def test_pings_and_heartbeats_are_named_skips(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(b"\xff" + bytes(32), b"x") + line(b""))
    assert [(row["type"], row["skip"]) for row in as_json(path)] == [("skip", "ping"), ("skip", "heartbeat")]


def test_a_line_that_is_no_message_is_quarantined_with_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(*encode(BatchMsg(HASH, b"k", b"v"))) + b'{"broken\xff\n')
    _, quarantined, broken = as_json(path)
    assert (quarantined["type"], quarantined["rule"]) == ("quarantine", "capture.file_damaged")
    assert (quarantined["key"], quarantined["value"]) == (None, b'{"broken\xff'.hex())
    assert (broken["type"], broken["rule"], broken["record_number"]) == ("violation", "capture.file_damaged", 1)


def test_what_is_wrong_with_the_capture_itself_is_told_last(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    message = encode(BatchMsg(HASH, b"k", b"v"))
    packed = gzip.compress(b"".join([line(*message), line(*message, timestamp_ms=10**15), line(*message)]))
    path.write_bytes(packed[:-8])
    *rows, suspect, cut = as_json(path)
    assert [row["type"] for row in rows] == ["message"] * 3
    assert len({row["arrived_at_ns"] for row in rows}) == 1
    assert (suspect["rule"], suspect["severity"], suspect["record_number"]) == ("capture.time_suspect", "note", 1)
    assert (cut["rule"], cut["record_number"]) == ("capture.file_damaged", None)
    no_stream = {column.name for column in shared_columns()["stream_place"]}
    assert list(cut)[1:] == [name for name in columns("gold.violations") if name not in no_stream]


@pytest.mark.property
@pytest.mark.parametrize("path", sorted(PCAPS.rglob("*.pcap")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_rows_of_packets_have_the_columns_of_their_tables(path: Path) -> None:
    tables = {
        "message": "silver.wallaroo_messages",
        "quarantine": "silver.wallaroo_quarantine",
        "connection": "silver.wallaroo_connections",
        "violation": "gold.wallaroo_violations",
    }
    kinds = set()
    for row in as_json(path):
        kind = row.pop("type")
        kinds.add(kind)
        assert list(row) == columns(tables[kind])
    assert {"message", "connection"} <= kinds


def test_captures_of_packets_are_told_by_their_content(tmp_path: Path) -> None:
    plain = PCAPS / "v3" / "e_no_notify.pcap"
    packed = tmp_path / "capture"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    rows = as_json(plain)
    for row in rows:
        row.pop("capture_id")
    again = as_json(packed, "wallaroo", 27103)
    for row in again:
        row.pop("capture_id")
    assert again == rows
    elsewhere = as_json(plain, port=80)
    assert {(row["type"], row["skip"]) for row in elsewhere} == {("skip", "port_not_claimed")}


def test_what_is_wrong_with_a_capture_of_packets_is_told_last(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes((PCAPS / "v3" / "e_no_notify.pcap").read_bytes()[:-5])
    *rows, cut = as_json(path)
    assert (cut["type"], cut["rule"], cut["record_number"]) == ("violation", "capture.file_damaged", None)
    kinds = [(row["type"], row.get("rule")) for row in rows]
    assert ("quarantine", "capture.file_damaged") in kinds
    assert ("violation", "capture.file_damaged") not in kinds


def test_the_table_of_packets_numbers_connections() -> None:
    text = as_text(PCAPS / "v3" / "e_no_notify.pcap")
    said = [line.split()[:4] for line in text.splitlines()]
    assert ["7", "1", "client", "MESSAGE"] in said
    assert ["7", "1", "client", "violation"] in said
    assert ["20", "2", "server", "NOTIFY_ACK"] in said
    assert "127.0.0.1:42008 → 127.0.0.1:27103 opened=syn closed=fin dialect=v3" in text
    assert "12 messages in 2 connections to port 27103, 0 quarantined, 0 skipped, 2 findings" in text
    assert "2 wallaroo.message_unknown_stream (violation)" in text


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Puts a second protocol of packets before the others, which knows connections whose client begins so."""

    def register(beginning: bytes) -> None:
        def recognises(client: bytes, server: bytes) -> str | None:
            return "it begins so" if server and client.startswith(beginning) else None

        codec = SimpleNamespace(
            recognises=recognises, INSPECT={"pcap": lambda batches, port=None, unseen=None: iter(())}
        )
        monkeypatch.setitem(sys.modules, "wirehouse_codecs.stub.inspection", codec)
        monkeypatch.setattr(inspecting_command, "PROTOCOLS", {"stub": protocol} | PROTOCOLS)

    protocol = replace(PROTOCOLS["wallaroo"], name="stub")
    return register


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A capture of what is none of the protocols."""
    client, server = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 80)
    said = [Send(2, Direction.CLIENT, b"GET / HTTP/1.1\r\n\r\n"), Send(3, Direction.SERVER, b"HTTP/1.1 200 OK\r\n\r\n")]
    path = tmp_path / "other.pcap"
    with path.open("wb") as stream:
        write_pcap(packets(Conversation(client, server, 1, said)), stream)
    return path


@pytest.mark.parametrize("path", sorted(PCAPS.rglob("e_no_notify.pcap")), ids=lambda path: path.parent.name)
def test_of_several_protocols_the_first_bytes_tell(path: Path, other: Path, stub: Callable[[bytes], None]) -> None:
    alone = as_json(path)
    (port,) = {row["server_port"] for row in alone if row["type"] == "connection"}
    stub(b"GET ")
    assert as_json(path) == as_json(path, port=port) == alone
    assert as_json(other) == []


@pytest.mark.parametrize("dialect", ["v3", "v2b", "seed"])
def test_a_capture_that_begins_in_the_middle_is_recognised(tmp_path: Path, dialect: str) -> None:
    sent = list(simulate(SimulatorConfig(connectors=1, messages_per_connector=200, dialect=dialect)))
    path = tmp_path / "middle.pcap"
    with path.open("wb") as stream:
        write_pcap(sent[len(sent) // 3 :], stream)
    assert as_json(path) == as_json(path, "wallaroo") != []


def test_what_no_protocol_or_several_recognise_has_to_be_told(stub: Callable[[bytes], None], other: Path) -> None:
    path = PCAPS / "v3" / "e_no_notify.pcap"
    stub(b"")
    both = r"begin like stub \(it begins so\) and like wallaroo \(the client begins with a HELLO, big endian\)"
    with pytest.raises(ProtocolUnclearError, match=rf"{both}.*--protocol: stub, .*wallaroo"):
        as_json(path)
    stub(b"PUT ")
    with pytest.raises(ProtocolUnclearError, match=r"no connection begins as one of a known protocol.*--protocol"):
        as_json(other)
    assert as_json(path, "wallaroo")


def test_a_port_means_nothing_for_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(*encode(BatchMsg(HASH, b"k", b"v"))))
    with pytest.raises(PortNotNeededError, match="holds no packets"):
        as_json(path, port=80)
    with pytest.raises(UnreadableCaptureError, match="neither pcap nor pcapng"):
        as_json(path, "wallaroo")


def test_avro_captures_are_told_by_their_content(tmp_path: Path) -> None:
    key, value = encode(BatchMsg(HASH, b"k", b"v"))
    with (tmp_path / "capture").open("wb") as stream:
        write_avro([Record("t", 0, 1, 1_700_000_000_000, key, value)], stream)
    (row,) = as_json(tmp_path / "capture")
    assert (row["kind"], row["offset"], row["key"]) == ("batch_msg", 1, "6b")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_long_first_line_is_told_by_the_names_at_its_end(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "long.jsonl"
    message = {"key_b64": "", "value_b64": ""}
    first = json.dumps({"note": "x" * (2 << 20)} | message)
    path.write_text(f"{mark}{first}\n{json.dumps(message)}\n")
    assert [row["protocol"] for row in as_json(path) if row["type"] == "quarantine"] == ["cardinal"]
    entry = json.dumps({"note": "x" * (2 << 20), "entry_hex": "00"})
    path.write_text(f"{mark}{entry}\n" * 2)
    assert {row["protocol"] for row in as_json(path) if "protocol" in row} <= {"bamboo"}


def test_the_table_shows_the_rows_and_counts_them() -> None:
    text = as_text(VECTORS / "h_malformed" / "19_short_keys" / "messages.jsonl")
    assert "47 messages, 3 quarantined, 0 skipped, 3 findings" in text
    assert "34 batch_msg" in text
    assert "3 cardinal.key_length_wrong (violation)" in text
    assert "key='c/1/n/1'" in text


def test_the_table_stops_but_the_counts_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting_command, "MOST_ROWS", 5)
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(*encode(BatchMsg(HASH, b"k", b"v"))) * 9)
    text = as_text(path)
    assert "only the first 5 rows are shown" in text
    assert "9 messages" in text


def test_text_from_the_wire_does_not_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b]0;x\x07.jsonl"
    message = encode(BatchMsg(HASH, b"[red]k[/red]", b"v"))
    path.write_bytes(line(*message, topic="\x1b[2Jt\u202e[bold]") + b"\x1b[31m{\n" + line(b"\x1b[2J"))
    text = as_text(path)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2Jt\\u202e[bold]" in text
    assert "[red]k[/red]" in text
    assert "\x1b" not in json.dumps(as_json(path))


def test_what_cannot_be_looked_into_is_said_in_one_line(tmp_path: Path) -> None:
    picture = tmp_path / "picture"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(
        UnreadableCaptureError, match=r"picture: neither pcap nor pcapng.*; neither JSON Lines nor an Avro"
    ):
        as_json(picture)
    with pytest.raises(UnreadableCaptureError, match="picture: neither JSON Lines nor an Avro container"):
        as_json(picture, "cardinal")
    with pytest.raises(UnreadableCaptureError, match="No such file"):
        as_json(tmp_path / "none")
    with pytest.raises(UnreadableCaptureError, match="Is a directory"):
        as_json(tmp_path)
    with pytest.raises(ProtocolNeededError, match="--protocol: bamboo, cardinal"):
        as_json(picture, "smtp")


def test_an_empty_capture_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    assert as_json(path) == []
    assert "0 messages" in as_text(path)


def test_every_protocol_can_be_looked_into() -> None:
    for name, protocol in PROTOCOLS.items():
        codec = import_module(f"wirehouse_codecs.{name}.inspection")
        assert callable(codec.inspect)
        assert callable(getattr(codec, "recognises", None)) == ("pcap" in protocol.kinds)


@pytest.mark.parametrize("name", ["nothing.jsonl", "header.pcap"])
def test_of_an_empty_capture_it_is_said(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    with path.open("wb") as stream:
        if name == "header.pcap":
            write_pcap([], stream)
    assert "the capture is empty: it has no records" in as_text(path)
    assert as_json(path) == []
    assert "the capture is empty" in " ".join(capsys.readouterr().err.split())


def test_of_packets_that_were_cut_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sent = list(simulate(SimulatorConfig(connectors=1, messages_per_connector=20)))
    cut = sum(len(packet.data) > 70 for packet in sent)
    assert cut
    for size in (70, 65_535):
        path = tmp_path / f"{size}.pcap"
        with path.open("wb") as stream:
            write_pcap(sent, stream, snap_length=size)
        out = io.StringIO()
        inspect(str(path), "wallaroo", False, out)
        said = f"{cut} of {len(sent)} packets were cut by the snap length of the capture, to 70 bytes at most"
        assert (said in out.getvalue()) is (size == 70)
        as_json(path, "wallaroo")
        assert (said in " ".join(capsys.readouterr().err.split())) is (size == 70)


@pytest.mark.parametrize("name", [protocol.name for protocol in PROTOCOLS.values() if "pcap" in protocol.kinds])
def test_a_packet_that_is_cut_within_its_headers_is_a_row(tmp_path: Path, name: str) -> None:
    whole = next(iter(simulate(SimulatorConfig(connectors=1, messages_per_connector=1))))
    path = tmp_path / "cut.pcap"
    with path.open("wb") as stream:
        write_pcap([whole], stream, snap_length=40)
    assert [row["skip"] for row in as_json(path, name, 7100)] == ["truncated"]


def test_of_packets_that_were_cut_it_is_said_where_no_protocol_is_known_too(tmp_path: Path) -> None:
    sent = list(simulate(SimulatorConfig(connectors=1, messages_per_connector=20)))
    path = tmp_path / "cut.pcap"
    with path.open("wb") as stream:
        write_pcap(sent, stream, snap_length=70)
    cut = sum(len(packet.data) > 70 for packet in sent)
    with pytest.raises(ProtocolUnclearError) as raised:
        as_json(path)
    assert f"; {cut} of {len(sent)} packets were cut by the snap length" in str(raised.value)


def test_of_packets_in_reverse_order_it_is_said(tmp_path: Path) -> None:
    sent = list(simulate(SimulatorConfig(connectors=1, messages_per_connector=20)))
    path = tmp_path / "reversed.pcap"
    with path.open("wb") as stream:
        write_pcap(sent[::-1], stream)
    for protocol in ("wallaroo", None):
        *_, last = as_json(path, protocol)
        assert (last["type"], last["rule"], last["record_number"]) == ("violation", "capture.reversed", None)
    with path.open("wb") as stream:
        empty = min(len(packet.data) for packet in sent)
        write_pcap([packet for packet in sent[::-1] if len(packet.data) == empty], stream)
    with pytest.raises(ProtocolUnclearError) as raised:
        as_json(path)
    assert "the capture is in reverse order" in str(raised.value)


@pytest.mark.parametrize(
    ("protocol", "options", "said"),
    [
        ("hiero", ("profile=v9",), "--option profile: must be one of auto, "),
        ("hiero", ("reading=strict", "pace=1"), "--option pace: unknown option, expected one of profile, reading"),
        ("wallaroo", ("dialect=v9",), "--option dialect: must be one of auto, "),
        ("cardinal", ("reorg_threshold=many",), "--option reorg_threshold: must be a whole number, not 'many'"),
        ("cardinal", ("start={number = 7}",), "--option start.hash: is missing"),
        ("ockam", ("envelope",), "--option envelope: must be NAME=VALUE"),
        ("ockam", ("envelope=cbor", "envelope=bare"), "--option envelope: is given twice"),
        ("bamboo", ("colour=red",), "--option colour: unknown option"),
    ],
)
def test_of_an_option_that_is_none_it_is_said(
    tmp_path: Path, protocol: str, options: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "a"
    with path.open("wb") as stream:
        if "pcap" in PROTOCOLS[protocol].kinds:
            write_pcap([], stream)
    with pytest.raises(InspectOptionError, match=f"^{re.escape(said)}"):
        inspect(str(path), protocol, True, io.StringIO(), options=options)


@pytest.mark.parametrize(
    ("protocol", "kind"), [(one.name, kind) for one in PROTOCOLS.values() for kind in one.kinds if kind != "kafka"]
)
def test_every_reader_takes_the_options_of_its_protocol(protocol: str, kind: str) -> None:
    read = import_module(f"wirehouse_codecs.{protocol}.inspection").INSPECT[kind]
    assert list(read(iter(()), options=PROTOCOLS[protocol].options())) == []


def test_options_change_what_is_found(tmp_path: Path) -> None:
    def found(*options: str) -> list[dict[str, Any]]:
        out = io.StringIO()
        inspect(str(path), protocol, True, out, options=options)
        return [json.loads(text) for text in out.getvalue().splitlines()]

    protocol, path = "wallaroo", next(PCAPS.rglob("v3/c_restart.pcap"))
    assert found() == found("dialect=auto", "ack_timeout_s=10") != found("max_frame_bytes=8")
    protocol, path = "cardinal", tmp_path / "a.jsonl"
    block = Batch(HASH, 8, 9, bytes(32), (Update(b"c/1/", count=1),))
    path.write_bytes(line(*encode(block)))
    assert found() == found("reorg_threshold=128") != found('prefixes=["b/"]')


def test_the_table_shows_partitions_zeros_and_reasons() -> None:
    def says(row: dict[str, Any]) -> str:
        shown = inspecting_command._Shown(inspecting_command.FORMATS["pcap"].columns, Unseen())
        shown.take("message", row)
        return shown.cells[0][-1].plain

    assert says({"kind": "create_partitioned_response", "partition": 0}) == "partition=0"
    assert says({"kind": "pull_response", "messages": []}) == "messages=[]"
    assert says({"kind": "error", "reason": "Invalid request"}) == "reason=Invalid request"
    message = {"index": 0, "is_last": False, "data": None}
    assert says({"kind": "pull_response", "messages": [message]}) == "messages=[{index: 0, is_last: false}]"


def _captures() -> list[Path]:
    """Some captures of each protocol and kind."""
    found = [path for name in PROTOCOLS for path in sorted((VECTORS.parent / name).rglob("*")) if path.is_file()]
    # What Ockam has as lines are vectors of its codec.
    found = [path for path in found if path.relative_to(VECTORS.parent).parts[0] != "ockam" or path.suffix != ".jsonl"]
    kinds: dict[tuple[str, str], list[Path]] = {}
    for path in found:
        if path.suffix not in (".md", ".json", ".txt"):
            kinds.setdefault((path.relative_to(VECTORS.parent).parts[0], path.suffix), []).append(path)
    return [path for paths in kinds.values() for path in paths[:: max(1, len(paths) // 3)]]


@pytest.mark.parametrize("path", _captures(), ids=lambda path: str(path.relative_to(VECTORS.parent)))
@pytest.mark.parametrize("first", [0, 20])
def test_messages_that_nobody_sees_are_counted_and_all_else_comes_as_before(
    path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_inspection, "PIECE_PACKETS", 7)
    monkeypatch.setattr(tcp_inspection, "UNSEEN_PACKETS", 7)
    protocol = path.relative_to(VECTORS.parent).parts[0]

    def read(unseen: Unseen, first: int) -> list[tuple[str, dict[str, Any]]]:
        told = []
        with inspecting_command.opened(str(path), protocol, unseen=unseen, now_ns=1) as capture:
            for row in capture.rows:
                told.append(row)
                unseen.wanted = len(told) < first
        return told

    def kinds(rows: list[tuple[str, dict[str, Any]]]) -> Counter[str]:
        return Counter(str(row["kind"]) for kind, row in rows if kind == "message")

    def others(rows: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
        # The number of a block is taken from the row of its message.
        return [(kind, row | {"number": None}) for kind, row in rows if kind != "message"]

    expected = read(Unseen(), sys.maxsize)
    unseen = Unseen(wanted=first > 0)
    told = read(unseen, first)
    assert told[:first] == expected[:first]
    assert others(told) == others(expected)
    assert kinds(told) + unseen.messages == kinds(expected)


def test_of_messages_after_the_last_that_is_shown_no_rows_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pcap"
    with path.open("wb") as stream:
        write_pcap(simulate(SimulatorConfig(messages_per_connector=2_000)), stream)
    monkeypatch.setattr(tcp_inspection, "PIECE_PACKETS", 20)
    monkeypatch.setattr(inspecting_command, "MOST_ROWS", 10)
    made = Mock(wraps=wallaroo_inspection._message)
    monkeypatch.setattr(wallaroo_inspection, "_message", made)
    inspect(str(path), "wallaroo", False, out := io.StringIO())
    shown = made.call_count
    made.reset_mock()
    inspect(str(path), "wallaroo", True, lines := io.StringIO())
    assert shown == 10 < made.call_count == sum('"type":"message"' in line for line in lines.getvalue().splitlines())
    assert f" {made.call_count:,} messages in " in out.getvalue()
