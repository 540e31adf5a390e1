"""Verifies entries in whatever order they came (Bamboo specification, "Links and Entry Verification").

`verify` takes entries of any logs. The verdict on each is valid, invalid (with the rule that it breaks), or unknown. An
entry is valid if its signature is right and a path of valid entries leads from it to entry 1. Verdicts don't depend on
the order of entries, with one exception: the branch of a fork whose entry came first stays valid.

- Only entries with a right signature count. Other entries can neither refute a link nor end a log.
- A link to an unknown entry refutes nothing. An entry with no link to a valid entry is `unknown`.
- What follows from a fork breaks no other rule (`_Branches`). An entry may link to an unknown entry of its branch, and
  it doesn't come after the end of another branch.
- A hash identifies bytes: a link to an entry of another log is broken, whatever the signature of that entry.
- A payload with another hash is wrong by itself. A payload with another size makes its log invalid from there on.
- Equal entries are one entry, and its signature is checked once.

A compiled loop judges logs with nothing unusual in them (the fast path). `_judge` is the reference path for all others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.bamboo.rules import ENTRY_RULE
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, Scanned, decode, fixed, scan, windows
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets, lipmaa_of
from wirehouse_codecs.bamboo.wire.signatures import signature_rules as check_signatures
from wirehouse_codecs.compiled.jit import compiled, wide

Array = np.ndarray[Any, Any]


class Verdict(StrEnum):
    """The verdict on an entry."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


#: How many entries are followed from one to another at most, to distinguish a fork from a wrong link. Where that is
#: not enough, the link isn't judged.
MOST_FOLLOWED: Final = 1_000
#: The message for an entry that came with the payload of another one.
WRONG_PAYLOAD: Final = "the payload is not the one that the entry says"


class Proof(StrEnum):
    """How two entries prove that a log is forked."""

    #: Two entries of one sequence number.
    ENTRIES = "entries"
    #: An entry after an end-of-log entry.
    END_OF_LOG = "end_of_log"
    #: A link that names another hash than that of the known entry.
    LINK = "link"
    #: Two links that name different hashes for an entry that isn't known.
    LINKS = "links"


#: A verdict on one given entry. What can't be read of it is null; `rule` is the name of a rule and states with `reason`
#: why it isn't valid.
VERIFIED_SCHEMA: Final = pa.schema(
    [
        ("author", pa.binary(AUTHOR_BYTES)),
        ("log_id", pa.uint64()),
        ("seq", pa.uint64()),
        ("entry_hash", pa.binary(yamf.DIGEST_BYTES)),
        ("verdict", pa.string()),
        ("rule", pa.string()),
        ("reason", pa.string()),
    ]
)


class Fork(NamedTuple):
    """A proof that a log is forked: the position at which its branches part, and two given entries by their index."""

    author: bytes
    log_id: int
    position: int
    proof: Proof
    first: int
    second: int


class Verification(NamedTuple):
    """What `verify` found."""

    #: A row of VERIFIED_SCHEMA for each entry, in their order.
    entries: pa.RecordBatch
    #: By author, log id and position, one for each of these.
    forks: list[Fork]


#: Author and log id.
LogOf = tuple[bytes, int]
#: The log of each correctly encoded entry, by hash.
Elsewhere = Mapping[bytes, LogOf]


