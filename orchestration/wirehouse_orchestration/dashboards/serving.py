"""`wirehouse dashboard`: serves the boards as web pages on this machine's loopback, with SQL that needs no JVM."""

from __future__ import annotations

import io
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_orchestration.dashboards import answers, drawing, metrics, pages
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.dashboards.boards import FIRST, Board, Chart, boards
from wirehouse_orchestration.evidence.trace import trace
from wirehouse_orchestration.servers.ports import DASHBOARD, HOST, taken
from wirehouse_pipelines.lake.lake import Lake

#: Everything is the page's own; Vega styles its drawings in place.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY + "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TYPES: Final = {"css": "text/css", "js": "text/javascript"}
_PCAP: Final = "application/vnd.tcpdump.pcap"
#: How often a page asks again: the value in its URL, and what it is called.
REFRESH: Final = {"10": "10 s", "60": "1 min"}
#: Ranges up to now that a page offers: the value in its URL, and what it is called.
RECENT: Final = {"-15m": "15 min", "-1h": "1 h", "-1d": "1 day", "-7d": "7 days", "-30d": "30 days", None: "all"}


def application(lake: Lake) -> Starlette:
    """The web application for `lake`."""
    shown = _Shown(lake)
    routes = [
        Route("/", lambda request: RedirectResponse(f"/board/{FIRST}")),
        Route("/board/{board}", shown.board),
        Route("/card/{board}/{chart}", shown.card),
        Route("/chart/{board}/{chart}", shown.chart),
        Route("/newest/{what}/{board}/{chart}", shown.newest),
        Route("/trace", shown.trace),
        Route("/packets", shown.packets),
        Route("/metrics", shown.metrics),
        Route("/static/{name}", _static),
    ]
    # Another site's name that leads to this machine is not let in.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    handlers: Any = {WirehouseError: _refused, HTTPException: _missing, Exception: _broken}
    guard = Middleware(BaseHTTPMiddleware, dispatch=_guarded)
    return Starlette(routes=routes, middleware=[hosts, guard], exception_handlers=handlers)


