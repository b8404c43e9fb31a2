"""Subscriptions: defaults, limits, what may change, and what the broker is told."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.errors import InvalidArgument, InvalidFilter
from penstock.google import messages
from penstock.google.core.subscriptions import MUTABLE, expires_after, new_subscription, options, update_subscription
from penstock.values.policy import DeadLetterPolicy, RetryPolicy, SubscriptionOptions, subscription_policy

NAME, TOPIC = "projects/p/subscriptions/orders", "projects/p/topics/orders"
DEAD = "projects/p/topics/dead"
MINUTE, DAY = 60, 86_400
URL = "https://example.com/push"


def subscription(**fields: Any) -> Any:
    return messages.Subscription(**{"name": NAME, "topic": TOPIC, **fields})


def made(**fields: Any) -> Any:
    return new_subscription(subscription(**fields))


def test_what_is_not_given_is_filled_in_as_google_does() -> None:
    assert made() == subscription(
        ack_deadline_seconds=10,
        message_retention_duration={"seconds": 7 * DAY},
        expiration_policy={"ttl": {"seconds": 31 * DAY}},
        push_config={},
        state="ACTIVE",
    )


def test_an_empty_expiration_policy_means_that_it_never_expires() -> None:
    forever = made(expiration_policy={})

    assert forever.HasField("expiration_policy")
    assert expires_after(forever) is None
    assert expires_after(made()) == 31 * DAY * 1_000_000


def test_defaults_inside_of_policies() -> None:
    given = made(retry_policy={}, dead_letter_policy={"dead_letter_topic": DEAD})

    assert given.retry_policy == messages.RetryPolicy(minimum_backoff={"seconds": 10}, maximum_backoff={"seconds": 600})
    assert given.dead_letter_policy.max_delivery_attempts == 5
    assert not made().HasField("retry_policy")
    assert not made(dead_letter_policy={}).HasField("dead_letter_policy")


def test_what_only_the_server_says_is_not_taken_from_a_client() -> None:
    given = made(detached=True, state="RESOURCE_ERROR", topic_message_retention_duration={"seconds": 1}, tags={"1/a": "b"})

    assert given == made()


GOOD: list[dict[str, Any]] = [
    {"ack_deadline_seconds": 10},
    {"ack_deadline_seconds": 600},
    {"message_retention_duration": {"seconds": 10 * MINUTE}},
    {"message_retention_duration": {"seconds": 31 * DAY}},
    {"message_retention_duration": {"seconds": DAY}, "expiration_policy": {"ttl": {"seconds": DAY}}},
    {"expiration_policy": {"ttl": {"seconds": 7 * DAY}}},
    {"expiration_policy": {"ttl": {"seconds": 315_576_000_000}}},
    {"retry_policy": {"minimum_backoff": {}, "maximum_backoff": {}}},
    {"retry_policy": {"minimum_backoff": {"seconds": 600}}},
    {"retry_policy": {"minimum_backoff": {"nanos": 1_000}, "maximum_backoff": {"seconds": 600}}},
    {"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}},
    {"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 100}},
    {"filter": 'attributes.a = "b" AND NOT attributes:c'},
    {"filter": 'attributes.a = "' + "b" * (256 - 17) + '"'},
    {"enable_message_ordering": True, "enable_exactly_once_delivery": True},
    {"push_config": {"push_endpoint": URL}, "enable_message_ordering": True},
    {"push_config": {"push_endpoint": "http://127.0.0.1:8080/a?b=c#d", "attributes": {"x-goog-version": "v1"}}},
    {"push_config": {"push_endpoint": "http://[::1]:1/"}},
    {"push_config": {"push_endpoint": URL, "oidc_token": {"service_account_email": "a@b", "audience": "x"}}},
    {"push_config": {"push_endpoint": URL, "no_wrapper": {"write_metadata": True}}},
    {"bigquery_config": {"table": "p.dataset.table", "use_topic_schema": True}},
    {"bigquery_config": {"table": "example.com:p.dataset.table"}},
    {"cloud_storage_config": {"bucket": "bucket", "max_duration": {"seconds": 60}, "max_bytes": 1024, "max_messages": 1000}},
    {"cloud_storage_config": {"bucket": "bucket", "max_duration": {"seconds": 600}, "max_bytes": 10 << 30, "avro_config": {}}},
    {"bigtable_config": {"table": "projects/p/instances/i/tables/t"}},
    {"message_transforms": [{"javascript_udf": {"function_name": "f", "code": "function f(m) {}"}}]},
]

BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name is ''"),
    ({"topic": ""}, "topic is ''"),
    ({"topic": "_deleted-topic_"}, "topic is"),
    ({"ack_deadline_seconds": 9}, "ack_deadline_seconds is 9, expected seconds from 10 to 600"),
    ({"ack_deadline_seconds": 601}, "ack_deadline_seconds is 601"),
    ({"ack_deadline_seconds": -1}, "ack_deadline_seconds is -1"),
    ({"message_retention_duration": {"seconds": 599}}, "message_retention_duration is '599s'"),
    ({"message_retention_duration": {"seconds": 31 * DAY + 1}}, "message_retention_duration is"),
    ({"expiration_policy": {"ttl": {}}}, "expiration_policy.ttl is '0s', expected 1 days or more"),
    ({"expiration_policy": {"ttl": {"seconds": DAY - 1}}}, "expiration_policy.ttl is '86399s'"),
    ({"expiration_policy": {"ttl": {"seconds": 7 * DAY - 1}}}, r"no less than message_retention_duration \(7 days\)"),
    ({"expiration_policy": {"ttl": {"seconds": 315_576_000_001}}}, "expiration_policy.ttl is"),
    ({"retry_policy": {"minimum_backoff": {"seconds": -1}}}, "retry_policy.minimum_backoff is '-1s'"),
    ({"retry_policy": {"minimum_backoff": {"seconds": 601}}}, "retry_policy.minimum_backoff is '601s'"),
    ({"retry_policy": {"maximum_backoff": {"seconds": 600, "nanos": 1}}}, "retry_policy.maximum_backoff is"),
    ({"retry_policy": {"maximum_backoff": {"seconds": 9}}}, r"minimum_backoff is '10 seconds', expected at most maximum_backoff"),
    ({"dead_letter_policy": {"max_delivery_attempts": 5}}, "dead_letter_policy.dead_letter_topic is ''"),
    ({"dead_letter_policy": {"dead_letter_topic": "dead"}}, "dead_letter_policy.dead_letter_topic is 'dead'"),
    (
        {"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 4}},
        "max_delivery_attempts is 4, expected 5 to 100",
    ),
    ({"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 101}}, "max_delivery_attempts is 101"),
    ({"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": -5}}, "max_delivery_attempts is -5"),
    ({"labels": {"A": "b"}}, "a key of labels is 'A'"),
    ({"message_transforms": [{}]}, r"message_transforms\[0\] is empty"),
    ({"push_config": {"oidc_token": {"service_account_email": "a@b"}}}, "push_config.push_endpoint is ''"),
    ({"push_config": {"push_endpoint": URL, "oidc_token": {}}}, "service_account_email is ''"),
    ({"push_config": {"push_endpoint": URL, "attributes": {"x": "y"}}}, "push_config.attributes is"),
    ({"push_config": {"push_endpoint": URL}, "enable_exactly_once_delivery": True}, "enable_exactly_once_delivery is True"),
    ({"bigquery_config": {"table": "p.d.t"}, "enable_exactly_once_delivery": True}, "enable_exactly_once_delivery is True"),
    ({"push_config": {"push_endpoint": URL}, "bigquery_config": {"table": "p.d.t"}}, "push_config and bigquery_config are set"),
    ({"cloud_storage_config": {"bucket": "bbb"}, "bigtable_config": {}}, "cloud_storage_config and bigtable_config are set"),
    ({"bigquery_config": {}}, "bigquery_config.table is ''"),
    ({"bigquery_config": {"table": "d.t"}}, "bigquery_config.table is 'd.t'"),
    ({"bigquery_config": {"table": "p.d.t", "use_topic_schema": True, "use_table_schema": True}}, "at most one of them"),
    ({"cloud_storage_config": {"bucket": "gs://bucket"}}, "cloud_storage_config.bucket is"),
    ({"cloud_storage_config": {"bucket": "bbb", "filename_suffix": "x/"}}, "filename_suffix is 'x/'"),
    ({"cloud_storage_config": {"bucket": "bbb", "max_duration": {"seconds": 59}}}, "max_duration is '59s'"),
    ({"cloud_storage_config": {"bucket": "bbb", "max_duration": {"seconds": 601}}}, "max_duration is '601s'"),
    ({"cloud_storage_config": {"bucket": "bbb", "max_bytes": 1023}}, "max_bytes is 1023"),
    ({"cloud_storage_config": {"bucket": "bbb", "max_bytes": (10 << 30) + 1}}, "max_bytes is"),
    ({"cloud_storage_config": {"bucket": "bbb", "max_messages": 999}}, "max_messages is 999"),
    ({"bigtable_config": {"table": "t"}}, "bigtable_config.table is 't'"),
]


def test_a_good_subscription_keeps_what_was_given_and_the_broker_takes_it(subtests: pytest.Subtests) -> None:
    for fields in GOOD:
        with subtests.test(fields=str(fields)):
            given = subscription(**fields)
            before = given.SerializeToString(deterministic=True)
            stored = new_subscription(given)

            again = messages.Subscription()
            again.CopyFrom(stored)
            again.MergeFrom(messages.Subscription(**{key: value for key, value in fields.items() if not isinstance(value, list)}))
            assert again == stored
            assert given.SerializeToString(deterministic=True) == before, "what the caller holds is left alone"
            assert new_subscription(stored) == stored, "what is complete stays as it is"
            assert isinstance(options(stored, "dead"), SubscriptionOptions)


def test_a_bad_subscription_is_refused_and_the_field_is_named(subtests: pytest.Subtests) -> None:
    for fields, problem in BAD:
        with subtests.test(fields=fields, problem=problem), pytest.raises(InvalidArgument, match=problem):
            made(**fields)


def test_a_push_endpoint_is_a_usable_url(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "x",
        "/a",
        "example.com",
        "ftp://example.com",
        "https://",
        "http:///a",
        "http://a b/",
        "http://a/\n",
        "http://a:99999/",
        "http://a:x/",
        "http://a:0/",
        "http://[::1",
        "http://user:secret@a/",
        "javascript:alert(1)",
        "http://a/" + "b" * 2048,
        "http://a\x7f/",
        "file:///a",
    ]
    for url in rows:
        with subtests.test(url=url), pytest.raises(InvalidArgument, match=r"push_config\.push_endpoint is"):
            made(push_config={"push_endpoint": url})


@pytest.mark.parametrize("text", ["attributes.a", 'attributes.a = "' + "b" * 240 + '"'])
def test_a_filter_that_does_not_parse_or_is_too_long(text: str) -> None:
    with pytest.raises(InvalidFilter):
        made(filter=text)


def test_a_delimited_key_of_bigtable_is_complete() -> None:
    def config(**key: Any) -> dict[str, Any]:
        return {"table": "projects/p/instances/i/tables/t", "column_family_mapping": {"delimited_key": key}}

    made(bigtable_config=config(key_fields=["a"]))
    made(bigtable_config=config(key_fields=["a", "b"], delimiter=b"#" * 50))
    for bad in (
        config(),
        config(key_fields=["a", "b"]),
        config(key_fields=["a", ""]),
        config(key_fields=["a"], delimiter=b"#" * 51),
    ):
        with pytest.raises(InvalidArgument, match="delimited_key"):
            made(bigtable_config=bad)


def test_an_export_is_shown_as_active_with_its_defaults() -> None:
    storage = made(cloud_storage_config={"bucket": "bucket"})

    assert storage.cloud_storage_config.state == messages.CloudStorageConfig.State.Value("ACTIVE")
    assert storage.cloud_storage_config.max_duration.seconds == 300
    assert storage.cloud_storage_config.WhichOneof("output_format") == "text_config"
    assert not storage.HasField("push_config")


PATCHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ack_deadline_seconds", {"ack_deadline_seconds": 30}, {"ack_deadline_seconds": 30}),
    ("ack_deadline_seconds", {}, {"ack_deadline_seconds": 10}),
    ("labels", {"labels": {"b": "2"}}, {"labels": {"b": "2"}}),
    ("labels", {}, {"labels": {}}),
    ("retain_acked_messages", {}, {"retain_acked_messages": False}),
    ("message_retention_duration", {}, {"message_retention_duration": {"seconds": 7 * DAY}}),
    ("expiration_policy", {}, {"expiration_policy": {"ttl": {"seconds": 31 * DAY}}}),
    ("expiration_policy", {"expiration_policy": {}}, {"expiration_policy": {}}),
    ("expiration_policy.ttl", {}, {"expiration_policy": {}}),
    ("dead_letter_policy", {}, {"dead_letter_policy": None}),
    (
        "dead_letter_policy.max_delivery_attempts",
        {},
        {"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}},
    ),
    ("dead_letter_policy.dead_letter_topic,dead_letter_policy.max_delivery_attempts", {}, {"dead_letter_policy": None}),
    ("retry_policy", {}, {"retry_policy": None}),
    ("push_config", {"push_config": {"push_endpoint": URL}}, {"push_config": {"push_endpoint": URL}}),
    ("enable_exactly_once_delivery", {"enable_exactly_once_delivery": True}, {"enable_exactly_once_delivery": True}),
]


def test_an_update_changes_what_the_mask_names_and_nothing_else(subtests: pytest.Subtests) -> None:
    for mask, patch, expected in PATCHES:
        with subtests.test(mask=mask, patch=patch):
            fields: dict[str, Any] = {
                "ack_deadline_seconds": 20,
                "labels": {"a": "1"},
                "retain_acked_messages": True,
                "message_retention_duration": {"seconds": 2 * DAY},
                "expiration_policy": {"ttl": {"seconds": 8 * DAY}},
                "dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 7},
                "retry_policy": {"minimum_backoff": {"seconds": 1}},
                "filter": "attributes:a",
                "enable_message_ordering": True,
            }

            new = update_subscription(made(**fields), messages.Subscription(**patch), mask.split(","))

            assert new == made(**{**fields, **expected})


def test_what_cannot_change_is_refused_even_when_it_would_stay_the_same(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        *sorted(set(messages.Subscription.DESCRIPTOR.fields_by_name) - MUTABLE),
        "",
        "*",
        "ackDeadlineSeconds",
        "labels.a",
        "push_config.x",
    ]
    for path in rows:
        with subtests.test(path=path):
            old = made(filter="attributes:a")

            with pytest.raises(InvalidArgument, match="a path of update_mask is"):
                update_subscription(old, old, ["labels", path])


def test_an_empty_mask_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="update_mask is empty"):
        update_subscription(made(), made(), [])


def test_an_update_keeps_a_deleted_topic_and_a_detached_state() -> None:
    old = made(dead_letter_policy={"dead_letter_topic": DEAD})
    old.topic, old.detached = "_deleted-topic_", True
    old.dead_letter_policy.dead_letter_topic = "_deleted-topic_"

    new = update_subscription(old, messages.Subscription(labels={"a": "b"}), ["labels"])

    assert (new.topic, new.detached) == ("_deleted-topic_", True)


def test_rules_between_fields_hold_for_updates_too() -> None:
    exactly_once = made(enable_exactly_once_delivery=True)

    with pytest.raises(InvalidArgument, match="enable_exactly_once_delivery is True"):
        update_subscription(exactly_once, subscription(push_config={"push_endpoint": URL}), ["push_config"])
    pushed = update_subscription(
        exactly_once, subscription(push_config={"push_endpoint": URL}), ["push_config", "enable_exactly_once_delivery"]
    )
    assert pushed.push_config.push_endpoint == URL
    pulled = update_subscription(pushed, subscription(), ["push_config"])
    assert pulled.push_config == messages.PushConfig()


def test_what_the_broker_is_told() -> None:
    stored = made(
        ack_deadline_seconds=42,
        retain_acked_messages=True,
        message_retention_duration={"seconds": 600, "nanos": 500_000},
        retry_policy={"minimum_backoff": {"nanos": 1_500_000}},
        dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 7},
        filter="attributes:a",
        enable_message_ordering=True,
    )

    told = options(stored, "other/dead")

    assert told == SubscriptionOptions(
        ack_deadline_seconds=42,
        message_ordering=True,
        retry_policy=RetryPolicy(timedelta(microseconds=1500), timedelta(seconds=600)),
        dead_letter_policy=DeadLetterPolicy("other/dead", 7),
        message_retention_duration=timedelta(seconds=600, microseconds=500),
        retain_acked_messages=True,
        filter="attributes:a",
        overflow="spill",
    )
    assert subscription_policy(told, durable=False).overflow == "spill"
    plain = options(made(), None)
    assert (plain.retry_policy, plain.dead_letter_policy, plain.retain_acked_messages) == (None, None, False)
