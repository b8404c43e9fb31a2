"""Runs the hub: reads connections, writes the frames that the core produces, and performs its effects. The rules are in `core`.

Each connection is written to once in a turn of the event loop, even if there are many messages. No task is started for a message:
a connection is read by the task that accepted it. Only a connection whose client reads slowly has a second task, which writes.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import assert_never

from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.errors import PenstockError, PermissionDenied, Unauthenticated, Unavailable
from penstock.hub.core.close_codes import FAILED, STOPPING, Close
from penstock.hub.core.effects import Append, Effect, Recover, Release, Retain, Settle, Verify
from penstock.hub.core.hub import Hub
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import Binding
from penstock.hub.core.session import Session
from penstock.hub.ports import DurableDelivery, Socket, TopicLogs, Verifier

log = logging.getLogger("penstock.hub")

SWEEP_SECONDS = 1.0
TURN = 64
"""How many frames of one connection are handled in a row before other connections get a turn."""
WRITE_NOW_CHARACTERS = 64 * 1024
"""After this many characters, write without waiting for the end of the turn. Many connections may send more in one turn than an
outbox holds, and a client that reads would be mistaken for a slow reader."""
MAX_APPENDING = 8 * 1024 * 1024
"""Bytes of one connection that may wait for a log; above it, reading from the connection pauses."""

Frame = str | Refusal | Close
"""Input from a client: a text, the refusal of an unreadable frame, or the reason why the connection has to end."""


class Link:
    """One connection: a session and its socket. Writes the waiting frames; it needs a task only for a slow reader."""

    __slots__ = ("_failed", "_giving_up", "_leave_seconds", "_writing", "appending", "free", "retained", "session", "socket")

    def __init__(
        self, session: Session, socket: Socket, *, leave_seconds: float, failed: Callable[[Link, BaseException], None]
    ) -> None:
        self.session = session
        self.socket = socket
        self.appending = 0
        """The bytes of its publishes that are being written to a log."""
        self.free: asyncio.Future[None] | None = None
        """Done when enough of its publishes have been written to a log, so that reading can continue."""
        self.retained: dict[str, DurableDelivery] = {}
        """Its durable subscriptions that are being delivered, by pattern."""
        self._leave_seconds = leave_seconds
        self._failed = failed
        self._writing: asyncio.Task[None] | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    def write(self) -> None:
        """Write waiting frames, as far as there is room; the rest follows later. Then close the connection if that is due."""
        session, socket = self.session, self.socket
        outbox, close = session.outbox, session.closing
        if self._writing is None:
            while outbox and (room := socket.room()) > 0:
                socket.write(outbox.take(room))
            if outbox:
                self._writing = asyncio.create_task(self._write_on())
                self._writing.add_done_callback(self._written)
        if close is not None:
            if not outbox:
                socket.close(close)
            elif self._giving_up is None:
                self._giving_up = asyncio.get_running_loop().call_later(self._leave_seconds, self._give_up)

    async def written(self) -> None:
        """Return when no frame waits any more, or writing has ended."""
        self.write()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def has_appending(self, messages: int, size: int) -> bool:
        """Whether at least this many of its publishes, or this many bytes, are being written to a log."""
        return self.session.appends >= messages or self.appending >= size

    def end(self) -> None:
        """Stop writing and delivery, since the connection is gone. Safe to call twice."""
        self.session.outbox.clear()
        if self._writing is not None:
            self._writing.cancel()
        if self._giving_up is not None:
            self._giving_up.cancel()
        for pattern in [*self.retained]:
            self.rest(pattern)

    def rest(self, pattern: str) -> None:
        """Stop delivery of a durable subscription: it is suspended until its actor subscribes again."""
        retained = self.retained.pop(pattern, None)
        if retained is not None:
            retained.close()

    async def _write_on(self) -> None:
        outbox, socket = self.session.outbox, self.socket
        while outbox:
            await socket.drained()
            while outbox and (room := socket.room()) > 0:
                socket.write(outbox.take(room))

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._finish()
        elif isinstance(error, ConnectionError):
            self.session.outbox.clear()  # the client is gone; the task that reads this connection sees its end as well
        else:
            self._failed(self, error)

    def _finish(self) -> None:
        """Write the frames that were added since, and close if that is due."""
        try:
            self.write()
        except Exception as error:  # noqa: BLE001  # called by the loop: no caller would get the error
            self._failed(self, error)

    def _give_up(self) -> None:
        """Drop the waiting frames of a client that did not read them in time before the close."""
        self.session.outbox.clear()
        self._finish()


class HubService:
    """Runs one hub in one event loop. It can be started once. `stop` is always safe, and final."""

    def __init__(self, hub: Hub, *, feed: TopicLogs | None, verifier: Verifier, clock: Clock) -> None:
        self.hub = hub
        self.feed = feed
        self._verifier = verifier
        self._clock = clock
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """Work that is finished even if the connection that requested it is gone."""
        self._is_flushing = False
        self._heard = 0
        """The characters received from clients and logs since the last flush."""
        self._timer: asyncio.TimerHandle | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._empty = asyncio.Event()
        self._progress = asyncio.Event()
        """Set when a publish has been written to its log, or has failed."""
        self.is_stopping = False

    def start(self) -> None:
        """Start to forward messages of the logs, and to handle what is due."""
        self._loop = asyncio.get_running_loop()
        if self.feed is not None:
            state = self.hub.state
            durable = self.feed.start(
                state.bindings, state.everything, forward=self._forward, skipped=self._skipped, expired=self._expired
            )
            self.hub.resume(durable)
        # If time jumps, as in a test, the timer would not find what became due.
        self._stop_listening = self._clock.listen(self._jump)
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._tick)

    async def stop(self, grace_seconds: float) -> None:
        """Notify all clients that the server is stopping; return when all are gone or the grace is over. Safe to call twice."""
        self.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._stop_listening()
            until = self._loop.time() + grace_seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds / 2):
                    await self._written()
            self.hub.stop(self._clock.now())
            self._flush()
            if self._links or self._tasks:
                try:
                    async with asyncio.timeout_at(until):
                        await self._left()
                except TimeoutError:
                    log.warning(
                        "%d connections of the hub are still open after %g s and are cut", len(self._links), grace_seconds
                    )
            for task in self._tasks:
                task.cancel()
        if self.feed is not None:
            self.feed.stop()

    async def _written(self) -> None:
        """Return when no publish is being written to a log: clients without an answer would send it again, to the next server."""
        while any(link.session.appends for link in self._links):
            self._progress.clear()
            await self._progress.wait()

    async def _left(self) -> None:
        """Return when no connection and no work for one is left."""
        while self._links:
            self._empty.clear()
            await self._empty.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def serve(self, socket: Socket, frames: AsyncIterator[Frame]) -> None:
        """Serve one connection until its frames end."""
        if self.is_stopping:
            socket.close(STOPPING)
            await self._ignore(frames)
            return
        session = self.hub.open(self._clock.now())
        link = session.peer = Link(session, socket, leave_seconds=self.hub.rules.leaving / SECOND, failed=self._fail)
        self._links.add(link)
        try:
            await self._read(link, frames)
        except ConnectionError:
            pass  # it is gone
        except Exception as error:  # noqa: BLE001  # the top level of one connection: the others continue after any error
            self._fail(link, error)
            await self._ignore(frames)
        finally:
            self._end(link)

    async def _read(self, link: Link, frames: AsyncIterator[Frame]) -> None:
        hub, session, now = self.hub, link.session, self._clock.now
        number = 0
        async for frame in frames:
            number += 1
            if number % TURN == 0:
                await asyncio.sleep(0)  # otherwise frames that are already here would block the loop
            if session.closing is not None or self.is_stopping:
                continue  # the client is notified; what it still sends is dropped
            effect, waiting = None, session.outbox.bytes
            if isinstance(frame, str):
                self._heard += len(frame)
                effect = hub.receive(session, frame, now())
            elif isinstance(frame, Refusal):
                hub.reject(session, frame, now())
            else:
                hub.state.cut(session, frame, now())
            is_much = session.outbox.bytes - waiting >= WRITE_NOW_CHARACTERS
            self._flush_when_due()
            if effect is not None:
                await self._carry_out(link, effect)
            elif is_much:
                # Small requests may have large answers: several answers may not fit into the outbox.
                await link.written()

    async def _ignore(self, frames: AsyncIterator[Frame]) -> None:
        """Read and drop frames until the client has received the close: unread data would reset the connection before that."""
        number = 0
        async for _ in frames:
            number += 1
            if number % TURN == 0:
                await asyncio.sleep(0)

    def _end(self, link: Link) -> None:
        """Clean up after a connection. Safe to call twice."""
        if link in self._links:
            self._links.discard(link)
            for clean_up in (link.end, partial(self.hub.closed, link.session, self._clock.now())):
                try:
                    clean_up()
                except Exception as error:  # noqa: BLE001  # an error in one clean-up must not prevent the others
                    log.error("cleaning up a connection failed with %s at\n%s", type(error).__name__, _where(error))
            link.session.peer = None
            if self.hub.dirty:
                self._flush_soon()  # others may have been notified
            if not self._links:
                self._empty.set()

    def _fail(self, link: Link, error: BaseException) -> None:
        """End a connection after an internal error. The error text may contain payloads, so only the traceback is logged."""
        log.error("a connection of the hub failed with %s at\n%s", type(error).__name__, _where(error))
        link.session.closing = FAILED
        self._end(link)
        link.socket.close(FAILED)

    # --- writing --------------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Write at the end of this turn of the loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush_when_due(self) -> None:
        """Write at the end of the turn, or now if there is much to write."""
        if self._heard >= WRITE_NOW_CHARACTERS:
            self._flush()
        elif self.hub.dirty:
            self._flush_soon()

    def _flush(self) -> None:
        self._is_flushing = False
        self._heard = 0
        hub = self.hub
        if hub.state.subscribed:
            # At level debug, because clients control the number of lines.
            for address, pattern in hub.state.subscribed:
                log.debug("subscription_added actorAddress=%s topic=%s", address, pattern)
            hub.state.subscribed.clear()
        rested = hub.state.rested[:]
        hub.state.rested.clear()
        for session, pattern in rested:
            if session.peer is not None:
                self._guard(session.peer, partial(session.peer.rest, pattern))
        dirty = hub.dirty[:]
        hub.dirty.clear()
        for session in dirty:
            session.is_dirty = False
            if session.peer is not None:
                self._guard(session.peer, session.peer.write)

    def _guard(self, link: Link, step: Callable[[], None]) -> None:
        """Do something with one connection; an error ends only that connection."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  # see above
            self._fail(link, error)

    # --- timers and logs ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._sweep()
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._tick)

    def _jump(self) -> None:
        self._loop.call_soon_threadsafe(self._sweep)  # any thread may move the time

    def _sweep(self) -> None:
        if self.is_stopping:
            return
        try:
            self._check_tokens()
            self.hub.sweep(self._clock.now())
        except Exception as error:  # noqa: BLE001  # it is tried again in a second
            log.error("looking after the hub failed with %s at\n%s", type(error).__name__, _where(error))
        self._flush_soon()

    def _check_tokens(self) -> None:
        """End sessions whose tokens are not valid any more."""
        for session in [*self.hub.state.sessions]:
            try:
                self._verifier.check(session.identity)
            except Refusal as refusal:
                self.hub.disconnect_session(session, refusal, self._clock.now())

    def _forward(self, binding: Binding, messages: Sequence[Message]) -> None:
        try:
            self.hub.forward(binding, messages, self._clock.now())
        except Exception as error:  # noqa: BLE001  # the log continues, and no client has a gap without notice
            log.error("forwarding from %r failed with %s at\n%s", binding.stream, type(error).__name__, _where(error))
            self._skipped(binding)
        self._heard += sum(message.weight for message in messages)
        self._flush_when_due()

    def _skipped(self, binding: Binding) -> None:
        self.hub.skipped(binding, self._clock.now())
        self._flush_soon()

    def _expired(self, address: str, pattern: str) -> None:
        """A durable subscription expired because its actor did not return."""
        self.hub.expired(address, pattern)

    # --- effects --------------------------------------------------------------------------------------------------------------

    async def _carry_out(self, link: Link, effect: Effect) -> None:
        """Perform an effect and report the result to the core. Returns when reading from the connection may continue."""
        match effect:
            case Append():
                await self._append(link, effect)
            case Settle():
                for pattern, messages in effect.messages.items():
                    if pattern in link.retained:
                        link.retained[pattern].ack(messages)
            case Verify():
                await self._verify(link, effect)
            case Recover():
                await self._recover(link, effect)
            case Retain():
                await self._finish(self._retain(link, effect))
            case Release():
                await self._finish(self._release(link, effect))
            case _:
                assert_never(effect)
        self._flush_soon()

    async def _finish(self, work: Coroutine[None, None, None]) -> None:
        """Finish work even if the connection ends meanwhile: otherwise hub and log would disagree."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _verify(self, link: Link, effect: Verify) -> None:
        try:
            identity = await self._verifier.verify(effect.token, effect.claimed)
        except (Refusal, PenstockError) as error:
            self.hub.unverified(link.session, effect, _refusal(error), self._clock.now())
        else:
            self.hub.verified(link.session, effect, identity, self._clock.now())

    async def _append(self, link: Link, effect: Append) -> None:
        """Append a message to the log without waiting for it. Wait only if the connection has too many unfinished appends."""
        done = partial(self._appended, link, effect)
        link.appending += effect.message.weight
        try:
            self._logs.append(effect.binding, effect.message, done)
        except PenstockError as error:
            done(error)
        if link.has_appending(self.hub.rules.max_appends, MAX_APPENDING):
            link.free = self._loop.create_future()
            await link.free

    def _appended(self, link: Link, effect: Append, outcome: Position | PenstockError) -> None:
        now, session = self._clock.now(), link.session
        link.appending -= effect.message.weight
        try:
            if isinstance(outcome, PenstockError):
                self.hub.lost(session, effect, _refusal(outcome), now)
            else:
                self.hub.appended(session, effect, outcome, now)
        except Exception as error:  # noqa: BLE001  # the caller is the log, which has further messages to write
            self._fail(link, error)
        if link.free is not None and not link.has_appending(self.hub.rules.max_appends // 2 + 1, MAX_APPENDING // 2 + 1):
            if not link.free.done():
                link.free.set_result(None)
            link.free = None
        self._progress.set()
        self._flush_soon()

    async def _recover(self, link: Link, effect: Recover) -> None:
        """Read missed messages in parts, each after the previous one is written: all of them may exceed the outbox."""
        hub, session, start, is_first = self.hub, link.session, effect.start, True
        while session.closing is None and (is_first or start < effect.stop):
            try:
                part = await self._logs.read(effect.binding, start, effect.stop)
            except PenstockError:
                part = None
            if effect.binding.epoch != effect.epoch:
                part = None  # these offsets belong to another log now
            if part is None and not is_first:
                # The client was promised all messages. After it reconnects, it gets a correct answer.
                hub.state.cut(session, FAILED, self._clock.now())
                break
            for some in [None] if part is None else _slices(part[0], hub.rules.max_outbox_bytes // 2):
                hub.recovering(session, effect, some, self._clock.now(), is_first=is_first)
                is_first = False
                await link.written()
            start = effect.stop if part is None else part[1]
        hub.recovered(session, self._clock.now())

    async def _retain(self, link: Link, effect: Retain) -> None:
        """Start a durable subscription. Messages that arrive before the client is notified of the start are sent after that."""
        early: list[Message] | None = []

        def deliver(messages: Sequence[Message]) -> None:
            if early is not None:
                early.extend(messages)
            elif link in self._links:
                self._deliver(link, effect.pattern, messages)

        self._flush()  # a replaced connection that had it stops its delivery
        link.rest(effect.pattern)
        try:
            retained = await self._logs.retain(effect.address, effect.pattern, effect.bindings, deliver)
        except Exception as error:  # any error means that it was not started; an unexpected one ends the connection too
            foreseen = error if isinstance(error, Refusal | PenstockError) else None
            refusal = _refusal(foreseen or Unavailable("the log failed", hint="see the server's log"))
            self.hub.unretained(link.session, effect, refusal, self._clock.now())
            if foreseen is None:
                raise
            return
        if not self.hub.retained(link.session, effect, self._clock.now()):
            retained.close()  # the connection, or the registration, ended meanwhile
            return
        link.retained[effect.pattern] = retained
        waiting, early = early, None
        if waiting:
            self._deliver(link, effect.pattern, waiting)

    def _deliver(self, link: Link, pattern: str, messages: Sequence[Message]) -> None:
        try:
            self.hub.deliver(link.session, pattern, messages, self._clock.now())
        except Exception as error:  # noqa: BLE001  # the caller has other connections to deliver to
            self._fail(link, error)
        self._flush_soon()

    async def _release(self, link: Link, effect: Release) -> None:
        for pattern in effect.patterns:
            link.rest(pattern)
        try:
            await self._logs.release(effect.address, effect.patterns)
        except (Refusal, PenstockError) as error:
            self.hub.unreleased(link.session, effect, _refusal(error), self._clock.now())
        else:
            self.hub.released(link.session, effect, self._clock.now())

    @property
    def _logs(self) -> TopicLogs:
        assert self.feed is not None, "without a feed there are no bindings and no durable subscriptions"
        return self.feed


def _refusal(error: Refusal | PenstockError) -> Refusal:
    """The refusal that a client gets for an error that was raised on purpose."""
    if isinstance(error, Refusal):
        return error
    return Refusal(
        "unauthorized" if isinstance(error, Unauthenticated | PermissionDenied) else "internal_error",
        error.message,
        reason=error.reason,
        resolution=error.hint or ("try again in a moment" if error.transient else "change the request"),
        retryable=error.transient,
    )


def _where(error: BaseException) -> str:
    """The traceback of an error without its text, which may contain a payload or a token."""
    return "".join(traceback.format_tb(error.__traceback__))


def _slices(messages: Sequence[Message], max_bytes: int) -> Iterator[Sequence[Message]]:
    """Messages in parts of at most `max_bytes`, or of one larger message; one empty part if there are none."""
    start = size = 0
    for index, message in enumerate(messages):
        size += message.weight
        if size > max_bytes and index > start:
            yield messages[start:index]
            start, size = index, message.weight
    yield messages[start:]
