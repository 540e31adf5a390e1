"""Rules with a number in them: what keeps a rule at its very edge, and what breaks it by one.

The bytes are written here from the specification, by no code that the codec or the simulator has.
"""

from __future__ import annotations

import hashlib

import nacl.signing
import pytest

from tests.support.landed import landed_packets
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.logs.inspection import VIOLATION
from wirehouse_codecs.simulate.script import Close, Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

PORT, SECOND = 9_000, 10**9
CLIENT, SERVER = Direction.CLIENT, Direction.SERVER
KEY = nacl.signing.SigningKey(bytes(range(32)))
AUTHOR = bytes(KEY.verify_key)
MOST = 2**64 - 1
#: A side, its stream and what is written to it; of no stream: packets of bymux as they are.
Step = tuple[Direction, int | None, bytes]
PAYLOAD = b"12345"


def v(number: int) -> bytes:
    """A VarU64."""
    size = (number.bit_length() + 7) // 8
    return bytes([number]) if number < 248 else bytes([247 + size]) + number.to_bytes(size, "big")


def control(side: Direction, data: bytes) -> Step:
    return side, 0, data


def data(packet: bytes) -> Step:
    """The server sends data."""
    return SERVER, 1, packet


def bymux(side: Direction, packet: bytes) -> Step:
    return side, None, packet


def credit(amount: int) -> Step:
    return control(SERVER, b"\0" + v(amount))


def propose(number: int = 0, start: int = 1, lower: int = 1, end: int = 1, upper: int = 1, **sizes: int) -> Step:
    """The client asks for all of a range, to its end; flags say that payloads are mandatory."""
    least, most = sizes.get("least", 0), sizes.get("most", MOST)
    fixed = v(number) + AUTHOR + v(0) + v(start) + v(lower) + v(least) + v(most)
    expected = b"" if lower == 1 else b"\0\x40" + bytes(64)
    limit = sizes.get("limit")
    first, rest = (0xF1, b"") if limit is None else (0xD1, v(limit))
    return control(CLIENT, bytes([sizes.get("first", first)]) + fixed + expected + rest + v(end) + v(upper))


def adjust(flags: int, *numbers: int, side: Direction = CLIENT) -> Step:
    return control(side, bytes([flags]) + v(0) + b"".join(map(v, numbers)))


CONFIRM = adjust(0x60, side=SERVER)
ASKED = (credit(1), propose(), CONFIRM)
SWITCH = data(b"\0" + v(0))
UNSIGNED = b"\0" + AUTHOR + v(0) + v(1) + v(len(PAYLOAD)) + b"\0\x40" + hashlib.blake2b(PAYLOAD).digest()
#: Of entry 1: what author, log id and number leave.
METADATA = data(b"\x80" + UNSIGNED[35:] + KEY.sign(UNSIGNED).signature)
SENT = (*ASKED, SWITCH, METADATA)


def asked(**numbers: int) -> tuple[Step, ...]:
    return credit(1), propose(**numbers)


def told(*steps: Step, window: int = 1024, data_credit: int = 1 << 20) -> list[str]:
    """The rules that are broken, without notes."""
    setup = b"\0" + v(window) + v(window)
    granted = b"\x03\x01" + data_credit.to_bytes(8, "big")
    sent = [Send(SECOND, CLIENT, setup + granted), Send(SECOND, SERVER, setup + granted)]
    for number, (side, stream, written) in enumerate(steps, 2):
        head = b"" if stream is None else b"\x21" + bytes([stream]) + len(written).to_bytes(2, "big")
        sent.append(Send(number * SECOND, side, head + written))
    ends = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT)
    script = Conversation(*ends, 0, [*sent, Close((len(steps) + 9) * SECOND, CLIENT)])
    rows = inspect(landed_packets(packets(script)), PORT)
    found = [row["rule"] for kind, row in rows if kind == VIOLATION and row["severity"] == "violation"]
    return [rule.removeprefix("bamboo.") for rule in found]


def raw(payload: bytes) -> Step:
    return data(b"\x08" + v(len(payload)) + payload)


def lz(size: int, compressed: bytes) -> Step:
    return data(b"\x09" + v(size) + v(len(compressed)) + compressed)


