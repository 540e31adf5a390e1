"""Binary logs: files to entries, entries to calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.errors import StateVersionError
from wirehouse_codecs.hiero import grpc
from wirehouse_codecs.hiero.grpc_log import (
    MAX_CALLS,
    Calls,
    Entry,
    EntryType,
    Framed,
    Framer,
    Lengths,
    decode,
    encode,
    frame,
)
from wirehouse_codecs.hiero.pieces import UNDECODABLE_BYTES
from wirehouse_codecs.rules import Place
from wirehouse_codecs.tcp import Direction

C, S = Direction.CLIENT, Direction.SERVER
PATH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
PLACE = Place(1, 0, b"log", 0)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=5)


def header(**fields: object) -> Entry:
    metadata = ((b"hiero-correlation-id", b"A-1"), (b"authorization", b"hidden"))
    known = {"type": EntryType.CLIENT_HEADER, "method": PATH, "authority": "node:40840", "metadata": metadata}
    return Entry(**{"call_id": 1, "timestamp_ns": 1_700_000_000_000_000_001, "logger": 1} | known | fields)  # type: ignore[arg-type]


CALL = [
    header(sequence=1, peer_address="10.0.0.1", peer_port=40840),
    Entry(1, EntryType.SERVER_HEADER, 2, metadata=((b"a", b"\xff"),)),
    Entry(1, EntryType.CLIENT_MESSAGE, 3, length=3, data=b"abc"),
    Entry(1, EntryType.SERVER_MESSAGE, 4, length=2_000_000, data=b"ab", truncated=True),
    Entry(1, EntryType.CLIENT_HALF_CLOSE, 5),
    Entry(1, EntryType.SERVER_TRAILER, 6, status=14, status_message="gone"),
]


def told(calls: Calls, *entries: Entry) -> list[grpc.Event]:
    return [event for one in entries for event in calls.receive(one, PLACE, 0, 9)]


def file_of(lengths: Lengths, entries: list[Entry]) -> bytes:
    return b"".join(frame(encode(entry), lengths) for entry in entries)


def cut(data: bytes, size: int, lengths: Lengths | None = None, limit: int = 1000) -> list[Framed]:
    framer = Framer(lengths, limit=limit)
    found = [one for at in range(0, len(data), size) for one in framer.receive(data[at : at + size])]
    return found + framer.finish()


@settings(max_examples=40)
@given(
    entry=st.builds(
        Entry,
        call_id=U64,
        type=st.just(EntryType.CLIENT_HEADER),
        sequence=U64,
        timestamp_ns=st.integers(-(2**62), 2**62),
        logger=st.integers(0, 2),
        metadata=st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
        method=TEXT,
        authority=TEXT,
        truncated=st.booleans(),
    )
)
def test_headers_round_trip(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


@pytest.mark.parametrize("entry", CALL)
def test_entries_round_trip(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


@pytest.mark.parametrize("lengths", Lengths)
def test_a_file_shows_how_its_lengths_are_written(lengths: Lengths) -> None:
    data = file_of(lengths, CALL)
    for size in (1, 2, 3, 50, len(data)):
        found = cut(data, size)
        assert [decode(one.data) for one in found] == CALL
        assert [one.byte_end for one in found[:-1]] == [one.byte_start for one in found[1:]]
        assert (found[0].byte_start, found[-1].byte_end) == (0, len(data))


@pytest.mark.parametrize("lengths", Lengths)
def test_a_file_that_is_cut_off_or_damaged_keeps_every_byte(lengths: Lengths) -> None:
    data = file_of(lengths, CALL)
    for end in range(len(data)):
        found = cut(data[:end], 7, lengths)
        assert found == cut(data[:end], 1, lengths)
        assert (found[-1].byte_end if found else 0) == end
        assert all(isinstance(decode(one.data), Entry) for one in found if not one.reason)
    long = data + b"\xff" * (UNDECODABLE_BYTES + 100)
    found = cut(long, 100, lengths)
    assert found == cut(long, len(long), lengths)
    lost = [one for one in found if one.reason]
    assert [one.byte_end - one.byte_start for one in lost] == [UNDECODABLE_BYTES, 100]
    assert not any("cut off" in one.reason for one in lost)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x05a", "a field of 5 bytes reaches beyond the end at byte 2"),
        (b"\x0b", "a field of wire type 3 at byte 1"),
        (b"\x10", "no varint ends after byte 1"),
        (b"\x12\x01a", "bytes in place of a number"),
        (b"\x08\x01", "a number in place of bytes"),
        (b"\x32\x03\x0a\x01\x0a", "no varint ends after byte 1"),
    ],
)
def test_what_is_no_entry(data: bytes, reason: str) -> None:
    assert decode(data) == reason


@settings(max_examples=200)
@given(data=st.binary(max_size=40))
def test_any_bytes_are_an_entry_or_not(data: bytes) -> None:
    assert isinstance(decode(data), Entry | str)
    found = cut(data, 3)
    assert sum(one.byte_end - one.byte_start for one in found) == len(data)


def test_a_call() -> None:
    where = (PLACE, 0, 9, 1)
    opened, answered, request, response, half_closed, trailers, closed = told(Calls(), *CALL)
    metadata = ((":authority", "node:40840"), ("hiero-correlation-id", "A-1"), ("authorization", grpc.WITHHELD))
    assert opened == grpc.Opened(C, *where, PATH, False, metadata)
    assert answered == grpc.Answered(S, *where, (("a", "\\xff"),))
    assert request == grpc.MessagePart(C, *where, 3, None, b"abc", True, True, None)
    fault = "the log has 2 of 2000000 bytes"
    assert response == grpc.MessagePart(S, *where, 2_000_000, None, b"ab", True, True, fault)
    assert half_closed == grpc.HalfClosed(C, PLACE, 9, 1)
    assert trailers == grpc.Trailers(S, *where, 14, "gone", ())
    assert closed == grpc.Closed(PLACE, 1, grpc.How.ENDED)


def test_a_cancelled_call_ends_once() -> None:
    calls = Calls()
    events = told(calls, header(), Entry(1, EntryType.CANCEL), Entry(1, EntryType.SERVER_TRAILER))
    assert [type(one).__name__ for one in events] == ["Opened", "Reset", "Closed", "Trailers"]
    assert calls.finish(PLACE) == []


def test_a_log_that_begins_within_a_call() -> None:
    calls = Calls()
    events = told(calls, *CALL[3:5])
    assert events[0] == grpc.Opened(S, PLACE, 0, 9, 1, None, False, ())
    assert len(events) == 3
    assert calls.finish(PLACE) == [grpc.Closed(PLACE, 1, grpc.How.CAPTURE_END)]


def test_entries_of_no_known_type_are_told() -> None:
    (event,) = told(Calls(), Entry(1, 99))
    assert event.reason == "an entry of type 99"  # type: ignore[union-attr]


def test_calls_go_on_from_a_snapshot_and_are_bounded() -> None:
    calls, events = Calls(), []
    for number in range(MAX_CALLS + 2):
        calls = Calls(calls.snapshot()) if number % 500 == 0 else calls
        events += told(calls, replace(CALL[2], call_id=number))
    forgotten = [one.call for one in events if isinstance(one, grpc.Closed)]
    assert forgotten == [0, 1]
    assert len(calls.finish(PLACE)) == MAX_CALLS
    with pytest.raises(StateVersionError):
        Calls('{"version":0}')