def verify(
    entries: pa.Array | Sequence[bytes],
    payloads: Sequence[bytes | None] | None = None,
    *,
    hashes: pa.Array | None = None,
    signature_rules: pa.Array | Sequence[str | None] | None = None,
    payload_rules: pa.Array | Sequence[str | None] | None = None,
    elsewhere: Elsewhere | None = None,
) -> Verification:
    """Verdicts on `entries`, each with its payload if there is one.

    `hashes` are the hashes of the entries, if known. `signature_rules` are the rules that their signatures break, if
    they were checked before, and `payload_rules` the same for payloads. Equal entries are one entry; only payloads may
    differ. A link to an entry that isn't given may lead `elsewhere`.
    """
    entries = pa.array(entries, pa.binary())
    if hashes is None:
        hashes = pa.array([yamf.digest(entry) for entry in entries.to_pylist()], pa.binary())
    batch = _Batch(entries, hashes.cast(VERIFIED_SCHEMA.field("entry_hash").type), signature_rules, elsewhere or {})
    bad_payloads = {} if payloads is None else batch.judge_payloads(payloads)
    if payload_rules is not None:
        rules = pa.array(payload_rules, pa.string())
        bad_payloads |= batch.refuse_payloads({i: rules[i].as_py() for i in np.flatnonzero(rules.is_valid()).tolist()})
    forks = batch.judge_logs()
    return Verification(batch.verdicts(bad_payloads), forks)


def payload_rule(payload: bytes, payload_size: int, payload_hash: bytes) -> str | None:
    """The rule that a payload at hand breaks."""
    return digest_rule(len(payload), yamf.digest(payload), payload_size, payload_hash)


def digest_rule(size: int, digest: bytes, payload_size: int, payload_hash: bytes) -> str | None:
    """The rule that a payload of `size` bytes with that digest breaks."""
    if digest != payload_hash:
        return "payload_hash_mismatch"
    return None if size == payload_size else "payload_size_mismatch"


_UNKNOWN, _VALID, _INVALID = range(3)
_VERDICTS: Final = pa.array([Verdict.UNKNOWN, Verdict.VALID, Verdict.INVALID], pa.string())


