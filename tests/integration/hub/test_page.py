"""The hub in a real browser: the page that the server serves at /hub, and the page in examples/ that a developer would copy."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.client import HubClient
from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.hub.chromium import CHROMIUM, Browser, Page, chromium
from tests.ports import free_port

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

EXAMPLES = Path(__file__).parents[3] / "examples" / "hub"
STRANGE = (
    "<img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>",
    "</pre></li><h1>big</h1>",
    "a\u202etxt.exe \x00 \x1b[31m \U0001f680",
    "{{constructor.constructor('x')()}} ${7*7} &lt;b&gt;",
)


@pytest.fixture(scope="session")
def devtools() -> Iterator[str]:
    with chromium() as address:
        yield address


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """Shared: every test has topics of its own."""
    with LocalServer() as server:
        yield server


@asynccontextmanager
async def pages(devtools: str, url: str, topic: str, count: int = 1) -> AsyncIterator[list[Page]]:
    """Pages of the server, each connected and listening to a topic."""
    async with Browser(devtools) as browser:
        opened = [await browser.open(f"{url}/hub") for _ in range(count)]
        for page in opened:
            await page.until("document.querySelector('#status').textContent === 'connected'")
            await listen(page, topic)
            await page.until("document.querySelector('#topics .who')")
        yield opened


async def listen(page: Page, topic: str) -> None:
    await page.type("#pattern", topic)
    await page.enter()


async def publish(page: Page, data: str, *, topic: str) -> None:
    for selector, text in (("#topic", topic), ("#type", "line"), ("#data", data)):
        await page.type(selector, text)
    await page.click("#send")


async def shown(page: Page, count: int) -> list[str]:
    """The data of the messages on a page, the newest first, as soon as there are so many."""
    await page.until(f"document.querySelectorAll('#messages pre').length >= {count}")
    found: list[str] = await page.run("[...document.querySelectorAll('#messages pre')].map((node) => node.textContent)")
    return found


def test_two_pages_see_what_either_publishes_and_who_is_there(devtools: str, server: LocalServer) -> None:
    async def scenario() -> None:
        async with pages(devtools, server.url, "chat/#", 2) as (ann, bob):
            names = [await page.text("#me") for page in (ann, bob)]
            for page, other in ((ann, names[1]), (bob, names[0])):
                await page.until(f"document.querySelector('#topics').innerText.includes({other!r})")

            await publish(ann, '{"text": "hello"}', topic="chat/lobby")
            await bob.until("document.querySelector('#messages pre')")
            await publish(bob, "good morning", topic="chat/garden")

            for page in (ann, bob):
                assert await shown(page, 2) == ["good morning", '{"text": "hello"}']
                facts = (await page.text("#messages li:last-child .facts")).split()
                assert facts[1:] == ["chat/lobby", "line", names[0], "#0"]
            await bob.until("document.querySelector('#published').textContent === 'reached 2 subscribers'")

            await bob.click("#topics button")
            await ann.until(f"!document.querySelector('#topics').innerText.includes({names[1]!r})")
            assert ann.problems + bob.problems == []

    asyncio.run(scenario())


def test_strange_text_is_shown_as_the_text_it_is(devtools: str, server: LocalServer) -> None:
    async def scenario() -> None:
        async with pages(devtools, server.url, "strange") as (page,), HubClient(server.url) as hub:
            for text in STRANGE:
                await hub.publish("strange", text, type=text[:200])
                await hub.publish("strange", {text: [text]}, type="object")

            found = await shown(page, 2 * len(STRANGE))

            assert [text for text in reversed(found) if not text.startswith('{"')] == [*STRANGE]
            assert await page.run("document.title") == "Penstock hub"
            assert await page.run("document.querySelectorAll('#messages img, #messages script, #messages h1').length") == 0
            assert page.problems == []

    asyncio.run(scenario())


@pytest.mark.long
def test_after_the_server_was_killed_a_page_comes_back_and_shows_exactly_what_it_missed(devtools: str, tmp_path: Path) -> None:
    port = free_port()

    def start() -> ServerProcess:
        return ServerProcess(tmp_path / "data", port=port, hub_history="chat").start()

    async def scenario(server: ServerProcess) -> ServerProcess:
        async with pages(devtools, server.url, "chat/lobby") as (page,):
            async with HubClient(server.url) as hub:
                await hub.publish("chat/lobby", "before")
            await shown(page, 1)

            await asyncio.to_thread(server.kill)
            await page.until("document.querySelector('#status').textContent.startsWith('reconnecting')")
            server = await asyncio.to_thread(start)
            async with HubClient(server.url) as hub:
                for number in range(3):
                    await hub.publish("chat/lobby", f"missed {number}")
                await page.run("document.querySelector('#now').click()")  # instead of waiting
                await page.until("document.querySelector('#status').textContent === 'connected'")
                await hub.publish("chat/lobby", "after")

            assert await shown(page, 5) == ["after", "missed 2", "missed 1", "missed 0", "before"]
            assert await page.run("document.querySelectorAll('#messages .notice').length") == 0
        return server

    server = start()
    try:
        server = asyncio.run(scenario(server))
    finally:
        server.stop()


def test_a_page_shows_that_the_server_stops_what_it_missed_and_what_cannot_be_brought_back(devtools: str, tmp_path: Path) -> None:
    port = free_port()

    def start() -> LocalServer:
        return LocalServer(port=port, data_dir=tmp_path, hub_history=("chat",)).start()

    async def scenario() -> None:
        server = start()
        try:
            async with pages(devtools, server.url, "chat/lobby") as (page,):
                await listen(page, "news")
                await page.until("document.querySelectorAll('#topics .who').length === 2")
                async with HubClient(server.url) as hub:
                    await hub.publish("chat/lobby", "chat before")
                    await hub.publish("news", "news before")
                await shown(page, 2)
                await page.run(
                    "(() => { window.problems = []; const problem = document.querySelector('#problem');"
                    " new MutationObserver(() => problems.push(problem.textContent)).observe(problem, { childList: true }); })()"
                )

                await asyncio.to_thread(server.stop)
                await page.until("problems.some((text) => text.startsWith('the server is stopping'))")
                await page.until("problems.includes('the server cannot be reached')")
                assert not await page.run("document.querySelector('#now').hidden")
                await publish(page, "typed without a connection", topic="news")
                server = await asyncio.to_thread(start)
                async with HubClient(server.url) as hub:
                    await hub.publish("chat/lobby", "missed")
                    await page.run("document.querySelector('#now').click()")  # instead of waiting

                found = await shown(page, 4)
                assert {*found} == {"typed without a connection", "missed", "news before", "chat before"}
                notices: list[str] = await page.run(
                    "[...document.querySelectorAll('#messages .notice')].map((one) => one.textContent)"
                )
                assert [notice.partition(" may be missing")[0] for notice in notices] == ["Messages of news"]
        finally:
            await asyncio.to_thread(server.stop)

    asyncio.run(scenario())


def test_a_page_whose_address_is_taken_says_so_and_does_not_fight_for_it(devtools: str, server: LocalServer) -> None:
    async def scenario() -> None:
        async with pages(devtools, server.url, "taken") as (page,), HubClient(server.url, address=await page.text("#me")):
            await page.until("document.querySelector('#status').textContent === 'disconnected'")

            assert "took this address: choose another one" in await page.text("#problem")

    asyncio.run(scenario())


def test_what_is_typed_is_sent_as_it_is_and_what_is_wrong_with_it_is_said(devtools: str, server: LocalServer) -> None:
    async def scenario() -> None:
        async with (
            pages(devtools, server.url, "typed") as (page,),
            HubClient(server.url) as hub,
            hub.subscribe("typed") as messages,
        ):
            numbers = '{"id": 12345678901234567890, "price": 1.0}'  # a browser cannot hold them
            await publish(page, numbers, topic="typed")
            assert await shown(page, 1) == [numbers]
            assert (await messages.get(60)).data == {"id": 12345678901234567890, "price": 1.0}

            await publish(page, '{"id": 1', topic="typed")
            assert (await shown(page, 2))[0] == '{"id": 1'
            await page.until(
                "document.querySelector('#published').textContent === 'reached 2 subscribers, as text: this is no JSON'"
            )

            await listen(page, "a//#/b")
            assert "topic is required" in await page.until("document.querySelector('#topic-note:not([hidden])')?.textContent")
            assert await page.run("document.querySelectorAll('#topics .topic').length") == 1

    asyncio.run(scenario())


def test_a_topic_that_is_added_while_the_page_connects_is_listened_to_and_one_that_is_added_twice_stays(
    devtools: str, server: LocalServer
) -> None:
    async def scenario() -> None:
        async with pages(devtools, server.url, "early") as (page,), HubClient(server.url) as hub:
            for _ in range(2):
                await page.run(
                    "(() => { document.querySelector('#connect').click(); document.querySelector('#pattern').value = 'late';"
                    " document.querySelector('#subscription').requestSubmit(); })()"
                )
                await page.until("document.querySelectorAll('#topics .who').length === 2")
            await hub.publish("late", "heard")
            await hub.publish("early", "last")

            assert await shown(page, 2) == ["last", "heard"]
            assert page.problems == []

    asyncio.run(scenario())


CONTRAST = """(() => {
  const light = (rgb) => rgb.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const node = document.querySelector(".who li"), found = [];
  for (let hue = 0; hue < 360; hue += 5) {
    node.style.setProperty("--hue", hue);
    const style = getComputedStyle(node);
    const [dim, bright] = [light(style.color), light(style.backgroundColor)].sort((a, b) => a - b);
    found.push((bright + 0.05) / (dim + 0.05));
  }
  return Math.min(...found);
})()"""
"""How well the name of an actor can be read, whatever colour it has: WCAG wants 4.5."""


def test_names_of_actors_can_be_read_in_every_colour(devtools: str, server: LocalServer) -> None:
    async def scenario() -> None:
        async with pages(devtools, server.url, "colours") as (page,):
            for scheme in ("light", "dark"):
                await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                assert await page.run(CONTRAST) >= 4.5, scheme

    asyncio.run(scenario())


@contextmanager
def website(folder: Path) -> Iterator[str]:
    """Another origin, which serves the files of a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=site.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{site.server_port}"
    finally:
        site.shutdown()
        thread.join()
        site.server_close()


