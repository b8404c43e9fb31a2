"""What happens to the shop. Every chapter takes an open shop, and ends when what it says was checked."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

from demo import mailer
from demo.screen import bars
from demo.shop import PATIENCE, Shop
from penstock.client import HubClient, HubMessage, HubMessages
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.testing.target import respond
from penstock.wire.results import TraceEvent
from proof.pipeline_chapter import PipelineDemo, SparkInstallation, missing_for_spark
from proof.screen import ClaimFailed
from proof.server_chapter import call

FIRST_ORDERS = 1_500
MORE_ORDERS = 1_000
BROWSERS = 10
FIGURES = 10  # order messages that the browsers of the hub's chapter compare


async def open_shop(shop: Shop) -> None:
    """Orders flow, and the server is killed in the middle."""
    screen = shop.screen
    screen.step("A shop on one server")
    screen.say(
        "Customers order, billing takes every order, a worker sends mails, the router calls a partner's webhook, and browsers"
        " watch: one process, one directory, one log."
    )
    screen.say(f"The console: {shop.server.url}/\nA browser's view: {shop.server.url}/hub")
    async with shop.selling():
        await shop.until(lambda: shop.published >= FIRST_ORDERS, f"{FIRST_ORDERS:,} orders are confirmed")
        claim = "orders are confirmed, billed, mailed, sent to the partner and seen by browsers"
        await shop.until(lambda: _all_flow(shop), claim)
        screen.proves(claim, True)
        screen.step("kill -9 of the server, under load")
        before = shop.published
        screen.say(f"Killed with {before:,} orders confirmed. Customers, billing, worker and browsers reconnect by themselves.")
        started = monotonic()
        await shop.server.die_and_return()
        await shop.until(lambda: shop.published > before, "customers can order again")
        screen.say(f"Back, with the next order confirmed, after {(monotonic() - started) / SECOND:.1f} s.")
        await shop.until(lambda: shop.published >= before + MORE_ORDERS, f"{MORE_ORDERS:,} more orders are confirmed")
    await shop.until(lambda: shop.ids <= shop.billed, "every confirmed order is billed")
    stored = (await shop.pubsub.overview()).topics["orders"]
    lost = len(shop.ids - shop.billed)
    counts = shop.published, stored, len(shop.billed), lost
    screen.table(["published", "stored", "billed", "lost"], [[f"{count:,}" for count in counts]])
    screen.proves(f"published {shop.published:,} = stored {stored:,}, lost 0", stored == shop.published and not lost, stored)


def _all_flow(shop: Shop) -> bool:
    return all(figure.total for figure in shop.figures() if "open" not in figure.name)


async def follow_a_mail(shop: Shop) -> None:
    """One mail fails, is explained, repaired and redriven."""
    screen = shop.screen
    screen.step("One mail fails: follow it")
    async with shop.selling():
        sent = await mailer.confirm_order.send(f"ann@{mailer.BROKEN_DOMAIN}", 4711)
        screen.say(f"confirm_order.send('ann@{mailer.BROKEN_DOMAIN}', 4711) -> {sent}")
        await _until_event(shop, sent, "dead_lettered")
        [letter] = [one for one in await shop.mail_queue.dead_letters() if one.message.message_id == sent]
        screen.say("Three attempts, then a dead letter, with its reason. Its life, by `penstock trace` or in the console:")
        screen.say(f"  {shop.server.url}/console/message/{sent}")
        _show_life(shop, await shop.pubsub.trace(sent))
        screen.proves(
            f"it is kept with its error: {letter.last_error}",
            (letter.reason, letter.attempts) == ("max_retries_exceeded", 3) and "550" in (letter.last_error or ""),
            letter,
        )
        screen.step("Repair the mail server, redrive")
        shop.repaired.touch()
        count = await shop.mail_queue.redrive()
        events = await _until_event(shop, sent, "acked")
        screen.say(f"{count} dead letter redriven. The same message, with the same id:")
        _show_life(shop, events[-3:])
        kinds = [event.kind for event in events]
        expected = ["published", *["leased", "nacked"] * 2, "leased", "dead_lettered", "redriven", "leased", "acked"]
        screen.proves("sent, and every step of its life is in the log", kinds == expected, kinds)


async def break_a_webhook(shop: Shop) -> None:
    """The partner's endpoint fails: the breaker opens, nothing is lost, and it recovers."""
    screen = shop.screen
    screen.step("The partner's webhook fails: its circuit breaker opens")
    async with shop.selling():
        shop.partner.behaviour = respond(503)
        screen.say("The endpoint answers 503 to every call. Everything else continues.")
        await _until_breaker(shop, "OPEN")
        billed = len(shop.billed)
        await shop.until(lambda: len(shop.billed) > billed + 200, "billing continues")
        screen.proves("the breaker is open: calls stop, webhooks wait in order, and 200 more orders were billed", True)
        screen.step("It recovers")
        shop.partner.behaviour = respond()
        await _until_breaker(shop, "CLOSED")
    await shop.until(
        lambda: shop.webhooks is not None and not shop.webhooks.depth + shop.webhooks.delayed + shop.webhooks.in_flight,
        "every webhook is delivered",
    )
    stats = await shop.webhook_queue.stats()
    done = [request.message_id for request in shop.partner.requests if request.status == 200]
    screen.proves(
        f"{stats.published_total:,} webhooks published, {len({*done}):,} delivered, 0 lost, 0 dead",
        (len({*done}), stats.dead_letters) == (stats.published_total, 0),
        (stats, len(done)),
    )


