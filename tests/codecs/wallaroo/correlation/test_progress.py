"""Which session of a stream follows which."""

from __future__ import annotations

from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.wallaroo.correlation.progress import Followed, StreamSession, follow


def session(number: int, sent: int | None = None, told: int = 0) -> StreamSession:
    return StreamSession(bytes([number]), number, sent, told)


def test_a_session_that_goes_on_keeps_what_it_follows() -> None:
    first = follow(None, session(1, 5))
    assert first == Followed(session(1, 5))
    second = follow(first, session(2, 3))
    assert second == Followed(session(2, 3), b"\1", 5)
    assert follow(second, session(2, 7, told=1)) == Followed(session(2, 7, told=1), b"\1", 5)


def test_a_session_that_sent_nothing_leaves_what_was_sent_before() -> None:
    after = follow(follow(follow(None, session(1, 5)), session(2)), session(3, 6))
    assert after == Followed(session(3, 6), b"\2", 5)


def test_all_sessions_before_tell_what_was_sent_not_the_last_one_alone() -> None:
    after = follow(follow(follow(None, session(1, 26)), session(2, 24)), session(3, 43))
    assert after == Followed(session(3, 43), b"\2", 26)


def test_an_older_session_changes_nothing() -> None:
    newest = follow(follow(None, session(1, 5)), session(2, 3))
    assert follow(newest, session(1, 9, told=1)) is None


def test_what_is_longer_ago_than_the_horizon_is_forgotten() -> None:
    before = follow(None, session(1, 5))
    assert follow(before, session(2, 3, told=HORIZON_NS)) == Followed(session(2, 3, told=HORIZON_NS), b"\1", 5)
    late = session(2, 3, told=HORIZON_NS + 1)
    assert follow(before, late) == Followed(late)
