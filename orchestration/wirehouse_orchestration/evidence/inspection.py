"""`wirehouse inspect`: decodes one capture file without a lake, a configuration or Spark, and prints its rows.

1. `_capture` finds the kind of the file: the first of FORMATS whose reader accepts its content.
2. `_recognised` finds the protocol, if none is named and several have such files: from the first bytes of connections.
3. The protocol's codec decodes the records in this process, with its default options unless others are given.
4. `_print` writes a table of the first rows and totals; with `as_json`, each row is a line of JSON.

Rows have the columns of the silver and gold tables, except those that only exist in a lake.
"""

from __future__ import annotations

import os
import stat
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
from rich.text import Text

from wirehouse_codecs.captures.rules import RULES
from wirehouse_codecs.captures.source import Capture, Origin
from wirehouse_codecs.core.errors import OptionError, UsageError
from wirehouse_codecs.core.option_tables import OptionTable
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.logs import detection
from wirehouse_codecs.logs.inspection import (
    CONNECTION,
    ENTRY,
    LANDED_FILES,
    LANDED_MESSAGES,
    LANDED_PACKETS,
    MESSAGE,
    QUARANTINE,
    SKIP,
    VIOLATION,
    Inspect,
    Inspected,
    Unseen,
)
from wirehouse_codecs.tcp.packets import cut_by_snap_length
from wirehouse_orchestration.terminal import render
from wirehouse_orchestration.terminal.output import MOST_ROWS, SEVERITY_STYLE, SHORT_HEX, console, counted, grid, note
from wirehouse_pipelines.lake.protocols import FILE_KINDS, PROTOCOLS
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.capture_files import Hashed, shown
from wirehouse_pipelines.landing.clock import Clock, capture_findings
from wirehouse_pipelines.landing.manifests import CaptureFinding
from wirehouse_pipelines.landing.window_objects import KINDS

#: The default windows of a lake: arrival can't be before the first one.
START: Final = Windows("day", "2015-01-01")


class Format(NamedTuple):
    """How captures of one kind of source are read and shown."""

    #: The schema of records with their location in the capture.
    landed: pa.Schema
    #: The names of the first columns on the terminal, and the columns of a row that they show.
    columns: Mapping[str, str]


#: Formats by kind of source. A file has the first kind that can read it.
FORMATS: Final = {
    "pcap": Format(LANDED_PACKETS, {"record": "record_number", "connection": "connection_id", "from": "direction"}),
    **{kind: Format(LANDED_FILES, {"record": "record_number"}) for kind in FILE_KINDS},
    "messages": Format(LANDED_MESSAGES, {"record": "record_number"} | {n: n for n in ("topic", "partition", "offset")}),
}
#: Letters of a row, and items of a list, that the terminal shows.
_LETTERS, _ITEMS = 300, 3
#: Number of zeros at the begin of bytes that are shown as a number.
_WIDE = 8
_CAPTURE_RULES: Final = {rule.id: rule for rule in RULES}
#: Columns that a row's place, label or finding shows, or that only a program needs. Which of them are a message's own
#: fields depends on the format: a message of a TCP connection may have a partition.
_APART: Final = frozenset(
    {"record_number", "connection_id", "direction", "byte_start", "byte_end"}
    | {"capture_id", "protocol", "ts_ns", "arrived_at_ns", "kind", "rule", "severity", "skip"}
)
#: Columns of a connection that are shown as its endpoints, and aren't repeated.
_ENDS: Final = ("client_address", "client_port", "server_address", "server_port")
_SHOWN_AS_ENDS: Final = frozenset({*_ENDS, "started_at_ns", "last_at_ns", "community_id"})


class UnreadableCaptureError(UsageError):
    """The file can't be inspected."""

    template = "{path}: {reason}"


class ProtocolNeededError(UsageError):
    """The protocol can't be recognised from the file, or doesn't use such files."""

    template = "name the protocol with --protocol: {known}"


class ProtocolUnclearError(UsageError):
    """The first bytes of the capture's connections match no protocol, or several."""

    template = "{path}: {reason}: name the protocol with --protocol: {known}"


class InspectOptionError(UsageError):
    """An option of the protocol can't be used."""

    template = "--option {option}: {reason}"


class PortNotNeededError(UsageError):
    """A port was named for a capture without ports."""

    template = "{path} holds no packets: --port is only for captures of TCP connections, to name the server's port"


