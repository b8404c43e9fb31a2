"""Reads the input of commands: the standard input or a file as it arrives, the answer to a question, and messages to publish.

Reading happens in a thread, so that Ctrl-C never waits for a key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.cli.arguments import whole
from penstock.cli.output import Progress, complain, redraw, say, say_json, short
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, PermissionDenied
from penstock.values.wording import count

CHUNK = 256 * 1024


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """The input up to its end. Only one read is in progress at a time, so a slow reader slows down the writer."""
    loop = asyncio.get_running_loop()
    while True:
        arrived: asyncio.Future[bytes] = loop.create_future()
        # A thread of its own: the end would wait for one of a pool. It reads from a copy of the descriptor, because after a
        # cancelled wait it may return late, when the descriptor is closed or another file has its number.
        threading.Thread(target=_read, args=(os.dup(descriptor), loop, arrived), daemon=True).start()
        data = await arrived
        if not data:
            return
        yield data


async def lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lines without their ends, as many at once as have arrived; empty ones are skipped."""
    rest = b""
    async for chunk in chunks(descriptor):
        *whole, rest = (rest + chunk).split(b"\n")
        if found := [line for line in map(_trimmed, whole) if line]:
            yield found
    if last := _trimmed(rest):
        yield [last]


async def line(descriptor: int) -> str:
    """The first line, as typed."""
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
    os.close(descriptor)
    with suppress(RuntimeError):  # the loop is closed: nothing waits any more
        loop.call_soon_threadsafe(_tell, arrived, data, failure)


def _tell(arrived: asyncio.Future[bytes], data: bytes, failure: OSError | None) -> None:
    if not arrived.done():
        if failure is not None:
            arrived.set_exception(failure)
        else:
            arrived.set_result(data)


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add the flag that answers the question in advance."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


async def confirm(found: argparse.Namespace, deed: str) -> None:
    """Return if the user agrees, or `--yes` is given; raise otherwise."""
    if found.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgument(f"will not {deed} without --yes: there is no terminal to ask on")
    redraw(f"{deed}? [y/N] ")
    if (await line(0)).lower() not in {"y", "yes"}:
        raise FailedPrecondition("nothing was done")


async def confirm_delete(found: argparse.Namespace, thing: str, contents: Callable[[], Awaitable[str]]) -> None:
    """Ask before deleting something that is not empty; `contents` describes its content, as in '2 messages'."""
    if found.yes:
        return
    try:
        inside = await contents()
    except PermissionDenied:  # a token may be allowed to delete but not to count
        inside = "everything in it"
    if inside:
        await confirm(found, f"delete {thing} with {inside}")


STDIN = 0
BATCH, BATCH_BYTES = 500, 1024 * 1024
IN_FLIGHT = 4
"""Batches that are published concurrently."""

Send = Callable[[list[bytes]], Awaitable[Sequence[str]]]
"""Publishes messages together; returns their ids."""


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the messages to publish."""
    parser.add_argument(
        "data", metavar="DATA", nargs="*", default=[], help="one message each (default: the standard input is one message)"
    )
    parser.add_argument("--file", metavar="FILE", help="read one message from a file; - is the standard input")
    parser.add_argument("--lines", action="store_true", help="publish each line of the file or of the standard input")
    parser.add_argument("--count", type=whole(1), default=1, metavar="N", help="publish everything N times (default: 1)")


def check_source(found: argparse.Namespace) -> None:
    """Raise for arguments that exclude each other, and if there is nothing to publish."""
    if found.data and (found.file is not None or found.lines):
        raise InvalidArgument("DATA is given together with --file or --lines, expected one or the other")
    if found.lines and found.count > 1:
        raise InvalidArgument(
            "--lines is given together with --count, expected one or the other", hint="lines are read only once"
        )
    if not found.data and found.file is None and sys.stdin.isatty() and not found.lines:
        raise InvalidArgument(
            "there is nothing to publish", hint="give DATA, --file FILE, or --file - to type it here and end it with Ctrl-D"
        )


async def publish_all(found: argparse.Namespace, send: Send, *, in_order: bool = False) -> int:
    """Publish the messages of the arguments, and print their ids or, if there are many, their number."""
    is_many = found.lines or found.count > 1
    ids: list[str] = []
    total = None if found.lines else found.count * max(len(found.data), 1)
    progress = Progress("publishing", total)
    try:
        with progress:
            async for confirmed in _sent(_batches(found), send, 1 if in_order else IN_FLIGHT):
                if not is_many:
                    ids += confirmed
                progress.advance(len(confirmed))
    except (PenstockError, asyncio.CancelledError):
        if progress.done:
            complain(f"published {count(progress.done, 'message')}, then it ended")
        raise
    done, rate, seconds = progress.done, progress.rate, progress.seconds
    if not is_many:
        if found.json:
            say_json({"ids": ids})
        elif ids:
            say("\n".join(ids))
        return 0
    if found.json:
        say_json({"published": done, "seconds": round(seconds, 3), "rate": round(rate)})
    else:
        complain(f"published {count(done, 'message')} in {seconds:.1f} s ({short(rate)}/s)")
    return 0


async def _sent(batches: AsyncGenerator[list[bytes], None], send: Send, most: int) -> AsyncIterator[Sequence[str]]:
    """The result of each batch, in order, with this many in progress. The first failure ends it."""
    under_way: deque[asyncio.Future[Sequence[str]]] = deque()
    coming = asyncio.ensure_future(anext(batches, None))
    is_over = False
    try:
        while under_way or not is_over:
            has_room = not is_over and len(under_way) < most
            waits: list[asyncio.Future[Any]] = [*([coming] if has_room else []), *list(under_way)[:1]]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if under_way and under_way[0].done():
                yield await under_way.popleft()
            elif (batch := await coming) is not None:
                under_way.append(asyncio.ensure_future(send(batch)))
                coming = asyncio.ensure_future(anext(batches, None))
            else:
                is_over = True
    finally:
        left: list[asyncio.Future[Any]] = [coming, *under_way]
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await batches.aclose()


async def _batches(found: argparse.Namespace) -> AsyncGenerator[list[bytes], None]:
    if found.lines:
        descriptor = _descriptor(found.file)
        try:
            async for some in lines(descriptor):
                for batch in _cut(some):
                    yield batch
        except OSError as error:  # a directory, or a defective disk
            raise _unreadable(found.file or "-", error) from None
        finally:
            if descriptor != STDIN:
                os.close(descriptor)
        return
    messages = [os.fsencode(word) for word in found.data] or [await _whole(found.file)]
    left = found.count
    while left:
        times = min(left, max(BATCH // len(messages), 1))
        left -= times
        for batch in _cut(messages * times):
            yield batch


def _cut(messages: list[bytes]) -> list[list[bytes]]:
    """The messages in batches of limited size."""
    batches: list[list[bytes]] = []
    room = 0
    for message in messages:
        if not batches or len(batches[-1]) >= BATCH or len(message) > room:
            batches.append([])
            room = BATCH_BYTES
        batches[-1].append(message)
        room -= len(message)
    return batches


async def _whole(file: str | None) -> bytes:
    if file in {None, "-"}:
        return b"".join([chunk async for chunk in chunks(STDIN)])
    try:
        return await asyncio.to_thread(Path(str(file)).read_bytes)
    except OSError as error:
        raise _unreadable(str(file), error) from None


def _descriptor(file: str | None) -> int:
    if file is None or file == "-":
        return STDIN
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: str, error: OSError) -> InvalidArgument:
    return InvalidArgument(f"cannot read the file {file!r}: {error.strerror}")
