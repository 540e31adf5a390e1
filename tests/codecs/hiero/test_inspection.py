"""What `inspect` says of captures, gRPC logs and block files: the vectors' calls, messages and verdicts."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.block_nodes import C, S, block
from tests.support.hiero_files import grpc_log_of, landed_blocks
from tests.support.landed import landed, landed_file
from wirehouse_codecs.captures.source import Origin
from wirehouse_codecs.hiero.inspection import inspect, inspect_blocks, inspect_log, recognises
from wirehouse_codecs.hiero.profiles import B, Service
from wirehouse_codecs.hiero.simulator.http2_peer import Peer
from wirehouse_codecs.hiero.wire import grpc_log
from wirehouse_codecs.hiero.wire.blocks import file_name
from wirehouse_codecs.hiero.wire.captures import BlockCapture, log_capture
from wirehouse_codecs.hiero.wire.http2.frames import PREFACE
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp
from wirehouse_codecs.hiero.wire.messages import Acknowledgement, BlockItems, NodeBehind, encode
from wirehouse_codecs.logs.detection import heads
from wirehouse_codecs.logs.inspection import LANDED_FILES

VECTORS = Path(__file__).parents[2] / "vectors" / "hiero"
CAPTURES = sorted(path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*.pcap"))
PUBLISH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
Row = dict[str, Any]


@cache
def inspected(capture: str) -> list[tuple[str, Row]]:
    return list(inspect(landed_file(VECTORS / capture)))


def inspected_log(data: bytes) -> list[tuple[str, Row]]:
    return list(inspect_log(landed(log_capture(io.BytesIO(data), Origin("a.binlog")).batches(), LANDED_FILES)))


def inspected_blocks(files: Mapping[str, bytes]) -> list[tuple[str, Row]]:
    """Rows of block files by their names."""
    captures = [BlockCapture(io.BytesIO(data), Origin(name)) for name, data in files.items()]
    return list(inspect_blocks(landed_blocks(*captures)))


def of(kind: str, rows: Iterable[tuple[str, Row]]) -> list[Row]:
    return [row for told, row in rows if told == kind]


def expected(capture: str) -> Row:
    said: Row = json.loads((VECTORS / capture).with_suffix(".expected.json").read_text())
    return said


def as_said(row: Row) -> Row:
    """A message in the vectors' words."""
    match row["kind"]:
        case "block_items":
            told = {"k": "items", "n": row["items"], "bytes": row["inflated_bytes"], "kinds": row["item_counts"]}
            return told | {name: row[name] for name in ("header", "proof") if row[name] is not None}
        case "block_end":
            return {"k": "end_of_block", "block": row["block_number"]}
        case "publisher_end_stream":
            ends = {"earliest": row["earliest_block_number"], "latest": row["latest_block_number"]}
            return {"k": "end_stream", "code": row["code"]} | ends
        case "acknowledgement":
            exists = {"already_exists": True} if row["block_already_exists"] else {}
            return {"k": "ack", "block": row["block_number"]} | exists
        case "node_behind":
            return {"k": "behind", "block": row["block_number"]}
        case "end_stream":
            told = {"k": "end_of_stream", "code": row["code"], "block": row["block_number"]}
            near = row["proximate_block_number"]
            return told | ({} if near is None else {"proximate": near})
        case "skip_block":
            return {"k": "skip", "block": row["block_number"]}
        case "server_status":
            told = {"first": row["first_available_block"], "last": row["last_available_block"]}
            return {"k": "server_status", "only_latest_state": row["only_latest_state"]} | told
        case "subscribe_status":
            return {"k": "status", "code": row["code"]}
    return {"k": row["kind"]}


@pytest.mark.parametrize("capture", CAPTURES)
def test_calls_requests_and_responses(capture: str) -> None:
    rows = inspected(capture)
    ports = {row["connection_id"]: row["client_port"] for row in of("connection", rows)}
    calls: dict[tuple[int, int], list[Row]] = {}
    for row in of("message", rows):
        calls.setdefault((ports[row["connection_id"]], int(row["call"].rpartition("/")[2])), []).append(row)
    told = {}
    for key, messages in calls.items():
        sent = {side: [as_said(row) for row in messages if row["direction"] == side] for side in ("client", "server")}
        told[key] = messages[0]["path"], sent
    for rpc in expected(capture)["rpcs"]:
        path, sent = told.pop((rpc["client_port"], rpc["h2_stream"]))
        assert path == rpc["path"]
        assert [one for one in sent["client"] if one["k"] not in _SINGLE] == rpc["requests"]
        assert sent["server"] == rpc["responses"]
    assert told == {}


_SINGLE = ("subscribe_request", "server_status_request")


