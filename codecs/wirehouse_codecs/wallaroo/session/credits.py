"""Credits: the balance, and the frame since which the connector waits for more.

OK sets the balance, OK, ACK and NACK grant credits, NOTIFY and MESSAGE take one each. The balance is what was granted
less what was spent, so overdrawn credits make it negative. It is unknown (None) before OK and after bytes were missed.
"""

from __future__ import annotations

from wirehouse_codecs.wallaroo.session.judging import Judgement, find
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import Kind, State


def grant(memory: Memory, judgement: Judgement, count: int) -> None:
    """The worker grants credits. Grants before OK, which sets the balance, don't count."""
    if memory.credits is None and memory.state is State.HANDSHAKE:
        return
    memory.granted += count
    judgement.granted += count
    if memory.credits is None:
        return
    memory.credits += count
    if count:
        memory.dry = None
        run_dry(memory, judgement)


def run_dry(memory: Memory, judgement: Judgement) -> None:
    """Note that the connector, without a credit, waits from here on. For a sink or an ended session it needs none."""
    waits = memory.state in (State.HANDSHAKE, State.STREAMING) and judgement.next is not State.ENDED
    if waits and not memory.dialect.sink and memory.credits is not None and memory.credits <= 0:
        memory.dry = judgement.where


def spend(memory: Memory, judgement: Judgement, kind: Kind) -> None:
    """NOTIFY and MESSAGE take a credit each; before OK there is none."""
    if memory.state is State.HANDSHAKE:
        return
    memory.spent += 1
    if memory.credits is None:
        return
    if memory.credits <= 0 and judgement.next is not State.ENDED and memory.state is not State.RESTARTED:
        find(memory, judgement, "credits_overdrawn", f"{kind} at a balance of {memory.credits}", judgement.stream_id)
    memory.credits -= 1
    if memory.credits == 0:
        run_dry(memory, judgement)
