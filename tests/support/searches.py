"""Searches over many cases: a fast run takes some of them, `make test` more, `make test-long` all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def fast_first(
    cases: Iterable[Any],
    count: int = 1,
    by: Callable[[Any], Hashable] = lambda case: None,
    most: int | None = 3,
) -> list[Any]:
    """Cases for `parametrize`, of which the first `count` that are the same `by` something are fast.

    The others are marked `property`, and those after the first `most` also `long` (None: none). A case that is a tuple
    has several parameters.
    """
    seen: Counter[Hashable] = Counter()
    listed = []
    for case in cases:
        seen[by(case)] += 1
        marks = [pytest.mark.property] if seen[by(case)] > count else []
        marks += [pytest.mark.long] if most is not None and seen[by(case)] > most else []
        listed.append(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks))
    return listed
