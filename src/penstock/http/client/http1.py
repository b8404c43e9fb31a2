"""HTTP/1.1 on one connection: one request at a time, written in one piece; its answer is parsed as it arrives.

Headers are not collected: the parser itself handles those about a message's length and keep-alive, and the others are read
only for the few answers that need them (see `_Headers`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.errors import FailedPrecondition
from penstock.extras import how_to_install
from penstock.http.client.call import HttpCall
from penstock.http.client.dial import OpeningConnection
from penstock.http.client.origin import Origin
from penstock.http.client.transport import Answer, Failure, FailureKind

try:
    from httptools import HttpParserError, HttpResponseParser
except ModuleNotFoundError as error:
    raise FailedPrecondition("the router's HTTP client needs the library httptools", hint=how_to_install("router")) from error

HEAD_LIMIT: Final = 64 * 1024
"""Bytes before an answer's body, including interim answers."""
MOST_PACKING: Final = 16
"""Bytes that a target may send for each byte of the body: a chunk of one byte takes six."""
ASKS_TO_WAIT: Final = {429, 503}


class Http1Connection(OpeningConnection):
    """An HTTP/1.1 connection to an origin. It takes one call at a time."""

    __slots__ = (
        "_body",
        "_body_limit",
        "_call",
        "_feed",
        "_head",
        "_is_ended",
        "_is_kept",
        "_keep",
        "_origin",
        "_parser",
        "_received",
        "_status",
        "_transport",
        "_write",
        "idle_since",
        "is_free",
    )

    _transport: asyncio.Transport

    def __init__(self, origin: Origin, body_limit: int) -> None:
        self._origin = origin
        self._body_limit = body_limit
        self._parser = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._call: HttpCall | None = None
        self._is_kept = False
        """Whether it has answered before: then the target may have closed it in the meantime."""
        self._is_ended = False
        self._keep = False
        self._status = 0
        """The status of the answer; 0 until its head is complete."""
        self._received = 0
        """Bytes of an answer that arrives in several pieces."""
        self._head: bytes | bytearray = b""
        self._body: bytes | bytearray = b""
        self.is_free = False
        self.idle_since = 0

    async def ready(self) -> None:
        """Return at once: it can take a call as soon as it is open."""

    @property
    def load(self) -> int:
        return 0 if self._call is None else 1

    def start(self, call: HttpCall) -> bool:
        """Send a request. Returns True: there is no room for another."""
        self._call = call
        body = call.body
        self._write(b"%b%d\r\n%b\r\n%b" % (call.target.head, len(body), call.headers, body))
        return True

    def drop(self, call: HttpCall) -> None:
        """Drop a call and close: the rest of its answer must not be taken for another's."""
        self._call = None
        self._close(calls=1)

    def discard(self) -> None:
        self._close(calls=0)

    def check(self) -> None:
        """Do nothing: HTTP/1.1 has no ping, and a dead connection is found by the timeout of its call."""

    # ── what the event loop calls ────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of TCP or TLS it is one that writes
        self._transport = transport
        self._write = transport.write
        self._origin.opened(self, is_shared=False)
        self._origin.offer(self)

    def data_received(self, data: bytes) -> None:
        if self._call is None:  # data without a request
            self._close(calls=0)
            return
        if not self._status:
            if not self._head:
                self._head = data
            else:
                self._head = bytearray(self._head) if isinstance(self._head, bytes) else self._head
                self._head += data
        try:
            self._feed(data)
        except HttpParserError as error:
            if not self._is_ended:
                self._fail(f"the answer is not HTTP: {error}")
                return
            self._keep = False  # the answer is complete or long enough; what follows it was not requested
        if self._is_ended:
            self._end()
            return
        self._received += len(data)
        if not self._status:
            if self._received > HEAD_LIMIT:
                self._fail(f"the answer's head is longer than {HEAD_LIMIT} bytes")
        elif self._received > HEAD_LIMIT + self._body_limit * MOST_PACKING:
            self._fail("the answer does not end, though its body is short: its chunks or its trailers are too long")

    def eof_received(self) -> None:
        """The target will send no more; the connection closes."""
        self._origin.retire(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by the target or by us."""
        call, self._call = self._call, None
        if call is None:
            self._origin.lost(self, calls=0)
            return
        self._origin.lost(self, calls=1)
        if exc is None and self._status and _Headers(self._head).is_closed_by_end:
            call.finish(self._answer())
        elif self._is_kept and not self._head and not call.is_replaced:
            self._origin.close_idle()  # connections that were idle as long are likely to be closed too
            self._origin.again(call)
        else:
            call.finish(Failure(FailureKind.BROKEN, f"{self._origin.name}: the connection broke before the answer was complete"))

    # ── what the parser calls ────────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """An answer begins. After a complete answer this is an error."""
        if self._is_ended:
            raise _Stop

    def on_headers_complete(self) -> None:
        """The head of the answer, or of an interim one, is complete."""
        status = self._parser.get_status_code()
        if status >= 200:
            self._status = status
        elif status == 101:
            raise _Stop  # we asked for no other protocol

    def on_body(self, data: bytes) -> None:
        if not self._body:
            self._body = data
        else:
            self._body = bytearray(self._body) if isinstance(self._body, bytes) else self._body
            self._body += data
        if len(self._body) > self._body_limit:
            self._body = self._body[: self._body_limit]
            self._is_ended = True
            raise _Stop

    def on_message_complete(self) -> None:
        """The answer, or an interim one, is complete."""
        if self._status:
            self._is_ended = True
            self._keep = self._parser.should_keep_alive()

    # ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        """The answer is complete: make room for the next call, then report it."""
        call, self._call = self._call, None
        assert call is not None, "answers are only read for calls"
        answer = self._answer()
        if self._keep:
            self._is_kept = True
            self._is_ended = self._keep = False
            self._status = self._received = 0
            self._head = self._body = b""
            self._origin.release(self)
        else:
            self._close(calls=1)
        call.finish(answer)

    def _answer(self) -> Answer:
        status, body = self._status, self._body
        wait = _Headers(self._head).retry_after if status in ASKS_TO_WAIT else None
        return Answer(status, body if type(body) is bytes else bytes(body), wait)

    def _fail(self, why: str) -> None:
        call, self._call = self._call, None
        assert call is not None, "answers are only read for calls"
        self._close(calls=1)
        call.finish(Failure(FailureKind.BROKEN, f"{self._origin.name}: {why}"))

    def _close(self, calls: int) -> None:
        self._transport.abort()
        self._origin.lost(self, calls)


class _Stop(Exception):
    """Stops the parser."""


class _Headers:
    """The headers of an answer, read from its kept head by the same parser, so that both interpret it alike."""

    def __init__(self, head: bytes | bytearray) -> None:
        self.retry_after: str | None = None
        self.is_closed_by_end = True
        """Whether the end of the body is the end of the connection."""
        self._is_over = False
        self._parser = HttpResponseParser(self)
        with suppress(HttpParserError):  # errors after the head do not matter here
            self._parser.feed_data(head)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_over:
            return
        match name.lower():
            case b"retry-after":
                self.retry_after = value.strip().decode("latin-1")
            case b"content-length":
                self.is_closed_by_end = False
            case b"transfer-encoding" if value.rpartition(b",")[2].strip().lower() == b"chunked":
                self.is_closed_by_end = False

    def on_headers_complete(self) -> None:
        self._is_over = self._parser.get_status_code() >= 200
