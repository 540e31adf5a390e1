"""The boards: their definitions are sound, every statement runs, and answers say what the tables hold."""

from __future__ import annotations

import html
import io
import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import vl_convert
import yaml

from infra.tools.generated_pages import FOLDER as DOCS
from tests.support.boards import ALL, CAPTURE, CHARTS, HOUR, NAMELESS, NEXT, SECOND, SESSION, STREAM, TEN, Served, write
from tests.support.running import land
from wirehouse_orchestration import config
from wirehouse_orchestration.dashboards import answers, boards, drawing, pages, serving
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.dashboards.boards import Board, BoardError, Chart
from wirehouse_orchestration.evidence import trace as tracing
from wirehouse_pipelines.jobs import forgetting, runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.tables import all_tables


def test_there_is_a_board_for_each_protocol() -> None:
    assert next(iter(boards.boards())) == boards.FIRST
    assert set(boards.boards()) == {boards.FIRST, *PROTOCOLS}


@pytest.mark.parametrize(("board", "chart"), CHARTS)
def test_an_empty_lake_is_asked_without_an_error_and_says_something_friendly(
    board: Board, chart: Chart, empty: Lake
) -> None:
    found = answers.answer(empty, chart, ALL)
    assert found.error is None
    assert answers.is_empty(chart, found)
    assert {value.field for value in chart.shown} <= set(found.names)
    assert answers.evidence(empty, chart, ALL).answer.error is None
    card = pages.page("card.html", board=board, chart=chart, span=ALL, answer=found, empty=True, spec=None)
    assert str(pages.code(chart.empty)) in card


@pytest.mark.parametrize(("board", "chart"), CHARTS)
def test_each_select_from_a_table_is_of_the_span_asked_for(board: Board, chart: Chart, empty: Lake) -> None:
    for text in (chart.sql, chart.rows.sql):
        named = re.findall(r"FROM\s+(?:bronze|silver|gold)\.\w+", text)
        assert text.count("{span}") >= len(named) > 0


def test_the_page_about_them_shows_a_board_that_is_one() -> None:
    page = (DOCS / "dashboards.md").read_text()
    example = Board(**yaml.safe_load(page.split("```yaml\n")[1].split("```")[0]), name="overview")
    assert example.charts == tuple(map(boards.boards()["overview"].chart, ("incidents", "notes", "rules")))


def changed(**how: Any) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((boards.FOLDERS[0] / "overview.yaml").read_text())
    raw["charts"][1] |= how
    return raw


@pytest.mark.parametrize(
    ("how", "place", "reason"),
    [
        ({"colour": 1}, "charts.1.colour", "Extra inputs"),
        ({"question": "records"}, "charts.1.question", "match pattern"),
        ({"sql": "SELECT 1"}, "charts.1.sql", "match pattern"),
        ({"type": "pie"}, "charts.1.type", "Input should be"),
        ({"type": "numbers"}, "charts.1", "numbers and table have values"),
        ({"y": {"field": "records", "title": "Records"}}, "charts.1", "a number has no unit"),
        ({"x": None}, "charts.1", "x and y are needed"),
        ({"id": "lake"}, "the board", "two charts have one id"),
        (
            {"rows": {"table": "gold.violations", "columns": ["rule"], "order": "rule", "time": "at_ns"}},
            "charts.1.rows",
            "no column at_ns",
        ),
        ({"rows": {"table": "gold.none", "columns": ["a"], "order": "a"}}, "charts.1.rows", "no table"),
        (
            {"rows": {"table": "gold.ockam_state", "columns": ["a"], "order": "a"}},
            "charts.1.rows",
            "no column capture_id",
        ),
    ],
)
def test_a_board_that_is_wrong_is_refused_with_its_place(
    how: dict[str, Any], place: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "overview.yaml"
    file.write_text(yaml.safe_dump(changed(**how)))
    with pytest.raises(BoardError, match=reason) as error:
        boards.load(file)
    assert error.value.fields["file"] == "overview.yaml"
    assert error.value.fields["place"] == place


def test_a_capture_counts_in_each_window_that_it_has_records_in(make_lake: Callable[..., Lake], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in STREAM.read_text().splitlines()]
    path, day = tmp_path / "days.jsonl", 86_400_000
    later = (row | {"timestamp_ms": row["timestamp_ms"] + more * day} for more in (0, 1, 3) for row in rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in later))
    lake = make_lake({"net": (path, {})})
    land(lake)
    no_spark: Any = None
    runner.run_job(no_spark, lake, "bronze.captures", "2023-11-14", "2023-11-17")
    overview, days = boards.boards()["overview"], ["2023-11-14", "2023-11-15", "2023-11-17"]
    assert answers.windows(lake) == days
    for name in ("records", "windows"):
        found = answers.answer(lake, overview.chart(name), ALL).rows
        assert [(row["window_start"], row["records"]) for row in found] == [(window, len(rows)) for window in days]
    second = Span(days[1], days[1])
    (told,) = answers.answer(lake, overview.chart("lake"), second).rows
    assert {name: told[name] for name in ("captures", "windows", "records")} == {
        "captures": 1,
        "windows": 1,
        "records": len(rows),
    }
    assert answers.step(lake, "cardinal", second) > SECOND, "its records lie anywhere in the window"
    behind = answers.evidence(lake, overview.chart("windows"), ALL, {"window_start": days[1], "source": "net"})
    assert [row.cells["records"] for row in behind.rows] == [len(rows)]
    out = io.StringIO()
    tracing.trace(lake, behind.rows[0].table, behind.rows[0].key, out)
    assert f"{3 * len(rows):,} records" in out.getvalue()
    forgetting.erase_landed(lake, manifests(lake)[0].capture_id)
    assert answers.windows(lake) == []


