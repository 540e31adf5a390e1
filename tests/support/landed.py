"""Captures as landing gives them: records with their places, segments of port pairs, and the rows of a log of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.captures.pcap import Packet, PacketCapture, to_batch
from wirehouse_codecs.logs.inspection import LANDED_PACKETS
from wirehouse_codecs.logs.rows import Gather, Start, Window
from wirehouse_codecs.logs.windows import SEGMENT_COLUMNS, SourceLog
from wirehouse_codecs.logs.windows import read as read_segments
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.link_types import ETHERNET
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import parse
from wirehouse_codecs.tcp.port_pairs import sides

#: The end of a window after which nothing comes.
LATE_NS = 2**62
Row = dict[str, Any]
_TYPES = dict.fromkeys(("payload", "flow", "capture_id"), pa.binary()) | dict.fromkeys(
    ("source", "window_start", "state", "direction"), pa.string()
)
#: SEGMENT_COLUMNS with their types.
SEGMENTS = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in SEGMENT_COLUMNS])
_TAKEN = ("sequence", "acknowledgment", "flags", "window", "payload", "payload_bytes")


def landed(batches: Iterable[pa.RecordBatch], schema: pa.Schema = LANDED_PACKETS) -> Iterator[pa.RecordBatch]:
    """The records of one capture with their places."""
    number = now = 0
    for batch in batches:
        count = batch.num_rows
        if not count:
            continue
        arrived = np.maximum.accumulate(np.maximum(batch.column("ts_ns").fill_null(0).to_numpy(), now))
        now = int(arrived[-1])
        place = [np.arange(number, number + count), arrived, np.zeros(count, np.int64)]
        columns = [*map(pa.array, place), pa.array([b"capture"] * count, pa.binary()), *batch.columns]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        number += count


def landed_file(path: Path) -> Iterator[pa.RecordBatch]:
    """The packets of a file."""
    with path.open("rb") as stream:
        yield from landed(PacketCapture(stream).batches())


def landed_packets(captured: Iterable[CapturedPacket]) -> Iterator[pa.RecordBatch]:
    """Simulated packets, as if they had been read from a file."""
    return landed([to_batch([Packet(each.ts_ns, ETHERNET, len(each.data), each.data) for each in captured])])


def segments(batches: Iterable[pa.RecordBatch], *ports: int) -> list[Row]:
    """Rows with SEGMENT_COLUMNS of the TCP packets that were landed, by port pair and arrival, in one window.

    `ports` are the servers'; without any, the first packet is sent to it.
    """
    rows: list[Row] = []
    for batch in batches:
        parsed = parse(batch)
        ports = ports or (pc.drop_null(parsed.column("destination_port"))[0].as_py(),)
        ends = (parsed.column(end).fill_null(-1) for end in ("destination_port", "source_port"))
        claimed, direction, flow = sides(parsed, *(pc.is_in(end, pa.array(ports, end.type)) for end in ends))
        table = pa.table(
            {name: batch.column(name) for name in LANDED_PACKETS.names[:4]}
            | {name: parsed.column(name) for name in _TAKEN}
            | {"flow": flow, "direction": direction}
        )
        rows += table.filter(claimed).to_pylist()
    about = {"source": "test", "window_start": "0", "state": None}
    return sorted((row | about for row in rows), key=lambda row: (row["flow"], row["record_number"]))


def carried(flow: bytes, state: str | None, window: str = "0") -> Row:
    """The row of a port pair's state from before `window`."""
    return dict.fromkeys(SEGMENT_COLUMNS) | {"source": "test", "flow": flow, "window_start": window, "state": state}


def read_log(
    rows: Iterable[Row], start: Start | Gather, schema: pa.Schema, windows: Mapping[str, int] | None = None
) -> list[Row]:
    """The rows of the log for `rows`, in windows by their name and end; in one window that has no end."""
    listed = tuple(Window(name, end) for name, end in (windows or {"0": LATE_NS}).items())
    sources = {"test": SourceLog(start, TcpOptions(), listed)}
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in SEGMENT_COLUMNS} for row in rows], SEGMENTS)
    return [row for out in read_segments([batch], sources, schema) for row in out.to_pylist()]


def cut(rows: Iterable[Row], start: Start | Gather, schema: pa.Schema, packets: int = 1) -> list[Row]:
    """The rows of the log if every `packets` are a window of their own, each from the state of the one before."""
    found: list[Row] = []
    flows: dict[bytes, list[Row]] = {}
    for row in rows:
        flows.setdefault(row["flow"], []).append(row)
    for flow, own in flows.items():
        state: str | None = None
        for at in range(0, len(own), packets):
            window, within, after = f"{at:06}", own[at : at + packets], own[at + packets : at + packets + 1]
            end_ns = max(after[0]["arrived_at_ns"] - 1, within[-1]["arrived_at_ns"]) if after else LATE_NS
            before = [] if state is None else [carried(flow, state, window)]
            within = [row | {"window_start": window} for row in within]
            out = read_log([*before, *within], start, schema, {window: end_ns})
            state = next((one["state"] for one in out if one["row_kind"] == "state" and one["state"]), None)
            found += out
    return found
