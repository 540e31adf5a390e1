"""What is known of one log: its distinct entries, their verdicts, its forks and how far it is verified.

A `KnownLog` takes entries window by window and tells what changed. Signatures and payloads were checked before, once
for each distinct entry; here are links, end-of-log, forks and paths (verify.py), and entries with a link that was not
known are put together as soon as it is (rebuilding.py). Entries stand as columns from end to end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.log.schema import ENTRY_TYPE
from wirehouse_codecs.bamboo.session.entry_rebuild import Rebuilt, complete
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entry_verification import WRONG_PAYLOAD, LogOf, Verdict, verify
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets, lipmaa

#: Of those who sent an entry so many are remembered.
MOST_SENDERS: Final = 64
#: Gaps of a log that are told one by one.
MOST_GAPS: Final = 1_000
#: Hashes of one sequence number by which an entry with an unknown link is tried.
MOST_TRIED: Final = 4

PLACE: Final = (
    ("connection_id", pa.binary()),
    ("direction", pa.string()),
    ("byte_start", pa.int64()),
    ("byte_end", pa.int64()),
    ("capture_id", pa.binary()),
    ("record_number", pa.int64()),
    ("arrived_at_ns", pa.int64()),
)
#: A distinct entry with its first place. `reason` names the rule that says why it isn't valid. `own_rule` is what it
#: breaks by itself, `signature_rule` what its signature does, `payload_rule` what a payload at hand does. Superseded:
#: another row tells of it, with the links.
ENTRIES: Final = pa.schema(
    [
        ("entry_id", pa.binary()),
        # As silver.bamboo has it.
        *list(ENTRY_TYPE)[: ENTRY_TYPE.get_field_index("assumed_links")],
        ("own_rule", pa.string()),
        ("own_reason", pa.string()),
        ("signature_rule", pa.string()),
        ("payload_rule", pa.string()),
        ("seen_from", pa.list_(pa.string())),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("superseded", pa.bool_()),
        *PLACE,
    ]
)
NO_ENTRIES: Final = pa.RecordBatch.from_pylist([], schema=ENTRIES)
_PLACE: Final = tuple(name for name, _ in PLACE)
#: Entries of files and of cancels are shown for themselves: what they break is a violation.
SHOWN: Final = ("cancel", "file")
_SHOWN: Final = pa.array(SHOWN)
_OTHER_SIZE: Final = "payload_size_mismatch"
_OTHER_HASH: Final = "payload_hash_mismatch"
#: Reasons that are no rule, or told as what they are: forks, and payloads.
_TOLD_ELSEWHERE: Final = pa.array([None, "link_unknown", "fork", _OTHER_HASH], pa.string())


#: Of a fork: its proof, hashes and branches, as many fields of a ForkRow after its position.
Proved = tuple[Any, ...]
PROVED: Final = 9


class ForkRow(NamedTuple):
    """A proof that the log is forked: at which position, and by which two entries."""

    position: int
    proof: str
    first_hash: bytes
    second_hash: bytes
    #: Of the branch of each: how long it is, the hash of its last entry, and who sent the entry or the last one.
    first_length: int | None
    first_head: bytes | None
    first_served_by: Sequence[str] | None
    second_length: int | None
    second_head: bytes | None
    second_served_by: Sequence[str] | None
    first_data: bytes | None
    second_data: bytes | None
    #: Of the one that came later.
    origin: str | None
    place: Mapping[str, Any]
    #: The fork is known to begin earlier: another row tells of it.
    superseded: bool = False

    @property
    def proved(self) -> Proved:
        """What is compared with what was reported before."""
        return self[1 : 1 + PROVED]

    @property
    def said(self) -> str:
        """The proof in words."""
        return f"at entry {self.position}, proven by {self.proof}"


@dataclass(frozen=True, slots=True)
class LogRow:
    """How a log stands. `missing` are the first gaps below `length`, of sequence numbers without a signed entry."""

    entries: int
    valid: int
    invalid: int
    unknown: int
    #: Highest sequence numbers of a signed entry, and of a valid one before the earliest fork.
    length: int | None
    verified_up_to: int | None
    end_of_log: int | None
    forked_at: int | None
    missing: Sequence[tuple[int, int]]
    missing_entries: int


class Changes(NamedTuple):
    """What a window changed."""

    #: Rows of ENTRIES that are new or differ.
    entries: pa.RecordBatch
    #: Rows of `entries` whose reason is told for the first time, with the place at which they are shown; and each that
    #: came with the payload of another entry, which says nothing of its own.
    broken: pa.RecordBatch
    #: Positions that are new, have another proof, or are no fork of their own any more.
    forks: list[ForkRow]
    new_forks: list[ForkRow]
    log: LogRow
    #: Author, log id and place of the log's first entry.
    first: dict[str, Any]
    #: Loose links of new entries: the hashes that they name, and that no entry has which is known anywhere.
    loose: pa.Array
    #: Loose links that were found to lead to entries of other logs, with these.
    led: dict[bytes, LogOf]
    #: Of all that changed.
    digest: str


def follows_bad(entry: Mapping[str, Any], bad: Container[bytes | None]) -> bool:
    """A link that was not sent is that of an entry in `bad`: what its sender means by it isn't known."""
    omitted = entry["omitted"] or ()
    return any(name in omitted and entry[name] in bad for name in ("lipmaalink", "backlink"))


