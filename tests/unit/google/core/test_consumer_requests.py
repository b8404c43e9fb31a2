"""Pull, Acknowledge, ModifyAckDeadline and the requests of StreamingPull, at their limits."""

from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core import consumer_requests
from penstock.google.core.consumer_requests import StreamChange, changed, opened
from penstock.values.resource_names import Name

NAME = "projects/p/subscriptions/orders"
SECOND = 1_000_000


def test_a_pull_returns_no_more_than_asked(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int]] = [(1, 1), (1000, 1000), (1001, 1000), (2**31 - 1, 1000)]
    for asked, limit in rows:
        with subtests.test(asked=asked, limit=limit):
            assert consumer_requests.pull_limit(messages.PullRequest(max_messages=asked)) == limit


def test_a_pull_of_nothing_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[int] = [0, -1, -(2**31)]
    for asked in rows:
        with subtests.test(asked=asked), pytest.raises(InvalidArgument, match=f"max_messages is {asked}"):
            consumer_requests.pull_limit(messages.PullRequest(max_messages=asked))


def test_acks_and_deadlines_name_ack_ids() -> None:
    assert consumer_requests.acknowledged(messages.AcknowledgeRequest(ack_ids=["a", "b"])) == ["a", "b"]
    with pytest.raises(InvalidArgument, match="ack_ids is"):
        consumer_requests.acknowledged(messages.AcknowledgeRequest())
    with pytest.raises(InvalidArgument, match="ack_ids is"):
        consumer_requests.modified(messages.ModifyAckDeadlineRequest(ack_deadline_seconds=10))


def test_a_deadline_is_set_in_microseconds_from_now(subtests: pytest.Subtests) -> None:
    for seconds in (0, 1, 600):
        with subtests.test(seconds=seconds):
            request = messages.ModifyAckDeadlineRequest(ack_ids=["a"], ack_deadline_seconds=seconds)

            assert consumer_requests.modified(request) == (["a"], seconds * SECOND)


def test_a_deadline_out_of_range_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[int] = [-1, 601, 2**31 - 1]
    for seconds in rows:
        problem = f"ack_deadline_seconds is {seconds}, expected seconds from 0 to 600"
        with subtests.test(seconds=seconds), pytest.raises(InvalidArgument, match=problem):
            consumer_requests.modified(messages.ModifyAckDeadlineRequest(ack_ids=["a"], ack_deadline_seconds=seconds))


def first(**fields: Any) -> Any:
    return messages.StreamingPullRequest(**{"subscription": NAME, "stream_ack_deadline_seconds": 10, **fields})


def test_the_first_request_opens_the_stream() -> None:
    request = first(
        stream_ack_deadline_seconds=600,
        client_id="me",
        max_outstanding_messages=1000,
        max_outstanding_bytes=1 << 40,
        protocol_version=1,
        ack_ids=["a"],
        modify_deadline_ack_ids=["b", "c"],
        modify_deadline_seconds=[0, 600],
    )

    opening = opened(request)

    assert opening == consumer_requests.StreamOpening(
        subscription=Name("p", "subscriptions", "orders"),
        ack_deadline=600 * SECOND,
        client_id="me",
        max_messages=1000,
        max_bytes=1 << 40,
        change=StreamChange(None, ("a",), (("b", 0), ("c", 600 * SECOND))),
    )


def test_no_positive_limit_is_no_limit(subtests: pytest.Subtests) -> None:
    rows: list[int] = [0, -1, -(2**63)]
    for limit in rows:
        with subtests.test(limit=limit):
            opening = opened(first(max_outstanding_messages=limit, max_outstanding_bytes=limit))

            assert (opening.max_messages, opening.max_bytes) == (None, None)
            assert not opening.change


def test_a_bad_first_request(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"subscription": ""}, "subscription is ''"),
        ({"subscription": "projects/p/topics/abc"}, "subscription is"),
        ({"stream_ack_deadline_seconds": 0}, "stream_ack_deadline_seconds is 0, expected seconds from 10 to 600"),
        ({"stream_ack_deadline_seconds": 9}, "stream_ack_deadline_seconds is 9"),
        ({"stream_ack_deadline_seconds": 601}, "stream_ack_deadline_seconds is 601"),
        ({"stream_ack_deadline_seconds": -10}, "stream_ack_deadline_seconds is -10"),
        ({"modify_deadline_ack_ids": ["a"]}, "modify_deadline_seconds has 0 entries, expected 1"),
    ]
    for fields, problem in rows:
        with subtests.test(fields=fields, problem=problem), pytest.raises(InvalidArgument, match=problem):
            opened(first(**fields))


def test_a_later_request_changes_something_or_shows_life(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], StreamChange]] = [
        ({}, StreamChange()),
        ({"client_id": "me"}, StreamChange()),
        ({"stream_ack_deadline_seconds": 10}, StreamChange(ack_deadline=10 * SECOND)),
        ({"stream_ack_deadline_seconds": 600}, StreamChange(ack_deadline=600 * SECOND)),
        ({"ack_ids": ["a", "b"]}, StreamChange(ack_ids=("a", "b"))),
        ({"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [0]}, StreamChange(deadlines=(("a", 0),))),
    ]
    for fields, change in rows:
        with subtests.test(fields=fields, change=change):
            found = changed(messages.StreamingPullRequest(**fields))

            assert found == change
            assert bool(found) == (change != StreamChange())


def test_a_bad_later_request(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"subscription": NAME}, "subscription is"),
        ({"max_outstanding_messages": 1}, "max_outstanding_messages is 1, expected nothing after the first"),
        ({"max_outstanding_messages": -1}, "max_outstanding_messages is -1"),
        ({"max_outstanding_bytes": 1}, "max_outstanding_bytes is 1"),
        ({"protocol_version": 1}, "protocol_version is 1"),
        ({"stream_ack_deadline_seconds": 9}, "stream_ack_deadline_seconds is 9"),
        ({"stream_ack_deadline_seconds": 601}, "stream_ack_deadline_seconds is 601"),
        ({"stream_ack_deadline_seconds": -1}, "stream_ack_deadline_seconds is -1"),
        ({"modify_deadline_seconds": [10]}, "modify_deadline_seconds has 1 entries, expected 0"),
        ({"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [-1]}, r"modify_deadline_seconds\[0\] is -1"),
        ({"modify_deadline_ack_ids": ["a", "b"], "modify_deadline_seconds": [0, 601]}, r"modify_deadline_seconds\[1\] is 601"),
    ]
    for fields, problem in rows:
        with subtests.test(fields=fields, problem=problem), pytest.raises(InvalidArgument, match=problem):
            changed(messages.StreamingPullRequest(**fields))
