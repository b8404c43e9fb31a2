"""How many topics, subscriptions, snapshots and queues a project may have, whichever API creates them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock import Broker, SubscriptionOptions
from penstock.access import ANYONE
from penstock.api.operations import Operations
from penstock.api.service import Service
from penstock.broker.aio import AsyncBroker
from penstock.errors import ResourceExhausted
from penstock.queue_api.topics import ProjectTopics
from penstock.values.policy import QueueConfig
from penstock.values.projects import Projects, Quotas


def scenario(quotas: Quotas | None, play: Callable[[Service], Awaitable[None]]) -> None:
    async def run() -> None:
        with Broker() as broker:
            aio = AsyncBroker(broker)
            service = Service(aio, Projects(quotas=quotas), version="1")
            try:
                await play(service)
            finally:
                service.close()
                aio.close()

    asyncio.run(run())


def test_a_project_has_no_more_than_its_quota_and_others_are_not_concerned() -> None:
    async def play(service: Service) -> None:
        for project in ("penstock", "shop"):
            one, queues = Operations(service, ANYONE, project), service.queues.of(project=project)
            rooms = ProjectTopics(queues)
            await one.create_topic("topic")
            assert await rooms.create("room")
            await one.create_subscription("sub", "topic", SubscriptionOptions())
            await one.create_snapshot("snapshot", "sub")
            assert await queues.create("first")
            await one.create_queue("second", QueueConfig())
            for kind, more in (
                ("2 topics", one.create_topic("more")),
                ("2 topics", rooms.create("more")),
                ("1 subscriptions", one.create_subscription("more", "topic", SubscriptionOptions())),
                ("1 snapshots", one.create_snapshot("more", "sub")),
                ("2 queues", queues.create("more")),
                ("2 queues", one.create_queue("more", QueueConfig())),
            ):
                with pytest.raises(ResourceExhausted, match=f"project '{project}' has {kind}, which is the limit"):
                    await more
            assert not await queues.create("first"), "what exists is no more"
            await queues.delete("first")
            assert await queues.create("more")

    scenario(Quotas(topics=2, subscriptions=1, snapshots=1, queues=2), play)


def test_a_broker_in_ones_own_process_has_no_quotas() -> None:
    async def play(service: Service) -> None:
        queues = service.queues.of()
        assert all([await queues.create(f"queue-{number}") for number in range(100)])

    scenario(None, play)
