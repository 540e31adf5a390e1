"""Indexes that clients save at the index service and get from it.

An index response answers the oldest GetIndex of its requester that it can be about. Where its bytes have two readings,
the one that fits that request is taken. A service may answer a SaveIndex too.
"""

from __future__ import annotations

from wirehouse_codecs.ockam.rules import RULE
from wirehouse_codecs.ockam.session.judging import Frame, is_complete, open_request
from wirehouse_codecs.ockam.session.memory import IndexKey, Memory, Role, remember, short
from wirehouse_codecs.ockam.session.outcome import ANSWERS_NOTHING, OTHER_KEY, Answers, Found
from wirehouse_codecs.ockam.session.requests import Input, Request, RequestKind
from wirehouse_codecs.ockam.session.undecoded import INDEX, may_be_undecoded, was_undecoded
from wirehouse_codecs.ockam.wire.messages import IndexGet, IndexResponse, IndexSave, Kind


def judge_get(memory: Memory, frame: Frame, get: IndexGet) -> None:
    """A GetIndex waits for its response."""
    key = _note_client(memory, frame, get)
    known = memory.keys.get((frame.at, *key))
    least = None if known is None else known.least
    is_right = frame.check_role(RequestKind.GET, Role.INDEX_SERVICE)
    open_request(memory, frame, RequestKind.GET, is_right, key=key, least=least)


def judge_save(memory: Memory, frame: Frame, save: IndexSave) -> None:
    """A SaveIndex waits for nothing; what is answered from now on is at least what it saves."""
    key = _note_client(memory, frame, save)
    if not frame.check_role(Kind.INDEX_SAVE, Role.INDEX_SERVICE):
        return
    known = memory.saved_index(frame.at, key)
    known.raise_to(save.index)
    known.saved_at = known.saved_at or frame.where


def judge_index(memory: Memory, frame: Frame, response: IndexResponse) -> None:
    """An index response answers a GetIndex."""
    if frame.role in (Role.STREAM_SERVICE, Role.STREAM):
        frame.break_rule("wrong_service", f"an index from the {frame.role}")
    request = _get_of(memory, frame, response)
    assert isinstance(frame.message, IndexResponse)
    key = _note_client(memory, frame, frame.message)
    if request is None:
        frame.answers_nothing = True
        _note_unasked(memory, frame, key)
        if is_complete(memory, frame) and not _is_saved(memory, frame, key) and not was_undecoded(memory, frame, INDEX):
            frame.ignored = ANSWERS_NOTHING
            frame.break_rule("index_for_other_key", f"no GetIndex of {frame.requester} is open")
        return
    request.take(Input.ANSWER)
    memory.requests.remove(request)
    frame.answers = Answers.of(request)
    if request.key != key:
        frame.ignored = OTHER_KEY
        frame.break_rule("index_for_other_key", f"{_key_text(key)} answers {_key_text(request.key)}")
        return
    _check_index(memory, frame, request, key, frame.message.index)


def _note_unasked(memory: Memory, frame: Frame, key: IndexKey) -> None:
    """The connection speaks of a stream by an index for which no request is known."""
    _, name, partition = key
    remember(memory.named, (name, partition or 0), None)
    if frame.stream_address is None:
        remember(memory.unplaced, (name, partition or 0), None)


def mixed_routes(memory: Memory) -> list[Found]:
    """Clients that saved for a partition while only others of the stream were pulled from. Nothing may be missed."""
    found: list[Found] = []
    for (_, client, name, partition), key in memory.keys.items():
        pulled = memory.pulled.get(name)
        if key.saved_at is None or partition is None or pulled is None:
            continue
        if partition >= pulled.floor and partition not in pulled:
            message = f"{client} saves for partition {partition} of {name} and pulls only from others"
            found.append(Found(RULE["partition_route_mixed"], key.saved_at, message))
    return found


def _get_of(memory: Memory, frame: Frame, response: IndexResponse) -> Request | None:
    """The GetIndex that is answered. The reading of the response that fits it becomes the message of the frame."""
    readings = [response] if frame.also is None else [response, frame.also]
    oldest = memory.requests.oldest(RequestKind.GET, frame.requester)
    if oldest is None:
        return None
    for reading in readings:
        if oldest.key == _key_of(reading):
            frame.message = reading
            return oldest
    for reading in readings:
        request = memory.requests.oldest(RequestKind.GET, frame.requester, _key_of(reading))
        if request is not None:
            frame.message = reading
            return request
    for reading in readings:
        if _is_saved(memory, frame, _key_of(reading)):
            frame.message = reading
            return None
    return oldest if is_complete(memory, frame) and not may_be_undecoded(memory, frame, INDEX) else None


def _is_saved(memory: Memory, frame: Frame, key: IndexKey) -> bool:
    """Whether a SaveIndex was sent that the service may answer too."""
    known = memory.keys.get((frame.at, *key))
    return known is not None and known.saved_at is not None


def _check_index(memory: Memory, frame: Frame, request: Request, key: IndexKey, index: int | None) -> None:
    # A missed GetIndex for the same key has the same answers.
    is_sure = frame.answers is not None and not frame.answers.unsure and not frame.partial
    if request.least is not None and (index or 0) < request.least and is_sure:
        frame.break_rule("saved_index_lowered", f"{index}, after {request.least}")
    elif index is None:
        frame.break_rule("index_missing_record", f"no index for {_key_text(key)}")
    known = memory.saved_index(request.target, key)
    if index is not None:
        known.raise_to(index)


def _note_client(memory: Memory, frame: Frame, message: IndexGet | IndexSave | IndexResponse) -> IndexKey:
    """Remember who the client of the requester is, and name the stream's address; what the message is about."""
    key = _key_of(message)
    client, name, partition = key
    stream = (name, partition or 0)
    frame.stream_address = memory.addresses.get(stream)
    if message.kind is not Kind.INDEX_RESPONSE:
        remember(memory.clients, (frame.requester, *stream), client)
        only = memory.only_clients.get(stream, client)
        remember(memory.only_clients, stream, client if only == client else None)
        if frame.stream_address is None:
            remember(memory.unplaced, stream, None)
    return key


def _key_of(message: IndexGet | IndexSave | IndexResponse) -> IndexKey:
    return short(message.client_id), short(message.stream_name), message.partition


def _key_text(key: IndexKey | None) -> str:
    assert key is not None
    client, name, partition = key
    return f"{client!r} on {name!r}" + ("" if partition is None else f", partition {partition}")
