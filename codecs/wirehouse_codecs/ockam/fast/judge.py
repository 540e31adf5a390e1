"""Plain messages of a session, taken by a compiled loop: the fast path of `session.Session.receive`.

A message is plain if the session finds nothing and ignores nothing, and knows of whom and what it is: a push or pull to
a known stream and its answer, an index that is asked for or saved by a known client. What they change is written back
to the session, so that either path continues from it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.ockam.fast import judge_loops, loops
from wirehouse_codecs.ockam.fast.columns import FRAME_FIELDS, Arrays, frame_columns
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.session import memory as memories
from wirehouse_codecs.ockam.session import requests as waiting
from wirehouse_codecs.ockam.session.memory import IndexKey, Role, short
from wirehouse_codecs.ockam.session.requests import Request, RequestKind, Where, digest
from wirehouse_codecs.ockam.session.session import Session
from wirehouse_codecs.ockam.wire.messages import Names
from wirehouse_codecs.ockam.wire.routed import Envelope

Array = np.ndarray[Any, Any]

#: Minimum number of messages that are taken at once.
FEWEST_AT_ONCE: Final = 256
#: Minimum mean number of messages per group: with fewer, compiled loops aren't worth it.
ROWS_A_GROUP: Final = 2
_ROUTES: Final = ("onward_route", "return_route")
_KINDS: Final = {
    RequestKind.PUSH: judge_loops.PUSHED,
    RequestKind.PULL: judge_loops.PULLED,
    RequestKind.GET: judge_loops.GOT,
}
#: No client's name.
_NOBODY: Final = 0
_FIELD_NAMES: Final = tuple(field.name for field in FRAME_FIELDS)
_COLUMNS: Final = (*_ROUTES, "client_id", "stream_name", "partition", "kind")


class Group(NamedTuple):
    """Messages of one requester with one address, and about one index."""

    #: The requester as the log has it, and as the session remembers it.
    requester: str
    asker: str
    #: The last hop on the side of the service; None = there is none.
    at: str | None
    key: IndexKey | None


class _Slots(dict[Any, int]):
    """Things, and what number each has, from 0 on."""

    def put(self, thing: Hashable) -> int:
        return self.setdefault(thing, len(self))


class Rows:
    """Frames in arrival order, as loops.read_frames returns them, in groups."""

    def __init__(
        self,
        data: Array,
        envelope: Envelope,
        arrays: Arrays,
        arrived_at_ns: Array,
        where: Callable[[int], Where],
    ) -> None:
        self.data, self.arrays = data, arrays
        #: When each piece arrived.
        self.arrived_at_ns = arrived_at_ns
        #: The place of a frame by its row.
        self.where = where
        self.group_of = np.empty(len(self), np.int32)
        firsts = np.empty(len(self), np.int32)
        table = np.full(_room(len(self)), -1, np.int32)
        count = judge_loops.group(data, *arrays, table, self.group_of, firsts)
        self.firsts = firsts[:count]
        self.worth = count * ROWS_A_GROUP <= len(self)
        self.groups = list(self._groups(envelope)) if self.worth else []
        #: By row: what it answers, as a row here, NO_REQUEST, or below that a number of `carried`; and its position in
        #: `stream_addresses` and `consumers`.
        self.answered = np.full(len(self), judge_loops.NO_REQUEST, np.int64)
        self.name_at = np.zeros(len(self), np.int32)
        #: By row: `Outcome.missed`.
        self.missed = np.zeros(len(self), np.int64)
        #: By row: the data that it pushed was held.
        self.held = np.zeros(len(self), np.bool_)
        #: Requests from before that were answered here.
        self.carried: list[Request] = []
        #: Stream addresses and consumers of the groups, once for each time that the loop was run.
        self.stream_addresses: list[str | None] = []
        self.consumers: list[str | None] = []

    def __len__(self) -> int:
        return int(self.arrays.words.shape[1])

    def _groups(self, envelope: Envelope) -> Iterator[Group]:
        of = self.arrays.only(self.firsts)
        columns = dict(zip(_FIELD_NAMES, frame_columns(self.data, of, envelope), strict=True))
        from_server = (of.smalls[loops.SIDE] == loops.FROM_SERVER).tolist()
        rows = zip(from_server, *(columns[name].to_pylist() for name in _COLUMNS), strict=True)
        for is_response, onward, back, client, name, partition, kind in rows:
            requester, address = (onward, back) if is_response else (back, onward)
            text = "=>".join(requester)
            key = None
            if kind.startswith("index"):
                key = short(client), short(name), None if partition is None else int(partition)
            # What is behind a node is left to the session.
            is_here = address and all(hop.startswith("0#") for hop in address[:-1])
            at = short(address[-1].removeprefix("0#")) if is_here else None
            yield Group(text, short(text), at, key)


class Plain:
    """Takes plain messages for `session`."""

    def __init__(self, session: Session, options: OckamOptions) -> None:
        self.session, self.memory = session, session.memory
        fixed = np.zeros(judge_loops.FIXED_NUMBERS, np.int64)
        fixed[judge_loops.TIMEOUT_NS] = options.answer_timeout_ns
        fixed[judge_loops.MOST_OPEN], fixed[judge_loops.MOST_HELD] = waiting.MOST_REQUESTS, waiting.MOST_DATA_BYTES
        fixed[judge_loops.MOST_RUNS] = memories.MOST_RUNS
        self._fixed = fixed
        #: Number of messages for which there is room; it grows while all are plain.
        self._at_once = FEWEST_AT_ONCE

    def cost(self, rows: Rows) -> int:
        """Minimum number of frames that make it worth while to begin."""
        return 16 + (len(rows.groups) + len(self.memory.requests) + len(self.memory.unsaved)) // 4

    def advance(self, rows: Rows, begin: int, held_back: Array) -> tuple[int, bool]:
        """Take the plain messages from row `begin` on, some at most: the row of the next frame, and whether it was not
        looked at."""
        end = min(len(rows), begin + self._at_once)
        state = _State(self.session, rows, begin, end)
        names = self.memory.names
        self._fixed[judge_loops.SPECIFICATION] = Names.SPECIFICATION in names
        self._fixed[judge_loops.IMPLEMENTATION] = Names.IMPLEMENTATION in names
        self._fixed[judge_loops.MISSED] = self.session.coverage.partial or bool(self.memory.undecoded)
        frames = judge_loops.Frames(rows.data, rows.arrived_at_ns, held_back, *rows.arrays, rows.group_of)
        row = int(judge_loops.advance(begin, end, frames, state.books(self._fixed), rows.answered))
        if row > begin:
            state.take(row)
        if row < end:
            self._at_once = FEWEST_AT_ONCE
        elif row == begin + self._at_once:
            self._at_once *= 4
        return row, row == end


class _State:
    """The session as arrays, as far as the groups of `rows` are about it; see judge_loops.py."""

    def __init__(self, session: Session, rows: Rows, begin: int, end: int) -> None:
        self._session, self._memory = session, session.memory
        self._rows, self._begin = rows, begin
        self._pairs, self._streams, self._askers, self._keys = _Slots(), _Slots(), _Slots(), _Slots()
        self._stream_addresses: list[str | None] = []
        self._consumers: list[str | None] = []
        groups = [self._group(group) for group in rows.groups]
        self.groups = np.array(groups, np.int64).reshape(-1, judge_loops.GROUP_NUMBERS)
        self._export_pairs()
        self._export_streams()
        self._export_keys()
        self._export_requests(end - begin)

    def _group(self, group: Group) -> list[int]:
        """A row of `groups`."""
        memory, (_, asker, at, key) = self._memory, group
        address, consumer = at, None
        row = [-1] * judge_loops.GROUP_NUMBERS
        if asker and at and asker in memory.requesters:
            row[judge_loops.PAIR] = self._pairs.put((asker, at))
            role = memory.roles.get(at, Role.STREAM if at in memory.streams else Role.UNKNOWN)
            if role is Role.STREAM and key is None:
                row[judge_loops.STREAM] = self._streams.put(at)
                stream = memory.streams[at]
                if stream.name is not None:
                    of = (stream.name, stream.partition)
                    consumer = memory.clients.get((asker, *of)) or memory.only_clients.get(of)
            if role is Role.INDEX_SERVICE and key is not None:
                client, name, partition = key
                of = (name, partition or 0)
                known = memory.clients.get((asker, *of)) == client
                known = known and (of in memory.addresses or of in memory.unplaced)
                row[judge_loops.REQUESTS] = known and memory.only_clients.get(of, _NOBODY) in (client, None)
                row[judge_loops.ASKER] = self._askers.put((asker, key))
                row[judge_loops.KEY] = self._keys.put((at, *key))
        if key is not None:
            address = memory.addresses.get((key[1], key[2] or 0))
        self._stream_addresses.append(address)
        self._consumers.append(consumer)
        return row

    def _export_pairs(self) -> None:
        self.pairs = np.zeros((len(self._pairs), judge_loops.PAIR_NUMBERS), np.int64)
        self.pair_runs = _runs(len(self._pairs))
        self.pairs[:, judge_loops.LAST] = judge_loops.LAST_BEFORE
        self.pairs[:, judge_loops.USABLE] = 1
        for slot, pair in enumerate(self._pairs):
            saved = self._memory.saved.get(pair)
            if saved is not None:
                self.pairs[slot, judge_loops.HAS_SAVED] = 1
                _export(saved.ids, slot, self.pairs, self.pair_runs)

    def _export_streams(self) -> None:
        memory = self._memory
        self.streams = np.zeros((len(self._streams), judge_loops.STREAM_NUMBERS), np.int64)
        self.stream_runs = _runs(len(self._streams))
        for slot, at in enumerate(self._streams):
            stream = memory.streams[at]
            pulled = None if stream.name is None else memory.pulled.get(stream.name)
            state = self.streams[slot]
            state[judge_loops.HIGHEST] = -1
            state[judge_loops.IS_PULLED] = stream.name is None or (pulled is not None and stream.partition in pulled)
            if stream.replaced or (stream.highest or 0) >= judge_loops.BEYOND:
                continue
            state[judge_loops.USABLE] = 1
            if stream.highest is not None:
                state[judge_loops.HIGHEST] = stream.highest
            _export(stream.confirmed, slot, self.streams, self.stream_runs)

    def _export_keys(self) -> None:
        self.keys = np.zeros((len(self._keys), judge_loops.KEY_NUMBERS), np.int64)
        for slot, key in enumerate(self._keys):
            known = self._memory.keys.get(key)
            least = -1 if known is None or known.least is None else known.least
            usable = known is not None and least < judge_loops.BEYOND
            self.keys[slot, judge_loops.EXISTS] = usable
            self.keys[slot, judge_loops.IS_SAVED] = usable and known is not None and known.saved_at is not None
            # A GetIndex for what isn't known yet is plain.
            self.keys[slot, judge_loops.LEAST] = min(least, judge_loops.BEYOND)

    def _export_requests(self, new: int) -> None:
        memory = self._memory
        self._before = list(memory.requests)
        requests = self.requests = np.zeros((len(self._before) + new, judge_loops.REQUEST_NUMBERS), np.int64)
        if self._before:
            requests[: len(self._before)] = [self._request(request) for request in self._before]
        requests[memory.requests.passed : len(self._before), judge_loops.WAITING] = 1
        unsaved = [
            (pair, number)
            for (*whose, number) in memory.unsaved
            if number < judge_loops.BEYOND and (pair := self._pairs.get(tuple(whose), -1)) >= 0
        ]
        places = _room(len(requests) + len(unsaved))
        self.lookup, self.held = np.empty((2, places), np.uint64), np.empty(places, np.int32)
        ids = np.array(unsaved, np.uint64).reshape(-1, 2).T
        judge_loops.fill(requests, len(self._before), np.ascontiguousarray(ids), self.lookup, self.held)
        self.numbers = np.zeros(judge_loops.SESSION_NUMBERS, np.int64)
        self.numbers[judge_loops.NOW_NS] = self._session.now_ns
        self.numbers[judge_loops.COUNT] = self.numbers[judge_loops.OPEN_REQUESTS] = len(self._before)
        self.numbers[judge_loops.DATA_BYTES_HELD] = memory.requests.data_bytes

    def _request(self, request: Request) -> list[int]:
        """A row of `requests`."""
        what, about, of_key, number = _KINDS.get(request.kind, 0), -1, -1, request.request_id or 0
        first = request.index or 0
        if request.kind is RequestKind.GET:
            assert request.key is not None
            first = -1 if request.least is None else min(request.least, judge_loops.BEYOND)
            about = self._askers.get((request.requester, request.key), -1)
            of_key = self._keys.get((request.target, *request.key), -1)
        elif request.kind in _KINDS and number < judge_loops.BEYOND:
            about = self._pairs.get((request.requester, request.target), -1)
        return [
            *(judge_loops.NO_REQUEST, request.where.place.arrived_at_ns),
            *(_signed(first), _signed(request.limit or 0), request.data_bytes or 0, request.data is not None),
            *(1, 0, about, of_key, what, number if number < judge_loops.BEYOND else 0),
        ]

    def books(self, fixed: Array) -> judge_loops.Books:
        """All of it, with what doesn't change."""
        return judge_loops.Books(
            self.groups, self.pairs, self.pair_runs, self.streams, self.stream_runs, self.keys,
            self.requests, self.lookup, self.held, self.numbers, fixed,
        )  # fmt: skip

    # Back to the session

    def take(self, row: int) -> None:
        """The session after all rows before `row`."""
        memory, numbers = self._memory, self.numbers
        self._take_answers(row)
        for name, count in zip(judge_loops.COUNTED, numbers.tolist(), strict=False):
            setattr(memory.counts, name, getattr(memory.counts, name) + count)
        self._session.now_ns = int(numbers[judge_loops.NOW_NS])
        self._take_pairs()
        self._take_streams()
        for slot, key in enumerate(self._keys):
            if self.keys[slot, judge_loops.KEY_CHANGED]:
                memory.keys[key].least = int(self.keys[slot, judge_loops.LEAST])
        count = int(numbers[judge_loops.COUNT])
        is_open = self.requests[:count, judge_loops.OPEN] != 0
        for number in np.flatnonzero(~is_open[: len(self._before)]).tolist():
            memory.requests.remove(self._before[number])
        for number in np.flatnonzero(is_open[len(self._before) :]).tolist():
            memory.requests.put(self._new_request(len(self._before) + number))

    def _take_answers(self, row: int) -> None:
        """Note what the rows up to `row` answer, and what they are about."""
        rows, span = self._rows, slice(self._begin, row)
        numbers = rows.answered[span]
        count = len(self._before)
        sources = self.requests[:, judge_loops.ROW].copy()
        answered = np.flatnonzero(self.requests[:count, judge_loops.OPEN] == 0)
        sources[answered] = judge_loops.NO_REQUEST - 1 - len(rows.carried) - np.arange(len(answered))
        rows.carried += [self._before[number] for number in answered.tolist()]
        rows.answered[span] = np.where(numbers < 0, judge_loops.NO_REQUEST, sources[numbers])
        new = self.requests[count : int(self.numbers[judge_loops.COUNT])]
        rows.held[new[:, judge_loops.ROW]] = new[:, judge_loops.HELD] != 0
        rows.missed[span] = self._session.coverage.missed
        rows.name_at[span] = rows.group_of[span] + len(rows.stream_addresses)
        rows.stream_addresses += self._stream_addresses
        rows.consumers += self._consumers

    def _take_pairs(self) -> None:
        for slot, pair in enumerate(self._pairs):
            saved = self._memory.saved.get(pair)
            if saved is None or not self.pairs[slot, judge_loops.CHANGED]:
                continue
            last = int(self.pairs[slot, judge_loops.LAST])
            if last == judge_loops.NO_REQUEST:
                saved.last = None
            elif last >= 0:
                saved.last = int(self.requests[last, judge_loops.ID]), self._digest(last)
            _import(saved.ids, slot, self.pairs, self.pair_runs)

    def _take_streams(self) -> None:
        for slot, at in enumerate(self._streams):
            if self.streams[slot, judge_loops.CHANGED]:
                stream = self._memory.streams[at]
                stream.highest = int(self.streams[slot, judge_loops.HIGHEST])
                _import(stream.confirmed, slot, self.streams, self.stream_runs)

    def _data(self, number: int) -> bytes:
        """The data that was pushed in this run."""
        row, numbers = self.requests[number, judge_loops.ROW], self._rows.arrays.numbers
        begin = int(numbers[loops.DATA, row])
        return bytes(self._rows.data[begin : begin + int(numbers[loops.DATA_BYTES, row])])

    def _digest(self, number: int) -> bytes:
        return self._before[number].digest if number < len(self._before) else digest(self._data(number))

    def _new_request(self, number: int) -> Request:
        fields = self.requests[number]
        row = int(fields[judge_loops.ROW])
        group = self._rows.groups[self._rows.group_of[row]]
        assert group.at is not None
        about = self._rows.where(row), group.asker, group.at
        words = self._rows.arrays.words[:, row]
        request_id = int(words[loops.REQUEST_ID])
        match int(fields[judge_loops.WHAT]):
            case judge_loops.PUSHED:
                data = self._data(number)
                request = Request(RequestKind.PUSH, *about, request_id=request_id, data_bytes=len(data))
                request.digest = digest(data)
                request.data = data if fields[judge_loops.HELD] else None
            case judge_loops.PULLED:
                index, limit = int(words[loops.INDEX]), int(words[loops.LIMIT])
                request = Request(RequestKind.PULL, *about, request_id=request_id, index=index, limit=limit)
            case _:
                least = int(fields[judge_loops.FROM_INDEX])
                request = Request(RequestKind.GET, *about, key=group.key, least=None if least < 0 else least)
        return request


def _room(entries: int) -> int:
    """Number of slots of a table of `entries` entries: a power of two, and at least twice as many."""
    return 1 << (2 * entries + 1).bit_length()


def _signed(word: int) -> int:
    """64 bits as a signed number."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _runs(slots: int) -> Array:
    """Room for `slots` sets, with one run more than they keep."""
    return np.zeros((slots, 2, memories.MOST_RUNS + 1), np.int64)


def _export(numbers: Intervals, slot: int, sets: Array, runs: Array) -> None:
    """A set as arrays; what has too large numbers is left to the session."""
    held = list(numbers)
    if held and held[-1].last >= judge_loops.BEYOND:
        sets[slot, judge_loops.USABLE] = 0
        return
    sets[slot, judge_loops.FLOOR], sets[slot, judge_loops.RUNS] = numbers.floor, len(held)
    if held:
        runs[slot, :, : len(held)] = np.array(held, np.int64).T


def _import(numbers: Intervals, slot: int, sets: Array, runs: Array) -> None:
    firsts, lasts = runs[slot, :, : sets[slot, judge_loops.RUNS]].tolist()
    numbers.replace(firsts, lasts, int(sets[slot, judge_loops.FLOOR]))
