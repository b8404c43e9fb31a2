"""A real browser for tests: headless Chromium, spoken to over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

from penstock.clock import monotonic
from penstock.durations import SECOND

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, where the sandbox does not
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--window-size=1280,900",
)
SECONDS = 60


@contextmanager
def chromium() -> Iterator[str]:
    """A browser with a profile of its own; the address of its DevTools."""
    assert CHROMIUM is not None, "install chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            place, deadline = Path(folder) / "DevToolsActivePort", monotonic() + SECONDS * SECOND
            while not place.exists() or len(found := place.read_text().splitlines()) < 2:
                assert process.poll() is None, "chromium has ended"
                assert monotonic() < deadline, "chromium does not begin"
                threading.Event().wait(0.02)
            yield f"ws://127.0.0.1:{found[0]}{found[1]}"
        finally:
            process.terminate()
            process.wait()


class Browser:
    """A visit of a browser: its pages are closed at the end. Use it with `async with`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._calls = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._contexts: list[str] = []

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(self._address, max_msg_size=0)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        for context in self._contexts:
            await self.call("Target.disposeBrowserContext", browserContextId=context)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._socket.close()
        await self._session.close()

    async def open(self, url: str, *, dark: bool = False) -> Page:
        """A page of its own, as another visitor would have: nothing is shared with other pages."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        self._contexts.append(context)
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        await page.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        )
        await page.go(url)
        return page

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """What the browser answers."""
        number = next(self._calls)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        told = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        await self._socket.send_str(json.dumps(told))
        async with asyncio.timeout(SECONDS):
            return await answer

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if not answer.done():
                    if "error" in said:
                        answer.set_exception(RuntimeError(said["error"]["message"]))
                    else:
                        answer.set_result(said["result"])
            elif said.get("sessionId") in self._pages:
                self._pages[said["sessionId"]].told(said["method"], said["params"])


class Page:
    """One page. `problems` are what its console says went wrong."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded = asyncio.Event()
        self.problems: list[str] = []

    def told(self, event: str, about: Any) -> None:
        """Something happened on it."""
        match event:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded" if about["entry"]["level"] == "error":
                self.problems.append(about["entry"]["text"])

    async def call(self, method: str, **parameters: Any) -> Any:
        """What the browser answers about this page."""
        return await self._browser.call(method, self._session, **parameters)

    async def go(self, url: str) -> None:
        """Open another address, and return when it is loaded."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(SECONDS):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """The value of an expression, waited for."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, condition: str) -> Any:
        """The value of an expression as soon as it is true."""
        script = (
            "new Promise((done, fail) => { const end = Date.now() + %d; (function look() { const found = (%s);"
            " if (found) done(found); else if (Date.now() > end) fail(new Error('never: ' + document.body.innerText));"
            " else setTimeout(look, 20); })(); })"
        )
        return await self.run(script % (SECONDS * 1000 - 2000, condition))

    async def type(self, selector: str, text: str) -> None:
        """Put text into a field, as a person does: into what has the focus."""
        await self.run(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.focus(); field.select(); }})()"
        )
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, code: int, modifiers: int = 0) -> None:
        """Press a key where the focus is."""
        shared = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text="\r" if key == "Enter" else "", **shared)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    async def enter(self) -> None:
        """Press Enter where the focus is."""
        await self.press("Enter", code=13)

    async def click(self, selector: str) -> None:
        """Click on something that can be seen."""
        place = await self.run(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.scrollIntoView({{block: 'nearest'}});"
            " const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for event in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=event, x=place[0], y=place[1], button="left", clickCount=1)

    async def text(self, selector: str) -> str:
        """What something says."""
        found: str = await self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    async def picture(self) -> bytes:
        """What it looks like, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])
