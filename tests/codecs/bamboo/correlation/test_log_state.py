"""What is known of a log, window by window, is what `verify` says of all its entries at once."""

from __future__ import annotations

import json
from itertools import count, permutations
from pathlib import Path
from typing import Any

import nacl.signing
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.correlation.entry_rows import ENTRIES
from wirehouse_codecs.bamboo.correlation.log_state import Changes, KnownLog, Settled, needed
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entries import SIGNATURE_BYTES, Entry, decode, publish, signature_rule
from wirehouse_codecs.bamboo.wire.entry_verification import payload_rule, verify
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64

Row = dict[str, Any]
NONE = pa.RecordBatch.from_pylist([], schema=ENTRIES)
VECTORS = Path(__file__).parents[3] / "vectors" / "bamboo"
EXPECTED = json.loads((VECTORS / "expected.json").read_text())["logs"]
KEY = nacl.signing.SigningKey(bytes(range(32)))
NAMES = ("author", "log_id", "seq", "end_of_log", "lipmaalink", "backlink", "payload_size", "payload_hash", "signature")


def row(data: bytes, number: int, **told: Any) -> Row:
    """An entry as it comes from the check of signatures."""
    entry = decode(data).entry
    assert entry is not None
    hashed = yamf.digest(data)
    rule = signature_rule(entry.author, data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])
    found = {"data": data, "entry_hash": hashed, "entry_id": hashed, "signature_rule": rule}
    place = {"capture_id": b"c", "record_number": number, "arrived_at_ns": number, "byte_start": 0}
    seen = {"origin": "metadata", "seen_from": ["a"], "omitted": [], "unknown_links": []}
    return {name: getattr(entry, name) for name in NAMES} | found | place | seen | told


def partial(whole: Row) -> Row:
    """The entry as a reader has it that knows none of its links."""
    omitted = [name for name in ("lipmaalink", "backlink") if whole[name] is not None]
    unknown = {"omitted": omitted, "unknown_links": list(link_targets(whole["seq"]))}
    sent = {"data": None, "entry_hash": None, "entry_id": b"sent" + whole["entry_id"], "signature_rule": None}
    return whole | dict.fromkeys(omitted) | unknown | sent


def log_of(count: int, *, mark: str = "", before: list[bytes] | None = None) -> list[bytes]:
    """The entries of a log, after those of `before`."""
    entries = list(before or ())
    while len(entries) < count:
        seq = len(entries) + 1
        links = [yamf.digest(entries[target - 1]) for target in link_targets(seq)]
        made: Entry = publish(
            KEY,
            f"{mark}{seq}".encode(),
            seq=seq,
            lipmaalink=links[0] if len(links) == 2 else None,
            backlink=links[-1] if links else None,
        )
        entries.append(made.encode())
    return entries


LOG = log_of(40)
#: Two branches from entry 21 on, and an entry whose signature is not right.
BAD = LOG[10][:-1] + bytes([LOG[10][-1] ^ 1])
FORKED = [*LOG, *log_of(25, mark="other", before=LOG[:20])[20:], BAD]


def taken(log: KnownLog, *rows: Row) -> Changes:
    return log.take(pa.RecordBatch.from_pylist(list(rows), schema=ENTRIES))


def newest(changes: list[Changes]) -> dict[bytes, Row]:
    """The newest row of each entry that a view of them shows."""
    rows = {one["entry_id"]: one for told in changes for one in told.entries.to_pylist()}
    return {name: one for name, one in rows.items() if not one["superseded"]}


def proofs(changes: list[Changes]) -> dict[int, tuple[Any, ...]]:
    return {fork.position: fork.proved for told in changes for fork in told.forks if not fork.superseded}


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts_are_the_strict_ones(name: str) -> None:
    lines = [json.loads(line) for line in (VECTORS / "logs" / f"{name}.jsonl").read_text().splitlines()]
    rows = []
    for number, line in enumerate(lines):
        data = bytes.fromhex(line["entry_hex"])
        decoded = decode(data)
        if decoded.entry is None:
            broken = {"own_rule": decoded.rule and decoded.rule.name, "own_reason": decoded.reason}
            known = dict.fromkeys((*NAMES, "signature_rule")) | {"author": decoded.author, "seq": decoded.seq}
            rows.append(row(LOG[0], number) | known | broken | {"data": data, "entry_id": yamf.digest(data)})
            continue
        payload = None if line["payload_hex"] is None else bytes.fromhex(line["payload_hex"])
        found = (
            None if payload is None else payload_rule(payload, decoded.entry.payload_size, decoded.entry.payload_hash)
        )
        rows.append(row(data, number, payload_rule=found, origin="file"))
    changes = taken(KnownLog(NONE, {}), *rows)
    told = newest([changes])
    for one, wanted in zip(rows, EXPECTED[name]["entries"], strict=True):
        assert (told[one["entry_id"]]["verdict"] == "valid") == wanted["spec_ok"]
        assert told[one["entry_id"]]["reason"] == wanted.get("spec_reason")
    fork = EXPECTED[name]["fork"]
    if fork is not None:
        assert (changes.log.forked_at, changes.log.verified_up_to) == (fork["position"], fork["log_valid_up_to"])


