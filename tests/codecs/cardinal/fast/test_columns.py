"""The vectorised decoder gives what the readable one gives, row by row, whatever the bytes are."""

import json
import random
import time
import tracemalloc
from base64 import b64decode
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.cardinal.fast.columns import DECODED_TYPE, decode_columns, message_of
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.cardinal.wire.avro import blocks, byte_string, varint
from wirehouse_codecs.cardinal.wire.messages import (
    Batch,
    Decoded,
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
HASH, PARENT, ID = b"\x11" * 32, b"\x22" * 32, b"\x33" * 32
DECODED_KINDS = (0, 1, 2, 5, 6)
Row = tuple[bytes | None, bytes | None]

kinds = st.sampled_from([*DECODED_KINDS, 3, 4, 7, 255])
#: Mostly as long as some type asks.
tails = st.sampled_from([0, 31, 32, 33, 64, 65, 66]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
any_keys = st.builds(lambda kind, tail: bytes([kind]) + tail, kinds, tails)

EXAMPLES: list[Message] = [
    Batch(
        HASH,
        2**64 - 1,
        2**256 - 1,
        PARENT,
        (
            Update(b"c/1/a/", count=2**31 - 1),
            Update(b"c/1/s", subbatch=ID),
            Update(b"\xff", value=b"v"),
            Update(b"d", delete=True),
        ),
    ),
    Batch(HASH, 0, 0, PARENT),
    SubBatchHeader(HASH, ID, 0),
    SubBatchHeader(HASH, ID, 2**31 - 1),
    SubBatchMsg(HASH, ID, 2**63 - 1, (b"b", b"a", b"b", b"\xff"), ((b"z", b""), (b"a", b"1" * 300))),
    SubBatchMsg(HASH, ID, 0),
    Reorg(HASH, 2**63),
    ReorgComplete(HASH, 2**64 - 1),
]


def columns(rows: list[Row], options: CardinalOptions | None = None) -> tuple[pa.Array, pa.StructArray]:
    keys = pa.array([key for key, _ in rows], pa.binary())
    values = pa.array([value for _, value in rows], pa.binary())
    decoded = decode_columns(keys, values, options or CardinalOptions())
    decoded.validate(full=True)
    assert decoded.type == DECODED_TYPE
    return keys, decoded


def digest_of(decoded: Decoded | None) -> bytes | None:
    message = decoded.message if decoded else None
    return content_digest(message) if isinstance(message, Batch | SubBatchHeader | SubBatchMsg) else None


def assert_twins(rows: list[Row]) -> None:
    """Both decoders agree on every row, and on the digest of its content."""
    _, decoded = columns(rows)
    expected = [decode(key, value) if key and key[0] in DECODED_KINDS else None for key, value in rows]
    for (key, value), row, wanted in zip(rows, decoded.to_pylist(), expected, strict=True):
        found = None if row is None else message_of(key[0] if key else 0, row)
        assert found == wanted, f"key {key!r}, value {value!r}"
    assert decoded.field("content_digest").to_pylist() == [digest_of(each) for each in expected]


def vectors() -> list[Row]:
    lines = (line for path in sorted(VECTORS.rglob("messages.jsonl")) for line in path.read_text().splitlines())
    return [(b64decode(row["key_b64"]), b64decode(row["value_b64"])) for row in map(json.loads, lines)]


def damaged(source: random.Random, data: bytes) -> bytes:
    """`data` with a few bytes changed, added or taken away."""
    out = bytearray(data)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(out) + 1)
        match source.randrange(4):
            case 0:
                out[at:at] = source.randbytes(source.randint(1, 4))
            case 1:
                out[at : at + source.randint(1, 4)] = b""
            case 2:
                del out[at:]
            case _:
                out[at : at + 1] = bytes([source.choice((0, 1, 2, 0x7F, 0x80, 0xFF, source.randrange(256)))])
    return bytes(out)


def test_the_columns_have_their_names_and_types() -> None:
    entry = (
        "struct<name: binary, value: binary, count: int64, is_delete: bool, subbatch: binary, tracked: bool, "
        "topic: string, declared: bool>"
    )
    assert {field.name: str(field.type) for field in DECODED_TYPE} == {
        "rule": "string",
        "reason": "string",
        "block_hash": "binary",
        "number": "decimal128(20, 0)",
        "weight": "binary",
        "parent": "binary",
        "updates": f"list<item: {entry}>",
        "batch_id": "binary",
        "item_index": "int64",
        "item_count": "int64",
        "deletes": "list<item: binary>",
        "sets": "list<item: struct<key: binary, value: binary>>",
        "content_digest": "binary",
    }


def test_extremes_of_every_field() -> None:
    assert_twins([encode(message) for message in EXAMPLES])


def test_vectors_of_the_reference() -> None:
    rows = vectors()
    assert len(rows) == 5376
    assert_twins(rows)


@pytest.mark.parametrize(
    "config",
    [
        SimulatorConfig(seed=1, blocks=40, messages_per_block=60, producers=2, shuffle=50, fork_every=5),
        SimulatorConfig(seed=2, blocks=40, messages_per_block=20, large_reorg=True),
        SimulatorConfig(seed=3, blocks=40, messages_per_block=20, fault="update_ambiguous"),
        SimulatorConfig(seed=4, blocks=40, messages_per_block=20, fault="item_index_out_of_range"),
    ],
    ids=["shuffled", "large reorg", "ambiguous", "index"],
)
def test_simulated_traffic(config: SimulatorConfig) -> None:
    assert_twins([(record.key, record.value) for record in simulate(config)])


def test_damaged_messages() -> None:
    source = random.Random(20260101)
    whole = [encode(message) for message in EXAMPLES]
    whole += [(key, value) for key, value in vectors()[::17] if key and value and key[0] in DECODED_KINDS]
    rows: list[Row] = []
    for _ in range(6000):
        key, value = source.choice(whole)
        rows.append((damaged(source, key) if source.random() < 0.2 else key, damaged(source, value)))
    assert_twins(rows)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.none() | any_keys, st.none() | st.binary(max_size=90)), max_size=20))
