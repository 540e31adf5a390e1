"""Landing: captures kept as they came, as Avro objects that Spark reads.

A capture is one file; its id is the SHA-256 of the file. Its records go to
`landing/KIND/SOURCE/WINDOW/CAPTURE_ID-NNNN.avro`, and a manifest, written last, is the commit: what no manifest names
doesn't exist. Landing a capture again does nothing.

Order: `ts_ns` is a record's own time. `arrived_at_ns` is the running maximum of it within the capture, never before
the first window of the lake; a time later than the moment of landing moves nothing and is noted (capture.time_suspect).
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wirehouse_codecs.capture_rules import RULE
from wirehouse_codecs.captures import MessageCapture
from wirehouse_codecs.errors import WirehouseError
from wirehouse_codecs.rules import Rule
from wirehouse_pipelines import landed_messages, window_size
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.storage import Storage, open_storage
from wirehouse_pipelines.windows import NS_PER_SECOND, Windows

#: A landed object takes at most this.
MAX_OBJECT_BYTES: Final = 128 << 20
#: Of a rejected file this many bytes are kept.
REJECTED_BYTES: Final = 16 << 20
#: Findings of one rule that a manifest lists; the last listed says how many more there are.
LISTED_FINDINGS: Final = 1_000
#: A file whose size and time stood still so long is taken by the sensor.
SETTLE_SECONDS: Final = 10.0
_HASH_BYTES = 1 << 20
_MANIFESTS = "landing/manifests"
_BEGUN = "landing/begun"
_UNFINISHED = (".part", ".tmp")

LANDED, DAMAGED, REJECTED = "landed", "damaged", "rejected"


class MissingPathError(WirehouseError):
    """A source's place or a path to land is not there."""

    template = "source {source!r}: path {path} does not exist: create it, or correct `path` of the source"


class RefusedPathError(WirehouseError):
    """A path to land is not a regular file, or leads out of its folder."""

    template = "source {source!r}: {path} is refused: {reason}"


class KindError(WirehouseError):
    """A source's kind can't be landed."""

    template = "source {source!r}: kind {kind!r} can't be landed, only {known}"


class NotLandedError(WirehouseError):
    """Some files could not be read or changed meanwhile; all others are landed."""

    template = "source {source!r}: {count} files were left for the next run: {reason}"
    retry_helps = True


class _FileChanged(Exception):
    pass


@dataclass(frozen=True, slots=True)
class WindowObjects:
    """What a capture has in one window."""

    #: Names relative to the lake's root, in order.
    objects: tuple[str, ...]
    records: int


@dataclass(frozen=True, slots=True)
class CaptureFinding:
    """A rule `capture.*` broken by a capture or one of its records."""

    rule: str
    record_number: int | None
    arrived_at_ns: int
    message: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was landed of a capture."""

    source: str
    protocol: str
    kind: str
    #: SHA-256 of the original file, hex.
    capture_id: str
    #: Relative to the source's place.
    path: str
    #: landed, damaged (landed up to the damage) or rejected.
    status: str
    #: Why it was rejected, or what the damage is.
    reason: str | None
    size_bytes: int
    records: int
    first_arrived_at_ns: int | None
    last_arrived_at_ns: int | None
    landed_at_ns: int
    windows: Mapping[str, WindowObjects] = field(default_factory=dict)
    findings: tuple[CaptureFinding, ...] = ()

    def to_json(self) -> str:
        """The manifest as an object of the storage holds it."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes | str) -> Manifest:
        """The manifest whose `to_json()` is `text`."""
        fields = json.loads(text)
        windows = {
            name: WindowObjects(tuple(window["objects"]), window["records"])
            for name, window in fields.pop("windows").items()
        }
        findings = tuple(CaptureFinding(**finding) for finding in fields.pop("findings"))
        return cls(**fields, windows=windows, findings=findings)


def manifest_name(source: str, capture_id: str) -> str:
    """Name of a manifest's object."""
    return f"{_MANIFESTS}/{source}/{capture_id}.json"


def manifests(lake: Lake, source: str | None = None) -> list[Manifest]:
    """All committed manifests (of one source), by source and capture id."""
    storage = open_storage(lake.root)
    prefix = _MANIFESTS if source is None else f"{_MANIFESTS}/{source}"
    found = []
    for stored in storage.list(prefix):
        with storage.open(stored.name) as stream:
            found.append(Manifest.from_json(stream.read()))
    return found


