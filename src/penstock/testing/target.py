"""A target for HTTP deliveries: a real HTTP/1.1 server on loopback that records requests and answers as configured.

    with Target() as target:                                        # 200 to everything
        ...                                                         # something posts to target.url
        [request] = target.wait_for(1)
        assert request.json == {"messageId": "order-7"}

    Target(respond(503, after=0.2))                                 # the same for every request
    Target({"/slow": respond(after=2), "*": respond(204)})          # by path
    Target(lambda request: respond(500 if request.number < 3 else 200))
    Target(in_turn(respond(500), respond(429, headers={"Retry-After": "1"}), respond()))
    Target(HOSTILE["reset in the body"])                            # see `penstock.testing.hostile`

A behaviour of one's own is `Behaviour(answer)`: it gets the request and the connection, and may write what it likes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Self, cast

import uvloop

from penstock.clock import monotonic
from penstock.durations import micros
from penstock.errors import InvalidArgument

LOOPBACK: Final = "127.0.0.1"
START_SECONDS: Final = 30
BACKLOG: Final = 1024
REST: Final = "*"
"""The path for all that are not named."""
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class Request:
    """A complete request. Times are microseconds of `penstock.clock.monotonic`."""

    number: int
    """1 for the first."""
    method: str
    path: str
    headers: Mapping[str, str]
    """Names are in lower case."""
    body: bytes
    started_at: int
    ended_at: int = 0
    """When it was answered, or its connection was lost; 0 before."""
    status: int = 0
    """The status that `respond` sent; 0: none yet, or a behaviour wrote its own answer."""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def message_id(self) -> str:
        """The id of the delivered message; empty if the body has none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return ""
        named = found.get("messageId") if isinstance(found, dict) else None
        return named if isinstance(named, str) else ""

    def overlaps(self, other: Request) -> bool:
        """Whether both were in progress at the same moment."""
        return (not other.ended_at or self.started_at < other.ended_at) and (
            not self.ended_at or other.started_at < self.ended_at
        )


