"""What one capture of Bamboo connections says, row by row, in the columns of the silver tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from wirehouse_codecs import inspecting, stream_inspection
from wirehouse_codecs.bamboo import bymux
from wirehouse_codecs.bamboo.log import SCHEMA, starter
from wirehouse_codecs.bamboo.messages import ChannelReader, decode_setup
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.rules import PROTOCOL
from wirehouse_codecs.inspecting import Inspect, Inspected
from wirehouse_codecs.stream_inspection import Row
from wirehouse_codecs.stream_log import MESSAGE

_PLACE = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")
#: Own columns of violations.
_OWN = ("channel", "proposal_id", "proposal_number")


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so is taken for one of Bamboo; None = it isn't.

    Nothing in it names the protocol. So each side that was seen must have a set-up and packets of bymux for the usual
    streams, and some side packets of the control channel; and none of them breaks a rule.
    """
    control = [_control_packets(side) for side in (client, server) if side]
    seen = [count for count in control if count is not None]
    if len(seen) < len(control) or not sum(seen):
        return None
    return "set-up, then packets of bymux and of the control channel"


def _control_packets(data: bytes) -> int | None:
    """How many packets of the control channel a side begins with; None: what it begins with is something else."""
    setup = decode_setup(data)
    if setup is None or setup.noncanonical:
        return None
    streams = {stream_id: ChannelReader(channel) for stream_id, channel in BambooOptions().start().channels.items()}
    items = bymux.Reader().receive(data[setup.byte_end :])
    received = []
    for item in items:
        if isinstance(item, bymux.Content):
            if item.stream_id == BambooOptions().control_stream:
                received += streams[item.stream_id].receive(item.data)
        elif item.packet is None or item.wide or (item.packet.stream_id or 0) not in streams:
            return None
    return len(received) if items and all(one.rule is None for one in received) else None


def inspect(
    batches: Iterable[pa.RecordBatch], port: int | None = None, options: BambooOptions | None = None
) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which stand in arrival order.

    The servers are those at `port`, or at the ports of `options`, else handshakes tell; without options clients are
    taken for the proactive sides. Entries are put together from what the connection holds; no signature is checked.
    """
    options = options or BambooOptions()
    for row in stream_inspection.read(batches, starter(options), SCHEMA, options.ports or port):
        if row["row_kind"] == MESSAGE:
            yield _message(row)
        elif (told := stream_inspection.shown(row, PROTOCOL, _OWN)) is not None:
            yield told


def _message(row: Row) -> Inspected:
    content = dict(row["message"])
    about = {"channel": row["channel"], "kind": content.pop("kind"), "proposal": row["proposal_id"]}
    about["proposal_number"] = row["proposal_number"]
    return inspecting.MESSAGE, {name: row[name] for name in _PLACE} | about | content


INSPECT: Final[Mapping[str, Inspect]] = {"pcap": inspect}
