"""Views that answer an operator's question, over rows written by hand, and beside plain models of random histories."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.session.streams import Stream
from wirehouse_pipelines.bamboo import gold
from wirehouse_pipelines.delta import arrow_types, table_reader
from wirehouse_pipelines.jobs.services import Members
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import all_tables

GIVEN = {"source": "a", "window_start": "2026-11-14", "capture_id": b"\2" * 32, "record_number": 7}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), Windows("day", "2015-01-01"))


def write(lake: Lake, name: str, *rows: Mapping[str, Any]) -> None:
    """Write `rows` to the Delta table `name`; columns left out are null."""
    table = pa.Table.from_pylist([GIVEN | dict(row) for row in rows], schema=arrow_types.schema(all_tables()[name]))
    write_deltalake(lake.table_path(name), table)


def rows(lake: Lake, statement: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sql.rows(lake, statement).to_pylist()
    return found


# Wallaroo


def session(connection: bytes, started: int, ended: int | None, **columns: Any) -> dict[str, Any]:
    names = {"program_name": "p", "instance_name": "i", "partial": False, "dialect": "v3"}
    return names | {"connection_id": connection, "started_at_ns": started, "ended_at_ns": ended} | columns


def test_a_connector_starves_from_its_last_credit_to_the_grant_or_the_end(lake: Lake) -> None:
    write(
        lake,
        "gold.wallaroo_sessions_history",
        session(b"c", 1, 90, dialect="seed_sid"),
        session(b"open", 1, None, credits=-2, zero_at_ns=99),
        session(b"full", 1, None, credits=1),
        session(b"sink", 1, None, dialect="sink_v2b", credits=0, zero_at_ns=5),
        session(b"hole", 1, None),
        # It fell silent, so its end was not captured.
        session(b"silent", 1, 200) | {"ended": "capture_end"},
    )
    turn = {"connection_id": b"c", "balance": 2}
    write(
        lake,
        "gold.wallaroo_credits",
        turn | {"arrived_at_ns": 10, "kind": "OK", "granted": 5, "spent": 0, "overdrawn": 0},
        turn | {"arrived_at_ns": 30, "kind": "ACK", "granted": 2, "spent": 5, "overdrawn": 1, "zero_at_ns": 25},
        turn | {"arrived_at_ns": 50, "kind": "NACK", "granted": 2, "spent": 2, "overdrawn": 0, "zero_at_ns": 40},
        turn | {"arrived_at_ns": 90, "granted": 0, "spent": 2, "overdrawn": 0, "zero_at_ns": 70},
        turn | {"connection_id": b"silent", "arrived_at_ns": 200, "granted": 0, "overdrawn": 1, "zero_at_ns": 100},
        # A grant may be in the hole after which the balance isn't known.
        {"connection_id": b"hole", "arrived_at_ns": 30, "kind": "ACK", "granted": 2, "overdrawn": 0, "zero_at_ns": 25},
    )
    write(lake, "bronze.captures", {"last_arrived_at_ns": 500}, {"last_arrived_at_ns": 300})
    columns = "started_at_ns, ended_at_ns, duration_ns, ended_by, granted, overdrawn, program_name"
    found = rows(lake, f"SELECT {columns} FROM gold.wallaroo_starvation ORDER BY started_at_ns")
    assert [tuple(row.values()) for row in found] == [
        (25, 30, 5, "ack", 2, 1, "p"),
        (40, 50, 10, "nack", 2, 0, "p"),
        (70, 90, 20, "close", 0, 0, "p"),
        (99, None, 401, None, None, 2, "p"),
        (100, None, 400, None, None, 1, "p"),
    ]


def accepted(
    at_ns: int | None, point: int | None, asked: int | None = None, nothing_seen: int | None = 2**64 - 1
) -> dict[str, Any]:
    """Columns of a stream of which the first NOTIFY_ACK that accepts gave this point, after a NOTIFY with `asked`."""
    if at_ns is None or point is None:
        return {}
    known = None if point == nothing_seen else point
    return {"accepted_at_ns": at_ns, "accepted_point": known, "accepted_echoes": point == asked}


@pytest.mark.parametrize(
    ("given", "acked", "sent", "verdict", "affected"),
    [
        (10, 10, 12, "exact", (None, None)),
        (9, 10, 12, "replay", (10, 10)),
        (7, 10, 12, "replay", (8, 10)),
        (11, 10, 12, "ahead", (11, 11)),
        (12, 10, 12, "ahead", (11, 12)),
        (15, 10, 12, "never_sent", (13, 15)),
        (12, None, 12, "ahead", (2, 12)),
        (13, None, 12, "never_sent", (13, 13)),
        (2**64 - 1, 10, 12, "anew", (None, None)),
        (None, 10, 12, "unknown", (None, None)),
        (10, None, None, "unknown", (None, None)),
    ],
)
def test_a_resume_is_compared_with_all_sessions_before(
    lake: Lake,
    given: int | None,
    acked: int | None,
    sent: int | None,
    verdict: str,
    affected: tuple[int | None, int | None],
) -> None:
    write(lake, "gold.wallaroo_sessions_history", session(b"1", 1, 5), session(b"2", 6, 8), session(b"3", 9, None))
    stream = {"stream_id": 4}
    write(
        lake,
        "gold.wallaroo_streams_history",
        # The last message had id 0, which workers of v2 take at any time.
        stream | {"connection_id": b"1", "last_acked": acked, "first_id": 2, "last_sent": 0, "highest_sent": sent},
        stream | {"connection_id": b"2"},
        stream | {"connection_id": b"3", "highest_sent": 20} | accepted(10, given),
    )
    (_, found) = rows(lake, "SELECT * FROM gold.wallaroo_resumes ORDER BY started_at_ns")
    assert found["verdict"] == verdict
    assert (found["last_acked_before"], found["last_sent_before"]) == (acked, sent)
    assert (found["resume_point"], found["previous_connection_id"]) == (None if verdict == "anew" else given, b"2")
    assert (found["first_id_affected"], found["last_id_affected"]) == affected
    assert found["also_open_on"] is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_greatest_reference_says_that_nothing_was_seen_only_in_dialects_that_have_it(
    lake: Lake, dialect: str
) -> None:
    sessions = session(b"1", 1, 5, dialect=dialect), session(b"2", 6, None, dialect=dialect)
    write(lake, "gold.wallaroo_sessions_history", *sessions)
    stream = {"stream_id": 4, "last_acked": 1, "highest_sent": 2}
    resumed = stream | {"connection_id": b"2"} | accepted(7, 2**64 - 1, nothing_seen=DIALECTS[dialect].nothing_seen)
    write(lake, "gold.wallaroo_streams_history", stream | {"connection_id": b"1"}, resumed)
    (found,) = rows(lake, "SELECT verdict, resume_point FROM gold.wallaroo_resumes")
    anew = DIALECTS[dialect].nothing_seen is not None
    assert tuple(found.values()) == (("anew", None) if anew else ("never_sent", 2**64 - 1))


def test_what_an_earlier_session_lacks_may_have_been_acknowledged(lake: Lake) -> None:
    write(lake, "gold.wallaroo_sessions_history", session(b"1", 1, None, partial=True), session(b"2", 6, None))
    stream = {"stream_id": 4, "last_acked": 1, "highest_sent": 2}
    resumed = stream | {"connection_id": b"2"} | accepted(7, 3)
    write(lake, "gold.wallaroo_streams_history", stream | {"connection_id": b"1"}, resumed)
    (found,) = rows(lake, "SELECT verdict, also_open_on FROM gold.wallaroo_resumes")
    assert found == {"verdict": "unknown", "also_open_on": b"1"}


def _model_of_resumes(held: list[dict[str, Any]]) -> dict[bytes, tuple[Any, ...]]:
    """By connection: verdict, ids affected and the other living connection. `held`: sessions of one stream id."""
    found = {}
    for this in held:
        at = this["started"] if this["answered"] is None else this["answered"]
        mine = [one for one in held if one["who"] == this["who"] and one["started"] < this["started"]]
        before = [one for one in held if (at if one is this else one["answered"] or one["started"]) < at]
        if not mine or this["who"] is None:
            continue
        sent = max((one["sent"] for one in mine if one["sent"] is not None), default=None)
        acked = max((one["acked"] for one in mine if one["acked"] is not None), default=None)
        given, asked = this["given"], this["asked"]
        affected: tuple[int | None, int | None] = None, None
        if given is None or sent is None or any(one["partial"] for one in mine):
            verdict = "unknown"
        elif given > sent:
            reached = max((point or 0 for one in before for point in (one["sent"], one["given"])), default=0)
            unsure = any(one["partial"] or one["ended"] is None or one["lost"] for one in before)
            verdict = "unknown" if unsure or given == asked or given <= reached else "never_sent"
            affected = (sent + 1, given) if verdict == "never_sent" else affected
        elif acked is None or given > acked:
            firsts = [one["first"] for one in mine if one["first"] is not None]
            verdict, affected = "ahead", (min(firsts) if acked is None else acked + 1, given)
        elif given == acked:
            verdict = "exact"
        else:
            verdict, affected = "replay", (given + 1, acked)
        living = [one for one in mine if one["ended"] is None or one["ended"] > at]
        also = max(living, key=lambda one: (one["ended"] or 10**9, one["started"]))["connection"] if living else None
        found[this["connection"]] = (verdict, *affected, also)
    return found


@pytest.mark.property
def test_resumes_are_those_of_a_plain_model(lake: Lake) -> None:
    """Instances share streams, sessions overlap, and some are not captured as a whole, or have not ended."""
    random = Random(5)
    sessions, streams = list[dict[str, Any]](), list[dict[str, Any]]()
    expected: dict[bytes, tuple[Any, ...]] = {}
    for stream_id in range(400):
        held = list[dict[str, Any]]()
        for number, started in enumerate(sorted(random.sample(range(0, 900, 100), random.randint(2, 5)))):
            answered = random.choice([started + 1, started + 1, started + 250 + number, None])
            given = None if answered is None else random.randint(0, 14)
            first = random.choice([None, 1, 2, 3])
            held.append(
                {
                    "connection": b"%d %d" % (stream_id, number),
                    "who": random.choice(["i", "i", "i", "j", None]),
                    "started": started,
                    "answered": answered,
                    "ended": random.choice([started + 20 + number] * 2 + [started + 330 + number, None]),
                    "lost": random.random() < 0.1,
                    "partial": random.random() < 0.1,
                    "first": first,
                    "sent": None if first is None else first + random.randint(0, 9),
                    "acked": None if first is None else random.choice([None, random.randint(1, 6)]),
                    "given": given,
                    "asked": random.choice([0, given]),
                }
            )
        expected |= _model_of_resumes(held)
        for one in held:
            names = {"program_name": one["who"] and "p", "instance_name": one["who"], "partial": one["partial"]}
            how = {"ended": "capture_end" if one["lost"] else None if one["ended"] is None else "closed"}
            sessions.append(session(one["connection"], one["started"], one["ended"]) | names | how)
            streams.append(
                {"connection_id": one["connection"], "stream_id": stream_id, "first_id": one["first"]}
                | {"highest_sent": one["sent"], "last_acked": one["acked"], "resume_point": one["given"]}
                | accepted(one["answered"], one["given"], one["asked"])
            )
    write(lake, "gold.wallaroo_sessions_history", *sessions)
    write(lake, "gold.wallaroo_streams_history", *streams)
    shown = ("verdict", "first_id_affected", "last_id_affected", "also_open_on")
    found = {
        row["connection_id"]: tuple(row[name] for name in shown)
        for row in rows(lake, "SELECT * FROM gold.wallaroo_resumes")
    }
    assert found == expected
    verdicts = [verdict for verdict, *_ in found.values()]
    assert all(verdicts.count(each) > 5 for each in ("exact", "replay", "ahead", "never_sent", "unknown"))


@pytest.mark.parametrize(
    ("other", "asked", "verdict"),
    [
        ({}, 0, "never_sent"),
        # Who sent that far: another instance, of the same stream.
        ({"highest_sent": 15}, 0, "unknown"),
        # Or it had been given that point, and sent nothing.
        ({"resume_point": 15}, 0, "unknown"),
        ({"partial": True}, 0, "unknown"),
        ({"ended_at_ns": None}, 0, "unknown"),
        ({"ended": "capture_end"}, 0, "unknown"),
        # Workers that don't know a stream repeat the reference of its NOTIFY.
        ({}, 15, "unknown"),
    ],
)
def test_nothing_counts_as_never_sent_that_another_session_may_explain(
    lake: Lake, other: dict[str, Any], asked: int, verdict: str
) -> None:
    of_session = {name: value for name, value in other.items() if name in ("partial", "ended_at_ns", "ended")}
    sessions = session(b"1", 1, 5), session(b"2", 6, 8, instance_name="j") | of_session, session(b"3", 9, None)
    write(lake, "gold.wallaroo_sessions_history", *sessions)
    stream = {"stream_id": 4, "last_acked": 10, "highest_sent": 12}
    of_stream = {name: value for name, value in other.items() if name not in of_session}
    write(
        lake,
        "gold.wallaroo_streams_history",
        stream | {"connection_id": b"1"},
        stream | {"connection_id": b"2"} | of_stream,
        stream | {"connection_id": b"3"} | accepted(11, 15, asked),
    )
    (found,) = rows(lake, "SELECT verdict FROM gold.wallaroo_resumes")
    assert found["verdict"] == verdict


OPEN = {"accepted": True, "eos_messages": 0, "dialect": "v3"}
REFUSED, USED = False, True


def stuck(lake: Lake, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows(lake, "SELECT * FROM gold.wallaroo_stuck")]


def stream(connection: bytes, state: str, **columns: Any) -> dict[str, Any]:
    return {"connection_id": connection, "stream_id": 4, "state": state} | columns


def answers(*given: tuple[int, bool]) -> dict[str, Any]:
    """Columns of a stream that was refused or used at these times."""
    model = Stream()
    for at_ns, used in given:
        model.note_answer(0, at_ns, accepts=used)
    return {"refused_since_ns": model.refused_ns, "refusals": model.refusals, "was_in_use": model.was_in_use}


def progress(connection: bytes) -> dict[str, Any]:
    return {"program_name": "p", "instance_name": "i", "stream_id": 4, "connection_id": connection}


@pytest.mark.parametrize(
    ("state", "first", "second", "refused"),
    [
        # Refused in two sessions, and before it was accepted.
        ("refused", [(5, REFUSED), (7, USED), (9, REFUSED)], [(12, REFUSED)], (9, 2)),
        ("refused", [(5, REFUSED)], [(12, REFUSED), (13, REFUSED)], (5, 3)),
        ("pending", [(2, USED)], [(12, REFUSED), (14, REFUSED)], (12, 2)),
        ("pending", [(3, REFUSED)], [], (3, 1)),
        ("pending", [], [], None),
        # A second NOTIFY of an open stream is refused, and the stream goes on.
        ("open", [(3, REFUSED)], [(12, USED), (13, REFUSED)], None),
        ("refused", [(3, REFUSED)], [(12, USED), (13, REFUSED), (14, USED), (15, REFUSED)], (15, 1)),
    ],
)
def test_a_stream_is_refused_since_it_was_in_use_last(
    lake: Lake,
    state: str,
    first: list[tuple[int, bool]],
    second: list[tuple[int, bool]],
    refused: tuple[int, int] | None,
) -> None:
    write(lake, "gold.wallaroo_sessions_history", session(b"\1", 1, 10) | OPEN, session(b"\2", 11, None) | OPEN)
    streams = stream(b"\1", "refused", **answers(*first)), stream(b"\2", state, **answers(*second))
    write(lake, "gold.wallaroo_streams_history", *streams)
    write(lake, "gold.wallaroo_stream_progress_history", progress(b"\2"))
    assert stuck(lake, "refused_since_ns", "refusals") == ([refused] if refused else [])


@pytest.mark.parametrize(("first", "second"), [("open", {}), ("refused", {"partial": True})])
def test_what_is_not_known_of_a_session_refuses_no_stream(lake: Lake, first: str, second: dict[str, Any]) -> None:
    """A refusal of a stream that stayed open, or from before a gap, isn't counted in the next session."""
    sessions = (session(b"1", 1, 5, **second), session(b"2", 6, None))
    write(lake, "gold.wallaroo_sessions_history", *(each | OPEN for each in sessions))
    streams = stream(b"1", first, **answers((3, REFUSED))), stream(b"2", "refused", **answers((8, REFUSED)))
    write(lake, "gold.wallaroo_streams_history", *streams)
    write(lake, "gold.wallaroo_stream_progress_history", progress(b"2"))
    assert stuck(lake, "refused_since_ns", "refusals") == [(8, 1)]


