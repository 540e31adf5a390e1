"""Random networks that keep to the protocol: nobody is blamed, and what is known is what was said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codecs.wallaroo.log.test_one_sided import found
from tests.support.landed import landed_packets, read_log, segments
from tests.support.searches import fast_first
from tests.support.taps import any_tap, captured
from tests.support.wallaroo_networks import PORT, Network, Said, StreamSaid
from wirehouse_codecs.wallaroo.correlation.progress import Followed, StreamSession, follow
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import WallarooOptions

Row = dict[str, Any]


@pytest.mark.parametrize("seed", fast_first([171, *range(171), *range(172, 1_000)], 4, most=12))
def test_a_legal_network_breaks_no_rule(seed: int) -> None:
    assert found(segments(landed_packets(Network(seed).packets), PORT)) == set()


@pytest.mark.parametrize("seed", fast_first(range(1_000, 2_000), 4, most=12))
def test_what_a_tap_has_of_a_legal_network_breaks_no_rule(seed: int) -> None:
    packets = captured(Network(seed).packets, {PORT}, any_tap(seed))
    assert found(segments(landed_packets(packets), PORT)) == set()


def told(network: Network) -> list[Row]:
    rows = segments(landed_packets(network.packets), PORT)
    return read_log(rows, log.starter(WallarooOptions(), b"key"), schema.SCHEMA)


@pytest.mark.parametrize("seed", fast_first(range(400, 600), 4, most=15))
def test_sessions_and_streams_are_known_as_they_were(seed: int) -> None:
    network = Network(seed, aborts=False, restarts=False)
    rows = told(network)
    ports = {row["connection_id"]: row["connection"]["client_port"] for row in rows if row["row_kind"] == "connection"}
    known = {ports[row["connection_id"]]: row["session"] for row in rows if row["row_kind"] == "session"}
    assert known.keys() == network.said.keys()
    for port, said in network.said.items():
        session = known[port]
        assert session["instance_name"] == said.instance
        assert (session["initial_credits"] or 0, session["granted"], session["spent"]) == (
            said.initial,
            said.granted,
            said.spent,
        )
        assert session["credits"] in (None, said.granted - said.spent)
    streams = {
        (ports[row["connection_id"]], row["stream_id"]): row["stream"] for row in rows if row["row_kind"] == "stream"
    }
    assert streams.keys() >= {(port, stream) for port, said in network.said.items() for stream in said.streams}
    for (port, number), stream in streams.items():
        # OK may list a stream that the session has not notified.
        one = network.said[port].streams.get(int(number), StreamSaid())
        assert (stream["messages"], stream["last_sent"]) == (one.messages, one.last_sent)
        assert stream["last_acked"] == one.last_acked


@pytest.mark.parametrize("seed", fast_first(range(600, 700), 2, most=12))
def test_the_progress_of_a_stream_is_that_of_its_sessions(seed: int) -> None:
    network = Network(seed, aborts=False, restarts=False)
    followed: dict[tuple[str, int], Followed | None] = {}
    rows = [row for row in told(network) if row["row_kind"] == "stream" and row["stream"]["state"] != "intro"]
    for row in sorted(rows, key=lambda row: row["arrived_at_ns"]):
        key = row["stream"]["instance_name"], int(row["stream_id"])
        one = StreamSession(row["connection_id"], row["arrived_at_ns"], row["stream"]["highest_sent"], 0)
        followed[key] = follow(followed.get(key), one)
    sessions: dict[tuple[str, int], list[Said]] = {}
    for said in sorted(network.said.values(), key=lambda said: said.started_ns):
        for stream in said.streams:
            sessions.setdefault((said.instance, stream), []).append(said)
    assert followed.keys() == sessions.keys()
    for key, those in sessions.items():
        progress, (*sent, last) = followed[key], [said.streams[key[1]].highest_sent for said in those]
        assert progress is not None
        assert progress.newest.highest_sent == (None if last < 0 else last)
        assert progress.previous_last_sent == max((at for at in sent if at >= 0), default=None)
