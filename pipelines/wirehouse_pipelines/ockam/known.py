"""What single rows of the log don't show: hosts of clients, states of connections, addresses of names, missing bytes.

`known` runs two stages before those of gold. One returns the addresses that names were given, where that matters. The
other returns the clients' hosts whose connections lack bytes. Tasks get both with their input. They also read which
state the connections of a file's window are in (`Connections`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE
from wirehouse_codecs.ockam.correlation.streams import Fold
from wirehouse_codecs.ockam.log.log import SESSION
from wirehouse_codecs.ockam.wire.messages import Kind
from wirehouse_pipelines.delta import delta_tables, spark_tables, table_reader
from wirehouse_pipelines.delta.batches import pieces_of
from wirehouse_pipelines.delta.spark_tables import File
from wirehouse_pipelines.jobs import services, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.stages import Input, Order, Stage
from wirehouse_pipelines.tables import all_tables

LOG: Final = "silver.ockam"
STATE: Final = "gold.ockam_state"

CREATED: Final = pa.array([Kind.CREATE_RESPONSE, Kind.CREATE_PARTITIONED_RESPONSE])
INDEX_KINDS: Final = pa.array([Kind.INDEX_SAVE, Kind.INDEX_RESPONSE])
#: A source and a window.
Place = tuple[str, str]

# Keys

_NAME: Final = '["name",'
#: Carried states are found by the text of their keys: JSON without spaces, with these characters escaped.
_ESCAPES: Final = {number: f"\\u{number:04X}" for number in range(32)} | {
    ord(character): f"\\{escape}" for character, escape in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)
}


def address_keys(addresses: pa.Array) -> pa.Array:
    """The keys of streams by their addresses, as `events.address_key`; null of null."""
    return pc.binary_join_element_wise('["address",', _quoted(addresses), "]", "")


def name_keys(names: pa.Array, partitions: pa.Array) -> pa.Array:
    """The keys of names of streams, as `events.name_key`; null of null. `partitions` are whole numbers."""
    numbers = pc.fill_null(partitions, 0).cast(pa.string())
    return pc.binary_join_element_wise(_NAME, _quoted(names), ',"', numbers, '"]', "")


def _quoted(texts: pa.Array) -> pa.Array:
    encoded = texts.dictionary_encode()
    quoted = [f'"{text.translate(_ESCAPES)}"' for text in encoded.dictionary.to_pylist()]
    return pa.array(quoted, pa.string()).take(encoded.indices)


def of(rows: pa.RecordBatch, struct: str, *names: str) -> list[pa.Array]:
    """These fields of a struct, as columns."""
    return [pc.struct_field(rows.column(struct), name) for name in names]


# How connections stand

_STANDING: Final = pa.schema(
    [
        ("connection_id", pa.binary()),
        ("host", pa.string()),
        *(("stands", pa.bool_()), ("closed", pa.bool_())),
        *(("partial_at_ns", pa.int64()), ("closed_at_ns", pa.int64())),
    ]
)


@dataclass(slots=True)
class Standing:
    """The connections of a source as they stand at the end of a window in which they changed."""

    #: Columns of _STANDING; `stands`: its session changed in the window too.
    connections: pa.RecordBatch
    #: By connection and key of a stream: the pushes without an answer.
    open_pushes: Mapping[tuple[bytes, str], list[dict[str, Any]]]

    def of(self, connection_ids: pa.Array) -> pa.RecordBatch:
        """The row of each connection; nulls if it has none."""
        return self.connections.take(pc.index_in(connection_ids, self.connections.column("connection_id")))


@dataclass(slots=True)
class Connections:
    """How connections stand by source and window: read by tasks, from the log's files of that place."""

    lake: Lake
    files: Mapping[Place, tuple[list[str], list[str]]]
    #: The standing that was read last: the batches of a file come one after another.
    _last: tuple[Place, Standing] | None = field(default=None, init=False)

    def at(self, place: Place) -> Standing:
        """The connections of a source in a window."""
        if self._last is None or self._last[0] != place:
            self._last = place, self._read(*self.files.get(place, ([], [])))
        return self._last[1]

    def _read(self, connections: Sequence[str], sessions: Sequence[str]) -> Standing:
        hosts = self._rows(connections, {"connection_id": (), "connection": ("client_address",)})
        opened = ("partial_at_ns", "closed", "closed_at_ns", "open_pushes")
        stands = self._rows(sessions, {"connection_id": (), "session": opened})
        listed: dict[bytes, dict[str, Any]] = {
            row["connection_id"]: {"connection_id": row["connection_id"], "host": row["connection"]["client_address"]}
            for row in hosts
        }
        open_pushes: dict[tuple[bytes, str], list[dict[str, Any]]] = {}
        for row in stands:
            one, opened = row["connection_id"], row["session"]["open_pushes"]
            listed.setdefault(one, {"connection_id": one}).update(row["session"], stands=True)
            keys = address_keys(pa.array([pushed["stream_address"] for pushed in opened], pa.string()))
            for key, pushed in zip(keys.to_pylist(), opened, strict=True):
                open_pushes.setdefault((one, key), []).append(pushed)
        return Standing(pa.RecordBatch.from_pylist(list(listed.values()), schema=_STANDING), open_pushes)

    def _rows(self, files: Sequence[str], columns: table_reader.Columns) -> Iterator[dict[str, Any]]:
        for file in files:
            for rows in table_reader.rows_of(self.lake, all_tables()[LOG], file, columns):
                yield from rows.to_pylist()


