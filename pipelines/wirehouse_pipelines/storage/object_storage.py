"""S3Storage: the objects of a lake in a bucket of an S3 store (s3://bucket/prefix), through boto3.

Endpoint, region and keys come from the standard variables (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY …) or wherever boto3 finds them. Failed calls are retried with growing pauses. An object becomes
visible as a whole when its upload ends; a large one is a multipart upload.

Locks
-----
S3 has no locks, but it can create an object on the condition that there is none of that name. A lock is therefore a
numbered object under `.locks/NAME/`, and the highest number counts.

Acquire: list the numbers. If the highest lock is free, create the next number on that condition; of several processes
that try, the store lets one succeed. A lock is free if its content is "free", or if its holder has not renewed it for
LEASE_SECONDS. Both times of that comparison are the store's, so clocks of machines don't matter.

Hold: a thread rewrites the object every LEASE_SECONDS / 6. If no renewal has succeeded for LEASE_SECONDS / 2, the
holder considers its lock lost: it starts no further writing request, and raises LockLostError. The other half of the
lease is for a request that is already under way, which takes less than that.

Release: write "free" into the object. The next holder deletes the older numbers.

A remaining weakness: the lock protects against every process that asks for it, not against a request that the network
delivers after the lease has expired. Commits of tables don't rely on it alone; they also create their version on the
condition that there is none.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, Final, NamedTuple, cast

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as NoConnectionError

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.storage import retry_policy
from wirehouse_pipelines.storage.storage import (
    Held,
    RefusedError,
    StorageError,
    Stored,
    Waiting,
    check_name,
    is_hidden,
    masked,
    store_endpoint,
    unreached,
)

#: Size of an upload's parts and of a read.
PART_BYTES: Final = 8 << 20
#: Uploads up to this size stay in memory until they are sent.
_SPOOL_BYTES: Final = 8 << 20
#: A lock that was not renewed for this long can be taken by another process. After half of it, the holder starts no
#: further request that writes.
LEASE_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.2
#: Seconds to wait before each retry of reading a range of an object.
_PAUSES: Final = (0.2, 0.8, 3.2)
#: Errors for a response body that broke off, or that changed while it was read.
_BROKEN: Final = (HTTPClientError, IncompleteReadError, FlexibleChecksumError)
_LOCKS: Final = ".locks"
_READING: Final = ("GET", "HEAD")
_HELD, _FREE = b"held", b"free"
_GONE = ("404", "NoSuchKey", "NotFound")
_TAKEN = ("412", "409", "PreconditionFailed", "ConditionalRequestConflict")
#: The store's error codes as messages that state what to do.
_REASONS: Final = {
    "NoSuchBucket": "there is no bucket {bucket}: create it, or correct the root",
    "InvalidAccessKeyId": "the store doesn't know the access key: correct AWS_ACCESS_KEY_ID",
    "XAdminUserNotFound": "the store doesn't know the access key: correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the store refuses the secret key: correct AWS_SECRET_ACCESS_KEY",
    "AccessDenied": "these keys may not do that in bucket {bucket}: let them read, write, list and delete",
    **dict.fromkeys(
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "400"),
        "the store refuses the call: if bucket {bucket} is in another region, correct AWS_REGION ({error})",
    ),
    "SlowDown": "the store is too busy, and stayed so after several retries: try later",
    "403": "the store refuses these keys: correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or their rights",
    "InvalidRange": "an object was shortened while it was read",
}


class LockLostError(WirehouseError):
    """A lock could not be renewed in time, so another process may hold it now."""

    template = "{root}: the lock of {name} was lost because the store could not be reached in time: run again"
    retry_helps = True


def client() -> Any:
    """An S3 client configured from the environment. It has its own session: the default one isn't thread-safe."""
    style = "path" if store_endpoint() else "auto"
    config = Config(
        retries={"mode": "standard", "max_attempts": retry_policy.ATTEMPTS},
        connect_timeout=retry_policy.CONNECT_SECONDS,
        read_timeout=retry_policy.ANSWER_SECONDS,
        s3={"addressing_style": style},
    )
    # boto3 itself reads only AWS_DEFAULT_REGION.
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
    return session.client("s3", config=config)


class Listed(NamedTuple):
    """An object in a listing of the store."""

    name: str
    size_bytes: int
    etag: str
    modified: datetime


