"""Options: what is right is read, what is wrong is told by the name that the user wrote, and no secret is shown."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.pipeline.core.options import (
    EARLIEST,
    LATEST,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    TABLE_OPTIONS,
    VIEWS,
    Bound,
    Kind,
    OptionReader,
    Point,
    SourceOptions,
    TableOptions,
    column_names,
    from_environment,
    schema_of,
    source_options,
    table_options,
)

WHERE = {"endpoint": "http://127.0.0.1:8080", "subscribe": "orders"}
DAY = 1_767_225_600_000_000  # 2026-01-01 in UTC
PAGE = Path(__file__).parents[3] / "docs" / "spark-options.md"


def options_of(**given: Any) -> SourceOptions:
    """As Spark hands them over: lower-case names."""
    both = {**WHERE, **given}
    return source_options({name.lower(): value for name, value in both.items()})


def test_defaults() -> None:
    options = options_of()

    assert options.streams == ("orders",)
    assert options.columns == column_names("messages")
    assert (options.view, options.storage, options.is_strict) == ("messages", "log", True)
    assert options.start.of("orders", LATEST) is LATEST
    assert options.start.of("orders", EARLIEST) is EARLIEST
    assert (options.max_rows, options.max_bytes, options.min_partitions, options.max_partition_rows) == (None,) * 4
    options.check_batch()
    options.check_stream()


def test_everything_is_read() -> None:
    options = options_of(
        subscribe=" orders , queue:jobs",
        failOnDataLoss="FALSE",
        minPartitions="8",
        maxRecordsPerPartition="1000",
        maxOffsetsPerTrigger=" 5 ",
        maxBytesPerTrigger="64m",
        cursor="archive",
        project="shop",
        columns="value, offset",
    )

    assert options.streams == ("orders", "queue:jobs")
    assert options.columns == ("value", "offset")
    assert schema_of(options) == "value binary not null, offset bigint not null"
    assert (options.min_partitions, options.max_partition_rows, options.max_rows) == (8, 1000, 5)
    assert (options.max_bytes, options.cursor, options.project, options.is_strict) == (64 << 20, "archive", "shop", False)
    assert [options.matches(stream) for stream in ("orders", "queue:jobs", "jobs")] == [True, True, False]


def test_where_a_read_begins(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], Bound]] = [
        ({"startingOffsets": "earliest"}, Bound("startingOffsets", EARLIEST)),
        ({"startingOffsets": " Latest "}, Bound("startingOffsets", LATEST)),
        (
            {"startingOffsets": '{"orders": 120, "a": "earliest", "b": "latest", "c": -2, "d": -1, "e": 0}'},
            Bound(
                "startingOffsets",
                EARLIEST,
                {
                    "orders": Point(Kind.OFFSET, 120),
                    "a": EARLIEST,
                    "b": LATEST,
                    "c": EARLIEST,
                    "d": LATEST,
                    "e": Point(Kind.OFFSET, 0),
                },
            ),
        ),
        ({"startingTimestamp": "2026-01-01"}, Bound("startingTimestamp", Point(Kind.TIME, DAY))),
        ({"startingTimestamp": "2026-01-01T00:00:00Z"}, Bound("startingTimestamp", Point(Kind.TIME, DAY))),
        ({"startingTimestamp": "2026-01-01T01:00:00.000001+01:00"}, Bound("startingTimestamp", Point(Kind.TIME, DAY + 1))),
        ({"startingTimestamp": "1767225600000"}, Bound("startingTimestamp", Point(Kind.TIME, DAY))),
        ({"startingTimestamp": "1960-01-01"}, Bound("startingTimestamp", Point(Kind.TIME, 0))),
        (
            {"startingTimestamp": '{"orders": 1767225600000, "refunds": "2026-01-01"}'},
            Bound("startingTimestamp", EARLIEST, {"orders": Point(Kind.TIME, DAY), "refunds": Point(Kind.TIME, DAY)}),
        ),
    ]
    for given, bound in cases:
        with subtests.test(given=given, bound=bound):
            assert options_of(**given).start == bound


def test_what_kafka_says_in_other_words() -> None:
    assert options_of(startingOffsets='{"orders": {"0": 120}}').start == options_of(startingOffsets='{"orders": 120}').start
    by_time = options_of(startingOffsetsByTimestamp='{"orders": {"0": 1767225600000}}').start
    assert by_time.by_stream == {"orders": Point(Kind.TIME, DAY)}
    assert options_of(endingOffsetsByTimestamp="1767225600000").stop.others == Point(Kind.TIME, DAY)
    with pytest.raises(InvalidArgument, match="startingOffsets is "):
        options_of(startingOffsets='{"orders": {"0": 120, "1": 3}}')


def test_keys_are_a_list(subtests: pytest.Subtests) -> None:
    assert options_of().keys is None
    assert options_of(keys="ann, bob").keys == ("ann", "bob")
    assert options_of(keys='["ann", "b,c", "[d]"]').keys == ("ann", "b,c", "[d]")
    for wrong in ("", "a,,b", "a,a", "[]", '["a"', "[1]", '["a", null]', "[" * 100_000):
        with subtests.test(wrong=wrong[:9]), pytest.raises(InvalidArgument, match="keys is "):
            options_of(keys=wrong)
    with pytest.raises(InvalidArgument, match="keys is 'a', expected none for deadletters"):
        source_options({"endpoint": WHERE["endpoint"], "view": "deadletters", "keys": "a"})


def test_filters_cannot_be_pushed_down() -> None:
    assert options_of(pushFilters="false") == options_of()
    with pytest.raises(InvalidArgument, match="pushFilters is 'true', and there is no such option any more") as caught:
        options_of(pushFilters="true")
    assert all(name in str(caught.value.hint) for name in ("subscribe", "endingOffsets", "startingTimestamp", "keys"))


def test_options_of_kafka_are_refused_with_what_to_write(subtests: pytest.Subtests) -> None:
    cases = [
        ({"kafka.bootstrap.servers": "x:9092"}, "endpoint"),
        ({"groupId": "mine"}, "cursor"),
        ({"kafka.group.id": "mine"}, "cursor"),
        ({"assign": '{"orders": [0]}'}, "subscribe"),
        ({"kafka.security.protocol": "SSL"}, "leave it out"),
        ({"fetchOffset.numRetries": "3"}, "leave it out"),
    ]
    for given, hint in cases:
        with subtests.test(given=given), pytest.raises(InvalidArgument, match="is an option of Kafka") as caught:
            options_of(**given)
        assert hint in str(caught.value.hint)


def test_no_place_in_a_stream(subtests: pytest.Subtests) -> None:
    texts = [
        "",
        "  ",
        "soon",
        "{",
        "[]",
        '"earliest"',
        '{"orders": 1.5}',
        '{"orders": null}',
        '{"orders": true}',
        '{"orders": [1]}',
        '{"orders": {"1": 5}}',
        '{"orders": -3}',
        '{"orders": "tomorrow"}',
        '{"orders": 1, "orders": 2}',
        '{"orders": 99999999999999999999999999999}',
        '{"a":' * 5_000,
    ]
    for option in ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"):
        for text in texts:
            with (
                subtests.test(option=option, text=text[:50]),
                pytest.raises(InvalidArgument, match=rf"^{option} is .*, expected "),
            ):
                options_of(**{option: text})


def test_what_is_wrong_is_named_as_it_was_written(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str | None], str]] = [
        ({"endpoint": None}, "endpoint and path are missing, expected one of them"),
        ({"endpoint": ""}, "endpoint is '', expected some text"),
        ({"subscribe": None}, "subscribe and subscribePattern are missing"),
        ({"subscribePattern": ".*"}, "subscribe and subscribePattern are given"),
        ({"subscribe": "orders,,refunds"}, "subscribe is 'orders,,refunds', expected names with commas between them"),
        ({"subscribe": "orders,orders"}, "each once"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern is '(', expected a regular expression"),
        ({"view": "message"}, "view is 'message', expected one of messages, events, deadletters"),
        ({"view": "events", "subscribe": None, "subscribePattern": "a.*"}, "subscribePattern is 'a.*', expected none for events"),
        ({"columns": "valeu"}, "columns is 'valeu', expected names out of stream, offset"),
        ({"columns": "value,value"}, "each once"),
        ({"columns": "attributes", "includeHeaders": "false"}, "expected no attributes while includeHeaders is false"),
        ({"includeHeaders": "maybe"}, "includeHeaders is 'maybe', expected one of true, false"),
        ({"failOnDataLoss": "1"}, "failOnDataLoss is '1', expected one of true, false"),
        ({"minPartitions": "0"}, "minPartitions is '0', expected a whole number, 1 or more"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition is '-1'"),
        ({"maxOffsetsPerTrigger": "1e6"}, "maxOffsetsPerTrigger is '1e6'"),
        ({"maxOffsetsPerTrigger": "9" * 30}, "maxOffsetsPerTrigger is '999"),
        ({"maxBytesPerTrigger": "64 megabytes"}, "maxBytesPerTrigger is '64 megabytes', expected a number of bytes"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger is '0'"),
        ({"startingOffsets": "earliest", "startingTimestamp": "2026-01-01"}, "startingOffsets and startingTimestamp are given"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest', expected latest, or JSON"),
        ({"endingOffsets": '{"orders": -2}'}, "endingOffsets is "),
        ({"timeout": "0"}, "timeout is '0', expected a number of seconds above 0"),
        ({"timeout": "soon"}, "timeout is 'soon', expected a number of seconds above 0"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger is '5', expected at most"),
        ({"storage": "disk"}, "storage is 'disk', expected one of log, lake, auto"),
        ({"storage": "auto"}, "storage is 'auto' and lake is missing"),
        ({"endpoint": None, "path": "data", "cursor": "me"}, "cursor is 'me', expected none beside path alone"),
        ({"startingOffset": "earliest"}, "startingoffset is no option; did you mean startingOffsets?"),
        ({"subscribe_pattern": ".*"}, "subscribe_pattern is no option; did you mean subscribePattern?"),
        ({"maxOffsetPerTriger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"tokens": "hush"}, "tokens is no option; did you mean token?"),
    ]
    for given, told in cases:
        with subtests.test(given=given, told=told), pytest.raises(InvalidArgument, match=re.escape(told)):
            options_of(**given)


def test_options_of_spark_and_of_others_pass() -> None:
    options_of(
        checkpointLocation="somewhere", queryName="mine", mergeSchema="true", header="x", compression="none", mode="append"
    )


@pytest.mark.parametrize("given", [{"endingOffsets": "latest"}, {"endingTimestamp": "2026-01-01"}])
def test_what_a_stream_cannot_have(given: dict[str, str]) -> None:
    options_of(**given).check_batch()
    with pytest.raises(InvalidArgument, match=r"a stream"):
        options_of(**given).check_stream()


@pytest.mark.parametrize("given", [{"startingOffsets": "latest"}, {"startingOffsets": '{"orders": -1}'}, {"cursor": "mine"}])
def test_what_a_batch_read_cannot_have(given: dict[str, str]) -> None:
    options_of(**given).check_stream()
    with pytest.raises(InvalidArgument, match="in a batch read"):
        options_of(**given).check_batch()


def test_a_table_of_the_lake_is_read_as_a_whole() -> None:
    assert table_options({"lake": "somewhere", "TABLE": "lifecycle"}) == TableOptions("somewhere", "lifecycle")
    assert table_options({"lake": "somewhere"}) is None
    with pytest.raises(InvalidArgument, match="lake is missing"):
        table_options({"table": "lifecycle"})
    with pytest.raises(InvalidArgument, match="subscribe is 'orders', expected none beside table"):
        table_options({"lake": "x", "table": "lifecycle", "subscribe": "orders"})


def test_the_server_of_the_environment_is_taken_where_none_is_named() -> None:
    environ = {"PENSTOCK_SERVER": "http://there:1", "PENSTOCK_TOKEN": "secret"}

    assert from_environment({"subscribe": "a"}, environ) == {"subscribe": "a", "endpoint": "http://there:1", "token": "secret"}
    assert from_environment({"Endpoint": "http://here:1"}, environ) == {"Endpoint": "http://here:1"}
    assert from_environment({"path": "data"}, environ) == {"path": "data"}
    assert from_environment({"subscribe": "a"}, {}) == {"subscribe": "a"}


def test_a_table_of_the_catalogue_without_options_is_told_what_to_write() -> None:
    with pytest.raises(InvalidArgument, match="no option says what is read") as caught:
        source_options({})
    assert "WITH (endpoint = " in str(caught.value.hint)
    assert "CREATE TEMPORARY VIEW" in str(caught.value.hint)


def test_a_lake_alone_needs_no_broker() -> None:
    options = source_options({"storage": "lake", "lake": "somewhere", "subscribe": "orders"})

    assert (options.endpoint, options.path, options.lake) == (None, None, "somewhere")


@pytest.mark.parametrize("view", VIEWS)
def test_headers_can_be_left_out(view: str) -> None:
    with_headers, without = options_of(view=view).columns, options_of(view=view, includeHeaders="false").columns

    assert with_headers == column_names(view)
    assert without == tuple(name for name in with_headers if name != "attributes")


@pytest.mark.parametrize("view", ["events", "deadletters"])
def test_the_event_log_needs_no_stream(view: str) -> None:
    options = options_of(view=view, subscribe=None)

    assert options.streams is None
    assert options.matches("_penstock.events")
    assert not options.matches("orders")


def test_a_pattern_matches_whole_names() -> None:
    options = options_of(subscribe=None, subscribePattern="orders-.")

    assert [options.matches(name) for name in ("orders-1", "orders-12", "my-orders-1")] == [True, False, False]


def test_the_token_is_never_shown_and_arrives() -> None:
    options = options_of(token="hush")

    assert "hush" not in repr(options)
    assert "hush" not in str(options)
    assert pickle.loads(pickle.dumps(options)).token == "hush"
    with pytest.raises(InvalidArgument) as caught:
        options_of(token="hush", subscribe=None)
    assert "hush" not in str(caught.value)


def test_a_size_has_a_unit() -> None:
    for text, size in {"1": 1, "10b": 10, "2k": 2048, "1.5kb": 1536, "64M": 64 << 20, "1g": 1 << 30}.items():
        assert OptionReader({"maxbytespertrigger": text}, SOURCE_OPTIONS).size("maxBytesPerTrigger") == size


def test_the_page_names_every_option_and_no_other() -> None:
    rows = re.findall(r"^\| `([A-Za-z]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    source, _, sink = PAGE.read_text(encoding="utf-8").partition("## Writing")

    assert set(rows) == {*SOURCE_OPTIONS, *TABLE_OPTIONS, *SINK_OPTIONS}
    assert {name for name in SOURCE_OPTIONS if f"| `{name}` |" in source} == set(SOURCE_OPTIONS)
    assert {name for name in SINK_OPTIONS if f"| `{name}` |" in sink} == set(SINK_OPTIONS)