async def _guarded(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await go_on(request)
    response.headers.update(_HEADERS)
    return response


class _Shown:
    """The request handlers for one lake. Functions that aren't async run in threads."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._metrics = metrics.Metrics(lake)

    def board(self, request: Request) -> Response:
        board, span = _board(request), self._span(request)
        silent = answers.silent(self._lake) if board.name == FIRST else []
        return self._page("board.html", request, span, board=board, silent=silent)

    def card(self, request: Request) -> Response:
        board, chart, span = _board(request), _chart(request), self._span(request)
        return HTMLResponse(
            pages.page("card.html", board=board, chart=chart, span=span, links=True, **self._answer(chart, span))
        )

    def chart(self, request: Request) -> Response:
        board, chart, span = _board(request), _chart(request), self._span(request)
        only = _marked(chart, request)
        behind = answers.evidence(self._lake, chart, span, only)
        given = self._answer(chart, span)
        return self._page("chart.html", request, span, board=board, chart=chart, only=only, behind=behind, **given)

    def newest(self, request: Request) -> Response:
        """Lead from a mark to the bytes or packets of the first row behind it."""
        chart, what = _chart(request), request.path_params["what"]
        behind = answers.evidence(self._lake, chart, self._span(request), _marked(chart, request), 1)
        if not behind.rows or what not in chart.rows.evidence(behind.rows[0].cells):
            raise HTTPException(404, behind.answer.error or "there is no such row any more")
        return RedirectResponse(f"/{what}?{behind.rows[0].query}")

    def packets(self, request: Request) -> Response:
        """The packets of a row as a file."""
        row = _row(request)
        folder = tempfile.TemporaryDirectory(prefix="wirehouse-packets-")
        try:
            file = Path(folder.name, f"{row.table}.pcap")
            trace(self._lake, row.table, row.key, io.StringIO(), pcap=file)
        except BaseException:
            folder.cleanup()
            raise
        return FileResponse(file, filename=file.name, media_type=_PCAP, background=BackgroundTask(folder.cleanup))

    def trace(self, request: Request) -> Response:
        row = _row(request)
        out, error = io.StringIO(), None
        try:
            trace(self._lake, row.table, row.key, out)
        except WirehouseError as failed:
            error = str(failed)
        return self._page("trace.html", request, Span(), row=row, text=out.getvalue(), error=error)

    def metrics(self, _: Request) -> Response:
        return self._metrics.response()

    def _answer(self, chart: Chart, span: Span) -> dict[str, Any]:
        answer = answers.answer(self._lake, chart, span)
        empty = answers.is_empty(chart, answer)
        drawn = chart.drawn and not empty and answer.error is None
        return {"answer": answer, "empty": empty, "spec": drawing.spec(chart, answer.rows) if drawn else None}

    def _span(self, request: Request) -> Span:
        asked = request.query_params
        span = Span(asked.get("from") or None, asked.get("to") or None, asked.get("source") or None)
        span.check(self._lake, _protocol(request))
        return span

    def _page(self, template: str, request: Request, span: Span, **given: Any) -> Response:
        asked = request.query_params.get("refresh", "")
        refresh = asked if asked in REFRESH else ""
        known = {
            "windows": answers.windows(self._lake),
            "sources": answers.sources(self._lake, _protocol(request)),
            "recent": {name: replace(span, first=first, last=None) for first, name in RECENT.items()},
            "refresh": refresh,
            "refreshes": REFRESH,
            "asked": lambda of: "&".join(filter(None, (of.query, refresh and f"refresh={refresh}"))),
        }
        links = [(board, self._elsewhere(board, span)) for board in boards().values()]
        themes = {theme: drawing.config(theme) for theme in ("light", "dark")}
        every = {"boards": links, "root": self._lake.root, "themes": themes}
        return HTMLResponse(pages.page(template, span=span, **known, **every, **given))

    def _elsewhere(self, board: Board, span: Span) -> Span:
        """The span for a board, which has no sources of other protocols."""
        keeps = span.source is None or answers.is_known(self._lake, board.protocol, span.source)
        return span if keeps else replace(span, source=None)


def _board(request: Request) -> Board:
    try:
        return boards()[request.path_params["board"]]
    except KeyError:
        raise HTTPException(404, "there is no such board") from None


def _protocol(request: Request) -> str | None:
    """The protocol of the page; None if it shows all."""
    return _board(request).protocol if "board" in request.path_params else None


def _chart(request: Request) -> Chart:
    try:
        return _board(request).chart(request.path_params["chart"])
    except KeyError:
        raise HTTPException(404, "there is no such chart") from None


def _marked(chart: Chart, request: Request) -> dict[str, str]:
    """The values of the mark that leads here."""
    return {name: request.query_params[name] for name in chart.clickable if name in request.query_params}


def _row(request: Request) -> answers.Traced:
    """The row that the page is about."""
    return answers.Traced({}, request.query_params.get("table", ""), request.query_params.get("key", ""))


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "vega.js":
        headers = {"Cache-Control": "max-age=86400"}
        return Response(drawing.library(), media_type="text/javascript", headers=headers)
    if name not in ("style.css", "page.js"):
        raise HTTPException(404, "there is no such file")
    return Response(pages.asset(name), media_type=_TYPES[name.rpartition(".")[2]])


def _refused(request: Request, error: Exception) -> Response:
    return HTMLResponse(pages.page("error.html", reason=str(error)), 400 if isinstance(error, UsageError) else 500)


def _broken(request: Request, error: Exception) -> Response:
    """Handle an unexpected error, which `_guarded` doesn't catch. Its traceback is printed to the terminal."""
    reason = f"{type(error).__name__}: {error} (the terminal of `wirehouse dashboard` shows where)"
    return HTMLResponse(pages.page("error.html", reason=reason), 500, _HEADERS)


def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return HTMLResponse(pages.page("error.html", reason=error.detail), error.status_code)


def serve(lake: Lake, port: int | None, say: Callable[[str], None]) -> None:
    """Serve the boards until SIGINT or SIGTERM. Raises PortTakenError."""
    app = application(lake)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with taken(port, DASHBOARD) as listening:
            # Whoever opens the page as soon as its address is printed waits, and isn't refused.
            listening.listen()
            say(f"the dashboard is at {address(listening)} (stop with Ctrl-C)")
            uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])
    except KeyboardInterrupt:
        say("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)


def address(listening: socket.socket) -> str:
    """The URL of the boards at a socket."""
    return f"http://{HOST}:{listening.getsockname()[1]}/"
