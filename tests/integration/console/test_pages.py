"""Every page of the console in a real browser: with a shop's messages, without anything, in both themes and on a phone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock.testing.server import LocalServer
from tests.integration.console.conftest import ShopServer
from tests.integration.console.visit import PHONE, findings, open_page, press, shows, visit
from tests.integration.hub.chromium import CHROMIUM

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

WITH_DATA = (
    ("/console", "invoices"),
    ("/console/queues", "thumbnails"),
    ("/console/queues/mail", "The oldest messages"),
    ("/console/queues/mail?tab=browse", "customer-139@shop.example"),
    ("/console/queues/mail?tab=publish", "Publish to mail"),
    ("/console/queues/mail?tab=settings", "max_retries"),
    ("/console/message/{dead_mail}", "Dead in mail"),
    ("/console/message/{blocked_order}", "Open blocker"),
    ("/console/dead", "SMTP"),
    ("/console/dead?source=queue:mail", "The newest three"),
    ("/console/topics", "orders"),
    ("/console/topics/orders", "sku"),
    ("/console/topics/orders?tab=consumers", "billing"),
    ("/console/subscriptions", "shipping"),
    ("/console/subscriptions/billing", "Settled to offset"),
    ("/console/workers", "worker-2"),
    ("/console/workers", "make_thumbnail"),
    ("/console/workers", "of the last 23 deliveries, since "),
    ("/console/hub", "No client is connected"),
    ("/console/pipeline", "No reader keeps a cursor"),
    ("/console/pipeline", "SMTP … mailbox … unavailable"),
    ("/console/pipeline", "75 %"),
    ("/console/settings", "data_dir"),
)
WITHOUT = (
    ("/console", "penstock queue create mail"),
    ("/console/queues", "penstock queue create mail"),
    ("/console/queues/none", "There is no queue none"),
    ("/console/message/0660000000000000000000000000aa", "An id has 30 characters"),
    ("/console/dead", "No dead letters"),
    ("/console/topics", "penstock topic create orders"),
    ("/console/topics/none", "There is no topic none"),
    ("/console/subscriptions", "penstock subscription create billing --topic orders"),
    ("/console/workers", "No worker is connected"),
    ("/console/workers", "No delivery has ended in this time"),
    ("/console/nonsense", "There is no such page"),
)
MODES = {"light": (False, 1280), "dark": (True, 1280), "phone": (False, PHONE)}


@pytest.mark.parametrize("mode", MODES)
def test_every_page_shows_the_shop_and_is_accessible(devtools: str, shop: ShopServer, mode: str) -> None:
    dark, width = MODES[mode]

    async def scenario() -> None:
        async with visit(devtools, shop.url, dark=dark, width=width) as page:
            await shows(page, "invoices")
            for address, text in WITH_DATA:
                await open_page(page, address.format(dead_mail=shop.shop.dead_mail, blocked_order=shop.shop.blocked_order))
                await shows(page, text)
                # The theme changes colours alone, so only those are checked twice.
                assert await findings(page, "color-contrast" if dark else None) == [], address
                assert await page.run("document.documentElement.scrollWidth <= innerWidth"), f"{address} is too wide"
            assert page.problems == []

    asyncio.run(scenario())


def test_a_cause_of_dead_letters_leads_to_their_messages(devtools: str, shop: ShopServer) -> None:
    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/pipeline") as page:
            await press(page, "SMTP … mailbox … unavailable")
            await shows(page, "redrive when the target answers again")
            await shows(page, "penstock pipeline redrive queue:mail --sql")
            assert await findings(page) == []
            await press(page, shop.shop.dead_mail)
            await shows(page, "Dead in mail")
            assert page.problems == []

    asyncio.run(scenario())


def test_pages_without_anything_say_what_to_do(devtools: str, nothing: str) -> None:
    async def scenario() -> None:
        async with visit(devtools, f"{nothing}/") as page:
            for address, text in WITHOUT:
                await open_page(page, address)
                await shows(page, text)
                assert await findings(page) == [], address
            assert page.problems == []

    asyncio.run(scenario())


def test_a_link_to_any_page_opens_it(devtools: str, shop: ShopServer) -> None:
    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/queues/mail?tab=settings") as page:
            await shows(page, "max_retries")
            await page.go(f"{shop.url}/")
            await shows(page, "Needs attention")
            assert await page.run("document.title") in ("Overview · Penstock", "✕ Overview · Penstock")
            assert page.problems == []

    asyncio.run(scenario())


def test_the_page_of_a_router_shows_pools_and_no_rate_of_nothing(devtools: str, tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    pools = [{"code": "default", "concurrency": 2}]
    file.write_text(json.dumps({"queues": [{"queueUri": "penstock:///in"}], "connections": 1, "processingPools": pools}))

    async def scenario() -> None:
        with LocalServer(router=str(file)) as server:
            async with visit(devtools, f"{server.url}/console/router") as page:
                await shows(page, "The router has not called any target yet")
                await page.until("document.querySelector('td[data-label=Success]')?.textContent === '–'")
                assert await page.run("[...document.querySelectorAll('nav a')].some((link) => link.textContent === 'Router')")
                assert await findings(page) == []
                assert page.problems == []

    asyncio.run(scenario())