@pytest.mark.parametrize("lacking", [{"partial": True}, {"accepted": False}])
def test_a_session_that_was_not_captured_as_a_whole_is_not_stuck(lake: Lake, lacking: dict[str, Any]) -> None:
    write(lake, "gold.wallaroo_sessions_history", session(b"1", 1, None) | OPEN | lacking)
    waits = {"unacked": 1, "oldest_unacked_id": 9, "unacked_since_ns": 4}
    write(lake, "gold.wallaroo_streams_history", stream(b"1", "refused", **waits, **answers((3, REFUSED))))
    write(lake, "gold.wallaroo_stream_progress_history", progress(b"1"))
    assert stuck(lake, "refusals") == []


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({}, [(5, 40, 3, 2)]),
        ({"oldest_unacked_id": None}, []),
    ],
)
def test_the_oldest_message_that_waits_is_that_of_the_newest_session(
    lake: Lake, columns: dict[str, Any], shown: list[tuple[int, ...]]
) -> None:
    write(lake, "gold.wallaroo_sessions_history", session(b"1", 1, None) | OPEN | {"eos_messages": 2})
    waits = {"unacked": 3, "oldest_unacked_id": 5, "unacked_since_ns": 40} | columns
    write(lake, "gold.wallaroo_streams_history", stream(b"1", "open", **waits))
    write(lake, "gold.wallaroo_stream_progress_history", progress(b"1"))
    assert stuck(lake, "oldest_unacked_id", "unacked_since_ns", "unacked", "eos_drift") == shown


