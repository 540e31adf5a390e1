"""The progress of a stream over the sessions of a program's instance: which session follows which.

A connector that was cut off connects again, notifies each stream, and sends again what was not acknowledged
(specification, "Points of Reference"). The sessions of a stream follow one another as their connections began.
"""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.horizon import HORIZON_NS


@dataclass(frozen=True, slots=True)
class StreamSession:
    """A stream of a session, in its state at the end of a window."""

    connection_id: bytes
    #: Arrival of the connection's first packet.
    started_ns: int
    highest_sent: int | None
    #: End of the window.
    told_ns: int


@dataclass(frozen=True, slots=True)
class Followed:
    """The newest session of a stream, and the ones before it."""

    newest: StreamSession
    previous_connection_id: bytes | None = None
    #: The greatest message id of all sessions before.
    previous_last_sent: int | None = None


def follow(before: Followed | None, session: StreamSession) -> Followed | None:
    """The progress of the stream after `session`; None if that is an older session, which changes nothing any more.

    Sessions of a window are given in the order in which their connections began. A session from before the horizon is
    dropped.
    """
    if before is None or session.told_ns - before.newest.told_ns > HORIZON_NS:
        return Followed(session)
    newest = before.newest
    if newest.connection_id == session.connection_id:
        return Followed(session, before.previous_connection_id, before.previous_last_sent)
    if (session.started_ns, session.connection_id) > (newest.started_ns, newest.connection_id):
        sent = [number for number in (before.previous_last_sent, newest.highest_sent) if number is not None]
        return Followed(session, newest.connection_id, max(sent, default=None))
    return None
