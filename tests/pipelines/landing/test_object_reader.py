"""Landed objects as columns: damage is told, and tasks share what there is."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_pipelines.delta import table_writer
from wirehouse_pipelines.jobs.bronze import LEAST_BYTES, SHARE_BYTES, Piece, shares
from wirehouse_pipelines.landing import object_reader, object_writer
from wirehouse_pipelines.landing.object_reader import DamagedObjectError
from wirehouse_pipelines.storage.storage import LocalStorage
from wirehouse_pipelines.tables import all_tables

HEADERS = [{"key": "k", "value": None}, {"key": "", "value": b"v"}]
RECORDS = [
    {
        **dict.fromkeys(field["name"] for field in object_writer.MESSAGE["fields"]),
        "record_number": number,
        "arrived_at_ns": -number,
        "capture_arrived_at_ns": 1,
        "capture_id": b"i",
        "value": bytes(number),
        "headers": HEADERS[: number % 3],
    }
    for number in range(40)
]
SYNC = b"0123456789abcdef"
PARTITION = {"source": "a", "window_start": "b"}


def written(codec: str = "snappy", *, blocks: int = 3) -> bytes:
    stream = io.BytesIO()
    size = len(RECORDS) // blocks * 20
    fastavro.writer(stream, object_writer.MESSAGE, RECORDS, codec, sync_interval=size, sync_marker=SYNC)
    return stream.getvalue()


def read(data: bytes, begin: int = 0) -> list[dict[str, Any]]:
    return [row for batch in object_reader.read(io.BytesIO(data), "it", begin, len(data)) for row in batch.to_pylist()]


@pytest.mark.parametrize("codec", ["snappy", "null"])
def test_what_another_library_wrote_is_read_the_same(codec: str) -> None:
    assert read(written(codec)) == RECORDS


@pytest.mark.property
def test_every_range_has_the_blocks_that_begin_in_it() -> None:
    data = written()
    assert data.count(SYNC) > 3
    for cut in range(len(data) + 1):
        parts = (object_reader.read(io.BytesIO(data), "it", *part) for part in ((0, cut), (cut, len(data))))
        assert [row for part in parts for batch in part for row in batch.to_pylist()] == RECORDS


def test_no_changed_byte_of_a_block_changes_rows() -> None:
    data = written()
    told = []
    for at in range(data.index(SYNC) + len(SYNC), len(data)):
        try:
            # Some packed bytes are copied from elsewhere: from another place they are the same.
            assert read(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]) == RECORDS
        except DamagedObjectError as error:
            told.append(str(error))
    assert len(told) > 0.9 * (len(data) - data.index(SYNC))
    assert all(re.match("it isn't what was landed .byte [0-9]+: ", text) for text in told)


def test_an_object_that_was_cut_is_told() -> None:
    data = written()
    for at in range(data.index(SYNC) + len(SYNC), len(data)):
        with pytest.raises(DamagedObjectError):
            list(object_reader.read(io.BytesIO(data[:at]), "it", 0, len(data)))


class Frugal(io.BytesIO):
    """Nobody asks for more than there is, but for a look around."""

    def read(self, size: int | None = -1) -> bytes:
        assert size is None or size <= 1 << 20
        return super().read(size)


@pytest.mark.parametrize("announced", [1 << 30, 1 << 62])
def test_nothing_is_allocated_by_an_announced_size(announced: int) -> None:
    head = written()[: written().index(SYNC) + len(SYNC)]

    def number(value: int) -> bytes:
        return bytes([*(value >> at & 0x7F | 0x80 for at in range(0, 63, 7)), value >> 63])

    with pytest.raises(DamagedObjectError):
        list(object_reader.read(Frugal(head + number(2) + number(announced * 2) + bytes(99)), "it"))
    # What Snappy says to inflate to.
    packed = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x07, 0, 0]) + bytes(4)
    with pytest.raises(DamagedObjectError, match="the size it states"):
        list(object_reader.read(Frugal(head + number(2) + number(2 * len(packed)) + packed + SYNC), "it"))


def test_a_head_that_is_none_is_told() -> None:
    data = written()
    for cut in range(data.index(SYNC) + len(SYNC)):
        with pytest.raises(DamagedObjectError):
            read(data[:cut])
    with pytest.raises(DamagedObjectError):
        read(b"junk" * 100)


def test_a_head_that_was_changed_is_told() -> None:
    data = written()
    for at in range(data.index(SYNC)):
        # What else a schema says, such as its namespace, isn't looked at.
        with suppress(DamagedObjectError):
            assert read(data[:at] + bytes([data[at] ^ 1 << at % 7]) + data[at + 1 :]) == RECORDS


def test_small_batches_are_one_group_of_rows(tmp_path: Path) -> None:
    batches = list(object_reader.read(io.BytesIO(written()), "it")) * 50
    told = table_writer.write(LocalStorage(str(tmp_path)), "x", all_tables()["bronze.messages"], PARTITION, batches)
    assert told is not None
    assert pq.read_metadata(tmp_path / "x" / told["path"]).num_row_groups == 1


@given(st.binary(max_size=60), st.integers(0, 9))
def test_records_of_any_bytes_end_where_they_say_or_not_at_all(data: bytes, rows: int) -> None:
    schema = fastavro.parse_schema(object_writer.MESSAGE)
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [], sync_marker=SYNC)
    head = stream.getvalue()
    block = bytes([2 * rows, 2 * len(data)]) if len(data) < 64 else b""
    try:
        found = read(head + block + data + SYNC)
    except (DamagedObjectError, UnicodeDecodeError):
        return
    assert len(found) == rows


@given(
    st.lists(
        st.builds(
            Piece,
            st.sampled_from("ab"),
            st.sampled_from("12"),
            st.uuids().map(str),
            st.just(0),
            st.integers(0, 3 * SHARE_BYTES),
        ),
        max_size=20,
    ),
    st.integers(1, 64),
)
def test_shares_have_every_byte_once(pieces: list[Piece], cores: int) -> None:
    found = shares(pieces, cores)
    total = sum(piece.end for piece in pieces)
    most = max(sum(piece.end - piece.begin for piece in share) for share in found) if found else 0
    assert most <= SHARE_BYTES
    assert most <= max(LEAST_BYTES, -(-total // cores))
    assert len(found) <= total // most + 1 if found else not total
    covered = sorted(piece for share in found for piece in share)
    joined: list[Piece] = []
    for piece in covered:
        if joined and joined[-1].name == piece.name:
            assert joined[-1].end == piece.begin
            joined[-1] = joined[-1]._replace(end=piece.end)
        else:
            joined.append(piece)
    assert joined == sorted(piece for piece in pieces if piece.end)


def test_a_file_of_a_table_has_the_rows_and_tells_of_them(tmp_path: Path) -> None:
    storage, table = LocalStorage(str(tmp_path)), all_tables()["bronze.messages"]
    batches = [
        *object_reader.read(io.BytesIO(written()), "it", 0, len(written())),
        *object_reader.read(io.BytesIO(written()), "it", 0, len(written())),
    ]
    told = table_writer.write(storage, "bronze/messages", table, PARTITION, batches)
    assert told is not None
    path = tmp_path / "bronze" / "messages" / told["path"]
    assert path.parent.relative_to(tmp_path / "bronze" / "messages").as_posix() == "source=a/window_start=b"
    found = pq.ParquetFile(path).read()
    assert found.column_names == [column.name for column in table.columns if column.name not in PARTITION]
    assert found.select(list(RECORDS[0])).to_pylist() == RECORDS * 2
    assert told["size"] == path.stat().st_size
    assert told["stats"] == {
        "numRecords": 80,
        "minValues": {"record_number": 0, "arrived_at_ns": -39},
        "maxValues": {"record_number": 39, "arrived_at_ns": 0},
        "nullCount": {"record_number": 0, "arrived_at_ns": 0, "offset": 80, "ts_ns": 80},
    }


def test_no_file_is_written_without_rows(tmp_path: Path) -> None:
    assert table_writer.write(LocalStorage(str(tmp_path)), "x", all_tables()["bronze.files"], {}, []) is None
    assert not list(tmp_path.rglob("*"))
