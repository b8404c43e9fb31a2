"""Specification 002, section by section, over real sockets; decisions 14 to 17. What differs by dialect is in its own file.

Scenarios that hold for a client of either dialect are run with both. The other domains are in `test_specification_domains.py`,
the original's own shapes in `test_original_dialect.py`, slow readers (decision 17) in `test_hub_server.py`.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress

import pytest

from tests.integration.hub.scene import HUB, ORIGINAL, SPECIFICATION, UUID, Actor, Scene, both, scenario, scene_of

MISSING_TOPIC = ("internal_error", "topic is required")
MISSING_TYPE = ("internal_error", "payload.type is required")


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with scene_of(hub_rate_limit=0) as running:
        yield running


# --- Subscription Flow --------------------------------------------------------------------------------------------------------


@scenario
async def test_subscription_flow_subscribe_is_answered_by_subscribed(scene: Scene) -> None:
    """Specification 002, "Subscription Flow": hub:subscribed has the topic and a subscriptionId, and comes from the hub."""
    topic = scene.topic()
    async with scene.actor("ui") as ui:
        reply = await ui.ask("hub:subscribe", {"topic": topic, "durable": False}, id="mine")

        position = reply["payload"].pop("position")
        subscription_id = reply["payload"].pop("subscriptionId")
        assert reply == {
            "type": "hub:subscribed",
            "from": HUB,
            "to": ui.address,
            "payload": {"topic": topic},
            "correlationId": "mine",
            "timestamp": scene.ms,
        }
        assert re.fullmatch(f"sub-{UUID}", subscription_id)
        assert position["offset"] == -1  # nothing was published yet


@both
@scenario
async def test_subscription_flow_the_actor_is_in_the_subscribers_set(scene: Scene, dialect: str) -> None:
    """Specification 002, "Subscription Flow": [Get/create topic Set], [Add subscriber]."""
    topic = scene.topic()
    async with scene.actor("ui", dialect) as ui:
        assert await ui.topics(topic) == {}

        await ui.subscribe(topic)

        assert await ui.topics(topic) == {topic: 1}


# --- Publish Flow -------------------------------------------------------------------------------------------------------------


@scenario
async def test_publish_flow_each_subscriber_gets_the_forwarded_message_and_the_publisher_an_ack(scene: Scene) -> None:
    """Specification 002, "Publish Flow": the forwarded message, flat, `to` each subscriber, and hub:delivery_ack with count 3."""
    topic = scene.topic()
    data = {"eventId": "evt_123", "action": "user_signup"}
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(scene.actor("publisher"))
        subscribers = [await stack.enter_async_context(scene.actor("subscriber")) for _ in range(3)]
        for subscriber in subscribers:
            await subscriber.subscribe(topic)

        ack = await publisher.ask("hub:publish", {"topic": topic, "type": "event:created", "data": data}, id="first")

        position = ack["payload"].pop("position")
        assert ack == {
            "type": "hub:delivery_ack",
            "from": HUB,
            "to": publisher.address,
            "payload": {
                "topic": topic,
                "subscriberCount": 3,
                "delivered": True,
                "timestamp": scene.ms,
                "messageId": "first",
            },
            "correlationId": "first",
            "timestamp": scene.ms,
        }
        for subscriber in subscribers:
            assert await subscriber.next() == {
                "type": "event:created",
                "from": publisher.address,
                "to": subscriber.address,
                "payload": data,
                "timestamp": scene.ms,
                "metadata": {"forwarded": True, "via": HUB, "topic": topic, "messageId": "first", **position},
            }
            await subscriber.nothing_more()
        await publisher.nothing_more()


@both
@scenario
async def test_publish_flow_who_subscribes_to_what_it_publishes_hears_itself_before_the_ack(scene: Scene, dialect: str) -> None:
    """Specification 002, "Publish Flow": [Forward to each], then the ack."""
    topic = scene.topic()
    async with scene.actor("ui", dialect) as ui:
        await ui.subscribe(topic)

        await ui.say("hub:publish", {"topic": topic, "type": "said", "data": 1})

        assert (await ui.next())["type"] == "said"
        answer = await ui.next()
        assert answer["type"] == ("hub:delivery_ack" if dialect == SPECIFICATION else "hub:published")
        assert answer["payload"]["subscriberCount"] == 1


@both
@scenario
async def test_publish_flow_a_topic_without_subscribers_is_no_error(scene: Scene, dialect: str) -> None:
    """Specification 002, "Publish Flow": the count is that of the subscribers, which may be none."""
    async with scene.actor("ui", dialect) as ui:
        assert await ui.publish(scene.topic()) == 0


# --- Flat Payload Structure ---------------------------------------------------------------------------------------------------


DATA: list[object] = [
    *({}, {"data": {"data": 1}}, {"payload": 1, "type": "x", "metadata": {}}, [], [1, [2]]),
    *("text", "", '漢 🙂 \u2028 \\ " \u0000', 0, -1.5, 2**53, True, False, None),
]


@both
@scenario
async def test_flat_payload_structure_the_data_is_the_payload_whatever_it_is(scene: Scene, dialect: str) -> None:
    """Specification 002, "Flat Payload Structure": `payload: <app-data>`, not `{ data: <app-data> }`; null if there was none."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(topic)

        for data in DATA:
            await a.publish(topic, data)
        await a.say("hub:publish", {"topic": topic, "type": "said"})

        frames = [await b.next() for _ in (*DATA, None)]
        assert {(frame["type"], frame["from"], frame["to"]) for frame in frames} == {("said", a.address, b.address)}
        assert json.dumps([frame["payload"] for frame in frames]) == json.dumps([*DATA, None])