# Hiero


def test_the_latency_of_a_block_has_its_size(lake: Lake) -> None:
    place = {"call": "1", "byte_start": 0, "direction": "client", "header_at_ns": 20}
    write(
        lake,
        "gold.hiero_latencies_history",
        place | {"byte_end": 5, "block_number": 7, "window_start": "2026-11-14"},
        place | {"byte_end": 5, "block_number": 7, "window_start": "2026-11-15", "delivered_at_ns": 40},
        place | {"byte_end": 9, "block_number": 8, "window_start": "2026-11-14"},
    )
    write(lake, "gold.hiero_blocks_history", {"block_number": 7, "item_bytes": 300}, {"block_number": 9})
    told = rows(lake, "SELECT block_number, bytes, delivered_at_ns FROM gold.hiero_latencies ORDER BY block_number")
    assert [tuple(row.values()) for row in told] == [(7, 300, 40), (8, None, None)]


def series_of(calls: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """gold.hiero_retries of one publisher at one node: started_at_ns, failures, gaps, grows, state."""
    series: list[dict[str, Any]] = []
    for call in calls:
        series.append(call)
        if not call["failed"] or call is calls[-1]:
            failures = [one for one in series if one["failed"]]
            if failures:
                gaps = [after["opened_at_ns"] - before["ended_at_ns"] for before, after in itertools.pairwise(series)]
                grows = all(after > before for before, after in itertools.pairwise(gaps)) if len(gaps) > 1 else None
                last = series[-1]["failed"]
                state = "failing" if last else "open" if last is None else "recovered"
                yield series[0]["opened_at_ns"], len(failures), gaps, grows, state
            series = []


@pytest.mark.property
def test_retries_are_runs_of_failed_calls(lake: Lake) -> None:
    random, calls = Random(5), list[dict[str, Any]]()
    for publisher in "abcdefgh":
        at = 0
        for number in range(random.randrange(1, 12)):
            at += random.randrange(1, 9)
            opened, at = at, at + random.randrange(1, 4)
            call = {"call": f"{publisher}{number}", "publisher": publisher, "node": "n", "opened_at_ns": opened}
            calls.append(call | {"ended_at_ns": at, "failed": random.choice([True, True, False])})
        calls[-1]["failed"] = random.choice([True, None])
        if calls[-1]["failed"] is None:
            calls[-1]["ended_at_ns"] = None
    write(lake, "gold.hiero_publisher_sessions_history", *calls)
    found: dict[str, list[tuple[Any, ...]]] = {publisher: [] for publisher in "abcdefgh"}
    for row in rows(lake, "SELECT * FROM gold.hiero_retries ORDER BY started_at_ns"):
        gaps = [one["gap_ns"] for one in row["attempts"] if one["gap_ns"] is not None]
        found[row["publisher"]].append((row["started_at_ns"], row["failures"], gaps, row["grows"], row["state"]))
    assert found == {
        publisher: list(series_of([call for call in calls if call["publisher"] == publisher])) for publisher in found
    }


def test_a_publisher_that_goes_to_another_node_has_moved(lake: Lake) -> None:
    call = {"call": "1", "publisher": "P", "node": "n", "opened_at_ns": 1, "ended_at_ns": 2, "failed": True}
    moved = {"call": "2", "node": "m", "opened_at_ns": 3, "failed": None, "ended_at_ns": None}
    write(
        lake,
        "gold.hiero_publisher_sessions_history",
        call | {"next_call": "2", "next_node": "m", "next_at_ns": 3},
        call | moved,
    )
    (series,) = rows(lake, "SELECT state, next_node, grows FROM gold.hiero_retries")
    assert series == {"state": "moved", "next_node": "m", "grows": None}


# Cardinal


@pytest.mark.property
def test_values_and_what_reorgs_took_back_are_those_of_the_chain(lake: Lake) -> None:
    random = Random(3)
    updates, spans = [], []
    chain: list[tuple[int, bytes, int]] = []
    states: list[dict[bytes, bytes | None]] = []
    contents: dict[bytes, dict[bytes, bytes | None]] = {}
    undone: dict[tuple[int, bytes], tuple[Any, ...]] = {}

    def values() -> dict[bytes, bytes | None]:
        state: dict[bytes, bytes | None] = {}
        for _, block_hash, _ in chain:
            state |= contents[block_hash]
        return state

    for at in range(1, 60):
        before, removed = values(), set[bytes]()
        for _ in range(random.choice([0, 0, 0, 1, 2, 3]) if len(chain) > 4 else 0):
            number, block_hash, since = chain.pop()
            removed |= contents[block_hash].keys()
            spans.append({"number": number, "block_hash": block_hash, "valid_from_ns": since, "valid_to_ns": at})
        ancestor = chain[-1][:2] if chain else None
        for _ in range(random.randint(1, 3)):
            number, block_hash = len(chain), random.randbytes(32)
            keys = random.sample([b"a", b"b", b"c", b"d"], random.randrange(3))
            contents[block_hash] = {key: random.choice([None, random.randbytes(3)]) for key in keys}
            chain.append((number, block_hash, at))
            for key, value in contents[block_hash].items():
                updates.append({"block_hash": block_hash, "number": number, "key": key, "value": value})
                updates[-1]["operation"] = "delete" if value is None else "set"
        undone |= {(at, key): (before[key], values().get(key), ancestor) for key in removed}
        states.append(values())
    spans += [{"number": n, "block_hash": h, "valid_from_ns": since, "canonical": True} for n, h, since in chain]
    write(lake, "gold.cardinal_batch_updates", *updates)
    write(lake, "gold.cardinal_chain_history", *({"canonical": False} | span for span in spans))
    found = {row["key"]: row["value"] for row in rows(lake, "SELECT * FROM gold.cardinal_values")}
    assert found == values()
    taken = rows(lake, "SELECT * FROM gold.cardinal_undo")
    assert {
        (row["removed_at_ns"], row["key"]): (
            *(row["before"], row["after"]),
            (row["ancestor_number"], row["ancestor_hash"]),
        )
        for row in taken
    } == undone
    assert len(taken) == len(undone) > 10
    history = rows(lake, "SELECT * FROM gold.cardinal_values_history")
    for at, state in enumerate(states, start=1):
        held = [row for row in history if row["valid_from_ns"] <= at and (row["valid_to_ns"] or 99) > at]
        assert {row["key"]: row["value"] for row in held} == state
        assert len(held) == len(state)
        assert all(row["deleted"] == (row["value"] is None) for row in held)
    ends = [(row["key"], row["block_hash"], row["valid_to_ns"]) for row in history]
    assert not {(row["key"], row["block_hash"], row["valid_from_ns"]) for row in history} & set(ends)


HASHES = [bytes([number]) * 32 for number in range(250)]


def feed(lake: Lake, *blocks: tuple[int, int | None], moves: list[tuple[int, int]], **columns: Any) -> None:
    """Write the blocks of one branch: each (number, completed at), and when the head came to which block."""
    batches = [
        {"number": n, "block_hash": HASHES[n], "parent": HASHES[n - 1], "completed_at_ns": at, "arrived_at_ns": 1}
        | {"status": "complete" if at else "incomplete"}
        | columns.get(f"block_{n}", {})
        for n, at in blocks
    ]
    updates = [
        {"sequence": step, "head_number": number, "head_hash": HASHES[number], "arrived_at_ns": at}
        for step, (at, number) in enumerate(moves)
    ]
    spans = []
    first = min(number for number, _ in blocks)
    for at, number in moves:
        spans += [
            {"number": each, "block_hash": HASHES[each], "valid_from_ns": at, "canonical": True}
            for each in range(first, number + 1)
        ]
        first = max(first, number + 1)
    write(lake, "gold.cardinal_batches_history", *batches)
    write(lake, "gold.cardinal_chain_updates", *updates)
    write(lake, "gold.cardinal_chain_history", *spans)


def stalls(lake: Lake, *names: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in names)
        for row in rows(lake, "SELECT * FROM gold.cardinal_stalls ORDER BY started_at_ns")
    ]


