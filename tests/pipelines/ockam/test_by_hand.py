"""Gold of traffic whose bytes no encoder of the product wrote, in this process without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.landed import landed_packets, read_log, segments
from tests.support.ockam_by_hand import PORT, Talk
from tests.support.running import select
from wirehouse_codecs.ockam.log.log import SCHEMA, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.ockam import gold
from wirehouse_pipelines.ockam.known import LOG, STATE
from wirehouse_pipelines.tables import all_tables

pytestmark = pytest.mark.usefixtures("stages_run_here")
TYPES = arrow_types.schema(all_tables()[LOG])


def lake_of(folder: Path, say: Callable[[Talk], None], *, closed: bool = True, cut: bool = True) -> Lake:
    """A lake of hour windows with gold of what is said; all of them in one run if not `cut`."""
    talk, windows = Talk(), Windows("hour", "2025-06-15T15")
    say(talk)
    packets = list(talk.close()) if closed else talk.packets
    landed = segments(landed_packets(packets), PORT)
    placed = [row | {"capture_id": b"c", "window_start": windows.of(row["arrived_at_ns"])} for row in landed]
    names = sorted({row["window_start"] for row in placed})
    first = names[0]
    ends_ns = {name: windows.end_ns(name) for name in names}
    rows = [row | {"source": "s"} for row in read_log(placed, starter(OckamOptions()), SCHEMA, ends_ns)]
    lake = Lake(str(folder), Windows("hour", first), (Source("s", "ockam", "pcap", "x", ports=(PORT,)),))
    spark_tables.replace(lake, LOG, pa.Table.from_pylist(rows, schema=TYPES), [Span("s", tuple(names))])
    before = None
    for part in ([one] for one in names) if cut else [names]:
        entries: dict[str, Entry] = {"s": Entry(STATE, "s", before, "", "", "", first, 0, "", 0)} if before else {}
        work = Work(None, lake, (Span("s", tuple(part)),), entries, ())  # type: ignore[arg-type]
        for table, made in gold.tables(work):
            spark_tables.replace(lake, table, made, work.spans)
        before = part[-1]
    return lake


def restarted(talk: Talk, saved: int, stored: int) -> None:
    """A client saves its index; the service begins anew, and the name has `stored` messages under a new address."""
    pub, con = talk.open("10.1.1.9"), talk.open()
    pub.opened("orders", "orders-1", "pub").store("orders-1", *range(10))
    con.opened("orders", "orders-1").got("cl", "orders", 0)
    con.pull("orders-1", 1, 0).pulled("orders-1", 1, *range(saved)).save("cl", "orders", saved)
    pub.close()
    con.close()
    talk.wait(600)
    pub, con = talk.open("10.1.1.9"), talk.open()
    pub.opened("orders", "orders-2", "pub").store("orders-2", *range(stored))
    con.opened("orders", "orders-2").got("cl", "orders", saved)
    talk.wires = talk.wires[2:]


@pytest.mark.parametrize(("stored", "beyond"), [(5, True), (6, False), (9, False)])
def test_a_position_beyond_a_later_incarnation(tmp_path: Path, stored: int, *, beyond: bool) -> None:
    lake = lake_of(tmp_path, lambda talk: restarted(talk, 6, stored))
    asked = "SELECT stream_address, saved, lag, beyond_stream, superseded FROM gold.ockam_stream_indexes ORDER BY 1"
    assert select(lake, asked) == [
        {"stream_address": "orders-1", "saved": 6, "lag": 4, "beyond_stream": False, "superseded": True},
        {
            "stream_address": "orders-2",
            "saved": 6,
            "lag": max(stored - 6, 0),
            "beyond_stream": beyond,
            "superseded": False,
        },
    ]
    current = select(lake, "SELECT stream_address, beyond_stream FROM gold.ockam_current_indexes")
    assert current == [{"stream_address": "orders-2", "beyond_stream": beyond}]
    causes = select(lake, "SELECT stream_address, cause FROM gold.ockam_lag ORDER BY stream_address, arrived_at_ns")
    assert [one["cause"] for one in causes if one["stream_address"] == "orders-2"][:1] == ["incarnation"]
    assert "incarnation" not in [one["cause"] for one in causes if one["stream_address"] == "orders-1"]


def silent(talk: Talk, lost: int) -> None:
    """A client is told 10, and on another connection 3. A third one, which was told of the name an hour before, lacks
    bytes."""
    third = talk.open("10.1.1.3").opened("orders", "orders-1", "third")
    talk.wait(3600)
    one, two = talk.open("10.1.1.1"), talk.open("10.1.1.2")
    one.got("cl", "orders", 10)
    third.lose("s", lost)
    two.got("cl", "orders", 3)
    talk.wait(20)
    third.raw("c", b"\0\0")
    talk.wait(20)
    third.raw("c", b"\0\0")


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(("lost", "found"), [(0, ["ockam.saved_index_lowered"]), (40, [])])
def test_what_a_silent_connection_lacks_excuses_what_it_may_have_said(
    tmp_path: Path, lost: int, found: list[str], *, cut: bool
) -> None:
    lake = lake_of(tmp_path, lambda talk: silent(talk, lost), cut=cut)
    rows: list[dict[str, Any]] = select(lake, "SELECT rule FROM gold.ockam_found WHERE severity = 'violation'")
    assert [row["rule"] for row in rows] == found


def split(talk: Talk, lost: int) -> None:
    """A client pulls on one connection, and skips three messages when it saves on another, which later may lack bytes.

    Both end hours after that.
    """
    pub, con, index = talk.open("10.1.1.9"), talk.open(), talk.open()
    pub.opened("orders", "orders-1", "pub").store("orders-1", *range(10))
    con.opened("orders", "orders-1")
    index.got("cl", "orders", 0)
    con.pull("orders-1", 1, 0).pulled("orders-1", 1, 0, 1, 2).pull("orders-1", 2, 6).pulled("orders-1", 2, 6, 7, 8)
    index.save("cl", "orders", 9)
    talk.wait(3600)
    if lost:
        index.lose("s", lost).raw("c", b"\0\0")
        talk.wait(20)
        index.raw("c", b"\0\0")
    talk.wait(4 * 3600)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(("lost", "found"), [(0, ["ockam.consumer_hole"]), (40, [])])
def test_a_connection_that_means_a_stream_by_name_ends_in_a_later_window(
    tmp_path: Path, lost: int, found: list[str], *, cut: bool
) -> None:
    lake = lake_of(tmp_path, lambda talk: split(talk, lost), cut=cut)
    own = "SELECT rule FROM gold.ockam_violations WHERE rule LIKE 'ockam.%'"
    assert [row["rule"] for row in select(lake, own)] == found
    holes = select(lake, "SELECT kind, saved, first_index, messages FROM gold.ockam_delivery_holes")
    assert holes == [{"kind": "consumer_hole", "saved": 9, "first_index": 3, "messages": 3}] * len(found)


def refused(talk: Talk) -> None:
    """A client is told 10, and then 3. A create of the name was refused before."""
    one, two, more = talk.open("10.1.1.1"), talk.open("10.1.1.2"), talk.open("10.1.1.3")
    talk.open("10.1.1.4").opened("orders", "orders-1")
    more.create("orders").error("stream")
    one.got("cl", "orders", 10)
    two.got("cl", "orders", 3)
    talk.wait(3600)


@pytest.mark.parametrize("cut", [True, False])
def test_a_connection_ends_whose_create_was_refused(tmp_path: Path, *, cut: bool) -> None:
    lake = lake_of(tmp_path, refused, cut=cut)
    found = "SELECT rule FROM gold.ockam_found WHERE severity = 'violation' AND rule LIKE '%index%'"
    assert [row["rule"] for row in select(lake, found)] == ["ockam.saved_index_lowered"]


def named_late(talk: Talk) -> None:
    """A client pulls, and an hour later pulls again and saves: only then it is known who it is."""
    pub, con = talk.open("10.1.1.9"), talk.open()
    pub.opened("orders", "orders-1", "pub").store("orders-1", *range(20))
    con.opened("orders", "orders-1").pull("orders-1", 1, 0).pulled("orders-1", 1, *range(6))
    talk.wait(3600)
    con.pull("orders-1", 2, 5).pulled("orders-1", 2, *range(5, 10))
    con.save("cl", "orders", 10)


@pytest.mark.parametrize("cut", [True, False])
def test_what_a_client_pulled_before_it_was_named(tmp_path: Path, *, cut: bool) -> None:
    lake = lake_of(tmp_path, named_late, cut=cut)
    columns = "saved, delivered, delivered_messages, redelivered, lag, lost"
    assert select(lake, f"SELECT {columns} FROM gold.ockam_stream_indexes") == [
        {"saved": 10, "delivered": 10, "delivered_messages": 10, "redelivered": 1, "lag": 10, "lost": 0}
    ]
    assert select(lake, "SELECT rule FROM gold.ockam_found WHERE severity <> 'note'") == []
