"""Blocks larger than what the offsets of a binary column reach: the limits are lowered, and no block is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.pipelines.cardinal.test_gold import check, run, said
from tests.support.cardinal_by_hand import Entry, Sent, batch, delete_key, header, item, set_key
from tests.support.cardinal_log import Landed, lake_with
from wirehouse_codecs.cardinal.fast import assembly
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.core.rules import Place
from wirehouse_pipelines.cardinal import blocks, rows, settling
from wirehouse_pipelines.delta.batches import whole_keys

BEGIN_NS, HOUR_NS = 1_700_000_000 * 10**9, 3600 * 10**9
ID = b"\1" * 32


def large(number: int, random: Random, *, odd: bool = False) -> list[Sent]:
    """A block whose values, items and inline values are of hundreds of bytes each, in any order, and repeated."""
    block_hash, parent = number.to_bytes(32, "big"), (number - 1).to_bytes(32, "big")
    keys = [b"p/%d" % at for at in range(60)]
    entries = {b"p/": Entry(count=80), b"s": Entry(subbatch=ID), b"in": Entry(value=random.randbytes(900))}
    sent = [
        batch(block_hash, number, parent, entries),
        header(block_hash, ID, 5),
        *(item(block_hash, ID, at, {b"s/%d" % at: random.randbytes(700)}, [b"s/gone%d" % at]) for at in range(5)),
        *(set_key(block_hash, key, random.randbytes(random.choice([0, 300, 2_000]))) for key in keys),
        *(delete_key(block_hash, b"p/gone%d" % at) for at in range(20)),
    ]
    sent += random.sample(sent, 50)
    random.shuffle(sent)
    # A second value of a key: the readable assembler takes the block.
    return [*sent, set_key(block_hash, keys[0], b"another")] if odd else sent


def placed(messages: Iterable[Sent]) -> Iterator[Landed]:
    """The messages come over three hours, so that blocks are cut by windows."""
    sent = [*messages]
    for at, message in enumerate(sent):
        at_ns = BEGIN_NS + at * 3 * HOUR_NS // len(sent)
        yield Place(at_ns, BEGIN_NS, bytes(32), at, "feed", 0, at), message.key, message.value


@pytest.mark.usefixtures("stages_run_here")
@pytest.mark.parametrize("step", [100, 1])
def test_a_large_block_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    for module in (assembly, blocks):
        monkeypatch.setattr(module, "UPDATES_BYTES", 3_000)
    monkeypatch.setattr(rows, "STATE_BYTES", 3_000)
    written = _watched(monkeypatch)
    random = Random(1)
    sent = [one for number in range(1, 8) for one in large(number, random, odd=number == 4)]
    streams = {"large": ([*placed(sent)], CardinalOptions(reorg_threshold=4))}
    lake = lake_with(tmp_path, "hour", streams)
    run(lake, streams, step)
    check(lake, {name: said(stream) for name, stream in streams.items()})
    # A batch exceeds the limit by at most one message.
    assert written[rows.UPDATES] < 8_000
    assert written[rows.STATE] < 12_000


def _watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """By table the bytes of the largest batch of updates or carried messages."""
    most = {rows.UPDATES: 0, rows.STATE: 0}
    for module, name in ((blocks, "fold_blocks"), (settling, "settle")):
        fold = getattr(module, name)

        def watched(*given: Any, fold: Any = fold, **named: Any) -> Iterator[tuple[str, pa.RecordBatch]]:
            for table, made in fold(*given, **named):
                if table in most:
                    content = made.column("message") if table == rows.STATE else made.column("value")
                    most[table] = max(most[table], content.nbytes)
                yield table, made

        monkeypatch.setattr(module, name, watched)
    return most


def _kinds(kind: pa.DataType) -> Iterator[pa.DataType]:
    for at in range(kind.num_fields):
        yield from _kinds(kind.field(at).type)
    yield kind


@pytest.mark.parametrize("name", ["key", "value", "deletes", "sets", "updates"])
def test_what_a_block_carries_has_offsets_of_64_bits(name: str) -> None:
    given = pa.RecordBatch.from_pylist([{"source": "a", "block_hash": bytes(32)}] * 4, schema=rows.MESSAGE)
    (joined,) = whole_keys(map(rows.widened, (given.slice(0, 1), given.slice(1))), rows.KEY, 1)
    assert pa.binary() not in _kinds(joined.schema.field(name).type)
    assert pa.large_binary() in _kinds(joined.schema.field(name).type)