def test_a_log_counts_by_source_and_what_is_missing_is_not_signed(empty: Lake) -> None:
    log = {"author": CAPTURE, "log_id": 0, "verified_up_to": 1, "length": 1000, "entries": 2, "valid": 1, "unknown": 1}
    log |= {"missing_entries": 998}
    write(empty, "gold.bamboo_logs_history", log, log | {"source": "files"})
    chart = boards.boards()["bamboo"].chart("verified")
    found = answers.answer(empty, chart, ALL).rows
    parts = {"verified": 1, "signed only": 1, "missing": 998}
    assert {(row["log"], row["part"]): row["entries"] for row in found} == {
        (f"{source} · 01010101/0 to 1", part): entries for source in ("files", "net") for part, entries in parts.items()
    }
    assert len(answers.evidence(empty, chart, ALL, {"log": "net · 01010101/0 to 1"}).rows) == 1


def test_records_that_could_not_be_read_are_damage(empty: Lake) -> None:
    capture = {"capture_id": CAPTURE, "protocol": "cardinal", "status": "landed", "records": 6, "unreadable_records": 2}
    write(empty, "bronze.captures", capture)
    write(empty, "bronze.windows", capture)
    finding = {"rule": "capture.file_damaged", "severity": "note"}
    write(empty, "silver.cardinal", {"row_kind": "finding", "capture_id": CAPTURE, "finding": finding})
    board = boards.boards()["overview"]
    (numbers,) = answers.answer(empty, board.chart("lake"), ALL).rows
    assert numbers["not_whole"] == 1
    (damage,) = answers.answer(empty, board.chart("damage"), ALL).rows
    assert (damage["rule"], damage["findings"]) == ("capture.file_damaged", 1)


@pytest.fixture
def replayed(empty: Lake) -> Lake:
    """A stream of two sessions, of which the second had everything acknowledged; and one of a session without HELLO."""
    named = {"program_name": "feeds", "instance_name": "one", "dialect": "v3"}
    sessions: list[dict[str, Any]] = [{"connection_id": SESSION, "ended": "reset"} | named]
    sessions += [{"connection_id": NEXT} | named, {"connection_id": NAMELESS}]
    write(empty, "gold.wallaroo_sessions_history", *sessions)
    stream = {"stream_id": 1, "stream_name": "s", "state": "open", "messages": 50}
    write(
        empty,
        "gold.wallaroo_streams_history",
        stream | {"connection_id": SESSION, "unacked": 50},
        stream | {"connection_id": NEXT, "unacked": 0},
        stream | {"connection_id": NAMELESS, "stream_name": None, "unacked": 3},
    )
    write(
        empty, "gold.wallaroo_stream_progress_history", named | {"stream_id": 1, "connection_id": NEXT, "replayed": 50}
    )
    turns = ({"granted": 100, "balance": 100}, {"granted": 100, "balance": 100, "zero_at_ns": TEN + SECOND})
    told = ({"connection_id": SESSION, "arrived_at_ns": TEN + i * 10 * SECOND} | turn for i, turn in enumerate(turns))
    write(empty, "gold.wallaroo_credits", *told)
    return empty


def test_a_stream_stands_as_in_its_newest_session(replayed: Lake) -> None:
    wallaroo = boards.boards()["wallaroo"]
    (told,) = answers.answer(replayed, wallaroo.chart("sessions"), ALL).rows
    assert (told["streams"], told["unacked"], told["messages"], told["replayed"]) == (2, 3, 150, 50)
    for span in (ALL, Span("2026-11-14", "2026-11-14")):
        waiting = answers.answer(replayed, wallaroo.chart("unacked"), span).rows
        assert [(row["stream"], row["unacked"]) for row in waiting] == [("net · 1", 3)]
        (row,) = answers.evidence(replayed, wallaroo.chart("unacked"), span).rows
        assert NAMELESS.hex() in row.key
        states = answers.answer(replayed, wallaroo.chart("states"), span).rows
        assert [(row["state"], row["streams"]) for row in states] == [("open", 2)]


