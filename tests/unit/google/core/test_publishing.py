"""Publish requests at their limits."""

from typing import Any

import pytest

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.google import messages
from penstock.google.core.publishing import MAX_REQUEST_BYTES, accepted


def publish(*given: dict[str, Any], size: int = 0) -> None:
    accepted(messages.PublishRequest(topic="projects/p/topics/abc", messages=given).messages, size, 0)


GOOD: list[list[dict[str, Any]]] = [
    [{"data": b"x"}],
    [{"attributes": {"a": ""}}],
    [{"data": b"x"}] * 1000,
    [{"data": b"x", "ordering_key": "k" * 1024}] * 2,
    [{"attributes": {f"k{number}": "v" for number in range(100)}}],
    [{"attributes": {"k" * 256: "v" * 1024}}],
    [{"attributes": {"é" * 128: "한" * 341}}],
    [{"attributes": {"googclient_traceparent": "00-1-2-01"}}],
    [{"attributes": {"Goog": "x", "goo": "y"}}],
    [{"data": b"x", "message_id": "mine", "publish_time": {"seconds": 1}}],
]

BAD: list[tuple[list[dict[str, Any]], str]] = [
    ([], "messages has 0 entries"),
    ([{"data": b"x"}] * 1001, "messages has 1001 entries"),
    ([{}], r"messages\[0\] is empty"),
    ([{"data": b"x"}, {"ordering_key": ""}], r"messages\[1\] is empty"),
    ([{"ordering_key": "k"}], r"messages\[0\] is empty"),
    ([{"attributes": {f"k{number}": "v" for number in range(101)}}], "attributes has 101 entries"),
    ([{"attributes": {"k" * 257: "v"}}], "is 257 bytes long, wanted at most 256"),
    ([{"attributes": {"é" * 128 + "x": "v"}}], "is 257 bytes long"),
    ([{"attributes": {"k": "v" * 1025}}], r"messages\[0\].attributes\['k'\] is 1025 bytes"),
    ([{"attributes": {"k": "한" * 342}}], "is 1026 bytes long"),
    ([{"attributes": {"": "v"}}], r"a key of messages\[0\].attributes is ''"),
    ([{"attributes": {"goog": "v"}}], "does not start with 'goog'"),
    ([{"attributes": {"googlable": "v"}}], "does not start with 'goog'"),
    ([{"data": b"x", "ordering_key": "k" * 1025}], "ordering_key is 1025 bytes long"),
]


def test_good_messages_are_taken(subtests: pytest.Subtests) -> None:
    for given in GOOD:
        with subtests.test(given=given):
            publish(*given)


def test_one_bad_message_refuses_the_request(subtests: pytest.Subtests) -> None:
    for given, problem in BAD:
        with subtests.test(given=given, problem=problem), pytest.raises(InvalidArgument, match=problem):
            publish(*given)


def test_a_request_is_at_most_10_megabytes() -> None:
    publish({"data": b"x"}, size=MAX_REQUEST_BYTES)
    with pytest.raises(InvalidArgument, match="10485761 bytes long"):
        publish({"data": b"x"}, size=MAX_REQUEST_BYTES + 1)


def test_one_request_has_one_ordering_key_or_none(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, ...]] = [("a", "b"), ("a", ""), ("", "b"), ("a", "a", "b")]
    for keys in rows:
        with subtests.test(keys=keys):
            with pytest.raises(FailedPrecondition, match="wanted one ordering key") as caught:
                publish(*({"data": b"x", "ordering_key": key} for key in keys))
            assert caught.value.code == 9
