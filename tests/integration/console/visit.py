"""A visit to the console: a page of the browser, and what an accessibility check finds on it."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.hub.chromium import Browser, Page
from tests.node.modules import node_modules

PHONE = 360


@functools.cache
def _axe() -> str:
    return (node_modules() / "axe-core" / "axe.min.js").read_text()


@asynccontextmanager
async def visit(devtools: str, url: str, *, dark: bool = False, width: int = 1280) -> AsyncIterator[Page]:
    """A page of the console, when it is live."""
    async with Browser(devtools) as browser:
        page = await browser.open("about:blank", dark=dark)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        await page.go(url)
        yield page


async def shows(page: Page, text: str) -> None:
    """Return when the page shows a text."""
    await page.until(f"document.querySelector('main').innerText.includes({json.dumps(text)})")


async def press(page: Page, name: str) -> None:
    """Click the button or link with this text or label, as soon as it is there and may be pressed."""
    find = (
        "[...document.querySelectorAll('main button, main a, dialog button, .menu button')].find((one) => !one.disabled"
        f" && ((one.getAttribute('aria-label') ?? one.textContent).trim() === {json.dumps(name)}))"
    )
    await page.until(f"(() => {{ const one = {find}; one?.click(); return one !== undefined; }})()")


async def open_page(page: Page, address: str) -> None:
    """Go to another page of the console without loading it again."""
    await page.run(f"(async () => (await import('/console/static/app.js')).navigate({json.dumps(address)}))()")
    await page.until(f"document.querySelector('main').dataset.shows === {json.dumps(address)}")


async def findings(page: Page, rules: str | None = None) -> list[Any]:
    """What axe-core calls serious or critical, in all of its rules or in one."""
    options = {} if rules is None else {"runOnly": {"type": "rule", "values": [rules]}}
    if not await page.run("typeof axe === 'object'"):
        await page.run(f"{_axe()};0")
    found: list[Any] = await page.run(
        f"axe.run({json.dumps(options)}).then("
        "(result) => result.violations.filter((one) => ['serious', 'critical'].includes(one.impact))"
        ".map((one) => [one.id, one.nodes[0].target.join(' '), one.nodes[0].failureSummary]))"
    )
    return found