def inspect(
    path: str,
    protocol: str | None,
    as_json: bool,
    out: TextIO,
    port: int | None = None,
    options: Sequence[str] = (),
) -> None:
    """Print the content of the capture at `path`: a table, or one JSON object per line. `port` is the servers' port.

    `options` are those of the protocol, each as NAME=VALUE. Raises UnreadableCaptureError, ProtocolNeededError,
    ProtocolUnclearError, PortNotNeededError and InspectOptionError.
    """
    unseen = None if as_json else Unseen()
    with opened(path, protocol, port, options, unseen=unseen) as capture:
        if unseen is not None:
            _print(capture.rows, unseen, path, FORMATS[capture.kind], capture.counts, out)
            return
        for what, row in capture.rows:
            out.write(render.json_line({"type": what} | row) + "\n")
        for line in capture.counts.lines():
            note(f"{render.terminal(os.path.basename(path))}: {line}")


class Counts:
    """Counts of a capture, for the notes that are printed after its rows."""

    def __init__(self) -> None:
        self.records = 0
        #: Number of packets cut by the snap length, and the most bytes that one of them has.
        self.cut = 0
        self._longest = 0
        #: Number of connections of which nothing shows which side is the server.
        self.assumed = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Count landed records."""
        self.records += batch.num_rows
        if "original_length" not in batch.schema.names or not batch.num_rows:
            return
        cut, longest = cut_by_snap_length(batch)
        self.cut += cut
        self._longest = max(self._longest, longest)

    def lines(self) -> Iterator[str]:
        """Notes about the capture to print after its rows."""
        if not self.records:
            yield "the capture is empty: it has no records"
        if self.cut:
            yield (
                f"{self.cut:,} of {counted(self.records, 'packet')} were cut by the snap length of the capture, to "
                f"{self._longest:,} bytes at most: the rest was sent but not captured"
            )
        if self.assumed:
            yield (
                f"nothing shows which side of {counted(self.assumed, 'connection')} is the server, so no rule is "
                "judged there: name its port with --port"
            )


class Opened(NamedTuple):
    """A capture that is being inspected."""

    #: The kind of source that has such files.
    kind: str
    #: Its rows, in order. Findings about the capture itself come last.
    rows: Iterator[Inspected]
    #: Counts of what was taken from `rows`.
    counts: Counts


@contextmanager
def opened(
    path: str,
    protocol: str | None,
    port: int | None = None,
    options: Sequence[str] = (),
    *,
    unseen: Unseen | None = None,
    now_ns: int | None = None,
) -> Iterator[Opened]:
    """Open the capture at `path`. Arguments and errors are those of `inspect`; `now_ns` is the time of landing."""
    with _stream(path) as stream:
        kind, capture = _capture(path, stream, protocol)
        rows_of = _inspection(path, stream, kind, protocol, port, options)
        if unseen is not None:
            rows_of = partial(rows_of, unseen=unseen)
        counts = Counts()
        yield Opened(kind, _rows(stream, kind, capture, rows_of, now_ns or time.time_ns(), counts), counts)


@contextmanager
def _stream(path: str) -> Iterator[BinaryIO]:
    with ExitStack() as held:
        try:
            if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
                raise UnreadableCaptureError(path=path, reason="is no regular file")
            stream = held.enter_context(open(path, "rb"))
        except OSError as error:
            raise UnreadableCaptureError(path=path, reason=error.strerror or str(error)) from None
        yield stream


def _capture(path: str, stream: BinaryIO, protocol: str | None) -> tuple[str, Capture]:
    """The kind of the file, recognised by content among the kinds of the protocol; and its records."""
    if protocol is not None and protocol not in PROTOCOLS:
        raise ProtocolNeededError(known=", ".join(PROTOCOLS))
    asked = PROTOCOLS.values() if protocol is None else [PROTOCOLS[protocol]]
    known = {kind for one in asked for kind in one.kinds}
    reasons = []
    for kind in filter(known.__contains__, FORMATS):
        stream.seek(0)
        capture = KINDS[kind].read(stream, _origin(path))
        if capture.unreadable is None:
            return kind, capture
        reasons.append(capture.unreadable)
    raise UnreadableCaptureError(path=path, reason="; ".join(reasons))


def _origin(path: str) -> Origin:
    return Origin(shown(os.path.basename(path)), START.start_ns(START.start))


def _inspection(
    path: str, stream: BinaryIO, kind: str, asked: str | None, port: int | None, options: Sequence[str] = ()
) -> Inspect:
    packets = FORMATS[kind].landed is LANDED_PACKETS
    known = [protocol.name for protocol in PROTOCOLS.values() if kind in protocol.kinds]
    if asked is None and len(known) != 1:
        if not packets:
            raise ProtocolNeededError(known=", ".join(known))
        asked = _recognised(path, stream, kind, known, port)
    rows_of: Inspect = _codec(asked or known[0]).INSPECT[kind]
    if options:
        rows_of = partial(rows_of, options=_options(asked or known[0], options))
    if port is None:
        return rows_of
    if not packets:
        raise PortNotNeededError(path=path)
    return partial(rows_of, port=port)


def _options(protocol: str, listed: Sequence[str]) -> OptionTable:
    """The protocol's options from texts NAME=VALUE, read as those of a source. Raises InspectOptionError."""
    values: dict[str, Any] = {}
    for text in listed:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InspectOptionError(option=text, reason="must be NAME=VALUE")
        if name in values:
            raise InspectOptionError(option=name, reason="is given twice")
        values[name] = _value(value)
    try:
        return PROTOCOLS[protocol].options.from_mapping(values)
    except OptionError as error:
        raise InspectOptionError(option=error.fields["key"], reason=error.fields["reason"]) from None