def test_the_example_chats_from_an_origin_of_its_own_and_misses_nothing(devtools: str) -> None:
    async def scenario(site: str, url: str) -> None:
        async with Browser(devtools) as browser, HubClient(url) as client:
            ann, bob = [await browser.open(f"{site}/?hub={quote(url.replace('http', 'ws') + '/ws')}") for _ in range(2)]
            for page in (ann, bob):
                await page.until("document.querySelector('p').textContent.startsWith('in chat/lobby as')")
            await ann.type("input", "hello <b>bob</b>")
            await ann.enter()
            for page in (ann, bob):
                assert (await page.until("document.querySelector('li')?.textContent")).endswith("): hello <b>bob</b>")

            await bob.run("window.old = socket; old.close()")
            await bob.until("old.readyState === WebSocket.CLOSED")
            await ann.type("input", "are you there?")
            await ann.enter()
            await bob.until("document.querySelector('li').textContent.endsWith('are you there?')")
            # What others say in other words is shown as it is, and only what was said there.
            await client.publish("chat/lobby", {"text": "one"})
            await client.broadcast({"text": "to everybody"})
            await client.publish("chat/lobby", "two")
            await client.publish("chat/lobby", None)

            await bob.until("document.querySelectorAll('li').length >= 5")
            said = await bob.run("[...document.querySelectorAll('li')].map((node) => node.textContent.split('): ')[1])")
            assert said == ["null", '"two"', "one", "are you there?", "hello <b>bob</b>"]
            assert ann.problems + bob.problems == []

    with website(EXAMPLES) as site, LocalServer(hub_history=("chat",), hub_origins=(site,)) as server:
        asyncio.run(scenario(site, server.url))


def test_a_page_of_an_origin_that_was_not_allowed_does_not_connect(devtools: str, server: LocalServer) -> None:
    async def scenario(url: str) -> None:
        async with Browser(devtools) as browser:
            page = await browser.open(url)

            assert await page.until("document.querySelector('p').textContent.startsWith('no connection')")

    with website(EXAMPLES) as site:
        asyncio.run(scenario(f"{site}/?hub={quote(server.url.replace('http', 'ws') + '/ws')}"))
