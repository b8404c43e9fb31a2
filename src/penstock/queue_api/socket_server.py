"""What the binary APIs share: connections with limits, authentication, and commands answered one after the other or side by side.

A connection is cut when its framing is lost, when half a request is not followed by the rest, when nothing comes for the idle
time, or when it does not read its answers. An error of a command is an answer like any other.
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
"""How large a request may be before its sender has said who they are."""
BEHIND_BYTES = 256 * 1024
"""How much more is read while commands run."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """What one client of a binary API may cost."""

    max_frame_bytes: int = 16 * 1024 * 1024
    """A message has 10 MiB at most."""
    max_connections: int = 10_000
    idle_seconds: float = 300.0
    """How long a connection may be silent between requests, and an answer unread."""
    hello_seconds: float = 10.0
    """How long a client may take to say who it is, where that is asked."""
    request_seconds: float = 30.0
    """A request must be complete this long after its first byte, and one second more for each `min_rate` bytes received."""
    min_rate: int = 16 * 1024
    max_running: int = 64
    """How many commands of one connection run side by side, where the protocol allows it."""


TURN = 32
"""How many requests of one connection are answered before others have their turn."""
BACKLOG = 1024
"""How many connections may wait to be accepted: clients of a burst beyond it retry a second later."""


CONNECTION_COMMANDS = frozenset({"PING", "QUIT", "CLOSE", "AUTH", "HELLO"})
"""What is answered here, beside the commands of `native`."""
HTTP_METHODS = frozenset(
    {b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"PRI "}  # the last: HTTP/2
)
"""The first four bytes of HTTP; no request of these protocols begins like that."""
HTTP_BYTES = 4
_HTTP_REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"


class Inbox(ABC):
    """What arrived on a connection and is not taken yet: what codecs have in common."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._at = 0
        """How far the buffer is taken."""
        self._is_known = False
        """Whether the first bytes have shown that the client does not speak HTTP."""

    def feed(self, data: bytes) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def waiting(self) -> int:
        """How many bytes of what arrived are not taken yet."""
        return len(self._buffer) - self._at

    def arrived(self) -> int:
        """How many bytes of an incomplete request have arrived, once `take` has returned None."""
        return self.waiting()

    def take(self) -> Call | Refused | None:
        """The next request; None until more arrives. FramingError when there will never be one, HttpReceived for a web page."""
        if not self._is_known:
            if self.waiting() < HTTP_BYTES:
                return None
            if bytes(self._buffer[:HTTP_BYTES]) in HTTP_METHODS:
                raise HttpReceived
            self._is_known = True
        return self._next()

    @abstractmethod
    def _next(self) -> Call | Refused | None:
        """The next request of a client that speaks the protocol."""


class FramingError(Exception):
    """What came is not the protocol: nobody knows where the next request begins."""


class HttpReceived(Exception):
    """What came is HTTP: a web page of any site could send it, with commands in its body."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what to call the answer, the command in capitals, its arguments, and its size on the wire."""

    call_id: int
    command: str
    args: Args
    size: int


class Codec(Protocol):
    """A protocol without its sockets: bytes in, calls out, and answers as bytes. One for each connection."""

    name: str
    """What the protocol is called."""
    is_ordered: bool
    """Whether answers must come in the order of the calls."""
    limit: int
    """How large a request may be."""

    def feed(self, data: bytes) -> None:
        """Take what arrived."""

    def waiting(self) -> int:
        """How many bytes of what arrived are not taken yet."""

    def arrived(self) -> int:
        """How many bytes of an incomplete request have arrived, once `take` has returned None."""

    def take(self) -> Call | Refused | None:
        """The next request; None until more arrives. FramingError when there will never be one."""

    def answer(self, call_id: int, value: object) -> bytes:
        """An answer on the wire."""

    def refusal(self, call_id: int, text: str) -> bytes:
        """An error on the wire; `text` begins with its kind, such as ERR."""

    def greet(self, args: Args) -> object:
        """What HELLO answers."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is framed well and cannot be read."""

    call_id: int
    problem: str


class SocketServer:
    """Serves one binary protocol on one port. Start once; stop is always safe. Without a `gate` everyone is let in."""

    def __init__(
        self, queues: Queues, codec: Callable[[int], Codec], *, gate: Gate | None = None, limits: SocketLimits | None = None
    ) -> None:
        self.queues = queues
        self.gate = gate
        self.limits = limits or SocketLimits()
        self.connections: set[Connection] = set()
        self._codec = codec
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port: the one that was given, or the one that was found for 0."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self, self._codec),
            host,
            port,
            ssl=ssl_context,
            ssl_handshake_timeout=self.limits.hello_seconds if ssl_context is not None else None,
            backlog=BACKLOG,
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept nothing more, answer what runs, end the waits, close."""
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
        await asyncio.sleep(0)  # transports close in the next turn of the loop


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
        """Whether the client has said who it is, where that is asked."""
        self._loop = asyncio.get_running_loop()
        self._connected_at = self._loop.time()
        self._begun_at: float | None = None
        """When the request began that is not complete yet."""
        self._running: set[asyncio.Task[None]] = set()
        self._running_bytes = 0
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve it, or close it at once where there are too many."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
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
        """Take what arrived; read no further while there is enough to do."""
        self._codec.feed(data)
        self._arrived.set()
        if self._codec.waiting() > max(BEHIND_BYTES, self._codec.limit):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more: what it sent is answered, but nothing waits for it any longer."""
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
        """Take no more requests; the task ends when what runs is answered."""
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
                    await asyncio.sleep(0)  # the others' turn: answers that need not wait would else keep the loop
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
        """Wait for more bytes; False when they do not come in time."""
        self._arrived.clear()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline()):
                await self._arrived.wait()
        return self._arrived.is_set()

    def _deadline(self) -> float:
        """Until when more bytes must come."""
        limits, now, arrived = self._server.limits, self._loop.time(), self._codec.arrived()
        if arrived:
            if self._begun_at is None:
                self._begun_at = now
            return self._begun_at + limits.request_seconds + arrived / limits.min_rate
        self._begun_at = None
        return now + limits.idle_seconds if self._is_known else self._connected_at + limits.hello_seconds

    async def _drained(self) -> bool:
        """Wait until the client has read what was written; False when it does not in time."""
        if not self._writable.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._server.limits.idle_seconds):
                    await self._writable.wait()
            if not self._writable.is_set():
                self._transport.abort()
                return False
        return True

    async def _start(self, call: Call) -> None:
        """Run a command beside others, as soon as few enough run."""
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
        principal = self._admit(self._secret)  # each time: a token may be revoked, or expire
        gate = self._server.gate
        wait = gate.wait_seconds(principal, self._address) if gate is not None else 0
        if wait > 0:
            raise ResourceExhausted(f"too many calls, try again in {wait:.3f} s")
        # A client that is gone waits for nothing: its end ends the waits.
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
                self._is_last = True  # who guesses tokens is slowed down
            raise _WrongToken(error.problem) from None
        self._secret = secret


def _http_refusal(protocol: str) -> bytes:
    text = f"this port speaks {protocol}, not HTTP; HTTP is served on the port that the server's log names first\n".encode()
    return _HTTP_REFUSAL % (len(text), text)


class _WrongToken(Unauthenticated):
    """A token was sent, and is not good: other than in HTTP, the clients tell that from having sent none."""


def _error_text(error: PenstockError) -> str:
    """An error as the clients of these protocols know it: its kind in capitals, then the sentence, on one line."""
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
