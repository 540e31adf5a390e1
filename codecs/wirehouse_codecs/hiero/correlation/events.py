"""Events, which the fold takes: rows of the log, and the order in which they are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final, NamedTuple

from wirehouse_codecs.hiero.log.rows import BLOCK, BLOCK_FILE, CALL, CLOSED, MISSED, OPENED
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.logs.rows import MESSAGE, VIOLATION

Row = Mapping[str, Any]
#: Columns of the log from which events are made, each with the fields that are read if it is a struct.
EVENT_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            *("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns"),
            *("capture_arrived_at_ns", "row_kind", "call", "service", "node", "client", "publisher", "block_number"),
        ),
        (),
    ),
    "message": (
        *("kind", "profile", "last", "ignored", "late", "peer_received", "header", "proof", "item_bytes", "meaning"),
        *("earliest_block_number", "latest_block_number", "start_block_number", "end_block_number"),
        *("last_available_block", "block_already_exists"),
    ),
    "finding": ("rule",),
    "call_event": ("event", "profile", "correlation_id", "partial", "how", "status", "reset_by", "late"),
    "block": (
        *("proven", "item_counts", "items", "item_bytes", "proof_kind", "previous_hash"),
        *("roots", "roots_complete", "root_layout", "block_root", "root_reason"),
    ),
}
LAST_BYTE: Final = 1 << 62
#: Order of events at the same byte: a call begins, then come the rule that a message breaks, the message, the block
#: that it ends, and the call's end.
RANKS: Final = {OPENED: 0, VIOLATION: 1, BLOCK: 3, CLOSED: 4}
MESSAGE_RANK: Final = 2
#: Kinds of rows that may be events.
EVENT_KINDS: Final = (MESSAGE, CALL, BLOCK, VIOLATION)
#: An event: an answer breaks a rule of its call.
BROKEN: Final = "broken"
#: Rules of a call that a node's answer to a header breaks.
ANSWER_RULES: Final = frozenset(RULE[name].id for name in ("next", "duplicate", "reenter", "ack_order"))


class Where(NamedTuple):
    """The location of an event, in the names and the order of the log's columns."""

    connection_id: bytes | None
    direction: str | None
    byte_start: int | None
    byte_end: int | None
    capture_id: bytes | None
    record_number: int | None
    arrived_at_ns: int


_WHERE: Final = itemgetter(*Where._fields)


@dataclass(slots=True)
class Event:
    """A message, the begin or end of a call, messages of it that are missing, a block that came, or a rule that an
    answer breaks on its call: it comes before the answer.
    """

    #: The message's kind; `opened`, `missed`, `closed`; `block`, `block_file`; `broken`.
    kind: str
    where: Where
    call: str | None = None
    service: str | None = None
    node: str | None = None
    client: str | None = None
    publisher: str | None = None
    #: The block that it is about, or that the node reports.
    number: int | None = None
    #: The fields of the row's struct: its `message`, `call_event`, `block` or `finding`.
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def at_ns(self) -> int:
        """Time of its arrival."""
        return self.where.arrived_at_ns

    @property
    def is_late(self) -> bool:
        """Whether it came late: it isn't known when it was sent first."""
        return bool(self.fields.get("late"))

    @property
    def received(self) -> int | None:
        """Maximum number of bytes of the other side that its sender's host had received; None = not known."""
        return None if self.is_late else self.fields.get("peer_received") or None

    def may_lack(self, where: Where) -> bool:
        """Whether its sender may have lacked the message at `where`: it came late, or doesn't acknowledge it."""
        is_same = where.connection_id is not None and where.connection_id == self.where.connection_id
        received, end = self.fields.get("peer_received"), where.byte_end
        return self.is_late or (is_same and received is not None and end is not None and received < end)


def event_of(row: Row) -> Event | None:
    """The event of a row of the log; None = the row is no event, or its call ignored the message."""
    kind = row["row_kind"]
    if kind == MESSAGE:
        fields = row["message"]
        if fields["ignored"] is not None or not fields["last"]:
            return None
        name = fields["kind"]
        if name == BLOCK_FILE:
            fields = row["block"]
    elif kind == CALL:
        fields = row["call_event"]
        name = fields["event"]
    elif kind == BLOCK:
        fields, name = row["block"], BLOCK
    elif kind == VIOLATION and row["finding"]["rule"] in ANSWER_RULES:
        fields, name = row["finding"], BROKEN
    else:
        return None
    about = (row["call"], row["service"], row["node"], row["client"], row["publisher"])
    return Event(name, Where(*_WHERE(row)), *about, whole(row["block_number"]), fields)


def order_of(row: Row) -> tuple[Any, ...]:
    """The sort key of events: their arrival, and within a packet their bytes."""
    kind = row["row_kind"]
    name = row["call_event"]["event"] if kind == CALL else kind
    location = (row["arrived_at_ns"], row["capture_arrived_at_ns"] or 0, row["capture_id"] or b"")
    # Messages that a packet shows to be missing come before those that it releases.
    nowhere = -1 if name == MISSED else LAST_BYTE
    byte = row["byte_end"] if row["byte_end"] is not None else nowhere
    return (
        *location,
        row["record_number"] or 0,
        row["connection_id"] or b"",
        byte,
        RANKS.get(name, MESSAGE_RANK),
        row["call"] or "",
    )


def whole(number: Decimal | int | None) -> int | None:
    """A number of the log, in which unsigned 64-bit numbers are decimals."""
    return None if number is None else int(number)
