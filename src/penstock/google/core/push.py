"""A push: the HTTP request that carries a message to an endpoint, and what the answer means."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from penstock.backoff import exponential
from penstock.google.core.periods import MINUTES

ACCEPTED = frozenset({102, 200, 201, 202, 204})
MIN_BACKOFF = 100_000
MAX_BACKOFF = MINUTES

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OURS = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of the connection and of the sender, which a publisher must not set."""


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The body and the headers of a POST; who sends it adds authorization and what belongs to the connection."""

    body: bytes
    headers: dict[str, str]


def is_acknowledged(status: int) -> bool:
    """Whether an answer with this HTTP status acknowledges the message; any other gives it back."""
    return status in ACCEPTED


def backoff(failures: int) -> int:
    """How many microseconds an endpoint is left alone after so many failures in a row."""
    return exponential(failures, MIN_BACKOFF, MAX_BACKOFF) if failures > 0 else 0


def push_request(config: Any, message: Any, subscription: str, attempt: int | None) -> PushRequest:
    """The request for one delivery. `attempt` is its number where the subscription has a dead letter policy, None elsewhere."""
    if config.WhichOneof("wrapper") == "no_wrapper":
        return _unwrapped(message, subscription, with_metadata=config.no_wrapper.write_metadata)
    return _wrapped(message, subscription, attempt)


def _wrapped(message: Any, subscription: str, attempt: int | None) -> PushRequest:
    published = message.publish_time.ToJsonString()
    inner: dict[str, object] = {}
    if message.attributes:
        inner["attributes"] = dict(message.attributes)
    if message.data:
        inner["data"] = b64encode(message.data).decode()
    # Google writes these two in both spellings, and endpoints read either.
    inner |= {"messageId": message.message_id, "message_id": message.message_id}
    if message.ordering_key:
        inner["orderingKey"] = message.ordering_key
    inner |= {"publishTime": published, "publish_time": published}
    outer: dict[str, object] = {"message": inner, "subscription": subscription}
    if attempt is not None:
        outer["deliveryAttempt"] = attempt
    return PushRequest(json.dumps(outer, separators=(",", ":")).encode(), {"content-type": "application/json"})


def _unwrapped(message: Any, subscription: str, *, with_metadata: bool) -> PushRequest:
    """Data alone; metadata, if wished, as headers. An attribute that cannot or must not be a header is left out."""
    headers = {"content-type": "application/octet-stream"}
    if with_metadata:
        for key, value in message.attributes.items():
            name = key.lower()
            if (
                name not in _OURS
                and not name.startswith(("x-goog-", "proxy-"))
                and _TOKEN.fullmatch(name)
                and not _CONTROL.search(value)
            ):
                headers[name] = value
        headers["x-goog-pubsub-subscription-name"] = subscription
        headers["x-goog-pubsub-message-id"] = message.message_id
        headers["x-goog-pubsub-publish-time"] = message.publish_time.ToJsonString()
        if message.ordering_key and not _CONTROL.search(message.ordering_key):
            headers["x-goog-pubsub-ordering-key"] = message.ordering_key
    return PushRequest(bytes(message.data), headers)
