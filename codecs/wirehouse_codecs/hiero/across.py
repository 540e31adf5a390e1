"""What only several calls say together: decisions about headers, publishers' retries, subscriptions, catch-ups, chains.

A fold takes the events of one service (all sources that have its name, or a source that stands alone) in the order of
arrival, and can be carried on: where windows are cut changes neither what is found nor how the newest rows stand. There
may be several block nodes: each is known by its address, so that a publisher or subscriber of one is recognised at
another, and what a node asks of another is known as its catching up.

- L is the highest block that the node is known to have verified: the highest it acknowledged or reported. It is a lower
  bound; nothing is found that a higher one could disprove.
- What would need messages that were missed isn't judged: not before a call with missing messages is over for
  the options' `patience_ms`.
- A rule about what never came is judged when its call closes, or when an event, or a window's end, is past its time.
- What a fold keeps is bounded. Beyond a bound what is oldest is forgotten, and not judged any more.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain, pairwise
from typing import Any, Final, TypeVar

from wirehouse_codecs.errors import StateVersionError
from wirehouse_codecs.hiero.events import Event, Where, whole
from wirehouse_codecs.hiero.log import BLOCK, BLOCK_FILE, CLOSED, MISSED, OPENED
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import BEHIND_CODE, DUPLICATE_CODE, NO_BLOCK, NODE_ERRORS, OPEN, Service
from wirehouse_codecs.hiero.rules import RULE, TOLERANT
from wirehouse_codecs.hiero.session import after
from wirehouse_codecs.intervals import Intervals
from wirehouse_codecs.rules import Rule, Severity

STATE_VERSION: Final = 1
MOST_CALLS: Final = 4_096
MOST_NODES: Final = 256
MOST_PUBLISHERS: Final = 4_096
#: Blocks whose hashes and rows are remembered: those that were seen first of all go first.
MOST_BLOCKS: Final = 1_024
MOST_PENDING: Final = 4_096
MOST_RUNS: Final = 4_096
#: Headers of a call that have no answer yet, and proofs that aren't acknowledged.
MOST_WAITING: Final = 256
#: Attempts and asked ranges that a row of a catch-up shows.
MOST_SHOWN: Final = 64
MOST_NAMES: Final = 16
#: Growth of the gaps between attempts: strict, and what the jitter of real publishers leaves of it.
GROWTH: Final = 1.3
TOLERANT_GROWTH: Final = 0.95
#: From here on a gap need not grow: publishers have a cap.
CAP_NS: Final = 30 * 10**9
GAPS: Final = 3

_PUBLISHER_ERRORS: Final = frozenset({"TIMEOUT", "ERROR"})
#: A subscriber is told of a failure that isn't its own.
_SOURCE_ERRORS: Final = frozenset({"ERROR", "NOT_AVAILABLE"})


# What is told


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that calls break together, at what completes it, or at what never had its answer."""

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
    #: The block that the answer names, and the code of the answer that ends the call.
    reported: int | None
    meaning: str | None
    answered_at_ns: int | None
    #: None = it can't be told.
    legal: bool | None
    rule: str | None


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
    #: Who ended it: `publisher`, `node`, or how the call was lost.
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
    #: It was refused, or ended by an error, and nothing of it was acknowledged.
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
    #: None = open.
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
    #: The node that asks, if it is one: then it catches up.
    asking_node: str | None
    next_call: str | None
    next_node: str | None
    next_at_ns: int | None


@dataclass(frozen=True, slots=True)
class CatchUpRow:
    """A node that is behind, until it has caught up."""

    #: The first answer that said so.
    where: Where
    node: str
    offered: int
    reported: int
    #: The highest block that was offered since, which is to be reached.
    recorded_target: int
    #: When, by whom, and what was offered and reported.
    attempts: tuple[tuple[int, str | None, int, int], ...]
    #: When, from whom, start and end (None = open).
    asked: tuple[tuple[int, str | None, int, int | None], ...]
    last_available: int | None
    fetched: int
    #: Nanoseconds between the attempts of one publisher.
    gaps: tuple[int, ...]
    #: `closing`, `stalled`, `done`.
    state: str
    ended_at_ns: int | None


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block, from all who sent it."""

    where: Where
    block_number: int
    publishers: tuple[str, ...]
    first_at_ns: int
    proof_at_ns: int | None
    acknowledged_at_ns: int | None
    item_counts: tuple[tuple[str, int], ...]
    items: int | None
    item_bytes: int | None
    proof_kind: str | None
    previous_hash: bytes | None
    block_root: bytes | None
    root_layout: str | None
    #: Its root is the next block's previous hash; None = one of them isn't known.
    chains: bool | None
    root_reason: str | None


Told = Found | DecisionRow | SessionRow | SubscriptionRow | CatchUpRow | BlockRow


# State


@dataclass(slots=True)
class _Call:
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
    #: When nothing more is to come of it, and how; when its end was told.
    ended_ns: int | None = None
    ended_by: str | None = None
    closed: bool = False
    status: int | None = None
    item_bytes: int = 0
    next_call: str | None = None
    next_node: str | None = None
    next_ns: int | None = None
    #: Of a publisher
    headers: int = 0
    first_header: int | None = None
    header: int | None = None
    #: The block of the last header has no proof, and wasn't refused.
    streaming: bool = False
    proven: int = 0
    acknowledged: int = 0
    refused: bool = False
    error: bool = False
    publisher_code: str | None = None
    node_code: str | None = None
    earliest: int | None = None
    latest: int | None = None
    #: Headers without an answer: [where, number, L, expected, first of the call].
    decisions: list[list[Any]] = field(default_factory=list)
    #: Proofs that aren't acknowledged: [where, number].
    proofs: list[list[Any]] = field(default_factory=list)
    #: Of a subscriber
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
    def new(self) -> bool:
        return (self.profile or "B").startswith("B")

    def coming(self) -> Iterator[int]:
        """Blocks that are neither acknowledged nor refused."""
        yield from (number for _, number in self.proofs)
        if self.streaming and self.header is not None:
            yield self.header

    @property
    def open(self) -> bool:
        return self.ended_ns is None and not self.closed


@dataclass(slots=True)
class _CatchUp:
    """A node that is behind."""

    where: Where
    offered: int
    reported: int
    target: int
    attempts: list[list[Any]] = field(default_factory=list)
    asked: list[list[Any]] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    available: int | None = None
    #: The node asked another for its status, or for blocks.
    started: bool = False
    fetched: int = 0
    stalled: bool = False
    ended_ns: int | None = None
    changed: bool = True


def _runs() -> Intervals:
    return Intervals(most=MOST_RUNS)


@dataclass(slots=True)
class _Node:
    """What is known of a block node."""

    name: str
    #: L, and how it rose lately: [when, to what] by acknowledgements.
    known: int | None = None
    acked: int | None = None
    rises: list[list[int]] = field(default_factory=list)
    #: When messages of its publishers were missed last.
    partial_ns: int | None = None
    #: Calls that it makes itself are captured.
    outgoing: bool = False
    #: When it last told a publisher of an error of its own; when a publisher last ended with an error, and which.
    error_ns: int | None = None
    publisher_error_ns: int | None = None
    publisher_error_call: str | None = None
    acked_ns: int | None = None
    catch_up: _CatchUp | None = None
    offered: Intervals = field(default_factory=_runs)
    proven: Intervals = field(default_factory=_runs)
    acknowledged: Intervals = field(default_factory=_runs)
    fetched: Intervals = field(default_factory=_runs)
    #: Blocks whose publisher ended with an error before their proof.
    dropped: Intervals = field(default_factory=_runs)

    def has(self, number: int) -> bool:
        """The block was delivered whole, acknowledged or fetched."""
        known = self.known is not None and number <= self.known
        return known or any(number in held for held in (self.proven, self.acknowledged, self.fetched))

    def first_missing(self) -> int:
        """The block after L that was not fetched."""
        at = 0 if self.known is None else self.known + 1
        return next((run.first for run in self.fetched.missing(at, 1 << 64)), at)


@dataclass(slots=True)
class _Attempts:
    """A publisher's attempts at one node."""

    last_call: str | None = None
    #: When the last attempt ended, if it failed; and whether by an error of the node.
    failed_ns: int | None = None
    node_error: bool = False
    gaps: list[int] = field(default_factory=list)
    distances: list[int] = field(default_factory=list)
    #: The block that was answered as a duplicate, and it wasn't offered another one since.
    refused: int | None = None
    #: It was answered Behind, and nothing of it was acknowledged since.
    behind: bool = False


