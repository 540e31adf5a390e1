"""Proposals, data and their rules: each kept and broken, on a session that is restored before every packet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.bamboo.session.peers import GREEDY, SAFE, Peers, begun, confirm, metadata, over, propose, raw
from tests.support.carried import as_text
from wirehouse_codecs.bamboo.rules import CONTROL_RULES, DATA_RULES, ENDS
from wirehouse_codecs.bamboo.session.data import MOST_BEGUN
from wirehouse_codecs.bamboo.session.machines import MACHINES
from wirehouse_codecs.bamboo.session.pieces import MOST_HELD_BYTES
from wirehouse_codecs.bamboo.session.proposals import (
    LIFE,
    MOST_HEARD,
    SIDES,
    Input,
    Life,
    SideState,
    open_targets,
    side_unlisted,
    unlisted,
)
from wirehouse_codecs.bamboo.session.state import Memory
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.lipmaa import lipmaa
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Apology,
    Cancel,
    CancelEntry,
    Cancelled,
    CancelReason,
    CompressedPayload,
    Eagerness,
    Notify,
    PointToPoint,
    ProposalCredit,
    RawPayload,
    SkipBytes,
    SkipPayload,
    SkipReason,
    Switch,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64

Log = Any
ALL, NOTIFY, LIMITED = Eagerness.ALL, Eagerness.NOTIFY, Eagerness.LIMITED
SMALL, LARGE, MISSING = (SkipPayload(reason) for reason in SkipReason)
APOLOGY = Apology()


@pytest.fixture(scope="session")
def log(make_log: Callable[..., Log]) -> Log:
    return make_log(14)


@pytest.fixture(scope="session")
def other(make_log: Callable[..., Log]) -> Log:
    return make_log(4, log_id=7)


def sent(log: Log, *seqs: int) -> list[PointToPoint]:
    """Metadata and payload of entries."""
    return [packet for seq in seqs for packet in (metadata(log.entries[seq]), raw(log.payloads[seq]))]


def m(log: Log, seq: int, **changed: Any) -> PointToPoint:
    return metadata(log.entries[seq], **changed)


def p(log: Log, seq: int) -> PointToPoint:
    return raw(log.payloads[seq])


def ends(log: Log) -> PointToPoint:
    """Metadata of another entry 1, which ends the log."""
    return metadata(log.make(1, log.payloads[1], end_of_log=True))


def lz(data: bytes, size: int | None = None) -> CompressedPayload:
    return CompressedPayload(len(data) if size is None else size, len(data), data)


def literal(payload: bytes) -> CompressedPayload:
    return lz(bytes([len(payload)]) + payload, len(payload))


Script = Callable[[Log, Log], Peers]
#: By rule: a dialogue whose last packet breaks it, and only it, and one that keeps it.
CONTROL: dict[str, tuple[Script, Script]] = {
    "proposal_credit_overflow": (
        lambda log, other: Peers(credit=1).a(ProposalCredit(MAX_U64)),
        lambda log, other: Peers(credit=1).a(ProposalCredit(MAX_U64 - 1)),
    ),
    "proposal_without_credit": (
        lambda log, other: Peers(credit=1).a(propose(log)).a(propose(other, 2)),
        lambda log, other: Peers(credit=2).a(propose(log)).a(propose(other, 2)),
    ),
    "id_parity": (
        lambda log, other: Peers().b(propose(log)),
        lambda log, other: Peers().b(propose(log, 1)),
    ),
    "id_in_use": (
        lambda log, other: begun(log).a(Cancel(CancelReason.RESOURCES, 0), over()).a(propose(other)),
        lambda log, other: (
            begun(log)
            .a(Cancel(CancelReason.RESOURCES, 0), over())
            .b(Cancel(CancelReason.CONFIRMING, 0), over())
            .a(propose(other))
        ),
    ),
    "cancel_or_adjust_inactive": (
        lambda log, other: Peers().a(propose(log)).b(confirm(2)),
        lambda log, other: Peers().a(propose(log)).b(confirm()),
    ),
    "cancel_or_adjust_after_cancel": (
        lambda log, other: begun(log).b(Cancel(CancelReason.RESOURCES, 0)).b(confirm()),
        lambda log, other: begun(log).b(Cancel(CancelReason.RESOURCES, 0)).a(confirm()),
    ),
    "confirmation_without_eagerness": (
        lambda log, other: Peers().a(propose(log)).b(Adjust(0, may_skip=True)),
        lambda log, other: Peers().a(propose(log), Adjust(0, may_skip=True)),
    ),
    "end_before_start": (
        lambda log, other: Peers().a(propose(log, start=2, end=1)),
        lambda log, other: Peers().a(propose(log, start=2, end=2, upper_info=4)),
    ),
    "upper_info_before_end": (
        lambda log, other: Peers().a(propose(log, end=4, upper_info=3)),
        lambda log, other: Peers().a(propose(log, end=4, upper_info=4)),
    ),
    "lower_info_after_start": (
        lambda log, other: Peers().a(propose(log, start=3, lower_info=4)),
        lambda log, other: Peers().a(propose(log, start=3, lower_info=3)),
    ),
    "lower_info_not_in_pool": (
        lambda log, other: Peers().a(propose(log, start=8, lower_info=7)),
        lambda log, other: Peers().a(propose(log, start=8, lower_info=4)),
    ),
    "upper_info_not_in_pool": (
        lambda log, other: Peers().a(propose(log, end=8, upper_info=10)),
        lambda log, other: Peers().a(propose(log, end=8, upper_info=12)),
    ),
    "min_payload_lowered": (
        lambda log, other: begun(log, confirmed=confirm(min_payload=5)).b(Adjust(0, min_payload=4)),
        lambda log, other: begun(log, confirmed=confirm(min_payload=5)).b(Adjust(0, min_payload=5)),
    ),
    "max_payload_raised": (
        lambda log, other: begun(log, max_payload=9).a(Adjust(0, max_payload=10)),
        lambda log, other: begun(log, max_payload=9).a(Adjust(0, max_payload=9)),
    ),
    "cancel_reason_untrue": (
        lambda log, other: begun(log).b(Cancel(CancelReason.END_REACHED, 0)),
        lambda log, other: begun(log, end=1).b(*sent(log, 1)).a(Cancel(CancelReason.END_REACHED, 0)),
    ),
}

DATA: dict[str, tuple[Script, Script]] = {
    "switch_inactive": (
        lambda log, other: Peers().a(propose(log)).b(Switch(0)),
        lambda log, other: Peers().a(propose(log)).b(confirm(), Switch(0)),
    ),
    "cancelled_inactive": (
        lambda log, other: begun(log).b(over(), over()),
        lambda log, other: begun(log).b(over()).a(over()),
    ),
    "data_without_switch": (
        lambda log, other: Peers().a(propose(log)).b(confirm(), m(log, 1)),
        lambda log, other: Peers().a(propose(log)).b(confirm(), Switch(0), m(log, 1)),
    ),
    "data_after_cancel": (
        lambda log, other: begun(log).b(over(), m(log, 1)),
        lambda log, other: begun(log).b(Cancel(CancelReason.RESOURCES, 0), m(log, 1)),
    ),
    "out_of_turn": (
        lambda log, other: begun(log).b(p(log, 1)),
        lambda log, other: begun(log).b(m(log, 1), p(log, 1)),
    ),
    "past_end": (
        lambda log, other: begun(log, end=1).b(*sent(log, 1), m(log, 2)),
        lambda log, other: begun(log, end=2, upper_info=2).b(*sent(log, 1), m(log, 2)),
    ),
    "data_after_end_of_log": (
        lambda log, other: begun(log).b(ends(log), p(log, 1), m(log, 2)),
        lambda log, other: begun(log).b(ends(log), p(log, 1)),
    ),
    "payload_overrun": (
        lambda log, other: begun(log).b(m(log, 1), raw(log.payloads[1] + b"!")),
        lambda log, other: begun(log).b(m(log, 1), raw(log.payloads[1][:-1])),
    ),
    "compression_without_window": (
        lambda log, other: begun(log, Setup(False, False, 0, 0)).b(m(log, 1), literal(log.payloads[1])),
        lambda log, other: begun(log, Setup(False, False, 1, 1)).b(m(log, 1), literal(log.payloads[1])),
    ),
    "window_exceeded": (
        lambda log, other: begun(log, Setup(False, False, 3, 3)).b(m(log, 1), lz(b"\x04payl\x85\x04", 9)),
        lambda log, other: begun(log, Setup(False, False, 4, 4)).b(
            m(log, 1, payload_size=10), lz(b"\x04payl\x85\x04", 9)
        ),
    ),
    "offset_zero": (
        lambda log, other: begun(log).b(m(log, 1), lz(b"\x04payl\x85\x00", 9)),
        lambda log, other: begun(log).b(m(log, 1), literal(log.payloads[1])),
    ),
    "offset_before_start": (
        lambda log, other: begun(log).b(m(log, 1), lz(b"\x04payl\x85\x05", 9)),
        lambda log, other: begun(log).b(*sent(log, 1), m(log, 2, payload_size=10), lz(b"\x04payl\x85\x04", 9)),
    ),
    "lzfoo_truncated": (
        lambda log, other: begun(log).b(m(log, 1), lz(b"\x09payl", 9)),
        lambda log, other: begun(log).b(m(log, 1), lz(b"\x09payload 1", 9)),
    ),
    "length_mismatch": (
        lambda log, other: begun(log).b(m(log, 1), lz(b"\x08payload ", 9)),
        lambda log, other: begun(log).b(m(log, 1), lz(b"\x08payload ", 8)),
    ),
    "eagerness_ignored": (
        lambda log, other: begun(log, eagerness=LIMITED, size_limit=8).b(*sent(log, 1)),
        lambda log, other: begun(log, eagerness=LIMITED, size_limit=9).b(*sent(log, 1)),
    ),
    "skip_size_untrue": (
        lambda log, other: begun(log, min_payload=9).b(m(log, 1), SMALL),
        lambda log, other: begun(log, min_payload=10).b(m(log, 1), SMALL),
    ),
    "skip_of_mandatory_payload": (
        lambda log, other: begun(log, mandatory=True).b(m(log, 1), MISSING),
        lambda log, other: begun(log).b(m(log, 1), MISSING),
    ),
    "skip_beyond_peer": (
        lambda log, other: begun(log).b(*sent(log, 1)[:1], raw(b"pay")).a(Switch(0), m(log, 1), SkipBytes(4)),
        lambda log, other: begun(log).b(*sent(log, 1)[:1], raw(b"pay")).a(Switch(0), m(log, 1), SkipBytes(3)),
    ),
    "apology_without_data": (
        lambda log, other: begun(log, GREEDY).b(APOLOGY),
        lambda log, other: begun(log, GREEDY).b(m(log, 1), APOLOGY),
    ),
    "apology_repeated": (
        lambda log, other: begun(log, GREEDY).b(m(log, 1), APOLOGY, APOLOGY),
        lambda log, other: begun(log, GREEDY).b(m(log, 1), APOLOGY, m(log, 1), APOLOGY),
    ),
    "apology_for_valid_data": (
        lambda log, other: begun(log, GREEDY).b(*sent(log, 1), APOLOGY),
        lambda log, other: begun(log, GREEDY).b(m(log, 1), raw(b"payload 2"), APOLOGY),
    ),
    "invalid_data_not_apologised": (
        lambda log, other: begun(log, GREEDY).b(m(log, 1), raw(b"payload 2"), m(log, 2)),
        lambda log, other: begun(log, GREEDY).b(m(log, 1), raw(b"payload 2"), APOLOGY, *sent(log, 1)[1:], m(log, 2)),
    ),
    "invalid_data_in_safe_mode": (
        lambda log, other: begun(log, SAFE).b(m(log, 1), raw(b"payload 2")),
        lambda log, other: begun(log, GREEDY).b(m(log, 1), raw(b"payload 2")),
    ),
    "unwanted_payload_size": (
        lambda log, other: begun(log, min_payload=10).b(*sent(log, 1)),
        lambda log, other: begun(log, min_payload=9).b(*sent(log, 1)),
    ),
    "settings_suspect": (
        lambda log, other: begun(log).b(*sent(log, 1)).a(Adjust(0, NOTIFY)).b(m(log, 2)),
        lambda log, other: begun(log).b(*sent(log, 1)).a(Adjust(0, NOTIFY)).b(Notify()),
    ),
    "link_unknown": (
        lambda log, other: begun(log, start=3, lower_info=3).b(*sent(log, 3), m(log, 4)),
        lambda log, other: begun(log).b(*sent(log, 1, 2, 3), m(log, 4)),
    ),
}
#: Found by the reader, or at the end of a proposal or a connection.
ELSEWHERE = {
    *("unused_control_byte", "unused_data_byte", "seqnum_zero", "history_unknown"),
    *("starting_hash_differs", "cancel_not_confirmed", "proposal_not_answered"),
}


def test_every_rule_is_tried() -> None:
    assert set(CONTROL) | set(DATA) | ELSEWHERE == {rule.name for rule in (*CONTROL_RULES, *DATA_RULES)}


@pytest.mark.parametrize("rule", [*CONTROL, *DATA])
def test_rules(rule: str, log: Log, other: Log) -> None:
    breaks, keeps = (CONTROL | DATA)[rule]
    broken = breaks(log, other)
    assert broken.rules == [rule]
    assert [one.rule.name for told in broken.told[:-1] for one in told.broken] == []
    assert broken.session.state.ended_by == (rule if rule in ENDS else None)
    kept = keeps(log, other)
    assert rule not in [one.rule.name for told in kept.told for one in told.broken]
    assert kept.session.state.ended_by is None


def test_nothing_is_taken_after_a_violation(log: Log, other: Log) -> None:
    peers = DATA["past_end"][0](log, other)
    with pytest.raises(ValueError, match="ended"):
        peers.a(ProposalCredit(1))


# Reasons of cancels


def fork(log: Log, seq: int) -> tuple[CancelEntry, CancelEntry]:
    return CancelEntry(log.entries[seq].encode()), CancelEntry(log.make(seq, b"another").encode())


@pytest.mark.parametrize(
    ("cancel", "true"),
    [
        (lambda log: Cancel(CancelReason.CONFIRMING, 0), False),
        (lambda log: Cancel(CancelReason.NEVER_AGAIN, 0), True),
        (lambda log: Cancel(CancelReason.MANDATORY_PAYLOAD, 0), False),
        (lambda log: Cancel(CancelReason.END_OF_LOG, 0, 7), True),
        (lambda log: Cancel(CancelReason.END_OF_LOG, 0, 8), False),
        (lambda log: Cancel(CancelReason.STARTING_HASH, 0, None, (CancelEntry(log.make(4, b"x").encode()),)), True),
        (lambda log: Cancel(CancelReason.STARTING_HASH, 0, None, (CancelEntry(log.entries[4].encode()),)), False),
        (lambda log: Cancel(CancelReason.STARTING_HASH, 0, None, (CancelEntry(log.entries[3].encode()),)), False),
        (lambda log: Cancel(CancelReason.FORKED, 0, None, fork(log, 7)), True),
        (lambda log: Cancel(CancelReason.FORKED, 0, None, fork(log, 8)), False),
        (lambda log: Cancel(CancelReason.FORKED, 0, None, (CancelEntry(log.entries[3].encode()),) * 2), False),
    ],
)
def test_reasons_of_cancels(log: Log, cancel: Callable[[Log], Cancel], true: bool) -> None:
    peers = Peers().a(propose(log, start=8, lower_info=8, end=8, upper_info=8)).b(cancel(log))
    assert peers.rules == ([] if true else ["cancel_reason_untrue"])


def test_an_endless_range_has_no_end_but_that_of_the_log(log: Log) -> None:
    assert begun(log, end=None).b(Cancel(CancelReason.END_REACHED, 0)).rules == ["cancel_reason_untrue"]
    ended = begun(log, end=None).b(m(log, 1, end_of_log=True), p(log, 1))
    assert ended.b(Cancel(CancelReason.END_REACHED, 0)).rules == []


def test_a_cancel_that_answers(log: Log) -> None:
    peers = Peers().a(propose(log)).b(Cancel(CancelReason.RESOURCES, 0)).a(Cancel(CancelReason.CONFIRMING, 0))
    assert peers.rules == []


# Overlap


@pytest.mark.parametrize(
    ("mine", "theirs", "dropped"),
    [
        ((1, 4), (3, 6), [1]),
        ((3, 6), (1, 4), [0]),
        ((3, 6), (3, 3), [1]),
        ((1, 2), (3, 4), []),
        ((1, None), (9, 9), [1]),
    ],
)
def test_of_ranges_that_overlap_one_is_dropped(
    log: Log, mine: tuple[int, int | None], theirs: tuple[int, int | None], dropped: list[int]
) -> None:
    peers = Peers(credit=1)
    for side, number, (start, end) in ((peers.a, 0, mine), (peers.b, 1, theirs)):
        side(propose(log, number, start, end, lower_info=start, upper_info=end))
        assert peers.rules == []
    assert [one.propose.id for one in peers.last.ended] == dropped
    assert sorted(peers.session.state.proposals) == sorted({0, 1} - set(dropped))
    for number, role in enumerate(Role):
        assert peers.session.state.credit[role] == (1 if number in dropped else 0)
    for number in dropped:
        assert peers._send(Role.PROACTIVE, [confirm(number)]).rules == ["cancel_or_adjust_inactive"]


def test_what_is_confirmed_cancelled_or_of_another_log_is_not_dropped(log: Log, other: Log) -> None:
    assert not Peers().a(propose(log)).b(confirm(), propose(log, 1)).last.ended
    assert not Peers().a(propose(log), over()).b(propose(log, 1)).last.ended
    assert not Peers().a(propose(log)).b(propose(other, 1)).last.ended


# What never came


def test_what_was_not_answered(log: Log, other: Log) -> None:
    peers = Peers().a(propose(log), propose(other, 2)).b(Cancel(CancelReason.RESOURCES, 2))
    assert peers.end() == ["proposal_not_answered", "cancel_not_confirmed"]
    assert peers.end(in_order=False) == ["proposal_not_answered"]


def test_another_starting_hash(log: Log) -> None:
    def peers() -> Peers:
        seen = begun(log).b(*sent(log, 1, 2))
        return seen.a(propose(log, 2, start=8, lower_info=3, end=8, expected_hash=bytes(64)))

    with_pool = replace(propose(log, 2, start=3, lower_info=3, end=3), expected_hash=bytes(64))
    differs = begun(log, end=2, upper_info=2).b(*sent(log, 1), m(log, 2)).a(with_pool)
    assert differs.end() == ["proposal_not_answered", "starting_hash_differs"][::-1]
    answer = Cancel(CancelReason.STARTING_HASH, 2, None, (CancelEntry(log.entries[2].encode()),))
    assert differs.b(answer).rules == []
    assert "starting_hash_differs" not in differs.end(in_order=False)
    assert "lower_info_not_in_pool" in peers().rules


def test_another_starting_hash_of_an_entry_that_comes_later(log: Log) -> None:
    changed = replace(propose(log, start=2, lower_info=2, end=2), expected_hash=bytes(64))
    peers = Peers().a(changed).b(confirm(), Switch(0), m(log, 2, backlink=True), raw(log.payloads[2]))
    peers.a(propose(log, 2, end=1)).b(confirm(2), Switch(2), *sent(log, 1))
    assert "starting_hash_differs" in peers.end()


# Entries and payloads


def test_entries_come_back_together(log: Log) -> None:
    peers = begun(log, start=10, end=13)
    peers.b(m(log, 1), m(log, 4, backlink=True), m(log, 8, backlink=True), m(log, 9))
    peers.b(*sent(log, 10, 11, 12, 13))
    entries = [told.entry for told in peers.told if told.entry is not None]
    assert [entry.data for entry in entries] == log.encoded(1, 4, 8, 9, 10, 11, 12, 13)
    payloads = [told.payload for told in peers.told if told.payload is not None]
    assert [(one.seq, one.data, one.rule, one.checked) for one in payloads] == [
        (seq, log.payloads[seq], None, True) for seq in (10, 11, 12, 13)
    ]
    assert peers.cursor == "end"


def test_a_payload_in_pieces_of_all_kinds(make_log: Callable[..., Log]) -> None:
    log = make_log(1)
    log = type(log)()
    log.add(b"one two three four")
    peers = begun(log, end=1).a(Switch(0), m(log, 1), raw(b"one two "))
    peers.b(m(log, 1), SkipBytes(4))
    assert peers.cursor == "p1+4"
    peers.b(
        raw(b"two "),
        literal(b"three"),
        raw(b" "),
        CompressedPayload(4, 5, b"\x04fo", 0),
        CompressedPayload(4, 5, b"ur", 3),
    )
    payload = peers.last.payload
    assert payload is not None
    assert (payload.data, payload.packets, payload.rule, payload.checked) == (b"one two three four", 5, None, True)
    assert peers.session.state.held == len(b"one two ")


def test_a_payload_that_begins_at_an_offset(log: Log) -> None:
    known = begun(log, end=1).b(*sent(log, 1))
    known.a(propose(log, 2, 1, 1, offset=4)).b(confirm(2), Switch(2), raw(log.payloads[1][4:]))
    assert known.rules == []
    assert known.cursor == "end"
    assert known.last.payload is not None
    assert (known.last.payload.checked, known.last.payload.data) == (True, log.payloads[1])


def test_a_notify_may_pass_an_empty_payload(make_log: Callable[..., Log]) -> None:
    for payload, rules in ((b"", []), (b"x", ["eagerness_ignored"])):
        log = make_log(0)
        log.add(payload)
        assert begun(log, end=1).b(m(log, 1), Notify()).rules == rules


@pytest.mark.parametrize("offset", [1, 5, 8])
@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("later", [0, 15, 16])
def test_a_payload_that_was_sent_whole_and_comes_again_from_an_offset_on(
    make_log: Callable[..., Log], offset: int, is_small: bool, later: int
) -> None:
    """The last 16 payloads of at most 4 KiB are kept."""
    log = make_log(1)
    log.add(b"x" * (4096 if is_small else 4097))
    for _ in range(later):
        log.add()
    last = 2 + later
    is_kept = is_small and last <= 17
    for wrong in (False, True):
        peers = begun(log, end=last).b(*sent(log, *range(1, last + 1)))
        peers.a(propose(log, 2, 2, 2, offset=offset)).b(confirm(2), Switch(2))
        peers.b(raw(log.payloads[2][offset:-1] + (b"?" if wrong else b"x")))
        assert peers.rules == (["invalid_data_in_safe_mode"] if wrong and is_kept else [])
        assert peers.last.payload is not None
        assert peers.last.payload.checked == is_kept


@pytest.mark.parametrize("offset", [1, 4, 5])
def test_a_payload_that_is_gone_on_with_at_an_offset(log: Log, offset: int) -> None:
    payload = log.payloads[1]

    def resumed(*first: bytes, setup: Setup = SAFE) -> Peers:
        peers = begun(log, setup, end=1).b(m(log, 1), *map(raw, first))
        peers.b(Cancel(CancelReason.RESOURCES, 0), over()).a(Cancel(CancelReason.CONFIRMING, 0), over())
        return peers.a(propose(log, 2, 1, 1, offset=offset)).b(confirm(2), Switch(2))

    right = resumed(payload[:2], payload[2:5]).b(raw(payload[offset:]))
    assert right.rules == []
    assert right.last.payload is not None
    assert (right.last.payload.data, right.last.payload.checked) == (payload, True)
    assert right.cursor == "end"
    wrong = payload[offset:-1] + b"x"
    assert resumed(payload[:5]).b(raw(wrong)).rules == ["invalid_data_in_safe_mode"]
    assert resumed(payload[:5], setup=GREEDY).b(raw(payload[offset:]), APOLOGY).rules == ["apology_for_valid_data"]
    # What isn't known of it may make it right, or what the other side sent of it wrong.
    assert resumed(payload[: offset - 1]).b(raw(wrong)).rules == []
    other = begun(log, end=1).a(Switch(0), m(log, 1), raw(payload[:5]))
    other.b(Cancel(CancelReason.RESOURCES, 0), over()).a(Cancel(CancelReason.CONFIRMING, 0), over())
    other.a(propose(log, 2, 1, 1, offset=offset)).b(confirm(2), Switch(2))
    assert other.b(raw(wrong)).rules == []


def test_payloads_that_are_begun_are_bounded(make_log: Callable[..., Log]) -> None:
    log = make_log(MOST_BEGUN + 4)
    peers = Peers(credit=100)
    for number, seq in enumerate(range(1, MOST_BEGUN + 4)):
        peers.a(propose(log, 2 * number, seq, seq, lower_info=seq)).b(confirm(2 * number), Switch(2 * number))
        peers.b(m(log, seq, backlink=yamf.encode(log.hashes[seq - 1]) if seq > 1 else None), raw(b"p"))
        peers.b(Cancel(CancelReason.RESOURCES, 2 * number), over(2 * number))
    assert len(peers.session.state.begun) == MOST_BEGUN


def test_a_retracted_entry_is_not_linked_to(log: Log) -> None:
    peers = begun(log, GREEDY, start=2, lower_info=1, end=3, upper_info=4)
    peers.b(m(log, 1, signature=bytes(64)), APOLOGY, m(log, 1), *sent(log, 2, 3), m(log, 4))
    assert peers.last.entry is not None
    assert peers.last.entry.data == log.entries[4].encode()
    apology = peers.told[-7]
    assert (apology.cursor_before, apology.cursor_after, apology.seq) == ("m2", "m1", 1)
    assert apology.follows == peers.told[-8].read.byte_start


@pytest.mark.parametrize("by", ["sender", "receiver"])
def test_an_adjust_may_take_away_what_is_apologised_for(log: Log, by: str) -> None:
    """The apology retracts m9; what comes then is m12, the first piece after it that is still asked for."""
    peers = begun(log, GREEDY, end=9, upper_info=12).b(*sent(log, *range(1, 9)), m(log, 9, signature=bytes(64)))
    lower = Adjust(0, end=8, upper_info=12)
    peers = peers.b(lower) if by == "sender" else peers.a(lower)
    peers.b(APOLOGY)
    assert (peers.last.cursor_before, peers.last.cursor_after, peers.last.seq) == ("m12", "m12", 9)
    assert peers.b(m(log, 12, backlink=True)).rules == []
    assert (peers.last.seq, peers.cursor) == (12, "end")


def test_a_notify_of_nothing_changes_nothing(log: Log) -> None:
    """Reading 23. After bad data the apology is still due, and still about that data."""
    peers = begun(log, GREEDY).b(m(log, 1, payload_size=MAX_U64), Notify(0))
    assert (peers.rules, peers.last.follows) == ([], None)
    bad = peers.told[-2]
    assert peers.b(APOLOGY).rules == []
    assert (peers.last.follows, peers.cursor) == (bad.read.byte_start, "m1")


def test_a_sparse_range_without_an_end_is_followed_to_its_start(log: Log) -> None:
    """Reading 14: which entry comes after the start can't be told."""
    peers = begun(log, start=2, lower_info=1, end=None, upper_info=None, sparse=True)
    peers.b(m(log, 1), m(log, 2))
    assert (peers.cursor, peers.last.seq) == ("p2", 2)
    peers.b(raw(log.payloads[2]))
    assert (peers.cursor, peers.rules) == ("unknown", [])
    assert peers.last.payload is not None
    peers.b(m(log, 4, backlink=True))
    assert (peers.last.cursor_before, peers.cursor, peers.last.entry, peers.rules) == ("unknown", "unknown", None, [])


