"""How connections are reassembled: the same options for every protocol over TCP, the table `[source.tcp]`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Self

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import NS_PER_S, Read, plain, read_options, seconds, whole

MOST_IDLE_S: Final = 7 * 86_400
#: Limits of `max_waiting_bytes` and `max_waiting_segments`: what waits of both directions is carried from window to
#: window.
MOST_WAITING_BYTES: Final = 4 << 20
MOST_WAITING_SEGMENTS: Final = 65_536


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """How long reassembly waits, in arrival time, and how much it holds."""

    READERS: ClassVar[Mapping[str, Read]] = {
        "idle_s": seconds(MOST_IDLE_S),
        "hole_wait_s": seconds(MOST_IDLE_S),
        "max_waiting_bytes": whole(MOST_WAITING_BYTES),
        "max_waiting_segments": whole(MOST_WAITING_SEGMENTS),
    }
    #: A connection that is silent for this long has ended.
    idle_ns: int = 2 * 3600 * NS_PER_S
    hole_wait_ns: int = 10 * NS_PER_S
    #: Limits of what waits behind a gap or for the other side, per direction.
    max_waiting_bytes: int = 1 << 20
    max_waiting_segments: int = 4096

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Options from a table of the configuration file, times in seconds.

        Raises OptionError for an unknown key, a wrong type or a number out of range.
        """
        read = read_options(mapping, cls.READERS)
        times = {f"{name}_ns": round(read.pop(f"{name}_s") * NS_PER_S) for name in _TIMES if f"{name}_s" in read}
        options = cls(**times, **read)
        if options.hole_wait_ns > options.idle_ns:
            idle_s = plain(options.idle_ns / NS_PER_S)
            raise OptionError(key="hole_wait_s", reason=f"must be at most idle_s, which is {idle_s}")
        return options

    def canonical(self) -> str:
        """One JSON text for equal options, for digests."""
        return json.dumps(asdict(self), separators=(",", ":"))


_TIMES: Final = ("idle", "hole_wait")
