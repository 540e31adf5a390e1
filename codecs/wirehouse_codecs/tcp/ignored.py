"""Captured bytes that are no part of a stream, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction


class Why(StrEnum):
    """Why captured bytes are no part of a stream."""

    BEFORE = "they were sent before the first byte that was seen"
    AFTER = "they came after the end of the connection"
    FAR = "their sequence number is far from what was expected"
    GIVEN_UP = "they came after their gap was given up"
    RESET = "a RST carried them"


#: A bit for each reason.
REASONS: Final = {why: 1 << at for at, why in enumerate(Why)}


class Ignored(NamedTuple):
    """Captured bytes of a direction that are no part of its stream, and where the first of them stand."""

    direction: Direction
    why: Why
    size: int
    place: Place
