"""Random networks that keep to the protocol: nobody is blamed, and what is known is what was sent."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from tests.support.bamboo_networks import CLIENT, PORT, SERVER, KnownEntry, Network
from tests.support.landed import cut, landed_packets, read_log, segments
from tests.support.searches import fast_first
from tests.support.taps import any_tap, captured
from wirehouse_codecs.bamboo.correlation.log_state import Changes, judge
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.log.schema import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.logs import inspection

Row = dict[str, Any]


def blamed(packets: Any) -> list[str]:
    rows = inspect(landed_packets(packets), PORT)
    return [row["rule"] for kind, row in rows if kind == inspection.VIOLATION and row["severity"] != "note"]


@pytest.mark.parametrize("seed", fast_first(range(1_000), 4, most=12))
def test_a_legal_network_breaks_no_rule(seed: int) -> None:
    assert blamed(Network(seed).packets) == []


@pytest.mark.parametrize("seed", fast_first(range(1_000, 2_000), 4, most=12))
def test_what_a_tap_has_of_a_legal_network_breaks_no_rule(seed: int) -> None:
    assert blamed(captured(Network(seed).packets, {PORT}, any_tap(seed))) == []


#: An entry is sent again on a connection that lacks one of its links, which the first sending has.
LINKS_ELSEWHERE = (720_011, 720_032)


@pytest.mark.parametrize("seed", [*LINKS_ELSEWHERE, *fast_first(range(2_000, 2_400), 4, most=15)])
def test_entries_and_logs_are_those_of_the_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network, logs = Network(seed), list[Changes]()

    def judged(rows: Any) -> list[Changes]:
        logs.extend(judge(rows))
        return logs

    monkeypatch.setattr("wirehouse_codecs.bamboo.correlation.packet_entries.judge", judged)
    told = [row for kind, row in inspect(landed_packets(network.packets), PORT) if kind == inspection.ENTRY]
    found = [
        KnownEntry(row["author"], int(row["log_id"]), int(row["seq"]), row["data"], row["verdict"]) for row in told
    ]
    known = network.known()
    assert set(found) == known
    assert len(found) == len(known)
    for changes in logs:
        own = {one for one in known if (one.author, one.log_id) == (changes.first["author"], changes.first["log_id"])}
        signed, valid = ({one.seq for one in own if one.data}, {one.seq for one in own if one.verdict == "valid"})
        log = changes.log
        assert (log.entries, log.valid, log.invalid, log.unknown) == (len(own), len(valid), 0, len(own) - len(valid))
        assert (log.length, log.verified_up_to) == (max(signed, default=None), max(valid, default=None))
        missing = {seq for first, last in log.missing for seq in range(first, last + 1)}
        assert missing == set(range(1, max(signed, default=0))) - signed
        assert log.missing_entries == len(missing)


def rows_of(network: Network, packets: int | None) -> list[Row]:
    """The rows of the log, where every `packets` are a window of their own."""
    read = segments(landed_packets(network.packets), PORT)
    start = starter(BambooOptions())
    return read_log(read, start, SCHEMA) if packets is None else cut(read, start, SCHEMA, packets)


@pytest.mark.parametrize("packets", [None, 7])
@pytest.mark.parametrize("seed", fast_first(range(3_000, 3_400), 4, most=12))
def test_proposals_credits_and_payloads_are_those_of_the_model(seed: int, packets: int | None) -> None:
    network = Network(seed)
    rows = rows_of(network, packets)
    ports = {row["connection_id"]: row["connection"]["client_port"] for row in rows if row["row_kind"] == "connection"}
    proposals = {
        (ports[row["connection_id"]], row["proposal_number"]): row["proposal"] | {"id": row["proposal_id"]}
        for row in rows
        if row["row_kind"] == "proposal"
    }
    sessions = {ports[row["connection_id"]]: row["session"] for row in rows if row["row_kind"] == "session"}
    payloads: dict[tuple[int, int, int], tuple[bytes, bool, str | None]] = {}
    for row in rows:
        payload = row["message"] and row["message"]["payload"]
        if payload and row["message"]["seq"] is not None:
            where = ports[row["connection_id"]], row["proposal_number"], int(row["message"]["seq"])
            sent = row["message"]["data"] if payload["packets"] == 1 else payload["data"]
            payloads[where] = sent, payload["checked"], payload["rule"]
    for connection in network.connections:
        port = connection.client.port
        session = sessions[port]
        for side in (CLIENT, SERVER):
            about = session[side.value]
            left = connection.granted[side] - connection.proposed[side]
            assert (about["credit_granted"], about["credit"]) == (connection.granted[side], left)
            assert about["proposals"] == connection.proposed[side]
        assert session["open_proposals"] == len(connection.open)
        for number, one in enumerate(connection.proposals):
            told = proposals.pop((port, number))
            assert (told["id"], told["proposer"]) == (one.id, one.proposer.value)
            assert (told["author"], told["log_id"], told["start"]) == (one.log.author, one.log.log_id, one.start)
            assert (told["end"], told["upper_info"], told["offset"]) == (one.end, one.upper, one.offset)
            assert told["outcome"] == ("cancelled" if one.cancelled else None)
            for side in (CLIENT, SERVER):
                done = asdict(one.done) if side is one.sender else dict.fromkeys(asdict(one.done), 0)
                sent = told[side.value]["sent"]
                # Where a payload ends is known from its entry.
                unknown = one.payload_only or one.offset is not None
                assert sent.pop("payloads") in (range(done["payloads"] + 1) if unknown else [done["payloads"]])
                assert sent.items() <= done.items()
            for seq in one.whole:
                payload, checked, rule = payloads.pop((port, number, seq), (None, None, None))
                assert rule is None
                if seq in one.sent:
                    assert (payload, checked) == (one.log.payloads[seq], True)
                assert payload in (None, one.log.payloads[seq])
            # Those that begin at an offset.
            payloads.pop((port, number, one.start), None)
    assert not proposals
    assert not payloads