def test_over_two_connections_the_confirmation_may_come_after_data(log: Log) -> None:
    """And what the other side wants isn't known until then."""

    def ahead() -> Peers:
        peers = Peers(transport="connections").a(propose(log, end=3), Switch(0), m(log, 1), MISSING, Notify(2))
        assert peers.rules == []
        return peers

    assert ahead().b(Adjust(0)).rules == ["confirmation_without_eagerness"]
    peers = ahead().b(confirm())
    assert peers.rules == []
    assert peers.session.state.proposals[0].confirmed_at_ns == peers.last.read.place.arrived_at_ns


def test_an_apology_for_a_part_of_a_payload(log: Log) -> None:
    peers = begun(log, GREEDY).b(m(log, 1), raw(b"pay"), APOLOGY)
    assert (peers.rules, peers.cursor) == ([], "p1")
    assert peers.b(raw(log.payloads[1])).cursor == "m2"


def test_a_packet_says_which_piece_it_follows(log: Log) -> None:
    peers = begun(log).b(m(log, 1), raw(b"payl"), raw(b"oad 1"), m(log, 2))
    first, second, third, fourth = peers.told[-4:]
    assert [one.follows for one in (first, second, third, fourth)] == [
        None,
        first.read.byte_start,
        None,
        third.read.byte_start,
    ]


