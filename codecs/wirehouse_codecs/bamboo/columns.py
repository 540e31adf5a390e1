"""What plain.py read, as rows of the log: the twin of rows.py and of `conversation.Account`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wirehouse_codecs.bamboo import plain_loops as loops
from wirehouse_codecs.bamboo.bymux import Channel
from wirehouse_codecs.bamboo.plain import Said, Spoken
from wirehouse_codecs.bamboo.rows import ENTRY, SIDES
from wirehouse_codecs.bamboo.yamf import PREFIX
from wirehouse_codecs.column_parts import frozen, parts, strings, unsigned
from wirehouse_codecs.stream_log import MESSAGE, Log, place_columns

Array = np.ndarray[Any, Any]
#: A number of each row of a side, or one for all.
Of = Callable[[Said], Any]

#: What a row is about.
_BYMUX, _PACKET, _ENTRY = range(3)
_KINDS: Final = ("credit", "write", "metadata", "raw", "lz")
_FIRST_KINDS: Final = {loops.METADATA: 2, loops.RAW: 3, loops.COMPRESSED: 4}
_SENT: Final = ["author", "log_id", "seqnum"]
#: What an entry's metadata leaves out: with a lipmaalink or not, with a backlink or not.
_OMITTED: Final = pa.array(
    [_SENT, [*_SENT, "backlink"], [*_SENT, "lipmaalink"], [*_SENT, "lipmaalink", "backlink"]], pa.list_(pa.string())
)
_M, _P = b"mp"
#: Rows for which nulls are kept.
_MOST_NULLS: Final = 1 << 15


def add_rows(log: Log, spoken: Spoken, ids: Mapping[Channel, int], modes: Mapping[int, bool | None]) -> None:
    """The rows of what pieces say; `modes` tells by side whether it sends greedily, None where that isn't known."""
    table = _Table(spoken)
    if not table.count:
        return
    types = {field.name: field.type for field in log.schema}
    columns = _common(table, spoken)
    columns["message"] = _struct(types["message"], _message(table, ids), table.about == _ENTRY)
    columns["entry"] = _struct(types["entry"], _entry(table, modes), table.about != _ENTRY)
    nulls = {name: _nulls(kind, table.count) for name, kind in types.items() if name not in columns}
    log.add_batch(nulls | columns, table.count)


class _Table:
    """The rows in their order: packets of bymux, packets of both sides, and after each metadata its entry."""

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken
        bymux = spoken.bymux
        self._parts: list[tuple[int, int, Any]] = [(_BYMUX, -1, slice(None))]
        pieces, places, abouts = [bymux[loops.PIECE]], [bymux[loops.HEADER_END]], [np.zeros(bymux.shape[1], np.uint8)]
        for about in (_PACKET, _ENTRY):
            for side, said in spoken.said.items():
                rows = slice(None) if about == _PACKET else np.flatnonzero(said.packets[loops.P_ENTRY] >= 0)
                self._parts.append((about, side, rows))
                pieces.append(said.pieces[rows])
                places.append(said.byte_end[rows])
                abouts.append(np.full(len(pieces[-1]), about, np.uint8))
        self._sizes = [len(part) for part in pieces]
        unordered = np.concatenate(pieces)
        self._order = np.lexsort((np.concatenate(places), unordered))
        self.pieces, self.about = unordered[self._order], np.concatenate(abouts)[self._order]
        self.count = len(self._order)
        self._blob()

    def _blob(self) -> None:
        """All bytes that columns are made of, and where those of each side begin."""
        blob: list[Array] = []
        self.bases: dict[int, dict[str, int]] = {}
        at = 0
        for side, said in self._spoken.said.items():
            author = np.frombuffer(said.sender.proposal.log[0], np.uint8)
            hashes = np.frombuffer(b"".join(said.hashes), np.uint8)
            bytes_ = {"content": said.content, "payloads": said.payloads, "data": said.data}
            self.bases[side] = {}
            for name, part in (bytes_ | {"hashes": hashes, "author": author}).items():
                self.bases[side][name] = at
                blob.append(part)
                at += len(part)
        self._bytes = frozen(np.concatenate(blob) if blob else np.empty(0, np.uint8))

    def numbers(self, kind: Any, of: Of, *, entries: bool = False, bymux: Any = 0) -> Array:
        """A number of each row: of packets, or of entries too, by their metadata; and of packets of bymux."""
        out = np.zeros(self.count, kind)
        at = 0
        for (about, side, rows), size in zip(self._parts, self._sizes, strict=True):
            if about == _BYMUX:
                out[at : at + size] = bymux
            elif about == _PACKET or entries:
                value = of(self._spoken.said[side])
                out[at : at + size] = value[rows] if isinstance(value, np.ndarray) else value
            at += size
        return out[self._order]

    def bytes_of(self, name: str, starts: Of, sizes: Of | int, has: Array, *, entries: bool = False) -> pa.Array:
        """Byte strings among those called `name`."""

        def start(said: Said) -> Any:
            side = next(side for side, one in self._spoken.said.items() if one is said)
            return starts(said) + self.bases[side][name]

        size = np.where(has, sizes if isinstance(sizes, int) else self.numbers(np.int64, sizes, entries=entries), 0)
        return parts(self._bytes, self.numbers(np.int64, start, entries=entries), size, pa.binary(), has)


