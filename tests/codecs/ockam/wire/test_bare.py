"""BARE: what is written is read again, as short as can be, and nothing else is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.ockam.wire import bare
from wirehouse_codecs.ockam.wire.bare import (
    DATA,
    REST,
    STRING,
    UINT,
    Cursor,
    Data,
    Enum,
    List,
    Malformed,
    Optional,
    Schema,
    Struct,
    Union,
)

MOST = 2**64 - 1
uints = st.integers(0, MOST) | st.sampled_from([0, 127, 128, 16383, 16384, 2**63, MOST])
texts = st.text(st.characters(codec="utf-8"), max_size=20)


@dataclass(frozen=True)
class Pair:
    one: int
    two: str | None


@dataclass(frozen=True)
class Other:
    data: bytes


PAIR = Struct(Pair, (("one", UINT), ("two", Optional(STRING))))
OTHER = Struct(Other, (("data", DATA),))
pairs = st.builds(Pair, uints, st.none() | texts)
others = st.builds(Other, st.binary(max_size=200))
VALUES: list[tuple[Schema, st.SearchStrategy[Any]]] = [
    (UINT, uints),
    (DATA, st.binary(max_size=300)),
    (STRING, texts),
    (REST, st.binary(max_size=30)),
    (Optional(UINT), st.none() | uints),
    (Enum(("a", "b", "c")), st.sampled_from("abc")),
    (List(PAIR), st.lists(pairs, max_size=5).map(tuple)),
    (Union((PAIR, OTHER)), pairs | others),
]


def read(schema: Schema, data: bytes) -> tuple[Any, bool]:
    """The value that all of `data` is, and whether it is written as short as can be."""
    cursor = Cursor(data)
    value = schema.read(cursor, "value")
    cursor.finish()
    return value, cursor.canonical


@pytest.mark.parametrize(("schema", "values"), VALUES)
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_written_is_read(schema: Schema, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    written = bare.encode(schema, value)
    assert read(schema, written) == (value, True)
    if schema is not REST:
        for end in range(len(written)):
            with pytest.raises(Malformed):
                read(schema, written[:end])
        with pytest.raises(Malformed, match="left over"):
            read(schema, written + b"\0")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("00", 0),
        ("7f", 127),
        ("8001", 128),
        ("ac02", 300),
        ("ffffffff0f", 2**32 - 1),
        ("ffffffffffffffffff01", MOST),
    ],
)
def test_uints_are_groups_of_seven_bits(written: str, value: int) -> None:
    assert bare.encode(UINT, value).hex() == written
    assert read(UINT, bytes.fromhex(written)) == (value, True)


@given(value=uints, longer=st.integers(1, 9))
def test_a_longer_uint_is_taken_and_noted(value: int, longer: int) -> None:
    shortest = bare.encode(UINT, value)
    written = shortest[:-1] + bytes([shortest[-1] | 0x80]) + b"\x80" * (longer - 1) + b"\0"
    if len(written) <= bare.MOST_UINT_BYTES:
        assert read(UINT, written) == (value, False)
    else:
        with pytest.raises(Malformed, match="more than 64 bits"):
            read(UINT, written)


@pytest.mark.parametrize(
    "written", ["ffffffffffffffffff02", "ffffffffffffffffff7f", "80808080808080808080", "8080808080808080808000"]
)
def test_a_uint_has_64_bits(written: str) -> None:
    with pytest.raises(Malformed, match="more than 64 bits"):
        read(UINT, bytes.fromhex(written))


@pytest.mark.parametrize("written", ["", "80", "ffffffffffffffffff"])
def test_a_uint_that_is_cut_says_so(written: str) -> None:
    with pytest.raises(Malformed, match="cut"):
        read(UINT, bytes.fromhex(written))


@pytest.mark.parametrize(
    ("schema", "written", "reason"),
    [
        (Optional(UINT), "0201", "value at byte 0: 2 is no tag of an optional"),
        (Optional(UINT), "ff01", "value at byte 0: 255 is no tag"),
        (Enum(("a",)), "01", "value at byte 0: 1 is none of its 1 values"),
        (Union((PAIR, OTHER)), "02", "value at byte 0: 2 is none of its 2 tags"),
        (STRING, "02c328", "value at byte 1: no UTF-8"),
        (STRING, "0461c08062", "value at byte 2: no UTF-8"),
        (STRING, "03eda080", "value at byte 1: no UTF-8"),
        (PAIR, "050102ff", "two at byte 3: 2 bytes announced, 1 are left"),
        (List(UINT, most=3), "0400000000", "value at byte 0: 4 of them, the limit is 3"),
        (Data(most=3), "0400000000", "value at byte 0: 4 bytes, the limit is 3"),
    ],
)
def test_what_is_malformed_names_field_and_byte(schema: Schema, written: str, reason: str) -> None:
    with pytest.raises(Malformed) as raised:
        read(schema, bytes.fromhex(written))
    assert str(raised.value).startswith(reason)


@pytest.mark.parametrize("announced", [2**32 - 1, 2**63, MOST])
@pytest.mark.parametrize("schema", [DATA, STRING, List(UINT), List(PAIR)])
def test_announced_lengths_and_counts_reserve_nothing(schema: Schema, announced: int) -> None:
    with pytest.raises(Malformed):
        read(schema, bare.encode(UINT, announced) + bytes(8))


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_number_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="no unsigned number"):
        bare.encode(UINT, value)


@pytest.mark.parametrize(("schema", "value"), [(UINT, "1"), (DATA, "text"), (STRING, b"bytes"), (STRING, None)])
def test_a_value_of_another_type_is_refused(schema: Schema, value: object) -> None:
    with pytest.raises(TypeError):
        bare.encode(schema, value)
