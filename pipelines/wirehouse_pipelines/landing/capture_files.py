"""The capture files of a source: listing them, checking whether they are complete, and opening them.

A source's path is a file, a folder or a glob, on this machine or in a bucket (s3://bucket/prefix). Hidden files and
unfinished ones (.part, .tmp) are skipped. Links that lead out of the path are skipped or refused: whoever may put files
there must not be able to make landing read other files.

Other processes may write while landing reads. `CaptureFile.settled` checks whether a file has stopped changing, and
`Facts` whether it is still the one that was read before.
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

#: A file that hasn't changed for this long is complete.
SETTLE_SECONDS: Final = 10.0
_UNFINISHED = (".part", ".tmp")
_HASH_BYTES = 1 << 20
#: Two changes within this time may get the same timestamp, so a recent timestamp doesn't identify a file's content.
_RACY_SECONDS = 2


class MissingPathError(UsageError):
    """A source's path, or a path to land, doesn't exist."""

    template = "source {source!r}: path {path} does not exist: create it, or correct `path` of the source"


class RefusedPathError(UsageError):
    """A path to land isn't a regular file, or leads out of its folder."""

    template = "source {source!r}: {path} is refused: {reason}"


class Facts(NamedTuple):
    """Metadata of a file, to recognise later that it hasn't changed."""

    #: Equal identities mean equal content.
    identity: tuple[int | str, ...]
    size_bytes: int
    #: Seconds since 1970.
    changed_at: float
    #: Whether any later change would give another identity. False if the file changed just now.
    steady: bool


@dataclass(frozen=True, slots=True, order=True)
class CaptureFile:
    """A file to land: its name relative to the source's path, and its real path."""

    name: str
    path: str

    def facts(self) -> Facts:
        """Its metadata now. Raises FileNotFoundError."""
        return _facts(os.stat(self.path))

    def open(self) -> tuple[BinaryIO, Facts]:
        """Open it; a stream and its metadata."""
        stream = open_regular(self.path)
        return stream, _facts(os.fstat(stream.fileno()))

    def settled(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Whether it hasn't changed for `seconds`. A time in the future counts too: the clock was set back."""
        return abs(time.time() - self.facts().changed_at) >= seconds


@dataclass(frozen=True, slots=True, order=True)
class BucketFile(CaptureFile):
    """An object of a bucket to land. Objects appear as a whole, so there is no need to wait for the writer."""

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
    # A modification time in the future was set by a program. The file system's change time shows when.
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
    """The capture files at `place` (a file, folder or glob), sorted. Hidden and unfinished ones are skipped.

    Links that leave the folder are skipped with a message to `say`; with `refuse` they raise RefusedPathError. Files
    within the lake's root are skipped.
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
    """A file's name as text; bytes that aren't UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_place(source: Source) -> None:
    """Raise MissingPathError if a source's path on this machine doesn't exist."""
    if source.kind != KAFKA and is_local(source.path):
        _base(source, source.path)


def _base(source: Source, place: str) -> str:
    """The folder that contains all files of `place`."""
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
    """The folder that contains all files of `place`, and the paths of the candidates."""
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
    if not os.path.exists(real):
        return "it is a link to a file that isn't there"
    if not _within(real, home):
        return f"it is a link that leaves {home}"
    try:
        mode = os.stat(real).st_mode
    except OSError as error:
        return str(error.strerror)
    return None if stat.S_ISREG(mode) else "it isn't a regular file"


def _in_bucket(source: Source, place: str, lake_root: str) -> list[CaptureFile]:
    """The objects at `place`: one object, a folder, or a pattern, whose * also matches /."""
    # Imported on use: boto3 takes a while to load, and local files don't need it.
    from wirehouse_pipelines.storage.object_storage import S3Storage

    parts = urlsplit(place)
    bucket, wanted = f"{parts.scheme}://{parts.netloc}", place.split("/", 3)[3].strip("/") if parts.path else ""
    fixed = wanted if not glob.has_magic(wanted) else _before_pattern(wanted)
    folder = f"{fixed}/" if fixed else ""
    # Objects of the lake are skipped, unless the path is explicitly within the lake's root.
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
        # An object whose name ends in / is a placeholder for a folder, created by a web console.
        if not (_skipped(name) or name.endswith("/") or not name or (_within(path, lake_root) and not inside)):
            files.append(BucketFile(name, path, bucket, facts))
    if not files and wanted == fixed:
        raise MissingPathError(source=source.name, path=place)
    return sorted(files)


def _before_pattern(wanted: str) -> str:
    """The part of a pattern that is a plain folder."""
    while glob.has_magic(wanted):
        wanted = wanted.rpartition("/")[0]
    return wanted


def open_regular(path: str) -> BinaryIO:
    """Open a regular file safely: a link that replaced it since the check isn't followed, and a pipe doesn't block."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    stream = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        stream.close()
        raise OSError(f"{path} isn't a regular file")
    return stream


class Hashed(io.RawIOBase):
    """A stream that computes the SHA-256 of the bytes that are read, each byte once, even after seeking back."""

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
        """Seek to a position among the bytes that were read already."""
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
        """Read to the end; the SHA-256 of the whole stream in hex."""
        self.seek(self._hashed)
        while self.read(_HASH_BYTES):
            pass
        return self._digest.hexdigest()