def without_links(row: Mapping[str, Any], sent_id: bytes) -> dict[str, Any]:
    """An entry without the links that were not sent: they were taken for other ones, so its signature isn't right."""
    targets = link_targets(int(row["seq"]))
    sent = set() if "backlink" in row["omitted"] else {targets[-1]}
    unknown = {"entry_id": sent_id, "unknown_links": [seq for seq in targets if seq not in sent]}
    lost = dict.fromkeys(("data", "entry_hash", "signature_rule", "lipmaalink"))
    return {**row, **lost, **unknown, "backlink": row["backlink"] if sent else None}


def sent_id(entry: Mapping[str, Any]) -> bytes:
    """What names an entry apart from links that were not sent: a SHA-256 of what was; fields as of ENTRY_TYPE."""
    backlink = None if "backlink" in (entry["omitted"] or ()) else entry["backlink"]
    named = (entry["author"], entry["payload_hash"], entry["signature"], backlink)
    counted = (entry["log_id"], entry["seq"], entry["end_of_log"], entry["payload_size"])
    fields = [None if value is None else value.hex().upper() for value in named]
    fields += [None if value is None else str(value).lower() for value in counted]
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).digest()


class Settled(NamedTuple):
    """A log whose entries from 1 to `length` are all known, one of each number, all valid, and none else."""

    length: int
    #: Author, log id and place of its first entry.
    first: dict[str, Any]


def needed(seqs: Iterable[int], length: int) -> set[int]:
    """Entries of a settled log that new ones with these sequence numbers are held against.

    They are those of the same numbers, those linked to, the last one, and of all these the paths to entry 1: then the
    new ones, and these, are judged as if all entries were there.
    """
    found: set[int] = set()
    for at in (length, *(at for seq in seqs for at in (seq, seq - 1))):
        while at > 0 and at not in found:
            found.add(at)
            at = lipmaa(at)
    return {seq for seq in found if seq <= length}


