"""The fold's collection of Pending, found by the call, the client or the proof that may settle each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from wirehouse_codecs.hiero.correlation.state import Pending

MOST_PENDING: Final = 4_096
_Key = tuple[str, str | None, str | None, int | None]


class Awaited:
    """All Pending of a fold, in the order in which they came; found by kind, call or block. Each is awaited once."""

    def __init__(self, pending: Iterable[Pending] = ()) -> None:
        self._all: dict[_Key, Pending] = {}
        self._groups: dict[Hashable, dict[_Key, Pending]] = {}
        for one in pending:
            self.add(one)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._all.values())

    def add(self, pending: Pending) -> bool:
        """Await it. Whether it is new: it wasn't awaited already, and there is room."""
        key = _key(pending)
        if key in self._all or len(self._all) >= MOST_PENDING:
            return False
        self._all[key] = pending
        for group in _groups(pending):
            self._groups.setdefault(group, {})[key] = pending
        return True

    def remove(self, pending: Pending) -> None:
        """Await it no longer."""
        key = _key(pending)
        del self._all[key]
        for group in _groups(pending):
            members = self._groups[group]
            del members[key]
            if not members:
                del self._groups[group]

    def of(self, *kinds: str) -> list[Pending]:
        """All of these kinds."""
        return [one for kind in kinds for one in self._of(kind)]

    def of_call(self, kind: str, call: str) -> list[Pending]:
        """All of a kind that a call may settle."""
        return self._of((kind, call))

    def of_others(self, call: str) -> list[Pending]:
        """All that have the call among their `others`, which may settle them."""
        return self._of(("other", call))

    def of_block(self, node: str | None, number: int) -> list[Pending]:
        """All that wait, or waited, for the proof of a block at a node."""
        return self._of((node, number))

    def unproven(self, node: str | None) -> list[Pending]:
        """All that wait, or waited, for any proof at a node."""
        return self._of(("unproven", node))

    def _of(self, group: Hashable) -> list[Pending]:
        return list(self._groups.get(group, {}).values())


def _key(pending: Pending) -> _Key:
    return pending.kind, pending.call, pending.node, pending.number


def _groups(pending: Pending) -> Iterator[Hashable]:
    yield pending.kind
    yield pending.kind, pending.call
    for other in pending.others:
        yield "other", other
    if pending.needs is not None:
        yield pending.node, pending.needs
        yield "unproven", pending.node
