"""One connection to a server: requests and their answers, streams and their deliveries. It does not reconnect."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from penstock.client.link import Channel, Receiver
from penstock.errors import InvalidArgument, PenstockError, Unauthenticated, Unavailable
from penstock.wire import frames
from penstock.wire.address import text_of
from penstock.wire.frames import HEADER, Answer, Delivered, Done, Ended, Hello, Inbox, Leaving, Refused, Welcome

MAX_HELLO_BYTES = 64 * 1024
"""The maximum size of a frame before the server's greeting."""
MAX_FRAME_BYTES = 1 << 30
PING_SECONDS = 20.0
PINGS = 2
"""A connection that received nothing during this many pings in a row is dead."""
NO_PENSTOCK = "the server there does not speak Penstock's native protocol"

_welcome = msgspec.msgpack.Decoder(Welcome).decode


class ConnectionLost(Exception):
    """The connection ended before the answer came: the request may or may not have been executed."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class Request:
    """A request in its wire form, and its answer: it may be sent again unchanged on the next connection."""

    __slots__ = ("answer", "call", "data", "is_lease", "is_patient", "is_repeatable", "since")

    def __init__(
        self, call: int, frame: object, *, is_repeatable: bool = False, is_lease: bool = False, is_patient: bool = True
    ) -> None:
        self.call = call
        self.data = frames.framed(frame)
        self.is_repeatable = is_repeatable
        """Whether it is idempotent."""
        self.is_lease = is_lease
        """Whether it leases messages; the server leases none if it ends the connection meanwhile."""
        self.is_patient = is_patient
        """Whether it waits for a connection for longer than one attempt."""
        self.since = 0
        """When it started to wait for a connection; 0 if it never had to."""
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        """Fail it. Does nothing if it is not awaited any more."""
        if not self.answer.done():
            self.answer.set_exception(error)


class StreamEnd:
    """The stream's callbacks for a connection."""

    number: int
    receiver: Receiver
    channel: Channel

    def answered(self, call: int, result: bytes) -> None:
        """An announced request was executed."""

    def refused(self, call: int, error: PenstockError) -> None:
        """An announced request was refused."""

    def closed(self, problem: str) -> None:
        """The stream is over: the server has closed it, or the connection is lost."""


