"""Frames of both directions of a connection in the order in which they were completed."""

from __future__ import annotations

from typing import Any

import numpy as np

from wirehouse_codecs.compiled import compiled

Array = np.ndarray[Any, Any]


@compiled
def in_order(
    owners: Array,
    ends: Array,
    client: Array,
    server: Array,
    lost: Array,
    begins: Array,
    stops: Array,
    pieces: Array,
    sides: Array,
    taken: Array,
) -> int:
    """Frames of both sides in the order of the pieces that complete them: the piece where a place is lost, if any.

    Each piece has the bytes of its side, 0 or 1 in `owners`, that follow, up to `ends`; `client` and `server` say where
    frames begin and end, `lost` where the length ends that no frame has, -1 if there is none. Of each frame `begins`,
    `stops`, `pieces` and `sides` take where it stands, `taken` how many of each side were passed; without a lost place
    the number of pieces is returned, and all frames are.
    """
    row = 0
    for piece in range(len(owners)):
        side, end = owners[piece], ends[piece]
        bounds = server if side else client
        frame = taken[side]
        while frame + 1 < len(bounds) and bounds[frame + 1] <= end:
            begins[row], stops[row] = bounds[frame], bounds[frame + 1]
            pieces[row], sides[row] = piece, side
            frame += 1
            row += 1
        taken[side] = frame
        if 0 <= lost[side] <= end:
            return piece
    return len(owners)
