"""The third stage of Cardinal's gold: blocks as the chain settles them, and the messages that are carried.

The rows of a block come together: what the first stage assembled of it, and what the chain decided of it. Most blocks
are as they were assembled. If a message came after a block's end, the messages up to the end are read and assembled
again. Messages of blocks that live at the end of a window become state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.cardinal.session.judgement import judged_findings
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Place
from wirehouse_pipelines.cardinal.blocks import Array, assembled, starts_of
from wirehouse_pipelines.cardinal.rows import (
    ARRIVAL,
    BATCHES,
    BLOCK,
    BLOCKS,
    CLOSED,
    FOUND,
    KEY,
    MESSAGE,
    OVER,
    REFUSED,
    REORG_KINDS,
    STATE,
    TYPES,
    Sources,
    as_states,
    batch_of,
    block_of,
    finding_row,
    found_row,
    messages_of,
    place,
    widened,
)
from wirehouse_pipelines.delta.batches import runs_of, whole_keys
from wirehouse_pipelines.lake.windows import Windows

#: Rows in their order: what was decided of a block, the block, its messages.
_DECIDED, _ASSEMBLED, _MESSAGE = range(3)
_BLOCK_SCHEMA: Final = pa.schema([field for field in TYPES[BLOCKS] if field.name != "decoder_version"])
SCHEMA: Final = pa.schema(
    [
        *_BLOCK_SCHEMA,
        *(field for field in MESSAGE if field.name not in _BLOCK_SCHEMA.names),
        ("what", pa.int8()),
        # The message's block lives at the end of its window.
        ("lives", pa.bool_()),
    ]
)
BY: Final = ("what", *ARRIVAL)
#: Rows that are returned: the first window of a hash that lives again after the horizon; and the hash of a block that
#: was complete only after its end, so that its updates have to go, with the window that has them.
REVIVED: Final = "revived"
INVALID: Final = "invalid"
HASH_BYTES: Final = 32


# Input


def of_blocks(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare rows of BLOCKS."""
    is_decided = pc.is_in(rows.column("row_kind"), pa.array([CLOSED, REFUSED]))
    return rows.append_column("what", pc.if_else(is_decided, _DECIDED, _ASSEMBLED).cast(pa.int8()))


