"""Bytes to Cardinal messages and back: the readable decoder, the rules of decoding, hostile input."""

import json
import pickle
import time
import tracemalloc
from base64 import b64decode
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.wire.avro import blocks, byte_string, varint
from wirehouse_codecs.cardinal.wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Decoded,
    EncodeError,
    Message,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
    content_digest,
    decode,
    encode,
    update_record,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "cardinal"
HASH, PARENT, ID, ZERO = b"\x11" * 32, b"\x22" * 32, b"\x33" * 32, bytes(32)
BATCH_KEY, HEADER_KEY, ITEM_KEY, REORG_KEY = (
    b"\x00" + HASH,
    b"\x01" + HASH + ID,
    b"\x02" + HASH + ID + b"\x00",
    b"\x05" + HASH,
)

hashes = st.binary(min_size=32, max_size=32)
names = st.binary(max_size=12)
unsigned = st.integers(0, 2**64 - 1)
updates = st.one_of(
    st.builds(Update, names, value=st.binary(min_size=1, max_size=40)),
    st.builds(Update, names, count=st.integers(1, 2**31 - 1)),
    st.builds(Update, names, delete=st.just(True)),
    st.builds(Update, names, subbatch=hashes.filter(any)),
)
batches = st.builds(
    Batch,
    hashes,
    unsigned,
    st.integers(0, 2**256 - 1),
    hashes,
    st.lists(updates, unique_by=lambda update: update.name, max_size=8).map(tuple),
)
items = st.builds(
    SubBatchMsg,
    hashes,
    hashes,
    st.integers(0, 2**63 - 1),
    st.lists(names, max_size=5).map(tuple),
    st.dictionaries(names, st.binary(max_size=40), max_size=5).map(lambda updates: tuple(updates.items())),
)
messages: st.SearchStrategy[Message] = st.one_of(
    batches,
    st.builds(SubBatchHeader, hashes, hashes, st.integers(0, 2**31 - 1)),
    items,
    st.builds(BatchMsg, hashes, st.binary(max_size=40), st.binary(max_size=40)),
    st.builds(BatchDeleteMsg, hashes, st.binary(max_size=40)),
    st.builds(Reorg, hashes, unsigned),
    st.builds(ReorgComplete, hashes, unsigned),
)


def batch_value(number: bytes = b"\x02", weight: bytes = b"\x02\x05", updates: bytes = b"\x00") -> bytes:
    return number + weight + PARENT + updates


def entry(name: bytes, value: bytes = b"", count: int = 0, delete: bool = False, subbatch: bytes = ZERO) -> bytes:
    return byte_string(name) + update_record(value, count, delete, subbatch)


def batch_of(*updates: Update) -> Batch:
    return Batch(HASH, 1, 5, PARENT, updates)


def broken(key: bytes | None, value: bytes | None) -> str | None:
    """The rule that a message breaks."""
    rule = decode(key, value).rule
    return rule.name if rule else None


EXAMPLES: list[Message] = [
    Batch(
        HASH,
        2**63 + 5,
        2**200,
        PARENT,
        (
            Update(b"c/1/a/", count=70_000),
            Update(b"c/1/s", subbatch=ID),
            Update(b"k", value=b"v" * 100),
            Update(b"d", delete=True),
        ),
    ),
    SubBatchHeader(HASH, ID, 300),
    SubBatchMsg(HASH, ID, 64, (b"gone", b"\xff"), ((b"a/", b""), (b"b", b"x" * 200))),
    Reorg(HASH, 2**40),
    ReorgComplete(HASH, 2**64 - 1),
]


@given(messages)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode(*encode(message)) == Decoded(message)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_value_cut_at_any_byte_is_undecodable(message: Message) -> None:
    key, value = encode(message)
    assert {broken(key, value[:end]) for end in range(len(value))} == {"value_undecodable"}
    assert broken(key, None) == "value_undecodable"


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_key_of_another_length_is_refused(message: Message) -> None:
    key, value = encode(message)
    assert {broken(key[:end], value) for end in range(1, len(key))} == {"key_length_wrong"}
    assert broken(key + b"\x00", value) == "key_length_wrong"


