"""The first cards of a board: what is wrong, and the way to its rows, bytes and packets."""

from __future__ import annotations

import html
import re
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import urlopen

import pytest

from tests.support.boards import ALL, CAPTURE, HOUR, SECOND, TEN, Served, write
from tests.support.running import land
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_file
from wirehouse_orchestration.dashboards import answers, boards, serving
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.landing.manifests import manifests


def test_rows_of_a_source_that_is_no_longer_configured_are_shown(filled: Lake) -> None:
    lake = replace(filled, sources=(Source("other", "ockam", "pcap", "/"),))
    chart = boards.boards()["cardinal"].chart("incidents")
    assert {row["source"] for row in answers.answer(lake, chart, ALL).rows} == {"net"}
    with Served(serving.application(lake)) as served:
        for path in ("board/cardinal?source=net", "chart/cardinal/incidents?source=net&severity=violation"):
            with urlopen(served.url + path) as page:
                text = page.read().decode()
                assert "<option selected>net</option>" in text
        assert text.count("/trace?") == len("extra_message")
        with pytest.raises(HTTPError, match="400") as failed, urlopen(f"{served.url}board/cardinal?source=nobody"):
            pass
        assert "nothing of it has landed, and it is not configured" in html.unescape(failed.value.read().decode())


def test_rows_of_a_service_that_is_no_longer_configured_are_shown(empty: Lake) -> None:
    found = {"protocol": "hiero", "rule": "hiero.x", "severity": "violation", "message": "m", "arrived_at_ns": TEN}
    write(empty, "gold.hiero_found", found | {"source": "nodes"})
    entry = ledger.Entry("gold.hiero_found", "nodes", "2026-11-14", "d", None, None, None, 1, "1", TEN)
    ledger.commit(empty, [entry])
    with Served(serving.application(empty)) as served:
        with urlopen(f"{served.url}board/hiero?source=nodes") as page:
            assert "<option selected>nodes</option>" in page.read().decode()
        with urlopen(f"{served.url}card/hiero/incidents?source=nodes") as card:
            assert "hiero.x" in card.read().decode()
        with pytest.raises(HTTPError, match="400"), urlopen(f"{served.url}board/ockam?source=nodes"):
            pass


def test_what_goes_on_is_wrong_in_each_later_range_and_notes_stand_apart(empty: Lake) -> None:
    found = {"protocol": "cardinal", "message": "m", "topic": "t", "rule": "cardinal.topic_wrong"}
    given = [
        found | {"severity": severity, "window_start": f"2026-11-{day}", "arrived_at_ns": TEN + (day - 14) * 24 * HOUR}
        for severity, day in (("warning", 14), ("note", 14), ("violation", 15), ("violation", 16))
    ]
    write(empty, "gold.cardinal_found", *given)
    moved = {"added": [], "removed": [], "head_hash": CAPTURE, "head_number": 3, "arrived_at_ns": TEN, "sequence": 1}
    write(empty, "gold.cardinal_chain_updates", moved)
    waits = {"block_hash": bytes([5]) * 32, "parent": bytes([4]) * 32, "number": 5, "status": "complete"}
    write(empty, "gold.cardinal_batches_history", waits | {"arrived_at_ns": TEN, "completed_at_ns": TEN + SECOND})

    def shown(chart: str, *ends: str) -> list[tuple[Any, ...]]:
        found = answers.answer(empty, boards.boards()["cardinal"].chart(chart), Span(*ends))
        assert found.error is None
        names = ("severity", "rule", "who", "incidents", "last_at_ns")
        return [tuple(row[name] for name in names) for row in found.rows]

    def lasts(seconds: int) -> None:
        landed = {"protocol": "cardinal", "status": "landed", "last_arrived_at_ns": TEN + seconds * SECOND}
        write(empty, "bronze.captures", landed)

    stall = ("warning", "stall", "head 3", 1, None)
    rule = "cardinal.topic_wrong"
    day = 24 * HOUR
    lasts(10)
    assert stall not in shown("incidents"), "it is as long as a stall may be while messages are under way"
    shutil.rmtree(empty.table_path("bronze.captures"))
    lasts(11)
    assert shown("incidents") == [("violation", rule, "t", 2, TEN + 2 * day), stall, ("warning", rule, "t", 1, TEN)]
    assert shown("incidents", "2026-11-16") == [("violation", rule, "t", 1, TEN + 2 * day), stall]
    assert shown("incidents", "2026-11-16T22:00") == [("violation", rule, "t", 1, TEN + 2 * day), stall]
    assert shown("notes") == [("note", rule, "t", 1, TEN)]
    assert shown("incidents", "2026-11-13", "2026-11-13") == [], "it had not begun"
    chart = boards.boards()["cardinal"].chart("incidents")
    (row,) = answers.evidence(empty, chart, Span("2026-11-16"), {"rule": "stall"}).rows
    assert row.cells["message"] == "the head waits for block 4, of which no message came; complete blocks above it: 1"


