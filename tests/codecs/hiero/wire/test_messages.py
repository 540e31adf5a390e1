"""Messages: every version's bytes as the published schemas have them, codes by version, hostile bytes, lost paths."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.hiero.profiles import (
    A0,
    A_PRIME,
    B0,
    B1,
    B2,
    NEW_PACKAGE,
    NODE_ERRORS,
    OLD_PACKAGE,
    PROFILES,
    A,
    B,
    Method,
    Profile,
    Service,
    method_of,
    profile_of,
)
from wirehouse_codecs.hiero.wire import protobuf
from wirehouse_codecs.hiero.wire.items.kinds import encode_item
from wirehouse_codecs.hiero.wire.messages import (
    KINDS,
    Acknowledgement,
    BlockEnd,
    BlockItems,
    EncodeError,
    EndOfStream,
    ItemAcknowledgement,
    Message,
    NodeBehind,
    PublisherEndStream,
    ResendBlock,
    ServerStatus,
    ServerStatusRequest,
    Shape,
    SkipBlock,
    SubscribeRequest,
    SubscribeStatus,
    Unread,
    Unset,
    code_name,
    decode,
    encode,
    shape_of,
)
from wirehouse_codecs.tcp.endpoints import Direction

CLIENT, SERVER = Direction.CLIENT, Direction.SERVER
PUBLISH, SUBSCRIBE, STATUS = Service.PUBLISH, Service.SUBSCRIBE, Service.STATUS
NAMES = list(PROFILES)
CALLS = [(service, direction) for service in (PUBLISH, SUBSCRIBE, STATUS) for direction in (CLIENT, SERVER)]

u64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1])
codes = st.integers(1, 9) | st.integers(-(2**31), 2**31 - 1).filter(bool)
hashes = st.none() | st.binary(min_size=1, max_size=48)
items = st.lists(st.builds(encode_item, st.integers(1, 30), st.binary(max_size=9)), min_size=1, max_size=3)


#: Messages whose first field is one.
old_versions = st.builds(lambda value: b"\x0a" + bytes([len(value)]) + value, st.binary(max_size=3))


def messages(profile: Profile, service: Service, direction: Direction) -> st.SearchStrategy[Message]:
    """Any message that the side sends in the call."""
    sets = items.map(lambda entries: BlockItems(b"".join(entries[: 1 if profile.one_item else None])))
    ends = st.builds(BlockEnd, u64)
    match service, direction:
        case Service.PUBLISH, Direction.CLIENT:
            publisher = st.builds(PublisherEndStream, codes, u64, u64)
            return sets if profile.one_item else st.one_of(sets, publisher, *([ends] if profile.new else []))
        case Service.PUBLISH, _:
            return st.one_of(responses(profile))
        case Service.SUBSCRIBE, Direction.CLIENT:
            return st.builds(SubscribeRequest, u64, u64, st.none() if profile.new else st.booleans())
        case Service.SUBSCRIBE, _:
            return st.one_of(sets, st.builds(SubscribeStatus, codes), *([ends] if profile.new else []))
        case Service.STATUS, Direction.CLIENT:
            return st.just(ServerStatusRequest())
    version, next_block = (st.none(), u64) if profile.new else (st.none() | old_versions, st.none())
    return st.builds(ServerStatus, u64, u64, st.booleans(), version, next_block)


def responses(profile: Profile) -> list[st.SearchStrategy[Message]]:
    has = profile.acknowledgement_fields
    newest = profile is B
    found: list[st.SearchStrategy[Message]] = [
        st.builds(Acknowledgement, u64, hashes if has > 1 else st.none(), st.booleans() if has > 2 else st.none()),
        st.builds(EndOfStream, codes, u64, st.none() | u64 if newest else st.none()),
        st.builds(SkipBlock, u64),
        st.builds(ResendBlock, u64),
    ]
    if profile.nested_acknowledgement:
        found.append(st.builds(ItemAcknowledgement, st.binary(max_size=48)))
    return [*found, st.builds(NodeBehind, u64)] if profile.new else found


# As the published schemas have them


def schema(package: str, *lines: str) -> Any:
    """Messages `Name: number type field, …` of one package; a type is uint64, bytes, bool, int32 or a message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "uint64": kinds.TYPE_UINT64,
        "bytes": kinds.TYPE_BYTES,
        "bool": kinds.TYPE_BOOL,
        "int32": kinds.TYPE_INT32,
    }
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package=package, syntax="proto3")
    for line in lines:
        name, _, listed = line.partition(":")
        message = file.message_type.add(name=name)
        oneof = (
            name.endswith(("Request", "Response", "Acks")) and "Status" not in name and name != "SubscribeStreamRequest"
        )
        if oneof:
            message.oneof_decl.add(name="one")
        for entry in listed.split(","):
            number, kind, field_name = entry.split()
            field = message.field.add(name=field_name, number=int(number), label=kinds.LABEL_OPTIONAL)
            field.type = scalars.get(kind, kinds.TYPE_MESSAGE)
            if field.type == kinds.TYPE_MESSAGE:
                field.type_name = f".{package}.{kind}"
            if oneof:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


