"""The vectorised twin gives what the readable decoder gives, or leaves the frame to it."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.compiled import arrow
from wirehouse_codecs.ockam.fast import loops
from wirehouse_codecs.ockam.fast.columns import FRAMES, decode_columns
from wirehouse_codecs.ockam.wire.bare import Malformed
from wirehouse_codecs.ockam.wire.messages import (
    PROTOCOLS,
    CreateRequest,
    CreateResponse,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
    Kind,
    Message,
    Names,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
    base_payload,
    decode_payload,
    encode_payload,
)
from wirehouse_codecs.ockam.wire.routed import MOST_HOPS, Address, Envelope, Routed, decode, encode, frame, local
from wirehouse_codecs.tcp.endpoints import Direction

C, S = Direction
BARE, CBOR = Envelope
MOST = 2**64 - 1
LIMIT = 1 << 24
HOT: set[type[Message]] = {PushRequest, PushResponse, PullRequest, PullResponse, IndexGet, IndexSave, IndexResponse}
uints = st.sampled_from([0, 1, 23, 24, 127, 128, 255, 256, 65536, 2**32, 2**63, MOST]) | st.integers(0, MOST)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
data = st.binary(max_size=40)
partitions = st.none() | uints
sent: st.SearchStrategy[tuple[Direction, Message]] = st.one_of(
    st.tuples(st.just(C), st.builds(PushRequest, uints, data)),
    st.tuples(st.just(C), st.builds(PullRequest, uints, uints, uints)),
    st.tuples(st.just(C), st.builds(IndexGet, texts, texts, partitions)),
    st.tuples(st.just(C), st.builds(IndexSave, texts, texts, uints, partitions)),
    st.tuples(st.just(C), st.builds(CreateRequest, st.none() | texts)),
    st.tuples(st.just(S), st.builds(PushResponse, uints, st.sampled_from(Status), uints)),
    st.tuples(
        st.just(S),
        st.builds(PullResponse, uints, st.lists(st.builds(StreamMessage, uints, data), max_size=4).map(tuple)),
    ),
    st.tuples(st.just(S), st.builds(IndexResponse, texts, texts, st.none() | uints, partitions)),
    st.tuples(st.just(S), st.builds(CreateResponse, texts)),
    st.tuples(st.just(S), st.builds(Error, texts)),
)
hops = st.builds(Address, st.integers(0, 200) | uints, texts.map(str.encode) | st.binary(max_size=6))
routes = st.lists(hops, max_size=3).map(tuple)


@st.composite
def frames(draw: st.DrawFn, envelope: Envelope, direction: Direction) -> bytes:
    """A frame of the envelope, of any message; a few are damaged."""
    side, message = draw(sent)
    payload = encode_payload(message, draw(st.sampled_from(Names)))
    if side is not direction and draw(st.booleans()):
        payload = draw(st.binary(max_size=30))
    context = draw(st.none() | texts)
    version = None if envelope is CBOR else 2 if context is not None or draw(st.booleans()) else 1
    written = bytearray(encode(Routed(version, draw(routes), draw(routes), payload, context), envelope))
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(written) - 1))
        written[at : at + draw(st.integers(0, 1))] = draw(st.binary(max_size=2))
    return frame(bytes(written), envelope) if written else b""


def readable(body: bytes, envelope: Envelope, direction: Direction) -> dict[str, Any] | None:
    """The frame's columns by the readable decoder; None = it says more than columns can, or there is no message."""
    try:
        routed = decode(body, envelope)
    except Malformed:
        return None
    decoded = decode_payload(routed.payload, direction)
    message = decoded.message
    if type(message) not in HOT or decoded.also or not (decoded.canonical and routed.canonical):
        return None
    assert message is not None
    values: dict[str, Any] = {field.name: getattr(message, field.name) for field in fields(message)}
    if "status" in values:
        values["status"] = str(values["status"])
    if "messages" in values:
        values["messages"] = [{"index": Decimal(one.index), "data": one.data} for one in values["messages"]]
    return (
        dict.fromkeys(FRAMES.names[2:])
        | {name: Decimal(value) if isinstance(value, int) else value for name, value in values.items()}
        | {
            "regular": True,
            "kind": str(message.kind),
            "protocol_name": decoded.protocol_name,
            "version": routed.version,
            "onward_route": [address.text for address in routed.onward_route],
            "return_route": [address.text for address in routed.return_route],
            "tracing_context": routed.tracing_context,
        }
    )


