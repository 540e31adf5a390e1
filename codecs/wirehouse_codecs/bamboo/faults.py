"""For every rule what breaks it, connections and files of entries: what simulator.py adds if it is asked for a fault.

A fault breaks its rule for certain, and of the others only those that follow from it by the specification. It has peers
and logs of its own. Rules of entries are broken in files of entries; and on a connection by a cancel that shows such an
entry, if it can hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from wirehouse_codecs.bamboo import bymux, varu64, yamf
from wirehouse_codecs.bamboo.bymux import Channel, Role, Type
from wirehouse_codecs.bamboo.entries import AUTHOR_BYTES, SIGNATURE_BYTES
from wirehouse_codecs.bamboo.entry_files import Written
from wirehouse_codecs.bamboo.logs import Log, Published, author_key
from wirehouse_codecs.bamboo.messages import (
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
    Setup,
    SkipBytes,
    SkipReason,
    Switch,
    encode,
)
from wirehouse_codecs.bamboo.peers import LATENCY_NS, Exchange, Manner, Talk
from wirehouse_codecs.bamboo.rules import BYMUX_RULES, ENDS
from wirehouse_codecs.bamboo.varu64 import MAX_U64
from wirehouse_codecs.conversations import Ending

A, B = Role.PROACTIVE, Role.REACTIVE
#: The stream of the data channel, and one that there isn't.
DATA: Final = 1
STRANGE: Final = 44
#: An id that nobody has proposed.
UNKNOWN_ID: Final = 44


class Scene(Talk):
    """A connection on which a rule is broken: by A, the proactive side, where it doesn't matter."""

    #: Packets from before were not captured.
    captured_from_ns: int = 0

    def log(self, length: int, payload_bytes: int = 40, *, ends: bool = False) -> Log:
        """The log of most scenes."""
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


def made_log(seed: int, length: int, payload_bytes: int = 40, *, ends: bool = False, log_id: int = 0) -> Log:
    """A log whose payloads have the same size."""
    log = Log(author_key(seed, "faulty"), log_id)
    for seq in range(1, length + 1):
        payload = (b"%d of %d, " % (seq, seed) * payload_bytes)[:payload_bytes]
        log.append(payload, end_of_log=ends and seq == length)
    return log


Act = Callable[[Scene], None]


class Bad(NamedTuple):
    """An entry that breaks a rule beside others that are right."""

    right: tuple[Log, ...]
    data: bytes
    payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to break one rule."""

    #: What is wrong, one sentence.
    sentence: str
    #: What happens on the connection; None: only a file of entries can break the rule.
    act: Act | None
    #: How the peers send.
    greedy: bool = False
    window: int = 1024
    #: Rules that are broken by it, too.
    also: tuple[str, ...] = ()
    #: Of a rule of entries: what a file has.
    entries: Callable[[int], Bad] | None = None
    #: What is broken, of faults with other names.
    rule: str | None = None

    def manner(self, client: Role, *, two_connections: bool) -> Manner:
        """How the peers speak."""
        setup = Setup(self.greedy, self.greedy, self.window, self.window)
        return Manner(dict.fromkeys(Role, setup), client, two_connections=two_connections)

    def play(self, name: str, scene: Scene) -> None:
        """All that is said on the connection."""
        assert self.act is not None
        scene.begin()
        self.act(scene)
        if (self.rule or name) in ENDS:
            scene.close(Ending.RESET)
        elif name not in LEFT_OPEN:
            scene.end()

    def written(self, seed: int) -> list[Written]:
        """The entries of a file."""
        if self.entries is None:
            return []
        bad = self.entries(seed)
        right = [Written(one.data, one.payload) for log in bad.right for one in log.entries.values()]
        return [*right, Written(bad.data, bad.payload)]


#: Their connections end in a way of their own.
LEFT_OPEN: Final = frozenset({"close_not_answered", "truncated_packet"})


#: Broken only where there is bymux: also what comes of a set-up, and of packets that are found again.
OF_BYMUX: Final = frozenset(rule.name for rule in BYMUX_RULES) - {"truncated_packet", "noncanonical_varu64"} | {
    "history_unknown"
}


# bymux


def unassigned_type(scene: Scene) -> None:
    """A header has type 110."""
    scene.raw(A, b"\xc0")


def strange_stream(scene: Scene) -> None:
    """Credit is given for a stream that there isn't."""
    scene.bymux(A, bymux.Packet(Type.CREDIT, STRANGE, 1))


