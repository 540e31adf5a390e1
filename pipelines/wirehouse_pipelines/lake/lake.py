"""What a lake is made of: its root, its windows and its sources. Plain data; nothing is opened here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from wirehouse_codecs.captures.inflate import LIMITS, Limits
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_pipelines.lake.spark_options import EMBEDDED, SparkOptions
from wirehouse_pipelines.lake.upkeep_options import UpkeepOptions
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables

#: Kinds of source whose landed records are broker messages, and those whose records are packets. Those that are a
#: protocol's own files: `protocols.FILE_KINDS`.
KAFKA = "kafka"
MESSAGE_KINDS = ("messages", KAFKA)
PACKET_KINDS = ("pcap",)


@dataclass(frozen=True, slots=True)
class Source:
    """A source of captures as declared in wirehouse.toml."""

    name: str
    protocol: str
    kind: str
    #: Absolute file, folder or glob (or an s3:// URI); of kind kafka the topic, or ^ and a regular expression.
    path: str
    #: The `[source.options]` table as written; the protocol's codec checks and reads it.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Ports of the servers, for a source of packets.
    ports: tuple[int, ...] = ()
    #: How its connections are put together, likewise.
    tcp: TcpOptions = field(default_factory=TcpOptions)
    #: Of a source of kind kafka the `[source.kafka]` table as written.
    kafka: Mapping[str, Any] = field(default_factory=dict)
    #: What its captures may inflate to.
    limits: Limits = LIMITS

    @property
    def service(self) -> str:
        """Sources with one `service` in their options see one service; without, the source is one of its own."""
        return str(self.options.get("service", self.name))


@dataclass(frozen=True)
class Lake:
    """A lakehouse: everything under `root` (an absolute folder, or s3://bucket/prefix)."""

    root: str
    windows: Windows
    sources: tuple[Source, ...] = ()
    #: Of a root that is no folder: the folder of this machine for what runs on it share.
    local_home: str | None = None
    #: What it keeps.
    upkeep: UpkeepOptions = field(default_factory=UpkeepOptions)
    #: Where jobs run.
    spark: SparkOptions = EMBEDDED
    #: Who answers for it: addresses of mail, or `team:NAME`.
    owners: tuple[str, ...] = ()
    #: Address at which the site of docs/ is served, without a / at its end; empty if it isn't.
    docs: str = ""

    @property
    def home(self) -> str:
        """The folder of this machine for what the lake's runs share."""
        return self.local_home or self.root

    def source(self, name: str) -> Source:
        """The source of that name; KeyError if none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Source]:
        return {source.name: source for source in self.sources}

    @cached_property
    def _by_any_name(self) -> dict[str, list[Source]]:
        found: dict[str, list[Source]] = {}
        for source in self.sources:
            for name in {source.name, source.service}:
                found.setdefault(name, []).append(source)
        return found

    def sources_of(self, name: str) -> list[Source]:
        """The source, or the sources of the service, of that name."""
        return list(self._by_any_name.get(name, ()))

    def joined(self, sources: Iterable[Source]) -> dict[str, tuple[Source, ...]]:
        """Those of `sources` that see one service, by its name."""
        found: dict[str, list[Source]] = {}
        for source in sources:
            found.setdefault(source.service, []).append(source)
        return {service: tuple(listed) for service, listed in found.items()}

    @property
    def names(self) -> set[str]:
        """What rows may have as their `source`: sources and services."""
        return set(self._by_any_name)

    def address(self, name: str) -> str:
        """Where the object or folder `name` of the lake lies, for Spark and Delta's readers."""
        # Hadoop knows its client of S3 by another scheme, which others understand as well.
        return f"{self.root}/{name}".replace("s3://", "s3a://", 1)

    def table_path(self, name: str) -> str:
        """Where the Delta table `layer.name` lies."""
        return self.address(self.table_folder(name))

    def table_folder(self, name: str) -> str:
        """The folder of the Delta table `layer.name`, relative to the root."""
        return all_tables()[name].name.replace(".", "/")
