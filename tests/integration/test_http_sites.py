"""What web pages may do here, over real sockets: by what browsers say of a request, and by the name it was sent to."""

from itertools import product

import pytest

from penstock.access import ClientRates
from penstock.config import Settings
from penstock.http.authentication import TokenGate
from penstock.rate_limit import RateLimit
from penstock.server.server import hosts_of
from tests.integration.http_client import connected, scenario, serving
from tests.integration.test_http_shell import Doorman

OPEN = TokenGate()
LIMITED = TokenGate(rates=ClientRates(RateLimit(1000, burst=1000)))


@pytest.mark.parametrize("gate", [None, OPEN, Doorman()])
@scenario
async def test_what_a_page_of_another_site_causes_is_refused(gate: TokenGate | None) -> None:
    async with serving(gate=gate) as (_, port), connected(port) as client:
        for site, mode in product(["cross-site", "same-site"], ["no-cors", "navigate", "cors", "websocket"]):
            for method, path in (("GET", "/who/me"), ("HEAD", "/who/me"), ("POST", "/echo"), ("GET", "/nowhere")):
                answer = await client.ask(method, path, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode, X_API_Key="good")
                assert answer.status == 403, (site, mode, method, path)
            answer = await client.ask("GET", "/who/me", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode)
            assert answer.reason == "origin_not_allowed"
            assert "cors_origins" in answer.json()["error"]["hint"]


@scenario
async def test_a_page_may_link_to_the_pages_for_people_and_do_no_more_with_them() -> None:
    async with serving() as (_, port), connected(port) as client:
        for path in ("/", "/docs", "/openapi.json"):
            linked = await client.ask("GET", path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
            drawn = await client.ask("GET", path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")
            assert (linked.status, drawn.status) == (200, 403), path


@scenario
async def test_what_no_other_site_causes_is_let_in() -> None:
    async with serving() as (_, port), connected(port) as client:
        assert (await client.ask("GET", "/who/me")).status == 200
        for site in ("none", "same-origin"):
            assert (await client.ask("GET", "/who/me", Sec_Fetch_Site=site, Sec_Fetch_Mode="cors")).status == 200, site


@scenario
async def test_pages_of_an_allowed_origin_call_by_scripts_and_where_all_are_allowed_in_any_way() -> None:
    foreign = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
    async with serving(origins=["https://app.example.com"]) as (_, port), connected(port) as client:
        said = await client.ask("GET", "/who/me", None, Origin="https://app.example.com", **foreign)
        unsaid = await client.ask("GET", "/who/me", None, **foreign)
    async with serving(origins=["*"]) as (_, port), connected(port) as client:
        anyone = await client.ask("GET", "/who/me", None, Host="evil.example", **foreign)
    assert (said.status, unsaid.status, anyone.status) == (200, 403, 200)


STRANGE = [
    "evil.example",
    "evil.example:8085",
    "EVIL.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "evil.example.",
    "penstock.example.evil",
    "[::1",
    "[evil]",
    "x" * 5000,
    "127.0.0.1,evil.example",
]


SERVED = [
    "127.0.0.1",
    "127.0.0.1:8085",
    "10.1.2.3:80",
    "[::1]",
    "[::1]:8085",
    "localhost",
    "LocalHost:8085",
    "localhost.",
    "app.localhost:1",
    "penstock.example",
    "Penstock.Example:443",
    "",
]


@pytest.mark.parametrize("gate", [None, OPEN, LIMITED], ids=["none", "open", "limited"])
@scenario
async def test_without_tokens_a_name_that_a_stranger_may_point_here_is_refused(gate: TokenGate | None) -> None:
    async with serving(gate=gate, hosts=["penstock.example"]) as (_, port), connected(port) as client:
        for host, path in product(STRANGE, ("/who/me", "/", "/nowhere")):
            answer = await client.ask("GET", path, Host=host)
            assert (answer.status, answer.reason) == (421, "host_not_allowed"), (host, path)
            assert "public_url" in answer.json()["error"]["hint"]
            assert len(answer.body) < 600


@scenario
async def test_an_address_localhost_and_the_servers_own_names_are_served() -> None:
    async with serving(hosts=["Penstock.example"]) as (_, port), connected(port) as client:
        for host in SERVED:
            assert (await client.ask("GET", "/who/me", Host=host)).status == 200, host


@scenario
async def test_with_tokens_any_name_is_served_and_a_page_under_it_is_still_a_stranger() -> None:
    async with serving(gate=Doorman()) as (_, port), connected(port) as client:
        named = await client.ask("GET", "/who/me", Host="queues.example", X_API_Key="good")
        page = await client.ask("GET", "/who/me", Host="queues.example", X_API_Key="good", Origin="http://queues.example")
    assert (named.status, page.status) == (200, 403)


@scenario
async def test_a_page_of_this_server_may_call_it_under_its_own_name() -> None:
    async with serving(hosts=["queues.example"]) as (_, port), connected(port) as client:
        own = await client.ask("POST", "/echo", b"x", Host="queues.example:80", Origin="http://queues.example:80")
        other = await client.ask("POST", "/echo", b"x", Host="queues.example", Origin="http://evil.example")
        hidden = await client.ask("POST", "/echo", b"x", Host="queues.example", Origin="null")
    assert [answer.status for answer in (own, other, hidden)] == [200, 403, 403]


@pytest.mark.parametrize(("host", "stranger"), [("127.0.0.1", 421), ("0.0.0.0", 403)])
@scenario
async def test_a_server_knows_its_own_pages_by_its_public_url_whoever_may_reach_it(host: str, stranger: int) -> None:
    settings = Settings(memory=True, host=host, insecure=True, public_url="https://queues.example")
    async with serving(hosts=hosts_of(settings)) as (_, port), connected(port) as client:
        own = await client.ask("POST", "/echo", b"x", Host="queues.example", Origin="https://queues.example")
        other = await client.ask("POST", "/echo", b"x", Host="queues.example", Origin="https://evil.example")
        pointed = await client.ask("POST", "/echo", b"x", Host="evil.example", Origin="https://evil.example")
    assert [answer.status for answer in (own, other, pointed)] == [200, 403, stranger]
