"""`wirehouse report`: the boards of a range of windows as one file of HTML, for mail and archives.

It needs nothing else: drawings are SVG, and there are no scripts. Findings stand with the sentence of their rule, the
first rows and the bytes that prove the first of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from wirehouse_codecs.errors import WirehouseError
from wirehouse_codecs.rules import Severity
from wirehouse_orchestration.dashboards import answers, drawing, pages
from wirehouse_orchestration.dashboards.answers import Answer, Evidence, Span, Traced
from wirehouse_orchestration.dashboards.boards import FIRST, Board, Chart, boards
from wirehouse_orchestration.trace import trace
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.protocols import all_rules

#: The chart of the overview whose rows are the findings.
FINDINGS: Final = "rules"
#: All broken rules; the chart shows some.
BROKEN: Final = """
SELECT rule, severity, COUNT(*) AS findings FROM gold.violations WHERE {span}
GROUP BY rule, severity ORDER BY findings DESC, rule
"""
#: Rows behind each chart, and findings of each rule, that are listed.
ROWS: Final = 10
#: Lines of a trace that are shown.
LINES: Final = 48


@dataclass(frozen=True, slots=True)
class Shown:
    """A chart of the report."""

    chart: Chart
    answer: Answer
    empty: bool
    drawing: Markup | None
    behind: Evidence | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule with its evidence."""

    rule: str
    severity: str
    findings: int
    sentence: str
    place: str
    behind: Evidence
    #: What `wirehouse trace` says of the first row.
    bytes: str


def report(lake: Lake, span: Span, say: Callable[[str], None]) -> str:
    """The page. Raises what Span.check raises."""
    span.check(lake)
    sections = {board: _charts(lake, board, span, say) for board in boards().values()}
    say("findings")
    return pages.page(
        "report.html",
        span=span,
        sections=sections,
        findings=list(_findings(lake, span)),
        first=FIRST,
        style=Markup(pages.asset("style.css")),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _charts(lake: Lake, board: Board, span: Span, say: Callable[[str], None]) -> list[Shown]:
    say(board.title)
    return [_chart(lake, chart, span) for chart in board.charts]


def _chart(lake: Lake, chart: Chart, span: Span) -> Shown:
    answer = answers.answer(lake, chart, span)
    empty = answers.is_empty(chart, answer)
    if empty or answer.error is not None:
        return Shown(chart, answer, empty, None, None)
    # vl-convert escapes the text in what it draws.
    drawn = Markup(drawing.svg(chart, answer.rows)) if chart.drawn else None
    return Shown(chart, answer, empty, drawn, answers.evidence(lake, chart, span, most=ROWS))


def _findings(lake: Lake, span: Span) -> Iterator[Finding]:
    chart, known = boards()[FIRST].chart(FINDINGS), all_rules()
    worst = [str(severity) for severity in Severity]
    found = answers.answer(lake, chart.model_copy(update={"sql": BROKEN}), span)
    for row in sorted(found.rows, key=lambda row: worst.index(row["severity"])):
        behind = answers.evidence(lake, chart, span, {"rule": row["rule"], "severity": row["severity"]}, ROWS)
        rule = known.get(row["rule"])
        yield Finding(
            row["rule"],
            row["severity"],
            row["findings"],
            rule.sentence if rule else "",
            rule.place if rule else "",
            behind,
            _bytes(lake, behind.rows[0]) if behind.rows else "",
        )


def _bytes(lake: Lake, row: Traced) -> str:
    out = io.StringIO()
    try:
        trace(lake, row.table, row.key, out)
    except WirehouseError as error:
        return str(error)
    lines = out.getvalue().splitlines()
    return "\n".join([*lines[:LINES], *(["…"] if len(lines) > LINES else [])])
