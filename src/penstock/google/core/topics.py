"""What a topic may be when it is created, and what may change later.

Retention and schema are honoured. Keys, storage regions and ingestion are kept and shown: they speak of Google's own house.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core.fields import (
    MAX_RETENTION,
    MIN_RETENTION,
    check_labels,
    check_showable,
    check_transforms,
    period,
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
    """The topic as it is stored: checked, with the fields that only the server sets. Its schema must be looked up besides."""
    names.parse(topic.name, names.TOPICS, "name")
    new = messages.Topic()
    new.CopyFrom(topic)
    new.ClearField("satisfies_pzs")
    new.ClearField("tags")  # the API takes tags in and never shows them
    new.state = messages.Topic.State.Value("ACTIVE")
    return _checked(new)


def update_topic(old: Any, patch: Any, mask: Iterable[str]) -> Any:
    """The stored topic with the masked fields of the patch."""
    return _checked(updated(old, patch, mask, MUTABLE))


def retention(topic: Any) -> int | None:
    """For how many microseconds the topic itself keeps its messages; None: it leaves that to its subscriptions."""
    if not topic.HasField("message_retention_duration"):
        return None
    return period(topic.message_retention_duration, "message_retention_duration", minimum=MIN_RETENTION, maximum=MAX_RETENTION)


def _checked(topic: Any) -> Any:
    check_labels(topic.labels)
    retention(topic)
    check_transforms(topic.message_transforms)
    check_showable(topic)
    if topic.schema_settings == messages.SchemaSettings():
        topic.ClearField("schema_settings")  # how clients take a schema away
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
