"""The state of one log: its distinct entries, their verdicts, its forks, and up to where it is verified.

Input: the entries of a window, as rows of ENTRIES. Signatures and payloads were checked before, once for each distinct
entry. Output: the `Changes` of the window. `KnownLog` merges the new rows with the known ones, completes entries whose
links became known, and verifies links, end-of-log, forks and paths (`wire/entry_verification.py`). All of this works on
columns, not on single rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.correlation.entry_merge import MOST_SENDERS, complete_links, merge_repeats
from wirehouse_codecs.bamboo.correlation.entry_rows import (
    ENTRIES,
    NO_ENTRIES,
    OTHER_HASH,
    OTHER_SIZE,
    PLACE_NAMES,
    SHOWN,
    arrival_keys,
    is_readable,
    is_signed,
    is_true,
    lists_of,
    only,
    values_differ,
    with_columns,
    with_edits,
)
from wirehouse_codecs.bamboo.wire.entry_verification import WRONG_PAYLOAD, LogOf, Verdict, verify
from wirehouse_codecs.bamboo.wire.lipmaa import lipmaa

#: The rule for entries that go on from an end-of-log entry. It is one finding for a log, however many they are.
AFTER_END: Final = "after_end_of_log"
#: How many gaps of a log are listed one by one.
MOST_GAPS: Final = 1_000

_SHOWN: Final = pa.array(SHOWN)
#: Reasons that are no rule, or that have findings of their own: forks and payloads.
_REPORTED_ELSEWHERE: Final = pa.array([None, "link_unknown", "fork", OTHER_HASH], pa.string())


#: Proof, hashes and branches of a fork: PROVED fields of a ForkRow after its position.
Proved = tuple[Any, ...]
PROVED: Final = 9


class ForkRow(NamedTuple):
    """A proof that the log is forked: at which position, and by which two entries."""

    position: int
    proof: str
    first_hash: bytes
    second_hash: bytes
    #: For the branch of each entry: its length, the hash of its last entry, and who sent that one or the entry itself.
    first_length: int | None
    first_head: bytes | None
    first_served_by: Sequence[str] | None
    second_length: int | None
    second_head: bytes | None
    second_served_by: Sequence[str] | None
    first_data: bytes | None
    second_data: bytes | None
    #: Origin and place of the entry that came later.
    origin: str | None
    place: Mapping[str, Any]
    #: Whether the fork turned out to begin earlier, and has another row.
    superseded: bool = False

    @property
    def proved(self) -> Proved:
        """The fields that decide whether the fork is reported again."""
        return self[1 : 1 + PROVED]

    @property
    def description(self) -> str:
        """The proof in words."""
        return f"at entry {self.position}, proven by {self.proof}"


@dataclass(frozen=True, slots=True)
class LogRow:
    """The state of a log as a row. `missing` are the first gaps below `length`: numbers without a signed entry."""

    entries: int
    valid: int
    invalid: int
    unknown: int
    #: The highest sequence number of a signed entry, and of a valid entry before the earliest fork.
    length: int | None
    verified_up_to: int | None
    end_of_log: int | None
    forked_at: int | None
    missing: Sequence[tuple[int, int]]
    missing_entries: int


class Changes(NamedTuple):
    """What a window changes of a log: its new rows and findings."""

    #: Rows of ENTRIES that are new or differ.
    entries: pa.RecordBatch
    #: Rows of `entries` whose reason is reported now, with the place where the entry was presented. Also each row that
    #: came with the payload of another entry. That is no verdict on the entry itself.
    broken: pa.RecordBatch
    #: Forks that are new, have another proof, or are superseded.
    forks: list[ForkRow]
    new_forks: list[ForkRow]
    log: LogRow
    #: Author, log id and place of the log's first entry.
    first: dict[str, Any]
    #: Loose links of new entries: hashes that they link to and that no known entry of any log has.
    loose: pa.Array
    #: Loose links that turned out to lead to other logs, with these logs.
    led: dict[bytes, LogOf]
    #: A digest of all changes.
    digest: str


class Settled(NamedTuple):
    """A log whose entries from 1 to `length` are all known, one of each number, all valid, and none else."""

    length: int
    #: Author, log id and place of its first entry.
    first: dict[str, Any]


def needed(seqs: Iterable[int], length: int) -> set[int]:
    """The entries of a settled log that are enough to judge new entries with these sequence numbers.

    They are the entries with the same numbers, the entries that those link to, the last entry, and the paths from all
    of these to entry 1. With them, every verdict is the same as with all entries of the log.
    """
    wanted: set[int] = set()
    for at in (length, *(at for seq in seqs for at in (seq, seq - 1))):
        while at > 0 and at not in wanted:
            wanted.add(at)
            at = lipmaa(at)
    return {seq for seq in wanted if seq <= length}


class KnownLog:
    """The entries of one author and log id after the earlier windows: rows of ENTRIES, and proofs by position.

    For a `settled` log the `needed` entries are enough. The exception is a new entry that may change verdicts on old
    ones: one that ends the log before its length, or one with a payload of another size.
    """

    def __init__(
        self,
        known: pa.RecordBatch,
        forks: Mapping[int, Proved],
        settled: Settled | None = None,
        elsewhere: Mapping[bytes, LogOf] | None = None,
    ) -> None:
        #: Entries of other logs, by hash, that links of this one lead to.
        self._elsewhere = dict(elsewhere or {})
        self._rows = known
        self._forks = dict(forks)
        self._settled = settled
        #: If the log is settled: the hashes of the entries that were loaded.
        self._chain = frozenset() if settled is None else frozenset(known.column("entry_hash").to_pylist())
        length = 0 if settled is None else settled.length
        #: How many entries were not loaded. All of them are valid.
        self._others = max(length - int(np.count_nonzero(~is_true(known.column("superseded")))), 0)

    def take(self, new: pa.RecordBatch, elsewhere: Mapping[bytes, LogOf] | None = None) -> Changes:
        """Take the entries of a window in order of arrival, and entries of other logs that links lead to."""
        self._elsewhere |= elsewhere or {}
        known = self._rows.num_rows
        new = new.select(ENTRIES.names)
        rows, touched = merge_repeats(pa.concat_batches([self._rows, new]) if known else new)
        rows, completed = complete_links(rows)
        judged, forks = _judged(rows, self._elsewhere)
        differs = np.zeros(judged.num_rows, np.bool_)
        for name in ("verdict", "reason", "message"):
            differs |= values_differ(rows.column(name), judged.column(name))
        broken = values_differ(rows.column("reason"), judged.column("reason"))
        # An entry that came as metadata may be presented later.
        is_shown, was_shown = (np.asarray(pc.is_in(of.column("origin"), _SHOWN)) for of in (judged, self._rows))
        before = only(self._rows, was_shown)
        broken[:known] |= is_shown[:known] & ~was_shown
        broken &= is_shown
        broken &= ~np.asarray(pc.is_in(judged.column("reason"), _REPORTED_ELSEWHERE))
        broken &= ~is_true(judged.column("superseded"))
        # If an entry of a cancel breaks a rule by itself, the cancel has that finding.
        of_cancel = pc.equal(judged.column("origin"), "cancel").fill_null(False)
        broken &= ~np.asarray(pc.and_(of_cancel, judged.column("own_rule").is_valid()))
        changed = differs | (np.arange(judged.num_rows) >= known)
        changed[list(touched | completed)] = True
        self._rows = judged
        reported = self._reported_forks(judged, forks)
        new_forks = [row for row, is_new in reported if is_new]
        entries = only(judged, changed)
        settled = self._settled
        length = 0 if settled is None else settled.length
        log = _log_row(judged, min(self._forks, default=None), length, self._others)
        rows_of_forks = [row for row, _ in reported]
        loose = _loose(judged.slice(known), judged)
        led = {named for named in loose.to_pylist() if named in self._elsewhere} if self._elsewhere else set()
        if elsewhere:
            led |= elsewhere.keys() & set(_loose(judged.slice(0, known), judged).to_pylist())
        shown, wrong = _as_shown(only(judged, broken), new), _wrong_payloads(new)
        shown = _one_end(shown, is_reported=bool(_goes_on(before).any()))
        return Changes(
            entries,
            pa.concat_batches([shown, wrong]) if wrong.num_rows else shown,
            rows_of_forks,
            new_forks,
            log,
            _first(judged) if settled is None else settled.first,
            loose.filter(pc.invert(pc.is_in(loose, pa.array(led, loose.type)))),
            {named: self._elsewhere[named] for named in sorted(led)},
            _digest(entries, rows_of_forks),
        )

    def _reported_forks(
        self, rows: pa.RecordBatch, forks: Sequence[tuple[int, str, int, int]]
    ) -> list[tuple[ForkRow, bool]]:
        reported = []
        # A reported fork may turn out to begin earlier. It is not reported a second time.
        moved = sorted(self._forks.keys() - {fork[0] for fork in forks}, reverse=True)
        heads = self._heads(rows) if forks else {}
        senders = dict(zip(*lists_of(rows, "entry_hash", "seen_from"), strict=True)) if forks else {}
        for position, proof, first, second in forks:
            pair = [
                {name: rows.column(name)[i].as_py() for name in ("entry_hash", "data", "origin", *PLACE_NAMES)}
                for i in (first, second)
            ]
            hashes = [one["entry_hash"] for one in pair]
            branches = [(*heads[one], _either(senders[one], senders[heads[one][1]])) for one in hashes]
            later = max(pair, key=lambda one: (one["arrived_at_ns"], one["record_number"] or 0, one["byte_start"] or 0))
            place = {name: later[name] for name in PLACE_NAMES}
            data = [one["data"] for one in pair]
            fields = (position, proof, *hashes, *branches[0], *branches[1], *data, later["origin"], place, False)
            row = ForkRow._make(fields)
            if self._forks.get(position) == row.proved:
                continue
            reported.append((row, position not in self._forks and not (moved and moved[0] > position)))
            self._forks[position] = row.proved
        if moved:
            last = np.lexsort(arrival_keys(rows))[-1:]
            place = rows.select(PLACE_NAMES).take(pa.array(last)).to_pylist()[0]
            reported += [(self._superseded(position, place), False) for position in moved]
        return reported

    def _superseded(self, position: int, place: Mapping[str, Any]) -> ForkRow:
        """The row of a fork at `position` which, as an entry at `place` shows, begins earlier."""
        return ForkRow._make((position, *self._forks.pop(position), None, None, None, place, True))

    def _heads(self, rows: pa.RecordBatch) -> dict[bytes, tuple[int, bytes]]:
        """By the hash of a signed entry: number and hash of the furthest entry whose links lead back to it."""
        right = only(rows, np.asarray(is_signed(rows)) & ~is_true(rows.column("superseded")))
        listed = sorted(zip(*lists_of(right, "seq", "entry_hash", "backlink", "lipmaalink"), strict=True), reverse=True)
        heads = {hashed: (int(seq), hashed) for seq, hashed, _, _ in listed}
        for _, hashed, backlink, lipmaalink in listed:
            before = backlink if backlink in heads else lipmaalink
            if before in heads:
                heads[before] = max(heads[before], heads[hashed])
        furthest = (0, b"")
        for _, hashed, _, _ in listed:
            # The entries between the loaded ones exist, too: each leads back to all that come before it.
            if hashed in self._chain:
                furthest = heads[hashed] = max(furthest, heads[hashed])
        return heads


def _either(first: Sequence[str] | None, second: Sequence[str] | None) -> list[str]:
    return sorted({*(first or ()), *(second or ())})[:MOST_SENDERS]


def judge(logs: Iterable[pa.RecordBatch]) -> list[Changes]:
    """The `Changes` of each log, if its rows of ENTRIES are all there is of it."""
    taken = [(rows, KnownLog(NO_ENTRIES, {}).take(rows)) for rows in logs]
    elsewhere: dict[bytes, LogOf] = {}
    for _, changes in taken:
        entries = only(changes.entries, is_readable(changes.entries))
        columns = [entries.column(name).to_pylist() for name in ("entry_hash", "author", "log_id")]
        elsewhere |= {hashed: (author, int(log_id)) for hashed, author, log_id in zip(*columns, strict=True)}
    leads = ({named: elsewhere[named] for named in one.loose.to_pylist() if named in elsewhere} for _, one in taken)
    return [
        KnownLog(NO_ENTRIES, {}).take(rows, led) if led else changes
        for (rows, changes), led in zip(taken, leads, strict=True)
    ]


def _as_shown(rows: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` with the first places where `new` rows present the same entries. Metadata may have come earlier."""
    if not rows.num_rows:
        return rows
    shown = new.filter(pc.is_in(new.column("origin"), _SHOWN))
    # One of several payloads that were presented with an entry may have another size.
    odd = shown.filter(pc.equal(shown.column("payload_rule"), OTHER_SIZE).fill_null(False))
    listed = (place for of in (shown, odd) for place in reversed(of.select(["entry_id", *PLACE_NAMES]).to_pylist()))
    places = {place.pop("entry_id"): place for place in listed}
    ids = rows.column("entry_id").to_pylist()
    return with_edits(rows, {i: places[one] for i, one in enumerate(ids) if one in places})


