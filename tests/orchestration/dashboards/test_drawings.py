"""Drawings: marks, axes and colours, and where a mark leads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import vl_convert

from tests.support.boards import ALL, CAPTURE, HOSTILE, HOUR, SECOND, TEN, write
from wirehouse_orchestration.dashboards import answers, boards, drawing, pages
from wirehouse_orchestration.dashboards.boards import Chart
from wirehouse_pipelines.lake.lake import Lake


def marks(drawn: object) -> Iterator[dict[str, Any]]:
    """The bars, cells or points of a drawing: `x`, `y`, `width`, `height` in pixels, as far as they have them."""
    if isinstance(drawn, dict) and drawn.get("role") == "mark" and drawn["marktype"] in ("rect", "symbol"):
        yield from drawn["items"]
    elif isinstance(drawn, dict | list):
        for part in drawn.values() if isinstance(drawn, dict) else drawn:
            yield from marks(part)


DRAWN = [pytest.param(chart, id=f"{board.name}-{chart.id}") for board, chart in boards.charts() if chart.drawn]


def test_of_many_logs_the_longest_are_drawn_with_all_that_is_known_of_them(empty: Lake) -> None:
    logs = [
        {"author": CAPTURE, "log_id": i, "length": 100 + i, "entries": 3, "valid": 2, "missing_entries": 97 + i}
        for i in range(40)
    ]
    write(empty, "gold.bamboo_logs_history", *logs)
    found = answers.answer(empty, boards.boards()["bamboo"].chart("verified"), ALL)
    drawn: dict[str, float] = {}
    for row in found.rows:
        drawn[row["log"]] = drawn.get(row["log"], 0) + row["entries"]
    assert drawn == {f"net · 01010101/{i} to 0": 100 + i for i in range(10, 40)}
    assert found.cut == 30
    card = pages.page(
        "card.html",
        board=boards.boards()["bamboo"],
        chart=boards.boards()["bamboo"].chart("verified"),
        span=ALL,
        answer=found,
        empty=False,
        spec={},
    )
    assert "Only the first 30 are drawn" in card


def test_of_too_many_rows_the_newest_of_each_source_are_drawn(empty: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_DRAWN", 5)
    update = {"added": [], "removed": [], "head_hash": CAPTURE}
    heads = [update | {"sequence": i, "head_number": i, "arrived_at_ns": TEN + i} for i in range(9)]
    write(empty, "gold.cardinal_chain_updates", *heads, heads[0] | {"source": "b"})
    chart = boards.boards()["cardinal"].chart("chain")
    found = answers.answer(empty, chart, ALL)
    assert found.cut
    assert sorted((row["source"], row["head_number"]) for row in found.rows) == [
        ("b", 0),
        *(("net", i) for i in (5, 6, 7, 8)),
    ]
    card = pages.page(
        "card.html", board=boards.boards()["cardinal"], chart=chart, span=ALL, answer=found, empty=False, spec={}
    )
    assert "the newest of each source" in card


def test_what_takes_the_whole_width_stands_above_drawings() -> None:
    for board in boards.boards().values():
        drawn = [chart.drawn for chart in board.charts]
        assert drawn == sorted(drawn)
        assert board.charts[0].id == "incidents"


def test_axes_have_windows_without_data_and_times_their_day() -> None:
    records = boards.boards()["overview"].chart("records")
    rows = [{"window_start": f"2023-11-14T{hour}", "protocol": "ockam", "records": 1} for hour in (22, 23)]
    rows.append(rows[0] | {"window_start": "2023-11-15T02"})
    place = drawing.spec(records, rows)["encoding"]["x"]
    hours = ("14T22", "14T23", "15T00", "15T01", "15T02")
    assert place["scale"]["domain"] == [f"2023-11-{hour}" for hour in hours]
    years = [rows[0] | {"window_start": day} for day in ("2019-01-01", "2023-11-14")]
    assert "scale" not in drawing.spec(records, years)["encoding"]["x"], "that would be too many"
    heads = boards.boards()["cardinal"].chart("chain")
    assert heads.x
    times = [{value.field: 1 for value in heads.shown} | {heads.x.field: TEN + i * 3 * HOUR} for i in range(2)]
    assert drawing.spec(heads, times)["encoding"]["x"]["axis"]["title"].endswith(", 2026-11-14 to 2026-11-15")
    assert drawing.spec(heads, [])["encoding"]["x"]["axis"]["title"] == heads.x.label


def test_where_nothing_came_no_line_is_drawn() -> None:
    assert {chart.type for _, chart in boards.charts() if "{step}" in chart.sql} == {"points"}


@pytest.mark.parametrize("chart", DRAWN)
def test_each_mark_leads_to_rows(chart: Chart, filled: Lake) -> None:
    for mark in answers.answer(filled, chart, ALL).rows[:3]:
        only = {name: "" if mark[name] is None else str(mark[name]) for name in chart.clickable}
        assert answers.evidence(filled, chart, ALL, only).rows


def test_a_mark_that_sums_up_rows_leads_to_all_of_them(empty: Lake) -> None:
    parts = ({"protocol": "cardinal", "path": "a", "records": i, "capture_id": bytes([i]) * 32} for i in (1, 2))
    write(empty, "bronze.windows", *parts)
    chart = boards.boards()["overview"].chart("windows")
    (mark,) = answers.answer(empty, chart, ALL).rows
    assert mark["records"] == 3
    assert len(answers.evidence(empty, chart, ALL, {name: mark[name] for name in chart.clickable}).rows) == 2


@pytest.mark.parametrize("chart", DRAWN)
def test_no_text_of_the_wire_ends_or_leaves_a_drawing(chart: Chart) -> None:
    texts = {value.field for value in chart.shown if not value.unit and value.kind not in ("number", "time")}
    row = {value.field: f"\x1b\x00\uffff</svg>{HOSTILE}" if value.field in texts else TEN for value in chart.shown}
    drawn = drawing.svg(chart, [row])
    assert drawn.count("<svg") == drawn.count("</svg>") == 1
    assert "<script" not in drawn
    assert "<img" not in drawn


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as the Web Content Accessibility Guidelines define it."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("theme", "number"), [("light", 0), ("dark", 1)])
def test_colours_stand_out_from_their_background(theme: str, number: int) -> None:
    style = pages.asset("style.css")
    variables = {name: re.findall(rf"--{name}: (#\w+);", style)[number] for name in ("card", "ground", "faint", "edge")}
    for color in (*drawing._PALETTE, *drawing._MEANINGS.values(), *drawing._SEVERITIES.values(), variables["edge"]):
        assert contrast(color, variables["card"]) >= 3, f"{color} of a mark"
    for color in (variables["faint"], *drawing._INKS[theme][:2]):
        assert min(contrast(color, variables[under]) for under in ("card", "ground")) >= 4.5, f"{color} of text"


def test_values_have_the_colours_of_their_meanings() -> None:
    chart = boards.boards()["cardinal"].chart("status")
    rows = [{"window_start": "2026-01-01", "status": status, "blocks": 1} for status in ("refused", "complete")]
    scale = drawing.spec(chart, rows)["encoding"]["color"]["scale"]
    assert scale == {"domain": ["refused", "complete"], "range": [drawing._MEANINGS["bad"], drawing._MEANINGS["good"]]}
    unforeseen = drawing.spec(chart, [*rows, rows[0] | {"status": "new"}])["encoding"]["color"]["scale"]
    assert "range" not in unforeseen


def test_two_values_have_one_colour_only_if_it_is_grey_and_the_legend_says_so() -> None:
    chart = boards.boards()["ockam"].chart("throughput")
    rows = [
        {"at_ns": TEN + number * SECOND, "stream_address": f"s{number}", "messages_per_s": number}
        for number in range(12)
        for _ in range(12 - number)
    ]
    few = drawing.spec(chart, rows[:50])["encoding"]["color"]
    assert len(few["scale"]["domain"]) <= len(drawing._PALETTE)
    assert "range" not in few["scale"]
    many = drawing.spec(chart, rows)["encoding"]["color"]
    colors = dict(zip(many["scale"]["domain"], many["scale"]["range"], strict=True))
    grey = {name for name, color in colors.items() if color == drawing._PALETTE[-1]}
    assert grey == {"s8", "s9", "s10", "s11"}, "the rarest"
    assert len({color for name, color in colors.items() if name not in grey}) == len(colors) - len(grey)
    assert many["legend"]["title"] == "Stream; grey: 4 others"
    assert many["legend"]["values"] == [f"s{number}" for number in range(8)]


#: What is drawn: a value at each place; those of one place have different colours.
PLACED = (("a", 1), ("a", 3), ("b", 2), ("c", 5))


@pytest.mark.parametrize("chart", DRAWN)
def test_what_is_drawn_is_as_large_as_the_value(chart: Chart) -> None:
    assert chart.x
    assert chart.y
    lies = chart.y.unit is None
    measured = chart.color if chart.type == "heat" else chart.x if lies else chart.y
    assert measured
    rows: list[dict[str, Any]] = []
    for number, (place, value) in enumerate(PLACED):
        others = {one.field: place for one in chart.shown} | ({chart.color.field: str(number)} if chart.color else {})
        times = {one.field: TEN + number * SECOND for one in chart.shown if one.kind == "time"}
        rows.append(others | times | {measured.field: value})
    if chart.type == "heat" or not chart.color:
        # There is one of each place.
        del rows[1]
    values = [row[measured.field] for row in rows]
    scene = vl_convert.vegalite_to_scenegraph(drawing.spec(chart, rows) | {"width": 700}, vl_version=drawing.VEGA_LITE)
    drawn = list(marks(scene))
    assert len(drawn) == len(rows)
    if chart.type == "heat":
        assert len({mark["fill"] for mark in drawn}) == len(rows)
    elif chart.type == "bar":
        begin, size = ("x", "width") if lies else ("y", "height")
        pixels = [mark[size] for mark in drawn]
        assert pixels == pytest.approx([value * pixels[0] for value in values])
        assert min(pixels) > 0
        ends = sorted((mark[begin], mark[begin] + mark[size]) for mark in drawn[: len(rows) - 2])
        assert all(end <= after + 1e-9 for (_, end), (after, _) in pairwise(ends)), "one hides another"
    else:
        per_unit = (drawn[0]["y"] - drawn[3]["y"]) / (values[3] - values[0])
        assert per_unit > 0
        expected = [drawn[0]["y"] - (value - values[0]) * per_unit for value in values]
        assert [mark["y"] for mark in drawn] == pytest.approx(expected)
