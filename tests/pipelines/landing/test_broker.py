"""Landing from topics of a real broker."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from wirehouse_codecs.core.errors import OptionError, UsageError
from wirehouse_pipelines.lake.kafka_options import KafkaOptions
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import broker, landing
from wirehouse_pipelines.landing.broker import BrokerError
from wirehouse_pipelines.landing.capture_files import RefusedPathError
from wirehouse_pipelines.landing.manifests import Manifest, manifests, write_manifest
from wirehouse_pipelines.storage.storage import open_storage

pytestmark = pytest.mark.servers
MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """A real broker; its address stands in the environment."""
    from wirehouse_orchestration.infra import server

    server.up(("kafka",), lambda text: None)
    address = server.environment()["KAFKA_BOOTSTRAP_SERVERS"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_BOOTSTRAP_SERVERS", address)
        yield address
    server.down(("kafka",), lambda text: None)


class Topic:
    """A topic of the test's own, and a lake that lands it."""

    def __init__(self, address: str, name: str, folder: Path, **how: Any) -> None:
        self.name, self._address = name, address
        self.admin = AdminClient({"bootstrap.servers": address})
        self._new = NewTopic(name, num_partitions=how.pop("partitions", 1), config={"retention.ms": "-1"} | how)
        self._create()
        self.lake = Lake(str(folder / "lake"), Windows("day", "2015-01-01"))

    def _create(self) -> None:
        self.admin.create_topics([self._new])[self.name].result()
        # A broker that has just begun takes a while to tell of it.
        while self.name not in self.admin.list_topics().topics:
            time.sleep(0.1)

    def make_anew(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result()
        while self.name in self.admin.list_topics().topics:
            time.sleep(0.1)
        self._create()

    def source(self, **kafka: Any) -> Source:
        return Source("net", "cardinal", "kafka", self.name, kafka=kafka)

    def send(self, count: int, begin: int = 0, *, partition: int = 0, **settings: Any) -> None:
        producer = Producer({"bootstrap.servers": self._address} | settings)
        for number in range(begin, begin + count):
            about: dict[str, Any] = {"headers": [("n", str(number).encode()), ("none", None)]}
            producer.produce(
                self.name, f"v{number}".encode(), b"k", partition=partition, timestamp=MS + number, **about
            )
        producer.flush()

    def land(self, **kafka: Any) -> list[Manifest]:
        return landing.land(self.lake, self.source(**kafka))


@pytest.fixture
def topic(kafka: str, request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    how = getattr(request, "param", {})
    return Topic(kafka, f"{request.node.originalname}-{uuid4().hex}", tmp_path, **how)


def values(topic: Topic, manifest: Manifest) -> list[bytes]:
    assert manifest.offsets is not None
    told = broker.Broker("net", topic.name, KafkaOptions())
    return [value for batch in told.batches(manifest.offsets) for value in batch.column("value").to_pylist()]


def test_what_is_new_is_landed_once(topic: Topic) -> None:
    assert topic.land() == []
    topic.send(5)
    (first,) = topic.land()
    assert (first.records, first.path) == (5, f"{topic.name}/0/0-5")
    assert topic.land() == []
    topic.send(3, 5)
    (second,) = topic.land()
    assert (second.records, second.path) == (3, f"{topic.name}/0/5-8")
    assert values(topic, first) == [b"v0", b"v1", b"v2", b"v3", b"v4"]
    assert first.last_arrived_at_ns == (MS + 4) * 1_000_000
    assert manifests(topic.lake) == sorted((first, second), key=lambda one: one.capture_id)
    assert Manifest.from_json(first.to_json()) == first


def test_records_are_kept_verbatim(topic: Topic) -> None:
    topic.send(1)
    (manifest,) = topic.land()
    assert manifest.offsets is not None
    (batch,) = broker.Broker("net", topic.name, KafkaOptions()).batches(manifest.offsets)
    assert batch.to_pylist() == [
        {
            "topic": topic.name,
            "partition": 0,
            "offset": 0,
            "ts_ns": MS * 1_000_000,
            "ts_type": "create",
            "key": b"k",
            "value": b"v0",
            "headers": [{"key": "n", "value": b"0"}, {"key": "none", "value": None}],
            "extra": None,
            "damaged": None,
            "damage": None,
        }
    ]


@pytest.mark.parametrize("topic", [{"partitions": 3}], indirect=True)
def test_each_partition_is_a_capture(topic: Topic) -> None:
    for partition in range(3):
        topic.send(partition + 1, partition=partition)
    landed = landing.land(topic.lake, Source("net", "cardinal", "kafka", f"^{topic.name[:-1]}.$"))
    assert [(one.path.split("/")[1], one.records) for one in landed] == [("0", 1), ("1", 2), ("2", 3)]


def test_arrival_goes_on_from_the_range_before(topic: Topic) -> None:
    topic.send(1, 1_000)
    (first,) = topic.land()
    topic.send(1, 0)
    (second,) = topic.land()
    assert second.first_arrived_at_ns == first.last_arrived_at_ns == (MS + 1_000) * 1_000_000


def test_what_the_broker_let_go_of_is_a_gap(topic: Topic) -> None:
    topic.send(4)
    topic.land()
    topic.send(6, 4)
    for gone in topic.admin.delete_records([TopicPartition(topic.name, 0, 7)]).values():
        gone.result()
    (manifest,) = topic.land()
    assert manifest.path == f"{topic.name}/0/7-10"
    (finding,) = manifest.findings
    lost = f"{topic.name}/0: offsets 4 to 6 were gone before they were landed"
    assert (finding.rule, finding.message) == ("capture.offset_gap", lost)
    # A range is read whole, also the first one, or not at all.
    assert manifest.offsets is not None
    with pytest.raises(BrokerError, match=f"{topic.name}/0/0-10"):
        list(broker.Broker("net", topic.name, KafkaOptions()).batches(replace(manifest.offsets, begin=0)))


def test_offsets_that_went_back_are_said(topic: Topic) -> None:
    topic.send(4)
    (manifest,) = topic.land()
    assert manifest.offsets is not None
    storage = open_storage(topic.lake.root)
    write_manifest(storage, replace(manifest, offsets=replace(manifest.offsets, end=9)))
    with pytest.raises(BrokerError, match=f"its offsets went back: {topic.name}/0 from 9 to 4; new records at"):
        topic.land()


def test_of_transactions_what_was_committed_is_read(topic: Topic, kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic.name})
    producer.init_transactions()
    commit, abort = producer.commit_transaction, producer.abort_transaction
    for number, end in enumerate((commit, abort, commit)):
        producer.begin_transaction()
        producer.produce(topic.name, f"t{number}".encode(), partition=0)
        producer.flush()
        end()
    (manifest,) = topic.land()
    assert (manifest.records, manifest.path, manifest.findings) == (2, f"{topic.name}/0/0-6", ())
    assert values(topic, manifest) == [b"t0", b"t2"]
    assert topic.land() == []


def test_what_waits_for_an_open_transaction_is_said(topic: Topic, kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic.name, b"open", partition=0)
    producer.flush()
    topic.send(2)
    said: list[str] = []
    assert landing.land(topic.lake, topic.source(), progress=said.append) == []
    assert said == [f"net: {topic.name}/0: 3 offsets wait for a transaction that is open there"]
    producer.commit_transaction()
    said.clear()
    (manifest,) = landing.land(topic.lake, topic.source(), progress=said.append)
    assert (manifest.records, len(said)) == (3, 1)


def test_a_commit_that_comes_late_is_of_the_capture_that_the_next_landing_made(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Manifest] = []

    def hang(storage: Any, manifest: Manifest) -> None:
        late.append(manifest)
        raise ZeroDivisionError

    topic.send(5)
    with monkeypatch.context() as patch:
        patch.setattr(landing, "write_manifest", hang)
        with pytest.raises(ZeroDivisionError):
            topic.land()
    topic.send(3, 5)
    assert [one.path for one in topic.land()] == [f"{topic.name}/0/0-5", f"{topic.name}/0/5-8"]
    write_manifest(open_storage(topic.lake.root), late[0])
    assert sorted(one.path for one in manifests(topic.lake)) == [f"{topic.name}/0/0-5", f"{topic.name}/0/5-8"]
    assert all(Path(topic.lake.root, name).exists() for name in landing.records_of(late[0]))


def test_a_topic_that_grows_is_landed_whole(topic: Topic) -> None:
    topic.send(2)
    topic.land()
    topic.admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result()
    while len(topic.admin.list_topics().topics[topic.name].partitions) < 3:
        time.sleep(0.1)
    topic.send(1, partition=2)
    assert [one.path for one in topic.land()] == [f"{topic.name}/2/0-1"]


def test_a_topic_that_was_made_anew_is_another(topic: Topic) -> None:
    topic.send(4)
    (first,) = topic.land()
    topic.make_anew()
    topic.send(3)
    (second,) = topic.land()
    assert (second.path, second.records) == (f"{topic.name}/0/0-3", 3)
    assert topic.land() == []
    # One that is made anew while a range is read: these would be other records.
    assert first.offsets is not None
    with pytest.raises(BrokerError, match="the topic was recreated while it was read"):
        list(broker.Broker("net", topic.name, KafkaOptions()).batches(replace(first.offsets, end=3)))


def test_what_a_group_committed_of_a_topic_before_it_was_made_anew_leaves_out_nothing(topic: Topic, kafka: str) -> None:
    topic.send(4)
    settings = {"bootstrap.servers": kafka, "group.id": topic.name}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 100)], asynchronous=False)
    assert [one.path for one in topic.land(start="committed", settings=settings)] == [f"{topic.name}/0/0-4"]
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 3)], asynchronous=False)
    consumer.close()
    (due,) = broker.Broker("net", topic.name, KafkaOptions("committed", settings)).new([], []).due
    assert due.range.begin == 3
    # The broker keeps these in a topic of its own, which no pattern means.
    assert "__consumer_offsets" in topic.admin.list_topics().topics
    assert broker.Broker("net", "^__consumer_.*", KafkaOptions()).new([], []) == ([], [], {}, [])


