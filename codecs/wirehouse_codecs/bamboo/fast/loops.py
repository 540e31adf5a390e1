"""Compiled loops of Bamboo's fast path, which `judge.py` calls.

`cut_bymux` reads packets of bymux, `walk` reads packets of the data channel. The others lay out rows, rebuild and hash
entries, and write cursors. A reading loop stops at the first packet that needs the reference path, and returns how far
it came. A packet that is only cut continues with the next bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wirehouse_codecs.bamboo.wire.lipmaa import lipmaa_of
from wirehouse_codecs.compiled.blake2b import DIGEST, put_digest
from wirehouse_codecs.compiled.jit import compiled, copy_bytes, inlined, wide

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

#: In place of a count: there wasn't room for all rows.
FULL: Final = -1
#: Rows of the array of bymux packets, which has a column for each packet.
SIDE, KIND, BEGIN, HEADER_END, END, PIECE, STREAM = range(7)
BYMUX_NUMBERS: Final = 7
#: State of a side: where the next header begins, what is left of a Write.
AT, LEFT = range(2)
CONTROL, DATA = range(2)
CREDIT, WRITE = 0, 1
INFINITE: Final = _WORD((1 << 64) - 1)
#: No Write announces as much.
_MOST_CONTENT: Final = _WORD(1 << 40)

#: Columns of a packet of the data channel. `lay_out` fills the first seven: the piece that completes it; its bytes in
#: the connection; where the packet begins that an apology would retract, or -1; where its part of the payload begins;
#: where the payload begins; how many packets the payload has so far.
P_PIECE, P_BYTE_START, P_BYTE_END, P_FOLLOWS, P_DATA, P_FIRST, P_COUNT = range(7)
#: Its content; then its positions in the bytes of the channel, and its entry.
P_KIND, P_SEQ, P_SIZE, P_AT, P_WHOLE, P_CONTENT_SIZE = range(7, 13)
P_BEGIN, P_END, P_CONTENT, P_ENTRY = range(13, 17)
PACKET_NUMBERS: Final = 17
#: The first PLACE_NUMBERS locate the packet. The first ROW_NUMBERS are in its row.
PLACE_NUMBERS, ROW_NUMBERS = 3, 13
METADATA, RAW, COMPRESSED = 128, 8, 9
#: Columns of an entry: sequence number, payload size, target of its lipmaalink, positions of its metadata and of its
#: payload hash, and its two links. A link is a row of this run (0 and up), an entry known before (OLD and below),
#: ABSENT, UNKNOWN or, for a backlink, SENT. An entry with a link that is UNKNOWN has no hash.
E_SEQ, E_SIZE, E_TARGET, E_METADATA, E_HASH, E_LIPMAA, E_BACK = range(7)
ENTRY_NUMBERS: Final = 7
#: ODD: only the reference path can resolve the link.
ABSENT, SENT, UNKNOWN, ODD, OLD = -1, -2, -3, -4, -5
HASH, SIGNATURE, KEY = 66, 64, 32
#: State of a sender.
S_SEQ, S_IN_PAYLOAD, S_AT, S_SIZE = range(4)
#: What a receiver wants, and a reader reads; from which entry on some are known elsewhere, with their hashes.
L_LAST, L_MIN, L_MAX, L_LIMIT, L_PIECE, L_COMPRESSES, L_ELSEWHERE = range(7)
_MOST_REPORTED: Final = (1_024, 32)
#: Bytes that all compressed packets of a run may stand for.
_MOST_INFLATED: Final = _WORD(8 << 20)


@inlined
def _big_endian(data: Array, at: int, size: int) -> Any:
    """The unsigned number of `size` bytes at `at`."""
    value = _WORD(0)
    for i in range(at, at + size):
        value = value << _WORD(8) | _WORD(data[i])
    return value


@inlined
def _narrowest(value: Any) -> int:
    """The least width of a number of bymux, in bytes."""
    if value >> _WORD(32):
        return 8
    if value >> _WORD(16):
        return 4
    return 2 if value >> _WORD(8) else 1


@compiled
def cut_bymux(  # noqa: C901
    data: Array,
    owners: Array,
    ends: Array,
    ids: Array,
    state: Array,
    may_write: Array,
    numbers: Array,
    words: Array,
    contents: Array,
) -> tuple[int, int, int]:
    """Packets of pieces: how many pieces are plain (or FULL), how many packets they have, and how many runs of content.

    `state` and `may_write` are those of both sides; they are left as they are after the last plain piece. `ids` are the
    streams of the channels. `contents` gets the side, the begin and the end of what a Write brings to the data channel.
    """
    rows, runs = 0, 0
    for piece in range(len(ends)):
        side, end = wide(owners[piece]), wide(ends[piece])
        peer = 1 - side
        if rows + (end - state[side, AT]) // 3 >= len(numbers) or runs + (end - state[side, AT]) // 3 + 1 >= len(
            contents
        ):
            return FULL, rows, runs
        rows_before, runs_before = rows, runs
        state_before, may_write_before = state.copy(), may_write.copy()
        plain = True
        while plain and state[side, AT] < end:
            at = state[side, AT]
            if state[side, LEFT] > 0:
                size = min(state[side, LEFT], end - at)
                contents[runs, 0], contents[runs, 1], contents[runs, 2], contents[runs, 3] = side, at, at + size, piece
                runs += 1
                state[side, AT] += size
                state[side, LEFT] -= size
                continue
            header = wide(data[at])
            kind = header >> 5
            if kind > WRITE or header & 0x10:
                plain = False
                break
            id_width, amount_width = 1 << (header >> 2 & 3), 1 << (header & 3)
            begin, at = at, at + 1 + id_width + amount_width
            if at > end:
                break
            stream = _big_endian(data, begin + 1, id_width)
            amount = _big_endian(data, begin + 1 + id_width, amount_width)
            channel = DATA if stream == ids[DATA] else CONTROL
            plain = stream == ids[channel] and id_width == _narrowest(stream) and amount_width == _narrowest(amount)
            after = at
            if kind == CREDIT:
                had = may_write[peer, channel]
                if had == INFINITE:
                    plain = plain and amount == _WORD(0)
                elif amount == _WORD(0):
                    may_write[peer, channel] = INFINITE
                else:
                    plain = plain and amount < INFINITE - had
                    may_write[peer, channel] = had + amount
                plain = plain and (may_write[peer, channel] == INFINITE) == (channel == CONTROL)
                left = may_write[peer, channel]
            else:
                left = may_write[side, channel]
                plain = plain and channel == DATA and amount <= left and amount < _MOST_CONTENT
                if plain:
                    if left != INFINITE:
                        left -= amount
                        may_write[side, channel] = left
                    state[side, LEFT] = wide(amount)
                    after += wide(amount)
            if not plain:
                break
            numbers[rows, SIDE], numbers[rows, KIND] = side, kind
            numbers[rows, BEGIN], numbers[rows, HEADER_END], numbers[rows, END] = begin, at, after
            numbers[rows, PIECE], numbers[rows, STREAM] = piece, channel
            words[rows, 0], words[rows, 1] = amount, left
            rows += 1
            state[side, AT] = at
        if not plain:
            state[:] = state_before
            may_write[:] = may_write_before
            return piece, rows_before, runs_before
    return len(ends), rows, runs


@inlined
def _varu64(data: Array, at: int) -> tuple[Any, int]:
    """The canonical VarU64 at `at` and its end; an end of -1: it is cut, of -2: it isn't canonical."""
    value, end = _WORD(0), -1
    if at < len(data):
        first = wide(data[at])
        if first < 248:
            value, end = _WORD(first), at + 1
        elif at + first - 246 <= len(data):
            value = _big_endian(data, at + 1, first - 247)
            lead = wide(data[at + 1])
            canonical = (first == 248 and lead >= 248) or (first > 248 and lead != 0)
            end = at + first - 246 if canonical else -2
    return value, end


