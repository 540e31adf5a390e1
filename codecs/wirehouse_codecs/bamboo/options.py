"""Options of a Bamboo source: how the two channels are carried, who is proactive, how much is kept.

The specification leaves open which streams of bymux the channels are, and, where two connections take the place of
bymux, how the sides exchange their set-up ("Running Over Bymux"; "Session Setup": irrelevant). So both are told here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wirehouse_codecs.bamboo.bymux import VANILLA, Channel, Role, Start, agreed
from wirehouse_codecs.bamboo.messages import PIECE_BYTES, Setup
from wirehouse_codecs.bamboo.varu64 import MAX_U64
from wirehouse_codecs.errors import OptionError
from wirehouse_codecs.tcp import Direction

BYMUX, TWO_CONNECTIONS = "bymux", "two_connections"
#: Streams of the channels: there from the start, or created; AUTO = there, unless the proactive side creates them.
AUTO, EXISTING, CREATED = "auto", "existing", "created"
#: Which connections belong together: the n-th ones of two addresses; or those where the client's port of the data
#: channel is the one after that of the control channel.
ORDER, NEXT_PORT = "order", "next_port"
#: The most bytes of an unfinished packet that may be configured: of each side one is carried on.
MOST_PIECE_BYTES: Final = 4 << 20
MOST_PAYLOAD_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class BambooOptions:
    """What a source of Bamboo captures sets."""

    transport: str = BYMUX
    #: With bymux: the streams of the channels, and whether they are there from the start.
    streams: str = AUTO
    control_stream: int = 0
    data_stream: int = 1
    #: With two connections: the servers' ports, and which connections are a pair.
    control_port: int | None = None
    data_port: int | None = None
    pairs: str = ORDER
    #: With two connections: what client and server said at set-up; None = unknown.
    client_setup: Setup | None = None
    server_setup: Setup | None = None
    #: The side that is proactive.
    proactive: Direction = Direction.CLIENT
    #: Longer payload packets are rows of so many bytes each.
    max_packet_bytes: int = PIECE_BYTES
    #: Compressed payloads that claim to be larger are kept as they came.
    max_inflated_bytes: int = 64 << 20

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> BambooOptions:
        """Options from a table of the configuration file.

        Raises OptionError for an unknown key, a wrong type, an unknown name, a number out of range, or options that
        contradict one another.
        """
        for key in mapping:
            if key not in _READERS:
                raise OptionError(key=key, reason=f"unknown option, expected one of {', '.join(_READERS)}")
        options = cls(**{key: read(mapping[key], key) for key, read in _READERS.items() if key in mapping})
        options._check(mapping)
        return options

    def _check(self, mapping: Mapping[str, Any]) -> None:
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

    def canonical(self) -> str:
        """One JSON text for equal options: for digests, and read back by `from_canonical`."""
        table = {key: _plain(getattr(self, key)) for key in _READERS}
        other = _OF_CONNECTIONS if self.transport == BYMUX else _OF_BYMUX
        told = {key: value for key, value in table.items() if value is not None and key not in other}
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_canonical(cls, text: str) -> BambooOptions:
        """The options whose `canonical()` is `text`."""
        return cls.from_mapping(json.loads(text))

    def role_of(self, direction: Direction) -> Role:
        """The role of the side that sends in `direction`."""
        return Role.PROACTIVE if direction is self.proactive else Role.REACTIVE

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


_OF_BYMUX: Final = ("streams", "control_stream", "data_stream")
_OF_CONNECTIONS: Final = ("control_port", "data_port", "pairs", "client_setup", "server_setup")


def _plain(value: Any) -> Any:
    if not isinstance(value, Setup):
        return value
    return {key: getattr(value, key) for key in _SETUP}


def _one_of(*names: str) -> Callable[[Any, str], str]:
    def read(value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise OptionError(key=key, reason=f"must be one of {', '.join(names)}, not {value!r}")
        return value

    return read


def _number(least: int, most: int) -> Callable[[Any, str], int]:
    def read(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionError(key=key, reason=f"must be a whole number, not {value!r}")
        if not least <= value <= most:
            raise OptionError(key=key, reason=f"must be at least {least} and at most {most}, not {value}")
        return value

    return read


def _flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise OptionError(key=key, reason=f"must be true or false, not {value!r}")
    return value


def _direction(value: Any, key: str) -> Direction:
    return Direction(_one_of(*Direction)(value, key))


_WINDOW: Final = _number(0, MAX_U64)
_SETUP: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "sends_greedily": _flag,
    "receives_greedily": _flag,
    "send_window": _WINDOW,
    "receive_window": _WINDOW,
}


def _setup(value: Any, key: str) -> Setup:
    if not isinstance(value, Mapping) or set(value) != set(_SETUP):
        raise OptionError(key=key, reason=f"must be a table of {', '.join(_SETUP)}, not {value!r}")
    return Setup(**{name: read(value[name], f"{key}.{name}") for name, read in _SETUP.items()})


_READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "transport": _one_of(BYMUX, TWO_CONNECTIONS),
    "streams": _one_of(AUTO, EXISTING, CREATED),
    "control_stream": _number(0, MAX_U64),
    "data_stream": _number(0, MAX_U64),
    "control_port": _number(1, 65_535),
    "data_port": _number(1, 65_535),
    "pairs": _one_of(ORDER, NEXT_PORT),
    "client_setup": _setup,
    "server_setup": _setup,
    "proactive": _direction,
    "max_packet_bytes": _number(1, MOST_PIECE_BYTES),
    "max_inflated_bytes": _number(1, MOST_PAYLOAD_BYTES),
}
