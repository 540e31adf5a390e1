"""Where a message may begin: what the compiled loops say of a header is what the readable decoder makes of it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.ockam.wire.bare import Malformed
from wirehouse_codecs.ockam.wire.resync import HEADER_BYTES, MOST_CREDIBLE_HOPS, find, first_lost, look
from wirehouse_codecs.ockam.wire.routed import Address, Envelope, Routed, decode, encode, frame, local

BARE, CBOR = Envelope
MOST = 2**64 - 1
addresses = st.builds(Address, st.sampled_from([0, 1, 23, 24, 127, 128, 2**63, MOST]), st.binary(max_size=30))
routes = st.lists(addresses, max_size=4).map(tuple)
payloads = st.binary(max_size=300)
contexts = st.none() | st.just("context")


@st.composite
def frames(draw: st.DrawFn) -> tuple[Envelope, bytes]:
    envelope = draw(st.sampled_from(Envelope))
    version = None if envelope is CBOR else draw(st.sampled_from([1, 2]))
    context = None if version == 1 else draw(contexts)
    routed = Routed(version, draw(routes), draw(routes), draw(payloads), context)
    return envelope, frame(encode(routed, envelope), envelope)


def limit(envelope: Envelope) -> int:
    return envelope.max_message_bytes


@given(given=frames(), searching=st.booleans())
def test_a_frame_is_one_from_its_header_on(given: tuple[Envelope, bytes], searching: bool) -> None:
    envelope, data = given
    seen = [look(data[:end], 0, envelope, limit(envelope), searching=searching) for end in range(len(data) + 1)]
    waits = [one.end == 0 for one in seen]
    assert waits == sorted(waits, reverse=True)
    assert {one.end for one in seen} == {0, len(data)}
    assert all(one.needed > end for end, one in enumerate(seen) if not one.end)


@settings(max_examples=300)
@given(given=frames(), at=st.integers(0, 60), put=st.binary(min_size=1, max_size=3), more=st.binary(max_size=2))
def test_what_has_no_header_is_no_message(given: tuple[Envelope, bytes], at: int, put: bytes, more: bytes) -> None:
    envelope, data = given
    width = envelope.length_bytes
    body = bytearray(data[width:])
    body[at : at + len(put)] = put
    damaged = frame(bytes(body) + more, envelope)
    said = [look(damaged[:end], 0, envelope, limit(envelope), searching=False) for end in range(len(damaged) + 1)]
    # What is said once is said with more bytes too.
    told = [one for one in said if not one.needed]
    assert len(set(told)) == 1
    wrong = broken(damaged, envelope)
    assert told[0].end == len(damaged) or wrong is not None
    # Of what follows the payload a header says nothing.
    assert not told[0].end or wrong in (None, "tracing_context", "end")


def broken(data: bytes, envelope: Envelope) -> str | None:
    """The field that the readable decoder can't read."""
    try:
        decode(data, envelope, envelope.length_bytes)
    except Malformed as malformed:
        return malformed.name
    return None


@pytest.mark.parametrize("envelope", Envelope)
def test_a_header_above_the_bounds_of_the_decoder_fits_where_its_length_led(envelope: Envelope) -> None:
    version = 1 if envelope is BARE else None
    for route, fits in (
        (local("a" * 5_000), True),
        (local(*["a"] * MOST_CREDIBLE_HOPS), True),
        (local(*["a"] * (MOST_CREDIBLE_HOPS + 1)), False),
    ):
        data = frame(encode(Routed(version, (), route, b""), envelope), envelope)
        assert (look(data, 0, envelope, limit(envelope), searching=False).end > 0) is fits
        assert look(data, 0, envelope, limit(envelope), searching=True) == (0, 0)
    short = frame(encode(Routed(version, (), local("a" * (HEADER_BYTES - 20)), bytes(999)), envelope), envelope)
    assert look(short, 0, envelope, limit(envelope), searching=True).end == len(short)


@pytest.mark.parametrize("envelope", Envelope)
def test_the_first_of_several_that_is_none(envelope: Envelope) -> None:
    version = 1 if envelope is BARE else None
    good = frame(encode(Routed(version, local("a"), (), b"payload"), envelope), envelope)
    bad = frame(b"junk", envelope)
    for parts, lost in (
        ([good, good], 3),
        ([good, bad, good], 1),
        ([bad], 0),
        ([good, good, bad[:-1]], 2),
        ([good, good[:-1]], 2),
    ):
        data = np.frombuffer(b"".join(parts), np.uint8)
        data.setflags(write=False)
        whole = [0, *np.cumsum([len(part) for part in parts if part in (good, bad)]).tolist()]
        assert first_lost(data, np.array(whole, np.int64), len(data), envelope, limit(envelope)) == lost


@pytest.mark.parametrize("data", [b"\x01", b"\x02\x40", b"\x02\x02\x00", b"\x84\x98\x40", b"\xff\xff\x01\x01\x00\x7f"])
def test_hostile_bytes_are_looked_through(data: bytes) -> None:
    limits = {envelope: limit(envelope) for envelope in Envelope}
    size = 300_000
    find(data, 0, limits, -1, final=True)
    began = time.perf_counter()
    found = find(data * (size // len(data)), 0, limits, -1, final=True)
    # At the end a row may be cut.
    assert found.offset > size - 1_000
    # It takes a hundredth.
    assert time.perf_counter() - began < 3
