"""Targets that break the rules of HTTP/2: `HOSTILE_HTTP2` names what a server can do to the client that calls it.

    with Target(HOSTILE_HTTP2["endless 103"]) as target:
        ...                                             # the client must come to an end, in bounded memory and time

Frames are written out, so that no library keeps a target from being wrong. Each gets the first request of its connection, which
is on stream 1, and then does what its name says.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import cache
from typing import Any, Final

from penstock.testing.hostile import authority
from penstock.testing.target import Behaviour, Connection

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
UNKNOWN: Final = 0xBE
END_STREAM, END_HEADERS, PADDED = 0x1, 0x4, 0x8
TABLE_SIZE, MAX_STREAMS, INITIAL_WINDOW = 0x1, 0x3, 0x4
REFUSED_STREAM: Final = 0x7
BLOCK: Final = 64 * 1024
_PREFACE: Final = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_OK: Final = b"\x88"
"""`:status: 200` in a block of headers."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0, length: int | None = None) -> bytes:
    """A frame as it is on the wire; `length` when it is to lie about it."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(values: Mapping[int, int]) -> bytes:
    """What a server begins with."""
    return frame(SETTINGS, b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()))


def literal(name: bytes, value: bytes, *, start: int = 0x00) -> bytes:
    """A header that is written out; with `start` 0x40 the other side is to remember it. Up to 126 bytes of each."""
    return bytes((start, len(name))) + name + bytes((len(value),)) + value


def headers(block: bytes, *, flags: int = END_HEADERS, stream: int = 1) -> bytes:
    """The headers of an answer."""
    return frame(HEADERS, block, flags=flags, stream=stream)


@cache
def _tls() -> ssl.SSLContext:
    context = authority().server()
    context.set_alpn_protocols(["h2"])
    return context


async def _requests(connection: Connection) -> AsyncIterator[int]:
    """The streams of requests, each when its headers have come."""
    heard = bytearray()
    place = _PREFACE
    while True:
        heard += await connection.hear()
        while len(heard) >= place + 9:
            if heard[place + 3] == HEADERS:
                yield int.from_bytes(heard[place + 5 : place + 9], "big")
            place += 9 + int.from_bytes(heard[place : place + 3], "big")


async def _request(connection: Connection) -> None:
    """Wait for the first request."""
    async for _ in _requests(connection):
        return


def _greeted(greet: Callable[[Connection], Coroutine[Any, Any, None]]) -> Behaviour:
    return Behaviour(lambda _request, _connection: None, greet=greet, tls=_tls)


def _says(*packets: bytes, first: Mapping[int, int] | None = None) -> Behaviour:
    """Take a request, write these bytes, and wait for what becomes of it."""

    async def greet(connection: Connection) -> None:
        connection.send(settings(first or {}))
        await _request(connection)
        connection.send(b"".join(packets))
        await asyncio.Event().wait()

    return _greeted(greet)


def _endless(packet: bytes, *before: bytes) -> Behaviour:
    """Take a request, and write the same for ever."""
    block = packet * max(BLOCK // len(packet), 1)

    async def greet(connection: Connection) -> None:
        connection.send(settings({}))
        await _request(connection)
        connection.send(b"".join(before))
        while True:
            await connection.give(block)

    return _greeted(greet)


def _resets(code: int) -> Behaviour:
    """Give no request an answer."""

    async def greet(connection: Connection) -> None:
        connection.send(settings({}))
        async for stream in _requests(connection):
            connection.send(frame(RST_STREAM, code.to_bytes(4, "big"), stream=stream))

    return _greeted(greet)


def _unlike(data: bytes) -> Behaviour:
    """Write this where settings are due."""

    async def greet(connection: Connection) -> None:
        connection.send(data)
        await asyncio.Event().wait()

    return _greeted(greet)


_BOMB: Final = literal(b"x", b"y" * 120, start=0x40) + b"\xbe" * 16_000
"""One header, remembered and named again 16,000 times: 2.4 MB of headers in 16 KB."""

HOSTILE_HTTP2: Final[Mapping[str, Behaviour]] = {
    "HTTP/2: silence instead of settings": _unlike(b""),
    "HTTP/2: HTTP/1.1 where HTTP/2 was agreed on": _unlike(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "HTTP/2: garbage": _unlike(bytes(range(256))[::-1] * 4),
    "HTTP/2: takes no streams": _says(first={MAX_STREAMS: 0}),
    "HTTP/2: takes no body": _says(first={INITIAL_WINDOW: 0}),
    "HTTP/2: a window beyond any number": _says(frame(WINDOW_UPDATE, b"\x7f\xff\xff\xff") * 2),
    "HTTP/2: a window that grows by nothing": _says(frame(WINDOW_UPDATE, bytes(4))),
    "HTTP/2: never answers": _says(),
    "HTTP/2: stalls in the headers": _says(headers(_OK, flags=0)),
    "HTTP/2: stalls in the body": _says(headers(_OK), frame(DATA, b"{", stream=1)),
    "HTTP/2: stalls in a frame": _says(headers(_OK), frame(DATA, b"{", stream=1, length=100)),
    "HTTP/2: refuses every stream": _resets(REFUSED_STREAM),
    "HTTP/2: resets every stream": _resets(0),
    "HTTP/2: goes away from every call": _says(frame(GOAWAY, bytes(8))),
    "HTTP/2: goes away for ever": _endless(frame(GOAWAY, b"\x00\x00\x00\x01" + bytes(4))),
    "HTTP/2: body before headers": _says(frame(DATA, b"{}", stream=1, flags=END_STREAM)),
    "HTTP/2: status of letters": _says(headers(literal(b":status", b"abc"), flags=END_HEADERS | END_STREAM)),
    "HTTP/2: status 099": _says(headers(literal(b":status", b"099"), flags=END_HEADERS | END_STREAM)),
    "HTTP/2: status 2_0": _says(headers(literal(b":status", b"2_0"), flags=END_HEADERS | END_STREAM)),
    "HTTP/2: no status": _says(headers(literal(b"server", b"x"), flags=END_HEADERS | END_STREAM)),
    "HTTP/2: length too long": _says(
        headers(_OK + literal(b"content-length", b"5")), frame(DATA, b"{}", stream=1, flags=END_STREAM)
    ),
    "HTTP/2: header in capitals": _says(headers(_OK + literal(b"Server", b"x"), flags=END_HEADERS | END_STREAM)),
    "HTTP/2: line end in a header": _says(headers(_OK + literal(b"server", b"x\r\ny: z"), flags=END_HEADERS | END_STREAM)),
    "HTTP/2: an index of nothing": _says(headers(b"\xfe")),
    "HTTP/2: bomb of headers": _says(headers(_OK + _BOMB[:16_300])),
    "HTTP/2: an answer nobody asked for": _says(headers(_OK, stream=7)),
    "HTTP/2: a push": _says(frame(PUSH_PROMISE, b"\x00\x00\x00\x02" + _OK, flags=END_HEADERS, stream=1)),
    "HTTP/2: a frame too large": _says(frame(DATA, stream=1, length=2**24 - 1), bytes(BLOCK)),
    "HTTP/2: padding longer than its frame": _says(headers(_OK), frame(DATA, b"\xff{}", flags=PADDED, stream=1)),
    "HTTP/2: continuation of nothing": _says(frame(CONTINUATION, _OK, flags=END_HEADERS, stream=1)),
    "HTTP/2: endless continuation": _endless(frame(CONTINUATION, b"", stream=1), headers(_OK, flags=0)),
    "HTTP/2: endless long continuation": _endless(
        frame(CONTINUATION, literal(b"x", b"y" * 120) * 130, stream=1), headers(_OK, flags=0)
    ),
    "HTTP/2: endless 103": _endless(headers(literal(b":status", b"103"))),
    "HTTP/2: endless empty frames of a body": _endless(frame(DATA, stream=1), headers(_OK)),
    "HTTP/2: endless padding": _endless(frame(DATA, b"\xff" + bytes(255), flags=PADDED, stream=1), headers(_OK)),
    "HTTP/2: endless body": _endless(frame(DATA, bytes(16_384), stream=1), headers(_OK)),
    "HTTP/2: body of small frames": _endless(frame(DATA, b" " * 16, stream=1), headers(_OK)),
    "HTTP/2: body of frames of one byte": _endless(frame(DATA, b" ", stream=1), headers(_OK)),
    "HTTP/2: endless PING": _endless(frame(PING, bytes(8))),
    "HTTP/2: endless SETTINGS": _endless(settings({INITIAL_WINDOW: 65_535})),
    "HTTP/2: endless WINDOW_UPDATE": _endless(frame(WINDOW_UPDATE, b"\x00\x00\x00\x01")),
    "HTTP/2: endless PRIORITY": _endless(frame(PRIORITY, b"\x00\x00\x00\x05\x01", stream=3)),
    "HTTP/2: endless unknown frames": _endless(frame(UNKNOWN)),
    "HTTP/2: endless resets": _endless(frame(RST_STREAM, bytes(4), stream=1)),
}
"""By what they do."""
