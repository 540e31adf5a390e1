"""For every rule calls that break it: what simulator.py adds when it is asked for a fault.

A fault breaks its rule for certain and no other, in the strict and in the tolerant reading. It has nodes, publishers
and subscribers of its own, and blocks of a ledger of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT, DUPLICATE_CODE, PROFILES, Service
from wirehouse_codecs.hiero.simulator.dialogue import NS_PER_MS, Client, Line, Stage, Talk
from wirehouse_codecs.hiero.simulator.ledger import Block, Ledger
from wirehouse_codecs.hiero.wire.items.kinds import encode_item
from wirehouse_codecs.hiero.wire.messages import EndOfStream
from wirehouse_codecs.tcp.endpoints import Endpoint

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig

#: The first block of these scenes, far from those of legal traffic; their numbers count from here.
FIRST_BLOCK: Final = 10**15
#: The last block that the node has verified when most scenes begin.
KNOWN: Final = 20
#: What another node has.
AVAILABLE: Final = 40
_ITEMS_BYTES: Final = 2000
_SET_BYTES: Final = 1000
_HOST: Final = 200
#: After this time nothing that was sent can have crossed anything, and a node no longer reports its error.
PAUSE_MS: Final = 1_000
#: After this time a publisher has read what was sent on its connections, and waited for an answer to a proof.
ANSWER_MS: Final = 2_000
#: After this what never came is missing.
PATIENCE_MS: Final = HieroOptions().patience_ms + 60_000
#: A tag and a length that reaches beyond the end, and an item of a reserved number.
MALFORMED: Final = b"\x0a\x05abc"
REFUSED: Final = encode_item(13, b"")


class Scene(Stage):
    """Two nodes, and who calls them."""

    def __init__(self, config: SimulatorConfig) -> None:
        small = replace(config, block_bytes=_ITEMS_BYTES, item_bytes_least=200, item_bytes_most=500)
        super().__init__(replace(small, set_bytes=_SET_BYTES, fault=None))
        self.node, self.other = (Endpoint(f"10.0.{_HOST}.{host}", DEFAULT_PORT) for host in (1, 2))
        self._ledger = Ledger(self.config, self.profile, FIRST_BLOCK)
        self._hosts: dict[str, Client] = {}
        self._lines: list[Line] = []
        self._calls = 0

    def block(self, number: int) -> Block:
        """A block by its number after the first."""
        return self._ledger.block(FIRST_BLOCK + number)

    def wait(self, ms: int) -> None:
        """Send nothing for a time."""
        self.pass_time(ms * NS_PER_MS)

    def line(self, address: str, node: Endpoint | None = None) -> Line:
        """A connection from a host."""
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = Client(self, address, _HOST + len(self._hosts))
        self._lines.append(host.connect(node or self.node))
        return self._lines[-1]

    def publisher(self, name: str = "A") -> Publishing:
        """A publisher's call on a connection of its own."""
        self._calls += 1
        return Publishing(self, self.line(f"10.1.{_HOST}.{ord(name)}").publish(f"N{_HOST}{ord(name)}", self._calls))

    def subscriber(self) -> Talk:
        """A subscriber that wants all blocks."""
        line = self.line(f"10.2.{_HOST}.1")
        return line.call(Service.SUBSCRIBE).subscribe(number_of(KNOWN))

    def known(self) -> None:
        """The node verifies a block."""
        self.publisher("K").block(KNOWN).ack(KNOWN).leave(KNOWN)
        self.wait(PAUSE_MS)

    def behind(self, offered: int) -> None:
        """The node lacks the blocks before the offered one, and the publisher leaves."""
        self.known()
        self.publisher().header(offered).behind(KNOWN).leave_behind(offered)

    def ask(self) -> None:
        """The node asks the other one for its status."""
        line = self.line(self.node.address, self.other)
        line.call(Service.STATUS).server_status(FIRST_BLOCK, number_of(AVAILABLE)).trailers()
        line.close()

    def fetch(self, start: int, end: int | None = None) -> Talk:
        """The node asks the other one for blocks."""
        call = self.line(self.node.address, self.other).call(Service.SUBSCRIBE)
        return call.subscribe(number_of(start), None if end is None else number_of(end))

    def deliver(self, talk: Talk, *numbers: int) -> Talk:
        """Blocks for who subscribed."""
        for number in numbers:
            talk.deliver(self.block(number))
        return talk

    def finish(self, *, late: bool) -> None:
        """All connections are closed. If it is `late`, somebody asks for the status after `patience_ms`."""
        for line in self._lines:
            line.close()
        if late:
            self.wait(PATIENCE_MS)
            line = self.line(f"10.3.{_HOST}.1", self.other)
            line.call(Service.STATUS).server_status(FIRST_BLOCK, number_of(AVAILABLE)).trailers()
            line.close()

    @property
    def node_error(self) -> str:
        """What the node calls an error of its own."""
        codes = self.profile.end_codes.values()
        return "ERROR" if "ERROR" in codes else "INTERNAL_ERROR"

    @property
    def source_error(self) -> str:
        """The status that subscribers get for an error that isn't theirs."""
        return "ERROR" if "ERROR" in self.profile.subscribe_codes.values() else "NOT_AVAILABLE"


