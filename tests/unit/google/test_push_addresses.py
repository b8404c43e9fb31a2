"""Where push connects to, over real sockets: a server with tokens does not reach into its own network for whoever has one."""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from penstock.access import Keyring
from penstock.clock import SystemClock
from penstock.google.core.push import PushRequest
from penstock.google.core.push_endpoints import Endpoints
from penstock.google.push_client import NOT_ALLOWED, Answer, Outcome, PushClient
from penstock.testing.server import LocalServer
from tests.integration.google.real_client import eventually
from tests.integration.push_endpoint import Endpoint

P = "/v1/projects/demo"
REFUSED = Answer(Outcome.UNREACHABLE, NOT_ALLOWED)
INSIDE = "hooks.inside.example"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def leads_to(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of every name: the test's to change. Stands for a DNS server that a stranger runs."""
    addresses = ["127.0.0.1"]

    class Dns(AbstractResolver):
        def __init__(self, **_: Any) -> None:
            pass

        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in addresses
            ]

        async def close(self) -> None:
            pass

    monkeypatch.setattr(aiohttp.connector, "DefaultResolver", Dns)
    return addresses


def post(url: str, *patterns: str, public_only: bool = True, token: str | None = None) -> Answer:
    async def run() -> Answer:
        client = PushClient(Endpoints(patterns or ("*",), public_only=public_only))
        try:
            return await client.post(url, PushRequest(b"s3cret", {}), token, 5.0)
        finally:
            await client.close()

    return asyncio.run(run())


# ── the client ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_spelling_leads_inside(endpoint: Endpoint, subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "127.0.0.1",
        "localhost",
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "[::ffff:127.0.0.1]",
        "[::1]",
        "[::]",
        "0.0.0.0",
        "\uff11\uff12\uff17.0.0.1",
        "127\u30020\u30020\u30021",
        "127.0.0.%31",
    ]
    for host in rows:
        with subtests.test(host=host):
            answer = post(f"http://{host}:{endpoint.port}/")

            assert answer.outcome is Outcome.UNREACHABLE
            assert not endpoint.posts.items


