"""For every rule connections that break it: what simulator.py adds when it is asked for a fault.

A fault breaks its rule for certain and no other. It has a client, a service and streams of its own, and all its
requests are answered, unless that is the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from wirehouse_codecs.ockam.simulator.service import INDEX_SERVICE, NS_PER_MS, NS_PER_S, STREAM_SERVICE, Client, Talk
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
    base_payload,
)
from wirehouse_codecs.ockam.wire.routed import local
from wirehouse_codecs.simulate.script import Conversation

if TYPE_CHECKING:
    from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig

#: The stream of most scenes, its client, and an implementation's error for all that it can't take.
ORDERS: Final = "orders"
AUDITOR: Final = "auditor"
INVALID: Final = Error("Invalid request")
BETWEEN_NS: Final = NS_PER_S
#: 1, written longer than needed.
LONG_ONE: Final = b"\x81\x00"
NO_DATA: Final = b"\x00"


class Scene(Talk):
    """A connection on which a rule is broken. The message with an index holds the same in all scenes."""

    def __init__(self, client: FaultyClient, opened_ns: int) -> None:
        super().__init__(client.speech, client.requester, opened_ns)
        self._suffix = Random(f"{client.config.seed} fault").randbytes(8).hex()
        self.orders = self.address(ORDERS)
        self._pull_id = 0

    def address(self, name: str) -> str:
        """The address of a stream."""
        return f"ST_S_{name}_{self._suffix}"

    def open(self, name: str = ORDERS, address: str | None = None) -> None:
        """A stream is created, or found."""
        self.ask(CreateRequest(name), STREAM_SERVICE)
        self.answer(CreateResponse(name), address or self.orders)

    def push(self, request_id: int, data: bytes) -> None:
        """A push to the stream."""
        self.ask(PushRequest(request_id, data), self.orders)

    def confirm(self, request_id: int, index: int) -> None:
        """A push is saved."""
        self.answer(PushResponse(request_id, Status.OK, index), self.orders)

    def store(self, *indexes: int) -> None:
        """Messages are pushed and saved, each under an id of its own."""
        for index in indexes:
            self.push(index + 1, data_of(index))
            self.confirm(index + 1, index)

    def pull(self, index: int, limit: int = 10) -> None:
        """A pull from the stream."""
        self._pull_id += 1
        self.ask(PullRequest(self._pull_id, index, limit), self.orders)

    def pulled(self, *indexes: int) -> None:
        """The last pull is answered with these messages."""
        messages = tuple(StreamMessage(index, data_of(index)) for index in indexes)
        self.answer(PullResponse(self._pull_id, messages), self.orders)

    def get(self) -> None:
        """The client asks for its index."""
        self.ask(IndexGet(AUDITOR, ORDERS), INDEX_SERVICE)

    def got(self, index: int | None, client_id: str = AUDITOR) -> None:
        """Send an index of the stream."""
        self.answer(IndexResponse(client_id, ORDERS, index), INDEX_SERVICE)

    def resume(self) -> None:
        """A client that has no record begins."""
        self.get()
        self.got(0)

    def save(self, index: int) -> None:
        """The client saves an index."""
        self.ask(IndexSave(AUDITOR, ORDERS, index), INDEX_SERVICE)

    def open_partitions(self, asked: int, *answered: int) -> None:
        """A stream with partitions is created, and some of them answer."""
        self.ask(CreatePartitionedRequest(ORDERS, asked), STREAM_SERVICE)
        for partition in answered:
            self.answer(CreatePartitionedResponse(ORDERS, partition), self.partition(partition))

    def partition(self, partition: int) -> str:
        """The address of a partition."""
        return self.address(f"{ORDERS}_{partition}")


def data_of(index: int) -> bytes:
    """What the message with an index holds."""
    return b"order %d" % index


Act = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to break one rule."""

    #: What is wrong with the connections, one sentence.
    sentence: str
    #: What happens on each of them, one after the other.
    acts: tuple[Act, ...]


class FaultyClient(Client):
    """A client that does nothing but break a rule."""

    def __init__(self, config: SimulatorConfig, number: int, fault: Fault) -> None:
        super().__init__(config, number, "client", service=1)
        self._fault = fault

    def conversations(self) -> Iterator[Conversation]:
        opens_ns = self.config.start_time_ms * NS_PER_MS
        for act in self._fault.acts:
            scene = Scene(self, opens_ns)
            act(scene)
            opens_ns = scene.now_ns + BETWEEN_NS
            scene.close()
            yield self.converse(scene, iter(scene.take()))


# Frames and payloads


def wrong_length(scene: Scene) -> None:
    """A length is one byte too long, so that it leads into the next frame."""
    scene.open()
    heartbeat = scene.speech.write_routed((), (), b"")
    width = scene.speech.envelope.length_bytes
    scene.client((len(heartbeat) - width + 1).to_bytes(width, "big"), heartbeat[width:], heartbeat, heartbeat)


