"""The rules that several connections break together, over summaries of their sessions.

Nothing depends on the order in which summaries are given. `summarise` is what one session leaves for the rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.rules import Rule
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.session import End, Session


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """What the rules over several connections need of one."""

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
    #: The worker answered by OK.
    accepted: bool
    #: It was refused, reset, or ended by an ERROR or a violation.
    failed: bool
    #: Stream ids and digests of their names.
    streams: tuple[tuple[int, bytes], ...] = ()


def summarise(session: Session, connection_id: bytes, worker: str) -> SessionSummary:
    """The summary of a session that has had at least one frame. ValueError before that."""
    if session.first_ns is None or session.last_ns is None:
        raise ValueError("no frame yet")
    broken = session.ended_by is not None or bool(session.errors) or session.ended is End.RESET
    return SessionSummary(
        connection_id=connection_id,
        worker=worker,
        started_ns=session.first_ns,
        ended_ns=session.last_ns,
        program_name=session.program_name,
        instance_name=session.instance_name,
        version=session.version,
        cookie_empty=session.cookie_empty,
        cookie_digest=session.cookie_digest,
        accepted=session.accepted,
        failed=broken or not session.accepted,
        streams=tuple((sid, stream.name) for sid, stream in session.streams.items() if stream.name is not None),
    )


@dataclass(frozen=True, slots=True)
class SetFound:
    """A rule that several connections break together, found at the one that completes it."""

    rule: Rule
    connection_id: bytes
    started_ns: int
    message: str


#: Reconnects in a row that need gaps which grow.
RECONNECTS: Final = 4


def _in_order(summaries: Iterable[SessionSummary]) -> list[SessionSummary]:
    return sorted(summaries, key=lambda summary: (summary.started_ns, summary.connection_id))


def _found_in(name: str, summary: SessionSummary, message: str) -> SetFound:
    return SetFound(RULE[name], summary.connection_id, summary.started_ns, message)


def inconsistent_handshakes(summaries: Iterable[SessionSummary]) -> list[SetFound]:
    """Rule `handshake_inconsistent`: each session with a version or cookie that is new to its worker."""
    found = []
    seen: dict[str, tuple[set[str | None], set[tuple[bool | None, bytes | None]]]] = {}
    for summary in _in_order(summaries):
        if not summary.accepted or summary.version is None:
            continue
        versions, cookies = seen.setdefault(summary.worker, (set(), set()))
        cookie = (summary.cookie_empty, summary.cookie_digest)
        new = [what for what, known, value in _told(versions, cookies, summary.version, cookie) if known]
        if new:
            shown = f"worker {summary.worker} accepted another {' and another '.join(new)} before"
            found.append(_found_in("handshake_inconsistent", summary, shown))
        versions.add(summary.version)
        cookies.add(cookie)
    return found


def _told(
    versions: set[str | None],
    cookies: set[tuple[bool | None, bytes | None]],
    version: str,
    cookie: tuple[bool | None, bytes | None],
) -> list[tuple[str, bool, object]]:
    """Version and cookie, and whether others but not these are known."""
    return [
        ("version", bool(versions) and version not in versions, version),
        ("cookie", bool(cookies) and cookie not in cookies, cookie),
    ]


def reused_stream_ids(summaries: Iterable[SessionSummary]) -> list[SetFound]:
    """Rule `stream_id_reused` between sessions of one program and instance."""
    found = []
    names: dict[tuple[bytes, bytes, int], bytes] = {}
    ids: dict[tuple[bytes, bytes, bytes], int] = {}
    for summary in _in_order(summaries):
        program, instance = summary.program_name, summary.instance_name
        if program is None or instance is None:
            continue
        for stream_id, name in summary.streams:
            if names.get((program, instance, stream_id), name) != name:
                shown = f"stream {stream_id} had another name in an earlier session"
                found.append(_found_in("stream_id_reused", summary, shown))
            elif (other := ids.get((program, instance, name), stream_id)) != stream_id:
                shown = f"the name of stream {stream_id} was that of stream {other} in an earlier session"
                found.append(_found_in("stream_id_reused", summary, shown))
            names[program, instance, stream_id] = name
            ids[program, instance, name] = stream_id
    return found


def reconnects_without_backoff(summaries: Iterable[SessionSummary]) -> list[SetFound]:
    """Rule `reconnect_without_backoff`: the reconnect that completes a row, once in each row."""
    found = []
    last: dict[tuple[bytes, bytes], SessionSummary] = {}
    gaps: dict[tuple[bytes, bytes], list[int]] = {}
    for summary in _in_order(summaries):
        if summary.program_name is None or summary.instance_name is None:
            continue
        who = (summary.program_name, summary.instance_name)
        before = last.get(who)
        row = gaps.setdefault(who, [])
        last[who] = summary
        if before is None or not before.failed:
            row.clear()
            continue
        gap = summary.started_ns - before.ended_ns
        if row and gap > row[-1]:
            row.clear()
        row.append(gap)
        if len(row) == RECONNECTS:
            shown = f"{RECONNECTS} reconnects after failures, the gaps are {', '.join(map(str, row))} ns"
            found.append(_found_in("reconnect_without_backoff", summary, shown))
        # Only the last gap is needed, and how many there were.
        del row[: -RECONNECTS - 1]
    return found
