"""Snapshots: their life, and what may change."""

from typing import Any

import pytest

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.google import messages
from penstock.google.core.topics import new_snapshot, update_snapshot

NAME, TOPIC = "projects/p/snapshots/monday", "projects/p/topics/orders"
SECOND = 1_000_000
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
NOW = 1_700_000_000 * SECOND


def made(oldest: int | None = None, **labels: str) -> Any:
    return new_snapshot(NAME, TOPIC, labels, oldest=oldest, now=NOW)


def test_a_snapshot_lives_7_days_less_the_age_of_its_oldest_message(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int | None, int]] = [
        (None, 7 * DAY),
        (NOW, 7 * DAY),
        (NOW + HOUR, 7 * DAY),
        (NOW - DAY, 6 * DAY),
        (NOW - 7 * DAY + HOUR, HOUR),
    ]
    for oldest, life in rows:
        with subtests.test(oldest=oldest, life=life):
            snapshot = made(oldest, a="b")

            assert snapshot.expire_time.ToMicroseconds() == NOW + life
            assert (snapshot.name, snapshot.topic, dict(snapshot.labels)) == (NAME, TOPIC, {"a": "b"})


def test_a_snapshot_that_would_live_less_than_an_hour_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[int] = [NOW - 7 * DAY + HOUR - 1, NOW - 7 * DAY, NOW - 70 * DAY]
    for oldest in rows:
        with subtests.test(oldest=oldest), pytest.raises(FailedPrecondition, match="less than an hour"):
            made(oldest)


def test_names_and_labels_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="name is"):
        new_snapshot("projects/p/topics/abc", TOPIC, {}, oldest=None, now=NOW)
    with pytest.raises(InvalidArgument, match="a key of labels"):
        made(None, A="b")


def test_labels_and_the_end_of_its_life_may_change(subtests: pytest.Subtests) -> None:
    rows: list[int] = [1, DAY, 7 * DAY]
    for left in rows:
        with subtests.test(left=left):
            patch = messages.Snapshot(labels={"c": "d"})
            patch.expire_time.FromMicroseconds(NOW + left)

            new = update_snapshot(made(None, a="b"), patch, ["labels", "expire_time"], now=NOW)

            assert dict(new.labels) == {"c": "d"}
            assert new.expire_time.ToMicroseconds() == NOW + left


def test_its_life_ends_in_the_next_7_days(subtests: pytest.Subtests) -> None:
    rows: list[int] = [0, -1, 7 * DAY + 1]
    for left in rows:
        with subtests.test(left=left):
            patch = messages.Snapshot()
            patch.expire_time.FromMicroseconds(NOW + left)

            with pytest.raises(InvalidArgument, match=r"snapshot\.expire_time is"):
                update_snapshot(made(), patch, ["expire_time"], now=NOW)


def test_an_instant_that_is_none_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, int]] = [{"seconds": 2**62}, {"seconds": -(2**62)}, {"seconds": NOW // SECOND, "nanos": -1}]
    for time in rows:
        with subtests.test(time=time), pytest.raises(InvalidArgument, match="years 1 to 9999"):
            update_snapshot(made(), messages.Snapshot(expire_time=time), ["expire_time"], now=NOW)


def test_a_bad_mask_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[list[str]] = [[], ["name"], ["topic"], ["expireTime"], ["labels.a"]]
    for mask in rows:
        with subtests.test(mask=mask), pytest.raises(InvalidArgument, match="update_mask"):
            update_snapshot(made(), messages.Snapshot(), mask, now=NOW)


def test_labels_of_an_old_snapshot_can_change_without_touching_its_life() -> None:
    old = made()

    new = update_snapshot(old, messages.Snapshot(), ["labels"], now=NOW + 70 * DAY)

    assert new.expire_time == old.expire_time
