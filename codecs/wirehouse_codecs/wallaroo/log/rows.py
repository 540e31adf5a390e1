"""Rows of the log as dictionaries: those of a session and of its streams, and values that several rows have.

`summary_of` reads a session row back: rules over several connections judge by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import Dialect
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import Reference, Where
from wirehouse_codecs.wallaroo.session.streams import Stream, Waiting
from wirehouse_codecs.wallaroo.session.summary import SessionSummary, summarise

#: Number of characters of a name that are kept.
MOST_CHARACTERS: Final = 1024


def text_of(name: bytes) -> str:
    """A name as text; bytes that are no UTF-8 become escapes."""
    return name[: 4 * MOST_CHARACTERS].decode("utf-8", "backslashreplace")[:MOST_CHARACTERS]


def references(listed: Iterable[tuple[int, str | None, int]]) -> list[dict[str, Any]]:
    """Streams with their names and references."""
    return [
        {"stream_id": stream_id, "stream_name": name, "point_of_ref": reference}
        for stream_id, name, reference in listed
    ]


def session_row(memory: Memory, connection_id: bytes, worker: str) -> dict[str, Any]:
    """The row of a session that has had a frame. `worker`: its address and port."""
    summary = summarise(memory, connection_id, worker)
    return {
        "worker": summary.worker,
        "state": memory.state.value,
        "version": summary.version,
        "program_name": None if summary.program_name is None else text_of(summary.program_name),
        "instance_name": None if summary.instance_name is None else text_of(summary.instance_name),
        "cookie_empty": summary.cookie_empty,
        "cookie_hash": summary.cookie_digest,
        "initial_credits": memory.initial_credits,
        "credits": memory.credits,
        "granted": memory.granted,
        "spent": memory.spent,
        "eos_messages": memory.eos_messages,
        "accepted": summary.accepted,
        "partial": memory.partial,
        "ended": None if memory.ended is None else memory.ended.value,
        "ended_by": memory.ended_by,
        "error_by": _who(memory.errors),
        "failed": summary.failed,
        "started_at_ns": summary.started_ns,
        "ended_at_ns": None if memory.ended is None else summary.ended_ns,
    } | ({} if memory.ended is None else _ended_row(summary))


def _ended_row(summary: SessionSummary) -> dict[str, Any]:
    """The columns that only the rules over several sessions need."""
    return {
        "names": [{"stream_id": number, "digest": digest} for number, digest in summary.streams],
        "lacks_sent": summary.lacks,
        "sent": [{"stream_id": number, "message_id": last} for number, last in summary.sent],
        "unsent_acks": [_reference_row(one) for one in summary.unsent],
        "referred": [_reference_row(one) for one in summary.referred],
        "unstable": [{"stream_id": number, "message_id": sent} for number, sent in summary.unstable],
    }


def _reference_row(reference: Reference) -> dict[str, Any]:
    number, message_id, where = reference
    places = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
    row = {"stream_id": number, "message_id": message_id, "byte_start": where.byte_start, "byte_end": where.byte_end}
    return row | dict(zip(places, where.place.order, strict=True))


def stream_row(memory: Memory, stream: Stream, name: str | None) -> dict[str, Any]:
    """The row of a stream, whose name is `name` as text."""
    program, instance, unacked, accepted = memory.program_name, memory.instance_name, stream.unacked(), stream.accepted
    oldest = None if memory.ended_by else _oldest(stream, unacked)
    return {
        "stream_name": name,
        "state": stream.state.value,
        "nack_depth": stream.nacks,
        "notifies_waiting": stream.unanswered,
        "messages": stream.messages,
        "unacked": len(unacked) + stream.forgotten_unacked,
        "oldest_unacked_id": oldest and oldest.message_id,
        "unacked_since_ns": oldest and oldest.sent_ns,
        "refused_since_ns": stream.refused_ns,
        "refusals": stream.refusals,
        "was_in_use": stream.was_in_use,
        "first_id": stream.first_id,
        "last_sent": stream.last_id,
        "highest_sent": stream.highest_id,
        "last_acked": stream.last_acked,
        "resume_point": _known(stream.references, memory.dialect),
        "accepted_point": None if accepted is None else _known([accepted.reference], memory.dialect),
        "accepted_at_ns": accepted and accepted.answered_ns,
        "accepted_echoes": accepted and accepted.echoed,
        "program_name": None if program is None else text_of(program),
        "instance_name": None if instance is None else text_of(instance),
    }


def _oldest(stream: Stream, unacked: Sequence[Waiting]) -> Waiting | None:
    """The oldest message that waits; None = none does, or it was acked in an earlier session if it is the same one."""
    oldest = stream.forgotten_waiting or next(iter(unacked), None)
    if oldest is None or (stream.last_acked is not None and oldest.message_id <= stream.last_acked):
        return None
    return oldest


def _who(sides: Collection[Direction]) -> str | None:
    """A side, `both`, or nobody."""
    return "both" if len(sides) == len(Direction) else next(map(str, sides), None)


def _known(references: Sequence[int], dialect: Dialect) -> int | None:
    """The last reference, if it isn't the one for "nothing was seen yet"."""
    return references[-1] if references and references[-1] != dialect.nothing_seen else None


def summary_of(connection_id: bytes, session: dict[str, Any]) -> SessionSummary:
    """The summary of an ended session, from its row."""
    return SessionSummary(
        connection_id=connection_id,
        worker=session["worker"],
        started_ns=session["started_at_ns"],
        ended_ns=session["ended_at_ns"],
        program_name=None if session["program_name"] is None else session["program_name"].encode(),
        instance_name=None if session["instance_name"] is None else session["instance_name"].encode(),
        version=session["version"],
        cookie_empty=session["cookie_empty"],
        cookie_digest=session["cookie_hash"],
        accepted=session["accepted"],
        failed=session["failed"],
        lacks=session["lacks_sent"],
        streams=tuple((int(name["stream_id"]), name["digest"]) for name in session["names"] or ()),
        sent=_pairs(session["sent"]),
        unsent=tuple(map(_reference_of, session["unsent_acks"] or ())),
        referred=tuple(map(_reference_of, session["referred"] or ())),
        unstable=_pairs(session["unstable"]),
    )


def _pairs(listed: Iterable[dict[str, Any]] | None) -> tuple[tuple[int, int], ...]:
    return tuple((int(one["stream_id"]), int(one["message_id"])) for one in listed or ())


def _reference_of(row: dict[str, Any]) -> Reference:
    place = Place(row["arrived_at_ns"], row["capture_arrived_at_ns"], row["capture_id"], row["record_number"])
    where = Where(Direction.SERVER, place, row["byte_start"], row["byte_end"])
    return Reference(int(row["stream_id"]), int(row["message_id"]), where)
