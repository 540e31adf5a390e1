"""The list of Hiero's rules: names, order and severities that tables and vectors rely on."""

import json
from pathlib import Path

from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.rules import (
    ALSO_TOGETHER,
    CALL_RULES,
    MESSAGE_RULES,
    NODE_RULES,
    RULE,
    RULES,
    TOLERANT,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "hiero"
#: The checkable invariants, as the vectors number them, and the rules besides.
INVARIANTS = (
    "next",
    "duplicate",
    "last_known",
    "last_known_set",
    "recheck",
    "behind",
    "resend_from_l1",
    "earliest",
    "too_far_code",
    "backoff",
    "behind_repeat",
    "target_closer",
    "recorded_target",
    "catchup_range",
    "reenter",
    "end_last",
    "drop_unproven",
    "source_error_only_if_last",
    "source_error_sent",
    "continue",
    "node_error_all",
    "node_error_subscribers",
    "retry_after_node_error",
    "structure",
    "ack_order",
    "chain",
    "skip_pair",
    "code_set",
)
WARNINGS = {
    *("too_far_code", "target_closer", "catchup_range", "source_error_sent"),
    *("ended_without_end_stream", "node_ended_without_status", "block_not_acknowledged"),
    "subscriber_ended_without_status",
}
#: What a subscriber was promised.
SUBSCRIBERS = {"subscriber_order", "subscriber_gap", "subscriber_range"}
NOTES = {
    *("retry_after_node_error", "gap_not_filled", "catch_up_not_started", "catch_up_overrun"),
    *("subscriber_not_resumed", "last_block_again", "ack_unoffered"),
}


def test_every_invariant_is_a_rule_and_the_severities_are_those_of_the_list() -> None:
    assert len(INVARIANTS) == 28
    assert set(INVARIANTS) <= set(RULE)
    assert set(RULE) - set(INVARIANTS) - WARNINGS - NOTES - SUBSCRIBERS == {"malformed_message", "item_refused"}
    for rule in RULES:
        expected = Severity.WARNING if rule.name in WARNINGS else Severity.NOTE if rule.name in NOTES else None
        assert rule.severity is (expected or Severity.VIOLATION), rule.name


def test_only_bytes_that_are_no_message_quarantine() -> None:
    assert [rule.name for rule in RULES if rule.quarantines] == ["malformed_message"]


def test_every_rule_is_found_by_name_and_says_what_breaks_it_and_where() -> None:
    assert RULES == MESSAGE_RULES + CALL_RULES + NODE_RULES
    assert list(RULE.items()) == [(rule.name, rule) for rule in RULES]
    assert all(rule.id == f"hiero.{rule.name}" for rule in RULES)
    assert all(rule.sentence.endswith(".") and rule.place for rule in RULES)
    assert len({rule.sentence for rule in RULES}) == len(RULES)


def test_the_marks_name_rules_of_the_list() -> None:
    assert set(RULE) >= ALSO_TOGETHER | set(TOLERANT)


def test_the_vectors_name_rules_of_the_list() -> None:
    for path in VECTORS.glob("*/*.expected.json"):
        said = json.loads(path.read_text())
        names = [*said["rules_exercised"], *(violation["rule"] for violation in said["violations"])]
        assert {name.lower() for name in names} <= set(RULE), path
