"""What the hub waits for: logs and tokens that take their time, fail, or come too late. Real sockets, and a log that obeys."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from penstock.errors import JournalUnavailable, PenstockError, Unavailable
from penstock.hub.core.identity import ANONYMOUS, Identity
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.ports import Appended, Deliver, Expired, Forward, Skipped
from penstock.testing import ManualClock
from tests.integration.hub.serving import Serving, serving
from tests.integration.hub.wire import TEXT, Wire, connected, frame, member, opened, raw

EPOCH = "log"
SECRET = "what nobody may see"


@dataclass
class ObedientRetained:
    """A durable subscription that notes what is done with it."""

    deliver: Deliver
    acked: list[Message] = field(default_factory=list)
    is_closed: bool = False

    def ack(self, messages: Sequence[Message]) -> None:
        self.acked += messages

    def close(self) -> None:
        self.is_closed = True


@dataclass
class ObedientFeed:
    """A log that does what the test says when the test says it."""

    known: list[tuple[str, str]] = field(default_factory=list)
    """Durable subscriptions of earlier runs."""
    parts: dict[int, tuple[list[Message], int] | Exception | None] = field(default_factory=dict)
    """What a read from an offset brings."""
    problem: Exception | None = None
    """What calls raise."""
    gate: asyncio.Event | None = None
    """What durable subscriptions wait for before they begin or end."""
    early: list[Message] = field(default_factory=list)
    """What they deliver before they have begun."""
    appends: list[tuple[Message, Appended]] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    reads: list[int] = field(default_factory=list)
    retains: list[tuple[str, str, ObedientRetained]] = field(default_factory=list)
    releases: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    is_stopped: bool = False
    oversized: int = 0
    missed: int = 0

    def start(
        self, bindings: Sequence[Binding], everything: Binding, *, forward: Forward, skipped: Skipped, expired: Expired
    ) -> Sequence[tuple[str, str]]:
        for binding in (*bindings, everything):
            binding.epoch = EPOCH
        self.forward, self.skipped, self.expired = forward, skipped, expired
        return self.known

    def append(self, binding: Binding, message: Message, done: Appended) -> None:
        if self.problem is not None:
            raise self.problem
        self.appends.append((message, done))

    async def read(self, binding: Binding, start: int, stop: int) -> tuple[list[Message], int] | None:
        self.reads.append(start)
        part = self.parts[start]
        if isinstance(part, Exception):
            raise part
        return part

    async def retain(self, address: str, pattern: str, bindings: Sequence[Binding], deliver: Deliver) -> ObedientRetained:
        if self.problem is not None:
            raise self.problem
        retained = ObedientRetained(deliver)
        self.retains.append((address, pattern, retained))
        if self.early:
            deliver(self.early)
        if self.gate is not None:
            await self.gate.wait()
        return retained

    async def release(self, address: str, patterns: Sequence[str]) -> None:
        if self.problem is not None:
            raise self.problem
        if self.gate is not None:
            await self.gate.wait()
        self.releases.append((address, tuple(patterns)))

    def stop(self) -> None:
        self.is_stopped = True


def at(offset: int, *, topic: str = "kept/a", size: int = 0) -> Message:
    """The message of the log at an offset."""
    return Message(
        type="log:entry",
        sender="@(test/service)",
        data=b'"' + b"x" * size + b'"' if size else str(offset).encode(),
        message_id=f"message-{offset}",
        published_at=0,
        topic=topic,
        position=Position(EPOCH, offset),
    )


def kept(next_offset: int = 0) -> Binding:
    return Binding("kept/#", "kept", next_offset=next_offset)


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so that happens in this very loop."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  # what obeys has no event for everything
            await asyncio.sleep(0.001)


def run(
    scenario: Callable[[Serving, ObedientFeed], Awaitable[None]],
    *,
    rules: HubRules | None = None,
    binding: Binding | None = None,
    clock: ManualClock | None = None,
    **feed_options: object,
) -> ObedientFeed:
    """Run a scenario against a hub with an obedient log; returns the log."""

    async def serve() -> ObedientFeed:
        feed = ObedientFeed(**feed_options)  # type: ignore[arg-type]  # whichever of its fields
        async with serving(rules, bindings=[binding or kept()], feed=feed, clock=clock) as running:
            await scenario(running, feed)
        return feed

    return asyncio.run(serve())


async def publish(wire: Wire, data: object = 1, topic: str = "kept/a") -> None:
    await wire.say("hub:publish", {"topic": topic, "type": "x", "data": data}, id=f"publish-{data}")


# --- appends ------------------------------------------------------------------------------------------------------------------


def test_a_publish_is_confirmed_when_it_is_safe_and_the_connection_goes_on_meanwhile() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            await publish(wire)
            await wire.nothing_more()
            ((message, done),) = feed.appends
            assert (message.data, message.sender, message.topic) == (b"1", "@(test/one)", "kept/a")
            done(Position(EPOCH, 7))
            ack = await wire.expect("hub:delivery_ack")
            assert ack["payload"]["position"] == {"epoch": EPOCH, "offset": 7}

    run(scenario)


def test_a_publish_that_the_log_cannot_take_is_refused_with_its_reason() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            await publish(wire)
            await wire.nothing_more()
            feed.appends[0][1](JournalUnavailable("write", "the disk is full"))
            error = (await wire.expect("hub:error"))["payload"]
            assert error["code"] == "internal_error"
            assert (error["details"]["reason"], error["details"]["retryable"]) == (JournalUnavailable.reason, True)
            feed.problem = Unavailable("at once")
            await publish(wire, 2)
            assert (await wire.expect("hub:error"))["payload"]["details"]["reason"] == Unavailable.reason

    run(scenario)


def test_who_has_too_many_publishes_under_way_is_not_read_until_half_of_them_are_done() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire, member(running.url, "@(test/two)") as other:
            for number in range(6):
                await publish(wire, number)
            await wire.say("hub:heartbeat", {})
            await until(lambda: len(feed.appends) == 4)
            await other.nothing_more()
            assert len(feed.appends) == 4
            for offset in range(2):
                feed.appends[offset][1](Position(EPOCH, offset))
            await until(lambda: len(feed.appends) == 6)
            for offset in range(2, 6):
                feed.appends[offset][1](Position(EPOCH, offset))
            await wire.expect("hub:heartbeat_ack")

    run(scenario, rules=HubRules(max_appends=4))


def test_who_has_too_many_bytes_under_way_is_not_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.service.MAX_APPENDING", 10_000)

    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire, member(running.url, "@(test/two)") as other:
            for _ in range(4):
                await wire.say("hub:publish", {"topic": "kept/a", "type": "x", "data": "x" * 4_000})
            await until(lambda: len(feed.appends) == 3)
            await other.nothing_more()
            assert len(feed.appends) == 3
            for offset in range(2):
                feed.appends[offset][1](Position(EPOCH, offset))
            await until(lambda: len(feed.appends) == 4)

    run(scenario)


def test_a_log_that_answers_at_once_never_makes_anyone_wait() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        def append(binding: Binding, message: Message, done: Appended) -> None:
            done(Position(EPOCH, 1))

        feed.append = append  # type: ignore[method-assign]  # another kind of log
        async with member(running.url, "@(test/one)") as wire:
            for number in range(10):
                await publish(wire, number)
            for _ in range(10):
                await wire.expect("hub:delivery_ack")

    run(scenario, rules=HubRules(max_appends=1))


def test_a_log_that_answers_after_the_client_has_gone_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with raw(running.url) as gone:
            await gone.register("@(test/one)")
            for number in range(3):
                await gone.say("hub:publish", {"topic": "kept/a", "type": "x", "data": number})
            await until(lambda: len(feed.appends) == 2)
        await until(lambda: not running.hub.state.sessions)
        feed.appends[0][1](Position(EPOCH, 0))
        feed.appends[1][1](JournalUnavailable("write", "late"))
        async with member(running.url, "@(test/one)") as wire:
            await wire.nothing_more()

    with caplog.at_level(logging.WARNING):
        run(scenario, rules=HubRules(max_appends=2))
    assert caplog.text == ""


# --- what logs bring ----------------------------------------------------------------------------------------------------------


def test_what_a_log_brings_is_forwarded_in_its_order() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            await wire.ask("hub:subscribe", {"topic": "kept/#"})
            (binding,) = running.hub.state.bindings
            feed.forward(binding, [at(0), at(1)])
            feed.forward(binding, [at(2)])
            assert [(await wire.next())["metadata"]["offset"] for _ in range(3)] == [0, 1, 2]

    assert run(scenario).is_stopped


def test_logs_that_bring_more_at_once_than_an_outbox_holds_cost_nobody_who_reads_the_connection() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            await wire.ask("hub:subscribe", {"topic": "kept/#"})
            (binding,) = running.hub.state.bindings
            for offset in range(30):  # as many logs do in one turn of the loop
                feed.forward(binding, [at(offset, size=4_000)])
            assert [(await wire.next())["metadata"]["offset"] for _ in range(30)] == [*range(30)]

    run(scenario, rules=HubRules(max_outbox_bytes=80_000))


def test_a_message_that_cannot_be_forwarded_is_told_to_whoever_may_have_missed_it() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError(SECRET)

        async with member(running.url, "@(test/one)") as wire, member(running.url, "@(test/two)") as other:
            await wire.ask("hub:subscribe", {"topic": "kept/#"})
            await other.ask("hub:subscribe", {"topic": "elsewhere"})
            setattr(running.hub, "forward", broken)  # noqa: B010  # a fault
            feed.forward(running.hub.state.bindings[0], [at(0)])
            assert await wire.closed() == (1011, "internal_error")
            await other.nothing_more()

    run(scenario)


def test_what_was_missed_comes_in_parts_each_when_the_last_is_written() -> None:
    """A client that does not read is not read for either: the log is asked for no more than can be written."""

    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        for start in range(60):
            feed.parts[start] = ([at(start, size=200_000)], start + 1)
        async with raw(running.url, receive_buffer=4096) as slow:
            await slow.register("@(test/slow)")
            await slow.say("hub:subscribe", {"topic": "kept/#", "since": {"epoch": EPOCH, "offset": -1}})
            await until(lambda: feed.reads)
            size = -1
            while size != len(feed.reads):  # it stops where the system's own buffers are full
                size = len(feed.reads)
                await asyncio.sleep(0.1)
            assert size < 60
            (session,) = running.hub.state.sessions
            assert session.outbox.bytes <= running.hub.rules.max_outbox_bytes
            reply = await slow.next()
            assert (reply["type"], reply["payload"]["recovered"]) == ("hub:subscribed", True)
            assert [(await slow.next())["metadata"]["offset"] for _ in range(60)] == [*range(60)]
            assert len(feed.reads) == 60

    run(scenario, binding=kept(60))


def test_what_is_not_kept_is_not_recovered() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        for start, part in ((0, None), (1, Unavailable("not now"))):
            feed.parts[start] = part
            async with member(running.url, f"@(test/s{start})") as wire:
                since = {"epoch": EPOCH, "offset": start - 1}
                reply = await wire.ask("hub:subscribe", {"topic": "kept/#", "since": since})
                assert reply["payload"]["recovered"] is False
                await wire.nothing_more()

    run(scenario, binding=kept(100))


@pytest.mark.parametrize("part", [None, Unavailable("not now"), RuntimeError("unexpected")])
def test_a_recovery_that_breaks_off_ends_the_connection_and_leaves_no_hole(part: Exception | None) -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        feed.parts[0], feed.parts[1] = ([at(0)], 1), part
        async with member(running.url, "@(test/one)") as wire:
            await wire.ask("hub:subscribe", {"topic": "kept/#", "since": {"epoch": EPOCH, "offset": -1}})
            assert await wire.closed() == (1011, "internal_error")
            assert [one["metadata"]["offset"] for one in wire.kept] == [0]

    run(scenario, binding=kept(100))


def test_a_recovery_takes_nothing_from_a_log_that_was_made_again_meanwhile() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        read = feed.read

        async def made_again(binding: Binding, start: int, stop: int) -> tuple[list[Message], int] | None:
            if start == 1:
                binding.epoch, binding.next_offset = "another", 0
            return await read(binding, start, stop)

        feed.read = made_again  # type: ignore[method-assign]  # something happens in between
        feed.parts |= {0: ([at(0)], 1), 1: ([at(1)], 2)}
        async with member(running.url, "@(test/one)") as wire:
            await wire.ask("hub:subscribe", {"topic": "kept/#", "since": {"epoch": EPOCH, "offset": -1}})
            assert await wire.closed() == (1011, "internal_error")
            assert [one["metadata"]["offset"] for one in wire.kept] == [0]

    run(scenario, binding=kept(2))


# --- durable subscriptions ----------------------------------------------------------------------------------------------------


async def durable(wire: Wire) -> str:
    reply = await wire.ask("hub:subscribe", {"topic": "kept/#", "durable": True})
    return str(reply["type"])


def test_a_durable_subscription_delivers_after_it_was_confirmed_and_is_settled_by_acks() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            await wire.say("hub:subscribe", {"topic": "kept/#", "durable": True})
            assert (await wire.next())["type"] == "hub:subscribed"
            first = await wire.next()
            ((address, pattern, retained),) = feed.retains
            assert (address, pattern) == ("@(test/one)", "kept/#")
            retained.deliver([at(1)])
            second = await wire.next()
            assert (first["payload"], second["payload"]) == (0, 1)
            await wire.ask("hub:ack", {"ackIds": [first["metadata"]["ackId"], second["metadata"]["ackId"], "unknown"]})
            assert [message.message_id for message in retained.acked] == ["message-0", "message-1"]
            assert not retained.is_closed
        await until(lambda: retained.is_closed)
        retained.deliver([at(2)])  # too late: nobody is there

    run(scenario, early=[at(0)])


def test_an_acknowledgement_is_told_to_the_subscription_that_made_the_delivery() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            for pattern in ("kept/#", "kept/a"):
                await wire.ask("hub:subscribe", {"topic": pattern, "durable": True})
            for _, _, retained in feed.retains:
                retained.deliver([at(0)])
            await wire.next()
            await wire.ask("hub:ack", {"ackId": (await wire.next())["metadata"]["ackId"]})
            assert [len(retained.acked) for _, _, retained in feed.retains] == [0, 1]

    run(scenario)


def test_a_durable_subscription_ends_with_its_unsubscribe_and_rests_otherwise() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            await durable(wire)
            assert (await wire.ask("hub:unsubscribe", {"topic": "kept/#"}))["type"] == "hub:unsubscribed"
            assert feed.releases == [("@(test/one)", ("kept/#",))]
            assert feed.retains[0][2].is_closed
            await durable(wire)
            assert (await wire.ask("hub:unregister", {"actorAddress": "@(test/one)"}))["type"] == "hub:unregistered"
            assert len(feed.releases) == 2
            assert feed.retains[1][2].is_closed

    run(scenario)


def test_a_registration_that_runs_out_takes_no_more_deliveries() -> None:
    clock = ManualClock()

    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)", ttl=5_000) as wire:
            await durable(wire)
            clock.advance(6)
            await wire.expect("hub:unregistered")
            assert feed.retains[0][2].is_closed
            assert feed.releases == []

    run(scenario, clock=clock)


def test_who_is_replaced_lets_go_before_the_other_takes_hold() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as first, raw(running.url) as second:
            await durable(first)
            retain, states = feed.retain, []

            async def looking(address: str, pattern: str, bindings: Sequence[Binding], deliver: Deliver) -> ObedientRetained:
                states.append(feed.retains[0][2].is_closed)
                return await retain(address, pattern, bindings, deliver)

            feed.retain = looking  # type: ignore[method-assign]  # to look at that very moment
            await second.connect()
            requests = (
                {"type": "hub:register", "payload": {"actorAddress": "@(test/one)", "capabilities": ["x"]}},
                {"type": "hub:subscribe", "payload": {"topic": "kept/#", "durable": True}},
            )
            # Both at once: there is no turn of the loop between them.
            await second.send(*(frame(TEXT, json.dumps(request).encode()) for request in requests))
            assert [(await second.next())["type"] for _ in range(2)] == ["hub:registered", "hub:subscribed"]
            assert states == [True]

    run(scenario)


@pytest.mark.parametrize("problem", [Unavailable("not now"), Refusal("internal_error", "no", reason="no", resolution="none")])
def test_a_durable_subscription_that_cannot_be_made_is_refused(
    problem: PenstockError | Refusal,
) -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            feed.problem = problem
            assert await durable(wire) == "hub:error"
            feed.problem = None
            assert await durable(wire) == "hub:subscribed"
            feed.problem = problem
            assert (await wire.ask("hub:unsubscribe", {"topic": "kept/#"}))["type"] == "hub:error"
            await wire.nothing_more()

    run(scenario)


def test_a_durable_subscription_that_fails_as_nobody_foresaw_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            feed.problem = RuntimeError(SECRET)
            await wire.say("hub:subscribe", {"topic": "kept/#", "durable": True})
            assert await wire.closed() == (1011, "internal_error")
        assert len(running.hub.state.durable) == 0

    run(scenario)
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_a_durable_subscription_that_comes_too_late_is_closed_again() -> None:
    clock = ManualClock()

    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        feed.gate = asyncio.Event()
        async with member(running.url, "@(test/one)", ttl=5_000) as wire:
            await wire.say("hub:subscribe", {"topic": "kept/#", "durable": True})
            await until(lambda: feed.retains)
            clock.advance(6)
            await wire.expect("hub:unregistered")
            feed.gate.set()
            await until(lambda: feed.retains[0][2].is_closed)

    run(scenario, clock=clock)


def test_what_a_client_has_ended_is_ended_though_it_does_not_wait_for_it() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with raw(running.url) as gone:
            await gone.register("@(test/one)")
            await gone.say("hub:subscribe", {"topic": "kept/#", "durable": True})
            await gone.next()
            feed.gate = asyncio.Event()
            await gone.say("hub:unsubscribe", {"topic": "kept/#"})
            await until(lambda: feed.retains[0][2].is_closed)
        await until(lambda: not running.hub.state.sessions)
        assert not feed.releases
        feed.gate.set()
        await until(lambda: feed.releases == [("@(test/one)", ("kept/#",))])

    run(scenario)


def test_a_durable_subscription_that_expired_is_known_no_more() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        durable = running.hub.state.durable
        assert [*durable.patterns_of("@(test/one)")] == ["elsewhere"]
        feed.expired("@(test/one)", "elsewhere")
        assert [*durable.patterns_of("@(test/one)")] == []

    run(scenario, known=[("@(test/one)", "elsewhere")])


# --- answers ------------------------------------------------------------------------------------------------------------------


def test_who_asks_for_more_at_once_than_an_outbox_holds_and_reads_it_gets_it_all() -> None:
    async def scenario() -> None:
        async with serving(HubRules(rate=None, max_outbox_bytes=150_000)) as running, AsyncExitStack() as stack:
            for number in range(10):
                wire = await stack.enter_async_context(connected(running.url))
                actor = {"actorAddress": f"@(test/a{number})", "capabilities": ["x"], "metadata": {"x": "x" * 8_000}}
                await wire.ask("hub:register", actor)
            wire = await stack.enter_async_context(connected(running.url))
            for number in range(20):
                await wire.say("hub:list_actors", id=f"{number}")
            await wire.say("hub:heartbeat", id="last")
            assert [(await wire.next())["correlationId"] for _ in range(21)] == [*map(str, range(20)), "last"]

    asyncio.run(scenario())


# --- tokens -------------------------------------------------------------------------------------------------------------------


class SlowVerifier:
    """Lets everybody in when it is told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def verify(self, token: str | None, claimed: str | None) -> Identity:
        await self.gate.wait()
        return ANONYMOUS

    def check(self, identity: Identity) -> None:
        pass


