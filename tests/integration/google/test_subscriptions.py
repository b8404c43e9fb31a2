"""Subscriptions through Google's client: made, changed, listed, detached, deleted, and refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.api_core import exceptions

from penstock.google import expiry
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.google.real_client import PATIENCE, Google, eventually, unique

DAY = 24 * 3600


def get(google: Google, subscription: str) -> Any:
    return google.call(google.subscriber.get_subscription, {"subscription": subscription})


def test_a_bare_subscription_shows_googles_defaults(google: Google) -> None:
    topic, subscription = google.pair()
    shown = get(google, subscription)
    assert (shown.name, shown.topic) == (subscription, topic)
    assert shown.ack_deadline_seconds == 10
    assert shown.message_retention_duration.total_seconds() == 7 * DAY
    assert shown.expiration_policy.ttl.total_seconds() == 31 * DAY
    assert shown.state == shown.State.ACTIVE
    assert not shown.retain_acked_messages
    assert not shown.detached
    assert "retry_policy" not in shown
    assert "dead_letter_policy" not in shown


def test_a_subscription_keeps_what_it_was_given(google: Google) -> None:
    topic, letters = google.topic(message_retention_duration={"seconds": 1200}), google.topic()
    fields: dict[str, Any] = {
        "ack_deadline_seconds": 77,
        "retain_acked_messages": True,
        "message_retention_duration": {"seconds": 2 * DAY},
        "labels": {"team": "blue"},
        "enable_message_ordering": True,
        "expiration_policy": {"ttl": {"seconds": 3 * DAY}},
        "filter": 'attributes.kind = "a"',
        "dead_letter_policy": {"dead_letter_topic": letters, "max_delivery_attempts": 7},
        "retry_policy": {"minimum_backoff": {"seconds": 1}, "maximum_backoff": {"seconds": 9}},
        "enable_exactly_once_delivery": True,
    }
    shown = get(google, google.subscription(topic, **fields))
    assert shown.ack_deadline_seconds == 77
    assert shown.retain_acked_messages
    assert shown.message_retention_duration.total_seconds() == 2 * DAY
    assert dict(shown.labels) == {"team": "blue"}
    assert shown.enable_message_ordering
    assert shown.expiration_policy.ttl.total_seconds() == 3 * DAY
    assert shown.filter == 'attributes.kind = "a"'
    assert shown.dead_letter_policy.dead_letter_topic == letters
    assert shown.dead_letter_policy.max_delivery_attempts == 7
    assert shown.retry_policy.minimum_backoff.total_seconds() == 1
    assert shown.retry_policy.maximum_backoff.total_seconds() == 9
    assert shown.enable_exactly_once_delivery
    assert shown.topic_message_retention_duration.total_seconds() == 1200


def test_a_policy_left_empty_shows_its_defaults(google: Google) -> None:
    topic, letters = google.topic(), google.topic()
    shown = get(google, google.subscription(topic, retry_policy={}, dead_letter_policy={"dead_letter_topic": letters}))
    assert shown.retry_policy.minimum_backoff.total_seconds() == 10
    assert shown.retry_policy.maximum_backoff.total_seconds() == 600
    assert shown.dead_letter_policy.max_delivery_attempts == 5


def test_an_empty_expiration_policy_means_never(google: Google) -> None:
    shown = get(google, google.pair(expiration_policy={})[1])
    assert "expiration_policy" in shown
    assert "ttl" not in shown.expiration_policy


def test_a_subscription_without_a_name_gets_one(google: Google) -> None:
    topic = google.topic()
    first, second = (google.subscription(topic, name="") for _ in range(2))
    assert first != second
    assert get(google, first).name == first


def test_a_second_subscription_of_the_name_is_refused(google: Google) -> None:
    topic, subscription = google.pair()
    with pytest.raises(exceptions.AlreadyExists):
        google.subscription(topic, name=subscription)


def test_a_subscription_to_no_topic_is_refused(google: Google) -> None:
    with pytest.raises(exceptions.NotFound):
        google.subscription(google.name("topics"))


BAD: dict[str, dict[str, Any]] = {
    "deadline 9": {"ack_deadline_seconds": 9},
    "deadline 601": {"ack_deadline_seconds": 601},
    "deadline below 0": {"ack_deadline_seconds": -1},
    "retention 9:59": {"message_retention_duration": {"seconds": 599}},
    "retention past 31 days": {"message_retention_duration": {"seconds": 31 * DAY + 1}},
    "expires within a day": {"expiration_policy": {"ttl": {"seconds": DAY - 1}}, "message_retention_duration": {"seconds": 600}},
    "expires before its messages": {"expiration_policy": {"ttl": {"seconds": 2 * DAY}}},
    "backoff past 600 s": {"retry_policy": {"maximum_backoff": {"seconds": 601}}},
    "backoff below 0": {"retry_policy": {"minimum_backoff": {"seconds": -1}}},
    "backoffs crossed": {"retry_policy": {"minimum_backoff": {"seconds": 9}, "maximum_backoff": {"seconds": 8}}},
    "filter of no grammar": {"filter": "attributes.kind = a"},
    "filter mixes AND and OR": {"filter": "attributes:a AND attributes:b OR attributes:c"},
    "filter of 257 bytes": {"filter": f'attributes.k = "{"x" * 240}"'},
    "label in upper case": {"labels": {"TEAM": "x"}},
    "two destinations": {
        "push_config": {"push_endpoint": "https://example.com/push"},
        "bigquery_config": {"table": "p.d.t"},
    },
    "push to no URL": {"push_config": {"push_endpoint": "nonsense"}},
    "transform that is none": {"message_transforms": [{}]},
}


def test_a_subscription_out_of_bounds_is_refused(google: Google, subtests: pytest.Subtests) -> None:
    for name, fields in BAD.items():
        with subtests.test(name=name), pytest.raises(exceptions.InvalidArgument):
            google.pair(**fields)
    for attempts in (4, 101, -1):
        policy = {"dead_letter_topic": google.topic(), "max_delivery_attempts": attempts}
        with subtests.test(attempts=attempts), pytest.raises(exceptions.InvalidArgument):
            google.pair(dead_letter_policy=policy)


def test_dead_letters_to_no_topic_are_refused(google: Google) -> None:
    with pytest.raises(exceptions.NotFound):
        google.pair(dead_letter_policy={"dead_letter_topic": google.name("topics")})


GOOD: dict[str, dict[str, Any]] = {
    "deadline 10": {"ack_deadline_seconds": 10},
    "deadline 600": {"ack_deadline_seconds": 600},
    "retention 10 minutes": {"message_retention_duration": {"seconds": 600}},
    "retention 31 days": {"message_retention_duration": {"seconds": 31 * DAY}},
    "expires in a day": {"expiration_policy": {"ttl": {"seconds": DAY}}, "message_retention_duration": {"seconds": DAY}},
    "no backoff": {"retry_policy": {"minimum_backoff": {"seconds": 0}, "maximum_backoff": {"seconds": 600}}},
    "filter of 256 bytes": {"filter": f'attributes.k = "{"x" * 239}"'},
    "push": {"push_config": {"push_endpoint": "http://127.0.0.1:1/push"}},
    "BigQuery": {"bigquery_config": {"table": "p.d.t", "write_metadata": True}},
    "Cloud Storage": {"cloud_storage_config": {"bucket": "my-bucket"}},
}


def test_a_subscription_at_the_bounds_is_taken(google: Google, subtests: pytest.Subtests) -> None:
    for name, fields in GOOD.items():
        with subtests.test(name=name):
            shown = get(google, google.pair(**fields)[1])
            for field, value in fields.items():
                if isinstance(value, int | str):
                    assert getattr(shown, field) == value
                else:
                    assert field in shown


def test_an_update_changes_what_the_mask_names_and_no_more(google: Google) -> None:
    _, subscription = google.pair(labels={"a": "1"}, ack_deadline_seconds=20)
    changed = google.update(subscription, "ack_deadline_seconds", ack_deadline_seconds=30, labels={"b": "2"})
    assert (changed.ack_deadline_seconds, dict(changed.labels)) == (30, {"a": "1"})
    changed = google.update(subscription, "labels", "retain_acked_messages", labels={"c": "3"}, retain_acked_messages=True)
    assert (changed.retain_acked_messages, dict(changed.labels)) == (True, {"c": "3"})
    assert get(google, subscription) == changed


def test_an_update_takes_policies_away_and_gives_defaults_back(google: Google) -> None:
    letters = google.topic()
    _, subscription = google.pair(
        retry_policy={"minimum_backoff": {"seconds": 1}},
        dead_letter_policy={"dead_letter_topic": letters},
        message_retention_duration={"seconds": 600},
        ack_deadline_seconds=60,
    )
    cleared = google.update(
        subscription, "retry_policy", "dead_letter_policy", "message_retention_duration", "ack_deadline_seconds"
    )
    assert "retry_policy" not in cleared
    assert "dead_letter_policy" not in cleared
    assert cleared.message_retention_duration.total_seconds() == 7 * DAY
    assert cleared.ack_deadline_seconds == 10


def test_a_path_may_go_into_a_policy(google: Google) -> None:
    _, subscription = google.pair(retry_policy={"minimum_backoff": {"seconds": 1}, "maximum_backoff": {"seconds": 5}})
    patch = {"maximum_backoff": {"seconds": 8}}
    changed = google.update(subscription, "retry_policy.maximum_backoff", retry_policy=patch)
    assert changed.retry_policy.minimum_backoff.total_seconds() == 1
    assert changed.retry_policy.maximum_backoff.total_seconds() == 8


def test_a_bad_mask_is_refused(google: Google, subtests: pytest.Subtests) -> None:
    _, subscription = google.pair()
    masks: list[tuple[str, ...]] = [(), ("nonsense",), ("filter",), ("topic",), ("name",), ("enable_message_ordering",)]
    for paths in masks:
        with subtests.test(paths=paths), pytest.raises(exceptions.InvalidArgument):
            google.update(subscription, *paths, ack_deadline_seconds=30)


def test_an_update_out_of_bounds_changes_nothing(google: Google) -> None:
    _, subscription = google.pair(ack_deadline_seconds=30)
    with pytest.raises(exceptions.InvalidArgument):
        google.update(subscription, "ack_deadline_seconds", "labels", ack_deadline_seconds=5, labels={"a": "1"})
    assert get(google, subscription).ack_deadline_seconds == 30
    assert not get(google, subscription).labels


def test_updates_at_the_same_time_lose_nothing(google: Google) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            _, subscription = google.pair()
            first = pool.submit(google.update, subscription, "labels", labels={"a": "1"})
            second = pool.submit(google.update, subscription, "ack_deadline_seconds", ack_deadline_seconds=44)
            first.result(PATIENCE)
            second.result(PATIENCE)
            shown = get(google, subscription)
            assert (dict(shown.labels), shown.ack_deadline_seconds) == ({"a": "1"}, 44)


def test_an_update_of_nothing_is_not_found(google: Google) -> None:
    with pytest.raises(exceptions.NotFound):
        google.update(google.name("subscriptions"), "labels")


def test_subscriptions_are_listed_in_pages(server: Any) -> None:
    mine = Google(server.grpc, project=unique("project"))
    try:
        topic = mine.topic()
        made = sorted(mine.subscription(topic) for _ in range(5))
        project = f"projects/{mine.project}"
        pages = list(mine.subscriber.list_subscriptions(request={"project": project, "page_size": 2}).pages)
        assert [len(page.subscriptions) for page in pages] == [2, 2, 1]
        assert [one.name for page in pages for one in page.subscriptions] == made
        token = pages[0].next_page_token
        with pytest.raises(exceptions.InvalidArgument):
            mine.call(mine.plain.list_topics, {"project": project, "page_token": token})
    finally:
        mine.close()


def test_a_deleted_subscription_is_gone(google: Google) -> None:
    topic, subscription = google.pair()
    google.call(google.subscriber.delete_subscription, {"subscription": subscription})
    for call in (google.subscriber.get_subscription, google.subscriber.delete_subscription):
        with pytest.raises(exceptions.NotFound):
            google.call(call, {"subscription": subscription})
    with pytest.raises(exceptions.NotFound):
        google.pull_once(subscription)
    assert not list(google.plain.list_topic_subscriptions(topic=topic))


def test_a_detached_subscription_holds_nothing_and_can_only_be_deleted(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"never seen")
    google.call(google.plain.detach_subscription, {"subscription": subscription})
    shown = get(google, subscription)
    assert shown.detached
    assert subscription not in list(google.plain.list_topic_subscriptions(topic=topic))
    with pytest.raises(exceptions.FailedPrecondition):
        google.pull_once(subscription)
    google.call(google.subscriber.delete_subscription, {"subscription": subscription})


def test_a_push_subscription_cannot_be_pulled_until_it_is_switched(google: Google) -> None:
    topic, subscription = google.pair(push_config={"push_endpoint": "http://127.0.0.1:1/nobody"})
    google.publish(topic, b"later")
    with pytest.raises(exceptions.FailedPrecondition):
        google.pull_once(subscription)
    google.call(google.subscriber.modify_push_config, {"subscription": subscription, "push_config": {}})
    assert google.pull(subscription, 1, within=30)[0].message.data == b"later"


def test_a_subscription_that_nobody_uses_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "INTERVAL_SECONDS", 0.02)
    clock = ManualClock()
    with LocalServer(clock=clock) as server:
        google = Google(server.grpc)
        policy = {"expiration_policy": {"ttl": {"seconds": DAY}}, "message_retention_duration": {"seconds": 600}}
        topic, idle = google.pair(**policy)
        used, forever = google.subscription(topic, **policy), google.subscription(topic, expiration_policy={})
        clock.advance(DAY - 60)
        google.pull_once(used, now=True)
        clock.advance(120)
        eventually(lambda: idle not in list(google.plain.list_topic_subscriptions(topic=topic)))
        assert get(google, used).name == used
        assert get(google, forever).name == forever
        google.close()
