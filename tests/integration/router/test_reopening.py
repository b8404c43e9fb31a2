"""A router whose queues are opened again: by changes of the configuration while pools are full, and because a server died."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock import Broker, QueueManager
from penstock import QueueConfig as Settings
from penstock.broker.aio import AsyncBroker
from penstock.clock import SystemClock
from penstock.http.client.transport import Answer
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.core.message import RoutedMessage
from penstock.router.core.outcome import Severity
from penstock.router.options import RouterOptions
from penstock.router.records import Attempt
from penstock.router.router import Router
from penstock.router.source import SourceContext, open_source
from penstock.router.sources.local import BrokerQueues
from penstock.testing import ManualClock
from tests.integration.router.nats_server import NatsServer
from tests.unit.router.doubles import Request, ScriptedTransport, body, until
from tests.unit.router.worlds import open_calls

SENT = 240
GROUPS = 40


class NullRecords:
    """Writes nothing down."""

    def attempted(self, attempt: Attempt) -> None:
        """Forget it."""

    async def dead_letter(self, item: RoutedMessage, reason: str, error: str) -> None:
        """Forget it."""

    async def flush(self) -> None:
        """Nothing to wait for."""


def config(connections: int, concurrency: int) -> RouterConfig:
    queue = QueueConfig("orders", "penstock:///queues/orders", connections)
    return RouterConfig((queue,), (PoolConfig("P", concurrency),))


async def delivered(fifo: str, concurrency: int, changes: Callable[[Router], Awaitable[None]]) -> list[str]:
    """What was delivered, in order, of a queue whose messages die when they failed once."""
    with Broker() as broker:
        aio, manager = AsyncBroker(broker), QueueManager(broker=broker)
        context = SourceContext(environment={}, clock=SystemClock(), local=BrokerQueues(aio))

        def script(request: Request) -> None:
            asyncio.get_running_loop().call_later(0.002, request.answer, Answer(200))

        transport, records = ScriptedTransport(script), NullRecords()
        options = RouterOptions(fifo=fifo)  # type: ignore[arg-type]  # one of two
        router = Router(lambda queue: open_source(queue, context), transport, records, options)
        manager.create("orders", Settings(max_retries=0))
        for number in range(SENT):
            manager.publish("orders", body(str(number), str(number % GROUPS)))
        await router.apply(config(1, concurrency))
        await changes(router)
        async with asyncio.timeout(30):
            while manager.stats("orders").acked_total < SENT:
                assert not manager.stats("orders").dead_letters
                await asyncio.sleep(0.02)
        await router.stop(1)
        aio.close()
        return transport.called


@pytest.mark.parametrize("fifo", ["strict", "batch"])
def test_a_queue_that_is_opened_again_while_much_of_it_is_worked_on_delivers_nothing_twice(fifo: str) -> None:
    async def changes(router: Router) -> None:
        for connections in (2, 1, 3, 1):
            await asyncio.sleep(0.01)
            await router.apply(config(connections, 20))
            await asyncio.sleep(0.01)
            await router.clean_up()

    called = asyncio.run(delivered(fifo, 20, changes))

    assert sorted(called, key=int) == [str(number) for number in range(SENT)]


def test_messages_that_a_full_pool_has_no_room_for_do_not_die_of_it() -> None:
    async def changes(_router: Router) -> None:
        pass

    called = asyncio.run(delivered("strict", 1, changes))

    for group in range(GROUPS):
        assert [number for number in map(int, called) if number % GROUPS == group] == list(range(group, SENT, GROUPS))


def test_a_queue_whose_server_dies_is_unhealthy_and_restarted_until_it_is_back(tmp_path: Path) -> None:
    """An ack that the server did not receive is not lost by the restart."""

    async def play(server: NatsServer) -> None:
        clock, transport = ManualClock(), ScriptedTransport(open_calls)
        context = SourceContext(environment={}, clock=SystemClock())
        router = Router(lambda queue: open_source(queue, context), transport, NullRecords(), clock=clock)
        place = QueueConfig("orders", f"nats://{server.place}/ORDERS/router?subject=orders.>")
        await router.apply(RouterConfig((place,), (PoolConfig("P", 2),)))
        feed = router.feeds["orders"]
        await until(lambda: feed.source.is_healthy)
        await feed.source.send(body("first"), "")  # type: ignore[attr-defined]  # it fulfils AcceptsMessages
        await until(lambda: transport.open)
        server.kill()
        transport.one("first").answer()
        await until(lambda: feed.trouble)
        for _ in range(2):
            clock.advance(60)
            assert not feed.is_polling(clock.now())
            await router.restart_unhealthy()
        warned = [(str(one.category), one.severity) for one in router.warnings.all(clock.now())]
        assert warned == [("CONSUMER_RESTART", Severity.WARN)] * 2
        await asyncio.to_thread(server.start)
        await until(lambda: feed.source.is_healthy)
        await feed.source.send(body("second"), "")  # type: ignore[attr-defined]  # as above
        await until(lambda: transport.open)
        assert feed.is_polling(clock.now())
        await router.stop(1)
        assert transport.called == ["first", "second"]

    with NatsServer(tmp_path) as server:
        asyncio.run(play(server))