def test_nothing_is_read_while_a_token_is_looked_at() -> None:
    async def scenario() -> None:
        verifier = SlowVerifier()
        async with serving(verifier=verifier) as running, opened(running.url) as wire, opened(running.url) as other:
            await wire.say("hub:connect", {"version": "1.0"})
            await wire.say("hub:register", {"actorAddress": "@(test/one)", "capabilities": ["x"]})
            await other.ask("hub:unknown")
            assert not len(running.hub.state.registry)
            verifier.gate.set()
            assert [(await wire.next())["type"] for _ in range(2)] == ["hub:connected", "hub:registered"]

    asyncio.run(scenario())


def test_a_client_that_does_not_wait_for_its_token_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        verifier = SlowVerifier()
        async with serving(verifier=verifier) as running:
            async with raw(running.url) as gone:
                await gone.say("hub:connect", {"version": "1.0"})
                await until(lambda: running.hub.state.sessions)
            await until(lambda: not running.hub.state.sessions)

    asyncio.run(scenario())


class StrictVerifier(SlowVerifier):
    """Lets everybody stay until it is told otherwise."""

    refusal: Refusal | None = None

    def check(self, identity: Identity) -> None:
        if self.refusal is not None:
            raise self.refusal


@pytest.mark.parametrize(("is_retryable", "close"), [(False, (4001, "unauthorized")), (True, (1011, "internal_error"))])
def test_who_may_not_stay_is_told_why_and_closed(is_retryable: bool, close: tuple[int, str]) -> None:
    async def scenario() -> None:
        verifier, clock = StrictVerifier(), ManualClock()
        verifier.gate.set()
        async with serving(verifier=verifier, clock=clock) as running, member(running.url, "@(test/one)") as wire:
            clock.advance(1)
            await wire.nothing_more()
            verifier.refusal = Refusal("unauthorized", "revoked", reason="invalid_token", resolution="x", retryable=is_retryable)
            clock.advance(1)
            assert (await wire.expect("hub:error"))["payload"]["details"]["reason"] == "invalid_token"
            assert await wire.closed() == close
            await until(lambda: not running.hub.state.sessions)

    asyncio.run(scenario())


