"""The rules that several connections break together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.correlation.sessions import Fold, Folds, SetFound, keys
from wirehouse_codecs.wallaroo.frames import Error, Ok
from wirehouse_codecs.wallaroo.session.outcome import Reference, Where
from wirehouse_codecs.wallaroo.session.summary import SessionSummary, summarise

SECOND = 10**9
#: A session of one second, accepted, at second 0.
PLAIN = SessionSummary(b"0", "w:1", 0, SECOND, b"p", b"i", "0.0.1", False, b"digest", True, False)


def sessions(*changes: dict[str, Any]) -> list[SessionSummary]:
    """Sessions one after the other, ten seconds apart, given in no order."""
    made = []
    for n, change in enumerate(changes):
        at = 10 * n * SECOND
        made.append(replace(PLAIN, connection_id=bytes([n]), started_ns=at, ended_ns=at + SECOND, **change))
    random.Random(len(made)).shuffle(made)
    return made


def judge(summaries: list[SessionSummary]) -> list[SetFound]:
    """All that these sessions break together."""
    folds = Folds()
    ordered = sorted(summaries, key=lambda summary: (summary.ended_ns, summary.connection_id))
    return [found for summary in ordered for found in folds.take(summary)]


def of_rule(name: str, summaries: list[SessionSummary]) -> list[SetFound]:
    return [found for found in judge(summaries) if found.rule.name == name]


def inconsistent_handshakes(summaries: list[SessionSummary]) -> list[SetFound]:
    return of_rule("handshake_inconsistent", summaries)


def reused_stream_ids(summaries: list[SessionSummary]) -> list[SetFound]:
    return of_rule("stream_id_reused", summaries)


def reconnects_without_backoff(summaries: list[SessionSummary]) -> list[SetFound]:
    return of_rule("reconnect_without_backoff", summaries)


def places(found: list[Any]) -> list[int]:
    return [finding.connection_id[0] for finding in found]


def test_a_worker_that_accepts_two_versions_or_cookies() -> None:
    summaries = sessions(
        {},
        {"version": "0.0.2"},
        {"version": "0.0.2", "cookie_digest": b"other"},
        {"cookie_empty": True, "cookie_digest": None},
        {},
        {"worker": "w:2", "version": "9"},
        {"version": "9", "accepted": False},
    )
    found = inconsistent_handshakes(summaries)
    assert places(found) == [1, 2, 3]
    assert {finding.rule.name for finding in found} == {"handshake_inconsistent"}
    assert ["version" in finding.message for finding in found] == [True, False, False]
    assert inconsistent_handshakes(sessions({}, {}, {})) == []


def test_an_id_with_two_names_between_sessions() -> None:
    found = reused_stream_ids(
        sessions(
            {"streams": ((1, b"a"), (2, b"b"))},
            {"streams": ((1, b"a"), (3, b"c"))},
            {"streams": ((1, b"c"),)},
            {"streams": ((7, b"b"),)},
            {"streams": ((1, b"z"),), "instance_name": b"other"},
            {"streams": ((9, b"z"),), "program_name": None},
        )
    )
    assert places(found) == [2, 3]
    assert {finding.rule.name for finding in found} == {"stream_id_reused"}


def test_a_name_with_two_ids_in_one_session_is_found_there_only() -> None:
    assert reused_stream_ids(sessions({"streams": ((1, b"a"), (2, b"a"))})) == []
    assert places(reused_stream_ids(sessions({"streams": ((2, b"a"),)}, {"streams": ((1, b"a"), (2, b"a"))}))) == [1]


@pytest.mark.parametrize(
    ("gaps", "found"),
    [
        ([5, 5, 5, 5], [4]),
        ([5, 5, 5], []),
        ([8, 4, 4, 2, 2, 2], [4]),
        ([1, 2, 4, 8, 16], []),
        ([5, 5, 5, 6, 6, 6, 6], [7]),
    ],
)
def test_reconnects_with_gaps_that_never_grow(gaps: list[int], found: list[int]) -> None:
    at, summaries = 0, [replace(PLAIN, connection_id=b"\0", failed=True)]
    for n, gap in enumerate(gaps):
        at = summaries[-1].ended_ns + gap * SECOND
        again = replace(PLAIN, connection_id=bytes([n + 1]), started_ns=at, ended_ns=at + SECOND, failed=True)
        summaries.append(again)
    assert places(reconnects_without_backoff(summaries[::-1])) == found


def test_a_session_that_succeeds_begins_the_count_anew() -> None:
    failed = {"failed": True}
    assert places(reconnects_without_backoff(sessions(*[failed] * 3, {}, *[failed] * 4))) == []
    assert places(reconnects_without_backoff(sessions(*[failed] * 3, {}, *[failed] * 5))) == [8]


def test_a_fold_that_is_carried_on_finds_the_same() -> None:
    failed = {"failed": True}
    summaries = sessions(
        {"version": "2", **failed},
        {"streams": ((1, b"a"),), **failed},
        {"streams": ((1, b"b"),), **failed},
        failed,
        failed,
    )
    ordered = sorted(summaries, key=lambda summary: summary.ended_ns)
    states: dict[str, str] = {}
    found = []
    for summary in ordered:
        for key in keys(summary):
            fold = Fold(key, states.get(key))
            found += fold.take(summary)
            states[key] = fold.snapshot()
    assert found == judge(summaries)
    assert len({finding.rule.name for finding in found}) == 3


def test_sessions_longer_ago_than_the_horizon_are_forgotten() -> None:
    late = HORIZON_NS + 2 * SECOND
    again = replace(PLAIN, connection_id=b"1", version="2", started_ns=late, ended_ns=late + SECOND)
    assert judge([PLAIN, again]) == []
    assert judge([PLAIN, replace(again, ended_ns=PLAIN.ended_ns + HORIZON_NS)]) != []


def test_no_more_is_remembered_than_of_the_last_days() -> None:
    folds = Folds()
    for number in range(300):
        ended = number * HORIZON_NS // 10
        folds.take(replace(PLAIN, worker=f"worker {number}", instance_name=b"%d" % number, ended_ns=ended))
    assert len(folds) == 2 * 11


def test_sessions_at_one_time_are_no_reconnects() -> None:
    beside = [
        replace(PLAIN, connection_id=bytes([n]), started_ns=n, ended_ns=SECOND + n, failed=True) for n in range(9)
    ]
    assert judge(beside) == []


def unsent(*acks: int, stream_id: int = 1) -> tuple[Reference, ...]:
    where = Where(Direction.SERVER, Place(0, 0, b"c", 7), 0, 9)
    return tuple(Reference(stream_id, message_id, where) for message_id in acks)


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ({}, [1]),
        ({"sent": ((1, 8),)}, [1]),
        ({"sent": ((1, 9),)}, []),
        ({"sent": ((2, 9),)}, [1]),
        ({"lacks": True}, []),
        ({"sent": ((1, 9),), "instance_name": b"other"}, [1]),
    ],
)
@pytest.mark.parametrize("between", [[], [{"sent": ((1, 2),)}]])
def test_an_ack_may_be_of_what_an_earlier_session_sent(
    before: dict[str, Any], between: list[dict[str, Any]], found: list[int]
) -> None:
    last = {"sent": ((1, 3),), "unsent": unsent(9)}
    told = of_rule("ack_never_sent", sessions(before, *between, last))
    assert places(told) == [1 + len(between)] * bool(found)
    assert all(one.where is not None and one.where.place.record_number == 7 for one in told)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("began", "ended", "found"), [(0, 4, [1]), (0, 5, []), (4, 9, []), (6, 9, [1])])
def test_an_ack_is_not_judged_while_another_session_of_the_instance_goes_on(
    began: int, ended: int, found: list[int], again: bool
) -> None:
    """`again`: each begin is given once more, and the fold is carried on, as from window to window."""
    other = replace(PLAIN, connection_id=b"\0", started_ns=began * SECOND, ended_ns=ended * SECOND)
    acking = replace(PLAIN, connection_id=b"\1", started_ns=SECOND, ended_ns=5 * SECOND, unsent=unsent(9))
    events = [(one.started_ns, 0, one) for one in (other, acking)] + [(one.ended_ns, 1, one) for one in (other, acking)]
    key = keys(PLAIN)[1]
    fold, told = Fold(key), list[SetFound]()
    for at_ns, ends, one in sorted(events, key=lambda event: (event[0], event[1], -event[2].connection_id[0])):
        if again:
            fold = Fold(key, fold.snapshot())
            for each in (other, acking):
                if each.started_ns <= at_ns < each.ended_ns:
                    fold.begin(each.connection_id)
        if ends:
            told += [each for each in fold.take(one) if each.rule.name == "ack_never_sent"]
        else:
            fold.begin(one.connection_id)
    assert places(told) == found


def test_an_ack_of_what_only_a_later_session_sends_is_of_nothing() -> None:
    told = of_rule("ack_never_sent", sessions({"unsent": unsent(9)}, {"sent": ((1, 9),)}))
    assert places(told) == [0]


@pytest.mark.parametrize(("at_s", "found"), [(0.5, []), (1, [1])])
def test_of_two_sessions_at_a_time_the_worker_may_point_at_what_came_before_both(at_s: float, found: list[int]) -> None:
    where = Where(Direction.SERVER, Place(int(at_s * SECOND), 0, b"c", 7), 0, 9)
    flagging = replace(PLAIN, connection_id=b"\0", sent=((1, 2),), unstable=((1, 2),))
    pointing = replace(PLAIN, connection_id=b"\1", ended_ns=2 * SECOND, referred=(Reference(1, 2, where),))
    assert places(of_rule("reference_unstable", [flagging, pointing])) == found
    assert of_rule("reference_unstable", [replace(flagging, lacks=True), pointing]) == []


def test_what_a_session_leaves(dialogue: Callable[..., Any], greeting: Callable[..., Any]) -> None:
    good = dialogue("v3").opened(1).end()
    summary = summarise(good.session.memory, b"id", "w:1")
    assert (summary.program_name, summary.instance_name, summary.version) == (b"program", b"one", "0.0.1")
    assert (summary.cookie_empty, summary.cookie_digest) == (False, b"hash")
    assert (summary.accepted, summary.failed) == (True, False)
    assert [stream_id for stream_id, _ in summary.streams] == [1]
    assert "monster" not in repr(summary)
    refused = dialogue("v3").c(greeting("v3", cookie=b"")).w(Error(b"bad cookie")).end()
    assert summarise(refused.session.memory, b"id", "w:1").failed
    assert summarise(refused.session.memory, b"id", "w:1").cookie_empty
    client, worker = Direction.CLIENT, Direction.SERVER
    for by, accepted, failed in (
        (client, True, False),
        (worker, True, True),
        (None, True, True),
        (client, False, True),
    ):
        told = dialogue("v3").c(greeting("v3")).w(*[Ok(1)] * accepted).end(End.RESET, by)
        assert summarise(told.session.memory, b"id", "w:1").failed == failed
    with pytest.raises(ValueError, match="no frame"):
        summarise(dialogue("v3").session.memory, b"id", "w:1")
