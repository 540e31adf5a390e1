"""Requests that can't be decoded, but which the service may have understood.

Each of them may be answered. So one answer that fits no other request counts as its own: it breaks no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wirehouse_codecs.ockam.session.judging import Frame
from wirehouse_codecs.ockam.session.memory import Memory, remember
from wirehouse_codecs.ockam.session.requests import Input, RequestKind

#: What the requests of a protocol ask for.
CREATE: Final = "create"
INDEX: Final = "index"
ASKS: Final[Mapping[str, str]] = {
    "stream_create": CREATE,
    "stream_create_partitions": CREATE,
    "stream_create_partitioned": CREATE,
    "stream_push": RequestKind.PUSH.value,
    "stream_pull": RequestKind.PULL.value,
    "stream_index": INDEX,
    "stream_index_partitioned": INDEX,
}


def note_undecoded(memory: Memory, requester: str, asks: str) -> None:
    """One more of `requester`, which asks for that; "" = not known."""
    key = (requester, asks)
    remember(memory.undecoded, key, memory.undecoded.get(key, 0) + 1)


def may_be_undecoded(memory: Memory, frame: Frame, asks: str) -> bool:
    """Whether the answer may be that of a request that could not be decoded."""
    return any(key in memory.undecoded for key in _keys(frame, asks))


def was_undecoded(memory: Memory, frame: Frame, asks: str) -> bool:
    """Whether the answer counts as that of a request that could not be decoded. Each is answered once."""
    key = next((key for key in _keys(frame, asks) if key in memory.undecoded), None)
    if key is None:
        return False
    memory.undecoded[key] -= 1
    if not memory.undecoded[key]:
        del memory.undecoded[key]
    other = memory.requests.oldest(RequestKind.OTHER, frame.requester)
    if key[0] and other is not None:
        other.take(Input.ANSWER)
        memory.requests.remove(other)
    return True


def _keys(frame: Frame, asks: str) -> tuple[tuple[str, str], ...]:
    return (frame.requester, asks), (frame.requester, ""), ("", "")
