"""A copy of a topic that Spark makes while it is published to: the driver as a process, the publisher, and what arrived."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock import Message, MessageQueue
from penstock.log.http import HttpLog
from tests.spark.settings import PYTHONPATH

START_SECONDS = 120
ROOT = Path(__file__).parents[2]
TOO_LATE = "Python worker failed to connect back"
"""Spark gives its Python ten seconds to start. On a very busy machine a driver may die of that: it is one death more."""


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found = children[pid]
    for one in found:
        found += children[one]
    return found


class Driver:
    """The driver process, in Python, with the Java that it starts."""

    def __init__(self, module: str, given: dict[str, Any], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(given)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None, "it is piped"
        if self.process.stdout.readline().strip() != "READY":
            self.kill()
            raise AssertionError(f"the driver did not start:\n{log.read_text(errors='replace')[-5000:]}")

    def kill(self) -> None:
        """Kill -9 Python, Java and Java's Python workers, and wait until they are gone. Safe to call twice.

        Java has a session of its own. Killed without it, Python would leave a Java that still writes for a moment.
        """
        if self.process.poll() is None:
            processes = []
            for pid in (self.process.pid, *descendants(self.process.pid)):
                with suppress(ProcessLookupError):
                    processes.append(os.pidfd_open(pid))
            for process in processes:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            for process in processes:
                assert select.select([process], [], [], START_SECONDS)[0], "a killed process does not end"
                os.close(process)
        self.process.wait()
        assert self.process.stdout is not None, "it is piped"
        self.process.stdout.close()

    def is_running(self) -> bool:
        """False when Spark's Python was too late for it; any other end is an error."""
        if self.process.poll() is None:
            return True
        said = self._log.read_text(errors="replace")[-5000:]
        assert TOO_LATE in said, said
        return False


@contextmanager
def publishing(queue: MessageQueue, topic: str) -> Iterator[list[bytes]]:
    """Publish to a topic until the end; gives what was published."""
    published: list[bytes] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.05):
            batch = [b"%d" % number for number in range(len(published), len(published) + random.randint(1, 20))]
            queue.publish(topic, [Message(data=data, ordering_key=data.decode()[-1]) for data in batch])
            published.extend(batch)

    publisher = threading.Thread(target=work)
    publisher.start()
    try:
        yield published
    finally:
        is_over.set()
        publisher.join()


def count(log: HttpLog, topic: str) -> int:
    """How many messages a topic has."""
    return log.spans([topic]).streams[0].latest


def wait_for_growth(log: HttpLog, topic: str, driver: Driver) -> None:
    """Until the topic has got something that it did not have, or the driver has died."""
    wait_for(log, topic, count(log, topic) + 1, driver)


def wait_for(log: HttpLog, topic: str, wanted: int, driver: Driver) -> None:
    """Until the topic has `wanted` messages, or the driver has died."""
    wait_until(lambda: count(log, topic) >= wanted, driver)


def wait_until(look: Callable[[], bool], driver: Driver) -> None:
    """Until what the driver works for is so, or it has died."""
    deadline = time.monotonic() + START_SECONDS
    while not look() and driver.is_running():
        assert time.monotonic() < deadline, f"the driver got nowhere in {START_SECONDS} s"
        threading.Event().wait(0.02)
