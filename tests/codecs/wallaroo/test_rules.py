"""The list of Wallaroo's rules: names, order and severities that tables and vectors rely on."""

from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.wallaroo.rules import (
    ALSO_OF_A_SESSION,
    ENDS,
    FRAME_RULES,
    HABIT_RULES,
    JUDGED_AFTER_END,
    LOSES_FRAMING,
    RULE,
    RULES,
    SET_RULES,
)

VIOLATION, WARNING, NOTE = Severity.VIOLATION, Severity.WARNING, Severity.NOTE
#: In the order in which a frame is judged; True = the session ends.
OF_FRAMES = {
    "dialect_unsupported": (NOTE, False),
    "empty_frame": (VIOLATION, True),
    "oversize_frame": (VIOLATION, True),
    "unknown_frame_type": (VIOLATION, True),
    "malformed_frame": (VIOLATION, True),
    "trailing_bytes": (WARNING, False),
    "frame_before_hello": (VIOLATION, True),
    "duplicate_hello": (VIOLATION, True),
    "cookie_refused": (VIOLATION, True),
    "version_refused": (VIOLATION, True),
    "wrong_direction": (VIOLATION, True),
    "message_unknown_stream": (VIOLATION, True),
    "message_before_notify_ack": (VIOLATION, True),
    "message_closed_stream": (VIOLATION, True),
    "eos_unknown_stream": (VIOLATION, True),
    "flags_not_allowed": (VIOLATION, True),
    "reserved_flags_set": (VIOLATION, False),
    "credits_overdrawn": (VIOLATION, False),
    "connector_error": (NOTE, False),
    "worker_error": (NOTE, False),
    "truncated_frame": (NOTE, False),
    "capture_ends_early": (NOTE, False),
    "no_handshake_seen": (NOTE, False),
}
OF_HABITS = {
    "frame_before_ok": VIOLATION,
    "duplicate_ok": VIOLATION,
    "frame_after_error": VIOLATION,
    "hello_refused": VIOLATION,
    "hello_not_answered": WARNING,
    "handshake_inconsistent": WARNING,
    "zero_initial_credits": WARNING,
    "error_not_signalled": WARNING,
    "not_closed_after_error": NOTE,
    "notify_open_stream": WARNING,
    "notify_reference_unexpected": WARNING,
    "stream_id_reused": WARNING,
    "ack_unknown_stream": VIOLATION,
    "ack_never_sent": WARNING,
    "ack_goes_back": WARNING,
    "message_never_acked": NOTE,
    "reference_unstable": NOTE,
    "nack_unknown_stream": WARNING,
    "nack_not_answered": WARNING,
    "boundary_with_payload": VIOLATION,
    "ephemeral_id_repeated": WARNING,
    "message_ignored": NOTE,
    "notify_ack_unasked": VIOLATION,
    "notify_refused": NOTE,
    "notify_not_answered": NOTE,
    "credits_not_replenished": WARNING,
    "reconnect_without_backoff": WARNING,
}


def test_rules_stand_in_the_order_in_which_they_are_judged_with_their_severity() -> None:
    assert [(rule.name, (rule.severity, rule.name in ENDS)) for rule in FRAME_RULES] == list(OF_FRAMES.items())
    assert [(rule.name, rule.severity) for rule in HABIT_RULES] == list(OF_HABITS.items())
    assert RULES == FRAME_RULES + HABIT_RULES


def test_only_the_rules_about_bytes_that_are_no_frame_quarantine() -> None:
    assert [rule.name for rule in RULES if rule.quarantines] == [*list(OF_FRAMES)[:5], "truncated_frame"]


def test_every_rule_is_found_by_name_and_says_what_breaks_it_and_where() -> None:
    assert list(RULE.items()) == [(rule.name, rule) for rule in RULES]
    assert {rule.id for rule in RULES} == {f"wallaroo.{name}" for name in [*OF_FRAMES, *OF_HABITS]}
    assert all(rule.sentence.endswith(".") and rule.sentence.count(". ") == 0 and rule.place for rule in RULES)
    assert len({rule.sentence for rule in RULES}) == len(RULES)


def test_the_marks_name_rules_of_the_list() -> None:
    assert set(RULE) >= ENDS | LOSES_FRAMING | JUDGED_AFTER_END | SET_RULES
    assert LOSES_FRAMING <= ENDS
    assert ALSO_OF_A_SESSION <= SET_RULES
    assert set(OF_HABITS) >= JUDGED_AFTER_END | SET_RULES
