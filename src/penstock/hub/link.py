"""One connection of the hub: a session and its socket, and how what waits in the one is written to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.hub.core.session import Session
from penstock.hub.feed import Retained
from penstock.hub.socket import Socket


class Link:
    """Writes what waits for one session. While its client reads that needs no task; for one that does not, a task waits."""

    __slots__ = ("_failed", "_giving_up", "_leave_seconds", "_writing", "appending", "free", "retained", "session", "socket")

    def __init__(
        self, session: Session, socket: Socket, *, leave_seconds: float, failed: Callable[[Link, BaseException], None]
    ) -> None:
        self.session = session
        self.socket = socket
        self.appending = 0
        """How many bytes of its publishes are on their way into a log."""
        self.free: asyncio.Future[None] | None = None
        """Waits for fewer of its publishes to be on their way into a log."""
        self.retained: dict[str, Retained] = {}
        """Its durable subscriptions that are being delivered, by pattern."""
        self._leave_seconds = leave_seconds
        self._failed = failed
        self._writing: asyncio.Task[None] | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    def write(self) -> None:
        """Write what waits, as far as there is room; the rest follows. Then close the connection, if it is to be closed."""
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
        """Return when nothing waits any more, or nobody will write it."""
        self.write()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def has_appending(self, messages: int, size: int) -> bool:
        """Whether so many of its publishes, or so many bytes of them, are on their way into a log."""
        return self.session.appends >= messages or self.appending >= size

    def end(self) -> None:
        """The connection is gone: write nothing more. Safe twice."""
        self.session.outbox.clear()
        if self._writing is not None:
            self._writing.cancel()
        if self._giving_up is not None:
            self._giving_up.cancel()
        for pattern in [*self.retained]:
            self.rest(pattern)

    def rest(self, pattern: str) -> None:
        """Deliver no more of a durable subscription here: it rests until its actor comes back for it."""
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
            self.session.outbox.clear()  # nobody is left to read it; whoever reads this connection sees its end as well
        else:
            self._failed(self, error)

    def _finish(self) -> None:
        """Write what has come since, and close if that is next."""
        try:
            self.write()
        except Exception as error:  # noqa: BLE001  # called by the loop: there is nobody else to tell
            self._failed(self, error)

    def _give_up(self) -> None:
        """A client that does not read what waits for it before the end does not get it."""
        self.session.outbox.clear()
        self._finish()
