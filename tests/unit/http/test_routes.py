"""The table of routes: it finds what is meant, refuses what is ambiguous, and says what is allowed."""

import pytest
from aiohttp import web

from penstock.errors import InvalidArgument
from penstock.http.limits import HttpLimits
from penstock.http.refusal import Refusal
from penstock.http.request import Request
from penstock.http.routes import Operation, Route, RouteTable


async def handler(_: Request) -> web.StreamResponse:
    raise AssertionError


def table(*lines: str) -> RouteTable:
    words = (line.split() for line in lines)
    return RouteTable(Route(method, path, handler, Operation(path)) for method, path in words)


TABLE = table(
    "GET /",
    "GET /queues",
    "POST /queues",
    "GET /queues/{name}",
    "DELETE /queues/{name}",
    "GET /queues/stats",
    "GET /queues/{queue}/ws/{consumer}",
    "GET /v1/projects/{project}/topics/{topic}",
    "PUT /v1/projects/{project}/topics/{topic}",
    "POST /v1/projects/{project}/topics/{topic}:publish",
    "GET /{anything}/health",
)


def test_a_request_finds_its_route(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str, dict[str, str]]] = [
        ("GET", "/", "/", {}),
        ("GET", "/?x=/queues", "/", {}),
        ("GET", "/queues?limit=1", "/queues", {}),
        ("HEAD", "/queues", "/queues", {}),
        ("GET", "/queues/stats", "/queues/stats", {}),
        ("GET", "/queues/jobs", "/queues/{name}", {"name": "jobs"}),
        ("HEAD", "/queues/jobs", "/queues/{name}", {"name": "jobs"}),
        ("GET", "/queues/a%2Fb", "/queues/{name}", {"name": "a/b"}),
        ("GET", "/queues/%E2%82%AC", "/queues/{name}", {"name": "€"}),
        ("GET", "/queues/a:b", "/queues/{name}", {"name": "a:b"}),
        ("GET", "/queues/q/ws/c", "/queues/{queue}/ws/{consumer}", {"queue": "q", "consumer": "c"}),
        ("PUT", "/v1/projects/p/topics/t", "/v1/projects/{project}/topics/{topic}", {"project": "p", "topic": "t"}),
        (
            "POST",
            "/v1/projects/p/topics/t:publish",
            "/v1/projects/{project}/topics/{topic}:publish",
            {"project": "p", "topic": "t"},
        ),
        ("GET", "/anywhere/health", "/{anything}/health", {"anything": "anywhere"}),
        ("GET", "/queues/health", "/queues/{name}", {"name": "health"}),
        ("GET", "http://proxy/queues/jobs?x", "/queues/{name}", {"name": "jobs"}),
    ]
    for method, target, path, values in rows:
        with subtests.test(method=method, target=target):
            route, found, _ = TABLE.find(method, target)

            assert route is not None
            assert (route.path, found) == (path, values)


def test_what_is_not_served_is_not_found(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["/nothing", "/queues/", "/queues//", "/queues/a/b", "", "*", "http://[", "//queues", "/{}", "/QUEUES"]
    for target in rows:
        with subtests.test(target=target):
            assert TABLE.find("GET", target) == (None, {}, ())


def test_a_method_that_is_not_served_is_told_which_are(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, tuple[str, ...]]] = [
        ("/queues", ("GET", "HEAD", "POST", "OPTIONS")),
        ("/queues/jobs", ("GET", "HEAD", "DELETE", "OPTIONS")),
        ("/v1/projects/p/topics/t:publish", ("POST", "OPTIONS", "GET", "HEAD", "PUT")),
    ]
    for target, allowed in rows:
        with subtests.test(target=target, allowed=allowed):
            assert TABLE.find("PATCH", target) == (None, {}, allowed)


def test_bytes_that_are_not_utf8_are_refused_rather_than_replaced() -> None:
    with pytest.raises(Refusal) as caught:
        TABLE.find("GET", "/queues/%ff")

    assert caught.value.status == 400


def test_a_table_that_cannot_be_meant_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, ...]] = [
        ("GET /a", "GET /a"),
        ("GET /{x}", "GET /{y}"),
        ("HEAD /a",),
        ("get /a",),
        ("GET a",),
        ("GET /a?b",),
    ]
    for lines in rows:
        with subtests.test(lines=lines), pytest.raises(InvalidArgument):
            table(*lines)


def test_a_limit_is_a_number_above_zero(subtests: pytest.Subtests) -> None:
    rows: list[object] = [0, -1, float("nan"), "10", True, None]
    for value in rows:
        with subtests.test(value=value), pytest.raises(InvalidArgument, match="head_seconds is"):
            HttpLimits(head_seconds=value)  # type: ignore[arg-type]  # what is tested