class Publishing:
    """A publisher's call in the scene's numbers."""

    def __init__(self, scene: Scene, talk: Talk) -> None:
        self.scene, self.talk = scene, talk

    def header(self, number: int) -> Publishing:
        self.talk.header(self.scene.block(number))
        return self

    def items(self, number: int) -> Publishing:
        self.talk.items(self.scene.block(number))
        return self

    def rest(self, number: int) -> Publishing:
        self.talk.rest(self.scene.block(number))
        return self

    def block(self, number: int) -> Publishing:
        return self.header(number).rest(number)

    def ack(self, number: int) -> Publishing:
        self.talk.ack(number_of(number))
        return self

    def behind(self, number: int) -> Publishing:
        self.talk.behind(number_of(number))
        return self

    def duplicate(self, number: int) -> Publishing:
        self.talk.duplicate(number_of(number))
        return self

    def end(self, code: str, number: int) -> Publishing:
        self.talk.end(code, number_of(number))
        return self

    def leave(self, latest: int, code: str = "RESET") -> None:
        """The publisher ends its stream."""
        self.talk.end_stream(code, FIRST_BLOCK, number_of(latest))
        self.close()

    def leave_behind(self, latest: int) -> None:
        """The publisher ends its stream after Behind, unless that was the end."""
        if _behind_ends(self.scene):
            self.close()
        else:
            self.leave(latest, "TOO_FAR_BEHIND")

    def close(self) -> None:
        """The call is over, without another word."""
        self.talk.half_close().trailers()


def number_of(number: int) -> int:
    """A block's number by that of the scene; 0 is none."""
    return FIRST_BLOCK + number


def _behind_ends(scene: Scene) -> bool:
    return scene.profile.new and scene.profile.name != "B"


# Messages


def _malformed_message(scene: Scene) -> None:
    call = scene.publisher().block(KNOWN).ack(KNOWN)
    call.talk.client(MALFORMED).cancel()


def _item_refused(scene: Scene) -> None:
    call = scene.publisher().header(KNOWN)
    call.talk.sets([REFUSED])
    call.rest(KNOWN).ack(KNOWN).leave(KNOWN)


def _code_set(scene: Scene) -> None:
    call = scene.publisher().block(KNOWN).ack(KNOWN)
    call.talk.server(EndOfStream(0, number_of(KNOWN)))
    call.close()


# Calls


def _structure(scene: Scene) -> None:
    call, block = scene.publisher(), scene.block(KNOWN)
    call.talk.header(block).items(block).proof(block).sets(block.middle[:1]).block_end(block.number)
    call.ack(KNOWN).leave(KNOWN)


def _next(scene: Scene) -> None:
    scene.known()
    scene.publisher().header(KNOWN + 1).behind(KNOWN).leave_behind(KNOWN + 1)


def _duplicate(scene: Scene) -> None:
    scene.known()
    scene.publisher().header(KNOWN - 10).behind(KNOWN).leave_behind(KNOWN)