def connections(work: Work) -> Connections:
    """How the connections of a run stand."""
    files: defaultdict[Place, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for at, kind in enumerate((CONNECTION, SESSION)):
        for file in spark_tables.files(work.lake, LOG, work.members(), kind):
            files[_place_of(file)][at].append(file.name)
    return Connections(work.lake, dict(files))


def _place_of(file: File) -> Place:
    partition = delta_tables.partition_of(file.name)
    return partition["source"], partition["window_start"]


def place_of(rows: pa.RecordBatch) -> Place:
    """The source and the window of rows of a file: they are the same for all."""
    return rows.column("source")[0].as_py(), rows.column("window_start")[0].as_py()


# Hosts of clients whose connections lack bytes

_RETURNED: Final = "returned"
_LACKING: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "window_start", "host")),
        *(("since_ns", pa.int64()), ("connection_id", pa.binary())),
    ]
)
#: By host the two of its connections that lacked bytes first. If another one than a given connection does, one of these
#: two is another one.
LACKING: Final = pa.schema(
    [
        *_LACKING,
        *(("other_since_ns", pa.int64()), ("other_connection_id", pa.binary())),
    ]
)


def _lacking(work: Work, members: services.Members, stood: Connections) -> Stage:
    """The stage that finds the hosts whose connections lack bytes as they stand at the end of a window."""
    columns = {
        **dict.fromkeys(("source", "window_start", "connection_id"), ()),
        "session": ("partial", "partial_at_ns"),
    }
    files = spark_tables.files(work.lake, LOG, work.members(), SESSION)
    prepare = partial(_partial, members=members, stood=stood)
    order = Order(("source", "window_start", "host"), ("since_ns", "connection_id"))
    windows = steps.windows(work.spans)
    return Stage([Input(LOG, files, columns, prepare)], _LACKING, order, _first_two, (), windows, returned=[_RETURNED])


def _partial(rows: pa.RecordBatch, members: services.Members, stood: Connections) -> pa.RecordBatch:
    """Prepare sessions: those that lack bytes, with their client's host."""
    place = place_of(rows)
    rows = members.once(rows)
    is_partial, since_ns = of(rows, "session", "partial", "partial_at_ns")
    made = rows.select(["source", "window_start", "connection_id"]).append_column("since_ns", since_ns)
    made = made.append_column("host", stood.at(place).of(rows.column("connection_id")).column("host"))
    return made.filter(pc.and_(is_partial, made.column("host").is_valid()))


