"""Request bodies: a limit for the memory of all of them together, and the decompression of compressed ones.

A body takes its share as it grows, so a length that is only announced costs nothing. If there is no room, a body waits. The
first of the waiting bodies is the *favourite*: it may exceed the shared room, by one body at most, so there is always one body
that can be completed. The first `FREE_BYTES` of a body are not counted, so that large bodies never delay small ones.

A few kilobytes may decompress to gigabytes. So nothing is decompressed before the caller is authenticated and a handler reads
the body, and each step takes a fraction of a millisecond. The reader checks after each step whether the body is too large.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Iterator

from aiohttp import web

from penstock.http.limits import HttpLimits
from penstock.http.refusal import Refusal, retry_after

FREE_BYTES = 16 * 1024
MAX_WAITING = 256
"""Bodies that wait for room, with their data in the buffers of their connections. A further one is refused at once."""

CODINGS = ("gzip", "deflate")
STEP_BYTES = 64 * 1024
"""The maximum that one step decompresses."""
MAX_MEMBERS = 1024
"""The maximum number of gzip members of one body: each has a cost, even an empty one."""
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's numbers for the format around the compressed data
_DEFLATE = 8  # the method in the first byte of the zlib format


class BodyBudget:
    """The room that all bodies share: `max_bodies_bytes`, of which the size of one body is reserved for the favourite."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.held = 0
        self._shared = max(limits.max_bodies_bytes - limits.max_request_bytes, 0)
        self._favourite: BodyShare | None = None
        self._favour = 0
        """Bytes that the favourite took beyond the shared room."""
        self._waiting: deque[tuple[BodyShare, int, asyncio.Future[None]]] = deque()

    @property
    def is_short(self) -> bool:
        return bool(self._waiting)

    async def take(self, share: BodyShare, size: int) -> None:
        """Let a body hold `size` bytes more; 503 if there is no room within `body_wait_seconds`."""
        if (not self._waiting or share is self._favourite) and self._give(share, size):
            return
        if len(self._waiting) >= MAX_WAITING:
            raise _no_room()
        given = asyncio.get_running_loop().create_future()
        entry = (share, size, given)
        self._waiting.append(entry)
        share.is_waiting = True
        try:
            async with asyncio.timeout(self.limits.body_wait_seconds):
                await given
        except TimeoutError:
            raise _no_room() from None
        finally:
            share.is_waiting = False
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._wake()

    def release(self, share: BodyShare) -> None:
        self.held -= share.held
        share.held = 0
        if self._favourite is share:
            self._favourite, self._favour = None, 0
        self._wake()

    def _give(self, share: BodyShare, size: int) -> bool:
        if share is self._favourite or self.held - self._favour + size > self._shared:
            if self._favourite not in {None, share}:
                return False
            self._favourite = share
            self._favour += size
        self.held += size
        share.held += size
        return True

    def _wake(self) -> None:
        while self._waiting:
            share, size, given = self._waiting[0]
            if not given.done():
                if not self._give(share, size):
                    return
                given.set_result(None)
            self._waiting.popleft()


class BodyShare:
    """One body's share of the budget."""

    __slots__ = ("_budget", "_seen", "_seen_at", "held", "is_waiting")

    def __init__(self, budget: BodyBudget, now: float) -> None:
        self._budget = budget
        self.held = 0
        self.is_waiting = False
        self._seen, self._seen_at = 0, now

    async def grow_to(self, size: int) -> None:
        """Return when the body may hold `size` bytes in all."""
        wanted = size - FREE_BYTES - self.held
        if wanted > 0:
            await self._budget.take(self, wanted)

    def release(self) -> None:
        """Return the share to the budget. It may be called more than once."""
        self._budget.release(self)

    def is_stalled(self, now: float) -> bool:
        """Whether others wait for room while this body hardly grows. Call it regularly while the body is incomplete."""
        limits, elapsed = self._budget.limits, now - self._seen_at
        if self.is_waiting or self.held - self._seen >= limits.min_body_rate * max(elapsed, 1.0):
            self._seen, self._seen_at = self.held, now
            return False
        return self.held > 0 and self._budget.is_short and elapsed > limits.body_stall_seconds


def _no_room() -> Refusal:
    return Refusal(
        503,
        "the server holds too many large request bodies",
        reason="bodies_exhausted",
        hint="try again soon, or send smaller batches",
        headers={"Retry-After": retry_after(1)},
        closes=True,
    )


class Unpacker:
    """Decompresses one body with a Content-Encoding of `CODINGS`. Pass the data to `steps`, and call `finish` at its end."""

    def __init__(self, coding: str) -> None:
        if coding not in CODINGS:
            raise Refusal(
                415,
                f"the body's Content-Encoding is {coding[:40]!r}, expected {' or '.join(CODINGS)}",
                reason="unsupported_encoding",
                hint="send the body without compression, or with gzip",
                headers={"Accept-Encoding": ", ".join(CODINGS)},
                closes=True,
            )
        self._is_gzip = coding == "gzip"
        self._inflater: zlib._Decompress | None = None
        self._members = 0

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Decompress data: each step of the iterator yields at most STEP_BYTES, or nothing."""
        has_more = bool(data)
        while has_more:
            inflater = self._inflater or self._next_member(data)
            try:
                piece = inflater.decompress(data, STEP_BYTES)
            except zlib.error:
                raise web.RequestPayloadError("the compressed body is broken") from None
            if inflater.eof:
                self._inflater, data = None, inflater.unused_data
                has_more = bool(data)
            else:
                self._inflater, data = inflater, inflater.unconsumed_tail
                has_more = bool(data) or len(piece) == STEP_BYTES  # a full step may have left some inside
            yield piece

    def finish(self) -> None:
        """Raise if the body ended too early."""
        if self._inflater is not None:
            raise web.RequestPayloadError("the compressed body is cut short")

    def _next_member(self, data: bytes) -> zlib._Decompress:
        self._members += 1
        if self._members > (MAX_MEMBERS if self._is_gzip else 1):
            raise web.RequestPayloadError("the compressed body has too many parts")
        if self._is_gzip:
            return zlib.decompressobj(_GZIP)
        # Some clients leave out the zlib format that the standard requires around deflated data.
        return zlib.decompressobj(_ZLIB if data[0] & 0xF == _DEFLATE else _RAW)
