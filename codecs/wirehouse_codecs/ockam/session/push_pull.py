"""Pushes and pulls at a stream, and their answers.

- An answer names the id of its request. Of pulls with one id that are open together, it answers the one that it fits
  best. Once messages were missed, a response that doesn't fit may answer a pull that was missed.
- Clients may use one id for several pushes. Once messages were missed it isn't sure which of them a confirm is for,
  unless ids rise.
- A push that is sent again once, directly after its confirm, may have crossed it: that is no reuse of its id.
- A push or pull to an address that no Init of the connection gave is marked: another connection may have had the Init.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from wirehouse_codecs.ockam.session.addresses import sent_behind_a_node
from wirehouse_codecs.ockam.session.creates import check_address
from wirehouse_codecs.ockam.session.errors import was_refused
from wirehouse_codecs.ockam.session.judging import Frame, is_complete, open_request
from wirehouse_codecs.ockam.session.memory import SERVICES, Memory, Role, Stream, remember
from wirehouse_codecs.ockam.session.outcome import ANSWERS_NOTHING, NOT_GIVEN, Answers
from wirehouse_codecs.ockam.session.requests import Input, Request, RequestKind, digest
from wirehouse_codecs.ockam.session.undecoded import may_be_undecoded, was_undecoded
from wirehouse_codecs.ockam.wire.messages import PullRequest, PullResponse, PushRequest, PushResponse, Status

# Pushes


def judge_push(memory: Memory, frame: Frame, push: PushRequest) -> None:
    """A push waits for its confirm."""
    memory.counts.pushes += 1
    is_right = _check_stream(memory, frame, RequestKind.PUSH)
    if is_right:
        _check_reuse(memory, frame, push)
    shares_id = _may_share_id(memory, frame, push.request_id)
    asked = {"request_id": push.request_id, "data": push.data, "shares_id": shares_id}
    open_request(memory, frame, RequestKind.PUSH, is_right, **asked)


def _may_share_id(memory: Memory, frame: Frame, number: int) -> bool:
    """Whether a push that was missed may have this id, and its confirm may come yet.

    If ids rise above all that were saved, none has it.
    """
    if not frame.partial and not may_be_undecoded(memory, frame, RequestKind.PUSH):
        return False
    saved = memory.saved.get((frame.requester, frame.at))
    return saved is None or saved.ids.count_from(number) > 0


def _check_reuse(memory: Memory, frame: Frame, push: PushRequest) -> None:
    number, key = push.request_id, (RequestKind.PUSH, frame.requester, frame.at, push.request_id)
    saved = memory.saved.get((frame.requester, frame.at))
    if saved is not None:
        last, saved.last = saved.last, None
        if number in saved.ids:
            if last != (number, digest(push.data)):
                frame.break_rule("request_id_reused", f"{number} was saved before")
            return
    earlier = memory.requests.oldest(*key)
    pushed = memory.unsaved.get((frame.requester, frame.at, number)) if earlier is None else earlier.digest
    if pushed is not None and pushed != digest(push.data):
        frame.break_rule("request_id_reused", f"{number} was pushed with other data before")


def judge_confirm(memory: Memory, frame: Frame, confirm: PushResponse) -> None:
    """A confirm reports whether a push was saved, and at which index."""
    request = _take_answer(memory, frame, RequestKind.PUSH, confirm.request_id)
    is_saved = confirm.status is Status.OK
    if request is not None and request.target:
        memory.note_saved(request, confirm.request_id, is_saved=is_saved)
    if request is not None:
        frame.answers = Answers.of(request, with_data=is_saved)
    stream = _answering_stream(memory, frame)
    if is_saved and frame.ignored is None:
        memory.counts.confirmed += 1
        if stream is not None:
            _check_rising(frame, stream, confirm.index)


def _check_rising(frame: Frame, stream: Stream, index: int) -> None:
    """Confirmed indexes rise; one that is known to be confirmed before is another rule, over all connections."""
    highest, confirmed = stream.highest, stream.confirmed
    if highest is not None and index < highest and index not in confirmed:
        frame.break_rule("index_decreases", f"{index} is confirmed after {highest}")
    stream.highest = index if highest is None else max(highest, index)
    confirmed.add(index, index)


# Pulls


def judge_pull(memory: Memory, frame: Frame, pull: PullRequest) -> None:
    """A pull waits for its response."""
    memory.counts.pulls += 1
    is_right = _check_stream(memory, frame, RequestKind.PULL)
    stream = memory.streams.get(frame.at)
    if stream is not None:
        memory.note_pulled(stream)
    asked = {"request_id": pull.request_id, "index": pull.index, "limit": pull.limit}
    open_request(memory, frame, RequestKind.PULL, is_right, **asked)


def judge_pull_response(memory: Memory, frame: Frame, pulled: PullResponse) -> None:
    """Messages from the index that was asked for on, as many as was asked for at most."""
    indexes = [message.index for message in pulled.messages]
    request = _take_answer(memory, frame, RequestKind.PULL, pulled.request_id, indexes)
    stream = _answering_stream(memory, frame)
    if frame.ignored is None:
        memory.counts.delivered += len(indexes)
    if any(one >= following for one, following in pairwise(indexes)):
        frame.break_rule("response_order", "the indexes do not rise")
    if stream is not None and stream.name is not None:
        of = (stream.name, stream.partition)
        frame.consumer = memory.clients.get((frame.requester, *of)) or memory.only_clients.get(of)
    if request is None:
        return
    assert request.index is not None
    assert request.limit is not None
    frame.answers = Answers.of(request)
    if frame.answers.unsure:
        return
    lowest = min(indexes, default=request.index)
    fits = len(indexes) <= request.limit and lowest >= request.index
    if not fits and (frame.partial or may_be_undecoded(memory, frame, RequestKind.PULL)):
        # It may answer a pull that was missed, with the same id.
        frame.answers = replace(frame.answers, unsure=True)
        return
    if len(indexes) > request.limit:
        frame.break_rule("too_many_messages", f"{len(indexes)} messages, the limit is {request.limit}")
    if lowest < request.index:
        frame.break_rule("below_requested_index", f"index {lowest}, requested from {request.index}")


def _pull_of(requests: Sequence[Request], indexes: Sequence[int]) -> Request:
    """The pull, of several with one id, that a response with these indexes answers: the closest that it fits."""
    asked = {(request.index or 0, request.limit or 0) for request in requests}
    if len(asked) == 1:
        return requests[0]

    def fits(request: Request) -> bool:
        index = request.index or 0
        return len(indexes) <= (request.limit or 0) and min(indexes, default=index) >= index

    fitting = list(filter(fits, requests))
    if not fitting:
        return requests[0]
    if len({(request.index, request.limit) for request in fitting}) > 1:
        # It may be that of another.
        for request in fitting:
            request.take(Input.GAP)
    return max(fitting, key=lambda request: request.index or 0)


# What both share


def _check_stream(memory: Memory, frame: Frame, kind: RequestKind) -> bool:
    """Whether a push or pull goes to a stream, and to one that an Init gave."""
    if not frame.check_role(kind, Role.STREAM):
        return False
    frame.stream_address = frame.stream
    if frame.role is Role.UNKNOWN:
        if not frame.at:
            if is_complete(memory, frame, memory.streams):
                frame.break_rule("address_not_from_init", "no Init gave the empty address")
            return True
        if is_complete(memory, frame, memory.streams):
            # An Init on another connection may have given it.
            frame.ignored = NOT_GIVEN
        remember(memory.streams, frame.at, Stream(None, 0))
    return True


def _take_answer(
    memory: Memory, frame: Frame, kind: RequestKind, request_id: int, indexes: Sequence[int] = ()
) -> Request | None:
    """The request that a PushConfirm or PullResponse answers. Without one it counts for nothing."""
    if frame.role in SERVICES:
        frame.break_rule("wrong_service", f"a response to a {kind} from the {frame.role}")
    narrow = (frame.at, request_id) if frame.stream else (request_id,)
    request = memory.requests.oldest(kind, frame.requester, *narrow)
    if request is None and len(narrow) > 1:
        request = sent_behind_a_node(memory, frame.at, kind, frame.requester, request_id)
    elif request is not None and kind is RequestKind.PULL:
        request = _pull_of(list(memory.requests.all(kind, frame.requester, *narrow)), indexes)
    if request is not None:
        request.take(Input.ANSWER)
        memory.requests.remove(request)
        frame.stream_address = request.target
        return request
    frame.stream_address = frame.stream
    frame.answers_nothing = True
    if not is_complete(memory, frame) or was_refused(memory, frame, kind, f"{frame.at} {request_id}"):
        return None
    if not was_undecoded(memory, frame, kind):
        frame.ignored = ANSWERS_NOTHING
        frame.break_rule("unknown_request_id", f"no {kind} of {frame.requester} with id {request_id} is open")
    return None


def _answering_stream(memory: Memory, frame: Frame) -> Stream | None:
    stream = None if frame.stream_address is None else memory.streams.get(frame.stream_address)
    if stream is not None:
        check_address(memory, frame, stream)
    return stream