def writes_at_once(scene: Scene) -> None:
    """A side writes to the data channel before it is given credit."""
    scene.raw(A, bymux.write(DATA, encode(Notify())))


def too_much_credit(scene: Scene) -> None:
    """The credit of the data channel is raised to 2^64 + 3."""
    for amount in (MAX_U64 - 1, 5):
        scene.bymux(A, bymux.Packet(Type.CREDIT, DATA, amount))


def credit_for_control(scene: Scene) -> None:
    """Credit is given for the control channel, which has no backpressure."""
    scene.bymux(A, bymux.Packet(Type.CREDIT, 0, 5))


def too_many_creations(scene: Scene) -> None:
    """The credit for creating streams is raised to 2^64."""
    for amount in (MAX_U64, 1):
        scene.bymux(A, bymux.Packet(Type.CREDIT, None, amount))


def creates(scene: Scene, stream_id: int, credit: int = 1) -> None:
    """A side creates a stream, with credit for it."""
    if credit:
        scene.bymux(B, bymux.Packet(Type.CREDIT, None, credit))
    scene.bymux(A, bymux.Packet(Type.WRITE, None, stream_id))


def creates_without_credit(scene: Scene) -> None:
    """A stream is created without credit."""
    creates(scene, STRANGE, 0)


def creates_odd(scene: Scene) -> None:
    """The proactive side creates a stream with an odd id."""
    creates(scene, STRANGE + 1)


def creates_again(scene: Scene) -> None:
    """The stream of the control channel is created again."""
    creates(scene, 0)


def creates_after_close(scene: Scene) -> None:
    """A side closes creating streams, for which it has credit, and creates one."""
    scene.bymux(B, bymux.Packet(Type.CREDIT, None, 1))
    scene.bymux(A, bymux.Packet(Type.CLOSE))
    creates(scene, STRANGE, 0)


def twice(*types: Type, stream_id: int | None = DATA, amount: int | None = None) -> Act:
    """Packets of bymux about one stream, one after the other."""

    def act(scene: Scene) -> None:
        for kind in types:
            with_amount = kind in (Type.CREDIT, Type.WRITE)
            scene.bymux(A, bymux.Packet(kind, stream_id, amount if with_amount else None))

    return act


def writes_after_close(scene: Scene) -> None:
    """A side closes the data channel, for which it has credit, and writes to it."""
    scene.bymux(B, bymux.Packet(Type.CREDIT, DATA, 100))
    scene.bymux(A, bymux.Packet(Type.CLOSE, DATA))
    scene.raw(A, bymux.write(DATA, encode(Notify())))


def closes_alone(scene: Scene) -> None:
    """The connection ends in order after a Close that has no answer."""
    scene.bymux(A, bymux.Packet(Type.CLOSE, DATA))
    scene.close()


def wide_ping(scene: Scene) -> None:
    """The id in a Ping takes eight bytes."""
    scene.bymux(A, bymux.Packet(Type.PING, DATA, id_width=8))


def infinite_data(scene: Scene) -> None:
    """The data channel is given infinite credit."""
    scene.bymux(A, bymux.Packet(Type.CREDIT, DATA, 0))


def captured_late(scene: Scene) -> None:
    """The capture begins after the set-up."""
    scene.wait(LATENCY_NS)
    scene.captured_from_ns = scene.now_ns
    for role in (A, B, A, B, A, B):
        scene.say(role, ProposalCredit(1))


