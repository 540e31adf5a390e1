"""The rows of what the fast path read (`fast/judge.py`).

The reference path for the same rows is `rows.py` with `conversation.Account`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.fast import loops
from wirehouse_codecs.bamboo.fast.judge import SideData, Spoken
from wirehouse_codecs.bamboo.log.rows import ENTRY, SIDES
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.bamboo.setup import Channel
from wirehouse_codecs.bamboo.wire.yamf import PREFIX
from wirehouse_codecs.compiled.arrow import frozen, offsets_of, parts, repeated, strings, unsigned
from wirehouse_codecs.compiled.blake2b import DIGEST
from wirehouse_codecs.logs.rows import MESSAGE, VIOLATION, Log, place_columns

Array = np.ndarray[Any, Any]
#: Bytes of a side, or a number of each of its packets or entries.
Of = Callable[[SideData], Array]

_KINDS: Final = ("credit", "write", "metadata", "raw", "lz")
_FIRST_KINDS: Final = {loops.METADATA: 2, loops.RAW: 3, loops.COMPRESSED: 4}
_SENT: Final = ("author", "log_id", "seqnum")
#: What metadata leaves out of an entry: without links that aren't sent, with a backlink, with a lipmaalink, with both.
_OMITTED: Final = (_SENT, (*_SENT, "backlink"), (*_SENT, "lipmaalink"), (*_SENT, "lipmaalink", "backlink"))
_OMITTED_SIZES: Final = [np.array([len(word) for word in words], np.uint8) for words in _OMITTED]
_OMITTED_BYTES: Final = [np.frombuffer("".join(words).encode(), np.uint8) for words in _OMITTED]
#: A link that was sent and one that isn't known, as entries have it.
_WORD_SENT, _WORD_UNKNOWN = np.array([loops.SENT, loops.UNKNOWN]).view(np.uint64)
_M, _P = b"mp"
_LINK_UNKNOWN: Final = RULE["link_unknown"]
#: Rows for which nulls are kept.
_MOST_NULLS: Final = 1 << 15


def add_rows(log: Log, spoken: Spoken, modes: Mapping[int, bool | None], senders: Sequence[str]) -> None:
    """Add the rows of pieces: all packets, then all entries, then the findings about entries.

    `modes`: by side, whether it sends greedily; None: unknown. `senders`: the names of the sides.
    """
    by_piece = place_columns(piece.place for piece in spoken.pieces)
    packets, entries = _Table(spoken, MESSAGE), _Table(spoken, ENTRY)
    for table, content in (
        (packets, partial(_message, ids=spoken.streams)),
        (entries, partial(_entry, modes=modes, senders=senders)),
    ):
        if table.count:
            common = _common(table, by_piece)
            _add(log, common, table.kind, content(table), table.count)
            if table.kind == ENTRY and table.lacks.any():
                rows = pa.array(np.flatnonzero(table.lacks))
                common = {name: column.take(rows) for name, column in common.items()}
                common["row_kind"] = repeated(VIOLATION, len(rows))
                _add(log, common, "finding", _finding(table, rows), len(rows))


def _add(log: Log, common: Mapping[str, pa.Array], name: str, content: Mapping[str, pa.Array], rows: int) -> None:
    columns = {**common, name: _struct(log.schema.field(name), content, rows)}
    nulls = {field.name: _nulls(field, rows) for field in log.schema if field.name not in columns}
    log.add_batch(nulls | columns, rows)


class _Table:
    """Rows of a kind in their order: packets, of bymux and of both sides; or the entries of both sides.

    `bymux`, `words`, `packets` and `entries` are laid out as in `Spoken` and `SideData`, a column for each row. Rows
    without such numbers have 0.
    """

    def __init__(self, spoken: Spoken, kind: str) -> None:
        self.kind = kind
        bymux, words = spoken.bymux, spoken.words
        if kind == ENTRY:
            bymux, words = bymux[:, :0], words[:, :0]
        self.by_side = tuple(spoken.by_side.items())
        columns = [self._columns(side_data) for _, side_data in self.by_side]
        pieces = [
            side_data.packets[loops.P_PIECE, own] for (_, side_data), own in zip(self.by_side, columns, strict=True)
        ]
        ends = [
            side_data.packets[loops.P_BYTE_END, own] for (_, side_data), own in zip(self.by_side, columns, strict=True)
        ]
        order = np.lexsort(
            (np.concatenate([bymux[loops.HEADER_END], *ends]), np.concatenate([bymux[loops.PIECE], *pieces]))
        )
        self.count = len(order)
        places = np.empty(self.count, np.int64)
        places[order] = np.arange(self.count)
        of_bymux, *of_sides = np.split(places, np.cumsum([bymux.shape[1], *map(len, columns)])[:-1])
        self.of_bymux = np.zeros(self.count, np.bool_)
        self.of_bymux[of_bymux] = True
        self.bymux, self.words = self._spread(bymux, of_bymux), self._spread(words, of_bymux)
        self.sides = self.bymux[loops.SIDE].astype(np.int8)
        numbers = loops.PLACE_NUMBERS if kind == ENTRY else loops.ROW_NUMBERS
        self.packets = np.zeros((numbers, self.count), np.int64)
        self.entries = np.zeros((loops.ENTRY_NUMBERS, self.count), np.uint64)
        #: By side: the rows of its packets, and of its entries.
        self.rows: dict[int, tuple[Array, Array]] = {}
        for (side, side_data), own, rows in zip(self.by_side, columns, of_sides, strict=True):
            self.sides[rows] = side
            loops.spread(side_data.packets[:numbers], own, rows, self.packets)
            of_entries = rows[side_data.packets[loops.P_ENTRY, own] >= 0]
            loops.spread(side_data.entries, np.arange(len(of_entries)), of_entries, self.entries)
            self.rows[side] = rows, of_entries
        #: Whether the lipmaalink and the backlink aren't known.
        self.unknown = self.entries[loops.E_LIPMAA :] == _WORD_UNKNOWN
        self.lacks = self.unknown[0] | self.unknown[1]

    def _columns(self, side_data: SideData) -> Array:
        entries = side_data.packets[loops.P_ENTRY]
        return np.flatnonzero(entries >= 0) if self.kind == ENTRY else np.arange(len(entries))

    @cached_property
    def targets(self) -> Array:
        """Which entries the lipmaalinks and the backlinks are to."""
        return np.stack([self.entries[loops.E_TARGET], self.entries[loops.E_SEQ] - 1])

    @cached_property
    def unknown_targets(self) -> pa.Array:
        """The targets of links that aren't known, as text; null where all are known."""
        shown = [_decimals(*one) for one in zip(self.targets, self.unknown, strict=True)]
        return pc.coalesce(pc.binary_join_element_wise(*shown, " and "), *shown)

    def _spread(self, table: Array, rows: Array) -> Array:
        out = np.zeros((len(table), self.count), table.dtype)
        loops.spread(table, np.arange(len(rows)), rows, out)
        return out

    def of_sides(self, kind: Any, of: Callable[[int, SideData], Any]) -> Array:
        """A number for each row that is the same for all rows of a side."""
        by_side = np.zeros(len(SIDES), kind)
        for side, side_data in self.by_side:
            by_side[side] = of(side, side_data)
        of_rows: Array = by_side[self.sides]
        return of_rows

    def bytes_of(
        self, data: Of, starts: Of, sizes: Array | int, has: Array | None, *, by_entry: bool = True
    ) -> pa.Array:
        """Byte strings from the sides' data, by entry or by packet; null where `has` is false."""
        if has is not None:
            sizes = np.where(has, sizes, 0)
        elif isinstance(sizes, int):
            sizes = np.full(self.count, sizes)
        offsets = offsets_of(sizes)
        out = np.empty(offsets[-1], np.uint8)
        for side, side_data in self.by_side:
            loops.gather(data(side_data), starts(side_data), self.rows[side][by_entry], offsets, out)
        return strings(offsets, out, pa.binary(), has)


