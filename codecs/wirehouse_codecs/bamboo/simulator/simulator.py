"""Seeded, realistic traffic of peers that replicate Bamboo logs, as a capture of packets, with named faults.

A capture without a fault breaks no rule and gives no note. Packets are made as they are asked for; what is kept does
not grow with the number of entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, Final

from wirehouse_codecs.bamboo.options import BYMUX, NEXT_PORT, TWO_CONNECTIONS
from wirehouse_codecs.bamboo.setup import Channel, Role, Setup
from wirehouse_codecs.bamboo.simulator.fault_scripts import FaultScript
from wirehouse_codecs.bamboo.simulator.faults import ALL_FAULTS, FAULTS, OF_BYMUX, Fault
from wirehouse_codecs.bamboo.simulator.incidents import INCIDENTS, Moment, moment
from wirehouse_codecs.bamboo.simulator.logs import Chain, Contents, Journal, author_key
from wirehouse_codecs.bamboo.simulator.peers import NS_PER_MS, Dialogue, Manner
from wirehouse_codecs.bamboo.simulator.replication import whole_logs
from wirehouse_codecs.bamboo.simulator.scenarios import SCENARIOS, Logs, at_once, forked
from wirehouse_codecs.bamboo.wire.entry_files import Written, write_binary, write_lines
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.captures.compressed_output import endings
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.simulate import pcap_writer
from wirehouse_codecs.simulate.config import Bounds, check
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_codecs.simulate.script import Conversation, Disturbances, Event, merge, packets
from wirehouse_codecs.simulate.streams import write_streams
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

__all__ = ["FAULTS", "INCIDENTS", "RECORDS", "WRITERS", "SimulatorConfig", "connections", "simulate", "write_pcap"]

#: What `simulate` gives, and what writes it by the end of the name: a file, or a folder of what each side sent.
RECORDS: Final = "packets"
WRITERS: Final[dict[str, Callable[[Any, Path], int]]] = {
    **pcap_writer.WRITERS,
    ".streams": write_streams,
    **endings(".jsonl", write_lines),
    **endings(".entries", write_binary),
}

#: The servers' ports: for bymux, and for each channel where these have connections of their own.
PORT: Final = 8019
PORTS: Final = {Channel.CONTROL: 8020, Channel.DATA: 8021}
#: How peers send.
MIXED, SAFE, GREEDY = "mixed", "safe", "greedy"
#: Connections begin so far apart.
_BEGIN_NS: Final = 1_370_000
#: How far apart the first scenarios of two connections are.
_SCENARIOS_APART: Final = 5


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """What to simulate. The same configuration gives the same packets."""

    seed: int = 0
    #: How the channels are carried: `bymux`, or `two_connections`.
    transport: str = BYMUX
    #: How peers send: `safe`, `greedy`, or `mixed` (the connections differ).
    mode: str = MIXED
    connections: int = 4
    #: Logs that are replicated on each connection; every second one by the side that was called.
    logs: int = 2
    #: Number of entries of each log.
    entries: int = 1000
    #: The first of them: those before it the receiver has.
    first_entry: int = 1
    #: Share of the logs whose last entry is an end-of-log entry.
    ended_share: float = 0.25
    #: Number of connections that replicate the same logs.
    replicas: int = 1
    #: Mean size of the payloads; sizes are from about half to one and a half of it.
    payload_bytes: int = 200
    #: Share of the entries of a log that are written while it is replicated, one after another.
    live_share: float = 0.1
    #: Between two of them.
    interval_ms: int = 50
    #: The largest window for compression; 0 = none.
    window_bytes: int = 32_768
    #: Number of further proposals of each connection, each of another scenario.
    ways: int = 20
    #: Proposals of each connection that are cancelled with the proof of a fork.
    forks: int = 0
    #: Share of payloads that are compressed.
    compressed_share: float = 0.5
    #: The side that is proactive: `client` or `server`.
    proactive: str = Direction.CLIENT.value
    start_time_ms: int = 1_700_000_000_000
    #: Name of a rule that one more connection, or one more entry of a file, breaks; see ALL_FAULTS.
    fault: str | None = None
    #: Name of an incident that begins in the stream; see INCIDENTS.
    incident: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a value out of range, and for a fault or incident that there isn't."""
        check(self, _BOUNDS, ALL_FAULTS, INCIDENTS, _CHOICES)
        if self.transport != BYMUX and self.fault in OF_BYMUX:
            raise OptionError(key="fault", reason=f"{self.fault} is broken over {BYMUX} alone")


