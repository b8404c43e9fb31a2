"""The options of the sink."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.pipeline.core.destination import destination

HERE = {"endpoint": "http://127.0.0.1:1"}


def test_the_stream_of_an_option(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str | None]] = [
        ({}, None),
        ({"stream": "queue:jobs"}, "queue:jobs"),
        ({"topic": "orders"}, "orders"),
        ({"topic": "queue:jobs"}, "topic:queue:jobs"),
        ({"queue": "jobs"}, "queue:jobs"),
    ]
    for options, stream in cases:
        with subtests.test(options=options, stream=stream):
            assert destination(HERE | options).stream == stream


def test_what_is_not_said_is_left_to_the_defaults() -> None:
    found = destination(HERE)

    assert (found.is_json, found.for_batch(), found.token, found.project) == (False, (None, 0), None, None)


def test_a_batch_is_known_by_its_query_and_number() -> None:
    assert destination(HERE | {"query": "daily"}).for_batch() == ("daily", 0)
    assert destination(HERE | {"query": "daily", "batch": "7"}).for_batch() == ("daily", 7)


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(destination(HERE | {"token": "secret"}))


def test_options_that_cannot_be_used(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str, str]] = [
        ({}, "endpoint is missing", "endpoint"),
        ({"path": "somewhere"}, "'somewhere'", "endpoint"),
        (HERE | {"path": "somewhere"}, "through its server", "without a path"),
        (HERE | {"topic": "a", "queue": "b"}, "topic and queue are given", ""),
        (HERE | {"payload": "avro"}, "payload is 'avro', wanted one of value, json", ""),
        (HERE | {"batch": "-1", "query": "q"}, "batch is '-1'", ""),
        (HERE | {"batch": "one", "query": "q"}, "batch is 'one'", ""),
        (HERE | {"query": "my query"}, "query is 'my query', wanted up to 200 letters", ""),
        (HERE | {"topics": "a"}, "did you mean topic?", "options are"),
        (HERE | {"topic": " "}, "topic is ' '", ""),
    ]
    for options, said, hint in cases:
        with subtests.test(options=options, said=said, hint=hint):
            with pytest.raises(InvalidArgument) as raised:
                destination(options)

            assert said in str(raised.value)
            assert hint in (raised.value.hint or "")


def test_a_number_alone_names_no_batch() -> None:
    with pytest.raises(InvalidArgument, match="query is missing"):
        destination(HERE | {"batch": "3"}).for_batch()


def test_a_stream_numbers_its_batches_itself() -> None:
    with pytest.raises(InvalidArgument, match="batch is 3, wanted none in a stream"):
        destination(HERE | {"query": "q", "batch": "3"}).for_stream()
