"""The HTTP port over real sockets: who is let in, what is refused, and what every answer looks like."""

import asyncio
import functools
import gzip
import json
import logging
from pathlib import Path

import pytest
from aiohttp import web

from penstock.access import ANYONE, ClientRates, Keyring, Principal, Verb
from penstock.errors import BrokerClosed, InvalidArgument, Unauthenticated
from penstock.http.authentication import TokenGate
from penstock.http.bodies import STEP_BYTES
from penstock.http.limits import HttpLimits
from penstock.http.refusal import GOOGLE_ERRORS, ErrorBody, Refusal
from penstock.http.request import Request, json_response, open_websocket
from penstock.http.routes import Operation, Route
from penstock.rate_limit import RateLimit
from penstock.testing import ManualClock
from tests.integration.http_client import connected, echo, route, run, scenario, serving, who

SECRET = "a-secret-that-must-not-be-seen"


class Doorman:
    """One token is known; it may read."""

    def authenticate(self, secret: str | None) -> Principal:
        if secret != "good":
            raise Unauthenticated
        return Principal("known", None, frozenset({Verb.READ}))

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        return 0.0


@scenario
async def test_a_connection_is_kept_after_every_kind_of_answer() -> None:
    async def broken(_: Request) -> web.StreamResponse:
        raise RuntimeError(SECRET)

    async with serving([route("GET", "/broken", broken)]) as (_, port), connected(port) as client:
        assert (await client.ask("GET", "/nowhere")).status == 404
        assert (await client.ask("DELETE", "/echo")).status == 405
        assert (await client.ask("GET", "/broken")).status == 500
        assert (await client.ask("POST", "/echo", b"still here")).body == b"still here"


@scenario
async def test_a_path_that_is_not_served_and_a_method_that_is_not_allowed_are_said_in_json() -> None:
    async with serving() as (_, port), connected(port) as client:
        missing = await client.ask("GET", "/nowhere?token=x")
        refused = await client.ask("PUT", "/echo")

    assert missing.json()["error"] == {
        "code": 404,
        "message": "no such path",
        "status": "NOT_FOUND",
        "reason": "no_such_path",
        "hint": "GET /docs lists every operation",
    }
    assert (refused.headers["allow"], refused.reason) == ("POST, OPTIONS", "method_not_allowed")


@scenario
async def test_head_and_options_are_answered_for_every_route() -> None:
    async with serving() as (_, port), connected(port) as client:
        full = await client.ask("GET", "/who/me", X_Request_Id="1")
        head = await client.ask("HEAD", "/who/me", X_Request_Id="1")
        options = await client.ask("OPTIONS", "/who/me")

    assert (head.status, head.headers["content-length"], head.body) == (200, str(len(full.body)), b"")
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")


@scenario
async def test_a_sane_request_id_is_kept_and_any_other_replaced() -> None:
    async with serving() as (_, port), connected(port) as client:
        kept = await client.ask("GET", "/who/me", X_Request_Id="trace-1.2")
        ids = [kept.headers["x-request-id"], kept.json()["id"]]
        made = [(await client.ask("GET", "/who/me", X_Request_Id=bad)).headers["x-request-id"] for bad in ("", "a b", "x" * 200)]

    assert ids == ["trace-1.2", "trace-1.2"]
    assert len(set(made)) == 3
    assert not {"", "a b", "x" * 200} & set(made)


@scenario
async def test_an_unknown_error_shows_the_client_its_request_id_and_nobody_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Request) -> web.StreamResponse:
        raise RuntimeError(f"{SECRET} {await request.text()}")

    with caplog.at_level(logging.DEBUG):
        async with serving([route("POST", "/broken", broken)]) as (_, port), connected(port) as client:
            answer = await client.ask(
                "POST", f"/broken?key={SECRET}", SECRET.encode(), Authorization=f"Bearer {SECRET}", X_Request_Id="find-me"
            )

    assert (answer.status, answer.reason, answer.headers["x-request-id"]) == (500, "internal", "find-me")
    assert SECRET.encode() not in answer.body
    assert b"Traceback" not in answer.body
    assert "request find-me failed with RuntimeError" in caplog.text
    assert "POST /broken 500" in caplog.text
    assert SECRET not in caplog.text