OLD = schema(
    OLD_PACKAGE,
    "End: 1 int32 code, 2 uint64 earliest, 3 uint64 latest",
    "PublishStreamRequest: 1 bytes block_items, 2 End status",
    "BlockAck: 1 uint64 block_number, 2 bytes block_root_hash, 3 bool block_already_exists",
    "ItemAck: 1 bytes items_hash",
    "Acks: 1 BlockAck block_ack, 2 ItemAck item_ack",
    "EndOfStream: 1 int32 status, 2 uint64 block_number",
    "Numbered: 2 uint64 block_number",
    "PublishStreamResponse: 1 Acks acknowledgement, 2 EndOfStream status, 3 Numbered skip_block,"
    "4 Numbered resend_block",
    "SubscribeStreamRequest: 1 uint64 start, 2 uint64 end, 3 bool allow_unverified",
    "SubscribeStreamResponse: 1 int32 status, 2 bytes block_items",
    "ServerStatusResponse: 1 uint64 first, 2 uint64 last, 3 bool only_latest_state, 4 bytes version",
)
NEW = schema(
    NEW_PACKAGE,
    "End: 1 int32 code, 2 uint64 earliest, 3 uint64 latest",
    "Numbered: 1 uint64 block_number",
    "PublishStreamRequest: 1 bytes block_items, 2 End end_stream, 3 Numbered end_of_block",
    "EndOfStream: 1 int32 status, 2 uint64 block_number, 3 uint64 proximate_block_number",
    "PublishStreamResponse: 1 Numbered acknowledgement, 2 EndOfStream end_stream, 3 Numbered skip_block,"
    "4 Numbered resend_block, 5 Numbered node_behind_publisher",
    "SubscribeStreamRequest: 1 uint64 start, 2 uint64 end",
    "SubscribeStreamResponse: 1 int32 status, 2 bytes block_items, 3 Numbered end_of_block",
    "ServerStatusResponse: 1 uint64 first, 2 uint64 last, 3 bool only_latest_state, 4 uint64 next_expected_block",
)
SET = encode_item(3, b"\x08\x05")
AS_PUBLISHED = [
    (A, PUBLISH, CLIENT, BlockItems(SET), OLD("PublishStreamRequest")(block_items=SET)),
    (
        A,
        PUBLISH,
        CLIENT,
        PublisherEndStream(4, 126, 128),
        OLD("PublishStreamRequest")(status={"code": 4, "earliest": 126, "latest": 128}),
    ),
    (
        A,
        PUBLISH,
        SERVER,
        Acknowledgement(120, b"h" * 48, True),
        OLD("PublishStreamResponse")(
            acknowledgement={
                "block_ack": {"block_number": 120, "block_root_hash": b"h" * 48, "block_already_exists": True}
            }
        ),
    ),
    (
        A,
        PUBLISH,
        SERVER,
        ItemAcknowledgement(b"h"),
        OLD("PublishStreamResponse")(acknowledgement={"item_ack": {"items_hash": b"h"}}),
    ),
    (
        A,
        PUBLISH,
        SERVER,
        EndOfStream(5, 2**64 - 1),
        OLD("PublishStreamResponse")(status={"status": 5, "block_number": 2**64 - 1}),
    ),
    (A_PRIME, PUBLISH, SERVER, SkipBlock(7), OLD("PublishStreamResponse")(skip_block={"block_number": 7})),
    (A_PRIME, PUBLISH, SERVER, ResendBlock(7), OLD("PublishStreamResponse")(resend_block={"block_number": 7})),
    (A, SUBSCRIBE, CLIENT, SubscribeRequest(5, 0, True), OLD("SubscribeStreamRequest")(start=5, allow_unverified=True)),
    (A, SUBSCRIBE, SERVER, SubscribeStatus(2), OLD("SubscribeStreamResponse")(status=2)),
    (A, SUBSCRIBE, SERVER, BlockItems(SET), OLD("SubscribeStreamResponse")(block_items=SET)),
    (
        A,
        STATUS,
        SERVER,
        ServerStatus(1, 9, True, b"\x0a\x02\x08\x01"),
        OLD("ServerStatusResponse")(first=1, last=9, only_latest_state=True, version=b"\x0a\x02\x08\x01"),
    ),
    (B, PUBLISH, CLIENT, BlockItems(SET), NEW("PublishStreamRequest")(block_items=SET)),
    (B, PUBLISH, CLIENT, BlockEnd(9), NEW("PublishStreamRequest")(end_of_block={"block_number": 9})),
    (
        B,
        PUBLISH,
        CLIENT,
        PublisherEndStream(1, 0, 5),
        NEW("PublishStreamRequest")(end_stream={"code": 1, "latest": 5}),
    ),
    (B, PUBLISH, SERVER, Acknowledgement(9), NEW("PublishStreamResponse")(acknowledgement={"block_number": 9})),
    (
        B,
        PUBLISH,
        SERVER,
        EndOfStream(5, 8, 7),
        NEW("PublishStreamResponse")(end_stream={"status": 5, "block_number": 8, "proximate_block_number": 7}),
    ),
    (B, PUBLISH, SERVER, SkipBlock(0), NEW("PublishStreamResponse")(skip_block={})),
    (B, PUBLISH, SERVER, ResendBlock(3), NEW("PublishStreamResponse")(resend_block={"block_number": 3})),
    (B, PUBLISH, SERVER, NodeBehind(3), NEW("PublishStreamResponse")(node_behind_publisher={"block_number": 3})),
    (B, SUBSCRIBE, CLIENT, SubscribeRequest(5, 2**64 - 1), NEW("SubscribeStreamRequest")(start=5, end=2**64 - 1)),
    (B, SUBSCRIBE, SERVER, SubscribeStatus(6), NEW("SubscribeStreamResponse")(status=6)),
    (B, SUBSCRIBE, SERVER, BlockEnd(6), NEW("SubscribeStreamResponse")(end_of_block={"block_number": 6})),
    (
        B,
        STATUS,
        SERVER,
        ServerStatus(1, 9, False, None, 10),
        NEW("ServerStatusResponse")(first=1, last=9, next_expected_block=10),
    ),
]


