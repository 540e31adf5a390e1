"""Lake and Source: a lake's configuration as plain data. Nothing is opened here."""

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

#: Kinds of source whose landed records are broker messages, and kinds whose records are packets. The other kinds hold
#: files of a protocol's own format: `protocols.FILE_KINDS`.
KAFKA = "kafka"
MESSAGE_KINDS = ("messages", KAFKA)
PACKET_KINDS = ("pcap",)


@dataclass(frozen=True, slots=True)
class Source:
    """A source of captures as declared in wirehouse.toml."""

    name: str
    protocol: str
    kind: str
    #: An absolute file, folder or glob, or an s3:// URI. For kind kafka: the topic, or a regular expression after ^.
    path: str
    #: The `[source.options]` table as written; the protocol's codec checks and reads it.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: For a source of packets: the servers' ports.
    ports: tuple[int, ...] = ()
    #: For a source of packets: how TCP streams are reassembled.
    tcp: TcpOptions = field(default_factory=TcpOptions)
    #: For kind kafka: the `[source.kafka]` table as written.
    kafka: Mapping[str, Any] = field(default_factory=dict)
    #: How large its compressed captures may inflate.
    limits: Limits = LIMITS

    @property
    def service(self) -> str:
        """The service that the source observes: the `service` of its options, else the source's own name."""
        return str(self.options.get("service", self.name))


@dataclass(frozen=True)
class Lake:
    """A lakehouse: everything under `root` (an absolute folder, or s3://bucket/prefix)."""

    root: str
    windows: Windows
    sources: tuple[Source, ...] = ()
    #: If the root is not a local folder: the local folder for files that the lake's runs on this machine share.
    local_home: str | None = None
    #: What is kept and for how long.
    upkeep: UpkeepOptions = field(default_factory=UpkeepOptions)
    #: Where jobs run.
    spark: SparkOptions = EMBEDDED
    #: Who is responsible for it: e-mail addresses, or `team:NAME`.
    owners: tuple[str, ...] = ()
    #: Address of the site built from docs/, without a trailing /; empty if it isn't served.
    docs: str = ""

    @property
    def home(self) -> str:
        """The local folder for files that the lake's runs on this machine share."""
        return self.local_home or self.root

    def source(self, name: str) -> Source:
        """The source of that name. Raises KeyError."""
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
        """The source with that name, or the sources of the service with that name."""
        return list(self._by_any_name.get(name, ()))

    def joined(self, sources: Iterable[Source]) -> dict[str, tuple[Source, ...]]:
        """Group `sources` by the service that they observe."""
        found: dict[str, list[Source]] = {}
        for source in sources:
            found.setdefault(source.service, []).append(source)
        return {service: tuple(listed) for service, listed in found.items()}

    @property
    def names(self) -> set[str]:
        """All values that the column `source` can have: names of sources and services."""
        return set(self._by_any_name)

    def address(self, name: str) -> str:
        """The address of the lake's object or folder `name`, for Spark and for Delta's reader."""
        # Hadoop's S3 client needs the scheme s3a, which Delta's reader accepts too.
        return f"{self.root}/{name}".replace("s3://", "s3a://", 1)

    def table_path(self, name: str) -> str:
        """The address of the Delta table `layer.name`."""
        return self.address(self.table_folder(name))

    def table_folder(self, name: str) -> str:
        """The folder of the Delta table `layer.name`, relative to the root."""
        return all_tables()[name].name.replace(".", "/")
