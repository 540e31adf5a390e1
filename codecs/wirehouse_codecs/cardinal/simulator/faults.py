"""Faults: for every rule a stream that breaks it, and nothing else.

A fault always breaks its rule and, where possible, no other. A fault that would stop the chain for good (a block that
never completes) is put into a side block, so that the head moves on and the rule is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from wirehouse_codecs.cardinal.simulator.producer import Burst, Draft, Edit, Producer, Sent, large_reorg
from wirehouse_codecs.cardinal.wire import avro
from wirehouse_codecs.cardinal.wire.messages import (
    BATCH_DELETE_MSG,
    BATCH_MSG,
    HASH_BYTES,
    NO_SUBBATCH,
    SUBBATCH_HEADER,
    SUBBATCH_MSG,
    BatchMsg,
    Reorg,
    ReorgComplete,
    SubBatchMsg,
    encode,
    update_record,
)

Play = Callable[[Producer], Iterator[Burst]]
#: Longer than the life of any block.
EIGHT_DAYS_MS = 8 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to break one rule."""

    #: What is wrong with the stream, one sentence.
    sentence: str
    #: Sends the blocks with the fault; the chain continues after them.
    play: Play


def in_block(edit: Edit) -> Play:
    """The fault is in the messages of a block of the chain. The block still completes."""

    def play(producer: Producer) -> Iterator[Burst]:
        yield producer.send(producer.grow(), edit)

    return play


def in_side_block(edit: Edit) -> Play:
    """The fault is in a sibling of a block of the chain, sent after it."""

    def play(producer: Producer) -> Iterator[Burst]:
        sibling = producer.child(producer.head)
        yield producer.send(producer.grow())
        yield producer.send(sibling, edit)

    return play


def cut_key(draft: Draft) -> None:
    """A BatchMsg with only part of its block hash."""
    sent = draft.messages[0]
    draft.messages.append(sent._replace(key=sent.key[:20]))


def other_type(draft: Draft) -> None:
    """A message of type 07."""
    sent = draft.messages[0]
    draft.messages.append(sent._replace(key=b"\x07" + sent.key[1:]))


def cut_batch(draft: Draft) -> None:
    """A second copy of the Batch without its last bytes."""
    sent = draft.batch()
    draft.messages.append(sent._replace(value=sent.value[:-5]))


def negative_count(draft: Draft) -> None:
    """A second header that counts -1 items."""
    sent = draft.messages[draft.first(SUBBATCH_HEADER)]
    draft.messages.append(sent._replace(value=avro.varint(-1)))


def index_out_of_range(draft: Draft) -> None:
    """An item with the index that the header counts to, and one with index -1."""
    count, _ = avro.read_varint(draft.messages[draft.first(SUBBATCH_HEADER)].value, 0, avro.INT_BITS)
    for index in (count, -1):
        _add_item(draft, index, b"out of range")


def junk_after_value(draft: Draft) -> None:
    """Bytes after the last item's value."""
    sent = draft.messages[-1]
    draft.messages[-1] = sent._replace(value=sent.value + b"junk")


def two_fields(draft: Draft) -> None:
    """The counter of accounts also marks its name as deleted."""
    name = f"{draft.chain}/a/".encode()
    _, after_value = avro.read_varint(draft.entries[name], 0, avro.LONG_BITS)
    count, _ = avro.read_varint(draft.entries[name], after_value, avro.INT_BITS)
    draft.entries[name] = update_record(b"", count, True, NO_SUBBATCH)


def second_batch(draft: Draft) -> None:
    """A second Batch of the hash with another weight."""
    other = replace(draft, block=draft.block._replace(weight=draft.block.weight - 1))
    draft.messages.append(other.batch())


def missing_message(draft: Draft) -> None:
    """One account less than the Batch counts."""
    del draft.messages[draft.first(BATCH_MSG, "/a/")]


