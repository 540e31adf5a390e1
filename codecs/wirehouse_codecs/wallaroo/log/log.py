"""One connection of the Wallaroo connector protocol, as rows of the log `silver.wallaroo`.

A `Conversation` gives the bytes of both sides to the fast path, which reads and judges them. It adds a row for each
frame, for bytes that are none, for each finding, and for each grant of credits. At the end of each window it adds a row
of the session, and of each stream, that changed.

Cookies leave here as keyed hashes, and texts without them.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.logs.rows import MESSAGE, QUARANTINE, Dialogue, Log, Start, Where
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole
from wirehouse_codecs.wallaroo.dialects import DIALECTS, Dialect
from wirehouse_codecs.wallaroo.fast import runner
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    EosMessage,
    Error,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    WorkersLeft,
)
from wirehouse_codecs.wallaroo.log.fast_rows import message_columns
from wirehouse_codecs.wallaroo.log.rows import MOST_CHARACTERS, references, session_row, stream_row, text_of
from wirehouse_codecs.wallaroo.log.schema import CREDIT, SESSION, STREAM
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import LOSES_FRAMING
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import Found, Outcome, State
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, mask
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import ReaderState, Received

SNAPSHOT_VERSION: Final = 14
#: Number of bytes of a keyed hash.
HASH_BYTES: Final = 16
#: Minimum number of bytes of a run for the fast path: for fewer its start costs more.
COMPILED_FROM_BYTES: Final = 16 << 10
#: Maximum number of characters of all stream names of a connection that are remembered for the rows of kind `stream`;
#: a name beyond is only in the row of its message.
MOST_NAME_CHARACTERS: Final = 1 << 20
#: Maximum number of cookies that are masked in texts. A connection has one; with more than these no text is shown.
MOST_COOKIES: Final = 16


def starter(options: WallarooOptions, hash_key: bytes | None) -> Start:
    """Dialogues of a source with these options. Without a key no hash of a cookie is kept."""

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return Conversation(log, connection, f"{server.address} {server.port}", options, hash_key, snapshot)

    return start


@dataclass(slots=True)
class _Credits:
    """Changes of the balance since credits were last granted."""

    spent: int = 0
    overdrawn: int = 0
    zero_at_ns: int | None = None


class Conversation:
    """One connection. A `Dialogue`."""

    def __init__(
        self,
        log: Log,
        connection: Connection,
        worker: str,
        options: WallarooOptions,
        hash_key: bytes | None,
        snapshot: str | None,
    ) -> None:
        self._log, self._connection, self._worker, self._options = log, connection, worker, options
        self._cookie_hash = None if hash_key is None else _hasher(hash_key)
        self._late = connection.began_before_capture
        #: Cookies that were seen: texts are shown without them.
        self._cookies: set[bytes] = set()
        self._names: dict[int, str] = {}
        self._name_characters = 0
        self._credits = _Credits()
        #: The session's and streams' rows that were added last: unchanged ones are not added again.
        self._written: dict[int | None, dict[str, Any]] = {}
        #: Sides of which bytes or a hole came; sides whose beginning may be missing.
        self._begun: set[Direction] = set()
        self._lacks: set[Direction] = set()
        #: Time since which the order of the two sides isn't known, if no frames were read yet.
        self._doubt_ns: int | None = None
        self._fast = runner.Connection(Reader(options, started_late=self._late), options, self._new_session)
        if snapshot is not None:
            self._restore(CODEC.read(snapshot))
            self._written = self._rows()

    def _new_session(self, dialect: Dialect) -> Session:
        session = Session(
            dialect,
            self._options,
            started_late=self._late,
            cookie_hash=self._cookie_hash,
            peer_received=self._connection.peer_received,
            is_late=self._connection.is_late,
        )
        session.memory.doubt_ns = self._doubt_ns
        session.memory.lacks |= self._lacks
        session.memory.follow(self._unseen)
        return session

    @property
    def _unseen(self) -> set[Direction]:
        """Sides of which nothing came: no captured packet of their own shows where their bytes begin."""
        return set(self._connection.guessed_sides) - self._begun

    @property
    def dialect(self) -> tuple[str | None, str | None]:
        """Name and reason, once they are known."""
        found = self._fast.reader.detection
        return (None, None) if found is None else (found.name, found.reason)

    def unread_from(self, direction: Direction) -> int:
        """The position of the first byte of `direction` that is in no row yet."""
        return self._fast.reader.unread_from(direction)

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        read = 0
        if len(self._begun) < len(Direction):
            for at, piece in enumerate(pieces):
                if piece.direction not in self._begun:
                    self._read(pieces[read:at])
                    self._begin(piece)
                    read = at
        self._read(pieces[read:] if read else pieces)

    def _begin(self, piece: Data) -> None:
        """The first bytes of a side come: before them some may be missing."""
        self._begun.add(piece.direction)
        if not piece.byte_start and self._connection.may_lack_beginning(piece.direction):
            self._lacks.add(piece.direction)
            self._fast.reader.doubt_beginning(piece.direction)
            if self._fast.session is not None:
                self._fast.session.memory.lacks.add(piece.direction)

    def _read(self, pieces: Sequence[Data]) -> None:
        self._follow_sides()
        if sum(len(piece.data) for piece in pieces) < COMPILED_FROM_BYTES:
            for piece in pieces:
                self._take(self._fast.receive(piece.direction, piece.data, piece.place))
            return
        run = self._fast.run(pieces)
        plain = run.rows.filter(run.rows.column("plain"))
        self._notice_names(plain)
        messages = message_columns(plain, pieces)
        added = 0
        for already, (row, read) in enumerate(sorted(run.read.items())):
            # All rows before this one that weren't read are plain.
            self._add_messages(messages.slice(added, row - already - added))
            added = row - already
            self._add_frame(read)
        self._add_messages(messages.slice(added))
        self._count_run(run, pieces)

    def hole(self, hole: Hole) -> None:
        """Bytes that never came."""
        self._begun.add(hole.direction)
        if self._fast.session is None:
            # Frames that came before it, and are judged only once the dialect is known, may rest on its bytes.
            self._lacks.add(hole.direction)
        self._follow_sides()
        self._take(self._fast.hole(hole.direction, hole.byte_end - hole.byte_start, hole.place))

    def doubt(self, place: Place) -> None:
        """The order in which the two sides sent the next bytes isn't known."""
        if self._fast.session is None:
            self._doubt_ns = place.arrived_at_ns
        else:
            self._fast.session.memory.doubt()

    def close(self, closed: Closed) -> None:
        """The connection has ended."""
        end = End.of(closed)
        self._take(self._fast.finish(closed.place, closed=end is not End.CAPTURE_END))
        for direction in Direction:
            rest = self._fast.reader.rest(direction)
            if rest is not None:
                where = Where(direction, rest.byte_start, rest.byte_end)
                self._quarantine(closed.place, where, rest.rule, "no frame can be told from here on", None)
        session = self._fast.session
        if session is None:
            return
        client = self._connection.client
        received = client.received_at_end(self._connection.server)
        if received is None:
            # The client closed by a RST, or not at all: its last bytes show how much its host had received.
            received = client.peer_received(client.next_byte)
        for found in session.end(end, closed.place, received, closed.side):
            self._find(found, closed.place)
        if session.memory.credits is not None:
            self._turn(closed.place, None, 0, session.memory.credits)

    def _follow_sides(self) -> None:
        """Let the session judge the next frames by the sides of which nothing is known now."""
        if self._fast.session is not None:
            self._fast.session.memory.follow(self._unseen)

    # Frames

    def _take(self, reads: Iterable[runner.Read]) -> None:
        for read in reads:
            self._add_frame(read)
            outcome = read.outcome
            if outcome is None:
                continue
            place = read.received.place
            if outcome.granted:
                self._turn(place, outcome.kind.value, outcome.granted, outcome.credits)
            is_zero = bool(outcome.spent) and outcome.credits == 0 and _streams(outcome)
            self._spend(outcome.spent, int(_is_overdrawn(outcome)), place.arrived_at_ns if is_zero else None)

    def _add_frame(self, read: runner.Read) -> None:
        """Add the rows of a frame, or of bytes that are none."""
        received, outcome = read
        where = Where(received.direction, received.byte_start, received.byte_end)
        if outcome is None:
            self._without_session(received, where)
            return
        frame, rule = received.decoded.frame, received.decoded.rule
        if isinstance(frame, Hello) and frame.cookie and len(self._cookies) <= MOST_COOKIES:
            self._cookies.add(frame.cookie)
        if frame is not None:
            self._message(outcome, frame, where)
        elif where.byte_end > where.byte_start and (rule is None or rule.name not in LOSES_FRAMING):
            self._quarantine(received.place, where, rule, received.decoded.reason, self._kept(received, outcome))
        for found in outcome.findings:
            self._find(found, received.place)

    def _without_session(self, received: Received, where: Where) -> None:
        """Add the row that reports an unsupported dialect. Its bytes follow when the connection ends."""
        rule = received.decoded.rule
        if rule is not None:
            self._log.find(rule, received.decoded.reason, received.place, where)
        else:
            self._quarantine(received.place, where, None, received.decoded.reason, self._kept(received, None))

    def _message(self, outcome: Outcome, frame: Frame, where: Where) -> None:
        content = self._content(frame) | {"kind": outcome.kind.value, "ignored": outcome.ignored}
        stream_id = outcome.stream_id if outcome.stream_id is not None else getattr(frame, "stream_id", None)
        self._log.add(MESSAGE, outcome.received.place, where, stream_id=stream_id, message=content)

    def _kept(self, received: Received, outcome: Outcome | None) -> bytes | None:
        """Bytes that are no frame, to be kept in the row; None = there are none, or they may hold a cookie.

        A cookie may be in bytes before OK, of HELLO, and of ERROR: these are only in bronze.
        """
        raw = received.undecoded
        if not raw:
            return None
        early = received.direction is Direction.CLIENT and (outcome is None or not outcome.accepted)
        # The bytes of a frame that was cut are its body, without its length.
        at = 0 if len(raw) < received.byte_end - received.byte_start else LENGTH_BYTES
        secret = early or raw[at : at + 1] in _SECRET_TAGS or any(cookie in raw for cookie in self._cookies)
        return None if secret else raw

    def _quarantine(self, place: Place, where: Where, rule: Rule | None, reason: str, raw: bytes | None) -> None:
        """Bytes that are no frame."""
        finding = {"rule": None if rule is None else rule.id, "severity": None, "message": reason}
        self._log.add(QUARANTINE, place, where, finding=finding, raw=raw)

    def _find(self, found: Found, place: Place) -> None:
        where = found.where
        if where is not None:
            place = where.place
        bytes_of = None if where is None else Where(where.direction, where.byte_start, where.byte_end)
        # The message has only numbers and words of our own: masking these would show which word is a cookie.
        self._log.find(found.rule, found.message, place, bytes_of, stream_id=found.stream_id)

    def _content(self, frame: Frame) -> dict[str, Any]:
        match frame:
            case Hello():
                return {
                    "version": frame.version_text()[:MOST_CHARACTERS],
                    "cookie_hash": self._cookie_hash(frame.cookie) if self._cookie_hash and frame.cookie else None,
                    "program_name": text_of(frame.program_name),
                    "instance_name": text_of(frame.instance_name),
                }
            case Ok():
                streams = [(s.stream_id, text_of(s.stream_name), s.point_of_ref) for s in frame.streams]
                sources = [{"name": text_of(s.name), "address": text_of(s.address)} for s in frame.sources]
                return {"credits": frame.credits, "streams": references(streams), "sources": sources}
            case Error():
                hidden = len(self._cookies) > MOST_COOKIES
                return {"text": None if hidden else text_of(mask(frame.reason, self._cookies))}
            case Notify():
                self._name(frame.stream_id, frame.stream_name)
                return {"stream_name": text_of(frame.stream_name), "point_of_ref": frame.point_of_ref}
            case NotifyAck():
                return {"success": frame.accepted, "point_of_ref": frame.point_of_ref}
            case Message():
                return {
                    "message_id": frame.message_id,
                    "flags": frame.flags,
                    "event_time": frame.event_time,
                    "key": frame.key,
                    "payload": frame.payload,
                }
            case Ack():
                acks = [(ack.stream_id, None, ack.message_id) for ack in frame.acks]
                return {"credits": frame.credits, "streams": references(acks)}
            case Nack():
                return {"credits": frame.credits, "point_of_ref": frame.point_of_ref}
            case Restart():
                return {"address": None if frame.address is None else text_of(frame.address)}
            case EosMessage() | WorkersLeft():
                return {}

    def _name(self, stream_id: int, name: bytes) -> None:
        session = self._fast.session
        if session is None or stream_id not in session.memory.streams:
            return
        text = text_of(name)
        characters = self._name_characters + len(text) - len(self._names.pop(stream_id, ""))
        if characters <= MOST_NAME_CHARACTERS:
            self._names[stream_id] = text
            self._name_characters = characters
        else:
            self._name_characters = characters - len(text)

    def _add_messages(self, messages: pa.RecordBatch) -> None:
        if messages.num_rows:
            self._log.add_batch(dict(zip(messages.schema.names, messages.columns, strict=True)), messages.num_rows)

    def _notice_names(self, plain: pa.Table) -> None:
        named = plain.filter(plain.column("stream_name").is_valid())
        for stream_id, name in zip(
            *(named.column(key).to_pylist() for key in ("stream_id", "stream_name")), strict=True
        ):
            self._name(stream_id, name)

    # Credits

    def _count_run(self, run: runner.Run, pieces: Sequence[Data]) -> None:
        """The turns of the balance in the rows of a run."""
        granted, spent, balance, piece = (
            run.rows.column(name).fill_null(0).to_numpy() for name in ("granted", "spent", "balance", "piece")
        )
        known = run.rows.column("balance").is_valid().to_numpy()
        streams = np.ones(len(spent), np.bool_)
        # Plain frames are those of a session that streams.
        streams[[row for row, read in run.read.items() if not _streams(read.outcome)]] = False
        zeros = np.flatnonzero((spent > 0) & (balance == 0) & known & streams)
        kinds = run.rows.column("kind")
        overdrawn = np.array([row for row, read in run.read.items() if _is_overdrawn(read.outcome)], np.int64)

        def place(row: int) -> Place:
            return run.read[row].received.place if row in run.read else pieces[piece[row]].place

        for begin, end in pairwise(sorted({0, *np.flatnonzero(granted).tolist(), len(granted)})):
            if granted[begin]:
                after = int(balance[begin]) if known[begin] else None
                self._turn(place(begin), kinds[begin].as_py(), int(granted[begin]), after)
            zero = zeros[(zeros >= begin) & (zeros < end)][:1]
            self._spend(
                int(spent[begin:end].sum()),
                int(((overdrawn >= begin) & (overdrawn < end)).sum()),
                place(int(zero[0])).arrived_at_ns if len(zero) else None,
            )

    def _spend(self, spent: int, overdrawn: int, zero_at_ns: int | None) -> None:
        since = self._credits
        since.spent += spent
        since.overdrawn += overdrawn
        if since.zero_at_ns is None:
            since.zero_at_ns = zero_at_ns

    def _turn(self, place: Place, kind: str | None, granted: int, balance: int | None) -> None:
        """Add the row of a grant by a frame of `kind`, with the changes of the balance since the last grant."""
        since = self._credits
        credit = {
            "kind": kind,
            "granted": granted,
            "balance": balance,
            "spent": since.spent,
            "overdrawn": since.overdrawn,
            "zero_at_ns": since.zero_at_ns,
        }
        self._log.add(CREDIT, place, credit=credit)
        self._credits = _Credits()

    # Entities

    def conclude(self) -> None:
        """Add a row of the session, and of each stream, that changed since its last row."""
        rows = self._rows()
        place = self._connection.first
        for stream_id, row in rows.items():
            if self._written.get(stream_id) == row:
                continue
            if stream_id is None:
                self._log.add(SESSION, place, session=row)
            else:
                self._log.add(STREAM, place, stream_id=stream_id, stream=row)
        self._written = rows

    def _rows(self) -> dict[int | None, dict[str, Any]]:
        session = self._fast.session
        if session is None or session.memory.first_ns is None:
            return {}
        memory = session.memory
        waits = memory.state is State.STREAMING and memory.ended is None
        is_dry = waits and memory.credits is not None and memory.credits <= 0
        zero_at_ns = self._credits.zero_at_ns if is_dry else None
        own = session_row(memory, self._connection.connection_id, self._worker) | {"zero_at_ns": zero_at_ns}
        rows: dict[int | None, dict[str, Any]] = {None: own}
        for stream_id, stream in memory.streams.items():
            rows[stream_id] = stream_row(memory, stream, self._names.get(stream_id))
        return rows

    # Carried state

    def snapshot(self) -> str:
        """The state as text. It holds cookies and other bytes of the wire, so it is sealed where it is stored."""
        memory = None if self._fast.session is None else self._fast.session.memory
        return CODEC.write(
            Carried(
                self._fast.reader,
                memory,
                self._names,
                self._credits,
                self._cookies,
                self._begun,
                self._lacks,
                self._doubt_ns,
            )
        )

    def _restore(self, carried: Carried) -> None:
        reader, session = Reader(self._options, state=carried.reader), None
        if carried.memory is not None:
            session = Session(
                carried.memory.dialect,
                self._options,
                cookie_hash=self._cookie_hash,
                peer_received=self._connection.peer_received,
                is_late=self._connection.is_late,
                state=carried.memory,
            )
        self._fast = runner.Connection(reader, self._options, self._new_session, session)
        self._names, self._credits, self._cookies = carried.names, carried.credits, carried.cookies
        self._begun, self._lacks, self._doubt_ns = carried.begun, carried.lacks, carried.doubt_ns
        self._name_characters = sum(map(len, self._names.values()))


@dataclass(frozen=True, slots=True)
class Carried:
    """The state that a conversation carries from window to window."""

    reader: ReaderState
    memory: Memory | None
    names: dict[int, str]
    credits: _Credits
    cookies: set[bytes]
    begun: set[Direction]
    lacks: set[Direction]
    doubt_ns: int | None


CODEC: Final = SnapshotCodec(Carried, what="wallaroo connection", version=SNAPSHOT_VERSION)

#: First bytes of HELLO and ERROR, by number and by letter.
_SECRET_TAGS: Final = frozenset(
    bytes([dialect.tags[kind]]) for dialect in DIALECTS.values() for kind in (Hello, Error) if kind in dialect.tags
)


def _hasher(key: bytes) -> Callable[[bytes], bytes]:
    return lambda cookie: hmac.digest(key, cookie, "sha256")[:HASH_BYTES]


def _is_overdrawn(outcome: Outcome | None) -> bool:
    return outcome is not None and any(found.rule.name == "credits_overdrawn" for found in outcome.findings)


def _streams(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.state is State.STREAMING
