"""SQS as a source when calls fail, are slow or are many: over a server that answers what the test says."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import Unavailable
from penstock.router.core.config import QueueConfig
from penstock.router.core.message import SourceMessage
from penstock.router.feed import Feed
from penstock.router.source import SourceContext, open_source
from penstock.router.sources import sqs
from penstock.router.sources.sqs import SqsSource
from penstock.router.sources.sqs_api import CALL_SECONDS, SqsApi, address_of
from tests.conformance.sources.driver import take
from tests.integration.router.sqs_script import URL, Answer, Call, always, error, messages, quiet, scripted, settled, started
from tests.integration.router.sqs_server import KEYS, source_of
from tests.together import play_together
from tests.unit.router.worlds import World


def received(*names: str) -> list[SourceMessage]:
    """Messages that another source was handed."""
    return [SourceMessage(name, b"", f"r-{name}") for name in names]


def names(found: Any) -> list[str]:
    return [each.broker_id for each in found]


# ── polling ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_poll_asks_for_what_the_specification_says() -> None:
    async def scenario() -> None:
        async with scripted() as server, started(server) as source:
            assert list(await source.poll(200, 60)) == []
            assert list(await source.poll(3, 0.2)) == []
            assert list(await source.poll(3, 0)) == []
            assert list(await source.poll(0, 20)) == []
        calls = [call.parameters for call in server.of("ReceiveMessage")]
        assert [(call["MaxNumberOfMessages"], call["WaitTimeSeconds"]) for call in calls] == [(10, 20), (3, 1), (3, 0)]
        assert {call["VisibilityTimeout"] for call in calls} == {60}
        assert {call["QueueUrl"] for call in calls} == {URL}
        assert CALL_SECONDS == 25

    asyncio.run(scenario())


def test_after_a_partial_batch_the_next_poll_of_one_poller_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specification 001, "Adaptive delays after each poll"."""
    assert sqs.PARTIAL_PAUSE == 0.1
    monkeypatch.setattr(sqs, "PARTIAL_PAUSE", 3_600.0)

    async def scenario() -> None:
        async with scripted() as server, started(server) as source, asyncio.timeout(60):
            for found in ("", "abc"):  # neither an empty batch nor a full one makes anybody wait
                server.answer = always(messages(*found))
                for _ in range(3):
                    await source.poll(3, 20)
            server.answer = always(messages("a"))
            await source.poll(3, 20)
            server.answer = always(messages())
            polls = {asyncio.create_task(source.poll(3, 20)) for _ in range(2)}
            done, waiting = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            await source.poll(3, 20)  # the pause is one poller's, and it has been taken
            assert not any(poll.done() for poll in waiting)
            for poll in waiting:
                poll.cancel()

    asyncio.run(scenario())


async def _never(_: Call) -> Answer:
    never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    return await never


def test_a_call_that_is_not_answered_ends_and_the_next_finds_the_server_again() -> None:
    async def scenario() -> None:
        async with scripted() as server:
            environment = {**KEYS, "SQS_ENDPOINT_OVERRIDE": server.endpoint}
            api = SqsApi(address_of(URL, environment), environment, SystemClock(), call_seconds=0.2)
            source = SqsSource(api, QueueConfig("orders", URL), SystemClock())
            await source.start()
            answer, server.answer = server.answer, _never
            with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
                await source.poll(10, 20)
            health = [source.is_healthy]
            server.answer = answer
            assert list(await source.poll(10, 20)) == []
            assert [*health, source.is_healthy] == [False, True]
            await source.stop()

    asyncio.run(scenario())


def test_stop_cuts_polls_and_who_cancels_a_poll_is_told() -> None:
    async def scenario() -> None:
        async with scripted() as server:
            source = source_of(URL, server.endpoint)
            await source.start()
            answer, server.answer = server.answer, _never
            polls = [asyncio.create_task(source.poll(10, 20)) for _ in range(3)]
            async with asyncio.timeout(30):
                await server.busy(3)
                polls[0].cancel()
                with pytest.raises(asyncio.CancelledError):
                    await polls[0]
                server.answer = answer
                await source.stop()
                assert [list(await poll) for poll in polls[1:]] == [[], []]
            assert list(await source.poll(10, 20)) == []
            assert not source.is_healthy

    asyncio.run(scenario())


