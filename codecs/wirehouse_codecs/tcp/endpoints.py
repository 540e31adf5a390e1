"""The two sides of a TCP connection: their addresses and who sends."""

from __future__ import annotations

import functools
import ipaddress
from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple


class Direction(StrEnum):
    """The side that sends: the server is the side whose port is configured."""

    CLIENT = "client"
    SERVER = "server"


class Endpoint(NamedTuple):
    """One side of a TCP connection."""

    #: An IPv4 or IPv6 address as text.
    address: str
    port: int

    @property
    def packed(self) -> bytes:
        """The address as 4 or 16 bytes. ValueError if it is none."""
        return _packed(self.address)


@functools.lru_cache(maxsize=4096)
def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


#: The type of `Connection.peer_received`: how many bytes of the other side the sender of these bytes had received.
PeerReceived = Callable[[Direction, int], int]
#: The type of `Connection.late`: ranges of a side's bytes of which nobody knows when they were first sent.
Late = Callable[[Direction], Sequence[tuple[int, int]]]


def is_within(ranges: Sequence[tuple[int, int]], byte_end: int) -> bool:
    """Whether the byte before `byte_end` is in one of these ranges, which rise."""
    return is_partly_within(ranges, byte_end - 1, byte_end)


def is_partly_within(ranges: Sequence[tuple[int, int]], byte_start: int, byte_end: int) -> bool:
    """Whether some of these bytes are in one of the ranges, which rise."""
    at = bisect_left(ranges, (byte_end,)) - 1
    return at >= 0 and byte_start < ranges[at][1]


def other(direction: Direction) -> Direction:
    """The other side."""
    return Direction.SERVER if direction is Direction.CLIENT else Direction.CLIENT
