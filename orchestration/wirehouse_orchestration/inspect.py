"""`wirehouse inspect`: what one capture says, without a lake, a configuration or Spark.

The same codecs as the pipeline's decode it in this process, as a consumer without options would; the rows have the
columns of the silver and gold tables, but for those that only a lake has.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, Final, TextIO

import numpy as np
import pyarrow as pa
from rich.text import Text

from wirehouse_codecs.capture_rules import RULES
from wirehouse_codecs.captures import MessageCapture
from wirehouse_codecs.errors import UsageError
from wirehouse_codecs.inspecting import LANDED_SCHEMA, MESSAGE, QUARANTINE, SKIP, VIOLATION, Inspect, Inspected
from wirehouse_codecs.rules import Severity
from wirehouse_orchestration import render
from wirehouse_orchestration.show import MOST_ROWS, SEVERITY_STYLE, SHORT_HEX, console, counted, grid
from wirehouse_pipelines.capture_files import Hashed
from wirehouse_pipelines.landing import CaptureFinding, Clock, capture_findings
from wirehouse_pipelines.protocols import PROTOCOLS
from wirehouse_pipelines.windows import Windows

#: Arrival begins where that of a lake with day windows does, unless it is told otherwise.
START: Final = Windows("day", "2015-01-01")
#: Kind of source whose captures are looked into.
KIND: Final = "messages"
#: Columns of a row that have a column of their own on the terminal.
_PLACE = ("record_number", "topic", "partition", "offset")
#: Letters of a row, and items of a list, that the terminal shows.
_SAYS, _ITEMS = 300, 3
#: Bytes that begin with so many zeros are a number.
_WIDE = 8
_CAPTURE_RULES: Final = {rule.id: rule for rule in RULES}
_APART: Final = frozenset(
    {*_PLACE, "capture_id", "protocol", "ts_ns", "arrived_at_ns", "kind", "rule", "reason", "severity", "skip"}
)


class UnreadableCaptureError(UsageError):
    """The file can't be looked into."""

    template = "{path}: {reason}"


class ProtocolNeededError(UsageError):
    """The protocol can't be told from the file, or doesn't come in such files."""

    template = "say which protocol with --protocol: {known}"


def inspect(path: str, protocol: str | None, as_json: bool, out: TextIO) -> None:
    """Print what the capture at `path` says to `out`: a table, or one JSON object a line.

    Raises UnreadableCaptureError and ProtocolNeededError.
    """
    rows = inspected(path, protocol)
    if as_json:
        for kind, row in rows:
            out.write(render.json_line({"type": kind} | row) + "\n")
    else:
        _print(rows, path, out)


def inspected(path: str, protocol: str | None, now_ns: int | None = None) -> Iterator[Inspected]:
    """The rows of the capture at `path`, in its order; what is found about the capture itself comes last."""
    rows_of: Inspect = import_module(f"wirehouse_codecs.{_protocol(protocol)}.inspection").inspect
    try:
        with open(path, "rb") as stream:
            yield from _rows(path, stream, rows_of, now_ns or time.time_ns())
    except OSError as error:
        raise UnreadableCaptureError(path=path, reason=error.strerror or str(error)) from None


def _protocol(asked: str | None) -> str:
    known = [protocol.name for protocol in PROTOCOLS.values() if KIND in protocol.kinds]
    if asked in known or (asked is None and len(known) == 1):
        return asked or known[0]
    raise ProtocolNeededError(known=", ".join(known))


def _rows(path: str, stream: BinaryIO, rows_of: Inspect, now_ns: int) -> Iterator[Inspected]:
    capture_id = bytes.fromhex(Hashed(stream).rest())
    stream.seek(0)
    capture = MessageCapture(stream)
    if capture.unreadable is not None:
        raise UnreadableCaptureError(path=path, reason=capture.unreadable)
    clock = Clock(START.start_ns(START.start), now_ns)
    yield from rows_of(_landed(capture, clock, capture_id))
    for finding in capture_findings(clock, capture.damage, now_ns):
        yield VIOLATION, _capture_row(finding, capture_id)


