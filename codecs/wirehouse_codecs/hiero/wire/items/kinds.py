"""The kinds of block item: their field numbers in BlockItem, their names, and the subtree of the block's root hash to
which each belongs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final

from wirehouse_codecs.hiero.wire import protobuf


class ItemNumber(IntEnum):
    """Field numbers of the kinds of BlockItem that are named or decoded."""

    UNSET = 0
    BLOCK_HEADER = 1
    EVENT_HEADER = 2
    ROUND_HEADER = 3
    #: event_transaction, and from HAPI 0.69 on signed_transaction.
    TRANSACTION = 4
    TRANSACTION_RESULT = 5
    TRANSACTION_OUTPUT = 6
    STATE_CHANGES = 7
    FILTERED_ITEM = 8
    BLOCK_PROOF = 9
    RECORD_FILE = 10
    TRACE_DATA = 11
    BLOCK_FOOTER = 12
    REDACTED_ITEM = 19
    #: block_footer before it got the number 12.
    STORED_FOOTER = 21


_NAMES: Mapping[int, str] = MappingProxyType(
    {
        ItemNumber.UNSET: "unset",
        ItemNumber.BLOCK_HEADER: "block_header",
        ItemNumber.EVENT_HEADER: "event_header",
        ItemNumber.ROUND_HEADER: "round_header",
        ItemNumber.TRANSACTION: "signed_transaction",
        ItemNumber.TRANSACTION_RESULT: "transaction_result",
        ItemNumber.TRANSACTION_OUTPUT: "transaction_output",
        ItemNumber.STATE_CHANGES: "state_changes",
        ItemNumber.FILTERED_ITEM: "filtered_single_item",
        ItemNumber.BLOCK_PROOF: "block_proof",
        ItemNumber.RECORD_FILE: "record_file",
        ItemNumber.TRACE_DATA: "trace_data",
        ItemNumber.BLOCK_FOOTER: "block_footer",
        ItemNumber.REDACTED_ITEM: "redacted_item",
    }
)
_OLD_NAMES: Mapping[int, str] = MappingProxyType(
    {ItemNumber.TRANSACTION: "event_transaction", ItemNumber.FILTERED_ITEM: "filtered_item_hash"}
)
#: Transactions of the newer form since this HAPI version.
SIGNED_TRANSACTIONS_SINCE: Final = (0, 69, 0)


def item_name(number: int, *, old: bool = False) -> str:
    """What the items of a number are called; `old`: before HAPI 0.69. Numbers without a name are `item_N`."""
    if number < 0:
        return "other"
    return (old and _OLD_NAMES.get(number)) or _NAMES.get(number) or f"item_{number}"


class ItemClass(StrEnum):
    """What an item is to a block's hash: the leaf it falls under."""

    HEADER = "header"
    CONSENSUS = "consensus"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    TRACE = "trace"
    #: Trees of leaves 8 to 15, for what later versions add.
    EXTENSION = "extension"
    #: Footer, proof, and classes 0 and 19.
    NOT_HASHED = "not hashed"
    #: Stands for items that were left out.
    FILTERED = "filtered"
    #: Reserved numbers and classes 1, 2, 16 to 18.
    REFUSED = "refused"


_CLASS_OF_NUMBER: Mapping[int, ItemClass] = MappingProxyType(
    {
        ItemNumber.BLOCK_HEADER: ItemClass.OUTPUT,
        ItemNumber.EVENT_HEADER: ItemClass.CONSENSUS,
        ItemNumber.ROUND_HEADER: ItemClass.CONSENSUS,
        ItemNumber.TRANSACTION: ItemClass.INPUT,
        ItemNumber.TRANSACTION_RESULT: ItemClass.OUTPUT,
        ItemNumber.TRANSACTION_OUTPUT: ItemClass.OUTPUT,
        ItemNumber.STATE_CHANGES: ItemClass.STATE,
        ItemNumber.FILTERED_ITEM: ItemClass.FILTERED,
        ItemNumber.BLOCK_PROOF: ItemClass.NOT_HASHED,
        ItemNumber.RECORD_FILE: ItemClass.OUTPUT,
        ItemNumber.TRACE_DATA: ItemClass.TRACE,
        ItemNumber.BLOCK_FOOTER: ItemClass.NOT_HASHED,
        ItemNumber.REDACTED_ITEM: ItemClass.FILTERED,
    }
)
#: Numbers from here on are classed by their remainder.
CLASSES: Final = 20
_CLASS_OF_REMAINDER: Mapping[int, ItemClass] = MappingProxyType(
    {
        0: ItemClass.NOT_HASHED,
        3: ItemClass.CONSENSUS,
        4: ItemClass.INPUT,
        5: ItemClass.OUTPUT,
        6: ItemClass.STATE,
        7: ItemClass.TRACE,
        **dict.fromkeys(range(8, 16), ItemClass.EXTENSION),
        19: ItemClass.NOT_HASHED,
    }
)


def item_class(number: int) -> ItemClass:
    """The class of the items of a number."""
    if number < CLASSES:
        return _CLASS_OF_NUMBER.get(number, ItemClass.REFUSED)
    return _CLASS_OF_REMAINDER.get(number % CLASSES, ItemClass.REFUSED)


def encode_item(number: int, value: bytes) -> bytes:
    """A BlockItem of one field, as an entry of a run."""
    return protobuf.delimited(1, protobuf.delimited(number, value))
