"""The page of one message: where it is, its life in lanes, and its payload.

The event log is read from the message's publish time on, in slices outside of the event loop, one message at a time. The events
found are cached for a while: an open page only reads new ones.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import OrderedDict
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.broker import lookup
from penstock.broker.aio import AsyncBroker
from penstock.broker.history import LifeReader
from penstock.broker.log_view import BrokerLog
from penstock.durations import to_datetime
from penstock.errors import NotFound
from penstock.ids import message_id
from penstock.server.console.core.life import (
    Fold,
    Lane,
    LifeEvent,
    Verdict,
    Where,
    folds,
    lanes,
    life_events,
    ordered,
    verdict,
    where_of,
)
from penstock.server.console.requests import Caller, View
from penstock.server.console.streams import Kind, MessageDetail, Place, StreamPages
from penstock.values.subscription import Explanation
from penstock.values.wording import moment
from penstock.wire.results import TraceEvent

SLICE = 10_000
"""How many events are read before other tasks get their turn."""
STEP_SECONDS = 0.5
"""The time limit of one call."""
MAX_LIVES = 64
"""For how many messages events are cached."""


class ById(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message by the broker's id, or by the id in its body that a router uses."""

    id: Annotated[str, Meta(min_length=1, max_length=4_096)]


class Related(msgspec.Struct):
    """Another message, or another id of this one."""

    kind: str
    message_id: str
    text: str


class LogState(msgspec.Struct, kw_only=True):
    """How far the event log was read."""

    begins_at: datetime | None
    read_to_at: datetime | None
    progress: float
    is_complete: bool
    is_torn: bool


class MessagePage(msgspec.Struct, kw_only=True):
    """One message."""

    message_id: str
    is_known: bool
    verdict: Verdict
    message: MessageDetail | None
    lanes: list[Lane]
    events: list[LifeEvent]
    folds: list[Fold]
    related: list[Related]
    log: LogState
    command: str


class MessagePages:
    """The view for messages."""

    def __init__(self, aio: AsyncBroker, streams: StreamPages) -> None:
        self._aio, self._broker, self._streams = aio, aio.broker, streams
        self._log = BrokerLog(aio.broker)
        self._lives: OrderedDict[str, LifeReader] = OrderedDict()
        self._reading = asyncio.Lock()

    def views(self) -> list[View[Any]]:
        return [View("message", "/console/api/messages/{id}", "The life of a message", ById, self.message, MessagePage)]

    async def message(self, caller: Caller, asked: ById) -> MessagePage:
        """One message, as far as the log has been read."""
        operations = caller.operations
        await operations.list_queues()  # callers without any read permission are refused, as everywhere
        async with self._reading:
            life = await self._read(asked.id)
        place, begins = life.place, await self._aio.call(self._begins_at)
        stream = lookup.find_stream(self._broker, place[1]) if place is not None else None
        is_readable = operations.may_trace(place) and (stream is None or self._streams.project(stream.name) == caller.project)
        events = ordered(operations.trace_events(life.rows)) if is_readable else []
        stream = stream if is_readable else None
        stored = await self._streams.find(place[1], place[2]) if place is not None and stream is not None else None
        if stored is not None and place is not None and stored.publish_at != place[0]:
            stored = None  # the id is of another broker, and here another message is in that place
            events = []
        log = LogState(
            begins_at=begins,
            read_to_at=to_datetime(life.read_to) if life.read_to else begins,
            progress=round(life.progress, 3),
            is_complete=life.is_complete,
            is_torn=bool(events) and events[0].kind != "published" and place is not None,
        )
        command = f"penstock trace {shlex.quote(asked.id)}"  # an id may be any text: it is copied into a shell
        if not events and stored is None:
            return _unknown(asked.id, log, command)
        name = self._streams.plain(stream.name) if stream is not None else ""
        key = stored.key if stored is not None else ""
        places = await self._places(caller, events, place, name, is_queue=stream is not None and stream.kind == "queue")
        found = lanes(events, places, to_datetime(self._broker.clock.now()))
        rows = life_events(events, found)
        detail = None
        if stored is not None and place is not None and stream is not None:
            kind: Kind = "queue" if stream.kind == "queue" else "topic"
            detail = self._streams.detail(caller, Place(kind=kind, name=name, offset=place[2]), place[1], stored)
        return MessagePage(
            message_id=asked.id,
            is_known=True,
            verdict=verdict(found, events, key),
            message=detail,
            lanes=found,
            events=rows,
            folds=folds(rows),
            related=_related(asked.id, place, found, events, detail),
            log=log,
            command=command,
        )

    async def _read(self, name: str) -> LifeReader:
        await self._aio.durable()
        life = self._lives.pop(name, None)
        if life is None:
            life = await self._aio.call(LifeReader, self._broker.journal, name)
        self._lives[name] = life
        while len(self._lives) > MAX_LIVES:
            self._lives.popitem(last=False)
        stream_of, loop = self._log.names().stream_of, asyncio.get_running_loop()
        until = loop.time() + STEP_SECONDS
        while not life.is_complete and loop.time() < until:
            await self._aio.call(life.step, stream_of, SLICE)
        return life

    def _begins_at(self) -> datetime | None:
        earliest = self._broker.journal.event_range()[0]
        at = next((event.at for _, event in self._broker.journal.read_events(earliest, earliest + 1)), None)
        return None if at is None else to_datetime(at)

    async def _places(
        self, caller: Caller, events: list[TraceEvent], place: tuple[int, int, int] | None, name: str, *, is_queue: bool
    ) -> list[Where]:
        operations = caller.operations
        if place is None:
            return [Where("router", one, None) for one in dict.fromkeys(map(where_of, events)) if one is not None]
        ours = message_id(*place)
        if is_queue:
            return [Where("queue", name, await _none_if_gone(operations.explain_task(name, ours)))]
        try:
            names = [one.name for one in await operations.list_subscriptions(name)]
        except NotFound:
            names = []  # the topic was deleted
        names += [one for one in dict.fromkeys(map(where_of, events)) if one and one not in names]
        return [Where("subscription", one, await _none_if_gone(operations.explain(one, ours))) for one in names]


async def _none_if_gone(asked: Any) -> Explanation | None:
    try:
        found: Explanation | None = await asked
    except NotFound:
        return None
    return found


def _unknown(name: str, log: LogState, command: str) -> MessagePage:
    begins = f", which begins on {moment(log.begins_at)}" if log.begins_at is not None else ""
    text = f"Not in the event log{begins}" if log.is_complete else "Not found yet: the event log is being read"
    return MessagePage(
        message_id=name,
        is_known=False,
        verdict=Verdict("unknown", "warn", text),
        message=None,
        lanes=[],
        events=[],
        folds=[],
        related=[],
        log=log,
        command=command,
    )


def _related(
    name: str, place: tuple[int, int, int] | None, found: list[Lane], events: list[TraceEvent], detail: MessageDetail | None
) -> list[Related]:
    related = [Related("blocker", lane.by, f"must be settled first in {lane.name}") for lane in found if lane.by is not None]
    original = detail.attributes.get("penstock.source_message_id") if detail is not None else None
    if original:
        related.append(Related("original", original, "this is the dead letter of"))
    ours = message_id(*place) if place is not None else None
    if ours is not None and ours != name:
        related.append(Related("broker_id", ours, "as the broker knows it"))
    router = {one.detail["id"] for one in events if one.kind == "attempted" and one.detail.get("id", name) not in {name, ours}}
    related += [Related("router_id", one, "as the router knows it") for one in sorted(router)]
    return related
