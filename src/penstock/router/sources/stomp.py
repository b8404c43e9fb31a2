"""STOMP 1.2: frames as bytes, and a connection with login, heart-beats and receipts. The owner interprets the frames.

    open_connection ──CONNECT──> CONNECTED ──> on_messages(frames) … on_lost(why), once, unless `close` was called

Frames are written, and read from input in pieces of any size, without I/O. A frame that was read consists of its head, as text
with escapes, and its body. Most of a head is never used: `header` finds one header, `headers` all of them. Lines end with a
single line feed, as in ActiveMQ.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from penstock.errors import FailedPrecondition, Unavailable

Frame = tuple[str, bytes]
"""Head and body."""

HEAD_LIMIT: Final = 1 << 20
"""The size limit of a head in bytes; a larger one is not STOMP."""

_LENGTH: Final = "\ncontent-length:"
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"}
_ESCAPED: Final = {"\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":"}
_TO_ESCAPE: Final = re.compile(r"[\\\n\r:]")
_TO_UNESCAPE: Final = re.compile(r"\\.")


class NotStomp(Unavailable):
    """The input is not STOMP: the other end is another kind of server, or the stream is damaged."""


def escape(text: str) -> str:
    """A header's name or value with escapes, as it is sent."""
    return _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)


def unescape(text: str) -> str:
    """A header's name or value without escapes; an unknown escape stays unchanged."""
    if "\\" not in text:
        return text
    if "\\\\" not in text:  # the usual case: only colons, which ids have many of
        plain = text.replace("\\c", ":")
        if "\\" not in plain:
            return plain
    return _TO_UNESCAPE.sub(lambda found: _ESCAPED.get(found[0], found[0]), text)