class S3Storage:
    """The objects of a bucket under a prefix. Implements storage.Storage."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        # Not parsed as a URL: in a key, # and ? are ordinary characters.
        self._bucket, _, prefix = root.removeprefix("s3://").partition("/")
        self._prefix = prefix.strip("/")
        with self._in_words(root):
            self._client = client()
        self._held: dict[str, _Holding] = {}
        # boto3 retries a request that hangs, maybe after another process has taken the lock.
        self._client.meta.events.register("before-send.s3", self._check_held)

    def _key(self, name: str) -> str:
        check_name(name)
        return self._under(name)

    def _check_held(self, request: AWSPreparedRequest, **_: Any) -> None:
        """Raise LockLostError if a request would write while a lock is lost. boto3 calls this before each attempt."""
        if request.method in _READING or f"/{_LOCKS}/" in request.url:
            return
        for lock, holding in list(self._held.items()):
            if holding.lost():
                raise LockLostError(root=self.root, name=lock)

    def _under(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        """Turn errors of boto3 into FileNotFoundError, or a StorageError that states what to do."""
        try:
            yield
        except NoCredentialsError:
            reason = "no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
            raise StorageError(name=name, reason=reason) from None
        except SSLError as error:
            reason = (
                f"the store has no trusted TLS certificate ({masked(error)}): correct AWS_ENDPOINT_URL or AWS_CA_BUNDLE"
            )
            raise StorageError(name=self.root, reason=reason) from None
        except (NoConnectionError, HTTPClientError, IncompleteReadError) as error:
            raise StorageError(name=name, reason=unreached(error)) from None
        except ClientError as error:
            code = _code(error)
            if code in _GONE:
                raise FileNotFoundError(f"{self.root}/{name}") from None
            reason = _REASONS.get(code, "{error}").format(bucket=self._bucket, error=masked(error))
            raise RefusedError(name=self.root, reason=reason) from None
        except (BotoCoreError, ValueError) as error:
            # For an address without http://, boto3 reports only an invalid endpoint.
            address = ": correct AWS_ENDPOINT_URL, http:// or https:// and a host" if "endpoint" in str(error) else ""
            raise StorageError(name=self.root, reason=f"{masked(error)}{address}") from None

    def list(self, prefix: str) -> Iterator[Stored]:
        """See Storage."""
        found = (
            Stored(listed.name, listed.size_bytes, listed.etag)
            for listed in self.objects(f"{prefix}/" if prefix else "")
        )
        yield from (stored for stored in found if not any(map(is_hidden, stored.name.split("/"))))

    def objects(self, prefix: str) -> Iterator[Listed]:
        """Yield all objects whose names begin with `prefix`, sorted by name."""
        pages = self._client.get_paginator("list_objects_v2")
        with self._in_words(prefix):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._under(prefix)):
                for found in page.get("Contents", ()):
                    name = found["Key"][len(self._under("")) :]
                    yield Listed(name, found["Size"], found.get("ETag", ""), found["LastModified"])

    def open(self, name: str) -> BinaryIO:
        """See Storage. Names are not checked, as objects of other programs may have any: all that is listed opens."""
        with self._in_words(name):
            size = self._client.head_object(Bucket=self._bucket, Key=self._under(name))["ContentLength"]
        return cast(BinaryIO, io.BufferedReader(_Object(self, name, size), PART_BYTES))

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """The bytes of an object from `begin` up to `end`."""
        wanted = {"Bucket": self._bucket, "Key": self._under(name), "Range": f"bytes={begin}-{end - 1}"}
        with self._in_words(name):
            # boto3 retries a request without a response, but not one whose response breaks off.
            for pause in _PAUSES:
                body = self._client.get_object(**wanted)["Body"]
                with suppress(*_BROKEN):
                    return cast(bytes, body.read())
                time.sleep(pause)
            return cast(bytes, self._client.get_object(**wanted)["Body"].read())

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        check_name(name)
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as stream:
            yield cast(BinaryIO, stream)
            stream.seek(0)
            parts = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4)
            with self._in_words(name):
                self._client.upload_fileobj(_Kept(stream), self._bucket, self._key(name), Config=parts)

    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """See Storage. `private` has no effect: the bucket's policy decides who may read an object."""
        with self._in_words(name):
            self._client.put_object(Bucket=self._bucket, Key=self._key(name), Body=data)

    def delete(self, name: str) -> None:
        """See Storage."""
        with self._in_words(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name))

    def exists(self, name: str) -> bool:
        """See Storage."""
        try:
            with self._in_words(name):
                self._client.head_object(Bucket=self._bucket, Key=self._key(name))
        except FileNotFoundError:
            return False
        return True

    def sweep(self, prefix: str) -> None:
        """See Storage. Aborts multipart uploads that were never completed."""
        pages = self._client.get_paginator("list_multipart_uploads")
        with self._in_words(prefix):
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._key(prefix)}/"):
                for upload in page.get("Uploads", ()):
                    which = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    self._client.abort_multipart_upload(Bucket=self._bucket, **which)

    @contextmanager
    def lock(self, name: str, waiting: Waiting = lambda: None) -> Iterator[Held]:
        """See Storage. The lock is an object that only one process can create, and that is renewed while it is held.

        If it could not be renewed in time, writing raises LockLostError, and so does the end of the block.
        """
        check_name(name)
        folder = self._under(f"{_LOCKS}/{name}")
        with self._in_words(name):
            key, taken = self._take(folder, waiting)
        holding = _Holding(lambda: self._client.put_object(Bucket=self._bucket, Key=key, Body=_HELD), taken)
        self._held[name] = holding

        def check() -> None:
            if holding.lost():
                raise LockLostError(root=self.root, name=name)

        try:
            yield check
        finally:
            del self._held[name]
            lost = holding.stop()
            if not lost:
                with self._in_words(name):
                    self._client.put_object(Bucket=self._bucket, Key=key, Body=_FREE)
        if lost:
            raise LockLostError(root=self.root, name=name)

    def _take(self, folder: str, waiting: Waiting) -> tuple[str, float]:
        """Wait for the lock under `folder`; return its key and the time just before it was created.

        The key has the number after the highest one, which is free. If several processes create it, one succeeds.
        """
        waits = False
        while True:
            known, now = self._locks(folder)
            number = _number(known[-1]) if known else 0
            if not known or self._is_free(known[-1], now):
                key, began = f"{folder}/{number + 1:012d}", _now()
                if self._create(key):
                    after, _ = self._locks(folder)
                    if all(_number(lock) <= number + 1 for lock in after):
                        for past in known[:-1]:
                            self._client.delete_object(Bucket=self._bucket, Key=past["Key"])
                        return key, began
                    # Others took and released the lock since we listed it, and deleted this number, so we could
                    # create it again: it isn't the lock.
                    self._client.delete_object(Bucket=self._bucket, Key=key)
            elif not waits:
                waits = True
                waiting()
            time.sleep(_RETRY_SECONDS)

    def _create(self, key: str) -> bool:
        """Create the lock `key`; False if there is one."""
        try:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=_HELD, IfNoneMatch="*")
        except ClientError as error:
            if _code(error) not in _TAKEN:
                raise
            return False
        return True

    def _locks(self, folder: str) -> tuple[Sequence[dict[str, Any]], datetime]:
        """The locks under `folder` in order, as the store lists them, and the store's time."""
        answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{folder}/")
        # Some stores list an object that is still being written, under a temporary name.
        numbered = (found for found in answer.get("Contents", ()) if found["Key"].rpartition("/")[2].isdigit())
        known = sorted(numbered, key=_number)
        return known, parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])

    def _is_free(self, lock: dict[str, Any], now: datetime) -> bool:
        """Whether a lock was released or has expired. Both times are the store's, so local clocks don't matter."""
        if now - lock["LastModified"] > timedelta(seconds=LEASE_SECONDS):
            return True
        try:
            return bool(self._client.get_object(Bucket=self._bucket, Key=lock["Key"])["Body"].read() == _FREE)
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
            # The lock was deleted, so there is a newer one.
            return False
        except _BROKEN:
            # Its holder is rewriting it: the next attempt will read it.
            return False


