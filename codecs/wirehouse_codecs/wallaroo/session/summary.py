"""The summary of a session that has ended, by which the sessions after it are judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import Reference

#: Maximum number of ids without a stable reference that a session leaves to later ones.
MOST_UNSTABLE: Final = 1024


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session, as far as the rules over several connections need it."""

    connection_id: bytes
    #: Address and port of the worker.
    worker: str
    started_ns: int
    ended_ns: int
    program_name: bytes | None
    instance_name: bytes | None
    version: str | None
    cookie_empty: bool | None
    cookie_digest: bytes | None
    #: Whether the worker answered by OK.
    accepted: bool
    #: Whether it was refused, or ended by an ERROR, a violation, or a reset that isn't the connector's own.
    failed: bool
    #: Whether messages that the connector sent may be missing.
    lacks: bool = False
    #: Stream ids and digests of their names.
    streams: tuple[tuple[int, bytes], ...] = ()
    #: Stream ids and the highest message id that was sent.
    sent: tuple[tuple[int, int], ...] = ()
    unsent: tuple[Reference, ...] = ()
    #: Messages that the worker pointed at, and that an earlier session may have sent.
    referred: tuple[Reference, ...] = ()
    #: Stream ids and message ids that were flagged as no stable reference.
    unstable: tuple[tuple[int, int], ...] = ()


def summarise(memory: Memory, connection_id: bytes, worker: str) -> SessionSummary:
    """The summary of a session that has had at least one frame. ValueError before that."""
    if memory.first_ns is None or memory.last_ns is None:
        raise ValueError("no frame yet")
    known = not (memory.untracked or memory.unattributed)
    # A connector that resets an accepted session wants to leave: its next one is no attempt that failed before.
    lost = memory.ended is End.RESET and not memory.left
    broken = memory.ended_by is not None or bool(memory.errors) or lost
    return SessionSummary(
        connection_id=connection_id,
        worker=worker,
        started_ns=memory.first_ns,
        ended_ns=memory.last_ns,
        program_name=memory.program_name,
        instance_name=memory.instance_name,
        version=memory.version,
        cookie_empty=memory.cookie_empty,
        cookie_digest=memory.cookie_digest,
        # If the answer to a HELLO was not captured, it is unknown.
        accepted=memory.accepted and (memory.initial_credits is not None or memory.version is None),
        failed=broken or (not memory.accepted and not memory.may_miss(Direction.SERVER)),
        lacks=memory.may_miss(Direction.CLIENT) or not known or memory.ended is End.CAPTURE_END,
        streams=tuple((sid, stream.name) for sid, stream in memory.streams.items() if stream.name is not None),
        sent=tuple((sid, stream.highest_id) for sid, stream in memory.streams.items() if stream.highest_id is not None),
        unsent=tuple(memory.unsent),
        referred=tuple(memory.referred),
        unstable=tuple(islice(_unstable(memory), MOST_UNSTABLE)),
    )


def _unstable(memory: Memory) -> Iterator[tuple[int, int]]:
    for stream_id, stream in memory.streams.items():
        if not memory.dialect.answers_notify:
            yield from ((stream_id, message_id) for message_id in stream.unstable_ids())
