"""The page of a stream: its messages by offset, time, key and text; a single message; publishing; and a live tail."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.access import Right, Verb
from penstock.broker import backlog
from penstock.broker.aio import AsyncBroker
from penstock.broker.browse import browse
from penstock.broker.catalog import Catalog
from penstock.broker.log_view import BrokerLog, offsets_at
from penstock.durations import instant, to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument, OutOfRange, QueueNotFound, TopicNotFound
from penstock.http.request import Request
from penstock.http.routes import Operation, Reply, Route
from penstock.ids import message_id
from penstock.journal.core.outline import StreamSpan, stream_name
from penstock.server.console.payloads import Payload, Payloads, Visibility, payload, preview
from penstock.server.console.requests import (
    TAGS,
    Action,
    Caller,
    CallerOf,
    Limit,
    Name,
    Offset,
    Text,
    View,
    project_of,
    read_time,
)
from penstock.values.message import DEFAULT_PRIORITY, Message, StoredMessage
from penstock.values.projects import Projects
from penstock.values.queue import NewMessage

STEP_BYTES = 64 * 1024 * 1024
"""How many bytes a search reads before it returns."""
MAX_PUBLISHED = 11 * 1024 * 1024
TAIL_ROWS = 5
MAX_TAILS = 256

Kind = Literal["topic", "queue"]


class Browsing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query for messages of a stream."""

    kind: Kind
    name: Name
    direction: Literal["older", "newer"] = "older"
    offset: Offset | None = None
    time: Text = ""
    key: Text = ""
    text: Annotated[str, Meta(max_length=1_000)] = ""
    limit: Limit = 50


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place of a message in a stream."""

    kind: Kind
    name: Name
    offset: Offset


class Tailing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query for the end of a stream."""

    kind: Kind
    name: Name


class Peeking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query for the next messages to deliver."""

    name: Name
    limit: Annotated[int, Meta(ge=1, le=50)] = 10


class MessageLine(msgspec.Struct, kw_only=True):
    """A message as a row."""

    offset: int
    message_id: str
    published_at: datetime
    key: str
    size: int
    priority: int
    attributes: int
    preview: str | None
    is_text: bool


class MessageDetail(msgspec.Struct, kw_only=True):
    """A message."""

    kind: Kind
    name: str
    offset: int
    message_id: str
    published_at: datetime
    key: str
    priority: int
    size: int
    attributes: dict[str, str]
    payload: Payload


class Searched(msgspec.Struct, kw_only=True):
    """How far a step of a search got."""

    messages: int
    bytes: int
    to_offset: int | None
    to_at: datetime | None


class MessageListing(msgspec.Struct, kw_only=True):
    """Messages of a stream, and where to continue."""

    kind: Kind
    name: str
    earliest: int
    latest: int
    payloads: Visibility
    rows: list[MessageLine]
    next: int | None
    is_end: bool
    searched: Searched


class TailReply(msgspec.Struct, kw_only=True, rename={"from_": "from"}):
    """Messages since the last call: offsets from `from` up to `to`, the newest of them, and how many are left out."""

    from_: int
    to: int
    skipped: int
    rows: list[MessageLine]


class Peeked(msgspec.Struct):
    """The next messages to deliver, in order. Nothing is leased."""

    messages: list[MessageDetail]


class Publishing(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message: one of `text`, `json` and `base64`; a key for a topic, a delay for a queue."""

    text: str | None = None
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base64: str | None = None
    attributes: dict[str, str] = {}
    key: str = ""
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=366 * 86_400)] = 0


class PublishedReply(msgspec.Struct):
    """The id of the message."""

    message_id: str


