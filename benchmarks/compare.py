"""The speed of two commits side by side: ``make bench-compare BASE=<commit> ARGS=--quick``.

BASE is checked out into a temporary worktree. The sides take turns, each in processes of its own with its own `src` and its own
`benchmarks`. A ratio above 1 means that the tree here is better than BASE. The exit code is 1 when a ratio is below the floor,
and 2 when the comparison could not be made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE, NEW = "base", "new"
RATE = "per second"
MEASURES = ("time", "cpu", "instructions")
NO_PERF = "perf cannot count instructions on this machine (`perf stat -e instructions:u true` shows none); use --measure cpu"


class CannotCompare(Exception):
    """The comparison cannot be made; the text says why."""


@dataclass(slots=True)
class Figures:
    """What was measured of one row, a figure for each round."""

    unit: str
    base: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    @property
    def is_better_if_larger(self) -> bool:
        """Whether the figure is a rate; other figures are costs."""
        return self.unit.endswith("/s") or self.unit == RATE

    @property
    def ratios(self) -> list[float]:
        """For each round how much better the new side was."""
        pairs = zip(self.base, self.new, strict=True)
        return [new / base if self.is_better_if_larger else base / new for base, new in pairs]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios: what disturbs a whole round disturbs both sides of it."""
        return statistics.median(self.ratios)

    def is_noisy(self, floor: float) -> bool:
        """Whether the rounds differ by more than what the floor is meant to show."""
        quarter = len(self.ratios) // 4
        inner = sorted(self.ratios)[quarter : len(self.ratios) - quarter]
        return inner[-1] - inner[0] > 2 * (1 - floor)


