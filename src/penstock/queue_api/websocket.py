"""A consumer over a WebSocket: the server sends messages, one frame each, and the client settles them by frames.

    server: {"type": "connected", "queue", "consumer_id", "prefetch"}, then {"type": "message", "message_id", "payload", …}
    client: {"command": "ack" | "nack" | "extend", "message_id", "requeue"?, "seconds"?}
    server: {"type": "error", "error", "code", "message_id"?} for what could not be done; the socket stays open

The socket holds at most `prefetch` messages: no more are sent until one is settled, so what waits for a slow reader is bounded. A
socket is a consumer of its own, also when two have the same consumer id; what it holds returns when it closes, without
counting a retry.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Meta

from penstock.api.queues import ProjectQueues, Queues
from penstock.durations import to_datetime
from penstock.errors import ConsumerNotFound, InvalidArgument, MessageNotFound, PenstockError, QueueNotFound, Unauthenticated
from penstock.http.authentication import Admission
from penstock.http.decoding import UNREADABLE, explain
from penstock.http.refusal import ErrorBody
from penstock.http.request import Request, open_websocket
from penstock.http.routes import Operation, Parameter, Route
from penstock.queue_api import requests
from penstock.queue_api.http import PROJECT, project_queues, query_value
from penstock.queue_api.socket_server import TURN
from penstock.values.queue import Delivery

MAX_FRAME_BYTES = 64 * 1024
"""The maximum size of a frame from the client: commands are small."""
GONE = 4404
"""The close code when the queue is deleted."""
UNAUTHORIZED = 4401
"""The close code when the token was revoked or has expired."""
_PATIENCE = 3600
"""Seconds of one wait; then it waits again."""


class Settle(requests.Fields, kw_only=True):
    """A frame of a client."""

    command: Literal["ack", "nack", "extend"]
    message_id: str
    requeue: bool = True
    error: str | None = None
    seconds: Annotated[float, Meta(gt=0)] = 30


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A frame of the server: a welcome, or an error."""

    type: str
    queue: str | None = None
    consumer_id: str | None = None
    prefetch: int | None = None
    message_id: str | None = None
    error: str | None = None
    code: str | None = None


class MessageFrame(msgspec.Struct, kw_only=True):
    """A message."""

    type: str = "message"
    message_id: str
    payload: list[int]
    priority: int
    retry_count: int
    max_retries: int
    created_at: datetime
    headers: dict[str, str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settle).decode


