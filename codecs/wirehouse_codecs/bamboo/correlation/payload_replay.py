"""Payloads that were sent without their metadata, judged by the entries that are known from elsewhere.

A proposal for payloads alone, or one that begins within a payload, doesn't state how long its payloads are. If the
session doesn't know these entries, it doesn't know where its sides stand. The service may know them: from another
connection, or from a file. So what a side sent for such a proposal is gone through again, by the signed entries of the
log: where each payload ends, and whether it is right (specification, "The Data Channel").

In come the rows of a proposal's messages and the entries of its log; out come findings: wrong payloads, too long ones,
payloads and notifies that the other side didn't ask for, untrue skips and apologies, and packets that are out of turn
or past the end. Where an entry isn't known, or more than one of its number, nothing more is judged.

A sender may not know yet what the other side has adjusted. So it is judged by all settings that the other side has had
until then, and breaks a rule only if it breaks it by each of them. Its own adjusts count at once.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.log.rows import PROPOSAL, SESSION
from wirehouse_codecs.bamboo.rules import DATA_RULES
from wirehouse_codecs.bamboo.session.cursor import MOST_LOOKED_AT, Piece, Settings
from wirehouse_codecs.bamboo.wire.entry_verification import digest_rule
from wirehouse_codecs.bamboo.wire.lipmaa import path
from wirehouse_codecs.bamboo.wire.messages import Adjust, Eagerness
from wirehouse_codecs.bamboo.wire.yamf import DIGEST_BYTES
from wirehouse_codecs.logs.rows import MESSAGE

Row = Mapping[str, Any]

SIDES: Final = ("client", "server")
#: Kinds of messages about such a proposal.
KINDS: Final = (
    *("propose", "adjust", "raw", "lz", "skip_bytes", "skip_small", "skip_large", "skip_missing", "notify"),
    *("apology", "metadata"),
)
#: Their fields.
FIELDS: Final = (
    *(
        "kind",
        "start",
        "end",
        "upper_info",
        "offset",
        "payload_only",
        "sparse",
        "expected_hash",
        "count",
        "size",
        "compressed_size",
    ),
    *("at", "data", "compressed"),
    *("eagerness", "size_limit", "min_payload", "max_payload", "mandatory", "may_skip"),
)
#: Columns of the log that identify a message.
PLACED: Final = (
    *("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns"),
    *("channel", "proposal_id", "proposal_number"),
)


_ORDER: Final = {rule.name: place for place, rule in enumerate(DATA_RULES)}


class Found(NamedTuple):
    """A rule that a message breaks."""

    row: Row
    rule: str
    message: str


class Payload(NamedTuple):
    """The payload's size and hash in an entry."""

    size: int
    payload_hash: bytes
    entry_hash: bytes


class Payloads:
    """The payloads of a log's signed entries, up to where it is forked."""

    def __init__(self) -> None:
        self._known: dict[int, Payload] = {}
        self._forked_at: int | None = None

    def add(self, entry: Row) -> None:
        """An entry that is signed."""
        seq = int(entry["seq"])
        payload = Payload(int(entry["payload_size"]), entry["payload_hash"], entry["entry_hash"])
        if self._known.setdefault(seq, payload) != payload:
            self._forked_at = seq if self._forked_at is None else min(self._forked_at, seq)

    def of(self, seq: int) -> Payload | None:
        """The payload of an entry; None: it isn't known, or it is one of several."""
        return None if self._forked_at is not None and seq >= self._forked_at else self._known.get(seq)


def is_signed(entry: Row) -> bool:
    """Whether a row of `entry_rows.ENTRIES` is a correctly encoded and signed entry."""
    return entry["data"] is not None and entry["own_rule"] is None and entry["signature_rule"] is None


def modes_of(session: Row) -> dict[str, bool | None]:
    """By direction whether the side sends greedily, from the row of a session; None: that isn't known."""
    modes = {side: (session[side] or {}).get("send_mode") for side in SIDES}
    return {side: None if mode is None else mode == "greedy" for side, mode in modes.items()}


def is_replayed(row: Row) -> bool:
    """Whether a row of a proposal, or its message, doesn't state how long its payloads are."""
    return bool(row["payload_only"]) or row["offset"] is not None


