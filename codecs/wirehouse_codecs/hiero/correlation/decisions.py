"""Which answer a header of a publisher should get: duplicate, Behind, SkipBlock, ResendBlock.

A header that is offered is a Decision until the node answers it or its call ends:

- `Decisions._expected` states the answer that is due by what is known of the node: L, and blocks on their way.
- A duplicate answer or Behind (`_refuse`) settles the first header that it fits. The block that it reports is compared
  with what the node acknowledged. Behind begins the row of the node's catch-up.
- SkipBlock and ResendBlock (`_answer`) settle the header of the block that they name. Each is an Order until it is
  known whether the publisher obeyed it (`_obey`).
- `_settle` turns a decision and its answer into a DecisionRow.

Acknowledgements also settle decisions: see acknowledgements.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Final

from wirehouse_codecs.hiero.correlation.events import Event
from wirehouse_codecs.hiero.correlation.known import CLOCKS_NS, MOST_NAMES, MOST_SHOWN, Known
from wirehouse_codecs.hiero.correlation.rows import DecisionRow
from wirehouse_codecs.hiero.correlation.state import Attempts, Call, CatchUp, Decision, Early, Node, Pending
from wirehouse_codecs.hiero.correlation.state import Told as Order
from wirehouse_codecs.hiero.log.pauses import PAUSE_NS
from wirehouse_codecs.hiero.profiles import NO_BLOCK, Service, block_or_none
from wirehouse_codecs.hiero.rules import PROTOCOL, RULE
from wirehouse_codecs.hiero.session.steps import fits

#: Number of distances to the node, of a publisher's last attempts, that are compared.
DISTANCES: Final = 3


class Decisions(Known):
    """Headers of publishers, and the node's answers to them."""

    # Duplicate answers and Behind

    def _refuse(self, call: Call, event: Event, answer: str, number: int) -> None:
        """Take a duplicate answer or Behind: settle the header that it answers, and judge the block that it reports."""
        node, attempts = self._node(call.node), self._attempts_of(call)
        if call.header is None or (event.is_late and not _fitting(call, answer, number)):
            call.early = Early(event.at_ns, answer, number, event.fields["meaning"])
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
        # A header after the refused one was the next block only as long as the refused one was on its way.
        call.decisions = [
            one._replace(expected="behind")
            if one.expected == "next" and self._expected(call, node, one.number) == "behind"
            else one
            for one in call.decisions
        ]
        header_ns = None if decision is None else decision.where.arrived_at_ns
        rule = self._judge_report(call, event, number, offered, header_ns)
        if decision is not None:
            self._settle(call, decision, answer, number, event.fields["meaning"], event, rule)
        if number:
            self._know(node, number)
        call.behind = answer == "behind"
        if answer == "duplicate":
            if attempts.last_call in (None, call.call):
                # Else the publisher had begun another call before the answer.
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
        """The index of the header that is answered.

        This is the first one for which the answer is due, else the first one that it fits, else the last one.
        """
        if not call.decisions:
            return None
        fitting = _fitting(call, answer, number)
        expected = [at for at in fitting if call.decisions[at].expected == answer]
        return next(iter(expected or fitting), len(call.decisions) - 1)

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
        """Judge whether an answer to `offered`, or an end, reports the newest block. Return the broken rule.

        `header_ns`: when the header came. `failed`: the end has the code of an error.
        """
        node = self._node(call.node)
        known, answer = node.known, offered is not None
        about = call.header if offered is None else offered
        # An answer comes after its header: it reports at least the blocks acknowledged before. An end may be delayed.
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

    def _has_blocks(self, node: Node, event: Event, before_ns: int) -> bool:
        """Whether the node had verified blocks at `before_ns`."""
        return bool(node.known) and node.known_ns <= before_ns and not event.is_late

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
        """Count the node's own calls that were captured shortly before it was known to be behind for its catch-up."""
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
        attempts.distances = [*attempts.distances, offered - number][-DISTANCES:]
        stalled = len(attempts.distances) == DISTANCES and attempts.distances == sorted(attempts.distances)
        if node.catch_up is not None:
            node.catch_up.stalled = stalled
        if stalled:
            shown = ", ".join(map(str, attempts.distances))
            self._find(
                "target_closer", event.where, f"three attempts are {shown} blocks ahead of the node", call, offered
            )
            attempts.distances.clear()

    # SkipBlock and ResendBlock

    def _skip_block(self, call: Call, event: Event) -> None:
        call.streaming = False
        self._judge_after(call, "node_error_all", event, answered_ns(call, event))
        if event.number is not None:
            call.early = Early(event.at_ns, "skip", event.number, None)
        self._answer(call, event, "skip")

    def _resend_block(self, call: Call, event: Event) -> None:
        self._judge_after(call, "node_error_all", event, answered_ns(call, event))
        for order in call.orders:
            if order.row.offered == event.number:
                order.answer, order.resend, order.silent = event.where, True, True
        self._answer(call, event, "resend")

    def _answer(self, call: Call, event: Event, actual: str) -> None:
        """Settle the header that SkipBlock or ResendBlock names, and wait for what the publisher does."""
        node, left = self._node(call.node), []
        for decision in call.decisions:
            if decision.number != event.number:
                left.append(decision)
                continue
            rule, shown = self._answered(call, node, decision, actual)
            waits = rule == "behind_repeat"
            if rule is not None and waits:
                self._await_proof(rule, call, event, shown, decision.number, decision.number - 1)
            elif rule is not None:
                self._find(rule, event.where, shown, call, event.number)
            self._settle(call, decision, actual, event.number, None, event, None if waits else rule, waits=waits)
            row = self._outcomes.pop()
            assert isinstance(row, DecisionRow)
            self._offers.decide(row)
            call.orders.append(Order(row, event.where, actual == "resend"))
        call.decisions = left
        if len(call.orders) > MOST_NAMES:
            first = call.orders[0]
            self._release(call, lambda order: order is first)

    def _answered(self, call: Call, node: Node, decision: Decision, actual: str) -> tuple[str | None, str]:
        """The rule that SkipBlock or ResendBlock breaks as an answer to a header, and the message; None = no rule."""
        offered, known, is_first = decision.number, decision.known, decision.is_first
        if known is None or not self._ordered(node, decision.where.arrived_at_ns) or self._partial(node, self._now_ns):
            return None, ""
        if decision.expected == "behind" and is_first and self._attempts_of(call).behind:
            shown = f"block {offered} is offered again before the node has caught up: the answer is {actual}"
            return "behind_repeat", shown
        if actual == "skip" and offered < known - self._options.skipped_blocks:
            shown = f"block {offered} is answered by SkipBlock, {known} is verified"
            return ("duplicate" if is_first else "reenter"), shown
        return None, ""

    def _obey(self, call: Call, event: Event, header: int | None, proof: int | None) -> None:
        """Judge by the blocks of a header and a proof whether the publisher obeys SkipBlock and ResendBlock."""
        for order in call.orders:
            number, answer = order.row.offered, order.answer
            paused = event.at_ns - answer.arrived_at_ns >= PAUSE_NS
            knew = order.silent and paused and not event.may_lack(answer)
            order.silent = False
            if order.resend:
                if order.row.resend_obeyed is None and header is not None and (knew or header == number):
                    order.row = replace(order.row, resend_obeyed=header == number)
            elif order.row.skip_obeyed is None and not order.unsure:
                if header not in (None, number):
                    order.row = replace(order.row, skip_obeyed=True)
                elif knew:
                    order.row = replace(order.row, skip_obeyed=False)
                else:
                    order.unsure = number in (header, proof)
            self._offers.decide(order.row)
        self._release_known(call)

    def _release_known(self, call: Call) -> None:
        """Drop orders about blocks that were acknowledged since: nothing more is expected of the publisher."""
        acked = -1 if call.acked is None else call.acked
        self._release(call, lambda order: order.row.offered <= acked and order.is_known)

    def _release(self, call: Call, over: Callable[[Order], bool]) -> None:
        """Emit the decisions whose orders are `over`, and drop these orders."""
        self._outcomes += [order.row for order in call.orders if over(order)]
        call.orders[:] = [order for order in call.orders if not over(order)]

    # Decisions

    def _broken_by(self, call: Call, event: Event, offered: int) -> str | None:
        """The rule of the call that this message breaks as an answer to the header of block `offered`."""
        broken = self._broken
        if broken is None or (broken.call, broken.where, broken.number) != (call.call, event.where, offered):
            return None
        return str(broken.fields["rule"]).removeprefix(f"{PROTOCOL}.")

    def _expected(self, call: Call, node: Node, number: int) -> str | None:
        if node.known is None or not self._ordered(node, self._now_ns):
            return None
        if number <= node.known:
            return "duplicate"
        # Blocks that were fetched may be verified already.
        following = node.first_missing()
        if number < following:
            return None
        coming = chain.from_iterable(other.coming() for other in self._publishing(call.node))
        newest = max((one for one in coming if one < number), default=0)
        return "next" if number <= max(newest + 1, following) else "behind"

    def _settle(
        self,
        call: Call,
        decision: Decision,
        actual: str,
        reported: int | None,
        meaning: str | None,
        event: Event | None,
        rule: str | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Emit the row of a decision: the answer `actual` came by `event`, or can't come any more (None).

        `rule`: the rule of several calls that the answer breaks. `waits`: it isn't known yet whether it breaks one.
        """
        if not self._judges(call):
            # There is no such finding.
            rule = None
        if rule is None and event is not None:
            rule = self._broken_by(call, event, decision.number)
        legal: bool | None = None
        if rule is not None:
            legal = False
        elif waits:
            pass
        elif actual in ("duplicate", "behind") and reported is not None:
            # What doesn't fit, and breaks no rule, may be about another header.
            legal = fits(actual, reported, decision.number) or None
        elif actual == "accepted" and event is not None:
            legal = None if decision.known is None or decision.expected in ("behind", "duplicate") else True
        elif actual in ("skip", "resend"):
            legal = True
        self._outcomes.append(
            DecisionRow(
                decision.where,
                call.call,
                call.node,
                call.publisher,
                decision.number,
                decision.known,
                decision.expected,
                actual,
                None if actual == "accepted" else block_or_none(reported),
                meaning,
                None if event is None else event.at_ns,
                legal,
                None if rule is None else RULE[rule].id,
            )
        )


def _fitting(call: Call, answer: str, number: int) -> list[int]:
    """The indices of the waiting headers that this answer fits."""
    return [at for at, one in enumerate(call.decisions) if fits(answer, number, one.number)]


def answered_ns(call: Call, event: Event) -> int:
    """The earliest time at which the node can have sent this answer.

    A lost packet may have been sent again for up to CLOCKS_NS. An answer comes after the first header that waits.
    """
    offered_ns = call.decisions[0].where.arrived_at_ns if call.decisions else 0
    return max(offered_ns, event.at_ns - CLOCKS_NS)