@pytest.mark.parametrize(("profile", "service", "direction", "message", "published"), AS_PUBLISHED)
def test_bytes_are_those_of_the_published_schema(
    profile: Profile, service: Service, direction: Direction, message: Message, published: Any
) -> None:
    data = published.SerializeToString(deterministic=True)
    assert encode(message, service, direction, profile) == data
    decoded = decode(data, service, direction, profile)
    assert (decoded.message, decoded.unknown_fields, decoded.rule) == (message, 0, None)


def test_a_message_of_one_item_has_the_bytes_of_a_set_of_one() -> None:
    assert encode(BlockItems(SET), PUBLISH, CLIENT, A0) == SET
    assert decode(SET, PUBLISH, CLIENT, A0).message == BlockItems(SET)
    assert decode(b"\x12" + SET[1:], SUBSCRIBE, SERVER, A0).message == BlockItems(SET)
    with pytest.raises(EncodeError, match="exactly one item"):
        encode(BlockItems(SET + SET), PUBLISH, CLIENT, A0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("service", "direction"), CALLS)
@settings(max_examples=8)
@given(data=st.data())
def test_every_message_comes_back(name: str, service: Service, direction: Direction, data: st.DataObject) -> None:
    profile = PROFILES[name]
    message = data.draw(messages(profile, service, direction))
    written = encode(message, service, direction, profile)
    decoded = decode(written, service, direction, profile)
    assert (decoded.message, decoded.unknown_fields, decoded.rule) == (message, 0, None)
    junk = decode(written + b"\x98\x06\x01", service, direction, profile)
    assert (junk.message, junk.unknown_fields) == (message, 1)
    for cut in range(len(written)):
        short = decode(written[:cut], service, direction, profile)
        assert short.message != message or short.message == decode(b"", service, direction, profile).message
        assert (short.message is None) == (short.rule is not None and short.rule.name == "malformed_message")


