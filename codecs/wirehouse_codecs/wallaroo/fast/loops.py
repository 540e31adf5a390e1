"""Compiled loops over the frames of a connection: cut them, read them, judge plain ones.

messages.py defines the meaning of each frame, session.py its effect. The loops have the frequent cases. A frame that
they don't read has `regular` 0, and one that they don't judge ends `advance`: the reference path takes both.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wirehouse_codecs.compiled.jit import compiled, inlined, wide

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

#: Layouts of a MESSAGE.
TEXT, TEXT_WITH_STREAM, FLAGGED, PLAIN = range(4)

#: The end of `cut`: no whole frame is left, or a length that no frame has.
WAITS, LOST = range(2)

#: Kinds that are read here, in the order of messages.KINDS; OTHER is any else.
NOTIFY, NOTIFY_ACK, MESSAGE, ACK, EOS_MESSAGE = 3, 4, 5, 6, 9
OTHER: Final = 255

#: 64 bits of a frame, as rows of `words`.
STREAM_ID, MESSAGE_ID, REFERENCE, EVENT_TIME = range(4)
WORDS = 4
#: 32 bits, as rows of `numbers`: its begin and end, the begin and size of its parts; GRANTED_BY is the number of
#: credits that it grants.
BEGIN, END, KEY, KEY_BYTES, PAYLOAD, PAYLOAD_BYTES, NAME, NAME_BYTES, PAIRS, PAIR_COUNT = range(10)
CREDITS, PIECE, GRANTED_BY = range(10, 13)
NUMBERS = 13
#: The parts that a frame has, as bits of `has`. STREAM_ID to EVENT_TIME are 1 << their row.
HAS_KEY, HAS_PAYLOAD, HAS_FLAGS = 16, 32, 64
_HAS_STREAM, _HAS_ID, _HAS_REFERENCE, _HAS_TIME = 1, 2, 4, 8
#: Small numbers, as rows of `smalls`. The session adds the credits that the frame takes, whether the balance after it
#: is known, and whether STREAM_ID is the stream to which it attributes the frame, even if the frame names none.
KIND, REGULAR, SIDE, HAS, FLAGS, SUCCESS, SPENT_BY, BALANCED_BY, ATTRIBUTED = range(9)
SMALLS = 9
CLIENT, SERVER = 0, 1

#: messages.Flag, as plain numbers.
_EPHEMERAL, _BOUNDARY, _EOS, _UNSTABLE, _EVENT_TIME, _KEY = 1, 2, 4, 8, 16, 32

LENGTH_BYTES, PAIR_BYTES = 4, 16


@inlined
def word_at(data: Array, at: int, little: bool) -> Any:
    """The unsigned 64-bit number at `at`."""
    a, b, c, d = _WORD(data[at]), _WORD(data[at + 1]), _WORD(data[at + 2]), _WORD(data[at + 3])
    e, f, g, h = _WORD(data[at + 4]), _WORD(data[at + 5]), _WORD(data[at + 6]), _WORD(data[at + 7])
    if little:
        a, b, c, d, e, f, g, h = h, g, f, e, d, c, b, a
    high = a << _WORD(24) | b << _WORD(16) | c << _WORD(8) | d
    return high << _WORD(32) | e << _WORD(24) | f << _WORD(16) | g << _WORD(8) | h


@inlined
def half_at(data: Array, at: int, little: bool) -> int:
    """The unsigned 32-bit number at `at`."""
    a, b, c, d = wide(data[at]), wide(data[at + 1]), wide(data[at + 2]), wide(data[at + 3])
    if little:
        a, b, c, d = d, c, b, a
    return a << 24 | b << 16 | c << 8 | d


@inlined
def short_at(data: Array, at: int, little: bool) -> int:
    """The unsigned 16-bit number at `at`."""
    a, b = wide(data[at]), wide(data[at + 1])
    return b << 8 | a if little else a << 8 | b


# Frames


@compiled
def cut(data: Array, at: int, end: int, little: bool, limit: int, bounds: Array) -> tuple[int, int]:
    """Number of whole frames from `at` to `end`, and WAITS or LOST. `bounds` gets `at` and the end of each frame."""
    frames = 0
    bounds[0] = at
    while end - at >= LENGTH_BYTES:
        length = half_at(data, at, little)
        if length == 0 or length > limit:
            return frames, LOST
        at += LENGTH_BYTES + length
        if at > end:
            break
        frames += 1
        bounds[frames] = at
    return frames, WAITS


@compiled
def read_frames(
    data: Array, little: bool, layout: int, kinds: Array, words: Array, numbers: Array, smalls: Array
) -> None:
    """Read all frames whose BEGIN and END are in `numbers`; `kinds` has the kind of each tag. The rest is zeros."""
    for row in range(numbers.shape[1]):
        at, end = wide(numbers[BEGIN, row]) + LENGTH_BYTES, wide(numbers[END, row])
        kind = kinds[data[at]]
        smalls[KIND, row] = kind
        at += 1
        if kind == MESSAGE:
            if layout == PLAIN:
                regular = read_plain(data, at, end, row, words, numbers, smalls)
            elif layout == FLAGGED:
                regular = read_flagged(data, at, end, row, words, numbers, smalls)
            else:
                regular = read_text(data, at, end, layout, row, words, numbers, smalls)
        elif kind == ACK:
            regular = read_ack(data, at, end, little, row, numbers)
        elif kind == NOTIFY:
            regular = read_notify(data, at, end, little, row, words, numbers, smalls)
        elif kind == NOTIFY_ACK:
            regular = end - at == 17
            if regular:
                smalls[SUCCESS, row] = data[at]
                words[STREAM_ID, row], words[REFERENCE, row] = (
                    word_at(data, at + 1, little),
                    word_at(data, at + 9, little),
                )
                smalls[HAS, row] = _HAS_STREAM | _HAS_REFERENCE
        elif kind == EOS_MESSAGE:
            regular = end - at == 8
            if regular:
                words[STREAM_ID, row] = word_at(data, at, little)
                smalls[HAS, row] = _HAS_STREAM
        else:
            regular = False
        smalls[REGULAR, row] = regular


@compiled
def read_plain(data: Array, at: int, end: int, row: int, words: Array, numbers: Array, smalls: Array) -> bool:
    """Read a MESSAGE without flags, from behind its tag on; False = it breaks a rule of decoding, and isn't read."""
    if end - at < 26:
        return False
    key = at + 26
    key_bytes = short_at(data, at + 24, False)
    if key_bytes > end - key:
        return False
    words[STREAM_ID, row] = word_at(data, at, False)
    words[MESSAGE_ID, row] = word_at(data, at + 8, False)
    words[EVENT_TIME, row] = word_at(data, at + 16, False)
    put_part(numbers, KEY, row, key, key_bytes)
    put_part(numbers, PAYLOAD, row, key + key_bytes, end - key - key_bytes)
    smalls[HAS, row] = _HAS_STREAM | _HAS_ID | _HAS_TIME | HAS_PAYLOAD | (HAS_KEY if key_bytes else 0)
    return True


