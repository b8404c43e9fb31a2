"""One client of the native protocol.

Requests that need only memory are answered at once, in their order; the others run beside them. The server stops reading from a
client that has too many running requests, or does not read its answers: further requests wait in its socket. An error is an
answer like any other; only broken framing, silence and unread answers end a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from penstock.access import ANYONE, Principal
from penstock.api.feed import Feed
from penstock.api.operations import Operations
from penstock.broker.async_consumer import BATCH, TakenRecord
from penstock.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    PenstockError,
    RateLimited,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from penstock.http.authentication import Admission
from penstock.http.refusal import code_location
from penstock.http.request import peer_of
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.wire import frames
from penstock.wire.frames import (
    Adjust,
    Call,
    Cancel,
    Close,
    Enqueue,
    Hello,
    Inbox,
    Open,
    Ping,
    Publish,
    Request,
    Settle,
    Settled,
    Welcome,
)
from penstock.wire.operations import CONSUMING, operation

if TYPE_CHECKING:
    from penstock.native.port import NativeServer

log = logging.getLogger("penstock.native")

MAX_HELLO_BYTES = 4096
"""The maximum size of frames before authentication."""
CALL_LOAD = 16
"""The weight of an operation in `max_running`, where a publish weighs 1: its answer may be large."""
MAX_TAKEN = 100
"""The number of latest calls that can be undone."""
LOOK_SECONDS = 1.0
"""The interval of token checks: a revoked token ends its streams that soon."""
FREE = (Settle, Adjust, Close, Ping, Cancel)
"""Frames that do not count as requests: they belong to one that did."""


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: NativeServer) -> None:
        self._server = server
        self._inbox = Inbox(MAX_HELLO_BYTES)
        self._operations: Operations | None = None
        self._principal: Principal = ANYONE
        self._admission = Admission(None, None)
        self._address = "unknown"
        self._streams: dict[int, _Stream] = {}
        self._arrived: deque[bytes] = deque()
        self._bodies: Iterator[bytes] = iter(())
        """Bytes that arrived and are not parsed yet, and the frames from the bytes before them."""
        self._running: dict[asyncio.Task[None], int] = {}
        self._load = 0
        """The total weight of running requests."""
        self._is_full = False
        """Whether no more frames are taken until half of the running requests are done."""
        self._waits: set[asyncio.Task[None]] = set()
        """The requests that wait for a message."""
        self._consuming: dict[int, asyncio.Task[None]] = {}
        """Requests that lease messages, by their call."""
        self._taken: dict[int, TakenRecord] = {}
        """Messages that the latest calls leased, by call: they are released if the client did not wait for the answer."""
        self._unwanted: set[int] = set()
        """Calls whose client does not wait for the answer any more."""
        self.is_writable = True
        self._is_leaving = False
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._stuck_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._pause = 0.0
        self._transport: asyncio.Transport

    @property
    def address(self) -> str:
        return peer_of(self._transport)

    # ── the socket ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, or close it at once if there are too many."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass
        self._address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        if len(self._server.connections) >= self._server.limits.max_connections:
            self._transport.abort()
            return
        self._server.connections.add(self)
        self._look_in(self._server.limits.hello_seconds)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._arrived.append(data)
        self._take_more()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is lost. Its messages stay leased for a while: the client may reconnect."""
        self._server.connections.discard(self)
        if self._watch is not None:
            self._watch.cancel()
        for task in (*self._running, *self._waits):
            task.cancel()
        for stream in [*self._streams.values()]:
            stream.feed.close(keep=True)
        self._streams.clear()

    def pause_writing(self) -> None:
        self.is_writable = False
        self._stuck_at = self._loop.time()
        self._update_reading()

    def resume_writing(self) -> None:
        self.is_writable = True
        for stream in self._streams.values():
            stream.feed.wake()
        self._take_more()

    def leave(self) -> list[asyncio.Task[None]]:
        """Stop: take no more frames, and notify the client. Returns what still runs."""
        self._is_leaving = True
        self._write(frames.framed(frames.Leaving()))
        for stream in self._streams.values():
            # It delivers nothing more, but acks in transit are still taken.
            stream.feed.close(keep=True)
        for task in self._waits:
            task.cancel()
        return [*self._running]

    def close(self) -> None:
        """End the connection once everything is written, or at once if the client does not read."""
        if self.is_writable:
            self._transport.close()
        else:
            self._transport.abort()

    def _look_after(self) -> None:
        """Disconnect a client that does not authenticate in time, is silent, does not read, or has no valid token any more."""
        limit, now = self._server.limits.idle_seconds, self._loop.time()
        is_stuck = not self.is_writable and now - self._stuck_at >= limit
        if self._operations is None or is_stuck or now - self._heard_at >= limit:
            self._transport.abort()
            return
        try:
            self._admission.check()
        except PenstockError as error:
            for stream in [*self._streams.values()]:
                stream.feed.fail(error)
            self._write(frames.refused(0, error))
            self.close()
            return
        self._look_in(self._pause)

    def _look_in(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(seconds, self._look_after)

    def _take_more(self) -> None:
        """Take frames while there is room for their requests; the rest waits here, and then in the socket."""
        most, transport = self._server.limits.max_running, self._transport
        try:
            while self.is_writable and not self._is_full and not transport.is_closing():
                body = next(self._bodies, None)
                if body is not None:
                    self._take(body)
                    self._is_full = self._load >= most
                elif self._arrived:
                    self._bodies = self._inbox.feed(self._arrived.popleft())
                else:
                    break
        except InvalidArgument as error:
            self._write(frames.refused(0, error))
            transport.close()
        self._update_reading()

    def _update_reading(self) -> None:
        wanted = self.is_writable and not self._is_full
        if wanted and not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()
        elif not wanted and self._transport.is_reading():
            self._transport.pause_reading()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, body: bytes) -> None:
        try:
            request = frames.decode_request(body)
        except frames.UNREADABLE as error:
            problem = InvalidArgument(f"the frame cannot be read: {str(error)[: frames.MAX_PROBLEM]}")
            self._write(frames.refused(frames.call_in(body), problem))
            if self._operations is None:
                self._transport.close()
            return
        call = getattr(request, "call", 0)
        try:
            if isinstance(request, Hello):
                self._greet(request)
                return
            operations = self._operations
            if operations is None:
                raise Unauthenticated("the first frame of a connection is Hello")
            if type(request) not in FREE:
                self._admit()
            self._answer(request, operations)
        except PenstockError as error:
            self._refuse(call, error)
            if self._operations is None:
                self._transport.close()
        except Exception as error:  # noqa: BLE001  # the top of the service: after any error the client gets an answer
            self._fail(call, error)

    def _greet(self, hello: Hello) -> None:
        if self._operations is not None:
            raise FailedPrecondition(
                "Hello was sent before on this connection", hint="open another connection for another identity"
            )
        if hello.version != frames.VERSION:
            raise FailedPrecondition(
                f"the client speaks version {hello.version} of the protocol, this server {frames.VERSION}",
                hint="install the same version of Penstock on both sides",
            )
        gate, service = self._server.gate, self._server.service
        try:
            principal: Principal = ANYONE if gate is None else gate.authenticate(hello.token)
        except Unauthenticated:
            wait = gate.wait_seconds(None, self._address) if gate is not None else 0
            if wait > 0:
                raise RateLimited(wait) from None  # slow down clients that guess tokens
            raise
        project = hello.project or principal.project or service.projects.default
        self._operations = Operations(service, principal, project)
        self._principal, self._admission = principal, Admission(gate, hello.token)
        self._inbox.limit = self._server.limits.max_frame_bytes
        idle = self._server.limits.idle_seconds / 4
        self._pause = idle if gate is None else min(idle, LOOK_SECONDS)
        self._look_in(self._pause)
        welcome = Welcome(
            frames.VERSION, service.version, project, self._server.limits.max_frame_bytes, service.aio.broker.is_durable
        )
        self._write(frames.done(hello.call, welcome))

    def _admit(self) -> None:
        """Check whether one more request is allowed: a token may be revoked or expired, and there is a rate limit."""
        self._server.requests += 1
        gate = self._server.gate
        if gate is not None and not gate.is_open:
            self._admission.check()
            wait = gate.wait_seconds(self._principal, self._address)
            if wait > 0:
                raise RateLimited(wait)

    def _answer(self, request: Request, operations: Operations) -> None:
        match request:
            case Publish():
                self._run(request.call, operations.publish(request.topic, request.messages, request.origin))
            case Enqueue():
                self._run(request.call, operations.enqueue(request.queue, request.messages, request.origin))
            case Settle():
                self._settle(request)
            case Call():
                self._call(request, operations)
            case Open():
                self._open(request, operations)
            case Adjust():
                if (stream := self._streams.get(request.stream)) is not None:
                    stream.feed.adjust(request.limits)
            case Close():
                self._close(request)
            case Ping():
                self._write(frames.done(request.call))
            case Cancel():
                self._cancel(request.call)
            case Hello():
                raise AssertionError("it was answered")

    def _call(self, request: Call, operations: Operations) -> None:
        known = operation(request.operation)
        try:
            arguments = known.read_arguments(bytes(request.arguments))
        except frames.UNREADABLE as error:
            problem = str(error)[: frames.MAX_PROBLEM]
            raise InvalidArgument(f"the arguments of {known.name} cannot be read: {problem}") from None
        method = getattr(operations, known.name)
        waits = getattr(arguments, "wait", 0) > 0
        if waits and len(self._waits) >= self._server.limits.max_waits:
            raise ResourceExhausted(f"{len(self._waits)} requests wait for messages on this connection, expected fewer")
        work = method(**{name: getattr(arguments, name) for name in known.parameters})
        if known.name not in CONSUMING:
            self._run(request.call, work, CALL_LOAD)
            return
        record = TakenRecord()
        task = self._loop.create_task(self._finish(request.call, work), context=record.context())
        if waits:  # waiting is no load: other frames of the client are still read
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)
        else:
            self._add(task, CALL_LOAD)
        self._consuming[request.call] = task
        task.add_done_callback(lambda _: self._answered(request.call, work, record))

    def _answered(self, call: int, work: Coroutine[None, None, object], record: TakenRecord) -> None:
        """A call that may have leased messages was answered, or cancelled."""
        work.close()  # it was cancelled before it started
        self._consuming.pop(call, None)
        if call in self._unwanted:
            self._unwanted.discard(call)
            record.undo()
        elif record:
            self._taken[call] = record
            if len(self._taken) > MAX_TAKEN:
                del self._taken[next(iter(self._taken))]

    def _cancel(self, call: int) -> None:
        """The client does not wait any more: end the call, or release what it has leased."""
        if (record := self._taken.pop(call, None)) is not None:
            record.undo()
        elif (task := self._consuming.get(call)) is not None:
            self._unwanted.add(call)
            self._waits.discard(task)  # at once: the next request may come in the same packet
            task.cancel()

    def _open(self, request: Open, operations: Operations) -> None:
        if request.kind not in {frames.TOPIC, frames.QUEUE}:
            raise InvalidArgument.of("kind", request.kind, f"{frames.TOPIC} (a subscription) or {frames.QUEUE} (a work queue)")
        if request.stream in self._streams:
            raise AlreadyExists("Stream", str(request.stream))
        if len(self._streams) >= self._server.limits.max_streams:
            raise ResourceExhausted(f"{len(self._streams)} streams are open on this connection, expected fewer")
        if self._is_leaving:
            raise Unavailable("the server is stopping", hint="connect again in a moment")
        stream = _Stream(self, request.stream)
        begin = operations.open if request.kind == frames.TOPIC else operations.open_queue
        feed = begin(request.name, request.consumer, request.limits, stream, owner=self, held=request.held)
        stream.feed = feed
        self._streams[request.stream] = stream
        self._write(frames.done(request.call, feed.opened))

    def _settle(self, request: Settle) -> None:
        stream = self._streams.get(request.stream)
        if stream is None:
            if request.call:
                moved = [one for receipts, _ in request.deadlines for one in receipts]
                failed = [*request.acks, *(nack.receipt for nack in request.nacks), *moved]
                self._write(frames.done(request.call, Settled(failed)))
            return
        failed = stream.feed.settle_receipts(request.acks, request.nacks, request.deadlines, request.begun)
        if not request.call:
            return
        if stream.feed.opened.exactly_once:
            self._run(request.call, _settled(stream.feed, failed))
        else:
            self._write(frames.done(request.call, Settled(failed)))

    def _close(self, request: Close) -> None:
        stream = self._streams.pop(request.stream, None)
        if stream is None:
            return
        stream.feed.close(keep=request.keep)
        if stream.feed.opened.exactly_once:
            # After the answers to its acks, which wait for the disk.
            self._begin(self._end_confirmed(request.stream, stream.feed))
        else:
            self._write(frames.ended(request.stream, None))

    async def _end_confirmed(self, stream: int, feed: Feed) -> None:
        with suppress(PenstockError):  # which the acks have reported
            await feed.confirmed()
        self._write(frames.ended(stream, None))

    def _run(self, call: int, work: Coroutine[None, None, object], load: int = 1) -> None:
        """Run a slow request beside the others, and answer with its result."""
        self._begin(self._finish(call, work), load)

    def _begin(self, work: Coroutine[None, None, None], load: int = 1) -> None:
        self._add(self._loop.create_task(work), load)

    def _add(self, task: asyncio.Task[None], load: int) -> None:
        self._running[task] = load
        self._load += load
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._load -= self._running.pop(task)
        if self._is_full and self._load <= self._server.limits.max_running // 2:
            # Half of them at once: resuming for each one that ends would cost one socket read each.
            self._is_full = False
            self._take_more()

    async def _finish(self, call: int, work: Coroutine[None, None, object]) -> None:
        try:
            self._write(frames.done(call, await work))
        except PenstockError as error:
            self._refuse(call, error)
        except Exception as error:  # noqa: BLE001  # the top of the service: after any error the client gets an answer
            self._fail(call, error)

    def _refuse(self, call: int, error: PenstockError) -> None:
        self._write(frames.refused(call, error if self._operations is None else self._operations.for_caller(error)))

    def _fail(self, call: int, error: Exception) -> None:
        # Only the location: the text may contain a payload.
        log.error("a request failed with %s at\n%s", type(error).__name__, code_location(error))
        self._write(frames.refused(call, PenstockError("an error inside the server")))

    # ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def deliver(self, stream: int, leases: list[Lease]) -> None:
        """Send deliveries, unless the client is not allowed to get them any more."""
        try:
            self._admission.check()
        except PenstockError as error:
            self._streams[stream].feed.fail(error)
            return
        self._write(frames.delivered(stream, leases))

    def end(self, stream: int, error: PenstockError | None) -> None:
        self._streams.pop(stream, None)
        told = self._operations.for_caller(error) if error is not None and self._operations is not None else error
        self._write(frames.ended(stream, told))


class _Stream:
    """The destination of a feed: a numbered stream of a connection."""

    __slots__ = ("_connection", "_number", "feed")

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self.feed: Feed

    @property
    def room(self) -> int:
        return BATCH if self._connection.is_writable else 0

    def deliver(self, queue: QueueDescription, leases: list[Lease]) -> None:
        self._connection.deliver(self._number, leases)

    def end(self, error: PenstockError | None) -> None:
        self._connection.end(self._number, error)


async def _settled(feed: Feed, failed: list[int]) -> Settled:
    await feed.confirmed()
    return Settled(failed)
