"""What a connection of the Wallaroo connector protocol says, as rows of the log `silver.wallaroo`.

A row of kind `message` for each frame, `quarantine` for bytes that are none, `violation` for each broken rule, `credit`
where the balance turns; `session` and `stream` rows tell where these stand at the end of each window in which they
changed. Cookies leave here as keyed hashes, and texts without them.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.logs.rows import MESSAGE, QUARANTINE, Dialogue, Log, Start, Where, place_columns, schema
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
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
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import LOSES_FRAMING
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import End, Found, Outcome, UnsentAck
from wirehouse_codecs.wallaroo.session.outcome import Where as FrameWhere
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.session.streams import Stream
from wirehouse_codecs.wallaroo.session.summary import SessionSummary, summarise
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, mask
from wirehouse_codecs.wallaroo.wire.reader import Reader, Received

SESSION, STREAM, CREDIT = "session", "stream", "credit"
LOG_VERSION: Final = 3
#: Bytes of a keyed hash.
HASH_BYTES: Final = 16
#: From so many bytes on a run is read on the fast path: of fewer its start costs more.
COMPILED_FROM_BYTES: Final = 16 << 10
#: Characters of a name that are kept.
MOST_CHARACTERS: Final = 1024
#: Characters of all names of a connection's streams that are remembered for the rows of kind `stream`; one that would
#: be beyond stands in its message alone.
MOST_NAME_CHARACTERS: Final = 1 << 20
#: Cookies that texts are shown without. A connection has one; of one with more no text is shown.
MOST_COOKIES: Final = 16

_ID: Final = pa.decimal128(20, 0)
_REFERENCE: Final = pa.struct([("stream_id", _ID), ("stream_name", pa.string()), ("point_of_ref", _ID)])
MESSAGE_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("message_id", _ID),
        ("flags", pa.int32()),
        ("event_time", _ID),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("credits", pa.int64()),
        ("point_of_ref", _ID),
        ("streams", pa.list_(_REFERENCE)),
        ("success", pa.bool_()),
        ("stream_name", pa.string()),
        ("version", pa.string()),
        ("cookie_hash", pa.binary()),
        ("program_name", pa.string()),
        ("instance_name", pa.string()),
        ("text", pa.string()),
        ("address", pa.string()),
        ("sources", pa.list_(pa.struct([("name", pa.string()), ("address", pa.string())]))),
        ("ignored", pa.string()),
    ]
)
_UNSENT_TYPE: Final = pa.struct(
    [
        ("stream_id", _ID),
        ("message_id", _ID),
        ("byte_start", pa.int64()),
        ("byte_end", pa.int64()),
        ("arrived_at_ns", pa.int64()),
        ("capture_arrived_at_ns", pa.int64()),
        ("capture_id", pa.binary()),
        ("record_number", pa.int64()),
    ]
)
SESSION_TYPE: Final = pa.struct(
    [
        ("worker", pa.string()),
        ("state", pa.string()),
        ("version", pa.string()),
        ("program_name", pa.string()),
        ("instance_name", pa.string()),
        ("cookie_empty", pa.bool_()),
        ("cookie_hash", pa.binary()),
        ("initial_credits", pa.int64()),
        ("credits", pa.int64()),
        ("granted", pa.int64()),
        ("spent", pa.int64()),
        ("eos_messages", pa.int64()),
        ("accepted", pa.bool_()),
        ("partial", pa.bool_()),
        ("ended", pa.string()),
        ("ended_by", pa.string()),
        ("error_by", pa.string()),
        ("failed", pa.bool_()),
        ("started_at_ns", pa.int64()),
        ("ended_at_ns", pa.int64()),
        ("names", pa.list_(pa.struct([("stream_id", _ID), ("digest", pa.binary())]))),
        ("lacks_sent", pa.bool_()),
        ("sent", pa.list_(pa.struct([("stream_id", _ID), ("message_id", _ID)]))),
        ("unsent_acks", pa.list_(_UNSENT_TYPE)),
    ]
)
STREAM_TYPE: Final = pa.struct(
    [
        ("stream_name", pa.string()),
        ("state", pa.string()),
        ("nack_depth", pa.int64()),
        ("notifies_waiting", pa.int64()),
        ("messages", pa.int64()),
        ("unacked", pa.int64()),
        ("first_id", _ID),
        ("last_sent", _ID),
        ("last_acked", _ID),
        ("resume_point", _ID),
        ("program_name", pa.string()),
        ("instance_name", pa.string()),
    ]
)
CREDIT_TYPE: Final = pa.struct(
    [
        ("granted", pa.int64()),
        ("balance", pa.int64()),
        ("spent", pa.int64()),
        ("overdrawn", pa.int64()),
        ("zero_at_ns", pa.int64()),
    ]
)
#: Columns of the log, of which only the struct of the row's own kind is there.
SCHEMA: Final = schema(
    [
        ("stream_id", _ID),
        ("message", MESSAGE_TYPE),
        ("session", SESSION_TYPE),
        ("stream", STREAM_TYPE),
        ("credit", CREDIT_TYPE),
    ]
)


def starter(options: WallarooOptions, hash_key: bytes | None) -> Start:
    """Dialogues of a source with these options. Without a key no hash of a cookie is kept."""

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return Conversation(log, connection, f"{server.address} {server.port}", options, hash_key, snapshot)

    return start


def text_of(name: bytes) -> str:
    """A name as text; what is no UTF-8 stands as escapes."""
    return name[: 4 * MOST_CHARACTERS].decode("utf-8", "backslashreplace")[:MOST_CHARACTERS]


@dataclass(slots=True)
class _Credits:
    """What happened to the balance since credits were last granted."""

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
        #: Rows as they were told last: what has not changed since is not told again.
        self._told: dict[int | None, dict[str, Any]] = {}
        #: Sides that may have said something before the first bytes came; None = none came yet.
        self._unseen: list[Direction] | None = None
        #: Since when nobody knows which side sent first what comes, while no frames were read.
        self._doubt_ns: int | None = None
        self._fast = runner.Connection(Reader(options, started_late=self._late), options, self._new_session)
        if snapshot is not None:
            self._restore(json.loads(snapshot))
            self._told = self._rows()

    def _new_session(self, dialect: Dialect) -> Session:
        unseen = self._unseen or ()
        session = Session(
            dialect,
            self._options,
            started_late=self._late,
            unseen=unseen,
            cookie_hash=self._cookie_hash,
            peer_received=self._connection.peer_received,
        )
        session.memory.doubt_ns = self._doubt_ns
        return session

    @property
    def dialect(self) -> tuple[str | None, str | None]:
        """Name and reason, once they are known."""
        found = self._fast.reader.detection
        return (None, None) if found is None else (found.name, found.reason)

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no row yet."""
        return self._fast.reader.unread_from(direction)

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        self._notice_unseen()
        if sum(len(piece.data) for piece in pieces) < COMPILED_FROM_BYTES:
            for piece in pieces:
                self._take(self._fast.receive(piece.direction, piece.data, piece.place))
            return
        run = self._fast.run(pieces)
        plain = run.rows.filter(run.rows.column("plain"))
        self._notice_names(plain)
        messages = _messages(plain, pieces)
        told = 0
        for already, (row, read) in enumerate(sorted(run.read.items())):
            # Of the rows before this one all that weren't read are plain.
            self._add_messages(messages.slice(told, row - already - told))
            told = row - already
            self._tell(read)
        self._add_messages(messages.slice(told))
        self._count_run(run, pieces)

    def hole(self, hole: Hole) -> None:
        """Bytes that never came."""
        self._notice_unseen()
        self._take(self._fast.hole(hole.direction, hole.byte_end - hole.byte_start, hole.place))

    def doubt(self, place: Place) -> None:
        """Nobody knows which side sent first what comes next."""
        if self._fast.session is None:
            self._doubt_ns = place.arrived_at_ns
        else:
            self._fast.session.memory.doubt()

    def close(self, closed: Closed) -> None:
        """The connection has ended."""
        end = _ENDS.get(closed.how, End.CAPTURE_END)
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
            # It closed by a RST, or not at all: what it said last was sent by a host that had received so much.
            received = client.peer_received(client.next_byte)
        for found in session.end(end, closed.place, received):
            self._find(found, closed.place)
        if session.memory.credits is not None:
            self._turn(closed.place, 0, session.memory.credits)

    def _notice_unseen(self) -> None:
        """Before the first bytes: the sides of which nothing was captured that tells where theirs begin."""
        if self._unseen is None:
            sides = {side: self._connection.sides(side)[0] for side in Direction}
            self._unseen = [side for side in sides if sides[side].is_guessed]

    # Frames

    def _take(self, reads: Iterable[runner.Read]) -> None:
        for read in reads:
            self._tell(read)
            outcome = read.outcome
            if outcome is None:
                continue
            place = read.received.place
            if outcome.granted:
                self._turn(place, outcome.granted, outcome.credits)
            is_zero = bool(outcome.spent) and outcome.credits == 0
            self._spend(outcome.spent, int(_is_overdrawn(outcome)), place.arrived_at_ns if is_zero else None)

    def _tell(self, read: runner.Read) -> None:
        """The rows of a frame, or of bytes that are none."""
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
        """A dialect that isn't decoded: the row that says so; its bytes follow when the connection ends."""
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
        """Bytes that are no frame. Those that may hold a cookie stay in bronze alone: before OK, of HELLO, of ERROR."""
        raw = received.undecoded
        if not raw:
            return None
        early = received.direction is Direction.CLIENT and (outcome is None or not outcome.accepted)
        # Of a frame that was cut only the body is there, else its length comes first.
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
        # Only numbers and words of ours: to mask them would tell which word is a cookie.
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
                return {"credits": frame.credits, "streams": _references(streams), "sources": sources}
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
                return {"credits": frame.credits, "streams": _references(acks)}
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
        zeros = np.flatnonzero((spent > 0) & (balance == 0) & known)
        overdrawn = np.array([row for row, read in run.read.items() if _is_overdrawn(read.outcome)], np.int64)

        def place(row: int) -> Place:
            return run.read[row].received.place if row in run.read else pieces[piece[row]].place

        for begin, end in pairwise(sorted({0, *np.flatnonzero(granted).tolist(), len(granted)})):
            if granted[begin]:
                self._turn(place(begin), int(granted[begin]), int(balance[begin]) if known[begin] else None)
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

    def _turn(self, place: Place, granted: int, balance: int | None) -> None:
        """Tell what happened since the last grant."""
        since = self._credits
        told = {
            "granted": granted,
            "balance": balance,
            "spent": since.spent,
            "overdrawn": since.overdrawn,
            "zero_at_ns": since.zero_at_ns,
        }
        self._log.add(CREDIT, place, credit=told)
        self._credits = _Credits()

    # Entities

    def conclude(self) -> None:
        """A row of the session and of each stream that changed since it was told last."""
        rows = self._rows()
        place = self._connection.first
        for stream_id, row in rows.items():
            if self._told.get(stream_id) == row:
                continue
            if stream_id is None:
                self._log.add(SESSION, place, session=row)
            else:
                self._log.add(STREAM, place, stream_id=stream_id, stream=row)
        self._told = rows

    def _rows(self) -> dict[int | None, dict[str, Any]]:
        session = self._fast.session
        if session is None or session.memory.first_ns is None:
            return {}
        rows: dict[int | None, dict[str, Any]] = {None: self._session_row(session.memory)}
        return rows | {
            stream_id: self._stream_row(stream_id, stream) for stream_id, stream in session.memory.streams.items()
        }

    def _session_row(self, memory: Memory) -> dict[str, Any]:
        told = summarise(memory, self._connection.connection_id, self._worker)
        return {
            "worker": told.worker,
            "state": memory.state.value,
            "version": told.version,
            "program_name": None if told.program_name is None else text_of(told.program_name),
            "instance_name": None if told.instance_name is None else text_of(told.instance_name),
            "cookie_empty": told.cookie_empty,
            "cookie_hash": told.cookie_digest,
            "initial_credits": memory.initial_credits,
            "credits": memory.credits,
            "granted": memory.granted,
            "spent": memory.spent,
            "eos_messages": memory.eos_messages,
            "accepted": told.accepted,
            "partial": memory.partial,
            "ended": None if memory.ended is None else memory.ended.value,
            "ended_by": memory.ended_by,
            "error_by": _who(memory.errors),
            "failed": told.failed,
            "started_at_ns": told.started_ns,
            "ended_at_ns": None if memory.ended is None else told.ended_ns,
        } | ({} if memory.ended is None else self._ended_row(told))

    def _ended_row(self, told: SessionSummary) -> dict[str, Any]:
        """What only rules over several sessions ask for."""
        places = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
        return {
            "names": [{"stream_id": number, "digest": digest} for number, digest in told.streams],
            "lacks_sent": told.lacks,
            "sent": [{"stream_id": number, "message_id": last} for number, last in told.sent],
            "unsent_acks": [
                {"stream_id": number, "message_id": acked, "byte_start": where.byte_start, "byte_end": where.byte_end}
                | dict(zip(places, where.place.order, strict=True))
                for number, acked, where in told.unsent
            ],
        }

    def _stream_row(self, stream_id: int, stream: Stream) -> dict[str, Any]:
        session = self._fast.session
        assert session is not None
        memory = session.memory
        program, instance = memory.program_name, memory.instance_name
        return {
            "stream_name": self._names.get(stream_id),
            "state": stream.state.value,
            "nack_depth": stream.nacks,
            "notifies_waiting": stream.unanswered,
            "messages": stream.messages,
            "unacked": len(stream.unacked()) + stream.forgotten_unacked,
            "first_id": stream.first_id,
            "last_sent": stream.last_id,
            "last_acked": stream.last_acked,
            "resume_point": _known(stream.references, memory.dialect),
            "program_name": None if program is None else text_of(program),
            "instance_name": None if instance is None else text_of(instance),
        }

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON. It holds cookies and other bytes of the wire, so it is sealed where it is stored."""
        since = self._credits
        return json.dumps(
            {
                "version": LOG_VERSION,
                "reader": self._fast.reader.snapshot(),
                "session": None if self._fast.session is None else self._fast.session.snapshot(),
                "names": [[stream_id, name] for stream_id, name in self._names.items()],
                "credits": [since.spent, since.overdrawn, since.zero_at_ns],
                "cookies": sorted(cookie.hex() for cookie in self._cookies),
                "unseen": self._unseen,
                "doubt_ns": self._doubt_ns,
            },
            separators=(",", ":"),
        )

    def _restore(self, state: dict[str, Any]) -> None:
        if state.get("version") != LOG_VERSION:
            raise StateVersionError(what="wallaroo log", found=state.get("version"), expected=LOG_VERSION)
        reader, session = Reader(self._options, snapshot=state["reader"]), None
        if state["session"] is not None:
            assert reader.dialect is not None
            session = Session(
                reader.dialect,
                self._options,
                cookie_hash=self._cookie_hash,
                peer_received=self._connection.peer_received,
                snapshot=state["session"],
            )
        self._fast = runner.Connection(reader, self._options, self._new_session, session)
        self._names = dict(state["names"])
        self._cookies = {bytes.fromhex(cookie) for cookie in state["cookies"]}
        self._unseen = None if state["unseen"] is None else [Direction(side) for side in state["unseen"]]
        self._doubt_ns = state["doubt_ns"]
        self._name_characters = sum(map(len, self._names.values()))
        self._credits = _Credits(*state["credits"])


#: First bytes of HELLO and ERROR, by number and by letter.
_SECRET_TAGS: Final = frozenset(
    bytes([dialect.tags[kind]]) for dialect in DIALECTS.values() for kind in (Hello, Error) if kind in dialect.tags
)
_ENDS: Final = {"fin": End.CLOSED, "reset": End.RESET}


def _who(sides: Collection[Direction]) -> str | None:
    """A side, `both`, or nobody."""
    return "both" if len(sides) == len(Direction) else next(map(str, sides), None)


def _known(references: Sequence[int], dialect: Dialect) -> int | None:
    """The last reference, if it isn't the one that says that there is none."""
    return references[-1] if references and references[-1] != dialect.nothing_seen else None


