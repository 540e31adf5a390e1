"""The state of one gRPC call: its session, the block in progress, its message sets. `log/calls.py` uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import PROFILES, Profile, Service
from wirehouse_codecs.hiero.session.session import Call
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder
from wirehouse_codecs.tcp.endpoints import Direction


class ComingBlock:
    """A block of a call."""

    __slots__ = ("builder", "first_ns", "judged", "messages", "told")

    def __init__(self, first_ns: int, *, judged: bool, snapshot: str | None = None) -> None:
        self.builder = BlockBuilder(snapshot=snapshot)
        self.first_ns = first_ns
        #: Its beginning was seen: what is missing there is the publisher's fault.
        self.judged = judged
        self.messages = 0
        #: How many of the builder's findings were told.
        self.told = 0

    def to_json(self) -> list[Any]:
        return [self.first_ns, self.judged, self.messages, self.told, self.builder.snapshot()]

    @classmethod
    def from_json(cls, state: Sequence[Any]) -> ComingBlock:
        block = cls(state[0], judged=state[1], snapshot=state[4])
        block.messages, block.told = state[2:4]
        return block


@dataclass(slots=True)
class ComingSet:
    """What is known of the set of items that one message carries. All of it is as JSON has it."""

    counts: dict[int, int] = field(default_factory=dict)
    #: Of the part that comes.
    part_counts: dict[int, int] = field(default_factory=dict)
    part_bytes: int = 0
    header: int | None = None
    #: Of the last block.
    last_header: int | None = None
    proof: int | None = None
    headers: int = 0
    unknown_fields: int = 0
    broken: list[list[str]] = field(default_factory=list)
    #: Of its message: the first byte, and when the prefix had arrived.
    byte_start: int = 0
    begun_ns: int = 0
    inflated_bytes: int = 0


_SET: Final = tuple(ComingSet.__slots__)


class GoesAway(NamedTuple):
    """A side takes no further call: when it said so first, and what its last GOAWAY holds."""

    began_ns: int
    last_stream_id: int
    code: int

    def ends(self, rpc: Rpc, side: Direction, in_flight_ns: int) -> bool:
        """Whether it ends this call: it has an error code, the call came too late, or nothing followed on the call."""
        refused = side is Direction.SERVER and rpc.number > self.last_stream_id
        return bool(self.code) or refused or rpc.place.arrived_at_ns <= self.began_ns + in_flight_ns


class Rpc:
    """One call: what it is, how its session stands, and the block that comes on it."""

    def __init__(self, number: int, place: Place, *, late: bool) -> None:
        self.number = number
        self.path: str | None = None
        self.path_inferred = False
        self.service: Service | None = None
        self.profile: Profile = PROFILES["B"]
        self.metadata: dict[str, str] = {}
        self.publisher: str | None = None
        self.late = late
        self.session: Call | None = None
        self.opened_ns = place.arrived_at_ns
        #: Of what both sides said last: parts of a message stand there.
        self.place = place
        self.block: ComingBlock | None = None
        self.sets: dict[Direction, ComingSet] = {}
        self.status: int | None = None
        self.status_message: str | None = None
        self.reset_by: str | None = None
        self.reset_code: int | None = None
        self.counts = Counter[str]()
        #: Its end was told.
        self.ended = False
        #: When messages of it were missed last.
        self.missed_ns: int | None = None
        #: It is known which API is spoken.
        self.sure = False

    @property
    def partial(self) -> bool:
        return self.late if self.session is None else self.session.partial

    def begin(self, service: Service, options: HieroOptions) -> None:
        """It is known what the call does."""
        self.service = service
        if service in (Service.PUBLISH, Service.SUBSCRIBE, Service.STATUS):
            self.session = Call(service, options, started_late=self.late)


# Carried state

#: What of a call carried state holds as it is.
_PLAIN: Final = (
    *("number", "path", "path_inferred", "metadata", "publisher", "late", "opened_ns"),
    *("status", "status_message", "reset_by", "reset_code", "ended", "missed_ns", "sure"),
)


def rpc_to_json(rpc: Rpc) -> dict[str, Any]:
    """The call, as JSON has it."""
    return {name: getattr(rpc, name) for name in _PLAIN} | {
        "service": rpc.service,
        "profile": rpc.profile.name,
        "session": None if rpc.session is None else rpc.session.snapshot(),
        "place": rpc.place.to_json(),
        "block": None if rpc.block is None else rpc.block.to_json(),
        "sets": {side: {name: _pairs(getattr(held, name)) for name in _SET} for side, held in rpc.sets.items()},
        "counts": rpc.counts,
    }


def rpc_from_json(state: Mapping[str, Any], options: HieroOptions) -> Rpc:
    """The call that `rpc_to_json` wrote."""
    rpc = Rpc(state["number"], Place.from_json(state["place"]), late=state["late"])
    for name in _PLAIN:
        setattr(rpc, name, state[name])
    rpc.service = None if state["service"] is None else Service(state["service"])
    rpc.profile = PROFILES[state["profile"]]
    if state["session"] is not None:
        assert rpc.service is not None
        rpc.session = Call(rpc.service, options, snapshot=state["session"])
    rpc.block = None if state["block"] is None else ComingBlock.from_json(state["block"])
    for side, held in state["sets"].items():
        held |= {name: dict(held[name]) for name in ("counts", "part_counts")}
        rpc.sets[Direction(side)] = ComingSet(**held)
    rpc.counts.update(state["counts"])
    return rpc


def _pairs(value: Any) -> Any:
    """Keys of JSON are text: tables of numbers are written as pairs."""
    return list(value.items()) if isinstance(value, dict) else value
