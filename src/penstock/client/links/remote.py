"""A broker behind a connection: found, greeted, kept, and found again when it is lost.

Whatever was asked and not answered when a connection is lost is asked again, if asking twice does nothing twice: publishes are
marked, so that the server knows a repeat, and questions change nothing. For the rest the caller is told that nobody knows.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import secrets
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock.api import frames
from penstock.api.frames import Call, Enqueue, Hello, Limits, Nack, Open, Opened, Publish, Settle, Settled
from penstock.api.operations import Operations
from penstock.api.registry import operation as known
from penstock.backoff import exponential
from penstock.broker.core.message import Message
from penstock.client.link import Channel, Receiver
from penstock.client.links.connection import Connection, ConnectionLost, StreamEnd, text_of
from penstock.clock import Clock, SystemClock, monotonic
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, ServerUnreachable, Unavailable
from penstock.work import NewMessage

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_PORT = 8085
CONNECT_SECONDS = 5.0
GIVE_UP_SECONDS = 60.0
"""How long a request waits for a connection."""
MIN_PAUSE, MAX_PAUSE = SECOND // 20, 2 * SECOND
CLOSE_SECONDS = 5.0
MAX_DISCOVERY = 10_000
QUESTIONS = ("get_", "list_", "peek", "explain", "trace", "info", "overview", "subscription_stats", "queue_stats", "dead_letters")
"""Operations that begin like this change nothing."""

_ids = msgspec.msgpack.Decoder(list[str]).decode
_opened = msgspec.msgpack.Decoder(Opened).decode
_settled = msgspec.msgpack.Decoder(Settled).decode


class RemoteLink:
    """A server by its address: `http://host:8085` (or https), where the native port is asked for, or `penstock://host:8087`."""

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        project: str | None = None,
        tls: ssl.SSLContext | None = None,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        self.address = server
        self.clock: Clock = SystemClock()
        self._scheme, self._host, self._port = _parsed(server)
        self._token, self._project, self._tls = token, project, tls
        self._give_up = round(give_up_seconds * SECOND)
        self._producer = secrets.token_hex(8)
        self._sequences = itertools.count(1)
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Connect."""
        self._is_closed = False
        await self._connect_in(CONNECT_SECONDS)

    async def close(self) -> None:
        """End the connection."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            async with asyncio.timeout(CLOSE_SECONDS):
                await connection.lost.wait()

    async def call(self, operation: Callable[Concatenate[Operations, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have an operation done."""
        found = known(operation.__name__)
        arguments = msgspec.Raw(frames.encode(dict(zip(found.parameters, args, strict=False)) | kwargs))
        result = await self._ask(lambda call: Call(call, found.name, arguments), is_repeatable=found.name.startswith(QUESTIONS))
        value: T = found.read_result(result)
        return value

    async def publish(self, topic: str, messages: list[Message]) -> list[str]:
        """Publish to a topic, once."""
        origin = (self._producer, next(self._sequences))
        return _ids(await self._ask(lambda call: Publish(call, topic, messages, origin), is_repeatable=True))

    async def enqueue(self, queue: str, messages: list[NewMessage]) -> list[str]:
        """Publish to a work queue, once."""
        origin = (self._producer, next(self._sequences))
        return _ids(await self._ask(lambda call: Enqueue(call, queue, messages, origin), is_repeatable=True))

    async def open(
        self, kind: int, name: str, consumer: str, limits: Limits, receiver: Receiver, *, held: list[int] | None = None
    ) -> Channel:
        """Begin a stream of deliveries."""
        connection = await self._connect_in(CONNECT_SECONDS)
        channel = _RemoteChannel(connection, receiver)
        await channel.open(lambda call, number: Open(call, number, kind, name, consumer, limits, held))
        return channel

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _ask(self, frame: Callable[[int], object], *, is_repeatable: bool) -> bytes:
        until = monotonic() + self._give_up
        while True:
            connection = self._connection
            if connection is None or not connection.is_usable:
                connection = await self._connected(until)
            call = connection.next_call()
            try:
                return await connection.request(call, frame(call))
            except ConnectionLost:
                if not is_repeatable:
                    raise Unavailable(
                        "the connection was lost before the answer came: it may or may not have been done",
                        hint="look whether it was done, and repeat it if not",
                    ) from None

    async def _connected(self, until: int) -> Connection:
        """A connection, trying for it until an instant."""
        failures = 0
        while True:
            try:
                return await self._connect_in(max((until - monotonic()) / SECOND, 0.001))
            except ServerUnreachable as error:
                failures += 1
                pause = exponential(failures, MIN_PAUSE, MAX_PAUSE)
                if monotonic() + pause >= until:
                    raise ServerUnreachable(
                        self.address, f"{error.problem}; gave up after {self._give_up / SECOND:g} s"
                    ) from None
                await asyncio.sleep(pause / SECOND)

    async def _connect_in(self, seconds: float) -> Connection:
        """A connection, by one try, which everybody who needs one shares."""
        if self._is_closed:
            raise FailedPrecondition("the client is closed", hint="async with PubSub(…) as pubsub: …")
        connection = self._connection
        if connection is not None and connection.is_usable:
            return connection
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
            self._connecting.add_done_callback(self._forget_try)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._connecting)
        except (OSError, TimeoutError) as error:
            raise ServerUnreachable(self.address, text_of(error)) from None

    def _forget_try(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # whoever waited has heard of it

    async def _connect(self) -> Connection:
        async with asyncio.timeout(CONNECT_SECONDS):
            port, is_secured = await self._place()
            tls = (self._tls or ssl.create_default_context()) if is_secured else None
            hello = Hello(0, frames.VERSION, self._token, self._project, "penstock-python")
            self._connection = await Connection.connect(self._host, port, tls, hello)
        return self._connection

    async def _place(self) -> tuple[int, bool]:
        """(port, whether it has TLS) of the native protocol."""
        if self._scheme in {"penstock", "penstocks"}:
            return self._port, self._scheme == "penstocks"
        return await asyncio.to_thread(self._discover)

    def _discover(self) -> tuple[int, bool]:
        """Ask the HTTP port. Blocks."""
        if self._scheme == "https":
            context = self._tls or ssl.create_default_context()
            asked: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_SECONDS, context=context
            )
        else:
            asked = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        try:
            asked.request("GET", "/native")
            answer = asked.getresponse()
            body = answer.read(MAX_DISCOVERY)
            if answer.status != http.client.OK:
                raise ConnectionError(f"it answers {answer.status} to GET /native: is it a Penstock server with a native port?")
            place = json.loads(body)
            return int(place["port"]), bool(place["tls"])
        except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise ConnectionError(f"what answers there is no Penstock server ({type(error).__name__})") from None
        finally:
            asked.close()