def odd(body: bytes, envelope: Envelope) -> bool:
    """Addresses that the fast path leaves to the reference decoder: also those with backslashes."""
    routed = decode(body, envelope)
    every = routed.onward_route + routed.return_route
    plain = (
        address.type < 1000 and address.name.encode() == address.value and b"\\" not in address.value
        for address in every
    )
    return not routed.onward_route or not all(plain)


def assert_alike(written: bytes, envelope: Envelope, direction: Direction) -> pa.RecordBatch:
    found = decode_columns(written, envelope, direction, LIMIT)
    for row in found.batch.to_pylist():
        body = written[row.pop("byte_start") + envelope.length_bytes : row.pop("byte_end")]
        expected = readable(body, envelope, direction)
        if row["regular"]:
            assert row == expected
        else:
            assert expected is None or odd(body, envelope)
            assert set(row.values()) == {None, False}
    return found.batch


@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("direction", Direction)
@settings(max_examples=120)
@given(drawn=st.data())
def test_frames_read_alike(envelope: Envelope, direction: Direction, drawn: st.DataObject) -> None:
    parts = drawn.draw(st.lists(frames(envelope, direction), max_size=5))
    assert len(assert_alike(b"".join(parts), envelope, direction)) == sum(map(bool, parts))


def hot(envelope: Envelope, direction: Direction) -> bytes:
    said: dict[Direction, list[Message]] = {
        C: [PushRequest(1, b"x"), PullRequest(1, 300, 10), IndexGet("c", "s"), IndexSave("c", "поток", 9, 3)],
        S: [
            PushResponse(1, Status.ERROR, 2),
            PullResponse(1, (StreamMessage(1, b"one"), StreamMessage(2, b""))),
            IndexResponse("c", "s", None, 7),
            IndexResponse("c", "s", 8),
        ],
    }
    version = 2 if envelope is BARE else None
    payloads = [encode_payload(message, names) for message in said[direction] for names in Names]
    messages = [Routed(version, local("поток", "b"), local("me"), payload, "trace") for payload in payloads]
    return b"".join(frame(encode(message, envelope), envelope) for message in messages)


@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("direction", Direction)
def test_the_frequent_messages_are_regular(envelope: Envelope, direction: Direction) -> None:
    batch = assert_alike(hot(envelope, direction), envelope, direction)
    assert batch.column("regular").to_pylist() == [True] * 8
    batch.validate(full=True)


@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("direction", Direction)
def test_any_byte_may_be_any_other(envelope: Envelope, direction: Direction) -> None:
    """Each byte of frequent messages is changed in turn, so that no check is missing where it matters."""
    written = hot(envelope, direction)
    bounds = decode_columns(written, envelope, direction, LIMIT).batch.column("byte_start").to_pylist()
    lengths = {at + i for at in bounds for i in range(envelope.length_bytes)}
    changed = []
    for at in range(len(written)):
        if at in lengths:
            continue
        begin = max(bound for bound in bounds if bound <= at)
        end = min([bound for bound in bounds if bound > at], default=len(written))
        for octet in {0, 1, 2, 0x5C, 0x7F, 0x80, 0xC1, 0xFF, written[at] ^ 1, written[at] ^ 0x80}:
            changed.append(written[begin:at] + bytes([octet]) + written[at + 1 : end])
    assert_alike(b"".join(changed), envelope, direction)


EDGES = ["", "00", "17", "18", "7f", "80", "8000", "8001", "ffff03", "ff8000", "80" * 9 + "01", "80" * 10 + "00"]
EDGES += ["ff" * 9 + last for last in ("", "00", "01", "02", "7f", "81")]


@pytest.mark.parametrize("written", EDGES)
def test_uints_are_read_alike(written: str) -> None:
    """As what is pushed, so that the length is one, and as the request's id."""
    inner = bytes.fromhex(written)
    for data in (inner + b"\x01x", b"\x01" + inner + b"x", b"\x01" + inner):
        assert_alike(frame(encode(Routed(1, local("s"), (), base_payload("stream_push", data)), BARE), BARE), BARE, C)
        assert_alike(frame(encode(Routed(1, local("s"), (), base_payload("stream_push", data)), BARE), BARE), BARE, S)


HEADS = ["", "17", "1817", "1818", "18ff", "1900ff", "190100", "1a0000ffff", "1a00010000", "1b00000000ffffffff"]
HEADS += ["1b0000000100000000", "1b" + "ff" * 8, "1bffff", "1c", "1f"]