# --- Unsubscribe Flow ---------------------------------------------------------------------------------------------------------


@scenario
async def test_unsubscribe_flow_unsubscribe_is_answered_by_unsubscribed(scene: Scene) -> None:
    """Specification 002, "Unsubscribe Flow": hub:unsubscribed has the topic and when."""
    topic = scene.topic()
    async with scene.actor("ui") as ui:
        await ui.subscribe(topic)

        assert await ui.ask("hub:unsubscribe", {"topic": topic}, id="mine") == {
            "type": "hub:unsubscribed",
            "from": HUB,
            "to": ui.address,
            "payload": {"topic": topic, "unsubscribedAt": scene.ms},
            "correlationId": "mine",
            "timestamp": scene.ms,
        }


@both
@scenario
async def test_unsubscribe_flow_nothing_more_comes_of_that_topic_and_others_go_on(scene: Scene, dialect: str) -> None:
    """Specification 002, "Unsubscribe Flow": [Remove from subscribers]."""
    one, other = scene.topic(), scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(one)
        await b.subscribe(other)

        await b.unsubscribe(one)

        assert [await a.publish(one, 1), await a.publish(other, 2)] == [0, 1]
        assert (await b.next())["payload"] == 2
        await b.nothing_more()


@both
@scenario
async def test_unsubscribe_flow_one_who_never_subscribed_is_unsubscribed_too(scene: Scene, dialect: str) -> None:
    """Specification 002, "On hub:unsubscribe": to remove what is not in a set is no error."""
    async with scene.actor("ui", dialect) as ui:
        await ui.unsubscribe(scene.topic())

        await ui.nothing_more()


# --- Topic Naming -------------------------------------------------------------------------------------------------------------

GOOD = ["system/events", "user/notifications", "analytics/pageviews", "debug/error-logs"]
LEGAL = ["SystemEvents", "user_notifications", "debug/errors/critical/network/timeout", "a", "0", "_", "-", "/", "//", "a/", "/a"]
LONGEST = "x" * 256
ILLEGAL: list[object] = [
    "",
    "x" * 257,
    "a" * 200 + "/" * 57,
    "analytics.pageviews",
    "system/*",
    "with space",
    " system/events",
    "system/events ",
    "system/events\n",
    "\nsystem/events",
    "system\x00events",
    "système",
    "①",
    "\u0661",  # a digit, but not one of 0-9
    "a,b",
    "a:b",
    "a\\b",
    "a@b",
    "$SYS",
    "a%2Fb",
    *(None, 5, 1.5, True, [], ["a"], {}, {"topic": "a"}),
]


@both
@scenario
async def test_topic_naming_every_name_of_the_pattern_works(scene: Scene, dialect: str, subtests: pytest.Subtests) -> None:
    """Specification 002, "Topic Naming": `^[a-zA-Z0-9/_-]+$`, 1 to 256 characters; the examples, those to avoid included."""
    async with scene.actor("ui", dialect) as ui:
        for topic in (*GOOD, *LEGAL, LONGEST):
            with subtests.test(topic=topic):
                assert (await ui.subscribe(topic))["topic"] == topic

                assert await ui.publish(topic, "heard") == 1

                frame = await ui.expect("said")
                assert (frame["payload"], frame["metadata"]["topic"]) == ("heard", topic)
                await ui.unsubscribe(topic)


