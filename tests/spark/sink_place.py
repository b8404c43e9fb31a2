"""Where the sink's tests write: a server with topics and queues, and what is in them afterwards."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from penstock import MessageQueue, QueueManager
from penstock.log.http import HttpLog
from penstock.testing.server import LocalServer


class Place:
    """A served broker, seen from both sides."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.topics = MessageQueue(broker=server.broker)
        self.queues = QueueManager(broker=server.broker)
        self.log = HttpLog(server.url)

    def topic(self, *names: str) -> None:
        """Make topics."""
        for name in names:
            self.topics.register_topic(name)

    def rows(self, stream: str) -> list[dict[str, Any]]:
        """All messages of a stream, in order."""
        return rows(self.log, stream)

    def values(self, stream: str) -> list[bytes]:
        """Their payloads."""
        return [row["value"] for row in self.rows(stream)]

    def staged(self) -> list[Any]:
        """The writes that wait for a commit."""
        with urllib.request.urlopen(f"{self.server.url}/log/writes", timeout=10) as answer:
            found: list[Any] = json.load(answer)
            return found

    def options(self, **others: object) -> dict[str, str]:
        """Options of the sink."""
        return {"endpoint": self.server.url, **{name: str(value) for name, value in others.items()}}


def rows(log: HttpLog, stream: str) -> list[dict[str, Any]]:
    """All messages of a stream, in order."""
    span = log.spans([stream]).streams[0]
    return [row for batch in log.messages(span, span.earliest, span.latest) for row in batch.to_pylist()]