def test_any_bytes(rows: list[Row]) -> None:
    assert_twins(rows)


def test_maps_with_names_that_repeat() -> None:
    source = random.Random(7)
    rows: list[Row] = []
    for _ in range(400):
        names = [source.choice((b"", b"a", b"ab", b"b", b"\xff")) for _ in range(source.randint(0, 9))]
        fields = [
            (
                source.choice((b"", b"v")),
                source.choice((0, 1, -1)),
                source.random() < 0.3,
                source.choice((ID, bytes(32))),
            )
            for _ in names
        ]
        entries = [byte_string(name) + update_record(*each) for name, each in zip(names, fields, strict=True)]
        rows.append((b"\x00" + HASH, b"\x02\x00" + PARENT + blocks(entries)))
        sets = [byte_string(name) + byte_string(source.randbytes(2)) for name in names]
        rows.append((b"\x02" + HASH + ID + b"\x00", blocks(map(byte_string, names)) + blocks(sets)))
    assert_twins(rows)


def test_a_row_is_null_without_a_key_and_for_types_that_are_not_decoded_here() -> None:
    item = encode(SubBatchMsg(HASH, ID, 1))
    rows: list[Row] = [
        (None, item[1]),
        (b"", item[1]),
        (b"\x03" + HASH, b""),
        (b"\x04" + HASH, b""),
        (b"\xff", None),
        (b"\x07", None),
        item,
    ]
    _, decoded = columns(rows)
    assert decoded.is_valid().to_pylist() == [False] * 6 + [True]


def test_no_rows() -> None:
    assert len(columns([])[1]) == 0
    assert columns([(None, None)])[1].to_pylist() == [None]


def test_slices_of_larger_columns() -> None:
    rows: list[Row] = [encode(message) for message in EXAMPLES]
    keys, whole = columns(rows)
    values = pa.array([value for _, value in rows], pa.binary())
    for start in range(len(rows)):
        part = decode_columns(keys[start : start + 2], values[start : start + 2], CardinalOptions())
        assert part.to_pylist() == whole[start : start + 2].to_pylist()


