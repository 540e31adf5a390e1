"""Compiled loops over frames: cut them, read their routes and the frequent messages.

routed.py and messages.py read every frame; here are those that are frequent and written as short as can be. A
frame that isn't read here is marked by REGULAR 0 and left to the reference decoder.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wirehouse_codecs.compiled.jit import compiled, copy_bytes, inlined, wide

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

#: What `cut` ends at: no whole frame is left, or a length that no message has.
WAITS, STOPS = range(2)

#: 64 bits of a message, as rows of `words`; 1 << row is its bit in HAS.
REQUEST_ID, INDEX, LIMIT, PARTITION = range(4)
WORDS = 4
HAS_CONTEXT, HAS_CLIENT, HAS_DATA, HAS_MESSAGES, HAS_STATUS = 16, 32, 64, 128, 256
_HAS_REQUEST, HAS_INDEX, _HAS_LIMIT, HAS_PARTITION = 1, 2, 4, 8
#: 32 bits, as rows of `numbers`: where it begins and ends, which piece completed it; of each route where its first hop
#: begins, how many there are, how long they are as text, where the last begins, and where it ends; where its parts
#: begin and how long they are, or how many.
BEGIN, END, PIECE, ONWARD, ONWARD_HOPS, ONWARD_TEXT, ONWARD_LAST, ONWARD_END = range(8)
RETURN, RETURN_HOPS, RETURN_TEXT, RETURN_LAST, RETURN_END = range(8, 13)
CONTEXT, CONTEXT_BYTES, CLIENT, CLIENT_BYTES, NAME, NAME_BYTES = range(13, 19)
DATA, DATA_BYTES, MESSAGES, MESSAGE_COUNT = range(19, 23)
NUMBERS = 23
#: Small numbers, as rows of `smalls`. KIND: as messages.Kind counts; PROTOCOL: as messages.PROTOCOLS does; SIDE: who
#: sent it, as tcp.Direction counts.
KIND, PROTOCOL, REGULAR, VERSION, STATUS, HAS, SIDE = range(7)
SMALLS = 7
FROM_SERVER: Final = 1

PUSH_REQUEST, PUSH_RESPONSE, PULL_REQUEST, PULL_RESPONSE, INDEX_GET, INDEX_SAVE, INDEX_RESPONSE = range(2, 9)
PUSH, PULL, INDEX_SHARED, INDEX_PARTITIONED = 1, 2, 3, 4
_PUSH_NAME: Final = np.frombuffer(b"stream_push", np.uint8)
_PULL_NAME: Final = np.frombuffer(b"stream_pull", np.uint8)
_INDEX_NAME: Final = np.frombuffer(b"stream_index", np.uint8)
_INDEX_PARTITIONED_NAME: Final = np.frombuffer(b"stream_index_partitioned", np.uint8)

_UINT_BYTES: Final = 10
_UNSIGNED, _BYTES, _TEXT, _ARRAY, _NULL = 0, 2, 3, 4, 0xF6
#: Bounds as in routed.py; types of addresses are short here.
_MOST_HOPS, _MOST_ADDRESS_BYTES, _MOST_TYPE = 64, 4096, 999
_BACKSLASH, _HASH, _ZERO = 0x5C, 0x23, 0x30


# Frames


@compiled
def cut(data: Array, at: int, end: int, width: int, limit: int, bounds: Array) -> tuple[int, int]:
    """Number of whole frames from `at` to `end`, and what comes after them. `bounds` takes `at` and where each ends."""
    frames = 0
    bounds[0] = at
    while end - at >= width:
        length = 0
        for i in range(width):
            length = length << 8 | wide(data[at + i])
        if length == 0 or length > limit:
            return frames, STOPS
        at += width + length
        if at > end:
            break
        frames += 1
        bounds[frames] = at
    return frames, WAITS


@compiled
def read_frames(data: Array, cbor: bool, words: Array, numbers: Array, smalls: Array) -> None:
    """Read all frames whose place is in `numbers` and whose side is in `smalls`. The other numbers begin as zeros."""
    width = 4 if cbor else 2
    for row in range(numbers.shape[1]):
        at, end = wide(numbers[BEGIN, row]) + width, wide(numbers[END, row])
        from_server = smalls[SIDE, row] == FROM_SERVER
        smalls[REGULAR, row] = read_routed(data, at, end, cbor, from_server, row, words, numbers, smalls)


@compiled
def read_routed(
    data: Array, at: int, end: int, cbor: bool, from_server: bool, row: int, words: Array, numbers: Array, smalls: Array
) -> bool:
    """Read a routed message; False = only the reference decoder can, and the columns of this frame mean nothing."""
    if at >= end:
        return False
    first = data[at]
    if cbor:
        if first not in (0x83, 0x84):
            return False
        has_context = first == 0x84
    else:
        if first not in (1, 2):
            return False
        has_context = first == 2
        smalls[VERSION, row] = first
    at += 1
    at = read_route(data, at, end, cbor, ONWARD, row, numbers)
    if at < 0 or numbers[ONWARD_HOPS, row] == 0:
        return False
    at = read_route(data, at, end, cbor, RETURN, row, numbers)
    if at < 0:
        return False
    size, at = length_at(data, at, end, cbor, _BYTES)
    if at < 0:
        return False
    payload = at
    at += size
    if has_context:
        at = read_context(data, at, end, cbor, row, numbers, smalls)
    return at == end and read_payload(data, payload, payload + size, from_server, row, words, numbers, smalls)


@compiled
def read_route(data: Array, at: int, end: int, cbor: bool, route: int, row: int, numbers: Array) -> int:
    """The byte after a route, all of whose hops are text as they stand; -1 = it isn't such a route."""
    hops, at = number_at(data, at, end, cbor, _ARRAY)
    if at < 0 or hops > _MOST_HOPS:
        return -1
    numbers[route, row], numbers[route + 1, row] = at, hops
    text, last = 0, at
    for _ in range(hops):
        last = at
        if cbor:
            if at >= end or data[at] != 0x82:
                return -1
            at += 1
        kind, at = number_at(data, at, end, cbor, _UNSIGNED)
        if at < 0 or kind > _MOST_TYPE:
            return -1
        size, at = length_at(data, at, end, cbor, _BYTES)
        if at < 0 or size > _MOST_ADDRESS_BYTES or not is_text(data, at, at + size, True):
            return -1
        at += size
        text += (1 if kind < 10 else 2 if kind < 100 else 3) + 1 + size
    numbers[route + 2, row], numbers[route + 3, row], numbers[route + 4, row] = text, last, at
    return at


