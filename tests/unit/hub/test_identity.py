"""What somebody may publish and subscribe to."""

import dataclasses

import pytest

from penstock.hub.core.identity import ANYBODY, Identity


def test_one_may_publish_to_what_ones_patterns_cover(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[str, ...] | None, str, bool]] = [
        (None, "orders", True),
        ((), "orders", False),
        (("orders",), "orders", True),
        (("orders",), "orders/eu", False),
        (("orders",), "Orders", False),
        (("orders/+",), "orders/eu", True),
        (("orders/+",), "orders", False),
        (("orders/+",), "orders/eu/new", False),
        (("orders/#",), "orders", True),
        (("orders/#",), "orders/eu/new", True),
        (("orders/#",), "orders-eu", False),
        (("chat", "orders/#"), "orders/eu", True),
        (("#",), "anything/at/all", True),
        (("+/eu",), "orders/eu", True),
        (("+/eu",), "orders/us", False),
    ]
    for allowed, topic, may in rows:
        with subtests.test(allowed=allowed, topic=topic):
            assert Identity(publish=allowed).may_publish(topic) is may


def test_one_may_subscribe_to_no_more_than_a_pattern_of_ones_own_covers(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[str, ...] | None, str, bool]] = [
        (None, "#", True),
        ((), "orders", False),
        (("orders",), "orders", True),
        (("orders",), "orders/+", False),
        (("orders",), "orders/#", False),
        (("orders",), "#", False),
        (("orders",), "+", False),
        (("orders/+",), "orders/+", True),
        (("orders/+",), "orders/eu", True),
        (("orders/+",), "orders/#", False),
        (("orders/+",), "+/+", False),
        (("orders/#",), "orders/#", True),
        (("orders/#",), "orders/+", True),
        (("orders/#",), "orders/+/new", True),
        (("orders/#",), "orders/eu/#", True),
        (("orders/#",), "orders", True),
        (("orders/#",), "+/eu", False),
        (("orders/#",), "#", False),
        (("+/eu",), "orders/eu", True),
        (("+/eu",), "+/eu", True),
        (("+/eu",), "+/+", False),
        (("+/eu",), "orders/#", False),
        (("#",), "#", True),
        (("#",), "+/#", True),
        (("+/#",), "#", True),  # a topic has one level at least
        (("orders/eu", "orders/us"), "orders/+", False),
    ]
    for allowed, wanted, may in rows:
        with subtests.test(allowed=allowed, wanted=wanted):
            assert Identity(subscribe=allowed).may_subscribe(wanted) is may


def test_what_one_may_publish_says_nothing_of_what_one_may_see() -> None:
    writer, reader = Identity(publish=("orders",), subscribe=()), Identity(publish=(), subscribe=("orders",))

    assert (writer.may_publish("orders"), writer.may_subscribe("orders")) == (True, False)
    assert (reader.may_publish("orders"), reader.may_subscribe("orders")) == (False, True)


def test_anybody_is_nobody_in_particular_and_may_do_all() -> None:
    assert (ANYBODY.address, ANYBODY.expires_at) == (None, None)
    assert ANYBODY.may_publish("orders")
    assert ANYBODY.may_subscribe("#")


def test_an_identity_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ANYBODY.address = "@(a/b)"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("publish", "sends", "broadcasts"),
    [(None, True, True), ((), False, False), (("orders/#",), True, False)],
    ids=["anything", "nothing", "some topics"],
)
def test_who_may_publish_something_may_send_and_who_may_publish_anything_may_broadcast(
    publish: tuple[str, ...] | None, sends: bool, broadcasts: bool
) -> None:
    identity = Identity(publish=publish)

    assert (identity.may_send(), identity.may_broadcast()) == (sends, broadcasts)


@pytest.mark.parametrize(("subscribe", "breadth"), [(None, 1), ((), 1), (("a",), 1), (("a", "b/#"), 2)])
def test_it_is_known_how_many_patterns_a_topic_is_held_against(subscribe: tuple[str, ...] | None, breadth: int) -> None:
    assert Identity(subscribe=subscribe).breadth == breadth
