"""The rules of Bamboo Point-2-Point, in the order in which a packet or an entry is judged.

A packet breaks at most one violation of its channel: the first one in this order. After a violation of `ENDS` the
connection has to be dropped, so its later bytes are one row of quarantine and are not judged. Entries have rules of
their own, `ENTRY_RULE`; the first one that an entry breaks is its reason. In entry files and in cancels 133 and 135
these rules are violations. For an entry that was rebuilt from packets they are only a reason, and the finding is a rule
of the data channel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from wirehouse_codecs.core.rules import Rule, Severity, by_name

PROTOCOL: Final = "bamboo"


def _violation(name: str, sentence: str, place: str, *, quarantines: bool = False) -> Rule:
    return Rule(PROTOCOL, name, Severity.VIOLATION, sentence, place, quarantines)


def _warning(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.WARNING, sentence, place)


def _note(name: str, sentence: str, place: str, *, quarantines: bool = False) -> Rule:
    return Rule(PROTOCOL, name, Severity.NOTE, sentence, place, quarantines)


BYMUX_RULES: Final[tuple[Rule, ...]] = (
    _violation(
        "unknown_type",
        "The type of a packet is 110 or 111, which are not assigned.",
        "bymux, packets",
        quarantines=True,
    ),
    _violation("unknown_stream", "A packet is for a stream that is not active.", "bymux, streams"),
    _violation(
        "write_without_credit",
        "A Write has more bytes than the other side gave credit for.",
        "bymux, credit; Running Over Bymux (the data channel has backpressure)",
    ),
    _violation("credit_overflow", "The credit of a stream sums up to more than 2^64 - 1.", "bymux, credit"),
    _violation(
        "credit_on_infinite", "A Credit other than 0 is for a stream whose credit is infinite.", "bymux, credit"
    ),
    _violation(
        "global_credit_overflow", "The credit for creating streams sums up to more than 2^64 - 1.", "bymux, credit"
    ),
    _violation("create_without_credit", "A stream is created without credit for it.", "bymux, creating streams"),
    _violation(
        "stream_id_parity",
        "The proactive side creates a stream with an odd id, or the reactive one with an even one.",
        "bymux, creating streams",
    ),
    _violation("stream_id_in_use", "A stream is created whose id is active.", "bymux, creating streams"),
    _violation("write_after_close", "A Write follows the Close that its side sent for the stream.", "bymux, closing"),
    _violation("close_twice", "A side sends a second Close for a stream, or for creating streams.", "bymux, closing"),
    _violation(
        "stopread_twice", "A side sends a second StopRead for a stream, or for creating streams.", "bymux, closing"
    ),
    _violation(
        "credit_after_stopread", "A Credit follows the StopRead that its side sent for the stream.", "bymux, closing"
    ),
    _violation(
        "global_credit_after_stopread",
        "A Credit for creating streams follows the StopRead that its side sent for that.",
        "bymux, closing",
    ),
    _violation(
        "create_after_global_close",
        "A stream is created by a side that has closed creating streams.",
        "bymux, closing",
    ),
    _violation(
        "ping_after_end",
        "A Ping or Pong of a stream, or a global one, follows the Close and StopRead that its side sent for the "
        "stream, or for creating streams.",
        "bymux, closing",
    ),
    _warning(
        "close_not_answered",
        "The connection ends in order, and a Close had no StopRead for an answer, or a StopRead no Close.",
        "bymux, closing",
    ),
    _note("wide_integer", "An id or amount is written wider than it needs.", 'bymux, packets: "should"'),
    _warning(
        "channel_backpressure_wrong",
        "The control channel is given credit that is finite, or the data channel credit that is infinite.",
        "Running Over Bymux, first sentence",
    ),
    _note(
        "no_setup_seen",
        "The capture lacks the setup bytes of a side, so that modes and windows are unknown and the rules that need "
        "them are silent.",
        "Session Setup; Running Over Bymux",
    ),
    _note(
        "truncated_packet",
        "The connection or the capture ends inside a packet.",
        "Encodings; bymux, packets",
        quarantines=True,
    ),
    _note(
        "noncanonical_varu64",
        "A VarU64 is longer than it needs to be; that of an entry or of its metadata makes the entry invalid.",
        'Encodings, byte 128: "canonical"; varu64',
    ),
)

CONTROL_RULES: Final[tuple[Rule, ...]] = (
    _violation(
        "unused_control_byte",
        "The first byte is one of 136 to 159.",
        "Encodings, invariants of control",
        quarantines=True,
    ),
    _violation(
        "seqnum_zero",
        "Start, lower info, end, upper info or the sequence number of a cancel 134 is 0.",
        'Encodings: "sequence numbers are nonzero"',
    ),
    _violation(
        "proposal_credit_overflow",
        "The outstanding credit for proposals is above 2^64 - 1.",
        "Encodings, invariants of control, 1",
    ),
    _violation(
        "proposal_without_credit", "A proposal is sent without credit for it.", "Encodings, invariants of control, 2"
    ),
    _violation(
        "id_parity",
        "The proactive side proposes an odd id, or the reactive one an even one.",
        "Encodings, invariants of control, 3",
    ),
    _violation(
        "id_in_use",
        "The id of a proposal is that of an earlier one, of which not all four cancel messages were sent.",
        "Encodings, invariants of control, 4",
    ),
    _violation(
        "cancel_or_adjust_inactive",
        "An adjust or cancel is for an id that was never proposed, was dropped for an overlap, or is free again.",
        "Encodings, invariants of control, 5",
    ),
    _violation(
        "cancel_or_adjust_after_cancel",
        "An adjust or cancel is for an id that the same side has cancelled.",
        "Encodings, invariants of control, 6",
    ),
    _violation(
        "confirmation_without_eagerness",
        "The first adjust of the side that did not propose sets no eagerness.",
        "Encodings, invariants of control, 7",
    ),
    _violation(
        "end_before_start",
        "The end of a range, proposed or adjusted, is below its start.",
        "Encodings, invariants of control, 8",
    ),
    _violation(
        "upper_info_before_end",
        "The upper certpool info, proposed or adjusted, is below the end then in force.",
        "Encodings, invariants of control, 9",
    ),
    _violation(
        "lower_info_after_start",
        "The lower certpool info is above the start.",
        "Encodings, invariants of control, 10",
    ),
    _violation(
        "lower_info_not_in_pool",
        "The lower certpool info is no member of the lower certificate pool of the start.",
        'The Control Channel: "a sequence number from the lower certificate pool"',
    ),
    _violation(
        "upper_info_not_in_pool",
        "The upper certpool info is no member of the upper certificate pool of the end, proposed or adjusted.",
        "The Control Channel, upper certpool info",
    ),
    _violation(
        "min_payload_lowered",
        "An adjusted minimum of the payload size is below the old one.",
        "Encodings, invariants of control, 11",
    ),
    _violation(
        "max_payload_raised",
        "An adjusted maximum of the payload size is above the old one.",
        "Encodings, invariants of control, 12",
    ),
    _warning(
        "cancel_reason_untrue",
        "The reason that a cancel states is not true.",
        "The Control Channel, reasons of cancellation",
    ),
    _note(
        "starting_hash_differs",
        "The expected starting hash differs from that of the entry as known here, and no cancel 133 or 135 follows.",
        "The Control Channel, expected starting hash",
    ),
    _warning(
        "cancel_not_confirmed",
        "The connection ends in order, and a cancelled proposal had fewer than four cancel messages.",
        'The Control Channel: "four messages in total"',
    ),
    _note(
        "proposal_not_answered",
        "A proposal was neither confirmed nor cancelled by the end.",
        "The Control Channel, confirmation",
    ),
)

DATA_RULES: Final[tuple[Rule, ...]] = (
    _violation(
        "unused_data_byte",
        "The first byte is one of 1, 10 to 15, 17 to 31, 33 to 127 and 130 to 255.",
        "Encodings, invariants of data",
        quarantines=True,
    ),
    _violation(
        "switch_inactive",
        "The current proposal becomes one that is not confirmed, was dropped, or was cancelled here by the same side.",
        "Encodings, invariants of data, 1",
    ),
    _violation(
        "cancelled_inactive",
        "Byte 32 is for an id that is not proposed, or is sent twice.",
        "Encodings, invariants of data, 2",
    ),
    _violation(
        "data_without_switch",
        "A packet about the current proposal is sent before any was made the current one.",
        "The Data Channel, current proposal",
    ),
    _violation(
        "data_after_cancel",
        "After cancelling its current proposal a side sends something other than a switch or another cancel.",
        "Encodings, invariants of data, 3",
    ),
    _violation(
        "out_of_turn",
        "A payload is sent where metadata is due, or metadata where a payload is due.",
        "Encodings, invariants of data, 4",
    ),
    _violation(
        "past_end", "A packet moves the cursor beyond the end of the range.", "Encodings, invariants of data, 6"
    ),
    _violation(
        "data_after_end_of_log",
        "Data of an entry is sent that would be after the end-of-log entry.",
        "bamboo, end-of-log; The Data Channel",
    ),
    _violation(
        "payload_overrun",
        "More bytes of a payload are sent or skipped than its metadata states.",
        "Encodings, invariants of data, 7",
    ),
    _violation(
        "compression_without_window",
        "A payload is compressed although the window is 0.",
        "Encodings, invariants of data, 5",
    ),
    _violation(
        "window_exceeded",
        "A copy reaches back farther than the negotiated window.",
        "Encodings, invariants of data, 5; The Data Channel",
    ),
    _violation("offset_zero", "A copy is from 0 bytes back.", "LZFoo"),
    _violation("offset_before_start", "A copy reaches back farther than there is data.", "LZFoo"),
    _violation("lzfoo_truncated", "Compressed data ends inside an element.", "LZFoo"),
    _violation(
        "length_mismatch",
        "Compressed data does not decompress to the announced number of bytes.",
        "Encodings, byte 9",
    ),
    _violation(
        "eagerness_ignored",
        "Data is sent where only notifies are asked for, or a payload above the limit; or a notify where data is "
        "asked for that the other side has not sent.",
        "Encodings, invariants of data, 8",
    ),
    _violation(
        "skip_size_untrue",
        "A payload is skipped as too small or too large although its metadata states another size.",
        "Encodings, invariants of data, 9",
    ),
    _violation(
        "skip_of_mandatory_payload",
        "A payload is skipped as unavailable although payloads are mandatory.",
        "Encodings, invariants of data, 10",
    ),
    _violation(
        "skip_beyond_peer",
        "Bytes of a payload are skipped that the other side has not sent.",
        'The Data Channel: "only allowed to allow the cursor of one endpoint to catch up"',
    ),
    _violation(
        "apology_without_data", "An apology is sent with nothing before it to retract.", "The Data Channel, apology"
    ),
    _violation(
        "apology_repeated",
        "A second apology is sent for a piece that was not sent again.",
        "Encodings, invariants of data, 12",
    ),
    _violation(
        "apology_for_valid_data",
        "An apology is sent for a whole piece that is valid.",
        "Encodings, invariants of data, 11",
    ),
    _violation(
        "invalid_data_not_apologised",
        "In greedy mode the next piece of a proposal follows an invalid one without an apology.",
        "The Data Channel, last two sentences",
    ),
    _violation(
        "invalid_data_in_safe_mode",
        "In safe mode a whole piece is sent that is invalid.",
        "Encodings, invariants of data, 13; The Data Channel",
    ),
    _warning(
        "unwanted_payload_size",
        "Payload bytes are sent whose size is below the minimum or above the maximum.",
        "The Control Channel, minimum and maximum",
    ),
    _note(
        "settings_suspect",
        "Eagerness, end or upper info was adjusted while data was under way, and what the sender knew can't be shown.",
        "The Control Channel, adjustments",
    ),
    _note("link_unknown", "The target of a link is not known here.", "bamboo, verification"),
    _note(
        "history_unknown",
        "A compressed payload refers to bytes that are not known here, so it is kept as it came.",
        "The Data Channel, compression",
    ),
)

ENTRY_RULES: Final[tuple[Rule, ...]] = (
    _violation("truncated", "An entry is cut.", "bamboo, encoding"),
    _violation("trailing_bytes", "Bytes follow the signature of an entry.", "bamboo, encoding"),
    _violation(
        "malformed",
        "The fields of an entry fit only with more or fewer links than its sequence number asks for.",
        "bamboo, encoding",
    ),
    _violation("bad_tag", "The tag of an entry is neither 0 nor 1.", "bamboo, encoding"),
    _violation("seq_zero", "The sequence number of an entry is 0.", "bamboo, encoding"),
    replace(by_name(BYMUX_RULES)["noncanonical_varu64"], severity=Severity.VIOLATION),
    _violation("bad_yamf_id", "The type of a hash is not 0.", "yamf-hash"),
    _violation("bad_yamf_length", "The length of a hash is not 64.", "yamf-hash"),
    _violation("payload_hash_mismatch", "A payload does not have the hash in its entry.", "bamboo, verification"),
    _violation(
        "payload_size_mismatch",
        "A payload has the hash but not the size in its entry: the log is invalid from there on.",
        "bamboo, verification",
    ),
    _violation(
        "lipmaalink_mismatch",
        "A lipmaalink names another hash than that of the known entry.",
        "bamboo, links and entry verification",
    ),
    _violation(
        "backlink_mismatch",
        "A backlink names another hash than that of the known entry.",
        "bamboo, links and entry verification",
    ),
    _violation("log_id_mismatch", "A link leads to an entry of another log.", "bamboo, links and entry verification"),
    _violation(
        "author_mismatch", "A link leads to an entry of another author.", "bamboo, links and entry verification"
    ),
    _violation("after_end_of_log", "An entry comes after the end-of-log entry of its log.", "bamboo, end-of-log"),
    _violation("bad_author_key", "The author of an entry is no Ed25519 public key.", "bamboo, signature"),
    _violation("bad_signature", "The signature of an entry is not its author's.", "bamboo, signature"),
    _warning(
        "fork",
        "Two entries of an author, log and sequence number differ, or another pair of entries proves that.",
        "The Control Channel, fork proof; bamboo, verification",
    ),
)

#: `noncanonical_varu64` stands here once: as a note, which it is on the channels.
RULES: Final[tuple[Rule, ...]] = (
    *BYMUX_RULES,
    *CONTROL_RULES,
    *DATA_RULES,
    *(rule for rule in ENTRY_RULES if rule.name != "noncanonical_varu64"),
)
#: The rules of connections by their short name, and those of entries.
RULE: Final = by_name(RULES)
ENTRY_RULE: Final = by_name(ENTRY_RULES)

#: Rules of entries by which a packet that shows one can't be read.
SHOWN_RULES: Final = tuple(ENTRY_RULE[name] for name in ("bad_tag", "seq_zero", "bad_yamf_id", "bad_yamf_length"))
#: Rules of the data channel that are also found once signatures are known, and entries from elsewhere.
FOLLOWED_RULES: Final = (
    *("invalid_data_in_safe_mode", "invalid_data_not_apologised", "apology_for_valid_data", "payload_overrun"),
    *("skip_size_untrue", "out_of_turn", "past_end", "eagerness_ignored"),
)
#: Violations after which the connection is to be dropped: all of bymux and both channels.
ENDS: Final = frozenset(
    rule.name for rule in (*BYMUX_RULES, *CONTROL_RULES, *DATA_RULES) if rule.severity is Severity.VIOLATION
)
