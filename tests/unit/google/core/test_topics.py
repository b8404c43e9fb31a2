"""Topics: what may be created, what may change, labels, transforms and retention at their limits."""

import math
from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core.topics import new_topic, retention, update_topic

NAME = "projects/p/topics/orders"
SCHEMA = "projects/p/schemas/order"
MINUTE, DAY = 60, 86_400


def topic(**fields: Any) -> Any:
    return messages.Topic(**{"name": NAME, **fields})


def udf(name: str = "f", code: str = "function f(m, d) { return m; }") -> dict[str, Any]:
    return {"javascript_udf": {"function_name": name, "code": code}}


GOOD: list[dict[str, Any]] = [
    {},
    {"labels": {"a": ""}},
    {"labels": {"a" * 63: "9" * 63}},
    {"labels": {f"k{number}": "v" for number in range(64)}},
    {"labels": {"ключ": "значение", "한": "글_-1"}},
    {"message_retention_duration": {"seconds": 10 * MINUTE}},
    {"message_retention_duration": {"seconds": 31 * DAY}},
    {"kms_key_name": "projects/p/locations/l/keyRings/r/cryptoKeys/k"},
    {"message_storage_policy": {"allowed_persistence_regions": ["europe-west1"]}},
    {"schema_settings": {"schema": SCHEMA, "encoding": 1}},
    {"schema_settings": {"schema": SCHEMA, "encoding": 2, "first_revision_id": "01234567", "last_revision_id": "89abcdef"}},
    {"message_transforms": [udf(f"f{n}", f"function f{n}(m, d) {{ return m; }}") for n in range(5)]},
    {"message_transforms": [udf("f", "function f(m){}".ljust(20 * 1024))]},
    {"message_transforms": [{"compression": {"compression_algorithm": 1, "compression_mode": 2}}]},
    {"message_transforms": [{"ai_inference": {"endpoint": "projects/p/locations/l/endpoints/e"}, "disabled": True}]},
    {"ingestion_data_source_settings": {"cloud_storage": {"bucket": "b"}}},
]

BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name is ''"),
    ({"name": "projects/p/subscriptions/orders"}, "name is"),
    ({"labels": {f"k{number}": "v" for number in range(65)}}, "labels has 65 entries"),
    ({"labels": {"a" * 64: "v"}}, "a key of labels is"),
    ({"labels": {"": "v"}}, "a key of labels is ''"),
    ({"labels": {"1a": "v"}}, "a key of labels is '1a'"),
    ({"labels": {"_a": "v"}}, "a key of labels is '_a'"),
    ({"labels": {"Upper": "v"}}, "a key of labels is 'Upper'"),
    ({"labels": {"a b": "v"}}, "a key of labels is 'a b'"),
    ({"labels": {"a": "V"}}, r"labels\['a'\] is 'V'"),
    ({"labels": {"a": "v" * 64}}, r"labels\['a'\] is"),
    ({"labels": {"a": "한" * 43}}, r"labels\['a'\] is"),
    ({"labels": {"a": "x\n"}}, r"labels\['a'\] is"),
    (
        {"message_retention_duration": {"seconds": 10 * MINUTE - 1}},
        "message_retention_duration is '599s', expected from 10 minutes",
    ),
    ({"message_retention_duration": {"seconds": 10 * MINUTE - 1, "nanos": 999_999_999}}, "message_retention_duration is"),
    ({"message_retention_duration": {"seconds": 31 * DAY, "nanos": 1}}, "to 31 days"),
    ({"message_retention_duration": {}}, "message_retention_duration is '0s'"),
    ({"message_retention_duration": {"seconds": -1}}, "message_retention_duration is '-1s'"),
    ({"message_retention_duration": {"seconds": 2**63 - 1, "nanos": 2**31 - 1}}, "message_retention_duration is"),
    ({"message_retention_duration": {"seconds": 700, "nanos": -1}}, "message_retention_duration is"),
    ({"schema_settings": {"encoding": 1}}, "schema_settings.schema is ''"),
    ({"schema_settings": {"schema": SCHEMA}}, "schema_settings.encoding is 0"),
    ({"schema_settings": {"schema": SCHEMA, "encoding": 7}}, "schema_settings.encoding is 7"),
    (
        {"schema_settings": {"schema": SCHEMA, "encoding": 1, "first_revision_id": "x"}},
        "schema_settings.first_revision_id is 'x'",
    ),
    ({"message_transforms": [{}]}, r"message_transforms\[0\] is empty"),
    ({"message_transforms": [udf()] * 6}, "message_transforms has 6 entries"),
    ({"message_transforms": [udf(), udf()]}, r"message_transforms\[1\].javascript_udf.function_name is 'f'"),
    ({"message_transforms": [udf("")]}, "function_name is ''"),
    ({"message_transforms": [udf("a b")]}, "function_name is 'a b'"),
    ({"message_transforms": [udf("f", "")]}, "code is 0 bytes"),
    ({"message_transforms": [udf("f", "function f(m){}".ljust(20 * 1024 + 1))]}, "code is 20481 bytes"),
    ({"message_transforms": [udf("f", "function g(m) {}")]}, "code that defines the function f"),
    ({"message_transforms": [{"compression": {"compression_mode": 1}}]}, "compression_algorithm is 0, expected ZLIB or ZSTD"),
    ({"message_transforms": [{"compression": {"compression_algorithm": 1, "compression_mode": 9}}]}, "compression_mode is 9"),
    ({"message_transforms": [{"ai_inference": {}}]}, "ai_inference.endpoint is missing"),
    (
        {"ingestion_data_source_settings": {"cloud_storage": {"minimum_object_create_time": {"seconds": 2**62}}}},
        "a value that JSON cannot represent",
    ),
]