def _first_two(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    firsts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for batch in batches:
        for piece in pieces_of(batch, ("source", "window_start", "host")):
            known = firsts.setdefault(piece.place, [])
            known += piece.rows.slice(0, 2 - len(known)).to_pylist()
    listed = [
        first | {f"other_{name}": one[name] for one in others for name in ("since_ns", "connection_id")}
        for first, *others in firsts.values()
    ]
    if listed:
        yield _RETURNED, pa.RecordBatch.from_pylist(listed, schema=LACKING)


# Addresses of names

_NAMED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "key", "state_window", "state", "stream_address")),
        *((name, pa.int64()) for name in ("arrived_at_ns", "record_number", "byte_start")),
    ]
)
#: An address of a name, and when it was given first.
_FIRST: Final = pa.struct([("at_ns", pa.int64()), ("stream_address", pa.string())])
_GIVEN: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "window_start", "key")),
        *((name, pa.list_(_FIRST)) for name in ("former", "given")),
    ]
)
_ARRIVAL: Final = ("arrived_at_ns", "record_number", "byte_start")


@dataclass(frozen=True, slots=True)
class Names:
    """The addresses of a service's names, of those names that have several or are spoken of without one."""

    #: By key of a name: the last of its addresses before the run, and when it was given which others, in that order.
    given: dict[str, tuple[str | None, list[tuple[int, str]]]] = field(default_factory=dict)
    #: By key of a name: all of its addresses, each with the time at which it was given first.
    times: dict[str, dict[str, int]] = field(default_factory=dict)
    #: By key of a name with several addresses: the first of them.
    first: dict[str, str] = field(default_factory=dict)
    #: By address: the keys of its names, of those that have several addresses.
    sharing: dict[str, list[str]] = field(default_factory=dict)

    def address_at(self, key: str, at_ns: int) -> str | None:
        """The address that was given to the name last, for the first time."""
        before, since = self.given.get(key, (None, []))
        at = bisect_right(since, at_ns, key=lambda one: one[0])
        return since[at - 1][1] if at else before


def _names(work: Work, members: services.Members) -> Stage:
    """The stage that returns the addresses of names."""
    columns = {
        **dict.fromkeys(("source", "window_start", "connection_id", "stream_address", *_ARRIVAL), ()),
        "message": ("kind", "ignored", "stream_name", "partition"),
    }
    inputs = [
        Input(
            LOG, spark_tables.files(work.lake, LOG, work.members(), MESSAGE), columns, partial(_naming, members=members)
        )
    ]
    about = {
        **dict.fromkeys(("source", "window_start", "connection_id"), ()),
        "session": ("about",),
    }
    files = spark_tables.files(work.lake, LOG, work.members(), SESSION)
    inputs.append(Input(LOG, files, about, partial(_meaning, members=members)))
    if alive := work.alive():
        state = dict.fromkeys(("source", "window_start", "key", "state"), ())
        inputs.append(Input(STATE, spark_tables.files(work.lake, STATE, alive), state, _former))
    # States come first, because they have no arrival; the newest comes last.
    order = Order(("source", "key"), ("arrived_at_ns", "state_window", *_ARRIVAL[1:], "stream_address"))
    fold = partial(_addresses, windows={span.source: span.first for span in work.spans})
    return Stage(inputs, _NAMED, order, fold, (), steps.windows(work.spans), returned=[_RETURNED])


def _naming(rows: pa.RecordBatch, members: services.Members) -> pa.RecordBatch:
    """Prepare messages: Inits, and one of the index messages of each name that don't show the stream's address."""
    rows = members.once(rows)
    kind, ignored = of(rows, "message", "kind", "ignored")
    has_address, is_index = rows.column("stream_address").is_valid(), pc.is_in(kind, INDEX_KINDS)
    naming = pc.or_(pc.and_(pc.is_in(kind, CREATED), has_address), pc.and_not(is_index, has_address))
    rows = rows.filter(pc.and_(naming, ignored.is_null()))
    made = rows.select(["source", "stream_address", *_ARRIVAL])
    made = made.append_column("key", name_keys(*of(rows, "message", "stream_name", "partition")))
    without = np.flatnonzero(np.asarray(made.column("stream_address").is_null()))
    keys = made.column("key").dictionary_encode().indices
    _, first = np.unique(np.asarray(keys)[without], return_index=True)
    wanted = np.asarray(made.column("stream_address").is_valid()).copy()
    wanted[without[first]] = True
    return made.filter(pa.array(wanted))


