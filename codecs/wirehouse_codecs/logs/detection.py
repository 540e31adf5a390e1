"""Recognises the protocol and the servers of a capture of packets, from the first bytes of its connections.

The module `inspection` of each protocol over TCP has `recognises(client, server)`. It takes the first bytes of both
sides, at most HEAD_BYTES of each, and returns why they belong to the protocol, or None.

- `heads` returns these bytes of each connection. `wirehouse inspect` finds the protocol with them if none is named.
- `servers` finds the servers' ports if none is given: usual ports, ports to which a handshake was sent, and ports at
  which the protocol recognises a connection. A connection at none of these ports is read in both directions; the side
  with which it has far more messages is the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.logs import rows, tcp_inspection
from wirehouse_codecs.logs.inspection import Unseen
from wirehouse_codecs.logs.null_dialogue import NullDialogue
from wirehouse_codecs.logs.tcp_inspection import Port
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Connection, Data, Hole

#: Number of packets at the start of a capture that are examined.
HEAD_PACKETS: Final = 10_000
HEAD_BYTES: Final = 4_096
#: Factor between the numbers of messages from which one way of reading is clearly the right one.
FAR_MORE: Final = 2


class Head(NamedTuple):
    """The first bytes of client and server; empty if none were captured."""

    client: bytes
    server: bytes


Recognise = Callable[[bytes, bytes], str | None]


class _Head(NullDialogue):
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
    batches: Iterable[pa.RecordBatch],
    port: Port,
    recognises: Recognise,
    start: rows.Start | rows.Gather,
    schema: pa.Schema,
    usual: Iterable[int] = (),
) -> tuple[Iterable[pa.RecordBatch], frozenset[int]]:
    """`batches` once more, and ports that are known as servers' if no `port` is given.

    These are the protocol's `usual` ports, those to which a handshake was sent, and those of connections that the
    protocol recognises in one direction only. Where none is at such a port, the connection is read both ways by
    dialogues that `start` makes for a log of `schema`: one way gives more messages if the sides send different kinds.
    """
    if port is not None:
        return batches, frozenset()
    rest = iter(batches)
    # Rows come while the capture is read: only the first batch is looked at before.
    head = list(islice(rest, 1))
    ports = set(usual)
    unclear: list[tuple[Endpoint, Endpoint]] = []
    for one in _heads(head, None):
        this_way = one.connection.has_syn or recognises(*one.head) is not None
        that_way = not one.connection.has_syn and recognises(*one.turned) is not None
        if this_way is that_way:
            unclear.append((one.server, one.client))
        else:
            ports.add(one.server.port if this_way else one.client.port)
    unclear = [(server, client) for server, client in unclear if (server.port in ports) is (client.port in ports)]
    if unclear:
        ports |= _by_messages(head, start, schema, unclear)
    return chain(head, rest), frozenset(ports)


def _by_messages(
    head: Sequence[pa.RecordBatch],
    start: rows.Start | rows.Gather,
    schema: pa.Schema,
    unclear: Iterable[tuple[Endpoint, Endpoint]],
) -> set[int]:
    """The servers' ports: for each connection, the port with which it has far more messages as the server's."""
    assumed = _messages(head, start, schema, ())
    turned = _messages(head, start, schema, {client.port for _, client in unclear})
    found = set()
    for server, client in unclear:
        read, otherwise = assumed[server, client], turned[client, server]
        if max(read, otherwise) > FAR_MORE * min(read, otherwise):
            found.add(server.port if read > otherwise else client.port)
    return found


def _messages(
    head: Sequence[pa.RecordBatch], start: rows.Start | rows.Gather, schema: pa.Schema, servers: Collection[int]
) -> Counter[tuple[Endpoint, Endpoint]]:
    """Number of messages of the connections of each server and client, if the servers are at the ports `servers`."""
    counted: Counter[bytes] = Counter()

    def count(table: pa.Table) -> None:
        own = table.column("connection_id").filter(pc.equal(table.column("row_kind"), rows.MESSAGE))
        for each in pc.value_counts(own).to_pylist():
            counted[each["values"]] += each["counts"]

    of_ends: Counter[tuple[Endpoint, Endpoint]] = Counter()
    for row in tcp_inspection.read(_first(head), start, schema, None, Unseen(wanted=False), count, servers):
        if row["row_kind"] == rows.CONNECTION:
            fields = row["connection"]
            ends = [Endpoint(fields[f"{end}_address"], fields[f"{end}_port"]) for end in ("server", "client")]
            of_ends[ends[0], ends[1]] += counted.pop(row["connection_id"], 0)
    return of_ends


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
