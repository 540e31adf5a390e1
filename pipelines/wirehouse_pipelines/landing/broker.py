"""Broker: the topics of a Kafka broker as captures.

A capture of a topic is a range of offsets of one partition, which is fixed before it is read. `Broker.new` returns the
ranges to land, `Broker.batches` the records of a range.

The lake, not the broker, knows where a range begins: where the last landed range of the partition ends. The first range
of a partition begins where the options demand; this start is determined once and kept in the lake.

Only committed transactions are read, so an offset between two records may have no record. That is normal, except in a
compacted topic, where the record may have been deleted. Records are also lost if the broker deleted them before they
were landed: its oldest offset is then later than the begin of the range. Both are reported as `capture.offset_gap`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import re2
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from wirehouse_codecs.captures.files import within_64_bits
from wirehouse_codecs.captures.messages import MESSAGE_SCHEMA
from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_pipelines.lake.kafka_options import COMMITTED, EARLIEST, OURS, KafkaOptions, time_ms
from wirehouse_pipelines.landing.offset_ranges import Due, OffsetRange

_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_SECONDS: Final = 30.0
#: A batch has at most this many records, or about this many bytes.
_BATCH_RECORDS, _BATCH_BYTES = 10_000, 8 << 20
_TS_TYPES: Final = {TIMESTAMP_CREATE_TIME: "create", TIMESTAMP_LOG_APPEND_TIME: "append"}
_NS_PER_MS: Final = 1_000_000
_UNREACHED: Final = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


class BrokerError(WirehouseError):
    """The broker can't be reached, refuses a request, or doesn't deliver records."""

    template = "source {source!r}: {reason}"
    retry_helps = True


class BrokerSettingsError(UsageError):
    """The settings or the topics of a source can't be used."""

    template = "source {source!r}: {key}: {reason}"


class New(NamedTuple):
    """What a broker has that isn't landed yet."""

    due: list[Due]
    #: The starts of partitions that were seen for the first time, as empty ranges. The lake has to keep them.
    starts: list[OffsetRange]
    #: By topic and partition: the number of offsets that can't be read yet because a transaction is open.
    held: dict[str, int]
    #: Problems with partitions: their offsets went back, or the broker returned an error for them.
    failures: list[BrokerError]