@compiled
def read_context(data: Array, at: int, end: int, cbor: bool, row: int, numbers: Array, smalls: Array) -> int:
    """The byte after a tracing context or its absence; -1 = it is none."""
    if at >= end:
        return -1
    if data[at] == (_NULL if cbor else 0):
        return at + 1
    if not cbor:
        if data[at] != 1:
            return -1
        at += 1
    size, at = length_at(data, at, end, cbor, _TEXT)
    if at < 0 or not is_text(data, at, at + size, False):
        return -1
    numbers[CONTEXT, row], numbers[CONTEXT_BYTES, row] = at, size
    smalls[HAS, row] |= HAS_CONTEXT
    return at + size


# Messages


@compiled
def read_payload(
    data: Array, at: int, end: int, from_server: bool, row: int, words: Array, numbers: Array, smalls: Array
) -> bool:
    """Read a BasePayload that ends at `end`; False = none of the frequent ones."""
    size, name = uint_length_at(data, at, end)
    if name < 0:
        return False
    inner, at = uint_length_at(data, name + size, end)
    if at < 0 or at + inner != end:
        return False
    if size == len(_PUSH_NAME) and matches(data, name, _PUSH_NAME):
        smalls[PROTOCOL, row] = PUSH
        if from_server:
            return read_push_response(data, at, end, row, words, smalls)
        return read_push_request(data, at, end, row, words, numbers, smalls)
    if size == len(_PULL_NAME) and matches(data, name, _PULL_NAME):
        smalls[PROTOCOL, row] = PULL
        if from_server:
            return read_pull_response(data, at, end, row, words, numbers, smalls)
        return read_pull_request(data, at, end, row, words, smalls)
    if size == len(_INDEX_NAME) and matches(data, name, _INDEX_NAME):
        smalls[PROTOCOL, row] = INDEX_SHARED
        shared = True
    elif size == len(_INDEX_PARTITIONED_NAME) and matches(data, name, _INDEX_PARTITIONED_NAME):
        smalls[PROTOCOL, row] = INDEX_PARTITIONED
        shared = False
    else:
        return False
    if from_server:
        return read_index_response(data, at, end, shared, row, words, numbers, smalls)
    return read_index_request(data, at, end, shared, row, words, numbers, smalls)


