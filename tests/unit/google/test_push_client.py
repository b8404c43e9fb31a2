"""One POST against endpoints of every kind, over real sockets."""

import asyncio
import os
from contextlib import AbstractContextManager

import pytest

from penstock.google.core.push import PushRequest
from penstock.google.push_client import USER_AGENT, Answer, Outcome, PushClient
from tests.integration.push_endpoint import Endpoint, RawEndpoint, Talk, floods, is_silent, says

REQUEST = PushRequest(b'{"message":{}}', {"content-type": "application/json", "x-mine": "ä"})


def post(url: str, *, request: PushRequest = REQUEST, token: str | None = None, seconds: float = 5.0, times: int = 1) -> Answer:
    async def run() -> Answer:
        client = PushClient()
        try:
            answers = [await client.post(url, request, token, seconds) for _ in range(times)]
            return answers[-1]
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_a_status_that_accepts(status: int) -> None:
    with Endpoint(lambda _: status) as endpoint:
        assert post(endpoint.url) == Answer(Outcome.ACKED)


@pytest.mark.parametrize("status", [203, 205, 206, 301, 302, 304, 307, 400, 401, 404, 409, 429, 500, 503, 599])
def test_a_status_that_does_not(status: int) -> None:
    with Endpoint(lambda _: status) as endpoint:
        assert post(endpoint.url) == Answer(Outcome.REFUSED, f"the endpoint answered with status {status}")


def test_102_accepts_without_waiting_for_what_follows() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await is_silent(reader, writer)

    with RawEndpoint(talk) as endpoint:
        assert post(endpoint.url, seconds=30.0) == Answer(Outcome.ACKED)


def test_other_provisional_answers_are_waited_out() -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    with RawEndpoint(says(data)) as endpoint:
        assert post(endpoint.url).outcome is Outcome.ACKED


def test_what_is_sent() -> None:
    with Endpoint() as endpoint:
        post(f"{endpoint.url}/a%2Fb?x=1", token="t0k")

    (sent,) = endpoint.posts.items
    assert (sent.path, sent.body) == ("/a%2Fb?x=1", REQUEST.body)
    assert sent.headers["authorization"] == "Bearer t0k"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["content-length"] == str(len(REQUEST.body))
    assert sent.headers["user-agent"] == USER_AGENT
    assert sent.headers["x-mine"] == "ä"
    assert "accept-encoding" not in sent.headers


@pytest.mark.parametrize("size", [0, 512 * 1024, 512 * 1024 + 1, 10 * 1024 * 1024])
def test_a_body_of_any_size_arrives_whole_and_with_its_length(size: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    with RawEndpoint(talk) as endpoint:
        assert post(endpoint.url, request=PushRequest(b"x" * size, {})).outcome is Outcome.ACKED

    assert f"content-length: {size}\r\n".encode() in endpoint.calls.items[0].lower()


HOSTILE: dict[str, tuple[Talk, Outcome]] = {
    "hangs up": (says(b""), Outcome.UNREACHABLE),
    "not HTTP": (says(b"\x16\x03\x01\x02\x00" * 100), Outcome.UNREACHABLE),
    "SSH": (says(b"SSH-2.0-OpenSSH_9.6\r\n"), Outcome.UNREACHABLE),
    "status that is none": (says(b"HTTP/1.1 abc OK\r\n\r\n"), Outcome.UNREACHABLE),
    "half a head": (says(b"HTTP/1.1 200 OK\r\nContent-Le"), Outcome.UNREACHABLE),
    "a huge header": (says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n"), Outcome.UNREACHABLE),
    "very many headers": (says(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"), Outcome.UNREACHABLE),
    "a body that breaks off": (says(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"), Outcome.ACKED),
    "a bomb": (says(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"), Outcome.ACKED),
    "a body without end": (floods, Outcome.ACKED),
    "a refusal without end": (says(b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 1_000_000), Outcome.REFUSED),
    "two answers": (says(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), Outcome.REFUSED),
    "an upgrade": (says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), Outcome.REFUSED),
    "silence": (is_silent, Outcome.TIMED_OUT),
}


def test_a_hostile_endpoint(subtests: pytest.Subtests) -> None:
    for case, (talk, outcome) in HOSTILE.items():
        with subtests.test(case):
            with RawEndpoint(talk) as endpoint:
                answer = post(endpoint.url, seconds=1.0 if outcome is Outcome.TIMED_OUT else 20.0)

            assert answer.outcome is outcome
            assert len(answer.reason) < 200


def test_a_redirect_is_not_followed() -> None:
    with Endpoint() as target:
        data = f"HTTP/1.1 307 Go\r\nLocation: {target.url}/\r\nContent-Length: 0\r\n\r\n".encode()
        with RawEndpoint(says(data)) as endpoint:
            assert post(endpoint.url).outcome is Outcome.REFUSED

    assert not target.posts.items


def test_nobody_at_home() -> None:
    with Endpoint() as endpoint:
        url = endpoint.url
    assert post(url).outcome is Outcome.UNREACHABLE


def test_an_endpoint_that_leads_nowhere(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["http://127.0.0.1:1/", "http://[::1]:1/", "http://a..b/", "http://" + "a" * 300 + "/", "http://x\\y/"]
    for url in rows:
        with subtests.test(url=url):
            assert post(url, seconds=5.0).outcome is Outcome.UNREACHABLE


def test_no_proxy_of_the_environment_sees_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint() as proxy, Endpoint() as endpoint:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setitem(os.environ, name, proxy.url)
        assert post(endpoint.url).outcome is Outcome.ACKED

    assert not proxy.posts.items


def test_connections_are_used_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readexactly(len(REQUEST.body))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await reader.readuntil(b"\r\n\r\n")

    endpoint: AbstractContextManager[RawEndpoint] = RawEndpoint(talk)
    with endpoint as opened:
        assert post(opened.url, times=5).outcome is Outcome.ACKED
        assert len(opened.calls.items) == 1
