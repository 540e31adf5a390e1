"""Windows of arrival time: the partitions of everything after landing.

A window is a day or an hour in UTC. Its name is its start: `2026-11-14` for a day, `2026-11-14T22` for an hour. Names
sort in the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from wirehouse_codecs.core.errors import UsageError

NS_PER_SECOND = 1_000_000_000
Size = Literal["day", "hour"]
FORMAT: dict[Size, str] = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
STEP: dict[Size, timedelta] = {"day": timedelta(days=1), "hour": timedelta(hours=1)}


class WindowNameError(UsageError):
    """A name isn't that of a window of the lake's size."""

    template = "{name!r} isn't a window of one {size}: write it as {example}"


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a lake: their size and the first of them."""

    size: Size
    #: Name of the first window.
    start: str

    def parse(self, name: str) -> datetime:
        """The start of window `name`. Raises WindowNameError."""
        try:
            moment = datetime.strptime(name, FORMAT[self.size]).replace(tzinfo=UTC)
        except ValueError:
            moment = None
        if moment is None or moment.strftime(FORMAT[self.size]) != name:
            example = datetime(2026, 11, 14, 22, tzinfo=UTC).strftime(FORMAT[self.size])
            raise WindowNameError(name=name, size=self.size, example=example)
        return moment

    def of(self, arrived_at_ns: int) -> str:
        """The name of the window that contains `arrived_at_ns` (nanoseconds since 1970 UTC)."""
        return datetime.fromtimestamp(arrived_at_ns // NS_PER_SECOND, UTC).strftime(FORMAT[self.size])

    def start_ns(self, name: str) -> int:
        """The first nanosecond of window `name`."""
        return int(self.parse(name).timestamp()) * NS_PER_SECOND

    def end_ns(self, name: str) -> int:
        """The last nanosecond of window `name`."""
        return self.start_ns(self.after(name)) - 1

    def after(self, name: str, steps: int = 1) -> str:
        """The window `steps` later (earlier if negative)."""
        return (self.parse(name) + steps * STEP[self.size]).strftime(FORMAT[self.size])

    def between(self, first: str, last: str) -> Iterator[str]:
        """Yield all windows from `first` to `last`, both included."""
        moment, end = self.parse(first), self.parse(last)
        while moment <= end:
            yield moment.strftime(FORMAT[self.size])
            moment += STEP[self.size]