@inlined
def matches(data: Array, at: int, name: Array) -> bool:
    """Whether the bytes at `at` are those of `name`."""
    same = True
    for i in range(len(name)):
        same = same and data[at + i] == name[i]
    return same


@compiled
def read_push_request(data: Array, at: int, end: int, row: int, words: Array, numbers: Array, smalls: Array) -> bool:
    """Read request_id and data; False = something else is there."""
    words[REQUEST_ID, row], at = uint_at(data, at, end)
    if at < 0:
        return False
    size, at = uint_length_at(data, at, end)
    if at < 0:
        return False
    numbers[DATA, row], numbers[DATA_BYTES, row] = at, size
    smalls[KIND, row] = PUSH_REQUEST
    smalls[HAS, row] |= _HAS_REQUEST | HAS_DATA
    return at + size == end


@compiled
def read_push_response(data: Array, at: int, end: int, row: int, words: Array, smalls: Array) -> bool:
    """Read request_id, status and index; False = something else is there."""
    words[REQUEST_ID, row], at = uint_at(data, at, end)
    if at < 0 or at >= end or data[at] > 1:
        return False
    smalls[STATUS, row] = data[at]
    words[INDEX, row], at = uint_at(data, at + 1, end)
    smalls[KIND, row] = PUSH_RESPONSE
    smalls[HAS, row] |= _HAS_REQUEST | HAS_INDEX | HAS_STATUS
    return at == end


@compiled
def read_pull_request(data: Array, at: int, end: int, row: int, words: Array, smalls: Array) -> bool:
    """Read request_id, index and limit; False = something else is there."""
    for word in (REQUEST_ID, INDEX, LIMIT):
        words[word, row], at = uint_at(data, at, end)
        if at < 0:
            return False
    smalls[KIND, row] = PULL_REQUEST
    smalls[HAS, row] |= _HAS_REQUEST | HAS_INDEX | _HAS_LIMIT
    return at == end


@compiled
def read_pull_response(data: Array, at: int, end: int, row: int, words: Array, numbers: Array, smalls: Array) -> bool:
    """Read request_id and messages, which `read_messages` reads; False = something else is there."""
    words[REQUEST_ID, row], at = uint_at(data, at, end)
    if at < 0:
        return False
    # Each message has two bytes at least, so no count that is larger than what is left fits.
    count, at = uint_length_at(data, at, end)
    if at < 0:
        return False
    numbers[MESSAGES, row], numbers[MESSAGE_COUNT, row] = at, count
    for _ in range(count):
        _, at = uint_at(data, at, end)
        if at < 0:
            return False
        size, at = uint_length_at(data, at, end)
        if at < 0:
            return False
        at += size
    smalls[KIND, row] = PULL_RESPONSE
    smalls[HAS, row] |= _HAS_REQUEST | HAS_MESSAGES
    return at == end


