"""Cases that are written by hand from the specification, and what a tap may have of them.

Every network may lose, delay, swap or cut packets. Whatever it does, no other rule is reported than the one that is
broken, and none where none is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import pytest

from tests.support.bamboo_by_hand import (
    APOLOGY,
    CLOSE,
    CREDIT,
    GREEDY,
    PING,
    PONG,
    PORT,
    SAFE,
    STOP_READ,
    UNAVAILABLE,
    WRITE,
    Chain,
    Talk,
    bymux,
    confirm,
    literal,
    lz,
    raw,
    shown,
    switch,
)
from tests.support.bamboo_networks import CLIENT, SECOND, SERVER
from tests.support.inspecting import inspected
from tests.support.landed import landed_packets
from tests.support.taps import Tap, captured
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.logs.inspection import VIOLATION
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Send
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_orchestration.evidence.inspection import UnreadableCaptureError

BEGIN = 1_700_000_000 * SECOND
LOG = Chain().grow(14)
RIGHT = {seq: raw(payload) for seq, payload in LOG.payloads.items()}
#: As long as the right one.
WRONG = {seq: raw(b"?" * len(payload)) for seq, payload in LOG.payloads.items()}
#: Of a TCP packet over IPv4 in an Ethernet frame.
ACKNOWLEDGMENT = slice(42, 46)
#: Skips 0 bytes.
NOTHING = b"\x07\0"


def found(packets: Iterable[CapturedPacket], *, notes: bool = False) -> list[str]:
    rows = inspect(landed_packets(packets), PORT)
    broken = (row for kind, row in rows if kind == VIOLATION and (notes or row["severity"] != "note"))
    return [row["rule"].removeprefix("bamboo.") for row in broken]


@dataclass(frozen=True)
class Case:
    """What the server sends for a proposal."""

    data: Sequence[bytes]
    rule: str | None = None
    mode: int = SAFE
    start: int = 1
    end: int | None = 4
    offset: int | None = None
    payload_only: bool = True
    sparse: bool = False

    def proposal(self, number: int) -> bytes:
        return LOG.propose(
            number, self.start, self.end, offset=self.offset, payload_only=self.payload_only, sparse=self.sparse
        )

    def over_one(self) -> list[CapturedPacket]:
        """The metadata came earlier on the same connection."""
        talk = Talk(modes=(self.mode, self.mode)).agreed(LOG.propose(0, 1, 4))
        for seq in range(1, 5):
            talk.data(SERVER, LOG.metadata(seq), UNAVAILABLE)
        return talk.agreed(self.proposal(2), 2).data(SERVER, *self.data).packets()

    def over_two(self) -> list[CapturedPacket]:
        """It came over another connection."""
        later = Talk(1, BEGIN + 100 * SECOND, modes=(self.mode, self.mode)).agreed(self.proposal(0))
        return [*shown(LOG, range(1, 5), 0, BEGIN).packets(), *later.data(SERVER, *self.data).packets()]


_OFFSET: dict[str, Any] = {"start": 2, "offset": 0, "payload_only": False}
CASES = {
    "right": Case([RIGHT[1], RIGHT[2], RIGHT[3], RIGHT[4]]),
    "in parts, one compressed": Case(
        [raw(LOG.payloads[1][:4]), raw(LOG.payloads[1][4:]), lz(9, literal(LOG.payloads[2])), UNAVAILABLE, RIGHT[4]]
    ),
    "wrong": Case([RIGHT[1], WRONG[2], RIGHT[3], RIGHT[4]], "invalid_data_in_safe_mode"),
    "wrong at the end": Case([RIGHT[1], RIGHT[2], RIGHT[3], WRONG[4]], "invalid_data_in_safe_mode"),
    "wrong, compressed": Case([RIGHT[1], lz(9, literal(b"?" * 9)), RIGHT[3]], "invalid_data_in_safe_mode"),
    "wrong, no apology": Case([RIGHT[1], WRONG[2], RIGHT[3]], "invalid_data_not_apologised", GREEDY),
    "wrong, apology": Case([RIGHT[1], WRONG[2], APOLOGY, RIGHT[2], RIGHT[3]], None, GREEDY),
    "wrong at the end, greedy": Case([RIGHT[1], RIGHT[2], RIGHT[3], WRONG[4]], None, GREEDY),
    "apology for a right one": Case([RIGHT[1], APOLOGY, RIGHT[1]], "apology_for_valid_data", GREEDY),
    "apology for a prefix": Case([raw(LOG.payloads[1][:4]), APOLOGY, RIGHT[1], RIGHT[2]], None, GREEDY),
    "a byte too many": Case([RIGHT[1], raw(LOG.payloads[2] + b"!")], "payload_overrun"),
    "a byte less, then the next one": Case([RIGHT[1], raw(LOG.payloads[2][:-1]), RIGHT[3]], "payload_overrun"),
    "sparse": Case([RIGHT[1], RIGHT[4]], sparse=True),
    "sparse, wrong": Case([RIGHT[1], WRONG[4]], "invalid_data_in_safe_mode", sparse=True),
    "endless, wrong": Case([RIGHT[1], WRONG[2]], "invalid_data_in_safe_mode", end=None),
    "past the end": Case([RIGHT[1], RIGHT[2], RIGHT[3]], "past_end", end=2),
    "notified past the end": Case([RIGHT[1], b"\x03\2"], "past_end", end=2),
    "skipped to the end": Case([RIGHT[1], UNAVAILABLE], end=2),
    "skipped past the end": Case([RIGHT[1], UNAVAILABLE, UNAVAILABLE], "past_end", end=2),
    "metadata among payloads alone": Case([RIGHT[1], LOG.metadata(2)], "out_of_turn"),
    "offset": Case([RIGHT[2], LOG.metadata(3), RIGHT[3], LOG.metadata(4), RIGHT[4]], **_OFFSET),
    "offset, wrong": Case([WRONG[2], LOG.metadata(3), RIGHT[3]], "invalid_data_in_safe_mode", **_OFFSET),
    "offset, no metadata": Case([RIGHT[2], RIGHT[3]], "out_of_turn", **_OFFSET),
    "offset, metadata too early": Case([raw(LOG.payloads[2][:3]), LOG.metadata(3)], "out_of_turn", **_OFFSET),
    "offset, rest skipped": Case([raw(LOG.payloads[2][:3]), UNAVAILABLE, LOG.metadata(3), RIGHT[3]], **_OFFSET),
    "offset 3": Case([raw(LOG.payloads[2][3:]), LOG.metadata(3), RIGHT[3]], **{**_OFFSET, "offset": 3}),
    "offset 3, overlong": Case([RIGHT[2], LOG.metadata(3)], "payload_overrun", **{**_OFFSET, "offset": 3}),
    "nothing is skipped": Case(
        [NOTHING, RIGHT[1], NOTHING, WRONG[2], NOTHING, APOLOGY, NOTHING, RIGHT[2], NOTHING], None, GREEDY, end=2
    ),
    "nothing is skipped where metadata is due": Case([RIGHT[2], NOTHING, LOG.metadata(3), RIGHT[3]], **_OFFSET),
}


@pytest.mark.parametrize("name", CASES)
def test_payloads_are_judged_by_metadata_of_any_connection(name: str) -> None:
    case = CASES[name]
    wanted = [case.rule] if case.rule else []
    assert found(case.over_one()) == wanted
    assert found(case.over_two()) == wanted


def test_nothing_is_judged_by_metadata_that_was_not_captured() -> None:
    for name, case in CASES.items():
        only = Talk(1, modes=(case.mode, case.mode)).agreed(case.proposal(0)).data(SERVER, *case.data).packets()
        # These need no metadata.
        told = [case.rule] if name in ("notified past the end",) else []
        assert found(only) in (told, []), name


def variants(packets: Sequence[CapturedPacket]) -> Iterator[list[CapturedPacket]]:
    """What taps may have of `packets`."""
    listed = list(packets)
    for at in range(len(listed)):
        yield listed[:at] + listed[at + 1 :]
        yield listed[:at] + listed[at + 3 :]
        yield listed[at:]
        yield listed[: at + 1]
        swapped = listed[at : at + 2]
        if len(swapped) == 2:
            first, second = swapped
            yield [
                *listed[:at],
                second._replace(ts_ns=first.ts_ns),
                first._replace(ts_ns=second.ts_ns),
                *listed[at + 2 :],
            ]
    taps = [Tap(100), Tap(server_lost=100), *(Tap(server_late_ns=late) for late in (SECOND, -SECOND, 10**7, -(10**7)))]
    for tap in [*taps, *(Tap(10, 10, swapped=10, seed=seed) for seed in range(10))]:
        yield captured(listed, {PORT}, tap)


def assert_only(rule: str | None, packets: Sequence[CapturedPacket], most: int, seed: object) -> None:
    """No tap has a finding of another rule."""
    taps = list(variants(packets))
    for chosen in Random(str(seed)).sample(taps, min(most, len(taps))):
        assert found(chosen) in ([], [rule] if rule else [])


@pytest.mark.property
@pytest.mark.parametrize("name", CASES)
def test_a_tap_adds_no_finding(name: str) -> None:
    assert_only(CASES[name].rule, CASES[name].over_one(), 4, name)
    assert_only(CASES[name].rule, CASES[name].over_two(), 4, name)


@pytest.mark.long
@pytest.mark.property
@pytest.mark.parametrize("name", CASES)
def test_no_tap_adds_a_finding(name: str) -> None:
    assert_only(CASES[name].rule, CASES[name].over_one(), 10_000, name)
    assert_only(CASES[name].rule, CASES[name].over_two(), 10_000, name)


def test_a_session_that_another_rule_ended_is_judged_up_to_there() -> None:
    talk = Talk(1, BEGIN + 100 * SECOND).agreed(LOG.propose(0, 1, 4, payload_only=True))
    talk.data(SERVER, RIGHT[1], WRONG[2]).agreed(LOG.propose(2, 5, 5, lower=5), 2)
    talk.data(SERVER, LOG.metadata(5), LOG.metadata(6))
    packets = [*shown(LOG, range(1, 5), 0, BEGIN).packets(), *talk.packets()]
    assert sorted(found(packets)) == ["invalid_data_in_safe_mode", "out_of_turn"]


def test_an_empty_payload_takes_one_packet() -> None:
    log = Chain(seed=2).add(b"").add(b"").add(b"x").add(b"")
    earlier = shown(log, range(1, 5), 0, BEGIN).packets()
    for data in ([raw(b""), NOTHING, raw(b"x"), UNAVAILABLE], [raw(b""), raw(b""), raw(b"x"), b"\2"]):
        later = Talk(1, BEGIN + 100 * SECOND).agreed(log.propose(0, 1, 4, payload_only=True)).data(SERVER, *data)
        assert found([*earlier, *later.packets()]) == []


# bymux


def test_a_global_ping_or_pong_after_the_global_end() -> None:
    def talk(*said: tuple[Direction, bytes]) -> list[CapturedPacket]:
        one = Talk()
        for side, data in said:
            one.writes(side, data)
        return one.packets()

    close, stop, ping, pong = (bymux(kind, None) for kind in (CLOSE, STOP_READ, PING, PONG))
    both = [(CLIENT, close), (SERVER, stop), (CLIENT, stop), (SERVER, close)]
    for late in (ping, pong):
        assert found(talk(*both, (CLIENT, late))) == ["ping_after_end"]
        assert found(talk(*both, (SERVER, late))) == ["ping_after_end"]
        # The side itself has not ended both.
        assert found(talk(both[0], (CLIENT, late), *both[1:])) == []
        assert found(talk(both[2], (CLIENT, late), both[3], both[0], both[1])) == []
        assert found(talk((CLIENT, close), (CLIENT, stop), (SERVER, late), (SERVER, stop), (SERVER, close))) == []
        # Streams go on.
        assert found(talk(*both, (CLIENT, bymux(PING, 1)), (SERVER, bymux(PONG, 1)))) == []
    for packets in variants(talk(*both, (CLIENT, ping))):
        assert found(packets) in ([], ["ping_after_end"])
    for packets in variants(talk(*both, (CLIENT, bymux(PING, 1)))):
        assert found(packets) == []


# LZFoo


@pytest.mark.parametrize(
    ("offset", "notes"),
    [(b"\x09", []), (b"\xf8\x09", ["noncanonical_varu64"]), (b"\xf9\0\x09", ["noncanonical_varu64"])],
)
def test_an_offset_that_is_longer_than_needed_is_noted(offset: bytes, notes: list[str]) -> None:
    log = Chain(seed=3).add(b"payload 1").add(b"payload 2")
    copied = lz(9, b"\x88" + offset, literal(b"2"))
    talk = Talk().agreed(log.propose(0, 1, 2))
    talk.data(SERVER, log.metadata(1), lz(9, literal(b"payload 1")), log.metadata(2), copied)
    assert found(talk.packets(), notes=True) == notes


# Forks


def test_branches_over_connections_are_one_fork() -> None:
    other = LOG.branch(4).grow(12, b"other")
    packets = [*shown(LOG, range(1, 11), 0, BEGIN).packets()]
    packets += shown(other, range(1, 13), 1, BEGIN + 100 * SECOND).packets()
    assert found(packets) == ["fork"]
    again = shown(other.branch(7).grow(12, b"third"), range(1, 13), 2, BEGIN + 200 * SECOND).packets()
    assert found([*packets, *again]) == ["fork", "fork"]


def lines(log: Chain, seqs: Iterable[int]) -> bytes:
    return b"".join(
        json.dumps({"entry_hex": log.entries[seq].hex(), "payload_hex": log.payloads[seq].hex()}).encode() + b"\n"
        for seq in seqs
    )


def of_file(path: Path, data: bytes) -> list[tuple[str, str]]:
    path.write_bytes(data)
    rows = inspected(str(path), "bamboo")
    return [(row["rule"].removeprefix("bamboo."), row["message"]) for kind, row in rows if kind == VIOLATION]


@pytest.mark.property
def test_a_long_tail_that_is_rewritten_is_one_fork_at_the_position_where_it_parts(tmp_path: Path) -> None:
    log = Chain(seed=4).grow(1_500)
    other = log.branch(100).grow(1_500, b"other")
    wanted = [("fork", "at entry 101, proven by entries")]
    assert of_file(tmp_path / "a.jsonl", lines(log, range(1, 1_501)) + lines(other, range(101, 1_501))) == wanted
    backwards = lines(other, range(1_500, 100, -1)) + lines(log, range(1_500, 0, -1))
    assert of_file(tmp_path / "b.jsonl", backwards) == wanted
    binary = b"".join([*(log.entries[seq] for seq in range(1, 300)), *(other.entries[seq] for seq in range(101, 300))])
    assert of_file(tmp_path / "c.entries", binary) == wanted
    assert of_file(tmp_path / "d.jsonl", lines(log, range(1, 300)) * 2) == []


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (b'{"entry":"00"}\n', "no entry_hex"),
        (b'{"payload_hex":"00"}\n', "no entry_hex"),
        (b'{"entry_hex":5}\n', "entry_hex and payload_hex are no texts"),
    ],
)
def test_a_file_that_is_refused_says_what_its_first_line_lacks(tmp_path: Path, text: bytes, lacks: str) -> None:
    with pytest.raises(UnreadableCaptureError, match=f"its first line: {lacks}"):
        of_file(tmp_path / "a.jsonl", text)
    assert of_file(tmp_path / "b.jsonl", lines(LOG, [1]) + text) == []
    assert of_file(tmp_path / "c.jsonl", b"\n\n") == []


# Segments


@pytest.mark.property
def test_interleaved_segments_of_a_byte_cost_little(tmp_path: Path) -> None:
    """A segment costs at most 0.1 ms. The limit leaves room for slow machines."""
    talk = Talk(step_ns=10**5).agreed(LOG.propose(0, 1, 14))
    said = {
        CLIENT: bymux(WRITE, 0, 4_000, (b"\0" + bytes([1])) * 2_000),
        SERVER: b"".join(bymux(WRITE, 1, 2, b"\0\0") for _ in range(800)),
    }
    segments = 0
    for pair in zip(said[CLIENT], said[SERVER], strict=False):
        for side, byte in zip((CLIENT, SERVER), pair, strict=True):
            talk.writes(side, bytes([byte]))
            segments += 1
    packets = landed_packets(talk.packets())
    batches = list(packets)
    begin = process_time()
    assert sum(1 for _ in inspect(batches, PORT)) > 100
    assert (process_time() - begin) / segments < 0.001


def test_credit_that_was_given_in_an_unknown_order_breaks_no_rule() -> None:
    """The server's Credit is a retransmission that acknowledges the Write for which it was given."""
    talk = Talk()
    talk.events[3] = Send(talk.events[3].ts_ns, SERVER, bymux(CREDIT, 1, 1))
    talk.control(SERVER, LOG.propose(1, 1, 3)).control(CLIENT, confirm(1))
    credit = bymux(CREDIT, 1, 100)
    written = bymux(WRITE, 1, 2, switch(1))
    talk.writes(SERVER, credit).writes(CLIENT, written)
    packets = talk.packets()
    at = next(number for number, packet in enumerate(packets) if packet.data.endswith(credit))
    data = packets[at].data
    acknowledgment = int.from_bytes(data[ACKNOWLEDGMENT], "big") + len(written)
    again = data[: ACKNOWLEDGMENT.start] + acknowledgment.to_bytes(4, "big") + data[ACKNOWLEDGMENT.stop :]
    packets[at] = packets[at]._replace(data=again)
    assert found(packets) == []
