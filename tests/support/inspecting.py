"""The rows of `wirehouse inspect`, without their text."""

from __future__ import annotations

from collections.abc import Iterator

from wirehouse_codecs.logs.inspection import Inspected
from wirehouse_orchestration.evidence.inspection import opened


def inspected(
    path: str, protocol: str | None, now_ns: int | None = None, port: int | None = None
) -> Iterator[Inspected]:
    """The rows of the capture at `path`, in its order. Findings about the capture itself come last."""
    with opened(path, protocol, port, now_ns=now_ns) as capture:
        yield from capture.rows
