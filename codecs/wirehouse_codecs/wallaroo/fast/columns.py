"""Frames as Arrow columns: the fast path of `messages.Framer` and `messages.decode`.

It reads MESSAGE, ACK, EOS_MESSAGE, NOTIFY and NOTIFY_ACK. Rare kinds, and frames that break a rule of decoding, are
only marked (`regular` is false), and the reference path reads them. Both paths have the same tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.compiled.arrow import frozen, lists, names, offsets_of, parts, validity
from wirehouse_codecs.wallaroo.dialects import Dialect
from wirehouse_codecs.wallaroo.fast import loops
from wirehouse_codecs.wallaroo.frames import KINDS, Message

Array = np.ndarray[Any, Any]

PAIR_TYPE: pa.StructType = pa.struct([("stream_id", pa.uint64()), ("point_of_ref", pa.uint64())])
NAME_TYPE: pa.DictionaryType = pa.dictionary(pa.int8(), pa.string())
#: The content of a frame. Fields that it doesn't have are null.
FRAME_FIELDS: Final = (
    # The kind by the tag; null for an unknown tag.
    pa.field("kind", NAME_TYPE),
    # Whether it was read here; if not, all fields below are null.
    pa.field("regular", pa.bool_()),
    pa.field("stream_id", pa.uint64()),
    pa.field("message_id", pa.uint64()),
    pa.field("point_of_ref", pa.uint64()),
    pa.field("flags", pa.uint16()),
    # Signed or unsigned 64 bits, by dialect.
    pa.field("event_time", pa.decimal128(20, 0)),
    pa.field("key", pa.binary()),
    pa.field("payload", pa.binary()),
    pa.field("stream_name", pa.binary()),
    pa.field("credits", pa.uint32()),
    pa.field("success", pa.uint8()),
    pa.field("acks", pa.list_(PAIR_TYPE)),
)
SPAN_FIELDS: Final = (pa.field("byte_start", pa.int64()), pa.field("byte_end", pa.int64()))
#: The columns that `decode_columns` gives.
FRAMES: pa.Schema = pa.schema([*SPAN_FIELDS, *FRAME_FIELDS])


class Frames(NamedTuple):
    """The frames of one direction, up to the first that isn't whole or has a length that no frame has."""

    #: The frames, with the columns FRAMES.
    batch: pa.RecordBatch
    #: Number of bytes that they take.
    end: int
    #: Whether the next frame is empty or too large.
    lost: bool


def decode_columns(data: Array | bytes, dialect: Dialect, limit: int) -> Frames:
    """The frames of `data`, which begins with one; `limit` is the largest length, in bytes.

    ValueError: `data` has 2 GiB or more.
    """
    held = frozen(np.frombuffer(data, np.uint8))
    bounds, lost = cut(held, 0, len(held), dialect, limit)
    arrays = Arrays.of(len(bounds) - 1)
    arrays.numbers[loops.BEGIN], arrays.numbers[loops.END] = bounds[:-1], bounds[1:]
    arrays.read(held, dialect)
    columns = [pa.array(bounds[:-1]), pa.array(bounds[1:]), *frame_columns(held, arrays, dialect)]
    return Frames(pa.RecordBatch.from_arrays(columns, schema=FRAMES), int(bounds[-1]), lost)