@scenario
async def test_a_handler_without_an_answer_is_a_logged_error(caplog: pytest.LogCaptureFixture) -> None:
    async def forgetful(_: Request) -> web.StreamResponse:
        return None  # type: ignore[return-value]  # the mistake that is tested

    async with serving([route("GET", "/forgetful", forgetful)]) as (_, port), connected(port) as client:
        assert (await client.ask("GET", "/forgetful")).reason == "internal"
    assert "failed with AttributeError" in caplog.text


@scenario
async def test_a_door_writes_its_errors_in_its_own_form() -> None:
    def render(refusal: Refusal) -> web.Response:
        return web.json_response({"success": False, "error": refusal.message}, status=507)

    async def full(_: Request) -> web.StreamResponse:
        raise InvalidArgument("no")

    own = ErrorBody(render, {"type": "object"})
    async with serving([route("GET", "/full", full, errors=own)]) as (_, port), connected(port) as client:
        answer = await client.ask("GET", "/full")

    assert (answer.status, answer.json()) == (507, {"success": False, "error": "no"})


@scenario
async def test_a_token_may_come_in_any_of_three_ways_and_only_a_good_one_is_let_in() -> None:
    basic = "Basic dXNlcjpnb29k"  # user:good
    async with serving(gate=Doorman()) as (_, port), connected(port) as client:
        for headers in (
            {"Authorization": "Bearer good"},
            {"Authorization": "bearer  good"},
            {"Authorization": basic},
            {"X_API_Key": "good"},
        ):
            answer = await client.ask("GET", "/who/me", None, **headers)
            assert (answer.status, answer.json()["token"]) == (200, "known")
        for headers in (
            {},
            {"Authorization": "Bearer bad"},
            {"Authorization": "good"},
            {"Authorization": "Basic ???"},
            {"X_API_Key": ""},
        ):
            answer = await client.ask("GET", "/who/me", None, **headers)
            assert (answer.status, answer.reason) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


@scenario
async def test_a_route_with_a_verb_wants_a_token_that_has_it_and_an_open_one_wants_none() -> None:
    routes = [
        route("GET", "/read", echo, verb=Verb.READ),
        route("GET", "/manage", echo, verb=Verb.MANAGE),
        route("GET", "/open/{name}", who, is_open=True),
    ]
    async with serving(routes, gate=Doorman()) as (_, port), connected(port) as client:
        assert (await client.ask("GET", "/read", X_API_Key="good")).status == 200
        assert (await client.ask("GET", "/manage", X_API_Key="good")).reason == "permission_denied"
        opened = (await client.ask("GET", "/open/x", X_API_Key="bad")).json()
    assert (opened["token"], opened["verbs"]) == ("", [])


@scenario
async def test_who_calls_too_often_is_told_when_to_come_back_and_others_are_not(tmp_path: Path) -> None:
    clock = ManualClock()
    keyring = Keyring(tmp_path / "tokens")
    first, second = (keyring.create(name, clock.now()) for name in ("first", "second"))
    gate = TokenGate(keyring, ClientRates(RateLimit(0.25, burst=2)), clock)

    async with serving(gate=gate) as (_, port), connected(port) as client:
        ask = functools.partial(client.ask, "GET", "/who/me")
        assert [(await ask(X_API_Key=first)).status for _ in range(3)] == [200, 200, 429]
        refused = await ask(X_API_Key=first)
        assert (refused.headers["retry-after"], refused.reason) == ("4", "rate_limited")
        assert (await ask(X_API_Key=second)).status == 200
        assert [(await ask(X_API_Key="guess")).status for _ in range(3)] == [401, 401, 429]
        clock.advance(4)
        assert (await ask(X_API_Key=first)).status == 200


