"""The state machines of the protocol, as the docs draw them."""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.core.machines import Machine
from wirehouse_codecs.wallaroo.session.outcome import State
from wirehouse_codecs.wallaroo.session.streams import STREAM_TRANSITIONS, StreamState
from wirehouse_codecs.wallaroo.session.transitions import TALKING, TRANSITIONS, unlisted

MACHINES: Final = (
    Machine(
        "connection",
        State.CONNECTED,
        TRANSITIONS,
        unlisted=unlisted,
        besides={(state, "a rule that the worker must close after"): State.ENDED for state in TALKING}
        | {(state, "the connection ends"): State.DISCONNECTED for state in State if state is not State.DISCONNECTED},
    ),
    Machine("stream", StreamState.INTRO, STREAM_TRANSITIONS, settled_when="nothing is owed"),
)