class _Batch:
    """Given entries as columns. `_occurrences` are the indexes of their first occurrences."""

    def __init__(
        self,
        entries: pa.Array,
        hashes: pa.Array,
        signature_rules: pa.Array | Sequence[str | None] | None,
        elsewhere: Elsewhere,
    ) -> None:
        self.entries, self.hashes, self._elsewhere = entries, hashes, elsewhere
        self.scanned: Scanned = scan(entries)
        rows = self._occurrences = np.arange(len(entries))
        encoded = hashes.dictionary_encode()
        if len(encoded.dictionary) < len(rows):
            numbers = np.asarray(encoded.indices)
            self._occurrences = np.unique(numbers, return_index=True)[1][numbers]
        self._distinct = np.flatnonzero(self.scanned.right & (self._occurrences == rows))
        self._verdicts = np.full(len(entries), _UNKNOWN, np.int8)
        self._why: dict[int, tuple[str, str]] = {}
        self._made: dict[int, _Known] = {}
        self._groups, self._keys = self._logs()
        self._invalid_from: dict[int, int] = {}
        if signature_rules is None:
            rules = np.full(len(rows), None)
            rules[self._distinct] = check_signatures(entries.take(pa.array(self._distinct)))
            signature_rules = rules[self._occurrences]
        self._rules = pa.array(signature_rules, pa.string())
        self._signed = self.scanned.right & np.asarray(self._rules.is_null()) & (self._occurrences == rows)

    @cached_property
    def first(self) -> dict[bytes, int]:
        """The index of an entry's first occurrence, by hash."""
        rows = np.flatnonzero(self._occurrences == np.arange(len(self.entries)))
        return dict(zip(self.hashes.take(pa.array(rows)).to_pylist(), rows.tolist(), strict=True))

    def _logs(self) -> tuple[Array, list[LogOf]]:
        """The number of each distinct entry's log, and the logs."""
        rows = self._distinct
        if not len(rows):
            return np.empty(0, np.int64), []
        log_ids = self.scanned.log_id[rows]
        authors = windows(self.scanned.data, self.scanned.begin[rows] + 1, AUTHOR_BYTES)
        # Entries of a log mostly stand together, so only where it changes is it looked up.
        changes = (log_ids[1:] != log_ids[:-1]) | (authors[1:] != authors[:-1]).any(axis=1)
        runs = np.concatenate([[0], np.flatnonzero(changes) + 1])
        numbers: dict[LogOf, int] = {}
        of_runs = [numbers.setdefault((authors[at].tobytes(), int(log_ids[at])), len(numbers)) for at in runs]
        return np.repeat(of_runs, np.diff(np.append(runs, len(rows)))), list(numbers)

    def judge_payloads(self, payloads: Sequence[bytes | None]) -> dict[int, str]:
        """The rules that payloads at hand break, by the index of their entry."""
        rows = [i for i, payload in enumerate(payloads) if payload is not None and self.scanned.right[i]]
        at_hand = [payload for i in rows if (payload := payloads[i]) is not None]
        got = np.frombuffer(b"".join(map(yamf.digest, at_hand)), np.uint8).reshape(-1, yamf.DIGEST_BYTES)
        named = windows(self.scanned.data, self.scanned.payload_hash_at[rows] + 2, yamf.DIGEST_BYTES)
        same = (got == named).all(axis=1)
        sizes = np.fromiter(map(len, at_hand), np.uint64, len(rows))
        other_size = same & (sizes != self.scanned.payload_size[rows])
        bad = {rows[place]: "payload_hash_mismatch" for place in np.flatnonzero(~same)}
        return self.refuse_payloads(
            bad | {rows[place]: "payload_size_mismatch" for place in np.flatnonzero(other_size)}
        )

    def refuse_payloads(self, rules: dict[int, str]) -> dict[int, str]:
        """Take what is known of payloads: `rules` are those that they break, by the index of their entry."""
        for i, rule in rules.items():
            if rule == "payload_size_mismatch":
                self._refuse_from(int(self._occurrences[i]))
        return rules

    def _refuse_from(self, i: int) -> None:
        """Make the log of entry `i` invalid from there on, if its author signed it."""
        if self._signed[i]:
            group = int(self._groups[np.searchsorted(self._distinct, i)])
            seq = int(self.scanned.seq[i])
            self._invalid_from[group] = min(seq, self._invalid_from.get(group, seq))

    def judge_logs(self) -> list[Fork]:
        """Judge the distinct entries of every log; the forks."""
        scanned, rows = self.scanned, self._distinct
        by_log = np.lexsort((scanned.seq[rows], self._groups))
        order = rows[by_log]
        bounds = np.searchsorted(self._groups[by_log], np.arange(len(self._keys) + 1))
        hashes = np.frombuffer(self.hashes.buffers()[1] or b"", np.uint8).reshape(-1, yamf.DIGEST_BYTES)
        hashes = hashes[self.hashes.offset :]
        regular = np.zeros(len(self._keys), np.bool_)
        loose = np.empty((2 * len(rows), 3), np.int64)
        links = (scanned.links, scanned.links_at)
        count = _judge_regular(
            scanned.data, hashes, order, bounds, scanned.seq, scanned.end_of_log, self._signed, *links,
            self._verdicts, regular, loose,
        )  # fmt: skip
        regular[list(self._invalid_from)] = False
        self._doubt_loose(loose[:count], regular)
        forks: list[Fork] = []
        for group in np.flatnonzero(~regular).tolist():
            log = _Log([self._known(i) for i in order[bounds[group] : bounds[group + 1]].tolist()])
            log.invalid_from = self._invalid_from.get(group)
            _judge(log, self)
            author, log_id = self._keys[group]
            forks += [Fork(author, log_id, position, *proof) for position, proof in log.forks.items()]
            for one in log.entries:
                self._verdicts[one.index] = one.verdict
                if one.rule is not None:
                    self._why[one.index] = (one.rule, one.reason)
        return sorted(forks)

    def _doubt_loose(self, loose: Array, regular: Array) -> None:
        """A log isn't regular if a link of it leads into another one, or if two name an unknown entry differently."""
        named: dict[tuple[int, int], bytes] = {}
        for group, i, at in loose.tolist():
            if regular[group]:
                link = self.scanned.data[at : at + yamf.DIGEST_BYTES].tobytes()
                seq = link_targets(int(self.scanned.seq[i]))[0 if at == self.scanned.links_at[i] + 2 else 1]
                leads = link in self.first or link in self._elsewhere
                if leads or named.setdefault((group, seq), link) != link:
                    regular[group] = False

    def find(self, hashed: bytes) -> _Known | None:
        """The correctly encoded entry with that hash."""
        i = self.first.get(hashed)
        return None if i is None or not self.scanned.right[i] else self._known(i)

    def log_of(self, hashed: bytes) -> LogOf | None:
        """The log of the correctly encoded entry with that hash, which need not be given."""
        one = self.find(hashed)
        return self._elsewhere.get(hashed) if one is None else (one.author, one.log_id)

    def _known(self, i: int) -> _Known:
        one = self._made.get(i)
        if one is None:
            entry, scanned = self.entries[i].as_py(), self.scanned
            seq, at = int(scanned.seq[i]), int(scanned.links_at[i] - scanned.begin[i])
            author, log_id = entry[1 : 1 + AUTHOR_BYTES], int(scanned.log_id[i])
            links = tuple(
                _Link(target, entry[at + 66 * k + 2 : at + 66 * (k + 1)]) for k, target in enumerate(link_targets(seq))
            )
            hashed, rule = self.hashes[i].as_py(), self._rules[i].as_py()
            one = _Known(i, hashed, author, log_id, seq, bool(scanned.end_of_log[i]), links, rule)
            self._made[i] = one
        return one

    def verdicts(self, bad_payloads: Mapping[int, str]) -> pa.RecordBatch:
        """The rows of VERIFIED_SCHEMA."""
        count, scanned = len(self.entries), self.scanned
        verdicts = self._verdicts[self._occurrences]
        why: dict[int, tuple[str | None, str]] = {}
        for i in np.flatnonzero(scanned.right & (verdicts != _VALID)).tolist():
            why[i] = self._why.get(int(self._occurrences[i])) or _link_unknown(link_targets(int(scanned.seq[i])))
        for i, rule in bad_payloads.items():
            verdicts[i], why[i] = _INVALID, (rule, WRONG_PAYLOAD)
        known, log_ids, seqs = scanned.right.copy(), scanned.log_id.copy(), scanned.seq.copy()
        authors, has_author = np.zeros((count, AUTHOR_BYTES), np.uint8), scanned.right.copy()
        authors[known] = windows(scanned.data, scanned.begin[known] + 1, AUTHOR_BYTES)
        for i in np.flatnonzero(~scanned.right).tolist():
            decoded = decode(self.entries[i].as_py())
            verdicts[i], why[i] = _INVALID, (None if decoded.rule is None else decoded.rule.name, decoded.reason)
            if decoded.author is not None:
                has_author[i], authors[i] = True, np.frombuffer(decoded.author, np.uint8)
            if decoded.log_id is not None and decoded.seq is not None:
                known[i], log_ids[i], seqs[i] = True, decoded.log_id, decoded.seq
        texts = np.full((2, count), None)
        texts[:, list(why)] = list(zip(*why.values(), strict=True)) if why else None
        columns = [
            fixed(authors, has_author),
            pa.array(log_ids, mask=~known),
            pa.array(seqs, mask=~known),
            self.hashes,
            _VERDICTS.take(pa.array(verdicts)),
            *(pa.array(text, pa.string()) for text in texts),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=VERIFIED_SCHEMA)


