"""The state machines of the protocol, as the docs draw them."""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.core.machines import Machine
from wirehouse_codecs.ockam.session.requests import TRANSITIONS, RequestState

MACHINES: Final = (Machine("request", RequestState.OPEN, TRANSITIONS),)
