"""Entries from metadata: what is left out, where it comes from, and what is completed later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.codecs.bamboo.session.peers import metadata
from tests.support.carried import carry
from wirehouse_codecs.bamboo.session.entry_rebuild import MOST_KNOWN, Known, Rebuilt, complete, rebuild
from wirehouse_codecs.bamboo.session.proposals import Heard
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.lipmaa import has_lipmaalink

Log = Any


@pytest.fixture(scope="module")
def log(make_log: Callable[..., Log]) -> Log:
    return make_log(14)


def rebuilt(log: Log, seq: int, known: dict[int, bytes], *, backlink: bool = False) -> Rebuilt:
    entry = log.entries[seq]
    sent = metadata(entry, backlink=backlink)
    return rebuild(sent, entry.author, entry.log_id, seq, lambda target: (known.get(target), False))


@pytest.mark.parametrize("seq", range(1, 15))
def test_links_are_filled_in(log: Log, seq: int) -> None:
    whole = rebuilt(log, seq, log.hashes)
    assert (whole.data, whole.entry_hash, whole.unknown) == (log.entries[seq].encode(), log.hashes[seq], ())
    with_backlink = rebuilt(log, seq, log.hashes, backlink=True)
    assert with_backlink.data == whole.data
    wanted = ["author", "log_id", "seqnum"] + ["lipmaalink"] * has_lipmaalink(seq)
    assert list(with_backlink.omitted) == wanted
    assert list(whole.omitted) == wanted + ["backlink"] * (seq > 1)


def test_links_that_are_not_known_are_named(log: Log) -> None:
    entry = rebuilt(log, 8, {}, backlink=True)
    assert (entry.unknown, entry.data, entry.lipmaalink) == ((4,), None, None)
    assert entry.backlink == yamf.encode(log.hashes[7])


def test_a_log_is_completed_from_one_known_entry(log: Log) -> None:
    loose = [rebuilt(log, seq, {}) for seq in range(3, 9)]
    known = {1: [log.hashes[1]], 2: [bytes(64), log.hashes[2]]}
    assert [entry.data for entry in complete(reversed(loose), known)] == log.encoded(*range(3, 9))
    assert [entry.data for entry in complete(loose, {2: [log.hashes[2]]})] == [log.entries[3].encode()] + [None] * 5
    assert [entry.data for entry in complete(loose[:1], {2: [bytes(64)]})] == [None]


def test_what_is_known_is_bounded_and_kept_by_use() -> None:
    known = Known()
    for seq in range(1, MOST_KNOWN + 3):
        known.add(b"author", 0, seq, Heard(seq, b"", False, b"hash"))
    assert known.get(b"author", 0, 2) is None
    assert known.get(b"author", 0, 3) is not None
    assert list(carry(known).state) == list(known.state)


def test_an_entry_is_known_of_all_sides_that_sent_it() -> None:
    known = Known()
    mine, theirs = (Heard(1, b"hash", False, b"entry", (role,)) for role in Role)
    known.add(b"author", 0, 1, mine)
    known.add_all([((b"author", 0, 1), theirs)])
    assert known.get(b"author", 0, 1) == mine._replace(senders=tuple(Role))
    assert carry(known).get(b"author", 0, 1) == known.get(b"author", 0, 1)
    known.forget(b"author", 0, 1, mine)
    assert known.get(b"author", 0, 1) == theirs
    known.add(b"author", 0, 1, mine._replace(payload_hash=b"other"))
    assert known.get(b"author", 0, 1) == mine._replace(payload_hash=b"other"), "another entry takes its place"


def test_an_entry_without_its_hash_takes_no_place() -> None:
    known, whole, loose = Known(), Heard(1, b"", False, b"hash"), Heard(1, b"", False, None)
    known.add(b"author", 0, 1, loose)
    known.add(b"author", 0, 1, whole)
    known.add(b"author", 0, 1, loose)
    assert known.get(b"author", 0, 1) == whole
    known.forget(b"author", 0, 1, loose)
    assert known.get(b"author", 0, 1) == whole
    known.forget(b"author", 0, 1, whole)
    assert known.get(b"author", 0, 1) is None