@pytest.mark.parametrize("capture", CAPTURES)
def test_violations(capture: str) -> None:
    broken = [row["rule"] for row in of("violation", inspected(capture))]
    assert broken == [f"hiero.{one['rule'].lower()}" for one in expected(capture)["violations"]]
    assert of("quarantine", inspected(capture)) == []


@pytest.mark.parametrize("capture", CAPTURES)
def test_subscriptions_ask_for_what_the_vectors_say(capture: str) -> None:
    asked = Counter(
        (int(row["start_block_number"]), int(row["end_block_number"]))
        for row in of("message", inspected(capture))
        if row["kind"] == "subscribe_request"
    )
    requests = [rpc["request"] for rpc in expected(capture)["rpcs"] if "request" in rpc]
    assert asked == Counter((one["start"], one["end"]) for one in requests)


@pytest.mark.parametrize("table_bytes", [0, 100, 4096, 65_536])
def test_a_call_is_recognised_whose_header_table_has_another_size(table_bytes: int) -> None:
    client, server = Peer(C), Peer(S)
    opening = client.start() + client.acknowledge_settings(table_bytes) + client.request(PUBLISH)[1]
    answer = server.start({1: table_bytes}) + server.acknowledge_settings()
    assert recognises(opening, answer) == f"a call of {PUBLISH}"


@pytest.mark.parametrize("capture", CAPTURES)
def test_captures_are_recognised(capture: str) -> None:
    found = [recognises(*head) for head in heads(landed_file(VECTORS / capture))]
    assert found
    assert all(why is not None and "call of /" in why for why in found)


# Recognising


def test_a_connection_that_began_before_is_recognised_by_its_messages() -> None:
    publisher, node = Peer(C), Peer(S)
    sent = publisher.messages(1, encode(BlockItems(block(121).header), Service.PUBLISH, C, B))
    answer = node.messages(1, encode(NodeBehind(120), Service.PUBLISH, S, B))
    pings = publisher.ping() * 4
    assert "shape of publishBlockStream" in (recognises(pings + sent, node.ping() * 4 + answer) or "")


