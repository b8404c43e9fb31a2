"""What a router did, as a broker keeps it: attempts in the event log, dead letters that can be redriven."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock import Broker, NewMessage, PubSub, QueueManager
from penstock import QueueConfig as Settings
from penstock.broker.aio import AsyncBroker
from penstock.clock import SystemClock
from penstock.config import Settings as ServerSettings
from penstock.errors import FailedPrecondition
from penstock.http.client.transport import Answer
from penstock.router.broker_records import BrokerRecords, dead_letter_queue, redriven
from penstock.router.core.config import QueueConfig, RouterConfig
from penstock.router.core.message import Pointer, RoutedMessage, SourceMessage
from penstock.router.core.outcome import Outcome, judge
from penstock.router.host import options_of, with_redriven
from penstock.router.records import Attempt, plain_target
from penstock.router.source import Source, SourceContext, open_source
from penstock.router.sources.local import BrokerQueues


class Desk:
    """A broker with a router's records."""

    def __init__(self, broker: Broker, aio: AsyncBroker) -> None:
        self.broker, self.aio = broker, aio
        self.local = BrokerQueues(aio)
        self.records = BrokerRecords(aio, self.local)
        self.queues = QueueManager(broker=broker)

    def source(self, config: QueueConfig) -> Source:
        return open_source(config, SourceContext(environment={}, clock=SystemClock(), local=self.local))


@asynccontextmanager
async def desk(folder: Path | None = None) -> AsyncIterator[Desk]:
    with Broker(data_dir=folder) as broker:
        aio = AsyncBroker(broker)
        try:
            yield Desk(broker, aio)
        finally:
            aio.close()


TARGET = "https://shop/hook?token=secret"
SUCCESS = judge(Answer(200), int)


def attempt(
    message_id: str,
    *,
    queue: str = "orders",
    received: SourceMessage | None = None,
    pool: str = "P",
    target: str = TARGET,
    number: int = 1,
    calls: int = 1,
    came: Outcome = SUCCESS,
) -> Attempt:
    tried = RoutedMessage(Pointer(message_id, pool, target), queue, received or SourceMessage("x", b""))
    return Attempt(tried, pool, number, calls, came, 1_500, SystemClock().now())


def item(body: bytes, *, queue: str = "nats orders", attempts: int = 2) -> RoutedMessage:
    pointer = Pointer("order-1", "P", "https://user:secret@shop/hook?token=secret")
    return RoutedMessage(pointer, queue, SourceMessage("nats:7", body), attempts=attempts)


def test_a_trace_shows_attempts_among_the_rest_of_a_message_s_life() -> None:
    async def run() -> None:
        async with desk() as here:
            source = here.source(QueueConfig("my orders", "penstock:///queues/orders"))
            await source.start()
            here.queues.publish_many("orders", [NewMessage(b"a"), NewMessage(b"b")])
            first, second = await source.poll(10, 1)
            failed = judge(Answer(503), int)
            for number, (calls, came) in enumerate(((3, failed), (1, SUCCESS)), 1):
                told = attempt("order-1", queue="my orders", received=first, number=number, calls=calls, came=came)
                here.records.attempted(told)
                await here.records.flush()
            source.ack(first)
            await source.flush()
            here.records.attempted(attempt("order-2", queue="my orders", received=second, pool="Q"))
            here.records.attempted(attempt("01K9", queue="sqs", target="http://x/"))
            await here.records.flush()
            async with PubSub(broker=here.broker) as pubsub:
                life = await pubsub.trace(first.broker_id)
                assert [(one.kind, one.attempt, one.consumer) for one in life] == [
                    ("published", None, None),
                    ("leased", 1, "router:my orders"),
                    ("attempted", 1, "P"),
                    ("attempted", 2, "P"),
                    ("acked", 1, None),
                ]
                assert {one.topic for one in life} == {"orders"}
                assert life[2].detail == {
                    "target": "https://shop/hook",
                    "status": "503",
                    "duration": "1500",
                    "outcome": "ERROR_PROCESS",
                    "calls": "3",
                    "queue": "my orders",
                    "error": "the target answered with status 503",
                    "id": "order-1",
                }
                assert await pubsub.trace("order-1") == life
                [other] = await pubsub.trace("01K9")
                assert (other.kind, other.topic, other.subscription, other.detail["queue"]) == ("attempted", None, None, "sqs")
                assert await pubsub.trace("nobody") == []
            await source.stop()

    asyncio.run(run())


