"""The first bytes of the connections in a capture, from which protocols over TCP are recognised.

The module `inspection` of each such protocol has `recognises(client, server)`. It takes the first bytes of both sides,
at most HEAD_BYTES of each, and returns why they belong to the protocol, or None. It is used when a capture of packets
is inspected without naming a protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from wirehouse_codecs.logs import rows, tcp_inspection
from wirehouse_codecs.logs.bare_dialogue import BareDialogue
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

    def __init__(self) -> None:
        self.bytes = {direction: bytearray() for direction in Direction}
        self._ended: set[Direction] = set()

    def receive(self, pieces: Sequence[Data]) -> None:
        for piece in pieces:
            if piece.direction not in self._ended:
                held = self.bytes[piece.direction]
                held += piece.data[: HEAD_BYTES - len(held)]

    def hole(self, hole: Hole) -> None:
        self._ended.add(hole.direction)


def heads(batches: Iterable[pa.RecordBatch], port: int | None = None) -> list[Head]:
    """The heads of the connections among the first packets in `batches` (inspection.LANDED_PACKETS).

    `port` is the servers' port, as in `logs.tcp_inspection.read`.
    """
    found: list[_Head] = []

    def start(log: rows.Log, connection: Connection, server: Endpoint, snapshot: str | None) -> _Head:
        found.append(_Head())
        return found[-1]

    for _ in tcp_inspection.read(_first(batches), start, rows.schema(()), port):
        pass
    return [Head(*(bytes(head.bytes[side]) for side in (Direction.CLIENT, Direction.SERVER))) for head in found]


def _first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    left = HEAD_PACKETS
    for batch in batches:
        yield batch[:left]
        left -= batch.num_rows
        if left <= 0:
            return
