"""Reads a capture as a stream of bytes, decompressed if necessary, up to its end or its damage.

The first bytes decide the compression: gzip (one or more members), zstd (one or more frames), or none. Decompression
is bounded: a read returns at most the requested size, and a capture that inflates beyond the limits below counts as
damaged at that position. Damage is a value, never an exception, because captures are untrusted input.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import pyarrow as pa

#: A capture inflates to at most this many bytes ...
MAX_INFLATED_BYTES = 1 << 38
#: ... and to at most this many times its compressed size ...
MAX_INFLATED_RATIO = 250
#: ... except that this many bytes are always allowed: small captures of few messages compress well.
UNJUDGED_BYTES = 64 << 20
#: Compressed bytes are read in pieces of this size.
INPUT_BYTES = 64 << 10
#: Maximum size of a read from Arrow, which loses the output of a read that fails.
ZSTD_READ_BYTES = 64 << 10

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: A zstd file may begin with a frame to be skipped; its first byte is 0x50 to 0x5f.
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
MAGIC_BYTES = 4


class ByteSource(Protocol):
    """The bytes of a capture from its start to its end or its damage."""

    #: Why the bytes end early; None as long as no damage was met.
    damage: str | None

    def read(self, size: int) -> bytes:
        """The next bytes, at least one and at most `size`; empty at the end and at damage."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of decompression."""

    inflated_bytes: int = MAX_INFLATED_BYTES
    inflated_ratio: int = MAX_INFLATED_RATIO

    def exceeded(self, given: int, taken: int) -> str | None:
        """Why `given` bytes of output are too many for `taken` compressed bytes; None if they aren't."""
        if given > self.inflated_bytes:
            return f"inflates to more than {self.inflated_bytes} bytes"
        if given > UNJUDGED_BYTES and given > self.inflated_ratio * taken:
            return f"inflates to more than {self.inflated_ratio} times its size after {taken} bytes"
        return None


LIMITS = Limits()


class Plain:
    """A capture that isn't compressed."""

    damage: str | None = None

    def __init__(self, stream: BinaryIO, start: bytes = b"") -> None:
        self._stream = stream
        self._start = start

    def read(self, size: int) -> bytes:
        """See ByteSource."""
        if self._start:
            piece, self._start = self._start[:size], self._start[size:]
            return piece
        return self._stream.read(size)


class _Counted:
    """Counts input and output of a decompressor, and checks them against the limits."""

    def __init__(self, source: Plain, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self.taken = 0
        self.given = 0

    def take(self, size: int) -> bytes:
        piece = self._source.read(size)
        self.taken += len(piece)
        return piece

    def give(self, size: int) -> str | None:
        """Count `size` more bytes of output. Returns why they are too many; None if they aren't."""
        self.given += size
        return self._limits.exceeded(self.given, self.taken)


class Gzip:
    """Gzip members one after the other (RFC 1952); zero bytes after the last are padding."""

    def __init__(self, source: Plain, limits: Limits = LIMITS) -> None:
        self.damage: str | None = None
        self._count = _Counted(source, limits)
        self._member: zlib._Decompress | None = None
        self._members = 0
        self._input = b""

    def read(self, size: int) -> bytes:
        """See ByteSource."""
        while self.damage is None:
            if self._member is None and not self._open_member():
                return b""
            piece = self._inflate(size)
            if piece:
                # Output beyond the limit is not returned.
                too_much = self._count.give(len(piece))
                self.damage = too_much or self.damage
                return b"" if too_much else piece
        return b""

    def _open_member(self) -> bool:
        """Begin the next member. Returns False at the end of the capture, or if no member begins here."""
        if self._members:
            self._input = self._input.lstrip(b"\0")
        while len(self._input) < len(_GZIP_MAGIC) and (more := self._count.take(INPUT_BYTES)):
            self._input = (self._input + more).lstrip(b"\0") if self._members else self._input + more
        if not self._input:
            return False
        if not self._input.startswith(_GZIP_MAGIC):
            self.damage = f"after {self._members} gzip members, byte {self._at()} doesn't begin another"
            return False
        self._members += 1
        self._member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        return True

    def _at(self) -> int:
        return self._count.taken - len(self._input)

    def _inflate(self, size: int) -> bytes:
        """Output of the open member; empty if only input was read, the member ended, or damage was met."""
        member = self._member
        assert member is not None
        before = member.copy()
        try:
            piece = member.decompress(self._input, size)
        except zlib.error as error:
            self.damage = f"gzip data is damaged before byte {self._count.taken}: {_reason(error)}"
            return _inflate_bytewise(before, self._input)
        self._input = member.unconsumed_tail
        if member.eof:
            self._input, self._member = member.unused_data, None
        elif not piece and not self._input:
            self._input = self._count.take(INPUT_BYTES)
            if not self._input:
                self.damage = f"gzip data is cut off after {self._count.taken} bytes"
        return piece


def _inflate_bytewise(member: zlib._Decompress, data: bytes) -> bytes:
    """The output of `member` for `data` up to the damage."""
    piece = bytearray()
    try:
        for i in range(len(data)):
            piece += member.decompress(data[i : i + 1])
    except zlib.error:
        pass
    return bytes(piece)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())