def bytes_after_message(scene: Scene) -> None:
    """A byte follows the routed message in its frame."""
    scene.open()
    push = scene.request(PushRequest(1, data_of(0)), scene.orders)
    width = scene.speech.envelope.length_bytes
    scene.client((len(push) - width + 1).to_bytes(width, "big"), push[width:], b"\x00")
    scene.store(1)


def unknown_protocol(scene: Scene) -> None:
    """The client asks a stream for something that no protocol has."""
    scene.open()
    scene.ask(base_payload("stream_peek", b"\x00"), scene.orders)
    scene.answer(INVALID, scene.orders)


def to_stranger(scene: Scene) -> None:
    """An empty PullResponse goes to someone who never asked."""
    scene.open()
    scene.server(scene.response(PullResponse(1, ()), scene.orders, onward=local("stranger")))


# Creates


def guessed_address(scene: Scene) -> None:
    """The client pushes to an address that it made up."""
    scene.push(1, data_of(0))
    scene.confirm(1, 0)


def unanswered_create(scene: Scene) -> None:
    """A create is not answered before the connection is closed."""
    scene.ask(CreateRequest(ORDERS), STREAM_SERVICE)


def other_name(scene: Scene) -> None:
    """The Init has another name than was asked for."""
    scene.ask(CreateRequest(ORDERS), STREAM_SERVICE)
    scene.answer(CreateResponse("invoices"), scene.orders)


def second_address(scene: Scene) -> None:
    """A stream gets another address, and answers from the first one again."""
    scene.open()
    scene.open(ORDERS, scene.address(f"{ORDERS}_2"))
    scene.pull(0)
    scene.pulled()


def one_address(scene: Scene) -> None:
    """Two names are answered from one address, which contains both."""
    both = scene.address(f"{ORDERS}_invoices")
    scene.open(ORDERS, both)
    scene.open("invoices", both)


def missing_partition(scene: Scene) -> None:
    """Two of three partitions answer."""
    scene.open_partitions(3, 0, 2)


def extra_bytes(scene: Scene) -> None:
    """Bytes follow the name in an Init."""
    scene.ask(CreateRequest(ORDERS), STREAM_SERVICE)
    scene.answer(CreateResponse(ORDERS, b"more"), scene.orders)


def service_address(scene: Scene) -> None:
    """The return route of an Init is the service."""
    scene.open(ORDERS, STREAM_SERVICE)


def second_init(scene: Scene) -> None:
    """One create is answered twice."""
    scene.open()
    scene.answer(CreateResponse(ORDERS), scene.orders)


def nameless_address(scene: Scene) -> None:
    """The address of a stream is random."""
    scene.open("invoices", scene.address("random"))


# Pushes


def second_confirm(scene: Scene) -> None:
    """A push is confirmed twice."""
    scene.open()
    scene.store(0)
    scene.confirm(1, 1)


def index_of_before(scene: Scene) -> None:
    """A push is confirmed with the index of a message on an earlier connection."""
    scene.open()
    scene.push(2, b"another order")
    scene.confirm(2, 0)


def lower_index(scene: Scene) -> None:
    """A message is confirmed with a lower index than one on an earlier connection."""
    scene.open()
    scene.store(3)


def id_for_other_data(scene: Scene) -> None:
    """Two messages are pushed under one id."""
    scene.open()
    scene.store(0)
    scene.push(1, data_of(1))
    scene.confirm(1, 1)


def unanswered_push(scene: Scene) -> None:
    """A push is not confirmed before the connection is closed."""
    scene.open()
    scene.push(1, data_of(0))


# Pulls


def unanswered_pull(scene: Scene) -> None:
    """A pull is not answered before the connection is closed."""
    scene.open()
    scene.pull(0)


def one_too_many(scene: Scene) -> None:
    """Three messages answer a pull with limit 2."""
    scene.open()
    scene.store(0, 1, 2)
    scene.pull(0, limit=2)
    scene.pulled(0, 1, 2)


def lower_than_asked(scene: Scene) -> None:
    """A pull from index 1 on is answered with message 0."""
    scene.open()
    scene.store(0, 1)
    scene.pull(1)
    scene.pulled(0, 1)


def other_data(scene: Scene) -> None:
    """A message is pulled with other data than was pushed on an earlier connection."""
    scene.open()
    scene.pull(0)
    scene.answer(PullResponse(1, (StreamMessage(0, b"another order"),)), scene.orders)


def from_nowhere(scene: Scene) -> None:
    """A message is pulled that was never pushed."""
    scene.open()
    scene.store(0)
    scene.pull(0)
    scene.pulled(0, 7)


def backwards(scene: Scene) -> None:
    """Messages come with the higher index first."""
    scene.open()
    scene.store(0, 1)
    scene.pull(0)
    scene.pulled(1, 0)