@settings(max_examples=30)
@given(st.data())
def test_windows_cut_anywhere_end_the_same(data: st.DataObject) -> None:
    """Entries in any order, again or as parts, whole and cut into windows whose rows come in again from a table."""
    entries = data.draw(st.lists(st.sampled_from(FORKED), max_size=60))
    rows = [row(entry, number) for number, entry in enumerate(entries)]
    for one in rows:
        one["seen_from"] = [data.draw(st.sampled_from("abc"))]
    at_once = [taken(KnownLog(NONE, {}), *rows)]
    cut = data.draw(st.integers(0, len(rows)))
    first = taken(KnownLog(NONE, {}), *rows[:cut])
    known = pa.RecordBatch.from_pylist(
        sorted(first.entries.to_pylist(), key=lambda one: int(one["arrived_at_ns"])), schema=ENTRIES
    )
    second = taken(KnownLog(known, proofs([first])), *rows[cut:])
    assert newest([first, second]) == newest(at_once)
    assert proofs([first, second]) == proofs(at_once)
    assert (second.log, second.first) == (at_once[0].log, at_once[0].first)
    wanted = verify([one["data"] for one in rows]).entries.to_pylist()
    told = newest(at_once)
    for one, said in zip(rows, wanted, strict=True):
        assert (told[one["entry_id"]]["verdict"], told[one["entry_id"]]["reason"]) == (said["verdict"], said["rule"])


@settings(max_examples=60)
@given(st.data())
def test_of_a_settled_log_few_entries_tell_the_same(data: st.DataObject) -> None:
    """New entries of any kind, whole or as parts, in one window or two."""
    length = data.draw(st.integers(1, 30))
    before = taken(KnownLog(NONE, {}), *(row(entry, number) for number, entry in enumerate(LOG[:length])))
    entries = data.draw(st.lists(st.sampled_from(FORKED), min_size=1, max_size=12))
    new = [row(entry, 100 + number, seen_from=["b"]) for number, entry in enumerate(entries)]
    new = [partial(one) if one["seq"] > 1 and data.draw(st.booleans()) else one for one in new]
    cut = data.draw(st.integers(0, len(new)))
    wanted = needed([int(one["seq"]) for one in new], length)
    few = [one for one in before.entries.to_pylist() if one["seq"] in wanted]
    logs = (
        KnownLog(before.entries, {}),
        KnownLog(pa.RecordBatch.from_pylist(few, schema=ENTRIES), {}, Settled(length, before.first)),
    )
    for rows in filter(None, (new[:cut], new[cut:])):
        whole, small = (taken(log, *rows) for log in logs)
        assert small.entries.to_pylist() == whole.entries.to_pylist()
        assert (small.broken.to_pylist(), small.forks, small.new_forks) == (
            whole.broken.to_pylist(),
            whole.forks,
            whole.new_forks,
        )
        assert (small.log, small.first, small.digest) == (whole.log, whole.first, whole.digest)


def test_what_is_needed_of_a_settled_log_does_not_grow_with_it() -> None:
    assert needed([5], 4) == {1, 4}
    assert all(len(needed(range(length + 1, length + 101), length)) < 64 for length in (10**3, 10**6, 10**9))
    assert max(needed([MAX_U64], 10)) == 10


def test_what_is_seen_again_changes_nothing() -> None:
    log = KnownLog(NONE, {})
    rows = [row(entry, number) for number, entry in enumerate(FORKED)]
    assert taken(log, *rows).entries.num_rows == len(rows)
    again = taken(log, *rows)
    assert (again.entries.num_rows, again.broken.num_rows, again.forks) == (0, 0, [])
    other = taken(log, rows[3] | {"seen_from": ["b"]})
    assert [one["seen_from"] for one in other.entries.to_pylist()] == [["a", "b"]]