@compiled
def _link(target: Any, first: Any, entries: Array, old: Array, links: Array) -> int:
    """What a link to the entry with the sequence number `target` is: one of the run, or of `old`, or it isn't known."""
    if target >= first:
        row = wide(target - first)
        return UNKNOWN if _lacks(wide(entries[E_LIPMAA, row]), wide(entries[E_BACK, row])) else row
    for i in range(len(old)):
        if old[i] == target:
            return wide(links[i])
    return UNKNOWN


@inlined
def _lacks(lipmaa: int, back: int) -> bool:
    return lipmaa == UNKNOWN or back == UNKNOWN


@compiled
def walk(  # noqa: C901
    data: Array, state: Array, limits: Array, old: Array, links: Array, packets: Array, entries: Array
) -> tuple[int, int, int, bool]:
    """Packets of the data channel of a side: how many (or FULL), how many entries, where they end, if that isn't plain.

    `state` (unsigned) is the sender's, and is left as it is after the last packet. `old` are entries that are known,
    `links` what links to them are. What follows from the rest is left out.
    """
    at, rows, count = 0, 0, 0
    first = state[S_SEQ] + state[S_IN_PAYLOAD]
    inflated = _WORD(0)
    while at < len(data):
        if rows == packets.shape[1]:
            return FULL, count, at, False
        kind = wide(data[at])
        seq = state[S_SEQ]
        content, content_size, end, entry = at, 0, -1, -1
        if kind == METADATA:
            if state[S_IN_PAYLOAD] or seq >= limits[L_LAST]:
                return rows, count, at, True
            if at + 3 > len(data):
                return rows, count, at, False
            sent = data[at + 1] == 0 and data[at + 2] == DIGEST
            if sent and seq == _WORD(1):
                return rows, count, at, True
            size, content = _varu64(data, at + 1 + (HASH if sent else 0))
            if content == -2:
                return rows, count, at, True
            end = content + HASH + SIGNATURE
            if content < 0 or end > len(data):
                return rows, count, at, False
            if data[content] != 0 or data[content + 1] != DIGEST:
                return rows, count, at, True
            lipmaa, back = ABSENT, ABSENT
            target = _WORD(0)
            if seq > _WORD(1):
                target = lipmaa_of(seq)
                before = seq - _WORD(1)
                back = SENT if sent else _link(before, first, entries, old, links)
                if target != before:
                    lipmaa = _link(target, first, entries, old, links)
                if lipmaa == ODD or back == ODD or (_lacks(lipmaa, back) and seq >= limits[L_ELSEWHERE]):
                    return rows, count, at, True
            entries[E_SEQ, count], entries[E_SIZE, count], entries[E_TARGET, count] = seq, size, target
            entries[E_METADATA, count], entries[E_HASH, count] = at, content
            entries[E_LIPMAA, count], entries[E_BACK, count] = _WORD(lipmaa), _WORD(back)
            entry = count
            count += 1
            before_at, whole, number = 0, 1, size
            state[S_IN_PAYLOAD], state[S_AT], state[S_SIZE] = _WORD(1), _WORD(0), size
        elif kind in (RAW, COMPRESSED):
            number, content = _varu64(data, at + 1)
            packed = number
            if kind == COMPRESSED and content >= 0:
                packed, content = _varu64(data, content)
            due = state[S_SIZE]
            odd = not state[S_IN_PAYLOAD] or due < limits[L_MIN] or due > limits[L_MAX] or due > limits[L_LIMIT]
            if odd or content == -2:
                return rows, count, at, True
            if content < 0:
                return rows, count, at, False
            if packed > limits[L_PIECE] or number > due - state[S_AT] or (number == _WORD(0) and due != state[S_AT]):
                return rows, count, at, True
            if kind == COMPRESSED:
                reported = _WORD(_MOST_REPORTED[0]) + _WORD(_MOST_REPORTED[1]) * packed
                inflated += number
                if not limits[L_COMPRESSES] or number > reported or inflated > _MOST_INFLATED:
                    return rows, count, at, True
            content_size = wide(packed)
            end = content + content_size
            if end > len(data):
                return rows, count, at, False
            before_at = wide(state[S_AT])
            state[S_AT] += number
            whole = 1 if state[S_AT] == due else 0
            if whole:
                state[S_SEQ], state[S_IN_PAYLOAD], state[S_AT] = seq + _WORD(1), _WORD(0), _WORD(0)
        else:
            return rows, count, at, True
        packets[P_KIND, rows], packets[P_BEGIN, rows], packets[P_END, rows] = kind, at, end
        packets[P_SEQ, rows], packets[P_SIZE, rows] = wide(seq), wide(number)
        packets[P_CONTENT, rows], packets[P_CONTENT_SIZE, rows] = content, content_size
        packets[P_AT, rows], packets[P_WHOLE, rows], packets[P_ENTRY, rows] = before_at, whole, entry
        rows += 1
        at = end
    return rows, count, at, False