def test_attempts_survive_a_restart(tmp_path: Path) -> None:
    async def write() -> None:
        async with desk(tmp_path) as here:
            for number in range(1_000):
                here.records.attempted(attempt(f"order-{number}"))
            await here.records.flush()

    async def read() -> None:
        async with desk(tmp_path) as here:
            assert [row.kind for row in here.broker.history("order-999")] == ["attempted"]

    asyncio.run(write())
    asyncio.run(read())


@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "durable"])
def test_a_dead_message_of_another_queue_is_kept_and_comes_back_by_a_redrive(is_durable: bool, tmp_path: Path) -> None:
    config = QueueConfig("nats orders", "nats://u:secret@host:4222/ORDERS/router", visibility_timeout=30)

    async def run() -> None:
        async with desk(tmp_path if is_durable else None) as here:
            again = redriven(config)
            assert again is not None
            assert (again.name, again.uri) == ("router.nats-orders", "penstock:///queues/router.nats-orders")
            source = here.source(again)
            await source.start()
            await asyncio.gather(*(here.records.dead_letter(item(b"\0%d" % n), "malformed", "not JSON") for n in range(20)))
            assert list(await source.poll(10, 0.1)) == [], "nobody is handed what is dead"
            letters = here.queues.dead_letters(again.name)
            assert sorted(letter.message.payload for letter in letters) == sorted(b"\0%d" % n for n in range(20))
            assert {(letter.reason, letter.attempts, letter.last_error) for letter in letters} == {("malformed", 2, "not JSON")}
            assert letters[0].message.headers == {
                "router.queue": "nats orders",
                "router.broker_id": "nats:7",
                "router.message_id": "order-1",
                "router.pool": "P",
                "router.target": "https://shop/hook",
            }
            assert here.queues.stats(again.name).delayed == 0

            assert here.queues.redrive(again.name, limit=1) == 1
            [back] = await source.poll(10, 1)
            assert back.body == letters[0].message.payload
            source.ack(back)
            await source.flush()
            assert len(here.queues.dead_letters(again.name)) == 19
            await source.stop()

    asyncio.run(run())


def test_dead_letters_survive_a_restart(tmp_path: Path) -> None:
    async def write() -> None:
        async with desk(tmp_path) as here:
            await here.records.dead_letter(item(b"x"), "malformed", "")

    async def read() -> None:
        async with desk(tmp_path) as here:
            [letter] = here.queues.dead_letters("router.nats-orders")
            assert (letter.message.payload, letter.reason, letter.last_error) == (b"x", "malformed", None)
            assert here.queues.stats("router.nats-orders").delayed == 0
            here.queues.redrive("router.nats-orders")
            found = here.queues.consume("router.nats-orders")
            assert found is not None
            assert found.payload == b"x"

    asyncio.run(write())
    asyncio.run(read())


def test_a_queue_that_keeps_no_dead_letters_is_given_none() -> None:
    async def run() -> None:
        async with desk() as here:
            for name in ("orders", "router.orders"):
                here.queues.create(name, Settings(dead_letter_enabled=False))
            assert not hasattr(here.source(QueueConfig("orders", "penstock:///queues/orders")), "dead_letter")
            with pytest.raises(FailedPrecondition, match="keeps no dead letters"):
                await here.records.dead_letter(item(b"x", queue="orders"), "malformed", "")
            assert here.queues.stats("router.orders").published_total == 0

    asyncio.run(run())


