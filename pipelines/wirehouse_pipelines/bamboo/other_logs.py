"""Links that lead to entries of other logs.

A link that leads to no entry of its own log is loose, and kept in the state. The entry that it leads to may come later,
or the link may come later than the entry. This stage compares the loose links with the entries of the run, and new ones
also with all known entries, by hash. Hardly any entry is found, as that takes a broken log.

Input: the files that the stage of `verification.py` wrote, and the tables of earlier windows. Output: rows with the
columns of the state, for that stage to judge the logs again: the link, author and log id of the entry that it leads to,
and in `state` the window of the entry, or null if it was known before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.log.schema import UINT
from wirehouse_pipelines.bamboo.known_logs import links_as_moved
from wirehouse_pipelines.bamboo.verification_rows import ENTRIES_TABLE, STATE_TABLE, key_of
from wirehouse_pipelines.delta import spark_tables, table_reader
from wirehouse_pipelines.delta.batches import of_keys, pieces_of, whole_keys, with_all
from wirehouse_pipelines.delta.spark_tables import File
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.stages import Input, Order, Stage, Where, Written
from wirehouse_pipelines.tables import all_tables

#: The name of the rows that the stage writes.
LED: Final = "led"
_WINDOW: Final = ("source", "window_start")
_LINK: Final = ("source", "link")
_STATE: Final = dict.fromkeys((*_WINDOW, "key", "link", "author", "log_id"), ())
_ENTRY: Final = dict.fromkeys((*_WINDOW, "entry_hash", "author", "log_id", "own_rule"), ())
#: Loose links, with the key of their log and, if they are known from before, the window that has them; and entries,
#: with the window if they are new.
_ROWS: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*_WINDOW, "state_window", "key")),
        ("link", pa.binary()),
        ("is_entry", pa.bool_()),
        ("author", pa.binary()),
        ("log_id", UINT),
    ]
)
_LED: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*_WINDOW, "key", "state")),
        *(_ROWS.field(name) for name in ("link", "author", "log_id")),
    ]
)
#: Approximate number of rows that are folded at once.
_AT_ONCE: Final = 20_000


def stage(work: Work, written: Written, *, has_loose: bool) -> Stage:
    """The stage that finds what links lead to. `has_loose`: there are loose links among those that were written."""
    links = steps.passed(work, STATE_TABLE, written[STATE_TABLE])
    entries = steps.passed(work, ENTRIES_TABLE, written[ENTRIES_TABLE])
    before = spark_tables.files(work.lake, STATE_TABLE, work.alive())
    new, every = _Links(work.lake, links), _Links(work.lake, [*links, *before])
    inputs = [
        Input(STATE_TABLE, links, _STATE, _new_links),
        Input(STATE_TABLE, before, _STATE, _known_links),
        Input(ENTRIES_TABLE, entries, _ENTRY, partial(_entries, known=False), Where(_ENTRY, every.lead_to)),
    ]
    if has_loose:
        known = spark_tables.files(work.lake, ENTRIES_TABLE, work.alive())
        inputs.append(Input(ENTRIES_TABLE, known, _ENTRY, partial(_entries, known=True), Where(_ENTRY, new.lead_to)))
    return Stage(
        inputs,
        _ROWS,
        Order(_LINK, ("is_entry", "state_window", "window_start", "key")),
        partial(_find, first={span.source: span.first for span in work.spans}),
        (),
        steps.windows(work.spans),
        passed={LED: STATE_TABLE},
    )


def as_input(led: Sequence[File]) -> Input:
    """What the stage wrote, as rows of MOVED."""
    return Input(STATE_TABLE, led, {**_STATE, "state": ()}, _as_moved)


def _as_moved(rows: pa.RecordBatch) -> pa.RecordBatch:
    moved = links_as_moved(rows.drop_columns(["state"]))
    return moved.set_column(moved.schema.get_field_index("window_start"), "window_start", rows.column("state"))


def _new_links(rows: pa.RecordBatch) -> pa.RecordBatch:
    loose = rows.filter(pc.and_(rows.column("link").is_valid(), rows.column("author").is_null()))
    return with_all(loose.append_column("is_entry", pa.repeat(False, loose.num_rows)), _ROWS)


def _known_links(rows: pa.RecordBatch) -> pa.RecordBatch:
    links = rows.filter(rows.column("link").is_valid())
    links = links.set_column(links.schema.get_field_index("window_start"), "state_window", links.column("window_start"))
    return with_all(links.append_column("is_entry", pa.repeat(False, links.num_rows)), _ROWS)


def _entries(rows: pa.RecordBatch, *, known: bool) -> pa.RecordBatch:
    columns = {name: rows.column(name) for name in ("source", "author", "log_id")}
    columns |= {"link": rows.column("entry_hash"), "is_entry": pa.repeat(True, rows.num_rows)}
    columns |= {} if known else {"window_start": rows.column("window_start")}
    return with_all(pa.RecordBatch.from_pydict(columns), _ROWS)


class _Links:
    """The hashes of loose links, read in a task."""

    def __init__(self, lake: Lake, files: Sequence[File]) -> None:
        self._lake, self._files = lake, files

    @cached_property
    def _hashes(self) -> pa.Array:
        table = all_tables()[STATE_TABLE]
        listed = [
            rows.column("link").drop_null()
            for file in self._files
            for rows in table_reader.rows_of(self._lake, table, file.name, {"link": ()})
        ]
        return pa.concat_arrays([pa.array([], pa.binary()), *listed]).unique()

    def lead_to(self, entries: pa.RecordBatch) -> pa.Array:
        """Which entries they lead to. A link to what isn't correctly encoded stays loose."""
        there = pc.is_in(entries.column("entry_hash"), self._hashes)
        return pc.and_(there, entries.column("own_rule").is_null())


def _find(batches: Iterable[pa.RecordBatch], first: Mapping[str, str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of _LED, in the first window of their source."""
    for rows in whole_keys(batches, _LINK, _AT_ONCE):
        is_entry = rows.column("is_entry")
        found: list[dict[str, Any]] = []
        for (source, _), of_link in pieces_of(of_keys(rows, _LINK, is_entry, pc.invert(is_entry)), _LINK):
            found += ({"source": source, "window_start": first[source]} | led for led in _led(of_link))
        if found:
            yield LED, pa.RecordBatch.from_pylist(found, schema=_LED)


def _led(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The logs with a loose link, each with the first entry of another log that it leads to."""
    links = rows.filter(pc.invert(rows.column("is_entry"))).to_pylist()
    entries = rows.filter(rows.column("is_entry"))
    logs = key_of(entries.column("author"), entries.column("log_id"), entries.column("link"))
    # Known entries come first. What isn't the entry of a log is no target.
    targets = [
        (key, row) for key, row in zip(logs.to_pylist(), entries.to_pylist(), strict=True) if row["author"] is not None
    ]
    new = {row["key"] for row in links if row["window_start"] is not None}
    # The newest known row of a link counts: it may lead elsewhere by now.
    loose = {row["key"]: row["author"] is None for row in links if row["state_window"] is not None}
    for log in sorted(new | {key for key, is_loose in loose.items() if is_loose}):
        for key, row in targets:
            if key != log and (row["window_start"] is not None or log in new):
                yield {name: row[name] for name in ("link", "author", "log_id")} | {
                    "key": log,
                    "state": row["window_start"],
                }
                break
