"""Every rule at its edge: traffic that keeps it by the least, and the same that breaks it by one, written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.cardinal_by_hand import (
    TOPIC,
    Entry,
    Sent,
    batch,
    channel,
    delete_key,
    header,
    item,
    number,
    reorg,
    reorg_complete,
    set_key,
    text,
)
from wirehouse_codecs.cardinal.correlation.consumer import consume
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_codecs.core.rules import Place

THRESHOLD = 4
DAY = 24 * 3600 * 10**9
ID, OTHER_ID = b"\1" * 32, b"\1" * 31 + b"\2"


def h(at: int, side: int = 0) -> bytes:
    """The hash of the chain's block, or of one beside it."""
    return bytes([side]) * 24 + at.to_bytes(8, "big")


def main(first: int, last: int) -> list[Sent]:
    """Blocks of the chain that set nothing."""
    return [batch(h(at), at, h(at - 1)) for at in range(first, last + 1)]


def beside(first: int, last: int, fork: int, side: int = 1, heavier: int = 0) -> list[Sent]:
    """A branch above block `fork` of the chain."""
    parents = [h(fork), *(h(at, side) for at in range(first, last))]
    return [
        batch(h(at, side), at, parent, weight=at + heavier)
        for at, parent in zip(range(first, last + 1), parents, strict=True)
    ]


@dataclass(frozen=True)
class Case:
    """Traffic that keeps a rule by the least, and that breaks it by one."""

    rule: str
    good: list[Sent]
    bad: list[Sent]
    options: dict[str, Any] = field(default_factory=dict)


def block(*messages: Sent, entries: dict[bytes, Entry] | None = None, head: int = 7) -> list[Sent]:
    """Block 2 beside the chain with `entries` and `messages`, then the chain up to `head`."""
    return [*main(1, 1), batch(h(2, 1), 2, h(1), entries or {}), *messages, *main(2, head)]


def made(*, key: bytes = b"", value: bytes = b"") -> Sent:
    return Sent(key, value)


def on(topic: str, messages: Iterable[Sent], partition: int = 0) -> list[Sent]:
    return [message._replace(topic=topic, partition=partition) for message in messages]


def after(message: Sent, at_ns: int) -> Sent:
    return message._replace(at_ns=at_ns)


def long_key(message: Sent) -> Case:
    """A byte too many in the key of a message that comes once more."""
    return Case("key_length_wrong", [*main(1, 3), message], [*main(1, 3), message._replace(key=message.key + b"\0")])


def cut(message: Sent) -> Case:
    """The value of a message that comes once more, without its last byte."""
    return Case("value_undecodable", [*main(1, 3), message], [*main(1, 3), message._replace(value=message.value[:-1])])


def key_lengths() -> Iterator[Case]:
    yield long_key(main(2, 2)[0])
    yield Case("key_length_wrong", main(1, 3), [*main(1, 3), made(key=main(2, 2)[0].key[:-1], value=b"\0")])
    named = {b"s": Entry(subbatch=ID)}
    whole = header(h(2, 1), ID, 1)
    first = item(h(2, 1), ID, 0, {b"k": b"v"})
    for message, key in (
        (whole, whole.key + b"\0"),
        (whole, whole.key[:-1]),
        (first, first.key[:-1]),
        (first, first.key + b"\0"),
    ):
        good = block(whole, first, message, entries=named)
        yield Case("key_length_wrong", good, [*good, message._replace(key=key)])
    for shortest in (set_key(h(2, 1), b""), delete_key(h(2, 1), b"")):
        # An empty application key is long enough, but belongs to no prefix.
        good = block(shortest._replace(key=shortest.key + b"k"), entries={b"k": Entry(count=1)})
        yield Case("key_length_wrong", good, [*good, shortest._replace(key=shortest.key[:-1])])
    moved = large()
    for at in (6, -1):
        yield Case("key_length_wrong", moved, [*moved, moved[at]._replace(key=moved[at].key + b"\0")])


