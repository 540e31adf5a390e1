"""Every rule: what keeps it at its very edge, and what breaks it by one step.

The bytes are written here from the specification, by no code that the codec or the simulator has.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import nacl.signing
import pytest

from tests.support.inspecting import inspected
from tests.support.landed import landed_packets
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.logs.inspection import QUARANTINE, VIOLATION
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


def propose(
    number: int = 0,
    start: int = 1,
    lower: int = 1,
    end: int = 1,
    upper: int = 1,
    expects: bytes = bytes(64),
    **sizes: int,
) -> Step:
    """The client asks for all of a range, to its end; flags say that payloads are mandatory."""
    least, most = sizes.get("least", 0), sizes.get("most", MOST)
    fixed = v(number) + AUTHOR + v(0) + v(start) + v(lower) + v(least) + v(most)
    expected = b"" if lower == 1 else b"\0\x40" + expects
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


def asked(**numbers: Any) -> tuple[Step, ...]:
    return credit(1), propose(**numbers)


def told(
    *steps: Step,
    window: int = 1024,
    data_credit: int = 1 << 20,
    greedy: bool = False,
    severities: tuple[str, ...] = ("violation",),
) -> list[str]:
    """The rules that are broken, of these severities."""
    setup = (b"\3" if greedy else b"\0") + v(window) + v(window)
    granted = b"\x02\x01" + data_credit.to_bytes(4, "big")
    sent = [Send(SECOND, CLIENT, setup + granted), Send(SECOND, SERVER, setup + granted)]
    for number, (side, stream, written) in enumerate(steps, 2):
        wide = len(written) > 255
        head = bytes([0x20 + wide, stream or 0]) + len(written).to_bytes(1 + wide, "big")
        head = b"" if stream is None else head
        sent.append(Send(number * SECOND, side, head + written))
    ends = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT)
    script = Conversation(*ends, 0, [*sent, Close((len(steps) + 9) * SECOND, CLIENT)])
    rows = inspect(landed_packets(packets(script)), PORT)
    found = [row["rule"] for kind, row in rows if kind == VIOLATION and row["severity"] in severities]
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
    "write_after_close": (
        (bymux(CLIENT, b"\x80\x01"),),
        (bymux(CLIENT, b"\x80\x01"), bymux(CLIENT, b"\x20\x01\x00")),
    ),
    "close_twice": (
        (bymux(CLIENT, b"\x80\x00"), bymux(CLIENT, b"\x80\x01")),
        (bymux(CLIENT, b"\x80\x01"), bymux(CLIENT, b"\x80\x01")),
    ),
    "stopread_twice": (
        (bymux(CLIENT, b"\xa0\x00"), bymux(CLIENT, b"\xa0\x01")),
        (bymux(CLIENT, b"\xa0\x01"), bymux(CLIENT, b"\xa0\x01")),
    ),
    "credit_after_stopread": (
        (bymux(CLIENT, b"\x00\x01\x01"), bymux(CLIENT, b"\xa0\x01")),
        (bymux(CLIENT, b"\xa0\x01"), bymux(CLIENT, b"\x00\x01\x01")),
    ),
    "global_credit_overflow": (
        (bymux(CLIENT, b"\x13" + MOST.to_bytes(8, "big")),),
        (bymux(CLIENT, b"\x13" + MOST.to_bytes(8, "big")), bymux(CLIENT, b"\x10\x01")),
    ),
    "global_credit_after_stopread": (
        (bymux(CLIENT, b"\x10\x01"), bymux(CLIENT, b"\xb0")),
        (bymux(CLIENT, b"\xb0"), bymux(CLIENT, b"\x10\x01")),
    ),
    "create_after_global_close": (
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x30\x02"), bymux(CLIENT, b"\x90")),
        (bymux(SERVER, b"\x10\x01"), bymux(CLIENT, b"\x90"), bymux(CLIENT, b"\x30\x02")),
    ),
    "ping_after_end": (
        (bymux(CLIENT, b"\x80\x01"), bymux(CLIENT, b"\x40\x01"), bymux(CLIENT, b"\xa0\x01")),
        (bymux(CLIENT, b"\x80\x01"), bymux(CLIENT, b"\xa0\x01"), bymux(CLIENT, b"\x40\x01")),
    ),
    "cancel_or_adjust_after_cancel": (
        (*ASKED, adjust(0x20), control(CLIENT, b"\x80" + v(0))),
        (*ASKED, control(CLIENT, b"\x80" + v(0)), adjust(0x20)),
    ),
    "cancelled_inactive": (
        (*ASKED, control(SERVER, b"\x80" + v(0)), data(b"\x20" + v(0))),
        (*ASKED, control(SERVER, b"\x80" + v(0)), data(b"\x20" + v(0)), data(b"\x20" + v(0))),
    ),
    "data_after_cancel": (
        (*SENT, control(SERVER, b"\x80" + v(0)), raw(PAYLOAD), data(b"\x20" + v(0))),
        (*SENT, control(SERVER, b"\x80" + v(0)), data(b"\x20" + v(0)), raw(PAYLOAD)),
    ),
    "skip_beyond_peer": ((*SENT, data(b"\x07" + v(0))), (*SENT, data(b"\x07" + v(1)))),
    "apology_repeated": (
        (*SENT, raw(PAYLOAD[:1]), data(b"\x10"), raw(PAYLOAD[:1]), data(b"\x10")),
        (*SENT, raw(PAYLOAD[:1]), data(b"\x10"), data(b"\x10")),
    ),
    "apology_for_valid_data": (
        (*SENT, raw(PAYLOAD[:4]), data(b"\x10")),
        (*SENT, raw(PAYLOAD), data(b"\x10")),
    ),
}

#: Of rules that are warnings and notes.
OTHERS: dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]] = {
    "wide_integer": ((bymux(CLIENT, b"\x40\x01"),), (bymux(CLIENT, b"\x44\x00\x01"),)),
    "channel_backpressure_wrong": (
        (bymux(CLIENT, b"\x00\x01\x01"),),
        (bymux(CLIENT, b"\x00\x01\x00"),),
    ),
    "close_not_answered": (
        (bymux(CLIENT, b"\x80\x01"), bymux(SERVER, b"\xa0\x01")),
        (bymux(CLIENT, b"\x80\x01"),),
    ),
    "noncanonical_varu64": ((credit(248),), (control(SERVER, b"\0\xf8\xf7"),)),
    "truncated_packet": ((credit(248),), (control(SERVER, b"\0\xf8"),)),
    "proposal_not_answered": (ASKED, asked()),
    "cancel_not_confirmed": (
        (
            *(*ASKED, control(CLIENT, b"\x80" + v(0)), control(SERVER, b"\x83" + v(0))),
            *(data(b"\x20" + v(0)), (CLIENT, 1, b"\x20" + v(0))),
        ),
        (*ASKED, control(CLIENT, b"\x80" + v(0)), control(SERVER, b"\x83" + v(0)), data(b"\x20" + v(0))),
    ),
    "cancel_reason_untrue": (
        (*SENT, raw(PAYLOAD), control(SERVER, b"\x82" + v(0))),
        (*SENT, control(SERVER, b"\x82" + v(0))),
    ),
    "unwanted_payload_size": (
        (*asked(least=5), CONFIRM, SWITCH, METADATA, raw(PAYLOAD)),
        (*asked(least=6), CONFIRM, SWITCH, METADATA, raw(PAYLOAD)),
    ),
    "settings_suspect": (
        (*asked(limit=5), CONFIRM, adjust(0x40, 5), SWITCH, METADATA, raw(PAYLOAD)),
        (*asked(limit=5), CONFIRM, adjust(0x40, 4), SWITCH, METADATA, raw(PAYLOAD)),
    ),
}


@pytest.mark.parametrize("rule", EDGES)
def test_what_keeps_a_rule_at_its_edge_breaks_none(rule: str) -> None:
    # An apology for metadata that is right has a rule of its own.
    assert set(told(*EDGES[rule][0])) <= ({"apology_for_valid_data"} if rule == "unused_data_byte" else set())


@pytest.mark.parametrize("rule", EDGES)
def test_one_step_beyond_the_edge_breaks_the_rule_alone(rule: str) -> None:
    assert told(*EDGES[rule][1]) == [rule]


@pytest.mark.parametrize("rule", OTHERS)
def test_warnings_and_notes_have_edges(rule: str) -> None:
    good, bad = OTHERS[rule]
    severity = RULE[rule].severity.value
    assert told(*good) == told(*bad) == []
    assert rule not in told(*good, severities=(severity,))
    assert rule in told(*bad, severities=(severity,))


def hashed(data: bytes) -> bytes:
    """A hash as entries write it."""
    return b"\0\x40" + hashlib.blake2b(data).digest()


def entry(seq: int, *links: bytes, key: nacl.signing.SigningKey = KEY, log_id: int = 0, **fields: bytes) -> bytes:
    """An entry with a payload of five bytes; `links` are whole entries, as they stand in it."""
    head = fields.get("tag", b"\0") + bytes(key.verify_key) + v(log_id) + fields.get("seq", v(seq))
    rest = b"".join(map(hashed, links)) + fields.get("size", v(len(PAYLOAD))) + fields.get("hash", hashed(PAYLOAD))
    signed: bytes = key.sign(head + rest).signature
    return head + rest + signed


OTHER_KEY = nacl.signing.SigningKey(bytes(32))
E1 = entry(1)
E2 = entry(2, E1)
E3 = entry(3, E2)
E4 = entry(4, E1, E3)
OTHER = entry(2, E1, hash=hashed(b"54321"))
END = entry(2, E1, tag=b"\1")
FLIPPED = E1[:-1] + bytes([E1[-1] ^ 1])
#: No point of the curve has this as its canonical form.
NO_KEY = E1[:1] + b"\xff" * 32 + E1[33:]
GOOD = [(one, PAYLOAD) for one in (E1, E2, E3, E4)]
#: Rule of entries: the lines of a file that keep it, and those that break it; entries with their payloads.
OF_FILES: dict[str, tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = {
    "truncated": (GOOD, [*GOOD[:3], (E4[:-1], PAYLOAD)]),
    "trailing_bytes": (GOOD, [*GOOD[:3], (E4 + b"\0", PAYLOAD)]),
    "bad_tag": ([GOOD[0], (END, PAYLOAD)], [GOOD[0], (entry(2, E1, tag=b"\2"), PAYLOAD)]),
    "seq_zero": (GOOD[:1], [(entry(0), PAYLOAD)]),
    "bad_yamf_id": (GOOD[:1], [(entry(1, hash=b"\1" + hashed(PAYLOAD)[1:]), PAYLOAD)]),
    "bad_yamf_length": (GOOD[:1], [(entry(1, hash=b"\0\x3f" + hashed(PAYLOAD)[2:]), PAYLOAD)]),
    "payload_hash_mismatch": (GOOD, [*GOOD[:3], (E4, b"12346")]),
    "payload_size_mismatch": (GOOD, [*GOOD[:3], (entry(4, E1, E3, size=v(6)), PAYLOAD)]),
    "lipmaalink_mismatch": (GOOD, [*GOOD[:3], (entry(4, FLIPPED, E3), PAYLOAD)]),
    "backlink_mismatch": (GOOD, [*GOOD[:3], (entry(4, E1, FLIPPED), PAYLOAD)]),
    "log_id_mismatch": (GOOD[:2], [(entry(1, log_id=1), PAYLOAD), (entry(2, entry(1, log_id=1)), PAYLOAD)]),
    "author_mismatch": (
        GOOD[:2],
        [(entry(1, key=OTHER_KEY), PAYLOAD), (entry(2, entry(1, key=OTHER_KEY)), PAYLOAD)],
    ),
    "after_end_of_log": ([GOOD[0], (END, PAYLOAD)], [GOOD[0], (END, PAYLOAD), (entry(3, END), PAYLOAD)]),
    "bad_author_key": (GOOD[:1], [(NO_KEY, PAYLOAD)]),
    "bad_signature": (GOOD[:1], [(FLIPPED, PAYLOAD)]),
    "fork": ([*GOOD[:2], GOOD[1]], [*GOOD[:2], (OTHER, b"54321")]),
}


def told_of_file(lines: list[tuple[bytes, bytes]], folder: Path) -> set[str]:
    path = folder / "log.jsonl"
    path.write_text("".join(f'{{"entry_hex":"{one.hex()}","payload_hex":"{two.hex()}"}}\n' for one, two in lines))
    rows = inspected(str(path), "bamboo")
    return {str(row["rule"]).removeprefix("bamboo.") for kind, row in rows if kind in (VIOLATION, QUARANTINE)}


@pytest.mark.parametrize("rule", OF_FILES)
def test_rules_of_entries_have_edges(rule: str, tmp_path: Path) -> None:
    good, bad = OF_FILES[rule]
    assert told_of_file(good, tmp_path) == set()
    # An end of the log that is not the last entry is a fork, too.
    assert told_of_file(bad, tmp_path) - ({"fork"} if rule != "fork" else set()) == {rule}


def test_windows_and_credit_have_edges_too() -> None:
    reaches = (*SENT, lz(4, ABC + b"\x81\x03"))
    assert told(*reaches, window=3) == []
    assert told(*reaches, window=2) == ["window_exceeded"]
    assert told(*SENT, lz(1, b"\x011"), window=1) == []
    assert told(*SENT, lz(1, b"\x011"), window=0) == ["compression_without_window"]
    written = sum(len(step[2]) for step in SENT if step[1] == 1)
    assert told(*SENT, data_credit=written) == []
    assert told(*SENT, data_credit=written - 1) == ["write_without_credit"]


def sent(whole: bytes) -> Step:
    """The metadata of an entry, all of whose links are left out."""
    return data((b"\x80", b"\x81")[whole[0]] + whole[-(1 + 66 + 64) :])


def test_entries_on_the_wire_have_edges() -> None:
    assert told(*SENT, raw(b"12346"), greedy=True) == []
    assert told(*SENT, raw(b"12346"), data(b"\x10"), greedy=True) == []
    of_two = (credit(1), propose(end=2, upper=2), CONFIRM, SWITCH, METADATA, raw(b"12346"))
    assert told(*of_two, sent(E2), greedy=True) == ["invalid_data_not_apologised"]
    last = entry(1, tag=b"\1")
    of_end = (credit(1), propose(end=2, upper=2), CONFIRM, SWITCH, sent(last), raw(PAYLOAD))
    assert told(*of_end) == []
    assert told(*of_end, sent(entry(2, last))) == ["data_after_end_of_log"]


def test_what_is_known_of_links_has_edges() -> None:
    known = hashlib.blake2b(E2).digest()
    of_three = (credit(1), propose(0, 3, 3, 4, 4, known), CONFIRM, SWITCH, sent(E3), raw(PAYLOAD))
    assert "link_unknown" not in told(*of_three, severities=("note", "violation"))
    assert told(*of_three, sent(E4), severities=("note", "violation")) == ["link_unknown"]
    for expected, differs in ((hashlib.blake2b(E1).digest(), False), (hashlib.blake2b(E2).digest(), True)):
        more = (credit(2), *ASKED[1:], SWITCH, METADATA, raw(PAYLOAD), propose(2, 2, 2, 2, 2, expected))
        assert ("starting_hash_differs" in told(*more, severities=("note",))) is differs


#: Rules without a number that could be one more or less.
NO_EDGE = {
    "malformed": "the links of an entry are left out, or are too many",
    "no_setup_seen": "the capture lacks the begin of a connection",
    "history_unknown": "the capture lacks bytes that a copy refers to",
}
#: Rules whose cases are in tests of their own here.
APART = {
    *("write_without_credit", "compression_without_window", "window_exceeded", "invalid_data_not_apologised"),
    *("data_after_end_of_log", "link_unknown", "starting_hash_differs"),
}


def test_every_rule_has_an_edge_or_a_reason() -> None:
    assert {*EDGES, *OTHERS, *OF_FILES, *NO_EDGE, *APART} == set(RULE)
