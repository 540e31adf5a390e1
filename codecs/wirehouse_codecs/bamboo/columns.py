"""What plain.py read, as rows of the log: the twin of rows.py and of `conversation.Account`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
    """The rows of what pieces say: all packets, then all entries.

    `modes` tells by side whether it sends greedily, None where that isn't known.
    """
    by_piece = place_columns(piece.place for piece in spoken.pieces)
    packets, entries = _Table(spoken, MESSAGE), _Table(spoken, ENTRY)
    for table, content in ((packets, partial(_message, ids=ids)), (entries, partial(_entry, modes=modes))):
        if table.count:
            columns = _common(table, by_piece)
            columns[table.kind] = _struct(log.schema.field(table.kind), content(table), table.count)
            nulls = {field.name: _nulls(field, table.count) for field in log.schema if field.name not in columns}
            log.add_batch(nulls | columns, table.count)


class _Table:
    """Rows of a kind in their order: packets, of bymux and of both sides; or the entries of both sides."""

    def __init__(self, spoken: Spoken, kind: str) -> None:
        self.kind = kind
        self.bymux, self.words = spoken.bymux, spoken.words
        if kind == ENTRY:
            self.bymux, self.words = self.bymux[:, :0], self.words[:, :0]
        self._said = dict(spoken.said)
        rows = {side: self._rows(said) for side, said in self._said.items()}
        self._sizes = [self.bymux.shape[1], *(len(said.pieces[rows[side]]) for side, said in self._said.items())]
        self.count = sum(self._sizes)
        pieces = [self.bymux[loops.PIECE], *(said.pieces[rows[side]] for side, said in self._said.items())]
        ends = [self.bymux[loops.HEADER_END], *(said.byte_end[rows[side]] for side, said in self._said.items())]
        self._order = np.lexsort((np.concatenate(ends), np.concatenate(pieces)))
        self.pieces = np.concatenate(pieces)[self._order]
        self.of_bymux = np.arange(self.count) < self._sizes[0]
        self.of_bymux = self.of_bymux[self._order]
        self._bytes: dict[str, Array] = {}

    def _rows(self, said: Said) -> Any:
        return np.flatnonzero(said.packets[loops.P_ENTRY] >= 0) if self.kind == ENTRY else slice(None)

    def numbers(self, kind: Any, of: Of, bymux: Any = 0) -> Array:
        """A number of each row: of those of a side, and of packets of bymux."""
        parts_ = [bymux, *(of(said) for said in self._said.values())]
        out = np.empty(self.count, kind)
        at = 0
        for value, size in zip(parts_, self._sizes, strict=True):
            out[at : at + size] = value
            at += size
        return out[self._order]

    def of_packets(self, kind: Any, of: Of, bymux: Any = 0) -> Array:
        """A number of each row, as packets have it."""
        if self.kind != ENTRY:
            return self.numbers(kind, of, bymux)

        def select(said: Said) -> Any:
            value = of(said)
            return value[self._rows(said)] if isinstance(value, np.ndarray) else value

        return self.numbers(kind, select)

    def of_sides(self, kind: Any, of: Callable[[int, Said], Any], bymux: Any = 0) -> Array:
        """A number of each row that is the same for all that a side says."""
        sides = {id(said): side for side, said in self._said.items()}
        return self.numbers(kind, lambda said: of(sides[id(said)], said), bymux)

    def bytes_of(self, name: str, starts: Of, sizes: Of | int, has: Array) -> pa.Array:
        """Byte strings among those that `_BYTES` calls so."""
        sources = {id(said): _BYTES[name](said) for said in self._said.values()}
        bases = dict(zip(sources, np.cumsum([0, *map(len, sources.values())]).tolist(), strict=False))
        if name not in self._bytes:
            every = list(sources.values())
            self._bytes[name] = frozen(every[0] if len(every) == 1 else np.concatenate([_NOTHING, *every]))
        begins = self.numbers(np.int64, lambda said: starts(said) + bases[id(said)])
        size = np.where(has, sizes if isinstance(sizes, int) else self.numbers(np.int64, sizes), 0)
        return parts(self._bytes[name], begins, size, pa.binary(), has)


_NOTHING: Final = np.empty(0, np.uint8)
_PAYLOAD_RULE: Final = pa.field("rule", pa.string())
_BYTES: Final[Mapping[str, Callable[[Said], Array]]] = {
    "content": lambda said: said.content,
    "payloads": lambda said: said.payloads,
    "data": lambda said: said.data,
    "hashes": lambda said: np.frombuffer(b"".join(said.hashes), np.uint8),
    "author": lambda said: np.frombuffer(said.sender.proposal.log[0], np.uint8),
}


def _common(table: _Table, by_piece: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    pieces, bymux = pa.array(table.pieces), table.bymux
    columns = {name: column.take(pieces) for name, column in by_piece.items()}
    is_data = ~table.of_bymux
    sides = table.of_sides(np.int8, lambda side, _: side, bymux[loops.SIDE])
    ids = table.of_sides(np.uint64, lambda _, said: said.sender.proposal.propose.id)
    numbers = table.of_sides(np.int64, lambda _, said: said.sender.proposal.number)
    return columns | {
        "row_kind": pa.repeat(pa.scalar(table.kind), table.count),
        "direction": _words(tuple(map(str, SIDES.values())), sides),
        "channel": _words(("bymux", "data"), is_data),
        "byte_start": pa.array(table.of_packets(np.int64, lambda said: said.byte_start, bymux[loops.BEGIN])),
        "byte_end": pa.array(table.of_packets(np.int64, lambda said: said.byte_end, bymux[loops.END])),
        "proposal_id": unsigned(ids, is_data),
        "proposal_number": pa.array(numbers, mask=table.of_bymux),
    }


def _packet(row: int) -> Of:
    return lambda said: said.packets[row]


def _by_entry(of: Of) -> Of:
    """A number of each packet that is metadata, by its entry; of others it means nothing."""
    return lambda said: of(said)[said.packets[loops.P_ENTRY]] if said.entries.shape[1] else 0


def _of_entry(row: int, ahead: int = 0) -> Of:
    return lambda said: said.entries[row].astype(np.int64) + ahead


def _nothing(_: Said) -> int:
    return 0


def _message(table: _Table, ids: Mapping[Channel, int]) -> dict[str, pa.Array]:
    bymux, words, of_bymux, is_packet = table.bymux, table.words, table.of_bymux, ~table.of_bymux
    kinds = table.numbers(np.int64, _packet(loops.P_KIND), bymux[loops.KIND])
    is_metadata, is_payload = is_packet & (kinds == loops.METADATA), is_packet & (kinds != loops.METADATA)
    codes = np.where(of_bymux, kinds, 0)
    for kind, code in _FIRST_KINDS.items():
        codes[is_packet & (kinds == kind)] = code
    seqs, ats = table.numbers(np.int64, _packet(loops.P_SEQ)), table.numbers(np.int64, _packet(loops.P_AT))
    sizes = table.numbers(np.int64, _packet(loops.P_SIZE))
    whole = table.numbers(np.bool_, _packet(loops.P_WHOLE)) & is_payload
    letters = np.where(is_packet, np.where(is_metadata, _M, _P), 0).astype(np.uint8)
    after = np.where(is_packet, np.where(whole, _M, _P), 0).astype(np.uint8)
    follows = table.numbers(np.int64, lambda said: said.follows, -1)
    counts = table.numbers(np.int64, lambda said: said.counts)
    stream_ids = np.array([ids[channel] for channel in Channel], np.uint64)[bymux[loops.STREAM]]
    packed = is_payload & (kinds == loops.COMPRESSED)
    sent = table.numbers(np.int64, _by_entry(_of_entry(loops.E_BACK))) == loops.SENT
    payload_sizes = table.numbers(np.int64, _by_entry(_of_entry(loops.E_SIZE))).view(np.uint64)

    def bytes_of(name: str, starts: Of, sizes: int, has: Array = is_metadata) -> pa.Array:
        return table.bytes_of(name, _by_entry(starts), sizes, has)

    return {
        "kind": _words(_KINDS, codes),
        "cursor_before": _cursors(letters, seqs, ats),
        "cursor_after": _cursors(after, seqs + whole, np.where(is_metadata | whole, 0, ats + sizes)),
        "seq": unsigned(seqs.view(np.uint64), is_packet),
        "follows_byte_start": pa.array(follows, mask=of_bymux | (follows < 0)),
        "is_global": pa.array(np.zeros(table.count, np.bool_), mask=is_packet),
        "stream_id": unsigned(table.numbers(np.uint64, _nothing, stream_ids), of_bymux),
        "amount": unsigned(table.numbers(np.uint64, _nothing, words[0]), of_bymux),
        "credit": unsigned(table.numbers(np.uint64, _nothing, words[1]), of_bymux),
        "about": _words(tuple(map(str, Channel)), table.numbers(np.int8, _nothing, bymux[loops.STREAM]), of_bymux),
        "size": unsigned(sizes.view(np.uint64), is_payload),
        "compressed_size": unsigned(table.numbers(np.uint64, _packet(loops.P_CONTENT_SIZE)), packed),
        "at": unsigned(np.zeros(table.count, np.uint64), is_payload),
        "data": table.bytes_of("payloads", lambda said: said.begins[:-1], _packet(loops.P_SIZE), is_payload),
        "end_of_log": pa.array(np.zeros(table.count, np.bool_), mask=~is_metadata),
        "backlink": bytes_of("content", _of_entry(loops.E_METADATA, 1 + len(PREFIX)), loops.DIGEST, is_metadata & sent),
        "payload_size": unsigned(payload_sizes, is_metadata),
        "payload_hash": bytes_of("content", _of_entry(loops.E_HASH, len(PREFIX)), loops.DIGEST),
        "signature": bytes_of("content", _of_entry(loops.E_HASH, loops.HASH), loops.SIGNATURE),
        "entry_hash": bytes_of("hashes", _hash_places, loops.DIGEST),
        "payload": pa.StructArray.from_arrays(
            [
                table.bytes_of("payloads", lambda said: said.firsts, _joined_sizes, whole & (counts > 1)),
                pa.array(counts),
                pa.array(np.ones(table.count, np.bool_)),
                _nulls(_PAYLOAD_RULE, table.count, "payload"),
            ],
            names=["data", "packets", "checked", "rule"],
            mask=pa.array(~whole),
        ),
    }


def _hash_places(said: Said) -> Array:
    return np.arange(len(said.hashes)) * loops.DIGEST


def _joined_sizes(said: Said) -> Array:
    sizes: Array = said.begins[1:] - said.firsts
    return sizes


def _entry(table: _Table, modes: Mapping[int, bool | None]) -> dict[str, pa.Array]:
    every = np.ones(table.count, np.bool_)
    lipmaa, back = (table.numbers(np.int64, _of_entry(row)) for row in (loops.E_LIPMAA, loops.E_BACK))
    has_lipmaa, has_back = lipmaa != loops.ABSENT, back != loops.ABSENT
    omitted = 2 * has_lipmaa + (has_back & (back != loops.SENT))
    data_sizes: Of = lambda said: np.diff(said.ends, prepend=0)  # noqa: E731
    return {
        "origin": pa.repeat(pa.scalar("metadata"), table.count),
        "author": table.bytes_of("author", _nothing, loops.KEY, every),
        "log_id": unsigned(table.of_sides(np.uint64, lambda _, said: said.sender.proposal.log[1])),
        "seq": unsigned(table.numbers(np.int64, _of_entry(loops.E_SEQ)).view(np.uint64)),
        "end_of_log": pa.array(~every),
        "lipmaalink": table.bytes_of("data", lambda said: said.slots[0], loops.DIGEST, has_lipmaa),
        "backlink": table.bytes_of("data", lambda said: said.slots[1], loops.DIGEST, has_back),
        "payload_size": unsigned(table.numbers(np.int64, _of_entry(loops.E_SIZE)).view(np.uint64)),
        "payload_hash": table.bytes_of("content", _of_entry(loops.E_HASH, len(PREFIX)), loops.DIGEST, every),
        "signature": table.bytes_of("content", _of_entry(loops.E_HASH, loops.HASH), loops.SIGNATURE, every),
        "data": table.bytes_of("data", lambda said: said.ends - data_sizes(said), data_sizes, every),
        "entry_hash": table.bytes_of("hashes", _hash_places, loops.DIGEST, every),
        "omitted": _OMITTED.take(pa.array(omitted)),
        "unknown_links": _no_links(table.count),
        "assumed_links": pa.array(~every),
        "greedy": pa.array(
            table.of_sides(np.bool_, lambda side, _: bool(modes[side])),
            mask=table.of_sides(np.bool_, lambda side, _: modes[side] is None),
        ),
    }


def _no_links(rows: int) -> pa.Array:
    """Empty lists."""
    kind = pa.list_(pa.decimal128(20, 0))
    offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
    return pa.Array.from_buffers(kind, rows, [None, offsets], children=[pa.array([], kind.value_type)])


def _struct(field: pa.Field, known: Mapping[str, pa.Array], rows: int) -> pa.Array:
    fields = list(field.type)
    children = [known[one.name] if one.name in known else _nulls(one, rows, field.name) for one in fields]
    return pa.StructArray.from_arrays(children, fields=fields)


def _words(words: tuple[str, ...], codes: Array, has: Array | None = None) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(codes.astype(np.int8), mask=None if has is None else ~has))


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
    """So many nulls: part of those that are there already, as to make some takes long."""
    if rows > _MOST_NULLS:
        return pa.nulls(rows, field.type)
    key = (within, field.name)
    if key not in _kept:
        _kept[key] = pa.nulls(_MOST_NULLS, field.type)
    return _kept[key].slice(0, rows)
