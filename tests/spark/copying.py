"""A copy of a topic that Spark makes while it is published to: the driver as a process, the publisher, and what arrived."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock import Message, MessageQueue
from penstock.log.http import HttpLog

START_SECONDS = 120
DRIVER = Path(__file__).with_name("sink_driver.py")


class Driver:
    """The driver process; all that it started is in its process group."""

    def __init__(self, given: dict[str, Any], log: Path, script: Path = DRIVER) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(script), json.dumps(given)],
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
        """Kill -9: Python and the Java that it started. Safe to call twice."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None, "it is piped"
        self.process.stdout.close()

    def end(self, seconds: float = START_SECONDS) -> int:
        """Wait until it has ended by itself; returns how."""
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-5000:]


@contextmanager
def publishing(queue: MessageQueue, topic: str) -> Iterator[list[bytes]]:
    """Publish to a topic until the end; gives what was published."""
    published: list[bytes] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.05):
            batch = [b"%d" % number for number in range(len(published), len(published) + random.randint(1, 60))]
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


def wait_for_growth(log: HttpLog, topic: str) -> None:
    """Until the topic has got something that it did not have."""
    wait_for(log, topic, count(log, topic) + 1)


def wait_for(log: HttpLog, topic: str, wanted: int) -> None:
    """Until the topic has so many messages."""
    deadline = time.monotonic() + START_SECONDS
    while (found := count(log, topic)) < wanted:
        assert time.monotonic() < deadline, f"{topic} has {found} messages after {START_SECONDS} s, wanted {wanted}"
        threading.Event().wait(0.05)
