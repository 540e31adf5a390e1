"""Simulated captures of block nodes, and what the log and all calls together say of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.support.landed import landed_packets
from wirehouse_codecs.hiero.correlation.events import EVENT_KINDS, event_of, order_of
from wirehouse_codecs.hiero.correlation.fold import Fold
from wirehouse_codecs.hiero.correlation.known import WAITS
from wirehouse_codecs.hiero.correlation.rows import Found, Outcome
from wirehouse_codecs.hiero.log.log import starter
from wirehouse_codecs.hiero.log.rows import SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.logs.rows import MESSAGE, VIOLATION
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket

Row = dict[str, Any]


@dataclass
class Judged:
    """What the log, and all calls together, say of a capture."""

    rows: dict[str, list[Row]]
    told: list[Outcome]
    #: When a rule was found first.
    found_ns: dict[str, int]

    @property
    def found(self) -> Counter[str]:
        alone = (row["finding"]["rule"].removeprefix("hiero.") for row in self.rows[VIOLATION])
        return Counter([*alone, *(each.rule.name for each in self.told if isinstance(each, Found))])

    def messages(self, kind: str) -> list[Row]:
        return [row | row["message"] for row in self.rows[MESSAGE] if row["message"]["kind"] == kind]

    def of(self, kind: type[Outcome]) -> list[Any]:
        """The rows that were told last of each."""
        return [one for one in self.told if isinstance(one, kind)]


def judge(captured: Iterable[CapturedPacket], options: HieroOptions) -> Judged:
    return judge_landed(landed_packets(captured), options)


def judge_landed(captured: Iterable[pa.RecordBatch], options: HieroOptions, *ports: int) -> Judged:
    """Of packets as they were landed; `ports` are the nodes', without any the first packet is sent to one."""
    return judge_log(tcp_inspection.read(captured, starter(options), SCHEMA, ports or None), options)


def judge_log(log: Iterable[Row], options: HieroOptions) -> Judged:
    """Of the rows of the log."""
    rows = defaultdict(list)
    for row in log:
        rows[row["row_kind"]].append(row)
    fold = Fold(options)
    told: list[tuple[int, Outcome]] = []
    at_ns = 0
    for row in sorted((row for kind in EVENT_KINDS for row in rows[kind]), key=order_of):
        event = event_of(row)
        # What is open when the capture ends is not over.
        if event is not None and event.fields.get("how") != grpc.How.CAPTURE_END:
            at_ns = event.at_ns
            told += [(at_ns, one) for one in fold.take(event)]
    # Nothing is held back any more.
    at_ns += WAITS.silent_ns + 1
    told += [(at_ns, one) for one in fold.end_window(at_ns)]
    found = [(row["arrived_at_ns"], row["finding"]["rule"].removeprefix("hiero.")) for row in rows[VIOLATION]]
    found += [(ns, one.rule.name) for ns, one in told if isinstance(one, Found)]
    found_ns = {name: ns for ns, name in sorted(found, reverse=True)}
    return Judged(rows, [one for _, one in told], found_ns)