def test_gaps_and_how_far_a_log_is_verified() -> None:
    log = KnownLog(NONE, {})
    told = taken(log, *(row(LOG[seq - 1], seq) for seq in (1, 2, 3, 6, 9))).log
    assert (told.verified_up_to, told.length, told.missing, told.missing_entries) == (3, 9, [(4, 5), (7, 8)], 4)
    told = taken(log, *(row(LOG[seq - 1], seq) for seq in (4, 5, 7))).log
    assert (told.verified_up_to, told.length, told.missing) == (7, 9, [(8, 8)])


@settings(max_examples=20)
@given(st.permutations(range(1, 14)), st.integers(0, 13))
def test_entries_with_unknown_links_are_completed_when_these_are_known(order: list[int], whole: int) -> None:
    """In any order: entry 1 has no link, so from it on all follow."""
    log = KnownLog(NONE, {})
    changes = []
    for number, seq in enumerate(order):
        one = row(LOG[seq - 1], number)
        changes.append(taken(log, one if seq in (1, whole) else partial(one)))
    told = newest(changes)
    assert {int(one["seq"]) for one in told.values() if one["verdict"] == "valid"} == set(range(1, 14))
    assert {one["data"] for one in told.values()} == set(LOG[:13])
    places = {int(one["seq"]): one["record_number"] for one in told.values()}
    assert places == {seq: number for number, seq in enumerate(order)}


def test_an_entry_without_its_links_stays_unknown() -> None:
    told = newest([taken(KnownLog(NONE, {}), partial(row(LOG[5], 0)), row(LOG[0], 1))])
    assert sorted((one["verdict"], one["reason"]) for one in told.values() if one["seq"] != 1) == [
        ("unknown", "link_unknown")
    ]


@pytest.mark.parametrize("branches", [1, 2, 4, 5])
def test_a_link_may_be_to_any_of_the_first_branches_of_a_fork(branches: int) -> None:
    logs = [log_of(3, mark=f"branch {number}", before=LOG[:1]) for number in range(branches)]
    known = [LOG[0], *(entries[1] for entries in logs)]
    told = newest([taken(KnownLog(NONE, {}), *map(row, known, count()), partial(row(logs[-1][2], 99)))])
    (last,) = (one for one in told.values() if one["seq"] == 3)
    assert last["data"] == (logs[-1][2] if branches <= 4 else None)


def test_only_what_is_shown_is_broken() -> None:
    log = KnownLog(NONE, {})
    changes = taken(log, row(LOG[0], 0), row(BAD, 1), row(BAD, 2, origin="cancel"))
    assert [one["reason"] for one in changes.broken.to_pylist()] == ["bad_signature"]
    assert taken(log, row(BAD, 3, origin="file")).broken.num_rows == 0


@pytest.mark.parametrize(("origin", "told"), [("cancel", []), ("file", ["bad_tag"])])
def test_what_a_cancel_shows_that_is_no_entry_is_told_with_the_cancel(origin: str, told: list[str]) -> None:
    changes = taken(KnownLog(NONE, {}), row(LOG[0], 0, own_rule="bad_tag", own_reason="2", origin=origin))
    assert [one["reason"] for one in changes.broken.to_pylist()] == told


def again(*told: Changes) -> pa.RecordBatch:
    """What was told as the table has it when it comes in again."""
    rows = {one["entry_id"]: one for changes in told for one in changes.entries.to_pylist()}
    by = ("arrived_at_ns", "capture_id", "record_number", "byte_start", "entry_id")
    return pa.RecordBatch.from_pylist(sorted(rows.values(), key=lambda one: [one[name] for name in by]), schema=ENTRIES)


def test_of_a_fork_that_branch_stays_that_arrived_first_though_its_links_came_late() -> None:
    log = log_of(4, mark="x")
    twin = log_of(3, mark="y", before=log[:2])[2]
    rows = [partial(row(log[2], 1)), row(twin, 2), row(log[0], 3), row(log[1], 4)]
    later = row(log[3], 10)
    known = taken(KnownLog(NONE, {}), *rows)
    at_once = newest([taken(KnownLog(NONE, {}), *rows, later)])
    one = KnownLog(NONE, {})
    other = KnownLog(again(known), proofs([known]))
    for told in (newest([taken(one, *rows), taken(one, later)]), newest([known, taken(other, later)]), at_once):
        assert {name: row["verdict"] for name, row in told.items()} == {
            **{yamf.digest(data): "valid" for data in log},
            yamf.digest(twin): "invalid",
        }


