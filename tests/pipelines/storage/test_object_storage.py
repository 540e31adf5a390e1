"""Objects in a bucket of a real S3 store."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from botocore.exceptions import FlexibleChecksumError
from deltalake import Schema
from deltalake.transaction import AddAction
from pyarrow import parquet

from infra.tools.chaos.faulty_store import BrokenOffError, Moods, faulty
from tests.conftest import store_of
from wirehouse_orchestration.infra import versitygw
from wirehouse_pipelines.delta import delta_tables
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.capture_files import MissingPathError
from wirehouse_pipelines.landing.manifests import Manifest, manifests, write_manifest
from wirehouse_pipelines.storage import object_storage, retry_policy
from wirehouse_pipelines.storage.storage import Storage, StorageError, Stored, open_storage

pytestmark = pytest.mark.servers


#: versitygw is built with Go.
STORES = ("store", *(["versitygw"] if versitygw.go() else []))


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, store: dict[str, str]) -> Iterator[dict[str, str]]:
    """Each of the project's object stores; the first serves other tests as well."""
    if request.param == "store":
        yield store
        return
    with store_of(request.param) as settings:
        yield settings


@pytest.fixture
def root(server: dict[str, str]) -> str:
    """A lake's root."""
    return f"s3://wirehouse/{uuid4().hex}"


def test_what_is_written_is_read(root: str) -> None:
    storage = open_storage(root)
    storage.write("a/b.json", b"one")
    with storage.writer("a/c.bin") as stream:
        stream.write(b"two ")
        stream.write(b"three")
    assert list(storage.list("")) == [Stored("a/b.json", 3), Stored("a/c.bin", 9)]
    assert list(storage.list("a")) == list(storage.list(""))
    assert list(storage.list("b")) == []
    with storage.open("a/c.bin") as read:
        assert read.read() == b"two three"
    storage.delete("a/c.bin")
    storage.delete("a/c.bin")
    assert not storage.exists("a/c.bin")
    with pytest.raises(FileNotFoundError):
        storage.open("a/c.bin")


def test_a_prefix_is_no_address_with_a_query_or_fragment(root: str) -> None:
    open_storage(f"{root}/a#b?c").write("x", b"")
    assert list(open_storage(root).list("")) == [Stored("a#b?c/x", 0)]


def test_a_large_object_goes_in_parts_and_is_read_anywhere(root: str) -> None:
    storage = open_storage(root)
    data = bytes(range(256)) * (80 << 10)
    with storage.writer("large") as stream:
        stream.write(data)
    with storage.open("large") as read:
        assert read.read() == data
        read.seek(object_storage.PART_BYTES - 10)
        assert read.read(20) == data[object_storage.PART_BYTES - 10 :][:20]
        assert read.seek(-5, io.SEEK_END) == len(data) - 5
        assert read.read() == data[-5:]


def test_a_writer_that_fails_leaves_nothing(root: str) -> None:
    storage = open_storage(root)

    def fail() -> None:
        with storage.writer("half") as stream:
            stream.write(b"x" * (20 << 20))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(storage.list("")) == []