ABC = b"\x03123"
#: Rule: what keeps it at its edge, and what breaks it.
EDGES: dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]] = {
    "unknown_type": ((bymux(CLIENT, b"\xa0\x00"),), (bymux(CLIENT, b"\xc0\x00"),)),
    "unknown_stream": ((bymux(CLIENT, b"\x40\x01"),), (bymux(CLIENT, b"\x40\x02"),)),
    "credit_overflow": (
        (bymux(CLIENT, b"\x03\x01" + (MOST - (1 << 20)).to_bytes(8, "big")),),
        (bymux(CLIENT, b"\x03\x01" + (MOST - (1 << 20) + 1).to_bytes(8, "big")),),
    ),
    "credit_on_infinite": ((bymux(CLIENT, b"\x00\x00\x00"),), (bymux(CLIENT, b"\x00\x00\x01"),)),
    "create_without_credit": (
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x30\x02")),
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x30\x02"), bymux(CLIENT, b"\x30\x04")),
    ),
    "stream_id_parity": (
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x30\x02")),
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x30\x03")),
    ),
    "stream_id_in_use": (
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x30\x02")),
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x30\x00")),
    ),
    "unused_control_byte": ((credit(1), propose(first=0xB0)), (credit(1), propose(first=0x9F))),
    "seqnum_zero": (asked(start=1), asked(start=0)),
    "proposal_credit_overflow": ((credit(MOST),), (credit(MOST), credit(1))),
    "proposal_without_credit": ((credit(1), propose()), (credit(1), propose(), propose(2, 3, 1, 3, 3))),
    "id_parity": ((credit(1), propose(0)), (credit(1), propose(1))),
    "id_in_use": (
        (credit(2), propose(0), propose(2, 4, 1, 4, 4)),
        (credit(2), propose(0), propose(0, 4, 1, 4, 4)),
    ),
    "confirmation_without_eagerness": (asked() + (CONFIRM,), asked() + (adjust(0x10, side=SERVER),)),
    "end_before_start": (asked(start=4, end=4, upper=4), asked(start=4, end=3, upper=4)),
    "upper_info_before_end": (asked(start=4, end=4, upper=4), asked(start=4, end=4, upper=3)),
    "lower_info_after_start": (asked(start=4, lower=4, end=4, upper=4), asked(start=4, lower=5, end=4, upper=4)),
    "lower_info_not_in_pool": (asked(start=5, lower=4, end=5, upper=5), asked(start=5, lower=3, end=5, upper=5)),
    "upper_info_not_in_pool": (asked(start=5, end=5, upper=8), asked(start=5, end=5, upper=9)),
    "min_payload_lowered": (asked(least=5) + (CONFIRM, adjust(2, 5)), asked(least=5) + (CONFIRM, adjust(2, 4))),
    "max_payload_raised": (asked(most=5) + (CONFIRM, adjust(1, 5)), asked(most=5) + (CONFIRM, adjust(1, 6))),
    "cancel_or_adjust_inactive": ((*asked(), adjust(0x20)), (*asked(), control(CLIENT, b"\x20" + v(2)))),
    "unused_data_byte": ((*SENT, data(b"\x10")), (*SENT, data(b"\x11"))),
    "switch_inactive": ((*ASKED, SWITCH), (*ASKED, data(b"\0" + v(2)))),
    "data_without_switch": ((*ASKED, SWITCH, METADATA), (*ASKED, METADATA)),
    "out_of_turn": ((*SENT, raw(PAYLOAD)), (*SENT, METADATA)),
    "past_end": ((*SENT, raw(PAYLOAD), data(b"\x03" + v(0))), (*SENT, raw(PAYLOAD), data(b"\x03" + v(1)))),
    "payload_overrun": ((*SENT, raw(PAYLOAD)), (*SENT, raw(PAYLOAD + b"6"))),
    "offset_zero": ((*SENT, lz(4, ABC + b"\x81\x01")), (*SENT, lz(4, ABC + b"\x81\x00"))),
    "offset_before_start": ((*SENT, lz(4, ABC + b"\x81\x03")), (*SENT, lz(4, ABC + b"\x81\x04"))),
    "lzfoo_truncated": ((*SENT, lz(3, ABC)), (*SENT, lz(3, ABC[:-1]))),
    "length_mismatch": ((*SENT, lz(3, ABC)), (*SENT, lz(4, ABC))),
    "skip_size_untrue": (
        (*asked(least=6), CONFIRM, SWITCH, METADATA, data(b"\x04")),
        (*asked(least=5), CONFIRM, SWITCH, METADATA, data(b"\x04")),
    ),
    "eagerness_ignored": (
        (*asked(limit=5), CONFIRM, SWITCH, METADATA, raw(PAYLOAD)),
        (*asked(limit=4), CONFIRM, SWITCH, METADATA, raw(PAYLOAD)),
    ),
    "skip_of_mandatory_payload": (
        (*asked(first=0xF0), CONFIRM, SWITCH, METADATA, data(b"\x06")),
        (*asked(first=0xF1), CONFIRM, SWITCH, METADATA, data(b"\x06")),
    ),
    "apology_without_data": ((*SENT, raw(PAYLOAD[:1]), data(b"\x10")), (*ASKED, SWITCH, data(b"\x10"))),
    "invalid_data_in_safe_mode": ((*SENT, raw(PAYLOAD)), (*SENT, raw(b"12346"))),
}


@pytest.mark.parametrize("rule", EDGES)
def test_what_keeps_a_rule_at_its_edge_breaks_none(rule: str) -> None:
    # An apology for metadata that is right has a rule of its own.
    assert set(told(*EDGES[rule][0])) <= ({"apology_for_valid_data"} if rule == "unused_data_byte" else set())


@pytest.mark.parametrize("rule", EDGES)
def test_one_step_beyond_the_edge_breaks_the_rule_alone(rule: str) -> None:
    assert told(*EDGES[rule][1]) == [rule]


def test_windows_and_credit_have_edges_too() -> None:
    reaches = (*SENT, lz(4, ABC + b"\x81\x03"))
    assert told(*reaches, window=3) == []
    assert told(*reaches, window=2) == ["window_exceeded"]
    assert told(*SENT, lz(1, b"\x011"), window=1) == []
    assert told(*SENT, lz(1, b"\x011"), window=0) == ["compression_without_window"]
    written = sum(len(step[2]) for step in SENT if step[1] == 1)
    assert told(*SENT, data_credit=written) == []
    assert told(*SENT, data_credit=written - 1) == ["write_without_credit"]


def test_they_are_edges_of_rules() -> None:
    assert set(EDGES) <= set(RULE)
