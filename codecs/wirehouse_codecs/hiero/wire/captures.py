"""Captures of block files and of gRPC binary logs.

A record of a block capture is one inflated block file, alone or from a tar archive, with the time in its header. Other
members of an archive are skipped. A record of a log is one entry with its length prefix, and has its own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, cast

import pyarrow as pa

from wirehouse_codecs.captures import files
from wirehouse_codecs.captures.archives import Archive, begins_archive
from wirehouse_codecs.captures.files import Cut, EntryCapture, FileRecord, Form, gathered, within_64_bits
from wirehouse_codecs.captures.inflate import Ahead, ByteSource, fill, open_inflated
from wirehouse_codecs.captures.source import Origin
from wirehouse_codecs.hiero.wire import grpc_log
from wirehouse_codecs.hiero.wire.blocks import MOST_BODY_BYTES, is_block_file
from wirehouse_codecs.hiero.wire.items.cutting import ItemReader
from wirehouse_codecs.hiero.wire.items.decoded import BlockHeader, decode_header
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber

_ARCHIVE_ENDINGS: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd")
#: Number of bytes at the start of a file that are enough to recognise an archive, and that hold a block's header.
_START_BYTES: Final = 2 * MOST_BODY_BYTES


class BlockCapture:
    """The blocks of one file or archive. See `captures.source.Capture`."""

    def __init__(self, stream: BinaryIO, origin: Origin) -> None:
        """`stream` stands at the file's first byte."""
        self.unreadable: str | None = None
        self.damage: str | None = None
        self._stream = stream
        self._origin = origin
        self._source = Ahead(open_inflated(stream, origin.limits))
        self._given = 0
        #: Files of an archive that are damaged.
        self._damaged = 0
        self._empty = not (start := self._source.look(_START_BYTES))
        self._archived = begins_archive(start) or origin.name.endswith(_ARCHIVE_ENDINGS)
        if not (self._archived or self._empty or is_block_file(origin.name) or _header(start) is not None):
            self.unreadable = "neither a block nor a tar archive, plain or compressed by gzip or zstd"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See `captures.source.Capture`."""
        if self.unreadable is not None or (self._empty and self._source.damage is None):
            return
        yield from gathered(self._members() if self._archived else self._block(self._source, self._origin.name))
        if self._damaged > 1:
            self.damage = f"{self.damage}; {self._damaged - 1:,} more of its files are damaged"

    def _members(self) -> Iterator[FileRecord]:
        archive = Archive(self._source)
        while (member := archive.next()) is not None:
            if is_block_file(member):
                inside = open_inflated(cast(BinaryIO, archive), self._origin.limits)
                yield from self._block(inside, member, archive)
                if self._too_much():
                    return
        after = archive.damage or "after the end of the archive"
        piece = archive.no_header + fill(self._source, files.PIECE_BYTES - len(archive.no_header))
        part = 0
        while piece:
            following = fill(self._source, files.PIECE_BYTES)
            if archive.damage or any(piece):
                self.damage = self.damage or after
                yield FileRecord(None, self._origin.name, None, piece, after, part, not following)
                part += 1
            piece = following
        self.damage = self.damage or archive.damage or self._source.damage

    def _block(self, source: ByteSource, name: str, archive: Archive | None = None) -> Iterator[FileRecord]:
        """The records of one block file."""
        piece = fill(source, files.PIECE_BYTES)
        ts_ns, part, last = _time(piece), 0, False
        while not last:
            self._given += len(piece)
            following = b"" if self._too_much() else fill(source, files.PIECE_BYTES)
            damage, last = None, not following
            if last:
                cut_off = "the archive is cut off" if archive is not None and archive.cut_off else None
                damage = self._too_much() or source.damage or cut_off
                self._damaged += damage is not None
                self.damage = self.damage or damage
            yield FileRecord(ts_ns, name, piece, None, damage, part, last)
            piece, part = following, part + 1

    def _too_much(self) -> str | None:
        """Why the capture as a whole exceeds the limits, or None. Each file is also checked alone."""
        return self._origin.limits.exceeded(self._given, self._stream.tell())


def _header(start: bytes) -> BlockHeader | None:
    """The header of a block that begins so."""
    for items in ItemReader(MOST_BODY_BYTES).receive(start[:_START_BYTES]):
        for position in items.where(ItemNumber.BLOCK_HEADER)[:1]:
            header: BlockHeader | None = decode_header(items.body(position)).value
            return header
    return None


def _time(start: bytes) -> int | None:
    """The time of a block that begins so: its header's."""
    header = _header(start)
    return None if header is None or header.timestamp is None else within_64_bits(header.timestamp.ns)


class LogCutter:
    """Cuts a gRPC binary log into its entries. A `captures.files.Cutter`."""

    def __init__(self, origin: Origin) -> None:
        self.damage: str | None = None
        self._framer = grpc_log.Framer()

    def receive(self, data: bytes) -> Iterable[Cut]:
        """See Cutter."""
        return map(self._cut, self._framer.receive(data))

    def finish(self) -> Iterable[Cut]:
        """See Cutter."""
        return map(self._cut, self._framer.finish())

    def _cut(self, framed: grpc_log.Framed) -> Cut:
        if framed.reason:
            self.damage = self.damage or f"byte {framed.byte_start} of the log: {framed.reason}"
            return Cut(framed.data, None, framed.reason)
        entry = grpc_log.decode(framed.data)
        if isinstance(entry, str):
            return Cut(framed.length + framed.data, None, entry)
        return Cut(framed.length + framed.data, within_64_bits(entry.timestamp.ns))


def _refuse_log(start: bytes) -> str | None:
    return None if grpc_log.begins_log(start) else "no gRPC binary log, plain or compressed by gzip or zstd"


LOGS: Final = Form(_refuse_log, LogCutter)


def log_capture(stream: BinaryIO, origin: Origin) -> EntryCapture:
    """The entries of a gRPC binary log."""
    return EntryCapture(LOGS, stream, origin)
