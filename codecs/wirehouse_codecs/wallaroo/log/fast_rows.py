"""Rows of the log for frames of the fast path: whole columns at once, without a Python value per row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.logs.rows import MESSAGE, place_columns
from wirehouse_codecs.tcp.reassembly import Data
from wirehouse_codecs.wallaroo.log.rows import text_of
from wirehouse_codecs.wallaroo.log.schema import ID_TYPE, MESSAGE_TYPE, REFERENCE_TYPE


def message_columns(plain: pa.Table, pieces: Sequence[Data]) -> pa.RecordBatch:
    """Columns of the log for plain frames, of which `pieces` say where they stand."""

    def column(name: str) -> pa.Array:
        return plain.column(name).combine_chunks()

    at = column("piece")
    rows = len(at)
    message = {
        "kind": column("kind").cast(pa.string()),
        "message_id": column("message_id").cast(ID_TYPE),
        "flags": column("flags").cast(pa.int32()),
        "event_time": column("event_time"),
        "key": column("key"),
        "payload": column("payload"),
        "credits": column("credits").cast(pa.int64()),
        "point_of_ref": column("point_of_ref").cast(ID_TYPE),
        "streams": _acked(column("acks")),
        "success": pc.not_equal(column("success"), 0),
        "stream_name": pa.array([None if name is None else text_of(name) for name in column("stream_name").to_pylist()])
        if column("stream_name").null_count < rows
        else pa.nulls(rows, pa.string()),
    }
    fields = [message[field.name] if field.name in message else pa.nulls(rows, field.type) for field in MESSAGE_TYPE]
    columns = {
        "row_kind": pa.repeat(pa.scalar(MESSAGE), rows),
        **{name: values.take(at) for name, values in place_columns(piece.place for piece in pieces).items()},
        "direction": column("direction").cast(pa.string()),
        "byte_start": column("byte_start"),
        "byte_end": column("byte_end"),
        "stream_id": pc.coalesce(column("attributed_stream_id"), column("stream_id")).cast(ID_TYPE),
        "message": pa.StructArray.from_arrays(fields, fields=list(MESSAGE_TYPE)),
    }
    return pa.RecordBatch.from_pydict(columns)


def _acked(acks: pa.ListArray) -> pa.ListArray:
    """Pairs of ACKs as MESSAGE_TYPE has them."""
    pairs = acks.values
    ids = [pairs.field(name).cast(ID_TYPE) for name in ("stream_id", "point_of_ref")]
    references = pa.StructArray.from_arrays(
        [ids[0], pa.nulls(len(pairs), pa.string()), ids[1]], fields=list(REFERENCE_TYPE)
    )
    _, offsets = acks.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(REFERENCE_TYPE), len(acks), [acks.buffers()[0], offsets], acks.null_count, acks.offset, [references]
    )