@pytest.mark.parametrize("kind", [3, 4])
def test_an_application_key_may_be_empty_but_not_the_block_hash(kind: int) -> None:
    key = bytes([kind]) + HASH
    assert {broken(key[:end], b"") for end in range(1, 33)} == {"key_length_wrong"}
    message = decode(key, b"").message
    assert isinstance(message, BatchMsg | BatchDeleteMsg)
    assert (message.block_hash, message.key) == (HASH, b"")


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("junk", [b"\x00", b"\xff", b"junk" * 100], ids=["00", "ff", "long"])
def test_bytes_after_the_value_are_told_and_the_value_counts(message: Message, junk: bytes) -> None:
    key, value = encode(message)
    decoded = decode(key, value + junk)
    assert (decoded.message, decoded.rule) == (message, RULE["trailing_bytes"])
    assert f"{len(junk)} bytes" in decoded.reason


@pytest.mark.parametrize(
    ("message", "key_tail", "value"),
    [
        (SubBatchHeader(HASH, ID, 0), "", "00"),
        (SubBatchHeader(HASH, ID, 1), "", "02"),
        (SubBatchHeader(HASH, ID, 64), "", "8001"),
        (SubBatchMsg(HASH, ID, 63), "7e", "0000"),
        (SubBatchMsg(HASH, ID, 64), "8001", "0000"),
        # blocks: the count is negative and the size in bytes follows it
        (SubBatchMsg(HASH, ID, 0, (b"a",), ((b"b", b"c"),)), "00", "01 04 0261 00 01 08 0262 0263 00"),
        (Batch(HASH, 1, 0, PARENT), "", "02 00" + "22" * 32 + "00"),
        (Batch(HASH, 2**64 - 1, 256, PARENT), "", "01 04 0100" + "22" * 32 + "00"),
        # all four fields of an entry are there: value, count, delete, subbatch
        (batch_of(Update(b"a/", count=2)), "", "02 0205" + "22" * 32 + "01 4c 04612f 00 04 00" + "00" * 32 + "00"),
        (Reorg(HASH, 2**31), "", "8080808010"),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_reference(message: Message, key_tail: str, value: str) -> None:
    key, encoded = encode(message)
    assert key[1:].hex() == (HASH + getattr(message, "batch_id", b"")).hex() + key_tail
    assert encoded.hex() == value.replace(" ", "")


def test_a_map_of_many_entries_is_written_in_blocks_of_a_hundred() -> None:
    message = SubBatchMsg(HASH, ID, 0, (), tuple((b"%03d" % i, b"") for i in range(250)))
    _, value = encode(message)
    entries = [byte_string(name) + b"\x00" for name, _ in message.updates]
    size = len(entries[0])
    expected = b"".join(
        varint(-n) + varint(n * size) + b"".join(entries[at : at + n]) for at, n in ((0, 100), (100, 100), (200, 50))
    )
    assert value == b"\x00" + expected + b"\x00"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        # positive block counts, which the reference doesn't write but Avro has
        (ITEM_KEY, b"\x02\x02a\x00\x00", SubBatchMsg(HASH, ID, 0, (b"a",))),
        # several blocks, and a size in bytes that is wrong: nobody needs it
        (ITEM_KEY, b"\x02\x02a\x01\x7e\x02b\x00\x00", SubBatchMsg(HASH, ID, 0, (b"a", b"b"))),
        # varints longer than needed
        (HEADER_KEY, b"\x82\x80\x00", SubBatchHeader(HASH, ID, 1)),
        (b"\x02" + HASH + ID + b"\x82\x00", b"\x00\x00", SubBatchMsg(HASH, ID, 1)),
        # weight with leading zeros
        (BATCH_KEY, batch_value(weight=byte_string(bytes(40) + b"\xff" * 32)), Batch(HASH, 1, 2**256 - 1, PARENT)),
        # the reference's 32-bit Reorg number wraps: -2^31
        (REORG_KEY, b"\xff\xff\xff\xff\x0f", Reorg(HASH, 2**64 - 2**31)),
        # a name twice: the last wins, at the place of the first
        (
            ITEM_KEY,
            b"\x00" + blocks([b"\x02a\x02x", b"\x02b\x02y", b"\x02a\x02z"]),
            SubBatchMsg(HASH, ID, 0, (), ((b"a", b"z"), (b"b", b"y"))),
        ),
        (
            BATCH_KEY,
            batch_value(updates=blocks([entry(b"a", count=-1), entry(b"a", count=3)])),
            batch_of(Update(b"a", count=3)),
        ),
        # an inline empty value sets no field, so it means nothing
        (
            BATCH_KEY,
            batch_value(updates=blocks([entry(b"a"), entry(b"b", delete=True)])),
            batch_of(Update(b"b", delete=True)),
        ),
        (b"\x03" + HASH + b"key", None, BatchMsg(HASH, b"key", b"")),
    ],
    ids=[
        "positive count",
        "wrong size",
        "long varint",
        "long index",
        "weight zeros",
        "negative reorg",
        "name twice",
        "entry twice",
        "nothing set",
        "null value",
    ],
)
def test_odd_but_legal_bytes_decode(key: bytes, value: bytes | None, message: Message) -> None:
    assert decode(key, value) == Decoded(message)


