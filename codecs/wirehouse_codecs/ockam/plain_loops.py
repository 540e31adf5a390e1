"""Compiled loops over the messages of a connection: who speaks about what, and what plain messages do to a session.

What a message does is said in session.py; here is what is frequent. One that isn't judged here ends `advance`, and is
left to the session. Numbers from 2^62 on aren't judged here, so that sums of them fit 64 bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wirehouse_codecs.compiled import compiled, inlined, wide
from wirehouse_codecs.ockam import loops
from wirehouse_codecs.ockam.loops import uint_at, uint_length_at

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
#: What is known of a stream, as columns of `streams`, of which the first five are those of `pairs`. HIGHEST: -1 = none was
#: confirmed. IS_PULLED: a pull changes nothing of which partitions are.
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
#: What doesn't change.
TIMEOUT_NS, MOST_OPEN, MOST_HELD, MOST_RUNS, SPECIFICATION, IMPLEMENTATION = range(6)
FIXED_NUMBERS = 6

#: What is looked up: open requests of a kind, and ids of pushes that were not saved. AMBIGUOUS: several have one key.
PUSHED, PULLED, GOT, UNSAVED = range(4)
_NOWHERE: Final = -1
AMBIGUOUS: Final = -2
_FREE: Final = -3
_LAST_SPAN = 3


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
        begin, end = wide(numbers[route + 3, row]), wide(numbers[route + 4, row])
    else:
        part = loops.CLIENT if what == 2 else loops.NAME
        begin = wide(numbers[part, row])
        end = begin + wide(numbers[part + 1, row])
    return begin, end


@inlined
def partition_of(row: int, words: Array, smalls: Array) -> Any:
    """A word that tells apart partitions and their absence, as far as a hash goes."""
    return words[loops.PARTITION, row] + _WORD(1) if smalls[loops.HAS, row] & loops.HAS_PARTITION else _WORD(0)


@compiled
def is_about_same(data: Array, row: int, other: int, words: Array, numbers: Array, smalls: Array) -> bool:
    """Two messages belong to one group."""
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


# Requests by what their answers say


@compiled
def place_of(what: int, about: int, number: Any, lookup: Array, held: Array) -> Any:
    """Where in `held` the request with this key stands, or is to be put; `lookup` has the keys."""
    key = _WORD(about) << _WORD(2) | _WORD(what)
    mask = _WORD(len(held) - 1)
    place = (key * _WORD(0x9E3779B97F4A7C15) ^ number * _WORD(0xC2B2AE3D27D4EB4F)) >> _WORD(20) & mask
    while held[place] != _FREE and (lookup[0, place] != key or lookup[1, place] != number):
        place = (place + _WORD(1)) & mask
    lookup[0, place], lookup[1, place] = key, number
    return place


@compiled
def fill(requests: Array, count: int, unsaved: Array, lookup: Array, held: Array) -> None:
    """Make requests and unsaved ids found by their keys."""
    for place in range(len(held)):
        held[place] = _FREE
    for request in range(count):
        if requests[request, ABOUT] >= 0:
            number = _WORD(requests[request, ID])
            place = place_of(requests[request, WHAT], requests[request, ABOUT], number, lookup, held)
            held[place] = request if held[place] == _FREE else AMBIGUOUS
    for one in range(unsaved.shape[1]):
        place = place_of(UNSAVED, wide(unsaved[0, one]), unsaved[1, one], lookup, held)
        held[place] = 0


@inlined
def request_of(what: int, about: int, number: Any, requests: Array, lookup: Array, held: Array) -> int:
    """The request with this key, `AMBIGUOUS`, or `_NOWHERE`."""
    request = held[place_of(what, about, number, lookup, held)]
    if request == _FREE or (request >= 0 and what != UNSAVED and not requests[request, OPEN]):
        request = _NOWHERE
    return request


# Sets of numbers as intervals.Intervals holds them


@compiled
def holds(slot: int, number: int, sets: Array, runs: Array) -> bool:
    """The number is in the set."""
    for run in range(sets[slot, RUNS] - 1, -1, -1):
        if runs[slot, 0, run] <= number:
            return number <= runs[slot, 1, run]
    return False


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
def advance(
    data: Array,
    arrived_at_ns: Array,
    unsure: Array,
    begin: int,
    words: Array,
    numbers: Array,
    smalls: Array,
    group_of: Array,
    groups: Array,
    pairs: Array,
    pair_runs: Array,
    streams: Array,
    stream_runs: Array,
    keys: Array,
    requests: Array,
    lookup: Array,
    held: Array,
    session: Array,
    fixed: Array,
    answered: Array,
) -> int:
    """Take the plain messages from row `begin` on: the row of the first that isn't, for which nothing is done.

    A message is plain if session.Session.receive finds nothing and ignores nothing, and if it tells the session nothing
    about streams, requesters or clients that it doesn't know. `answered` takes the number of the request.
    """
    for row in range(begin, len(group_of)):
        group = group_of[row]
        piece = numbers[loops.PIECE, row]
        if group < 0 or groups[group, PAIR] < 0 or unsure[piece]:
            return row
        now_ns = max(session[NOW_NS], arrived_at_ns[piece])
        while session[HEAD] < session[COUNT] and not requests[session[HEAD], WAITING]:
            session[HEAD] += 1
        if session[HEAD] < session[COUNT] and requests[session[HEAD], AT_NS] < now_ns - fixed[TIMEOUT_NS]:
            return row
        kind = smalls[loops.KIND, row]
        pair, stream = groups[group, PAIR], groups[group, STREAM]
        asker, key = groups[group, ASKER], groups[group, KEY]
        answers = NO_REQUEST
        if kind < loops.INDEX_GET and stream < 0:
            return row
        if kind == loops.PUSH_REQUEST:
            if not take_push(
                row, arrived_at_ns, words, numbers, pair, pairs, pair_runs, requests, lookup, held, session, fixed
            ):
                return row
        elif kind == loops.PUSH_RESPONSE:
            answers = take_confirm(
                row, words, smalls, pair, stream, pairs, pair_runs, streams, stream_runs, requests, lookup, held, fixed
            )
            if answers < 0:
                return row
            session[CONFIRMED] += 1
        elif kind == loops.PULL_REQUEST:
            if not streams[stream, IS_PULLED] or not take_request(
                row, PULLED, pair, words[loops.REQUEST_ID, row], arrived_at_ns, numbers, requests, lookup, held,
                session, fixed,
            ):  # fmt: skip
                return row
            request = session[COUNT] - 1
            requests[request, FROM_INDEX] = wide(words[loops.INDEX, row])
            requests[request, MOST_MESSAGES] = wide(words[loops.LIMIT, row])
            session[PULLS] += 1
        elif kind == loops.PULL_RESPONSE:
            answers = take_pulled(data, row, words, numbers, pair, stream, streams, requests, lookup, held)
            if answers < 0:
                return row
            session[DELIVERED] += numbers[loops.MESSAGE_COUNT, row]
        else:
            if key < 0 or not has_known_names(row, smalls, fixed):
                return row
            if kind == loops.INDEX_GET:
                if not groups[group, REQUESTS] or not take_request(
                    row, GOT, asker, _WORD(0), arrived_at_ns, numbers, requests, lookup, held, session, fixed
                ):
                    return row
                requests[session[COUNT] - 1, OF_KEY] = key
                requests[session[COUNT] - 1, FROM_INDEX] = keys[key, LEAST]
            elif kind == loops.INDEX_SAVE:
                if not groups[group, REQUESTS] or not take_save(row, words, key, keys):
                    return row
            else:
                answers = take_index(row, words, smalls, asker, key, keys, requests, lookup, held)
                if answers < 0:
                    return row
        if answers >= 0:
            close(answers, requests, session)
        answered[row] = answers
        session[NOW_NS] = now_ns
    return len(group_of)


@inlined
def has_known_names(row: int, smalls: Array, fixed: Array) -> bool:
    """A message about an index doesn't show for the first time whose names the client uses."""
    if smalls[loops.PROTOCOL, row] == loops.INDEX_PARTITIONED:
        known = fixed[IMPLEMENTATION]
    else:
        known = fixed[SPECIFICATION] or not smalls[loops.HAS, row] & loops.HAS_PARTITION
    return bool(known)


