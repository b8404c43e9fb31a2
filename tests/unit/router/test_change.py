"""What a new configuration changes, and the words for it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.router.core.change import Changes, PoolChange, QueueChange, changes
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig

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
        "pool B is removed: what waits in it goes back to its queue",
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
queues = st.lists(
    st.builds(QueueConfig, names, st.sampled_from(["u:1", "u:2", "u:3", "u:4"]), st.integers(1, 2)),
    unique_by=(lambda queue: queue.name, lambda queue: queue.uri),
)
pools = st.lists(st.builds(PoolConfig, names, st.integers(1, 2)), unique_by=lambda pool: pool.code)
configs = st.builds(RouterConfig, queues.map(tuple), pools.map(tuple))


@given(configs, configs)
def test_the_changes_carried_out_on_the_old_configuration_give_the_new_one(old: RouterConfig, new: RouterConfig) -> None:
    found = changes(old, new)
    pools = set(old.pools) - set(found.pools_removed) - {change.old for change in found.pools_changed}
    queues = set(old.queues) - set(found.queues_removed) - {change.old for change in found.queues_changed}

    assert pools | set(found.pools_added) | {change.new for change in found.pools_changed} == set(new.pools)
    assert queues | set(found.queues_added) | {change.new for change in found.queues_changed} == set(new.queues)
    assert bool(found) == (set(old.pools) != set(new.pools) or set(old.queues) != set(new.queues))
    assert bool(found.describe()) == bool(found)
