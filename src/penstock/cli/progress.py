"""How far long work is: a line on the standard error that is drawn again and again, when that is a terminal."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self

from penstock.cli.output import redraw
from penstock.cli.wording import short, span
from penstock.clock import monotonic
from penstock.durations import SECOND

INTERVAL = SECOND // 10
BAR = 30


class Progress:
    """Counts what is done, and shows it. Use it with `with`; the line is gone afterwards."""

    def __init__(self, label: str, total: int | None = None) -> None:
        self._label, self._total = label, total
        self._is_shown = sys.stderr.isatty()
        self._begun = monotonic()
        self._drawn = self._begun
        """Work that takes less than one interval shows nothing."""
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_shown and self._drawn != self._begun:
            redraw("")

    @property
    def seconds(self) -> float:
        """Since it began."""
        return (monotonic() - self._begun) / SECOND

    @property
    def rate(self) -> float:
        """Done in a second, on average."""
        return self.done / max(self.seconds, 1e-6)

    def advance(self, count: int) -> None:
        """So many more are done."""
        self.done += count
        now = monotonic()
        if self._is_shown and now - self._drawn >= INTERVAL:
            self._drawn = now
            width = shutil.get_terminal_size().columns - 1
            redraw(line(self._label, self.done, self._total, self.seconds, width))


def line(label: str, done: int, total: int | None, seconds: float, width: int) -> str:
    """The line as it is drawn, in at most so many characters: the bar goes first when there is no room."""
    rate = done / max(seconds, 1e-6)
    if not total:
        return f"{label}  {done:,}  {short(rate)}/s"[:width]
    share = min(done / total, 1)
    left = span((total - done) / rate) if rate and done < total else "0 s"
    numbers = f"{share:4.0%}  {done:,} of {total:,}  {short(rate)}/s  {left} left"
    filled = round(share * BAR)
    full = f"{label}  [{'#' * filled}{'.' * (BAR - filled)}]  {numbers}"
    return full if len(full) <= width else f"{label}  {numbers}"[:width]
