"""An SQS to test against: moto's server in a process of its own, and a network in front of it that can be cut.

moto keeps everything in memory, so a server that is killed forgets its queues. Where the tests of other sources kill their
server, those of SQS cut the connections to it and refuse new ones: what the router sees is the same.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

from botocore.config import Config  # type: ignore[import-untyped]
from botocore.session import Session  # type: ignore[import-untyped]

from penstock.clock import SystemClock, monotonic
from penstock.durations import SECOND
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source, SourceContext, open_source
from penstock.router.sources.sqs import SqsSource
from penstock.testing.proxy import FaultyProxy
from tests.conformance.sources.driver import Abilities

ACCOUNT = "123456789012"
REGION = "eu-west-1"
KEYS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_REGION": REGION}
START_SECONDS = 30
BATCH_BYTES = 200_000


class SqsServer:
    """moto's server on a free port of this machine. `sqs` is Amazon's own client to it."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._log = folder / "moto.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count()

    def __enter__(self) -> Self:
        self.start()
        self.sqs: Any = Session().create_client(  # botocore makes its clients as it runs: they have no types
            "sqs",
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=Config(max_pool_connections=4),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.sqs.close()
        self.kill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when it answers."""
        command = [sys.executable, str(Path(__file__).with_name("sqs_moto.py")), "-H", "127.0.0.1", "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **KEYS})
        until = monotonic() + START_SECONDS * SECOND
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert monotonic() < until, self._log.read_text()

    def kill(self) -> None:
        """End it at once; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def create_queue(self, *, is_fifo: bool = False, **attributes: str) -> str:
        """The URL of a new queue."""
        name = f"q{next(self._numbers)}"
        if is_fifo:
            name, attributes = f"{name}.fifo", {"FifoQueue": "true", **attributes}
        return str(self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def send(self, url: str, bodies: Sequence[str], groups: Sequence[str] | None = None) -> None:
        """Put messages into a queue, in this order; with groups into a FIFO queue."""
        entries: list[dict[str, str]] = []
        size = 0
        for number, body in enumerate(bodies):
            if len(entries) == 10 or (entries and size + len(body.encode()) > BATCH_BYTES):
                self._send(url, entries)
                entries, size = [], 0
            entry = {"Id": str(len(entries)), "MessageBody": body}
            if groups is not None:
                entry |= {"MessageGroupId": groups[number], "MessageDeduplicationId": f"{next(self._numbers)}"}
            entries.append(entry)
            size += len(body.encode())
        if entries:
            self._send(url, entries)

    def left(self, url: str) -> int:
        """How many messages a queue holds, handed out or not."""
        return sum(self.counts(url))

    def counts(self, url: str) -> tuple[int, int, int]:
        """How many messages of a queue are visible, handed out, delayed."""
        names = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        visible, not_visible, delayed = (int(found[name]) for name in names)
        return visible, not_visible, delayed

    def _send(self, url: str, entries: list[dict[str, str]]) -> None:
        answer = self.sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert not answer.get("Failed"), answer

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        with suppress(OSError):
            connection.request("GET", "/moto-api/data.json")
            return connection.getresponse().status == 200
        connection.close()
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)  # a pause that ends when the process does
        return False


def source_of(url: str, endpoint: str, *, lease: int = 60, environment: Mapping[str, str] | None = None) -> SqsSource:
    """A source of the queue, not started."""
    context = SourceContext(environment={**KEYS, "SQS_ENDPOINT_OVERRIDE": endpoint, **(environment or {})}, clock=SystemClock())
    source = open_source(QueueConfig("orders", url, visibility_timeout=lease), context)
    assert isinstance(source, SqsSource)
    return source


class SqsDriver:
    """A standard queue for the conformance suite, and a network of its own to it."""

    # Of a real queue only FIFO ones promise order; moto keeps it in every queue. It takes seconds for a thousand messages.
    can = Abilities(remembers_after_crash=False, takes_empty=False, takes_binary=False, most_held=300)

    def __init__(self, server: SqsServer) -> None:
        self._server = server
        self._proxy = FaultyProxy("127.0.0.1", server.port)
        self._url = ""

    async def begin(self) -> None:
        await asyncio.to_thread(self._proxy.start)
        self._url = await asyncio.to_thread(self._server.create_queue)

    async def end(self) -> None:
        await asyncio.to_thread(self._proxy.stop)
        await asyncio.to_thread(self._server.sqs.delete_queue, QueueUrl=self._url)

    def open(self, lease_seconds: int) -> Source:
        return source_of(self._url, f"http://{self._proxy.address}", lease=lease_seconds)

    def open_elsewhere(self) -> Source:
        return source_of(self._url, f"http://127.0.0.1:{_free_port()}")

    async def crash(self, source: Source) -> None:
        self._proxy.refuse()
        self._proxy.cut()
        await source.stop()
        self._proxy.accept()

    async def send(self, bodies: Sequence[bytes]) -> None:
        await asyncio.to_thread(self._server.send, self._url, [body.decode() for body in bodies])

    async def left(self) -> int:
        return await asyncio.to_thread(self._server.left, self._url)

    async def stop_server(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()

    async def start_server(self) -> None:
        self._proxy.accept()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
