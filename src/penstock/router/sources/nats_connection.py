"""One connection to a NATS server: the wire format, subscriptions, requests. It knows neither JetStream nor reconnecting.

The URI of a consumer is `nats://[user:password@|token@]host[:4222][,host…]/STREAM/CONSUMER[?subject=orders.>][&ca=FILE]`, with
`&nkey=FILE` or `&creds=FILE` for users with keys.

Optimized: a message costs about two microseconds here. The bytes of a read are split by `find` and slices, messages of a
subscription go straight to its handler, and the consumer is notified once for each read, when all of it has been handled.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.router.sources.nats_keys import signed

PORT = 4222
WANTED = "nats://[user:password@]host[:4222]/STREAM/CONSUMER[?subject=orders.>]"

_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")
_SUBJECT = re.compile(r"[^\s.\x00-\x20\x7f]+(\.[^\s.\x00-\x20\x7f]+)*")
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]/]+))(?::(?P<port>\d{1,5}))?")


class NatsAddress(msgspec.Struct, frozen=True):
    """The address of a consumer, and the credentials for it. Its text never shows a secret."""

    servers: tuple[tuple[str, int], ...]
    """Hosts and ports, tried in this order."""
    stream: str
    consumer: str
    subject: str = ""
    """The subject for which a missing stream is created, and which a missing consumer takes; "": all, and none is created."""
    user: str = ""
    password: str = ""
    token: str = ""
    is_tls: bool = False
    """Whether encryption is required. It is also used if the server asks for it."""
    ca: str = ""
    """A file of certificates to trust; "": those that the machine trusts."""
    nkey: str = ""
    """A file with the seed of a user."""
    creds: str = ""
    """A file with the JWT and the seed of a user."""

    def __repr__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers)
        return f"{'tls' if self.is_tls else 'nats'}://{hosts}/{self.stream}/{self.consumer}"


def parse_address(uri: str) -> NatsAddress:
    """The address in a URI; InvalidArgument if the URI is not valid."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InvalidArgument(f"the queue's URI cannot be read: {error}", hint=f"expected {WANTED}") from None
    who, _, hosts = parts.netloc.rpartition("@")
    user, colon, password = who.partition(":")
    # Of a wrong URI, errors show no credentials: they may be secrets, in whatever form.
    plain = f"{parts.scheme}://{hosts}{parts.path}"
    names = [unquote(name) for name in parts.path.strip("/").split("/")]
    if parts.scheme not in {"nats", "tls"} or len(names) != 2 or parts.fragment:
        raise InvalidArgument.of("the queue's URI", plain, WANTED)
    for kind, name in zip(("stream", "consumer"), names, strict=True):
        if not _NAME.fullmatch(name):
            raise InvalidArgument.of(f"the {kind} in the queue's URI", name, "a name without blanks and . * > / \\", hint=WANTED)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - {"subject", "ca", "nkey", "creds"}:
        raise InvalidArgument.of("an option in the queue's URI", min(unknown), "subject, ca, nkey or creds", hint=WANTED)
    ways = [bool(who), *(name in options for name in ("nkey", "creds"))]
    if sum(ways) > 1:
        raise InvalidArgument.of("the queue's URI", plain, "one of user and password, a token, nkey and creds", hint=WANTED)
    subject = options.get("subject", "")
    if "subject" in options and not _is_subject(subject):
        raise InvalidArgument.of("the subject in the queue's URI", subject, "words with dots between them, * and > among them")
    return NatsAddress(
        tuple(_server(text, plain) for text in hosts.split(",")),
        names[0],
        names[1],
        subject,
        unquote(user) if colon else "",
        unquote(password),
        "" if colon else unquote(user),
        parts.scheme == "tls",
        options.get("ca", ""),
        options.get("nkey", ""),
        options.get("creds", ""),
    )


