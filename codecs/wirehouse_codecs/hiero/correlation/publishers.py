"""What publishers and the node say to each other over several calls: decisions, attempts, acknowledgements, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from typing import Final

from wirehouse_codecs.hiero.correlation.events import Event, Where, whole
from wirehouse_codecs.hiero.correlation.known import CLOCKS_NS, HELD_NS, MOST_WAITING, SILENT_NS, Known, attempts_key
from wirehouse_codecs.hiero.correlation.offers import Offer
from wirehouse_codecs.hiero.correlation.rows import DecisionRow
from wirehouse_codecs.hiero.correlation.state import (
    Attempts,
    Call,
    CatchUp,
    Decision,
    Early,
    Node,
    Pending,
    Proof,
    Told,
)
from wirehouse_codecs.hiero.log.pauses import PAUSE_NS
from wirehouse_codecs.hiero.profiles import BEHIND_CODE, DUPLICATE_CODE, NO_BLOCK, NODE_ERRORS, Service, block_or_none
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.session.steps import ANSWER_NS, after, fits
from wirehouse_codecs.tcp.endpoints import Direction

#: Attempts and asked ranges that a row of a catch-up shows.
MOST_SHOWN: Final = 64
MOST_NAMES: Final = 16
#: Errors of publishers that are remembered.
MOST_ERRORS: Final = 16
#: Growth of the gaps between attempts: strict, and what the jitter of real publishers leaves of it.
GROWTH: Final = 1.3
TOLERANT_GROWTH: Final = 0.95
#: From here on a gap need not grow: publishers have a cap.
CAP_NS: Final = 30 * 10**9
GAPS: Final = 3
_PUBLISHER_ERRORS: Final = frozenset({"TIMEOUT", "ERROR"})


class Publishers(Known):
    """Calls of publishers."""

    def _open_publisher(self, call: Call, event: Event) -> None:
        self._drop_of("retry_after_node_error", call.publisher)
        self._resume(call, event, Service.PUBLISH, call.publisher)
        attempts = self._attempts_of(call)
        attempts.last_call = call.call
        self._forget_refusals(call)
        failed_ns, attempts.failed_ns = attempts.failed_ns, None
        if failed_ns is None or event.at_ns < failed_ns or event.is_late:
            # The call before it didn't fail, or it isn't known how it ended, or when this one began.
            attempts.gaps.clear()
            return
        attempts.gaps = [*attempts.gaps, event.at_ns - failed_ns][-GAPS:]
        node = self._node(call.node)
        if node.catch_up is not None:
            node.catch_up.gaps = [*node.catch_up.gaps, event.at_ns - failed_ns][-MOST_SHOWN:]
            node.catch_up.changed = True
        if len(attempts.gaps) == GAPS and not self._grows(attempts):
            shown = ", ".join(f"{gap / 1e9:.3f}" for gap in attempts.gaps)
            shown = f"the last gaps between failed attempts are {shown} s"
            attempts.gaps.clear()
            self._find_soon("backoff", event.where, shown, call)

    def _may_have_begun_before(self, call: Call, event: Event, answer: Where) -> bool:
        """The publisher may have begun the call, or sent its header, before it read an answer on another one."""
        return event.may_lack(answer) or call.opened_ns - answer.arrived_at_ns <= CLOCKS_NS

    def _forget_refusals(self, call: Call) -> None:
        """A publisher that turns to a node goes on from what that one has, also if it comes back to another later."""
        for name in self._nodes:
            if name != call.node and (elsewhere := self._attempts.get(attempts_key(name, call.publisher))) is not None:
                elsewhere.refused = None

    def _grows(self, attempts: Attempts) -> bool:
        gaps = attempts.gaps
        if not self._options.tolerant:
            return all(later >= GROWTH * gap or min(gap, later) >= CAP_NS for gap, later in pairwise(gaps))
        if min(gaps) >= TOLERANT_GROWTH * CAP_NS:
            return True
        steady = all(later >= TOLERANT_GROWTH * gap for gap, later in pairwise(gaps))
        return steady and gaps[-1] >= 2 * gaps[0]

    def _close_publisher(self, call: Call, event: Event, lost: bool) -> None:
        node = self._node(call.node)
        for decision in call.decisions:
            self._settle(call, decision, "none", None, None, None)
        call.decisions.clear()
        self._release(call, lambda told: True)
        self._drop("node_error_all", call)
        if not lost and not self._publishing(call.node):
            self._judge_proofs_soon(call.node, event.at_ns)
        # What a node that broke the connection off no longer answered follows from that.
        broken_off = event.told["reset_by"] == Direction.SERVER and call.ended_by == "node"
        if call.node_code is None and not call.partial:
            for where, number in call.proofs:
                if not lost or self._captured(call, where.arrived_at_ns):
                    self._not_acknowledged(call, node, where, number, broken_off=broken_off)
        call.proofs.clear()

    def _judge_waiting(self, pending: Pending) -> int:
        """Proofs of an open call that have waited for too long."""
        call = self._calls.get(pending.call or "")
        if call is None or call.closed:
            return 0
        while call.proofs:
            where, number = call.proofs[0]
            due: int = where.arrived_at_ns + self._options.patience_ns
            if call.said_ns < due:
                # Nothing was said since: missing bytes may hold it back until the connection ends.
                due = max(due, call.last_ns + SILENT_NS)
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

    # What publishers send

    def _take_items(self, call: Call, event: Event) -> None:
        call.item_bytes += event.told["item_bytes"] or 0
        header, proof = whole(event.told["header"]), whole(event.told["proof"])
        self._use(call, event)
        self._obey(call, event, header, proof)
        if header is not None:
            self._offer(call, event, header)
        if proof is not None:
            self._prove(call, event, proof)

    def _use(self, call: Call, event: Event) -> None:
        """The call is in use after a subscriber was told of a failing source."""
        if event.is_late:
            return
        for pending in self._awaited.of_others(call.call):
            since_ns = event.at_ns - pending.where.arrived_at_ns
            pending.used |= since_ns > self._crossed_ns(self._node(pending.node), pending.where.arrived_at_ns)
            if since_ns > self._options.node_error_ns + CLOCKS_NS:
                self._find_awaited(pending.kind, pending, pending.message)
                self._awaited.remove(pending)

    def _offer(self, call: Call, event: Event, number: int) -> None:
        node = self._node(call.node)
        expected = self._expected(call, node, number)
        call.headers += 1
        call.first_header = number if call.first_header is None else call.first_header
        call.header, call.streaming, call.behind = number, True, False
        attempts = self._attempts_of(call)
        offered_again = attempts.refused is not None and call.headers == 1 and number <= attempts.refused
        answer = attempts.refused_at
        if offered_again and answer is not None and not self._may_have_begun_before(call, event, answer):
            shown = f"block {attempts.refused} was answered as a duplicate, and {number} is offered again"
            self._find("recheck", event.where, shown, call, number)
        if call.headers == 1:
            attempts.refused = None
        for pending in self._awaited.of_block(call.node, number):
            if pending.kind == "ack_unoffered":
                self._awaited.remove(pending)
        node.offered.add(number)
        known = node.known if self._ordered(node, event.at_ns) else None
        call.decisions.append(Decision(event.where, number, known, expected, call.headers == 1))
        self._offers.offer(call.node, number, Offer(event.where, call.call, call.publisher))
        self._take_early(call, event)
        if len(call.decisions) > MOST_WAITING:
            self._settle(call, call.decisions.pop(0), "none", None, None, None)
        block = self._block(number, event.where)
        if call.publisher is not None and call.publisher not in block.publishers and len(block.publishers) < MOST_NAMES:
            block.publishers.append(call.publisher)
            block.changed = True

    def _take_early(self, call: Call, event: Event) -> None:
        """The header came late, in the packet that released its answer: within a packet both sides have no order."""
        early, call.early = call.early, None
        if early is None or early.at_ns != event.at_ns:
            return
        if early.answer == "skip":
            call.streaming &= call.header != early.number
            self._answer(call, Event(early.answer, event.where, call.call, number=early.number), "skip")
            return
        if fits(early.answer, early.number, call.decisions[-1].number):
            answer = Event(early.answer, event.where, call.call, number=early.number, told={"meaning": early.code})
            self._refuse(call, answer, early.answer, early.number)

    def _expected(self, call: Call, node: Node, number: int) -> str | None:
        if node.known is None or not self._ordered(node, self._now_ns):
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

    def _prove(self, call: Call, event: Event, number: int) -> None:
        node = self._node(call.node)
        call.proven += 1
        self._offers.prove(call.node, number, call.call, event.at_ns)
        answered, call.streaming = not call.streaming, False
        node.proven.add(number)
        # Without its header it was offered all the same.
        node.offered.add(number)
        for pending in self._awaited.of_block(call.node, number):
            if pending.proven:
                continue
            # After missing messages what was held back comes late.
            if call.partial or not self._before(pending, call, event):
                self._awaited.remove(pending)
                continue
            # A hole of another call that isn't known yet may hold the proof that came in time.
            pending.proven, pending.due_ns = True, min(pending.due_ns, event.at_ns + HELD_NS)
            self._due_ns = min(self._due_ns, pending.ready_ns)
        if not answered:
            call.proofs = [*call.proofs, Proof(event.where, number)][-MOST_WAITING:]
            due = event.at_ns + self._options.patience_ns
            self._await(Pending("block_not_acknowledged", event.where, due, call.call, call.node))
        block = self._block(number, event.where)
        if block.proof_ns is None:
            block.proof_ns, block.changed = event.at_ns, True

    def _before(self, pending: Pending, call: Call, event: Event) -> bool:
        """What awaits the proof was said before it: so says its acknowledgment on one connection, or else the time."""
        waited_ns = event.at_ns - pending.where.arrived_at_ns
        connection, end = event.where.connection_id, event.where.byte_end
        if pending.received is not None and end is not None and pending.where.connection_id == connection:
            return waited_ns > 0 and pending.received < end
        crossed_ns = 0 if pending.call == call.call else self._options.in_flight_ns
        return waited_ns > crossed_ns and not event.is_late

    def _end_stream(self, call: Call, event: Event) -> None:
        node, code = self._node(call.node), event.told["meaning"]
        call.publisher_code = code
        call.earliest = whole(event.told["earliest_block_number"])
        call.latest = whole(event.told["latest_block_number"])
        unproven = call.streaming
        ranged = call.earliest or call.latest or code in ("ERROR", "UNKNOWN")
        # What was acknowledged lately the publisher may not have read.
        if not ranged and self._has_blocks(node, event, event.at_ns - CLOCKS_NS):
            shown = f"the EndStream has no earliest and no latest block, {node.known} is verified"
            self._find("earliest", event.where, shown, call, call.header)
        if code in _PUBLISHER_ERRORS:
            call.error = True
            node.publisher_error_ns = event.at_ns
            node.publisher_errors = [*node.publisher_errors, (event.at_ns, call.call)][-MOST_ERRORS:]
            if unproven and call.header is not None:
                node.dropped.add(call.header)
        self._end(call, event, "publisher")
        if code in _PUBLISHER_ERRORS and not self._publishing(call.node):
            self._explain_source_error(call.node, event.at_ns)
        if code == "ERROR" and not self._publishing(call.node):
            for other in self._subscribed(call.node):
                if other.end is None:
                    self._await(
                        Pending(
                            "source_error_sent",
                            event.where,
                            event.at_ns + self._options.patience_ns,
                            other.call,
                            call.node,
                            message=f"the last publisher ended with {code}, and subscriber {other.client} isn't told",
                        )
                    )

    # What the node answers

    def _acknowledge(self, call: Call, event: Event) -> None:
        number = event.number or 0
        if event.told["block_already_exists"]:
            self._judge_after(call, "node_error_all", event, _answered_ns(call, event))
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
        """Decisions that an acknowledgement settles, and whether the block may be acknowledged."""
        waiting, left = call.decisions, []
        # Where the acknowledgements of a call don't rise, that is its fault.
        rises = call.acked is None or call.acked < number
        broken = False
        for decision in waiting:
            where, offered, known, expected, is_first = decision
            old = event.at_ns - where.arrived_at_ns > self._options.in_flight_ns
            # It may be about the block of another publisher, and have crossed the header.
            crossed = event.may_lack(where)
            if offered == number and not crossed:
                rule = self._accepted(call, node, decision)
                shown = f"block {number} is acknowledged, {known} was the last verified one when it was offered"
                again = known is not None and offered <= known
                self._settle(call, decision, "accepted", number, None, event, rule if again else None)
                if rule is not None:
                    broken = True
                    if not again:
                        self._await_proof(rule, call, event, shown, number, number - 1)
                    elif rises:
                        self._find(rule, event.where, shown, call, number)
            elif offered < number and (call.new or old) and not crossed:
                rule = None
                refusable = known is not None and offered < known and self._ordered(node, where.arrived_at_ns)
                if expected == "duplicate" and refusable and old:
                    rule = "duplicate" if is_first else "reenter"
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

    def _judge_proof(self, call: Call, node: Node, event: Event, number: int) -> None:
        if not call.new or number in node.proven or number in node.fetched or number < node.proven.floor:
            # In the older API several publishers send a block at once: one that wasn't captured may have proven it.
            return
        if node.catch_up is not None and not node.outgoing:
            return
        calls = (other for other in self._calls.values() if other.node == call.node and other.header == number)
        if not any(other.streaming and other.open for other in calls):
            # Nobody who offered it sends it any more: a publisher brought it that wasn't captured.
            return
        dropped = number in node.dropped
        why = "its publisher ended with an error before its proof" if dropped else "its proof hasn't come"
        rule = "drop_unproven" if dropped else "ack_order"
        self._await_proof(rule, call, event, f"block {number}: {why}", number, number)

    def _await_proof(self, rule: str, call: Call, event: Event, message: str, number: int, needs: int) -> None:
        """A proof isn't there. A hole that isn't known yet may hold it back: it is known when all calls have ended."""
        due = event.at_ns + self._options.patience_ns
        pending = Pending(rule, event.where, due, call.call, call.node, publisher=call.publisher, message=message)
        pending.number, pending.needs, pending.received = number, needs, event.received
        self._await(pending)

    def _accepted(self, call: Call, node: Node, decision: Decision) -> str | None:
        """The rule that is broken if an offered block is acknowledged."""
        where, offered, known, expected, is_first = decision
        if known is None or not self._ordered(node, where.arrived_at_ns):
            return None
        if offered < known:
            return "duplicate" if is_first else "reenter"
        if offered == known:
            # All publishers are told of a block, and it may have been on its way.
            before = where.arrived_at_ns - self._options.in_flight_ns
            return "last_block_again" if any(ns <= before and acked >= offered for ns, acked in node.rises) else None
        if expected != "behind" or self._partial(node, self._now_ns) or node.has(offered - 1):
            return None
        if node.catch_up is not None and not node.outgoing:
            return None
        if not is_first:
            return "reenter"
        return "behind_repeat" if self._attempts_of(call).behind else "behind"

    def _end_of_stream(self, call: Call, event: Event) -> None:
        meaning, number = event.told["meaning"], event.number or 0
        if meaning == BEHIND_CODE:
            if not call.new:
                self._node_behind(call, event)
                return
            self._refuse(call, event, "behind", number)
            self._node_ends(call, event, meaning)
            return
        if meaning == DUPLICATE_CODE:
            self._refuse(call, event, "duplicate", number)
        else:
            self._judge_report(call, event, number, failed=meaning not in (None, "UNKNOWN", "SUCCESS"))
            if number:
                self._know(self._node(call.node), number)
            for decision in call.decisions:
                self._settle(call, decision, "ended", number, meaning, event)
            call.decisions.clear()
        self._node_ends(call, event, meaning)

    def _node_ends(self, call: Call, event: Event, meaning: str | None) -> None:
        node = self._node(call.node)
        call.node_code, call.streaming = meaning or "UNKNOWN", False
        call.error |= meaning not in ("SUCCESS", DUPLICATE_CODE, BEHIND_CODE)
        self._end(call, event, "node")
        self._drop("node_error_all", call)
        if meaning not in NODE_ERRORS:
            return
        node.error_ns = event.at_ns
        self._explain_source_error(call.node, event.at_ns)
        due = event.at_ns + self._options.node_error_ns
        shown = f"the node ended another call with {meaning}"
        for other in self._publishing(call.node):
            self._await(Pending("node_error_all", event.where, due, other.call, call.node, message=shown))
        for other in self._subscribed(call.node):
            self._await(Pending("node_error_subscribers", event.where, due, other.call, call.node, message=shown))
        self._await(
            Pending(
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

    def _explain_source_error(self, node: str | None, at_ns: int) -> None:
        """What subscribers were told by another clock shortly before, this error had caused."""
        since_ns = at_ns - self._options.node_error_ns - CLOCKS_NS
        for one in self._awaited.of("source_error_only_if_last"):
            if one.node == node and one.where.arrived_at_ns >= since_ns:
                self._awaited.remove(one)

    def _node_behind(self, call: Call, event: Event) -> None:
        self._judge_after(call, "node_error_all", event, _answered_ns(call, event))
        self._refuse(call, event, "behind", event.number or 0)

    def _refuse(self, call: Call, event: Event, answer: str, number: int) -> None:
        """The node answers a header by a duplicate answer or Behind."""
        node, attempts = self._node(call.node), self._attempts_of(call)
        if call.header is None or (event.is_late and not _fitting(call, answer, number)):
            call.early = Early(event.at_ns, answer, number, event.told["meaning"])
            call.refused = True
            self._know(node, number or NO_BLOCK)
            return
        at = self._answered_by(call, answer, number)
        decision = None if at is None else call.decisions.pop(at)
        offered: int = call.header if decision is None else decision.number
        is_first = call.headers == 1 if decision is None else decision.is_first
        call.refused = True
        call.proofs = [proof for proof in call.proofs if proof.number != offered]
        call.streaming &= offered != call.header
        # A block was the next one only while the refused one came.
        call.decisions = [
            one._replace(expected="behind")
            if one.expected == "next" and self._expected(call, node, one.number) == "behind"
            else one
            for one in call.decisions
        ]
        header_ns = None if decision is None else decision.where.arrived_at_ns
        rule = self._judge_report(call, event, number, offered, header_ns)
        if decision is not None:
            self._settle(call, decision, answer, number, event.told["meaning"], event, rule)
        if number:
            self._know(node, number)
        call.behind = answer == "behind"
        if answer == "duplicate":
            if attempts.last_call in (None, call.call):
                # Else the publisher had begun anew before the answer.
                attempts.refused, attempts.refused_at = offered, event.where
            if node.catch_up is not None and node.catch_up.target <= number != NO_BLOCK:
                self._end_catch_up(node, event.at_ns)
            return
        attempts.behind = True
        if rule != "last_known_set" and (number != NO_BLOCK or offered):
            self._note_behind(call, node, event, offered, number)
        if is_first and number != NO_BLOCK and number:
            self._measure(call, attempts, node, event, offered, number)

    def _answered_by(self, call: Call, answer: str, number: int) -> int | None:
        """Which of the headers that wait is answered: the first that is to be, or else may be, or the last."""
        if not call.decisions:
            return None
        fitting = _fitting(call, answer, number)
        expected = [at for at in fitting if call.decisions[at].expected == answer]
        return next(iter(expected or fitting), len(call.decisions) - 1)

    def _note_behind(self, call: Call, node: Node, event: Event, offered: int, number: int) -> None:
        catch_up = node.catch_up
        if catch_up is None:
            catch_up = node.catch_up = CatchUp(event.where, offered, number, offered)
            due = event.at_ns + self._options.patience_ns
            self._await(Pending("catch_up", event.where, due, call.call, call.node, publisher=call.publisher))
            self._begin_asking(node, catch_up, event.at_ns)
        catch_up.target = max(catch_up.target, offered)
        catch_up.attempts = [*catch_up.attempts, (event.at_ns, call.publisher, offered, number)][-MOST_SHOWN:]
        catch_up.changed = True

    def _begin_asking(self, node: Node, catch_up: CatchUp, at_ns: int) -> None:
        """The node's own calls that were captured shortly before it was known to be behind."""
        since_ns = at_ns - self._crossed_ns(node, at_ns)
        for call in self._calls.values():
            asks = call.service in (Service.SUBSCRIBE, Service.STATUS) and call.asking is None
            if not asks or call.opened_ns < since_ns or self._asking_node(call) is not node:
                continue
            self._ask(call)
            call.changed = True
            if call.service == Service.STATUS:
                catch_up.available = call.latest
                if call.latest is not None:
                    catch_up.reports[call.node or ""] = call.latest
            if call.first_block is not None and call.last_block is not None:
                node.fetched.add(call.first_block, call.last_block)
                catch_up.fetched += call.blocks

    def _measure(self, call: Call, attempts: Attempts, node: Node, event: Event, offered: int, number: int) -> None:
        attempts.distances = [*attempts.distances, offered - number][-GAPS:]
        stalled = len(attempts.distances) == GAPS and attempts.distances == sorted(attempts.distances)
        if node.catch_up is not None:
            node.catch_up.stalled = stalled
        if stalled:
            shown = ", ".join(map(str, attempts.distances))
            self._find(
                "target_closer", event.where, f"three attempts are {shown} blocks ahead of the node", call, offered
            )
            attempts.distances.clear()

    def _has_blocks(self, node: Node, event: Event, before_ns: int) -> bool:
        """The node had verified blocks by then."""
        return bool(node.known) and node.known_ns <= before_ns and not event.is_late

    def _judge_report(
        self,
        call: Call,
        event: Event,
        number: int,
        offered: int | None = None,
        header_ns: int | None = None,
        *,
        failed: bool = False,
    ) -> str | None:
        """Whether the block that an answer to `offered`, or the end, reports is the newest; the rule that is broken.

        `header_ns`: when the header came. `failed`: the end tells of an error.
        """
        node = self._node(call.node)
        known, answer = node.known, offered is not None
        about = call.header if offered is None else offered
        # What the node had acknowledged before the header came it knew when it answered; an end may have been delayed.
        before = event.at_ns - CLOCKS_NS if header_ns is None else header_ns
        is_ordered = self._ordered(node, header_ns or event.at_ns)
        had_blocks = call.acked or (is_ordered and self._has_blocks(node, event, before))
        if (answer or failed) and number == 0 and had_blocks:
            shown = f"no block is reported, {known} is verified"
            self._find("last_known_set", event.where, shown, call, about)
            return "last_known_set"
        acked = max((acked for ns, acked in node.rises if ns <= before), default=None)
        lower = acked is not None and (number == NO_BLOCK or number < acked)
        echo = self._options.tolerant and number == about
        if not lower or echo or (not answer and not number) or not is_ordered:
            return None
        shown = "none" if number == NO_BLOCK else str(number)
        self._find("last_known", event.where, f"block {shown} is reported, {acked} was acknowledged", call, about)
        return "last_known"

    def _skip_block(self, call: Call, event: Event) -> None:
        call.streaming = False
        self._judge_after(call, "node_error_all", event, _answered_ns(call, event))
        if event.number is not None:
            call.early = Early(event.at_ns, "skip", event.number, None)
        self._answer(call, event, "skip")

    def _resend_block(self, call: Call, event: Event) -> None:
        self._judge_after(call, "node_error_all", event, _answered_ns(call, event))
        for told in call.told:
            if told.row.offered == event.number:
                told.answer, told.resend, told.silent = event.where, True, True
        self._answer(call, event, "resend")

    def _obey(self, call: Call, event: Event, header: int | None, proof: int | None) -> None:
        """What the publisher says after SkipBlock or ResendBlock."""
        for told in call.told:
            number, answer = told.row.offered, told.answer
            paused = event.at_ns - answer.arrived_at_ns >= PAUSE_NS
            knew = told.silent and paused and not event.may_lack(answer)
            told.silent = False
            if told.resend:
                if told.row.resend_obeyed is None and header is not None and (knew or header == number):
                    told.row = replace(told.row, resend_obeyed=header == number)
            elif told.row.skip_obeyed is None and not told.unsure:
                if header not in (None, number):
                    told.row = replace(told.row, skip_obeyed=True)
                elif knew:
                    told.row = replace(told.row, skip_obeyed=False)
                else:
                    told.unsure = number in (header, proof)
            self._offers.decide(told.row)
        self._release_known(call)

    def _release_known(self, call: Call) -> None:
        """Blocks that are acknowledged aren't asked for again."""
        acked = -1 if call.acked is None else call.acked
        self._release(call, lambda told: told.row.offered <= acked and told.is_known)

    def _release(self, call: Call, over: Callable[[Told], bool]) -> None:
        """Nothing more is to come of what the publisher was told."""
        self._told += [told.row for told in call.told if over(told)]
        call.told = [told for told in call.told if not over(told)]

    def _answer(self, call: Call, event: Event, actual: str) -> None:
        """SkipBlock or ResendBlock settles the header that it names."""
        node, left = self._node(call.node), []
        for decision in call.decisions:
            if decision.number != event.number:
                left.append(decision)
                continue
            rule, shown = self._answered(call, node, decision, actual)
            if rule == "behind_repeat":
                self._await_proof(rule, call, event, shown, decision.number, decision.number - 1)
            elif rule is not None:
                self._find(rule, event.where, shown, call, event.number)
            self._settle(call, decision, actual, event.number, None, event, rule)
            row = self._told.pop()
            assert isinstance(row, DecisionRow)
            self._offers.decide(row)
            call.told.append(Told(row, event.where, actual == "resend"))
        call.decisions = left
        if len(call.told) > MOST_NAMES:
            first = call.told[0]
            self._release(call, lambda told: told is first)

    def _answered(self, call: Call, node: Node, decision: Decision, actual: str) -> tuple[str | None, str]:
        """The rule that SkipBlock or ResendBlock breaks as an answer to a header."""
        where, offered, known, expected, is_first = decision
        if known is None or not self._ordered(node, where.arrived_at_ns) or self._partial(node, self._now_ns):
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
        call: Call,
        decision: Decision,
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
            legal = None if known is None or expected in ("behind", "duplicate") else True
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
                None if actual == "accepted" else block_or_none(reported),
                meaning,
                None if event is None else event.at_ns,
                legal,
                None if rule is None else RULE[rule].id,
            )
        )


def _fitting(call: Call, answer: str, number: int) -> list[int]:
    """Which of the headers that wait may be answered so."""
    return [at for at, one in enumerate(call.decisions) if fits(answer, number, one.number)]


def _answered_ns(call: Call, event: Event) -> int:
    """The node's answer wasn't said before: its packet was lost and sent again for so long, or the header came then."""
    offered_ns = call.decisions[0].where.arrived_at_ns if call.decisions else 0
    return max(offered_ns, event.at_ns - CLOCKS_NS)
