"""What Wirehouse stands on is pinned, installed as pinned, and under licences that ask nothing of who uses it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")
#: Whoever offers a service built on such would have to publish all of it.
REFUSED = re.compile(r"affero|AGPL|SSPL|Commons Clause", re.IGNORECASE)


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(found[1]): found[2] for line in lines if (found := PIN.match(line))}


def needed() -> Iterator[str]:
    """Names of all distributions that the project and its tests need, of others' needs as well."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["dev"])]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in {"", *requirement.extras}:
            name = canonicalize_name(requirement.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            yield name
            listed = map(Requirement, metadata.requires(name) or ())
            waiting += [each for each in listed if each.marker is None or each.marker.evaluate({"extra": extra})]


def licence(name: str) -> str:
    about = metadata.metadata(name).json
    classifiers = [line for line in about.get("classifier", ()) if line.startswith("License ::")]
    return " ".join([str(about.get("license_expression", "")), str(about.get("license", ""))[:200], *classifiers])


def test_everything_is_pinned_and_installed_as_pinned() -> None:
    pinned, found = pins(), sorted(set(needed()))
    assert len(found) > 50
    assert [name for name in found if name not in pinned] == []
    assert {name: metadata.version(name) for name in found} == {name: pinned[name] for name in found}


def test_no_licence_binds_who_uses_it() -> None:
    assert [name for name in set(needed()) if REFUSED.search(licence(name))] == []
