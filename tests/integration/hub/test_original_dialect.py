"""The dialect of the original implementation over real sockets: a client that connects with `metadata.protocolVersion`.

Every reply of it by name, payload and whole envelope (`Actor.ask` checks that of each reply), what has no reply, the habits of
its clients, and that both dialects hear each other. What both say the same is in `test_specification*.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration.hub.scene import HUB, ORIGINAL, SPECIFICATION, UUID, Scene, check_envelope, scenario, scene_of

ID = "5b3d6c1e-2f0a-4a7e-8f57-0c8f7f1f0c11"
WHOLE = {"pattern": "tell", "ttl": None, "signature": None}
"""What is the same in every envelope."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with scene_of(hub_rate_limit=0) as running:
        yield running


# --- connection ---------------------------------------------------------------------------------------------------------------


@scenario
async def test_connected(scene: Scene) -> None:
    """`{sessionId, serverVersion, maxMessageSize, heartbeatInterval, capabilities}`; whose session it is, is metadata."""
    async with scene.stranger(ORIGINAL) as stranger:
        reply = await stranger.connect(id=ID, **{"from": "@(browser/me)"})

        assert re.fullmatch(UUID, reply.pop("id"))
        assert re.fullmatch(f"session-{UUID}", reply["payload"].pop("sessionId"))
        assert reply["payload"].pop("serverVersion")
        assert reply == {
            "type": "hub:connected",
            "from": HUB,
            "to": "@(browser/me)",
            "payload": {
                "maxMessageSize": 1048576,
                "heartbeatInterval": 300000,
                "capabilities": {
                    "maxActorsPerInstance": 50000,
                    "supportsBackpressure": True,
                    "supportedContentTypes": ["application/json"],
                },
            },
            "correlationId": ID,
            "timestamp": scene.ms,
            "metadata": {"actorIdentity": "@(browser/me)"},
            **WHOLE,
        }


@scenario
async def test_the_dialect_is_chosen_by_the_metadata_of_connect_alone(scene: Scene) -> None:
    """`metadata.protocolVersion` against `payload.version`; metadata without it is the specification's."""
    async with scene.stranger() as one, scene.stranger() as other:
        first = await one.ask("hub:connect", {"version": "1.0"}, metadata={"clientMetadata": {}})
        second = await other.ask("hub:connect", {"version": "1.0"}, metadata={"protocolVersion": "0.1.0"})

        assert "signature" not in first
        assert "actorIdentity" in first["payload"]
        check_envelope(second)
        assert "actorIdentity" in second["metadata"]


@scenario
async def test_an_error_has_the_whole_envelope_too(scene: Scene) -> None:
    async with scene.actor("ui", ORIGINAL) as ui:
        reply = await ui.ask("hub:subscribe", {"topic": "system.events"}, id=ID)

        assert re.fullmatch(UUID, reply.pop("id"))
        assert reply["payload"].pop("resolution")
        assert reply == {
            "type": "hub:error",
            "from": HUB,
            "to": ui.address,
            "payload": {
                "code": "internal_error",
                "message": "topic is required",
                "details": {"reason": "invalid_topic", "retryable": False, "topic": "system.events"},
            },
            "correlationId": ID,
            "timestamp": scene.ms,
            "metadata": {},
            **WHOLE,
        }


@scenario
async def test_version_mismatch(scene: Scene) -> None:
    async with scene.stranger(ORIGINAL) as stranger:
        reply = await stranger.ask("hub:connect", None, metadata={"protocolVersion": "1.0.0"})

        assert (reply["type"], reply["payload"]["code"]) == ("hub:error", "version_mismatch")
        assert await stranger.closed() == (4005, "version_mismatch")


@scenario
async def test_disconnect_is_answered_by_disconnect_and_the_close(scene: Scene) -> None:
    """hub:disconnect `{acknowledged: true}`, then close 1000 "Client requested disconnect"."""
    async with scene.actor("ui", ORIGINAL) as ui:
        reply = await ui.ask("hub:disconnect", {"reason": "client_requested"})

        assert (reply["type"], reply["payload"]) == ("hub:disconnect", {"acknowledged": True})
        assert await ui.closed() == (1000, "Client requested disconnect")
        assert not ui.kept


