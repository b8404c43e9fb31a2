"""Work queues through the client: the same on a broker in this process and on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest

from penstock import FlowControl, NewMessage, PubSub, QueueConfig, RetryPolicy
from penstock.client.queue import QueueTask, WorkQueue
from penstock.errors import AlreadyExists, InvalidArgument, MessageNotFound, QueueFull, QueueNotFound
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.client.quiet import run
from tests.integration.client.stats import stats_are

Make = Callable[[], PubSub]


@pytest.fixture(params=["embedded", "server"])
def make(request: pytest.FixtureRequest, project: str) -> Make:
    if request.param == "embedded":
        return PubSub
    url = request.getfixturevalue("shared_server").url
    return lambda: PubSub(url, project=project)


def test_a_queue_is_created_described_and_deleted(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = pubsub.queue("tasks")
            assert pubsub.queue("tasks") is queue
            assert not await queue.exists()
            assert not await pubsub.queue("a\nb").exists()
            assert not await pubsub.topic("").exists()
            assert not await pubsub.subscription("n" * 2_000).exists()
            with pytest.raises(QueueNotFound):
                await queue.publish(b"")

            assert await queue.create(max_retries=5, message_ttl=timedelta(hours=1)) is queue

            assert await queue.exists()
            assert (await queue.config()).max_retries == 5
            assert await pubsub.queues() == ["tasks"]
            with pytest.raises(AlreadyExists):
                await queue.create()
            for again in (queue.create(QueueConfig(max_retries=9), exist_ok=True), queue.create(max_retries=9, exist_ok=True)):
                with pytest.raises(AlreadyExists, match="max_retries is 5, not 9") as caught:
                    await again
                assert "update" in str(caught.value.hint)
            await queue.create(exist_ok=True)
            await queue.create(max_retries=5, message_ttl=3600, exist_ok=True)
            with pytest.raises(AlreadyExists, match="ack_deadline_secs is 30"):
                await queue.create(ack_deadline_secs=31, max_retries=5, exist_ok=True)

            policy = RetryPolicy(1, timedelta(minutes=1))
            updated = await queue.update(max_retries=9, retry_policy=policy, message_ttl=None)
            assert (updated.max_retries, updated.message_ttl, updated.ack_deadline_secs) == (9, None, 30)
            await queue.create(retry_policy=RetryPolicy(1, 60), exist_ok=True)
            for wrong, problem in (({}, "no change"), ({"max_retires": 1}, "max_retires"), ({"max_retries": "x"}, "max_retries")):
                with pytest.raises(InvalidArgument, match=problem):
                    await queue.update(**wrong)
            assert await queue.config() == updated
            await queue.delete()
            assert not await queue.exists()

    run(scenario)


def test_settings_that_make_no_sense_are_refused_before_they_are_sent() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            queue = pubsub.queue("tasks")
            with pytest.raises(InvalidArgument, match=r"unknown option 'max_retrys' of a queue, expected one of .*max_retries"):
                await queue.create(max_retrys=5)  # type: ignore[call-arg]  # that is the point
            with pytest.raises(InvalidArgument, match="config is given together with max_retries"):
                await queue.create(QueueConfig(), max_retries=5)
            with pytest.raises(InvalidArgument, match="unknown option 'prefetch' of a queue"):
                pubsub.queue("tasks", prefetch=10)  # type: ignore[call-arg]  # that is the point

    run(scenario)


def test_a_payload_comes_back_as_it_was_given(make: Make, subtests: pytest.Subtests) -> None:
    async def round_trip(queue: WorkQueue, payload: Any) -> None:
        first = await queue.publish(payload, priority=8, headers={"trace": "7"}, max_retries=2)
        second = await queue.publish(payload)

        peeked = await queue.peek()
        assert peeked is not None
        assert (peeked.message_id, peeked.payload) == (first, payload)
        [task] = await queue.consume()
        assert (task.message_id, task.payload, task.priority, dict(task.headers)) == (first, payload, 8, {"trace": "7"})
        assert (task.retry_count, task.max_retries, task.delivery_attempt) == (0, 2, 1)
        task.ack()
        async for streamed in queue:
            assert (streamed.message_id, streamed.payload, streamed.max_retries) == (second, payload, 3)
            assert isinstance(streamed, QueueTask)
            streamed.ack()
            break
        await queue.close()
        await stats_are(queue, depth=0, in_flight=0, acked_total=2)

    async def scenario() -> None:
        async with make() as pubsub:
            payloads: list[Any] = [b"\x00\xff", "text ü", {"n": [1, 2.5, None, True]}, [], 7, None, ""]
            for number, payload in enumerate(payloads):
                with subtests.test(payload=payload):
                    await round_trip(await pubsub.queue(f"tasks-{number}").create(), payload)

    run(scenario)


def test_what_no_queue_can_hold_is_refused(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create(max_depth=1)
            for wrong in (
                {"priority": 10},
                {"ttl": -1},
                {"max_retries": -1},
                {"delay": 1, "deliver_at": 2},
                {"headers": {"a": 1}},
            ):
                with pytest.raises(InvalidArgument):
                    await queue.publish(b"x", **wrong)
            await queue.publish(b"x")
            with pytest.raises(QueueFull):
                await queue.publish(b"y")

    run(scenario)


def test_what_is_published_at_the_same_time_travels_together_and_each_hears_of_its_own(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create(max_depth=60)
            requests: list[int] = []
            enqueue = pubsub.link.enqueue

            async def counted(name: str, messages: list[NewMessage]) -> list[str]:
                requests.append(len(messages))
                return await enqueue(name, messages)

            monkeypatch.setattr(pubsub.link, "enqueue", counted)
            ids = await asyncio.gather(*(queue.publish(number) for number in range(50)))
            assert requests == [50]
            assert [task.payload for task in await queue.consume(max_messages=100, prefetch=100)] == [*range(50)]
            assert ids == sorted(set(ids))

            outcomes = await asyncio.gather(
                queue.publish("good"),
                queue.publish("bad", priority=99),
                queue.publish({1, 2}),
                queue.publish(10**5000),
                queue.publish(object()),
                queue.publish({"also": "good"}, headers=MappingProxyType({"a": "b"})),
                return_exceptions=True,
            )
            assert [type(outcome).__name__ for outcome in outcomes] == [
                "str",
                "InvalidPriority",
                "InvalidArgument",
                "InvalidArgument",
                "InvalidArgument",
                "str",
            ]
            full = await asyncio.gather(*(queue.publish(b"") for _ in range(20)), return_exceptions=True)
            assert sum(isinstance(outcome, str) for outcome in full) == 8
            assert sum(isinstance(outcome, QueueFull) for outcome in full) == 12
            with pytest.raises(InvalidArgument, match="message is 'text', expected a NewMessage"):
                await queue.publish_message("text")  # type: ignore[arg-type]

    run(scenario)


def test_publishing_many_is_all_or_nothing_and_keeps_the_order(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create(default_prefetch=10)
            ids = await queue.publish_many([NewMessage(number) for number in range(5)])
            with pytest.raises(InvalidArgument):
                await queue.publish_many([NewMessage(b"good"), NewMessage(b"bad", priority=99)])

            tasks = await queue.consume(max_messages=10)

            assert [(task.message_id, task.payload) for task in tasks] == list(zip(ids, range(5), strict=True))
            for task in tasks:
                task.ack()
            await stats_are(queue, depth=0, in_flight=0)

    run(scenario)


def test_a_consumer_waits_for_the_first_message_and_holds_no_more_than_its_prefetch(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create()
            assert await queue.consume() == []
            waiting = asyncio.create_task(queue.consume(wait=20))
            await stats_are(queue, depth=0)
            await queue.publish_many([NewMessage(number) for number in range(3)])
            [first] = await waiting

            [second] = await queue.consume(max_messages=5, prefetch=2)
            assert await queue.consume(prefetch=2) == []
            [third] = await queue.consume(prefetch=2, consumer="another")

            assert [first.payload, second.payload, third.payload] == [0, 1, 2]

    run(scenario)


def test_a_task_that_is_given_back_comes_again_and_then_becomes_a_dead_letter(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create(max_retries=1)
            await queue.publish("work")
            seen: list[int] = []
            async for task in queue:
                seen.append(task.retry_count)
                task.nack(error=f"try {task.retry_count} \udc80")
                if len(seen) == 2:
                    break
            await queue.close()
            await stats_are(queue, dead_letters=1)

            [letter] = await queue.dead_letters()
            assert (seen, letter.message.payload, letter.attempts, letter.last_error) == ([0, 1], "work", 2, "try 1 ?")
            await queue.retry_dead_letter(letter.message.message_id)
            with pytest.raises(MessageNotFound):
                await queue.retry_dead_letter(letter.message.message_id)
            [again] = await queue.consume()
            assert (again.message_id, again.retry_count) == (letter.message.message_id, 0)
            again.nack(requeue=False, error="never")
            await stats_are(queue, dead_letters=1)
            assert [letter.last_error for letter in await queue.dead_letters(10)] == ["never"]
            assert await queue.purge_dead_letters() == 1

    run(scenario)


def test_dead_letters_are_read_piece_by_piece_whatever_their_number_and_size(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.queue.LETTERS", 4)
    monkeypatch.setattr("penstock.api.queues.MAX_ANSWERED", 250)

    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create()
            payloads = [f"{number}{'x' * (100 if number % 3 else 1_000)}" for number in range(11)]
            await queue.publish_many([NewMessage(payload) for payload in payloads])
            for task in await queue.consume(11, prefetch=11):
                task.nack(requeue=False)
            await stats_are(queue, dead_letters=11)

            assert [letter.message.payload for letter in await queue.dead_letters()] == payloads
            assert [letter.message.payload for letter in await queue.dead_letters(5)] == payloads[:5]
            assert await queue.redrive(lambda letter: letter.message.payload in payloads[7:], limit=3) == 3
            await stats_are(queue, dead_letters=8, depth=3)

    run(scenario)


def test_dead_letters_are_redriven_by_what_they_say(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create()
            await queue.publish_many([NewMessage({"n": number}) for number in range(6)])
            for task in await queue.consume(max_messages=10):
                task.nack(requeue=False, error="even" if task.payload["n"] % 2 == 0 else "odd")
            await stats_are(queue, dead_letters=6)

            assert await queue.redrive(lambda letter: letter.last_error == "odd", limit=2) == 2
            assert await queue.redrive(lambda letter: letter.message.payload["n"] > 100) == 0
            assert sorted(task.payload["n"] for task in await queue.consume(max_messages=10)) == [1, 3]
            assert await queue.redrive(limit=1) == 1
            assert await queue.redrive() == 3
            with pytest.raises(InvalidArgument, match="limit"):
                await queue.redrive(lambda _: True, limit=-1)
            with pytest.raises(InvalidArgument, match="limit is 0, expected an integer, 1 or more"):
                await queue.redrive(lambda _: True, limit=0)
            with pytest.raises(InvalidArgument, match="where is 'odd', expected a function"):
                await queue.redrive("odd")  # type: ignore[arg-type]

    run(scenario)


def test_a_handler_that_fails_gives_its_task_back_with_the_error(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create(max_retries=0)
            errors: list[Exception] = []

            async def handler(task: QueueTask) -> None:
                if task.payload == "bad":
                    raise ValueError("no such user")
                task.ack()

            queue.on("message", handler).on("error", errors.append)
            queue.open()
            await queue.publish("bad")
            await queue.publish("good")
            await stats_are(queue, depth=0, in_flight=0, dead_letters=1, acked_total=1)
            await queue.close()

            [letter] = await queue.dead_letters()
            assert letter.last_error == "ValueError: no such user"
            assert [str(error) for error in errors] == ["no such user"]

    run(scenario)


def test_a_queue_may_be_held_and_emptied(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create()
            await queue.publish_many([NewMessage(b"") for _ in range(3)])
            await queue.pause_delivery()
            assert await queue.consume() == []
            assert (await queue.stats()).paused
            await queue.resume_delivery()
            assert len(await queue.consume()) == 1
            assert await queue.purge() == 2

    run(scenario)


def test_a_task_given_back_as_unseen_keeps_its_tries(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create(max_retries=0)
            await queue.publish("work")
            tries: list[int] = []
            async for task in queue:
                tries.append(task.retry_count)
                if len(tries) < 3:
                    task.give_back()
                else:
                    task.ack()
                    break
            await queue.close()

            assert tries == [0, 0, 0]

    run(scenario)


@pytest.mark.parametrize("streamed", [True, False])
def test_delays_are_kept_to_the_microsecond(streamed: bool) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with PubSub(clock=clock) as pubsub:
            queue = await pubsub.queue("tasks").create(max_retries=5)
            await queue.publish("later", delay=3_600)
            assert await queue.consume() == []
            clock.advance(3_600)
            if streamed:
                async for task in queue:
                    task.nack(delay=timedelta(days=3))
                    break
                await queue.close()
            else:
                [task] = await queue.consume()
                task.nack(delay=timedelta(days=3))
            await stats_are(queue, delayed=1)

            clock.advance(timedelta(days=3) - timedelta(microseconds=1))
            assert await queue.consume() == []
            clock.advance(timedelta(microseconds=1))
            [again] = await queue.consume()
            assert again.retry_count == 1

    run(scenario)


def test_a_nack_that_makes_no_sense_is_refused_and_settles_nothing() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            queue = await pubsub.queue("tasks").create()
            await queue.publish("work")
            [task] = await queue.consume()
            wrongs: list[dict[str, Any]] = [{"delay": -1}, {"delay": "1"}, {"delay": 1e12}, {"error": b"bytes"}]
            for wrong in wrongs:
                with pytest.raises(InvalidArgument, match=next(iter(wrong))):
                    task.nack(**wrong)
                assert not task.is_settled
            task.ack()
            await stats_are(queue, acked_total=1)

    run(scenario)


def test_a_lease_can_be_made_longer_and_what_was_consumed_settles_late_acks_without_noise(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create()
            await queue.publish("work")
            [task] = await queue.consume(ack_deadline=30)
            task.modify_ack_deadline(300)
            task.ack()
            task.ack()
            task.nack()
            await stats_are(queue, depth=0, in_flight=0, acked_total=1, nacked_total=0)

    run(scenario)


def test_a_queue_that_is_created_at_a_server_has_the_defaults_of_its_configuration() -> None:
    async def main() -> None:
        async with PubSub(server.url) as pubsub:
            plain, other = await pubsub.queue("plain").create(), await pubsub.queue("other").create(max_retries=1)
            assert await plain.config() == QueueConfig(max_retries=7, retry_policy=RetryPolicy(2, 600), default_prefetch=20)
            assert await other.config() == QueueConfig(max_retries=1, retry_policy=RetryPolicy(2, 600), default_prefetch=20)
            complete = await pubsub.queue("complete").create(QueueConfig(max_depth=5))
            assert await complete.config() == QueueConfig(max_depth=5)
            await pubsub.queue("plain").create(max_retries=7, exist_ok=True)
            headers = {"authorization": f"Bearer {'x' * 60_000}", "goog-trace": "1"}
            await plain.publish(b"", headers=headers)
            [task] = await plain.consume()
            assert task.headers == headers

    settings: dict[str, Any] = {
        "queue_default_max_retries": 7,
        "queue_retry_policy_minimum_backoff": 2,
        "queue_prefetch_default": 20,
    }
    with LocalServer(memory=True, **settings) as server:
        run(main)


def test_consumers_are_listed_with_their_connections_also_while_they_wait(make: Make) -> None:
    async def main() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("watched").create()
            reader = pubsub.queue("watched", max_streams=2, flow_control=FlowControl(max_messages=7))
            arrived = asyncio.Event()
            reader.on("message", lambda _: arrived.set())
            reader.open()
            await stats_are(queue, consumers=1)
            [waiting] = await queue.consumers()
            assert (waiting.prefetch, waiting.current_messages, waiting.messages) == (7, 0, [])
            assert waiting.connection_id is not None
            assert waiting.connection_id == "this process" or waiting.connection_id.startswith("127.0.0.1:")
            message_id = await queue.publish("work")
            await arrived.wait()
            [holding] = await queue.consumers()
            [held] = holding.messages
            assert (holding.consumer_id, holding.current_messages) == (waiting.consumer_id, 1)
            assert (held.message_id, held.retry_count) == (message_id, 0)
            assert held.delivered_at is not None
            assert held.delivered_at < held.ack_deadline
            reader.set_options(close_behavior="nack")
            await reader.close()
            assert await queue.consumers() == []
            [_] = await queue.consume(consumer="me")
            [caller] = await queue.consumers(0)
            assert (caller.consumer_id, caller.connection_id, caller.current_messages, caller.messages) == ("me", None, 1, [])

    run(main)


def test_integers_of_more_than_64_bits_come_back_as_they_were_given(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            queue = await pubsub.queue("tasks").create()
            payloads = [1 << 64, {"debt": [-(10**30), (1 << 64) - 1, -(1 << 63), None, 1.5, "text"]}, b"bytes", "text", [True]]
            await queue.publish(payloads[0], headers={"a": "b"})
            await queue.publish_many([NewMessage(one) for one in payloads[1:]])

            seen = await queue.peek()
            assert seen is not None
            assert (seen.payload, seen.headers) == (payloads[0], {"a": "b"})
            tasks = await queue.consume(10)
            assert [task.payload for task in tasks] == payloads
            for task in tasks:
                task.nack(requeue=False)
            await stats_are(queue, dead_letters=len(payloads))
            assert [letter.message.payload for letter in await queue.dead_letters()] == payloads
            assert await queue.redrive(lambda letter: letter.message.payload == payloads[0]) == 1
            async for task in queue:
                assert task.payload == payloads[0]
                task.ack()
                break

    run(scenario)