def replay(
    rows: Iterable[Row], modes: Mapping[str, bool | None], payloads: Payloads, ended_by: str | None
) -> Iterator[Found]:
    """What the messages of one proposal, rows with FIELDS from the first on, break. `modes` are those of `modes_of`.

    No bytes of the proposal may be missing. `ended_by` is the rule that ended the session. If the last packet breaks
    it, the session has found that already.
    """
    ordered = _in_order(rows)
    if not ordered or ordered[0]["kind"] != "propose":
        return
    asked = ordered[0]
    # By the shortest path other entries are sent, once the end is another one.
    if asked["sparse"] and (asked["end"] is None or any(row["kind"] == "adjust" and row["end"] for row in ordered)):
        return
    sides = {side: _Replay(asked, modes[side], payloads) for side in SIDES}
    peers = dict(zip(SIDES, reversed(SIDES), strict=True))
    last = {row["direction"]: row for row in ordered if row["kind"] != "adjust"}
    sides[peers[asked["direction"]]].wants.append(_settings(asked))
    sides[asked["direction"]].wants.append(Settings())
    for row in ordered[1:]:
        sender, receiver = sides[row["direction"]], sides[peers[row["direction"]]]
        if row["kind"] == "adjust":
            sender.adjust(row)
            wants = _adjusted(receiver.wants[-1], row)
            # Before the confirmation nothing may be sent.
            receiver.wants = [wants] if receiver.wants[-1].eagerness is None else [*receiver.wants, wants]
            continue
        found = sender.take(row, receiver)
        if found is not None and not (row is last[row["direction"]] and found.rule == ended_by):
            yield found


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """The rows in the order in which they arrived. Those of one side stay in the order of their bytes."""
    by_bytes = sorted(rows, key=lambda row: (row["kind"] != "propose", row["byte_start"]))
    arrived: dict[str, tuple[int, int]] = {}
    keys = []
    for row in by_bytes:
        at = (row["arrived_at_ns"], row["record_number"] or 0)
        arrived[row["direction"]] = at = max(at, arrived.get(row["direction"], at))
        keys.append((row["kind"] != "propose", at))
    return [by_bytes[i] for i in sorted(range(len(keys)), key=keys.__getitem__)]


def _settings(row: Row) -> Settings:
    """What the proposing side wants."""
    limit = None if row["size_limit"] is None else int(row["size_limit"])
    sizes = (int(row["min_payload"]), int(row["max_payload"]))
    return Settings(_eagerness(row), limit, *sizes, bool(row["mandatory"]))


def _eagerness(row: Row) -> Eagerness | None:
    return None if row["eagerness"] is None else Eagerness[row["eagerness"].upper()]


def _adjusted(before: Settings, row: Row) -> Settings:
    eagerness = _eagerness(row)
    numbers = {name: None if row[name] is None else int(row[name]) for name in ("min_payload", "max_payload")}
    limit = None if row["size_limit"] is None else int(row["size_limit"])
    return before.adjusted(Adjust(int(row["proposal_id"]), eagerness, limit, bool(row["may_skip"]), **numbers))