@inlined
def put_part(numbers: Array, part: int, row: int, at: int, size: int) -> None:
    """Note the begin and the size of a part of a frame."""
    numbers[part, row] = at
    numbers[part + 1, row] = size


@compiled
def read_flagged(data: Array, at: int, end: int, row: int, words: Array, numbers: Array, smalls: Array) -> bool:
    """Read a MESSAGE with flags, as it was implemented; False as in `read_plain`."""
    if end - at < 9:
        return False
    stream, flags = at, wide(data[at + 8])
    at += 9
    message = at
    at += 0 if flags & _EPHEMERAL else 8
    time = at
    at += 8 if flags & _EVENT_TIME else 0
    key_bytes = 0
    if flags & _KEY:
        at += 2
        if at > end:
            return False
        key_bytes = short_at(data, at - 2, False)
    payload = at + key_bytes
    if payload > end or (flags & _BOUNDARY and payload < end):
        return False
    has = _HAS_STREAM | HAS_FLAGS
    words[STREAM_ID, row] = word_at(data, stream, False)
    smalls[FLAGS, row] = flags
    if not flags & _EPHEMERAL:
        has |= _HAS_ID
        words[MESSAGE_ID, row] = word_at(data, message, False)
    if flags & _EVENT_TIME:
        has |= _HAS_TIME
        words[EVENT_TIME, row] = word_at(data, time, False)
    if flags & _KEY:
        has |= HAS_KEY
        put_part(numbers, KEY, row, at, key_bytes)
    if not flags & _BOUNDARY:
        has |= HAS_PAYLOAD
        put_part(numbers, PAYLOAD, row, payload, end - payload)
    smalls[HAS, row] = has
    return True