@compiled
def lay_out(packets: Array, ends: Array, shifts: Array, pieces: Array, begun_at: int, follows: int) -> int:
    """Fill in what follows from the results of `walk`. Returns the number of bytes of all payloads.

    Runs of content end at `ends`; `shifts` is what to add to a place in one for that in the connection. `begun_at` is
    where in the connection the first packet begins if that was before, or -1; `follows` is what it follows.
    """
    first, last, data, opened, count = 0, 0, 0, 0, 0
    for row in range(packets.shape[1]):
        while ends[first] <= packets[P_BEGIN, row]:
            first += 1
        while ends[last] < packets[P_END, row]:
            last += 1
        begin = packets[P_BEGIN, row] + shifts[first]
        if row == 0 and begun_at >= 0:
            begin = begun_at
        whole = packets[P_WHOLE, row] == 1
        packets[P_PIECE, row] = pieces[last]
        packets[P_BYTE_START, row], packets[P_BYTE_END, row] = begin, packets[P_END, row] + shifts[last]
        packets[P_FOLLOWS, row] = follows
        follows = begin if whole else -1
        count += 1
        packets[P_DATA, row], packets[P_FIRST, row], packets[P_COUNT, row] = data, opened, count
        if packets[P_KIND, row] != METADATA:
            data += packets[P_SIZE, row]
        if whole:
            opened, count = data, 0
    return data


