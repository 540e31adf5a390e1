"""`wirehouse export bamboo`: the entries of a log and their payloads, as an entry file (docs/bamboo.md).

Entries come from `gold.bamboo_entries`, from any source, each once, by sequence number and then by arrival. A payload
is what a connection carried or a file had for that sequence number, if it has the hash that the entry names. Both are
read in the order of sequence numbers, so only the payloads of one of them are held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa

from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES
from wirehouse_codecs.bamboo.wire.entry_files import Written, write_binary, write_lines
from wirehouse_codecs.bamboo.wire.yamf import digest
from wirehouse_codecs.captures.compressed_output import endings
from wirehouse_codecs.core.errors import UsageError
from wirehouse_orchestration.cli.context import Context, json_option, pass_context, print_json
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query import sql

LINES: Final = endings(".jsonl", write_lines)
WRITERS: Final = LINES | endings(".entries", write_binary)
MOST: Final = 2**64 - 1

_ENTRIES: Final = """
SELECT seq, data, payload_size, payload_hash, entry_id FROM gold.bamboo_entries
WHERE encode(author, 'hex') = '{author}' AND log_id = {log_id} AND seq >= {first} AND seq <= {last}
ORDER BY seq, arrived_at_ns, entry_id
"""
#: Whole payloads by sequence number, of whatever log: of files, and of packets. Those of several packets stand joined.
_PAYLOADS: Final = """
SELECT seq, payload FROM (
  SELECT entry.seq AS seq, entry.payload AS payload FROM silver.bamboo
  WHERE row_kind = 'entry' AND entry.payload IS NOT NULL
    AND encode(entry.author, 'hex') = '{author}' AND entry.log_id = {log_id}
  UNION ALL
  SELECT message.seq AS seq, CASE WHEN message.payload.packets = 1 THEN message.data ELSE message.payload.data END
    AS payload FROM silver.bamboo
  WHERE row_kind = 'message' AND message.payload.packets IS NOT NULL) AS payloads
WHERE payload IS NOT NULL AND seq >= {first} AND seq <= {last} ORDER BY seq
"""

Row = Mapping[str, Any]


class NoSuchLogError(UsageError):
    """The lake has no entry of the log in that range."""

    template = (
        "no entry {first} to {last} of log {log} of {author} is known as a whole: "
        'see `wirehouse sql "SELECT author, log_id, length FROM gold.bamboo_logs"`'
    )


@dataclass(frozen=True, slots=True)
class Log:
    """A part of a log: entries `first` to `last`. The author is in lower-case hexadecimal."""

    author: str
    log_id: int
    first: int = 1
    last: int = MOST

    @property
    def words(self) -> Mapping[str, str]:
        """It as SQL. Numbers may be larger than an integer of SQL."""
        numbers = {name: f"CAST('{getattr(self, name)}' AS DECIMAL(20,0))" for name in ("log_id", "first", "last")}
        return numbers | {"author": self.author}


@dataclass
class Exported:
    """Counts of what was exported of a log."""

    entries: int = 0
    payloads: int = 0
    #: Known entries that can't be written, because the hash of an entry that they link to is unknown.
    incomplete: int = 0


def log_entries(lake: Lake, log: Log, exported: Exported, *, with_payloads: bool) -> Iterator[Written]:
    """The known entries of a part of a log, counted in `exported`."""
    payloads_sql = _PAYLOADS if with_payloads else f"{_PAYLOADS} LIMIT 0"
    with (
        sql.query(lake, _ENTRIES.format(**log.words)) as entries,
        sql.query(lake, payloads_sql.format(**log.words)) as payloads,
    ):
        candidates = groupby(_rows(payloads), key=_seq)
        seq, found = next(candidates, (MOST + 1, iter(())))
        for at, listed in groupby(_rows(entries), key=_seq):
            while seq < at:
                seq, found = next(candidates, (MOST + 1, iter(())))
            carried = (row["payload"] for row in found) if seq == at else ()
            # Nothing carries an empty payload.
            yield from _of_one_number(listed, chain((b"",), carried) if with_payloads else (), exported)


def _of_one_number(entries: Iterable[Row], candidates: Iterable[bytes], exported: Exported) -> Iterator[Written]:
    """The entries of one sequence number, of which a fork has several, with their payloads."""
    distinct: dict[bytes, Row] = {}
    for row in entries:
        # Several sources may know an entry.
        distinct.setdefault(row["entry_id"], row)
    wanted = {row["payload_hash"] for row in distinct.values()}
    payloads: dict[bytes, bytes] = {}
    for payload in candidates:
        if (hashed := digest(payload)) in wanted:
            payloads[hashed] = payload
    for row in distinct.values():
        if row["data"] is None:
            exported.incomplete += 1
            continue
        own = payloads.get(row["payload_hash"])
        exported.entries += 1
        exported.payloads += own is not None
        yield Written(row["data"], own)


def _rows(reader: pa.RecordBatchReader) -> Iterator[Row]:
    return (row for batch in reader for row in batch.to_pylist())


def _seq(row: Row) -> int:
    return int(row["seq"])


def _key(context: click.Context, option: click.Parameter, value: str) -> str:
    """The author's key in lower-case hexadecimal."""
    if re.fullmatch(f"[0-9a-fA-F]{{{2 * AUTHOR_BYTES}}}", value):
        return value.lower()
    raise click.BadParameter(f"must be {2 * AUTHOR_BYTES} hexadecimal digits, as gold.bamboo_logs has them")


@click.command("bamboo", short_help="The entries of a log and their payloads.")
@click.option("--author", callback=_key, metavar="KEY", required=True, help="The author's public key, hexadecimal.")
@click.option("--log", "log_id", type=click.IntRange(0, MOST), required=True, help="Id of the log.")
@click.option("--from", "first", type=click.IntRange(1, MOST), default=1, show_default=True, help="First entry.")
@click.option("--to", "last", type=click.IntRange(1, MOST), default=MOST, help="Last entry, included [the last known].")
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What to write: .jsonl with payloads, or .entries without (binary); also .gz, .zst.",
)
@json_option
@pass_context
def export(context: Context, author: str, log_id: int, first: int, last: int, out: Path, as_json: bool) -> None:
    """Write the known entries of a log, and their payloads, as a file that `inspect` and landing read."""
    from wirehouse_orchestration.terminal import output

    suffix = next((suffix for suffix in WRITERS if out.name.endswith(suffix)), None)
    if suffix is None:
        raise click.BadParameter(f"must end in {' or '.join(WRITERS)}", param_hint="--out")
    lake, log, exported = context.lake_to_read(), Log(author, log_id, first, last), Exported()
    with output.whole(out) as part:
        WRITERS[suffix](log_entries(lake, log, exported, with_payloads=suffix in LINES), part)
        if not exported.entries:
            raise NoSuchLogError(first=first, last="…" if last == MOST else last, log=log_id, author=author)
    if as_json:
        print_json([{"file": str(out), "author": author, "log_id": log_id, **asdict(exported)}])
        return
    payloads = f"{exported.payloads:,} of them with their payloads" if suffix in LINES else "without payloads"
    click.echo(f"{out}: {exported.entries:,} entries, {payloads}")
    if exported.incomplete:
        click.echo(f"left out: {exported.incomplete:,} entries that link to entries whose hashes are unknown")
