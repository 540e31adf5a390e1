"""Connections that break a rule, for every rule: simulator.py adds them when it is asked for a fault.

A fault breaks its rule for certain and, where that can be, no other. It has a connector and a worker of its own, and
ends its connections in order with everything acked, unless that is the fault. fault_scripts.py has the dialogue of each
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wirehouse_codecs.simulate.script import Conversation
from wirehouse_codecs.wallaroo.dialects import SEED, SEED_SID, SINK, SINK_V2B, V2A, V2B, V3, Dialect
from wirehouse_codecs.wallaroo.simulator import fault_scripts as scripts
from wirehouse_codecs.wallaroo.simulator.connector import Connector
from wirehouse_codecs.wallaroo.simulator.fault_scripts import NS_PER_S, Act, Script

if TYPE_CHECKING:
    from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig

#: Gaps after 5 connections, in nanoseconds: they shrink.
GAPS_NS: Final = (500_000_000, 400_000_000, 300_000_000, 200_000_000, 100_000_000)

_TEXT = (SEED, SEED_SID)
_V2 = (V2A, V2B)
_IMPLEMENTED = (V3, V2B, V2A)
_SOURCES = (*_IMPLEMENTED, SEED_SID, SEED)
_ALL = (*_SOURCES, SINK, SINK_V2B)

Play = Callable[[Connector], Iterator[Conversation]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to break one rule."""

    #: The fault of the connections, in one sentence.
    sentence: str
    play: Play
    #: Dialects in which it can be.
    dialects: tuple[str, ...]
    #: Other rules that can't but be broken as well.
    also: frozenset[str]


class FaultyConnector(Connector):
    """A connector that does nothing but break a rule."""

    def __init__(self, config: SimulatorConfig, number: int, fault: Fault) -> None:
        super().__init__(config, number)
        self._fault = fault

    def conversations(self) -> Iterator[Conversation]:
        return self._fault.play(self)


def on_one_connection(act: Act) -> Play:
    """The fault is on a single connection."""

    def play(connector: Connector) -> Iterator[Conversation]:
        script = Script(connector)
        act(script)
        yield connector.converse(script, iter(script.take()), script.captured_from_ns)

    return play


def on_connections(*acts: Act, gaps_ns: tuple[int, ...] = (NS_PER_S,)) -> Play:
    """The fault is in several connections, with a gap after each."""

    def play(connector: Connector) -> Iterator[Conversation]:
        for n, act in enumerate(acts):
            script = Script(connector)
            act(script)
            connector.opens_ns = script.now_ns + gaps_ns[n % len(gaps_ns)]
            yield connector.converse(script, iter(script.take()))

    return play


def _fault(act: Act, dialects: tuple[Dialect, ...], *also: str) -> Fault:
    return _played(act.__doc__ or "", on_one_connection(act), dialects, *also)


def _played(sentence: str, play: Play, dialects: tuple[Dialect, ...], *also: str) -> Fault:
    return Fault(sentence, play, tuple(dialect.name for dialect in dialects), frozenset(also))


def _refusal(reason: bytes) -> Fault:
    return _played(
        f"The worker answers HELLO by an ERROR: {reason.decode()}.", on_one_connection(scripts.refused(reason)), _ALL
    )


