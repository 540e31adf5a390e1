"""An Ockam client that pulls on one connection, and asks for its index and saves it on another; and who publishes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.codecs.ockam.wire.framing import framed
from wirehouse_codecs.ockam.wire.messages import (
    CreateRequest,
    CreateResponse,
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
)
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Conversation, Send, merge, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

PORT = 4000
#: Seconds, connection, message, to, back.
Said = tuple[float, str, Message, str, str]
ANSWERS = (CreateResponse, PushResponse, PullResponse, IndexResponse)
STORED: list[Any] = [
    (0.1, "p", CreateRequest("orders"), "stream", "pub"),
    (0.2, "p", CreateResponse("orders"), "pub", "orders-1"),
    *(
        (1 + at / 10, "p", message, *way)
        for at in range(10)
        for message, way in (
            (PushRequest(at, b"data"), ("orders-1", "pub")),
            (PushResponse(at, Status.OK, at), ("pub", "orders-1")),
        )
    ),
]
PULLED = PullResponse(1, tuple(StreamMessage(at, b"data") for at in range(4)))


def consumed(pulls: str, saves: str, back: str = "con", client: str = "me") -> list[Any]:
    """A client pulls on one connection, and asks for its index and saves it on another, without a create."""
    return [
        (3.1, saves, IndexGet(client, "orders"), "stream_index", back),
        (3.2, saves, IndexResponse(client, "orders", 0), back, "stream_index"),
        (3.25, pulls, CreateRequest("orders"), "stream", back),
        (3.26, pulls, CreateResponse("orders"), back, "orders-1"),
        (3.3, pulls, PullRequest(1, 0, 10), "orders-1", back),
        (3.4, pulls, PULLED, back, "orders-1"),
        (3.5, saves, IndexSave(client, "orders", 4), "stream_index", back),
    ]


def captured(*said: Said, second_ns: int = 10**9, start_ns: int = 10**9) -> Iterator[CapturedPacket]:
    """The packets of these messages; the first letter of a connection is its client's host."""
    of: dict[str, list[Send]] = defaultdict(list)
    for at_s, connection, message, to, back in said:
        side = Direction.SERVER if isinstance(message, ANSWERS) else Direction.CLIENT
        data = framed(message, to, back, Envelope.BARE16, Names.SPECIFICATION)
        of[connection].append(Send(start_ns + int(second_ns * at_s), side, data))
    hosts = {connection: Endpoint(f"10.0.0.{ord(connection[0])}", 40_000 + at) for at, connection in enumerate(of)}
    server = Endpoint("10.1.0.1", PORT)
    talks = [Conversation(hosts[name], server, sent[0].ts_ns - 10**8, sent) for name, sent in of.items()]
    return merge([list(packets(talk)) for talk in talks])
