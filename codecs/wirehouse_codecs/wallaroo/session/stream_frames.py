"""The frames of streams: NOTIFY and its answer, MESSAGE, EOS_MESSAGE, ACK and NACK.

The states of a stream, and which of its ids were sent and acked, are in streams.py. This module has the effect of each
frame on them, and the rules that it breaks.

- In the text MESSAGE has no stream id: it belongs to the one stream that is open, and to none that can be known if
  several are.
- A side did not know what its host had not received. A connector that does not know a NACK goes on as before it.
- If frames of the connector were missed, a stream that was never seen counts as open.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.frames import Ack, EosMessage, Flag, Message, Nack, Notify, NotifyAck
from wirehouse_codecs.wallaroo.session.credits import grant, spend
from wirehouse_codecs.wallaroo.session.judging import Judgement, find, ignore
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import NOT_ABOVE_LAST_SEEN, Kind, Reference, State
from wirehouse_codecs.wallaroo.session.streams import AckVerdict, Action, Stream, StreamState, StreamStep, name_digest

#: Maximum number of remembered ACKs of ids that the session did not send.
MOST_UNSENT: Final = 16
#: States in which a stream may get a MESSAGE.
_LIVE: Final = (StreamState.OPEN, StreamState.RESET)

# NOTIFY


def take_notify(memory: Memory, judgement: Judgement, notify: Notify) -> None:
    """NOTIFY opens a stream."""
    judgement.stream_id = notify.stream_id
    stream = memory.stream(notify.stream_id)
    if stream is not None:
        _check_name(memory, judgement, notify, stream)
        stream.note_notify(notify.point_of_ref)
        if memory.dialect.answers_notify:
            stream.act(Action.NOTIFY_ASKED)
        else:
            received = judgement.peer_received()
            # A late one may answer a NACK that its host seems not to have received.
            owed = stream.owes(received) or judgement.is_late
            _check_reference(memory, judgement, notify, stream, received, owed=owed)
            step = stream.act(Action.NOTIFY)
            if not stream.assumed and not memory.partial and not owed:
                find(memory, judgement, step.rule, f"stream {notify.stream_id} is open", notify.stream_id)
        stream.assumed = False
    spend(memory, judgement, Kind.NOTIFY)


def _check_name(memory: Memory, judgement: Judgement, notify: Notify, stream: Stream) -> None:
    digest = name_digest(notify.stream_name)
    other = memory.names.get(digest, notify.stream_id)
    memory.note_name(digest, notify.stream_id)
    if stream.name not in (None, digest):
        find(memory, judgement, "stream_id_reused", f"stream {notify.stream_id} had another name", notify.stream_id)
    elif stream.listed not in (None, digest):
        listed = f"OK gives stream {notify.stream_id} another name"
        find(memory, judgement, "stream_id_reused", listed, notify.stream_id)
    elif other != notify.stream_id:
        find(memory, judgement, "stream_id_reused", f"the name was that of stream {other}", notify.stream_id)
    stream.name = digest


def _check_reference(
    memory: Memory, judgement: Judgement, notify: Notify, stream: Stream, received: int, *, owed: bool
) -> None:
    reference = notify.point_of_ref
    given = stream.given(received)
    asked = stream.answer(reference)
    if asked or owed or reference in given or stream.was_acked(reference, received):
        return
    if stream.assumed or memory.partial or memory.unattributed:
        return
    shown = f"reference {reference}, the worker gave {', '.join(str(value) for value in given[1:] if value)}"
    find(memory, judgement, "notify_reference_unexpected", shown.removesuffix(", the worker gave "), notify.stream_id)


def take_notify_ack(memory: Memory, judgement: Judgement, answer: NotifyAck) -> None:
    """The worker accepts or refuses a stream."""
    judgement.stream_id = answer.stream_id
    stream = _known(memory, judgement, answer.stream_id)
    if stream is None:
        return
    stream.note_answer(answer.point_of_ref, judgement.where.place.arrived_at_ns, accepts=answer.accepted)
    if not stream.waiting and (stream.assumed or _may_follow_unseen(memory, judgement)):
        stream.act(Action.NOTIFY_ASKED)
    step = stream.act(Action.ACCEPTED if answer.accepted else Action.REFUSED)
    if step.rule is not None:
        find(memory, judgement, step.rule, f"no NOTIFY of stream {answer.stream_id} waits", answer.stream_id)
        return
    if not answer.accepted:
        find(memory, judgement, "notify_refused", f"stream {answer.stream_id} is refused", answer.stream_id)
        return
    stream.references = [answer.point_of_ref]
    # 0, or what stands for it: nothing was seen yet, so the first id may be any.
    nothing = answer.point_of_ref in (0, memory.dialect.nothing_seen)
    stream.last_seen = None if nothing else answer.point_of_ref


# MESSAGE


def take_message(memory: Memory, judgement: Judgement, message: Message) -> None:
    """MESSAGE of a stream."""
    kept, stream = _stream_of(memory, judgement, message)
    is_old = stream is not None and sent_before(memory, message.message_id, stream)
    if stream is not None and judgement.stream_id is not None:
        _judge_message(memory, judgement, message, stream)
    elif not kept:
        find(memory, judgement, "message_unknown_stream", "no stream was ever notified")
    elif message.has(Flag.EOS):
        _end_any(memory)
    if judgement.next is not State.ENDED:
        _check_flags(memory, judgement, message)
    if judgement.next is State.ENDED and not (
        is_old or (stream is None and sent_before(memory, message.message_id, None))
    ):
        memory.violated = (judgement.stream_id, message.message_id)
    spend(memory, judgement, Kind.MESSAGE)


def sent_before(memory: Memory, message_id: int | None, stream: Stream | None) -> bool:
    """Whether the id may be acked for a message that broke no rule. Without a stream it may be in any stream."""
    streams = memory.streams.values() if stream is None else (stream,)
    return message_id is not None and any(one.may_have_sent(message_id) for one in streams)


def _stream_of(memory: Memory, judgement: Judgement, message: Message) -> tuple[bool, Stream | None]:
    """Whether the message may belong to some stream, and which one, if it is known."""
    if message.stream_id is not None:
        judgement.stream_id = message.stream_id
        return True, _known(memory, judgement, message.stream_id)
    notified = ((sid, stream) for sid, stream in memory.streams.items() if stream.notified)
    # More than two make no difference, and there may be very many.
    live = list(islice((sid for sid, stream in notified if stream.state in _LIVE), 2))
    if not live and not memory.partial and not memory.untracked:
        ended = list(islice((sid for sid, stream in memory.streams.items() if stream.notified), 2))
        if not ended:
            return False, None
        # All have ended, so whichever it is for, it is too late.
        live = ended if len(ended) == 1 else []
        if not live:
            find(memory, judgement, "message_closed_stream", "every stream has ended")
            return True, None
    if len(live) != 1 or memory.partial or memory.untracked:
        memory.unattributed = True
        return True, None
    judgement.stream_id = live[0]
    return True, memory.streams[live[0]]


def _end_any(memory: Memory) -> None:
    """Note that one of the open streams has ended, and it isn't known which: each may be notified again."""
    for stream in memory.streams.values():
        if stream.state is StreamState.OPEN:
            stream.assumed = True


