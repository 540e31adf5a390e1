"""The log of a block node's calls: rows however bytes and windows are cut, large messages, and bounds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.block_nodes import C, Call, S, World, block
from tests.support.landed import LATE_NS, carried, landed_file, read_log, segments
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.hiero.log import call_blocks
from wirehouse_codecs.hiero.log.call_rows import CORRELATION_ID
from wirehouse_codecs.hiero.log.calls import MOST_ITEM_BYTES, publisher_of
from wirehouse_codecs.hiero.log.log import EntryLog, starter
from wirehouse_codecs.hiero.log.rows import BLOCK, SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import Service
from wirehouse_codecs.hiero.wire import reassembly
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.items.kinds import encode_item
from wirehouse_codecs.hiero.wire.messages import BlockEnd, BlockItems, SubscribeRequest, SubscribeStatus, encode
from wirehouse_codecs.hiero.wire.protobuf import delimited
from wirehouse_codecs.hiero.wire.reassembly import Assembly, Cut, Key, Part, PartialMessage
from wirehouse_codecs.logs import rows as log_rows
from wirehouse_codecs.logs.rows import Log
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Closed, Data

VECTORS = sorted((Path(__file__).parents[3] / "vectors" / "hiero").rglob("*.pcap"))
PORTS = 40840, 40841
MIB = 1 << 20
Row = dict[str, Any]


# Windows


def told(rows: list[Row], cuts: tuple[int, ...] = ()) -> list[Row]:
    """The rows of the log through windows that are cut at the times `cuts`."""
    starts = [0, *cuts]
    names = [f"{number:03}" for number in range(len(starts))]
    placed = []
    for row in rows:
        at = max(number for number, start in enumerate(starts) if row["arrived_at_ns"] >= start)
        placed.append(row | {"window_start": names[at]})
    start = starter(HieroOptions())
    state: dict[bytes, str | None] = {}
    out: list[Row] = []
    for window, end_ns in zip(names, [*(cut - 1 for cut in cuts), LATE_NS], strict=True):
        # A window at a time, each from the state at the end of the one before.
        before = [carried(flow, text, window) for flow, text in state.items() if text is not None]
        own = [row for row in placed if row["window_start"] == window]
        given = sorted([*before, *own], key=lambda row: (row["flow"], row["record_number"] or -1))
        for row in read_log(given, start, SCHEMA, {window: end_ns}):
            if row["row_kind"] == "state":
                state[row["flow"]] = row["state"]
            else:
                out.append(row)
    return out


def comparable(rows: list[Row]) -> Counter[str]:
    kept = (row for row in rows if row["row_kind"] not in ("connection", "state", "skip"))
    return Counter(repr({name: row[name] for name in row if name != "window_start"}) for row in kept)


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_windows_cut_anywhere_give_the_same_rows(path: Path) -> None:
    rows = segments(landed_file(path), *PORTS)
    once = comparable(told(rows))
    times = sorted({row["arrived_at_ns"] for row in rows})
    random = Random(1)
    for _ in range(2):
        cuts = tuple(sorted(random.sample(times[1:], k=3)))
        assert comparable(told(rows, cuts)) == once


# Bytes


def dialogue(call: Call) -> list[tuple[Direction, bytes]]:
    """What both sides of a publisher's call send."""
    sent: list[tuple[Direction, bytes]] = []

    def say(side: Direction, data: bytes) -> Call:
        sent.append((side, data))
        return call

    call.say = say  # type: ignore[method-assign]
    call.header(121).rest(121).ack(121).header(126).behind(121).block(122).ack(122)
    call.end_stream(latest=122).half_close().trailers()
    return [(C, call.opening[C]), (S, call.opening[S]), *sent]