def test_large_binary_columns() -> None:
    rows = [encode(message) for message in EXAMPLES]
    keys, whole = columns([*rows])
    values = pa.array([value for _, value in rows], pa.large_binary())
    assert decode_columns(keys.cast(pa.large_binary()), values, CardinalOptions()).equals(whole)


def test_fields_of_a_batch_as_columns() -> None:
    _, decoded = columns([encode(EXAMPLES[0])])
    row = decoded[0].as_py()
    assert (row["number"], row["weight"], row["parent"]) == (Decimal(2**64 - 1), b"\xff" * 32, PARENT)
    assert (row["rule"], row["reason"], row["batch_id"], row["item_index"]) == (None, None, None, None)
    assert [(u["name"], u["value"], u["count"], u["is_delete"], u["subbatch"]) for u in row["updates"]] == [
        (b"c/1/a/", None, 2**31 - 1, False, None),
        (b"c/1/s", None, None, False, ID),
        (b"\xff", b"v", None, False, None),
        (b"d", None, None, True, None),
    ]
    small = columns([encode(Batch(HASH, 1, 258, PARENT))])[1][0].as_py()
    assert small["weight"] == bytes(30) + b"\x01\x02"
    assert small["updates"] == []


def test_what_is_quarantined_has_a_rule_and_a_reason_and_nothing_else() -> None:
    key, value = encode(EXAMPLES[0])
    row = columns([(key, value[:-1])])[1][0].as_py()
    assert row.pop("rule") == "value_undecodable"
    assert row.pop("reason")
    assert set(row.values()) == {None}


def test_entries_are_judged_by_the_options() -> None:
    options = CardinalOptions(tracked_prefixes=("/a/",), prefixes=("c/",), topics={"c/1/a": "state", "c/": "rest"})
    batch = Batch(
        HASH,
        1,
        1,
        PARENT,
        (
            Update(b"c/1/a/", count=1),
            Update(b"c/1/s", subbatch=ID),
            Update(b"x/a/", count=1),
            Update(b"x/v", value=b"1"),
            Update(b"x/d", delete=True),
            Update(b"x/s", subbatch=ID),
        ),
    )
    for _ in range(2):  # the second time from memory
        updates = columns([encode(batch)], options)[1][0].as_py()["updates"]
        assert [(u["tracked"], u["topic"], u["declared"]) for u in updates] == [
            (True, "state", True),
            (False, "rest", True),
            (True, None, False),
            (False, None, True),
            (False, None, True),
            (False, None, False),
        ]
    free = columns([encode(batch)])[1][0].as_py()["updates"]
    assert {(u["tracked"], u["topic"], u["declared"]) for u in free} == {(True, None, True)}


@pytest.mark.parametrize("announced", [2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**31), -(2**63)])
@pytest.mark.parametrize("head", [b"", b"\x00", b"\x02"], ids=["deletes", "updates", "name"])
def test_an_announced_length_costs_no_memory(announced: int, head: bytes) -> None:
    rows: list[Row] = [(b"\x02" + HASH + ID + b"\x00", head + varint(announced) + b"\x00")]
    columns(rows)
    tracemalloc.start()
    _, decoded = columns(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decoded[0].as_py()["rule"] == "value_undecodable"
    assert peak < 1_000_000


def test_many_names_that_begin_alike_sort_in_reasonable_time() -> None:
    names = [b"n" * 100 + b"%d" % i for i in range(30_000)]
    value = b"\x00" + blocks(byte_string(name) + b"\x00" for name in reversed(names))
    key = b"\x02" + HASH + ID + b"\x00"
    columns([(key, b"\x00\x00")])
    started = time.perf_counter()
    _, decoded = columns([(key, value)])
    assert time.perf_counter() - started < 2
    assert len(decoded[0].as_py()["sets"]) == len(names)
