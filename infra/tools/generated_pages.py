"""Writes what comes from data in docs/: data dictionary, rules, state machines, sizes, and all drawings.

`python -m infra.tools.generated_pages` writes them; with `--check`, a part of `make check`, it lists the stale ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from infra.tools import sizes
from infra.tools.diagrams import inputs_text, machine_dot, svg
from wirehouse_codecs.captures import rules as capture_rules
from wirehouse_codecs.core.machines import Edge, Machine
from wirehouse_codecs.core.rules import Rule, Severity
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.tables import Column, Table, all_tables

FOLDER = Path(__file__).resolve().parents[2] / "docs"
#: Where the drawings are, under docs/.
IMAGES = "images/drawings"
#: What a file is not named with.
_SIGNS = re.compile(r"\W+")
#: What each layer of tables is.
LAYERS = {
    "bronze": "Landed records, typed, nothing judged.",
    "silver": "What was sent: every decoded message, and the bytes that could not be decoded.",
    "gold": "What it means: the state that follows from what was sent, and the rules that were broken.",
}
#: What a severity stands for in a specification.
SEVERITIES = {
    Severity.VIOLATION: "the specification states MUST, SHALL or that it is an error",
    Severity.WARNING: "the specification states SHOULD or recommends otherwise",
    Severity.NOTE: "allowed, but with consequences; or a fact about the capture",
}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them; 1 if `--check` finds a stale one."""
    stale = [name for name, page in PAGES.items() if not _same(FOLDER / name, page())]
    if "--check" not in arguments:
        for name in stale:
            (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(PAGES[name]())
            print(f"wrote docs/{name}")
        return 0
    for name in stale:
        print(f"docs/{name} is stale: python -m infra.tools.generated_pages")
    return bool(stale)


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def data_dictionary() -> str:
    """Every table and view with its columns."""
    tables = all_tables().values()
    lines = [*_opening("Data dictionary", "pipelines/wirehouse_pipelines/tables"), READING]
    for layer, meaning in LAYERS.items():
        lines += [f"## {layer}", "", meaning, ""]
        for table in (table for table in tables if table.layer == layer):
            lines += _table(table)
    return _page(lines)


READING = """\
`$Name` in a column's meaning is the field of that name in the protocol's specification. Times in `_ns` are nanoseconds,
moments since 1970 UTC; a moment of a view or of gold is also a TIMESTAMP, in `_at`. Hashes, keys and values are
BINARY; unsigned 64-bit numbers are DECIMAL(20,0). A history has a row per key and window in which something changed;
the view of its newest rows has one per key.
"""
FINDINGS = """\
Broken rules are reported and counted. They never stop the pipeline. The view `gold.violations` has every finding under
these ids, and so do the asset checks in Dagster and `wirehouse inspect`. Bytes that a rule quarantines
take no part in what follows and are kept in `silver.quarantine`.
"""
MACHINES = """\
A protocol defines which messages may follow which. A state machine is that part of the specification as a table: for
each state and each message (or other input) the next state, or the rule that the message breaks. Wirehouse's sessions
run these tables over the messages of a capture, and this page is drawn from the same tables. So you can check them
against the specification, and look up why a message broke a rule: find the state, then the message.

## How to read a diagram and its table

A box is a state, and the dot points to the first one. An arrow is an input that changes the state; a dashed box stands
for several states. Inputs that leave the state as it is are not drawn.

The table below a diagram lists every pair of a state and an input. *becomes* is the next state, *breaks* the rule that
the input breaks there. An empty *becomes* means that the protocol does not foresee the pair; the rule states what
follows. An input that no side sends, such as missing messages or the end of the connection, has a name in plain words.

## What a passive reader doesn't know

The two hosts know their state. Wirehouse only sees what was captured, so its state is a conclusion. Three things make
it uncertain, and each makes its verdicts weaker:

- **Bytes are missing.** Packets were not captured, or one side wasn't at all. The missing bytes may have held any
  message. So after a hole the state is one that any of them may have led to: some machines have a state `unknown` for
  it, the others remember what may have been missed. A rule is reported broken only if no missing message could excuse
  it.
- **The capture begins in the middle.** What came before is missing, too. Only its end is known.
- **Messages were on their way.** A host may send a message before it receives one that changes the state. The order in
  which an observer sees both proves nothing. The acknowledgment of the segment does: a message whose sender had not
  received the other one is judged by the state before it.

So a missing finding does not prove that a rule was kept. A finding means that no legal conversation looks like this in
the capture. [Packets and connections](packets.md#streams) states which bytes are known to be missing, and how.
"""


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {table.name}", "", table.comment, "")
    facts = {
        "View of": ", ".join(_linked(name) for name in _read_by(table)),
        "Newest rows": _linked(table.entity) if table.entity else "",
        "Protocol": table.protocol and PROTOCOLS[table.protocol].title,
        "One row for each": ", ".join(f"`{name}`" for name in table.key),
        "Partitioned by": ", ".join(f"`{name}`" for name in table.partition_by),
    }
    yield from (f"- {what}: {fact}" for what, fact in facts.items() if fact)
    yield from ("", "| column | type | meaning |", "|---|---|---|")
    yield from (_column(column) for column in table.columns)
    yield ""


def _read_by(table: Table) -> list[str]:
    from wirehouse_pipelines.query.sql import tables_named, tokens

    return tables_named(list(tokens(table.view))) if table.view else []


def _linked(name: str) -> str:
    return f"[{name}](#{name.replace('.', '')})"


def _column(column: Column) -> str:
    return f"| `{column.name}` | {_cell(column.type)} | {_cell(column.comment)} |"


def rules_page() -> str:
    """Every rule by protocol, with its severity and the sentence of the specification."""
    lines = [*_opening("Rules", "codecs/wirehouse_codecs/PROTOCOL/rules.py"), FINDINGS]
    lines += [*(f"- **{severity}**: {meaning}" for severity, meaning in SEVERITIES.items()), ""]
    for protocol in PROTOCOLS.values():
        lines += [f"## {protocol.title}", "", *_rules(protocol.rules)]
    return _page([*lines, "## Captures", "", *_rules(capture_rules.RULES)])


def _rules(rules: Iterable[Rule]) -> Iterator[str]:
    rules = list(rules)
    if guides := list(_guides(rules)):
        yield from ("How-to guides that use rules of this section:", "", *guides, "")
    yield from ("| rule | severity | broken when | place in the specification |", "|---|---|---|---|")
    for rule in rules:
        fate = " (quarantined)" if rule.quarantines else ""
        yield f"| `{rule.id}` | {rule.severity}{fate} | {_cell(rule.sentence)} | {_cell(rule.place)} |"
    yield ""


def _guides(rules: Sequence[Rule]) -> Iterator[str]:
    """A line for each how-to guide that names some of `rules`: a link, and these rules."""
    for path in sorted((FOLDER / "how-to").rglob("*.md")):
        text = path.read_text()
        named = [
            f"`{rule.id}`" for rule in rules if re.search(rf"(?<![\w.]){re.escape(rule.id)}\b|`{rule.name}`", text)
        ]
        if named:
            title = text.split("\n", 1)[0].removeprefix("# ")
            yield f"- [{title}]({path.relative_to(FOLDER).as_posix()}): {', '.join(named)}"


def machines_page() -> str:
    """The state machines of every protocol: a drawing of what changes the state, and every pair in a table."""
    lines = [*_opening("State machines", "codecs/wirehouse_codecs/PROTOCOL/session/machines.py"), MACHINES]
    for title, image, machine in _machines():
        heading = f"{title}: {machine.name}"
        note = [machine.note, ""] if machine.note else []
        lines += [f"## {heading}", "", f"![{heading}]({image})", "", *note, *_pairs(machine.edges()), ""]
    return _page(lines)


def _machines() -> Iterator[tuple[str, str, Machine]]:
    """Each protocol's title, the name of the drawing, and the machine."""
    for protocol in PROTOCOLS.values():
        for machine in import_module(f"wirehouse_codecs.{protocol.name}.session.machines").MACHINES:
            yield protocol.title, f"{IMAGES}/{protocol.name}-{_SIGNS.sub('-', machine.name)}.svg", machine


def _pairs(edges: Iterable[Edge]) -> Iterator[str]:
    """Every pair: inputs of a state that do the same are one row."""
    rows: dict[tuple[str, str | None, str | None, str], list[str]] = {}
    for edge in edges:
        rows.setdefault((edge.state, edge.becomes, edge.rule, edge.when), []).append(edge.input)
    yield from ("| in state | on | becomes | breaks |", "|---|---|---|---|")
    for (state, becomes, rule, when), inputs in rows.items():
        yield f"| {state} | {_cell(inputs_text(inputs, when))} | {becomes or ''} | {f'`{rule}`' if rule else ''} |"


def _opening(title: str, origin: str) -> tuple[str, ...]:
    return (f"# {title}", "", f"<!-- Generated from {origin} by `python -m infra.tools.generated_pages`. -->", "")


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    """`text` in a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def drawings() -> dict[str, Callable[[], str]]:
    """Images of docs/ and what draws them: every state machine, and the graphs of docs/diagrams."""
    drawn: dict[str, Callable[[], str]] = {}
    for path in sorted((FOLDER / "diagrams").glob("*.dot")):
        drawn[f"{IMAGES}/{path.stem}.svg"] = partial(_graph, path)
    for _, image, machine in _machines():
        drawn[image] = partial(_machine, machine)
    return drawn


def _graph(path: Path) -> str:
    return svg(path.read_text())


def _machine(machine: Machine) -> str:
    return svg(machine_dot(machine, machine.edges()))


#: Files of docs/ and what makes them.
PAGES: dict[str, Callable[[], str]] = {
    "data-dictionary.md": data_dictionary,
    "rules.md": rules_page,
    "state-machines.md": machines_page,
    "sizes.md": sizes.page,
    **drawings(),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
