"""The queue API as paths: one queue a path, with the bodies and errors of other servers of this kind.

Payloads are lists of byte values in both directions; errors are `{"error": "Queue not found: x", "code": 404}`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web

from penstock.api.queues import Queues
from penstock.http import Body, ErrorBody, Operation, Parameter, Refusal, Reply, Request, Route, json_response
from penstock.http.decoding import UNREADABLE, explain
from penstock.http.routes import Handler
from penstock.queue_api import replies, requests
from penstock.queue_api.calls import NESTED
from penstock.queue_api.http import PROJECT, project_queues, query_value, status_of
from penstock.queue_api.websocket import Consumers
from penstock.values.queue import Delivery, NewMessage

T = TypeVar("T", bound=msgspec.Struct)


class RestPublish(requests.Fields, kw_only=True):
    """A message."""

    payload: requests.Wire
    priority: requests.Priority | None = None
    max_retries: requests.Retries | None = None
    headers: requests.Headers | None = None
    ttl: requests.Seconds | None = None
    delay: requests.Delay | None = None


class RestAck(requests.Fields, kw_only=True):
    """Which message."""

    message_id: requests.MessageId
    consumer_id: requests.ConsumerId | None = None


class RestNack(RestAck, kw_only=True):
    """Which message, and whether it is tried again."""

    requeue: bool
    error: requests.Text | None = None


class RestConsumed(replies.Answer, kw_only=True):
    """A message; every field is null when there was none."""

    message_id: str | None = None
    payload: list[int] | None = None
    priority: int | None = None
    retry_count: int | None = None
    max_retries: int | None = None
    headers: dict[str, str] | None = None


class RestError(msgspec.Struct):
    """What went wrong, and the HTTP status again."""

    error: str
    code: int


def _rendered(refusal: Refusal) -> web.Response:
    status = status_of(refusal)
    return json_response(RestError(refusal.message, status), status, refusal.headers)


PLAIN_ERRORS = ErrorBody(_rendered, RestError)


class QueueRestApi:
    """Answers the paths of queues."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    async def create(self, request: Request) -> web.Response:
        """Create a queue; fine when there is one."""
        settings = await _body(request, requests.Settings)
        name = request.match_info["name"]
        created = await project_queues(self._queues, request).create(name, settings.given())
        return json_response(replies.Created(queue=name, created=created))

    async def delete(self, request: Request) -> web.Response:
        deleted = await project_queues(self._queues, request).delete(request.match_info["name"])
        return json_response(replies.Deleted(deleted=deleted))

    async def list(self, request: Request) -> web.Response:
        return json_response(replies.QueueNames(queues=await project_queues(self._queues, request).list_queues()))

    async def publish(self, request: Request) -> web.Response:
        fields = await _body(request, RestPublish)
        message = NewMessage(
            requests.from_wire(fields.payload), fields.priority, fields.ttl, fields.headers, fields.max_retries, fields.delay
        )
        result = await project_queues(self._queues, request).publish(request.match_info["name"], message)
        return json_response(replies.Published(message_id=result.message_id, position=result.position))

    async def consume(self, request: Request) -> web.Response:
        """Take a message, waiting for it if asked to."""
        found = await project_queues(self._queues, request).lease(
            request.match_info["name"],
            request.match_info["consumer_id"],
            wait=query_value(request, "timeout", float) or 0,
            ack_deadline=query_value(request, "ack_deadline", float),
            prefetch=query_value(request, "prefetch", int),
        )
        return json_response(_consumed(found[0]) if found else RestConsumed())

    async def ack(self, request: Request) -> web.Response:
        fields = await _body(request, RestAck)
        project_queues(self._queues, request).ack(request.match_info["name"], fields.message_id, fields.consumer_id)
        return json_response(replies.Done())

    async def nack(self, request: Request) -> web.Response:
        fields = await _body(request, RestNack)
        result = project_queues(self._queues, request).nack(
            request.match_info["name"], fields.message_id, fields.requeue, consumer=fields.consumer_id, error=fields.error
        )
        return json_response(replies.Nacked(action=result.action))

    async def stats(self, request: Request) -> web.Response:
        return json_response(replies.stats(await project_queues(self._queues, request).queue_stats(request.match_info["name"])))

    async def consumers(self, request: Request) -> web.Response:
        """Who consumes a queue and what each holds."""
        most = query_value(request, "max_messages", int)
        queues = project_queues(self._queues, request)
        found = await queues.queue_consumers(request.match_info["name"], 100 if most is None else most)
        return json_response(replies.Consumers(consumers=found, count=len(found)))

    async def purge(self, request: Request) -> web.Response:
        purged = await project_queues(self._queues, request).purge_queue(request.match_info["name"])
        return json_response(replies.Purged(purged=purged))


