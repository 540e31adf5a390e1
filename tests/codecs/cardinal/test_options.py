"""Options of a Cardinal source: what is read, what is refused, and what their expressions say about names."""

import pickle
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.cardinal import options as options_module
from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher, NameVerdict, Start
from wirehouse_codecs.core.errors import OptionError

HASH = "ab" * 32
numbers = st.integers(0, 2**64 - 1)
weights = st.integers(0, 2**256 - 1)
hashes = st.binary(min_size=32, max_size=32)
regexes = st.sampled_from([".*", "c/[0-9a-z]+/a/", "^c/1", "é/", "a|b", r"\.x$"])
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
all_options = st.builds(
    CardinalOptions,
    tracked_prefixes=st.lists(regexes, max_size=3).map(tuple),
    reorg_threshold=st.integers(1, 2**31 - 1),
    start=st.none() | st.builds(Start, numbers, hashes, weights),
    whitelist=st.dictionaries(numbers, hashes, max_size=3),
    prefixes=st.none() | st.lists(regexes, max_size=3).map(tuple),
    topics=st.none() | st.dictionaries(regexes, texts, max_size=3),
    reorg_topic=st.none() | texts.filter(lambda text: "{hash}" not in text).map(lambda text: text + "{hash}"),
)


def test_reads_every_option() -> None:
    assert CardinalOptions.from_mapping(
        {
            "tracked_prefixes": ["c/1/a/", "c/1/s"],
            "reorg_threshold": 64,
            "start": {"number": 2**64 - 1, "hash": HASH, "weight": str(2**256 - 1)},
            "whitelist": [{"number": 7, "hash": HASH.upper()}],
            "prefixes": ["c/1/"],
            "topics": {"c/1/a/": "state", "c/1/": "other"},
            "reorg_topic": "cardinal-1-re-{hash}",
        }
    ) == CardinalOptions(
        tracked_prefixes=("c/1/a/", "c/1/s"),
        reorg_threshold=64,
        start=Start(2**64 - 1, bytes.fromhex(HASH), 2**256 - 1),
        whitelist={7: bytes.fromhex(HASH)},
        prefixes=("c/1/",),
        topics={"c/1/a/": "state", "c/1/": "other"},
        reorg_topic="cardinal-1-re-{hash}",
    )


def test_nothing_given_is_the_default() -> None:
    assert CardinalOptions.from_mapping({}) == CardinalOptions()


def test_weight_may_be_a_number() -> None:
    options = CardinalOptions.from_mapping({"start": {"number": 1, "hash": HASH, "weight": 12}})
    assert options.start == Start(1, bytes.fromhex(HASH), 12)


@given(all_options)
def test_canonical_text_gives_the_options_back(options: CardinalOptions) -> None:
    again = CardinalOptions.from_canonical(options.canonical())
    assert again == options
    assert again.canonical() == options.canonical()
    assert list(again.topics or ()) == list(options.topics or ())


