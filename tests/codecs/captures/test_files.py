"""Captures of blocks and entries: every byte is a record's, in pieces, up to where it is damaged."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.wire.captures import entry_capture
from wirehouse_codecs.bamboo.wire.entry_files import content
from wirehouse_codecs.captures import files, inflate
from wirehouse_codecs.captures.files import FileRecord
from wirehouse_codecs.captures.inflate import Limits
from wirehouse_codecs.captures.source import Capture, Origin, Reader
from wirehouse_codecs.hiero.wire import grpc_log
from wirehouse_codecs.hiero.wire.captures import BlockCapture, log_capture
from wirehouse_codecs.hiero.wire.grpc_log import Entry, Lengths, frame, unframe
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp

VECTORS = Path(__file__).parents[2] / "vectors"
BLOCKS = VECTORS / "hiero" / "blocks"
START_NS = 10**18
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}


def read(open_: Reader, data: bytes, name: str = "x", **limits: int) -> tuple[list[FileRecord], Capture]:
    capture = open_(io.BytesIO(data), Origin(name, START_NS, Limits(**limits)))
    rows = [FileRecord(**row) for batch in capture.batches() for row in batch.to_pylist()]
    return rows, capture


def inflated(name: str) -> bytes:
    data = (BLOCKS / name).read_bytes()
    return inflate.fill(inflate.open_inflated(io.BytesIO(data)), 1 << 30)


def archive(members: dict[str, bytes], mode: Any = "w", **how: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, **how) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(number: int, size: int = 20) -> bytes:
    message = grpc_log.Message(size, bytes([number]) * size)
    return grpc_log.encode(Entry(timestamp=Timestamp(5, number), call_id=1, type=3, message=message))


def log(lengths: Lengths = Lengths.FIXED) -> bytes:
    return b"".join(frame(entry(number), lengths) for number in range(40))


LINES = (VECTORS / "bamboo" / "logs" / "len40.jsonl").read_bytes()
BINARY = b"".join(bytes.fromhex(json.loads(line)["entry_hex"]) for line in LINES.splitlines())
FILES: dict[str, tuple[Reader, bytes]] = {
    "block": (BlockCapture, (BLOCKS / "sim062_3.blk").read_bytes()),
    "log": (log_capture, log()),
    "java_log": (log_capture, log(Lengths.VARINT)),
    "lines": (entry_capture, LINES),
    "entries": (entry_capture, BINARY),
}


def bytes_of(rows: list[FileRecord]) -> bytes:
    return b"".join(row.data or row.damaged or b"" for row in rows)


def joined(rows: list[FileRecord]) -> list[FileRecord]:
    """Pieces put together."""
    whole: list[FileRecord] = []
    expected = 0
    for row in rows:
        assert row.part == expected
        expected = 0 if row.last else expected + 1
        if row.part:
            before = whole.pop()
            assert (before.ts_ns, before.name, before.last) == (row.ts_ns, row.name, False)
            both = [None if a is None or b is None else a + b for a, b in zip(before[2:4], row[2:4], strict=True)]
            row = before._replace(data=both[0], damaged=both[1], damage=row.damage, last=row.last)
        whole.append(row)
    assert not expected
    return whole


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("packer", PACKERS)
def test_every_byte_is_a_records(kind: str, packer: str) -> None:
    open_, data = FILES[kind]
    rows, capture = read(open_, PACKERS[packer](data))
    assert (capture.unreadable, capture.damage) == (None, None)
    assert bytes_of(rows) == data
    assert all((row.name, row.part, row.last, row.damage) == ("x", 0, True, None) for row in rows)
    assert len(rows) == (1 if kind == "block" else 40)


@pytest.mark.property
@pytest.mark.parametrize("kind", FILES)
def test_what_is_long_stands_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_, data = FILES[kind]
    whole, _ = read(open_, data)
    for size in (1, 7, 100, len(whole[0].data or b"")):
        monkeypatch.setattr(files, "PIECE_BYTES", size)
        monkeypatch.setattr(files, "BATCH_BYTES", 3 * size)
        rows, _ = read(open_, data)
        assert all(0 < len(row.data or b"") <= size for row in rows)
        # A block's header is looked for in its first piece.
        assert [row._replace(ts_ns=whole[0].ts_ns) if kind == "block" else row for row in joined(rows)] == whole


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_off_gives_all_up_to_there(kind: str) -> None:
    open_, data = FILES[kind]
    packed = gzip.compress(data)
    most = 0
    for cut in range(20, len(packed), len(packed) // 20):
        rows, capture = read(open_, packed[:cut], "x.blk")
        if capture.unreadable:
            assert "cut off" in capture.unreadable
            continue
        assert "cut off" in (capture.damage or "")
        found = bytes_of(rows)
        assert data.startswith(found)
        assert len(found) >= most
        most = len(found)
        if kind == "block":
            assert capture.damage == rows[-1].damage
    assert most > len(data) // 2


@settings(max_examples=150)
@given(kind=st.sampled_from(sorted(FILES)), data=st.data())
def test_a_garbled_file_loses_no_byte(kind: str, data: st.DataObject) -> None:
    open_, text = FILES[kind]
    garbled = bytearray(text)
    for at in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=3)):
        garbled[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(garbled[: data.draw(st.integers(1, len(text)))])
    rows, capture = read(open_, cut)
    if capture.unreadable is None:
        assert bytes_of(rows).split() == cut.split()
    joined(rows)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("block", b"hello"),
        ("block", b"\n{}\n"),
        ("block", b"\x0a\x02\x12\x00"),
        ("block", bytes(1024)),
        ("log", b"\x89PNG\r\n\x1a\n" + bytes(100)),
        ("log", b"hello, this is no log at all"),
        ("log", bytes(100)),
        ("lines", b"hello\n"),
        ("lines", b'{"key_b64":null,"value_b64":null}\n'),
        ("entries", b"\0" + b"\xff" * 5_000),
    ],
)
def test_what_is_something_else_is_unreadable(kind: str, data: bytes) -> None:
    for pack in PACKERS.values():
        rows, capture = read(FILES[kind][0], pack(data))
        assert rows == []
        assert "plain or compressed by gzip or zstd" in (capture.unreadable or "")


@pytest.mark.parametrize("kind", FILES)
def test_an_empty_file_has_no_records(kind: str) -> None:
    for pack in PACKERS.values():
        rows, capture = read(FILES[kind][0], pack(b""))
        assert (rows, capture.unreadable, capture.damage) == ([], None, None)


@pytest.mark.property
def test_a_bomb_is_damage_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "UNJUDGED_BYTES", 1 << 20)
    bomb = gzip.compress(FILES["block"][1] + bytes(64 << 20))
    for data in (bomb, archive({f"{number}.blk.gz": bomb for number in range(3)})):
        tracemalloc.start()
        rows, capture = read(BlockCapture, data, "x.blk")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "times its size" in (capture.damage or "")
        assert len(bytes_of(rows)) <= 3 * 250 * len(bomb) + (8 << 20)
        assert peak < 96 << 20


def test_files_of_an_archive_are_held_against_the_limits_together() -> None:
    data = archive({f"{number}.blk": FILES["block"][1] for number in range(50)})
    rows, capture = read(BlockCapture, data, inflated_bytes=10_000)
    size = len(FILES["block"][1])
    assert 10_000 < sum(len(row.data or b"") for row in rows) <= 10_000 + size
    assert capture.damage == rows[-1].damage == "inflates to more than 10000 bytes"


# Times


def test_a_block_stands_at_the_time_of_its_header() -> None:
    for name, seconds in (("sim062_3.blk", 1_744_322_568), ("cn073_tss_0.blk.gz", 1_774_993_581)):
        (row, *_), _ = read(BlockCapture, (BLOCKS / name).read_bytes(), name)
        assert row.ts_ns is not None
        assert row.ts_ns // 10**9 == seconds
    (row,), _ = read(BlockCapture, b"\x0a\x02\x12\x00", "7.blk")
    assert row.ts_ns is None


def test_entries_of_a_log_stand_at_their_own_times() -> None:
    rows, _ = read(log_capture, log())
    assert [row.ts_ns for row in rows] == [5 * 10**9 + number for number in range(40)]
    far = b"".join(frame(grpc_log.encode(Entry(timestamp=Timestamp(at, 0), type=3))) for at in (2**62, -(2**62)))
    rows, _ = read(log_capture, far)
    assert [row.ts_ns for row in rows] == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("kind", ["lines", "entries"])
def test_entry_files_begin_with_the_lake(kind: str) -> None:
    rows, _ = read(*FILES[kind])
    assert [row.ts_ns for row in rows] == [START_NS + number for number in range(40)]


# Logs


@pytest.mark.parametrize("lengths", Lengths)
def test_an_entry_has_its_length_before_it(lengths: Lengths) -> None:
    sizes = (0, 1, 100, 127, 128, 300, 20_000)
    rows, _ = read(log_capture, b"".join(frame(entry(number, size), lengths) for number, size in enumerate(sizes)))
    assert [unframe(row.data or b"") for row in rows] == [entry(number, size) for number, size in enumerate(sizes)]


def test_an_entry_that_cannot_be_read_is_one_record_and_the_next_ones_are_read() -> None:
    data = frame(entry(1)) + frame(b"\x0a\xff") + frame(entry(2))
    (first, broken, last), capture = read(log_capture, data)
    assert (first.data, last.data) == (frame(entry(1)), frame(entry(2)))
    assert (broken.data, broken.damaged) == (None, frame(b"\x0a\xff"))
    assert broken.damage
    assert capture.damage is None


def test_after_a_length_that_is_none_the_rest_is_damaged() -> None:
    junk = b"\xff" * 100
    rows, capture = read(log_capture, frame(entry(1)) + junk)
    assert rows[1].damaged == junk
    assert f"byte {len(frame(entry(1)))} of the log" in (capture.damage or "")


# Entries


def test_a_damaged_line_is_a_record_and_the_next_ones_are_read() -> None:
    first, second, *_ = LINES.splitlines(keepends=True)
    rows, capture = read(entry_capture, first + b"junk\n\n" + second)
    assert [(row.data, row.damaged, row.damage) for row in rows] == [
        (first, None, None),
        (None, b"junk\n", "no JSON"),
        (second, None, None),
    ]
    assert capture.damage is None
    assert content(first)[0] == content(BINARY[: len(content(first)[0])])[0]


# Archives

SOME = ("sim062_0.blk", "gen062_10.blk.gz", "wrb_testnet_0.blk.zstd")
MEMBERS = {"README": b"x" * 700, **{f"0000/{name}": (BLOCKS / name).read_bytes() for name in SOME}}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_gives_its_block_files_inflated(mode: str) -> None:
    rows, capture = read(BlockCapture, archive(MEMBERS, mode))
    assert [(row.name, row.data) for row in rows] == [(f"0000/{name}", inflated(name)) for name in SOME]
    assert (capture.unreadable, capture.damage) == (None, None)


def test_an_archive_that_is_cut_off_gives_what_stands_before(monkeypatch: pytest.MonkeyPatch) -> None:
    data = archive(MEMBERS)
    end = len(data.rstrip(b"\0"))
    for size in range(600, end, 1_733):
        rows, capture = read(BlockCapture, data[:size], "a.tar")
        assert capture.damage
        for row, name in zip(rows, SOME, strict=False):
            assert row.damage is not None or (row.name, row.data) == (f"0000/{name}", inflated(name))


def test_of_a_damaged_archive_the_rest_is_kept() -> None:
    data = archive({"1.blk": MEMBERS[f"0000/{SOME[0]}"]})
    second = 512 + -(-len(MEMBERS[f"0000/{SOME[0]}"]) // 512) * 512
    broken = data[:second] + b"junk" * 1_000
    rows, capture = read(BlockCapture, broken, "a.tar")
    assert [row.name for row in rows] == ["1.blk", "a.tar"]
    assert rows[1].damaged == b"junk" * 1_000
    assert rows[1].damage == capture.damage
    assert "not the header of a file" in (capture.damage or "")
    rows, capture = read(BlockCapture, data + b"junk", "a.tar")
    assert (rows[1].damaged or b"").endswith(b"junk")
    assert rows[1].damage == "after the end of the archive"


def test_a_damaged_file_of_an_archive_doesnt_end_it() -> None:
    broken = MEMBERS[f"0000/{SOME[1]}"][:-20]
    names = ["1.blk.gz", "2.blk.gz", "3.blk"]
    members = dict(zip(names, [broken, broken, MEMBERS[f"0000/{SOME[0]}"]], strict=True))
    rows, capture = read(BlockCapture, archive(members))
    assert [row.name for row in joined(rows)] == names
    assert [bool(row.damage) for row in joined(rows)] == [True, True, False]
    assert (capture.damage or "").endswith("1 more of its files are damaged")


def test_names_of_an_archive_are_any_text() -> None:
    name, block = "a\n9 path=b\x1b<" + "long" * 30 + ".blk", MEMBERS[f"0000/{SOME[0]}"]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        rows, capture = read(BlockCapture, archive({name: block}, format=form))
        assert ([row.name for row in rows], capture.damage) == ([name], None)


@pytest.mark.parametrize(
    "body", [b"1" * 700, b"7 path", b"0 path=b.blk\n", b"99 path=b.blk\n", b"-9 path=b\n", b"\xff =\n"]
)
def test_extensions_that_are_none_are_passed_over(body: bytes) -> None:
    extended = tarfile.TarInfo("x")
    extended.type, extended.size = tarfile.XHDTYPE, len(body)
    start = extended.tobuf() + body + bytes(-len(body) % 512)
    rows, _ = read(BlockCapture, start + archive({"1.blk": MEMBERS[f"0000/{SOME[0]}"]}))
    assert [row.name for row in rows] == ["1.blk"]


@settings(max_examples=100)
@given(data=st.data(), mode=st.sampled_from(["w", "w:gz"]))
def test_a_garbled_archive_never_raises(data: st.DataObject, mode: str) -> None:
    garbled = bytearray(
        archive({name: MEMBERS[name] for name in ("README", f"0000/{SOME[0]}", f"0000/{SOME[1]}")}, mode)
    )
    for at in data.draw(st.lists(st.integers(0, len(garbled) - 1), min_size=1, max_size=5)):
        garbled[at] ^= data.draw(st.integers(1, 255))
    rows, capture = read(BlockCapture, bytes(garbled[: data.draw(st.integers(1, len(garbled)))]), "a.tar")
    joined(rows)
    assert capture.damage or all(row.damage is None for row in rows)
