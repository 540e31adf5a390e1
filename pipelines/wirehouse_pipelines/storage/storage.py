"""Storage: the interface to the objects of a lake, and its implementation for a local folder.

`open_storage(root)` returns the implementation for a root: LocalStorage here, or S3Storage in object_storage.py. Names
of objects are relative to the root, with `/` between the parts. An object becomes visible as a whole or not at all:
LocalStorage writes it under a hidden name, syncs it to disk and renames it. Files with hidden names (they begin with a
dot or end in `.part`) are not objects and are never listed.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Protocol

from wirehouse_codecs.core.errors import WirehouseError

PART = ".part"
_SUMS = ".crc"
_USER: Final = re.compile(r"(?<=//)[^/@\s]*@")
#: The scheme of an address. A single letter is none (it could be a drive).
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class StorageError(WirehouseError):
    """A root or a name can't be used, or the store failed."""

    template = "{name}: {reason}"


class RefusedError(StorageError):
    """The store answered with a refusal."""


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """An object in a listing."""

    name: str
    size_bytes: int
    #: Changes whenever the object is rewritten; empty if the store doesn't report it.
    version: str = field(default="", compare=False)


#: Checks a lock: raises LockLostError if another process may hold it by now.
Held = Callable[[], None]
Waiting = Callable[[], object]


class Storage(Protocol):
    """Objects under one root."""

    root: str

    def list(self, prefix: str) -> Iterator[Stored]:
        """Yield all objects under the folder `prefix` (or the whole root if empty), sorted by name."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open an object for reading. Raises FileNotFoundError if there is none."""
        ...

    def writer(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A stream whose bytes become the object when the block ends. If it ends with an exception, there is none."""
        ...

    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Write `data` as an object, as a whole or not at all. Only the owner may read a `private` one."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object, if there is one."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        ...

    def sweep(self, prefix: str) -> None:
        """Remove what killed processes left under the folder `prefix`. The caller must hold its lock."""
        ...

    def lock(self, name: str, waiting: Waiting = lambda: None) -> AbstractContextManager[Held]:
        """Hold the lock `name` while the block runs. Waits until no other process holds it.

        `waiting` is called once if another process holds it. The block gets a function that checks the lock.
        """
        ...


class LocalStorage:
    """Objects as files of a local folder, which is created by the first write."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def _path(self, name: str) -> Path:
        return Path(self.root, *check_name(name))

    def list(self, prefix: str) -> Iterator[Stored]:
        """See Storage."""
        folder = self._path(prefix) if prefix else Path(self.root)
        found = []
        for parent, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if not is_hidden(name)]
            for name in files:
                if is_hidden(name):
                    continue
                path = Path(parent, name)
                # The file may have been removed meanwhile.
                with suppress(FileNotFoundError):
                    facts = path.stat()
                    version = f"{facts.st_ino} {facts.st_mtime_ns}"
                    found.append(Stored(path.relative_to(self.root).as_posix(), facts.st_size, version))
        yield from sorted(found)

    def open(self, name: str) -> BinaryIO:
        """See Storage."""
        return self._path(name).open("rb")

    @contextmanager
    def writer(self, name: str, mode: int = 0o644) -> Iterator[BinaryIO]:
        """See Storage."""
        path = self._path(name)
        _make_folder(path.parent)
        with _new_file(path, mode) as stream:
            yield stream

    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """See Storage."""
        with self.writer(name, 0o600 if private else 0o644) as stream:
            stream.write(data)

    def delete(self, name: str) -> None:
        """See Storage."""
        with suppress(FileNotFoundError):
            self._path(name).unlink()

    def exists(self, name: str) -> bool:
        """See Storage."""
        return self._path(name).is_file()

    def sweep(self, prefix: str) -> None:
        """See Storage."""
        for part in self._path(prefix).rglob(f".*{PART}"):
            part.unlink(missing_ok=True)
        # Hadoop writes a checksum file beside each file. Only Hadoop removes it together with the file.
        for sums in self._path(prefix).rglob(f".*{_SUMS}"):
            if not sums.with_name(sums.name[1 : -len(_SUMS)]).exists():
                sums.unlink(missing_ok=True)

    @contextmanager
    def lock(self, name: str, waiting: Waiting = lambda: None) -> Iterator[Held]:
        """See Storage."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(stream, fcntl.LOCK_EX)
            # Such a lock is never lost: the system releases it only when the file is closed.
            yield lambda: None


@contextmanager
def _new_file(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file when the block ends. If it ends with an exception, there is none."""
    number, part = tempfile.mkstemp(PART, f".{path.name}.", path.parent)
    try:
        with os.fdopen(number, "w+b") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.rename(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise
    _sync_folder(path.parent)


def write_private(path: Path, text: str) -> None:
    """Write `text` to a file that only its owner may read, as a whole or not at all."""
    with _new_file(path, 0o600) as stream:
        stream.write(text.encode())


def check_name(name: str) -> tuple[str, ...]:
    """The parts of an object's name. Raises StorageError if it isn't a valid name."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or any(is_hidden(part) for part in parts):
        raise StorageError(name=name, reason="isn't a valid name of an object")
    return parts


def is_hidden(part: str) -> bool:
    """Whether a part of a name hides the file: it isn't an object."""
    return part.startswith(".") or part.endswith(PART)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder to disk: only then does a rename in it survive a crash."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def unreached(error: object) -> str:
    """The message for a store that doesn't answer."""
    return f"the store can't be reached ({masked(error)}): check the network and AWS_ENDPOINT_URL"


def masked(error: object) -> str:
    """The text of an error without the user name and password of an address, even if the address isn't valid."""
    user, at, _ = (store_endpoint() or "").rpartition("@")
    text = str(error).replace(user.rpartition("//")[2] + at, "") if at else str(error)
    return _USER.sub("", text)


def store_endpoint() -> str | None:
    """The address of the object store from the environment, if it has one, as boto3 reads it."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def is_local(root: str) -> bool:
    """Whether `root` is a folder of this machine, not an address such as `s3://bucket` or `dbfs:/folder`."""
    return not _SCHEME.match(root)


def open_storage(root: str) -> Storage:
    """The storage of a lake's root. Raises StorageError if this kind of root isn't supported."""
    if is_local(root):
        return LocalStorage(root)
    if not root.startswith("s3://"):
        raise StorageError(name=root, reason="a lake's root is a folder or s3://bucket/prefix")
    # Imported on use: boto3 takes a while to load, and a local lake doesn't need it.
    from wirehouse_pipelines.storage.object_storage import S3Storage

    return S3Storage(root)
