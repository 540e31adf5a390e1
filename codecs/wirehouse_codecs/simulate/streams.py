"""Writes the byte streams of the connections in a capture to a folder, one file per connection and direction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa

from wirehouse_codecs.captures.pcap import Packet, to_batch
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.logs.inspection import LANDED_PACKETS
from wirehouse_codecs.logs.null_dialogue import NullDialogue
from wirehouse_codecs.logs.rows import Log, Start, schema
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.link_types import ETHERNET
from wirehouse_codecs.tcp.reassembly import Connection, Data

#: Number of packets read at once.
_BATCH_PACKETS: Final = 1_000


def write_streams(packets: Iterable[CapturedPacket], path: Path) -> int:
    """Write the bytes each side of a connection sent to `NUMBER-client.bin` and `NUMBER-server.bin` in folder `path`.

    Connections are numbered from 0001 in the order in which they begin; existing files with such names are replaced.
    Lost bytes are left out. `packets` are Ethernet frames in order of time. Returns the number of packets.
    """
    path.mkdir(exist_ok=True)
    for direction in Direction:
        for old in path.glob(f"[0-9]*-{direction}.bin"):
            old.unlink()
    begun = 0

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> _Files:
        nonlocal begun
        begun += 1
        return _Files(path, begun)

    return read(packets, start)


def read(packets: Iterable[CapturedPacket], start: Start, after: Callable[[], None] = lambda: None) -> int:
    """Pass the bytes of each connection to a dialogue created by `start`, which must not add rows to its log.

    `packets` are Ethernet frames in order of time. `after` is called after each thousand packets. Returns the number of
    packets.
    """
    count = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count
        source = iter(packets)
        while rows := [
            Packet(each.ts_ns, ETHERNET, len(each.data), each.data) for each in islice(source, _BATCH_PACKETS)
        ]:
            numbers = pa.array(range(count, count + len(rows)), pa.int64())
            arrived = pa.array([row.ts_ns for row in rows], pa.int64())
            place = [numbers, arrived, arrived, pa.repeat(pa.scalar(b"-"), len(rows))]
            count += len(rows)
            yield pa.RecordBatch.from_arrays([*place, *to_batch(rows).columns], schema=LANDED_PACKETS)
            after()

    for _ in tcp_inspection.read(batches(), start, schema([])):
        pass
    after()
    return count


class _Files(NullDialogue):
    """The files of one connection, as a `Dialogue` that adds no rows."""

    def __init__(self, folder: Path, number: int) -> None:
        self._paths = {direction: folder / f"{number:04}-{direction}.bin" for direction in Direction}
        for path in self._paths.values():
            path.touch()

    def receive(self, pieces: Sequence[Data]) -> None:
        for direction, path in self._paths.items():
            # Opened each time, because there may be more connections than a process can have open files.
            with path.open("ab") as file:
                file.writelines(piece.data for piece in pieces if piece.direction is direction)
