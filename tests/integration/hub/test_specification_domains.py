"""The domains beside specification 002 that it needs: connection, registration, direct messages, flow, errors, tokens.

In the specification's dialect, over real sockets. What both dialects say the same is run with both; the original's own shapes are
in `test_original_dialect.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.integration.hub.scene import HUB, ORIGINAL, SPECIFICATION, UUID, Scene, both, scenario, scene_of
from tests.unit.hub.issuers import NOW, SECRET, signed

SECOND = 1000
"""Of the wire, in milliseconds."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with scene_of(hub_rate_limit=0) as running:
        yield running


# --- connection ---------------------------------------------------------------------------------------------------------------


@scenario
async def test_connection_connect_is_answered_by_connected(scene: Scene) -> None:
    """`payload: {version: "1.0", jwt}` -> `{sessionId, actorIdentity, capabilities[], serverTime}`, and some limits."""
    async with scene.stranger() as stranger:
        reply = await stranger.ask("hub:connect", {"version": "1.0"}, id="mine", **{"from": "@(browser/me)"})

        payload = reply.pop("payload")
        assert reply == {
            "type": "hub:connected",
            "from": HUB,
            "to": "@(browser/me)",
            "correlationId": "mine",
            "timestamp": scene.ms,
        }
        assert re.fullmatch(f"session-{UUID}", payload.pop("sessionId"))
        assert payload.pop("serverVersion")
        assert {"registration", "messaging", "pubsub"} <= set(payload.pop("capabilities"))
        assert payload == {
            "actorIdentity": "@(browser/me)",
            "serverTime": scene.ms,
            "maxMessageSize": 1048576,
            "heartbeatInterval": 300_000,
            "maxActors": 50_000,
        }


