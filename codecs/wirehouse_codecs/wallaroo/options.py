"""Options of a Wallaroo source: which dialect is spoken, how large frames may be, how long credits may stay out.

The specification leaves the limit on frames to the configuration ([B1]) and says no time for anything; the times here
are those after which a reader of the wire takes what never came for missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from wirehouse_codecs.core.option_tables import NS_PER_S, OptionTable, Read, one_of, seconds, whole
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import DIALECTS, Dialect
from wirehouse_codecs.wallaroo.frames import VersionForm

AUTO: Final = "auto"
#: The largest frame that may be configured, in bytes: of each side one may be unfinished, and is carried on.
MOST_FRAME_BYTES: Final = 4 << 20
#: The longest time that may be configured.
MOST_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class WallarooOptions(OptionTable):
    """Options of a source of Wallaroo captures."""

    READERS: ClassVar[Mapping[str, Read]] = {
        "dialect": one_of((AUTO, *DIALECTS)),
        "max_frame_bytes": whole(MOST_FRAME_BYTES),
        "ack_timeout_s": seconds(MOST_SECONDS),
        "close_timeout_s": seconds(MOST_SECONDS),
        "seed_version": one_of((AUTO, *(form.value for form in VersionForm))),
    }

    #: The name of a dialect, or `auto`: found by the first frames.
    dialect: str = AUTO
    #: The largest length of a frame that workers receive; None = the dialect's own limit.
    max_frame_bytes: int | None = None
    #: Maximum time that the connector may be without credit, in seconds.
    ack_timeout_s: int | float = 10
    #: Maximum time that a side may leave a connection open after an ERROR, or go on after a violation, in seconds.
    close_timeout_s: int | float = 5
    #: The form in which a HELLO of the specification's text writes its version, or `auto`: the one that fits.
    seed_version: str = AUTO

    @property
    def forced(self) -> str | None:
        """The dialect's name; None = it is found by the frames."""
        return None if self.dialect == AUTO else self.dialect

    @property
    def version_form(self) -> VersionForm | None:
        """The form of the version in a HELLO of the text; None = the one that fits."""
        return None if self.seed_version == AUTO else VersionForm(self.seed_version)

    @property
    def ack_timeout_ns(self) -> int:
        """`ack_timeout_s` in nanoseconds."""
        return round(self.ack_timeout_s * NS_PER_S)

    @property
    def close_timeout_ns(self) -> int:
        """`close_timeout_s` in nanoseconds."""
        return round(self.close_timeout_s * NS_PER_S)

    def limit(self, dialect: Dialect, direction: Direction) -> int:
        """The largest length of a frame in `dialect` that is sent in `direction`.

        It is that of a worker's receiving side: the other one has none, and only what may be carried on counts.
        """
        if direction is Direction.SERVER:
            return MOST_FRAME_BYTES
        return dialect.max_frame_bytes if self.max_frame_bytes is None else self.max_frame_bytes