# --- stopping -----------------------------------------------------------------------------------------------------------------


def test_a_stop_waits_for_who_is_there_though_all_had_gone_before() -> None:
    async def scenario() -> None:
        async with serving() as running:
            async with connected(running.url):
                pass
            await until(lambda: not running.hub.state.sessions)
            async with connected(running.url) as wire:
                stopping = asyncio.create_task(running.service.stop(5))
                await wire.expect("hub:disconnect")
                assert not stopping.done()
                assert await wire.closed() == (1001, "server_shutdown")
                await stopping
                assert not running.hub.state.sessions

    asyncio.run(scenario())


# --- faults -------------------------------------------------------------------------------------------------------------------


def test_a_stop_answers_publishes_that_are_on_their_way_into_a_log() -> None:
    """Who is not answered sends it again, and the next server does not know that the log has it already."""

    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire:
            await publish(wire, 1)
            await until(lambda: feed.appends)
            stopping = asyncio.create_task(running.service.stop(30))
            await until(lambda: running.service.is_stopping)
            await publish(wire, 2)  # is not heard any more, else there might be no end
            ((message, done),) = feed.appends
            done(Position(EPOCH, 0))
            assert (await wire.expect("hub:delivery_ack"))["payload"]["messageId"] == message.message_id
            assert await wire.closed() == (1001, "server_shutdown")
            await wire.close()
            await stopping
            assert len(feed.appends) == 1

    run(scenario)