def test_a_name_that_leads_inside(endpoint: Endpoint, leads_to: list[str], subtests: pytest.Subtests) -> None:
    rows: list[list[str]] = [
        ["127.0.0.1"],
        ["::1"],
        ["127.0.0.1", "::1", "10.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["169.254.169.254"],
        ["2130706433"],
    ]
    for addresses in rows:
        with subtests.test(addresses=addresses):
            leads_to[:] = addresses
            assert post(f"http://{INSIDE}:{endpoint.port}/") == REFUSED
            assert not endpoint.posts.items


def test_a_name_that_leads_inside_is_served_when_it_or_its_address_is_named(
    endpoint: Endpoint, leads_to: list[str], subtests: pytest.Subtests
) -> None:
    rows: list[str] = [INSIDE, "*.inside.example", f"{INSIDE}:*", "127.0.0.1", "127.*", "127.0.0.1:*"]
    for pattern in rows:
        with subtests.test(pattern=pattern):
            assert post(f"http://{INSIDE}:{endpoint.port}/", "*", pattern).outcome is Outcome.ACKED
            assert leads_to == ["127.0.0.1"]


def test_of_the_addresses_of_a_name_only_those_that_are_allowed_are_tried(endpoint: Endpoint, leads_to: list[str]) -> None:
    with Endpoint() as other:
        leads_to[:] = ["::ffff:127.0.0.1", "127.0.0.1"]
        assert post(f"http://{INSIDE}:{endpoint.port}/", "*", f"127.0.0.1:{endpoint.port}").outcome is Outcome.ACKED
        assert post(f"http://{INSIDE}:{other.port}/", "*", f"127.0.0.1:{endpoint.port}") == REFUSED
    assert not other.posts.items


def test_without_tokens_every_address_is_open(endpoint: Endpoint, leads_to: list[str]) -> None:
    for host in ("127.0.0.1", INSIDE):
        assert post(f"http://{host}:{endpoint.port}/", public_only=False).outcome is Outcome.ACKED
    assert leads_to == ["127.0.0.1"]


def test_a_connection_of_a_name_that_is_trusted_serves_no_other(endpoint: Endpoint, leads_to: list[str]) -> None:
    async def run() -> list[Answer]:
        client = PushClient(Endpoints(["*", INSIDE], public_only=True))
        try:
            hosts = (INSIDE, "other.example", INSIDE.upper(), "127.0.0.1")
            return [await client.post(f"http://{host}:{endpoint.port}/", PushRequest(b"", {}), None, 5.0) for host in hosts]
        finally:
            await client.close()

    assert asyncio.run(run()) == [Answer(Outcome.ACKED), REFUSED, Answer(Outcome.ACKED), REFUSED]
    assert leads_to == ["127.0.0.1"]


def test_the_log_has_the_reason_once_and_no_secret(
    endpoint: Endpoint, leads_to: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        client = PushClient(Endpoints(public_only=True))
        try:
            for _ in range(3):
                url = f"http://{INSIDE}:{endpoint.port}/hush?key=hush"
                assert await client.post(url, PushRequest(b"hush", {"x": "hush"}), "hush", 5.0) == REFUSED
        finally:
            await client.close()

    asyncio.run(run())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "penstock.pubsub.push"]
    assert INSIDE in line
    assert leads_to[0] in line
    assert "hush" not in caplog.text


# ── a whole server ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def served(tmp_path: Path, **settings: Any) -> Iterator[tuple[LocalServer, httpx.Client]]:
    """A server that asks for tokens, and a client that has one."""
    file = tmp_path / "tokens.json"
    secret = Keyring(file).create("tenant", SystemClock().now())
    with (
        LocalServer(auth="token", token_file=file, **settings) as server,
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {secret}"}) as client,
    ):
        client.put(f"{P}/topics/orders").raise_for_status()
        yield server, client


def subscribe(client: httpx.Client, url: str) -> httpx.Response:
    body = {"topic": "projects/demo/topics/orders", "pushConfig": {"pushEndpoint": url}}
    return client.put(f"{P}/subscriptions/pushed", json=body)


def publish(client: httpx.Client) -> None:
    client.post(f"{P}/topics/orders:publish", json={"messages": [{"data": "eA=="}]}).raise_for_status()


def test_a_server_with_tokens_refuses_an_address_inside(tmp_path: Path, endpoint: Endpoint) -> None:
    with served(tmp_path) as (_, client):
        for host in ("127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "169.254.169.254"):
            refused = subscribe(client, f"http://{host}:{endpoint.port}/")
            assert (refused.status_code, refused.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_a_server_with_tokens_does_not_push_to_a_name_that_leads_inside(
    tmp_path: Path, endpoint: Endpoint, leads_to: list[str]
) -> None:
    with served(tmp_path) as (_, client):
        subscribe(client, f"http://{INSIDE}:{endpoint.port}/").raise_for_status()
        publish(client)
        counted = re.compile(r'pushes_unreachable_total\{project="demo",subscription="pushed"\} [1-9]')
        eventually(lambda: counted.search(client.get("/metrics").text))
    assert not endpoint.posts.items
    assert leads_to == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["127.0.0.1", INSIDE])
def test_a_server_with_tokens_pushes_to_what_the_operator_names(
    tmp_path: Path, endpoint: Endpoint, leads_to: list[str], host: str
) -> None:
    with served(tmp_path, push_allow=("*", f"{host}:{endpoint.port}")) as (_, client):
        subscribe(client, f"http://{host}:{endpoint.port}/").raise_for_status()
        publish(client)
        assert [one.data for one in endpoint.posts.wait(1)] == [b"x"]
    assert leads_to == ["127.0.0.1"]


def test_a_server_without_tokens_pushes_anywhere(endpoint: Endpoint) -> None:
    with LocalServer() as server, httpx.Client(base_url=server.url) as client:
        client.put(f"{P}/topics/orders").raise_for_status()
        subscribe(client, endpoint.url).raise_for_status()
        publish(client)
        endpoint.posts.wait(1)