@scenario
async def test_what_the_hub_says_by_its_own_will_has_the_whole_envelope(scene: Scene) -> None:
    """hub:disconnect of a takeover, hub:unregistered of an expiry, hub:presence, hub:error of a frame that is none."""
    topic = scene.topic()
    async with scene.actor("old", ORIGINAL, ttl=1000) as old:
        await old.subscribe(topic, presence=True)
        async with scene.actor("joins", ORIGINAL) as joins:
            await joins.subscribe(topic)
        await old.send("no message")
        told = [await old.expect("hub:presence"), await old.expect("hub:presence"), await old.expect("hub:error")]
        scene.clock.advance(1)
        told.append(await old.expect("hub:unregistered"))
        await old.register(old.address)
        async with scene.actor("new", ORIGINAL, address=old.address):
            told.append(await old.expect("hub:disconnect"))
            assert (await old.closed())[0] == 4002

    for frame in told:
        check_envelope(frame)
        assert (frame["from"], frame["to"], frame["correlationId"]) == (HUB, old.address, None)


# --- registration -------------------------------------------------------------------------------------------------------------


@scenario
async def test_registered(scene: Scene) -> None:
    """`{actorAddress, capabilities, metadata, ttlSeconds}` -> `{actorAddress, renewalToken, expiresAt, version}`."""
    address = scene.address("ui")
    async with scene.session(ORIGINAL) as session:
        payload = {"actorAddress": address, "capabilities": ["ui"], "metadata": {"room": 1}, "ttlSeconds": 60}

        reply = await session.ask("hub:register", payload)

        assert re.fullmatch(f"renewal-{UUID}", reply["payload"].pop("renewalToken"))
        assert reply["type"] == "hub:registered"
        assert reply["payload"] == {"actorAddress": address, "expiresAt": scene.ms + 60_000, "version": 1}


@scenario
async def test_ttl_seconds(scene: Scene) -> None:
    rows: list[tuple[dict[str, float], int]] = [
        ({"ttlSeconds": 1}, 1000),
        ({"ttlSeconds": 3600}, 3_600_000),
        ({"ttlSeconds": 1.5, "ttl": 9000}, 1500),
        ({"ttl": 9000}, 9000),
    ]
    async with scene.actor("ui", ORIGINAL) as ui:
        for asked, lasts in rows:
            assert (await ui.register(ui.address, **asked))["payload"]["expiresAt"] == scene.ms + lasts, asked
        for seconds in (0.999, 3601, 0, -1, 1e308):
            payload = {"actorAddress": ui.address, "capabilities": ["ui"], "ttlSeconds": seconds}
            assert (await ui.refused("hub:register", payload))["details"]["reason"] == "invalid_ttl", seconds


@scenario
async def test_renewed(scene: Scene) -> None:
    """`{renewalToken}` -> `{expiresAt, renewalToken}`, another one; for as long as before."""
    async with scene.actor("ui", ORIGINAL, ttlSeconds=10) as ui:
        scene.clock.advance(7.5)  # its clients renew at 75 %

        reply = await ui.ask("hub:renew", {"renewalToken": ui.renewal_token})

        token = reply["payload"].pop("renewalToken")
        assert (reply["type"], reply["payload"]) == ("hub:renewed", {"expiresAt": scene.ms + 10_000})
        assert token != ui.renewal_token
        assert (await ui.refused("hub:renew", {"renewalToken": ui.renewal_token}))["code"] == "unauthorized"
        assert (await ui.ask("hub:renew", {"renewalToken": token}))["type"] == "hub:renewed"


@scenario
async def test_unregister_has_no_reply(scene: Scene) -> None:
    async with scene.actor("ui", ORIGINAL) as ui:
        await ui.say("hub:unregister", {"actorAddress": ui.address}, pattern="ask")

        await ui.nothing_more()
        assert (await ui.refused("hub:publish", {"topic": "a", "type": "said"}))["details"]["reason"] == "not_registered"


