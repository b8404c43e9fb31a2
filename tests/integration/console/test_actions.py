"""What one can do in the console, in a real browser, with its effect at the broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Message, QueueConfig, QueueManager
from penstock.access import Keyring, Verb
from penstock.client import HubClient
from penstock.clock import SystemClock
from penstock.testing.server import LocalServer
from penstock.testing.target import Target, in_turn, respond
from tests.integration.console.conftest import ShopServer
from tests.integration.console.visit import findings, open_page, press, shows, visit
from tests.integration.hub.chromium import CHROMIUM, Page
from tests.ports import free_port

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

STRANGE = "<img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>\u202e"


async def eventually(condition: Callable[[], bool]) -> None:
    """Return when something is true at the broker; a click is on its way there."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # the broker has no event for what a page asked of it
            await asyncio.sleep(0.01)


def queue(queues: QueueManager, name: str, count: int = 3) -> None:
    queues.create(name, QueueConfig(max_retries=0))
    for number in range(count):
        queues.publish(name, f"message {number}")


def kill(queues: QueueManager, name: str, error: str) -> str:
    """Make a dead letter of the next message of a queue; its id."""
    message = queues.consume(name)
    assert message is not None
    queues.nack(name, message.message_id, error=error)
    return message.message_id


async def confirm(page: Page, name: str) -> None:
    """Type the name that a dialog asks for."""
    await page.until("document.querySelector('dialog input[name=confirm]')")
    await page.type("dialog input[name=confirm]", name)


