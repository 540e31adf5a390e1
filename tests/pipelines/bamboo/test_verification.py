"""Verification of entries without Spark: each distinct entry is checked once, whatever was seen of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from wirehouse_codecs.bamboo.correlation.entry_rows import PLACE
from wirehouse_codecs.bamboo.correlation.log_state import needed
from wirehouse_codecs.bamboo.log.rows import shown_row
from wirehouse_codecs.bamboo.log.schema import ENTRY_TYPE
from wirehouse_codecs.bamboo.simulator.simulator import SimulatorConfig, entries
from wirehouse_codecs.bamboo.wire import signatures, yamf
from wirehouse_codecs.bamboo.wire.entries import decode
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets
from wirehouse_pipelines import stages
from wirehouse_pipelines.bamboo import signature_checks, verification
from wirehouse_pipelines.bamboo.log_results import LogResults, fold
from wirehouse_pipelines.bamboo.signature_checks import check
from wirehouse_pipelines.bamboo.verification_input import entry_rows
from wirehouse_pipelines.bamboo.verification_rows import BAD, ENTRY, LOG, MOVED, STATE, UNSURE, with_following

Row = dict[str, Any]
LOG_OF = [written.data for written in entries(SimulatorConfig(seed=1, connections=1, logs=1, entries=20))]
NAMES = ("author", "log_id", "seq", "end_of_log", "lipmaalink", "backlink", "payload_size", "payload_hash", "signature")


def seen(data: bytes, at: int, window: str = "w1", sender: str = "a", **fields: Any) -> Row:
    entry = decode(data).entry
    assert entry is not None
    hashed = yamf.digest(data)
    place = {"connection_id": sender.encode(), "direction": "client", "byte_start": at, "record_number": at}
    return {
        **{name: getattr(entry, name) for name in NAMES},
        "source": "s",
        "key": "log",
        "window_start": window,
        "entry_id": hashed,
        "origin": "metadata",
        "data": data,
        "entry_hash": hashed,
        "omitted": [],
        "unknown_links": [],
        "seen_from": [sender],
        "sender": sender,
        "arrived_at_ns": at,
        "capture_id": b"c",
        **place,
        **fields,
    }


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The entries whose signatures are checked."""
    counted: list[bytes] = []

    def counting(listed: pa.Array) -> list[str | None]:
        counted.extend(listed.to_pylist())
        return signatures.signature_rules(listed)

    monkeypatch.setattr(signature_checks, "signature_rules", counting)
    return counted


def judged(rows: pa.RecordBatch) -> Iterator[LogResults]:
    """What the fold makes of rows of MOVED, in whatever order they came."""
    stage = stages.Stage([], MOVED, verification._ORDER, lambda came: (("", rows) for rows in came), (), frozenset())
    ordered = pa.concat_batches([rows for _, rows in stages.folded(stage, [rows])])
    return fold(with_following(check(ordered)))


def verified(rows: list[Row], known_logs: Sequence[Row] = ()) -> list[Row]:
    """The rows that a task returns for them, in whatever order they came."""
    came = [*rows, *known_logs]
    Random(1).shuffle(came)
    results = list(judged(pa.RecordBatch.from_pylist(came, schema=MOVED)))
    entries = [row | {"row_kind": ENTRY, "key": "log"} for one in results for row in one.entries.to_pylist()]
    return [*entries, *(row for one in results for row in one.others.to_pylist())]


def of_kind(rows: list[Row], what: str) -> list[Row]:
    return [row for row in rows if row["row_kind"] == what]


def test_replays_and_both_directions_cost_no_signature(checks: list[bytes]) -> None:
    rows = [
        seen(data, 100 * turn + at, window, sender)
        for turn, (window, sender) in enumerate((("w1", "a"), ("w1", "b"), ("w2", "a"), ("w3", "b")))
        for at, data in enumerate(LOG_OF)
    ]
    results = verified(rows)
    assert len(checks) == len(LOG_OF)
    assert [row["seen_from"] for row in of_kind(results, ENTRY)] == [["a", "b"]] * len(LOG_OF)
    assert [(row["window_start"], row["verified_up_to"]) for row in of_kind(results, LOG)] == [("w1", 20)]


def test_what_earlier_windows_verified_costs_no_signature(checks: list[bytes]) -> None:
    known = [
        row | {"window_start": None} for row in of_kind(verified([seen(d, at) for at, d in enumerate(LOG_OF)]), ENTRY)
    ]
    checks.clear()
    again = [seen(data, 100 + at, "w2", "b") for at, data in enumerate(LOG_OF)]
    results = verified([*({name: row.get(name) for name in MOVED.names} for row in known), *again])
    assert checks == []
    assert {(row["verdict"], tuple(row["seen_from"])) for row in of_kind(results, ENTRY)} == {("valid", ("a", "b"))}


def test_of_a_settled_log_few_entries_come_in_again() -> None:
    before = verified([seen(data, at) for at, data in enumerate(LOG_OF[:15])])
    wanted = needed(range(16, 21), 15)
    known = [row | {"window_start": None} for row in of_kind(before, ENTRY)]
    few = [row for row in known if row["seq"] in wanted]
    assert len(few) == len(wanted) < 10
    logs = [{name: row.get(name) for name in MOVED.names} | {"window_start": None} for row in of_kind(before, LOG)]
    new = [seen(data, 100 + at, "w2", "b") for at, data in enumerate(LOG_OF[14:])]
    by_few, by_all = (
        verified([*({name: row.get(name) for name in MOVED.names} for row in rows), *new], known_logs=results)
        for rows, results in ((few, logs), (known, []))
    )
    for what in (ENTRY, LOG, STATE):
        assert of_kind(by_few, what) == of_kind(by_all, what) != []


