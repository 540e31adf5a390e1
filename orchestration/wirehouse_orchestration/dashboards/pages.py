"""HTML of boards, charts and rows, from the templates beside this module. Text from the wire is escaped by Jinja."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape

from wirehouse_orchestration.dashboards.boards import Chart, Value
from wirehouse_orchestration.terminal.render import terminal

#: Maximum number of characters shown of a cell; its title has all of them.
CELL: Final = 120
#: The same of hashes and keys.
HASH: Final = 20
_HEX: Final = re.compile(r"[0-9a-f]{32,}")
_BYTES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


@cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("wirehouse_orchestration.dashboards"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"cell": cell, "measured": measured, "code": code, "as_mark": as_mark}
    return found


def page(template: str, **given: Any) -> str:
    """Render a template."""
    return _environment().get_template(template).render(given)


def asset(name: str) -> str:
    """A style sheet or script."""
    return (files(__package__) / "static" / name).read_text()


def measured(value: Any, what: Value) -> str:
    """A number as text: `12,345`, `1.5 MiB`; a dash for null."""
    if value is None:
        return "–"
    if what.unit == "bytes":
        return _size(float(value))
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return str(cell(value, what.field))


def _size(value: float) -> str:
    for unit in _BYTES:
        if abs(value) < 1024 or unit == _BYTES[-1]:
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"


def cell(value: Any, name: str) -> Markup:
    """A table cell: nanoseconds as dates, long text cut, with the whole text as its title."""
    text = _moment(value) if name.endswith("_ns") and isinstance(value, int) and value > 10**15 else _text(value)
    most = HASH if _HEX.fullmatch(text) else CELL
    if len(text) <= most:
        return escape(text)
    return Markup('<span title="{}">{}…</span>').format(text[: 20 * CELL], text[:most])


def as_mark(row: Mapping[str, Any], chart: Chart) -> str:
    """The part of a URL by which a row of a table leads to the rows behind it, as a mark of a drawing does."""
    return urlencode({name: "" if row[name] is None else str(row[name]) for name in chart.clickable})


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.6g}"
    return terminal(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _moment(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest // 1000:06d}"
    except (OverflowError, OSError, ValueError):
        return str(ns)


def code(text: str) -> Markup:
    """Show text in `backticks` as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)
    )
