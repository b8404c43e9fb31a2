"""The rules for creating topics and snapshots, and for changing them.

Retention and schema of a topic are honoured. Keys, storage regions and ingestion are kept and shown only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.google import messages
from penstock.google.core.fields import (
    DAYS,
    HOURS,
    MAX_RETENTION,
    MIN_RETENTION,
    check_labels,
    check_showable,
    check_transforms,
    instant,
    period,
    spoken,
    timestamp,
    updated,
)
from penstock.values import resource_names as names

MUTABLE = frozenset(
    {
        "labels",
        "message_storage_policy",
        "kms_key_name",
        "schema_settings",
        "message_retention_duration",
        "ingestion_data_source_settings",
        "message_transforms",
    }
)


def new_topic(topic: Any) -> Any:
    """The topic as it is stored: checked, without fields that only the server sets. The caller checks that its schema exists."""
    names.parse(topic.name, names.TOPICS, "name")
    new = messages.Topic()
    new.CopyFrom(topic)
    new.ClearField("satisfies_pzs")
    new.ClearField("tags")  # the API accepts tags and never shows them
    new.state = messages.Topic.State.Value("ACTIVE")
    return _checked(new)


def update_topic(old: Any, patch: Any, mask: Iterable[str]) -> Any:
    """The stored topic with the masked fields of the patch."""
    return _checked(updated(old, patch, mask, MUTABLE))


def retention(topic: Any) -> int | None:
    """How many microseconds the topic itself keeps its messages; None: its subscriptions decide."""
    if not topic.HasField("message_retention_duration"):
        return None
    return period(topic.message_retention_duration, "message_retention_duration", minimum=MIN_RETENTION, maximum=MAX_RETENTION)


def _checked(topic: Any) -> Any:
    check_labels(topic.labels)
    retention(topic)
    check_transforms(topic.message_transforms)
    check_showable(topic)
    if topic.schema_settings == messages.SchemaSettings():
        topic.ClearField("schema_settings")  # clients remove a schema this way
    else:
        check_schema_settings(topic.schema_settings)
    return topic


def check_schema_settings(settings: Any) -> None:
    """A schema by its name, an encoding, and revisions by their ids."""
    if settings.schema != names.DELETED_SCHEMA:
        names.parse(settings.schema, names.SCHEMAS, "schema_settings.schema")
    if settings.encoding not in {messages.Encoding.JSON, messages.Encoding.BINARY}:
        raise InvalidArgument.of("schema_settings.encoding", settings.encoding, "JSON (1) or BINARY (2)")
    for field in ("first_revision_id", "last_revision_id"):
        if revision := getattr(settings, field):
            names.check_revision(revision, f"schema_settings.{field}")


SNAPSHOT_MUTABLE = frozenset({"labels", "expire_time"})
LIFETIME = 7 * DAYS
SHORTEST_LIFE = HOURS


def new_snapshot(name: str, topic: str, labels: Mapping[str, str], *, oldest: int | None, now: int) -> Any:
    """The snapshot as it is stored. `oldest`: when the oldest unacknowledged message was published, None if there is none.

    A snapshot lives for 7 days minus the age of that message, so that its messages are never older than 7 days.
    """
    names.parse(name, names.SNAPSHOTS, "name")
    check_labels(labels)
    life = LIFETIME - (max(0, now - oldest) if oldest is not None else 0)
    if life < SHORTEST_LIFE:
        raise FailedPrecondition(
            f"the oldest unacknowledged message is {spoken(LIFETIME - life)} old, so the snapshot would live less than an hour",
            hint="let consumers catch up first, or seek the subscription past that message",
        )
    return messages.Snapshot(name=name, topic=topic, labels=labels, expire_time=timestamp(now + life))


def update_snapshot(old: Any, patch: Any, mask: Iterable[str], *, now: int) -> Any:
    """The stored snapshot with the masked fields of the patch."""
    paths = list(mask)
    new = updated(old, patch, paths, SNAPSHOT_MUTABLE)
    check_labels(new.labels)
    if any(path.partition(".")[0] == "expire_time" for path in paths):
        expire_at = instant(new.expire_time, "snapshot.expire_time")
        if not now < expire_at <= now + LIFETIME:
            shown = f"{(expire_at - now) / DAYS:.3g} days from now"
            raise InvalidArgument.of("snapshot.expire_time", shown, f"a time within the next {spoken(LIFETIME)}")
    return new