@compiled
def read_text(
    data: Array, at: int, end: int, layout: int, row: int, words: Array, numbers: Array, smalls: Array
) -> bool:
    """Read a MESSAGE of the text; False as in `read_plain`. A boundary ends with its id, whatever its other flags."""
    stream = at
    at += 8 if layout == TEXT_WITH_STREAM else 0
    if end - at < 10:
        return False
    flags = short_at(data, at, True)
    message = at + 2
    payload = at + 10
    timed = bool(flags & _EVENT_TIME and not flags & _BOUNDARY)
    payload += 8 if timed else 0
    if payload > end:
        return False
    has = _HAS_ID | HAS_FLAGS
    if layout == TEXT_WITH_STREAM:
        has |= _HAS_STREAM
        words[STREAM_ID, row] = word_at(data, stream, True)
    smalls[FLAGS, row] = flags
    words[MESSAGE_ID, row] = word_at(data, message, True)
    if timed:
        has |= _HAS_TIME
        words[EVENT_TIME, row] = word_at(data, payload - 8, True)
    if payload < end or not flags & _BOUNDARY:
        has |= HAS_PAYLOAD
        put_part(numbers, PAYLOAD, row, payload, end - payload)
    smalls[HAS, row] = has
    return True


@compiled
def read_ack(data: Array, at: int, end: int, little: bool, row: int, numbers: Array) -> bool:
    """Read an ACK, whose pairs are counted or fill the frame; False as in `read_plain`."""
    head = 4 if little else 8
    pairs = end - at - head
    if pairs < 0 or pairs % PAIR_BYTES or (not little and half_at(data, at + 4, little) * PAIR_BYTES != pairs):
        return False
    numbers[CREDITS, row] = half_at(data, at, little)
    put_part(numbers, PAIRS, row, at + head, pairs // PAIR_BYTES)
    return True


@compiled
def read_notify(
    data: Array, at: int, end: int, little: bool, row: int, words: Array, numbers: Array, smalls: Array
) -> bool:
    """Read a NOTIFY: stream id, name, point of reference; False as in `read_plain`."""
    if end - at < 18:
        return False
    size = short_at(data, at + 8, little)
    if end - at != 18 + size:
        return False
    words[STREAM_ID, row], words[REFERENCE, row] = word_at(data, at, little), word_at(data, end - 8, little)
    put_part(numbers, NAME, row, at + 10, size)
    smalls[HAS, row] = _HAS_STREAM | _HAS_REFERENCE
    return True


@compiled
def pair_words(data: Array, starts: Array, offsets: Array, little: bool, streams: Array, ids: Array) -> None:
    """Read the pairs of all ACKs; `offsets` has the first pair of each."""
    for i in range(len(starts)):
        at = wide(starts[i])
        for pair in range(offsets[i], offsets[i + 1]):
            streams[pair], ids[pair] = word_at(data, at, little), word_at(data, at + 8, little)
            at += PAIR_BYTES


# The session

#: A stream as columns of `states`. The part of `ids` that it holds, the end of its room, and its counts:
START, STOP, LIMIT, MESSAGES, ACKED_AT, FORGOTTEN_UNACKED = range(6)
#: Whether it takes messages, takes acks, may have sent ids that aren't known, and has rising ids, which are in `ids`:
OPEN, NOTIFIED, LENIENT, RISING = range(6, 10)
#: Whether it has each of the words, whether it was changed, and the row of the ACK that names it:
SEEN, SENT, FORGOTTEN, REFERRED, EVER_ACKED, ACKED, CHANGED, NAMED_BY = range(10, 18)
#: Arrival of the oldest message that was forgotten unacked.
FORGOTTEN_NS = 18
STATES = 19
#: Words of a stream, as columns of `marks`.
LAST_SEEN, FIRST_ID, LAST_ID, HIGHEST_ID, LAST_ACKED, FORGOTTEN_LOW, FORGOTTEN_HIGH, REFERRED_TO = range(8)
#: Id of the oldest message that was forgotten unacked.
FORGOTTEN_WAITING = 8
STREAM_WORDS = 9
#: Numbers of the session. BALANCED: whether its credits are known. DRY: the row that took the last credit, -1 if none
#: did, DRY_BEFORE if it came before; DRY_NS is its time.
BALANCE, BALANCED, GRANTED, SPENT, IDS, DRY, DRY_NS, ONLY_STREAM = range(8)
SESSION_NUMBERS = 8
DRY_BEFORE: Final = -2
#: Constant numbers of the dialect, and the limits.
SINK, TEXTUAL, HAS_NO_FLAGS, BAD_FLAGS, MOST_IDS, KEPT, DRY_FOR_NS, HAS_NOTHING_SEEN = range(8)
FIXED_NUMBERS = 8

#: messages.NOTHING_SEEN, where the dialect has it.
_NOTHING_SEEN: Any = np.uint64((1 << 64) - 1)
_NO_WORD: Any = np.uint64(0)
#: Pairs of flags that exclude one another where they were implemented.
_EXCLUSIVE: Final = ((1 | 2), (1 | 8), (2 | 8), (2 | 32))


@compiled
def slot_of(streams: Array, stream_id: Any) -> int:
    """The index of a stream id in `streams`, which rise; -1 if it isn't there."""
    low, high = 0, len(streams)
    while low < high:
        middle = (low + high) // 2
        if streams[middle] < stream_id:
            low = middle + 1
        else:
            high = middle
    return low if low < len(streams) and streams[low] == stream_id else -1


@compiled
def place_of(ids: Array, start: int, stop: int, message_id: Any) -> int:
    """The index of a message id in `ids`, which rise from `start` to `stop`; -1 if it isn't there."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < message_id:
            low = middle + 1
        else:
            high = middle
    return low if low < stop and ids[low] == message_id else -1


@inlined
def stream_of(slot: int, row: int, words: Array, smalls: Array, streams: Array, only: int) -> int:
    """The index of a MESSAGE's stream, -1 if it has none; `slot` is that of the MESSAGE before, mostly the same."""
    if not smalls[HAS, row] & _HAS_STREAM:
        return only
    if slot >= 0 and streams[slot] == words[STREAM_ID, row]:
        return slot
    return slot_of(streams, words[STREAM_ID, row])


@compiled
def count_messages(words: Array, smalls: Array, streams: Array, only: int, begin: int, end: int, counts: Array) -> None:
    """Count the MESSAGEs from `begin` to `end` of each stream; `only` is the stream of those that name none."""
    slot = -1
    for row in range(begin, end):
        if smalls[KIND, row] == MESSAGE and smalls[REGULAR, row]:
            slot = stream_of(slot, row, words, smalls, streams, only)
            if slot >= 0:
                counts[slot] += 1


@compiled
def change_balance(session: Array, granted: int, spent: int, row: int, now_ns: int) -> None:
    """Add and take credits; without one left the connector waits from this row on."""
    session[GRANTED] += granted
    session[SPENT] += spent
    if not session[BALANCED] or not (granted or spent):
        return
    session[BALANCE] += granted - spent
    if granted:
        session[DRY] = -1
    if session[BALANCE] <= 0:
        session[DRY], session[DRY_NS] = row, now_ns


@compiled
def advance(
    data: Array,
    arrived_at_ns: Array,
    begin: int,
    end: int,
    words: Array,
    numbers: Array,
    smalls: Array,
    streams: Array,
    states: Array,
    marks: Array,
    ids: Array,
    ats: Array,
    id_marks: Array,
    times: Array,
    session: Array,
    fixed: Array,
    balances: Array,
) -> int:
    """Take the plain frames from row `begin` on: the row of the first that isn't, for which nothing is done, or `end`.

    A frame is plain if session.Session.receive finds nothing, ignores nothing and moves no machine.
    """
    slot = -1
    for row in range(begin, end):
        now_ns = arrived_at_ns[numbers[PIECE, row]]
        if not smalls[REGULAR, row] or (session[DRY] != -1 and now_ns - session[DRY_NS] > fixed[DRY_FOR_NS]):
            return row
        kind, side = smalls[KIND, row], smalls[SIDE, row]
        if not fixed[SINK]:
            if kind == MESSAGE and side == CLIENT:
                slot = stream_of(slot, row, words, smalls, streams, session[ONLY_STREAM])
                if slot < 0 or (session[BALANCED] and session[BALANCE] <= 0):
                    return row
                if not take_message(
                    slot, row, now_ns, words, smalls, states, marks, ids, ats, id_marks, times, session, fixed
                ):
                    return row
                words[STREAM_ID, row] = streams[slot]
                smalls[SPENT_BY, row] = smalls[ATTRIBUTED, row] = 1
                change_balance(session, 0, 1, row, now_ns)
            elif kind == ACK and side == SERVER:
                if not take_ack(data, row, numbers, streams, states, marks, ids, ats, id_marks, session, fixed):
                    return row
                numbers[GRANTED_BY, row] = numbers[CREDITS, row]
                change_balance(session, wide(numbers[CREDITS, row]), 0, row, now_ns)
            else:
                return row
        balances[row], smalls[BALANCED_BY, row] = session[BALANCE], session[BALANCED]
    return end


@compiled
def has_plain_flags(flags: int, has: int, fixed: Array) -> bool:
    """Whether the flags of a MESSAGE have no effect beyond that of take_message."""
    if flags & (fixed[BAD_FLAGS] | _EOS):
        return False
    if fixed[TEXTUAL]:
        return not flags & _EPHEMERAL and not (flags & _BOUNDARY and has & HAS_PAYLOAD)
    excluded = False
    for pair in _EXCLUSIVE:
        excluded |= flags & pair == pair
    return not excluded


@compiled
def take_message(
    slot: int,
    row: int,
    now_ns: int,
    words: Array,
    smalls: Array,
    states: Array,
    marks: Array,
    ids: Array,
    ats: Array,
    id_marks: Array,
    times: Array,
    session: Array,
    fixed: Array,
) -> bool:
    """Take a MESSAGE of its stream; False = it isn't plain, and nothing was done."""
    flags = wide(smalls[FLAGS, row])
    if not states[slot, OPEN] or not has_plain_flags(flags, wide(smalls[HAS, row]), fixed):
        return False
    if not smalls[HAS, row] & _HAS_ID:
        states[slot, MESSAGES] += 1
        states[slot, CHANGED] = 1
        return True
    message_id, stop = words[MESSAGE_ID, row], states[slot, STOP]
    if not states[slot, RISING] or stop == states[slot, LIMIT]:
        return False
    if stop > states[slot, START] and message_id <= ids[stop - 1]:
        return False
    if not fixed[TEXTUAL]:
        if says_nothing(message_id, fixed) or (message_id == _NO_WORD and not fixed[HAS_NO_FLAGS]):
            return False
        if states[slot, SEEN] and message_id <= marks[slot, LAST_SEEN]:
            return False
        states[slot, SEEN] = 1
        marks[slot, LAST_SEEN] = message_id
    if not states[slot, SENT]:
        states[slot, SENT] = 1
        marks[slot, FIRST_ID] = message_id
    marks[slot, LAST_ID] = message_id
    if message_id > marks[slot, HIGHEST_ID]:
        marks[slot, HIGHEST_ID] = message_id
    states[slot, CHANGED] = 1
    states[slot, MESSAGES] += 1
    awaited = fixed[TEXTUAL] or not flags & _BOUNDARY
    ids[stop], ats[stop], times[stop] = message_id, states[slot, MESSAGES], now_ns
    id_marks[stop] = (1 if awaited else 0) | (2 if flags & _UNSTABLE else 0)
    states[slot, STOP] = stop + 1
    session[IDS] += 1
    if session[IDS] > fixed[MOST_IDS]:
        session[IDS] -= forget_half(slot, states, marks, ids, id_marks, times)
    return True


@inlined
def says_nothing(reference: Any, fixed: Array) -> bool:
    """Whether it is the reference for "nothing was seen yet"."""
    return bool(fixed[HAS_NOTHING_SEEN]) and reference == _NOTHING_SEEN


@compiled
def forget_half(slot: int, states: Array, marks: Array, ids: Array, id_marks: Array, times: Array) -> int:
    """Drop the older half of a stream's ids, like streams.Stream.forget. Return their number."""
    start = states[slot, START]
    kept_from = start + (states[slot, STOP] - start + 1) // 2
    for place in range(start, kept_from):
        if id_marks[place] & 1 and not states[slot, FORGOTTEN_UNACKED]:
            marks[slot, FORGOTTEN_WAITING], states[slot, FORGOTTEN_NS] = ids[place], times[place]
        states[slot, FORGOTTEN_UNACKED] += id_marks[place] & 1
    states[slot, START] = kept_from
    return wide(kept_from - start)


@compiled
def take_ack(
    data: Array,
    row: int,
    numbers: Array,
    streams: Array,
    states: Array,
    marks: Array,
    ids: Array,
    ats: Array,
    id_marks: Array,
    session: Array,
    fixed: Array,
) -> bool:
    """Take an ACK of its streams; False = it isn't plain, and nothing was done."""
    begin = wide(numbers[PAIRS, row])
    end = begin + PAIR_BYTES * wide(numbers[PAIR_COUNT, row])
    little = bool(fixed[TEXTUAL])
    for at in range(begin, end, PAIR_BYTES):
        slot = slot_of(streams, word_at(data, at, little))
        if slot < 0 or not states[slot, NOTIFIED] or states[slot, NAMED_BY] == row:
            return False
        states[slot, NAMED_BY] = row
        if not is_plain_ack(slot, word_at(data, at + 8, little), states, marks, ids, ats, id_marks, fixed):
            return False
    for at in range(begin, end, PAIR_BYTES):
        slot, message_id = slot_of(streams, word_at(data, at, little)), word_at(data, at + 8, little)
        if not says_nothing(message_id, fixed):
            session[IDS] -= ack_id(slot, message_id, states, marks, ids, ats, fixed)
    return True


@compiled
def is_plain_ack(
    slot: int, message_id: Any, states: Array, marks: Array, ids: Array, ats: Array, id_marks: Array, fixed: Array
) -> bool:
    """Whether an ack goes forward, or is about an id that may not be of this connection."""
    textual = bool(fixed[TEXTUAL])
    if says_nothing(message_id, fixed):
        return True
    if not states[slot, RISING]:
        return False
    place = place_of(ids, states[slot, START], states[slot, STOP], message_id)
    if place >= 0:
        return ats[place] >= states[slot, ACKED_AT] and not (textual and id_marks[place] & 2)
    if states[slot, FORGOTTEN] and marks[slot, FORGOTTEN_LOW] <= message_id <= marks[slot, FORGOTTEN_HIGH]:
        return False
    if states[slot, FORGOTTEN_UNACKED] or states[slot, LENIENT]:
        return True
    if not states[slot, REFERRED]:
        return False
    reference = marks[slot, REFERRED_TO]
    return message_id == reference or (not textual and message_id < reference and not says_nothing(reference, fixed))


@compiled
def ack_id(slot: int, message_id: Any, states: Array, marks: Array, ids: Array, ats: Array, fixed: Array) -> int:
    """Ack an id, and with it all before. Return the number of ids that are forgotten."""
    start = states[slot, START]
    place = place_of(ids, start, states[slot, STOP], message_id)
    if place < 0:
        rises = not fixed[TEXTUAL] and (not states[slot, ACKED] or message_id > marks[slot, LAST_ACKED])
        if message_id != _NO_WORD and (states[slot, ACKED_AT] < 0 or rises):
            states[slot, CHANGED] = states[slot, ACKED] = 1
            marks[slot, LAST_ACKED] = message_id
        return 0
    states[slot, CHANGED] = states[slot, EVER_ACKED] = states[slot, ACKED] = 1
    states[slot, ACKED_AT], states[slot, FORGOTTEN_UNACKED] = ats[place], 0
    marks[slot, LAST_ACKED] = message_id
    kept_from = place + 1 - fixed[KEPT]
    if kept_from <= start:
        return 0
    low, high = ids[start], ids[kept_from - 1]
    if states[slot, FORGOTTEN]:
        low, high = min(low, marks[slot, FORGOTTEN_LOW]), max(high, marks[slot, FORGOTTEN_HIGH])
    marks[slot, FORGOTTEN_LOW], marks[slot, FORGOTTEN_HIGH], states[slot, FORGOTTEN] = low, high, 1
    states[slot, START] = kept_from
    return wide(kept_from - start)
