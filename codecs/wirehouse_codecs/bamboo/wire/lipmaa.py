"""Lipmaalinks and certificate pools (bamboo specification, "Links and Entry Verification").

Every entry but the first links to the one before it and to entry `lipmaa(seq)`; by the latter, entries are reached from
one another over a logarithmic number of steps. The *spine* is 1, 4, 13, 40 and so on: (3^k - 1) / 2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from wirehouse_codecs.compiled.jit import compiled

#: Members of the spine, from 1 on, that are 64-bit numbers.
SPINE: Final = tuple((3**k - 1) // 2 for k in range(1, 42))
_SPINE: Final = np.array(SPINE, np.uint64)


@lru_cache(maxsize=4096)
def lipmaa(seq: int) -> int:
    """The sequence number that entry `seq` has its lipmaalink to; 0 = entry 1, which has none."""
    if seq < 1:
        raise ValueError(f"sequence numbers begin at 1, {seq} is none")
    power, spine = _spine_from(seq)
    if seq == spine:
        return seq - power // 3
    # Between two members of the spine the numbering begins again, with shorter links.
    left = seq
    while left != spine:
        left -= spine // 3
        power, spine = _spine_from(left)
    return seq - spine


def has_lipmaalink(seq: int) -> bool:
    """Whether an entry writes its lipmaalink: not if it has none, or the same one as its backlink."""
    return seq > 1 and lipmaa(seq) != seq - 1


def link_targets(seq: int) -> tuple[int, ...]:
    """The sequence numbers that entry `seq` links to, ascending: none, one or two."""
    if seq == 1:
        return ()
    by_lipmaa = lipmaa(seq)
    return (seq - 1,) if by_lipmaa == seq - 1 else (by_lipmaa, seq - 1)


def spine_at_least(seq: int) -> int:
    """The smallest member of the spine that is `seq` or above; above 2^64 - 1 for the last 64-bit numbers."""
    return _spine_from(seq)[1]


def path(start: int, end: int) -> tuple[int, ...]:
    """The shortest path over links from entry `end` back to entry `start`, ascending, both included.

    There is only one: the lipmaalink wherever it does not overshoot. ValueError: `start` is 0 or above `end`.
    """
    if not 1 <= start <= end:
        raise ValueError(f"no links lead from {end} to {start}")
    steps = [end]
    while end > start:
        by_lipmaa = lipmaa(end)
        end = by_lipmaa if by_lipmaa >= start else end - 1
        steps.append(end)
    return tuple(reversed(steps))


def lower_pool(seq: int) -> tuple[int, ...]:
    """The lower certificate pool: the path from 1 to `seq`."""
    return path(1, seq)


def upper_pool(seq: int) -> tuple[int, ...]:
    """The upper certificate pool: the path from `seq` to the spine."""
    return path(seq, spine_at_least(seq))


def _spine_from(seq: int) -> tuple[int, int]:
    """3^k and (3^k - 1) / 2, the smallest member of the spine that is `seq` or above."""
    power = 3
    while power // 2 < seq:
        power *= 3
    return power, power // 2


@compiled
def lipmaa_of(seq: Any) -> Any:
    """The fast path of `lipmaa`, compiled. `seq` and the result are unsigned numbers of 64 bits."""
    left = seq
    first = True
    while True:
        k = 0
        while k < len(_SPINE) and _SPINE[k] < left:
            k += 1
        if k < len(_SPINE) and _SPINE[k] == left:
            if not first:
                return seq - left
            return _SPINE[k - 1] if k else _SPINE[0] - _SPINE[0]
        left -= _SPINE[k - 1]
        first = False


Broke = tuple[str, str]


def broken_range(start: int, lower: int | None, end: int | None, upper: int | None) -> Broke | None:
    """The first rule that the numbers of a proposal break, and why."""
    if end is not None and end < start:
        return "end_before_start", f"end {end}, start {start}"
    if end is not None and upper is not None and upper < end:
        return "upper_info_before_end", f"upper info {upper}, end {end}"
    if lower is not None and lower > start:
        return "lower_info_after_start", f"lower info {lower}, start {start}"
    if lower is not None and lower not in lower_pool(start):
        return "lower_info_not_in_pool", f"lower info {lower}, start {start}"
    if end is not None and upper is not None and upper not in upper_pool(end):
        return "upper_info_not_in_pool", f"upper info {upper}, end {end}"
    return None
