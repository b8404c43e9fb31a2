"""The router's configuration: every spelling that is read, what is filled in, what is refused and with which words.

What a new configuration changes, and the words for it.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.router.core.config import (
    MAX_CONCURRENCY,
    Changes,
    PoolChange,
    PoolConfig,
    QueueChange,
    QueueConfig,
    RouterConfig,
    changes,
    merge,
    parse_config,
    shown_uri,
    to_json,
)

POOL = {"code": "A", "concurrency": 1}
QUEUE = {"queueUri": "nats://host/S/C"}

JAVA = b"""{"queues": [{"queueUri": "https://sqs/1", "queueName": "one", "connections": 2}, {"queueUri": "https://sqs/2"}],
  "connections": 3, "processingPools": [{"code": "POOL-HIGH", "concurrency": 10, "rateLimitPerMinute": 600}]}"""
JAVALIN = b"""{"processingPools": [{"code": "POOL-HIGH", "concurrency": 10, "rateLimitPerMinute": 600}], "connections": 3,
  "queues": [{"name": "one", "uri": "https://sqs/1", "connections": 2}, {"uri": "https://sqs/2", "visibilityTimeout": 120}]}"""
SNAKE = b"""{"processing_pools": [{"code": "POOL-HIGH", "concurrency": 10, "rate_limit_per_minute": 600}], "connections": 3,
  "queues": [{"name": "one", "uri": "https://sqs/1", "connections": 2}, {"uri": "https://sqs/2", "visibility_timeout": 120}]}"""


@pytest.mark.parametrize("text", [JAVA, JAVALIN, SNAKE], ids=["java", "javalin", "snake_case"])
def test_every_published_shape_is_read_alike(text: bytes) -> None:
    assert parse_config(text) == RouterConfig(
        queues=(
            QueueConfig("one", "https://sqs/1", connections=2, visibility_timeout=120),
            QueueConfig("https://sqs/2", "https://sqs/2", connections=3, visibility_timeout=120),
        ),
        pools=(PoolConfig("POOL-HIGH", 10, 600),),
    )


def test_the_canonical_name_wins_over_its_aliases_unless_it_is_null() -> None:
    config = parse_config(
        {
            "queues": [
                {"queueUri": "a://1", "uri": "a://2", "queueName": "one", "name": "two", "queue_name": "three"},
                {"queueUri": None, "uri": "a://3", "queueName": None, "name": "three"},
            ],
            "processing_pools": [{"code": "B"}],
            "processingPools": [{"code": "A", "rate_limit_per_minute": 1, "rateLimitPerMinute": 2}],
        }
    )

    assert [(queue.name, queue.uri) for queue in config.queues] == [("one", "a://1"), ("three", "a://3")]
    assert config.pools == (PoolConfig("A", 1, 2),)


@pytest.mark.parametrize(
    ("given", "concurrency", "rate"),
    [
        ({}, 1, None),
        ({"concurrency": None, "rateLimitPerMinute": None}, 1, None),
        ({"concurrency": 0, "rateLimitPerMinute": 0}, 1, None),
        ({"concurrency": 7}, 7, None),
        ({"rateLimitPerMinute": 600}, 10, 600),
        ({"concurrency": 0, "rateLimitPerMinute": 600}, 10, 600),
        ({"concurrency": None, "rateLimitPerMinute": 59}, 1, 59),
        ({"concurrency": 3, "rateLimitPerMinute": 600}, 3, 600),
        ({"rateLimitPerMinute": 60_000_000}, MAX_CONCURRENCY, 60_000_000),
        ({"concurrency": 10_000}, 10_000, None),
    ],
)
def test_a_pool_without_a_concurrency_gets_one_that_suits_its_rate(
    given: dict[str, object], concurrency: int, rate: int | None
) -> None:
    assert parse_config({"processingPools": [{"code": "A", **given}]}).pools == (PoolConfig("A", concurrency, rate),)


def test_spec_001_configuration_sync_connections_default_to_1() -> None:
    assert parse_config({"queues": [QUEUE]}).queues[0].connections == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON: RecursionError"),
        (b'{"queues": "\xff"}', "not JSON: UnicodeDecodeError"),
        (b"<html>", "not JSON"),
        (b"null", "the configuration is None, expected an object"),
        (b"[]", "the configuration is a list, expected an object"),
        (b"{}", "neither queues nor processingPools"),
        (b'{"error": "later"}', "neither queues nor processingPools"),
        ({"queues": None, "processingPools": None}, "neither queues nor processingPools"),
        ({"queues": {}}, "queues is an object, expected a list"),
        ({"processing_pools": 3}, "processing_pools is 3, expected a list"),
        ({"queues": [7]}, "queues[0] is 7, expected an object"),
        ({"queues": [QUEUE, {}]}, "queues[1].queueUri is None, expected the address of a queue"),
        ({"queues": [{"queueUri": ""}]}, "queues[0].queueUri is '', expected 1 to 2,048 characters"),
        ({"queues": [{"uri": "  "}]}, "queues[0].uri is '  '"),
        ({"queues": [{"uri": "nats://h\r\nX: 1"}]}, "queues[0].uri is"),
        ({"queues": [{"uri": "x" * 2_049}]}, "queues[0].uri is"),
        ({"queues": [{**QUEUE, "queueName": "a\x00"}]}, "queues[0].queueName is 'a\\x00'"),
        ({"queues": [{**QUEUE, "name": "\ud800"}]}, "queues[0].name is"),
        ({"queues": [{**QUEUE, "connections": 0}]}, "queues[0].connections is 0, expected a whole number from 1 to 100"),
        ({"queues": [{**QUEUE, "connections": 101}]}, "queues[0].connections is 101"),
        ({"queues": [{**QUEUE, "connections": True}]}, "queues[0].connections is True"),
        ({"queues": [{**QUEUE, "connections": "2"}]}, "queues[0].connections is '2'"),
        ({"queues": [{**QUEUE, "visibilityTimeout": 43_201}]}, "queues[0].visibilityTimeout is 43201"),
        ({"queues": [], "connections": -1}, "connections is -1, expected a whole number from 1 to 100"),
        ({"processingPools": [POOL, {"concurrency": 1}]}, "processingPools[1].code is None, expected the name of a pool"),
        ({"processingPools": [{"code": 5}]}, "processingPools[0].code is 5"),
        ({"processingPools": [{"code": "A\n"}]}, "processingPools[0].code is 'A\\n'"),
        (
            {"processingPools": [{"code": str(n)} for n in range(3)] + [{"code": "A", "concurrency": 10_001}]},
            "processingPools[3].concurrency is 10001, expected a whole number from 1 to 10,000",
        ),
        ({"processingPools": [{"code": "A", "concurrency": -1}]}, "processingPools[0].concurrency is -1"),
        ({"processingPools": [{"code": "A", "concurrency": 1.5}]}, "processingPools[0].concurrency is 1.5"),
        ({"processingPools": [{"code": "A", "concurrency": float("nan")}]}, "processingPools[0].concurrency is nan"),
        ({"processingPools": [{"code": "A", "concurrency": 10**5000}]}, "processingPools[0].concurrency is"),
        ({"processingPools": [{"code": "A", "rateLimitPerMinute": -5}]}, "processingPools[0].rateLimitPerMinute is -5"),
        ({"processingPools": [{"code": "A", "rate_limit_per_minute": 60_000_001}]}, "processingPools[0].rate_limit_per_minute"),
        ({"processingPools": [POOL, {"code": "B"}, POOL]}, "processingPools[2].code is 'A', expected another than that of"),
        ({"queues": [QUEUE, {**QUEUE, "name": "b"}]}, "queues[1].queueUri is 'nats://host/S/C', expected another"),
        ({"queues": [{"uri": "a:1", "name": "x"}, {"uri": "a:2", "name": "x"}]}, "queues[1].queueName is 'x', expected another"),
        ({"queues": [{"uri": "a://u:p@h"}, {"uri": "a://v:q@h"}]}, "queues[1].queueName is 'a://***@h', expected another"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_path_its_value_and_what_was_wanted(config: object, words: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_config(config)

    assert words in str(refused.value)


PASSWORD = "hunter2"


@pytest.mark.parametrize(
    "config",
    [
        {"queues": [f"nats://me:{PASSWORD}@host/S/C"]},
        {"queues": [[f"nats://me:{PASSWORD}@host/S/C"]]},
        {"queues": f"nats://me:{PASSWORD}@host/S/C"},
        {"queues": [{"uri": f"nats://me:{PASSWORD}@host/S/C\n"}]},
        {"queues": [{"uri": f"nats://me:{PASSWORD}@host/S/C"}] * 2},
        {"queues": [{"uri": {"url": f"nats://me:{PASSWORD}@host/S/C"}}]},
        {"queues": [{"uri": f"nats://me:{PASSWORD}@host/S/C", "connections": f"nats://me:{PASSWORD}@host"}]},
        {"queues": [{"uri": f"a://me:{PASSWORD}@h/{n}", "name": f"a://me:{PASSWORD}@h"} for n in range(2)]},
        f'{{"queues": [{{"uri": "nats://me:{PASSWORD}@host/S/C}}]}}'.encode(),
        f"nats://me:{PASSWORD}@host/S/C \xff".encode("latin-1"),
    ],
)
def test_no_error_shows_a_password(config: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_config(config)

    assert PASSWORD not in str(refused.value)
    assert PASSWORD not in repr(refused.value)
    assert PASSWORD not in repr(getattr(refused.value, "__notes__", ""))


def test_a_queue_shows_its_password_neither_in_its_name_nor_in_its_repr() -> None:
    uri = f"activemq://me:{PASSWORD}@host:61613/Q"
    config = parse_config({"queues": [{"uri": uri}, {"uri": f"{uri}2", "name": f"{uri}2"}]})

    assert [queue.name for queue in config.queues] == ["activemq://***@host:61613/Q", "activemq://***@host:61613/Q2"]
    assert config.queues[0].uri == uri
    assert PASSWORD not in repr(config)


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123/orders.fifo", "https://sqs.eu-west-1.amazonaws.com/123/orders.fifo"),
        ("nats://host:4222/STREAM/CONSUMER?subject=orders.>", "nats://host:4222/STREAM/CONSUMER?subject=orders.>"),
        ("penstock:///queues/a@b", "penstock:///queues/a@b"),
        ("penstock://host:80/queues/a@b", "penstock://host:80/queues/a@b"),
        ("penstock://[::1]:80/queues/a@b", "penstock://[::1]:80/queues/a@b"),
        ("nats://me:s3cret@host:4222/S/C", "nats://***@host:4222/S/C"),
        ("nats://s3cret@host/S/C", "nats://***@host/S/C"),
        ("nats://me:s3@cret@host/S/C", "nats://***@host/S/C"),
        ("nats://me:s3/cret@host/S/C", "nats://***@host/S/C"),
        ("nats://me:s3#cret@host/S/C", "nats://***@host/S/C"),
        ("nats://me:s3cret@h1,me:s3cret@h2/S/C", "nats://***@h2/S/C"),
        ("nats:me:s3cret@host", "nats:***@host"),
        ("nats:///me:s3cret@host/S", "nats://***@host/S"),
        ("me:s3cret@host/S", "me:***@host/S"),
        ("nats:\\\\me:s3cret@host", "nats:***@host"),
        ("https://host/c?token=s3cret&env=a", "https://host/c?token=***&env=a"),
        ("https://host/c?env=a&X-Api-Key=s3cret", "https://host/c?env=a&X-Api-Key=***"),
        ("redis://:s3cret@host:6379/0", "redis://***@host:6379/0"),
        ("", ""),
        ("orders", "orders"),
    ],
)
def test_a_uri_is_shown_without_what_is_secret(uri: str, wanted: str) -> None:
    assert shown_uri(uri) == wanted
    assert shown_uri(wanted) == wanted


def test_keys_that_mean_nothing_are_passed_over_and_can_be_told() -> None:
    found: list[str] = []
    config = {"queues": [{**QUEUE, "conections": 2}], "processingPools": [{**POOL, "x": 1}, {"code": "B"}], "version": 3}

    assert parse_config(config, passed_over=found) == parse_config(config)
    assert found == ["version", "queues[0].conections", "processingPools[0].x"]


def test_what_is_written_is_camel_case_without_what_is_not_set() -> None:
    config = RouterConfig((QueueConfig("one", "a://u:p@h", 2, 30),), (PoolConfig("A", 3), PoolConfig("B", 4, 5)))

    assert msgspec.json.decode(to_json(config)) == {
        "processingPools": [{"code": "A", "concurrency": 3}, {"code": "B", "concurrency": 4, "rateLimitPerMinute": 5}],
        "queues": [{"queueName": "one", "queueUri": "a://u:p@h", "connections": 2, "visibilityTimeout": 30}],
    }


words = st.text("ab:/@?.-é ", min_size=1, max_size=12).filter(lambda text: text.strip() != "")
pools = st.builds(PoolConfig, words, st.integers(1, 10_000), st.none() | st.integers(1, 60_000_000))
queues = st.builds(QueueConfig, words.map(shown_uri), words, st.integers(1, 100), st.integers(1, 43_200))
configs = st.builds(
    RouterConfig,
    st.lists(queues, max_size=4, unique_by=(lambda queue: queue.name, lambda queue: queue.uri)).map(tuple),
    st.lists(pools, max_size=4, unique_by=lambda pool: pool.code).map(tuple),
)


@given(configs)
def test_what_is_written_is_read_again(config: RouterConfig) -> None:
    assert parse_config(to_json(config)) == config


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | words,
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["queues", "processingPools", "connections", "code", "concurrency", "uri", "name", "rateLimitPerMinute"]
                ),
                inner,
            )
        ),
    )
)
def test_whatever_is_given_is_read_or_refused(anything: object) -> None:
    try:
        config = parse_config(anything)
    except InvalidArgument:
        return
    assert parse_config(to_json(config)) == config


def test_the_first_configuration_that_has_a_pool_or_a_queue_counts() -> None:
    first = RouterConfig((QueueConfig("one", "a://1", 1),), (PoolConfig("A", 1),))
    second = RouterConfig((QueueConfig("uno", "a://1", 9), QueueConfig("two", "a://2")), (PoolConfig("A", 9), PoolConfig("B")))

    assert merge([first, second]) == RouterConfig(
        (QueueConfig("one", "a://1", 1), QueueConfig("two", "a://2")), (PoolConfig("A", 1), PoolConfig("B"))
    )


def test_two_queues_that_have_one_name_in_two_configurations_stay_two() -> None:
    uris = ["a://u:1@h", "a://u:2@h", "a://u:3@h"]
    merged = merge(RouterConfig((QueueConfig("orders", uri),)) for uri in uris)

    assert [(queue.name, queue.uri) for queue in merged.queues] == list(
        zip(["orders", "a://***@h", "a://***@h (2)"], uris, strict=True)
    )


@given(st.lists(configs, max_size=4))
def test_what_was_merged_is_a_configuration_like_any_other(several: list[RouterConfig]) -> None:
    merged = merge(several)

    assert parse_config(to_json(merged)) == merged
    assert {pool.code for pool in merged.pools} == {pool.code for config in several for pool in config.pools}
    assert {queue.uri for queue in merged.queues} == {queue.uri for config in several for queue in config.queues}


A, B = PoolConfig("A", 5, 600), PoolConfig("B")
ONE, TWO = QueueConfig("one", "nats://host/S/1"), QueueConfig("two", "nats://host/S/2")


def test_spec_001_what_gets_applied_without_an_old_configuration_everything_is_new() -> None:
    new = RouterConfig((ONE, TWO), (A, B))

    assert changes(None, new) == Changes(pools_added=(A, B), queues_added=(ONE, TWO))


def test_spec_001_what_gets_applied_a_pool_no_longer_in_the_configuration_is_removed() -> None:
    assert changes(RouterConfig((), (A, B)), RouterConfig((), (B,))) == Changes(pools_removed=(A,))


def test_spec_001_what_gets_applied_a_pool_says_whether_its_concurrency_or_its_rate_changed() -> None:
    more, slower = PoolConfig("A", 6, 600), PoolConfig("A", 5, None)
    found = changes(RouterConfig((), (A,)), RouterConfig((), (more,)))
    other = changes(RouterConfig((), (A,)), RouterConfig((), (slower,)))

    assert found == Changes(pools_changed=(PoolChange(A, more),))
    assert (found.pools_changed[0].has_new_concurrency, found.pools_changed[0].has_new_rate) == (True, False)
    assert (other.pools_changed[0].has_new_concurrency, other.pools_changed[0].has_new_rate) == (False, True)


def test_spec_001_what_gets_applied_a_queue_no_longer_in_the_configuration_is_removed() -> None:
    assert changes(RouterConfig((ONE, TWO)), RouterConfig((TWO,))) == Changes(queues_removed=(ONE,))


def test_spec_001_what_gets_applied_unchanged_queues_are_left_alone_in_whatever_order() -> None:
    found = changes(RouterConfig((ONE, TWO), (A, B)), RouterConfig((TWO, ONE), (B, A)))

    assert found == Changes()
    assert not found
    assert found.describe() == []


def test_a_queue_whose_address_connections_or_visibility_changed_is_opened_again() -> None:
    for change in ({"uri": "nats://other/S/1"}, {"connections": 2}, {"visibility_timeout": 60}):
        values: dict[str, Any] = {"name": "one", "uri": ONE.uri, **change}
        new = QueueConfig(**values)

        assert changes(RouterConfig((ONE,)), RouterConfig((new,))) == Changes(queues_changed=(QueueChange(ONE, new),))


def test_a_queue_that_was_only_renamed_is_not_taken_from_twice() -> None:
    renamed = QueueConfig("uno", ONE.uri)

    assert changes(RouterConfig((ONE,)), RouterConfig((renamed,))) == Changes(queues_changed=(QueueChange(ONE, renamed),))


def test_a_queue_that_took_the_name_of_another_leaves_the_other_s_address_to_a_new_one() -> None:
    """`one` goes to the address of `two`; what was at `one`'s address goes on under a new name."""
    moved, new = QueueConfig("one", TWO.uri), QueueConfig("three", ONE.uri)

    found = changes(RouterConfig((ONE, TWO)), RouterConfig((moved, new)))

    assert found == Changes(queues_changed=(QueueChange(ONE, moved),), queues_added=(new,), queues_removed=(TWO,))


