"""The rules `capture.*`, which landing and reassembly check in captures of any protocol.

All are notes, because none belongs to a specification: they mark where the capture itself is incomplete or in doubt.
"""

from __future__ import annotations

from wirehouse_codecs.core.rules import Rule, Severity, by_name

PROTOCOL = "capture"


def _note(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.NOTE, sentence, place)


#: The rules that reassembling a connection may find broken.
REASSEMBLY_RULES: tuple[Rule, ...] = (
    _note(
        "ip_fragment",
        "A packet is a fragment of an IP datagram; fragments are not reassembled.",
        "Reassembly, packets",
    ),
    _note(
        "overlap_differs",
        "A TCP segment repeats bytes of an earlier one with different content; those that arrived first are used.",
        "Reassembly, streams",
    ),
    _note(
        "bytes_ignored",
        "Captured bytes are not part of their TCP stream: they come before its first byte, after its end or after "
        "their gap was given up, an RST carries them, or their sequence number isn't plausible. Reported once per "
        "connection, direction and reason; the connection counts them.",
        "Reassembly, streams",
    ),
    _note(
        "reset_ignored",
        "The sequence number of an RST doesn't match its sender's stream, and the connection went on: the RST may be "
        "forged.",
        "Reassembly, streams",
    ),
    _note(
        "hole",
        "Bytes of a TCP stream were acknowledged or skipped, but are not in the capture.",
        "Reassembly, streams",
    ),
)

RULES: tuple[Rule, ...] = (
    _note(
        "time_suspect",
        "The timestamp of a record is later than the time of landing; it is kept, but does not change the order of "
        "arrival.",
        "Landing, order of arrival",
    ),
    _note(
        "file_damaged",
        "A capture is cut off, damaged or inflates beyond the limits, and is landed up to that point; or one of its "
        "records can't be read, and its bytes are kept.",
        "Landing, capture files",
    ),
    _note(
        "reversed",
        "The packets of a capture are in the reverse order of their times; they are read in the order of the file.",
        "Landing, order of arrival",
    ),
    _note(
        "offset_gap",
        "Offsets of a partition are missing in the range read from the broker: it deleted their records before they "
        "were landed, or compacted them away.",
        "Landing, topics of a broker",
    ),
    *REASSEMBLY_RULES,
)

#: The rules by their short name.
RULE: dict[str, Rule] = by_name(RULES)
