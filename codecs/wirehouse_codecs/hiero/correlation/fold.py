"""The fold of a service's events: it judges what only several calls show together.

These are decisions about headers, publishers' retries, subscriptions, catch-ups and chains of blocks.

A fold takes the events of one service (all sources that have its name, or a source that stands alone) in the order of
arrival. Its state can be carried on: neither the findings nor the newest rows depend on where windows are cut. There
may be several block nodes, each known by its address. So a publisher or subscriber of one node is recognised at
another, and the calls of a node to another one are recognised as its catching up.

- L is the highest block that the node is known to have verified: the highest it acknowledged or reported. It is a lower
  bound: no finding depends on L not being higher.
- Where messages were missed, nothing is judged that could depend on them, until `patience_ms` after the end of the call
  that lacks them.
- A rule about what never came is judged when its call closes, or when an event is past its time. After a silence it is
  judged `Waits.held_ns` later, because connections first deliver bytes that waited behind a gap. A window's end judges
  only what no connection can hold back any more: nothing was heard for `Waits.silent_ns`.
- That a client doesn't come back, or that a node doesn't fetch what it lacks, is reported only if something was
  captured past that time. A capture that ended before doesn't show it.
- What a fold keeps is bounded. Beyond a bound the oldest is dropped, and not judged any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from wirehouse_codecs.hiero.correlation.events import BROKEN, Event
from wirehouse_codecs.hiero.correlation.publishers import Publishers
from wirehouse_codecs.hiero.correlation.rows import Outcome
from wirehouse_codecs.hiero.correlation.state import Call, Pending, block_row, call_rows, catch_up_row
from wirehouse_codecs.hiero.correlation.subscribers import RANGE_RULES, Subscribers
from wirehouse_codecs.hiero.log.rows import BLOCK, BLOCK_FILE, CLOSED, MISSED, OPENED
from wirehouse_codecs.hiero.profiles import Service
from wirehouse_codecs.tcp.endpoints import Direction


class Fold(Publishers, Subscribers):
    """The calls of one service. `take` events in the order of arrival, `end_window` at each window's end.

    Raises StateVersionError for another version's state.
    """

    def take(self, event: Event) -> list[Outcome]:
        """Take the next event. Return the findings that it completes, and the decisions that it settles."""
        if event.kind == BROKEN:
            # Its message comes next.
            self._broken = event
            return []
        silent_ns = event.at_ns - self._heard_ns
        self._now_ns = max(self._now_ns, event.at_ns)
        if self._now_ns > self._due_ns:
            if self._waits.held_ns < silent_ns <= self._waits.silent_ns:
                self._hold()
            self._judge_due()
        self._heard_ns = max(self._heard_ns, event.at_ns)
        if event.kind in (BLOCK, BLOCK_FILE):
            self._take_block(event)
        elif event.call is not None:
            call = self._call_of(event)
            take = _TAKES.get((call.service, event.kind))
            if take is not None:
                take(self, call, event)
        if event.kind in _SHOWS_BLOCKS:
            self._reconsider()
        return self._pop_outcomes()

    def _hold(self) -> None:
        """Wait once more: after a silence each connection may first deliver what missing bytes held back."""
        for one in self._awaited:
            if one.ready_ns < self._now_ns <= one.due_ns + self._waits.silent_ns:
                one.held_ns = self._now_ns + self._waits.held_ns

    def _judge_due(self) -> None:
        for one in [one for one in self._awaited if one.ready_ns < self._now_ns]:
            # The time at which it is due again may be over too.
            while one.due_ns and one.ready_ns < self._now_ns:
                one.due_ns = _JUDGED[one.kind](self, one)
            if not one.due_ns:
                self._awaited.remove(one)
        self._set_due()

    def end_window(self, end_ns: int) -> list[Outcome]:
        """End a window. Return the findings that are due, if nothing can be held back, and the rows that changed."""
        self._now_ns = max(self._now_ns, end_ns)
        if self._now_ns > self._due_ns and end_ns - self._heard_ns > self._waits.silent_ns:
            self._judge_due()
        outcomes = self._pop_outcomes()
        outcomes += self._changed_rows()
        return [*outcomes, *self._offers.changed_rows()]

    # Calls

    def _open(self, call: Call, event: Event) -> None:
        call.profile, call.correlation_id = event.fields["profile"], event.fields["correlation_id"]
        call.partial |= bool(event.fields["partial"])
        if call.service == Service.PUBLISH:
            self._note_partial(call, event)
            self._open_publisher(call, event)
        elif call.service == Service.SUBSCRIBE:
            self._resume(call, event, Service.SUBSCRIBE, call.client)
            self._drop_of("subscriber_not_resumed", call.client)
        elif call.service == Service.STATUS:
            self._ask(call)

    def _miss(self, call: Call, event: Event) -> None:
        """Note that messages of the call are missing."""
        call.partial = True
        self._note_partial(call, event)

    def _close(self, call: Call, event: Event) -> None:
        fields = event.fields
        call.status, call.closed = fields["status"], True
        call.partial |= bool(fields["partial"])
        lost = fields["how"] in ("capture_end", "forgotten")
        by = fields["reset_by"]
        if call.service == Service.PUBLISH:
            self._note_partial(call, event)
            if not lost:
                trailers = fields["how"] == "trailers"
                ended_by = "node" if trailers or by == Direction.SERVER else "publisher" if by else fields["how"]
                self._end(call, event, ended_by, broken=not trailers)
            self._close_publisher(call, event, lost)
            return
        # The answers after the end of a capture are not known.
        for kind in ("node_error_subscribers", "source_error_sent"):
            self._drop(kind, call)
        if not lost:
            self._end(call, event, fields["how"])
            if call.cause is None and call.code is None:
                call.cause = "subscriber" if by == Direction.CLIENT else "lost"

    def _changed_rows(self) -> Iterator[Outcome]:
        yield from self._catch_ups
        self._catch_ups = []
        for call in list(self._calls.values()):
            yield from call_rows(call)
            call.changed = False
            if self._is_over(call, self._now_ns):
                del self._calls[call.call]
        for node in self._nodes.values():
            if node.catch_up is not None and node.catch_up.changed:
                node.catch_up.changed = False
                yield catch_up_row(node, node.catch_up)
        for number, block in self._blocks.items():
            if block.changed:
                block.changed = False
                yield block_row(number, block)


#: Events that show which blocks a node has, or could have.
_SHOWS_BLOCKS: Final = frozenset({BLOCK, "acknowledgement", "end_stream", "node_behind", "server_status"})
_Take = Callable[[Fold, Call, Event], None]
#: The method that takes an event, by the call's service and the event's kind.
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
#: The method that judges what is due, by its kind. It returns the time when it is due again, or 0.
_JUDGED: Final[Mapping[str, Callable[[Fold, Pending], int]]] = {
    "node_error_all": Fold._wait_for_use,
    "node_error_subscribers": Fold._wait_for_use,
    "source_error_only_if_last": Fold._judge_source_error,
    "source_error_sent": Fold._judge_never,
    "retry_after_node_error": Fold._judge_return,
    "subscriber_not_resumed": Fold._judge_return,
    "catch_up": Fold._judge_catch_up,
    "block_not_acknowledged": Fold._judge_waiting,
    **dict.fromkeys(
        (
            *("ack_order", "ack_unoffered", "backoff", "drop_unproven", "behind", "behind_repeat", "reenter"),
            *RANGE_RULES,
        ),
        Fold._judge_unproven,
    ),
}