def _judge_message(memory: Memory, judgement: Judgement, message: Message, stream: Stream) -> None:
    stream_id = judgement.stream_id
    last = message.has(Flag.EOS)
    stream.messages += 1
    step = _act(memory, stream, Action.LAST_MESSAGE if last else Action.MESSAGE)
    if step.rule is not None:
        find(memory, judgement, step.rule, f"MESSAGE for stream {stream_id}, which is {stream.state}", stream_id)
        return
    if step.ignored is not None:
        ignore(memory, judgement, step.ignored, stream_id)
    elif _repeats(memory, message, stream):
        ignore(memory, judgement, NOT_ABOVE_LAST_SEEN, stream_id)
        return
    elif last:
        stream.note_use()
    _note_sent(memory, judgement, message, stream)


def _repeats(memory: Memory, message: Message, stream: Stream) -> bool:
    """Whether the worker skips the message: its id isn't above the last one seen. Some ids it can't compare."""
    if not memory.dialect.skips_repeats or message.message_id is None or message.has(Flag.EOS):
        return False
    if message.message_id == 0 and memory.dialect.flags is not None:
        return False
    if message.message_id == memory.dialect.nothing_seen:
        stream.last_seen = None
        return False
    if stream.last_seen is not None and message.message_id <= stream.last_seen:
        return True
    stream.last_seen = message.message_id
    return False


