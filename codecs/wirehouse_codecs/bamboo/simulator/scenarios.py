"""Scenarios in which two peers synchronise a range of a log: what the specification allows besides whole logs.

A scenario is a generator that takes one step at a time, so that several proposals are under way at once. Each scenario
has its own logs, breaks no rule and causes no note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Final

import nacl.signing

from wirehouse_codecs.bamboo.setup import Channel, Role
from wirehouse_codecs.bamboo.simulator.logs import Log
from wirehouse_codecs.bamboo.simulator.peers import Dialogue, Exchange
from wirehouse_codecs.bamboo.wire import bymux_packets
from wirehouse_codecs.bamboo.wire.bymux_packets import Type
from wirehouse_codecs.bamboo.wire.lipmaa import has_lipmaalink, lipmaa, lower_pool, upper_pool
from wirehouse_codecs.bamboo.wire.messages import (
    Apology,
    Cancel,
    CancelEntry,
    Cancelled,
    CancelReason,
    Eagerness,
    Notify,
    ProposalCredit,
    SkipReason,
)

#: Payloads have sizes of three kinds.
SMALL, MIDDLE, LARGE = 20, 300, 6_000
#: The first entry whose payload the sender of `payloads_missing` lacks.
FIRST_MISSING: Final = 5
_TEXT: Final = b"the quick brown fox jumps over the lazy dog and runs away from "


class Logs:
    """Logs of a connection that are kept, each for its own scenario."""

    def __init__(self, key: nacl.signing.SigningKey, random: Random) -> None:
        self._key, self._random = key, random
        self._ids = count()
        self.author = bytes(key.verify_key)

    def grown(self, length: int, sizes: tuple[int, ...] = (SMALL, MIDDLE, 0), *, ends: bool = False) -> Log:
        """A new log; payloads have one of `sizes`, one after the other."""
        log = Log(self._key, next(self._ids))
        for seq in range(1, length + 1):
            log.append(self.payload(log, seq, sizes[seq % len(sizes)]), end_of_log=ends and seq == length)
        return log

    def payload(self, log: Log, seq: int, size: int) -> bytes:
        """A payload of `size` bytes."""
        begin = b"%d/%d " % (log.log_id, seq) + self._random.randbytes(4).hex().encode()
        return (begin + _TEXT * (size // len(_TEXT) + 1))[:size]


Scenario = Callable[[Dialogue, Logs], Iterator[None]]


def _side(dialogue: Dialogue) -> Role:
    return dialogue.random.choice(list(Role))


def _send_all(exchange: Exchange, sender: Role, upto: int | None = None) -> Iterator[None]:
    """A side sends all that is left, or its pieces up to the one with that index, a few at a time."""
    upto = exchange.plan.size if upto is None else upto
    while exchange.index[sender] < upto:
        exchange.send(sender, min(upto - exchange.index[sender], exchange.dialogue.random.randint(1, 7)))
        yield


# Ranges


def any_range(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """A range with certificate pools; either side has the data."""
    log = logs.grown(45)
    random = dialogue.random
    start = random.randint(1, 25)
    end = random.randint(start, start + 8)
    infos = [(lower, upper) for lower in lower_pool(start) for upper in upper_pool(end) if upper <= log.length]
    lower, upper = random.choice([infos for infos in infos if _is_whole(infos[0], start, end, infos[1])])
    exchange = Exchange(dialogue, log, _side(dialogue)).propose(start, end, lower=lower, upper=upper).confirm()
    yield
    yield from _send_all(exchange, _side(dialogue))
    exchange.cancel(_side(dialogue))


def _is_whole(lower: int, start: int, end: int, upper: int) -> bool:
    """Whether all links of the entries in a range and its pools lead to others of them, or to the one expected."""
    pools = [seq for seq in lower_pool(start) if lower <= seq < start], [s for s in upper_pool(end) if end < s <= upper]
    known = {lipmaa(lower)}
    for seq in (*pools[0], *range(start, end + 1), *pools[1]):
        needed = {lipmaa(seq)} if has_lipmaalink(seq) else {seq - 1}
        if not needed - {0} <= known:
            return False
        known.add(seq)
    return True


def sparse(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Only the shortest path through a range, also through one without an end."""
    log = logs.grown(40)
    exchange = Exchange(dialogue, log, _side(dialogue)).propose(1, 30, sparse=True).confirm()
    yield
    yield from _send_all(exchange, _side(dialogue))
    exchange.cancel(_side(dialogue))
    yield
    exchange = Exchange(dialogue, log, _side(dialogue)).propose(1, sparse=True).confirm()
    sender = _side(dialogue)
    for seq in (1, 4, 13, 40):
        published = log.entries[seq]
        packets = published.metadata(backlink=seq > 1) + dialogue.payload(sender, published.payload)
        dialogue.write(sender, Channel.DATA, dialogue.switched(sender, exchange.id) + packets)
        yield
    exchange.cancel(_side(dialogue), CancelReason.RESOURCES)


