"""Calls of subscribers, of nodes that fetch missing blocks from another node, and whether blocks chain.

- A subscription (`Subscribers._request`, `_deliver`, `_subscribe_status`): which errors end it, and whether the
  subscriber comes back.
- A node that catches up makes calls itself: the range that it asks for (`_range_fault`), the blocks that it gets
  (`_fetch`), and the blocks that it still lacks in the end (`_judge_catch_up`).
- A block that came whole (`_take_block`): its row, and whether its root is the next block's previous hash (`_chain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from wirehouse_codecs.hiero.correlation.events import Event, whole
from wirehouse_codecs.hiero.correlation.known import CLOCKS_NS, MOST_NAMES, MOST_SHOWN, MOST_WAITING, Known
from wirehouse_codecs.hiero.correlation.state import MOST_RUNS, Call, CatchUp, Node, Pending
from wirehouse_codecs.hiero.profiles import OPEN, Service
from wirehouse_codecs.hiero.session.steps import after

#: Codes that report a failure that isn't the subscriber's own.
_SOURCE_ERRORS: Final = frozenset({"ERROR", "NOT_AVAILABLE"})
#: Rules about the range that a node asks another one for.
RANGE_RULES: Final = ("recorded_target", "catchup_range")


class Subscribers(Known):
    """Calls of subscribers, and of nodes that catch up."""

    def _request(self, call: Call, event: Event) -> None:
        call.asked = True
        call.start = whole(event.fields["start_block_number"])
        end = whole(event.fields["end_block_number"])
        call.end = None if end == OPEN or (not call.new and not end) else end
        asked = self._ask(call)
        if asked is None:
            return
        node, catch_up = asked
        if not event.is_late and node.first_missing() < catch_up.target:
            fault = self._range_fault(call, node, catch_up, event.at_ns)
            if fault is not None:
                rule, shown, about = fault
                self._find_late(rule, event.where, shown, call, about)
        catch_up.asked = [*catch_up.asked, (event.at_ns, call.node, call.start or 0, call.end)][-MOST_SHOWN:]
        self._reconsider(call)

    def _range_fault(self, call: Call, node: Node, catch_up: CatchUp, at_ns: int) -> tuple[str, str, int] | None:
        """The rule that a request at `at_ns` breaks by what is known, the message, and the block that it is about.

        Messages of other connections shortly before may have come after it.
        """
        start, end, reports = call.start or 0, call.end, catch_up.reports
        available = reports.get(call.node or "", min(reports.values(), default=None))
        before = at_ns - self._crossed_ns(node, at_ns)
        target = max(catch_up.offered, *(offered for ns, _, offered, _ in catch_up.attempts if ns <= before), 0)
        needed = target - 1
        asked = f"{start} to {'the end' if end is None else end}"
        reachable = needed if available is None else min(needed, available)
        # Several nodes may be asked for a part each, in any order.
        asked_of = [(whom, (first, last)) for _, whom, first, last in catch_up.asked if (first, last) != (start, end)]
        others = [part for _, part in asked_of]
        if end is not None and _reach(end, others) < reachable:
            return "recorded_target", f"asked is {asked}, block {target} was offered", target
        expected = {after(node.known) if node.known is not None else start, node.first_missing()}
        expected |= {last + 1 for _, last in others if last is not None}
        if any(ns > before for ns, _ in node.rises):
            expected |= {after(acked) for _, acked in node.rises}
        elsewhere = [part for whom, part in asked_of if whom != call.node]
        is_start = start in expected or min(expected) <= start <= _reach(min(expected) - 1, elsewhere)
        # The blocks of a node that reported nothing aren't known.
        is_reported = end in reports.values() or call.node not in reports
        if not is_start or not (end is None or is_reported or any(first == end + 1 for first, _ in others)):
            shown = f"asked is {asked}, needed from {min(expected)} to {'the end' if available is None else available}"
            return "catchup_range", shown, start
        return None

    def _reconsider(self, request: Call | None = None) -> None:
        """Judge the requested ranges again: the newest message may have come before a request on another connection.

        `request`: the call on which a node asks for another part now. It may have planned this part, or waited for the
        one before.
        """
        for pending in self._awaited.of(*RANGE_RULES):
            call = self._calls.get(pending.call or "")
            node = None if call is None else self._nodes.get(call.asking or "")
            at_ns = pending.where.arrived_at_ns
            if call is None or node is None or node.catch_up is None:
                continue
            if at_ns not in (asked_ns for asked_ns, *_ in node.catch_up.asked):
                continue
            goes_on = request is not None and request.asking == call.asking
            since_ns = call.ended_ns or self._now_ns if goes_on else at_ns
            if self._now_ns - since_ns > CLOCKS_NS and not (goes_on and pending.kind == "catchup_range"):
                continue
            fault = self._range_fault(call, node, node.catch_up, at_ns)
            if fault is None or fault[0] != pending.kind:
                self._awaited.remove(pending)

    def _server_status(self, call: Call, event: Event) -> None:
        last = call.latest = whole(event.fields["last_available_block"])
        # In one packet the answer comes before the request.
        asked = self._ask(call)
        if asked is not None:
            _report(call, asked[1], last)
        if last:
            self._know(self._node(call.node), last)

    def _deliver(self, call: Call, event: Event) -> None:
        call.item_bytes += event.fields["item_bytes"] or 0
        # Older blocks may wait in the node's send buffer.
        header = whole(event.fields["header"])
        since_ns = self._published_ns(header)
        if header is not None:
            known = self._node(call.node).known
            self._offers.deliver(call.node, header, event.at_ns, is_new=known is None or header > known)
        self._judge_after(call, "node_error_subscribers", event, since_ns)
        if event.is_late:
            return
        for pending in self._awaited.of_call("source_error_sent", call.call):
            if since_ns > pending.where.arrived_at_ns + self._options.in_flight_ns:
                self._find("source_error_sent", pending.where, pending.message, call)
                self._awaited.remove(pending)

    def _subscribe_status(self, call: Call, event: Event) -> None:
        meaning = event.fields["meaning"] or "UNKNOWN"
        call.code = meaning
        for kind in ("node_error_subscribers", "source_error_sent"):
            self._drop(kind, call)
        node = self._node(call.node)
        self._end(call, event, "node")
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
            # By another clock the last publisher may have failed before others came.
            error_ns = node.publisher_error_ns
            since_ns = error_ns if error_ns is not None and event.at_ns - error_ns <= CLOCKS_NS else event.at_ns
            others = [other.call for other in self._publishing(call.node) if other.opened_ns <= since_ns][:MOST_WAITING]
            shown = f"subscriber {call.client} is told {meaning}, and another publisher goes on"
            due = event.at_ns + near + CLOCKS_NS
            self._await(
                Pending(
                    "source_error_only_if_last", event.where, due, call.call, call.node, others=others, message=shown
                )
            )
        shown = f"subscriber {call.client} doesn't come back after {meaning}"
        due = event.at_ns + self._options.patience_ns
        self._await(
            Pending("subscriber_not_resumed", event.where, due, call.call, call.node, call.client, message=shown)
        )

    def _fetch(self, call: Call, event: Event, number: int) -> None:
        """Count a block that a subscriber, perhaps a node that catches up, has whole."""
        call.blocks += 1
        call.first_block = number if call.first_block is None else min(number, call.first_block)
        call.last_block = number if call.last_block is None else max(number, call.last_block)
        node = None if call.asking is None else self._nodes.get(call.asking)
        if node is None:
            return
        node.fetched.add(number)
        catch_up = node.catch_up
        if catch_up is not None:
            catch_up.fetched += 1
            catch_up.changed = True
        elif not call.overrun and self._goes_on_fetching(call, node, event, number):
            call.overrun = True
            shown = f"block {number} is fetched, though {node.name} has caught up"
            self._find("catch_up_overrun", event.where, shown, call, number)

    def _goes_on_fetching(self, call: Call, node: Node, event: Event, number: int) -> bool:
        """Whether the node still gets blocks without an end, long after it had caught up.

        Blocks that it asked for before may have been on their way, or in a send buffer, unless they were published
        later.
        """
        if call.end is not None or node.caught_up_ns is None:
            return False
        return min(event.at_ns, self._published_ns(number)) > node.caught_up_ns + CLOCKS_NS

    def _judge_source_error(self, pending: Pending) -> int:
        return self._judge_never(pending) if pending.used else self._wait_for_use(pending)

    def _judge_catch_up(self, pending: Pending) -> int:
        node = self._node(pending.node)
        catch_up = node.catch_up
        if catch_up is None or not (node.outgoing or catch_up.started):
            return 0
        if self._after_capture(pending):
            return self._now_ns
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

    # Blocks

    def _take_block(self, event: Event) -> None:
        number, fields = event.number, event.fields
        call = None if event.call is None else self._call_of(event)
        if call is not None and call.service == Service.PUBLISH and number is not None:
            # A set may hold several blocks.
            node = self._node(call.node)
            node.offered.add(number)
            if fields["proven"]:
                node.proven.add(number)
        if number is None or not fields["proven"]:
            return
        if call is not None and call.service == Service.SUBSCRIBE:
            self._fetch(call, event, number)
        block = self._block(number, event.where)
        block.changed = True
        if block.items is None or (fields["roots_complete"] and not block.complete):
            block.counts = sorted((name, count) for name, count in _pairs(fields["item_counts"]))
            block.items, block.item_bytes = fields["items"], fields["item_bytes"]
            block.proof_kind, block.reason = fields["proof_kind"], fields["root_reason"]
            block.root, block.layout = _hex(fields["block_root"]), fields["root_layout"]
            block.previous = _hex(fields["previous_hash"])
        if block.proof_ns is None:
            block.proof_ns = event.at_ns
        for root in fields["roots"] or ():
            if (text := root["root"].hex()) not in block.roots and len(block.roots) < MOST_NAMES:
                block.roots.append(text)
        block.complete |= bool(fields["roots_complete"])
        self._chain(number, event, call)
        self._chain(number - 1, event, call)

    def _chain(self, number: int, event: Event, call: Call | None) -> None:
        """Judge whether the root of block `number` is the previous hash that the next block holds."""
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


def _report(call: Call, catch_up: CatchUp, last: int | None) -> None:
    """Note the last block that the asked node reports."""
    catch_up.available = last
    if last is not None and (call.node in catch_up.reports or len(catch_up.reports) < MOST_NAMES):
        catch_up.reports[call.node or ""] = last


def _reach(end: int, ranges: Sequence[tuple[int, int | None]]) -> int:
    """The last block that is asked for without a gap, if one range ends at `end`."""
    for first, last in sorted(ranges, key=itemgetter(0)):
        if first <= end + 1:
            end = max(end, OPEN if last is None else last)
    return end


def _pairs(counts: Any) -> Iterable[tuple[str, int]]:
    """A map of a row, which Arrow gives as pairs."""
    pairs: Iterable[tuple[str, int]] = counts.items() if isinstance(counts, dict) else counts or ()
    return pairs


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()
