"""Cuts the bytes that one side writes to a channel into packets.

Input: bytes in any portions. Output: a `Received` for each packet, or for each piece of a payload.
"""

from __future__ import annotations

import json
from typing import Final

from wirehouse_codecs.bamboo.setup import PIECE_BYTES, Channel
from wirehouse_codecs.bamboo.wire.encoding import Cut, Fields, PayloadHeader, Received, decode, metadata_left, rule_of
from wirehouse_codecs.core.errors import StateVersionError

SNAPSHOT_VERSION: Final = 2


class ChannelReader:
    """Cuts what one side writes to a channel into packets. Sans-IO.

    It holds at most one packet, or one piece of a payload of `piece_bytes` bytes. It reserves no memory for announced
    sizes. After an unassigned first byte it can't find the next packet: it reports that once and stops reading.
    """

    __slots__ = ("_at", "_buffer", "_channel", "_needed", "_payload", "_piece_bytes", "lost")

    def __init__(
        self, channel: Channel, *, piece_bytes: int = PIECE_BYTES, byte_start: int = 0, snapshot: str | None = None
    ) -> None:
        self._channel = channel
        self._piece_bytes = piece_bytes
        self._buffer = bytearray()
        #: The position of the buffer in the channel.
        self._at = byte_start
        #: How many bytes the buffer needs at least before a packet or piece can be complete.
        self._needed = 1
        self._payload: PayloadHeader | None = None
        self.lost = False
        if snapshot is not None:
            self._restore(snapshot)

    @property
    def byte_end(self) -> int:
        """How many bytes were received."""
        return self._at + len(self._buffer)

    @property
    def begin(self) -> int:
        """Where the unfinished packet begins, or the next one."""
        return self._at if self._payload is None else self._payload.byte_start

    @property
    def unfinished(self) -> bool:
        """The bytes end within a packet."""
        return not self.lost and (bool(self._buffer) or self._payload is not None)

    @property
    def pending(self) -> bytes:
        """The bytes of the unfinished packet or piece."""
        return bytes(self._buffer) if self._payload is None else self._payload.header + self._buffer

    @property
    def announced(self) -> int | None:
        """How many payload bytes the unfinished packet announces. None: it announces none so far."""
        payload = self._payload
        return None if payload is None else payload.at + payload.left

    @property
    def left(self) -> int:
        """How many bytes of the unfinished packet are missing. 0: the bytes so far don't show it."""
        if self.lost or not self._buffer:
            return 0 if self.lost or self._payload is None else self._payload.left
        if self._payload is not None:
            return self._payload.left - len(self._buffer)
        return metadata_left(self._buffer) if self._channel is Channel.DATA else 0

    @property
    def begun(self) -> bytes | None:
        """The bytes of the unfinished packet. None: its start is unknown, or a piece of it was passed on."""
        passed_on = self._payload is not None and self._payload.at > 0
        return None if self.lost or passed_on else self.pending

    def receive(self, data: bytes) -> list[Received]:
        """The packets that `data` completes, in order."""
        self._buffer += data
        packets: list[Received] = []
        at = 0
        while not self.lost and len(self._buffer) - at >= self._needed:
            fields = Fields(self._buffer, at)
            try:
                received = self._packet(fields) if self._payload is None else self._piece(fields, self._payload)
            except Cut:
                self._needed = len(self._buffer) - at + 1
                break
            at = fields.at
            self._needed = 1 if self._payload is None else min(self._payload.left, self._piece_bytes)
            if received is not None:
                packets.append(received)
        if self.lost:
            at = len(self._buffer)
        del self._buffer[:at]
        self._at += at
        return packets

    def _packet(self, fields: Fields) -> Received | None:
        """The packet at `fields.at`. None: it is the header of a payload packet."""
        start = fields.at
        packet, rule, reason = decode(self._channel, fields)
        if isinstance(packet, PayloadHeader):
            self._payload = packet._replace(byte_start=self._at + start)
            return None
        self.lost = packet is None
        return Received(self._at + start, self._at + fields.at, packet, rule_of(rule), reason, fields.noncanonical)

    def _piece(self, fields: Fields, payload: PayloadHeader) -> Received:
        data = fields.take(min(payload.left, self._piece_bytes))
        end = self._at + fields.at
        left = payload._replace(byte_start=end, at=payload.at + len(data), noncanonical=(), header=b"")
        self._payload = left if left.left else None
        return Received(payload.byte_start, end, payload.piece(data), noncanonical=payload.noncanonical)

    def snapshot(self) -> str:
        """The state as JSON, without the channel and the size of pieces, which come from the options."""
        state = {
            "version": SNAPSHOT_VERSION,
            "at": self._at,
            "buffer": self._buffer.hex(),
            "needed": self._needed,
            "payload": None if self._payload is None else [*self._payload[:-1], self._payload.header.hex()],
            "lost": self.lost,
        }
        return json.dumps(state, separators=(",", ":"))

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="bamboo channel", found=state.get("version"), expected=SNAPSHOT_VERSION)
        self._at, self._buffer, self.lost = state["at"], bytearray.fromhex(state["buffer"]), state["lost"]
        self._needed = state["needed"]
        if state["payload"] is not None:
            byte_start, compressed_size, size, at, noncanonical, header = state["payload"]
            rest = tuple(noncanonical), bytes.fromhex(header)
            self._payload = PayloadHeader(byte_start, compressed_size, size, at, *rest)
