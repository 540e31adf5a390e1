"""Tar archives as they are read member by member: POSIX.1-1988 and pax, GNU's long names.

The standard library's reader follows chained headers and announced sizes without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wirehouse_codecs.captures.inflate import ByteSource, fill

#: What is passed over is read in pieces of this size.
PIECE_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 512
#: A name that stands in a block of its own, or in a header of extensions, is at most so long.
_MOST_NAME_BYTES: Final = 1 << 16
#: Of the length of an extension.
_MOST_DIGITS: Final = 20
_REGULAR: Final = (b"0", b"\0", b"7")
_GNU_NAME: Final = b"L"
_EXTENSIONS: Final = b"x"


class Archive:
    """The members of a tar archive (POSIX.1-1988 and pax, GNU's long names), one after the other.

    `read` gives the bytes of the member that `next` named. Nothing is held but a name.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        #: Bytes of the archive that were read, and of the open member that weren't, with and without its padding.
        self.at = 0
        self._left = self._padded = 0
        #: Why the archive ends early, and the bytes that were read there for a header.
        self.damage: str | None = None
        self.no_header = b""

    def next(self) -> str | None:
        """The name of the next file; None at the end of the archive or at its damage."""
        extended: dict[bytes, bytes] = {}
        while self._pass_over():
            header = self._take(_BLOCK_BYTES)
            if len(header) == _BLOCK_BYTES and not any(header):
                return None
            if len(header) < _BLOCK_BYTES:
                self._lose("it is cut off", header)
                return None
            kind, size = header[156:157], _size(header, extended)
            if size is None:
                self._lose("no header of a file", header)
                return None
            self._left, self._padded = size, size + -size % _BLOCK_BYTES
            if kind in (_GNU_NAME, _EXTENSIONS):
                if size > _MOST_NAME_BYTES:
                    self._lose(f"a header of {size} bytes, at most {_MOST_NAME_BYTES}", header)
                    return None
                body = self.read(size)
                extended |= {b"path": body.rstrip(b"\0")} if kind == _GNU_NAME else _extensions(body)
            elif kind in _REGULAR:
                return (extended.get(b"path") or _name(header)).decode("utf-8", "replace")
            else:
                extended = {}
        return None

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the open file, empty at its end."""
        piece = self._take(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(piece)
        self._padded -= len(piece)
        return piece

    def seekable(self) -> bool:
        """Damaged bytes can't be read again."""
        return False

    def _take(self, size: int) -> bytes:
        data = fill(self._source, size)
        self.at += len(data)
        return data

    def _pass_over(self) -> bool:
        """Leave the open file behind; False where the archive ends in it."""
        while self._padded:
            piece = self._take(min(self._padded, PIECE_BYTES))
            self._padded -= len(piece)
            if not piece:
                self._lose("it is cut off")
                return False
        return True

    def _lose(self, reason: str, header: bytes = b"") -> None:
        self.no_header = header
        self.damage = self._source.damage or f"byte {self.at} of the archive: {reason}"

    @property
    def cut_off(self) -> bool:
        """The open file was read to its end, and that isn't where it should be."""
        return self._left > 0


def begins_archive(start: bytes) -> bool:
    """The first bytes of a file, 512 or more, are the header of an archive's member."""
    header = start[:_BLOCK_BYTES]
    return len(header) == _BLOCK_BYTES and _size(header, {}) is not None


def _extensions(body: bytes) -> dict[bytes, bytes]:
    """The records of a pax header, `LENGTH NAME=VALUE` and a line break, up to one that is none."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        length = body[at : at + _MOST_DIGITS].partition(b" ")[0]
        end = at + int(length) if length.isdigit() else at
        name, equals, value = body[at + len(length) + 1 : end - 1].partition(b"=")
        if not equals or body[end - 1 : end] != b"\n":
            break
        found[name] = value
        at = end
    return found


def _text(padded: bytes) -> bytes:
    return padded.partition(b"\0")[0]


def _name(header: bytes) -> bytes:
    folder = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
    return b"/".join(filter(None, (folder, _text(header[:100]))))


def _size(header: bytes, extended: Mapping[bytes, bytes]) -> int | None:
    """The size that a header announces; None = it isn't one: its sum is wrong, or no number."""
    try:
        told = int(_text(header[148:156]), 8)
        if told != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
            return None
        if size := extended.get(b"size"):
            return max(int(size[:20]), 0)
        field = header[124:136]
        # GNU's form for what eleven octal digits don't hold.
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else max(int(_text(field).strip() or b"0", 8), 0)
    except ValueError:
        return None
