"""Where a message begins in content of which that isn't known: the capture began within it, or bytes are missing.

A message is looked for in the content of a whole DATA frame. Credible is one that is compressed and has the magic of a
coding, or one of which a field of Protocol Buffers fills it, or a few that do and are all there. At its end ends the
frame, or another message begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from wirehouse_codecs.hiero.wire import compression
from wirehouse_codecs.hiero.wire.grpc.events import PREFIX_BYTES
from wirehouse_codecs.hiero.wire.protobuf import Malformed, WireType, read_varint

#: Where a message may begin: flag, a length of 2 to 2^27 - 1, and the tag of a first field, or a magic.
_CANDIDATE: Final = re.compile(
    rb"(?=\x00(?!\x00{3}[\x00\x01])[\x00-\x07].{3}[\x08-\x7f]"
    rb"|\x01[\x00-\x07].{3}(?:" + b"|".join(re.escape(magic) for magic, _ in compression.MAGIC) + b"))",
    re.DOTALL,
)


def first_message(data: bytes, limit: int) -> int | None:
    """Where the first credible message begins in the content of a frame."""
    starts = (found.start() for found in _CANDIDATE.finditer(data))
    return next((at for at in starts if _is_message(data, at, limit)), None)


def _is_message(data: bytes, at: int, limit: int) -> bool:
    """Whether a message begins at `at`: one with a single field, as most of these have, or a few; then another one."""
    begin = at + PREFIX_BYTES
    end = begin + int.from_bytes(data[at + 1 : begin], "big")
    if end - begin > limit:
        return False
    if not data[at]:
        number, reached = _walk(data, begin, end)
        if reached != end or (number > 1 and end > len(data)):
            return False
    elif not compression.is_begun(data[begin : min(end, begin + compression.PROBED_BYTES)]):
        return False
    following = data[end : end + PREFIX_BYTES]
    return not following or (following[0] <= 1 and int.from_bytes(following[1:], "big") <= limit)


def _walk(data: bytes, at: int, end: int) -> tuple[int, int]:
    """How many fields of Protocol Buffers stand before `end`, and where the last one ends: there, if they are that."""
    for number in range(1, _JUDGED_FIELDS + 1):
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == WireType.LEN:
            size, at = _varint(data, at)
            at += size
        elif wire_type == WireType.VARINT:
            _, at = _varint(data, at)
        else:
            at = at + _FIXED[wire_type] if wire_type in _FIXED else _BEYOND
        if at >= end or at > len(data) or not key >> 3:
            return number, at if key >> 3 else _BEYOND
    return _JUDGED_FIELDS, at


_JUDGED_FIELDS: Final = 16
_FIXED: Final[Mapping[int, int]] = {WireType.I64: 8, WireType.I32: 4}
#: Behind any end.
_BEYOND: Final = 1 << 64


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the position after it, which is beyond any end where there is none."""
    try:
        return read_varint(data, at, len(data))
    except Malformed:
        return 0, _BEYOND