@pytest.mark.parametrize(("service", "direction"), CALLS)
@settings(max_examples=25)
@given(data=st.binary(max_size=40), name=st.sampled_from(NAMES))
def test_any_bytes_give_a_message_or_a_rule(service: Service, direction: Direction, data: bytes, name: str) -> None:
    decoded = decode(data, service, direction, PROFILES[name])
    assert (decoded.message is None) <= (decoded.rule is not None)
    assert (decoded.rule is None) == (decoded.reason == "")
    assert isinstance(shape_of(data, direction), Shape)


def test_a_malformed_message_says_where_and_why() -> None:
    decoded = decode(b"\x0a\x05abc", PUBLISH, CLIENT, B)
    assert decoded.message is None
    assert decoded.rule is not None
    assert decoded.rule.id == "hiero.malformed_message"
    assert (decoded.reason, decoded.at) == ("at byte 0: field 1 needs 5 bytes, 3 are left", 0)


def test_deep_nesting_is_never_followed() -> None:
    data = b""
    for _ in range(2000):
        data = protobuf.delimited(1, data)
    assert isinstance(decode(data, PUBLISH, CLIENT, B).message, BlockItems)
    decoded = decode(data, PUBLISH, SERVER, A)
    assert decoded.message == Acknowledgement(block_already_exists=False)
    assert decoded.unknown_fields == 1


def test_of_several_members_the_last_counts_and_parts_are_merged() -> None:
    ack, behind = encode(Acknowledgement(7), PUBLISH, SERVER, B), encode(NodeBehind(6), PUBLISH, SERVER, B)
    assert decode(ack + behind, PUBLISH, SERVER, B).message == NodeBehind(6)
    assert decode(behind + ack, PUBLISH, SERVER, B).message == Acknowledgement(7)
    halves = protobuf.delimited(2, b"\x08\x05") + protobuf.delimited(2, b"\x10\x09")
    assert decode(halves, PUBLISH, SERVER, B).message == EndOfStream(5, 9)
    sets = protobuf.delimited(1, SET) + protobuf.delimited(1, SET)
    assert decode(sets, PUBLISH, CLIENT, B).message == BlockItems(SET + SET)


def test_nothing_known_is_unset_and_unread_methods_are_kept() -> None:
    assert decode(b"", PUBLISH, SERVER, B).message == Unset()
    assert encode(Unset(), PUBLISH, SERVER, B) == b""
    assert decode(b"", STATUS, CLIENT, B).message == ServerStatusRequest()
    assert decode(b"\xff", Service.OTHER, SERVER, B).message == Unread(b"\xff")
    assert encode(Unread(b"\xff"), Service.OTHER, SERVER, B) == b"\xff"


def test_members_that_a_version_lacks_are_read_within_their_package() -> None:
    data = encode(NodeBehind(6), PUBLISH, SERVER, B)
    for profile in (B0, B1, B2):
        assert decode(data, PUBLISH, SERVER, profile).message == NodeBehind(6)
    decoded = decode(data, PUBLISH, SERVER, A)
    assert (decoded.message, decoded.unknown_fields) == (Unset(), 1)
    skip = encode(SkipBlock(6), PUBLISH, SERVER, A_PRIME)
    assert decode(skip, PUBLISH, SERVER, A).message == SkipBlock(6)
    assert decode(skip, PUBLISH, SERVER, B).message == SkipBlock(0)


def test_acknowledgements_of_both_generations_are_not_compatible() -> None:
    flat, nested = (encode(Acknowledgement(7), PUBLISH, SERVER, profile) for profile in (B, B0))
    assert flat != nested
    assert decode(flat, PUBLISH, SERVER, A).message == Unset()
    assert decode(nested, PUBLISH, SERVER, B) == decode(b"\x0a\x02\x0a\x00", PUBLISH, SERVER, B)