def of_refused(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare carried rows of blocks that were refused."""
    at = TYPES[BLOCKS].field("at").type
    struct = pa.StructArray.from_arrays([rows.column(field.name) for field in at], fields=list(at))
    made = rows.select(["source", "window_start", "row_kind", "block_hash"]).append_column("at", struct)
    return of_blocks(made)


class Hashes(NamedTuple):
    """Blocks whose messages are needed."""

    #: By source and window, those that live at the end of the window.
    living: Mapping[tuple[str, str], bytes]
    #: By source, those of which a message came after their end.
    late: Mapping[str, bytes]

    @classmethod
    def of(cls, ends: Iterable[Mapping[str, Any]]) -> Hashes:
        """The hashes in the rows that the second stage returned."""
        living = {(row["source"], row["window_start"]): row["living"] for row in ends if row["living"]}
        late: dict[str, bytes] = {}
        for row in ends:
            late[row["source"]] = late.get(row["source"], b"") + row["late"]
        return cls(living, {name: hashes for name, hashes in late.items() if hashes})

    def has(self, source: str, window: str) -> bool:
        """Whether messages of this window are needed."""
        return (source, window) in self.living or source in self.late


def of_messages(rows: pa.RecordBatch, hashes: Hashes, *, carried: bool = False) -> pa.RecordBatch:
    """Prepare messages: those of blocks that live at the end of their window, or of which one came after their end."""
    rows = messages_of(rows)
    if not rows.num_rows:
        return rows
    # A file of the table has rows of one source and window.
    source, window = (rows.column(name)[0].as_py() for name in ("source", "window_start"))
    lives = _among(rows, b"" if carried else hashes.living.get((source, window), b""))
    rows = rows.append_column("lives", lives).filter(pc.or_(lives, _among(rows, hashes.late.get(source, b""))))
    return rows.append_column("what", pa.repeat(pa.scalar(_MESSAGE, pa.int8()), rows.num_rows))


def _among(rows: pa.RecordBatch, hashes: bytes) -> pa.Array:
    values = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(HASH_BYTES), len(hashes) // HASH_BYTES, [None, pa.py_buffer(hashes)]
    )
    is_message = pc.invert(pc.is_in(rows.column("kind"), pa.array(REORG_KINDS)))
    return pc.and_(is_message, pc.is_in(rows.column("block_hash"), values.cast(pa.binary())))


def of_updates(rows: pa.RecordBatch, invalid: pa.Array) -> pa.RecordBatch:
    """Prepare updates: without those of the blocks `invalid`."""
    return rows.filter(pc.invert(pc.is_in(rows.column("block_hash"), invalid)))


# The fold


def settle(
    batches: Iterable[pa.RecordBatch], sources: Sources, windows: Windows
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The fold of the stage: SCHEMA by block."""
    for rows in whole_keys(map(widened, batches), KEY, 1):
        yield from _settle(rows, sources, windows)


def _settle(rows: pa.RecordBatch, sources: Sources, windows: Windows) -> Iterator[tuple[str, pa.RecordBatch]]:
    of_key = runs_of(rows, KEY)
    is_message = np.asarray(rows.column("what")) == _MESSAGE
    facts, of_facts = rows.filter(pa.array(~is_message)), of_key[~is_message]
    is_plain = _is_plain(facts, of_facts, int(of_key[-1]) + 1)
    plain = facts.filter(pa.array(is_plain[of_facts] & np.asarray(pc.equal(facts.column("row_kind"), BLOCK))))
    yield from _plain(plain, sources, windows)
    messages = rows.select(MESSAGE.names)
    for state in as_states(messages, "message", _is_carried(rows, of_key, facts, of_facts)):
        yield STATE, state
    odd = pa.array(~is_plain[of_facts])
    for key, listed in _by_key(facts.filter(odd), of_facts[~is_plain[of_facts]]):
        begin, end = np.searchsorted(of_key, (key, key + 1))
        mine = messages.slice(begin, end - begin).filter(pa.array(is_message[begin:end]))
        yield from _Decided(listed, sources, windows).rows(mine)


def _arrived(rows: pa.RecordBatch, name: str) -> Array:
    column = pc.struct_field(rows.column(name), "arrived_at_ns")
    found: Array = np.asarray(pc.fill_null(column, np.iinfo(np.int64).min))
    return found


def _is_plain(facts: pa.RecordBatch, of_facts: Array, keys: int) -> Array:
    """For each key: it is one block that the chain didn't refuse, and its end changes nothing of it."""
    if not facts.num_rows:
        return np.zeros(keys, bool)
    count, at = {}, {}
    for kind in (BLOCK, OVER, CLOSED, REFUSED):
        mine = np.flatnonzero(np.asarray(pc.equal(facts.column("row_kind"), kind)))
        count[kind], at[kind] = np.bincount(of_facts[mine], minlength=keys), np.zeros(keys, np.int64)
        at[kind][of_facts[mine]] = mine
    plain: Array = (count[BLOCK] == 1) & (count[OVER] == 0) & (count[REFUSED] == 0) & (count[CLOSED] <= 1)
    last_ns, closed_ns = _arrived(facts, "last_at")[at[BLOCK]], _arrived(facts, "at")[at[CLOSED]]
    complete = np.asarray(facts.column("completed_at").is_valid())[at[BLOCK]]
    plain &= (count[CLOSED] == 0) | (complete & (last_ns < closed_ns))
    return plain


def _plain(blocks: pa.RecordBatch, sources: Sources, windows: Windows) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of blocks that are as they were assembled. A block whose messages are all carried has none."""
    blocks = blocks.filter(pa.array(_arrived(blocks, "last_at") >= starts_of(blocks, sources)))
    complete = blocks.column("completed_at").is_valid()
    yield BATCHES, _batches(blocks, blocks.column("window_start"), pc.if_else(complete, "complete", "incomplete"))
    odd = blocks.filter(pc.greater(pc.list_value_length(blocks.column("findings")), 0))
    for row in odd.select([*_FINDING_COLUMNS]).to_pylist():
        yield from _found(_of_windows(row, sources))


_FINDING_COLUMNS: Final = ("source", "block_hash", "batch", "findings")


def _of_windows(row: Mapping[str, Any], sources: Sources) -> Iterator[dict[str, Any]]:
    """The findings of a block that are of the windows."""
    for finding in row["findings"]:
        if finding["window_start"] >= sources[row["source"]].windows[0]:
            yield found_row(finding, _about(row, finding["window_start"]))


def _about(row: Mapping[str, Any], window: str) -> dict[str, Any]:
    number = row["batch"]["number"] if row["batch"] else None
    return {"source": row["source"], "window_start": window, "block_hash": row["block_hash"], "number": number}


def _found(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    listed = [*rows]
    if listed:
        yield FOUND, batch_of(FOUND, listed)


def _batches(blocks: pa.RecordBatch, window: pa.Array, status: pa.Array, judged: bool = False) -> pa.RecordBatch:
    """Rows of BATCHES."""
    columns: dict[str, pa.Array] = {
        "source": blocks.column("source"),
        "window_start": window,
        "block_hash": blocks.column("block_hash"),
        **{name: pc.struct_field(blocks.column("batch"), name) for name in ("number", "parent", "weight")},
        "status": status,
        "judged": pa.repeat(judged, blocks.num_rows),
        **{name: _with_texts(blocks.column(name), name) for name in ("expected", "received", "missing")},
        **{name: blocks.column(name) for name in ("messages", "duplicates")},
    }
    for name in ("capture_id", "record_number", "arrived_at_ns"):
        columns[name] = pc.struct_field(blocks.column("first_at"), name)
    for name, of in (
        ("completed_at_ns", "arrived_at_ns"),
        ("completed_capture_id", "capture_id"),
        ("completed_record_number", "record_number"),
    ):
        columns[name] = pc.struct_field(blocks.column("completed_at"), of)
    return pa.RecordBatch.from_pydict(columns)


def _with_texts(lists: pa.ListArray, name: str) -> pa.ListArray:
    """Lists of BLOCKS with names as text, and the fields that BATCHES has."""
    struct = TYPES[BATCHES].field(name).type.value_type
    values = lists.flatten()
    texts = pa.array([one.decode("utf-8", "backslashreplace") for one in values.field("name").to_pylist()], pa.string())
    fields = [texts if field.name == "name" else values.field(field.name) for field in struct]
    offsets = np.concatenate([[0], np.cumsum(np.asarray(pc.list_value_length(lists)))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(fields, fields=list(struct)))


def _is_carried(rows: pa.RecordBatch, of_key: Array, facts: pa.RecordBatch, of_facts: Array) -> Array:
    """The messages that are state: those of living blocks, from the first on that isn't too late for a life before."""
    first_ns = np.zeros(int(of_key[-1]) + 1, np.int64)
    mine = np.asarray(pc.equal(facts.column("row_kind"), BLOCK))
    first_ns[of_facts[mine]] = _arrived(facts, "first_at")[mine]
    lives = np.asarray(pc.fill_null(rows.column("lives"), False))
    found: Array = lives & (np.asarray(pc.fill_null(rows.column("arrived_at_ns"), 0)) >= first_ns[of_key])
    return found


def _by_key(facts: pa.RecordBatch, of_facts: Array) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    listed: dict[int, list[dict[str, Any]]] = {}
    for key, row in zip(of_facts.tolist(), facts.select(_BLOCK_SCHEMA.names).to_pylist(), strict=True):
        listed.setdefault(key, []).append(row)
    yield from listed.items()


class _Decided:
    """A block of which the chain has decided something that changes its rows."""

    def __init__(self, rows: Sequence[dict[str, Any]], sources: Sources, windows: Windows) -> None:
        self._sources, self._windows = sources, windows
        self._source = sources[rows[0]["source"]]
        self._first = self._source.windows[0]
        kinds: dict[str, list[dict[str, Any]]] = {BLOCK: [], OVER: [], CLOSED: [], REFUSED: []}
        for row in rows:
            kinds[row["row_kind"]].append(row)
        self._block = next(iter(kinds[BLOCK]), None)
        self._over = next(iter(kinds[OVER]), None)
        self._closed = sorted(kinds[CLOSED], key=lambda row: place(row["at"]))
        self._refused = min((place(row["at"]) for row in kinds[REFUSED]), default=None)

    def rows(self, messages: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """All rows of the block. `messages` are those that came for it, if one came after its end."""
        if self._block is not None:
            yield from self._of_life(self._block, messages)
        if self._over is not None:
            yield from self._of_past(self._over)

    def _of_life(self, block: dict[str, Any], messages: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        first = place(block["first_at"])
        end = next((row for row in self._closed if place(row["at"]) >= first), None)
        if end is not None and place(block["last_at"]) > place(end["at"]):
            yield from self._revived(end, messages)
            before = block
            block = self._up_to(place(end["at"]), first, messages)
            yield from self._invalid(before, block)
        yield from _found(_of_windows(block, self._sources))
        yield from self._settled(block, end)

    def _of_past(self, block: dict[str, Any]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """A block that time alone ended before the windows. If its hash lives again it has the row of its new life."""
        end = next((row for row in self._closed if row["at"]["arrived_at_ns"] < self._source.start_ns), None)
        if end is not None and end["judged"] and block["completed_at"] is None:
            yield from self._settled(block, end, has_row=self._block is None)

    def _revived(self, end: Mapping[str, Any], messages: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The hash lives again after the horizon: the window of the first message of the new life."""
        since = pc.greater(messages.column("arrived_at_ns"), end["at"]["arrived_at_ns"] + HORIZON_NS)
        again = messages.filter(since)
        if again.num_rows:
            windows = pc.min(again.column("window_start")).as_py()
            yield REVIVED, pa.RecordBatch.from_pylist([{"source": end["source"], "window_start": windows}])

    def _up_to(self, end: Place, first: Place, messages: pa.RecordBatch) -> dict[str, Any]:
        """The block from its first message to its end."""
        arrival = zip(*(messages.column(name).to_pylist() for name in ARRIVAL), strict=True)
        kept = [first.order <= at <= end.order for at in arrival]
        mine = messages.filter(pa.array(kept, pa.bool_()))
        bounds = np.array([0, mine.num_rows])
        blocks, _ = assembled(mine, bounds, self._sources, self._windows)
        (row,) = blocks.to_pylist()
        return row  # type: ignore[no-any-return]

    def _invalid(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, pa.RecordBatch]]:
        completed = before["completed_at"]
        if completed and after["completed_at"] is None and completed["arrived_at_ns"] >= self._source.start_ns:
            window = self._windows.of(completed["arrived_at_ns"])
            row = {"source": before["source"], "window_start": window, "block_hash": before["block_hash"]}
            yield INVALID, pa.RecordBatch.from_pylist([row])

    def _settled(
        self, block: dict[str, Any], end: Mapping[str, Any] | None, *, has_row: bool = True
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of a block that has this end."""
        judged_in: str | None = None
        if end is not None and end["judged"] and block["completed_at"] is None:
            judged_in = str(end["window_start"])
            findings = judged_findings(block_of(block), end["stall"] or "")
            about = _about(block, judged_in)
            yield from _found(found_row(finding_row(finding), about) for finding in findings)
        refused_in = None if self._refused is None else self._windows.of(self._refused.arrived_at_ns)
        changes = {self._windows.of(block["last_at"]["arrived_at_ns"]), refused_in, judged_in}
        new = sorted(name for name in changes if name is not None and name >= self._first)
        for window in new if has_row else ():
            complete = "incomplete" if block["completed_at"] is None else "complete"
            status = "refused" if refused_in is not None and refused_in <= window else complete
            row = pa.RecordBatch.from_pylist([block], schema=_ROW)
            judged = judged_in is not None and judged_in <= window
            yield BATCHES, _batches(row, pa.array([window]), pa.array([status]), judged)


_ROW: Final = pa.schema(
    [field for field in _BLOCK_SCHEMA if field.name not in ("window_start", "row_kind", "findings")]
)