class KnownLog:
    """Entries of one author and log id, as the windows before left them: rows of ENTRIES, and proofs by position.

    Of a `settled` log those that are `needed` are enough, unless a new entry may change the verdict on old ones: one
    that ends the log before its length, or with a payload of another size.
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
        #: If it is settled: its entries that are at hand, by their hashes.
        self._chain = frozenset() if settled is None else frozenset(known.column("entry_hash").to_pylist())
        length = 0 if settled is None else settled.length
        #: Entries that aren't at hand, all valid.
        self._others = max(length - int(np.count_nonzero(~_true(known.column("superseded")))), 0)

    def take(self, new: pa.RecordBatch, elsewhere: Mapping[bytes, LogOf] | None = None) -> Changes:
        """Entries of a window, in the order of arrival, and entries of other logs that links of any window lead to."""
        self._elsewhere |= elsewhere or {}
        known = self._rows.num_rows
        new = new.select(ENTRIES.names)
        rows, touched = _merged(pa.concat_batches([self._rows, new]) if known else new)
        rows, completed = _completed(rows)
        judged, forks = _judged(rows, self._elsewhere)
        differs = np.zeros(judged.num_rows, np.bool_)
        for name in ("verdict", "reason", "message"):
            differs |= _differs(rows.column(name), judged.column(name))
        broken = _differs(rows.column("reason"), judged.column("reason"))
        # What was sent as metadata may be shown later.
        is_shown, was_shown = (np.asarray(pc.is_in(of.column("origin"), _SHOWN)) for of in (judged, self._rows))
        broken[:known] |= is_shown[:known] & ~was_shown
        broken &= is_shown
        broken &= ~np.asarray(pc.is_in(judged.column("reason"), _TOLD_ELSEWHERE))
        broken &= ~_true(judged.column("superseded"))
        # What a cancel shows that breaks a rule by itself is told with the cancel.
        of_cancel = pc.equal(judged.column("origin"), "cancel").fill_null(False)
        broken &= ~np.asarray(pc.and_(of_cancel, judged.column("own_rule").is_valid()))
        changed = differs | (np.arange(judged.num_rows) >= known)
        changed[list(touched | completed)] = True
        self._rows = judged
        told = self._told_forks(judged, forks)
        new_forks = [row for row, is_new in told if is_new]
        entries = only(judged, changed)
        settled = self._settled
        length = 0 if settled is None else settled.length
        log = _log_row(judged, min(self._forks, default=None), length, self._others)
        rows_of_forks = [row for row, _ in told]
        loose = _loose(judged.slice(known), judged)
        led = {named for named in loose.to_pylist() if named in self._elsewhere} if self._elsewhere else set()
        if elsewhere:
            led |= elsewhere.keys() & set(_loose(judged.slice(0, known), judged).to_pylist())
        shown, wrong = _as_shown(only(judged, broken), new), _wrong_payloads(new)
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

    def _told_forks(
        self, rows: pa.RecordBatch, forks: Sequence[tuple[int, str, int, int]]
    ) -> list[tuple[ForkRow, bool]]:
        told = []
        # A fork that was told may turn out to begin earlier: it is told no second time.
        moved = sorted(self._forks.keys() - {fork[0] for fork in forks}, reverse=True)
        heads = self._heads(rows) if forks else {}
        senders = dict(zip(*_listed(rows, "entry_hash", "seen_from"), strict=True)) if forks else {}
        for position, proof, first, second in forks:
            pair = [
                {name: rows.column(name)[i].as_py() for name in ("entry_hash", "data", "origin", *_PLACE)}
                for i in (first, second)
            ]
            hashes = [one["entry_hash"] for one in pair]
            branches = [(*heads[one], _either(senders[one], senders[heads[one][1]])) for one in hashes]
            later = max(pair, key=lambda one: (one["arrived_at_ns"], one["record_number"] or 0, one["byte_start"] or 0))
            place = {name: later[name] for name in _PLACE}
            data = [one["data"] for one in pair]
            fields = (position, proof, *hashes, *branches[0], *branches[1], *data, later["origin"], place, False)
            row = ForkRow._make(fields)
            if self._forks.get(position) == row.proved:
                continue
            told.append((row, position not in self._forks and not (moved and moved[0] > position)))
            self._forks[position] = row.proved
        if moved:
            last = np.lexsort(_arrivals(rows))[-1:]
            place = rows.select(_PLACE).take(pa.array(last)).to_pylist()[0]
            told += [(self._superseded(position, place), False) for position in moved]
        return told

    def _superseded(self, position: int, place: Mapping[str, Any]) -> ForkRow:
        """A fork that was told at `position`, and that by an entry at `place` is known to begin earlier."""
        return ForkRow._make((position, *self._forks.pop(position), None, None, None, place, True))

    def _heads(self, rows: pa.RecordBatch) -> dict[bytes, tuple[int, bytes]]:
        """By the hash of a signed entry: number and hash of the furthest entry whose links lead back to it."""
        signed = only(rows, np.asarray(_signed(rows)) & ~_true(rows.column("superseded")))
        listed = sorted(zip(*_listed(signed, "seq", "entry_hash", "backlink", "lipmaalink"), strict=True), reverse=True)
        heads = {hashed: (int(seq), hashed) for seq, hashed, _, _ in listed}
        for _, hashed, backlink, lipmaalink in listed:
            before = backlink if backlink in heads else lipmaalink
            if before in heads:
                heads[before] = max(heads[before], heads[hashed])
        if self._chain:
            # Entries between those that are at hand are there, too.
            last = max((heads[hashed] for hashed in self._chain if hashed in heads), default=(0, b""))
            heads |= {hashed: max(heads[hashed], last) for hashed in self._chain if hashed in heads}
        return heads


def _listed(rows: pa.RecordBatch, *names: str) -> list[list[Any]]:
    return [rows.column(name).to_pylist() for name in names]


def _either(first: Sequence[str] | None, second: Sequence[str] | None) -> list[str]:
    return sorted({*(first or ()), *(second or ())})[:MOST_SENDERS]


def judge(logs: Iterable[pa.RecordBatch]) -> list[Changes]:
    """What is known of some logs, rows of ENTRIES each, when all entries are at hand."""
    taken = [(rows, KnownLog(NO_ENTRIES, {}).take(rows)) for rows in logs]
    elsewhere: dict[bytes, LogOf] = {}
    for _, changes in taken:
        entries = only(changes.entries, _readable(changes.entries))
        columns = [entries.column(name).to_pylist() for name in ("entry_hash", "author", "log_id")]
        elsewhere |= {hashed: (author, int(log_id)) for hashed, author, log_id in zip(*columns, strict=True)}
    leads = ({named: elsewhere[named] for named in one.loose.to_pylist() if named in elsewhere} for _, one in taken)
    return [
        KnownLog(NO_ENTRIES, {}).take(rows, led) if led else changes
        for (rows, changes), led in zip(taken, leads, strict=True)
    ]


def only(rows: pa.RecordBatch, mask: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """The rows of which `mask` is true; all or none of them are no copy."""
    if mask.all():
        return rows
    return rows.filter(pa.array(mask)) if mask.any() else rows.slice(0, 0)


def _as_shown(rows: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` with the first places at which `new` ones show the same entries: metadata may have come before."""
    if not rows.num_rows:
        return rows
    shown = new.filter(pc.is_in(new.column("origin"), _SHOWN))
    # Of several payloads one that is shown with it may be of another size.
    odd = shown.filter(pc.equal(shown.column("payload_rule"), _OTHER_SIZE).fill_null(False))
    listed = (place for of in (shown, odd) for place in reversed(of.select(["entry_id", *_PLACE]).to_pylist()))
    places = {place.pop("entry_id"): place for place in listed}
    ids = rows.column("entry_id").to_pylist()
    return _edited(rows, {i: places[one] for i, one in enumerate(ids) if one in places})