@compiled
def take_request(
    row: int,
    what: int,
    about: int,
    number: Any,
    arrived_at_ns: Array,
    numbers: Array,
    requests: Array,
    lookup: Array,
    held: Array,
    session: Array,
    fixed: Array,
) -> bool:
    """A request waits from here on; False = there is no room, or one with its key waits already."""
    if session[OPEN_REQUESTS] >= fixed[MOST_OPEN] or number >= _WORD(BEYOND):
        return False
    place = place_of(what, about, number, lookup, held)
    if held[place] == AMBIGUOUS or (held[place] >= 0 and requests[held[place], OPEN]):
        return False
    request = session[COUNT]
    held[place] = request
    requests[request, ROW] = row
    requests[request, AT_NS] = arrived_at_ns[numbers[loops.PIECE, row]]
    requests[request, OPEN] = requests[request, WAITING] = 1
    requests[request, WHAT], requests[request, ABOUT] = what, about
    requests[request, ID] = wide(number)
    session[COUNT] += 1
    session[OPEN_REQUESTS] += 1
    return True


@compiled
def close(request: int, requests: Array, session: Array) -> None:
    """A request was answered."""
    requests[request, OPEN] = requests[request, WAITING] = 0
    session[OPEN_REQUESTS] -= 1
    if requests[request, HELD]:
        session[DATA_BYTES_HELD] -= requests[request, SIZE]