def _common(table: _Table, spoken: Spoken) -> dict[str, pa.Array]:
    bymux, said = spoken.bymux, spoken.said
    by_piece = place_columns(piece.place for piece in spoken.pieces)
    pieces = pa.array(table.pieces)
    columns = {name: column.take(pieces) for name, column in by_piece.items()}
    side_of = {id(one): side for side, one in said.items()}
    sides = table.numbers(np.int8, lambda one: side_of[id(one)], entries=True, bymux=bymux[loops.SIDE])
    is_data = table.about != _BYMUX
    columns["row_kind"] = _words((MESSAGE, ENTRY), table.about == _ENTRY)
    columns["direction"] = _words(tuple(map(str, SIDES.values())), sides)
    columns["channel"] = _words(("bymux", "data"), is_data)
    columns["byte_start"] = pa.array(table.numbers(np.int64, _byte_start, entries=True, bymux=bymux[loops.BEGIN]))
    columns["byte_end"] = pa.array(
        table.numbers(np.int64, lambda one: one.byte_end, entries=True, bymux=bymux[loops.END])
    )
    ids = table.numbers(np.uint64, lambda one: one.sender.proposal.propose.id, entries=True)
    numbers = table.numbers(np.int64, lambda one: one.sender.proposal.number, entries=True)
    columns["proposal_id"] = unsigned(ids, is_data)
    columns["proposal_number"] = pa.array(numbers, mask=~is_data)
    return columns


def _byte_start(said: Said) -> Array:
    return said.byte_start


def _packet(row: int) -> Of:
    return lambda said: said.packets[row]


def _by_entry(of: Callable[[Said], Array]) -> Of:
    """A number of each entry, by its metadata; of other packets it means nothing."""
    return lambda said: of(said)[said.packets[loops.P_ENTRY]] if said.entries.shape[1] else 0


def _of_entry(row: int) -> Of:
    return _by_entry(lambda said: said.entries[row])