def test_one_entry_in_two_parts_is_one_and_a_link_that_is_not_right_stays_seen() -> None:
    log = log_of(8, mark="q")
    whole = row(log[7], 1)
    lipmaa, back = link_targets(8)
    with_back: Row = {"backlink": whole["backlink"], "omitted": ["lipmaalink"], "unknown_links": [lipmaa]}
    parts = [
        partial(whole) | {"seen_from": ["a"]},
        partial(whole) | with_back | {"entry_id": b"with its backlink", "record_number": 2, "seen_from": ["b"]},
        partial(whole) | with_back | {"backlink": bytes(64), "entry_id": b"with another", "record_number": 3},
    ]
    rest = [row(data, 10 + number) for number, data in enumerate(log[:7])]
    changes = taken(KnownLog(NONE, {}), *parts, *rest)
    told = {name: one for name, one in newest([changes]).items() if int(one["seq"]) == 8}
    assert {name: (one["verdict"], one["seen_from"]) for name, one in told.items()} == {
        yamf.digest(log[7]): ("valid", ["a", "b"]),
        b"with another": ("unknown", ["a"]),
    }
    assert back == 7


def test_what_an_entry_breaks_is_told_once_it_is_shown() -> None:
    metadata, cancel = row(BAD, 1), row(BAD, 2, origin="cancel")
    log = KnownLog(NONE, {})
    told = [taken(log, metadata).broken, taken(log, cancel).broken, taken(log, cancel).broken]
    assert [rows.column("reason").to_pylist() for rows in told] == [[], ["bad_signature"], []]
    assert told[1].column("record_number").to_pylist() == [2]
    at_once = taken(KnownLog(NONE, {}), metadata, cancel)
    assert at_once.broken.column("reason").to_pylist() == ["bad_signature"]
    assert at_once.broken.column("record_number").to_pylist() == [2]
    assert [one["record_number"] for one in newest([at_once]).values()] == [1]


@pytest.mark.parametrize("order", permutations((None, "payload_hash_mismatch", "payload_size_mismatch")))
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_wrong_payload_is_told_where_it_stands_whatever_came_before(order: tuple[str | None, ...], cut: int) -> None:
    """One of another hash at each place; one of another size says something of the entry, and once."""
    rows = [row(LOG[0], number, origin="file", payload_rule=rule) for number, rule in enumerate(order)]
    log = KnownLog(NONE, {})
    told = [one for part in (rows[:cut], rows[cut:]) if part for one in taken(log, *part).broken.to_pylist()]
    assert {(one["reason"], one["record_number"]) for one in told} == {
        (rule, number) for number, rule in enumerate(order) if rule
    }
    assert len(told) == 2
    alone = taken(KnownLog(NONE, {}), *(one for one in rows if one["payload_rule"] != "payload_size_mismatch"))
    (entry,) = alone.entries.to_pylist()
    assert (entry["verdict"], entry["reason"]) == ("valid", None), "another one is at hand, or may be"


def test_each_end_of_a_log_that_goes_on_proves_a_fork() -> None:
    log = log_of(8, mark="L")

    def end(seq: int) -> bytes:
        targets = link_targets(seq)
        links = [yamf.digest(log[target - 1]) for target in targets]
        lipmaalink = links[0] if len(links) == 2 else None
        made = publish(KEY, b"end", seq=seq, lipmaalink=lipmaalink, backlink=links[-1], end_of_log=True)
        return made.encode()

    rows = [*(row(data, number) for number, data in enumerate(log[:6], 1)), row(end(7), 7), row(log[7], 8)]
    late = row(end(3), 9)
    at_once = taken(KnownLog(NONE, {}), *rows, late)
    one = KnownLog(NONE, {})
    windows = [taken(one, *rows), taken(one, late)]
    # Entries 4 and 8 go on from other entries than the ends of the log: the branches part at these, or earlier.
    assert [{at: proof for at, (proof, *_) in proofs([told]).items()} for told in windows] == [
        {7: "link"},
        {3: "entries"},
    ]
    assert proofs([windows[1]]) == proofs([at_once])
    goes_on = publish(KEY, b"later", seq=8, backlink=yamf.digest(end(7)), lipmaalink=yamf.digest(log[3])).encode()
    whole = taken(KnownLog(NONE, {}), *rows[:7], row(goes_on, 8))
    assert {position: proof for position, (proof, *_) in proofs([whole]).items()} == {8: "end_of_log"}


