"""The list of Ockam's rules: names, order and severities that tables and vectors rely on."""

from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.ockam.rules import LOSES_FRAMING, RULE, RULES, SET_RULES, WAIT_RULES

VIOLATION, WARNING, NOTE = Severity.VIOLATION, Severity.WARNING, Severity.NOTE
IN_ORDER = {
    "frame": VIOLATION,
    "routed": VIOLATION,
    "payload": VIOLATION,
    "reply_to_unknown_address": VIOLATION,
    "address_not_from_init": VIOLATION,
    "create_not_answered": VIOLATION,
    "create_other_name": VIOLATION,
    "address_changed": VIOLATION,
    "address_shared": VIOLATION,
    "partition_not_answered": VIOLATION,
    "unknown_request_id": VIOLATION,
    "duplicate_index": VIOLATION,
    "index_decreases": VIOLATION,
    "request_id_reused": WARNING,
    "push_unanswered": NOTE,
    "pull_not_answered": VIOLATION,
    "too_many_messages": VIOLATION,
    "below_requested_index": VIOLATION,
    "data_changed": VIOLATION,
    "index_never_confirmed": VIOLATION,
    "response_order": WARNING,
    "pull_skips": NOTE,
    "index_for_other_key": VIOLATION,
    "index_missing_record": NOTE,
    "saved_index_lowered": VIOLATION,
    "index_never_saved": VIOLATION,
    "consumer_hole": VIOLATION,
    "save_ahead": WARNING,
    "non_canonical": NOTE,
    "init_extra_bytes": NOTE,
    "init_without_address": VIOLATION,
    "init_unasked": NOTE,
    "address_not_from_name": NOTE,
    "index_not_answered": WARNING,
    "wrong_service": VIOLATION,
    "partition_route_mixed": NOTE,
}


def test_rules_stand_in_the_order_in_which_they_are_judged_with_their_severity() -> None:
    assert [(rule.name, rule.severity) for rule in RULES] == list(IN_ORDER.items())


def test_only_the_rules_about_bytes_that_are_no_message_quarantine() -> None:
    assert [rule.name for rule in RULES if rule.quarantines] == ["frame", "routed", "payload"]


def test_every_rule_is_found_by_name_and_says_what_breaks_it_and_where() -> None:
    assert list(RULE.items()) == [(rule.name, rule) for rule in RULES]
    assert {rule.id for rule in RULES} == {f"ockam.{name}" for name in IN_ORDER}
    assert all(rule.sentence.endswith(".") and rule.sentence.count(". ") == 0 and rule.place for rule in RULES)
    assert len({rule.sentence for rule in RULES}) == len(RULES)


def test_the_marks_name_rules_of_the_list() -> None:
    assert set(RULE) >= SET_RULES | WAIT_RULES | LOSES_FRAMING
    assert not SET_RULES & WAIT_RULES
