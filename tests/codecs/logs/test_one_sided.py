"""Captures that lack one side, or half of its packets: what may have been said in the missing bytes breaks no rule.

All legal traffic of the simulators and all vectors, as `inspect` reads them. What the protocols do then is tested in
`test_one_sided.py` of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.landed import landed, landed_packets
from tests.support.legal_captures import INSPECT, Legal, legal_traffic, severe
from tests.support.searches import fast_first
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.logs.inspection import LANDED_PACKETS
from wirehouse_codecs.tcp.packets import ACK, SYN, parse

VECTORS = Path(__file__).parents[2] / "vectors"
CAPTURES = [path for protocol in INSPECT for path in sorted((VECTORS / protocol).rglob("*.pcap"))]
#: Without its answer nobody knows which name was asked for, so two names seem to have one address.
MORE_WITHOUT_REQUESTS = {"bad_create_other_name": {"ockam.address_shared"}}
SEEDS = (range(1), range(1, 20))
LEGAL = list(legal_traffic())


def parts(
    batches: list[pa.RecordBatch], servers: Iterable[int], seeds: Iterable[int]
) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
    """Landed packets without a side (if `seeds` begin with 0), and without half of the packets of a side."""
    ports = pa.array(servers, pa.int32())
    of_server = [pc.is_in(parse(batch).column("source_port"), ports).to_pylist() for batch in batches]
    for side, seed in product((False, True), (*([None] if 0 in seeds else []), *seeds)):
        random, kept = Random(seed), []
        for batch, is_server in zip(batches, of_server, strict=True):
            mask = [one is not side or (seed is not None and random.random() < 0.5) for one in is_server]
            kept.append(batch.select(LANDED_PACKETS.names[4:]).filter(pa.array(mask)))
        yield f"{'server' if side else 'client'} {seed}", list(landed(kept))


@pytest.mark.parametrize(
    ("legal", "seeds"), fast_first(product(LEGAL, SEEDS), by=lambda case: case[0].protocol, most=1), ids=str
)
def test_what_is_missing_of_legal_traffic_breaks_no_rule(legal: Legal, seeds: range) -> None:
    batches = list(landed_packets(legal.packets()))
    assert legal.severe(batches) == set()
    for name, part in parts(batches, legal.ports, seeds):
        assert (name, legal.severe(part)) == (name, set())


@pytest.mark.parametrize(
    ("path", "seeds"),
    fast_first(product(CAPTURES, SEEDS), by=lambda case: case[0].relative_to(VECTORS).parts[0], most=1),
    ids=lambda case: getattr(case, "stem", str(case)),
)
def test_what_is_missing_of_a_vector_breaks_no_more_rules(path: Path, seeds: range) -> None:
    with path.open("rb") as stream:
        batches = list(landed(PacketCapture(stream).batches()))
    ports = servers(batches)
    inspect = INSPECT[path.relative_to(VECTORS).parts[0]]
    broken = severe(inspect(batches, ports)) | MORE_WITHOUT_REQUESTS.get(path.stem, set())
    for name, part in parts(batches, ports, seeds):
        assert (name, severe(inspect(part, ports)) - broken) == (name, set())


def servers(batches: Iterable[pa.RecordBatch]) -> tuple[int, ...]:
    """The ports to which SYNs are sent."""
    ports = set()
    for rows in map(parse, batches):
        flags = pc.bit_wise_and(rows.column("flags"), pa.scalar(SYN | ACK, rows.schema.field("flags").type))
        ports |= set(rows.filter(pc.equal(flags, SYN)).column("destination_port").to_pylist())
    return tuple(sorted(ports))
