"""HELLO and OK, and the state of a session whose HELLO or OK wasn't captured.

- A late capture lacks nothing of a side whose first frame it has: HELLO is the connector's, OK the worker's.
- Missing bytes may have been HELLO and OK. Then the next frame shows which states are possible.
- The cookie of a HELLO is not kept.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.frames import Hello, Ok, StreamReference
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.session.credits import grant, run_dry
from wirehouse_codecs.wallaroo.session.judging import Judgement, find
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import Found, Kind, Reference, State
from wirehouse_codecs.wallaroo.session.streams import Stream, name_digest

#: The only frames that are judged if the worker is a sink: it doesn't use streams and credits as specified.
HANDSHAKE_KINDS: Final = frozenset({Kind.HELLO, Kind.OK, Kind.ERROR})


def take_hello(memory: Memory, judgement: Judgement, hello: Hello) -> None:
    """HELLO: who the connector is."""
    memory.hello = judgement.where
    memory.hello_judged = judgement.frame_rule_broken
    memory.version = hello.version_text()
    memory.program_name, memory.instance_name = hello.program_name, hello.instance_name
    memory.cookie_empty = not hello.cookie
    if judgement.cookie_hash is not None and hello.cookie:
        memory.cookie_digest = judgement.cookie_hash(hello.cookie)


def take_early_ok(memory: Memory, judgement: Judgement, ok: Ok) -> None:
    """An OK before HELLO breaks its rule. Later frames break none because of it."""
    memory.early_ok = True
    take_ok(memory, judgement, ok)
    memory.accepted = False


def take_ok(memory: Memory, judgement: Judgement, ok: Ok) -> None:
    """OK: the first credits, and how far the worker is with the streams that it knows."""
    # OK is the worker's first frame: all frames after it are known.
    hello_missed = Direction.CLIENT in memory.lacks | memory.unseen
    memory.lacks = memory.lacks - {Direction.SERVER} | ({Direction.CLIENT} if memory.late else set())
    memory.late = False
    memory.accepted = memory.answered = True
    memory.initial_credits = ok.credits
    if memory.early_ok:
        # The later of two counts.
        memory.granted = 0
    memory.credits = memory.granted - memory.spent
    grant(memory, judgement, ok.credits)
    if hello_missed:
        # Sinks use no credits, and only their HELLO identifies them.
        memory.credits = None
    if not ok.credits:
        find(memory, judgement, "zero_initial_credits", "OK with 0 credits")
        run_dry(memory, judgement)
    for reference in ok.streams:
        stream = memory.stream(reference.stream_id)
        if stream is not None:
            stream.references = [reference.point_of_ref]
            _note_listed(memory, reference, stream)
            # 0 may say that there is no reference.
            if reference.point_of_ref and not memory.dialect.answers_notify:
                memory.refer(Reference(reference.stream_id, reference.point_of_ref, judgement.where))


def _note_listed(memory: Memory, reference: StreamReference, stream: Stream) -> None:
    """The name that OK gives a stream, which the connector chose in an earlier session; the text gives none."""
    if reference.stream_name:
        stream.listed = name_digest(reference.stream_name)
        memory.note_name(stream.listed, reference.stream_id)


def begin(memory: Memory, judgement: Judgement, kind: Kind) -> None:
    """Decide by the first frame of a late capture how late it began."""
    if kind is Kind.UNDECODABLE:
        return
    if memory.started:
        _catch_up(memory, judgement.where.direction, kind)
        return
    memory.started = True
    if kind is Kind.HELLO and judgement.where.direction is Direction.CLIENT:
        # A late start misses nothing of the connector then, but the place of the worker's first frames may be lost.
        memory.lacks = memory.lacks - {Direction.CLIENT} | ({Direction.SERVER} if memory.late else set())
        memory.late = False
    if not memory.may_miss(Direction.CLIENT):
        return
    judgement.found.append(Found(RULE["no_handshake_seen"], judgement.where, "the first frame seen is " + kind))
    memory.state = State.HANDSHAKE if kind is Kind.OK else State.STREAMING
    memory.answered = memory.accepted = kind is not Kind.OK


def _catch_up(memory: Memory, direction: Direction, kind: Kind) -> None:
    """Move on to a state in which this frame is possible: missing bytes may have been HELLO and OK."""
    if kind is Kind.OK and direction is Direction.SERVER:
        unseen = memory.state is State.STREAMING and memory.initial_credits is None
        if unseen or (memory.state is State.CONNECTED and memory.may_miss(Direction.CLIENT)):
            memory.state = State.HANDSHAKE
        return
    if kind in HANDSHAKE_KINDS or memory.state not in (State.CONNECTED, State.HANDSHAKE):
        return
    # No HELLO came if all bytes of the connector were captured, whatever else is missing.
    known = memory.state is State.CONNECTED and not memory.may_miss(Direction.CLIENT)
    if (memory.partial and not known) or (memory.early_ok and memory.state is State.HANDSHAKE):
        memory.state = State.STREAMING
        memory.answered = memory.accepted = True


def is_first_seen(memory: Memory, judgement: Judgement) -> bool:
    """Whether it is the connector's first frame, captured after the worker's answers: by another clock, say."""
    return (
        memory.state in (State.STREAMING, State.RESTARTED) and memory.version is None and not judgement.where.byte_start
    )


def may_be_of_sink(memory: Memory, direction: Direction, kind: Kind) -> bool:
    """Whether only a sink sends such a frame, and the HELLO that would show a sink wasn't captured."""
    known = memory.version is not None or memory.dialect.byte_order == "little"
    return kind is Kind.MESSAGE and direction is Direction.SERVER and not known and memory.may_miss(Direction.CLIENT)
