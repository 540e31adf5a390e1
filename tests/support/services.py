"""Sources that see one service: what is known of it is as if one capture had seen everything."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

from tests.support.running import select
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.packets import parse
from wirehouse_pipelines.lake.lake import Lake


def seen(capture: Path, ports: Container[int], *, others: bool = False, later_ns: int = 0) -> Iterator[CapturedPacket]:
    """The packets from and to `ports`, or all `others`, as a tap with another clock sees them."""
    with capture.open("rb") as stream:
        for batch in PacketCapture(stream).batches():
            for landed, packet in zip(batch.to_pylist(), parse(batch).to_pylist(), strict=True):
                theirs = packet["source_port"] in ports or packet["destination_port"] in ports
                if theirs is not others:
                    yield CapturedPacket(landed["ts_ns"] + later_ns, landed["data"])


def assert_seen_as_one(lake: Lake, table: str, order: str, service: str, who: Container[str]) -> None:
    """Of `service` the table says what it says of the source `whole`, but for the columns `who` that say who saw it."""
    rows = {
        name: [
            {key: value for key, value in row.items() if key not in who}
            for row in select(lake, f"SELECT * FROM {table} WHERE source = '{name}' ORDER BY {order}")
        ]
        for name in ("whole", service)
    }
    assert rows[service] == rows["whole"] != []
    services = ", ".join(f"'{name}'" for name in sorted({source.service for source in lake.sources}))
    assert select(lake, f"SELECT * FROM {table} WHERE source NOT IN ({services})") == []
