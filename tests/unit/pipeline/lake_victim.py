"""An archiver that is killed, as a process of its own: `python -m tests.unit.pipeline.lake_victim DATA LAKE CHECKPOINT`.

It takes a few rows at a time, as batches of a query would, and merges small files now and then.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from penstock.errors import Aborted
from penstock.log.directory import DirectoryLog
from penstock.pipeline.job import Plan, Target
from penstock.pipeline.lake.archiver import Archiver
from penstock.pipeline.lake.table import Lake

NO_SPARK: Any = None
"""Small batches need none."""


def archiver(data: str, lake: str, checkpoint: Path) -> Archiver:
    """What the archive of messages runs."""
    return Archiver(Plan(Target(path=data), lake, str(checkpoint)), "messages", checkpoint)


def plan_batch(checkpoint: Path, number: int, ends: dict[str, tuple[int, int]]) -> None:
    """Write down where a batch ends, as Spark does before it runs it."""
    path = checkpoint / "offsets" / str(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"v1\n{{}}\n{json.dumps(ends)}")


def main(data: str, lake: str, checkpoint: str) -> None:
    """Archive until killed."""
    mine, moments = archiver(data, lake, Path(checkpoint)), random.SystemRandom()
    with DirectoryLog(data) as log:
        (span,) = log.spans().streams
    print("READY", flush=True)
    table = Lake(lake).table("messages")
    for turn in range(1_000_000):
        before = table.watermark().streams.get(span.stream)
        stop = min((before.offset if before else 0) + moments.randint(1, 5), span.latest)
        plan_batch(Path(checkpoint), 0, {span.stream: (span.number, stop)})
        try:
            mine.catch_up(NO_SPARK)
        except Aborted:  # another one was faster
            continue
        if turn % 7 == 6:
            table.compact(1 << 20)


if __name__ == "__main__":
    main(*sys.argv[1:])
