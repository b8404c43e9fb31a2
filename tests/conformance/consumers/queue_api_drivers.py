"""The queue API: `consume` over HTTP, and the WebSocket."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, ClassVar

import aiohttp

from tests.conformance.consumers.driver import Consumer, Driver, Streamer, Taken, Taker
from tests.conformance.consumers.native_drivers import NO_HANDLES, NO_KEYS, NO_WAIT
from tests.conformance.consumers.place import Kind

_numbers = itertools.count()


class Refused(Exception):
    """An error of the API, by its stable word."""


class _QueueApi(Driver):
    kind = Kind.QUEUE
    is_remote = True
    cannot: ClassVar = {
        "keys": NO_KEYS,
        "one of a key": NO_KEYS,
        "exactly once": "work queues have no such setting",
        "stale ack": NO_HANDLES,
        "limit by bytes": "the prefetch is a number of messages",
    }

    def session(self) -> aiohttp.ClientSession:
        headers = {"X-Penstock-Project": self.scene.project}
        if self.scene.token is not None:
            headers["Authorization"] = f"Bearer {self.scene.token}"
        session = aiohttp.ClientSession(self.server.url, headers=headers, timeout=aiohttp.ClientTimeout(None))
        self.rest.push_async_callback(session.close)
        return session


class CommandTaker(Taker):
    """`queue.consume_batch`."""

    def __init__(self, session: aiohttp.ClientSession, patience: float, prefetch: int | None) -> None:
        super().__init__(patience)
        self._session = session
        self._consumer = f"consumer-{next(_numbers)}"
        self._prefetch = {} if prefetch is None else {"prefetch": prefetch}

    async def _call(self, command: str, **payload: Any) -> Any:
        body = {"command": command, "payload": {"queue": "work", "consumer_id": self._consumer, **payload}}
        async with self._session.post("/api/v1/command", json=body) as answer:
            envelope = await answer.json()
        if not envelope["success"]:
            raise Refused(envelope["code"])
        return envelope["payload"]

    async def take(self, count: int = 1, *, wait: float) -> list[Taken]:
        found = await self._call("queue.consume_batch", max_messages=count, timeout=wait, **self._prefetch)
        return [Taken(one["message"].encode(), one["retry_count"] + 1, one["message_id"]) for one in found["messages"]]

    async def ack(self, *taken: Taken) -> None:
        await self._call("queue.ack_batch", message_ids=[one.handle for one in taken])

    async def nack(self, *taken: Taken) -> None:
        await self._call("queue.nack_batch", message_ids=[one.handle for one in taken], requeue=True)

    async def modify(self, seconds: int, *taken: Taken) -> None:
        for one in taken:
            await self._call("queue.extend", message_id=one.handle, seconds=seconds)

    async def close(self) -> None:
        await self._session.close()

    async def vanish(self) -> None:
        await self._session.close()


class QueueHttp(_QueueApi):
    name = "queue HTTP consume"
    keeps_leases = True
    longest_wait = 86_400
    cannot: ClassVar = {
        **_QueueApi.cannot,
        "meets": "an answer may be on its way when its client hangs up; its lease ends",
    }

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        return CommandTaker(self.session(), self.patience, max_messages)


class SocketStreamer(Streamer):
    """`/queue/{name}/ws/{consumer_id}`."""

    def __init__(self, session: aiohttp.ClientSession, patience: float) -> None:
        super().__init__(patience)
        self._session = session
        self._socket: aiohttp.ClientWebSocketResponse
        self._reader: asyncio.Task[None]

    async def start(self, prefetch: int) -> None:
        self._socket = await self._session.ws_connect(f"/queue/work/ws/one?prefetch={prefetch}")
        welcome = await self._socket.receive_json(timeout=self.patience)
        assert welcome["type"] == "connected"
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self._socket:
            fields = frame.json()
            if fields["type"] == "message":
                self.add(Taken(bytes(fields["payload"]), fields["retry_count"] + 1, fields["message_id"]))
        self.has_ended(str(self._socket.close_code))

    async def _settle(self, command: str, taken: tuple[Taken, ...]) -> None:
        for one in taken:
            await self._socket.send_json({"command": command, "message_id": one.handle})

    async def ack(self, *taken: Taken) -> None:
        await self._settle("ack", taken)

    async def nack(self, *taken: Taken) -> None:
        await self._settle("nack", taken)

    async def close(self) -> None:
        await self._socket.close()
        await asyncio.wait([self._reader])
        await self._session.close()

    async def vanish(self) -> None:
        connection = self._socket._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        await asyncio.wait([self._reader])


class QueueWebSocket(_QueueApi):
    name = "queue WebSocket"
    after_recreation = "ends"
    cannot: ClassVar = {
        **_QueueApi.cannot,
        "wait": NO_WAIT,
        "longest wait": "a socket does not end by itself",
        "late ack": "a lease that ends is redelivered to the same socket",
        "leases outlive their consumer": "what a socket holds is released when it closes",
    }

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        streamer = SocketStreamer(self.session(), self.patience)
        await streamer.start(max_messages or 100)
        return streamer


DRIVERS: list[type[Driver]] = [QueueHttp, QueueWebSocket]
