"""Manifests: what was landed of each capture. A manifest is written last and is the commit of its landing."""

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


@dataclass(frozen=True)
class Manifest:
    """What was landed of a capture."""

    source: str
    protocol: str
    kind: str
    #: SHA-256 of the original file, or that of a range of offsets, hex.
    capture_id: str
    #: Relative to the source's place; of a range topic/partition/begin-end.
    path: str
    #: landed, damaged (landed up to the damage), rejected, or forgotten (erased: nothing else is known of it).
    status: str
    #: Why it was rejected, or what the damage is.
    reason: str | None
    size_bytes: int
    records: int
    #: Records among them that could not be read as what the kind of source holds; their bytes are kept.
    unreadable_records: int
    first_arrived_at_ns: int | None
    last_arrived_at_ns: int | None
    landed_at_ns: int
    windows: Mapping[str, WindowObjects] = field(default_factory=dict)
    findings: tuple[CaptureFinding, ...] = ()
    #: Of a broker's records.
    offsets: OffsetRange | None = None
    #: Packets of which the capture has only the first bytes.
    cut_packets: int = 0
    #: When landing let go of the records, whose rows bronze holds; None while it has them.
    released_at_ns: int | None = None

    @cached_property
    def digest(self) -> str:
        """Of all that it says."""
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
    """Landed records are asked for that are gone."""

    template = (
        "landing let go of the records of capture {capture_id} ({path}) of source {source}: the rows of bronze stay, "
        "the bytes are back once its file is landed again with `wirehouse land FILE --source {source}`"
    )


def check_there(manifest: Manifest) -> None:
    """Raise ReleasedError if landing let go of the capture's records."""
    if manifest.released_at_ns is not None:
        raise ReleasedError(capture_id=manifest.capture_id, path=manifest.path, source=manifest.source)


def manifest_name(source: str, capture_id: str) -> str:
    """Name of a manifest's object."""
    return f"{MANIFESTS}/{source}/{capture_id}.json"


#: The root whose manifests were read last, and each by its object's name, with the version that was read.
_last: tuple[str, Mapping[str, tuple[str, Manifest]]] = ("", {})


def manifests(lake: Lake, source: str | None = None) -> list[Manifest]:
    """All committed manifests (of one source), by source and capture id.

    They are listed each time; read are those whose objects aren't what they were last time.
    """
    global _last
    storage = open_storage(lake.root)
    prefix = MANIFESTS if source is None else f"{MANIFESTS}/{source}"
    before = _last[1] if _last[0] == lake.root else {}
    now: dict[str, tuple[str, Manifest]] = {}
    for stored in storage.list(prefix):
        known = before.get(stored.name)
        if known is None or known[0] != stored.version or not stored.version:
            try:
                known = stored.version, _read(storage, stored.name)
            except FileNotFoundError:
                # Its source was forgotten meanwhile.
                continue
        now[stored.name] = known
    _last = lake.root, now if source is None else {**before, **now}
    return [manifest for _, manifest in now.values()]


def read_manifest(storage: Storage, source: str, capture_id: str) -> Manifest | None:
    """The manifest of a capture; None if it isn't landed."""
    try:
        return _read(storage, manifest_name(source, capture_id))
    except FileNotFoundError:
        return None


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Commit it."""
    storage.write(manifest_name(manifest.source, manifest.capture_id), manifest.to_json().encode())


def _read(storage: Storage, name: str) -> Manifest:
    with storage.open(name) as stream:
        return Manifest.from_json(stream.read())