@both
@scenario
async def test_topic_naming_every_other_name_is_refused_everywhere(scene: Scene, dialect: str, subtests: pytest.Subtests) -> None:
    """Specification 002, "Topic Naming" and "Invalid Topic Name"; decision 14: the code as written, and a precise reason."""
    async with scene.actor("ui", dialect) as ui:
        for kind, topic in itertools.product(("hub:subscribe", "hub:publish", "hub:unsubscribe", "hub:topic_info"), ILLEGAL):
            with subtests.test(kind=kind, topic=topic):
                error = await ui.refused(kind, {"topic": topic, "type": "said", "data": {}})

                reason = "missing_topic" if topic is None else "invalid_topic"
                assert (error["code"], error["message"], error["details"]["reason"]) == (*MISSING_TOPIC, reason)
        for kind in ("hub:subscribe", "hub:publish"):
            with subtests.test(kind=kind):
                assert (await ui.refused(kind, {}))["details"]["reason"] == "missing_topic"
                assert (await ui.refused(kind, None))["details"]["reason"] == "missing_topic"
        await ui.nothing_more()


# --- Topic Matching -----------------------------------------------------------------------------------------------------------


MATCHES = [
    ("events", ["events"], ["event", "events2", "events/", "/events", "events/x", "xevents"]),
    ("events", ["events"], ["Events", "EVENTS", "eventS"]),
    ("EvEnts", ["EvEnts"], ["events", "EVENTS"]),
    ("+/events", ["user/events", "admin/events"], ["events", "a/b/events", "user/event", "user/Events"]),
    ("a/+/c/+", ["a/b/c/d", "a/x/c/y"], ["a/b/c", "a/b/d/d", "a/b/c/d/e"]),
    ("#", ["user", "user/events", "a/b/c/d/e/f/g/h/i/j/k", ""], []),
    ("user/#", ["user", "user/events", "user/events/new"], ["use", "users", "admin/user"]),
    ("+/#", ["user", "user/events"], [""]),
]


@both
@scenario
async def test_topic_matching(scene: Scene, dialect: str, subtests: pytest.Subtests) -> None:
    """Specification 002, "Topic Matching": exact and case-sensitive; its "Future" wildcards by decision 16."""
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        for pattern, matched, passed_over in MATCHES:
            with subtests.test(pattern=pattern):
                root = scene.topic("root")
                under = {name: f"{root}/{name}" if name else root for name in (pattern, *matched, *passed_over)}
                await b.subscribe(under[pattern])

                assert [await a.publish(under[name], name) for name in matched] == [1] * len(matched)
                assert [await a.publish(under[name], name) for name in passed_over] == [0] * len(passed_over)

                heard = [await b.next() for _ in matched]
                assert [frame["payload"] for frame in heard] == matched
                assert [frame["metadata"]["topic"] for frame in heard] == [under[name] for name in matched]  # not the pattern
                await b.nothing_more()


@both
@scenario
async def test_topic_matching_a_wildcard_is_for_subscriptions_a_whole_level_and_hash_the_last(
    scene: Scene, dialect: str, subtests: pytest.Subtests
) -> None:
    """Decision 16: what is neither a topic nor a pattern is refused as an invalid topic is."""
    rows = {
        ("hub:publish", "wildcard_topic"): ["+", "#", "system/+", "system/#", "system/+/events", "+/+/#"],
        ("hub:subscribe", "invalid_topic"): ["system/#/events", "#/events", "a+", "+a/b", "system#", "##", "++", "a/b#"],
    }
    async with scene.actor("ui", dialect) as ui:
        for (kind, reason), topics in rows.items():
            for topic in topics:
                with subtests.test(kind=kind, topic=topic):
                    error = await ui.refused(kind, {"topic": topic, "type": "said", "data": {}})
                    assert (error["code"], error["message"], error["details"]["reason"]) == (*MISSING_TOPIC, reason)


# --- Subscription Storage -----------------------------------------------------------------------------------------------------


