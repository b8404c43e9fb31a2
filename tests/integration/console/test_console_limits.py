"""What the console keeps from tokens, and from other consoles: attributes, places in the list, time."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock import Message, MessageQueue, QueueManager
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.durations import DAY
from penstock.server.console import live
from penstock.testing.server import LocalServer
from tests.integration.console.visit import PHONE, shows, visit

pytestmark = pytest.mark.server

PATIENCE = 60.0
MakeToken = Callable[..., str]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[LocalServer, Keyring, MakeToken]]:
    """A server, its tokens, and what makes one."""
    keyring = Keyring(tmp_path / "tokens.json")

    def make(*verbs: Verb, **limits: Any) -> str:
        return keyring.create("test", SystemClock().now(), verbs=verbs, **limits)

    make(Verb.READ)  # the file is there when the server starts
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as server:
        yield server, keyring, make


async def ask(session: aiohttp.ClientSession, server: LocalServer, path: str, body: Any = None, token: str | None = None) -> Any:
    """The answer to a question, or to an action if there is a body; a new token is known within a second."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with asyncio.timeout(PATIENCE):
        while True:
            method = "GET" if body is None else "POST"
            async with session.request(method, f"{server.url}/console/api/{path}", json=body, headers=headers) as answer:
                if answer.status != 401:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()


def test_readers_of_the_log_are_named_to_those_whose_token_covers_everything(
    secured: tuple[LocalServer, Keyring, MakeToken],
) -> None:
    async def run() -> None:
        server, _, make = secured
        MessageQueue(broker=server.broker).register_topic("orders")
        long_ago = SystemClock().now() - 400 * DAY
        server.broker.cursors.advance("lake", {"orders": 0}, long_ago, True)
        async with aiohttp.ClientSession() as session:
            named = {}
            for name, token in {"all": make(Verb.READ), "some": make(Verb.READ, patterns=["orders*"])}.items():
                found = await ask(session, server, "overview", token=token)
                named[name] = [row["name"] for row in found["attention"] if row["kind"] == "cursor"]
        assert named == {"all": ["lake"], "some": []}

    asyncio.run(run())


def test_attributes_are_for_those_who_may_consume(secured: tuple[LocalServer, Keyring, MakeToken]) -> None:
    async def run() -> None:
        server, _, make = secured
        topics, queues = MessageQueue(broker=server.broker), QueueManager(broker=server.broker)
        topics.register_topic("orders")
        topics.publish("orders", [Message(b"x", {"api-key": "secret", "penstock.source_message_id": "1"})])
        queues.create("mail")
        queues.publish("mail", {"to": "Ann"}, headers={"api-key": "secret"})
        taken = queues.consume("mail", "w")
        assert taken is not None
        queues.nack("mail", taken.message_id, False, error="550")
        reader, consumer = make(Verb.READ), make(Verb.READ, Verb.CONSUME)

        async with aiohttp.ClientSession() as session:

            async def seen(token: str) -> list[dict[str, str]]:
                letters = await ask(session, server, "dead/letters?source=queue:mail", token=token)
                stored = await ask(session, server, "streams/topic/orders/messages/0", token=token)
                life = await ask(session, server, f"messages/{taken.message_id}", token=token)
                return [letters["rows"][0]["attributes"], stored["attributes"], life["message"]["attributes"]]

            own = {"penstock.source_message_id": "1"}
            assert await seen(reader) == [{}, own, {}]
            assert await seen(consumer) == [{"api-key": "secret"}, {"api-key": "secret", **own}, {"api-key": "secret"}]

    asyncio.run(run())


def test_the_command_for_a_message_is_safe_to_paste() -> None:
    async def run() -> None:
        with LocalServer() as server:
            async with aiohttp.ClientSession() as session:
                found = await ask(session, server, "messages/x;%20rm%20-rf%20~")
        assert found["command"] == "penstock trace 'x; rm -rf ~'"

    asyncio.run(run())


