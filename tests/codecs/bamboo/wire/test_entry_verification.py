"""Verdicts on entries: the vectors' strict ones, each rule, forks with proof, and that order does not matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import nacl.signing
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.rules import ENTRY_RULE
from wirehouse_codecs.bamboo.wire import entry_verification as verifying
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entries import Entry, publish
from wirehouse_codecs.bamboo.wire.entry_verification import VERIFIED_SCHEMA, Proof, Verification, payload_rule, verify
from wirehouse_codecs.bamboo.wire.lipmaa import lower_pool, upper_pool
from wirehouse_codecs.bamboo.wire.signatures import signature_rules

VECTORS = Path(__file__).parents[3] / "vectors" / "bamboo"
EXPECTED = json.loads((VECTORS / "expected.json").read_text())["logs"]
OTHER = bytes(range(64))
Log = Any
MakeLog = Callable[..., Log]


@pytest.fixture(params=["compiled", "readable"])
def judge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verification]:
    """`verify`, and the same with every log left to the readable judge."""
    if request.param == "readable":
        monkeypatch.setattr(verifying, "_judge_regular", lambda *_: 0)
    return verify


def told(verification: Verification) -> list[str]:
    """Of each entry the rule that says why it isn't valid, or `valid`."""
    rows = verification.entries.to_pylist()
    assert all((row["verdict"] == "valid") == (row["rule"] is None) == (row["reason"] is None) for row in rows)
    assert all((row["verdict"] == "unknown") == (row["rule"] == "link_unknown") for row in rows)
    return [row["rule"] or "valid" for row in rows]


def positions(verification: Verification) -> list[tuple[int, Proof, int, int]]:
    return [fork[2:] for fork in verification.forks]


@pytest.mark.parametrize("name", EXPECTED)
def test_vectors(name: str, judge: Callable[..., Verification]) -> None:
    lines = [json.loads(line) for line in (VECTORS / "logs" / f"{name}.jsonl").read_text().splitlines()]
    payloads = [None if row["payload_hex"] is None else bytes.fromhex(row["payload_hex"]) for row in lines]
    found = judge([bytes.fromhex(row["entry_hex"]) for row in lines], payloads)
    expected = EXPECTED[name]
    for row, wanted in zip(found.entries.to_pylist(), expected["entries"], strict=True):
        assert row["entry_hash"].hex() == wanted["entry_hash"]
        assert (row["verdict"] == "valid") == wanted["spec_ok"]
        assert row["rule"] == wanted.get("spec_reason")
        assert (row["author"].hex(), str(row["log_id"])) == (expected["author"], expected["log_id"])
        assert row["seq"] == wanted["seq"]
    # The vectors name forks by two entries of one sequence number; that a signed link also proves one, they don't.
    forks = [fork for fork in found.forks if fork.proof is Proof.ENTRIES]
    if expected["fork"] is None:
        assert not forks
    else:
        assert [forks[0].first + 1, forks[0].second + 1] == expected["fork"]["lines"]
        assert forks[0].position == expected["fork"]["position"]


