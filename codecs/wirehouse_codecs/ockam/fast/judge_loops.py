"""Compiled loops over the messages of a connection: who speaks about what, and what plain messages do to a session.

session.py judges every message; here are the frequent ones. One that isn't judged here ends `advance`, and is
left to the session. Numbers from 2^62 on aren't judged here, so that sums of them fit 64 bits.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.compiled.jit import compiled, inlined, wide
from wirehouse_codecs.ockam.fast import loops
from wirehouse_codecs.ockam.fast.loops import uint_at, uint_length_at

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

#: Numbers from here on are left to the session.
BEYOND: Final = 1 << 62
#: What a group of messages is about, as columns of `groups`: the slots of its requester and stream together, of its
#: stream, of its requester and index key together, and of its key at its service; -1 = it isn't about such a thing, or
#: is left to the session. REQUESTS: its requests change nothing of who the client is.
PAIR, STREAM, ASKER, KEY, REQUESTS = range(5)
GROUP_NUMBERS = 5
#: What a requester pushed to a stream, as columns of `pairs`: the first of its runs of ids has its slot. LAST: the
#: request that was saved last, NO_REQUEST, or LAST_BEFORE if it was before. USABLE: it has all this, and in numbers
#: that are judged here; HAS_SAVED: something was saved.
LAST, USABLE, FLOOR, RUNS, CHANGED, HAS_SAVED = range(6)
PAIR_NUMBERS = 6
NO_REQUEST, LAST_BEFORE = -1, -2
#: What is known of a stream, as columns of `streams`, the first five as in `pairs`. HIGHEST: -1 = none was confirmed.
#: IS_PULLED: a pull changes nothing of which partitions are.
HIGHEST, IS_PULLED = 5, 6
STREAM_NUMBERS = 7
#: What a client has at the index service, as columns of `keys`: LEAST -1 = nothing; IS_SAVED: an index was saved.
LEAST, EXISTS, IS_SAVED, KEY_CHANGED = range(4)
KEY_NUMBERS = 4
#: Requests, as columns of `requests`: its row, or NO_REQUEST if it came before; when; two words; how much data, whether
#: it is held; whether it is open, and not past its time; the slots of its requester with its stream or key, and key.
ROW, AT_NS, FROM_INDEX, MOST_MESSAGES, SIZE, HELD, OPEN, WAITING, ABOUT, OF_KEY, WHAT, ID = range(12)
REQUEST_NUMBERS = 12
#: Numbers of the session: the first are counted. COUNT: of `requests`; HEAD: of the oldest that may wait.
PUSHES, CONFIRMED, PULLS, DELIVERED, NOW_NS, COUNT, HEAD, OPEN_REQUESTS, DATA_BYTES_HELD = range(9)
SESSION_NUMBERS = 9
COUNTED: Final = ("pushes", "confirmed", "pulls", "delivered")
#: What doesn't change. MISSED: requests may have been missed.
TIMEOUT_NS, MOST_OPEN, MOST_HELD, MOST_RUNS, SPECIFICATION, IMPLEMENTATION, MISSED = range(7)
FIXED_NUMBERS = 7

#: What is looked up: open requests of a kind, and ids of pushes that were not saved.
PUSHED, PULLED, GOT, UNSAVED = range(4)
#: Where requests are looked up: nothing has this key; several have.
_FREE, _AMBIGUOUS = -1, -2
#: What a plain message answers is NO_REQUEST or a request; this one isn't plain.
_LEFT: Final = -2
_LAST_SPAN = 3


class Frames(NamedTuple):
    """Frames in arrival order, as loops.read_frames returns them."""

    data: Array
    #: By piece: when it arrived; whether it came with the packet that showed a hole.
    arrived_at_ns: Array
    held_back: Array
    words: Array
    numbers: Array
    smalls: Array
    #: By row: the number of its group; -1 = it wasn't read.
    group_of: Array


class Books(NamedTuple):
    """What a session knows, as arrays."""

    groups: Array
    pairs: Array
    pair_runs: Array
    streams: Array
    stream_runs: Array
    keys: Array
    requests: Array
    #: Keys of requests, and which request each has.
    lookup: Array
    held: Array
    session: Array
    fixed: Array


# Who speaks about what


@inlined
def span_of(row: int, what: int, numbers: Array, smalls: Array) -> tuple[int, int]:
    """Begin and end of the requester's route, of the last hop on the service's side, of an index's client and name."""
    from_server = smalls[loops.SIDE, row] == loops.FROM_SERVER
    if what == 0:
        route = loops.ONWARD if from_server else loops.RETURN
        begin, end = wide(numbers[route, row]), wide(numbers[route + 4, row])
    elif what == 1:
        route = loops.RETURN if from_server else loops.ONWARD
        begin, end = wide(numbers[route, row]), wide(numbers[route + 4, row])
    else:
        part = loops.CLIENT if what == 2 else loops.NAME
        begin = wide(numbers[part, row])
        end = begin + wide(numbers[part + 1, row])
    return begin, end


