"""A stage from files of one table to files of others: in one process, and by Spark's tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from wirehouse_pipelines import stages
from wirehouse_pipelines.delta import arrow_types, spark_tables, table_writer
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.stages import Input, Order, OtherWindowError, Stage, Where, running
from wirehouse_pipelines.storage.storage import LocalStorage
from wirehouse_pipelines.tables import all_tables

FROM, TO = "bronze.segments", "silver.wallaroo"
DAYS = ("2026-11-14", "2026-11-15")
SPAN = Span("a", DAYS)
SCHEMA = pa.schema(
    [
        *((name, arrow_types.schema(all_tables()[FROM]).field(name).type) for name in ("source", "window_start")),
        ("flow", pa.binary()),
        ("arrived_at_ns", pa.int64()),
        ("payload", pa.binary()),
    ]
)
ORDER = Order(("source", "flow"), ("arrived_at_ns",))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), Windows("day", DAYS[0]))


def write(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    """Segments, in files of a few."""
    table, files = all_tables()[FROM], []
    for window in DAYS:
        mine = [row for row in rows if row["window_start"] == window]
        for at in range(0, len(mine), 40):
            batch = pa.RecordBatch.from_pylist(mine[at : at + 40], schema=SCHEMA)
            partition = {"source": "a", "window_start": window}
            files.append(
                table_writer.write(LocalStorage(lake.root), lake.table_folder(FROM), table, partition, [batch])
            )
    spark_tables.replace(lake, FROM, [file for file in files if file], [SPAN])


def segment(flow: bytes | None, at: int, payload: bytes = b"") -> dict[str, Any]:
    return {"source": "a", "window_start": DAYS[at % 2], "flow": flow, "arrived_at_ns": at, "payload": payload}


def loud(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Those with a flow."""
    return rows.filter(rows.column("flow").is_valid())


