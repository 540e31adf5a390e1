"""Retired words are refused, with file, line and the better word."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from infra.tools import words

PUT = words.Retired(("put together", "puts together"), "join")
FOUND = words.Retired(("_found",), "finding", (r"gold\.\w+_found",))


def test_no_listed_file_uses_a_retired_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert words.main() == 0, capsys.readouterr().out


def test_a_use_has_its_file_line_and_better_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "words.toml"
    listed.write_text('paths = ["pages"]\n[[retired]]\nphrases = ["put together"]\nuse = "join"\n')
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/a.md").write_text("Joined.\n\nRows are Put Together.\n")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "LIST", listed)
    assert words.main() == 1
    assert capsys.readouterr().out == 'pages/a.md:3: "Put Together" is retired: use join\n'


def test_a_phrase_may_be_wrapped_and_has_to_be_whole() -> None:
    assert list(PUT.uses("a\nhe puts\n  together, outputs together\n")) == [(2, "puts together")]


def test_names_are_checked_and_contract_names_are_exceptions() -> None:
    assert list(FOUND.uses("gold.hiero_found\nrows_found = 1\n")) == [(2, "_found")]


@pytest.mark.parametrize(("name", "lines"), [("a.md", [5]), ("a.sql", [1, 3, 5])])
def test_code_is_skipped_in_markdown(tmp_path: Path, name: str, lines: list[int]) -> None:
    (tmp_path / name).write_text("`put together`\n```\nput together\n```\nput together\n")
    assert [line for _, line, _, _ in words.problems_of(tmp_path / name, words.Lists([PUT]), tmp_path)] == lines


PYTHON = '''"""Rows are put
together, `put together` too."""

put_together = f"rows {'put together'}"  # They put
# together.
KEYS = ("put together", "put_together", ["puts", "together"])
#: Rows
#: are joined.
raise Error(f"{put}: puts {x!r} together \\n", name="x",
            reason="it can't be"
            " put together")
'''


def test_only_comments_and_strings_of_python_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PYTHON)
    assert [line for _, line, _, _ in words.problems_of(tmp_path / "a.py", words.Lists([PUT]), tmp_path)] == [
        1,
        4,
        6,
        11,
    ]


def test_names_and_quoted_code_of_python_are_not_checked() -> None:
    found = words.Retired(("told", "_found"), "report")
    text = "told = [\"told\", 'all_found']\n# `told` is a name.\nprint(f'{told} rows')  # Told.\n"
    assert list(found.uses(words.prose(text))) == [(3, "Told")]


OPENINGS = '''"""Of rows the last.

Of no interest.
"""

#: Rows.
#: Of these, so many.
MOST = 3  # So many rows.


def told_of(row: str) -> None:
    """As they are: of rows."""
    told_in, retold = row, "Of "
'''


def test_openings_and_names_of_python_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(OPENINGS)
    lists = words.Lists(
        [],
        [words.Retired(("Of", "So many"), "a noun"), words.Retired(("As",), "a noun", (r"As they are\b",))],
        [words.Retired(("told",), "fields", ("told_in",))],
    )
    found = [(line, phrase) for _, line, phrase, _ in words.problems_of(tmp_path / "a.py", lists, tmp_path)]
    assert found == [(1, "Of"), (8, "So many"), (11, "told_of")]


def test_files_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a.py").write_text("# Of rows.\ntold = 1\n")
    word = words.Retired(("Of", "told"), "a noun", not_in=("old",))
    assert words.problems_of(tmp_path / "old/a.py", words.Lists([word], [word], [word]), tmp_path) == []


def test_a_listed_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.md is not there: correct `paths`"):
        list(words.files(tmp_path, ["gone.md"]))


def test_the_list_is_complete() -> None:
    listed = tomllib.loads(words.LIST.read_text())
    found = [word for name in ("retired", "opening", "name") for word in words.entries(listed, name)]
    assert all(word.phrases and word.use for word in found)
    missing = [path for word in found for path in word.not_in if not (words.ROOT / path).exists()]
    assert missing == []