class _Replay:
    """What one side sends for a proposal."""

    def __init__(self, asked: Row, greedy: bool | None, payloads: Payloads) -> None:
        self._greedy, self._payloads = greedy, payloads
        #: All settings of the other side so far.
        self.wants: list[Settings] = []
        self._payload_only, self._expected = bool(asked["payload_only"]), asked["expected_hash"]
        self._start = int(asked["start"])
        self._end = None if asked["end"] is None else int(asked["end"])
        self._upper = asked["upper_info"]
        self._path = path(self._start, self._end) if asked["sparse"] and self._end is not None else None
        self._offset = int(asked["offset"] or 0)
        self._has_offset = asked["offset"] is not None
        self._index, self._over = 0, False
        #: Whether the last piece is a whole payload: None if it isn't, else the rule that it breaks, or "".
        self._last: str | None = None
        self._apologises = False
        self._begin()

    def adjust(self, row: Row) -> None:
        """The side adjusts the proposal: a lower end binds it from here on."""
        if row["end"] is not None and (self._end is None or int(row["end"]) < self._end):
            self._end, self._upper = int(row["end"]), row["upper_info"] or self._upper

    def _begin(self) -> None:
        self._at = self._offset if not self._index else 0
        #: The hash of the payload's bytes; None: some of them aren't here.
        self._hash = None if self._at else hashlib.blake2b(digest_size=DIGEST_BYTES)

    @property
    def _seq(self) -> int | None:
        """The entry whose payload is due; None: the range is over."""
        if self._path is not None:
            return self._path[self._index] if self._index < len(self._path) else None
        seq = self._start + self._index
        return seq if self._end is None or seq <= self._end else None

    def _payload_of(self, index: int) -> Payload | None:
        """The payload of the range's entry with that index, without regard to where the proposal begins."""
        if self._path is not None:
            return self._payloads.of(self._path[index]) if index < len(self._path) else None
        return self._payloads.of(self._start + index)

    def _payload(self) -> Payload | None:
        known = None if self._seq is None else self._payloads.of(self._seq)
        if known is not None and self._has_offset and not self._index and known.entry_hash != self._expected:
            return None
        return known

    def take(self, row: Row, peer: _Replay) -> Found | None:
        """The rule that the next message of the side breaks: the first one of several. `peer` is the other side."""
        kind = row["kind"]
        if self._over or (kind in ("notify", "skip_bytes") and not row["count"] and not self._is_empty(kind)):
            return None
        found = [*self._follow(row), *self._turn(row)]
        if not self._over and self._is_unasked(row, peer):
            found.append(Found(row, "eagerness_ignored", f"payload {self._seq} is due"))
        if not self._over:
            found += _TAKE[kind](self, row)
        return min(found, key=lambda one: _ORDER[one.rule], default=None)

    def _is_empty(self, kind: str) -> bool:
        """Whether a skip of 0 bytes is about a payload of 0 bytes, which it passes."""
        known = self._payload() if kind == "skip_bytes" else None
        return known is not None and not known.size

    def _turn(self, row: Row) -> Iterator[Found]:
        """Whether such a piece is due. Only the first part of a packet is asked."""
        kind, rule = row["kind"], None
        if kind == "apology" or row["at"]:
            return
        is_metadata_due = self._index and not self._payload_only
        if kind == "notify":
            left = self._left()
            rule = "past_end" if self._payload_only and left is not None and row["count"] > left else None
        elif self._seq is None and (self._payload_only or self._upper == self._end):
            rule = "past_end"
        elif kind == "metadata":
            known = self._payload()
            is_cut = known is not None and self._at < known.size
            rule = "out_of_turn" if self._payload_only or (is_cut and not is_metadata_due) else None
        elif is_metadata_due:
            rule = "out_of_turn"
        if rule is not None:
            self._over = True
            due = "metadata" if is_metadata_due else "nothing" if self._seq is None else f"payload {self._seq}"
            yield Found(row, rule, f"{due} is due")

    def _is_unasked(self, row: Row, peer: _Replay) -> bool:
        """Whether the other side asks for something else by each of its settings."""
        kind = row["kind"]
        if not self._payload_only or any(wants.eagerness is None for wants in self.wants):
            return False
        if kind == "notify":
            return self._keeps_back(int(row["count"]), peer)
        if kind not in ("raw", "lz") or row["at"]:
            return False
        known, piece = self._payload(), Piece(self._seq or 0, True)
        return not any(wants.allows(piece, None if known is None else known.size) for wants in self.wants)

    def _keeps_back(self, count: int, peer: _Replay) -> bool:
        """Whether a notify skips a payload that the other side wants and hasn't sent."""
        if peer._over or peer._apologises or any(wants.eagerness is Eagerness.NOTIFY for wants in self.wants):
            return False
        begin, end = max(self._index, peer._index), self._index + count
        payloads = (self._payload_of(index) for index in range(begin, min(end, begin + MOST_LOOKED_AT)))
        return any(
            known is not None and all(wants.wants(Piece(0, True), known.size) for wants in self.wants)
            for known in payloads
        )

    def _left(self) -> int | None:
        """How many payloads are left; None: the range has no end."""
        if self._end is None:
            return None
        return max((self._end - self._start + 1 if self._path is None else len(self._path)) - self._index, 0)

    def _follow(self, row: Row) -> Iterator[Found]:
        last = self._last
        if row["kind"] == "apology":
            if last == "" and not self._is_begun:
                yield Found(row, "apology_for_valid_data", f"payload {self._before()} is right")
            return
        if last and self._greedy:
            yield Found(row, "invalid_data_not_apologised", last)
        self._last = None

    @property
    def _is_begun(self) -> bool:
        return self._at > (self._offset if not self._index else 0)

    def _before(self) -> int:
        return self._path[self._index - 1] if self._path is not None else self._start + self._index - 1

    def _take_apology(self, row: Row) -> Iterator[Found]:
        yield from ()
        self._apologises = True
        if not self._is_begun:
            self._over = self._last is None
            self._index -= 1
        self._last = None
        if not self._over:
            self._begin()

    def _take_notify(self, row: Row) -> Iterator[Found]:
        yield from ()
        # It may move past metadata, too.
        self._over = not self._payload_only
        self._pass(int(row["count"]))

    def _take_metadata(self, row: Row) -> Iterator[Found]:
        """End the replay: with metadata, the session itself knows how long payloads are."""
        yield from ()
        self._over = True

    def _take_skip(self, row: Row) -> Iterator[Found]:
        known, kind = self._payload(), row["kind"]
        if kind == "skip_bytes":
            yield from self._add(row, known, int(row["count"]), None)
            return
        if known is not None and self._greedy is not None:
            small = all(known.size >= wants.min_payload for wants in self.wants)
            large = all(known.size <= wants.max_payload for wants in self.wants)
            if (kind == "skip_small" and small) or (kind == "skip_large" and large):
                yield Found(row, "skip_size_untrue", f"payload {self._seq} has {known.size} bytes")
        self._pass(1)

    def _take_raw(self, row: Row) -> Iterator[Found]:
        announced = int(row["size"]) - int(row["at"])
        yield from self._add(row, self._payload(), announced if not row["at"] else 0, row["data"] or b"")

    def _take_lz(self, row: Row) -> Iterator[Found]:
        whole = row["data"] is not None or len(row["compressed"] or b"") == int(row["compressed_size"])
        if row["at"] or not whole:
            self._over = True
            return
        yield from self._add(row, self._payload(), int(row["size"]), row["data"])

    def _add(self, row: Row, known: Payload | None, announced: int, data: bytes | None) -> Iterator[Found]:
        """Take bytes of the payload that is due; without `data` the `announced` bytes are not at hand."""
        if known is None:
            self._over = True
            return
        if self._at + announced > known.size:
            self._over = True
            yield Found(row, "payload_overrun", f"{self._at + announced} bytes of payload {self._seq}, of {known.size}")
            return
        if data is None:
            self._hash = None
        elif self._hash is not None:
            self._hash.update(data)
        self._at += announced if data is None else len(data)
        if self._at < known.size:
            return
        digest = None if self._hash is None else self._hash.digest()
        rule = None if digest is None else digest_rule(known.size, digest, known.size, known.payload_hash)
        if rule is not None and self._greedy is False:
            yield Found(row, "invalid_data_in_safe_mode", rule)
        self._pass(1)
        self._last = None if digest is None else rule or ""

    def _pass(self, count: int) -> None:
        self._index += count
        self._begin()
        # An apology can't retract what was not sent.
        self._last = None