@both
@scenario
async def test_subscription_storage_topics_are_keys_and_subscribers_a_set(scene: Scene, dialect: str) -> None:
    """Specification 002, "Subscription Storage": its example; no duplicates; empty topics are removed."""
    root = scene.topic("x")
    events, notifications = f"{root}/system/events", f"{root}/user/notifications"
    async with scene.actor("client-ui", dialect) as ui, scene.actor("agent", dialect) as agent:
        for actor, topic in ((ui, events), (ui, events), (agent, events), (ui, notifications), (ui, events)):
            await actor.subscribe(topic)
        assert await agent.topics(root) == {events: 2, notifications: 1}

        await ui.unsubscribe(notifications)
        assert await agent.topics(root) == {events: 2}

        await ui.unsubscribe(events)  # once is enough, however often it subscribed
        assert await agent.topics(root) == {events: 1}

        await agent.unsubscribe(events)
        assert await agent.topics(root) == {}


@both
@scenario
async def test_subscription_storage_a_pattern_is_a_key_of_its_own(scene: Scene, dialect: str) -> None:
    """Specification 002, "Subscription Storage", and decision 16: what was subscribed to is what is listed and ended."""
    root = scene.topic("x")
    async with scene.actor("ui", dialect) as ui:
        await ui.subscribe(f"{root}/#")
        await ui.subscribe(f"{root}/a")
        assert await ui.topics(root) == {f"{root}/#": 1, f"{root}/a": 1}

        await ui.unsubscribe(f"{root}/a")

        assert await ui.topics(root) == {f"{root}/#": 1}
        assert await ui.publish(f"{root}/a") == 1  # by the pattern


# --- Cleanup Protocol ---------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_cleanup_on_unregister_all_subscriptions_end_and_no_message_is_sent(scene: Scene, dialect: str) -> None:
    """Specification 002, "On Actor Unregister": removed from each topic, empty topics deleted, no message; the others stay."""
    root = scene.topic("x")
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        for topic in ("one", "two", "three/#"):
            await b.subscribe(f"{root}/{topic}")
        await a.subscribe(f"{root}/two")

        await b.unregister()

        assert await a.topics(root) == {f"{root}/two": 1}
        assert await a.publish(f"{root}/one") == 0
        assert await a.publish(f"{root}/two") == 1
        await b.nothing_more()  # above all no hub:unsubscribed


@both
@scenario
async def test_cleanup_on_unregister_who_registers_again_begins_with_nothing(scene: Scene, dialect: str) -> None:
    """Specification 002, "On Actor Unregister": the connection stays, the subscriptions do not come back."""
    topic = scene.topic()
    async with scene.actor("ui", dialect) as ui:
        before = await ui.subscribe(topic)
        await ui.unregister()
        assert (await ui.refused("hub:subscribe", {"topic": topic}))["details"]["reason"] == "not_registered"

        assert (await ui.register(ui.address))["type"] == "hub:registered"

        assert await ui.topics(topic) == {}
        assert (await ui.subscribe(topic))["subscriptionId"] != before["subscriptionId"]


async def close_cleanly(actor: Actor, _: Scene) -> None:
    await actor.close()


async def vanish(actor: Actor, _: Scene) -> None:
    """End the TCP connection, without a word of WebSocket."""
    actor.socket.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


async def say_goodbye(actor: Actor, _: Scene) -> None:
    await actor.say("hub:disconnect", {"reason": "client_requested"})


async def send_nonsense(actor: Actor, _: Scene) -> None:
    """A frame far beyond every limit, for which the server closes the connection."""
    with suppress(ConnectionError):
        await actor.send("x" * (5 * 2**20))


async def let_it_run_out(_: Actor, scene: Scene) -> None:
    """What the specification's sibling says of a TTL: the connection stays, the registration ends."""
    scene.clock.advance(2)