@inlined
def partition_of(row: int, words: Array, smalls: Array) -> Any:
    """A word that differs for different partitions and for none, as far as a hash goes."""
    return words[loops.PARTITION, row] + _WORD(1) if smalls[loops.HAS, row] & loops.HAS_PARTITION else _WORD(0)


@compiled
def is_about_same(data: Array, row: int, other: int, words: Array, numbers: Array, smalls: Array) -> bool:
    """Whether two messages belong to one group."""
    is_index = smalls[loops.KIND, row] >= loops.INDEX_GET
    if is_index != (smalls[loops.KIND, other] >= loops.INDEX_GET):
        return False
    flags = loops.HAS_PARTITION
    if (smalls[loops.HAS, row] & flags) != (smalls[loops.HAS, other] & flags):
        return False
    if words[loops.PARTITION, row] != words[loops.PARTITION, other]:
        return False
    for what in range(_LAST_SPAN + 1 if is_index else 2):
        begin, end = span_of(row, what, numbers, smalls)
        at, until = span_of(other, what, numbers, smalls)
        if end - begin != until - at:
            return False
        for i in range(end - begin):
            if data[begin + i] != data[at + i]:
                return False
    return True


@compiled
def group(data: Array, words: Array, numbers: Array, smalls: Array, table: Array, groups: Array, firsts: Array) -> int:
    """Give each message that was read the number of its group, in the order of their first rows: how many there are.

    A group has one requester, one address, and for indexes one client, stream and partition. `table` has -1 in twice
    as many places as there are rows, a power of two.
    """
    count = 0
    mask = _WORD(len(table) - 1)
    for row in range(len(groups)):
        groups[row] = -1
        if not smalls[loops.REGULAR, row]:
            continue
        found = _WORD(14695981039346656037)
        for what in range(_LAST_SPAN + 1 if smalls[loops.KIND, row] >= loops.INDEX_GET else 2):
            begin, end = span_of(row, what, numbers, smalls)
            for at in range(begin, end):
                found = (found ^ _WORD(data[at])) * _WORD(1099511628211)
            found = (found ^ _WORD(end - begin)) * _WORD(1099511628211)
        found = (found ^ partition_of(row, words, smalls)) * _WORD(1099511628211)
        place = (found ^ found >> _WORD(32)) & mask
        while table[place] >= 0 and not is_about_same(data, row, firsts[table[place]], words, numbers, smalls):
            place = (place + _WORD(1)) & mask
        if table[place] < 0:
            table[place] = count
            firsts[count] = row
            count += 1
        groups[row] = table[place]
    return count


# Requests by what their answers contain


@compiled
def place_of(what: int, about: int, number: Any, lookup: Array, held: Array) -> int:
    """Where in `held` the request with this key stands, or is to be put; `lookup` has the keys."""
    key = _WORD(about) << _WORD(2) | _WORD(what)
    mask = _WORD(len(held) - 1)
    place = (key * _WORD(0x9E3779B97F4A7C15) ^ number * _WORD(0xC2B2AE3D27D4EB4F)) >> _WORD(20) & mask
    while held[place] != _FREE and (lookup[0, place] != key or lookup[1, place] != number):
        place = (place + _WORD(1)) & mask
    lookup[0, place], lookup[1, place] = key, number
    return wide(place)


@compiled
def fill(requests: Array, count: int, unsaved: Array, lookup: Array, held: Array) -> None:
    """Make requests and unsaved ids found by their keys."""
    for place in range(len(held)):
        held[place] = _FREE
    for request in range(count):
        if requests[request, ABOUT] >= 0:
            number = _WORD(requests[request, ID])
            place = place_of(requests[request, WHAT], requests[request, ABOUT], number, lookup, held)
            held[place] = request if held[place] == _FREE else _AMBIGUOUS
    for one in range(unsaved.shape[1]):
        held[place_of(UNSAVED, wide(unsaved[0, one]), unsaved[1, one], lookup, held)] = 0


