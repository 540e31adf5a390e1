"""The rules of the Wallaroo connector protocol, in the order in which a frame is judged.

`FRAME_RULES` are framing, handshake, direction, stream state, flags and credits: a frame breaks at most one of them,
the first in this order of checks. The rules about states, references, acks and habits are found besides. After a rule
of `ENDS` the worker must close: later frames of the connection are kept, marked `ignored` and judged only by
`JUDGED_AFTER_END`. After a rule of `LOSES_FRAMING` no later frame can be cut, so the rest is one row of quarantine.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.core.rules import Rule, Severity, by_name

PROTOCOL: Final = "wallaroo"


def _violation(name: str, sentence: str, place: str, *, quarantines: bool = False) -> Rule:
    return Rule(PROTOCOL, name, Severity.VIOLATION, sentence, place, quarantines)


def _warning(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.WARNING, sentence, place)


def _note(name: str, sentence: str, place: str, *, quarantines: bool = False) -> Rule:
    return Rule(PROTOCOL, name, Severity.NOTE, sentence, place, quarantines)


FRAME_RULES: tuple[Rule, ...] = (
    _note(
        "dialect_unsupported",
        "The connection speaks a dialect that only existed between two drafts, and its bytes are kept undecoded.",
        "Overview [A1]",
        quarantines=True,
    ),
    _violation(
        "empty_frame",
        "The length of a frame is 0, so that it has no tag.",
        "Wire Format (a tag follows every length)",
        quarantines=True,
    ),
    _violation(
        "oversize_frame",
        "The length of a frame is above the limit: 16384 bytes of what an implemented worker receives, unless that is "
        "configured, else 4 MiB.",
        "Wire Format [B1]",
        quarantines=True,
    ),
    _violation(
        "unknown_frame_type",
        "The tag of a frame is none of its dialect.",
        "Constants",
        quarantines=True,
    ),
    _violation(
        "malformed_frame",
        "A field reaches beyond the end of its frame.",
        "Wire Format, frame definitions",
        quarantines=True,
    ),
    _warning("trailing_bytes", "Bytes follow the last field of a frame.", "Wire Format, frame definitions"),
    _violation(
        "frame_before_hello",
        "A frame other than ERROR comes before the HELLO: from the connector, which ends the session, or the worker.",
        "Handshake; Protocol State Machine, Connected",
    ),
    _violation("duplicate_hello", "The connector sends a second HELLO.", "Protocol State Machine"),
    _violation(
        "cookie_refused",
        "The worker answers HELLO by an ERROR that names the cookie.",
        "Handshake [C0]",
    ),
    _violation(
        "version_refused",
        "The worker answers HELLO by an ERROR that names the version.",
        "Overview [A1]",
    ),
    _violation(
        "wrong_direction",
        "The connector sends OK, NOTIFY_ACK, ACK, NACK or RESTART, or the worker HELLO, NOTIFY, MESSAGE or "
        "EOS_MESSAGE.",
        "Protocol State Machine, the three lists",
    ),
    _violation(
        "message_unknown_stream",
        "A MESSAGE belongs to a stream that was never notified on this connection, or was refused.",
        'Streaming: "is an error"',
    ),
    _violation(
        "message_before_notify_ack",
        "A MESSAGE arrives while the NOTIFY of its stream waits for its NOTIFY_ACK.",
        "Not in the text: what the implemented worker does",
    ),
    _violation(
        "message_closed_stream",
        "A MESSAGE belongs to a stream that ended and was not notified again.",
        "Streaming; Stream State Machine, closed",
    ),
    _violation(
        "eos_unknown_stream",
        "An EOS_MESSAGE belongs to a stream that is unknown, refused, closed, or still waits for its NOTIFY_ACK.",
        "Stream State Machine",
    ),
    _violation(
        "flags_not_allowed",
        "A MESSAGE has two flags that exclude one another.",
        "Not in the text: the implemented flags",
    ),
    _violation("reserved_flags_set", "A MESSAGE has flags that are reserved.", "Message Bit-flags"),
    _violation(
        "credits_overdrawn",
        "The connector sends a NOTIFY or MESSAGE without a credit left.",
        'Overview: "credit count remains above zero"',
    ),
    _note("connector_error", "The connector sends an ERROR.", "Handshake; Protocol State Machine, Error"),
    _note(
        "worker_error",
        "The worker sends an ERROR for which no broken rule was found.",
        "Handshake; Protocol State Machine, Error",
    ),
    _note(
        "truncated_frame",
        "The connection is closed or reset inside a frame.",
        "Wire Format",
        quarantines=True,
    ),
    _note("capture_ends_early", "The capture stops before the connection is closed.", "Wire Format"),
    _note("no_handshake_seen", "The capture begins after the HELLO of a connection.", "Handshake"),
)

HABIT_RULES: tuple[Rule, ...] = (
    _violation(
        "frame_before_ok",
        "Between HELLO and OK the connector sends a frame other than ERROR, or the worker one other than OK and ERROR.",
        "Protocol State Machine, Handshake",
    ),
    _violation("duplicate_ok", "The worker sends a second OK.", "Protocol State Machine, Streaming"),
    _violation(
        "frame_after_error",
        "A side sends a frame after its own ERROR.",
        'Protocol State Machine: "no frames are valid"',
    ),
    _violation(
        "hello_refused",
        "The worker answers HELLO by an ERROR that names neither cookie nor version.",
        'Handshake: "either an ok frame or an error frame"',
    ),
    _warning(
        "hello_not_answered",
        "The connection is closed in order after HELLO without OK or ERROR.",
        'Handshake: "should send"',
    ),
    _warning(
        "handshake_inconsistent",
        "One worker accepted two versions, or two cookies, or both an empty cookie and a set one.",
        "Overview [A1]; Handshake [C0]",
    ),
    _warning("zero_initial_credits", "An OK grants no credits.", "Handshake, ok(positive_integer())"),
    _warning(
        "error_not_signalled",
        "After a violation that ends the session the worker sends neither ERROR nor a close, but goes on.",
        'Streaming: "should signal such and close"',
    ),
    _note(
        "not_closed_after_error",
        "The connection is still open 5 seconds after an ERROR, or as long as the source's options say.",
        'Protocol State Machine: "recommended"',
    ),
    _warning(
        "notify_open_stream",
        "A NOTIFY names a stream that is open and owes no NACK.",
        "Stream State Machine, open (no NOTIFY edge)",
    ),
    _warning(
        "notify_reference_unexpected",
        "The reference of a NOTIFY is neither 0 nor one that the worker gave for the stream.",
        'Streaming: "it should provide that reference", "Otherwise", "zero"',
    ),
    _warning(
        "stream_id_reused",
        "One stream id has two names, or one name two ids, in a session, by an OK and a NOTIFY, or in sessions of one "
        "program and instance.",
        'Handshake [C1]; Streaming: "should be unique"',
    ),
    _violation(
        "ack_unknown_stream",
        "An ACK names a stream that was never notified on this connection.",
        "Stream State Machine, intro (only NOTIFY)",
    ),
    _warning(
        "ack_never_sent",
        "An ACK names a message id that its stream never sent, nor can have sent in an earlier session.",
        'Acks and Nacks: "message ids", "completed"',
    ),
    _warning(
        "ack_goes_back",
        "An ACK names a message that was sent before one acked earlier in the session, with no NACK or RESTART "
        "between.",
        "Acks and Nacks: forward progress",
    ),
    _note(
        "message_never_acked",
        "The session ends in order, and messages after the last acked one of a stream were never acked.",
        'Acks and Nacks: "All messages ids must be sent back"',
    ),
    _note(
        "reference_unstable",
        "An OK, ACK or NACK points at a message flagged UNSTABLE_REFERENCE in the session or in the last one that sent "
        "messages of the stream, or EPHEMERAL in the session.",
        "Streaming, boundaries; Points of Reference; Ephemeral Messaging",
    ),
    _warning(
        "nack_unknown_stream",
        "A NACK names a stream that was never notified; it is stacked all the same.",
        'Stream State Machine: "NACKs may be handled when in invalid states"',
    ),
    _warning(
        "nack_not_answered",
        "At the end a stream has had fewer NOTIFYs than NACKs, and no ERROR ended the session.",
        'Stream State Machine: "Each NACK will require a NOTIFY"; Acks and Nacks [D5]',
    ),
    _violation(
        "boundary_with_payload",
        "A MESSAGE flagged BOUNDARY has bytes after its id.",
        'Streaming: boundaries "carry no message payload"; [D1]',
    ),
    _warning(
        "ephemeral_id_repeated",
        "The id of a message flagged EPHEMERAL is used twice on its stream in a session.",
        "Ephemeral Messaging",
    ),
    _note(
        "message_ignored",
        "The worker drops a frame by rule: its stream is reset, it follows RESTART or ERROR, or its id is not above "
        "the last one seen.",
        'Acks and Nacks: "to be ignored"; Protocol State Machine, Error: "discarded"',
    ),
    _violation(
        "notify_ack_unasked",
        "A NOTIFY_ACK answers no NOTIFY that waits.",
        "Not in the text: what the implemented worker does",
    ),
    _note("notify_refused", "A NOTIFY_ACK refuses a NOTIFY.", "Not in the text: what the implemented worker does"),
    _note(
        "notify_not_answered",
        "A NOTIFY has no NOTIFY_ACK by the end of its connection.",
        "Not in the text: what the implemented worker does",
    ),
    _warning(
        "credits_not_replenished",
        "The connector has had no credit for longer than the configured time, and no frame brought any.",
        'Overview; Acks and Nacks [D2]: "continuously replenished"',
    ),
    _warning(
        "reconnect_without_backoff",
        "One program and instance reconnects four times or more after failed or aborted sessions, with gaps that "
        "never grow.",
        'Protocol State Machine, Disconnected: "recommended", "backoff"',
    ),
)

RULES: tuple[Rule, ...] = FRAME_RULES + HABIT_RULES

#: The same rules by their short name.
RULE: dict[str, Rule] = by_name(RULES)

#: The worker must close after one of these; later frames are kept and ignored.
ENDS: Final = frozenset(
    {
        "empty_frame",
        "oversize_frame",
        "unknown_frame_type",
        "malformed_frame",
        "frame_before_hello",
        "duplicate_hello",
        "cookie_refused",
        "version_refused",
        "wrong_direction",
        "message_unknown_stream",
        "message_before_notify_ack",
        "message_closed_stream",
        "eos_unknown_stream",
        "flags_not_allowed",
    }
)
#: Rules after which the bytes of the same direction can't be cut into frames any more.
LOSES_FRAMING: Final = frozenset({"empty_frame", "oversize_frame"})
#: The rules that still judge frames after a rule of `ENDS`.
JUDGED_AFTER_END: Final = frozenset(
    {"frame_after_error", "message_ignored", "error_not_signalled", "not_closed_after_error"}
)
#: Rules that are found when a session has ended, by comparing it with those before it.
SET_RULES: Final = frozenset(
    {
        "ack_never_sent",
        "handshake_inconsistent",
        "reconnect_without_backoff",
        "reference_unstable",
        "stream_id_reused",
    }
)
#: Rules among these that one session can break as well.
ALSO_OF_A_SESSION: Final = frozenset({"reference_unstable", "stream_id_reused"})