Answering = Callable[[Request, "Connection"], Coroutine[Any, Any, None] | None]
Greeting = Callable[["Connection"], Coroutine[Any, Any, None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The behaviour of a target. A coroutine runs until it ends, and is cancelled when the connection is lost."""

    answer: Answering = field(kw_only=False)
    greet: Greeting | None = None
    """Runs as soon as a client connects; then no request is read. Only as the single behaviour of a target."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Its certificate, if it uses TLS. Only as the single behaviour of a target."""
    scheme: str = ""
    """The scheme of its URL, if that differs from its protocol."""


Choose = Callable[[Request], Behaviour]


def respond(status: int = 200, body: object = b"", *, headers: Mapping[str, str] | None = None, after: float = 0.0) -> Behaviour:
    """Answer with this status and body (bytes, text, or a value for JSON), after this many seconds."""
    micros(after, "after", maximum=86_400)
    fields = dict(headers or {})
    content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    if not isinstance(body, bytes | str):
        fields.setdefault("Content-Type", "application/json")
    fields.setdefault("Content-Length", str(len(content)))
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Status"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content

    def answer(request: Request, connection: Connection) -> None:
        request.status = status
        connection.send(data)

    async def answer_later(request: Request, connection: Connection) -> None:
        await asyncio.sleep(after)
        answer(request, connection)

    return Behaviour(answer_later if after else answer)


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """The first behaviour for the first request, the second for the second …, and the last one for all others."""
    if not behaviours:
        raise InvalidArgument.of("behaviours", behaviours, "one or more")
    turns = itertools.chain(behaviours[:-1], itertools.repeat(behaviours[-1]))
    return Behaviour(lambda request, connection: next(turns).answer(request, connection))


class Connection(asyncio.Protocol):
    """A connection to a target: it reads one request after the other, and the behaviour writes."""

    def __init__(self, target: Target, greet: Greeting | None) -> None:
        self._target = target
        self._greet = greet
        self._buffer = bytearray()
        self._transport: asyncio.Transport
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._came = asyncio.Event()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is lost."""

    # ── for behaviours ───────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes) -> None:
        """Write these bytes."""
        self._transport.write(data)

    async def give(self, data: bytes) -> None:
        """Write these bytes, and wait while the client does not read."""
        await self._room.wait()
        self._transport.write(data)
        await asyncio.sleep(0)

    async def hear(self) -> bytes:
        """The bytes that arrived since the last call, for tests that read no requests; waits for some."""
        await self._came.wait()
        self._came.clear()
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def close(self) -> None:
        """Close the connection once everything is written."""
        self._transport.close()

    def reset(self) -> None:
        """Reset the connection at once, like a machine that crashed. Unsent bytes are lost."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    @property
    def url(self) -> str:
        """The URL of the target."""
        return self._target.url

    # ── for the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class has the same methods
        self._target.opened(self)
        if self._greet is not None:
            self._run(self._greet(self))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._greet is None:
            self._serve()
        else:
            self._came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._end()
        self._target.lost(self)
        self.over.set_result(None)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def _serve(self) -> None:
        """Answer complete requests, one after the other, as HTTP/1.1 requires."""
        while self._task is None and not self._transport.is_closing() and (request := self._read()) is not None:
            self._request = request
            try:
                self._run(self._target.taken(request).answer(request, self))
            except Exception as error:  # noqa: BLE001  # a test's own code: `Target.stop` raises it where somebody sees it
                self._target.failed(error)
                self.reset()
            if self._task is None:
                self._end()
            self._target.tell()

    def _run(self, answering: Coroutine[Any, Any, None] | None) -> None:
        if answering is not None:
            self._task = asyncio.get_running_loop().create_task(self._wait(answering))

    async def _wait(self, answering: Coroutine[Any, Any, None]) -> None:
        try:
            await answering
        except Exception as error:  # noqa: BLE001  # as above
            self._target.failed(error)
            self.reset()
        self._task = None
        self._end()
        if self._greet is None:
            self._serve()

    def _end(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.ended_at = monotonic()
            self._target.ended()
            if request.headers.get("connection", "").lower() == "close":
                self._transport.close()

    def _read(self) -> Request | None:
        """The next request, if it is complete."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            key = name.lower()
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        length, pieces = headers.get("content-length", "0"), first.split(" ")
        if len(pieces) != 3 or not length.isdigit() or "transfer-encoding" in headers:
            self._target.failed(InvalidArgument.of("request", first, "HTTP/1.1 with a Content-Length"))
            self.reset()
            return None
        start = end + 4
        over = start + int(length)
        if len(self._buffer) < over:
            return None
        body = bytes(self._buffer[start:over])
        del self._buffer[:over]
        return Request(self._target.next_number(), pieces[0], pieces[1], headers, body, monotonic())


class Target:
    """A target on a free port of this machine, in a thread with an event loop of its own. Use it as a context manager.

    `behaviour` can be changed while it runs; it is used for each request. If it raises, the connection is reset, and `stop`
    raises the error. After `stop` it can be started again, on the same port.
    """

    def __init__(
        self, behaviour: Behaviour | Mapping[str, Behaviour] | Choose | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.behaviour: Behaviour | Mapping[str, Behaviour] | Choose = behaviour or respond()
        self.requests: list[Request] = []
        """The requests, in the order in which they were complete."""
        self.port = 0
        self.accepted = 0
        """The number of connections so far."""
        self.peak = 0
        """The largest number of concurrent requests."""
        self._tls = tls
        if tls is None and isinstance(behaviour, Behaviour) and behaviour.tls is not None:
            self._tls = behaviour.tls()
        self._running = 0
        self._connections: set[Connection] = set()
        self._by_message: dict[str, list[Request]] = {}
        self._indexed = 0
        self._failure: BaseException | None = None
        self._came = threading.Condition()
        self._waiting = 0
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The URL to post to; a path may follow."""
        scheme = self.behaviour.scheme if isinstance(self.behaviour, Behaviour) else ""
        return f"{scheme or ('http' if self._tls is None else 'https')}://{LOOPBACK}:{self.port}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    # ── what came ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def wait_for(self, count: int, seconds: float = 10) -> list[Request]:
        """All requests so far, once there are this many. In a coroutine: `await asyncio.to_thread(target.wait_for, 3)`."""
        with self._came:
            self._waiting += 1
            try:
                if not self._came.wait_for(lambda: len(self.requests) >= count, seconds):
                    raise TimeoutError(f"{len(self.requests)} requests came within {seconds:g} s, expected {count}")
            finally:
                self._waiting -= 1
        return [*self.requests]

    def received(self, message_id: str) -> list[Request]:
        """The requests that delivered this message."""
        with self._came:
            for request in self.requests[self._indexed :]:
                self._by_message.setdefault(request.message_id, []).append(request)
                self._indexed += 1
            return [*self._by_message.get(message_id, ())]

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Return once it accepts connections."""
        if self._thread is not None:
            return self
        self._started.clear()
        self._thread = threading.Thread(target=self._run, name="penstock-target", daemon=True)
        self._thread.start()
        self._started.wait(START_SECONDS)
        if self._failure is not None:
            self.stop()
        return self

    def stop(self) -> None:
        """Reset every connection and stop. Can be called twice, and before a start. Raises an error of a behaviour, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._over.set)
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop()
        except Exception:
            if kind is None:  # the first error is the most useful
                raise

    # ── in its own thread ────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # the thread's top: `start` or `stop` raises it where somebody sees it
            self._failure = error
        finally:
            self._loop = None
            self._started.set()

    async def _serve(self) -> None:
        loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        greet = self.behaviour.greet if isinstance(self.behaviour, Behaviour) else None
        listener = socket.create_server((LOOPBACK, self.port), backlog=BACKLOG)
        server = await loop.create_server(lambda: Connection(self, greet), sock=listener, ssl=self._tls)
        self.port = listener.getsockname()[1]
        self._loop = loop
        self._started.set()
        await self._over.wait()
        server.close()
        for connection in [*self._connections]:
            connection.reset()
        if self._connections:
            await asyncio.wait([connection.over for connection in self._connections])
        await server.wait_closed()

    def opened(self, connection: Connection) -> None:
        """A client has connected."""
        self.accepted += 1
        self._connections.add(connection)

    def lost(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)

    def next_number(self) -> int:
        """The number of the request that has come."""
        return len(self.requests) + 1

    def taken(self, request: Request) -> Behaviour:
        """The behaviour for a request, which is recorded."""
        self._running += 1
        self.peak = max(self.peak, self._running)
        self.requests.append(request)
        behaviour = self.behaviour
        if isinstance(behaviour, Behaviour):
            return behaviour
        if isinstance(behaviour, Mapping):
            return behaviour.get(request.path.partition("?")[0]) or behaviour.get(REST) or _NOT_FOUND
        return behaviour(request)

    def tell(self) -> None:
        """Wake callers that wait for a request."""
        if self._waiting:
            with self._came:
                self._came.notify_all()

    def ended(self) -> None:
        """A request is answered, or its connection lost."""
        self._running -= 1

    def failed(self, error: Exception) -> None:
        """A behaviour raised this."""
        self._failure = self._failure or error


_NOT_FOUND: Final = respond(404)
