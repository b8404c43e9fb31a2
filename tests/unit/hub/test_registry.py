"""The registry: who is registered, until when, and who may find them."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
import pytest

from penstock.durations import SECOND
from penstock.hub.core.messages import Discover, DiscoveryResult, ListActors, Register, Renew
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registry import MAX_CAPABILITIES, MAX_CAPABILITY, MAX_METADATA, Actor, Registry
from penstock.hub.core.rules import DEFAULT_TTL, MAX_DEPTH, MAX_TTL, MIN_TTL, HubRules

ADDRESS = "@(browser/client-ui)"
NOW = 1_700_000_000 * SECOND


def register(
    registry: Registry[str],
    address: str = ADDRESS,
    *,
    session: str = "one",
    capabilities: tuple[str, ...] = ("ui",),
    metadata: dict[str, object] | None = None,
    ttl: float | None = None,
    token: str = "first",
    now: int = NOW,
) -> tuple[Actor[str], Actor[str] | None]:
    command = Register(address, capabilities, metadata or {}, ttl)
    return registry.register(command, session, token=token, now=now)


def found(result: DiscoveryResult) -> list[str]:
    assert result.count == len(result.actors)
    return [actor.actor_address for actor in result.actors]


@pytest.fixture
def registry() -> Registry[str]:
    return Registry(HubRules())


# --- register -----------------------------------------------------------------------------------------------------------------


def test_an_actor_is_known_by_what_it_registered(registry: Registry[str]) -> None:
    actor, displaced = register(registry, metadata={"a": 1}, capabilities=("ui", "chat", "ui"), token="secret", ttl=2_000.5)

    assert displaced is None
    assert (actor.address, actor.capabilities, actor.metadata) == (ADDRESS, ("ui", "chat"), {"a": 1})
    assert (actor.session, actor.version, actor.renewal_token) == ("one", 1, "secret")
    assert (actor.registered_at, actor.expires_at) == (NOW, NOW + 2_000_500)
    assert registry.get(ADDRESS, NOW) is actor
    assert len(registry) == 1


def test_the_renewal_token_and_the_session_are_not_shown(registry: Registry[str]) -> None:
    actor, _ = register(registry, session="hidden", token="hush")

    shown = repr(actor) + repr(registry.list(ListActors(), NOW)) + repr(registry.discover(Discover(), NOW, glob=False))
    assert "hush" not in shown
    assert "hidden" not in shown


def test_registering_again_counts_versions_while_the_earlier_one_lives(registry: Registry[str]) -> None:
    first, _ = register(registry, ttl=1_000)
    second, displaced = register(registry, ttl=1_000, capabilities=("other",), now=NOW + SECOND - 1)
    assert (first.version, second.version, displaced) == (1, 2, None)
    assert registry.get(ADDRESS, NOW + SECOND) is second

    third, _ = register(registry, now=NOW + 2 * SECOND)  # one microsecond before, the second had run out
    assert third.version == 1
    assert registry.expire(NOW + 3 * SECOND) == []


def test_the_last_registration_takes_over(registry: Registry[str]) -> None:
    first, _ = register(registry, session="one")
    second, displaced = register(registry, session="two", token="second", now=NOW + 1)

    assert displaced is first
    assert (second.session, second.version, second.registered_at) == ("two", 2, NOW + 1)
    assert len(registry) == 1
    with pytest.raises(Refusal, match="renewalToken"):
        registry.renew(Renew("first"), ADDRESS, token="x", now=NOW + 1)


def test_one_that_ran_out_and_was_not_swept_is_still_told(registry: Registry[str]) -> None:
    first, _ = register(registry, session="one", ttl=1_000)
    later = NOW + 5 * SECOND
    second, displaced = register(registry, session="two", now=later)

    assert (displaced, second.version) == (first, 1)
    assert registry.expire(later) == []


@pytest.mark.parametrize(("ttl", "lasts"), [(None, DEFAULT_TTL), (1_000, MIN_TTL), (3_600_000, MAX_TTL), (1_500.25, 1_500_250)])
def test_a_registration_lasts_for_its_ttl(registry: Registry[str], ttl: float | None, lasts: int) -> None:
    actor, _ = register(registry, ttl=ttl)

    assert registry.get(ADDRESS, NOW + lasts - 1) is actor
    assert registry.get(ADDRESS, NOW + lasts) is None


@pytest.mark.parametrize(
    "ttl", [999, 999.9, 3_600_001, 0, -1, -5_000, math.nan, math.inf, -math.inf, 1e300, 10**400, True, "5000", [5_000], {}]
)
def test_a_ttl_out_of_bounds_is_refused(registry: Registry[str], ttl: Any) -> None:
    with pytest.raises(Refusal, match="ttl is") as caught:
        register(registry, ttl=ttl)
    assert (caught.value.code, caught.value.reason) == ("internal_error", "invalid_ttl")
    assert "1000 to 3600000 milliseconds" in caught.value.resolution
    assert len(registry) == 0

    register(registry, token="t")
    with pytest.raises(Refusal, match="ttl is"):
        registry.renew(Renew("t", ttl=ttl), ADDRESS, token="u", now=NOW)
    assert registry.renew(Renew("t"), ADDRESS, token="u", now=NOW).renewal_token == "u"


@pytest.mark.parametrize(
    "address", ["", "browser/ui", "@(browser)", "@(Browser/ui)", "@(a/b/c)", "@(a/b)\n", "@(a/b) ", f"@(a/{'b' * 252})", "\x00"]
)
def test_an_address_has_a_form(registry: Registry[str], address: str) -> None:
    with pytest.raises(Refusal) as caught:
        register(registry, address)
    assert (caught.value.code, caught.value.reason) == ("internal_error", "invalid_address")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        ((), "missing_capabilities"),
        (("",), "invalid_capability"),
        (("ui", "x" * (MAX_CAPABILITY + 1)), "invalid_capability"),
        (tuple(str(number) for number in range(MAX_CAPABILITIES + 1)), "too_many_capabilities"),
    ],
)
def test_capabilities_are_bounded(registry: Registry[str], capabilities: tuple[str, ...], reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        register(registry, capabilities=capabilities)
    assert (caught.value.code, caught.value.reason) == ("internal_error", reason)


def test_as_many_capabilities_as_allowed_are_taken(registry: Registry[str]) -> None:
    most = tuple(f"{number:0{MAX_CAPABILITY}}" for number in range(MAX_CAPABILITIES))

    assert register(registry, capabilities=most * 2)[0].capabilities == most


def nested(depth: int) -> dict[str, object]:
    inner: object = "[[[["  # brackets in a text are none
    for _ in range(depth - 1):
        inner = [inner]
    return {"a": inner}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"a": "x" * (MAX_METADATA - 7)}, "metadata_too_large"),
        ({"a": "é" * (MAX_METADATA // 2 - 3)}, "metadata_too_large"),
        (nested(MAX_DEPTH + 1), "metadata_too_deep"),
    ],
)
def test_metadata_is_bounded(registry: Registry[str], metadata: dict[str, object], reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        register(registry, metadata=metadata)
    assert (caught.value.code, caught.value.reason) == ("internal_error", reason)
    with pytest.raises(Refusal):
        registry.discover(Discover(metadata=metadata), NOW, glob=False)


@pytest.mark.parametrize("metadata", [{"a": "x" * (MAX_METADATA - 8)}, nested(MAX_DEPTH)])
def test_metadata_at_its_bounds_is_taken(registry: Registry[str], metadata: dict[str, object]) -> None:
    register(registry, metadata=metadata)

    assert found(registry.discover(Discover(metadata=metadata), NOW, glob=False)) == [ADDRESS]


def test_a_full_registry_refuses_new_addresses_only() -> None:
    registry: Registry[str] = Registry(HubRules(max_actors=2))
    register(registry, "@(a/a)")
    register(registry, "@(a/b)", ttl=1_000)

    with pytest.raises(Refusal, match=r"^Registry at capacity$") as caught:
        register(registry, "@(a/c)")
    assert (caught.value.code, caught.value.reason, caught.value.retryable) == ("rate_limited", "registry_full", True)
    register(registry, "@(a/a)", session="two")  # a live address is no new one
    assert len(registry) == 2

    registry.expire(NOW + SECOND)
    third, _ = register(registry, "@(a/c)", now=NOW + SECOND)
    registry.unregister(third)
    register(registry, "@(a/d)", now=NOW + SECOND)


# --- renew, unregister, expire ------------------------------------------------------------------------------------------------


def test_a_renewal_gives_another_ttl_and_another_token(registry: Registry[str]) -> None:
    actor, _ = register(registry, ttl=10_000, token="a")

    assert registry.renew(Renew("a", ttl=2_000), ADDRESS, token="b", now=NOW + SECOND) is actor
    assert (actor.expires_at, actor.renewal_token, actor.version) == (NOW + 3 * SECOND, "b", 1)
    assert actor.registered_at == NOW

    with pytest.raises(Refusal):
        registry.renew(Renew("a"), ADDRESS, token="c", now=NOW + SECOND)
    registry.renew(Renew("b"), ADDRESS, token="c", now=NOW + 2 * SECOND)
    assert actor.expires_at == NOW + 4 * SECOND  # the TTL that was named last, again


@pytest.mark.parametrize("token", ["", "A", "a ", "aa", "\u00e9", "\ud800", "a\x00"])
def test_a_wrong_token_renews_nothing(registry: Registry[str], token: str) -> None:
    actor, _ = register(registry, token="a", ttl=1_000)

    with pytest.raises(Refusal) as caught:
        registry.renew(Renew(token), ADDRESS, token="b", now=NOW)
    assert (caught.value.code, caught.value.reason) == ("unauthorized", "wrong_renewal_token")
    assert "'a'" not in str(caught.value.details) + caught.value.message
    assert (actor.renewal_token, actor.expires_at) == ("a", NOW + SECOND)


def test_who_is_not_registered_cannot_renew(registry: Registry[str]) -> None:
    register(registry, ttl=1_000, token="a")
    for address, now in ((ADDRESS, NOW + SECOND), ("@(a/unknown)", NOW)):
        with pytest.raises(Refusal, match="no actor") as caught:
            registry.renew(Renew("a"), address, token="b", now=now)
        assert (caught.value.code, caught.value.reason) == ("unknown_actor", "not_registered")


def test_who_unregisters_is_gone(registry: Registry[str]) -> None:
    actor, _ = register(registry)

    assert registry.unregister(actor)
    assert not registry.unregister(actor)
    assert registry.get(ADDRESS, NOW) is None
    assert found(registry.list(ListActors(), NOW)) == []
    assert registry.expire(NOW + MAX_TTL) == []


def test_who_comes_late_does_not_end_the_registration_that_took_its_place(registry: Registry[str]) -> None:
    first, _ = register(registry, session="one")
    second, _ = register(registry, session="two", ttl=1_000)

    assert not registry.unregister(first)
    assert registry.expire(NOW + SECOND) == [second]  # also when its own time is up, it is told so


def test_those_that_ran_out_are_handed_out_once(registry: Registry[str]) -> None:
    late, _ = register(registry, "@(a/late)", ttl=3_000)
    early, _ = register(registry, "@(a/early)", ttl=1_000)
    renewed, _ = register(registry, "@(a/renewed)", ttl=1_000, token="a")
    registry.renew(Renew("a", ttl=5_000), renewed.address, token="b", now=NOW)

    assert registry.expire(NOW + SECOND - 1) == []
    assert registry.expire(NOW + SECOND) == [early]
    assert registry.get("@(a/late)", NOW + 3 * SECOND) is None
    assert len(registry) == 2
    assert registry.expire(NOW + 4 * SECOND) == [late]
    assert registry.expire(NOW + 4 * SECOND) == []
    assert registry.expire(NOW + 5 * SECOND) == [renewed]
    assert len(registry) == 0


def test_a_renewal_may_shorten(registry: Registry[str]) -> None:
    actor, _ = register(registry, ttl=3_600_000, token="a")
    registry.renew(Renew("a", ttl=1_000), ADDRESS, token="b", now=NOW)

    assert registry.expire(NOW + SECOND) == [actor]


@pytest.mark.parametrize("is_same_instant", [True, False])
def test_endless_renewals_and_registrations_leave_nothing_behind(registry: Registry[str], is_same_instant: bool) -> None:
    steady, _ = register(registry, "@(a/steady)", ttl=3_600_000)
    register(registry, token="0")
    for number in range(5_000):
        now = NOW if is_same_instant else NOW + number
        registry.renew(Renew(str(number)), ADDRESS, token=str(number + 1), now=now)
        fleeting, _ = register(registry, "@(a/fleeting)", now=now)
        registry.unregister(fleeting)

    assert len(registry._by_expiry) < 200
    assert [actor.address for actor in registry.expire(NOW + 3_599 * SECOND)] == [ADDRESS]
    assert registry.expire(NOW + 3_600 * SECOND) == [steady]


# --- finding others -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def crowd(registry: Registry[str]) -> Registry[str]:
    register(registry, "@(node/b)", capabilities=("work", "log"), metadata={"zone": "eu", "n": 1, "on": True, "tags": [1, "x"]})
    register(registry, "@(browser/z)", capabilities=("ui",), metadata={"zone": "eu", "n": True, "nothing": None})
    register(registry, "@(browser/a)", capabilities=("ui", "log"), metadata={"zone": "us", "n": 1.0, "where": {"x": 1}})
    register(registry, "@(node/gone)", capabilities=("ui", "log", "work"), metadata={"zone": "eu"}, ttl=1_000, now=NOW - SECOND)
    return registry


def test_actors_are_found_by_all_that_is_asked(crowd: Registry[str], subtests: pytest.Subtests) -> None:
    rows: list[tuple[Discover, str]] = [
        (Discover(), "browser/a browser/z node/b"),
        (Discover(pattern=r"^@\(browser/"), "browser/a browser/z"),
        (Discover(pattern="/[a-b]"), "browser/a node/b"),
        (Discover(pattern=""), "browser/a browser/z node/b"),
        (Discover(capabilities=("log",)), "browser/a node/b"),
        (Discover(capabilities=("log", "ui", "log")), "browser/a"),
        (Discover(capabilities=("nobody",)), ""),
        (Discover(metadata={"zone": "eu"}), "browser/z node/b"),
        (Discover(metadata={"zone": "EU"}), ""),
        (Discover(metadata={"n": 1}), "browser/a node/b"),
        (Discover(metadata={"n": 1.0}), "browser/a node/b"),
        (Discover(metadata={"n": True}), "browser/z"),
        (Discover(metadata={"n": "1"}), ""),
        (Discover(metadata={"on": True}), "node/b"),
        (Discover(metadata={"on": 1}), ""),
        (Discover(metadata={"nothing": None}), "browser/z"),
        (Discover(metadata={"missing": None}), ""),
        (Discover(metadata={"tags": [1, "x"]}), "node/b"),
        (Discover(metadata={"tags": [True, "x"]}), ""),
        (Discover(metadata={"tags": [1]}), ""),
        (Discover(metadata={"where": {"x": 1.0}}), "browser/a"),
        (Discover(metadata={"where": {"x": True}}), ""),
        (Discover(metadata={"where": {}}), ""),
        (Discover(metadata={"zone": "eu", "n": 1}), "node/b"),
        (Discover(pattern="node", capabilities=("work",), metadata={"zone": "eu"}), "node/b"),
    ]
    for query, wanted in rows:
        with subtests.test(query=query):
            result = crowd.discover(query, NOW, glob=False)

            assert found(result) == [f"@({name})" for name in wanted.split()]
            assert (result.total_matches, result.has_more) == (len(result.actors), False)


def test_the_original_dialect_asks_with_globs(crowd: Registry[str]) -> None:
    assert found(crowd.discover(Discover(pattern="@(browser/*)"), NOW, glob=True)) == ["@(browser/a)", "@(browser/z)"]
    assert found(crowd.discover(Discover(pattern="browser"), NOW, glob=True)) == []


def test_what_is_found_is_what_others_may_see(crowd: Registry[str]) -> None:
    result = crowd.discover(Discover(pattern="node"), NOW, glob=False)

    assert msgspec.to_builtins(result)["actors"] == (
        {
            "actorAddress": "@(node/b)",
            "capabilities": ("work", "log"),
            "metadata": {"zone": "eu", "n": 1, "on": True, "tags": [1, "x"]},
            "registeredAt": NOW // 1_000,
        },
    )


def test_a_hostile_query_is_refused(crowd: Registry[str], subtests: pytest.Subtests) -> None:
    for glob in (True, False):
        with subtests.test(glob=glob):
            for query in (
                Discover(pattern="a" * 257),
                Discover(capabilities=("",)),
                Discover(capabilities=tuple(str(number) for number in range(MAX_CAPABILITIES + 1))),
                Discover(metadata={"a": "x" * MAX_METADATA}),
            ):
                with pytest.raises(Refusal):
                    crowd.discover(query, NOW, glob=glob)
            with pytest.raises(Refusal):
                crowd.discover(Discover(pattern="(?=a)"), NOW, glob=False)


def test_what_is_found_comes_in_pages(crowd: Registry[str], subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int, str, bool]] = [
        (100, 0, "browser/a browser/z node/b", False),
        (2, 0, "browser/a browser/z", True),
        (2, 1, "browser/z node/b", False),
        (1, 2, "node/b", False),
        (5, 3, "", False),
        (5, 1 << 53, "", False),
    ]
    for limit, offset, names, has_more in rows:
        with subtests.test(limit=limit, offset=offset):
            for result in (
                crowd.list(ListActors(limit, offset), NOW),
                crowd.discover(Discover(limit=limit, offset=offset), NOW, glob=False),
            ):
                assert found(result) == [f"@({name})" for name in names.split()]
                assert (result.has_more, result.total_matches) == (has_more, 3)


def test_a_broadcast_meets_those_with_a_capability(crowd: Registry[str]) -> None:
    assert [actor.address for actor in crowd.with_capability("log", NOW)] == ["@(browser/a)", "@(node/b)"]
    assert [actor.address for actor in crowd.with_capability(None, NOW)] == ["@(browser/a)", "@(browser/z)", "@(node/b)"]
    assert list(crowd.with_capability("nobody", NOW)) == []


def test_actors_may_come_and_go_while_all_are_met(crowd: Registry[str]) -> None:
    met = []
    for actor in crowd.with_capability(None, NOW):
        met.append(actor.address)
        if (last := crowd.get("@(browser/z)", NOW)) is not None:
            crowd.unregister(last)
        register(crowd, f"@(new/{len(met)})")
        crowd.list(ListActors(), NOW)

    assert met == ["@(browser/a)", "@(node/b)"]
    assert found(crowd.list(ListActors(), NOW)) == ["@(browser/a)", "@(new/1)", "@(new/2)", "@(node/b)"]


def test_fifty_thousand_actors_are_handled_without_scans() -> None:
    registry: Registry[str] = Registry(HubRules())
    begin = time.process_time()
    for number in range(50_000):
        register(registry, f"@(load/actor-{number})", token="t", ttl=1_000 + number)
    for number in range(0, 50_000, 2):
        registry.renew(Renew("t"), f"@(load/actor-{number})", token="t", now=NOW)
    gone = sum(len(registry.expire(NOW + SECOND + number * 1_000)) for number in range(50_000))

    assert (gone, len(registry)) == (50_000, 0)
    assert time.process_time() - begin < 10  # a second on an idle machine; with a scan for each it would be minutes