def _behind(scene: Scene) -> None:
    scene.known()
    scene.publisher().block(KNOWN + 10).ack(KNOWN + 10).leave(KNOWN + 10)


def _last_known_set(scene: Scene) -> None:
    scene.known()
    call = scene.publisher().header(KNOWN + 6)
    call.talk.behind(0)
    call.leave_behind(KNOWN + 6)


def _recheck(scene: Scene) -> None:
    scene.known()
    call = scene.publisher().header(KNOWN - 10).duplicate(KNOWN)
    if DUPLICATE_CODE in scene.profile.end_codes.values():
        call.close()
        scene.wait(ANSWER_MS)
        scene.publisher().header(KNOWN - 10).duplicate(KNOWN).close()
    else:
        call.header(KNOWN - 10).duplicate(KNOWN).leave(KNOWN)


def _resend_from_l1(scene: Scene) -> None:
    scene.known()
    call = scene.publisher().header(KNOWN + 6).behind(KNOWN)
    call.header(KNOWN + 3).behind(KNOWN).leave_behind(KNOWN + 6)


def _earliest(scene: Scene) -> None:
    call = scene.publisher().block(KNOWN).ack(KNOWN)
    call.talk.end_stream("RESET", number_of(KNOWN + 1), number_of(KNOWN))
    call.close()


def _too_far_code(scene: Scene) -> None:
    scene.known()
    scene.publisher().header(KNOWN + 6).behind(KNOWN).leave(KNOWN + 6, "RESET")


def _reenter(scene: Scene) -> None:
    call = scene.publisher().block(KNOWN).ack(KNOWN)
    call.header(KNOWN - 10).behind(KNOWN).leave_behind(KNOWN)


def _end_last(scene: Scene) -> None:
    call = scene.publisher().block(KNOWN).ack(KNOWN).end("SUCCESS", KNOWN)
    scene.wait(PAUSE_MS)
    call.header(KNOWN + 1).close()


def _ack_order(scene: Scene) -> None:
    call = scene.publisher().block(KNOWN).ack(KNOWN).block(KNOWN + 1).ack(KNOWN + 1)
    call.ack(KNOWN).leave(KNOWN + 1)


def _skip_pair(scene: Scene) -> None:
    call = scene.publisher().block(KNOWN).ack(KNOWN)
    call.talk.resend(number_of(KNOWN))
    call.leave(KNOWN)


def _ended_without_end_stream(scene: Scene) -> None:
    scene.publisher().header(KNOWN).items(KNOWN).close()


def _node_ended_without_status(scene: Scene) -> None:
    scene.publisher().block(KNOWN).ack(KNOWN).talk.trailers()


def _subscriber_order(scene: Scene) -> None:
    subscriber = scene.subscriber().forward(scene.block(KNOWN).opening)
    scene.deliver(subscriber, KNOWN, KNOWN + 1).cancel()


def _subscriber_gap(scene: Scene) -> None:
    scene.deliver(scene.subscriber(), KNOWN, KNOWN + 2, KNOWN + 3).cancel()


def _subscriber_range(scene: Scene) -> None:
    subscriber = scene.line(f"10.2.{_HOST}.1").call(Service.SUBSCRIBE)
    subscriber.subscribe(number_of(KNOWN), number_of(KNOWN + 1))
    scene.deliver(subscriber, KNOWN).status("SUCCESS").trailers()


def _subscriber_ended_without_status(scene: Scene) -> None:
    scene.deliver(scene.subscriber(), KNOWN).trailers()


def _block_not_acknowledged(scene: Scene) -> None:
    scene.known()
    call = scene.publisher().block(KNOWN + 1)
    scene.wait(ANSWER_MS)
    call.leave(KNOWN)


# Nodes


def _last_known(scene: Scene) -> None:
    scene.known()
    scene.publisher().header(KNOWN + 6).behind(KNOWN - 2).leave_behind(KNOWN + 6)


def _attempts(scene: Scene, gaps_ms: tuple[int, ...], closing: int) -> None:
    """A publisher comes back after each gap; the node is `closing` blocks further each time."""
    for attempt, gap_ms in enumerate((*gaps_ms, 0)):
        call = scene.publisher().header(KNOWN + 8 + attempt)
        call.behind(KNOWN + closing * attempt).leave_behind(KNOWN + 8 + attempt)
        scene.wait(gap_ms)


