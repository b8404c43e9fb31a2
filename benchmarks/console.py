"""What the console costs its server: processor time with ten consoles open and with none, at a fixed rate of messages."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import cast

from benchmarks.console_load import RATE, VIEWS
from benchmarks.row import Benchmark, Row, Run, in_fresh_process, paired_ratio, spread
from penstock.testing.server import ServerProcess

LIMIT = 1.03


def cost(run: Run) -> Iterator[Row]:
    seconds, rounds = run.of(8, 4), run.of(20, 5)
    with ServerProcess(run.directory("server")) as server:
        found = in_fresh_process("benchmarks.console_load", server.url, server.process.pid, seconds, rounds)
    idle = cast("dict[str, list[float]]", found)
    for what, suffix in ((f"at {RATE:,} messages/s", ""), ("with no messages", " idle")):
        ours, bare = idle[f"with{suffix}"], idle[f"without{suffix}"]
        ratio = paired_ratio(ours, bare)
        yield Row(
            "console",
            f"{len(VIEWS)} open consoles {what}: the server's processor time",
            statistics.median(ours) * 1e3,
            "ms a second",
            statistics.median(bare) * 1e3,
            "without consoles",
            ratio,
            "" if suffix else f"< {LIMIT} × without",
            None if suffix else ratio < LIMIT,
            spread([each * 1e3 for each in ours]),
            "" if suffix else f"{statistics.median(idle['rate']):,.0f} messages/s were acked",
        )


BENCHMARKS: dict[str, Benchmark] = {"console": cost}
