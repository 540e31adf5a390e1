"""Scripts of connections on which a peer breaks a rule of Bamboo Point-2-Point. `faults.py` lists them by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wirehouse_codecs.bamboo.setup import Channel, Role
from wirehouse_codecs.bamboo.simulator.faulty_entries import Make, made_log
from wirehouse_codecs.bamboo.simulator.logs import Log, Published, author_key
from wirehouse_codecs.bamboo.simulator.peers import LATENCY_NS, Dialogue, Exchange
from wirehouse_codecs.bamboo.wire import bymux_packets, varu64, yamf
from wirehouse_codecs.bamboo.wire.bymux_packets import Type
from wirehouse_codecs.bamboo.wire.encoding import encode
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES
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
    ProposalCredit,
    RawPayload,
    SkipBytes,
    SkipReason,
    Switch,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64

A, B = Role.PROACTIVE, Role.REACTIVE
#: The stream of the data channel, and one that there isn't.
DATA: Final = 1
STRANGE: Final = 44
#: An id that nobody has proposed.
UNKNOWN_ID: Final = 44


class FaultScript(Dialogue):
    """A connection on which a rule is broken: by A, the proactive side, where it doesn't matter."""

    #: Packets from before were not captured.
    captured_from_ns: int = 0

    def log(self, length: int, payload_bytes: int = 40, *, ends: bool = False) -> Log:
        """The log of most scripts."""
        return made_log(self.random.getrandbits(32), length, payload_bytes, ends=ends)

    def exchange(self, log: Log, proposer: Role = A) -> Exchange:
        """A proposal for a log, not sent yet."""
        return Exchange(self, log, proposer)

    def begun(self, length: int = 4, payload_bytes: int = 40) -> Exchange:
        """B has proposed all of a log, A has confirmed and may send."""
        return self.exchange(self.log(length, payload_bytes), B).propose(1, length).confirm()

    def raw(self, role: Role, data: bytes) -> None:
        """Bytes between packets of bymux, or of the control channel."""
        self.send(role, Channel.CONTROL, data)


Act = Callable[[FaultScript], None]


# bymux


def unassigned_type(script: FaultScript) -> None:
    """A header has type 110."""
    script.raw(A, b"\xc0")


def strange_stream(script: FaultScript) -> None:
    """Credit is given for a stream that there isn't."""
    script.bymux(A, bymux_packets.Packet(Type.CREDIT, STRANGE, 1))


def writes_at_once(script: FaultScript) -> None:
    """A side writes to the data channel before it is given credit."""
    script.raw(A, bymux_packets.write(DATA, encode(Notify())))


def too_much_credit(script: FaultScript) -> None:
    """The credit of the data channel is raised to 2^64 + 3."""
    for amount in (MAX_U64 - 1, 5):
        script.bymux(A, bymux_packets.Packet(Type.CREDIT, DATA, amount))


def credit_for_control(script: FaultScript) -> None:
    """Credit is given for the control channel, which has no backpressure."""
    script.bymux(A, bymux_packets.Packet(Type.CREDIT, 0, 5))


def too_many_creations(script: FaultScript) -> None:
    """The credit for creating streams is raised to 2^64."""
    for amount in (MAX_U64, 1):
        script.bymux(A, bymux_packets.Packet(Type.CREDIT, None, amount))


def creates(script: FaultScript, stream_id: int, credit: int = 1) -> None:
    """A side creates a stream, with credit for it."""
    if credit:
        script.bymux(B, bymux_packets.Packet(Type.CREDIT, None, credit))
    script.bymux(A, bymux_packets.Packet(Type.WRITE, None, stream_id))


def creates_without_credit(script: FaultScript) -> None:
    """A stream is created without credit."""
    creates(script, STRANGE, 0)


def creates_odd(script: FaultScript) -> None:
    """The proactive side creates a stream with an odd id."""
    creates(script, STRANGE + 1)


def creates_again(script: FaultScript) -> None:
    """The stream of the control channel is created again."""
    creates(script, 0)


def creates_after_close(script: FaultScript) -> None:
    """A side closes creating streams, for which it has credit, and creates one."""
    script.bymux(B, bymux_packets.Packet(Type.CREDIT, None, 1))
    script.bymux(A, bymux_packets.Packet(Type.CLOSE))
    creates(script, STRANGE, 0)