# Codes


@pytest.mark.parametrize("message", [PublisherEndStream(0, 1, 2), EndOfStream(0, 5), SubscribeStatus(0)])
def test_the_code_0_breaks_a_rule_and_is_decoded(message: Message) -> None:
    service = SUBSCRIBE if isinstance(message, SubscribeStatus) else PUBLISH
    direction = CLIENT if isinstance(message, PublisherEndStream) else SERVER
    decoded = decode(encode(message, service, direction, B), service, direction, B)
    assert decoded.message == message
    assert decoded.rule is not None
    assert decoded.rule.name == "code_set"
    assert code_name(message, B) == "UNKNOWN"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (1, "SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS"),
        (2, "TIMEOUT TIMEOUT TIMEOUT TIMEOUT TIMEOUT INVALID_REQUEST INVALID_REQUEST"),
        (3, "OUT_OF_ORDER OUT_OF_ORDER OUT_OF_ORDER OUT_OF_ORDER DUPLICATE_BLOCK ERROR ERROR"),
        (4, "BAD_STATE_PROOF BAD_STATE_PROOF BAD_STATE_PROOF BAD_STATE_PROOF BAD_BLOCK_PROOF TIMEOUT TIMEOUT"),
        (5, "BEHIND BEHIND BEHIND BEHIND BEHIND DUPLICATE_BLOCK DUPLICATE_BLOCK"),
        (6, "- INTERNAL_ERROR INTERNAL_ERROR INTERNAL_ERROR INTERNAL_ERROR BAD_BLOCK_PROOF BAD_BLOCK_PROOF"),
        (7, "- NOT_AVAILABLE PERSISTENCE_FAILED PERSISTENCE_FAILED PERSISTENCE_FAILED BEHIND PERSISTENCE_FAILED"),
        (8, "- - - - - PERSISTENCE_FAILED -"),
        (-1, "- - - - - - -"),
    ],
)
def test_the_meaning_of_the_nodes_codes_by_version(code: int, names: str) -> None:
    assert NAMES == ["A0", "A", "A'", "B0", "B1", "B2", "B"]
    assert [code_name(EndOfStream(code), PROFILES[name]) or "-" for name in NAMES] == names.split()


def test_the_meaning_of_other_codes() -> None:
    old = ["INSUFFICIENT_BALANCE", "SUCCESS", "INVALID_START_BLOCK_NUMBER", "INVALID_END_BLOCK_NUMBER", "NOT_AVAILABLE"]
    new = ["SUCCESS", "INVALID_REQUEST", "ERROR", *old[2:]]
    for profile in PROFILES.values():
        listed = new if profile in (B2, B) else old
        assert [code_name(SubscribeStatus(code), profile) for code in range(1, 7)] == [*listed, None][:6]
        publisher = [code_name(PublisherEndStream(code), profile) for code in range(1, 6)]
        assert publisher == ["RESET", "TIMEOUT", "ERROR", "TOO_FAR_BEHIND", None]
    assert code_name(BlockEnd(1), B) is None
    assert set().union(*(profile.end_codes.values() for profile in PROFILES.values())) >= NODE_ERRORS


# Paths and shapes


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (f"/{OLD_PACKAGE}.BlockStreamService/publishBlockStream", Method(OLD_PACKAGE, PUBLISH)),
        (f"/{NEW_PACKAGE}.BlockStreamPublishService/publishBlockStream", Method(NEW_PACKAGE, PUBLISH)),
        (f"/{OLD_PACKAGE}.BlockStreamService/subscribeBlockStream", Method(OLD_PACKAGE, SUBSCRIBE)),
        (f"/{NEW_PACKAGE}.BlockStreamSubscribeService/subscribeBlockStream", Method(NEW_PACKAGE, SUBSCRIBE)),
        (f"/{OLD_PACKAGE}.BlockNodeService/serverStatus", Method(OLD_PACKAGE, STATUS)),
        (f"/{NEW_PACKAGE}.BlockNodeService/serverStatusDetail", Method(NEW_PACKAGE, Service.OTHER)),
        (f"/{OLD_PACKAGE}.BlockAccessService/singleBlock", Method(OLD_PACKAGE, Service.OTHER)),
        (f"/{NEW_PACKAGE}.BlockAccessService/getBlock", Method(NEW_PACKAGE, Service.OTHER)),
        ("/grpc.health.v1.Health/Check", None),
        (f"/{OLD_PACKAGE}.BlockStreamService/serverStatus", Method(OLD_PACKAGE, STATUS)),
        ("/org.hiero.block.api.v2.BlockNodeService/serverStatus", None),
        ("?", None),
        ("", None),
    ],
)
def test_the_method_by_its_path(path: str, method: Method | None) -> None:
    assert method_of(path) == method