@scenario
async def test_connection_there_is_no_subprotocol(scene: Scene) -> None:
    """The version is in the connect message: whatever subprotocol a client offers, none is chosen."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{scene.url}/ws", protocols=("signal-hub", "v1")) as socket,
    ):
        assert socket.protocol is None


@scenario
async def test_connection_every_version_of_the_major_is_spoken(scene: Scene, subtests: pytest.Subtests) -> None:
    for payload in (None, {}, {"version": "1.0"}, {"version": "1"}, {"version": "1.99"}):
        with subtests.test(payload=payload):
            async with scene.stranger() as stranger:
                assert (await stranger.ask("hub:connect", payload))["type"] == "hub:connected"


@scenario
async def test_connection_another_major_version_is_a_mismatch(scene: Scene, subtests: pytest.Subtests) -> None:
    """version_mismatch, then the close."""
    rows: list[tuple[object, object]] = [({"version": version}, None) for version in ("2.0", "0.9", "", "10.0", "one")]
    for payload, metadata in (*rows, (None, {"protocolVersion": "1.0.0"}), (None, {"protocolVersion": ""})):
        with subtests.test(payload=payload, metadata=metadata):
            async with scene.stranger() as stranger:
                await stranger.say("hub:connect", payload, id="mine", metadata=metadata)

                reply = await stranger.next()
                assert (reply["type"], reply["correlationId"]) == ("hub:error", "mine")
                assert reply["payload"]["code"] == "version_mismatch"
                assert reply["payload"]["details"]["supported"] == ["1.0", "0.1.0"]
                assert await stranger.closed() == (4005, "version_mismatch")


@both
@scenario
async def test_connection_a_heartbeat_comes_back_as_it_was_sent(scene: Scene, dialect: str) -> None:
    """`{timestamp}` -> hub:heartbeat_ack `{timestamp, serverTime}`; not every language reads 1.0 as a whole number."""
    async with scene.session(dialect) as session:
        for timestamp in (1708272000000, 0, 1.5, -1):
            reply = await session.ask("hub:heartbeat", {"timestamp": timestamp})

            assert (reply["type"], reply["payload"]) == ("hub:heartbeat_ack", {"timestamp": timestamp, "serverTime": scene.ms})
            assert type(reply["payload"]["timestamp"]) is type(timestamp)


@both
@scenario
async def test_connection_who_says_nothing_for_600_seconds_is_disconnected_and_any_message_counts(
    scene: Scene, dialect: str
) -> None:
    """Stale after 600 s: close 1000 "Heartbeat timeout"."""
    async with scene.session(dialect) as quiet, scene.session(dialect) as talking:
        scene.clock.advance(599)
        await talking.ask("hub:list_topics", {})
        await talking.nothing_more()

        scene.clock.advance(1)

        assert await quiet.closed() == (1000, "Heartbeat timeout")
        await talking.nothing_more()


@scenario
async def test_connection_disconnect_is_answered_before_the_close(scene: Scene) -> None:
    """`{reason?}` -> hub:disconnect_ack `{sessionId, cleanedUp}`, then close 1000."""
    async with scene.actor("ui") as ui:
        reply = await ui.ask("hub:disconnect", {"reason": "client_requested"})

        assert (reply["type"], reply["payload"]) == ("hub:disconnect_ack", {"sessionId": ui.session_id, "cleanedUp": True})
        assert await ui.closed() == (1000, "Client requested disconnect")
        assert not ui.kept


@both
@scenario
async def test_connection_a_raw_ping_is_answered_in_every_state(scene: Scene, dialect: str) -> None:
    """`{"type":"ping"}` -> `{"type":"pong"}`."""
    async with scene.stranger(dialect) as stranger:
        for _ in range(2):
            await stranger.send('{"type":"ping"}')
            assert await stranger.next() == {"type": "pong"}
            await stranger.connect()


# --- registration -------------------------------------------------------------------------------------------------------------


@scenario
async def test_registration_register_is_answered_by_registered(scene: Scene) -> None:
    """`{actorAddress, capabilities, metadata, ttl}` -> `{actorAddress, renewalToken, expiresAt, version}`."""
    async with scene.session() as session:
        address = scene.address("ui")
        payload = {"actorAddress": address, "capabilities": ["ui"], "metadata": {"room": 7}, "ttl": 60_000}

        reply = await session.ask("hub:register", payload, id="mine")

        token = reply["payload"].pop("renewalToken")
        assert reply == {
            "type": "hub:registered",
            "from": HUB,
            "to": address,
            "payload": {"actorAddress": address, "expiresAt": scene.ms + 60_000, "version": 1},
            "correlationId": "mine",
            "timestamp": scene.ms,
        }
        assert re.fullmatch(f"renewal-{UUID}", token)


@both
@scenario
async def test_registration_ttl_min_1000_default_300000_max_3600000(scene: Scene, dialect: str) -> None:
    async with scene.actor("ui", dialect) as ui:
        for asked, lasts in (({}, 300_000), ({"ttl": None}, 300_000), ({"ttl": 1000}, 1000), ({"ttl": 3_600_000}, 3_600_000)):
            assert (await ui.register(ui.address, **asked))["payload"]["expiresAt"] == scene.ms + lasts, asked
        assert (await ui.register(ui.address, ttl=1000.5))["payload"]["expiresAt"] == scene.ms + 1000


REFUSED_REGISTRATIONS: list[tuple[dict[str, object], str]] = [
    ({"ttl": 999}, "invalid_ttl"),
    ({"ttl": 999.999}, "invalid_ttl"),
    ({"ttl": 3_600_001}, "invalid_ttl"),
    ({"ttl": 0}, "invalid_ttl"),
    ({"ttl": -1}, "invalid_ttl"),
    ({"ttl": 1e308}, "invalid_ttl"),
    ({"actorAddress": "browser/ui"}, "invalid_address"),
    ({"actorAddress": "@(Browser/ui)"}, "invalid_address"),
    ({"actorAddress": "@(browser)"}, "invalid_address"),
    ({"actorAddress": "@(a/b/c)"}, "invalid_address"),
    ({"actorAddress": "@(a/b)\n"}, "invalid_address"),
    ({"actorAddress": ""}, "invalid_address"),
    ({"actorAddress": 7}, "invalid_payload"),
    ({"actorAddress": HUB}, "reserved_address"),
    ({"actorAddress": "@(broadcast/all)"}, "reserved_address"),
    ({"capabilities": []}, "missing_capabilities"),
    ({"capabilities": [""]}, "invalid_capability"),
    ({"capabilities": "chat"}, "invalid_payload"),
    ({"metadata": []}, "invalid_payload"),
]


@both
@scenario
async def test_registration_what_is_no_registration_is_refused(scene: Scene, dialect: str, subtests: pytest.Subtests) -> None:
    r"""Address `^@\([a-z0-9-]+/[a-z0-9-]+\)$`, capabilities non-empty, ttl within its bounds."""
    async with scene.session(dialect) as session:
        for payload, reason in REFUSED_REGISTRATIONS:
            with subtests.test(payload=payload):
                error = await session.refused("hub:register", {"actorAddress": "@(some/body)", "capabilities": ["x"], **payload})

                assert error["details"]["reason"] == reason
        assert (await session.refused("hub:subscribe", {"topic": "a"}))["details"]["reason"] == "not_registered"


@both
@scenario
async def test_registration_the_version_grows_with_each_registration_of_a_live_address(scene: Scene, dialect: str) -> None:
    """Version 1, then one more each; whoever was gone begins anew. To register again keeps the subscriptions."""
    topic = scene.topic()
    async with scene.actor("ui", dialect) as ui:
        first = ui.renewal_token
        await ui.subscribe(topic)

        again = (await ui.register(ui.address))["payload"]

        assert again["version"] == 2
        assert again["renewalToken"] != first
        assert await ui.publish(topic) == 1
        async with scene.session(dialect) as other:
            assert (await other.register(ui.address))["payload"]["version"] == 3
            await other.unregister()
            assert (await other.register(ui.address))["payload"]["version"] == 1


@both
@scenario
async def test_registration_the_last_one_wins_and_the_one_before_is_told_and_closed(scene: Scene, dialect: str) -> None:
    """hub:disconnect `{reason: "duplicate_connection", message}`, then close 4002; the new one goes on."""
    async with scene.actor("old", dialect) as old, scene.actor("new", dialect, address=old.address) as new:
        told = await old.next()
        assert (told["type"], told["from"], told["to"]) == ("hub:disconnect", HUB, old.address)
        assert told["payload"]["reason"] == "duplicate_connection"
        assert told["payload"]["message"]
        assert await old.closed() == (4002, "duplicate_connection")

        answer = await new.ask("hub:send", {"to": new.address, "type": "said", "data": 1})

        assert answer["type"] == "hub:delivery_ack"
        assert (await new.expect("said"))["payload"] == 1


@scenario
async def test_registration_renew_rotates_the_token(scene: Scene) -> None:
    """`{actorAddress, renewalToken, ttl}` -> hub:renewed `{actorAddress, expiresAt, newRenewalToken}`, once each."""
    async with scene.actor("ui", ttl=10 * SECOND) as ui:
        scene.clock.advance(5)
        asked = {"actorAddress": ui.address, "renewalToken": ui.renewal_token, "ttl": 20 * SECOND}

        reply = await ui.ask("hub:renew", asked)

        token = reply["payload"].pop("newRenewalToken")
        assert (reply["type"], reply["payload"]) == (
            "hub:renewed",
            {"actorAddress": ui.address, "expiresAt": scene.ms + 20 * SECOND},
        )
        assert re.fullmatch(f"renewal-{UUID}", token)
        assert token != ui.renewal_token
        error = await ui.refused("hub:renew", asked)
        assert (error["code"], error["details"]["reason"]) == ("unauthorized", "wrong_renewal_token")
        assert (await ui.ask("hub:renew", {**asked, "renewalToken": token}))["type"] == "hub:renewed"


@both
@scenario
async def test_registration_a_renewal_of_nobody_is_an_unknown_actor(scene: Scene, dialect: str) -> None:
    """Wrong token: unauthorized; unknown actor: unknown_actor, whether it never was or is not any more."""
    async with scene.session(dialect) as nobody, scene.actor("late", dialect, ttl=1000) as late:
        error = await nobody.refused("hub:renew", {"actorAddress": late.address, "renewalToken": late.renewal_token})
        assert (error["code"], error["details"]["reason"]) == ("unknown_actor", "not_registered")
        error = await late.refused("hub:renew", {"actorAddress": late.address, "renewalToken": "renewal-wrong"})
        assert (error["code"], error["details"]["reason"]) == ("unauthorized", "wrong_renewal_token")

        scene.clock.advance(1)

        error = await late.refused("hub:renew", {"actorAddress": late.address, "renewalToken": late.renewal_token})
        assert error["code"] == "unknown_actor"


@scenario
async def test_registration_unregister_is_answered_by_unregistered(scene: Scene) -> None:
    """`{actorAddress}` -> hub:unregistered `{actorAddress, unregisteredAt}`."""
    async with scene.actor("ui") as ui:
        reply = await ui.ask("hub:unregister", {"actorAddress": ui.address})

        assert (reply["type"], reply["payload"]) == (
            "hub:unregistered",
            {"actorAddress": ui.address, "unregisteredAt": scene.ms},
        )
        error = await ui.refused("hub:unregister", {"actorAddress": ui.address})
        assert (error["code"], error["details"]["reason"]) == ("unauthorized", "not_registered")


@both
@scenario
async def test_registration_nobody_unregisters_or_renews_another(scene: Scene, dialect: str) -> None:
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        for kind in ("hub:unregister", "hub:renew"):
            error = await a.refused(kind, {"actorAddress": b.address, "renewalToken": b.renewal_token})
            assert (error["code"], error["details"]["reason"]) == ("unauthorized", "wrong_actor")

        assert await b.publish(scene.topic()) == 0  # it is still somebody


@both
@scenario
async def test_registration_when_the_ttl_ends_the_connection_stays_and_the_actor_is_unknown(scene: Scene, dialect: str) -> None:
    """TTL expiry only removes from the registry; a renewal in time prevents it; registering again works."""
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect, ttl=2 * SECOND) as b:
        scene.clock.advance(1)
        await b.ask("hub:renew", {"renewalToken": b.renewal_token})
        scene.clock.advance(1.5)
        assert await b.publish(scene.topic()) == 0

        scene.clock.advance(0.5)

        told = await b.expect("hub:unregistered")
        assert told["payload"] == {"actorAddress": b.address, "unregisteredAt": scene.ms, "reason": "expired"}
        unknown = await a.ask("hub:send", {"to": b.address, "type": "said"})
        assert unknown["type"] == "hub:unknown_actor"
        assert (await b.refused("hub:publish", {"topic": "a", "type": "said"}))["code"] == "unauthorized"
        assert (await b.register(b.address))["payload"]["version"] == 1


@scenario
async def test_registration_discover_by_pattern_capabilities_and_metadata(scene: Scene) -> None:
    """`{pattern (regex), capabilities[] (AND), metadata{}, limit, offset}` -> hub:discovery_result."""
    kind = f"kind-{scene.ms}-{scene.topic('x').split('/')[0]}"
    addresses = [f"@({kind}/{name})" for name in ("a", "b", "c")]
    offers = [(["chat"], {"room": 1}), (["chat", "call"], {"room": 1}), (["chat", "call"], {"room": 2})]
    async with AsyncExitStack() as stack:
        for address, (capabilities, metadata) in zip(addresses, offers, strict=True):
            actor = scene.actor("x", address=address, capabilities=capabilities, metadata=metadata)
            await stack.enter_async_context(actor)
        ui = await stack.enter_async_context(scene.session())  # who asks need not be registered

        async def found(**asked: object) -> str:
            reply = await ui.ask("hub:discover", {"pattern": f"^@\\({kind}/", **asked})
            assert reply["type"] == "hub:discovery_result", reply
            return "".join(one["actorAddress"][-2] for one in reply["payload"]["actors"])

        assert await found() == "abc"
        assert await found(pattern=f"{kind}/[ab]\\)$") == "ab"
        assert await found(capabilities=["chat", "call"]) == "bc"
        assert await found(metadata={"room": 1}) == "ab"
        assert await found(metadata={"room": 1}, capabilities=["call"]) == "b"
        assert await found(capabilities=["cook"]) == ""
        page = await ui.ask("hub:discover", {"pattern": kind, "limit": 1, "offset": 1})
        assert page["payload"] == {
            "actors": [
                {
                    "actorAddress": addresses[1],
                    "capabilities": ["chat", "call"],
                    "metadata": {"room": 1},
                    "registeredAt": scene.ms,
                }
            ],
            "count": 1,
            "hasMore": True,
            "totalMatches": 3,
        }


@scenario
async def test_registration_no_pattern_hangs_or_breaks_the_hub(scene: Scene) -> None:
    """An evil pattern is refused or answered at once: the regular expression of a client is no program to run."""
    async with scene.actor("ui", address=f"@(browser/{'a' * 200})") as ui:
        assert (await ui.ask("hub:discover", {"pattern": "(a+)+$"}))["type"] == "hub:discovery_result"
        for pattern in ("(", "[", "*a", "(?<name>a)", "(a)\\1", "a{1,99999}"):
            assert (await ui.refused("hub:discover", {"pattern": pattern}))["details"]["reason"] == "invalid_pattern", pattern


@scenario
async def test_registration_a_page_has_1_to_1000(scene: Scene) -> None:
    async with scene.session() as session:
        for kind in ("hub:discover", "hub:list_actors", "hub:list_topics"):
            taken = [(await session.ask(kind, {"limit": limit}))["type"] for limit in (1, 1000, 0, 1001, -1, "5")]

            assert [one != "hub:error" for one in taken] == [True, True, False, False, False, False], kind


@scenario
async def test_registration_list_actors_lists_all_by_page(scene: Scene) -> None:
    """`{offset, limit}` -> hub:discovery_result, by address."""
    with scene_of() as own:
        async with own.actor("b") as b, own.actor("a") as a, own.session() as session:
            reply = await session.ask("hub:list_actors", {"limit": 1})
            rest = await session.ask("hub:list_actors", {"offset": 1})

            assert (reply["type"], rest["type"]) == ("hub:discovery_result", "hub:discovery_result")
            assert [one["actorAddress"] for one in reply["payload"]["actors"]] == [a.address]
            assert [one["actorAddress"] for one in rest["payload"]["actors"]] == [b.address]
            assert (reply["payload"]["hasMore"], rest["payload"]["hasMore"]) == (True, False)
            assert (reply["payload"]["totalMatches"], rest["payload"]["count"]) == (2, 1)


@both
@scenario
async def test_registration_nobody_sees_the_renewal_token_of_another(scene: Scene, dialect: str) -> None:
    """Neither by discovery, nor by a list, nor with a message, nor in an error."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await a.subscribe(topic, presence=True)
        await b.subscribe(topic)
        await b.publish(topic)
        told = [
            await a.ask("hub:discover", {"pattern": b.address.strip("@()") if dialect == SPECIFICATION else b.address}),
            await a.ask("hub:list_actors", {}),
            await a.ask("hub:presence", {"topic": topic}),
            await a.ask("hub:renew", {"actorAddress": b.address, "renewalToken": "x"}),
            await a.ask("hub:send", {"to": b.address, "type": "said"}),
            *a.kept,
            *[frame for frame in [await b.expect("said")] if frame["from"] == a.address],
        ]

        assert b.address in json.dumps(told[:2])
        assert b.renewal_token not in json.dumps(told)
        assert a.renewal_token not in json.dumps([*b.kept])
        assert "enewalToken" not in json.dumps(told[:3])


