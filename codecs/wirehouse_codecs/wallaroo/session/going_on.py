"""Whether a worker goes on after a rule of `ENDS` was broken, instead of an ERROR or a close.

A worker takes the frames of its connector in their order. So it goes on if it answers the frame that broke the rule, or
one that the connector sent after it:

- an ACK names the message, by its id. The ids of earlier messages count for these.
- a NOTIFY_ACK is about a stream that no earlier NOTIFY named.
- an OK answers a HELLO, and the HELLO before it has had its own.

`note` remembers such frames of the connector, and `answered` finds the worker's answer. What the worker sent before it
had received the frame that broke the rule is none. Where bytes of the connector may be missing, or the worker itself
broke the rule, an ACK of the very message that broke it is the only answer.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.frames import Ack, Frame, Hello, Message, Notify, NotifyAck, Ok
from wirehouse_codecs.wallaroo.session.judging import Judgement, is_unaware
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.stream_frames import may_be_from_before, sent_before
from wirehouse_codecs.wallaroo.session.streams import Stream

#: Messages, and streams, from the broken rule on that are remembered; of more messages the newest are.
MOST_LATER: Final = 64


def note(memory: Memory, judgement: Judgement, frame: Frame | None) -> None:
    """Note a frame of the connector that breaks a rule of `ENDS`, or comes after one that does."""
    where = judgement.where
    if memory.violation is None or where.direction is not Direction.CLIENT:
        return
    if isinstance(frame, Hello) and memory.later_hello is None:
        memory.later_hello = where.byte_end
    elif isinstance(frame, Notify) and len(memory.later_notifies) < MOST_LATER:
        memory.later_notifies.append((frame.stream_id, where.byte_end))
    elif (
        isinstance(frame, Message)
        and frame.message_id is not None
        and _is_new(memory, frame.stream_id, frame.message_id)
    ):
        message = (frame.stream_id, frame.message_id, where.byte_end)
        memory.later_messages = [*memory.later_messages, message][-MOST_LATER:]


def _is_new(memory: Memory, stream_id: int | None, message_id: int) -> bool:
    """Whether an ACK of the message can be about no earlier one. In the text a message may be of any stream."""
    if stream_id is None:
        return len(memory.streams) <= MOST_LATER and not sent_before(memory, message_id, None)
    stream = memory.streams.get(stream_id)
    return stream is None or not (sent_before(memory, message_id, stream) or _may_be_old(memory, message_id, stream))


def _may_be_old(memory: Memory, message_id: int, stream: Stream) -> bool:
    return stream.notified and may_be_from_before(memory, message_id, stream)


def answered(memory: Memory, judgement: Judgement, frame: Frame | None) -> str | None:
    """What a frame of the worker answers although a rule of `ENDS` was broken; None = nothing, as far as is known."""
    if memory.violation is None or judgement.where.direction is not Direction.SERVER:
        return None
    waits_for_ok = memory.hello is not None and not memory.answered
    memory.answered |= isinstance(frame, Ok)
    if is_unaware(memory, judgement):
        return None
    if isinstance(frame, Ack) and _acks_violation(memory, frame):
        return "the worker acks it"
    if memory.violation.direction is Direction.SERVER or memory.may_miss(Direction.CLIENT):
        return None
    if isinstance(frame, Ok):
        return None if waits_for_ok else _answers_hello(memory, judgement)
    if memory.dialect.sink:
        return None
    if isinstance(frame, NotifyAck):
        return _answers_notify(memory, judgement, frame)
    return _acks_later(memory, judgement, frame) if isinstance(frame, Ack) else None


def _acks_violation(memory: Memory, ack: Ack) -> bool:
    """Whether the ACK names the message that broke the rule: by its id alone if the message belongs to no stream."""
    stream_id, message_id = memory.violated
    if message_id is None:
        return False
    if stream_id is not None:
        return (stream_id, message_id) in ack.acks
    return message_id in (pair.message_id for pair in ack.acks)


def _answers_hello(memory: Memory, judgement: Judgement) -> str | None:
    received = memory.later_hello is not None and judgement.peer_received() >= memory.later_hello
    if not received or memory.early_ok or judgement.is_late:
        return None
    return "the worker answers a HELLO by OK"


def _answers_notify(memory: Memory, judgement: Judgement, answer: NotifyAck) -> str | None:
    stream, received = memory.streams.get(answer.stream_id), judgement.peer_received()
    if memory.untracked or (stream is not None and stream.notified):
        return None
    if any(sid == answer.stream_id and byte_end <= received for sid, byte_end in memory.later_notifies):
        return f"the worker answers the NOTIFY of stream {answer.stream_id}"
    return None


def _acks_later(memory: Memory, judgement: Judgement, ack: Ack) -> str | None:
    if memory.untracked or memory.unattributed:
        return None
    received = judgement.peer_received()
    later = {(sid, message_id) for sid, message_id, byte_end in memory.later_messages if byte_end <= received}
    for stream_id, message_id in ack.acks:
        if later.isdisjoint({(stream_id, message_id), (None, message_id)}):
            continue
        stream = memory.streams.get(stream_id)
        if stream is None or not _may_be_old(memory, message_id, stream):
            return f"the worker acks message {message_id} of stream {stream_id} all the same"
    return None
