"""Errors of the service, which name neither the request that they are about nor why it failed.

An error answers the oldest request to its address. If that request is answered after all, the error was for the next.
"""

from __future__ import annotations

from wirehouse_codecs.ockam.session.addresses import sent_behind_a_node
from wirehouse_codecs.ockam.session.judging import Frame, is_complete
from wirehouse_codecs.ockam.session.memory import Memory, Role, remember
from wirehouse_codecs.ockam.session.outcome import ANSWERS_NOTHING, Answers
from wirehouse_codecs.ockam.session.requests import Input, Request, RequestKind, RequestState
from wirehouse_codecs.ockam.wire.messages import Error


def judge_error(memory: Memory, frame: Frame, _: Error) -> None:
    """An error closes the oldest request to where it comes from."""
    if frame.role is Role.INDEX_SERVICE:
        frame.break_rule("wrong_service", "an error from the index service")
    key = ("to", frame.requester, frame.at) if frame.is_routed else ("from", frame.requester)
    request = memory.requests.oldest(*key)
    if request is None and frame.is_routed:
        request = sent_behind_a_node(memory, frame.at, "from", frame.requester)
    if request is None:
        frame.answers_nothing = True
        frame.ignored = ANSWERS_NOTHING if is_complete(memory, frame) else None
        return
    others = any(other is not request for other in memory.requests.all(*key))
    if request.state is RequestState.UNSURE or (others and request.kind is RequestKind.OTHER):
        # It may be the error of a later one.
        for later in memory.requests.all(*key):
            later.take(Input.GAP)
    _refuse(memory, request, others=others)
    frame.answers = Answers.of(request, with_data=False)


def _refuse(memory: Memory, request: Request, *, others: bool) -> None:
    """An error closes a request; if `others` were open too, it may be about one of them."""
    request.take(Input.ERROR)
    memory.requests.remove(request)
    if request.kind is RequestKind.PUSH and request.request_id is not None:
        memory.note_saved(request, request.request_id, is_saved=False)
    if others:
        what = request.name if request.request_id is None else f"{request.target} {request.request_id}"
        remember(memory.refused, (request.requester, request.kind, what), request.target)


def was_refused(memory: Memory, frame: Frame, kind: RequestKind, what: str | None) -> bool:
    """Whether an answer fits a request that an error closed: the error was for the next one to the same address."""
    target = memory.refused.pop((frame.requester, kind, what), None)
    if target is None:
        return False
    to = list(memory.requests.all("to", frame.requester, target))
    if to:
        _refuse(memory, to[0], others=len(to) > 1)
    return True


def may_be_refused(memory: Memory, frame: Frame, name: str) -> bool:
    """Whether a partitioned create that an error closed may be what is answered."""
    key = (frame.requester, RequestKind.PARTITIONED)
    return (*key, name) in memory.refused or (*key, None) in memory.refused
