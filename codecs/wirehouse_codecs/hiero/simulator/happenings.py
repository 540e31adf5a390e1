"""What happens to a node of the simulated network between two rounds, one kind after the other. All of it is legal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import DUPLICATE_CODE, Service
from wirehouse_codecs.hiero.simulator.dialogue import NS_PER_MS, S
from wirehouse_codecs.simulate.script import Ending

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.simulator.network import Network, Node, Publisher, Steps

#: The first gap before a publisher comes back, at least; each is twice the one before.
_GAP_NS: Final = 100 * NS_PER_MS
#: Number of rounds of the network in a gap: gaps are longer than what is sent meanwhile.
_ROUNDS_A_GAP: Final = 8
_ATTEMPTS: Final = 3
#: Number of blocks that a node misses when its publishers are away, for a short time and for a longer one.
_MISSED: Final = 3
_MISSED_LONG: Final = 7
#: Distance below the last block at which every node answers a block as a duplicate. Publishers that lost their place
#: send such blocks.
_FAR_BELOW: Final = HieroOptions().skipped_blocks + 2
#: Maximum size of what arrives within the time in which messages may cross.
_CROSSING_BYTES: Final = 50_000


class Happening(NamedTuple):
    """What happens, and whether it can to a node that has publishers."""

    act: Callable[[Network, Node], Steps]
    possible: Callable[[Network, Node], bool]


def _gap_ns(network: Network) -> int:
    return max(_GAP_NS, _ROUNDS_A_GAP * network.round_ns)


def _wait_until(network: Network, ns: int) -> None:
    network.now_ns = max(network.now_ns, ns)


def _next_of(node: Node) -> Publisher:
    """The publishers of a node take turns."""
    return node.publishers[node.next % len(node.publishers)]


def _return_subscribers(network: Network, node: Node) -> Steps:
    """Subscribers that got a source error go on at another node, or here."""
    without_node = [subscriber for subscriber in network.subscribers if subscriber.node is None]
    others = [other for other in network.served if other is not node and other.publishers]
    for subscriber in without_node:
        yield from network.subscribe(subscriber, others[0] if others else node)


def _end_subscriptions(network: Network, node: Node) -> Steps:
    codes = network.profile.subscribe_codes.values()
    code = "ERROR" if "ERROR" in codes else "NOT_AVAILABLE"
    for subscriber in list(node.subscribers):
        subscriber.talk.status(code).trailers()
        subscriber.forsake()
        subscriber.line.close()
        yield


# Publishers


def _publisher_fails(network: Network, node: Node) -> Steps:
    """A publisher ends within a block: the node takes the block from another one, or reports it to its subscribers."""
    publisher, block = _next_of(node), network.ledger.block(node.next)
    others = [other for other in node.publishers if other is not publisher]
    publisher.talk.header(block).sets(block.middle[:1])
    yield
    if others and network.skips:
        others[0].talk.header(block).skip(block.number)
    publisher.leave("ERROR")
    yield
    if not others:
        yield from _end_subscriptions(network, node)
    elif network.skips:
        others[0].talk.resend(block.number).header(block)
        yield from network.send(node, block, others[:1])
        yield from network.verify(node, block, others)
    _wait_until(network, network.now_ns + _gap_ns(network))
    publisher.join(node)
    yield
    if not others:
        yield from _return_subscribers(network, node)


def _publisher_times_out(network: Network, node: Node) -> Steps:
    publisher = _next_of(node)
    publisher.talk.header(network.ledger.block(node.next))
    _wait_until(network, network.now_ns + _gap_ns(network))
    publisher.talk.end("TIMEOUT", node.reported).trailers()
    publisher.forsake()
    publisher.line.close(S, Ending.RESET)
    yield
    _wait_until(network, network.now_ns + _gap_ns(network))
    publisher.join(node)
    yield


def _publisher_lost_its_place(network: Network, node: Node) -> Steps:
    """A publisher comes back with a block that the node has, and goes on with the next one."""
    publisher = _next_of(node)
    publisher.leave("RESET")
    yield
    talk = publisher.join(node)
    last = node.reported
    if network.skips and last % 2:
        talk.header(network.ledger.block(last)).skip(last)
        yield
        return
    block = network.ledger.block(last - _FAR_BELOW)
    talk.header(block).duplicate(last)
    if len(block.middle[0]) < _CROSSING_BYTES:
        # It was on its way.
        talk.sets(block.middle[:1])
    yield
    if DUPLICATE_CODE in network.profile.end_codes.values():
        talk.half_close().trailers()
        publisher.forsake()
        publisher.join(node, publisher.line)
    yield


def _node_goes_away(network: Network, node: Node) -> Steps:
    """The node wants a connection to end, and its publisher comes back on another one."""
    publisher = _next_of(node)
    publisher.line.go_away()
    publisher.leave("RESET")
    yield
    publisher.join(node)
    yield


# Nodes


def _node_misses_blocks(network: Network, node: Node) -> Steps:
    """Its publishers come back later and send what it lacks."""
    first, *others = list(node.publishers)
    for publisher in (first, *others):
        publisher.leave("RESET")
        yield
    for _ in range(_MISSED):
        yield from network.round(but=node)
    yield from network.fill(first, node)
    for publisher in others:
        publisher.join(node)
        yield


def _node_catches_up(network: Network, node: Node) -> Steps:
    """It asks another node for what it lacks, while a publisher tries again and again."""
    source = next(other for other in network.nodes if other is not node and other.publishers)
    first, *others = list(node.publishers)
    for publisher in (first, *others):
        publisher.leave("RESET")
        yield
    for _ in range(_MISSED_LONG):
        yield from network.round(but=node)
    line = node.outgoing.connect(source.endpoint)
    assert source.last is not None
    gap_ns = _gap_ns(network)
    fetch = None
    for attempt in range(_ATTEMPTS):
        network.affects(node=node.name, publisher=first.name)
        talk = first.join(node).header(network.ledger.block(network.newest)).behind(node.reported)
        first.leave("TOO_FAR_BEHIND") if not network.behind_ends else _end_refused(first, talk.trailers)
        failed_ns = network.now_ns
        yield
        if fetch is None:
            line.call(Service.STATUS).server_status(0, source.last).trailers()
            end = source.last if network.newest % 2 else None
            fetch = line.call(Service.SUBSCRIBE).subscribe(node.next, end)
        for _ in range(_MISSED_LONG // _ATTEMPTS if attempt + 1 < _ATTEMPTS else _MISSED_LONG):
            if node.next <= source.last:
                fetch.deliver(network.ledger.block(node.next))
                node.last = node.next
                yield
        _wait_until(network, failed_ns + (gap_ns << attempt))
    assert fetch is not None
    fetch.cancel()
    line.close()
    for publisher in (first, *others):
        publisher.join(node)
        yield
    assert node.last is not None
    yield from deliver(network, node, node.last)


def _end_refused(publisher: Publisher, trailers: Callable[[], object]) -> None:
    """Behind was the end of the call."""
    trailers()
    publisher.forsake()
    publisher.line.close()


def deliver(network: Network, node: Node, last: int) -> Steps:
    """Subscribers get the blocks that they lack, up to `last`."""
    for subscriber in node.subscribers:
        assert subscriber.needs is not None
        while subscriber.needs <= last:
            subscriber.talk.deliver(network.ledger.block(subscriber.needs))
            subscriber.needs += 1
            yield


def _node_fails(network: Network, node: Node) -> Steps:
    """The node ends all calls by an error of its own, and those of the publisher that comes back first again."""
    code = _error_of(network, node)
    assert code is not None
    block = network.ledger.block(node.next)
    publishers = list(node.publishers)
    publishers[0].talk.header(block).sets(block.middle[:1])
    yield
    for publisher in publishers:
        publisher.talk.end(code, node.reported).trailers()
        publisher.forsake()
        publisher.line.close(S)
        yield
    yield from _end_subscriptions(network, node)
    gap_ns = _gap_ns(network)
    first, *others = publishers
    failed_ns = network.now_ns
    for attempt in range(_ATTEMPTS):
        _wait_until(network, failed_ns + (gap_ns << attempt))
        network.affects(node=node.name, publisher=first.name)
        first.join(node).header(block).end(code, node.reported).trailers()
        first.forsake()
        first.line.close(S)
        failed_ns = network.now_ns
        yield
    _wait_until(network, failed_ns + (gap_ns << _ATTEMPTS))
    for publisher in (first, *others):
        publisher.join(node)
        yield
    yield from _return_subscribers(network, node)


def _error_of(network: Network, node: Node) -> str | None:
    """What the node calls an error of its own; None = the profile has no such code."""
    codes = set(network.profile.end_codes.values())
    wanted = ("PERSISTENCE_FAILED", "ERROR", "INTERNAL_ERROR")[node.next % 2 :]
    return next((code for code in wanted if code in codes), None)


# Subscribers


def _subscriber_returns(network: Network, node: Node) -> Steps:
    """A subscriber ends its call and asks again on the same connection."""
    subscriber = node.subscribers[0]
    subscriber.talk.cancel()
    subscriber.forsake()
    yield
    yield from network.subscribe(subscriber, node, subscriber.line)


def _always(network: Network, node: Node) -> bool:
    return True


HAPPENINGS: Mapping[str, Happening] = MappingProxyType(
    {
        # The oldest version has no EndStream.
        "publisher fails": Happening(_publisher_fails, lambda network, _: not network.profile.one_item),
        "subscriber returns": Happening(_subscriber_returns, lambda _, node: bool(node.subscribers)),
        "publisher lost its place": Happening(
            _publisher_lost_its_place, lambda _, node: node.last is not None and node.last >= _FAR_BELOW
        ),
        "node misses blocks": Happening(_node_misses_blocks, lambda network, _: network.more > _MISSED),
        "publisher times out": Happening(_publisher_times_out, _always),
        "node fails": Happening(_node_fails, lambda network, node: _error_of(network, node) is not None),
        "node goes away": Happening(_node_goes_away, _always),
        "node catches up": Happening(
            _node_catches_up,
            lambda network, node: (
                network.more > _MISSED_LONG and any(other.publishers for other in network.nodes if other is not node)
            ),
        ),
    }
)


def order(seed: int) -> list[Happening]:
    """All happenings, in an order of the seed's."""
    return Random(f"{seed} incidents").sample(list(HAPPENINGS.values()), len(HAPPENINGS))
