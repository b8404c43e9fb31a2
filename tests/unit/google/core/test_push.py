"""Pushes: the request that is made, and what its answer means."""

import json
from base64 import b64encode
from typing import Any

import pytest

from penstock.google import messages
from penstock.google.core.push import PushRequest, backoff, is_acknowledged, push_request

NAME = "projects/p/subscriptions/orders"
SECOND = 1_000_000
WRAPPED = messages.PushConfig(push_endpoint="http://a/")
UNWRAPPED = messages.PushConfig(push_endpoint="http://a/", no_wrapper={})
WITH_METADATA = messages.PushConfig(push_endpoint="http://a/", no_wrapper={"write_metadata": True})


def message(**fields: Any) -> Any:
    publish_time = {"seconds": 1_700_000_000, "nanos": 123_000_000}
    return messages.PubsubMessage(**{"message_id": "7", "publish_time": publish_time, **fields})


def test_these_answers_acknowledge(subtests: pytest.Subtests) -> None:
    for status in (102, 200, 201, 202, 204):
        with subtests.test(status=status):
            assert is_acknowledged(status)


def test_any_other_answer_gives_the_message_back(subtests: pytest.Subtests) -> None:
    for status in (100, 101, 103, 199, 203, 205, 206, 226, 300, 301, 304, 400, 404, 409, 429, 500, 503, 0):
        with subtests.test(status=status):
            assert not is_acknowledged(status)


def test_an_endpoint_that_fails_is_left_alone_for_longer_and_longer(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int]] = [
        (0, 0),
        (1, SECOND // 10),
        (2, SECOND // 5),
        (10, 51_200_000),
        (11, 60 * SECOND),
        (1_000_000, 60 * SECOND),
    ]
    for failures, wait in rows:
        with subtests.test(failures=failures, wait=wait):
            assert backoff(failures) == wait


def test_a_wrapped_push_is_googles_json() -> None:
    request = push_request(WRAPPED, message(data=b"\x00\xff", attributes={"k": "é"}, ordering_key="o"), NAME, 3)

    assert request.headers == {"content-type": "application/json"}
    assert json.loads(request.body) == {
        "message": {
            "attributes": {"k": "é"},
            "data": b64encode(b"\x00\xff").decode(),
            "messageId": "7",
            "message_id": "7",
            "orderingKey": "o",
            "publishTime": "2023-11-14T22:13:20.123Z",
            "publish_time": "2023-11-14T22:13:20.123Z",
        },
        "subscription": NAME,
        "deliveryAttempt": 3,
    }


def test_what_a_message_lacks_is_left_out() -> None:
    sent = json.loads(push_request(WRAPPED, message(data=b"x"), NAME, None).body)

    assert set(sent) == {"message", "subscription"}
    assert set(sent["message"]) == {"data", "messageId", "message_id", "publishTime", "publish_time"}


def test_a_message_without_data_is_its_attributes() -> None:
    sent = json.loads(push_request(WRAPPED, message(attributes={"a": "b"}), NAME, None).body)

    assert set(sent["message"]) == {"attributes", "messageId", "message_id", "publishTime", "publish_time"}


def test_an_explicit_wrapper_is_the_wrapper() -> None:
    config = messages.PushConfig(push_endpoint="http://a/", pubsub_wrapper={})

    assert push_request(config, message(data=b"x"), NAME, 1) == push_request(WRAPPED, message(data=b"x"), NAME, 1)


def test_an_unwrapped_push_is_the_data_alone() -> None:
    request = push_request(UNWRAPPED, message(data=b"\x00\xff", attributes={"k": "v"}, ordering_key="o"), NAME, 3)

    assert request == PushRequest(b"\x00\xff", {"content-type": "application/octet-stream"})


def test_metadata_goes_into_headers_when_wished() -> None:
    attributes = {"Tenant": "a", "content-type": "text/plain"}
    request = push_request(WITH_METADATA, message(data=b"x", attributes=attributes, ordering_key="o"), NAME, 3)

    assert request.body == b"x"
    assert request.headers == {
        "content-type": "text/plain",
        "tenant": "a",
        "x-goog-pubsub-subscription-name": NAME,
        "x-goog-pubsub-message-id": "7",
        "x-goog-pubsub-publish-time": "2023-11-14T22:13:20.123Z",
        "x-goog-pubsub-ordering-key": "o",
    }


def test_an_attribute_that_must_not_be_a_header_is_left_out(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("a b", "x"),
        ("a:b", "x"),
        ("é", "x"),
        ("a\r\nb", "x"),
        ("a", "x\r\nEvil: 1"),
        ("a", "\x00"),
        ("Host", "evil"),
        ("content-length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("Authorization", "Bearer x"),
        ("proxy-authorization", "x"),
        ("X-Goog-Pubsub-Message-Id", "8"),
    ]
    for key, value in rows:
        with subtests.test(key=key, value=value):
            plain = push_request(WITH_METADATA, message(data=b"x"), NAME, None)

            assert push_request(WITH_METADATA, message(data=b"x", attributes={key: value}), NAME, None) == plain


def test_an_ordering_key_that_cannot_be_a_header_is_left_out() -> None:
    request = push_request(WITH_METADATA, message(data=b"x", ordering_key="a\r\nb"), NAME, None)

    assert "x-goog-pubsub-ordering-key" not in request.headers
