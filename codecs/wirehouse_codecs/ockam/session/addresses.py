"""Addresses at the service, as routes give them: their text, what is there, and the node before them.

A stream is known by the Init that gave its address, and by the node before it in the route: equal addresses behind
different nodes are different streams. A route within one node has local hops only; there the address alone is the text.
Behind another node the text is `NODE=>ADDRESS`. A response may leave out the node that its request named.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from wirehouse_codecs.ockam.session.memory import Memory, Role, short
from wirehouse_codecs.ockam.session.requests import Request
from wirehouse_codecs.ockam.wire.routed import LOCAL, Address, Route

#: Between a node and an address there.
_BEHIND: Final = "=>"


def address_text(address: Address) -> str:
    """An address as stream addresses are written: a local one without its type."""
    return address.name if address.type == LOCAL else address.text


def locate(memory: Memory, address: Route, *, is_init: bool) -> tuple[str, Role]:
    """The text of the address that a route leads to, and what is there.

    A node that no Init named may be left out of the route; `is_init`: the message names it.
    """
    if not address:
        return "", Role.UNKNOWN
    last = short(address_text(address[-1]))
    text = last
    node = next((hop for hop in reversed(address[:-1]) if hop.type != LOCAL), None)
    if node is not None:
        behind = short(f"{node.text}{_BEHIND}{last}")
        if is_init or behind in memory.streams or last not in memory.streams:
            text = behind
    known = Role.STREAM if text in memory.streams else Role.UNKNOWN
    return text, memory.roles.get(last, known)


def node_of(address: str | None) -> str:
    """The node before an address; "" = there is none."""
    return (address or "").rpartition(_BEHIND)[0]


def sent_behind_a_node(memory: Memory, at: str, *key: Hashable) -> Request | None:
    """The oldest request with this key to `at` whose route named a node, which its response leaves out."""
    ending = _BEHIND + at
    return next((one for one in memory.requests.all(*key) if one.target.endswith(ending)), None)