def settled(path: str, seconds: float = SETTLE_SECONDS) -> bool:
    """The file's size and time stood still for so long. Looks twice, so it takes as long, unless the file is older."""
    before = os.stat(path)
    if time.time() - before.st_mtime >= seconds:
        return True
    time.sleep(seconds)
    after = os.stat(path)
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def land(
    lake: Lake,
    source: Source,
    paths: Sequence[str] | None = None,
    *,
    now_ns: int | None = None,
    progress: Callable[[str], None] | None = None,
    settle_seconds: float = 0,
) -> list[Manifest]:
    """Land the captures of `source` (or these files into it) that aren't yet; the manifests of the new ones.

    `now_ns` is the moment of landing. Files that changed within `settle_seconds` wait for the next run. Raises
    MissingPathError, RefusedPathError and KindError before anything is landed, NotLandedError after everything else is.
    """
    if source.kind not in READERS:
        raise KindError(source=source.name, kind=source.kind, known=", ".join(READERS))
    say = progress or (lambda text: None)
    files = [
        file for path in (paths or [source.path]) for file in captures_at(source, path, lake.root, refuse=bool(paths))
    ]
    window_size.record(lake)
    storage = open_storage(lake.root)
    landed: list[Manifest] = []
    left: list[str] = []
    with storage.lock(f"{_MANIFESTS}/{source.name}"):
        _clear_unfinished(storage, source)
        for file in files:
            if settle_seconds and not settled(file.path, settle_seconds):
                say(f"{source.name}: {file.name} is still being written, left for the next run")
                continue
            try:
                manifest = _Landing(lake, storage, source, file, now_ns or time.time_ns()).run()
            except (_FileChanged, OSError) as error:
                left.append(f"{file.name} ({error})")
                continue
            if manifest:
                landed.append(manifest)
                say(f"{source.name}: {manifest.path}: {manifest.status}, {manifest.records:,} records")
    if left:
        raise NotLandedError(source=source.name, count=len(left), reason="; ".join(left[:3]))
    return landed


@dataclass(frozen=True, slots=True, order=True)
class CaptureFile:
    """A file to land: its name relative to the source's place, and its real path."""

    name: str
    path: str


def captures_at(source: Source, place: str, lake_root: str, *, refuse: bool = False) -> list[CaptureFile]:
    """The files of a file, folder or glob, sorted. Hidden and unfinished ones are passed over.

    Links that leave the folder are passed over too, or raise RefusedPathError if `refuse`.
    """
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


def _clear_unfinished(storage: Storage, source: Source) -> None:
    """Remove the objects of captures whose landing was killed before its commit."""
    for begun in list(storage.list(f"{_BEGUN}/{source.name}")):
        capture_id = begun.name.rpartition("/")[2]
        if not storage.exists(manifest_name(source.name, capture_id)):
            _remove_objects(storage, source, capture_id)
        storage.delete(begun.name)


def _remove_objects(storage: Storage, source: Source, capture_id: str) -> None:
    folder = f"landing/{source.kind}/{source.name}"
    storage.sweep(folder)
    for stored in list(storage.list(folder)):
        if stored.name.rpartition("/")[2].startswith(capture_id):
            storage.delete(stored.name)


def _open_regular(path: str) -> BinaryIO:
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


class _Landing:
    """Lands one file."""

    def __init__(self, lake: Lake, storage: Storage, source: Source, file: CaptureFile, now_ns: int) -> None:
        self._lake = lake
        self._storage = storage
        self._source = source
        self._file = file
        self._now_ns = now_ns

    def run(self) -> Manifest | None:
        """The new manifest; None if the capture is landed already."""
        with _open_regular(self._file.path) as stream:
            before = os.fstat(stream.fileno())
            capture_id = Hashed(stream).rest()
            name = manifest_name(self._source.name, capture_id)
            if self._storage.exists(name):
                return None
            begun = f"{_BEGUN}/{self._source.name}/{capture_id}"
            self._storage.write(begun, b"")
            try:
                read = Hashed(stream)
                manifest = self._land(cast(BinaryIO, read), capture_id, before.st_size)
                if read.rest() != capture_id:
                    raise _FileChanged("it changed while it was read")
            except (_FileChanged, OSError):
                _remove_objects(self._storage, self._source, capture_id)
                self._storage.delete(begun)
                raise
            self._storage.write(name, manifest.to_json().encode())
            self._storage.delete(begun)
            return manifest

    def _land(self, stream: BinaryIO, capture_id: str, size_bytes: int) -> Manifest:
        capture = MessageCapture(stream)
        if capture.unreadable is not None:
            self._reject(stream, capture_id)
        clock = Clock(self._lake.windows.start_ns(self._lake.windows.start), self._now_ns)
        with _ObjectWriter(self._storage, self._source, capture_id, self._lake.windows, clock) as objects:
            for batch in capture.batches():
                objects.add(batch)
        findings = clock.findings()
        if capture.damage is not None:
            at = clock.now if clock.records else self._now_ns
            findings += (CaptureFinding(RULE["file_damaged"].id, None, at, capture.damage),)
        return Manifest(
            source=self._source.name,
            protocol=self._source.protocol,
            kind=self._source.kind,
            capture_id=capture_id,
            path=self._file.name,
            status=REJECTED if capture.unreadable else DAMAGED if capture.damage else LANDED,
            reason=capture.unreadable or capture.damage,
            size_bytes=size_bytes,
            records=clock.records,
            first_arrived_at_ns=clock.first,
            last_arrived_at_ns=clock.now if clock.records else None,
            landed_at_ns=self._now_ns,
            windows=objects.windows,
            findings=findings,
        )

    def _reject(self, stream: BinaryIO, capture_id: str) -> None:
        stream.seek(0)
        self._storage.write(f"landing/rejected/{self._source.name}/{capture_id}", stream.read(REJECTED_BYTES))


