"""Decodes one capture of Bamboo connections for `inspect`: rows in the columns of the silver tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_rows import ENTRIES
from wirehouse_codecs.bamboo.correlation.log_state import judge
from wirehouse_codecs.bamboo.correlation.packet_entries import OWN, PacketEntries, takes
from wirehouse_codecs.bamboo.correlation.payload_replay import Replays
from wirehouse_codecs.bamboo.log.file_rows import row_of
from wirehouse_codecs.bamboo.log.rows import ENTRY
from wirehouse_codecs.bamboo.log.schema import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.rules import ENTRY_RULE, PROTOCOL, RULE
from wirehouse_codecs.bamboo.setup import Setup
from wirehouse_codecs.bamboo.wire import bymux_packets
from wirehouse_codecs.bamboo.wire.channel_reader import ChannelReader
from wirehouse_codecs.bamboo.wire.encoding import decode_setup
from wirehouse_codecs.bamboo.wire.entries import SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.bamboo.wire.entry_verification import Verdict, payload_rule
from wirehouse_codecs.logs import detection, inspection, tcp_inspection
from wirehouse_codecs.logs.inspection import Inspect, Inspected, Unseen
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.logs.tcp_inspection import Row, violation

_PLACE = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so counts as Bamboo. None: it doesn't.

    Nothing in it names the protocol. So each side that was seen must have a set-up and packets of bymux for the usual
    streams, and none of them breaks a rule. Some side must have packets of the control channel, or both sides a set-up
    that little else begins with.
    """
    control = [_control_packets(side) for side in (client, server) if side]
    seen = [count for count in control if count is not None]
    if not seen or len(seen) < len(control):
        return None
    if sum(seen):
        return "set-up, then packets of bymux and of the control channel"
    telling = all(map(_is_telling, (client, server)))
    return "set-up with windows, then packets of bymux, on both sides" if telling else None


def _is_telling(data: bytes) -> bool:
    """Whether a side begins with a set-up that isn't all zero where others have lengths of four bytes."""
    setup = decode_setup(data)
    found = None if setup is None else setup.packet
    return isinstance(found, Setup) and not found.ignored_bits and found.send_window > 0 and found.receive_window > 0


def _control_packets(data: bytes) -> int | None:
    """How many packets of the control channel a side begins with; None: what it begins with is something else."""
    setup = decode_setup(data)
    if setup is None or setup.noncanonical:
        return None
    streams = {stream_id: ChannelReader(channel) for stream_id, channel in BambooOptions().start().channels.items()}
    items = bymux_packets.Reader().receive(data[setup.byte_end :])
    received = []
    for item in items:
        if isinstance(item, bymux_packets.Content):
            if item.stream_id == BambooOptions().control_stream:
                received += streams[item.stream_id].receive(item.data)
        elif item.packet is None or item.wide or (item.packet.stream_id or 0) not in streams:
            return None
    return len(received) if items and all(one.rule is None for one in received) else None