def _backoff(scene: Scene) -> None:
    _attempts(scene, (1000, 1000, 1000), 2)


def _target_closer(scene: Scene) -> None:
    _attempts(scene, (1000, 2000), 0)


def _behind_repeat(scene: Scene) -> None:
    scene.behind(KNOWN + 8)
    scene.ask()
    fetch = scene.deliver(scene.fetch(KNOWN + 1), KNOWN + 1)
    call = scene.publisher().block(KNOWN + 9).ack(KNOWN + 9)
    fetch.cancel()
    call.leave(KNOWN + 9)


def _recorded_target(scene: Scene) -> None:
    scene.behind(KNOWN + 8)
    scene.ask()
    early = scene.deliver(scene.fetch(KNOWN + 1, KNOWN + 4), *range(KNOWN + 1, KNOWN + 5))
    early.status("SUCCESS").trailers()
    scene.wait(ANSWER_MS)
    scene.deliver(scene.fetch(KNOWN + 5), *range(KNOWN + 5, KNOWN + 8)).cancel()
    scene.publisher().block(KNOWN + 8).ack(KNOWN + 8).leave(KNOWN + 8)


def _catchup_range(scene: Scene) -> None:
    scene.behind(KNOWN + 8)
    scene.ask()
    scene.deliver(scene.fetch(KNOWN - 1), *range(KNOWN - 1, KNOWN + 8)).cancel()
    scene.publisher().block(KNOWN + 8).ack(KNOWN + 8).leave(KNOWN + 8)


def _drop_unproven(scene: Scene) -> None:
    scene.known()
    scene.publisher("A").header(KNOWN + 1).items(KNOWN + 1).leave(KNOWN, "ERROR")
    scene.publisher("B").header(KNOWN + 1).items(KNOWN + 1).ack(KNOWN + 1).leave(KNOWN + 1)


def _source_error_only_if_last(scene: Scene) -> None:
    scene.known()
    going_on = scene.publisher("A").header(KNOWN + 1)
    subscriber = scene.deliver(scene.subscriber(), KNOWN)
    scene.publisher("B").block(KNOWN + 1).ack(KNOWN + 1).leave(KNOWN + 1, "ERROR")
    subscriber.status(scene.source_error).trailers()
    scene.wait(PAUSE_MS)
    going_on.rest(KNOWN + 1).ack(KNOWN + 1)
    again = scene.subscriber()
    going_on.leave(KNOWN + 1)
    again.cancel()


def _source_error_sent(scene: Scene) -> None:
    scene.known()
    subscriber = scene.deliver(scene.subscriber(), KNOWN)
    scene.publisher().header(KNOWN + 1).leave(KNOWN, "ERROR")
    scene.wait(PAUSE_MS)
    call = scene.publisher().block(KNOWN + 1).ack(KNOWN + 1)
    scene.deliver(subscriber, KNOWN + 1).cancel()
    call.leave(KNOWN + 1)


def _continue(scene: Scene) -> None:
    call = scene.publisher("A").block(KNOWN).ack(KNOWN)
    scene.publisher("B").block(KNOWN).ack(KNOWN).header(KNOWN + 1).leave(KNOWN, "ERROR")
    call.block(KNOWN + 1)
    scene.wait(ANSWER_MS)
    call.leave(KNOWN)


def _node_error_all(scene: Scene) -> None:
    scene.known()
    going_on = scene.publisher("A").header(KNOWN + 1)
    scene.publisher("B").header(KNOWN + 1).end(scene.node_error, KNOWN).close()
    scene.wait(PAUSE_MS)
    going_on.rest(KNOWN + 1).ack(KNOWN + 1).leave(KNOWN + 1)
    scene.publisher("B").block(KNOWN + 2).ack(KNOWN + 2).leave(KNOWN + 2)