def _meaning(rows: pa.RecordBatch, members: services.Members) -> pa.RecordBatch:
    """Prepare sessions: the names by which they mean streams without knowing their addresses."""
    rows = members.once(rows)
    (about,) = of(rows, "session", "about")
    sources = rows.column("source").take(pc.list_parent_indices(about))
    name, partition, unplaced = (
        pc.struct_field(about.flatten(), one) for one in ("stream_name", "partition", "unplaced")
    )
    made = pa.RecordBatch.from_pydict({"source": sources, "key": name_keys(name, partition)})
    return made.filter(pc.fill_null(unplaced, False))


def _former(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare rows of state: those of names."""
    rows = rows.filter(pc.and_(rows.column("state").is_valid(), pc.starts_with(rows.column("key"), _NAME)))
    return rows.rename_columns({"window_start": "state_window"})


def _addresses(batches: Iterable[pa.RecordBatch], windows: Mapping[str, str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of _GIVEN: of names that have several addresses or are spoken of without one."""
    waiting: list[dict[str, Any]] = []
    rows = (row for batch in batches for row in batch.to_pylist())
    for (source, key), of_name in groupby(rows, itemgetter("source", "key")):
        state: str | None = None
        given: dict[str, int] = {}
        is_open = False
        for row in of_name:
            if row["state"] is not None:
                state = row["state"]
            elif row["stream_address"] is None:
                is_open = True
            else:
                given.setdefault(row["stream_address"], row["arrived_at_ns"])
        former = {} if state is None else Fold(key, snapshot=state).addresses
        if is_open or len({*former, *given}) > 1:
            whose = {"source": source, "window_start": windows[source], "key": key}
            waiting.append(whose | {"former": _listed(former), "given": _listed(given)})
    if waiting:
        yield _RETURNED, pa.RecordBatch.from_pylist(waiting, schema=_GIVEN)


def _listed(given: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"at_ns": at_ns, "stream_address": address} for address, at_ns in given.items()]


# All of it


@dataclass(frozen=True, slots=True)
class Known:
    """What tasks know besides the rows of their input."""

    members: services.Members
    connections: Connections
    #: By service.
    names: Mapping[str, Names]
    #: By service and window, rows of LACKING; by service, the hosts of these rows.
    lacking: Mapping[Place, pa.Table]
    lacking_hosts: Mapping[str, pa.Array]


def known(work: Work, version: str) -> Known:
    """Run the stages that find out what the rows of a run don't show by themselves."""
    members, stood = services.members(work, LOG), connections(work)
    named = steps.run(work, [_names(work, members)], version)[_RETURNED]
    lacking = steps.run(work, [_lacking(work, members, stood)], version)[_RETURNED]
    names: defaultdict[str, Names] = defaultdict(Names)
    for row in named:
        key, of_service = row["key"], names[row["source"]]
        former, given = ({one["stream_address"]: one["at_ns"] for one in row[part]} for part in ("former", "given"))
        new = [(at_ns, address) for address, at_ns in given.items() if address not in former]
        of_service.given[key] = list(former)[-1] if former else None, new
        addresses = of_service.times[key] = former | {address: at_ns for at_ns, address in new}
        if len(addresses) > 1:
            of_service.first[key] = next(iter(addresses))
        for address in addresses if len(addresses) > 1 else ():
            of_service.sharing.setdefault(address, []).append(key)
    by_place: defaultdict[Place, list[dict[str, Any]]] = defaultdict(list)
    for row in lacking:
        by_place[row["source"], row["window_start"]].append(row)
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for row in lacking:
        hosts[row["source"]].add(row["host"])
    tables = {place: pa.Table.from_pylist(rows, schema=LACKING) for place, rows in by_place.items()}
    listed = {source: pa.array(sorted(those), pa.string()) for source, those in hosts.items()}
    return Known(members, stood, dict(names), tables, listed)
