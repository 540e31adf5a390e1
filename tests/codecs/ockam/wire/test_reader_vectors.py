"""The captured and written sessions: the messages of each connection and direction, in order."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.wire.messages import (
    IndexGet,
    IndexResponse,
    IndexSave,
    Kind,
    Message,
    PullResponse,
    PushRequest,
)
from wirehouse_codecs.ockam.wire.reader import Reader, Received
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.packets import parse

SESSIONS = Path(__file__).parents[3] / "vectors" / "ockam" / "sessions"
NAMES = sorted(path.stem for path in SESSIONS.glob("*.pcap"))
#: Of longer data the vectors have a digest.
SHOWN_BYTES = 64
SIDES = {"c2s": Direction.CLIENT, "s2c": Direction.SERVER}
KINDS = {
    "create_req": Kind.CREATE_REQUEST,
    "create_rsp": Kind.CREATE_RESPONSE,
    "pcreate_req": Kind.CREATE_PARTITIONED_REQUEST,
    "pcreate_rsp": Kind.CREATE_PARTITIONED_RESPONSE,
    "push_req": Kind.PUSH_REQUEST,
    "push_rsp": Kind.PUSH_RESPONSE,
    "pull_req": Kind.PULL_REQUEST,
    "pull_rsp": Kind.PULL_RESPONSE,
    "index_get": Kind.INDEX_GET,
    "index_save": Kind.INDEX_SAVE,
    "index_rsp": Kind.INDEX_RESPONSE,
    "pindex_get": Kind.INDEX_GET,
    "pindex_save": Kind.INDEX_SAVE,
    "pindex_rsp": Kind.INDEX_RESPONSE,
    "error_rsp": Kind.ERROR,
}


@cache
def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SESSIONS / f"{name}.expected.json").read_text())
    return found


def segments(name: str) -> dict[int, list[tuple[Direction, bytes]]]:
    """By the client's port what was captured, which is in order and without loss: a loopback's."""
    found: dict[int, list[tuple[Direction, bytes]]] = defaultdict(list)
    port = expected(name)["server_port"]
    for batch in PacketCapture(io.BytesIO((SESSIONS / f"{name}.pcap").read_bytes())).batches():
        for packet in parse(batch).to_pylist():
            source, target = packet["source_port"], packet["destination_port"]
            if packet["payload"] and port in (source, target):
                direction = Direction.SERVER if source == port else Direction.CLIENT
                found[target if source == port else source].append((direction, packet["payload"]))
    return found


def read(parts: list[tuple[Direction, bytes]]) -> list[Received]:
    reader, last = Reader(OckamOptions()), Place.before(len(parts))
    found = [one for at, part in enumerate(parts) for one in reader.receive(*part, Place.before(at))]
    return found + reader.finish(last)


def fields(message: Message) -> list[Any]:
    """The fields in the order and form of the vectors."""
    if isinstance(message, PullResponse):
        return [message.request_id, [[one.index, shown(one.data)] for one in message.messages]]
    if isinstance(message, PushRequest):
        return [message.request_id, shown(message.data)]
    if isinstance(message, IndexGet | IndexSave | IndexResponse):
        partition = [] if message.partition is None else [message.partition]
        index = [] if isinstance(message, IndexGet) else [message.index]
        return [message.client_id, message.stream_name, *partition, *index]
    names = [name for name in type(message).__dataclass_fields__ if name not in ("kind", "extra")]
    return [getattr(message, name) for name in names]


def shown(data: bytes) -> str:
    return data.hex() if len(data) <= SHOWN_BYTES else f"sha256:{sha256(data).hexdigest()}:{len(data)}"


@pytest.mark.parametrize("name", NAMES)
def test_sessions(name: str) -> None:
    parts = segments(name)
    assert set(parts) == {connection["client_port"] for connection in expected(name)["connections"]}
    for connection in expected(name)["connections"]:
        found = read(parts[connection["client_port"]])
        for key, direction in SIDES.items():
            mine = [one for one in found if one.direction is direction and one.skip is None]
            assert len(mine) == len(connection[key])
            for one, (kind, protocol, route, values) in zip(mine, connection[key], strict=True):
                assert one.decoded is not None
                assert one.routed is not None
                assert one.decoded.protocol_name == protocol
                told = one.routed.onward_route if direction is Direction.CLIENT else one.routed.return_route
                assert [address.text for address in told] == route
                readings = [message for message in (one.decoded.message, one.decoded.also) if message is not None]
                assert KINDS[kind] in [message.kind for message in readings]
                assert values in [fields(message) for message in readings]
