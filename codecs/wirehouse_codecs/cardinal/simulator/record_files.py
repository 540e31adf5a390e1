"""Broker messages as files: JSON Lines in the shape of the reference's vectors, and Avro.

A source of kind `messages` lands both. They are written as a stream; a path that ends in `.gz` or `.zst` is compressed.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import fastavro

from wirehouse_codecs.captures.compressed_output import opened


class Record(NamedTuple):
    """A message as a broker delivers it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


_HEADER: Final = {
    "type": "record",
    "name": "header",
    "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}],
}
#: The schema of an Avro file of messages.
MESSAGE_SCHEMA: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "message",
        "fields": [
            {"name": "topic", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp_ms", "type": "long"},
            {"name": "key", "type": ["null", "bytes"]},
            {"name": "value", "type": ["null", "bytes"]},
            {"name": "headers", "type": ["null", {"type": "array", "items": _HEADER}], "default": None},
        ],
    }
)


def write_jsonl(records: Iterable[Record], target: str | Path | IO[bytes]) -> int:
    """One JSON object a line: topic, partition, offset, timestamp_ms, key_b64, value_b64. Returns how many."""
    written = 0
    with _opened(target) as file:
        for topic, partition, offset, timestamp_ms, key, value in records:
            line = (
                f'{{"topic":{json.dumps(topic)},"partition":{partition},"offset":{offset},'
                f'"timestamp_ms":{timestamp_ms},"key_b64":{_base64(key)},"value_b64":{_base64(value)}}}\n'
            )
            file.write(line.encode())
            written += 1
    return written


def _base64(data: bytes | None) -> str:
    return "null" if data is None else f'"{b2a_base64(data, newline=False).decode()}"'


def write_avro(records: Iterable[Record], target: str | Path | IO[bytes]) -> int:
    """An Avro object container file of MESSAGE_SCHEMA. Returns how many."""
    written = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal written
        for record in records:
            written += 1
            yield record._asdict()

    with _opened(target) as file:
        fastavro.writer(file, MESSAGE_SCHEMA, rows())
    return written


def _opened(target: str | Path | IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """`target` to write bytes to; closed at the end unless it was given open."""
    return opened(target) if isinstance(target, str | Path) else nullcontext(target)