def about_a_stream(*types: Type, stream_id: int | None = DATA, amount: int | None = None) -> Act:
    """Packets of bymux about one stream, one after the other."""

    def act(script: FaultScript) -> None:
        for kind in types:
            with_amount = kind in (Type.CREDIT, Type.WRITE)
            script.bymux(A, bymux_packets.Packet(kind, stream_id, amount if with_amount else None))

    return act


def writes_after_close(script: FaultScript) -> None:
    """A side closes the data channel, for which it has credit, and writes to it."""
    script.bymux(B, bymux_packets.Packet(Type.CREDIT, DATA, 100))
    script.bymux(A, bymux_packets.Packet(Type.CLOSE, DATA))
    script.raw(A, bymux_packets.write(DATA, encode(Notify())))


def closes_alone(script: FaultScript) -> None:
    """The connection ends in order after a Close that has no answer."""
    script.bymux(A, bymux_packets.Packet(Type.CLOSE, DATA))
    script.close()


def wide_ping(script: FaultScript) -> None:
    """The id in a Ping takes eight bytes."""
    script.bymux(A, bymux_packets.Packet(Type.PING, DATA, id_width=8))


def infinite_data(script: FaultScript) -> None:
    """The data channel is given infinite credit."""
    script.bymux(A, bymux_packets.Packet(Type.CREDIT, DATA, 0))


def captured_late(script: FaultScript) -> None:
    """The capture begins after the set-up."""
    script.wait(LATENCY_NS)
    script.captured_from_ns = script.now_ns
    for role in (A, B, A, B, A, B):
        script.say(role, ProposalCredit(1))


def half_a_packet(script: FaultScript) -> None:
    """The connection ends inside a proposal for credit."""
    script.write(A, Channel.CONTROL, encode(ProposalCredit(1000))[:2])
    script.close()


def long_number(script: FaultScript) -> None:
    """Credit of 1 is written in two bytes."""
    script.write(A, Channel.CONTROL, b"\x00\xf8\x01")


# The control channel


def unused_control(script: FaultScript) -> None:
    """A packet begins with byte 136."""
    script.write(A, Channel.CONTROL, b"\x88")


def end_zero(script: FaultScript) -> None:
    """The end of a range becomes entry 0."""
    script.say(B, Adjust(script.begun().id, end=0))


def too_much_proposal_credit(script: FaultScript) -> None:
    """Credit of 2^64 - 1 comes on top of what was given."""
    script.say(A, ProposalCredit(MAX_U64))


def proposes_too_often(script: FaultScript) -> None:
    """All credit is spent on proposals, and one more is sent."""
    log = script.log(1)
    for left in range(script.credit[A], -1, -1):
        script.credit[A] = max(left, 1)
        script.exchange(log).propose(1, 1)


def proposes_with_id(script: FaultScript, number: int) -> None:
    """A proposal has an id that isn't chosen as it should be."""
    exchange = script.exchange(script.log(1))
    exchange.id = number
    exchange.propose(1, 1)


def odd_id(script: FaultScript) -> None:
    """The proactive side proposes id 1."""
    proposes_with_id(script, 1)


def id_again(script: FaultScript) -> None:
    """Two proposals have id 0."""
    proposes_with_id(script, 0)
    proposes_with_id(script, 0)


def adjusts_unknown(script: FaultScript) -> None:
    """An adjust is about an id that nobody has proposed."""
    script.say(A, Adjust(UNKNOWN_ID, may_skip=True))


def cancels_again(script: FaultScript) -> None:
    """One side cancels a proposal twice."""
    exchange = script.begun()
    for _ in range(2):
        script.say(A, Cancel(CancelReason.RESOURCES, exchange.id))


def confirms_nothing(script: FaultScript) -> None:
    """The first adjust of the side that did not propose only allows to skip payloads."""
    exchange = script.exchange(script.log(1)).propose(1, 1)
    script.say(B, Adjust(exchange.id, may_skip=True))


def proposes(start: int, end: int, lower: int = 1, upper: int | None = None) -> Act:
    """A proposal with these numbers."""

    def act(script: FaultScript) -> None:
        script.exchange(script.log(13)).propose(start, end, lower=lower, upper=upper)

    return act


def lowers_minimum(script: FaultScript) -> None:
    """The smallest payload size is raised to 10, and lowered to 5."""
    exchange = script.begun()
    for size in (10, 5):
        exchange.adjust(B, min_payload=size)