def _note_sent(memory: Memory, judgement: Judgement, message: Message, stream: Stream) -> None:
    message_id = message.message_id
    if message_id is None:
        return
    stream_id = judgement.stream_id
    before = stream.remembered
    ephemeral = message.has(Flag.EPHEMERAL)
    twice = message_id in stream.ephemeral or (ephemeral and stream.sent.get(message_id) is not None)
    if twice and not memory.dialect.skips_repeats and judgement.ignored is None:
        find(memory, judgement, "ephemeral_id_repeated", f"id {message_id} of stream {stream_id}", stream_id)
    # Workers with flags drop boundaries and ends, so these are never acked.
    marks = memory.dialect.skips_repeats and (message.has(Flag.BOUNDARY) or message.has(Flag.EOS))
    awaits_ack, unstable = not marks and judgement.ignored is None, message.has(Flag.UNSTABLE_REFERENCE)
    is_sentinel = message_id == memory.dialect.nothing_seen
    sent_ns = judgement.where.place.arrived_at_ns
    stream.send(
        message_id, sent_ns, awaits_ack=awaits_ack, unstable=unstable, ephemeral=ephemeral, is_sentinel=is_sentinel
    )
    if ephemeral:
        stream.ephemeral.add(message_id)
    memory.count_ids(stream, before)
    if memory.has_too_many_ids:
        before = stream.remembered
        stream.forget()
        memory.count_ids(stream, before)


def _check_flags(memory: Memory, judgement: Judgement, message: Message) -> None:
    flags, allowed = message.flags, memory.dialect.flags
    if flags is None or allowed is None:
        return
    pair = next((pair for pair in memory.dialect.forbidden_flags if flags & pair == pair), None)
    if pair is not None:
        find(memory, judgement, "flags_not_allowed", f"flags {flags} hold both of {pair}", judgement.stream_id)
    elif flags & ~allowed:
        reserved = f"flags {flags}, of which {flags & ~allowed} is reserved"
        find(memory, judgement, "reserved_flags_set", reserved, judgement.stream_id)
    if message.has(Flag.BOUNDARY) and not memory.dialect.answers_notify and message.payload:
        beyond = f"{len(message.payload)} bytes after the id of a boundary"
        find(memory, judgement, "boundary_with_payload", beyond, judgement.stream_id)


# EOS_MESSAGE, ACK and NACK


def take_eos(memory: Memory, judgement: Judgement, eos: EosMessage) -> None:
    """EOS_MESSAGE ends a stream."""
    judgement.stream_id = eos.stream_id
    memory.eos_messages += 1
    stream = _known(memory, judgement, eos.stream_id)
    if stream is None:
        return
    step = _act(memory, stream, Action.EOS_MESSAGE)
    if step.ignored is not None:
        ignore(memory, judgement, step.ignored, eos.stream_id)
    else:
        stream.note_use()
    shown = f"EOS_MESSAGE for stream {eos.stream_id}, which is {stream.state}"
    find(memory, judgement, step.rule, shown, eos.stream_id)


def take_ack(memory: Memory, judgement: Judgement, ack: Ack) -> None:
    """ACK grants credits, and says up to which message streams are done."""
    grant(memory, judgement, ack.credits)
    for stream_id, message_id in ack.acks:
        stream = _known(memory, judgement, stream_id)
        if stream is not None:
            _judge_ack(memory, judgement, stream_id, message_id, stream)