def _node_error_subscribers(scene: Scene) -> None:
    scene.known()
    subscriber = scene.deliver(scene.subscriber(), KNOWN)
    scene.publisher().header(KNOWN + 1).end(scene.node_error, KNOWN).close()
    scene.wait(PAUSE_MS)
    call = scene.publisher().block(KNOWN + 1).ack(KNOWN + 1)
    scene.deliver(subscriber, KNOWN + 1).cancel()
    call.leave(KNOWN + 1)


def _retry_after_node_error(scene: Scene) -> None:
    scene.known()
    scene.publisher().header(KNOWN + 1).end(scene.node_error, KNOWN).close()


def _chain(scene: Scene) -> None:
    forked = Ledger(replace(scene.config, seed=scene.config.seed + 1), scene.profile, FIRST_BLOCK)
    call = scene.publisher().block(KNOWN).ack(KNOWN)
    call.talk.block(forked.block(number_of(KNOWN + 1)))
    call.ack(KNOWN + 1).leave(KNOWN + 1)


def _gap_not_filled(scene: Scene) -> None:
    scene.behind(KNOWN + 8)
    scene.ask()
    scene.deliver(scene.fetch(KNOWN + 1), KNOWN + 1).cancel()


def _catch_up_not_started(scene: Scene) -> None:
    scene.behind(KNOWN + 2)
    scene.ask()
    scene.deliver(scene.fetch(KNOWN + 1), KNOWN + 1).cancel()
    call = scene.publisher().block(KNOWN + 2).ack(KNOWN + 2)
    call.header(KNOWN + 10).behind(KNOWN + 2).leave_behind(KNOWN + 10)


def _catch_up_overrun(scene: Scene) -> None:
    scene.behind(KNOWN + 2)
    scene.ask()
    fetch = scene.deliver(scene.fetch(KNOWN + 1), KNOWN + 1)
    scene.publisher().block(KNOWN + 2).ack(KNOWN + 2).leave(KNOWN + 2)
    scene.wait(ANSWER_MS)
    scene.publisher().block(KNOWN + 3).ack(KNOWN + 3).leave(KNOWN + 3)
    scene.deliver(fetch, KNOWN + 2, KNOWN + 3).cancel()


def _last_block_again(scene: Scene) -> None:
    scene.known()
    scene.publisher().block(KNOWN).ack(KNOWN).leave(KNOWN)


def _ack_unoffered(scene: Scene) -> None:
    scene.known()
    scene.publisher().block(KNOWN + 1).ack(KNOWN + 1).ack(KNOWN + 5).leave(KNOWN + 1)


def _subscriber_not_resumed(scene: Scene) -> None:
    scene.known()
    scene.deliver(scene.subscriber(), KNOWN).status(scene.source_error).trailers()


@dataclass(frozen=True, slots=True)
class Fault:
    """What breaks a rule."""

    #: What happens.
    sentence: str
    scene: Callable[[Scene], None]
    #: Whether the rule is judged only after `patience_ms`.
    late: bool = False
    #: Profiles that have no words for it.
    lacking: frozenset[str] = frozenset()

    def stage(self, config: SimulatorConfig) -> Stage:
        """All that is sent."""
        scene = Scene(config)
        self.scene(scene)
        scene.finish(late=self.late)
        return scene


#: The oldest version has no EndStream, and no code for an error of the node.
_OLDEST: Final = frozenset({"A0"})
#: Profiles in which a publisher that wasn't captured may have proven a block.
_OLDER: Final = frozenset({"A0", "A", "A'"})
#: Behind ends the call.
_ENDED: Final = frozenset({"B0", "B1", "B2"})

