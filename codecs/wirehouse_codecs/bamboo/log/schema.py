"""The columns of the log `silver.bamboo`.

Kinds of row: `message` is a packet of the set-up, of bymux or of a channel. `entry` is an entry in a packet, rebuilt as
far as the connection allows. Its signature and its links are judged later, where all entries of its log meet.
`quarantine` are bytes that are no packet, `violation` is a broken rule. `proposal` and `session` are states at the end
of each window in which they changed. A proposal that has ended has its last row at once. In all rows, the client is the
proactive side.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa

from wirehouse_codecs.bamboo.log.conversation import Conversation
from wirehouse_codecs.bamboo.log.paired_connections import Pairs
from wirehouse_codecs.bamboo.options import TWO_CONNECTIONS, BambooOptions
from wirehouse_codecs.bamboo.session.proposals import COUNTS
from wirehouse_codecs.logs.rows import Dialogue, Gather, Log, Start, schema
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.tcp.reassembly import Connection

#: The type of unsigned 64-bit numbers.
UINT: Final = pa.decimal128(20, 0)
#: Fields that no other packet has are null. Sizes and windows are in bytes. Hashes are digests, or, where they aren't
#: correctly written, the 66 bytes that stand there.
MESSAGE_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("cursor_before", pa.string()),
        ("cursor_after", pa.string()),
        ("seq", UINT),
        ("follows_byte_start", pa.int64()),
        # Set-up.
        ("sends_greedily", pa.bool_()),
        ("receives_greedily", pa.bool_()),
        ("send_window", UINT),
        ("receive_window", UINT),
        # bymux.
        ("is_global", pa.bool_()),
        ("stream_id", UINT),
        ("amount", UINT),
        ("credit", UINT),
        ("about", pa.string()),
        # Proposals and adjusts.
        ("author", pa.binary()),
        ("log_id", UINT),
        ("start", UINT),
        ("lower_info", UINT),
        ("end", UINT),
        ("upper_info", UINT),
        ("offset", UINT),
        ("min_payload", UINT),
        ("max_payload", UINT),
        ("eagerness", pa.string()),
        ("size_limit", UINT),
        ("payload_only", pa.bool_()),
        ("sparse", pa.bool_()),
        ("mandatory", pa.bool_()),
        ("may_skip", pa.bool_()),
        ("expected_hash", pa.binary()),
        # Cancels.
        ("code", pa.int32()),
        ("reason", pa.string()),
        ("seqnum", UINT),
        ("entries", pa.list_(pa.binary())),
        # Data.
        ("count", UINT),
        ("size", UINT),
        ("compressed_size", UINT),
        ("at", UINT),
        ("data", pa.binary()),
        ("compressed", pa.binary()),
        ("end_of_log", pa.bool_()),
        ("backlink", pa.binary()),
        ("payload_size", UINT),
        ("payload_hash", pa.binary()),
        ("signature", pa.binary()),
        ("entry_hash", pa.binary()),
        (
            "payload",
            pa.struct([("data", pa.binary()), ("packets", pa.int64()), ("checked", pa.bool_()), ("rule", pa.string())]),
        ),
    ]
)
ENTRY_TYPE: Final = pa.struct(
    [
        # The kind of the packet that holds it: metadata or cancel.
        ("origin", pa.string()),
        ("author", pa.binary()),
        ("log_id", UINT),
        ("seq", UINT),
        ("end_of_log", pa.bool_()),
        ("lipmaalink", pa.binary()),
        ("backlink", pa.binary()),
        ("payload_size", UINT),
        ("payload_hash", pa.binary()),
        ("signature", pa.binary()),
        ("data", pa.binary()),
        ("entry_hash", pa.binary()),
        ("omitted", pa.list_(pa.string())),
        ("unknown_links", pa.list_(UINT)),
        ("assumed_links", pa.bool_()),
        # The entry's rule that it breaks by itself; the signature isn't looked at.
        ("rule", pa.string()),
        ("reason", pa.string()),
        # How its sender sends; null where that isn't known.
        ("greedy", pa.bool_()),
        # Address and port; or the name of a file, and then the payload where that is at hand.
        ("sender", pa.string()),
        ("payload", pa.binary()),
    ]
)
_COUNT_TYPE: Final = pa.struct([(name, UINT) for name in COUNTS])
_HALF_TYPE: Final = pa.struct(
    [
        ("state", pa.string()),
        ("cursor", pa.string()),
        ("eagerness", pa.string()),
        ("size_limit", UINT),
        ("min_payload", UINT),
        ("max_payload", UINT),
        ("mandatory", pa.bool_()),
        ("code", pa.int32()),
        ("reason", pa.string()),
        ("sent", _COUNT_TYPE),
    ]
)
PROPOSAL_TYPE: Final = pa.struct(
    [
        ("proposer", pa.string()),
        ("author", pa.binary()),
        ("log_id", UINT),
        ("start", UINT),
        ("lower_info", UINT),
        ("end", UINT),
        ("upper_info", UINT),
        ("offset", UINT),
        ("payload_only", pa.bool_()),
        ("sparse", pa.bool_()),
        ("expected_hash", pa.binary()),
        ("state", pa.string()),
        ("outcome", pa.string()),
        ("proposed_at_ns", pa.int64()),
        ("confirmed_at_ns", pa.int64()),
        ("ended_at_ns", pa.int64()),
        ("partial", pa.bool_()),
        ("client", _HALF_TYPE),
        ("server", _HALF_TYPE),
    ]
)
_SIDE_TYPE: Final = pa.struct(
    [
        ("sends_greedily", pa.bool_()),
        ("receives_greedily", pa.bool_()),
        ("send_window", UINT),
        ("receive_window", UINT),
        ("send_mode", pa.string()),
        ("receive_mode", pa.string()),
        ("compression_window", UINT),
        ("decompression_window", UINT),
        ("credit_granted", UINT),
        ("credit", UINT),
        ("proposals", pa.int64()),
    ]
)
SESSION_TYPE: Final = pa.struct(
    [
        ("proactive", pa.string()),
        ("transport", pa.string()),
        ("control_stream", UINT),
        ("data_stream", UINT),
        # Over two connections: that of the data channel; the row's own is that of the control channel.
        ("data_connection_id", pa.binary()),
        ("client", _SIDE_TYPE),
        ("server", _SIDE_TYPE),
        ("open_proposals", pa.int64()),
        ("partial", pa.bool_()),
        ("ended_by", pa.string()),
        ("closed", pa.string()),
    ]
)
#: Columns of the log, of which only the struct of the row's own kind is there. `proposal_number` counts the proposals
#: of a connection, for ids are used again.
SCHEMA: Final = schema(
    [
        ("channel", pa.string()),
        ("proposal_id", UINT),
        ("proposal_number", pa.int64()),
        ("message", MESSAGE_TYPE),
        ("entry", ENTRY_TYPE),
        ("proposal", PROPOSAL_TYPE),
        ("session", SESSION_TYPE),
    ]
)


def starter(options: BambooOptions) -> Start | Gather:
    """Dialogues of a source with these options."""

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return Conversation(log, connection, server, options, snapshot)

    return Gather(partial(Pairs, options)) if options.transport == TWO_CONNECTIONS else start
