"""Reading a range of a stream as Arrow record batches."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.row import Benchmark, Row, Run, alternate, missing, payloads, spread
from penstock import Message, MessageQueue

MODULE = "penstock.log.arrow"
REACH = 500_000


def arrow_read(run: Run) -> Iterator[Row]:
    count = run.of(500_000, 200_000)
    what = "range read of a stream as Arrow, 100 B"
    try:
        arrow: Any = importlib.import_module(MODULE)
    except ImportError as error:
        yield missing("arrow", what, f"≥ {REACH:,} rows/s", f"cannot import {MODULE}: {error}")
        return
    for size in (100, 1_000):
        with MessageQueue(data_dir=run.directory("arrow")) as queue:
            queue.register_topic("t")
            batch = [Message(data=each) for each in payloads(size)]
            for _ in range(count // size):
                queue.publish("t", batch)

            def read(queue: MessageQueue = queue) -> float:
                start = time.perf_counter()
                rows = sum(found.num_rows for found in arrow.read_stream(queue.broker, "t", 0, count))
                spent = time.perf_counter() - start
                assert rows == count, f"read {rows} rows, expected {count}"
                return count / spent

            read()
            found = alternate(run.of(7, 5), {"ours": read})["ours"]
        rate = statistics.median(found)
        yield Row(
            "arrow",
            f"{what}, written in batches of {size:,}",
            rate,
            "rows/s",
            REACH,
            "the issue's figure",
            rate / REACH,
            f"≥ {REACH:,} rows/s",
            rate >= REACH,
            spread(found),
        )


BENCHMARKS: dict[str, Benchmark] = {"arrow": arrow_read}