@scenario
async def test_discovered_by_a_glob(scene: Scene) -> None:
    """`{pattern (glob *), capability?, limit}` -> hub:discovered `{actors: [{address, capabilities}], hasMore}`."""
    kind = scene.topic("x").split("/")[0]
    async with (
        scene.actor("a", ORIGINAL, address=f"@({kind}/a)", capabilities=["chat"]),
        scene.actor("b", address=f"@({kind}/b)", capabilities=["chat", "call"]),
        scene.session(ORIGINAL) as ui,
    ):

        async def found(**asked: object) -> tuple[str, bool]:
            reply = await ui.ask("hub:discover", asked)
            assert reply["type"] == "hub:discovered"
            assert set(reply["payload"]) == {"actors", "hasMore"}
            return "".join(one["address"][-2] for one in reply["payload"]["actors"]), reply["payload"]["hasMore"]

        assert await found(pattern=f"@({kind}/*)") == ("ab", False)
        assert await found(pattern=f"@({kind}/b)") == ("b", False)
        assert await found(pattern=f"{kind}/*") == ("", False)  # a glob is the whole address
        assert await found(pattern=f"*{kind}*", capability="call") == ("b", False)
        assert await found(pattern=f"@({kind}/*)", limit=1) == ("a", True)
        assert await found(pattern=f"@({kind}/.)") == ("", False)  # no regular expression
        reply = await ui.ask("hub:discover", {"pattern": f"@({kind}/b)"})
        assert reply["payload"]["actors"] == [{"address": f"@({kind}/b)", "capabilities": ["chat", "call"]}]


@scenario
async def test_actor_list_without_the_renewal_tokens() -> None:
    """hub:list_actors `{offset, limit}` -> hub:actor_list `{actors, total, offset, limit, hasMore}`."""
    with scene_of() as own:
        async with own.actor("b", metadata={"room": 1}) as b, own.actor("a", ORIGINAL) as a:
            reply = await a.ask("hub:list_actors", {"offset": 1, "limit": 1})

            assert (reply["type"], reply["payload"]) == (
                "hub:actor_list",
                {
                    "actors": [
                        {
                            "actorAddress": b.address,
                            "capabilities": ["test"],
                            "metadata": {"room": 1},
                            "registeredAt": own.ms,
                        }
                    ],
                    "total": 2,
                    "offset": 1,
                    "limit": 1,
                    "hasMore": False,
                },
            )


# --- publish and subscribe ----------------------------------------------------------------------------------------------------


@scenario
async def test_subscribed(scene: Scene) -> None:
    topic = scene.topic()
    async with scene.actor("ui", ORIGINAL) as ui:
        reply = await ui.ask("hub:subscribe", {"topic": topic, "durable": False}, id=ID)

        assert (reply["type"], reply["to"], reply["correlationId"]) == ("hub:subscribed", ui.address, ID)
        assert reply["payload"]["topic"] == topic
        assert re.fullmatch(f"sub-{UUID}", reply["payload"]["subscriptionId"])


@scenario
async def test_published_and_the_publication(scene: Scene) -> None:
    """hub:published `{topic, subscriberCount}`; metadata `{topic, publication: true, via}`, and the id of the publish."""
    topic = scene.topic()
    async with scene.actor("a", ORIGINAL) as a, scene.actor("b", ORIGINAL) as b:
        position = (await b.subscribe(topic))["position"]

        reply = await a.ask("hub:publish", {"topic": topic, "type": "event:created", "data": {"n": 1}}, id=ID)

        assert (reply["type"], reply["payload"]) == ("hub:published", {"topic": topic, "subscriberCount": 1})
        frame = await b.next()
        assert re.fullmatch(UUID, frame.pop("id"))
        assert frame == {
            "type": "event:created",
            "from": a.address,
            "to": b.address,
            "payload": {"n": 1},
            "correlationId": ID,
            "timestamp": scene.ms,
            "metadata": {
                "publication": True,
                "via": HUB,
                "topic": topic,
                "messageId": ID,
                "offset": 0,
                "epoch": position["epoch"],
            },
            **WHOLE,
        }


@scenario
async def test_unsubscribe_has_no_reply(scene: Scene) -> None:
    topic = scene.topic()
    async with scene.actor("ui", ORIGINAL) as ui:
        await ui.subscribe(topic)

        await ui.say("hub:unsubscribe", {"topic": topic}, pattern="ask")

        await ui.nothing_more()
        assert await ui.topics(topic) == {}


@pytest.mark.parametrize("dialect", [SPECIFICATION, ORIGINAL])
@scenario
async def test_a_subscription_is_ended_by_its_id_too(scene: Scene, dialect: str) -> None:
    """The habit of the TypeScript client: hub:unsubscribe `{subscriptionId}`."""
    topic = scene.topic()
    async with scene.actor("ui", dialect) as ui:
        subscription_id = (await ui.subscribe(topic))["subscriptionId"]

        await ui.say("hub:unsubscribe", {"subscriptionId": subscription_id})
        if dialect == SPECIFICATION:
            assert (await ui.next())["payload"] == {"topic": topic, "unsubscribedAt": scene.ms}

        assert await ui.topics(topic) == {}
        await ui.nothing_more()
        error = await ui.refused("hub:unsubscribe", {"subscriptionId": subscription_id})
        assert (error["message"], error["details"]["reason"]) == ("topic is required", "unknown_subscription")