def half_a_packet(scene: Scene) -> None:
    """The connection ends inside a proposal for credit."""
    scene.write(A, Channel.CONTROL, encode(ProposalCredit(1000))[:2])
    scene.close()


def long_number(scene: Scene) -> None:
    """Credit of 1 is written in two bytes."""
    scene.write(A, Channel.CONTROL, b"\x00\xf8\x01")


# The control channel


def unused_control(scene: Scene) -> None:
    """A packet begins with byte 136."""
    scene.write(A, Channel.CONTROL, b"\x88")


def end_zero(scene: Scene) -> None:
    """The end of a range becomes entry 0."""
    scene.say(B, Adjust(scene.begun().id, end=0))


def too_much_proposal_credit(scene: Scene) -> None:
    """Credit of 2^64 - 1 comes on top of what was given."""
    scene.say(A, ProposalCredit(MAX_U64))


def proposes_too_often(scene: Scene) -> None:
    """All credit is spent on proposals, and one more is sent."""
    log = scene.log(1)
    for left in range(scene.credit[A], -1, -1):
        scene.credit[A] = max(left, 1)
        scene.exchange(log).propose(1, 1)


def proposes_with_id(scene: Scene, number: int) -> None:
    """A proposal has an id that isn't chosen as it should be."""
    exchange = scene.exchange(scene.log(1))
    exchange.id = number
    exchange.propose(1, 1)


def odd_id(scene: Scene) -> None:
    """The proactive side proposes id 1."""
    proposes_with_id(scene, 1)


def id_again(scene: Scene) -> None:
    """Two proposals have id 0."""
    proposes_with_id(scene, 0)
    proposes_with_id(scene, 0)


def adjusts_unknown(scene: Scene) -> None:
    """An adjust is about an id that nobody has proposed."""
    scene.say(A, Adjust(UNKNOWN_ID, may_skip=True))


def cancels_again(scene: Scene) -> None:
    """One side cancels a proposal twice."""
    exchange = scene.begun()
    for _ in range(2):
        scene.say(A, Cancel(CancelReason.RESOURCES, exchange.id))


def confirms_nothing(scene: Scene) -> None:
    """The first adjust of the side that did not propose only allows to skip payloads."""
    exchange = scene.exchange(scene.log(1)).propose(1, 1)
    scene.say(B, Adjust(exchange.id, may_skip=True))


def proposes(start: int, end: int, lower: int = 1, upper: int | None = None) -> Act:
    """A proposal with these numbers."""

    def act(scene: Scene) -> None:
        scene.exchange(scene.log(13)).propose(start, end, lower=lower, upper=upper)

    return act


def lowers_minimum(scene: Scene) -> None:
    """The smallest payload size is raised to 10, and lowered to 5."""
    exchange = scene.begun()
    for size in (10, 5):
        exchange.adjust(B, min_payload=size)


def raises_maximum(scene: Scene) -> None:
    """The largest payload size is lowered to 5, and raised to 10."""
    exchange = scene.begun()
    for size in (5, 10):
        exchange.adjust(B, max_payload=size)


def confirms_no_cancel(scene: Scene) -> None:
    """A side confirms a cancel before the other has cancelled."""
    exchange = scene.begun()
    scene.say(A, Cancel(CancelReason.CONFIRMING, exchange.id))
    scene.say(B, Cancel(CancelReason.CONFIRMING, exchange.id))
    for role in (A, B):
        scene.say(role, Cancelled(exchange.id))


def expects_another(scene: Scene) -> None:
    """A range is proposed after another entry than the other side just sent, which cancels for another reason."""
    exchange = scene.begun(5)
    exchange.send(A, 10)
    exchange.cancel(A)
    other = exchange.entry(2).hash
    again = scene.exchange(scene.log(1))
    again.log = exchange.log
    again.propose(5, lower=5, expected=other)
    again.cancel(B, CancelReason.NEVER_AGAIN)