def test_bytes_that_are_not_utf8_are_kept() -> None:
    message = SubBatchMsg(HASH, ID, 0, (b"\xff\xfe", b"\xed\xa0\x80"), ((b"\xc3", b"1"), ("é".encode(), b"2")))
    assert decode(*encode(message)).message == message
    assert decode(*encode(batch_of(Update(b"c/\x80/", count=1)))).message == batch_of(Update(b"c/\x80/", count=1))


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        (b"\x07" + HASH, b"\x00", "unknown_type"),
        (b"\xfe", b"", "unknown_type"),
        (ITEM_KEY[:-1], b"\x00\x00", "key_length_wrong"),
        (ITEM_KEY[:-1] + b"\x80" * 10 + b"\x00", b"\x00\x00", "key_length_wrong"),
        (HEADER_KEY, b"", "value_undecodable"),
        (HEADER_KEY, b"\x80\x80\x80\x80\x10", "value_undecodable"),
        (HEADER_KEY, b"\x80\x80\x80\x80\x80\x00", "value_undecodable"),
        (REORG_KEY, b"\x80" * 9 + b"\x02", "value_undecodable"),
        (BATCH_KEY, b"\xff" * 64, "value_undecodable"),
        (BATCH_KEY, batch_value(number=b"\xff" * 9 + b"\x7f"), "value_undecodable"),
        (BATCH_KEY, batch_value(weight=b"\x01"), "value_undecodable"),
        (
            BATCH_KEY,
            batch_value(updates=blocks([entry(b"a", delete=True).replace(b"\x01", b"\x02")])),
            "value_undecodable",
        ),
        (
            BATCH_KEY,
            batch_value(updates=blocks([b"\x02a\x00\x80\x80\x80\x80\x20\x00" + ZERO])),
            "value_undecodable",
        ),
        (BATCH_KEY, batch_value(weight=byte_string(b"\x01" + ZERO)), "value_out_of_range"),
        (BATCH_KEY, batch_value(updates=blocks([entry(b"a", value=b"v", count=-1)])), "value_out_of_range"),
        (HEADER_KEY, b"\x01", "value_out_of_range"),
        (ITEM_KEY[:-1] + b"\x01", b"\x00\x00", "item_index_out_of_range"),
    ],
    ids=lambda part: part.hex() if isinstance(part, bytes) and len(part) < 20 else None,
)
def test_the_rule_that_quarantines(key: bytes, value: bytes, rule: str) -> None:
    decoded = decode(key, value)
    assert (decoded.message, decoded.rule) == (None, RULE[rule])
    assert decoded.reason


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        (b"\x00" + HASH[1:], b"", "key_length_wrong"),
        (ITEM_KEY[:-1] + b"\x01", b"", "value_undecodable"),
        (BATCH_KEY, batch_value(weight=byte_string(b"\x01" + ZERO))[:-1], "value_undecodable"),
        (HEADER_KEY, b"\x01junk", "value_out_of_range"),
        (ITEM_KEY[:-1] + b"\x01", b"\x00\x00junk", "item_index_out_of_range"),
        (BATCH_KEY, batch_value(updates=blocks([entry(b"a", b"v", 1)])) + b"\x00", "trailing_bytes"),
    ],
)
def test_of_two_broken_rules_the_first_in_the_list_is_named(key: bytes, value: bytes, rule: str) -> None:
    assert broken(key, value) == rule


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ((b"v", 1, True, ID), Update(b"a", b"v", 1, True, ID)),
        ((b"", 1, True, ID), Update(b"a", None, 1, True, ID)),
        ((b"", 0, True, ID), Update(b"a", delete=True, subbatch=ID)),
        ((b"v", 0, False, ID), Update(b"a", b"v", subbatch=ID)),
    ],
)
def test_an_ambiguous_entry_keeps_all_that_it_sets(fields: tuple[bytes, int, bool, bytes], kept: Update) -> None:
    decoded = decode(BATCH_KEY, batch_value(updates=blocks([entry(b"a", *fields), entry(b"b", count=1)])))
    assert decoded.message == batch_of(kept, Update(b"b", count=1))
    assert decoded.rule == RULE["update_ambiguous"]
    assert "'a'" in decoded.reason