SPAN = ("head_number", "started_at_ns", "ended_at_ns", "waiting_blocks", "blocking_number")


def test_the_head_stalls_while_a_complete_block_waits_for_one_that_is_not(lake: Lake) -> None:
    lacking = [{"name": "state/", "messages": 2, "what": "messages"}]
    feed(
        lake,
        *[(10, 5), (11, 40), (12, 20), (13, 30), (14, 50), (15, None), (16, 70), (17, 80)],
        moves=[(5, 10), (40, 13), (50, 14)],
        block_15={"missing": lacking},
    )
    write(
        lake,
        "silver.cardinal",
        *(
            {"row_kind": "message", "topic": topic, "partition": 2, "offset": offset}
            | {"message": {"kind": kind, "block_hash": HASHES[number]}}
            for topic, offset, kind, number in [
                ("feed", 7, "batch", 15),
                ("state", 0, "batch_msg", 15),
                ("state", 9, "batch_msg", 15),
                ("state", 10, "batch_msg", 16),
                ("side", 1, "reorg", 15),
            ]
        ),
    )
    assert stalls(lake, *SPAN) == [(10, 20, 40, 2, 11), (14, 70, None, 2, 15)]
    assert stalls(lake, "blocking_hash", "blocking_status") == [(HASHES[11], "complete"), (HASHES[15], "incomplete")]
    (_, (missing, around)) = stalls(lake, "missing", "around")
    assert missing == lacking
    assert [tuple(each.values()) for each in around] == [("feed", 2, 7, 7), ("state", 2, 0, 9)]