class Clock:
    """Gives records their arrival, and notes the times that can't be."""

    def __init__(self, start_ns: int, landed_at_ns: int) -> None:
        #: Arrival of the last record; the lake's start before the first.
        self.now = start_ns
        #: Arrival of the first record.
        self.first: int | None = None
        self.records = 0
        self._landed_at_ns = landed_at_ns
        self._suspects: list[CaptureFinding] = []
        self._suspect_count = 0

    def tick(self, ts_ns: pa.Array) -> npt.NDArray[np.int64]:
        """`arrived_at_ns` of the next records, whose own times are `ts_ns`."""
        times = ts_ns.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
        suspect = times > self._landed_at_ns
        arrived = np.maximum.accumulate(np.maximum(np.where(suspect, np.iinfo(np.int64).min, times), self.now))
        for i in np.flatnonzero(suspect):
            self._suspect_count += 1
            if len(self._suspects) < LISTED_FINDINGS:
                self._suspects.append(self._suspicion(int(i), int(times[i]), int(arrived[i])))
        if len(arrived):
            self.first = int(arrived[0]) if self.first is None else self.first
            self.now = int(arrived[-1])
            self.records += len(arrived)
        return arrived

    def _suspicion(self, i: int, ts_ns: int, arrived_at_ns: int) -> CaptureFinding:
        rule: Rule = RULE["time_suspect"]
        ahead = (ts_ns - self._landed_at_ns) / NS_PER_SECOND
        message = f"time {ts_ns} ns is {ahead:.3f} s later than the landing at {self._landed_at_ns} ns"
        return CaptureFinding(rule.id, self.records + i, arrived_at_ns, message)

    def findings(self) -> tuple[CaptureFinding, ...]:
        """One finding a suspect time, the first LISTED_FINDINGS of them."""
        more = self._suspect_count - len(self._suspects)
        if more:
            last = self._suspects[-1]
            message = f"{last.message}; {more} more later records are not listed"
            self._suspects[-1] = CaptureFinding(last.rule, last.record_number, last.arrived_at_ns, message)
        return tuple(self._suspects)


class _ObjectWriter:
    """Writes a capture's records to objects, one open at a time: arrival never goes back."""

    def __init__(self, storage: Storage, source: Source, capture_id: str, windows: Windows, clock: Clock) -> None:
        self._storage = storage
        self._folder = f"landing/{source.kind}/{source.name}"
        self._capture_id = bytes.fromhex(capture_id)
        self._lake_windows = windows
        self._clock = clock
        self._window = ""
        self._open = ExitStack()
        self._stream: BinaryIO | None = None
        self._container: Any = None
        #: Window -> its objects so far.
        self.windows: dict[str, WindowObjects] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the next records."""
        first_number = self._clock.records
        arrived = self._clock.tick(batch.column("ts_ns"))
        for window, begin, end in _runs(self._lake_windows, arrived):
            if window != self._window:
                self.close()
                self._window = window
            self._write(batch.slice(begin, end - begin), arrived[begin:end], first_number + begin)

    def _write(self, batch: pa.RecordBatch, arrived: npt.NDArray[np.int64], number: int) -> None:
        first = self._clock.first
        assert first is not None  # the clock has ticked for this batch
        encoded, ends = landed_messages.encode(batch, arrived, number, first, self._capture_id)
        for block in landed_messages.blocks(encoded, ends):
            if self._stream is not None and self._stream.tell() + block.largest > MAX_OBJECT_BYTES:
                self.close()
            if self._container is None:
                self._begin()
            self._container.write_block(block)
            window = self.windows[self._window]
            self.windows[self._window] = WindowObjects(window.objects, window.records + block.num_records)

    def _begin(self) -> None:
        window = self.windows.get(self._window, WindowObjects((), 0))
        name = f"{self._folder}/{self._window}/{self._capture_id.hex()}-{len(window.objects):04d}.avro"
        self._stream = self._open.enter_context(self._storage.writer(name))
        self._container = landed_messages.container(self._stream)
        self.windows[self._window] = WindowObjects((*window.objects, name), window.records)

    def close(self) -> None:
        """Finish the open object."""
        self._stream = self._container = None
        self._open.close()

    def __enter__(self) -> _ObjectWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        """Finish the open object, or drop it after an error."""
        self._stream = self._container = None
        self._open.__exit__(*error)


def _runs(windows: Windows, arrived: npt.NDArray[np.int64]) -> Iterator[tuple[str, int, int]]:
    """Cut rising arrivals at the windows' bounds: window, first and end position."""
    begin = 0
    while begin < len(arrived):
        window = windows.of(int(arrived[begin]))
        end = int(np.searchsorted(arrived, windows.start_ns(windows.after(window)), "left"))
        yield window, begin, end
        begin = end


READERS = {"messages": MessageCapture}
