"""Where a lake keeps its objects: one abstraction, a local folder by default.

Names are relative to the root, with `/` between the parts. An object appears whole or not at all: it is written under
a hidden name, synced and renamed. Hidden names (a dot in front, or ending in `.part`) are nobody's objects.
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
#: How an address begins. One letter is no scheme.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class StorageError(WirehouseError):
    """A root or an object's name can't be used."""

    template = "{name}: {reason}"


class RefusedError(StorageError):
    """A store answers, and refuses."""


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """An object in the storage."""

    name: str
    size_bytes: int
    #: Another once it is written anew; empty if the store doesn't tell.
    version: str = field(default="", compare=False)


#: Raises LockLostError if a lock may be another's by now.
Held = Callable[[], None]
Waiting = Callable[[], object]


class Storage(Protocol):
    """Objects under one root."""

    root: str

    def list(self, prefix: str) -> Iterator[Stored]:
        """All objects under the folder `prefix` (or the whole root if empty), sorted by name."""
        ...

    def open(self, name: str) -> BinaryIO:
        """The object's bytes, from the first; FileNotFoundError if there is none."""
        ...

    def writer(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A stream whose bytes become the object when the block ends without an exception, else nothing."""
        ...

    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """`data` as an object, whole or not at all; `private`: for nobody else's eyes."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object, if there is one."""
        ...

    def exists(self, name: str) -> bool:
        """There is such an object."""
        ...

    def sweep(self, prefix: str) -> None:
        """Remove what killed writers, and removers, left under the folder `prefix`. Only for who holds its lock."""
        ...

    def lock(self, name: str, waiting: Waiting = lambda: None) -> AbstractContextManager[Held]:
        """Keep other processes out of what `name` stands for while the block runs; waits for them.

        `waiting` is called once if another has it.
        """
        ...


class LocalStorage:
    """Objects as files of a folder, which is made when first written to."""

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
                # It may be removed meanwhile.
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
        # Hadoop's sums of files, which it removes with them; others don't.
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
            # The system gives it to nobody else before it is closed.
            yield lambda: None


@contextmanager
def _new_file(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file when the block ends without an exception, else nothing."""
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
    """`text` as a file that only its owner may read, whole or not at all."""
    with _new_file(path, 0o600) as stream:
        stream.write(text.encode())


def check_name(name: str) -> tuple[str, ...]:
    """The parts of an object's name. StorageError if it is none."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or any(is_hidden(part) for part in parts):
        raise StorageError(name=name, reason="is no name of an object")
    return parts


def is_hidden(part: str) -> bool:
    """A part of a name that makes it nobody's object."""
    return part.startswith(".") or part.endswith(PART)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """A rename lasts once its folder is on disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def unreached(error: object) -> str:
    """What is to be said of a store that doesn't answer."""
    return f"the store can't be reached ({masked(error)}): check the network and AWS_ENDPOINT_URL"


def masked(error: object) -> str:
    """What an error says, without the name and password that an address may have in it, also one that is none."""
    user, at, _ = (store_endpoint() or "").rpartition("@")
    text = str(error).replace(user.rpartition("//")[2] + at, "") if at else str(error)
    return _USER.sub("", text)


def store_endpoint() -> str | None:
    """The address of the object store, if the environment says one: as boto3 reads it."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def is_local(root: str) -> bool:
    """`root` is a folder of this machine, not an address, as `s3://bucket` and `dbfs:/folder` are."""
    return not _SCHEME.match(root)


def open_storage(root: str) -> Storage:
    """The storage of a lake's root; StorageError for a kind of place that isn't supported."""
    if is_local(root):
        return LocalStorage(root)
    if not root.startswith("s3://"):
        raise StorageError(name=root, reason="a lake's root is a folder or s3://bucket/prefix")
    # Its library takes a while to load, and a local lake doesn't need it.
    from wirehouse_pipelines.storage.object_storage import S3Storage

    return S3Storage(root)