def _wrong_payloads(new: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that came with the payload of another entry, as broken by that."""
    if new.column("payload_rule").null_count == new.num_rows:
        return new.slice(0, 0)
    wrong = pc.equal(new.column("payload_rule"), _OTHER_HASH).fill_null(False)
    rows = new.filter(pc.and_(wrong, new.column("own_rule").is_null()))
    told = {"verdict": Verdict.INVALID.value, "reason": _OTHER_HASH, "message": WRONG_PAYLOAD}
    return with_columns(rows, {name: pa.array([value] * rows.num_rows, pa.string()) for name, value in told.items()})


def _true(column: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(column.fill_null(False))


def _differs(before: pa.Array, after: pa.Array) -> np.ndarray[Any, Any]:
    same = np.asarray(pc.equal(before, after).fill_null(False))
    differs: np.ndarray[Any, Any] = ~(same | (np.asarray(before.is_null()) & np.asarray(after.is_null())))
    return differs


def with_columns(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """`rows` with other values in these columns."""
    arrays = [columns.get(field.name, rows.column(field.name)) for field in rows.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _edited(rows: pa.RecordBatch, edits: Mapping[int, Mapping[str, Any]]) -> pa.RecordBatch:
    """`rows` with other values in few places."""
    names = {name for fields in edits.values() for name in fields}
    columns = {}
    for name in names:
        values = rows.column(name).to_pylist()
        for i, fields in edits.items():
            if name in fields:
                values[i] = fields[name]
        columns[name] = pa.array(values, ENTRIES.field(name).type)
    return with_columns(rows, columns)


def _merged(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, set[int]]:
    """One row for each entry, the first, and which of them tell more than they did."""
    ids = rows.column("entry_id").dictionary_encode()
    if len(ids.dictionary) == len(ids):
        return rows, set()
    _, first, numbers = np.unique(np.asarray(ids.indices), return_index=True, return_inverse=True)
    of = first[numbers]
    again = np.flatnonzero(of != np.arange(len(ids)))
    names = ("origin", "payload_rule", "seen_from")
    columns = [rows.column(name).to_pylist() for name in names]
    edits: dict[int, dict[str, Any]] = {}
    for i in again.tolist():
        target = int(of[i])
        before = edits.get(target) or {name: column[target] for name, column in zip(names, columns, strict=True)}
        after = _joined(before, {name: column[i] for name, column in zip(names, columns, strict=True)})
        if after != before:
            edits[target] = after
    kept = np.flatnonzero(of == np.arange(len(ids)))
    merged = _edited(rows, edits).take(pa.array(kept)) if edits else rows.take(pa.array(kept))
    return merged, set(np.searchsorted(kept, list(edits)).tolist())


def _joined(first: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """What two rows of one entry tell together."""
    senders = sorted({*(first["seen_from"] or ()), *(again["seen_from"] or ())})
    rules = {first["payload_rule"], again["payload_rule"]}
    return {
        "origin": first["origin"] if first["origin"] in SHOWN else again["origin"],
        # A payload of another size says something of the log; one of another hash nothing, once there is another.
        "payload_rule": _OTHER_SIZE if _OTHER_SIZE in rules else None if None in rules else first["payload_rule"],
        "seen_from": senders if len(senders) <= MOST_SENDERS else first["seen_from"],
    }


def _completed(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, set[int]]:
    """`rows` with those entries put together whose unknown links are known now, and which rows that changed."""
    open_ = np.asarray(rows.column("data").is_null()) & ~_true(rows.column("superseded"))
    open_ &= np.asarray(rows.column("own_rule").is_null())
    if not open_.any():
        return rows, set()
    partial = dict(zip(np.flatnonzero(open_).tolist(), only(rows, open_).to_pylist(), strict=True))
    hashes = _hashes(rows, {int(seq) for row in partial.values() for seq in row["unknown_links"]})
    order = sorted(partial, key=lambda i: int(partial[i]["seq"]))
    places = {one: i for i, one in enumerate(rows.column("entry_id").to_pylist())}
    edits: dict[int, dict[str, Any]] = {}
    added: dict[bytes, dict[str, Any]] = {}
    for i, entry in zip(order, complete([_rebuilt(partial[i]) for i in order], hashes), strict=True):
        if entry.data is None or entry.entry_hash is None:
            continue
        edits[i] = {"superseded": True}
        full = _full(partial[i], entry)
        whole = places.get(entry.entry_hash)
        if whole is None:
            known = added.get(entry.entry_hash)
            added[entry.entry_hash] = full if known is None else known | _joined(known, full)
            continue
        before = edits.get(whole) or rows.slice(whole, 1).to_pylist()[0]
        earlier = full if full["arrived_at_ns"] < before["arrived_at_ns"] else before
        edits[whole] = _joined(before, full) | {name: earlier[name] for name in _PLACE}
    rows = _edited(rows, edits) if edits else rows
    if added:
        more = pa.RecordBatch.from_pylist(list(added.values()), schema=ENTRIES)
        rows = pa.concat_batches([rows, more])
    return rows, {*edits, *range(rows.num_rows - len(added), rows.num_rows)}


def _hashes(rows: pa.RecordBatch, wanted: set[int]) -> dict[int, list[bytes]]:
    """Hashes of signed entries by sequence number."""
    seqs = rows.column("seq").cast(pa.uint64())
    there = pc.and_(pc.is_in(seqs, pa.array(sorted(wanted), pa.uint64())), _signed(rows))
    found: dict[int, list[bytes]] = {}
    for seq, hashed in zip(
        *(column.filter(there).to_pylist() for column in (seqs, rows.column("entry_hash"))), strict=True
    ):
        if len(listed := found.setdefault(seq, [])) < MOST_TRIED:
            listed.append(hashed)
    return found


def _signed(rows: pa.RecordBatch) -> pa.Array:
    """Entries that are rightly encoded and signed."""
    right = [rows.column(name).is_null() for name in ("own_rule", "signature_rule")]
    return pc.and_(pc.and_(*right), rows.column("data").is_valid())


def _rebuilt(row: Mapping[str, Any]) -> Rebuilt:
    lipmaalink, backlink = (
        None if row[name] is None else yamf.encode(row[name]) for name in ("lipmaalink", "backlink")
    )
    return Rebuilt(
        row["author"],
        int(row["log_id"]),
        int(row["seq"]),
        row["end_of_log"],
        lipmaalink,
        backlink,
        int(row["payload_size"]),
        yamf.encode(row["payload_hash"]),
        row["signature"],
        None,
        None,
        tuple(row["omitted"]),
        tuple(map(int, row["unknown_links"])),
    )


def _full(partial: Mapping[str, Any], entry: Rebuilt) -> dict[str, Any]:
    links = {
        name: None if link is None else link[len(yamf.PREFIX) :]
        for name, link in (("lipmaalink", entry.lipmaalink), ("backlink", entry.backlink))
    }
    hashed: dict[str, Any] = {
        "entry_id": entry.entry_hash,
        "entry_hash": entry.entry_hash,
        "data": entry.data,
        "unknown_links": [],
    }
    return {**partial, **links, **hashed, "verdict": None, "reason": None, "message": None}


def _readable(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Entries that are rightly encoded, with all their links."""
    right = np.asarray(rows.column("data").is_valid()) & np.asarray(rows.column("own_rule").is_null())
    readable: np.ndarray[Any, Any] = right & ~_true(rows.column("superseded"))
    return readable


def _loose(rows: pa.RecordBatch, known: pa.RecordBatch) -> pa.Array:
    """The hashes that links of `rows` name and no `known` entry has."""
    rows = only(rows, _readable(rows))
    named = pa.concat_arrays([rows.column("lipmaalink"), rows.column("backlink")]).drop_null()
    there = pc.is_in(named, known.column("entry_hash"), skip_nulls=True)
    return named.filter(pc.invert(there)).unique()


def _judged(
    rows: pa.RecordBatch, elsewhere: Mapping[bytes, LogOf]
) -> tuple[pa.RecordBatch, list[tuple[int, str, int, int]]]:
    """`rows` with their verdicts; and positions, proofs and indexes of two entries of forks."""
    readable = _readable(rows)
    places = np.flatnonzero(readable)
    # Of two branches of a fork that of the first entry stays: what was completed stands behind what came later.
    places = places[np.lexsort([column[places] for column in _arrivals(rows)])]
    in_order = bool((places == np.arange(rows.num_rows)).all()) if len(places) == rows.num_rows else False
    judged = rows if in_order else rows.take(pa.array(places))
    found = verify(
        judged.column("data"),
        hashes=judged.column("entry_hash"),
        signature_rules=judged.column("signature_rule"),
        payload_rules=judged.column("payload_rule"),
        elsewhere=elsewhere,
    )
    forks = [(one.position, one.proof.value, int(places[one.first]), int(places[one.second])) for one in found.forks]
    told = {"verdict": "verdict", "reason": "rule", "message": "reason"}
    columns = {name: found.entries.column(of) for name, of in told.items()}
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


#: What a log's own row is told from.
_STANDING: Final = ("seq", "end_of_log", "data", "own_rule", "signature_rule", "verdict")


def _log_row(rows: pa.RecordBatch, forked_at: int | None, settled: int, others: int) -> LogRow:
    """How the log stands. Up to `settled` all its entries are there, of which `others`, all valid, aren't in `rows`."""
    rows = only(rows.select(_STANDING), ~_true(rows.column("superseded")))
    verdicts = rows.column("verdict")
    counts = {one["values"]: one["counts"] for one in pc.value_counts(verdicts).to_pylist()}
    signed = np.asarray(_signed(rows))
    seqs = np.asarray(rows.column("seq").cast(pa.uint64()).fill_null(0))
    valid = np.asarray(pc.equal(verdicts, Verdict.VALID.value).fill_null(False))
    ends = seqs[signed & _true(rows.column("end_of_log"))]
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
    """Author, log id and place of the entry that arrived first; empty without rows."""
    places = rows.select(["author", "log_id", *_PLACE])
    listed: list[dict[str, Any]] = places.take(pa.array(np.lexsort(_arrivals(rows))[:1])).to_pylist()
    return listed[0] if listed else {}


def _arrivals(rows: pa.RecordBatch) -> list[np.ndarray[Any, Any]]:
    """What sorts rows by arrival, the last one first."""
    return [np.asarray(rows.column(name).fill_null(0)) for name in ("byte_start", "record_number", "arrived_at_ns")]


def _digest(entries: pa.RecordBatch, forks: Sequence[ForkRow]) -> str:
    hashed: Any = hashlib.blake2b(b"".join(entries.column("entry_id").to_pylist()), digest_size=16)
    told = [entries.column(name) for name in ("verdict", "reason", "origin", "payload_rule")]
    told += [entries.column("superseded").cast(pa.string()), pc.binary_join(entries.column("seen_from"), ",")]
    for column in told:
        # Of all rows they are few texts, which are numbered as they come.
        texts = column.dictionary_encode()
        hashed.update(repr(texts.dictionary.to_pylist()).encode() + np.asarray(texts.indices.fill_null(-1)).tobytes())
    hashed.update(repr([row[: 1 + PROVED] for row in forks]).encode())
    return str(hashed.hexdigest())