def _hasher(key: bytes) -> Callable[[bytes], bytes]:
    return lambda cookie: hmac.digest(key, cookie, "sha256")[:HASH_BYTES]


def _is_overdrawn(outcome: Outcome | None) -> bool:
    return outcome is not None and any(found.rule.name == "credits_overdrawn" for found in outcome.findings)


def _messages(plain: pa.Table, pieces: Sequence[Data]) -> pa.RecordBatch:
    """Columns of the log for plain frames, of which `pieces` say where they stand."""

    def column(name: str) -> pa.Array:
        return plain.column(name).combine_chunks()

    at = column("piece")
    rows = len(at)
    message = {
        "kind": column("kind").cast(pa.string()),
        "message_id": column("message_id").cast(_ID),
        "flags": column("flags").cast(pa.int32()),
        "event_time": column("event_time"),
        "key": column("key"),
        "payload": column("payload"),
        "credits": column("credits").cast(pa.int64()),
        "point_of_ref": column("point_of_ref").cast(_ID),
        "streams": _acked(column("acks")),
        "success": pc.not_equal(column("success"), 0),
        "stream_name": pa.array([None if name is None else text_of(name) for name in column("stream_name").to_pylist()])
        if column("stream_name").null_count < rows
        else pa.nulls(rows, pa.string()),
    }
    fields = [message[field.name] if field.name in message else pa.nulls(rows, field.type) for field in MESSAGE_TYPE]
    columns = {
        "row_kind": pa.repeat(pa.scalar(MESSAGE), rows),
        **{name: told.take(at) for name, told in place_columns(piece.place for piece in pieces).items()},
        "direction": column("direction").cast(pa.string()),
        "byte_start": column("byte_start"),
        "byte_end": column("byte_end"),
        "stream_id": pc.coalesce(column("attributed_stream_id"), column("stream_id")).cast(_ID),
        "message": pa.StructArray.from_arrays(fields, fields=list(MESSAGE_TYPE)),
    }
    return pa.RecordBatch.from_pydict(columns)