def test_a_block_that_never_came_is_named_by_its_child(lake: Lake) -> None:
    feed(lake, (10, 5), (12, 20), moves=[(5, 10)])
    message = {"row_kind": "message", "topic": "feed", "partition": 0, "offset": 3}
    write(lake, "silver.cardinal", message | {"message": {"kind": "batch", "block_hash": HASHES[10]}})
    ((block_hash, status, missing, around),) = stalls(lake, "blocking_hash", "blocking_status", "missing", "around")
    assert (block_hash, status, missing) == (HASHES[11], None, None)
    assert around == [{"topic": "feed", "partition": 0, "first_offset": 3, "last_offset": 3}]


def test_a_block_without_a_batch_blocks_too_and_one_that_nobody_names_is_not_known(lake: Lake) -> None:
    feed(
        lake,
        *[(10, 5), (12, 20), (11, None), (14, 30)],
        moves=[(5, 10)],
        block_11={"number": None, "parent": None, "missing": [{"name": "", "messages": 1, "what": "batch message"}]},
    )
    assert stalls(lake, *SPAN, "blocking_hash", "blocking_status") == [(10, 20, None, 2, 11, HASHES[11], "incomplete")]


def test_no_block_stalls_the_head_that_it_cannot_move(lake: Lake) -> None:
    """Blocks that came in order, below the head, refused, or incomplete themselves."""
    feed(
        lake,
        *[(10, 5), (11, 20), (12, 30), (13, 40), (14, None), (15, None), (17, 60)],
        moves=[(5, 10), (20, 11), (30, 12), (40, 13)],
        block_17={"status": "refused"},
    )
    # Of a branch whose beginning never came.
    side = {"number": 12, "block_hash": HASHES[200], "parent": HASHES[199], "status": "complete"}
    schema = arrow_types.schema(all_tables()["gold.cardinal_batches_history"])
    rows_of = pa.Table.from_pylist([GIVEN | side | {"completed_at_ns": 45, "arrived_at_ns": 44}], schema=schema)
    write_deltalake(lake.table_path("gold.cardinal_batches_history"), rows_of, mode="append")
    assert stalls(lake, *SPAN) == []