class StreamPages:
    """Views and actions for streams."""

    def __init__(self, aio: AsyncBroker, projects: Projects, payloads: Payloads) -> None:
        self._aio, self._broker, self._projects, self._payloads = aio, aio.broker, projects, payloads
        self._log = BrokerLog(aio.broker)
        self._searching = asyncio.Lock()
        self._tails: OrderedDict[tuple[Any, ...], int] = OrderedDict()

    def views(self) -> list[View[Any]]:
        path = "/console/api/streams/{kind}/{name}"
        return [
            View("messages", f"{path}/messages", "Messages of a stream", Browsing, self.messages, MessageListing),
            View("stored", f"{path}/messages/{{offset}}", "A message of a stream", Place, self.message, MessageDetail),
            View("tail", f"{path}/tail", "The end of a stream", Tailing, self.tail, TailReply),
            View("peek_queue", "/console/api/queues/{name}/peek", "Next of a queue", Peeking, self.peek_queue, Peeked),
            View("peek", "/console/api/subscriptions/{name}/peek", "Next of a subscription", Peeking, self.peek, Peeked),
        ]

    def actions(self) -> list[Action[Any]]:
        path, verb = "/console/api/streams/{kind}/{name}/publish", Verb.PUBLISH
        return [Action(path, "Publish a message", Publishing, self.publish, PublishedReply, verb, MAX_PUBLISHED)]

    def download(self, caller_of: CallerOf) -> Route:
        """The route that downloads a payload."""

        async def handle(request: Request) -> web.StreamResponse:
            caller = caller_of(request.principal, project_of(request))
            given = request.match_info
            try:
                place = msgspec.convert(given, Place, strict=False)
            except msgspec.ValidationError as error:
                raise InvalidArgument(f"the path is not that of a message: {error}") from None
            span = self._span(caller, place.kind, place.name)
            if self._payloads.check(caller, place.name, place.kind) != "shown":
                raise FailedPrecondition("payloads are hidden", hint="console_payloads is `hidden` in the settings of the server")
            found = await self._stored(span, place)
            name = message_id(found.publish_at, span.number, place.offset)
            headers = {
                "Content-Disposition": f'attachment; filename="{name}.bin"',
                "X-Content-Type-Options": "nosniff",
                "Content-Security-Policy": "default-src 'none'; sandbox",
            }
            return web.Response(body=bytes(found.data), content_type="application/octet-stream", headers=headers)

        reply = Reply("The payload.", {"type": "string", "format": "binary"}, "application/octet-stream")
        operation = Operation("The payload of a message", "", TAGS, replies={200: reply})
        return Route("GET", "/console/api/streams/{kind}/{name}/messages/{offset}/raw", handle, operation, verb=Verb.READ)

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def messages(self, caller: Caller, asked: Browsing) -> MessageListing:
        """Messages by offset, time, key or text."""
        span = self._span(caller, asked.kind, asked.name)
        state = self._payloads.visibility(caller, asked.name)
        if asked.text:
            self._payloads.check(caller, asked.name, asked.kind)
            if state != "shown":
                raise FailedPrecondition("payloads are hidden", hint="console_payloads is `hidden` in the settings of the server")
        start, stop = span.earliest, span.latest
        newest_first = asked.direction == "older"
        at = asked.offset
        if at is None and asked.time:
            moment = instant(read_time(asked.time), "time")
            at = (await self._aio.call(offsets_at, self._log, {span.stream: moment}))[span.stream]
        if at is not None:
            start, stop = (start, min(at, stop)) if newest_first else (max(at, start), stop)
        async with self._searching:  # one search at a time reads the disk
            step = await self._aio.call(
                browse,
                self._broker.journal,
                span.number,
                start,
                max(stop, start),
                newest_first=newest_first,
                most=asked.limit,
                max_bytes=STEP_BYTES,
                matches=_matching(asked.key, asked.text),
            )
        following = None if step.is_end or step.to is None else step.to if newest_first else step.to + 1
        return MessageListing(
            kind=asked.kind,
            name=asked.name,
            earliest=span.earliest,
            latest=span.latest,
            payloads=state,
            rows=[_line(span, offset, message, state) for offset, message in step.found],
            next=following,
            is_end=following is None,
            searched=Searched(
                messages=step.messages,
                bytes=step.size,
                to_offset=step.to,
                to_at=None if step.to_at is None else to_datetime(step.to_at),
            ),
        )

    async def message(self, caller: Caller, asked: Place) -> MessageDetail:
        """One message."""
        span = self._span(caller, asked.kind, asked.name)
        return self.detail(caller, asked, span.number, await self._stored(span, asked))

    async def tail(self, caller: Caller, asked: Tailing) -> TailReply:
        """Messages since the last call."""
        span = self._span(caller, asked.kind, asked.name)
        key = (caller.scope, asked)
        since = min(max(self._tails.pop(key, span.latest), span.earliest), span.latest)
        self._tails[key] = span.latest
        while len(self._tails) > MAX_TAILS:
            self._tails.popitem(last=False)
        step = await self._aio.call(
            browse,
            self._broker.journal,
            span.number,
            max(since, span.latest - TAIL_ROWS),
            span.latest,
            newest_first=True,
            most=TAIL_ROWS,
            max_bytes=STEP_BYTES,
        )
        state = self._payloads.visibility(caller, asked.name)
        rows = [_line(span, offset, message, state) for offset, message in step.found]
        return TailReply(from_=since, to=span.latest, skipped=span.latest - since - len(rows), rows=rows)

    async def peek_queue(self, caller: Caller, asked: Peeking) -> Peeked:
        """The messages that would be consumed next."""
        return await self._peek(caller, asked, "queue", Catalog.work_queue)

    async def peek(self, caller: Caller, asked: Peeking) -> Peeked:
        """The messages that would be pulled next."""
        return await self._peek(caller, asked, "subscription", Catalog.subscription)

    def detail(self, caller: Caller, place: Place, number: int, message: StoredMessage) -> MessageDetail:
        """A message of a stream, as far as the caller may see it."""
        state = self._payloads.visibility(caller, place.name)
        return MessageDetail(
            kind=place.kind,
            name=place.name,
            offset=place.offset,
            message_id=message_id(message.publish_at, number, place.offset),
            published_at=to_datetime(message.publish_at),
            key=message.key,
            priority=message.priority,
            size=message.size,
            attributes=self._payloads.attributes(caller, place.name, message),
            payload=payload(message, state),
        )

    def plain(self, scoped: str) -> str:
        """The name of a stream without its project."""
        return self._projects.split(scoped)[1]

    def project(self, scoped: str) -> str:
        """The project of a stream."""
        return self._projects.split(scoped)[0]

    async def find(self, number: int, offset: int) -> StoredMessage | None:
        """The message at a place; None if the log does not have it."""
        step = await self._aio.call(
            browse, self._broker.journal, number, offset, offset + 1, newest_first=False, most=1, max_bytes=STEP_BYTES
        )
        return step.found[0][1] if step.found else None

    # ── actions ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(self, caller: Caller, path: dict[str, str], body: Publishing) -> PublishedReply:
        """Publish one message."""
        name = path["name"]
        given = [body.text is not None, body.json is not msgspec.UNSET, body.base64 is not None]
        if sum(given) != 1:
            raise InvalidArgument("the message has no payload, or several: expected one of text, json and base64")
        if path["kind"] == "topic":
            if body.delay_seconds:
                raise InvalidArgument.of("delay_seconds", body.delay_seconds, "0: messages of a topic are not delayed")
            message = Message(
                _bytes(body), body.attributes, body.key, DEFAULT_PRIORITY if body.priority is None else body.priority
            )
            [found] = await caller.operations.publish(name, [message])
        elif path["kind"] == "queue":
            if body.key:
                raise InvalidArgument.of("key", body.key, "none: a work queue has no ordering keys")
            new = NewMessage(_task(body), body.priority, headers=body.attributes or None, delay=body.delay_seconds or None)
            [found] = await caller.operations.enqueue(name, [new])
        else:
            raise InvalidArgument.of("kind", path["kind"], "topic or queue")
        return PublishedReply(found)

    # ── internal──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _span(self, caller: Caller, kind: Kind, name: str) -> StreamSpan:
        caller.principal.check(Verb.READ, caller.project, name, kind=kind)
        scoped = caller.operations.queues.scoped(caller.project, name, kind)
        try:
            return self._log.span(stream_name(kind, scoped))
        except (TopicNotFound, QueueNotFound):
            raise TopicNotFound(name) if kind == "topic" else QueueNotFound(name) from None

    async def _stored(self, span: StreamSpan, place: Place) -> StoredMessage:
        found = await self.find(span.number, place.offset)
        if found is None:
            raise OutOfRange(span.stream, place.offset, span.earliest, span.latest)
        return found

    async def _peek(self, caller: Caller, asked: Peeking, kind: str, find: Callable[[Catalog, str], Any]) -> Peeked:
        caller.principal.check(Right.SEE, caller.project, asked.name, kind=kind)
        scoped = caller.operations.queues.scoped(caller.project, asked.name, kind)
        queue, waiting = await self._aio.call(backlog.upcoming, self._broker, find, scoped, asked.limit, STEP_BYTES)
        shown: Kind = "queue" if kind == "queue" else "topic"
        places = [(Place(kind=shown, name=asked.name, offset=one.offset), one.message) for one in waiting]
        return Peeked([self.detail(caller, place, queue.stream, message) for place, message in places])