def test_two_redrives_of_the_same_letters_count_each_letter_once(tmp_path: Path) -> None:
    async def run() -> None:
        with LocalServer(data_dir=tmp_path) as server:
            queues = QueueManager(broker=server.broker)
            queues.create("mail")
            for number in range(150):
                queues.publish("mail", {"n": number})
                taken = queues.consume("mail", "w")
                assert taken is not None
                queues.nack("mail", taken.message_id, False, error="550")
            async with aiohttp.ClientSession() as session:
                selection = (await ask(session, server, "dead/preview", {"source": "queue:mail"}))["selection"]
                begun = await asyncio.gather(*(ask(session, server, "dead/redrive", {"selection": selection}) for _ in range(2)))
                async with asyncio.timeout(PATIENCE):
                    jobs = begun
                    while any(job["state"] == "running" for job in jobs):
                        jobs = (await ask(session, server, "jobs"))["jobs"]
                assert sum(job["moved"] for job in jobs) == 150
                taken_back = [await ask(session, server, f"jobs/{job['id']}/take-back", {}) for job in begun]
        assert sum(job["taken_back"] for job in taken_back) == 150
        assert all(job["text"].endswith(", 0 already delivered") for job in taken_back)

    asyncio.run(run())


def test_consoles_that_connect_together_are_not_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(live, "MAX_CONNECTIONS", 2)
        with LocalServer() as server:
            async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE):
                sockets = [await session.ws_connect(f"{server.url}/console/live") for _ in range(4)]
                first = []
                for socket in sockets:
                    await socket.send_json({})
                    first.append(await socket.receive_json())
                assert [frame["type"] for frame in first] == ["welcome", "welcome", "error", "error"]
                assert first[2]["error"]["reason"] == "too_many_consoles"
                assert (await sockets[2].receive()).data == live.TRY_LATER

    asyncio.run(run())


def test_a_revoked_console_that_does_not_read_delays_no_other(
    secured: tuple[LocalServer, Keyring, MakeToken], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        server, keyring, make = secured
        silent, watching = make(Verb.READ), make(Verb.READ)
        refused = asyncio.Event()
        here = asyncio.get_running_loop()

        async def wait(*_: object) -> None:
            """As for a client that does not read."""
            here.call_soon_threadsafe(refused.set)
            await asyncio.Event().wait()

        monkeypatch.setattr(live._Socket, "refuse", wait)
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE):
            sockets = []
            for token in (silent, watching):
                await ask(session, server, "session", token=token)
                sockets.append(await session.ws_connect(f"{server.url}/console/live"))
                await sockets[-1].send_json({"token": token})
                await sockets[-1].receive()
                await sockets[-1].send_json({"watch": {"view": "overview"}})
            keyring.revoke(silent.split("_")[1])
            while not refused.is_set():
                await sockets[1].receive()
            for _ in range(3):
                assert (await sockets[1].receive_json())["type"] == "snapshot"

    asyncio.run(run())


def test_long_words_of_others_do_not_widen_a_page(devtools: str) -> None:
    async def run() -> None:
        with LocalServer() as server:
            queues, name = QueueManager(broker=server.broker), "q" * 256
            queues.create(name)
            queues.publish(name, "x" * 5_000, headers={"h" * 200: "v" * 5_000})
            queues.publish(name, "waits")
            taken = queues.consume(name, "w" * 100)
            assert taken is not None
            queues.nack(name, taken.message_id, False, error="e" * 5_000)
            addresses = [
                "/",
                "/console/queues",
                f"/console/queues/{name}",
                f"/console/message/{taken.message_id}",
                "/console/dead",
            ]
            for width in (1280, PHONE):
                async with visit(devtools, server.url, width=width) as page:
                    for address in addresses:
                        await page.go(server.url + address)
                        await shows(page, "eeee" if "message" in address or "dead" in address else "qqqq")
                        assert await page.run("document.documentElement.scrollWidth") <= width, address

    asyncio.run(run())
