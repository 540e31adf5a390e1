"""How peers replicate logs by the specification: what simulator.py has them do on each connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wirehouse_codecs.bamboo.setup import Channel, Role
from wirehouse_codecs.bamboo.simulator.logs import Journal
from wirehouse_codecs.bamboo.simulator.peers import NS_PER_MS, Dialogue, Exchange
from wirehouse_codecs.bamboo.wire.lipmaa import has_lipmaalink, lipmaa
from wirehouse_codecs.bamboo.wire.messages import CancelReason

#: Number of entries of a log that are sent before the next log has its turn.
BURST_ENTRIES: Final = 32


def whole_logs(dialogue: Dialogue, journals: list[Journal], stored: int, live: int, interval_ms: int) -> Iterator[None]:
    """Logs from where they stand: what was stored at once, then each entry as it is written.

    Every second log comes from the other side, which has what is before. None is kept, however long it is.
    """
    proposers = [list(Role)[at % len(Role)] for at in range(len(journals))]
    exchanges = [Exchange(dialogue, one.chain, role) for one, role in zip(journals, proposers, strict=True)]
    for journal, exchange in zip(journals, exchanges, strict=True):
        before = journal.chain.length
        begins = before + 1
        expected = journal.chain.hash_of(lipmaa(begins)) if before else None
        exchange.propose(begins, None if live else before + stored, lower=begins, expected=expected).confirm()
    yield
    logs = list(zip(journals, exchanges, strict=True))
    for first in range(1, stored + live + 1, BURST_ENTRIES):
        last = min(first + BURST_ENTRIES - 1, stored + live)
        # Entries up to here are sent at once, later ones when their time has come.
        at_once = max(min(last, stored), first - 1)
        for journal, exchange in logs:
            _send(exchange, journal, at_once - first + 1)
            yield
        for _ in range(at_once, last):
            dialogue.wait(interval_ms * NS_PER_MS)
            for journal, exchange in logs:
                _send(exchange, journal, 1)
            yield
    for journal, exchange in logs:
        # A log without an end always has more to come.
        is_all = journal.ends or not live
        exchange.cancel(exchange.proposer, CancelReason.END_REACHED if is_all else CancelReason.RESOURCES)
    yield


def _send(exchange: Exchange, journal: Journal, count: int) -> None:
    """The next entries of a log go to the side that proposed it."""
    if not count:
        return
    dialogue, sender = exchange.dialogue, exchange.proposer.peer
    sent = [dialogue.switched(sender, exchange.id)]
    for _ in range(count):
        published = journal.next()
        # Where it begins nothing was sent that the backlink follows from.
        backlink = published.seq == exchange.plan.start and has_lipmaalink(published.seq)
        sent += (published.metadata(backlink=backlink), dialogue.payload(sender, published.payload))
    dialogue.write(sender, Channel.DATA, b"".join(sent))
