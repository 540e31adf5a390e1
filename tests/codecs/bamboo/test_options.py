"""Options of a Bamboo source: what is read, and what is refused."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.options import MOST_PAYLOAD_BYTES, MOST_PIECE_BYTES, BambooOptions
from wirehouse_codecs.bamboo.setup import VANILLA, Role, Setup, agreed
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.tcp.endpoints import Direction

numbers = st.integers(0, MAX_U64)
setups = st.none() | st.builds(Setup, st.booleans(), st.booleans(), numbers, numbers)
limits = {
    "service": st.none() | st.text("abz09_-", min_size=1, max_size=64),
    "proactive": st.sampled_from(Direction),
    "max_packet_bytes": st.integers(1, MOST_PIECE_BYTES),
    "max_inflated_bytes": st.integers(1, MOST_PAYLOAD_BYTES),
}
all_options = st.builds(
    BambooOptions,
    streams=st.sampled_from(["auto", "existing", "created"]),
    control_stream=st.integers(0, 9),
    data_stream=st.integers(10, MAX_U64),
    **limits,
) | st.builds(
    BambooOptions,
    transport=st.just("two_connections"),
    control_port=st.integers(1, 9),
    data_port=st.integers(10, 65_535),
    pairs=st.sampled_from(["order", "next_port"]),
    client_setup=setups,
    server_setup=setups,
    **limits,
)


def test_reads_the_options_of_two_connections() -> None:
    setup = {"sends_greedily": True, "receives_greedily": False, "send_window": 5, "receive_window": 2**64 - 1}
    read = BambooOptions.from_mapping(
        {
            "transport": "two_connections",
            "control_port": 7001,
            "data_port": 7002,
            "pairs": "next_port",
            "client_setup": setup,
            "proactive": "server",
            "max_packet_bytes": 1000,
            "max_inflated_bytes": 5000,
        }
    )
    assert (read.control_port, read.data_port, read.pairs) == (7001, 7002, "next_port")
    assert (read.client_setup, read.server_setup) == (Setup(True, False, 5, 2**64 - 1), None)
    assert (read.role_of(Direction.CLIENT), read.role_of(Direction.SERVER)) == (Role.REACTIVE, Role.PROACTIVE)
    assert (read.max_packet_bytes, read.max_inflated_bytes) == (1000, 5000)


def test_nothing_given_is_the_default() -> None:
    options = BambooOptions.from_mapping({})
    assert options == BambooOptions()
    assert options.start() == agreed(0, 1, by_creation=True)
    assert options.role_of(Direction.CLIENT) is Role.PROACTIVE


def test_what_is_agreed_on_before_bymux() -> None:
    assert BambooOptions.from_mapping({"streams": "created"}).start() == VANILLA
    existing = BambooOptions.from_mapping({"streams": "existing", "control_stream": 5, "data_stream": 6})
    assert existing.start() == agreed(5, 6, by_creation=False)


@settings(max_examples=50)
@given(all_options)
def test_canonical_text_gives_the_options_back(options: BambooOptions) -> None:
    again = BambooOptions.from_canonical(options.canonical())
    assert again == options
    assert again.canonical() == options.canonical()


TWO = {"transport": "two_connections", "control_port": 1, "data_port": 2}


@pytest.mark.parametrize(
    ("mapping", "key", "reason"),
    [
        ({"colour": "red"}, "colour", "unknown option"),
        ({"service": "Two Peers"}, "service", "must be of a-z, 0-9"),
        ({"transport": "udp"}, "transport", "must be one of bymux, two_connections"),
        ({"transport": 5}, "transport", "must be one of"),
        ({"streams": "maybe"}, "streams", "must be one of auto, existing, created"),
        ({"control_stream": -1}, "control_stream", "at least 0"),
        ({"control_stream": True}, "control_stream", "whole number"),
        ({"control_stream": 1}, "data_stream", "another stream"),
        ({"data_port": 5}, "data_port", "means nothing with transport bymux"),
        ({"client_setup": {}}, "client_setup.sends_greedily", "is missing"),
        (TWO | {"streams": "auto"}, "streams", "means nothing with transport two_connections"),
        ({"transport": "two_connections", "data_port": 2}, "control_port", "is missing"),
        (TWO | {"data_port": 1}, "data_port", "another port"),
        (TWO | {"data_port": 70_000}, "data_port", "at most 65535"),
        (TWO | {"pairs": "luck"}, "pairs", "must be one of order, next_port"),
        (
            TWO
            | {
                "server_setup": {
                    "sends_greedily": 1,
                    "receives_greedily": True,
                    "send_window": 0,
                    "receive_window": 0,
                }
            },
            "server_setup.sends_greedily",
            "true or false",
        ),
        ({"proactive": "left"}, "proactive", "must be one of client, server"),
        ({"max_packet_bytes": 0}, "max_packet_bytes", "at least 1"),
        ({"max_inflated_bytes": 2**40}, "max_inflated_bytes", "at most"),
    ],
)
def test_refuses(mapping: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as raised:
        BambooOptions.from_mapping(mapping)
    assert raised.value.fields["key"] == key
    assert pickle.loads(pickle.dumps(raised.value)).fields == raised.value.fields
