"""Peers that keep to the rules, whatever they agree on: nothing is found, and every entry comes back."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.bamboo.session.peers import GREEDY, SAFE, Peers, confirm, metadata, over, propose, raw
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire.lipmaa import has_lipmaalink, lower_pool, path, upper_pool
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
    Propose,
    SkipPayload,
    SkipReason,
    Switch,
)

Log = Any


class Shown:
    """A log whose content isn't shown where a test fails."""

    def __init__(self, log: Log) -> None:
        self.__dict__ |= vars(log)

    def __repr__(self) -> str:
        return "a log"


@pytest.fixture(scope="module")
def log(make_log: Callable[..., Log]) -> Log:
    return Shown(make_log(45))


def order(asked: Propose) -> list[tuple[int, bool]]:
    """The pieces of a finite proposal by the words of the specification: sequence number, and whether a payload."""
    assert asked.end is not None
    assert asked.upper_info is not None
    entries = path(asked.start, asked.end) if asked.sparse else range(asked.start, asked.end + 1)
    middle = [(seq, payload) for seq in entries for payload in (False, True)]
    if asked.payload_only:
        return [piece for piece in middle if piece[1]]
    if asked.lower_info is None:
        middle = middle[1:]
    lower = [(seq, False) for seq in lower_pool(asked.start) if (asked.lower_info or asked.start) <= seq < asked.start]
    upper = [(seq, False) for seq in upper_pool(asked.end) if asked.end < seq <= asked.upper_info]
    return lower + middle + upper


class Sender:
    """The reactive side, which sends all that it is asked for."""

    def __init__(self, log: Log, random: Random, *, greedy: bool) -> None:
        self.log, self.random, self.greedy = log, random, greedy
        self.deflater = Deflater(1024)
        self.sent: set[int] = set()

    def piece(self, asked: Propose, seq: int, is_payload: bool) -> list[DataPacket]:
        if not is_payload:
            backlink = has_lipmaalink(seq) and seq - 1 not in self.sent
            self.sent.add(seq)
            right = metadata(self.log.entries[seq], backlink=backlink)
            wrong = metadata(self.log.entries[seq], backlink=backlink, signature=bytes(64))
            return [wrong, Apology(), right] if self.greedy and self.random.random() < 0.1 else [right]
        payload = self.log.payloads[seq]
        if asked.eagerness is Eagerness.LIMITED and len(payload) > (asked.size_limit or 0):
            return [Notify()]
        if len(payload) < asked.min_payload:
            return [SkipPayload(SkipReason.TOO_SMALL)]
        if len(payload) > asked.max_payload:
            return [SkipPayload(SkipReason.TOO_LARGE)]
        if not asked.mandatory and self.random.random() < 0.1:
            return [SkipPayload(SkipReason.UNAVAILABLE)]
        return self.payload(payload[asked.offset or 0 :] if seq == asked.start else payload)

    def payload(self, payload: bytes) -> list[DataPacket]:
        cut = self.random.randint(0, len(payload))
        parts = [payload] if self.random.random() < 0.5 else [payload[:cut], payload[cut:]]
        return [self.packet(part) for part in parts if part] or [self.packet(b"")]

    def packet(self, data: bytes) -> DataPacket:
        if self.random.random() < 0.5:
            return raw(data)
        compressed = self.deflater.compress(data)
        return CompressedPayload(len(data), len(compressed), compressed)


PROPOSALS = st.fixed_dictionaries(
    {
        "start": st.integers(1, 20),
        "length": st.integers(0, 12),
        "sparse": st.booleans(),
        "mandatory": st.booleans(),
        "offset": st.none() | st.integers(0, 9),
        "eagerness": st.sampled_from([Eagerness.ALL, Eagerness.LIMITED]),
        "min_payload": st.sampled_from([0, 9, 10]),
        "max_payload": st.sampled_from([2**64 - 1, 9]),
    }
)


