"""Snapshots: how long one lives, and what may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.google import messages
from penstock.google.core.fields import DAYS, HOURS, check_labels, instant, spoken, timestamp, updated
from penstock.values.resource_names import SNAPSHOTS, parse

MUTABLE = frozenset({"labels", "expire_time"})
LIFETIME = 7 * DAYS
SHORTEST_LIFE = HOURS


def new_snapshot(name: str, topic: str, labels: Mapping[str, str], *, oldest: int | None, now: int) -> Any:
    """The snapshot as it is stored. `oldest`: when the oldest unacknowledged message was published, None if there is none.

    A snapshot lives for 7 days less the age of that message, so that what it holds is never older than 7 days.
    """
    parse(name, SNAPSHOTS, "name")
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
    new = updated(old, patch, paths, MUTABLE)
    check_labels(new.labels)
    if any(path.partition(".")[0] == "expire_time" for path in paths):
        expire_at = instant(new.expire_time, "snapshot.expire_time")
        if not now < expire_at <= now + LIFETIME:
            shown = f"{(expire_at - now) / DAYS:.3g} days from now"
            raise InvalidArgument.of("snapshot.expire_time", shown, f"a time within the next {spoken(LIFETIME)}")
    return new
