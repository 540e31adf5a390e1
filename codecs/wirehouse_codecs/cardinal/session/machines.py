"""The state machines of the protocol, as the docs draw them."""

from __future__ import annotations

from wirehouse_codecs.cardinal.session.assembly import TRANSITIONS, State
from wirehouse_codecs.core.machines import Machine

MACHINES = (Machine("block", State.UNKNOWN, TRANSITIONS, settled_when="nothing tracked is missing"),)
