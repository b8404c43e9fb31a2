"""The calls that carry messages, parsed and written without protobuf's `json_format`.

That one takes 5 times as long to write them and 50 times to parse them.

A body in the plain form (camelCase, padded base64, nothing unusual) is parsed by msgspec into values that the services accept in
place of a protobuf request. Any other body is not parsed here: the result is None, and the usual path takes over, which accepts
it or reports the problem. So there is one set of rules, and this is only a shorter path through it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec

from penstock.access import Principal
from penstock.google import messages
from penstock.google.publisher import PUBLISH, Publisher
from penstock.google.subscriber import Subscriber

FastCall = Callable[[bytes, str, Principal], Awaitable[bytes | None]]
"""From the body, the resource of the path and the caller to the JSON of the answer; None: not in the plain form."""

EMPTY = b"{}"


class _Plain(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A request, or a part of one."""


Plain = TypeVar("Plain", bound=_Plain)


class PlainMessage(_Plain, gc=False):
    """A message to publish."""

    data: bytes = b""
    attributes: dict[str, str] = {}
    ordering_key: str = ""


class PlainPublish(_Plain):
    """A PublishRequest. The topic is in the path, here and in the requests below."""

    messages: list[PlainMessage] = []
    topic: str = ""


class PlainPull(_Plain):
    """A PullRequest."""

    max_messages: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    return_immediately: bool = False
    subscription: str = ""


class PlainAcknowledge(_Plain):
    """An AcknowledgeRequest."""

    ack_ids: list[str]
    subscription: str = ""


class PlainModifyAckDeadline(_Plain):
    """A ModifyAckDeadlineRequest."""

    ack_ids: list[str]
    ack_deadline_seconds: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    subscription: str = ""


class _Answer(msgspec.Struct, omit_defaults=True, rename="camel"):
    """An answer, or a part of one."""


class PlainPublished(_Answer):
    """A PublishResponse."""

    message_ids: list[str] = []


class PlainDelivered(_Answer, gc=False):
    """A PubsubMessage that was published."""

    data: bytes = b""
    attributes: dict[str, str] = {}
    message_id: str = ""
    publish_time: str = ""
    ordering_key: str = ""


class PlainReceived(_Answer, gc=False):
    """A ReceivedMessage."""

    ack_id: str
    message: PlainDelivered
    delivery_attempt: int = 0


class PlainPulled(_Answer):
    """A PullResponse."""

    received_messages: list[PlainReceived] = []


class FastCalls:
    """The calls by their gRPC path."""

    def __init__(self, publisher: Publisher, subscriber: Subscriber) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self.by_path: dict[str, FastCall] = {
            "/google.pubsub.v1.Publisher/Publish": self._publish,
            "/google.pubsub.v1.Subscriber/Pull": self._pull,
            "/google.pubsub.v1.Subscriber/Acknowledge": self._acknowledge,
            "/google.pubsub.v1.Subscriber/ModifyAckDeadline": self._modify_ack_deadline,
        }

    async def _publish(self, body: bytes, name: str, caller: Principal) -> bytes | None:
        # The limit is on the request as protobuf, whose size is known only after encoding. As JSON it is always larger, so a
        # request within the limit here is within it there.
        size = len(body) + len(name)
        assert PUBLISH.max_request_bytes is not None, "it has a limit"
        request = _read(body, _PUBLISH) if size <= PUBLISH.max_request_bytes else None
        if request is None:
            return None
        request.topic = name
        return msgspec.json.encode(PlainPublished(await self._publisher.publish_ids(request, caller, size)))

    async def _pull(self, body: bytes, name: str, caller: Principal) -> bytes | None:
        request = _read(body, _PULL)
        if request is None:
            return None
        request.subscription = name
        return pulled(await self._subscriber.pull_bytes(request, caller))

    async def _acknowledge(self, body: bytes, name: str, caller: Principal) -> bytes | None:
        request = _read(body, _ACKNOWLEDGE)
        if request is None:
            return None
        request.subscription = name
        await self._subscriber.acknowledge(request, caller)
        return EMPTY

    async def _modify_ack_deadline(self, body: bytes, name: str, caller: Principal) -> bytes | None:
        request = _read(body, _MODIFY_ACK_DEADLINE)
        if request is None:
            return None
        request.subscription = name
        await self._subscriber.modify_ack_deadline(request, caller)
        return EMPTY


def pulled(answer: bytes) -> bytes:
    """A PullResponse as JSON, from protobuf."""
    received = []
    seconds = nanos = -1
    shown = ""
    for delivery in messages.PullResponse.FromString(answer).received_messages:
        message = delivery.message
        published = message.publish_time
        if (
            published.seconds != seconds or published.nanos != nanos
        ):  # the messages of one publish have the same time, and often stand together
            seconds, nanos = published.seconds, published.nanos
            shown = published.ToJsonString()
        text = PlainDelivered(message.data, dict(message.attributes), message.message_id, shown, message.ordering_key)
        received.append(PlainReceived(delivery.ack_id, text, delivery.delivery_attempt))
    return msgspec.json.encode(PlainPulled(received))


_PUBLISH = msgspec.json.Decoder(PlainPublish)
_PULL = msgspec.json.Decoder(PlainPull)
_ACKNOWLEDGE = msgspec.json.Decoder(PlainAcknowledge)
_MODIFY_ACK_DEADLINE = msgspec.json.Decoder(PlainModifyAckDeadline)


def _read(body: bytes, decoder: msgspec.json.Decoder[Plain]) -> Plain | None:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
