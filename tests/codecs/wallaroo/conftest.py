"""A dialogue with a session: what each side says, in words close to the protocol's, and what is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.carried import as_text, carry
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    Flag,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    StreamMessage,
    VersionForm,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.session.outcome import Found, Outcome
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.session.streams import ALL
from wirehouse_codecs.wallaroo.wire.messages import Decoded, decode, encode_body
from wirehouse_codecs.wallaroo.wire.reader_state import Received

SECOND = 1_000_000_000


def place(at_ns: int, record: int = 0) -> Place:
    return Place(at_ns, 0, b"", record)


class Dialogue:
    """A session that is told what both sides send. Before each frame it is restored from its snapshot as well.

    `c` and `w` send what connector and worker say; `found` are the rules so far, `rules` only those of the last step.
    """

    def __init__(self, dialect: str, *, started_late: bool = False, **options: object) -> None:
        self.dialect = DIALECTS[dialect]
        self.options = replace(WallarooOptions(), **options)  # type: ignore[arg-type]
        #: So many bytes of the other side each side had received, whatever it sends.
        self.received = dict.fromkeys(Direction, ALL)
        self.session = self._session(started_late=started_late)
        self.outcomes: list[Outcome] = []
        self.findings: list[Found] = []
        self.now_ns = SECOND
        self._at = {Direction.CLIENT: 0, Direction.SERVER: 0}
        self._records = 0
        self.last: list[Found] = []

    def _session(self, **arguments: Any) -> Session:
        arguments |= {"cookie_hash": lambda _: b"hash", "peer_received": lambda side, _: self.received[side]}
        return Session(self.dialect, self.options, **arguments)

    def send(self, direction: Direction, frame: Frame | bytes) -> Outcome:
        body = frame if isinstance(frame, bytes) else encode_body(frame, self.dialect)
        return self.take(direction, decode(body, self.dialect), 4 + len(body))

    def take(self, direction: Direction, decoded: Decoded, size: int = 5) -> Outcome:
        self.now_ns += 1
        self._records += 1
        start = self._at[direction]
        self._at[direction] += size
        received = Received(direction, place(self.now_ns, self._records), start, start + size, decoded)
        restored = self._session(state=carry(self.session.memory))
        outcome = self.session.receive(received)
        assert restored.receive(received) == outcome
        assert as_text(restored.memory) == as_text(self.session.memory)
        self.outcomes.append(outcome)
        self.last = list(outcome.findings)
        self.findings += outcome.findings
        return outcome

    def c(self, *frames: Frame | bytes) -> Dialogue:
        for frame in frames:
            self.send(Direction.CLIENT, frame)
        return self

    def w(self, *frames: Frame | bytes) -> Dialogue:
        for frame in frames:
            self.send(Direction.SERVER, frame)
        return self

    def wait(self, seconds: float) -> Dialogue:
        self.now_ns += int(seconds * SECOND)
        return self

    def pass_time(self, seconds: float) -> Dialogue:
        self.wait(seconds)
        self.last = list(self.session.advance(self.now_ns))
        self.findings += self.last
        return self

    def hears(self, direction: Direction, missing: int) -> Dialogue:
        """From here on `direction` has received what the other side has said by now, but for so many bytes."""
        self.received[direction] = (
            self._at[Direction.SERVER if direction is Direction.CLIENT else Direction.CLIENT] - missing
        )
        return self

    def end(self, how: End = End.CLOSED, by: Direction | None = None) -> Dialogue:
        self.now_ns += 1
        self.last = list(self.session.end(how, place(self.now_ns), self.received[Direction.CLIENT], by))
        self.findings += self.last
        return self

    def undecodable(self, direction: Direction, rule: str) -> Dialogue:
        self.take(direction, Decoded(rule=RULE[rule], reason="told so"))
        return self

    def hole(self, direction: Direction) -> Dialogue:
        """Bytes of `direction` are missing."""
        self.take(direction, Decoded(reason="told so"), 0)
        return self

    @property
    def found(self) -> list[str]:
        return [finding.rule.name for finding in self.findings]

    @property
    def rules(self) -> list[str]:
        return [finding.rule.name for finding in self.last]

    @property
    def ignored(self) -> list[str | None]:
        return [outcome.ignored for outcome in self.outcomes]

    # What is mostly said

    def opened(self, *streams: int, granted: int = 100) -> Dialogue:
        """HELLO, OK, and a stream `sN` for each number, open."""
        self.c(hello(self.dialect.name)).w(Ok(granted))
        for stream in streams:
            self.c(Notify(stream, f"s{stream}".encode()))
            if self.dialect.answers_notify:
                self.w(NotifyAck(1, stream, 0))
        return self


def hello(dialect: str, version: bytes | None = None, cookie: bytes = b"monster") -> Hello:
    if DIALECTS[dialect].byte_order == "little":
        return Hello(version or bytes(range(16)), cookie, b"program", b"one", VersionForm.GUID16)
    return Hello(version or (b"v0.0.1" if DIALECTS[dialect].sink else b"0.0.1"), cookie, b"program", b"one")


def message(dialect: str, stream: int, message_id: int, flags: int = 0, payload: bytes | None = b"x") -> Message:
    """A message as the dialect writes it: without a stream id, flags or payload where it has none."""
    known = DIALECTS[dialect]
    seed = known.byte_order == "little"
    flags = 0 if known.flags is None else flags
    boundary = bool(flags & Flag.BOUNDARY)
    return Message(
        stream_id=None if dialect == "seed" else stream,
        message_id=None if not seed and flags & Flag.EPHEMERAL else message_id,
        flags=None if known.flags is None else flags,
        event_time=7 if known.flags is None or (flags & Flag.EVENT_TIME and not (seed and boundary)) else None,
        key=b"k" if known.flags is not None and not seed and flags & Flag.KEY else None,
        payload=None if boundary and payload == b"x" else payload,
    )


def ack(granted: int, *pairs: tuple[int, int]) -> Ack:
    return Ack(granted, tuple(StreamMessage(*pair) for pair in pairs))


@pytest.fixture(scope="session")
def dialogue() -> Callable[..., Dialogue]:
    return Dialogue


@pytest.fixture(scope="session")
def msg() -> Callable[..., Message]:
    return message


@pytest.fixture(scope="session")
def greeting() -> Callable[..., Hello]:
    return hello


@pytest.fixture(scope="session")
def acked() -> Callable[..., Ack]:
    return ack