def inspect(
    batches: Iterable[pa.RecordBatch],
    port: int | None = None,
    options: BambooOptions | None = None,
    unseen: Unseen | None = None,
) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which are in order of arrival.

    Servers are the hosts at `port` or at the ports of `options`. Else the handshakes decide. Without options the
    clients are the proactive sides. Entries are rebuilt from the capture alone, and come last.
    """
    options, unseen = options or BambooOptions(), unseen or Unseen()
    entries, replays = PacketEntries(), Replays()
    ports = options.ports or port
    start = starter(options)
    batches, servers = detection.servers(batches, ports, recognises, start, SCHEMA)
    rows = tcp_inspection.read(batches, start, SCHEMA, ports, unseen, partial(_are_wanted, replays), servers)
    for _, of_record in groupby(rows, itemgetter("arrived_at_ns", "record_number")):
        signed: list[Row] = []
        for row in of_record:
            if row["row_kind"] == MESSAGE:
                if unseen.sees(row["message"]["kind"]):
                    yield _message(row)
            elif (verdict := tcp_inspection.shown(row, PROTOCOL, OWN)) is not None:
                yield verdict
            replays.take(row)
            if takes(row):
                signed.append(row)
        yield from entries.take(signed)
    known = list(entries.finish())
    for found in replays.finish(row for kind, row in known if kind == inspection.ENTRY):
        rule = RULE[found.rule]
        yield violation(rule.id, rule.severity.value, found.message, dict(found.row), OWN)
    yield from known


def _are_wanted(replays: Replays, rows: pa.Table) -> pa.ChunkedArray:
    """Which messages are about entries, see `takes`, or about payloads."""
    follows = pc.struct_field(rows.column("message"), "follows_byte_start").is_valid()
    replayed = replays.needs(rows)
    return follows if replayed is None else pc.or_(follows, replayed)


def _message(row: Row) -> Inspected:
    content = dict(row["message"])
    about = {"channel": row["channel"], "kind": content.pop("kind"), "proposal": row["proposal_id"]}
    about["proposal_number"] = row["proposal_number"]
    return inspection.MESSAGE, {name: row[name] for name in _PLACE} | about | content


def inspect_entries(
    batches: Iterable[pa.RecordBatch], options: BambooOptions | None = None, unseen: Unseen | None = None
) -> Iterator[Inspected]:
    """Rows of the entries in `batches` (inspecting.LANDED_FILES), in their order, each with its verdict.

    All entries of the file are known then, so these are held until its end. No option is about them.
    """
    unseen = unseen or Unseen()
    records: list[Row] = []
    for record in _whole(row for batch in batches for row in batch.to_pylist()):
        records.append({name: record[name] for name in _FILE_PLACE} | {"name": record["name"]} | row_of(record))
    logs: dict[object, list[Row]] = {}
    for record in records:
        if record["row_kind"] == ENTRY:
            record["known"] = _known(record)
            logs.setdefault(_log_of(record["known"]), []).append(record["known"])
    verdicts: dict[bytes, Row] = {}
    broken: list[Row] = []
    for changes in judge(pa.RecordBatch.from_pylist(rows, schema=ENTRIES) for rows in logs.values()):
        verdicts |= {row["entry_id"]: row for row in changes.entries.to_pylist()}
        broken += changes.broken.to_pylist()
        for fork in changes.new_forks:
            broken.append(dict(fork.place) | {"reason": "fork", "message": fork.description})
    for record in records:
        place = {name: record[name] for name in _FILE_PLACE}
        if record["row_kind"] != ENTRY:
            finding = record["finding"]
            yield (
                inspection.QUARANTINE,
                place
                | {"protocol": PROTOCOL, "rule": finding["rule"], "reason": finding["message"], "value": record["raw"]},
            )
            continue
        known, verdict = record["known"], verdicts[record["known"]["entry_id"]]
        row = {name: known[name] for name in _ENTRY_NAMES} | {name: verdict[name] for name in _VERDICT}
        if known["payload_rule"] is not None and verdict["reason"] is None:
            row |= {"verdict": Verdict.INVALID.value, "reason": known["payload_rule"], "message": "of this payload"}
        if unseen.sees("entry"):
            yield inspection.MESSAGE, place | {"kind": "entry", "name": record["name"]} | row
    for row in sorted(broken, key=itemgetter("record_number")):
        rule = ENTRY_RULE[row["reason"]]
        verdict = {"protocol": PROTOCOL, "rule": rule.id, "severity": rule.severity.value, "message": row["message"]}
        yield inspection.VIOLATION, verdict | {name: row[name] for name in _FILE_PLACE}


_FILE_PLACE: Final = ("capture_id", "record_number", "arrived_at_ns")
_VERDICT: Final = ("verdict", "reason", "message")
_ENTRY_NAMES: Final = (
    *("author", "log_id", "seq", "entry_hash", "end_of_log", "lipmaalink", "backlink", "payload_size", "payload_hash"),
    *("signature", "data"),
)


def _whole(records: Iterable[Row]) -> Iterator[Row]:
    """Joins records that came in several pieces."""
    pieces: list[Row] = []
    for record in records:
        pieces.append(record)
        if record["last"]:
            joined = {name: b"".join(piece[name] or b"" for piece in pieces) for name in ("data", "damaged")}
            yield pieces[0] | joined
            pieces = []


def _known(record: Row) -> Row:
    """The entry of a record as `entry_rows.ENTRIES`, its signature and payload checked."""
    row: Row = dict.fromkeys(ENTRIES.names) | record["entry"] | {name: record[name] for name in _FILE_PLACE}
    data, payload = row["data"], row.pop("payload")
    row |= {"entry_id": row["entry_hash"], "own_rule": row.pop("rule", None), "own_reason": row["reason"]}
    row |= {"reason": None, "seen_from": [row.pop("sender")]}
    if row["own_rule"] is None:
        row["signature_rule"] = signature_rule(row["author"], data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])
        if payload is not None:
            row["payload_rule"] = payload_rule(payload, row["payload_size"], row["payload_hash"])
    return row


def _log_of(entry: Row) -> object:
    log = entry["author"], entry["log_id"]
    return entry["entry_id"] if None in log else log


INSPECT: Final[Mapping[str, Inspect]] = {"pcap": inspect, "entries": inspect_entries}