def test_whatever_a_log_raises_ends_one_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        async with member(running.url, "@(test/one)") as wire, connected(running.url) as other:
            feed.problem = RuntimeError(SECRET)
            await publish(wire)
            assert await wire.closed() == (1011, "internal_error")
            await other.nothing_more()

    run(scenario)
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("fault", ["appended", "deliver", "forward", "sweep", "closed"])
def test_an_error_of_the_hub_itself_stays_where_it_happens(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError(SECRET)

        async with connected(running.url) as other:
            async with member(running.url, "@(test/one)") as wire:
                await durable(wire)
                await publish(wire)
                await until(lambda: feed.appends)
                whole = getattr(running.hub, fault)
                setattr(running.hub, fault, broken)
                feed.appends[0][1](Position(EPOCH, 0))
                feed.retains[0][2].deliver([at(0)])
                feed.forward(running.hub.state.bindings[0], [at(0)])
                clock.advance(1)
                if fault in {"appended", "deliver"}:
                    assert await wire.closed() == (1011, "internal_error")
            await until(lambda: "failed" in caplog.text)
            setattr(running.hub, fault, whole)
            await other.nothing_more()

    run(scenario, clock=clock)
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_a_connection_is_cleaned_up_though_its_durable_subscription_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        def broken() -> None:
            raise RuntimeError(SECRET)

        async with member(running.url, "@(test/one)") as wire:
            await durable(wire)
            feed.retains[0][2].close = broken  # type: ignore[method-assign]  # a fault
        await until(lambda: not running.hub.state.sessions)
        assert len(running.hub.state.registry) == 0

    run(scenario)
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_the_metrics_of_the_logs_are_among_those_of_the_hub() -> None:
    async def scenario(running: Serving, feed: ObedientFeed) -> None:
        found = {sample.metric.name: sample.value for sample in running.server.collect()}
        assert found["penstock_hub_messages_oversized_total"] == 3
        assert found["penstock_hub_messages_missed_total"] == 2

    run(scenario, oversized=3, missed=2)


# --- the log of the server ----------------------------------------------------------------------------------------------------


def test_a_new_subscription_is_logged_with_its_actor_and_topic(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(feed=ObedientFeed()) as running, member(running.url, "@(browser/ui)") as wire:
            for payload in ({"topic": "events"}, {"topic": "events"}, {"topic": "+/a"}, {"topic": "d", "durable": True}):
                assert (await wire.ask("hub:subscribe", payload))["type"] == "hub:subscribed"
            await wire.ask("hub:subscribe", {"topic": "not allowed"})

    with caplog.at_level(logging.DEBUG, "penstock.hub"):
        asyncio.run(scenario())
    logged = [record for record in caplog.records if record.name == "penstock.hub"]
    assert [record.getMessage() for record in logged] == [
        f"subscription_added actorAddress=@(browser/ui) topic={topic}" for topic in ("events", "+/a", "d")
    ]
    assert {record.levelno for record in logged} == {logging.DEBUG}  # clients decide how many they are
