"""moto's server, made fit for thousands of messages. A program: `python sqs_moto.py -H 127.0.0.1 -p PORT`.

What it answers is moto's; these only replace how it gets there. As it is, moto counts the whole queue several times for every
message that it takes or hands out, spins while the groups of a FIFO queue are blocked, and may hand one message to two callers when
its threads change between looking and taking.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from moto.server import main
from moto.sqs import models


def _unix_time(_: object = None) -> float:
    return time.time()


def _unix_time_millis(_: object = None) -> float:
    return time.time() * 1000.0


def _get_queue_attributes(self: models.SQSBackend, queue_name: str, attribute_names: list[str]) -> dict[str, Any]:
    found = self.get_queue(queue_name).attributes
    return {name: found[name] for name in attribute_names if found.get(name) is not None}


def _is_message_valid(self: models.SQSBackend, queue_name: str, message: object) -> bool:  # noqa: ARG001  # no test takes days
    return True


def _wait_for_messages(self: models.Queue, timeout: int) -> None:  # noqa: ARG001  # a lease may end at any moment
    with self._messages_lock:
        self._messages_lock.wait(0.02)


if __name__ == "__main__":
    models.unix_time = _unix_time
    models.unix_time_millis = _unix_time_millis
    models.SQSBackend.get_queue_attributes = _get_queue_attributes  # type: ignore[method-assign]
    models.SQSBackend.is_message_valid_based_on_retention_period = _is_message_valid  # type: ignore[method-assign]
    models.Queue.wait_for_messages = _wait_for_messages  # type: ignore[method-assign]
    sys.setswitchinterval(0.1)  # longer than it takes to look through a queue
    main()
