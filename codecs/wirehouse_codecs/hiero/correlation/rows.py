"""The rows that the fold of a service emits: findings, and one row for each decision, call, catch-up and block.

`Outcome` is the union of their types. Each type is one table: `gold.hiero_found`, `gold.hiero_decisions`, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.rules import Rule, Severity
from wirehouse_codecs.hiero.correlation.events import Where


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that several calls break together, at the message that completes it or that never had its answer."""

    rule: Rule
    severity: Severity
    where: Where
    message: str
    call: str | None = None
    node: str | None = None
    publisher: str | None = None
    block_number: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """An offered header, and what the node decided."""

    where: Where
    call: str
    node: str | None
    publisher: str | None
    offered: int
    #: L when it was offered; None = not known.
    last_known: int | None
    #: `next`, `duplicate`, `behind`; None = L wasn't known.
    expected: str | None
    #: `accepted`, `duplicate`, `behind`, `skip`, `resend`, `ended`, `none`; None = not decided yet.
    actual: str | None
    #: The block that the answer names (None = none), and the code of the answer that ends the call.
    reported: int | None
    meaning: str | None
    answered_at_ns: int | None
    #: None = it isn't known.
    legal: bool | None
    rule: str | None
    #: Whether the publisher stopped after SkipBlock, and offered the block again after ResendBlock. None = the node
    #: sent no such answer, or the publisher may not have known it.
    skip_obeyed: bool | None = None
    resend_obeyed: bool | None = None


@dataclass(frozen=True, slots=True)
class RaceRow:
    """A block that several publishers offered to a node."""

    #: Location of the header that was accepted first, else of the first one. The time is that of the first one.
    where: Where
    node: str | None
    block_number: int
    publisher_count: int
    #: For each offer its time, its publisher and its answer.
    offered_by: tuple[tuple[int, str | None, str | None], ...]
    won_by: str | None
    skipped: int
    skip_obeyed: bool | None
    resent: int
    resend_obeyed: bool | None
    first_at_ns: int
    last_at_ns: int


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """A block that a node accepted from a publisher, and how long each part of its way took."""

    where: Where
    call: str
    node: str | None
    publisher: str | None
    block_number: int
    header_at_ns: int
    proof_at_ns: int | None
    acknowledged_at_ns: int | None
    delivered_at_ns: int | None
    sending_ns: int | None
    verifying_ns: int | None
    delivering_ns: int | None


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A publisher's call."""

    where: Where
    call: str
    node: str | None
    client: str | None
    publisher: str | None
    correlation_id: str | None
    profile: str | None
    opened_at_ns: int
    ended_at_ns: int | None
    #: `publisher` or `node`, which ended it, or how the call was lost.
    ended_by: str | None
    publisher_code: str | None
    node_code: str | None
    status: int | None
    earliest_block_number: int | None
    latest_block_number: int | None
    headers: int
    first_header: int | None
    last_header: int | None
    proven: int
    acknowledged: int
    item_bytes: int
    #: Whether it was refused, or ended by an error, with nothing acknowledged. None = it goes on.
    failed: bool | None
    partial: bool
    next_call: str | None
    next_node: str | None
    next_at_ns: int | None


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscriber's call."""

    where: Where
    call: str
    node: str | None
    client: str | None
    opened_at_ns: int
    #: None = the request was open: it named no first block.
    start_block_number: int | None
    end_block_number: int | None
    blocks: int
    first_block: int | None
    last_block: int | None
    item_bytes: int
    code: str | None
    status: int | None
    ended_at_ns: int | None
    #: `publisher_error`, `node_error`, `request`, `done`, `lost`; None = it goes on, or isn't known.
    cause: str | None
    #: The node that makes the call itself to catch up.
    asking_node: str | None
    next_call: str | None
    next_node: str | None
    next_at_ns: int | None


@dataclass(frozen=True, slots=True)
class CatchUpRow:
    """A node that is behind, until it has caught up."""

    #: Location of the first answer Behind.
    where: Where
    node: str
    offered: int
    #: None = the node had no block.
    reported: int | None
    #: The highest block that was offered since: the node has to reach it.
    recorded_target: int
    #: For each attempt its time, its publisher, the offered block and the reported one.
    attempts: tuple[tuple[int, str | None, int, int | None], ...]
    #: For each request its time, the asked node, the first block and the last one (None = open).
    asked: tuple[tuple[int, str | None, int, int | None], ...]
    last_available: int | None
    fetched: int
    #: Nanoseconds between the attempts of one publisher.
    gaps_ns: tuple[int, ...]
    #: `closing`, `stalled`, `done`.
    state: str
    ended_at_ns: int | None


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block, from all publishers that sent it."""

    where: Where
    block_number: int
    publishers: tuple[str, ...]
    first_at_ns: int
    proof_at_ns: int | None
    acknowledged_at_ns: int | None
    #: None = the block was not captured whole.
    item_counts: tuple[tuple[str, int], ...] | None
    items: int | None
    item_bytes: int | None
    proof_kind: str | None
    previous_hash: bytes | None
    block_root: bytes | None
    root_layout: str | None
    #: Whether its root is the next block's previous hash; None = one of them isn't known.
    chains: bool | None
    root_reason: str | None


#: A row that the fold emits.
Outcome = Found | DecisionRow | RaceRow | LatencyRow | SessionRow | SubscriptionRow | CatchUpRow | BlockRow
