"""What is known of a capture besides its bytes, and what every reader of captures gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

import pyarrow as pa

from wirehouse_codecs.captures.inflate import LIMITS, Limits


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a capture comes from, and how it may be read."""

    #: The file's own name.
    name: str = ""
    #: Records of files that know no time stand from here on, one nanosecond after the other.
    start_ns: int = 0
    limits: Limits = LIMITS


#: Nothing is known.
NOWHERE: Final = Origin()


class Capture(Protocol):
    """The records of one capture, read once from start to end."""

    #: Why this isn't a capture of its kind at all; None if it is.
    unreadable: str | None
    #: Why it ends early, or what of it can't be read; final once `batches` is exhausted.
    damage: str | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in the capture's order, with the columns `ts_ns`, `damaged` and `damage` among theirs."""
        ...


#: Opens a capture; the stream stands at its first byte.
Reader = Callable[[BinaryIO, Origin], Capture]
