"""The rules `capture.*`: what landing and reassembly find about captures, whatever their protocol.

None of them breaks a specification, so all are notes: they say where the record of the wire itself is in doubt.
"""

from __future__ import annotations

from wirehouse_codecs.core.rules import Rule, Severity, by_name

PROTOCOL = "capture"


def _note(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.NOTE, sentence, place)


#: Those that reading a connection may find, whatever its protocol.
REASSEMBLY_RULES: tuple[Rule, ...] = (
    _note(
        "ip_fragment",
        "A packet is a fragment of an IP datagram; fragments are not put together.",
        "Reassembly, packets",
    ),
    _note(
        "overlap_differs",
        "A TCP segment repeats bytes of an earlier one with other content; the first to arrive counts.",
        "Reassembly, streams",
    ),
    _note(
        "bytes_ignored",
        "Captured bytes are no part of their TCP stream: they come before its first byte or after its end, or their "
        "sequence number isn't credible. Said once for a connection, direction and reason; the connection counts them.",
        "Reassembly, streams",
    ),
    _note(
        "reset_ignored",
        "A RST isn't where its sender's stream stands, and the sender went on: somebody else may have sent it.",
        "Reassembly, streams",
    ),
    _note(
        "hole",
        "Bytes of a TCP stream were acknowledged or passed over, but are not in the capture.",
        "Reassembly, streams",
    ),
)

RULES: tuple[Rule, ...] = (
    _note(
        "time_suspect",
        "A record's time is later than the moment it was landed; it is kept, but does not move the order of arrival.",
        "Landing, order of arrival",
    ),
    _note(
        "file_damaged",
        "A capture is cut off, damaged or inflates beyond the limits, and is landed up to there; or a record of it "
        "can't be read, and its bytes are kept.",
        "Landing, capture files",
    ),
    _note(
        "reversed",
        "The packets of a capture stand in the reverse order of their times; they are read as they stand.",
        "Landing, order of arrival",
    ),
    _note(
        "offset_gap",
        "Offsets of a partition are missing within the range that was read from the broker: it dropped their records "
        "before they were landed, or compacted them away.",
        "Landing, topics of a broker",
    ),
    *REASSEMBLY_RULES,
)

#: The same rules by their short name.
RULE: dict[str, Rule] = by_name(RULES)
