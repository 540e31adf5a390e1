"""Draws answers: a chart and its rows as a Vega-Lite drawing, in the browser or as SVG.

The libraries come from the package vl-convert-python, which carries them: nothing is fetched.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import vl_convert

from wirehouse_codecs.core.rules import Severity
from wirehouse_orchestration.dashboards.boards import Chart, Meaning, Value
from wirehouse_orchestration.terminal.render import terminal
from wirehouse_pipelines.lake.windows import WindowNameError, Windows

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
VEGA_LITE: Final = "6.4"
HEIGHT: Final = 240
#: Height of a bar that lies, and pixels of its label.
BAR_STEP: Final = 20
LABEL_PIXELS: Final = 300
TICKS: Final = 8
SVG_WIDTH: Final = 760
#: Pixels of a legend below an SVG, of a letter in it, and of the symbol before a name.
LEGEND_WIDTH: Final = 500
LETTER: Final = 7
SYMBOL: Final = 40
#: Room around an SVG: whoever shows it may have wider letters.
SVG_PADDING: Final = {"left": 40, "top": 5, "right": 20, "bottom": 5}
#: Windows up to which an axis also has those without data.
MOST_WINDOWS: Final = 200

_MARKS: Final[Mapping[str, Spec]] = {
    # Without rounded corners: for these Vega-Lite puts each stack in a group, and a brush begun on one is misplaced.
    "bar": {"type": "bar"},
    "line": {"type": "line", "point": {"size": 30}, "strokeWidth": 2},
    "steps": {"type": "line", "interpolate": "step-after", "point": {"size": 14}, "strokeWidth": 1.5},
    "points": {"type": "point", "filled": True, "size": 36, "opacity": 0.75},
    "heat": {"type": "rect"},
}
#: The colour of each meaning that a chart gives to values.
_MEANINGS: Final[Mapping[Meaning, str]] = {
    "good": "#35a67c",
    "doubtful": "#c77f12",
    "bad": "#d64550",
    "absent": "#7d879c",
}
#: The colours of severities, in every chart.
_SEVERITIES: Final = {
    Severity.VIOLATION.value: _MEANINGS["bad"],
    Severity.WARNING.value: _MEANINGS["doubtful"],
    Severity.NOTE.value: "#5b8def",
}
_PALETTE: Final = ("#4c78d8", "#35a67c", "#c77f12", "#a463d1", "#d64550", "#2496a8", "#c5608f", "#8a9a3b", "#7d879c")
#: How moments are written, by what changes from one tick to the next.
_CLOCK: Final = {
    "year": "%Y",
    "quarter": "%Y-%m",
    "month": "%Y-%m",
    "week": "%m-%d",
    "date": "%m-%d",
    "hours": "%H:%M",
    "minutes": "%H:%M",
    "seconds": "%H:%M:%S",
    "milliseconds": "%H:%M:%S.%L",
}
#: Colours from none to most, so that most stands out from the background.
_RAMPS: Final = {"light": ("#dce7fb", "#1d4796"), "dark": ("#26344f", "#a9c4ff")}
_INKS: Final = {"light": ("#1c2330", "#5d6778", "#e3e7ee"), "dark": ("#e8ecf4", "#9aa5b8", "#2b3446")}


def spec(chart: Chart, rows: Rows) -> Spec:
    """The Vega-Lite drawing of `rows`. It is as wide as its container and has the rows as its data."""
    assert chart.x
    assert chart.y
    lies = chart.type == "heat" or (chart.type == "bar" and chart.y.unit is None)
    encoding: Spec = {
        "x": _position(chart, chart.x, rows, measured=lies and chart.type == "bar", beside=lies),
        "y": _position(chart, chart.y, rows, measured=not lies, above=lies),
        "tooltip": [_tooltip(value) for value in chart.shown],
    }
    if chart.color:
        encoding["color"] = _coloured(chart, chart.color, rows)
    times = [value.field for value in chart.shown if value.kind == "time"]
    return {
        "$schema": SCHEMA,
        "description": chart.question,
        "width": "container",
        "height": BAR_STEP * len({str(row[chart.y.field]) for row in rows}) if lies else HEIGHT,
        "data": {"name": "answer", "values": [dict(row) for row in rows]},
        "transform": [{"calculate": f"datum['{name}'] / 1e6", "as": f"{name}_time"} for name in times],
        "mark": _MARKS[chart.type],
        "encoding": encoding,
    }


def _position(
    chart: Chart, value: Value, rows: Rows, *, measured: bool, above: bool = False, beside: bool = False
) -> Spec:
    """An axis. Its title is `above` it if labels may be long, and ends with it `beside` such labels."""
    axis: Spec = {"title": value.label, "labelLimit": LABEL_PIXELS, "tickCount": TICKS}
    if above:
        axis |= {"titleAngle": 0, "titleAlign": "right", "titleAnchor": "start", "titleX": -6, "titleY": -8}
    if beside:
        axis |= {"titleAlign": "right", "titleAnchor": "end"}
    if value.kind == "time":
        axis |= {"format": _CLOCK, "title": f"{value.label}{_days(value, rows)}"}
        return {"field": f"{value.field}_time", "type": "temporal", "scale": {"type": "utc"}, "axis": axis}
    # A bar stands on a place, also where that is a number.
    if value.kind == "number" or (value.unit and (measured or chart.type != "bar")):
        zero = chart.type in ("bar", "line") or (chart.type == "steps" and value.kind != "number")
        whole = all(isinstance(row[value.field], int) for row in rows)
        return {
            "field": value.field,
            "type": "quantitative",
            "scale": {"zero": zero},
            "axis": axis | _format(value, whole=whole),
        }
    axis |= {"labelAngle": -35 if value is chart.x and value.field == "window_start" else 0}
    # In the order of the rows, except in a grid.
    place: Spec = {"field": value.field, "type": "ordinal", "sort": "ascending" if chart.type == "heat" else None}
    if value.field == "window_start" and (domain := _windows([str(row[value.field]) for row in rows])):
        place["scale"] = {"domain": domain}
    return place | {"axis": axis}


def _days(value: Value, rows: Rows) -> str:
    """The days of the times, as a suffix of a title, because ticks show only the time of day."""
    times = [row[value.field] for row in rows if row[value.field] is not None]
    days = dict.fromkeys(f"{datetime.fromtimestamp(at(times) / 1e9, UTC):%Y-%m-%d}" for at in (min, max) if times)
    return f", {' to '.join(days)}" if days else ""


def _windows(present: Sequence[str]) -> list[str]:
    """All windows from the first to the last, so that it shows where there are none; empty if these are many."""
    if not present:
        return []
    first, last = min(present), max(present)
    found: list[str] = []
    # What else stands there is drawn as it is.
    with suppress(WindowNameError):
        found += islice(Windows("hour" if "T" in first else "day", first).between(first, last), MOST_WINDOWS + 1)
    return found if len(found) <= MOST_WINDOWS else []


def _format(value: Value, *, whole: bool) -> Spec:
    if value.unit and value.unit.startswith("bytes"):
        return {"format": "~s"}
    return {"format": ",.12~g", "tickMinStep": 1 if whole else 0}


def _tooltip(value: Value) -> Spec:
    if value.kind == "time":
        return {
            "field": f"{value.field}_time",
            "type": "temporal",
            "title": value.label,
            "format": "%Y-%m-%d %H:%M:%S.%L",
        }
    if value.unit:
        return {"field": value.field, "type": "quantitative", "title": value.label, "format": ",.12~g"}
    return {"field": value.field, "type": "nominal", "title": value.label}


def _coloured(chart: Chart, value: Value, rows: Rows) -> Spec:
    coloured = {"field": value.field, "type": "nominal"}
    if value.unit:
        scale: Spec = {"zero": True}
        return coloured | {"type": "quantitative", "legend": {"title": value.label}, "scale": scale}
    present = list(dict.fromkeys(row[value.field] for row in rows))
    # The number of columns for which the longest name has room; the browser, which knows its width, chooses its own.
    columns = max(1, LEGEND_WIDTH // (max((len(str(name)) for name in present), default=0) * LETTER + SYMBOL))
    room = {"labelLimit": LEGEND_WIDTH // columns - SYMBOL, "titleLimit": LEGEND_WIDTH}
    legend = {"title": value.label, "orient": "bottom", "columns": columns, **room}
    colours = _SEVERITIES | {name: _MEANINGS[meaning] for name, meaning in value.meanings.items()}
    known = [colours[name] for name in present if name in colours]
    scale = {"domain": present} | ({"range": known} if len(known) == len(present) else {})
    if len(present) > len(_PALETTE):
        # No two have the same colour, except the rarest: these are all grey.
        most = [name for name, _ in Counter(row[value.field] for row in rows).most_common(len(_PALETTE) - 1)]
        scale = {"domain": most + [name for name in present if name not in most], "range": [*_PALETTE[:-1]]}
        scale["range"] += [_PALETTE[-1]] * (len(present) - len(most))
        legend |= {"title": f"{value.label}; grey: {len(present) - len(most)} others", "values": most}
    return coloured | {"legend": legend, "scale": scale}


def config(theme: str) -> Spec:
    """The theme of drawings on a light or dark background."""
    ink, faint, line = _INKS[theme]
    font = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
    return {
        "background": "transparent",
        "font": font,
        "range": {"category": list(_PALETTE), "heatmap": list(_RAMPS[theme])},
        "axis": {
            "labelColor": faint,
            "titleColor": faint,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelFontSize": 11,
            "titleFontSize": 11,
        },
        "legend": {"labelColor": ink, "titleColor": faint, "titleFontWeight": "normal", "symbolType": "circle"},
        "view": {"stroke": None},
        "mark": {"color": _PALETTE[0]},
    }


def svg(chart: Chart, rows: Rows) -> str:
    """The drawing as SVG on a light background."""
    # XML has no control characters: at one of them the renderer would abort.
    shown = [
        {name: terminal(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
    ]
    drawn = spec(chart, shown) | {"width": SVG_WIDTH, "padding": SVG_PADDING, "config": config("light")}
    return str(vl_convert.vegalite_to_svg(drawn, vl_version=VEGA_LITE, allowed_base_urls=[]))


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script for browsers.

    To put it together takes seconds, so set-up does it, and it is kept beside this Python's packages.
    """
    kept = Path(sys.prefix, "share", "wirehouse", f"vega-{vl_convert.get_vega_embed_version()}-{VEGA_LITE}.js")
    if kept.exists():
        return kept.read_text()
    made = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]  # it has a default
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        begun = kept.with_suffix(".begun")
        begun.write_text(made)
        begun.replace(kept)
    return str(made)
