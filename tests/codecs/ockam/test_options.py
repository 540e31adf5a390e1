"""Options of an Ockam source: what is read, and what is refused."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.ockam.options import MOST_FRAME_BYTES, EnvelopeChoice, IndexConvention, OckamOptions

addresses = st.lists(st.text("abc#", min_size=1, max_size=9), min_size=1, max_size=4, unique=True).map(
    lambda texts: tuple(sorted(texts))
)
all_options = st.builds(
    OckamOptions,
    service=st.none() | st.text("abz09_-", min_size=1, max_size=64),
    envelope=st.sampled_from(EnvelopeChoice),
    index_convention=st.sampled_from(IndexConvention),
    answer_timeout_s=st.integers(1, 86_400) | st.floats(0.001, 86_400),
    stream_services=addresses,
    index_services=addresses.map(lambda texts: tuple(f"index {text}" for text in texts)),
    max_frame_bytes=st.none() | st.integers(1, MOST_FRAME_BYTES),
)


def test_reads_every_option() -> None:
    read = OckamOptions.from_mapping(
        {
            "service": "hub-1",
            "envelope": "cbor",
            "index_convention": "processed",
            "answer_timeout_s": 2.5,
            "stream_services": ["mine", "mine"],
            "index_services": ["index"],
            "max_frame_bytes": 1000,
        }
    )
    assert read == OckamOptions(
        "hub-1", EnvelopeChoice.CBOR, IndexConvention.PROCESSED, 2.5, ("mine",), ("index",), 1000
    )
    assert read.answer_timeout_ns == 2_500_000_000


def test_nothing_given_is_the_default() -> None:
    options = OckamOptions.from_mapping({})
    assert options == OckamOptions()
    assert options.answer_timeout_ns == 3_600_000_000_000
    assert "stream" in options.stream_services
    assert "stream_index" in options.index_services


@settings(max_examples=50)
@given(all_options)
def test_canonical_text_gives_the_options_back(options: OckamOptions) -> None:
    again = OckamOptions.from_canonical(options.canonical())
    assert again == options
    assert again.canonical() == options.canonical()


def test_equal_options_have_one_text() -> None:
    options = OckamOptions(answer_timeout_s=5, stream_services=("a", "b"))
    assert replace(options, answer_timeout_s=5.0, stream_services=("b", "a")).canonical() == options.canonical()


@pytest.mark.parametrize(
    ("mapping", "key", "reason"),
    [
        ({"servise": "hub"}, "servise", "unknown option"),
        ({"service": ""}, "service", "of a-z, 0-9"),
        ({"service": "Hub 1"}, "service", "of a-z, 0-9"),
        ({"envelope": "bare16"}, "envelope", "one of auto, bare, cbor"),
        ({"index_convention": None}, "index_convention", "one of next, processed"),
        ({"answer_timeout_s": 0}, "answer_timeout_s", "above 0"),
        ({"answer_timeout_s": float("nan")}, "answer_timeout_s", "above 0"),
        ({"answer_timeout_s": float("inf")}, "answer_timeout_s", "at most"),
        ({"answer_timeout_s": "10"}, "answer_timeout_s", "number of seconds"),
        ({"answer_timeout_s": True}, "answer_timeout_s", "number of seconds"),
        ({"stream_services": "stream"}, "stream_services", "must be a list"),
        ({"stream_services": []}, "stream_services", "1 to 64"),
        ({"stream_services": ["a", ""]}, r"stream_services[1]", "1 to 255"),
        ({"index_services": [7]}, r"index_services[0]", "1 to 255"),
        ({"index_services": ["stream"]}, "index_services", "stream_services as well"),
        ({"max_frame_bytes": 0}, "max_frame_bytes", "at least 1"),
        ({"max_frame_bytes": MOST_FRAME_BYTES + 1}, "max_frame_bytes", "at most"),
        ({"max_frame_bytes": 1.5}, "max_frame_bytes", "whole number"),
    ],
)
def test_refuses_what_it_cannot_mean(mapping: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as refused:
        OckamOptions.from_mapping(mapping)
    assert refused.value.fields["key"] == key
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
