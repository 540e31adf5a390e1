"""Message compression of gRPC: the codings that `grpc-encoding` names, both ways, within limits.

Damage is a value, never an exception: messages are other people's bytes.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import cramjam

from wirehouse_codecs.captures.inflate import Gzip, Plain, Zstd
from wirehouse_codecs.hiero.options import MOST_RATIO

IDENTITY: Final = "identity"
#: Number of first inflated bytes for which the factor MOST_RATIO isn't judged.
UNJUDGED_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 1 << 18
#: Number of bytes that are inflated to see whether the rest can be.
PROBED_BYTES: Final = 256
#: How zlib data begins (RFC 1950): the method and a window, then a check of both, without a dictionary.
_ZLIB: Final = tuple(
    bytes([method, flags])
    for method in range(0x08, 0x88, 0x10)
    for flags in range(256)
    if not (method << 8 | flags) % 31 and not flags & 0x20
)
#: The first bytes of compressed data, for messages whose compression no header names.
MAGIC: Final = (
    *((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xff\x06\x00\x00sNaPpY", "snappy")),
    *((magic, "deflate") for magic in _ZLIB),
)
_SNAPPY_START: Final = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_HEADER_BYTES: Final = 4


class Inflated(NamedTuple):
    """A message's content, or why there is none."""

    pieces: tuple[bytes, ...]
    fault: str | None = None


class _Damaged(Exception):
    """The data isn't what the coding writes."""


def encoding_of(data: bytes) -> str | None:
    """The coding that `data` looks like."""
    return next((encoding for magic, encoding in MAGIC if data.startswith(magic)), None)


def is_begun(data: bytes) -> bool:
    """Whether compressed data may begin with `data`. A few bytes of zlib data are no proof, so they are inflated."""
    if encoding_of(data) != "deflate":
        return encoding_of(data) is not None
    try:
        zlib.decompressobj().decompress(data[:PROBED_BYTES])
    except zlib.error:
        return False
    return True


def inflate(data: bytes, encoding: str, limit: int, ratio: int = MOST_RATIO) -> Inflated:
    """The content of a compressed message, at most `limit` bytes and `ratio` times its size."""
    inflater = _INFLATERS.get(encoding)
    if inflater is None:
        return Inflated((), f"compressed by {encoding[:64]!r}, which is not known")
    pieces: list[bytes] = []
    size, most = 0, min(limit, max(UNJUDGED_BYTES, ratio * len(data)))
    try:
        for piece in inflater(data, most):
            size += len(piece)
            if size > most:
                times = f", {ratio} times its size" if most < limit else ""
                return Inflated((), f"inflates to more than {most} bytes{times}")
            pieces.append(piece)
    except _Damaged as damage:
        return Inflated((), str(damage))
    return Inflated(tuple(pieces))


def compress(data: bytes, encoding: str) -> bytes:
    """`data` as a message of this coding has it. KeyError for one that isn't known."""
    return _COMPRESSORS[encoding](data)


def _inflate_gzip(data: bytes, _: int) -> Iterator[bytes]:
    return _read(Gzip(Plain(io.BytesIO(data))))


def _inflate_zstd(data: bytes, _: int) -> Iterator[bytes]:
    stream = io.BytesIO(data)
    return _read(Zstd(Plain(stream), stream))


def _read(source: Gzip | Zstd) -> Iterator[bytes]:
    while piece := source.read(PIECE_BYTES):
        yield piece
    if source.damage is not None:
        raise _Damaged(source.damage)


def _inflate_deflate(data: bytes, _: int) -> Iterator[bytes]:
    """The zlib format (RFC 1950), as gRPC means it."""
    member = zlib.decompressobj()
    try:
        while not member.eof:
            piece = member.decompress(data, PIECE_BYTES)
            data = member.unconsumed_tail
            if not piece and not data and not member.eof:
                raise _Damaged("deflate data is cut off")
            yield piece
    except zlib.error as error:
        raise _Damaged(f"deflate data is damaged: {error}") from error
    if member.unused_data:
        raise _Damaged(f"{len(member.unused_data)} bytes follow the deflate data")


def _inflate_snappy(data: bytes, most: int) -> Iterator[bytes]:
    """The framing format, chunk by chunk, of which none inflates to more than 64 KiB; or one raw block."""
    try:
        if not data.startswith(_SNAPPY_START):
            # It is inflated at once, so the length that it announces is judged before.
            if cramjam.snappy.decompress_raw_len(data) > most:
                raise _Damaged(f"inflates to more than {most} bytes")
            yield bytes(cramjam.snappy.decompress_raw(data))
            return
        at = len(_SNAPPY_START)
        while at < len(data):
            end = at + _CHUNK_HEADER_BYTES + int.from_bytes(data[at + 1 : at + _CHUNK_HEADER_BYTES], "little")
            if end > len(data):
                raise _Damaged("snappy data is cut off")
            yield bytes(cramjam.snappy.decompress(_SNAPPY_START + data[at:end]))
            at = end
    except cramjam.DecompressionError as error:
        raise _Damaged(f"snappy data is damaged: {error}") from error


_INFLATERS: Final[Mapping[str, Callable[[bytes, int], Iterator[bytes]]]] = {
    "gzip": _inflate_gzip,
    "deflate": _inflate_deflate,
    "zstd": _inflate_zstd,
    "snappy": _inflate_snappy,
}
_COMPRESSORS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda data: bytes(cramjam.gzip.compress(data)),
    "deflate": zlib.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
    "snappy": lambda data: bytes(cramjam.snappy.compress(data)),
}
ENCODINGS: Final = tuple(_INFLATERS)
