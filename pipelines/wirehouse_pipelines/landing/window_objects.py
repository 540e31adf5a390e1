"""The readers of each kind of capture, and ObjectWriter, which writes records to Avro objects, window by window.

Objects are `landing/KIND/SOURCE/WINDOW/CAPTURE_ID-NNNN.avro`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wirehouse_codecs.captures.messages import MessageCapture
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.captures.source import Reader
from wirehouse_codecs.tcp.packets import cut_by_snap_length
from wirehouse_pipelines.lake.lake import KAFKA, Source
from wirehouse_pipelines.lake.protocols import FILE_READERS
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.clock import Clock
from wirehouse_pipelines.landing.manifests import (
    WindowObjects,
)
from wirehouse_pipelines.landing.object_writer import FILES, MESSAGES, PACKETS, Capture, Records, blocks
from wirehouse_pipelines.storage.storage import Storage

#: Maximum size of a landed object.
MAX_OBJECT_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """How to read captures of a kind of source and how to encode their records."""

    #: Opens a capture.
    read: Reader
    #: Schema and encoder of landed records.
    records: Records


KINDS: Final = {
    "messages": Kind(MessageCapture, MESSAGES),
    "pcap": Kind(PacketCapture, PACKETS),
    **{kind: Kind(read, FILES) for kind, read in FILE_READERS.items()},
}

#: Schema and encoder of landed records, by kind of source.
RECORDS: Final = {KAFKA: MESSAGES} | {kind: how.records for kind, how in KINDS.items()}


class ObjectWriter:
    """Writes a capture's records to objects. One object is open at a time, because arrival times never decrease."""

    def __init__(self, storage: Storage, source: Source, capture_id: str, windows: Windows, clock: Clock) -> None:
        self._storage = storage
        self._records = RECORDS[source.kind]
        self._folder = f"landing/{source.kind}/{source.name}"
        self._capture_id = bytes.fromhex(capture_id)
        self._lake_windows = windows
        self._clock = clock
        self._window = ""
        self._open = ExitStack()
        self._stream: BinaryIO | None = None
        self._container: Any = None
        #: Number of records that could not be parsed.
        self.unreadable = 0
        #: Number of packets that were truncated to the snap length.
        self.cut = 0
        #: The objects written so far, by window.
        self.windows: dict[str, WindowObjects] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the next records."""
        first_number = self._clock.records
        damaged = batch.column("damaged")
        self.unreadable += len(damaged) - damaged.null_count
        if self._records is PACKETS:
            self.cut += cut_by_snap_length(batch)[0]
        arrived = self._clock.tick(batch.column("ts_ns"))
        for window, begin, end in _runs(self._lake_windows, arrived):
            if window != self._window:
                self.close()
                self._window = window
            self._write(batch.slice(begin, end - begin), arrived[begin:end], first_number + begin)

    def _write(self, batch: pa.RecordBatch, arrived: npt.NDArray[np.int64], number: int) -> None:
        first = self._clock.first
        assert first is not None  # the clock has ticked for this batch
        capture = Capture(np.frombuffer(self._capture_id, np.uint8), number, first)
        for block in blocks(self._records.encode(batch, capture, arrived)):
            if self._stream is not None and self._stream.tell() + block.largest > MAX_OBJECT_BYTES:
                self.close()
            if self._container is None:
                self._begin()
            self._container.write_block(block)
            window = self.windows[self._window]
            self.windows[self._window] = WindowObjects(window.objects, window.records + block.num_records)

    def _begin(self) -> None:
        window = self.windows.get(self._window, WindowObjects((), 0))
        name = f"{self._folder}/{self._window}/{self._capture_id.hex()}-{len(window.objects):04d}.avro"
        self._stream = self._open.enter_context(self._storage.writer(name))
        self._container = self._records.container(self._stream)
        self.windows[self._window] = WindowObjects((*window.objects, name), window.records)

    def close(self) -> None:
        """Finish the open object."""
        self._stream = self._container = None
        self._open.close()

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        """Finish the open object; after an error, discard it."""
        self._stream = self._container = None
        self._open.__exit__(*error)


def _runs(windows: Windows, arrived: npt.NDArray[np.int64]) -> Iterator[tuple[str, int, int]]:
    """Cut ascending arrival times at the bounds of windows; window, first and end position of each run."""
    begin = 0
    while begin < len(arrived):
        window = windows.of(int(arrived[begin]))
        end = int(np.searchsorted(arrived, windows.start_ns(windows.after(window)), "left"))
        yield window, begin, end
        begin = end
