"""The options of subscriptions and work queues as keywords, so that editors complete them and type checkers know their types.

The keys are the fields of `SubscriptionOptions` and `QueueConfig`, and `ack_deadline`: the one name for the length of a lease, in
place of `ack_deadline_seconds` and `ack_deadline_secs`, which the specifications of these two classes fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from penstock.errors import InvalidArgument
from penstock.values.policy import DeadLetterPolicy, Duration, FlowControl, RetryPolicy

ACK_DEADLINE = "ack_deadline"


class TopicChanges(TypedDict, total=False):
    """The settings of a topic that can be changed."""

    retention: float | None
    schema: str | None
    encoding: str


class SubscriptionChanges(TypedDict, total=False):
    """The options of a subscription that can be changed. Durations are seconds or `timedelta`."""

    ack_deadline: Duration
    """How long a lease lasts."""
    ack_deadline_seconds: Duration
    """Deprecated here: use `ack_deadline`."""
    retry_policy: RetryPolicy | None
    dead_letter_policy: DeadLetterPolicy | None
    flow_control: FlowControl | None
    message_retention_duration: Duration
    retain_acked_messages: bool
    max_messages: int
    max_bytes: int
    overflow: str | None
    exactly_once: bool


class QueueSettings(TypedDict, total=False):
    """The settings of a work queue. Durations are seconds or `timedelta`."""

    ack_deadline: Duration
    """How long a lease lasts."""
    ack_deadline_secs: Duration
    """Deprecated here: use `ack_deadline`."""
    max_depth: int
    max_retries: int
    default_priority: int
    default_prefetch: int
    max_prefetch: int
    message_ttl: Duration | None
    dead_letter_enabled: bool
    dead_letter_max_size: int
    retry_policy: RetryPolicy | None
    overflow: str


def with_specified_names(settings: Mapping[str, object], specified: str) -> dict[str, Any]:
    """The same settings, with `ack_deadline` under the name that the specification requires."""
    if ACK_DEADLINE not in settings:
        return dict(settings)
    if specified in settings:
        raise InvalidArgument(f"{specified} is given together with {ACK_DEADLINE}, expected one of them")
    return {specified if name == ACK_DEADLINE else name: value for name, value in settings.items()}
