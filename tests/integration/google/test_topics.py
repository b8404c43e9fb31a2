"""Topics through Google's client: made, changed, listed, deleted, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.integration.google.real_client import Google, mask, unique

DAY = 24 * 3600


def get(google: Google, topic: str) -> Any:
    return google.call(google.plain.get_topic, {"topic": topic})


def update(google: Google, topic: str, *paths: str, **fields: Any) -> Any:
    return google.call(google.plain.update_topic, {"topic": {"name": topic, **fields}, "update_mask": mask(*paths)})


def test_a_topic_is_made_and_found(google: Google) -> None:
    name = google.name("topics")
    made = google.publisher.create_topic(name=name)
    assert made.name == name
    assert made.state == made.State.ACTIVE
    assert google.publisher.get_topic(topic=name) == made


def test_a_topic_keeps_what_it_was_given(google: Google) -> None:
    topic = google.topic(
        labels={"team": "blue", "größe": "groß"},
        message_retention_duration={"seconds": 3600},
        kms_key_name="projects/p/locations/l/keyRings/r/cryptoKeys/k",
        message_storage_policy={"allowed_persistence_regions": ["europe-west1"], "enforce_in_transit": True},
    )
    found = get(google, topic)
    assert dict(found.labels) == {"team": "blue", "größe": "groß"}
    assert found.message_retention_duration.total_seconds() == 3600
    assert found.kms_key_name.endswith("cryptoKeys/k")
    assert list(found.message_storage_policy.allowed_persistence_regions) == ["europe-west1"]


def test_a_second_topic_of_the_name_is_refused(google: Google) -> None:
    with pytest.raises(exceptions.AlreadyExists):
        google.topic(name=google.topic())


def test_a_topic_that_is_not_there_is_not_found(google: Google) -> None:
    for call in ("get_topic", "delete_topic", "list_topic_subscriptions", "list_topic_snapshots"):
        with pytest.raises(exceptions.NotFound):
            google.call(getattr(google.plain, call), {"topic": google.name("topics")})


def test_a_name_has_bounds(google: Google, subtests: pytest.Subtests) -> None:
    for identity in ("ab", "1abc", "goog-topic", "with space", "x" * 256, "ümlaut", "a/b", "-abc", ""):
        with subtests.test(identity=identity), pytest.raises(exceptions.InvalidArgument):
            google.topic(name=f"projects/{google.project}/topics/{identity}")
    for identity in ("abc", "x" * 255, "A-Z_az.09~+%", "google2"[1:]):
        with subtests.test(identity=identity):
            assert google.topic(name=f"projects/{google.project}/topics/{identity}").endswith(identity)


BAD: dict[str, dict[str, Any]] = {
    "shorter than 10 minutes": {"message_retention_duration": {"seconds": 599}},
    "longer than 31 days": {"message_retention_duration": {"seconds": 31 * DAY + 1}},
    "an upper-case label": {"labels": {"Team": "blue"}},
    "a long value": {"labels": {"team": "x" * 64}},
    "65 labels": {"labels": {f"key{n}": "" for n in range(65)}},
    "a schema without a name": {"schema_settings": {"schema": "nonsense", "encoding": "JSON"}},
}


def test_a_topic_out_of_bounds_is_refused(google: Google, subtests: pytest.Subtests) -> None:
    for name, fields in BAD.items():
        with subtests.test(name=name), pytest.raises(exceptions.InvalidArgument):
            google.topic(**fields)


def test_retention_at_its_bounds_is_taken(google: Google) -> None:
    for seconds in (600, 31 * DAY):
        topic = google.topic(message_retention_duration={"seconds": seconds})
        assert get(google, topic).message_retention_duration.total_seconds() == seconds


def test_an_update_changes_what_the_mask_names_and_no_more(google: Google) -> None:
    topic = google.topic(labels={"a": "1"}, message_retention_duration={"seconds": 600})
    changed = update(google, topic, "labels", labels={"b": "2"}, message_retention_duration={"seconds": 700})
    assert dict(changed.labels) == {"b": "2"}
    assert changed.message_retention_duration.total_seconds() == 600
    assert get(google, topic) == changed


def test_an_update_clears_what_the_mask_names_and_the_patch_leaves_out(google: Google) -> None:
    topic = google.topic(labels={"a": "1"}, message_retention_duration={"seconds": 600})
    changed = update(google, topic, "message_retention_duration", "labels")
    assert not changed.labels
    assert "message_retention_duration" not in changed


def test_a_bad_mask_is_refused_and_changes_nothing(google: Google, subtests: pytest.Subtests) -> None:
    topic = google.topic(labels={"a": "1"})
    masks: list[tuple[str, ...]] = [(), ("nonsense",), ("name",), ("labels", "no_such"), ("messageRetentionDuration",)]
    for paths in masks:
        with subtests.test(paths=paths):
            with pytest.raises(exceptions.InvalidArgument):
                update(google, topic, *paths, labels={"b": "2"})
            assert dict(get(google, topic).labels) == {"a": "1"}


def test_topics_are_listed_in_pages(server: Any) -> None:
    mine = Google(server.grpc, project=unique("project"))
    try:
        made = sorted(mine.topic() for _ in range(7))
        pages = list(mine.plain.list_topics(request={"project": f"projects/{mine.project}", "page_size": 3}).pages)
        assert [len(page.topics) for page in pages] == [3, 3, 1]
        assert sorted(topic.name for page in pages for topic in page.topics) == made
        with pytest.raises(exceptions.InvalidArgument):
            mine.call(mine.plain.list_topics, {"project": f"projects/{mine.project}", "page_token": "forged"})
        with pytest.raises(exceptions.InvalidArgument):
            mine.call(mine.plain.list_topics, {"project": f"projects/{mine.project}", "page_size": -1})
    finally:
        mine.close()


def test_an_empty_project_has_no_topics(google: Google) -> None:
    assert not list(google.plain.list_topics(project="projects/nobody-was-here"))


def test_topics_of_another_project_stay_apart(server: Any, google: Google) -> None:
    topic = google.topic()
    other = topic.replace(google.project, "other-project")
    google.topic(name=other)
    google.call(google.plain.delete_topic, {"topic": other})
    assert get(google, topic).name == topic


def test_a_topic_names_its_subscriptions(google: Google) -> None:
    topic = google.topic()
    made = sorted(google.subscription(topic) for _ in range(3))
    assert sorted(google.plain.list_topic_subscriptions(topic=topic)) == made


def test_a_subscription_of_another_project_may_be_attached(google: Google) -> None:
    topic = google.topic()
    foreign = google.subscription(topic, name=f"projects/other-project/subscriptions/{unique('far')}")
    google.publish(topic, b"over the border")
    assert google.pull(foreign, 1)[0].message.data == b"over the border"
    assert foreign in list(google.plain.list_topic_subscriptions(topic=topic))


def test_a_deleted_topic_leaves_its_subscriptions_behind(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"gone with its topic")
    google.call(google.plain.delete_topic, {"topic": topic})
    shown = google.call(google.subscriber.get_subscription, {"subscription": subscription})
    assert shown.topic == "_deleted-topic_"
    assert not shown.detached
    # Google lets the backlog be pulled; here it goes with the topic, and the consumer is told so.
    with pytest.raises(exceptions.FailedPrecondition):
        google.pull_once(subscription)
    with pytest.raises(exceptions.NotFound):
        google.publish(topic, b"too late")


def test_a_topic_made_again_is_another_topic(google: Google) -> None:
    topic, orphan = google.pair()
    google.call(google.plain.delete_topic, {"topic": topic})
    google.topic(name=topic)
    fresh = google.subscription(topic)
    google.publish(topic, b"new life")
    assert google.pull(fresh, 1)[0].message.data == b"new life"
    shown = google.call(google.subscriber.get_subscription, {"subscription": orphan})
    assert shown.topic == "_deleted-topic_"
    assert list(google.plain.list_topic_subscriptions(topic=topic)) == [fresh]