class _RemoteChannel(StreamEnd):
    """A stream at the other end of a connection."""

    def __init__(self, connection: Connection, receiver: Receiver) -> None:
        self._connection = connection
        self.number = connection.next_stream()
        self.receiver = receiver
        self.channel: Channel = self
        self.opened: Opened
        self._unconfirmed: dict[int, list[int]] = {}
        """Acks on their way, by the call that bears them."""
        self._is_closed = asyncio.Event()
        self._opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, frame: Callable[[int, int], Open]) -> None:
        """Ask for it. What comes back is taken where it arrives: the first deliveries may be right behind it."""
        self._connection.streams[self.number] = self
        call = self._connection.next_call()
        self._connection.announce(call, self, frame(call, self.number))
        try:
            await self._opening
        except BaseException:
            self._connection.streams.pop(self.number, None)
            raise

    def settle(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> None:
        """End deliveries."""
        if acks:
            call = self._connection.next_call()
            self._unconfirmed[call] = acks
            self._connection.announce(call, self, Settle(call, self.number, acks, nacks, deadlines))
        else:
            self._connection.send(Settle(0, self.number, acks, nacks, deadlines))

    def answered(self, call: int, result: bytes) -> None:
        """It is open, or acks have arrived."""
        if self._unconfirmed.pop(call, None) is None and not self._opening.done():
            self.opened = _opened(result)
            self._opening.set_result(None)

    def refused(self, call: int, error: PenstockError) -> None:
        """It cannot be opened, or acks were too late for anything."""
        if self._unconfirmed.pop(call, None) is None and not self._opening.done():
            self._opening.set_exception(error)

    def unconfirmed(self) -> list[int]:
        """Acks that may not have arrived."""
        return [receipt for acks in self._unconfirmed.values() for receipt in acks]

    async def confirm(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> list[int]:
        """End deliveries, and hear about it."""
        call = self._connection.next_call()
        try:
            return _settled(await self._connection.request(call, Settle(call, self.number, acks, nacks, deadlines))).failed
        except ConnectionLost:
            raise Unavailable("the connection was lost before the answer came") from None

    def adjust(self, limits: Limits) -> None:
        """Live by other limits."""
        self._connection.send(frames.Adjust(self.number, limits))

    def closed(self) -> None:
        """It is over."""
        self._is_closed.set()
        if not self._opening.done():
            self._opening.set_exception(Unavailable("the connection to the server was lost"))

    async def close(self, *, keep: bool = False) -> None:
        """End it, and return when the server knows."""
        if self.number not in self._connection.streams:
            return
        self.receiver = _NOBODY
        self._connection.send(frames.Close(self.number, keep))
        async with asyncio.timeout(CLOSE_SECONDS):
            await self._is_closed.wait()


class _Nobody:
    """Receives what comes for a stream that is being closed."""

    def receive(self, channel: Channel, parcels: Any) -> None:
        """It goes back with the stream."""

    def ended(self, channel: Channel, error: PenstockError | None) -> None:
        """As it should be."""


_NOBODY = _Nobody()


def _parsed(server: str) -> tuple[str, str, int]:
    """(scheme, host, port) of an address."""
    hint = "http://HOST:8085, https://HOST:8085, or penstock://HOST:8087 for the native port itself"
    if not isinstance(server, str) or not server:
        raise InvalidArgument.of("server", server, "the address of a server", hint=hint)
    parts = urlsplit(server if "://" in server else f"http://{server}")
    try:
        port = parts.port
    except ValueError:
        raise InvalidArgument.of("server", server, "a port from 1 to 65535", hint=hint) from None
    if parts.scheme not in {"http", "https", "penstock", "penstocks"} or not parts.hostname or parts.path.strip("/"):
        raise InvalidArgument.of("server", server, "the address of a server", hint=hint)
    return parts.scheme, parts.hostname, port or (8087 if parts.scheme.startswith("penstock") else DEFAULT_PORT)
