"""The state machines of the protocol, as the docs draw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.bamboo.session.proposals import LIFE, SIDES, Life, SideState, side_unlisted, unlisted
from wirehouse_codecs.bamboo.wire import bymux
from wirehouse_codecs.core.machines import Machine


@dataclass(frozen=True, slots=True)
class _Listed:
    state: bymux.State


#: The tables, as the docs draw them.
MACHINES: Final = (
    Machine(
        "side of a stream",
        bymux.State.OPEN,
        {key: _Listed(state) for key, state in bymux.TRANSITIONS.items()},
        unlisted=lambda _, event: bymux.JUDGED[event].unlisted,
    ),
    Machine(
        "proposal",
        Life.UNUSED,
        LIFE,
        settled_when="all four messages of a cancel were sent",
        unlisted=unlisted,
        besides={(Life.PROPOSED, "the overlap rule"): Life.UNUSED},
    ),
    Machine("side of a proposal", SideState.OPEN, SIDES, unlisted=side_unlisted),
)
