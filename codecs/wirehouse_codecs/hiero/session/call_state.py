"""The state of one gRPC call: its session, the block in progress, its message sets. `log/calls.py` uses it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import carried_fields
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import PROFILES, Profile, Service
from wirehouse_codecs.hiero.session.session import Call, CallState
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder
from wirehouse_codecs.tcp.endpoints import Direction


@dataclass(slots=True)
class ComingBlock:
    """A block of a call."""

    first_ns: int
    #: Whether its beginning was seen: what is missing there is the publisher's fault.
    judged: bool
    messages: int = 0
    #: How many of the builder's findings were reported.
    told: int = 0
    builder: BlockBuilder = field(default_factory=BlockBuilder)


@dataclass(slots=True)
class ComingSet:
    """What is known of the set of items that one message carries."""

    counts: dict[int, int] = field(default_factory=dict)
    #: Counts within the part that comes.
    part_counts: dict[int, int] = field(default_factory=dict)
    part_bytes: int = 0
    header: int | None = None
    #: The header of the last block.
    last_header: int | None = None
    proof: int | None = None
    headers: int = 0
    unknown_fields: int = 0
    broken: list[list[str]] = field(default_factory=list)
    #: The first byte of its message, and when the prefix had arrived.
    byte_start: int = 0
    begun_ns: int = 0
    inflated_bytes: int = 0


class GoesAway(NamedTuple):
    """A side takes no further call: when it first announced that, and what its last GOAWAY holds."""

    began_ns: int
    last_stream_id: int
    code: int

    def ends(self, rpc: Rpc, side: Direction, in_flight_ns: int) -> bool:
        """Whether it ends this call: it has an error code, the call came too late, or nothing followed on the call."""
        refused = side is Direction.SERVER and rpc.number > self.last_stream_id
        return bool(self.code) or refused or rpc.place.arrived_at_ns <= self.began_ns + in_flight_ns


@dataclass
class RpcState:
    """One call: what it is, how its session stands, and the block that comes on it."""

    number: int
    #: The place of what either side sent last; parts of a message get this place too.
    place: Place
    late: bool
    opened_ns: int
    path: str | None = None
    path_inferred: bool = False
    service: Service | None = None
    profile: Profile = PROFILES["B"]
    metadata: dict[str, str] = field(default_factory=dict)
    publisher: str | None = None
    session: CallState | None = None
    block: ComingBlock | None = None
    sets: dict[Direction, ComingSet] = field(default_factory=dict)
    status: int | None = None
    status_message: str | None = None
    reset_by: str | None = None
    reset_code: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    #: Whether its end was reported.
    ended: bool = False
    #: When messages of it were missed last.
    missed_ns: int | None = None
    #: Whether it is known which API is spoken.
    sure: bool = False


class Rpc(RpcState):
    """A call whose session is at work."""

    session: Call | None

    @classmethod
    def resumed(cls, state: RpcState, options: HieroOptions) -> Rpc:
        """The call that an earlier window knew."""
        rpc = cls(**carried_fields(RpcState, state))
        rpc.session = None if state.session is None else Call(state.session, options)
        return rpc

    @property
    def partial(self) -> bool:
        return self.late if self.session is None else self.session.partial

    def begin(self, service: Service, options: HieroOptions) -> None:
        """It is known what the call does."""
        self.service = service
        if service in (Service.PUBLISH, Service.SUBSCRIBE, Service.STATUS):
            self.session = Call.begin(service, options, started_late=self.late)
