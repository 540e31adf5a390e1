"""Incidents of a stream service, and what its clients do in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wirehouse_codecs.simulate.incidents import Incident, choices

if TYPE_CHECKING:
    from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig

#: How much longer a slow consumer takes for each response.
SLOW_NS: Final = 2_000_000_000
#: A minute, in which each stream gets twenty messages a second.
_MINUTE: Final = {"consumers": 4, "messages_per_publisher": 600, "interval_ms": 500, "poll_ms": 500}


class Slow(NamedTuple):
    """The consumer that becomes slow, and with which burst."""

    consumer: int
    burst: int


def slow(config: SimulatorConfig) -> Slow | None:
    """The consumer that becomes slow; None = none does."""
    if config.incident is None or not config.consumers:
        return None
    random = choices(config)
    bursts = -(-config.messages_per_publisher // config.burst_messages)
    return Slow(random.randrange(config.consumers), random.randint(bursts // 4, bursts // 2))


def _lagging(config: SimulatorConfig) -> Mapping[str, Any]:
    from wirehouse_codecs.ockam.simulator.service import Contents, runs

    sick, run = slow(config), next(runs(config, Contents(config)))
    if sick is None:
        return {}
    stream = run.streams[sick.consumer % len(run.streams)]
    return {
        "client_id": f"consumer-{sick.consumer}",
        "stream_name": stream.name,
        "partition": stream.partition,
        "since_ns": run.pushed_ns(sick.burst, 0),
    }


def _losing(config: SimulatorConfig) -> Mapping[str, Any]:
    from wirehouse_codecs.ockam.simulator.service import Consumer, Contents

    sick = slow(config)
    if sick is None:
        return {}
    consumer = Consumer(config, Contents(config), sick.consumer)
    for conversation in consumer.conversations():
        deque(conversation.events, maxlen=0)
    return {} if consumer.lost_ns is None else {**_lagging(config), "since_ns": consumer.lost_ns}


INCIDENTS: Mapping[str, Incident] = MappingProxyType(
    {
        "consumer-lag": Incident("A consumer becomes slow, and its lag grows.", _MINUTE, _lagging),
        "retention-loss": Incident(
            "A consumer becomes so slow that the service deletes messages before it pulls them.",
            {**_MINUTE, "retained": 150},
            _losing,
        ),
    }
)