def test_a_gate_without_tokens_lets_everyone_in() -> None:
    gate = TokenGate()

    assert (gate.authenticate(None), gate.wait_seconds(ANYONE, "x")) == (ANYONE, 0.0)


SMALL = HttpLimits(max_request_bytes=1000)


@scenario
async def test_a_body_that_is_announced_too_large_is_refused_before_it_is_read() -> None:
    async with serving(limits=SMALL) as (_, port), connected(port) as client:
        await client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.reason, answer.headers["connection"]) == (413, "request_too_large", "close")
        client.writer.write_eof()
        assert await client.is_cut()


@scenario
async def test_a_body_of_unknown_length_is_refused_when_it_becomes_too_large() -> None:
    async with serving(limits=SMALL) as (_, port), connected(port) as client:
        await client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):
            await client.send(b"64\r\n" + b"x" * 100 + b"\r\n")
        answer = await client.answer()
        assert answer.status == 413
        assert "at most 1000 bytes" in answer.json()["error"]["message"]


@scenario
async def test_a_body_that_grows_when_unpacked_is_refused() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    async with serving(limits=HttpLimits(max_request_bytes=100_000)) as (_, port), connected(port) as client:
        assert len(bomb) < 100_000
        assert (await client.ask("POST", "/echo", bomb, Content_Encoding="gzip")).status == 413


@scenario
async def test_a_compressed_body_is_unpacked_only_for_a_caller_who_is_let_in() -> None:
    broken = b"this cannot be unpacked"
    for path, token, status in (("/echo", "bad", 401), ("/nowhere", "good", 404), ("/echo", "good", 400)):
        async with serving(gate=Doorman()) as (_, port), connected(port) as client:
            assert (await client.ask("POST", path, broken, Content_Encoding="gzip", X_API_Key=token)).status == status
    async with serving(gate=Doorman()) as (_, port), connected(port) as client:
        packed = gzip.compress(b"hello")
        assert (await client.ask("POST", "/echo", packed, Content_Encoding="gzip", X_API_Key="good")).body == b"hello"
        assert (await client.ask("POST", "/echo", packed, Content_Encoding="br", X_API_Key="good")).status == 415


@scenario
async def test_others_have_their_turn_while_compressed_bodies_are_unpacked() -> None:
    """However many arrive at once, one step is unpacked in each turn of the loop."""
    size, senders = 8_000_000, 4
    turns, done = 0, False

    async def count() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    async def send(port: int) -> bytes:
        async with connected(port) as client:
            return (await client.ask("POST", "/length", gzip.compress(bytes(size)), Content_Encoding="gzip")).body

    async def length(request: Request) -> web.StreamResponse:
        return json_response(len(await request.read()))

    async with serving([route("POST", "/length", length)]) as (_, port):
        counting = asyncio.create_task(count())
        assert await asyncio.gather(*(send(port) for _ in range(senders))) == [b"%d" % size] * senders
        done = True
        await counting
    assert turns >= senders * size // STEP_BYTES


@scenario
async def test_a_body_as_large_as_allowed_passes_and_a_route_may_have_a_limit_of_its_own() -> None:
    async with serving([route("POST", "/tiny", echo, max_bytes=10)], limits=SMALL) as (_, port), connected(port) as client:
        assert (await client.ask("POST", "/echo", b"x" * 1000)).status == 200
        assert (await client.ask("POST", "/tiny", b"x" * 10)).status == 200
        await client.send(b"POST /tiny HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nxxxxxxxxxxx\r\n0\r\n\r\n")
        assert (await client.answer()).status == 413


@scenario
async def test_a_client_that_waits_for_permission_gets_it_only_when_it_is_let_in() -> None:
    async with serving(gate=Doorman()) as (_, port):
        head = "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\nX-API-Key: {}\r\n\r\n"
        async with connected(port) as client:
            await client.send(head.format("good").encode())
            assert (await client.answer()).status == 100
            await client.send(b"hi")
            assert (await client.answer()).body == b"hi"
        async with connected(port) as client:
            await client.send(head.format("bad").encode())
            assert (await client.answer()).status == 401


