"""Runs a server in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: What stops such a server.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def until_stopped(say: Callable[[str], None]) -> Iterator[None]:
    """End the block cleanly on a signal, and report that. Further signals are ignored while it ends."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for asked in _SIGNALS:
            signal.signal(asked, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        say("stopped")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
