"""The interface of `inspect`, which decodes one capture without a lake.

The module `inspection` of each protocol has `INSPECT`, a mapping from the kind of source to a function. The function
takes batches of records (LANDED_MESSAGES, LANDED_PACKETS or LANDED_FILES) and yields rows. For packets, its argument
`port` may name the servers' port. With `unseen`, messages beyond the displayed ones are only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs.captures.files import FILE_SCHEMA
from wirehouse_codecs.captures.messages import MESSAGE_SCHEMA
from wirehouse_codecs.captures.pcap import PACKET_SCHEMA
from wirehouse_codecs.core.rules import Finding

#: Kinds of rows: a decoded message, bytes that could not be decoded, a record without content to decode, a broken rule,
#: a TCP connection, and the facts about an entry that messages carry.
MESSAGE, QUARANTINE, SKIP, VIOLATION, CONNECTION = "message", "quarantine", "skip", "violation", "connection"
ENTRY: Final = "entry"
#: A kind of row, and the row by the column names of the table for that kind.
Inspected = tuple[str, dict[str, Any]]
Inspect = Callable[..., Iterator[Inspected]]


@dataclass(slots=True)
class Unseen:
    """Counts the messages that nobody sees, so that no rows of them are made.

    A caller that shows only the first rows sets `wanted` to False when it has them. From then on, `inspect` doesn't
    yield messages any more, but counts them here. Rows of other kinds come as before.
    """

    wanted: bool = True
    #: The number of messages that were not yielded, by kind.
    messages: Counter[str] = field(default_factory=Counter)

    def sees(self, kind: object) -> bool:
        """Whether a message of this kind is to be yielded. If not, it is counted."""
        if not self.wanted:
            self.messages[str(kind)] += 1
        return self.wanted


_PLACE: Final = (
    ("record_number", pa.int64()),
    ("arrived_at_ns", pa.int64()),
    ("capture_arrived_at_ns", pa.int64()),
    ("capture_id", pa.binary()),
)
#: The records of a capture with their location in it.
LANDED_MESSAGES: Final = pa.schema([*_PLACE, *MESSAGE_SCHEMA])
LANDED_PACKETS: Final = pa.schema([*_PLACE, *PACKET_SCHEMA])
LANDED_FILES: Final = pa.schema([*_PLACE, *FILE_SCHEMA])


def violation(finding: Finding, **about: Any) -> Inspected:
    """The row of a broken rule. `about` has the values of the protocol's own columns."""
    rule, place = finding.rule, finding.place
    fields = {"protocol": rule.protocol, "rule": rule.id, "severity": rule.severity.value, "message": finding.message}
    where = {
        "capture_id": place.capture_id,
        "record_number": place.record_number,
        "topic": place.topic,
        "partition": place.partition,
        "offset": place.offset,
        "arrived_at_ns": place.arrived_at_ns,
    }
    return VIOLATION, fields | about | where
