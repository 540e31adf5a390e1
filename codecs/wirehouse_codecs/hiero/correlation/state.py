"""The state that a fold keeps of calls, nodes, publishers and blocks, the rows made from it, and its carried form.

The names of these classes and of their fields are part of the carried layout: whoever changes one raises
SNAPSHOT_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.hiero.correlation.events import Where
from wirehouse_codecs.hiero.correlation.offers import Offered
from wirehouse_codecs.hiero.correlation.rows import (
    BlockRow,
    CatchUpRow,
    DecisionRow,
    Outcome,
    SessionRow,
    SubscriptionRow,
)
from wirehouse_codecs.hiero.profiles import OPEN, Service, block_or_none

SNAPSHOT_VERSION: Final = 8
MOST_RUNS: Final = 4_096


class Decision(NamedTuple):
    """A header that waits for its answer."""

    where: Where
    number: int
    #: L, the node's last verified block, when it was offered.
    known: int | None
    #: The answer that is due: `next`, `duplicate`, `behind`; None = not known.
    expected: str | None
    #: Whether it is the first header of its call.
    is_first: bool


class Proof(NamedTuple):
    """A proof that waits for its acknowledgement."""

    where: Where
    number: int


class Early(NamedTuple):
    """An answer that was read before its header, which came late in the same packet."""

    at_ns: int
    answer: str
    number: int
    code: str | None


@dataclass(slots=True)
class Told:
    """An order to a publisher, SkipBlock or ResendBlock, until it is known whether the publisher obeys."""

    #: The decision about the header of that block.
    row: DecisionRow
    #: Location of the order.
    answer: Where
    #: Whether it is ResendBlock.
    resend: bool
    #: Whether the publisher sent nothing since, and whether it may have written what it sent before it knew the order.
    silent: bool = True
    unsure: bool = False

    @property
    def is_known(self) -> bool:
        """Whether nothing more can show what the publisher did after SkipBlock."""
        return self.resend or self.unsure or self.row.skip_obeyed is not None


@dataclass(slots=True)
class Call:
    """A call of a publisher or a subscriber."""

    call: str
    where: Where
    service: str | None
    node: str | None
    client: str | None
    publisher: str | None
    opened_ns: int
    profile: str | None = None
    correlation_id: str | None = None
    partial: bool = False
    changed: bool = True
    last_ns: int = 0
    #: Time of its last message.
    said_ns: int = 0
    #: Times of the last message of its client, and of its node.
    sent_ns: int = 0
    answered_ns: int = 0
    #: Time at which one side ended it, and which side or how; whether its end was captured.
    ended_ns: int | None = None
    ended_by: str | None = None
    closed: bool = False
    status: int | None = None
    item_bytes: int = 0
    next_call: str | None = None
    next_node: str | None = None
    next_ns: int | None = None
    #: Fields of publishers' calls. Number of headers, the first block and the last one:
    headers: int = 0
    first_header: int | None = None
    header: int | None = None
    #: Whether the block of the last header has no proof yet, and wasn't refused.
    streaming: bool = False
    proven: int = 0
    acknowledged: int = 0
    #: The highest block that was acknowledged on the call.
    acked: int | None = None
    refused: bool = False
    #: Whether its last header was answered by Behind.
    behind: bool = False
    error: bool = False
    publisher_code: str | None = None
    node_code: str | None = None
    earliest: int | None = None
    latest: int | None = None
    #: Headers without an answer.
    decisions: list[Decision] = field(default_factory=list)
    #: Proofs that aren't acknowledged.
    proofs: list[Proof] = field(default_factory=list)
    early: Early | None = None
    #: The `orders`.
    told: list[Told] = field(default_factory=list)
    #: Fields of subscribers' calls. The range that was asked for:
    start: int | None = None
    end: int | None = None
    asked: bool = False
    blocks: int = 0
    first_block: int | None = None
    last_block: int | None = None
    code: str | None = None
    cause: str | None = None
    asking: str | None = None
    overrun: bool = False

    @property
    def orders(self) -> list[Told]:
        """SkipBlock and ResendBlock answers that the publisher may still obey."""
        return self.told

    @property
    def new(self) -> bool:
        """Whether it has a profile of the newer API, `B`."""
        return (self.profile or "B").startswith("B")

    def coming(self) -> Iterator[int]:
        """Blocks that are neither acknowledged nor refused."""
        yield from (proof.number for proof in self.proofs)
        if self.streaming and self.header is not None:
            yield self.header

    @property
    def open(self) -> bool:
        """Whether messages may follow."""
        return self.ended_ns is None and not self.closed


@dataclass(slots=True)
class CatchUp:
    """A node that is behind, and catches up."""

    where: Where
    offered: int
    reported: int
    target: int
    #: For each attempt its time, its publisher, the offered block and the one that the node reported.
    attempts: list[tuple[int, str | None, int, int]] = field(default_factory=list)
    #: For each request of the node its time, the asked node, the first block and the last one.
    asked: list[tuple[int, str | None, int, int | None]] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    available: int | None = None
    #: The last block that each asked node reported.
    reports: dict[str, int] = field(default_factory=dict)
    #: Whether the node asked another one for its status, or for blocks.
    started: bool = False
    fetched: int = 0
    stalled: bool = False
    ended_ns: int | None = None
    changed: bool = True


def _runs() -> Intervals:
    return Intervals(most=MOST_RUNS)


@dataclass(slots=True)
class Node:
    """A block node, as far as it is known."""

    name: str
    #: L.
    known: int | None = None
    #: Time since which it is known to have another block than 0.
    known_ns: int = 0
    #: The highest acknowledged block, and how it rose last: time and block of each acknowledgement.
    acked: int | None = None
    rises: list[tuple[int, int]] = field(default_factory=list)
    #: Begin and end of the time in which a message of it was captured at least once a minute.
    heard_since_ns: int = 0
    heard_ns: int = 0
    #: Time at which an answer was last captured no later than its request: its clock may be behind that of the clients.
    early_ns: int | None = None
    #: Time at which messages of its publishers were missed last.
    partial_ns: int | None = None
    #: Whether calls that it makes itself are captured.
    outgoing: bool = False
    #: Time of its last own error, reported to a publisher; time of a publisher's last error.
    error_ns: int | None = None
    publisher_error_ns: int | None = None
    #: Errors of publishers since the last acknowledgement: time and call of each.
    publisher_errors: list[tuple[int, str]] = field(default_factory=list)
    acked_ns: int | None = None
    catch_up: CatchUp | None = None
    #: Time at which it had caught up last.
    caught_up_ns: int | None = None
    offered: Intervals = field(default_factory=_runs)
    proven: Intervals = field(default_factory=_runs)
    acknowledged: Intervals = field(default_factory=_runs)
    fetched: Intervals = field(default_factory=_runs)
    #: Blocks whose publisher ended with an error before their proof.
    dropped: Intervals = field(default_factory=_runs)

    def has(self, number: int) -> bool:
        """Whether the block was delivered whole, acknowledged or fetched."""
        known = self.known is not None and number <= self.known
        return known or any(number in held for held in (self.proven, self.acknowledged, self.fetched))

    def first_missing(self) -> int:
        """The block after L that was not fetched."""
        at = 0 if self.known is None else self.known + 1
        return next((run.first for run in self.fetched.missing(at, 1 << 64)), at)


@dataclass(slots=True)
class Attempts:
    """A publisher's attempts at one node."""

    last_call: str | None = None
    #: Time at which the last attempt ended, if it failed; and whether by an error of the node.
    failed_ns: int | None = None
    node_error: bool = False
    gaps: list[int] = field(default_factory=list)
    distances: list[int] = field(default_factory=list)
    #: The block that was answered as a duplicate, if the publisher offered no other one since.
    refused: int | None = None
    #: Location of that answer.
    refused_at: Where | None = None
    #: Whether it was answered Behind, and nothing of it was acknowledged since.
    behind: bool = False