@scenario
async def test_registration_there_is_room_for_so_many_actors() -> None:
    """Capacity -> rate_limited "Registry at capacity"; whoever leaves makes room."""
    with scene_of(hub_max_actors=2) as own:
        async with own.actor("a") as a, own.actor("b"), own.session() as late:
            error = await late.refused("hub:register", {"actorAddress": "@(too/late)", "capabilities": ["x"]})
            assert (error["code"], error["message"]) == ("rate_limited", "Registry at capacity")
            assert error["details"] == {"reason": "registry_full", "retryable": True, "limit": 2}

            await a.unregister()

            assert (await late.register("@(too/late)"))["type"] == "hub:registered"


# --- direct messages ----------------------------------------------------------------------------------------------------------


@scenario
async def test_messaging_send_reaches_one_actor_and_is_acked(scene: Scene) -> None:
    """Flat, with the sender's metadata beside the hub's own; `ask` -> hub:delivery_ack `{messageId, delivered, timestamp}`."""
    async with scene.actor("a") as a, scene.actor("b") as b:
        payload = {"to": b.address, "type": "asked", "data": {"q": 1}}
        claimed = {"mine": [1], "via": "@(not/hub)", "forwarded": False, "originalMessageId": "forged", "topic": "forged"}

        reply = await a.ask("hub:send", payload, id="first", metadata=claimed)

        assert (reply["type"], reply["payload"]) == (
            "hub:delivery_ack",
            {"messageId": "first", "delivered": True, "timestamp": scene.ms},
        )
        assert await b.next() == {
            "type": "asked",
            "from": a.address,
            "to": b.address,
            "payload": {"q": 1},
            "timestamp": scene.ms,
            "metadata": {"mine": [1], "forwarded": True, "via": HUB, "originalMessageId": "first"},
        }


