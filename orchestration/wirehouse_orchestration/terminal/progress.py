"""Shows the progress of long work: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from wirehouse_orchestration.terminal.render import terminal


class Steps:
    """A bar over `total` steps on standard error. A line `NAME: ...` of a new NAME begins the next step.

    If `quiet`, nothing of it is shown.
    """

    def __init__(self, title: str, total: int, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[title]}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, title=title)
        self._names: list[str] = []

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, name: str) -> None:
        """Start step `name`. Earlier steps are done."""
        if name not in self._names:
            self._names.append(name)
        self._bar.update(self._task, completed=len(self._names) - 1, description=terminal(name))

    def say(self, text: str) -> None:
        """Show a progress line."""
        name, colon, _ = text.partition(": ")
        if colon:
            self.begin(name)
        self._bar.update(self._task, description=terminal(text))
        if not self._console.is_terminal:
            self._console.print(terminal(text), markup=False, highlight=False, soft_wrap=True)
