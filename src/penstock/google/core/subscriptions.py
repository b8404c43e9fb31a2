"""What a subscription may be when it is created, with Google's defaults filled in, and what may change later."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core.destinations import check_destination, destination
from penstock.google.core.labels import check_labels
from penstock.google.core.masks import updated
from penstock.google.core.periods import DAYS, MAX_RETENTION, MIN_RETENTION, SECONDS, period, spoken
from penstock.google.core.showable import check_showable
from penstock.google.core.transforms import check_transforms
from penstock.values import resource_names as names
from penstock.values.filter import Filter
from penstock.values.policy import DeadLetterPolicy, Overflow, RetryPolicy, SubscriptionOptions

MUTABLE = frozenset(
    {
        "ack_deadline_seconds",
        "bigquery_config",
        "bigtable_config",
        "cloud_storage_config",
        "dead_letter_policy",
        "enable_exactly_once_delivery",
        "expiration_policy",
        "labels",
        "message_retention_duration",
        "message_transforms",
        "push_config",
        "retain_acked_messages",
        "retry_policy",
    }
)

MIN_ACK_DEADLINE, MAX_ACK_DEADLINE = 10, 600
DEFAULT_RETENTION = 7 * DAYS
DEFAULT_EXPIRATION = 31 * DAYS
MAX_BACKOFF = 600 * SECONDS
MIN_ATTEMPTS, MAX_ATTEMPTS = 5, 100


def new_subscription(subscription: Any) -> Any:
    """The subscription as it is stored: checked and complete. That its topics exist must be looked up besides."""
    names.parse(subscription.name, names.SUBSCRIPTIONS, "name")
    names.parse(subscription.topic, names.TOPICS, "topic")
    new = messages.Subscription()
    new.CopyFrom(subscription)
    for field in ("detached", "topic_message_retention_duration", "analytics_hub_subscription_info", "tags"):
        new.ClearField(field)  # what only the server sets, and tags, which the API takes in and never shows
    new.state = messages.Subscription.State.Value("ACTIVE")
    Filter.parse(new.filter)
    return _completed(new)


def update_subscription(old: Any, patch: Any, mask: Iterable[str]) -> Any:
    """The stored subscription with the masked fields of the patch; what the patch leaves out falls back to its default."""
    return _completed(updated(old, patch, mask, MUTABLE))


def options(subscription: Any, dead_letter_topic: str | None) -> SubscriptionOptions:
    """What the broker is told of a stored subscription; `dead_letter_topic` is the broker's own name of that topic.

    A subscription of Google's never loses a message for want of room, so the backlog spills to the log.
    """
    retry, dead = None, None
    if subscription.HasField("retry_policy"):
        policy = subscription.retry_policy
        retry = RetryPolicy(_span(policy.minimum_backoff), _span(policy.maximum_backoff))
    if subscription.HasField("dead_letter_policy") and dead_letter_topic is not None:
        dead = DeadLetterPolicy(dead_letter_topic, subscription.dead_letter_policy.max_delivery_attempts)
    return SubscriptionOptions(
        ack_deadline_seconds=subscription.ack_deadline_seconds,
        message_ordering=subscription.enable_message_ordering,
        retry_policy=retry,
        dead_letter_policy=dead,
        message_retention_duration=_span(subscription.message_retention_duration),
        retain_acked_messages=subscription.retain_acked_messages,
        filter=subscription.filter,
        overflow=Overflow.SPILL,
    )


def expires_after(subscription: Any) -> int | None:
    """For how many microseconds without use the subscription lives; None: forever."""
    policy = subscription.expiration_policy
    return period(policy.ttl, "expiration_policy.ttl", minimum=DAYS) if policy.HasField("ttl") else None


def _completed(subscription: Any) -> Any:
    _complete_ack_deadline(subscription)
    _complete_lifetimes(subscription)
    _complete_retries(subscription)
    _complete_dead_letters(subscription)
    check_labels(subscription.labels)
    check_transforms(subscription.message_transforms)
    check_destination(subscription)
    check_showable(subscription)
    if destination(subscription) is None:
        subscription.push_config.SetInParent()  # an empty push_config is how Google shows that messages are pulled
    return subscription


def _complete_ack_deadline(subscription: Any) -> None:
    seconds = subscription.ack_deadline_seconds
    if seconds == 0:
        subscription.ack_deadline_seconds = MIN_ACK_DEADLINE
    elif not MIN_ACK_DEADLINE <= seconds <= MAX_ACK_DEADLINE:
        wanted = f"seconds from {MIN_ACK_DEADLINE} to {MAX_ACK_DEADLINE}, or 0 for {MIN_ACK_DEADLINE}"
        raise InvalidArgument.of("ack_deadline_seconds", seconds, wanted)


def _complete_lifetimes(subscription: Any) -> None:
    if not subscription.HasField("message_retention_duration"):
        subscription.message_retention_duration.FromMicroseconds(DEFAULT_RETENTION)
    kept = period(
        subscription.message_retention_duration, "message_retention_duration", minimum=MIN_RETENTION, maximum=MAX_RETENTION
    )
    if not subscription.HasField("expiration_policy"):
        subscription.expiration_policy.ttl.FromMicroseconds(DEFAULT_EXPIRATION)
    ttl = expires_after(subscription)
    if ttl is not None and ttl < kept:
        raise InvalidArgument.of(
            "expiration_policy.ttl",
            f"{ttl / SECONDS:.15g}s",
            f"no less than message_retention_duration ({spoken(kept)})",
            hint="shorten message_retention_duration too, or send an expiration_policy without ttl for a subscription that stays",
        )


def _complete_retries(subscription: Any) -> None:
    if not subscription.HasField("retry_policy"):
        return
    policy = subscription.retry_policy
    bounds = []
    for field, default in (("minimum_backoff", 10 * SECONDS), ("maximum_backoff", MAX_BACKOFF)):
        if not policy.HasField(field):
            getattr(policy, field).FromMicroseconds(default)
        bounds.append(period(getattr(policy, field), f"retry_policy.{field}", minimum=0, maximum=MAX_BACKOFF))
    if bounds[0] > bounds[1]:
        raise InvalidArgument.of(
            "retry_policy.minimum_backoff", spoken(bounds[0]), f"at most maximum_backoff ({spoken(bounds[1])})"
        )


def _complete_dead_letters(subscription: Any) -> None:
    policy = subscription.dead_letter_policy
    if policy == messages.DeadLetterPolicy():
        subscription.ClearField("dead_letter_policy")  # clients also take the policy away field by field
        return
    if policy.dead_letter_topic != names.DELETED_TOPIC:
        names.parse(policy.dead_letter_topic, names.TOPICS, "dead_letter_policy.dead_letter_topic")
    attempts = policy.max_delivery_attempts
    if attempts == 0:
        policy.max_delivery_attempts = MIN_ATTEMPTS
    elif not MIN_ATTEMPTS <= attempts <= MAX_ATTEMPTS:
        wanted = f"{MIN_ATTEMPTS} to {MAX_ATTEMPTS}, or 0 for {MIN_ATTEMPTS}"
        raise InvalidArgument.of("dead_letter_policy.max_delivery_attempts", attempts, wanted)


def _span(duration: Any) -> timedelta:
    return timedelta(microseconds=duration.ToMicroseconds())