def _capture_row(finding: CaptureFinding, capture_id: bytes) -> dict[str, Any]:
    rule = _CAPTURE_RULES[finding.rule]
    return {
        "protocol": rule.protocol,
        "rule": rule.id,
        "severity": rule.severity.value,
        "message": finding.message,
        "capture_id": capture_id,
        "record_number": finding.record_number,
        "topic": None,
        "partition": None,
        "offset": None,
        "arrived_at_ns": finding.arrived_at_ns,
    }


def _landed(capture: MessageCapture, clock: Clock, capture_id: bytes) -> Iterator[pa.RecordBatch]:
    """The capture's records as they would be landed."""
    for batch in capture.batches():
        number, count = clock.records, batch.num_rows
        arrived = clock.tick(batch.column("ts_ns"))
        place = [
            pa.array(np.arange(number, number + count)),
            pa.array(arrived),
            pa.array(np.full(count, clock.first, np.int64)),
            pa.array([capture_id] * count, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays([*place, *batch.columns], schema=LANDED_SCHEMA)


def _print(rows: Iterator[Inspected], path: str, out: TextIO) -> None:
    """A table of the first rows, and what there was in all."""
    screen = console(out)
    kinds: Counter[str] = Counter()
    rules: Counter[tuple[str, str]] = Counter()
    shown: list[tuple[Text, ...]] = []
    for kind, row in rows:
        kinds[str(row["kind"]) if kind == MESSAGE else kind] += 1
        if kind == VIOLATION:
            rules[row["rule"], row["severity"]] += 1
        if len(shown) < MOST_ROWS:
            shown.append(_cells(kind, row))
    table = grid(("record", *_PLACE[1:], "kind", "says"), shown, (True, False, True, True), fixed=5)
    screen.print(table)
    if sum(kinds.values()) > len(shown):
        screen.print(Text(f"only the first {MOST_ROWS:,} rows are shown: see all with --json", "dim"))
    messages = sum(number for kind, number in kinds.items() if kind not in (QUARANTINE, SKIP, VIOLATION))
    screen.print(
        Text(
            f"{render.terminal(os.path.basename(path))}: {counted(messages, 'message')}, "
            f"{kinds[QUARANTINE]:,} quarantined, {kinds[SKIP]:,} skipped, {counted(kinds[VIOLATION], 'finding')}",
            "bold",
        )
    )
    for kind, number in sorted(kinds.items()):
        if kind not in (QUARANTINE, SKIP, VIOLATION):
            screen.print(Text(f"  {number:,} {kind}"))
    for (rule, severity), number in sorted(rules.items()):
        screen.print(Text.assemble(f"  {number:,} ", (rule, SEVERITY_STYLE[Severity(severity)]), f" ({severity})"))


def _cells(kind: str, row: dict[str, Any]) -> tuple[Text, ...]:
    label = row.get("kind") or row.get("skip") or row.get("severity") or kind
    style = SEVERITY_STYLE[Severity(row["severity"])] if kind == VIOLATION else "red" if kind == QUARANTINE else ""
    words = [f"{row['rule']}: {row.get('message') or row.get('reason')}"] if "rule" in row else []
    if kind != VIOLATION:
        told = {name: value for name, value in row.items() if name not in _APART and value not in (None, [])}
        words += [f"{name}={_short(value)}" for name, value in told.items()]
    says = render.terminal(" ".join(words))
    places = (Text(render.cell(row.get(name))) for name in _PLACE)
    return (*places, Text(str(label), style), Text(says if len(says) <= _SAYS else f"{says[:_SAYS]}…"))


def _short(value: Any) -> str:
    """A value for people: bytes as text if they are, else the first of their hex digits."""
    match value:
        case bytes() if value and value.isascii() and value.decode().isprintable():
            return repr(value.decode())
        case bytes() if len(value) > _WIDE and not any(value[:_WIDE]):
            return hex(int.from_bytes(value, "big"))
        case bytes():
            return render.cell(value, SHORT_HEX) or "(empty)"
        case dict():
            told = {name: item for name, item in value.items() if item not in (None, False)}
            return "{" + ", ".join(f"{name}: {_short(item)}" for name, item in told.items()) + "}"
        case list():
            more = [f"{len(value) - _ITEMS} more"] if len(value) > _ITEMS else []
            return "[" + ", ".join([*map(_short, value[:_ITEMS]), *more]) + "]"
    return render.cell(value)
