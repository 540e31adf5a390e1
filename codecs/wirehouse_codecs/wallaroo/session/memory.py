"""What a session remembers: all that its snapshot carries.

`Memory` holds where the connection stands, what HELLO and OK said, the balance of credits, the streams (streams.py),
and which bytes the capture lacks. It judges nothing: the modules beside it do (handshake, errors, credits,
stream_frames), and the fast path reads and writes it as arrays.

What the capture lacks decides what may be found: `lacks` says of which sides bytes are missing, `late` that frames from
before the capture are, `unordered` that what the sides said may have come in another order. A rule is broken only if
the bytes that could excuse it were captured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.dialects import DIALECTS, Dialect
from wirehouse_codecs.wallaroo.session.outcome import State, UnsentAck, Where
from wirehouse_codecs.wallaroo.session.streams import Stream

#: Streams that a session remembers; messages of further ones are not judged.
MAX_STREAMS: Final = 16_384
#: Message ids that a session remembers.
MAX_IDS: Final = 262_144


class Memory:
    """What one session remembers.

    `started_late`: the capture began after the connection did. `unseen`: sides of which nothing was captured when the
    other one said something, so that they may have said anything. `cookie_hash` makes of a cookie what may be kept.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        started_late: bool = False,
        unseen: Collection[Direction] = (),
        cookie_hash: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.dialect = dialect
        self.cookie_hash = cookie_hash
        self.state = State.CONNECTED
        self.ended: End | None = None
        #: The connector reset the connection.
        self.left = False
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        # What the capture lacks
        #: Frames from before were missed, and sides of which bytes were: what is unknown may be legal.
        self.late = started_late
        self.lacks = set(unseen)
        #: What the sides said may have come in another order.
        self.unordered = bool(unseen)
        #: From when on that is so, if it is not for all that comes.
        self.doubt_ns: int | None = None
        # The handshake
        #: A frame came.
        self.started = False
        self.version: str | None = None
        self.program_name: bytes | None = None
        self.instance_name: bytes | None = None
        self.cookie_empty: bool | None = None
        self.cookie_digest: bytes | None = None
        self.hello: Where | None = None
        #: The HELLO breaks a rule of frames.
        self.hello_judged = False
        #: The worker answered by OK; by OK or ERROR.
        self.accepted = False
        self.answered = False
        #: An OK came before HELLO.
        self.early_ok = False
        self.initial_credits: int | None = None
        # Credits
        #: The balance: what was granted less what was spent; None = unknown.
        self.credits: int | None = None
        self.granted = self.spent = 0
        #: The frame that spent the last credit.
        self.dry: Where | None = None
        #: EOS_MESSAGE frames: workers take a credit for each, connectors count none.
        self.eos_messages = 0
        # Streams
        self.streams: dict[int, Stream] = {}
        #: Digests of the names of streams.
        self.names: dict[bytes, int] = {}
        #: A stream was seen for which there was no room; a message couldn't be attributed to one.
        self.untracked = False
        self.unattributed = False
        #: How many ids the streams hold.
        self.ids = 0
        #: Rule `ack_never_sent`, if no earlier session of the instance sent them.
        self.unsent: list[UnsentAck] = []
        # Errors
        self.errors: set[Direction] = set()
        #: The first ERROR, after which the connection must be closed.
        self.error: Where | None = None
        #: The rule of `ENDS` that was broken, by which frame, and by which stream and message.
        self.ended_by: str | None = None
        self.violation: Where | None = None
        self.violated: tuple[int | None, int | None] = (None, None)
        #: When the worker said something last without having received what broke the rule.
        self.unaware_ns = 0

    @property
    def partial(self) -> bool:
        """The capture lacks some of it."""
        return self.late or bool(self.lacks)

    def may_miss(self, side: Direction) -> bool:
        """`side` may have said more than was captured."""
        return self.late or side in self.lacks

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

    # Carried state

    def to_json(self) -> dict[str, Any]:
        """What `restore` takes. Equal sessions give equal values."""
        marks = {name: getattr(self, name) for name in _MARKS}
        texts = {name: getattr(self, name) for name in _BYTES}
        return {
            "dialect": self.dialect.name,
            "plain": {name: getattr(self, name) for name in _PLAIN},
            "marks": {name: None if where is None else where.to_json() for name, where in marks.items()},
            "bytes": {name: None if text is None else text.hex() for name, text in texts.items()},
            "state": self.state,
            "ended": self.ended,
            "errors": sorted(self.errors),
            "lacks": sorted(self.lacks),
            "violated": self.violated,
            "unsent": [[*one[:2], one.where.to_json()] for one in self.unsent],
            "names": [[name.hex(), stream_id] for name, stream_id in self.names.items()],
            "streams": [[stream_id, stream.to_json()] for stream_id, stream in self.streams.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_json` wrote."""
        self.dialect = DIALECTS[state["dialect"]]
        for name in _PLAIN:
            setattr(self, name, state["plain"][name])
        for name in _MARKS:
            row = state["marks"][name]
            setattr(self, name, None if row is None else Where.from_json(row))
        for name in _BYTES:
            text = state["bytes"][name]
            setattr(self, name, None if text is None else bytes.fromhex(text))
        self.state = State(state["state"])
        self.ended = None if state["ended"] is None else End(state["ended"])
        self.errors = {Direction(side) for side in state["errors"]}
        self.lacks = {Direction(side) for side in state["lacks"]}
        self.violated = (state["violated"][0], state["violated"][1])
        self.unsent = [UnsentAck(stream, message, Where.from_json(row)) for stream, message, row in state["unsent"]]
        self.names = {bytes.fromhex(name): stream_id for name, stream_id in state["names"]}
        self.streams = {stream_id: Stream.from_json(row) for stream_id, row in state["streams"]}


#: What is carried as it is, places of frames, and bytes.
_PLAIN: Final = (
    "late",
    "left",
    "unordered",
    "doubt_ns",
    "credits",
    "granted",
    "spent",
    "eos_messages",
    "initial_credits",
    "version",
    "cookie_empty",
    "accepted",
    "ended_by",
    "first_ns",
    "last_ns",
    "untracked",
    "unattributed",
    "ids",
    "started",
    "hello_judged",
    "answered",
    "early_ok",
    "unaware_ns",
)
_MARKS: Final = ("hello", "error", "violation", "dry")
_BYTES: Final = ("program_name", "instance_name", "cookie_digest")