@pytest.mark.parametrize("end", [close_cleanly, vanish, say_goodbye, send_nonsense, let_it_run_out])
@both
@scenario
async def test_cleanup_on_connection_close_everything_of_the_actor_is_gone(
    scene: Scene, dialect: str, end: Callable[[Actor, Scene], Awaitable[None]]
) -> None:
    """Specification 002, "On Connection Close": unregistered, all subscriptions removed, no explicit unsubscribe needed."""
    root = scene.topic("x")
    topic = f"{root}/events"
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect, ttl=1000) as b:
        await a.subscribe(topic)
        for name in (topic, f"{root}/mine", f"{root}/#"):
            await b.subscribe(name)
        assert await a.publish(topic) == 2

        await end(b, scene)

        await a.until_topics(root, {topic: 1})
        assert await a.publish(topic) == 1
        found = await a.ask("hub:discover", {"pattern": b.address.strip("@()") if dialect == SPECIFICATION else b.address})
        assert found["payload"]["actors"] == []
        async with scene.actor("b", dialect, address=b.address) as again:  # whoever returns begins with nothing
            assert await a.publish(topic) == 1
            await again.nothing_more()


@both
@scenario
async def test_cleanup_on_takeover_the_subscriptions_of_the_old_connection_end_with_it(scene: Scene, dialect: str) -> None:
    """Specification 002, "On Connection Close": subscriptions are an actor's at a connection; another one has none of them."""
    topic = scene.topic()
    async with scene.actor("old", dialect) as old:
        await old.subscribe(topic)

        async with scene.actor("new", dialect, address=old.address) as new:
            assert await new.topics(topic) == {}
            assert (await old.closed())[0] == 4002
            assert [frame["type"] for frame in old.kept] == ["hub:disconnect"]


# --- Subscriber Limits --------------------------------------------------------------------------------------------------------


@scenario
async def test_subscriber_limits_a_topic_has_as_many_subscribers_as_come(scene: Scene) -> None:
    """Specification 002, "Subscriber Limits": no enforced limit of subscribers of a topic."""
    topic = scene.topic()
    async with AsyncExitStack() as stack:
        actors = [
            await stack.enter_async_context(scene.actor("many", ORIGINAL if number % 2 else SPECIFICATION))
            for number in range(100)
        ]
        for actor in actors:
            await actor.subscribe(topic)

        assert await actors[0].publish(topic, "all") == 100

        heard = [await actor.expect("said") for actor in actors]
        assert [frame["to"] for frame in heard] == [actor.address for actor in actors]


@both
@scenario
async def test_subscriber_limits_an_actor_has_up_to_1000_subscriptions(scene: Scene, dialect: str) -> None:
    """Specification 002, "Subscriber Limits", bounded by `hub_max_subscriptions`: one more is refused, one less is room again."""
    root = scene.topic("x")
    async with scene.actor("ui", dialect) as ui:
        for number in range(1000):
            await ui.say("hub:subscribe", {"topic": f"{root}/{number}"})

        error = await ui.refused("hub:subscribe", {"topic": f"{root}/more"})

        assert (error["code"], error["details"]["reason"]) == ("rate_limited", "too_many_subscriptions")
        assert error["details"]["limit"] == 1000
        await ui.subscribe(f"{root}/7")  # not a new one
        await ui.unsubscribe(f"{root}/7")
        await ui.subscribe(f"{root}/more")


# --- Delivery Guarantees ------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_delivery_guarantees_at_most_once_to_each_subscriber(scene: Scene, dialect: str) -> None:
    """Specification 002, "Delivery Guarantees": however often, and by however many patterns, it subscribed."""
    root = scene.topic("x")
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        for pattern in ("events", "events", "+", "#", "events/#"):
            await b.subscribe(f"{root}/{pattern}")

        assert await a.publish(f"{root}/events", "once") == 1

        assert (await b.next())["payload"] == "once"
        await b.nothing_more()


@both
@scenario
async def test_delivery_guarantees_a_publish_that_is_sent_again_is_not_forwarded_again(scene: Scene, dialect: str) -> None:
    """Specification 002, "Delivery Guarantees": at most once; the same id is the same message, and is answered the same."""
    topic, message_id = scene.topic(), "11111111-2222-4333-8444-555555555555"
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(topic)
        request = ("hub:publish", {"topic": topic, "type": "said", "data": 1})

        first = await a.ask(*request, id=message_id)
        again = await a.ask(*request, id=message_id)

        assert again["payload"] == first["payload"]
        assert (await b.next())["payload"] == 1
        await b.nothing_more()