def world_of(said: list[tuple[Direction, bytes]], size: int, *, restored: bool = False) -> World:
    world = World()
    call = Call(world, 1, Service.PUBLISH, Endpoint("10.1.0.1", 1), Endpoint("10.0.0.1", 40840), opened="none")
    place = world.place()
    world.log.connection_id = bytes(16)
    for side, data in said:
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            if restored:
                call.conversation = call._conversation(call.conversation.snapshot())
            call.conversation.receive([Data(side, call.at[side], piece, place)])
            call.at[side] += len(piece)
    call.conversation.close(Closed(place, "fin"))
    return world


def test_bytes_come_in_any_pieces() -> None:
    said = dialogue(World().publisher(opened="none"))
    once = comparable(world_of(said, 1 << 20).rows)
    assert sum(once.values()) > 15
    assert comparable(world_of(said, 1).rows) == comparable(world_of(said, 17, restored=True).rows) == once


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_damaged_bytes_never_crash(random: Any, damage: int) -> None:
    said = dialogue(World().publisher(opened="none"))
    data = [(side, bytearray(one)) for side, one in said]
    for _ in range(damage):
        _, piece = random.choice(data)
        if piece:
            piece[random.randrange(len(piece))] = random.randrange(256)
    world = world_of([(side, bytes(one)) for side, one in data], 1 << 20)
    assert {row["row_kind"] for row in world.rows} <= {"message", "call", "block", "quarantine", "violation"}
    world.told()


# Large messages


def a_set(count: int, size: int) -> bytes:
    return encode_item(5, bytes(size)) * count


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "WHOLE_BYTES", 200)
    monkeypatch.setattr(reassembly, "PART_BYTES", 1000)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("encoding", [None, "gzip"])
@pytest.mark.parametrize("restored", [False, True])
def test_a_large_set_comes_in_parts_and_is_judged_as_one(encoding: str | None, restored: bool) -> None:
    parts, items = block(121), a_set(30, 90)
    world = World(restored=restored)
    call = world.publisher(encoding=encoding)
    call.peers[C].data_bytes = 333
    call.client(BlockItems(parts.header + items + parts.proof)).ack(121)
    *early, last, ack = world.of("message")
    assert b"".join(row["raw"] for row in (*early, last)) == parts.header + items + parts.proof
    assert [row["message"]["part"] for row in (*early, last)] == list(range(len(early) + 1))
    assert [row["message"]["last"] for row in (*early, last)] == [False] * len(early) + [True]
    counts = Counter[str]()
    for row in (*early, last):
        counts.update(dict(row["message"]["item_counts"]))
    assert counts == {
        "block_header": 1,
        "round_header": 1,
        "transaction_result": 30,
        "block_footer": 1,
        "block_proof": 1,
    }
    assert (last["message"]["header"], last["message"]["proof"]) == (121, 121)
    assert ack["message"]["kind"] == "acknowledgement"
    assert world.all_broken() == []
    whole = World()
    whole.publisher().client(BlockItems(parts.header + items + parts.proof)).ack(121)
    assert last["message"]["block_root"] == whole.of("message")[-2]["message"]["block_root"]


@pytest.mark.usefixtures("small_parts")
def test_a_large_set_that_breaks_off_keeps_its_bytes() -> None:
    world = World()
    call = world.publisher().header(121)
    data = grpc.message(encode(BlockItems(a_set(30, 90)), Service.PUBLISH, C, call.profile))
    call.say(C, call.peers[C].data(call.stream, data[:1500])).cancel()
    raw = b"".join(row["raw"] for row in world.rows if row["raw"])
    assert a_set(30, 90)[:1400] in raw
    assert world.of("quarantine")


@pytest.mark.usefixtures("small_parts")
def test_a_large_set_that_is_garbled_is_told() -> None:
    world = World()
    world.publisher().header(121).client(BlockItems(a_set(10, 90) + b"\x0f" + bytes(500)))
    assert world.broken == ["malformed_message"]
    assert sum(row["message"]["items"] or 0 for row in world.of("message")) == 12


#: The state of an assembly as text.
STATE = SnapshotCodec(dict[Key, PartialMessage], what="tested state", version=1)


