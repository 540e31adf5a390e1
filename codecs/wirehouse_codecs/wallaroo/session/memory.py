"""What a session remembers, and carries from window to window.

`Memory` holds where the connection stands, what HELLO and OK said, the balance of credits, the streams (streams.py),
and which bytes the capture lacks. It judges nothing: the modules beside it do (handshake, errors, credits,
stream_frames), and the fast path reads and writes it as arrays.

What the capture lacks decides what may be found: `lacks` says of which sides bytes are missing, `late` that frames from
before the capture are, `unordered` that what the sides said may have come in another order. A rule is broken only if
the bytes that could excuse it were captured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.dialects import Dialect
from wirehouse_codecs.wallaroo.session.outcome import Reference, State, Where
from wirehouse_codecs.wallaroo.session.streams import Stream

#: Streams that a session remembers; messages of further ones are not judged.
MAX_STREAMS: Final = 16_384
#: Message ids that a session remembers.
MAX_IDS: Final = 262_144
#: Of a session so many messages are remembered that the worker pointed at, and that it didn't send.
MOST_REFERRED: Final = 256


@dataclass(slots=True)
class Memory:
    """What one session remembers."""

    dialect: Dialect
    # What the capture lacks
    #: Frames from before were missed, and sides of which bytes were: what is unknown may be legal.
    late: bool = False
    lacks: set[Direction] = field(default_factory=set)
    #: Sides that may have said something, although nothing of them was captured so far.
    unseen: set[Direction] = field(default_factory=set)
    #: What the sides said may have come in another order.
    unordered: bool = False
    #: From when on that is so, if it is not for all that comes.
    doubt_ns: int | None = None
    # Where the connection stands
    state: State = State.CONNECTED
    ended: End | None = None
    #: The connector reset the connection.
    left: bool = False
    first_ns: int | None = None
    last_ns: int | None = None
    # The handshake
    #: A frame came.
    started: bool = False
    version: str | None = None
    program_name: bytes | None = None
    instance_name: bytes | None = None
    cookie_empty: bool | None = None
    cookie_digest: bytes | None = None
    hello: Where | None = None
    #: The HELLO breaks a rule of frames.
    hello_judged: bool = False
    #: The worker answered by OK; by OK or ERROR.
    accepted: bool = False
    answered: bool = False
    #: An OK came before HELLO.
    early_ok: bool = False
    initial_credits: int | None = None
    # Credits
    #: The balance: what was granted less what was spent; None = unknown.
    credits: int | None = None
    granted: int = 0
    spent: int = 0
    #: The frame that spent the last credit.
    dry: Where | None = None
    #: EOS_MESSAGE frames: workers take a credit for each, connectors count none.
    eos_messages: int = 0
    # Streams
    streams: dict[int, Stream] = field(default_factory=dict)
    #: Digests of the names of streams.
    names: dict[bytes, int] = field(default_factory=dict)
    #: A stream was seen for which there was no room; a message couldn't be attributed to one.
    untracked: bool = False
    unattributed: bool = False
    #: How many ids the streams hold.
    ids: int = 0
    #: Rule `ack_never_sent`, if no earlier session of the instance sent them.
    unsent: list[Reference] = field(default_factory=list)
    #: Rule `reference_unstable`, if an earlier session of the instance flagged them.
    referred: list[Reference] = field(default_factory=list)
    # Errors
    errors: set[Direction] = field(default_factory=set)
    #: The first ERROR, after which the connection must be closed.
    error: Where | None = None
    #: The rule of `ENDS` that was broken, by which frame, and by which stream and message.
    ended_by: str | None = None
    violation: Where | None = None
    violated: tuple[int | None, int | None] = (None, None)
    #: When the worker said something last without having received what broke the rule.
    unaware_ns: int = 0

    @property
    def partial(self) -> bool:
        """The capture lacks some of it."""
        return self.late or bool(self.lacks or self.unseen)

    def may_miss(self, side: Direction) -> bool:
        """`side` may have said more than was captured."""
        return self.late or side in self.lacks or side in self.unseen

    def follow(self, unseen: Collection[Direction]) -> None:
        """Of these sides nothing was captured that tells where their bytes begin, and so they may have begun before."""
        self.unseen = set(unseen)
        # The worker answers what the connector said, which may come later.
        self.unordered = self.unordered or Direction.CLIENT in self.unseen

    def stream(self, stream_id: int) -> Stream | None:
        """The stream of an id, made if there is room for it."""
        stream = self.streams.get(stream_id)
        if stream is None and len(self.streams) < MAX_STREAMS:
            stream = self.streams[stream_id] = Stream()
        elif stream is None:
            self.untracked = True
        return stream

    def note_name(self, digest: bytes, stream_id: int) -> None:
        """A stream has this name, unless another one had it first."""
        if len(self.names) < MAX_STREAMS:
            self.names.setdefault(digest, stream_id)

    def refer(self, reference: Reference) -> None:
        """The worker points at a message that this session didn't send; the first time counts."""
        known = any(one[:2] == reference[:2] for one in self.referred)
        if not known and len(self.referred) < MOST_REFERRED:
            self.referred.append(reference)

    def count_ids(self, stream: Stream, before: int) -> None:
        """The stream held so many ids `before`."""
        self.ids += stream.remembered - before

    @property
    def has_too_many_ids(self) -> bool:
        """The streams hold more ids than a session remembers."""
        return self.ids > MAX_IDS

    def miss(self, direction: Direction) -> None:
        """Bytes that the capture lacks may have been anything: what they would change is unknown from here on."""
        self.lacks.add(direction)
        self.credits = self.dry = None
        if direction is Direction.SERVER:
            self.violation = None
        for stream in self.streams.values():
            stream.miss(direction)

    def doubt(self) -> None:
        """Nobody knows which side sent first what comes next."""
        self.unordered, self.doubt_ns = True, None
        for direction in Direction:
            self.miss(direction)