@both
@scenario
async def test_messaging_the_target_is_in_the_payload_or_else_in_the_envelope(scene: Scene, dialect: str) -> None:
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await a.ask("hub:send", {"type": "said", "data": 1}, to=b.address)
        await a.ask("hub:send", {"to": b.address, "type": "said", "data": 2}, to="@(some/other)")

        assert [(await b.next())["payload"] for _ in range(2)] == [1, 2]


@both
@scenario
async def test_messaging_a_tell_is_not_answered(scene: Scene, dialect: str) -> None:
    """tell: nothing comes back, whether the target is there or not (a silent drop)."""
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await a.say("hub:send", {"to": b.address, "type": "said", "data": 1}, pattern="tell")
        await a.say("hub:send", {"to": "@(no/body)", "type": "said", "data": 1}, pattern="tell")

        await a.nothing_more()
        assert (await b.next())["payload"] == 1


@both
@scenario
async def test_messaging_an_ask_to_nobody_is_answered_by_unknown_actor(scene: Scene, dialect: str) -> None:
    """hub:unknown_actor `{actorAddress, message}`."""
    async with scene.actor("a", dialect) as a:
        reply = await a.ask("hub:send", {"to": "@(no/body)", "type": "said"})

        assert (reply["type"], reply["payload"]) == (
            "hub:unknown_actor",
            {"actorAddress": "@(no/body)", "message": "Actor not registered with Signal Hub"},
        )


