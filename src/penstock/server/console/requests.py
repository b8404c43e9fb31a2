"""How the operations of the console are built: the caller, the request, and the checks of every route.

A `View` answers a query, over GET and over the live connection. An action is a POST with a JSON body: a page of another site
cannot send one without a preflight request of the browser, and no cookies are used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.access import Principal, Verb
from penstock.api.operations import Operations
from penstock.errors import InvalidArgument, PenstockError
from penstock.http.decoding import UNREADABLE, explain
from penstock.http.refusal import Refusal
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.values.projects import check_project

JSON = "application/json"
TAGS = ("console",)
MAX_BODY = 64 * 1024
ROWS = 200
"""The maximum number of rows of a page."""

P = TypeVar("P", bound=msgspec.Struct)

Limit = Annotated[int, Meta(ge=1, le=ROWS)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=600)]
Text = Annotated[str, Meta(max_length=600)]

PROJECT = Parameter("project", "The project; without it the token's, or the server's default.", Text)


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a resource."""

    name: Name


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An empty object."""


class Confirmation(msgspec.Struct, forbid_unknown_fields=True):
    """An action that cannot be undone is confirmed with the name of its resource."""

    confirm: Text | None = None

    def check(self, name: str) -> None:
        """Return if the name is correct."""
        if self.confirm != name:
            raise Refusal(
                400,
                f"confirm is {self.confirm!r}, expected {name!r}",
                reason="confirmation_required",
                hint="this cannot be undone: repeat the name of what it happens to as `confirm`",
            )


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, and the project. Two callers with the same scope see the same."""

    operations: Operations

    @property
    def principal(self) -> Principal:
        """The authenticated caller."""
        return self.operations.principal

    @property
    def project(self) -> str:
        """The project of the query."""
        return self.operations.project

    @property
    def scope(self) -> tuple[Principal, str]:
        """What the answer depends on, besides the query."""
        return replace(self.principal, token_id=""), self.project


Answer = Callable[[Caller, P], Awaitable[Any]]
"""Answers a caller's query. It raises an error if the query is invalid or not allowed."""
CallerOf = Callable[[Principal, str | None], Caller]


@dataclass(frozen=True, slots=True)
class View(Generic[P]):
    """A query that can be made once, or watched."""

    name: str
    path: str
    summary: str
    parameters: type[P]
    answer: Answer[P]
    reply: Any
    verb: Verb | None = Verb.READ

    def read(self, given: dict[str, Any], *, strict: bool) -> P:
        """The parameters of a query; InvalidArgument for invalid ones."""
        try:
            return msgspec.convert(given, self.parameters, strict=strict)
        except msgspec.ValidationError as error:
            raise explain(error, self.parameters) from None

    def route(self, caller_of: CallerOf) -> Route:
        """The query over GET."""

        async def handle(request: Request) -> web.StreamResponse:
            given = {name: value for name, value in request.query.items() if name != "project"} | request.match_info
            return json_response(
                await asked(caller_of(request.principal, project_of(request)), self.answer, self.read(given, strict=False))
            )

        names = {part.strip("{}") for part in self.path.split("/") if part.startswith("{")}
        parameters = [
            Parameter(
                field.encode_name, "", field.type, "path" if field.encode_name in names else "query", required=field.required
            )
            for field in msgspec.structs.fields(self.parameters)
        ]
        operation = Operation(self.summary, "", TAGS, (*parameters, PROJECT), replies={200: Reply("The answer.", self.reply)})
        return Route("GET", self.path, handle, operation, verb=self.verb)


@dataclass(frozen=True, slots=True)
class Action(Generic[P]):
    """An action. `run` gets the path's parameters and the body."""

    path: str
    summary: str
    body: type[P]
    run: Callable[[Caller, dict[str, str], P], Awaitable[Any]]
    reply: Any
    verb: Verb = Verb.MANAGE
    max_bytes: int = MAX_BODY

    def route(self, caller_of: CallerOf) -> Route:
        """The action over POST."""

        async def handle(request: Request) -> web.StreamResponse:
            caller = caller_of(request.principal, project_of(request))
            body = await read_body(request, self.body)
            try:
                return json_response(await self.run(caller, request.match_info, body))
            except PenstockError as error:
                raise caller.operations.for_caller(error) from None

        operation = Operation(self.summary, "", TAGS, (PROJECT,), Body(self.body), {200: Reply("Done.", self.reply)})
        return Route("POST", self.path, handle, operation, verb=self.verb, max_bytes=self.max_bytes)


async def asked(caller: Caller, answer: Answer[P], question: P) -> Any:
    """The answer to a query; errors use names as the caller knows them."""
    try:
        return await answer(caller, question)
    except PenstockError as error:
        raise caller.operations.for_caller(error) from None


async def read_body(request: Request, kind: type[P]) -> P:
    """The body of an action."""
    if request.content_type != JSON:
        raise Refusal(
            415,
            f"the body's Content-Type is {request.content_type[:100]!r}, expected {JSON}",
            reason="unsupported_media_type",
            hint="actions of the console are JSON, so that no page of another site can send one",
            word="INVALID_ARGUMENT",
        )
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise explain(error, kind) from None


def project_of(request: Request) -> str | None:
    """The project in a request."""
    project = request.query.get("project")
    return None if not project else check_project(project)


def read_time(text: str) -> datetime:
    """A time in text; without a time zone it is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument.of("time", text, "a time such as 2026-11-18T17:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
