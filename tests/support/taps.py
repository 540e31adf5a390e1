"""What taps make of traffic: packets are lost, swapped, of one side or late, and the capture begins and ends anywhere.

Whatever a tap does, nobody who spoke by the protocol broke it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from random import Random

import pyarrow.compute as pc

from tests.support.landed import Row, landed_packets
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.packets import FIN, RST, SYN, parse

_SKEWS_NS = (0, 1_000, 1_000_000, 50_000_000, 1_000_000_000)


@dataclass(frozen=True)
class Tap:
    """How a capture differs from what was sent. `client` and `server` say whose packets are meant."""

    #: Of each hundred packets of a side, how many are not captured.
    client_lost: int = 0
    server_lost: int = 0
    #: How much later the packets of the server are captured than those of the client (another clock, another path).
    server_late_ns: int = 0
    #: Of each hundred packets, how many change places with the next one.
    swapped: int = 0
    #: Shares of the packets, in hundredths, between which the capture lies.
    begin: int = 0
    end: int = 100
    seed: int = 0


def any_tap(seed: int) -> Tap:
    """A tap of a kind that `seed` selects: every seventh lacks a side, every third begins or ends within."""
    random = Random(seed)
    lost = random.choice([(0, 0), (0, 0), (2, 2), (10, 10), (50, 0), (0, 50), random.choice([(100, 0), (0, 100)])])
    late = random.choice(_SKEWS_NS) * random.choice((-1, 1))
    begin = random.choice((0, 0, random.randrange(60)))
    end = random.choice((100, 100, random.randrange(begin + 20, 101)))
    return Tap(*lost, late, random.choice((0, 0, 1, 10)), begin, end, seed)


def captured(packets: Iterable[CapturedPacket], servers: Collection[int], tap: Tap) -> list[CapturedPacket]:
    """What `tap` has of `packets`, in its order. `servers`: the ports of servers."""
    random = Random(tap.seed)
    sent = list(packets)
    sent = sent[len(sent) * tap.begin // 100 : len(sent) * tap.end // 100]
    kept = []
    for packet, of_server in zip(sent, _of_server(sent, servers), strict=True):
        if random.randrange(100) >= (tap.server_lost if of_server else tap.client_lost):
            kept.append(packet._replace(ts_ns=packet.ts_ns + (tap.server_late_ns if of_server else 0)))
    kept.sort(key=lambda packet: packet.ts_ns)
    return _swap(kept, tap.swapped, random)


#: Which packets with bytes `joined` takes: from the first ones on, and within.
STRETCHES = [(0, 1), (0, 3), (0, 5), (1, 3), (2, 4), (3, 8), (5, 15)]


def joined(rows: Iterable[Row], first: int, last: int) -> list[Row]:
    """Of each port pair the packets with bytes from the `first` to the `last` were not captured.

    Each side then sends all of these bytes again, as one segment that acknowledges all of the other side's. A sender
    that keeps to TCP hardly does so; a reader reports no rule for it all the same.
    """
    told: list[Row] = []
    for _, own in groupby(rows, itemgetter("flow")):
        flow = list(own)
        with_bytes = [row for row in flow if row["payload_bytes"] and not row["flags"] & (SYN | FIN | RST)]
        missed = with_bytes[first : last + 1]
        again = []
        for side in dict.fromkeys(row["direction"] for row in missed):
            sent = [row for row in missed if row["direction"] == side]
            answers = [row for row in missed if row["direction"] != side]
            payload = b"".join(row["payload"] for row in sent)
            row = sent[0] | {"payload": payload, "payload_bytes": len(payload)}
            if answers:
                row["acknowledgment"] = (answers[-1]["sequence"] + answers[-1]["payload_bytes"]) % 2**32
            again.append(row | {name: missed[-1][name] for name in ("arrived_at_ns", "record_number")})
        at = flow.index(missed[-1]) if missed else 0
        told += [row for row in flow[:at] if row not in missed] + again + flow[at + 1 :]
    return told


def sent_again(rows: Iterable[Row], share: int, seed: int, after_ns: int = 300_000_000) -> list[Row]:
    """Of each hundred packets with bytes `share` were not captured. They are sent again, with what is known by then.

    The other side had received them: what it sent stays as it was.
    """
    random = Random(seed)
    told: list[Row] = []
    for _, own in groupby(rows, itemgetter("flow")):
        flow = list(own)
        missed = [
            row
            for row in flow
            if row["payload_bytes"] and not row["flags"] & (SYN | FIN | RST) and random.randrange(100) < share
        ]
        again = []
        for row in missed:
            at_ns = row["arrived_at_ns"] + after_ns
            known = [
                one["acknowledgment"]
                for one in flow
                if one["direction"] == row["direction"] and one["arrived_at_ns"] <= at_ns and not one["flags"] & RST
            ]
            again.append(row | {"arrived_at_ns": at_ns, "acknowledgment": known[-1]})
        told += [row for row in flow if row not in missed] + again
    told.sort(key=itemgetter("arrived_at_ns"))
    numbered = [row | {"record_number": number} for number, row in enumerate(told)]
    return sorted(numbered, key=itemgetter("flow", "record_number"))


def _of_server(packets: Sequence[CapturedPacket], servers: Collection[int]) -> list[bool]:
    ports = [
        port
        for batch in landed_packets(packets)
        for port in pc.coalesce(parse(batch).column("source_port"), -1).to_pylist()
    ]
    return [port in servers for port in ports]


def _swap(packets: list[CapturedPacket], share: int, random: Random) -> list[CapturedPacket]:
    """Neighbours change places, and each place keeps its time."""
    swapped = list(packets)
    for at in range(len(swapped) - 1):
        if random.randrange(100) < share:
            first, second = swapped[at], swapped[at + 1]
            swapped[at : at + 2] = second._replace(ts_ns=first.ts_ns), first._replace(ts_ns=second.ts_ns)
    return swapped