def test_a_delete_with_a_value_still_deletes() -> None:
    decoded = decode(b"\x04" + HASH + b"key", b"\xab")
    assert decoded.message == BatchDeleteMsg(HASH, b"key", b"\xab")
    assert decoded.rule == RULE["delete_with_value"]
    assert "ab" in decoded.reason


def test_pings_and_heartbeats_are_skips() -> None:
    assert decode(b"\xff" + ID, bytes(15)) == Decoded(skip="ping")
    assert decode(b"", b"x") == decode(None, None) == Decoded(skip="heartbeat")


def test_a_reason_stays_short() -> None:
    assert len(decode(b"\x07" + bytes(100_000), None).reason) < 300
    assert len(decode(BATCH_KEY, batch_value(updates=blocks([entry(b"n" * 9999, b"v", 1)]))).reason) < 300


HUGE = [2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -(2**31), -(2**63)]


@pytest.mark.parametrize("announced", HUGE)
@pytest.mark.parametrize(
    ("key", "head"),
    [
        (ITEM_KEY, b""),
        (ITEM_KEY, b"\x00"),
        (ITEM_KEY, b"\x02"),
        (BATCH_KEY, b"\x02"),
        (BATCH_KEY, b"\x02\x00" + PARENT),
    ],
    ids=["deletes", "updates", "name", "weight", "entries"],
)
def test_an_announced_length_costs_neither_memory_nor_time(key: bytes, head: bytes, announced: int) -> None:
    value = head + varint(announced) + b"\x00"
    tracemalloc.start()
    started = time.perf_counter()
    rule = broken(key, value)
    spent = time.perf_counter() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rule == "value_undecodable"
    assert peak < 100_000
    assert spent < 1


def test_memory_follows_the_bytes_that_are_there() -> None:
    value = varint(20_000) + b"\x00" * 20_000
    tracemalloc.start()
    assert broken(ITEM_KEY, value) == "value_undecodable"
    assert decode(ITEM_KEY, value + b"\x00\x00").message == SubBatchMsg(HASH, ID, 0, (b"",) * 20_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * len(value)


@given(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 255]), st.binary(max_size=80), st.binary(max_size=120))
def test_any_bytes_give_one_verdict(kind: int, tail: bytes, value: bytes) -> None:
    _assert_one_verdict(decode(bytes([kind]) + tail, value))


@given(messages, st.data())
def test_damaged_messages_give_one_verdict(message: Message, data: st.DataObject) -> None:
    key, value = encode(message)
    damaged = bytearray(value or b"\x00")
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    _assert_one_verdict(decode(key, bytes(damaged)))


def _assert_one_verdict(decoded: Decoded) -> None:
    nothing = decoded.skip is not None or (decoded.rule is not None and decoded.rule.quarantines)
    assert (decoded.message is None) == nothing
    assert bool(decoded.reason) == (decoded.rule is not None)


@pytest.mark.parametrize(
    "message",
    [
        Batch(HASH[1:], 1, 1, PARENT),
        Batch(HASH, 2**64, 1, PARENT),
        Batch(HASH, -1, 1, PARENT),
        Batch(HASH, 1, 2**256, PARENT),
        Batch(HASH, 1, 1, b""),
        batch_of(Update(b"a")),
        batch_of(Update(b"a", value=b"v", count=1)),
        batch_of(Update(b"a", subbatch=b"short")),
        SubBatchHeader(HASH, b"", 1),
        SubBatchHeader(HASH, ID, 2**31),
        SubBatchMsg(HASH, ID, 2**63),
        Reorg(HASH, 2**64),
    ],
    ids=str,
)
def test_a_message_that_can_not_be_written_is_our_own_misuse(message: Message) -> None:
    with pytest.raises(EncodeError) as refused:
        encode(message)
    assert pickle.loads(pickle.dumps(refused.value)).fields == refused.value.fields


