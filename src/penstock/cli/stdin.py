"""The standard input, or a file, as it comes: read beside the event loop, so that Ctrl-C never waits for a key."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

CHUNK = 256 * 1024


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What is read, until the end. One read is under way at a time, so whoever is slow holds back who writes."""
    loop = asyncio.get_running_loop()
    while True:
        arrived: asyncio.Future[bytes] = loop.create_future()
        # A thread that is not waited for at the end, and none of a pool, which would be.
        threading.Thread(target=_read, args=(descriptor, loop, arrived), daemon=True).start()
        data = await arrived
        if not data:
            return
        yield data


async def lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lines without their ends, as many at once as have come; empty ones are left out."""
    rest = b""
    async for chunk in chunks(descriptor):
        *whole, rest = (rest + chunk).split(b"\n")
        if found := [line for line in map(_trimmed, whole) if line]:
            yield found
    if last := _trimmed(rest):
        yield [last]


async def line(descriptor: int) -> str:
    """The first line, as a person typed it."""
    typed = b""
    async for chunk in chunks(descriptor):
        typed += chunk
        if b"\n" in typed:
            break
    return typed.partition(b"\n")[0].decode(errors="replace").strip()


def _trimmed(text: bytes) -> bytes:
    return text.removesuffix(b"\r")


def _read(descriptor: int, loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[bytes]) -> None:
    try:
        data, failure = os.read(descriptor, CHUNK), None
    except OSError as error:
        data, failure = b"", error
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_tell, arrived, data, failure)


def _tell(arrived: asyncio.Future[bytes], data: bytes, failure: OSError | None) -> None:
    if not arrived.done():
        if failure is not None:
            arrived.set_exception(failure)
        else:
            arrived.set_result(data)