def again(log: Log, setup: Setup = SAFE, **changed: Any) -> Peers:
    """`b` has sent entries in full; now it is asked for their payloads alone."""
    peers = begun(log, setup).b(*sent(log, 1, 2, 3, 4))
    return peers.a(propose(log, 2, payload_only=True, end=4, **changed)).b(confirm(2), Switch(2))


def test_a_wrong_payload_is_told_by_what_its_sender_sent_in_another_proposal(log: Log) -> None:
    wrong = raw(b"payload x")
    assert again(log).b(p(log, 1), wrong).rules == ["invalid_data_in_safe_mode"]
    assert again(log).b(*(p(log, seq) for seq in range(1, 5))).rules == []
    assert again(log, GREEDY).b(p(log, 1), wrong, APOLOGY, p(log, 2)).rules == []
    assert again(log, GREEDY).b(p(log, 1), wrong, p(log, 3)).rules == ["invalid_data_not_apologised"]
    # Of the payload that begins at an offset only a part is here, but not of the next one.
    after = again(log, start=2, offset=3, expected_hash=log.hashes[2])
    assert after.b(raw(b"load 2")).rules == []
    assert after.b(wrong).rules == ["invalid_data_in_safe_mode"]
    # What the other side said need not be what this one means, unless its hash is the one expected.
    for start, offset, found in ((1, None, []), (2, 0, ["invalid_data_in_safe_mode"])):
        peers = begun(log).b(*sent(log, 1, 2, 3, 4)).b(propose(log, 1, start, 4, payload_only=True, offset=offset))
        assert peers.a(confirm(1), Switch(1)).a(wrong).rules == found