@pytest.mark.property
def test_stalls_are_the_times_at_which_a_complete_block_lacks_its_parent(lake: Lake) -> None:
    random, batches, updates, spans = Random(11), list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    expected: list[tuple[Any, ...]] = []
    for seed in range(40):
        source: dict[str, Any] = {"source": f"s{seed}"}
        # Block 0 is complete first; several may be complete at one time, and some never.
        completed: dict[int, int | None] = {n: random.choice([n + 1, random.randrange(2, 30), None]) for n in range(15)}
        completed[0] = 1
        batches += [
            source
            | {"number": n, "block_hash": HASHES[n], "parent": HASHES[n - 1], "arrived_at_ns": 1}
            | {"status": "incomplete" if at is None else "complete", "completed_at_ns": at}
            for n, at in completed.items()
        ]
        head, sequence = -1, 0
        now: tuple[str, int, int, int] | None = None
        for at in range(1, 32):
            done = {n for n, when in completed.items() if when is not None and when <= at}
            moved = next(n for n in range(16) if n + 1 not in done)
            spans += [
                source | {"number": n, "block_hash": HASHES[n], "valid_from_ns": at, "canonical": True}
                for n in range(head + 1, moved + 1)
            ]
            if moved != head:
                head = moved
                updates.append(
                    source | {"sequence": sequence, "head_number": head, "head_hash": HASHES[head], "arrived_at_ns": at}
                )
                sequence += 1
                if now:
                    expected.append((*now[:3], at, now[3]))
                now = None
            if waiting := sum(n > head for n in done):
                now = (source["source"], head, now[2] if now else at, waiting)
        if now:
            expected.append((*now[:3], None, now[3]))
    write(lake, "gold.cardinal_batches_history", *batches)
    write(lake, "gold.cardinal_chain_updates", *updates)
    write(lake, "gold.cardinal_chain_history", *spans)
    found = stalls(lake, "source", "head_number", "started_at_ns", "ended_at_ns", "waiting_blocks")
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {row[3] is None for row in found} == {True, False}
    assert len(found) > 60


