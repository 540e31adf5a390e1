"""Binary logs: files to entries, entries to calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.grpc_log import (
    MAX_CALLS,
    Address,
    Calls,
    ClientHeader,
    Entry,
    EntryType,
    Framed,
    Framer,
    Lengths,
    Message,
    Metadata,
    MetadataEntry,
    ServerHeader,
    Trailer,
    decode,
    encode,
    frame,
)
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp
from wirehouse_codecs.hiero.wire.spans import UNDECODABLE_BYTES
from wirehouse_codecs.tcp.endpoints import Direction

C, S = Direction.CLIENT, Direction.SERVER
PATH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
PLACE = Place(1, 0, b"log", 0)
U64 = st.integers(0, 2**64 - 1)


def header(**fields: Any) -> Entry:
    metadata = Metadata((MetadataEntry("hiero-correlation-id", b"A-1"), MetadataEntry("authorization", b"hidden")))
    client_header = ClientHeader(metadata, PATH, "node:40840")
    return Entry(Timestamp(1_700_000_000, 1), 1, 1, EntryType.CLIENT_HEADER, 1, client_header, **fields)


def entry(kind: EntryType, sequence: int = 0, **fields: Any) -> Entry:
    return Entry(call_id=1, sequence_id_within_call=sequence, type=kind, **fields)


CALL = [
    header(peer=Address(1, "10.0.0.1", 40840)),
    entry(EntryType.SERVER_HEADER, 2, server_header=ServerHeader(Metadata((MetadataEntry("a", b"\xff"),)))),
    entry(EntryType.CLIENT_MESSAGE, 3, message=Message(3, b"abc")),
    entry(EntryType.SERVER_MESSAGE, 4, message=Message(2_000_000, b"ab"), payload_truncated=True),
    entry(EntryType.CLIENT_HALF_CLOSE, 5),
    entry(EntryType.SERVER_TRAILER, 6, trailer=Trailer(status_code=14, status_message="gone", status_details=b"x")),
]


def told(calls: Calls, *entries: Entry) -> list[grpc.Event]:
    return [event for one in entries for event in calls.receive(one, PLACE, 0, 9)]


def file_of(lengths: Lengths, entries: list[Entry]) -> bytes:
    return b"".join(frame(encode(one), lengths) for one in entries)


def cut(data: bytes, size: int, lengths: Lengths | None = None, limit: int = 1000) -> list[Framed]:
    framer = Framer(lengths, limit=limit)
    found = [one for at in range(0, len(data), size) for one in framer.receive(data[at : at + size])]
    return found + framer.finish()


@pytest.mark.parametrize("one", CALL)
def test_entries_round_trip(one: Entry) -> None:
    assert decode(encode(one)) == one


@settings(max_examples=40)
@given(
    one=st.builds(
        Entry,
        timestamp=st.builds(Timestamp, st.integers(-(2**63), 2**63 - 1), st.integers(0, 999_999_999)),
        call_id=U64,
        sequence_id_within_call=U64,
        type=st.integers(-(2**31), 2**31 - 1),
        message=st.none() | st.builds(Message, st.integers(0, 2**32 - 1), st.binary(max_size=9)),
        payload_truncated=st.booleans(),
    )
)
def test_any_entry_round_trips(one: Entry) -> None:
    assert decode(encode(one)) == one


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


@pytest.mark.parametrize("data", [b"\x0a\x05a", b"\x0b", b"\x10", b"\x32\x03\x0a\x01\x0a"])
def test_what_is_no_entry(data: bytes) -> None:
    assert "at byte" in str(decode(data))


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
    events = told(calls, header(), entry(EntryType.CANCEL), entry(EntryType.SERVER_TRAILER))
    assert [type(one).__name__ for one in events] == ["Opened", "Reset", "Closed", "Trailers"]
    assert calls.finish(PLACE) == []


def test_a_log_that_begins_within_a_call() -> None:
    calls = Calls()
    events = told(calls, *CALL[3:5])
    assert events[0] == grpc.Opened(S, PLACE, 0, 9, 1, None, False, ())
    assert len(events) == 3
    assert calls.finish(PLACE) == [grpc.Closed(PLACE, 1, grpc.How.CAPTURE_END)]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("lost", range(1, 5))
def test_entries_that_are_missing_are_told_by_their_numbers(lost: int, cut: bool) -> None:
    calls = Calls()
    events = told(calls, *CALL[:lost])
    calls = Calls(dict(calls.state)) if cut else calls
    assert told(calls, *CALL[lost + 1 :])[0] == grpc.Missed(PLACE, 1)
    assert grpc.Missed(PLACE, 1) not in events


def test_a_log_that_does_not_number_its_entries_lacks_none() -> None:
    events = told(Calls(), *(replace(one, sequence_id_within_call=0) for one in CALL))
    assert not any(isinstance(one, grpc.Missed) for one in events)


def test_a_message_above_the_limit_is_told() -> None:
    _, request = told(Calls(max_message_bytes=2), CALL[0], replace(CALL[2], sequence_id_within_call=2))
    assert isinstance(request, grpc.MessagePart)
    assert request.fault == "a message of 3 bytes, more than 2"


def test_entries_of_no_known_type_are_told() -> None:
    (event,) = told(Calls(), Entry(call_id=1, type=99))
    assert event.reason == "an entry of type 99"  # type: ignore[union-attr]


def test_calls_go_on_from_a_snapshot_and_are_bounded() -> None:
    calls, events = Calls(), []
    for number in range(MAX_CALLS + 2):
        calls = Calls(dict(calls.state)) if number % 500 == 0 else calls
        events += told(calls, replace(CALL[2], call_id=number))
    forgotten = [one.call for one in events if isinstance(one, grpc.Closed)]
    assert forgotten == [0, 1]
    assert len(calls.finish(PLACE)) == MAX_CALLS
