"""What holds for the whole tree: rules stand everywhere they must, and shared code knows no protocol."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from wirehouse_codecs.captures import rules as capture_rules
from wirehouse_pipelines.lake.protocols import PROTOCOLS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "codecs": ROOT / "codecs" / "wirehouse_codecs",
    "pipelines": ROOT / "pipelines" / "wirehouse_pipelines",
    "expectations": ROOT / "expectations" / "wirehouse_expectations",
    "orchestration": ROOT / "orchestration" / "wirehouse_orchestration",
}
#: What only developers run stands beside them.
FOLDERS = {**PACKAGES, "tools": ROOT / "infra" / "tools"}
#: The list of protocols, the one shared module that names them.
REGISTRY = PACKAGES["pipelines"] / "lake" / "protocols.py"
#: What a protocol consists of in each layer.
FILES = {
    "codecs": (
        "{}/wire/messages.py",
        "{}/session/machines.py",
        "{}/rules.py",
        "{}/simulator/simulator.py",
        "{}/inspection.py",
        "{}/options.py",
    ),
    "pipelines": ("{}/silver.py", "{}/gold.py"),
    "expectations": ("{}.py",),
    "orchestration": ("demo/{}.py",),
    "tools": ("bench/{}.py",),
}


def words(*paths: Path) -> set[str]:
    """All identifiers and words of texts in the files."""
    return {word for path in paths for word in re.findall(r"\w+", path.read_text())}


def of_protocol(name: str) -> list[Path]:
    """The modules of a protocol that find its rules: all but the list of rules and what simulates breaking them."""
    folders = PACKAGES["codecs"] / name, PACKAGES["pipelines"] / name
    return [
        path
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if path.name != "rules.py" and path.parent.name != "simulator"
    ]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_rule_is_found_by_code(name: str) -> None:
    known = words(*of_protocol(name))
    assert [rule.name for rule in PROTOCOLS[name].rules if rule.name not in known] == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_rule_is_broken_by_a_fault_or_a_vector(name: str) -> None:
    simulator = import_module(f"wirehouse_codecs.{name}.simulator.simulator")
    known = {*simulator.FAULTS, *words(*(ROOT / "tests" / "vectors" / name).rglob("*.json"))}
    assert [rule.name for rule in PROTOCOLS[name].rules if rule.name not in known] == []


def test_every_rule_stands_on_the_rules_page() -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    rules = [*capture_rules.RULES, *(rule for protocol in PROTOCOLS.values() for rule in protocol.rules)]
    assert [rule.id for rule in rules if f"`{rule.id}`" not in page] == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rules_have_ids_of_their_own_and_whole_sentences(name: str) -> None:
    rules = PROTOCOLS[name].rules
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.protocol == name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", rule.name)
        assert rule.sentence.endswith(".")
        assert rule.place


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("layer", FILES)
def test_a_protocol_has_the_same_files_as_its_siblings(name: str, layer: str) -> None:
    paths = [FOLDERS[layer] / file.format(name) for file in FILES[layer]]
    assert [str(path.relative_to(ROOT)) for path in paths if not path.exists()] == []


@pytest.mark.parametrize("layer", PACKAGES)
def test_shared_code_names_no_protocol(layer: str) -> None:
    naming = re.compile(f"(?<![A-Za-z])(?:{'|'.join(PROTOCOLS)})(?![A-Za-z])")
    shared = [path for path in PACKAGES[layer].rglob("*.py") if path != REGISTRY and not is_of_a_protocol(path)]
    assert [str(path.relative_to(ROOT)) for path in shared if naming.search(path.read_text())] == []


def is_of_a_protocol(path: Path) -> bool:
    return path.stem in PROTOCOLS or any(parent.name in PROTOCOLS for parent in path.parents)


def test_every_package_is_typed() -> None:
    assert [name for name, folder in PACKAGES.items() if not (folder / "py.typed").exists()] == []
