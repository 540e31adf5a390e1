"""What a lake needs at a size: arithmetic from the rates that docs/benchmarks.md has measured.

`python -m infra.tools.sizes 10` prints it for 10 TB of captures a day, as docs/sizes.md has it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
MEASURED: Final = _DOCS / "benchmarks.md"
_TABLE: Final = re.compile(r"(?<=<!-- sizes)([^\n]*\n).*?(?=<!-- end of sizes -->)", re.DOTALL)
TB: Final = 10**12
DAY_SECONDS: Final = 86_400
#: Target utilisation of a cluster. The rest is for peak hours and for recomputed windows.
BUSY: Final = 0.5
#: What docs/sizes.md is about.
PAGE_TB: Final = 10
_CORES: Final = re.compile(r"(\d+) cores")
_ROW: Final = re.compile(r"\| (?P<job>\w+\.\w+) \| (?P<size>[\d,]+) \| [\d.]+ \| (?P<rate>[\d,]+) \|")
_LAYERS: Final = ("bronze", "silver", "gold")


@dataclass(frozen=True, slots=True)
class Need:
    """Cores of a protocol's layers at a size, always busy."""

    protocol: str
    #: What a message, frame, block … takes in a capture.
    unit_bytes: int
    #: How many of them a second.
    units: float
    #: By layer.
    cores: Mapping[str, float]

    @property
    def total(self) -> int:
        """Cores of a cluster for all layers."""
        return ceil(sum(self.cores.values()) / BUSY)


def rates(page: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Protocol, and what one core of the measured machine does of each layer a second, by the largest measurement."""
    for section in page.split("\n## ")[1:]:
        cores = _CORES.search(section)
        by_layer: dict[str, tuple[int, float]] = {}
        protocol = ""
        for row in _ROW.finditer(section):
            layer, _, name = row["job"].partition(".")
            size, rate = (int(row[key].replace(",", "")) for key in ("size", "rate"))
            by_layer[layer] = max(by_layer.get(layer, (0, 0.0)), (size, float(rate)))
            protocol = protocol if layer == "bronze" else name
        if cores and protocol:
            yield protocol, {layer: rate / int(cores[1]) for layer, (_, rate) in by_layer.items()}


def needs(terabytes: float, page: str) -> list[Need]:
    """The needs of each measured protocol, if all captures are of that protocol."""
    found = []
    for protocol, by_layer in rates(page):
        size = import_module(f"infra.tools.bench.{protocol}").UNIT_BYTES
        units = terabytes * TB / DAY_SECONDS / size
        found.append(Need(protocol, size, units, {layer: units / rate for layer, rate in by_layer.items()}))
    return found


def table(terabytes: float, page: str) -> str:
    """The needs as a table in Markdown."""
    head = ("protocol", "bytes each", "a second", *(f"{layer}: cores" for layer in _LAYERS), f"at {BUSY:.0%} busy")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for need in needs(terabytes, page):
        cores = " | ".join(f"{need.cores[layer]:.1f}" for layer in _LAYERS)
        lines.append(f"| {need.protocol} | {need.unit_bytes:,} | {need.units:,.0f} | {cores} | {need.total} |")
    return "\n".join(lines)


def page() -> str:
    """docs/sizes.md with the table as it follows from the benchmarks now."""
    now = table(PAGE_TB, MEASURED.read_text())
    return _TABLE.sub(lambda found: f"{found[1]}\n{now}\n\n", (_DOCS / "sizes.md").read_text())


if __name__ == "__main__":
    print(table(float(sys.argv[1]) if len(sys.argv) > 1 else PAGE_TB, MEASURED.read_text()))