@dataclass(slots=True)
class Block:
    """A block by its number."""

    where: Where
    first_ns: int
    publishers: list[str] = field(default_factory=list)
    proof_ns: int | None = None
    acked_ns: int | None = None
    counts: list[tuple[str, int]] = field(default_factory=list)
    items: int | None = None
    item_bytes: int | None = None
    proof_kind: str | None = None
    previous: str | None = None
    #: Roots that the block may have, as hex; if `complete`, it can have no other.
    roots: list[str] = field(default_factory=list)
    complete: bool = False
    root: str | None = None
    layout: str | None = None
    reason: str | None = None
    chains: bool | None = None
    #: Whether it was reported that the next block doesn't hold its root.
    told: bool = False
    changed: bool = True


@dataclass(slots=True)
class Pending:
    """A message or call that is awaited. It is judged when it is due, or dropped when a message settles it."""

    kind: str
    where: Where
    due_ns: int
    call: str | None = None
    node: str | None = None
    #: The client that has to come back, if one has to; the publisher that a finding is about.
    who: str | None = None
    publisher: str | None = None
    others: list[str] = field(default_factory=list)
    used: bool = False
    message: str = ""
    #: The block that it is about, the one whose proof is missing, and whether that proof came, but too late.
    number: int | None = None
    needs: int | None = None
    proven: bool = False
    #: Maximum number of bytes of the other side that its sender had received; None = not known.
    received: int | None = None
    #: Time before which it isn't judged, after a silence.
    held_ns: int = 0

    @property
    def ready_ns(self) -> int:
        """The earliest time at which it is judged."""
        return max(self.due_ns, self.held_ns)