@pytest.mark.parametrize("major", [0, 2, 4])
@pytest.mark.parametrize("head", HEADS)
def test_heads_of_cbor_are_read_alike(head: str, major: int) -> None:
    """As the type of an address, the length of one, and the number of hops."""
    octets = bytes.fromhex(head)
    octets = bytes([octets[0] | major << 5]) + octets[1:] if octets else octets
    payload = encode_payload(PushRequest(1, bytes(300)))
    whole = encode(Routed(None, local("s"), (), payload), CBOR)
    for body in (
        b"\x83\x81\x82" + octets + b"\x41s\x80" + whole[7:-1],
        b"\x83\x81\x82\0" + octets + bytes(300) + b"\x80" + whole[7:-1],
        b"\x83" + octets + b"\x82\0\x41s" * 30 + b"\x80" + whole[7:-1],
        b"\x83\x81\x82\0\x41s\x80" + octets + payload,
    ):
        assert_alike(frame(body, CBOR), CBOR, C)


@pytest.mark.parametrize("envelope", Envelope)
def test_frames_are_cut_up_to_what_is_none(envelope: Envelope) -> None:
    whole = hot(envelope, C)
    for left, stopped in ((b"", False), (whole[:5], False), (bytes(4), True), (b"\xff" * 8, True)):
        found = decode_columns(whole + left, envelope, C, 1000)
        assert (found.end, found.stopped, found.batch.num_rows) == (len(whole), stopped, 8)
    for end in range(len(whole)):
        found = decode_columns(whole[:end], envelope, C, LIMIT)
        assert found.end <= end
        assert not found.stopped


def test_an_empty_capture_has_no_frames() -> None:
    batch = decode_columns(b"", BARE, C, LIMIT).batch
    assert (batch.num_rows, batch.schema) == (0, FRAMES)


@pytest.mark.parametrize("announced", [2**31, 2**32 - 1, 2**63, MOST])
def test_announced_lengths_and_counts_reserve_nothing(announced: int) -> None:
    number = bytearray()
    while announced >= 0x80:
        number.append(announced & 0x7F | 0x80)
        announced >>= 7
    number.append(announced)
    for inner, direction in ((b"\x01" + number, S), (b"\x01" + number, C), (number, C)):
        for protocol in ("stream_pull", "stream_push", "stream_index"):
            assert_alike(
                frame(encode(Routed(1, local("s"), (), base_payload(protocol, bytes(inner) + b"\0\0")), BARE), BARE),
                BARE,
                direction,
            )
    for body in (b"\x01" + number, b"\x01\x01\x00" + number, b"\x01\x01\x00\x01s\x00" + number):
        assert_alike(frame(bytes(body) + bytes(9), BARE), BARE, C)


def test_routes_up_to_the_limit_are_regular() -> None:
    for hop_count, regular in ((MOST_HOPS, True), (MOST_HOPS + 1, False)):
        routed = Routed(
            1, local(*"ab" * (hop_count // 2), *"c" * (hop_count % 2)), (), encode_payload(PushRequest(1, b""))
        )
        (row,) = decode_columns(frame(encode(routed, BARE), BARE), BARE, C, LIMIT).batch.column("regular").to_pylist()
        assert row is regular


def test_kinds_and_protocols_are_numbered_alike() -> None:
    kinds, protocols = list(Kind), list(PROTOCOLS)
    batch = pa.Table.from_batches([decode_columns(hot(BARE, side), BARE, side, LIMIT).batch for side in Direction])
    assert set(batch.column("kind").to_pylist()) <= set(map(str, kinds))
    assert {str(message.kind) for message in HOT} == set(batch.column("kind").to_pylist())
    assert set(batch.column("protocol_name").to_pylist()) == set(protocols[1:5])


def test_too_much_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="11 bytes at once, at most 10"):
        decode_columns(bytes(11), BARE, C, LIMIT)


@given(octets=st.binary(max_size=8) | texts.map(str.encode))
def test_text_is_told_as_python_tells_it(octets: bytes) -> None:
    try:
        octets.decode()
        text = True
    except UnicodeDecodeError:
        text = False
    held = arrow.frozen(np.frombuffer(octets, np.uint8))
    assert loops.is_text(held, 0, len(octets), False) == text
    assert loops.is_text(held, 0, len(octets), True) == (text and b"\\" not in octets)
