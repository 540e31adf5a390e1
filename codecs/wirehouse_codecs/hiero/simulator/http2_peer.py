"""One side of an HTTP/2 connection with gRPC calls, as the bytes that it sends. It checks nothing of what it sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.http2.events import CANCEL
from wirehouse_codecs.hiero.wire.http2.frames import FRAME_BYTES, PREFACE
from wirehouse_codecs.tcp.endpoints import Direction

Pairs = Iterable[tuple[str, str]]


@dataclass
class Peer:
    """A client or a server. Its methods give the bytes of frames, in the order in which they are to be sent."""

    direction: Direction
    authority: str = "localhost:40840"
    user_agent: str = "grpc-java-netty/1.70"
    #: How messages are compressed, unless that makes them longer; None = they aren't.
    encoding: str | None = None
    #: Largest payload of DATA, and of HEADERS and CONTINUATION.
    data_bytes: int = FRAME_BYTES
    block_bytes: int = FRAME_BYTES
    #: Padding of every DATA and HEADERS frame; None = these aren't padded.
    padding: int | None = None
    #: Whether HEADERS carry a priority, as old clients write it.
    priority: bool = False
    _encoder: Encoder = field(default_factory=Encoder, repr=False)
    _next_stream: int = 1

    def start(self, settings: dict[int, int] | None = None) -> bytes:
        """The first bytes: the client's preface, and SETTINGS."""
        preface = PREFACE if self.direction is Direction.CLIENT else b""
        return preface + self.settings({} if settings is None else settings)

    def settings(self, settings: dict[int, int]) -> bytes:
        """Settings by identifier. The other side has to keep those about header tables and frames."""
        return SettingsFrame(0, settings=settings).serialize()

    def acknowledge_settings(self, table_bytes: int | None = None) -> bytes:
        """The other side's SETTINGS are taken; `table_bytes` is its header table from here on."""
        if table_bytes is not None:
            self._encoder.header_table_size = table_bytes
        return SettingsFrame(0, flags=["ACK"]).serialize()

    def ping(self, opaque: bytes = bytes(8), *, answer: bool = False) -> bytes:
        """PING, or the answer to one."""
        return PingFrame(0, opaque, flags=["ACK"] if answer else []).serialize()

    def window_update(self, stream_id: int, increment: int) -> bytes:
        """Open the window of the other side further."""
        return WindowUpdateFrame(stream_id, window_increment=increment).serialize()

    # Calls

    def request(self, path: str, metadata: Pairs = ()) -> tuple[int, bytes]:
        """Open a call: its stream, and the bytes."""
        stream_id, self._next_stream = self._next_stream, self._next_stream + 2
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", self.user_agent),
            *self._codings(),
            *metadata,
        ]
        return stream_id, self.headers(stream_id, fields)

    def response(self, stream_id: int, metadata: Pairs = ()) -> bytes:
        """The server's headers."""
        fields = [(":status", "200"), ("content-type", "application/grpc"), *self._codings(), *metadata]
        return self.headers(stream_id, fields)

    def messages(self, stream_id: int, *contents: bytes, end: bool = False) -> bytes:
        """Messages, one behind the other; with the `end`, that was all."""
        return self.data(stream_id, b"".join(map(self.message, contents)), end=end)

    def message(self, content: bytes) -> bytes:
        """A message with its prefix, compressed if that makes it shorter."""
        plain = grpc.message(content)
        if self.encoding is None:
            return plain
        return min(plain, grpc.message(content, self.encoding), key=len)

    def trailers(self, stream_id: int, status: int = 0, message: str = "", metadata: Pairs = ()) -> bytes:
        """The status that ends a call."""
        details = [("grpc-message", message)] if message else []
        return self.headers(stream_id, [("grpc-status", str(status)), *details, *metadata], end=True)

    def reset(self, stream_id: int, code: int = CANCEL) -> bytes:
        """End a call at once."""
        return RstStreamFrame(stream_id, code).serialize()

    def go_away(self, last_stream_id: int, code: int = 0, debug_data: bytes = b"") -> bytes:
        """No further call is taken."""
        return GoAwayFrame(0, last_stream_id, code, debug_data).serialize()

    # Frames

    def headers(self, stream_id: int, fields: Pairs, *, end: bool = False) -> bytes:
        """A header block."""
        block = self._encoder.encode(list(fields))
        pieces = list(_cut(block, self.block_bytes))
        frames: list[Frame] = [self._first(stream_id, pieces[0], end=end)]
        frames += [ContinuationFrame(stream_id, piece) for piece in pieces[1:]]
        frames[-1].flags.add("END_HEADERS")
        return b"".join(frame.serialize() for frame in frames)

    def data(self, stream_id: int, content: bytes, *, end: bool = False) -> bytes:
        """Content of a stream."""
        frames = [DataFrame(stream_id, piece, **self._padded()) for piece in _cut(content, self.data_bytes)]
        if end:
            frames[-1].flags.add("END_STREAM")
        return b"".join(frame.serialize() for frame in frames)

    def _first(self, stream_id: int, block: bytes, *, end: bool) -> HeadersFrame:
        frame = HeadersFrame(stream_id, block, **self._padded())
        if self.priority:
            frame.flags.add("PRIORITY")
            frame.stream_weight = 15
        if end:
            frame.flags.add("END_STREAM")
        return frame

    def _padded(self) -> dict[str, object]:
        return {} if self.padding is None else {"pad_length": self.padding, "flags": ["PADDED"]}

    def _codings(self) -> Pairs:
        return [] if self.encoding is None else [("grpc-encoding", self.encoding), ("grpc-accept-encoding", "gzip")]


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    """`data` in pieces of at most `size` bytes; at least one."""
    yield data[:size]
    for at in range(size, len(data), size):
        yield data[at : at + size]
