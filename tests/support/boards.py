"""What tests of dashboards share: moments, charts, rows of a lake, and a page that is served."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
import uvicorn
from deltalake import write_deltalake
from starlette.applications import Starlette

from tests.conftest import VECTORS
from wirehouse_orchestration.dashboards import boards, serving
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.servers import ports
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.tables import all_tables

ALL = Span()
STREAM = VECTORS / "cardinal" / "d2_equal_weight" / "messages.jsonl"
#: 2026-11-14T22:00 UTC.
TEN = 1_794_693_600_000_000_000
SECOND = 10**9
HOUR = 3600 * SECOND
CAPTURE = b"\x01" * 32
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
CHARTS = [pytest.param(board, chart, id=f"{board.name}-{chart.id}") for board, chart in boards.charts()]


def write(lake: Lake, name: str, *rows: Mapping[str, Any]) -> None:
    given = {"source": "net", "window_start": "2026-11-14", "capture_id": CAPTURE, "record_number": 0}
    known = {column.name for column in all_tables()[name].columns}
    listed = [{key: value for key, value in (given | dict(row)).items() if key in known} for row in rows]
    write_deltalake(lake.table_path(name), pa.Table.from_pylist(listed, schema=arrow_types.schema(all_tables()[name])))


class Served:
    """The page of a lake, in a thread."""

    def __init__(self, app: Starlette) -> None:
        self._listening = ports.taken(None, 0)
        # Before the server runs: who asks early waits.
        self._listening.listen()
        self.url = serving.address(self._listening)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]})

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *trouble: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()


SESSION, NEXT, NAMELESS = (bytes([number]) * 16 for number in range(3))
