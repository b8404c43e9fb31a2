"""The options of the sink."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.pipeline.core.destination import Column, Layout, destination, layout

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
        (HERE | {"payload": "avro"}, "payload is 'avro', expected one of value, json", ""),
        (HERE | {"batch": "-1", "query": "q"}, "batch is '-1'", ""),
        (HERE | {"batch": "one", "query": "q"}, "batch is 'one'", ""),
        (HERE | {"query": "my query"}, "query is 'my query', expected up to 200 letters", ""),
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
    with pytest.raises(InvalidArgument, match="batch is 3, expected none in a stream"):
        destination(HERE | {"query": "q", "batch": "3"}).for_stream()


STRING_MAP = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}


def column(name: str, kind: str, tree: Any = None) -> Column:
    return Column(name, kind, kind if tree is None else tree)


VALUE = column("value", "binary")


def test_a_value_is_enough() -> None:
    assert layout([VALUE], is_json=False, has_stream=True) == Layout(("value",), None)


def test_every_column_that_a_message_can_have() -> None:
    columns = [
        column("stream", "string"),
        column("deliver_at", "timestamp"),
        column("ttl", "interval day to second"),
        column("priority", "tinyint"),
        column("attributes", "map<string,string>", STRING_MAP),
        column("key", "string"),
        column("value", "string"),
    ]

    found = layout(columns, is_json=False, has_stream=False)

    assert found == Layout(("stream", "deliver_at", "ttl", "priority", "attributes", "key", "value"), None)


def test_columns_with_the_names_of_kafka() -> None:
    headers = column("headers", "array<struct<key:string,value:binary>>", {"type": "array"})

    assert layout([VALUE, column("topic", "string"), headers], is_json=False, has_stream=False).special == (
        "value",
        "topic",
        "headers",
    )
    assert layout([VALUE, column("topic", "string")], is_json=True, has_stream=True) == Layout((), ("value", "topic"))
    with pytest.raises(InvalidArgument, match="columns 'stream' and 'topic', expected one of them"):
        layout([VALUE, column("topic", "string"), column("stream", "string")], is_json=False, has_stream=True)


def test_types_that_fit(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("value", "string"),
        ("value", "string collate UNICODE_CI"),
        ("key", "varchar(10)"),
        *(("priority", kind) for kind in ("tinyint", "smallint", "int", "bigint")),
        *(("ttl", kind) for kind in ("int", "double", "decimal(10,2)", "interval day", "interval hour to second")),
    ]
    for name, kind in cases:
        with subtests.test(name=name, kind=kind):
            columns = [column(name, kind)] if name == "value" else [VALUE, column(name, kind)]

            assert name in layout(columns, is_json=False, has_stream=True).special


def test_a_type_that_does_not_fit_is_named_with_what_is_wanted(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str, str]] = [
        ("value", "int", "string or binary", "payload"),
        ("value", "struct<a:int>", "string or binary", "to_json"),
        ("key", "binary", "string", "cast"),
        ("attributes", "map<string,int>", "map<string,string>", "cast"),
        ("attributes", "string", "map<string,string>", "cast"),
        ("priority", "double", "whole number", "cast"),
        ("priority", "string", "whole number", "rename"),
        ("ttl", "string", "seconds", "cast"),
        ("ttl", "interval year to month", "seconds", "cast"),
        ("deliver_at", "timestamp_ntz", "timestamp", "time zone"),
        ("deliver_at", "bigint", "timestamp", "cast"),
        ("stream", "int", "string", "cast"),
    ]
    for name, kind, wanted, hint in cases:
        with subtests.test(name=name, kind=kind, wanted=wanted, hint=hint):
            columns = [column(name, kind)] if name == "value" else [VALUE, column(name, kind)]

            with pytest.raises(InvalidArgument, match="expected") as raised:
                layout(columns, is_json=False, has_stream=True)

            assert repr(name) in str(raised.value)
            assert repr(kind) in str(raised.value)
            assert wanted in str(raised.value)
            assert hint in (raised.value.hint or "")


def test_columns_that_make_no_message(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Column], bool, bool, str, str]] = [
        ([VALUE], False, False, "no stream to write to", "topic"),
        ([column("body", "string")], False, True, "no column `value` to write; there are 'body'", "payload"),
        ([], False, True, "no column `value` to write", "payload"),
        ([VALUE, column("amount", "int"), column("who", "string")], False, True, "'amount', 'who'", "select"),
        ([VALUE, column("Key", "string")], False, True, "'Key'", "select"),
        ([VALUE, VALUE], False, True, "'value' is there more than once", "drop"),
        ([column("key", "string")], True, True, "no column is left", "beside"),
    ]
    for columns, is_json, has_stream, said, hint in cases:
        with subtests.test(columns=columns, is_json=is_json, has_stream=has_stream, said=said, hint=hint):
            with pytest.raises(InvalidArgument) as raised:
                layout(columns, is_json=is_json, has_stream=has_stream)

            assert said in str(raised.value)
            assert hint in (raised.value.hint or "")


def test_as_json_all_that_means_nothing_to_the_log_is_payload_also_a_value() -> None:
    columns = [
        column("id", "bigint", "long"),
        column("key", "string"),
        column("value", "double"),
        column("ttl", "int", "integer"),
    ]

    assert layout(columns, is_json=True, has_stream=True) == Layout(("key", "ttl"), ("id", "value"))


def test_types_that_have_a_form_in_json(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Any]] = [
        ("bigint", "long"),
        ("decimal(38,9)", "decimal(38,9)"),
        ("timestamp_ntz", "timestamp_ntz"),
        ("time(6)", "time(6)"),
        ("void", "void"),
        ("array<binary>", {"type": "array", "elementType": "binary", "containsNull": True}),
        ("map<int,date>", {"type": "map", "keyType": "integer", "valueType": "date", "valueContainsNull": True}),
        (
            "struct<a:array<map<date,smallint>>>",
            {
                "type": "struct",
                "fields": [
                    {
                        "name": "a",
                        "type": {"type": "array", "elementType": {"type": "map", "keyType": "date", "valueType": "short"}},
                    }
                ],
            },
        ),
    ]
    for kind, tree in cases:
        with subtests.test(kind=kind, tree=tree):
            assert layout([column("data", kind, tree)], is_json=True, has_stream=True).payload == ("data",)


def test_types_that_have_none(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("variant", "variant", "'variant'"),
        ("interval year to month", "interval year to month", "'interval year to month'"),
        ("array<variant>", {"type": "array", "elementType": "variant"}, "'variant'"),
        ("struct<v:variant>", {"type": "struct", "fields": [{"name": "v", "type": "variant"}]}, "'variant'"),
        ("map<boolean,int>", {"type": "map", "keyType": "boolean", "valueType": "integer"}, "keys"),
        ("map<string,variant>", {"type": "map", "keyType": "string", "valueType": "variant"}, "'variant'"),
        (
            "map<array<int>,int>",
            {"type": "map", "keyType": {"type": "array", "elementType": "integer"}, "valueType": "int"},
            "keys",
        ),
        ("vector", {"type": "udt", "class": "some.Vector"}, "'vector'"),
    ]
    for kind, tree, said in cases:
        with subtests.test(kind=kind, tree=tree, said=said):
            with pytest.raises(InvalidArgument, match="column 'data' as JSON") as raised:
                layout([column("data", kind, tree)], is_json=True, has_stream=True)

            assert said in str(raised.value)
            assert "select" in (raised.value.hint or "")