def _server(text: str, plain: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if not found or not 1 <= port <= 65_535:
        raise InvalidArgument.of("a server in the queue's URI", text, "host or host:port", hint=f"{plain!r}: expected {WANTED}")
    return found["six"] or found["host"], port


def _is_subject(text: str) -> bool:
    return bool(_SUBJECT.fullmatch(text)) and ">" not in text.split(".")[:-1]


CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 5.0
CLOSE_SECONDS = 1.0
PING_SECONDS = 20.0
PINGS = 2
"""If this many pings in a row have no answer, and nothing else was received, the connection is dead."""
MAX_LINE = 1 << 20
MAX_MESSAGE = 1 << 27
"""Twice the largest message that a server can be configured for."""

Handler = Callable[[bytes, bytes, bytes, bytes], None]
"""Receives a message: its subject, the reply subject, its raw headers, its body."""

REFUSED = ("authorization violation", "authentication", "user authentication")


class NoResponders(Exception):
    """The subject of a request has no subscriber."""


class _Info(msgspec.Struct):
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""


_info = msgspec.json.Decoder(_Info).decode


class NatsConnection(asyncio.Protocol):
    """A connection that the server has accepted. Create it with `connect`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parts: list[bytes] = []
        """The start of an incomplete message, and how many bytes are missing."""
        self._have = 0
        self._need = 0
        self._handlers: dict[bytes, Handler] = {}
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._requests: dict[bytes, tuple[bytes, asyncio.Future[bytes]]] = {}
        """By reply subject: the subject of the request, and the future of its caller."""
        self._greeting: asyncio.Future[_Info] = self._loop.create_future()
        self._greeting.add_done_callback(_seen)
        self._unheard = 0
        self._watch: asyncio.TimerHandle | None = None
        self.on_read: Callable[[], None] = _nothing
        """Called when the messages of a read have been handled."""
        self.on_lost: Callable[[], None] = _nothing
        self.is_open = False
        self.ended = asyncio.Event()
        self.problem = ""
        """Why the connection ended, or will end."""

    @classmethod
    async def connect(cls, address: NatsAddress, name: str) -> NatsConnection:
        """Connect to the first server that answers; Unavailable if none does, FailedPrecondition if it refuses."""
        problems = []
        for host, port in address.servers:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await cls._connect(address, name, host, port)
            except TimeoutError:
                problems.append(f"{host}:{port} does not answer")
            except (OSError, UnicodeError) as error:
                problems.append(f"{host}:{port}: {error}")
        raise Unavailable(f"no connection to NATS at {address!r}: {'; '.join(problems)}", hint="is nats-server running there?")

    @classmethod
    async def _connect(cls, address: NatsAddress, name: str, host: str, port: int) -> NatsConnection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        try:
            info = await connection._greeting
            if info.tls_required or address.is_tls:
                await connection._encrypt(address, info, host)
            greeting = {
                "verbose": False,
                "pedantic": False,
                "lang": "python",
                "version": "1",
                "protocol": 1,
                "headers": True,
                "no_responders": True,
                "name": name,
                "tls_required": info.tls_required or address.is_tls,
            }
            if address.token:
                greeting["auth_token"] = address.token
            elif address.user:
                greeting |= {"user": address.user, "pass": address.password}
            elif address.nkey or address.creds:
                greeting |= signed(info.nonce, nkey=address.nkey, creds=address.creds)
            connection.write(b"CONNECT %b\r\n" % msgspec.json.encode(greeting))
            await connection.ping()
        except BaseException:
            connection.abort()
            if connection.problem.lower().startswith(REFUSED):
                raise FailedPrecondition(
                    f"NATS at {address!r} refuses these credentials: {connection.problem}",
                    hint="look at the user and the password, the token, or the key file in the queue's URI",
                ) from None
            raise
        connection._subscribe_inbox()
        connection._look()
        return connection

    async def _encrypt(self, address: NatsAddress, info: _Info, host: str) -> None:
        if not (info.tls_required or info.tls_available):
            raise FailedPrecondition(f"NATS at {address!r} does not speak TLS", hint="write nats:// instead of tls://")
        try:
            context = ssl.create_default_context(cafile=address.ca or None)
        except OSError as error:
            raise FailedPrecondition(f"the file of certificates {address.ca!r} cannot be used: {error}") from error
        encrypted = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if encrypted is None:
            raise ConnectionResetError("the connection ended while TLS was started")
        self._transport = encrypted

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def subscribe(self, subject: str, handler: Handler) -> bytes:
        """Pass the messages of a subject to a handler; returns the number of the subscription."""
        number = b"%d" % (len(self._handlers) + 1)
        self._handlers[number] = handler
        self.write(b"SUB %b %b\r\n" % (subject.encode(), number))
        return number

    def unsubscribe(self, number: bytes) -> None:
        """End a subscription; messages on their way still arrive."""
        self.write(b"UNSUB %b\r\n" % number)

    async def ping(self) -> None:
        """Return when the server has processed everything that was written; ConnectionError if it may not have."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self.write(b"PING\r\n")
        await pong

    async def request(self, subject: str, body: bytes = b"", *, seconds: float = REQUEST_SECONDS) -> bytes:
        """The body of the answer; NoResponders, TimeoutError, PermissionError or ConnectionError if there is none."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        inbox = f"{self._inbox}.{secrets.token_hex(6)}".encode()
        self._requests[inbox] = (subject.encode(), answer)
        try:
            self.write(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(body), body))
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            del self._requests[inbox]

    async def close(self) -> None:
        """Close the connection after pending writes are sent; returns when it is closed."""
        self._transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.ended.wait()
        self._transport.abort()

    def abort(self, problem: str = "") -> None:
        self.problem = self.problem or problem
        self._transport.abort()

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.problem = self.problem or (str(exc) if exc else "the server closed the connection")
        if self._watch:
            self._watch.cancel()
        waiting: list[asyncio.Future[Any]] = [*self._pongs, *(answer for _, answer in self._requests.values()), self._greeting]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionResetError(self.problem))
        self.ended.set()
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        self._unheard = 0
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            end = self._read(data)
        except (ValueError, IndexError) as error:
            self.abort(f"what answers there does not speak NATS: {error}")
            return
        if end < len(data):
            self._parts.append(data[end:])
            self._have = len(data) - end
        self.on_read()

    def _read(self, data: bytes) -> int:
        """Process all complete messages; returns where the incomplete rest starts."""
        at, size, handlers = 0, len(data), self._handlers
        while at < size:
            end = data.find(b"\r\n", at)
            if end < 0:
                if size - at > MAX_LINE:
                    raise ValueError("a line without an end")
                self._need = size - at + 1
                break
            if data.startswith(b"MSG ", at):
                fields = data[at + 4 : end].split()
                start = end + 2
                stop = start + int(fields[-1])
                if not start <= stop <= size - 2:
                    self._wait_for(at, start, start, stop)
                    break
                if handler := handlers.get(fields[1]):
                    handler(fields[0], fields[2] if len(fields) == 4 else b"", b"", data[start:stop])
                at = stop + 2
            elif data.startswith(b"HMSG ", at):
                fields = data[at + 5 : end].split()
                start = end + 2
                middle, stop = start + int(fields[-2]), start + int(fields[-1])
                if not start <= middle <= stop <= size - 2:
                    self._wait_for(at, start, middle, stop)
                    break
                if handler := handlers.get(fields[1]):
                    handler(fields[0], fields[2] if len(fields) == 5 else b"", data[start:middle], data[middle:stop])
                at = stop + 2
            else:
                self._error_received(data[at:end])
                at = end + 2
        return at

    def _wait_for(self, at: int, start: int, middle: int, stop: int) -> None:
        """The message that starts at `at` is incomplete, or invalid."""
        if not start <= middle <= stop <= start + MAX_MESSAGE:
            raise ValueError(f"a message of {stop - start} bytes")
        self._need = stop + 2 - at

    def _error_received(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        match word.upper():
            case b"PING":
                self.write(b"PONG\r\n")
            case b"PONG":
                if self._pongs:
                    pong = self._pongs.popleft()
                    if not pong.done():
                        pong.set_result(None)
            case b"INFO":
                if not self._greeting.done():
                    try:
                        self._greeting.set_result(_info(rest))
                    except msgspec.MsgspecError as error:
                        raise ValueError(f"its greeting: {error}") from None
            case b"-ERR":
                self._refused(rest.decode(errors="replace").strip(" '"))
            case b"+OK":
                pass
            case _:
                raise ValueError(repr(line[:40]))

    def _refused(self, problem: str) -> None:
        if not problem.lower().startswith("permissions violation"):
            self.problem = problem  # the server closes the connection now
            return
        for subject, answer in self._requests.values():
            if subject.decode() in problem and not answer.done():
                answer.set_exception(PermissionError(problem))

    def _subscribe_inbox(self) -> None:
        self.subscribe(f"{self._inbox}.*", self._answered)

    def _answered(self, subject: bytes, _reply: bytes, header: bytes, body: bytes) -> None:
        _, answer = self._requests.get(subject, (b"", None))
        if answer and not answer.done():
            if header.startswith(b"NATS/1.0 503"):
                answer.set_exception(NoResponders())
            else:
                answer.set_result(body)

    def _look(self) -> None:
        if self._unheard > PINGS:
            self.abort("the server gives no sign of life")
            return
        self._unheard += 1
        pong: asyncio.Future[None] = self._loop.create_future()
        pong.add_done_callback(_seen)
        self._pongs.append(pong)
        self.write(b"PING\r\n")
        self._watch = self._loop.call_later(PING_SECONDS, self._look)


def _seen(future: asyncio.Future[Any]) -> None:
    """Mark its exception as retrieved: there may be no waiter."""
    if not future.cancelled():
        future.exception()


def _nothing() -> None:
    """The default callback: does nothing."""