def test_a_block_below_the_head_that_comes_late_changes_what_no_later_block_changed(lake: Lake) -> None:
    """One key is set to nothing, and a block sets and deletes one at once."""
    change = {"operation": "set"}
    write(
        lake,
        "gold.cardinal_batch_updates",
        change | {"number": 1, "block_hash": b"1", "key": b"a", "value": b"1"},
        change | {"number": 2, "block_hash": b"2", "key": b"a", "value": b"2"},
        change | {"number": 2, "block_hash": b"2", "key": b"b", "value": b""},
        change | {"number": 3, "block_hash": b"3", "key": b"a", "value": b"3"},
        change | {"number": 3, "block_hash": b"3", "key": b"b", "operation": "delete"},
        change | {"number": 3, "block_hash": b"3", "key": b"c", "operation": "delete"},
        change | {"number": 3, "block_hash": b"3", "key": b"c", "value": b"c"},
        change | {"number": 4, "block_hash": b"4", "key": b"a", "value": b"4"},
    )
    spans = ((1, 1, None), (3, 5, 20), (2, 9, None), (4, 7, 7))
    write(
        lake,
        "gold.cardinal_chain_history",
        *({"block_hash": b"%d" % n, "number": n, "valid_from_ns": f, "valid_to_ns": t} for n, f, t in spans),
    )
    names = ("key", "value", "deleted", "valid_from_ns", "valid_to_ns")
    found = rows(lake, f"SELECT {', '.join(names)} FROM gold.cardinal_values_history ORDER BY key, valid_from_ns")
    assert [tuple(row[name] for name in names) for row in found] == [
        (b"a", b"1", False, 1, 5),
        (b"a", b"3", False, 5, 20),
        (b"a", b"2", False, 20, None),
        (b"b", None, True, 5, 20),
        (b"b", b"", False, 20, None),
        (b"c", b"c", False, 5, 20),
    ]


# Bamboo


SKIPS = {"skip_small": "skipped_small", "skip_large": "skipped_large", "skip_missing": "skipped_missing"}
SKIPS |= {"skip_bytes": "skipped_part"}


def ranges(numbers: set[int]) -> list[tuple[int, int]] | None:
    """Numbers as ranges; None if there are none."""
    begins = sorted(number for number in numbers if number - 1 not in numbers)
    ends = sorted(number for number in numbers if number + 1 not in numbers)
    return list(zip(begins, ends, strict=True)) or None


def spans(found: list[dict[str, Any]] | None) -> list[tuple[int, int]] | None:
    return None if found is None else [(int(one["first"]), int(one["last"])) for one in found]


