"""Targets that break every rule: `HOSTILE` names what a server can do to the client that calls it.

    with Target(HOSTILE["endless headers"]) as target:
        ...                                             # the client must come to an end, in bounded memory

What is sent is written out below, so that the table can be read as the list of what a client must survive.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import chain, cycle, repeat
from typing import Any, Final

from penstock.testing.target import Behaviour, Connection, Greeting, Request, respond

DRIP: Final = 0.02
"""Seconds from one byte to the next, where a target is slow."""
BLOCK: Final = 64 * 1024
BIG: Final = 100 * 1024 * 1024
BOMB: Final = 50 * 1024 * 1024
"""What a gzip bomb unpacks to; it is about a thousandth of that on the wire."""

_OK: Final = b"HTTP/1.1 200 OK\r\n"
_CHUNKED: Final = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_FINE: Final = _OK + b"Content-Length: 2\r\n\r\n{}"
_CLIENT_HELLO: Final = bytes.fromhex("160301002e0100002a0303") + b"\x5a" * 35


async def _for_ever(*_: object) -> None:
    """Say nothing until the other side has enough."""
    await asyncio.Event().wait()


def _closes(*_: object) -> None:
    """Stands where the connection is ended before anything is answered."""


def _raw(*pieces: bytes, then: Callable[[Connection], object] | None = Connection.close) -> Behaviour:
    """Write these bytes as they are, one packet each, and then end the connection; None: keep it."""

    async def answer(_: Request, connection: Connection) -> None:
        for piece in pieces:
            await connection.give(piece)
        if then is not None:
            await asyncio.sleep(DRIP)  # so that the bytes arrive before a reset does
            then(connection)

    return Behaviour(answer)


def _stalls(start: bytes) -> Behaviour:
    """Write this, and then nothing."""

    async def answer(_: Request, connection: Connection) -> None:
        connection.send(start)
        await _for_ever()

    return Behaviour(answer)


def _stream(start: bytes, blocks: Callable[[], Iterable[bytes]], pause: float = 0.0) -> Behaviour:
    """Write the start, and then block after block, as fast as the other side takes them or with a pause before each."""

    async def answer(_: Request, connection: Connection) -> None:
        await connection.give(start)
        for block in blocks():
            if pause:
                await asyncio.sleep(pause)
            await connection.give(block)

    return Behaviour(answer)


def _endless(start: bytes, block: bytes, pause: float = 0.0) -> Behaviour:
    return _stream(start, lambda: repeat(block), pause)


def _dripped(answer: bytes) -> Behaviour:
    return _stream(b"", lambda: (answer[i : i + 1] for i in range(len(answer))), DRIP)


def _greets(greet: Greeting, *, scheme: str = "") -> Behaviour:
    return Behaviour(_closes, greet=greet, scheme=scheme)