def receive(held: Assembly, data: bytes, size: int, tag: int | None = 0x0A) -> list[Part | Cut]:
    out: list[Part | Cut] = []
    for at in range(0, len(data), size):
        out += held.receive((1, C), data[at : at + size], at + size >= len(data), tag)
    return out


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        delimited(1, b""),
        delimited(1, a_set(30, 90)),
        delimited(1, a_set(30, 90)) + delimited(1, a_set(3, 90)),
        delimited(1, a_set(30, 90)) + delimited(2, bytes(300)),
        delimited(1, a_set(30, 90)) + b"\xff" * 30,
        delimited(2, bytes(3000)),
        b"\x0a\xff\xff\xff\xff" + bytes(400),
        b"\x0a" + b"\xff" * 400,
    ],
)
def test_parts_do_not_depend_on_pieces(data: bytes) -> None:
    def shown(parts: list[Part | Cut]) -> tuple[list[Part], int]:
        return [one for one in parts if isinstance(one, Part)], sum(
            len(one.items) for one in parts if isinstance(one, Cut)
        )

    once = shown(receive(Assembly(10_000), data or b"", max(len(data), 1)) or [])
    for size in (1, 7, 300):
        assert shown(receive(Assembly(10_000), data, size)) == once
    raw = b"".join(part.whole or part.raw for part in once[0])
    assert len(data) - len(raw) <= 20


@pytest.mark.property
def test_messages_of_many_calls_are_held_within_bounds() -> None:
    held = Assembly(MOST_ITEM_BYTES)
    piece = delimited(1, encode_item(5, bytes(3 * MIB)))[: 2 * MIB]
    parts: list[Part | Cut] = []
    for call in range(1, 21, 2):
        parts += held.receive((call, C), piece, False, 0x0A)
        assert len(STATE.write(held.state)) < 24 * MIB
    kept = sum(len(part.raw) for part in parts if isinstance(part, Part))
    assert kept + held._held >= 10 * MIB


@pytest.mark.parametrize("encoding", [None, "gzip", "zstd"])
@pytest.mark.parametrize("restored", [False, True])
def test_an_item_that_is_too_large_to_be_held_is_read(encoding: str | None, restored: bool) -> None:
    world = World(restored=restored)
    call = world.publisher(encoding=encoding).header(121)
    large = Random(1).randbytes(100_000) * (MOST_ITEM_BYTES // 90_000)
    call.client(BlockItems(encode_item(7, large))).rest(121).ack(121).end_stream(latest=121).half_close().trailers()
    assert world.all_broken() == []
    assert world.of("quarantine") == []
    (told,) = (row["block"] for row in world.of(BLOCK))
    assert dict(told["item_counts"])["state_changes"] == 1
    assert told["item_bytes"] > len(large)
    assert (told["block_root"], told["root_reason"]) == (None, "an item is too large to be hashed")


def test_a_message_that_inflates_too_much_is_quarantined_and_nothing_follows() -> None:
    for ratio, kinds in ((1032, ["block_items"] * 3), (20, ["block_items"] * 2)):
        world = World(HieroOptions(max_inflated_ratio=ratio))
        call = world.publisher(encoding="gzip").header(121)
        call.client(BlockItems(encode_item(7, bytes(3 << 20)) + block(121).items))
        call.proof(121).client(BlockEnd(121)).ack(121).end_stream(latest=121).half_close().trailers()
        assert world.all_broken() == []
        assert [row["message"]["kind"] for row in world.of("message")][: len(kinds)] == kinds
        reasons = [row["finding"]["message"] for row in world.of("quarantine")]
        assert [", 20 times its size" in reason for reason in reasons] == [True] * (ratio == 20)


def test_nothing_follows_from_a_set_that_can_not_be_read() -> None:
    world = World()
    call = world.publisher().header(121).client(BlockItems(b"\x0a\x05\x2a"))
    call.client(BlockEnd(121)).ack(121).end_stream(latest=121).half_close().trailers()
    assert world.all_broken() == ["malformed_message"]


def test_a_message_of_many_parts_passes_through() -> None:
    world = World()
    call = world.publisher().header(121)
    content = BlockItems(a_set(130, 1000) * 100)
    data = grpc.message(encode(content, Service.PUBLISH, C, call.profile))
    sent = call.peers[C].data(call.stream, data)
    snapshots = []
    for at in range(0, len(sent), MIB):
        call.say(C, sent[at : at + MIB])
        if at // MIB % 4 == 0:
            snapshots.append(len(call.conversation.snapshot()))
    assert max(snapshots) < 8 * MIB
    rows = world.of("message")[1:]
    assert sum(row["message"]["items"] for row in rows) == 13_000
    assert max(len(row["raw"]) for row in rows) == reassembly.PART_BYTES


def test_headers_and_proofs_are_held_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_blocks, "BODIES_BYTES", 2000)
    world = World()
    call = world.publisher().header(121)
    for _ in range(20):
        call.client(BlockItems(encode_item(9, bytes(10) + b"\x12\x64" + bytes(200))))
    assert len(call.conversation.snapshot()) < 20_000