def test_the_profile_by_package_and_setting() -> None:
    assert profile_of(OLD_PACKAGE) is A
    assert profile_of(NEW_PACKAGE) is profile_of(None) is B
    assert profile_of(OLD_PACKAGE, "A'") is profile_of(None, "A'") is A_PRIME
    assert profile_of(NEW_PACKAGE, "A'") is B
    assert profile_of(OLD_PACKAGE, "B1") is A


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("A0", "B0")])
@settings(max_examples=20)
@given(data=st.data())
def test_the_shape_of_a_message_never_tells_a_wrong_call(name: str, data: st.DataObject) -> None:
    """B0 looks as the old package in its acknowledgements, and A0 has no sets."""
    profile = PROFILES[name]
    service, direction = data.draw(st.sampled_from(CALLS))
    shape = shape_of(encode(data.draw(messages(profile, service, direction)), service, direction, profile), direction)
    assert shape.service in (service, None)
    assert shape.new in (profile.new, None)


def test_shapes_that_tell() -> None:
    assert shape_of(encode(BlockItems(SET), PUBLISH, CLIENT, B), CLIENT) == Shape(PUBLISH)
    assert shape_of(encode(BlockItems(SET), SUBSCRIBE, SERVER, B), SERVER) == Shape(SUBSCRIBE)
    assert shape_of(encode(Acknowledgement(7), PUBLISH, SERVER, B), SERVER) == Shape(PUBLISH, True)
    assert shape_of(encode(Acknowledgement(0, b"\0"), PUBLISH, SERVER, PROFILES["B1"]), SERVER) == Shape(PUBLISH)
    assert shape_of(encode(Acknowledgement(7), PUBLISH, SERVER, A), SERVER) == Shape(PUBLISH, False)
    assert shape_of(encode(NodeBehind(7), PUBLISH, SERVER, B), SERVER) == Shape(PUBLISH, True)
    assert shape_of(encode(EndOfStream(7), PUBLISH, SERVER, A), SERVER) == Shape(PUBLISH)
    assert shape_of(b"", CLIENT) == Shape()


# Misuse


@pytest.mark.parametrize(
    ("message", "service", "direction", "profile", "reason"),
    [
        (NodeBehind(7), PUBLISH, SERVER, A, "no such message"),
        (BlockEnd(7), PUBLISH, CLIENT, A, "no such message"),
        (PublisherEndStream(1), PUBLISH, CLIENT, A0, "no such message"),
        (PublisherEndStream(1), PUBLISH, SERVER, B, "no such message"),
        (ItemAcknowledgement(b"x"), PUBLISH, SERVER, B, "no such message"),
        (ServerStatusRequest(), SUBSCRIBE, CLIENT, B, "no such message"),
        (Acknowledgement(7, b"hash"), PUBLISH, SERVER, B, "block_root_hash would be lost"),
        (EndOfStream(1, 2, 3), PUBLISH, SERVER, A, "proximate_block_number would be lost"),
        (SubscribeRequest(1, 2, True), SUBSCRIBE, CLIENT, B, "allow_unverified would be lost"),
        (Acknowledgement(-1), PUBLISH, SERVER, B, "not from 0"),
        (EndOfStream(2**31), PUBLISH, SERVER, B, "not from"),
        (BlockEnd(1), Service.OTHER, CLIENT, B, "aren't known"),
    ],
)
def test_refuses_to_write_what_a_version_lacks(
    message: Message, service: Service, direction: Direction, profile: Profile, reason: str
) -> None:
    with pytest.raises(EncodeError, match=reason) as refused:
        encode(message, service, direction, profile)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_every_kind_has_a_name() -> None:
    assert len(set(KINDS.values())) == len(KINDS) == 15