def test_what_metadata_with_a_wrong_signature_says_blames_nobody(log: Log) -> None:
    # That it is wrong is a finding of its own, which needs all signatures.
    other_hash = m(log, 1, payload_hash=yamf.encode(bytes(64)))
    assert begun(log).b(other_hash, p(log, 1), *sent(log, 2)).rules == []
    assert begun(log, GREEDY).b(other_hash, p(log, 1), *sent(log, 2)).rules == []
    again_asked = propose(log, 2, payload_only=True, end=4)
    other_hash = m(log, 4, payload_hash=yamf.encode(bytes(64)))
    for payloads, found in (((p(log, 3), p(log, 4)), []), ((raw(b"payload x"),), ["invalid_data_in_safe_mode"])):
        peers = begun(log).b(*sent(log, 1, 2, 3), other_hash, p(log, 4)).a(again_asked).b(confirm(2), Switch(2))
        assert peers.b(p(log, 1), p(log, 2), *payloads).rules == found
    # A payload that is right by it isn't right.
    wrong = b"payload !"
    forged = m(log, 1, payload_hash=yamf.encode(yamf.digest(wrong)))
    assert begun(log, GREEDY).b(forged, raw(wrong), APOLOGY).rules == []
    assert begun(log, GREEDY).b(m(log, 1), p(log, 1), APOLOGY).rules == ["apology_for_valid_data"]
    # Nor is the size that it names.
    size = len(log.payloads[1])
    for wrong_size in (size - 1, size + 1):
        assert begun(log).b(m(log, 1, payload_size=wrong_size), p(log, 1), m(log, 2)).rules == []
    assert begun(log).b(m(log, 1, payload_size=size - 1), raw(b"payload "), raw(b"1")).rules == []
    # Whether the log ends isn't either.
    assert begun(log).b(m(log, 1, end_of_log=True), p(log, 1), m(log, 2)).rules == []