def raises_maximum(script: FaultScript) -> None:
    """The largest payload size is lowered to 5, and raised to 10."""
    exchange = script.begun()
    for size in (5, 10):
        exchange.adjust(B, max_payload=size)


def confirms_no_cancel(script: FaultScript) -> None:
    """A side confirms a cancel before the other has cancelled."""
    exchange = script.begun()
    script.say(A, Cancel(CancelReason.CONFIRMING, exchange.id))
    script.say(B, Cancel(CancelReason.CONFIRMING, exchange.id))
    for role in (A, B):
        script.say(role, Cancelled(exchange.id))


def expects_another(script: FaultScript) -> None:
    """A range is proposed after another entry than the other side just sent, which cancels for another reason."""
    exchange = script.begun(5)
    exchange.send(A, 10)
    exchange.cancel(A)
    other = exchange.entry(2).hash
    again = script.exchange(script.log(1))
    again.log = exchange.log
    again.propose(5, lower=5, expected=other)
    again.cancel(B, CancelReason.NEVER_AGAIN)


def cancels_alone(script: FaultScript) -> None:
    """The connection ends in order when one side has cancelled a proposal."""
    exchange = script.begun()
    script.say(A, Cancel(CancelReason.RESOURCES, exchange.id))


def never_answered(script: FaultScript) -> None:
    """A proposal has no answer."""
    script.exchange(script.log(1)).propose(1, 1)


# The data channel


def unused_data(script: FaultScript) -> None:
    """A packet begins with byte 1."""
    script.write(A, Channel.DATA, b"\x01")


def switches_to_unknown(script: FaultScript) -> None:
    """A side makes an id the current one that nobody has proposed."""
    script.say(A, Switch(UNKNOWN_ID))


def cancelled_unknown(script: FaultScript) -> None:
    """A side confirms the cancel of an id that nobody has proposed."""
    script.say(A, Cancelled(UNKNOWN_ID))


def forgets_to_switch(script: FaultScript) -> None:
    """Metadata is sent before there is a current proposal."""
    exchange = script.begun()
    script.write(A, Channel.DATA, exchange.entry(1).metadata())


def goes_on_after_cancel(script: FaultScript) -> None:
    """A side goes on with a proposal that it has cancelled."""
    exchange = script.begun()
    exchange.send(A, 2)
    script.say(A, Cancelled(exchange.id))
    exchange.send(A, 1)


def payload_first(script: FaultScript) -> None:
    """A payload is sent before its metadata."""
    exchange = script.begun()
    exchange.unsent(A, encode(RawPayload(3, b"abc")))


def one_too_many(script: FaultScript) -> None:
    """A notify is of one piece more than there is."""
    exchange = script.begun(2)
    exchange.send(A, 4)
    exchange.say(A, Notify())


def after_end(script: FaultScript) -> None:
    """Metadata follows the end-of-log entry and its payload."""
    log = script.log(2, ends=True)
    exchange = script.exchange(log, B).propose().confirm()
    exchange.send(A, 4)
    exchange.unsent(A, log.make(3, b"more").metadata())


def byte_too_many(script: FaultScript) -> None:
    """A payload has one byte more than its metadata states."""
    exchange = script.begun()
    exchange.send(A)
    exchange.unsent(A, encode(RawPayload(41, bytes(41))))


def compressed(size: int, elements: bytes) -> Act:
    """A compressed payload packet with these elements."""

    def act(script: FaultScript) -> None:
        exchange = script.begun()
        exchange.send(A)
        exchange.unsent(A, encode(CompressedPayload(size, len(elements), elements)))

    return act


def unasked_data(script: FaultScript) -> None:
    """Metadata is sent to a side that wants only notifies."""
    exchange = script.exchange(script.log(2), B).propose(1, 2, eagerness=Eagerness.NOTIFY).confirm()
    exchange.send(A)


def called_small(script: FaultScript) -> None:
    """A payload is skipped as too small, where no size is."""
    exchange = script.begun()
    exchange.send(A)
    exchange.skip(A, SkipReason.TOO_SMALL)


def not_at_hand(script: FaultScript) -> None:
    """A payload is skipped that is mandatory."""
    exchange = script.exchange(script.log(2), B).propose(1, 2, mandatory=True).confirm()
    exchange.send(A)
    exchange.skip(A, SkipReason.UNAVAILABLE)


def skips_ahead(script: FaultScript) -> None:
    """Bytes are skipped that nobody has sent."""
    exchange = script.begun()
    exchange.send(A)
    exchange.say(A, SkipBytes(5))