def test_a_good_topic_is_kept_as_it_was_given_and_is_active(subtests: pytest.Subtests) -> None:
    for fields in GOOD:
        with subtests.test(fields=str(fields)):
            given = topic(**fields)

            assert new_topic(given) == topic(**fields, state="ACTIVE")
            assert given == topic(**fields), "what the caller holds is left alone"


def test_a_bad_topic_is_refused_and_the_field_is_named(subtests: pytest.Subtests) -> None:
    for fields, problem in BAD:
        with subtests.test(fields=fields, problem=problem), pytest.raises(InvalidArgument, match=problem):
            new_topic(topic(**fields))


def test_a_number_that_is_none_is_refused_while_it_can_still_be_told() -> None:
    given = topic(message_transforms=[{"ai_inference": {"endpoint": "e"}}])
    given.message_transforms[0].ai_inference.unstructured_inference.parameters["x"] = math.nan

    with pytest.raises(InvalidArgument, match="JSON"):
        new_topic(given)


def test_what_only_the_server_says_is_not_taken_from_a_client() -> None:
    given = topic(satisfies_pzs=True, state="INGESTION_RESOURCE_ERROR", tags={"1/a": "b"})

    assert new_topic(given) == topic(state="ACTIVE")


def test_retention_is_whole_microseconds_or_none() -> None:
    assert retention(topic()) is None
    assert retention(topic(message_retention_duration={"seconds": 600, "nanos": 1_999})) == 600_000_001


def test_an_update_replaces_what_the_mask_names_and_nothing_else() -> None:
    old = new_topic(topic(labels={"a": "1"}, kms_key_name="k", message_retention_duration={"seconds": 600}))
    patch = messages.Topic(labels={"b": "2"}, kms_key_name="other", message_retention_duration={"seconds": 700})

    new = update_topic(old, patch, ["labels", "message_retention_duration"])

    assert dict(new.labels) == {"b": "2"}
    assert new.message_retention_duration.seconds == 700
    assert new.kms_key_name == "k"
    assert dict(old.labels) == {"a": "1"}


def test_a_masked_field_that_the_patch_lacks_is_cleared() -> None:
    old = new_topic(
        topic(labels={"a": "1"}, message_retention_duration={"seconds": 600}, schema_settings={"schema": SCHEMA, "encoding": 1})
    )

    new = update_topic(old, messages.Topic(schema_settings={}), ["labels", "message_retention_duration", "schema_settings"])

    assert new == new_topic(topic())


def test_a_path_may_go_into_a_message() -> None:
    old = new_topic(topic(schema_settings={"schema": SCHEMA, "encoding": 1, "first_revision_id": "00000001"}))
    patch = messages.Topic(schema_settings={"first_revision_id": "00000002", "encoding": 2})

    new = update_topic(old, patch, ["schema_settings.first_revision_id"])

    assert new.schema_settings == messages.SchemaSettings(schema=SCHEMA, encoding=1, first_revision_id="00000002")


def test_a_path_may_go_as_deep_as_there_are_messages() -> None:
    path = "ingestion_data_source_settings.cloud_storage.text_format.delimiter"
    patch = messages.Topic()
    patch.ingestion_data_source_settings.cloud_storage.text_format.delimiter = ""

    new = update_topic(new_topic(topic(kms_key_name="k")), patch, [path])

    assert new.ingestion_data_source_settings.cloud_storage.text_format.HasField("delimiter")
    assert not update_topic(new, messages.Topic(), [path]).ingestion_data_source_settings.cloud_storage.text_format.HasField(
        "delimiter"
    )
    assert new.kms_key_name == "k"


def test_a_topic_whose_schema_was_deleted_can_still_change() -> None:
    old = new_topic(topic(schema_settings={"schema": SCHEMA, "encoding": 1}))
    old.schema_settings.schema = "_deleted-schema_"

    assert update_topic(old, messages.Topic(), ["labels"]) == old


def test_a_bad_mask_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[list[str], str]] = [
        ([], "update_mask is empty"),
        (["name"], "that can be changed"),
        (["state"], "that can be changed"),
        (["tags"], "that can be changed"),
        (["satisfies_pzs"], "that can be changed"),
        (["labels", "name"], "path of update_mask is 'name'"),
        (["unknown"], "'unknown', expected a field of Topic"),
        (["messageRetentionDuration"], "in snake_case"),
        (["*"], r"'\*', expected a field"),
        ([""], "'', expected a field"),
        (["."], "'.', expected a field"),
        (["labels.a"], "'labels.a'"),
        (["message_transforms.enabled"], "'message_transforms.enabled'"),
        (["kms_key_name.x"], "'kms_key_name.x'"),
        (["schema_settings.nothing"], "'schema_settings.nothing'"),
        (["message_retention_duration."], "'message_retention_duration.'"),
    ]
    for mask, problem in rows:
        with subtests.test(mask=mask, problem=problem), pytest.raises(InvalidArgument, match=problem):
            update_topic(new_topic(topic()), messages.Topic(), mask)


def test_an_update_keeps_the_rules_of_creation() -> None:
    with pytest.raises(InvalidArgument, match="a key of labels"):
        update_topic(new_topic(topic()), messages.Topic(labels={"A": "b"}), ["labels"])