def _link_unknown(targets: Iterable[int]) -> tuple[str, str]:
    return "link_unknown", f"no valid entry {' or '.join(map(str, targets))} is known"


# Plain logs


@compiled
def _find(order: Array, low: int, high: int, seq: Array, wanted: Any) -> int:
    """The row with that sequence number among the rows `order[low:high]`, which ascend; -1 = none."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if seq[order[middle]] < wanted:
            low = middle + 1
        else:
            high = middle
    return wide(order[low]) if low < end and seq[order[low]] == wanted else -1


@compiled
def _judge_regular(
    data: Array,
    hashes: Array,
    order: Array,
    bounds: Array,
    seq: Array,
    end_of_log: Array,
    signed: Array,
    links: Array,
    links_at: Array,
    verdicts: Array,
    regular: Array,
    loose: Array,
) -> int:
    """Judge every regular log: each entry is signed, alone at its position, not after the end, and all links agree.

    The rows of log k are `order[bounds[k]:bounds[k + 1]]`, ascending. `regular` gets whether it was judged. `loose`
    gets log, row and position of each hash of an entry that isn't given. Returns how many of these there are.
    """
    count = 0
    for group in range(len(bounds) - 1):
        low, high = bounds[group], bounds[group + 1]
        regular[group] = True
        for at in range(low, high):
            row = order[at]
            before = order[at - 1] if at > low else -1
            odd = not signed[row] or (end_of_log[row] and at != high - 1) or (before >= 0 and seq[before] == seq[row])
            valid = links[row] == 0
            for k in range(links[row]):
                if k == links[row] - 1:
                    wanted = seq[row] - np.uint64(1)
                    target = before if before >= 0 and seq[before] == wanted else -1
                else:
                    target = _find(order, low, at, seq, lipmaa_of(seq[row]))
                begin = links_at[row] + 66 * k + 2
                if target < 0:
                    loose[count, 0], loose[count, 1], loose[count, 2] = group, row, begin
                    count += 1
                    continue
                for i in range(64):
                    odd = odd or hashes[target, i] != data[begin + i]
                valid = valid or verdicts[target] == 1
            if odd:
                regular[group] = False
                break
            verdicts[row] = 1 if valid else 0
    return count


# All other logs


class _Link(NamedTuple):
    """A written link: the sequence number that it leads to, and the hash that it names."""

    seq: int
    hash: bytes

    @property
    def reason(self) -> str:
        """What the link names, if that is wrong."""
        return f"the link to entry {self.seq} names {self.hash.hex()}"


@dataclass(slots=True, eq=False)
class _Known:
    """A distinct entry that is correctly encoded."""

    index: int
    hash: bytes
    author: bytes
    log_id: int
    seq: int
    end_of_log: bool
    links: tuple[_Link, ...]
    #: The rule that its signature breaks.
    signature: str | None
    #: The first rule that the entry breaks, and why.
    rule: str | None = None
    reason: str = ""
    verdict: int = _UNKNOWN
    #: Links to unknown entries of its own branch. Other entries are known in their places.
    apart: list[_Link] = field(default_factory=list)

    def breaks(self, rule: str, reason: str) -> None:
        """Note a rule that the entry breaks: the first one of several counts."""
        if self.rule is None or _ORDER[rule] < _ORDER[self.rule]:
            self.rule, self.reason = rule, reason


@dataclass(slots=True)
class _Log:
    """The distinct entries of one author and log id, ascending; of one sequence number in the order they came in."""

    entries: list[_Known]
    #: A payload of the wrong size makes the log invalid from this sequence number on.
    invalid_from: int | None = None
    #: By position, the first proof of a fork there.
    forks: dict[int, tuple[Proof, int, int]] = field(default_factory=dict)
    #: Entries with a right signature.
    signed: dict[int, list[_Known]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.entries:
            if one.signature is None:
                self.signed.setdefault(one.seq, []).append(one)


def _judge(log: _Log, batch: _Batch) -> None:
    """Find the verdicts on the entries of a log, the rules that they break, and the proofs that it is forked."""
    for seq, rivals in log.signed.items():
        if len(rivals) > 1:
            log.forks[seq] = (Proof.ENTRIES, rivals[0].index, rivals[1].index)
    _judge_links(log, batch)
    _judge_end(log)
    _leave_partings(log)
    for one in log.entries:
        if one.rule is None and one.signature is not None:
            one.rule, one.reason = one.signature, f"author {one.author.hex()}"
    _judge_paths(log, batch)


_ORDER: Final = {name: place for place, name in enumerate(ENTRY_RULE)}


def _judge_links(log: _Log, batch: _Batch) -> None:
    """Hold each link against the known entries; a signed one that disagrees proves a fork."""
    doubted: list[tuple[_Known, _Link, str]] = []
    named: dict[int, tuple[bytes, int]] = {}
    for one in log.entries:
        for link in one.links:
            others = log.signed.get(link.seq, ())
            if any(other.hash == link.hash for other in others):
                continue
            broken = _broken_link(one, link, bool(others), batch)
            if broken is not None and others and one.signature is None and batch.log_of(link.hash) is None:
                doubted.append((one, link, broken))
            elif broken is not None:
                one.breaks(broken, link.reason)
            if one.signature is None and others:
                log.forks.setdefault(link.seq, (Proof.LINK, others[0].index, one.index))
            elif one.signature is None:
                first, whose = named.setdefault(link.seq, (link.hash, one.index))
                if first != link.hash:
                    log.forks.setdefault(link.seq, (Proof.LINKS, whose, one.index))
    branches = _Branches(log) if doubted else None
    for one, link, broken in doubted:
        if branches is not None and branches.part(one, link):
            one.apart.append(link)
        else:
            one.breaks(broken, link.reason)


class _Branches:
    """The branches of a log: which signed entries lead to which, as far as their links are known."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._signed = {one.hash: one for rivals in log.signed.values() for one in rivals}
        self._ends = [one for one in self._signed.values() if one.end_of_log]
        #: By entry: the nearest one, it or below it, and the nearest one above it with a rival of its sequence number.
        self._below: dict[bytes, _Known] = {}
        self._above: dict[bytes, _Known] = {}
        entries = sorted(self._signed.values(), key=lambda one: one.seq)
        for one in entries:
            nearest = one if self._rivals(one) else self._nearest_below(one)
            if nearest is not None:
                self._below[one.hash] = nearest
        for one in reversed(entries):
            above = one if self._rivals(one) else self._above.get(one.hash)
            if above is not None:
                self._above |= {target.hash: above for target in self._targets(one)}

    def part(self, one: _Known, link: _Link) -> bool:
        """Whether `one` is of another branch than the known entries that its `link` doesn't name.

        A fork shows that, of the entry itself or of one that it leads to or that leads to it. So does an end of the log
        before it, from which it doesn't go on.
        """
        if any(end.seq < one.seq and not self._leads(one, end) for end in self._ends):
            return True
        below, above = self._below.get(one.hash), self._above.get(one.hash)
        if below is not None and not any(self._are_in_line(below, known) for known in self._log.signed[link.seq]):
            return True
        return above is not None and not all(self._leads(rival, one) for rival in self._rivals(above))

    def _rivals(self, one: _Known) -> list[_Known]:
        return [rival for rival in self._log.signed[one.seq] if rival is not one]

    def _nearest_below(self, one: _Known) -> _Known | None:
        nearest = [self._below[target.hash] for target in self._targets(one) if target.hash in self._below]
        return max(nearest, key=lambda found: found.seq, default=None)

    def _targets(self, one: _Known) -> list[_Known]:
        named = ((link.seq, self._signed.get(link.hash)) for link in one.links)
        return [target for seq, target in named if target is not None and target.seq == seq]

    def _are_in_line(self, one: _Known, other: _Known) -> bool:
        return self._leads(one, other) or self._leads(other, one)

    def _leads(self, one: _Known, to: _Known) -> bool:
        """Whether known links lead from an entry to another one, or it is the other one."""
        seen, ahead = {one.hash}, [one]
        while ahead and len(seen) <= MOST_FOLLOWED:
            at = ahead.pop()
            if at is to:
                return True
            for target in reversed(self._targets(at)):
                if target.seq >= to.seq and target.hash not in seen:
                    seen.add(target.hash)
                    ahead.append(target)
        return False


