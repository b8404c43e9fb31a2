"""Leaving `async with PubSub()`: in good order, and by an error, which must not hang."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import FlowControl, NewMessage, PubSub
from penstock.testing.server import LocalServer

PATIENCE = 30


async def leave_by_an_error(pubsub: PubSub) -> None:
    async with pubsub:
        topic = await pubsub.topic("orders").create(exist_ok=True)
        subscription = await topic.subscription("billing").create(exist_ok=True)
        await topic.publish_message(b"x")
        async for message in subscription:
            raise ValueError(message.data)  # it is not settled, and its lease lasts a minute


async def taken_back(pubsub: PubSub) -> int:
    async with pubsub:
        [message] = await pubsub.subscription("billing").pull(wait=PATIENCE)
        message.ack()
        return message.delivery_attempt


def test_an_error_is_not_held_up_by_what_is_unsettled_on_a_server(shared_server: LocalServer, project: str) -> None:
    async def scenario() -> int:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ValueError, match="x"):
                await leave_by_an_error(PubSub(shared_server.url, project=project))
            return await taken_back(PubSub(shared_server.url, project=project))

    assert asyncio.run(scenario()) == 2


def test_nor_in_this_process(tmp_path: Path) -> None:
    async def scenario() -> int:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ValueError, match="x"):
                await leave_by_an_error(PubSub(data_dir=tmp_path))
            return await taken_back(PubSub(data_dir=tmp_path))

    assert asyncio.run(scenario()) == 2


def test_many_nacks_with_long_errors_fit_into_frames() -> None:
    async def scenario(url: str) -> None:
        async with PubSub(url) as pubsub:
            queue = await pubsub.queue("tasks").create(max_prefetch=100_000)
            queue.set_options(flow_control=FlowControl(max_messages=10_000))
            for _ in range(6):
                await queue.publish_many([NewMessage("x") for _ in range(1_000)])
            held = []
            async for task in queue:
                held.append(task)
                if len(held) == 6_000:
                    break
            for task in held:
                task.nack(requeue=False, error="e" * 1_000)
            await queue.close()
            assert (await queue.stats()).dead_letters == 6_000

    with LocalServer(max_request_bytes=2 * 2**20) as server:
        asyncio.run(scenario(server.url))
