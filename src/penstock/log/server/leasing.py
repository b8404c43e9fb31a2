"""Planned batches over HTTP: leases for a program that delivers messages itself, and their settlement, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from aiohttp import web

from penstock.access import Verb
from penstock.api.dead_letter_queues import PREFIX, DeadLetterQueues
from penstock.broker.aio import AsyncBroker
from penstock.broker.batches import SLICE
from penstock.broker.consumer import DeliveryRules
from penstock.broker.settlement import ACK, dead_letter, give_back, nack
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.ids import message_id
from penstock.log.leased_batches import Carried, LeasedBatches, Planned, PlannedMessage, Settlement, Source
from penstock.log.log import QUEUE, Leases, SettledBatch
from penstock.log.server import requests
from penstock.log.server.errors import log_route
from penstock.log.server.reading import ARROW, LogReads
from penstock.log.server.scope import Scope
from penstock.log.writes import Writer
from penstock.values.lease import Lease
from penstock.values.message import check_name, plain_text

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.log.server.reading import Rows

P = ParamSpec("P")
T = TypeVar("T")

SUBSCRIPTION = "subscription"
THREADS = 2
MAX_BODY = 256 * 1024 * 1024
MAX_NAME = 200
BATCH_ROWS = 8_192
BATCH_BYTES = 8 * 1024 * 1024
_QUERY = Parameter("query", "The query: the name of a program, which continues where it stopped.", requests.Word, "path")
_TAGS = ("log",)


class LeaseApi:
    """Answers the paths of planned batches. `scope` returns the caller of a request."""

    def __init__(self, aio: AsyncBroker, rules: DeliveryRules, reads: LogReads, scope: Callable[[Request], Scope]) -> None:
        self._broker = broker = aio.broker
        self._letters = DeadLetterQueues(aio)
        self._batches = LeasedBatches(broker, rules)
        self._reads = reads
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-leases")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def routes(self) -> list[Route]:
        path = "/log/leases/{query}"
        operations = [
            (path, self.plan, "Lease a batch: the unsettled one, or the next", requests.LeasesAsked, Leases),
            (f"{path}/extend", self.extend, "Extend the leases of a batch", requests.ExtensionAsked, requests.Held),
            (f"{path}/settle", self.settle, "Settle a batch, once", requests.SettlementAsked, SettledBatch),
            (f"{path}/release", self.release, "Requeue all messages that a query has leased", requests.Released, requests.Held),
        ]
        named = (_QUERY, requests.PROJECT)
        reading = Operation(
            "Messages of a batch, as Arrow",
            "",
            _TAGS,
            named,
            Body(requests.LeasedMessagesAsked),
            {200: Reply("An Arrow IPC stream.", {"type": "string", "format": "binary"}, ARROW)},
        )
        return [
            *(
                log_route(
                    "POST",
                    where,
                    handler,
                    Operation(text, "", _TAGS, named, Body(asked), {200: Reply("", answer)}),
                    max_bytes=MAX_BODY,
                )
                for where, handler, text, asked, answer in operations
            ),
            log_route("POST", f"{path}/messages", self.messages, reading),
        ]

    async def plan(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.LeasesAsked), self._scope(request)
        source = source_of(scope, Verb.CONSUME, fields.source)
        planned = await self._call(
            self._batches.plan,
            _name(scope, request),
            source,
            rows=fields.rows,
            max_bytes=fields.max_bytes,
            hold_for=int(fields.seconds * SECOND),
            batch=fields.batch,
            caller=caller_of(scope, Verb.CONSUME),
        )
        return json_response(_leases(planned, fields, self._broker.clock.now()))

    async def messages(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.LeasedMessagesAsked), self._scope(request)
        scope.check(Verb.CONSUME)
        query = _name(scope, request)
        caller = caller_of(scope, Verb.CONSUME)

        def source() -> tuple[pa.Schema, Rows]:
            from penstock.log import arrow  # noqa: PLC0415  # pyarrow is an extra

            found = self._batches.messages(query, fields.batch, fields.start, fields.stop, caller=caller)
            return arrow.LEASED, _parts(found, self._batches.source(query)[1], self._broker.clock.now())

        return await self._reads.send(request, source, fields.compression)

    async def extend(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.ExtensionAsked), self._scope(request)
        scope.check(Verb.CONSUME)
        span = int(fields.seconds * SECOND)
        held = await self._call(
            self._batches.extend, _name(scope, request), fields.batch, span, caller=caller_of(scope, Verb.CONSUME)
        )
        return json_response(requests.Held(held))

    async def settle(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.SettlementAsked), self._scope(request)
        scope.check(Verb.CONSUME)
        query = _name(scope, request)
        if fields.dead:
            await self._keep_letters(query, fields, scope)
        settlement = settlement_of(fields, self._broker.clock.now())
        done = await self._call(self._batches.settle, query, fields.batch, settlement, caller=caller_of(scope, Verb.CONSUME))
        return json_response(SettledBatch(done.settled, done.missed, done.carried, done.is_repeat))

    async def _keep_letters(self, query: str, fields: requests.SettlementAsked, scope: Scope) -> None:
        """Store dead letters elsewhere if the source keeps none; once they are stored, they are acked there."""
        by_offset = {offset: one for one in fields.dead for offset in one.offsets}
        try:
            leases = await self._call(
                self._batches.unkept, query, fields.batch, by_offset.keys(), caller=caller_of(scope, Verb.CONSUME)
            )
        except FailedPrecondition:
            return  # a batch that was settled before: nothing happens to it
        if not leases:
            return
        source = scope.own(self._batches.source(query)[0])
        assert source is not None, "a query is of one project, and so is its source"
        name = scope.stored(f"{PREFIX}{source}"[:MAX_NAME])
        await self._letters.open(name)
        for first in range(0, len(leases), SLICE):
            await asyncio.gather(*(self._add_letter(name, source, one, by_offset) for one in leases[first : first + SLICE]))
        await self._letters.durable()
        fields.ack += [lease.offset for lease in leases]
        fields.dead = []

    async def _add_letter(self, name: str, source: str, lease: Lease, dead: dict[int, requests.DeadAsked]) -> None:
        message, asked = lease.message, dead[lease.offset]
        headers = {**(message.attributes or {}), "router.queue": source}
        attempts, error = asked.attempts or lease.attempt, _plain(asked.error)
        await self._letters.add(name, message.data, headers, reason=asked.reason, attempts=attempts, error=error)

    async def release(self, request: Request) -> web.StreamResponse:
        scope = self._scope(request)
        scope.check(Verb.CONSUME)
        return json_response(
            requests.Held(await self._call(self._batches.release, _name(scope, request), caller=caller_of(scope, Verb.CONSUME)))
        )

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._threads, partial(function, *args, **kwargs))


def _name(scope: Scope, request: Request) -> str:
    """The broker's name of the query in a request."""
    return scope.stored(requests.word(request, "query"))


