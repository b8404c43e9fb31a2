"""Reads: batches are made in threads and written as fast as the client reads them, with at most two in memory.

A read that fails after it has started ends with a cut connection, never with a proper end of the body, so that the client knows
that it is incomplete. Every batch has in its metadata (`next`) the offset at which to continue after it.
pyarrow is only imported in the threads that make the rows, so a server without Arrow requests does not load it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from aiohttp import web

from penstock.broker.log_view import check_range
from penstock.errors import ArrowUnavailable, InvalidArgument
from penstock.http.refusal import Refusal
from penstock.http.request import Request
from penstock.journal.core.outline import EVENTS, StreamSpan
from penstock.log.server.requests import EventsAsked, MessagesAsked
from penstock.log.server.scope import Scope

if TYPE_CHECKING:
    import pyarrow as pa

    Rows = Iterator[tuple[pa.RecordBatch, int]]
    """Batches, each with the offset from which to continue after it."""

P = ParamSpec("P")
T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"
MAX_READS = 64
THREADS = 2
"""Few, so that readers leave the interpreter to publishers most of the time."""
SMALL = 16 * 1024
"""Buffers below this are joined before they are written."""
NEXT = "next"
BATCH_BYTES = 8 * 1024 * 1024
"""A slow reader needs memory for two batches: the one being sent, and the next."""
PIECE_BYTES = 256 * 1024
"""The size of a write if readers share a rate."""
STRIDE = 1_000_000
"""A search that finds nothing for this many offsets sends an empty batch, so that the client sees progress."""


def message_rows(scope: Scope, span: StreamSpan, asked: MessagesAsked) -> tuple[pa.Schema, Rows]:
    from penstock.log import arrow  # noqa: PLC0415

    start, stop = _range(span.stream, asked.start, asked.stop, span.earliest, span.latest)
    schema = arrow.message_schema(asked.columns)
    if asked.keys is None:
        return schema, arrow.message_parts(scope, span, start, stop, columns=asked.columns, batch_bytes=BATCH_BYTES)
    search = partial(arrow.message_parts, scope, span, columns=asked.columns, keys=asked.keys, batch_bytes=BATCH_BYTES)
    return schema, _strides(schema, search, start, stop)


def event_rows(scope: Scope, asked: EventsAsked) -> tuple[pa.Schema, Rows]:
    from penstock.log import arrow  # noqa: PLC0415

    streams, start, stop = _events(scope, asked)
    return arrow.EVENTS, _strides(arrow.EVENTS, partial(arrow.event_parts, scope, streams=streams), start, stop)


def dead_letter_rows(scope: Scope, asked: EventsAsked) -> tuple[pa.Schema, Rows]:
    from penstock.log import arrow  # noqa: PLC0415

    streams, start, stop = _events(scope, asked)
    return arrow.DEAD_LETTERS, _strides(arrow.DEAD_LETTERS, partial(arrow.dead_letter_parts, scope, streams=streams), start, stop)


def _events(scope: Scope, asked: EventsAsked) -> tuple[Mapping[int, str] | None, int, int]:
    """(streams, start, stop) of a request for the event log; None for all streams."""
    scope.check(scope.verb)
    for name in asked.streams:
        scope.check_name(scope.verb, name)
    scope.sync()
    start, stop = _range(EVENTS, asked.start, asked.stop, *scope.event_range())
    if asked.streams:
        return scope.names().numbers(asked.streams), start, stop
    return None if scope.sees_all_events else scope.names().streams, start, stop


def _range(name: str, start: int | None, stop: int | None, earliest: int, latest: int) -> tuple[int, int]:
    """The requested range. OutOfRange if the log does not have all of it."""
    if start is not None and stop is not None and start > stop:
        raise InvalidArgument.of("start", start, f"at most stop, which is {stop}")
    start, stop = earliest if start is None else start, latest if stop is None else stop
    check_range(name, start, stop, earliest, latest)
    return start, stop


def _strides(schema: pa.Schema, search: Callable[[int, int], Rows], start: int, stop: int) -> Rows:
    """Search a long range in pieces. A piece without results at its end is followed by an empty batch."""
    for first in range(start, stop, STRIDE):
        last = min(first + STRIDE, stop)
        at = first
        for batch, at in search(first, last):
            yield batch, at
        if at < last < stop:
            yield _empty(schema), last


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415

    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


def has_arrow() -> bool:
    """Whether pyarrow is installed. The log API needs it; it is an extra, which most servers do not need."""
    return find_spec("pyarrow") is not None


async def in_arrow(call: Callable[[], Awaitable[T]]) -> T:
    """Run a call that needs pyarrow; ArrowUnavailable, with a hint how to install it, if it is missing."""
    try:
        return await call()
    except ImportError as error:
        if error.name is not None and not error.name.startswith("pyarrow"):
            raise
        raise ArrowUnavailable("pyarrow is not installed there" if not has_arrow() else str(error)) from error


class LogReads:
    """All reads of the API, their threads and their limit."""

    def __init__(self, rate: int | None = None) -> None:
        """Start the threads. `rate` is the limit of all reads together, in bytes a second; None for no limit."""
        self._rate = rate
        self._free_at = 0.0
        """When the next bytes may be sent at this rate."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-log")
        self._loop = asyncio.get_running_loop()
        self.running = 0
        self.rows = 0
        self.bytes = 0
        self.refused = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def send(self, request: Request, source: Callable[[], tuple[pa.Schema, Rows]], compression: str) -> web.StreamResponse:
        """Answer with an Arrow IPC stream of the rows of `source`, which is called in a thread."""
        if self.running >= MAX_READS:
            self.refused += 1
            raise Refusal(
                503,
                f"{self.running} reads run already, which is the maximum of this server",
                reason="too_many_reads",
                hint="try again soon, or read with fewer tasks at once",
                headers={"Retry-After": "1"},
            )
        self.running += 1
        read = _Read(source, compression)
        try:
            return await in_arrow(partial(self._send, request, read))
        finally:
            # A thread waits for a batch that is being made, not this task: a disconnected client must free its place soon.
            try:
                self._threads.submit(read.close).add_done_callback(self._ended)
            except RuntimeError:  # the threads are ending
                read.close()
                self.running -= 1

    async def _send(self, request: Request, read: _Read) -> web.StreamResponse:
        # Errors at the start occur with the first batch, while they can still be reported.
        ahead = self._ahead(read)
        buffers = await asyncio.wrap_future(ahead)
        response = web.StreamResponse(headers={"Content-Type": ARROW, "X-Request-Id": request.request_id, "Server": "penstock"})
        response.enable_chunked_encoding()
        if request.method == "HEAD":
            return response
        await response.prepare(request)
        request.writer.send_headers()
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        stopping = asyncio.ensure_future(request.stopping.wait())
        stopping.add_done_callback(lambda done: None if done.cancelled() else transport.abort())
        try:
            while buffers:
                ahead = self._ahead(read)
                for piece in _pieces(buffers) if self._rate else (buffers,):
                    await self._wait_for_turn(piece)
                    self._write(transport, piece)
                    await request.writer.drain()
                buffers = []
                buffers = await asyncio.wrap_future(ahead)
            await response.write_eof()
        except BaseException:
            ahead.cancel()
            transport.abort()
            raise
        finally:
            stopping.cancel()
            self.rows += read.rows
        return response

    async def _wait_for_turn(self, buffers: list[Any]) -> None:
        if self._rate:
            now = self._loop.time()
            due = max(self._free_at, now)
            self._free_at = due + sum(map(len, buffers)) / self._rate
            await asyncio.sleep(due - now)

    def _ahead(self, read: _Read) -> Future[list[Any]]:
        return self._threads.submit(read.next)

    def _write(self, transport: asyncio.Transport, buffers: list[Any]) -> None:
        """Write one HTTP chunk of these buffers without copying them: aiohttp would join them."""
        size = sum(map(len, buffers))
        self.bytes += size
        transport.writelines([b"%x\r\n" % size, *buffers, b"\r\n"])

    def _ended(self, _: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so the count does not matter
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self.running -= 1


def _pieces(buffers: list[Any]) -> Iterator[list[Any]]:
    """The same bytes in small pieces, so that readers alternate in short turns."""
    for buffer in buffers:
        for first in range(0, len(buffer), PIECE_BYTES):
            yield [buffer[first : first + PIECE_BYTES]]


class _Read:
    """One read: makes batches as bytes, in the threads, until the end."""

    def __init__(self, source: Callable[[], tuple[pa.Schema, Rows]], compression: str) -> None:
        self._source = source
        self._compression = compression
        self._lock = threading.Lock()
        self._rows: Rows | None = None
        self._writer: Any = None  # pyarrow's, which is not typed
        self._sink = _Sink()
        self._is_over = False
        self.rows = 0

    def next(self) -> list[Any]:
        """The buffers of the next piece of the body; empty if it is complete."""
        with self._lock:
            if self._is_over:
                return []
            if self._writer is None:
                self._begin()
            assert self._rows is not None, "it has started"
            found = next(self._rows, None)
            if found is None:
                self._is_over = True
                self._writer.close()
            else:
                batch, going_on = found
                self.rows += batch.num_rows
                self._writer.write_batch(batch, custom_metadata={NEXT: str(going_on)})
            return self._sink.taken()

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            if self._rows is not None and hasattr(self._rows, "close"):
                self._rows.close()

    def _begin(self) -> None:
        import pyarrow as pa  # noqa: PLC0415  # an extra, and a server starts faster without it

        schema, self._rows = self._source()
        options = pa.ipc.IpcWriteOptions(compression=None if self._compression == "none" else self._compression)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema, options=options)


class _Sink:
    """A file that collects what is written to it: Arrow's own buffers, not copies of them."""

    closed = False

    def __init__(self) -> None:
        self._buffers: list[Any] = []
        self._small: list[bytes] = []

    def write(self, data: Any) -> int:
        size = len(data)
        if size < SMALL:
            self._small.append(bytes(data))
        else:
            self._join()
            self._buffers.append(memoryview(data))
        return size

    def flush(self) -> None:
        """Do nothing: there is no buffering."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def taken(self) -> list[Any]:
        self._join()
        buffers, self._buffers = self._buffers, []
        return buffers

    def _join(self) -> None:
        if self._small:
            self._buffers.append(b"".join(self._small))
            self._small = []
