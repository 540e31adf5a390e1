"""How peers replicate logs by the specification: what simulator.py has them do on each connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wirehouse_codecs.bamboo.bymux import Channel, Role
from wirehouse_codecs.bamboo.logs import Chain, Contents
from wirehouse_codecs.bamboo.messages import CancelReason
from wirehouse_codecs.bamboo.peers import NS_PER_MS, Exchange, Talk

#: So many entries of a log are sent, before it is the next one's turn.
BURST_ENTRIES: Final = 32


def whole_logs(
    talk: Talk, chains: list[tuple[int, Chain]], contents: Contents, stored: int, live: int, interval_ms: int
) -> Iterator[None]:
    """Logs, with their numbers, from entry 1 on: what was stored at once, then each entry as it is written.

    Every second log comes from the other side. None is kept, however long it is.
    """
    proposers = [list(Role)[at % len(Role)] for at in range(len(chains))]
    exchanges = [Exchange(talk, chain, role) for (_, chain), role in zip(chains, proposers, strict=True)]
    for exchange in exchanges:
        exchange.propose(end=None if live else stored).confirm()
    yield
    for first in range(1, stored + live + 1, BURST_ENTRIES):
        last = min(first + BURST_ENTRIES - 1, stored + live)
        # Entries up to here are sent at once, later ones when their time has come.
        at_once = max(min(last, stored), first - 1)
        for (number, chain), exchange in zip(chains, exchanges, strict=True):
            _append(exchange, chain, number, contents, at_once - first + 1)
            yield
        for _ in range(at_once, last):
            talk.wait(interval_ms * NS_PER_MS)
            for (number, chain), exchange in zip(chains, exchanges, strict=True):
                _append(exchange, chain, number, contents, 1)
            yield
    for exchange in exchanges:
        # Of a log without an end there is always more to come.
        exchange.cancel(exchange.proposer, CancelReason.RESOURCES if live else CancelReason.END_REACHED)
    yield


def _append(exchange: Exchange, chain: Chain, number: int, contents: Contents, count: int) -> None:
    """The next entries of a log, sent to the side that proposed it."""
    if not count:
        return
    talk, sender = exchange.talk, exchange.proposer.peer
    said = [talk.switched(sender, exchange.id)]
    for _ in range(count):
        published = chain.append(contents.payload(number, chain.length + 1))
        said += (published.metadata(), talk.payload(sender, published.payload))
    talk.write(sender, Channel.DATA, b"".join(said))