def test_a_whole_log_is_valid(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(45, log_id=2**64 - 1)
    found = judge(log.encoded(), list(log.payloads.values()))
    assert told(found) == ["valid"] * 45
    assert found.entries.schema == VERIFIED_SCHEMA
    assert found.entries["log_id"].to_pylist() == [2**64 - 1] * 45
    assert found.entries["seq"].to_pylist() == list(range(1, 46))


def test_nothing_given_is_nothing_found() -> None:
    assert verify([]).entries.num_rows == 0
    assert verify([], []).forks == []


def test_a_certificate_pool_is_enough(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(40)
    seqs = sorted({*lower_pool(23), *upper_pool(23)})
    assert told(judge(log.encoded(*seqs))) == ["valid"] * len(seqs)
    # Entry 22 leads to 21, which leads to 17; without 17 nothing from there on is sure.
    assert told(judge(log.encoded(1, 4, 13, 21, 22, 40))) == ["valid"] * 3 + ["link_unknown"] * 2 + ["valid"]


def test_each_rule(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(8)
    broken = {
        "payload_hash_mismatch": (log.encoded()[7], b"other"),
        "lipmaalink_mismatch": (log.make(8, lipmaalink=OTHER, backlink=OTHER).encode(), None),
        "backlink_mismatch": (log.make(8, backlink=OTHER).encode(), None),
        "bad_signature": (log.encoded()[7][:-1] + b"\0", None),
        "truncated": (log.encoded()[7][:-1], None),
    }
    for rule, (entry, payload) in broken.items():
        found = told(judge([*log.encoded(*range(1, 8)), entry], [None] * 7 + [payload]))
        assert found == ["valid"] * 7 + [rule], rule
        assert rule in ENTRY_RULE
    first = log.encoded(1)[0]
    assert told(judge([first[:1] + b"\xff" * 32 + first[33:]])) == ["bad_author_key"]
    # It comes after the author of the links' targets.
    last = log.encoded(8)[0]
    other_author = last[:1] + b"\xff" * 32 + last[33:]
    assert told(judge([*log.encoded(*range(1, 8)), other_author])) == ["valid"] * 7 + ["author_mismatch"]


def test_a_link_that_leads_elsewhere(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log, other_log, other_author = make_log(8), make_log(7, log_id=1), make_log(7, author=2)
    for elsewhere, rule in [(other_log, "log_id_mismatch"), (other_author, "author_mismatch")]:
        entry = log.make(8, backlink=elsewhere.hashes[7]).encode()
        seqs = range(1, 7)
        assert told(judge([*log.encoded(*seqs), *elsewhere.encoded(), entry]))[-1] == rule
        # The known entry of that place comes first.
        assert told(judge([*log.encoded(*seqs, 7), *elsewhere.encoded(), entry]))[-1] == "backlink_mismatch"
    # An entry whose signature is wrong is no known one; but whatever it is, it is of another log.
    for wrong, rule in [(log, "valid"), (other_log, "log_id_mismatch"), (other_author, "author_mismatch")]:
        false = wrong.encoded(7)[0][:-64] + bytes(64)
        entry = log.make(8, backlink=yamf.digest(false)).encode()
        assert told(judge([*log.encoded(*range(1, 7)), false, entry]))[-1] == rule
    same_log = log.make(8, backlink=log.hashes[5]).encode()
    assert told(judge([*log.encoded(*range(1, 7)), same_log]))[-1] == "backlink_mismatch"


def test_a_payload_of_the_wrong_size_ends_the_log(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(4)
    # Signed by the author, so that hash and size of one payload contradict each other.
    right = log.make(5, b"payload")
    wrong = _signed_again(log, right, payload_size=8)
    log.entries[5], log.hashes[5] = wrong, yamf.digest(wrong.encode())
    for _ in range(4):
        log.add()
    payloads = [None] * 4 + [b"payload"] + [None] * 4
    size = "payload_size_mismatch"
    assert told(judge(log.encoded(), payloads)) == ["valid"] * 4 + [size] * 5
    assert told(judge(log.encoded())) == ["valid"] * 9
    assert payload_rule(b"payload", 8, yamf.digest(b"payload")) == size
    # Who did not sign it can only break his own entry.
    unsigned = wrong.encode()[:-64] + bytes(64)
    assert told(judge([*log.encoded(), unsigned], [None] * 9 + [b"payload"])) == ["valid"] * 9 + [size]
    assert told(judge([*log.encoded(), unsigned])) == ["valid"] * 9 + ["bad_signature"]


def _signed_again(log: Log, entry: Entry, **fields: Any) -> Entry:
    changed = replace(entry, **fields)
    key = nacl.signing.SigningKey(bytes([log.author]) * 32)
    return replace(changed, signature=key.sign(changed.signed_bytes()).signature)


def test_nothing_comes_after_the_end_of_a_log(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(5)
    log.add(end_of_log=True)
    assert told(judge(log.encoded())) == ["valid"] * 6
    log.add()
    log.add()
    found = judge(log.encoded())
    assert told(found) == ["valid"] * 6 + ["after_end_of_log"] * 2
    assert positions(found) == [(7, Proof.END_OF_LOG, 5, 6)]
    # It ends at the first end, which the next one does not move.
    again = make_log(4)
    for end_of_log in (True, False, True, False):
        again.add(end_of_log=end_of_log)
    found = judge(again.encoded())
    assert told(found) == ["valid"] * 5 + ["after_end_of_log"] * 3
    assert found.entries["reason"].to_pylist()[5:] == ["entry 5 ends the log"] * 3
    # An end that its author did not sign ends nothing.
    unsigned = log.encoded(6)[0][:-64] + bytes(64)
    honest = make_log(8)
    assert told(judge([*honest.encoded(), unsigned])) == ["valid"] * 8 + ["bad_signature"]


@pytest.mark.parametrize("ends_first", [True, False])
@pytest.mark.parametrize("goes_on_at", [9, 10, 11])
def test_a_branch_goes_on_after_the_end_of_another_one(
    make_log: MakeLog, judge: Callable[..., Verification], ends_first: bool, goes_on_at: int
) -> None:
    """Of the branch that goes on, the entries from 9 on are known, or only later ones."""
    log = make_log(20)
    ended = log.branch(8)
    ended.add(b"the end", end_of_log=True)
    branches = [ended.encoded(9), log.encoded(*range(goes_on_at, 21))]
    entries = [*log.encoded(*range(1, 9)), *branches[not ends_first], *branches[ends_first]]
    found = judge(entries)
    rules = dict(zip(entries, told(found), strict=True))
    is_kept = ends_first or goes_on_at > 9
    assert rules[branches[0][0]] == ("valid" if is_kept else "fork")
    assert {rules[entry] for entry in branches[1]} == {"fork" if is_kept else "valid"}
    (fork,) = found.forks
    assert fork.position == {9: 9, 10: 9, 11: 10}[goes_on_at]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("missing", [(9,), (10, 11), (9, 10, 11, 12), (11, 12, 13), (14,)])
def test_a_branch_may_have_gaps(
    make_log: MakeLog, judge: Callable[..., Verification], first: bool, missing: tuple[int, ...]
) -> None:
    """Its entries link to others of the branch than those that are known in these places."""
    log = make_log(15)
    branch = log.branch(8)
    for _ in range(7):
        branch.add(b"of the branch")
    part = branch.encoded(*(seq for seq in range(9, 16) if seq not in missing))
    whole = log.encoded(*range(9, 16))
    found = judge([*log.encoded(*range(1, 9)), *(part + whole if first else whole + part)])
    assert set(told(found)) <= {"valid", "fork", "link_unknown"}
    assert len(found.forks) == 1


def test_a_wrong_link_beside_a_fork_is_still_one(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(19)
    branch = log.branch(8)
    branch.add(b"of the branch")
    wrong = log.make(20, backlink=OTHER).encode()
    found = judge([*log.encoded(), *branch.encoded(9), wrong])
    assert told(found) == ["valid"] * 19 + ["fork", "backlink_mismatch"]
    # A way leads from it to the entry that its other link doesn't name.
    crossed = log.make(17, lipmaalink=OTHER).encode()
    assert told(judge([*log.encoded(), *branch.encoded(9), crossed]))[-1] == "lipmaalink_mismatch"


def test_the_first_branch_of_a_fork_stays_valid(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(10)
    branch = log.branch(7)
    for _ in range(7):
        branch.add(b"second branch")
    entries = [*log.encoded(), *branch.encoded(*range(8, 15))]
    found = judge(entries)
    # Entry 13 also has a link to entry 4, which both branches share; it goes on from the second one all the same.
    assert told(found) == ["valid"] * 10 + ["fork"] * 7
    assert positions(found) == [(8, Proof.ENTRIES, 7, 10)]
    # The second branch may fork again, and so may the first one; each fork is told where its branches part.
    again = log.make(10, b"again").encode()
    assert positions(judge([*entries, again])) == [(8, Proof.ENTRIES, 7, 10), (10, Proof.ENTRIES, 9, 12)]
    # Of the second branch only a later part is known.
    found = judge([*log.encoded(), *branch.encoded(*range(10, 15))])
    assert positions(found) == [(8, Proof.LINK, 7, 12)]


def test_links_prove_forks(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(13)
    found = judge([*log.encoded(1, 2, 3, 4, 5), log.make(6, backlink=OTHER).encode()])
    assert positions(found) == [(5, Proof.LINK, 4, 5)]
    # Entries 13 and 8 both name entry 4 or 12, which isn't known here.
    found = judge([log.encoded(8)[0], log.make(13, lipmaalink=OTHER).encode()])
    assert positions(found) == [(4, Proof.LINKS, 0, 1)]
    assert told(found) == ["link_unknown"] * 2
    assert positions(judge(log.encoded(8, 13))) == []


def test_the_same_bytes_are_one_entry(make_log: MakeLog, judge: Callable[..., Verification]) -> None:
    log = make_log(5)
    found = judge(log.encoded() * 3, list(log.payloads.values()) * 2 + [b"other"] * 5)
    assert told(found) == ["valid"] * 10 + ["payload_hash_mismatch"] * 5
    assert found.forks == []


def test_every_entry_is_checked_once(make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(6)
    checked: list[bytes] = []

    def counted(entries: pa.Array) -> list[str | None]:
        checked.extend(entries.to_pylist())
        return signature_rules(entries)

    monkeypatch.setattr(verifying, "check_signatures", counted)
    bad = log.encoded(6)[0][:-1] + b"\0"
    entries = [*log.encoded(), bad, *log.encoded(), bad]
    found = verify(entries)
    assert checked == [*log.encoded(), bad]
    rules = ["bad_signature" if entry == bad else None for entry in entries]
    assert verify(entries, signature_rules=rules) == found
    assert len(checked) == 7
    assert verify(entries, signature_rules=[None] * len(entries)).forks != found.forks


def told_verdicts(verification: Verification) -> list[str]:
    verdicts: list[str] = verification.entries["verdict"].to_pylist()
    return verdicts


def test_what_can_be_read_of_damaged_entries_is_told(make_log: MakeLog) -> None:
    entry = make_log(3, log_id=9).encoded(3)[0]
    rows = verify([entry[:-1], entry[:34], b""]).entries.to_pylist()
    assert [(row["author"] is not None, row["log_id"], row["seq"]) for row in rows] == [
        (True, 9, 3),
        (True, None, None),
        (False, None, None),
    ]


@pytest.fixture(scope="session")
def pool(make_log: MakeLog) -> list[bytes]:
    """Entries of three logs, with a fork, a wrong link, an end and a bad signature among them."""
    log, other = make_log(14), make_log(5, log_id=1)
    branch = log.branch(7)
    for _ in range(3):
        branch.add(b"again")
    other.add(end_of_log=True)
    other.add()
    odd = [log.make(9, backlink=OTHER).encode(), log.encoded(5)[0][:-1] + b"\0", log.encoded(2)[0][:-1]]
    foreign = publish(nacl.signing.SigningKey(b"\7" * 32), b"", seq=2, backlink=log.hashes[1])
    return [*log.encoded(), *branch.encoded(8, 9, 10), *other.encoded(), *odd, foreign.encode()]


@settings(max_examples=60)
@given(data=st.data())
def test_verdicts_of_any_part_in_any_order(
    pool: list[bytes], rules: Mapping[bytes, str | None], data: st.DataObject
) -> None:
    part = data.draw(st.lists(st.sampled_from(pool), unique=True, max_size=len(pool)))
    again = data.draw(st.permutations(part))
    found, other = (verify(some, signature_rules=[rules[entry] for entry in some]) for some in (part, again))
    assert [fork[:4] for fork in found.forks] == [fork[:4] for fork in other.forks]
    rows = dict(zip(again, other.entries.to_pylist(), strict=True))
    for entry, row in zip(part, found.entries.to_pylist(), strict=True):
        # Which branch of the fork is the first one depends on the order.
        assert row == rows[entry] or (row["log_id"] == 0 and row["seq"] >= 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifying, "_judge_regular", lambda *_: 0)
        assert verify(part, signature_rules=[rules[entry] for entry in part]) == found


@pytest.fixture(scope="session")
def rules(pool: list[bytes]) -> Mapping[bytes, str | None]:
    return dict(zip(pool, signature_rules(pa.array(pool, pa.binary())), strict=True))


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=400), max_size=4), st.booleans())
def test_any_bytes(entries: list[bytes], with_payloads: bool) -> None:
    found = verify(entries, [b""] * len(entries) if with_payloads else None)
    assert found.entries["verdict"].to_pylist() == ["invalid"] * len(entries)
