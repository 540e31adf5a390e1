"""The folds of streams and names: whatever only several connections show together, and the rules about it.

A fold takes the events under one key in the order of arrival, and its state is carried to the next window. Where
windows are cut changes neither the findings nor the newest rows. There are two kinds of key (events.py):

- An address, of a stream: stream_fold.py, with what the stream holds (contents.py), what was delivered before it was
  confirmed (unconfirmed.py), and its clients (clients.py).
- A name: name_fold.py, with its addresses, and what the index service has for its clients.

A stream is identified by its address: if a name gets a new address, it names another stream. The state of a fold is
bounded. Beyond a bound, the lowest indexes or the clients that were silent longest are forgotten, and whatever would
need them isn't judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from wirehouse_codecs.ockam.correlation.connections import CLOCKS_NS, HOLE_NS
from wirehouse_codecs.ockam.correlation.events import Event, Told
from wirehouse_codecs.ockam.correlation.name_fold import NameFold
from wirehouse_codecs.ockam.correlation.reading import Reading
from wirehouse_codecs.ockam.correlation.stream_fold import StreamFold
from wirehouse_codecs.ockam.options import IndexConvention


class Fold:
    """The fold of the events under one key, in the order of arrival.

    `hole_ns` and `clocks_ns` are used as HOLE_NS and CLOCKS_NS. With `lags`, changes of lag are reported too (LagRow).
    `snapshot` is that of an earlier fold, which this one continues. StateVersionError: another version wrote it.
    """

    def __init__(
        self,
        key: str,
        convention: IndexConvention = IndexConvention.NEXT,
        snapshot: str | None = None,
        hole_ns: int = HOLE_NS,
        clocks_ns: int = CLOCKS_NS,
        *,
        lags: bool = False,
    ) -> None:
        kind, name, *_ = json.loads(key)
        reading = Reading(convention, hole_ns, clocks_ns)
        is_stream = kind == "address"
        self._fold = StreamFold(name, reading, snapshot, lags=lags) if is_stream else NameFold(reading, snapshot)

    @property
    def addresses(self) -> Mapping[str, int]:
        """The addresses of a name, each with when it was first given, in that order; empty for a stream."""
        return self._fold.addresses if isinstance(self._fold, NameFold) else {}

    def take(self, event: Event) -> Sequence[Told]:
        """Take the next event in the order of arrival.

        Returns what it completes (Found, Hole), and changes of lag (LagRow).
        """
        return self._fold.take(event)

    def end_window(self) -> list[Told]:
        """End the window; it ends with a second.

        Returns what can be judged now, and the rows that changed (Found, StreamRow, ConsumerRow, LagRow).
        """
        return self._fold.end_window()

    def snapshot(self) -> str:
        """The state as text, after `end_window`."""
        return self._fold.snapshot()


def judge(events: Iterable[tuple[str, Event]], convention: IndexConvention = IndexConvention.NEXT) -> list[Told]:
    """All results of events, each with its key and in the order of arrival, if nothing follows them."""
    folds: dict[str, Fold] = {}
    told: list[Told] = []
    for key, event in events:
        fold = folds.get(key)
        if fold is None:
            fold = folds[key] = Fold(key, convention)
        told += fold.take(event)
    for fold in folds.values():
        told += fold.end_window()
    return told
