"""Options of a Hiero source: what is read, and what is refused."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.hiero.options import MOST_MESSAGE_BYTES, HieroOptions
from wirehouse_codecs.hiero.profiles import PROFILES

ports = st.lists(st.integers(1, 65_535), max_size=3).map(tuple)
all_options = st.builds(
    HieroOptions,
    profile=st.sampled_from(["auto", *PROFILES]),
    reading=st.sampled_from(["strict", "tolerant"]),
    max_message_bytes=st.integers(1, MOST_MESSAGE_BYTES),
    in_flight_ms=st.integers(0, 1000),
    node_error_ms=st.integers(0, 1000),
    patience_ms=st.integers(1, 86_400_000),
    skipped_blocks=st.integers(1, 10),
    publish_ports=ports,
    subscribe_ports=ports,
    service=st.none() | st.text("abc-_", min_size=1, max_size=9),
).filter(lambda options: not set(options.publish_ports) & set(options.subscribe_ports))


def test_reads_every_option() -> None:
    table = {
        "profile": "A'",
        "reading": "tolerant",
        "max_message_bytes": 1000,
        "in_flight_ms": 10,
        "max_inflated_ratio": 20,
        "node_error_ms": 100,
        "patience_ms": 5,
        "skipped_blocks": 10,
        "publish_ports": [1, 2],
        "subscribe_ports": [],
        "service": "node0",
    }
    read = HieroOptions.from_mapping(table)
    assert read == HieroOptions("A'", "tolerant", 1000, 20, 10, 100, 5, 10, (1, 2), (), "node0")
    assert (read.forced, read.tolerant) == ("A'", True)
    assert (read.in_flight_ns, read.node_error_ns, read.patience_ns) == (10_000_000, 100_000_000, 5_000_000)


@pytest.mark.parametrize("key", ["publish_ports", "subscribe_ports"])
def test_a_port_is_of_one_service(key: str) -> None:
    with pytest.raises(OptionError, match="can't be for publishers and for subscribers") as refused:
        HieroOptions.from_mapping({key: [1, 40_980, 40_984]})
    assert refused.value.fields["key"] == key


def test_nothing_given_is_the_default() -> None:
    options = HieroOptions.from_mapping({})
    assert options == HieroOptions()
    assert (options.forced, options.tolerant, options.service) == (None, False, None)
    assert (options.in_flight_ms, options.node_error_ms, options.patience_ms) == (50, 300, 3_600_000)
    assert (options.max_message_bytes, options.skipped_blocks) == (131_072_000, 5)


@settings(max_examples=50)
@given(all_options)
def test_canonical_text_gives_the_options_back(options: HieroOptions) -> None:
    again = HieroOptions.from_canonical(options.canonical())
    assert again == options
    assert again.canonical() == options.canonical()


@pytest.mark.parametrize(
    ("mapping", "key", "reason"),
    [
        ({"profil": "B"}, "profil", "unknown option"),
        ({"profile": "C"}, "profile", "one of auto, A0, A, A', B0"),
        ({"profile": None}, "profile", "one of"),
        ({"reading": "lax"}, "reading", "one of strict, tolerant"),
        ({"max_message_bytes": 0}, "max_message_bytes", "at least 1"),
        ({"max_message_bytes": MOST_MESSAGE_BYTES + 1}, "max_message_bytes", "at most"),
        ({"max_message_bytes": True}, "max_message_bytes", "whole number"),
        ({"in_flight_ms": -1}, "in_flight_ms", "at least 0"),
        ({"node_error_ms": 0.5}, "node_error_ms", "whole number"),
        ({"patience_ms": 0}, "patience_ms", "at least 1"),
        ({"skipped_blocks": 11}, "skipped_blocks", "at most 10"),
        ({"publish_ports": 40984}, "publish_ports", "must be a list"),
        ({"publish_ports": [1, 0]}, "publish_ports[1]", "at least 1"),
        ({"subscribe_ports": ["1"]}, "subscribe_ports[0]", "whole number"),
        ({"service": ""}, "service", "of a-z, 0-9"),
        ({"service": "x" * 65}, "service", "of a-z, 0-9"),
    ],
)
def test_refuses_what_it_cannot_mean(mapping: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as refused:
        HieroOptions.from_mapping(mapping)
    assert refused.value.fields["key"] == key
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