def _number(lock: dict[str, Any]) -> int:
    return int(lock["Key"].rpartition("/")[2])


class _Holding:
    """A lock that is held: a thread renews it until `stop`."""

    def __init__(self, renew: Any, taken: float) -> None:
        self._renew = renew
        self._over = threading.Event()
        self._renewed = taken
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(LEASE_SECONDS / 6):
            began = _now()
            try:
                self._renew()
            except (ClientError, BotoCoreError):
                continue
            if began - self._renewed > LEASE_SECONDS / 2:
                # The renewal came too late: another process may have taken the lock.
                return
            self._renewed = began

    def lost(self) -> bool:
        """Whether another process may hold the lock, or may take it within half of the lease."""
        return self._left() < 0

    def _left(self) -> float:
        """Seconds until the lock counts as lost; negative if it does."""
        return self._renewed + LEASE_SECONDS / 2 - _now()

    def stop(self) -> bool:
        """Stop renewing; True if the lock was lost."""
        self._over.set()
        # A request that hangs may take minutes, so it is waited for only until the lock counts as lost.
        self._thread.join(max(0, self._left()))
        return self.lost() or self._thread.is_alive()


def _now() -> float:
    """A monotonic clock in seconds. Where the system has such a clock, it counts the time the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class _Object(io.RawIOBase):
    """The bytes of an object. Each read is one request for a range, which is retried."""

    def __init__(self, storage: S3Storage, name: str, size: int) -> None:
        self._storage, self._name, self._size, self._at = storage, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._next(PART_BYTES), b""))

    def _next(self, most: int) -> bytes:
        end = min(self._at + most, self._size)
        if end <= self._at:
            return b""
        data = self._storage.read_range(self._name, self._at, end)
        self._at += len(data)
        return data


class _Kept(io.RawIOBase):
    """A view of a stream for an upload, which would otherwise close the stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return cast(int, self._stream.seek(offset, whence))

    def tell(self) -> int:
        return cast(int, self._stream.tell())

    def read(self, size: int = -1) -> bytes:
        return cast(bytes, self._stream.read(size))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