def surplus_message(draft: Draft) -> None:
    """One account more than the Batch counts."""
    _add_key(draft, f"{draft.chain}/a/{bytes(HASH_BYTES).hex()}/d")


def uncounted_key(draft: Draft) -> None:
    """Withdrawals, which the Batch does not count."""
    _add_key(draft, f"{draft.chain}/b/{draft.block.hash.hex()}/w", "block")


def second_value(draft: Draft) -> None:
    """A transaction again, with another value."""
    sent = draft.messages[draft.first(BATCH_MSG, "/t/")]
    draft.messages.append(sent._replace(value=sent.value + b"other"))


def set_and_deleted(draft: Draft) -> None:
    """An account that is set is deleted by the sub-batch as well."""
    account = draft.messages[draft.first(BATCH_MSG, "/a/")].key[1 + HASH_BYTES :]
    at = draft.first(SUBBATCH_MSG)
    draft.messages[at] = draft.messages[at]._replace(value=avro.blocks([avro.byte_string(account)]) + b"\0")


def delete_with_value(draft: Draft) -> None:
    """A delete that carries a value."""
    at = draft.first(BATCH_DELETE_MSG)
    draft.messages[at] = draft.messages[at]._replace(value=b"not empty")


def prefix_without_slash(draft: Draft) -> None:
    """A key, counted by its own prefix, that begins with the counted key of the block's header."""
    prefix = f"{draft.chain}/b/{draft.block.hash.hex()}/hx/"
    draft.entries[prefix.encode()] = update_record(b"", 1, False, NO_SUBBATCH)
    _add_key(draft, f"{prefix}0", "block")


def other_topic(draft: Draft) -> None:
    """A transaction on the topic of the logs."""
    at = draft.first(BATCH_MSG, "/t/")
    draft.messages[at] = draft.messages[at]._replace(topic=draft.topics["logs"])


def no_header(draft: Draft) -> None:
    """The sub-batch's items without their header."""
    del draft.messages[draft.first(SUBBATCH_HEADER)]


def unknown_subbatch(draft: Draft) -> None:
    """A header of a sub-batch that the Batch does not name."""
    sent = draft.messages[draft.first(SUBBATCH_HEADER)]
    draft.messages.append(sent._replace(key=sent.key[: 1 + HASH_BYTES] + b"\xee" * HASH_BYTES))


def missing_item(draft: Draft) -> None:
    """One item less than the header counts."""
    del draft.messages[draft.first(SUBBATCH_MSG) + 1]


def second_item(draft: Draft) -> None:
    """The first item's index again, with other updates."""
    _add_item(draft, 0, b"other")


def _add_key(draft: Draft, key: str, topic: str = "state") -> None:
    message = BatchMsg(draft.block.hash, key.encode(), b"surplus")
    draft.messages.append(Sent(draft.topics[topic], *encode(message)))


def _add_item(draft: Draft, index: int, value: bytes) -> None:
    name = f"{draft.chain}/a/{bytes(HASH_BYTES).hex()}/s/{bytes(HASH_BYTES).hex()}".encode()
    message = SubBatchMsg(draft.block.hash, draft.batch_id, index, (), ((name, value),))
    draft.messages.append(Sent(draft.topics["state"], *encode(message)))


def no_batch(producer: Producer) -> Iterator[Burst]:
    """Every message of a side block but its Batch, and eight days later the chain goes on."""

    def edit(draft: Draft) -> None:
        draft.without_batch = True

    yield from in_side_block(edit)(producer)
    yield producer.send(producer.grow())._replace(in_order=True, wait_ms=EIGHT_DAYS_MS)


def unknown_parent(producer: Producer) -> Iterator[Burst]:
    """A side block on a parent that nobody sends."""
    orphan = producer.child(producer.head)._replace(parent=b"\xee" * HASH_BYTES)
    yield producer.send(producer.grow())
    yield producer.send(orphan)


