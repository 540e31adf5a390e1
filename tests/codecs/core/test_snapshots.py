"""The codec of carried state: what a dataclass becomes, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.core.errors import StateDamagedError, StateVersionError
from wirehouse_codecs.core.snapshots import SnapshotCodec


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Spot:
    at: int
    name: str | None = None


@dataclass(slots=True)
class Row:
    key: bytes
    is_first: bool = False
    weight: int = 0
    is_last: bool = False
    spot: Spot | None = None
    colour: Colour = Colour.RED
    share: float = 0.5


class Step(NamedTuple):
    place: Spot
    sizes: tuple[int, ...] = ()


class Hidden:
    """Its attributes are hidden, its state isn't."""

    def __init__(self, key: bytes, step: Step | None) -> None:
        self._key, self._step = key, step

    @property
    def state(self) -> tuple[bytes, Step | None]:
        return self._key, self._step

    @classmethod
    def from_state(cls, state: tuple[bytes, Step | None]) -> Hidden:
        return cls(*state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hidden) and self.state == other.state


@dataclass(slots=True)
class State:
    rows: list[Row] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    read: dict[tuple[str | None, int], int | None] = field(default_factory=dict)
    ordered: dict[bytes, None] = field(default_factory=dict)
    pair: tuple[int, bytes, str] | None = None
    numbers: list[int | None] = field(default_factory=list)
    hashes: list[bytes | None] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    hidden: dict[str, Hidden | None] = field(default_factory=dict)
    buffer: bytearray = field(default_factory=bytearray)
    order: Literal["little", "big"] = "big"
    counts: Counter[str] = field(default_factory=Counter)


CODEC = SnapshotCodec(State, what="test state", version=7)

INTEGERS = st.integers(-(2**300), 2**300)
SPOTS = st.builds(Spot, INTEGERS, st.none() | st.text())
ROWS = st.builds(
    Row,
    st.binary(),
    st.booleans(),
    INTEGERS,
    st.booleans(),
    st.none() | SPOTS,
    st.sampled_from(Colour),
    st.floats(allow_nan=False, allow_infinity=False),
)
STEPS = st.builds(Step, SPOTS, st.lists(INTEGERS).map(tuple))
STATES = st.builds(
    State,
    st.lists(ROWS),
    st.sets(st.text()),
    st.dictionaries(st.tuples(st.none() | st.text(), INTEGERS), st.none() | INTEGERS),
    st.dictionaries(st.binary(), st.none()),
    st.none() | st.tuples(INTEGERS, st.binary(), st.text()),
    st.lists(st.none() | INTEGERS),
    st.lists(st.none() | st.binary()),
    st.lists(STEPS),
    st.dictionaries(st.text(), st.none() | st.builds(Hidden, st.binary(), st.none() | STEPS)),
    st.binary().map(bytearray),
    st.sampled_from(["little", "big"]),
    st.dictionaries(st.text(), INTEGERS).map(Counter),
)


@given(STATES)
def test_any_state_is_read_as_it_was_written(state: State) -> None:
    read = CODEC.read(CODEC.write(state))
    assert read == state
    assert list(read.read) == list(state.read), "dictionaries keep their order"
    assert CODEC.write(read) == CODEC.write(state)


def content(state: State) -> Any:
    return json.loads(CODEC.write(state))["state"]


def test_a_row_is_a_list_of_its_flags_as_one_number_and_its_fields() -> None:
    row = Row(b"\x01\xff", is_first=True, weight=2**70, is_last=True, spot=Spot(3, "x"), colour=Colour.BLUE)
    assert content(State([row]))[0] == [[3, "01ff", 2**70, [3, "x"], "blue", 0.5]]


def test_named_tuples_are_their_fields_and_objects_their_state() -> None:
    step = Step(Spot(3, "x"), (1, 2))
    state = State(steps=[step], hidden={"a": Hidden(b"\x01", step)}, buffer=bytearray(b"\x02"), counts=Counter("aa"))
    assert content(state)[7:] == [
        [[[3, "x"], [1, 2]]],
        [["a"], [["01", [[3, "x"], [1, 2]]]]],
        "Ag==",
        "big",
        [["a"], [2]],
    ]


