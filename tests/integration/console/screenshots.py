"""`make screenshots`: the pictures of the console that README and documentation show, of a small shop at a fixed time.

python -m tests.integration.console.screenshots FOLDER
"""

from __future__ import annotations

import asyncio
import math
import sys
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from penstock.api.queue_manager import QueueManager
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.console.shop import Shop, fill
from tests.integration.console.visit import shows, visit
from tests.integration.hub.chromium import chromium

WHEN = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
STEPS, STEP_SECONDS = 180, 5
"""What the chart shows: 15 minutes."""
SAMPLE_SECONDS = 0.7
"""A sample that is younger than half a second is used again, by a clock that this program does not hold."""
MAX_BYTES = 150_000


async def trade(server: LocalServer, queues: QueueManager, clock: ManualClock) -> None:
    """A quarter of an hour of receipts, up and down, with a short pause of the workers."""
    queues.create("receipts")
    for step in range(STEPS):
        rate = 26 + 12 * math.sin(step / 14) + 5 * math.sin(step / 3)
        for _ in range(int(rate * STEP_SECONDS / 5)):
            queues.publish("receipts", "{}")
        if not 120 < step < 132:
            for message in queues.consume_many("receipts", "worker-1", max_messages=60, prefetch=200):
                queues.ack("receipts", message.message_id, consumer_id="worker-1")
        clock.advance(STEP_SECONDS)
        with await asyncio.to_thread(urllib.request.urlopen, f"{server.url}/console/api/overview"):
            await asyncio.sleep(SAMPLE_SECONDS)


async def take(devtools: str, server: LocalServer, shop: Shop, folder: Path) -> None:
    """Write the pictures."""
    pictures = (
        ("console-overview", "/console", "no consumer", 660),
        ("console-message", f"/console/message/{shop.dead_mail}", "max_retries_exceeded", 900),
        ("console-dead-letters", "/console/dead?source=queue:mail", "SMTP 550 mailbox 0", 760),
    )
    for name, address, text, height in pictures:
        async with visit(devtools, "about:blank") as page:
            await page.call("Emulation.setTimezoneOverride", timezoneId="UTC")
            size = {"width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **size)
            await page.call("Emulation.setScrollbarsHidden", hidden=True)
            await page.go(server.url + address)
            await shows(page, text)
            await page.until("document.getAnimations().length === 0")
            picture = await page.picture()
        assert len(picture) < MAX_BYTES, f"{name} has {len(picture)} bytes"
        (folder / f"{name}.png").write_bytes(picture)


async def main(folder: Path) -> None:
    clock = ManualClock(WHEN)
    with LocalServer(clock=clock) as server, chromium() as devtools:
        shop = fill(server.broker, clock.advance, backoff=10)
        await trade(server, shop.queues, clock)
        shop.queues.consume_many("thumbnails", "worker-2", max_messages=3, ack_deadline=600)
        await take(devtools, server, shop, folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(target))
