"""Manifests: for each capture, what was landed.

A manifest is a JSON object `landing/manifests/SOURCE/CAPTURE_ID.json`. It is written last and is the commit: records
that no manifest names don't exist for the rest of the pipeline.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Final

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.landing.offset_ranges import OffsetRange
from wirehouse_pipelines.storage.storage import Storage, open_storage

MANIFESTS: Final = "landing/manifests"

LANDED, DAMAGED, REJECTED, FORGOTTEN = "landed", "damaged", "rejected", "forgotten"


@dataclass(frozen=True, slots=True)
class WindowObjects:
    """The records of a capture in one window."""

    #: Names relative to the lake's root, in order.
    objects: tuple[str, ...]
    records: int


@dataclass(frozen=True, slots=True)
class CaptureFinding:
    """A violation of a rule `capture.*` by a capture or one of its records."""

    rule: str
    record_number: int | None
    arrived_at_ns: int
    message: str


@dataclass(frozen=True)
class Manifest:
    """A capture that was landed."""

    source: str
    protocol: str
    kind: str
    #: SHA-256 in hex: of the original file, or of what identifies a range of offsets.
    capture_id: str
    #: The file relative to the source's path; for a range of offsets TOPIC/PARTITION/BEGIN-END.
    path: str
    #: landed, damaged (landed up to the damage), rejected, or forgotten (erased; the other fields are empty).
    status: str
    #: Why it was rejected, or what the damage is.
    reason: str | None
    size_bytes: int
    records: int
    #: How many of them could not be parsed as records of this kind of source; their bytes are kept.
    unreadable_records: int
    first_arrived_at_ns: int | None
    last_arrived_at_ns: int | None
    landed_at_ns: int
    windows: Mapping[str, WindowObjects] = field(default_factory=dict)
    findings: tuple[CaptureFinding, ...] = ()
    #: The range, if the records are a broker's.
    offsets: OffsetRange | None = None
    #: Packets that were truncated when they were captured.
    cut_packets: int = 0
    #: When the landed records expired, after bronze had their rows; None if they are still there.
    released_at_ns: int | None = None

    @cached_property
    def digest(self) -> str:
        """A digest of the whole manifest."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

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
        offsets = fields.pop("offsets", None)
        return cls(**fields, windows=windows, findings=findings, offsets=OffsetRange(**offsets) if offsets else None)


class ReleasedError(WirehouseError):
    """Landed records were requested that have expired."""

    template = (
        "the landed records of capture {capture_id} ({path}) of source {source} have expired; their rows in bronze "
        "remain. To get the bytes back, land the file again with `wirehouse land FILE --source {source}`"
    )


def check_there(manifest: Manifest) -> None:
    """Raise ReleasedError if the capture's landed records have expired."""
    if manifest.released_at_ns is not None:
        raise ReleasedError(capture_id=manifest.capture_id, path=manifest.path, source=manifest.source)


def manifest_name(source: str, capture_id: str) -> str:
    """The name of a manifest's object."""
    return f"{MANIFESTS}/{source}/{capture_id}.json"


#: A cache: the root whose manifests were read last, and by source and object name the manifests with the objects'
#: versions.
_last: tuple[str, Mapping[str, Mapping[str, tuple[str, Manifest]]]] = ("", {})


def manifests(lake: Lake, source: str | None = None) -> list[Manifest]:
    """All committed manifests (of one source), sorted by source and capture id.

    Objects are listed each time, but only those that changed since the last call are read.
    """
    global _last
    storage = open_storage(lake.root)
    prefix = MANIFESTS if source is None else f"{MANIFESTS}/{source}"
    root, before = _last
    before = before if root == lake.root else {}
    now: dict[str, dict[str, tuple[str, Manifest]]] = {}
    for stored in storage.list(prefix):
        of = stored.name.split("/")[-2]
        known = before.get(of, {}).get(stored.name)
        if known is None or known[0] != stored.version or not stored.version:
            try:
                known = stored.version, _read(storage, stored.name)
            except FileNotFoundError:
                # The source was erased meanwhile.
                continue
        now.setdefault(of, {})[stored.name] = known
    _last = lake.root, now if source is None else {**before, source: now.get(source, {})}
    return [manifest for read in now.values() for _, manifest in read.values()]


def read_manifest(storage: Storage, source: str, capture_id: str) -> Manifest | None:
    """The manifest of a capture; None if the capture isn't landed."""
    try:
        return _read(storage, manifest_name(source, capture_id))
    except FileNotFoundError:
        return None


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Write the manifest: this commits the landing of its capture."""
    storage.write(manifest_name(manifest.source, manifest.capture_id), manifest.to_json().encode())


def _read(storage: Storage, name: str) -> Manifest:
    with storage.open(name) as stream:
        return Manifest.from_json(stream.read())
