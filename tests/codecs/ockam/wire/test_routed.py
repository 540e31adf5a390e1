"""Routed messages in both envelopes; of CBOR a library has a second opinion."""

from __future__ import annotations

import io
import json
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.ockam.wire.bare import Malformed
from wirehouse_codecs.ockam.wire.routed import (
    MOST_ADDRESS_BYTES,
    MOST_HOPS,
    Address,
    EncodeError,
    Envelope,
    Route,
    Routed,
    decode,
    encode,
    frame,
    local,
    route_text,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "ockam" / "routed.jsonl"
BARE, CBOR = Envelope
MOST = 2**64 - 1
addresses = st.builds(Address, st.integers(0, 20) | st.integers(0, MOST), st.binary(max_size=30))
routes = st.lists(addresses, max_size=4).map(tuple)
payloads = st.binary(max_size=300)
contexts = st.none() | st.text(st.characters(codec="utf-8"), max_size=30)
bare = st.builds(Routed, st.just(1), routes, routes, payloads) | st.builds(
    Routed, st.just(2), routes, routes, payloads, contexts
)
cbor = st.builds(Routed, st.none(), routes, routes, payloads, contexts)
messages = st.tuples(st.just(BARE), bare) | st.tuples(st.just(CBOR), cbor)


@pytest.mark.parametrize("line", VECTORS.read_text().splitlines())
def test_vectors(line: str) -> None:
    vector = json.loads(line)
    onward, back = (
        tuple(Address(kind, text.encode()) for kind, text in vector[f"{way}_route"]) for way in ("onward", "return")
    )
    routed = Routed(1, onward, back, bytes.fromhex(vector["payload"]))
    assert encode(routed, BARE).hex() == vector["hex"]
    assert decode(bytes.fromhex(vector["hex"]), BARE) == routed


def test_the_array_that_the_elixir_node_sends() -> None:
    written = bytes.fromhex("848182004673747265616d818200426d654101f6")
    routed = Routed(None, local("stream"), local("me"), b"\x01")
    assert encode(routed, CBOR) == written
    assert decode(written, CBOR) == routed
    assert decode(b"\x83" + written[1:-1], CBOR) == routed


@settings(max_examples=50)
@given(message=messages)
def test_what_is_written_is_read(message: tuple[Envelope, Routed]) -> None:
    envelope, routed = message
    written = encode(routed, envelope)
    read = decode(written, envelope)
    assert read == routed
    assert read.canonical
    for end in range(len(written)):
        with pytest.raises(Malformed):
            decode(written[:end], envelope)
    with pytest.raises(Malformed, match="left over"):
        decode(written + b"\0", envelope)
    inside = bytearray(b"before" + written + b"after")
    assert decode(inside, envelope, 6, 6 + len(written)) == routed


def plain(route: Route) -> list[list[Any]]:
    return [[address.type, address.value] for address in route]


@given(routed=cbor)
def test_a_library_writes_the_same_cbor(routed: Routed) -> None:
    parts = [plain(routed.onward_route), plain(routed.return_route), routed.payload, routed.tracing_context]
    assert cbor2.dumps(parts) == encode(routed, CBOR)


@given(routed=cbor, at=st.integers(0, 60), octet=st.integers(0, 255))
def test_what_is_taken_as_cbor_a_library_reads_the_same(routed: Routed, at: int, octet: int) -> None:
    written = bytearray(encode(routed, CBOR))
    written[at % len(written)] = octet
    try:
        read = decode(bytes(written), CBOR)
    except Malformed:
        return
    parts = cbor2.load(io.BytesIO(written))
    assert parts[:3] == [plain(read.onward_route), plain(read.return_route), read.payload]
    assert (parts[3] if len(parts) == 4 else None) == read.tracing_context


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "message at byte 0"),
        ("82808040", "message at byte 0: an array of 2"),
        ("858080404040", "message at byte 0: an array of 5"),
        ("9f808040ff", "message at byte 0: 9f has no definite length"),
        ("8380a040", "return_route at byte 2: a0 doesn't begin an array"),
        ("838181004180", "onward_route at byte 2: an address of 1 parts"),
        ("8381820061618040", "value at byte 4: 61 doesn't begin bytes"),
        ("8381822041618040", "type at byte 3: 20 doesn't begin an unsigned number"),
        ("8380805bffffffffffffffff00", "payload at byte 12: 18446744073709551615 bytes announced, 1 are left"),
        ("839bffffffffffffffff", "onward_route at byte 1: 18446744073709551615 of them, the limit is 64"),
        ("848080405f", "tracing_context at byte 4: 5f doesn't begin text"),
        ("8480804062c328", "tracing_context at byte 5: no UTF-8"),
        ("84808040f7", "tracing_context at byte 4: f7 doesn't begin text"),
        ("c1838080400000", "message at byte 0: c1 doesn't begin an array"),
    ],
)
def test_what_is_no_message_in_cbor(written: str, reason: str) -> None:
    with pytest.raises(Malformed) as raised:
        decode(bytes.fromhex(written), CBOR)
    assert str(raised.value).startswith(reason)


