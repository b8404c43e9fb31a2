"""A broker behind a connection: found, greeted, kept, and found again when it is lost.

    closed ──start──> connected ──lost, or the server is stopping──> seeking ──> connected
                                                                        └── nothing waits any more: until the next request

Whatever was asked and not answered when a connection is lost is asked again, if asking twice does nothing twice: publishes are
marked, so that the server knows a repeat, and questions change nothing. They go out again first, as they were and in their order,
so that no publish overtakes another. For the rest the error says that the outcome is unknown. A request that waited
for a connection for `give_up_seconds` fails with ServerUnreachable; what trying again cannot mend (no valid token, another
version of the protocol) fails at once.

With the addresses of several nodes of a cluster they are tried in turn. A node that does not own the log names the owner and an
epoch; the client connects to the owner, or through the node it asked if it cannot reach the owner.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from penstock import forks
from penstock.backoff import exponential
from penstock.client.link import Channel, Receiver, check_loop
from penstock.client.links.connection import NO_PENSTOCK, PING_SECONDS, Connection, ConnectionLost, Request, StreamEnd
from penstock.clock import Clock, SystemClock, monotonic
from penstock.durations import SECOND, micros
from penstock.errors import (
    FailedPrecondition,
    InvalidArgument,
    JournalUnavailable,
    JournalUncertain,
    LogLost,
    PenstockError,
    ServerUnreachable,
    Unavailable,
)
from penstock.values.message import Message
from penstock.values.queue import NewMessage
from penstock.wire import frames
from penstock.wire.address import Address, NativePlace, Servers, text_of
from penstock.wire.frames import Call, Enqueue, Hello, Limits, Nack, Open, Opened, Publish, Settle, Settled
from penstock.wire.operations import CONSUMING, QUESTIONS, Operations
from penstock.wire.operations import operation as known

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("penstock.client")

CONNECT_SECONDS = 5.0
"""How long one try may take."""
OWNER_SECONDS = 2.0
"""How long connecting to the owner that another node named may take: that node can relay."""
NODES_PING_SECONDS = 2.0
"""The interval of pings if there are other nodes."""
GIVE_UP_SECONDS = 60.0
MIN_PAUSE, MAX_PAUSE = SECOND // 20, 2 * SECOND
CLOSE_SECONDS = 5.0
MAX_UNANSWERED = 1_000
"""Unanswered publishes. A server recognizes repeats of that many latest publishes of a producer."""

MAX_ACKS, MAX_NACKS = 100_000, 1_000
"""Settlements in one frame; a nack may contain a long error."""

_ids = msgspec.msgpack.Decoder(list[str]).decode
_opened = msgspec.msgpack.Decoder(Opened).decode
_settled = msgspec.msgpack.Decoder(Settled).decode


class RemoteLink:
    """A server by its address: `http://host:8085` (or https), where the native port is asked for, or `penstock://host:8087`.

    Or several nodes of a cluster, by all their addresses. `give_up_seconds`: how long a request waits for a connection;
    `ping_seconds`: how often a sign of life is asked for (20, or 2 with several nodes).
    """

    is_embedded = False

    def __init__(
        self,
        server: Servers,
        *,
        token: str | None = None,
        project: str | None = None,
        tls: ssl.SSLContext | None = None,
        give_up_seconds: float = GIVE_UP_SECONDS,
        ping_seconds: float | None = None,
    ) -> None:
        self._places = deque(Address.parse_all(server))
        """The addresses, in the order of attempts."""
        self.address = server if isinstance(server, str) else ", ".join(server)
        self._epoch = 0
        """The newest epoch of the log that a node has named."""
        self.clock: Clock = SystemClock()
        self._token, self._project, self._tls = token, project, tls
        self._give_up = micros(give_up_seconds, "give_up_seconds", maximum=366 * 86_400)
        # A server disconnects clients that are silent for two minutes.
        if ping_seconds is None:
            ping_seconds = PING_SECONDS if len(self._places) == 1 else NODES_PING_SECONDS
        self._ping_seconds = micros(ping_seconds, "ping_seconds", minimum=0.01, maximum=60) / SECOND
        self._producer = secrets.token_hex(8)
        self._sequences = itertools.count(1)
        self._calls = itertools.count(1)
        self._chance = random.Random()
        self._connection: Connection | None = None
        self._line: list[Request] = []
        """Requests that wait for a connection, in their order. Empty while there is one."""
        self._seeking: asyncio.Task[None] | None = None
        self._is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room: asyncio.Semaphore
        forks.own(self, "client")

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Connect, with one attempt for each address: a wrong address must fail at once."""
        if not self._is_open:
            self._is_open = True
            self._loop = asyncio.get_running_loop()
            self._room = asyncio.Semaphore(MAX_UNANSWERED)
        try:
            await self._connected(is_patient=False)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection. Unanswered requests fail, with unknown outcome. Can be called twice."""
        self._is_open = False
        self._fail_all(_closed())
        seeking, self._seeking = self._seeking, None
        if seeking is not None:
            seeking.cancel()
            await asyncio.wait([seeking])
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await _until_lost(connection)

    # ── what may be asked ────────────────────────────────────────────────────────────────────────────────────────────────

    async def call(self, operation: Callable[Concatenate[Operations, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        found = known(operation.__name__)
        arguments = msgspec.Raw(frames.encode(dict(zip(found.parameters, args, strict=False)) | kwargs))
        call = next(self._calls)
        request = Request(
            call,
            Call(call, found.name, arguments),
            is_repeatable=found.name.startswith(QUESTIONS),
            is_lease=found.name in CONSUMING,
        )
        try:
            result = await self._ask(request)
        except asyncio.CancelledError:
            if found.name in CONSUMING:
                self._cancel(request)
            raise
        value: T = _read(found.read_result, result, found.name)
        return value

    async def publish(self, topic: str, messages: list[Message]) -> list[str]:
        return await self._publish(lambda call, origin: Publish(call, topic, messages, origin))

    async def enqueue(self, queue: str, messages: list[NewMessage]) -> list[str]:
        return await self._publish(lambda call, origin: Enqueue(call, queue, messages, origin))

    async def open(
        self, kind: int, name: str, consumer: str, limits: Limits, receiver: Receiver, *, held: list[int] | None = None
    ) -> Channel:
        """Open a stream of deliveries, as soon as there is a connection."""
        channel = _RemoteChannel(await self._connected(), receiver)
        await channel.open(lambda call, number: Open(call, number, kind, name, consumer, limits, held))
        return channel

    async def _publish(self, frame: Callable[[int, tuple[str, int]], Publish | Enqueue]) -> list[str]:
        self._check_open()
        async with self._room:
            origin = (self._producer, next(self._sequences))
            unknown: JournalUncertain | LogLost | None = None
            until = failures = 0
            while True:
                call = next(self._calls)
                try:
                    return _read(_ids, await self._ask(Request(call, frame(call, origin), is_repeatable=True)), "publish")
                except (JournalUncertain, JournalUnavailable) as error:
                    # Once the outcome is unknown, it stays so until a repeat succeeds: under its mark it is stored once.
                    if unknown is None and isinstance(error, JournalUncertain | LogLost):
                        unknown, until = error, monotonic() + self._give_up
                    if unknown is None or monotonic() >= until:
                        raise unknown or error from None
                failures += 1
                await asyncio.sleep(exponential(failures, MIN_PAUSE, MAX_PAUSE) / SECOND)

    async def _ask(self, request: Request) -> bytes:
        self._check_open()
        connection = self._connection
        if connection is not None and connection.is_usable:
            connection.submit(request)
        else:
            self._wait_for_connection([request])
        try:
            return await request.answer
        except ConnectionLost as lost:
            raise Unavailable(
                f"the connection was lost before the answer came ({lost.problem}): it may or may not have been executed",
                hint="check whether it was executed, and repeat it if not",
            ) from None

    def _cancel(self, request: Request) -> None:
        """The caller does not wait any more: messages that it leases must be released."""
        if request in self._line:
            self._line.remove(request)
        elif (connection := self._connection) is not None and connection.is_usable:
            connection.send(frames.Cancel(request.call))

    def _check_open(self) -> None:
        if not self._is_open:
            raise FailedPrecondition("the client is closed", hint="async with PubSub(…) as pubsub: …")
        check_loop(self._loop)

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _connected(self, *, is_patient: bool = True) -> Connection:
        """The connection, once there is one."""
        while True:
            self._check_open()
            connection = self._connection
            if connection is not None and connection.is_usable:
                return connection
            # A ping: its answer shows that the connection works.
            call = next(self._calls)
            request = Request(call, frames.Ping(call), is_repeatable=is_patient, is_patient=is_patient)
            self._wait_for_connection([request])
            try:
                await request.answer
            except ConnectionLost as lost:
                raise ServerUnreachable(self.address, lost.problem) from None

    def _wait_for_connection(self, requests: list[Request]) -> None:
        """Queue requests, and make sure that a connection is being opened."""
        now = monotonic()
        for request in requests:
            request.since = request.since or now
        self._line += requests
        # A completed task may still be registered: that ends in the next turn of the loop.
        if self._line and (self._seeking is None or self._seeking.done()):
            self._seeking = asyncio.get_running_loop().create_task(self._seek(), name=f"penstock connection to {self.address}")
            self._seeking.add_done_callback(self._sought)

    def _lost(self, connection: Connection, requests: list[Request]) -> None:
        """A connection has ended. Repeatable requests are put at the front of the queue: they were made before the others."""
        again: list[Request] = []
        for request in requests:
            if not self._is_open:
                request.fail(_closed())
            elif request.is_repeatable or (request.is_lease and connection.is_refused):
                again.append(request)  # a revoked token ended the wait: the repeated request gets the error that reports it
            else:
                request.fail(ConnectionLost(connection.problem))
        if connection is self._connection and self._is_open:
            log.warning("the connection to the server at %s was lost: %s", self.address, connection.problem)
        if again:
            later, self._line = self._line, []
            self._wait_for_connection(again + later)

    async def _seek(self) -> None:
        """Try to connect for as long as requests wait."""
        before, failures = self._connection, 0
        if before is not None:
            # A stopping server still answers what it has started: those answers come before newer requests.
            await _until_lost(before)
        while self._line:
            try:
                connection = await self._connect()
            except (OSError, UnicodeError, PenstockError) as error:  # UnicodeError: an impossible name
                if isinstance(error, PenstockError) and not error.transient:
                    self._fail_all(error)
                    return
                failures += 1
                problem = text_of(error)
                log.debug("attempt %d: no connection to the server at %s: %s", failures, self.address, problem)
                pause = exponential(failures, MIN_PAUSE, MAX_PAUSE)
                # Clients that lost the same server must not reconnect in step.
                pause = min(pause - self._chance.randrange(pause // 2), self._expire_requests(problem))
                await asyncio.sleep(pause / SECOND)
                continue
            if before is not None:
                log.info("connected to the server at %s again", self.address)
            self._connection = connection
            line, self._line = self._line, []
            for request in line:
                if not request.answer.done():
                    connection.submit(request)

    def _expire_requests(self, problem: str) -> int:
        """Fail requests that have waited for too long; returns the time until the next one."""
        now, soonest = monotonic(), MAX_PAUSE
        line, self._line = self._line, []
        for request in line:
            if not request.is_patient:
                request.fail(ServerUnreachable(self.address, problem))
            elif now - request.since >= self._give_up:
                waited = round((now - request.since) / SECOND, 1)
                request.fail(ServerUnreachable(self.address, f"{problem}; gave up after {waited:g} s"))
            elif not request.answer.done():
                self._line.append(request)
                soonest = min(soonest, request.since + self._give_up - now)
        return soonest

    def _sought(self, task: asyncio.Task[None]) -> None:
        """No more attempts; an unexpected error is raised in the waiting requests."""
        if self._seeking is task:
            self._seeking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        line, self._line = self._line, []
        for request in line:
            request.fail(error)

    async def _connect(self) -> Connection:
        """A connection to the first address that works; if none does, the error of the last one."""
        for _ in range(len(self._places) - 1):
            try:
                return await self._connect_by(self._places[0])
            except (OSError, UnicodeError, PenstockError) as error:
                if isinstance(error, PenstockError) and not error.transient:
                    raise
                log.debug("no connection to the server at %s: %s", self._places[0], text_of(error))
                self._places.rotate(-1)
        try:
            return await self._connect_by(self._places[0])
        except BaseException:
            self._places.rotate(-1)
            raise

    async def _connect_by(self, place: Address) -> Connection:
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await self._native(place)
            if found.epoch < self._epoch:
                raise ConnectionError(f"it knows epoch {found.epoch} of the log, and {self._epoch} is the newest")
            self._epoch = found.epoch
            if found.owner is not None:
                # Its address may be reachable only for nodes: then this one relays.
                with suppress(OSError, UnicodeError, Unavailable, InvalidArgument):
                    async with asyncio.timeout(OWNER_SECONDS):
                        owner = Address.parse(found.owner)
                        if owner.has_tls or not place.has_tls:  # a token that should be protected is not sent unencrypted
                            native = await self._native(owner)
                            if native.owner is None:
                                return await self._greeted(owner.host, native)
            return await self._greeted(place.host, found)

    async def _native(self, place: Address) -> NativePlace:
        return await place.native(self._context() if place.has_tls else None)

    async def _greeted(self, host: str, native: NativePlace) -> Connection:
        return await Connection.connect(
            host,
            native.port,
            self._context() if native.has_tls else None,
            Hello(next(self._calls), frames.VERSION, self._token, self._project, "penstock-python"),
            calls=self._calls,
            ping_seconds=self._ping_seconds,
            on_lost=self._lost,
        )

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


class _RemoteChannel(StreamEnd):
    """A stream over a connection."""

    def __init__(self, connection: Connection, receiver: Receiver) -> None:
        self._connection = connection
        self.number = connection.next_stream()
        self.receiver = receiver
        self.channel: Channel = self
        self.opened: Opened
        self._unconfirmed: dict[int, tuple[list[int], list[Nack]]] = {}
        """Acks and nacks in transit, by their call."""
        self._is_closed = asyncio.Event()
        self._opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, frame: Callable[[int, int], Open]) -> None:
        """Open it. The answer is processed where it arrives: the first deliveries may follow immediately."""
        self._connection.streams[self.number] = self
        call = self._connection.next_call()
        self._connection.announce(call, self, frame(call, self.number))
        try:
            await self._opening
        except PenstockError:
            self._connection.streams.pop(self.number, None)
            raise
        except BaseException:
            # It is not awaited any more, but the server opens it: its deliveries must be requeued.
            if self._connection.streams.pop(self.number, None) is not None:
                self._connection.send(frames.Close(self.number))
            raise

    def settle(
        self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]], begun: Sequence[int] = ()
    ) -> None:
        while len(acks) > MAX_ACKS or len(nacks) > MAX_NACKS:  # a frame has limits
            self.settle(acks[:MAX_ACKS], nacks[:MAX_NACKS], [])
            acks, nacks = acks[MAX_ACKS:], nacks[MAX_NACKS:]
        if acks or nacks:
            call = self._connection.next_call()
            self._unconfirmed[call] = (acks, nacks)
            self._connection.announce(call, self, Settle(call, self.number, acks, nacks, deadlines, [*begun]))
        elif deadlines or begun:
            self._connection.send(Settle(0, self.number, acks, nacks, deadlines, [*begun]))
        if begun:
            self._connection.flush()  # it must be sent before the handler starts

    def answered(self, call: int, result: bytes) -> None:
        if self._is_closed.is_set():
            return  # a server that has ended the stream does not know it any more, and reports that
        if self._unconfirmed.pop(call, None) is None and not self._opening.done():
            try:
                self.opened = _opened(result)
            except frames.UNREADABLE:
                self._connection.abort(NO_PENSTOCK)
            else:
                self._opening.set_result(None)

    def refused(self, call: int, error: PenstockError) -> None:
        """It cannot be opened, or acks were too late."""
        if self._unconfirmed.pop(call, None) is None and not self._opening.done():
            self._opening.set_exception(error)

    def unconfirmed(self) -> tuple[list[int], list[Nack]]:
        """Acks and nacks that may not have arrived."""
        on_their_way = self._unconfirmed.values()
        return [one for acks, _ in on_their_way for one in acks], [one for _, nacks in on_their_way for one in nacks]

    async def confirm(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> list[int]:
        if self._connection.lost.is_set():
            raise Unavailable(f"the connection was lost: {self._connection.problem}")
        call = self._connection.next_call()
        request = Request(call, Settle(call, self.number, acks, nacks, deadlines))
        self._connection.submit(request)
        try:
            return _read(_settled, await request.answer, "settle").failed
        except ConnectionLost as lost:
            raise Unavailable(f"the connection was lost before the answer came: {lost.problem}") from None

    def adjust(self, limits: Limits) -> None:
        self._connection.send(frames.Adjust(self.number, limits))

    def closed(self, problem: str) -> None:
        self._is_closed.set()
        if not self._opening.done():
            self._opening.set_exception(Unavailable(problem))

    async def close(self, *, keep: bool = False) -> None:
        """Close it, and return once the server has confirmed, or does not answer."""
        if self.number not in self._connection.streams:
            return
        self.receiver = _NOBODY
        self._connection.send(frames.Close(self.number, keep))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._is_closed.wait()


class _NullReceiver:
    """The receiver of a stream that is being closed."""

    def receive(self, channel: Channel, deliveries: Any) -> None:
        """Do nothing: the messages are requeued when the stream ends."""

    def ended(self, channel: Channel, error: PenstockError | None) -> None:
        """Do nothing: this is expected."""


_NOBODY = _NullReceiver()


def _read(read: Callable[[bytes], T], result: bytes, what: str) -> T:
    try:
        return read(result)
    except frames.UNREADABLE:
        raise FailedPrecondition(
            f"the answer to {what} cannot be read", hint="install the same version of Penstock on both sides"
        ) from None


async def _until_lost(connection: Connection) -> None:
    """Return once a connection has ended, by itself or after a timeout."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.lost.wait()
    except TimeoutError:
        connection.abort("the server did not close it")
        await connection.lost.wait()


def _closed() -> FailedPrecondition:
    return FailedPrecondition(
        "the client was closed before the answer came: it may or may not have been executed",
        hint="await pending calls, then close",
    )
