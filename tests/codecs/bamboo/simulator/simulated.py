"""What the log of connections, and verification, say of simulated captures."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.support.landed import landed_packets
from wirehouse_codecs.bamboo.log.schema import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.simulator.simulator import SimulatorConfig, simulate, source_options
from wirehouse_codecs.bamboo.wire.entry_verification import Verdict, Verification, verify
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.logs.rows import MESSAGE, VIOLATION
from wirehouse_codecs.simulate.script import Disturbances

Row = dict[str, Any]


@dataclass
class Judged:
    """The rows of the log by their kind."""

    rows: dict[str, list[Row]]

    @cached_property
    def messages(self) -> list[Row]:
        """With the row's other columns."""
        return [row | row["message"] for row in self.rows[MESSAGE]]

    @cached_property
    def entries(self) -> list[Row]:
        """Those that are known in full."""
        return [row | row["entry"] for row in self.rows["entry"] if row["entry"]["data"] is not None]

    @cached_property
    def verified(self) -> Verification:
        """All entries, each by itself and by the others."""
        return verify([row["data"] for row in self.entries])

    @cached_property
    def invalid(self) -> list[tuple[Row, str]]:
        """The entries that break a rule, and which."""
        verdicts, rules = (self.verified.entries[name].to_pylist() for name in ("verdict", "rule"))
        rows = zip(self.entries, verdicts, rules, strict=True)
        return [(row, rule) for row, verdict, rule in rows if verdict == Verdict.INVALID]

    @property
    def found(self) -> Counter[str]:
        """Rules that are broken, of connections and, by what cancels show, of entries."""
        alone = [row["finding"]["rule"].removeprefix("bamboo.") for row in self.rows[VIOLATION]]
        shown = {row["data"]: rule for row, rule in self.invalid if row["origin"] == "cancel"}
        told = {row["data"] for row in self.entries if row["rule"] is not None and row["origin"] == "cancel"}
        return Counter([*alone, *(rule for data, rule in shown.items() if data not in told), *self.forks])

    @property
    def forks(self) -> list[str]:
        """A rule for each log that is forked, unless an entry is told to be the fork."""
        told = any(rule == "fork" for _, rule in self.invalid)
        return [] if told else ["fork" for _ in {(fork.author, fork.log_id) for fork in self.verified.forks}]

    @property
    def severities(self) -> Counter[str]:
        return Counter(row["finding"]["severity"] for row in self.rows[VIOLATION])

    def apologised(self, row: Row) -> bool:
        """An apology retracts the packet."""
        return any(
            one["kind"] == "apology" and one["follows_byte_start"] == row["byte_start"]
            for one in self.messages
            if (one["connection_id"], one["direction"]) == (row["connection_id"], row["direction"])
        )


def judge(config: SimulatorConfig, disturbances: Disturbances | None = None) -> Judged:
    rows = defaultdict(list)
    options = BambooOptions.from_mapping(source_options(config))
    packets = landed_packets(simulate(config, disturbances))
    for row in tcp_inspection.read(packets, starter(options), SCHEMA, options.ports or None):
        rows[row["row_kind"]].append(row)
    return Judged(rows)
