"""The list of Cardinal's rules: names, order and severities that tables and vectors rely on."""

from wirehouse_codecs.cardinal.rules import RULE, RULES
from wirehouse_codecs.core.rules import Severity

VIOLATION, WARNING, NOTE = Severity.VIOLATION, Severity.WARNING, Severity.NOTE
#: In the order in which a message is judged.
SEVERITIES = {
    "key_length_wrong": VIOLATION,
    "unknown_type": VIOLATION,
    "value_undecodable": VIOLATION,
    "value_out_of_range": VIOLATION,
    "item_index_out_of_range": VIOLATION,
    "trailing_bytes": WARNING,
    "update_ambiguous": VIOLATION,
    "no_batch_message": VIOLATION,
    "batch_conflict": VIOLATION,
    "parent_never_sent": WARNING,
    "parent_after_child": NOTE,
    "number_repeated_in_chain": VIOLATION,
    "prefix_count_open": VIOLATION,
    "extra_message": VIOLATION,
    "unexpected_key": VIOLATION,
    "key_two_values": VIOLATION,
    "key_by_two_ways": WARNING,
    "delete_with_value": WARNING,
    "prefix_not_at_boundary": WARNING,
    "topic_wrong": WARNING,
    "subbatch_header_missing": VIOLATION,
    "subbatch_unknown": VIOLATION,
    "subbatch_items_missing": VIOLATION,
    "subbatch_conflict": VIOLATION,
    "reorg_unannounced": VIOLATION,
    "reorg_ancestor_wrong": VIOLATION,
    "reorg_channel_shared": VIOLATION,
    "reorg_chain_broken": VIOLATION,
    "reorg_not_completed": WARNING,
    "reorg_complete_unasked": VIOLATION,
}


def test_rules_stand_in_the_order_in_which_they_are_judged_with_their_severity() -> None:
    assert [(rule.name, rule.severity) for rule in RULES] == list(SEVERITIES.items())


def test_only_the_rules_that_leave_no_message_quarantine() -> None:
    assert [rule.name for rule in RULES if rule.quarantines] == list(SEVERITIES)[:5]


def test_every_rule_is_found_by_name_and_says_what_breaks_it_and_where() -> None:
    assert list(RULE.items()) == [(rule.name, rule) for rule in RULES]
    assert {rule.id for rule in RULES} == {f"cardinal.{name}" for name in SEVERITIES}
    assert all(rule.sentence.endswith(".") and rule.sentence.count(". ") == 0 and rule.place for rule in RULES)
    assert len({rule.sentence for rule in RULES}) == len(RULES)
