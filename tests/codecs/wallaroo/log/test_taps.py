"""Whatever a tap loses, swaps or has late: who spoke by the protocol broke no rule."""

from __future__ import annotations

from functools import cache

import pytest

from tests.codecs.wallaroo.log.test_one_sided import found
from tests.support.landed import landed_packets, segments
from tests.support.searches import fast_first
from tests.support.taps import STRETCHES, any_tap, captured, joined
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.wallaroo.dialects import DIALECTS
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
