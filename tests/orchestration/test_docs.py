"""The generated pages are those that the data gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirehouse_orchestration import docs
from wirehouse_pipelines.protocols import PROTOCOLS
from wirehouse_pipelines.tables import all_tables


@pytest.mark.parametrize("name", docs.PAGES)
def test_a_generated_page_is_fresh(name: str) -> None:
    assert (docs.FOLDER / name).read_text() == docs.PAGES[name](), "run python -m wirehouse_orchestration.docs"


def test_the_dictionary_has_every_table_and_column() -> None:
    page = docs.data_dictionary()
    for table in all_tables().values():
        section = page.split(f"### {table.name}\n")[1].split("\n### ")[0]
        assert all(f"| `{column.name}` |" in section for column in table.columns)


def test_the_rules_page_has_every_rule() -> None:
    page = docs.rules_page()
    for protocol in PROTOCOLS.values():
        assert f"## {protocol.title}" in page
        assert all(f"| `{rule.id}` | {rule.severity}" in page for rule in protocol.rules)


def test_check_tells_a_stale_page_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "FOLDER", tmp_path)
    assert docs.main(["--check"]) == 1
    assert "docs/rules.md is stale" in capsys.readouterr().out
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