def _line(span: StreamSpan, offset: int, message: StoredMessage, state: Visibility) -> MessageLine:
    text = preview(message) if state == "shown" else None
    return MessageLine(
        offset=offset,
        message_id=message_id(message.publish_at, span.number, offset),
        published_at=to_datetime(message.publish_at),
        key=message.key,
        size=message.size,
        priority=message.priority,
        attributes=len(message.attributes or {}),
        preview=text,
        is_text=text is not None,
    )


def _matching(key: str, text: str) -> Callable[[StoredMessage], bool] | None:
    """The condition of a search. ASCII letters match in any case; bytes are compared, so that nothing is decoded."""
    wanted = text.encode(errors="surrogatepass").lower()
    if not key and not wanted:
        return None
    return lambda message: (not key or message.key == key) and (not wanted or wanted in bytes(message.data).lower())


def _bytes(body: Publishing) -> bytes:
    if body.text is not None:
        return body.text.encode()
    if body.base64 is None:
        return bytes(body.json)  # type: ignore[arg-type]  # one of the three is given
    try:
        return base64.b64decode(body.base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("base64 is not base64: expected letters, digits, + / and =") from None


def _task(body: Publishing) -> Any:
    if body.text is not None:
        return body.text
    return _bytes(body) if body.base64 is not None else msgspec.json.decode(bytes(body.json))  # type: ignore[arg-type]  # as above