_PAYLOAD_RULE: Final = pa.field("rule", pa.string())


def _common(table: _Table, by_piece: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    bymux, packets = table.bymux, table.packets
    pieces = pa.array(bymux[loops.PIECE] + packets[loops.P_PIECE])
    columns = {name: column.take(pieces) for name, column in by_piece.items()}
    is_data = ~table.of_bymux
    ids = table.of_sides(np.uint64, lambda _, side_data: side_data.sender.proposal.propose.id)
    numbers = table.of_sides(np.int64, lambda _, side_data: side_data.sender.proposal.number)
    return columns | {
        "row_kind": repeated(table.kind, table.count),
        "direction": _words(tuple(map(str, SIDES.values())), table.sides),
        "channel": _words(("bymux", "data"), is_data.view(np.int8)),
        "byte_start": pa.array(bymux[loops.BEGIN] + packets[loops.P_BYTE_START]),
        "byte_end": pa.array(bymux[loops.END] + packets[loops.P_BYTE_END]),
        "proposal_id": unsigned(ids, is_data),
        "proposal_number": pa.array(numbers, mask=table.of_bymux),
    }


def _of_entry(row: int, ahead: int = 0) -> Of:
    return lambda side_data: side_data.entries[row].astype(np.int64) + ahead


def _of_packet(row: int) -> Of:
    return lambda side_data: side_data.packets[row]


def _content(side_data: SideData) -> Array:
    return side_data.content


def _payloads(side_data: SideData) -> Array:
    return side_data.payloads


def _data(side_data: SideData) -> Array:
    return side_data.data


def _hashes(side_data: SideData) -> Array:
    return side_data.hashes


def _hash_places(side_data: SideData) -> Array:
    return np.arange(0, len(side_data.hashes), DIGEST)


_PAYLOAD_HASH: Final = _of_entry(loops.E_HASH, len(PREFIX))
_SIGNATURE: Final = _of_entry(loops.E_HASH, loops.HASH)
_BACKLINK: Final = _of_entry(loops.E_METADATA, 1 + len(PREFIX))


def _message(table: _Table, ids: Mapping[Channel, int]) -> dict[str, pa.Array]:
    bymux, words, packets, of_bymux = table.bymux, table.words, table.packets, table.of_bymux
    is_packet, kinds = ~of_bymux, packets[loops.P_KIND]
    is_metadata, packed = kinds == loops.METADATA, kinds == loops.COMPRESSED
    is_payload = is_packet & ~is_metadata
    codes = bymux[loops.KIND].copy()
    for kind, code in _FIRST_KINDS.items():
        codes[kinds == kind] = code
    seqs, ats, sizes = packets[loops.P_SEQ], packets[loops.P_AT], packets[loops.P_SIZE]
    whole = is_payload & (packets[loops.P_WHOLE] == 1)
    letters = np.where(is_packet, np.where(is_metadata, _M, _P), 0).astype(np.uint8)
    after = np.where(is_packet, np.where(whole, _M, _P), 0).astype(np.uint8)
    follows, counts = packets[loops.P_FOLLOWS], packets[loops.P_COUNT]
    stream_ids = np.array([ids[channel] for channel in Channel], np.uint64)[bymux[loops.STREAM]]
    sent = is_metadata & (table.entries[loops.E_BACK] == _WORD_SENT)
    joined = packets[loops.P_DATA] + sizes - packets[loops.P_FIRST]
    return {
        "kind": _words(_KINDS, codes),
        "cursor_before": _cursors(letters, seqs, ats),
        "cursor_after": _cursors(after, seqs + whole, np.where(is_metadata | whole, 0, ats + sizes)),
        "seq": unsigned(seqs.view(np.uint64), is_packet),
        "follows_byte_start": pa.array(follows, mask=of_bymux | (follows < 0)),
        "is_global": pa.array(np.zeros(table.count, np.bool_), mask=is_packet),
        "stream_id": unsigned(stream_ids, of_bymux),
        "amount": unsigned(words[0], of_bymux),
        "credit": unsigned(words[1], of_bymux),
        "about": _words(tuple(map(str, Channel)), bymux[loops.STREAM], of_bymux),
        "size": unsigned(sizes.view(np.uint64), is_payload),
        "compressed_size": unsigned(packets[loops.P_CONTENT_SIZE].view(np.uint64), packed),
        "at": unsigned(np.zeros(table.count, np.uint64), is_payload),
        "data": table.bytes_of(_payloads, _of_packet(loops.P_DATA), sizes, is_payload, by_entry=False),
        "end_of_log": pa.array(np.zeros(table.count, np.bool_), mask=~is_metadata),
        "backlink": table.bytes_of(_content, _BACKLINK, DIGEST, sent),
        "payload_size": unsigned(table.entries[loops.E_SIZE], is_metadata),
        "payload_hash": table.bytes_of(_content, _PAYLOAD_HASH, DIGEST, is_metadata),
        "signature": table.bytes_of(_content, _SIGNATURE, loops.SIGNATURE, is_metadata),
        "entry_hash": table.bytes_of(_hashes, _hash_places, DIGEST, is_metadata & ~table.lacks),
        "payload": pa.StructArray.from_arrays(
            [
                table.bytes_of(_payloads, _of_packet(loops.P_FIRST), joined, whole & (counts > 1), by_entry=False),
                pa.array(counts),
                pa.array(np.ones(table.count, np.bool_)),
                _nulls(_PAYLOAD_RULE, table.count, "payload"),
            ],
            names=["data", "packets", "checked", "rule"],
            mask=pa.array(~whole),
        ),
    }


def _entry(table: _Table, modes: Mapping[int, bool | None], senders: Sequence[str]) -> dict[str, pa.Array]:
    no, entries, whole = np.zeros(table.count, np.bool_), table.entries, ~table.lacks
    lipmaa, back = entries[loops.E_LIPMAA].view(np.int64), entries[loops.E_BACK].view(np.int64)
    has_lipmaa, has_back = lipmaa != loops.ABSENT, back != loops.ABSENT
    omitted = 2 * has_lipmaa + (has_back & (back != loops.SENT))
    sizes = np.empty(table.count, np.int64)
    for side, side_data in table.by_side:
        sizes[table.rows[side][1]] = side_data.sizes
    return {
        "origin": repeated("metadata", table.count),
        "author": table.bytes_of(_author, _author_places, loops.KEY, None),
        "log_id": unsigned(table.of_sides(np.uint64, lambda _, side_data: side_data.sender.proposal.log[1])),
        "seq": unsigned(entries[loops.E_SEQ]),
        "end_of_log": pa.array(no),
        "lipmaalink": table.bytes_of(
            _data, lambda side_data: side_data.slots[0], DIGEST, has_lipmaa & ~table.unknown[0]
        ),
        "backlink": table.bytes_of(_data, lambda side_data: side_data.slots[1], DIGEST, has_back & ~table.unknown[1]),
        "payload_size": unsigned(entries[loops.E_SIZE]),
        "payload_hash": table.bytes_of(_content, _PAYLOAD_HASH, DIGEST, None),
        "signature": table.bytes_of(_content, _SIGNATURE, loops.SIGNATURE, None),
        "data": table.bytes_of(_data, lambda side_data: side_data.ends - side_data.sizes, sizes, whole),
        "entry_hash": table.bytes_of(_hashes, _hash_places, DIGEST, whole),
        "omitted": _omitted(omitted),
        "assumed_links": pa.array(no),
        **_unknown(table),
        "greedy": pa.array(
            table.of_sides(np.bool_, lambda side, _: bool(modes[side])),
            mask=table.of_sides(np.bool_, lambda side, _: modes[side] is None),
        ),
        "sender": _words(senders, table.sides),
    }


def _author(side_data: SideData) -> Array:
    return np.frombuffer(side_data.sender.proposal.log[0], np.uint8)


def _author_places(side_data: SideData) -> Array:
    return np.zeros(side_data.entries.shape[1], np.int64)


def _omitted(codes: Array) -> pa.Array:
    """Lists of `_OMITTED`."""
    offsets, sizes = _chosen(_OMITTED_SIZES, codes)
    _, data = _chosen(_OMITTED_BYTES, codes)
    return pa.ListArray.from_arrays(offsets, strings(offsets_of(sizes), data, pa.string()))


def _chosen(shapes: Sequence[Array], codes: Array) -> tuple[Array, Array]:
    """The `shapes` that `codes` choose, one behind the other, and where each begins and ends."""
    sizes = np.array(list(map(len, shapes)))
    offsets = offsets_of(sizes[codes])
    out = np.empty(offsets[-1], np.uint8)
    loops.gather(frozen(np.concatenate(shapes)), (np.cumsum(sizes) - sizes)[codes], np.arange(len(codes)), offsets, out)
    return offsets, out


def _unknown(table: _Table) -> dict[str, pa.Array]:
    """Links that aren't known, and what an entry with such breaks."""
    targets = unsigned(table.targets.T[table.unknown.T])
    links = pa.ListArray.from_arrays(offsets_of(table.unknown.sum(axis=0)), targets)
    if not table.lacks.any():
        return {"unknown_links": links}
    reasons = pc.binary_join_element_wise("the hash of ", table.unknown_targets, " isn't known", "")
    rules = _words((_LINK_UNKNOWN.name,), np.zeros(table.count, np.int8), table.lacks)
    return {"unknown_links": links, "rule": rules, "reason": reasons}


def _finding(table: _Table, rows: pa.Array) -> dict[str, pa.Array]:
    """The finding about each entry with a link that isn't known."""
    seqs, targets = _decimals(table.entries[loops.E_SEQ]).take(rows), table.unknown_targets.take(rows)
    return {
        "rule": repeated(_LINK_UNKNOWN.id, len(rows)),
        "severity": repeated(_LINK_UNKNOWN.severity.value, len(rows)),
        "message": pc.binary_join_element_wise("entry ", seqs, " links to ", targets, ""),
    }


def _decimals(numbers: Array, has: Array | None = None) -> pa.Array:
    return pa.array(numbers, mask=None if has is None else ~has).cast(pa.string())


def _struct(field: pa.Field, known: Mapping[str, pa.Array], rows: int) -> pa.Array:
    fields = list(field.type)
    children = [known[one.name] if one.name in known else _nulls(one, rows, field.name) for one in fields]
    return pa.StructArray.from_arrays(children, fields=fields)


def _words(words: Sequence[str], codes: Array, has: Array | None = None) -> pa.Array:
    data = frozen(np.frombuffer("".join(words).encode(), np.uint8))
    sizes = np.array(list(map(len, words)))
    begins = np.cumsum(sizes) - sizes
    return parts(data, begins[codes], sizes[codes] if has is None else np.where(has, sizes[codes], 0), pa.string(), has)


def _cursors(letters: Array, seqs: Array, ats: Array) -> pa.Array:
    out = np.empty(int(np.count_nonzero(letters)) * _MOST_CURSOR, np.uint8)
    offsets = np.empty(len(letters) + 1, np.int32)
    size = loops.put_cursors(letters, seqs, ats, out, offsets)
    return strings(offsets, out[:size], pa.string(), letters)


#: Two letters and two numbers.
_MOST_CURSOR: Final = 42


#: By the column's name and that of the one that it is in.
_kept: dict[tuple[str, str], pa.Array] = {}


def _nulls(field: pa.Field, rows: int, within: str = "") -> pa.Array:
    """`rows` nulls: a slice of nulls that are kept, as making some takes long."""
    if rows > _MOST_NULLS:
        return pa.nulls(rows, field.type)
    key = (within, field.name)
    if key not in _kept:
        _kept[key] = pa.nulls(_MOST_NULLS, field.type)
    return _kept[key].slice(0, rows)