class Broker:
    """A source's broker."""

    def __init__(self, source: str, topics: str, options: KafkaOptions) -> None:
        """`topics` is the name of a topic, or a regular expression after ^. Raises BrokerSettingsError."""
        self._source, self._topics, self._options = source, topics, options
        self._settings: dict[str, Any] = options.resolved() | {"error_cb": self._hear, "logger": _Quiet()}
        #: The last error that the library logged about an unreachable broker.
        self._heard = ""
        try:
            quiet = re2.Options()
            quiet.log_errors = False
            self._topic = re2.compile(topics if topics.startswith("^") else f"^{re2.escape(topics)}$", quiet)
            self._admin = AdminClient(self._settings)
        except re2.error as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            raise BrokerSettingsError(source=source, key="path", reason=f"is no regular expression: {reason}") from None
        except KafkaException as error:
            raise BrokerSettingsError(source=source, key="kafka.settings", reason=_said(error)) from None

    def new(self, landed: Sequence[OffsetRange], starts: Sequence[OffsetRange]) -> New:
        """Compare the broker's offsets with the ranges that are `landed` and the known `starts` of partitions.

        Raises BrokerError if the whole broker fails. Problems with single partitions are in `failures`.
        """
        ends: dict[tuple[str, str, int], int] = {}
        for known in landed:
            ends[known.partition_key] = max(known.end, ends.get(known.partition_key, 0))
        begins = {start.partition_key: start.begin for start in starts}
        topics = {(known.cluster_id, known.topic) for known in (*landed, *starts)}
        try:
            cluster_id = str(self._admin.describe_cluster(request_timeout=_SECONDS).result().cluster_id)
            new, back = New([], [], {}, []), []
            failed: dict[str, KafkaException] = {}
            for name, topic_id, partitions in self._described(failed):
                places = [TopicPartition(name, partition) for partition in partitions]
                # Queried before the newest committed offset: records written in between must not look like held ones.
                written = self._offsets(places, _LATEST, failed, IsolationLevel.READ_UNCOMMITTED)
                oldest, newest = (self._offsets(places, spec, failed) for spec in (_EARLIEST, _LATEST))
                known_of = oldest.keys() & newest.keys() & written.keys()
                places = [place for place in places if place.partition in known_of]
                # A partition that was added to a known topic is landed from its first record on.
                first = {} if (cluster_id, name) in topics else self._first(places, failed)
                for place in places:
                    if _name(place) in failed:
                        continue
                    key = (cluster_id, topic_id, place.partition)
                    low, high = oldest[place.partition], newest[place.partition]
                    if key not in ends and key not in begins:
                        begins[key] = 0 if (cluster_id, name) in topics else first.get(place.partition, low)
                        begin = begins[key]
                        new.starts.append(OffsetRange(cluster_id, name, topic_id, place.partition, begin, begin))
                    expected = ends[key] if key in ends else begins[key]
                    begin = max(low, expected)
                    if begin < high:
                        due = OffsetRange(cluster_id, name, topic_id, place.partition, begin, high)
                        new.due.append(Due(due, expected))
                    if high < written[place.partition]:
                        new.held[_name(place)] = written[place.partition] - high
                    if high < ends.get(key, 0):
                        back.append(f"{name}/{place.partition} from {ends[key]} to {high}")
        except KafkaException as error:
            raise self._error(error) from None
        if back:
            reason = (
                f"the broker lost records that are landed, its offsets went back: {', '.join(back[:3])}; new records "
                "at those offsets aren't landed: recreate the topic, or use a source with another name"
            )
            new.failures.append(BrokerError(source=self._source, reason=reason))
        if failed:
            reason = "; ".join(f"{name}: {_reason(error)}" for name, error in list(failed.items())[:3])
            new.failures.append(BrokerError(source=self._source, reason=reason))
        return new

    def _hear(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._heard = error.str()

    def _error(self, error: KafkaException) -> BrokerError:
        # The library calls `_hear` only while it is polled.
        self._admin.poll(0)
        if not (self._heard and isinstance(error.args[0], KafkaError) and error.args[0].code() in _UNREACHED):
            return BrokerError(source=self._source, reason=_reason(error))
        what = "correct bootstrap.servers, security.protocol or other settings in [source.kafka.settings]"
        return BrokerError(source=self._source, reason=f"the broker can't be reached ({self._heard}): {what}")

    def _described(self, failed: Failed) -> Iterator[tuple[str, str, list[int]]]:
        """Yield name, id and partitions of each topic. A pattern doesn't match the broker's internal topics."""
        known = sorted(self._admin.list_topics(timeout=_SECONDS).topics)
        names = [name for name in known if self._topic.match(name)]
        if not names:
            raise BrokerError(source=self._source, reason=f"the broker has no topic {self._topics}")
        described = self._admin.describe_topics(TopicCollection(names), request_timeout=_SECONDS)
        for name in names:
            try:
                topic = described[name].result()
            except KafkaException as error:
                failed[name] = error
                continue
            if not (topic.is_internal and self._topics.startswith("^")):
                yield name, str(topic.topic_id), sorted(partition.id for partition in topic.partitions)

    def _offsets(
        self,
        places: Sequence[TopicPartition],
        spec: OffsetSpec,
        failed: Failed,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, int]:
        """The offset of each partition. A partition that the broker returns an error for is added to `failed`."""
        found: dict[int, int] = {}
        wanted = dict.fromkeys(places, spec)
        for place, answer in (
            self._admin.list_offsets(wanted, isolation_level=level, request_timeout=_SECONDS).items() if wanted else ()
        ):
            try:
                found[place.partition] = int(answer.result().offset)
            except KafkaException as error:
                failed[_name(place)] = error
        return found

    def _first(self, places: Sequence[TopicPartition], failed: Failed) -> dict[int, int]:
        """The first offset to land of partitions in a new topic, as the option `start` defines it."""
        start = self._options.start
        if start == EARLIEST or not places:
            return {}
        if start != COMMITTED:
            at = self._offsets(places, OffsetSpec.for_timestamp(time_ms(start)), failed)
            newest = self._offsets(places, _LATEST, failed)
            known = {partition: at[partition] for partition in at.keys() & newest.keys()}
            return {partition: offset if offset >= 0 else newest[partition] for partition, offset in known.items()}
        # A committed offset beyond the last record, open transactions included, is from a topic that was recreated.
        ends = self._offsets(places, _LATEST, failed, IsolationLevel.READ_UNCOMMITTED)
        consumer = self._consumer()
        try:
            committed = consumer.committed(list(places), timeout=_SECONDS)
        finally:
            consumer.close()
        for place in committed:
            if place.error is not None:
                failed[_name(place)] = KafkaException(place.error)
        known = {place.partition: int(place.offset) for place in committed if place.error is None}
        return {partition: at for partition, at in known.items() if 0 <= at <= ends.get(partition, -1)}

    def _consumer(self) -> Consumer:
        return Consumer({"group.id": "wirehouse"} | self._settings | OURS)

    def batches(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, with MESSAGE_SCHEMA. Raises BrokerError if the broker doesn't deliver them."""
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.begin)])
            held: list[Message] = []
            held_bytes = 0
            for message in self._read(consumer, wanted):
                held.append(message)
                held_bytes += len(message.key() or b"") + len(message.value() or b"")
                if len(held) >= _BATCH_RECORDS or held_bytes >= _BATCH_BYTES:
                    yield _batch(held)
                    held, held_bytes = [], 0
            self._check_same(wanted)
            if held:
                yield _batch(held)
        except KafkaException as error:
            raise self._error(error) from None
        finally:
            consumer.close()

    def is_compacted(self, topic: str) -> bool:
        """Whether the broker deletes records within a partition; False if it doesn't answer."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            settings = self._admin.describe_configs([asked], request_timeout=_SECONDS)[asked].result()
        except KafkaException:
            return False
        return "cleanup.policy" in settings and "compact" in str(settings["cleanup.policy"].value)

    def check_there(self) -> None:
        """Raise BrokerError if the broker doesn't answer."""
        try:
            self._admin.describe_cluster(request_timeout=_SECONDS).result()
        except KafkaException as error:
            raise self._error(error) from None

    def _check_same(self, wanted: OffsetRange) -> None:
        """Raise BrokerError if the topic was recreated since the range was fixed: the records aren't the same."""
        asked = TopicCollection([wanted.topic])
        described = self._admin.describe_topics(asked, request_timeout=_SECONDS)[wanted.topic].result()
        if str(described.topic_id) != wanted.topic_id:
            raise BrokerError(source=self._source, reason=f"{wanted.name}: the topic was recreated while it was read")

    def _read(self, consumer: Consumer, wanted: OffsetRange) -> Iterator[Message]:
        while True:
            first = consumer.poll(_SECONDS)
            if first is None:
                raise BrokerError(source=self._source, reason=f"{wanted.name}: no record came within {_SECONDS:.0f} s")
            # Then take what is already buffered. With a timeout, `consume` would wait for the full number of records.
            for message in (first, *consumer.consume(_BATCH_RECORDS, timeout=0)):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise BrokerError(source=self._source, reason=f"{wanted.name}: {error.str()}")
                offset = cast(int, message.offset())
                if offset < wanted.end and error is None:
                    yield message
                if offset >= wanted.end - (error is None):
                    return


