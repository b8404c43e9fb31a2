"""The rules for creating a subscription, with Google's defaults filled in, and for changing it.

A subscription may have a destination: a push endpoint, or one of Google's stores. Penstock pushes to endpoints. Settings for
BigQuery, Cloud Storage and Bigtable are checked and stored only; the messages of such a subscription wait to be pulled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core.fields import (
    DAYS,
    MAX_RETENTION,
    MIN_RETENTION,
    MINUTES,
    SECONDS,
    check_labels,
    check_showable,
    check_transforms,
    period,
    spoken,
    updated,
)
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
EXPORTS = ("bigquery_config", "cloud_storage_config", "bigtable_config")
MAX_ENDPOINT_CHARACTERS = 2048

_BIGQUERY_TABLE = re.compile(r"[^\s/]+[.:][^\s/.:]+\.[^\s/.:]+")
_BIGTABLE_TABLE = re.compile(r"projects/[^\s/]+/instances/[^\s/]+/tables/[^\s/]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9\-_.]{1,220}[a-z0-9]", re.ASCII)
_KIB, _GIB = 1 << 10, 1 << 30


def new_subscription(subscription: Any) -> Any:
    """The subscription as it is stored: checked and complete. The caller checks that its topics exist."""
    names.parse(subscription.name, names.SUBSCRIPTIONS, "name")
    names.parse(subscription.topic, names.TOPICS, "topic")
    new = messages.Subscription()
    new.CopyFrom(subscription)
    for field in ("detached", "topic_message_retention_duration", "analytics_hub_subscription_info", "tags"):
        new.ClearField(field)  # fields that only the server sets, and tags, which the API accepts and never shows
    new.state = messages.Subscription.State.Value("ACTIVE")
    Filter.parse(new.filter)
    return _completed(new)


def update_subscription(old: Any, patch: Any, mask: Iterable[str]) -> Any:
    """The stored subscription with the masked fields of the patch; fields that the patch lacks get their default."""
    return _completed(updated(old, patch, mask, MUTABLE))


def options(subscription: Any, dead_letter_topic: str | None) -> SubscriptionOptions:
    """The broker's options of a stored subscription; `dead_letter_topic` is the broker's own name of that topic.

    A subscription of Google's never loses a message for lack of room, so the backlog spills to the log.
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
    """How many microseconds without use the subscription lives; None: forever."""
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
        subscription.push_config.SetInParent()  # with an empty push_config Google shows that messages are pulled
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
            hint="shorten message_retention_duration too, or send an expiration_policy without ttl, which never expires",
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
        subscription.ClearField("dead_letter_policy")  # clients also remove the policy field by field
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


def destination(subscription: Any) -> str | None:
    """The field with the destination of messages; None: they are pulled."""
    if subscription.push_config.push_endpoint:
        return "push_config"
    return next((field for field in EXPORTS if subscription.HasField(field)), None)


def check_destination(subscription: Any) -> None:
    """At most one destination, which is complete and supports the options of the subscription."""
    chosen = [field for field in EXPORTS if subscription.HasField(field)]
    if subscription.push_config.push_endpoint:
        chosen.insert(0, "push_config")
    if len(chosen) > 1:
        raise InvalidArgument(
            f"{' and '.join(chosen)} are set, expected at most one of them", hint="clear the other in the same update"
        )
    if chosen and subscription.enable_exactly_once_delivery:
        raise InvalidArgument.of(
            "enable_exactly_once_delivery",
            value=True,
            wanted=f"False with {chosen[0]}: only what is pulled is delivered exactly once",
        )
    check_push_config(subscription.push_config)
    if subscription.HasField("bigquery_config"):
        _check_bigquery(subscription.bigquery_config)
    if subscription.HasField("cloud_storage_config"):
        _check_cloud_storage(subscription.cloud_storage_config)
    if subscription.HasField("bigtable_config"):
        _check_bigtable(subscription.bigtable_config)
    for field in chosen:
        config = getattr(subscription, field)
        if "state" in config.DESCRIPTOR.fields_by_name:
            config.state = type(config).State.Value("ACTIVE")