@inlined
def request_of(what: int, about: int, number: Any, books: Books) -> int:
    """The open request with this key, or _LEFT."""
    request = wide(books.held[place_of(what, about, number, books.lookup, books.held)])
    return request if request >= 0 and books.requests[request, OPEN] else _LEFT


@inlined
def was_not_saved(pair: int, number: Any, books: Books) -> bool:
    """Whether the session knows the id of a push that was refused."""
    return bool(books.held[place_of(UNSAVED, pair, number, books.lookup, books.held)] != _FREE)


@compiled
def wait(row: int, what: int, about: int, number: Any, frames: Frames, books: Books) -> int:
    """A request waits from here on: which it is; _LEFT = there is no room, or one with its key waits already."""
    session, requests = books.session, books.requests
    if session[OPEN_REQUESTS] >= books.fixed[MOST_OPEN] or number >= _WORD(BEYOND):
        return _LEFT
    place = place_of(what, about, number, books.lookup, books.held)
    earlier = books.held[place]
    if earlier == _AMBIGUOUS or (earlier >= 0 and requests[earlier, OPEN]):
        return _LEFT
    request = wide(session[COUNT])
    books.held[place] = request
    requests[request, ROW] = row
    requests[request, AT_NS] = frames.arrived_at_ns[frames.numbers[loops.PIECE, row]]
    requests[request, OPEN] = requests[request, WAITING] = 1
    requests[request, WHAT], requests[request, ABOUT], requests[request, ID] = what, about, wide(number)
    session[COUNT] += 1
    session[OPEN_REQUESTS] += 1
    return request


@compiled
def close(request: int, requests: Array, session: Array) -> None:
    """A request was answered."""
    requests[request, OPEN] = requests[request, WAITING] = 0
    session[OPEN_REQUESTS] -= 1
    if requests[request, HELD]:
        session[DATA_BYTES_HELD] -= requests[request, SIZE]


@compiled
def is_late(now_ns: int, requests: Array, session: Array, timeout_ns: int) -> bool:
    """Whether the oldest request that waits is past its time."""
    while session[HEAD] < session[COUNT] and not requests[session[HEAD], WAITING]:
        session[HEAD] += 1
    return bool(session[HEAD] < session[COUNT] and requests[session[HEAD], AT_NS] < now_ns - timeout_ns)


# Sets of numbers as intervals.Intervals holds them


@compiled
def holds(slot: int, number: int, sets: Array, runs: Array) -> bool:
    """Whether the number is in the set."""
    for run in range(sets[slot, RUNS] - 1, -1, -1):
        if runs[slot, 0, run] <= number:
            return bool(number <= runs[slot, 1, run])
    return False


@inlined
def rises(slot: int, number: int, sets: Array, runs: Array) -> bool:
    """Whether the number is above all in the set, which is not empty."""
    last = wide(sets[slot, RUNS]) - 1
    return bool(last >= 0 and runs[slot, 1, last] < number)


