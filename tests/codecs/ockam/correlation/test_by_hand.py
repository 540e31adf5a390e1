"""What several connections say together, in bytes that no encoder of the product wrote.

Of each rule and column a case at its very edge that breaks nothing, and one a step further.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.landed import landed_packets
from tests.support.ockam_by_hand import ACK, PORT, SYN, Talk, Wire, data, frame, optional, packet, uint
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.ockam.correlation.events import ConsumerRow, Found, Told
from wirehouse_codecs.ockam.correlation.log_events import Heard
from wirehouse_codecs.ockam.log.log import SCHEMA, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import PROTOCOL, RULE
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket

Say = Callable[[Talk], object]


def heard(say: Say) -> tuple[list[str], list[Told]]:
    """Violations and warnings of what is said, and what its connections tell together."""
    talk, known = Talk(), Heard()
    say(talk)
    found = []
    for row in tcp_inspection.read(landed_packets(talk.close()), starter(OckamOptions()), SCHEMA, PORT):
        known.take(row)
        if row["row_kind"] == "violation":
            protocol, name = row["finding"]["rule"].split(".")
            found += [name] if protocol == PROTOCOL else []
    told = known.told()
    found += [one.rule.name for one in told if isinstance(one, Found)]
    return sorted(name for name in found if RULE[name].severity is not Severity.NOTE), told


def broken(say: Say) -> list[str]:
    return heard(say)[0]


def clients(say: Say) -> dict[tuple[str, str | None], ConsumerRow]:
    """The newest row of each client and stream's address."""
    found, told = heard(say)
    assert found == []
    return {(one.client_id, one.stream_address): one for one in told if isinstance(one, ConsumerRow)}


# Clients over connections


def three(talk: Talk, *, saved: int, silent_s: float = 0, init: bool = True, me: str = "con") -> None:
    """A client is given its stream on one connection, pulls on another, and saves on a third."""
    publisher, a, b, c = talk.open("10.1.1.9"), talk.open(), talk.open(), talk.open()
    publisher.opened("orders", "orders-1", "pub").store("orders-1", *range(10))
    if init:
        a.opened("orders", "orders-1", me)
    c.got("cl", "orders", 0, me)
    b.pull("orders-1", 1, 0, 6, me).pulled("orders-1", 1, *range(6), me=me)
    talk.wait(silent_s)
    c.save("cl", "orders", saved, me)


@pytest.mark.parametrize("silent_s", [0, 3 * 3600])
@pytest.mark.parametrize("init", [True, False])
def test_a_client_has_one_row_whatever_its_connections(silent_s: float, *, init: bool) -> None:
    rows = clients(lambda talk: three(talk, saved=6, silent_s=silent_s, init=init))
    row = rows["cl", "orders-1"]
    assert {key for key in rows if key[1] is not None} == {("cl", "orders-1")}
    assert (row.saved, row.position, row.delivered, row.lag, row.lost, row.latest) == (6, 6, 5, 4, 0, 9)
    assert row.delivered_messages == 6


def test_a_client_whose_name_no_init_gave_has_a_row_without_lag() -> None:
    def say(talk: Talk) -> None:
        talk.open().got("cl", "orders", 4).save("cl", "orders", 6)

    row = clients(say)["cl", None]
    assert (row.stream_name, row.saved, row.position, row.lag) == ("orders", 6, 6, None)


# Lag


def retained(talk: Talk, *, first: int, own: bool = False) -> None:
    """A client has saved 10 of 100; of another's pull from 0, or its own, those below `first` are gone."""
    publisher, slow, other = talk.open("10.1.1.9"), talk.open("10.1.1.2"), talk.open("10.1.1.3")
    publisher.opened("orders", "orders-1", "pub").store("orders-1", *range(100))
    slow.opened("orders", "orders-1").got("slow", "orders", 0).pull("orders-1", 1, 0, 10)
    slow.pulled("orders-1", 1, *range(10)).save("slow", "orders", 10)
    if own:
        slow.pull("orders-1", 2, 10, 100).pulled("orders-1", 2, *range(first, 100))
    else:
        other.opened("orders", "orders-1", "o").got("other", "orders", 0, "o")
        other.pull("orders-1", 1, 0, 100, "o").pulled("orders-1", 1, *range(first, 100), me="o")


