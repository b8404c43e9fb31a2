"""The same work queues, reached in two ways: in this process, and by the commands of the HTTP port."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from penstock import Broker, QueueConfig, QueueManager, RetryPolicy
from penstock.errors import PenstockError
from penstock.journal.journal import Journal
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer


class Refused(Exception):
    """An API's error, by its stable word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Queues(Protocol):
    """What the suite does. A message is a dict with the fields of specification 003; None is no message."""

    clock: ManualClock

    def create(self, queue: str, **config: Any) -> None: ...
    def delete(self, queue: str) -> None: ...
    def list(self) -> list[str]: ...
    def publish(self, queue: str, payload: Any, **options: Any) -> dict[str, Any]: ...
    def consume(self, queue: str, **options: Any) -> dict[str, Any] | None: ...
    def peek(self, queue: str) -> dict[str, Any] | None: ...
    def ack(self, queue: str, message_id: str, **options: Any) -> None: ...
    def nack(self, queue: str, message_id: str, **options: Any) -> str: ...
    def extend(self, queue: str, message_id: str, seconds: float) -> None: ...
    def release(self, queue: str, consumer_id: str) -> int: ...
    def purge(self, queue: str) -> int: ...
    def stats(self, queue: str) -> dict[str, Any]: ...
    def dead_letters(self, queue: str) -> Any: ...
    def retry(self, queue: str, message_id: str) -> None: ...
    def redrive(self, queue: str) -> int: ...


@contextmanager
def _penstock_errors() -> Iterator[None]:
    try:
        yield
    except PenstockError as error:
        raise Refused(error.reason) from error


class Embedded:
    """A `QueueManager` in this process."""

    def __init__(self, clock: ManualClock, journal: Journal | None) -> None:
        self.clock = clock
        self._broker = Broker(clock=clock, journal=journal)
        self._queues = QueueManager(broker=self._broker)
        self.close = self._broker.close

    def create(self, queue: str, **config: Any) -> None:
        if "retry_policy" in config:
            config["retry_policy"] = RetryPolicy(**config["retry_policy"])
        with _penstock_errors():
            self._queues.create(queue, QueueConfig(**config))

    def delete(self, queue: str) -> None:
        with _penstock_errors():
            self._queues.delete(queue)

    def list(self) -> list[str]:
        return self._queues.list()

    def publish(self, queue: str, payload: Any, **options: Any) -> dict[str, Any]:
        with _penstock_errors():
            return asdict(self._queues.publish(queue, payload, **options))

    def consume(self, queue: str, **options: Any) -> dict[str, Any] | None:
        with _penstock_errors():
            message = self._queues.consume(queue, **options)
        return asdict(message) if message is not None else None

    def peek(self, queue: str) -> dict[str, Any] | None:
        with _penstock_errors():
            message = self._queues.peek(queue)
        return asdict(message) if message is not None else None

    def ack(self, queue: str, message_id: str, **options: Any) -> None:
        with _penstock_errors():
            self._queues.ack(queue, message_id, **options)

    def nack(self, queue: str, message_id: str, **options: Any) -> str:
        with _penstock_errors():
            return self._queues.nack(queue, message_id, **options).action

    def extend(self, queue: str, message_id: str, seconds: float) -> None:
        with _penstock_errors():
            self._queues.extend(queue, message_id, seconds)

    def release(self, queue: str, consumer_id: str) -> int:
        with _penstock_errors():
            return self._queues.release_consumer(queue, consumer_id)

    def purge(self, queue: str) -> int:
        with _penstock_errors():
            return self._queues.purge(queue)

    def stats(self, queue: str) -> dict[str, Any]:
        with _penstock_errors():
            return asdict(self._queues.stats(queue))

    def dead_letters(self, queue: str) -> Any:
        with _penstock_errors():
            return [asdict(letter) for letter in self._queues.dead_letters(queue)]

    def retry(self, queue: str, message_id: str) -> None:
        with _penstock_errors():
            self._queues.retry_dead_letter(queue, message_id)

    def redrive(self, queue: str) -> int:
        with _penstock_errors():
            return self._queues.redrive(queue)


class Commands:
    """`POST /api/v1/command`."""

    def __init__(self, clock: ManualClock, data_dir: Path) -> None:
        self.clock = clock
        self._stack = ExitStack()
        self._server = self._stack.enter_context(LocalServer(clock=clock, data_dir=data_dir))
        self.close = self._stack.close

    def call(self, command: str, **payload: Any) -> Any:
        body = json.dumps({"command": command, "request_id": "r1", "payload": payload}).encode()
        request = urllib.request.Request(f"{self._server.url}/api/v1/command", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                envelope = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                envelope = json.load(error)
            assert envelope["success"] is False
            raise Refused(envelope["code"]) from error
        assert (envelope["success"], envelope["request_id"]) == (True, "r1")
        return envelope["payload"]

    def create(self, queue: str, **config: Any) -> None:
        if not self.call("queue.create", queue=queue, **config)["created"]:
            raise Refused("already_exists")

    def delete(self, queue: str) -> None:
        if not self.call("queue.delete", queue=queue)["deleted"]:
            raise Refused("queue_not_found")

    def list(self) -> list[str]:
        names: list[str] = self.call("queue.list")["queues"]
        return names

    def publish(self, queue: str, payload: Any, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("queue.publish", queue=queue, message=payload, **options)
        return answer

    def consume(self, queue: str, **options: Any) -> dict[str, Any] | None:
        consumer = options.pop("consumer_id", None)
        if consumer is None:
            return _message(self.call("queue.consume", queue=queue, **options))
        [*found] = self.call("queue.consume_batch", queue=queue, consumer_id=consumer, max_messages=1, **options)["messages"]
        return _message(found[0]) if found else None

    def peek(self, queue: str) -> dict[str, Any] | None:
        return _message(self.call("queue.peek", queue=queue))

    def ack(self, queue: str, message_id: str, **options: Any) -> None:
        self.call("queue.ack", queue=queue, message_id=message_id, **options)

    def nack(self, queue: str, message_id: str, **options: Any) -> str:
        action: str = self.call("queue.nack", queue=queue, message_id=message_id, **options)["action"]
        return action

    def extend(self, queue: str, message_id: str, seconds: float) -> None:
        self.call("queue.extend", queue=queue, message_id=message_id, seconds=seconds)

    def release(self, queue: str, consumer_id: str) -> int:
        count: int = self.call("queue.release_consumer", queue=queue, consumer_id=consumer_id)["released"]
        return count

    def purge(self, queue: str) -> int:
        count: int = self.call("queue.purge", queue=queue)["purged"]
        return count

    def stats(self, queue: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("queue.stats", queue=queue)
        return answer

    def dead_letters(self, queue: str) -> Any:
        letters = self.call("queue.dead_letters", queue=queue)
        return next(value for value in letters.values() if isinstance(value, list))

    def retry(self, queue: str, message_id: str) -> None:
        self.call("queue.retry_dead_letter", queue=queue, message_id=message_id)

    def redrive(self, queue: str) -> int:
        count: int = self.call("queue.redrive", queue=queue)["redriven"]
        return count


def _message(fields: dict[str, Any]) -> dict[str, Any] | None:
    """The specification calls the payload `message` on the wire."""
    return fields | {"payload": fields["message"]} if fields["message_id"] is not None else None