NOT_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nNo colon here\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(500)) + b"\r\n",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot a number\r\n",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\noops",
    b"GET /who/%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[broken HTTP/1.1\r\nHost: x\r\n\r\n",
]


def test_what_is_not_http_is_refused_in_json_and_others_are_served(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    async def play() -> None:
        async with serving() as (_, port):
            for head in NOT_HTTP:
                with subtests.test(head=head[:40]):
                    async with connected(port) as client:
                        await client.send(head)
                        answer = await client.answer()
                        assert answer.status in {400, 431}
                        assert set(answer.json()["error"]) >= {"code", "message", "reason"}
                    async with connected(port) as other:
                        assert (await other.ask("POST", "/echo", b"ok")).body == b"ok"

    with caplog.at_level(logging.INFO):
        run(play())
    assert caplog.text == ""


@scenario
async def test_strange_targets_find_what_they_mean() -> None:
    async with serving() as (_, port), connected(port) as client:
        assert (await client.ask("GET", "http://example.com/who/me?x=1")).json()["match"] == {"name": "me"}
        assert (await client.ask("GET", "/who/a%2Fb%20c?d=e")).json()["match"] == {"name": "a/b c"}
        assert (await client.ask("GET", "//who/me")).status == 404
        assert (await client.ask("GET", "/who/me/")).status == 404
        assert (await client.ask("OPTIONS", "*")).status == 204
        assert (await client.ask("PROPFIND", "/who/me")).status == 405


@scenario
async def test_a_page_of_a_configured_origin_may_call_and_one_of_another_may_not() -> None:
    async with serving(origins=["https://app.example.com"]) as (_, port), connected(port) as client:
        allowed = await client.ask("POST", "/echo", b"x", Origin="https://app.example.com")
        foreign = await client.ask("POST", "/echo", b"x", Origin="https://evil.example.com")
        preflight = await client.ask("OPTIONS", "/echo", Origin="https://app.example.com", Access_Control_Request_Method="POST")
        await client.send(f"POST /echo HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n\r\n".encode())
        own = await client.answer()

    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://app.example.com")
    assert preflight.headers["access-control-allow-methods"] == "POST, OPTIONS"
    assert (foreign.status, foreign.reason) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in foreign.headers
    assert (own.status, "access-control-allow-origin" in own.headers) == (200, False)


@scenario
async def test_a_broker_that_closes_while_the_server_stops_is_not_the_callers_fault() -> None:
    async def closed(_: Request) -> web.StreamResponse:
        raise BrokerClosed

    async with serving([route("GET", "/closed", closed)]) as (_, port), connected(port) as client:
        assert (await client.ask("GET", "/closed")).status == 503


async def wave(request: Request) -> web.StreamResponse:
    return await open_websocket(request, max_message_bytes=1024)


UPGRADE = Route("GET", "/talk", wave, Operation("Talk", is_websocket=True))


@scenario
async def test_the_pages_describe_every_route_and_run_nothing_but_their_own_script() -> None:
    async with serving([UPGRADE]) as (server, port), connected(port) as client:
        document = (await client.ask("GET", "/openapi.json")).json()
        docs = await client.ask("GET", "/docs")
        landing = await client.ask("GET", "/")
        sent_on = await client.ask("GET", "/", Accept="text/html")

    served = {(route.path, route.method.lower()) for route in server.table}
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == served
    assert len(served) == 6
    assert document["paths"]["/talk"]["get"]["responses"]["101"]
    assert docs.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'sha256-" in docs.headers["content-security-policy"]
    assert "unsafe" not in docs.headers["content-security-policy"]
    assert b"http://" not in docs.body.replace(b"http://\xe2\x80\xa6", b"")
    assert b"https://" not in docs.body
    assert (sent_on.status, sent_on.headers["location"]) == (302, "/docs")
    assert landing.json()["links"]["docs"] == "/docs"
    assert json.dumps(GOOGLE_ERRORS.schema.__name__) in json.dumps([*document["components"]["schemas"]])  # type: ignore[union-attr]  # a Struct here