@both
@scenario
async def test_decision_64_a_publish_id_means_nothing_in_another_session(scene: Scene, dialect: str) -> None:
    """Decision 64: a page that is loaded again counts from 1 again; a client that resumes its session repeats what it said."""
    topic, address, message_id = scene.topic(), scene.address("page"), "11111111-2222-4333-8444-555555555555"
    async with scene.actor("b", dialect) as b:
        await b.subscribe(topic)
        async with scene.actor("a", dialect, address=address) as page:
            await page.publish(topic, "before", id=message_id)
        async with scene.actor("a", dialect, address=address) as loaded_again:
            await loaded_again.publish(topic, "after", id=message_id)
        async with scene.actor("a", dialect, address=address, resume=loaded_again.session_id) as returned:
            assert returned.session_id == loaded_again.session_id
            await returned.publish(topic, "after", id=message_id)
            await returned.publish(topic, "other", id=message_id)

        assert [(await b.next())["payload"] for _ in range(3)] == ["before", "after", "other"]
        await b.nothing_more()


@both
@scenario
async def test_delivery_guarantees_messages_without_an_id_are_all_different(scene: Scene, dialect: str) -> None:
    """Specification 002, "Delivery Guarantees": an empty id, as some languages send where there is none, is nobody's name."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(topic)

        for number, message_id in enumerate(("", "", None, None)):
            await a.say("hub:publish", {"topic": topic, "type": "said", "data": number}, id=message_id)

        heard = [await b.next() for _ in range(4)]
        assert [frame["payload"] for frame in heard] == [0, 1, 2, 3]
        assert len({frame["metadata"]["messageId"] for frame in heard}) == 4


@both
@scenario
async def test_delivery_guarantees_who_is_offline_is_skipped_without_an_error(scene: Scene, dialect: str) -> None:
    """Specification 002, "Delivery Guarantees": skipped, not counted, and not kept for its return."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a:
        async with scene.actor("b", dialect) as b:
            await b.subscribe(topic)
            assert await a.publish(topic, "here") == 1
        await a.until_topics(topic, {})

        assert await a.publish(topic, "away") == 0

        async with scene.actor("b", dialect, address=b.address) as back:
            await back.subscribe(topic)
            await back.nothing_more()


@both
@scenario
async def test_delivery_guarantees_subscribing_twice_is_the_same_subscription(scene: Scene, dialect: str) -> None:
    """Specification 002, "Delivery Guarantees": idempotent."""
    topic = scene.topic()
    async with scene.actor("ui", dialect) as ui:
        first, second = await ui.subscribe(topic), await ui.subscribe(topic, durable=False)

        assert first["subscriptionId"] == second["subscriptionId"]
        assert await ui.publish(topic) == 1


@both
@scenario
async def test_delivery_guarantees_no_message_history(scene: Scene, dialect: str) -> None:
    """Specification 002, "Delivery Guarantees": only what is published after the subscription."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await a.publish(topic, "before")

        await b.subscribe(topic)

        await a.publish(topic, "after")
        assert (await b.next())["payload"] == "after"
        await b.nothing_more()


@both
@scenario
async def test_delivery_guarantees_beyond_them_order_and_a_position_without_gaps(scene: Scene, dialect: str) -> None:
    """Specification 002, "Not Guaranteed": there is an order here, and each message says its place in it."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        start = (await b.subscribe(topic))["position"]

        for number in range(20):
            await a.say("hub:publish", {"topic": topic, "type": "said", "data": number})

        heard = [await b.next() for _ in range(20)]
        assert [frame["payload"] for frame in heard] == [*range(20)]
        assert [frame["metadata"]["offset"] for frame in heard] == [start["offset"] + 1 + number for number in range(20)]
        assert {frame["metadata"]["epoch"] for frame in heard} == {start["epoch"]}