def test_where_bytes_are_missing_a_payload_alone_may_be_that_of_another_entry(log: Log) -> None:
    peers = again(log)
    peers.session.state.proposals[2].partial = True
    assert peers.b(p(log, 3)).rules == []


def test_who_sent_an_entry_as_a_regular_one_cannot_say_that_it_ends_the_log(log: Log) -> None:
    ends = Cancel(CancelReason.END_OF_LOG, 2, seqnum=2)
    asked = propose(log, 2, start=5, lower_info=5, end=6, upper_info=6)
    assert begun(log).b(*sent(log, 1, 2, 3, 4)).a(asked).b(ends).rules == ["cancel_reason_untrue"]
    # What the other side sent may be another branch.
    asked = replace(asked, id=1)
    assert begun(log).b(*sent(log, 1, 2, 3, 4)).b(asked).a(replace(ends, id=1)).rules == []
    assert begun(log).a(replace(asked, id=2)).b(ends).rules == []


def test_what_metadata_breaks_by_itself(log: Log) -> None:
    bad = m(log, 1, payload_hash=b"\x00\x41" + bytes(64))
    assert begun(log).b(bad).rules == ["invalid_data_in_safe_mode"]
    greedy = begun(log, GREEDY).b(bad)
    assert greedy.rules == []
    assert greedy.last.entry is not None
    assert greedy.last.entry.rule == "bad_yamf_length"
    assert greedy.b(raw(log.payloads[1])).rules == ["invalid_data_not_apologised"]


def test_without_setups_modes_are_unknown(log: Log) -> None:
    peers = begun(log, None).b(m(log, 1), raw(b"payload 2"), m(log, 2), literal(log.payloads[2]))
    assert peers.rules == []
    assert peers.last.data == log.payloads[2]