def _acked(acks: pa.ListArray) -> pa.ListArray:
    """Pairs of ACKs as MESSAGE_TYPE has them."""
    pairs = acks.values
    ids = [pairs.field(name).cast(_ID) for name in ("stream_id", "point_of_ref")]
    references = pa.StructArray.from_arrays(
        [ids[0], pa.nulls(len(pairs), pa.string()), ids[1]], fields=list(_REFERENCE)
    )
    _, offsets = acks.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(_REFERENCE), len(acks), [acks.buffers()[0], offsets], acks.null_count, acks.offset, [references]
    )


def _references(listed: Iterable[tuple[int, str | None, int]]) -> list[dict[str, Any]]:
    return [
        {"stream_id": stream_id, "stream_name": name, "point_of_ref": reference}
        for stream_id, name, reference in listed
    ]


def summary_of(connection_id: bytes, session: dict[str, Any]) -> SessionSummary:
    """What the rules over several connections need of a session row that has ended."""
    return SessionSummary(
        connection_id=connection_id,
        worker=session["worker"],
        started_ns=session["started_at_ns"],
        ended_ns=session["ended_at_ns"],
        program_name=None if session["program_name"] is None else session["program_name"].encode(),
        instance_name=None if session["instance_name"] is None else session["instance_name"].encode(),
        version=session["version"],
        cookie_empty=session["cookie_empty"],
        cookie_digest=session["cookie_hash"],
        accepted=session["accepted"],
        failed=session["failed"],
        lacks=session["lacks_sent"],
        streams=tuple((int(name["stream_id"]), name["digest"]) for name in session["names"] or ()),
        sent=tuple((int(one["stream_id"]), int(one["message_id"])) for one in session["sent"] or ()),
        unsent=tuple(map(_unsent_of, session["unsent_acks"] or ())),
    )


def _unsent_of(row: dict[str, Any]) -> UnsentAck:
    place = Place(row["arrived_at_ns"], row["capture_arrived_at_ns"], row["capture_id"], row["record_number"])
    where = FrameWhere(Direction.SERVER, place, row["byte_start"], row["byte_end"])
    return UnsentAck(int(row["stream_id"]), int(row["message_id"]), where)
