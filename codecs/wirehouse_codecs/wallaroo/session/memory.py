"""The memory of a session, which is carried from window to window.

`Memory` holds the state of the connection, the values of HELLO and OK, the balance of credits, the streams
(streams.py), and which bytes the capture lacks. It judges nothing: the modules beside it do (handshake, errors,
credits, stream_frames), and the fast path reads and writes it as arrays.

A rule is broken only if the bytes that could excuse it were captured. `lacks` has the sides of which bytes are missing,
`late` is set if frames from before the capture are missing, and `unordered` if the frames of the two sides may have
come in another order.
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

#: Maximum number of streams that a session remembers; messages of further ones are not judged.
MAX_STREAMS: Final = 16_384
#: Maximum number of message ids that a session remembers.
MAX_IDS: Final = 262_144
#: Maximum number of remembered messages that the worker pointed at, and that the session didn't send.
MOST_REFERRED: Final = 256


@dataclass(slots=True)
class Memory:
    """The memory of one session."""

    dialect: Dialect
    # Missing parts of the capture
    #: Whether frames from before the capture are missing; the sides of which bytes are. What is unknown may be legal.
    late: bool = False
    lacks: set[Direction] = field(default_factory=set)
    #: Sides that may have sent bytes, although none were captured so far.
    unseen: set[Direction] = field(default_factory=set)
    #: Whether the frames of the two sides may have come in another order.
    unordered: bool = False
    #: The same from this time on; None if `unordered` already holds, or nothing is doubtful.
    doubt_ns: int | None = None
    # The state of the connection
    state: State = State.CONNECTED
    ended: End | None = None
    #: Whether the connector reset the connection.
    left: bool = False
    first_ns: int | None = None
    last_ns: int | None = None
    # The handshake
    #: Whether a frame came.
    started: bool = False
    version: str | None = None
    program_name: bytes | None = None
    instance_name: bytes | None = None
    cookie_empty: bool | None = None
    cookie_digest: bytes | None = None
    hello: Where | None = None
    #: Whether the HELLO breaks a rule of frames.
    hello_judged: bool = False
    #: Whether the worker answered by OK; and whether by OK or ERROR.
    accepted: bool = False
    answered: bool = False
    #: Whether an OK came before HELLO.
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
    #: The stream of each name, by the name's digest.
    names: dict[bytes, int] = field(default_factory=dict)
    #: Whether a stream was seen beyond the bound; whether a message couldn't be attributed to one.
    untracked: bool = False
    unattributed: bool = False
    #: Number of ids that the streams hold.
    ids: int = 0
    #: Rule `ack_never_sent`, if no earlier session of the instance sent them.
    unsent: list[Reference] = field(default_factory=list)
    #: Rule `reference_unstable`, if an earlier session of the instance flagged them.
    referred: list[Reference] = field(default_factory=list)
    # Errors
    errors: set[Direction] = field(default_factory=set)
    #: The first ERROR, after which the connection must be closed.
    error: Where | None = None
    #: The rule of `ENDS` that was broken, the frame that broke it, and its stream and message.
    ended_by: str | None = None
    violation: Where | None = None
    violated: tuple[int | None, int | None] = (None, None)
    #: What the connector sent from this frame on, and where each ends: the first HELLO, NOTIFYs with their streams, and
    #: messages with their streams and ids. See going_on.py.
    later_hello: int | None = None
    later_notifies: list[tuple[int, int]] = field(default_factory=list)
    later_messages: list[tuple[int | None, int, int]] = field(default_factory=list)
    #: Time of the worker's last frame that was sent before its host had received this frame.
    unaware_ns: int = 0

    @property
    def partial(self) -> bool:
        """Whether the capture lacks some of it."""
        return self.late or bool(self.lacks or self.unseen)

    def may_miss(self, side: Direction) -> bool:
        """Whether `side` may have sent more than was captured."""
        return self.late or side in self.lacks or side in self.unseen

    def follow(self, unseen: Collection[Direction]) -> None:
        """Note the sides that may have sent bytes before: no captured packet shows where their bytes begin."""
        self.unseen = set(unseen)
        # The worker's frames may answer frames of the connector that come later.
        self.unordered = self.unordered or Direction.CLIENT in self.unseen

    def stream(self, stream_id: int) -> Stream | None:
        """The stream of an id, made if it is within the bound."""
        stream = self.streams.get(stream_id)
        if stream is None and len(self.streams) < MAX_STREAMS:
            stream = self.streams[stream_id] = Stream()
        elif stream is None:
            self.untracked = True
        return stream

    def note_name(self, digest: bytes, stream_id: int) -> None:
        """Note that a stream has this name, unless another one had it first."""
        if len(self.names) < MAX_STREAMS:
            self.names.setdefault(digest, stream_id)

    def refer(self, reference: Reference) -> None:
        """Note that the worker points at a message that this session didn't send; the first time counts."""
        known = any(one[:2] == reference[:2] for one in self.referred)
        if not known and len(self.referred) < MOST_REFERRED:
            self.referred.append(reference)

    def count_ids(self, stream: Stream, before: int) -> None:
        """Count the ids of a stream, which held `before` of them at the last count."""
        self.ids += stream.remembered - before

    @property
    def has_too_many_ids(self) -> bool:
        """Whether the streams hold more ids than a session remembers."""
        return self.ids > MAX_IDS

    def miss(self, direction: Direction) -> None:
        """Note missing bytes of a side. They may have been anything: what they would change is unknown from here on."""
        self.lacks.add(direction)
        self.credits = self.dry = None
        if direction is Direction.SERVER:
            self.violation = None
        for stream in self.streams.values():
            stream.miss(direction)

    def doubt(self) -> None:
        """Note that the order in which the two sides sent the next bytes isn't known."""
        self.unordered, self.doubt_ns = True, None
        for direction in Direction:
            self.miss(direction)