def _judge_ack(memory: Memory, judgement: Judgement, stream_id: int, message_id: int, stream: Stream) -> None:
    step = stream.act(Action.ACK)
    if step.rule is not None:
        find(memory, judgement, step.rule, f"stream {stream_id} was never notified", stream_id)
        return
    if message_id == memory.dialect.nothing_seen:
        return
    before = stream.remembered
    verdict = stream.ack(message_id)
    memory.count_ids(stream, before)
    if verdict is AckVerdict.BACK:
        find(memory, judgement, "ack_goes_back", f"id {message_id}, after {stream.last_acked} was acked", stream_id)
    elif verdict is AckVerdict.NEVER_SENT and not may_be_from_before(memory, message_id, stream):
        if len(memory.unsent) < MOST_UNSENT:
            memory.unsent.append(Reference(stream_id, message_id, judgement.where))
    elif verdict is not AckVerdict.FORWARD:
        stream.ack_unseen(message_id, rises=memory.dialect.skips_repeats)
    _check_stable(memory, judgement, stream_id, message_id, stream, f"ACK of id {message_id}")


def _check_stable(
    memory: Memory, judgement: Judgement, stream_id: int, message_id: int, stream: Stream, shown: str
) -> None:
    """Judge whether the message is stable to which the worker points, in this session or in an earlier one."""
    if memory.dialect.answers_notify:
        return
    if stream.is_unstable(message_id):
        find(memory, judgement, "reference_unstable", shown, stream_id)
    elif not _may_be_of_this_session(memory, message_id, stream):
        memory.refer(Reference(stream_id, message_id, judgement.where))


def _may_be_of_this_session(memory: Memory, message_id: int, stream: Stream) -> bool:
    """Whether the stream may have sent the id in this session: too many ids to know, or not all were seen."""
    if stream.assumed or memory.partial or memory.unattributed:
        return True
    return stream.may_have_sent(message_id)


def may_be_from_before(memory: Memory, message_id: int, stream: Stream) -> bool:
    """Whether the id may have been sent before this session, or in bytes that weren't captured."""
    if stream.assumed or memory.partial or memory.unattributed or message_id in stream.references:
        return True
    # Without a NOTIFY_ACK the worker may go on with messages from before a reconnect.
    if not memory.dialect.answers_notify and stream.acked_at is None:
        return True
    given = (reference for reference in stream.references if reference != memory.dialect.nothing_seen)
    return memory.dialect.skips_repeats and any(message_id <= reference for reference in given)


def take_nack(memory: Memory, judgement: Judgement, nack: Nack) -> None:
    """NACK grants credits, and asks a stream for a NOTIFY from an earlier message on."""
    judgement.stream_id = nack.stream_id
    grant(memory, judgement, nack.credits)
    stream = _known(memory, judgement, nack.stream_id)
    if stream is None:
        return
    stream.note_use()
    step = stream.act(Action.NACK)
    find(memory, judgement, step.rule, f"stream {nack.stream_id} was never notified", nack.stream_id)
    # 0 may say that there is no reference.
    if nack.point_of_ref:
        shown = f"NACK to id {nack.point_of_ref}"
        _check_stable(memory, judgement, nack.stream_id, nack.point_of_ref, stream, shown)
    stream.ask(nack.point_of_ref, judgement.where.byte_end)


# Shared by several frames


def _known(memory: Memory, judgement: Judgement, stream_id: int) -> Stream | None:
    """The stream of an id for a frame that needs one; None = it can't be judged.

    If frames of the connector were missed, a stream that was never seen counts as open.
    """
    stream = memory.streams.get(stream_id)
    if stream is None and memory.untracked:
        return None
    stream = stream or memory.stream(stream_id)
    new = stream is not None and not stream.notified and stream.state is StreamState.INTRO
    if new and stream is not None and _may_follow_unseen(memory, judgement):
        stream.assumed = True
        stream.state = StreamState.OPEN
    return stream


def _may_follow_unseen(memory: Memory, judgement: Judgement) -> bool:
    """Whether frames that the connector sent before this one may be missing, or captured later."""
    answers = memory.unordered and judgement.where.direction is Direction.SERVER
    return answers or memory.may_miss(Direction.CLIENT)


def _act(memory: Memory, stream: Stream, action: Action) -> StreamStep:
    """Take a message or end of a stream. It counts as open if only bytes that weren't captured can have opened it."""
    step = stream.act(action)
    unseen = stream.assumed or (memory.may_miss(Direction.SERVER) and stream.state is StreamState.PENDING)
    if step.rule is None or not unseen:
        return step
    stream.state = StreamState.OPEN
    return stream.act(action)