# Rows


def test_a_call_is_told_when_it_begins_and_once_when_it_ends() -> None:
    world = World()
    world.publisher("A").block(121).ack(121).end_stream().half_close().trailers(3).close()
    opened, closed = (row["call_event"] for row in world.of("call"))
    assert (opened["event"], opened["correlation_id"], opened["profile"]) == ("opened", "N65-STR0", "B")
    assert (closed["event"], closed["how"], closed["status"], closed["state"]) == ("closed", "trailers", 3, "over")
    assert (closed["headers"], closed["proofs"], closed["acknowledgements"]) == (1, 1, 1)


def test_a_block_has_a_row_where_it_ends() -> None:
    world = World()
    world.publisher().header(120).skip(120).block(121)
    first, second = (row["block"] for row in world.of("block"))
    assert (first["ended_by"], first["proven"], first["header"]) == ("header", False, True)
    assert (second["ended_by"], second["proven"], second["messages"]) == ("block_end", True, 3)
    assert second["block_root"] == block(121).root
    assert second["previous_hash"] == block(120).root


def test_framing_is_counted() -> None:
    world = World()
    call = world.publisher().header(121)
    call.conversation.conclude()
    call.conversation.conclude()
    call.header(122).conversation.conclude()
    counted = [(row["direction"], row["skip"]["bytes"]) for row in world.of("skip")]
    sides = Counter(side for side, _ in counted)
    assert sides == {"client": 2, "server": 1}
    sent = {side.value: call.at[side] for side in Direction}
    held = sum(row["message"]["message_bytes"] + grpc.PREFIX_BYTES for row in world.of("message"))
    assert dict(counted) == {"client": sent["client"] - held, "server": sent["server"]}


def test_secrets_stay_out_of_the_log() -> None:
    world = World()
    metadata = [("authorization", "Bearer s3cret"), ("hiero-correlation-id", "A-1")]
    world.call(Service.PUBLISH, "10.1.0.1", metadata=metadata).header(121)
    assert "s3cret" not in repr(world.rows)


@pytest.mark.parametrize(
    ("told_id", "publisher"),
    [
        *(("N0-STR12", "N0"), ("N123-STR0", "N123"), ("", "10.0.0.9"), ("?", "10.0.0.9")),
        # Names.
        *((name, name) for name in ("node", "-1", "node-1", "A-STR1", "N1-2", "n1-STR2", "N1-STR", "N1-STR2-3")),
    ],
)
def test_a_publisher_is_known_by_its_correlation_id(told_id: str, publisher: str) -> None:
    assert publisher_of({CORRELATION_ID: told_id}, "10.0.0.9") == publisher