@dataclass(slots=True)
class _Block:
    """A block by its number."""

    where: Where
    first_ns: int
    publishers: list[str] = field(default_factory=list)
    proof_ns: int | None = None
    acked_ns: int | None = None
    counts: list[list[Any]] = field(default_factory=list)
    items: int | None = None
    item_bytes: int | None = None
    proof_kind: str | None = None
    previous: str | None = None
    #: Roots by layout, as hex; they are all that the block can have.
    roots: list[str] = field(default_factory=list)
    complete: bool = False
    root: str | None = None
    layout: str | None = None
    reason: str | None = None
    chains: bool | None = None
    #: That it doesn't chain was told.
    told: bool = False
    changed: bool = True


@dataclass(slots=True)
class _Pending:
    """What is awaited: judged when it is `due`, or by what comes first."""

    kind: str
    where: Where
    due_ns: int
    call: str | None = None
    node: str | None = None
    #: A publisher or subscriber; and the publisher.
    who: str | None = None
    publisher: str | None = None
    others: list[str] = field(default_factory=list)
    used: bool = False
    message: str = ""
    #: The block that it is about, and the one whose proof is missing.
    number: int | None = None
    needs: int | None = None


class Fold:
    """The calls of one service. `take` events in the order of arrival, `end_window` at each window's end.

    Raises StateVersionError for another version's state.
    """

    def __init__(self, options: HieroOptions, state: str | None = None) -> None:
        self._options = options
        self._calls: OrderedDict[str, _Call] = OrderedDict()
        #: Those of them that were open when they were looked at last.
        self._active: dict[str, _Call] = {}
        self._nodes: OrderedDict[str, _Node] = OrderedDict()
        self._attempts: OrderedDict[str, _Attempts] = OrderedDict()
        self._blocks: dict[int, _Block] = {}
        self._pending: list[_Pending] = []
        self._now_ns = 0
        #: The earliest time that something pending is due.
        self._due_ns = _NEVER
        self._told: list[Told] = []
        self._catch_ups: list[CatchUpRow] = []
        if state is not None:
            self._restore(json.loads(state))

    def take(self, event: Event) -> list[Told]:
        """The next event; what it breaks together with those before it, and decisions that it settles."""
        self.advance(event.at_ns)
        if event.kind in (BLOCK, BLOCK_FILE):
            self._take_block(event)
        elif event.call is not None:
            call = self._call_of(event)
            take = _TAKES.get((call.service, event.kind))
            if take is not None:
                take(self, call, event)
        return self._give()

    def advance(self, now_ns: int) -> None:
        """Time goes on to `now_ns`."""
        self._now_ns = max(self._now_ns, now_ns)
        if self._now_ns <= self._due_ns:
            return
        for one in [one for one in self._pending if one.due_ns < self._now_ns]:
            # What is due again may be so by now.
            while one.due_ns and one.due_ns < self._now_ns:
                one.due_ns = _JUDGED[one.kind](self, one)
        self._pending = [one for one in self._pending if one.due_ns]
        self._set_due()

    def end_window(self, end_ns: int) -> list[Told]:
        """The window ends: what is due by then, and the rows that changed."""
        self.advance(end_ns)
        told = self._give()
        told += self._changed_rows()
        return told

    # Calls

    def _call_of(self, event: Event) -> _Call:
        assert event.call is not None
        call = self._calls.get(event.call)
        if call is not None and self._is_over(call, event.at_ns):
            del self._calls[event.call]
            self._told += _call_rows(call)
            call = None
        if call is None:
            about = (event.service, event.node, event.client, event.publisher)
            call = self._calls[event.call] = _Call(event.call, event.where, *about, event.at_ns)
            call.partial = event.kind != OPENED
            self._active[event.call] = call
            self._bound_calls()
        if call.service is None:
            call.service, call.publisher = event.service, event.publisher
        if event.kind not in (OPENED, MISSED, CLOSED, BLOCK):
            call.profile = event.told.get("profile") or call.profile
        call.last_ns, call.changed = event.at_ns, True
        return call

    def _is_over(self, call: _Call, now_ns: int) -> bool:
        """Nothing can come of the call any more."""
        return call.closed and now_ns - call.last_ns > self._options.patience_ns

    def _bound_calls(self) -> None:
        if len(self._calls) <= MOST_CALLS:
            return
        over = next((key for key, call in self._calls.items() if call.closed), next(iter(self._calls)))
        self._active.pop(over, None)
        self._told += _call_rows(self._calls.pop(over))

    def _node(self, name: str | None) -> _Node:
        name = name or ""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(name)
            if len(self._nodes) > MOST_NODES:
                self._nodes.popitem(last=False)
        return node

    def _note_partial(self, call: _Call, event: Event) -> None:
        if call.partial:
            self._node(call.node).partial_ns = event.at_ns

    def _miss(self, call: _Call, event: Event) -> None:
        """Messages of the call are missing."""
        call.partial = True
        self._note_partial(call, event)

    def _partial(self, node: _Node, at_ns: int) -> bool:
        """What wasn't seen of the node by then may have been missed."""
        return node.partial_ns is not None and at_ns - node.partial_ns <= self._options.patience_ns

    def _attempts_of(self, call: _Call) -> _Attempts:
        key = json.dumps([call.node, call.publisher])
        attempts = self._attempts.get(key)
        if attempts is None:
            attempts = self._attempts[key] = _Attempts()
            if len(self._attempts) > MOST_PUBLISHERS:
                self._attempts.popitem(last=False)
        self._attempts.move_to_end(key)
        return attempts

    def _open_calls(self) -> list[_Call]:
        over = [call.call for call in self._active.values() if not call.open]
        for name in over:
            del self._active[name]
        return list(self._active.values())

    def _publishing(self, node: str | None) -> list[_Call]:
        """Open calls of publishers at a node."""
        open_calls = self._open_calls()
        return [call for call in open_calls if call.service == Service.PUBLISH and call.node == node]

    def _subscribed(self, node: str | None) -> list[_Call]:
        open_calls = self._open_calls()
        return [call for call in open_calls if call.service == Service.SUBSCRIBE and call.node == node and call.asked]

    def _open(self, call: _Call, event: Event) -> None:
        call.profile, call.correlation_id = event.told["profile"], event.told["correlation_id"]
        call.partial |= bool(event.told["partial"])
        if call.service == Service.PUBLISH:
            self._note_partial(call, event)
            self._open_publisher(call, event)
        elif call.service == Service.SUBSCRIBE:
            self._resume(call, event, Service.SUBSCRIBE, call.client)
            self._drop("subscriber_not_resumed", who=call.client)
        elif call.service == Service.STATUS:
            node = self._asking_node(call)
            if node is not None and node.catch_up is not None:
                call.asking = node.name
                node.catch_up.started = True

    def _open_publisher(self, call: _Call, event: Event) -> None:
        self._drop("retry_after_node_error", who=call.publisher)
        self._resume(call, event, Service.PUBLISH, call.publisher)
        attempts = self._attempts_of(call)
        attempts.last_call = call.call
        failed_ns, attempts.failed_ns = attempts.failed_ns, None
        if failed_ns is None or event.at_ns < failed_ns:
            return
        attempts.gaps = [*attempts.gaps, event.at_ns - failed_ns][-GAPS:]
        node = self._node(call.node)
        if node.catch_up is not None:
            node.catch_up.gaps = [*node.catch_up.gaps, event.at_ns - failed_ns][-MOST_SHOWN:]
            node.catch_up.changed = True
        if len(attempts.gaps) == GAPS and not self._grows(attempts):
            shown = ", ".join(f"{gap / 1e9:.3f}" for gap in attempts.gaps)
            self._find("backoff", event.where, f"the last gaps between failed attempts are {shown} s", call)
            attempts.gaps.clear()

    def _grows(self, attempts: _Attempts) -> bool:
        gaps = attempts.gaps
        if not self._options.tolerant:
            return all(later >= GROWTH * gap or min(gap, later) >= CAP_NS for gap, later in pairwise(gaps))
        if min(gaps) >= TOLERANT_GROWTH * CAP_NS:
            return True
        steady = all(later >= TOLERANT_GROWTH * gap for gap, later in pairwise(gaps))
        return steady and gaps[-1] >= 2 * gaps[0]

    def _resume(self, call: _Call, event: Event, service: Service, who: str | None) -> None:
        """The call that goes on where one ended before."""
        for other in reversed(self._calls.values()):
            same = other.publisher if service is Service.PUBLISH else other.client
            if other is call or other.service != service or same != who or other.next_call is not None:
                continue
            if other.asking is None and not other.open and event.at_ns - other.last_ns <= self._options.patience_ns:
                other.next_call, other.next_node, other.next_ns = call.call, call.node, event.at_ns
                other.changed = True
            return

    def _end(self, call: _Call, at_ns: int, ended_by: str) -> None:
        """Nothing more is to come on the call."""
        if call.ended_ns is not None:
            return
        call.ended_ns, call.ended_by = at_ns, ended_by
        if call.service != Service.PUBLISH:
            return
        attempts = self._attempts_of(call)
        if call.acknowledged:
            attempts.gaps.clear()
        failed = call.refused or call.error or ended_by in ("reset", "closed")
        attempts.failed_ns = at_ns if failed and not call.acknowledged else None

    def _close(self, call: _Call, event: Event) -> None:
        told = event.told
        call.status, call.closed = told["status"], True
        call.partial |= bool(told["partial"])
        lost = told["how"] in ("capture_end", "forgotten")
        if call.service == Service.PUBLISH:
            self._note_partial(call, event)
            if not lost:
                self._end(call, event.at_ns, "node" if told["how"] == "trailers" else told["how"])
            self._close_publisher(call, event, lost)
        elif not lost:
            self._end(call, event.at_ns, told["how"])
            for kind in ("node_error_subscribers", "source_error_sent"):
                self._drop(kind, call=call.call)
            if call.cause is None and call.code is None:
                call.cause = "lost"

    def _close_publisher(self, call: _Call, event: Event, lost: bool) -> None:
        node = self._node(call.node)
        for decision in call.decisions:
            self._settle(call, decision, "none", None, None, None)
        call.decisions.clear()
        self._drop("node_error_all", call=call.call)
        if not lost and not self._publishing(call.node):
            self._judge_proofs(lambda one: one.node == call.node, event.at_ns, found=True)
        if not lost and call.node_code is None and not call.partial:
            for where, number in call.proofs:
                self._not_acknowledged(call, node, where, number)
        call.proofs.clear()

    def _not_acknowledged(self, call: _Call, node: _Node, where: Where, number: int) -> None:
        if (call.new and node.known is not None and node.known >= number) or number in node.acknowledged:
            return
        error_ns = node.publisher_error_ns
        after_error = error_ns is not None and node.publisher_error_call != call.call
        if after_error and error_ns is not None and where.arrived_at_ns > error_ns >= (node.acked_ns or 0):
            shown = f"block {number} isn't acknowledged after another publisher's error"
            self._find("continue", where, shown, call, number)
        else:
            shown = f"block {number} was sent with its proof and never answered"
            self._find("block_not_acknowledged", where, shown, call, number)

    # What publishers send

    def _take_items(self, call: _Call, event: Event) -> None:
        call.item_bytes += event.told["item_bytes"] or 0
        header, proof = whole(event.told["header"]), whole(event.told["proof"])
        self._use(call, event)
        if header is not None:
            self._offer(call, event, header)
        if proof is not None:
            self._prove(call, event, proof)

    def _use(self, call: _Call, event: Event) -> None:
        """The call is in use after a subscriber was told of a failing source."""
        for pending in [one for one in self._pending if call.call in one.others]:
            since_ns = event.at_ns - pending.where.arrived_at_ns
            pending.used |= since_ns > self._options.in_flight_ns
            if since_ns > self._options.node_error_ns:
                self._find_awaited(pending.kind, pending, pending.message)
                self._pending.remove(pending)

    def _offer(self, call: _Call, event: Event, number: int) -> None:
        node = self._node(call.node)
        expected = self._expected(call, node, number)
        call.headers += 1
        call.first_header = number if call.first_header is None else call.first_header
        call.header, call.streaming = number, True
        attempts = self._attempts_of(call)
        if attempts.refused is not None and call.headers == 1 and number <= attempts.refused:
            shown = f"block {attempts.refused} was answered as a duplicate, and {number} is offered again"
            self._find("recheck", event.where, shown, call, number)
        if call.headers == 1:
            attempts.refused = None
        node.offered.add(number)
        decision = [event.where, number, node.known, expected, call.headers == 1]
        call.decisions.append(decision)
        if len(call.decisions) > MOST_WAITING:
            self._settle(call, call.decisions.pop(0), "none", None, None, None)
        block = self._block(number, event.where)
        if call.publisher is not None and call.publisher not in block.publishers and len(block.publishers) < MOST_NAMES:
            block.publishers.append(call.publisher)
            block.changed = True

    def _expected(self, call: _Call, node: _Node, number: int) -> str | None:
        if node.known is None:
            return None
        if number <= node.known:
            return "duplicate"
        # What was fetched may be verified already.
        following = node.first_missing()
        if number < following:
            return None
        coming = chain.from_iterable(other.coming() for other in self._publishing(call.node))
        newest = max((one for one in coming if one < number), default=0)
        return "next" if number <= max(newest + 1, following) else "behind"

    def _prove(self, call: _Call, event: Event, number: int) -> None:
        node = self._node(call.node)
        call.proven += 1
        call.streaming = False
        node.proven.add(number)
        # After missing messages what was held back comes late.
        self._judge_proofs(
            lambda one: one.node == call.node and one.needs == number, event.at_ns, found=not call.partial
        )
        call.proofs = [*call.proofs, [event.where, number]][-MOST_WAITING:]
        block = self._block(number, event.where)
        if block.proof_ns is None:
            block.proof_ns, block.changed = event.at_ns, True

    def _end_stream(self, call: _Call, event: Event) -> None:
        node, code = self._node(call.node), event.told["meaning"]
        call.publisher_code = code
        call.earliest = whole(event.told["earliest_block_number"])
        call.latest = whole(event.told["latest_block_number"])
        unproven = call.streaming
        if code in _PUBLISHER_ERRORS:
            call.error = True
            node.publisher_error_ns, node.publisher_error_call = event.at_ns, call.call
            if unproven and call.header is not None:
                node.dropped.add(call.header)
        self._end(call, event.at_ns, "publisher")
        if code == "ERROR" and not self._publishing(call.node):
            for other in self._subscribed(call.node):
                if other.end is None:
                    self._await(
                        _Pending(
                            "source_error_sent",
                            event.where,
                            event.at_ns + self._options.patience_ns,
                            other.call,
                            call.node,
                            message=f"the last publisher ended with {code}, and subscriber {other.client} isn't told",
                        )
                    )

    # What the node answers

    def _acknowledge(self, call: _Call, event: Event) -> None:
        number = event.number or 0
        if event.told["block_already_exists"]:
            self._refuse(call, event, "duplicate", number)
            return
        node = self._node(call.node)
        self._judge_after(call, "node_error_all", event)
        first = number not in node.acknowledged
        self._judge_acknowledged(call, node, event, number, first)
        call.acknowledged += 1
        attempts = self._attempts_of(call)
        attempts.behind = False
        attempts.gaps.clear()
        attempts.distances.clear()
        node.acknowledged.add(number)
        node.acked_ns = event.at_ns
        self._raise(node, number, event.at_ns)
        call.proofs = [proof for proof in call.proofs if proof[1] > number or (not call.new and proof[1] != number)]
        block = self._block(number, event.where)
        if block.acked_ns is None:
            block.acked_ns, block.changed = event.at_ns, True
        catch_up = node.catch_up
        if catch_up is not None and number >= catch_up.target:
            self._end_catch_up(node, event.at_ns)

    def _judge_acknowledged(self, call: _Call, node: _Node, event: Event, number: int, first: bool) -> None:
        """Decisions that an acknowledgement settles, and whether the block may be acknowledged."""
        waiting, left = call.decisions, []
        broken = False
        for decision in waiting:
            where, offered, known, expected, is_first = decision
            old = event.at_ns - where.arrived_at_ns > self._options.in_flight_ns
            if offered == number:
                rule = self._accepted(call, node, decision)
                shown = f"block {number} is acknowledged, {known} was the last verified one when it was offered"
                again = known is not None and offered < known
                self._settle(call, decision, "accepted", number, None, event, rule if again else None)
                if rule is not None:
                    broken = True
                    if again:
                        self._find(rule, event.where, shown, call, number)
                    else:
                        self._await_proof(rule, call, event, shown, number, number - 1)
            elif offered < number and (call.new or old):
                rule = None
                if expected == "duplicate" and known is not None and offered < known and old:
                    rule = "duplicate" if is_first else "reenter"
                    shown = f"block {offered} had no answer before the acknowledgement of {number}"
                    self._find(rule, where, shown, call, offered)
                self._settle(call, decision, "accepted" if rule is None else "none", number, None, event, rule)
            else:
                left.append(decision)
        call.decisions = left
        if first and not broken and not self._partial(node, event.at_ns) and number in node.offered:
            self._judge_proof(call, node, event, number)

    def _judge_proof(self, call: _Call, node: _Node, event: Event, number: int) -> None:
        if number in node.proven or number in node.fetched or number < node.proven.floor:
            return
        if node.catch_up is not None and not node.outgoing:
            return
        dropped = number in node.dropped
        why = "its publisher ended with an error before its proof" if dropped else "its proof hasn't come"
        rule = "drop_unproven" if dropped else "ack_order"
        self._await_proof(rule, call, event, f"block {number}: {why}", number, number)

    def _await_proof(self, rule: str, call: _Call, event: Event, message: str, number: int, needs: int) -> None:
        """A proof isn't there. A hole that isn't known yet may hold it back: it is known when all calls have ended."""
        due = event.at_ns + self._options.patience_ns
        pending = _Pending(rule, event.where, due, call.call, call.node, publisher=call.publisher, message=message)
        pending.number, pending.needs = number, needs
        self._await(pending)

    def _judge_proofs(self, over: Callable[[_Pending], bool], at_ns: int, *, found: bool) -> None:
        for pending in [one for one in self._pending if one.needs is not None and over(one)]:
            self._pending.remove(pending)
            pending.due_ns = min(pending.due_ns, at_ns)
            if found:
                self._judge_never(pending)

    def _accepted(self, call: _Call, node: _Node, decision: list[Any]) -> str | None:
        """The rule that is broken if an offered block is acknowledged."""
        _, offered, known, expected, is_first = decision
        if known is None:
            return None
        if offered < known:
            return "duplicate" if is_first else "reenter"
        if expected != "behind" or self._partial(node, self._now_ns) or node.has(offered - 1):
            return None
        if node.catch_up is not None and not node.outgoing:
            return None
        if not is_first:
            return "reenter"
        return "behind_repeat" if self._attempts_of(call).behind else "behind"

    def _end_of_stream(self, call: _Call, event: Event) -> None:
        meaning, number = event.told["meaning"], event.number or 0
        if meaning == BEHIND_CODE:
            self._refuse(call, event, "behind", number)
            if call.new:
                self._node_ends(call, event, meaning)
            return
        if meaning == DUPLICATE_CODE:
            self._refuse(call, event, "duplicate", number)
        else:
            self._judge_report(call, event, number, answer=False)
            if number:
                self._know(self._node(call.node), number)
            for decision in call.decisions:
                self._settle(call, decision, "ended", number, meaning, event)
            call.decisions.clear()
        self._node_ends(call, event, meaning)

    def _node_ends(self, call: _Call, event: Event, meaning: str | None) -> None:
        node = self._node(call.node)
        call.node_code, call.streaming = meaning or "UNKNOWN", False
        call.error |= meaning not in ("SUCCESS", DUPLICATE_CODE, BEHIND_CODE)
        self._end(call, event.at_ns, "node")
        self._drop("node_error_all", call=call.call)
        if meaning not in NODE_ERRORS:
            return
        node.error_ns = event.at_ns
        self._pending = [
            one
            for one in self._pending
            if one.kind != "source_error_only_if_last"
            or one.node != call.node
            or event.at_ns - one.where.arrived_at_ns > self._options.node_error_ns
        ]
        due = event.at_ns + self._options.node_error_ns
        shown = f"the node ended another call with {meaning}"
        for other in self._publishing(call.node):
            self._await(_Pending("node_error_all", event.where, due, other.call, call.node, message=shown))
        for other in self._subscribed(call.node):
            self._await(_Pending("node_error_subscribers", event.where, due, other.call, call.node, message=shown))
        self._await(
            _Pending(
                "retry_after_node_error",
                event.where,
                event.at_ns + self._options.patience_ns,
                call.call,
                call.node,
                call.publisher,
                call.publisher,
                message=f"{call.publisher} doesn't come back after {meaning}",
            )
        )

    def _node_behind(self, call: _Call, event: Event) -> None:
        self._refuse(call, event, "behind", event.number or 0)

    def _refuse(self, call: _Call, event: Event, answer: str, number: int) -> None:
        """The node answers a header by a duplicate answer or Behind."""
        node, attempts = self._node(call.node), self._attempts_of(call)
        call.refused, call.streaming = True, False
        rule = self._judge_report(call, event, number, answer=True)
        offered = call.header
        is_first = call.headers == 1
        if call.decisions:
            self._settle(call, call.decisions.pop(), answer, number, event.told["meaning"], event, rule)
        if number:
            self._know(node, number)
        if offered is None:
            return
        if answer == "duplicate":
            attempts.refused = offered
            if node.catch_up is not None and node.catch_up.target <= number != NO_BLOCK:
                self._end_catch_up(node, event.at_ns)
            return
        attempts.behind = True
        if number != NO_BLOCK or offered:
            self._note_behind(call, node, event, offered, number)
        if is_first and number != NO_BLOCK and number:
            self._measure(call, attempts, node, event, offered - number)

    def _note_behind(self, call: _Call, node: _Node, event: Event, offered: int, number: int) -> None:
        catch_up = node.catch_up
        if catch_up is None:
            catch_up = node.catch_up = _CatchUp(event.where, offered, number, offered)
            due = event.at_ns + self._options.patience_ns
            self._await(_Pending("catch_up", event.where, due, call.call, call.node, publisher=call.publisher))
        catch_up.target = max(catch_up.target, offered)
        catch_up.attempts = [*catch_up.attempts, [event.at_ns, call.publisher, offered, number]][-MOST_SHOWN:]
        catch_up.changed = True

    def _measure(self, call: _Call, attempts: _Attempts, node: _Node, event: Event, distance: int) -> None:
        attempts.distances = [*attempts.distances, distance][-GAPS:]
        stalled = len(attempts.distances) == GAPS and attempts.distances == sorted(attempts.distances)
        if node.catch_up is not None:
            node.catch_up.stalled = stalled
        if stalled:
            shown = ", ".join(map(str, attempts.distances))
            self._find("target_closer", event.where, f"three attempts are {shown} blocks ahead of the node", call)
            attempts.distances.clear()

    def _judge_report(self, call: _Call, event: Event, number: int, *, answer: bool) -> str | None:
        """Whether the reported block is the newest; the name of the rule that is broken."""
        node = self._node(call.node)
        known = node.known
        if answer and number == 0 and known:
            shown = f"no block is reported, {known} is verified"
            self._find("last_known_set", event.where, shown, call, known)
            return "last_known_set"
        before = event.at_ns - self._options.in_flight_ns
        acked = max((rise[1] for rise in node.rises if rise[0] <= before), default=None)
        lower = acked is not None and (number == NO_BLOCK or number < acked)
        echo = self._options.tolerant and number == call.header
        if not lower or echo or (not answer and not number):
            return None
        shown = "none" if number == NO_BLOCK else str(number)
        self._find("last_known", event.where, f"block {shown} is reported, {acked} was acknowledged", call, number)
        return "last_known"

    def _know(self, node: _Node, number: int) -> None:
        if number != NO_BLOCK and (node.known is None or number > node.known):
            node.known = number

    def _raise(self, node: _Node, number: int, at_ns: int) -> None:
        """Block `number` is acknowledged."""
        self._know(node, number)
        if node.acked is not None and number <= node.acked:
            return
        node.acked = number
        before = at_ns - self._options.in_flight_ns
        old = [rise for rise in node.rises if rise[0] <= before]
        node.rises = [*old[-1:], *(rise for rise in node.rises if rise[0] > before), [at_ns, number]][-MOST_WAITING:]

    def _skip_block(self, call: _Call, event: Event) -> None:
        call.streaming = False
        self._answer(call, event, "skip")

    def _resend_block(self, call: _Call, event: Event) -> None:
        self._answer(call, event, "resend")

    def _answer(self, call: _Call, event: Event, actual: str) -> None:
        """SkipBlock or ResendBlock settles the header that it names."""
        node, left = self._node(call.node), []
        for decision in call.decisions:
            if decision[1] != event.number:
                left.append(decision)
                continue
            rule, shown = self._answered(call, node, decision, actual)
            if rule is not None:
                self._find(rule, event.where, shown, call, event.number)
            self._settle(call, decision, actual, event.number, None, event, rule)
        call.decisions = left

    def _answered(self, call: _Call, node: _Node, decision: list[Any], actual: str) -> tuple[str | None, str]:
        """The rule that SkipBlock or ResendBlock breaks as an answer to a header."""
        _, offered, known, expected, is_first = decision
        if known is None or self._partial(node, self._now_ns):
            return None, ""
        if expected == "behind" and is_first and self._attempts_of(call).behind:
            shown = f"block {offered} is offered again before the node has caught up: the answer is {actual}"
            return "behind_repeat", shown
        if actual == "skip" and offered < known - self._options.skipped_blocks:
            shown = f"block {offered} is answered by SkipBlock, {known} is verified"
            return ("duplicate" if is_first else "reenter"), shown
        return None, ""

    def _settle(
        self,
        call: _Call,
        decision: list[Any],
        actual: str,
        reported: int | None,
        meaning: str | None,
        event: Event | None,
        rule: str | None = None,
    ) -> None:
        """A decision is known."""
        where, offered, known, expected, is_first = decision
        legal: bool | None = None
        if actual == "duplicate" and reported is not None:
            legal = reported != NO_BLOCK and offered <= reported
            rule = rule or (None if legal or not reported else "next")
        elif actual == "behind" and reported is not None:
            legal = offered > after(reported)
            if not legal and rule is None:
                rule = "next" if offered == after(reported) else ("duplicate" if is_first else "reenter")
        elif actual == "accepted" and event is not None:
            legal = None if known is None or expected == "behind" else True
        elif actual in ("skip", "resend"):
            legal = True
        if rule is not None:
            legal = False
        self._told.append(
            DecisionRow(
                where,
                call.call,
                call.node,
                call.publisher,
                offered,
                known,
                expected,
                actual,
                None if actual == "accepted" else reported,
                meaning,
                None if event is None else event.at_ns,
                legal,
                None if rule is None else RULE[rule].id,
            )
        )

    # Subscribers and catching up

    def _asking_node(self, call: _Call) -> _Node | None:
        """The block node that makes a call itself: it is behind, and another one is asked from its address."""
        asking = [
            node
            for node in self._nodes.values()
            if node.catch_up is not None and node.name != call.node and node.name.partition(" ")[0] == call.client
        ]
        if len(asking) != 1:
            return None
        asking[0].outgoing = True
        return asking[0]

    def _request(self, call: _Call, event: Event) -> None:
        call.asked = True
        call.start = whole(event.told["start_block_number"])
        end = whole(event.told["end_block_number"])
        call.end = None if end == OPEN or (not call.new and not end) else end
        node = self._asking_node(call)
        if node is None or node.catch_up is None:
            return
        call.asking = node.name
        catch_up = node.catch_up
        start = call.start or 0
        self._judge_range(call, node, catch_up, event, start)
        catch_up.started = catch_up.changed = True
        catch_up.asked = [*catch_up.asked, [event.at_ns, call.node, start, call.end]][-MOST_SHOWN:]

    def _judge_range(self, call: _Call, node: _Node, catch_up: _CatchUp, event: Event, start: int) -> None:
        end, available, needed = call.end, catch_up.available, catch_up.target - 1
        asked = f"{start} to {'the end' if end is None else end}"
        reachable = needed if available is None else min(needed, available)
        if end is not None and end < reachable:
            shown = f"asked is {asked}, block {catch_up.target} was offered"
            self._find("recorded_target", event.where, shown, call, catch_up.target)
            return
        expected = {after(node.known) if node.known is not None else start, node.first_missing()}
        if start not in expected or (end is not None and available is not None and end != available):
            shown = f"asked is {asked}, needed from {min(expected)} to {'the end' if available is None else available}"
            self._find("catchup_range", event.where, shown, call, start)

    def _server_status(self, call: _Call, event: Event) -> None:
        last = whole(event.told["last_available_block"])
        asking = None if call.asking is None else self._nodes.get(call.asking)
        if asking is not None and asking.catch_up is not None:
            asking.catch_up.available, asking.catch_up.changed = last, True
        if last:
            self._know(self._node(call.node), last)

    def _deliver(self, call: _Call, event: Event) -> None:
        call.item_bytes += event.told["item_bytes"] or 0
        header = whole(event.told["header"])
        if header is not None:
            call.first_block = header if call.first_block is None else call.first_block
            call.last_block = header
        self._judge_after(call, "node_error_subscribers", event)
        for pending in [one for one in self._pending if one.kind == "source_error_sent" and one.call == call.call]:
            if event.at_ns > pending.where.arrived_at_ns + self._options.in_flight_ns:
                self._find("source_error_sent", pending.where, pending.message, call)
                self._pending.remove(pending)

    def _subscribe_status(self, call: _Call, event: Event) -> None:
        meaning = event.told["meaning"] or "UNKNOWN"
        call.code = meaning
        for kind in ("node_error_subscribers", "source_error_sent"):
            self._drop(kind, call=call.call)
        node = self._node(call.node)
        self._end(call, event.at_ns, "node")
        if meaning == "SUCCESS":
            call.cause = "done"
            return
        if meaning not in _SOURCE_ERRORS or (call.end is not None and not call.blocks):
            call.cause = "request"
            return
        near = self._options.node_error_ns
        by_node = node.error_ns is not None and event.at_ns - node.error_ns <= near
        by_publisher = node.publisher_error_ns is not None and event.at_ns - node.publisher_error_ns <= near
        call.cause = "node_error" if by_node else "publisher_error" if by_publisher else None
        if call.asking is not None:
            return
        if not by_node:
            others = [other.call for other in self._publishing(call.node)][:MOST_WAITING]
            shown = f"subscriber {call.client} is told {meaning}, and another publisher goes on"
            due = event.at_ns + near
            self._await(
                _Pending(
                    "source_error_only_if_last", event.where, due, call.call, call.node, others=others, message=shown
                )
            )
        shown = f"subscriber {call.client} doesn't come back after {meaning}"
        due = event.at_ns + self._options.patience_ns
        self._await(
            _Pending("subscriber_not_resumed", event.where, due, call.call, call.node, call.client, message=shown)
        )

    def _end_catch_up(self, node: _Node, at_ns: int) -> None:
        catch_up = node.catch_up
        if catch_up is None:
            return
        catch_up.ended_ns = at_ns
        self._catch_ups.append(_catch_up_row(node, catch_up))
        node.catch_up = None
        self._drop("catch_up", node=node.name)

    # Blocks

    def _block(self, number: int, where: Where) -> _Block:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block(where, where.arrived_at_ns)
            if len(self._blocks) > MOST_BLOCKS:
                old = next(iter(self._blocks))
                forgotten = self._blocks.pop(old)
                self._told += [_block_row(old, forgotten)] if forgotten.changed else []
        return block

    def _take_block(self, event: Event) -> None:
        number, told = event.number, event.told
        call = None if event.call is None else self._call_of(event)
        if number is None or not told["proven"]:
            return
        if call is not None and call.service == Service.SUBSCRIBE:
            self._fetch(call, event, number)
        block = self._block(number, event.where)
        block.changed = True
        if block.items is None or (told["roots_complete"] and not block.complete):
            block.counts = sorted([name, count] for name, count in _pairs(told["item_counts"]))
            block.items, block.item_bytes = told["items"], told["item_bytes"]
            block.proof_kind, block.reason = told["proof_kind"], told["root_reason"]
            block.root, block.layout = _hex(told["block_root"]), told["root_layout"]
            block.previous = _hex(told["previous_hash"])
        if block.proof_ns is None:
            block.proof_ns = event.at_ns
        for root in told["roots"] or ():
            if (text := root["root"].hex()) not in block.roots and len(block.roots) < MOST_NAMES:
                block.roots.append(text)
        block.complete |= bool(told["roots_complete"])
        self._chain(number, event, call)
        self._chain(number - 1, event, call)

    def _chain(self, number: int, event: Event, call: _Call | None) -> None:
        """Whether the root of block `number` is what the next block holds."""
        block, following = self._blocks.get(number), self._blocks.get(number + 1)
        if block is None or following is None or following.previous is None or not block.roots:
            return
        holds = following.previous in block.roots
        if not holds and not block.complete:
            return
        block.changed |= block.chains is not holds
        block.chains = holds
        if holds:
            block.root = following.previous
            return
        if not block.told:
            block.told = True
            shown = f"block {number + 1} holds {following.previous[:16]}… as the root of block {number}: it isn't"
            self._find("chain", event.where, shown, call, number + 1)

    def _fetch(self, call: _Call, event: Event, number: int) -> None:
        """A subscriber, perhaps a node that catches up, has a block."""
        call.blocks += 1
        node = None if call.asking is None else self._nodes.get(call.asking)
        if node is None:
            return
        node.fetched.add(number)
        catch_up = node.catch_up
        if catch_up is not None:
            catch_up.fetched += 1
            catch_up.changed = True
        elif not call.overrun:
            call.overrun = True
            shown = f"block {number} is fetched, though {node.name} has caught up"
            self._find("catch_up_overrun", event.where, shown, call, number)

    # What is awaited

    def _await(self, pending: _Pending) -> None:
        same = (pending.kind, pending.call, pending.node, pending.number)
        known = any((one.kind, one.call, one.node, one.number) == same for one in self._pending)
        if known or len(self._pending) >= MOST_PENDING:
            return
        self._pending.append(pending)
        self._due_ns = min(self._due_ns, pending.due_ns)

    def _drop(self, kind: str, *, call: str | None = None, who: str | None = None, node: str | None = None) -> None:
        """It came."""
        if not self._pending:
            return
        self._pending = [
            one
            for one in self._pending
            if one.kind != kind
            or (call is not None and one.call != call)
            or (who is not None and one.who != who)
            or (node is not None and one.node != node)
        ]

    def _set_due(self) -> None:
        self._due_ns = min((one.due_ns for one in self._pending), default=_NEVER)

    def _judge_after(self, call: _Call, kind: str, event: Event) -> None:
        """The call goes on after the node's own error, when it was to be told."""
        for pending in [one for one in self._pending if one.kind == kind and one.call == call.call]:
            if event.at_ns > pending.where.arrived_at_ns + self._options.node_error_ns:
                self._find(kind, event.where, f"the call goes on: {pending.message}", call)
                self._pending.remove(pending)

    def _judge_never(self, pending: _Pending) -> int:
        self._find_awaited(pending.kind, pending, pending.message, pending.number)
        return 0

    def _wait_for_use(self, pending: _Pending) -> int:
        """Calls that were to be told: judged by what comes on them, until they close or patience is over."""
        over = pending.where.arrived_at_ns + self._options.patience_ns
        return over if pending.due_ns < over else 0

    def _judge_source_error(self, pending: _Pending) -> int:
        return self._judge_never(pending) if pending.used else self._wait_for_use(pending)

    def _judge_catch_up(self, pending: _Pending) -> int:
        node = self._node(pending.node)
        catch_up = node.catch_up
        if catch_up is None or not (node.outgoing or catch_up.started):
            return 0
        if not catch_up.started:
            shown = f"block {catch_up.target} was offered, and {node.name} asks no other node"
            self._find_awaited("catch_up_not_started", pending, shown, catch_up.target)
            return 0
        first = after(catch_up.reported)
        last = min(catch_up.target, first + MOST_RUNS)
        missing = next((one for one in range(first, last) if not node.has(one)), None)
        if missing is not None:
            shown = f"block {missing} was needed before {catch_up.target}, and isn't fetched"
            self._find_awaited("gap_not_filled", pending, shown, missing)
        return 0

    # What is told

    def _find(self, rule: str, where: Where, message: str, call: _Call | None, number: int | None = None) -> None:
        if (
            rule != "chain"
            and call is not None
            and (call.partial or self._unsure(self._now_ns, call.node, call.asking))
        ):
            return
        self._tell(rule, where, message, call, number)

    def _unsure(self, at_ns: int, *names: str | None) -> bool:
        nodes = (self._nodes.get(name or "") for name in names)
        return any(node is not None and self._partial(node, at_ns) for node in nodes)

    def _tell(self, rule: str, where: Where, message: str, call: _Call | None, number: int | None = None) -> None:
        found = RULE[rule]
        severity = TOLERANT.get(rule, found.severity) if self._options.tolerant else found.severity
        told = Found(found, severity, where, message, block_number=number)
        if call is not None:
            told = replace(told, call=call.call, node=call.node, publisher=call.publisher)
        self._told.append(told)

    def _find_awaited(self, rule: str, pending: _Pending, message: str, number: int | None = None) -> None:
        """What never came; its call may be forgotten."""
        if self._unsure(pending.due_ns, pending.node):
            return
        self._tell(rule, pending.where, message, None, number)
        found = self._told[-1]
        assert isinstance(found, Found)
        self._told[-1] = replace(found, call=pending.call, node=pending.node, publisher=pending.publisher)

    def _give(self) -> list[Told]:
        told, self._told = self._told, []
        return told

    def _changed_rows(self) -> Iterator[Told]:
        yield from self._catch_ups
        self._catch_ups = []
        for call in list(self._calls.values()):
            yield from _call_rows(call)
            call.changed = False
            if self._is_over(call, self._now_ns):
                del self._calls[call.call]
        for node in self._nodes.values():
            if node.catch_up is not None and node.catch_up.changed:
                node.catch_up.changed = False
                yield _catch_up_row(node, node.catch_up)
        for number, block in self._blocks.items():
            if block.changed:
                block.changed = False
                yield _block_row(number, block)

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON, after `end_window`."""
        state = {
            "version": STATE_VERSION,
            "now_ns": self._now_ns,
            "calls": [_to_json(call) for call in self._calls.values()],
            "nodes": [_to_json(node) for node in self._nodes.values()],
            "attempts": [[key, _to_json(attempts)] for key, attempts in self._attempts.items()],
            "blocks": [[number, _to_json(block)] for number, block in self._blocks.items()],
            "pending": [_to_json(pending) for pending in self._pending],
        }
        return json.dumps(state, separators=(",", ":"))

    def _restore(self, state: dict[str, Any]) -> None:
        if state.get("version") != STATE_VERSION:
            raise StateVersionError(what="hiero service", found=state.get("version"), expected=STATE_VERSION)
        self._now_ns = state["now_ns"]
        for told in state["calls"]:
            call = _from_json(_Call, told)
            for waiting in (call.decisions, call.proofs):
                for one in waiting:
                    one[0] = Where.from_json(one[0])
            self._calls[call.call] = self._active[call.call] = call
        for told in state["nodes"]:
            node = _from_json(_Node, told)
            if node.catch_up is not None:
                node.catch_up = _from_json(_CatchUp, node.catch_up)  # type: ignore[arg-type]
            self._nodes[node.name] = node
        self._attempts.update((key, _from_json(_Attempts, told)) for key, told in state["attempts"])
        self._blocks.update((number, _from_json(_Block, told)) for number, told in state["blocks"])
        self._pending = [_from_json(_Pending, told) for told in state["pending"]]
        self._set_due()


_NEVER: Final = 1 << 63
_Take = Callable[[Fold, _Call, Event], None]
#: By the call's service and the event's kind.
_TAKES: Final[Mapping[tuple[str | None, str], _Take]] = {
    **{(service, OPENED): Fold._open for service in (Service.PUBLISH, Service.SUBSCRIBE, Service.STATUS)},
    **{(service, MISSED): Fold._miss for service in (Service.PUBLISH, Service.SUBSCRIBE, Service.STATUS)},
    **{(service, CLOSED): Fold._close for service in (Service.PUBLISH, Service.SUBSCRIBE, Service.STATUS)},
    (Service.PUBLISH, "block_items"): Fold._take_items,
    (Service.PUBLISH, "publisher_end_stream"): Fold._end_stream,
    (Service.PUBLISH, "acknowledgement"): Fold._acknowledge,
    (Service.PUBLISH, "end_stream"): Fold._end_of_stream,
    (Service.PUBLISH, "node_behind"): Fold._node_behind,
    (Service.PUBLISH, "skip_block"): Fold._skip_block,
    (Service.PUBLISH, "resend_block"): Fold._resend_block,
    (Service.SUBSCRIBE, "subscribe_request"): Fold._request,
    (Service.SUBSCRIBE, "block_items"): Fold._deliver,
    (Service.SUBSCRIBE, "subscribe_status"): Fold._subscribe_status,
    (Service.STATUS, "server_status"): Fold._server_status,
}
#: What is done with what is due: the time when it is due again, or 0.
_JUDGED: Final[Mapping[str, Callable[[Fold, _Pending], int]]] = {
    "node_error_all": Fold._wait_for_use,
    "node_error_subscribers": Fold._wait_for_use,
    "source_error_only_if_last": Fold._judge_source_error,
    "source_error_sent": Fold._judge_never,
    "retry_after_node_error": Fold._judge_never,
    "subscriber_not_resumed": Fold._judge_never,
    "catch_up": Fold._judge_catch_up,
    **dict.fromkeys(("ack_order", "drop_unproven", "behind", "behind_repeat", "reenter"), Fold._judge_never),
}


# Rows


def _call_rows(call: _Call) -> Iterator[Told]:
    """The rows of a call that changed."""
    if not call.changed:
        return
    for where, offered, known, expected, _ in call.decisions:
        about = (call.call, call.node, call.publisher, offered, known, expected)
        yield DecisionRow(where, *about, None, None, None, None, None, None)
    if call.service == Service.PUBLISH:
        yield _session_row(call)
    elif call.service == Service.SUBSCRIBE:
        yield _subscription_row(call)


def _session_row(call: _Call) -> SessionRow:
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
        earliest_block_number=call.earliest,
        latest_block_number=call.latest,
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


def _subscription_row(call: _Call) -> SubscriptionRow:
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


def _catch_up_row(node: _Node, catch_up: _CatchUp) -> CatchUpRow:
    state = "done" if catch_up.ended_ns is not None else "stalled" if catch_up.stalled else "closing"
    return CatchUpRow(
        where=catch_up.where,
        node=node.name,
        offered=catch_up.offered,
        reported=catch_up.reported,
        recorded_target=catch_up.target,
        attempts=tuple((at, who, offered, reported) for at, who, offered, reported in catch_up.attempts),
        asked=tuple((at, whom, start, end) for at, whom, start, end in catch_up.asked),
        last_available=catch_up.available,
        fetched=catch_up.fetched,
        gaps=tuple(catch_up.gaps),
        state=state,
        ended_at_ns=catch_up.ended_ns,
    )


def _block_row(number: int, block: _Block) -> BlockRow:
    previous, root = (None if text is None else bytes.fromhex(text) for text in (block.previous, block.root))
    return BlockRow(
        where=block.where,
        block_number=number,
        publishers=tuple(block.publishers),
        first_at_ns=block.first_ns,
        proof_at_ns=block.proof_ns,
        acknowledged_at_ns=block.acked_ns,
        item_counts=tuple((name, count) for name, count in block.counts),
        items=block.items,
        item_bytes=block.item_bytes,
        proof_kind=block.proof_kind,
        previous_hash=previous,
        block_root=root,
        root_layout=block.layout,
        chains=block.chains,
        root_reason=None if block.chains else block.reason,
    )


def _pairs(counts: Any) -> Iterable[tuple[str, int]]:
    """A map of a row, which Arrow gives as pairs."""
    pairs: Iterable[tuple[str, int]] = counts.items() if isinstance(counts, dict) else counts or ()
    return pairs


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


# Carried state


def _json(value: Any) -> Any:
    if isinstance(value, Where | Intervals):
        return value.to_json()
    if isinstance(value, _CatchUp):
        return _to_json(value)
    if isinstance(value, list):
        return [_json(one) for one in value]
    return value


def _to_json(state: Any) -> dict[str, Any]:
    return {each.name: _json(getattr(state, each.name)) for each in fields(state)}


_State = TypeVar("_State")


def _from_json(kind: type[_State], told: dict[str, Any]) -> _State:
    row = dict(told)
    if "where" in row:
        row["where"] = Where.from_json(row["where"])
    for name in ("offered", "proven", "acknowledged", "fetched", "dropped"):
        if kind is _Node:
            row[name] = Intervals.from_json(row[name])
    return kind(**row)
