"""Creates and their Inits: which streams there are, and at which addresses.

- A stream without partitions is partition 0 of its name.
- An Init answers the oldest create of its requester with that name, then one without a name. A partitioned create has
  an Init for each partition.
- After another address was given for a stream it is a new incarnation; that the old one answers again is the rule
  `address_changed`.
"""

from __future__ import annotations

from wirehouse_codecs.ockam.session.addresses import node_of
from wirehouse_codecs.ockam.session.errors import may_be_refused, was_refused
from wirehouse_codecs.ockam.session.judging import Frame, is_complete, open_request
from wirehouse_codecs.ockam.session.memory import MOST_PARTITIONS, SERVICES, Memory, Role, Stream, remember, short
from wirehouse_codecs.ockam.session.outcome import OTHER_NAME, Answers
from wirehouse_codecs.ockam.session.requests import Input, Request, RequestKind
from wirehouse_codecs.ockam.session.undecoded import CREATE, may_be_undecoded, was_undecoded
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
)


def judge_create(memory: Memory, frame: Frame, create: CreateRequest) -> None:
    """A create waits for its Init."""
    memory.counts.creates += 1
    is_right = frame.check_role(RequestKind.CREATE, Role.STREAM_SERVICE)
    _note_named(memory, create.stream_name, 1)
    open_request(memory, frame, RequestKind.CREATE, is_right, name=short(create.stream_name))


def judge_create_partitioned(memory: Memory, frame: Frame, create: CreatePartitionedRequest) -> None:
    """A partitioned create waits for an Init of each partition."""
    memory.counts.creates += 1
    is_right = frame.check_role(RequestKind.PARTITIONED, Role.STREAM_SERVICE)
    _note_named(memory, create.stream_name, create.partitions)
    if create.partitions:
        name = short(create.stream_name)
        open_request(memory, frame, RequestKind.PARTITIONED, is_right, name=name, partitions=create.partitions)


def _note_named(memory: Memory, name: str | None, partitions: int) -> None:
    if name is not None:
        for partition in range(min(partitions, MOST_PARTITIONS)):
            remember(memory.named, (short(name), partition), None)


def judge_init(memory: Memory, frame: Frame, init: CreateResponse) -> None:
    """An Init answers the create that fits it best."""
    name = short(init.stream_name)
    requests, key = memory.requests, (RequestKind.CREATE, frame.requester)
    request = requests.oldest(*key, "name", name)
    excused = request is None and was_refused(memory, frame, RequestKind.CREATE, name)
    if request is None and not excused:
        request = requests.oldest(*key, "name", None)
    if request is None and not excused and is_complete(memory, frame):
        excused = was_refused(memory, frame, RequestKind.CREATE, None) or was_undecoded(memory, frame, CREATE)
        request = None if excused else requests.oldest(*key)
    _take_init(memory, frame, init, name, 0, request, excused=excused)
    if request is not None:
        request.take(Input.ANSWER)
        requests.remove(request)


def judge_init_of_partition(memory: Memory, frame: Frame, init: CreatePartitionedResponse) -> None:
    """An Init answers one partition of a partitioned create."""
    name = short(init.stream_name)
    known = memory.addresses.get((name, init.partition))
    request = _partitioned_request(memory, frame, name, init.partition)
    if request is None:
        asked_for = memory.whole.get((frame.requester, name), 0)
        excused = may_be_undecoded(memory, frame, CREATE) or may_be_refused(memory, frame, name)
        if excused:
            pass
        elif known == frame.at and init.partition < asked_for:
            frame.break_rule("partition_not_answered", f"partition {init.partition} is answered again")
        elif 0 < asked_for <= init.partition and is_complete(memory, frame):
            asked = f"partition {init.partition} answers a create of {asked_for}"
            frame.break_rule("partition_not_answered", asked)
        _take_init(memory, frame, init, name, init.partition, None, excused=excused)
        return
    assert request.partitions is not None
    stream = memory.streams.get(frame.at)
    shared = stream is not None and stream.name == name and stream.partition != init.partition
    if init.partition >= request.partitions:
        asked = f"partition {init.partition} answers a create of {request.partitions}"
        frame.break_rule("partition_not_answered", asked)
    elif init.partition in request.answered:
        frame.break_rule("partition_not_answered", f"partition {init.partition} is answered again")
    elif shared:
        frame.break_rule("partition_not_answered", f"partition {init.partition} has the address of another")
    _take_init(memory, frame, init, name, init.partition, request)
    request.given = request.given or name
    if init.partition < request.partitions:
        request.answered.add(init.partition, init.partition)
    is_whole = next(request.missing, None) is None
    request.take(Input.ANSWER if is_whole else Input.PART)
    if is_whole:
        memory.requests.remove(request)
        remember(memory.whole, (frame.requester, name), request.partitions)


