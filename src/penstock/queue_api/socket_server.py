"""The common part of the binary APIs: connections with limits, authentication, and the execution of commands.

A connection is closed if its framing is broken, if half a request is not completed in time, if it is idle for too long, or if it
does not read its answers. An error of a command is an answer like any other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from penstock.access import ANYONE, Principal
from penstock.api.queues import Queues
from penstock.broker.aio import StopSignal
from penstock.errors import InvalidArgument, PenstockError, PermissionDenied, ResourceExhausted, Unauthenticated, Unimplemented
from penstock.http.authentication import Gate
from penstock.http.refusal import code_location
from penstock.queue_api import binary_commands
from penstock.queue_api.binary_commands import OK, Args

log = logging.getLogger("penstock.queue")

MAX_HELLO_BYTES = 4096
"""The maximum size of a request before authentication."""
BEHIND_BYTES = 256 * 1024
"""How many bytes are read ahead while commands run."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """The limits of one client of a binary API."""

    max_frame_bytes: int = 16 * 1024 * 1024
    """A message has at most 10 MiB."""
    max_connections: int = 10_000
    idle_seconds: float = 300.0
    """How long a connection may be silent between requests, and an answer unread."""
    hello_seconds: float = 10.0
    """How long a client may take to authenticate, if the server requires it."""
    request_seconds: float = 30.0
    """The time for a request after its first byte; each `min_rate` bytes received add one second."""
    min_rate: int = 16 * 1024
    max_running: int = 64
    """Commands of one connection that run concurrently, if the protocol allows it."""


TURN = 32
"""Requests of one connection that are answered before others are served."""
BACKLOG = 1024
"""Connections that may wait to be accepted: beyond it, the clients of a burst retry a second later."""


CONNECTION_COMMANDS = frozenset({"PING", "QUIT", "CLOSE", "AUTH", "HELLO"})
"""Commands that are answered here, beside those of `binary_commands`."""
HTTP_METHODS = frozenset(
    {b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"PRI "}  # the last is HTTP/2
)
"""The first four bytes of HTTP; no request of these protocols starts like that."""
HTTP_BYTES = 4
_HTTP_REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"


class Inbox(ABC):
    """The bytes that arrived and are not parsed yet: the common part of codecs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._at = 0
        """How far the buffer is parsed."""
        self._is_known = False
        """Whether the first bytes have shown that the client does not use HTTP."""

    def feed(self, data: bytes) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def waiting(self) -> int:
        """How many bytes have arrived and are not parsed yet."""
        return len(self._buffer) - self._at

    def arrived(self) -> int:
        """How many bytes of an incomplete request have arrived, once `take` has returned None."""
        return self.waiting()

    def take(self) -> Call | Refused | None:
        """The next request; None until more arrives.

        FramingError if the framing is broken, HttpReceived if the client is a web page.
        """
        if not self._is_known:
            if self.waiting() < HTTP_BYTES:
                return None
            if bytes(self._buffer[:HTTP_BYTES]) in HTTP_METHODS:
                raise HttpReceived
            self._is_known = True
        return self._next()

    @abstractmethod
    def _next(self) -> Call | Refused | None:
        """The next request of a client that uses this protocol."""


class FramingError(Exception):
    """The bytes do not follow the protocol: the start of the next request is unknown."""


class HttpReceived(Exception):
    """The bytes are HTTP: a web page of any site could send them, with commands in the body."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: the id for its answer, the command in capitals, its arguments, and its size on the wire."""

    call_id: int
    command: str
    args: Args
    size: int


class Codec(Protocol):
    """A protocol without its sockets: bytes in, calls out, and answers as bytes. One for each connection."""

    name: str
    """The name of the protocol."""
    is_ordered: bool
    """Whether answers must have the order of the calls."""
    limit: int
    """The maximum size of a request."""

    def feed(self, data: bytes) -> None:
        """Take the bytes that arrived."""

    def waiting(self) -> int:
        """How many bytes have arrived and are not parsed yet."""

    def arrived(self) -> int:
        """How many bytes of an incomplete request have arrived, once `take` has returned None."""

    def take(self) -> Call | Refused | None:
        """The next request; None until more arrives. FramingError if the framing is broken."""

    def answer(self, call_id: int, value: object) -> bytes:
        """Encode an answer."""

    def refusal(self, call_id: int, text: str) -> bytes:
        """Encode an error; `text` starts with its kind, such as ERR."""

    def greet(self, args: Args) -> object:
        """The answer to HELLO."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request with valid framing that cannot be read."""

    call_id: int
    problem: str


