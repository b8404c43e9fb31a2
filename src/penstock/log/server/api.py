"""The log API: ranges of the log as Arrow, cursors, staged writes, planned batches and redrives, on the HTTP port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from aiohttp import web

from penstock.access import Action, Right, Verb
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker
from penstock.broker.consumer import PLAIN, DeliveryRules
from penstock.broker.log_view import BrokerLog, offsets_at, offsets_for, select, sizes_after
from penstock.durations import SECOND
from penstock.errors import AlreadyExists, InvalidArgument
from penstock.http.monitoring.samples import Metric, Sample
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Handler, Operation, Parameter, Reply, Route
from penstock.log.log import TOPIC, EventSpan, Spans
from penstock.log.place import Place, place_of
from penstock.log.server import requests
from penstock.log.server.cursors import CursorApi
from penstock.log.server.errors import log_route
from penstock.log.server.leasing import LeaseApi
from penstock.log.server.reading import ARROW, LogReads, dead_letter_rows, event_rows, in_arrow, message_rows
from penstock.log.server.redriving import RedriveApi
from penstock.log.server.scope import Scope
from penstock.log.server.writing import WriteApi
from penstock.log.writes import Writes
from penstock.values.projects import Projects

T = TypeVar("T")

TAGS = ("log",)
BINARY = {"type": "string", "format": "binary"}

_READS = Metric("penstock_log_reads", "gauge", "Reads of the log API that run.")
_REFUSED = Metric("penstock_log_reads_refused_total", "counter", "Reads that were refused because too many ran.")
_ROWS = Metric("penstock_log_read_rows_total", "counter", "Rows that the log API has sent.")
_BYTES = Metric("penstock_log_read_bytes_total", "counter", "Bytes of Arrow that the log API has sent.")
_STAGED = Metric("penstock_log_staged_bytes", "gauge", "Bytes that are staged and wait for their commit.")
_STAGED_ROWS = Metric("penstock_log_staged_rows_total", "counter", "Rows that were staged.")
_COMMITTED_ROWS = Metric("penstock_log_committed_rows_total", "counter", "Staged rows that were published.")
_HOLDING = Metric("penstock_log_holding_cursors", "gauge", "Cursors for which retention waits.")
_SILENT = Metric("penstock_log_holding_silent_seconds", "gauge", "Since when the most silent one of them was not set.")


class LogApi:
    """Answers the paths under `/log`. Make it inside the running loop."""

    def __init__(
        self,
        aio: AsyncBroker,
        projects: Projects,
        writes: Writes,
        rules: DeliveryRules = PLAIN,
        read_rate: int | None = None,
    ) -> None:
        self._aio = aio
        self._broker = aio.broker
        self._projects = projects
        self._whole = BrokerLog(aio.broker)
        self._reads = LogReads(read_rate)
        self._read_api = LogReadApi(self._reads, self._scope)
        self._cursors = CursorApi(aio, self._scope)
        self._writes = writes
        self._write_api = WriteApi(writes, aio.broker, self._scope)
        self._lease_api = LeaseApi(aio, rules, self._reads, self._scope)
        self._redrive_api = RedriveApi(aio.broker, self._scope)

    def close(self) -> None:
        """End its threads. Call it after the port is closed, which cuts running reads."""
        self._reads.close()
        self._write_api.close()
        self._lease_api.close()

    def collect(self) -> Iterator[Sample]:
        """The metrics of the API, for `/metrics`."""
        return samples(self._reads, self._write_api, self._writes, self._broker)

    def routes(self) -> list[Route]:
        return [
            *self._read_api.routes(),
            log_route("GET", "/log/place", self.place, _PLACE),
            log_route("PUT", "/log/streams/{stream}", self.create, _CREATION),
            *self._cursors.routes(),
            *self._write_api.routes(),
            *self._lease_api.routes(),
            *self._redrive_api.routes(),
        ]

    async def create(self, request: Request) -> web.StreamResponse:
        """Create a topic, unless it exists."""
        scope = self._scope(request)
        kind, name = scope.check_name(Verb.MANAGE, request.match_info["stream"])
        if kind != TOPIC:
            raise InvalidArgument.of("stream", request.match_info["stream"], "the name of a topic")
        try:
            await self._aio.call(self._broker.change, lambda catalog, now: catalog.create_topic(scope.stored(name), now))
        except AlreadyExists:
            return json_response(requests.Created(created=False))
        return json_response(requests.Created(created=True))

    async def place(self, request: Request) -> web.StreamResponse:
        """The data directory, only for callers that may read everything: reading its files is not restricted further."""
        from penstock.journal.sqlite import SqliteJournal  # noqa: PLC0415  # a log in memory needs no SQLite

        journal = self._broker.journal
        sees_all = self._scope(request).sees_all_events and request.principal.may_everywhere(Right.SEE)
        return json_response(place_of(journal.path) if sees_all and isinstance(journal, SqliteJournal) else Place())

    def _scope(self, request: Request, verb: Action = Verb.READ) -> Scope:
        return Scope(self._whole, self._projects, request.principal, request.query.get("project"), verb)


class LogReadApi:
    """Answers the paths that only read. `scope` returns the log as the caller of a request sees it.

    `is_remote`: lookups query a database, so they run in a thread.
    """

    def __init__(self, reads: LogReads, scope: Callable[..., Scope], *, is_remote: bool = False) -> None:
        self._reads = reads
        self._scope = scope
        self._is_remote = is_remote

    def routes(self) -> list[Route]:
        streams = _Question("Streams, and their ranges that can be read", requests.STREAMS, requests.StreamsAsked, _SPANS)
        messages = _Question("Messages of a range, as Arrow", requests.MESSAGES, requests.MessagesAsked, _ARROW)
        events = _Question("Events of a range, as Arrow", requests.EVENTS, requests.EventsAsked, _ARROW)
        letters = _Question("Dead letters of a range of the event log, as Arrow", requests.EVENTS, requests.EventsAsked, _ARROW)
        times = _Question("The first offset at or after a time", (), requests.TimesAsked, _OFFSETS)
        limits = _Question("How far a reader gets within a number of bytes", (), requests.LimitsAsked, _OFFSETS)
        sizes = _Question("The approximate number of bytes after an offset", (), requests.SizesAsked, _SIZES)
        return [
            *streams.both("/log/streams", self.streams),
            *messages.both("/log/messages", self.messages),
            *events.both("/log/events", self.events),
            *letters.both("/log/deadletters", self.dead_letters),
            times.posted("/log/offsets", self.offsets),
            limits.posted("/log/limits", self.limits),
            sizes.posted("/log/sizes", self.sizes),
        ]

    async def streams(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.StreamsAsked), self._scope(request)
        if fields.pattern is None:
            return json_response(await self._look(partial(_spans, scope, fields.names, None)))
        return json_response(await in_arrow(partial(self._reads.call, _spans, scope, fields.names, fields.pattern)))

    async def offsets(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.TimesAsked), self._scope(request)
        return json_response(requests.Offsets(await self._reads.call(offsets_at, scope, fields.times)))

    async def limits(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.LimitsAsked), self._scope(request)
        return json_response(requests.Offsets(await self._reads.call(offsets_for, scope, fields.starts, fields.max_bytes)))

    async def sizes(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.SizesAsked), self._scope(request)
        return json_response(requests.Sizes(await self._reads.call(sizes_after, scope, fields.starts)))

    async def messages(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.MessagesAsked), self._scope(request, Right.SEE)
        span = await self._look(partial(scope.span_for, Right.SEE, fields.stream, fields.number))
        return await self._reads.send(request, partial(message_rows, scope, span, fields), fields.compression)

    async def events(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.EventsAsked), self._scope(request)
        return await self._reads.send(request, partial(event_rows, scope, fields), fields.compression)

    async def dead_letters(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.EventsAsked), self._scope(request, Right.SEE)
        return await self._reads.send(request, partial(dead_letter_rows, scope, fields), fields.compression)

    async def _look(self, find: Callable[[], T]) -> T:
        return await self._reads.call(find) if self._is_remote else find()


def _spans(scope: Scope, names: list[str], pattern: str | None) -> Spans:
    """The named streams, those that match a pattern, or all that the caller may read."""
    return Spans(select(scope, names or None, pattern), EventSpan(*scope.event_range()))


_PLACE = Operation(
    "The data directory of the server",
    "For readers on that machine that may read everything; empty for others, and for a log in memory.",
    TAGS,
    (requests.PROJECT,),
    replies={200: Reply("The data directory, and a mark by which it is recognised.", Place)},
)
_CREATION = Operation(
    "Create a topic, unless it exists",
    "For jobs that write to their own topic; the Pub/Sub API has all settings of topics.",
    TAGS,
    (Parameter("stream", "The topic.", requests.Name, "path"), requests.PROJECT),
    replies={200: Reply("The topic exists.", requests.Created)},
)
_SPANS = Reply("The current ranges.", Spans)
_OFFSETS = Reply("An offset for each stream.", requests.Offsets)
_SIZES = Reply("A number of bytes for each stream.", requests.Sizes)
_ARROW = Reply("An Arrow IPC stream. It is complete only when the body ends properly.", BINARY, ARROW)


class _Question(NamedTuple):
    """The request and the answer of an operation, for GET and POST."""

    summary: str
    parameters: tuple[Parameter, ...]
    fields: type
    reply: Reply

    def both(self, path: str, handler: Handler) -> tuple[Route, Route]:
        """The routes for a GET with a query and, for long lists, a POST with a body."""
        parameters = (*self.parameters, requests.PROJECT)
        operation = Operation(self.summary, tags=TAGS, parameters=parameters, replies={200: self.reply})
        return log_route("GET", path, handler, operation), self.posted(path, handler)

    def posted(self, path: str, handler: Handler) -> Route:
        replies = {200: self.reply}
        operation = Operation(self.summary, tags=TAGS, parameters=(requests.PROJECT,), body=Body(self.fields), replies=replies)
        return log_route("POST", path, handler, operation)


def samples(reads: LogReads, write_api: WriteApi, writes: Writes, broker: Broker) -> Iterator[Sample]:
    yield Sample(_READS, (), reads.running)
    yield Sample(_REFUSED, (), reads.refused)
    yield Sample(_ROWS, (), reads.rows)
    yield Sample(_BYTES, (), reads.bytes)
    yield Sample(_STAGED, (), writes.staging.bytes)
    yield Sample(_STAGED_ROWS, (), write_api.staged_rows)
    yield Sample(_COMMITTED_ROWS, (), write_api.committed_rows)
    holding = broker.cursors.holding().values()
    yield Sample(_HOLDING, (), len(holding))
    yield Sample(_SILENT, (), max(broker.clock.now() - min(holding), 0) / SECOND if holding else 0)
