"""What one capture of Bamboo connections says, row by row, in the columns of the silver tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from wirehouse_codecs import inspecting, stream_inspection
from wirehouse_codecs.bamboo.log import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.reader import Layer, Reader
from wirehouse_codecs.bamboo.rules import ENDS, PROTOCOL
from wirehouse_codecs.bamboo.session import Session
from wirehouse_codecs.inspecting import Inspected
from wirehouse_codecs.rules import Place
from wirehouse_codecs.stream_inspection import Row
from wirehouse_codecs.stream_log import MESSAGE
from wirehouse_codecs.tcp import Direction

_PLACE = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")
#: Own columns of violations.
_OWN = ("channel", "proposal_id", "proposal_number")
#: So many packets of a side are asked for before a connection is taken for one of Bamboo.
_PACKETS: Final = 3
_NOWHERE: Final = Place(0, 0, b"", 0)


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so is taken for one of Bamboo; None = it isn't.

    Nothing in it names the protocol, so both sides must have a set-up, and packets of which none breaks a rule.
    """
    for side, first in ((Direction.CLIENT, client), (Direction.SERVER, server)):
        if not first:
            continue
        options = BambooOptions()
        reader, session = Reader(options), Session(options)
        session.miss()
        reads = reader.receive(side, first, _NOWHERE)
        broken = [one for read in reads for one in read.broken if one.rule.name in ENDS]
        layers = [read.layer for read in reads]
        if broken or len(layers) < _PACKETS or Layer.CONTROL not in layers:
            return None
    return "both sides begin with a set-up, packets of bymux and of the control channel" if client or server else None


def inspect(batches: Iterable[pa.RecordBatch], port: int | None = None) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which stand in arrival order.

    The servers are those at `port`, else handshakes tell; clients are taken for the proactive sides. Entries are put
    together from what the connection holds; no signature is checked.
    """
    for row in stream_inspection.read(batches, starter(BambooOptions()), SCHEMA, port):
        if row["row_kind"] == MESSAGE:
            yield _message(row)
        elif (told := stream_inspection.shown(row, PROTOCOL, _OWN)) is not None:
            yield told


def _message(row: Row) -> Inspected:
    content = dict(row["message"])
    about = {"channel": row["channel"], "kind": content.pop("kind"), "proposal": row["proposal_id"]}
    return inspecting.MESSAGE, {name: row[name] for name in _PLACE} | about | content