@given(batches, st.randoms(use_true_random=False))
def test_a_batch_has_one_digest_whatever_the_order(batch: Batch, random: object) -> None:
    shuffled = list(batch.updates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = Batch(HASH, batch.number, batch.weight, batch.parent, tuple(shuffled))
    assert content_digest(other) == content_digest(batch)


def test_an_item_has_one_digest_whatever_the_order() -> None:
    one = SubBatchMsg(HASH, ID, 0, (b"a", b"b"), ((b"x", b"1"), (b"y", b"2")))
    other = SubBatchMsg(HASH, ID, 0, (b"b", b"a", b"b"), ((b"y", b"2"), (b"x", b"1")))
    assert content_digest(one) == content_digest(other)


def test_other_content_has_another_digest() -> None:
    contents: list[Batch | SubBatchHeader | SubBatchMsg] = [
        Batch(HASH, 1, 1, PARENT),
        Batch(HASH, 2, 1, PARENT),
        Batch(HASH, 1, 2, PARENT),
        Batch(HASH, 1, 1, HASH),
        *(
            Batch(HASH, 1, 1, PARENT, (update,))
            for update in (
                Update(b"a", value=b"v"),
                Update(b"av", value=b""),
                Update(b"a", count=1),
                Update(b"a", count=2),
                Update(b"a", delete=True),
                Update(b"a", subbatch=ID),
            )
        ),
        SubBatchHeader(HASH, ID, 1),
        SubBatchHeader(HASH, ID, 2),
        SubBatchMsg(HASH, ID, 0),
        SubBatchMsg(HASH, ID, 0, (b"a",)),
        SubBatchMsg(HASH, ID, 0, (b"a", b"b")),
        SubBatchMsg(HASH, ID, 0, (b"ab",)),
        SubBatchMsg(HASH, ID, 0, (), ((b"a", b"b"),)),
        SubBatchMsg(HASH, ID, 0, (), ((b"ab", b""),)),
        SubBatchMsg(HASH, ID, 0, (b"a",), ((b"b", b""),)),
    ]
    assert len({content_digest(content) for content in contents}) == len(contents)


def _vector(scenario: str) -> list[tuple[bytes, bytes]]:
    lines = (VECTORS / scenario / "messages.jsonl").read_text().splitlines()
    return [(b64decode(row["key_b64"]), b64decode(row["value_b64"])) for row in map(json.loads, lines)]


SCENARIOS = sorted(str(path.parent.relative_to(VECTORS)) for path in VECTORS.rglob("messages.jsonl"))
#: What each scenario of malformed messages breaks at decoding; the others break nothing.
BROKEN = {
    "h_malformed/01_batch_truncated": {"value_undecodable": 1},
    "h_malformed/03_batch_truncated_then_good": {"value_undecodable": 1},
    "h_malformed/05_batch_garbage": {"value_undecodable": 1},
    "h_malformed/18_unknown_prefix_byte": {"unknown_type": 6},
    "h_malformed/19_short_keys": {"key_length_wrong": 3},
}


def test_all_scenarios_of_the_reference_are_here() -> None:
    assert len(SCENARIOS) == 15
    assert set(BROKEN) < set(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_messages_of_the_reference(scenario: str) -> None:
    expected = json.loads((VECTORS / scenario / "expected.json").read_text())
    rows = _vector(scenario)
    assert len(rows) == expected["messages"]
    assert Counter(rule for rule in (broken(*row) for row in rows) if rule) == BROKEN.get(scenario, {})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_encoder_writes_the_bytes_of_the_reference(scenario: str) -> None:
    rows = _vector(scenario)
    for key, value in rows:
        message = decode(key, value).message
        # An inline empty value is on the wire and not in the message, so it isn't written again.
        if message and not (isinstance(message, Batch) and scenario == "f1_deletes_empty_ignored"):
            assert encode(message) == (key, value)


def test_batches_of_the_reference_have_the_fields_it_tells() -> None:
    expected = json.loads((VECTORS / "a_linear" / "expected.json").read_text())["completed_batches"]
    decoded = (decode(*row).message for row in _vector("a_linear"))
    batches = {message.block_hash.hex(): message for message in decoded if isinstance(message, Batch)}
    assert len(batches) == len(expected) == 200
    for block in expected:
        batch = batches[block["hash"]]
        assert (batch.number, str(batch.weight), batch.parent.hex()) == (
            block["number"],
            block["weight"],
            block["parent"],
        )
