"""What settings make of a hub."""

from __future__ import annotations

from uuid import RFC_4122, UUID

from penstock.config import Settings
from penstock.durations import SECOND
from penstock.hub.broker.host import UUIDS_AT_ONCE, UuidGenerator, bindings_of, rules_of
from penstock.hub.core.rules import HubRules


def test_the_defaults_of_the_settings_are_those_of_the_rules() -> None:
    rules, default = rules_of(Settings(memory=True)), HubRules()
    rates = {"rate", "read_rate"}
    names = [name for name in HubRules.__dataclass_fields__ if name not in rates]
    assert {name: getattr(rules, name) for name in names} == {name: getattr(default, name) for name in names}
    for name in rates:
        ours, theirs = getattr(rules, name), getattr(default, name)
        assert (ours.per_second, ours.burst) == (theirs.per_second, theirs.burst)


def test_without_a_limit_of_messages_there_is_none_of_bytes() -> None:
    for settings in (Settings(memory=True, hub_rate_limit=0), Settings(memory=True, hub_rate_bytes=0)):
        assert rules_of(settings).read_rate is None


def test_settings_change_the_rules() -> None:
    rules = rules_of(Settings(memory=True, hub_rate_limit=0, hub_idle=20, hub_heartbeat=7, hub_max_message_bytes=4096))
    assert (rules.rate, rules.idle, rules.heartbeat, rules.max_message_bytes) == (None, 20 * SECOND, 7 * SECOND, 4096)


def test_the_binding_that_says_most_of_a_topic_comes_first() -> None:
    settings = Settings(
        memory=True, hub_bind=("#=archive", "orders/#=orders", "orders/+/new=fresh"), hub_history=("chat", "rooms/eu")
    )
    assert [(binding.pattern, binding.stream) for binding in bindings_of(settings)] == [
        ("orders/+/new", "fresh"),
        ("rooms/eu/#", "hub.rooms.eu"),
        ("orders/#", "orders"),
        ("chat/#", "hub.chat"),
        ("#", "archive"),
    ]


def test_each_id_is_a_random_uuid_and_another() -> None:
    make = UuidGenerator()

    texts = [make() for _ in range(3 * UUIDS_AT_ONCE + 1)]
    found = [UUID(text) for text in texts]

    assert len({*found}) == len(found)
    assert {(one.version, one.variant) for one in found} == {(4, RFC_4122)}
    assert [str(one) for one in found] == texts
    assert {text[19] for text in texts} == {*"89ab"}
