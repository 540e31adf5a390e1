"""Files of entries: lines and binary, cut anywhere, with damage in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.log.file_rows import row_of
from wirehouse_codecs.bamboo.wire import entry_files
from wirehouse_codecs.bamboo.wire.entry_files import (
    BinaryEntries,
    EntryLines,
    Record,
    begins_entries,
    content,
    line,
    read,
    reader_for,
)

VECTORS = sorted((Path(__file__).parents[3] / "vectors" / "bamboo" / "logs").glob("*.jsonl"))
MakeLog = Callable[..., Any]


def whole(data: bytes) -> list[Record]:
    records = list(read([data]))
    spans = [(one.byte_start, one.byte_end) for one in records]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert all((one.entry is None) == (one.damage is not None) for one in records)
    return records


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vectors(path: Path) -> None:
    data = path.read_bytes()
    assert begins_entries(data)
    rows = [json.loads(text) for text in data.splitlines()]
    records = whole(data)
    assert [one.entry and one.entry.hex() for one in records] == [row["entry_hex"] for row in rows]
    assert [one.payload and one.payload.hex() for one in records] == [row["payload_hex"] for row in rows] or all(
        (one.payload is None) == (row["payload_hex"] is None) for one, row in zip(records, rows, strict=True)
    )
    assert records == list(read(data[at : at + 700] for at in range(0, len(data), 700)))
    assert b"".join(one.data for one in records) == data
    assert [content(one.data) for one in records] == [(one.entry, one.payload) for one in records]


def test_lines_are_written_and_read(make_log: MakeLog) -> None:
    log = make_log(5, log_id=2**64 - 1)
    data = b"".join(line(log.entries[seq], log.payloads[seq] if seq % 2 else None) for seq in log.entries)
    records = whole(data)
    assert [one.entry for one in records] == log.encoded()
    assert [one.payload for one in records] == [log.payloads[seq] if seq % 2 else None for seq in log.entries]
    assert records[-1].byte_end == len(data)
    assert whole(data.rstrip(b"\n"))[-1].entry == log.encoded(5)[0]


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 9_000, "no JSON"),
        (b"\0{\0}\0", "no JSON"),
        (b'{"a":[' + b"[]," * 10_000 + b"[]]}", "a line of more than 10000 values"),
        (b"[]", "no JSON object"),
        (b"{}", "no entry_hex"),
        (b'{"entry_hex":5}', "entry_hex and payload_hex are no texts"),
        (b'{"entry_hex":"00","payload_hex":[]}', "entry_hex and payload_hex are no texts"),
        (b'{"entry_hex":"0"}', "entry_hex or payload_hex is not hexadecimal"),
        (b'{"entry_hex":"00","payload_hex":"\xc3\xbc"}', "entry_hex or payload_hex is not hexadecimal"),
    ],
)
def test_a_damaged_line_ends_with_its_line(text: bytes, damage: str) -> None:
    good = b'{"entry_hex":"00ff"}\n'
    before, damaged, after = whole(good + text + b"\n\n  \n" + good)
    assert (before.entry, after.entry) == (b"\0\xff", b"\0\xff")
    assert (damaged.damage, damaged.data) == (damage, text + b"\n")


def test_a_mark_of_the_byte_order_may_stand_before_the_first_line() -> None:
    text = b'\xef\xbb\xbf{"entry_hex":"00ff","payload_hex":"01"}'
    (record,) = whole(text)
    assert (record.entry, record.payload) == content(record.data) == (b"\0\xff", b"\1")
    assert begins_entries(text)
    assert not begins_entries(text[3:].decode().encode("utf-16"))


def test_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_files, "MAX_LINE_BYTES", 30)
    monkeypatch.setattr(entry_files, "MAX_DAMAGE_BYTES", 400)
    good = b'{"entry_hex":"00"}\n'
    text = good + b'{"entry_hex":"00","payload_hex":"' + b"00" * 500 + b'"}\n' + good
    for size in (1, 7, 500, len(text)):
        reader = EntryLines()
        records = [one for at in range(0, len(text), size) for one in reader.receive(text[at : at + size])]
        assert [(one.byte_start, one.byte_end) for one in records] == [
            *((0, 19), (19, 419), (419, 819), (819, 19 + 1036), (len(text) - 19, len(text)))
        ]
        assert [one.damage for one in records] == [None, *["a line of more than 30 bytes"] * 3, None]
        assert b"".join(one.data for one in records) == text


def test_the_form_is_told_by_the_first_byte() -> None:
    assert isinstance(reader_for(b"\0"), BinaryEntries)
    assert isinstance(reader_for(b"\1"), BinaryEntries)
    assert isinstance(reader_for(b"{"), EntryLines)
    assert list(read([])) == list(read([b"", b""])) == []


def test_binary_entries(make_log: MakeLog) -> None:
    entries = make_log(20).encoded()
    records = whole(b"".join(entries))
    assert [one.entry for one in records] == [one.data for one in records] == entries
    assert [content(one.data) for one in records] == [(entry, None) for entry in entries]


def test_what_may_be_a_file_of_entries(make_log: MakeLog) -> None:
    entry = make_log(1).encoded()[0]
    for start in (
        entry,
        b"\0junk" * 50 + entry,
        entry[:20],
        b'{"entry_hex":"00',
        b'{"payload_hex":"00',
        b'junk\n{"entry_hex":"00"}\n',
    ):
        assert begins_entries(start)
    for start in (
        b"junk",
        b"junk\n",
        b"{}\n",
        b'{"topic":"t","key_b64":"a',
        b'{"value_b64":"',
        b"\x89PNG",
        b"\0" + b"\xff" * 2_000,
    ):
        assert not begins_entries(start)


@pytest.mark.parametrize("damage", [b"\xff" * 20_000, b"\0" * 20_000 + b"\n", b"{" * 20_000 + b"\n"])
@pytest.mark.parametrize("binary", [True, False])
def test_entries_behind_damage_are_kept(make_log: MakeLog, damage: bytes, binary: bool) -> None:
    log = make_log(3)
    good = log.encoded() if binary else [line(log.entries[seq], log.payloads[seq]) for seq in log.entries]
    data = damage + (b"" if binary else b"\n") + b"".join(good)
    assert begins_entries(data)
    first, *others = whole(data)
    assert (first.byte_start, first.entry, first.data.strip()) == (0, None, damage.strip())
    assert [one.entry for one in others] == log.encoded()


def test_a_wrongly_encoded_entry_keeps_its_place(make_log: MakeLog) -> None:
    entries = make_log(6).encoded()
    entries[2] = b"\7" + entries[2][1:]
    entries[5] = entries[5][:36] + b"\3" + entries[5][37:]
    assert [one.entry for one in whole(b"".join(entries))] == entries


def test_what_is_no_entry_is_one_record_up_to_the_next_one(make_log: MakeLog) -> None:
    entries = make_log(6).encoded()
    junk = bytes(range(7, 207))
    data = b"".join([*entries[:2], junk, entries[2], entries[3][:50], *entries[4:]])
    records = whole(data)
    assert [one.entry for one in records] == [*entries[:2], None, entries[2], None, *entries[4:]]
    assert [one.data for one in records if one.damage] == [junk, entries[3][:50]]


def test_the_end_may_be_cut(make_log: MakeLog) -> None:
    entries = make_log(3).encoded()
    data = b"".join(entries)
    for cut in range(1, len(entries[2])):
        records = whole(data[:-cut])
        assert [one.entry for one in records] == [*entries[:2], entries[2][:-cut]]
    assert whole(data + b"\x99")[-1] == Record(len(data), len(data) + 1, b"\x99", damage="no entry")


@settings(max_examples=60)
@given(data=st.data())
def test_binary_files_lose_no_byte_however_they_are_cut(make_log: MakeLog, data: st.DataObject) -> None:
    pieces = make_log(9).encoded()
    pieces += [b"\0" * 40, b"\x01", bytes(range(256))]
    chosen = data.draw(st.lists(st.sampled_from(pieces), max_size=12))
    text = bytearray(b"\0" + b"".join(chosen))
    for at in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=3)):
        text[at] ^= data.draw(st.integers(1, 255))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_files, "MAX_DAMAGE_BYTES", 100)
        reader = BinaryEntries()
        records = [*reader.receive(bytes(text)), *reader.finish()]
        size = data.draw(st.integers(1, 800))
        again = BinaryEntries()
        cut = [one for at in range(0, len(text), size) for one in again.receive(bytes(text[at : at + size]))]
        assert cut + again.finish() == records
    assert b"".join(one.data for one in records) == bytes(text)
    assert all(one.entry in (None, one.data) for one in records)
    assert [one.byte_start for one in records[1:]] == [one.byte_end for one in records[:-1]]
    assert all(len(one.data) <= 2 * 644 for one in records)


def test_bytes_that_are_no_entry_are_quarantined_with_a_rule() -> None:
    record = {"damage": "no entry", "damaged": b"??", "data": b"", "name": "a.entries"}
    said = row_of(record)
    assert (said["row_kind"], said["raw"], said["finding"]["rule"]) == ("quarantine", b"??", "capture.file_damaged")
