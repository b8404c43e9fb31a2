"""Staged writes over HTTP: parts are uploaded, and a commit publishes them once.

A body is written to disk as it arrives, a mebibyte at a time; a slow client occupies a file, not a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from penstock.access import Verb
from penstock.broker.broker import Broker
from penstock.broker.log_view import BrokerLog, not_found
from penstock.errors import InvalidArgument, NotFound
from penstock.http.refusal import Refusal
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.log.log import Committed, Staged
from penstock.log.server import requests
from penstock.log.server.errors import log_route
from penstock.log.server.reading import ARROW, in_arrow
from penstock.log.server.scope import Scope
from penstock.log.staging import Upload, names
from penstock.log.writes import CommitResult, Writer, Writes
from penstock.values.descriptions import StreamDescription

P = ParamSpec("P")
T = TypeVar("T")

_Commit = tuple[str, str | None, int]
THREADS = 4
MAX_UPLOADS = 64
MAX_COMMITS = 16
PIECE = 1024 * 1024
PATIENCE_SECONDS = 20.0
"""If a commit takes longer than this, the caller is asked to repeat the call."""
_WRITE = Parameter("write", "The write.", requests.Word, "path")
_PART = Parameter("part", "The part.", requests.Word, "path")
_BINARY = {"type": "string", "format": "binary"}


class StagedWriteInfo(msgspec.Struct):
    """A write that waits for its commit (`staged`), or is being published (`publishing`)."""

    write: str
    state: str
    parts: int
    rows: int
    bytes: int
    age_seconds: float
    streams: list[str]


class WriteApi:
    """Answers the paths of writes. `scope` returns the caller of a request."""

    def __init__(self, writes: Writes, broker: Broker, scope: Callable[[Request], Scope]) -> None:
        self._writes = writes
        self._broker = broker
        self._whole = BrokerLog(broker)
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-staging")
        self._committing = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-commit")
        self._commits: dict[_Commit, asyncio.Future[CommitResult]] = {}
        """Running commits, by write, query and batch: a repeated call waits for the same one."""
        self.uploads = 0
        self.staged_rows = 0
        self.committed_rows = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._committing.shutdown(wait=False, cancel_futures=True)

    def routes(self) -> list[Route]:
        tags, project = ("log",), requests.PROJECT
        stream = Parameter("stream", "The stream of rows without one.", requests.Name)
        body = Body(
            _BINARY, "An Arrow IPC stream. Columns: value; optional key, attributes, priority, ttl, deliver_at, stream.", ARROW
        )
        staging = Operation(
            "Stage a part of a write",
            "Rows are checked as a publish is. A part that is staged again replaces the one before. One token stages all parts"
            " of a write.",
            tags,
            (_WRITE, _PART, stream, project),
            body,
            {200: Reply("The part is on disk.", Staged)},
        )
        committing = Operation(
            "Publish the parts of a write, once for each query and batch",
            "503 with the reason `write_in_progress`: it is still running, repeat the call.",
            tags,
            (_WRITE, project),
            Body(requests.CommitAsked),
            {200: Reply("All rows are published.", Committed)},
        )
        aborting = Operation("Abort a write", "", tags, (_WRITE, project), None, {200: Reply("Removed.", requests.Done)})
        listing = Operation("List staged writes", "", tags, (project,), None, {200: Reply("Writes.", list[StagedWriteInfo])})
        limit = self._writes.staging.limits.max_part_bytes
        return [
            log_route("PUT", "/log/writes/{write}/parts/{part}", self.stage, staging, max_bytes=limit),
            log_route("POST", "/log/writes/{write}/commit", self.commit, committing),
            log_route("DELETE", "/log/writes/{write}", self.abort, aborting),
            log_route("GET", "/log/writes", self.list, listing),
        ]

    async def stage(self, request: Request) -> web.StreamResponse:
        scope = self._scope(request)
        part, stream = requests.word(request, "part"), request.query.get("stream")
        if stream is not None:
            self._stream(scope, stream)
        scope.check(Verb.PUBLISH)
        if self.uploads >= MAX_UPLOADS:
            raise _busy(f"{self.uploads} uploads run already, which is the maximum of this server", "too_many_writes")
        self.uploads += 1
        try:
            upload = await self._call(self._writes.staging.upload, _name(scope, request), part, scope.principal.token_id)
            try:
                await self._take_in(request, upload)
                settle = partial(self._writes.settle, upload, partial(self._stream, scope), stream=stream)
                info = await in_arrow(partial(self._call, settle))
            finally:
                # Not here: after a disconnect, a thread may still be using it.
                try:
                    self._threads.submit(upload.close)
                except RuntimeError:  # the threads are ending
                    upload.close()
        finally:
            self.uploads -= 1
        self.staged_rows += info.rows
        return json_response(Staged(part, info.rows, info.bytes))

    async def commit(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.CommitAsked), self._scope(request)
        scope.check(Verb.PUBLISH)
        if fields.query is None and (fields.batch or fields.note):
            name, value = ("batch", fields.batch) if fields.batch else ("note", fields.note)
            raise InvalidArgument(f"{name} is {value!r} and query is missing, expected both or neither")
        write, query = _name(scope, request), None if fields.query is None else scope.stored(fields.query)
        self._check_streams(scope, write)
        running = self._commits.get((write, query, fields.batch))
        if running is None:
            if len(self._commits) >= MAX_COMMITS:
                raise _busy(f"{len(self._commits)} commits run already, which is the maximum of this server", "too_many_writes")
            find = partial(self._stream, scope)
            writer = Writer(scope.principal.token_id, partial(scope.may, Verb.PUBLISH))
            commit = partial(self._writes.commit, write, fields.parts, find=find, writer=writer, note=fields.note)
            running = self._loop.run_in_executor(self._committing, partial(commit, query=query, batch=fields.batch))
            self._commits[write, query, fields.batch] = running
            running.add_done_callback(partial(self._committed, (write, query, fields.batch)))
        stopping = asyncio.ensure_future(request.stopping.wait())
        try:
            # A disconnect does not end it: once it is decided, the server finishes it.
            either: set[asyncio.Future[Any]] = {running, stopping}
            await asyncio.wait(either, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if not running.done():
            raise _busy("the rows are being published, repeat the call", "write_in_progress")
        result = await in_arrow(partial(asyncio.shield, running))
        return json_response(Committed(*result))

    async def abort(self, request: Request) -> web.StreamResponse:
        scope = self._scope(request)
        scope.check(Verb.PUBLISH)
        write = _name(scope, request)
        self._check_streams(scope, write)
        await self._call(self._writes.abort, write)
        return json_response(requests.Done())

    async def list(self, request: Request) -> web.StreamResponse:
        """The staged writes of the project that the caller could have staged."""
        scope, now = self._scope(request), self._broker.clock.now()
        scope.check(Verb.PUBLISH)
        found = []
        for write, is_published in await self._call(self._writes.listed):
            name = scope.own(write.write)
            if name is not None and all(scope.may(Verb.PUBLISH, stream) for stream in write.streams):
                state, age = "publishing" if is_published else "staged", max(now - write.touched_at, 0) / 1_000_000
                found.append(StagedWriteInfo(name, state, write.parts, write.rows, write.bytes, age, write.streams))
        return json_response(found)

    def _stream(self, scope: Scope, name: str) -> StreamDescription:
        """The stream of a name, if the caller may publish to it."""
        stored = scope.stored_stream(Verb.PUBLISH, name)
        try:
            return self._whole.stream(stored)
        except NotFound:
            raise not_found(name) from None  # with the caller's name of it

    def _check_streams(self, scope: Scope, write: str) -> None:
        """Refuse callers that could not have staged it: a commit that is a repeat or has no parts also removes staged parts."""
        parts = self._writes.staging.parts(write)
        for stream in names(parts):
            scope.check_name(Verb.PUBLISH, stream)
        if not all(info.streams for info in parts.values()):
            self._writes.staging.check_owner(write, scope.principal.token_id)  # a part without rows names no stream

    async def _take_in(self, request: Request, upload: Upload) -> None:
        piece = bytearray()
        async for data in request.pieces():
            piece += data
            if len(piece) >= PIECE:
                await self._call(upload.write, piece)
                piece = bytearray()
        if piece:
            await self._call(upload.write, piece)

    def _committed(self, key: _Commit, done: asyncio.Future[CommitResult]) -> None:
        del self._commits[key]
        if not done.cancelled() and done.exception() is None and not done.result().is_repeat:
            self.committed_rows += done.result().rows

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._threads, partial(function, *args, **kwargs))


def _name(scope: Scope, request: Request) -> str:
    """The broker's name of the write in a request."""
    return scope.stored(requests.word(request, "write"))


def _busy(message: str, reason: str) -> Refusal:
    return Refusal(503, message, reason=reason, hint="try again soon", headers={"Retry-After": "1"})
