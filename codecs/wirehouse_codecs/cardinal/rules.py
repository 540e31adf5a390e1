"""The rules of Cardinal Streams, in the order in which a message is judged (specification, "Messages").

Of the rules of decoding, a message breaks at most one: the first in this order. It may also break rules about blocks,
sub-batches and reorgs. A quarantined message takes no part in assembly.
"""

from __future__ import annotations

from wirehouse_codecs.core.rules import Rule, Severity, by_name

PROTOCOL = "cardinal"


def _rule(name: str, severity: Severity, sentence: str, place: str, *, quarantines: bool = False) -> Rule:
    return Rule(PROTOCOL, name, severity, sentence, place, quarantines)


RULES: tuple[Rule, ...] = (
    _rule(
        "key_length_wrong",
        Severity.VIOLATION,
        "The length of the key is wrong for its type: 33 bytes for a Batch, Reorg or ReorgComplete, "
        "65 for a SubBatchHeader, 65 and one varint for a SubBatchMsg, at least 33 for a BatchMsg or BatchDeleteMsg.",
        "Messages, the seven Key lines",
        quarantines=True,
    ),
    _rule(
        "unknown_type",
        Severity.VIOLATION,
        "The key begins with a byte that names no message type.",
        "Messages, the Prefix Byte lines",
        quarantines=True,
    ),
    _rule(
        "value_undecodable",
        Severity.VIOLATION,
        "The value is not the Avro encoding of its type: cut, empty, garbage, or with a varint wider than its field.",
        "Messages; Batch; SubBatchHeader; SubBatchMsg",
        quarantines=True,
    ),
    _rule(
        "value_out_of_range",
        Severity.VIOLATION,
        "A count is negative, or a weight needs more than 256 bits.",
        "Message Payloads, Weight; Batch; SubBatchHeader",
        quarantines=True,
    ),
    _rule(
        "item_index_out_of_range",
        Severity.VIOLATION,
        "The index of a sub-batch item is negative, or not below the item count of its header.",
        "SubBatchMsg, Producers",
        quarantines=True,
    ),
    _rule(
        "trailing_bytes",
        Severity.WARNING,
        "Bytes follow the complete Avro value.",
        "Messages, Avro encoding",
    ),
    _rule(
        "update_ambiguous",
        Severity.VIOLATION,
        "An entry of a Batch's updates sets more than one of value, count, delete and subbatch.",
        "Batch, Producers",
    ),
    _rule(
        "no_batch_message",
        Severity.VIOLATION,
        "Messages of a block arrived, but never a Batch for its hash that can be decoded.",
        "Message Payloads; Batch, Producers",
    ),
    _rule(
        "batch_conflict",
        Severity.VIOLATION,
        "A later Batch of the same hash has another number, weight, parent or set of entries than the first.",
        "Message Payloads, BlockHash",
    ),
    _rule(
        "parent_never_sent",
        Severity.WARNING,
        "A block's parent is never sent, although the block is neither the first of the feed nor at the start; or a "
        "feed whose chain is heavier never mentions the start.",
        "Message Payloads, Parent",
    ),
    _rule(
        "parent_after_child",
        Severity.NOTE,
        "A parent's first Batch arrives after its child's.",
        "Message Payloads, Parent",
    ),
    _rule(
        "number_repeated_in_chain",
        Severity.VIOLATION,
        "A block's number is not above its parent's, or is the number of one of its ancestors.",
        "Message Payloads, Number",
    ),
    _rule(
        "prefix_count_open",
        Severity.VIOLATION,
        "Fewer distinct keys arrived under a tracked prefix than the Batch counts.",
        "BatchMsg and BatchDeleteMsg, Producers",
    ),
    _rule(
        "extra_message",
        Severity.VIOLATION,
        "More distinct keys arrived under a prefix than the Batch counts.",
        "BatchMsg, Producers",
    ),
    _rule(
        "unexpected_key",
        Severity.VIOLATION,
        "The key of a BatchMsg or BatchDeleteMsg belongs to no counted prefix of its Batch.",
        "BatchMsg, Producers",
    ),
    _rule(
        "key_two_values",
        Severity.VIOLATION,
        "Two BatchMsg give one key of a block different values.",
        "BatchMsg, Consumers",
    ),
    _rule(
        "key_by_two_ways",
        Severity.WARNING,
        "A key of a block is both set and deleted, or is set by two of BatchMsg, sub-batch item and inline value.",
        "BatchMsg, BatchDeleteMsg and SubBatchMsg, Consumers",
    ),
    _rule(
        "delete_with_value",
        Severity.WARNING,
        "A BatchDeleteMsg carries a value.",
        "BatchDeleteMsg, Value",
    ),
    _rule(
        "prefix_not_at_boundary",
        Severity.WARNING,
        "A counted prefix without a slash at its end begins a longer key of the block, which no implementation counts.",
        "Batch, Producers; BatchMsg, Producers",
    ),
    _rule(
        "topic_wrong",
        Severity.WARNING,
        "A message is on another topic than the one declared for its prefix, or its prefix is not declared.",
        "Application Layer Requirements",
    ),
    _rule(
        "subbatch_header_missing",
        Severity.VIOLATION,
        "The Batch names a sub-batch whose header never arrives.",
        "SubBatchHeader, Producers",
    ),
    _rule(
        "subbatch_unknown",
        Severity.VIOLATION,
        "A header or an item belongs to a sub-batch that the Batch does not name.",
        "SubBatchHeader, BatchId",
    ),
    _rule(
        "subbatch_items_missing",
        Severity.VIOLATION,
        "The header of a sub-batch arrived, but not every item it counts.",
        "SubBatchMsg, Producers",
    ),
    _rule(
        "subbatch_conflict",
        Severity.VIOLATION,
        "A later header of a sub-batch has another count than the first, or a later item of an index has other "
        "content.",
        "SubBatchHeader and SubBatchMsg, Consumers",
    ),
    _rule(
        "reorg_unannounced",
        Severity.VIOLATION,
        "A heavier side chain forks off deeper than the reorg threshold, and no Reorg names the common ancestor.",
        "Reorg Handling",
    ),
    _rule(
        "reorg_ancestor_wrong",
        Severity.VIOLATION,
        "A Reorg or ReorgComplete names a hash that was never canonical, a number that isn't that block's, "
        "or the two differ.",
        "Reorg; ReorgComplete",
    ),
    _rule(
        "reorg_channel_shared",
        Severity.VIOLATION,
        "The blocks of a reorg arrive on a topic of ordinary traffic, or its channel has more than one partition.",
        "Reorg, Producers",
    ),
    _rule(
        "reorg_chain_broken",
        Severity.VIOLATION,
        "The blocks on a reorg channel do not lead from the ancestor, complete and linked, to a head heavier than the "
        "one removed.",
        "Reorg, Producers",
    ),
    _rule(
        "reorg_not_completed",
        Severity.WARNING,
        "A reorg channel has no ReorgComplete, or messages after it.",
        "Reorg, Producers and Consumers",
    ),
    _rule(
        "reorg_complete_unasked",
        Severity.VIOLATION,
        "A ReorgComplete arrives on a topic without an open Reorg.",
        "ReorgComplete",
    ),
)

#: The same rules by their short name.
RULE: dict[str, Rule] = by_name(RULES)