def test_a_balance_that_runs_out_is_drawn_as_such(replayed: Lake) -> None:
    chart = boards.boards()["wallaroo"].chart("credits")
    rows = answers.answer(replayed, chart, ALL).rows
    drawn = sorted(rows, key=lambda row: row["arrived_at_ns"])
    balances = [(row["arrived_at_ns"] - TEN, row["balance"]) for row in drawn]
    again = 10 * SECOND
    assert balances == [(0, 0), (0, 100), (SECOND, 0), (again, 0), (again, 100)]
    assert {row["connector"] for row in rows} == {"feeds/one"}
    assert drawing.spec(chart, rows)["encoding"]["y"]["scale"]["zero"]
    heads = boards.boards()["cardinal"].chart("chain")
    assert not drawing.spec(heads, [])["encoding"]["y"]["scale"]["zero"]


def test_incarnations_of_a_stream_stand_apart(empty: Lake) -> None:
    index = {"client_id": "c", "stream_name": "s", "partition": 0}
    lags = ({"stream_address": address, "lag": lag} for address, lag in (("a1", 40), ("a2", 2)))
    write(empty, "gold.ockam_stream_indexes_history", *(index | lag for lag in lags))
    rows = answers.answer(empty, boards.boards()["ockam"].chart("lag"), ALL).rows
    assert [(row["consumer"], row["lag"]) for row in rows] == [("c · s/0 · a1", 40), ("c · s/0 · a2", 2)]


def test_a_node_that_fetched_nothing_is_shown(empty: Lake) -> None:
    behind = {"node": "n", "connection_id": SESSION, "byte_end": 1, "state": "stalled", "fetched": 0}
    write(empty, "gold.hiero_catch_ups_history", behind)
    chart = boards.boards()["hiero"].chart("catch_ups")
    (row,) = answers.answer(empty, chart, ALL).rows
    assert (row["node"], row["state"], row["fetched"]) == ("n", "stalled", 0)


def test_a_row_of_a_table_leads_to_the_rows_behind_it_and_a_cut_table_says_so(empty: Lake) -> None:
    behind = {"connection_id": SESSION, "state": "done", "fetched": 0}
    caught_up = ({"node": "n", "byte_end": at, "arrived_at_ns": TEN + at} for at in range(2, 102))
    stalled = {"node": "n & m", "byte_end": 1, "state": "stalled", "arrived_at_ns": TEN}
    write(empty, "gold.hiero_catch_ups_history", behind | stalled, *(behind | one for one in caught_up))
    lake = replace(empty, sources=(Source("net", "hiero", "pcap", "/"),))
    with Served(serving.application(lake)) as served:

        def page(path: str) -> str:
            with urlopen(served.url + path) as answer:
                return str(answer.read().decode())

        card = page("card/hiero/catch_ups")
        assert "Only the first 100 are shown" in card
        links = re.findall(r'href="/(chart/hiero/catch_ups[^"]*)#rows"', card)
        assert len(links) == 100
        rows = page(html.unescape(links[0])).partition('id="rows"')[2]
        assert (rows.count("/trace?"), rows.count("stalled")) == (1, 2), "as a value and as what was asked"
        assert "Only the first" not in page("card/hiero/retries")


def test_what_the_broker_let_go_of_is_shown(empty: Lake) -> None:
    write(empty, "bronze.findings", {"protocol": "capture", "rule": "capture.offset_gap", "severity": "note"})
    rows = answers.answer(empty, boards.boards()["overview"].chart("damage"), ALL).rows
    assert [(row["rule"], row["source"], row["findings"]) for row in rows] == [("capture.offset_gap", "net", 1)]


def test_what_was_rejected_has_not_landed(empty: Lake) -> None:
    told = {"protocol": "cardinal", "kind": "messages", "path": "a"}
    landed = told | {"status": "landed", "records": 3, "size_bytes": 10, "landed_at_ns": time.time_ns() - 48 * HOUR}
    rejected = told | {"status": "rejected", "records": 0, "size_bytes": 10**9, "landed_at_ns": time.time_ns()}
    rejected |= {"window_start": "2026-11-20", "capture_id": b"\2" * 32}
    write(empty, "bronze.captures", landed, rejected)
    write(empty, "bronze.windows", landed)
    overview = boards.boards()["overview"]
    (lake,) = answers.answer(empty, overview.chart("lake"), ALL).rows
    assert (lake["captures"], lake["windows"], lake["size_bytes"], lake["not_whole"]) == (1, 1, 10, 1)
    (source,) = answers.answer(empty, overview.chart("freshness"), ALL).rows
    assert source["hours"] == pytest.approx(48, abs=0.1)
    assert [row["size_bytes"] for row in answers.answer(empty, overview.chart("bytes"), ALL).rows] == [10]