@both
@scenario
async def test_messaging_a_message_needs_a_type_and_a_target(scene: Scene, dialect: str) -> None:
    """The same words as on publish."""
    async with scene.actor("a", dialect) as a:
        for kind in ("hub:send", "hub:broadcast"):
            error = await a.refused(kind, {"to": a.address, "data": 1})
            assert (error["code"], error["message"]) == ("internal_error", "payload.type is required")
        error = await a.refused("hub:send", {"type": "said"}, to=None)
        assert (error["code"], error["details"]["reason"]) == ("internal_error", "missing_to")


@scenario
async def test_messaging_broadcast_reaches_all_others_and_is_counted() -> None:
    """hub:delivery_ack with counts; `excludeSelf: false` includes the sender."""
    with scene_of() as own:
        async with own.actor("a") as a, own.actor("b") as b, own.actor("c", ORIGINAL) as c, own.session() as nobody:
            reply = await a.ask("hub:broadcast", {"type": "said", "data": {"n": 1}}, id="first")

            assert (reply["type"], reply["payload"]) == (
                "hub:delivery_ack",
                {"messageId": "first", "delivered": True, "timestamp": own.ms, "deliveredCount": 2, "failedCount": 0},
            )
            for actor in (b, c):
                frame = await actor.next()
                assert (frame["from"], frame["to"], frame["payload"]) == (a.address, actor.address, {"n": 1})
                assert frame["metadata"]["originalMessageId"] == "first"
            await a.nothing_more()
            reply = await a.ask("hub:broadcast", {"type": "said", "data": 2, "excludeSelf": False})
            assert reply["payload"]["deliveredCount"] == 3
            assert (await a.expect("said"))["payload"] == 2
            await nobody.nothing_more()


