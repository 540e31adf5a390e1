"""The sessions of the vectors: what the rows of a capture tell together."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.landed import landed_file, landed_packets
from tests.support.ockam_clients import PORT, PULLED, STORED, Said, captured, consumed
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.ockam.correlation.events import ConsumerRow, Found, Hole, StreamRow, Told
from wirehouse_codecs.ockam.correlation.log_events import Heard
from wirehouse_codecs.ockam.log.log import SCHEMA, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.wire.messages import (
    CreateRequest,
    CreateResponse,
    IndexGet,
    IndexResponse,
    IndexSave,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
)

SESSIONS = Path(__file__).parents[3] / "vectors" / "ockam" / "sessions"
CAPTURES = sorted(path.name.removesuffix(".pcap") for path in SESSIONS.glob("*.pcap"))


@cache
def expected(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((SESSIONS / f"{name}.expected.json").read_text())
    return told


@cache
def told(name: str, edited: str = "") -> tuple[Told, ...]:
    """What is told of a capture; `edited` changes the data of every pull."""
    landed = landed_file(SESSIONS / f"{name}.pcap")
    heard = Heard()
    port = expected(name)["server_port"]
    for row in tcp_inspection.read(landed, starter(OckamOptions()), SCHEMA, port):
        if edited and row["row_kind"] == "message" and row["message"]["messages"]:
            row["message"]["messages"][-1]["data"] = edited.encode()
        heard.take(row)
    return tuple(heard.told())


@pytest.mark.parametrize("name", CAPTURES)
def test_what_is_found_is_the_violation_of_the_vector(name: str) -> None:
    found = [one.rule.name for one in told(name) if isinstance(one, Found)]
    violation = expected(name)["violation"]
    assert found == ([violation] if violation in {"consumer_hole", "duplicate_index"} else [])


@pytest.mark.parametrize("name", CAPTURES)
def test_streams(name: str) -> None:
    rows = {row.stream_address: row for row in told(name) if isinstance(row, StreamRow)}
    assert set(rows) == set(expected(name)["streams"])
    for address, stream in expected(name)["streams"].items():
        row = rows[address]
        assert (row.stream_name, row.partition) == (stream["stream_name"], stream["partition"])
        assert (row.first_index, row.last_index) == (stream["first_index"], stream["last_index"])
        indexes = {index for index, _ in stream["messages"]}
        assert (row.confirmed, row.indexes) == (stream["confirmed"], len(indexes))


@pytest.mark.parametrize("name", CAPTURES)
def test_consumers(name: str) -> None:
    rows = [row for row in told(name) if isinstance(row, ConsumerRow) and row.stream_address is not None]
    by_key = {
        f"{row.client_id}|{row.stream_name}|{'' if row.partition is None else row.partition}": row for row in rows
    }
    holes: Counter[tuple[str, str | None]] = Counter()
    for hole in told(name):
        if isinstance(hole, Hole):
            holes[hole.client_id, hole.stream_address] += hole.messages
    assert len(rows) == len(by_key)
    assert set(by_key) == set(expected(name)["saved_indexes_and_lag"])
    for key, consumer in expected(name)["saved_indexes_and_lag"].items():
        row = by_key[key]
        assert row.stream_address == consumer["stream_address"]
        assert (row.saved, row.position, row.lag) == (*[consumer["saved_index"]] * 2, consumer["lag_messages"])
        assert row.delivered == consumer["last_delivered"]
        assert (row.delivered_messages, row.redelivered) == (consumer["delivered_distinct"], consumer["redelivered"])
        assert holes[row.client_id, row.stream_address] == len(consumer["not_delivered_below_saved"])


def test_what_retention_took_is_a_gap_of_the_server() -> None:
    (hole,) = [one for one in told("spec_gaps") if isinstance(one, Hole)]
    assert (hole.kind, hole.client_id, hole.messages) == ("server_gap", "consumer-4", 40)


def test_other_data_in_a_pull_than_was_pushed() -> None:
    found = [one.rule.name for one in told("bad_consumer_hole", "other") if isinstance(one, Found)]
    assert Counter(found) == {"consumer_hole": 1, "data_changed": 4}


def of_one_id() -> list[Said]:
    """Pushes that all have id 1, with up to three open at once; and a pull of what was saved."""
    said: list[Said] = [
        (0.1, "p", CreateRequest("orders"), "stream", "pub"),
        (0.2, "p", CreateResponse("orders"), "pub", "orders-1"),
    ]
    for at in range(9):
        said.append((1 + at / 10, "p", PushRequest(1, b"data %d" % at), "orders-1", "pub"))
        confirmed_at = 1.05 + at / 10 + (at % 3 == 0) * 0.17 + (at % 3 == 1) * 0.08
        said.append((confirmed_at, "p", PushResponse(1, Status.OK, at), "pub", "orders-1"))
    said.sort(key=lambda one: one[0])
    pulled = PullResponse(1, tuple(StreamMessage(at, b"data %d" % at) for at in range(9)))
    said.append((3.3, "c", PullRequest(1, 0, 10), "orders-1", "con"))
    return [*said, (3.4, "c", pulled, "con", "orders-1")]


def test_what_was_confirmed_by_an_id_that_repeats_is_not_sure_after_a_loss() -> None:
    packets = list(captured(*of_one_id()))
    for first in range(len(packets)):
        for lost in (range(first), range(first, first + 1)):
            rows = [one for at, one in enumerate(packets) if at not in lost]
            heard = Heard()
            for row in tcp_inspection.read(landed_packets(rows), starter(OckamOptions()), SCHEMA, PORT):
                heard.take(row)
            found = [one.rule.name for one in heard.told() if isinstance(one, Found)]
            assert "data_changed" not in found, lost


def split(*said: Said) -> dict[tuple[str | None, str], ConsumerRow]:
    """What is known of clients by messages of several connections."""
    heard = Heard()
    for row in tcp_inspection.read(landed_packets(captured(*said)), starter(OckamOptions()), SCHEMA, PORT):
        heard.take(row)
    rows = heard.told()
    assert rows == heard.told()
    assert not [one for one in rows if isinstance(one, Found)]
    return {(one.stream_address, one.client_id): one for one in rows if isinstance(one, ConsumerRow)}


def test_a_client_is_followed_over_the_connections_of_its_host() -> None:
    row = split(*STORED, *consumed("a1", "a2"))["orders-1", "me"]
    assert (row.saved, row.delivered, row.delivered_messages, row.lag, row.connections) == (4, 3, 4, 6, 2)


def test_clients_of_other_hosts_and_addresses_are_others() -> None:
    rows = split(*STORED, *consumed("a1", "b1"))
    assert rows["orders-1", "me"].delivered is None
    rows = split(*STORED, *consumed("a1", "a2"), *consumed("b1", "b2", client="you"))
    assert {name: row.delivered for (address, name), row in rows.items() if address} == {"me": 3, "you": 3}


def test_of_several_clients_of_one_address_it_is_not_known_who_pulled() -> None:
    other = (2.9, "a3", IndexSave("you", "orders", 1), "stream_index", "con")
    rows = split(*STORED, other, *consumed("a1", "a2"))
    assert rows["orders-1", "me"].delivered is None
    assert rows["orders-1", "me"].lag == 6


def pull_response(number: int, *indexes: int) -> PullResponse:
    return PullResponse(number, tuple(StreamMessage(at, b"data") for at in indexes))


def passing_over(pulls: str, saves: str, *indexes: int, client: str = "me") -> list[Said]:
    """As `consumed`, and 4 is saved although only the messages with these indexes came."""
    brought = pull_response(1, *indexes)
    return [
        (at, name, brought if message is PULLED else message, *way)
        for at, name, message, *way in consumed(pulls, saves, client=client)
    ]


def holes(*said: Said) -> list[tuple[str, int, int]]:
    heard = Heard()
    for row in tcp_inspection.read(landed_packets(captured(*said)), starter(OckamOptions()), SCHEMA, PORT):
        heard.take(row)
    told = heard.told()
    found = [one.rule.name for one in told if isinstance(one, Found)]
    rows = [(one.kind, one.first_index, one.last_index) for one in told if isinstance(one, Hole)]
    assert found.count("consumer_hole") == [kind for kind, _, _ in rows].count("consumer_hole")
    return rows


def test_what_a_client_passed_over_is_found_if_it_saves_on_another_connection() -> None:
    assert holes(*STORED, *passing_over("a1", "a2", 0, 1)) == [("consumer_hole", 2, 3)]
    assert holes(*STORED, *passing_over("a1", "a2", 0, 1, 3)) == [("server_gap", 2, 2)]
    assert holes(*STORED, *passing_over("a1", "a2", 0, 1, 2, 3)) == []
    # It may have come from elsewhere: of another host, or to another client of this address.
    assert holes(*STORED, *passing_over("a1", "b1", 0, 1)) == []
    other = (3.6, "a3", IndexSave("you", "orders", 1), "stream_index", "con")
    assert holes(*STORED, *passing_over("a1", "a2", 0, 1), other) == []


def test_what_comes_after_a_save_on_another_connection_may_have_come_before() -> None:
    def later(requested: int, *indexes: int) -> list[Said]:
        request = (3.6, "a1", PullRequest(2, requested, 10), "orders-1", "con")
        return [request, (3.7, "a1", pull_response(2, *indexes), "con", "orders-1")]

    skipped = [*STORED, *passing_over("a1", "a2", 0, 1)]
    assert holes(*skipped, *later(4, 4, 5)) == [("consumer_hole", 2, 3)]
    assert holes(*skipped, *later(3, 3, 4)) == [("consumer_hole", 2, 2)]
    assert holes(*skipped, *later(2, 2, 3)) == []
    # A part of the client's life wasn't captured.
    assert holes(*skipped, *told_saved("a2", 3.6, 7)) == []


def confirmed(connection: str, at_s: float, number: int, address: str) -> list[Said]:
    return [
        (at_s, connection, PushRequest(number, b"data"), address, "pub"),
        (at_s + 0.1, connection, PushResponse(number, Status.OK, number), "pub", address),
    ]


def given(connection: str, at_s: float, address: str, back: str = "pub") -> list[Said]:
    return [
        (at_s, connection, CreateRequest("orders"), "stream", back),
        (at_s + 0.1, connection, CreateResponse("orders"), back, address),
    ]


def test_two_addresses_of_one_name_that_both_go_on_answering() -> None:
    restarted = [*given("a", 0, "orders-1"), *confirmed("a", 1, 0, "orders-1")]
    restarted += [*given("b", 2, "orders-2"), *confirmed("b", 3, 0, "orders-2"), *confirmed("b", 4, 1, "orders-2")]
    both = [*restarted, *confirmed("a", 5, 1, "orders-1"), *confirmed("a", 6, 2, "orders-1")]

    def found(*said: Said, second_ns: int = 10**9) -> list[tuple[str, str | None]]:
        heard = Heard()
        packets = landed_packets(captured(*said, second_ns=second_ns))
        for row in tcp_inspection.read(packets, starter(OckamOptions()), SCHEMA, PORT):
            heard.take(row)
        return [(one.rule.name, one.stream_address) for one in heard.told() if isinstance(one, Found)]

    assert found(*restarted, second_ns=20 * 10**9) == []
    # In one capture the order is sure, however short the time.
    for second_ns in (10**6, 20 * 10**9):
        assert found(*both, second_ns=second_ns) == [("address_changed", "orders-1")]


def pulls(connection: str, at_s: float, number: int) -> list[Said]:
    return [
        (at_s, connection, PullRequest(number, 0, 10), "orders-1", "con"),
        (at_s + 0.1, connection, PullResponse(number, ()), "con", "orders-1"),
    ]


def found_in(*said: Said, without: int = -1) -> list[tuple[str, int]]:
    """Rules that are broken, and the records of the packets; a packet may be missing."""
    heard, packets = Heard(), list(captured(*said))
    kept = [packet for at, packet in enumerate(packets) if at != without]
    for row in tcp_inspection.read(landed_packets(kept), starter(OckamOptions()), SCHEMA, PORT):
        heard.take(row)
    return [(one.rule.name, one.where.record_number) for one in heard.told() if isinstance(one, Found)]


def test_an_address_may_be_given_on_another_connection() -> None:
    assert found_in(*given("a1", 0, "orders-1"), *pulls("a2", 1, 1), *pulls("b1", 1.5, 1)) == []
    # Nobody was given it: one finding, at the first request to it.
    made_up = [*given("a1", 0, "orders-2"), *pulls("a2", 1, 1), *pulls("a2", 2, 2), *pulls("b1", 3, 1)]
    assert [name for name, _ in found_in(*made_up)] == ["address_not_from_init"]
    # A packet to the host was missed, which may have been the Init; one to another host can't have been.
    other: list[Said] = [(0.5, "a1", PushRequest(1, b"data"), "orders-2", "pub")]
    other += [(0.6, "a1", PushResponse(1, Status.OK, 0), "pub", "orders-2")]
    init = next(at for at, packet in enumerate(captured(*made_up)) if b"orders-2" in packet.data)
    assert found_in(*made_up, *other, without=init) == []
    assert [name for name, _ in found_in(*made_up, *confirmed("c1", 0.5, 1, "orders-2"), without=-1)] != []


def test_messages_may_have_come_on_another_connection_that_lacks_bytes() -> None:
    def given_more(also: str) -> list[Said]:
        return [
            *given("d1", 2.9, "orders-1", "con"),
            *consumed("d1", "d1")[:2],
            (3.3, "d1", PullRequest(1, 0, 10), "orders-1", "con"),
            (3.4, "d1", PULLED, "con", "orders-1"),
            *given(also, 3.5, "orders-1", "con"),
            (3.7, also, PullRequest(2, 4, 2), "orders-1", "con"),
            (3.8, also, PullResponse(2, (StreamMessage(4, b"data"), StreamMessage(5, b"lost"))), "con", "orders-1"),
            *pulls(also, 3.9, 3),
            (4.5, "d1", IndexSave("me", "orders", 6), "stream_index", "con"),
        ]

    def found(also: str) -> list[str]:
        said = [*STORED, *given_more(also)]
        lost = next(at for at, packet in enumerate(captured(*said)) if b"lost" in packet.data)
        return [name for name, _ in found_in(*said, without=lost)]

    assert found("d2") == []
    assert found("e1") == ["consumer_hole"], "of another host nothing can have come"


def told_saved(connection: str, at_s: float, index: int, name: str = "orders") -> list[Said]:
    return [
        (at_s, connection, IndexGet("me", name), "stream_index", "con"),
        (at_s + 0.1, connection, IndexResponse("me", name, index), "con", "stream_index"),
    ]


@pytest.mark.parametrize("creator", ["a3", "b1"])
def test_an_init_that_was_lost_on_any_connection_that_created_the_name_may_have_told_of_a_new_service(
    creator: str,
) -> None:
    said = [*given("c1", 0, "orders-1"), *told_saved("a1", 1, 10), *given(creator, 2, "orders-2")]
    said += [*told_saved("a2", 3, 3), *pulls(creator, 4, 1)]
    init = next(at for at, packet in enumerate(captured(*said)) if b"orders-2" in packet.data)
    assert found_in(*said, without=init) == []
    same = [*given("c1", 0, "orders-1"), *told_saved("a1", 1, 10), *given(creator, 2, "orders-1")]
    assert [name for name, _ in found_in(*same, *told_saved("a2", 3, 3))] == ["saved_index_lowered"]


def test_a_save_may_have_been_lost_on_another_connection_of_the_host() -> None:
    index, written = 1_234_567, b"\x87\xad\x4b"

    def found(saves: str) -> list[str]:
        said: list[Said] = [*told_saved("a1", 1, 0), *told_saved(saves, 1.5, 0, "other")]
        said += [(2, saves, IndexSave("me", "orders", index), "stream_index", "con")]
        said += [*told_saved("a1", 3, index), *told_saved(saves, 4, 0, "other")]
        lost = next(at for at, packet in enumerate(captured(*said)) if written in packet.data)
        return [name for name, _ in found_in(*said, without=lost)]

    assert found("a3") == []
    assert found("b1") == ["index_never_saved"]
