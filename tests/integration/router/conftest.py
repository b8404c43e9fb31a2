"""One server of each kind for a whole test process, started on first use, and the event loop of the transport's tests.

Tests use queue names of their own. A test may kill NATS or ActiveMQ if it starts it again: their data are on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.integration.router.activemq_server import ActiveMqServer, running
from tests.integration.router.nats_server import NatsServer
from tests.integration.router.raw_target import PATIENCE, Play
from tests.integration.router.redis_server import RedisServer, redis_server
from tests.integration.router.sqs_server import SqsServer


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_activemq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMqServer]:
    with running(tmp_path_factory.mktemp("activemq")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_sqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    with SqsServer(tmp_path_factory.mktemp("sqs")) as server:
        yield server


@pytest.fixture(params=[pytest.param("asyncio", marks=pytest.mark.long), "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Play], None]:
    """Run a coroutine in a loop of its own: uvloop, as the router does, and in the long ring asyncio's."""

    def runs(play: Play) -> None:
        async def main() -> None:
            async with asyncio.timeout(3 * PATIENCE):
                await play()

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return runs