def child_first(producer: Producer) -> Iterator[Burst]:
    """Two blocks in the wrong order."""
    parent, child = producer.grow(), producer.grow()
    yield producer.send(child)
    yield producer.send(parent)


def repeated_number(producer: Producer) -> Iterator[Burst]:
    """A side block with its parent's number, and lighter than the head."""
    parent = producer.grow()
    yield producer.send(parent)
    yield producer.send(producer.grow())
    yield producer.send(producer.child(parent)._replace(number=parent.number, weight=parent.weight))


def unannounced_reorg(producer: Producer) -> Iterator[Burst]:
    """A heavier side chain from below the threshold on the ordinary topics; the chain goes on as before."""
    depth = producer.config.reorg_depth
    side = producer.branch(producer.chain[-1 - depth], depth + 1)
    for block in side:  # in order: late messages would be missed so far below the head
        yield producer.send(block)._replace(in_order=True)


def unasked_complete(producer: Producer) -> Iterator[Burst]:
    """A ReorgComplete of a canonical block, without any Reorg."""
    block = producer.chain[-2]
    yield producer.announce(producer.config.topic, ReorgComplete(block.hash, block.number))


def wrong_ancestor(producer: Producer) -> Iterator[Burst]:
    """A Reorg that names a hash nobody has sent."""
    yield producer.announce(producer.config.topic, Reorg(b"\xee" * HASH_BYTES, producer.head.number))


def shared_channel(producer: Producer) -> Iterator[Burst]:
    """A large reorg on the ordinary topics."""
    return large_reorg(producer, channel=False)


def short_reorg(producer: Producer) -> Iterator[Burst]:
    """A large reorg that ends a block early, as heavy as what it removes."""
    return large_reorg(producer, blocks_short=1)


def unfinished_reorg(producer: Producer) -> Iterator[Burst]:
    """A large reorg without ReorgComplete."""
    return large_reorg(producer, completed=False)


def _fault(edit: Edit, place: Callable[[Edit], Play] = in_block) -> Fault:
    return Fault(edit.__doc__ or "", place(edit))


def _played(play: Play) -> Fault:
    return Fault(play.__doc__ or "", play)


#: A fault for each rule, by the rule's name.
FAULTS: Mapping[str, Fault] = {
    "key_length_wrong": _fault(cut_key),
    "unknown_type": _fault(other_type),
    "value_undecodable": _fault(cut_batch),
    "value_out_of_range": _fault(negative_count),
    "item_index_out_of_range": _fault(index_out_of_range),
    "trailing_bytes": _fault(junk_after_value),
    "update_ambiguous": _fault(two_fields),
    "no_batch_message": _played(no_batch),
    "batch_conflict": _fault(second_batch),
    "parent_never_sent": _played(unknown_parent),
    "parent_after_child": _played(child_first),
    "number_repeated_in_chain": _played(repeated_number),
    "prefix_count_open": _fault(missing_message, in_side_block),
    "extra_message": _fault(surplus_message),
    "unexpected_key": _fault(uncounted_key),
    "key_two_values": _fault(second_value),
    "key_by_two_ways": _fault(set_and_deleted),
    "delete_with_value": _fault(delete_with_value),
    "prefix_not_at_boundary": _fault(prefix_without_slash),
    "topic_wrong": _fault(other_topic),
    "subbatch_header_missing": _fault(no_header, in_side_block),
    "subbatch_unknown": _fault(unknown_subbatch),
    "subbatch_items_missing": _fault(missing_item, in_side_block),
    "subbatch_conflict": _fault(second_item),
    "reorg_unannounced": _played(unannounced_reorg),
    "reorg_ancestor_wrong": _played(wrong_ancestor),
    "reorg_channel_shared": _played(shared_channel),
    "reorg_chain_broken": _played(short_reorg),
    "reorg_not_completed": _played(unfinished_reorg),
    "reorg_complete_unasked": _played(unasked_complete),
}
