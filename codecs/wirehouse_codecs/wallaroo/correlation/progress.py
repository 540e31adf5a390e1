"""How far a stream of a program's instance got over its sessions: which session follows which.

A connector that was cut off connects again, notifies each stream, and sends again what was not acknowledged
(specification, "Points of Reference"). The sessions of a stream follow one another as their connections began.
"""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.wallaroo.correlation.sessions import HORIZON_NS


@dataclass(frozen=True, slots=True)
class StreamSession:
    """A stream of a session, as it stands at the end of a window."""

    connection_id: bytes
    #: Arrival of the connection's first packet.
    started_ns: int
    highest_sent: int | None
    #: End of the window.
    told_ns: int


@dataclass(frozen=True, slots=True)
class Followed:
    """The newest session of a stream, and what came before it."""

    newest: StreamSession
    previous_connection_id: bytes | None = None
    #: The greatest message id of all sessions before.
    previous_last_sent: int | None = None


def follow(before: Followed | None, told: StreamSession) -> Followed | None:
    """Where the stream stands after `told`; None if that is an older session, which changes nothing any more.

    Sessions of a window are given in the order in which their connections began. One longer ago than the horizon is
    forgotten.
    """
    if before is None or told.told_ns - before.newest.told_ns > HORIZON_NS:
        return Followed(told)
    newest = before.newest
    if newest.connection_id == told.connection_id:
        return Followed(told, before.previous_connection_id, before.previous_last_sent)
    if (told.started_ns, told.connection_id) > (newest.started_ns, newest.connection_id):
        sent = [number for number in (before.previous_last_sent, newest.highest_sent) if number is not None]
        return Followed(told, newest.connection_id, max(sent, default=None))
    return None