@both
@scenario
async def test_messaging_broadcast_to_a_capability(scene: Scene, dialect: str) -> None:
    """metadata.targetCapability, or payload.targetCapability; it is not passed on."""
    capability = scene.topic("capability")
    async with (
        scene.actor("a", dialect, capabilities=[capability]) as a,
        scene.actor("b", dialect, capabilities=["test", capability]) as b,
        scene.actor("c", dialect) as c,
    ):
        target = {"targetCapability": capability}
        for in_payload, in_metadata in ((target, {}), ({}, target)):
            reply = await a.ask("hub:broadcast", {"type": "said", "data": 1, **in_payload}, metadata=in_metadata)

            assert reply["payload"]["deliveredCount"] == 1
            frame = await b.next()
            assert "targetCapability" not in frame["metadata"]
        await c.nothing_more()


@both
@scenario
async def test_messaging_a_broadcast_beyond_the_limit_reaches_nobody(dialect: str) -> None:
    """Max recipients -> BROADCAST_LIMIT_EXCEEDED."""
    with scene_of(hub_max_broadcast=2) as own:
        async with (
            own.actor("a", dialect) as a,
            own.actor("b", dialect) as b,
            own.actor("c", dialect),
            own.actor("d", dialect, capabilities=["rare"]) as d,
        ):
            error = await a.refused("hub:broadcast", {"type": "said", "data": 1})

            assert (error["code"], error["details"]["reason"]) == ("BROADCAST_LIMIT_EXCEEDED", "broadcast_limit")
            assert error["details"]["limit"] == 2
            await b.nothing_more()
            reply = await a.ask("hub:broadcast", {"type": "said", "data": 2}, metadata={"targetCapability": "rare"})
            assert reply["payload"]["deliveredCount"] == 1
            assert (await d.next())["payload"] == 2


