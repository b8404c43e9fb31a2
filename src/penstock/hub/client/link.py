"""The link to a hub over successive connections: requests and their answers, heartbeats, reconnection.

    connecting ── hub:connect, hub:register, subscriptions ────────> ready ── lost ──> waiting ──> connecting …
                                                                       └── closed for good, or refused ──> failed

A request waits for a connection until its timeout. If the connection broke before the answer, an idempotent request is sent again
with the same id; for other requests the caller gets an error that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable
from typing import Any, NoReturn, Protocol

import msgspec

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import (
    FailedPrecondition,
    InvalidArgument,
    PenstockError,
    ServerUnreachable,
    Unavailable,
)
from penstock.hub.client.core.reconnection import ReconnectDelays, RequestPacing, close_of, final_error
from penstock.hub.client.messages import ConnectionNews
from penstock.hub.client.request import EXPIRED, NAMES, R, Request, SlowDown, error_of
from penstock.hub.client.socket import Closed, HubSocket
from penstock.hub.core import close_codes
from penstock.hub.core.messages import (
    Command,
    Connect,
    Connected,
    Disconnect,
    DisconnectAck,
    Disconnecting,
    Envelope,
    Error,
    Heartbeat,
    HeartbeatAck,
    RefreshToken,
    Register,
    Registered,
    Renew,
    Renewed,
    Reply,
    Subscribe,
    decode_envelope,
)
from penstock.hub.core.names import HUB

Token = str | Callable[[], str | Awaitable[str]] | None
"""The token of a client: a text, or a function that is called each time one is needed."""

log = logging.getLogger("penstock.client")

HEARTBEAT_SECONDS = 25.0
"""The longest time between two heartbeats: a connection that died without a close is noticed soon after."""
RENEW_AT = 0.75
"""A registration is renewed after this part of its TTL."""
DISCONNECT_SECONDS = 2.0
MAX_UNDER_WAY = 256
"""The maximum number of unanswered requests of one client; further ones wait here and not in the hub."""


class Follower(Protocol):
    """The receiver of messages and events of a link. Methods that are not coroutines are called in the order of arrival."""

    def take(self, envelope: Envelope) -> None:
        """Handle a forwarded message or a change of presence."""

    async def settle(self) -> None:
        """Called after each message; the next one is read when it returns."""

    def asked(self) -> None:
        """Called when a caller waits for an answer: reading must continue."""

    async def greeted(self) -> None:
        """Called for a new connection. Until it returns, only requests by `ask_now` use the connection."""

    def refused(self, pattern: str, error: PenstockError) -> None:
        """The hub has ended a subscription without a request."""

    def broke(self) -> None:
        """The connection is lost; there may be another one."""

    def failed(self, error: PenstockError) -> None:
        """There will be no further connection."""


class HubLink:
    """The link of one HubClient, which creates it."""

    def __init__(
        self,
        urls: Sequence[str],
        follower: Follower,
        *,
        address: str | None,
        token: Token,
        capabilities: Sequence[str],
        metadata: Mapping[str, object],
        ttl: float,
        timeout: float,
        tls: ssl.SSLContext | None,
        on_connection: Callable[[ConnectionNews], object] | None,
    ) -> None:
        self._urls = deque(urls)
        """The URLs of the nodes of a cluster, or of one server, in the order to try them."""
        self.url = ", ".join(urls)
        """All URLs, for logs and errors."""
        self.address = address or f"@(penstock/{secrets.token_hex(8)})"
        """The address of the client: the one it was given, the one in its token, or a random one."""
        self.error: PenstockError | None = None
        """Why the link has ended for good; None while it has not."""
        self._follower = follower
        self._token = token
        self._is_made_up = address is None
        self._capabilities = tuple(capabilities)
        self._metadata = dict(metadata)
        self._ttl = ttl
        self._timeout = timeout
        self._tls = tls
        self._on_connection = on_connection
        self._waiting: dict[str, Request[Reply]] = {}
        self._socket: HubSocket | None = None
        self._ready = asyncio.Event()
        self._max_bytes: int | None = None
        """The maximum size of a request, once the hub has announced it."""
        self._session_id: str | None = None
        """The session that the next connection resumes: the hub recognises repeated publishes only within a session."""
        self._problem = "not connected yet"
        self._was_ready = False
        self._is_closing = False
        self._is_reading_held = False
        self._slots = asyncio.Semaphore(MAX_UNDER_WAY)
        self._pacing = RequestPacing()
        self.questions = 0
        """The number of calls that wait for an answer."""
        self._life: asyncio.Task[None] | None = None
        self._end: asyncio.Task[None] | None = None
        """The task that closes the last connection."""
        self._ready_at: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is a connection for requests."""
        return self._ready.is_set()

    async def start(self) -> None:
        """Connect. Errors of the first connection are raised."""
        if self.error is not None or self._life is not None:
            raise FailedPrecondition("the client was opened before", hint="make another HubClient")
        self._life = asyncio.create_task(self._live(), name=f"hub {self.address}")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({self._life, ready}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.close()  # `async with` does not call `__aexit__` if `__aenter__` fails
            raise
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
        if self.error is not None:
            raise self.error

    def check(self) -> None:
        """Raise an error if there will be no connection."""
        if self.error is not None:
            raise self.error
        if self._life is None:
            raise FailedPrecondition("the client is not open", hint="async with HubClient(…) as hub: …")

    async def close(self) -> None:
        """Disconnect, and end the link. Safe to call twice."""
        if self._life is None:
            return
        life, self._life = self._life, None
        self._is_closing = True
        try:
            if self.is_ready:
                with suppress(PenstockError, TimeoutError):
                    async with asyncio.timeout(DISCONNECT_SECONDS):
                        await self.ask_now(Disconnect("client_requested"), DisconnectAck)
        finally:  # also if the caller is cancelled during the disconnect
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            if self._end is not None:
                await asyncio.gather(self._end, return_exceptions=True)
            self._fail(FailedPrecondition("the client is closed", hint="async with HubClient(…) as hub: …"))

    def keep_token(self, token: str) -> None:
        if not callable(self._token):
            self._token = token

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self,
        command: Command,
        reply: type[R],
        *,
        is_repeatable: bool = False,
        on_reply: Callable[[R], None] | None = None,
        ttl: float | None = None,
    ) -> R:
        """The hub's answer, over several connections if needed within the timeout. Raises PenstockError if there is none."""
        self.check()
        message_id, asked_at = _new_id(), None
        try:
            async with asyncio.timeout(self._timeout), self._slots:
                while True:
                    await asyncio.sleep(self._pacing.turn(monotonic()) / SECOND)
                    if self.error is not None:
                        raise self.error
                    request = Request(command, reply, self._text(command, message_id, ttl), on_reply, is_repeatable=is_repeatable)
                    self.questions += 1
                    asked_at = monotonic()
                    self._follower.asked()
                    try:
                        return await self._exchange(message_id, request, self._socket if self.is_ready else None)
                    except SlowDown as error:
                        self._slow_down(error)  # the hub has done nothing: the same request may be sent again
                        asked_at = None
                    finally:
                        self.questions -= 1
        except TimeoutError:
            if not self.is_ready:
                raise ServerUnreachable(self.url, self._problem) from None
            name = NAMES[type(command)]
            if asked_at is None:
                raise Unavailable(
                    f"{name} waited {self._timeout:g} s for its turn: more is asked at once than the hub takes in that time",
                    hint="ask for less at once, raise the client's timeout, or the server's hub_rate_limit",
                ) from None
            raise ServerUnreachable(self.url, f"no answer to {name} for {(monotonic() - asked_at) / SECOND:.2f} s") from None

    async def ask_now(self, command: Command, reply: type[R], on_reply: Callable[[R], None] | None = None) -> R:
        """The hub's answer on the current connection, even if it is not ready yet. Raises TimeoutError if there is none."""
        message_id, socket = _new_id(), self._socket
        async with asyncio.timeout(self._timeout):
            while True:
                request = Request(command, reply, self._text(command, message_id, None), on_reply, is_repeatable=False)
                try:
                    return await self._exchange(message_id, request, socket)
                except SlowDown as error:
                    self._slow_down(error)
                    await asyncio.sleep(self._pacing.turn(monotonic()) / SECOND)

    def _slow_down(self, error: SlowDown) -> None:
        self._pacing.refused(monotonic(), round(error.retry_after * SECOND), round(error.gap * SECOND))

    async def tell(self, command: Command) -> None:
        """Send a command without waiting for the answer. Without a connection it is dropped."""
        if self._socket is not None:
            await self._socket.send(self._text(command, _new_id(), None))

    async def _exchange(self, message_id: str, request: Request[R], socket: HubSocket | None) -> R:
        self._waiting[message_id] = request  # type: ignore[assignment]  # each request decodes its own reply type
        try:
            if socket is not None:
                await self._send(request, socket)
            return await request.answer
        finally:
            self._waiting.pop(message_id, None)

    async def _send(self, request: Request[R], socket: HubSocket) -> None:
        # The hub could not name the request in its error, because it would not parse it.
        size = len(request.text.encode())
        if self._max_bytes is not None and size > self._max_bytes:
            request.fail(
                InvalidArgument(
                    f"the message has {size} bytes, expected at most {self._max_bytes}",
                    hint="send less at once, or raise the server's hub_max_message_bytes",
                )
            )
            return
        request.is_sent = True
        await socket.send(request.text)

    def _text(self, command: Command, message_id: str, ttl: float | None) -> str:
        # Without a timestamp the TTL counts from when the hub receives it, so different clocks do not matter.
        envelope = {"type": NAMES[type(command)], "id": message_id, "from": self.address, "to": HUB, "pattern": "ask"}
        span = {} if ttl is None else {"ttl": ttl * 1000}
        try:
            return msgspec.json.encode({**envelope, **span, "payload": command}).decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"{envelope['type']} cannot be written as JSON: {error}", hint="give it texts, numbers, lists and dicts alone"
            ) from None

    # ── connection ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _live(self) -> None:
        returning = ReconnectDelays()
        while True:
            self._ready_at = None
            try:
                self._problem = await self._connect()
                if not self._was_ready:
                    raise ServerUnreachable(self.url, self._problem)
            except PenstockError as error:
                if not error.transient or not self._was_ready:
                    self._fail(error)
                    return
                self._problem = error.problem if isinstance(error, ServerUnreachable) else str(error)
            except Exception as error:  # top level of the link: waiting callers must get the error
                log.exception("the link to the hub at %s failed", self.url)
                hint = "its log shows where; make another HubClient, and report it"
                self._fail(FailedPrecondition(f"the client failed: {type(error).__name__}", hint=hint))
                return
            lasted = 0 if self._ready_at is None else monotonic() - self._ready_at
            wait = returning.wait(lasted, secrets.randbelow(1_001) / 1_000)
            self._tell(ConnectionNews(is_connected=False, problem=self._problem, retry_in=wait / SECOND))
            await asyncio.sleep(wait / SECOND)

    async def _connect(self) -> str:
        """Run one connection; returns why it ended, or raises an error if there must be no further one."""
        token = await token_of(self._token, self._timeout)
        try:
            socket = self._socket = await self._open_socket()
        except TimeoutError:
            raise ServerUnreachable(self.url, "it does not answer") from None
        reading = asyncio.create_task(self._read(socket))
        keeping = asyncio.create_task(self._keep(token))
        try:
            await asyncio.wait({reading, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_greeted = self.is_ready
            self._ready.clear()
            # A separate task: if the client is closed at this moment, the clean-up must still be completed.
            self._end = asyncio.create_task(self._finish(socket, reading, keeping))
            await asyncio.shield(self._end)
        closed, kept = await asyncio.gather(reading, keeping, return_exceptions=True)
        if isinstance(kept, PenstockError):
            raise kept
        if isinstance(kept, str):
            return kept
        for failure in (kept, closed):
            if isinstance(failure, BaseException) and not isinstance(failure, asyncio.CancelledError):
                raise failure
        assert isinstance(closed, Closed), "one of the two has ended"
        close = close_of(closed.code, closed.reason)
        # A client with a token function reconnects with a new token.
        if not (close is close_codes.UNAUTHORIZED and was_greeted and callable(self._token)):
            error = final_error(close, self.address)
            if error is not None:
                raise error
        return close.meaning.partition(";")[0] if close is not None else closed.reason or "the server closed the connection"

    async def _open_socket(self) -> HubSocket:
        """Connect to the first server that accepts a connection. If none does, raise the error of the last."""
        for _ in range(len(self._urls) - 1):
            with suppress(TimeoutError, Unavailable):
                return await HubSocket.connect(self._urls[0], tls=self._tls, seconds=self._timeout / len(self._urls))
            self._urls.rotate(-1)
        return await HubSocket.connect(self._urls[0], tls=self._tls, seconds=self._timeout)

    async def _finish(self, socket: HubSocket, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket = None
        self._broke()
        await socket.close()

    async def _read(self, socket: HubSocket) -> Closed:
        is_over = False
        while not is_over or any(one.is_sent and not one.answer.done() for one in self._waiting.values()):
            text = await socket.receive()
            if isinstance(text, Closed):
                return text
            try:
                envelope = decode_envelope(text)
            except msgspec.MsgspecError:
                return Closed(None, "the peer is not a hub: it sent an unreadable message")
            request = self._waiting.get(envelope.correlation_id or "")
            if self._is_token_over(envelope, request):
                self._ready.clear()  # further requests use the next connection, which has another token
                is_over = True
                if request is not None:
                    request.is_sent = False  # this one is sent again there: the hub has not executed it
            elif request is not None:
                request.take(envelope)
            elif envelope.type == "hub:unregistered":
                return Closed(None, "the registration ran out")
            elif envelope.type in {"hub:error", "hub:disconnect"}:
                self._handle_notice(envelope)
            elif envelope.type == "hub:presence" or not envelope.type.startswith("hub:"):
                self._follower.take(envelope)
                self._is_reading_held = True
                try:
                    await self._follower.settle()
                finally:  # heartbeats of the next connection must be checked, even after an error
                    self._is_reading_held = False
        return Closed(None, "the token ran out")

    async def _keep(self, token: str | None) -> str:
        """Connect and register, then renew the registration and send heartbeats; returns why it ended."""
        try:
            connected, registered = await self._greet(token)
        except TimeoutError:
            return f"it does not answer for {self._timeout:g} s"
        try:
            await self._stay(connected, registered)
        except TimeoutError:
            return f"nothing came from the hub for {self._timeout:g} s"
        except PenstockError as error:
            return str(error)  # for example an expired registration: it is renewed on the next connection

    async def _greet(self, token: str | None) -> tuple[Connected, Registered]:
        connected = await self.ask_now(Connect(jwt=token, resume=self._session_id), Connected)
        self._session_id = connected.session_id
        self._max_bytes = connected.max_message_size
        if self._is_made_up and connected.actor_identity:
            self.address = connected.actor_identity
        register = Register(self.address, self._capabilities, self._metadata, self._ttl * 1000)
        registered = await self.ask_now(register, Registered)
        await self._follower.greeted()
        self._ready.set()
        self._was_ready = True
        self._ready_at = monotonic()
        self._tell(ConnectionNews(is_connected=True))
        await self._send_again()
        return connected, registered

    async def _stay(self, connected: Connected, registered: Registered) -> NoReturn:
        beat = min(HEARTBEAT_SECONDS, connected.heartbeat_interval / 1000)
        token, span = registered.renewal_token, round(self._ttl * RENEW_AT * SECOND)
        renew_at = monotonic() + span
        while True:
            await asyncio.sleep(max(min(beat, (renew_at - monotonic()) / SECOND), 0))
            if monotonic() >= renew_at:
                renew_at = monotonic() + span
                token = (await self.ask_now(Renew(token, self.address, self._ttl * 1000), Renewed)).new_renewal_token
                continue
            try:
                await self.ask_now(Heartbeat(), HeartbeatAck)
            except TimeoutError:
                if not self._is_reading_held:  # without reading, no answer can be received
                    raise

    async def _send_again(self) -> None:
        async with asyncio.timeout(self._timeout):
            for request in [*self._waiting.values()]:
                if self._socket is not None and not request.is_sent and not request.answer.done():
                    await self._send(request, self._socket)

    def _broke(self) -> None:
        for request in [*self._waiting.values()]:
            if request.broke():
                request.is_sent = False
        self._follower.broke()

    def _fail(self, error: PenstockError) -> None:
        if self.error is None or self._is_closing:
            self.error = error
            for request in self._waiting.values():
                request.fail(error)
            self._follower.failed(error)

    def _is_token_over(self, envelope: Envelope, request: Request[Reply] | None) -> bool:
        """Whether the hub refuses a request because the token has expired, and the client can get another one."""
        if envelope.type != "hub:error" or not self._ready_at or not callable(self._token):
            return False
        if request is not None and isinstance(request.command, RefreshToken):
            return False  # the error is about the new token
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(envelope.payload, type=Error).details.get("reason") == EXPIRED
        return False

    def _handle_notice(self, envelope: Envelope) -> None:
        """Handle a message that the hub sent without a request."""
        with suppress(msgspec.MsgspecError):
            if envelope.type == "hub:error":
                said = msgspec.json.decode(envelope.payload, type=Error)
                log.warning("the hub at %s reports: %s; %s", self.url, said.message, said.resolution)
                topic = said.details.get("topic")
                if envelope.correlation_id is None and isinstance(topic, str):  # a new token does not allow it any more
                    self._follower.refused(topic, error_of(said, Subscribe(topic)))
            else:
                log.info("the hub at %s closes: %s", self.url, msgspec.json.decode(envelope.payload, type=Disconnecting).message)

    def _tell(self, news: ConnectionNews) -> None:
        if news.is_connected:
            log.info("connected to the hub at %s as %s", self.url, self.address)
        else:
            log.warning("no connection to the hub at %s: %s; trying again in %.1f s", self.url, news.problem, news.retry_in or 0)
        if self._on_connection is not None:
            try:
                self._on_connection(news)
            except Exception:  # an error of a listener must not end the link
                log.exception("on_connection failed")


def _new_id() -> str:
    return str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))


async def token_of(token: Token, seconds: float) -> str | None:
    """The current token. Raises Unavailable if the token function fails or takes too long."""
    if not callable(token):
        return token
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            found = token()
            return await found if isawaitable(found) else found
    except Exception as error:
        if deadline.expired():
            raise Unavailable(
                f"the function that gives the token took longer than {seconds:g} s",
                hint="let it answer sooner, or raise the client's timeout",
            ) from None
        # The text of the error may contain the token; for debugging it is in the exception chain.
        raise Unavailable(
            f"the function that gives the token failed: {type(error).__name__}", hint="see the error before this one"
        ) from error
