"""Acknowledgements of blocks: which headers they settle, and whether the block may be acknowledged.

- A proof that comes on a call (`Acknowledgements._prove`) waits for its acknowledgement.
- An acknowledgement (`_acknowledge`) accepts the header of its block, raises L, and ends what it answers. It breaks a
  rule if the node had the block, lacks the one before, or has no proof of it.
- A proof that is never acknowledged (`_judge_waiting`) breaks a rule if its call was captured for long enough after it.
"""

from __future__ import annotations

from wirehouse_codecs.hiero.correlation.decisions import Decisions, answered_ns
from wirehouse_codecs.hiero.correlation.events import Event, Where
from wirehouse_codecs.hiero.correlation.known import CLOCKS_NS, MOST_WAITING
from wirehouse_codecs.hiero.correlation.state import Call, Decision, Node, Pending, Proof
from wirehouse_codecs.hiero.session.steps import ANSWER_NS


class Acknowledgements(Decisions):
    """Proofs of publishers, and the node's acknowledgements."""

    # Proofs

    def _prove(self, call: Call, event: Event, number: int) -> None:
        node = self._node(call.node)
        call.proven += 1
        self._offers.prove(call.node, number, call.call, event.at_ns)
        answered, call.streaming = not call.streaming, False
        node.proven.add(number)
        # A block whose header is missing was offered as well.
        node.offered.add(number)
        for pending in self._awaited.of_block(call.node, number):
            if pending.proven:
                continue
            # After missing messages, bytes that were held back come late.
            if call.partial or not self._before(pending, call, event):
                self._awaited.remove(pending)
                continue
            # A hole of another call that isn't known yet may hold the proof that came in time.
            pending.proven, pending.due_ns = True, min(pending.due_ns, event.at_ns + self._waits.held_ns)
            self._due_ns = min(self._due_ns, pending.ready_ns)
        if not answered:
            call.proofs = [*call.proofs, Proof(event.where, number)][-MOST_WAITING:]
            due = event.at_ns + self._options.patience_ns
            self._await(Pending("block_not_acknowledged", event.where, due, call.call, call.node))
        block = self._block(number, event.where)
        if block.proof_ns is None:
            block.proof_ns, block.changed = event.at_ns, True

    def _before(self, pending: Pending, call: Call, event: Event) -> bool:
        """Whether `pending`, which needs the proof, was sent before it.

        On one connection TCP's acknowledgment numbers decide, otherwise the time.
        """
        waited_ns = event.at_ns - pending.where.arrived_at_ns
        connection, end = event.where.connection_id, event.where.byte_end
        if pending.received is not None and end is not None and pending.where.connection_id == connection:
            return waited_ns > 0 and pending.received < end
        crossed_ns = 0 if pending.call == call.call else self._options.in_flight_ns
        return waited_ns > crossed_ns and not event.is_late

    # Acknowledgements

    def _acknowledge(self, call: Call, event: Event) -> None:
        number = event.number or 0
        if event.fields["block_already_exists"]:
            self._judge_after(call, "node_error_all", event, answered_ns(call, event))
            self._refuse(call, event, "duplicate", number)
            return
        self._judge_after(call, "node_error_all", event, max(self._published_ns(number), event.at_ns - CLOCKS_NS))
        node = self._node(call.node)
        first = number not in node.acknowledged
        self._judge_acknowledged(call, node, event, number, first)
        call.acknowledged += 1
        call.acked = number if call.acked is None else max(call.acked, number)
        self._release_known(call)
        attempts = self._attempts_of(call)
        attempts.behind = False
        attempts.gaps.clear()
        attempts.distances.clear()
        node.acknowledged.add(number)
        node.acked_ns, node.publisher_errors = event.at_ns, []
        self._raise(node, number, event.at_ns)
        call.proofs = [
            proof for proof in call.proofs if proof.number > number or (not call.new and proof.number != number)
        ]
        block = self._block(number, event.where)
        if block.acked_ns is None:
            block.acked_ns, block.changed = event.at_ns, True
        catch_up = node.catch_up
        if catch_up is not None and number >= catch_up.target:
            self._end_catch_up(node, event.at_ns)

    def _judge_acknowledged(self, call: Call, node: Node, event: Event, number: int, first: bool) -> None:
        """Settle the decisions that an acknowledgement answers, and judge whether the block may be acknowledged."""
        waiting, left = call.decisions, []
        # Acknowledgements of a call that don't rise break a rule of the call itself.
        rises = call.acked is None or call.acked < number
        broken = False
        for decision in waiting:
            where, offered, known = decision.where, decision.number, decision.known
            old = event.at_ns - where.arrived_at_ns > self._options.in_flight_ns
            # It may be about the block of another publisher, and have crossed the header.
            crossed = event.may_lack(where)
            if offered == number and not crossed:
                rule = self._accepted(call, node, decision)
                shown = f"block {number} is acknowledged, {known} was the last verified one when it was offered"
                again = known is not None and offered <= known
                # What breaks a rule of the call is one fault.
                found = self._broken_by(call, event, offered)
                self._settle(call, decision, "accepted", number, None, event, found or (rule if again else None))
                if rule is not None:
                    broken = True
                    if not again:
                        self._await_proof(rule, call, event, shown, number, number - 1)
                    elif found is None:
                        self._find(rule, event.where, shown, call, number)
            elif offered < number and (call.new or old) and not crossed:
                rule = None
                refusable = known is not None and offered < known and self._ordered(node, where.arrived_at_ns)
                if decision.expected == "duplicate" and refusable and old:
                    rule = "duplicate" if decision.is_first else "reenter"
                    shown = f"block {offered} had no answer before the acknowledgement of {number}"
                    self._find(rule, where, shown, call, offered)
                    call.proofs = [proof for proof in call.proofs if proof.number != offered]
                self._settle(call, decision, "accepted" if rule is None else "none", number, None, event, rule)
            else:
                left.append(decision)
        call.decisions = left
        if not (first and rises) or broken or self._partial(node, event.at_ns):
            return
        if number in node.offered:
            self._judge_proof(call, node, event, number)
        elif number not in node.fetched and number >= node.offered.floor and node.catch_up is None:
            shown = f"block {number} is acknowledged, and no captured call offered it"
            self._await_proof("ack_unoffered", call, event, shown, number, number)

    def _accepted(self, call: Call, node: Node, decision: Decision) -> str | None:
        """The rule that is broken if an offered block is acknowledged."""
        where, offered, known = decision.where, decision.number, decision.known
        if known is None or not self._ordered(node, where.arrived_at_ns):
            return None
        if offered < known:
            return "duplicate" if decision.is_first else "reenter"
        if offered == known:
            # A block is acknowledged to all publishers, and the acknowledgement may have been on its way.
            before = where.arrived_at_ns - self._options.in_flight_ns
            return "last_block_again" if any(ns <= before and acked >= offered for ns, acked in node.rises) else None
        if decision.expected != "behind" or self._partial(node, self._now_ns) or node.has(offered - 1):
            return None
        if node.catch_up is not None and not node.outgoing:
            return None
        if not decision.is_first:
            return "reenter"
        return "behind_repeat" if self._attempts_of(call).behind else "behind"

    def _judge_proof(self, call: Call, node: Node, event: Event, number: int) -> None:
        if not call.new or number in node.proven or number in node.fetched or number < node.proven.floor:
            # In the older API several publishers send a block at once: one that wasn't captured may have proven it.
            return
        if node.catch_up is not None and not node.outgoing:
            return
        calls = (other for other in self._calls.values() if other.node == call.node and other.header == number)
        if not any(other.streaming and other.open for other in calls):
            # No captured publisher sends it any more: one that wasn't captured brought it.
            return
        dropped = number in node.dropped
        why = "its publisher ended with an error before its proof" if dropped else "its proof hasn't come"
        rule = "drop_unproven" if dropped else "ack_order"
        self._await_proof(rule, call, event, f"block {number}: {why}", number, number)

    # Missing acknowledgements

    def _judge_waiting(self, pending: Pending) -> int:
        """Judge proofs of an open call that have waited for `patience_ms`."""
        call = self._calls.get(pending.call or "")
        if call is None or call.closed:
            return 0
        while call.proofs:
            where, number = call.proofs[0]
            due: int = where.arrived_at_ns + self._options.patience_ns
            if call.said_ns < due:
                # Nothing was sent since: missing bytes may hold the answer back until the connection ends.
                due = max(due, call.last_ns + self._waits.silent_ns)
            if due >= self._now_ns:
                return due
            call.proofs.pop(0)
            if call.node_code is None and self._captured(call, where.arrived_at_ns):
                self._not_acknowledged(call, self._node(call.node), where, number)
        return 0

    def _not_acknowledged(self, call: Call, node: Node, where: Where, number: int, *, broken_off: bool = False) -> None:
        if call.ended_ns is not None and call.ended_ns - where.arrived_at_ns < ANSWER_NS:
            return
        if (call.new and node.known is not None and node.known >= number) or number in node.acknowledged:
            return
        errors = (ns for ns, other in node.publisher_errors if other != call.call)
        if any(where.arrived_at_ns > ns for ns in errors):
            shown = f"block {number} isn't acknowledged after another publisher's error"
            self._find("continue", where, shown, call, number)
        elif not broken_off:
            shown = f"block {number} was sent with its proof and never answered"
            self._find("block_not_acknowledged", where, shown, call, number)
