"""Every row of the speed table, each with its limit or peer measured in the same run: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import apsw
from rich.console import Console
from rich.table import Table

from benchmarks import (
    arrow_read,
    client,
    console,
    depth,
    durable,
    footprint,
    hub,
    hub_core,
    layout,
    memory_loop,
    peers,
    postgres,
    recovery,
    router,
    router_http,
    server,
    spark,
    workers,
)
from benchmarks.profiling import profiled
from benchmarks.row import Benchmark, Row, Run, missing

GROUPS: dict[str, dict[str, Benchmark]] = {
    "memory": memory_loop.BENCHMARKS,
    "durable": durable.BENCHMARKS,
    "postgres": postgres.BENCHMARKS,
    "peers": peers.BENCHMARKS,
    "footprint": footprint.BENCHMARKS,
    "depth": depth.BENCHMARKS,
    "recovery": recovery.BENCHMARKS,
    "arrow": arrow_read.BENCHMARKS,
    "server": server.BENCHMARKS,
    "client": client.BENCHMARKS,
    "console": console.BENCHMARKS,
    "workers": workers.BENCHMARKS,
    "router": router.BENCHMARKS,
    "router-http": router_http.BENCHMARKS,
    "hub": hub.BENCHMARKS,
    "hub-core": hub_core.BENCHMARKS,
    "spark": spark.BENCHMARKS,
}
LAYOUT = "layout"


def chosen(only: list[str] | None) -> dict[str, Benchmark]:
    """The benchmarks of these names or groups, in the table's order."""
    found = {
        name: benchmark
        for group, benchmarks in GROUPS.items()
        for name, benchmark in benchmarks.items()
        if only is None or name in only or group in only
    }
    known = {*GROUPS, LAYOUT, *(name for benchmarks in GROUPS.values() for name in benchmarks)}
    if only is not None and (unknown := sorted({*only} - known)):
        sys.exit(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return found


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def verdict(row: Row) -> str:
    if row.figure is None:
        return "[yellow]not measured[/]"
    if row.reached is None:
        return "–"
    return "[green]yes[/]" if row.reached else "[bold red]no[/]"


def table(rows: list[Row]) -> Table:
    found = Table(title="Penstock, measured", row_styles=["", "dim"], expand=False)
    found.add_column("row", overflow="fold", max_width=44)
    found.add_column("figure", justify="right")
    found.add_column("spread", justify="right")
    found.add_column("limit or peer, this run", justify="right", overflow="fold", max_width=34)
    found.add_column("ratio", justify="right")
    found.add_column("asked", overflow="fold", max_width=24)
    found.add_column("reached")
    for row in rows:
        found.add_row(
            row.what + (f"\n  {row.note}" if row.note else ""),
            f"{number(row.figure)} {row.unit}" if row.figure is not None else "",
            f"{number(row.spread[0])}–{number(row.spread[1])}" if row.spread else "",
            f"{number(row.against)}\n{row.against_what}" if row.against is not None else "",
            f"{row.ratio:.2f}" if row.ratio is not None else "",
            row.reach,
            verdict(row),
        )
    return found


def measure(benchmarks: dict[str, Benchmark], quick: bool, profile: bool, screen: Console) -> Iterator[Row]:
    for name, benchmark in benchmarks.items():
        started = time.perf_counter()
        # On the disk of the current directory: a temporary file system in memory would flatter every durable row.
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as where:
            run = Run(quick, Path(where), in_process=profile)
            try:
                with profiled() if profile else nullcontext():
                    yield from list(benchmark(run))
            except Exception as error:  # noqa: BLE001  # one row that fails must not hide the others
                screen.print_exception()
                yield missing(name, name, "", f"failed: {type(error).__name__}: {error}")
        screen.print(f"[dim]{name}: {time.perf_counter() - started:.1f} s[/]")


def machine() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "penstock": version("penstock"),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "sync_us": round(sync_time() * 1e6),
    }


def sync_time() -> float:
    """The median of a few fdatasyncs: ratios between durable rows depend on it, so the run says how fast the disk was."""
    with tempfile.TemporaryFile(dir=Path.cwd()) as file:
        times = []
        for _ in range(50):
            os.write(file.fileno(), b"x" * 4096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds: ratios only roughly right")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows or groups alone (see --list)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the JSON there, not to standard output")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument("--profile", action="store_true", help="profile each row; its figures are then worthless")
    options = parser.parse_args()
    if options.list:
        for group, benchmarks in GROUPS.items():
            print(f"{group}: {' '.join(benchmarks)}")
        print(f"{LAYOUT}: the figures behind the layout of the log; only when asked for")
        return
    # What a person reads goes to standard error, so that standard output is JSON alone.
    screen = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    began, about = time.perf_counter(), machine()
    rows = list(measure(chosen(options.only), options.quick, options.profile, screen))
    if rows:
        screen.print(table(rows))
        missed = sum(row.reached is False for row in rows)
        screen.print(f"{missed} of {len(rows)} rows miss what is asked; {time.perf_counter() - began:.0f} s; {about}")
        document = json.dumps({"machine": about, "quick": options.quick, "rows": [asdict(row) for row in rows]}, indent=2)
        if options.json is not None:
            options.json.write_text(document + "\n")
        else:
            print(document)
    if options.only is not None and LAYOUT in options.only:
        sys.argv = [LAYOUT, *(["--quick"] if options.quick else [])]
        layout.main()


if __name__ == "__main__":
    main()