async def watch_in_browsers(shop: Shop) -> None:
    """Browsers get every order; one that was away gets what it missed."""
    screen = shop.screen
    screen.step(f"{BROWSERS} browsers watch, and one of them drops out")
    url = shop.server.url
    async with AsyncExitStack() as stack:
        pages: list[HubMessages] = []
        for number in range(BROWSERS):
            browser = await stack.enter_async_context(HubClient(url, address=f"@(demo/page-{number})"))
            pages.append(await stack.enter_async_context(browser.subscribe("orders/#")))
        async with HubClient(url, address="@(demo/train)") as train, train.subscribe("orders/#") as messages:
            async with shop.selling():
                [last] = await _some(messages, 1)
            position = messages.position
        async with shop.selling():
            await shop.until(lambda: shop.seen_by_browser > FIGURES, "orders flow")
        seen = [[message.data for message in await _some(page, FIGURES)] for page in pages]
        screen.proves(f"all {BROWSERS} pages saw the same orders, in the same order", all(one == seen[0] for one in seen), seen)
        async with HubClient(url, address="@(demo/train)") as train, train.subscribe("orders/#", since=position) as messages:
            missed = await _some(messages, FIGURES)
    first, found = last.data["order"] + 1, [message.data["order"] for message in missed]
    screen.say(f"The one in the train saw order {last.data['order']}, was away, and returned: it gets {found[0]}, {found[1]}, …")
    screen.proves("it gets exactly what it missed, from the log", found == [*range(first, first + FIGURES)], found)


async def run_pipeline(shop: Shop, spark: SparkInstallation) -> None:
    """Spark reads the shop's log: exactly once, even though its driver is killed."""
    screen = shop.screen
    await asyncio.to_thread(spark.wait)
    if missing := missing_for_spark():
        screen.step("The pipeline")
        screen.say(f"Skipped: it needs {missing}.")
        return
    pipeline = PipelineDemo(screen, shop.directory / "pipeline", Path(shop.directory / "metrics.html"))
    started = monotonic()
    shop.footer = lambda: f"Spark was started {(monotonic() - started) // SECOND} s ago; what it did follows above"
    async with shop.selling():
        await pipeline.grow(shop.server, shop)
    await pipeline.finish(shop.server, shop)
    screen.step("The last minutes as a chart")
    code, out, errors = await pipeline.command("show", "--minutes", "15", "--json")
    rows = json.loads(out or "[]")
    screen.proves("the metrics are in the lake", code == 0 and bool(rows), errors[-500:])
    windows = sorted({row["window_start"] for row in rows})
    for label, subscription, field in (("published", None, "published"), ("billed", "billing", "acked")):
        found = {
            row["window_start"]: row[field] for row in rows if row["stream"] == "orders" and row["subscription"] == subscription
        }
        values = [found.get(window, 0) for window in windows][-60:]
        screen.say(f"  {label:<10} {bars(values)}  {max(values, default=0):,} at most in 5 s")


def _show_life(shop: Shop, events: list[TraceEvent]) -> None:
    first = events[0].at
    shop.screen.table(
        ["after", "event", "attempt", "detail"],
        [[_after(event.at, first), event.kind, event.attempt or "", event.detail.get("error", "")] for event in events],
    )


def _after(at: datetime, first: datetime) -> str:
    return f"{(at - first).total_seconds():.2f} s"


async def _until_event(shop: Shop, message_id: str, kind: str) -> list[TraceEvent]:
    """The life of a message, as soon as it has an event of that kind."""
    deadline = monotonic() + PATIENCE * SECOND
    while True:
        events = await shop.pubsub.trace(message_id)
        if any(event.kind == kind for event in events):
            return events
        if monotonic() > deadline:
            raise ClaimFailed(f"{kind} within {PATIENCE:g} s (found: {[event.kind for event in events]})")
        await asyncio.sleep(0.1)


async def _until_breaker(shop: Shop, state: str) -> None:
    deadline = monotonic() + PATIENCE * SECOND
    while True:
        _, found = await asyncio.to_thread(call, shop.server, "GET", "/monitoring/circuit-breakers", None)
        if found.get(shop.partner.url, {"state": "CLOSED"})["state"] == state:
            return
        if monotonic() > deadline:
            raise ClaimFailed(f"the breaker is {state} within {PATIENCE:g} s (found: {found})")
        await asyncio.sleep(0.1)


async def _some(messages: HubMessages, number: int) -> list[HubMessage]:
    async with asyncio.timeout(PATIENCE):
        return [await messages.get() for _ in range(number)]
