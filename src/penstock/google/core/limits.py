"""How large a resource may be: what is kept in memory must be bounded whoever asks."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidArgument

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


def _check(resource: Any, kind: str, limit: int) -> None:
    size = resource.ByteSize()
    if size > limit:
        raise InvalidArgument(f"the {kind} is {size} bytes long, wanted at most {limit}")
