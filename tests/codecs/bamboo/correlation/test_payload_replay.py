"""Payloads that a connection carries without metadata, judged by entries that another connection, or a file, shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.codecs.bamboo.log.test_log import SECOND, A, B, over_bymux
from tests.codecs.bamboo.session.peers import GREEDY, SAFE, confirm, metadata, over, propose, raw
from tests.support.landed import landed_packets
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.setup import Setup
from wirehouse_codecs.bamboo.wire.lzfoo import Deflater
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Apology,
    Cancel,
    CancelReason,
    CompressedPayload,
    DataPacket,
    Eagerness,
    Notify,
    PointToPoint,
    ProposalCredit,
    SkipPayload,
    SkipReason,
    Switch,
)
from wirehouse_codecs.logs.inspection import VIOLATION
from wirehouse_codecs.simulate import script
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Close, Conversation, Send
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

PORT = 9_000
Said = Sequence[tuple[Direction, PointToPoint]]


def connection(said: Said, number: int = 0, at_ns: int = 0) -> list[CapturedPacket]:
    """What a client and the service say, one packet a second."""
    sent: list[Any] = [Send(at_ns + SECOND * (n + 1), side, data) for n, (side, data) in enumerate(over_bymux(*said))]
    sent.append(Close(at_ns + SECOND * (len(sent) + 2), A))
    ends = Endpoint(f"10.0.1.{number}", 40_000), Endpoint("10.0.0.2", PORT)
    return list(script.packets(Conversation(*ends, at_ns, sent)))


def opening(setup: Setup = SAFE) -> list[tuple[Direction, PointToPoint]]:
    return [(A, setup), (B, setup), (A, ProposalCredit(4)), (B, ProposalCredit(4))]


def closing() -> list[tuple[Direction, PointToPoint]]:
    return [
        *((B, one) for one in (Cancel(CancelReason.END_REACHED, 0), over())),
        *((A, one) for one in (Cancel(CancelReason.CONFIRMING, 0), over())),
    ]


def shows(log: Any, last: int, number: int = 0) -> list[CapturedPacket]:
    """A connection over which the service sends the metadata of entries, and no payload."""
    said = [*opening(), (A, propose(log, end=last, upper_info=last)), (B, confirm()), (B, Switch(0))]
    for seq in range(1, last + 1):
        said += [(B, metadata(log.entries[seq])), (B, SkipPayload(SkipReason.UNAVAILABLE))]
    return connection([*said, *closing()], number)


def sends(
    log: Any,
    packets: Sequence[DataPacket],
    setup: Setup = SAFE,
    at_ns: int = 100 * SECOND,
    before: Said = (),
    confirmed: Adjust | None = None,
    **asked: Any,
) -> list[CapturedPacket]:
    """A later connection over which the service sends `packets` for a proposal of payloads alone, after `before`."""
    asked = {"end": 4, "upper_info": 4, "payload_only": True} | asked
    said = [*opening(setup), (A, propose(log, **asked)), (B, confirmed or confirm()), *before, (B, Switch(0))]
    return connection([*said, *((B, one) for one in packets), *closing()], 1, at_ns)


def found(*captures: Sequence[CapturedPacket]) -> list[tuple[str, str]]:
    """Rules that are broken, and how."""
    rows = inspect(landed_packets([packet for one in captures for packet in one]), PORT)
    broken = [row for kind, row in rows if kind == VIOLATION and row["severity"] != "note"]
    return [(row["rule"].removeprefix("bamboo."), row["message"]) for row in broken]


@pytest.fixture(scope="module")
def log(make_log: Callable[..., Any]) -> Any:
    return make_log(6)


@pytest.mark.property
def test_payloads_that_are_right_break_nothing(log: Any) -> None:
    right: list[DataPacket] = [raw(log.payloads[seq]) for seq in range(1, 5)]
    assert found(shows(log, 4), sends(log, right)) == []
    compressed = Deflater(1024).compress(log.payloads[2])
    lz = CompressedPayload(len(log.payloads[2]), len(compressed), compressed)
    in_parts: list[DataPacket] = [raw(log.payloads[1][:3]), raw(log.payloads[1][3:]), lz]
    rest = [raw(log.payloads[3]), raw(log.payloads[4])]
    assert found(shows(log, 4), sends(log, [*in_parts, *rest])) == []


@pytest.mark.parametrize(
    ("greedy", "rule"), [(False, "invalid_data_in_safe_mode"), (True, "invalid_data_not_apologised")]
)
def test_a_wrong_payload_is_one_finding_and_the_next_ones_are_judged(log: Any, greedy: bool, rule: str) -> None:
    setup = GREEDY if greedy else SAFE
    right = [raw(log.payloads[seq]) for seq in range(1, 5)]
    assert found(shows(log, 4), sends(log, [right[0], raw(b"?" * 9), *right[2:]], setup)) == [
        (rule, "payload_hash_mismatch")
    ]
    if greedy:
        assert found(shows(log, 4), sends(log, [right[0], raw(b"?" * 9), Apology(), *right[1:]], setup)) == []


def test_a_byte_too_many_is_an_overrun_and_ends_what_can_be_judged(log: Any) -> None:
    more = raw(log.payloads[2] + b"!")
    assert found(shows(log, 4), sends(log, [raw(log.payloads[1]), more, raw(b"?")])) == [
        ("payload_overrun", "10 bytes of payload 2, of 9")
    ]


def test_an_apology_for_a_right_payload(log: Any) -> None:
    said: list[DataPacket] = [raw(log.payloads[1]), Apology(), raw(log.payloads[1])]
    assert [rule for rule, _ in found(shows(log, 4), sends(log, said, GREEDY))] == ["apology_for_valid_data"]
    half: list[DataPacket] = [raw(log.payloads[1][:4]), Apology(), raw(log.payloads[1]), raw(log.payloads[2])]
    assert found(shows(log, 4), sends(log, half, GREEDY)) == []


@pytest.mark.parametrize(
    ("reason", "sizes", "is_true"),
    [
        (SkipReason.TOO_SMALL, {"min_payload": 10}, True),
        (SkipReason.TOO_SMALL, {"min_payload": 9}, False),
        (SkipReason.TOO_LARGE, {"max_payload": 8}, True),
        (SkipReason.TOO_LARGE, {"max_payload": 9}, False),
    ],
)
def test_a_skip_tells_of_the_size(log: Any, reason: SkipReason, sizes: dict[str, Any], is_true: bool) -> None:
    said: list[DataPacket] = [SkipPayload(reason), *(raw(log.payloads[seq]) for seq in (2, 3, 4))]
    rules = [rule for rule, _ in found(shows(log, 4), sends(log, said, **sizes)) if rule != "unwanted_payload_size"]
    assert rules == ([] if is_true else ["skip_size_untrue"])


def test_an_end_that_the_sender_adjusts_binds_it(log: Any) -> None:
    said: list[DataPacket] = [raw(log.payloads[seq]) for seq in range(1, 4)]
    confirmed = confirm(end=2, upper_info=2)
    assert found(shows(log, 4), sends(log, said[:2], confirmed=confirmed)) == []
    assert found(shows(log, 4), sends(log, said, confirmed=confirmed)) == [("past_end", "nothing is due")]
    assert found(shows(log, 4), sends(log, [said[0], Notify(2)], confirmed=confirmed)) == [
        ("past_end", "payload 2 is due")
    ]
    # The other side's adjust may not have arrived yet.
    assert found(shows(log, 4), sends(log, said, before=[(A, Adjust(0, end=2, upper_info=2))])) == []


@pytest.mark.parametrize(
    ("asked", "packets", "is_right"),
    [
        ({}, [Notify(1)], False),
        ({"max_payload": 8}, [Notify(1)], True),
        ({"eagerness": Eagerness.NOTIFY}, [Notify(4)], True),
        ({"eagerness": Eagerness.LIMITED, "size_limit": 8}, [Notify(1)], True),
        ({"eagerness": Eagerness.LIMITED, "size_limit": 9}, [Notify(1)], False),
        ({"eagerness": Eagerness.LIMITED, "size_limit": 8}, [raw(b"x" * 9)], False),
        # The other side may have sent them itself.
        ({"before": [(A, Switch(0)), (A, Notify(2))]}, [Notify(2)], True),
        ({"before": [(A, Switch(0)), (A, Notify(2))]}, [Notify(3)], False),
        # It may know the new settings, or the old ones.
        ({"before": [(A, Adjust(0, Eagerness.NOTIFY))]}, [Notify(4)], True),
        ({"before": [(A, Adjust(0, Eagerness.LIMITED, 8))]}, [Notify(1)], True),
        ({"before": [(A, Adjust(0, max_payload=9))]}, [Notify(1)], False),
    ],
)
def test_notifies_and_payloads_are_those_that_the_other_side_asks_for(
    log: Any, asked: dict[str, Any], packets: Sequence[DataPacket], is_right: bool
) -> None:
    notified = confirm(eagerness=Eagerness.NOTIFY)
    rules = [rule for rule, _ in found(shows(log, 4), sends(log, packets, confirmed=notified, **asked))]
    assert [rule for rule in rules if rule == "eagerness_ignored"] == ([] if is_right else ["eagerness_ignored"])


def test_with_an_offset_the_rest_of_a_payload_is_measured(log: Any) -> None:
    asked: dict[str, Any] = {"start": 2, "offset": 3}
    assert found(shows(log, 4), sends(log, [raw(log.payloads[2][3:]), raw(log.payloads[3])], **asked)) == []
    assert [rule for rule, _ in found(shows(log, 4), sends(log, [raw(log.payloads[2])], **asked))] == [
        "payload_overrun"
    ]


def test_what_is_not_known_is_not_judged(log: Any, make_log: Callable[..., Any]) -> None:
    wrong: list[DataPacket] = [raw(b"?" * 20), raw(b"?")]
    assert found(sends(log, wrong)) == []
    assert found(shows(log, 1), sends(log, wrong, start=2, lower_info=1)) == []
    other = log.branch(1)
    for _ in range(2, 5):
        other.add(b"of another branch")
    # Both branches are known: which one is meant is not.
    sent = sends(log, [raw(log.payloads[1]), *wrong])
    assert {rule for rule, _ in found(shows(log, 4), shows(other, 4, 2), sent)} == {"fork"}


def test_bytes_that_are_missing_excuse_it(log: Any) -> None:
    sent = sends(log, [raw(log.payloads[1]), raw(log.payloads[2]), raw(log.payloads[3]), raw(log.payloads[4])])
    for lost in range(len(sent)):
        assert found(shows(log, 4), [*sent[:lost], *sent[lost + 1 :]]) == []
