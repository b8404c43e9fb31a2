"""Every source of the router keeps the same contract, over a real server of its kind.

Penstock's own queues in the router's process are in tests/conformance/test_router_sources.py.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pytest

from penstock import NewMessage, PubSub
from penstock.clock import SystemClock
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source, SourceContext, open_source
from penstock.router.sources import remote
from penstock.router.sources.remote import ServerQueues
from penstock.testing.server import ServerProcess
from tests.conformance.sources.checks import SOURCE_CHECKS, checked, missing
from tests.conformance.sources.driver import NEEDS, Abilities, SourceCheck, SourceDriver
from tests.conformance.sources.handing_out import (
    everything_is_handed_out_once_and_in_order,
    many_may_be_held_at_a_time,
    pollers_at_the_same_time_share_the_messages,
)
from tests.conformance.sources.lives import (
    a_server_that_comes_back_is_found_again,
    an_ack_while_the_server_is_away_counts,
    nothing_is_lost_when_the_server_restarts,
)
from tests.integration.router.activemq_server import ActiveMqDriver, ActiveMqServer
from tests.integration.router.nats_server import NatsDriver, NatsServer
from tests.integration.router.sqs_server import SqsDriver, SqsServer
from tests.ports import free_port
from tests.together import Scene, play_together

RESTARTING = [a_server_that_comes_back_is_found_again, an_ack_while_the_server_is_away_counts]
MANY_MESSAGES = [
    everything_is_handed_out_once_and_in_order,
    many_may_be_held_at_a_time,
    pollers_at_the_same_time_share_the_messages,
]
WAITING = [check for check in SOURCE_CHECKS if "restarts" not in NEEDS.get(check, ()) and check not in MANY_MESSAGES]
"""Checks with few messages, most of which wait for a lease or a delay to end."""


class RemoteDriver:
    """A work queue of a Penstock server."""

    can = Abilities(keeps_dead=True)

    def __init__(self, server: ServerProcess, port: int) -> None:
        self._server = server
        self._port = port

    async def begin(self) -> None:
        self._name = f"orders-{secrets.token_hex(4)}"
        self._pubsub = PubSub(f"penstock://127.0.0.1:{self._port}")
        await self._pubsub.open()
        self._queue = self._pubsub.queue(self._name)
        await self._queue.create()

    async def end(self) -> None:
        if self._server.process.poll() is not None:
            await self.start_server()
        await self._pubsub.close()

    def open(self, lease_seconds: int) -> Source:
        return self._source(self._port, lease_seconds)

    def open_elsewhere(self) -> Source:
        return self._source(free_port(), 30)

    async def crash(self, source: Source) -> None:
        link = source._link  # type: ignore[attr-defined]  # a kill has no other way in
        link._connection.abort("killed")
        source._link = None  # type: ignore[attr-defined]
        await link.close()

    async def send(self, bodies: Sequence[bytes]) -> None:
        await self._queue.publish_many([NewMessage(body) for body in bodies])

    async def left(self) -> int:
        stats = await self._queue.stats()
        return stats.depth + stats.in_flight + stats.delayed

    async def stop_server(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start_server(self) -> None:
        await asyncio.to_thread(self._server.start)

    def _source(self, port: int, lease_seconds: int) -> Source:
        uri = f"penstock://127.0.0.1:{port}/queues/{self._name}"
        context = SourceContext(environment=os.environ, clock=SystemClock(), remote=ServerQueues())
        return open_source(QueueConfig("orders", uri, visibility_timeout=lease_seconds), context)


Drivers = Mapping[str, Callable[[], SourceDriver]]


@pytest.fixture(scope="module")
def drivers(
    shared_nats: NatsServer,
    shared_sqs: SqsServer,
    shared_activemq: ActiveMqServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Drivers]:
    """By kind of server, what makes a driver of it with a queue of its own."""
    shared_nats.start()
    shared_activemq.start()
    port = free_port()
    with ServerProcess(tmp_path_factory.mktemp("penstock"), native_port=port) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "GIVE_UP_SECONDS", 1.0)
        yield {
            "penstock": partial(RemoteDriver, server, port),
            "nats": partial(NatsDriver, shared_nats),
            "sqs": partial(SqsDriver, shared_sqs),
            "activemq": partial(ActiveMqDriver, shared_activemq),
        }


def scenes_of(checks: Sequence[SourceCheck], make: Callable[[], SourceDriver]) -> dict[str, Scene]:
    """The checks that a server can pass, each with a driver of its own."""
    pairs = [(check, make()) for check in checks]
    return {check.__name__: partial(checked, check, driver) for check, driver in pairs if missing(check, driver) is None}


def test_sources_keep_the_promises_about_single_messages(drivers: Drivers, subtests: pytest.Subtests) -> None:
    found = {kind: scenes_of(WAITING, make) for kind, make in drivers.items()}
    play_together({f"{kind} {name}": scene for kind, all_of in found.items() for name, scene in all_of.items()}, subtests)


def test_sources_keep_the_promises_about_many_messages_and_restarts(drivers: Drivers, subtests: pytest.Subtests) -> None:
    one_by_one(drivers, [*MANY_MESSAGES, *RESTARTING], subtests)


@pytest.mark.long
def test_nothing_is_lost_when_the_server_restarts(drivers: Drivers, subtests: pytest.Subtests) -> None:
    one_by_one(drivers, [nothing_is_lost_when_the_server_restarts], subtests)


def one_by_one(drivers: Drivers, checks: Sequence[SourceCheck], subtests: pytest.Subtests) -> None:
    """Make the checks of a server one after the other, and those of different servers at the same time."""
    failures: dict[str, BaseException | None] = {}

    async def make_all(kind: str) -> None:
        for name, scene in scenes_of(checks, drivers[kind]).items():
            (failures[f"{kind} {name}"],) = await asyncio.gather(scene(), return_exceptions=True)

    async def fail(failure: BaseException | None) -> None:
        if failure is not None:
            raise failure

    play_together({kind: partial(make_all, kind) for kind in drivers}, subtests)
    play_together({name: partial(fail, failure) for name, failure in failures.items()}, subtests)
