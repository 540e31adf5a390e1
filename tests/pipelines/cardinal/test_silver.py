"""The log against the reference path, in this process without a JVM: every kind of message, whole, cut and changed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cardinal_by_hand import Entry, Sent, batch, delete_key, header, item, reorg, reorg_complete, set_key
from tests.support.cardinal_log import fields
from wirehouse_codecs.cardinal.fast.messages import MESSAGE_TYPE
from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher
from wirehouse_codecs.cardinal.wire.messages import decode
from wirehouse_pipelines.cardinal import silver
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.tables import all_tables

OPTIONS = CardinalOptions(tracked_prefixes=("^p",))
BRONZE = arrow_types.given(all_tables()[silver.LANDED])
HASH, ID = b"\1" * 32, b"\2" * 32


def messages() -> Iterator[Sent]:
    entries = {b"p/": Entry(count=2), b"s": Entry(subbatch=ID), b"in": Entry(value=b"x"), b"gone": Entry(delete=True)}
    yield batch(HASH, 7, HASH, entries)
    yield batch(HASH, 7, HASH, {b"two": Entry(value=b"x", count=2)})
    yield batch(HASH, 7, HASH, {b"p/": Entry(count=-1)})
    yield header(HASH, ID, 3)
    yield item(HASH, ID, 1, {b"k": b"v"}, [b"gone"])
    yield item(HASH, ID, -1)
    yield set_key(HASH, b"p/k", b"value")
    yield set_key(HASH, b"", b"")
    yield delete_key(HASH, b"p/k")
    yield delete_key(HASH, b"p/k", b"a value")
    yield reorg(HASH, 3)
    yield reorg_complete(HASH, 2**31)
    yield Sent(b"\xff" + HASH, b"the time")
    yield Sent(b"", b"")
    yield Sent(b"\7" + HASH, b"")


def changed(sent: Sent, random: Random) -> tuple[bytes | None, bytes | None]:
    key, value = sent.key, sent.value
    match random.randrange(7):
        case 0:
            key = key[: random.randrange(len(key) + 1)]
        case 1:
            value = value[: random.randrange(len(value) + 1)]
        case 2:
            key += b"\0"
        case 3:
            value += b"\0"
    return key if random.randrange(20) else None, value if random.randrange(10) else None


def expected(key: bytes | None, value: bytes | None, damaged: bytes | None) -> dict[str, Any]:
    one = decode(key, value, OPTIONS)
    finding = one.rule and {"rule": one.rule.id, "severity": one.rule.severity.value, "message": one.reason}
    if damaged is not None:
        finding = {"rule": "capture.file_damaged", "severity": "note", "message": "cut"}
        return {"row_kind": "quarantine", "skip": None, "finding": finding, "message": None} | {
            "raw": {"key": None, "value": damaged}
        }
    kind = "skip" if one.skip else "message" if one.message else "quarantine"
    told = one.message and {
        field.name: fields(one.message, NameMatcher(OPTIONS)).get(field.name) for field in MESSAGE_TYPE
    }
    raw = {"key": key, "value": value} if kind == "quarantine" else None
    return {"row_kind": kind, "skip": one.skip or None, "finding": finding, "message": told, "raw": raw}


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_what_the_reference_path_says(seed: int) -> None:
    random = Random(seed)
    sent = [changed(one, random) for one in messages() for _ in range(random.randrange(4))]
    rows: list[dict[str, Any]] = [{"source": "a", "key": key, "value": value} for key, value in sent]
    rows.insert(random.randrange(len(rows)), {"source": "a", "damaged": b"{", "damage": "cut"})
    for at, row in enumerate(rows):
        row["record_number"] = at
    given = pa.RecordBatch.from_pylist(rows, schema=BRONZE)
    begin = random.randrange(3)
    found = silver.decoded(given.slice(begin), OPTIONS).to_pylist()
    assert [row["record_number"] for row in found] == list(range(begin, len(rows)))
    for row, of in zip(found, rows[begin:], strict=True):
        wanted = expected(of.get("key"), of.get("value"), of.get("damaged"))
        if row["message"]:
            for update in row["message"]["updates"] or ():
                del update["topic"], update["declared"]
        assert {name: row[name] for name in wanted} == wanted


def test_nothing_is_made_of_no_messages() -> None:
    assert silver.decoded(pa.RecordBatch.from_pylist([], schema=BRONZE), OPTIONS).num_rows == 0
