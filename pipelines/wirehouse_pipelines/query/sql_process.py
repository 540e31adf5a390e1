"""SQL in another process, for the terminal: `query` is like `sql.query`, but a statement can be interrupted.

The engine is native code. It doesn't handle signals while it works, and a statement may crash it (out of memory or
stack). In a separate process, an interrupt kills only the statement, and a crash becomes an EngineEndedError. This
process doesn't import the engine at all; the other one starts and imports it in the background.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.lake.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa

    from wirehouse_pipelines.query.sql import AsOf


#: An interrupt is noticed after at most this many seconds.
_HEARD_S: Final = 0.2


class EngineEndedError(WirehouseError):
    """The process of the statement ended unexpectedly."""

    template = "the engine ended ({how}): the statement needs more memory or stack than there is, make it smaller"


def start() -> ForkServerContext | SpawnContext:
    """Start the server that forks processes for statements, if it isn't running; the context to start them with."""
    forkserver.set_forkserver_preload(["wirehouse_pipelines.query.sql"])
    try:
        forkserver.ensure_running()
    except OSError:
        # The path of the temporary folder is too long for a socket's name.
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("forkserver")


@contextmanager
def query(lake: Lake, statement: str, as_of: AsOf | None = None) -> Iterator[pa.RecordBatchReader]:
    """Like `sql.query`; leaving the `with` block kills the statement. Also raises EngineEndedError."""
    context = start()
    import pyarrow as pa

    receiving, sending = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="wirehouse-sql-", ignore_cleanup_errors=True) as scratch:
        asked = (sending, scratch, dict(os.environ), lake, statement, as_of)
        process = context.Process(target=_answer, args=asked, daemon=True)
        with _without_main():
            process.start()
        sending.close()

        def received() -> Iterator[pa.Schema | pa.RecordBatch]:
            try:
                while (part := _received(receiving)) is not None:
                    if isinstance(part, Exception):
                        raise part
                    yield part
            except EOFError:
                process.join()
                raise EngineEndedError(how=_how(process.exitcode or 0)) from None

        try:
            parts = received()
            yield pa.RecordBatchReader.from_batches(next(parts), parts)
        finally:
            process.kill()
            process.join()
            receiving.close()


def _received(receiving: Connection) -> Any:
    # If another thread receives an interrupt, a blocking call in the main thread continues. So wait in short steps.
    while not receiving.poll(_HEARD_S):
        pass
    return receiving.recv()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main program while a process is started, because the new process would import it."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _answer(
    sending: Connection,
    scratch: str,
    environment: Mapping[str, str],
    lake: Lake,
    statement: str,
    as_of: AsOf | None,
) -> None:
    """Run the statement in the new process; send the schema, the batches and None, or the error."""
    from wirehouse_pipelines.query import sql

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = scratch
    try:
        with sql.query(lake, statement, as_of) as reader:
            sending.send(reader.schema)
            for batch in reader:
                sending.send(batch)
        sending.send(None)
    except BrokenPipeError:
        pass
    except Exception as error:
        sending.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    wait([parent.sentinel])
    os._exit(1)