def cancels_alone(scene: Scene) -> None:
    """The connection ends in order when one side has cancelled a proposal."""
    exchange = scene.begun()
    scene.say(A, Cancel(CancelReason.RESOURCES, exchange.id))


def never_answered(scene: Scene) -> None:
    """A proposal has no answer."""
    scene.exchange(scene.log(1)).propose(1, 1)


# The data channel


def unused_data(scene: Scene) -> None:
    """A packet begins with byte 1."""
    scene.write(A, Channel.DATA, b"\x01")


def switches_to_unknown(scene: Scene) -> None:
    """A side makes an id the current one that nobody has proposed."""
    scene.say(A, Switch(UNKNOWN_ID))


def cancelled_unknown(scene: Scene) -> None:
    """A side says that an id is cancelled that nobody has proposed."""
    scene.say(A, Cancelled(UNKNOWN_ID))


def forgets_to_switch(scene: Scene) -> None:
    """Metadata is sent before there is a current proposal."""
    exchange = scene.begun()
    scene.write(A, Channel.DATA, exchange.entry(1).metadata())


def goes_on_after_cancel(scene: Scene) -> None:
    """A side goes on with a proposal that it has cancelled."""
    exchange = scene.begun()
    exchange.send(A, 2)
    scene.say(A, Cancelled(exchange.id))
    exchange.send(A, 1)


def payload_first(scene: Scene) -> None:
    """A payload is sent before its metadata."""
    exchange = scene.begun()
    exchange.unsaid(A, encode(RawPayload(3, b"abc")))


def one_too_many(scene: Scene) -> None:
    """A notify is of one piece more than there is."""
    exchange = scene.begun(2)
    exchange.send(A, 4)
    exchange.say(A, Notify())


def after_end(scene: Scene) -> None:
    """Metadata follows the end-of-log entry and its payload."""
    log = scene.log(2, ends=True)
    exchange = scene.exchange(log, B).propose().confirm()
    exchange.send(A, 4)
    exchange.unsaid(A, log.make(3, b"more").metadata())


def byte_too_many(scene: Scene) -> None:
    """A payload has one byte more than its metadata says."""
    exchange = scene.begun()
    exchange.send(A)
    exchange.unsaid(A, encode(RawPayload(41, bytes(41))))


def compressed(size: int, elements: bytes) -> Act:
    """A compressed payload packet with these elements."""

    def act(scene: Scene) -> None:
        exchange = scene.begun()
        exchange.send(A)
        exchange.unsaid(A, encode(CompressedPayload(size, len(elements), elements)))

    return act


def unasked_data(scene: Scene) -> None:
    """Metadata is sent to a side that wants only notifies."""
    exchange = scene.exchange(scene.log(2), B).propose(1, 2, eagerness=Eagerness.NOTIFY).confirm()
    exchange.send(A)


def called_small(scene: Scene) -> None:
    """A payload is skipped as too small, where no size is."""
    exchange = scene.begun()
    exchange.send(A)
    exchange.skip(A, SkipReason.TOO_SMALL)


def not_at_hand(scene: Scene) -> None:
    """A payload is skipped that is mandatory."""
    exchange = scene.exchange(scene.log(2), B).propose(1, 2, mandatory=True).confirm()
    exchange.send(A)
    exchange.skip(A, SkipReason.UNAVAILABLE)


def skips_ahead(scene: Scene) -> None:
    """Bytes are skipped that nobody has sent."""
    exchange = scene.begun()
    exchange.send(A)
    exchange.say(A, SkipBytes(5))


def sorry_for_nothing(scene: Scene) -> None:
    """An apology is the first packet."""
    scene.begun().say(A, Apology())


def wrong_metadata(published: Published) -> bytes:
    """Metadata whose signature is wrong."""
    metadata = published.metadata()
    return metadata[:-1] + bytes([metadata[-1] ^ 0x80])


