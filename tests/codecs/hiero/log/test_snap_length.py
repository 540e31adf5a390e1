"""Captures with a snap length: what lies wholly within captured bytes is read, and no rule is broken by the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from ipaddress import ip_address
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.landed import landed_packets
from tests.support.legal_captures import severe
from wirehouse_codecs.hiero.inspection import inspect
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.tcp.packets import SYN, parse

CONFIG = SimulatorConfig(blocks=10, block_bytes=1500, set_bytes=600, incident_rounds=0, profile="B")
#: A side of a connection, by the client's address and port.
Side = tuple[str, int, str]
Rows = list[tuple[str, dict[str, Any]]]


@cache
def legal() -> list[pa.RecordBatch]:
    return list(landed_packets(simulate(CONFIG)))


def snapped(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Packets of at most so many bytes."""
    for batch in batches:
        at = batch.schema.names.index("data")
        yield batch.set_column(at, batch.schema.field(at), pc.binary_slice(batch.column(at), 0, size))


def stretches(batches: Iterable[pa.RecordBatch]) -> dict[Side, list[tuple[int, int]]]:
    """The bytes of each side that were captured, joined where they follow each other."""
    found: dict[Side, list[tuple[int, int]]] = defaultdict(list)
    first: dict[Side, int] = {}
    for packet in (packet for batch in batches for packet in parse(batch).to_pylist()):
        is_server = packet["source_port"] == DEFAULT_PORT
        end = "destination" if is_server else "source"
        client = str(ip_address(packet[f"{end}_address"])), packet[f"{end}_port"]
        side = (*client, "server" if is_server else "client")
        if packet["flags"] & SYN:
            first[side] = packet["sequence"] + 1
        elif packet["payload"]:
            begin = (packet["sequence"] - first[side]) % (1 << 32)
            end_at, own = begin + len(packet["payload"]), found[side]
            own.append((own.pop()[0] if own and own[-1][1] == begin else begin, end_at))
    return found


def messages(rows: Rows) -> set[tuple[Side, int, int]]:
    """Where each message stands."""
    clients = {
        row["connection_id"]: (row["client_address"], row["client_port"]) for kind, row in rows if kind == "connection"
    }
    return {
        ((*clients[row["connection_id"]], str(row["direction"])), row["byte_start"], row["byte_end"])
        for kind, row in rows
        if kind == "message"
    }


@pytest.mark.parametrize("size", [90, 110, 150, 200])
def test_what_a_snap_length_leaves_whole_is_read(size: int) -> None:
    options, cut = HieroOptions(profile=CONFIG.profile), list(snapped(legal(), size))
    every, rows, captured = (
        messages(list(inspect(legal(), DEFAULT_PORT, options))),
        list(inspect(cut, DEFAULT_PORT, options)),
        stretches(cut),
    )
    whole = {
        (side, begin, end)
        for side, begin, end in every
        if any(first <= begin and end <= last for first, last in captured[side])
    }
    assert len(whole) > 80
    assert whole <= messages(rows)
    assert not severe(rows)
