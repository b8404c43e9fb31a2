"""The documentation is made of what is served: all of it, and valid."""

from typing import Annotated, Any

import msgspec
import schemathesis
from aiohttp import web

from penstock.http.openapi import openapi
from penstock.http.pages import documented
from penstock.http.refusal import ErrorBody, Refusal
from penstock.http.request import Request
from penstock.http.routes import Body, Operation, Parameter, Reply, Route, RouteTable


class Job(msgspec.Struct):
    """Work to do."""

    payload: Annotated[str, msgspec.Meta(max_length=10)]
    parts: list["Part"] = []


class Part(msgspec.Struct):
    number: int


class Oops(msgspec.Struct):
    oops: str


async def handler(_: Request) -> web.StreamResponse:
    raise AssertionError


def render(_: Refusal) -> web.Response:
    raise AssertionError


ROUTES = [
    Route(
        "POST",
        "/queues/{name}/jobs",
        handler,
        Operation(
            "Add a job",
            "It is kept.",
            ("queues",),
            (Parameter("name", "Of the queue.", where="path", example="q"), Parameter("wait", "", float)),
            Body(Job, example={"payload": "x"}),
            {201: Reply("Added.", Job), 204: Reply("Nothing to add.")},
        ),
        ErrorBody(render, Oops),
    ),
    Route("GET", "/queues/{name}/ws/{consumer}", handler, Operation("Consume", is_websocket=True), is_open=True),
    Route("GET", "/raw", handler, Operation("Raw", replies={200: Reply("Bytes.", {"type": "string"}, "text/plain")})),
]


def document(**options: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(openapi(RouteTable(ROUTES), title="T", version="1", **options)))


def test_every_route_is_described_and_nothing_else() -> None:
    paths = document()["paths"]

    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == {
        (r.method, r.path) for r in ROUTES
    }


def test_the_document_is_valid_openapi() -> None:
    for secured in (True, False):
        schemathesis.openapi.from_dict(document(is_secured=secured)).validate()


def test_a_route_is_described_with_its_parameters_body_answers_and_errors() -> None:
    described = document()
    operation = described["paths"]["/queues/{name}/jobs"]["post"]

    assert [(one["name"], one["in"], one["required"]) for one in operation["parameters"]] == [
        ("name", "path", True),
        ("wait", "query", False),
    ]
    content = operation["requestBody"]["content"]["application/json"]
    assert content == {"schema": {"$ref": "#/components/schemas/Job"}, "example": {"payload": "x"}}
    assert set(operation["responses"]) == {"201", "204", "default"}
    assert operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith("/Oops")
    assert set(described["components"]["schemas"]) == {"Job", "Part", "Oops", "ErrorEnvelope", "ErrorDetail"}


def test_a_websocket_is_a_get_that_upgrades_and_path_parameters_need_no_description() -> None:
    operation = document()["paths"]["/queues/{name}/ws/{consumer}"]["get"]

    assert set(operation["responses"]) == {"101", "default"}
    assert [one["name"] for one in operation["parameters"]] == ["name", "consumer"]


def test_a_secured_server_says_so_and_which_routes_are_open() -> None:
    secured, free = document(is_secured=True), document(is_secured=False)

    assert set(secured["components"]["securitySchemes"]) == {"bearer", "basic", "apiKey"}
    assert secured["paths"]["/queues/{name}/ws/{consumer}"]["get"]["security"] == []
    assert "security" not in secured["paths"]["/raw"]["get"]
    assert "security" not in free


def test_operation_ids_are_unique() -> None:
    paths = document()["paths"]
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]

    assert len(set(names)) == len(names)


def test_the_pages_are_routes_of_the_table_too() -> None:
    table = documented(ROUTES, version="1", is_secured=True)

    assert [route.path for route in table if route not in ROUTES] == ["/", "/docs", "/openapi.json"]