# --- flow and numbers ---------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_flow_what_comes_while_paused_waits_for_resume(scene: Scene, dialect: str) -> None:
    """hub:pause `{reason}`, hub:resume `{}`: replies still come, messages wait, in their order."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(topic)
        paused = await b.ask("hub:pause", {"reason": "busy"})
        assert (paused["type"], paused["payload"]) == ("hub:flow", {"paused": True, "queueDepth": 0})

        assert [await a.publish(topic, number) for number in range(3)] == [1, 1, 1]

        stats = (await b.ask("hub:queue_stats", {}))["payload"]
        assert (stats["queueDepth"], stats["paused"]) == (3, True)
        assert not b.kept
        resumed = await b.ask("hub:resume", {})
        assert (resumed["type"], resumed["payload"]) == ("hub:flow", {"paused": False, "queueDepth": 3})
        assert [(await b.next())["payload"] for _ in range(3)] == [0, 1, 2]
        assert (await b.ask("hub:queue_stats"))["payload"]["queueDepth"] == 0


@both
@scenario
async def test_flow_queue_stats(scene: Scene, dialect: str) -> None:
    """hub:queue_stats_response `{queueDepth, processingRate, pauseThreshold, resumeThreshold}`."""
    async with scene.session(dialect) as session:
        reply = await session.ask("hub:queue_stats", {})

        assert reply["type"] == "hub:queue_stats_response"
        fields = {"queueDepth", "queueBytes", "processingRate", "pauseThreshold", "resumeThreshold", "paused"}
        assert set(reply["payload"]) == fields
        assert reply["payload"]["resumeThreshold"] < reply["payload"]["pauseThreshold"]


@both
@scenario
async def test_flow_metrics_of_the_minute_that_runs(dialect: str) -> None:
    """hub:metrics_response: what the hub has done since windowStart."""
    with scene_of() as own:
        async with own.actor("a", dialect) as a, own.session(dialect):
            await a.refused("hub:publish", {})

            reply = await a.ask("hub:metrics", {})

            assert reply["type"] == "hub:metrics_response"
            assert reply["payload"] == {
                "messages_received": 5,
                "messages_sent": 4,
                "errors": 1,
                "connections_opened": 2,
                "connections_closed": 0,
                "windowStart": own.ms,
                "timestamp": own.ms,
            }
            own.clock.advance(60)
            later = (await a.ask("hub:metrics", {}))["payload"]
            assert (later["messages_received"], later["errors"], later["connections_opened"]) == (1, 0, 0)
            assert later["windowStart"] == own.ms


# --- errors -------------------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_errors_what_is_no_message_is_refused(scene: Scene, dialect: str, subtests: pytest.Subtests) -> None:
    """internal_error "Invalid SharedMessage structure", to nobody's request."""
    async with scene.session(dialect) as session:
        for text in ("", "{", "[]", "5", "null", '"text"', "{}", '{"type":5}', '{"type":""}', '{"payload":{}}'):
            with subtests.test(text=text):
                await session.send(text)

                reply = await session.next()
                payload = reply["payload"]
                assert reply["type"] == "hub:error"
                assert (payload["code"], payload["message"]) == ("internal_error", "Invalid SharedMessage structure")
                assert payload["details"]["reason"] in {"invalid_json", "invalid_envelope"}
                assert reply.get("correlationId") is None
        await session.nothing_more()


@both
@scenario
async def test_errors_a_request_that_does_not_exist(scene: Scene, dialect: str) -> None:
    async with scene.session(dialect) as session:
        error = await session.refused("hub:dance", {})

        assert (error["code"], error["details"]["reason"]) == ("internal_error", "unknown_type")


@both
@scenario
async def test_errors_message_too_large_by_bytes_before_parsing(scene: Scene, dialect: str) -> None:
    """1,048,576 bytes, not characters: half as many of two bytes are as large."""
    async with scene.session(dialect) as session:
        await session.send("é" * (2**19) + "x")

        reply = await session.next()
        assert (reply["type"], reply["payload"]["code"]) == ("hub:error", "message_too_large")
        assert reply["payload"]["details"]["limit"] == 2**20
        assert reply["payload"]["details"]["size"] == 2**20 + 1
        await session.nothing_more()


@both
@scenario
async def test_errors_message_expired_when_timestamp_and_ttl_have_passed(scene: Scene, dialect: str) -> None:
    payloads = {
        "hub:publish": {"topic": "expiring", "type": "said"},
        "hub:send": {"to": "@(no/body)", "type": "said"},
        "hub:broadcast": {"type": "said", "targetCapability": "none"},
    }
    async with scene.actor("a", dialect) as a:
        for kind, payload in payloads.items():
            for age, ttl in ((1000, 1000), (0, 0), (0, 5)):
                assert (await a.ask(kind, payload, timestamp=scene.ms - age, ttl=ttl))["type"] != "hub:error", (kind, age, ttl)
            for age, ttl in ((1000, 999), (1, 0)):
                error = await a.refused(kind, payload, timestamp=scene.ms - age, ttl=ttl)
                assert (error["code"], error["details"]["serverTime"]) == ("message_expired", scene.ms), (kind, age, ttl)


@both
@scenario
async def test_errors_rate_limited_says_when_to_come_back(dialect: str) -> None:
    """Details `{retryAfter, limit, code: "RATE_LIMIT_EXCEEDED"}`; hub:connect is exempt; after the wait it is heard again."""
    with scene_of(hub_rate_limit=10, hub_rate_burst=10) as own:
        async with own.session(dialect) as session:
            for _ in range(10):
                await session.ask("hub:heartbeat", {})

            await session.say("hub:heartbeat", {})

            reply = await session.next()
            assert (reply["type"], reply["payload"]["code"]) == ("hub:error", "rate_limited")
            details = reply["payload"]["details"]
            assert (details["limit"], details["code"], details["retryable"]) == (10, "RATE_LIMIT_EXCEEDED", True)
            assert details["retryAfter"] == pytest.approx(0.1)
            own.clock.advance(details["retryAfter"])
            assert (await session.ask("hub:heartbeat", {}))["type"] == "hub:heartbeat_ack"


