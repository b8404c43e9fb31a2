"""moto's server, made fit for thousands of messages and several callers. A program: `python sqs_moto.py -H 127.0.0.1 -p PORT`.

What it answers is moto's; this replaces how it gets there. As it is, moto counts the whole queue several times for every message
that it takes or hands out, spins while the groups of a FIFO queue are blocked, and its threads get in each other's way: a message
may be handed out twice, one that is deleted may come back, and of a group whose leases ended the second comes before the first.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from moto.server import main
from moto.sqs import models
from moto.sqs.models import Message, Queue, SQSBackend

LOOK_SECONDS = 0.02
"""How often a long poll looks: a lease may end at any moment."""

_alone = threading.RLock()
_moments: list[float] = []
"""The present in milliseconds, while it stands still."""
_receive = SQSBackend.receive_message


def _receive_message(
    self: SQSBackend, queue_name: str, count: int, wait_seconds_timeout: int, *arguments: Any, **named: Any
) -> list[Message]:
    until = time.monotonic() + wait_seconds_timeout
    while True:
        with _alone:
            _end_leases(self.get_queue(queue_name))
            found = _receive(self, queue_name, count, 0, *arguments, **named)
            _moments.clear()
        if found or time.monotonic() >= until:
            return found
        time.sleep(LOOK_SECONDS)


def _end_leases(queue: Queue) -> None:
    """Let go of every message whose lease is over, and let time stand still until the next are chosen.

    As it is, moto passes over the first message of a group whose second still counts as handed out, then finds that the second
    is not any more, and hands that out before the first.
    """
    _moments.append(time.time() * 1000.0)
    queue._pending_messages = {message for message in queue._pending_messages if not message.visible}


def _get_queue_attributes(self: SQSBackend, queue_name: str, attribute_names: list[str]) -> dict[str, Any]:
    found = self.get_queue(queue_name).attributes
    return {name: found[name] for name in attribute_names if found.get(name) is not None}


def _millis(_: object = None) -> float:
    return next(iter(_moments), time.time() * 1000.0)


def _alone_in(name: str) -> None:
    """Let nothing else go on while this is done."""
    method = getattr(SQSBackend, name)

    def locked(*arguments: Any, **named: Any) -> Any:
        with _alone:
            return method(*arguments, **named)

    setattr(SQSBackend, name, locked)


if __name__ == "__main__":
    changes: dict[Any, dict[str, Any]] = {
        models: {"unix_time": lambda _=None: time.time(), "unix_time_millis": _millis},
        SQSBackend: {
            "receive_message": _receive_message,
            "get_queue_attributes": _get_queue_attributes,
            "is_message_valid_based_on_retention_period": lambda *_: True,  # no test takes days
        },
    }
    for place, replacements in changes.items():
        for name, replacement in replacements.items():
            assert hasattr(place, name)
            setattr(place, name, replacement)
    for name in ("send_message", "delete_message", "change_message_visibility", "get_queue_attributes", "purge_queue"):
        _alone_in(name)
    main()