def test_a_work_queue_keeps_its_own_dead_letters_with_the_reason() -> None:
    async def run() -> None:
        async with desk() as here:
            config = QueueConfig("orders", "penstock:///queues/orders")
            assert redriven(config) is None
            source = here.source(config)
            await source.start()
            here.queues.publish("orders", b"x")
            [received] = await source.poll(1, 1)
            await source.dead_letter(received, "ERROR_CONFIG", "the target answered with status 404", 3)  # type: ignore[attr-defined]
            [letter] = here.queues.dead_letters("orders")
            assert (letter.reason, letter.last_error) == ("ERROR_CONFIG", "the target answered with status 404")
            assert letter.attempts == 3  # of the router: the queue delivered it once
            with pytest.raises(FailedPrecondition, match="not held any more"):
                await source.dead_letter(received, "again", "", 1)  # type: ignore[attr-defined]
            await source.stop()

    asyncio.run(run())


def test_the_queue_of_dead_letters_has_a_plain_name_without_secrets(subtests: pytest.Subtests) -> None:
    for queue, name in [
        ("orders", "router.orders"),
        ("my orders", "router.my-orders"),
        ("https://sqs.eu-west-1.amazonaws.com/123/orders.fifo", "router.https-sqs.eu-west-1.amazonaws.com-123-orders.fifo"),
        ("nats://user:secret@host:4222/S/C", "router.nats-host-4222-S-C"),
        ("x" * 300, "router." + "x" * 193),
        ("заказы", "router.c359203e8db39396"),
    ]:
        with subtests.test(queue[:40]):
            assert dead_letter_queue(queue) == name


def test_a_target_is_written_down_without_its_secrets(subtests: pytest.Subtests) -> None:
    for target, plain in [
        ("https://shop/hook", "https://shop/hook"),
        ("https://shop/hook?token=secret#secret", "https://shop/hook"),
        ("https://user:secret@shop/hook", "https://shop/hook"),
        ("https://user:se/cret@shop/hook", "https://shop/hook"),
        ("https://user:se?cret@shop/hook", "https://user:se"),
        ("", ""),
        ("https://" + "x" * 10_000, "https://" + "x" * 492),
    ]:
        with subtests.test(target[:40]):
            assert plain_target(target) == plain


def test_a_dead_message_with_long_texts_of_many_bytes_is_kept() -> None:
    async def run() -> None:
        async with desk() as made:
            text = "п" * 2_000
            dead = RoutedMessage(Pointer(text, text, f"https://shop/{text}"), text, SourceMessage(text, b"body"), attempts=1)
            await made.records.dead_letter(dead, "undeliverable", text)

            (letter,) = made.queues.dead_letters(dead_letter_queue(text))
            assert letter.message.payload == b"body"

    asyncio.run(run())


def test_attempts_of_a_queue_that_was_another_one_before_are_written_down() -> None:
    async def run() -> None:
        async with desk() as made:
            made.local.numbers["orders"] = (1, 1)
            made.records.attempted(attempt("m", received=SourceMessage("nats:7", b"", b"a receipt of NATS")))
            await made.records.flush()

    asyncio.run(run())


def test_two_queues_whose_dead_letters_are_in_one_place_have_one_source_of_redriven_ones() -> None:
    config = RouterConfig((QueueConfig("a b", "nats://h/S/a"), QueueConfig("a-b", "nats://h/S/b")))

    widened = with_redriven(config)

    assert [queue.name for queue in widened.queues] == ["a b", "a-b", "router.a-b"]
    assert with_redriven(widened) == widened


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "holds nothing"), (b" \n", "holds nothing"), (b"one two\n", "more than one"), (b"\xff", "not text")],
)
def test_a_file_that_holds_no_signing_secret_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)

    with pytest.raises(FailedPrecondition, match=said) as refused:
        options_of(ServerSettings(memory=True, router_signing_secret_file=file))

    assert "two" not in str(refused.value)


def test_settings_of_the_router_reach_its_options() -> None:
    plain = options_of(ServerSettings(memory=True))
    assert (plain.breaker_scope, plain.max_pools, plain.pool_warning_threshold) == ("target", 10_000, 5_000)
    given = options_of(
        ServerSettings(memory=True, router_breaker_scope="endpoint", router_max_pools=10, router_pool_warning_threshold=7)
    )
    assert (given.breaker_scope, given.max_pools, given.pool_warning_threshold) == ("endpoint", 10, 7)
