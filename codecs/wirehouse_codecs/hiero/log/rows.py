"""The columns of the log `silver.hiero`, and the functions that turn a message or a block into their values.

SCHEMA has the columns: those of every log (`logs.rows`), and the structs `call_event`, `message` and `block`.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs.hiero.profiles import Profile
from wirehouse_codecs.hiero.wire.blocks import Block
from wirehouse_codecs.hiero.wire.hashes import settle, signature_check
from wirehouse_codecs.hiero.wire.messages import Message, code_name
from wirehouse_codecs.logs.rows import schema

CALL, BLOCK, SKIP = "call", "block", "skip"
#: The bytes of a connection that are in no message: frame headers of HTTP/2, header blocks, padding.
FRAMING: Final = "framing"
BLOCK_FILE: Final = "block_file"
OPENED, MISSED, CLOSED = "opened", "missed", "closed"
#: Characters of a text that are kept, and entries of a call's metadata.
MOST_CHARACTERS: Final = 1024

UINT: Final = pa.decimal128(20, 0)
COUNTS_TYPE: Final = pa.map_(pa.string(), pa.int64())
MESSAGE_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("profile", pa.string()),
        ("part", pa.int32()),
        ("last", pa.bool_()),
        ("header", UINT),
        ("proof", UINT),
        ("proof_kind", pa.string()),
        ("item_counts", COUNTS_TYPE),
        ("items", pa.int64()),
        ("item_bytes", pa.int64()),
        ("code", pa.int32()),
        ("meaning", pa.string()),
        ("earliest_block_number", UINT),
        ("latest_block_number", UINT),
        ("proximate_block_number", UINT),
        ("start_block_number", UINT),
        ("end_block_number", UINT),
        ("allow_unverified", pa.bool_()),
        ("first_available_block", UINT),
        ("last_available_block", UINT),
        ("only_latest_state", pa.bool_()),
        ("next_expected_block", UINT),
        ("version", pa.binary()),
        ("block_already_exists", pa.bool_()),
        ("block_root_hash", pa.binary()),
        ("items_hash", pa.binary()),
        ("previous_hash", pa.binary()),
        ("block_root", pa.binary()),
        ("root_layout", pa.string()),
        ("message_bytes", pa.int64()),
        ("inflated_bytes", pa.int64()),
        ("encoding", pa.string()),
        ("peer_received", pa.int64()),
        ("late", pa.bool_()),
        ("unknown_fields", pa.int64()),
        ("ignored", pa.string()),
    ]
)
COUNTED: Final = ("messages", "message_bytes", "headers", "proofs", "acknowledgements")
CALL_TYPE: Final = pa.struct(
    [
        ("event", pa.string()),
        ("profile", pa.string()),
        ("path_inferred", pa.bool_()),
        ("correlation_id", pa.string()),
        ("metadata", pa.map_(pa.string(), pa.string())),
        ("partial", pa.bool_()),
        ("opened_at_ns", pa.int64()),
        ("how", pa.string()),
        ("state", pa.string()),
        ("status", pa.int64()),
        ("status_message", pa.string()),
        ("reset_by", pa.string()),
        ("reset_code", pa.int64()),
        ("late", pa.bool_()),
        *((name, pa.int64()) for name in COUNTED),
    ]
)
BLOCK_TYPE: Final = pa.struct(
    [
        ("ended_by", pa.string()),
        ("header", pa.bool_()),
        ("footer", pa.bool_()),
        ("proven", pa.bool_()),
        ("first_at_ns", pa.int64()),
        ("messages", pa.int64()),
        ("hapi_version", pa.string()),
        ("software_version", pa.string()),
        ("timestamp_seconds", pa.int64()),
        ("timestamp_nanos", pa.int32()),
        ("hash_algorithm", pa.int32()),
        ("item_counts", COUNTS_TYPE),
        ("items", pa.int64()),
        ("item_bytes", pa.int64()),
        ("unknown_fields", pa.int64()),
        ("previous_hash", pa.binary()),
        ("all_blocks_root", pa.binary()),
        ("start_state_root", pa.binary()),
        ("proof_kind", pa.string()),
        ("proof_block", UINT),
        ("signature_bytes", pa.int64()),
        ("signature_verified", pa.bool_()),
        ("signature_reason", pa.string()),
        ("roots", pa.list_(pa.struct([("layout", pa.string()), ("root", pa.binary())]))),
        ("roots_complete", pa.bool_()),
        ("root_layout", pa.string()),
        ("block_root", pa.binary()),
        ("root_reason", pa.string()),
        ("file_name", pa.string()),
        ("named_number", UINT),
        ("block_bytes", pa.int64()),
        ("damage", pa.string()),
    ]
)
SKIP_TYPE: Final = pa.struct([("name", pa.string()), ("bytes", pa.int64())])
#: Columns of the log, of which only the struct of the row's own kind is there.
SCHEMA: Final = schema(
    [
        ("call", pa.string()),
        ("service", pa.string()),
        ("path", pa.string()),
        ("node", pa.string()),
        ("client", pa.string()),
        ("publisher", pa.string()),
        ("block_number", UINT),
        ("message", MESSAGE_TYPE),
        ("call_event", CALL_TYPE),
        ("block", BLOCK_TYPE),
        ("skip", SKIP_TYPE),
    ]
)
_FIELDS: Final = frozenset(field.name for field in MESSAGE_TYPE)


def message_content(message: Message, profile: Profile) -> dict[str, Any]:
    """The fields that `message` has, by the columns' names."""
    fields = {name: getattr(message, name) for name in type(message).__dataclass_fields__ if name in _FIELDS}
    if "code" in fields:
        fields["meaning"] = code_name(message, profile)
    return fields


def block_content(block: Block) -> dict[str, Any]:
    """The values of a block's fields, by the names of BLOCK_TYPE."""
    header, footer, proof = block.header, block.footer, block.proof
    root = settle(block.roots)
    checked = signature_check(proof, root.root)
    fields: dict[str, Any] = {
        "header": header is not None,
        "footer": footer is not None,
        "proven": proof is not None,
        "item_counts": list(block.item_counts.items()),
        "items": block.items_total,
        "item_bytes": block.item_bytes,
        "unknown_fields": block.unknown_fields or None,
        "previous_hash": block.previous_hash,
        "proof_kind": None if proof is None or proof.kind is None else proof.kind.value,
        "proof_block": None if proof is None else proof.block,
        "signature_bytes": None if proof is None else len(proof.block_signature),
        "signature_verified": checked.verified,
        "signature_reason": checked.reason,
        "roots": [{"layout": layout.value, "root": value} for layout, value in block.roots.by_layout.items()],
        "roots_complete": block.roots.complete,
        "root_layout": None if root.layout is None else root.layout.value,
        "block_root": root.root,
        "root_reason": root.unverified or block.roots.reason or None,
    }
    if header is not None:
        versions = (header.hapi_proto_version, header.software_version)
        hapi, software = (None if version is None else str(version)[:MOST_CHARACTERS] for version in versions)
        fields |= {"hapi_version": hapi, "software_version": software, "hash_algorithm": header.hash_algorithm}
        if header.timestamp is not None:
            fields |= {"timestamp_seconds": header.timestamp.seconds, "timestamp_nanos": header.timestamp.nanos}
    if footer is not None:
        fields["all_blocks_root"] = footer.root_hash_of_all_block_hashes_tree
        fields["start_state_root"] = footer.start_of_block_state_root_hash
    elif proof is not None:
        fields["start_state_root"] = proof.start_of_block_state_root_hash
    return fields
