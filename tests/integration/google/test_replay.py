"""Seek, snapshots and retention through Google's client."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions

from penstock.testing import ManualClock
from tests.integration.google.real_client import Google, bodies, mask, unique

DAY = 24 * 3600


def seek(google: Google, subscription: str, **target: Any) -> None:
    google.call(google.subscriber.seek, {"subscription": subscription, **target})


def snapshot_of(google: Google, subscription: str, **fields: Any) -> Any:
    fields.setdefault("name", google.name("snapshots"))
    return google.call(google.subscriber.create_snapshot, {"subscription": subscription, **fields})


def drain(google: Google, subscription: str) -> list[bytes]:
    """Everything that waits, acked, sorted."""
    found: list[Any] = []
    while pulled := google.pull_once(subscription, now=True):
        google.ack(subscription, pulled)
        found += pulled
    return sorted(bodies(found))


def hours(google: Google, clock: ManualClock, topic: str) -> list[datetime]:
    """Publish a, b and c an hour apart; returns the moment before each."""
    before = []
    for body in (b"a", b"b", b"c"):
        before.append(clock.time)
        clock.advance(1)
        google.publish(topic, body)
        clock.advance(3_600)
    return before


def test_seeking_back_brings_acked_messages_again(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(retain_acked_messages=True)
    before = hours(timed, clock, topic)
    assert drain(timed, subscription) == [b"a", b"b", b"c"]
    seek(timed, subscription, time=before[1])
    assert drain(timed, subscription) == [b"b", b"c"]
    seek(timed, subscription, time=before[0])
    assert drain(timed, subscription) == [b"a", b"b", b"c"]


def test_seeking_back_uses_the_topics_retention(timed: Google, clock: ManualClock) -> None:
    topic = timed.topic(message_retention_duration={"seconds": DAY})
    subscription = timed.subscription(topic)
    before = hours(timed, clock, topic)
    drain(timed, subscription)
    seek(timed, subscription, time=before[1])
    assert drain(timed, subscription) == [b"b", b"c"]


def test_a_new_subscription_can_go_back_to_before_its_time(timed: Google, clock: ManualClock) -> None:
    topic = timed.topic(message_retention_duration={"seconds": DAY})
    before = hours(timed, clock, topic)
    subscription = timed.subscription(topic)
    assert drain(timed, subscription) == []
    seek(timed, subscription, time=before[0])
    assert drain(timed, subscription) == [b"a", b"b", b"c"]


def test_what_the_topic_no_longer_retains_is_gone(timed: Google, clock: ManualClock) -> None:
    topic = timed.topic(message_retention_duration={"seconds": 2 * 3600 + 60})
    subscription = timed.subscription(topic)
    before = hours(timed, clock, topic)
    drain(timed, subscription)
    seek(timed, subscription, time=before[0])
    assert drain(timed, subscription) == [b"b", b"c"]


def test_without_retention_only_the_unacked_come_again(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(ack_deadline_seconds=600)
    before = hours(timed, clock, topic)
    held = timed.pull(subscription, 3)
    timed.ack(subscription, [one for one in held if one.message.data == b"b"])
    seek(timed, subscription, time=before[0])
    assert drain(timed, subscription) == [b"a", b"c"]


def test_seeking_forward_purges(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    hours(timed, clock, topic)
    seek(timed, subscription, time=clock.time + timedelta(days=1))
    assert drain(timed, subscription) == []
    timed.publish(topic, b"d")
    assert drain(timed, subscription) == [b"d"]


def test_seeking_to_the_middle_settles_what_lies_before(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    before = hours(timed, clock, topic)
    seek(timed, subscription, time=before[2])
    assert drain(timed, subscription) == [b"c"]


def test_a_seek_reaches_an_open_stream(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(retain_acked_messages=True)
    timed.publish(topic, b"a")
    with timed.stream(subscription) as stream:
        stream.send(ack_ids=[stream.wait(1)[0].ack_id])
        stream.heard()
        seek(timed, subscription, time=clock.time - timedelta(hours=1))
        assert bodies(stream.wait(2)) == [b"a", b"a"]


def test_a_seek_ends_the_leases_of_before(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(retain_acked_messages=True)
    timed.publish(topic, b"a")
    stale = timed.pull(subscription, 1)
    seek(timed, subscription, time=clock.time - timedelta(hours=1))
    timed.ack(subscription, stale)
    assert drain(timed, subscription) == [b"a"]


def test_a_filter_holds_after_a_seek(timed: Google, clock: ManualClock) -> None:
    topic = timed.topic(message_retention_duration={"seconds": DAY})
    start = clock.time
    clock.advance(1)
    timed.publish(topic, {"data": b"yes", "attributes": {"k": ""}}, {"data": b"no"})
    subscription = timed.subscription(topic, filter="attributes:k")
    seek(timed, subscription, time=start)
    assert drain(timed, subscription) == [b"yes"]


def test_a_snapshot_brings_its_backlog_and_all_that_came_later(timed: Google) -> None:
    topic, subscription = timed.pair(ack_deadline_seconds=600)
    timed.publish(topic, b"acked", b"waits")
    held = {one.message.data: one for one in timed.pull(subscription, 2)}
    timed.ack(subscription, [held[b"acked"]])
    snapshot = snapshot_of(timed, subscription)
    timed.ack(subscription, [held[b"waits"]])
    timed.publish(topic, b"later")
    assert drain(timed, subscription) == [b"later"]
    seek(timed, subscription, snapshot=snapshot.name)
    assert drain(timed, subscription) == [b"later", b"waits"]
    seek(timed, subscription, snapshot=snapshot.name)
    assert drain(timed, subscription) == [b"later", b"waits"]


def test_a_snapshot_serves_another_subscription_of_the_topic(timed: Google) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"a")
    snapshot = snapshot_of(timed, subscription)
    drain(timed, subscription)
    other = timed.subscription(topic)
    seek(timed, other, snapshot=snapshot.name)
    assert drain(timed, other) == [b"a"]


def test_a_snapshot_outlives_its_subscription(timed: Google) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"a")
    snapshot = snapshot_of(timed, subscription)
    timed.call(timed.subscriber.delete_subscription, {"subscription": subscription})
    other = timed.subscription(topic)
    seek(timed, other, snapshot=snapshot.name)
    assert drain(timed, other) == [b"a"]


def test_a_snapshot_of_another_topic_is_refused(timed: Google) -> None:
    snapshot = snapshot_of(timed, timed.pair()[1])
    with pytest.raises((exceptions.FailedPrecondition, exceptions.InvalidArgument)):
        seek(timed, timed.pair()[1], snapshot=snapshot.name)


def test_a_seek_needs_a_target_and_things_that_exist(timed: Google, clock: ManualClock) -> None:
    _, subscription = timed.pair()
    with pytest.raises(exceptions.InvalidArgument):
        seek(timed, subscription)
    with pytest.raises(exceptions.NotFound):
        seek(timed, subscription, snapshot=timed.name("snapshots"))
    with pytest.raises(exceptions.NotFound):
        seek(timed, timed.name("subscriptions"), time=clock.time)


def test_snapshots_are_made_shown_changed_and_deleted(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    made = snapshot_of(timed, subscription, labels={"a": "1"})
    assert made.topic == topic
    assert dict(made.labels) == {"a": "1"}
    assert made.expire_time == clock.time + timedelta(days=7)
    assert timed.call(timed.subscriber.get_snapshot, {"snapshot": made.name}) == made
    assert list(timed.plain.list_topic_snapshots(topic=topic)) == [made.name]

    soon = clock.time + timedelta(days=1)
    request = {
        "snapshot": {"name": made.name, "labels": {"b": "2"}, "expire_time": soon},
        "update_mask": mask("labels", "expire_time"),
    }
    changed = timed.call(timed.subscriber.update_snapshot, request)
    assert (dict(changed.labels), changed.expire_time) == ({"b": "2"}, soon)

    timed.call(timed.subscriber.delete_snapshot, {"snapshot": made.name})
    for call in (timed.subscriber.get_snapshot, timed.subscriber.delete_snapshot):
        with pytest.raises(exceptions.NotFound):
            timed.call(call, {"snapshot": made.name})


def test_snapshots_that_cannot_be_are_refused(timed: Google, clock: ManualClock) -> None:
    _, subscription = timed.pair()
    made = snapshot_of(timed, subscription)
    with pytest.raises(exceptions.AlreadyExists):
        snapshot_of(timed, subscription, name=made.name)
    with pytest.raises(exceptions.NotFound):
        snapshot_of(timed, timed.name("subscriptions"))
    with pytest.raises(exceptions.InvalidArgument):
        snapshot_of(timed, subscription, name="nonsense")
    with pytest.raises(exceptions.InvalidArgument):
        snapshot_of(timed, subscription, labels={"UPPER": ""})
    for paths in ((), ("topic",), ("nonsense",)):
        with pytest.raises(exceptions.InvalidArgument):
            timed.call(timed.subscriber.update_snapshot, {"snapshot": {"name": made.name}, "update_mask": mask(*paths)})
    late = {"name": made.name, "expire_time": clock.time + timedelta(days=8)}
    with pytest.raises(exceptions.InvalidArgument):
        timed.call(timed.subscriber.update_snapshot, {"snapshot": late, "update_mask": mask("expire_time")})


def test_a_snapshot_without_a_name_gets_one(timed: Google) -> None:
    _, subscription = timed.pair()
    assert snapshot_of(timed, subscription, name="").name.startswith(f"projects/{timed.project}/snapshots/")


def test_snapshots_are_listed_in_pages(timed: Google) -> None:
    mine = Google(timed.host, project=unique("project"))
    try:
        _, subscription = mine.pair()
        made = sorted(snapshot_of(mine, subscription).name for _ in range(3))
        project = f"projects/{mine.project}"
        pages = list(mine.subscriber.list_snapshots(request={"project": project, "page_size": 2}).pages)
        assert [[one.name for one in page.snapshots] for page in pages] == [made[:2], made[2:]]
    finally:
        mine.close()


def test_a_snapshot_lives_shorter_by_the_age_of_its_oldest_message(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"a")
    clock.advance(3 * DAY)
    made = snapshot_of(timed, subscription)
    assert abs((made.expire_time - clock.time).total_seconds() - 4 * DAY) < 5
    clock.advance(4 * DAY - 1_800)
    with pytest.raises(exceptions.FailedPrecondition):
        snapshot_of(timed, subscription)


def test_a_snapshot_of_a_deleted_topic_shows_so(timed: Google) -> None:
    topic, subscription = timed.pair()
    made = snapshot_of(timed, subscription)
    timed.call(timed.plain.delete_topic, {"topic": topic})
    assert timed.call(timed.subscriber.get_snapshot, {"snapshot": made.name}).topic == "_deleted-topic_"
