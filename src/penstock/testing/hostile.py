"""Targets that break every rule: `HOSTILE` names the ways in which a server can mistreat its client.

    with Target(HOSTILE["endless headers"]) as target:
        ...                                             # the client must come to an end, in bounded memory

What is sent is written out, so that the table can be read as the list of what a client has to survive.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import cache, reduce
from itertools import cycle, repeat
from typing import Any, Final

from penstock.testing.certificates import Authority, self_signed
from penstock.testing.target import Behaviour, Connection, Greeting, Request, respond

DRIP: Final = 0.02
"""Seconds from one byte to the next, where a target is slow."""
BLOCK: Final = 64 * 1024
BIG: Final = 100 * 1024 * 1024
BOMB: Final = 50 * 1024 * 1024
"""The unpacked size of the gzip bomb; on the wire it is about a thousandth of it."""

_OK: Final = b"HTTP/1.1 200 OK\r\n"
_CHUNKED: Final = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_FINE: Final = _OK + b"Content-Length: 2\r\n\r\n{}"
_GARBAGE: Final = bytes(range(256))[::-1] * 4
_TLS_RECORD: Final = bytes.fromhex("160303004a020000460303") + b"\x5a" * 68
"""The first bytes of a TLS server."""


async def _silence(*_: object) -> None:
    """Send nothing until the client gives up."""
    await asyncio.Event().wait()


def _unasked(*_: object) -> None:
    """In place of a behaviour for requests, where none is read."""


def _raw(*packets: bytes, then: Callable[[Connection], object] = Connection.close) -> Behaviour:
    """Write these bytes as they are, then do something to the connection."""

    async def answer(_: Request, connection: Connection) -> None:
        for packet in packets:
            await connection.give(packet)
            await asyncio.sleep(DRIP)  # so that each arrives by itself, and before a reset
        then(connection)

    return Behaviour(answer)


def _keep(_: Connection) -> None:
    """Leave it open, for the next request."""


def _stalled(start: bytes) -> Behaviour:
    """Write this, and then nothing more."""

    async def answer(_: Request, connection: Connection) -> None:
        connection.send(start)
        await _silence()

    return Behaviour(answer)


def _stream(start: bytes, blocks: Callable[[], Iterable[bytes]], pause: float = 0.0) -> Behaviour:
    """Write the start, and then block after block: as fast as the other side takes them, or with a pause before each."""

    async def answer(_: Request, connection: Connection) -> None:
        connection.send(start)
        for block in blocks():
            await asyncio.sleep(pause)
            await connection.give(block)

    return Behaviour(answer)


def _endless(start: bytes, block: bytes, pause: float = 0.0) -> Behaviour:
    return _stream(start, lambda: repeat(block), pause)


def _dripped(answer: bytes) -> Behaviour:
    return _stream(b"", lambda: (answer[at : at + 1] for at in range(len(answer))), DRIP)


def _greeting(greet: Greeting, *, scheme: str = "") -> Behaviour:
    return Behaviour(_unasked, greet=greet, scheme=scheme)


def _saying(data: bytes, *, scheme: str = "") -> Behaviour:
    """Send this to every client that connects, and continue listening."""

    async def greet(connection: Connection) -> None:
        connection.send(data)
        await _silence()

    return _greeting(greet, scheme=scheme)


def _answer_with_loop(request: Request, connection: Connection) -> Coroutine[Any, Any, None] | None:
    """Redirect to the request's own address."""
    return respond(302, headers={"Location": f"{connection.url}{request.path}"}).answer(request, connection)


@cache
def gzip_bomb() -> bytes:
    """50 MB of zeros, compressed. One block is compressed and repeated, so that the target's loop is not blocked."""
    block = bytes(1024 * 1024)
    count = BOMB // len(block)
    packer = zlib.compressobj(9, wbits=-15)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    check = reduce(lambda crc, _: zlib.crc32(block, crc), range(count), 0)
    return b"\x1f\x8b\x08" + bytes(7) + packed * count + b"\x03\x00" + struct.pack("<II", check, BOMB)


def _answer_with_bomb(_: Request, connection: Connection) -> None:
    packed = gzip_bomb()
    connection.send(_OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)


