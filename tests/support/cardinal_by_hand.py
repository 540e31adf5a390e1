"""Messages of Cardinal Streams written byte by byte from the specification's text; no code of the codec takes part."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

#: The topic of the Batches.
TOPIC = "feed"
ZERO_ID = bytes(32)


class Sent(NamedTuple):
    """A message of a producer, and when it sent it."""

    key: bytes
    value: bytes
    topic: str = TOPIC
    partition: int = 0
    at_ns: int = 0
    offset: int = 0

    @property
    def line(self) -> str:
        """As a line of a file of messages."""
        return json.dumps(
            {
                "topic": self.topic,
                "partition": self.partition,
                "offset": self.offset,
                "timestamp_ms": self.at_ns // 10**6,
                "key_b64": base64.b64encode(self.key).decode(),
                "value_b64": base64.b64encode(self.value).decode(),
            }
        )


@dataclass(frozen=True)
class Entry:
    """One of the updates of a Batch: all four fields are on the wire, and one of them says something."""

    value: bytes = b""
    count: int = 0
    delete: bool = False
    subbatch: bytes = ZERO_ID


def number(value: int) -> bytes:
    """An Avro int or long: zig-zag, then seven bits a byte from the lowest on."""
    value = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: bytes) -> bytes:
    """Avro bytes or a string."""
    return number(len(value)) + value


def blocks(items: Sequence[bytes], random: Random | None = None) -> bytes:
    """An Avro array or map: blocks of items, each with its count, or with the count below zero and its size."""
    out, items = b"", list(items)
    while items:
        many = len(items) if random is None else random.randint(1, len(items))
        body, items = b"".join(items[:many]), items[many:]
        sized = random is not None and random.randrange(2)
        out += (number(-many) + number(len(body)) if sized else number(many)) + body
    return out + number(0)


def batch(
    block_hash: bytes,
    at: int,
    parent: bytes,
    entries: Mapping[bytes, Entry] | Iterable[tuple[bytes, Entry]] = (),
    *,
    weight: bytes | int | None = None,
    random: Random | None = None,
) -> Sent:
    """A Batch; its entries in any order and in any blocks."""
    weight = at if weight is None else weight
    if isinstance(weight, int):
        weight = weight.to_bytes((weight.bit_length() + 7) // 8, "big")
    items = [
        text(name) + text(entry.value) + number(entry.count) + bytes([entry.delete]) + entry.subbatch
        for name, entry in (entries.items() if isinstance(entries, Mapping) else entries)
    ]
    if random is not None:
        random.shuffle(items)
    return Sent(b"\0" + block_hash, number(at) + text(weight) + parent + blocks(items, random))


def header(block_hash: bytes, batch_id: bytes, items: int) -> Sent:
    """A SubBatchHeader."""
    return Sent(b"\1" + block_hash + batch_id, number(items))


def item(
    block_hash: bytes,
    batch_id: bytes,
    index: int,
    updates: Mapping[bytes, bytes] | None = None,
    deletes: Sequence[bytes] = (),
    random: Random | None = None,
) -> Sent:
    """A SubBatchMsg."""
    sets = [text(key) + text(value) for key, value in (updates or {}).items()]
    gone = [text(key) for key in deletes]
    if random is not None:
        random.shuffle(sets)
        random.shuffle(gone)
    return Sent(b"\2" + block_hash + batch_id + number(index), blocks(gone, random) + blocks(sets, random))


def set_key(block_hash: bytes, key: bytes, value: bytes = b"v") -> Sent:
    """A BatchMsg."""
    return Sent(b"\3" + block_hash + key, value)


def delete_key(block_hash: bytes, key: bytes, value: bytes = b"") -> Sent:
    """A BatchDeleteMsg."""
    return Sent(b"\4" + block_hash + key, value)


def reorg(ancestor: bytes, at: int, topic: str = TOPIC) -> Sent:
    """A Reorg."""
    return Sent(b"\5" + ancestor, number(at), topic)


def reorg_complete(ancestor: bytes, at: int, topic: str = TOPIC) -> Sent:
    """A ReorgComplete."""
    return Sent(b"\6" + ancestor, number(at), topic)


def channel(ancestor: bytes) -> str:
    """The topic of the reorg from a block."""
    return f"{TOPIC}-re-{ancestor.hex()}"