def entries_of(random: Random, log: dict[str, Any], seq: int) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Rows of the entries of a number, as gold has them at last, and of the file that one came in with its payload."""
    for branch in range(random.choice([1, 1, 2])):
        entry_hash = bytes([int(log["log_id"]), seq, branch]) * 20
        entry = log | {"seq": seq, "entry_id": entry_hash, "entry_hash": entry_hash}
        entry["verdict"] = random.choice(["valid", "invalid", "unknown"])
        entry["seen_from"] = random.sample(["a:1", "b:2", "c.jsonl"], random.randint(1, 3))
        entry["payload_size"] = random.choice([0, 5, 5, 5, 5])
        entry["payload_rule"] = random.choice([None, None, "payload_hash_wrong"])
        row = {"entry_hash": entry_hash, "payload": b"12345"}
        file = {"source": f"file{log['log_id']}", "row_kind": "entry", "entry": row}
        yield entry, file if random.random() < 0.2 else None


def piece_of(random: Random, connection: bytes) -> dict[str, Any]:
    """A row of a packet about a payload, of proposal 0 or of another one, which is about another log."""
    kind = random.choice([*SKIPS, "raw", "raw", "lz"])
    message: dict[str, Any] = {"kind": kind, "seq": random.choice([*range(1, 14), None])}
    if kind == "skip_bytes":
        message["count"] = random.choice([0, 1, 9])
    if kind not in SKIPS:
        rule = random.choice([None, "payload_hash_wrong"])
        payload = {"packets": 1, "checked": rule is not None or random.random() < 0.8, "rule": rule}
        message["payload"] = random.choice([payload, payload, None])
    row = {"source": "net", "window_start": GIVEN["window_start"], "connection_id": connection}
    return row | {"proposal_number": random.choice([0, 0, 0, 1]), "message": message}


def fates(pieces: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """Rows of gold.bamboo_payloads of these pieces of a source of the service `source`."""
    names = ("source", "window_start", "connection_id", "proposal_number", "message")
    schema = table_reader.chosen(
        arrow_types.schema(all_tables()["silver.bamboo"]),
        dict.fromkeys(names, ()) | {"message": ("kind", "seq", "count", "payload.checked", "payload.rule")},
    )
    read = pa.RecordBatch.from_pylist(pieces, schema=schema)
    found: list[dict[str, Any]] = gold._fates(read, Members({"net": source}, {})).to_pylist()
    return found


@pytest.mark.property
@pytest.mark.parametrize("seed", range(6))
def test_coverage_is_what_came_of_each_log(lake: Lake, seed: int) -> None:
    """Entries change from window to window and fork; payloads come by files and by one or two connections."""
    random = Random(seed)
    entries, logs, silver = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    proposals, sessions, payloads = (list[dict[str, Any]]() for _ in range(3))
    expected: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    before = {"window_start": "2026-11-13"}
    for number in range(12):
        log: dict[str, Any] = {"source": f"s{number % 2}", "author": b"k%d" % (number // 4), "log_id": number}
        numbers = random.sample(range(1, 12), random.randint(1, 9))
        known = [both for seq in numbers for both in entries_of(random, log, seq)]
        # Rows of an earlier window count no more.
        old = [entry | before | {"verdict": "valid", "seen_from": ["old"]} for entry, _ in known[::3]]
        entries += [*old, *(entry for entry, _ in known)]
        silver += [file for _, file in known if file]
        connection, data = b"c%d" % number, random.choice([None, b"d%d" % number])
        session = {"source": log["source"], "connection_id": connection, "data_connection_id": data}
        sessions += [session | before, session]
        proposal = log | {"connection_id": connection}
        proposals += [proposal | {"proposal_number": n, "log_id": log_id} for n, log_id in ((0, number), (1, 99))]
        pieces = [piece_of(random, data or connection) for _ in range(12)]
        payloads += fates(pieces, log["source"])
        own = [piece["message"] for piece in pieces if not piece["proposal_number"] and piece["message"]["seq"]]
        whole = {one["seq"] for one in own if one.get("payload") == {"packets": 1, "checked": True, "rule": None}}
        whole |= {entry["seq"] for entry, _ in known if not entry["payload_size"]}
        whole |= {entry["seq"] for entry, file in known if file and not entry["payload_rule"]}
        # A skip of 0 bytes skips nothing.
        skipped = [{one["seq"] for one in own if one["kind"] == kind and one.get("count", 1)} - whole for kind in SKIPS]
        logs += [log | before | {"length": 1}, log | {"length": 9, "entries": 6, "valid": 2}]
        verified = {entry["seq"] for entry, _ in known if entry["verdict"] == "valid"}
        senders = {sender for entry, _ in known for sender in entry["seen_from"]}
        of_log = (ranges(set(numbers)), ranges(verified), ranges(whole), len(whole), sorted(senders), 9)
        expected[log["source"], log["author"], number] = (*of_log, *map(len, skipped))
    # A log of which nothing but its number is known.
    logs.append({"author": b"k", "log_id": 7, "length": 1})
    expected["a", b"k", 7] = (None, None, None, 0, None, 1, 0, 0, 0, 0)
    write(lake, "gold.bamboo_entries_history", *entries)
    write(lake, "gold.bamboo_logs_history", *logs)
    write(lake, "gold.bamboo_proposals_history", *proposals)
    write(lake, "gold.bamboo_sessions_history", *sessions)
    write(lake, "gold.bamboo_payloads", *payloads)
    write(lake, "silver.bamboo", *silver)
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {
        (row["source"], row["author"], int(row["log_id"])): (
            *(spans(row[name]) for name in ("known", "verified", "payloads")),
            *(row[name] for name in ("known_payloads", "served_by", "length", *SKIPS.values())),
        )
        for row in rows(lake, "SELECT * FROM gold.bamboo_coverage")
    }
    assert found == expected
    assert all(sum(row[number] for row in found.values()) for number in range(6, 10))


# Ockam


def confirm(at: int, index: int, pushed_at: int, **columns: Any) -> dict[str, Any]:
    """A PushConfirm of request 1 to stream `s` by publisher `p` on connection `c`, whose push has the data `x`."""
    message: dict[str, Any] = {"kind": "push_response", "status": "ok", "request_id": 1, "index": index}
    answers: dict[str, Any] = {
        "requested_at_ns": pushed_at,
        "request_byte_start": pushed_at,
        "data": b"x",
        "data_bytes": 1,
    }
    row: dict[str, Any] = {"row_kind": "message", "stream_address": "s", "requester": "p", "connection_id": b"c"}
    row |= {"direction": "server", "arrived_at_ns": at, "byte_start": at, "byte_end": at + 1}
    for part, values in (("message", message), ("answers", answers | {"unsure": False})):
        row[part] = values | {name: columns.pop(name) for name in list(columns) if name in {**values, "ignored": None}}
    return row | columns


def test_a_message_is_stored_twice_if_it_is_pushed_again_under_its_request_id(lake: Lake) -> None:
    write(
        lake,
        "silver.ockam",
        confirm(5, 10, 1),
        confirm(6, 12, 4),
        confirm(2_500_000_009, 13, 2_500_000_001),
        # The stream confirmed one index again.
        confirm(2_500_000_010, 10, 2_500_000_002),
        # Other data, another id, publisher, stream or connection: each is a message of its own.
        confirm(7, 20, 2, data=b""),
        confirm(8, 21, 3, data=None),
        confirm(9, 22, 3, data=None),
        confirm(10, 23, 3, request_id=2),
        confirm(11, 24, 3, requester="q"),
        confirm(12, 25, 3, requester=None),
        confirm(13, 26, 3, stream_address="t"),
        confirm(14, 27, 3, connection_id=b"d"),
        # Not stored, or not known to be what was pushed.
        confirm(15, 28, 3, status="error"),
        confirm(16, 29, 3, ignored="answers_nothing"),
        confirm(17, 30, 3, unsure=True),
    )
    names = ("first_index", "index", "seconds_between", "pushed_after_confirm", "first_confirmed_at_ns")
    found = rows(lake, "SELECT * FROM gold.ockam_duplicates ORDER BY arrived_at_ns")
    assert [tuple(row[name] for name in names) for row in found] == [
        (10, 12, 3e-9, False, 5),
        (10, 13, 2.5, True, 5),
    ]


def test_empty_messages_are_stored_twice_too(lake: Lake) -> None:
    write(lake, "silver.ockam", confirm(5, 0, 1, data=b"", data_bytes=0), confirm(6, 1, 2, data=b"", data_bytes=0))
    (row,) = rows(lake, "SELECT first_index, data_bytes FROM gold.ockam_duplicates")
    assert row == {"first_index": 0, "data_bytes": 0}