def counting(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A row of each segment: how many of its flow came before it."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for _, of_flow in groupby(rows, key=lambda row: (row["source"], row["flow"])):
        listed = [
            {name: row[name] for name in ("source", "window_start", "flow", "arrived_at_ns")}
            | {"row_kind": "message", "byte_start": number}
            for number, row in enumerate(of_flow)
        ]
        yield TO, pa.RecordBatch.from_pylist(listed, schema=MADE)


MADE = pa.schema(
    [
        *((name, SCHEMA.field(name).type) for name in ("source", "window_start", "flow", "arrived_at_ns")),
        ("row_kind", pa.string()),
        ("byte_start", pa.int64()),
    ]
)


def stage(lake: Lake) -> Stage:
    read = Input(FROM, spark_tables.files(lake, FROM, [SPAN]), dict.fromkeys(SCHEMA.names, ()), loud)
    return Stage([read], SCHEMA, ORDER, counting, [TO], frozenset(("a", day) for day in DAYS))


ROWS = [
    *(segment(b"hot", at * 7919 % 1000, b"x" * 50) for at in range(1000)),
    *(segment(b"%03d" % (at % 100), at) for at in range(300)),
    *(segment(None, at) for at in range(10)),
]


def committed(lake: Lake, written: dict[str, list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """The rows of the table once `written` is committed."""
    spark_tables.replace(lake, TO, written[TO], [SPAN])
    found = sql.rows(
        lake, "SELECT flow, arrived_at_ns, byte_start, window_start, row_kind, stream_id FROM silver.wallaroo"
    )
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def wanted() -> list[tuple[Any, ...]]:
    seen: Counter[bytes] = Counter()
    rows = []
    for row in sorted((row for row in ROWS if row["flow"]), key=lambda row: (row["flow"], row["arrived_at_ns"])):
        rows.append((row["flow"], row["arrived_at_ns"], seen[row["flow"]], row["window_start"], "message", None))
        seen[row["flow"]] += 1
    return sorted(rows, key=repr)


def test_here(lake: Lake) -> None:
    write(lake, ROWS)
    written = stages.run_here(lake, stage(lake))
    assert committed(lake, written) == wanted()
    assert len(written[TO]) == len(DAYS)
    for file in written[TO]:
        stored = parquet.read_table(Path(lake.table_path(TO), file["path"])).to_pylist()
        assert file["stats"]["minValues"] == {"arrived_at_ns": min(row["arrived_at_ns"] for row in stored)}
        assert file["stats"]["nullCount"] == {"arrived_at_ns": 0, "record_number": len(stored)}


def test_a_fold_needs_no_files() -> None:
    declared = Stage([], SCHEMA, ORDER, counting, [TO], frozenset())
    batches = pa.Table.from_pylist([segment(b"b", 2), segment(b"a", 1), segment(b"b", 0)], schema=SCHEMA).to_batches()
    made = [row for table, rows in stages.folded(declared, batches) for row in rows.to_pylist()]
    assert [(row["flow"], row["byte_start"]) for row in made] == [(b"a", 0), (b"b", 0), (b"b", 1)]


def test_no_rows(lake: Lake) -> None:
    write(lake, [segment(None, 1)])
    assert stages.run_here(lake, stage(lake)) == {TO: []}
    assert stages.run_here(lake, replace(stage(lake), inputs=[])) == {TO: []}


def test_rows_that_follow_from_no_input(lake: Lake) -> None:
    clock = pa.RecordBatch.from_pylist([{"source": "a", "window_start": DAYS[0], "row_kind": "state"}])
    written = stages.run_here(lake, replace(stage(lake), inputs=[], beside=[(TO, clock)]))
    of_clock = (None, None, None, DAYS[0], "state", None)
    assert committed(lake, written) == [of_clock]
    write(lake, ROWS)
    # In one partition with rows of other columns.
    beside = [(TO, clock.set_column(2, "row_kind", pa.array(["message"])))]
    written = stages.run_here(lake, replace(stage(lake), beside=beside))
    assert len(written[TO]) == len(DAYS)
    assert committed(lake, written) == sorted([*wanted(), (*of_clock[:4], "message", None)], key=repr)


def test_a_row_of_another_window_is_an_error_and_leaves_nothing(lake: Lake) -> None:
    write(lake, ROWS)
    with pytest.raises(OtherWindowError, match=r"silver\.wallaroo: a row of another window"):
        stages.run_here(lake, replace(stage(lake), windows=frozenset({("a", DAYS[0])})))
    assert not list(Path(lake.table_path(TO)).rglob("*.parquet*"))


def test_files_of_another_attempt_are_no_part_of_the_table(lake: Lake) -> None:
    """A task that was killed after it wrote, or that ran twice, leaves files that nothing names."""
    write(lake, ROWS)
    first, second = (stages.run_here(lake, stage(lake)) for _ in range(2))
    assert not {file["path"] for file in first[TO]} & {file["path"] for file in second[TO]}
    assert committed(lake, second) == wanted()
    there = {str(path.relative_to(lake.table_path(TO))) for path in Path(lake.table_path(TO)).rglob("part-*.parquet")}
    assert there == {file["path"] for file in (*first[TO], *second[TO])}
    named = {file.name for file in spark_tables.files(lake, TO, [SPAN])}
    assert named == {f"{lake.table_folder(TO)}/{file['path']}" for file in second[TO]}


def test_only_the_wanted_rows_of_a_file_are_prepared(lake: Lake) -> None:
    write(lake, ROWS)
    seen: list[bytes] = []

    def spied(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(rows.column("flow").to_pylist())
        return rows

    declared = stage(lake)
    where = Where({"flow": ()}, lambda rows: pc.equal(rows.column("flow"), b"007"))
    (read,) = declared.inputs
    written = stages.run_here(lake, replace(declared, inputs=[replace(read, prepare=spied, where=where)]))
    assert seen == [row["flow"] for row in ROWS if row["flow"] == b"007"]
    assert committed(lake, written) == [row for row in wanted() if row[0] == b"007"]


def test_a_next_stage_reads_what_one_passes_on_and_no_table_has_it(lake: Lake) -> None:
    write(lake, ROWS)

    def passing(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        for name, rows in counting(batches):
            yield name, rows.slice(0, 1)
            yield "rest", rows.slice(1)

    first = stages.run_here(lake, replace(stage(lake), fold=passing, passed={"rest": TO}))
    flows = {row["flow"] for row in ROWS if row["flow"]}
    assert len(committed(lake, first)) == len(flows)
    work = Work(None, lake, (SPAN,), {}, ())  # type: ignore[arg-type]  # no stage asks for it
    read = Input(TO, steps.passed(work, TO, first["rest"]), dict.fromkeys(MADE.names, ()))
    assert sum(file.rows for file in read.files) == len(wanted()) - len(flows)
    told = replace(stage(lake), inputs=[read], schema=MADE, fold=lambda batches: ((TO, rows) for rows in batches))
    rest = committed(lake, stages.run_here(lake, told))
    assert len(rest) == len(wanted()) - len(flows)
    assert set(rest) < set(wanted())


def each(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A row of each segment, whatever came before it."""
    for rows in batches:
        listed = [row | {"row_kind": "message", "byte_start": len(row["payload"])} for row in rows.to_pylist()]
        yield TO, pa.RecordBatch.from_pylist(listed, schema=MADE)


def of_each() -> list[tuple[Any, ...]]:
    rows = [row for row in ROWS if row["flow"]]
    wanted = ((row["flow"], row["arrived_at_ns"], len(row["payload"]), row["window_start"]) for row in rows)
    return sorted(((*row, "message", None) for row in wanted), key=repr)


def test_without_an_order_rows_come_as_they_are_read(lake: Lake) -> None:
    write(lake, ROWS)
    assert committed(lake, stages.run_here(lake, replace(stage(lake), order=None, fold=each))) == of_each()


@pytest.mark.property
def test_one_file_a_partition_stays_open(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two partitions in turn, in groups far smaller than files."""
    monkeypatch.setattr(table_writer, "GROUP_BYTES", 1)
    write(lake, ROWS)
    written = stages.run_here(lake, stage(lake))
    assert len(written[TO]) == len(DAYS)
    assert committed(lake, written) == wanted()
    monkeypatch.setattr(table_writer, "OPEN_FILES", 1)
    assert committed(lake, stages.run_here(lake, stage(lake))) == wanted()


@pytest.mark.spark
def test_by_an_exchange_the_rows_are_those_of_one_task(spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lake, ROWS)
    alone = stages.run(spark, lake, stage(lake))
    assert committed(lake, alone) == wanted()
    for name, value in (("ALONE_BYTES", 0), ("SHARE_BYTES", 8_000), ("BUCKET_BYTES", 20_000)):
        monkeypatch.setattr(running, name, value)
    clock = pa.RecordBatch.from_pylist([{"source": "a", "window_start": DAYS[0], "row_kind": "state"}])
    exchanged = stages.run(spark, lake, replace(stage(lake), beside=[(TO, clock)]))
    assert len({file["path"] for file in exchanged[TO]}) == len(exchanged[TO]) > len(alone[TO])
    of_clock = (None, None, None, DAYS[0], "state", None)
    assert committed(lake, exchanged) == sorted([*wanted(), of_clock], key=repr)


@pytest.mark.spark
def test_without_an_order_map_tasks_write(spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lake, ROWS)
    clock = pa.RecordBatch.from_pylist([{"source": "a", "window_start": DAYS[0], "row_kind": "state"}])
    declared = replace(stage(lake), order=None, fold=each, beside=[(TO, clock)])
    for name, value in (("ALONE_BYTES", 0), ("SHARE_BYTES", 8_000), ("BUCKET_BYTES", 20_000)):
        monkeypatch.setattr(running, name, value)
    written = stages.run(spark, lake, declared)
    assert len({file["path"] for file in written[TO]}) > len(DAYS) + 1
    of_clock = (None, None, None, DAYS[0], "state", None)
    assert committed(lake, written) == sorted([*of_each(), of_clock], key=repr)


@pytest.mark.spark
def test_what_is_wrong_in_a_task_is_raised_as_it_is(spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lake, ROWS)
    declared = replace(stage(lake), windows=frozenset({("a", DAYS[0])}))
    for alone, wrong in ((1 << 20, declared), (0, declared), (0, replace(declared, order=None, fold=each))):
        monkeypatch.setattr(running, "ALONE_BYTES", alone)
        with pytest.raises(OtherWindowError):
            stages.run(spark, lake, wrong)
