"""Put a message on one of the router's queues: `POST /messages`."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.http import Request, Route, json_response
from penstock.router.core.message import DEFAULT_GROUP
from penstock.router.monitoring.requests import Text, body, changing
from penstock.router.monitoring.view import RouterView

Word = Annotated[str, Meta(min_length=1, max_length=2_048)]


class MessageAsked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message. Without an id it gets one; its queue is the one that is called like its pool, or the first."""

    id: Word | None = None
    pool_code: Word
    mediation_target: Word
    mediation_type: Literal["HTTP"] = "HTTP"
    message_group_id: Text | None = None
    high_priority: bool = False
    auth_token: Text | None = None
    signing_secret: Text | None = None
    payload: Any = None  # whatever JSON the target is to get


class Published(msgspec.Struct):
    """Where the message is."""

    message_id: str
    broker_message_id: str
    pool_code: str
    queue_identifier: str


class Sending:
    """Answers `POST /messages`."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        """What is served."""
        return [
            changing("POST", "/messages", self.publish, "Put a message on a queue", Published, body=MessageAsked, status=201),
        ]

    async def publish(self, request: Request) -> web.StreamResponse:
        """Put a message on the queue called like its pool, or the first."""
        asked = await body(request, MessageAsked)
        message_id = asked.id or secrets.token_hex(16)
        group = asked.message_group_id or DEFAULT_GROUP
        names = {queue.name for queue in self._view.snapshot().queues}
        sent = await self._view.send(asked.pool_code if asked.pool_code in names else None, _pointer(message_id, asked), group)
        return json_response(Published(message_id, sent.broker_id, asked.pool_code, sent.queue), 201)


def _pointer(message_id: str, asked: MessageAsked) -> bytes:
    """The message as a queue holds it; what was not given is not in it."""
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
