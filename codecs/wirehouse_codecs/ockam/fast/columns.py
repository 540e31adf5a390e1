"""Frames as Arrow columns: the fast path of `routed.decode` and `messages.decode_payload`.

It reads pushes, pulls and index messages that are written as short as can be; rare kinds, other traffic and what
breaks a rule are only marked, for the reference decoder. Both pass the same tests.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.compiled.arrow import UNSIGNED, frozen, lists, names, offsets_of, parts, strings, unsigned
from wirehouse_codecs.ockam.fast import loops
from wirehouse_codecs.ockam.wire.messages import PROTOCOLS, Kind, Status
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.tcp.endpoints import Direction

Array = np.ndarray[Any, Any]

NAME_TYPE: pa.DictionaryType = pa.dictionary(pa.int8(), pa.string())
ROUTE_TYPE: pa.ListType = pa.list_(pa.string())
MESSAGE_TYPE: pa.StructType = pa.struct([("index", UNSIGNED), ("data", pa.binary())])
#: The fields of a frame's message. Fields that it doesn't have are null.
FRAME_FIELDS: Final = (
    # Whether the fast path read it; if not, all fields below are null.
    pa.field("regular", pa.bool_()),
    pa.field("kind", NAME_TYPE),
    pa.field("protocol_name", NAME_TYPE),
    pa.field("version", pa.int32()),
    # Address.text of each hop.
    pa.field("onward_route", ROUTE_TYPE),
    pa.field("return_route", ROUTE_TYPE),
    pa.field("stream_name", pa.string()),
    pa.field("partition", UNSIGNED),
    pa.field("request_id", UNSIGNED),
    pa.field("index", UNSIGNED),
    pa.field("limit", UNSIGNED),
    pa.field("status", NAME_TYPE),
    pa.field("client_id", pa.string()),
    pa.field("data", pa.binary()),
    pa.field("messages", pa.list_(MESSAGE_TYPE)),
    pa.field("tracing_context", pa.string()),
)
SPAN_FIELDS: Final = (pa.field("byte_start", pa.int64()), pa.field("byte_end", pa.int64()))
#: What `decode_columns` gives.
FRAMES: pa.Schema = pa.schema([*SPAN_FIELDS, *FRAME_FIELDS])


class Frames(NamedTuple):
    """The frames of one direction, up to the first that isn't whole, is empty or too large."""

    #: FRAMES.
    batch: pa.RecordBatch
    #: How many bytes they take.
    end: int
    #: Whether the next frame is empty or too large.
    stopped: bool


def decode_columns(data: Array | bytes, envelope: Envelope, direction: Direction, limit: int) -> Frames:
    """The frames of `data`, which begins with one; `limit` is the largest length, in bytes.

    ValueError: `data` has 2 GiB or more.
    """
    held = frozen(np.frombuffer(data, np.uint8))
    bounds, stopped = cut(held, 0, len(held), envelope, limit)
    arrays = Arrays.of(len(bounds) - 1)
    arrays.numbers[loops.BEGIN], arrays.numbers[loops.END] = bounds[:-1], bounds[1:]
    arrays.smalls[loops.SIDE] = loops.FROM_SERVER if direction is Direction.SERVER else 0
    arrays.read(held, envelope)
    columns = [pa.array(bounds[:-1]), pa.array(bounds[1:]), *frame_columns(held, arrays, envelope)]
    return Frames(pa.RecordBatch.from_arrays(columns, schema=FRAMES), int(bounds[-1]), stopped)


