"""Messages of Ockam as bytes of a connection."""

from __future__ import annotations

from typing import Any

from wirehouse_codecs.ockam.wire.messages import Message, Names, encode_payload
from wirehouse_codecs.ockam.wire.routed import LOCAL, TCP, Address, Envelope, Routed, encode, frame


def framed(message: Message | bytes, to: str, back: str, envelope: Envelope, names: Names, **told: Any) -> bytes:
    """A message, or a payload, with its length; addresses of a route stand between `=>`, `1#` before one is
    a node's, `told` are other fields."""
    payload = message if isinstance(message, bytes) else encode_payload(message, names)
    version = None if envelope is Envelope.CBOR32 else 2 if told else 1
    onward, return_route = (tuple(map(_hop, hops.split("=>"))) if hops else () for hops in (to, back))
    return frame(encode(Routed(version, onward, return_route, payload, **told), envelope), envelope)


def _hop(text: str) -> Address:
    return Address(TCP if text.startswith("1#") else LOCAL, text.removeprefix("1#").encode())