def large(*, last: int = 8, heavier: int = 0, end: bool = True) -> list[Sent]:
    """Six blocks of the chain, of which a Reorg removes five, and the channel's up to `last`."""
    topic = channel(h(1))
    end_of_it = [reorg_complete(h(1), 1, topic)] if end else []
    return [
        *main(1, 6),
        reorg(h(1), 1, topic),
        *on(topic, beside(2, last, 1, heavier=heavier)),
        *end_of_it,
    ]


def of_the_reorgs() -> Iterator[Case]:
    """Rules 25 to 30."""
    # Depth: four blocks are removed, or five.
    yield Case("reorg_unannounced", [*main(1, 6), *beside(3, 7, 2)], [*main(1, 6), *beside(2, 7, 1)])
    topic = channel(h(1))
    good = large()
    yield Case("reorg_ancestor_wrong", good, [*good[:6], reorg(h(1), 2, topic), *good[7:]])
    yield Case("reorg_ancestor_wrong", good, [*good[:-1], reorg_complete(h(1), 2, topic)])
    far = [*good[:6], reorg(h(1), 1 + 2**32, topic), *good[7:]]
    yield Case("reorg_ancestor_wrong", far, [*good[:6], reorg(h(1), 1 + 2**31, topic), *good[7:]])
    yield Case("reorg_ancestor_wrong", good, [*main(1, 6), reorg(h(1, 9), 1, channel(h(1, 9)))])
    # The last block weighs one more than the heaviest removed, or the same.
    yield Case("reorg_chain_broken", large(last=7), large(last=6))
    missing = [message for message in good if message.key[1:33] != h(4, 1)]
    yield Case("reorg_chain_broken", good, missing)
    yield Case("reorg_chain_broken", good, [*good[:7], *good[8:]])
    unfinished = batch(h(8, 1), 8, h(7, 1), {b"k": Entry(count=1)})._replace(topic=topic)
    lacking = [*good[:-2], unfinished, good[-1]]
    finished = [*good[:-2], unfinished, *on(topic, [set_key(h(8, 1), b"k")]), good[-1]]
    yield Case("reorg_chain_broken", finished, lacking)
    yield Case("reorg_chain_broken", good, [*good[:-1], *on(topic, main(2, 2)), good[-1]])
    # Another partition, and another topic.
    second = good[8]._replace(partition=1)
    yield Case("reorg_channel_shared", good, [*good[:8], second, *good[9:]])
    shared = [*good[:8], good[8]._replace(topic=TOPIC), *good[9:]]
    yield Case("reorg_channel_shared", [*good[:6], reorg(h(1), 1), *good[6:]], shared)
    # The old head was 6: at 10 its end may still come, at 11 not.
    on_top = [batch(h(at, 1), at, h(at - 1, 1)) for at in range(9, 12)]
    yield Case("reorg_not_completed", [*large(end=False), *on_top[:2]], [*large(end=False), *on_top])
    late = Sent(*batch(h(9, 1), 9, h(8, 1))[:2], topic)
    repeated = good[-2]
    yield Case("reorg_not_completed", [*good, repeated], [*good, late])
    yield Case("reorg_complete_unasked", good, [*main(1, 6), reorg_complete(h(1), 1)])


