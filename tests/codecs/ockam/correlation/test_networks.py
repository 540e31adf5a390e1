"""Random networks that keep to the protocol: nobody is blamed, and what is known is what was said."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.codecs.ockam.log.test_one_sided import severe
from tests.support.landed import landed_packets, read_log, segments
from tests.support.ockam_networks import PORT, Network
from tests.support.searches import fast_first
from tests.support.taps import any_tap, captured
from wirehouse_codecs.ockam.correlation.events import Heard
from wirehouse_codecs.ockam.correlation.streams import ConsumerRow, StreamRow
from wirehouse_codecs.ockam.log import log
from wirehouse_codecs.ockam.options import OckamOptions

Row = dict[str, Any]


def packets_of(network: Network) -> list[Row]:
    return segments(landed_packets(network.packets), PORT)


@pytest.mark.parametrize("seed", fast_first(range(1000), count=8, most=100))
def test_a_legal_network_breaks_no_rule(seed: int) -> None:
    assert severe(packets_of(Network(seed))) == set()


@pytest.mark.parametrize("seed", fast_first(range(1000, 1200), count=8, most=50))
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


#: Answers are captured earlier than what they answer: the first of a connection, and those of pushes.
EARLY = (15, 39, 57, 60, 71, 79, 85, 144)


@pytest.mark.parametrize("seed", EARLY)
def test_a_legal_network_of_two_clocks_breaks_no_rule(seed: int) -> None:
    packets = captured(Network(seed).packets, {PORT}, any_tap(seed))
    assert severe(segments(landed_packets(packets), PORT)) == set()
