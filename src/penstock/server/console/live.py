"""The connection that keeps pages up to date: a client names the view it watches, and gets all of it about once a second.

    client: {"token": …, "project": …}, then {"watch": {"view": "queues", "key": …, …}} or {"watch": null}
    server: {"type": "welcome", "session": …}, then {"type": "snapshot", "view", "key", "at", "pulse", "data"}, or
            {"type": "error", "view", "key", "error"}

Every query is answered and encoded once in a tick for all clients that watch the same with the same rights. A client that reads
slowly skips the frames that it could not take; none are kept for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from penstock.access import ANYONE, Principal
from penstock.durations import to_datetime
from penstock.errors import InvalidArgument, PenstockError, PermissionDenied, Unauthenticated
from penstock.http.authentication import Admission
from penstock.http.decoding import UNREADABLE, explain, instead
from penstock.http.refusal import ErrorDetail, Refusal, refusal_of
from penstock.http.request import Request, open_websocket
from penstock.http.routes import Operation, Route
from penstock.server.console.requests import TAGS, Caller, CallerOf, View, asked
from penstock.values.projects import check_project

log = logging.getLogger("penstock.console")

TICK_SECONDS = 1.0
HELLO_SECONDS = 10.0
MAX_FRAME_BYTES = 64 * 1024
MAX_KEY = 200
MAX_CONNECTIONS = 200
"""The maximum number of open consoles: each may watch another view."""
UNREADABLE_FRAME, UNAUTHORIZED, FORBIDDEN, TRY_LATER = 4400, 4401, 4403, 1013

ABOUT = __doc__ or ""


class Hello(msgspec.Struct, forbid_unknown_fields=True):
    """The first frame of a client."""

    token: str | None = None
    project: str | None = None


class Watching(msgspec.Struct, forbid_unknown_fields=True):
    """Every other frame of a client."""

    watch: dict[str, Any] | None


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A frame that the server sends."""

    type: str
    view: str | None = None
    key: str | None = None
    at: datetime | None = None
    pulse: Any = None
    session: Any = None
    data: Any = None
    error: ErrorDetail | None = None


class Watch:
    """A query that a client watches. Equal ones share an answer."""

    __slots__ = ("caller", "identity", "key", "parameters", "scope", "view")

    def __init__(self, view: View[Any], key: str, parameters: msgspec.Struct, caller: Caller) -> None:
        self.view, self.key, self.parameters, self.caller = view, key, parameters, caller
        self.scope = caller.scope
        self.identity = (view.name, key, parameters, self.scope)
        """The key of the frame's content."""


_encode = msgspec.json.Encoder().encode
_decode_hello = msgspec.json.Decoder(Hello).decode
_decode = msgspec.json.Decoder(Watching).decode


