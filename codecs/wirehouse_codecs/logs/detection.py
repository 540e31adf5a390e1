"""The first bytes of the connections in a capture, from which protocols over TCP are recognised.

The module `inspection` of each such protocol has `recognises(client, server)`. It takes the first bytes of both sides,
at most HEAD_BYTES of each, and returns why they belong to the protocol, or None. It is used when a capture of packets
is inspected without naming a protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

import pyarrow as pa

from wirehouse_codecs.logs import rows, tcp_inspection
from wirehouse_codecs.logs.bare_dialogue import BareDialogue
from wirehouse_codecs.logs.tcp_inspection import Port
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Connection, Data, Hole

#: Number of packets at the start of a capture that are examined.
HEAD_PACKETS: Final = 10_000
HEAD_BYTES: Final = 4_096


class Head(NamedTuple):
    """The first bytes of client and server; empty if none were captured."""

    client: bytes
    server: bytes


Recognise = Callable[[bytes, bytes], str | None]


class _Head(BareDialogue):
    """A dialogue that keeps the first bytes of each side, up to the first hole."""

    def __init__(self, connection: Connection, client: Endpoint, server: Endpoint) -> None:
        self.connection, self.client, self.server = connection, client, server
        self.bytes = {direction: bytearray() for direction in Direction}
        self._ended: set[Direction] = set()

    def receive(self, pieces: Sequence[Data]) -> None:
        for piece in pieces:
            if piece.direction not in self._ended:
                held = self.bytes[piece.direction]
                held += piece.data[: HEAD_BYTES - len(held)]

    def hole(self, hole: Hole) -> None:
        self._ended.add(hole.direction)

    @property
    def head(self) -> Head:
        return Head(*(bytes(self.bytes[side]) for side in (Direction.CLIENT, Direction.SERVER)))

    @property
    def turned(self) -> Head:
        """The head if the server is the other side."""
        return Head(*self.head[::-1])


def heads(batches: Iterable[pa.RecordBatch], port: int | None = None) -> list[Head]:
    """The heads of the connections among the first packets in `batches` (inspection.LANDED_PACKETS).

    `port` is the servers' port, as in `logs.tcp_inspection.read`. Where nothing shows which side is the server, there
    are two heads.
    """
    found = _heads(batches, port)
    unclear = () if port is not None else (one for one in found if not one.connection.has_syn)
    return [*(one.head for one in found), *(one.turned for one in unclear)]


def servers(
    batches: Iterable[pa.RecordBatch], port: Port, recognises: Recognise, usual: Iterable[int] = ()
) -> tuple[Iterable[pa.RecordBatch], frozenset[int]]:
    """`batches` once more, and ports that are known as servers' if no `port` is given.

    These are the protocol's `usual` ports, those to which a handshake was sent, and those of connections that the
    protocol recognises in one direction only.
    """
    if port is not None:
        return batches, frozenset()
    rest = iter(batches)
    # Rows come while the capture is read: only the first batch is looked at before.
    head = list(islice(rest, 1))
    ports = set(usual)
    for one in _heads(head, None):
        known = one.connection.has_syn or recognises(*one.head) is not None
        if known and (one.connection.has_syn or recognises(*one.turned) is None):
            ports.add(one.server.port)
        elif not known and recognises(*one.turned) is not None:
            ports.add(one.client.port)
    return chain(head, rest), frozenset(ports)


def _heads(batches: Iterable[pa.RecordBatch], port: int | None) -> list[_Head]:
    found: list[_Head] = []

    def start(log: rows.Log, connection: Connection, server: Endpoint, snapshot: str | None) -> _Head:
        assert log.client is not None
        found.append(_Head(connection, log.client, server))
        return found[-1]

    for _ in tcp_inspection.read(_first(batches), start, rows.schema(()), port):
        pass
    return found


def _first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    left = HEAD_PACKETS
    for batch in batches:
        yield batch[:left]
        left -= batch.num_rows
        if left <= 0:
            return