def cases() -> Iterator[Case]:
    yield from key_lengths()
    yield Case("unknown_type", large(), [*large(), made(key=b"\7" + h(1), value=b"\2")])
    yield Case("unknown_type", [*main(1, 2), made(key=b"\xff" + h(1))], [*main(1, 2), made(key=b"\xfe" + h(1))])
    yield Case("unknown_type", [*main(1, 2), made()], [*main(1, 2), made(key=b"\x80")])

    named = {b"s": Entry(subbatch=ID)}
    one_item = [header(h(2, 1), ID, 1), item(h(2, 1), ID, 0, {b"k": b"v"}, [b"d"])]
    whole = block(*one_item, entries=named)
    yield cut(main(2, 2)[0])
    for message in one_item:
        yield Case("value_undecodable", [*whole, message], [*whole, message._replace(value=message.value[:-1])])
    for at in (6, -1):
        yield Case("value_undecodable", large(), [*large(), large()[at]._replace(value=b"")])
    # A number of ten bytes is a long, of eleven not; of five an int.
    top = number(2**63 - 1) + text(b"") + bytes(32) + b"\0"
    yield Case(
        "value_undecodable", [made(key=b"\0" + h(9, 9), value=top)], [made(key=b"\0" + h(9, 9), value=b"\x80" + top)]
    )
    many = made(key=b"\1" + h(2, 1) + ID, value=number(2**31 - 1))
    early = block(entries=named, head=6)
    yield Case("value_undecodable", [*early, many], [*early, many._replace(value=number(2**35))])

    def weighing(weight: bytes) -> list[Sent]:
        return [*main(1, 3), batch(h(9, 9), 9, h(8, 9), weight=weight)]

    yield Case("value_out_of_range", weighing(b"\xff" * 32), weighing(b"\1" + bytes(32)))
    yield Case("value_out_of_range", weighing(b"\0" + b"\xff" * 32), weighing(b"\1" + b"\xff" * 32))
    # All fields of a count of 0 are as of an empty value.
    yield Case(
        "value_out_of_range",
        block(entries={b"k": Entry(count=0)}),
        [*main(1, 2), batch(h(2, 1), 2, h(1), {b"k": Entry(count=-1)})],
    )
    none = block(header(h(2, 1), ID, 0), entries=named)
    yield Case("value_out_of_range", none, [*none, header(h(2, 1), ID, -1)])

    both = block(header(h(2, 1), ID, 2), item(h(2, 1), ID, 0), item(h(2, 1), ID, 1), entries=named)
    yield Case("item_index_out_of_range", both, [*both[:-1], item(h(2, 1), ID, 2)])
    yield Case("item_index_out_of_range", both, [*both[:2], item(h(2, 1), ID, 2), *both[2:]])
    yield Case("item_index_out_of_range", both, [*both, item(h(2, 1), ID, -1)])

    for message in (main(2, 2)[0], *one_item):
        longer = message._replace(value=message.value + b"\0")
        yield Case("trailing_bytes", [*whole, message], [*whole, longer])
    for at in (6, -1):
        said = large()
        longer = said[at]._replace(value=said[at].value + b"\0")
        yield Case("trailing_bytes", said, [*said[:at], longer, *said[at:][1:]])

    for one, two in (
        (Entry(value=b"v"), Entry(value=b"v", delete=True)),
        (Entry(delete=True), Entry(value=b"v", delete=True)),
    ):
        yield Case("update_ambiguous", block(entries={b"k": one}), block(entries={b"k": two}))
    key = set_key(h(2, 1), b"k/1")
    yield Case(
        "update_ambiguous",
        block(key, entries={b"k/": Entry(count=1)}),
        block(key, entries={b"k/": Entry(count=1, value=b"v")}),
    )
    yield Case(
        "update_ambiguous",
        block(key, entries={b"k/": Entry(count=1)}),
        block(key, entries={b"k/": Entry(count=1, delete=True)}),
    )
    yield Case("update_ambiguous", whole, block(*one_item, entries={b"s": Entry(subbatch=ID, delete=True)}))
    yield Case("update_ambiguous", whole, block(*one_item, entries={b"s": Entry(subbatch=ID, value=b"v")}))

    # A block without a Batch: to the nanosecond at the end of its life.
    stray = set_key(h(2, 5), b"k")
    yield Case(
        "no_batch_message",
        [*main(1, 1), after(stray, 9), after(main(2, 2)[0], 9 + 7 * DAY)],
        [*main(1, 1), after(stray, 9), after(main(2, 2)[0], 10 + 7 * DAY)],
    )
    first = {b"k": Entry(value=b"v"), b"l": Entry(delete=True)}
    turned = dict(reversed(first.items()))
    twice = block(batch(h(2, 1), 2, h(1), turned), entries=first)
    for other in (
        batch(h(2, 1), 3, h(1), first),
        batch(h(2, 1), 2, h(1), first, weight=3),
        batch(h(2, 1), 2, h(0, 1), first),
        batch(h(2, 1), 2, h(1), {b"k": Entry(value=b"v")}),
        batch(h(2, 1), 2, h(1), first | {b"k": Entry(value=b"w")}),
    ):
        yield Case("batch_conflict", twice, block(other, entries=first))
    same = batch(h(2, 1), 2, h(1), first, weight=b"\0\2")
    yield Case(
        "batch_conflict",
        block(same, entries=first),
        block(batch(h(2, 1), 2, h(1), first, weight=b"\2\0"), entries=first),
    )

    # The head is four above, or five.
    orphan = batch(h(2, 1), 2, h(1, 1))
    yield Case("parent_never_sent", [*main(1, 1), orphan, *main(2, 6)], [*main(1, 1), orphan, *main(2, 7)])
    yield Case("parent_never_sent", [*main(1, 1), *beside(1, 2, 0), *main(2, 7)], [*main(1, 1), orphan, *main(2, 7)])
    yield Case("parent_after_child", main(1, 2), main(1, 2)[::-1])
    up = [*main(1, 1), *beside(2, 2, 1), batch(h(3, 1), 3, h(2, 1)), *main(2, 7)]
    down = [*main(1, 1), *beside(2, 2, 1), batch(h(3, 1), 2, h(2, 1)), *main(2, 7)]
    yield Case("number_repeated_in_chain", up, down)

    counted = {b"p/": Entry(count=2)}
    p = [set_key(h(2, 1), b"p/%d" % at) for at in range(3)]
    yield Case("prefix_count_open", block(*p[:2], entries=counted), block(p[0], entries=counted))
    yield Case("prefix_count_open", block(p[0], entries=counted, head=6), block(p[0], entries=counted))
    yield Case(
        "prefix_count_open",
        block(p[0], delete_key(h(2, 1), b"p/1"), entries=counted),
        block(p[0], p[0], entries=counted),
    )
    yield Case("extra_message", block(*p[:2], p[1], entries=counted), block(*p, entries=counted))
    yield Case(
        "extra_message",
        [*block(*p[:2], entries=counted, head=6), p[1]],
        [*block(*p[:2], entries=counted, head=6), p[2]],
    )
    stays = {b"p/": Entry(count=1)}
    yield Case("unexpected_key", block(p[0], entries=stays), block(p[0], set_key(h(2, 1), b"q/0"), entries=stays))
    yield Case("unexpected_key", block(p[0], entries=stays), block(p[0], delete_key(h(2, 1), b"p"), entries=stays))
    empty = set_key(h(2, 1), b"p/0", b"")
    yield Case(
        "key_two_values", block(p[0], p[0], entries=stays), block(p[0], p[0]._replace(value=b"w"), entries=stays)
    )
    yield Case("key_two_values", block(empty, empty, entries=stays), block(empty, p[0], entries=stays))
    gone = [delete_key(h(2, 1), b"p/%d" % at) for at in range(2)]
    yield Case("key_by_two_ways", block(p[0], gone[1], entries=counted), block(p[0], gone[0], entries=counted))
    with_item = counted | named
    for updates, deletes in (({b"p/0": b"v"}, []), ({}, [b"p/0"])):
        sent = block(*p[:2], header(h(2, 1), ID, 1), item(h(2, 1), ID, 0, {b"p/2": b"v"}, [b"p/3"]), entries=with_item)
        broken = block(*p[:2], header(h(2, 1), ID, 1), item(h(2, 1), ID, 0, updates, deletes), entries=with_item)
        yield Case("key_by_two_ways", sent, broken)
    # Once the item has set the key, its message is discarded, and the prefix stays open: one fault.
    early = [header(h(2, 1), ID, 1), item(h(2, 1), ID, 0, {b"p/0": b"v"})]
    yield Case("key_by_two_ways", block(*early, *p[1:], entries=with_item), block(*early, *p[:2], entries=with_item))
    inline = named | {b"i": Entry(value=b"v")}
    yield Case(
        "key_by_two_ways",
        block(header(h(2, 1), ID, 1), item(h(2, 1), ID, 0, {b"j": b"v"}), entries=inline),
        block(header(h(2, 1), ID, 1), item(h(2, 1), ID, 0, {b"i": b"v"}), entries=inline),
    )
    yield Case(
        "delete_with_value",
        block(*gone, entries=counted),
        block(gone[0], gone[1]._replace(value=b"\0"), entries=counted),
    )
    yield Case(
        "prefix_not_at_boundary",
        block(set_key(h(2, 1), b"p"), entries={b"p": Entry(count=1)}),
        block(set_key(h(2, 1), b"pq"), entries={b"p": Entry(count=1)}),
    )
    declared = {"prefixes": ["^p/"], "topics": {"^p/": f"{TOPIC}-p"}}
    there = on(f"{TOPIC}-p", p[:2])
    yield Case("topic_wrong", block(*there, entries=counted), block(there[0], p[1], entries=counted), declared)

    yield Case("subbatch_header_missing", none, block(entries=named))
    yield Case("subbatch_header_missing", block(entries=named, head=6), block(entries=named))
    yield Case("subbatch_unknown", whole, block(*one_item, header(h(2, 1), OTHER_ID, 0), entries=named))
    yield Case("subbatch_unknown", whole, block(*one_item, item(h(2, 1), OTHER_ID, 0), entries=named))
    yield Case("subbatch_items_missing", both, [message for message in both if message != item(h(2, 1), ID, 1)])
    yield Case(
        "subbatch_conflict",
        block(header(h(2, 1), ID, 1), header(h(2, 1), ID, 1), item(h(2, 1), ID, 0), entries=named),
        block(header(h(2, 1), ID, 1), header(h(2, 1), ID, 2), item(h(2, 1), ID, 0), entries=named),
    )
    updates = {b"a": b"1", b"b": b"2"}
    usual = item(h(2, 1), ID, 0, updates, [b"d", b"e"])
    again = item(h(2, 1), ID, 0, dict(reversed(updates.items())), [b"e", b"d"])
    whole_head = header(h(2, 1), ID, 1)
    for other in (
        item(h(2, 1), ID, 0, updates, [b"d"]),
        item(h(2, 1), ID, 0, updates | {b"b": b"3"}, [b"d", b"e"]),
    ):
        yield Case(
            "subbatch_conflict",
            block(whole_head, whole_head, usual, again, entries=named),
            block(whole_head, usual, other, entries=named),
        )
    yield from of_the_reorgs()


CASES = list(cases())


def found(sent: list[Sent], options: dict[str, Any]) -> Counter[str]:
    """The rules that are broken, and how often; in notes only those that are asked for."""
    start = {"number": 0, "hash": h(0).hex(), "weight": 0}
    settings = CardinalOptions.from_mapping({"reorg_threshold": THRESHOLD, "start": start} | options)
    records, now_ns = [], 0
    for at, message in enumerate(sent):
        now_ns = max(now_ns, message.at_ns)
        place = Place(now_ns, 0, b"", at, message.topic, message.partition, at)
        records.append((place, message.key, message.value))
    return Counter(one.finding.rule.name for one in consume(records, settings).findings)


@pytest.mark.parametrize("case", CASES, ids=[case.rule for case in CASES])
def test_a_rule_is_kept_at_its_edge_and_broken_one_further(case: Case) -> None:
    assert found(case.good, case.options) == {}
    assert found(case.bad, case.options) == {case.rule: 1}


def test_every_rule_has_such_cases() -> None:
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}