def sorry_twice(scene: Scene) -> None:
    """Two apologies are for one piece."""
    exchange = scene.begun()
    exchange.unsaid(A, wrong_metadata(exchange.due(A)), Apology(), Apology())


def sorry_for_right(scene: Scene) -> None:
    """An apology is for a whole payload that is right."""
    exchange = scene.begun()
    exchange.send(A, 2)
    exchange.say(A, Apology())


def other_payload(scene: Scene) -> None:
    """A payload has another hash than its metadata says."""
    exchange = scene.begun()
    exchange.send(A)
    exchange.unsaid(A, encode(RawPayload(40, bytes(40))))
    exchange.pass_over(A)
    exchange.send(A)


def wrong_signature(scene: Scene) -> None:
    """The signature of the last entry is wrong."""
    exchange = scene.begun(2)
    exchange.send(A, 2)
    exchange.unsaid(A, wrong_metadata(exchange.due(A)))
    exchange.pass_over(A)
    exchange.send(A)


def sorry_for_signed(scene: Scene) -> None:
    """An apology is for metadata that is right."""
    exchange = scene.begun(2)
    exchange.send(A)
    exchange.say(A, Apology())


def below_minimum(scene: Scene) -> None:
    """A payload of 40 bytes is sent to a side that wants none below 41."""
    exchange = scene.exchange(scene.log(2), B).propose(1, 2, smallest=41).confirm()
    exchange.send(A, 2)
    exchange.cancel(B, CancelReason.RESOURCES)


def crossed(scene: Scene) -> None:
    """Data comes after its receiver has asked for notifies alone."""
    exchange = scene.begun()
    exchange.send(A, 2)
    exchange.adjust(B, eagerness=Eagerness.NOTIFY)
    exchange.send(A)
    exchange.cancel(B, CancelReason.RESOURCES)


def far_link(scene: Scene) -> None:
    """Entry 4 is sent on a proposal that begins with entry 3, so that entry 1 is not known."""
    exchange = scene.exchange(scene.log(4), B).propose(3, 4, lower=3).confirm()
    exchange.send(A, 4)
    exchange.cancel(A)


def lost_history(scene: Scene) -> None:
    """The capture begins late, and a payload copies from what came before."""
    captured_late(scene)
    exchange = scene.begun()
    exchange.send(A)
    elements = b"\x85\x09" + bytes([35]) + bytes(35)
    exchange.unsaid(A, encode(CompressedPayload(40, len(elements), elements)))
    exchange.pass_over(A)
    exchange.cancel(B, CancelReason.RESOURCES)


# Entries


def shows(make: Callable[[int], Bad]) -> Act:
    """A side sends the logs that are right, and then shows an entry as one that another hash was expected of."""

    def act(scene: Scene) -> None:
        bad = make(scene.random.getrandbits(32))
        for log in filter(lambda log: log.length, bad.right):
            exchange = scene.exchange(log, B).propose(1, log.length).confirm()
            exchange.send(A, 2 * log.length)
            exchange.cancel(A)
        place = varu64.decode(bad.data, 1 + AUTHOR_BYTES)
        assert place is not None
        seq = varu64.decode(bad.data, place.end)
        assert seq is not None
        log = Log(author_key(0, "expected"), place.value)
        log.author = bad.data[1 : 1 + AUTHOR_BYTES]
        exchange = scene.exchange(log, B)
        exchange.propose(max(seq.value, 1), offset=0, expected=yamf.digest(b"another entry"))
        exchange.cancel(A, CancelReason.STARTING_HASH, entries=(CancelEntry(bad.data),))

    return act


def changed(at: int, byte: int, seq: int = 2) -> Callable[[int], Bad]:
    """Entry `seq` of a log with another byte at `at`."""

    def make(seed: int) -> Bad:
        log = made_log(seed, seq - 1)
        data = bytearray(log.make(seq, b"changed").data)
        data[at] = byte
        return Bad((log,), bytes(data))

    return make