#: Topics and partitions that the broker returned an error for.
Failed = dict[str, KafkaException]


def _name(place: TopicPartition) -> str:
    return f"{place.topic}/{place.partition}"


class _Quiet:
    """A logger that drops everything: librdkafka would log to stderr what is also raised as an exception."""

    def log(self, level: int, text: str, *rest: Any) -> None:
        """Do nothing."""


def _reason(error: KafkaException) -> str:
    return f"the broker reports: {_said(error)}"


def _said(error: KafkaException) -> str:
    cause = error.args[0]
    return str(cause.str() if isinstance(cause, KafkaError) else cause)


def _headers(message: Message) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The headers of a message, and an entry for the column `extra` if the library can't read a name (not UTF-8)."""
    try:
        headers = cast(list[tuple[str, bytes | None]], message.headers() or [])
    except (SystemError, UnicodeDecodeError):
        return [], {"headers": "not readable, a name is no UTF-8"}
    return [{"key": key, "value": value} for key, value in headers], {}


def _batch(messages: Sequence[Message]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [] for name in MESSAGE_SCHEMA.names}
    for message in messages:
        kind, at_ms = message.timestamp()
        ts_type = _TS_TYPES.get(kind)
        columns["topic"].append(message.topic())
        columns["partition"].append(message.partition())
        columns["offset"].append(message.offset())
        at_ns = at_ms * _NS_PER_MS if ts_type else None
        columns["ts_ns"].append(at_ns if at_ns is None else within_64_bits(at_ns))
        columns["ts_type"].append(ts_type)
        columns["key"].append(message.key())
        columns["value"].append(message.value())
        headers, besides = _headers(message)
        columns["headers"].append(headers)
        if at_ns is not None and at_ns != columns["ts_ns"][-1]:
            besides["timestamp_ms"] = at_ms
        columns["extra"].append(json.dumps(besides) if besides else None)
    nothing = [None] * len(messages)
    columns |= {"damaged": nothing, "damage": nothing}
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGE_SCHEMA)