# --- direct messages ----------------------------------------------------------------------------------------------------------


@scenario
async def test_delivery_ack_of_a_message(scene: Scene) -> None:
    """hub:delivery_ack `{messageId, deliveredAt, status: "delivered"}`; the message keeps its ttl and the sender's metadata."""
    async with scene.actor("a", ORIGINAL) as a, scene.actor("b", ORIGINAL) as b:
        payload = {"to": b.address, "type": "asked", "data": [1]}

        reply = await a.ask("hub:send", payload, id=ID, ttl=30_000, timestamp=scene.ms, metadata={"mine": 1})

        assert (reply["type"], reply["payload"]) == (
            "hub:delivery_ack",
            {"messageId": ID, "deliveredAt": scene.ms, "status": "delivered"},
        )
        frame = await b.next()
        check_envelope(frame)
        assert (frame["type"], frame["from"], frame["to"], frame["payload"]) == ("asked", a.address, b.address, [1])
        assert frame["ttl"] == 30_000
        assert frame["metadata"] == {"mine": 1, "forwarded": True, "via": HUB, "originalMessageId": ID}


@scenario
async def test_broadcast_ack(scene: Scene) -> None:
    """hub:broadcast_ack `{messageId, deliveredCount, failedCount}`."""
    capability = scene.topic("capability")
    async with scene.actor("a", ORIGINAL) as a, scene.actor("b", ORIGINAL, capabilities=[capability]) as b:
        target = {"targetCapability": capability}

        reply = await a.ask("hub:broadcast", {"type": "said", "data": 1}, id=ID, metadata=target)

        assert (reply["type"], reply["payload"]) == (
            "hub:broadcast_ack",
            {"messageId": ID, "deliveredCount": 1, "failedCount": 0},
        )
        frame = await b.next()
        check_envelope(frame)
        assert (frame["payload"], frame["metadata"]["originalMessageId"]) == (1, ID)


# --- one hub, two dialects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [(SPECIFICATION, ORIGINAL), (ORIGINAL, SPECIFICATION)])
@pytest.mark.parametrize("message_id", [ID, "any id"])
@scenario
async def test_both_dialects_hear_each_other(scene: Scene, one: str, other: str, message_id: str) -> None:
    """Each in its own shape. An id that is no UUID, which the specification allows, is none in an envelope that wants one."""
    topic = scene.topic()
    async with scene.actor("a", one) as a, scene.actor("b", other) as b, scene.actor("c", one) as c:
        await b.subscribe(topic)
        await c.subscribe(topic)

        await a.say("hub:publish", {"topic": topic, "type": "said", "data": {"n": 1}}, id=message_id)
        await a.say("hub:send", {"to": b.address, "type": "sent", "data": {"n": 2}}, id=message_id)

        assert (await a.next())["payload"]["subscriberCount"] == 2
        heard, sent, same = await b.expect("said"), await b.expect("sent"), await c.expect("said")
        assert (heard["from"], heard["to"], heard["payload"]) == (a.address, b.address, {"n": 1})
        assert (sent["from"], sent["to"], sent["payload"]) == (a.address, b.address, {"n": 2})
        for frame, dialect in ((heard, other), (sent, other), (same, one)):
            if dialect == ORIGINAL:
                check_envelope(frame)
                assert frame["correlationId"] == (ID if message_id == ID else None)
            else:
                assert set(frame) == {"type", "from", "to", "payload", "timestamp", "metadata"}
        assert heard["metadata"]["messageId"] == message_id
        assert heard["metadata"]["topic"] == topic
        assert ("publication" in heard["metadata"]) is (other == ORIGINAL)
        assert [heard["metadata"][name] for name in ("offset", "epoch")] == [
            same["metadata"][name] for name in ("offset", "epoch")
        ]


@scenario
async def test_an_address_may_be_taken_over_by_a_client_of_the_other_dialect(scene: Scene) -> None:
    async with scene.actor("ui", ORIGINAL) as old, scene.actor("ui", address=old.address) as new:
        told = await old.expect("hub:disconnect")
        check_envelope(told)
        assert told["payload"]["reason"] == "duplicate_connection"
        assert (await old.closed())[0] == 4002

        assert await new.publish(scene.topic()) == 0
