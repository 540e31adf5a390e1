"""Rows of calls: what each has of its call, and what the connection knows of a message's time.

`CallRows` writes to the log for the calls of one connection, or of one gRPC log, which has no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.log.rows import BLOCK, CALL
from wirehouse_codecs.hiero.profiles import Service
from wirehouse_codecs.hiero.rules import RULE, RULES
from wirehouse_codecs.hiero.session.call_state import Rpc
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.logs.rows import MESSAGE, QUARANTINE, Log, Where
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Connection

CORRELATION_ID: Final = "hiero-correlation-id"
_ORDER: Final = {rule.name: number for number, rule in enumerate(RULES)}


class CallRows:
    """Adds rows of calls to `log`. `node` and `client` are the addresses of the two sides."""

    def __init__(self, log: Log, node: str | None, client: str | None, connection: Connection | None) -> None:
        self._log, self._node, self.client, self._connection = log, node, client, connection

    def about(self, rpc: Rpc) -> dict[str, Any]:
        """Columns of all rows of a call."""
        return {
            "call": f"{(self._log.connection_id or b'').hex()}/{rpc.number}",
            "service": None if rpc.service is None else rpc.service.value,
            "path": rpc.path,
            "node": self._node or rpc.metadata.get(":authority"),
            "client": self.client,
            "publisher": rpc.publisher if rpc.service in (None, Service.PUBLISH) else None,
        }

    def call(self, rpc: Rpc, place: Place, where: Where | None, fields: dict[str, Any]) -> None:
        """The row of where a call begins, misses messages, or ends."""
        known = {
            "profile": rpc.profile.name,
            "path_inferred": rpc.path_inferred,
            "correlation_id": rpc.metadata.get(CORRELATION_ID),
            "partial": rpc.partial,
            "opened_at_ns": rpc.opened_ns,
        }
        self._log.add(CALL, place, where, **self.about(rpc), call_event=known | fields)

    def message(
        self,
        rpc: Rpc,
        event: grpc.MessagePart,
        where: Where,
        content: dict[str, Any],
        raw: bytes | bytearray | None,
        number: int | None,
    ) -> None:
        """The row of a message, or of the last part of one."""
        rpc.counts["messages"] += 1
        rpc.counts["message_bytes"] += event.length
        fields = {"profile": rpc.profile.name, "part": 0, "last": True} | content
        fields |= {"message_bytes": event.length, "encoding": event.encoding, "peer_received": self.received(where)}
        fields["late"] = self.is_late(where)
        about = self.about(rpc)
        self._log.add(MESSAGE, event.place, where, **about, block_number=number, message=fields, raw=raw)

    def block(self, place: Place, sender: Direction, rpc: Rpc, number: int | None, fields: dict[str, Any]) -> None:
        """The row of a block."""
        self._log.add(BLOCK, place, direction=sender.value, **self.about(rpc), block_number=number, block=fields)

    def part(
        self, rpc: Rpc, where: Where, fields: dict[str, Any], raw: bytes | bytearray | None, number: int | None
    ) -> None:
        """The row of a part of a message that goes on."""
        self._log.add(MESSAGE, rpc.place, where, **self.about(rpc), block_number=number, message=fields, raw=raw)

    def quarantine(
        self,
        place: Place,
        where: Where | None,
        reason: str,
        raw: bytes | bytearray | None,
        rpc: Rpc | None,
        rule: str | None = None,
    ) -> None:
        """Bytes that are no message; `rule` is the id of the one that they break. Without a call they may hold header
        fields, and with them secrets, so `raw` is None then."""
        finding = {"rule": rule, "severity": None, "message": reason}
        about = {} if rpc is None else self.about(rpc)
        self._log.add(QUARANTINE, place, where, finding=finding, raw=raw, **about)

    def find_first(
        self, broken: Sequence[tuple[str, str]], place: Place, where: Where, rpc: Rpc, number: int | None
    ) -> None:
        """Report the first of the rules that a message breaks, in the order of the rules."""
        if broken:
            rule, message = min(broken, key=lambda one: _ORDER[one[0]])
            self.find(rule, message, place, where, rpc, number)

    def find(
        self, rule: str, message: str, place: Place, where: Where | None, rpc: Rpc, number: int | None = None
    ) -> None:
        """A row of a finding about `number`, a block."""
        self._log.find(RULE[rule], message, place, where, **self.about(rpc), block_number=number)

    def received(self, where: Where) -> int | None:
        """Bytes of the other side that a message's sender had received, at most; None = unknown, in a log."""
        if self._connection is None:
            return None
        return self._connection.peer_received(where.direction, where.byte_end)

    def is_late(self, where: Where | None) -> bool | None:
        """Whether the time when it was sent is unknown; None = in a log, or at the end of a connection."""
        if self._connection is None or where is None:
            return None
        return self._connection.sides(where.direction)[0].is_late(where.byte_end)

    @property
    def uncaptured(self) -> set[Direction]:
        """Sides of which nothing was captured: they may have sent anything."""
        return set() if self._connection is None else set(self._connection.uncaptured_sides)