DELETED = [(10, 90, 0), (11, 89, 1), (90, 10, 80), (99, 1, 89)]


@pytest.mark.parametrize(
    ("first", "lag", "lost", "own"), [(0, 90, 0, False), *((*one, own) for one in DELETED for own in (True, False))]
)
def test_what_was_deleted_is_lost_and_no_lag(first: int, lag: int, lost: int, *, own: bool) -> None:
    row = clients(lambda talk: retained(talk, first=first, own=own))["slow", "orders-1"]
    assert (row.saved, row.lag, row.lost) == (10, lag, lost)


def test_what_was_delivered_before_it_was_deleted_is_not_lost() -> None:
    def say(talk: Talk) -> None:
        publisher, a, b = talk.open("10.1.1.9"), talk.open("10.1.1.2"), talk.open("10.1.1.3")
        publisher.opened("orders", "orders-1", "pub").store("orders-1", *range(10))
        a.opened("orders", "orders-1").got("a", "orders", 0).pull("orders-1", 1, 0, 5).pulled("orders-1", 1, *range(5))
        b.opened("orders", "orders-1", "b").got("b", "orders", 0, "b")
        b.pull("orders-1", 1, 0, 9, "b").pulled("orders-1", 1, 7, 8, 9, me="b")

    row = clients(say)["a", "orders-1"]
    assert (row.delivered_messages, row.lag, row.lost) == (5, 3, 2)


def test_lag_has_the_age_of_its_oldest_message() -> None:
    def say(talk: Talk) -> None:
        publisher, con = talk.open("10.1.1.9"), talk.open("10.1.1.2")
        publisher.opened("orders", "orders-1", "pub")
        con.opened("orders", "orders-1").got("cl", "orders", 0)
        for index in range(3):
            publisher.store("orders-1", index)
            talk.wait(100)
        con.pull("orders-1", 1, 0, 1).pulled("orders-1", 1, 0).save("cl", "orders", 1)

    row = clients(say)["cl", "orders-1"]
    assert row.lag == 2
    assert row.lag_seconds == pytest.approx(200, abs=1)


# Saved indexes


def answered(talk: Talk, index: int | None, *, stream: str = "orders", client: str = "cl", host: str = "2") -> None:
    """A client saved 10 and is told so; on another connection `client` is told `index` of `stream`."""
    a = talk.open("10.1.1.1")
    a.opened("orders", "orders-1").got("cl", "orders", 0).save("cl", "orders", 10).got("cl", "orders", 10)
    talk.open(f"10.1.1.{host}").got(client, stream, index)


def test_a_saved_index_is_lowered_on_another_connection() -> None:
    assert broken(lambda talk: answered(talk, 10)) == []
    assert broken(lambda talk: answered(talk, 9)) == ["saved_index_lowered"]
    assert broken(lambda talk: answered(talk, None)) == ["saved_index_lowered"]
    assert broken(lambda talk: answered(talk, 9, host="1")) == ["saved_index_lowered"]
    assert broken(lambda talk: answered(talk, 9, stream="others")) == []
    assert broken(lambda talk: answered(talk, 9, client="you")) == []


def test_an_index_may_answer_a_save_and_none_that_nobody_asked_for() -> None:
    assert broken(lambda talk: talk.open().save("cl", "orders", 3).index("cl", "orders", 3)) == []
    assert broken(lambda talk: talk.open().index("cl", "orders", 3)) != []

    def unasked(talk: Talk) -> None:
        talk.open().got("cl", "orders", 3).index("cl", "orders", 3)

    assert broken(unasked) == ["index_for_other_key"]

    def late_save_answer(talk: Talk) -> None:
        wire = talk.open().save("cl", "orders", 5).get("cl", "orders")
        wire.index("cl", "orders", 5).index("cl", "orders", 5)

    assert broken(late_save_answer) == []


