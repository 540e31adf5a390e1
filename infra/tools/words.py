"""Refuses retired words (`python -m infra.tools.words`, a part of `make check`).

docs/words.toml lists the words, what to write instead, and the files to check. Each use in one of these files is
printed with file, line and the better word. There are three lists:

- `retired`: phrases in texts. In Python files, these are comments, docstrings and messages, not identifiers.
- `opening`: phrases with which no docstring and no comment of a Python file may begin.
- `name`: words that are no part of an identifier of a Python file. Identifiers in `except` may have them.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "docs" / "words.toml"
#: Kinds of file that are checked in a listed folder.
TEXTS = {".md", ".py", ".sql", ".toml", ".yaml"}
_CODE = re.compile(r"^```.*?^```|`[^`]*`", re.DOTALL | re.MULTILINE)
#: Tokens of Python with text for people; from Python 3.12 on the text of an f-string is a token of its own.
_TOKENS = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
#: Where a comment or a string of Python begins.
_OPENING = re.compile(r"\A(#:?|[a-zA-Z]*(\"\"\"|'''|\"|'))")
#: Code within a string of Python: quoted names, escapes, and replacement fields.
_CODE_IN_STRING = re.compile(r"`[^`]*`|\\.|\{[^{}]*\}")


@dataclass(frozen=True)
class Retired:
    """Phrases that are no longer used, their replacement, and expressions in which they are allowed.

    Files at `not_in`, or in folders there, aren't checked.
    """

    phrases: tuple[str, ...]
    use: str
    exceptions: tuple[str, ...] = ()
    not_in: tuple[str, ...] = ()

    def uses(self, text: str) -> Iterator[tuple[int, str]]:
        """Line and phrase of each use in `text`."""
        for exception in self.exceptions:
            text = re.sub(exception, _blank, text)
        for use in re.finditer("|".join(map(_expression, self.phrases)), text, re.IGNORECASE):
            yield text.count("\n", 0, use.start()) + 1, " ".join(use[0].split())

    def opens(self, text: str) -> str | None:
        """The phrase with which a docstring or comment begins, in this case of letters; None = no such phrase."""
        text = " ".join(text.split())
        if any(re.match(exception, text) for exception in self.exceptions):
            return None
        return next((phrase for phrase in self.phrases if re.match(rf"{re.escape(phrase)}\b", text)), None)

    def names(self, identifier: str) -> bool:
        """Whether an identifier contains one of the phrases as a part between underscores, and is no exception."""
        return identifier not in self.exceptions and not set(self.phrases).isdisjoint(identifier.lower().split("_"))

    def checks(self, path: str) -> bool:
        """Whether a file is checked."""
        return not any(path == one or path.startswith(f"{one}/") for one in self.not_in)


@dataclass(frozen=True)
class Lists:
    """The lists of docs/words.toml."""

    retired: Sequence[Retired]
    openings: Sequence[Retired] = ()
    names: Sequence[Retired] = ()


def main() -> int:
    """Print each use of a retired word; 1 if there is one."""
    listed = tomllib.loads(LIST.read_text())
    words = Lists(*(entries(listed, name) for name in ("retired", "opening", "name")))
    problems = [problem for path in files(ROOT, listed["paths"]) for problem in problems_of(path, words, ROOT)]
    for path, line, phrase, use in problems:
        print(f'{path.relative_to(ROOT)}:{line}: "{phrase}" is retired: use {use}')
    return bool(problems)


def entries(listed: dict[str, Any], name: str) -> list[Retired]:
    """One of the lists of a file such as docs/words.toml."""
    return [
        Retired(tuple(one["phrases"]), one["use"], tuple(one.get("except", ())), tuple(one.get("not_in", ())))
        for one in listed.get(name, ())
    ]


def files(root: Path, paths: list[str]) -> Iterator[Path]:
    """The files at `paths` below `root`, and the texts in the folders among them. Raises FileNotFoundError."""
    for path in (root / name for name in paths):
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.suffix in TEXTS)
        elif path.exists():
            yield path
        else:
            raise FileNotFoundError(f"docs/words.toml: {path.relative_to(root)} is not there: correct `paths`")


def problems_of(path: Path, words: Lists, root: Path = ROOT) -> list[tuple[Path, int, str, str]]:
    """Path, line, phrase and replacement of each use of `words` in a file. Code in Markdown and Python is skipped."""
    text, name = path.read_text(), path.relative_to(root).as_posix()
    found: list[tuple[Path, int, str, str]] = []
    if path.suffix == ".md":
        text = _CODE.sub(_blank, text)
    elif path.suffix == ".py":
        found += _in_python(path, text, words, name)
        text = prose(text)
    retired = [word for word in words.retired if word.checks(name)]
    return sorted(found + [(path, line, phrase, word.use) for word in retired for line, phrase in word.uses(text)])


def _in_python(path: Path, source: str, words: Lists, name: str) -> Iterator[tuple[Path, int, str, str]]:
    """Openings of docstrings and comments, and parts of identifiers."""
    for line, text in openings(source):
        for word in words.openings:
            if word.checks(name) and (phrase := word.opens(text)) is not None:
                yield path, line, phrase, word.use
    checked = [word for word in words.names if word.checks(name)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield from ((path, token.start[0], token.string, word.use) for word in checked if word.names(token.string))


def openings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and comment of Python code. A comment of several lines counts once."""
    before = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            stands_alone = not token.line[: token.start[1]].strip()
            if not stands_alone or token.start[0] != before + 1:
                yield token.start[0], token.string.lstrip("#: ")
            before = token.start[0] if stands_alone else 0
        elif token.type == tokenize.STRING and token.string.startswith(('"""', 'r"""')):
            yield token.start[0], token.string.lstrip('r"').lstrip()


def prose(source: str) -> str:
    """The comments and strings of Python code, each on its line; all else is blank.

    A string without a space is a name or a key and is blank too, as is code within strings and comments.
    """
    lines: list[str] = [""]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _TOKENS:
            continue
        text = _CODE_IN_STRING.sub(_masked, _OPENING.sub(_blank, token.string).rstrip("\"'"))
        if token.type != tokenize.COMMENT and not re.search(r"\s", text.strip()):
            continue
        while len(lines) < token.start[0]:
            lines.append("")
        first, *more = text.split("\n")
        lines[-1] += f" {first}"
        lines += more
    return "\n".join(lines)


def _expression(phrase: str) -> str:
    """Matches whole words, also parts of names: an underscore ends a word."""
    words = r"\s+".join(map(re.escape, phrase.split()))
    return rf"{'(?<![a-z])' if phrase[0].isalpha() else ''}{words}(?![a-z])"


def _blank(part: re.Match[str]) -> str:
    """A blank text with as many lines as `part`."""
    return re.sub(r"[^\n]", " ", part[0])


def _masked(code: re.Match[str]) -> str:
    """A text with the lines and characters of `code`, without a letter or a space: words around it are no phrase."""
    return re.sub(r"[^\n]", "·", code[0])


if __name__ == "__main__":
    sys.exit(main())