def cut(seed: int) -> Bad:
    """The last byte of an entry is missing."""
    log = made_log(seed, 1)
    return Bad((log,), log.make(2, b"two").data[:-1])


def longer(seed: int) -> Bad:
    """A byte follows an entry."""
    log = made_log(seed, 1)
    return Bad((log,), log.make(2, b"two").data + b"\x02")


def without_link(seed: int) -> Bad:
    """The backlink of an entry is left out."""
    log = made_log(seed, 1)
    data = log.make(2, b"two").data
    at = 1 + AUTHOR_BYTES + 2
    return Bad((log,), data[:at] + data[at + yamf.HASH_BYTES :])


def long_log_id(seed: int) -> Bad:
    """A log id of 0 takes two bytes."""
    log = made_log(seed, 1)
    data = log.make(2, b"two").data
    at = 1 + AUTHOR_BYTES
    return Bad((log,), data[:at] + b"\xf8\x00" + data[at + 1 :])


def with_payload(payload: bytes, size: int) -> Callable[[int], Bad]:
    """Entry 2 of a log, and a payload; the entry says that its size is `size`."""

    def make(seed: int) -> Bad:
        log = made_log(seed, 1)
        made = log.make(2, b"two")
        signed = made.data[:-SIGNATURE_BYTES]
        at = len(signed) - yamf.HASH_BYTES - 1
        signed = signed[:at] + bytes([size]) + signed[at + 1 :]
        return Bad((log,), signed + log.key.sign(signed).signature, payload)

    return make


def other_link(seq: int, *, lipmaa: bool) -> Callable[[int], Bad]:
    """Entry `seq` of a log links to an entry that there isn't, by one of its links."""

    def make(seed: int) -> Bad:
        log = made_log(seed, seq - 1)
        link = yamf.digest(b"no entry")
        made = log.make(seq, b"bad", lipmaalink=link) if lipmaa else log.make(seq, b"bad", backlink=link)
        return Bad((log,), made.data)

    return make


def links_into(author: int, log_id: int) -> Callable[[int], Bad]:
    """Entry 5 of a log, of which three entries are there, links to entry 4 of another log."""

    def make(seed: int) -> Bad:
        other = made_log(seed + author, 4, log_id=log_id)
        log = made_log(seed, 3)
        return Bad((log, other), log.make(5, b"bad", backlink=other.entries[4].hash).data)

    return make


def after_last(seed: int) -> Bad:
    """An entry follows the end-of-log entry."""
    log = made_log(seed, 3, ends=True)
    return Bad((log,), log.make(4, b"more").data)


def no_author(seed: int) -> Bad:
    """The author of entry 1 is no point of the curve."""
    log = made_log(seed, 1)
    data = log.entries[1].data
    return Bad((), data[:1] + b"\xff" * AUTHOR_BYTES + data[1 + AUTHOR_BYTES :])


def forks(seed: int) -> Bad:
    """A log has two entries 3."""
    log = made_log(seed, 4)
    return Bad((log,), log.make(3, b"another entry 3").data)


def proves_fork(scene: Scene) -> None:
    """A cancel shows two entries 3 of a log."""
    log = scene.log(4)
    exchange = scene.exchange(log, B).propose(1, 4).confirm()
    exchange.send(A, 8)
    exchange.cancel(A)
    shown = tuple(CancelEntry(one.data) for one in (log.entries[3], log.make(3, b"another entry 3")))
    exchange = scene.exchange(log, B)
    exchange.propose(8, lower=8)
    exchange.cancel(A, CancelReason.FORKED, entries=shown)


def first_sentence(made: Callable[..., object]) -> str:
    """What a function says that it does."""
    return (made.__doc__ or "").strip().split("\n")[0]


def _fault(act: Act, sentence: str = "", **more: object) -> Fault:
    return Fault(sentence or first_sentence(act), act, **more)  # type: ignore[arg-type]