def test_services_on_ports_of_their_own_are_those_of_one_node() -> None:
    world = World()
    world.publisher(node=Endpoint("10.0.0.1", 40984)).header(121)
    world.subscriber(node=Endpoint("10.0.0.1", 40980))
    assert {row["node"] for row in world.rows} == {"10.0.0.1"}


def test_a_call_from_before_the_capture_is_told_by_its_port_or_its_messages() -> None:
    world = World()
    subscribed = world.call(Service.SUBSCRIBE, "10.2.0.1", Endpoint("10.0.0.1", 40980), opened="middle")
    subscribed.say(C, subscribed.peers[C].ping() * 3).client(SubscribeRequest(1, 2))
    subscribed.say(S, subscribed.peers[S].ping() * 3).server(SubscribeStatus(1)).close()
    inferred = world.publisher(opened="middle")
    inferred.say(C, inferred.peers[C].ping() * 3).block(121)
    inferred.say(S, inferred.peers[S].ping() * 3).ack(121).close()
    kinds = [row["message"]["kind"] for row in world.of("message")]
    assert kinds[:2] == ["subscribe_request", "subscribe_status"]
    assert kinds[-1] == "acknowledgement"
    assert world.broken == []


def sent_by(service: Service, content: bytes) -> dict[Direction, bytearray]:
    """What a client that asks for blocks, or only begins a publisher's call, sends; and a node that gives blocks."""
    call = World().call(service, "10.2.0.1", opened="none")
    sent = {side: bytearray(call.opening[side]) for side in Direction}

    def say(side: Direction, data: bytes) -> Call:
        sent[side] += data
        return call

    call.say = say  # type: ignore[method-assign]
    if service is Service.SUBSCRIBE:
        call.client(SubscribeRequest(121, 123)).deliver(121).deliver(122).server(BlockItems(content))
    return sent


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("asked", [Service.SUBSCRIBE, Service.PUBLISH])
def test_a_request_that_comes_within_a_message_of_the_node(asked: Service, restored: bool) -> None:
    """A call from before the capture, of which the node's bytes come before those of the client."""
    parts = block(123)
    content = parts.header + a_set(3, 400) + parts.proof
    request, answer = bytes(sent_by(asked, content)[C]), bytes(sent_by(Service.SUBSCRIBE, content)[S])
    for at in range(1, len(answer), 29):
        world = World(restored=restored)
        call = world.call(Service.SUBSCRIBE, "10.2.0.1", opened="middle")
        call.say(S, answer[:at]).say(C, request).say(S, answer[at:]).close()
        assert content in b"".join(row["raw"] or b"" for row in world.rows)
        if asked is Service.SUBSCRIBE:
            assert world.broken == []
            sets = (row["message"] for row in world.of("message") if row["message"]["kind"] == "block_items")
            assert [one["header"] for one in sets if one["header"]] == [121, 122, 123]
            assert [row["block_number"] for row in world.of(BLOCK)] == [121, 122, 123]
            assert world.of("call")[-1]["call_event"]["headers"] == 3
            assert world.of("quarantine") == []


def test_state_of_another_version_is_refused() -> None:
    call = World().publisher()
    state = json.loads(call.conversation.snapshot()) | {"version": 0}
    with pytest.raises(StateVersionError):
        call._conversation(json.dumps(state))
    entries = EntryLog(Log(SCHEMA), HieroOptions())
    again = EntryLog(Log(SCHEMA), HieroOptions(), entries.snapshot())
    assert again.snapshot() == entries.snapshot()
    with pytest.raises(StateVersionError):
        EntryLog(Log(SCHEMA), HieroOptions(), json.dumps(json.loads(entries.snapshot()) | {"version": 0}))


def test_batches_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_rows, "BATCH_BYTES", 1000)
    rows = Log(SCHEMA)
    place = World().place()
    fullness = []
    for raw in (bytes(999), b"1"):
        rows.add("quarantine", place, raw=raw)
        fullness.append(rows.full)
    assert fullness == [False, True]
    assert sum(batch.num_rows for batch in rows.take()) == 2
    assert not rows.full