class SocketServer:
    """A server of one binary protocol on one port. Start it once; stopping is always safe.

    Without a `gate` there is no authentication.
    """

    def __init__(
        self, queues: Queues, codec: Callable[[int], Codec], *, gate: Gate | None = None, limits: SocketLimits | None = None
    ) -> None:
        self.queues = queues
        self.gate = gate
        self.limits = limits or SocketLimits()
        self.connections: set[Connection] = set()
        self._codec = codec
        self._listener: asyncio.Server | None = None

    def protocol(self) -> asyncio.Protocol:
        """What serves one more connection."""
        return Connection(self, self._codec)

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port: the given one, or a free one for 0."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self.protocol,
            host,
            port,
            ssl=ssl_context,
            ssl_handshake_timeout=self.limits.hello_seconds if ssl_context is not None else None,
            backlog=BACKLOG,
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept nothing more, answer running requests, end the waits, close."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        tasks = [connection.finish() for connection in self.connections]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await asyncio.sleep(0)  # transports are closed in the next iteration of the loop


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: SocketServer, codec: Callable[[int], Codec]) -> None:
        self._server = server
        self._codec = codec(MAX_HELLO_BYTES)
        self._gone = StopSignal()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._secret: str | None = None
        self._address = "unknown"
        self._is_last = False
        self._is_known = False
        """Whether the client is authenticated, if the server requires it."""
        self._loop = asyncio.get_running_loop()
        self._connected_at = self._loop.time()
        self._begun_at: float | None = None
        """When the first byte of the incomplete request arrived."""
        self._running: set[asyncio.Task[None]] = set()
        self._running_bytes = 0
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, or close it at once if there are too many."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass
        self._address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        if len(self._server.connections) >= self._server.limits.max_connections:
            self._gone.set()
            self._transport.abort()
            return
        self._server.connections.add(self)
        with suppress(PenstockError):
            self._admit(None)
        self._task = asyncio.ensure_future(self._serve())

    def data_received(self, data: bytes) -> None:
        """Take the bytes that arrived; stop reading while there is enough to do."""
        self._codec.feed(data)
        self._arrived.set()
        if self._codec.waiting() > max(BEHIND_BYTES, self._codec.limit):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more: its requests are answered, but waits for messages end."""
        self._gone.set()
        self._arrived.set()
        return self._transport.get_extra_info("sslcontext") is None  # TLS has no half-open connections

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._arrived.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def finish(self) -> asyncio.Task[None]:
        """Take no more requests; the task ends once running requests are answered."""
        self._is_last = True
        self._gone.set()
        self._arrived.set()
        return self._task

    async def _serve(self) -> None:
        try:
            for number in itertools.count(1):
                if self._is_last or self._transport.is_closing():
                    break
                if number % TURN == 0:
                    await asyncio.sleep(0)  # serve other connections: answers that need no wait would otherwise occupy the loop
                try:
                    call = self._codec.take()
                except FramingError as error:
                    self._transport.write(self._codec.refusal(0, f"ERR Protocol error: {error}"))
                    break
                except HttpReceived:
                    self._transport.write(_http_refusal(self._codec.name))
                    break
                if call is None:
                    if self._gone.is_set or not await self._more():
                        break
                    continue
                self._begun_at = None
                if isinstance(call, Refused):
                    self._transport.write(self._codec.refusal(call.call_id, f"ERR {call.problem}"))
                elif self._codec.is_ordered:
                    await self._answer(call)
                else:
                    await self._start(call)
                if not await self._drained():
                    break
            if self._running:
                await asyncio.wait(self._running)
        except Exception as error:  # noqa: BLE001  # the connection's top: asyncio would log the text, which may hold a payload
            log.error("a connection failed with %s at\n%s", type(error).__name__, code_location(error))
        finally:
            for task in self._running:
                task.cancel()
            self._transport.close()
            self._server.connections.discard(self)

    async def _more(self) -> bool:
        """Wait for more bytes; False if they do not arrive in time."""
        self._arrived.clear()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline()):
                await self._arrived.wait()
        return self._arrived.is_set()

    def _deadline(self) -> float:
        """The deadline for more bytes."""
        limits, now, arrived = self._server.limits, self._loop.time(), self._codec.arrived()
        if arrived:
            if self._begun_at is None:
                self._begun_at = now
            return self._begun_at + limits.request_seconds + arrived / limits.min_rate
        self._begun_at = None
        return now + limits.idle_seconds if self._is_known else self._connected_at + limits.hello_seconds

    async def _drained(self) -> bool:
        """Wait until the client has read the output; False if it does not in time."""
        if not self._writable.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._server.limits.idle_seconds):
                    await self._writable.wait()
            if not self._writable.is_set():
                self._transport.abort()
                return False
        return True

    async def _start(self, call: Call) -> None:
        """Run a command beside others, once fewer than the limit run."""
        limits = self._server.limits
        while len(self._running) >= limits.max_running or self._running_bytes > limits.max_frame_bytes:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        self._running_bytes += call.size
        task = asyncio.ensure_future(self._answer(call))
        self._running.add(task)
        task.add_done_callback(lambda done: self._end(done, call.size))

    def _end(self, task: asyncio.Task[None], size: int) -> None:
        self._running.discard(task)
        self._running_bytes -= size

    async def _answer(self, call: Call) -> None:
        try:
            answer = self._codec.answer(call.call_id, await self._run(call))
        except PenstockError as error:
            answer = self._codec.refusal(call.call_id, _error_text(error))
        except Exception as error:  # noqa: BLE001  # the top of the service: whatever it was, the client gets an answer
            log.error("command %r failed with %s at\n%s", call.command[:40], type(error).__name__, code_location(error))
            answer = self._codec.refusal(call.call_id, "ERR an error inside the server")
        if not self._transport.is_closing():
            self._transport.write(answer)

    async def _run(self, call: Call) -> object:
        match call.command:
            case "PING":
                return call.args[0] if call.args else "PONG"
            case "QUIT" | "CLOSE":
                self._is_last = True
                return OK
            case "AUTH":
                self._authenticate(call.args)
                return OK
            case "HELLO":
                return self._hello(call.args)
        principal = self._admit(self._secret)  # for each call: a token may be revoked, or expire
        gate = self._server.gate
        wait = gate.wait_seconds(principal, self._address) if gate is not None else 0
        if wait > 0:
            raise ResourceExhausted(f"too many calls, try again in {wait:.3f} s")
        # The end of a disconnected client ends its waits.
        return await binary_commands.run(
            self._server.queues.of(principal, None, self._gone, self._still), call.command, call.args
        )

    def _still(self) -> None:
        if self._server.gate is not None:
            self._server.gate.authenticate(self._secret)

    def _admit(self, secret: str | None) -> Principal:
        """The principal of a secret, or of a call without one; from then on requests may be large."""
        gate = self._server.gate
        principal: Principal = ANYONE if gate is None else gate.authenticate(secret)
        self._codec.limit = self._server.limits.max_frame_bytes
        self._is_known = True
        return principal

    def _hello(self, args: Args) -> object:
        words = [binary_commands.as_text(arg, "HELLO") if isinstance(arg, bytes | str) else "" for arg in args]
        for index, word in enumerate(words):
            if word.upper() == "AUTH":
                self._authenticate(args[index + 1 : index + 3])
        return self._codec.greet(args)

    def _authenticate(self, args: Args) -> None:
        if not 1 <= len(args) <= 2:
            raise InvalidArgument("AUTH takes a token, or a user and a token", hint="usage: AUTH [user] token")
        secret = binary_commands.as_text(args[-1], "token")
        try:
            self._admit(secret)
        except Unauthenticated as error:
            if self._server.gate is not None and self._server.gate.wait_seconds(None, self._address) > 0:
                self._is_last = True  # slow down clients that guess tokens
            raise _WrongToken(error.problem) from None
        self._secret = secret


def _http_refusal(protocol: str) -> bytes:
    text = f"this port serves {protocol}, not HTTP; the server's log names the HTTP port first\n".encode()
    return _HTTP_REFUSAL % (len(text), text)


class _WrongToken(Unauthenticated):
    """An invalid token was sent: unlike in HTTP, clients distinguish this from a missing one."""


def _error_text(error: PenstockError) -> str:
    """An error in the form of these protocols: its kind in capitals, then the sentence, on one line."""
    match error:
        case _WrongToken():
            kind = "WRONGPASS"
        case Unauthenticated():
            kind = "NOAUTH"
        case PermissionDenied():
            kind = "NOPERM"
        case _:
            kind = "ERR"
    hint = f" ({error.hint})" if error.hint and isinstance(error, InvalidArgument | Unimplemented) else ""
    return " ".join(f"{kind} {error.message}{hint}".split())