def _message(table: _Table, ids: Mapping[Channel, int]) -> dict[str, pa.Array]:
    spoken = table._spoken
    bymux, words = spoken.bymux, spoken.words
    of_bymux, is_packet = table.about == _BYMUX, table.about == _PACKET
    kinds = table.numbers(np.int64, _packet(loops.P_KIND), bymux=bymux[loops.KIND])
    is_metadata, is_payload = is_packet & (kinds == loops.METADATA), is_packet & (kinds != loops.METADATA)
    codes = np.where(of_bymux, kinds, 0)
    for kind, code in _FIRST_KINDS.items():
        codes = np.where(is_packet & (kinds == kind), code, codes)
    seqs, ats = table.numbers(np.int64, _packet(loops.P_SEQ)), table.numbers(np.int64, _packet(loops.P_AT))
    sizes = table.numbers(np.int64, _packet(loops.P_SIZE))
    whole = table.numbers(np.bool_, _packet(loops.P_WHOLE)) & is_payload
    letters = np.where(is_packet, np.where(is_metadata, _M, _P), 0).astype(np.uint8)
    after = np.where(is_packet, np.where(whole, _M, _P), 0).astype(np.uint8)
    follows = table.numbers(np.int64, lambda said: said.follows, bymux=-1)
    counts = table.numbers(np.int64, lambda said: said.counts)
    stream_ids = np.array([ids[channel] for channel in Channel], np.uint64)[bymux[loops.STREAM]]
    about = table.numbers(np.int8, lambda _: 0, bymux=bymux[loops.STREAM])
    is_raw, packed = is_payload & (kinds == loops.RAW), is_payload & (kinds == loops.COMPRESSED)
    sent = table.numbers(np.uint64, _of_entry(loops.E_BACK)).astype(np.int64) == loops.SENT
    joined = whole & (counts > 1)
    hash_at = _place(loops.E_HASH, len(PREFIX))
    return {
        "kind": _words(_KINDS, codes),
        "cursor_before": _cursors(letters, seqs, ats),
        "cursor_after": _cursors(after, seqs + whole, np.where(is_metadata | whole, 0, ats + sizes)),
        "seq": unsigned(seqs.view(np.uint64), is_packet),
        "follows_byte_start": pa.array(follows, mask=~is_packet | (follows < 0)),
        "is_global": pa.array(np.zeros(table.count, np.bool_), mask=~of_bymux),
        "stream_id": unsigned(table.numbers(np.uint64, _nothing, bymux=stream_ids), of_bymux),
        "amount": unsigned(table.numbers(np.uint64, _nothing, bymux=words[0]), of_bymux),
        "credit": unsigned(table.numbers(np.uint64, _nothing, bymux=words[1]), of_bymux),
        "about": _words(tuple(map(str, Channel)), about, of_bymux),
        "size": unsigned(sizes.view(np.uint64), is_payload),
        "compressed_size": unsigned(table.numbers(np.uint64, _packet(loops.P_CONTENT_SIZE)), packed),
        "at": unsigned(np.zeros(table.count, np.uint64), is_raw | packed),
        "data": table.bytes_of("payloads", lambda said: said.begins[:-1], _packet(loops.P_SIZE), is_payload),
        "end_of_log": pa.array(np.zeros(table.count, np.bool_), mask=~is_metadata),
        "backlink": table.bytes_of(
            "content", _place(loops.E_METADATA, 1 + len(PREFIX)), loops.DIGEST, is_metadata & sent
        ),
        "payload_size": unsigned(table.numbers(np.uint64, _of_entry(loops.E_SIZE)), is_metadata),
        "payload_hash": table.bytes_of("content", hash_at, loops.DIGEST, is_metadata),
        "signature": table.bytes_of("content", _place(loops.E_HASH, loops.HASH), loops.SIGNATURE, is_metadata),
        "entry_hash": table.bytes_of("hashes", _hash_place, loops.DIGEST, is_metadata),
        "payload": pa.StructArray.from_arrays(
            [
                table.bytes_of("payloads", lambda said: said.firsts, _joined_size, joined),
                pa.array(counts),
                pa.array(np.ones(table.count, np.bool_)),
                _nulls(pa.string(), table.count),
            ],
            names=["data", "packets", "checked", "rule"],
            mask=pa.array(~whole),
        ),
    }


def _nothing(_: Said) -> int:
    return 0


def _place(row: int, ahead: int) -> Of:
    return _by_entry(lambda said: said.entries[row].astype(np.int64) + ahead)


def _hash_place(said: Said) -> Array:
    places: Array = said.packets[loops.P_ENTRY] * loops.DIGEST
    return places


def _joined_size(said: Said) -> Array:
    return said.begins[1:] - said.firsts


