"""The shop of the demo: one server, and on it a topic, a work queue with a worker, webhooks, and a page for browsers.

customers ── topic orders ──┬── subscription billing   (this process)
└── hub orders/#           (browsers: open /hub)
── queue mails ────── penstock worker        (a process of its own)
── queue webhooks ─── the server's router ── the partner's endpoint (a real HTTP server, here)
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from demo import mailer
from demo.screen import Figure, LiveScreen
from penstock import IncomingMessage, Message, PubSub, QueueStats
from penstock.client import HubClient, HubMessages
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import PenstockError, Unavailable
from penstock.testing.target import Target, respond
from proof.client_chapter import MortalServer
from proof.screen import ClaimFailed

BATCH, PAUSE = 20, 0.1
"""Orders of one publish, and seconds until the next: 200 orders a second."""
MAIL_EVERY, WEBHOOK_EVERY = 10, 20
REFRESH = 0.5
PATIENCE = 60.0
"""Seconds that anything may take that usually takes a moment, on a busy machine."""
POOL = "PARTNERS"
ROUTER = {
    "queues": [{"queueName": "webhooks", "queueUri": "penstock:///queues/webhooks"}],
    "processingPools": [{"code": POOL, "concurrency": 10}],
}


class Shop:
    """Everything that flows, with its figures. Use it with `async with`; it stops what it started."""

    def __init__(self, screen: LiveScreen, directory: Path) -> None:
        self.screen = screen
        self.directory = directory
        self.footer: Callable[[], str] = lambda: ""
        self.ids: set[str] = set()
        """Of the orders whose publish was confirmed."""
        self.billed: set[str] = set()
        self.seen_by_browser = 0
        self.outages = 0
        self.mails: QueueStats | None = None
        self.webhooks: QueueStats | None = None
        self._closing = AsyncExitStack()
        self._flow: asyncio.Task[None] | None = None
        self._number = 0

    async def __aenter__(self) -> Self:
        config = self.directory / "router.json"
        self.directory.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(ROUTER), encoding="utf-8")
        try:
            self.partner = self._closing.enter_context(Target(respond()))
            options = {"router": config, "router_allow": "127.0.0.1", "hub_bind": "orders/#=orders"}
            self.server = await self._closing.enter_async_context(MortalServer(self.directory / "data", **options))
            self.pubsub = await self._closing.enter_async_context(PubSub(self.server.url, give_up_seconds=PATIENCE))
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _open(self) -> None:
        self.topic = await self.pubsub.topic("orders").create(exist_ok=True)
        self.billing = await self.topic.subscription("billing").create()
        self.mail_queue = await self.pubsub.queue(mailer.QUEUE).create(exist_ok=True)
        self.webhook_queue = await self.pubsub.queue("webhooks").create(exist_ok=True)
        self.billing.on("message", self._bill)
        self.billing.on("error", self._note_outage)
        self.billing.open()
        mailer.worker.configure(server=self.server.url)
        await self._closing.enter_async_context(mailer.worker)
        self._start_worker()
        browser = await self._closing.enter_async_context(HubClient(self.server.url, address="@(demo/browser)"))
        messages = await self._closing.enter_async_context(browser.subscribe("orders/#"))
        self._run_in_background(self._browse(messages))
        self._run_in_background(self._refresh())

    async def _close(self) -> None:
        if self._flow is not None:
            self._flow.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await self._flow
        await self._closing.aclose()

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "penstock", "worker", "demo.mailer:worker", "--server", self.server.url]
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],  # where `demo.mailer` is found
            env=os.environ | {mailer.REPAIRED: str(self.repaired)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the demo, which stops it
        )
        self._closing.callback(process.wait)
        self._closing.callback(process.terminate)

    @property
    def published(self) -> int:
        """How many orders are confirmed."""
        return len(self.ids)

    @property
    def repaired(self) -> Path:
        """The file that repairs the mail server."""
        return self.directory / "repaired"

    # ── what flows ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def selling(self) -> AsyncIterator[None]:
        """As long as this is entered, customers order. Nothing is under way when it is left."""
        is_over = asyncio.Event()
        self._flow = flow = asyncio.create_task(self._sell(is_over))
        try:
            yield
        except asyncio.CancelledError:
            flow.cancel()  # it may wait for a server that does not return
            raise
        finally:
            is_over.set()
            await asyncio.wait([flow])
            self._flow = None
        flow.result()

    async def _sell(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            numbers = range(self._number + 1, self._number + BATCH + 1)
            self._number += BATCH
            batch = [Message(data=b'{"order": %d}' % number, attributes={"country": "FR"}) for number in numbers]
            self.ids |= {*await self.topic.publish_many(batch)}
            for number in numbers:
                if number % MAIL_EVERY == 0:
                    await mailer.confirm_order.send(f"customer-{number}@shop.example", number)
                if number % WEBHOOK_EVERY == 0:
                    await self.notify_partner(number)
            await asyncio.sleep(PAUSE)

    async def notify_partner(self, number: int) -> str:
        """Send a webhook about an order, in the order of its customer."""
        target = f"{self.partner.url}/orders"
        call = {"id": f"order-{number}", "poolCode": POOL, "mediationTarget": target, "messageGroupId": f"customer {number % 50}"}
        return await self.webhook_queue.publish(call)

    def _bill(self, message: IncomingMessage) -> None:
        self.billed.add(message.id)
        message.ack()

    def _note_outage(self, _: Exception) -> None:
        self.outages += 1

    async def _browse(self, messages: HubMessages) -> None:
        async for _ in messages:
            self.seen_by_browser += 1

    # ── what is shown of it ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _refresh(self) -> None:
        last = monotonic()
        while True:
            with suppress(Unavailable):  # killed a moment ago; the figures stay as they were
                self.mails, self.webhooks = await self.mail_queue.stats(), await self.webhook_queue.stats()
            now = monotonic()
            self.screen.show("the shop", self.figures(), self._footer(), (now - last) / SECOND)
            last = now
            await asyncio.sleep(REFRESH)

    def figures(self) -> list[Figure]:
        """What the picture shows."""
        mails, webhooks = self.mails, self.webhooks
        return [
            Figure("orders confirmed", len(self.ids)),
            Figure("orders billed", len(self.billed)),
            Figure("mails sent", mails.acked_total if mails else 0),
            _trouble("mails open", mails),
            Figure("webhooks sent", webhooks.acked_total if webhooks else 0),
            _trouble("webhooks open", webhooks),
            Figure("seen by browsers", self.seen_by_browser),
        ]

    def _footer(self) -> list[str]:
        lines = [f"console {self.server.url}/   browser page {self.server.url}/hub"]
        return [*lines, more] if (more := self.footer()) else lines

    async def until(self, is_so: Callable[[], bool], claim: str) -> None:
        """Return when it is so; ClaimFailed when that takes too long."""
        deadline = monotonic() + PATIENCE * SECOND
        while not is_so():
            if monotonic() > deadline:
                raise ClaimFailed(f"{claim} within {PATIENCE:g} s")
            await asyncio.sleep(0.05)

    def _run_in_background(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]  # a coroutine

        async def stop() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await task

        self._closing.push_async_callback(stop)


def _trouble(name: str, stats: QueueStats | None) -> Figure:
    waiting = (stats.depth + stats.delayed + stats.in_flight) if stats else 0
    dead = stats.dead_letters if stats else 0
    return Figure(name, waiting + dead, f"{waiting:,} waiting, {dead:,} dead", is_bad=bool(dead))