#: By the name of the rule, in the order of rules.
FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "malformed_message": Fault("A publisher's message has a length beyond its end.", _malformed_message),
        "item_refused": Fault("A block has an item of a reserved number.", _item_refused),
        "code_set": Fault("The node's EndOfStream has the code 0.", _code_set),
        "structure": Fault("A publisher sends items of a block after its proof.", _structure),
        "next": Fault("The header of the next block is answered by Behind.", _next),
        "duplicate": Fault("The header of an old block is answered by Behind.", _duplicate),
        "behind": Fault("A block is accepted although those before it are missing.", _behind),
        "last_known_set": Fault("Behind names no block although the node has some.", _last_known_set),
        "recheck": Fault("A publisher offers the same block again after the duplicate answer.", _recheck),
        "resend_from_l1": Fault("After Behind a publisher goes on elsewhere.", _resend_from_l1, lacking=_ENDED),
        "earliest": Fault("An EndStream's earliest block is above its latest.", _earliest, lacking=_OLDEST),
        "too_far_code": Fault("An EndStream after Behind has the code RESET.", _too_far_code, lacking=_OLDEST | _ENDED),
        "reenter": Fault("A publisher's second header names an old block, and is answered by Behind.", _reenter),
        "end_last": Fault("A publisher sends a header after the node's EndOfStream.", _end_last),
        "ack_order": Fault("A block is acknowledged again after the next one.", _ack_order),
        "skip_pair": Fault("ResendBlock names a block that is acknowledged.", _skip_pair),
        "ended_without_end_stream": Fault("A publisher closes its side within a block.", _ended_without_end_stream),
        "node_ended_without_status": Fault("The node ends a call by its trailers alone.", _node_ended_without_status),
        "subscriber_order": Fault("A subscriber is sent a part of a block and then all of it.", _subscriber_order),
        "subscriber_gap": Fault("A subscriber isn't sent one of the blocks.", _subscriber_gap),
        "subscriber_range": Fault("A subscriber gets SUCCESS before the last block.", _subscriber_range),
        "subscriber_ended_without_status": Fault(
            "A node ends a subscription by its trailers alone.", _subscriber_ended_without_status
        ),
        "block_not_acknowledged": Fault("A whole block is never answered.", _block_not_acknowledged),
        "last_known": Fault("Behind names a block below one that was acknowledged.", _last_known),
        "backoff": Fault("A publisher comes back after the same time again and again.", _backoff),
        "behind_repeat": Fault("A second attempt is accepted before the node has caught up.", _behind_repeat),
        "target_closer": Fault("A node is further behind with each attempt.", _target_closer),
        "recorded_target": Fault("A node asks for fewer blocks than it lacks.", _recorded_target),
        "catchup_range": Fault("A node asks for blocks that it has.", _catchup_range),
        "drop_unproven": Fault(
            "A block is acknowledged whose publisher failed before its proof.", _drop_unproven, lacking=_OLDER
        ),
        "source_error_only_if_last": Fault(
            "A subscriber gets a source error while another source goes on.", _source_error_only_if_last
        ),
        "source_error_sent": Fault(
            "The last publisher fails, and a subscriber gets no source error.", _source_error_sent, lacking=_OLDEST
        ),
        "continue": Fault("After an error of one publisher the other isn't answered.", _continue, lacking=_OLDEST),
        "node_error_all": Fault("A node's error ends one call and not another.", _node_error_all, lacking=_OLDEST),
        "node_error_subscribers": Fault(
            "A node ends its publisher's call by its error and keeps a subscriber.",
            _node_error_subscribers,
            lacking=_OLDEST,
        ),
        "retry_after_node_error": Fault(
            "A publisher doesn't come back after the node's error.", _retry_after_node_error, late=True, lacking=_OLDEST
        ),
        "chain": Fault("A block holds another root than that of the block before it.", _chain),
        "gap_not_filled": Fault("A node fetches only one of the blocks that it lacks.", _gap_not_filled, late=True),
        "catch_up_not_started": Fault("A node that is behind asks nobody.", _catch_up_not_started, late=True),
        "catch_up_overrun": Fault("A node that has caught up is sent more.", _catch_up_overrun),
        "last_block_again": Fault("A publisher's block is acknowledged that another one had sent.", _last_block_again),
        "ack_unoffered": Fault("A block is acknowledged that nobody offered.", _ack_unoffered),
        "subscriber_not_resumed": Fault(
            "A subscriber doesn't come back after an error.", _subscriber_not_resumed, late=True
        ),
    }
)
#: The faults that each profile has words for.
FAULTS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {profile: tuple(name for name, fault in FAULTS.items() if profile not in fault.lacking) for profile in PROFILES}
)
