"""What the proof shows, and the one place that imports `rich`. Holds no step and knows no broker."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.extras import how_to_install

try:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding
    from rich.rule import Rule
    from rich.table import Table
except ImportError:
    sys.exit(f"penstock: this needs rich: {how_to_install('demo')}")

WIDTH = 80


class ClaimFailed(Exception):
    """Something was said that does not hold."""


class Screen:
    """Prints steps, and what each proves. Plain text where there is no terminal; never more than 80 columns."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        # A log or a CI page has no width, whatever its environment claims.
        self._console = Console(width=min(WIDTH, console.width) if console.is_terminal else WIDTH, highlight=False)
        self._started = monotonic()
        self._steps = 0
        self.claims = 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return (monotonic() - self._started) / SECOND

    def title(self, text: str, below: str) -> None:
        """The first lines."""
        self._console.print(f"[bold]{escape(text)}[/]")
        self._console.print(escape(below))

    def step(self, name: str) -> None:
        """Begin the next step."""
        self._steps += 1
        self._console.print()
        self._console.print(Rule(f"[bold]{self._steps}. {escape(name)}[/]", align="left", style="dim"))

    def say(self, text: str) -> None:
        """What happens."""
        self._console.print(escape(text))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """What happened, in rows."""
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        self._console.print(Padding(table, (0, 0, 0, 2), expand=False))

    def proves(self, claim: str, holds: bool, found: object = None) -> None:
        """A claim that was checked. Everything ends here, in red, when it does not hold."""
        if not holds:
            self._console.print(f"  [bold red]FAILED[/] {escape(claim)}")
            raise ClaimFailed(f"{claim} (found: {found!r})")
        self.claims += 1
        mark = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        mark.add_row("[bold green]proved[/]", escape(claim))
        self._console.print(Padding(mark, (0, 0, 0, 2), expand=False))

    def end(self, text: str) -> None:
        """The last lines."""
        self._console.print()
        self._console.print(f"[bold green]{escape(text)}[/]")

    def fail(self, text: str) -> None:
        """The last line when something did not go well."""
        self._console.print()
        self._console.print(f"[bold red]It failed: {escape(text)}[/]")
