"""JavaScript transforms, set and seen through Google's client."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.api_core import exceptions

from penstock.google import messages
from tests.integration.google.real_client import Google, Listener, bodies, mask

pytest.importorskip("quickjs")


def script(body: str, name: str = "step", **fields: Any) -> dict[str, Any]:
    return {"javascript_udf": {"function_name": name, "code": f"function {name}(message, metadata) {{ {body} }}"}, **fields}


SHOUT = script("message.data = message.data.toUpperCase(); return message;", "shout")
MARK = script("message.attributes = {...message.attributes, marked: 'yes'}; return message;", "mark")
DROP = script("return message.attributes && message.attributes.secret ? null : message;", "drop")
FAIL = script("throw new Error('never works');", "fail")


def test_a_topic_changes_and_drops_what_is_published(google: Google) -> None:
    topic = google.topic(message_transforms=[DROP, SHOUT, MARK])
    subscription = google.subscription(topic)
    ids = google.publish(topic, {"data": b"loud"}, {"data": b"hush", "attributes": {"secret": "1"}}, {"data": b"also"})
    assert len(ids) == 3
    found = google.pull(subscription, 2)
    assert sorted(bodies(found)) == [b"ALSO", b"LOUD"]
    assert all(one.message.attributes["marked"] == "yes" for one in found)
    google.ack(subscription, found)
    assert google.pull_once(subscription, now=True) == []


def test_a_subscription_changes_only_its_own_messages(google: Google) -> None:
    topic, plain = google.pair()
    loud = google.subscription(topic, message_transforms=[SHOUT])
    google.publish(topic, b"word")
    assert bodies(google.pull(plain, 1)) == [b"word"]
    (found,) = google.pull(loud, 1)
    assert found.message.data == b"WORD"
    google.ack(loud, [found])


def test_what_a_subscription_drops_is_acked(google: Google) -> None:
    topic, subscription = google.pair(message_transforms=[DROP])
    with Listener(google, subscription) as listener:
        google.publish(topic, *[{"data": b"hush", "attributes": {"secret": "1"}}] * 20, {"data": b"say"})
        listener.wait(1)
        assert bodies(listener.arrivals.items) == [b"say"]


def test_a_message_that_a_topic_cannot_transform_is_refused(google: Google) -> None:
    topic = google.topic(message_transforms=[FAIL])
    with pytest.raises(exceptions.InvalidArgument):
        google.publish(topic, b"a")


def test_what_comes_after_a_failed_transform_waits_for_it_in_its_ordering_key(google: Google) -> None:
    picky = script("if (message.data === 'b') throw new Error('not this one'); return message;")
    topic, subscription = google.pair(
        message_transforms=[picky], enable_message_ordering=True, retry_policy={"minimum_backoff": {"seconds": 600}}
    )
    google.publish(topic, *({"data": data, "ordering_key": "k"} for data in (b"a", b"b", b"c")))
    with google.stream(subscription) as stream:
        google.publish(topic, {"data": b"d", "ordering_key": "other"})
        assert bodies(stream.wait(2)) == [b"a", b"d"]
        stream.heard()
        assert bodies(stream.received) == [b"a", b"d"]


def test_a_slow_transform_does_not_delay_other_topics(google: Google) -> None:
    """Eight requests, each of which takes seconds, are under way when another topic is made and used, and still when it was."""
    hostile = google.topic(message_transforms=[script("for (const t = Date.now(); Date.now() - t < 300;); return message;")])
    request = messages.PublishRequest(topic=hostile, messages=[{"data": b"x"}] * 20).SerializeToString()
    with grpc.insecure_channel(google.host) as channel:
        publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        calls = [publish.future(request) for _ in range(8)]
        loud = google.topic(message_transforms=[SHOUT])
        subscription = google.subscription(loud)
        google.publish(loud, b"word")
        assert bodies(google.pull(subscription, 1)) == [b"WORD"]
        assert not all(call.done() for call in calls)


def test_a_message_that_a_subscription_cannot_transform_becomes_a_dead_letter(google: Google) -> None:
    dead = google.topic()
    graveyard = google.subscription(dead)
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    topic, subscription = google.pair(message_transforms=[FAIL], dead_letter_policy=policy)
    with Listener(google, subscription) as listener:
        google.publish(topic, b"a")
        assert bodies(google.pull(graveyard, 1)) == [b"a"]
        assert not listener.arrivals.items


def test_a_disabled_transform_does_nothing(google: Google) -> None:
    topic, subscription = google.pair(message_transforms=[{**SHOUT, "disabled": True}])
    google.publish(topic, b"quiet")
    assert bodies(google.pull(subscription, 1)) == [b"quiet"]


def test_metadata_is_told(google: Google) -> None:
    tell = script("message.attributes = {id: String(metadata.message_id), key: metadata.ordering_key}; return message;")
    topic, subscription = google.pair(message_transforms=[tell], enable_message_ordering=True)
    google.publish(topic, {"data": b"a", "ordering_key": "k"})
    (found,) = google.pull(subscription, 1)
    assert dict(found.message.attributes) == {"id": found.message.message_id, "key": "k"}


def test_transforms_are_stored_changed_and_taken_away(google: Google) -> None:
    topic, subscription = google.pair(message_transforms=[SHOUT])
    shown = google.call(google.subscriber.get_subscription, {"subscription": subscription})
    assert shown.message_transforms[0].javascript_udf.function_name == "shout"
    google.update(subscription, "message_transforms")
    google.publish(topic, b"plain")
    assert bodies(google.pull(subscription, 1)) == [b"plain"]
    request = {"topic": {"name": topic, "message_transforms": [MARK]}, "update_mask": mask("message_transforms")}
    google.call(google.plain.update_topic, request)
    google.publish(topic, b"marked")
    assert google.pull(subscription, 1)[0].message.attributes["marked"] == "yes"


BROKEN = [
    {"function_name": "a", "code": "function a( {"},
    {"function_name": "a", "code": "function b(m) { return m; }"},
    {"function_name": "", "code": "function a(m) { return m; }"},
    {"function_name": "a", "code": ""},
    {"function_name": "a", "code": f"function a(m) {{ return m; }} // {'x' * 20_480}"},
]


def test_a_script_that_cannot_work_is_refused(google: Google, subtests: pytest.Subtests) -> None:
    for script in BROKEN:
        with subtests.test(code=script["code"][:40]):
            for make in (google.topic, google.pair):
                with pytest.raises(exceptions.InvalidArgument):
                    make(message_transforms=[{"javascript_udf": script}])


def test_an_endless_script_harms_nobody_else(google: Google) -> None:
    endless = google.topic(message_transforms=[script("while (true) {}")])
    with pytest.raises(exceptions.GoogleAPICallError):
        google.publish(endless, b"a")
    topic, subscription = google.pair()
    google.publish(topic, b"b")
    assert bodies(google.pull(subscription, 1)) == [b"b"]