# --- Error Scenarios ----------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_error_scenarios_missing_payload_type_on_publish(scene: Scene, dialect: str, subtests: pytest.Subtests) -> None:
    """Specification 002, "Missing payload.type on Publish"; decision 14. Nobody is sent anything."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(topic)

        wrong: list[dict[str, object]] = [{}, {"type": None}, {"type": ""}, {"type": 5}, {"type": {}}]
        for payload in wrong:
            with subtests.test(payload=payload):
                error = await a.refused("hub:publish", {"topic": topic, "data": {"x": 1}, **payload})

                assert (error["code"], error["message"], error["details"]["reason"]) == (*MISSING_TYPE, "missing_type")
        await b.nothing_more()


@scenario
async def test_error_scenarios_the_whole_error_as_it_is_on_the_wire(scene: Scene) -> None:
    """Specification 002, "Error Scenarios": code and message; resolution and details by its shared schema."""
    async with scene.actor("ui") as ui:
        reply = await ui.ask("hub:subscribe", {"topic": "system.events"}, id="mine")

        resolution = reply["payload"].pop("resolution")
        assert reply == {
            "type": "hub:error",
            "from": HUB,
            "to": ui.address,
            "payload": {
                "code": "internal_error",
                "message": "topic is required",
                "details": {"reason": "invalid_topic", "retryable": False, "topic": "system.events"},
            },
            "correlationId": "mine",
            "timestamp": scene.ms,
        }
        assert "1 to 256 letters, digits, / _ and -" in resolution


@both
@scenario
async def test_error_scenarios_the_connection_and_its_subscriptions_go_on(scene: Scene, dialect: str) -> None:
    """Specification 002, "Error Scenarios": an error is an answer, nothing more."""
    topic = scene.topic()
    async with scene.actor("ui", dialect) as ui:
        await ui.subscribe(topic)

        await ui.refused("hub:subscribe", {"topic": "no.topic"})
        await ui.refused("hub:publish", {"topic": topic})

        assert await ui.publish(topic) == 1


@both
@scenario
async def test_error_scenarios_nobody_publishes_what_looks_like_the_hubs_own(scene: Scene, dialect: str) -> None:
    """Beyond specification 002: payload.type is free, but a forwarded message cannot be taken for a reply."""
    async with scene.actor("ui", dialect) as ui:
        for kind in ("hub:created", "hub:", "hub:subscribed"):
            error = await ui.refused("hub:publish", {"topic": scene.topic(), "type": kind, "data": {}})

            assert error["details"]["reason"] == "reserved_type", kind


# --- Topic Discovery ----------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_topic_discovery_list_topics_by_name_and_by_page(scene: Scene, dialect: str) -> None:
    """Specification 002, "Topic Discovery", Future: "List all active topics"; decision 16."""
    root = scene.topic("x")
    names = [f"{root}/{name}" for name in ("a", "b", "c", "d")]
    async with scene.actor("ui", dialect) as ui, scene.actor("other", dialect) as other:
        for name in (names[2], names[0], names[3], names[1]):
            await ui.subscribe(name)
        await other.subscribe(names[1])

        page = await ui.ask("hub:list_topics", {"prefix": root, "offset": 1, "limit": 2})
        rest = await ui.ask("hub:list_topics", {"prefix": root, "offset": 3})
        everything = await ui.ask("hub:list_topics")

        assert (page["type"], page["payload"]) == (
            "hub:topic_list",
            {
                "topics": [{"topic": names[1], "subscriberCount": 2}, {"topic": names[2], "subscriberCount": 1}],
                "total": 4,
                "hasMore": True,
            },
        )
        assert rest["payload"] == {"topics": [{"topic": names[3], "subscriberCount": 1}], "total": 4, "hasMore": False}
        assert {one["topic"] for one in everything["payload"]["topics"]} >= set(names)


@both
@scenario
async def test_topic_discovery_topic_info_counts_whom_a_message_would_reach(scene: Scene, dialect: str) -> None:
    """Specification 002, "Topic Discovery", Future: "Get subscriber count and metadata"; decision 16."""
    root = scene.topic("x")
    topic = f"{root}/events"
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await a.subscribe(topic)
        await a.subscribe(f"{root}/#")
        await b.subscribe(f"{root}/+")

        reply = await a.ask("hub:topic_info", {"topic": topic})

        reply["payload"].pop("position", None)
        assert reply["type"] == "hub:topic_info_response"
        assert reply["payload"] == {"topic": topic, "subscriberCount": 2, "exactCount": 1, "history": False}
        assert await a.publish(topic) == 2
        nothing = (await a.ask("hub:topic_info", {"topic": scene.topic()}))["payload"]
        assert (nothing["subscriberCount"], nothing["exactCount"], nothing["history"]) == (0, 0, False)


# --- Identity Assertion -------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_identity_assertion_the_registered_address_and_never_the_session(scene: Scene, dialect: str) -> None:
    """Specification 002, "Identity Assertion": the registered actorAddress, NOT the sessionId."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(topic)
        await a.publish(topic)

        frame = await b.next()
        present = await a.ask("hub:presence", {"topic": topic})

        assert (frame["from"], frame["to"]) == (a.address, b.address)
        assert present["payload"]["actors"] == [b.address]
        told = json.dumps([frame, present])
        assert a.session_id not in told
        assert b.session_id not in told


