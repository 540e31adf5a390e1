"""Verifies the entries in the packets of one capture, in memory, for `inspect`.

Signatures are checked as entries come, once for each distinct entry. Findings that follow from a signature (invalid
data from a safe sender, missing or wrong apologies) are emitted at once. Links, forks and verdicts come at the end,
when all entries are known. Until then the entries are held, about 1 KB each. The pipeline does the same in stages
(`verification.py` and `sent_metadata.py` of `pipelines/bamboo`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs.bamboo.correlation.entry_rows import ENTRIES, PLACE, follows_bad, sent_id, without_links
from wirehouse_codecs.bamboo.correlation.log_state import judge
from wirehouse_codecs.bamboo.log.rows import ENTRY
from wirehouse_codecs.bamboo.rules import ENTRY_RULE, RULE
from wirehouse_codecs.bamboo.wire.entries import SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.logs import inspection
from wirehouse_codecs.logs.inspection import Inspected
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.logs.tcp_inspection import Row, violation

#: Own columns of violations.
OWN: Final = ("channel", "proposal_id", "proposal_number")
_PLACE: Final = tuple(name for name, _ in PLACE)
#: Rows that become a batch: columns take far less than rows do.
_BATCH_ROWS: Final = 1_000
_UNSURE: Final = "unknown"
#: A side of a proposal.
_side: Final = itemgetter("connection_id", "direction", "proposal_number")


def takes(row: Row) -> bool:
    """Whether a row of the log is about entries."""
    if row["row_kind"] == MESSAGE:
        return row["message"]["follows_byte_start"] is not None
    return bool(row["row_kind"] == ENTRY)


class PacketEntries:
    """Takes the rows of the log record by record, in order of arrival."""

    def __init__(self) -> None:
        #: By hash: the rule that the signature of an entry breaks.
        self._checked: dict[bytes, str | None] = {}
        #: The hashes of those with a wrong signature.
        self._bad: set[bytes | None] = set()
        #: Entries and who sent them.
        self._seen: set[tuple[bytes, bytes, str]] = set()
        self._batches: list[pa.RecordBatch] = []
        self._waiting: list[Row] = []
        #: By log: which rows of all are its.
        self._logs: defaultdict[object, list[int]] = defaultdict(list)
        #: By side of a proposal: where metadata packets begin that nothing followed yet, and which rule they break.
        self._pieces: defaultdict[tuple[Any, ...], dict[int, str | None]] = defaultdict(dict)

    def take(self, rows: Sequence[Row]) -> Iterator[Inspected]:
        """Take all rows of a record, and emit the findings that signatures of its packets imply."""
        entries = [row for row in rows if row["row_kind"] == ENTRY]
        # Two entries of a cancel have the same place.
        for row in sorted(entries, key=lambda row: (row["byte_start"], row["entry"]["entry_hash"] or b"")):
            yield from self._enter(row)
        for row in rows:
            if row["row_kind"] == MESSAGE:
                yield from self._follow(row)
        for side in set(map(_side, entries)):
            # A later packet can follow the last one alone.
            pieces = self._pieces[side]
            self._pieces[side] = {at: pieces[at] for at in sorted(pieces)[-1:]}

    def _enter(self, row: Row) -> Iterator[Inspected]:
        sent = row["entry"]
        entry = self._verified(row)
        if sent["origin"] == "metadata":
            unsure = entry["data"] is None or sent["rule"] is not None or sent["assumed_links"]
            rule = entry["signature_rule"] or (_UNSURE if unsure else None)
            if rule is None or sent["greedy"]:
                self._pieces[_side(row)][row["byte_start"]] = rule
            elif sent["greedy"] is False and rule != _UNSURE:
                yield _finding("invalid_data_in_safe_mode", rule, row)
        seen = entry["entry_id"], row["connection_id"], row["direction"]
        if seen in self._seen and entry["signature_rule"] is None:
            return
        self._seen.add(seen)
        log = entry["author"], entry["log_id"]
        rows = self._logs[entry["entry_id"] if None in log else log]
        rows.append(len(self._batches) * _BATCH_ROWS + len(self._waiting))
        self._waiting.append(entry)
        if len(self._waiting) == _BATCH_ROWS:
            self._close()

    def _close(self) -> None:
        self._batches.append(pa.RecordBatch.from_pylist(self._waiting, schema=ENTRIES))
        self._waiting = []

    def _verified(self, row: Row) -> Row:
        """The entry of a row as ENTRIES, its signature checked."""
        sent = row["entry"]
        own = sent["rule"] if sent["rule"] != "link_unknown" else None
        entry: Row = {name: sent.get(name) for name in ENTRIES.names} | {name: row[name] for name in _PLACE}
        entry |= {"own_rule": own, "own_reason": sent["reason"] if own else None, "reason": None}
        entry["seen_from"] = [sent["sender"]]
        hashed, data = sent["entry_hash"], sent["data"]
        if own is None and data is not None:
            if hashed not in self._checked:
                signed = sent["author"], data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
                self._checked[hashed] = signature_rule(*signed)
            entry["signature_rule"] = self._checked[hashed]
            if entry["signature_rule"]:
                self._bad.add(hashed)
        uncertain = hashed is None or sent["assumed_links"] or follows_bad(sent, self._bad)
        entry["entry_id"] = hashed or sent_id(sent)
        return without_links(entry, sent_id(sent)) if uncertain and entry["signature_rule"] else entry

    def _follow(self, row: Row) -> Iterator[Inspected]:
        """What came right after a piece, and should have been an apology, or should not."""
        rule = self._pieces[_side(row)].pop(row["message"]["follows_byte_start"], _UNSURE)
        apologises = row["message"]["kind"] == "apology"
        if apologises and rule is None:
            yield _finding("apology_for_valid_data", "the entry's signature is right", row)
        elif not apologises and rule not in (None, _UNSURE):
            yield _finding("invalid_data_not_apologised", str(rule), row)

    def finish(self) -> Iterator[Inspected]:
        """No packet comes any more: what entries that are shown break, forks, and each distinct entry."""
        self._close()
        known = pa.Table.from_batches(self._batches)
        broken: list[Row] = []
        entries: list[Row] = []
        of_logs = (known.take(pa.array(numbers)).combine_chunks() for numbers in self._logs.values())
        for changes in judge(rows for of_log in of_logs for rows in of_log.to_batches()):
            broken += changes.broken.to_pylist()
            broken += [
                dict(fork.place) | {"reason": "fork", "message": fork.description, "origin": fork.origin}
                for fork in changes.new_forks
            ]
            entries += [row for row in changes.entries.to_pylist() if not row["superseded"]]
        for row in sorted(broken, key=_arrival):
            channel = "control" if row.get("origin") == "cancel" else "data"
            rule = ENTRY_RULE[row["reason"]]
            yield violation(rule.id, rule.severity.value, row["message"], row | {"channel": channel}, OWN)
        for row in sorted(entries, key=_arrival):
            del row["superseded"]
            yield inspection.ENTRY, row


_arrival: Final = itemgetter("arrived_at_ns", "record_number", "byte_start")


def _finding(name: str, message: str, row: Row) -> Inspected:
    rule = RULE[name]
    return violation(rule.id, rule.severity.value, message, row, OWN)