@pytest.mark.parametrize("topic", [{"partitions": 3}], indirect=True)
def test_a_partition_that_the_broker_tells_nothing_of_keeps_back_no_other(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = AdminClient.list_offsets

    def partly(admin: AdminClient, wanted: Any, **how: Any) -> dict[TopicPartition, Future[Any]]:
        found = dict(listed(admin, wanted, **how))
        for place in found:
            if place.partition == 1:
                found[place] = Future()
                found[place].set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
        return found

    for partition in range(3):
        topic.send(1, partition=partition)
    with monkeypatch.context() as patch:
        patch.setattr(AdminClient, "list_offsets", partly)
        with pytest.raises(BrokerError, match=f"{topic.name}/1: the broker reports: .*[Ll]eader"):
            topic.land()
    assert sorted(one.path for one in manifests(topic.lake)) == [f"{topic.name}/{n}/0-1" for n in (0, 2)]
    assert [one.path for one in topic.land()] == [f"{topic.name}/1/0-1"]


@pytest.mark.parametrize("topic", [{"partitions": 2}], indirect=True)
def test_a_partition_that_can_not_be_read_keeps_back_no_other(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(2):
        topic.send(1, partition=partition)
    batches = broker.Broker.batches

    def partly(told: broker.Broker, wanted: Any) -> Any:
        if wanted.partition == 0:
            raise BrokerError(source="net", reason="no")
        return batches(told, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(broker.Broker, "batches", partly)
        with pytest.raises(BrokerError, match="source 'net': no"):
            topic.land()
    assert [one.path for one in manifests(topic.lake)] == [f"{topic.name}/1/0-1"]
    assert [one.path for one in topic.land()] == [f"{topic.name}/0/0-1"]


LARGE = 10 << 20


@pytest.mark.parametrize(
    "topic", [{"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(LARGE + 1000)}], indirect=True
)
def test_large_records_and_such_without_key_or_value_are_landed(topic: Topic, kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "message.max.bytes": str(LARGE + 1000)})
    producer.produce(topic.name, b"x" * LARGE)
    producer.produce(topic.name, None, b"k", timestamp=MS)
    producer.produce(topic.name, b"", b"", headers=[("", b""), ("none", None)])
    producer.flush()
    (manifest,) = topic.land()
    assert manifest.offsets is not None
    told = broker.Broker("net", topic.name, KafkaOptions())
    rows = [row for batch in told.batches(manifest.offsets) for row in batch.to_pylist()]
    assert [(row["key"], row["value"] and len(row["value"])) for row in rows] == [
        (None, LARGE),
        (b"k", None),
        (b"", b""),
    ]
    assert {row["ts_type"] for row in rows} == {"append"}
    assert all(row["ts_ns"] > MS * 1_000_000 for row in rows)
    assert rows[2]["headers"] == [{"key": "", "value": b""}, {"key": "none", "value": None}]


@pytest.mark.parametrize(
    "topic",
    [
        {
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "100",
        }
    ],
    indirect=True,
)
def test_what_compaction_removed_within_a_range_is_a_gap(topic: Topic) -> None:
    topic.send(5)
    # So much later, by their times, that they are of another segment.
    topic.send(1, 1_000)
    end = time.monotonic() + 60
    told = broker.Broker("net", topic.name, KafkaOptions())
    while time.monotonic() < end:
        (due,) = told.new([], []).due
        if sum(batch.num_rows for batch in told.batches(due.range)) < 6:
            break
        time.sleep(1)
    (manifest,) = topic.land()
    assert manifest.path == f"{topic.name}/0/0-6"
    (finding,) = manifest.findings
    assert finding.rule == "capture.offset_gap"
    assert f"{topic.name}/0: the broker has no record at the offsets 0-3 any more" in finding.message
    assert manifest.records < 6
    assert topic.land() == []


def test_where_a_partition_begins_is_found_once(topic: Topic, kafka: str) -> None:
    topic.send(5)
    settings = {"bootstrap.servers": kafka, "group.id": topic.name}
    consumer = Consumer(settings)
    for committed in (5, 9):
        consumer.commit(offsets=[TopicPartition(topic.name, 0, committed)], asynchronous=False)
        told = [one.path for one in topic.land(start="committed", settings=settings)]
        assert told == ([] if committed == 5 else [f"{topic.name}/0/5-10"])
        topic.send(5, 5)
    consumer.close()


def test_what_comes_to_a_topic_later_is_landed_whatever_its_time(topic: Topic) -> None:
    topic.send(3)
    start = "2023-11-14T22:13:21+00:00"
    assert topic.land(start=start) == []
    topic.send(2)
    topic.admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result()
    topic.send(2, partition=1)
    assert [one.path for one in topic.land(start=start)] == [f"{topic.name}/0/3-5", f"{topic.name}/1/0-2"]
    topic.make_anew()
    topic.send(1)
    assert [one.path for one in topic.land(start=start)] == [f"{topic.name}/0/0-1"]


def test_a_first_range_begins_at_a_time(topic: Topic) -> None:
    topic.send(5)
    (manifest,) = topic.land(start="2023-11-14T22:13:20.003+00:00")
    assert manifest.path == f"{topic.name}/0/3-5"


def test_a_landing_that_was_killed_is_done_again(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.send(5)

    def break_off(*_: Any) -> Any:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(landing._RangeLanding, "_findings", break_off)
        with pytest.raises(OSError, match="disk full"):
            topic.land()
    assert manifests(topic.lake) == []
    assert not list(Path(topic.lake.root).rglob("*.avro"))
    assert [one.path for one in topic.land()] == [f"{topic.name}/0/0-5"]


def test_what_is_wrong_is_said(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerError, match="source 'net': the broker has no topic nothing"):
        landing.land(topic.lake, Source("net", "cardinal", "kafka", "nothing"))
    with pytest.raises(RefusedPathError, match="from a broker"):
        landing.land(topic.lake, topic.source(), ["a.jsonl"])
    monkeypatch.setattr(broker, "_SECONDS", 2.0)
    with pytest.raises(BrokerError, match=r"can't be reached \(.*refused.*\): correct bootstrap.servers, security"):
        topic.land(settings={"bootstrap.servers": "127.0.0.1:9"})
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS")
    with pytest.raises(OptionError, match="KAFKA_BOOTSTRAP_SERVERS is not set"):
        topic.land()


@pytest.mark.parametrize(
    ("topics", "settings", "said"),
    [
        ("^t(", {}, "path: is no regular expression: missing ): ^t("),
        ("t", {"security.protocol": "none"}, "kafka.settings: Invalid value"),
        ("t", {"no.setting": "1"}, "kafka.settings: No such configuration property"),
    ],
)
def test_settings_that_the_library_refuses_are_a_usage_error(
    topics: str, settings: dict[str, str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=re.escape(f"source 'net': {said}")):
        broker.Broker("net", topics, KafkaOptions(settings={"bootstrap.servers": "127.0.0.1:9"} | settings))
    assert capfd.readouterr().err == ""


def test_a_secret_that_is_no_text_is_not_said() -> None:
    with pytest.raises(OptionError, match=r"settings.sasl.password: must be a text") as refused:
        KafkaOptions.from_mapping({"settings": {"sasl.password": 4711}})
    assert "4711" not in str(refused.value)


def test_times_beyond_64_bits_stand_at_their_bound() -> None:
    times = [-(1 << 62), 1 << 62, MS]
    batch = broker._batch([Message(topic="t", value=b"", timestamp=(TIMESTAMP_CREATE_TIME, ms)) for ms in times])
    assert batch.column("ts_ns").to_pylist() == [-(1 << 63), (1 << 63) - 1, MS * 10**6]
    far = [{"timestamp_ms": ms} for ms in times[:2]]
    assert [extra and json.loads(extra) for extra in batch.column("extra").to_pylist()] == [*far, None]


class _Unread(Message):
    """As the library gives a record with a header whose name is no UTF-8; its own producer can't write one."""

    def headers(self) -> Any:
        raise SystemError("returned a result with an exception set")


def test_a_record_whose_headers_the_library_cannot_read_is_kept() -> None:
    (row,) = broker._batch(
        [_Unread(topic="t", key=b"k", value=b"v", timestamp=(TIMESTAMP_CREATE_TIME, MS))]
    ).to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", [])
    assert json.loads(row["extra"]) == {"headers": "not readable, a name is no UTF-8"}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"begin": "earliest"}, "begin"),
        ({"start": "yesterday"}, "start"),
        ({"start": "2023-11-14T22:13:20"}, "start"),
        ({"start": "committed"}, "start"),
        ({"settings": {"a": 1}}, "settings.a"),
        ({"settings": {"isolation.level": "read_uncommitted"}}, "settings.isolation.level"),
        ({"settings": "a"}, "settings"),
    ],
    ids=json.dumps,
)
def test_options_that_are_none(table: dict[str, Any], key: str) -> None:
    with pytest.raises(OptionError) as refused:
        KafkaOptions.from_mapping(table)
    assert refused.value.fields["key"] == key
