"""Captures of messages: what is read, what isn't a message, and where a capture is damaged."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import random
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wirehouse_codecs.captures import avro as avro_container
from wirehouse_codecs.captures import inflate, messages
from wirehouse_codecs.captures.json_lines import scan_lines
from wirehouse_codecs.captures.messages import MESSAGE_SCHEMA, MessageCapture, NotAMessage, Row, read_block, read_line
from wirehouse_codecs.captures.source import Origin

VECTORS = Path(__file__).parents[2] / "vectors" / "cardinal"
INT64_MAX = 2**63 - 1


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def line(**fields: Any) -> bytes:
    return json.dumps({"key_b64": "aw==", "value_b64": "dg=="} | fields).encode() + b"\n"


def read(data: bytes) -> tuple[list[Row], MessageCapture]:
    capture = MessageCapture(io.BytesIO(data))
    return list(capture.rows()), capture


def lines(count: int) -> bytes:
    return b"".join(line(topic="t", partition=i % 3, offset=i, value_b64=b64(b"value %d" % i)) for i in range(count))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}


@pytest.fixture(params=PACKERS)
def pack(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    return PACKERS[request.param]


# What a line says


def test_a_line_has_every_field_of_its_message(pack: Callable[[bytes], bytes]) -> None:
    written = line(
        topic="cardinal-1",
        partition=3,
        offset=2**62,
        timestamp_ms=1700000000007,
        timestamp_type="append",
        key_b64=b64(b"\x00key"),
        value_b64=b64(b"\xff" * 7),
        headers=[{"key": "h", "value_b64": b64(b"\x01")}, {"key": "h", "value_b64": None}],
    )
    rows, capture = read(pack(written))
    assert rows == [
        Row(
            topic="cardinal-1",
            partition=3,
            offset=2**62,
            ts_ns=1700000000007_000_000,
            ts_type="append",
            key=b"\x00key",
            value=b"\xff" * 7,
            headers=(("h", b"\x01"), ("h", None)),
        )
    ]
    assert (capture.damage, capture.unreadable) == (None, None)


def test_only_key_and_value_must_be_there_and_may_be_null() -> None:
    rows, _ = read(b'{"key_b64": null, "value_b64": ""}\n')
    assert rows == [Row(key=None, value=b"")]


def test_the_reference_producers_captures_are_read_whole(pack: Callable[[bytes], bytes]) -> None:
    found = sorted(VECTORS.rglob("messages.jsonl"))
    assert found
    for path in found:
        data = path.read_bytes()
        rows, capture = read(pack(data))
        assert capture.damage is None
        wanted = [json.loads(text) for text in data.splitlines()]
        assert [(row.topic, row.offset, row.ts_ns, b64(row.key or b""), b64(row.value or b"")) for row in rows] == [
            (w["topic"], w["offset"], w["timestamp_ms"] * 1_000_000, w["key_b64"], w["value_b64"]) for w in wanted
        ]


@pytest.mark.parametrize(
    ("timestamp_ms", "ts_ns"),
    [
        (None, None),
        (0, 0),
        (-1, -1_000_000),
        (9223372036854, 9223372036854_000_000),
        (9223372036855, INT64_MAX),
        (-9223372036855, -INT64_MAX - 1),
        (10**30, INT64_MAX),
        (-(10**30), -INT64_MAX - 1),
    ],
)
def test_times_beyond_64_bits_of_nanoseconds_stay_at_the_bound(timestamp_ms: int | None, ts_ns: int | None) -> None:
    assert read(line(timestamp_ms=timestamp_ms))[0][0].ts_ns == ts_ns


def test_blank_lines_a_mark_of_byte_order_and_carriage_returns_are_nothing() -> None:
    rows, _ = read(b"\xef\xbb\xbf" + line(offset=1).replace(b"\n", b"\r\n") + b"\r\n  \n\n" + line(offset=2).rstrip())
    assert [row.offset for row in rows] == [1, 2]


def test_an_empty_capture_has_no_rows(pack: Callable[[bytes], bytes]) -> None:
    rows, capture = read(pack(b""))
    assert (rows, capture.damage, capture.unreadable) == ([], None, None)


# What is no message

BAD_LINES = {
    b"{": "not JSON",
    b"[1]": "not a JSON object",
    b"nonsense": "not JSON",
    b'{"key_b64": "aw=="}': "value_b64 is missing",
    b'{"value_b64": "aw=="}': "key_b64 is missing",
    b'{"key_b64": "aw=", "value_b64": null}': "key_b64 is not base64",
    b'{"key_b64": "a w==", "value_b64": null}': "key_b64 is not base64",
    b'{"key_b64": 1, "value_b64": null}': "key_b64 is not a string",
    line(partition="0").strip(): "partition is not a whole number",
    line(partition=2**31).strip(): "partition doesn't fit 32 bits",
    line(offset=2**63).strip(): "offset doesn't fit 64 bits",
    line(offset=1.0).strip(): "offset is not a whole number",
    line(offset=True).strip(): "offset is not a whole number",
    line(timestamp_ms="1").strip(): "timestamp_ms is not a whole number",
    line(timestamp_type="made").strip(): "timestamp_type",
    line(timestamp_type=[]).strip(): "timestamp_type",
    line(topic=7).strip(): "topic is not a string",
    line(topic="x" * 70_000).strip(): "topic is longer",
    b'{"key_b64": null, "value_b64": null, "topic": "\\ud800"}': "topic is not Unicode",
    b'{"key_b64": null, "value_b64": null, "topic": "\xff"}': "not UTF-8",
    b'{"key_b64": null, "value_b64": null, "offset": NaN}': "NaN is not a JSON value",
    b'{"key_b64": null, "value_b64": null, "offset": 01}': "not JSON",
    b'{"key_b64": null, "value_b64": null} trailing': "not JSON",
    line(headers=3).strip(): "headers is not a list",
    line(headers=[3]).strip(): "a header is not an object",
    line(headers=[{}]).strip(): "a header has no key",
    line(headers=[{"key": "h", "value_b64": "?"}]).strip(): "value_b64 of a header is not base64",
    b"[" * 100_000: "JSON nested too deep",
    b'{"key_b64": null, "value_b64": null, "offset": ' + b"9" * 5_000 + b"}": "not JSON",
}


@pytest.mark.parametrize("bad", BAD_LINES, ids=[str(i) for i in range(len(BAD_LINES))])
def test_a_line_that_is_no_message_keeps_its_bytes_and_its_neighbours(bad: bytes) -> None:
    rows, capture = read(line(offset=1) + bad + b"\n" + line(offset=2))
    assert [row.offset for row in rows] == [1, None, 2]
    assert rows[1].damaged == bad
    assert BAD_LINES[bad] in (rows[1].damage or "")
    assert (rows[1].key, rows[1].value) == (None, None)
    assert capture.damage is None


def test_a_line_beyond_the_limit_is_kept_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(messages, "MAX_LINE_BYTES", 5_000)
    monkeypatch.setattr(messages, "PIECE_BYTES", 2_000)
    for size in (4_000, 4_999, 5_000, 5_001, 6_500, 20_000):
        long = line(value_b64=b64(b"x" * size))
        rows, _ = read(line(offset=1) + long + line(offset=2))
        assert rows[0].offset == 1
        assert rows[-1].offset == 2
        if len(long) <= 5_000:
            assert rows[1].value == b"x" * size
        else:
            pieces = rows[1:-1]
            assert b"".join(row.damaged or b"" for row in pieces).strip() == long.strip()
            assert all(len(row.damaged or b"") <= 2_000 for row in pieces)
            assert all("more than 5000 bytes" in (row.damage or "") for row in pieces)


# The vectorised twin

texts = st.text(st.sampled_from('tk"\\/é\x00\x1f=A'), max_size=6)
scalars = st.one_of(
    st.none(),
    st.integers(-(2**65), 2**65),
    st.sampled_from([2**31, 2**31 - 1, -(2**31), 9223372036854, 9223372036855, -9223372036855, 10**18, -(10**17)]),
    texts,
    st.booleans(),
    st.binary(max_size=9).map(b64),
    st.lists(st.none(), max_size=1),
)
NAMES = ("topic", "partition", "offset", "timestamp_ms", "timestamp_type", "key_b64", "value_b64", "headers", "other")
objects = st.dictionaries(
    st.sampled_from(
        ["topic", "partition", "offset", "timestamp_ms", "timestamp_type", "key_b64", "value_b64", "headers", "other"]
    ),
    scalars,
)
likely = st.fixed_dictionaries(
    {"key_b64": st.binary(max_size=9).map(b64), "value_b64": st.one_of(st.none(), st.binary(max_size=9).map(b64))},
    optional={
        "topic": st.one_of(st.none(), texts),
        "partition": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        "offset": st.one_of(st.none(), st.integers(-(2**63), INT64_MAX)),
        "timestamp_ms": st.one_of(st.none(), st.integers()),
        "timestamp_type": st.sampled_from([None, "create", "append", "other"]),
        "headers": st.sampled_from([None, [], [{"key": "k", "value_b64": "dg=="}]]),
    },
)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r:")])
mutations = st.tuples(
    st.integers(0, 200), st.sampled_from([None, b"", b'"', b"}", b"=", b" ", b"0", b"-", b"\\", b",", b"\xff"])
)


def rows_by_hand(block: bytes) -> list[Row]:
    found = []
    for text in block.split(b"\n"):
        if text and not text.isspace():
            try:
                found.append(read_line(text))
            except NotAMessage as reason:
                found.append(Row(damaged=text, damage=str(reason)))
    return found


def as_rows(block: bytes) -> list[Row]:
    listed = read_block(block).to_pylist()
    return [Row(**(row | {"headers": tuple((h["key"], h["value"]) for h in row["headers"])})) for row in listed]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.one_of(likely, objects), separators, mutations), max_size=5))
@example([({"key_b64": "====", "value_b64": "A==="}, (",", ":"), (0, None))])
def test_the_vectorised_twin_reads_what_the_readable_one_does(
    written: list[tuple[dict[str, Any], tuple[str, str], tuple[int, bytes | None]]],
) -> None:
    block = b""
    for fields, seps, (at, change) in written:
        text = json.dumps(fields, separators=seps, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if change is not None:
            at %= len(text)
            text = text[:at] + change + text[at + 1 :]
        block += text.replace(b"\n", b"") + b"\n"
    assert as_rows(block) == rows_by_hand(block)


@given(st.binary(max_size=60))
def test_base64_is_decoded_as_by_the_standard_library(data: bytes) -> None:
    block = line(key_b64=b64(data), value_b64=b64(data[:7]))
    assert scan_lines(block, 1_000).rows == 1
    assert as_rows(block) == [Row(key=data, value=data[:7])]


def test_the_twin_reads_what_the_reference_producer_writes_by_itself() -> None:
    block = (VECTORS / "a_linear" / "messages.jsonl").read_bytes()
    assert len(scan_lines(block, messages.MAX_LINE_BYTES).odd) == 0


def test_a_block_cut_anywhere_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lines(5) + b"odd\n" + line(topic="\u00e9") + lines(3)
    wanted, _ = read(data)
    for size in (1, 2, 3, 7, 64, 101, 500):
        monkeypatch.setattr(messages, "BLOCK_BYTES", size)
        assert read(data)[0] == wanted


# Compression and damage


def test_members_and_frames_follow_each_other() -> None:
    halves = lines(10)[:333], lines(10)[333:]
    for pack in (PACKERS["gzip"], PACKERS["zstd"]):
        rows, capture = read(pack(halves[0]) + pack(b"") + pack(halves[1]))
        assert [row.offset for row in rows] == list(range(10))
        assert capture.damage is None


def test_zero_bytes_after_a_gzip_member_are_padding() -> None:
    rows, capture = read(gzip.compress(lines(3)) + bytes(1_000))
    assert (len(rows), capture.damage) == (3, None)
    rows, capture = read(gzip.compress(lines(3)) + bytes(70_000) + gzip.compress(lines(2)))
    assert (len(rows), capture.damage) == (5, None)


def test_what_follows_a_gzip_member_and_is_none_is_damage() -> None:
    rows, capture = read(gzip.compress(lines(3)) + b"junk")
    assert len(rows) == 3
    assert "doesn't begin another" in (capture.damage or "")


def test_a_zstd_file_may_begin_with_a_frame_to_be_skipped() -> None:
    skipped = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    rows, capture = read(skipped + PACKERS["zstd"](lines(3)))
    assert (len(rows), capture.damage) == (3, None)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_capture_cut_off_anywhere_is_read_up_to_there(name: str) -> None:
    data = lines(400)
    packed = PACKERS[name](data)
    most = 0
    for cut in sorted({*range(4, len(packed), len(packed) // 40), len(packed) - 1}):
        rows, capture = read(packed[:cut])
        assert capture.damage is not None, f"cut at {cut}"
        assert "cut off" in capture.damage
        # The last line may be cut; what was there is kept.
        good = [row.offset for row in rows if row.damaged is None]
        assert good == list(range(len(good)))
        assert len(good) >= most
        most = len(good)
        assert b"".join(row.damaged or b"" for row in rows) in data
    # A block of zstd is inflated whole or not at all, and this capture is one.
    assert most > 300 if name == "gzip" else most == 0


def test_zstd_frames_before_the_cut_are_all_read() -> None:
    packed = [PACKERS["zstd"](lines(50)) for _ in range(20)]
    rows, capture = read(b"".join(packed)[: -len(packed[0]) // 2])
    assert capture.damage is not None
    assert len(rows) >= 19 * 50


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_capture_damaged_in_the_middle_is_read_up_to_there(name: str) -> None:
    source = random.Random(1)
    data = b"".join(line(offset=i, value_b64=b64(source.randbytes(200))) for i in range(20_000))
    packed = bytearray(PACKERS[name](data))
    middle = len(packed) // 2
    packed[middle : middle + 50] = bytes(50)
    rows, capture = read(bytes(packed))
    assert capture.damage is not None
    good = [row.offset for row in rows if row.damaged is None]
    assert good[:8_000] == list(range(8_000))
    assert len(good) < 20_000


def test_a_wrong_checksum_is_damage_after_all_lines() -> None:
    packed = bytearray(gzip.compress(lines(100)))
    packed[-8] ^= 1
    rows, capture = read(bytes(packed))
    assert len(rows) == 100
    assert "incorrect data check" in (capture.damage or "")


@pytest.mark.property
@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_bomb_is_damage_at_the_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "UNJUDGED_BYTES", 1 << 20)
    monkeypatch.setattr(messages, "MAX_LINE_BYTES", 1 << 16)
    monkeypatch.setattr(messages, "BLOCK_BYTES", 1 << 16)
    bomb = PACKERS[name](lines(10) + b"0" * (64 << 20))
    tracemalloc.start()
    rows, capture = read(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "times its size" in (capture.damage or "")
    assert [row.offset for row in rows[:10]] == list(range(10))
    kept = sum(len(row.damaged or b"") for row in rows)
    assert kept <= 251 * len(bomb) + (2 << 20)
    assert peak < 64 << 20


def test_a_capture_that_inflates_beyond_the_limit_is_damaged_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BLOCK_BYTES", 1_000)
    for name in ("gzip", "zstd"):
        stream = io.BytesIO(PACKERS[name](lines(10_000)))
        capture = MessageCapture(stream, Origin(limits=inflate.Limits(inflated_bytes=10_000)))
        list(capture.batches())
        assert "more than 10000 bytes" in (capture.damage or "")


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"\xff\xfe{\x00}\x00",
        b"hello\nworld\n",
        b"\x00",
        gzip.compress(b"\x00\x01", mtime=0),
        b"[1]\n",
    ],
)
def test_what_is_none_of_the_formats_is_said_so(data: bytes) -> None:
    rows, capture = read(data)
    assert rows == []
    assert "neither JSON Lines nor an Avro container" in (capture.unreadable or "")


def test_lines_are_recognised_behind_a_damaged_first_one() -> None:
    rows, capture = read(b"=== log of Monday\n" + line(offset=1))
    assert capture.unreadable is None
    assert [row.offset for row in rows] == [None, 1]


# Avro

AVRO = {
    "type": "record",
    "name": "message",
    "fields": [
        {"name": "topic", "type": ["null", "string"]},
        {"name": "partition", "type": ["null", "int"]},
        {"name": "offset", "type": ["null", "long"]},
        {"name": "timestamp_ms", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "key", "type": ["null", "bytes"]},
        {"name": "value", "type": ["null", "bytes"]},
        {
            "name": "headers",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "header",
                    "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}],
                },
            },
        },
    ],
}


def avro(count: int, schema: Any = AVRO, codec: str = "null", sync_interval: int = 500) -> bytes:
    records = [
        {
            "topic": "t",
            "partition": 0,
            "offset": i,
            "timestamp_ms": 1_700_000_000_000 + i,
            "key": b"k",
            "value": b"v%d" % i,
            "headers": [{"key": "h", "value": None}],
        }
        for i in range(count)
    ]
    stream = io.BytesIO()
    fastavro.writer(stream, schema, records, codec=codec, sync_interval=sync_interval)
    return stream.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_an_avro_container_is_read(codec: str, pack: Callable[[bytes], bytes]) -> None:
    rows, capture = read(pack(avro(200, codec=codec)))
    assert capture.damage is None
    assert len(rows) == 200
    assert rows[7] == Row("t", 0, 7, 1_700_000_000_007_000_000, None, b"k", b"v7", (("h", None),))


def test_avro_fields_may_be_missing() -> None:
    schema = {
        "type": "record",
        "name": "m",
        "fields": [
            {"name": "key", "type": "string"},
            {"name": "value", "type": "null"},
            {"name": "x", "type": "float"},
        ],
    }
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [{"key": "k\u00e9", "value": None, "x": 1.0}])
    rows, _ = read(stream.getvalue())
    assert rows == [Row(key="k\u00e9".encode(), extra='{"x":1.0}')]


@pytest.mark.parametrize("names", [("key",), ("value",), ("topic",), ("value", "Key")])
def test_an_avro_container_without_key_or_value_is_refused(names: tuple[str, ...]) -> None:
    schema = {"type": "record", "name": "m", "fields": [{"name": name, "type": "bytes"} for name in names]}
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [dict.fromkeys(names, b"b")] * 8)
    rows, capture = read(stream.getvalue())
    missing = " and ".join(repr(name) for name in ("key", "value") if name not in names)
    assert rows == []
    assert f"lacks {missing}" in (capture.unreadable or "")


def test_fields_of_other_names_are_kept_as_json() -> None:
    rows, _ = read(b'{"key_b64":"aw==","value_b64":null,"height":7,"node":{"a":[1]}}\n')
    assert rows == [Row(key=b"k", extra='{"height":7,"node":{"a":[1]}}')]


def test_a_name_that_stands_twice_makes_the_line_no_message() -> None:
    line = b'{"key_b64":"aw==","key_b64":"bA==","value_b64":null}\n'
    rows, _ = read(line)
    assert rows == [Row(damaged=line.rstrip(), damage="'key_b64' appears twice in one object")]


def test_an_avro_record_that_is_no_message_keeps_its_bytes() -> None:
    schema = {
        "type": "record",
        "name": "m",
        "fields": [{"name": name, "type": "bytes"} for name in ("key", "value")]
        + [{"name": "offset", "type": "string"}],
    }
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [{"key": b"k", "value": b"v", "offset": "seven"}])
    rows, _ = read(stream.getvalue())
    assert rows == [Row(damaged=b"\x02k\x02v\x0aseven", damage="offset is not a whole number")]


@pytest.mark.property
def test_an_avro_container_cut_off_anywhere_is_read_up_to_there() -> None:
    data = avro(300)
    header = data.index(data[-16:]) + 16
    for cut in range(header, len(data), 37):
        rows, capture = read(data[:cut])
        whole = [row.offset for row in rows if row.damaged is None]
        assert whole == list(range(len(whole)))
        if capture.damage is None:
            assert data[cut - 16 : cut] == data[-16:]
    for cut in (5, header // 2, header - 1):
        assert "can't be read" in (read(data[:cut])[1].unreadable or "")


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_an_avro_container_with_any_damaged_byte_never_raises(codec: str) -> None:
    data = avro(60, codec=codec)
    for at in range(0, len(data), 11):
        rows, capture = read(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        assert capture.unreadable is not None or len(rows) <= 400


@pytest.mark.parametrize("codec", ["null", "snappy"])
def test_records_of_other_blocks_are_read_around_a_damaged_byte(codec: str) -> None:
    data = avro(60, codec=codec)
    sync = data[-16:]
    ends = [at for at in range(len(data)) if data.startswith(sync, at)]
    blocks = [read(data[: ends[0] + 16] + data[a + 16 : b + 16])[0] for a, b in pairwise(ends)]
    for at in range(ends[0] + 16, len(data), 7):
        rows, capture = read(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        hit = next(number for number, end in enumerate(ends[1:]) if at < end + 16)
        # A damaged marker costs the next block too.
        lost = {hit, hit + 1} if at >= ends[hit + 1] else {hit}
        for number, block in enumerate(blocks):
            assert number in lost or all(row in rows for row in block), (at, number)
        # A byte of a value is as good as another.
        whole = [row for row in rows if row.damaged is None]
        assert (capture.damage is not None) == (len(whole) < 60)


def test_what_is_no_block_is_kept_up_to_the_next_one() -> None:
    data = avro(60)
    first, second = data.index(data[-16:]) + 16, data.index(data[-16:], data.index(data[-16:]) + 16) + 16
    for lie in (long(3) + long(1 << 40), long(3) + long(1 << 24) + b"x", b"\xff" * 10, b"x" * (3 << 20)):
        rows, capture = read(data[:first] + lie + data[-16:] + data[second:])
        kept = b"".join(row.damaged or b"" for row in rows)
        assert kept == lie + data[-16:], lie[:20]
        good = [row.offset for row in rows if row.damaged is None]
        assert good == list(range(60))[-len(good) :]
        assert len(good) > 30
        assert "Avro block at byte" in (capture.damage or "")


def hostile(schema: Any, body: bytes, codec: bytes = b"null") -> bytes:
    def sized(text: bytes) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "bytes", text)
        return out.getvalue()

    metadata = sized(b"avro.schema") + sized(json.dumps(schema).encode()) + sized(b"avro.codec") + sized(codec)
    return b"Obj\x01\x04" + metadata + b"\x00" + b"S" * 16 + body


def long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": n, "type": t} for n, t in fields]}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(("key", "null")), "not a record with content"),
        (record(), "not a record with content"),
        ("string", "not a record with content"),
        (record(("key", "bytes"), ("x", {"type": "array", "items": "null"})), "values without bytes"),
        (record(("key", "bytes"), ("x", ["null", "r"])), "recursive"),
        (record(("key", "bytes"), ("x", "nothing")), "can't be read"),
        (record(("key", "bytes"), ("key", 7)), "can't be read"),
        ({"type": "record"}, "can't be read"),
        (record(("other", "bytes")), "lacks 'key' and 'value'"),
    ],
)
def test_a_schema_that_foreign_bytes_must_not_be_decoded_with_is_refused(schema: Any, reason: str) -> None:
    assert reason in (read(hostile(schema, b""))[1].unreadable or "")


def test_a_schema_nested_deep_is_refused() -> None:
    nested: Any = "bytes"
    for _ in range(500):
        nested = {"type": "array", "items": nested}
    assert "nested deeper" in (read(hostile(record(("key", nested)), b""))[1].unreadable or "")


KEY_SCHEMA = record(("key", "bytes"), ("value", "null"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (long(1) + long(1 << 40), "announces"),
        (long(1) + long(-5), "announces"),
        (long(1 << 60) + long(2) + b"\x02k" + b"S" * 16, "announces"),
        (long(1) + long(2) + b"\x02k" + b"T" * 16, "sync marker"),
        (long(1) + long(2) + b"\x08k" + b"S" * 16, "can't be decoded"),
        (long(1) + long(3) + b"\x02kX" + b"S" * 16, "bytes follow"),
        (b"\xff" * 20, "not an Avro long"),
    ],
)
def test_what_an_avro_block_announces_is_not_believed(body: bytes, reason: str) -> None:
    good = long(1) + long(2) + b"\x02a" + b"S" * 16
    rows, capture = read(hostile(KEY_SCHEMA, good + body))
    assert reason in (capture.damage or "")
    assert rows[0] == Row(key=b"a")


def test_an_avro_block_compressed_by_zstandard_is_read() -> None:
    packed = bytes(cramjam.zstd.compress(b"\x02a\x02b"))
    written = hostile(KEY_SCHEMA, long(2) + long(len(packed)) + packed + b"S" * 16, b"zstandard")
    rows, capture = read(written)
    assert (rows, capture.damage) == ([Row(key=b"a"), Row(key=b"b")], None)


@pytest.mark.parametrize(
    ("codec", "pack_block"),
    [
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("bzip2", bz2.compress),
        ("xz", lzma.compress),
        ("zstandard", lambda data: bytes(cramjam.zstd.compress(data))),
        ("snappy", lambda data: bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big")),
    ],
)
def test_an_avro_block_that_inflates_too_far_is_damage(
    codec: str, pack_block: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_container, "MAX_BLOCK_BYTES", 1 << 20)
    bomb = pack_block(bytes(4 << 20))
    written = hostile(KEY_SCHEMA, long(1) + long(len(bomb)) + bomb + b"S" * 16, codec.encode())
    _, capture = read(written)
    assert "inflates to more than" in (capture.damage or "")


@pytest.mark.property
def test_memory_stays_flat_whatever_the_size() -> None:
    class Endless(io.RawIOBase):
        def __init__(self, size: int) -> None:
            self.left = size
            self.line = line(topic="t", value_b64=b64(bytes(300)))

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            piece = (self.line * (size // len(self.line) + 1))[: min(size, self.left)]
            self.left -= len(piece)
            return piece

    def peak(size: int) -> int:
        tracemalloc.start()
        for batch in MessageCapture(Endless(size)).batches():  # type: ignore[arg-type]
            assert batch.schema == MESSAGE_SCHEMA
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1 << 20)
    small, large = peak(20 << 20), peak(100 << 20)
    assert large < small * 1.2