# Streams by node and address


def nodes(talk: Talk, second: str) -> None:
    """A stream at one node, and one with the same name and address at another."""
    for at, node in enumerate(("1#10.2.0.1:4000", second)):
        wire = talk.open(f"10.1.1.{at}")
        wire.ask(f"{node}>stream", "stream_create", optional(data("orders")), "me")
        wire.raw("s", frame("me", f"{node}>orders-1", "stream_create", data("orders")))
        for index in range(3):
            wire.ask(f"{node}>orders-1", "stream_push", uint(index + 1) + data(f"{node}{index}"), "me")
            wire.raw("s", frame("me", f"{node}>orders-1", "stream_push", uint(index + 1) + b"\0" + uint(index)))


def test_streams_are_known_by_their_node() -> None:
    assert broken(lambda talk: nodes(talk, "1#10.2.0.2:4000")) == []
    assert broken(lambda talk: nodes(talk, "1#10.2.0.1:4000")) == ["duplicate_index"] * 3


# Two addresses of one name


def two_addresses(talk: Talk, *turns: int) -> None:
    """Publishers on two connections, each with its own address, push in these turns."""
    wires = [talk.open("10.1.1.1"), talk.open("10.1.1.2")]
    wires[0].opened("orders", "orders-1", "a").store("orders-1", 0, me="a")
    wires[1].opened("orders", "orders-2", "b")
    stored = [1, 0]
    for turn in turns:
        wires[turn].store(f"orders-{turn + 1}", stored[turn], me="ab"[turn])
        stored[turn] += 1


def test_two_addresses_that_go_on_confirming() -> None:
    # Only the new one confirms from then on; or it never does.
    assert broken(lambda talk: two_addresses(talk, 1, 1, 1)) == []
    assert broken(lambda talk: two_addresses(talk, 0, 0)) == []
    assert broken(lambda talk: two_addresses(talk, 0, 1)) == []
    assert broken(lambda talk: two_addresses(talk, 1, 0)) == ["address_changed"]
    assert broken(lambda talk: two_addresses(talk, 1, 0, 1, 0, 1, 0)) == ["address_changed"]


def test_an_old_address_may_answer_what_was_sent_before_the_new_one_did() -> None:
    def say(talk: Talk) -> None:
        a, b = talk.open("10.1.1.1"), talk.open("10.1.1.2")
        a.opened("orders", "orders-1", "a").push("orders-1", 1, "x", "a")
        b.opened("orders", "orders-2", "b").store("orders-2", 0, me="b")
        a.confirm("orders-1", 1, 0, "a")

    assert broken(say) == []


# Indexes over connections


def pushes(talk: Talk, second: int, *, open_before: bool = False, lost: bool = False) -> None:
    """7 is confirmed on one connection, then a push on another one is confirmed with `second`."""
    a, b = talk.open("10.1.1.1"), talk.open("10.1.1.2")
    a.opened("orders", "orders-1", "a")
    b.opened("orders", "orders-1", "b")
    if open_before:
        b.push("orders-1", 1, "b", "b")
    a.push("orders-1", 1, "a", "a").confirm("orders-1", 1, 7, "a")
    if not open_before:
        b.push("orders-1", 1, "b", "b")
    b.confirm("orders-1", 1, second, "b")


def test_a_lower_index_on_another_connection() -> None:
    assert broken(lambda talk: pushes(talk, 8)) == []
    assert broken(lambda talk: pushes(talk, 6)) == ["index_decreases"]
    assert broken(lambda talk: pushes(talk, 7)) == ["duplicate_index"]
    assert broken(lambda talk: pushes(talk, 6, open_before=True)) == []


