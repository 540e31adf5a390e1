"""Rule `data_changed`: whether the messages that were pushed and pulled at one index of a stream have one data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wirehouse_codecs.ockam.correlation.events import Found, Where, quoted
from wirehouse_codecs.ockam.rules import RULE


@dataclass(slots=True)
class Observation:
    """The data at an index, by the push that was confirmed with it or by a pull."""

    where: Where
    stream_address: str
    index: int
    #: The digest of its data; equal for equal data.
    digest: bytes
    confirmed: bool


class Compared:
    """Rule `data_changed` at one index of a stream: each observation against those before it.

    Pulled data is to be that of a confirmed push, else that of the first pull. That two pushes are confirmed with one
    index is `duplicate_index`: the data of both counts, also where a pull returns it before the second confirm comes.
    """

    def __init__(self) -> None:
        #: Whether the digests are those of confirmed pushes, and the digests.
        self._pushed = False
        self._digests: set[bytes] = set()

    def take(self, observations: Sequence[Observation]) -> list[Found]:
        """Compare the observations of the next window, in the order of arrival."""
        confirmed_at = {one.digest: at for at, one in enumerate(observations) if one.confirmed}
        # Pulled data may be that of a push whose confirm comes only later.
        return [
            found
            for at, observation in enumerate(observations)
            if (found := self._compare(observation, {each for each, last in confirmed_at.items() if last > at}))
        ]

    def _compare(self, observation: Observation, confirmed_later: set[bytes]) -> Found | None:
        digest, confirmed = observation.digest, observation.confirmed
        found = None
        differs = bool(self._digests) and digest not in self._digests and not (confirmed and self._pushed)
        if differs and not (self._digests if confirmed else {digest}) <= confirmed_later:
            other = "that of the confirmed push" if self._pushed or confirmed else "an earlier pull's"
            address = observation.stream_address
            shown = f"the data at index {observation.index} of {quoted(address)} is not {other}"
            found = Found(RULE["data_changed"], observation.where, shown, address)
        if confirmed:
            self._digests = self._digests | {digest} if self._pushed else {digest}
            self._pushed = True
        elif not self._digests:
            self._digests = {digest}
        return found


def data_changed(observations: Iterable[Observation]) -> list[Found]:
    """The findings of `Compared` in observations of any streams, in the order of arrival."""
    of_messages: dict[tuple[str, int], list[Observation]] = {}
    for observation in observations:
        of_messages.setdefault((observation.stream_address, observation.index), []).append(observation)
    found = [one for of_message in of_messages.values() for one in Compared().take(of_message)]
    return sorted(found, key=lambda one: (one.where.arrived_at_ns, one.where.record_number))
