"""IAM policies through Google's client: kept and shown, and everything is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.iam.v1 import iam_policy_pb2, policy_pb2

from tests.integration.google.real_client import Google

ROLE = policy_pb2.Binding(role="roles/pubsub.viewer", members=["user:a@example.com"])


def get(google: Google, resource: str) -> Any:
    return google.publisher.get_iam_policy(request=iam_policy_pb2.GetIamPolicyRequest(resource=resource))


def put(google: Google, resource: str, policy: Any) -> Any:
    return google.publisher.set_iam_policy(request=iam_policy_pb2.SetIamPolicyRequest(resource=resource, policy=policy))


def test_a_policy_is_kept_for_topics_subscriptions_and_snapshots(google: Google) -> None:
    topic, subscription = google.pair()
    request = {"name": google.name("snapshots"), "subscription": subscription}
    snapshot = google.call(google.subscriber.create_snapshot, request).name
    for resource in (topic, subscription, snapshot):
        assert not get(google, resource).bindings
        put(google, resource, policy_pb2.Policy(bindings=[ROLE]))
        assert list(get(google, resource).bindings) == [ROLE]


def test_a_policy_that_has_changed_since_is_not_overwritten(google: Google) -> None:
    topic = google.topic()
    first = put(google, topic, policy_pb2.Policy(bindings=[ROLE]))
    put(google, topic, policy_pb2.Policy(etag=first.etag))
    with pytest.raises((exceptions.Aborted, exceptions.FailedPrecondition)):
        put(google, topic, policy_pb2.Policy(bindings=[ROLE], etag=first.etag))


def test_all_permissions_are_granted(google: Google) -> None:
    asked = ["pubsub.topics.publish", "pubsub.topics.delete"]
    request = iam_policy_pb2.TestIamPermissionsRequest(resource=google.topic(), permissions=asked)
    assert list(google.publisher.test_iam_permissions(request=request).permissions) == asked


def test_a_policy_of_nothing_is_not_found(google: Google) -> None:
    for call in (get, lambda google, resource: put(google, resource, policy_pb2.Policy())):
        with pytest.raises(exceptions.NotFound):
            call(google, google.name("topics"))
    with pytest.raises(exceptions.InvalidArgument):
        get(google, "nonsense")


def test_a_deleted_topic_takes_its_policy_along(google: Google) -> None:
    topic = google.topic()
    put(google, topic, policy_pb2.Policy(bindings=[ROLE]))
    google.call(google.plain.delete_topic, {"topic": topic})
    google.topic(name=topic)
    assert not get(google, topic).bindings