class Connection(asyncio.Protocol):
    """An established connection. Create it with `connect`."""

    def __init__(self, calls: Iterator[int], ping_seconds: float, on_lost: Callable[[Connection, list[Request]], None]) -> None:
        self._calls = calls
        self._ping_seconds = ping_seconds
        self._on_lost = on_lost
        """Called once at the end, with the unanswered requests, in their order."""
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(MAX_HELLO_BYTES)
        self._waiting: dict[int, Request | StreamEnd] = {}
        self._numbers = iter(range(1, 1 << 32))
        self.streams: dict[int, StreamEnd] = {}
        self._out: list[bytes] = []
        self._unheard = 0
        """Pings since the last byte arrived."""
        self._watch: asyncio.TimerHandle | None = None
        self.is_usable = True
        """Whether it accepts requests: it is not lost, and the server is not stopping."""
        self.problem = ""
        """Why it ended."""
        self.is_refused = False
        """Whether the server ended it because the token is not valid any more."""
        self.lost = asyncio.Event()
        self._max_request = MAX_HELLO_BYTES
        self._transport: asyncio.Transport

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        hello: Hello,
        *,
        calls: Iterator[int],
        ping_seconds: float,
        on_lost: Callable[[Connection, list[Request]], None],
    ) -> Connection:
        """Connect; OSError if nothing listens, PenstockError if the server refuses."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(calls, ping_seconds, on_lost), host, port, ssl=tls)
        try:
            request = Request(hello.call, hello)
            connection.submit(request)
            welcome = _welcome(await request.answer)
        except ConnectionLost as lost:
            raise ConnectionResetError(lost.problem) from None
        except frames.UNREADABLE:
            connection.abort(NO_PENSTOCK)
            raise ConnectionResetError(NO_PENSTOCK) from None
        except BaseException:
            connection.abort("")
            raise
        if not connection.is_usable:  # it ended in the same turn of the loop
            connection.abort("")
            raise ConnectionResetError(connection.problem)
        connection._inbox.limit = MAX_FRAME_BYTES
        connection._max_request = welcome.max_frame_bytes
        connection._ping()
        return connection

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_call(self) -> int:
        return next(self._calls)

    def next_stream(self) -> int:
        return next(self._numbers)

    def submit(self, request: Request) -> None:
        """Send a request; the result is the server's answer, or ConnectionLost."""
        size = len(request.data) - HEADER
        if size > self._max_request:
            # The server would close the connection, with all other requests.
            request.fail(
                InvalidArgument(
                    f"the request has {size} bytes, expected at most {self._max_request}", hint="send fewer messages at once"
                )
            )
            return
        self._waiting[request.call] = request
        self._write(request.data)

    def announce(self, call: int, end: StreamEnd, frame: object) -> None:
        """Send a request whose answer is reported to a stream."""
        self._waiting[call] = end
        self.send(frame)

    def send(self, frame: object) -> None:
        self._write(frames.framed(frame))

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.is_usable = False
        self.problem = self.problem or "it was closed here"
        self.flush()
        self._transport.close()

    def abort(self, problem: str) -> None:
        self.is_usable = False
        self.problem = self.problem or problem
        self._transport.abort()

    # ── the socket ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass

    def data_received(self, data: bytes) -> None:
        self._unheard = 0
        try:
            answers = [frames.decode_answer(body) for body in self._inbox.feed(data)]
        except (InvalidArgument, *frames.UNREADABLE):
            self.abort(NO_PENSTOCK)
            return
        for answer in answers:
            self._take(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is lost."""
        self.is_usable = False
        self.problem = self.problem or (text_of(error) if error is not None else "the server closed the connection")
        self.lost.set()
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, {}
        self._on_lost(self, [one for one in waiting.values() if isinstance(one, Request) and not one.answer.done()])
        self._end_streams(f"the connection to the server was lost: {self.problem}")

    def _write(self, data: bytes) -> None:
        """Write it together with other frames of the same turn of the loop."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(data)

    def flush(self) -> None:
        """Write now, instead of at the end of the turn."""
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _ping(self) -> None:
        """Ping, and give up the connection if several pings had no answer."""
        # Unanswered pings count, not elapsed time: a program that was busy for a minute has not lost its server.
        if self._unheard >= PINGS:
            self.abort(f"nothing was received from the server for {PINGS * self._ping_seconds:g} s")
            return
        self._unheard += 1
        self.send(frames.Ping(next(self._calls)))
        self._watch = self._loop.call_later(self._ping_seconds, self._ping)

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, answer: Answer) -> None:
        match answer:
            case Delivered():
                end = self.streams.get(answer.stream)
                if end is not None:
                    end.receiver.receive(end.channel, answer.deliveries)
            case Done():
                waiting = self._waiting.pop(answer.call, None)
                if isinstance(waiting, StreamEnd):
                    waiting.answered(answer.call, bytes(answer.result))
                elif waiting is not None and not waiting.answer.done():
                    waiting.answer.set_result(bytes(answer.result))
            case Refused():
                self._refuse(answer)
            case Ended():
                end = self.streams.pop(answer.stream, None)
                if end is not None:
                    end.closed("the server has closed it")
                    end.receiver.ended(end.channel, frames.error_in(answer) if answer.reason is not None else None)
            case Leaving():
                self.is_usable = False
                self.problem = "the server is stopping"
                self._end_streams(self.problem)

    def _refuse(self, answer: Refused) -> None:
        waiting = self._waiting.pop(answer.call, None)
        if isinstance(waiting, StreamEnd):
            waiting.refused(answer.call, frames.error_in(answer))
        elif waiting is not None:
            waiting.fail(frames.error_in(answer))
        elif not answer.call:
            # The last message of a server that could not parse a frame.
            self.problem = answer.text
            self.is_refused = isinstance(frames.error_in(answer), Unauthenticated)

    def _end_streams(self, problem: str) -> None:
        ends, self.streams = [*self.streams.values()], {}
        for end in ends:
            end.closed(problem)
            end.receiver.ended(end.channel, Unavailable(problem))