_TAKE: Final[Mapping[str, Callable[[_Replay, Row], Iterator[Found]]]] = {
    "raw": _Replay._take_raw,
    "lz": _Replay._take_lz,
    "skip_bytes": _Replay._take_skip,
    "skip_small": _Replay._take_skip,
    "skip_large": _Replay._take_skip,
    "skip_missing": _Replay._take_skip,
    "notify": _Replay._take_notify,
    "apology": _Replay._take_apology,
    "metadata": _Replay._take_metadata,
}


class Replays:
    """Takes the rows of one capture, and goes through its proposals again once all entries are known.

    What is sent for these proposals is held until then. Of two connections nothing is judged.
    """

    def __init__(self) -> None:
        #: By connection and number of the proposal; rows of proposals may come before their messages.
        self._messages: dict[tuple[bytes, int], list[Row]] = {}
        self._proposals: dict[tuple[bytes, int], Row] = {}
        self._sessions: dict[bytes, Row] = {}
        #: Whether a message was seen from which on messages are held.
        self._is_begun = False

    def needs(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Which messages `take` needs of the next rows of the log; None as long as no proposal is replayed."""
        message = rows.column("message")
        kind, alone, offset = (pc.struct_field(message, name) for name in ("kind", "payload_only", "offset"))
        begins = pc.and_(pc.equal(kind, "propose"), pc.or_(alone.fill_null(False), offset.is_valid()))
        self._is_begun = self._is_begun or pc.any(begins).as_py() is True
        return pc.is_in(kind, pa.array(KINDS)) if self._is_begun else None

    def take(self, row: Row) -> None:
        """A row of the log."""
        kind = row["row_kind"]
        if kind == SESSION:
            self._sessions[row["connection_id"]] = row["session"]
        elif kind == PROPOSAL and is_replayed(row["proposal"]):
            self._proposals[row["connection_id"], row["proposal_number"]] = row["proposal"]
        elif kind == MESSAGE and row["message"]["kind"] in KINDS:
            message, key = row["message"], (row["connection_id"], row["proposal_number"])
            if message["kind"] == "propose" and is_replayed(message):
                self._messages[key] = []
            if key in self._messages:
                self._messages[key].append(placed(row))

    def finish(self, entries: Iterable[Row]) -> Iterator[Found]:
        """All entries of the capture, rows of `entry_rows.ENTRIES`: what the proposals break."""
        payloads: defaultdict[tuple[bytes, int], Payloads] = defaultdict(Payloads)
        for entry in entries if self._messages else ():
            if is_signed(entry):
                payloads[entry["author"], int(entry["log_id"])].add(entry)
        for key, messages in self._messages.items():
            session, proposal = self._sessions.get(key[0]), self._proposals.get(key)
            if session is not None and proposal is not None and not proposal["partial"]:
                log = payloads[proposal["author"], int(proposal["log_id"])]
                yield from replay(messages, modes_of(session), log, session["ended_by"])


def placed(row: Row) -> Row:
    """The message of a row of the log with the row's own columns."""
    message = row["message"]
    return {name: row[name] for name in PLACED} | {name: message[name] for name in FIELDS}