def _goes_on(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Which entries go on from an end-of-log entry."""
    return is_true(pc.equal(rows.column("reason"), AFTER_END))


def _one_end(rows: pa.RecordBatch, *, is_reported: bool) -> pa.RecordBatch:
    """`rows` with one at most that goes on from an end-of-log entry: the first one of the log is the finding."""
    goes_on = np.flatnonzero(_goes_on(rows))
    if not len(goes_on):
        return rows
    first = goes_on[np.lexsort([column[goes_on] for column in arrival_keys(rows)])][: 0 if is_reported else 1]
    kept = ~_goes_on(rows)
    kept[first] = True
    return only(rows, kept)


def _wrong_payloads(new: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that came with the payload of another entry, with that as their reason."""
    if new.column("payload_rule").null_count == new.num_rows:
        return new.slice(0, 0)
    wrong = pc.equal(new.column("payload_rule"), OTHER_HASH).fill_null(False)
    rows = new.filter(pc.and_(wrong, new.column("own_rule").is_null()))
    values = {"verdict": Verdict.INVALID.value, "reason": OTHER_HASH, "message": WRONG_PAYLOAD}
    return with_columns(rows, {name: pa.array([value] * rows.num_rows, pa.string()) for name, value in values.items()})


def _loose(rows: pa.RecordBatch, known: pa.RecordBatch) -> pa.Array:
    """The hashes that `rows` link to and no `known` entry has."""
    rows = only(rows, is_readable(rows))
    named = pa.concat_arrays([rows.column("lipmaalink"), rows.column("backlink")]).drop_null()
    there = pc.is_in(named, known.column("entry_hash"), skip_nulls=True)
    return named.filter(pc.invert(there)).unique()


def _judged(
    rows: pa.RecordBatch, elsewhere: Mapping[bytes, LogOf]
) -> tuple[pa.RecordBatch, list[tuple[int, str, int, int]]]:
    """`rows` with their verdicts, and the forks: position, proof, and the indexes of two entries."""
    readable = is_readable(rows)
    places = np.flatnonzero(readable)
    # The branch of a fork whose entry came first is kept, so the order of arrival counts. Completed entries are at the
    # end.
    places = places[np.lexsort([column[places] for column in arrival_keys(rows)])]
    in_order = bool((places == np.arange(rows.num_rows)).all()) if len(places) == rows.num_rows else False
    judged = rows if in_order else rows.take(pa.array(places))
    verified = verify(
        judged.column("data"),
        hashes=judged.column("entry_hash"),
        signature_rules=judged.column("signature_rule"),
        payload_rules=judged.column("payload_rule"),
        elsewhere=elsewhere,
    )
    forks = [(one.position, one.proof.value, int(places[one.first]), int(places[one.second])) for one in verified.forks]
    names = {"verdict": "verdict", "reason": "rule", "message": "reason"}
    columns = {name: verified.entries.column(of) for name, of in names.items()}
    if in_order:
        return with_columns(rows, columns), forks
    at = np.full(rows.num_rows, -1)
    at[places] = np.arange(len(places))
    whose = pa.array(at, mask=at < 0)
    own = rows.column("own_rule").is_valid()
    otherwise = {
        "verdict": pc.if_else(own, Verdict.INVALID.value, Verdict.UNKNOWN.value),
        "reason": pc.coalesce(rows.column("own_rule"), "link_unknown"),
        "message": pc.coalesce(rows.column("own_reason"), "the hash of a link isn't known"),
    }
    here = pa.array(readable)
    return with_columns(rows, {n: pc.if_else(here, columns[n].take(whose), otherwise[n]) for n in columns}), forks


#: The columns that the row of a log is computed from.
_STANDING: Final = ("seq", "end_of_log", "data", "own_rule", "signature_rule", "verdict")


def _log_row(rows: pa.RecordBatch, forked_at: int | None, settled: int, others: int) -> LogRow:
    """The state of the log. It has all entries up to `settled`; `others` of them, all valid, aren't in `rows`."""
    rows = only(rows.select(_STANDING), ~is_true(rows.column("superseded")))
    verdicts = rows.column("verdict")
    counts = {one["values"]: one["counts"] for one in pc.value_counts(verdicts).to_pylist()}
    signed = np.asarray(is_signed(rows))
    seqs = np.asarray(rows.column("seq").cast(pa.uint64()).fill_null(0))
    valid = np.asarray(pc.equal(verdicts, Verdict.VALID.value).fill_null(False))
    ends = seqs[signed & is_true(rows.column("end_of_log"))]
    above = np.unique(seqs[signed & (seqs > settled)])
    before = np.concatenate([np.array([settled], np.uint64), above])[:-1]
    gaps = np.flatnonzero(above - before > 1)
    length = int(above[-1]) if len(above) else settled
    sound = seqs[valid] if forked_at is None else seqs[valid & (seqs < forked_at)]
    verified = max(int(sound.max()) if len(sound) else 0, min(settled, settled if forked_at is None else forked_at - 1))
    return LogRow(
        entries=rows.num_rows + others,
        valid=counts.get(Verdict.VALID.value, 0) + others,
        invalid=counts.get(Verdict.INVALID.value, 0),
        unknown=counts.get(Verdict.UNKNOWN.value, 0),
        length=length or None,
        verified_up_to=verified or None,
        end_of_log=int(ends.min()) if len(ends) else None,
        forked_at=forked_at,
        missing=[(int(before[i]) + 1, int(above[i]) - 1) for i in gaps[:MOST_GAPS].tolist()],
        missing_entries=length - settled - len(above),
    )


def _first(rows: pa.RecordBatch) -> dict[str, Any]:
    """Author, log id and place of the entry that arrived first. Empty if there are no rows."""
    places = rows.select(["author", "log_id", *PLACE_NAMES])
    listed: list[dict[str, Any]] = places.take(pa.array(np.lexsort(arrival_keys(rows))[:1])).to_pylist()
    return listed[0] if listed else {}


def _digest(entries: pa.RecordBatch, forks: Sequence[ForkRow]) -> str:
    hashed: Any = hashlib.blake2b(b"".join(entries.column("entry_id").to_pylist()), digest_size=16)
    columns = [entries.column(name) for name in ("verdict", "reason", "origin", "payload_rule")]
    columns += [entries.column("superseded").cast(pa.string()), pc.binary_join(entries.column("seen_from"), ",")]
    for column in columns:
        # Few distinct texts occur in all rows, so they are hashed once, and the rows as numbers of texts.
        texts = column.dictionary_encode()
        hashed.update(repr(texts.dictionary.to_pylist()).encode() + np.asarray(texts.indices.fill_null(-1)).tobytes())
    hashed.update(repr([row[: 1 + PROVED] for row in forks]).encode())
    return str(hashed.hexdigest())