@compiled
def take_push(
    row: int,
    arrived_at_ns: Array,
    words: Array,
    numbers: Array,
    pair: int,
    pairs: Array,
    pair_runs: Array,
    requests: Array,
    lookup: Array,
    held: Array,
    session: Array,
    fixed: Array,
) -> bool:
    """A push; False = it isn't plain, and nothing was done."""
    number = words[loops.REQUEST_ID, row]
    if not pairs[pair, USABLE] or number >= _WORD(BEYOND) or holds(pair, wide(number), pairs, pair_runs):
        return False
    if request_of(UNSAVED, pair, number, requests, lookup, held) != _NOWHERE:
        return False
    if not take_request(row, PUSHED, pair, number, arrived_at_ns, numbers, requests, lookup, held, session, fixed):
        return False
    pairs[pair, LAST], pairs[pair, CHANGED] = NO_REQUEST, 1
    request, size = session[COUNT] - 1, wide(numbers[loops.DATA_BYTES, row])
    requests[request, SIZE] = size
    if session[DATA_BYTES_HELD] + size <= fixed[MOST_HELD]:
        requests[request, HELD] = 1
        session[DATA_BYTES_HELD] += size
    session[PUSHES] += 1
    return True


@compiled
def take_confirm(
    row: int,
    words: Array,
    smalls: Array,
    pair: int,
    stream: int,
    pairs: Array,
    pair_runs: Array,
    streams: Array,
    stream_runs: Array,
    requests: Array,
    lookup: Array,
    held: Array,
    fixed: Array,
) -> int:
    """A confirm: the request that it answers; below 0 = it isn't plain, and nothing was done."""
    number, index = words[loops.REQUEST_ID, row], words[loops.INDEX, row]
    if smalls[loops.STATUS, row] != 0 or not pairs[pair, USABLE] or not streams[stream, USABLE]:
        return _NOWHERE
    if not pairs[pair, HAS_SAVED]:
        return _NOWHERE
    if number >= _WORD(BEYOND) or index >= _WORD(BEYOND) or holds(pair, wide(number), pairs, pair_runs):
        return _NOWHERE
    if request_of(UNSAVED, pair, number, requests, lookup, held) != _NOWHERE:
        return _NOWHERE
    if wide(index) < streams[stream, HIGHEST] and not holds(stream, wide(index), streams, stream_runs):
        return _NOWHERE
    request = request_of(PUSHED, pair, number, requests, lookup, held)
    if request >= 0:
        pairs[pair, LAST] = request
        add(pair, wide(number), pairs, pair_runs, fixed[MOST_RUNS])
        streams[stream, HIGHEST] = max(streams[stream, HIGHEST], wide(index))
        add(stream, wide(index), streams, stream_runs, fixed[MOST_RUNS])
    return request


@compiled
def take_pulled(
    data: Array,
    row: int,
    words: Array,
    numbers: Array,
    pair: int,
    stream: int,
    streams: Array,
    requests: Array,
    lookup: Array,
    held: Array,
) -> int:
    """A pull response: the request that it answers; below 0 = it isn't plain."""
    if not streams[stream, USABLE]:
        return _NOWHERE
    request = request_of(PULLED, pair, words[loops.REQUEST_ID, row], requests, lookup, held)
    if request < 0 or _WORD(numbers[loops.MESSAGE_COUNT, row]) > _WORD(requests[request, MOST_MESSAGES]):
        return min(request, _NOWHERE)
    at, end = wide(numbers[loops.MESSAGES, row]), wide(numbers[loops.END, row])
    before = _WORD(requests[request, FROM_INDEX])
    for one in range(numbers[loops.MESSAGE_COUNT, row]):
        index, at = uint_at(data, at, end)
        if index < before or (one and index == before):
            return _NOWHERE
        before = index
        size, at = uint_length_at(data, at, end)
        at += size
    return request


@compiled
def take_save(row: int, words: Array, key: int, keys: Array) -> bool:
    """A saved index; False = it isn't plain, and nothing was done."""
    index = words[loops.INDEX, row]
    if not keys[key, IS_SAVED] or index >= _WORD(BEYOND):
        return False
    keys[key, LEAST], keys[key, KEY_CHANGED] = max(keys[key, LEAST], wide(index)), 1
    return True


@compiled
def take_index(
    row: int,
    words: Array,
    smalls: Array,
    asker: int,
    key: int,
    keys: Array,
    requests: Array,
    lookup: Array,
    held: Array,
) -> int:
    """An answer of the index service: the request that it answers; below 0 = it isn't plain, and nothing was done."""
    index = words[loops.INDEX, row]
    if not smalls[loops.HAS, row] & loops.HAS_INDEX or not keys[key, EXISTS] or index >= _WORD(BEYOND):
        return _NOWHERE
    request = request_of(GOT, asker, _WORD(0), requests, lookup, held)
    if request < 0 or requests[request, OF_KEY] != key or wide(index) < requests[request, FROM_INDEX]:
        return _NOWHERE
    keys[key, LEAST], keys[key, KEY_CHANGED] = max(keys[key, LEAST], wide(index)), 1
    return request
