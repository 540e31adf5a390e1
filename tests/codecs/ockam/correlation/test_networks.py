"""Random networks that keep to the protocol: nobody is blamed, and what is known is what was said."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.codecs.ockam.log.test_one_sided import severe
from tests.support.landed import landed_packets, read_log, segments
from tests.support.ockam_networks import PORT, Network
from tests.support.searches import fast_first
from tests.support.taps import Tap, any_tap, captured, sent_again
from wirehouse_codecs.ockam.correlation.events import ConsumerRow, StreamRow
from wirehouse_codecs.ockam.correlation.log_events import Heard
from wirehouse_codecs.ockam.log import log
from wirehouse_codecs.ockam.options import OckamOptions

Row = dict[str, Any]


def packets_of(network: Network) -> list[Row]:
    return segments(landed_packets(network.packets), PORT)


@pytest.mark.parametrize("seed", fast_first(range(1000), count=8, most=15))
def test_a_legal_network_breaks_no_rule(seed: int) -> None:
    assert severe(packets_of(Network(seed))) == set()


@pytest.mark.parametrize("seed", fast_first(range(1000, 1200), count=8, most=12))
def test_streams_and_clients_are_known_as_they_were(seed: int) -> None:
    network, heard = Network(seed, aborts=False), Heard()
    for each in read_log(packets_of(network), log.starter(OckamOptions()), log.SCHEMA):
        heard.take(each)
    told = heard.told()
    streams = {one.stream_address: one for one in told if isinstance(one, StreamRow)}
    clients = {(one.stream_address, one.client_id): one for one in told if isinstance(one, ConsumerRow)}
    for address, said in network.said.items():
        confirms, row = said.confirms, streams[address]
        assert (row.confirmed, row.indexes) == (len(confirms), len(set(confirms)))
        assert (row.first_index, row.last_index) == (min(confirms, default=None), max(confirms, default=None))
        assert row.delivered == sum(map(len, said.came.values()))
        for client in said.saved:
            known, came = clients[address, client], Counter(said.came[client])
            assert (known.delivered_messages, known.delivered) == (len(came), max(came, default=None))
            assert known.redelivered == came.total() - len(came)
            assert (known.saved or 0) == said.saved[client]
            assert known.latest == max(confirms, default=None)
            if not network.retained and known.position is not None:
                assert known.lag == sum(index >= known.position for index in confirms)


def without_inits(seed: int, share: float) -> list[Row]:
    """A network of which as many Inits are lost as `share` says, each with its packet."""
    network, random = Network(seed), Random(seed)
    told = read_log(packets_of(network), log.starter(OckamOptions()), log.SCHEMA)
    messages = ((row["message"]["kind"], row["record_number"]) for row in told if row["row_kind"] == "message")
    inits = sorted({number for kind, number in messages if kind in INITS})
    lost = {number for number in inits if random.random() < share}
    return segments(landed_packets([one for at, one in enumerate(network.packets) if at not in lost]), PORT)


INITS = {"create_response", "create_partitioned_response"}
#: The service begins anew, and no Init says so before the client is told less.
ANEW = [60004, 60039]


@pytest.mark.parametrize("seed", [*ANEW, *fast_first(range(2000, 3000), count=6, most=12)])
@pytest.mark.parametrize("share", [0.5, 1])
def test_a_legal_network_without_inits_breaks_no_rule(seed: int, share: float) -> None:
    assert severe(without_inits(seed, share)) == set()


def tapped(seed: int, tap: Tap) -> list[Row]:
    return segments(landed_packets(captured(Network(seed).packets, {PORT}, tap)), PORT)


@pytest.mark.parametrize("seed", fast_first(range(1000), count=12, most=20))
def test_what_a_tap_makes_of_a_legal_network_breaks_no_rule(seed: int) -> None:
    assert severe(tapped(seed, any_tap(seed))) == set()


@pytest.mark.parametrize(
    "seed", [1, 94, 104, 800004, 810036, 810089, 820008, *fast_first(range(3000, 3300), count=4, most=12)]
)
def test_what_was_captured_only_when_it_was_sent_again_breaks_no_rule(seed: int) -> None:
    random = Random(f"again{seed}")
    share, after_ns = random.choice((5, 20, 40)), random.choice((20, 300, 3000)) * 10**6
    assert severe(sent_again(packets_of(Network(seed)), share, seed, after_ns)) == set()


#: What is captured otherwise than it was said.
OTHERWISE = {
    "answers before their requests": (144, any_tap(144)),
    "the last byte of an answer in a packet of its own, after the client saved": (73, Tap(server_late_ns=10**9)),
    "an answer on another connection, after the client saved": (258, Tap(server_late_ns=10**9, end=49)),
    "the first answers in reverse, before the last byte of the create": (245, any_tap(245)),
    "answers in reverse, before the last byte of their requests": (846, any_tap(846)),
    "a reset before the request that it cut off": (107, any_tap(5107)),
}


@pytest.mark.parametrize(("seed", "tap"), OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_captured_in_another_order_breaks_no_rule(seed: int, tap: Tap) -> None:
    assert severe(tapped(seed, tap)) == set()