@pytest.mark.parametrize("client", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\xff" * 4096])
def test_others_are_not(client: bytes) -> None:
    assert recognises(client, client) is None


@given(st.binary(max_size=300), st.binary(max_size=300), st.booleans())
def test_any_bytes_may_be_looked_at(client: bytes, server: bytes, prefaced: bool) -> None:
    recognises(PREFACE + client if prefaced else client, server)


def test_other_services_over_http2_are_not() -> None:
    peer = Peer(C)
    _, request = peer.request("/grpc.health.v1.Health/Check")
    assert recognises(peer.start() + request, Peer(S).start()) is None


# gRPC logs


def entry(number: int, kind: grpc_log.EntryType, data: bytes = b"", **fields: Any) -> bytes:
    message = grpc_log.Message(len(data), data) if data else None
    timestamp = Timestamp(1_700_000_000 + number)
    return grpc_log.frame(grpc_log.encode(grpc_log.Entry(timestamp, 7, number, kind, message=message, **fields)))


def a_log() -> bytes:
    metadata = grpc_log.Metadata((grpc_log.MetadataEntry("hiero-correlation-id", b"P-1"),))
    header = grpc_log.ClientHeader(metadata, PUBLISH, "node:40840")
    kinds = grpc_log.EntryType
    said = [BlockItems(block(121).header), BlockItems(block(121).items), BlockItems(block(121).proof)]
    sent = [encode(one, Service.PUBLISH, C, B) for one in said]
    ack = encode(Acknowledgement(121), Service.PUBLISH, S, B)
    entries = [entry(1, kinds.CLIENT_HEADER, client_header=header)]
    entries += [entry(2 + number, kinds.CLIENT_MESSAGE, data) for number, data in enumerate(sent)]
    entries += [entry(5, kinds.SERVER_MESSAGE, ack), entry(6, kinds.SERVER_MESSAGE, ack)]
    return b"".join(entries)


def test_a_grpc_log_is_read_as_a_capture_is() -> None:
    rows = inspected_log(a_log())
    messages = of("message", rows)
    assert [row["kind"] for row in messages] == [*["block_items"] * 3, *["acknowledgement"] * 2]
    assert {(row["publisher"], row["node"], row["path"]) for row in messages} == {("P-1", "node:40840", PUBLISH)}
    assert [row["rule"] for row in of("violation", rows)] == ["hiero.ack_order"]
    assert messages[0]["arrived_at_ns"] == 1_700_000_002 * 10**9


def test_bytes_that_are_no_entry_are_kept() -> None:
    data = a_log() + b"\x00\x00\x00\x04\xff\xff\xff\xff" + b"\x00\x00"
    rows = inspected_log(data)
    assert [row["value"] for row in of("quarantine", rows)] == [b"\x00\x00\x00\x04" + b"\xff" * 4, b"\x00\x00"]
    assert len(of("message", rows)) == 5


@pytest.mark.property
@pytest.mark.parametrize("capture", ["new/duplicate_block.pcap", "old/behind_endstream_backoff.pcap"])
def test_an_entry_that_a_log_lacks_breaks_no_rule(capture: str) -> None:
    framer = grpc_log.Framer()
    data = grpc_log_of(VECTORS / capture, 40840)
    entries = [one.length + one.data for one in (*framer.receive(data), *framer.finish())]
    for lost in range(len(entries)):
        rows = inspected_log(b"".join(entries[:lost] + entries[lost + 1 :]))
        assert [row["rule"] for row in of("violation", rows) if row["severity"] != "note"] == [], lost


# Block files

FILES = sorted(path for path in (VECTORS / "blocks").iterdir() if ".blk" in path.name)


@cache
def facts() -> Mapping[str, Row]:
    return {one["file"]: one for one in json.loads((VECTORS / "blocks" / "expected.json").read_text())}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_block_file_is_a_message_row(path: Path) -> None:
    rows = inspected_blocks({path.name: path.read_bytes()})
    (row,) = of("message", rows)
    assert row["kind"] == "block_file"
    assert (of("violation", rows), of("quarantine", rows)) == ([], [])
    fact = facts().get(path.name)
    if fact is not None:
        assert row["block_number"] == fact["number"]
        assert row["item_counts"] == fact["items"]
        assert (row["items"], row["message_bytes"]) == (fact["items_total"], fact["block_bytes"])
        assert row["proof_kind"] == fact.get("proof_kind", "block_signature")
        root = fact.get("computed_root") or {}
        if row["block_root"] is not None and "hash" in root:
            assert (row["root_layout"], row["block_root"].hex()) == (root["layout"], root["hash"])


def test_the_chain_of_files_is_judged() -> None:
    series: dict[str, dict[str, bytes]] = {}
    for path in FILES:
        series.setdefault(path.name.rpartition("_")[0], {})[path.name] = path.read_bytes()
    for name, files in series.items():
        assert of("violation", inspected_blocks(files)) == [], name
    assert len(series["cn078_tss_schnorr"]) > 3


def test_a_block_that_does_not_chain_is_told() -> None:
    parts, after = block(121), block(122)
    first, second = parts.header + parts.items * 2 + parts.proof, after.header + after.proof
    told = of("violation", inspected_blocks({file_name(121): first, file_name(122): second}))
    assert [row["rule"] for row in told] == ["hiero.chain"]
    assert (told[0]["record_number"], told[0]["block_number"]) == (1, 122)


def test_a_file_without_a_proof_is_no_block() -> None:
    parts = block(121)
    rows = inspected_blocks({"1.blk": parts.header + parts.items})
    assert [(row["rule"], row["message"]) for row in of("violation", rows)] == [
        ("hiero.structure", "the file has no block proof")
    ]


def test_a_damaged_file_is_told() -> None:
    parts = block(121)
    rows = inspected_blocks({"1.blk": parts.header + b"\x0a\x7f"})
    assert (len(of("message", rows)), of("violation", rows)) == (1, [])
    assert "byte" in of("quarantine", rows)[0]["reason"]
    nothing = inspected_blocks({"1.blk": b"junk"})
    assert [kind for kind, _ in nothing] == ["quarantine"]


def test_a_file_without_items_is_a_row_too() -> None:
    (row,) = of("message", inspected_blocks({"1.blk": b"\x12\x01x"}))
    assert (row["block_number"], row["items"], row["message_bytes"]) == (None, 0, 3)


# Losses


@pytest.mark.parametrize("capture", [one for one in CAPTURES if "two_publishers" not in one])
def test_a_capture_that_begins_late_breaks_no_rule(capture: str) -> None:
    table = pa.Table.from_batches(landed_file(VECTORS / capture))
    own = {f"hiero.{one['rule'].lower()}" for one in expected(capture)["violations"]}
    # Within the first calls, of which only the last messages are left.
    for begin in range(10, 20):
        broken = {row["rule"] for row in of("violation", inspect(table.slice(begin).to_batches(), 40840))}
        assert {rule for rule in broken if rule.startswith("hiero.")} <= own, begin


@pytest.mark.property
@pytest.mark.parametrize("capture", [one for one in CAPTURES if one.startswith("new/")])
def test_a_lost_packet_breaks_no_rule(capture: str) -> None:
    table = pa.Table.from_batches(landed_file(VECTORS / capture))
    own = {f"hiero.{one['rule'].lower()}" for one in expected(capture)["violations"]}
    for lost in range(1, table.num_rows, max(table.num_rows // 8, 1)):
        left = pa.concat_tables([table.slice(0, lost), table.slice(lost + 1)]).combine_chunks()
        broken = {row["rule"] for row in of("violation", inspect(left.to_batches(), 40840))}
        assert {rule for rule in broken if rule.startswith("hiero.")} <= own, lost