def _value(text: str) -> Any:
    """A value in TOML syntax. Anything else is text, so that text needs no quotes."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if read.keys() == {"value"} else text


def _codec(protocol: str) -> Any:
    return import_module(f"wirehouse_codecs.{protocol}.inspection")


def _recognised(path: str, stream: BinaryIO, kind: str, known: Sequence[str], port: int | None) -> str:
    """The only protocol of `known` that connections of the capture match; any of them if it has no connections."""
    at = stream.tell()
    stream.seek(0)
    capture = KINDS[kind].read(stream, _origin(path))
    clock, counts = _clock(time.time_ns()), Counts()
    landed = _counted(_landed(capture, clock, b"", LANDED_PACKETS), counts)
    heads = detection.heads(landed, port)
    if not heads:
        stream.seek(at)
        return known[0]
    found: dict[str, str] = {}
    for name in known:
        recognises: detection.Recognise = _codec(name).recognises
        if why := next(filter(None, (recognises(*head) for head in heads)), None):
            found[name] = why
    if len(found) == 1:
        stream.seek(at)
        return next(iter(found))
    # The rest is read for notes about the whole capture, which may explain the failure.
    for _ in landed:
        pass
    notes = [*counts.lines(), *(finding.message for finding in (clock.reversed,) if finding)]
    likely = " and ".join(f"like {name} ({why})" for name, why in found.items())
    reason = f"its connections begin {likely}" if likely else "no connection begins as one of a known protocol"
    reason = "; ".join([reason, *notes])
    raise ProtocolUnclearError(path=path, reason=reason, known=", ".join(known))


def _rows(
    stream: BinaryIO, kind: str, capture: Capture, rows_of: Inspect, now_ns: int, counts: Counts
) -> Iterator[Inspected]:
    at = stream.tell()
    stream.seek(0)
    capture_id = bytes.fromhex(Hashed(stream).rest())
    stream.seek(at)
    clock = _clock(now_ns)

    for what, row in rows_of(_counted(_landed(capture, clock, capture_id, FORMATS[kind].landed), counts)):
        counts.assumed += what == CONNECTION and row.get("sides") is not None
        yield what, row
    for finding in capture_findings(clock, capture.damage, now_ns, kind):
        yield VIOLATION, _capture_row(finding, capture_id)


def _counted(batches: Iterator[pa.RecordBatch], counts: Counts) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        counts.take(batch)
        yield batch


def _clock(now_ns: int) -> Clock:
    return Clock(START.start_ns(START.start), now_ns)


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


def _landed(capture: Capture, clock: Clock, capture_id: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
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
        yield pa.RecordBatch.from_arrays([*place, *batch.columns], schema=schema)


class _Shown:
    """The first rows of a capture as cells, and the number of rows of each kind."""

    def __init__(self, columns: Mapping[str, str], unseen: Unseen) -> None:
        self._columns, self._unseen = columns, unseen
        self._apart = _APART | set(columns.values())
        self.cells: list[tuple[Text, ...]] = []
        self.messages: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.rules: Counter[tuple[str, str]] = Counter()
        #: Number of entries in messages, by their verdict.
        self.entries: Counter[str] = Counter()
        #: The servers' ports.
        self.ports: set[int] = set()
        #: Connections in the table, by the order in which they come.
        self._connections: dict[bytes, int] = {}

    @property
    def rows(self) -> int:
        """The number of rows, shown or not."""
        return self.messages.total() + self.others.total()

    def take(self, kind: str, row: dict[str, Any]) -> None:
        """Count a row, and show it if there is room."""
        if kind == MESSAGE:
            self.messages[str(row["kind"])] += 1
        else:
            self.others[kind] += 1
        if kind == CONNECTION and "server_port" in row:
            self.ports.add(row["server_port"])
        if kind == ENTRY:
            self.entries[row["verdict"]] += 1
        if kind == VIOLATION:
            self.rules[row["rule"], row["severity"]] += 1
        if len(self.cells) < MOST_ROWS:
            place = (self._place(row, name) for name in self._columns.values())
            self.cells.append((*place, *_content(kind, row, self._apart)))
        self._unseen.wanted = len(self.cells) < MOST_ROWS

    def _place(self, row: dict[str, Any], name: str) -> Text:
        value = row.get(name)
        if name == "connection_id" and value is not None:
            value = self._connections.setdefault(value, len(self._connections) + 1)
        return Text(render.cell(value))


def _print(rows: Iterator[Inspected], unseen: Unseen, path: str, form: Format, counts: Counts, out: TextIO) -> None:
    """A table of the first rows, and the totals."""
    screen = console(out)
    shown = _Shown(form.columns, unseen)
    for kind, row in rows:
        shown.take(kind, row)
    shown.messages.update(unseen.messages)
    names = (*form.columns, "kind", "says")
    right = tuple(name in ("record", "connection", "partition", "offset") for name in names)
    screen.print(grid(names, shown.cells, right, fixed=len(names) - 1))
    if shown.rows > len(shown.cells):
        screen.print(Text(f"only the first {MOST_ROWS:,} rows are shown: see all with --json", "dim"))
    others = shown.others
    connections = f" in {counted(others[CONNECTION], 'connection')}" if others[CONNECTION] else ""
    connections += f" to {_ports(shown.ports)}" if shown.ports else ""
    screen.print(
        Text(
            f"{render.terminal(os.path.basename(path))}: {counted(shown.messages.total(), 'message')}{connections}, "
            f"{others[QUARANTINE]:,} quarantined, {others[SKIP]:,} skipped, {counted(others[VIOLATION], 'finding')}",
            "bold",
        ),
        soft_wrap=True,
    )
    for line in counts.lines():
        screen.print(Text(f"  {line}"), soft_wrap=True)
    for kind, number in sorted(shown.messages.items()):
        screen.print(Text(f"  {number:,} {render.terminal(kind)}"))
    for verdict, number in sorted(shown.entries.items()):
        screen.print(Text(f"  {number:,} entry ({verdict})"))
    for (rule, severity), number in sorted(shown.rules.items()):
        screen.print(Text.assemble(f"  {number:,} ", (rule, SEVERITY_STYLE[Severity(severity)]), f" ({severity})"))


def _ports(ports: set[int]) -> str:
    """The ports of servers as a source names them."""
    first = ", ".join(map(str, sorted(ports)[:_ITEMS]))
    more = f" and {len(ports) - _ITEMS:,} more" if len(ports) > _ITEMS else ""
    return f"port{'s' if len(ports) > 1 else ''} {first}{more}"


def _content(kind: str, row: dict[str, Any], apart: frozenset[str]) -> tuple[Text, Text]:
    """The kind and the content of a row, without the columns `apart`. Zeros are shown."""
    label = row.get("kind") or row.get("skip") or row.get("severity") or kind
    style = SEVERITY_STYLE[Severity(row["severity"])] if kind == VIOLATION else "red" if kind == QUARANTINE else ""
    words = [": ".join(filter(None, (row["rule"], row.get("message") or row.get("reason"))))] if "rule" in row else []
    if kind == CONNECTION:
        words = ["{}:{} → {}:{}".format(*(row[name] for name in _ENDS))]
        row = {name: value for name, value in row.items() if value != 0 and name not in _SHOWN_AS_ENDS}
    if kind != VIOLATION:
        apart |= {"reason"} if "rule" in row else set()
        fields = {name: value for name, value in row.items() if name not in apart and value is not None}
        words += [f"{name}={_short(value)}" for name, value in fields.items()]
    text = render.terminal(" ".join(words))
    return Text(render.terminal(str(label)), style), Text(text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…")


def _short(value: Any) -> str:
    """A value for people. Bytes are shown as text if they are text, else as their first hex digits."""
    match value:
        case bytes() if value and value.isascii() and value.decode().isprintable():
            return repr(value.decode())
        case bytes() if len(value) > _WIDE and not any(value[:_WIDE]):
            return hex(int.from_bytes(value, "big"))
        case bytes():
            return render.cell(value, SHORT_HEX) or "(empty)"
        case dict():
            fields = {name: item for name, item in value.items() if item is not None}
            return "{" + ", ".join(f"{name}: {_short(item)}" for name, item in fields.items()) + "}"
        case list():
            more = [f"{len(value) - _ITEMS} more"] if len(value) > _ITEMS else []
            return "[" + ", ".join([*map(_short, value[:_ITEMS]), *more]) + "]"
    return render.cell(value)
