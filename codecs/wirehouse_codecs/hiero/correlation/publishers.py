"""Calls of publishers: their begin and end, what they send, and how a node ends them.

`Publishers` extends `Acknowledgements` with the attempts, messages and errors of publishers:

- Attempts: the gaps between failed calls of a publisher have to grow (`Publishers._open_publisher`, `_grows`).
- Messages of a publisher: headers are offered to the node (`_offer`), an EndStream ends the call (`_end_stream`).
- Errors: which calls have to end after an error of the node or of a publisher, and who has to come back
  (`_node_ends`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from wirehouse_codecs.hiero.correlation.acknowledgements import Acknowledgements
from wirehouse_codecs.hiero.correlation.decisions import answered_ns
from wirehouse_codecs.hiero.correlation.events import Event, Where, whole
from wirehouse_codecs.hiero.correlation.known import CLOCKS_NS, MOST_NAMES, MOST_SHOWN, MOST_WAITING, attempts_key
from wirehouse_codecs.hiero.correlation.offers import Offer
from wirehouse_codecs.hiero.correlation.state import Attempts, Call, Decision, Pending
from wirehouse_codecs.hiero.profiles import BEHIND_CODE, DUPLICATE_CODE, NODE_ERRORS, Service
from wirehouse_codecs.hiero.session.steps import fits
from wirehouse_codecs.tcp.endpoints import Direction

#: Maximum number of a node's errors of publishers that are remembered.
MOST_ERRORS: Final = 16
#: Factor by which each gap between attempts has to exceed the one before. The tolerant one allows for jitter.
GROWTH: Final = 1.3
TOLERANT_GROWTH: Final = 0.95
#: Gap from which on gaps need not grow: publishers have a cap.
CAP_NS: Final = 30 * 10**9
#: Number of gaps that are compared.
GAPS: Final = 3
_PUBLISHER_ERRORS: Final = frozenset({"TIMEOUT", "ERROR"})


class Publishers(Acknowledgements):
    """All that calls of publishers break or show."""

    # Begin and end of a call, and the gaps between attempts

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

    def _forget_refusals(self, call: Call) -> None:
        """Forget other nodes' duplicate answers to the publisher: it goes on from the blocks that this node has."""
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
        self._release(call, lambda order: True)
        self._drop("node_error_all", call)
        if not lost and not self._publishing(call.node):
            self._judge_proofs_soon(call.node, event.at_ns)
        # A node that breaks a connection off can't acknowledge proofs any more: that is no second fault.
        broken_off = event.fields["reset_by"] == Direction.SERVER and call.ended_by == "node"
        if call.node_code is None and not call.partial:
            for where, number in call.proofs:
                if not lost or self._captured(call, where.arrived_at_ns):
                    self._not_acknowledged(call, node, where, number, broken_off=broken_off)
        call.proofs.clear()

    # Messages of publishers

    def _take_items(self, call: Call, event: Event) -> None:
        call.item_bytes += event.fields["item_bytes"] or 0
        header, proof = whole(event.fields["header"]), whole(event.fields["proof"])
        self._use(call, event)
        self._obey(call, event, header, proof)
        if header is not None:
            self._offer(call, event, header)
        if proof is not None:
            self._prove(call, event, proof)

    def _use(self, call: Call, event: Event) -> None:
        """The call goes on after the node reported a failing source to a subscriber: the last publisher didn't fail."""
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

    def _may_have_begun_before(self, call: Call, event: Event, answer: Where) -> bool:
        """Whether the publisher may have begun the call, or sent its header, before it read the other call's answer."""
        return event.may_lack(answer) or call.opened_ns - answer.arrived_at_ns <= CLOCKS_NS

    def _take_early(self, call: Call, event: Event) -> None:
        """Take the answer that was read before its header.

        The header was late, and the packet that released it released the answer too: within a packet the two sides have
        no order.
        """
        early, call.early = call.early, None
        if early is None or early.at_ns != event.at_ns:
            return
        if early.answer == "skip":
            call.streaming &= call.header != early.number
            self._answer(call, Event(early.answer, event.where, call.call, number=early.number), "skip")
            return
        if fits(early.answer, early.number, call.decisions[-1].number):
            answer = Event(early.answer, event.where, call.call, number=early.number, fields={"meaning": early.code})
            self._refuse(call, answer, early.answer, early.number)

    def _end_stream(self, call: Call, event: Event) -> None:
        node, code = self._node(call.node), event.fields["meaning"]
        call.publisher_code = code
        call.earliest = whole(event.fields["earliest_block_number"])
        call.latest = whole(event.fields["latest_block_number"])
        unproven = call.streaming
        ranged = call.earliest or call.latest or code in ("ERROR", "UNKNOWN")
        # The publisher may not have read the newest acknowledgements.
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

    # Errors and ends of the node

    def _node_behind(self, call: Call, event: Event) -> None:
        self._judge_after(call, "node_error_all", event, answered_ns(call, event))
        self._refuse(call, event, "behind", event.number or 0)

    def _end_of_stream(self, call: Call, event: Event) -> None:
        meaning, number = event.fields["meaning"], event.number or 0
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
        """An error explains the error codes that subscribers had shortly before it: their clock may be behind."""
        since_ns = at_ns - self._options.node_error_ns - CLOCKS_NS
        for one in self._awaited.of("source_error_only_if_last"):
            if one.node == node and one.where.arrived_at_ns >= since_ns:
                self._awaited.remove(one)