def _entry(make: Callable[[int], Bad], sentence: str = "", *, shown: bool = True, also: tuple[str, ...] = ()) -> Fault:
    return Fault(sentence or first_sentence(make), shows(make) if shown else None, also=also, entries=make)


_TAG, _SEQ = 0, 2 + AUTHOR_BYTES
#: Of the payload's hash, from the end.
_HASH: Final = -(SIGNATURE_BYTES + yamf.HASH_BYTES)

#: By the rule that is broken.
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "unknown_type": _fault(unassigned_type),
        "unknown_stream": _fault(strange_stream),
        "write_without_credit": _fault(writes_at_once),
        "credit_overflow": _fault(too_much_credit),
        "credit_on_infinite": _fault(credit_for_control),
        "global_credit_overflow": _fault(too_many_creations),
        "create_without_credit": _fault(creates_without_credit),
        "stream_id_parity": _fault(creates_odd),
        "stream_id_in_use": _fault(creates_again),
        "write_after_close": _fault(writes_after_close),
        "close_twice": _fault(twice(Type.CLOSE, Type.CLOSE), "The data channel is closed twice."),
        "stopread_twice": _fault(twice(Type.STOP_READ, Type.STOP_READ), "The data channel is stopped twice."),
        "credit_after_stopread": _fault(
            twice(Type.STOP_READ, Type.CREDIT, amount=9), "Credit follows the StopRead of the data channel."
        ),
        "global_credit_after_stopread": _fault(
            twice(Type.STOP_READ, Type.CREDIT, stream_id=None, amount=1), "Credit for creations follows a StopRead."
        ),
        "create_after_global_close": _fault(creates_after_close),
        "ping_after_end": _fault(
            twice(Type.CLOSE, Type.STOP_READ, Type.PING), "A Ping follows Close and StopRead of the data channel."
        ),
        "close_not_answered": _fault(closes_alone),
        "wide_integer": _fault(wide_ping),
        "channel_backpressure_wrong": _fault(infinite_data),
        "no_setup_seen": _fault(captured_late),
        "truncated_packet": _fault(half_a_packet),
        "noncanonical_varu64": _fault(long_number, entries=long_log_id),
        "unused_control_byte": _fault(unused_control),
        "seqnum_zero": _fault(end_zero),
        "proposal_credit_overflow": _fault(too_much_proposal_credit),
        "proposal_without_credit": _fault(proposes_too_often),
        "id_parity": _fault(odd_id),
        "id_in_use": _fault(id_again),
        "cancel_or_adjust_inactive": _fault(adjusts_unknown),
        "cancel_or_adjust_after_cancel": _fault(cancels_again),
        "confirmation_without_eagerness": _fault(confirms_nothing),
        "end_before_start": _fault(proposes(5, 3), "A range ends before it begins."),
        "upper_info_before_end": _fault(proposes(5, 8, upper=5), "An upper info is below the end."),
        "lower_info_after_start": _fault(proposes(5, 8, lower=8), "A lower info is above the start."),
        "lower_info_not_in_pool": _fault(proposes(8, 8, lower=5), "Entry 5 isn't in the lower pool of entry 8."),
        "upper_info_not_in_pool": _fault(proposes(8, 8, upper=10), "Entry 10 isn't in the upper pool of entry 8."),
        "min_payload_lowered": _fault(lowers_minimum),
        "max_payload_raised": _fault(raises_maximum),
        "cancel_reason_untrue": _fault(confirms_no_cancel),
        "starting_hash_differs": _fault(expects_another),
        "cancel_not_confirmed": _fault(cancels_alone),
        "proposal_not_answered": _fault(never_answered),
        "unused_data_byte": _fault(unused_data),
        "switch_inactive": _fault(switches_to_unknown),
        "cancelled_inactive": _fault(cancelled_unknown),
        "data_without_switch": _fault(forgets_to_switch),
        "data_after_cancel": _fault(goes_on_after_cancel),
        "out_of_turn": _fault(payload_first),
        "past_end": _fault(one_too_many),
        "data_after_end_of_log": _fault(after_end),
        "payload_overrun": _fault(byte_too_many),
        "compression_without_window": _fault(
            compressed(3, b"\x03abc"), "A payload is compressed without a window.", window=0
        ),
        "window_exceeded": _fault(
            compressed(15, b"\x0a0123456789\x85\x0a"), "A copy is from 10 bytes back, the window is 9.", window=9
        ),
        "offset_zero": _fault(compressed(6, b"\x03abc\x83\x00"), "A copy is from 0 bytes back."),
        "offset_before_start": _fault(compressed(6, b"\x03abc\x83\x04"), "A copy is from before the first byte."),
        "lzfoo_truncated": _fault(compressed(6, b"\x06abc"), "A literal of 6 bytes has 3."),
        "length_mismatch": _fault(compressed(6, b"\x03abc"), "What is told to be 6 bytes are 3."),
        "eagerness_ignored": _fault(unasked_data),
        "skip_size_untrue": _fault(called_small),
        "skip_of_mandatory_payload": _fault(not_at_hand),
        "skip_beyond_peer": _fault(skips_ahead),
        "apology_without_data": _fault(sorry_for_nothing),
        "apology_repeated": _fault(sorry_twice, greedy=True),
        "apology_for_valid_data": _fault(sorry_for_right, greedy=True),
        "invalid_data_not_apologised": _fault(other_payload, greedy=True),
        "invalid_data_in_safe_mode": _fault(other_payload),
        "unwanted_payload_size": _fault(below_minimum),
        "settings_suspect": _fault(crossed),
        "link_unknown": _fault(far_link),
        "history_unknown": _fault(lost_history, also=("no_setup_seen",)),
        "truncated": _entry(cut, shown=False),
        "trailing_bytes": _entry(longer, shown=False),
        "malformed": _entry(without_link, shown=False),
        "bad_tag": _entry(changed(_TAG, 2), "The tag of an entry is 2."),
        "seq_zero": _entry(changed(_SEQ, 0, seq=1), "An entry has the sequence number 0."),
        "bad_yamf_id": _entry(changed(_HASH, 1), "The hash of a payload has type 1."),
        "bad_yamf_length": _entry(changed(_HASH + 1, 63), "The hash of a payload has length 63."),
        "payload_hash_mismatch": _entry(
            with_payload(b"2!!", 3), "A payload has another hash than its entry says.", shown=False
        ),
        "payload_size_mismatch": _entry(
            with_payload(b"two", 4), "A payload has another size than its entry says.", shown=False
        ),
        "lipmaalink_mismatch": _entry(
            other_link(8, lipmaa=True), "A lipmaalink names another entry than the one that is known.", also=("fork",)
        ),
        "backlink_mismatch": _entry(
            other_link(3, lipmaa=False), "A backlink names another entry than the one that is known.", also=("fork",)
        ),
        "log_id_mismatch": _entry(links_into(0, 1), "A link leads into another log of the author."),
        "author_mismatch": _entry(links_into(1, 0), "A link leads into the log of another author."),
        "after_end_of_log": _entry(after_last, also=("fork",)),
        "bad_author_key": _entry(no_author),
        "bad_signature": _entry(changed(-1, 0xFF), "The last byte of a signature is another one."),
        "fork": Fault(first_sentence(forks), proves_fork, entries=forks),
    }
)

#: Faults that only the check of signatures tells.
SIGNATURE_FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "signature_in_safe_mode": _fault(wrong_signature, rule="invalid_data_in_safe_mode"),
        "signature_not_apologised": _fault(wrong_signature, greedy=True, rule="invalid_data_not_apologised"),
        "apology_for_signed_data": _fault(sorry_for_signed, greedy=True, rule="apology_for_valid_data"),
    }
)
#: All that a configuration may ask for.
ALL_FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({**FAULTS, **SIGNATURE_FAULTS})