def test_a_fork_that_turns_out_to_begin_earlier_is_found_once() -> None:
    log, other = log_of(12, mark="M"), log_of(12, mark="other", before=log_of(12, mark="M")[:4])
    known = KnownLog(NONE, {})
    windows = [log, other[6:], other[5:6], other[4:5]]
    number, changes = 0, []
    for window in windows:
        changes.append(taken(known, *(row(data, number + at) for at, data in enumerate(window))))
        number += len(window)
    told = [[(fork.position, fork.superseded) for fork in one.forks] for one in changes]
    assert told == [[], [(6, False)], [(5, False), (6, True)], [(5, False)]]
    assert [len(one.new_forks) for one in changes] == [0, 1, 0, 0]
    assert changes[-1].log.forked_at == 5


def test_a_fork_says_how_long_its_branches_are_and_who_served_which() -> None:
    log, other = log_of(12, mark="M"), log_of(9, mark="other", before=log_of(12, mark="M")[:4])
    first = [row(data, number, seen_from=["a"]) for number, data in enumerate(log)]
    second = [row(data, 20 + number, seen_from=["b"]) for number, data in enumerate(other[4:])]
    at_once = taken(KnownLog(NONE, {}), *first, *second)
    (fork,) = at_once.forks
    assert fork.position == 5
    assert (fork.first_length, fork.first_head, fork.first_served_by) == (12, yamf.digest(log[11]), ["a"])
    assert (fork.second_length, fork.second_head, fork.second_served_by) == (9, yamf.digest(other[8]), ["b"])
    # Window by window the row is told anew as a branch grows; it is one finding.
    known = KnownLog(NONE, {})
    windows = [first, second[:2], second[2:], [row(other[4], 40, seen_from=["c"])], [row(log[3], 41)]]
    changes = [taken(known, *rows) for rows in windows]
    assert [[one.second_length for one in told.forks] for told in changes] == [[], [6], [9], [9], []]
    assert [len(told.new_forks) for told in changes] == [0, 1, 0, 0, 0]
    assert changes[2].forks == [fork]
    assert changes[3].forks[0].second_served_by == ["b", "c"]
    # Of a log all of whose entries are valid few come in again.
    few = dict.fromkeys(needed([5, 6], 12), 0)
    kept = again(changes[0])
    kept = kept.filter(pa.array([int(seq) in few for seq in kept.column("seq").to_pylist()]))
    settled = taken(KnownLog(kept, {}, Settled(12, {})), *second[:2])
    assert settled.forks == changes[1].forks


def ended(before: list[bytes]) -> list[bytes]:
    """A log that ends with the next entry."""
    targets = link_targets(len(before) + 1)
    links = [yamf.digest(before[target - 1]) for target in targets]
    lipmaalink = links[0] if len(links) == 2 else None
    made = publish(KEY, b"end", seq=len(before) + 1, lipmaalink=lipmaalink, backlink=links[-1], end_of_log=True)
    return [*before, made.encode()]


@pytest.mark.parametrize("cuts", [(), (6,), (6, 7), (7, 9), tuple(range(1, 31))])
@pytest.mark.parametrize("is_long_first", [True, False])
def test_a_fork_at_an_end_of_the_log_is_one_finding_however_it_comes(
    cuts: tuple[int, ...], is_long_first: bool
) -> None:
    log = log_of(25, mark="G")
    branches = [ended(log[:5])[5:], log[5:]]
    entries = [*log[:5], *branches[is_long_first], *branches[not is_long_first]]
    rows = [row(data, number, origin="file") for number, data in enumerate(entries)]
    known = KnownLog(NONE, {})
    windows = [rows[at:to] for at, to in zip((0, *cuts), (*cuts, len(rows)), strict=True)]
    changes = [taken(known, *window) for window in windows if window]
    assert [one for told in changes for one in told.broken.to_pylist()] == []
    assert [fork.position for told in changes for fork in told.new_forks] == [6]


@pytest.mark.parametrize("cuts", [(), (4,), (5,), (6,), (5, 6, 7)])
def test_entries_that_go_on_from_an_end_are_one_finding(cuts: tuple[int, ...]) -> None:
    entries = log_of(12, mark="G", before=ended(log_of(4, mark="G")))
    rows = [row(data, number, origin="file") for number, data in enumerate(entries)]
    known = KnownLog(NONE, {})
    windows = [rows[at:to] for at, to in zip((0, *cuts), (*cuts, len(rows)), strict=True)]
    changes = [taken(known, *window) for window in windows]
    broken = [(one["reason"], one["record_number"]) for told in changes for one in told.broken.to_pylist()]
    assert broken == [("after_end_of_log", 5)]
    verdicts = [(one["verdict"], one["reason"]) for one in newest(changes).values()]
    assert verdicts == [("valid", None)] * 5 + [("invalid", "after_end_of_log")] * 7
