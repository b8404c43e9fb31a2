"""A real stream on a real broker in memory, driven at random, against a model that knows only what a user may rely on.

Nothing is lost, nothing that was acked in time comes again, a key's messages neither overlap nor overtake each other, no more is
out than the limit says, and in the end every lease is settled or has run out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.pubsub import PubSub
from penstock.errors import Unavailable
from penstock.testing import ManualClock
from penstock.values.policy import FlowControl, SubscriptionOptions

ACK_DEADLINE = 20
STEP = 4
TURNS = 30
KEYS = ["", "a", "b", "c"]

indexes = st.integers(0, 1_000)


class StreamMachine(RuleBasedStateMachine):
    """Publishes, settles, lets time pass, and disturbs."""

    ordering_window = 1

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._clock = ManualClock()
        self._limit = 5
        self._most = 5
        """What may be held: with a window, messages that wait for their turn are passed on after the limit was lowered."""
        self._published: dict[str, list[bytes]] = {key: [] for key in KEYS}
        self._acked: set[bytes] = set()
        self._out: dict[bytes, IncomingMessage] = {}
        """The last delivery of each message, unless it was settled."""
        self._working: dict[IncomingMessage, asyncio.Event] = {}
        self._errors: list[Exception] = []
        self._number = 0
        self._is_busy = False
        """Whether handlers take their time."""
        self._run(self._begin)

    # ── what is done ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 4))
    def publish(self, key: str, count: int) -> None:
        async def act() -> None:
            for _ in range(count):
                data = b"%s%d" % (key.encode(), self._number)
                self._number += 1
                self._published[key].append(data)
                await self._topic.publish_message(data, ordering_key=key)

        self._run(act)

    @precondition(lambda self: self._live())
    @rule(index=indexes, how=st.sampled_from(["ack", "nack", "confirm", "move", "zero"]))
    def settle(self, index: int, how: str) -> None:
        live = self._live()
        message = live[index % len(live)]

        async def act() -> None:
            if how in {"ack", "confirm"}:
                self._acked.add(message.data)
            if how != "move":
                del self._out[message.data]
            match how:
                case "ack":
                    message.ack()
                case "nack":
                    message.nack()
                case "zero":
                    message.modify_ack_deadline(0)
                case "move":
                    message.modify_ack_deadline(7)
                case _:
                    assert await message.ack_with_response() is AckResponse.SUCCESS

        self._run(act)

    @rule(is_busy=st.booleans())
    def handle_slowly(self, is_busy: bool) -> None:
        self._is_busy = is_busy

    @precondition(lambda self: self._working)
    @rule(index=indexes)
    def finish(self, index: int) -> None:
        async def act() -> None:
            working = [*self._working]
            self._working.pop(working[index % len(working)]).set()

        self._run(act)

    @rule(steps=st.integers(1, 8))
    def pass_time(self, steps: int) -> None:
        worked_on = {message.data: message.delivery_attempt for message in self._live() if message in self._working}
        for _ in range(steps):
            self._run(self._step)
        # Whoever works on a message does not lose it.
        assert {data: self._out[data].delivery_attempt for data in worked_on} == worked_on

    @rule()
    def pause(self) -> None:
        self._run(self._now(self._subscription.pause))

    @rule()
    def resume(self) -> None:
        self._run(self._now(self._subscription.resume))

    @rule(limit=st.integers(1, 8))
    def limit(self, limit: int) -> None:
        async def act() -> None:
            self._limit = limit
            self._most = max(limit, self._subscription.stream.in_flight if self.ordering_window > 1 else 0)
            self._subscription.set_options(flow_control=FlowControl(max_messages=limit))

        self._run(act)

    @rule(streams=st.integers(1, 4))
    def spread(self, streams: int) -> None:
        self._run(self._now(lambda: self._subscription.set_options(max_streams=streams)))

    @precondition(lambda self: self._subscription.is_open)
    @rule()
    def disturb(self) -> None:
        async def act() -> None:
            self._subscription.stream._session._recovery.minimum = 0  # type: ignore[union-attr]  # not to wait for real time
            self._pubsub.link._service.feeds.stop()  # type: ignore[attr-defined]  # from inside: there is no such button

        self._run(act)

    @rule()
    def reopen(self) -> None:
        async def act() -> None:
            await self._subscription.close()
            self._out.clear()
            for event in self._working.values():
                event.set()
            self._working.clear()
            assert (await self._subscription.stats()).in_flight == 0
            self._subscription.open()

        self._run(act)

    # ── what must never be false ─────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def what_is_out_is_what_the_broker_says(self) -> None:
        # What was paused on its way is held too, though no handler has seen it.
        stats = self._run(self._subscription.stats)
        held = self._subscription.stream.in_flight
        assert stats.in_flight == held
        assert len(self._live()) <= held
        assert stats.backlog == sum(map(len, self._published.values())) - len(self._acked)

    def teardown(self) -> None:
        async def act() -> None:
            self._subscription.set_options(flow_control=FlowControl(max_messages=1_000))
            self._is_busy = False
            self._limit = self._most = 1_000
            self._subscription.resume()
            for event in self._working.values():
                event.set()
            self._working.clear()
            for _ in range(400):
                for message in self._live():
                    self._acked.add(message.data)
                    self._out.pop(message.data)
                    message.ack()
                await self._turns()
                if not (await self._subscription.stats()).backlog:
                    break
                self._clock.advance(STEP)
                await self._turns()
            assert self._acked == {data for all_of in self._published.values() for data in all_of}
            stats = await self._subscription.stats()
            assert (stats.backlog, stats.in_flight, self._subscription.stream.in_flight) == (0, 0, 0)
            await self._pubsub.close()

        try:
            self._run(act)
            assert not [error for error in self._errors if not isinstance(error, Unavailable)]
        finally:
            self._runner.close()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> None:
        self._pubsub = await PubSub(clock=self._clock).open()
        self._topic = await self._pubsub.topic("orders").create()
        self._subscription = self._topic.subscription(
            "billing",
            ack_deadline=ACK_DEADLINE,
            message_ordering=True,
            ordering_window=self.ordering_window,
            max_extension=86_400,
            close_behavior="nack",
            flow_control=FlowControl(max_messages=self._limit),
        )
        await self._subscription.create(SubscriptionOptions(message_ordering=True))
        self._subscription.on("message", self._handle).on("error", self._errors.append)
        self._subscription.open()

    def _handle(self, message: IncomingMessage) -> Awaitable[None] | None:
        data, key = message.data, message.ordering_key
        assert data not in self._acked, "acked, and here again"
        assert self._subscription.stream.in_flight <= self._most, "more than the limit"
        before = self._out.get(data)
        assert before is None or before.delivery_attempt < message.delivery_attempt, "the same delivery twice"
        if key:
            place = self._published[key].index(data)
            assert all(one in self._acked for one in self._published[key][:place]), "it has overtaken another"
        self._out[data] = message
        return self._work(message) if self._is_busy else None

    async def _work(self, message: IncomingMessage) -> None:
        self._working[message] = event = asyncio.Event()
        await event.wait()

    def _live(self) -> list[IncomingMessage]:
        """What was delivered and may be settled."""
        now = self._clock.now()
        return [message for message in self._out.values() if message.deadline > now and not message.is_settled]

    async def _step(self) -> None:
        self._clock.advance(STEP)

    def _now(self, act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        async def later() -> None:
            act()

        return later

    def _run(self, act: Callable[[], Awaitable[Any]]) -> Any:
        async def all_of_it() -> Any:
            result = await act()
            await self._turns()
            return result

        return self._runner.run(all_of_it())

    async def _turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


class WindowMachine(StreamMachine):
    """The same promises when the stream holds several messages of a key."""

    ordering_window = 3


TestStreams = StreamMachine.TestCase
TestStreamsWithWindow = WindowMachine.TestCase