def passed_over(scene: Scene) -> None:
    """A response passes over a message that the next one has."""
    scene.open()
    scene.store(0, 1, 2)
    scene.pull(0)
    scene.pulled(1, 2)
    scene.pull(0)
    scene.pulled(0, 1, 2)


# Indexes


def index_of_other(scene: Scene) -> None:
    """The index of another client answers a GetIndex."""
    scene.open()
    scene.get()
    scene.got(0, client_id="somebody")


def no_record(scene: Scene) -> None:
    """The first GetIndex of a client is answered without an index."""
    scene.open()
    scene.get()
    scene.got(None)


def forgotten_save(scene: Scene) -> None:
    """A client saves 2, and gets 1."""
    scene.open()
    scene.store(0, 1)
    scene.resume()
    scene.pull(0)
    scene.pulled(0, 1)
    scene.save(2)
    scene.get()
    scene.got(1)


def unsaved_index(scene: Scene) -> None:
    """A client gets an index that it never saved, on the connection after that where it had none."""
    scene.open()
    scene.get()
    scene.got(5)


def saved_over_hole(scene: Scene) -> None:
    """A client pulls message 0, goes on from 2, and saves 3."""
    scene.open()
    scene.store(0, 1, 2)
    scene.resume()
    scene.pull(0, limit=1)
    scene.pulled(0)
    scene.pull(2)
    scene.pulled(2)
    scene.save(3)


def saved_ahead(scene: Scene) -> None:
    """A client saves 5 after message 1."""
    scene.open()
    scene.store(0, 1)
    scene.resume()
    scene.pull(0)
    scene.pulled(0, 1)
    scene.save(5)


def unanswered_get(scene: Scene) -> None:
    """A GetIndex is not answered before the connection is closed."""
    scene.open()
    scene.get()


def other_partition(scene: Scene) -> None:
    """A client pulls from partition 0, and saves for partition 1."""
    scene.open_partitions(2, 0, 1)
    scene.ask(PullRequest(1, 0, 10), scene.partition(0))
    scene.answer(PullResponse(1, ()), scene.partition(0))
    scene.ask(IndexSave(AUDITOR, ORDERS, 0, 1), INDEX_SERVICE)


# The rest


def long_number(scene: Scene) -> None:
    """A request id is written longer than needed."""
    scene.open()
    scene.ask(base_payload("stream_push", LONG_ONE + NO_DATA), scene.orders)
    scene.confirm(1, 0)


def push_to_service(scene: Scene) -> None:
    """The client pushes to the service instead of the stream."""
    scene.open()
    scene.ask(PushRequest(1, data_of(0)), STREAM_SERVICE)
    scene.answer(INVALID, STREAM_SERVICE)


# What comes before, on an earlier connection


def stored(*indexes: int) -> Act:
    """Messages are saved."""

    def act(scene: Scene) -> None:
        scene.open()
        scene.store(*indexes)

    return act


def began(scene: Scene) -> None:
    """A client asks for its index, and has none."""
    scene.open()
    scene.resume()


def _fault(act: Act, *before: Act) -> Fault:
    return Fault(act.__doc__ or "", (*before, act))


#: A fault for each rule, by the rule's name.
FAULTS: Mapping[str, Fault] = {
    "frame": _fault(wrong_length),
    "routed": _fault(bytes_after_message),
    "payload": _fault(unknown_protocol),
    "reply_to_unknown_address": _fault(to_stranger),
    "address_not_from_init": _fault(guessed_address),
    "create_not_answered": _fault(unanswered_create),
    "create_other_name": _fault(other_name),
    "address_changed": _fault(second_address),
    "address_shared": _fault(one_address),
    "partition_not_answered": _fault(missing_partition),
    "unknown_request_id": _fault(second_confirm),
    "duplicate_index": _fault(index_of_before, stored(0)),
    "index_decreases": _fault(lower_index, stored(5)),
    "request_id_reused": _fault(id_for_other_data),
    "push_unanswered": _fault(unanswered_push),
    "pull_not_answered": _fault(unanswered_pull),
    "too_many_messages": _fault(one_too_many),
    "below_requested_index": _fault(lower_than_asked),
    "data_changed": _fault(other_data, stored(0)),
    "index_never_confirmed": _fault(from_nowhere),
    "response_order": _fault(backwards),
    "pull_skips": _fault(passed_over),
    "index_for_other_key": _fault(index_of_other),
    "index_missing_record": _fault(no_record),
    "saved_index_lowered": _fault(forgotten_save),
    "index_never_saved": _fault(unsaved_index, began),
    "consumer_hole": _fault(saved_over_hole),
    "save_ahead": _fault(saved_ahead),
    "non_canonical": _fault(long_number),
    "init_extra_bytes": _fault(extra_bytes),
    "init_without_address": _fault(service_address),
    "init_unasked": _fault(second_init),
    "address_not_from_name": _fault(nameless_address),
    "index_not_answered": _fault(unanswered_get),
    "wrong_service": _fault(push_to_service),
    "partition_route_mixed": _fault(other_partition),
}
