"""A profile of all threads of a benchmark: the writer's thread is where a durable publish spends its time."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

TOP = 25


@contextmanager
def profiled(out: TextIO = sys.stderr) -> Iterator[None]:
    """Profile this thread and every thread that starts and ends within."""
    profiles: list[cProfile.Profile] = []
    run = threading.Thread.run

    def profiled_run(thread: threading.Thread) -> None:
        profile = cProfile.Profile()
        try:
            profile.enable()
        except ValueError:
            # From Python 3.12 on only one thread can be profiled at a time.
            run(thread)
            return
        try:
            run(thread)
        finally:
            profile.disable()
            profiles.append(profile)

    mine = cProfile.Profile()
    threading.Thread.run = profiled_run  # type: ignore[method-assign, assignment]
    mine.enable()
    try:
        yield
    finally:
        mine.disable()
        threading.Thread.run = run  # type: ignore[method-assign]
        stats = pstats.Stats(mine, stream=out)
        for profile in profiles:
            stats.add(profile)
        stats.sort_stats("tottime").print_stats(TOP)