_CHOICES: Final = {"transport": (BYMUX, TWO_CONNECTIONS), "mode": (MIXED, SAFE, GREEDY), "proactive": tuple(Direction)}
_BOUNDS: Final[Bounds] = {
    "connections": (1, 10_000),
    "logs": (0, 256),
    "entries": (1, 2**40),
    "first_entry": (1, 2**40),
    "ended_share": (0, 1),
    "replicas": (1, 10_000),
    "payload_bytes": (0, 1_000_000),
    "live_share": (0, 1),
    "interval_ms": (0, 86_400_000),
    "ways": (0, 100_000),
    "forks": (0, 100_000),
    "window_bytes": (0, MAX_U64),
    "compressed_share": (0, 1),
    # Times of pcap end in 2106.
    "start_time_ms": (0, 4_000_000_000_000),
}


def simulate(config: SimulatorConfig, disturbances: Disturbances | None = None) -> Iterator[CapturedPacket]:
    """The packets of all connections in order of time, for `write_pcap`."""
    return merge(packets(conversation, disturbances) for conversation in connections(config))


def connections(config: SimulatorConfig) -> Iterator[Conversation]:
    """The same connections before they are packets."""
    contents = Contents(config.seed, config.payload_bytes)
    for number in range(config.connections):
        yield from _Pair(config, contents, number).conversations()
    if config.fault is not None and ALL_FAULTS[config.fault].act is not None:
        yield from _FaultyPair(config, contents, config.connections).conversations()


