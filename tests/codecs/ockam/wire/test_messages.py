"""Messages of the stream service: vectors of the references, verdicts on broken input, and what is written is read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.ockam.wire import bare
from wirehouse_codecs.ockam.wire.bare import UINT
from wirehouse_codecs.ockam.wire.messages import (
    PROTOCOLS,
    UNKNOWN_PROTOCOL,
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    Decoded,
    EncodeError,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
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
from wirehouse_codecs.ockam.wire.routed import Envelope, decode
from wirehouse_codecs.tcp.endpoints import Direction

VECTORS = Path(__file__).parents[3] / "vectors" / "ockam"
C, S = Direction
MOST = 2**64 - 1
uints = st.integers(0, MOST) | st.integers(0, 300)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
data = st.binary(max_size=40)
partitions = st.none() | uints
requests: st.SearchStrategy[Message] = st.one_of(
    st.builds(CreateRequest, st.none() | texts),
    st.builds(CreatePartitionedRequest, st.none() | texts, uints),
    st.builds(PushRequest, uints, data),
    st.builds(PullRequest, uints, uints, uints),
    st.builds(IndexGet, texts, texts, partitions),
    st.builds(IndexSave, texts, texts, uints, partitions),
)
responses: st.SearchStrategy[Message] = st.one_of(
    st.builds(CreateResponse, texts, data),
    st.builds(CreatePartitionedResponse, texts, uints, data),
    st.builds(PushResponse, uints, st.sampled_from(Status), uints),
    st.builds(PullResponse, uints, st.lists(st.builds(StreamMessage, uints, data), max_size=4).map(tuple)),
    st.builds(IndexResponse, texts, texts, st.none() | uints, partitions),
    st.builds(Error, texts),
)
sent = st.tuples(st.just(C), requests) | st.tuples(st.just(S), responses)

#: Classes of the vectors' types, and the direction.
TYPES: dict[str, type[Message]] = {
    "create_req": CreateRequest,
    "create_rsp": CreateResponse,
    "pcreate_req": CreatePartitionedRequest,
    "pcreate_rsp": CreatePartitionedResponse,
    "push_req": PushRequest,
    "push_rsp": PushResponse,
    "pull_req": PullRequest,
    "pull_rsp": PullResponse,
    "index_get": IndexGet,
    "index_save": IndexSave,
    "index_rsp": IndexResponse,
    "pindex_get": IndexGet,
    "pindex_save": IndexSave,
    "pindex_rsp": IndexResponse,
    "error_rsp": Error,
}
#: Protocols whose data the verdicts are about.
VERDICTS = {
    "pull_req": ("stream_pull", C),
    "pull_rsp": ("stream_pull", S),
    "create_req": ("stream_create", C),
    "push_rsp": ("stream_push", S),
}
#: A uint or tag that is longer than needed: we take and note it, the strict reading doesn't.
NOTED = {"x00", "x26"}


def vectors(name: str) -> list[Any]:
    lines = (VECTORS / f"{name}.jsonl").read_text().splitlines()
    return [pytest.param(line, id=line["id"]) for line in map(json.loads, lines)]


def message_of(vector: dict[str, Any]) -> Message:
    fields = dict(vector["fields"])
    if "data" in fields:
        fields["data"] = bytes.fromhex(fields["data"])
    if "messages" in fields:
        fields["messages"] = tuple(StreamMessage(m["index"], bytes.fromhex(m["data"])) for m in fields["messages"])
    if "status" in fields:
        fields["status"] = Status(fields["status"])
    return TYPES[vector["type"]](**fields)


@pytest.mark.parametrize("vector", vectors("vectors"))
def test_vectors(vector: dict[str, Any]) -> None:
    message, written = message_of(vector), bytes.fromhex(vector["hex"])
    names = Names.SPECIFICATION if vector["names"] == "spec" else Names.IMPLEMENTATION
    decoded = decode_payload(written, C if vector["direction"] == "request" else S)
    assert message in (decoded.message, decoded.also)
    assert (decoded.protocol_name, decoded.canonical, decoded.reason) == (vector["protocol"], True, "")
    assert encode_payload(message, names) == written


@pytest.mark.parametrize("vector", vectors("decode_verdicts"))
def test_verdicts(vector: dict[str, Any]) -> None:
    written, kind = bytes.fromhex(vector["hex"]), vector["type"]
    canonical = True
    try:
        if kind == "routed":
            decode(written, Envelope.BARE16)
            taken = True
        elif kind == "base":
            decoded = decode_payload(written, C)
            taken = decoded.reason == UNKNOWN_PROTOCOL
        elif kind in VERDICTS:
            protocol, direction = VERDICTS[kind]
            decoded = decode_payload(base_payload(protocol, written), direction)
            taken, canonical = decoded.message is not None, decoded.canonical
        else:
            # The verdict is about the plain schema alone; under the shared name the one for partitions is tried too.
            schema = PROTOCOLS["stream_index"][C if kind == "index_req" else S][0]
            cursor = bare.Cursor(written)
            schema.read(cursor, kind)
            cursor.finish()
            taken, canonical = True, cursor.canonical
    except bare.Malformed:
        taken = False
    assert taken == (vector["strict"] == "accept" or vector["id"] in NOTED), vector["what"]
    assert canonical == (vector["id"] not in NOTED)


@settings(max_examples=60)
@given(sent=sent, names=st.sampled_from(Names))
def test_what_is_written_is_read(sent: tuple[Direction, Message], names: Names) -> None:
    direction, message = sent
    payload = encode_payload(message, names)
    decoded = decode_payload(payload, direction)
    assert message in (decoded.message, decoded.also)
    assert decoded.canonical
    for end in range(len(payload)):
        assert decode_payload(payload[:end], direction).message is None
    assert decode_payload(payload + b"\0", direction).message is None


@given(payload=st.binary(max_size=60), direction=st.sampled_from(Direction))
def test_any_bytes_are_a_message_or_have_a_reason(payload: bytes, direction: Direction) -> None:
    decoded = decode_payload(payload, direction)
    assert (decoded.message is None) == bool(decoded.reason)


@given(protocol=st.sampled_from(sorted(PROTOCOLS)), inner=st.binary(max_size=40), direction=st.sampled_from(Direction))
def test_what_is_read_is_written_again(protocol: str, inner: bytes, direction: Direction) -> None:
    payload = base_payload(protocol, inner)
    decoded = decode_payload(payload, direction)
    if decoded.message is not None and decoded.canonical:
        messages = [message for message in (decoded.message, decoded.also) if message is not None]
        assert payload in [encode_payload(message, names) for message in messages for names in Names]


def test_the_example_of_the_encoding() -> None:
    written = bytes.fromhex("0b73747265616d5f7075736805ac02026869")
    assert encode_payload(PushRequest(300, b"hi")) == written
    assert decode_payload(written, C) == Decoded(PushRequest(300, b"hi"), "stream_push")


def test_two_readings_of_a_response_are_both_told() -> None:
    payload = base_payload("stream_index", b"\x01c\x01s\x01\x00")
    decoded = decode_payload(payload, S)
    assert decoded.message == IndexResponse("c", "s", 0)
    assert decoded.also == IndexResponse("c", "s", None, partition=1)
    real = base_payload("stream_index_partitioned", b"\x01c\x01s\x01\x00")
    assert decode_payload(real, S) == Decoded(decoded.also, "stream_index_partitioned")


@given(key=st.tuples(texts, texts), index=st.none() | uints, partition=partitions)
def test_no_other_response_has_two_readings(key: tuple[str, str], index: int | None, partition: int | None) -> None:
    message = IndexResponse(*key, index, partition)
    decoded = decode_payload(encode_payload(message, Names.SPECIFICATION), S)
    assert (decoded.also is not None) == ((index, partition) in ((0, None), (None, 1)))


@given(request=requests)
def test_a_request_has_one_reading(request: Message) -> None:
    assert decode_payload(encode_payload(request, Names.SPECIFICATION), C).message == request


@pytest.mark.parametrize("protocol", ["stream_create", "stream_create_partitions", "stream_create_partitioned"])
def test_bytes_after_init_are_kept(protocol: str) -> None:
    inner = b"\x01s" + (b"" if protocol == "stream_create" else b"\x05")
    message = decode_payload(base_payload(protocol, inner + b"more"), S).message
    assert isinstance(message, CreateResponse | CreatePartitionedResponse)
    assert message.extra == b"more"


@pytest.mark.parametrize(
    ("payload", "direction", "protocol", "reason"),
    [
        (base_payload("binary", b"x"), C, "binary", UNKNOWN_PROTOCOL),
        (base_payload("error", b"\x01x"), C, "error", "the protocol has no requests"),
        (base_payload("stream_pull", b"\x01\x02"), C, "stream_pull", "limit at byte 15: the uint is cut"),
        (
            base_payload("stream_push", b"\x01\x02\x00"),
            S,
            "stream_push",
            "status at byte 14: 2 is none of its 2 values",
        ),
        (b"\x0bstream_push", C, "stream_push", "data at byte 12: the uint is cut"),
        (b"\x0bstream_push\x00\x00", C, "stream_push", "end at byte 13: 1 bytes are left over"),
        (b"\x05hel", C, None, "protocol at byte 1: 5 bytes announced, 3 are left"),
        (b"", C, None, "protocol at byte 0: the uint is cut"),
    ],
)
def test_reasons(payload: bytes, direction: Direction, protocol: str | None, reason: str) -> None:
    decoded = decode_payload(payload, direction)
    assert (decoded.message, decoded.protocol_name, decoded.reason) == (None, protocol, reason)


@pytest.mark.parametrize("count", [2**32 - 1, 2**63, MOST])
def test_announced_counts_reserve_nothing(count: int) -> None:
    payload = base_payload("stream_pull", b"\x01" + bare.encode(UINT, count) + b"\x00\x00")
    assert decode_payload(payload, S).message is None


@pytest.mark.parametrize("where", ["outer", "inner"])
def test_a_longer_uint_anywhere_is_noted(where: str) -> None:
    payload = base_payload("stream_pull", b"\x01\x02\x83\x00" if where == "inner" else b"\x01\x02\x03")
    if where == "outer":
        payload = b"\x8b\x00" + payload[1:]
    decoded = decode_payload(payload, C)
    assert (decoded.message, decoded.canonical) == (PullRequest(1, 2, 3), False)


@pytest.mark.parametrize(
    "message",
    [PullRequest(1, 2, 2**64), PushRequest(-1, b""), CreateRequest("\ud800"), PushRequest(1, "text")],  # type: ignore[arg-type]
)
def test_a_value_that_can_not_be_written_is_our_misuse(message: Message) -> None:
    with pytest.raises(EncodeError) as raised:
        encode_payload(message)
    assert pickle.loads(pickle.dumps(raised.value)).fields["kind"] == message.kind
