"""The list of Bamboo's rules: names, order and severities that tables and vectors rely on."""

from wirehouse_codecs.bamboo.rules import (
    BYMUX_RULES,
    CONTROL_RULES,
    DATA_RULES,
    ENDS,
    ENTRY_RULE,
    ENTRY_RULES,
    RULE,
    RULES,
)
from wirehouse_codecs.core.rules import Severity

OF_BYMUX = [
    "unknown_type",
    "unknown_stream",
    "write_without_credit",
    "credit_overflow",
    "credit_on_infinite",
    "global_credit_overflow",
    "create_without_credit",
    "stream_id_parity",
    "stream_id_in_use",
    "write_after_close",
    "close_twice",
    "stopread_twice",
    "credit_after_stopread",
    "global_credit_after_stopread",
    "create_after_global_close",
    "ping_after_end",
    "close_not_answered",
    "wide_integer",
    "channel_backpressure_wrong",
    "no_setup_seen",
    "truncated_packet",
    "noncanonical_varu64",
]
OF_CONTROL = [
    "unused_control_byte",
    "seqnum_zero",
    "proposal_credit_overflow",
    "proposal_without_credit",
    "id_parity",
    "id_in_use",
    "cancel_or_adjust_inactive",
    "cancel_or_adjust_after_cancel",
    "confirmation_without_eagerness",
    "end_before_start",
    "upper_info_before_end",
    "lower_info_after_start",
    "lower_info_not_in_pool",
    "upper_info_not_in_pool",
    "min_payload_lowered",
    "max_payload_raised",
    "cancel_reason_untrue",
    "starting_hash_differs",
    "cancel_not_confirmed",
    "proposal_not_answered",
]
OF_DATA = [
    "unused_data_byte",
    "switch_inactive",
    "cancelled_inactive",
    "data_without_switch",
    "data_after_cancel",
    "out_of_turn",
    "past_end",
    "data_after_end_of_log",
    "payload_overrun",
    "compression_without_window",
    "window_exceeded",
    "offset_zero",
    "offset_before_start",
    "lzfoo_truncated",
    "length_mismatch",
    "eagerness_ignored",
    "skip_size_untrue",
    "skip_of_mandatory_payload",
    "skip_beyond_peer",
    "apology_without_data",
    "apology_repeated",
    "apology_for_valid_data",
    "invalid_data_not_apologised",
    "invalid_data_in_safe_mode",
    "unwanted_payload_size",
    "settings_suspect",
    "link_unknown",
    "history_unknown",
]
OF_ENTRIES = [
    "truncated",
    "trailing_bytes",
    "malformed",
    "bad_tag",
    "seq_zero",
    "noncanonical_varu64",
    "bad_yamf_id",
    "bad_yamf_length",
    "payload_hash_mismatch",
    "payload_size_mismatch",
    "lipmaalink_mismatch",
    "backlink_mismatch",
    "log_id_mismatch",
    "author_mismatch",
    "after_end_of_log",
    "bad_author_key",
    "bad_signature",
    "fork",
]
WARNINGS = {
    "close_not_answered", "channel_backpressure_wrong", "cancel_reason_untrue", "cancel_not_confirmed",
    "unwanted_payload_size", "fork",
}  # fmt: skip
NOTES = {
    "wide_integer", "no_setup_seen", "truncated_packet", "noncanonical_varu64", "starting_hash_differs",
    "proposal_not_answered", "settings_suspect", "link_unknown", "history_unknown",
}  # fmt: skip


def test_rules_stand_in_the_order_in_which_they_are_judged() -> None:
    assert [rule.name for rule in BYMUX_RULES] == OF_BYMUX
    assert [rule.name for rule in CONTROL_RULES] == OF_CONTROL
    assert [rule.name for rule in DATA_RULES] == OF_DATA
    assert [rule.name for rule in ENTRY_RULES] == OF_ENTRIES


def test_rules_have_their_severity() -> None:
    assert {rule.name for rule in RULES if rule.severity is Severity.WARNING} == WARNINGS
    assert {rule.name for rule in RULES if rule.severity is Severity.NOTE} == NOTES


def test_a_long_number_is_a_note_on_channels_and_a_fault_of_entries() -> None:
    assert RULE["noncanonical_varu64"].severity is Severity.NOTE
    assert ENTRY_RULE["noncanonical_varu64"].severity is Severity.VIOLATION
    assert RULE["noncanonical_varu64"].id == ENTRY_RULE["noncanonical_varu64"].id


def test_connections_end_with_the_violations_of_packets() -> None:
    packets = {*OF_BYMUX, *OF_CONTROL, *OF_DATA}
    assert packets - WARNINGS - NOTES == ENDS


def test_only_bytes_that_cant_be_decoded_are_quarantined() -> None:
    assert {rule.name for rule in RULES if rule.quarantines} == {
        "unknown_type",
        "unused_control_byte",
        "unused_data_byte",
        "truncated_packet",
    }


def test_every_rule_is_found_by_name_and_says_what_breaks_it_and_where() -> None:
    assert list(RULE.items()) == [(rule.name, rule) for rule in RULES]
    assert {rule.id for rule in RULES} == {f"bamboo.{name}" for name in {*OF_BYMUX, *OF_CONTROL, *OF_DATA, *OF_ENTRIES}}
    assert all(rule.sentence.endswith(".") and rule.sentence.count(". ") == 0 and rule.place for rule in RULES)
    assert len({rule.sentence for rule in RULES}) == len(RULES)
