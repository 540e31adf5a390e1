"""Gold of the Ockam stream service: streams, stored messages, how far clients are, holes, and what these break."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.logs.rows import CONNECTION
from wirehouse_codecs.ockam.correlation.data_changes import Compared, Observation
from wirehouse_codecs.ockam.correlation.events import ConsumerRow, Found, Hole, LagRow, StreamRow, Told, Where
from wirehouse_codecs.ockam.correlation.log_events import EVENT, MOST_PARTITIONS, events_in
from wirehouse_codecs.ockam.correlation.streams import Fold
from wirehouse_codecs.ockam.log.log import SESSION, UINT
from wirehouse_codecs.ockam.options import IndexConvention, OckamOptions
from wirehouse_codecs.ockam.session.outcome import NOT_GIVEN
from wirehouse_pipelines.jobs import services
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.jobs.key_folds import KeyFold, by_key
from wirehouse_pipelines.lake.lake import Source

VERSION = "11"
STATE: Final = "gold.ockam_state"
OUTPUTS: Final = (
    "gold.ockam_streams_history",
    "gold.ockam_stream_messages_history",
    "gold.ockam_stream_indexes_history",
    "gold.ockam_delivery_holes",
    "gold.ockam_lag",
    "gold.ockam_found",
    STATE,
)
#: A stream, a client or a message that was not heard of for so long begins anew.
HORIZON_NS: Final = 7 * 86_400 * 10**9

_WINDOW: Final = ("source", "window_start")
_WHERE: Final = Where._fields
#: Arrival, the place in the packet, and what is known of the connection before what it says. What a hole held back has
#: the place of one packet: the answers come before what the client says after them.
_ORDER: Final = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "turn", "byte_start", "step")
#: The index comes first: it alone tells most messages apart where rows are sorted.
_MESSAGE: Final = ("index", "stream_address", *_WINDOW)
#: After all that a window has.
_AT_ITS_END: Final = 2**63 - 1
#: Kinds of messages that say that a stream lives.
_REPLIES: Final = ("push_response", "pull_response")
_ANSWERED: Final = f"row_kind = 'message' AND (message.ignored IS NULL OR message.ignored = '{NOT_GIVEN}')"
_HEARD: Final = "row_kind = 'message' AND message.ignored IS NULL"

#: What the folds tell, a row each; `told` is what it is.
_FOUND, _STREAM, _CONSUMER, _HOLE, _LAG = "found", "stream", "consumer", "hole", "lag"
_TOLD: Final = pa.schema(
    [
        ("told", pa.string()),
        ("state", pa.string()),
        *(("connection_id", pa.binary()), ("direction", pa.string())),
        *((name, pa.int64()) for name in ("byte_start", "byte_end", "record_number", "arrived_at_ns")),
        ("capture_id", pa.binary()),
        *((name, pa.string()) for name in ("rule", "severity", "message")),
        *((name, pa.string()) for name in ("stream_address", "stream_name", "client_id", "kind", "cause")),
        *((name, UINT) for name in ("partition", "first_index", "last_index", "saved", "position", "latest")),
        ("delivered_up_to", UINT),
        *((name, pa.int64()) for name in ("confirmed", "indexes", "delivered", "last_at_ns")),
        *(
            (name, pa.int64())
            for name in ("lag", "lost", "delivered_messages", "redelivered", "connections", "messages")
        ),
        ("lag_seconds", pa.float64()),
    ]
)


def _name() -> Column:
    """The key of the name that a message has, as `events.name_key`."""
    partition = F.coalesce("message.partition", F.lit(0)).cast("string")
    return F.to_json(F.array(F.lit("name"), "message.stream_name", partition))


def _created_names() -> Column:
    """The keys of the names that a create asks for."""
    partitions = F.least(F.coalesce("message.partitions", F.lit(1)), F.lit(MOST_PARTITIONS)).cast("int")
    all_of_them = F.sequence(F.lit(0), F.lit(MOST_PARTITIONS - 1))
    return F.transform(
        F.filter(all_of_them, lambda at: at < partitions),
        lambda at: F.to_json(F.array(F.lit("name"), "message.stream_name", at.cast("string"))),
    )


def _horizon(source: Source) -> int:
    return HORIZON_NS


#: Another connection of the host lacks bytes that came before.
_LACKS: Final = "exists(lacking, one -> one.connection_id <> connection_id AND one.partial_at_ns <= arrived_at_ns)"


class _Run:
    """What the tables of one run are made from."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.log = services.heard_once(work, "silver.ockam", services.duplicates(work, "silver.ockam"))

    def heard(self, condition: str) -> DataFrame:
        """Rows of messages that took part in what was said."""
        return self.log.where(f"{_HEARD} AND ({condition})")

    @cached_property
    def told(self) -> DataFrame:
        """What the folds of streams and names tell of each window."""
        reading = {span.source: _reading(self.work.lake.sources_of(span.source)) for span in self.work.spans}
        events = self._said.unionByName(self._stood, allowMissingColumns=True)
        # Arrow's Java library walks through all null lists at the end of a batch with each row that it adds.
        events = events.withColumns({name: F.coalesce(name, F.array()) for name in ("indexes", "open_pushes")})
        start = partial(_Stream, reading)
        return by_key(self.work, STATE, events, _ORDER, start, _TOLD, horizon_ns=_horizon, mine="`index` IS NULL")

    @cached_property
    def _hosts(self) -> DataFrame:
        """The host of each connection's client."""
        connections = self.log.where(F.col("row_kind") == CONNECTION)
        host = F.col("connection.client_address").alias("host")
        return connections.select("source", "connection_id", host).distinct()

    @cached_property
    def _lacking(self) -> DataFrame:
        """Hosts of clients to which an Init may have come that wasn't captured."""
        return self._partial.select("source", "host", F.lit(True).alias("lacks_init")).distinct()

    @cached_property
    def _lacking_messages(self) -> DataFrame:
        """By window the hosts of clients with connections that lack bytes. Of these the two that did first: one of them
        is another than any connection that is asked about, if there is another."""
        hosts = self._partial.groupBy("source", "window_start", "host")
        first = F.slice(F.array_sort(F.collect_list(F.struct("session.partial_at_ns", "connection_id"))), 1, 2)
        return hosts.agg(first.alias("lacking"))

    @cached_property
    def _partial(self) -> DataFrame:
        """Sessions that lack bytes as they stand at the end of each window, with their client's host."""
        lacking = self.log.where((F.col("row_kind") == SESSION) & F.col("session.partial"))
        return lacking.join(self._hosts, ["source", "connection_id"])

    @cached_property
    def _addresses(self) -> DataFrame:
        """By name its addresses, in the order in which they were given first: before (`former`), and in this run."""
        inits = self.heard("message.kind IN ('create_response', 'create_partitioned_response')")
        first = F.min(F.struct("arrived_at_ns", "record_number", "byte_start")).alias("first")
        given = (
            inits.where("stream_address IS NOT NULL")
            .groupBy("source", _name().alias("key"), "stream_address")
            .agg(first)
            .groupBy("source", "key")
            .agg(
                F.array_sort(F.collect_list(F.struct("first.arrived_at_ns", "first", "stream_address"))).alias("given")
            )
        )
        if not self.work.before:
            return given.withColumn("former", F.array().cast("array<string>"))
        newest = F.row_number().over(Window.partitionBy("source", "key").orderBy(F.desc("window_start")))
        states = self.work.read_state(STATE).where("state IS NOT NULL AND key LIKE '[\"name\",%'")
        former = F.from_json(F.get_json_object("state", "$.addresses"), "array<string>").alias("former")
        states = states.withColumn("rank", newest).where("rank = 1").select("source", "key", former)
        return given.join(states, ["source", "key"], "full")

    @cached_property
    def _names(self) -> DataFrame:
        """By address the keys of its names (`names`), of those that have several addresses."""
        known = F.array_union(
            F.coalesce("former", F.array().cast("array<string>")),
            F.coalesce(F.transform("given", lambda one: one["stream_address"]), F.array().cast("array<string>")),
        )
        several = self._addresses.select("source", "key", known.alias("known")).where("size(known) > 1")
        named = several.select("source", "key", F.explode("known").alias("address"))
        return named.groupBy("source", "address").agg(F.collect_set("key").alias("names"))

    @cached_property
    def answered(self) -> DataFrame:
        """Messages that were heard, with the `host` of their client and the `address` of their stream.

        Among them are requests to addresses that no Init of their connection gave.
        Of index messages whose connection doesn't tell it, that is what was given to the name last, for the first time.
        """
        messages = self.log.where(_ANSWERED).join(F.broadcast(self._hosts), ["source", "connection_id"], "left")
        messages = messages.join(F.broadcast(self._lacking), ["source", "host"], "left")
        messages = messages.join(F.broadcast(self._lacking_messages), ["source", "window_start", "host"], "left")
        is_open = F.col("message.kind").startswith("index") & F.col("stream_address").isNull()
        messages = messages.withColumn("key", F.when(is_open, _name()))
        messages = messages.join(F.broadcast(self._addresses), ["source", "key"], "left")
        found = F.expr(
            "coalesce(stream_address, try_element_at(filter(given, one -> one.arrived_at_ns <= arrived_at_ns AND NOT "
            "coalesce(array_contains(former, one.stream_address), false)), -1).stream_address, "
            "try_element_at(former, -1))"
        )
        return messages.withColumn("address", found).drop("key", "given", "former")

    @cached_property
    def _said(self) -> DataFrame:
        """Events of messages, each under the keys of its stream and of its name."""
        kind = F.col("message.kind")
        address, name = F.to_json(F.array(F.lit("address"), "address")), _name()
        named = kind.isin("create_response", "create_partitioned_response", "index_save", "index_response")
        keys = F.array_compact(
            F.array(
                F.when(F.col("address").isNotNull(), address),
                F.when(named & (F.col("address").isNotNull() | kind.startswith("index")), name),
            )
        )
        creates = kind.isin("create_request", "create_partitioned_request") & F.col("message.stream_name").isNotNull()
        keys = F.when(creates, _created_names()).otherwise(keys)
        keys = F.when(kind.isin(*_REPLIES), F.concat(keys, F.coalesce("names", F.array()))).otherwise(keys)
        is_reply = F.col(EVENT).isin("stored", "delivered") & F.col("key").startswith('["name"')
        not_given = (F.col("message.ignored") == NOT_GIVEN) & F.col("lacks_init").isNull()
        event = (
            F.when(not_given, "asked")
            .when(creates, "created")
            .when(kind.isin("create_response", "create_partitioned_response"), "init")
            .when((kind == "push_response") & (F.col("message.status") == "ok"), "stored")
            .when(kind == "pull_response", "delivered")
            .when(kind == "index_save", "saved")
            .when(kind == "index_response", "got")
        )
        messages = self.answered.join(F.broadcast(self._names), ["source", "address"], "left")
        return (
            messages.select(
                *_WINDOW,
                *_WHERE,
                "seen_by",
                "capture_arrived_at_ns",
                (F.col("direction") == "client").alias("turn"),
                event.alias(EVENT),
                F.explode(keys).alias("key"),
                "message.stream_name",
                "message.partition",
                F.coalesce("consumer", "message.client_id").alias("client_id"),
                "message.index",
                *(
                    F.when(~F.col("answers.unsure"), F.col(f"answers.{name}")).alias(known)
                    for name, known in (
                        ("anonymous", "anonymous"),
                        ("requested_at_ns", "requested_at_ns"),
                        ("request_capture_id", "requested_in"),
                        ("index", "requested"),
                    )
                ),
                "missed",
                "stream_address",
                F.expr(_LACKS).alias("lacks"),
                F.when(kind == "index_response", F.array_join("message.return_route", "=>")).alias("service"),
                F.concat(F.coalesce("host", F.lit("")), F.lit(" "), F.nullif("requester", F.lit(""))).alias("asker"),
                F.expr("transform(message.messages, pulled -> pulled.index)").alias("indexes"),
            )
            .where(F.col(EVENT).isNotNull())
            .withColumn(EVENT, F.when(is_reply, "replied").otherwise(F.col(EVENT)))
            .select(
                "*",
                F.posexplode(
                    F.when(
                        (F.col("missed") > 0) & ~F.col(EVENT).isin("replied", "asked"), F.array(F.lit("partial"), EVENT)
                    ).otherwise(F.array(EVENT))
                ).alias("step", "told"),
            )
            .drop(EVENT)
            .withColumnRenamed("told", EVENT)
        )

    @cached_property
    def _stood(self) -> DataFrame:
        """Events of how connections stand at the end of a window, under each key they spoke of in it."""
        connection = (*_WINDOW, "connection_id")
        sessions = self.log.where(F.col("row_kind") == SESSION).select(*connection, "session.*")
        opened = sessions.select(*connection, F.explode("open_pushes").alias("opened")).select(
            *connection, F.to_json(F.array(F.lit("address"), "opened.stream_address")).alias("key"), "opened"
        )
        by_stream = opened.groupBy(*connection, "key").agg(F.collect_list("opened").alias("open_pushes"))
        spoken = self._said.where(F.col(EVENT) != "replied").select(*connection, "key").distinct()
        spoken = spoken.join(by_stream, [*connection, "key"], "full").join(
            sessions.drop("open_pushes"), list(connection)
        )
        # A connection is partial before the messages of that moment, and closed after them.
        first, last = F.lit(None).cast("bigint"), F.lit(_AT_ITS_END)
        partial_now, left_open, ended = (
            F.struct(F.lit(event).alias(EVENT), at_ns.alias("arrived_at_ns"), then.alias("capture_arrived_at_ns"))
            for event, at_ns, then in (
                ("partial", F.col("partial_at_ns"), first),
                ("open_pushes", F.lit(_AT_ITS_END), last),
                ("closed", F.col("closed_at_ns"), last),
            )
        )
        events = F.array_compact(
            F.array(F.when(F.col("partial_at_ns").isNotNull(), partial_now), left_open, F.when(F.col("closed"), ended))
        )
        return spoken.select(
            *connection,
            "key",
            F.coalesce("open_pushes", F.array()).alias("open_pushes"),
            F.inline(events),
        )

    @cached_property
    def _observed(self) -> DataFrame:
        """Data at indexes: of pushes that were confirmed (`pushed`), and of responses to pulls."""
        place = (*_WINDOW, *_WHERE, "capture_arrived_at_ns", "stream_address")
        saved = self.heard("message.kind = 'push_response' AND message.status = 'ok' AND stream_address IS NOT NULL")
        pulled = self.heard("message.kind = 'pull_response' AND stream_address IS NOT NULL")
        pushes = saved.select(
            *place,
            "message.index",
            F.lit(True).alias("pushed"),
            "answers.data",
            "answers.data_bytes",
            F.col("answers.requested_at_ns").alias("pushed_at_ns"),
            "answers.unsure",
            F.col("requester").alias("publisher"),
        )
        pulls = pulled.select(
            *place, F.coalesce("consumer", "requester").alias("consumer"), F.inline("message.messages")
        ).withColumns({"pushed": F.lit(False), "data_bytes": F.octet_length("data").cast("bigint")})
        both = pushes.unionByName(pulls, allowMissingColumns=True)
        # Of a hash that a sender can't collide: what is equal here isn't looked at again.
        first = F.conv(F.substring(F.sha2("data", 256), 1, 15), 16, 10).cast("bigint")
        # Of an unsure answer it isn't known which push was saved: its data are shown, and not compared.
        is_sure = F.col("data").isNotNull() & ~F.coalesce("unsure", F.lit(False))
        return both.withColumn("digest", F.when(is_sure, first))

    @cached_property
    def messages(self) -> DataFrame:
        """What each window told of each stored message; `saved` and `pulled` are digests of its data."""
        pushed = F.col("pushed")
        # Of several the first, in the order of arrival: structs compare by their fields.
        arrived = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "byte_start")
        seen = (*arrived, *(name for name in _WHERE if name not in arrived), "data", "data_bytes", "digest")
        push, pull = F.struct(*seen, "publisher", "pushed_at_ns"), F.struct(*seen)
        grouped = self._observed.groupBy(*_MESSAGE).agg(
            F.min(F.when(pushed, push)).alias("push"),
            F.min(F.when(~pushed, pull)).alias("pull"),
            F.count_if(~pushed).alias("deliveries"),
            F.collect_set("consumer").alias("delivered_to"),
            F.collect_set(F.when(pushed, F.col("digest"))).alias("saved"),
            F.min("digest").alias("least_digest"),
            F.max("digest").alias("greatest_digest"),
        )
        return self.work.settle(
            grouped.select(
                *_MESSAGE,
                *(F.coalesce(f"push.{name}", f"pull.{name}").alias(name) for name in (*_WHERE, "data", "data_bytes")),
                "push.publisher",
                "push.pushed_at_ns",
                F.col("push.arrived_at_ns").alias("confirmed_at_ns"),
                "deliveries",
                F.array_sort("delivered_to").alias("delivered_to"),
                F.col("pull.arrived_at_ns").alias("first_delivered_at_ns"),
                F.array_sort("saved").alias("saved"),
                F.col("pull.digest").alias("pulled"),
                "least_digest",
                "greatest_digest",
            )
        )

    @cached_property
    def changed(self) -> DataFrame:
        """Findings of `data_changed`: messages whose data differ are judged one observation after another."""
        message = ["source", "stream_address", "index"]
        told = self.messages.select(*message).distinct()
        before = self.work.read_state(STATE).where("`index` IS NOT NULL").withColumnRenamed("key", "stream_address")
        before = before.join(told, message, "left_semi")
        digests = F.concat("saved", F.array("pulled"))
        digests_before = before.select(
            *message, F.array_min(digests).alias("least_digest"), F.array_max(digests).alias("greatest_digest")
        )
        seen = self.messages.select(*message, "least_digest", "greatest_digest")
        differ = (
            (seen.unionByName(digests_before) if self.work.before else seen)
            .groupBy(*message)
            .agg(F.min("least_digest").alias("least"), F.max("greatest_digest").alias("greatest"))
            .where("least <> greatest")
            .select(*message)
        )
        judged = self._observed.where("digest IS NOT NULL").join(differ, message)
        saved = before.select(*message, "window_start", F.explode("saved").alias("digest"), F.lit(True).alias("pushed"))
        pulled = before.where("pulled IS NOT NULL").select(
            *message, "window_start", F.col("pulled").alias("digest"), F.lit(False).alias("pushed")
        )
        for known in (saved, pulled) if self.work.before else ():
            judged = judged.unionByName(known.join(differ, message), allowMissingColumns=True)
        order = ("window_start", "arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "byte_start")
        ordered = (
            judged.select(*message, "window_start", "pushed", "digest", *_WHERE, "capture_arrived_at_ns")
            .repartition(*message)
            .sortWithinPartitions(*message, *order, F.desc("pushed"))
        )
        return ordered.mapInArrow(
            partial(_changed, alive=self.work.alive_before(_horizon)), from_arrow_schema(_CHANGED)
        )


def _reading(sources: Sequence[Source]) -> tuple[IndexConvention, int, int]:
    """What a saved index is in a service, how long at most until a hole in one of its captures is told, and by how much
    the clocks of these captures may differ."""
    convention = OckamOptions.from_mapping(sources[0].options).index_convention
    hole_ns = max(source.tcp.idle_ns + source.tcp.hole_wait_ns for source in sources)
    return convention, hole_ns, max(source.tcp.hole_wait_ns for source in sources)


class _Stream(KeyFold):
    """The fold of a stream, or of a name."""

    def __init__(
        self, reading: Mapping[str, tuple[IndexConvention, int, int]], key: Mapping[str, Any], state: str | None
    ) -> None:
        convention, hole_ns, clocks_ns = reading[key["source"]]
        self._fold = Fold(key["key"], convention, state, hole_ns, clocks_ns, lags=True)

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        told = [row for event in events_in(rows) for row in map(_row, self._fold.take(event))]
        return pa.RecordBatch.from_pylist(told, schema=_TOLD) if told else None

    def end_window(self) -> pa.RecordBatch:
        rows = [_row(told) for told in self._fold.end_window()]
        return pa.RecordBatch.from_pylist([*rows, {"state": self._fold.snapshot()}], schema=_TOLD)


#: By what is told: its name, and the fields that are columns of the same name.
_FIELDS: Final[Mapping[type[Any], tuple[str, tuple[str, ...]]]] = {
    Found: (_FOUND, ("message",)),
    StreamRow: (
        _STREAM,
        ("stream_name", "partition", "first_index", "last_index", "confirmed", "indexes", "delivered", "last_at_ns"),
    ),
    ConsumerRow: (
        _CONSUMER,
        ("stream_name", "partition", "client_id", "saved", "position", "latest", "lag", "lost", "lag_seconds")
        + ("delivered_messages", "redelivered", "connections"),
    ),
    LagRow: (
        _LAG,
        ("cause", "stream_name", "partition", "client_id", "saved", "position", "latest", "lag", "lost", "lag_seconds"),
    ),
    Hole: (
        _HOLE,
        ("kind", "stream_name", "partition", "client_id", "saved", "first_index", "last_index", "messages"),
    ),
}


def _row(told: Told) -> dict[str, Any]:
    """A row of _TOLD."""
    name, fields = _FIELDS[type(told)]
    row: dict[str, Any] = told.where._asdict() | {"told": name, "stream_address": told.stream_address}
    row |= {field: getattr(told, field) for field in fields}
    if isinstance(told, Found):
        row |= {"rule": told.rule.id, "severity": told.rule.severity.value}
    elif isinstance(told, ConsumerRow | LagRow):
        row["delivered_up_to"] = told.delivered
    return row


#: Findings of data that changed.
_CHANGED: Final = pa.schema(
    [
        ("source", pa.string()),
        ("window_start", pa.string()),
        *((name, _TOLD.field(name).type) for name in (*_WHERE, "rule", "severity", "message", "stream_address")),
    ]
)


def _changed(batches: Iterable[pa.RecordBatch], alive: Mapping[tuple[str, str], str]) -> Iterator[pa.RecordBatch]:
    """Rows of _CHANGED of observations that stand by message, and of each in the order of arrival.

    What windows before told of a message comes first, without a place.
    """
    rows = (row for batch in batches for row in batch.to_pylist())
    for (source, _, _), of_message in groupby(rows, itemgetter("source", "stream_address", "index")):
        compared = Compared()
        told_in = ""
        told: list[dict[str, Any]] = []
        for window, of_window in groupby(of_message, itemgetter("window_start")):
            if told_in < alive.get((source, window), ""):
                compared = Compared()
            told_in, whose = window, {"source": source, "window_start": window}
            for found in compared.take(list(map(_observation, of_window))):
                if found.where.capture_id is not None:
                    told.append(_row(found) | whose)
        if told:
            yield pa.RecordBatch.from_pylist(told, schema=_CHANGED)


def _observation(row: Mapping[str, Any]) -> Observation:
    where, digest = Where(*(row[name] for name in _WHERE)), row["digest"].to_bytes(8, "big", signed=True)
    return Observation(where, row["stream_address"], int(row["index"]), digest, row["pushed"])


def _streams(run: _Run) -> DataFrame:
    rows = run.told.where(F.col("told") == _STREAM)
    return rows.withColumn("first_at_ns", F.col("arrived_at_ns"))


def _messages(run: _Run) -> DataFrame:
    return run.messages


def _indexes(run: _Run) -> DataFrame:
    """Clients under the address of their stream; under its name those whose stream's address isn't known."""
    rows = run.told.where(F.col("told") == _CONSUMER).withColumns(
        {"delivered": (F.col("delivered_up_to") + 1).cast("decimal(20,0)"), "last_at_ns": F.col("arrived_at_ns")}
    )
    key = [*_WINDOW, "client_id", "stream_name", "number"]
    without = run.answered.where("message.kind IN ('index_save', 'index_response') AND address IS NULL").select(
        *_WINDOW, "message.client_id", "message.stream_name", F.coalesce("message.partition", F.lit(0)).alias("number")
    )
    named = rows.where("stream_address IS NULL").withColumn("number", F.coalesce("partition", F.lit(0)))
    kept = named.join(without.distinct(), key, "left_semi").drop("number")
    return rows.where("stream_address IS NOT NULL").unionByName(kept)


def _holes(run: _Run) -> DataFrame:
    return run.told.where(F.col("told") == _HOLE)


def _lag(run: _Run) -> DataFrame:
    node = F.nullif(F.regexp_extract("stream_address", "^(.*)=>", 1), F.lit(""))
    rows = run.told.where(F.col("told") == _LAG)
    return rows.withColumns({"node": node, "delivered": (F.col("delivered_up_to") + 1).cast("decimal(20,0)")})


def _found(run: _Run) -> DataFrame:
    found = run.told.where(F.col("told") == _FOUND)
    return found.unionByName(run.changed, allowMissingColumns=True).withColumn("protocol", F.lit("ockam"))


def _state(run: _Run) -> DataFrame:
    """States of the folds, digests of messages, and of each window since when states still count."""
    folds = run.told.where("state IS NOT NULL").select(*_WINDOW, "key", "state")
    messages = run.messages.select(*_WINDOW, F.col("stream_address").alias("key"), "index", "saved", "pulled")
    both = folds.unionByName(messages, allowMissingColumns=True)
    return both.unionByName(run.work.clock(_horizon), allowMissingColumns=True)


_TABLES: Final = dict(zip(OUTPUTS, (_streams, _messages, _indexes, _holes, _lag, _found, _state), strict=True))


def tables(work: Work) -> Iterator[tuple[str, DataFrame]]:
    """The job of gold.ockam: its tables, each as it is written."""
    run = _Run(work)
    for name, rows in _TABLES.items():
        yield name, rows(run).withColumn("decoder_version", F.lit(VERSION))
