"""Taps of legal traffic: clocks differ, packets are lost or swapped, a side is missing, the capture begins anywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter

import pytest

from tests.codecs.ockam.log.test_one_sided import CALM, LIVELY, severe
from tests.support.landed import landed_packets, segments
from tests.support.searches import fast_first
from tests.support.taps import STRETCHES, Tap, any_tap, captured, joined
from wirehouse_codecs.ockam.simulator.service import PORT
from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket

SHAPES = (
    LIVELY,
    replace(CALM, dialect="cbor32"),
    replace(LIVELY, interval_ms=0, poll_ms=10, seed=2),
    replace(LIVELY, dialect="cbor32", messages_per_publisher=4, restarts=3, service_restarts=3, seed=3),
    replace(LIVELY, burst_messages=50, resend_share=0.5, seed=4),
)
#: Answers are captured before the requests, and of those the last, or the first, come late.
EARLY_SERVER = Tap(server_late_ns=-50_000_000, begin=0, seed=132)
EARLY_ANSWERS = Tap(server_late_ns=-50_000_000, begin=1, end=54, seed=203)
#: What a hole held back comes in another order than it was sent in.
LOSSY = Tap(client_lost=10, server_lost=10, server_late_ns=50_000_000, seed=45)
TAPS = [(shape, any_tap(seed)) for shape in range(len(SHAPES)) for seed in range(shape, 300, len(SHAPES))]


@cache
def sent(config: SimulatorConfig) -> list[CapturedPacket]:
    return list(simulate(config))


@pytest.mark.parametrize(("shape", "tap"), fast_first(TAPS, by=lambda one: one[0], most=12), ids=str)
def test_what_a_tap_makes_of_legal_traffic_breaks_no_rule(shape: int, tap: Tap) -> None:
    packets = captured(sent(SHAPES[shape]), {PORT}, tap)
    assert severe(segments(landed_packets(packets), PORT)) == set()


@pytest.mark.parametrize(("shape", "tap"), [(2, EARLY_SERVER), (3, EARLY_ANSWERS)])
def test_an_answer_may_be_captured_before_its_request(shape: int, tap: Tap) -> None:
    packets = captured(sent(SHAPES[shape]), {PORT}, tap)
    assert severe(segments(landed_packets(packets), PORT)) == set()


def test_what_a_client_had_received_may_come_after_its_save() -> None:
    packets = captured(sent(LIVELY), {PORT}, LOSSY)
    assert severe(segments(landed_packets(packets), PORT)) == set()


@pytest.mark.parametrize("first", [3, 5, 7, 9, 11])
@pytest.mark.parametrize("shape", [1, 3])
def test_where_a_side_begins_is_not_known_without_its_syn(shape: int, first: int) -> None:
    kept = []
    for _, own in groupby(segments(landed_packets(sent(SHAPES[shape])), PORT), itemgetter("flow")):
        flow = list(own)
        # Of each connection its SYN, and what comes after the handshake and the first messages.
        kept += [flow[0], *flow[first:]]
    assert severe(kept) == set()


@pytest.mark.parametrize(("first", "last"), STRETCHES)
def test_who_said_first_what_comes_again_at_once_is_not_known(first: int, last: int) -> None:
    for config in SHAPES[:2]:
        rows = segments(landed_packets(sent(config)), PORT)
        assert severe(joined(rows, first, last)) == set()
