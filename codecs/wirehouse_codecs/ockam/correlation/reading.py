"""How a service is read: what a saved index means, how long holes take, and how far clocks are apart."""

from __future__ import annotations

from typing import Final, NamedTuple

from wirehouse_codecs.ockam.correlation.events import Told
from wirehouse_codecs.ockam.options import IndexConvention

SNAPSHOT_VERSION: Final = 13
NOTHING: Final[tuple[Told, ...]] = ()


class Reading(NamedTuple):
    """Options of a service, as folds need them."""

    convention: IndexConvention
    #: The values that are used as `connections.HOLE_NS` and `CLOCKS_NS`.
    hole_ns: int
    clocks_ns: int

    def position(self, saved: int) -> int:
        """The next index that a client needs after it saved this one."""
        return saved if self.convention is IndexConvention.NEXT else saved + 1

    def position_told(self, index: int | None, saved: int | None) -> int:
        """The next index that a client needs after it got the answer `index`; `saved` is what it was known to have.

        None, and 0 where nothing was saved, mean the beginning.
        """
        return self.position(index) if index or (index is not None and saved is not None) else 0