# --- tokens -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A hub that wants tokens."""
    secret: Path = tmp_path_factory.mktemp("hub") / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with scene_of(hub_jwt_secret_file=secret, insecure=True) as running:
        yield running


@both
@scenario
async def test_tokens_the_token_says_who_the_session_is(guarded: Scene, dialect: str) -> None:
    """payload.jwt, or metadata.authToken with the word bearer; iss `signal-hub`, actorId `browser/ui`."""
    async with guarded.stranger(dialect) as stranger:
        reply = await stranger.connect(signed(actorId="browser/ui"))

        assert reply["type"] == "hub:connected"
        identity = (reply["payload"] if dialect == SPECIFICATION else reply["metadata"])["actorIdentity"]
        assert (identity, reply["to"]) == ("@(browser/ui)", "@(browser/ui)")
        error = await stranger.refused("hub:register", {"actorAddress": "@(browser/another)", "capabilities": ["x"]})
        assert (error["code"], error["details"]["reason"]) == ("unauthorized", "wrong_actor")
        assert (await stranger.register("@(browser/ui)"))["type"] == "hub:registered"


@both
@scenario
async def test_tokens_only_connect_is_heard_before_one_was_shown(guarded: Scene, dialect: str) -> None:
    """Decision 63: `unauthorized`, and what to send. hub:connect still works after it."""
    async with guarded.stranger(dialect) as stranger:
        await stranger.say("hub:subscribe", {"topic": "system/events"})
        refused = (await stranger.next())["payload"]
        assert (refused["code"], refused["details"]["reason"]) == ("unauthorized", "not_connected")
        assert "hub:connect" in refused["resolution"]
        assert "payload.jwt" in refused["resolution"]

        assert (await stranger.connect(signed(actorId="browser/ui")))["type"] == "hub:connected"

        error = await stranger.refused("hub:connect", {"version": "1.0"})
        assert error["details"]["reason"] == "already_connected"


@both
@scenario
async def test_tokens_without_a_right_one_the_connection_ends(guarded: Scene, dialect: str, subtests: pytest.Subtests) -> None:
    """hub:error unauthorized, then close 4001. The token is not said back."""
    rows = {
        "missing_token": None,
        "malformed_token": "nonsense",
        "bad_signature": signed(key=b"another secret, of the same length or more"),
        "expired_token": signed(exp=NOW - 3600, iat=NOW - 7200),
        "wrong_issuer": signed(iss="somebody"),
    }
    for reason, token in rows.items():
        with subtests.test(reason=reason):
            async with guarded.stranger(dialect) as stranger:
                reply = await stranger.connect(token)

                assert (reply["type"], reply["payload"]["code"]) == ("hub:error", "unauthorized")
                assert reply["payload"]["details"]["reason"] == reason
                assert token is None or token not in json.dumps(reply)
                assert await stranger.closed() == (4001, "unauthorized")


@both
@scenario
async def test_tokens_a_session_goes_on_with_a_new_token_of_the_same_actor(guarded: Scene, dialect: str) -> None:
    """hub:refresh_token `{token}` -> hub:token_refreshed; another actor's, or a wrong one: invalid_token."""
    async with guarded.session(dialect, token=signed(actorId="browser/ui")) as session:
        for token in (signed(actorId="browser/another"), "nonsense"):
            error = await session.refused("hub:refresh_token", {"token": token})
            assert error["code"] == "invalid_token"
        fresh = signed(actorId="browser/ui", exp=NOW + 7200)

        reply = await session.ask("hub:refresh_token", {"token": fresh})

        assert reply["type"] == "hub:token_refreshed"
        wanted = {"expiresAt": (NOW + 7200) * SECOND}
        assert reply["payload"] == (wanted if dialect == SPECIFICATION else {"token": fresh, **wanted})


@both
@scenario
async def test_tokens_permissions_of_topics_hold(guarded: Scene, dialect: str) -> None:
    """What may be published and subscribed to are patterns of topics."""
    token = signed(actorId="browser/limited", publish=["out/#"], subscribe=["in/+"])
    async with guarded.session(dialect, token=token) as session:
        await session.register("@(browser/limited)")

        assert await session.publish("out/a") == 0
        assert (await session.subscribe("in/a"))["topic"] == "in/a"
        for kind, topic in (
            ("hub:publish", "in/a"),
            ("hub:subscribe", "out/a"),
            ("hub:subscribe", "in/#"),
            ("hub:subscribe", "#"),
        ):
            error = await session.refused(kind, {"topic": topic, "type": "said"})
            assert (error["code"], error["details"]["reason"]) == ("unauthorized", "not_permitted")