def test_dictionaries_are_keys_and_values_and_sets_are_sorted() -> None:
    state = State(names={"b", "a"}, read={("t", 1): 5, (None, 0): None}, ordered={b"\x02": None, b"\x01": None})
    assert content(state)[1:4] == [["a", "b"], [[["t", 1], [None, 0]], [5, None]], [["02", "01"], [None, None]]]


def test_another_version_is_refused_and_named() -> None:
    with pytest.raises(StateVersionError, match="test state has version 7, this release reads 8"):
        SnapshotCodec(State, what="test state", version=8).read(CODEC.write(State()))
    with pytest.raises(StateVersionError, match="version None"):
        CODEC.read("{}")


def test_a_changed_dataclass_is_noticed_without_a_new_version() -> None:
    @dataclass
    class Renamed:
        at: int
        title: str | None = None

    before, after = (SnapshotCodec(kind, what="test state", version=1) for kind in (Spot, Renamed))
    with pytest.raises(
        StateVersionError,
        match=r"version 1 with the layout [0-9a-f]{8}, this release reads the layout [0-9a-f]{8} of it",
    ) as raised:
        after.read(before.write(Spot(1)))
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (None, [], "0 values where 12 belong"),
        (None, {}, "dict where list belongs"),
        (0, "x", "str where list belongs"),
        (0, [[4, "01", 0, None, "red", 0.5]], "4 isn't a sum of 2 flags of Row"),
        (0, [[-1, "01", 0, None, "red", 0.5]], "-1 isn't a sum of 2 flags of Row"),
        (0, [[True, "01", 0, None, "red", 0.5]], "bool where int belongs"),
        (0, [[0, "0g", 0, None, "red", 0.5]], "non-hexadecimal"),
        (0, [[0, "01", None, None, "red", 0.5]], "NoneType where int belongs"),
        (0, [[0, "01", 0, None, "green", 0.5]], "'green' is not a valid Colour"),
        (0, [[0, "01", 0, [1], "red", 0.5]], "1 values where 2 belong"),
        (1, [1], "int in a list of str"),
        (2, [[], [], []], "too many values"),
        (2, [[["t", 1]], []], "shorter"),
        (4, [1, "01"], "2 values where 3 belong"),
        (7, [[[3, "x"], ["a"]]], "str in a list of int"),
        (8, [["a"], [["01"]]], "1 values where 2 belong"),
        (10, "middle", "'middle' is none of 'little', 'big'"),
    ],
)
def test_what_no_version_wrote_is_refused_with_the_reason(at: int | None, value: Any, reason: str) -> None:
    text = json.loads(CODEC.write(State()))
    if at is None:
        text["state"] = value
    else:
        text["state"][at] = value
    with pytest.raises(StateDamagedError, match=reason):
        CODEC.read(json.dumps(text))


class Named:
    """An object of one of some names."""

    def __init__(self, name: str) -> None:
        self.name, self.number = name, {"known": 1}[name]

    @property
    def state(self) -> str:
        return self.name

    @classmethod
    def from_state(cls, name: str) -> Named:
        return cls(name)


def test_what_an_object_cannot_be_made_of_is_damage() -> None:
    codec = SnapshotCodec(list[Named], what="test state", version=1)
    text = codec.write([Named("known")])
    assert [one.number for one in codec.read(text)] == [1]
    with pytest.raises(StateDamagedError, match="unknown"):
        codec.read(text.replace('"known"', '"unknown"'))


@pytest.mark.parametrize("text", ["", "[]", '{"version":7', "1", "[" * 100_000])
def test_text_that_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(StateDamagedError, match="JSON"):
        CODEC.read(text)


def test_types_that_json_cannot_hold_are_refused_when_the_codec_is_made() -> None:
    @dataclass
    class Union:
        value: int | str

    @dataclass
    class Frozen:
        value: frozenset[int]

    @dataclass(kw_only=True)
    class Named:
        value: int

    for kind in (Union, Frozen, Named):
        with pytest.raises(TypeError, match="can't be part of a snapshot"):
            SnapshotCodec(kind, what="test state", version=1)
