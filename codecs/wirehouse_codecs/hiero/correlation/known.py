"""The base of the fold: what is known of calls, nodes, publishers and blocks, what is awaited, and the outcomes.

`Known` finds or makes the state of a call, node, publisher or block, within bounds, and answers questions about it
(whether messages may be missing, whether two connections have an order in time). It keeps what is awaited, emits
findings, and writes and reads the carried state. The rules are in the classes that inherit from it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, Self

from wirehouse_codecs.hiero.correlation.awaited import Awaited
from wirehouse_codecs.hiero.correlation.events import Event, Where
from wirehouse_codecs.hiero.correlation.offers import Offers
from wirehouse_codecs.hiero.correlation.rows import CatchUpRow, DecisionRow, Found, Outcome
from wirehouse_codecs.hiero.correlation.state import (
    CODEC,
    Attempts,
    Block,
    Call,
    CatchUp,
    Node,
    Pending,
    ServiceState,
    block_row,
    call_rows,
    catch_up_row,
)
from wirehouse_codecs.hiero.log.rows import BLOCK, CLOSED, MISSED, OPENED
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import NO_BLOCK, Service, block_or_none
from wirehouse_codecs.hiero.rules import RULE, TOLERANT
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.options import TcpOptions

MOST_CALLS: Final = 4_096
MOST_NODES: Final = 256
MOST_PUBLISHERS: Final = 4_096
#: Maximum number of blocks whose hashes and rows are remembered; the first ones seen are dropped first.
MOST_BLOCKS: Final = 1_024
#: Maximum number of a call's headers without an answer, and of its proofs without an acknowledgement.
MOST_WAITING: Final = 256
#: Maximum number of attempts and asked ranges in the row of a catch-up.
MOST_SHOWN: Final = 64
#: Maximum number of a block's publishers and roots, of a call's orders, and of the nodes in a catch-up's reports.
MOST_NAMES: Final = 16
#: Silence of a node after which its capture may have had a gap.
GAP_NS: Final = 60 * 10**9
#: Maximum difference of the clocks that capture two sides, or two connections.
CLOCKS_NS: Final = 2 * 10**9
NEVER: Final = 1 << 63
#: Kinds of Pending for which a client has to come back.
_RETURNS: Final = ("retry_after_node_error", "subscriber_not_resumed")


class Waits(NamedTuple):
    """How long the connections of a service hold back what was captured, at most."""

    #: Time for which missing bytes of a connection that goes on hold back the bytes behind them.
    held_ns: int
    #: Silence after which a connection has ended, and has delivered what its missing bytes held back.
    silent_ns: int

    @classmethod
    def of(cls, *options: TcpOptions) -> Self:
        """The longest waits of sources with these options."""
        held_ns = 2 * max(one.hole_wait_ns for one in options)
        return cls(held_ns, held_ns + max(one.idle_ns for one in options))


#: Waits of a source without options.
WAITS: Final = Waits.of(TcpOptions())


class Known:
    """Calls, nodes, publishers, blocks, what is awaited of them, and the outcomes of the fold."""

    def __init__(self, options: HieroOptions, state: str | None = None, waits: Waits = WAITS) -> None:
        self._options, self._waits = options, waits
        self._calls: OrderedDict[str, Call] = OrderedDict()
        #: Calls that were open at the last look.
        self._active: dict[str, Call] = {}
        self._nodes: OrderedDict[str, Node] = OrderedDict()
        self._attempts: OrderedDict[str, Attempts] = OrderedDict()
        self._blocks: dict[int, Block] = {}
        self._awaited = Awaited()
        self._now_ns = 0
        #: Time of the last event.
        self._heard_ns = 0
        #: The earliest time that something pending is due.
        self._due_ns = NEVER
        #: Findings and rows that weren't emitted yet.
        self._outcomes: list[Outcome] = []
        self._offers = Offers()
        self._catch_ups: list[CatchUpRow] = []
        #: The newest answer that breaks a rule of its call, which the log found.
        self._broken: Event | None = None
        if state is not None:
            self._restore(CODEC.read(state))

    def _call_of(self, event: Event) -> Call:
        assert event.call is not None
        call = self._calls.get(event.call)
        if call is not None and self._is_over(call, event.at_ns):
            del self._calls[event.call]
            self._outcomes += call_rows(call)
            call = None
        if call is None:
            about = (event.service, event.node, event.client, event.publisher)
            call = self._calls[event.call] = Call(event.call, event.where, *about, event.at_ns)
            call.partial = event.kind != OPENED or bool(event.fields["partial"])
            self._active[event.call] = call
            if call.partial or call.service is None:
                self._come_back(call)
            self._bound_calls()
        if call.service is None and event.service is not None:
            call.service, call.publisher = event.service, event.publisher
            self._note_partial(call, event)
        if event.kind not in (OPENED, MISSED, CLOSED, BLOCK):
            call.profile = event.fields.get("profile") or call.profile
            call.said_ns = event.at_ns
            self._hear(self._node(call.node), event.at_ns)
            if event.where.direction == Direction.CLIENT:
                call.sent_ns = event.at_ns
            else:
                call.answered_ns = event.at_ns
            # Within a packet, which releases what waits for it, both sides have no order.
            if call.sent_ns == call.answered_ns or event.is_late:
                self._node(call.node).early_ns = event.at_ns
        call.last_ns, call.changed = event.at_ns, True
        return call

    def _come_back(self, call: Call) -> None:
        """Await the client no longer: a call whose beginning isn't known may be the one that is awaited of it."""
        for one in self._awaited.of(*_RETURNS):
            ended = self._calls.get(one.call or "")
            if one.who in (call.publisher, call.client) or (ended is not None and ended.client == call.client):
                self._awaited.remove(one)

    def _is_over(self, call: Call, now_ns: int) -> bool:
        """Whether the call is closed, and nothing can come of it any more."""
        return call.closed and now_ns - call.last_ns > self._options.patience_ns

    def _bound_calls(self) -> None:
        if len(self._calls) <= MOST_CALLS:
            return
        # Drop several at once, closed ones first: a look at all calls costs as much as many events.
        most = max(1, MOST_CALLS // 16)
        closed = list(islice((call for call in self._calls.values() if call.closed), most))
        for call in closed or list(islice(self._calls.values(), most)):
            self._active.pop(call.call, None)
            self._outcomes += call_rows(self._calls.pop(call.call))

    def _node(self, name: str | None) -> Node:
        name = name or ""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node(name)
            if len(self._nodes) > MOST_NODES:
                self._nodes.popitem(last=False)
        return node

    def _hear(self, node: Node, at_ns: int) -> None:
        if at_ns - node.heard_ns > GAP_NS:
            node.heard_since_ns = at_ns
        node.heard_ns = max(node.heard_ns, at_ns)

    def _captured(self, call: Call, at_ns: int) -> bool:
        """Whether the call was captured for `patience_ms` after `at_ns`: it, or its node, went on."""
        over, node = at_ns + self._options.patience_ns, self._node(call.node)
        return call.said_ns >= over or (node.heard_since_ns <= at_ns and node.heard_ns >= over)

    def _note_partial(self, call: Call, event: Event) -> None:
        """If messages of the call are missing, note that at its node, and at the node that makes it to catch up."""
        if call.partial:
            self._node(call.node).partial_ns = event.at_ns
            for node in self._nodes.values():
                if node.name.partition(" ")[0] == call.client:
                    node.partial_ns = event.at_ns

    def _partial(self, node: Node, at_ns: int) -> bool:
        """Whether messages of the node may have been missed by then, or be in a call whose node isn't known."""
        times = (one.partial_ns for one in (node, self._nodes.get("")) if one is not None)
        return any(ns is not None and at_ns - ns <= self._options.patience_ns for ns in times)

    def _ordered(self, node: Node, at_ns: int) -> bool:
        """Whether messages of two calls of the node have a known order in time at `at_ns`."""
        return node.early_ns is None or abs(at_ns - node.early_ns) > CLOCKS_NS

    def _crossed_ns(self, node: Node, at_ns: int) -> int:
        """Maximum time by which another connection's message may be captured too early, before one of `at_ns`."""
        return self._options.in_flight_ns if self._ordered(node, at_ns) else CLOCKS_NS

    def _asking_node(self, call: Call) -> Node | None:
        """The block node that makes the call itself: it is behind, and calls another node from its address."""
        asking = [
            node
            for node in self._nodes.values()
            if node.catch_up is not None and node.name != call.node and node.name.partition(" ")[0] == call.client
        ]
        if len(asking) != 1:
            return None
        asking[0].outgoing = True
        return asking[0]

    def _ask(self, call: Call) -> tuple[Node, CatchUp] | None:
        """The node that makes the call itself to catch up, and this catch-up, which then counts as started."""
        node = self._asking_node(call) if call.asking is None else self._nodes.get(call.asking)
        if node is None or node.catch_up is None:
            return None
        call.asking, node.catch_up.started, node.catch_up.changed = node.name, True, True
        return node, node.catch_up

    def _attempts_of(self, call: Call) -> Attempts:
        key = attempts_key(call.node, call.publisher)
        attempts = self._attempts.get(key)
        if attempts is None:
            attempts = self._attempts[key] = Attempts()
            if len(self._attempts) > MOST_PUBLISHERS:
                self._attempts.popitem(last=False)
        self._attempts.move_to_end(key)
        return attempts

    def _open_calls(self) -> list[Call]:
        over = [call.call for call in self._active.values() if not call.open]
        for name in over:
            del self._active[name]
        return list(self._active.values())

    def _publishing(self, node: str | None) -> list[Call]:
        """Open calls of publishers at a node."""
        open_calls = self._open_calls()
        return [call for call in open_calls if call.service == Service.PUBLISH and call.node == node]

    def _subscribed(self, node: str | None) -> list[Call]:
        open_calls = self._open_calls()
        return [call for call in open_calls if call.service == Service.SUBSCRIBE and call.node == node and call.asked]

    def _resume(self, call: Call, event: Event, service: Service, who: str | None) -> None:
        """Note the call as the next one of a call of the same publisher or subscriber that ended before."""
        for other in reversed(self._calls.values()):
            same = other.publisher if service is Service.PUBLISH else other.client
            if other is call or other.service != service or same != who or other.next_call is not None:
                continue
            if other.asking is None and not other.open and event.at_ns - other.last_ns <= self._options.patience_ns:
                other.next_call, other.next_node, other.next_ns = call.call, call.node, event.at_ns
                other.changed = True
            return

    def _end(self, call: Call, event: Event, ended_by: str, *, broken: bool = False) -> None:
        """Nothing more may follow on the call. `broken`: a reset or the end of its connection ended it."""
        if call.ended_ns is not None:
            return
        call.ended_ns, call.ended_by = event.at_ns, ended_by
        if call.service != Service.PUBLISH:
            return
        attempts = self._attempts_of(call)
        # A call with missing messages may have had an acknowledgement, and late bytes don't show when it ended.
        counts = not (call.acknowledged or call.partial or event.is_late)
        if not counts:
            attempts.gaps.clear()
        # Only after Behind, and after errors, publishers have to come back ever later.
        failed = call.behind or call.error or broken
        attempts.failed_ns = event.at_ns if failed and counts else None

    def _know(self, node: Node, number: int) -> None:
        if number != NO_BLOCK and (node.known is None or number > node.known):
            node.known_ns = node.known_ns if node.known else self._now_ns
            node.known = number

    def _raise(self, node: Node, number: int, at_ns: int) -> None:
        """Block `number` is acknowledged."""
        self._know(node, number)
        if node.acked is not None and number <= node.acked:
            return
        node.acked = number
        node.rises = [*node.rises, (at_ns, number)][-MOST_WAITING:]

    def _end_catch_up(self, node: Node, at_ns: int) -> None:
        catch_up = node.catch_up
        if catch_up is None:
            return
        catch_up.ended_ns = node.caught_up_ns = at_ns
        self._catch_ups.append(catch_up_row(node, catch_up))
        node.catch_up = None
        for one in self._awaited.of("catch_up"):
            if one.node == node.name:
                self._awaited.remove(one)

    def _block(self, number: int, where: Where) -> Block:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block(where, where.arrived_at_ns)
            if len(self._blocks) > MOST_BLOCKS:
                old = next(iter(self._blocks))
                forgotten = self._blocks.pop(old)
                self._outcomes += [block_row(old, forgotten)] if forgotten.changed else []
        return block

    # Awaited messages and calls

    def _await(self, pending: Pending) -> None:
        if self._awaited.add(pending):
            self._due_ns = min(self._due_ns, pending.due_ns)

    def _drop(self, kind: str, call: Call) -> None:
        """Await it of the call no longer: it came, or the call ended."""
        for one in self._awaited.of_call(kind, call.call):
            self._awaited.remove(one)

    def _drop_of(self, kind: str, who: str | None) -> None:
        """Await the publisher or subscriber no longer: it came."""
        for one in self._awaited.of(kind):
            if who is None or one.who == who:
                self._awaited.remove(one)

    def _set_due(self) -> None:
        self._due_ns = min((one.ready_ns for one in self._awaited), default=NEVER)

    def _judge_after(self, call: Call, kind: str, event: Event, since_ns: int) -> None:
        """Judge that the call goes on after the node's own error, which had to end it.

        The node sent this message at `since_ns` or later. Messages that it sent before its error may come after it.
        """
        if event.is_late:
            return
        for pending in self._awaited.of_call(kind, call.call):
            if since_ns > pending.where.arrived_at_ns + self._options.node_error_ns:
                self._find(kind, event.where, f"the call goes on: {pending.message}", call)
                self._awaited.remove(pending)

    def _published_ns(self, number: int | None) -> int:
        """When a captured publisher brought the block, whole or at least its header; 0 = not known."""
        block = None if number is None else self._blocks.get(number)
        if block is None or not block.publishers:
            return 0
        return block.first_ns if block.proof_ns is None else block.proof_ns

    def _judge_never(self, pending: Pending) -> int:
        self._find_awaited(pending.kind, pending, pending.message, pending.number)
        return 0

    def _after_capture(self, pending: Pending) -> bool:
        """Whether nothing was captured since `pending` was due: it may have come after the capture's end."""
        return max((node.heard_ns for node in self._nodes.values()), default=0) < pending.due_ns

    def _judge_return(self, pending: Pending) -> int:
        return self._now_ns if self._after_capture(pending) else self._judge_never(pending)

    def _judge_proofs_soon(self, node: str | None, at_ns: int) -> None:
        """Judge missing proofs later: all known calls have ended, but another one may be held back."""
        for pending in self._awaited.unproven(node):
            if not pending.proven:
                pending.due_ns = min(pending.due_ns, at_ns + self._waits.held_ns)
                self._due_ns = min(self._due_ns, pending.ready_ns)

    def _await_proof(self, rule: str, call: Call, event: Event, message: str, number: int, needs: int) -> None:
        """Report `rule` unless the proof of block `needs` comes. A hole may hold it back until all calls have ended."""
        due = event.at_ns + self._options.patience_ns
        pending = Pending(rule, event.where, due, call.call, call.node, publisher=call.publisher, message=message)
        pending.number, pending.needs, pending.received = number, needs, event.received
        self._await(pending)

    def _judge_unproven(self, pending: Pending) -> int:
        """Judge that a proof never came. Missing bytes of a silent call may hold it back until its connection ends."""
        if not pending.proven and pending.needs is not None:
            patience_ns = self._options.patience_ns
            calls = [
                call
                for call in self._publishing(pending.node)
                if call.last_ns - pending.where.arrived_at_ns < patience_ns
            ]
            due_ns = max((call.last_ns + self._waits.silent_ns for call in calls), default=0)
            if due_ns >= self._now_ns:
                return due_ns
        return self._judge_never(pending)

    def _wait_for_use(self, pending: Pending) -> int:
        """Wait for up to `patience_ms` for the messages by which this is judged."""
        over = pending.where.arrived_at_ns + self._options.patience_ns
        return over if pending.due_ns < over else 0

    # Outcomes

    def _find(self, rule: str, where: Where, message: str, call: Call | None, number: int | None = None) -> None:
        if rule == "chain" or call is None or self._judges(call):
            self._emit(rule, where, message, call, number)

    def _judges(self, call: Call) -> bool:
        """Whether rules about the call are judged: no messages that could excuse it are missing."""
        return not (call.partial or self._unsure(self._now_ns, call.node, call.asking))

    def _find_soon(self, rule: str, where: Where, message: str, call: Call, number: int | None = None) -> None:
        """Report later: a hole that isn't known yet may hold an attempt or acknowledgement that explains it."""
        if self._judges(call):
            about = (call.call, call.node, None, call.publisher)
            self._await(
                Pending(rule, where, self._now_ns + self._waits.held_ns, *about, message=message, number=number)
            )

    def _find_late(self, rule: str, where: Where, message: str, call: Call, number: int) -> None:
        """Report after `patience_ms`: messages of other nodes that are asked later may explain it."""
        if self._judges(call):
            due_ns = self._now_ns + self._options.patience_ns
            self._await(Pending(rule, where, due_ns, call.call, call.node, message=message, number=number))

    def _unsure(self, at_ns: int, *names: str | None) -> bool:
        nodes = (self._nodes.get(name or "") for name in names)
        return any(node is not None and self._partial(node, at_ns) for node in nodes)

    def _emit(self, rule: str, where: Where, message: str, call: Call | None, number: int | None = None) -> None:
        found = RULE[rule]
        severity = TOLERANT.get(rule, found.severity) if self._options.tolerant else found.severity
        outcome = Found(found, severity, where, message, block_number=block_or_none(number))
        if call is not None:
            outcome = replace(outcome, call=call.call, node=call.node, publisher=call.publisher)
        self._outcomes.append(outcome)

    def _find_awaited(self, rule: str, pending: Pending, message: str, number: int | None = None) -> None:
        """Report what never came. Its call may have been dropped."""
        call = self._calls.get(pending.call or "")
        # Messages that were missed long before may have had it.
        if self._unsure(pending.where.arrived_at_ns, pending.node, None if call is None else call.asking):
            return
        self._emit(rule, pending.where, message, None, number)
        found = self._outcomes[-1]
        assert isinstance(found, Found)
        self._outcomes[-1] = replace(found, call=pending.call, node=pending.node, publisher=pending.publisher)

    def _pop_outcomes(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        for one in outcomes:
            if isinstance(one, DecisionRow):
                self._offers.decide(one)
        return outcomes

    # Carried state

    def snapshot(self) -> str:
        """The state as text, after `end_window`."""
        calls, nodes = list(self._calls.values()), list(self._nodes.values())
        numbers = (self._now_ns, self._heard_ns)
        return CODEC.write(
            ServiceState(*numbers, calls, nodes, self._attempts, self._blocks, list(self._awaited), self._offers.state)
        )

    def _restore(self, state: ServiceState) -> None:
        self._now_ns, self._heard_ns = state.now_ns, state.heard_ns
        self._calls.update((call.call, call) for call in state.calls)
        self._active.update(self._calls)
        self._nodes.update((node.name, node) for node in state.nodes)
        self._attempts.update(state.attempts)
        self._blocks, self._awaited = state.blocks, Awaited(state.pending)
        self._offers = Offers(state.offered)
        self._set_due()


def attempts_key(node: str | None, publisher: str | None) -> str:
    """The key of a publisher's attempts at a node."""
    return json.dumps([node, publisher])
