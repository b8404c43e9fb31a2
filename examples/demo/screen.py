"""The picture of the demo: what happens scrolls by, and the shop's figures stay below it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from proof.screen import Screen

BARS = "▁▂▃▄▅▆▇█"
KEPT = 36
"""How many rates a line of bars shows."""


class Figure(NamedTuple):
    """One line of the picture: a count of something, and a word about it."""

    name: str
    total: int
    note: str = ""
    is_bad: bool = False


class LiveScreen(Screen):
    """A `Screen` with a picture of the shop below what was said. `headless` leaves out the picture."""

    def __init__(self, *, headless: bool) -> None:
        super().__init__()
        self._live = None if headless or not self._console.is_terminal else Live(console=self._console, refresh_per_second=4)
        self._rates: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update("")
            self._live.stop()

    def show(self, title: str, figures: Sequence[Figure], footer: Sequence[str], seconds: float) -> None:
        """Draw the picture; `seconds` have passed since it was drawn last."""
        for figure in figures:
            rates = self._rates.setdefault(figure.name, deque(maxlen=KEPT))
            rates.append(max(figure.total - self._counts.get(figure.name, 0), 0) / seconds)
            self._counts[figure.name] = figure.total
        if self._live is not None:
            self._live.update(self._picture(title, figures, footer))

    def _picture(self, title: str, figures: Sequence[Figure], footer: Sequence[str]) -> RenderableType:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
        for width, justify in ((17, "left"), (9, "right"), (7, "right"), (None, "left")):
            table.add_column(width=width, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]  # literals
        for figure in figures:
            rates = self._rates[figure.name]
            style = "bold red" if figure.is_bad else ""
            about = Text(figure.note, style="red" if figure.is_bad else "dim") if figure.note else Text(bars(rates), style="cyan")
            table.add_row(figure.name, Text(f"{figure.total:,}", style=style), Text(f"{rates[-1]:,.0f}/s", style="dim"), about)
        return Panel(Group(table, *(Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in footer)), title=title)


def bars(rates: Sequence[float]) -> str:
    """A line of bars, the highest of them full."""
    top = max(rates, default=0)
    return "".join(BARS[round(rate / top * (len(BARS) - 1))] if top else BARS[0] for rate in rates)
