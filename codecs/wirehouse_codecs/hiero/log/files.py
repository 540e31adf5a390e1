"""Block files and gRPC binary logs in the pieces in which they are landed, as rows of the log `silver.hiero`.

Readings of logs.files: `of_blocks` for files of blocks, `of_entries` for gRPC binary logs, a record of which is an
entry with its length.
"""

from __future__ import annotations

from functools import partial

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.log.log import EntryLog, add_block_file
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.wire import grpc_log
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder, BlockFile
from wirehouse_codecs.hiero.wire.items.cutting import ItemReader
from wirehouse_codecs.logs.files import Piece, Start
from wirehouse_codecs.logs.rows import Log


def of_blocks(options: HieroOptions) -> Start:
    """Readings of block files of a source with these options."""
    return partial(_Blocks, options)


def of_entries(options: HieroOptions) -> Start:
    """Readings of gRPC binary logs of a source with these options."""
    return partial(_Entries, options)


class _Blocks:
    """Block files, one after another. All pieces of one arrive at once."""

    def __init__(self, options: HieroOptions, log: Log, key: bytes, snapshot: str | None) -> None:
        self._log, self._limit = log, options.max_message_bytes
        self._begin()

    def _begin(self) -> None:
        self._reader, self._builder = ItemReader(self._limit), BlockBuilder()

    def receive(self, piece: Piece) -> None:
        """The next piece of a file."""
        for items in self._reader.receive(piece.data):
            self._builder.add(items)
        if not piece.last:
            return
        fault = self._reader.finish()
        where = None if fault is None else f"byte {fault.at} of the block: {fault.reason}"
        damage = "; ".join(filter(None, (piece.damage, where))) or None
        file = BlockFile(piece.name, self._builder.finish(), self._reader.received, damage)
        self._log.connection_id = None
        add_block_file(self._log, file, piece.place)
        self._begin()

    def finish(self, place: Place) -> None:
        """Nothing is open between files."""

    def snapshot(self) -> None:
        """The next file needs nothing of those before it."""


class _Entries:
    """One gRPC binary log."""

    def __init__(self, options: HieroOptions, log: Log, key: bytes, snapshot: str | None) -> None:
        self._log, self._key = log, key
        self._entries = EntryLog(log, options, snapshot)
        #: The parts of an entry that comes in pieces.
        self._held = bytearray()
        self._byte_start = 0

    def receive(self, piece: Piece) -> None:
        """The next piece of an entry."""
        if piece.part == 0:
            self._held, self._byte_start = bytearray(), piece.byte_start
        self._held += piece.data
        if not piece.last:
            return
        # An entry may be large: of each step only what the next one needs is held.
        end, data = self._byte_start + len(self._held), bytes(self._held)
        self._held = bytearray()
        data = grpc_log.unframe(data)
        framed = grpc_log.Framed(self._byte_start, end, data)
        self._log.connection_id = self._key
        self._entries.receive(framed, grpc_log.decode(data), piece.place)

    def finish(self, place: Place) -> None:
        """The log has ended."""
        self._log.connection_id = self._key
        self._entries.finish(place)

    def snapshot(self) -> str:
        """The state, as JSON."""
        return self._entries.snapshot()