@inlined
def _varu64_size(value: Any) -> int:
    if value < _WORD(248):
        return 1
    size = 1
    while size < 8 and value >> _WORD(8 * size):
        size += 1
    return size + 1


@inlined
def _put_varu64(value: Any, out: Array, to: int) -> int:
    size = _varu64_size(value)
    if size == 1:
        out[to] = value
    else:
        out[to] = 246 + size
        for i in range(1, size):
            out[to + i] = value >> _WORD(8 * (size - 1 - i)) & _WORD(255)
    return to + size


@compiled
def put_entries(
    data: Array,
    entries: Array,
    author: Array,
    log_id: Any,
    old: Array,
    out: Array,
    ends: Array,
    sizes: Array,
    slots: Array,
    hashes: Array,
) -> None:
    """Write entries in full to `out`, their ends, sizes and digests; `slots`: where digests of links stand, or -1.

    Of an entry with a link that is UNKNOWN the other link alone can be shown; its size is 0.
    """
    to = 0
    for row in range(entries.shape[1]):
        begin = to
        out[to] = 0
        copy_bytes(author, 0, KEY, out, to + 1)
        to = _put_varu64(log_id, out, to + 1 + KEY)
        to = _put_varu64(entries[E_SEQ, row], out, to)
        for which in range(2):
            link = wide(entries[E_LIPMAA + which, row])
            slots[which, row] = -1
            if link in (ABSENT, UNKNOWN):
                continue
            out[to], out[to + 1] = 0, DIGEST
            slots[which, row] = to + 2
            if link == SENT:
                copy_bytes(data, wide(entries[E_METADATA, row]) + 1, HASH, out, to)
            elif link <= OLD:
                copy_bytes(old, (OLD - link) * DIGEST, DIGEST, out, to + 2)
            else:
                copy_bytes(hashes, link * DIGEST, DIGEST, out, to + 2)
            to += HASH
        ends[row], sizes[row] = to, 0
        if _lacks(wide(entries[E_LIPMAA, row]), wide(entries[E_BACK, row])):
            continue
        to = _put_varu64(entries[E_SIZE, row], out, to)
        copy_bytes(data, wide(entries[E_HASH, row]), HASH + SIGNATURE, out, to)
        to += HASH + SIGNATURE
        ends[row], sizes[row] = to, to - begin
        put_digest(out, begin, to, hashes, row * DIGEST)


@inlined
def _put_decimal(value: Any, out: Array, to: int) -> int:
    size = 1
    rest = value // _WORD(10)
    while rest:
        rest //= _WORD(10)
        size += 1
    for i in range(size):
        out[to + size - 1 - i] = 48 + value % _WORD(10)
        value //= _WORD(10)
    return to + size


@compiled
def put_cursors(letters: Array, seqs: Array, ats: Array, out: Array, offsets: Array) -> int:
    """Write cursors, `m8` or `p10+200`, to `out`, and where they begin and end; no letter is nothing. Their bytes."""
    to = 0
    offsets[0] = 0
    for row in range(len(letters)):
        if letters[row]:
            out[to] = letters[row]
            to = _put_decimal(_WORD(seqs[row]), out, to + 1)
            if ats[row]:
                out[to] = 43
                to = _put_decimal(_WORD(ats[row]), out, to + 1)
        offsets[row + 1] = to
    return to


@compiled
def same_until(data: Array, places: Array, digests: Array, begin: int) -> int:
    """How many of the digests at `places` in `data` are those that stand one behind the other in `digests`."""
    for row in range(len(places)):
        for i in range(DIGEST):
            if data[places[row] + i] != digests[begin + row * DIGEST + i]:
                return row
    return len(places)


@compiled
def gather(data: Array, places: Array, rows: Array, offsets: Array, out: Array) -> None:
    """Copy byte strings of `data` to `out`, where those of `rows` stand between `offsets`."""
    for i in range(len(places)):
        row = rows[i]
        copy_bytes(data, wide(places[i]), wide(offsets[row + 1]) - wide(offsets[row]), out, wide(offsets[row]))


@compiled
def spread(table: Array, columns: Array, rows: Array, out: Array) -> None:
    """Copy columns of a table to those of `out` that are `rows`."""
    for number in range(len(table)):
        for i in range(len(rows)):
            out[number, rows[i]] = table[number, columns[i]]