def test_every_change_is_said_in_plain_words() -> None:
    old = RouterConfig(
        (ONE, TWO, QueueConfig("three", "nats://u:secret1@host/S/3"), QueueConfig("nats://host/S/4", "nats://host/S/4")),
        (A, B, PoolConfig("C", 2)),
    )
    new = RouterConfig(
        (
            QueueConfig("one", "nats://u:secret1@other/S/1", 2, 60),
            QueueConfig("three", "nats://u:secret2@host/S/3"),
            QueueConfig("four", "nats://host/S/4"),
            QueueConfig("five", "nats://host/S/5", 3),
        ),
        (PoolConfig("A", 10, None), PoolConfig("C", 3), PoolConfig("D", 1, 60)),
    )

    lines = changes(old, new).describe()

    assert lines == [
        "pool D is added: 1 at a time, 60 a minute",
        "pool A changes: 5 at a time becomes 10, 600 a minute becomes no rate limit",
        "pool C changes: 2 at a time becomes 3",
        "pool B is removed: what waits in it returns to its queue",
        "queue five (nats://host/S/5) is added: 3 connections, visibility timeout 120 s",
        (
            "queue one is opened again: nats://host/S/1 becomes nats://***@other/S/1, 1 connection becomes 2, "
            "visibility timeout 120 s becomes 60 s"
        ),
        "queue three is opened again: its user or password is another",
        "queue nats://host/S/4 is opened again: it is called four from now on",
        "queue two (nats://host/S/2) is removed: it is not polled any more",
    ]
    assert "secret" not in "".join(lines)