@settings(max_examples=40)
@given(numbers=PROPOSALS, seed=st.integers(0, 2**32), greedy=st.booleans(), data=st.data())
def test_who_keeps_to_the_rules_breaks_none(
    log: Log, numbers: dict[str, Any], seed: int, greedy: bool, data: st.DataObject
) -> None:
    start, end = numbers["start"], numbers["start"] + numbers.pop("length")
    lower = data.draw(st.sampled_from(lower_pool(start)))
    upper = data.draw(st.sampled_from(upper_pool(end)))
    if numbers["eagerness"] is Eagerness.LIMITED:
        numbers["size_limit"] = data.draw(st.sampled_from([8, 9, 10]))
    if numbers["offset"] is None:
        del numbers["offset"]
        numbers["lower_info"] = lower
    asked = propose(log, 0, end=end, upper_info=upper, **numbers)
    peers = Peers(GREEDY if greedy else SAFE).a(asked).b(confirm(), Switch(0))
    sender = Sender(log, Random(seed), greedy=greedy)
    rules: list[str] = []
    for seq, is_payload in order(asked):
        expected = f"{'p' if is_payload else 'm'}{seq}"
        for number, packet in enumerate(sender.piece(asked, seq, is_payload)):
            peers.b(packet)
            rules += peers.rules
            before = peers.last.cursor_before
            assert before is not None
            assert number or before.partition("+")[0] == expected
    # Nobody tells the size of the only payload.
    unknown = numbers.get("offset") is not None and len(order(asked)) == 1
    assert peers.cursor == "end" or unknown
    peers.a(Switch(0), Notify(len(order(asked))), Cancel(CancelReason.END_REACHED, 0), over())
    rules += peers.rules
    peers.b(Cancel(CancelReason.CONFIRMING, 0), over())
    rules += peers.rules
    assert set(rules) <= {"link_unknown"}
    assert not peers.session.state.proposals
    assert peers.end() == []
    for told in peers.told:
        if told.entry is not None and told.entry.data is not None and told.entry.signature != bytes(64):
            assert told.entry.data == log.entries[told.entry.seq].encode()
        if told.payload is not None and told.payload.data is not None:
            assert log.payloads[told.payload.seq].endswith(told.payload.data)
            assert told.payload.rule is None
    if lower == 1 and "offset" not in numbers and not asked.sparse:
        assert not rules


@settings(max_examples=30)
@given(data=st.data())
def test_adjusts_at_any_moment_break_nothing(log: Log, data: st.DataObject) -> None:
    """The sender learns of each adjust some packets later, and goes by it from then on."""
    asked = propose(log, 0, start=2, end=12, upper_info=13)
    peers = Peers().a(asked).b(confirm(), Switch(0))
    sender = Sender(log, Random(1), greedy=False)
    ends = sorted(data.draw(st.sets(st.integers(5, 11), max_size=2)), reverse=True)
    at = sorted(data.draw(st.lists(st.integers(0, 24), min_size=len(ends), max_size=len(ends))))
    delay = data.draw(st.integers(0, 6))
    pieces, sent = order(asked), 0
    known = asked
    while sent < len(pieces):
        for moment, end in zip(at, ends, strict=True):
            if moment == sent:
                peers.a(Adjust(0, end=end))
                assert peers.rules == []
            if moment + delay == sent and end < (known.end or 0):
                last = pieces[sent - 1] if sent else (0, False)
                known = propose(log, 0, start=2, end=end, upper_info=13)
                # What was sent stays sent; the rest is what the new plan has behind it.
                left = [piece for piece in order(known) if piece > last]
                pieces = pieces[:sent] + left
        if sent == len(pieces):
            break
        for packet in sender.piece(asked, *pieces[sent]):
            peers.b(packet)
            assert set(peers.rules) <= {"settings_suspect"}
        sent += 1
    entries = [told.entry for told in peers.told if told.entry is not None]
    assert [entry.seq for entry in entries] == [seq for seq, is_payload in pieces if not is_payload]
    assert all(entry.data == log.entries[entry.seq].encode() for entry in entries)
    assert peers.session.state.proposals[0].halves[Role.REACTIVE].versions