def sorry_for_nothing(script: FaultScript) -> None:
    """An apology is the first packet."""
    script.begun().say(A, Apology())


def wrong_metadata(published: Published) -> bytes:
    """Metadata whose signature is wrong."""
    metadata = published.metadata()
    return metadata[:-1] + bytes([metadata[-1] ^ 0x80])


def sorry_twice(script: FaultScript) -> None:
    """Two apologies are for one piece."""
    exchange = script.begun()
    exchange.unsent(A, wrong_metadata(exchange.due(A)), Apology(), Apology())


def sorry_for_right(script: FaultScript) -> None:
    """An apology is for a whole payload that is right."""
    exchange = script.begun()
    exchange.send(A, 2)
    exchange.say(A, Apology())


def other_payload(script: FaultScript) -> None:
    """A payload has another hash than its metadata states."""
    exchange = script.begun()
    exchange.send(A)
    exchange.unsent(A, encode(RawPayload(40, bytes(40))))
    exchange.pass_over(A)
    exchange.send(A)


def wrong_signature(script: FaultScript) -> None:
    """The signature of the last entry is wrong."""
    exchange = script.begun(2)
    exchange.send(A, 2)
    exchange.unsent(A, wrong_metadata(exchange.due(A)))
    exchange.pass_over(A)
    exchange.send(A)


def sorry_for_signed(script: FaultScript) -> None:
    """An apology is for metadata that is right."""
    exchange = script.begun(2)
    exchange.send(A)
    exchange.say(A, Apology())


def below_minimum(script: FaultScript) -> None:
    """A payload of 40 bytes is sent to a side that wants none below 41."""
    exchange = script.exchange(script.log(2), B).propose(1, 2, smallest=41).confirm()
    exchange.send(A, 2)
    exchange.cancel(B, CancelReason.RESOURCES)


def crossed(script: FaultScript) -> None:
    """Data comes after its receiver has asked for notifies alone."""
    exchange = script.begun()
    exchange.send(A, 2)
    exchange.adjust(B, eagerness=Eagerness.NOTIFY)
    exchange.send(A)
    exchange.cancel(B, CancelReason.RESOURCES)


def far_link(script: FaultScript) -> None:
    """Entry 4 is sent on a proposal that begins with entry 3, so that entry 1 is not known."""
    exchange = script.exchange(script.log(4), B).propose(3, 4, lower=3).confirm()
    exchange.send(A, 4)
    exchange.cancel(A)


def lost_history(script: FaultScript) -> None:
    """The capture begins late, and a payload copies from what came before."""
    captured_late(script)
    exchange = script.begun()
    exchange.send(A)
    elements = b"\x85\x09" + bytes([35]) + bytes(35)
    exchange.unsent(A, encode(CompressedPayload(40, len(elements), elements)))
    exchange.pass_over(A)
    exchange.cancel(B, CancelReason.RESOURCES)


# Entries that cancels show


def shows(make: Make) -> Act:
    """A side sends the logs that are right, and then shows an entry as one that another hash was expected of."""

    def act(script: FaultScript) -> None:
        bad = make(script.random.getrandbits(32))
        for log in filter(lambda log: log.length, bad.right):
            exchange = script.exchange(log, B).propose(1, log.length).confirm()
            exchange.send(A, 2 * log.length)
            exchange.cancel(A)
        place = varu64.decode(bad.data, 1 + AUTHOR_BYTES)
        assert place is not None
        seq = varu64.decode(bad.data, place.end)
        assert seq is not None
        log = Log(author_key(0, "expected"), place.value)
        log.author = bad.data[1 : 1 + AUTHOR_BYTES]
        exchange = script.exchange(log, B)
        exchange.propose(max(seq.value, 1), offset=0, expected=yamf.digest(b"another entry"))
        exchange.cancel(A, CancelReason.STARTING_HASH, entries=(CancelEntry(bad.data),))

    return act


def proves_fork(script: FaultScript) -> None:
    """A cancel shows two entries 3 of a log."""
    log = script.log(4)
    exchange = script.exchange(log, B).propose(1, 4).confirm()
    exchange.send(A, 8)
    exchange.cancel(A)
    shown = tuple(CancelEntry(one.data) for one in (log.entries[3], log.make(3, b"another entry 3")))
    exchange = script.exchange(log, B)
    exchange.propose(8, lower=8)
    exchange.cancel(A, CancelReason.FORKED, entries=shown)
