"""Capture files of a source: which there are, if they are finished, and reading them while others may write.

A source's place is a file, a folder or a glob, on this machine or in a bucket (s3://bucket/prefix). Hidden and
unfinished files are nobody's captures, and a link never leads out of the place: whoever can put files there must not
make landing read others.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import urlsplit

from wirehouse_codecs.core.errors import UsageError
from wirehouse_pipelines.lake.lake import KAFKA, Source
from wirehouse_pipelines.storage.storage import is_local, open_storage

#: A file whose size and time stood still so long is finished.
SETTLE_SECONDS: Final = 10.0
_UNFINISHED = (".part", ".tmp")
_HASH_BYTES = 1 << 20
#: Of a file that changed just now, another change might have the same time.
_RACY_SECONDS = 2


class MissingPathError(UsageError):
    """A source's place or a path to land is not there."""

    template = "source {source!r}: path {path} does not exist: create it, or correct `path` of the source"


class RefusedPathError(UsageError):
    """A path to land is not a regular file, or leads out of its folder."""

    template = "source {source!r}: {path} is refused: {reason}"


class Facts(NamedTuple):
    """What tells that a file is as it was before."""

    #: Of equal ones the bytes are the same.
    identity: tuple[int | str, ...]
    size_bytes: int
    #: Seconds since 1970.
    changed_at: float
    #: Another change just after it would show.
    steady: bool