def _entry(table: _Table, modes: Mapping[int, bool | None]) -> dict[str, pa.Array]:
    spoken = table._spoken
    is_entry = table.about == _ENTRY
    side_of = {id(one): side for side, one in spoken.said.items()}

    def number(kind: Any, of: Of) -> Array:
        return table.numbers(kind, of, entries=True)

    def digest(name: str, starts: Of, has: Array) -> pa.Array:
        return table.bytes_of(name, starts, loops.DIGEST, has & is_entry, entries=True)

    lipmaa = number(np.uint64, _of_entry(loops.E_LIPMAA)).astype(np.int64)
    back = number(np.uint64, _of_entry(loops.E_BACK)).astype(np.int64)
    has_lipmaa, has_back = lipmaa != loops.ABSENT, back != loops.ABSENT
    omitted = 2 * has_lipmaa + (has_back & (back != loops.SENT))
    greedy = {side: mode for side, mode in modes.items() if mode is not None}
    sizes = _by_entry(lambda said: np.diff(said.ends, prepend=0))
    starts = _by_entry(lambda said: said.ends - np.diff(said.ends, prepend=0))
    return {
        "origin": _words(("metadata",), np.zeros(table.count, np.int8), is_entry),
        "author": table.bytes_of("author", _nothing, loops.KEY, is_entry, entries=True),
        "log_id": unsigned(number(np.uint64, lambda said: said.sender.proposal.log[1]), is_entry),
        "seq": unsigned(number(np.uint64, _of_entry(loops.E_SEQ)), is_entry),
        "end_of_log": pa.array(np.zeros(table.count, np.bool_), mask=~is_entry),
        "lipmaalink": digest("data", _slot(0), has_lipmaa),
        "backlink": digest("data", _slot(1), has_back),
        "payload_size": unsigned(number(np.uint64, _of_entry(loops.E_SIZE)), is_entry),
        "payload_hash": digest("content", _place(loops.E_HASH, len(PREFIX)), is_entry),
        "signature": digest("content", _place(loops.E_HASH, loops.HASH), is_entry),
        "data": table.bytes_of("data", starts, sizes, is_entry, entries=True),
        "entry_hash": digest("hashes", _hash_place, is_entry),
        "omitted": _OMITTED.take(pa.array(omitted, mask=~is_entry)),
        "unknown_links": _no_links(table.count),
        "assumed_links": pa.array(np.zeros(table.count, np.bool_), mask=~is_entry),
        "greedy": pa.array(
            number(np.bool_, lambda said: bool(greedy.get(side_of[id(said)]))),
            mask=~number(np.bool_, lambda said: side_of[id(said)] in greedy),
        ),
    }


def _slot(which: int) -> Of:
    return _by_entry(lambda said: said.slots[which])


def _no_links(rows: int) -> pa.Array:
    """Empty lists."""
    kind = pa.list_(pa.decimal128(20, 0))
    offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
    return pa.Array.from_buffers(kind, rows, [None, offsets], children=[pa.array([], kind.value_type)])


def _struct(kind: pa.StructType, known: Mapping[str, pa.Array], is_null: Array) -> pa.Array:
    children = [known[field.name] if field.name in known else _nulls(field.type, len(is_null)) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(is_null))


def _words(words: tuple[str, ...], codes: Array, has: Array | None = None) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(codes.astype(np.int8), mask=None if has is None else ~has))


def _cursors(letters: Array, seqs: Array, ats: Array) -> pa.Array:
    out = np.empty(int(np.count_nonzero(letters)) * _MOST_CURSOR, np.uint8)
    offsets = np.empty(len(letters) + 1, np.int32)
    size = loops.put_cursors(letters, seqs, ats, out, offsets)
    return strings(offsets, out[:size], pa.string(), letters)


#: Two letters and two numbers.
_MOST_CURSOR: Final = 42


def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """So many nulls: part of those that are there already, as some types are large."""
    return _kept_nulls(kind).slice(0, rows) if rows <= _MOST_NULLS else pa.nulls(rows, kind)


@lru_cache(maxsize=64)
def _kept_nulls(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_MOST_NULLS, kind)


__all__ = ["add_rows"]