def test_a_feed_that_stops_awaits_its_long_poll_and_gives_back_what_the_poll_brings() -> None:
    """SQS would deliver to a poll that was cut, and hide the message until its lease ends."""

    async def scenario() -> None:
        answers: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def answer(call: Call) -> Answer:
            return await answers if call.action == "ReceiveMessage" else settled(call)

        async with scripted(answer) as server, asyncio.timeout(30):
            world = World()
            world.router.may_poll = lambda: not answers.done()  # what comes then is not delivered
            feed = Feed(QueueConfig("orders", URL), source_of(URL, server.endpoint), world.router, SystemClock(), 10)
            feed.start()
            while not server.of("ReceiveMessage"):
                server.came.clear()
                await server.came.wait()
            stopping = asyncio.create_task(feed.stop_polling(25))
            await asyncio.sleep(0)
            answers.set_result(messages("a"))

            assert await stopping
            await feed.close()

            changes = server.of("ChangeMessageVisibilityBatch")
            assert [(call.receipts, call.parameters["Entries"][0]["VisibilityTimeout"]) for call in changes] == [(["r-a"], 0)]
            assert len(server.of("ReceiveMessage")) == 1

    asyncio.run(scenario())


def test_a_poll_asks_for_as_many_messages_and_as_many_seconds_as_the_settings_say() -> None:
    async def scenario() -> None:
        async with scripted() as server:
            environment = {**KEYS, "SQS_ENDPOINT_OVERRIDE": server.endpoint}
            context = SourceContext(environment=environment, clock=SystemClock(), sqs_max_messages=3, sqs_wait_seconds=2)
            source = open_source(QueueConfig("orders", URL), context)
            await source.start()
            await source.poll(10, 20)
            await source.stop()
            asked = server.of("ReceiveMessage")[0].parameters
            assert (asked["MaxNumberOfMessages"], asked["WaitTimeSeconds"]) == (3, 2)

    asyncio.run(scenario())


def test_a_lost_answer_of_a_fifo_queue_is_asked_for_again() -> None:
    """SQS would hide its messages, and block their groups, until their leases end."""

    async def scenario() -> None:
        async with scripted() as server, started(server, URL + ".fifo") as source:
            await source.poll(10, 0)
            answer, server.answer = server.answer, always(None)
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await source.poll(10, 0)
            server.answer = answer
            await source.poll(10, 0)
            await source.poll(10, 0)
        ids = [call.parameters["ReceiveRequestAttemptId"] for call in server.of("ReceiveMessage")]
        assert ids[1] not in ids[:1]
        assert set(ids[1:-1]) == {ids[1]}
        assert ids[-1] not in ids[:-1]

    asyncio.run(scenario())


def test_a_standard_queue_is_not_asked_by_attempt() -> None:
    async def scenario() -> None:
        async with scripted() as server, started(server) as source:
            await source.poll(10, 0)
        assert "ReceiveRequestAttemptId" not in server.of("ReceiveMessage")[0].parameters

    asyncio.run(scenario())


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "code", ["ReceiptHandleIsInvalid", "InvalidParameterValue", "AWS.SimpleQueueService.ReceiptHandleIsInvalid"]
)
def test_a_delete_that_is_refused_is_done_when_the_message_comes_again(code: str) -> None:
    """Specification 001, "Deferred deletes"."""

    async def refused(call: Call) -> Answer:
        return settled(call, **{"r-b": (code, True)})

    async def scenario() -> None:
        async with scripted() as server, started(server) as source:
            server.answer = refused
            for each in received("a", "b", "c"):
                source.ack(each)
            await source.flush()
            assert [call.receipts for call in server.of("DeleteMessageBatch")] == [["r-a", "r-b", "r-c"]], "once, in one call"
            server.answer = always(messages("b", "d", handle="new"))
            assert names(await source.poll(10, 20)) == ["d"]
            server.answer = quiet
            await source.flush()
            assert server.of("DeleteMessageBatch")[-1].receipts == ["new"]
            server.answer = always(messages("b"))
            assert names(await source.poll(10, 20)) == ["b"], "it is not remembered for ever"
            server.answer = quiet

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "is_fault"), [("InternalError", False), ("RequestThrottled", True), ("ServiceUnavailable", False)]
)
def test_entries_that_fail_for_now_are_tried_again_and_only_they(code: str, is_fault: bool) -> None:
    async def scenario() -> None:
        async def busy(call: Call) -> Answer:
            return settled(call, **({"r-b": (code, is_fault)} if len(server.calls) < 4 else {}))

        async with scripted() as server, started(server) as source:
            server.answer = busy
            for each in received("a", "b"):
                source.ack(each)
            await source.flush()
            assert [call.receipts for call in server.of("DeleteMessageBatch")] == [["r-a", "r-b"], ["r-b"], ["r-b"]]

    asyncio.run(scenario())


