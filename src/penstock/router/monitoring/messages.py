"""Messages over HTTP: find those in the router, see what they are doing, remove one by force; `POST /messages` publishes one."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.durations import to_datetime
from penstock.errors import MessageNotFound
from penstock.http.request import Request, json_response
from penstock.http.routes import Parameter, Route
from penstock.router.core.message import DEFAULT_GROUP
from penstock.router.core.snapshot import InFlight
from penstock.router.monitoring.requests import Limit, Text, body, changing, query, reading
from penstock.router.monitoring.view import RouterView

MAX_BATCH = 5_000
BATCH_BYTES = 1024 * 1024

FlightStatus = Literal["MEDIATING", "RETRY_BACKOFF", "TRACKED_IDLE"]


class ListQuery(msgspec.Struct, rename="camel"):
    """A filter for messages."""

    limit: Limit = 100
    message_id: Text = ""
    pool_code: Text = ""


class MediatingQuery(msgspec.Struct, rename="camel"):
    """A filter for deliveries."""

    limit: Limit = 200
    pool_code: Text = ""


class MessageQuery(msgspec.Struct, rename="camel"):
    """The id of a message."""

    message_id: Annotated[str, Meta(min_length=1, max_length=2_048)]


class BatchCheckRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The ids of messages."""

    message_ids: Annotated[list[Text], Meta(max_length=MAX_BATCH)]


class FlightMessage(msgspec.Struct, rename="camel"):
    """A message in the router."""

    message_id: str
    broker_message_id: str | None
    queue_id: str
    added_to_in_pipeline_at: datetime
    elapsed_time_ms: int
    pool_code: str
    message_group: str
    attempts: int


class CheckResult(msgspec.Struct, rename="camel", omit_defaults=True):
    """Whether a message is in the router, and in which pool."""

    message_id: str
    in_pipeline: bool
    pool_code: str | None = None
    queue_id: str | None = None


