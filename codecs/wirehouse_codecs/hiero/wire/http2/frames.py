"""Frames of HTTP/2 (RFC 9113 section 4) as bytes: their header, their types, and where one may begin."""

from __future__ import annotations

import re
import struct
from typing import Final

from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
#: Largest frame of a side without other SETTINGS of its peer (RFC 9113 section 4.2), with unknown ones, and of all.
FRAME_BYTES: Final = 1 << 14
UNKNOWN_FRAME_BYTES: Final = (1 << 20) - 1
MOST_FRAME_BYTES: Final = (1 << 24) - 1
#: Why a frame isn't whole.
CUT: Final = "cut by a hole"
HEADER: Final = struct.Struct(">HBBBI")
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
STREAM_MASK: Final = (1 << 31) - 1
DATA, HEADERS, PUSH, CONTINUATION = (
    frame.type for frame in (DataFrame, HeadersFrame, PushPromiseFrame, ContinuationFrame)
)
BLOCKS: Final = frozenset((HEADERS, PUSH, CONTINUATION))
CONTROL: Final = frozenset(
    frame.type for frame in (PriorityFrame, RstStreamFrame, SettingsFrame, PingFrame, GoAwayFrame, WindowUpdateFrame)
)
SETTINGS: Final = SettingsFrame.type
RESET: Final = RstStreamFrame.type
UPDATE: Final = WindowUpdateFrame.type
UPDATE_BYTES: Final = HEADER_BYTES + 4
#: The start of a TLS record: a handshake of version 3.x (RFC 8446 section 5.1).
TLS: Final = re.compile(rb"\x16\x03[\x00-\x04]", re.DOTALL)
#: The frame that a server must send first (RFC 9113 section 3.4).
SETTINGS_FIRST: Final = re.compile(rb"\x00..\x04\x00\x00{4}", re.DOTALL)
#: A header that a frame of gRPC has, by length, type, flags and stream; or a preface.
_ODD: Final = b"[" + b"".join(b"\\x%02x" % odd for odd in range(1, 256, 2)) + b"]"
_STREAM: Final = rb"[\x00-\x7f].." + _ODD
CREDIBLE: Final = re.compile(
    b"(?="
    + b"|".join(
        (
            # Zeros would be empty DATA; without END_STREAM nobody sends it.
            rb"(?!\x00{4}[\x00\x08])[\x00-\x0f]..\x00[\x00\x01\x08\x09]" + _STREAM,
            rb"\x00..\x01[\x00\x01\x04\x05\x08\x09\x0c\x0d\x20\x21\x24\x25\x28\x29\x2c\x2d]" + _STREAM,
            rb"\x00\x00\x05\x02\x00" + _STREAM,
            rb"\x00\x00\x04\x03\x00" + _STREAM,
            rb"\x00..\x04\x00\x00{4}",
            rb"\x00{3}\x04\x01\x00{4}",
            rb"\x00\x00\x08\x06[\x00\x01]\x00{4}",
            rb"\x00..\x07\x00\x00{4}",
            rb"\x00\x00\x04\x08\x00(?:\x00{4}|" + _STREAM + b")",
            rb"\x00..\x09[\x00\x04]" + _STREAM,
            re.escape(PREFACE[:HEADER_BYTES]),
        )
    )
    + b")",
    re.DOTALL,
)


def is_update(frame: bytes) -> bool:
    """Whether it is a WINDOW_UPDATE. A bulk transfer has very many; they cause no event."""
    if frame[3] != UPDATE or len(frame) != UPDATE_BYTES:
        return False
    return 0 < int.from_bytes(frame[HEADER_BYTES:], "big") <= STREAM_MASK