@compiled
def add(slot: int, number: int, sets: Array, runs: Array, most: int) -> None:
    """Put the number into the set."""
    sets[slot, CHANGED] = 1
    if number < sets[slot, FLOOR]:
        return
    count = sets[slot, RUNS]
    # The runs that begin at or before the number.
    at = count
    while at > 0 and runs[slot, 0, at - 1] > number:
        at -= 1
    if at > 0 and number <= runs[slot, 1, at - 1]:
        return
    joins_before = at > 0 and runs[slot, 1, at - 1] + 1 == number
    joins_after = at < count and runs[slot, 0, at] == number + 1
    if joins_before and joins_after:
        runs[slot, 1, at - 1] = runs[slot, 1, at]
        for run in range(at, count - 1):
            runs[slot, 0, run], runs[slot, 1, run] = runs[slot, 0, run + 1], runs[slot, 1, run + 1]
        sets[slot, RUNS] = count - 1
    elif joins_before:
        runs[slot, 1, at - 1] = number
    elif joins_after:
        runs[slot, 0, at] = number
    else:
        for run in range(count, at, -1):
            runs[slot, 0, run], runs[slot, 1, run] = runs[slot, 0, run - 1], runs[slot, 1, run - 1]
        runs[slot, 0, at] = runs[slot, 1, at] = number
        sets[slot, RUNS] = count + 1
        if count + 1 > most:
            keep(slot, most - most // 4, sets, runs)


@compiled
def keep(slot: int, kept: int, sets: Array, runs: Array) -> None:
    """Know nothing any more below the highest runs."""
    gone = sets[slot, RUNS] - kept
    sets[slot, FLOOR] = runs[slot, 1, gone - 1] + 1
    for run in range(kept):
        runs[slot, 0, run], runs[slot, 1, run] = runs[slot, 0, gone + run], runs[slot, 1, gone + run]
    sets[slot, RUNS] = kept


# Plain messages


@compiled
def advance(begin: int, end: int, frames: Frames, books: Books, answered: Array) -> int:
    """Take the plain messages from row `begin` to `end`: the row of the first that isn't, for which nothing is done.

    A message is plain if session.Session.receive finds nothing and ignores nothing, and if it gives the session nothing
    about streams, requesters or clients that it doesn't know. `answered` takes the number of the request.
    """
    session = books.session
    for row in range(begin, end):
        group, piece = frames.group_of[row], frames.numbers[loops.PIECE, row]
        if group < 0 or books.groups[group, PAIR] < 0 or frames.held_back[piece]:
            return row
        now_ns = max(session[NOW_NS], frames.arrived_at_ns[piece])
        if is_late(now_ns, books.requests, session, books.fixed[TIMEOUT_NS]):
            return row
        if frames.smalls[loops.KIND, row] < loops.INDEX_GET:
            answers = take_of_stream(row, books.groups[group, PAIR], books.groups[group, STREAM], frames, books)
        else:
            answers = take_of_index(row, group, frames, books)
        if answers == _LEFT:
            return row
        if answers >= 0:
            close(answers, books.requests, session)
        answered[row] = answers
        session[NOW_NS] = now_ns
    return end


@compiled
def take_of_stream(row: int, pair: int, stream: int, frames: Frames, books: Books) -> int:
    """A message to or from a stream: what it answers; _LEFT = it isn't plain, and nothing was done."""
    if stream < 0 or not books.streams[stream, USABLE]:
        return _LEFT
    kind = frames.smalls[loops.KIND, row]
    if kind == loops.PUSH_REQUEST:
        return take_push(row, pair, frames, books)
    if kind == loops.PUSH_RESPONSE:
        return take_confirm(row, pair, stream, frames, books)
    if kind == loops.PULL_REQUEST:
        return take_pull(row, pair, stream, frames, books)
    return take_pulled(row, pair, frames, books)


@compiled
def take_push(row: int, pair: int, frames: Frames, books: Books) -> int:
    """A push."""
    pairs, session = books.pairs, books.session
    number = frames.words[loops.REQUEST_ID, row]
    if not pairs[pair, USABLE] or number >= _WORD(BEYOND) or holds(pair, wide(number), pairs, books.pair_runs):
        return _LEFT
    if was_not_saved(pair, number, books):
        return _LEFT
    if books.fixed[MISSED] and not rises(pair, wide(number), pairs, books.pair_runs):
        return _LEFT
    request = wait(row, PUSHED, pair, number, frames, books)
    if request < 0:
        return _LEFT
    pairs[pair, LAST], pairs[pair, CHANGED] = NO_REQUEST, 1
    size = wide(frames.numbers[loops.DATA_BYTES, row])
    books.requests[request, SIZE] = size
    if session[DATA_BYTES_HELD] + size <= books.fixed[MOST_HELD]:
        books.requests[request, HELD] = 1
        session[DATA_BYTES_HELD] += size
    session[PUSHES] += 1
    return NO_REQUEST


@compiled
def take_confirm(row: int, pair: int, stream: int, frames: Frames, books: Books) -> int:
    """A confirm."""
    pairs, streams = books.pairs, books.streams
    number, index = frames.words[loops.REQUEST_ID, row], frames.words[loops.INDEX, row]
    if frames.smalls[loops.STATUS, row] != 0 or not pairs[pair, USABLE] or not pairs[pair, HAS_SAVED]:
        return _LEFT
    if number >= _WORD(BEYOND) or index >= _WORD(BEYOND) or holds(pair, wide(number), pairs, books.pair_runs):
        return _LEFT
    if was_not_saved(pair, number, books):
        return _LEFT
    if wide(index) < streams[stream, HIGHEST] and not holds(stream, wide(index), streams, books.stream_runs):
        return _LEFT
    request = request_of(PUSHED, pair, number, books)
    if request >= 0:
        pairs[pair, LAST] = request
        add(pair, wide(number), pairs, books.pair_runs, books.fixed[MOST_RUNS])
        streams[stream, HIGHEST] = max(streams[stream, HIGHEST], wide(index))
        add(stream, wide(index), streams, books.stream_runs, books.fixed[MOST_RUNS])
        books.session[CONFIRMED] += 1
    return request


@compiled
def take_pull(row: int, pair: int, stream: int, frames: Frames, books: Books) -> int:
    """A pull."""
    if not books.streams[stream, IS_PULLED]:
        return _LEFT
    request = wait(row, PULLED, pair, frames.words[loops.REQUEST_ID, row], frames, books)
    if request < 0:
        return _LEFT
    books.requests[request, FROM_INDEX] = wide(frames.words[loops.INDEX, row])
    books.requests[request, MOST_MESSAGES] = wide(frames.words[loops.LIMIT, row])
    books.session[PULLS] += 1
    return NO_REQUEST


@compiled
def take_pulled(row: int, pair: int, frames: Frames, books: Books) -> int:
    """A pull response."""
    request = request_of(PULLED, pair, frames.words[loops.REQUEST_ID, row], books)
    count = wide(frames.numbers[loops.MESSAGE_COUNT, row])
    if request < 0 or _WORD(count) > _WORD(books.requests[request, MOST_MESSAGES]):
        return _LEFT
    at, end = wide(frames.numbers[loops.MESSAGES, row]), wide(frames.numbers[loops.END, row])
    before = _WORD(books.requests[request, FROM_INDEX])
    for one in range(count):
        index, at = uint_at(frames.data, at, end)
        if index < before or (one and index == before):
            return _LEFT
        before = index
        size, at = uint_length_at(frames.data, at, end)
        at += size
    books.session[DELIVERED] += count
    return request


@compiled
def take_of_index(row: int, group: int, frames: Frames, books: Books) -> int:
    """A message to or from an index service: what it answers; _LEFT = it isn't plain, and nothing was done."""
    key = books.groups[group, KEY]
    if key < 0 or not has_known_names(row, frames.smalls, books.fixed):
        return _LEFT
    kind = frames.smalls[loops.KIND, row]
    if kind == loops.INDEX_RESPONSE:
        return take_index(row, books.groups[group, ASKER], key, frames, books)
    if not books.groups[group, REQUESTS]:
        return _LEFT
    if kind == loops.INDEX_SAVE:
        return take_save(key, frames.words[loops.INDEX, row], books.keys)
    if books.keys[key, LEAST] >= BEYOND:
        return _LEFT
    request = wait(row, GOT, books.groups[group, ASKER], _WORD(0), frames, books)
    if request < 0:
        return _LEFT
    books.requests[request, OF_KEY], books.requests[request, FROM_INDEX] = key, books.keys[key, LEAST]
    return NO_REQUEST


@inlined
def has_known_names(row: int, smalls: Array, fixed: Array) -> bool:
    """Whether earlier messages showed which names the client uses, or this message about an index doesn't show it."""
    if smalls[loops.PROTOCOL, row] == loops.INDEX_PARTITIONED:
        known = bool(fixed[IMPLEMENTATION])
    else:
        known = bool(fixed[SPECIFICATION]) or not smalls[loops.HAS, row] & loops.HAS_PARTITION
    return known


@compiled
def take_save(key: int, index: Any, keys: Array) -> int:
    """A saved index."""
    if not keys[key, IS_SAVED] or index >= _WORD(BEYOND):
        return _LEFT
    keys[key, LEAST], keys[key, KEY_CHANGED] = max(keys[key, LEAST], wide(index)), 1
    return NO_REQUEST


@compiled
def take_index(row: int, asker: int, key: int, frames: Frames, books: Books) -> int:
    """An index."""
    keys, index = books.keys, frames.words[loops.INDEX, row]
    if not frames.smalls[loops.HAS, row] & loops.HAS_INDEX or not keys[key, EXISTS] or index >= _WORD(BEYOND):
        return _LEFT
    request = request_of(GOT, asker, _WORD(0), books)
    if request < 0 or books.requests[request, OF_KEY] != key or wide(index) < books.requests[request, FROM_INDEX]:
        return _LEFT
    keys[key, LEAST], keys[key, KEY_CHANGED] = max(keys[key, LEAST], wide(index)), 1
    return request