@compiled
def read_key(data: Array, at: int, end: int, row: int, numbers: Array) -> int:
    """The byte after client_id and stream_name; -1 = they aren't there."""
    for part in (CLIENT, NAME):
        size, at = uint_length_at(data, at, end)
        if at < 0 or not is_text(data, at, at + size, False):
            return -1
        numbers[part, row], numbers[part + 1, row] = at, size
        at += size
    return at


@compiled
def read_index_request(
    data: Array, at: int, end: int, shared: bool, row: int, words: Array, numbers: Array, smalls: Array
) -> bool:
    """Read the tag of Get or Save, the key, and the partition if as many numbers follow; False = nothing of these."""
    if at >= end or data[at] > 1:
        return False
    save = data[at] == 1
    at = read_key(data, at + 1, end, row, numbers)
    if at < 0:
        return False
    one, two = _WORD(0), _WORD(0)
    count = 0
    while at < end and count < 2:
        one, two = two, one
        two, at = uint_at(data, at, end)
        if at < 0:
            return False
        count += 1
    partitioned = count == (2 if save else 1)
    if at != end or not (partitioned or (shared and count == (1 if save else 0))):
        return False
    smalls[KIND, row] = INDEX_SAVE if save else INDEX_GET
    smalls[HAS, row] |= HAS_CLIENT
    if save:
        words[INDEX, row] = two
        smalls[HAS, row] |= HAS_INDEX
    if partitioned:
        words[PARTITION, row] = one if save else two
        smalls[HAS, row] |= HAS_PARTITION
    return True


@compiled
def read_index_response(
    data: Array, at: int, end: int, shared: bool, row: int, words: Array, numbers: Array, smalls: Array
) -> bool:
    """Read the key and an optional index, without or behind a partition; False = it may be either, or is neither."""
    at = read_key(data, at, end, row, numbers)
    if at < 0:
        return False
    smalls[KIND, row] = INDEX_RESPONSE
    smalls[HAS, row] |= HAS_CLIENT
    plain = shared and read_index(data, at, end, row, words, smalls)
    index, has = words[INDEX, row], smalls[HAS, row]
    partition, after = uint_at(data, at, end)
    if after < 0 or not read_index(data, after, end, row, words, smalls):
        words[INDEX, row], smalls[HAS, row] = index, has
        return plain
    words[PARTITION, row] = partition
    smalls[HAS, row] |= HAS_PARTITION
    return not plain


@compiled
def read_index(data: Array, at: int, end: int, row: int, words: Array, smalls: Array) -> bool:
    """Read an optional index that ends at `end`; False = something else is there."""
    if at >= end or data[at] > 1:
        return False
    if data[at] == 0:
        return at + 1 == end
    index, at = uint_at(data, at + 1, end)
    if at != end:
        return False
    words[INDEX, row] = index
    smalls[HAS, row] |= HAS_INDEX
    return True


# Values


@inlined
def uint_at(data: Array, at: int, end: int) -> tuple[Any, int]:
    """A uint of BARE and the byte after it; -1 = it is cut, longer than needed, or has more than 64 bits."""
    value, shift, after = _WORD(0), 0, -1
    for place in range(at, min(end, at + _UINT_BYTES)):
        octet = data[place]
        value |= _WORD(octet & 0x7F) << _WORD(shift)
        shift += 7
        if octet < 0x80:
            if (octet or place == at) and (shift < 70 or octet == 1):
                after = place + 1
            break
    return value, after


@inlined
def uint_length_at(data: Array, at: int, end: int) -> tuple[int, int]:
    """The same for a length or count: -1 also if fewer bytes are left."""
    value, after = uint_at(data, at, end)
    size = 0
    if after >= 0:
        if value > _WORD(end - after):
            after = -1
        else:
            size = wide(value)
    return size, after


