"""What holds of the packets of every simulator."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Close, Conversation, Disturbances, Ending, Send

#: Bytes that making packets may hold more than it did.
MOST_BYTES = 1 << 20


def assert_the_same_again(simulate: Callable[..., Iterator[CapturedPacket]], config: Any) -> None:
    """One configuration gives the same packets, another seed others; disturbed they are the same in another order."""
    once = list(simulate(config))
    assert list(simulate(config)) == once
    assert list(simulate(replace(config, seed=config.seed + 1))) != once
    disturbed = list(simulate(config, Disturbances(reordered=0.2)))
    assert disturbed != once
    assert sorted(packet.data for packet in disturbed) == sorted(packet.data for packet in once)
    assert all(a.ts_ns <= b.ts_ns for packets in (once, disturbed) for a, b in pairwise(packets))


def assert_in_order_of_time(conversations: Iterable[Conversation]) -> None:
    """What is said is in order of time, and ends with a close."""
    for conversation in conversations:
        events = list(conversation.events)
        assert all(a.ts_ns <= b.ts_ns for a, b in pairwise(events))
        assert all(isinstance(event, Send) and event.data for event in events[:-1])
        assert isinstance(events[-1], Close)
        assert events[-1].ending in Ending


def assert_never_held(captured: Iterator[CapturedPacket], first: int, count: int) -> None:
    """After the `first` packets of a capture without an end, `count` more take no memory that stays."""
    for _ in islice(captured, first):
        pass
    tracemalloc.start()
    for _ in islice(captured, count):
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MOST_BYTES