def test_every_packet_with_a_wrong_signature_is_reported(checks: list[bytes]) -> None:
    wrong = LOG_OF[0][:-1] + bytes([LOG_OF[0][-1] ^ 1])
    results = verified([seen(wrong, at) for at in range(3)])
    assert [row["byte_start"] for row in of_kind(results, BAD)] == [0, 1, 2]
    assert [(row["verdict"], row["reason"]) for row in of_kind(results, ENTRY)] == [("invalid", "bad_signature")]
    assert len(checks) == 1


def test_a_link_that_was_taken_for_another_one_is_not_held_against_the_entry() -> None:
    """Its signature is not right with that link, and is with the one that comes later."""
    data, seq = LOG_OF[2], 3
    entry = decode(data).entry
    assert entry is not None
    assert entry.backlink is not None
    assert link_targets(seq) == (2,)
    taken_for = data.replace(entry.backlink, bytes(64))
    omitted: Row = {"omitted": ["backlink"], "sent_id": b"sent"}
    first = [seen(LOG_OF[0], 0), seen(taken_for, 1, **omitted)]
    row = {row["seq"]: row for row in of_kind(verified(first), ENTRY)}[seq]
    assert (row["verdict"], row["reason"], row["entry_id"]) == (
        "unknown",
        "link_unknown",
        b"sent",
    )
    results = {
        row["seq"]: row for row in of_kind(verified([*first, seen(LOG_OF[1], 2)]), ENTRY) if not row["superseded"]
    }
    assert (results[seq]["verdict"], results[seq]["data"]) == ("valid", data)


def test_what_links_to_forged_metadata_is_unsure_and_completed_by_what_was_meant() -> None:
    """A later entry was taken to link to a forged one, and the next one to that."""
    forged = LOG_OF[1][:-1] + bytes([LOG_OF[1][-1] ^ 1])
    rows, before = [seen(LOG_OF[0], 0), seen(forged, 1)], forged
    for at in (2, 4):
        entry = decode(LOG_OF[at]).entry
        assert entry is not None
        assert entry.backlink is not None
        taken_for = LOG_OF[at].replace(entry.backlink, yamf.digest(before))
        rows.append(seen(taken_for, at, omitted=["backlink"]))
        if at == 2:
            three = decode(LOG_OF[3]).entry
            assert three is not None
            assert three.backlink is not None
            before = LOG_OF[3].replace(three.backlink, yamf.digest(taken_for))
            rows.append(seen(before, 3, omitted=["backlink"]))
    results = verified(rows)
    assert [row["byte_start"] for row in of_kind(results, BAD)] == [1]
    assert [row["byte_start"] for row in of_kind(results, UNSURE)] == [2, 3, 4]
    verdicts = {int(row["seq"]): row["verdict"] for row in of_kind(results, ENTRY)}
    assert verdicts == {1: "valid", 2: "invalid", 3: "unknown", 4: "unknown", 5: "unknown"}
    results = verified([*rows, seen(LOG_OF[1], 9)])
    valid = {int(row["seq"]) for row in of_kind(results, ENTRY) if row["verdict"] == "valid"}
    assert valid == {1, 2, 3, 4, 5}


def of_file(data: bytes, payload: bytes | None, number: int) -> Row:
    """A row of the log: an entry of a file."""
    entry = shown_row(data, "file", "a.jsonl") | {"payload": payload}
    return {"source": "s", "window_start": "w1", "capture_id": b"c", "record_number": number, "entry": entry}


def test_payloads_are_checked_against_their_entries_where_they_are_read() -> None:
    written = next(entries(SimulatorConfig(seed=1, connections=1, logs=1, entries=1)))
    right = decode(written.data).entry
    assert right is not None
    of_more = replace(right, payload_size=2**64 - 1).encode()
    rows = [
        of_file(written.data, written.payload, 0),
        of_file(written.data, b"another", 1),
        of_file(written.data, None, 2),
        of_file(of_more, written.payload, 3),
        of_file(b"\x02", b"of nothing", 4),
        of_file(b"", None, 5),
    ]
    names = ("source", "window_start", *(name for name, _ in PLACE))
    schema = pa.schema([*(MOVED.field(name) for name in names), ("entry", ENTRY_TYPE)])
    schema = schema.set(len(names), pa.field("entry", pa.struct([f for f in ENTRY_TYPE if f.name != "greedy"])))
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    moved = entry_rows(batch, {"s": "service"})
    mismatches = [None, "payload_hash_mismatch", None, "payload_size_mismatch", None, None]
    assert moved.column("payload_rule").to_pylist() == mismatches
    assert set(moved.column("source").to_pylist()) == {"service"}
    log = f"{right.author.hex()}:0"
    keys = moved.column("key").to_pylist()
    assert keys == [log, log, log, log, yamf.digest(b"\x02").hex(), yamf.digest(b"").hex()]
    results = [row for one in judged(moved) for row in one.entries.to_pylist()]
    assert [(row["verdict"], row["reason"]) for row in results if row["entry_hash"] == yamf.digest(written.data)] == [
        ("valid", None)
    ]
