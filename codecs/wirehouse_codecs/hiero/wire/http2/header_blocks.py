"""Header blocks (RFC 9113 section 4.3, RFC 7541): one or more frames, which hpack reads once the last of them came.

A block that lacks bytes has no fields. What it did to the dynamic table isn't known then, so all entries become unknown
ones (`Table.forget`).
"""

from __future__ import annotations

from hpack import HPACKError
from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame, PushPromiseFrame

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire.http2.events import Event, Fields, Headers
from wirehouse_codecs.hiero.wire.http2.frames import END_HEADERS, END_STREAM, HEADERS
from wirehouse_codecs.hiero.wire.http2.side import MAX_BLOCK_BYTES, UNKNOWN_NAME, Side
from wirehouse_codecs.hiero.wire.http2.streams import Streams
from wirehouse_codecs.hiero.wire.spans import Undecodable


def begin_block(
    streams: Streams, side: Side, frame: HeadersFrame | PushPromiseFrame, end: int, place: Place, events: list[Event]
) -> None:
    """A first frame, which ends at `end`."""
    ends = isinstance(frame, HeadersFrame) and "END_STREAM" in frame.flags
    side.block, side.block_stream, side.block_ends = bytearray(frame.data), frame.stream_id, ends
    side.block_start, side.block_end = side.start, end
    _take_frame(streams, side, frame, place, events)


def cut_block(
    streams: Streams, side: Side, frame: tuple[int, int, int, int], place: Place, events: list[Event]
) -> None:
    """A frame with a part of a header block isn't whole."""
    kind, flags, stream_id, end = frame
    side.table.forget()
    if kind == HEADERS:
        side.block, side.block_stream, side.block_ends = bytearray(), stream_id, bool(flags & END_STREAM)
        side.block_start = side.start
    if side.block is None:
        return
    side.block_end, side.block_cut = end, True
    if flags & END_HEADERS:
        _end_block(streams, side, place, events)


def continue_block(
    streams: Streams, side: Side, frame: ContinuationFrame, data: bytes, place: Place, events: list[Event]
) -> None:
    """A next frame, whose bytes are `data`."""
    if side.block is None:
        side.framing_bytes -= len(data)
        events.append(side.undecodable(data, place, "CONTINUATION without a header block before it"))
        side.table.forget()
        return
    side.block += frame.data
    side.block_end = side.start + len(data)
    if len(side.block) > MAX_BLOCK_BYTES:
        break_block(side, place, events)
        return
    _take_frame(streams, side, frame, place, events)


def _take_frame(streams: Streams, side: Side, frame: Frame, place: Place, events: list[Event]) -> None:
    """Read the header block if it is whole."""
    if "END_HEADERS" not in frame.flags or side.block is None:
        return
    if isinstance(frame, PushPromiseFrame):
        # gRPC has none; its fields count for the dynamic table alone.
        _decode(side, bytes(side.block))
        side.block = None
        return
    _end_block(streams, side, place, events)


def _end_block(streams: Streams, side: Side, place: Place, events: list[Event]) -> None:
    """The last frame of the header block came."""
    assert side.block is not None
    fields, fault = ((), "") if side.block_cut else _decode(side, bytes(side.block))
    complete = not (side.block_cut or fault) and all(name != UNKNOWN_NAME for name, _ in fields)
    side.block, side.block_cut = None, False
    span = (side.direction, place, side.block_start, side.block_end)
    if fault:
        events.append(Undecodable(*span, None, b"", fault))
    kind, refusal = streams.take_block(side, place, events)
    if refusal is not None:
        events.append(Undecodable(*span, None, b"", refusal))
        return
    events.append(Headers(*span, side.block_stream, kind, fields, complete, side.block_ends))
    if side.block_ends:
        streams.end(side.block_stream, side.direction, place, events)


def _decode(side: Side, block: bytes) -> tuple[Fields, str]:
    """The fields, and why they can't be read."""
    try:
        return tuple((name, value) for name, value in side.decoder.decode(block, raw=True)), ""
    except HPACKError as error:
        side.table.forget()
        # What it names may be of the block itself.
        return (), f"a header block of {len(block)} bytes can't be read: {type(error).__name__}"


def break_block(side: Side, place: Place, events: list[Event]) -> None:
    """A header block will never be whole."""
    if side.block is not None:
        fields = (side.block_start, side.block_end, None, b"", "a header block without end")
        events.append(Undecodable(side.direction, place, *fields))
        side.block, side.block_cut = None, False
        side.table.forget()