@both
@scenario
async def test_identity_assertion_who_is_not_registered_is_nobody(scene: Scene, dialect: str) -> None:
    """Specification 002, "Identity Assertion": a session alone neither publishes nor subscribes."""
    async with scene.session(dialect) as session:
        for kind in ("hub:subscribe", "hub:unsubscribe", "hub:publish"):
            error = await session.refused(kind, {"topic": "a", "type": "said", "data": {}})

            assert (error["code"], error["details"]["reason"]) == ("unauthorized", "not_registered"), kind


@both
@scenario
async def test_identity_assertion_nobody_speaks_for_another(scene: Scene, dialect: str) -> None:
    """Specification 002, "Identity Assertion": `from` is stamped; another's is refused, whoever that is."""
    topic = scene.topic()
    async with scene.actor("a", dialect) as a, scene.actor("b", dialect) as b:
        await b.subscribe(topic)
        for claimed in (b.address, "@(browser/nobody)", HUB, "nonsense", ""):
            error = await a.refused("hub:publish", {"topic": topic, "type": "said", "data": {}}, **{"from": claimed})

            assert (error["code"], error["details"]["reason"]) == ("unauthorized", "from_mismatch")
        await b.nothing_more()


# --- decisions 15 and 17 ------------------------------------------------------------------------------------------------------


@both
@scenario
async def test_decision_15_what_is_published_while_a_durable_subscriber_is_away_waits_until_it_is_acked(
    scene: Scene, dialect: str
) -> None:
    """Decision 15: `durable: true`, at least once across disconnects, until hub:ack."""
    topic, address = scene.topic(), scene.address("durable")
    async with scene.actor("a", dialect) as a:
        async with scene.actor("b", dialect, address=address) as b:
            assert (await b.subscribe(topic, durable=True))["durable"] is True
            assert await a.publish(topic, 1) == 1
            assert (await b.expect("said"))["payload"] == 1  # and it leaves without an ack
        for number in (2, 3):
            assert await a.publish(topic, number) == 1  # it waits

        async with scene.actor("b", dialect, address=address) as b:
            await b.subscribe(topic, durable=True)
            heard = [await b.expect("said") for _ in range(3)]
            assert sorted(frame["payload"] for frame in heard) == [1, 2, 3]
            acked = await b.ask("hub:ack", {"ackIds": [frame["metadata"]["ackId"] for frame in heard]})
            assert (acked["type"], acked["payload"]) == ("hub:acked", {"acked": 3})

        async with scene.actor("b", dialect, address=address) as b:
            await b.subscribe(topic, durable=True)
            await a.publish(topic, 4)
            assert (await b.expect("said"))["payload"] == 4  # none of the others before it
            await b.unsubscribe(topic)
            await a.until_topics(topic, {})


@both
@scenario
async def test_decision_15_publishers_that_use_the_same_id_do_not_settle_each_others_messages(scene: Scene, dialect: str) -> None:
    """Decision 15: ack ids are made by the hub, one for each delivery; a publisher's own id never settles anything."""
    topic, address, message_id = scene.topic(), scene.address("durable"), "11111111-2222-4333-8444-555555555555"
    async with scene.actor("a", dialect) as a, scene.actor("c", dialect) as c:
        async with scene.actor("b", dialect, address=address) as b:
            await b.subscribe(topic, durable=True)
            await a.publish(topic, "from a", id=message_id)
            await c.publish(topic, "from c", id=message_id)
            first, second = [(await b.expect("said"))["metadata"] for _ in range(2)]
            assert (first["messageId"], second["messageId"]) == (message_id, message_id)
            assert first["ackId"] != second["ackId"]
            assert (await b.ask("hub:ack", {"ackId": message_id}))["payload"] == {"acked": 0, "unknown": [message_id]}
            assert (await b.ask("hub:ack", {"ackId": first["ackId"]}))["payload"] == {"acked": 1}

        async with scene.actor("b", dialect, address=address) as b:
            await b.subscribe(topic, durable=True)
            again = await b.expect("said")
            assert again["payload"] == "from c"
            assert again["metadata"]["ackId"] != second["ackId"]
            await b.unsubscribe(topic)
            await a.until_topics(topic, {})