class Detail(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """All that is known about a message; if it is not in the router, only its id and that it was not found."""

    message_id: str
    in_pipeline: bool
    status: FlightStatus | None = None
    broker_message_id: str | None = None
    queue_id: str | None = None
    pool_code: str | None = None
    message_group: str | None = None
    attempts: int | None = None
    elapsed_time_ms: int | None = None
    added_to_in_pipeline_at: datetime | None = None
    last_seen_at: datetime | None = None
    last_seen_elapsed_ms: int | None = None
    mediation_target: str | None = None
    mediating_elapsed_ms: int | None = None


class ForcedAckResult(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A message that was acked by force. A running call is not cancelled."""

    message_id: str
    removed: bool
    broker_acked: bool
    broker_ack_error: str | None = None
    queue_id: str
    pool_code: str
    elapsed_time_ms: int
    was_mediating: bool


class Mediating(msgspec.Struct, rename="camel"):
    """A running delivery."""

    message_id: str
    pool_code: str
    group: str
    queue: str
    target: str
    attempts: int
    elapsed_time_ms: int


class MessageRoutes:
    """Routes for messages in the router."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        path = "/monitoring/in-flight-messages"
        limit, pool = Parameter("limit", "The maximum number.", Limit), Parameter("poolCode", "Only of this pool.", Text)
        part = Parameter("messageId", "Only those whose id contains this.", Text)
        one = (Parameter("messageId", "The message, by its own id or its queue's.", Text, required=True),)
        return [
            reading(path, self.list, "Messages in the router, oldest first", list[FlightMessage], parameters=(limit, part, pool)),
            reading(f"{path}/check", self.check, "Is a message in the router", CheckResult, parameters=one),
            reading(f"{path}/detail", self.detail, "What a message is doing", Detail, parameters=one),
            reading(
                f"{path}/check-batch",
                self.check_batch,
                "Which messages are in the router",
                dict[str, bool],
                body=BatchCheckRequest,
                max_bytes=BATCH_BYTES,
            ),
            changing(
                "POST",
                f"{path}/{{messageId}}/ack",
                self.ack,
                "Ack a message by force",
                ForcedAckResult,
                about="It leaves the router and its queue, whatever the result of a running call.",
                parameters=(Parameter("messageId", "The message, by its own id or its queue's.", where="path"),),
            ),
            reading("/monitoring/mediating", self.mediating, "Running deliveries", list[Mediating], parameters=(limit, pool)),
        ]

    async def list(self, request: Request) -> web.StreamResponse:
        """Messages, oldest first."""
        asked, now = query(request, ListQuery), self._view.clock.now()
        found = self._view.in_flight(asked.limit, message_id=asked.message_id, pool=asked.pool_code)
        return json_response([_shown(message, now) for message in found])

    async def check(self, request: Request) -> web.StreamResponse:
        message_id = query(request, MessageQuery).message_id
        found = self._view.find(message_id)
        if found is None:
            return json_response(CheckResult(message_id, in_pipeline=False))
        return json_response(CheckResult(message_id, True, found.pool, found.queue))

    async def check_batch(self, request: Request) -> web.StreamResponse:
        asked = await body(request, BatchCheckRequest)
        return json_response({message_id: self._view.find(message_id) is not None for message_id in asked.message_ids})

    async def detail(self, request: Request) -> web.StreamResponse:
        message_id = query(request, MessageQuery).message_id
        found = self._view.find(message_id)
        if found is None:
            return json_response(Detail(message_id=message_id, in_pipeline=False))
        return json_response(_detail(found, self._view.clock.now()))

    async def ack(self, request: Request) -> web.StreamResponse:
        message_id = request.match_info["messageId"]
        forced = await self._view.force_ack(message_id)
        if forced is None:
            raise MessageNotFound(message_id)
        message = forced.message
        return json_response(
            ForcedAckResult(
                message_id=message.message_id,
                removed=True,
                broker_acked=forced.error is None,
                broker_ack_error=forced.error,
                queue_id=message.queue,
                pool_code=message.pool,
                elapsed_time_ms=_elapsed(message.tracked_at, self._view.clock.now()),
                was_mediating=message.started_at > 0,
            )
        )

    async def mediating(self, request: Request) -> web.StreamResponse:
        """Running deliveries, the longest first."""
        asked, now = query(request, MediatingQuery), self._view.clock.now()
        found = self._view.in_flight(asked.limit, pool=asked.pool_code, is_running=True)
        return json_response([_mediating(message, now) for message in sorted(found, key=lambda each: each.started_at)])


def _elapsed(since: int, now: int) -> int:
    return max(now - since, 0) // 1000


def _shown(message: InFlight, now: int) -> FlightMessage:
    return FlightMessage(
        message.message_id,
        message.broker_id or None,
        message.queue,
        to_datetime(message.tracked_at),
        _elapsed(message.tracked_at, now),
        message.pool,
        message.group,
        message.attempts,
    )


def _mediating(message: InFlight, now: int) -> Mediating:
    return Mediating(
        message.message_id,
        message.pool,
        message.group,
        message.queue,
        message.target,
        message.attempts,
        _elapsed(message.started_at, now),
    )


def _detail(message: InFlight, now: int) -> Detail:
    is_running = message.started_at > 0
    seen_at = message.seen_at or message.tracked_at
    return Detail(
        message_id=message.message_id,
        in_pipeline=True,
        status="MEDIATING" if is_running else "RETRY_BACKOFF" if message.attempts else "TRACKED_IDLE",
        broker_message_id=message.broker_id or None,
        queue_id=message.queue,
        pool_code=message.pool,
        message_group=message.group,
        attempts=message.attempts,
        elapsed_time_ms=_elapsed(message.tracked_at, now),
        added_to_in_pipeline_at=to_datetime(message.tracked_at),
        last_seen_at=to_datetime(seen_at),
        last_seen_elapsed_ms=_elapsed(seen_at, now),
        mediation_target=message.target,
        mediating_elapsed_ms=_elapsed(message.started_at, now) if is_running else None,
    )


Word = Annotated[str, Meta(min_length=1, max_length=2_048)]


class PublishMessageRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message. Without an id it gets one; it goes to the queue with the name of its pool, or to the first queue."""

    id: Word | None = None
    pool_code: Word
    mediation_target: Word
    mediation_type: Literal["HTTP"] = "HTTP"
    message_group_id: Text | None = None
    high_priority: bool = False
    auth_token: Text | None = None
    signing_secret: Text | None = None
    payload: Any = None  # any JSON; the target receives it


class Published(msgspec.Struct):
    """The queue that has the message."""

    message_id: str
    broker_message_id: str
    pool_code: str
    queue_identifier: str


class PublishRoutes:
    """The route `POST /messages`."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        return [
            changing(
                "POST", "/messages", self.publish, "Put a message on a queue", Published, body=PublishMessageRequest, status=201
            ),
        ]

    async def publish(self, request: Request) -> web.StreamResponse:
        """Put a message on the queue with the name of its pool, or on the first."""
        asked = await body(request, PublishMessageRequest)
        message_id = asked.id or secrets.token_hex(16)
        group = asked.message_group_id or DEFAULT_GROUP
        names = {queue.name for queue in self._view.snapshot().queues}
        sent = await self._view.send(asked.pool_code if asked.pool_code in names else None, _pointer(message_id, asked), group)
        return json_response(Published(message_id, sent.broker_id, asked.pool_code, sent.queue), 201)


def _pointer(message_id: str, asked: PublishMessageRequest) -> bytes:
    """The body of the message; fields that were not given are left out."""
    fields: dict[str, object] = {
        "id": message_id,
        "poolCode": asked.pool_code,
        "mediationType": asked.mediation_type,
        "mediationTarget": asked.mediation_target,
        "messageGroupId": asked.message_group_id,
        "highPriority": asked.high_priority or None,
        "authToken": asked.auth_token,
        "signingSecret": asked.signing_secret,
        "payload": asked.payload,
    }
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
