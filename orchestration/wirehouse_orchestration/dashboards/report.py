"""`wirehouse report`: writes the boards for a range of time to one HTML file, for mail and archives.

The file is self-contained: charts are SVG, and there are no scripts. It lists findings with the sentence of their rule,
the first rows, and the bytes behind the first row.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.core.rules import Severity
from wirehouse_orchestration.dashboards import answers, drawing, pages
from wirehouse_orchestration.dashboards.answers import Answer, Evidence, Span, Traced
from wirehouse_orchestration.dashboards.boards import FIRST, Board, Chart, boards
from wirehouse_orchestration.evidence.trace import trace
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import all_rules

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
    #: The output of `wirehouse trace` for the first row.
    bytes: str


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and what could not be read."""

    page: str
    #: Charts that couldn't be asked, and `findings`, each with the reason.
    failed: Mapping[str, str]


def report(lake: Lake, span: Span, say: Callable[[str], None]) -> Report:
    """The page of the span. Raises what Span.check raises."""
    span.check(lake)
    sections = [(board, _charts(lake, board, span, say)) for board in boards().values()]
    say("findings")
    failed = {
        f"{board.name}/{shown.chart.id}": why
        for board, charts in sections
        for shown in charts
        if (why := shown.answer.error or (shown.behind and shown.behind.answer.error))
    }
    findings, why = _findings(lake, span)
    if why:
        failed["findings"] = why
    page = pages.page(
        "report.html",
        span=span,
        sections=sections,
        findings=findings,
        unasked=why,
        silent=answers.silent(lake),
        first=FIRST,
        style=Markup(pages.asset("style.css")),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    return Report(page, failed)


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


def _findings(lake: Lake, span: Span) -> tuple[list[Finding], str | None]:
    """The broken rules, or the error why they can't be read."""
    chart, known = boards()[FIRST].chart(FINDINGS), all_rules()
    worst = [str(severity) for severity in Severity]
    found = answers.answer(lake, chart.model_copy(update={"sql": BROKEN}), span)
    listed = []
    for row in sorted(found.rows, key=lambda row: worst.index(row["severity"])):
        behind = answers.evidence(lake, chart, span, {"rule": row["rule"], "severity": row["severity"]}, ROWS)
        rule = known.get(row["rule"])
        finding = Finding(
            row["rule"],
            row["severity"],
            row["findings"],
            rule.sentence if rule else "",
            rule.place if rule else "",
            behind,
            _bytes(lake, behind.rows[0]) if behind.rows else "",
        )
        listed.append(finding)
    why = found.error or next((one.behind.answer.error for one in listed if one.behind.answer.error), None)
    return listed, why


def _bytes(lake: Lake, row: Traced) -> str:
    out = io.StringIO()
    try:
        trace(lake, row.table, row.key, out)
    except WirehouseError as error:
        return str(error)
    lines = out.getvalue().splitlines()
    return "\n".join([*lines[:LINES], *(["…"] if len(lines) > LINES else [])])
