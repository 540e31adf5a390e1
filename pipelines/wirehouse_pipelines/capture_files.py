"""Capture files of a source: which there are, if they are finished, and reading them while others may write.

A source's place is a file, a folder or a glob. Hidden and unfinished files are nobody's captures, and a link never
leads out of the place: whoever can put files there must not make landing read others.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from wirehouse_codecs.errors import UsageError
from wirehouse_pipelines.lake import Source

#: A file whose size and time stood still so long is finished.
SETTLE_SECONDS: Final = 10.0
_UNFINISHED = (".part", ".tmp")
_HASH_BYTES = 1 << 20


class MissingPathError(UsageError):
    """A source's place or a path to land is not there."""

    template = "source {source!r}: path {path} does not exist: create it, or correct `path` of the source"


class RefusedPathError(UsageError):
    """A path to land is not a regular file, or leads out of its folder."""

    template = "source {source!r}: {path} is refused: {reason}"


@dataclass(frozen=True, slots=True, order=True)
class CaptureFile:
    """A file to land: its name relative to the source's place, and its real path."""

    name: str
    path: str


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
    if "://" in place:
        raise RefusedPathError(source=source.name, path=place, reason="only local files can be landed in this release")
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
            files.setdefault(real, CaptureFile(name, real))
        elif refuse or path == place:
            raise RefusedPathError(source=source.name, path=path, reason=reason)
        else:
            say(f"{source.name}: {name} is left out: {reason}")
    return sorted(files.values())


def _found(source: Source, place: str) -> tuple[str, list[str]]:
    """The folder that holds all of `place`, and the candidates."""
    if os.path.isdir(place):
        return place, sorted(_walk(place))
    if os.path.lexists(place):
        return os.path.dirname(place), [place]
    base = place
    while glob.has_magic(base):
        base = os.path.dirname(base)
    if base == place or not os.path.isdir(base):
        raise MissingPathError(source=source.name, path=base)
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


def settled(path: str, seconds: float = SETTLE_SECONDS) -> bool:
    """The file's size and time stood still for so long."""
    status, now = os.stat(path), time.time()
    # A time in the future was set by hand; when it was set is the file system's own knowledge.
    changed = status.st_mtime if status.st_mtime <= now else status.st_ctime
    return now - changed >= seconds


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
