"""The prompt of `wirehouse sql`, typed into as a person does."""

from __future__ import annotations

import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from wirehouse_orchestration.query import sql_shell
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql_process
from wirehouse_pipelines.storage.storage import StorageError

END = "\x04"
#: Nobody waits for its end.
ENDLESS = """SELECT COUNT(*) FROM generate_series(1, 9999999) AS a, generate_series(1, 9999999) AS b
WHERE a.value % 7 = b.value % 11"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "lake").mkdir()
    return Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"))


def typed(lake: Lake, text: str) -> None:
    """What happens if `text` is typed at the prompt."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text(text + END)
        sql_shell.prompt(lake, "csv", None)


def offered(text: str) -> list[str]:
    return [found.text for found in sql_shell.Names().get_completions(Document(text), CompleteEvent())]


def test_statements_run_one_after_another(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    typed(lake, "SELECT 1\nAS n;\nSELECT nothing;\n.format json\nSELECT 2 AS n;\n")
    out, err = capsys.readouterr()
    assert out == 'n\n1\n{"n":2}\n'
    assert "nothing" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".nothing", "there is no .nothing: .help lists the commands"),
        (".format xml", "one of table, csv, json"),
        (".as-of yesterday", "neither a version"),
        (".as-of 2026-11-14", "2026-11-14 00:00:00+00:00"),
        (".out a.docx", "ends in .csv"),
        (".columns gold.x", "of a table"),
        (".tables 'open", "No closing quotation"),
        ("DESCRIBE gold.x;", "there is no table gold.x: .columns is of a table"),
        (".help", ".as-of [WHEN]"),
        ("DROP TABLE x;", "only one SELECT"),
        ("SELECT * FROM gold.violatons;", "Did you mean gold.violations?"),
        (".as-of 99999999999999999999\nSELECT 1 FROM gold.violations;", "give a time instead"),
    ],
)
def test_what_is_wrong_is_said_and_the_prompt_goes_on(
    lake: Lake, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    typed(lake, f"{text}\nSELECT 7 AS n;\n")
    out, err = capsys.readouterr()
    assert said in " ".join(err.split())
    assert out == "n\n7\n"


@pytest.mark.parametrize("text", ["exit", "quit", "EXIT;", "quit ;"])
def test_words_that_end_other_prompts_end_this_one(lake: Lake, capsys: pytest.CaptureFixture[str], text: str) -> None:
    typed(lake, f"SELECT 1 AS n;\n{text}\nSELECT 2 AS n;\n")
    assert capsys.readouterr().out == "n\n1\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SHOW TABLES;", "gold.violations"),
        ("describe gold.violations;", "severity"),
        ("DESC TABLE\n`gold`.`violations` ;", "severity"),
    ],
)
def test_what_there_is_is_asked_as_elsewhere(
    lake: Lake, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    typed(lake, f"{text}\n")
    out, err = capsys.readouterr()
    assert said in out
    assert "only one SELECT" not in err


def test_a_time_in_no_calendar_is_shown(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    typed(lake, "SELECT to_timestamp_millis(4611686018427387904) AS a, 1 AS b;\nSELECT 2 AS c;\n")
    assert capsys.readouterr().out == "a,b\n<value out of range: 4611686018427387904>,1\nc\n2\n"


def test_a_lake_that_is_not_reached_leaves_the_prompt(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreached(*asked: object) -> None:
        raise StorageError(name="s3://lake", reason="the store can't be reached")

    monkeypatch.setattr(sql_shell, "query", unreached)
    typed(lake, "SELECT 1 AS n;\n.tables bronze.cap\n")
    out, err = capsys.readouterr()
    assert "the store can't be reached" in err
    assert "bronze.captures" in out


def test_the_next_result_goes_to_a_file(
    lake: Lake, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed(lake, ".out a.csv\nSELECT 1 AS n;\nSELECT 2 AS n;\n.tables bronze.cap\n")
    assert (tmp_path / "a.csv").read_text() == "n\n1\n"
    out = capsys.readouterr().out
    assert out.startswith("n\n2\n")
    assert "bronze.captures" in out


def test_an_interrupt_ends_the_line_alone(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    typed(lake, "SELECT wrong\x03SELECT 3 AS n;\n")
    assert capsys.readouterr().out == "n\n3\n"


@pytest.mark.parametrize("told", [threading.main_thread().ident, None], ids=["main", "another"])
def test_an_interrupt_ends_the_statement_that_runs(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, told: int | None
) -> None:
    """Whichever thread hears of it: that is up to the system."""
    asked = sql_process.query

    @contextmanager
    def interrupted(of: Lake, statement: str, *more: Any) -> Iterator[Any]:
        with asked(of, statement, *more) as reader:
            if "series" in statement:
                # The names are shown at once, the rows never.
                threading.Timer(1, lambda: signal.pthread_kill(told or threading.get_ident(), signal.SIGINT)).start()
            yield reader

    monkeypatch.setattr(sql_shell, "query", interrupted)
    typed(lake, f"{ENDLESS};\nSELECT 3 AS n;\n")
    assert capsys.readouterr().out == "count(*)\nn\n3\n"


def test_history_is_kept_for_its_owner(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    typed(lake, "SELECT 5 AS n;\n")
    kept = Path(lake.home, sql_shell.HISTORY)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    # Arrow up brings it back.
    typed(lake, "\x1b[A\n")
    assert capsys.readouterr().out == "n\n5\nn\n5\n"


def test_where_nothing_can_be_kept_the_prompt_works(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    Path(lake.home).rmdir()
    typed(lake, "SELECT 6 AS n;\n")
    out, err = capsys.readouterr()
    assert out == "n\n6\n"
    assert "not kept" in err
    assert not Path(lake.home).exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM gold.viol", ["gold.violations"]),
        ("SELECT head_number FROM gold.cardinal_chain_updates WHERE head_nu", ["head_number"]),
        ("SELECT u.head_nu FROM gold.cardinal_chain_updates AS u WHERE u.head_nu", ["head_number"]),
        ("SEL", ["SELECT"]),
        (".as", [".as-of"]),
        (".format c", ["csv"]),
        (".columns bronze.cap", ["bronze.captures"]),
        ("SELECT 'open gold.viol", ["gold.violations"]),
    ],
)
def test_names_are_completed(text: str, expected: list[str]) -> None:
    assert offered(text) == expected


def test_an_empty_place_offers_the_columns_of_tables_named() -> None:
    names = sql_shell.Names()
    document = Document("SELECT  FROM gold.violations", cursor_position=7)
    found = [each.text for each in names.get_completions(document, CompleteEvent())]
    assert "severity" in found
    assert "gold.violations" in found