def rest_routes(queues: Queues) -> list[Route]:
    """The routes of the paths, the WebSocket consumer among them."""
    api = QueueRestApi(queues)
    waiting = (
        Parameter("timeout", "Seconds to wait for a message.", requests.Wait),
        Parameter("ack_deadline", "Seconds it may be held.", requests.AckDeadline),
        Parameter("prefetch", "How many messages the consumer may hold.", requests.Prefetch),
    )
    return [
        _route("POST", "/queue/{name}", api.create, "Create a queue.", replies.Created, requests.Settings, is_optional=True),
        _route("DELETE", "/queue/{name}", api.delete, "Delete a queue with everything in it.", replies.Deleted),
        _route("GET", "/queue/list", api.list, "List the queues.", replies.QueueNames),
        _route("POST", "/queue/{name}/publish", api.publish, "Add a message.", replies.Published, RestPublish),
        _route("GET", "/queue/{name}/consume/{consumer_id}", api.consume, "Take a message.", RestConsumed, parameters=waiting),
        _route("POST", "/queue/{name}/ack", api.ack, "Settle a message.", replies.Done, RestAck),
        _route("POST", "/queue/{name}/nack", api.nack, "Give a message back.", replies.Nacked, RestNack),
        _route("GET", "/queue/{name}/stats", api.stats, "The state of a queue in numbers.", replies.Stats),
        _route(
            "GET",
            "/queue/{name}/consumers",
            api.consumers,
            "Who consumes a queue and what each holds.",
            replies.Consumers,
            parameters=(Parameter("max_messages", "How many messages are listed of each.", requests.MostHeld),),
        ),
        _route("POST", "/queue/{name}/purge", api.purge, "Remove everything that waits.", replies.Purged),
        Consumers(queues).route(PLAIN_ERRORS, _parameters("/queue/{name}/ws/{consumer_id}")),
    ]


def _route(  # noqa: PLR0917  # a row of the table above
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    answer: type,
    fields: type | None = None,
    *,
    parameters: tuple[Parameter, ...] = (),
    is_optional: bool = False,
) -> Route:
    operation = Operation(
        summary,
        tags=("queues",),
        parameters=(*_parameters(path), *parameters, PROJECT),
        body=Body(fields, required=not is_optional) if fields is not None else None,
        replies={200: Reply("Done.", answer)},
    )
    return Route(method, path, handler, operation, PLAIN_ERRORS)


def _parameters(path: str) -> tuple[Parameter, ...]:
    described = {"name": ("The queue.", requests.Name), "consumer_id": ("Who consumes.", requests.ConsumerId)}
    return tuple(Parameter(name, text, kind, "path") for name, (text, kind) in described.items() if f"{{{name}}}" in path)


async def _body(request: Request, kind: type[T]) -> T:
    body = await request.read()
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except UNREADABLE as error:
        raise explain(error, kind, NESTED) from None


def _consumed(message: Delivery) -> RestConsumed:
    return RestConsumed(
        message_id=message.message_id,
        payload=list(message.data),
        priority=message.priority,
        retry_count=message.retry_count,
        max_retries=message.max_retries,
        headers=message.headers or {},
    )
