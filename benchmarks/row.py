"""What a benchmark hands back, and how it measures: variants take turns within a run, medians count, the spread is shown."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAYLOAD = 100


@dataclass(frozen=True, slots=True)
class Run:
    """How this run measures: `where` is a new directory on the disk to be judged."""

    quick: bool
    where: Path
    in_process: bool = False
    """Measure in this process what is otherwise measured in a fresh one, so that a profiler sees it."""

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def directory(self, name: str) -> Path:
        """A directory that did not exist."""
        for turn in range(1_000_000):
            path = self.where / f"{name}-{turn}"
            if not path.exists():
                path.mkdir()
                return path
        raise AssertionError("no name is left")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `ratio` is the figure by `against`, both of this run; `reached` is None where nothing is asked."""

    name: str
    what: str
    figure: float | None
    unit: str
    against: float | None
    against_what: str
    ratio: float | None
    reach: str
    reached: bool | None
    spread: tuple[float, float] | None = None
    note: str = ""


Benchmark = Callable[[Run], Iterator[Row]]


def alternate(rounds: int, variants: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Let every variant measure itself once a round, in turns, and turn the order round each time."""
    names = list(variants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            gc.collect()
            found[name].append(variants[name]())
    return found


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: what disturbs a whole round disturbs both sides of it."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def spread(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def missing(name: str, what: str, reach: str, why: str) -> Row:
    """A row that could not be measured, and why."""
    return Row(name, what, None, "", None, "", None, reach, None, note=why)


def in_fresh_process(module: str, *arguments: object) -> dict[str, float]:
    """Run a module's `main` in a new interpreter and read the JSON on its last line."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def payloads(count: int) -> list[bytes]:
    """Distinct payloads, so that nothing is shared that would not be shared in use."""
    return [b"%0*d" % (PAYLOAD, number) for number in range(count)]
