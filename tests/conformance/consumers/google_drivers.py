"""Google's Pub/Sub API over gRPC: StreamingPull, unary Pull, and push."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from contextlib import suppress
from typing import Any, ClassVar

import grpc
import grpc.aio
import msgspec
from aiohttp import web

from penstock.google import messages
from tests.conformance.consumers.driver import PATIENCE, Consumer, Driver, Streamer, Taken, Taker
from tests.conformance.consumers.place import DEADLINE, Kind
from tests.listening import stop_listening

_PATHS = {path.rpartition("/")[2]: path for path in messages.METHODS}

NO_LIMIT = "a Pull takes what it asks for"


class GoogleClient:
    """Calls by name, on a connection of its own. Each request is the test's own."""

    def __init__(self, address: str, token: str | None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(address, options)
        self.metadata = [("authorization", f"Bearer {token}")] if token is not None else None

    async def call(self, name: str, request: Any) -> Any:
        path = _PATHS[name]
        method: Any = self.channel.unary_unary(path)
        answer = await method(request.SerializeToString(), timeout=PATIENCE + 10, metadata=self.metadata)
        return messages.METHODS[path].response.FromString(answer)

    def stream(self) -> Any:
        method: Any = self.channel.stream_stream(_PATHS["StreamingPull"])
        return method(metadata=self.metadata)

    async def close(self) -> None:
        await self.channel.close()


def taken(one: Any) -> Taken:
    return Taken(one.message.data, one.delivery_attempt, one.ack_id)


class _Settling(Consumer):
    """Settles by unary calls, as Google's clients do."""

    client: GoogleClient
    subscription: str

    async def ack(self, *taken: Taken) -> None:
        ids = [one.handle for one in taken]
        with suppress(grpc.aio.AioRpcError):  # an exactly-once subscription refuses a lease that is over
            await self.client.call("Acknowledge", messages.AcknowledgeRequest(subscription=self.subscription, ack_ids=ids))

    async def nack(self, *taken: Taken) -> None:
        await self.modify(0, *taken)

    async def modify(self, seconds: int, *taken: Taken) -> None:
        ids = [one.handle for one in taken]
        request = messages.ModifyAckDeadlineRequest(subscription=self.subscription, ack_ids=ids, ack_deadline_seconds=seconds)
        await self.client.call("ModifyAckDeadline", request)

    async def close(self) -> None:
        await self.client.close()

    async def vanish(self) -> None:
        await self.client.close()


class PullTaker(_Settling, Taker):
    """Unary Pull, which waits for a second."""

    def __init__(self, client: GoogleClient, subscription: str, patience: float) -> None:
        super().__init__(patience)
        self.client, self.subscription = client, subscription

    async def take(self, count: int = 1, *, wait: float) -> list[Taken]:
        request = messages.PullRequest(subscription=self.subscription, max_messages=count, return_immediately=not wait)
        return [taken(one) for one in (await self.client.call("Pull", request)).received_messages]


class PullStreamer(_Settling, Streamer):
    """StreamingPull."""

    def __init__(self, client: GoogleClient, subscription: str, patience: float) -> None:
        super().__init__(patience)
        self.client, self.subscription = client, subscription
        self._call: Any = None
        self._reader: asyncio.Task[None]
        self._is_open = asyncio.Event()

    async def start(self, max_messages: int | None, max_bytes: int | None) -> None:
        self._call = self.client.stream()
        await self._call.write(
            messages.StreamingPullRequest(
                subscription=self.subscription,
                stream_ack_deadline_seconds=DEADLINE,
                max_outstanding_messages=max_messages or 0,
                max_outstanding_bytes=max_bytes or 0,
            ).SerializeToString()
        )
        self._reader = asyncio.create_task(self._read())
        await self._is_open.wait()  # the first answer describes the subscription

    async def _read(self) -> None:
        try:
            async for answer in self._call:
                self._is_open.set()
                for one in messages.StreamingPullResponse.FromString(answer).received_messages:
                    self.add(taken(one))
        except grpc.aio.AioRpcError as error:
            self.has_ended(error.code().name.lower())
        except asyncio.CancelledError:
            self.has_ended("cancelled")
        else:
            self.has_ended("ok")
        finally:
            self._is_open.set()

    async def finish(self) -> None:
        """End the stream, and return when the server has ended it too; the connection stays, for unary calls."""
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.done_writing()
        await self._reader

    async def close(self) -> None:
        await self.finish()
        await self.client.close()

    async def vanish(self) -> None:
        self._call.cancel()
        await self._reader
        await self.client.close()


class _Google(Driver):
    kind = Kind.SUBSCRIPTION
    is_remote = True
    keeps_leases = True
    honours_late_acks = True

    @property
    def subscription(self) -> str:
        return f"projects/{self.scene.project}/subscriptions/work"

    def client(self) -> GoogleClient:
        client = GoogleClient(self.server.grpc, self.scene.token)
        self.rest.push_async_callback(client.close)
        return client


class GoogleStream(_Google):
    name = "Google StreamingPull"
    after_recreation = "ends"
    cannot: ClassVar = {
        "wait": "a stream has no wait of its own that could be cancelled",
        "longest wait": "a stream does not end by itself",
        "one of a key": "a stream may have several messages of a key outstanding",
    }

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        stream = PullStreamer(self.client(), self.subscription, self.patience)
        await stream.start(max_messages, max_bytes)
        return stream

    async def released(self) -> None:
        # Until the server notices that the client of a stream is gone, it leases to it once more.
        number = self.broker.catalog.subscription(self.place.name).number
        await self.place.until(lambda _: number not in self.broker.notifier.callbacks, self.patience)
        await super().released()


class GooglePull(_Google):
    name = "Google Pull"
    cannot: ClassVar = {
        "meets": "an answer may be on its way when its call is cancelled; Google's clients cannot return it, its lease ends",
        "tokens": "a Pull waits for a second, which is how often a server looks at its tokens",
        "longest wait": "a Pull waits for a second, whatever its client asks for",
        "limit by count": NO_LIMIT,
        "limit by bytes": NO_LIMIT,
    }

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        return PullTaker(self.client(), self.subscription, self.patience)


class PushConsumer(Streamer):
    """An endpoint. It answers each POST when the message is settled."""

    def __init__(self, client: GoogleClient, subscription: str, patience: float) -> None:
        super().__init__(patience)
        self._client, self._subscription = client, subscription
        self._answers: set[asyncio.Future[int]] = set()
        self._served = web.Server(self._answer, handler_cancellation=True)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(self._served, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        await self._configure(f"http://127.0.0.1:{port}/")

    async def _configure(self, endpoint: str) -> None:
        request = messages.ModifyPushConfigRequest(subscription=self._subscription, push_config={"push_endpoint": endpoint})
        await self._client.call("ModifyPushConfig", request)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = msgspec.json.decode(await request.content.read())
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers.add(answer)
        try:
            self.add(Taken(b64decode(body["message"].get("data", "")), body.get("deliveryAttempt"), answer))
            return web.Response(status=await answer)
        finally:
            self._answers.discard(answer)

    async def ack(self, *taken: Taken) -> None:
        for one in taken:
            if not one.handle.done():
                one.handle.set_result(200)

    async def nack(self, *taken: Taken) -> None:
        for one in taken:
            if not one.handle.done():
                one.handle.set_result(503)

    async def close(self) -> None:
        """Push no more; what is not answered yet fails."""
        if self._server is None:
            return
        with suppress(grpc.aio.AioRpcError):  # the subscription is gone
            await self._configure("")
        await self.vanish()

    async def vanish(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await stop_listening(server)
            self._served.pre_shutdown()
            for answer in self._answers:
                answer.cancel()
            await self._served.shutdown(0.1)


class GooglePush(_Google):
    name = "Google push"
    keeps_leases = False
    has_one_consumer = True
    most_held = 1
    cannot: ClassVar = {
        "wait": "nobody waits: the server calls",
        "longest wait": "nobody waits: the server calls",
        "tokens": "the server is the client here",
        "expiry": "a POST that takes longer than the deadline has failed",
        "late ack": "a POST that takes longer than the deadline has failed",
        "leases outlive their consumer": "a POST without an answer has failed",
        "limit by count": "the server learns by itself how much an endpoint bears",
        "limit by bytes": "the server learns by itself how much an endpoint bears",
        "order": "POSTs run side by side, unless their messages have an ordering key",
        "unharmed": "a POST that was begun counts as an attempt",
        "recreate": "a push subscription that is created again has an endpoint of its own",
    }

    async def until_retry(self) -> None:
        """A message whose POST failed waits, at most a minute."""
        await self.place.until(lambda counts: counts.in_flight == 0, self.patience)
        await self.let_deadlines_pass(61)

    async def released(self) -> None:
        await self.until_retry()

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        endpoint = PushConsumer(self.client(), self.subscription, self.patience)
        await endpoint.start()
        return endpoint


DRIVERS: list[type[Driver]] = [GoogleStream, GooglePull, GooglePush]