class Zstd:
    """Zstd frames one after the other (RFC 8878)."""

    def __init__(self, source: Plain, stream: BinaryIO, limits: Limits = LIMITS) -> None:
        self.damage: str | None = None
        self._stream = stream
        self._limits = limits
        self._open(source)

    def _open(self, source: Plain) -> None:
        self._count = _Counted(source, self._limits)
        self._frames = pa.CompressedInputStream(pa.PythonFile(_Feed(self._count), mode="r"), "zstd")
        self._salvaged = b""

    def read(self, size: int) -> bytes:
        """See ByteSource."""
        if self.damage is not None:
            piece, self._salvaged = self._salvaged[:size], self._salvaged[size:]
            return piece
        try:
            piece = self._frames.read(min(size, ZSTD_READ_BYTES))
        except OSError as error:
            self._salvage(f"zstd data is damaged or cut off before byte {self._count.taken}: {_reason(error)}")
            return self.read(size)
        if too_much := self._count.give(len(piece)):
            self.damage = too_much
            return b""
        return bytes(piece)

    def _salvage(self, damage: str) -> None:
        """Decompress again, byte by byte near the damage: Arrow loses the output of a failed read."""
        self.damage = damage
        given = self._count.given
        if not self._stream.seekable():
            return
        self._stream.seek(0)
        self._open(Plain(self._stream))
        salvaged = bytearray()
        try:
            while given:
                given -= len(self._frames.read(min(given, ZSTD_READ_BYTES)))
            while piece := self._frames.read(1):
                salvaged += piece
        except OSError:
            pass
        self._salvaged = bytes(salvaged)


class _Feed(io.RawIOBase):
    """The compressed bytes as a file that Arrow can read."""

    def __init__(self, count: _Counted) -> None:
        self._count = count

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._count.take(size if size >= 0 else INPUT_BYTES)


class Ahead:
    """A source that lets its first bytes be inspected before they are read."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._start = b""

    @property
    def damage(self) -> str | None:
        """See ByteSource."""
        return self._source.damage

    @damage.setter
    def damage(self, reason: str | None) -> None:
        self._source.damage = reason

    def look(self, size: int) -> bytes:
        """The first `size` bytes or more, or all if there are fewer. To be called before the first read."""
        self._start += fill(self._source, max(size - len(self._start), 0))
        return self._start

    def read(self, size: int) -> bytes:
        """See ByteSource."""
        if self._start:
            piece, self._start = self._start[:size], self._start[size:]
            return piece
        return self._source.read(size)


def open_inflated(stream: BinaryIO, limits: Limits = LIMITS) -> ByteSource:
    """The decompressed bytes of the capture in `stream`, which must be at its start. The magic decides the format."""
    start = stream.read(MAGIC_BYTES)
    if start.startswith(_GZIP_MAGIC):
        return Gzip(Plain(stream, start), limits)
    if start.startswith(_ZSTD_MAGIC) or (start[1:] == _ZSTD_SKIPPABLE and start[0] >> 4 == 5):
        return Zstd(Plain(stream, start), stream, limits)
    return Plain(stream, start)


def fill(source: ByteSource, size: int) -> bytes:
    """The next `size` bytes of `source`; fewer only at its end."""
    pieces = []
    while size > 0 and (piece := source.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
