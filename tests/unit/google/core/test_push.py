"""Pushes: the request that is made, what its answer means, and how many are made at once."""

import json
from base64 import b64encode
from typing import Any

import pytest

from penstock.google import messages
from penstock.google.core.push import PushRequest, PushWindow, backoff, is_acknowledged, push_request

NAME = "projects/p/subscriptions/orders"
SECOND = 1_000_000
WRAPPED = messages.PushConfig(push_endpoint="http://a/")
UNWRAPPED = messages.PushConfig(push_endpoint="http://a/", no_wrapper={})
WITH_METADATA = messages.PushConfig(push_endpoint="http://a/", no_wrapper={"write_metadata": True})

MS = 1_000


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


def test_it_begins_with_one_and_doubles_with_every_round_of_successes() -> None:
    window, sizes = PushWindow(64), []
    for _ in range(8):
        sizes.append(window.size)
        for _ in range(window.size):
            window.succeeded(window.size)

    assert sizes == [1, 2, 4, 8, 16, 32, 64, 64]


def test_a_window_that_is_not_used_does_not_grow() -> None:
    window = PushWindow(64)
    for _ in range(1_000):
        window.succeeded(1)

    assert window.size == 3


def test_a_round_of_failures_halves_it_once_and_down_to_one() -> None:
    window = PushWindow(64)
    for _ in range(15):
        window.succeeded(100)
    begun = window.round
    for _ in range(16):
        window.failed(begun, 0, is_paced=False)
    assert window.size == 8

    for _ in range(10):
        window.failed(window.round, 0, is_paced=False)
    assert window.size == 1


def test_an_endpoint_rests_twice_as_long_after_each_round_that_failed_up_to_a_minute() -> None:
    window, rests, now = PushWindow(8), [], 0
    for _ in range(12):
        window.failed(window.round, now, is_paced=False)
        rests.append(window.rest(now) // MS)
        now += window.rest(now)
        assert window.rest(now) == 0

    assert rests == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 60000, 60000]


def test_a_hundred_failures_of_one_round_are_one_failure() -> None:
    window = PushWindow(500)
    begun = window.round
    for _ in range(100):
        window.failed(begun, 0, is_paced=False)

    assert window.rest(0) == 100 * MS


def test_a_success_ends_the_rest() -> None:
    window = PushWindow(8)
    for _ in range(5):
        window.failed(window.round, 0, is_paced=False)
    window.succeeded(1)
    assert window.rest(0) == 0

    window.failed(window.round, 0, is_paced=False)
    assert window.rest(0) == 100 * MS


def test_with_a_retry_policy_one_failure_holds_up_nobody_and_many_in_a_row_only_a_little(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int]] = [(1, 0), (2, 100 * MS), (9, 100 * MS)]
    for failures, rest in rows:
        with subtests.test(failures=failures, rest=rest):
            window = PushWindow(8)
            for _ in range(failures):
                window.failed(window.round, 0, is_paced=True)

            assert window.rest(0) == rest
