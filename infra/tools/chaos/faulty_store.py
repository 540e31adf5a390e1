"""An object store that fails at given rates: a proxy before a real one. It answers some calls with 503, slowly or in
part, or executes them and reports that they failed.

The signature of a request covers the name of the host that it was sent to. The proxy passes that name on, so the store
sees no proxy.
"""

from __future__ import annotations

import http.client
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from wirehouse_orchestration.servers.ports import HOST

BUSY: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>"
FAILED: Final = b"<Error><Code>InternalError</Code><Message>We encountered an internal error</Message></Error>"
#: What objects that are commits have in their names. A lock that was made unheard is waited for.
_COMMITS: Final = ("/_delta_log/", "/landing/manifests/")
#: These are between two neighbours, not from end to end.
_OF_THE_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "expect"}
_PATIENCE_SECONDS: Final = 60


class BrokenOffError(Exception):
    """A call that isn't completed."""


@dataclass
class Moods:
    """The failure rates of the store. The seed determines which calls fail, and how."""

    seed: int
    #: Among this many calls, one is refused and one is slow. If one gives data, its answer breaks off; if one commits,
    #: its answer is that it failed.
    one_in: int = 10
    slow_seconds: float = 1.0
    calls: int = 0
    refused: int = 0
    slowed: int = 0
    broken: int = 0
    unheard: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def next(self, *, commits: bool) -> str:
        """The fate of the next call: `refused`, `slowed`, `broken`, `unheard`, or empty if nothing happens to it."""
        with self._lock:
            self.calls += 1
            drawn = self._random.randrange(self.one_in)
            self.refused += drawn == 0
            self.slowed += drawn == 1
            self.broken += drawn == 2
            self.unheard += drawn == 3 and commits
            return {0: "refused", 1: "slowed", 2: "broken", 3: "unheard" if commits else ""}.get(drawn, "")


@contextmanager
def faulty(endpoint: str, moods: Moods) -> Iterator[str]:
    """The address of a proxy before the store at `endpoint`, while the block runs."""
    server = _Proxy((HOST, 0), _Passing)
    server.store, server.moods = urlsplit(endpoint).netloc, moods
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    store: str
    moods: Moods

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that were killed or gave up: they are part of the test."""
        if not isinstance(sys.exc_info()[1], OSError | BrokenOffError):
            super().handle_error(request, client_address)


class _Passing(BaseHTTPRequestHandler):
    """Forwards a call to the store, unless it is chosen to fail."""

    protocol_version = "HTTP/1.1"
    server: _Proxy

    def _pass(self) -> None:
        body = self._body()
        commits = self.command == "PUT" and any(part in self.path for part in _COMMITS)
        mood = self.server.moods.next(commits=commits)
        if mood == "refused":
            self._answer(503, {"Content-Type": "application/xml"}, BUSY)
            return
        if mood == "slowed":
            time.sleep(self.server.moods.slow_seconds)
        connection = http.client.HTTPConnection(self.server.store, timeout=_PATIENCE_SECONDS)
        try:
            connection.request(self.command, self.path, body, _passed(self.headers.items()))
            answer = connection.getresponse()
            headers, data = _passed(answer.getheaders()), answer.read()
            if mood == "unheard" and answer.status < 300:
                self._answer(500, {"Content-Type": "application/xml"}, FAILED)
                return
            if mood == "broken" and self.command == "GET" and len(data) > 1:
                headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
                headers["Content-Length"] = str(len(data))
                data, self.close_connection = data[: len(data) // 2], True
            self._answer(answer.status, headers, data)
        except (OSError, http.client.HTTPException):
            # The store is gone: so is this call.
            self.close_connection = True
        finally:
            connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

    def _body(self) -> bytes:
        # A client that expects "100 Continue" got it from the library.
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _line(self) -> bytes:
        line = self.rfile.readline()
        if not line.endswith(b"\n"):
            raise BrokenOffError
        return line

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "content-length" not in map(str.lower, headers) and status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Log nothing: calls are counted instead."""


def _passed(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _OF_THE_HOP}
