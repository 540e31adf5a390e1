"""Options of a Hiero source: which API is spoken, how strictly it is read, how large things may be, and how long.

The specification gives no numbers for times; the windows here are those within which a reader of the wire takes a
message to have been under way, or an answer to belong to its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import NS_PER_MS, OptionTable, Read, list_of, one_of, port, source_name, whole
from wirehouse_codecs.hiero.profiles import AUTO, PROFILES, PUBLISH_PORT, SUBSCRIBE_PORT

STRICT: Final = "strict"
TOLERANT: Final = "tolerant"
#: The largest message that a block node takes, in bytes.
MOST_MESSAGE_BYTES: Final = 131_072_000
#: Maximum factor by which a message inflates. Gzip and deflate can't exceed it, so for them only the size counts.
MOST_RATIO: Final = 1032
#: Maximum number of blocks below its last one for which a block node answers SkipBlock.
MOST_SKIPPED_BLOCKS: Final = 10
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class HieroOptions(OptionTable):
    """What a source of Hiero captures or block files sets."""

    READERS: ClassVar[Mapping[str, Read]] = {
        "profile": one_of((AUTO, *PROFILES)),
        "reading": one_of((STRICT, TOLERANT)),
        "max_message_bytes": whole(MOST_MESSAGE_BYTES),
        "max_inflated_ratio": whole(MOST_MESSAGE_BYTES),
        "in_flight_ms": whole(_DAY_MS, 0),
        "node_error_ms": whole(_DAY_MS, 0),
        "patience_ms": whole(30 * _DAY_MS),
        "skipped_blocks": whole(MOST_SKIPPED_BLOCKS),
        "publish_ports": list_of(port),
        "subscribe_ports": list_of(port),
        "service": source_name,
    }

    #: The name of a profile, or `auto`: the newest of the package in `:path`.
    profile: str = AUTO
    #: `strict`: the specification; `tolerant`: what real nodes do besides.
    reading: str = STRICT
    #: The largest message and the largest item of a block file, in bytes, inflated.
    max_message_bytes: int = MOST_MESSAGE_BYTES
    #: Maximum factor by which a message may grow when it is inflated; the first MiB isn't judged.
    max_inflated_ratio: int = MOST_RATIO
    #: How long messages that crossed on the wire may still arrive, in milliseconds.
    in_flight_ms: int = 50
    #: How long a node has to report its own error on all calls, in milliseconds.
    node_error_ms: int = 300
    #: How long to wait for something before it counts as missing, in milliseconds.
    patience_ms: int = 3_600_000
    #: Number of blocks below L for which a node may answer SkipBlock in place of a duplicate.
    skipped_blocks: int = 5
    #: Ports of servers that only publish or only subscribe; calls whose path can't be read are classified by them.
    publish_ports: tuple[int, ...] = (PUBLISH_PORT,)
    subscribe_ports: tuple[int, ...] = (SUBSCRIBE_PORT,)
    #: Sources of one block node have one name; None = the source stands alone.
    service: str | None = None

    def check(self, mapping: Mapping[str, Any]) -> None:
        """A port is of one service."""
        if both := set(self.publish_ports) & set(self.subscribe_ports):
            key = "subscribe_ports" if "subscribe_ports" in mapping else "publish_ports"
            raise OptionError(key=key, reason=f"port {min(both)} can't be for publishers and for subscribers")

    @property
    def forced(self) -> str | None:
        """The profile's name; None = the path decides."""
        return None if self.profile == AUTO else self.profile

    @property
    def tolerant(self) -> bool:
        """Whether what real nodes do besides the specification is no violation."""
        return self.reading == TOLERANT

    @property
    def in_flight_ns(self) -> int:
        """`in_flight_ms` in nanoseconds."""
        return self.in_flight_ms * NS_PER_MS

    @property
    def node_error_ns(self) -> int:
        """`node_error_ms` in nanoseconds."""
        return self.node_error_ms * NS_PER_MS

    @property
    def patience_ns(self) -> int:
        """`patience_ms` in nanoseconds."""
        return self.patience_ms * NS_PER_MS
