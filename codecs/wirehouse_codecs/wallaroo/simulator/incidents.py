"""Incidents of source connectors and of the captures of them: which connector is affected, and since when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from wirehouse_codecs.simulate.incidents import Incident, choices
from wirehouse_codecs.simulate.script import Conversation, Event
from wirehouse_codecs.wallaroo.frames import Notify, NotifyAck
from wirehouse_codecs.wallaroo.simulator.connector import (
    NS_PER_MS,
    PORT,
    Contents,
    SourceConnector,
    Stream,
    Talk,
    hello_in,
)

if TYPE_CHECKING:
    from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig

#: Time after which a connector without credit closes the connection.
GIVES_UP_NS: Final = 30_000_000_000
#: Number of messages by which a worker resumes after the last one that it was sent.
LOST_MESSAGES: Final = 25
#: Time that the capture lacks.
LOST_NS: Final = 2_000_000_000
#: Settings for half a minute in which nothing else happens.
_SETTINGS: Final = {
    "connectors": 4,
    "messages_per_connector": 1_200,
    "burst_messages": 20,
    "interval_ms": 500,
    "checkpoint_ms": 2_000,
}


class _Affected(SourceConnector):
    """The connector of an incident, which begins when it has sent a number of messages."""

    def __init__(self, config: SimulatorConfig, number: int, contents: Contents, random: Random) -> None:
        super().__init__(config, number, contents)
        least = config.messages_per_connector // 4
        self._begins = random.randint(least, 2 * least)
        self._choices = random

    def _affects(self, now_ns: int, **what: Any) -> None:
        hello = hello_in(self.dialect, self.number)
        self.affected = {"instance_name": hello.instance_name.decode(), **what, "since_ns": now_ns}


class _WithoutCredit(_Affected):
    """A connector whose worker falls silent: it spends its credits, waits, and gives up."""

    _silent = False

    def _burst(self, talk: Talk, count: int) -> None:
        if not self._silent and self._sent >= self._begins:
            self._silent = True
            # It writes on to its last credit.
            self.config = replace(self.config, refill_at=1)
        super()._burst(talk, min(count, self._balance))
        if not self._balance and self.affected is None:
            self._affects(talk.now_ns)

    def _charge(self, talk: Talk, frames: int) -> None:
        if self._silent:
            self._balance -= frames
        else:
            super()._charge(talk, frames)

    def _checkpoint(self, talk: Talk, closing: Any = ()) -> None:
        if not self._silent:
            super()._checkpoint(talk, closing)

    def _interrupted(self, talk: Talk) -> bool:
        if not self._silent:
            return super()._interrupted(talk)
        if self._balance:
            return False
        talk.wait(GIVES_UP_NS)
        talk.close()
        self._finished = True
        return True


class _Resumed(_Affected):
    """A connector that loses its connection, and whose worker has it go on after messages that it never sent."""

    def __init__(self, config: SimulatorConfig, number: int, contents: Contents, random: Random) -> None:
        super().__init__(config, number, contents, random)
        self._losses = [self._begins]
        self._resumed = random.choice(self._streams)
        self._last_sent = 0

    def _rewind(self) -> None:
        self._last_sent = self._resumed.position
        super()._rewind()

    def _notify(self, talk: Talk, stream: Stream) -> None:
        if not self._last_sent or stream is not self._resumed:
            super()._notify(talk, stream)
            return
        talk.connector(Notify(stream.stream_id, stream.name, stream.acked))
        self._charge(talk, 1)
        stream.acked = stream.position = self._last_sent + LOST_MESSAGES
        self._affects(talk.now_ns, stream_name=stream.name.decode(), resume_point=stream.acked)
        talk.worker(NotifyAck(1, stream.stream_id, stream.acked))
        self._last_sent = 0


class _Uncaptured(_Affected):
    """The capture lacks some packets of its first connection."""

    def converse(self, talk: Talk, events: Iterator[Event], captured_from_ns: int = 0) -> Conversation:
        conversation = super().converse(talk, events, captured_from_ns)
        if self.affected is not None:
            return conversation
        bursts = self._begins // self.config.burst_messages
        begins_ns = talk.opened_ns + bursts * self.config.interval_ms * NS_PER_MS
        self.affected = {"client_address": self._address, "since_ns": begins_ns}
        return replace(conversation, uncaptured_ns=range(begins_ns, begins_ns + LOST_NS))


class _OnAnotherPort(_Affected):
    """A connector whose worker is at another port than workers are known to be at."""

    def __init__(self, config: SimulatorConfig, number: int, contents: Contents, random: Random) -> None:
        super().__init__(config, number, contents, random)
        self.server = self.server._replace(port=random.randint(PORT + 1, PORT + 999))
        self.affected = {"server_port": self.server.port, "since_ns": self.opens_ns}


_KINDS: Mapping[str, type[_Affected]] = MappingProxyType(
    {
        "connector-without-credit": _WithoutCredit,
        "resume-lost-messages": _Resumed,
        "bytes-lost-in-capture": _Uncaptured,
        "nothing-decoded": _OnAnotherPort,
    }
)


def affected(config: SimulatorConfig, number: int, contents: Contents) -> SourceConnector | None:
    """Connector `number`, if the incident affects it; all have one port."""
    if config.incident is None:
        return None
    random, kind = choices(config), _KINDS[config.incident]
    return kind(config, number, contents, random) if random.randrange(config.connectors) == number else None


def _truth(config: SimulatorConfig) -> Mapping[str, Any]:
    contents = Contents(config)
    connector = next(filter(None, (affected(config, number, contents) for number in range(config.connectors))))
    for conversation in connector.conversations():
        deque(conversation.events, maxlen=0)
    return connector.affected or {}


INCIDENTS: Mapping[str, Incident] = MappingProxyType(
    {
        "connector-without-credit": Incident("A worker grants a connector no more credits.", _SETTINGS, _truth),
        "resume-lost-messages": Incident(
            "A worker has a stream resume after messages that it was never sent.", _SETTINGS, _truth
        ),
        "bytes-lost-in-capture": Incident("The capture lacks packets of a connection.", _SETTINGS, _truth),
        "nothing-decoded": Incident(
            "Connections to a port that the source does not name.", {**_SETTINGS, "connectors": 1}, _truth
        ),
    }
)
