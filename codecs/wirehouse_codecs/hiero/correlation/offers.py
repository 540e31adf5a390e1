"""Blocks that publishers offer to nodes: in which order, how each offer ended, and how long the block took.

Rows come at the end of a window:

- a RaceRow for each block that several publishers offered,
- a LatencyRow for each offer that was accepted: how long the proof, the acknowledgement and the first delivery took.

The newest MOST_OFFERED blocks are kept, each with its first MOST_OFFERS offers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.hiero.correlation.events import Where
from wirehouse_codecs.hiero.correlation.rows import DecisionRow, LatencyRow, RaceRow

MOST_OFFERED: Final = 1_024
MOST_OFFERS: Final = 64


@dataclass(slots=True)
class Offer:
    """A header of a block that a publisher sent."""

    where: Where
    call: str
    publisher: str | None
    #: The value of DecisionRow.actual.
    answer: str | None = None
    answered_ns: int | None = None
    skip_obeyed: bool | None = None
    resend_obeyed: bool | None = None
    proof_ns: int | None = None


@dataclass(slots=True)
class Offered:
    """A block that was offered to a node, or that a subscriber got from it."""

    node: str | None
    number: int
    #: Time at which the first subscriber of the node got its header.
    delivered_ns: int | None = None
    offers: list[Offer] = field(default_factory=list)
    changed: bool = False


class Offers:
    """The newest offered blocks of a fold."""

    def __init__(self, known: Iterable[Offered] = ()) -> None:
        self._blocks = {(one.node, one.number): one for one in known}
        #: Rows of blocks that were dropped since the last `changed_rows`.
        self._dropped_rows: list[RaceRow | LatencyRow] = []

    @property
    def state(self) -> list[Offered]:
        """The carried state."""
        return list(self._blocks.values())

    def _block(self, node: str | None, number: int) -> Offered:
        block = self._blocks.get((node, number))
        if block is None:
            block = self._blocks[node, number] = Offered(node, number)
            if len(self._blocks) > MOST_OFFERED:
                self._dropped_rows += _rows(self._blocks.pop(next(iter(self._blocks))))
        return block

    def offer(self, node: str | None, number: int, offer: Offer) -> None:
        """Note that a publisher offers the block."""
        block = self._block(node, number)
        if len(block.offers) < MOST_OFFERS:
            block.offers.append(offer)
            block.changed = True

    def decide(self, row: DecisionRow) -> None:
        """Note how an offer ended, as far as it is known."""
        block = self._blocks.get((row.node, row.offered))
        if block is None:
            return
        for offer in block.offers:
            if (offer.call, offer.where) == (row.call, row.where):
                offer.answer, offer.answered_ns = row.actual, row.answered_at_ns
                offer.skip_obeyed, offer.resend_obeyed = row.skip_obeyed, row.resend_obeyed
                block.changed = True

    def prove(self, node: str | None, number: int, call: str, at_ns: int) -> None:
        """Note that the proof came on this call."""
        block = self._blocks.get((node, number))
        if block is None:
            return
        for offer in block.offers:
            if offer.call == call and offer.proof_ns is None:
                offer.proof_ns, block.changed = at_ns, True

    def deliver(self, node: str | None, number: int, at_ns: int, *, is_new: bool) -> None:
        """Note that a subscriber gets the header. `is_new`: the node isn't known to have verified the block."""
        block = self._block(node, number) if is_new else self._blocks.get((node, number))
        if block is not None and block.delivered_ns is None:
            block.delivered_ns, block.changed = at_ns, True

    def changed_rows(self) -> list[RaceRow | LatencyRow]:
        """The rows that changed since the last call."""
        rows, self._dropped_rows = self._dropped_rows, []
        for block in self._blocks.values():
            rows += _rows(block)
            block.changed = False
        return rows


def _rows(block: Offered) -> Iterator[RaceRow | LatencyRow]:
    if not block.changed:
        return
    if len({offer.publisher for offer in block.offers} - {None}) > 1:
        yield _race(block)
    yield from (_latency(block, offer) for offer in block.offers if offer.answer == "accepted")


def _race(block: Offered) -> RaceRow:
    offers, first_ns = block.offers, block.offers[0].where.arrived_at_ns
    won = next((offer for offer in offers if offer.answer == "accepted"), None)
    return RaceRow(
        where=(won or offers[0]).where._replace(arrived_at_ns=first_ns),
        node=block.node,
        block_number=block.number,
        publisher_count=len({offer.publisher for offer in offers} - {None}),
        offered_by=tuple((offer.where.arrived_at_ns, offer.publisher, offer.answer) for offer in offers),
        won_by=None if won is None else won.publisher,
        skipped=sum(offer.answer == "skip" for offer in offers),
        skip_obeyed=_all([offer.skip_obeyed for offer in offers]),
        resent=sum(offer.answer == "resend" for offer in offers),
        resend_obeyed=_all([offer.resend_obeyed for offer in offers]),
        first_at_ns=first_ns,
        last_at_ns=offers[-1].where.arrived_at_ns,
    )


def _all(obeyed: Sequence[bool | None]) -> bool | None:
    known = [one for one in obeyed if one is not None]
    return all(known) if known else None


def _latency(block: Offered, offer: Offer) -> LatencyRow:
    header_ns, proof_ns, answered_ns = offer.where.arrived_at_ns, offer.proof_ns, offer.answered_ns
    return LatencyRow(
        where=offer.where,
        call=offer.call,
        node=block.node,
        publisher=offer.publisher,
        block_number=block.number,
        header_at_ns=header_ns,
        proof_at_ns=proof_ns,
        acknowledged_at_ns=answered_ns,
        delivered_at_ns=block.delivered_ns,
        sending_ns=_between(header_ns, proof_ns),
        verifying_ns=_between(proof_ns, answered_ns),
        delivering_ns=_between(answered_ns, block.delivered_ns),
    )


def _between(first_ns: int | None, last_ns: int | None) -> int | None:
    return None if first_ns is None or last_ns is None else last_ns - first_ns
