"""The reader of tar archives: bounded memory. What it reads of archives is tested with the captures in them."""

from __future__ import annotations

import io
import tarfile
import tracemalloc

from wirehouse_codecs.captures.archives import Archive


class Source:
    """Bytes of a file."""

    damage: str | None = None

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._data.read(size)


def header(records: dict[str, str]) -> bytes:
    """A pax header with these records, without the member that it describes."""
    body = b""
    for name, value in records.items():
        rest = f" {name}={value}\n".encode()
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length += 1
        body += str(length).encode() + rest
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(body)
    return info.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)


def test_records_of_chained_headers_are_not_held() -> None:
    chained = b"".join(header({f"key{number}": "v" * 60_000}) for number in range(200))
    member = tarfile.TarInfo("short")
    member.size = 3
    data = chained + header({"path": "long/name", "size": "3"}) + member.tobuf() + b"abc" + bytes(509) + bytes(1024)
    archive = Archive(Source(data))
    tracemalloc.start()
    try:
        assert archive.next() == "long/name"
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 1 << 20
    assert archive.read() == b"abc"
    assert archive.next() is None
    assert archive.damage is None
