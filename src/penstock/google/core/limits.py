"""How large a resource may be, and how many schemas a project may have: what is kept in memory must be bounded whoever asks."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidArgument, ResourceExhausted

MAX_SCHEMAS = 10_000
MAX_RESOURCE_BYTES = 256 * 1024
"""Five transforms of 20 KiB are the largest part of a resource that means something."""
MAX_POLICY_BYTES = 64 * 1024


def check_topic(topic: Any) -> None:
    """A topic of bearable size."""
    _check(topic, "topic", MAX_RESOURCE_BYTES)


def check_subscription(subscription: Any) -> None:
    """A subscription of bearable size."""
    _check(subscription, "subscription", MAX_RESOURCE_BYTES)


def check_policy(policy: Any) -> None:
    """An access policy of bearable size."""
    _check(policy, "policy", MAX_POLICY_BYTES)


def check_schemas(count: int, project: str) -> None:
    """Room for one more schema in a project."""
    if count >= MAX_SCHEMAS:
        raise ResourceExhausted(
            f"project {project!r} has {count} schemas, which is the limit", hint="delete some that are not used"
        )


def _check(resource: Any, kind: str, limit: int) -> None:
    size = resource.ByteSize()
    if size > limit:
        raise InvalidArgument(f"the {kind} is {size} bytes long, wanted at most {limit}")