def test_uploads_that_were_never_ended_are_swept(root: str) -> None:
    storage = open_storage(root)
    client = object_storage.client()
    prefix = root.removeprefix("s3://wirehouse/")
    client.create_multipart_upload(Bucket="wirehouse", Key=f"{prefix}/landing/x")
    storage.sweep("landing")
    assert not client.list_multipart_uploads(Bucket="wirehouse", Prefix=prefix).get("Uploads")


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", ".a", "a/.b", "a.part"])
def test_names_that_are_none(root: str, name: str) -> None:
    with pytest.raises(StorageError, match="a valid name of an object"):
        open_storage(root).write(name, b"")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_ACCESS_KEY_ID", "nobody", "AWS_ACCESS_KEY_ID"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "can't be reached"),
        ("AWS_ENDPOINT_URL", "http://me:{secret}@127.0.0.1:9", r"can't be reached .*http://127.0.0.1:9"),
        ("AWS_ENDPOINT_URL", "https://me:{secret}@127.0.0.1:9", r"can't be reached .*https://127.0.0.1:9"),
        ("AWS_ENDPOINT_URL", "me:{secret}@127.0.0.1:9", r"Invalid endpoint: 127.0.0.1:9"),
        ("AWS_ENDPOINT_URL", "http://me:a {secret}@127.0.0.1:99999", "correct AWS_ENDPOINT_URL|127.0.0.1:99999"),
        ("AWS_ENDPOINT_URL", "127.0.0.1:9", r"Invalid endpoint.*: correct AWS_ENDPOINT_URL, http://"),
        ("AWS_REGION", "no region", "region_name 'no region'"),
    ],
)
def test_what_is_wrong_is_said(
    root: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setenv(variable, value.format(secret=secret))
    monkeypatch.setattr(retry_policy, "ATTEMPTS", 1)
    with pytest.raises(StorageError, match=said) as refused:
        open_storage(root).write("a", b"")
    assert secret not in str(refused.value)


def test_a_store_that_speaks_no_tls_is_said(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = os.environ["AWS_ENDPOINT_URL"].replace("http://", "https://me:secret@")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setattr(retry_policy, "ATTEMPTS", 1)
    with pytest.raises(StorageError, match=r"no trusted TLS certificate .* correct AWS_ENDPOINT_URL") as refused:
        open_storage(root).write("a", b"")
    assert "secret" not in str(refused.value)


def test_the_region_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert object_storage.client().meta.region_name == "eu-west-3"


# The other store is in every region.
@pytest.mark.parametrize("server", STORES[1:], indirect=True)
def test_a_bucket_of_another_region_is_said(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    with pytest.raises(StorageError, match="is in another region, correct AWS_REGION"):
        open_storage(root).exists("a")


def test_an_answer_that_breaks_off_is_asked_for_again(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 100
    open_storage(root).write("a", data)
    moods = Moods(1, one_in=4, slow_seconds=0)
    with faulty(os.environ["AWS_ENDPOINT_URL"], moods) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        storage = open_storage(root)
        for _ in range(10):
            with storage.open("a") as read:
                assert read.read() == data
    assert moods.broken > 2


class Unheard(Moods):
    """Of the first commit it is said that it failed."""

    def next(self, *, commits: bool) -> str:
        told = commits and not self.unheard
        self.unheard += told
        return "unheard" if told else ""


def test_a_commit_of_which_the_store_said_that_it_failed_is_made_once(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{root}/table".replace("s3://", "s3a://", 1)
    delta_tables.created(path, Schema.from_arrow(pa.schema([("n", pa.int64())])))
    written = io.BytesIO()
    parquet.write_table(pa.table({"n": [1, 2]}), written)
    open_storage(root).write("table/new.parquet", written.getvalue())
    added = AddAction("new.parquet", len(written.getvalue()), {}, 0, True, json.dumps({"numRecords": 2}))
    moods = Unheard(1)
    with faulty(os.environ["AWS_ENDPOINT_URL"], moods) as address, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        delta_tables.swap(path, [added], lambda table: list(pa.table(table.get_add_actions())["path"].to_pylist()))
    assert moods.unheard == 1
    table = delta_tables.opened(path)
    assert table is not None
    assert (table.version(), len(table.file_uris())) == (1, 1)


def test_a_bucket_that_is_missing_is_said(server: dict[str, str]) -> None:
    with pytest.raises(StorageError, match="there is no bucket nowhere: create it"):
        list(open_storage("s3://nowhere/lake").list(""))


def _count(root: str, rounds: int) -> None:
    storage = open_storage(root)
    for _ in range(rounds):
        with storage.lock("counter"):
            with storage.open("counter") as stream:
                value = int(stream.read())
            storage.write("counter", str(value + 1).encode())


def test_a_lock_keeps_processes_apart(root: str) -> None:
    storage = open_storage(root)
    storage.write("counter", b"0")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_count, args=(root, 5)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with storage.open("counter") as stream:
        assert stream.read() == b"15"
    assert [stored.name for stored in storage.list("")] == ["counter"]


def _enter(root: str, entered: list[str]) -> threading.Thread:
    """Another who wants the lock."""

    def take() -> None:
        with open_storage(root).lock("a"):
            entered.append("other")

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_the_lock_of_a_killed_process_runs_out(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = root.removeprefix("s3://wirehouse/")
    object_storage.client().put_object(Bucket="wirehouse", Key=f"{prefix}/.locks/a/000000000007", Body=b"held")
    entered: list[str] = []
    waiting = _enter(root, entered)
    waiting.join(2)
    assert entered == []
    monkeypatch.setattr(object_storage, "LEASE_SECONDS", 1.0)
    waiting.join(60)
    assert entered == ["other"]


def _keys(root: str) -> list[str]:
    """All that the store has of a root."""
    prefix = root.removeprefix("s3://wirehouse/")
    found = object_storage.client().list_objects_v2(Bucket="wirehouse", Prefix=prefix)
    return [one["Key"] for one in found.get("Contents", ())]


def test_who_looked_long_ago_takes_no_lock_that_others_had_since(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create, entered = object_storage.S3Storage._create, list[str]()
    keys: list[str] = []

    def late(storage: object_storage.S3Storage, key: str) -> bool:
        monkeypatch.setattr(object_storage.S3Storage, "_create", create)
        for _ in range(3):
            with open_storage(root).lock("a"):
                pass
        keys.append(key)
        # The third's removed it: it could be created again.
        assert key not in _keys(root)
        with open_storage(root).lock("a"):
            waiting = _enter(root, entered)
            answer = create(storage, key)
            waiting.join(1)
            assert entered == []
        waiting.join(60)
        return answer

    with open_storage(root).lock("a"):
        pass
    monkeypatch.setattr(object_storage.S3Storage, "_create", late)
    with open_storage(root).lock("a"):
        assert entered == ["other"]
        assert keys[0] not in _keys(root)


def test_a_lock_that_is_held_is_renewed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may hold back a renewal for seconds.
    monkeypatch.setattr(object_storage, "LEASE_SECONDS", 8.0)
    entered: list[str] = []
    with open_storage(root).lock("a"):
        waiting = _enter(root, entered)
        waiting.join(12)
        assert entered == []
    waiting.join(60)
    assert entered == ["other"]


def test_a_lock_that_changes_while_it_is_read_is_read_again(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_storage(root).lock("a"):
        pass
    storage = open_storage(root)
    assert isinstance(storage, object_storage.S3Storage)
    get, broken = storage._client.get_object, iter([FlexibleChecksumError(error_msg="Expected checksum a, not b")])

    def changing(**wanted: str) -> object:
        for error in broken:
            raise error
        return get(**wanted)

    monkeypatch.setattr(storage._client, "get_object", changing)
    with storage.lock("a"):
        assert next(broken, None) is None


def test_captures_lie_in_a_bucket_too(root: str, tmp_path: Path) -> None:
    vectors = Path(__file__).parents[2] / "vectors" / "cardinal"
    inbox = open_storage(f"{root}/inbox")
    for name in ("a_linear", "c_subbatches"):
        inbox.write(f"{name}/messages.jsonl", (vectors / name / "messages.jsonl").read_bytes())
    open_storage(root).write("inbox-of-another/messages.jsonl", b"")
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"))

    def landed(place: str) -> list[str]:
        source = Source("net", "cardinal", "messages", place)
        return [manifest.path for manifest in landing.land(lake, source, settle_seconds=10)]

    assert landed(f"{root}/inbox/a*/*.jsonl") == ["a_linear/messages.jsonl"]
    assert landed(f"{root}/inbox") == ["c_subbatches/messages.jsonl"]
    assert landed(f"{root}/inbox/a_linear/messages.jsonl") == []
    with pytest.raises(MissingPathError, match="nothing"):
        landed(f"{root}/nothing")


def test_of_a_bucket_neither_the_lake_nor_folders_are_captures(root: str) -> None:
    captures = open_storage(root)
    captures.write("a.jsonl", b"{}\n")
    for folder in ("inbox/", "inbox/more/"):
        object_storage.client().put_object(Bucket="wirehouse", Key=f"{root.removeprefix('s3://wirehouse/')}/{folder}")
    captures.write("inbox/b.jsonl", b"{ }\n")
    lake = Lake(f"{root}/lake", Windows("day", "2015-01-01"))

    def landed(place: str) -> list[str]:
        return [manifest.path for manifest in landing.land(lake, Source("net", "cardinal", "messages", place))]

    assert landed(f"{root}/inbox") == ["b.jsonl"]
    assert landed(root) == ["a.jsonl"]
    assert landed(root) == []


def test_an_object_that_can_not_be_read_stops_no_other(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, bucket, prefix = object_storage.client(), "wirehouse", root.removeprefix("s3://wirehouse/")
    for name in ("day.part/a.jsonl", "b.jsonl", "c.jsonl"):
        client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=name.encode().ljust(20 << 20, b"\n"))
    read = object_storage.S3Storage.read_range

    def overtaken(storage: object_storage.S3Storage, name: str, begin: int, end: int) -> bytes:
        if begin and name.endswith("b.jsonl"):
            client.put_object(Bucket=bucket, Key=f"{prefix}/b.jsonl", Body=b"{}\n")
        return read(storage, name, begin, end)

    monkeypatch.setattr(object_storage.S3Storage, "read_range", overtaken)
    lake, source = Lake(str(tmp_path), Windows("day", "2015-01-01")), Source("net", "cardinal", "messages", root)
    with pytest.raises(landing.NotLandedError, match=r"1 files.*b\.jsonl .*was shortened while it was read"):
        landing.land(lake, source)
    assert sorted(one.path for one in manifests(lake)) == ["c.jsonl", "day.part/a.jsonl"]
    assert [one.path for one in landing.land(lake, source)] == ["b.jsonl"]


def test_who_lost_the_lock_commits_nothing(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    file = Path(__file__).parents[2] / "vectors" / "cardinal" / "d2_equal_weight" / "messages.jsonl"
    source = Source("net", "cardinal", "messages", str(inbox))
    lake = Lake(root, Windows("day", "2015-01-01"), (source,))
    monkeypatch.setattr(object_storage, "LEASE_SECONDS", 2.0)
    renew = object_storage._Holding._run

    def late(storage: Storage, manifest: Manifest) -> None:
        # The machine sleeps until another has taken the lock, and removed what was begun.
        monkeypatch.setattr(object_storage._Holding, "_run", renew)
        time.sleep(3)
        assert landing.land(lake, source) == []
        write_manifest(storage, manifest)

    monkeypatch.setattr(object_storage._Holding, "_run", lambda holding: None)
    monkeypatch.setattr(landing, "write_manifest", late)
    with pytest.raises(object_storage.LockLostError, match="run again"):
        landing.land(lake, source, [str(file)])
    monkeypatch.undo()
    assert manifests(lake) == []
    (again,) = landing.land(lake, source, [str(file)])
    assert all(open_storage(root).exists(name) for name in landing.records_of(again))


class _Hanging(Moods):
    """A store that, from some moment until another, takes calls and does nothing of them."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.over = threading.Event()
        self.over.set()

    def next(self, *, commits: bool) -> str:
        if not self.over.is_set():
            self.over.wait(60)
            raise BrokenOffError
        return ""


def test_a_put_that_hangs_is_not_tried_again_when_the_lock_is_anothers(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "LEASE_SECONDS", 6.0)
    monkeypatch.setattr(retry_policy, "ANSWER_SECONDS", 1)
    moods, other, lost = _Hanging(), open_storage(root), list[object_storage.LockLostError]()
    with faulty(os.environ["AWS_ENDPOINT_URL"], moods) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        mine, mine_held = open_storage(root), threading.Event()

        def write() -> None:
            try:
                with mine.lock("a"):
                    mine_held.set()
                    moods.over.clear()
                    mine.write("who", b"the first")
            except object_storage.LockLostError as error:
                lost.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        mine_held.wait(60)
        with other.lock("a"):
            other.write("who", b"the second")
        moods.over.set()
        writing.join(60)
    assert len(lost) == 1
    with other.open("who") as stream:
        assert stream.read() == b"the second"


def test_an_attempt_to_write_takes_less_than_half_a_lease() -> None:
    assert retry_policy.CONNECT_SECONDS + retry_policy.ANSWER_SECONDS < object_storage.LEASE_SECONDS / 2