def entries(config: SimulatorConfig) -> Iterator[Written]:
    """The entries of the logs that each connection replicates, log by log, for files of entries."""
    contents = Contents(config.seed, config.payload_bytes)
    for number in range(-(-config.connections // config.replicas) * config.logs):
        journal = _journal(config, contents, number)
        for _ in range(config.entries):
            published = journal.next()
            yield Written(published.data, published.payload)
    if config.fault is not None:
        yield from ALL_FAULTS[config.fault].written(config.seed)


def affected(config: SimulatorConfig) -> Mapping[str, Any]:
    """The log that the incident affects, and since when; nothing if the stream is too short for it."""
    incident = moment(config)
    assert incident is not None
    pair = _Pair(config, Contents(config.seed, config.payload_bytes), incident.connection)
    for conversation in pair.conversations():
        deque(conversation.events, maxlen=0)
    return pair.affected or {}


#: What is written instead of `simulate`'s packets, and what makes it, by the end of the name.
OTHER_RECORDS: Final[dict[str, tuple[str, Callable[[SimulatorConfig], Iterator[Written]]]]] = {
    ".jsonl": ("entries", entries),
    ".entries": ("entries", entries),
}


def source_options(config: SimulatorConfig) -> dict[str, Any]:
    """The options of a source that reads the packets."""
    proactive = {"proactive": config.proactive}
    if config.transport == BYMUX:
        return proactive
    setups = _manner(config, 0).setups
    set_ups = {
        name: {key: getattr(setups[role], key) for key in _SETUP}
        for name, role in (("client_setup", _client(config)), ("server_setup", _client(config).peer))
    }
    ports = {"control_port": PORTS[Channel.CONTROL], "data_port": PORTS[Channel.DATA]}
    return {"transport": TWO_CONNECTIONS, "pairs": NEXT_PORT, **proactive, **ports, **set_ups}


_SETUP: Final = ("sends_greedily", "receives_greedily", "send_window", "receive_window")


def _client(config: SimulatorConfig) -> Role:
    return Role.PROACTIVE if config.proactive == Direction.CLIENT else Role.REACTIVE


def _manner(config: SimulatorConfig, number: int) -> Manner:
    """How the peers of connection `number` send. The connections differ, in a fixed order."""
    alone = config.transport == TWO_CONNECTIONS
    if alone and config.fault is not None:
        # All connections of a source have the same set-ups.
        return ALL_FAULTS[config.fault].manner(_client(config), two_connections=True)
    at = 0 if alone else number
    greedy = {SAFE: (0, 0), GREEDY: (1, 1), MIXED: ((0, 0), (1, 1), (1, 0), (0, 1))[at % 4]}[config.mode]
    window = config.window_bytes
    # In one of five cases a side accepts no compression, in another one it accepts less.
    receives = window if at % 5 < 3 else (0, window // 4)[at % 5 - 3]
    setups = {
        Role.PROACTIVE: Setup(bool(greedy[0]), bool(greedy[1]), window, window),
        Role.REACTIVE: Setup(bool(greedy[1]), bool(greedy[0]), window, receives, 0xF0 * (at % 7 == 6)),
    }
    return Manner(
        setups,
        _client(config),
        creates=not alone and at % 3 == 2,
        two_connections=alone,
        cuts=not alone and at % 4 == 3,
        resets=at % 6 == 5,
        compressed=config.compressed_share,
    )


def _journal(config: SimulatorConfig, contents: Contents, number: int) -> Journal:
    """The log with that number, up to the first entry that is replicated. Two in a row are of one author."""
    log = Chain(author_key(config.seed, f"author {number // 2}"), number % 2)
    ends = Random(f"{config.seed} end of {number}").random() < config.ended_share
    journal = Journal(log, contents, number, config.first_entry - 1 + config.entries, ends=ends)
    for _ in range(1, config.first_entry):
        journal.next()
    return journal


class _Pair:
    """Two peers, and their connection, or the connections of their channels."""

    def __init__(self, config: SimulatorConfig, contents: Contents, number: int) -> None:
        self._config, self._contents, self._number = config, contents, number
        self._client = f"10.0.{number // 250}.{number % 250 + 1}"
        self._opened_ns = config.start_time_ms * NS_PER_MS + number * _BEGIN_NS
        #: Which log the incident affects, by the names of the tables' columns, and since when; None = none.
        self.affected: dict[str, Any] | None = None

    def conversations(self) -> Iterator[Conversation]:
        if self._config.transport == BYMUX:
            yield self._converse(40_000, PORT, (event for _, event in self._script()))
            return
        # What both channels have in common is made twice, so that none waits for the other.
        for port, channel in enumerate(Channel, 40_000):
            yield self._converse(port, PORTS[channel], self._of(channel))

    def _of(self, channel: Channel) -> Iterator[Event]:
        return (event for whose, event in self._script() if whose is channel)

    def _converse(self, client_port: int, port: int, events: Iterator[Event]) -> Conversation:
        random = Random(f"{self._config.seed} {self._number} {port}")
        client, server = Endpoint(self._client, client_port), Endpoint("10.1.0.1", port)
        return Conversation(
            client,
            server,
            self._opened_ns,
            events,
            random.getrandbits(32),
            random.getrandbits(32),
            captured_from_ns=self._captured_from_ns(),
        )

    def _random(self) -> Random:
        return Random(f"{self._config.seed} {self._number}")

    def _captured_from_ns(self) -> int:
        return 0

    def _script(self) -> Iterator[tuple[Channel, Event]]:
        config = self._config
        dialogue = Dialogue(_manner(config, self._number), self._opened_ns, self._random())
        dialogue.begin()
        live = round(config.entries * config.live_share)
        first = self._number // config.replicas * config.logs
        journals = [_journal(config, self._contents, n) for n in range(first, first + config.logs)]
        steps = whole_logs(dialogue, journals, config.entries - live, live, config.interval_ms)
        logs = Logs(author_key(config.seed, f"author of {self._number}"), dialogue.random)
        ways = [
            SCENARIOS[(self._number * _SCENARIOS_APART + n) % len(SCENARIOS)](dialogue, logs)
            for n in range(config.ways)
        ]
        ways += [forked(dialogue, logs) for _ in range(config.forks)]
        incident = moment(config)
        if incident is not None and incident.connection == self._number:
            steps = chain(islice(steps, incident.step), self._happen(incident, dialogue, logs), steps)
        for _ in chain(steps, at_once(dialogue, ways)):
            yield from dialogue.take()
        dialogue.end()
        yield from dialogue.take()

    def _happen(self, incident: Moment, dialogue: Dialogue, logs: Logs) -> Iterator[None]:
        self.affected = {"author": logs.author, "log_id": 0, "since_ns": dialogue.now_ns}
        yield from incident.scenario(dialogue, logs)


class _FaultyPair(_Pair):
    """Two peers, one of which breaks a rule."""

    def _fault_script(self) -> FaultScript:
        config = self._config
        assert config.fault is not None
        fault: Fault = ALL_FAULTS[config.fault]
        manner = fault.manner(_client(config), two_connections=config.transport != BYMUX)
        script = FaultScript(manner, self._opened_ns, self._random())
        fault.play(config.fault, script)
        return script

    def _captured_from_ns(self) -> int:
        return self._fault_script().captured_from_ns

    def _script(self) -> Iterator[tuple[Channel, Event]]:
        yield from self._fault_script().take()