def test_data_is_that_of_either_push_with_a_duplicate_index() -> None:
    def say(talk: Talk, *changed: int) -> None:
        a, b, c = talk.open("10.1.1.1"), talk.open("10.1.1.2"), talk.open("10.1.1.3")
        a.opened("orders", "orders-1", "a").push("orders-1", 1, "d0", "a").confirm("orders-1", 1, 0, "a")
        b.opened("orders", "orders-1", "b").push("orders-1", 1, "other", "b").confirm("orders-1", 1, 0, "b")
        c.opened("orders", "orders-1").pull("orders-1", 1, 0, 9).pulled("orders-1", 1, 0, changed=changed)

    assert broken(say) == ["duplicate_index"]
    assert broken(lambda talk: say(talk, 0)) == ["data_changed", "duplicate_index"]


# Requests that can't be decoded, errors, pulls with one id


def test_a_request_that_cant_be_decoded_excuses_one_answer() -> None:
    def say(talk: Talk, answers: int) -> None:
        wire = talk.open().opened("orders", "orders-1")
        wire.ask("orders-1", "stream_push", uint(1) + data("x") + b"\0")
        for number in range(answers):
            wire.confirm("orders-1", 1 + number, number)

    assert broken(lambda talk: say(talk, 1)) == ["payload"]
    assert broken(lambda talk: say(talk, 2)) == ["payload", "unknown_request_id"]


@pytest.mark.parametrize("first", ["error", "init"])
def test_an_early_error_of_pipelined_creates(first: str) -> None:
    def say(talk: Talk) -> None:
        wire = talk.open().create("orders").create("")
        if first == "error":
            wire.error("stream").init("orders", "orders-1")
        else:
            wire.init("orders", "orders-1").error("stream")

    assert broken(say) == []


def test_pulls_with_one_id_are_answered_in_any_order() -> None:
    def say(talk: Talk, *order: int) -> None:
        publisher, wire = talk.open("10.1.1.9"), talk.open()
        publisher.opened("orders", "orders-1", "pub").store("orders-1", *range(20))
        wire.opened("orders", "orders-1").pull("orders-1", 5, 0, 3).pull("orders-1", 5, 10, 3)
        for begin in order:
            wire.pulled("orders-1", 5, *range(begin, begin + 3))

    assert broken(lambda talk: say(talk, 0, 10)) == []
    assert broken(lambda talk: say(talk, 10, 0)) == []
    assert broken(lambda talk: say(talk, 10, 0, 0)) == ["unknown_request_id"]


@pytest.mark.parametrize("name", ["a\\b", "C:\\x\\", "\\", "ü\\n", 'q"t', "a b"])
def test_names_are_compared_as_they_are_sent(name: str) -> None:
    found = []
    talk, known = Talk(), Heard()
    talk.open().opened(name, f"ST_{name}").got("cl", name, 0).save("cl", name, 1)
    for row in tcp_inspection.read(landed_packets(talk.close()), starter(OckamOptions()), SCHEMA, PORT):
        known.take(row)
        found += [row["finding"]["rule"]] if row["row_kind"] == "violation" else []
    assert found == []


# Holes


def holes(talk: Talk, *came: int, saved: int, first: int = 0) -> None:
    publisher, wire = talk.open("10.1.1.9"), talk.open()
    publisher.opened("orders", "orders-1", "pub").store("orders-1", *range(10))
    wire.opened("orders", "orders-1").got("cl", "orders", 0)
    for number, index in enumerate(came):
        wire.pull("orders-1", number, index, 1).pulled("orders-1", number, index)
    wire.save("cl", "orders", saved)


def test_a_client_saves_what_it_never_got() -> None:
    assert broken(lambda talk: holes(talk, 0, 1, 2, saved=3)) == []
    assert broken(lambda talk: holes(talk, 0, 2, saved=3)) == ["consumer_hole"]
    # One fault has one finding: what lies ahead was confirmed, so it is known what never came.
    assert broken(lambda talk: holes(talk, 0, 1, 2, saved=4)) == ["consumer_hole"]
    assert broken(lambda talk: holes(talk, 0, 1, 2, saved=12)) == ["consumer_hole"]
    assert broken(lambda talk: holes(talk, 0, 2, saved=6)) == ["consumer_hole"]
    # Nothing is known to lie ahead; and of two faults each has its own.
    assert broken(lambda talk: holes(talk, *range(10), saved=11)) == ["save_ahead"]
    assert broken(lambda talk: holes(talk, *range(8), 9, saved=11)) == ["consumer_hole", "save_ahead"]


