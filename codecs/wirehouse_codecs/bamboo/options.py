"""Options of a Bamboo source: how the two channels are carried, which side is proactive, and limits.

The specification leaves two things open ("Running Over Bymux"; "Session Setup": irrelevant). Which streams of bymux are
the channels? And over two connections, how do the sides exchange their set-ups? The options answer both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wirehouse_codecs.bamboo.setup import PIECE_BYTES, VANILLA, Channel, Role, Setup, Start, agreed
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import (
    OptionTable,
    Read,
    flag,
    one_of,
    port,
    record,
    source_name,
    unsigned,
    whole,
)
from wirehouse_codecs.tcp.endpoints import Direction

BYMUX, TWO_CONNECTIONS = "bymux", "two_connections"
#: Streams of the channels: there from the start, or created; AUTO = there, unless the proactive side creates them.
AUTO, EXISTING, CREATED = "auto", "existing", "created"
#: Which connections belong together: the n-th ones of two addresses; or those where the client's port of the data
#: channel is the one after that of the control channel.
ORDER, NEXT_PORT = "order", "next_port"
#: The most bytes of an unfinished packet that may be configured: of each side one is carried on.
MOST_PIECE_BYTES: Final = 4 << 20
MOST_PAYLOAD_BYTES: Final = 1 << 30


_OF_BYMUX: Final = ("streams", "control_stream", "data_stream")
_OF_CONNECTIONS: Final = ("control_port", "data_port", "pairs", "client_setup", "server_setup")
_U64: Final = unsigned(64)
_SETUP: Final[Mapping[str, Read]] = {
    "sends_greedily": flag,
    "receives_greedily": flag,
    "send_window": _U64,
    "receive_window": _U64,
}


def _setup(value: Any, key: str) -> Setup:
    return Setup(**record(_SETUP, needed=_SETUP)(value, key))


def _plain(value: Any) -> Any:
    return {name: getattr(value, name) for name in _SETUP} if isinstance(value, Setup) else value


@dataclass(frozen=True, slots=True)
class BambooOptions(OptionTable):
    """What a source of Bamboo captures or entry files sets."""

    READERS: ClassVar[Mapping[str, Read]] = {
        "service": source_name,
        "transport": one_of((BYMUX, TWO_CONNECTIONS)),
        "streams": one_of((AUTO, EXISTING, CREATED)),
        "control_stream": _U64,
        "data_stream": _U64,
        "control_port": port,
        "data_port": port,
        "pairs": one_of((ORDER, NEXT_PORT)),
        "client_setup": _setup,
        "server_setup": _setup,
        "proactive": one_of(Direction),
        "max_packet_bytes": whole(MOST_PIECE_BYTES),
        "max_compressed_bytes": whole(MOST_PAYLOAD_BYTES),
        "max_inflated_bytes": whole(MOST_PAYLOAD_BYTES),
    }

    #: Sources of one service see the same logs and are judged together; None = this source alone.
    service: str | None = None
    transport: str = BYMUX
    #: With bymux: the streams of the channels, and whether they are there from the start.
    streams: str = AUTO
    control_stream: int = 0
    data_stream: int = 1
    #: With two connections: the servers' ports, and which connections are a pair.
    control_port: int | None = None
    data_port: int | None = None
    pairs: str = ORDER
    #: With two connections: the set-ups of client and server. None: unknown.
    client_setup: Setup | None = None
    server_setup: Setup | None = None
    #: The side that is proactive.
    proactive: Direction = Direction.CLIENT
    #: Longer payload packets are rows of this many bytes each.
    max_packet_bytes: int = PIECE_BYTES
    #: Compressed payloads of more bytes on the wire are kept as they came: of each side one is carried on.
    max_compressed_bytes: int = 4 << 20
    #: Compressed payloads that claim to be larger are kept as they came.
    max_inflated_bytes: int = 64 << 20

    def check(self, mapping: Mapping[str, Any]) -> None:
        """Options of the one transport mean nothing with the other; streams and ports are two."""
        over_bymux = self.transport == BYMUX
        for key in _OF_CONNECTIONS if over_bymux else _OF_BYMUX:
            if key in mapping:
                raise OptionError(key=key, reason=f"means nothing with transport {self.transport}")
        if self.control_stream == self.data_stream:
            raise OptionError(key="data_stream", reason="must be another stream than control_stream")
        if over_bymux:
            return
        for key in ("control_port", "data_port"):
            if key not in mapping:
                raise OptionError(key=key, reason=f"is missing, transport {TWO_CONNECTIONS} needs it")
        if self.control_port == self.data_port:
            raise OptionError(key="data_port", reason="must be another port than control_port")

    def written(self) -> Mapping[str, Any]:
        """Without those of the other transport."""
        other = _OF_CONNECTIONS if self.transport == BYMUX else _OF_BYMUX
        return {key: _plain(value) for key, value in OptionTable.written(self).items() if key not in other}

    def role_of(self, direction: Direction) -> Role:
        """The role of the side that sends in `direction`."""
        return Role.PROACTIVE if direction is self.proactive else Role.REACTIVE

    @property
    def turned(self) -> bool:
        """Whether the server is proactive, which rows call the client."""
        return self.proactive is Direction.SERVER

    @property
    def ports(self) -> tuple[int, ...]:
        """The servers' ports of the control and of the data channel, with two connections."""
        return tuple(port for port in (self.control_port, self.data_port) if port is not None)

    def channel_at(self, port: int) -> Channel:
        """With two connections, the channel that those to a server's port are."""
        return Channel.CONTROL if port == self.control_port else Channel.DATA

    def start(self) -> Start:
        """What is agreed on before the first packet of bymux."""
        if self.streams == CREATED:
            return VANILLA
        return agreed(self.control_stream, self.data_stream, by_creation=self.streams == AUTO)