#: A fault for each rule, by the rule's name.
FAULTS: Mapping[str, Fault] = {
    "dialect_unsupported": _fault(scripts.dev_version, _IMPLEMENTED),
    "empty_frame": _fault(scripts.no_tag, _ALL),
    "oversize_frame": _fault(scripts.too_long, _ALL),
    "unknown_frame_type": _fault(scripts.other_tag, _ALL),
    "malformed_frame": _fault(scripts.cut_notify, _ALL),
    "trailing_bytes": _fault(scripts.long_notify, _ALL),
    "frame_before_hello": _fault(scripts.notify_first, _SOURCES),
    "duplicate_hello": _fault(scripts.hello_again, _ALL),
    "cookie_refused": _refusal(b"Cookie does not match"),
    "version_refused": _refusal(b"Version does not match"),
    "wrong_direction": _fault(scripts.connector_acks, _SOURCES),
    "message_unknown_stream": _fault(scripts.unknown_stream, _SOURCES),
    "message_before_notify_ack": _fault(scripts.unanswered_stream, _IMPLEMENTED),
    "message_closed_stream": _fault(scripts.ended_stream, _SOURCES),
    "eos_unknown_stream": _fault(scripts.end_of_unknown_stream, (V3,)),
    "flags_not_allowed": _fault(scripts.forbidden_flags, _V2),
    "reserved_flags_set": _fault(scripts.reserved_flag, (*_V2, *_TEXT)),
    "credits_overdrawn": _fault(scripts.one_message_too_many, _SOURCES),
    "connector_error": _fault(scripts.connector_fails, _ALL),
    "worker_error": _fault(scripts.worker_fails, _ALL),
    "truncated_frame": _fault(scripts.cut_frame, _ALL),
    "capture_ends_early": _fault(scripts.left_open, _ALL),
    "no_handshake_seen": _fault(scripts.begun_before, _SOURCES),
    "frame_before_ok": _fault(scripts.notify_too_soon, _ALL),
    "duplicate_ok": _fault(scripts.ok_again, _ALL),
    "frame_after_error": _fault(scripts.goes_on_after_error, _ALL, "connector_error"),
    "hello_refused": _refusal(b"Too many connections"),
    "hello_not_answered": _fault(scripts.unanswered_hello, _ALL),
    "handshake_inconsistent": _played(
        "One worker accepts a cookie, and then none.",
        on_connections(scripts.accepted_with(b"cookie"), scripts.accepted_with(b"")),
        _ALL,
    ),
    "zero_initial_credits": _fault(scripts.ok_without_credits, _SOURCES),
    "error_not_signalled": _fault(scripts.violation_is_acked, (*_IMPLEMENTED, SEED_SID), "message_unknown_stream"),
    "not_closed_after_error": _fault(scripts.stays_after_error, _ALL, "connector_error"),
    "notify_open_stream": _fault(scripts.notify_again, _TEXT),
    "notify_reference_unexpected": _fault(scripts.unknown_reference, _TEXT),
    "stream_id_reused": _played(
        "A stream's id has another name in the next session.",
        on_connections(scripts.stream_named(scripts.LEFT), scripts.stream_named(scripts.RIGHT)),
        _SOURCES,
    ),
    "ack_unknown_stream": _fault(scripts.ack_of_unknown_stream, _SOURCES),
    "ack_never_sent": _fault(scripts.ack_ahead, _SOURCES),
    "ack_goes_back": _fault(scripts.ack_back, _SOURCES),
    "message_never_acked": _fault(scripts.ack_missing, _SOURCES),
    "reference_unstable": _fault(scripts.unstable_ack, _TEXT),
    "nack_unknown_stream": _fault(scripts.nack_of_unknown_stream, _TEXT),
    "nack_not_answered": _fault(scripts.unanswered_nack, _TEXT),
    "boundary_with_payload": _fault(scripts.full_boundary, _TEXT),
    "ephemeral_id_repeated": _fault(scripts.ephemeral_twice, _TEXT),
    "message_ignored": _fault(scripts.dropped, _SOURCES),
    "notify_ack_unasked": _fault(scripts.unasked_answer, _IMPLEMENTED),
    "notify_refused": _fault(scripts.refused_stream, _IMPLEMENTED),
    "notify_not_answered": _fault(scripts.unanswered_notify, _IMPLEMENTED),
    "credits_not_replenished": _fault(scripts.no_credits, _SOURCES),
    "reconnect_without_backoff": _played(
        "A connection is lost five times, and each reconnect comes sooner.",
        on_connections(*[scripts.lost] * len(GAPS_NS), gaps_ns=GAPS_NS),
        _ALL,
    ),
}
