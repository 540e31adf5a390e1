"""The columns of the log `silver.wallaroo`.

Kinds of rows: `message` for each frame, `quarantine` for bytes that are none, `violation` for each broken rule,
`credit` for each grant of credits. `session` and `stream` rows have the state at the end of each window in which it
changed.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from wirehouse_codecs.logs.rows import schema

SESSION, STREAM, CREDIT = "session", "stream", "credit"

#: Ids of streams and messages, and references, which have 64 bits without a sign.
ID_TYPE: Final = pa.decimal128(20, 0)
REFERENCE_TYPE: Final = pa.struct([("stream_id", ID_TYPE), ("stream_name", pa.string()), ("point_of_ref", ID_TYPE)])
MESSAGE_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("message_id", ID_TYPE),
        ("flags", pa.int32()),
        ("event_time", ID_TYPE),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("credits", pa.int64()),
        ("point_of_ref", ID_TYPE),
        ("streams", pa.list_(REFERENCE_TYPE)),
        ("success", pa.bool_()),
        ("stream_name", pa.string()),
        ("version", pa.string()),
        ("cookie_hash", pa.binary()),
        ("program_name", pa.string()),
        ("instance_name", pa.string()),
        ("text", pa.string()),
        ("address", pa.string()),
        ("sources", pa.list_(pa.struct([("name", pa.string()), ("address", pa.string())]))),
        ("ignored", pa.string()),
    ]
)
_SENT_TYPE: Final = pa.struct([("stream_id", ID_TYPE), ("message_id", ID_TYPE)])
_POINTED_TYPE: Final = pa.struct(
    [
        *_SENT_TYPE,
        ("byte_start", pa.int64()),
        ("byte_end", pa.int64()),
        ("arrived_at_ns", pa.int64()),
        ("capture_arrived_at_ns", pa.int64()),
        ("capture_id", pa.binary()),
        ("record_number", pa.int64()),
    ]
)
SESSION_TYPE: Final = pa.struct(
    [
        ("worker", pa.string()),
        ("state", pa.string()),
        ("version", pa.string()),
        ("program_name", pa.string()),
        ("instance_name", pa.string()),
        ("cookie_empty", pa.bool_()),
        ("cookie_hash", pa.binary()),
        ("initial_credits", pa.int64()),
        ("credits", pa.int64()),
        ("zero_at_ns", pa.int64()),
        ("granted", pa.int64()),
        ("spent", pa.int64()),
        ("eos_messages", pa.int64()),
        ("accepted", pa.bool_()),
        ("partial", pa.bool_()),
        ("ended", pa.string()),
        ("ended_by", pa.string()),
        ("error_by", pa.string()),
        ("failed", pa.bool_()),
        ("started_at_ns", pa.int64()),
        ("ended_at_ns", pa.int64()),
        ("names", pa.list_(pa.struct([("stream_id", ID_TYPE), ("digest", pa.binary())]))),
        ("lacks_sent", pa.bool_()),
        ("sent", pa.list_(_SENT_TYPE)),
        ("unsent_acks", pa.list_(_POINTED_TYPE)),
        ("referred", pa.list_(_POINTED_TYPE)),
        ("unstable", pa.list_(_SENT_TYPE)),
    ]
)
STREAM_TYPE: Final = pa.struct(
    [
        ("stream_name", pa.string()),
        ("state", pa.string()),
        ("nack_depth", pa.int64()),
        ("notifies_waiting", pa.int64()),
        ("messages", pa.int64()),
        ("unacked", pa.int64()),
        ("oldest_unacked_id", ID_TYPE),
        ("unacked_since_ns", pa.int64()),
        ("refused_since_ns", pa.int64()),
        ("refusals", pa.int64()),
        ("was_in_use", pa.bool_()),
        ("first_id", ID_TYPE),
        ("last_sent", ID_TYPE),
        ("highest_sent", ID_TYPE),
        ("last_acked", ID_TYPE),
        ("resume_point", ID_TYPE),
        ("accepted_point", ID_TYPE),
        ("accepted_at_ns", pa.int64()),
        ("accepted_echoes", pa.bool_()),
        ("program_name", pa.string()),
        ("instance_name", pa.string()),
    ]
)
CREDIT_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("granted", pa.int64()),
        ("balance", pa.int64()),
        ("spent", pa.int64()),
        ("overdrawn", pa.int64()),
        ("zero_at_ns", pa.int64()),
    ]
)
#: Columns of the log, of which only the struct of the row's own kind is there.
SCHEMA: Final = schema(
    [
        ("stream_id", ID_TYPE),
        ("message", MESSAGE_TYPE),
        ("session", SESSION_TYPE),
        ("stream", STREAM_TYPE),
        ("credit", CREDIT_TYPE),
    ]
)
