"""Whatever a tap loses, swaps or has late: who spoke by the protocol broke no rule."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import pytest

from tests.codecs.wallaroo.log.test_one_sided import found
from tests.support.landed import landed_packets, read_log, segments
from tests.support.searches import fast_first
from tests.support.taps import STRETCHES, any_tap, captured, joined
from tests.support.wallaroo_by_hand import SECOND, ack, answer, hello, message, notify, ok
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate


@cache
def sent(dialect: str, lively: bool) -> tuple[CapturedPacket, ...]:
    """Two connectors of one worker; lively ones are reset, open streams again and come back."""
    config = SimulatorConfig(
        seed=1,
        dialect=dialect,
        connectors=2,
        streams_per_connector=2,
        messages_per_connector=40,
        burst_messages=4,
        credits=8,
        refill_at=4,
        reset_share=0.2 if lively else 0,
        reopens=int(lively),
        reconnects=int(lively),
    )
    return tuple(simulate(config))


@pytest.mark.parametrize("seed", fast_first(range(300), 4, most=20))
def test_what_a_tap_has_of_legal_traffic_breaks_no_rule(seed: int) -> None:
    dialect, tap = list(DIALECTS)[seed % len(DIALECTS)], any_tap(seed)
    for lively in (False, True):
        rows = segments(landed_packets(captured(sent(dialect, lively), (PORT,), tap)), PORT)
        assert (dialect, lively, tap, found(rows)) == (dialect, lively, tap, set())


@pytest.mark.parametrize(("first", "last"), STRETCHES)
@pytest.mark.parametrize("dialect", fast_first(DIALECTS))
def test_who_said_first_what_comes_again_at_once_is_not_known(dialect: str, first: int, last: int) -> None:
    for lively in (False, True):
        rows = segments(landed_packets(sent(dialect, lively)), PORT)
        assert (lively, found(joined(rows, first, last))) == (lively, set())


TALK = (hello(), ok(), notify(), answer(), message(1), message(2), ack(2, (1, 2)), message(3))
#: The handshake, and the first message of each kind.
FIRST = 7
#: Orders of these in which none is more than so many places from its own.
ORDERS = [order for order in permutations(range(FIRST)) if all(abs(at - place) < 5 for place, at in enumerate(order))]


@pytest.mark.parametrize("part", fast_first(range(20), most=4))
def test_the_first_packets_may_be_captured_in_any_order(part: int) -> None:
    """All messages are read if none of them is more than three places late, and none breaks a rule."""
    begun_ns = 1000 * SECOND
    events = [Send(begun_ns + 10**6 * number, step.side, step.data) for number, step in enumerate(TALK)]
    sent = list(
        packets(Conversation(Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT), begun_ns - SECOND, events))
    )
    for order in ORDERS[part::20]:
        moved = [sent[at]._replace(ts_ns=sent[place].ts_ns) for place, at in enumerate(order)]
        rows = segments(landed_packets([*moved, *sent[FIRST:]]), PORT)
        assert (order, found(rows)) == (order, set())
        if all(abs(at - place) < 4 for place, at in enumerate(order)):
            read = read_log(rows, log.starter(WallarooOptions(), b"key"), schema.SCHEMA)
            assert (order, sum(row["row_kind"] == "message" for row in read)) == (order, len(TALK))