def test_a_queue_is_paused_resumed_purged_and_deleted(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queue(queues, "actions")

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/queues/actions") as page:
            await press(page, "Pause")
            await eventually(lambda: queues.stats("actions").paused)
            await shows(page, "paused")
            await press(page, "Resume")
            await eventually(lambda: not queues.stats("actions").paused)

            await press(page, "More for actions")
            await press(page, "Purge…")
            assert await page.run("document.querySelector('dialog button[type=submit]').disabled")
            assert await findings(page) == []
            await confirm(page, "actions")
            await press(page, "Purge")
            await eventually(lambda: queues.stats("actions").depth == 0)
            await shows(page, "Nothing waits here")

            await press(page, "More for actions")
            await press(page, "Delete…")
            await confirm(page, "action")
            assert await page.run("document.querySelector('dialog button[type=submit]').disabled")
            await confirm(page, "actions")
            await press(page, "Delete")
            await eventually(lambda: not queues.exists("actions"))
            await page.until("location.pathname === '/console/queues'")
            assert page.problems == []

    asyncio.run(scenario())


def test_figures_change_while_one_looks(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queue(queues, "live-figures", 1)

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/queues?filter=live-fig") as page:
            await shows(page, "live-figures")
            for number in range(6):
                await asyncio.to_thread(queues.publish, "live-figures", str(number))
            await page.until("[...document.querySelectorAll('td[data-label=Ready]')].some((cell) => cell.textContent === '7')")

    asyncio.run(scenario())


def test_a_dead_letter_is_inspected_and_redriven(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queue(queues, "letters")
    for number in range(3):
        kill(queues, "letters", f"timeout after {number} s")

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/dead?source=queue:letters") as page:
            await shows(page, "timeout after 2 s")
            await press(page, "Redrive…")
            await page.until("document.querySelector('dialog')?.innerText.includes('3 letters of letters match')")
            assert await findings(page) == []
            await press(page, "Redrive")
            await eventually(lambda: queues.stats("letters").depth == 1)
            await shows(page, "1 of 1 moved")

            await press(page, "Redrive…")
            await page.until("document.querySelector('dialog input[value=all]')")
            await page.run("document.querySelector('dialog input[value=all]').click()")
            await press(page, "Redrive")
            await eventually(lambda: queues.stats("letters").depth == 3)

            await press(page, "Take back")
            await page.until("document.querySelector('#toasts').innerText.includes(' taken back, 0 already delivered')")
            assert queues.stats("letters").dead_letters > 0
            assert page.problems == []

    asyncio.run(scenario())


def test_selected_letters_alone_are_redriven(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queue(queues, "selected")
    dead = [kill(queues, "selected", "refused") for _ in range(3)]

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/dead?source=queue:selected") as page:
            await shows(page, "refused")
            await page.run(f"document.querySelector('input[aria-label=\"Select {dead[1]}\"]').click()")
            await shows(page, "1 selected")
            await press(page, "Redrive…")
            await page.until("document.querySelector('dialog')?.innerText.includes('1 letter of selected')")
            await press(page, "Redrive")
            await eventually(lambda: queues.stats("selected").depth == 1)
            message = queues.peek("selected")
            assert message is not None
            assert message.message_id == dead[1]

    asyncio.run(scenario())


def test_new_messages_of_a_stream_appear_while_one_follows_it(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queue(queues, "followed-stream", 1)

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/queues/followed-stream?tab=browse") as page:
            await shows(page, "message 0")
            await press(page, "Tail")
            await shows(page, "Newest first, at most 5 a second")
            await asyncio.to_thread(queues.publish, "followed-stream", "just now")
            await shows(page, "just now")
            await press(page, "just now")
            await shows(page, "Its life")
            assert queues.stats("followed-stream").depth == 2
            assert page.problems == []

    asyncio.run(scenario())


def test_dead_letters_are_purged_after_their_name_was_typed(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queue(queues, "rubbish", 2)
    kill(queues, "rubbish", "no use")

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/dead?source=queue:rubbish") as page:
            await shows(page, "no use")
            await press(page, "More for rubbish")
            await press(page, "Purge…")
            await confirm(page, "rubbish")
            await press(page, "Purge")
            await eventually(lambda: queues.stats("rubbish").dead_letters == 0)
            assert queues.stats("rubbish").depth == 1

    asyncio.run(scenario())


def test_the_page_of_a_message_brings_it_back_and_follows_it(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queue(queues, "followed", 1)
    message_id = kill(queues, "followed", "SMTP 550")

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/message/{message_id}") as page:
            await shows(page, "Dead in followed")
            await shows(page, "SMTP 550")
            await press(page, "Redrive")
            await eventually(lambda: queues.stats("followed").depth == 1)
            await shows(page, "redriven")
            again = await asyncio.to_thread(queues.consume, "followed", "worker-7")
            assert again is not None
            await shows(page, "worker-7")
            await asyncio.to_thread(queues.ack, "followed", message_id)
            await page.until("document.querySelector('.verdict').innerText.includes('Done')")
            assert page.problems == []

    asyncio.run(scenario())


def test_what_is_published_arrives_as_it_was_typed(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queues.create("typed")
    numbers = '{"id": 12345678901234567890, "price": 1.0}'  # a browser cannot hold them

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/queues/typed?tab=publish") as page:
            await shows(page, "Publish to typed")
            await page.type("textarea[name=text]", numbers)
            await page.type("textarea[name=attributes]", "tenant=eu")
            await press(page, "Publish message")
            await shows(page, "Published:")
            message = queues.peek("typed")
            assert message is not None
            found = message.payload if isinstance(message.payload, str) else json.dumps(message.payload)
            assert json.loads(found) == json.loads(numbers)
            assert message.headers == {"tenant": "eu"}

            await open_page(page, "/console/queues/typed?tab=browse&text=1234567890123")
            await shows(page, "12345678901234567890")

    asyncio.run(scenario())


def test_strange_text_is_shown_as_the_text_it_is(devtools: str, shop: ShopServer) -> None:
    queues = shop.shop.queues
    queues.create("strange", QueueConfig(max_retries=0))
    queues.publish("strange", STRANGE, headers={"from": STRANGE})
    message_id = kill(queues, "strange", STRANGE)

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/dead?source=queue:strange") as page:
            for address in (None, f"/console/message/{message_id}", "/console/queues/strange?tab=browse"):
                if address is not None:
                    await open_page(page, address)
                await shows(page, "<img src=x")
                await shows(page, "\\u202e")
            assert "harmed" not in await page.run("document.title")
            assert await page.run("document.querySelectorAll('main img, main script').length") == 0
            assert page.problems == []

    asyncio.run(scenario())


def test_a_subscription_is_moved_after_a_preview(devtools: str, shop: ShopServer) -> None:
    topics = shop.shop.topics
    topics.register_topic("moved")
    topics.register_subscription("mover", "moved")
    topics.publish("moved", [Message(str(number).encode()) for number in range(5)])

    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/subscriptions/mover") as page:
            await press(page, "Seek…")
            await page.until("document.querySelector('dialog')")
            await page.run("document.querySelector('dialog select').value = 'offset'")
            await page.type("dialog input[name=to]", "3")
            await press(page, "Preview")
            await page.until("document.querySelector('dialog input[name=confirm]')")
            assert "settles 3" in await page.text("dialog")
            await confirm(page, "mover")
            await press(page, "Seek")
            await eventually(lambda: topics.stats("mover").backlog == 2)

    asyncio.run(scenario())


def test_filter_and_order_are_in_the_address_and_the_back_button_works(devtools: str, shop: ShopServer) -> None:
    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console/queues") as page:
            await shows(page, "thumbnails")
            await page.type("main input[type=search]", "mai")
            await page.until("location.search === '?filter=mai' && document.querySelectorAll('main tbody tr').length === 1")
            await page.type("main input[type=search]", "nothing like it")
            await shows(page, "Nothing matches the filter")
            await press(page, "Clear filter")
            await shows(page, "thumbnails")
            await page.run("[...document.querySelectorAll('th button')].find((one) => one.textContent === 'Queue').click()")
            await page.until("document.querySelector('th[aria-sort=ascending]')?.textContent.startsWith('Queue')")
            names = await page.until(
                "(() => { const all = [...document.querySelectorAll('main tbody td.name')].map((one) => one.textContent);"
                " return all.join() === [...all].sort().join() && all; })()"
            )
            assert "mail" in names
            await press(page, "mail")
            await shows(page, "The oldest messages")
            await page.run("history.back()")
            await page.until("location.search.includes('sort=name') && document.querySelector('th[aria-sort=ascending]')")

    asyncio.run(scenario())


def test_the_keyboard_is_enough(devtools: str, shop: ShopServer) -> None:
    async def scenario() -> None:
        async with visit(devtools, f"{shop.url}/console") as page:
            await shows(page, "Needs attention")
            for key in ("g", "q"):
                await page.press(key, code=ord(key.upper()))
            await page.until("document.querySelector('main').dataset.shows === '/console/queues'")
            await shows(page, "thumbnails")
            await page.press("j", code=74)
            first = await page.until("document.activeElement.closest('tbody tr') && document.activeElement.textContent")
            await page.press("j", code=74)
            await page.until(f"document.activeElement.textContent !== {json.dumps(first)}")
            await page.press("k", code=75)
            await page.enter()
            await page.until(f"location.pathname === {json.dumps('/console/queues/' + first)}")
            await page.press("/", code=191)
            await page.until("document.activeElement.id === 'find'")
            await page.call("Input.insertText", text=shop.shop.dead_mail)
            await page.enter()
            await shows(page, "Dead in mail")
            await page.run("document.activeElement.blur()")
            await page.press("p", code=80)
            await page.until("document.querySelector('#live').innerText.includes('paused')")
            await page.press("?", code=191)
            await page.until("document.querySelector('dialog')?.innerText.includes('next and previous row')")
            await page.press("Escape", code=27)
            await page.until("!document.querySelector('dialog')")

    asyncio.run(scenario())


def test_a_server_that_is_gone_leaves_the_last_data_and_is_found_again(devtools: str, tmp_path: Path) -> None:
    port = free_port()

    async def scenario() -> None:
        server = LocalServer(port=port, data_dir=tmp_path).start()
        try:
            QueueManager(broker=server.broker).create("kept")
            async with visit(devtools, f"{server.url}/console/queues") as page:
                await shows(page, "kept")
                await asyncio.to_thread(server.stop)
                await page.until("document.querySelector('#bar').innerText.includes('The server cannot be reached')")
                assert await page.run("document.body.classList.contains('stale')")
                await shows(page, "kept")
                server = await asyncio.to_thread(LocalServer(port=port, data_dir=tmp_path).start)
                QueueManager(broker=server.broker).create("new")
                await page.run("document.querySelector('#bar button')?.click()")
                await shows(page, "new")
        finally:
            await asyncio.to_thread(server.stop)

    asyncio.run(scenario())


def test_a_token_is_asked_for_and_what_it_lacks_is_named(devtools: str, tmp_path: Path) -> None:
    secret = Keyring(tmp_path / "tokens").create("reader", SystemClock().now(), verbs=(Verb.READ,))

    async def scenario() -> None:
        with LocalServer(auth="token", token_file=tmp_path / "tokens") as server:
            queue(QueueManager(broker=server.broker), "guarded")
            async with visit(devtools, f"{server.url}/console/queues/guarded") as page:
                await shows(page, "This server asks for a token")
                await page.type("input[name=token]", "pk_wrong")
                await press(page, "Open the console")
                await page.until("document.querySelector('main [role=alert]')")
                await page.type("input[name=token]", secret)
                await press(page, "Open the console")
                await shows(page, "The oldest messages")
                button = "[...document.querySelectorAll('main button')].find((one) => one.textContent.startsWith('Pause'))"
                await page.until(f"{button}?.disabled")
                assert await page.run(f"{button}.title") == "Your token lacks the verb manage"
                assert await findings(page) == []

    asyncio.run(scenario())


def test_messages_of_the_hub_are_shown_while_one_listens(devtools: str, shop: ShopServer) -> None:
    async def scenario() -> None:
        async with (
            visit(devtools, f"{shop.url}/console/hub") as page,
            HubClient(shop.url, address="@(shop/till)") as hub,
        ):
            await shows(page, "Listen to a topic")
            await page.type("main input[name=topic]", "sales/#")
            await press(page, "Listen")
            await shows(page, "Messages of sales/# appear here")
            await hub.publish("sales/eu", {"id": 12345678901234567890, "text": STRANGE})
            await shows(page, "12345678901234567890")
            assert await page.run("document.title") == "Hub · Penstock"
            assert await findings(page) == []
            await press(page, "Stop")
            await shows(page, "Stopped")
            assert page.problems == []

    asyncio.run(scenario())


def test_a_pool_is_paused_and_a_failed_message_is_tried_now(devtools: str, tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    pools = [{"code": "PARTNERS", "concurrency": 2}]
    file.write_text(json.dumps({"queues": [{"queueUri": "penstock:///queues/hooks"}], "processingPools": pools}))

    async def scenario(target: Target, server: LocalServer) -> None:
        queues = QueueManager(broker=server.broker)
        await eventually(lambda: queues.exists("hooks"))  # the router makes it
        async with visit(devtools, f"{server.url}/console/router") as page:
            await shows(page, "PARTNERS")
            await press(page, "Pause")
            await shows(page, "paused")
            call = {"id": "order-1", "poolCode": "PARTNERS", "mediationTarget": f"{target.url}/orders", "messageGroupId": "g"}
            queues.publish("hooks", call)
            await shows(page, "1 message")
            assert target.requests == []
            await press(page, "Resume")
            await shows(page, "redirects are not followed")
            assert await findings(page) == []

            await press(page, "Retry now")
            await asyncio.to_thread(target.wait_for, 2)
            await eventually(lambda: queues.stats("hooks").acked_total == 1)
            await shows(page, "No message is in the router")
            assert page.problems == []

    with (
        Target(in_turn(respond(302), respond())) as target,
        LocalServer(router=str(file), router_allow=("127.0.0.1",)) as server,
    ):
        asyncio.run(scenario(target, server))


def test_a_token_is_revoked(devtools: str, tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "tokens")
    secret = keyring.create("operator", SystemClock().now())
    keyring.create("leaver", SystemClock().now(), verbs=(Verb.READ,))
    leaver = next(token.id for token in keyring.list() if token.name == "leaver")

    async def scenario() -> None:
        with LocalServer(auth="token", token_file=tmp_path / "tokens") as server:
            async with visit(devtools, f"{server.url}/console/settings") as page:
                await shows(page, "This server asks for a token")
                await page.type("input[name=token]", secret)
                await press(page, "Open the console")
                await shows(page, "leaver")
                await press(page, "More for leaver")
                await press(page, "Revoke…")
                await confirm(page, leaver)
                await press(page, "Revoke")
                await page.until("!document.querySelector('main').innerText.includes('leaver')")
                assert [token.name for token in Keyring(tmp_path / "tokens").list()] == ["operator"]

    asyncio.run(scenario())