def test_deletes_that_fail_again_and_again_are_done_when_their_messages_come_again(subtests: pytest.Subtests) -> None:
    async def scenario(answer: Answer) -> None:
        async with scripted() as server, started(server) as source:
            server.answer = always(answer)
            for each in received("a", "b"):
                source.ack(each)
                source.extend(each, 30)
            source.nack(received("c")[0], 5)
            await source.flush()
            for action in ("DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
                # A kept connection that the server closes is replaced, which is not counted as a try.
                assert sqs.TRIES <= len(server.of(action)) <= sqs.TRIES + 1
            assert not source.is_healthy
            server.answer = always(messages("a", "b", "c"))
            assert names(await source.poll(10, 20)) == ["c"]
            server.answer = quiet

    answers: list[Answer] = [
        error(503, "ServiceUnavailable"),
        error(400, "RequestThrottled"),
        (500, {}),
        None,
        b"nonsense\r\n\r\n",
    ]
    play_together({repr(answer): partial(scenario, answer) for answer in answers}, subtests)


def test_a_message_that_comes_again_while_its_delete_is_under_way_is_not_handed_out() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def answer(call: Call) -> Answer:
            if call.action == "ReceiveMessage":
                return messages("a", handle="new")
            await gate.wait()
            return settled(call)

        async with scripted() as server, started(server) as source:
            server.answer = answer
            source.ack(received("a")[0])
            assert list(await source.poll(10, 20)) == []
            gate.set()
            await source.flush()
            assert [call.receipts for call in server.of("DeleteMessageBatch")] == [["r-a"], ["new"]]

    asyncio.run(scenario())


def test_one_entry_that_makes_sqs_refuse_the_batch_does_not_keep_the_others_from_being_settled() -> None:
    async def scenario() -> None:
        async def answer(call: Call) -> Answer:
            return error(400, "InvalidParameterValue", "bad") if "r-b" in call.receipts else settled(call)

        async with scripted() as server, started(server) as source:
            server.answer = answer
            for each in received("a", "b", "c"):
                source.nack(each, 7)
            await source.flush()
            assert [call.receipts for call in server.of("ChangeMessageVisibilityBatch")] == [
                ["r-a", "r-b", "r-c"],
                ["r-a"],
                ["r-b"],
                ["r-c"],
            ]
            assert source.is_healthy

    asyncio.run(scenario())


def test_many_are_settled_ten_at_a_time_with_several_calls_under_way() -> None:
    async def scenario() -> None:
        async def answer(call: Call) -> Answer:
            await asyncio.sleep(0.01)
            return settled(call)

        async with scripted(answer) as server, started(server) as source:
            every = received(*(f"m{number}" for number in range(255)))
            for each in every:
                source.ack(each)
            await source.flush()
            calls = server.of("DeleteMessageBatch")
            assert sorted(len(call.receipts) for call in calls) == [5] + [10] * 25
            assert sorted(receipt for call in calls for receipt in call.receipts) == sorted(each.receipt for each in every)
            assert 1 < server.most_under_way <= 8

    asyncio.run(scenario())


def test_while_calls_are_under_way_acks_gather_for_the_next() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def answer(call: Call) -> Answer:
            await gate.wait()
            return settled(call)

        async with scripted() as server, started(server) as source:
            server.answer = answer
            for each in received(*"abcdefg"):
                source.ack(each)
                await asyncio.sleep(0.01)  # each in a turn of its own
            gate.set()
            await source.flush()
            assert [call.receipts for call in server.of("DeleteMessageBatch")] == [
                ["r-a"],
                ["r-b"],
                ["r-c", "r-d", "r-e", "r-f", "r-g"],
            ]

    asyncio.run(scenario())


def test_the_last_word_on_a_message_is_the_last_that_sqs_hears() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def answer(call: Call) -> Answer:
            await gate.wait()
            return settled(call)

        async with scripted() as server, started(server) as source:
            server.answer = answer
            (message,) = received("a")
            source.extend(message, 100)
            await server.busy(1)
            source.extend(message, 200)
            source.nack(message, 0)
            gate.set()
            await source.flush()
            entries = [call.parameters["Entries"] for call in server.of("ChangeMessageVisibilityBatch")]
            assert [[entry["VisibilityTimeout"] for entry in each] for each in entries] == [[100], [0]]
            source.extend(message, 100)
            source.ack(message)
            await source.flush()
            assert len(server.of("ChangeMessageVisibilityBatch")) == 2, "what is acked needs no lease"

    asyncio.run(scenario())


DELAYS = [
    ("nack", -5, 0, 0),
    ("nack", 0, 0, 0),
    ("nack", 30, 30, 30),
    ("nack", 43_200, 43_180, 43_200),
    ("nack", 10**9, 43_180, 43_200),
    ("extend", 0, 1, 1),
    ("extend", 120, 120, 120),
    ("extend", 10**9, 43_180, 43_200),
]


def test_delays_are_clamped_to_what_sqs_takes(subtests: pytest.Subtests) -> None:
    """Specification 001, "Visibility Timeout Control"."""

    async def scenario(word: str, seconds: int, least: int, most: int, is_held: bool) -> None:
        async with scripted() as server, started(server) as source:
            server.answer = always(messages("a"))
            (message,) = await source.poll(1, 20) if is_held else received("a")
            server.answer = quiet
            getattr(source, word)(message, seconds)
            await source.flush()
            (call,) = server.of("ChangeMessageVisibilityBatch")
            assert least <= call.parameters["Entries"][0]["VisibilityTimeout"] <= most

    for row in DELAYS:
        for is_held in (True, False):
            with subtests.test(row=row, is_held=is_held):
                asyncio.run(scenario(*row, is_held))


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stopped_source_of_a_fifo_queue_gives_back_in_the_order_of_receiving_one_call_after_the_other() -> None:
    async def scenario() -> None:
        sent = [f"m{number:02}" for number in range(23)]

        async def answer(call: Call) -> Answer:
            if call.action == "ReceiveMessage":
                taken, sent[:] = sent[:10], sent[10:]
                return messages(*taken)
            await asyncio.sleep(0.01)
            return settled(call)

        wanted = [f"r-{name}" for name in sent if name != "m04"]
        async with scripted() as server:
            source = source_of(URL + ".fifo", server.endpoint)
            await source.start()
            server.answer, server.most_under_way = answer, 0
            held = await take(source, 23)
            source.ack(held[4])
            await source.flush()
            await source.stop()
            calls = server.of("ChangeMessageVisibilityBatch")
            assert [receipt for call in calls for receipt in call.receipts] == wanted
            assert {entry["VisibilityTimeout"] for call in calls for entry in call.parameters["Entries"]} == {0}
            assert server.most_under_way == 1

    asyncio.run(scenario())


def test_a_server_that_hangs_does_not_keep_the_source_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with scripted() as server:
            source = source_of(URL, server.endpoint)
            await source.start()
            server.answer = always(messages("a", "b"))
            first, _ = await source.poll(2, 20)
            answer, server.answer = server.answer, _never
            source.ack(first)
            async with asyncio.timeout(30):
                await source.stop()
            server.answer = answer
            await source.start()
            assert names(await source.poll(2, 20)) == ["b"], "what was acked is still known when it is started again"
            server.answer = quiet
            await source.stop()

    monkeypatch.setattr(sqs, "STOP_SECONDS", 0.2)
    asyncio.run(scenario())
