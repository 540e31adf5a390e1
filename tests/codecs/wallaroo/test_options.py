"""Options of a Wallaroo source: what is read, and what is refused."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import DIALECTS, SEED, V3
from wirehouse_codecs.wallaroo.frames import VersionForm
from wirehouse_codecs.wallaroo.options import MOST_FRAME_BYTES, WallarooOptions

seconds = st.integers(1, 86_400) | st.floats(0.001, 86_400)
all_options = st.builds(
    WallarooOptions,
    dialect=st.sampled_from(["auto", *DIALECTS]),
    max_frame_bytes=st.none() | st.integers(1, MOST_FRAME_BYTES),
    ack_timeout_s=seconds,
    close_timeout_s=seconds,
    seed_version=st.sampled_from(["auto", *(form.value for form in VersionForm)]),
)


def test_reads_every_option() -> None:
    read = WallarooOptions.from_mapping(
        {
            "dialect": "v2b",
            "max_frame_bytes": 1000,
            "ack_timeout_s": 2.5,
            "close_timeout_s": 1,
            "seed_version": "u32",
        }
    )
    assert read == WallarooOptions("v2b", 1000, 2.5, 1, "u32")
    assert (read.forced, read.version_form) == ("v2b", VersionForm.U32)
    assert (read.ack_timeout_ns, read.close_timeout_ns) == (2_500_000_000, 1_000_000_000)
    assert read.limit(V3, Direction.CLIENT) == read.limit(SEED, Direction.CLIENT) == 1000


def test_nothing_given_is_the_default() -> None:
    options = WallarooOptions.from_mapping({})
    assert options == WallarooOptions()
    assert (options.forced, options.version_form) == (None, None)
    assert (options.limit(V3, Direction.CLIENT), options.limit(SEED, Direction.CLIENT)) == (16_384, 4 << 20)


@pytest.mark.parametrize("options", [WallarooOptions(), WallarooOptions(max_frame_bytes=1000)])
def test_only_what_a_worker_receives_is_limited(options: WallarooOptions) -> None:
    assert {options.limit(dialect, Direction.SERVER) for dialect in DIALECTS.values()} == {4 << 20}


def test_times_that_are_not_given() -> None:
    options = WallarooOptions()
    assert (options.ack_timeout_ns, options.close_timeout_ns) == (10_000_000_000, 5_000_000_000)


@settings(max_examples=50)
@given(all_options)
def test_canonical_text_gives_the_options_back(options: WallarooOptions) -> None:
    again = WallarooOptions.from_canonical(options.canonical())
    assert again == options
    assert again.canonical() == options.canonical()


def test_equal_times_have_one_text() -> None:
    assert WallarooOptions(ack_timeout_s=5.0).canonical() == WallarooOptions(ack_timeout_s=5).canonical()


@pytest.mark.parametrize(
    ("mapping", "key", "reason"),
    [
        ({"dialekt": "v3"}, "dialekt", "unknown option"),
        ({"dialect": "v4"}, "dialect", "one of auto, seed, seed_sid"),
        ({"dialect": "t1"}, "dialect", "one of"),
        ({"dialect": None}, "dialect", "one of"),
        ({"max_frame_bytes": 0}, "max_frame_bytes", "at least 1"),
        ({"max_frame_bytes": MOST_FRAME_BYTES + 1}, "max_frame_bytes", "at most"),
        ({"max_frame_bytes": True}, "max_frame_bytes", "whole number"),
        ({"max_frame_bytes": "16384"}, "max_frame_bytes", "whole number"),
        ({"ack_timeout_s": 0}, "ack_timeout_s", "above 0"),
        ({"ack_timeout_s": float("nan")}, "ack_timeout_s", "above 0"),
        ({"ack_timeout_s": float("inf")}, "ack_timeout_s", "at most"),
        ({"ack_timeout_s": "10"}, "ack_timeout_s", "number of seconds"),
        ({"close_timeout_s": -1}, "close_timeout_s", "above 0"),
        ({"close_timeout_s": False}, "close_timeout_s", "number of seconds"),
        ({"seed_version": "u128"}, "seed_version", "one of"),
    ],
)
def test_refuses_what_it_cannot_mean(mapping: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as refused:
        WallarooOptions.from_mapping(mapping)
    assert refused.value.fields["key"] == key
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