def test_what_a_capture_lacks_and_what_no_source_claims_is_wrong(empty: Lake) -> None:
    sources = ("other_ports", "some_ports", "nothing_run")
    captures = {"protocol": "wallaroo", "kind": "pcap", "status": "landed", "first_arrived_at_ns": TEN}
    earlier = captures | {"source": "other_ports", "first_arrived_at_ns": TEN - SECOND, "capture_id": b"\x02" * 32}
    write(empty, "bronze.captures", earlier, *(captures | {"source": source} for source in sources))
    skipped = {"skip": "port_not_claimed", "arrived_at_ns": TEN}
    packets = [skipped | {"source": source} for source in ("other_ports", "other_ports", "some_ports")]
    write(empty, "bronze.segments", *packets, {"source": "some_ports", "arrived_at_ns": TEN})
    hole = {"protocol": "capture", "rule": "capture.hole", "severity": "note", "message": "m", "arrived_at_ns": TEN}
    # Of two connections.
    write(empty, "gold.wallaroo_found", *(hole | {"connection_id": bytes([one]) * 16} for one in range(2)))
    nothing = ("warning", "nothing decoded", "other_ports", "other_ports", 1, TEN - SECOND, None)
    lacking = ("warning", "capture.hole", "capture", "net", 2, TEN, TEN)
    for board in ("wallaroo", "overview"):
        chart = boards.boards()[board].chart("incidents")
        found = answers.answer(empty, chart, ALL)
        fields = [value.field for value in chart.shown if value.field != "protocol"]
        assert [tuple(row[field] for field in fields) for row in found.rows] == [nothing, lacking]
        (row,) = answers.evidence(empty, chart, ALL, {"rule": "nothing decoded"}).rows
        assert row.cells["message"] == "packets that landed, none of a port of the source: 2; why: port_not_claimed"
        assert "02" * 32 in row.key
    assert answers.answer(empty, boards.boards()["ockam"].chart("incidents"), ALL).rows == []


def test_a_fork_names_the_log(empty: Lake) -> None:
    found = {"protocol": "bamboo", "rule": "bamboo.fork", "severity": "warning", "message": "m", "arrived_at_ns": TEN}
    place = {"connection_id": b"c" * 16, "direction": "client", "byte_start": 5, "byte_end": 9, "record_number": 3}
    of_file = {"record_number": 4, "arrived_at_ns": TEN + SECOND}
    elsewhere = place | {"byte_start": 9, "arrived_at_ns": TEN + 2 * SECOND}
    write(empty, "gold.bamboo_found", found | place, found | of_file, found | elsewhere)
    log = {"author": b"\xab" * 32, "log_id": Decimal(7), "arrived_at_ns": TEN}
    later = place | {"window_start": "2026-11-15", "position": Decimal(8)}
    write(empty, "gold.bamboo_forks_history", log | place, log | later, log | of_file)
    names = {"bamboo": ["client 63636363", "abababab/7"], "overview": ["client 63636363", "log 7"]}
    for board, who in names.items():
        shown = answers.answer(empty, boards.boards()[board].chart("incidents"), ALL)
        assert [(row["who"], row["incidents"]) for row in shown.rows] == list(zip(who, (1, 2), strict=True))


def test_an_incident_leads_to_the_bytes_and_packets_of_its_newest_row(empty: Lake, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    records = [CapturedPacket(TEN + number * SECOND, bytes([number]) * 60) for number in range(3)]
    write_file(records, inbox / "a.pcap")
    lake = replace(empty, sources=(Source("net", "wallaroo", "pcap", str(inbox), ports=(7100,)),))
    land(lake)
    (manifest,) = manifests(lake)
    found = {"protocol": "wallaroo", "severity": "violation", "rule": "wallaroo.x", "message": "m"}
    place = {"capture_id": bytes.fromhex(manifest.capture_id)}
    given = [found | place | {"record_number": at, "arrived_at_ns": TEN + at * SECOND} for at in range(3)]
    write(lake, "gold.wallaroo_found", *given)
    of_cardinal = {"protocol": "cardinal", "rule": "cardinal.x", "arrived_at_ns": TEN}
    write(lake, "gold.cardinal_found", found | of_cardinal)
    with Served(serving.application(lake)) as served:

        def fetched(path: str) -> Any:
            return urlopen(served.url + path)

        with fetched("card/wallaroo/incidents") as card:
            links = re.findall(r'href="/(newest/[^"]*)"', card.read().decode())
        of_bytes, of_packets = map(html.unescape, links)
        with fetched(of_bytes) as page:
            assert "record 2 of capture" in page.read().decode()
        with fetched(of_packets) as file:
            assert file.headers["Content-Disposition"] == 'attachment; filename="gold.wallaroo_incidents.pcap"'
            excerpt = file.read()
        with pytest.raises(HTTPError, match="404"):
            fetched(of_packets.replace("newest/packets", "newest/secrets"))
        for board, with_packets in (("cardinal", []), ("overview", ["wallaroo"])):
            with fetched(f"card/{board}/incidents") as card:
                marks = re.findall(r'href="/newest/packets/([^"]*)"', card.read().decode())
            assert [parse_qs(html.unescape(mark))["protocol"][0] for mark in marks] == with_packets
    write_file(records[2:], tmp_path / "third.pcap")
    assert excerpt == (tmp_path / "third.pcap").read_bytes()
