"""Refuses retired words (`python -m infra.tools.words`, a part of `make check`).

docs/words.toml lists the words, what to write instead, and the files to check. Each use in one of these files is
printed with file, line and the better word.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "docs" / "words.toml"
#: Kinds of file that are checked in a listed folder.
TEXTS = {".md", ".py", ".sql", ".toml", ".yaml"}
_CODE = re.compile(r"^```.*?^```|`[^`]*`", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Retired:
    """Phrases that are no longer used, their replacement, and expressions in which they are allowed."""

    phrases: tuple[str, ...]
    use: str
    exceptions: tuple[str, ...] = ()

    def uses(self, text: str) -> Iterator[tuple[int, str]]:
        """Line and phrase of each use in `text`."""
        for exception in self.exceptions:
            text = re.sub(exception, _blank, text)
        for use in re.finditer("|".join(map(_expression, self.phrases)), text, re.IGNORECASE):
            yield text.count("\n", 0, use.start()) + 1, " ".join(use[0].split())


def main() -> int:
    """Print each use of a retired word; 1 if there is one."""
    listed = tomllib.loads(LIST.read_text())
    problems = [problem for path in files(ROOT, listed["paths"]) for problem in problems_of(path, retired(listed))]
    for path, line, phrase, use in problems:
        print(f'{path.relative_to(ROOT)}:{line}: "{phrase}" is retired: use {use}')
    return bool(problems)


def retired(listed: dict[str, Any]) -> list[Retired]:
    """The retired phrases of a list such as docs/words.toml."""
    return [Retired(tuple(one["phrases"]), one["use"], tuple(one.get("except", ()))) for one in listed["retired"]]


def files(root: Path, paths: list[str]) -> Iterator[Path]:
    """The files at `paths` below `root`, and the texts in the folders among them. Raises FileNotFoundError."""
    for path in (root / name for name in paths):
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.suffix in TEXTS)
        elif path.exists():
            yield path
        else:
            raise FileNotFoundError(f"docs/words.toml: {path.relative_to(root)} is not there: correct `paths`")


def problems_of(path: Path, words: list[Retired]) -> list[tuple[Path, int, str, str]]:
    """Path, line, phrase and replacement of each use of `words` in a file. Code in Markdown is skipped."""
    text = path.read_text()
    if path.suffix == ".md":
        text = _CODE.sub(_blank, text)
    return sorted((path, line, phrase, word.use) for word in words for line, phrase in word.uses(text))


def _expression(phrase: str) -> str:
    """Matches whole words, also parts of names: an underscore ends a word."""
    words = r"\s+".join(map(re.escape, phrase.split()))
    return rf"{'(?<![a-z])' if phrase[0].isalpha() else ''}{words}(?![a-z])"


def _blank(part: re.Match[str]) -> str:
    """As many lines as `part`, without its text."""
    return re.sub(r"[^\n]", " ", part[0])


if __name__ == "__main__":
    sys.exit(main())