def _partitioned_request(memory: Memory, frame: Frame, name: str, partition: int) -> Request | None:
    """The create that an answer is for: the closest in name, and where the partition still waits."""
    key = (RequestKind.PARTITIONED, frame.requester)
    named = list(memory.requests.all(*key, "name", name))
    anonymous = list(memory.requests.all(*key, "name", None))
    nearest = [
        *named,
        *(request for request in anonymous if request.given == name),
        *(request for request in anonymous if request.given is None),
    ]
    waiting = (
        request for request in nearest if partition < (request.partitions or 0) and partition not in request.answered
    )
    request = next(waiting, None)
    excused = may_be_undecoded(memory, frame, CREATE) or may_be_refused(memory, frame, name)
    if request is None and is_complete(memory, frame) and not excused:
        request = next(iter(nearest), None) or memory.requests.oldest(*key)
    return request


def _take_init(
    memory: Memory,
    frame: Frame,
    init: CreateResponse | CreatePartitionedResponse,
    name: str,
    partition: int,
    request: Request | None,
    *,
    excused: bool = False,
) -> None:
    if request is None:
        frame.answers_nothing = True
    if init.extra:
        frame.break_rule("init_extra_bytes", f"{len(init.extra)} bytes")
    if request is None:
        if is_complete(memory, frame) and not excused:
            frame.break_rule("init_unasked", f"no create of {frame.requester} is open")
    else:
        frame.answers = Answers.of(request)
        _check_name(frame, name, request)
    if not frame.is_routed or frame.role in SERVICES:
        frame.break_rule("init_without_address", f"the return route is {frame.at or 'empty'}")
        return
    frame.stream_address = frame.at
    asked = None if request is None else request.name
    # Names and addresses are compared as they are sent: texts of addresses have escapes, long texts are hashes.
    sent = init.stream_name if asked == name else asked
    if sent and sent.encode() not in frame.address_sent:
        frame.break_rule("address_not_from_name", f"{frame.at} for {asked}")
    # Its client knows the stream by the name that it asked for.
    _learn(memory, frame, asked or name, partition)


def _check_name(frame: Frame, name: str, request: Request) -> None:
    expected = request.name if request.name is not None else request.given
    if expected is not None and name != expected:
        frame.ignored = OTHER_NAME
        frame.break_rule("create_other_name", f"{name!r} answers a create of {expected!r}")
    elif not name:
        frame.ignored = OTHER_NAME
        frame.break_rule("create_other_name", "the name is empty")


def _learn(memory: Memory, frame: Frame, name: str, partition: int) -> None:
    """The address of a stream."""
    known = memory.addresses.get((name, partition))
    former = None if known is None or known == frame.at else memory.streams.get(known)
    # Without a name it was forgotten since, and seen again.
    if former is not None and former.name is not None and node_of(known) == node_of(frame.at):
        former.replaced = True
    stream = memory.streams.get(frame.at)
    if stream is None:
        stream = Stream(name, partition)
        remember(memory.streams, frame.at, stream)
    elif stream.name is None:
        stream.name, stream.partition = name, partition
    check_address(memory, frame, stream)
    remember(memory.addresses, (name, partition), frame.at)


def check_address(memory: Memory, frame: Frame, stream: Stream) -> None:
    """An answer from the address of `stream`, which another address may have replaced."""
    if not stream.replaced:
        return
    stream.replaced = False
    assert stream.name is not None
    now = memory.addresses.get((stream.name, stream.partition))
    frame.break_rule("address_changed", f"{frame.at} still answers, {now} is the address since")