def from_an_offset(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """The rest of a payload whose proposal was cancelled; then payloads alone."""
    log = logs.grown(8, (LARGE, MIDDLE))
    sender = _side(dialogue)
    exchange = Exchange(dialogue, log, sender.peer).propose(1, 6).confirm()
    yield from _send_all(exchange, sender, 11)
    exchange.part(sender, 1000)
    yield
    exchange.cancel(sender, CancelReason.RESOURCES)
    rest = Exchange(dialogue, log, sender.peer).propose(6, 8, offset=1000).confirm()
    yield
    yield from _send_all(rest, sender)
    rest.cancel(sender)
    yield
    again = Exchange(dialogue, log, sender.peer).propose(3, 7, payload_only=True).confirm()
    yield from _send_all(again, sender)
    again.cancel(sender)


# Both sides send


def each_a_part(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Each side has what the other lacks, and passes over what it was sent."""
    log = logs.grown(12)
    first = _side(dialogue)
    exchange = Exchange(dialogue, log, _side(dialogue)).propose(1, 12).confirm()
    middle = dialogue.random.randint(1, 20)
    yield from _send_all(exchange, first, middle)
    exchange.notify(first.peer, middle)
    yield
    yield from _send_all(exchange, first.peer)
    exchange.notify(first, 24 - middle)
    exchange.cancel(first)


def within_a_payload(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Inside a payload the sides change places twice."""
    log = logs.grown(2, (LARGE,))
    first = _side(dialogue)
    exchange = Exchange(dialogue, log, _side(dialogue)).propose(1, 2).confirm()
    exchange.send(first)
    exchange.part(first, 1500)
    yield
    exchange.notify(first.peer)
    exchange.part(first.peer, 1500, skips=True)
    exchange.part(first.peer, 3000)
    yield
    exchange.part(first, 3000, skips=True)
    exchange.part(first, 1500)
    yield
    exchange.part(first.peer, 1500, skips=True)
    yield from _send_all(exchange, first.peer)
    exchange.notify(first, 2)
    exchange.cancel(first)


def in_parts(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Large payloads, each in several packets, raw and compressed, with an empty one between them."""
    log = logs.grown(3, (LARGE, 0, MIDDLE))
    sender = _side(dialogue)
    exchange = Exchange(dialogue, log, _side(dialogue)).propose(1, 3).confirm()
    for seq in range(1, 4):
        exchange.send(sender)
        left = len(log.entries[seq].payload)
        while left:
            part = min(left, dialogue.random.randint(1, 2000))
            exchange.part(sender, part)
            left -= part
            yield
        if not log.entries[seq].payload:
            exchange.send(sender)
    exchange.cancel(sender)


# What is wanted


def only_notified(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """A side gets only notifies until it wants all data."""
    log = logs.grown(9)
    wanting = _side(dialogue)
    exchange = Exchange(dialogue, log, wanting).propose(1, 9, eagerness=Eagerness.NOTIFY).confirm()
    yield
    exchange.notify(wanting.peer, 2)
    exchange.notify(wanting.peer, 1)
    exchange.notify(wanting.peer, 5)
    yield
    exchange.adjust(wanting, eagerness=Eagerness.ALL)
    yield
    entry = exchange.due(wanting.peer)
    # The entries that it links to were not sent, so the links can't be known.
    assert entry.seq == 5
    exchange.cancel(wanting, CancelReason.RESOURCES)


def up_to_a_size(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Payloads above a size are only notified of, and others skipped for their size."""
    log = logs.grown(9, (SMALL, MIDDLE, LARGE))
    wanting = _side(dialogue)
    limits = (Eagerness.LIMITED, MIDDLE)
    if dialogue.random.random() < 0.5:
        exchange = Exchange(dialogue, log, wanting).propose(1, 9, eagerness=limits[0], size_limit=limits[1]).confirm()
    else:
        exchange = Exchange(dialogue, log, wanting.peer).propose(1, 9).confirm(*limits)
    exchange.adjust(wanting, min_payload=SMALL + 1, max_payload=LARGE)
    yield
    for seq in range(1, 10):
        exchange.send(wanting.peer)
        size = len(log.entries[seq].payload)
        if size == SMALL:
            exchange.skip(wanting.peer, SkipReason.TOO_SMALL)
        elif size == LARGE:
            exchange.notify(wanting.peer)
        else:
            exchange.send(wanting.peer)
        yield
    exchange.cancel(wanting)


def of_some_sizes(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Payloads are skipped as too small, too large and not at hand."""
    log = logs.grown(9, (SMALL, MIDDLE, LARGE))
    wanting = _side(dialogue)
    exchange = Exchange(dialogue, log, wanting).propose(1, 9, smallest=SMALL + 1, largest=LARGE - 1, mandatory=True)
    exchange.confirm()
    yield
    for seq in range(1, 10):
        exchange.send(wanting.peer)
        size = len(log.entries[seq].payload)
        if size == SMALL:
            exchange.skip(wanting.peer, SkipReason.TOO_SMALL)
        elif size == LARGE:
            exchange.skip(wanting.peer, SkipReason.TOO_LARGE)
        elif seq > 5:
            exchange.skip(wanting.peer, SkipReason.UNAVAILABLE)
        else:
            exchange.send(wanting.peer)
        yield
        if seq == 5:
            exchange.adjust(wanting, may_skip=True)
    exchange.cancel(wanting.peer)


def adjusted(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """The end is lowered while data is under way, first with its pool, then to what was sent."""
    log = logs.grown(40)
    sender = _side(dialogue)
    exchange = Exchange(dialogue, log, sender.peer).propose(1, 30, upper=40).confirm()
    yield from _send_all(exchange, sender, 12)
    exchange.adjust(sender.peer, end=20, upper_info=21)
    yield
    yield from _send_all(exchange, sender, 20)
    # It is ignored, for it isn't lower.
    exchange.adjust(sender, end=25)
    exchange.adjust(sender.peer, end=12, upper_info=13)
    yield from _send_all(exchange, sender)
    exchange.cancel(sender)


def without_an_end(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """A range without an end is given one; another ends with its log."""
    log = logs.grown(20)
    sender = _side(dialogue)
    exchange = Exchange(dialogue, log, sender.peer).propose().confirm()
    yield from _send_all(exchange, sender, 9)
    exchange.adjust(sender.peer, end=8, upper_info=12)
    yield from _send_all(exchange, sender)
    exchange.cancel(sender.peer)
    yield
    log = logs.grown(6, ends=True)
    exchange = Exchange(dialogue, log, sender.peer).propose().confirm()
    yield from _send_all(exchange, sender, 12)
    exchange.cancel(sender)


# Errors that are allowed


def apologies(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Greedily sent data turns out to be invalid."""
    log = logs.grown(4, (MIDDLE,))
    sender = next((role for role in Role if dialogue.manner.mode(role).greedy), None)
    if sender is None:
        return
    exchange = Exchange(dialogue, log, sender.peer).propose(1, 4).confirm()
    exchange.send(sender, 2)
    yield
    wrong = log.make(2, b"another payload").metadata()
    exchange.unsent(sender, wrong[:-1] + bytes([wrong[-1] ^ 1]), Apology())
    exchange.send(sender)
    yield
    payload = bytearray(log.entries[2].payload)
    payload[-1] ^= 1
    exchange.unsent(sender, dialogue.payload(sender, bytes(payload)), Apology())
    yield
    exchange.send(sender, 2)
    # A begin of a payload need not be wrong.
    exchange.unsent(sender, dialogue.payload(sender, log.entries[3].payload[:9]), Apology())
    yield from _send_all(exchange, sender)
    exchange.cancel(sender)


def cancelled_early(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Cancels before the confirmation, by both sides at once, and of a payload that is mandatory."""
    log = logs.grown(5)
    first = _side(dialogue)
    exchange = Exchange(dialogue, log, first).propose(2, 5)
    yield
    exchange.cancel(_side(dialogue), CancelReason.NEVER_AGAIN)
    yield
    exchange = Exchange(dialogue, log, first).propose(1, 5, mandatory=True).confirm()
    exchange.send(first.peer)
    yield
    dialogue.say(first.peer, Cancelled(exchange.id))
    dialogue.say(first.peer, Cancel(CancelReason.MANDATORY_PAYLOAD, exchange.id))
    dialogue.say(first, Cancel(CancelReason.RESOURCES, exchange.id))
    yield
    dialogue.say(first, Cancelled(exchange.id))
    exchange.forget()


def other_start(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """The expected starting hash isn't that of the other side's entry."""
    log = logs.grown(9)
    first = _side(dialogue)
    exchange = Exchange(dialogue, log, first).propose(5, lower=5, expected=log.entries[3].hash)
    yield
    shown = CancelEntry(log.entries[4].data)
    exchange.cancel(first.peer, CancelReason.STARTING_HASH, entries=(shown,))
    yield
    # The range begins within a payload, so it is the start entry's own hash.
    exchange = Exchange(dialogue, log, first).propose(1, 9, offset=0, expected=log.entries[3].hash)
    # Author and log id are left out.
    shown = CancelEntry(log.entries[1].data[:1] + log.entries[1].data[34:], whole=False)
    yield
    exchange.cancel(first.peer, CancelReason.STARTING_HASH, entries=(shown,))


def after_the_end(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """A range is proposed that would begin after the end of the log; then its last entry."""
    log = logs.grown(6, ends=True)
    first = _side(dialogue)
    exchange = Exchange(dialogue, log, first).propose(8, lower=8)
    yield
    exchange.cancel(first.peer, CancelReason.END_OF_LOG, seqnum=6)
    yield
    exchange = Exchange(dialogue, log, first).propose(6, 6, lower=6).confirm()
    yield from _send_all(exchange, first.peer)
    exchange.cancel(first.peer)


def overlapping(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Both sides propose ranges of one log at the same time: the one that begins later was never sent."""
    log = logs.grown(9)
    starts = dialogue.random.choice([(1, 5), (4, 1), (1, 1)])
    both = {role: Exchange(dialogue, log, role) for role in Role}
    # Credit comes before, for after the first proposal both are under way.
    for role in Role:
        dialogue.say(role.peer, ProposalCredit(1))
        dialogue.credit[role] += 1
    for exchange, start in zip(both.values(), starts, strict=True):
        exchange.propose(start, 9)
    dropped = Role.PROACTIVE if starts[0] > starts[1] else Role.REACTIVE
    both[dropped].forget()
    dialogue.credit[dropped] += 1
    exchange = both[dropped.peer].confirm()
    yield
    yield from _send_all(exchange, _side(dialogue))
    exchange.cancel(_side(dialogue))


# Beside the protocol


def of_no_effect(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """Packets that change nothing: pings, no credit, no pieces; and a stream of bymux for something else."""
    first = _side(dialogue)
    dialogue.say(first, ProposalCredit(0))
    exchange = Exchange(dialogue, logs.grown(3), first).propose(1, 3).confirm()
    exchange.say(first, Notify(0, True))
    yield
    if not dialogue.manner.two_connections:
        stream_id = dialogue.streams[Channel.DATA]
        dialogue.bymux(first, bymux_packets.Packet(Type.PING))
        dialogue.bymux(first.peer, bymux_packets.Packet(Type.PONG))
        dialogue.bymux(first, bymux_packets.Packet(Type.PING, stream_id))
        dialogue.bymux(first.peer, bymux_packets.Packet(Type.PONG, stream_id))
        yield
        other = 99 - (first is Role.PROACTIVE)
        dialogue.bymux(first.peer, bymux_packets.Packet(Type.CREDIT, None, 1))
        dialogue.bymux(first, bymux_packets.Packet(Type.WRITE, None, other))
        dialogue.bymux(first.peer, bymux_packets.Packet(Type.CREDIT, other, 100))
        dialogue.bymux(first, bymux_packets.Packet(Type.WRITE, other, 5), b"hello")
        yield
        dialogue.shut(other)
    yield from _send_all(exchange, first.peer)
    exchange.cancel(first)


def forked(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """The sides have different branches of a log; one of them can prove it."""
    log = logs.grown(9)
    branch = log.branch(2)
    for seq in range(3, 10):
        branch.append(b"branch %d" % seq)
    first = _side(dialogue)
    exchange = Exchange(dialogue, log, first).propose(8, lower=8)
    yield
    shown = tuple(CancelEntry(one.entries[3].data) for one in (log, branch))
    exchange.cancel(first.peer, CancelReason.FORKED, entries=shown)
    yield


def payloads_missing(dialogue: Dialogue, logs: Logs) -> Iterator[None]:
    """The sender has all entries of a log, but not the payloads of the last ones."""
    log = logs.grown(12)
    wanting = _side(dialogue)
    exchange = Exchange(dialogue, log, wanting).propose(1, log.length).confirm()
    for seq in range(1, log.length + 1):
        exchange.send(wanting.peer)
        if seq < FIRST_MISSING:
            exchange.send(wanting.peer)
        else:
            exchange.skip(wanting.peer, SkipReason.UNAVAILABLE)
        yield
    exchange.cancel(wanting)


SCENARIOS: Final[tuple[Scenario, ...]] = (
    any_range,
    in_parts,
    each_a_part,
    up_to_a_size,
    without_an_end,
    apologies,
    of_some_sizes,
    from_an_offset,
    adjusted,
    within_a_payload,
    overlapping,
    sparse,
    other_start,
    after_the_end,
    only_notified,
    cancelled_early,
    of_no_effect,
)


def at_once(dialogue: Dialogue, scenarios: list[Iterator[None]], most: int = 3) -> Iterator[None]:
    """Run scenarios, `most` at once; chance decides which one takes the next step."""
    waiting, running = list(scenarios), list[Iterator[None]]()
    while waiting or running:
        while waiting and len(running) < most:
            running.append(waiting.pop(0))
        scenario = dialogue.random.choice(running)
        if next(scenario, _OVER) is _OVER:
            running.remove(scenario)
        yield


_OVER: Final = object()
