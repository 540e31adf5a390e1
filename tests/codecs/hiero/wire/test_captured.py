"""The message bytes of the captures: requests and responses of every call, and the blocks that they make.

The captures are read by a tiny reader of the test's own: Ethernet, IPv4 and TCP of a loopback without loss, and of
HTTP/2 only DATA frames.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from wirehouse_codecs.hiero.profiles import Method, Profile, method_of, profile_of
from wirehouse_codecs.hiero.wire.blocks import Block, BlockBuilder, split
from wirehouse_codecs.hiero.wire.hashes import settle, signature_check
from wirehouse_codecs.hiero.wire.items.cutting import cut
from wirehouse_codecs.hiero.wire.items.decoded import decode_header, decode_proof
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber, item_name
from wirehouse_codecs.hiero.wire.messages import (
    Acknowledgement,
    BlockEnd,
    BlockItems,
    Decoded,
    EndOfStream,
    NodeBehind,
    PublisherEndStream,
    ServerStatus,
    ServerStatusRequest,
    SkipBlock,
    SubscribeRequest,
    SubscribeStatus,
    decode,
    encode,
    shape_of,
)
from wirehouse_codecs.tcp.endpoints import Direction

VECTORS = Path(__file__).parents[3] / "vectors" / "hiero"
CAPTURES = sorted(path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*.pcap"))
SYN, DATA, PREFACE_BYTES = 2, 0, 24


class Call(NamedTuple):
    """A call with the bytes of its messages, and what the vector says of it."""

    method: Method
    profile: Profile
    requests: list[bytes]
    responses: list[bytes]
    said: dict[str, Any]

    def decoded(self, direction: Direction) -> list[Decoded]:
        sent = self.requests if direction is Direction.CLIENT else self.responses
        return [decode(data, self.method.service, direction, self.profile) for data in sent]


def streams(path: Path) -> dict[tuple[int, int], bytes]:
    """What each port sent to each other."""
    data, at = path.read_bytes(), 24
    sent: dict[tuple[int, int], bytearray] = {}
    following: dict[tuple[int, int], int] = {}
    while at < len(data):
        size = struct.unpack("<I", data[at + 8 : at + 12])[0]
        ip = data[at + 16 + 14 : at + 16 + size]
        at += 16 + size
        tcp = ip[(ip[0] & 15) * 4 : struct.unpack(">H", ip[2:4])[0]]
        source, target, sequence = struct.unpack(">HHI", tcp[:8])
        payload = tcp[(tcp[12] >> 4) * 4 :]
        if tcp[13] & SYN:
            following[source, target] = sequence + 1
        elif payload:
            fresh = following[source, target] - sequence
            assert fresh >= 0, "a hole in the capture"
            sent.setdefault((source, target), bytearray()).extend(payload[fresh:])
            following[source, target] += max(len(payload) - fresh, 0)
    return {ports: bytes(stream) for ports, stream in sent.items()}


def grpc_messages(stream: bytes) -> dict[int, list[bytes]]:
    """The messages of each HTTP/2 stream, uncompressed."""
    at = PREFACE_BYTES if stream.startswith(b"PRI ") else 0
    bodies: dict[int, bytearray] = {}
    while at < len(stream):
        size, kind = int.from_bytes(stream[at : at + 3], "big"), stream[at + 3]
        if kind == DATA:
            number = int.from_bytes(stream[at + 5 : at + 9], "big")
            bodies.setdefault(number, bytearray()).extend(stream[at + 9 : at + 9 + size])
        at += 9 + size
    return {number: list(_prefixed(bytes(body))) for number, body in bodies.items()}


def _prefixed(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        end = at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")
        yield gzip.decompress(body[at + 5 : end]) if body[at] else body[at + 5 : end]
        at = end


@cache
def calls(capture: str) -> list[Call]:
    path = VECTORS / capture
    said = json.loads(path.with_suffix(".expected.json").read_text())
    sent = {ports: grpc_messages(stream) for ports, stream in streams(path).items()}
    found = []
    for row in said["rpcs"]:
        method = method_of(row["path"])
        assert method is not None
        ports, number = (row["client_port"], row["server_port"]), row["h2_stream"]
        requests, responses = sent[ports].get(number, []), sent[ports[::-1]].get(number, [])
        found.append(Call(method, profile_of(method.package), requests, responses, row))
    return found


def as_said(decoded: Decoded, profile: Profile) -> dict[str, Any]:
    """A message in the words of the vectors."""
    match decoded.message:
        case BlockItems(raw):
            return {"k": "items", **_set_as_said(raw, profile)}
        case PublisherEndStream(code, earliest, latest):
            return {"k": "end_stream", "code": code, "earliest": earliest, "latest": latest}
        case BlockEnd(number):
            return {"k": "end_of_block", "block": number}
        case Acknowledgement(number, _, exists):
            return {"k": "ack", "block": number, **({"already_exists": True} if exists else {})}
        case EndOfStream(code, number, proximate):
            near = {} if proximate is None else {"proximate": proximate}
            return {"k": "end_of_stream", "code": code, "block": number, **near}
        case NodeBehind(number):
            return {"k": "behind", "block": number}
        case SkipBlock(number):
            return {"k": "skip", "block": number}
        case SubscribeRequest(start, end):
            return {"start": start, "end": end}
        case SubscribeStatus(code):
            return {"k": "status", "code": code}
        case ServerStatus(first, last, only_latest):
            return {"k": "server_status", "first": first, "last": last, "only_latest_state": only_latest}
    raise AssertionError(decoded)


def _set_as_said(raw: bytes, profile: Profile) -> dict[str, Any]:
    items = next(cut(raw))
    assert items.fault is None
    kinds = {item_name(number, old=not profile.new): count for number, count in items.counts.items()}
    found: dict[str, Any] = {"n": len(items), "kinds": kinds}
    if headers := items.where(ItemNumber.BLOCK_HEADER):
        found["header"] = decode_header(items.body(headers[0])).value.number
    if proofs := items.where(ItemNumber.BLOCK_PROOF):
        found["proof"] = decode_proof(items.body(proofs[0])).value.block
    return found


@pytest.mark.parametrize("capture", CAPTURES)
def test_messages_of_every_call_are_those_of_the_vector(capture: str) -> None:
    for call in calls(capture):
        for direction, listed in (
            (Direction.CLIENT, call.said["requests"]),
            (Direction.SERVER, call.said["responses"]),
        ):
            decoded = call.decoded(direction)
            if direction is Direction.CLIENT and call.said["role"] != "publisher":
                assert len(decoded) == 1
                continue
            shown = [as_said(message, call.profile) for message in decoded]
            sent = call.requests if direction is Direction.CLIENT else call.responses
            sizes = [{"bytes": len(data)} if "bytes" in said else {} for said, data in zip(listed, sent, strict=True)]
            assert [{**one, **size} for one, size in zip(shown, sizes, strict=True)] == listed


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_message_breaks_no_rule_and_is_written_as_it_was(capture: str) -> None:
    for call in calls(capture):
        service = call.method.service
        for direction, sent in ((Direction.CLIENT, call.requests), (Direction.SERVER, call.responses)):
            for data, decoded in zip(sent, call.decoded(direction), strict=True):
                assert (decoded.rule, decoded.unknown_fields) == (None, 0)
                assert decoded.message is not None
                assert encode(decoded.message, service, direction, call.profile) == data
                shape = shape_of(data, direction)
                assert shape.service in (service, None)
                assert shape.new in (call.profile.new, None)


@pytest.mark.parametrize("capture", [name for name in CAPTURES if name.startswith("old/behind")])
def test_what_a_node_asks_of_another_for_catching_up(capture: str) -> None:
    asked = [
        decoded.message
        for call in calls(capture)
        if call.said["role"] != "publisher"
        for decoded in call.decoded(Direction.CLIENT)
    ]
    assert asked == [
        ServerStatusRequest(),
        SubscribeRequest(121, 124, False),
        ServerStatusRequest(),
        SubscribeRequest(125, 127, False),
        ServerStatusRequest(),
        SubscribeRequest(128, 130, False),
    ]


def blocks(call: Call) -> list[Block]:
    """The blocks that a publisher sent, also the unfinished ones."""
    builders: list[BlockBuilder] = []
    for decoded in call.decoded(Direction.CLIENT):
        if isinstance(decoded.message, BlockItems):
            for items in cut(decoded.message.raw):
                for part in split(items):
                    if part.numbers[0] == ItemNumber.BLOCK_HEADER:
                        builders.append(BlockBuilder())
                    builders[-1].add(part)
    return [builder.finish() for builder in builders]


@pytest.mark.parametrize("capture", CAPTURES)
def test_whole_blocks_have_the_items_and_hashes_of_the_vector(capture: str) -> None:
    listed = json.loads((VECTORS / capture).with_suffix(".expected.json").read_text())["blocks"]
    found = [block for call in calls(capture) if call.said["role"] == "publisher" for block in blocks(call)]
    assert {str(block.number) for block in found} == set(listed)
    whole = [block for block in found if block.proof is not None]
    assert whole
    for block in whole:
        said = listed[str(block.number)]
        assert block.broken == ()
        assert block.item_counts == said["items"]
        assert block.previous_hash is not None
        assert block.previous_hash.hex() == said["previous_block_root_hash"]
        root = settle(block.roots)
        assert root.root is not None
        assert root.root.hex() == said["block_root_hash"]
        assert signature_check(block.proof, root.root).verified is True


@pytest.mark.parametrize("capture", [name for name in CAPTURES if name.startswith("old/")])
def test_acknowledgements_carry_the_recomputed_root(capture: str) -> None:
    roots = {block.number: settle(block.roots).root for call in calls(capture) for block in blocks(call) if block.proof}
    carried = [
        message.message
        for call in calls(capture)
        for message in call.decoded(Direction.SERVER)
        if isinstance(message.message, Acknowledgement) and not message.message.block_already_exists
    ]
    assert len(carried) >= 2
    for acknowledgement in carried:
        assert acknowledgement.block_root_hash == roots[acknowledgement.block_number]


def test_every_capture_is_read() -> None:
    assert len(CAPTURES) == 9