def _broken_link(one: _Known, link: _Link, target_known: bool, batch: _Batch) -> str | None:
    """The rule that a link breaks which names none of the known entries of its place."""
    if not target_known:
        log = batch.log_of(link.hash)
        if log is None:
            return None
        author, log_id = log
        if log_id != one.log_id:
            return "log_id_mismatch"
        if author != one.author:
            return "author_mismatch"
        target = batch.find(link.hash)
        if target is None or target.signature is not None:
            return None
    return "backlink_mismatch" if link.seq == one.seq - 1 else "lipmaalink_mismatch"


def _judge_end(log: _Log) -> None:
    """Refuse what goes on from an end-of-log entry, or comes after a payload whose size isn't the one in its entry."""
    ends = [one for one in log.entries if one.end_of_log and one.signature is None]
    if ends:
        #: By entry: the first end that its links lead to.
        ended: dict[bytes, int] = {}
        for one in log.entries:
            at = min((ended[link.hash] for link in one.links if link.hash in ended), default=None)
            if at is not None and one.rule is None:
                one.rule, one.reason = "after_end_of_log", f"entry {at} ends the log"
            if at is not None or (one.end_of_log and one.signature is None):
                ended[one.hash] = one.seq if at is None else at
        signed = [one for one in log.entries if one.seq > ends[0].seq and one.signature is None]
        seqs = [one.seq for one in signed]
        for end in ends:
            if (at := bisect_right(seqs, end.seq)) < len(signed):
                log.forks.setdefault(end.seq + 1, (Proof.END_OF_LOG, end.index, signed[at].index))
    if log.invalid_from is not None:
        for one in log.entries:
            if one.seq >= log.invalid_from:
                one.rule, one.reason = "payload_size_mismatch", f"the log is invalid from entry {log.invalid_from} on"