@pytest.mark.parametrize("written", ["98038080 40", "83 9800 80 40", "83 8182 1800 4161 80 40", "83 80 80 5900 01 61"])
def test_longer_heads_of_cbor_are_noted(written: str) -> None:
    assert not decode(bytes.fromhex(written), CBOR).canonical


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("00000000", "version at byte 0: there is no version 0"),
        ("03000000", "version at byte 0: there is no version 3"),
        ("01ffffffffffffffffff01", "onward_route at byte 1: 18446744073709551615 of them, the limit is 64"),
        ("010100ffffffffffffffffff01", "value at byte 3: 18446744073709551615 bytes, the limit is 4096"),
        ("010000ffffffffffffffffff01", "payload at byte 13: 18446744073709551615 bytes announced, 0 are left"),
        ("0200000002", "tracing_context at byte 4: 2 is no tag of an optional"),
        ("02000000", "tracing_context at byte 4"),
    ],
)
def test_what_is_no_message_in_bare(written: str, reason: str) -> None:
    with pytest.raises(Malformed) as raised:
        decode(bytes.fromhex(written), BARE)
    assert str(raised.value).startswith(reason)


@pytest.mark.parametrize("written", ["8100 00 00 00", "01 8000 00 00", "01 01 8000 00 00 00", "01 00 00 8000"])
def test_longer_uints_of_bare_are_noted(written: str) -> None:
    assert not decode(bytes.fromhex(written), BARE).canonical


@pytest.mark.parametrize("envelope", Envelope)
def test_routes_that_go_round(envelope: Envelope) -> None:
    """A route may name an address as often as it likes, up to the limit on hops."""
    round_trip = local("a", "b") * (MOST_HOPS // 2)
    routed = Routed(1 if envelope is BARE else None, round_trip, round_trip, b"x")
    assert decode(encode(routed, envelope), envelope) == routed
    longer = encode(Routed(routed.version, (*round_trip, *local("a")), (), b""), envelope)
    with pytest.raises(Malformed, match="the limit is 64"):
        decode(longer, envelope)


@pytest.mark.parametrize("envelope", Envelope)
def test_addresses_have_a_limit(envelope: Envelope) -> None:
    version = 1 if envelope is BARE else None
    fits = Routed(version, (Address(0, bytes(MOST_ADDRESS_BYTES)),), (), b"")
    assert decode(encode(fits, envelope), envelope) == fits
    larger = Routed(version, (Address(0, bytes(MOST_ADDRESS_BYTES + 1)),), (), b"")
    with pytest.raises(Malformed, match="the limit is 4096"):
        decode(encode(larger, envelope), envelope)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (Address(0, b"stream"), "0#stream"),
        (Address(1, b"127.0.0.1:4000"), "1#127.0.0.1:4000"),
        (Address(0, "поток".encode()), "0#поток"),
        (Address(0, b"\xff"), "0#\\xff"),
        # A text stands as it was sent, as names do, unless it reads like one with escapes.
        (Address(0, b"a\\b"), "0#a\\b"),
        (Address(0, b"C:\\"), "0#C:\\"),
        (Address(0, b"\\xff"), "0#\\\\xff"),
        (Address(0, b"a\\\\b"), "0#a\\\\\\\\b"),
        (Address(0, b"a\\\xff"), "0#a\\\\\\xff"),
    ],
)
def test_addresses_as_text(address: Address, text: str) -> None:
    assert address.text == text


@given(one=addresses, other=addresses)
def test_no_two_addresses_read_alike(one: Address, other: Address) -> None:
    assert (one == other) == (one.text == other.text)


def test_no_two_addresses_of_what_escapes_are_made_of_read_alike() -> None:
    values = [bytes(value) for size in range(6) for value in product(b"\\xf\xff", repeat=size)]
    assert len({Address(0, value).name for value in values}) == len(values)


def test_a_route_as_text() -> None:
    assert route_text(local("hop", "me")) == "0#hop=>0#me"
    assert route_text(()) == ""


@pytest.mark.parametrize(
    ("routed", "envelope"),
    [
        (Routed(3, (), (), b""), BARE),
        (Routed(None, (), (), b""), BARE),
        (Routed(1, (), (), b"", "trace"), BARE),
        (Routed(1, (Address(2**64, b""),), (), b""), BARE),
        (Routed(1, (), (), b""), CBOR),
        (Routed(None, (Address(2**64, b""),), (), b""), CBOR),
        (Routed(None, (Address(-1, b""),), (), b""), CBOR),
        (Routed(None, (), (), b"", "\ud800"), CBOR),
    ],
)
def test_what_can_not_be_written_is_our_misuse(routed: Routed, envelope: Envelope) -> None:
    with pytest.raises(EncodeError) as raised:
        encode(routed, envelope)
    assert pickle.loads(pickle.dumps(raised.value)).fields == raised.value.fields


def test_a_frame_has_a_length() -> None:
    assert frame(b"abc", BARE) == b"\0\x03abc"
    assert frame(b"abc", CBOR) == b"\0\0\0\x03abc"
    with pytest.raises(EncodeError, match="65536 bytes, the limit is 65535"):
        frame(bytes(65536), BARE)