def test_canonical_text_does_not_depend_on_the_order_of_the_whitelist() -> None:
    blocks = [{"number": number, "hash": HASH} for number in (3, 1, 2)]
    texts = {CardinalOptions.from_mapping({"whitelist": order}).canonical() for order in (blocks, blocks[::-1])}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("mapping", "key", "reason"),
    [
        ({"tracked": []}, "tracked", "unknown option"),
        ({"start": {"number": 1, "hash": HASH, "height": 1}}, "start.height", "unknown option"),
        ({"whitelist": [{"number": 1, "hash": HASH, "x": 1}]}, "whitelist[0].x", "unknown option"),
        ({"tracked_prefixes": "c/1/"}, "tracked_prefixes", "must be a list"),
        ({"tracked_prefixes": [1]}, "tracked_prefixes[0]", "must be a text"),
        ({"tracked_prefixes": ["ok", "("]}, "tracked_prefixes[1]", "RE2 refuses"),
        ({"prefixes": [r"(a)\1"]}, "prefixes[0]", "RE2 refuses"),
        ({"prefixes": ["(?=a)"]}, "prefixes[0]", "RE2 refuses"),
        ({"prefixes": ["\ud800"]}, "prefixes[0]", "RE2 refuses"),
        ({"topics": {"[": "t"}}, "topics.[", "RE2 refuses"),
        ({"topics": {"a": 1}}, "topics.a", "must be a text"),
        ({"topics": ["a"]}, "topics", "must be a table"),
        ({"reorg_threshold": 0}, "reorg_threshold", "at least 1"),
        ({"reorg_threshold": -5}, "reorg_threshold", "at least 1"),
        ({"reorg_threshold": True}, "reorg_threshold", "whole number"),
        ({"reorg_threshold": 1.0}, "reorg_threshold", "whole number"),
        ({"reorg_threshold": "8"}, "reorg_threshold", "whole number"),
        ({"start": {"hash": HASH}}, "start.number", "is missing"),
        ({"start": {"number": 1}}, "start.hash", "is missing"),
        ({"start": {"number": 2**64, "hash": HASH}}, "start.number", r"below 2\^64"),
        ({"start": {"number": -1, "hash": HASH}}, "start.number", "at least 0"),
        ({"start": {"number": 1, "hash": HASH[:-2]}}, "start.hash", "64 hex digits"),
        ({"start": {"number": 1, "hash": "0x" + HASH[2:]}}, "start.hash", "64 hex digits"),
        ({"start": {"number": 1, "hash": HASH, "weight": 2**256}}, "start.weight", r"below 2\^256"),
        ({"start": {"number": 1, "hash": HASH, "weight": "-1"}}, "start.weight", "decimal digits"),
        ({"start": {"number": 1, "hash": HASH, "weight": "9" * 5000}}, "start.weight", "decimal digits"),
        ({"whitelist": {"1": HASH}}, "whitelist", "must be a list"),
        ({"whitelist": [[1, HASH]]}, "whitelist[0]", "must be a table"),
        (
            {"whitelist": [{"number": 1, "hash": HASH}, {"number": 1, "hash": "cd" * 32}]},
            "whitelist",
            "block 1 has two hashes",
        ),
        ({"reorg_topic": "reorgs"}, "reorg_topic", "must hold {hash} once"),
        ({"reorg_topic": ""}, "reorg_topic", "must be a text"),
    ],
)
def test_refuses(mapping: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as refused:
        CardinalOptions.from_mapping(mapping)
    assert refused.value.fields["key"] == key
    assert pickle.loads(pickle.dumps(refused.value)).fields == refused.value.fields


def test_tracked_is_found_anywhere_declared_and_topic_at_the_start() -> None:
    options = CardinalOptions(tracked_prefixes=("a/$",), prefixes=("c/",), topics={"c/1": "one", "c/": "any"})
    matcher = NameMatcher(options)
    assert matcher.judge(b"c/1/a/") == NameVerdict(tracked=True, declared=True, topic="one")
    assert matcher.judge(b"c/2/b") == NameVerdict(tracked=False, declared=True, topic="any")
    assert matcher.judge(b"x/c/1") == NameVerdict(tracked=False, declared=False, topic=None)


def test_without_prefixes_everything_is_declared_and_with_none_nothing() -> None:
    assert NameMatcher(CardinalOptions()).judge(b"x").declared
    assert not NameMatcher(CardinalOptions(prefixes=())).judge(b"x").declared
    assert not NameMatcher(CardinalOptions(tracked_prefixes=())).judge(b"x").tracked


def test_a_byte_that_is_not_utf8_is_one_character() -> None:
    matcher = NameMatcher(CardinalOptions(tracked_prefixes=("^c/.$",)))
    assert matcher.judge(b"c/\xff").tracked
    assert matcher.judge("c/é".encode()).tracked
    assert not matcher.judge(b"c/\xff\xff").tracked


def test_an_expression_that_backtracks_elsewhere_takes_linear_time() -> None:
    matcher = NameMatcher(CardinalOptions(tracked_prefixes=("^(a+)+$", "(x*)*y")))
    started = time.perf_counter()
    assert not matcher.judge(b"a" * 200_000 + b"!").tracked
    assert time.perf_counter() - started < 2


def test_remembered_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "MATCHER_NAMES", 4)
    monkeypatch.setattr(options_module, "MATCHER_NAME_BYTES", 8)
    matcher = NameMatcher(CardinalOptions(tracked_prefixes=("7$",)))
    for _ in range(2):
        assert [n for n in range(40) if matcher.judge(b"%d" % n).tracked] == [7, 17, 27, 37]
        assert matcher.judge(b"too long to keep 7").tracked
    assert len(matcher._seen) <= 4
    assert b"too long to keep 7" not in matcher._seen
