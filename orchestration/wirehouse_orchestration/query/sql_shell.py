"""The prompt of `wirehouse sql` without a statement: it reads commands and statements until it is left.

Statements are run by `query.sql_process`. Commands begin with a dot: `COMMANDS` lists them, `Shell` executes them and
keeps the settings. The prompt has a history for each lake, and completes keywords, tables and columns.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_orchestration.terminal import output
from wirehouse_orchestration.terminal.render import terminal
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query.sql import AsOf, StatementRefusedError, parse_as_of, tables_named, tokens
from wirehouse_pipelines.query.sql_process import query
from wirehouse_pipelines.tables import Table, all_tables

HISTORY: Final = ".sql_history"
#: Words of statements that are offered; the engine knows more.
_KEYWORDS: Final = """
SELECT FROM WHERE AND OR NOT NULL IS IN LIKE BETWEEN CASE WHEN THEN ELSE END AS JOIN LEFT INNER ON USING GROUP BY HAVING
ORDER DESC ASC LIMIT OFFSET DISTINCT UNION ALL WITH EXPLAIN COUNT SUM MIN MAX AVG COALESCE CAST
"""
_WORD: Final = re.compile(r"[\w.\"]*$")


class CommandError(UsageError):
    """A command of the prompt that doesn't exist, or can't be executed."""

    template = "{reason}: .help lists the commands"


@dataclass
class Shell:
    """The lake and the settings that were chosen at the prompt."""

    lake: Lake
    form: str = "table"
    as_of: AsOf | None = None
    out: Path | None = None

    def run(self, text: str) -> None:
        """Run a command, or show the rows of a statement. Raises UsageError and OSError."""
        text = text.strip()
        if text.startswith("."):
            name, *arguments = shlex.split(text)
            if name not in COMMANDS:
                raise CommandError(reason=f"there is no {name}")
            COMMANDS[name].do(self, arguments)
        elif words := text.rstrip("; \n").split():
            if self._run_foreign(words):
                return
            began = time.monotonic()
            form = output.ENDINGS[self.out.suffix] if self.out else self.form
            with query(self.lake, text, self.as_of) as reader:
                output.answer(reader, form, self.out)
            self.out = None
            output.note(f"{time.monotonic() - began:.2f} s")

    def _run_foreign(self, words: list[str]) -> bool:
        """Run a command in the words of other prompts. Whether `words` are one."""
        match [word.lower() for word in words]:
            case ["exit" | "quit"]:
                self.quit([])
            case ["show", "tables"]:
                self.list_tables([])
            case ["describe" | "desc", _] | ["describe" | "desc", "table", _]:
                self.describe([words[-1].replace("`", "").replace('"', "").lower()])
            case _:
                return False
        return True

    def choose_format(self, arguments: list[str]) -> None:
        """Set the format of results."""
        if len(arguments) != 1 or arguments[0] not in output.TEXTS:
            raise CommandError(reason=f".format is one of {', '.join(output.TEXTS)}")
        self.form = arguments[0]

    def choose_time(self, arguments: list[str]) -> None:
        """Read tables as they were."""
        self.as_of = parse_as_of(" ".join(arguments)) if arguments else None
        output.note(f"tables are read as of {self.as_of if arguments else 'now'}")

    def choose_file(self, arguments: list[str]) -> None:
        """Write the next result to a file."""
        if len(arguments) != 1 or Path(arguments[0]).suffix not in output.ENDINGS:
            raise CommandError(reason=f".out is a file that ends in {', '.join(output.ENDINGS)}")
        self.out = Path(arguments[0])

    def list_tables(self, arguments: list[str]) -> None:
        """List the tables."""
        output.tables(table for table in _shown() if not arguments or arguments[0] in table.name)

    def describe(self, arguments: list[str]) -> None:
        """Show a table's columns."""
        if len(arguments) != 1 or arguments[0] not in all_tables():
            raise CommandError(reason=f"there is no table {' '.join(arguments)}: .columns is of a table")
        output.columns(all_tables()[arguments[0]])

    def help(self, arguments: list[str]) -> None:
        """Show this help."""
        for name, command in COMMANDS.items():
            output.note(f"{name + ' ' + command.takes:<24} {command.help}")
        output.note("a statement ends with ; and is one SELECT, WITH or EXPLAIN; Tab completes names")
        output.note("SHOW TABLES; DESCRIBE TABLE; exit and quit are understood as well")

    def quit(self, arguments: list[str]) -> None:
        """Leave the prompt."""
        raise EOFError


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the prompt: its function, its arguments and its help."""

    do: Callable[[Shell, list[str]], None]
    takes: str
    help: str


COMMANDS: Final[Mapping[str, Command]] = {
    ".tables": Command(Shell.list_tables, "[PART]", "lists the tables (whose name has PART)"),
    ".columns": Command(Shell.describe, "TABLE", "shows what the columns of TABLE hold"),
    ".as-of": Command(Shell.choose_time, "[WHEN]", "reads tables as they were at a time or version; without, as now"),
    ".format": Command(Shell.choose_format, "FORMAT", f"shows results as {', '.join(output.TEXTS)}"),
    ".out": Command(Shell.choose_file, "FILE", "writes the next result to FILE (.csv, .json, .parquet)"),
    ".help": Command(Shell.help, "", "shows this"),
    ".quit": Command(Shell.quit, "", "ends it, as Ctrl-D does"),
}


def _shown() -> Iterator[Table]:
    return (table for table in all_tables().values() if table.listed)


class Names(Completer):
    """Tables by layer.name, columns of those that the statement names, keywords, and the prompt's own commands."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """See prompt_toolkit."""
        found = _WORD.search(document.text_before_cursor)
        word = (found[0] if found else "").lstrip('"')
        text = document.text_before_cursor.lstrip()
        if text.startswith(".") and " " not in text:
            yield from _offered(text, {name: command.help for name, command in COMMANDS.items()})
        elif text.startswith(".format"):
            yield from _offered(word, dict.fromkeys(output.TEXTS, ""))
        else:
            tables = {table.name: output.kind_of(table) for table in _shown()}
            if not text.startswith("."):
                named = [all_tables()[name] for name in _named(document.text)]
                columns = {column.name: column.type for table in named for column in table.columns}
                # After `t.` the columns of all tables are offered: an alias may stand for any of them.
                _, dot, part = word.rpartition(".")
                if dot and not any(name.startswith(word.lower()) for name in tables):
                    word, tables = part, {}
                yield from _offered(word, columns)
            yield from _offered(word, tables)
            if word and not text.startswith("."):
                yield from _offered(word, dict.fromkeys(_KEYWORDS.split(), ""))