def _leave_partings(log: _Log) -> None:
    """Keep the proofs of positions at which branches part, not of those where they only go on from an earlier fork.

    The earliest one is such a position, and each later one where two entries go on from the same one, or one goes on
    from an end-of-log entry. What else is odd there may be of the branches that are known.
    """
    earliest = min(log.forks, default=0)
    for position in [one for one in log.forks if one != earliest and not _parts(log, one)]:
        del log.forks[position]


def _parts(log: _Log, position: int) -> bool:
    """Whether branches part at a position, by what the entries there name as those before them."""
    parents = [one.links[-1].hash for one in log.signed.get(position, ()) if one.links]
    ends = {one.hash for one in log.signed.get(position - 1, ()) if one.end_of_log}
    return len(set(parents)) < len(parents) or not ends.isdisjoint(parents)


def _judge_paths(log: _Log, batch: _Batch) -> None:
    """Follow the links from entry 1 upwards, and distinguish the branches of forks."""
    taken: _Known | None = None
    end: _Known | None = None
    for one in log.entries:
        targets = [target for link in one.links if (target := batch.find(link.hash)) is not None]
        if one.rule is None:
            if taken is not None and taken.seq == one.seq:
                one.rule, one.reason = "fork", f"entry {one.seq} is also {taken.hash.hex()}"
            elif any(target.rule == "fork" for target in targets):
                one.rule, one.reason = "fork", "it goes on from the second branch of a fork"
            elif (rival := _first_branch(log, one)) is not None:
                one.rule, one.reason = "fork", f"it goes on from another entry {rival.seq} than {rival.hash.hex()}"
            elif end is not None:
                one.rule, one.reason = "fork", f"entry {end.seq} ends the first branch of a fork"
            else:
                taken = one
                end = one if one.end_of_log else None
        if one.rule is not None:
            one.verdict = _INVALID
        elif one.seq == 1 or any(target.verdict == _VALID for target in targets):
            one.verdict = _VALID
        else:
            one.rule, one.reason = _link_unknown(link_targets(one.seq))


def _first_branch(log: _Log, one: _Known) -> _Known | None:
    """An entry of the first branch of a fork in the place of one that `one` goes on from, which isn't known."""
    rivals = (rival for link in one.apart for rival in log.signed[link.seq])
    return next((rival for rival in rivals if rival.rule != "fork"), None)
