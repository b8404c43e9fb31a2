"""Load on the HTTP port from a bare protocol: requests made beforehand, of an answer only the status and the length are read.

It runs in a process of its own, so that client and server share the machine's cores and nothing else; its last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import repeat
from typing import Any
from urllib.parse import urlsplit

import uvloop

from benchmarks.process import Meter
from benchmarks.row import PAYLOAD

CONNECTIONS = 32
BATCH = 100
QUEUE = "load"
DEADLINE = 120
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
MESSAGE_ID = re.compile(rb'"message_id": ?("[^"]+")')


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes] | None = None
        self._data = b""
        self._end = -1

    def connection_made(self, transport: Any) -> None:  # uvloop's transports are not asyncio's
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """The whole answer, with its head."""
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._end < 0 and (head := self._data.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(self._data, 0, head)
            assert found is not None, "the answer says how long it is"
            self._end = head + 4 + int(found[1])
        if len(self._data) == self._end and self._answer is not None:
            data, self._data, self._end = self._data, b"", -1
            if data.startswith(b"HTTP/1.1 200"):
                self._answer.set_result(data)
            else:
                self._answer.set_exception(RuntimeError(data.decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        self._transport.close()


def command(name: str, /, **payload: object) -> bytes:
    """A request with one command, as it is on the wire."""
    return posted(json.dumps({"command": name, "request_id": "1", "payload": payload}).encode())


def posted(body: bytes) -> bytes:
    head = (
        "POST /api/v1/command HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


MESSAGE = "x" * PAYLOAD
PUBLISH = command("queue.publish", queue=QUEUE, message=MESSAGE)
CONSUME = command("queue.consume", queue=QUEUE)
PUBLISH_BATCH = command("queue.publish_batch", queue=QUEUE, messages=[{"message": MESSAGE}] * BATCH)
CONSUME_BATCH = command("queue.consume_batch", queue=QUEUE, max_messages=BATCH)


async def publish_one(connection: Connection) -> None:
    await connection.ask(PUBLISH)


async def take_one(connection: Connection) -> None:
    found = MESSAGE_ID.search(await connection.ask(CONSUME))
    assert found is not None, "the queue has a message for everyone"
    await connection.ask(
        posted(b'{"command":"queue.ack","request_id":"1","payload":{"queue":"load","message_id":%b}}' % found[1])
    )


async def publish_batch(connection: Connection) -> None:
    await connection.ask(PUBLISH_BATCH)


async def take_batch(connection: Connection) -> None:
    ids = MESSAGE_ID.findall(await connection.ask(CONSUME_BATCH))
    assert len(ids) == BATCH, f"{len(ids)} messages came, expected {BATCH}"
    await connection.ask(
        posted(b'{"command":"queue.ack_batch","request_id":"1","payload":{"queue":"load","message_ids":[%b]}}' % b",".join(ids))
    )


Step = Callable[[Connection], Awaitable[None]]


async def every(connections: list[Connection], steps: Iterator[Step]) -> None:
    """Do all steps, one at a time on each connection."""

    async def work(connection: Connection) -> None:
        for step in steps:
            await step(connection)

    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(work(connection))


async def connected(url: str) -> list[Connection]:
    """All connections, open."""
    host, _, port = urlsplit(url).netloc.partition(":")
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Connection, host, int(port)) for _ in range(CONNECTIONS)]
    return [connection for _, connection in made]


async def load(url: str, pid: int, publish: Step, take: Step, size: int, number: int) -> dict[str, float]:
    """Publish so many messages, then consume and ack them, `size` a command: commands and messages a second of both."""
    connections = await connected(url)
    await connections[0].ask(command("queue.delete", queue=QUEUE))
    await connections[0].ask(command("queue.create", name=QUEUE, max_depth=10 * number, prefetch_limit=0, ack_deadline_secs=600))
    calls = number // size
    warm = max(calls // 10, CONNECTIONS)
    await every(connections, repeat(publish, warm))
    await every(connections, repeat(take, warm))
    meter = Meter(pid)
    await every(connections, repeat(publish, calls))
    published = meter.read(number)
    meter = Meter(pid)
    await every(connections, repeat(take, calls))
    taken = meter.read(number)
    stats = json.loads((await connections[0].ask(command("queue.stats", queue=QUEUE))).partition(b"\r\n\r\n")[2])["payload"]
    for connection in connections:
        connection.close()
    if stats["depth"] or stats["acked"] != number + warm * size:
        raise RuntimeError(f"not everything was published, consumed and acked: {stats}")
    return {
        "publish": published["rate"],
        "publish_us": published["server_us"],
        "publish_client_us": published["client_us"],
        "take": taken["rate"],
        "take_us": taken["server_us"],
        "take_client_us": taken["client_us"],
    }


async def bare(url: str, pid: int, number: int) -> dict[str, float]:
    """The publishes alone, against a server that has no queues."""
    connections = await connected(url)
    await every(connections, repeat(publish_one, number // 10))
    meter = Meter(pid)
    await every(connections, repeat(publish_one, number))
    found = meter.read(number)
    for connection in connections:
        connection.close()
    return {"publish": found["rate"], "publish_us": found["server_us"]}


KINDS: dict[str, tuple[Step, Step, int]] = {
    "single": (publish_one, take_one, 1),
    "batch": (publish_batch, take_batch, BATCH),
}


async def _within_deadline(found: Awaitable[dict[str, float]]) -> dict[str, float]:
    async with asyncio.timeout(DEADLINE):
        return await found


def main() -> None:
    kind, url, pid, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    found = bare(url, pid, number) if kind == "bare" else load(url, pid, *KINDS[kind], number)
    print(json.dumps(uvloop.run(_within_deadline(found))))


if __name__ == "__main__":
    main()