class Live:
    """All open consoles. Call all methods in the event loop."""

    def __init__(
        self,
        views: Iterable[View[Any]],
        caller_of: CallerOf,
        *,
        session: Callable[[Caller], Awaitable[Any]],
        pulse: Callable[[Caller], Awaitable[Any]],
        now: Callable[[], int],
    ) -> None:
        self._views = {view.name: view for view in views}
        self._caller_of, self._session, self._pulse, self._now = caller_of, session, pulse, now
        self._sockets: set[_Socket] = set()
        self._task: asyncio.Task[None] | None = None

    def route(self) -> Route:
        """The route of the WebSocket. The token is in the first frame: browsers cannot send a header."""
        return Route(
            "GET",
            "/console/live",
            self.handle,
            Operation("What the console shows, live", ABOUT, TAGS, is_websocket=True),
            is_open=True,
        )

    def stop(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def handle(self, request: Request) -> web.StreamResponse:
        """Serve one console, from its first frame to its end."""
        if len(self._sockets) >= MAX_CONNECTIONS:
            raise _too_many()
        channel = await open_websocket(request, max_message_bytes=MAX_FRAME_BYTES)
        socket = _Socket(channel)
        try:
            caller = await self._enter(request, socket)
            if caller is not None:
                await self._follow(socket, caller)
        finally:
            self._sockets.discard(socket)
            socket.stop()
            if not self._sockets:
                self.stop()
        return channel

    async def _enter(self, request: Request, socket: _Socket) -> Caller | None:
        """Admit a client by its first frame; None if it is refused."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                first = await socket.channel.receive()
        except TimeoutError:
            await socket.refuse(Unauthenticated("no first frame came"), UNAUTHORIZED)
            return None
        if first.type is not WSMsgType.TEXT:
            await socket.channel.close(code=UNREADABLE_FRAME)
            return None
        gate = request.server_context.gate
        try:
            hello = _decode_hello(first.data)
            principal: Principal = ANYONE if gate is None else gate.authenticate(hello.token)
            caller = self._caller_of(principal, None if hello.project is None else check_project(hello.project))
            session = await self._session(caller)
        except UNREADABLE as error:
            await socket.refuse(explain(error, Hello), UNREADABLE_FRAME)
        except PermissionDenied as error:
            await socket.refuse(error, FORBIDDEN)
        except PenstockError as error:
            await socket.refuse(error, UNAUTHORIZED if isinstance(error, Unauthenticated) else UNREADABLE_FRAME)
        else:
            if len(self._sockets) >= MAX_CONNECTIONS:  # several may have connected before the first of them was admitted
                await socket.refuse(_too_many(), TRY_LATER)
                return None
            self._sockets.add(socket)
            socket.admission = Admission(gate, hello.token)
            await socket.channel.send_str(_encode(Frame(type="welcome", session=session)).decode())
            return caller
        return None

    async def _follow(self, socket: _Socket, caller: Caller) -> None:
        socket.start()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        async for frame in socket.channel:
            if frame.type is not WSMsgType.TEXT:
                await socket.channel.close(code=UNREADABLE_FRAME)
                break
            view = key = None
            try:
                socket.check()
            except PenstockError as error:
                socket.expel(error, UNAUTHORIZED)
                continue
            try:
                said = _decode(frame.data).watch
                if said is None:
                    socket.watch = None
                    continue
                view, key = _word(said, "view"), _word(said, "key") or ""
                socket.watch = watch = self._watched(caller, said, view or "", key)
            except UNREADABLE as error:
                socket.offer(_encode(_failed(explain(error, Watching), view, key)))
            except PenstockError as error:
                socket.watch = None
                socket.offer(_encode(_failed(error, view, key)))
            else:
                socket.offer(await self._frame(watch))

    def _watched(self, caller: Caller, said: dict[str, Any], view: str, key: str) -> Watch:
        found = self._views.get(view)
        if found is None:
            raise InvalidArgument(
                f"view is {view[:100]!r}, expected one of {', '.join(self._views)}", hint=instead(view, self._views)
            )
        if len(key) > MAX_KEY:
            raise InvalidArgument.of("key", key, f"at most {MAX_KEY} characters")
        parameters = {name: value for name, value in said.items() if name not in {"view", "key"}}
        return Watch(found, key, found.read(parameters, strict=True), caller)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + TICK_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                await self._tick()
            except Exception:
                log.exception("the consoles could not be brought up to date")

    async def _tick(self) -> None:
        groups: dict[tuple[Any, ...], list[_Socket]] = {}
        watches: dict[tuple[Any, ...], Watch] = {}
        for socket in [*self._sockets]:
            try:
                socket.check()
            except PenstockError as error:
                socket.expel(error, UNAUTHORIZED)
                continue
            if socket.watch is not None and socket.is_free:
                watches.setdefault(socket.watch.identity, socket.watch)
                groups.setdefault(socket.watch.identity, []).append(socket)
        pulses: dict[Any, Any] = {}
        for identity, watch in watches.items():
            frame = await self._frame(watch, pulses)
            for socket in groups[identity]:
                if socket.watch is not None and socket.watch.identity == identity:
                    socket.offer(frame)

    async def _frame(self, watch: Watch, pulses: dict[Any, Any] | None = None) -> bytes:
        try:
            data = await asked(watch.caller, watch.view.answer, watch.parameters)
            pulse = None if pulses is None else pulses.get(watch.scope)
            if pulse is None:
                pulse = await self._pulse(watch.caller)
                if pulses is not None:
                    pulses[watch.scope] = pulse
            at = to_datetime(self._now())
            return _encode(Frame(type="snapshot", view=watch.view.name, key=watch.key, at=at, pulse=pulse, data=data))
        except Exception as error:  # a failing page must not stop the others; a PenstockError is shown as it is
            if not isinstance(error, PenstockError | Refusal):
                log.exception("the view %s of the console failed", watch.view.name)
            return _encode(_failed(error, watch.view.name, watch.key))


class _Socket:
    """One client: the view that it watches, and the one frame that waits to be sent."""

    def __init__(self, channel: web.WebSocketResponse) -> None:
        self.channel = channel
        self.watch: Watch | None = None
        self.admission: Admission | None = None
        self._frame: bytes | None = None
        self._filled = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether the last frame was sent; a client that does not read skips frames."""
        return self._frame is None

    def start(self) -> None:
        """Start sending offered frames."""
        self._writer = asyncio.get_running_loop().create_task(self._write())

    def stop(self) -> None:
        """Stop sending."""
        if self._writer is not None:
            self._writer.cancel()

    def check(self) -> None:
        """Return while the client's token is valid."""
        if self.admission is not None:
            self.admission.check()

    def expel(self, error: PenstockError, code: int) -> None:
        """Close with the reason, without waiting: the client may not read, and the other consoles continue."""
        if self._farewell is None:
            self.stop()
            self._farewell = asyncio.get_running_loop().create_task(self.refuse(error, code))

    def offer(self, frame: bytes) -> None:
        """Send this frame, instead of one that still waits."""
        self._frame = frame
        self._filled.set()

    async def refuse(self, error: PenstockError | Refusal, code: int) -> None:
        """Close with the reason."""
        with suppress(ConnectionError):
            await self.channel.send_str(_encode(_failed(error, None, None)).decode())
            await self.channel.close(code=code, message=error.reason.encode())

    async def _write(self) -> None:
        with suppress(ConnectionError):
            while True:
                await self._filled.wait()
                self._filled.clear()
                frame = self._frame
                if frame is not None:
                    await self.channel.send_str(frame.decode())
                    if self._frame is frame:
                        self._frame = None
                    else:
                        self._filled.set()


def _too_many() -> Refusal:
    return Refusal(429, f"{MAX_CONNECTIONS} consoles are open already", reason="too_many_consoles", word="RESOURCE_EXHAUSTED")


def _failed(error: Exception, view: str | None, key: str | None) -> Frame:
    refusal = refusal_of(error)
    detail = ErrorDetail(refusal.status, refusal.message, refusal.word, refusal.reason, refusal.hint)
    return Frame(type="error", view=view, key=key, error=detail)


def _word(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument.of(name, value, "a text")
    return value