def cut(data: Array, begin: int, end: int, envelope: Envelope, limit: int) -> tuple[Array, bool]:
    """Where frames begin and end, and whether what follows has a length that no message has."""
    # No length is taken on trust: a message has at least a byte.
    bounds = np.empty((end - begin) // (envelope.length_bytes + 1) + 2, np.int64)
    frames, stop = loops.cut(data, begin, end, envelope.length_bytes, limit, bounds)
    return bounds[: frames + 1], stop == loops.STOPS


class Arrays(NamedTuple):
    """Numbers of frames; see loops."""

    words: Array
    numbers: Array
    smalls: Array

    @classmethod
    def of(cls, frames: int) -> Arrays:
        """Zeros for `frames` frames."""
        return cls(
            np.zeros((loops.WORDS, frames), np.uint64),
            np.zeros((loops.NUMBERS, frames), np.uint32),
            np.zeros((loops.SMALLS, frames), np.uint16),
        )

    def only(self, frames: Array | slice) -> Arrays:
        """The arrays of some frames only."""
        return Arrays(*(np.ascontiguousarray(column[:, frames]) for column in self))

    def read(self, data: Array, envelope: Envelope) -> None:
        """Read the frames whose BEGIN, END and SIDE are known."""
        loops.read_frames(data, envelope is Envelope.CBOR32, *self)


# Columns


def frame_columns(data: Array, arrays: Arrays, envelope: Envelope) -> list[pa.Array]:
    """FRAME_FIELDS of frames that were read."""
    words, numbers, smalls = arrays
    regular = smalls[loops.REGULAR] != 0
    has = np.where(regular, smalls[loops.HAS], 0)

    def word(row: int) -> pa.Array:
        return unsigned(words[row], has & (1 << row))

    def part(row: int, kind: pa.DataType, bit: int) -> pa.Array:
        # What isn't regular may have been read in part.
        return parts(data, numbers[row], np.where(has & bit, numbers[row + 1], 0), kind, has & bit)

    versioned = regular if envelope is Envelope.BARE16 else np.zeros_like(regular)
    return [
        pa.array(regular),
        names(smalls[loops.KIND], tuple(Kind), regular),
        names(smalls[loops.PROTOCOL], tuple(PROTOCOLS), regular),
        pa.array(smalls[loops.VERSION].astype(np.int32), mask=~versioned),
        _routes(data, numbers, loops.ONWARD, regular, envelope),
        _routes(data, numbers, loops.RETURN, regular, envelope),
        part(loops.NAME, pa.string(), loops.HAS_CLIENT),
        word(loops.PARTITION),
        word(loops.REQUEST_ID),
        word(loops.INDEX),
        word(loops.LIMIT),
        names(smalls[loops.STATUS], tuple(Status), (has & loops.HAS_STATUS) != 0),
        part(loops.CLIENT, pa.string(), loops.HAS_CLIENT),
        part(loops.DATA, pa.binary(), loops.HAS_DATA),
        _messages(data, numbers, has & loops.HAS_MESSAGES),
        part(loops.CONTEXT, pa.string(), loops.HAS_CONTEXT),
    ]


def _routes(data: Array, numbers: Array, route: int, regular: Array, envelope: Envelope) -> pa.Array:
    hops = offsets_of(np.where(regular, numbers[route + 1], 0))
    texts = np.where(regular, numbers[route + 2], 0)
    offsets, out = np.zeros(hops[-1] + 1, np.int32), np.empty(int(texts.sum(dtype=np.int64)), np.uint8)
    loops.put_routes(data, envelope is Envelope.CBOR32, route, numbers, hops, offsets, out)
    return lists(hops, strings(offsets, out, pa.string()), regular)


def _messages(data: Array, numbers: Array, has: Array) -> pa.Array:
    offsets = offsets_of(np.where(has, numbers[loops.MESSAGE_COUNT], 0))
    indexes, begins = np.empty(offsets[-1], np.uint64), np.empty(offsets[-1], np.uint32)
    sizes = np.empty(offsets[-1], np.uint32)
    loops.read_messages(data, numbers[loops.MESSAGES], numbers[loops.END], offsets, indexes, begins, sizes)
    values = [unsigned(indexes), parts(data, begins, sizes, pa.binary())]
    return lists(offsets, pa.StructArray.from_arrays(values, fields=list(MESSAGE_TYPE)), has)