names = st.sampled_from("abcd")
few_queues = st.lists(
    st.builds(QueueConfig, names, st.sampled_from(["u:1", "u:2", "u:3", "u:4"]), st.integers(1, 2)),
    unique_by=(lambda queue: queue.name, lambda queue: queue.uri),
)
few_pools = st.lists(st.builds(PoolConfig, names, st.integers(1, 2)), unique_by=lambda pool: pool.code)
few_configs = st.builds(RouterConfig, few_queues.map(tuple), few_pools.map(tuple))


@given(few_configs, few_configs)
def test_the_changes_carried_out_on_the_old_configuration_give_the_new_one(old: RouterConfig, new: RouterConfig) -> None:
    found = changes(old, new)
    pools = set(old.pools) - set(found.pools_removed) - {change.old for change in found.pools_changed}
    queues = set(old.queues) - set(found.queues_removed) - {change.old for change in found.queues_changed}

    assert pools | set(found.pools_added) | {change.new for change in found.pools_changed} == set(new.pools)
    assert queues | set(found.queues_added) | {change.new for change in found.queues_changed} == set(new.queues)
    assert bool(found) == (set(old.pools) != set(new.pools) or set(old.queues) != set(new.queues))
    assert bool(found.describe()) == bool(found)


def test_a_queue_belongs_to_the_engine_of_all_pools_unless_it_names_one() -> None:
    def engines(*pools: str, queue: str | None = None) -> tuple[list[str], list[str]]:
        own = {} if queue is None else {"engine": queue}
        found = parse_config(
            {
                "queues": [{"queueName": "q", "queueUri": "penstock:///queues/q", **own}],
                "processingPools": [{"code": str(number), "engine": engine} for number, engine in enumerate(pools)],
            }
        )
        assert parse_config(to_json(found)) == found
        return [one.name for one in found.of("spark").queues], [pool.code for pool in found.of("spark").pools]

    assert engines() == ([], [])
    assert engines("local") == ([], [])
    assert engines("spark", "spark") == (["q"], ["0", "1"])
    assert engines("spark", "local") == ([], ["0"])
    assert engines("spark", "local", queue="spark") == (["q"], ["0"])
    assert engines("spark", queue="local") == ([], ["0"])
    with pytest.raises(InvalidArgument, match=r"processingPools\[0\].engine is 'flink', expected local or spark"):
        engines("flink")


def test_another_engine_is_a_change_that_is_named() -> None:
    before = RouterConfig((QueueConfig("q", "penstock:///queues/q"),), (PoolConfig("P"),))
    after = RouterConfig((QueueConfig("q", "penstock:///queues/q", engine="spark"),), (PoolConfig("P", engine="spark"),))
    assert changes(before, after).describe() == [
        "pool P changes: engine local becomes spark",
        "queue q changes: engine of its pools becomes spark",
    ]