class Consumers:
    """Serves the consumers of all queues."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._numbers = itertools.count(1)

    def route(self, errors: ErrorBody, parameters: tuple[Parameter, ...]) -> Route:
        prefetch = Parameter("prefetch", "Messages that may be unsettled at once.", requests.Prefetch)
        operation = Operation(
            "Consume over a WebSocket.", __doc__ or "", ("queues",), (*parameters, prefetch, PROJECT), is_websocket=True
        )
        return Route("GET", "/queue/{name}/ws/{consumer_id}", self.handle, operation, errors)

    async def handle(self, request: Request) -> web.StreamResponse:
        queue, consumer_id = request.match_info["name"], request.match_info["consumer_id"]
        queues = project_queues(self._queues, request)
        consumer = f"{consumer_id}#{next(self._numbers)}"
        queues.connection = request.peer
        prefetch = queues.admit(queue, consumer, query_value(request, "prefetch", int))
        socket = await open_websocket(request, max_message_bytes=MAX_FRAME_BYTES)
        session = _Session(queues, queue, consumer, prefetch=prefetch, socket=socket, admission=request.admission())
        await session.send(Frame(type="connected", queue=queue, consumer_id=consumer_id, prefetch=prefetch))
        await session.run(request.stopping)
        return socket


class _Session:
    """One socket and the messages it holds."""

    def __init__(
        self,
        queues: ProjectQueues,
        queue: str,
        consumer: str,
        *,
        prefetch: int,
        socket: web.WebSocketResponse,
        admission: Admission,
    ) -> None:
        self._queues = queues
        self._queue = queue
        self._consumer = consumer
        self._prefetch = prefetch
        self._socket = socket
        self._admission = admission

    async def run(self, stopping: asyncio.Event) -> None:
        """Send and receive until the socket closes; then release its messages."""
        sender = asyncio.create_task(self._send_messages(stopping))
        # Whatever happens to this task, which is cancelled with the connection: once nothing leases any more, release all.
        sender.add_done_callback(self._give_back)
        try:
            with suppress(ConnectionError):
                await self._listen()
        finally:
            sender.cancel()
            await asyncio.wait([sender])
        if not sender.cancelled():
            sender.result()

    def _give_back(self, _: asyncio.Task[None]) -> None:
        with suppress(PenstockError):  # it never consumed, or the queue was deleted
            self._queues.release_consumer(self._queue, self._consumer)

    async def send(self, frame: msgspec.Struct) -> None:
        """Send a frame, waiting while the client does not read."""
        await self._socket.send_str(_encode(frame).decode())

    async def _send_messages(self, stopping: asyncio.Event) -> None:
        try:
            with suppress(ConnectionError):  # the client is gone, which ends the other half too
                # The broker counts this consumer's messages, and wakes it when a message arrives or one is settled.
                while not stopping.is_set() and not self._queues.is_stopping:
                    for message in await self._queues.lease(
                        self._queue, self._consumer, max_messages=self._prefetch, wait=_PATIENCE, prefetch=self._prefetch
                    ):
                        self._admission.check()
                        await self.send(_message_frame(message))
        except PenstockError as error:
            await self._end(error)
        else:
            await self._socket.close(code=1001, message=b"the server is stopping")

    async def _end(self, error: PenstockError) -> None:
        match error:
            case QueueNotFound():
                code, reason = GONE, "the queue was deleted"
            case Unauthenticated():
                code, reason = UNAUTHORIZED, error.problem
            case _:
                code, reason = 1011, error.reason
        await self._socket.close(code=code, message=reason.encode())

    async def _listen(self) -> None:
        number = 0
        async for frame in self._socket:
            number += 1
            if number % TURN == 0:
                await asyncio.sleep(0)  # serve other tasks: frames that are already here would otherwise occupy the loop
            try:
                self._admission.check()
            except PenstockError as error:
                await self._end(error)
                return
            if frame.type is WSMsgType.TEXT:
                await self._settle(frame.data)
            elif frame.type is WSMsgType.BINARY:
                await self._refuse(InvalidArgument("the frame is binary, expected a text frame with a JSON object"))

    async def _settle(self, text: str) -> None:
        try:
            fields = _decode(text)
        except UNREADABLE as error:
            await self._refuse(explain(error, Settle))
            return
        try:
            match fields.command:
                case "ack":
                    self._queues.ack(self._queue, fields.message_id, self._consumer)
                case "nack":
                    self._queues.nack(self._queue, fields.message_id, fields.requeue, consumer=self._consumer, error=fields.error)
                case "extend":
                    await self._queues.extend_message(self._queue, fields.message_id, fields.seconds, self._consumer)
        except ConsumerNotFound:
            await self._refuse(MessageNotFound(fields.message_id), fields.message_id)  # another consumer holds it now
        except PenstockError as error:
            await self._refuse(error, fields.message_id)

    async def _refuse(self, error: PenstockError, message_id: str | None = None) -> None:
        await self.send(Frame(type="error", error=error.message, code=error.reason, message_id=message_id))


def _message_frame(message: Delivery) -> MessageFrame:
    return MessageFrame(
        message_id=message.message_id,
        payload=list(message.data),
        priority=message.priority,
        retry_count=message.retry_count,
        max_retries=message.max_retries,
        created_at=to_datetime(message.published_at),
        headers=message.headers or {},
    )