def _fine(_: Request, connection: Connection) -> None:
    """An answer to a client that should not have sent a request."""
    connection.send(_FINE)


def _answer_twice(_: Request, connection: Connection) -> None:
    """A second, unsolicited answer: a careless client takes it for the answer to its next request."""
    connection.send(_FINE + b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


@cache
def authority() -> Authority:
    """The authority of the certificates below. A client that trusts it refuses them for their other defects."""
    return Authority()


def _headed(*lines: bytes) -> bytes:
    """An answer with these header lines."""
    return _OK + b"".join(line + b"\r\n" for line in lines) + b"\r\n{}"


def _json(content: bytes, status: int = 200, **headers: str) -> Behaviour:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return respond(status, content, headers={"Content-Type": "application/json", **named})


HOSTILE: Final[Mapping[str, Behaviour]] = {
    # silence
    "never answers": Behaviour(_silence),
    "accepts and says nothing": _greeting(_silence),
    "closes at once": _greeting(Connection.close),
    "resets at once": _greeting(Connection.reset),
    "closes instead of answering": _raw(),
    "resets instead of answering": _raw(then=Connection.reset),
    # slowness
    "slow headers": _dripped(_OK + b"X-Slow: " + b"s" * 500 + b"\r\nContent-Length: 2\r\n\r\n{}"),
    "slow body": _stream(_OK + b"Content-Length: 500\r\n\r\n", lambda: repeat(b" ", 500), DRIP),
    "drips forever": _endless(_CHUNKED, b"1\r\n \r\n", DRIP),
    "drips headers forever": _endless(_OK, b"X: y\r\n", DRIP),
    "stalls in the headers": _stalled(_OK + b"Content-Le"),
    "stalls in the body": _stalled(_OK + b"Content-Length: 10\r\n\r\n{"),
    # ends too early
    "closes in the headers": _raw(_OK + b"Content-Le"),
    "closes in the body": _raw(_OK + b"Content-Length: 10\r\n\r\n{"),
    "closes in a chunk": _raw(_CHUNKED + b"a\r\n{"),
    "closes between chunks": _raw(_CHUNKED + b"2\r\n{}\r\n"),
    "reset in the headers": _raw(_OK + b"Content-Le", then=Connection.reset),
    "reset in the body": _raw(_OK + b"Content-Length: 10\r\n\r\n{", then=Connection.reset),
    # never ends
    "endless chunked body": _endless(_CHUNKED, b"10000\r\n" + bytes(BLOCK) + b"\r\n"),
    "endless small chunks": _endless(_CHUNKED, b"1\r\n \r\n" * 1000),
    "endless body of a huge length": _endless(_OK + b"Content-Length: 999999999999999999\r\n\r\n", bytes(BLOCK)),
    "endless body without a length": _endless(_OK + b"\r\n", bytes(BLOCK)),
    "endless headers": _endless(_OK, b"X-Header: value\r\n" * 1000),
    "endless trailers": _endless(_CHUNKED + b"0\r\n", b"X-Trailer: value\r\n" * 1000),
    "endless chunk extension": _endless(_CHUNKED + b"2;", b"x" * BLOCK),
    "endless reason": _endless(b"HTTP/1.1 200 ", b"O" * BLOCK),
    "endless empty lines": _endless(b"", b"\r\n" * 1000),
    "endless 100 Continue": _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "one enormous header": _stream(_OK + b"X-Header: ", lambda: repeat(b"v" * BLOCK, BIG // BLOCK)),
    "100 MB": _stream(_OK + b"Content-Length: %d\r\n\r\n" % BIG, lambda: repeat(bytes(BLOCK), BIG // BLOCK)),
    "gzip bomb": Behaviour(_answer_with_bomb),
    # leads elsewhere
    "redirect loop": Behaviour(_answer_with_loop),
    "redirect to metadata": respond(302, headers={"Location": "http://169.254.169.254/latest/meta-data/"}),
    "switching protocols": _raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", then=_keep),
    # wrong lengths
    "length too short": _raw(_OK + b"Content-Length: 2\r\n\r\n{}" + b"x" * 98, then=_keep),
    "length too long": _raw(_OK + b"Content-Length: 100\r\n\r\n{}"),
    "two lengths": _raw(_headed(b"Content-Length: 2", b"Content-Length: 100")),
    "two lengths in one line": _raw(_headed(b"Content-Length: 2, 100")),
    "negative length": _raw(_headed(b"Content-Length: -2")),
    "length that is no number": _raw(_headed(b"Content-Length: two")),
    "length beyond any number": _raw(_headed(b"Content-Length: 99999999999999999999999999")),
    "chunk of no size": _raw(_CHUNKED + b"\r\n{}\r\n0\r\n\r\n"),
    "chunk of a bad size": _raw(_CHUNKED + b"two\r\n{}\r\n0\r\n\r\n"),
    "chunk of a negative size": _raw(_CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n"),
    "chunk of a size beyond any number": _raw(_CHUNKED + b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n"),
    "chunk longer than its size": _raw(_CHUNKED + b"2\r\n{}xxxx\r\n0\r\n\r\n"),
    "chunked and a length": _raw(_OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    "unknown transfer coding": _raw(_headed(b"Transfer-Encoding: shuffled")),
    "content without being allowed one": _raw(b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}", then=_keep),
    # no HTTP
    "bad status line": _raw(b"200 OK HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"),
    "no status": _raw(b"HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"),
    "status of letters": _raw(b"HTTP/1.1 OK 200\r\nContent-Length: 2\r\n\r\n{}"),
    "status 000": _raw(b"HTTP/1.1 000 Nothing\r\nContent-Length: 2\r\n\r\n{}"),
    "status 999": _raw(b"HTTP/1.1 999 Anything\r\nContent-Length: 2\r\n\r\n{}"),
    "status 2000": _raw(b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "HTTP/0.9": _raw(b"<html>hello</html>"),
    "HTTP/3.0": _raw(b"HTTP/3.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "HTTP/2 to a client of HTTP/1.1": _raw(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 20),
    "garbage": _raw(_GARBAGE),
    "garbage forever": _stream(b"", lambda: cycle([_GARBAGE])),
    # TLS
    "TLS where plain text is spoken": _saying(_TLS_RECORD),
    "plain text where TLS is spoken": _saying(_FINE, scheme="https"),
    "silence where TLS is spoken": _greeting(_silence, scheme="https"),
    "certificate signed by itself": Behaviour(_fine, tls=self_signed),
    "certificate that has run out": Behaviour(_fine, tls=lambda: authority().server(days=-1)),
    "certificate of another host": Behaviour(_fine, tls=lambda: authority().server("other.example")),
    # unsolicited answers
    "answers before it was asked": _saying(_FINE),
    "a second answer": Behaviour(_answer_twice),
    "a second answer later": _raw(_FINE, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", then=_keep),
    "answers and resets": _raw(_FINE, then=Connection.reset),
    # headers
    "NUL in a header": _raw(_headed(b"Content-Length: 2", b"X-Nul: a\x00b")),
    "header that is not ASCII": _raw(_headed(b"Content-Length: 2", "X-Ümlaut: é".encode())),
    "header without a colon": _raw(_headed(b"Content-Length: 2", b"no colon here")),
    "space before the colon": _raw(_headed(b"Content-Length : 2")),
    "folded header": _raw(_headed(b"X-Folded: a", b" Content-Length: 100", b"Content-Length: 2")),
    "lines that end with CR alone": _raw(_FINE.replace(b"\r\n", b"\r")),
    # content
    "deeply nested JSON": _json(b"[" * 60_000),
    "deeply nested answer": _json(b'{"ack": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    "deeply nested where nobody looks": _json(b'{"other": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    "huge delaySeconds": _json(b'{"ack": false, "delaySeconds": 1' + b"0" * 400 + b"}"),
    "negative delaySeconds": _json(b'{"ack": false, "delaySeconds": -5}'),
    "JSON that is not UTF-8": _json(b'{"ack": false, "message": "\xff\xfe"}'),
    "huge Retry-After": _json(b"", 429, Retry_After="9" * 5000),
    "Retry-After in the far future": _json(b"", 429, Retry_After="Fri, 31 Dec 9999 23:59:59 GMT"),
    "Retry-After that is nonsense": _json(b"", 429, Retry_After="-1e999 \xbd"),
}
"""The behaviours, by name. Those that greet, or use TLS, need a target of their own."""
