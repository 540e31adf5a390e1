"""Hostile bytes through reader and session: no crash, every byte accounted for, bounded memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.frames import Error, Hello, Notify, Ok, VersionForm
from wirehouse_codecs.wallaroo.options import AUTO, WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.wire.messages import encode
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import Received


def opening(name: str) -> dict[Direction, bytes]:
    dialect = DIALECTS[name]
    form = VersionForm.GUID16 if dialect.byte_order == "little" else VersionForm.SHORT
    hello = Hello(bytes(16) if form is VersionForm.GUID16 else b"0.0.1", b"secret", b"p", b"i", form)
    return {
        Direction.CLIENT: encode(hello, dialect) + encode(Notify(1, b"one"), dialect),
        Direction.SERVER: encode(Ok(3), dialect) + encode(Error(b"no"), dialect),
    }


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with some bytes changed, and some more behind it."""
    changed = bytearray(data)
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=3)):
        changed[at] = draw(st.integers(0, 255))
    return bytes(changed) + draw(st.binary(max_size=40))


@pytest.mark.parametrize("forced", [AUTO, *DIALECTS])
@settings(max_examples=40)
@given(data=st.data(), late=st.booleans(), hole=st.booleans(), closed=st.booleans())
def test_damaged_connections(forced: str, data: st.DataObject, late: bool, hole: bool, closed: bool) -> None:
    options = WallarooOptions(dialect=forced)
    sent = opening(data.draw(st.sampled_from(list(DIALECTS))) if forced == AUTO else forced)
    reader = Reader(options, started_late=late)
    received: list[Received] = []
    given_bytes = dict.fromkeys(Direction, 0)
    for direction in Direction:
        stream = data.draw(damaged(sent[direction]))
        size = data.draw(st.integers(1, 60))
        for at in range(0, len(stream), size):
            received += reader.receive(direction, stream[at : at + size], Place(at, 0, b"", at))
        given_bytes[direction] = len(stream)
        if hole:
            received += reader.hole(direction, 7, Place(90, 0, b"", 90))
            received += reader.receive(direction, stream, Place(91, 0, b"", 91))
    received += reader.finish(Place(99, 0, b"", 99), closed=closed)
    # That a draft is spoken is told beside its bytes.
    held = [one for one in received if one.decoded.rule is not RULE["dialect_unsupported"]]
    for direction in Direction:
        spans = sorted((one.byte_start, one.byte_end) for one in held if one.direction is direction)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    rules = [one.decoded.rule.name for one in received if one.decoded.rule is not None]
    if reader.dialect is None:
        # A draft is one row; where no frame was found at all there is nothing but bytes.
        assert all(one.decoded.frame is None for one in received)
        assert rules.count("dialect_unsupported") == (reader.detection is not None)
        return
    if not hole and not {"empty_frame", "oversize_frame"} & set(rules):
        total = sum(one.byte_end - one.byte_start for one in received)
        assert total == sum(given_bytes.values())
    session = Session(reader.dialect, options, started_late=late)
    for frame in received:
        outcome = session.receive(frame)
        assert "secret" not in "".join(finding.message for finding in outcome.findings)
    session.end(End.CLOSED if closed else End.CAPTURE_END, Place(100, 0, b"", 100))
    assert "secret" not in as_text(session.memory)
    assert b"secret".hex() not in as_text(session.memory)
