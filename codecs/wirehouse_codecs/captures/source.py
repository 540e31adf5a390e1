"""The interface of capture readers: `Origin`, facts about a capture besides its bytes, and `Capture`, its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

import pyarrow as pa

from wirehouse_codecs.captures.inflate import LIMITS, Limits


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a capture comes from, and the limits for reading it."""

    #: The name of the file.
    name: str = ""
    #: In files without timestamps, records get times from here on, one nanosecond apart.
    start_ns: int = 0
    limits: Limits = LIMITS


#: An unknown origin.
NOWHERE: Final = Origin()


class Capture(Protocol):
    """The records of one capture, read once from start to end."""

    #: Why this isn't a capture of this kind at all; None if it is.
    unreadable: str | None
    #: Why it ends early, or which part can't be read; final once `batches` is exhausted.
    damage: str | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in the capture's order, with the columns `ts_ns`, `damaged` and `damage` among theirs."""
        ...


#: Opens a capture from a stream that is at its first byte.
Reader = Callable[[BinaryIO, Origin], Capture]