@dataclass(frozen=True, slots=True)
class Side:
    """A checkout."""

    name: str
    path: Path

    def run(self, arguments: Sequence[str], measure: str = "time") -> tuple[str, float]:
        """Run Python with this side's modules; returns what it printed, and the cost of it."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPATH": f"{self.path / 'src'}{os.pathsep}{self.path}"}
        command = [sys.executable, "-P", *arguments]
        with tempfile.NamedTemporaryFile(prefix="penstock-perf-") as counted:
            if measure == "instructions":
                command = ["perf", "stat", "-x", ",", "-e", "instructions:u", "-o", counted.name, *command]
            before = os.times()
            done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)
            after = os.times()
            if done.returncode != 0:
                raise CannotCompare(f"{' '.join(arguments)} failed on {self.name}:\n{(done.stderr or done.stdout)[-2000:]}")
            if measure == "instructions":
                return done.stdout, _instructions(Path(counted.name).read_text())
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        return done.stdout, spent


def _instructions(text: str) -> float:
    found = re.search(r"^(\d+),", text, re.MULTILINE)
    if found is None:
        raise CannotCompare(NO_PERF)
    return float(found[1])


# ── the quick rows: each runs in a process of its own, on either side, and prints figures as JSON ────────────────────────


def quick_memory(_: Path) -> dict[str, float]:
    from benchmarks.memory_loop import our_batches, our_singles
    from benchmarks.row import payloads

    our_batches(payloads(5_000))
    return {"batches of 100": our_batches(payloads(60_000)), "one by one": our_singles(payloads(15_000))}


def quick_queue(_: Path) -> dict[str, float]:
    from benchmarks.memory_loop import our_work_queue
    from benchmarks.row import payloads

    our_work_queue(payloads(1_500))
    return {"publish, consume, ack": our_work_queue(payloads(15_000))}


def quick_durable(where: Path) -> dict[str, float]:
    from benchmarks.durable import open_broker, publish_from
    from benchmarks.row import payloads
    from penstock import Message

    data = payloads(100)
    with open_broker(where) as queue:

        def publish(commits: int) -> float:
            start = time.perf_counter()
            for _ in range(commits):
                queue.publish("t", [Message(data=each) for each in data])
            return commits * len(data) / (time.perf_counter() - start)

        publish(10)
        return {"batches of 100": publish(100), "16 threads": publish_from(queue, 16, 100)}


def quick_fan_out(_: Path) -> dict[str, float]:
    from benchmarks.hub import MODULE, WINDOW, server
    from benchmarks.row import in_fresh_process

    with server() as hub:
        found = in_fresh_process(MODULE, "fan-out", hub.port, hub.process.pid, 100, 800, WINDOW)
    return {"hub, 1 to 100 subscribers": found["rate"]}


def quick_embedded(_: Path) -> dict[str, float]:
    from benchmarks.row import in_fresh_process

    found = in_fresh_process("benchmarks.client_load", "embedded", "-", 0, 40_000)
    return {"one by one": found["rate"], "batches of 100": found["batched"]}


def quick_remote(where: Path) -> dict[str, float]:
    from benchmarks.client import ours
    from penstock.testing.server import ServerProcess

    with ServerProcess(where) as server:
        return {
            "durable, 1,000 in flight": ours(server, "inflight", 20_000)["rate"],
            "streaming pull and ack": ours(server, "drain", 20_000)["rate"],
        }


def quick_hub_core(_: Path) -> dict[str, float]:
    from benchmarks.hub_core import changes, filled, matches, pattern, topic

    table, count = filled(20), 10_000
    changes(table, [topic(number, "warm") for number in range(1_000)])
    return {
        "subscribe, unsubscribe": changes(table, [pattern(number, "new") for number in range(count)]),
        "match": matches(table, [topic(number * 7919 % 5_000) for number in range(4 * count)]),
    }


def quick_router(_: Path) -> dict[str, float]:
    from benchmarks.router import load
    from benchmarks.router_target import router_target

    with router_target() as target:
        return {"queue to target, in memory": load("embedded", target, 20_000)()["rate"]}


QUICK: dict[str, Callable[[Path], dict[str, float]]] = {
    "memory": quick_memory,
    "queue": quick_queue,
    "durable": quick_durable,
    "fan-out": quick_fan_out,
    "client-embedded": quick_embedded,
    "client-remote": quick_remote,
    "hub-core": quick_hub_core,
    "router": quick_router,
}


def measure_quick(side: Side, name: str, measure: str) -> dict[str, tuple[float, str]]:
    """The figures of a quick row on one side."""
    printed, cost = side.run([__file__, "--measure-quick-row", name], measure)
    if measure != "time":
        return {name: (cost, "s of processor" if measure == "cpu" else "instructions")}
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return {f"{name}: {what}": (figure, RATE) for what, figure in found.items()}


def measure_row(side: Side, name: str, measure: str) -> dict[str, tuple[float, str]]:
    """The figures of a row of `python -m benchmarks` on one side."""
    with tempfile.TemporaryDirectory() as place:
        document = Path(place) / "rows.json"
        _, cost = side.run(["-m", "benchmarks", "--quick", "--only", name, "--json", str(document)], measure)
        rows = json.loads(document.read_text())["rows"]
    if measure != "time":
        return {name: (cost, "s of processor" if measure == "cpu" else "instructions")}
    if failed := [row["note"] for row in rows if row["note"].startswith("failed")]:
        raise CannotCompare(f"{name} failed on {side.name}: {failed[0]}")
    return {f"{row['name']}: {row['what']}": (row["figure"], row["unit"]) for row in rows if row["figure"]}


def rows_of(side: Side) -> list[str]:
    """The rows that `python -m benchmarks` knows on a side."""
    printed, _ = side.run(["-m", "benchmarks", "--list"])
    lines = (line.partition(": ") for line in printed.splitlines())
    return [name for group, _, names in lines if group != "layout" for name in names.split()]


def chosen(known: Sequence[str], only: Sequence[str] | None) -> list[str]:
    """The rows to compare; CannotCompare if one of them is not known."""
    if unknown := sorted({*(only or ())} - {*known}):
        raise CannotCompare(f"no row is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if only is None or name in only]


@contextmanager
def worktree(commit: str) -> Iterator[Side]:
    """A temporary checkout of a commit."""
    resolve = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    found = subprocess.run(resolve, capture_output=True, text=True, check=False).stdout.strip()
    if not commit or not found:
        raise CannotCompare(f"there is no commit {commit!r} in this repository; give one as BASE=<commit>")
    # Beside the tree: both are then on the same disk.
    place = Path(tempfile.mkdtemp(dir=ROOT.parent, prefix=".penstock-base-"))
    try:
        add = ["git", "-C", str(ROOT), "worktree", "add", "--detach", "--force", str(place / "tree"), found]
        done = subprocess.run(add, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotCompare(f"git could not check out {commit}: {done.stderr.strip()}")
        yield Side(f"{BASE} ({found[:10]})", place / "tree")
    finally:
        remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(place / "tree")]
        subprocess.run(remove, capture_output=True, check=False)
        shutil.rmtree(place, ignore_errors=True)


def compare(base: Side, new: Side, options: argparse.Namespace) -> dict[str, Figures]:
    """Measure all rows, sides in turns; rows that only one side has are left out."""
    measure_one = measure_quick if options.quick else measure_row
    names = chosen([*QUICK] if options.quick else [name for name in rows_of(base) if name in rows_of(new)], options.only)
    for side in (base, new):
        # Or the first process of a new checkout would compile what the others find compiled.
        side.run(["-m", "compileall", "-q", "src", "benchmarks"])
    found: dict[str, Figures] = {}
    for turn in range(options.rounds):
        for name in names:
            began = time.perf_counter()
            measured = {}
            for side in (base, new) if turn % 2 == 0 else (new, base):
                measured[side.name] = measure_one(side, name, options.measure)
            for what in measured[base.name].keys() & measured[new.name].keys():
                (old, unit), (now, _) = measured[base.name][what], measured[new.name][what]
                figures = found.setdefault(what, Figures(unit))
                figures.base.append(old)
                figures.new.append(now)
            say(f"round {turn + 1} of {options.rounds}, {name}: {time.perf_counter() - began:.0f} s")
    return found


def say(text: str) -> None:
    """A line for people, beside the table."""
    print(text, file=sys.stderr, flush=True)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def report(found: dict[str, Figures], floor: float, measure: str) -> int:
    """Print the table; returns the exit code."""
    width = max(map(len, found), default=3)
    print(f"{'row':{width}}  {'base':>14}  {'new':>14}  {'ratio':>6}  {'of the rounds':>13}")
    for what, figures in sorted(found.items()):
        base, new = statistics.median(figures.base), statistics.median(figures.new)
        marks = ["below the floor"] if figures.ratio < floor else []
        marks += ["noisy"] if figures.is_noisy(floor) else []
        spread = f"{min(figures.ratios):.2f}–{max(figures.ratios):.2f}"
        print(f"{what:{width}}  {number(base):>14}  {number(new):>14}  {figures.ratio:6.3f}  {spread:>13}  {', '.join(marks)}")
    noisy = [what for what, figures in found.items() if figures.is_noisy(floor)]
    if noisy and measure == "time":
        other = "--measure instructions" if counts_instructions() else "--measure cpu (perf counts no instructions here)"
        say(f"{len(noisy)} noisy rows: try more --rounds, or {other}")
    return 1 if any(figures.ratio < floor for figures in found.values()) else 0


def counts_instructions() -> bool:
    """Whether perf can count the instructions of a process here."""
    if shutil.which("perf") is None:
        return False
    counting = ["perf", "stat", "-x", ",", "-e", "instructions:u", "true"]
    done = subprocess.run(counting, capture_output=True, text=True, check=False)
    return done.returncode == 0 and re.search(r"^\d+,", done.stderr, re.MULTILINE) is not None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-compare BASE=<commit> ARGS=…", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("base", metavar="BASE", nargs="?", default="", help="the commit to compare with")
    parser.add_argument("--quick", action="store_true", help=f"about three minutes: {', '.join(QUICK)}")
    parser.add_argument(
        "--only", nargs="+", metavar="ROW", help="only these rows; without --quick those of `make bench ARGS=--list`"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each side measures each row (5)")
    parser.add_argument("--floor", type=float, default=0.95, help="the exit code is 1 if a ratio is below this (0.95)")
    parser.add_argument(
        "--measure",
        choices=MEASURES,
        default="time",
        help="time: the row's own figures; cpu: processor time of the whole row; instructions: the same counted by perf",
    )
    parser.add_argument("--measure-quick-row", choices=[*QUICK], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure_quick_row:
        # On the disk of the checkout's directory: a temporary file system in memory would flatter every durable row.
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as where:
            print(json.dumps(QUICK[options.measure_quick_row](Path(where))))
        return 0
    try:
        if options.rounds < 1:
            raise CannotCompare(f"--rounds is {options.rounds}, expected at least 1")
        if options.quick:
            chosen([*QUICK], options.only)
        if options.measure == "instructions" and not counts_instructions():
            raise CannotCompare(NO_PERF)
        with worktree(options.base) as base:
            say(f"{base.name} and the tree here, {options.rounds} rounds")
            return report(compare(base, Side(NEW, ROOT), options), options.floor, options.measure)
    except CannotCompare as problem:
        say(f"bench-compare: {problem}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
