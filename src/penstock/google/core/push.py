"""Push: the HTTP request for a message, the meaning of its answer, and the number of concurrent requests."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from penstock.backoff import exponential
from penstock.google.core.fields import MINUTES

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
"""Headers of the connection and of the sender, which publishers must not set."""


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The body and the headers of a POST; the sender adds authorization and headers of the connection."""

    body: bytes
    headers: dict[str, str]


def is_acknowledged(status: int) -> bool:
    """Whether an answer with this HTTP status acknowledges the message; any other is a nack."""
    return status in ACCEPTED


def backoff(failures: int) -> int:
    """How many microseconds to pause after this many failures of an endpoint in a row."""
    return exponential(failures, MIN_BACKOFF, MAX_BACKOFF) if failures > 0 else 0


def push_request(config: Any, message: Any, subscription: str, attempt: int | None) -> PushRequest:
    """The request for one delivery. `attempt` is its number if the subscription has a dead-letter policy, otherwise None."""
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
    # Google writes these two in both spellings, and endpoints read either one.
    inner |= {"messageId": message.message_id, "message_id": message.message_id}
    if message.ordering_key:
        inner["orderingKey"] = message.ordering_key
    inner |= {"publishTime": published, "publish_time": published}
    outer: dict[str, object] = {"message": inner, "subscription": subscription}
    if attempt is not None:
        outer["deliveryAttempt"] = attempt
    return PushRequest(json.dumps(outer, separators=(",", ":")).encode(), {"content-type": "application/json"})


def _unwrapped(message: Any, subscription: str, *, with_metadata: bool) -> PushRequest:
    """The data alone; metadata, if requested, as headers. Attributes that cannot or must not be headers are omitted."""
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


class PushWindow:
    """Starts with one push at a time, doubles after every successful round, and halves after every round with a failure.

    A round is the set of concurrent pushes: if an endpoint fails with a hundred of them outstanding, that is one failure, not a
    hundred. It computes limits and delays, and never waits.
    """

    __slots__ = ("_failures", "_most", "_rests_until", "_round", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        self._failures = 0
        self._rests_until = 0
        self._round = 0
        self.size = 1
        """How many pushes may be outstanding."""

    @property
    def round(self) -> int:
        """The round of a push that starts now; report its end with it."""
        return self._round

    def rest(self, now: int) -> int:
        """For how many microseconds to push nothing; 0: continue."""
        return max(0, self._rests_until - now)

    def succeeded(self, outstanding: int) -> None:
        """A push was accepted while this many were outstanding, including itself."""
        self._failures = self._rests_until = 0
        if 2 * outstanding >= self.size:  # an unused window is no evidence for a larger one
            self.size = min(self.size + 1, self._most)

    def failed(self, begun: int, now: int, *, is_paced: bool) -> None:
        """A push of the round `begun` failed. `is_paced`: the retry policy delays each message by itself.

        Then the endpoint need not rest as well, or one bad message would delay the good ones; but if nothing else succeeds in
        between, it is called at most ten times a second, however many messages wait.
        """
        if begun != self._round:
            return
        self._round += 1
        self._failures += 1
        self.size = max(1, self.size // 2)
        if not is_paced:
            self._rests_until = now + backoff(self._failures)
        elif self._failures > 1:
            self._rests_until = now + MIN_BACKOFF