@compiled
def head_at(data: Array, at: int, end: int, major: int) -> tuple[Any, int]:
    """The argument of an item of CBOR and the byte after its head; -1 = another type, cut, or longer than needed."""
    if at >= end or data[at] >> 5 != major:
        return _WORD(0), -1
    low = wide(data[at]) & 31
    if low < 24:
        return _WORD(low), at + 1
    if low > 27 or end - at - 1 < 1 << (low - 24):
        return _WORD(0), -1
    value = _WORD(0)
    octets = 1 << (low - 24)
    for i in range(octets):
        value = value << _WORD(8) | _WORD(data[at + 1 + i])
    least = _WORD(24) if octets == 1 else _WORD(1) << _WORD(4 * octets)
    return value, at + 1 + octets if value >= least else -1


@inlined
def number_at(data: Array, at: int, end: int, cbor: bool, major: int) -> tuple[Any, int]:
    """A number as the envelope writes it."""
    return head_at(data, at, end, major) if cbor else uint_at(data, at, end)


@inlined
def length_at(data: Array, at: int, end: int, cbor: bool, major: int) -> tuple[int, int]:
    """A length as the envelope writes it; -1 also if fewer bytes are left."""
    value, after = number_at(data, at, end, cbor, major)
    size = 0
    if after >= 0:
        if value > _WORD(end - after):
            after = -1
        else:
            size = wide(value)
    return size, after


@compiled
def is_text(data: Array, at: int, end: int, as_it_stands: bool) -> bool:
    """Whether it is UTF-8 (Unicode, table 3-7); `as_it_stands`: without backslashes, which may be doubled."""
    while at < end:
        octet = data[at]
        if octet < 0x80:
            if as_it_stands and octet == _BACKSLASH:
                return False
            at += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= octet <= 0xDF:
            follow = 1
        elif 0xE0 <= octet <= 0xEF:
            follow = 2
            low = 0xA0 if octet == 0xE0 else 0x80
            high = 0x9F if octet == 0xED else 0xBF
        elif 0xF0 <= octet <= 0xF4:
            follow = 3
            low = 0x90 if octet == 0xF0 else 0x80
            high = 0x8F if octet == 0xF4 else 0xBF
        else:
            return False
        if at + follow >= end or not low <= data[at + 1] <= high:
            return False
        for i in range(2, follow + 1):
            if data[at + i] & 0xC0 != 0x80:
                return False
        at += follow + 1
    return True


# What columns are made of


@compiled
def put_routes(data: Array, cbor: bool, route: int, numbers: Array, hops: Array, offsets: Array, out: Array) -> None:
    """The hops of all routes as text; `hops` are those of each row, `offsets` takes where each text begins."""
    to = 0
    for row in range(len(hops) - 1):
        at = wide(numbers[route, row])
        for hop in range(hops[row], hops[row + 1]):
            offsets[hop] = to
            at += 1 if cbor else 0
            word, at = number_at(data, at, at + _MOST_ADDRESS_BYTES, cbor, _UNSIGNED)
            kind = wide(word)
            for place in (100, 10, 1):
                if kind >= place or place == 1:
                    out[to] = _ZERO + kind // place % 10
                    to += 1
            out[to] = _HASH
            to += 1
            word, at = number_at(data, at, at + _MOST_ADDRESS_BYTES, cbor, _BYTES)
            copy_bytes(data, at, wide(word), out, to)
            at += wide(word)
            to += wide(word)
    offsets[hops[-1]] = to


@compiled
def read_messages(
    data: Array, starts: Array, ends: Array, counts: Array, words: Array, begins: Array, sizes: Array
) -> None:
    """The messages of all pull responses, `counts` of each: their indexes, and where the data of each stands."""
    for row in range(len(starts)):
        at, end = wide(starts[row]), wide(ends[row])
        for one in range(counts[row], counts[row + 1]):
            words[one], at = uint_at(data, at, end)
            size, at = uint_length_at(data, at, end)
            begins[one], sizes[one] = at, size
            at += size
