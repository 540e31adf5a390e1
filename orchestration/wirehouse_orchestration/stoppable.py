"""Work in an engine that doesn't listen to signals, so that Ctrl-C ends it for who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Final

import pyarrow as pa

#: What is planned of a statement needs stack for each operator in it.
_STACK_BYTES: Final = 256 << 20
#: Signals are seen so often, in seconds.
_LOOK: Final = 0.05


class Stopped(Exception):
    """Nobody waits for the work any more."""


#: Gives rows as they come, until nobody waits for them.
Until = Callable[[pa.RecordBatchReader], pa.RecordBatchReader]


def run(work: Callable[[Until], None]) -> None:
    """Do `work` in a thread of its own, which reads rows by what it is given. Raises what it raises.

    KeyboardInterrupt when it is stopped; then it ends at the next rows that it is given.
    """
    stopped = threading.Event()
    done: Future[None] = Future()

    def until(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                if stopped.is_set():
                    raise Stopped
                yield batch

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def do() -> None:
        try:
            work(until)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=do, name="statement", daemon=True)
    try:
        _start(thread)
        # A thread that is joined when a signal comes is taken for ended.
        while not done.done():
            wait([done], _LOOK)
    except BaseException:
        stopped.set()
        _stopped.append(done)
        raise
    done.result()


#: Work that was stopped.
_stopped: Final[list[Future[None]]] = []


def goes_on() -> bool:
    """Work that was stopped still runs: Python can't end around a thread that is in the engine."""
    return not all(work.done() for work in _stopped)


def _start(thread: threading.Thread) -> None:
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(before)