def caller_of(scope: Scope, verb: Verb) -> Writer:
    """The caller, with the permission for streams for which its token has the verb."""

    def may(stored: str) -> bool:
        name = scope.own(stored)
        return name is not None and scope.may(verb, name)

    return Writer(scope.principal.token_id, may)


def source_of(scope: Scope, verb: Verb, text: str) -> Source:
    """The queue or subscription in a request. PermissionDenied if the caller's token does not have the verb for it."""
    kind, _, name = text.partition(":")
    if kind not in {QUEUE, SUBSCRIPTION} or not name or "/" in name:
        raise InvalidArgument.of("source", text, "queue:NAME for a work queue, or subscription:NAME")
    scope.principal.check(verb, scope.project, check_name(name, kind), kind=kind)
    return Source(kind, scope.stored(name))


def _leases(planned: Planned, asked: requests.LeasesAsked, now: int) -> Leases:
    offsets = [lease.offset for lease in planned.leases]
    step = -(-len(offsets) // asked.parts) or 1
    return Leases(
        batch=planned.batch,
        rows=len(offsets),
        fresh=planned.fresh,
        bytes=sum([lease.message.size for lease in planned.leases]),
        cuts=[*offsets[::step], offsets[-1] + 1] if offsets else [],
        wait=max(planned.due - now, 0) / SECOND,
        is_repeat=planned.is_repeat,
    )


def settlement_of(fields: requests.SettlementAsked, now: int) -> Settlement:
    """The settlement of a request. Acks come first: requeueing releases other leases of the query with the same ordering key."""
    dead = [(one.offsets, dead_letter(one.reason, _plain(one.error), one.attempts)) for one in fields.dead]
    nacks = [(one.offsets, nack(error=_plain(one.error), delay=_micros(one.delay))) for one in fields.nack]
    released = [(one.offsets, give_back(_micros(one.delay) or 0)) for one in fields.release]
    kept = {one.offset: Carried(one.offset, now + (_micros(one.delay) or 0), one.attempts, one.failures) for one in fields.keep}
    return Settlement([(fields.ack, ACK), *dead, *nacks, *released], kept, fields.attempts, fields.router_name)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND)


def _plain(error: str | None) -> str | None:
    return None if error is None else plain_text(error) or None


def _parts(found: list[PlannedMessage], stream: int, now: int) -> Rows:
    """The messages as Arrow, in batches of limited size."""
    part: list[PlannedMessage] = []
    size = 0
    for message in found:
        part.append(message)
        size += message.lease.message.size
        if len(part) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(part, stream, now), message.lease.offset + 1
            part, size = [], 0
    if part:
        yield _batch(part, stream, now), part[-1].lease.offset + 1


def _batch(part: list[PlannedMessage], stream: int, now: int) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415

    from penstock.log.arrow import LEASED  # noqa: PLC0415

    leases: list[Lease] = [one.lease for one in part]
    messages = [lease.message for lease in leases]
    carried = [one.carried or _FRESH for one in part]
    columns = [
        [lease.offset for lease in leases],
        [lease.attempt for lease in leases],
        [one.position for one in part],
        [one.attempts for one in carried],
        [one.failures for one in carried],
        [max(one.due - now, 0) for one in carried],
        [message_id(lease.message.publish_at, stream, lease.offset) for lease in leases],
        [message.key or None for message in messages],
        [message.data for message in messages],
        [list(message.attributes.items()) if message.attributes else None for message in messages],
    ]
    return pa.record_batch([pa.array(values, field.type) for values, field in zip(columns, LEASED, strict=True)], schema=LEASED)


_FRESH = Carried(0)
