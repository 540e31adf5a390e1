"""A reader of tar archives for untrusted input: POSIX.1-1988, pax, and GNU's long names.

The input is a stream of bytes, the output the name and bytes of each member. Python's `tarfile` isn't used because it
sets no limit to announced sizes, and holds every record of chained headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wirehouse_codecs.captures.inflate import ByteSource, fill

#: Skipped bytes are read in pieces of this size.
PIECE_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 512
#: Maximum size of a GNU long name, and of a pax header.
_MOST_NAME_BYTES: Final = 1 << 16
#: Maximum number of digits in the length of a pax record.
_MOST_DIGITS: Final = 20
_REGULAR: Final = (b"0", b"\0", b"7")
_GNU_NAME: Final = b"L"
_EXTENSIONS: Final = b"x"
#: Records of a pax header that matter here.
_PATH: Final = b"path"
_BYTES: Final = b"size"


class Archive:
    """Reads the members of a tar archive one after the other.

    `next` opens the next file and returns its name; `read` returns its bytes. Only the name and the size of one member
    are held in memory, however many headers it has.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        #: How many bytes of the archive have been read; then how many of the open member haven't, without and with
        #: its padding.
        self.at = 0
        self._left = self._padded = 0
        #: Why the archive ends early; and the bytes at that position, which were expected to be a header.
        self.damage: str | None = None
        self.no_header = b""

    def next(self) -> str | None:
        """Open the next file and return its name; None at the end of the archive or where it is damaged."""
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
                self._lose("not the header of a file", header)
                return None
            self._left, self._padded = size, size + -size % _BLOCK_BYTES
            if kind in (_GNU_NAME, _EXTENSIONS):
                if size > _MOST_NAME_BYTES:
                    self._lose(f"a header of {size} bytes, at most {_MOST_NAME_BYTES}", header)
                    return None
                body = self.read(size)
                extended |= {_PATH: body.rstrip(b"\0")} if kind == _GNU_NAME else _extensions(body)
            elif kind in _REGULAR:
                return (extended.get(_PATH) or _name(header)).decode("utf-8", "replace")
            else:
                extended = {}
        return None

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the open file; empty at its end."""
        piece = self._take(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(piece)
        self._padded -= len(piece)
        return piece

    def seekable(self) -> bool:
        """Always False: bytes can't be read again."""
        return False

    def _take(self, size: int) -> bytes:
        data = fill(self._source, size)
        self.at += len(data)
        return data

    def _pass_over(self) -> bool:
        """Skip the rest of the open file. Returns False if the archive ends within it."""
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
        """Whether bytes of the open file are still unread; after reading it to the end, it was cut off."""
        return self._left > 0


def begins_archive(start: bytes) -> bool:
    """Whether `start`, the first bytes of a file, begins with a valid tar header of 512 bytes."""
    header = start[:_BLOCK_BYTES]
    return len(header) == _BLOCK_BYTES and _size(header, {}) is not None


def _extensions(body: bytes) -> dict[bytes, bytes]:
    """Path and size in a pax header: records `LENGTH NAME=VALUE` and a line break, up to the first malformed one."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        length = body[at : at + _MOST_DIGITS].partition(b" ")[0]
        end = at + int(length) if length.isdigit() else at
        name, equals, value = body[at + len(length) + 1 : end - 1].partition(b"=")
        if not equals or body[end - 1 : end] != b"\n":
            break
        if name in (_PATH, _BYTES):
            found[name] = value
        at = end
    return found


def _text(padded: bytes) -> bytes:
    return padded.partition(b"\0")[0]


def _name(header: bytes) -> bytes:
    folder = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
    return b"/".join(filter(None, (folder, _text(header[:100]))))


def _size(header: bytes, extended: Mapping[bytes, bytes]) -> int | None:
    """The size that a header announces; None if it isn't a header: its checksum is wrong, or a field isn't a number."""
    try:
        checksum = int(_text(header[148:156]), 8)
        if checksum != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
            return None
        if size := extended.get(b"size"):
            return max(int(size[:20]), 0)
        field = header[124:136]
        # GNU's binary form, for sizes that eleven octal digits can't hold.
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else max(int(_text(field).strip() or b"0", 8), 0)
    except ValueError:
        return None
