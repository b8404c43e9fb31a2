"""An SQS that answers what a test says: for what moto never does, such as throttling, lost answers and odd HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.router.sources.sqs import SqsSource
from tests.integration.router.sqs_server import source_of
from tests.listening import stop_listening

Answer = tuple[int, dict[str, Any]] | bytes | None
"""Status and JSON, whole bytes of an answer, or nothing at all: the connection is closed."""


@dataclass
class Call:
    """A call that came."""

    action: str
    parameters: dict[str, Any]
    head: str
    connection: int
    at: float

    @property
    def receipts(self) -> list[str]:
        return [entry["ReceiptHandle"] for entry in self.parameters["Entries"]]


async def quiet(call: Call) -> Answer:
    """Everything is done, and there is never a message."""
    return settled(call)


def always(answer: Answer) -> Callable[[Call], Awaitable[Answer]]:
    """The same, whatever is asked."""

    async def say(_: Call) -> Answer:
        return answer

    return say


def settled(call: Call, **codes: tuple[str, bool]) -> Answer:
    """Everything succeeds, but for these receipts: code of the error, and whether it is the sender's fault."""
    entries = call.parameters.get("Entries", [])
    failed = [
        {"Id": entry["Id"], "Code": codes[entry["ReceiptHandle"]][0], "SenderFault": codes[entry["ReceiptHandle"]][1]}
        for entry in entries
        if entry["ReceiptHandle"] in codes
    ]
    return 200, {"Successful": [{"Id": e["Id"]} for e in entries if e["ReceiptHandle"] not in codes], "Failed": failed}


def messages(*names: str, handle: str = "") -> Answer:
    """An answer with these messages. The handle of `a` is `r-a`, if no other is given."""
    found = [{"MessageId": name, "ReceiptHandle": handle or f"r-{name}", "Body": f'{{"id":"{name}"}}'} for name in names]
    return 200, {"Messages": found}


def error(status: int, code: str, text: str = "") -> Answer:
    return status, {"__type": f"com.amazonaws.sqs#{code}", "message": text}


@dataclass
class Scripted:
    """The server. `answer` may be replaced at any time."""

    answer: Callable[[Call], Awaitable[Answer]] = quiet
    calls: list[Call] = field(default_factory=list)
    port: int = 0
    connections: int = 0
    under_way: int = 0
    most_under_way: int = 0
    serving: set[asyncio.Task[Any]] = field(default_factory=set)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call comes."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of(self, action: str) -> list[Call]:
        """The calls of one kind."""
        return [call for call in self.calls if call.action == action]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n"))}
                body = await reader.readexactly(int(fields["content-length"]))
                action = fields["x-amz-target"].removeprefix("AmazonSQS.")
                call = Call(action, json.loads(body), head, number, asyncio.get_running_loop().time())
                self.calls.append(call)
                self.under_way += 1
                self.came.set()
                self.most_under_way = max(self.most_under_way, self.under_way)
                try:
                    answer = await self.answer(call)
                finally:
                    self.under_way -= 1
                if answer is None:
                    return
                writer.write(answer if isinstance(answer, bytes) else http(*answer))
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client is gone, or the test is over
        finally:
            writer.close()
            self.serving.discard(task)

    async def busy(self, calls: int) -> None:
        """Return when so many calls are under way."""
        while self.under_way < calls:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 30)


def http(status: int, body: dict[str, Any], fields: str = "") -> bytes:
    content = json.dumps(body).encode()
    return f"HTTP/1.1 {status} OK\r\n{fields}Content-Length: {len(content)}\r\n\r\n".encode() + content


@asynccontextmanager
async def scripted(answer: Callable[[Call], Awaitable[Answer]] = quiet) -> AsyncIterator[Scripted]:
    """A server on a free port, in the loop of the test."""
    server = Scripted(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await stop_listening(listener)
        if serving := set(server.serving):
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)


URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@asynccontextmanager
async def started(server: Scripted, url: str = URL) -> AsyncIterator[SqsSource]:
    """A source of that server, stopped at the end."""
    source = source_of(url, server.endpoint)
    await source.start()
    try:
        yield source
    finally:
        await source.stop()