def check_push_config(config: Any) -> None:
    """An endpoint with its settings, or none at all, which means pull."""
    if not config.push_endpoint:
        if config != messages.PushConfig():
            raise InvalidArgument.of("push_config.push_endpoint", "", "a URL beside the other settings of push_config")
        return
    _check_url(config.push_endpoint, "push_config.push_endpoint")
    for key, value in config.attributes.items():
        if key != "x-goog-version" or value not in {"v1", "v1beta1", "v1beta2"}:
            raise InvalidArgument.of("push_config.attributes", {key: value}, "nothing but {'x-goog-version': 'v1'}")
    if config.HasField("oidc_token") and "@" not in config.oidc_token.service_account_email:
        email = config.oidc_token.service_account_email
        raise InvalidArgument.of("push_config.oidc_token.service_account_email", email, "an email address")


def _check_url(url: str, field: str) -> None:
    wanted = f"an http or https URL of at most {MAX_ENDPOINT_CHARACTERS} characters, with a host and without credentials"
    # urlsplit silently drops tabs and line ends, so they are refused before.
    if len(url) > MAX_ENDPOINT_CHARACTERS or not all("!" <= character != "\x7f" for character in url):
        raise InvalidArgument.of(field, url, wanted)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:  # a port out of range, or an invalid IPv6 address
        usable = False
    if not usable:
        raise InvalidArgument.of(field, url, wanted)


def _check_bigquery(config: Any) -> None:
    if not _BIGQUERY_TABLE.fullmatch(config.table):
        raise InvalidArgument.of("bigquery_config.table", config.table, "a table as PROJECT.DATASET.TABLE")
    if config.use_topic_schema and config.use_table_schema:
        raise InvalidArgument("bigquery_config has use_topic_schema and use_table_schema, expected at most one of them")


def _check_cloud_storage(config: Any) -> None:
    if not _BUCKET.fullmatch(config.bucket):
        raise InvalidArgument.of("cloud_storage_config.bucket", config.bucket, "the name of a bucket, without gs://")
    if config.filename_suffix.endswith("/"):
        raise InvalidArgument.of(
            "cloud_storage_config.filename_suffix", config.filename_suffix, "a suffix that does not end in /"
        )
    if config.HasField("max_duration"):
        period(config.max_duration, "cloud_storage_config.max_duration", minimum=MINUTES, maximum=10 * MINUTES)
    else:
        config.max_duration.FromMicroseconds(5 * MINUTES)
    if config.max_bytes and not _KIB <= config.max_bytes <= 10 * _GIB:
        raise InvalidArgument.of("cloud_storage_config.max_bytes", config.max_bytes, f"{_KIB} to {10 * _GIB}, or 0 for no limit")
    if config.max_messages and config.max_messages < 1000:
        raise InvalidArgument.of("cloud_storage_config.max_messages", config.max_messages, "1000 or more, or 0 for no limit")
    if not config.WhichOneof("output_format"):
        config.text_config.SetInParent()


def _check_bigtable(config: Any) -> None:
    if not _BIGTABLE_TABLE.fullmatch(config.table):
        raise InvalidArgument.of("bigtable_config.table", config.table, "projects/PROJECT/instances/INSTANCE/tables/TABLE")
    mapping = config.column_family_mapping
    if mapping.WhichOneof("key_definition") == "delimited_key":
        key, where = mapping.delimited_key, "bigtable_config.column_family_mapping.delimited_key"
        if not key.key_fields or not all(key.key_fields):
            raise InvalidArgument.of(f"{where}.key_fields", list(key.key_fields), "at least one name of a field")
        if len(key.delimiter) > 50 or (len(key.key_fields) > 1 and not key.delimiter):
            raise InvalidArgument.of(f"{where}.delimiter", key.delimiter, "1 to 50 bytes between the fields of a key")