def cut(data: Array, begin: int, end: int, dialect: Dialect, limit: int) -> tuple[Array, bool]:
    """The begins of frames and the end of the last one, and whether the next length is one that no frame has."""
    # No length is taken on trust: a frame has at least a tag.
    bounds = np.empty((end - begin) // (loops.LENGTH_BYTES + 1) + 2, np.int64)
    frames, stop = loops.cut(data, begin, end, dialect.byte_order == "little", limit, bounds)
    return bounds[: frames + 1], stop == loops.LOST


class Arrays(NamedTuple):
    """The numbers of frames, with the rows that loops.py names."""

    words: Array
    numbers: Array
    smalls: Array

    @classmethod
    def of(cls, frames: int) -> Arrays:
        """Zeros for this number of frames."""
        return cls(
            np.zeros((loops.WORDS, frames), np.uint64),
            np.zeros((loops.NUMBERS, frames), np.uint32),
            np.zeros((loops.SMALLS, frames), np.uint16),
        )

    def read(self, data: Array, dialect: Dialect) -> None:
        """Read the frames whose BEGIN and END are known."""
        loops.read_frames(data, dialect.byte_order == "little", _layout(dialect), _kinds(dialect), *self)


def _layout(dialect: Dialect) -> int:
    if dialect.byte_order == "big":
        return loops.PLAIN if dialect.flags is None else loops.FLAGGED
    return loops.TEXT_WITH_STREAM if dialect.layouts[Message][0].name == "stream_id" else loops.TEXT


def _kinds(dialect: Dialect) -> Array:
    """The kind of each tag."""
    kinds = np.full(256, loops.OTHER, np.uint8)
    for code, frame in enumerate(KINDS.values()):
        if frame in dialect.tags:
            kinds[dialect.tags[frame]] = code
    return kinds


# Columns


def frame_columns(data: Array, arrays: Arrays, dialect: Dialect, kinds: Sequence[str] = tuple(KINDS)) -> list[pa.Array]:
    """FRAME_FIELDS of frames that were read; `kinds` are the names of their kinds."""
    words, numbers, smalls = arrays
    kind, regular, has = smalls[loops.KIND], smalls[loops.REGULAR] != 0, smalls[loops.HAS]
    signed = dialect.byte_order == "big"
    acks = regular & (kind == loops.ACK)
    return [
        names(kind, kinds, kind != loops.OTHER),
        pa.array(regular),
        *(
            words_column(words[word], has & (1 << word))
            for word in (loops.STREAM_ID, loops.MESSAGE_ID, loops.REFERENCE)
        ),
        pa.Array.from_buffers(
            pa.uint16(), len(has), [validity(has & loops.HAS_FLAGS), pa.py_buffer(smalls[loops.FLAGS])]
        ),
        _times(words[loops.EVENT_TIME], has & (1 << loops.EVENT_TIME), signed),
        _part(data, numbers, loops.KEY, has & loops.HAS_KEY),
        _part(data, numbers, loops.PAYLOAD, has & loops.HAS_PAYLOAD),
        _part(data, numbers, loops.NAME, regular & (kind == loops.NOTIFY)),
        pa.Array.from_buffers(pa.uint32(), len(acks), [validity(acks), pa.py_buffer(numbers[loops.CREDITS])]),
        pa.array(smalls[loops.SUCCESS].astype(np.uint8), mask=~(regular & (kind == loops.NOTIFY_ACK))),
        _pairs(data, numbers, acks, not signed),
    ]


def words_column(words: Array, has: Array) -> pa.Array:
    """Unsigned 64 bits, null where `has` is 0."""
    return pa.Array.from_buffers(pa.uint64(), len(words), [validity(has), pa.py_buffer(words)])


def _times(words: Array, has: Array, signed: bool) -> pa.Array:
    """64 bits as the 128 of a decimal."""
    both = np.zeros((len(words), 2), np.uint64)
    both[:, 0] = words
    if signed:
        both[:, 1] = (words.view(np.int64) >> 63).view(np.uint64)
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(words), [validity(has), pa.py_buffer(both)])


def _part(data: Array, numbers: Array, part: int, has: Array) -> pa.Array:
    return parts(data, numbers[part], numbers[part + 1], pa.binary(), has)


def _pairs(data: Array, numbers: Array, has: Array, little: bool) -> pa.Array:
    offsets = offsets_of(numbers[loops.PAIR_COUNT])
    streams, ids = np.empty(offsets[-1], np.uint64), np.empty(offsets[-1], np.uint64)
    loops.pair_words(data, numbers[loops.PAIRS], offsets, little, streams, ids)
    pairs = pa.StructArray.from_arrays([pa.array(streams), pa.array(ids)], fields=list(PAIR_TYPE))
    return lists(offsets, pairs, has)