def frame(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A frame to send. Names and values are escaped already, or need no escapes."""
    lines = "".join([f"{name}:{value}\n" for name, value in headers.items()])
    return b"%s\n%s\n%s\0" % (command.encode(), lines.encode(), body)


def headers(head: str) -> dict[str, str]:
    try:
        return dict([line.split(":", 1) for line in head.split("\n")[1:]])
    except ValueError:
        raise NotStomp("a header without a colon came from the server") from None


def header(head: str, mark: str) -> str | None:
    """One header of a head, with its escapes; the mark is its name between a line feed and a colon."""
    at = head.find(mark)
    if at < 0:
        return None
    at += len(mark)
    end = head.find("\n", at)
    return head[at:] if end < 0 else head[at:end]


class FrameReader:
    """Takes bytes as they arrive, and returns complete frames."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._needed = 0
        """How many bytes have to arrive before the next check: a large body arrives in many pieces."""
        self._seen = 0
        """How many of the kept bytes were already searched for the end of a body without a content-length."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete; NotStomp if they cannot be frames."""
        source: bytes | bytearray = data
        if self._kept:
            self._kept += data
            if len(self._kept) < self._needed:
                return []
            source = self._kept
        found: list[Frame] = []
        end = self._read(source, found)
        if source is self._kept:
            del self._kept[:end]
        else:
            self._kept += data[end:]
        return found

    def _read(self, source: bytes | bytearray, found: list[Frame]) -> int:
        """Collect the complete frames; returns where the first incomplete one starts."""
        place, size = 0, len(source)
        self._needed = 0
        while place < size:
            if source[place] in b"\n\r":  # a heart-beat, or the end of line after a frame
                place += 1
                continue
            blank = source.find(b"\n\n", place)
            if blank < 0:
                if size - place > HEAD_LIMIT:
                    raise NotStomp(f"a head of more than {HEAD_LIMIT:,} bytes came from the server")
                break
            start = blank + 2
            head, length = self._head(source[place:blank])
            if length is None:
                end = source.find(b"\0", max(start, place + self._seen))
                if end < 0:
                    self._seen = size - place
                    break
            else:
                end = start + length
                if end >= size:
                    self._needed = end + 1 - place
                    break
                if source[end]:
                    raise NotStomp("a body that is longer than its content-length came from the server")
            found.append((head, bytes(source[start:end])))
            place, self._seen = end + 1, 0
        return place

    @staticmethod
    def _head(data: bytes | bytearray) -> tuple[str, int | None]:
        """The head as text, and the length of its body, if it has a content-length."""
        try:
            head = data.decode()
            said = header(head, _LENGTH)
            if said is None:
                return head, None
            length = int(said)
        except ValueError:  # also if it is not UTF-8
            raise NotStomp("a head that is no STOMP came from the server") from None
        if length < 0:
            raise NotStomp(f"a content-length of {length} came from the server")
        return head, length


HEARTBEAT: Final = 10.0
"""The interval of heart-beats in seconds, for each end."""
ANSWER_LIMIT: Final = 10.0
"""The time limit for connecting, and for each answer, in seconds."""

Answered = Callable[[str | None], None]
"""Called when the server confirmed a frame (None), or refused it (with the reason)."""


class Login(msgspec.Struct, frozen=True):
    """The user and the password. The password is never shown."""

    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return "<login>"


class StompConnection(asyncio.Protocol):
    """One open connection, until it is lost."""

    def __init__(self, on_messages: Callable[[list[Frame]], None], on_lost: Callable[[str], None]) -> None:
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connected: asyncio.Future[dict[str, str]] = self._loop.create_future()
        self._receipts: dict[str, Answered] = {}
        self._last_receipt = 0
        self._problem = "the server closed the connection"
        self._timers: list[asyncio.TimerHandle | None] = [None, None]
        self._heard = self._wrote = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open; the login follows."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Sort incoming frames: messages are passed on together, the others are handled here."""
        self._heard = True
        try:
            frames = self._reader.feed(data)
            messages = [found for found in frames if found[0].startswith("MESSAGE\n")]
            if messages:
                self._on_messages(messages)
            if len(messages) < len(frames):
                for head, body in frames:
                    self._control(head, body)
        except NotStomp as error:
            self.abort(str(error))

    def _control(self, head: str, body: bytes) -> None:
        command, _, _ = head.partition("\n")
        if command == "MESSAGE":
            return
        found = headers(head)
        if command == "RECEIPT":
            if answered := self._receipts.pop(found.get("receipt-id", ""), None):
                answered(None)
        elif command == "CONNECTED":
            if not self._connected.done():
                self._connected.set_result(found)
        elif command == "ERROR":
            text = unescape(found.get("message", "")) or body[:200].decode(errors="replace").partition("\n")[0]
            if answered := self._receipts.pop(found.get("receipt-id", ""), None):
                answered(text)
            elif not self._connected.done():
                self._connected.set_exception(FailedPrecondition(f"ActiveMQ refuses the connection: {text}", hint=_REFUSED))
            else:
                self.abort(f"the server reports an error: {text}")
        else:
            raise NotStomp(f"a frame {command[:20]!r} came from the server")

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the owner, and all that wait for an answer."""
        for timer in self._timers:
            if timer is not None:
                timer.cancel()
        problem = str(error) if error else self._problem
        if not self._connected.done():
            self._connected.set_exception(Unavailable(problem))
            self._connected.exception()  # there may be no waiter any more
        receipts, self._receipts = self._receipts, {}
        self._transport = None
        for answered in receipts.values():
            answered(problem)
        self._on_lost(problem)

    @property
    def is_open(self) -> bool:
        """Whether anything can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        self._wrote = True
        if self._transport is not None:
            self._transport.write(data)

    def receipt(self, answered: Answered) -> str:
        """The value for a `receipt` header; the callback is called when the server has processed the frame, or is lost."""
        self._last_receipt += 1
        name = str(self._last_receipt)
        self._receipts[name] = answered
        return name

    async def ask(self, command: str, fields: dict[str, str], body: bytes = b"") -> str | None:
        """Send a frame and wait for the answer: None, or the reason for a refusal. Unavailable if there is none in time."""
        answer: asyncio.Future[str | None] = self._loop.create_future()
        name = self.receipt(lambda problem: None if answer.done() else answer.set_result(problem))
        self.write(frame(command, {**fields, "receipt": name}, body))
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                return await answer
        except TimeoutError:
            raise Unavailable(f"no answer to {command} within {ANSWER_LIMIT:.0f} s") from None

    async def log_in(self, host: str, login: Login) -> None:
        """Log in. FailedPrecondition if the server refuses us."""
        beat = int(HEARTBEAT * 1000)
        fields = {"accept-version": "1.2", "host": host, "heart-beat": f"{beat},{beat}"}
        if login.user:
            fields |= {"login": login.user, "passcode": login.password}
        self.write(frame("CONNECT", fields))
        try:
            found = await self._connected
        except Unavailable as error:
            # ActiveMQ closes the connection of a user it refuses, at times before its ERROR frame is sent.
            raise Unavailable(f"{error.message} during the login", hint=_REFUSED) from None
        if found.get("version") != "1.2":
            raise FailedPrecondition(f"the server speaks STOMP {found.get('version', '1.0')}, expected 1.2")
        self._beat(found.get("heart-beat", "0,0"))

    def _beat(self, offered: str) -> None:
        """Send heart-beats, and watch for those of the server, at the negotiated intervals; 0 is never."""
        sends, _, wants = offered.partition(",")
        if wants.isdigit() and int(wants):
            self._send_beats(max(HEARTBEAT, int(wants) / 1000) / 2)
        if sends.isdigit() and int(sends):
            self._watch(max(HEARTBEAT, int(sends) / 1000) * 2)

    def _send_beats(self, interval: float) -> None:
        if not self._wrote:
            self.write(b"\n")
        self._wrote = False
        self._timers[0] = self._loop.call_later(interval, self._send_beats, interval)

    def _watch(self, interval: float) -> None:
        if not self._heard:
            self.abort(f"nothing was heard of the server for {interval:.0f} s")
            return
        self._heard = False
        self._timers[1] = self._loop.call_later(interval, self._watch, interval)

    def abort(self, problem: str) -> None:
        self._problem = problem
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._on_lost = lambda _problem: None
        self._on_messages = lambda _frames: None
        if self._transport is not None:
            self._transport.close()


_REFUSED = "look at the user and the password of the queue's URI, and at what ActiveMQ lets this user do"


async def open_connection(
    host: str,
    port: int,
    *,
    login: Login,
    tls: ssl.SSLContext | None,
    on_messages: Callable[[list[Frame]], None],
    on_lost: Callable[[str], None],
) -> StompConnection:
    """A connection that is logged in; Unavailable if the server cannot be reached, FailedPrecondition if it refuses."""
    connection = StompConnection(on_messages, on_lost)
    try:
        async with asyncio.timeout(ANSWER_LIMIT):
            await asyncio.get_running_loop().create_connection(lambda: connection, host, port, ssl=tls)
            await connection.log_in(host, login)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | Unavailable):  # a TimeoutError is an OSError
            problem = str(error) or f"no answer within {ANSWER_LIMIT:.0f} s"
            hint = error.hint if isinstance(error, Unavailable) else None
            raise Unavailable(f"ActiveMQ at {host}:{port} is not reached: {problem}", hint=hint) from None
        raise
    return connection