def test_a_payload_too_large_to_be_inflated(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(size: int) -> CompressedPayload:
        return lz(b"\x01a\xfb" + (size - 1).to_bytes(4, "big") + b"\x01", size)

    # Of each packet 80 bytes are free; what is beyond is limited in all together.
    monkeypatch.setattr("wirehouse_codecs.bamboo.wire.decompression.FREELY_INFLATED", (0, 10))
    monkeypatch.setattr("wirehouse_codecs.bamboo.wire.decompression.MOST_REPORTED", (0, 10))
    peers = (
        Peers(max_inflated_bytes=200).a(propose(log, end=4)).b(confirm(), Switch(0), m(log, 1, payload_size=1 << 40))
    )
    for size in (200, 80, 160, 80):
        peers.b(run(size))
        told = (b"a" * size, None) if size == 80 else (None, run(size).data)
        assert (peers.rules, peers.last.data, peers.last.compressed) == ([], *told)
    peers.b(run(81))
    assert (peers.rules, peers.last.data, peers.last.compressed) == (["history_unknown"], None, run(81).data)
    assert peers.cursor == "p1+601"
    peers.b(lz(b"\x81\x01", 1))
    assert peers.rules == ["history_unknown"]
    peers.b(lz(b"\x01a\x81\x01", 2))
    assert (peers.rules, peers.last.data) == ([], b"aa")


def test_a_compressed_payload_is_as_long_as_the_option_says(make_log: Callable[..., Log]) -> None:
    log = make_log(0)
    log.add(bytes(range(256)) * (6 << 10))
    payload = log.payloads[1]
    for most, rules in ((len(payload) + 5, []), (len(payload), ["history_unknown"])):
        peers = Peers(max_compressed_bytes=most).a(propose(log, end=1)).b(confirm(), Switch(0), m(log, 1))
        assert peers.b(lz(b"\x7b" + len(payload).to_bytes(4, "big") + payload, len(payload))).rules == rules
        assert peers.last.payload is not None
        assert peers.last.payload.checked == (not rules)


def test_an_offset_longer_than_it_needs_to_be_is_noted(make_log: Callable[..., Log]) -> None:
    log = make_log(0)
    log.add(b"aaa")
    for copy, found in ((b"\x82\1", []), (b"\x82\xf8\1", ["noncanonical_varu64"])):
        assert begun(log, end=1).b(m(log, 1), lz(b"\1a" + copy, 3)).rules == found


def test_bytes_of_begun_payloads_are_bounded(log: Log) -> None:
    peers = begun(log).b(m(log, 1, payload_size=1 << 40))
    for _ in range(5):
        peers.b(raw(bytes(MOST_HELD_BYTES // 4)))
        assert peers.session.state.held <= MOST_HELD_BYTES
    assert (peers.session.state.held, peers.rules) == (0, [])


@pytest.mark.parametrize("wrong", [False, True])
def test_a_payload_that_is_too_long_to_be_held_is_checked(make_log: Callable[..., Log], wrong: bool) -> None:
    log = make_log(0)
    parts = [bytes([number]) * (MOST_HELD_BYTES // 3) for number in range(5)]
    log.add(b"".join(parts))
    peers = begun(log, GREEDY, end=1).b(m(log, 1))
    run = lz(b"\x01\4\xfb" + (len(parts[4]) - 1).to_bytes(4, "big") + b"\x01", len(parts[4]))
    # The last but one is sent in two ways: as it is, and as few bytes that stand for it.
    peers.b(*map(raw, parts[:3]), raw(bytes(len(parts[3])) if wrong else parts[3]), run)
    payload = peers.last.payload
    assert payload is not None
    assert (payload.data, payload.packets, payload.checked) == (None, 5, True)
    assert payload.rule == ("payload_hash_mismatch" if wrong else None)
    assert (peers.session.state.held, peers.rules) == (0, [])


# Settings that cross the data


def test_an_end_that_is_lowered_while_data_is_under_way(log: Log) -> None:
    late = begun(log, start=1, end=8, upper_info=13).b(*sent(log, 1, 2, 3, 4, 5, 6, 7)).a(Adjust(0, end=7))
    # The other side goes by the old end: the payload of entry 8 is no piece any more.
    assert late.b(m(log, 8), p(log, 8)).rules == ["settings_suspect"]
    assert late.b(m(log, 12, backlink=True), m(log, 13)).rules == []
    assert late.cursor == "end"
    knows = begun(log, start=1, end=8, upper_info=13).b(*sent(log, 1, 2, 3, 4, 5, 6, 7)).a(Adjust(0, end=7))
    assert knows.b(m(log, 8), m(log, 12, backlink=True), m(log, 13)).rules == []
    assert knows.b(Notify()).rules == ["past_end"]


def test_who_has_shown_to_know_a_setting_is_held_to_it(log: Log) -> None:
    peers = begun(log).b(*sent(log, 1)).a(Adjust(0, NOTIFY)).b(Notify())
    assert peers.rules == []
    assert peers.b(p(log, 2)).rules == ["eagerness_ignored"]


#: By how many bytes less than all the other host has received: with one it can't have read the last packet.
EDGE = pytest.mark.parametrize(("less", "knows"), [(0, True), (1, False)])


@EDGE
def test_settings_that_had_not_arrived_are_not_suspected(log: Log, less: int, knows: bool) -> None:
    peers = begun(log, start=1, end=8, upper_info=13).b(*sent(log, 1, 2, 3, 4, 5, 6, 7)).a(Adjust(0, end=7))
    assert peers.received(Role.REACTIVE, less).b(m(log, 8), p(log, 8)).rules == ["settings_suspect"] * knows
    # The same of an adjust by the adjust of the other side.
    peers = begun(log, end=12, upper_info=13).a(Adjust(0, end=8, upper_info=8))
    told = peers.received(Role.REACTIVE, less).b(Adjust(0, end=8, upper_info=13)).rules
    plain = begun(log, end=12, upper_info=13).a(Adjust(0, end=8, upper_info=8)).b(Adjust(0, end=8, upper_info=13))
    assert told == (plain.rules if knows else [one for one in plain.rules if one != "settings_suspect"])


@EDGE
def test_nobody_is_held_to_settings_that_had_not_arrived(log: Log, less: int, knows: bool) -> None:
    """Even if it has done what only these allow."""
    peers = begun(log).b(*sent(log, 1)).a(Adjust(0, NOTIFY)).received(Role.REACTIVE, less).b(Notify())
    assert peers.rules == []
    assert peers.b(p(log, 2)).rules == ["eagerness_ignored"] * knows
    lowered = begun(log, start=1, end=8, upper_info=13).b(*sent(log, 1, 2, 3, 4, 5, 6, 7)).a(Adjust(0, end=7))
    lowered.received(Role.REACTIVE, less).b(m(log, 8), m(log, 12, backlink=True), m(log, 13))
    assert lowered.b(Notify()).rules == ["past_end"] * knows


@EDGE
def test_who_had_not_received_what_drops_its_proposal_still_speaks_of_it(log: Log, less: int, knows: bool) -> None:
    for packet, rule in (
        (Adjust(0, NOTIFY), "cancel_or_adjust_inactive"),
        (Cancel(CancelReason.RESOURCES, 0), "cancel_or_adjust_inactive"),
        (Cancelled(0), "cancelled_inactive"),
    ):
        # The other side's begins earlier.
        dropped = Peers().a(propose(log, 0, start=5, lower_info=5, end=6, upper_info=6)).b(propose(log, 1, end=8))
        assert [one.propose.id for one in dropped.last.ended] == [0]
        assert dropped.received(Role.PROACTIVE, less).a(packet).rules == [rule] * knows
        # The other side's own proposal, captured before, begins earlier.
        yields = Peers().b(propose(log, 1, end=8)).received(Role.PROACTIVE, less)
        yields.a(propose(log, 0, start=5, lower_info=5, end=6, upper_info=6))
        assert yields.a(packet).rules == [rule] * knows
        # The side whose proposal stands knows both.
        stands = Peers().a(propose(log, 0, start=5, lower_info=5, end=6, upper_info=6)).b(propose(log, 1, end=8))
        assert stands.received(Role.REACTIVE, less).b(Adjust(0, ALL)).rules == ["cancel_or_adjust_inactive"]


@EDGE
def test_what_was_retracted_unknown_to_a_side_counts_for_it(log: Log, less: int, knows: bool) -> None:
    peers = begun(log, GREEDY).a(Switch(0), m(log, 1), Apology())
    assert peers.received(Role.REACTIVE, less).b(Notify()).rules == ["eagerness_ignored"] * knows
    peers = begun(log, GREEDY).b(m(log, 1)).a(Switch(0), m(log, 1), raw(log.payloads[1][:5]), Apology())
    assert peers.received(Role.REACTIVE, less).b(SkipBytes(5)).rules == ["skip_beyond_peer"] * knows


def test_what_is_raised_is_ignored(log: Log) -> None:
    peers = begun(log, end=4).a(Adjust(0, end=9, upper_info=40))
    assert peers.rules == []
    assert peers.session.state.proposals[0].plan.end == 4


def test_an_adjusted_end_has_its_upper_info_in_its_pool(log: Log) -> None:
    assert begun(log, end=12, upper_info=12).a(Adjust(0, end=3)).rules == ["upper_info_not_in_pool"]
    assert begun(log, end=12, upper_info=12).a(Adjust(0, end=3, upper_info=4)).rules == []
    assert begun(log, end=None).a(Adjust(0, end=5)).rules == []


@pytest.mark.parametrize("by", ["proposer", "confirmation"])
def test_a_sparse_range_that_gets_its_end_before_any_data_is_followed(log: Log, by: str) -> None:
    """Reading 14: which entries are due is known as soon as the range has an end."""
    peers = Peers().a(propose(log, end=None, upper_info=None, sparse=True))
    if by == "proposer":
        peers.a(Adjust(0, end=8, upper_info=8)).b(confirm())
    else:
        peers.b(confirm(end=8, upper_info=8))
    peers.b(Switch(0), metadata(log.entries[1]), raw(log.payloads[1]))
    assert peers.cursor == "m4"
    peers.b(metadata(log.entries[4], backlink=True), raw(log.payloads[4]), metadata(log.entries[8], backlink=True))
    assert (peers.cursor, peers.rules) == ("p8", [])


def test_a_packet_that_breaks_a_rule_is_not_told_to_be_undecodable_besides(log: Log) -> None:
    peers = begun(log).b(metadata(log.entries[1]), CompressedPayload(MAX_U64, 4, b"abcd"))
    assert peers.rules == ["payload_overrun"]


def test_bytes_of_a_payload_are_told_whatever_is_known_of_it(log: Log) -> None:
    """After a hole the current proposal isn't known; compressed payloads may refer to what was lost, or not."""
    payload = raw(log.payloads[1])
    peers = begun(log)
    peers.session.miss(Role.REACTIVE)
    assert peers.b(payload).last.data == payload.data
    peers.b(CompressedPayload(3, 4, b"\x03abc"), CompressedPayload(3, 2, b"\x83\x03"))
    assert (peers.last.data, peers.last.compressed, peers.rules) == (b"abc", None, [])
    for packed in (CompressedPayload(3, 2, b"\x83\x07"), CompressedPayload(3, 2, b"\x83\x00")):
        peers.b(packed)
        assert (peers.last.data, peers.last.compressed, peers.rules) == (None, packed.data, ["history_unknown"])
    peers.b(CompressedPayload(3, 2, b"\x83\x03"))
    assert (peers.last.data, peers.rules) == (None, ["history_unknown"]), "it was forgotten"


@pytest.mark.parametrize(
    ("packet", "rule"),
    [
        (RawPayload(3, b"abc"), "out_of_turn"),
        (CompressedPayload(3, 4, b"\x03abc"), "out_of_turn"),
        (CompressedPayload(3, 3, b"\x83\x00\x00"), "offset_zero"),
    ],
)
def test_bytes_of_a_payload_that_ends_the_session_are_told(log: Log, packet: Any, rule: str) -> None:
    before = [] if rule == "out_of_turn" else [metadata(log.entries[1])]
    told = begun(log).b(*before, packet).last
    assert told.broken[0].rule.name == rule
    assert told.data == b"abc" or told.compressed == packet.data


def test_adjusts_that_cross(log: Log) -> None:
    peers = begun(log, end=8, upper_info=13).a(Adjust(0, end=4, upper_info=4)).b(Adjust(0, upper_info=12))
    assert peers.rules == []
    crossed = begun(log, end=8, upper_info=13).a(Adjust(0, end=6)).b(Adjust(0, upper_info=8, end=8))
    assert crossed.rules == []


# Tables


@pytest.mark.parametrize(("state", "event"), itertools.product(Life, Input))
def test_life_lists_an_input_or_names_its_rule(state: Life, event: Input) -> None:
    meant_nothing = event is Input.DATA or (state is Life.CONFIRMED and event is Input.CONFIRM)
    assert (state, event) in LIFE or unlisted(state, event) in ENDS or meant_nothing


@pytest.mark.parametrize(("state", "event"), itertools.product(SideState, Input))
def test_a_side_lists_an_input_or_names_its_rule(state: SideState, event: Input) -> None:
    assert (state, event) in SIDES or side_unlisted(state, event) in ENDS


def packets(log: Log) -> dict[str, PointToPoint]:
    return {
        "propose": propose(log, 0, end=4),
        "adjust": Adjust(0, ALL),
        "cancel": Cancel(CancelReason.RESOURCES, 0),
        "switch": Switch(0),
        "cancelled": over(),
        "data": m(log, 1),
    }


WAYS: dict[str, list[tuple[str, str]]] = {
    "unused": [],
    "proposed": [("a", "propose")],
    "confirmed": [("a", "propose"), ("b", "adjust"), ("b", "switch")],
    "cancelling": [("a", "propose"), ("b", "adjust"), ("b", "switch"), ("b", "cancel")],
    "silent": [("a", "propose"), ("b", "adjust"), ("b", "switch"), ("b", "cancelled")],
    "ended": [("a", "propose"), ("b", "adjust"), ("b", "switch"), ("b", "cancel"), ("b", "cancelled")],
}
#: Of the reactive side, but for the proposal: which rule an input breaks.
BREAKS = {
    "unused": ["", *["cancel_or_adjust_inactive"] * 2, "switch_inactive", "cancelled_inactive", "data_without_switch"],
    "proposed": ["id_in_use", "", "", "switch_inactive", "", "data_without_switch"],
    "confirmed": ["id_in_use", "", "", "", "", ""],
    "cancelling": ["id_in_use", *["cancel_or_adjust_after_cancel"] * 2, "", "", ""],
    "silent": ["id_in_use", "", "", "switch_inactive", "cancelled_inactive", "data_after_cancel"],
    "ended": [
        "id_in_use",
        *["cancel_or_adjust_after_cancel"] * 2,
        "switch_inactive",
        "cancelled_inactive",
        "data_after_cancel",
    ],
}


@pytest.mark.parametrize(("state", "number"), itertools.product(WAYS, range(6)))
def test_every_input_in_every_state(log: Log, state: str, number: int) -> None:
    peers, said = Peers(), packets(log)
    for side, name in WAYS[state]:
        getattr(peers, side)(said[name])
        assert peers.rules == []
    name = list(said)[number]
    getattr(peers, "a" if name == "propose" else "b")(said[name])
    assert peers.rules == ([BREAKS[state][number]] if BREAKS[state][number] else [])


def test_machines_are_drawn() -> None:
    for machine in MACHINES:
        assert machine.edges()


# Bounds


def test_links_that_later_entries_have_are_remembered() -> None:
    for seq in range(1, 400):
        needed = {lipmaa(later) for later in range(seq + 1, 1500) if lipmaa(later) <= seq}
        assert needed <= open_targets(seq)
        assert len(open_targets(seq)) < 30


@pytest.mark.property
def test_a_long_log_needs_little_memory(make_log: Callable[..., Log]) -> None:
    log = make_log(300)
    peers = begun(log, end=None)
    size = 0
    for seq in range(1, 301):
        peers.b(*sent(log, seq))
        assert peers.rules == []
        if seq == 280:
            size = len(as_text(peers.session.state, Memory))
    assert len(peers.session.state.proposals[0].halves[Role.REACTIVE].heard) <= 2 * MOST_HEARD + 1
    assert peers.session.state.held == 0
    assert len(as_text(peers.session.state, Memory)) < size + 10_000


NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 12, 13, 40, 2**32, MAX_U64 - 1, MAX_U64])
SAID = st.one_of(
    st.builds(ProposalCredit, NUMBERS),
    st.builds(Switch, st.sampled_from([0, 1, 2])),
    st.builds(over, st.sampled_from([0, 1, 2])),
    st.builds(Notify, NUMBERS),
    st.builds(SkipPayload, st.sampled_from(SkipReason)),
    st.builds(SkipBytes, NUMBERS),
    st.builds(raw, st.binary(max_size=12)),
    st.builds(lz, st.binary(max_size=6), NUMBERS),
    st.just(APOLOGY),
    st.builds(Cancel, st.sampled_from(list(CancelReason)[:5]), st.sampled_from([0, 1, 2])),
    st.builds(
        Adjust,
        st.sampled_from([0, 1, 2]),
        st.sampled_from([None, NOTIFY, ALL]),
        end=st.none() | NUMBERS,
        upper_info=st.none() | NUMBERS,
        may_skip=st.just(True),
    ),
)


@settings(max_examples=60)
@given(data=st.data(), said=st.lists(st.tuples(st.booleans(), SAID), max_size=12))
def test_whatever_is_said_a_session_goes_on_or_says_why(log: Log, data: st.DataObject, said: list[Any]) -> None:
    start = data.draw(st.sampled_from([1, 3, 8, 2**40, MAX_U64]))
    flags: dict[str, Any] = {name: data.draw(st.booleans()) for name in ("sparse", "payload_only", "mandatory")}
    end = data.draw(st.none() | st.just(start) | st.just(MAX_U64))
    proposal = replace(
        propose(log), start=start, lower_info=start, end=end, upper_info=end, expected_hash=bytes(64), **flags
    )
    if start == 1:
        proposal = replace(proposal, expected_hash=None)
    peers = Peers(GREEDY).a(proposal).b(confirm(), Switch(0)).a(Switch(0))
    metadata_too = data.draw(st.booleans())
    for first, packet in said:
        for each in (packet, m(log, 1)) if metadata_too else (packet,):
            if peers.session.state.ended_by is None:
                (peers.a if first else peers.b)(each)


def test_metadata_ends_a_payload_of_unknown_size(log: Log) -> None:
    peers = Peers().a(propose(log, 0, 2, 4, offset=4)).b(confirm(), Switch(0))
    peers.b(raw(log.payloads[2][4:6]), raw(log.payloads[2][6:]))
    assert peers.cursor == "p2+9"
    peers.b(*sent(log, 3), m(log, 4))
    assert (peers.rules, peers.cursor) == (["link_unknown"], "p4")
    entries = [told.entry for told in peers.told if told.entry is not None]
    assert [entry.data for entry in entries] == [log.entries[3].encode(), None]
    unsure = Peers().a(propose(log, 0, 2, 4, offset=4)).b(confirm(), Switch(0), raw(b"?"), Notify())
    assert (unsure.rules, unsure.cursor) == ([], "unknown")


@pytest.mark.parametrize("next_piece", ["metadata", "notify"])
def test_a_payload_may_have_ended_before_its_size_was_known(log: Log, next_piece: str) -> None:
    """Metadata that the other side sends for its own purposes shows the size."""
    peers = Peers().a(propose(log, 0, 2, 4, offset=4)).b(confirm(), Switch(0), raw(log.payloads[2][4:]))
    peers.b(propose(log, 1, 1, 2)).a(confirm(1), Switch(1), *sent(log, 1, 2))
    peers.b(*sent(log, 3)) if next_piece == "metadata" else peers.b(Notify(2))
    assert (peers.rules, peers.cursor) == ([] if next_piece == "metadata" else ["eagerness_ignored"], "m4")


def test_what_only_missing_bytes_could_allow_breaks_no_rule(log: Log, other: Log) -> None:
    def missed(role: Role, **changed: Any) -> Peers:
        peers = Peers(**changed).a(propose(log, end=8, upper_info=13))
        peers.session.miss(role)
        return peers

    for packet in (
        confirm(2),
        Cancel(CancelReason.RESOURCES, 2),
        Switch(2),
        over(2),
        m(log, 1),
        Adjust(0, may_skip=True),
    ):
        assert missed(Role.REACTIVE).b(packet).rules == []
    assert missed(Role.REACTIVE).a(propose(other, 0)).last.ended[0].outcome == "unseen"
    assert missed(Role.REACTIVE, credit=1).a(propose(other, 2)).rules == []
    # The confirmation and an adjusted end were among what is missing.
    peers = missed(Role.PROACTIVE).b(Switch(0), m(log, 1), p(log, 1))
    assert (peers.rules, peers.cursor) == ([], "m2")
    assert (peers.b(m(log, 6)).rules, peers.cursor, peers.last.entry) == ([], "unknown", None)
    assert peers.b(p(log, 8)).rules == []
    assert missed(Role.PROACTIVE).b(confirm(upper_info=4)).rules == []
    # Of a proposal that comes while a side isn't heard nothing is sure, of a later one everything.
    unheard = missed(Role.PROACTIVE).b(propose(other, 1, end=1), Switch(1), p(other, 1))
    assert (unheard.rules, unheard.cursor) == ([], "unknown")
    heard = missed(Role.REACTIVE).b(confirm()).a(propose(other, 2, end=1)).b(confirm(2), Switch(2), p(other, 1))
    assert heard.rules == ["out_of_turn"]


def test_what_fits_no_proposal_beside_missing_bytes_may_be_about_the_next_one(log: Log, other: Log) -> None:
    def missed() -> Peers:
        peers = Peers().a(propose(log, end=8, upper_info=13))
        peers.session.miss(Role.PROACTIVE)
        return peers.a(ProposalCredit(1))

    # The other side's cancel came first: two clocks.
    ahead = missed().b(confirm(2), Cancel(CancelReason.RESOURCES, 2)).a(propose(other, 2, end=1))
    assert ahead.a(Cancel(CancelReason.CONFIRMING, 2)).rules == []
    in_order = missed().a(propose(other, 2, end=1), Cancel(CancelReason.CONFIRMING, 2))
    assert in_order.rules == ["cancel_reason_untrue"]
    # Data of a proposal that wasn't switched to may have brought any of them to its end.
    adrift = missed().a(propose(other, 2, end=1)).b(confirm(2), m(other, 1), p(other, 1))
    assert adrift.a(Cancel(CancelReason.END_REACHED, 2)).rules == []
    still = missed().a(propose(other, 2, end=1)).b(confirm(2))
    assert still.a(Cancel(CancelReason.END_REACHED, 2)).rules == ["cancel_reason_untrue"]


def test_what_the_sender_had_received_and_comes_later_is_doubted(log: Log, other: Log) -> None:
    peers = Peers().a(propose(log, end=4)).b(confirm())
    peers.session.doubt(Role.REACTIVE)
    assert peers.a(Cancel(CancelReason.CONFIRMING, 0)).rules == []
    assert peers.a(propose(other, 2, end=1), Cancel(CancelReason.CONFIRMING, 2)).rules == []
    # Its next packet is heard: from then on new proposals are judged again.
    peers.b(ProposalCredit(1))
    assert peers.a(propose(other, 4, end=1), Cancel(CancelReason.CONFIRMING, 4)).rules == ["cancel_reason_untrue"]