def crossed(talk: Talk, *, saved: int = 6) -> None:
    """A client saves 3, pulls from there, and saves on. Of both sides' bytes only retransmissions were captured."""
    publisher, wire = talk.open("10.1.1.9"), talk.open()
    publisher.opened("orders", "orders-1", "pub").store("orders-1", *range(10))
    wire.opened("orders", "orders-1").got("cl", "orders", 0).pull("orders-1", 1, 0).pulled("orders-1", 1, 0, 1, 2)
    first, sent = len(talk.packets), dict(wire.sent)
    wire.save("cl", "orders", 3).pull("orders-1", 2, 3)
    asked = wire.sent["c"]
    wire.pulled("orders-1", 2, 3, 4, 5).save("cl", "orders", saved).pull("orders-1", 3, 6)
    *payloads, answer, third, fourth = [one.data[54:] for one in talk.packets[first:]]
    del talk.packets[first:]
    client, service = (wire.host, wire.port), ("10.9.9.9", PORT)
    again = [
        packet(service, client, sent["s"], asked, ACK, answer),
        packet(client, service, sent["c"], wire.sent["s"], ACK, b"".join([*payloads, third, fourth])),
    ]
    talk.packets += [CapturedPacket(talk.now + number, one) for number, one in enumerate(again, 1)]


def test_what_was_sent_in_no_known_order_is_not_judged() -> None:
    assert broken(crossed) == []
    # Afterwards there is an order again.

    def say(talk: Talk) -> None:
        crossed(talk)
        talk.wires[1].pulled("orders-1", 3, 6).save("cl", "orders", 7).save("cl", "orders", 9)

    assert broken(say) == ["consumer_hole"]


def fast_open(talk: Talk) -> None:
    """The SYN had a request, and wasn't captured; its answer and what follows were."""
    wire = talk.open()
    talk.packets.clear()
    wire.lose("c", len(frame("stream", "me", "stream_create", optional(data("orders")))))
    wire.sent["s"] = 2_000_000
    wire._put("s", SYN | ACK, b"", 1)
    wire._put("c", ACK, b"")
    wire.init("orders", "a1")


def test_an_answer_to_a_request_in_a_syn_that_was_not_captured() -> None:
    assert broken(fast_open) == []


def last_byte_late(talk: Talk, asked: bytes, say: Callable[[Wire], Wire]) -> None:
    """The last byte of a request stands alone, and is captured behind the answer. It may be a FIN, so nobody waits."""
    wire = talk.open().opened("orders", "orders-1")
    say(wire.raw("c", asked[:-1]).raw("c", asked[-1:]))
    last, answer = talk.packets[-2:]
    talk.packets[-2:] = answer._replace(ts_ns=last.ts_ns), last._replace(ts_ns=answer.ts_ns)


def test_an_answer_may_be_captured_before_the_last_byte_of_its_request() -> None:
    pushed = frame("orders-1", "me", "stream_push", uint(1) + data("x"))
    assert broken(lambda talk: last_byte_late(talk, pushed, lambda wire: wire.confirm("orders-1", 1, 0))) == []
    pulls = frame("orders-1", "me", "stream_pull", uint(1) + uint(0) + uint(10))
    assert broken(lambda talk: last_byte_late(talk, pulls, lambda wire: wire.pulled("orders-1", 1))) == []
    gets = frame("stream_index", "me", "stream_index", b"\0" + data("client") + data("orders"))
    assert broken(lambda talk: last_byte_late(talk, gets, lambda wire: wire.index("client", "orders", None))) == []