@dataclass(frozen=True, slots=True, order=True)
class CaptureFile:
    """A file to land: its name relative to the source's place, and its real path."""

    name: str
    path: str

    def facts(self) -> Facts:
        """How it stands now. FileNotFoundError if it is gone."""
        return _facts(os.stat(self.path))

    def open(self) -> tuple[BinaryIO, Facts]:
        """Its bytes, and how it stands."""
        stream = open_regular(self.path)
        return stream, _facts(os.fstat(stream.fileno()))

    def settled(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Its size and time stood still for so long; a time that is still to come says that the clock went back."""
        return abs(time.time() - self.facts().changed_at) >= seconds


@dataclass(frozen=True, slots=True, order=True)
class BucketFile(CaptureFile):
    """An object of a bucket to land. It is there whole or not at all, so that it needs no time to settle."""

    bucket: str
    known: Facts

    def facts(self) -> Facts:
        """See CaptureFile."""
        return self.known

    def open(self) -> tuple[BinaryIO, Facts]:
        """See CaptureFile."""
        return open_storage(self.bucket).open(self.path.removeprefix(f"{self.bucket}/")), self.known

    def settled(self, seconds: float = SETTLE_SECONDS) -> bool:
        """See CaptureFile."""
        return True


def _facts(status: os.stat_result) -> Facts:
    identity = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    now = time.time()
    # A time in the future was set by hand; when it was set is the file system's own knowledge.
    changed = status.st_mtime if status.st_mtime <= now else status.st_ctime
    return Facts(identity, status.st_size, changed, now - status.st_ctime > _RACY_SECONDS)


def captures_at(
    source: Source,
    place: str,
    lake_root: str,
    *,
    refuse: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[CaptureFile]:
    """The files of a file, folder or glob, sorted. Hidden and unfinished ones are passed over.

    Links that leave the folder are passed over too, which is said, or raise RefusedPathError if `refuse`.
    """
    if not is_local(place):
        return _in_bucket(source, place, lake_root)
    place = os.path.abspath(place)
    base, found = _found(source, place)
    home, root = os.path.realpath(base), os.path.realpath(lake_root)
    files: dict[str, CaptureFile] = {}
    for path in found:
        name, real = os.path.relpath(path, base), os.path.realpath(path)
        if _skipped(name) or _within(real, root):
            continue
        reason = _refusal(real, home)
        if reason is None:
            files.setdefault(real, CaptureFile(shown(name), real))
        elif refuse or path == place:
            raise RefusedPathError(source=source.name, path=path, reason=reason)
        else:
            say(f"{source.name}: {name} is left out: {reason}")
    return sorted(files.values())


def shown(name: str) -> str:
    """A file's name as text: what of it is no UTF-8 stands as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_place(source: Source) -> None:
    """Raise MissingPathError if a source's place on this machine is not there."""
    if source.kind != KAFKA and is_local(source.path):
        _base(source, source.path)


def _base(source: Source, place: str) -> str:
    """The folder that holds all of `place`."""
    if os.path.isdir(place):
        return place
    if os.path.lexists(place):
        return os.path.dirname(place)
    base = place
    while glob.has_magic(base):
        base = os.path.dirname(base)
    if base == place or not os.path.isdir(base):
        raise MissingPathError(source=source.name, path=base)
    return base


def _found(source: Source, place: str) -> tuple[str, list[str]]:
    """The folder that holds all of `place`, and the candidates."""
    base = _base(source, place)
    if base == place:
        return base, sorted(_walk(place))
    if os.path.lexists(place):
        return base, [place]
    found = sorted(glob.glob(place, recursive=True))
    return base, [file for path in found for file in (_walk(path) if _is_folder(path) else [path])]


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _walk(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(parent, name) for name in files)


def _skipped(name: str) -> bool:
    return name.endswith(_UNFINISHED) or any(part.startswith(".") for part in name.split(os.sep))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _refusal(real: str, home: str) -> str | None:
    if not _within(real, home):
        return f"it is a link that leaves {home}"
    try:
        mode = os.stat(real).st_mode
    except OSError as error:
        return str(error.strerror)
    return None if stat.S_ISREG(mode) else "it is no regular file"


def _in_bucket(source: Source, place: str, lake_root: str) -> list[CaptureFile]:
    """The objects that `place` names: one, those below it, or those of a pattern, whose * also stands for /."""
    # Its library takes a while to load, and local files don't need it.
    from wirehouse_pipelines.storage.object_storage import S3Storage

    parts = urlsplit(place)
    bucket, wanted = f"{parts.scheme}://{parts.netloc}", place.split("/", 3)[3].strip("/") if parts.path else ""
    fixed = wanted if not glob.has_magic(wanted) else _before_pattern(wanted)
    folder = f"{fixed}/" if fixed else ""
    # Whoever names a place in the lake's root means it.
    inside = place.startswith(f"{lake_root}/")
    files: list[CaptureFile] = []
    for found in S3Storage(bucket).objects(fixed):
        if found.name == wanted:
            name = found.name.rpartition("/")[2]
        elif found.name.startswith(folder) and (wanted == fixed or fnmatch.fnmatchcase(found.name, wanted)):
            name = found.name[len(folder) :]
        else:
            continue
        changed = found.modified.timestamp()
        facts = Facts((found.etag, found.size_bytes, str(found.modified)), found.size_bytes, changed, True)
        path = f"{bucket}/{found.name}"
        # A name that ends in / stands for a folder, as consoles make them.
        if not (_skipped(name) or name.endswith("/") or not name or (_within(path, lake_root) and not inside)):
            files.append(BucketFile(name, path, bucket, facts))
    if not files and wanted == fixed:
        raise MissingPathError(source=source.name, path=place)
    return sorted(files)


def _before_pattern(wanted: str) -> str:
    """The folder of a pattern."""
    while glob.has_magic(wanted):
        wanted = wanted.rpartition("/")[0]
    return wanted


def open_regular(path: str) -> BinaryIO:
    """Open without following a link that was put there since the path was checked, and without waiting on a pipe."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    stream = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        stream.close()
        raise OSError(f"{path} is no regular file")
    return stream


class Hashed(io.RawIOBase):
    """A stream that hashes what is read of it, each byte once."""

    def __init__(self, stream: BinaryIO) -> None:
        stream.seek(0)
        self._stream = stream
        self._digest = hashlib.sha256()
        self._hashed = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Only bytes that were hashed can be gone back to."""
        position = self._stream.seek(offset, whence)
        if position > self._hashed:
            raise io.UnsupportedOperation("seek beyond what was read")
        return position

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        position = self._stream.tell()
        piece = self._stream.read(size)
        self._digest.update(memoryview(piece)[self._hashed - position :])
        self._hashed = max(self._hashed, position + len(piece))
        return piece

    def rest(self) -> str:
        """Hash what was not read; the SHA-256 of all, hex."""
        self.seek(self._hashed)
        while self.read(_HASH_BYTES):
            pass
        return self._digest.hexdigest()