def test_a_mark_leads_to_its_rows_and_these_to_their_bytes(filled: Lake) -> None:
    chart = boards.boards()["overview"].chart("rules")
    behind = answers.evidence(filled, chart, ALL, {"rule": "cardinal.topic_wrong", "severity": "warning"})
    assert len(behind.rows) == len("topic_wrong")
    words = shlex.split(behind.rows[0].command)
    key = "source=net,window_start=2026-11-14,rule=cardinal.topic_wrong,connection_id=,direction=,byte_start=,"
    key += f"capture_id={CAPTURE.hex()},record_number=0"
    assert words == ["wirehouse", "trace", "gold.violations", key]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.VARIABLE, "/the lake/wirehouse.toml")
        told = shlex.split(behind.rows[0].command)
    assert told == [words[0], "--config", "/the lake/wirehouse.toml", *words[1:]]
    assert answers.evidence(filled, chart, ALL, {"rule": "' OR 1=1 --"}).rows == []
    assert answers.evidence(filled, chart, ALL, most=3).answer.cut
    assert answers.Traced({}, "gold.x", "a=\x1b[2J").command == r"wirehouse trace gold.x $'a=\x1b[2J'"
    # Whoever names a stream can't lead to the bytes of another.
    streams = boards.boards()["ockam"].chart("throughput").rows
    evil = "a,\\,stream_address=good\\"
    traced = answers._traced(
        streams, dict.fromkeys(streams.names) | dict.fromkeys(streams.key, 1) | {"stream_address": evil}
    )
    assert tracing._key(all_tables()[streams.table], traced.key)["stream_address"] == evil
    slow = answers.evidence(filled, boards.boards()["cardinal"].chart("completion"), ALL, {"up_to_ms": "256"})
    assert [row.cells["number"] for row in slow.rows] == [11]


def test_the_command_of_a_row_is_of_no_other(empty: Lake) -> None:
    block = {"block_hash": CAPTURE, "status": "complete", "arrived_at_ns": TEN}
    write(empty, "gold.cardinal_batches_history", block, block | {"source": "other"})
    found = {"rule": "ockam.x", "severity": "warning", "connection_id": CAPTURE, "direction": "to_server"}
    write(empty, "gold.ockam_found", found, found | {"byte_start": 7}, found | {"source": "other"})
    for board, name in (("cardinal", "blocks"), ("overview", "rules")):
        rows = answers.evidence(empty, boards.boards()[board].chart(name), ALL).rows
        keys = {row.key for row in rows}
        assert len(keys) == len(rows) > 1
        for row in rows:
            assert len(tracing._rows(empty, all_tables()[row.table], row.key)) == 1, row.key


def test_an_error_is_shown_as_one(filled: Lake) -> None:
    chart = boards.boards()["overview"].chart("rules").model_copy(update={"sql": "SELECT nothing FROM gold.violations"})
    found = answers.answer(filled, chart, ALL)
    assert found.error
    assert "nothing" in found.error
    page = pages.page("card.html", board=None, chart=chart, span=ALL, answer=found, empty=False, spec=None)
    assert 'role="alert"' in page


def test_what_goes_wrong_is_a_page_too(empty: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(empty, "bronze.windows", {"protocol": "cardinal"})
    Path(empty.table_path("bronze.windows"), "_delta_log", "00000000000000000000.json").write_text("{")
    with Served(serving.application(empty)) as served:
        for said in ("bronze.windows can&#39;t be opened", "TypeError: "):
            with pytest.raises(HTTPError, match="500") as failed:
                urlopen(f"{served.url}board/overview")
            assert said in failed.value.read().decode()
            assert failed.value.headers["Content-Security-Policy"].startswith("default-src 'none'")
            monkeypatch.setattr(answers, "windows", lambda lake: lake["x"])


def test_another_sites_name_is_not_let_in(empty: Lake) -> None:
    with Served(serving.application(empty)) as served:
        with urlopen(f"{served.url}board/overview") as answer:
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        with pytest.raises(HTTPError, match="400"):
            urlopen(Request(f"{served.url}board/overview", headers={"Host": "rebound.example"}))


def test_the_browsers_library_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **how: "made")
    assert [drawing.library.__wrapped__() for _ in range(2)] == ["made", "made"]
    monkeypatch.delattr(vl_convert, "javascript_bundle")
    assert drawing.library.__wrapped__() == "made"
