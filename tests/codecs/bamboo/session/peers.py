"""A dialogue with a session: what each side says, in the protocol's words, and what is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.carried import as_text, carry
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.session.effects import Effects
from wirehouse_codecs.bamboo.session.session import Session
from wirehouse_codecs.bamboo.session.state import Memory
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.encoding import encode
from wirehouse_codecs.bamboo.wire.entries import Entry
from wirehouse_codecs.bamboo.wire.lipmaa import lipmaa
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Cancel,
    Cancelled,
    Eagerness,
    Metadata,
    PointToPoint,
    ProposalCredit,
    Propose,
    RawPayload,
    Switch,
)
from wirehouse_codecs.bamboo.wire.reader import Layer, Read
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.core.rules import Place

SAFE = Setup(False, False, 1024, 1024)
GREEDY = Setup(True, True, 1024, 1024)
_CONTROL = (ProposalCredit, Propose, Adjust, Cancel)


def layer(packet: PointToPoint) -> Layer:
    if isinstance(packet, Setup):
        return Layer.SETUP
    return Layer.CONTROL if isinstance(packet, _CONTROL) else Layer.DATA


def metadata(entry: Entry, *, backlink: bool = False, **changed: Any) -> Metadata:
    """What is sent of an entry."""
    fields = {
        "end_of_log": entry.end_of_log,
        "backlink": yamf.encode(entry.backlink) if backlink and entry.backlink else None,
        "payload_size": entry.payload_size,
        "payload_hash": yamf.encode(entry.payload_hash),
        "signature": entry.signature,
    }
    return Metadata(**(fields | changed))


class Peers:
    """A session that is told what both sides send. Before each packet it is restored from its snapshot as well.

    `a` is the proactive side, `b` the reactive one. `rules` are those of the last call.
    """

    def __init__(self, setup: Setup | None = SAFE, *, credit: int = 8, **options: Any) -> None:
        self.options = BambooOptions(**options)
        self.session = Session(self.options)
        self.told: list[Effects] = []
        self._at = dict.fromkeys(Role, 0)
        self._clock = 0
        self.rules: list[str] = []
        if setup is not None:
            self.a(setup).b(setup)
        if credit:
            self.a(ProposalCredit(credit)).b(ProposalCredit(credit))

    def a(self, *packets: PointToPoint) -> Peers:
        return self._send(Role.PROACTIVE, packets)

    def b(self, *packets: PointToPoint) -> Peers:
        return self._send(Role.REACTIVE, packets)

    def _send(self, role: Role, packets: Sequence[PointToPoint]) -> Peers:
        self.rules = []
        for packet in packets:
            try:
                size = len(encode(packet))
            except ValueError:
                size = 1
            start = self._at[role]
            self._at[role] += size
            self._clock += 1
            read = Read(role, Place(self._clock, 1, b"c", self._clock), layer(packet), start, start + size, packet)
            restored = Session(self.options, state=carry(self.session.state, Memory))
            restored.state.peer_received = self.session.state.peer_received
            told, again = self.session.receive(read), restored.receive(read)
            assert (again.broken, again.cursor_before, again.cursor_after) == (
                told.broken,
                told.cursor_before,
                told.cursor_after,
            )
            assert (again.entry, again.payload, again.data) == (told.entry, told.payload, told.data)
            assert as_text(restored.state, Memory) == as_text(self.session.state, Memory)
            self.told.append(told)
            self.rules += [broken.rule.name for broken in told.broken]
        return self

    def received(self, role: Role, less: int = 0) -> Peers:
        """What `role` sends from here on, its host sends when it has received all so far, or some bytes less."""
        received = self._at[role.peer] - less
        self.session.state.peer_received = lambda side, _: received if side is role else MAX_U64
        return self

    @property
    def last(self) -> Effects:
        return self.told[-1]

    @property
    def cursor(self) -> str | None:
        """Where the sender of the last packet stands."""
        return self.last.cursor_after

    def end(self, *, in_order: bool = True) -> list[str]:
        return [ending.broken.rule.name for ending in self.session.end(in_order=in_order)]


def propose(log: Any, number: int = 0, start: int = 1, end: int | None = None, **changed: Any) -> Propose:
    """A proposal for a log; from entry 1 or what `lower_info` says, up to the end alone."""
    offset = changed.get("offset")
    lower = changed.get("lower_info", 1) if offset is None else None
    expected = None
    if offset is not None or (lower or 0) > 1:
        expected = log.hashes[start if lower is None else lipmaa(lower)]
    fields: dict[str, Any] = {
        "id": number,
        "author": bytes(log.entries[1].author),
        "log_id": log.log_id,
        "start": start,
        "lower_info": lower,
        "min_payload": 0,
        "max_payload": MAX_U64,
        "eagerness": Eagerness.ALL,
        "expected_hash": expected,
        "end": end,
        "upper_info": end,
    }
    return Propose(**(fields | changed))


def confirm(number: int = 0, eagerness: Eagerness = Eagerness.ALL, **changed: Any) -> Adjust:
    return Adjust(number, eagerness, **changed)


def raw(payload: bytes) -> RawPayload:
    return RawPayload(len(payload), payload)


def over(number: int = 0) -> Cancelled:
    return Cancelled(number)


def begun(log: Any, setup: Setup | None = SAFE, *, confirmed: Adjust | None = None, **changed: Any) -> Peers:
    """`a` proposed, `b` confirmed and switched: it sends."""
    proposal = propose(log, **({"end": 4} | changed))
    return Peers(setup).a(proposal).b(confirmed or confirm()).b(Switch(0))
