"""What only several connections say together: the messages of a stream, how far its consumers are, and the set rules.

A fold takes what was said under one key in the order of arrival, and can be carried on: where windows are cut changes
neither what is found nor how the newest rows stand. There are two kinds of key (events.py):

- An address, of a stream: stream_fold.py, with what the stream holds (contents.py), what was delivered before it was
  confirmed (unconfirmed.py), and its clients (clients.py).
- A name: name_fold.py, with its addresses, and what the index service has for its clients.

Streams are told apart by their address: under a new address a name begins anew. What a fold keeps is bounded. Beyond a
bound the lowest indexes, or the clients that were silent longest, are forgotten, and what would need them isn't judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from wirehouse_codecs.ockam.correlation.connections import CLOCKS_NS, HOLE_NS
from wirehouse_codecs.ockam.correlation.events import Event, Told
from wirehouse_codecs.ockam.correlation.name_fold import NameFold
from wirehouse_codecs.ockam.correlation.reading import Reading
from wirehouse_codecs.ockam.correlation.stream_fold import StreamFold
from wirehouse_codecs.ockam.options import IndexConvention


class Fold:
    """What is said under one key, in the order of arrival.

    `hole_ns` and `clocks_ns`: as HOLE_NS and CLOCKS_NS. `lags`: changes of lag are reported too (LagRow). `snapshot` is
    that of an earlier fold, which this one continues. StateVersionError: another version wrote it.
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
    def addresses(self) -> Sequence[str]:
        """Of a name: its addresses, in the order in which they were given first."""
        return self._fold.addresses if isinstance(self._fold, NameFold) else ()

    def take(self, event: Event) -> Sequence[Told]:
        """The next event in the order of arrival; what it completes (Found, Hole), and changes of lag (LagRow)."""
        return self._fold.take(event)

    def end_window(self) -> list[Told]:
        """The window ends: what can be judged now, and the rows that changed (Found, StreamRow, ConsumerRow, LagRow).

        It ends with a second.
        """
        return self._fold.end_window()

    def snapshot(self) -> str:
        """The state as text, after `end_window`."""
        return self._fold.snapshot()


def judge(events: Iterable[tuple[str, Event]], convention: IndexConvention = IndexConvention.NEXT) -> list[Told]:
    """All that events, each with its key and in the order of arrival, tell if nothing follows them."""
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
