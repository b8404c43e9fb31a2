"""The queue API as paths: one path for each queue, with the bodies and errors of other servers of this kind.

Payloads are lists of byte values in both directions; errors are `{"error": "Queue not found: x", "code": 404}`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import asdict

from penstock.api.queues import Queues
from penstock.http.decoding import UNREADABLE, explain
from penstock.http.refusal import ErrorBody, Refusal
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Handler, Operation, Parameter, Reply, Route
from penstock.queue_api import replies, requests
from penstock.queue_api.calls import NESTED
from penstock.queue_api.commands import COMMANDS
from penstock.queue_api.http import PROJECT, project_queues, query_value, status_of
from penstock.queue_api.websocket import Consumers
from penstock.values.queue import Delivery

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
    """The message to ack."""

    message_id: requests.MessageId
    consumer_id: requests.ConsumerId | None = None


class RestNack(RestAck, kw_only=True):
    """The message to nack, and whether to retry it."""

    requeue: bool
    error: requests.Text | None = None


class RestConsumed(replies.Answer, kw_only=True):
    """A message; every field is null if there was none."""

    message_id: str | None = None
    payload: list[int] | None = None
    priority: int | None = None
    retry_count: int | None = None
    max_retries: int | None = None
    headers: dict[str, str] | None = None


class RestError(msgspec.Struct):
    """The error, and the HTTP status again."""

    error: str
    code: int


def _rendered(refusal: Refusal) -> web.Response:
    status = status_of(refusal)
    return json_response(RestError(refusal.message, status), status, refusal.headers)


PLAIN_ERRORS = ErrorBody(_rendered, RestError)


def rest_routes(queues: Queues) -> list[Route]:
    """The routes, including the WebSocket consumer. All but `consume` run the command with their name."""

    def run(  # noqa: PLR0917  # a row of the table below
        method: str,
        path: str,
        command: str,
        summary: str,
        body: type[msgspec.Struct] | None = None,
        query: tuple[Parameter, ...] = (),
        *,
        is_optional: bool = False,
    ) -> Route:
        row = COMMANDS[command]

        async def handler(request: Request) -> web.Response:
            given = {} if body is None else asdict(await _body(request, body))
            given |= {one.name: value for one in query if (value := query_value(request, one.name, int)) is not None}
            if "name" in request.match_info:
                given["queue"] = request.match_info["name"]
            return json_response(await row.run(project_queues(queues, request), row.fields(**given)))

        return _route(method, path, handler, summary, row.answer[0], body, query, is_optional=is_optional)

    async def consume(request: Request) -> web.Response:
        found = await project_queues(queues, request).lease(
            request.match_info["name"],
            request.match_info["consumer_id"],
            wait=query_value(request, "timeout", float) or 0,
            ack_deadline=query_value(request, "ack_deadline", float),
            prefetch=query_value(request, "prefetch", int),
        )
        return json_response(_consumed(found[0]) if found else RestConsumed())

    waiting = (
        Parameter("timeout", "Seconds to wait for a message.", requests.Wait),
        Parameter("ack_deadline", "The ack deadline in seconds.", requests.AckDeadline),
        Parameter("prefetch", "Messages that the consumer may hold.", requests.Prefetch),
    )
    most = (Parameter("max_messages", "Messages that are listed of each.", requests.MostHeld),)
    return [
        run("POST", "/queue/{name}", "queue.create", "Create a queue.", requests.Settings, is_optional=True),
        run("DELETE", "/queue/{name}", "queue.delete", "Delete a queue with everything in it."),
        run("GET", "/queue/list", "queue.list", "List the queues."),
        run("POST", "/queue/{name}/publish", "queue.publish", "Publish a message.", RestPublish),
        _route("GET", "/queue/{name}/consume/{consumer_id}", consume, "Consume a message.", RestConsumed, query=waiting),
        run("POST", "/queue/{name}/ack", "queue.ack", "Ack a message.", RestAck),
        run("POST", "/queue/{name}/nack", "queue.nack", "Nack a message.", RestNack),
        run("GET", "/queue/{name}/stats", "queue.stats", "The state of a queue in numbers."),
        run("GET", "/queue/{name}/consumers", "queue.consumers", "The consumers of a queue and what each holds.", query=most),
        run("POST", "/queue/{name}/purge", "queue.purge", "Remove all messages that are not leased."),
        Consumers(queues).route(PLAIN_ERRORS, _parameters("/queue/{name}/ws/{consumer_id}")),
    ]


def _route(  # noqa: PLR0917  # a row of the table above
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    answer: type,
    fields: type | None = None,
    query: tuple[Parameter, ...] = (),
    *,
    is_optional: bool = False,
) -> Route:
    operation = Operation(
        summary,
        tags=("queues",),
        parameters=(*_parameters(path), *query, PROJECT),
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