def _named(text: str) -> list[str]:
    try:
        return tables_named(list(tokens(text)))
    except StatementRefusedError:  # a quote is open
        return []


def _offered(word: str, names: Mapping[str, str]) -> Iterator[Completion]:
    for name, what in names.items():
        if name.lower().startswith(word.lower()):
            yield Completion(name, start_position=-len(word), display_meta=what[:40])


def _history(lake: Lake) -> History:
    """The lake's history file, readable only by its owner, as statements may contain values from the wire.

    If the file can't be created, the history ends with the prompt.
    """
    place = Path(lake.home, HISTORY)
    try:
        if lake.home != lake.root:
            # If the lake is in a bucket, nothing else creates its local folder.
            place.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        output.note(f"statements are not kept: {place}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(place))


def prompt(lake: Lake, form: str, as_of: AsOf | None) -> None:
    """Read and run statements until Ctrl-D."""
    session: PromptSession[str] = PromptSession(
        history=_history(lake),
        completer=ThreadedCompleter(Names()),
        auto_suggest=AutoSuggestFromHistory(),
        lexer=PygmentsLexer(SqlLexer),
        complete_while_typing=False,
        multiline=Condition(lambda: _goes_on(session.default_buffer.text)),
        prompt_continuation="      ...> ",
    )
    shell = Shell(lake, form, as_of)
    output.note(f"{lake.root}: statements end with ; (.help shows more, Ctrl-D ends)")
    while True:
        try:
            shell.run(session.prompt("wirehouse> "))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        except (WirehouseError, OSError, ValueError) as error:
            output.note(terminal(" ".join(str(error).split())))


def _goes_on(text: str) -> bool:
    """Whether Enter starts a new line, because the statement hasn't ended."""
    text = text.strip()
    ends = text.startswith(".") or text.endswith(";") or text.lower() in ("exit", "quit")
    return bool(text) and not ends
