"""The rules that several sessions break together.

Sessions are taken in the order in which they ended: so the findings don't depend on where captures and windows were
cut. A fold of an instance also knows which of its sessions began and go on. A fold keeps what it needs of earlier
sessions for `HORIZON_NS`, and can be carried on.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.session.outcome import Where
from wirehouse_codecs.wallaroo.session.summary import SessionSummary

SNAPSHOT_VERSION: Final = 5
#: Number of reconnects in a row whose gaps have to grow.
RECONNECTS: Final = 4
#: Maximum number of remembered versions and cookies of a worker, and streams of an instance; more are not judged.
MOST_REMEMBERED: Final = 16_384
#: Maximum number of an instance's streams whose flagged ids are remembered; more are not judged.
MOST_FLAGGED: Final = 1024
#: A number below all message ids.
UNSENT: Final = -1


@dataclass(frozen=True, slots=True)
class SetFound:
    """A rule that several connections break together, at the connection whose end completes it."""

    rule: Rule
    connection_id: bytes
    message: str
    #: The frame that shows it; None = the session as a whole shows it.
    where: Where | None = None


@dataclass(slots=True)
class WorkerSessions:
    """Versions and cookies that one worker accepted. Rule `handshake_inconsistent`: a session with a new one."""

    #: Versions in the order in which they came (the values mean nothing).
    versions: dict[str, None] = field(default_factory=dict)
    #: Cookies in this order: whether each was empty, and its digest as hex.
    cookies: dict[tuple[bool | None, str | None], None] = field(default_factory=dict)

    def take(self, summary: SessionSummary) -> list[SetFound]:
        """Take the next session that ended."""
        if not summary.accepted or summary.version is None:
            return []
        cookie = (summary.cookie_empty, None if summary.cookie_digest is None else summary.cookie_digest.hex())
        seen: list[tuple[str, dict[Any, None], Any]] = [
            ("version", self.versions, summary.version),
            ("cookie", self.cookies, cookie),
        ]
        new = [what for what, known, value in seen if known and value not in known]
        for _, known, value in seen:
            if len(known) < MOST_REMEMBERED:
                known[value] = None
        if not new:
            return []
        shown = f"worker {summary.worker} accepted another {' and another '.join(new)} before"
        return [SetFound(RULE["handshake_inconsistent"], summary.connection_id, shown)]


@dataclass(slots=True)
class InstanceSessions:
    """The sessions of one program and instance.

    Rules `stream_id_reused`, `reconnect_without_backoff`, `ack_never_sent` of ids above all that were sent before, and
    `reference_unstable` of ids that the last session flagged which sent messages of the stream.
    """

    #: Stream id -> digest of its name as hex, and back.
    names: dict[int, str] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    #: Stream id -> the highest message id.
    sent: dict[int, int] = field(default_factory=dict)
    #: Stream id -> end of the last session that sent messages of it, and the ids it flagged as no stable reference.
    unstable: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    #: Whether some ids that were sent before aren't known.
    lacks: bool = False
    #: Connections, as hex, of sessions that go on: the ids that they sent aren't known yet (the values mean nothing).
    going: dict[str, None] = field(default_factory=dict)
    #: Time at which the last session ended, and whether it failed.
    ended_ns: int | None = None
    failed: bool = False
    #: Gaps of the reconnects in a row that never grew.
    gaps: list[int] = field(default_factory=list)

    def begin(self, connection_id: bytes) -> None:
        """Note that a session has begun. A repeated call changes nothing."""
        if len(self.going) < MOST_REMEMBERED:
            self.going[connection_id.hex()] = None
        else:
            self.lacks = True

    def take(self, summary: SessionSummary) -> list[SetFound]:
        """Take the next session that ended."""
        named = [(stream_id, name.hex()) for stream_id, name in summary.streams]
        shown = [text for stream_id, name in named if (text := self._judge_name(stream_id, name))]
        # This comes last: streams of one session are compared in the session.
        for stream_id, name in named:
            self._remember(stream_id, name)
        found = [SetFound(RULE["stream_id_reused"], summary.connection_id, text) for text in shown]
        return [*found, *self._judge_references(summary), *self._reconnect(summary)]

    def _judge_references(self, summary: SessionSummary) -> list[SetFound]:
        """Judge messages that the worker points at, and that this session did not send, by the sessions before."""
        self.going.pop(summary.connection_id.hex(), None)
        found = [] if self.lacks or self.going else [*self._never_sent(summary), *self._unstable(summary)]
        self._remember_sent(summary)
        self.lacks = self.lacks or summary.lacks or len(self.sent) == MOST_REMEMBERED
        return found

    def _never_sent(self, summary: SessionSummary) -> Iterator[SetFound]:
        for stream_id, message_id, where in summary.unsent:
            if message_id > self.sent.get(stream_id, UNSENT):
                shown = f"stream {stream_id} never sent id {message_id}"
                yield SetFound(RULE["ack_never_sent"], summary.connection_id, shown, where)

    def _unstable(self, summary: SessionSummary) -> Iterator[SetFound]:
        for stream_id, message_id, where in summary.referred:
            ended_ns, flagged = self.unstable.get(stream_id, (0, ()))
            # If two sessions overlap, the worker may point at a message from before both.
            if message_id in flagged and ended_ns <= where.place.arrived_at_ns:
                shown = f"an earlier session flagged id {message_id} of stream {stream_id} as no stable reference"
                yield SetFound(RULE["reference_unstable"], summary.connection_id, shown, where)

    def _remember_sent(self, summary: SessionSummary) -> None:
        for stream_id, message_id in summary.sent:
            self.unstable.pop(stream_id, None)
            if stream_id in self.sent or len(self.sent) < MOST_REMEMBERED:
                self.sent[stream_id] = max(message_id, self.sent.get(stream_id, UNSENT))
        flagged: dict[int, list[int]] = {}
        for stream_id, message_id in summary.unstable:
            flagged.setdefault(stream_id, []).append(message_id)
        for stream_id, ids in flagged.items():
            if len(self.unstable) < MOST_FLAGGED:
                self.unstable[stream_id] = summary.ended_ns, ids

    def _judge_name(self, stream_id: int, name: str) -> str | None:
        """The difference to an earlier session, as a message; None = there is none."""
        if self.names.get(stream_id, name) != name:
            return f"stream {stream_id} had another name in an earlier session"
        if (other := self.ids.get(name, stream_id)) != stream_id:
            return f"the name of stream {stream_id} was that of stream {other} in an earlier session"
        return None

    def _remember(self, stream_id: int, name: str) -> None:
        if stream_id in self.names or len(self.names) < MOST_REMEMBERED:
            self.names[stream_id] = name
        if name in self.ids or len(self.ids) < MOST_REMEMBERED:
            self.ids[name] = stream_id

    def _reconnect(self, summary: SessionSummary) -> list[SetFound]:
        """The finding of the reconnect that completes a row, once in each row."""
        gap = None if self.ended_ns is None else summary.started_ns - self.ended_ns
        reconnects = self.failed and gap is not None and gap >= 0
        self.ended_ns, self.failed = summary.ended_ns, summary.failed
        if gap is None or not reconnects:
            self.gaps.clear()
            return []
        if self.gaps and gap > self.gaps[-1]:
            self.gaps.clear()
        self.gaps.append(gap)
        # One gap more than needed is kept, so that a longer row isn't found again.
        del self.gaps[: -RECONNECTS - 1]
        if len(self.gaps) != RECONNECTS:
            return []
        shown = f"{RECONNECTS} reconnects after failures, the gaps are {', '.join(map(str, self.gaps))} ns"
        return [SetFound(RULE["reconnect_without_backoff"], summary.connection_id, shown)]


_FOLDS: Final[dict[str, type[WorkerSessions | InstanceSessions]]] = {
    "worker": WorkerSessions,
    "instance": InstanceSessions,
}
#: The codec of a fold's state by the kind of its key: the end of the last session, and the sessions.
_CODECS: Final[dict[str, SnapshotCodec[Any]]] = {
    "worker": SnapshotCodec(tuple[int | None, WorkerSessions], what="sessions of a worker", version=SNAPSHOT_VERSION),
    "instance": SnapshotCodec(
        tuple[int | None, InstanceSessions], what="sessions of an instance", version=SNAPSHOT_VERSION
    ),
}


def keys(summary: SessionSummary) -> list[str]:
    """The keys of the folds that take a session: its worker, and its program and instance."""
    found = [json.dumps(["worker", summary.worker])]
    if summary.program_name is not None and summary.instance_name is not None:
        found.append(instance_key(summary.program_name, summary.instance_name))
    return found


def instance_key(program_name: bytes, instance_name: bytes) -> str:
    """The key of the fold that takes the sessions of a program and instance."""
    return json.dumps(["instance", program_name.hex(), instance_name.hex()])


class Fold:
    """The sessions of one key, in the order in which they ended."""

    def __init__(self, key: str, state: str | None = None) -> None:
        kind = json.loads(key)[0]
        self._codec, self._kind = _CODECS[kind], _FOLDS[kind]
        self._sessions = self._kind()
        #: Time at which the last session ended.
        self.last_ns: int | None = None
        if state is not None:
            self.last_ns, self._sessions = self._codec.read(state)

    def begin(self, connection_id: bytes) -> None:
        """A session begins before the next one ends."""
        if isinstance(self._sessions, InstanceSessions):
            self._sessions.begin(connection_id)

    def take(self, summary: SessionSummary) -> list[SetFound]:
        """Take the next session that ended."""
        if self.is_over(summary.ended_ns):
            self._sessions = self._kind()
        self.last_ns = summary.ended_ns
        return self._sessions.take(summary)

    def is_over(self, ended_ns: int) -> bool:
        """Whether a session that ended at `ended_ns` counts as the first."""
        return self.last_ns is not None and ended_ns - self.last_ns > HORIZON_NS

    def snapshot(self) -> str:
        """The state as text: a fold that is given it goes on as this one."""
        return self._codec.write((self.last_ns, self._sessions))


class Folds:
    """The sessions of all keys, in the order in which they ended. Folds past the horizon are dropped."""

    def __init__(self) -> None:
        #: The folds by key, in the order in which their last sessions ended.
        self._folds: OrderedDict[str, Fold] = OrderedDict()

    def begin(self, key: str, connection_id: bytes) -> None:
        """Note that a session of the instance with this key begins before the next one ends."""
        self._folds.setdefault(key, Fold(key)).begin(connection_id)

    def take(self, summary: SessionSummary) -> list[SetFound]:
        """Take the next session that ended. Return the rules that it breaks together with earlier ones."""
        while self._folds and next(iter(self._folds.values())).is_over(summary.ended_ns):
            self._folds.popitem(last=False)
        found = []
        for key in keys(summary):
            fold = self._folds.setdefault(key, Fold(key))
            self._folds.move_to_end(key)
            found += fold.take(summary)
        return found

    def __len__(self) -> int:
        """Number of keys that are remembered."""
        return len(self._folds)