# Rows


def call_rows(call: Call) -> Iterator[Outcome]:
    """The rows of a call that changed."""
    if not call.changed:
        return
    for where, offered, known, expected, _ in call.decisions:
        about = (call.call, call.node, call.publisher, offered, known, expected)
        yield DecisionRow(where, *about, None, None, None, None, None, None)
    yield from (order.row for order in call.orders)
    if call.service == Service.PUBLISH:
        yield _session_row(call)
    elif call.service == Service.SUBSCRIBE:
        yield _subscription_row(call)


def _session_row(call: Call) -> SessionRow:
    failed = None if call.ended_ns is None else (call.refused or call.error) and not call.acknowledged
    return SessionRow(
        where=call.where,
        call=call.call,
        node=call.node,
        client=call.client,
        publisher=call.publisher,
        correlation_id=call.correlation_id,
        profile=call.profile,
        opened_at_ns=call.opened_ns,
        ended_at_ns=call.ended_ns,
        ended_by=call.ended_by,
        publisher_code=call.publisher_code,
        node_code=call.node_code,
        status=call.status,
        earliest_block_number=block_or_none(call.earliest),
        latest_block_number=block_or_none(call.latest),
        headers=call.headers,
        first_header=call.first_header,
        last_header=call.header,
        proven=call.proven,
        acknowledged=call.acknowledged,
        item_bytes=call.item_bytes,
        failed=failed,
        partial=call.partial,
        next_call=call.next_call,
        next_node=call.next_node,
        next_at_ns=call.next_ns,
    )


def _subscription_row(call: Call) -> SubscriptionRow:
    return SubscriptionRow(
        where=call.where,
        call=call.call,
        node=call.node,
        client=call.client,
        opened_at_ns=call.opened_ns,
        start_block_number=None if call.start == OPEN else call.start,
        end_block_number=call.end,
        blocks=call.blocks,
        first_block=call.first_block,
        last_block=call.last_block,
        item_bytes=call.item_bytes,
        code=call.code,
        status=call.status,
        ended_at_ns=call.ended_ns,
        cause=call.cause,
        asking_node=call.asking,
        next_call=call.next_call,
        next_node=call.next_node,
        next_at_ns=call.next_ns,
    )


def catch_up_row(node: Node, catch_up: CatchUp) -> CatchUpRow:
    """The row of a node's catching up."""
    state = "done" if catch_up.ended_ns is not None else "stalled" if catch_up.stalled else "closing"
    return CatchUpRow(
        where=catch_up.where,
        node=node.name,
        offered=catch_up.offered,
        reported=block_or_none(catch_up.reported),
        recorded_target=catch_up.target,
        attempts=tuple((at, who, offered, block_or_none(reported)) for at, who, offered, reported in catch_up.attempts),
        asked=tuple((at, whom, start, end) for at, whom, start, end in catch_up.asked),
        last_available=catch_up.available,
        fetched=catch_up.fetched,
        gaps_ns=tuple(catch_up.gaps),
        state=state,
        ended_at_ns=catch_up.ended_ns,
    )


def block_row(number: int, block: Block) -> BlockRow:
    """The row of a block."""
    previous, root = (None if text is None else bytes.fromhex(text) for text in (block.previous, block.root))
    return BlockRow(
        where=block.where,
        block_number=number,
        publishers=tuple(block.publishers),
        first_at_ns=block.first_ns,
        proof_at_ns=block.proof_ns,
        acknowledged_at_ns=block.acked_ns,
        item_counts=None if block.items is None else tuple(block.counts),
        items=block.items,
        item_bytes=block.item_bytes,
        proof_kind=block.proof_kind,
        previous_hash=previous,
        block_root=root,
        root_layout=block.layout,
        chains=block.chains,
        root_reason=None if block.chains else block.reason,
    )


# Carried state


class ServiceState(NamedTuple):
    """The carried state of a service's fold."""

    now_ns: int
    #: Time of the last event.
    heard_ns: int
    calls: list[Call]
    nodes: list[Node]
    attempts: dict[str, Attempts]
    blocks: dict[int, Block]
    pending: list[Pending]
    offered: list[Offered]


CODEC: Final = SnapshotCodec(ServiceState, what="hiero service", version=SNAPSHOT_VERSION)
