"""Cuts the bytes that one side writes to a channel into packets.

Input: bytes in any portions. Output: a `Received` for each packet, or for each piece of a payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wirehouse_codecs.bamboo.setup import PIECE_BYTES, Channel
from wirehouse_codecs.bamboo.wire.encoding import Cut, Fields, PayloadHeader, Received, decode, metadata_left, rule_of


@dataclass(slots=True)
class ChannelReader:
    """Cuts what one side writes to a channel into packets. Sans-IO.

    It holds at most one packet, or one piece of a payload of `piece_bytes` bytes. It reserves no memory for announced
    sizes. After an unassigned first byte it can't find the next packet: it reports that once and stops reading.
    """

    channel: Channel
    piece_bytes: int = PIECE_BYTES
    #: The position of the buffer in the channel.
    at: int = 0
    buffer: bytearray = field(default_factory=bytearray)
    #: How many bytes the buffer needs at least before a packet or piece can be complete.
    needed: int = 1
    #: The header of the packet whose payload is being read.
    payload: PayloadHeader | None = None
    lost: bool = False

    @property
    def byte_end(self) -> int:
        """How many bytes were received."""
        return self.at + len(self.buffer)

    @property
    def begin(self) -> int:
        """Where the unfinished packet begins, or the next one."""
        return self.at if self.payload is None else self.payload.byte_start

    @property
    def unfinished(self) -> bool:
        """Whether the bytes end within a packet."""
        return not self.lost and (bool(self.buffer) or self.payload is not None)

    @property
    def pending(self) -> bytes:
        """The bytes of the unfinished packet or piece."""
        return bytes(self.buffer) if self.payload is None else self.payload.header + self.buffer

    @property
    def announced(self) -> int | None:
        """How many payload bytes the unfinished packet announces. None: it announces none so far."""
        payload = self.payload
        return None if payload is None else payload.at + payload.left

    @property
    def left(self) -> int:
        """How many bytes of the unfinished packet are missing. 0: the bytes so far don't show it."""
        if self.lost or not self.buffer:
            return 0 if self.lost or self.payload is None else self.payload.left
        if self.payload is not None:
            return self.payload.left - len(self.buffer)
        return metadata_left(self.buffer) if self.channel is Channel.DATA else 0

    @property
    def begun(self) -> bytes | None:
        """The bytes of the unfinished packet. None: its start is unknown, or a piece of it was passed on."""
        passed_on = self.payload is not None and self.payload.at > 0
        return None if self.lost or passed_on else self.pending

    def receive(self, data: bytes) -> list[Received]:
        """The packets that `data` completes, in order."""
        self.buffer += data
        packets: list[Received] = []
        at = 0
        while not self.lost and len(self.buffer) - at >= self.needed:
            fields = Fields(self.buffer, at)
            try:
                received = self._packet(fields) if self.payload is None else self._piece(fields, self.payload)
            except Cut:
                self.needed = len(self.buffer) - at + 1
                break
            at = fields.at
            self.needed = 1 if self.payload is None else min(self.payload.left, self.piece_bytes)
            if received is not None:
                packets.append(received)
        if self.lost:
            at = len(self.buffer)
        del self.buffer[:at]
        self.at += at
        return packets

    def _packet(self, fields: Fields) -> Received | None:
        """The packet at `fields.at`. None: it is the header of a payload packet."""
        start = fields.at
        packet, rule, reason = decode(self.channel, fields)
        if isinstance(packet, PayloadHeader):
            self.payload = packet._replace(byte_start=self.at + start)
            return None
        self.lost = packet is None
        return Received(self.at + start, self.at + fields.at, packet, rule_of(rule), reason, fields.noncanonical)

    def _piece(self, fields: Fields, payload: PayloadHeader) -> Received:
        data = fields.take(min(payload.left, self.piece_bytes))
        end = self.at + fields.at
        left = payload._replace(byte_start=end, at=payload.at + len(data), noncanonical=(), header=b"")
        self.payload = left if left.left else None
        return Received(payload.byte_start, end, payload.piece(data), noncanonical=payload.noncanonical)
